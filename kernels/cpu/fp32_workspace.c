#include "fp32_workspace.h"

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

typedef struct Widening { const View *from; float *to; } Widening;
typedef struct Rounding { const float *from; const View *to; } Rounding;

static void widen_piece(const void *of, int64_t i) {
    const Widening *w = of;
    block_load(w->from, i * BLOCK, min_i64(BLOCK, w->from->count - i * BLOCK), w->to + i * BLOCK);
}

static void round_piece(const void *of, int64_t i) {
    const Rounding *r = of;
    block_store(r->to, i * BLOCK, min_i64(BLOCK, r->to->count - i * BLOCK), r->from + i * BLOCK);
}

void fp32_widen(const View *from, float *to) {
    assert(is_narrow(from)); /* else block_load would copy nothing */
    pieces_run(&(Widening){from, to}, div_up(from->count, BLOCK), widen_piece);
}

void fp32_round(const float *from, const View *to) { pieces_run(&(Rounding){from, to}, div_up(to->count, BLOCK), round_piece); }

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
        if (is_narrow(&a->out[k])) fp32_round(wide->out[k].data, &a->out[k]);
}
