/* tensor.c: arithmetic of operands that are broadcast, reductions along dimensions and their gradients, triangles
 * (core/math/tensor.h). A walk goes over the elements of the larger operand row by row (core/math/strided.h); along a
 * row each operand lies side by side or is one element. */
#include "parallel.h"

#include <string.h>

#include "program/kernel.h"

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
    f.each = f.count > 1 ? columns_together(strided_count(&f.kept) * f.row.n) : BLOCK;
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

/* n numbers of an array of BLOCK, which itself would take longer to clear than a short row to read */
#define CLEAR(array, n) memset(array, 0, (size_t)(n) * sizeof *(array))

HOT static double add_up(const float *x, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}

/* Runs `piece` over the items, of which those of few elements are taken together. */
static void items_run(const KArgs *a, const Fold *f, RangeFn *piece) {
    range_run(a, strided_count(&f->kept) * f->across, max_i64(1, BLOCK / (f->count * min_i64(f->each, f->row.n))), piece);
}

/* A loop over all that is reduced into one item beside the row; w.at: where it is */
#define EACH_REPEATED(f, from, w) \
    StridedWalk w = {from, {0}};  \
    for (int64_t r = 0; r < (f)->count; r++, strided_next(&(f)->repeated, &w))
/* A loop over the parts of the row: part [k, k + n) */
#define EACH_OF_ROW(f, k, n) for (int64_t k = 0, n; n = min_i64(BLOCK, (f)->row.n - k), k < (f)->row.n; k += n)

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
        EACH_REPEATED(f, from, w) EACH_OF_ROW(f, k, n) sum += add_up(terms(a, f, w.at, k, n, values), n);
        values[0] = reduce_result(fn, sum * factor);
        block_store(to, from.at[f->of], 1, values);
        return;
    }
    const int64_t n = min_i64(f->each, f->row.n - c);
    double sum[BLOCK];
    CLEAR(sum, n);
    EACH_REPEATED(f, from, w) block_sum(sum, terms(a, f, w.at, c, n, values), n);
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
    items_run(a, &f, da_piece);
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

/* The largest of n numbers of most[BLOCK] becomes the first of them: halves are compared, which are powers of two, until one is left. */
static void largest_first(float *most, int64_t n) {
    int64_t half = 1;
    while (2 * half < n) half *= 2;
    block_fill(most + n, -INFINITY, 2 * half - n);
    for (; half; half /= 2) larger_columns(most, most + half, half);
}

/* An item of a maximum: n columns of y from c on, with what is reduced into each; or one element of y, and n columns of the row that is
 * reduced into it, which are compared side by side. `end`: of the row, for the item */
typedef struct MaxItem { StridedAt from; int64_t c, n, end, of_y; } MaxItem;

static MaxItem max_item(const Fold *f, int64_t item) {
    MaxItem m = {strided_at(&f->kept, item / f->across, (StridedAt){{0}}), item % f->across * f->each, 0, f->row.n, 1};
    m.n = min_i64(f->each, f->row.n - m.c);
    if (f->row.step[1]) m.end = m.c + m.n, m.of_y = m.n;
    return m;
}
#define EACH_OF_ITEM(m, k, width) for (int64_t k = (m)->c, width; width = min_i64((m)->n, (m)->end - k), k < (m)->end; k += width)

static void max_of_item(const KArgs *a, const Fold *f, int64_t item) {
    float scratch[BLOCK], most[BLOCK];
    const MaxItem m = max_item(f, item);
    block_fill(most, -INFINITY, m.n);
    EACH_REPEATED(f, m.from, w)
        EACH_OF_ITEM(&m, k, n) larger_columns(most, row_load(&a->reduce.x, w.at.at[0], 1, k, n, scratch), n);
    if (m.of_y < m.n) largest_first(most, m.n);
    block_store(&a->reduce.y, m.from.at[1] + m.c, m.of_y, most);
}

static void reduce_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Fold f = x_fold(&a->reduce.x, &a->reduce.y);
    const double factor = a->attr->reduce.f == REDUCE_MEAN ? (double)a->reduce.y.count / (double)a->reduce.x.count : 1;
    for (int64_t item = begin; item < end; item++) {
        if (reduce_is_max(a->attr->reduce.f)) max_of_item(a, &f, item);
        else sum_item(a, &f, item, x_terms, a->attr->reduce.f, factor, &a->reduce.y);
    }
}

int k_cpu_reduce(const KArgs *a, Err *e) {
    const Fold f = x_fold(&a->reduce.x, &a->reduce.y);
    (void)e;
    items_run(a, &f, reduce_piece);
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

HOT static void count_equal(int32_t *equal, const float *x, const float *most, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) equal[i] += x[i] == most[i];
}

/* dx may be x. */
HOT static void give_equal(float *dx, const float *x, const float *most, const float *dy, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = x[i] == most[i] ? dy[i] : 0.0f;
}

/* The same, to the first ones alone; found: had a column one before? */
HOT static void give_first(float *dx, const float *x, const float *most, const float *dy, int32_t *found, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const int32_t is = (x[i] == most[i]) & ~found[i];
        dx[i] = is ? dy[i] : 0.0f;
        found[i] |= is;
    }
}

/* The first one of a row alone */
static int64_t first_equal(const float *x, float most, int64_t n) {
    int64_t i = 0;
    while (i < n && x[i] != most) i++;
    return i;
}

/* The item's elements of y or dy, side by side */
static void item_load(const View *v, const MaxItem *m, float *to) {
    float scratch[BLOCK];
    memcpy(to, block_load(v, m->from.at[1] + m->c, m->of_y, scratch), (size_t)m->of_y * sizeof *to);
    if (m->of_y < m->n) block_fill(to, to[0], m->n);
}

/* dy is shared among equal ones. */
static void share_among_equal(const KArgs *a, const Fold *f, const MaxItem *m, const float *most, float *dy) {
    float scratch[BLOCK];
    int32_t equal[BLOCK];
    CLEAR(equal, m->n);
    EACH_REPEATED(f, m->from, w)
        EACH_OF_ITEM(m, k, n) count_equal(equal, row_load(&a->reduce_dx.x, w.at.at[0], 1, k, n, scratch), most, n);
    for (int64_t i = m->of_y; i < m->n; i++) equal[0] += equal[i];
    for (int64_t i = 0; i < m->of_y; i++) dy[i] /= (float)max_i64(equal[i], 1);
    if (m->of_y < m->n) block_fill(dy, dy[0], m->n);
}

/* Of maxima: to the elements that are one */
static void max_dx_item(const KArgs *a, const Fold *f, int64_t item) {
    float most[BLOCK], dy[BLOCK], scratch[BLOCK], values[BLOCK];
    int32_t found[BLOCK];
    const MaxItem m = max_item(f, item);
    const bool shares = a->attr->reduce.f == REDUCE_AMAX, columns = m.of_y == m.n;
    CLEAR(found, m.n);
    item_load(&a->reduce_dx.y, &m, most);
    item_load(&a->reduce_dx.dy, &m, dy);
    if (shares) share_among_equal(a, f, &m, most, dy);
    EACH_REPEATED(f, m.from, w)
        EACH_OF_ITEM(&m, k, n) {
            const int64_t at = w.at.at[0] + k;
            const float *x = block_load(&a->reduce_dx.x, at, n, scratch);
            float *dx = block_target(&a->reduce_dx.dx, at, values);
            if (shares) give_equal(dx, x, most, dy, n);
            else if (columns) give_first(dx, x, most, dy, found, n);
            else {
                const int64_t first = found[0] ? n : first_equal(x, most[0], n);
                block_fill(dx, 0, n);
                if (first < n) dx[first] = dy[0], found[0] = 1;
            }
            block_store(&a->reduce_dx.dx, at, n, dx);
        }
}

static void max_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    const Fold f = x_fold(&a->reduce_dx.dx, &a->reduce_dx.dy);
    for (int64_t item = begin; item < end; item++) max_dx_item(a, &f, item);
}

int k_cpu_reduce_dx(const KArgs *a, Err *e) {
    const Fold f = x_fold(&a->reduce_dx.dx, &a->reduce_dx.dy);
    (void)e;
    if (reduce_is_max(a->attr->reduce.f)) items_run(a, &f, max_dx_piece);
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
