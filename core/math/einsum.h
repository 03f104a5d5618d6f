/* einsum.h: a product of two tensors whose dimensions have labels, as matrix products. A label stands in at least two
 * of a, b and y, and once in each at most; where a and b have it and y has not, it is summed over. Dimensions of size 1
 * may stand anywhere. All lie in PyTorch's order. Shared with .cu files.
 *
 * "bthd,bshd->bhts" is for each b and h the product of the matrices (t, d) and (d, s): of the labels that a and y
 * have, one is the rows, of those of b and y one the columns, of those of a and b one is summed over; the others are
 * loops around it. Labels that lie one after the other in all operands are as good as one. */
#ifndef MT_EINSUM_H
#define MT_EINSUM_H

#include <string.h>

#include "base/shape.h"

/* By operand and dimension: its label, -1 after the last one. tf32: a GPU may round fp32 operands to 10 bits */
typedef struct EinsumAttr { int8_t a[SHAPE_MAX], b[SHAPE_MAX], y[SHAPE_MAX]; int32_t tf32; } EinsumAttr;

enum { EINSUM_LABELS = 4 * SHAPE_MAX }; /* of both operands, and as many for dimensions that are broadcast */

/* Elements from one index to the next in each operand, 0 where it has not the label */
typedef struct EinsumLoop { int64_t size, a, b, y; } EinsumLoop;

typedef struct EinsumPlan {
    EinsumLoop m, n, k;
    EinsumLoop outer[EINSUM_LABELS], inner[EINSUM_LABELS]; /* many products; products that are added up */
    int n_outer, n_inner;
    bool matrices; /* each operand has neighbours along one of its two labels of m, n, k: else there are only loops */
} EinsumPlan;

static const EinsumLoop einsum_once = {1, 0, 0, 0};

static inline int64_t *einsum_stride(EinsumLoop *l, int operand) {
    return operand == 0 ? &l->a : operand == 1 ? &l->b : &l->y;
}

/* By label its loop; false: sizes differ, or a label stands twice in one operand, or in one alone. */
static inline bool einsum_loops(const EinsumAttr *attr, const Shape *const shape[3], EinsumLoop loop[EINSUM_LABELS]) {
    const int8_t *const labels[3] = {attr->a, attr->b, attr->y};
    for (int i = 0; i < EINSUM_LABELS; i++) loop[i] = einsum_once;
    for (int k = 0; k < 3; k++) {
        int64_t stride = 1;
        for (int d = shape[k]->rank - 1; d >= 0; d--) {
            const int64_t size = shape[k]->dim[d];
            if (labels[k][d] < 0 || labels[k][d] >= EINSUM_LABELS) return false;
            EinsumLoop *l = &loop[labels[k][d]];
            if (size == 1) continue;
            if ((l->size != 1 && l->size != size) || *einsum_stride(l, k)) return false;
            l->size = size;
            *einsum_stride(l, k) = stride;
            stride *= size;
        }
    }
    for (int i = 0; i < EINSUM_LABELS; i++)
        if (loop[i].size > 1 && (loop[i].a != 0) + (loop[i].b != 0) + (loop[i].y != 0) < 2) return false;
    return true;
}

/* Of one kind: they stand in the same operands. */
static inline bool einsum_alike(const EinsumLoop *l, const EinsumLoop *o) {
    return !l->a == !o->a && !l->b == !o->b && !l->y == !o->y;
}

/* Loops that lie one in the other in all operands become one. */
static inline void einsum_merge(EinsumLoop loop[EINSUM_LABELS]) {
    for (int i = 0; i < EINSUM_LABELS; i++)
        for (int j = 0; j < EINSUM_LABELS; j++) {
            EinsumLoop *out = &loop[i], *in = &loop[j];
            if (i == j || out->size == 1 || in->size == 1 || !einsum_alike(out, in)) continue;
            if (out->a != in->a * in->size || out->b != in->b * in->size || out->y != in->y * in->size) continue;
            in->size *= out->size;
            *out = einsum_once;
            i = -1; /* once more from the first on */
            break;
        }
}

/* Takes the best loop of those that stand in these two operands, and in these alone: one with neighbours, else the
 * largest. */
static inline EinsumLoop einsum_take(EinsumLoop loop[EINSUM_LABELS], bool a, bool b, bool y) {
    int best = -1, best_units = 0;
    for (int i = 0; i < EINSUM_LABELS; i++) {
        const EinsumLoop *l = &loop[i];
        if (l->size == 1 || (l->a != 0) != a || (l->b != 0) != b || (l->y != 0) != y) continue;
        const int units = (l->a == 1) + (l->b == 1) + (l->y == 1);
        if (best >= 0 && (units < best_units || (units == best_units && l->size <= loop[best].size))) continue;
        best = i;
        best_units = units;
    }
    if (best < 0) return einsum_once;
    const EinsumLoop taken = loop[best];
    loop[best] = einsum_once;
    return taken;
}

static inline bool einsum_rows(const EinsumLoop *one, int64_t s, const EinsumLoop *two, int64_t t) {
    return s == 1 || t == 1 || one->size == 1 || two->size == 1;
}

/* false: it is no such product. */
static inline bool einsum_plan(const EinsumAttr *attr, const Shape *a, const Shape *b, const Shape *y, EinsumPlan *p) {
    EinsumLoop loop[EINSUM_LABELS];
    const Shape *const shapes[3] = {a, b, y};
    if (!einsum_loops(attr, shapes, loop)) return false;
    einsum_merge(loop);
    p->m = einsum_take(loop, true, false, true);
    p->n = einsum_take(loop, false, true, true);
    p->k = einsum_take(loop, true, true, false);
    p->n_outer = p->n_inner = 0;
    for (int i = 0; i < EINSUM_LABELS; i++) {
        if (loop[i].size == 1) continue;
        if (loop[i].y) p->outer[p->n_outer++] = loop[i];
        else p->inner[p->n_inner++] = loop[i];
    }
    p->matrices = einsum_rows(&p->m, p->m.a, &p->k, p->k.a) && einsum_rows(&p->k, p->k.b, &p->n, p->n.b) &&
                  einsum_rows(&p->m, p->m.y, &p->n, p->n.y);
    return true;
}

static inline int64_t einsum_count(const EinsumLoop *loop, int n) {
    int64_t count = 1;
    for (int i = 0; i < n; i++) count *= loop[i].size;
    return count;
}

/* Where the index-th pass through these loops begins, from where it is. */
typedef struct EinsumPlace { int64_t a, b, y; } EinsumPlace;

MT_FN EinsumPlace einsum_place(const EinsumLoop *loop, int n, int64_t index, EinsumPlace at) {
    for (int i = n - 1; i >= 0; i--) {
        const int64_t d = index % loop[i].size;
        index /= loop[i].size;
        at.a += d * loop[i].a;
        at.b += d * loop[i].b;
        at.y += d * loop[i].y;
    }
    return at;
}

/* A matrix of `rows` by `columns` as it lies: by rows, or, transposed, by columns; from one to the next. */
typedef struct EinsumMatrix { int64_t stride; bool transposed; } EinsumMatrix;

static inline EinsumMatrix einsum_matrix(const EinsumLoop *rows, int64_t r, const EinsumLoop *columns, int64_t c) {
    const bool by_rows = c == 1 || columns->size == 1;
    EinsumMatrix m;
    m.transposed = !by_rows;
    m.stride = by_rows ? (rows->size == 1 ? columns->size : r) : columns->size == 1 ? rows->size : c;
    return m;
}

#endif
