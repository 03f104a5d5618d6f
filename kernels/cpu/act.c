/* act.c: activations, GLU and their gradients, by the formulas of core/math/pointwise.h. */
#include "act.h"

#include "parallel.h"
#include "vector_math.h"

/* One loop per activation: the choice is made before the loop. */
#define LOOP(name, set)                                        \
    case ACT_##name: {                                         \
        const ActAttr a = act_as(*f, ACT_##name);              \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) set; \
        break;                                                 \
    }

FUSED HOT void act_block(const ActAttr *f, float *y, const float *x, int64_t n) {
    switch (f->act) {
#define X(name, text, saved) LOOP(name, y[i] = act_value(a, x[i]))
        ACTS(X)
#undef X
    default: break;
    }
}

FUSED HOT void act_slope_block(const ActAttr *f, float *slope, const float *s, int64_t n) {
    switch (f->act) {
#define X(name, text, saved) LOOP(name, slope[i] = act_slope(a, s[i]))
        ACTS(X)
#undef X
    default: break;
    }
}

FUSED HOT void act_dx_block(const ActAttr *f, float *dx, const float *dy, const float *s, int64_t n) {
    switch (f->act) {
#define X(name, text, saved) LOOP(name, dx[i] = dy[i] * act_slope(a, s[i]))
        ACTS(X)
#undef X
    default: break;
    }
}

void act_rounded_block(const MulAttr *f, float *y, const float *x, int64_t n) {
    act_block(&f->f, y, x, n);
    block_round(f->of, y, n);
}

static void act_piece(const KArgs *a, int64_t begin, int64_t end) {
    float from[BLOCK], to[BLOCK];
    float *y = block_target(&a->act.y, begin, to);
    act_block(&a->attr->act, y, block_load(&a->act.x, begin, end - begin, from), end - begin);
    block_store(&a->act.y, begin, end - begin, y);
}

static void act_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    float gradient[BLOCK], saved[BLOCK], to[BLOCK];
    const float *dy = block_load(&a->act_dx.dy, begin, end - begin, gradient);
    const float *s = block_load(&a->act_dx.s, begin, end - begin, saved);
    float *dx = block_target(&a->act_dx.dx, begin, to);
    act_dx_block(&a->attr->act, dx, dy, s, end - begin);
    block_store(&a->act_dx.dx, begin, end - begin, dx);
}

/* da may lie where b lies; dy and a lie elsewhere. */
static void mul_da_piece(const KArgs *a, int64_t begin, int64_t end) {
    const MulAttr *f = &a->attr->mul;
    float one[BLOCK], two[BLOCK], saved[BLOCK], product[BLOCK], to[BLOCK];
    const int64_t n = end - begin;
    block_multiply(product, block_load(&a->mul_da.b, begin, n, one), block_load(&a->mul_da.dy, begin, n, two), n);
    block_round(f->of, product, n);
    float *da = block_target(&a->mul_da.da, begin, to);
    act_dx_block(&f->f, da, product, block_load(&a->mul_da.a, begin, n, saved), n);
    block_store(&a->mul_da.da, begin, n, da);
}

int k_cpu_mul_da(const KArgs *a, Err *e) {
    (void)e;
    assert(a->mul_da.b.count == a->mul_da.da.count && a->mul_da.dy.count == a->mul_da.da.count);
    assert(a->mul_da.a.count == a->mul_da.da.count && a->attr->mul.f.act < ACT_COUNT);
    blocks_run(a, a->mul_da.da.count, mul_da_piece);
    return OK;
}

int k_cpu_act(const KArgs *a, Err *e) {
    (void)e;
    assert(a->act.x.count == a->act.y.count && a->attr->act.act < ACT_COUNT);
    blocks_run(a, a->act.y.count, act_piece);
    return OK;
}

int k_cpu_act_dx(const KArgs *a, Err *e) {
    (void)e;
    assert(a->act_dx.dy.count == a->act_dx.dx.count && a->act_dx.s.count == a->act_dx.dx.count);
    assert(a->attr->act.act < ACT_COUNT);
    blocks_run(a, a->act_dx.dx.count, act_dx_piece);
    return OK;
}

/* ---- GLU. x is seen as (outer, axis, inner) in the order in which it lies: of each outer index there is a run of a, then
 *      one of b, each as long as that of y. */

static int64_t half_run(const KArgs *a, const View *half) {
    int64_t outer, inner;
    view_split(half, a->attr->axis.axis, &outer, &inner);
    return half->count / outer;
}

HOT static void glu_block(float *y, const float *a, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = glu_value(a[i], b[i]);
}

/* da may be a, and db b. */
HOT static void glu_dx_block(float *da, float *db, const float *a, const float *b, const float *dy, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float of_a, of_b;
        glu_slopes(a[i], b[i], dy[i], &of_a, &of_b);
        da[i] = of_a;
        db[i] = of_b;
    }
}

static void glu_piece(const KArgs *a, int64_t begin, int64_t end) {
    const int64_t run = half_run(a, &a->glu.y);
    float one[BLOCK], two[BLOCK], to[BLOCK];
    for (int64_t at = begin, n; at < end; at += n) {
        const int64_t whole = at + at / run * run;
        n = min_i64(end - at, run - at % run);
        float *y = block_target(&a->glu.y, at, to);
        glu_block(y, block_load(&a->glu.x, whole, n, one), block_load(&a->glu.x, whole + run, n, two), n);
        block_store(&a->glu.y, at, n, y);
    }
}

static void glu_dx_piece(const KArgs *a, int64_t begin, int64_t end) {
    const int64_t run = half_run(a, &a->glu_dx.dy);
    const View *x = &a->glu_dx.x, *dx = &a->glu_dx.dx;
    float one[BLOCK], two[BLOCK], gradient[BLOCK], to_a[BLOCK], to_b[BLOCK];
    for (int64_t at = begin, n; at < end; at += n) {
        const int64_t whole = at + at / run * run;
        n = min_i64(end - at, run - at % run);
        float *da = block_target(dx, whole, to_a), *db = block_target(dx, whole + run, to_b);
        glu_dx_block(da, db, block_load(x, whole, n, one), block_load(x, whole + run, n, two),
                     block_load(&a->glu_dx.dy, at, n, gradient), n);
        block_store(dx, whole, n, da);
        block_store(dx, whole + run, n, db);
    }
}

int k_cpu_glu(const KArgs *a, Err *e) {
    (void)e;
    assert(a->glu.x.count == 2 * a->glu.y.count);
    blocks_run(a, a->glu.y.count, glu_piece);
    return OK;
}

int k_cpu_glu_dx(const KArgs *a, Err *e) {
    (void)e;
    assert(a->glu_dx.dx.count == 2 * a->glu_dx.dy.count && a->glu_dx.x.count == a->glu_dx.dx.count);
    blocks_run(a, a->glu_dx.dy.count, glu_dx_piece);
    return OK;
}

/* ---- slopes as bits */

enum { WORD = 32 /* bits */ };

/* The two values of f', if it has no others. */
static bool two_slopes(const ActAttr *f, float value[2]) {
    value[0] = f->act == ACT_LEAKY ? f->slope : 0.0f;
    value[1] = f->act == ACT_HARDSIGMOID ? 1.0f / 6.0f : 1.0f;
    switch (f->act) {
    case ACT_RELU: case ACT_LEAKY: case ACT_RELU6: case ACT_HARDTANH: case ACT_CLAMP: case ACT_HARDSIGMOID: return true;
    default: return false;
    }
}

bool act_has_bits(const ActAttr *f) {
    float value[2];
    return two_slopes(f, value);
}

bool act_slopes_fit(const ActAttr *f, DType type) {
    float value[2];
    if (type == DT_F32) return true;
    if (!two_slopes(f, value)) return false;
    for (int k = 0; k < 2; k++) {
        float kept;
        dtype_store(type, &kept, 0, value[k]);
        if (dtype_load(type, &kept, 0) != value[k]) return false;
    }
    return true;
}

/* Whole words, and what bits_slopes reads after the last one */
size_t act_bits_bytes(const View *s) { return (size_t)div_up(s->count, WORD) * sizeof(uint32_t) + sizeof(uint64_t); }

/* Bit i of the words: is slope[i] that value? n: a multiple of WORD */
HOT static void slopes_bits(const float *slope, float value, int64_t n, uint32_t *words) {
    for (int64_t i = 0; i < n; i += WORD) {
        uint32_t word = 0;
#pragma omp simd reduction(| : word)
        for (int k = 0; k < WORD; k++) word |= (uint32_t)(slope[i + k] == value) << k;
        words[i / WORD] = word;
    }
}

/* slope[n]: those whose bits begin with number `at`. n is rounded up to a multiple of WORD. */
HOT static void bits_slopes(const char *bits, int64_t at, int64_t n, const float value[2], float *slope) {
    const float no = value[0], yes = value[1];
    for (int64_t i = 0; i < n; i += WORD) {
        uint64_t two;
        memcpy(&two, bits + (at + i) / 8, sizeof two);
        const uint32_t word = (uint32_t)(two >> (at + i) % 8);
#pragma omp simd
        for (int k = 0; k < WORD; k++) slope[i + k] = word >> k & 1 ? yes : no;
    }
}

typedef struct Bits { const ActAttr *f; const View *s; uint32_t *bits; float value[2]; } Bits;

static void bits_block(const void *of, int64_t block) {
    const Bits *b = of;
    float from[BLOCK], slope[BLOCK];
    const int64_t at = block * BLOCK, n = min_i64(BLOCK, b->s->count - at), whole = div_up(n, WORD) * WORD;
    act_slope_block(b->f, slope, block_load(b->s, at, n, from), n);
    for (int64_t i = n; i < whole; i++) slope[i] = b->value[0];
    slopes_bits(slope, b->value[1], whole, b->bits + at / WORD);
}

void act_bits(const ActAttr *f, const View *s, void *bits) {
    Bits b = {f, s, bits, {0}};
    const bool two = two_slopes(f, b.value);
    assert(two && (uintptr_t)bits % sizeof(uint32_t) == 0);
    (void)two;
    pieces_run(&b, div_up(s->count, BLOCK), bits_block);
}

/* ---- after a product */

/* A thread takes whole parts: each has at least PART elements, and there are at most PARTS. */
enum { PART = 32768, PARTS = 64 };

static int64_t part_rows(const View *dx, int64_t channels) {
    return max_i64(div_up(dx->count / channels, PARTS), div_up(PART, channels));
}

static int64_t part_count(const View *dx, int64_t channels) {
    return div_up(dx->count / channels, part_rows(dx, channels));
}

size_t act_dx_parts(const View *dx, const View *db) {
    return db->count ? (size_t)(part_count(dx, db->count) * db->count) * sizeof(float) : 0;
}

void sum_parts(const View *db, const float *parts, int64_t n) {
    for (int64_t c = 0; c < db->count; c++) {
        float sum = parts[c];
        for (int64_t k = 1; k < n; k++) sum += parts[k * db->count + c];
        dtype_store(db->dtype, db->data, (size_t)c, sum);
    }
}

/* What dx is made of: act_dx_sums's; parts of so many rows of C channels, whose sums lie in `parts`, or NULL */
typedef struct Slopes {
    const ActAttr *act;
    const View *dy, *s, *dx;
    const void *bits;
    int64_t rows, each, channels;
    float *parts, value[2];
} Slopes;

/* From element `at` on, `rows` rows of `n` neighbouring channels: at most BLOCK elements. Where there is more than one
 * row, n is all channels. */
static void dx_rows(const Slopes *f, int64_t at, int64_t rows, int64_t n, float *sums) {
    float gradient[BLOCK], saved[BLOCK], to[BLOCK], *out = block_target(f->dx, at, to);
    const float *dy = block_load(f->dy, at, rows * n, gradient);
    if (f->bits) {
        bits_slopes(f->bits, at, rows * n, f->value, saved);
        block_multiply(out, dy, saved, rows * n);
    } else {
        act_dx_block(f->act, out, dy, block_load(f->s, at, rows * n, saved), rows * n);
    }
    if (sums) sum_rows(sums, out, rows, n);
    block_store(f->dx, at, rows * n, out);
}

/* A block is as many rows as fit, or a part of one row. */
static void dx_part(const void *of, int64_t part) {
    const Slopes *f = of;
    const int64_t channels = f->channels, begin = part * f->each, end = min_i64((part + 1) * f->each, f->rows);
    const int64_t step = channels < BLOCK ? BLOCK / channels : 1;
    float *sums = f->parts ? f->parts + part * channels : NULL;
    if (sums) memset(sums, 0, (size_t)channels * sizeof *sums);
    for (int64_t row = begin; row < end; row += step)
        for (int64_t c = 0; c < channels; c += BLOCK)
            dx_rows(f, row * channels + c, min_i64(step, end - row), min_i64(BLOCK, channels - c), sums ? sums + c : NULL);
}

void act_dx_sums(const ActAttr *act, const View *dy, const View *s, const void *bits, const View *dx, const View *db, float *parts) {
    const int64_t channels = db->count ? db->count : 1, n = part_count(dx, channels);
    Slopes f = {act, dy, s, dx, bits, dx->count / channels, part_rows(dx, channels), channels, db->count ? parts : NULL, {0}};
    assert(dy->count == dx->count && s->count == dx->count && dx->count % channels == 0 && act->act < ACT_COUNT);
    if (bits) two_slopes(act, f.value);
    pieces_run(&f, n, dx_part);
    if (db->count) sum_parts(db, parts, n);
}
