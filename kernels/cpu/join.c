/* join.c: concat, slice, slice_dx, roll, which move bytes in runs. A tensor is seen as (outer, axis, inner) in the order in which it lies
 * in memory; a run is all that has one outer index: (axis, inner). */
#include <string.h>

#include "leave.h"
#include "parallel.h"

/* Bytes of a run of an operand; *outer: how many runs there are. */
static size_t run_bytes(const KArgs *a, const View *v, int64_t *outer) {
    int64_t inner;
    view_split(v, a->attr->axis.axis, outer, &inner);
    return (size_t)(v->count / *outer) * dtype_size(v->dtype);
}

/* Bytes of a run of the whole operand before the part that the op takes */
static size_t start_bytes(const KArgs *a, const View *v) {
    int64_t outer, inner;
    view_split(v, a->attr->axis.axis, &outer, &inner);
    return (size_t)(a->attr->axis.start * inner) * dtype_size(v->dtype);
}

static void concat_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t outer;
    char *to = (char *)a->concat.y.data + (size_t)begin * run_bytes(a, &a->concat.y, &outer);
    for (int64_t i = begin; i < end; i++)
        for (int k = 0; k < OP_IN && a->in[k].count; k++) {
            size_t bytes = run_bytes(a, &a->in[k], &outer);
            leave_bytes(to, (const char *)a->in[k].data + (size_t)i * bytes, bytes);
            to += bytes;
        }
}

static void slice_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t outer;
    size_t whole = run_bytes(a, &a->slice.x, &outer), part = run_bytes(a, &a->slice.y, &outer);
    const char *from = (const char *)a->slice.x.data + start_bytes(a, &a->slice.x);
    for (int64_t i = begin; i < end; i++)
        leave_bytes((char *)a->slice.y.data + (size_t)i * part, from + (size_t)i * whole, part);
}

static void slice_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t outer;
    size_t whole = run_bytes(a, &a->slice_dx.dx, &outer), part = run_bytes(a, &a->slice_dx.dy, &outer);
    size_t before = start_bytes(a, &a->slice_dx.dx), after = whole - part - before;
    for (int64_t i = begin; i < end; i++) {
        char *to = (char *)a->slice_dx.dx.data + (size_t)i * whole;
        memset(to, 0, before);
        leave_bytes(to + before, (const char *)a->slice_dx.dy.data + (size_t)i * part, part);
        memset(to + before + part, 0, after);
    }
}

static void roll_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t outer;
    const size_t whole = run_bytes(a, &a->roll.x, &outer), shift = start_bytes(a, &a->roll.x);
    for (int64_t i = begin; i < end; i++) {
        const char *from = (const char *)a->roll.x.data + (size_t)i * whole;
        char *to = (char *)a->roll.y.data + (size_t)i * whole;
        leave_bytes(to + shift, from, whole - shift);
        leave_bytes(to, from + whole - shift, shift);
    }
}

/* Over the runs of the larger operand, about BLOCK elements a piece. */
static int runs(const KArgs *a, const View *larger, RangeFn *piece) {
    int64_t outer;
    assert(0 <= a->attr->axis.axis && a->attr->axis.axis < larger->shape.rank && a->attr->axis.start >= 0);
    assert(a->in[0].dtype == a->out[0].dtype && a->in[0].channels_last == a->out[0].channels_last);
    run_bytes(a, larger, &outer);
    range_run(a, outer, max_i64(1, BLOCK * outer / larger->count), piece);
    return OK;
}

int k_cpu_concat(const KArgs *a, Err *e) {
    (void)e;
    return runs(a, &a->concat.y, concat_piece);
}

int k_cpu_slice(const KArgs *a, Err *e) {
    (void)e;
    return runs(a, &a->slice.x, slice_piece);
}

int k_cpu_slice_dx(const KArgs *a, Err *e) {
    (void)e;
    return runs(a, &a->slice_dx.dx, slice_dx_piece);
}

int k_cpu_roll(const KArgs *a, Err *e) {
    (void)e;
    return runs(a, &a->roll.x, roll_piece);
}
