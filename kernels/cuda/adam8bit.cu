/* adam8bit.cu: Adam's update with states of 8 bits (quant8.h). A warp takes a block of numbers. Its lanes keep the new
 * states in registers until the largest magnitude, which they are divided by, is known. */
#include "program/quant8.h"
#include "elements.h"

typedef struct Job {
    OptimRule rule;
    const StepState *state;
    const float *lr, *square;
    Elements g, weight, copy;      /* copy: 16-bit weights; data NULL: absent */
    uint8_t *code[OPTIM_STATES];
    float *scale;                  /* [states][blocks] */
    int64_t blocks;
    Quant8Order order;
} Job;

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
static __device__ void number(const Job &j, const OptimStep &step, const float *scale, int64_t at, float *own) {
    OptimNumber x = {element_at(j.weight, at), {}};
    for (int k = 0; k < STATES; k++) x.own[k] = code_value(map_of(k), j.code[k][at]) * scale[k];
    x = adam_value(&step, x, element_at(j.g, at) * step.unscale);
    for (int k = 0; k < STATES; k++) own[k] = x.own[k];
    dtype_store(j.weight.type, j.weight.data, (size_t)at, x.w);
    if (j.copy.data) dtype_store(j.copy.type, j.copy.data, (size_t)at, x.w);
}

/* EACH: elements of a lane. MANY of them do not fit into registers; the default block size needs FEW. */
template <int STATES, int EACH> static __global__ void __launch_bounds__(ELEMENT_THREADS) adam8bit_kernel(Job j) {
    const int lane = (int)threadIdx.x % WARP, size = j.rule.block_size;
    const int64_t warps = (int64_t)gridDim.x * (ELEMENT_THREADS / WARP);
    __shared__ OptimStep step;
    if (j.state->overflow) return;
    if (threadIdx.x == 0) {
        const OptimStep now = optim_step(&j.rule, j.state, j.lr, j.square);
        step = now;
    }
    __syncthreads();
    for (int64_t b = blockIdx.x * (ELEMENT_THREADS / WARP) + threadIdx.x / WARP; b < j.blocks; b += warps) {
        float own[EACH][STATES], scale[STATES];
        uint32_t most[STATES] = {};
        for (int k = 0; k < STATES; k++) scale[k] = j.scale[k * j.blocks + b];
        UNROLLED(8)
        for (int i = 0; i < EACH; i++) {
            if (lane + i * WARP >= size) continue;
            number<STATES>(j, step, scale, quant8_at(j.order, b * size + lane + i * WARP), own[i]);
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
                    j.code[k][quant8_at(j.order, b * size + lane + i * WARP)] =
                        (uint8_t)code_of(map_of(k), own[i][k] * inverse);
            if (lane == 0) j.scale[k * j.blocks + b] = next;
        }
    }
}

template <int STATES> static int run(const KArgs *a, Err *e, const Job &j) {
    enum { FEW = 8, MANY = CODES_MOST / WARP };
    const unsigned blocks = blocks_for(a, j.blocks, ELEMENT_THREADS / WARP);
    return j.rule.block_size <= FEW * WARP
               ? launch_op(a, e, adam8bit_kernel<STATES, FEW>, blocks, ELEMENT_THREADS, j)
               : launch_op(a, e, adam8bit_kernel<STATES, MANY>, blocks, ELEMENT_THREADS, j);
}

extern "C" int k_cuda_adam8bit(const KArgs *a, Err *e) {
    const View *w = &a->adam8bit.w, *master = &a->out[op_master(a->kind)];
    assert(a->adam8bit.g.count == w->count && a->attr->optim.rule.block_size > 0);
    assert(a->attr->optim.rule.block_size <= CODES_MOST && w->count % a->attr->optim.rule.block_size == 0);
    Job j = {};
    j.rule = a->attr->optim.rule;
    j.state = (const StepState *)a->adam8bit.state.data;
    j.lr = (const float *)a->adam8bit.lr.data;
    j.square = (const float *)a->adam8bit.square.data;
    j.g = elements_of(&a->adam8bit.g);
    j.weight = elements_of(master->data ? master : w);
    if (master->data) j.copy = elements_of(w);
    for (int k = 0; k < OPTIM_STATES; k++) j.code[k] = (uint8_t *)a->out[1 + k].data;
    j.scale = (float *)a->out[OPTIM_STATES + 1].data;
    j.blocks = w->count / j.rule.block_size;
    j.order = quant8_order(w);
    return j.code[2] ? run<3>(a, e, j) : run<2>(a, e, j);
}
