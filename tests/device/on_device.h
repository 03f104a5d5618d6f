/* on_device.h: runs an op on any device, with operands in host memory: copies them, with the guard bytes around them,
 * to the device and back. */
#ifndef ON_DEVICE_H
#define ON_DEVICE_H

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "memory/device.h"
#include "base/mem.h"

enum { APPLY_BLOCKS = OP_IN + OP_OUT + 1, APPLY_BYTE = 0x5A }; /* operands and the workspace */

typedef struct Apply {
    Device *device;
    size_t guard;    /* bytes on both sides of every operand that are the caller's: a multiple of the alignment, or 0 */
    bool misaligned; /* operands start one element further on the device */
} Apply;

/* host[bytes] is copied to `at`, which is inside the allocation `base` */
typedef struct ApplyBlock { char *host, *base, *at; size_t bytes, allocated; } ApplyBlock;

/* From here on ops run in another order: by one thread instead of many, the last block first, and no work is done
 * before something waits for it. Returns the argument for apply_forwards(), which ends it. */
static inline int apply_backwards(void) {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    setenv("EMULATE_REVERSE", "1", 1);
    setenv("EMULATE_LATE", "1", 1);
    return threads;
}

static inline void apply_forwards(int threads) {
    unsetenv("EMULATE_REVERSE");
    unsetenv("EMULATE_LATE");
    omp_set_num_threads(threads);
}

static View *apply_view(KArgs *a, int k) { return k < OP_IN ? &a->in[k] : &a->out[k - OP_IN]; }

static size_t apply_bytes(KArgs *a, int k) {
    const View *v = apply_view(a, k);
    const OpInfo *info = op_info(a->kind);
    const char *name = (k < OP_IN ? info->in : info->out)[k % OP_IN].name;
    return !name || strcmp(name, "state") ? (size_t)v->count * dtype_size(v->dtype) : sizeof(StepState);
}

static int apply_alloc(const Apply *to, ApplyBlock *b, size_t shift, Err *e) {
    const DeviceTable *t = to->device->table;
    void *p;
    b->allocated = align_up(b->bytes + shift, t->alignment);
    int code = t->alloc(to->device, b->allocated, &p, e);
    if (code) return code;
    b->base = p;
    b->at = b->base + shift;
    return t->upload(to->device, b->at, b->host, b->bytes, e);
}

/* Copies operand k of `a` to the device and points it there. Operands that share their storage share it there, too. */
static int apply_operand(const Apply *to, KArgs *a, ApplyBlock *blocks, int k, Err *e) {
    View *v = apply_view(a, k);
    size_t shift = to->misaligned ? dtype_size(v->dtype) : 0;
    char *host = (char *)v->data - to->guard;
    for (int i = 0; i < k; i++) {
        if (blocks[i].host != host) continue;
        v->data = blocks[i].at + to->guard;
        return OK;
    }
    blocks[k].host = host;
    blocks[k].bytes = apply_bytes(a, k) + 2 * to->guard;
    int code = apply_alloc(to, &blocks[k], shift, e);
    v->data = blocks[k].at + to->guard;
    return code;
}

/* The workspace has exactly the bytes that the op asked for, between guard bytes. What it holds is no number of any floating
 * type: read before it is written, it would spread. */
static int apply_workspace(const Apply *to, KArgs *a, ApplyBlock *block, Err *e) {
    size_t guard = to->device->table->alignment;
    if (a->workspace_bytes == 0) return OK;
    block->bytes = a->workspace_bytes + 2 * guard;
    block->host = mem_new(block->bytes);
    if (!block->host) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", block->bytes);
    memset(block->host, APPLY_BYTE, block->bytes);
    memset(block->host + guard, 0xFF, a->workspace_bytes);
    int code = apply_alloc(to, block, 0, e);
    a->workspace = block->at + guard;
    return code;
}

static int apply_workspace_check(const Apply *to, const ApplyBlock *block, Err *e) {
    size_t guard = to->device->table->alignment;
    for (size_t i = 0; i < guard && block->host; i++)
        if (block->host[i] != APPLY_BYTE || block->host[block->bytes - 1 - i] != APPLY_BYTE)
            return err_set(e, ERR_INTERNAL, "bytes around the workspace of %zu changed", block->bytes - 2 * guard);
    return OK;
}

/* Runs the op `host`, whose operands are in host memory and are changed there. limit: bytes that a library may use */
static int apply(const Apply *to, const KArgs *host, size_t limit, Err *e) {
    const DeviceTable *t = to->device->table;
    ApplyBlock blocks[APPLY_BLOCKS] = {{NULL, NULL, NULL, 0, 0}}, *workspace = &blocks[APPLY_BLOCKS - 1];
    KArgs a = *host;
    a.device = to->device;
    for (int k = 0; k < OP_IN + OP_OUT; k++) apply_view(&a, k)->data = NULL;
    int code = t->prepare(to->device, &a, limit, &a.state, &a.workspace_bytes, e);
    for (int k = 0; !code && k < OP_IN + OP_OUT; k++) {
        KArgs from = *host;
        apply_view(&a, k)->data = apply_view(&from, k)->data;
        if (apply_view(&a, k)->data) code = apply_operand(to, &a, blocks, k, e);
    }
    if (!code) code = apply_workspace(to, &a, workspace, e);
    if (!code) code = t->run(to->device, &a, e);
    for (int k = 0; k < APPLY_BLOCKS; k++) {
        if (!code && blocks[k].base) code = t->download(to->device, blocks[k].host, blocks[k].at, blocks[k].bytes, e);
        if (blocks[k].base) t->free(to->device, blocks[k].base, blocks[k].allocated);
    }
    if (!code) code = apply_workspace_check(to, workspace, e);
    mem_free(workspace->host);
    return code;
}

#endif
