/* ops.c: tells the shadow memory of every op what its kernels may touch: operands, and its workspace. It stands between the
 * plugin's entry (plugin.c) and cuda_open: the device that it opens has a `run` that does so first. */
#include "cuda.h"
#include "../runtime.h"
#include "shadow.h"

static const DeviceTable *real;

/* Updates wait until there are many (queue.h): what they may touch adds up as long as ops have one kind. */
static bool is_queued(OpKind kind) {
    switch (kind) {
#define EACH(op, ...) case OP_##op:
#include "program/optimizers.def"
    case OP_grad_check: case OP_grad_square: case OP_adam8bit: case OP_adafactor: return true;
    default: return false;
    }
}

static size_t bytes_of(const View *v, const OperandInfo *info) {
    return strcmp(info->name, "state") ? (size_t)v->count * dtype_size(v->dtype) : sizeof(StepState);
}

/* An output that is made anew, and not in the storage of an input */
static bool is_new(const KArgs *a, int k) {
    const OpInfo *info = op_info(a->kind);
    const bool inplace = info->inplace >= 0 && a->out[k].data == a->in[info->inplace].data;
    return a->out[k].count && !info->out[k].updated && !inplace;
}

/* What is enqueued before and after an op's kernels */
typedef struct Check { const char *op; int n; struct { const char *name; void *data; size_t bytes; } at[OP_OUT + 1]; } Check;

static void make_junk(void *data) {
    const Check *c = data;
    for (int k = 0; k < c->n; k++) shadow_junk(c->at[k].data, c->at[k].bytes);
}

static void check_written(void *data) {
    const Check *c = data;
    for (int k = 0; k < c->n; k++) {
        const size_t written = shadow_written(c->at[k].data, c->at[k].bytes);
        if (written < c->at[k].bytes)
            shadow_die("op %s: byte %zu of output %s, of %zu, is not written", c->op, written, c->at[k].name, c->at[k].bytes);
    }
}

/* Does the op's workspace lie where an operand of ops that wait does? Then it is no junk before these have run. */
static bool workspace_waits(const KArgs *a, const ShadowOperand *may, int n) {
    const uintptr_t at = (uintptr_t)a->workspace;
    for (int k = 0; k < n; k++)
        if (strcmp(may[k].name, "the workspace") && may[k].begin < at + a->workspace_bytes && at < may[k].end) return true;
    return false;
}

static int run(Device *d, const KArgs *a, Err *e) {
    enum { MOST = 4096 };
    static ShadowOperand may[MOST];
    static int n;
    CudaDevice *c = (CudaDevice *)d;
    const OpInfo *info = op_info(a->kind);
    Check check = {.op = info->name};
    if (c->last != a->kind || !is_queued(a->kind) || workspace_waits(a, may, n)) {
        int code = cuda_ready(c, e);
        if (!code) code = cuda_flush(c, e);
        if (code) return code;
        n = 0;
    }
    if (n + OP_IN + OP_OUT + 1 > MOST) shadow_die("op %s: updates of more than %d operands wait", info->name, MOST);
    for (int k = 0; k < info->n_in + info->n_out; k++) {
        const bool in = k < info->n_in;
        const View *v = in ? &a->in[k] : &a->out[k - info->n_in];
        const OperandInfo *about = in ? &info->in[k] : &info->out[k - info->n_in];
        const uintptr_t at = (uintptr_t)v->data;
        if (!v->count) continue;
        may[n++] = (ShadowOperand){about->name, at, at + bytes_of(v, about), !in};
        if (!in && is_new(a, k - info->n_in)) {
            check.at[check.n].name = about->name;
            check.at[check.n].data = v->data;
            check.at[check.n++].bytes = bytes_of(v, about);
        }
    }
    Check junk = check;
    if (a->workspace_bytes) {
        may[n++] = (ShadowOperand){"the workspace", (uintptr_t)a->workspace, (uintptr_t)a->workspace + a->workspace_bytes, true};
        junk.at[junk.n].data = a->workspace;
        junk.at[junk.n++].bytes = a->workspace_bytes;
    }
    shadow_allow(may, n);
    if (emulate_push(c->stream, make_junk, &junk, sizeof junk)) return err_set(e, ERR_HOST_MEMORY, "no host memory for a task");
    const int code = real->run(d, a, e);
    if (!code && emulate_push(c->stream, check_written, &check, sizeof check))
        return err_set(e, ERR_HOST_MEMORY, "no host memory for a task");
    if (!is_queued(a->kind)) shadow_allow(NULL, 0);
    return code;
}

int emulated_open(int ordinal, Device **out, Err *e); /* plugin.c is compiled to call it in place of cuda_open */

int emulated_open(int ordinal, Device **out, Err *e) {
    static DeviceTable table;
    const int code = cuda_open(ordinal, out, e);
    if (code || !shadow_on()) return code;
    real = (*out)->table;
    table = *real;
    table.run = run;
    (*out)->table = &table;
    return OK;
}
