/* adam8bit.cu: Adam's update with states of 8 bits (quant8.h). A warp takes a block of numbers. Its lanes keep the new
 * states in registers until the largest magnitude, which they are divided by, is known. Many tensors are one launch (queue.h). */
#include "program/quant8.h"
#include "elements.h"
#include "queue.h"

typedef struct CodesTensor {
    void *g, *weight, *copy;       /* copy: 16-bit weights, or NULL */
    uint8_t *code[OPTIM_STATES];
    float *scale;                  /* [states][blocks] */
    int64_t first, blocks;         /* its first block among those of all tensors of the launch, and how many it has */
    Quant8Order order;
    uint8_t g_type, type, copy_type; /* DType */
} CodesTensor;

struct Codes {
    enum { TENSORS = 39 };
    QueueHead head;
    int64_t blocks;
    CodesTensor tensor[TENSORS];
};

static_assert(sizeof(Codes) <= PARAMETER_BYTES, "kernel parameters");

static __device__ inline CodeMap map_of(int state) { return state == 0 ? CODES_SIGNED : CODES_POSITIVE; }

static __device__ inline uint32_t warp_most(uint32_t x) {
    for (int bit = WARP / 2; bit; bit /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, x, bit);
        x = x < other ? other : x;
    }
    return x;
}

/* Element `at`: writes the weight, and its new states to own[STATES]. */
template <int STATES>
static __device__ void number(const CodesTensor &t, const OptimStep &step, const float *scale, int64_t at, float *own) {
    OptimNumber x = {dtype_load((DType)t.type, t.weight, (size_t)at), {}};
    for (int k = 0; k < STATES; k++) x.own[k] = code_value(map_of(k), t.code[k][at]) * scale[k];
    x = adam_value(&step, x, dtype_load((DType)t.g_type, t.g, (size_t)at) * step.unscale);
    for (int k = 0; k < STATES; k++) own[k] = x.own[k];
    dtype_store((DType)t.type, t.weight, (size_t)at, x.w);
    if (t.copy) dtype_store((DType)t.copy_type, t.copy, (size_t)at, x.w);
}

/* EACH: elements of a lane. MANY of them do not fit into registers; the default block size needs FEW. */
template <int STATES, int EACH>
static __global__ void __launch_bounds__(ELEMENT_THREADS) adam8bit_kernel(const __grid_constant__ Codes c) {
    const int lane = (int)threadIdx.x % WARP, size = c.head.rule.block_size;
    const int64_t warps = (int64_t)gridDim.x * (ELEMENT_THREADS / WARP);
    if (c.head.state->overflow) return;
    const OptimStep &step = block_step(c.head);
    for (int64_t all = blockIdx.x * (ELEMENT_THREADS / WARP) + threadIdx.x / WARP; all < c.blocks; all += warps) {
        const CodesTensor &t = c.tensor[tensor_of(c.tensor, c.head.n, all)];
        const int64_t b = all - t.first;
        float own[EACH][STATES], scale[STATES];
        uint32_t most[STATES] = {};
        for (int k = 0; k < STATES; k++) scale[k] = t.scale[k * t.blocks + b];
        UNROLLED(8)
        for (int i = 0; i < EACH; i++) {
            if (lane + i * WARP >= size) continue;
            number<STATES>(t, step, scale, quant8_at(t.order, b * size + lane + i * WARP), own[i]);
            for (int k = 0; k < STATES; k++) {
                const uint32_t magnitude = quant8_magnitude(own[i][k]);
                most[k] = most[k] < magnitude ? magnitude : most[k];
            }
        }
        __syncwarp(); /* all lanes have read the old scales: a shuffle alone does not say so */
        UNROLLED(3)
        for (int k = 0; k < STATES; k++) {
            const float next = quant8_scale(warp_most(most[k])), inverse = 1.0f / next;
            UNROLLED(8)
            for (int i = 0; i < EACH; i++)
                if (lane + i * WARP < size)
                    t.code[k][quant8_at(t.order, b * size + lane + i * WARP)] =
                        (uint8_t)code_of(map_of(k), own[i][k] * inverse);
            if (lane == 0) t.scale[k * t.blocks + b] = next;
        }
    }
}

typedef void CodesKernel(Codes);

static int codes_enqueue(CudaDevice *c, OpKind kind, const void *launched, Err *e) {
    enum { FEW = 8, MANY = CODES_MOST / WARP };
    const Codes *codes = (const Codes *)launched;
    const int64_t blocks = (codes->blocks + ELEMENT_THREADS / WARP - 1) / (ELEMENT_THREADS / WARP);
    const dim3 grid((unsigned)min_i64(blocks, (int64_t)c->model.processors * 64));
    const bool few = codes->head.rule.block_size <= FEW * WARP, three = codes->tensor[0].code[2] != NULL;
    CodesKernel *kernel = three ? few ? adam8bit_kernel<3, FEW> : adam8bit_kernel<3, MANY>
                                : few ? adam8bit_kernel<2, FEW> : adam8bit_kernel<2, MANY>;
    return cuda_check(c, launch(kernel, grid, dim3(ELEMENT_THREADS), c->stream, *codes), op_info(kind)->name, e);
}

extern "C" int k_cuda_adam8bit(const KArgs *a, Err *e) {
    const View *w = &a->adam8bit.w, *g = &a->adam8bit.g, *master = &a->out[op_master(a->kind)], *weight = master->data ? master : w;
    const int size = a->attr->optim.rule.block_size;
    const QueueHead head = update_head(a);
    void *waits;
    assert(g->count == w->count && size > 0 && size <= CODES_MOST && w->count % size == 0);
    assert(!a->out[OPTIM_STATES].data == !head.rule.amsgrad); /* so that the tensors of a launch have as many states */
    const int code = queue_join(a, &head, Codes::TENSORS, codes_enqueue, &waits, e);
    if (code) return code;
    Codes *c = (Codes *)waits;
    CodesTensor *t = &c->tensor[c->head.n++];
    *t = CodesTensor{g->data, weight->data, master->data ? w->data : NULL, {}, (float *)a->out[OPTIM_STATES + 1].data, c->blocks,
                     w->count / size, quant8_order(w), (uint8_t)g->dtype, (uint8_t)weight->dtype, (uint8_t)w->dtype};
    for (int k = 0; k < OPTIM_STATES; k++) t->code[k] = (uint8_t *)a->out[1 + k].data;
    c->blocks += t->blocks;
    return OK;
}
