/* strided.h: operands that are broadcast as PyTorch broadcasts them: their last dimensions stand below each other, and
 * a size of 1, or a dimension that is not there, is repeated. All lie in PyTorch's order. Shared with .cu files. */
#ifndef MT_STRIDED_H
#define MT_STRIDED_H

#include "base/shape.h"

enum { STRIDED = 4 }; /* most operands */

/* The dimensions of a walk, and how far each operand goes in one step along them: 0 where it is repeated. Dimensions
 * that lie one in the other in all operands are one. */
typedef struct Strided { int rank; int64_t size[SHAPE_MAX], step[STRIDED][SHAPE_MAX]; } Strided;
typedef struct StridedAt { int64_t at[STRIDED]; } StridedAt;

/* Can `part` be broadcast over `whole`? */
static inline bool broadcasts_over(const Shape *whole, const Shape *part) {
    for (int i = 1; i <= part->rank; i++) {
        const int64_t size = part->dim[part->rank - i];
        if (i > whole->rank ? size != 1 : size != 1 && size != whole->dim[whole->rank - i]) return false;
    }
    return true;
}

/* The shape of what `a` and `b` are broadcast to; false: they do not fit each other. */
static inline bool broadcast_shapes(const Shape *a, const Shape *b, Shape *to) {
    const Shape *more = a->rank >= b->rank ? a : b, *less = more == a ? b : a;
    *to = *more;
    for (int i = 1; i <= less->rank; i++) {
        int64_t *size = &to->dim[to->rank - i];
        if (*size == 1) *size = less->dim[less->rank - i];
    }
    return broadcasts_over(to, a) && broadcasts_over(to, b);
}

/* A walk over `whole`, whose elements n operands take part in (at most STRIDED; NULL: absent). */
static inline Strided strided_of(const Shape *whole, const Shape *const *operand, int n) {
    Strided s = {0, {1}, {{0}}}, all = {whole->rank, {1}, {{0}}};
    for (int d = 0; d < whole->rank; d++) all.size[d] = whole->dim[d];
    for (int k = 0; k < n; k++) {
        int64_t step = 1;
        for (int i = 1; operand[k] && i <= operand[k]->rank && i <= whole->rank; i++) {
            const int64_t size = operand[k]->dim[operand[k]->rank - i];
            all.step[k][whole->rank - i] = size == 1 ? 0 : step;
            step *= size;
        }
    }
    for (int d = 0; d < all.rank; d++) {
        const int last = s.rank - 1;
        bool joins = last >= 0;
        if (all.size[d] == 1) continue;
        for (int k = 0; k < n && joins; k++) joins = s.step[k][last] == all.step[k][d] * all.size[d];
        const int to = joins ? last : s.rank++;
        s.size[to] = joins ? s.size[to] * all.size[d] : all.size[d];
        for (int k = 0; k < n; k++) s.step[k][to] = all.step[k][d];
    }
    return s;
}

static inline int64_t strided_count(const Strided *s) {
    int64_t count = 1;
    for (int d = 0; d < s->rank; d++) count *= s->size[d];
    return count;
}

/* Where the operands are at the index-th place of the walk, from where they are. */
MT_FN StridedAt strided_at(const Strided *s, int64_t index, StridedAt from) {
    for (int d = s->rank - 1; d >= 0; d--) {
        const int64_t i = index % s->size[d];
        index /= s->size[d];
        for (int k = 0; k < STRIDED; k++) from.at[k] += i * s->step[k][d];
    }
    return from;
}

/* A walk in its order, without a division for each place: where the operands are, and the place's index along each dimension. */
typedef struct StridedWalk { StridedAt at; int64_t index[SHAPE_MAX]; } StridedWalk;

static inline void strided_next(const Strided *s, StridedWalk *w) {
    for (int d = s->rank - 1; d >= 0; d--) {
        const bool again = ++w->index[d] == s->size[d];
        for (int k = 0; k < STRIDED; k++) w->at.at[k] += (again ? 1 - s->size[d] : 1) * s->step[k][d];
        if (!again) return;
        w->index[d] = 0;
    }
}

/* Parts the walk in the dimensions along which operand `of` moves, and those along which it is repeated. */
static inline void strided_split(const Strided *s, int of, Strided *kept, Strided *repeated) {
    const Strided none = {0, {1}, {{0}}};
    *kept = *repeated = none;
    for (int d = 0; d < s->rank; d++) {
        Strided *to = s->step[of][d] ? kept : repeated;
        to->size[to->rank] = s->size[d];
        for (int k = 0; k < STRIDED; k++) to->step[k][to->rank] = s->step[k][d];
        to->rank++;
    }
}

/* The last dimension by itself: its size (1 where there is none), and the steps along it. */
typedef struct StridedRow { int64_t n, step[STRIDED]; } StridedRow;

static inline StridedRow strided_take_row(Strided *s) {
    StridedRow row = {1, {0}};
    if (s->rank == 0) return row;
    s->rank--;
    row.n = s->size[s->rank];
    for (int k = 0; k < STRIDED; k++) row.step[k] = s->step[k][s->rank];
    return row;
}

#endif
