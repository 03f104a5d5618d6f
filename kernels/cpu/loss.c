/* loss.c: losses and their gradients. Sums are in double, one term per sample or element in fp32. */
#include "base/mem.h"
#include "cpu.h"
#include "cross_entropy.h"
#include "program/loss.h"
#include "row_chunks.h"
#include "vector_math.h"

static float slope_scale(const KArgs *a, double count) {
    return loss_slope_scale(&a->attr->loss, a->cross_entropy_dx.state.data, count);
}

static void loss_store(const KArgs *a, double sum, double count) {
    ((float *)a->cross_entropy.loss.data)[0] = loss_value(&a->attr->loss, sum, count);
}

/* ---- cross entropy: x (N, C) logits or logarithms of probabilities, t (N) classes, w [C] or NULL. Classes are in range:
 *      they were checked when they came in. */

static int64_t classes_of(const KArgs *a) { return a->cross_entropy.x.shape.dim[1]; }

/* of cross_entropy and of cross_entropy_dx: w and stats may be absent */
static bool operands_fit(const View *x, const View *t, const View *w, const View *stats) {
    return x->shape.rank == 2 && t->dtype == DT_I32 && t->count == x->shape.dim[0] && operand_is_float(x) &&
           operand_is_vector(w, x->shape.dim[1]) && operand_is_vector(stats, 2 * t->count);
}

static float logit(const KArgs *a, int64_t n, int64_t c) {
    return dtype_load(a->cross_entropy.x.dtype, a->cross_entropy.x.data, (size_t)(n * classes_of(a) + c));
}

/* d = factor softmax(x) */
FUSED HOT static void part_slopes(float *d, const float *x, Softmax s, float factor, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) d[i] = factor * exp_flushed(x[i] - s.max - s.log_sum);
}

/* d = factor e^exponent */
FUSED HOT static void few_slopes(float *d, const float *exponent, const float *factor, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) d[i] = factor[i] * exp_flushed(exponent[i]);
}

/* Classes of which TOGETHER samples fill at most a BLOCK. Their loops go over samples, one class at a time: of one sample's few classes
 * a loop's beginning and end would cost more than the work. */
enum { FEW = 64, TOGETHER = BLOCK / FEW };

static void softmaxes_of_few(const KArgs *a, int64_t first, int64_t rows, Softmax *s) {
    const int64_t classes = classes_of(a);
    float from[BLOCK], turned[FEW][TOGETHER], most[TOGETHER], sum[TOGETHER] = {0};
    const float *x = block_load(&a->cross_entropy.x, first * classes, rows * classes, from);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < classes; c++) turned[c][i] = x[i * classes + c];
    block_fill(most, -INFINITY, rows);
    for (int64_t c = 0; c < classes; c++) larger(most, turned[c], rows);
    for (int64_t c = 0; c < classes; c++) add_exponentials(sum, turned[c], most, rows);
    for (int64_t i = 0; i < rows; i++) s[i] = (Softmax){most[i], (float)log((double)sum[i])}; /* cppcheck-suppress invalidFunctionArg ; at least one class */
}

static Softmax softmax_row(const KArgs *a, int64_t n) {
    int64_t classes = classes_of(a), row = n * classes;
    float from[PART];
    Softmax s = {-INFINITY, 0};
    double sum = 0;
    EACH_PART(c, m, classes) s.max = part_max(s.max, block_load(&a->cross_entropy.x, row + c, m, from), m);
    EACH_PART(c, m, classes) sum += (double)part_exp_sum(block_load(&a->cross_entropy.x, row + c, m, from), s.max, m);
    s.log_sum = (float)log(sum); /* cppcheck-suppress invalidFunctionArg ; there is at least one class */
    return s;
}

static bool is_ignored(const KArgs *a, int64_t n) {
    return ((const int32_t *)a->cross_entropy.t.data)[n] == a->attr->loss.ignore_index;
}

/* Does the loss read the softmax of the sample's logits? */
static bool has_softmax(const KArgs *a, int64_t n) { return !a->attr->loss.log && !is_ignored(a, n); }

/* Of the logits of samples [first, first + rows), TOGETHER at most */
static void softmaxes(const KArgs *a, int64_t first, int64_t rows, Softmax *s) {
    const bool few = classes_of(a) <= FEW;
    if (few && !a->attr->loss.log) softmaxes_of_few(a, first, rows, s);
    for (int64_t i = 0; i < rows; i++)
        if (!has_softmax(a, first + i)) s[i] = (Softmax){0, 0};
        else if (!few) s[i] = softmax_row(a, first + i);
}

/* ---- classes that several ranks have, each some: where its own logits lie among the others' */

static SoftmaxPart part_row(const KArgs *a, int64_t n) {
    const LossAttr *loss = &a->attr->loss;
    const int64_t classes = classes_of(a), row = n * classes, t = ((const int32_t *)a->cross_entropy.t.data)[n];
    const int64_t own = t - loss_first(loss, classes);
    SoftmaxPart part = {-INFINITY, 0, 0, 0};
    float from[PART];
    double sum = 0, all = 0;
    if (t == loss->ignore_index) return (SoftmaxPart){0, 0, 0, 0};
    EACH_PART(c, m, classes) part.max = part_max(part.max, block_load(&a->cross_entropy.x, row + c, m, from), m);
    EACH_PART(c, m, classes) sum += (double)part_exp_sum(block_load(&a->cross_entropy.x, row + c, m, from), part.max, m);
    for (int64_t c = 0; c < classes && loss->smoothing != 0; c++) all += (double)logit(a, n, c);
    part.sum = (float)sum;
    part.all = (float)all;
    if (own >= 0 && own < classes) part.own = logit(a, n, own);
    return part;
}

/* The workspace has a row of SoftmaxPart for each rank. */
static void parts_piece(const KArgs *a, int64_t begin, int64_t end) {
    SoftmaxPart *own = (SoftmaxPart *)a->workspace + a->attr->loss.rank * a->cross_entropy.t.count;
    for (int64_t n = begin; n < end; n++) own[n] = part_row(a, n);
}

static double joined_sum(const KArgs *a, int64_t begin, int64_t end) {
    const LossAttr *loss = &a->attr->loss;
    const int32_t *t = a->cross_entropy.t.data;
    const SoftmaxPart *parts = a->workspace;
    Softmax *stats = a->cross_entropy.stats.data;
    const int64_t rows = a->cross_entropy.t.count, classes = loss_classes(loss, classes_of(a));
    double sum = 0;
    for (int64_t n = begin; n < end; n++) {
        const bool ignored = t[n] == loss->ignore_index;
        Softmax s = {0, 0};
        if (!ignored) {
            const SoftmaxPart all = softmax_join(parts + n, rows, loss->world, &s);
            sum += loss_joined(loss, all, classes, s);
        }
        if (stats) stats[n] = s;
    }
    return sum;
}

static size_t parts_bytes(const KArgs *a) { return (size_t)a->cross_entropy.t.count * sizeof(SoftmaxPart); }

/* Each rank gets the parts of all others. */
static int gather_parts(const KArgs *a, Err *e) {
    Comm *comm = ((const Device *)a->device)->comm[MESH_TENSOR];
    size_t *bytes = mem_new((size_t)comm->world * sizeof *bytes);
    if (!bytes) return err_set(e, ERR_HOST_MEMORY, "out of host memory for %d ranks", comm->world);
    for (int r = 0; r < comm->world; r++) bytes[r] = parts_bytes(a);
    const int code = comm->table->gather(comm, a->workspace, bytes, e);
    mem_free(bytes);
    return code;
}

static int joined_terms(const KArgs *a, double *sum, Err *e) {
    assert(a->workspace_bytes >= (size_t)a->attr->loss.world * parts_bytes(a));
    range_run(a, a->cross_entropy.t.count, max_i64(1, BLOCK / classes_of(a)), parts_piece);
    const int code = gather_parts(a, e);
    if (!code) *sum = range_sum(a, a->cross_entropy.t.count, joined_sum);
    return code;
}

/* The sum of the weights of samples that are not ignored */
static double samples_counted(const KArgs *a, const View *labels, const float *w) {
    const int32_t *t = labels->data;
    double count = 0;
    for (int64_t n = 0; n < labels->count; n++)
        if (t[n] != a->attr->loss.ignore_index) count += (double)class_weight(w, t[n]);
    return count;
}

static double cross_entropy_sum(const KArgs *a, int64_t begin, int64_t end) {
    const LossAttr *loss = &a->attr->loss;
    const int32_t *t = a->cross_entropy.t.data;
    const float *w = a->cross_entropy.w.data;
    Softmax *stats = a->cross_entropy.stats.data;
    int64_t classes = classes_of(a);
    double sum = 0;
    for (int64_t first = begin, rows; first < end; first += rows) {
        Softmax of[TOGETHER];
        rows = min_i64(TOGETHER, end - first);
        softmaxes(a, first, rows, of);
        for (int64_t n = first; n < first + rows; n++) {
            const Softmax s = of[n - first];
            if (stats) stats[n] = s;
            if (is_ignored(a, n)) continue;
            for (int64_t c = 0; c < classes && loss->smoothing != 0; c++)
                sum -= (double)loss_even(loss, w, c, classes) * (logit(a, n, c) - s.max - s.log_sum);
            sum += (double)loss_sure(loss, w, t[n]) * (s.log_sum - (logit(a, n, t[n]) - s.max));
            if (loss->beta != 0) sum += (double)loss_square(loss, w, t[n], s);
        }
    }
    return sum;
}

/* What the gradients of all samples' logits share. all: the sum of the classes' weights; each: samples that are made together */
typedef struct Slopes { const KArgs *a; float scale; double all; int64_t each; } Slopes;

/* What a gradient has beside the softmax, for classes [c, c + m) of sample n, which is not ignored */
static void add_targets(const Slopes *f, float *to, int64_t n, int64_t c, int64_t m) {
    const KArgs *a = f->a;
    const LossAttr *loss = &a->attr->loss;
    const float *w = a->cross_entropy_dx.w.data;
    const int64_t classes = classes_of(a), all_classes = loss_classes(loss, classes);
    const int64_t t = ((const int32_t *)a->cross_entropy_dx.t.data)[n], own = t - loss_first(loss, classes);
    for (int64_t i = 0; i < m && loss->smoothing != 0; i++) to[i] -= f->scale * loss_even(loss, w, c + i, all_classes);
    if (own >= c && own < c + m) to[own - c] -= f->scale * loss_sure(loss, w, t);
}

/* The factor of sample n's softmax in its gradient */
static float softmax_factor(const Slopes *f, int64_t n, Softmax s) {
    const KArgs *a = f->a;
    const int32_t *t = a->cross_entropy_dx.t.data;
    if (!has_softmax(a, n)) return 0;
    return f->scale * loss_mass(&a->attr->loss, a->cross_entropy_dx.w.data, t[n], f->all, loss_classes(&a->attr->loss, classes_of(a)), s);
}

/* Samples [first, first + rows), of few classes */
static void slopes_of_few(const Slopes *f, int64_t first, int64_t rows, const Softmax *s) {
    const KArgs *a = f->a;
    const int64_t classes = classes_of(a), at = first * classes;
    float from[BLOCK], scratch[BLOCK], exponents[BLOCK], factors[BLOCK];
    const float *x = block_load(&a->cross_entropy_dx.x, at, rows * classes, from);
    float *dx = block_target(&a->cross_entropy_dx.dx, at, scratch);
    assert(rows > 0 && classes > 0);
    for (int64_t i = 0; i < rows; i++) {
        const bool has = has_softmax(a, first + i); /* else its logits may be any numbers */
        const float factor = softmax_factor(f, first + i, s[i]);
        for (int64_t k = i * classes; k < (i + 1) * classes; k++) {
            exponents[k] = has ? x[k] - s[i].max - s[i].log_sum : 0;
            factors[k] = factor;
        }
    }
    few_slopes(dx, exponents, factors, rows * classes);
    for (int64_t i = 0; i < rows; i++)
        if (!is_ignored(a, first + i)) add_targets(f, dx + i * classes, first + i, 0, classes);
    block_store(&a->cross_entropy_dx.dx, at, rows * classes, dx);
}

static void slopes_of_many(const Slopes *f, int64_t n, Softmax s) {
    const KArgs *a = f->a;
    const int64_t classes = classes_of(a);
    const float factor = softmax_factor(f, n, s);
    float from[PART], to[PART];
    EACH_PART(c, m, classes) {
        if (!has_softmax(a, n)) memset(to, 0, sizeof to);
        else part_slopes(to, block_load(&a->cross_entropy_dx.x, n * classes + c, m, from), s, factor, m);
        if (!is_ignored(a, n)) add_targets(f, to, n, c, m);
        block_store(&a->cross_entropy_dx.dx, n * classes + c, m, to);
    }
}

/* The gradients of the logits of `each` samples: 0 of ignored ones. */
static void samples_slopes(const void *of, int64_t i) {
    const Slopes *f = of;
    const Softmax *stats = f->a->cross_entropy_dx.stats.data;
    const int64_t first = i * f->each, rows = min_i64(f->each, f->a->cross_entropy_dx.t.count - first);
    Softmax made[TOGETHER];
    if (!stats) softmaxes(f->a, first, rows, made);
    const Softmax *s = stats ? stats + first : made;
    if (f->each > 1) slopes_of_few(f, first, rows, s);
    else slopes_of_many(f, first, *s);
}

int cross_entropy_terms(const KArgs *a, double *sum, Err *e) {
    (void)operands_fit;
    assert(operands_fit(&a->cross_entropy.x, &a->cross_entropy.t, &a->cross_entropy.w, &a->cross_entropy.stats));
    if (a->attr->loss.world) return joined_terms(a, sum, e);
    *sum = range_sum(a, a->cross_entropy.t.count, cross_entropy_sum);
    return OK;
}

void cross_entropy_finish(const KArgs *a, double sum) {
    loss_store(a, sum, samples_counted(a, &a->cross_entropy.t, a->cross_entropy.w.data));
}

int k_cpu_cross_entropy(const KArgs *a, Err *e) {
    double sum = 0;
    const int code = cross_entropy_terms(a, &sum, e);
    if (!code) cross_entropy_finish(a, sum);
    return code;
}

void cross_entropy_slopes(const KArgs *a, const View *t) {
    assert(operands_fit(&a->cross_entropy_dx.x, &a->cross_entropy_dx.t, &a->cross_entropy_dx.w,
                        &a->cross_entropy_dx.stats));
    assert(a->cross_entropy_dx.dx.count == a->cross_entropy_dx.x.count);
    assert(!a->attr->loss.world || a->cross_entropy_dx.stats.count);
    const float *w = a->cross_entropy_dx.w.data;
    Slopes f = {a, slope_scale(a, samples_counted(a, t, w)), 0, classes_of(a) <= FEW ? TOGETHER : 1};
    for (int64_t c = 0; c < classes_of(a); c++) f.all += (double)class_weight(w, c);
    pieces_run(&f, div_up(a->cross_entropy_dx.t.count, f.each), samples_slopes);
}

int k_cpu_cross_entropy_dx(const KArgs *a, Err *e) {
    (void)e;
    cross_entropy_slopes(a, &a->cross_entropy_dx.t);
    return OK;
}

/* ---- losses of single elements: x and t of one shape and order */

/* y[n] = formula(x, t); one loop per loss: the choice is made before the loop. */
#define LOSS_LOOP(formula, name)                                                                               \
    case LOSS_##name:                                                                                          \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = formula(LOSS_##name, x[i], t[i], loss->beta); \
        break;

HOT static void terms_block(const LossAttr *loss, float *y, const float *x, const float *t, int64_t n) {
    switch (loss->f) {
#define X(name, text) LOSS_LOOP(loss_term, name)
        LOSSES(X)
#undef X
    }
}

HOT static void slopes_block(const LossAttr *loss, float *y, const float *x, const float *t, int64_t n) {
    switch (loss->f) {
#define X(name, text) LOSS_LOOP(loss_slope, name)
        LOSSES(X)
#undef X
    }
}

/* y = formula(x, t) from element `at` on, where w has the classes' numbers */
#define WEIGHTED_LOOP(function, formula)                                                                             \
    HOT static void function(const LossAttr *loss, float *y, const float *x, const float *t, const View *w, int64_t at, \
                             int64_t n) {                                                                            \
        for (int64_t i = 0; i < n; i++) y[i] = formula(loss->f, x[i], t[i], loss_beta(loss, w->data, w->count, at + i)); \
    }
WEIGHTED_LOOP(weighted_terms, loss_term)
WEIGHTED_LOOP(weighted_slopes, loss_slope)

/* A loss without a target gets x in its place, and does not read it. */
static const View *target_of(const KArgs *a) {
    return a->element_loss.t.data ? &a->element_loss.t : &a->element_loss.x;
}

static double terms_sum(const KArgs *a, int64_t begin, int64_t end) {
    float from[PART], wanted[PART], terms[PART];
    const View *w = &a->element_loss.w;
    double sum = 0;
    EACH_PART(i, n, end - begin) {
        const float *x = block_load(&a->element_loss.x, begin + i, n, from);
        const float *t = block_load(target_of(a), begin + i, n, wanted);
        if (w->count) weighted_terms(&a->attr->loss, terms, x, t, w, begin + i, n);
        else terms_block(&a->attr->loss, terms, x, t, n);
        for (int64_t k = 0; k < n; k++) sum += (double)terms[k];
    }
    return sum;
}

static void slopes_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK], wanted[BLOCK], to[BLOCK], scale = slope_scale(a, (double)a->element_loss_dx.x.count);
    int64_t n = end - begin;
    const float *x = block_load(&a->element_loss_dx.x, begin, n, from);
    const float *t = block_load(target_of(a), begin, n, wanted);
    const View *w = &a->element_loss_dx.w;
    if (w->count) weighted_slopes(&a->attr->loss, to, x, t, w, begin, n);
    else slopes_block(&a->attr->loss, to, x, t, n);
    for (int64_t i = 0; i < n; i++) to[i] *= scale;
    block_store(&a->element_loss_dx.dx, begin, n, to);
}

int k_cpu_element_loss(const KArgs *a, Err *e) {
    (void)e;
    assert(target_of(a)->count == a->element_loss.x.count && operand_is_float(&a->element_loss.x));
    loss_store(a, range_sum(a, a->element_loss.x.count, terms_sum), (double)a->element_loss.x.count);
    return OK;
}

int k_cpu_element_loss_dx(const KArgs *a, Err *e) {
    (void)e;
    assert(target_of(a)->count == a->element_loss_dx.x.count);
    assert(a->element_loss_dx.dx.count == a->element_loss_dx.x.count);
    blocks_run(a, a->element_loss_dx.dx.count, slopes_piece);
    return OK;
}

/* ---- sums are on the stack: workspace is for what other ranks say */

int k_cpu_cross_entropy_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)limit, (void)e;
    *state = NULL;
    *workspace = (size_t)a->attr->loss.world * parts_bytes(a);
    return OK;
}

int k_cpu_element_loss_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    (void)a, (void)limit, (void)e;
    *state = NULL;
    *workspace = 0;
    return OK;
}
