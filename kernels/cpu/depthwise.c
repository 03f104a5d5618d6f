#include "depthwise.h"

#include "lanes.h"
#include "program/operands.h"

/* COLUMNS, ROW: columns of dy and of x that are packed at a time. TAPS: whose sums are in registers. MOST, EACH: taps
 * and channels of a group, at most. PIECES: of work, about. */
enum { COLUMNS = 128, ROW = 512, TAPS = 7, MOST = 256, EACH = 4, PIECES = 32, LEAST_CHANNELS = 8 };

typedef struct Depthwise {
    const ConvAttr *attr;
    View x, dy;
    int64_t channels, w, h, ow, oh, rows; /* rows: of dy, of all samples */
    int64_t kh, kw, taps, columns, each;  /* each: channels of a group */
    int64_t blocks, runs, sums;           /* sums: of a piece, in vectors */
} Depthwise;

static Depthwise depthwise_of(const KArgs *args, size_t bytes) {
    const ConvAttr *a = &args->attr->conv;
    const int64_t *x = args->conv2d_dw.x.shape.dim, *y = args->conv2d_dw.dy.shape.dim;
    const int64_t *w = args->conv2d_dw.dw.shape.dim;
    Depthwise d = {.attr = a, .x = args->conv2d_dw.x, .dy = args->conv2d_dw.dy, .channels = x[1], .w = x[3],
                   .h = x[2], .ow = y[3], .oh = y[2], .rows = y[0] * y[2], .kh = w[2], .kw = w[3], .taps = w[2] * w[3],
                   .each = w[1], .blocks = div_up(x[1], LANES)};
    d.columns = min_i64(COLUMNS, (ROW - 1 - (d.kw - 1) * a->dilation[1]) / a->stride[1] + 1);
    d.sums = d.each * d.taps + 1;
    d.runs = min_i64(min_i64(div_up(PIECES, d.blocks), d.rows),
                     (int64_t)(bytes / ((size_t)(d.blocks * d.sums) * sizeof(V))));
    return d;
}

/* oneDNN is as fast at groups of one channel with undilated kernels of up to 3x3. */
static bool leaves(const ConvAttr *a, const int64_t *w) {
    return w[1] == 1 && w[2] <= 3 && w[3] <= 3 && a->dilation[0] == 1 && a->dilation[1] == 1;
}

bool depthwise_prepare(const KArgs *args, size_t limit, size_t *bytes) {
    const View *x = &args->conv2d_dw.x, *dy = &args->conv2d_dw.dy, *w = &args->conv2d_dw.dw;
    const ConvAttr *a = &args->attr->conv;
    const int64_t *dim = w->shape.dim, channels = x->shape.dim[1];
    if (args->kind != OP_conv2d_dw || !x->channels_last || !dy->channels_last || leaves(a, dim)) return false;
    if (channels != dim[0] || channels < LEAST_CHANNELS || dim[1] > EACH || LANES % dim[1]) return false;
    if (dim[1] * dim[2] * dim[3] > MOST || (dim[3] - 1) * a->dilation[1] >= ROW) return false;
    Depthwise d = depthwise_of(args, limit);
    *bytes = (size_t)(d.runs * d.blocks * d.sums) * sizeof(V);
    return d.runs > 0;
}

/* to (pixels, LANES) = n channels of pixels `step` elements apart, 0 beyond n */
INLINE void pack(DType t, const void *from, int64_t at, int64_t step, int64_t pixels, int64_t n, float *to) {
    const float *wide = (const float *)from + at;
    const uint16_t *narrow = (const uint16_t *)from + at;
    for (int64_t p = 0; p < pixels; p++, wide += step, narrow += step, at += step, to += LANES) {
        if (n == LANES && t == DT_F32)
            *(V *)to = *(const V *)wide;
        else if (n == LANES && t == DT_BF16)
            for (int i = 0; i < LANES; i++) to[i] = bf16_to_f32(narrow[i]);
        else
            for (int i = 0; i < LANES; i++) to[i] = i < n ? dtype_load(t, from, (size_t)(at + i)) : 0.0f;
    }
}

/* sums[k] += sum over p < m of dy[p] x[p step + k shift], for q taps */
INLINE void meet(const float *x, const float *dy, int64_t m, int64_t step, int64_t shift, int q, V *sums) {
    V a[TAPS];
    for (int k = 0; k < q; k++) a[k] = sums[k];
    for (int64_t p = 0; p < m; p++, x += step * LANES) {
        V d = *(const V *)(dy + p * LANES);
        for (int k = 0; k < q; k++) a[k] += d * *(const V *)(x + k * shift * LANES);
    }
    for (int k = 0; k < q; k++) sums[k] = a[k];
}

INLINE void meet_taps(const float *x, const float *dy, int64_t m, int64_t step, int64_t shift, int64_t taps, V *sums) {
    for (; taps > 0; taps -= TAPS, sums += TAPS, x += TAPS * shift * LANES) {
        switch (taps) {
        case 1: meet(x, dy, m, step, shift, 1, sums); break;
        case 2: meet(x, dy, m, step, shift, 2, sums); break;
        case 3: meet(x, dy, m, step, shift, 3, sums); break;
        case 4: meet(x, dy, m, step, shift, 4, sums); break;
        case 5: meet(x, dy, m, step, shift, 5, sums); break;
        case 6: meet(x, dy, m, step, shift, 6, sums); break;
        default: meet(x, dy, m, step, shift, TAPS, sums);
        }
    }
}

/* `columns` columns of a row of x from column `first` on; 0 where they lie in the padding */
INLINE void pack_row(const Depthwise *d, int64_t row, int64_t first, int64_t columns, int64_t c, int64_t n, float *to) {
    int64_t lo = min_i64(max_i64(first, 0), first + columns), hi = max_i64(min_i64(first + columns, d->w), lo);
    memset(to, 0, (size_t)((lo - first) * LANES) * sizeof *to);
    pack(d->x.dtype, d->x.data, (row * d->w + lo) * d->channels + c, d->channels, hi - lo, n,
         to + (lo - first) * LANES);
    memset(to + (hi - first) * LANES, 0, (size_t)((first + columns - hi) * LANES) * sizeof *to);
}

/* Rotates channels within their groups of `each`: the next one takes a channel's place. */
INLINE void turn_groups(float *dy, int64_t pixels, int each) {
    typedef int32_t Places __attribute__((vector_size(4 * LANES)));
    Places next = {0};
    for (int i = 0; i < LANES; i++) next[i] = i / each * each + (i + 1) % each;
    for (int64_t p = 0; p < pixels; p++) *(V *)(dy + p * LANES) = __builtin_shuffle(*(V *)(dy + p * LANES), next);
}

/* Adds to the sums (each, taps) the products of m columns of a row of dy (each, COLUMNS, LANES), from column o on, with
 * the pixels of x that they meet. */
INLINE void meet_rows(const Depthwise *d, int64_t row, int64_t o, int64_t m, int64_t c, const float *dy, V *sums) {
    float x[ROW * LANES];
    const ConvAttr *a = d->attr;
    int64_t first = o * a->stride[1] - a->pad[1], columns = (m - 1) * a->stride[1] + (d->kw - 1) * a->dilation[1] + 1;
    for (int64_t k = 0; k < d->kh; k++) {
        int64_t i = row % d->oh * a->stride[0] - a->pad[0] + k * a->dilation[0];
        if (i < 0 || i >= d->h) continue;
        pack_row(d, row / d->oh * d->h + i, first, columns, c, min_i64(LANES, d->channels - c), x);
        for (int64_t e = 0; e < d->each; e++)
            meet_taps(x, dy + e * COLUMNS * LANES, m, a->stride[1], a->dilation[1], d->kw,
                      sums + e * d->taps + k * d->kw);
    }
}

/* sums (each, taps), then that of db, of LANES channels from c on, over rows [begin, end) of dy */
FUSED static void piece(const Depthwise *d, int64_t c, int64_t begin, int64_t end, V *sums) {
    float dy[EACH * COLUMNS * LANES];
    memset(sums, 0, (size_t)d->sums * sizeof *sums);
    for (int64_t row = begin; row < end; row++) {
        for (int64_t o = 0; o < d->ow; o += d->columns) {
            int64_t m = min_i64(d->columns, d->ow - o);
            pack(d->dy.dtype, d->dy.data, (row * d->ow + o) * d->channels + c, d->channels, m,
                 min_i64(LANES, d->channels - c), dy);
            for (int64_t p = 0; p < m; p++) sums[d->sums - 1] += *(const V *)(dy + p * LANES);
            for (int64_t e = 1; e < d->each; e++) {
                float *next = dy + e * COLUMNS * LANES;
                memcpy(next, next - COLUMNS * LANES, (size_t)(m * LANES) * sizeof *next);
                turn_groups(next, m, (int)d->each);
            }
            meet_rows(d, row, o, m, c, dy, sums);
        }
    }
}

/* Where dw has a tap of the weight from channel c of x to the channel that lies e further in its group */
static int64_t weight_at(const Depthwise *d, const View *dw, int64_t c, int64_t e, int64_t tap) {
    int64_t i = c % d->each, o = c - i + (i + e) % d->each;
    return dw->channels_last ? (o * d->taps + tap) * d->each + i : (o * d->each + i) * d->taps + tap;
}

int depthwise_run(const KArgs *args, Err *e) {
    (void)e;
    const Depthwise d = depthwise_of(args, args->workspace_bytes);
    const View *dw = &args->conv2d_dw.dw, *db = &args->conv2d_dw.db;
    assert(d.runs > 0 && args->workspace_bytes >= (size_t)(d.runs * d.blocks * d.sums) * sizeof(V));
    assert(operand_is_float(&d.x) && operand_is_float(&d.dy) && (!db->count || db->count == d.channels));
    V *sums = args->workspace; /* (runs, blocks, each and taps, or db) */
    int64_t rows = div_up(d.rows, d.runs), all = d.blocks * d.sums;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t r = 0; r < d.runs; r++)
        for (int64_t b = 0; b < d.blocks; b++)
            piece(&d, b * LANES, r * rows, min_i64((r + 1) * rows, d.rows), sums + r * all + b * d.sums);
    for (int64_t r = 1; r < d.runs; r++)
        for (int64_t i = 0; i < all; i++) sums[i] += sums[r * all + i];
    for (int64_t c = 0; c < d.channels; c++)
        for (int64_t k = 0; k < d.sums; k++) {
            float sum = sums[c / LANES * d.sums + k][c % LANES];
            if (k < d.sums - 1)
                dtype_store(dw->dtype, dw->data, (size_t)weight_at(&d, dw, c, k / d.taps, k % d.taps), sum);
            else if (db->count) dtype_store(db->dtype, db->data, (size_t)c, sum);
        }
    return OK;
}
