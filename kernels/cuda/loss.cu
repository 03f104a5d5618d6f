/* loss.cu: losses and their gradients. A loss is a sum of terms (sums.h) over a number of samples. Sums are in double,
 * terms in fp32. */
#include "cross_entropy.h"
#include "program/loss.h"
#include "rows.h"
#include "sums.h"

enum { LOSS_THREADS = ELEMENT_THREADS, LOSS_WARPS = LOSS_THREADS / WARP };
enum { SLOPE_BLOCKS = 4 }; /* per processor: half of the threads that it holds */

/* Of one block: the sum of its terms, and how many samples they are of */
typedef struct LossPart { double sum, count; } LossPart;

static __device__ inline LossPart block_part(LossPart mine) {
    LossPart p = {block_sum(mine.sum), block_sum(mine.count)};
    return p;
}

/* Where a loss goes. w: the classes' weights [weights], stats [N]: of cross entropy, each may be NULL; loss NULL: the
 * blocks' sums stay in parts; add: to those that are there */
typedef struct LossTo {
    LossAttr attr;
    const float *w;
    int64_t weights;
    float *loss;
    LossPart *parts;
    Softmax *stats;
    bool add;
} LossTo;

static __device__ inline void loss_store(const LossTo *to, LossPart all) {
    *to->loss = loss_value(&to->attr, all.sum, all.count);
}

/* Ends a kernel that makes terms. mine: the thread's */
static __device__ inline void part_store(const LossTo *to, LossPart mine) {
    LossPart p = block_part(mine);
    if (threadIdx.x) return;
    if (to->add) {
        p.sum += to->parts[blockIdx.x].sum;
        p.count += to->parts[blockIdx.x].count;
    }
    if (to->loss && gridDim.x == 1) loss_store(to, p);
    else to->parts[blockIdx.x] = p;
}

static __global__ void loss_finish(LossTo to, int parts) {
    LossPart mine = {0, 0};
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
        mine.sum += to.parts[i].sum;
        mine.count += to.parts[i].count;
    }
    LossPart all = block_part(mine);
    if (threadIdx.x == 0) loss_store(&to, all);
}

/* Bytes at the workspace's begin for what ranks that have some of the classes each exchange, a row of SoftmaxPart of each */
static size_t joined_bytes(const KArgs *a) {
    const size_t world = a->kind == OP_cross_entropy ? (size_t)a->attr->loss.world : 0;
    return world * (size_t)a->cross_entropy.t.count * sizeof(SoftmaxPart);
}

static int loss_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace) {
    *state = NULL;
    *workspace = joined_bytes(a) + sum_workspace(a->cross_entropy.x.count, sizeof(LossPart), limit);
    return OK;
}

/* A loss without a target gets x in its place, and does not read it. */
static inline Elements target_of(const KArgs *a) {
    return elements_of(a->element_loss.t.data ? &a->element_loss.t : &a->element_loss.x);
}

/* `terms` makes the terms of x (rows, classes) and t; of a loss of single elements, each element is a row. */
static int loss_run(const KArgs *a, Err *e, void (*terms)(LossTo, Elements, Elements, int64_t, int64_t),
                    int64_t rows) {
    const View *x = &a->cross_entropy.x, *loss = &a->cross_entropy.loss;
    LossTo to = {a->attr->loss, (const float *)a->cross_entropy.w.data, a->cross_entropy.w.count, (float *)loss->data,
                 (LossPart *)a->workspace, (Softmax *)a->cross_entropy.stats.data, false};
    assert(rows > 0 && x->count % rows == 0 && operand_is_float(x) && operand_is_fp32(loss));
    int parts = (int)sum_parts(x->count, sizeof(LossPart), a->workspace_bytes);
    int rc = launch_op(a, e, terms, parts, LOSS_THREADS, to, elements_of(x), target_of(a), rows, x->count / rows);
    return rc != OK || parts == 1 ? rc : launch_op(a, e, loss_finish, 1, LOSS_THREADS, to, parts);
}

/* ---- cross entropy: x (N, C) logits or logarithms of probabilities, t (N) classes, w [C] or NULL; a warp per
 *      sample */

static __device__ inline int lane_index() { return (int)(threadIdx.x % WARP); }
static __device__ inline int64_t first_row() { return (int64_t)blockIdx.x * LOSS_WARPS + threadIdx.x / WARP; }
static __device__ inline int64_t row_stride() { return (int64_t)gridDim.x * LOSS_WARPS; }

static __device__ inline RowSpan logit_row(Elements x, int64_t n, int64_t rows, int64_t classes, bool read_only) {
    return RowSpan{n * classes, (n + 1) * classes, read_only ? rows * classes : 0, lanes_aligned<LANES>(x.type, x.data)};
}

/* Of a row, by a warp, which reads it once. The loads of EXP_PIECES are under way together. */
enum { EXP_PIECES = 2 };
static __device__ inline ExpSum exp_sum_row(Elements x, const RowSpan &r) {
    ExpSum mine = exp_sum_none();
    for (int64_t at = r.first / LANES * LANES + lane_index() * LANES; at < r.end; at += EXP_PIECES * WARP * LANES) {
        float values[EXP_PIECES][LANES];
        UNROLLED(EXP_PIECES)
        for (int k = 0; k < EXP_PIECES; k++) span_load(x, r, at + k * WARP * LANES, -INFINITY, values[k]);
        UNROLLED(EXP_PIECES)
        for (int k = 0; k < EXP_PIECES; k++) exp_sum_add(&mine, values[k], LANES);
    }
    return row_exp_sum(mine, row_lane(1));
}

static __device__ inline Softmax softmax_row(const LossAttr *attr, bool ignored, Elements x, const RowSpan &r) {
    if (ignored || attr->log) return Softmax{0, 0};
    const ExpSum s = exp_sum_row(x, r);
    return Softmax{s.max, (float)log(s.sum)};
}

static __device__ inline float log_softmax(Elements x, int64_t i, Softmax s) {
    return element_at(x, i) - s.max - s.log_sum;
}

static __global__ void cross_entropy_terms(LossTo to, Elements x, Elements targets, int64_t rows, int64_t classes) {
    const int32_t *t = (const int32_t *)targets.data;
    LossPart mine = {0, 0};
    for (int64_t n = first_row(); n < rows; n += row_stride()) {
        bool ignored = t[n] == to.attr.ignore_index;
        Softmax s = softmax_row(&to.attr, ignored, x, logit_row(x, n, rows, classes, true));
        if (to.stats && lane_index() == 0) to.stats[n] = s;
        if (ignored) continue;
        for (int64_t c = lane_index(); c < classes && to.attr.smoothing != 0; c += WARP)
            mine.sum -= (double)loss_even(&to.attr, to.w, c, classes) * log_softmax(x, n * classes + c, s);
        if (lane_index()) continue;
        mine.sum -= (double)loss_sure(&to.attr, to.w, t[n]) * log_softmax(x, n * classes + t[n], s);
        if (to.attr.beta != 0) mine.sum += (double)loss_square(&to.attr, to.w, t[n], s);
        mine.count += (double)class_weight(to.w, t[n]);
    }
    part_store(&to, mine);
}

/* ---- classes that ranks have some of each: own[rows] is what a rank tells of its logits, parts[world][rows] what it has heard */

static __global__ void cross_entropy_own(SoftmaxPart *own, LossAttr attr, Elements x, const int32_t *t, int64_t rows,
                                         int64_t classes) {
    for (int64_t n = first_row(); n < rows; n += row_stride()) {
        const int64_t c = t[n] - loss_first(&attr, classes);
        const bool ignored = t[n] == attr.ignore_index;
        const ExpSum s = ignored ? ExpSum{0, 0} : exp_sum_row(x, logit_row(x, n, rows, classes, true));
        double all = 0;
        for (int64_t i = lane_index(); i < classes && !ignored && attr.smoothing != 0; i += WARP)
            all += (double)element_at(x, n * classes + i);
        all = warp_sum(all);
        if (lane_index()) continue;
        const bool has = !ignored && c >= 0 && c < classes;
        own[n] = SoftmaxPart{s.max, (float)s.sum, has ? element_at(x, n * classes + c) : 0.0f, (float)all};
    }
}

/* A thread per sample; classes: all of them */
static __global__ void cross_entropy_join(LossTo to, const SoftmaxPart *parts, const int32_t *t, int64_t rows, int64_t classes) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    LossPart mine = {0, 0};
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < rows; n += stride) {
        Softmax s = {0, 0};
        if (t[n] != to.attr.ignore_index) {
            const SoftmaxPart all = softmax_join(parts + n, rows, to.attr.world, &s);
            mine.sum += loss_joined(&to.attr, all, classes, s);
            mine.count += 1;
        }
        if (to.stats) to.stats[n] = s;
    }
    part_store(&to, mine);
}

/* The terms of all ranks' classes, by so many blocks. */
static int joined_terms(const KArgs *a, const LossTo &to, unsigned blocks, Err *e) {
    const View *x = &a->cross_entropy.x;
    const int64_t rows = x->shape.dim[0], classes = x->shape.dim[1];
    const int32_t *t = (const int32_t *)a->cross_entropy.t.data;
    SoftmaxPart *parts = (SoftmaxPart *)a->workspace;
    assert(a->workspace_bytes >= joined_bytes(a));
    const int64_t few = (int64_t)cuda_of(a)->model.processors * SLOPE_BLOCKS;
    int rc = launch_op(a, e, cross_entropy_own, (unsigned)min_i64((rows + LOSS_WARPS - 1) / LOSS_WARPS, few), LOSS_THREADS,
                       parts + to.attr.rank * rows, to.attr, elements_of(x), t, rows, classes);
    if (rc == OK) rc = cuda_gather_parts(a, parts, (size_t)rows * sizeof *parts, e);
    return rc != OK ? rc : launch_op(a, e, cross_entropy_join, blocks, LOSS_THREADS, to, (const SoftmaxPart *)parts, t, rows,
                                     loss_classes(&to.attr, classes));
}

static int joined_run(const KArgs *a, Err *e) {
    const size_t before = joined_bytes(a);
    const int parts = (int)sum_parts(a->cross_entropy.x.count, sizeof(LossPart), a->workspace_bytes - before);
    const LossTo to = {a->attr->loss, NULL, 0, (float *)a->cross_entropy.loss.data, (LossPart *)((char *)a->workspace + before),
                       (Softmax *)a->cross_entropy.stats.data, false};
    const int rc = joined_terms(a, to, (unsigned)parts, e);
    return rc != OK || parts == 1 ? rc : launch_op(a, e, loss_finish, 1, LOSS_THREADS, to, parts);
}

typedef struct Gradient {
    LossAttr attr;
    const StepState *state;
    const float *w;
    const Softmax *stats;
    Elements dx;
    const int32_t *counted; /* [samples]: the labels of which the loss is the mean */
    int64_t samples;
} Gradient;

/* The sum of the weights of samples that are not ignored. Each block counts anew: labels are few bytes beside the
 * logits. Labels are in range: they were checked when they came in. */
static __device__ inline double samples_counted(const int32_t *t, const float *w, int64_t rows, int32_t ignored) {
    double count = 0;
    for (int64_t n = threadIdx.x; n < rows; n += blockDim.x)
        if (t[n] != ignored) count += (double)class_weight(w, t[n]);
    return block_sum(count);
}

/* The sum of the classes' weights; 0 if there are none, which is then not used */
static __device__ inline double weights_sum(const float *w, int64_t classes) {
    double sum = 0;
    for (int64_t c = threadIdx.x; w && c < classes; c += blockDim.x) sum += w[c];
    return block_sum(sum);
}

/* A lane takes a piece at a time, SLOPE_PIECES times; their loads are under way before the first is stored. What a row shares of a
 * piece with its neighbours goes element by element: dx may be x. aligned: of dx, too */
enum { SLOPE_PIECES = 2 };

static __global__ void cross_entropy_slopes(Gradient to, Elements x, Elements targets, int64_t rows, int64_t classes,
                                            bool aligned) {
    const int32_t *t = (const int32_t *)targets.data;
    double count = to.attr.sum ? 1.0 : samples_counted(to.counted, to.w, to.samples, to.attr.ignore_index);
    const int64_t shard = loss_first(&to.attr, classes), all_classes = loss_classes(&to.attr, classes);
    double all = weights_sum(to.w, classes);
    float scale = loss_slope_scale(&to.attr, to.state, count);
    for (int64_t n = first_row(); n < rows; n += row_stride()) {
        const int64_t first = n * classes, end = first + classes;
        const int32_t label = t[n];
        const bool ignored = label == to.attr.ignore_index;
        const RowSpan row = logit_row(x, n, rows, classes, false);
        Softmax s = to.stats ? to.stats[n] : softmax_row(&to.attr, ignored, x, row);
        float mass = ignored ? 0 : loss_mass(&to.attr, to.w, label, all, all_classes, s);
        __syncwarp(); /* dx may be x, which other lanes have read */
        for (int64_t at = first / LANES * LANES + lane_index() * LANES; at < end; at += SLOPE_PIECES * WARP * LANES) {
            float values[SLOPE_PIECES][LANES];
            UNROLLED(SLOPE_PIECES)
            for (int k = 0; k < SLOPE_PIECES; k++) span_load(x, row, at + k * WARP * LANES, 0, values[k]);
            UNROLLED(SLOPE_PIECES)
            for (int k = 0; k < SLOPE_PIECES; k++) {
                const int64_t begin = at + k * WARP * LANES;
                for (int i = 0; i < LANES; i++) {
                    const int64_t c = begin + i - first;
                    if (c < 0 || c >= classes) continue;
                    float d = to.attr.log ? 0 : mass * expf(values[k][i] - s.max - s.log_sum);
                    d -= loss_even(&to.attr, to.w, c, all_classes);
                    if (shard + c == label) d -= loss_sure(&to.attr, to.w, c);
                    values[k][i] = ignored ? 0.0f : scale * d;
                }
                span_store(to.dx, row, begin, aligned, values[k]);
            }
        }
    }
}

int k_cuda_cross_entropy(const KArgs *a, Err *e) {
    const View *x = &a->cross_entropy.x, *t = &a->cross_entropy.t;
    assert(t->dtype == DT_I32 && x->shape.rank == 2 && t->count == x->shape.dim[0]);
    assert(operand_is_vector(&a->cross_entropy.w, x->shape.dim[1]));
    assert(operand_is_vector(&a->cross_entropy.stats, 2 * t->count));
    (void)x; /* with NDEBUG nothing reads it */
    if (a->attr->loss.world) return joined_run(a, e);
    return loss_run(a, e, cross_entropy_terms, t->count);
}

int cuda_cross_entropy_slopes(const KArgs *a, const View *all, Err *e) {
    const View *x = &a->cross_entropy_dx.x, *t = &a->cross_entropy_dx.t, *dx = &a->cross_entropy_dx.dx;
    const View *w = &a->cross_entropy_dx.w, *stats = &a->cross_entropy_dx.stats;
    assert(t->dtype == DT_I32 && x->shape.rank == 2 && t->count == x->shape.dim[0] && dx->count == x->count);
    assert(operand_is_vector(w, x->shape.dim[1]) && operand_is_vector(stats, 2 * t->count));
    assert(!a->attr->loss.world || stats->count);
    Gradient to = {a->attr->loss, (const StepState *)a->cross_entropy_dx.state.data, (const float *)w->data,
                   (const Softmax *)stats->data, elements_of(dx), (const int32_t *)all->data, all->count};
    /* few, since each of them counts all labels */
    int64_t few = (int64_t)cuda_of(a)->model.processors * SLOPE_BLOCKS;
    unsigned blocks = (unsigned)min_i64((t->count + LOSS_WARPS - 1) / LOSS_WARPS, few);
    return launch_op(a, e, cross_entropy_slopes, blocks, LOSS_THREADS, to, elements_of(x), elements_of(t), t->count,
                     x->count / t->count, lanes_fit<LANES>(dx->data, dx->dtype, 0));
}

int k_cuda_cross_entropy_dx(const KArgs *a, Err *e) {
    return cuda_cross_entropy_slopes(a, &a->cross_entropy_dx.t, e);
}

/* ---- the same in parts (cross_entropy.h) */

size_t cuda_cross_entropy_sums(const KArgs *a) {
    return (size_t)sum_parts(a->cross_entropy.x.count, sizeof(LossPart), SIZE_MAX / 2) * sizeof(LossPart);
}

int cuda_cross_entropy_terms(const KArgs *a, void *sums, size_t bytes, Err *e) {
    const View *x = &a->cross_entropy.x;
    LossTo to = {a->attr->loss, (const float *)a->cross_entropy.w.data, a->cross_entropy.w.count, NULL,
                 (LossPart *)sums, (Softmax *)a->cross_entropy.stats.data, a->micro > 0};
    if (to.attr.world) return joined_terms(a, to, (unsigned)(bytes / sizeof(LossPart)), e);
    return launch_op(a, e, cross_entropy_terms, (unsigned)(bytes / sizeof(LossPart)), LOSS_THREADS, to, elements_of(x),
                     elements_of(&a->cross_entropy.t), x->shape.dim[0], x->shape.dim[1]);
}

int cuda_cross_entropy_finish(const KArgs *a, const void *sums, size_t bytes, Err *e) {
    LossTo to = {a->attr->loss, NULL, 0, (float *)a->cross_entropy.loss.data, (LossPart *)(uintptr_t)sums, NULL, false};
    return launch_op(a, e, loss_finish, 1, LOSS_THREADS, to, (int)(bytes / sizeof(LossPart)));
}

/* ---- losses of single elements: x and t of one shape and order */

static __global__ void element_terms(LossTo to, Elements x, Elements t, int64_t count, int64_t) {
    ElementsOf<2> both = {{x, t}};
    bool aligned = elements_aligned(x) && elements_aligned(t);
    LossPart mine = {0, 0};
    for (int64_t begin = elements_first(); begin < count; begin += elements_stride()) {
        float values[TURN_QUADS][2][QUAD];
        elements_load(values, both, begin, count, aligned);
        UNROLLED(TURN_QUADS)
        for (int q = 0; q < TURN_QUADS; q++) {
            const float(*x4)[QUAD] = values[q];
            for (int i = 0; i < QUAD; i++) {
                const int64_t at = begin + q * QUAD_STEP + i;
                if (at >= count) break;
                mine.sum += (double)loss_term(to.attr.f, x4[0][i], x4[1][i], loss_beta(&to.attr, to.w, to.weights, at));
                mine.count++;
            }
        }
    }
    part_store(&to, mine);
}

struct ElementSlope {
    enum { INPUTS = 2 };
    LossAttr attr;
    const StepState *state;
    int64_t count;
    const float *w; /* [weights] or NULL */
    int64_t weights;
    __device__ void four(float *dx, const float (*x)[QUAD], int64_t begin) const {
        float scale = loss_slope_scale(&attr, state, (double)count);
        for (int i = 0; i < QUAD; i++)
            dx[i] = scale * loss_slope(attr.f, x[0][i], x[1][i], loss_beta(&attr, w, weights, begin + i));
    }
};

int k_cuda_element_loss(const KArgs *a, Err *e) {
    assert(!a->element_loss.t.count || a->element_loss.t.count == a->element_loss.x.count);
    return loss_run(a, e, element_terms, a->element_loss.x.count);
}

int k_cuda_element_loss_dx(const KArgs *a, Err *e) {
    assert(!a->element_loss_dx.t.count || a->element_loss_dx.t.count == a->element_loss_dx.x.count);
    assert(a->element_loss_dx.dx.count == a->element_loss_dx.x.count);
    ElementsOf<2> x = {{elements_of(&a->element_loss_dx.x), target_of(a)}};
    const View *w = &a->element_loss_dx.w;
    ElementSlope f = {a->attr->loss, (const StepState *)a->element_loss_dx.state.data, a->element_loss_dx.x.count,
                      (const float *)w->data, w->count};
    return elements_run(a, e, f, x);
}

#define PREPARE(name)                                                                                    \
    int k_cuda_##name##_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) { \
        return (void)e, loss_prepare(a, limit, state, workspace);                                        \
    }
PREPARE(cross_entropy)
PREPARE(element_loss)
