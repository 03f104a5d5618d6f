/* tensor.c: arithmetic of operands that are broadcast, reductions along dimensions and their gradients, triangles
 * (core/math/tensor.h). A walk goes over the elements of the larger operand row by row (core/math/strided.h); along a
 * row each operand lies side by side or is one element. */
#include "parallel.h"

#include <string.h>

#include "program/kernel.h"

enum { COLUMNS = 64 }; /* of a row, summed side by side */

/* n elements of a row from column c on */
static const float *row_load(const View *v, int64_t at, int64_t step, int64_t c, int64_t n, float *scratch) {
    return block_load(v, at + c * step, step ? n : 1, scratch);
}

/* ---- two operands */

#define EACH(expression) _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = expression; break

HOT static void binary_row(BinaryFn f, float *y, const float *a, const float *b, int64_t n) {
    switch (f) {
    case BINARY_ADD: EACH(a[i] + b[i]);
    case BINARY_SUB: EACH(a[i] - b[i]);
    case BINARY_MUL: EACH(a[i] * b[i]);
    case BINARY_DIV: EACH(a[i] / b[i]);
    }
}

/* The same, repeated where it is one element. */
static const float *row_spread(const View *v, int64_t at, int64_t step, int64_t c, int64_t n, float *scratch) {
    const float *x = row_load(v, at, step, c, n, scratch);
    if (step || n == 1) return x;
    block_fill(scratch, x[0], n);
    return scratch;
}

static void binary_piece(const KArgs *a, int64_t begin, int64_t end) {
    Strided walk = strided_of(&a->binary.y.shape, (const Shape *[]){&a->binary.a.shape, &a->binary.b.shape}, 2);
    const StridedRow row = strided_take_row(&walk);
    float one[BLOCK], two[BLOCK], to[BLOCK];
    for (int64_t at = begin, n; at < end; at += n) {
        const int64_t c = at % row.n;
        const StridedAt from = strided_at(&walk, at / row.n, (StridedAt){{0}});
        n = min_i64(end - at, row.n - c);
        float *y = block_target(&a->binary.y, at, to);
        binary_row(a->attr->binary.f, y, row_spread(&a->binary.a, from.at[0], row.step[0], c, n, one),
                   row_spread(&a->binary.b, from.at[1], row.step[1], c, n, two), n);
        block_store(&a->binary.y, at, n, y);
    }
}

int k_cpu_binary(const KArgs *a, Err *e) {
    (void)e;
    blocks_run(a, a->binary.y.count, binary_piece);
    return OK;
}

/* ---- sums and maxima. An item is some columns of a row that is kept, with all that is reduced into them; or, where
 *      the row is reduced itself, one element. */

typedef struct Fold {
    Strided kept, repeated;
    StridedRow row;
    int of;              /* the operand that is made */
    int64_t each, across, count; /* columns of an item, items of a row, what is reduced into one beside the row */
} Fold;

static Fold fold_of(const Shape *whole, const Shape *const *operand, int n, int of) {
    Fold f;
    Strided walk = strided_of(whole, operand, n);
    f.row = strided_take_row(&walk);
    f.of = of;
    strided_split(&walk, of, &f.kept, &f.repeated);
    f.count = strided_count(&f.repeated);
    f.each = f.count > 1 ? COLUMNS : BLOCK;
    f.across = f.row.step[of] ? div_up(f.row.n, f.each) : 1;
    return f;
}

static Fold da_fold(const KArgs *a) {
    const View *one = &a->binary_da.a, *two = &a->binary_da.b;
    const Shape *const of[] = {&a->binary_da.dy.shape, one->count ? &one->shape : NULL, two->count ? &two->shape : NULL,
                               &a->binary_da.da.shape};
    return fold_of(of[0], of, 4, 3);
}

HOT static void slopes(const BinaryAttr *f, float *to, const float *dy, const float *a, const float *b, int64_t n) {
    const BinaryFn fn = f->f;
    const bool second = f->second;
    if (fn == BINARY_MUL) {
        const float *x = second ? a : b;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = dy[i] * x[i];
    } else if (fn == BINARY_DIV) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = dy[i] * binary_slope(fn, second, second ? a[i] : 0.0f, b[i]);
    } else {
        const float sign = fn == BINARY_SUB && second ? -1.0f : 1.0f;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = sign * dy[i];
    }
}

HOT static double add_up(const float *x, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}

/* dy times the slope for n columns from c on. */
static const float *da_terms(const KArgs *a, const Fold *f, StridedAt at, int64_t c, int64_t n, float *to) {
    float dy[BLOCK], one[BLOCK], two[BLOCK];
    const View *x = &a->binary_da.a, *z = &a->binary_da.b;
    slopes(&a->attr->binary, to, row_load(&a->binary_da.dy, at.at[0], 1, c, n, dy),
           x->count ? row_spread(x, at.at[1], f->row.step[1], c, n, one) : NULL,
           z->count ? row_spread(z, at.at[2], f->row.step[2], c, n, two) : NULL, n);
    return to;
}

static const float *x_terms(const KArgs *a, const Fold *f, StridedAt at, int64_t c, int64_t n, float *to) {
    const float *x = row_load(&a->reduce.x, at.at[0], 1, c, n, to);
    (void)f;
    if (a->attr->reduce.f != REDUCE_NORM) return x;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = reduce_term(REDUCE_NORM, x[i]);
    return to;
}

typedef const float *TermsFn(const KArgs *a, const Fold *f, StridedAt at, int64_t c, int64_t n, float *to);

/* What fn makes of the sums of one item, times `factor`, into `to`. */
static void sum_item(const KArgs *a, const Fold *f, int64_t item, TermsFn *terms, ReduceFn fn, double factor,
                     const View *to) {
    float values[BLOCK];
    const StridedAt from = strided_at(&f->kept, item / f->across, (StridedAt){{0}});
    const int64_t c = item % f->across * f->each;
    if (!f->row.step[f->of]) {
        double sum = 0;
        for (int64_t r = 0; r < f->count; r++) {
            const StridedAt at = strided_at(&f->repeated, r, from);
            for (int64_t k = 0, n; k < f->row.n; k += n) {
                n = min_i64(BLOCK, f->row.n - k);
                sum += add_up(terms(a, f, at, k, n, values), n);
            }
        }
        values[0] = reduce_result(fn, sum * factor);
        block_store(to, from.at[f->of], 1, values);
        return;
    }
    const int64_t n = min_i64(f->each, f->row.n - c);
    double sum[BLOCK] = {0};
    for (int64_t r = 0; r < f->count; r++)
        block_sum(sum, terms(a, f, strided_at(&f->repeated, r, from), c, n, values), n);
    for (int64_t i = 0; i < n; i++) values[i] = reduce_result(fn, sum[i] * factor);
    block_store(to, from.at[f->of] + c, n, values);
}

static void da_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Fold f = da_fold(a);
    for (int64_t item = begin; item < end; item++) sum_item(a, &f, item, da_terms, REDUCE_SUM, 1, &a->binary_da.da);
}

int k_cpu_binary_da(const KArgs *a, Err *e) {
    const Fold f = da_fold(a);
    (void)e;
    range_run(a, strided_count(&f.kept) * f.across, max_i64(1, COLUMNS / f.row.n), da_piece);
    return OK;
}

/* ---- reductions */

static Fold x_fold(const View *x, const View *y) {
    return fold_of(&x->shape, (const Shape *[]){&x->shape, &y->shape}, 2, 1);
}

HOT static void larger_columns(float *most, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) most[i] = reduce_larger(most[i], x[i]);
}

HOT static float largest(float most, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) most = reduce_larger(most, x[i]);
    return most;
}

static void max_item(const KArgs *a, const Fold *f, int64_t item) {
    float scratch[BLOCK], most[BLOCK];
    const StridedAt from = strided_at(&f->kept, item / f->across, (StridedAt){{0}});
    const bool kept = f->row.step[1] != 0;
    const int64_t c = kept ? item % f->across * f->each : 0, n = kept ? min_i64(f->each, f->row.n - c) : 1;
    block_fill(most, -INFINITY, n);
    for (int64_t r = 0; r < f->count; r++) {
        const StridedAt at = strided_at(&f->repeated, r, from);
        if (kept) larger_columns(most, row_load(&a->reduce.x, at.at[0], 1, c, n, scratch), n);
        for (int64_t k = 0, m; !kept && k < f->row.n; k += m) {
            m = min_i64(BLOCK, f->row.n - k);
            most[0] = largest(most[0], row_load(&a->reduce.x, at.at[0], 1, k, m, scratch), m);
        }
    }
    block_store(&a->reduce.y, from.at[1] + c, n, most);
}

static void reduce_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Fold f = x_fold(&a->reduce.x, &a->reduce.y);
    const double factor = a->attr->reduce.f == REDUCE_MEAN ? (double)a->reduce.y.count / (double)a->reduce.x.count : 1;
    for (int64_t item = begin; item < end; item++) {
        if (reduce_is_max(a->attr->reduce.f)) max_item(a, &f, item);
        else sum_item(a, &f, item, x_terms, a->attr->reduce.f, factor, &a->reduce.y);
    }
}

int k_cpu_reduce(const KArgs *a, Err *e) {
    const Fold f = x_fold(&a->reduce.x, &a->reduce.y);
    (void)e;
    range_run(a, strided_count(&f.kept) * f.across, max_i64(1, COLUMNS / f.row.n), reduce_piece);
    return OK;
}

/* Of sums and means: dy, or a part of it, everywhere; of a norm dy times its slope. */
static void repeat_piece(const KArgs *a, int64_t begin, int64_t end) {
    const View *dx = &a->reduce_dx.dx, *dy = &a->reduce_dx.dy;
    Strided walk = strided_of(&dx->shape, (const Shape *[]){&dy->shape}, 1);
    const StridedRow row = strided_take_row(&walk);
    const float factor = a->attr->reduce.f == REDUCE_MEAN ? (float)((double)dy->count / (double)dx->count) : 1.0f;
    float from[BLOCK], to[BLOCK], norm[BLOCK];
    for (int64_t at = begin, n; at < end; at += n) {
        const int64_t c = at % row.n;
        n = min_i64(end - at, row.n - c);
        const float *x = row_spread(dy, strided_at(&walk, at / row.n, (StridedAt){{0}}).at[0], row.step[0], c, n, from);
        for (int64_t i = 0; i < n; i++) to[i] = factor * x[i];
        if (a->attr->reduce.f == REDUCE_NORM) {
            const int64_t y_at = strided_at(&walk, at / row.n, (StridedAt){{0}}).at[0];
            const float *y = row_spread(&a->reduce_dx.y, y_at, row.step[0], c, n, norm);
            const float *of = block_load(&a->reduce_dx.x, at, n, from);
            for (int64_t i = 0; i < n; i++) to[i] *= norm_slope(of[i], y[i]);
        }
        block_store(dx, at, n, to);
    }
}

static float at_element(const View *v, int64_t i) { return dtype_load(v->dtype, v->data, (size_t)i); }

/* Of maxima: to the elements that are one. Items are elements of y. */
static void max_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    const View *x = &a->reduce_dx.x, *dx = &a->reduce_dx.dx;
    const Strided walk = strided_of(&dx->shape, (const Shape *[]){&dx->shape, &a->reduce_dx.dy.shape}, 2);
    Strided kept, reduced;
    strided_split(&walk, 1, &kept, &reduced);
    const int64_t count = strided_count(&reduced);
    for (int64_t item = begin; item < end; item++) {
        const StridedAt from = strided_at(&kept, item, (StridedAt){{0}});
        const float most = at_element(&a->reduce_dx.y, from.at[1]);
        float dy = at_element(&a->reduce_dx.dy, from.at[1]);
        int64_t equal = 0;
        for (int64_t r = 0; r < count; r++) equal += at_element(x, strided_at(&reduced, r, from).at[0]) == most;
        if (a->attr->reduce.f == REDUCE_AMAX) dy /= (float)max_i64(equal, 1);
        equal = 0;
        for (int64_t r = 0; r < count; r++) {
            const int64_t at = strided_at(&reduced, r, from).at[0];
            const bool is = at_element(x, at) == most && (a->attr->reduce.f == REDUCE_AMAX || !equal);
            equal += is;
            dtype_store(dx->dtype, dx->data, (size_t)at, is ? dy : 0.0f);
        }
    }
}

int k_cpu_reduce_dx(const KArgs *a, Err *e) {
    (void)e;
    if (reduce_is_max(a->attr->reduce.f)) range_run(a, a->reduce_dx.dy.count, COLUMNS, max_dx_piece);
    else blocks_run(a, a->reduce_dx.dx.count, repeat_piece);
    return OK;
}

/* ---- triangles */

static void where_piece(const KArgs *a, int64_t begin, int64_t end) {
    const TriangleAttr *t = &a->attr->triangle;
    const Shape *s = &a->where.y.shape;
    const int64_t rows = s->dim[s->rank - 2], columns = s->dim[s->rank - 1];
    float one[BLOCK], two[BLOCK], to[BLOCK];
    const float *x = block_load(&a->where.a, begin, end - begin, one);
    const float *z = a->where.b.count ? block_load(&a->where.b, begin, end - begin, two) : NULL;
    float *y = block_target(&a->where.y, begin, to);
    for (int64_t at = begin, n; at < end; at += n) {
        const int64_t row = at / columns % rows, c = at % columns, i = at - begin;
        n = min_i64(end - at, columns - c);
        for (int64_t k = 0; k < n; k++)
            y[i + k] = in_triangle(t, row, c + k) ? x[i + k] : z ? z[i + k] : t->value;
    }
    block_store(&a->where.y, begin, end - begin, y);
}

int k_cpu_where(const KArgs *a, Err *e) {
    (void)e;
    blocks_run(a, a->where.y.count, where_piece);
    return OK;
}

/* ---- elements by label, which was checked when it came in */

static void gather_piece(const KArgs *a, int64_t begin, int64_t end) {
    const View *x = &a->gather.x, *y = &a->gather.y;
    const int32_t *t = a->gather.t.data;
    for (int64_t i = begin; i < end; i++)
        dtype_store(y->dtype, y->data, (size_t)i, dtype_load(x->dtype, x->data, (size_t)(i * x->shape.dim[1] + t[i])));
}

int k_cpu_gather(const KArgs *a, Err *e) {
    (void)e;
    range_run(a, a->gather.y.count, BLOCK, gather_piece);
    return OK;
}

static void gather_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    const View *dx = &a->gather_dx.dx, *dy = &a->gather_dx.dy;
    const int64_t columns = dx->shape.dim[1];
    const int32_t *t = a->gather_dx.t.data;
    const size_t row = (size_t)columns * dtype_size(dx->dtype);
    memset((char *)dx->data + (size_t)begin * row, 0, (size_t)(end - begin) * row);
    for (int64_t i = begin; i < end; i++)
        dtype_store(dx->dtype, dx->data, (size_t)(i * columns + t[i]), dtype_load(dy->dtype, dy->data, (size_t)i));
}

int k_cpu_gather_dx(const KArgs *a, Err *e) {
    (void)e;
    range_run(a, a->gather_dx.dy.count, max_i64(1, BLOCK / a->gather_dx.dx.shape.dim[1]), gather_dx_piece);
    return OK;
}
