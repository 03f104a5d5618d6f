/* optim.cu: the update: overflow check, the sum of all gradients' squares, step count, optimizers, loss scale. Many tensors are one
 * launch (queue.h). */
#include "queue.h"
#include "sums.h"

/* CHUNK: elements that a block takes at a time; no memory holds 2^31 chunks. MULTIPROCESSOR_BLOCKS: of THREADS threads,
 * enough to hide latency. */
enum { THREADS = 256, CHUNK = 4096, MULTIPROCESSOR_BLOCKS = 8 };

/* weight: what the rule works on. copy: the 16-bit weights, if `weight` is their fp32 master, else NULL. state: NULL
 * if it is not kept. grad_check has g alone. */
typedef struct UpdateTensor {
    const void *g;
    void *weight, *copy, *state[OPTIM_STATES];
    int64_t count;
    int first;                                   /* its first chunk among those of all tensors of the launch */
    uint8_t g_type, type, copy_type, state_type; /* DType */
    int vectors;                                 /* four elements may be loaded and stored together */
} UpdateTensor;

struct Update {
    enum { TENSORS = 54 };
    QueueHead head;
    int chunks;
    UpdateTensor tensor[TENSORS];
};

static_assert(sizeof(Update) <= PARAMETER_BYTES, "kernel parameters");

/* ---- on the device */

template <int N>
static __device__ void grad_check_at(const Update &u, const UpdateTensor &t, const OptimStep &, int64_t i) {
    float g[N];
    bool bad = false;
    lanes_load<N>((DType)t.g_type, t.g, i, g);
    for (int n = 0; n < N; n++) bad |= (f32_bits(g[n]) & 0x7f800000u) == 0x7f800000u;
    if (bad) atomicExch(&u.head.state->overflow, 1); /* many threads may find one */
}

template <int N, OptimFn *value>
static __device__ void rule_at(const Update &, const UpdateTensor &t, const OptimStep &step, int64_t i) {
    float g[N], w[N], state[OPTIM_STATES][N] = {};
    lanes_load<N>((DType)t.g_type, t.g, i, g);
    lanes_load<N>((DType)t.type, t.weight, i, w);
    for (int k = 0; k < OPTIM_STATES; k++)
        if (t.state[k]) lanes_load<N>((DType)t.state_type, t.state[k], i, state[k]);
    for (int n = 0; n < N; n++) {
        OptimNumber x = {w[n], {state[0][n], state[1][n], state[2][n]}};
        x = value(&step, x, g[n] * step.unscale);
        w[n] = x.w;
        for (int k = 0; k < OPTIM_STATES; k++) state[k][n] = x.own[k];
    }
    for (int k = 0; k < OPTIM_STATES; k++)
        if (t.state[k]) lanes_store<N>((DType)t.state_type, t.state[k], i, state[k]);
    lanes_store<N>((DType)t.type, t.weight, i, w);
    if (t.copy) lanes_store<N>((DType)t.copy_type, t.copy, i, w);
}

typedef void AtFn(const Update &u, const UpdateTensor &t, const OptimStep &step, int64_t i);

/* Blocks stride over the chunks. */
template <int KIND, AtFn *at1, AtFn *at4>
static __global__ void __launch_bounds__(THREADS) update_kernel(const __grid_constant__ Update u) {
    if (KIND != OP_grad_check && u.head.state && u.head.state->overflow) return;
    const OptimStep &step = block_step<KIND != OP_grad_check>(u.head);
    for (int chunk = (int)blockIdx.x; chunk < u.chunks; chunk += (int)gridDim.x) {
        const UpdateTensor &t = u.tensor[tensor_of(u.tensor, u.head.n, chunk)];
        const int64_t begin = (int64_t)(chunk - t.first) * CHUNK;
        const int64_t end = begin + CHUNK < t.count ? begin + CHUNK : t.count;
        for (int64_t i = begin + 4 * (int64_t)threadIdx.x; i < end; i += 4 * THREADS) {
            if (t.vectors && i + 4 <= end) at4(u, t, step, i);
            else for (int64_t k = i; k < i + 4 && k < end; k++) at1(u, t, step, k);
        }
    }
}

/* ---- the sum of squares: a block sums up a part of a tensor in double; then one block adds up the parts of each tensor, and the
 *      tensors in the order of their ops, with a rounding to fp32 after each. A tensor's parts follow from its size alone. */

typedef struct SquareTensor {
    const void *g;
    int64_t count;
    float share;
    int first, parts; /* its first part among those of all tensors of the launch, and how many it has */
    uint8_t g_type, begins, aligned; /* begins: the sum starts with it */
} SquareTensor;

struct Squares {
    enum { TENSORS = 96 };
    QueueHead head; /* square: where the sum goes */
    double *sums;   /* [parts], in a workspace; a single part needs none */
    int parts;
    SquareTensor tensor[TENSORS];
};

static_assert(sizeof(Squares) <= PARAMETER_BYTES, "kernel parameters");

static __device__ float square_add(const SquareTensor &t, float before, double sum) {
    return (float)((t.begins ? 0.0 : (double)before) + (double)t.share * sum);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) squares_kernel(const __grid_constant__ Squares s) {
    const SquareTensor &t = s.tensor[tensor_of(s.tensor, s.head.n, (int)blockIdx.x)];
    const ElementsOf<1> g = {{{(void *)t.g, (DType)t.g_type}}};
    const int64_t turn = TURN_QUADS * QUAD_STEP;
    double sum = 0;
    for (int64_t begin = ((int)blockIdx.x - t.first) * turn + (int)threadIdx.x * QUAD; begin < t.count; begin += t.parts * turn) {
        float values[TURN_QUADS][1][QUAD];
        elements_load(values, g, begin, t.count, t.aligned);
        UNROLLED(TURN_QUADS)
        for (int q = 0; q < TURN_QUADS; q++)
            for (int i = 0; i < QUAD; i++) sum += (double)values[q][0][i] * (double)values[q][0][i];
    }
    sum = block_sum(sum);
    if (threadIdx.x) return;
    if (s.parts > 1) s.sums[blockIdx.x] = sum;
    else *s.head.square = square_add(t, *s.head.square, sum);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) squares_finish(const __grid_constant__ Squares s) {
    __shared__ double sums[Squares::TENSORS];
    const int lane = (int)threadIdx.x % WARP;
    for (int k = (int)threadIdx.x / WARP; k < s.head.n; k += SUM_WARPS) {
        const SquareTensor &t = s.tensor[k];
        double sum = 0;
        for (int i = lane; i < t.parts; i += WARP) sum += s.sums[t.first + i];
        sum = warp_sum(sum);
        if (lane == 0) sums[k] = sum;
    }
    __syncthreads();
    if (threadIdx.x) return;
    float square = *s.head.square;
    for (int k = 0; k < s.head.n; k++) square = square_add(s.tensor[k], square, sums[k]);
    *s.head.square = square;
}

static __global__ void step_begin_kernel(StepState *state) {
    if (!state->overflow) state->step++;
}

static __global__ void scale_update_kernel(ScalerAttr scaler, StepState *state) { scaler_update(&scaler, state); }

/* ---- on the host */

typedef void UpdateKernel(Update u);

static UpdateKernel *kernel_of(OpKind kind) {
#define EACH(op, ...) \
    if (kind == OP_##op) return update_kernel<OP_##op, rule_at<1, op##_value>, rule_at<4, op##_value>>;
#include "program/optimizers.def"
    return update_kernel<OP_grad_check, grad_check_at<1>, grad_check_at<4>>;
}

static int update_enqueue(CudaDevice *c, OpKind kind, const void *launched, Err *e) {
    const Update *u = (const Update *)launched;
    const dim3 grid((unsigned)min_i64(u->chunks, (int64_t)c->model.processors * MULTIPROCESSOR_BLOCKS));
    return cuda_check(c, launch(kernel_of(kind), grid, dim3(THREADS), c->stream, *u), op_info(kind)->name, e);
}

static int queue_put(const KArgs *a, const QueueHead &head, UpdateTensor t, Err *e) {
    const int64_t chunks = (t.count + CHUNK - 1) / CHUNK;
    void *waits;
    assert(t.count > 0 && t.g && chunks <= INT32_MAX);
    const int code = queue_join(a, &head, Update::TENSORS, update_enqueue, &waits, e);
    if (code) return code;
    Update *u = (Update *)waits;
    t.first = u->chunks;
    u->chunks += (int)chunks;
    u->tensor[u->head.n++] = t;
    return OK;
}

static int update_put(const KArgs *a, Err *e) {
    const View *w = &a->update.w, *master = &a->out[op_master(a->kind)], *weight = master->data ? master : w;
    assert(a->update.g.count == w->count && operand_is_vector(master, w->count));
    UpdateTensor t = {};
    t.g = a->update.g.data;
    t.g_type = (uint8_t)a->update.g.dtype;
    t.weight = weight->data;
    t.type = (uint8_t)weight->dtype;
    t.copy = master->data ? w->data : NULL;
    t.copy_type = (uint8_t)w->dtype;
    t.count = w->count;
    t.vectors = lanes_fit<4>(t.g, a->update.g.dtype, 0) && lanes_fit<4>(t.weight, weight->dtype, 0) &&
                lanes_fit<4>(t.copy, w->dtype, 0);
    for (int k = 1; k < op_master(a->kind); k++) {
        if (!a->out[k].data) continue;
        t.state[k - 1] = a->out[k].data;
        t.state_type = (uint8_t)a->out[k].dtype;
        t.vectors = t.vectors && lanes_fit<4>(a->out[k].data, a->out[k].dtype, 0);
    }
    return queue_put(a, update_head(a), t, e);
}

#define EACH(op, ...) extern "C" int k_cuda_##op(const KArgs *a, Err *e) { return update_put(a, e); }
#include "program/optimizers.def"

extern "C" int k_cuda_grad_check(const KArgs *a, Err *e) {
    QueueHead head = {};
    UpdateTensor t = {};
    head.state = (StepState *)a->grad_check.state.data;
    t.g = a->grad_check.g.data;
    t.g_type = (uint8_t)a->grad_check.g.dtype;
    t.count = a->grad_check.g.count;
    t.vectors = lanes_fit<4>(t.g, a->grad_check.g.dtype, 0);
    return queue_put(a, head, t, e);
}

/* Every op asks for the room of a launch's sums, since they stay until it is enqueued. */
extern "C" int k_cuda_grad_square_prepare(const KArgs *, size_t limit, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = limit < PARTS_MAX * sizeof(double) ? limit : PARTS_MAX * sizeof(double);
    return OK;
}

static int squares_enqueue(CudaDevice *c, OpKind kind, const void *launched, Err *e) {
    const Squares *s = (const Squares *)launched;
    const char *name = op_info(kind)->name;
    const int code = cuda_check(c, launch(squares_kernel, dim3((unsigned)s->parts), dim3(ELEMENT_THREADS), c->stream, *s), name, e);
    if (code || s->parts == 1) return code;
    return cuda_check(c, launch(squares_finish, dim3(1), dim3(ELEMENT_THREADS), c->stream, *s), name, e);
}

/* May `parts` more sums stand in the workspace of op `a`, with those that wait? It must hold them all, and no gradient that waits. */
static bool squares_fit(const KArgs *a, const Squares *waits, int parts) {
    bool fit = (size_t)(waits->parts + parts) <= a->workspace_bytes / sizeof(double);
    for (int k = 0; k < waits->head.n && fit; k++) {
        const SquareTensor *t = &waits->tensor[k];
        fit = !workspace_holds(a, t->g, t->count, (DType)t->g_type);
    }
    return fit;
}

/* The op that waits last lends its workspace: what is enqueued next comes after all of them. */
extern "C" int k_cuda_grad_square(const KArgs *a, Err *e) {
    const View *g = &a->grad_square.g;
    const int parts = (int)sum_parts(g->count, sizeof(double), a->workspace_bytes);
    const Squares *waiting = (const Squares *)queue_waiting(cuda_of(a), a->kind);
    QueueHead head = {};
    void *waits;
    assert(g->data && operand_is_float(g));
    head.square = (float *)a->grad_square.square.data;
    int code = waiting && !squares_fit(a, waiting, parts) ? cuda_flush(cuda_of(a), e) : OK;
    if (!code) code = queue_join(a, &head, Squares::TENSORS, squares_enqueue, &waits, e);
    if (code) return code;
    Squares *s = (Squares *)waits;
    s->tensor[s->head.n++] = SquareTensor{g->data, g->count, a->attr->square.share, s->parts, parts, (uint8_t)g->dtype,
                                          a->attr->square.first != 0, elements_aligned(elements_of(g))};
    s->parts += parts;
    s->sums = (double *)a->workspace;
    return OK;
}

extern "C" int k_cuda_step_begin(const KArgs *a, Err *e) {
    return launch_op(a, e, step_begin_kernel, dim3(1), dim3(1), (StepState *)a->step_begin.state.data);
}

extern "C" int k_cuda_scale_update(const KArgs *a, Err *e) {
    return launch_op(a, e, scale_update_kernel, dim3(1), dim3(1), a->attr->scaler,
                     (StepState *)a->scale_update.state.data);
}
