/* softmax.c: softmax and its logarithm along lines of n elements, which lie `stride` apart. Sums over a part of a line
 * are in fp32, sums over parts in double. */
#include "row_chunks.h"

typedef struct Line { int64_t start, stride, n; } Line;

static Line line_of(const View *v, const SoftmaxAttr *s, int64_t item) {
    int64_t outer, inner, n = v->shape.dim[s->axis];
    view_split(v, s->axis, &outer, &inner);
    return (Line){item / inner * n * inner + item % inner, inner, n};
}

static const float *part_load(const View *v, const Line *l, int64_t from, int64_t n, float *scratch) {
    if (l->stride == 1) return block_load(v, l->start + from, n, scratch);
    for (int64_t i = 0; i < n; i++)
        scratch[i] = dtype_load(v->dtype, v->data, (size_t)(l->start + (from + i) * l->stride));
    return scratch;
}

static void part_store(const View *v, const Line *l, int64_t from, int64_t n, const float *values) {
    if (l->stride == 1) {
        block_store(v, l->start + from, n, values);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dtype_store(v->dtype, v->data, (size_t)(l->start + (from + i) * l->stride), values[i]);
}

FUSED HOT static void part_softmax(float *y, const float *x, float most, float factor, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = exp_flushed(x[i] - most) * factor;
}

HOT static void part_log_softmax(float *y, const float *x, float most, float log_sum, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - most - log_sum;
}

static void softmax_line(const KArgs *a, const Line *l) {
    float from[PART], to[PART], most = -INFINITY;
    double sum = 0;
    EACH_PART(i, m, l->n) most = part_max(most, part_load(&a->softmax.x, l, i, m, from), m);
    EACH_PART(i, m, l->n) sum += (double)part_exp_sum(part_load(&a->softmax.x, l, i, m, from), most, m);
    float factor = (float)(1 / sum), log_sum = (float)log(sum); /* cppcheck-suppress invalidFunctionArg ; n >= 1 */
    EACH_PART(i, m, l->n) {
        const float *x = part_load(&a->softmax.x, l, i, m, from);
        if (a->attr->softmax.log) part_log_softmax(to, x, most, log_sum, m);
        else part_softmax(to, x, most, factor, m);
        part_store(&a->softmax.y, l, i, m, to);
    }
}

HOT static float part_dot(const float *dy, const float *y, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += dy[i] * y[i];
    return sum;
}

HOT static float part_sum(const float *dy, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += dy[i];
    return sum;
}

FUSED HOT static void part_softmax_dx(float *dx, const float *dy, const float *y, float sum, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
}

FUSED HOT static void part_log_softmax_dx(float *dx, const float *dy, const float *y, float sum, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - exp_flushed(y[i]) * sum;
}

static void softmax_dx_line(const KArgs *a, const Line *l) {
    float gradient[PART], from[PART], to[PART];
    bool log = a->attr->softmax.log;
    double sum = 0;
    EACH_PART(i, m, l->n) {
        const float *dy = part_load(&a->softmax_dx.dy, l, i, m, gradient);
        sum += (double)(log ? part_sum(dy, m) : part_dot(dy, part_load(&a->softmax_dx.y, l, i, m, from), m));
    }
    EACH_PART(i, m, l->n) {
        const float *dy = part_load(&a->softmax_dx.dy, l, i, m, gradient);
        const float *y = part_load(&a->softmax_dx.y, l, i, m, from);
        if (log) part_log_softmax_dx(to, dy, y, (float)sum, m);
        else part_softmax_dx(to, dy, y, (float)sum, m);
        part_store(&a->softmax_dx.dx, l, i, m, to);
    }
}

/* ---- short lines, several at a time: calls for each of their parts would cost more than the work */

/* `lines` lines of n elements, one after the other; y may be x, dx may be dy */
FUSED HOT static void block_softmax(float *y, const float *x, int64_t lines, int64_t n, bool log) {
    for (const float *end = x + lines * n; x < end; x += n, y += n) {
        float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
        if (log) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += exp_flushed(x[i] - most);
            const float log_sum = logf(sum); /* cppcheck-suppress invalidFunctionArg ; n >= 1 */
#pragma omp simd
            for (int64_t i = 0; i < n; i++) y[i] = x[i] - most - log_sum;
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += y[i] = exp_flushed(x[i] - most);
            const float factor = 1 / sum;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) y[i] *= factor;
        }
    }
}

FUSED HOT static void block_softmax_dx(float *dx, const float *dy, const float *y, int64_t lines, int64_t n, bool log) {
    for (const float *end = y + lines * n; y < end; y += n, dy += n, dx += n) {
        float sum = 0;
        if (log) {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += dy[i];
#pragma omp simd
            for (int64_t i = 0; i < n; i++) dx[i] = dy[i] - exp_flushed(y[i]) * sum;
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += dy[i] * y[i];
#pragma omp simd
            for (int64_t i = 0; i < n; i++) dx[i] = y[i] * (dy[i] - sum);
        }
    }
}

static void block_piece(const KArgs *a, int64_t begin, int64_t end) {
    int64_t n = a->in[0].shape.dim[a->attr->softmax.axis], at = begin * n, count = (end - begin) * n;
    float first[BLOCK], second[BLOCK], scratch[BLOCK], *to = block_target(&a->out[0], at, scratch);
    const float *in = block_load(&a->in[0], at, count, first);
    bool log = a->attr->softmax.log;
    if (a->kind == OP_softmax) block_softmax(to, in, end - begin, n, log);
    else block_softmax_dx(to, in, block_load(&a->softmax_dx.y, at, count, second), end - begin, n, log);
    block_store(&a->out[0], at, count, to);
}

static void lines_piece(const KArgs *a, int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; item++) {
        const Line l = line_of(&a->in[0], &a->attr->softmax, item);
        if (a->kind == OP_softmax) softmax_line(a, &l);
        else softmax_dx_line(a, &l);
    }
}

int k_cpu_softmax(const KArgs *a, Err *e) {
    const Line l = line_of(&a->in[0], &a->attr->softmax, 0);
    (void)e;
    assert(0 <= a->attr->softmax.axis && a->attr->softmax.axis < a->in[0].shape.rank);
    assert(a->in[0].count == a->out[0].count && (a->kind == OP_softmax || a->softmax_dx.y.count == a->out[0].count));
    range_run(a, a->in[0].count / l.n, max_i64(1, BLOCK / l.n),
              l.n <= PART && l.stride == 1 ? block_piece : lines_piece);
    return OK;
}

int k_cpu_softmax_dx(const KArgs *a, Err *e) { return k_cpu_softmax(a, e); }
