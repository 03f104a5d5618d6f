#include "fp32_workspace.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include "cpu.h"

float *room_take(Room *r, int64_t floats) {
    assert(floats >= 0 && (uintptr_t)r->base % CPU_ALIGNMENT == 0);
    size_t at = r->used;
    r->used += align_up((size_t)floats * sizeof(float), CPU_ALIGNMENT);
    return r->base ? (float *)(void *)(r->base + at) : NULL;
}

int room_prepared(const Room *r, void **state, size_t *workspace) {
    *state = NULL;
    *workspace = r->used;
    return OK;
}

int room_check(const Room *r, const KArgs *a, Err *e) {
    if (a->workspace_bytes >= r->used) return OK;
    return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", r->used, a->workspace_bytes);
}

static bool is_narrow(const View *v) { return v->count && dtype_is_float(v->dtype) && v->dtype != DT_F32; }

void fp32_widen(const View *from, float *to) {
#pragma omp parallel for schedule(static) if (from->count > 4 * BLOCK)
    for (int64_t i = 0; i < from->count; i += BLOCK) block_load(from, i, min_i64(BLOCK, from->count - i), to + i);
}

static void round_back(const View *to, const float *from) {
#pragma omp parallel for schedule(static) if (to->count > 4 * BLOCK)
    for (int64_t i = 0; i < to->count; i += BLOCK) block_store(to, i, min_i64(BLOCK, to->count - i), from + i);
}

void fp32_enter(const KArgs *a, Room *r, KArgs *wide) {
    *wide = *a;
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        View *v = k < OP_IN ? &wide->in[k] : &wide->out[k - OP_IN];
        const View narrow = *v;
        if (!is_narrow(v)) continue;
        v->dtype = DT_F32;
        v->data = room_take(r, v->count);
        if (r->base && k < OP_IN) fp32_widen(&narrow, v->data);
    }
}

void fp32_leave(const KArgs *a, const KArgs *wide) {
    for (int k = 0; k < OP_OUT; k++)
        if (is_narrow(&a->out[k])) round_back(&a->out[k], wide->out[k].data);
}

int product(int64_t m, int64_t n, int64_t k, float scale, Matrix a, Matrix b, bool add, Matrix c) {
    assert(m > 0 && n > 0 && k > 0 && !c.transposed && c.stride >= n);
    assert(a.stride >= (a.transposed ? m : k) && b.stride >= (b.transposed ? k : n));
    return (int)dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, scale, a.at, a.stride, b.at,
                           b.stride, add ? 1.0f : 0.0f, c.at, c.stride);
}

int product_check(int status, Err *e) {
    if (status == dnnl_success) return OK;
    return err_set(e, status == dnnl_out_of_memory ? ERR_HOST_MEMORY : ERR_DEVICE,
                   "oneDNN: cannot multiply matrices: %s", dnnl_status2str((dnnl_status_t)status));
}
