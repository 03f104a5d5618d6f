#include "quantize.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "math/quantized.h"

/* ---- the maps */

/* NF4: quantiles of the normal distribution, from Dettmers et al. 2023 (QLoRA), appendix E. FP4: of sign, 2 bits of
 * exponent and 1 of mantissa, divided by the largest number, which is 12. */
static const float nf4[QUANT_MAP] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
    -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
    0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
static const float fp4[QUANT_MAP / 2] = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};

void quant_map(QuantFormat format, float map[16]) {
    for (int i = 0; i < QUANT_MAP; i++)
        map[i] = format == QUANT_NF4 ? nf4[i] : (i < 8 ? fp4[i] : 0.0f - fp4[i - 8]) / 12.0f;
}

/* Boundary k of the n + 1 that spread evenly from 0.1 to 1, with the roundings of torch.linspace */
static float boundary(int k, int n) {
    const float step = (1.0f - 0.1f) / (float)n;
    return k < (n + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(n - k), 1.0f);
}

/* The number in the middle between boundaries i and i + 1 */
static float middle(int i, int n) { return (boundary(i, n) + boundary(i + 1, n)) / 2.0f; }

/* The dynamic map of Dettmers 2015 (8-Bit Approximations for Parallelism in Deep Learning), ascending: 0 and 1, and in
 * each decade j below 1 2^j numbers of each sign. */
void quant_nested_map(float map[256]) {
    enum { ZERO = 127, DECADES = 7 };
    map[ZERO] = 0.0f;
    map[QUANT_NESTED_MAP - 1] = 1.0f;
    for (int j = 0, at = ZERO + 1; j < DECADES; j++)
        for (int i = 0; i < 1 << j; i++, at++) {
            map[at] = (float)pow(10.0, j + 1 - DECADES) * middle(i, 1 << j);
            map[2 * ZERO - at] = -map[at];
        }
}

/* ---- 4 bits */

/* A map in ascending order, which code each of its numbers has, and the bounds between neighbours. */
typedef struct Ladder { float bound[QUANT_MAP - 1]; uint8_t code[QUANT_MAP]; } Ladder;

static Ladder ladder_of(const float map[QUANT_MAP]) {
    Ladder l = {{0}, {0}};
    for (int i = 0; i < QUANT_MAP; i++) { /* equal numbers keep their order */
        int at = i;
        for (; at > 0 && map[l.code[at - 1]] > map[i]; at--) l.code[at] = l.code[at - 1];
        l.code[at] = (uint8_t)i;
    }
    for (int i = 0; i + 1 < QUANT_MAP; i++) l.bound[i] = (map[l.code[i]] + map[l.code[i + 1]]) / 2.0f;
    return l;
}

static uint8_t code_of_ladder(const Ladder *l, float x) {
    int above = 0;
    for (int i = 0; i + 1 < QUANT_MAP; i++) above += l->bound[i] < x;
    return l->code[above];
}

static float largest(const float *x, int64_t n) {
    float most = 0.0f;
    for (int64_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* The codes of one block. bitsandbytes divides in a block that is not whole, and multiplies by the
 * reciprocal in the others. Returns absmax. */
static float quantize_block(const Ladder *l, const float *x, int64_t n, uint8_t *code) {
    const float tiny = 1e-38f, most = largest(x, n), scale = most < tiny ? tiny : most;
    for (int64_t i = 0; i < n; i++) {
        const float share = n < QUANT_BLOCK ? x[i] / scale : x[i] * (1.0f / scale);
        code[i] = code_of_ladder(l, share < -1.0f ? -1.0f : share > 1.0f ? 1.0f : share);
    }
    return n < QUANT_BLOCK ? scale : most;
}

static void quantize_blocks(const Ladder *l, const float *x, int64_t n, uint8_t *codes, float *absmax) {
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < quant4_blocks(n); b++) {
        const int64_t first = b * QUANT_BLOCK, count = min_i64(QUANT_BLOCK, n - first);
        uint8_t code[QUANT_BLOCK + 1] = {0};
        absmax[b] = quantize_block(l, x + first, count, code);
        if (count & 1) code[count] = code_of_ladder(l, 0.0f); /* the last byte's second half */
        for (int64_t i = 0; i < count; i += 2) codes[(first + i) / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
    }
}

/* ---- double quantisation */

/* Sums as torch.sum adds fp32 numbers that lie side by side, on one thread: in 4 x 8 columns, each of which adds up rows
 * of 2^p, then sums of those, on 4 levels (ATen/native/cpu/SumKernel.cpp, cascade_sum). */
enum { LANES = 8, CHAINS = 4, LEVELS = 4 };

/* Sum of `rows` numbers from x on, `stride` apart. */
static float cascade(const float *x, int64_t rows, int64_t stride) {
    int log = 0;
    while ((int64_t)1 << log < rows) log++;
    const int power = log / LEVELS > 4 ? log / LEVELS : 4;
    const int64_t step = (int64_t)1 << power, mask = step - 1;
    float level[LEVELS] = {0};
    int64_t i = 0;
    while (i + step <= rows) {
        for (int64_t j = 0; j < step; j++, i++) level[0] += x[i * stride];
        for (int k = 1; k < LEVELS; k++) {
            level[k] += level[k - 1];
            level[k - 1] = 0.0f;
            if (i & mask << k * power) break;
        }
    }
    for (; i < rows; i++) level[0] += x[i * stride];
    for (int k = 1; k < LEVELS; k++) level[0] += level[k];
    return level[0];
}

static float torch_sum(const float *x, int64_t n) {
    const int64_t words = n / LANES, rows = words / CHAINS;
    float lane[LANES], sum = 0.0f;
    for (int k = 0; k < LANES; k++) {
        float chain[CHAINS];
        for (int c = 0; c < CHAINS; c++) chain[c] = cascade(x + c * LANES + k, rows, LANES * CHAINS);
        for (int64_t i = rows * CHAINS; i < words; i++) chain[0] += x[i * LANES + k];
        for (int c = 1; c < CHAINS; c++) chain[0] += chain[c];
        lane[k] = chain[0];
    }
    for (int64_t i = words * LANES; i < n; i++) sum += x[i];
    for (int k = 0; k < LANES; k++) sum += lane[k];
    return sum;
}

/* The code of x, -1 <= x <= 1: of the number that is nearest to x's nearest neighbour among 65,536 even steps, which is how
 * bitsandbytes' function for the CPU looks it up: for 4 of 1,000 numbers it is not the code that is nearest to x. */
static uint8_t nested_code(const float map[QUANT_NESTED_MAP], float x) {
    const float steps = 65535.0f;
    const int i = (int)fmaf((x + 1.0f) * 0.5f, steps, 0.5f);
    const float step = (float)(2 * i) / steps - 1.0f;
    int low = 0, high = QUANT_NESTED_MAP - 1; /* the code is the number of bounds below `step` */
    while (low < high) {
        const int half = (low + high) / 2;
        if ((map[half] + map[half + 1]) * 0.5f < step) low = half + 1;
        else high = half;
    }
    return (uint8_t)low;
}

static void quantize_absmax(float *absmax, int64_t blocks, void *const part[QUANT_PARTS]) {
    const float *map = part[QUANT_NESTED_QUANT_MAP], offset = torch_sum(absmax, blocks) / (float)blocks;
    uint8_t *codes = part[QUANT_ABSMAX];
    float *nested = part[QUANT_NESTED_ABSMAX];
    *(float *)part[QUANT_NESTED_OFFSET] = offset;
    for (int64_t b = 0; b < blocks; b++) absmax[b] -= offset;
    for (int64_t k = 0; k < quant4_nested(blocks); k++) {
        const int64_t first = k * QUANT_NESTED, count = min_i64(QUANT_NESTED, blocks - first);
        nested[k] = largest(absmax + first, count);
        const float scale = 1.0f / nested[k];
        for (int64_t i = first; i < first + count; i++)
            codes[i] = nested[k] > 0.0f ? nested_code(map, fmaxf(-1.0f, fminf(1.0f, absmax[i] * scale))) : 0;
    }
}

static bool quantize_4bit(const Quantization *q, const float *values, void *const part[QUANT_PARTS]) {
    const int64_t n = shape_elements(&q->shape), blocks = quant4_blocks(n);
    quant_map(q->format, part[QUANT_QUANT_MAP]);
    const Ladder ladder = ladder_of(part[QUANT_QUANT_MAP]);
    float *absmax = q->nested ? mem_new((size_t)blocks * sizeof *absmax) : part[QUANT_ABSMAX];
    if (!absmax) return false;
    quantize_blocks(&ladder, values, n, part[QUANT_CODES], absmax);
    if (!q->nested) return true;
    quant_nested_map(part[QUANT_NESTED_QUANT_MAP]);
    quantize_absmax(absmax, blocks, part);
    mem_free(absmax);
    return true;
}

/* ---- 8 bits: of weights that are rounded to fp16 first */

static bool quantize_8bit(const Quantization *q, const float *values, void *const part[QUANT_PARTS]) {
    const int64_t rows = q->shape.dim[0], columns = q->shape.dim[1];
    float *scb = part[QUANT_ABSMAX];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *x = values + r * columns;
        int8_t *code = (int8_t *)part[QUANT_CODES] + r * columns;
        scb[r] = f16_widen(f16_from_f32(largest(x, columns)));
        const float scale = scb[r] > 0.0f ? 1.0f / scb[r] * 127.0f : 0.0f;
        for (int64_t i = 0; i < columns; i++) code[i] = (int8_t)nearbyintf(f16_widen(f16_from_f32(x[i])) * scale);
    }
    return true;
}

void dequantize(const Quantization *q, void *const part[QUANT_PARTS], float *values) {
    const Quantized w = {part[QUANT_CODES], part[QUANT_ABSMAX], part[QUANT_QUANT_MAP], part[QUANT_NESTED_ABSMAX],
                         part[QUANT_NESTED_QUANT_MAP], part[QUANT_NESTED_OFFSET], q->shape.dim[1]};
    const int64_t n = shape_elements(&q->shape);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) values[i] = quantized_weight(&w, i);
}

bool quantize(const Quantization *q, const float *values, void *const part[QUANT_PARTS]) {
    return q->format == QUANT_INT8 ? quantize_8bit(q, values, part) : quantize_4bit(q, values, part);
}
