/* optim.cu: the update: overflow check, step count, optimizers, loss scale.
 *
 * A step has one such op per parameter, and most are small. Consecutive ones of the same kind and rule wait in a queue
 * on the host; they become one launch, with the list of their tensors in the kernel's parameters. cuda_flush launches
 * what waits. The device calls it before anything else is enqueued or waited for. */
#include "sums.h"
#include "base/mem.h"

/* CHUNK: elements that a block takes at a time; no memory holds 2^31 chunks. MULTIPROCESSOR_BLOCKS: of THREADS threads,
 * enough to hide latency. TENSORS: of a launch, at most. */
enum { THREADS = 256, CHUNK = 4096, MULTIPROCESSOR_BLOCKS = 8, TENSORS = 54, PARAMETER_BYTES = 4096 };

/* weight: what the rule works on. copy: the 16-bit weights, if `weight` is their fp32 master, else NULL. state: NULL
 * if it is not kept. grad_check has g alone. */
typedef struct UpdateTensor {
    const void *g;
    void *weight, *copy, *state[OPTIM_STATES];
    int64_t count;
    int first_chunk;                             /* its number among the chunks of all tensors of the launch */
    uint8_t g_type, type, copy_type, state_type; /* DType */
    int vectors;                                 /* four elements may be loaded and stored together */
} UpdateTensor;

typedef struct Update {
    OptimRule rule;
    StepState *state; /* NULL: the rule needs none */
    const float *lr, *square; /* NULL: rule.lr; gradients are not clipped */
    int n, chunks;
    UpdateTensor tensor[TENSORS];
} Update;

static_assert(sizeof(Update) <= PARAMETER_BYTES, "kernel parameters");

struct CudaQueue {
    OpKind kind;
    Update update; /* n tensors wait */
};

/* ---- on the device */

template <int N>
static __device__ void grad_check_at(const Update &u, const UpdateTensor &t, const OptimStep &, int64_t i) {
    float g[N];
    bool bad = false;
    lanes_load<N>((DType)t.g_type, t.g, i, g);
    for (int n = 0; n < N; n++) bad |= (f32_bits(g[n]) & 0x7f800000u) == 0x7f800000u;
    if (bad) atomicExch(&u.state->overflow, 1); /* many threads may find one */
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

/* The tensor that this chunk belongs to: the last one that begins at it or before it. */
static __device__ int tensor_of(const Update &u, int chunk) {
    int low = 0, high = u.n - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (u.tensor[middle].first_chunk <= chunk) low = middle;
        else high = middle - 1;
    }
    return low;
}

typedef void AtFn(const Update &u, const UpdateTensor &t, const OptimStep &step, int64_t i);

/* Blocks stride over the chunks. Adam's powers of beta are the same for all elements and slow to compute: one thread
 * of a block computes them, within optim_step. */
template <int KIND, AtFn *at1, AtFn *at4>
static __global__ void __launch_bounds__(THREADS) update_kernel(const __grid_constant__ Update u) {
    __shared__ OptimStep step;
    if (KIND != OP_grad_check && u.state && u.state->overflow) return;
    if (KIND != OP_grad_check && threadIdx.x == 0) {
        const OptimStep now = optim_step(&u.rule, u.state, u.lr, u.square);
        step = now;
    }
    __syncthreads();
    for (int chunk = (int)blockIdx.x; chunk < u.chunks; chunk += (int)gridDim.x) {
        const UpdateTensor &t = u.tensor[tensor_of(u, chunk)];
        const int64_t begin = (int64_t)(chunk - t.first_chunk) * CHUNK;
        const int64_t end = begin + CHUNK < t.count ? begin + CHUNK : t.count;
        for (int64_t i = begin + 4 * (int64_t)threadIdx.x; i < end; i += 4 * THREADS) {
            if (t.vectors && i + 4 <= end) at4(u, t, step, i);
            else for (int64_t k = i; k < i + 4 && k < end; k++) at1(u, t, step, k);
        }
    }
}

struct GradSquare {
    enum { INPUTS = 1 };
    float *square;
    SquareAttr how;
    __device__ double term(const float (*g)[QUAD], int i) const { return (double)g[0][i] * (double)g[0][i]; }
    __device__ void store(double sum) const {
        *square = (float)((how.first ? 0.0 : (double)*square) + (double)how.share * sum);
    }
};

static __global__ void step_begin_kernel(StepState *state) {
    if (!state->overflow) state->step++;
}

static __global__ void scale_update_kernel(ScalerAttr scaler, StepState *state) { scaler_update(&scaler, state); }

/* ---- on the host */

extern "C" void cuda_queue_free(CudaQueue *queue) { mem_free(queue); }

typedef void UpdateKernel(Update u);

static UpdateKernel *kernel_of(OpKind kind) {
#define EACH(op, ...) \
    if (kind == OP_##op) return update_kernel<OP_##op, rule_at<1, op##_value>, rule_at<4, op##_value>>;
#include "program/optimizers.def"
    return update_kernel<OP_grad_check, grad_check_at<1>, grad_check_at<4>>;
}

extern "C" int cuda_flush(CudaDevice *c, Err *e) {
    CudaQueue *q = c->queue;
    if (!q || !q->update.n) return OK;
    const int64_t most = (int64_t)c->model.processors * MULTIPROCESSOR_BLOCKS;
    const dim3 grid((unsigned)min_i64(q->update.chunks, most));
    const char *name = op_info(q->kind)->name;
    const int code = cuda_check(c, launch(kernel_of(q->kind), grid, dim3(THREADS), c->stream, q->update), name, e);
    q->update.n = 0; /* also after a failure: nothing is launched twice */
    return code;
}

/* Makes room for one more tensor of this op's kind and rule. */
static int queue_ready(const KArgs *a, const OptimRule *rule, StepState *state, Err *e) {
    const bool updates = a->kind != OP_grad_check;
    const float *lr = updates ? (const float *)a->update.lr.data : NULL;
    const float *square = updates ? (const float *)a->update.square.data : NULL;
    CudaDevice *c = cuda_of(a);
    if (!c->queue) c->queue = (CudaQueue *)mem_new(sizeof *c->queue);
    if (!c->queue) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *c->queue);
    CudaQueue *q = c->queue;
    Update *u = &q->update;
    const bool same = q->kind == a->kind && u->state == state && u->lr == lr && u->square == square &&
                      !memcmp(&u->rule, rule, sizeof *rule);
    if (u->n && (!same || u->n == TENSORS)) {
        const int code = cuda_flush(c, e);
        if (code) return code;
    }
    if (!u->n) u->chunks = 0;
    q->kind = a->kind;
    u->rule = *rule;
    u->state = state;
    u->lr = lr;
    u->square = square;
    return OK;
}

static int queue_put(const KArgs *a, const OptimRule *rule, StepState *state, UpdateTensor t, Err *e) {
    const int64_t chunks = (t.count + CHUNK - 1) / CHUNK;
    assert(t.count > 0 && t.g && chunks <= INT32_MAX);
    const int code = queue_ready(a, rule, state, e);
    if (code) return code;
    Update *u = &cuda_of(a)->queue->update;
    t.first_chunk = u->chunks;
    u->chunks += (int)chunks;
    u->tensor[u->n++] = t;
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
    return queue_put(a, &a->attr->optim.rule, (StepState *)a->update.state.data, t, e);
}

#define EACH(op, ...) extern "C" int k_cuda_##op(const KArgs *a, Err *e) { return update_put(a, e); }
#include "program/optimizers.def"

extern "C" int k_cuda_grad_check(const KArgs *a, Err *e) {
    const OptimRule none = {};
    UpdateTensor t = {};
    t.g = a->grad_check.g.data;
    t.g_type = (uint8_t)a->grad_check.g.dtype;
    t.count = a->grad_check.g.count;
    t.vectors = lanes_fit<4>(t.g, a->grad_check.g.dtype, 0);
    return queue_put(a, &none, (StepState *)a->grad_check.state.data, t, e);
}

extern "C" int k_cuda_grad_square_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *) {
    *state = NULL;
    *workspace = sum_workspace(a->grad_square.g.count, sizeof(double), limit);
    return OK;
}

extern "C" int k_cuda_grad_square(const KArgs *a, Err *e) {
    const ElementsOf<1> g = {{elements_of(&a->grad_square.g)}};
    return sum_run(a, e, GradSquare{(float *)a->grad_square.square.data, a->attr->square}, g,
                   a->grad_square.g.count);
}

extern "C" int k_cuda_step_begin(const KArgs *a, Err *e) {
    return launch_op(a, e, step_begin_kernel, dim3(1), dim3(1), (StepState *)a->step_begin.state.data);
}

extern "C" int k_cuda_scale_update(const KArgs *a, Err *e) {
    return launch_op(a, e, scale_update_kernel, dim3(1), dim3(1), a->attr->scaler,
                     (StepState *)a->scale_update.state.data);
}
