#include "winograd_tiles.h"

#include <assert.h>

#define REGISTER_LANES
#include "lanes.h"

/* ---- where a tile lies */

typedef struct Place { int64_t image, i, j; } Place;

INLINE Place place_first(const Tiles *t) {
    return (Place){t->first / (t->high * t->wide), t->first / t->wide % t->high, t->first % t->wide};
}

INLINE void place_next(const Tiles *t, Place *p) {
    if (++p->j < t->wide) return;
    p->j = 0;
    if (++p->i < t->high) return;
    p->i = 0;
    p->image++;
}

/* A square of pixels of an image. at: where channel `first` of its first pixel lies, or would lie; rows [y0, y1) and
 * columns [x0, x1) of it are inside the image */
typedef struct Window { int64_t at, row, pixel; int y0, y1, x0, x1; } Window;

INLINE int clip(int64_t pixels, int size) { return (int)(pixels < 0 ? 0 : pixels > size ? size : pixels); }

INLINE Window window_at(const Image *m, const Place *p, int64_t first, int size) {
    int64_t y = 2 * p->i - m->top, x = 2 * p->j - m->left;
    return (Window){((p->image * m->h + y) * m->w + x) * m->c + first, m->w * m->c, m->c,
                    clip(-y, size), clip(m->h - y, size), clip(-x, size), clip(m->w - x, size)};
}

INLINE bool window_whole(const Window *w, int size) { return !w->y0 && w->y1 == size && !w->x0 && w->x1 == size; }

/* d[size * size]: LANES channels from c on of a window's pixels; 0 where they are outside the image */
INLINE void window_load(DType t, const void *from, const Window *w, int64_t c, int size, bool whole, V *d) {
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            bool there = whole || (i >= w->y0 && i < w->y1 && j >= w->x0 && j < w->x1);
            d[i * size + j] = (V){0};
            if (there) d[i * size + j] = load_as(t, from, w->at + i * w->row + j * w->pixel + c);
        }
}

/* ---- transforms of one dimension: n numbers `step` apart -> 4 (B^T, A, G); 4 -> n (A^T, G^T) */

INLINE void patch_broadcast(const V *d, int from, V *v, int to) {
    V a = d[0] - d[2 * from], b = d[from] + d[2 * from], c = d[2 * from] - d[from], e = d[from] - d[3 * from];
    v[0] = a, v[to] = b, v[2 * to] = c, v[3 * to] = e;
}

INLINE void tile_broadcast(const V *d, int from, V *v, int to) {
    V a = d[0], b = d[from];
    v[0] = a, v[to] = a + b, v[2 * to] = a - b, v[3 * to] = -b;
}

INLINE void tile_join(const V *v, int from, V *d, int to) {
    V both = v[from] + v[2 * from], apart = v[from] - v[2 * from];
    d[0] = v[0] + both, d[to] = apart - v[3 * from];
}

INLINE void filter_broadcast(const V *g, int from, V *u, int to) {
    V a = g[0], c = g[2 * from], half = 0.5f * (a + c), b = 0.5f * g[from];
    u[0] = a, u[to] = half + b, u[2 * to] = half - b, u[3 * to] = c;
}

INLINE void filter_join(const V *u, int from, V *g, int to) {
    V both = 0.5f * (u[from] + u[2 * from]), apart = 0.5f * (u[from] - u[2 * from]), last = u[3 * from];
    g[0] = u[0] + both, g[to] = apart, g[2 * to] = both + last;
}

/* ---- images */

INLINE void points_store(const V *v, float *to, int64_t stride) {
    for (int p = 0; p < POINTS; p++) store(to + p * stride, v[p]);
}

INLINE void points_load(const float *from, int64_t stride, V *v) {
    for (int p = 0; p < POINTS; p++) v[p] = load(from + p * stride);
}

/* Channel c of row r in a panelled matrix */
INLINE int64_t panel_at(int64_t c, int64_t r, int64_t rows) { return c / PANEL * PANEL * rows + r * PANEL + c % PANEL; }

INLINE void patch_transform(DType t, const void *x, const Window *w, bool whole, int64_t channels, float *v, int64_t row,
                            int64_t rows) {
    for (int64_t c = 0; c < channels; c += LANES) {
        V d[16];
        window_load(t, x, w, c, 4, whole, d);
        for (int j = 0; j < 4; j++) patch_broadcast(d + j, 4, d + j, 4);
        for (int i = 0; i < 4; i++) patch_broadcast(d + 4 * i, 1, d + 4 * i, 1);
        points_store(d, v + panel_at(c, row, rows), point_stride(rows, channels));
    }
}

INLINE void patches(DType type, const Image *x, const Tiles *t, int64_t first, int64_t channels, float *v, int64_t rows) {
    Place p = place_first(t);
    for (int64_t r = 0; r < t->n; r++, place_next(t, &p)) {
        Window w = window_at(x, &p, first, 4);
        if (window_whole(&w, 4)) patch_transform(type, x->at, &w, true, channels, v, r, rows);
        else patch_transform(type, x->at, &w, false, channels, v, r, rows);
    }
}

FUSED void tiles_patches(const Image *x, const Tiles *t, int64_t first, int64_t channels, float *v, int64_t rows) {
    assert(t->n <= rows && channels % PANEL == 0 && first + channels <= x->c);
    if (x->type == DT_F32) patches(DT_F32, x, t, first, channels, v, rows);
    else patches(DT_BF16, x, t, first, channels, v, rows);
}

INLINE void gradient_transform(DType t, const void *dy, const Window *w, bool whole, int64_t channels, float *e,
                               int64_t row, int64_t rows, float *sums) {
    for (int64_t c = 0; c < channels; c += LANES) {
        V d[4], half[8], v[POINTS];
        window_load(t, dy, w, c, 2, whole, d);
        if (sums) store(sums + c, load(sums + c) + ((d[0] + d[1]) + (d[2] + d[3])));
        for (int j = 0; j < 2; j++) tile_broadcast(d + j, 2, half + j, 2);
        for (int i = 0; i < 4; i++) tile_broadcast(half + 2 * i, 1, v + 4 * i, 1);
        points_store(v, e + panel_at(c, row, rows), point_stride(rows, channels));
    }
}

INLINE void gradients(DType type, const Image *dy, const Tiles *t, int64_t first, int64_t channels, float *e,
                      int64_t rows, float *sums) {
    Place p = place_first(t);
    for (int64_t r = 0; r < t->n; r++, place_next(t, &p)) {
        Window w = window_at(dy, &p, first, 2);
        if (window_whole(&w, 2)) gradient_transform(type, dy->at, &w, true, channels, e, r, rows, sums);
        else gradient_transform(type, dy->at, &w, false, channels, e, r, rows, sums);
    }
}

FUSED void tiles_gradients(const Image *dy, const Tiles *t, int64_t first, int64_t channels, float *e, int64_t rows,
                          float *sums) {
    assert(t->n <= rows && channels % PANEL == 0 && first + channels <= dy->c);
    if (dy->type == DT_F32) gradients(DT_F32, dy, t, first, channels, e, rows, sums);
    else gradients(DT_BF16, dy, t, first, channels, e, rows, sums);
}

/* Pixels of a tile, inside the image, are LANES channels of d, or are multiplied by them. */
INLINE void window_store(DType type, void *to, const Window *w, int64_t c, bool multiply, const V *d) {
    for (int i = 0; i < w->y1; i++)
        for (int j = 0; j < w->x1; j++) {
            const int64_t at = w->at + i * w->row + j * w->pixel + c;
            V v = d[2 * i + j];
            if (multiply) v *= load_as(type, to, at);
            store_as(type, to, at, v);
        }
}

INLINE void outputs(DType type, const Image *y, const Tiles *t, int64_t first, const float *b, bool multiply, const float *m, int64_t rows) {
    Place p = place_first(t);
    for (int64_t r = 0; r < t->n; r++, place_next(t, &p)) {
        Window w = window_at(y, &p, first, 2);
        for (int c = 0; c < PANEL; c += LANES) {
            V v[POINTS], half[8], d[4], add = b ? load(b + c) : (V){0};
            points_load(m + r * PANEL + c, point_stride(rows, PANEL), v);
            for (int j = 0; j < 4; j++) tile_join(v + j, 4, half + j, 4);
            for (int i = 0; i < 2; i++) tile_join(half + 4 * i, 1, d + 2 * i, 1);
            for (int i = 0; i < 4; i++) d[i] += add;
            window_store(type, y->at, &w, c, multiply, d);
        }
    }
}

FUSED void tiles_outputs(const Image *y, const Tiles *t, int64_t first, const float *b, bool multiply, const float *m, int64_t rows) {
    assert(t->n <= rows && first + PANEL <= y->c);
    if (y->type == DT_F32) outputs(DT_F32, y, t, first, b, multiply, m, rows);
    else outputs(DT_BF16, y, t, first, b, multiply, m, rows);
}

/* ---- weights */

/* One tap of LANES outputs, the first one element `at` */
INLINE V filter_lanes(DType t, bool rounds, const void *w, int64_t at, int64_t stride) {
    V v = {0};
    if (stride == 1) v = load_as(t, w, at);
    else
        for (int l = 0; l < LANES; l++) v[l] = dtype_load(t, w, (size_t)(at + l * stride));
    return rounds ? lanes_rounded(v) : v;
}

INLINE void filters(DType t, bool rounds, const Filters *w, int64_t output, int64_t input, int64_t n, float *u, int64_t inputs) {
    for (int64_t i = input; i < input + n; i++)
        for (int c = 0; c < PANEL; c += LANES) {
            V g[9], half[12], v[POINTS];
            const int64_t from = w->first + (output + c) * w->output + i * w->input;
            for (int k = 0; k < 9; k++) g[k] = filter_lanes(t, rounds, w->at, from + k * w->tap, w->output);
            for (int j = 0; j < 3; j++) filter_broadcast(g + j, 3, half + j, 3);
            for (int k = 0; k < 4; k++) filter_broadcast(half + 3 * k, 1, v + 4 * k, 1);
            points_store(v, u + i * PANEL + c, point_stride(inputs, PANEL));
        }
}

FUSED void tiles_filters(const Filters *w, int64_t output, int64_t input, int64_t n, float *u, int64_t inputs) {
    assert(input + n <= inputs);
    if (w->rounds) filters(DT_F32, true, w, output, input, n, u, inputs);
    else if (w->type == DT_F32) filters(DT_F32, false, w, output, input, n, u, inputs);
    else filters(DT_BF16, false, w, output, input, n, u, inputs);
}

INLINE void filter_gradients(DType t, const Filters *dw, int64_t output, int64_t outputs, int64_t input, int64_t inputs,
                             const float *a) {
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t i = 0; i < inputs; i += LANES) {
            V v[POINTS], half[12], g[9];
            points_load(a + panel_at(i, o, outputs), point_stride(outputs, inputs), v);
            for (int j = 0; j < 4; j++) filter_join(v + j, 4, half + j, 4);
            for (int k = 0; k < 3; k++) filter_join(half + 4 * k, 1, g + 3 * k, 1);
            const int64_t to = dw->first + (output + o) * dw->output + input + i;
            for (int k = 0; k < 9; k++) store_as(t, dw->at, to + k * dw->tap, g[k]);
        }
}

FUSED void tiles_filter_gradients(const Filters *dw, int64_t output, int64_t outputs, int64_t input, int64_t inputs,
                                 const float *a) {
    assert(inputs % PANEL == 0 && dw->input == 1);
    if (dw->type == DT_F32) filter_gradients(DT_F32, dw, output, outputs, input, inputs, a);
    else filter_gradients(DT_BF16, dw, output, outputs, input, inputs, a);
}

/* ---- products: two vectors of sums for each of some rows stay in registers */

/* Columns [first, first + 2 LANES) of rows [r, r + TILE_ROWS) */
INLINE void product_rows(const float *v, int64_t rows, int64_t r, int64_t channels, const float *u, int first, float *m) {
    V s0[TILE_ROWS] = {0}, s1[TILE_ROWS] = {0};
    const float *b = u + first;
    for (int64_t panel = 0; panel < channels; panel += PANEL) {
        const float *a = v + panel * rows + r * PANEL;
#pragma GCC unroll 2
        for (int c = 0; c < PANEL; c++, b += PANEL) {
            V b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 14
            for (int i = 0; i < TILE_ROWS; i++) {
                s0[i] += a[i * PANEL + c] * b0;
                s1[i] += a[i * PANEL + c] * b1;
            }
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < TILE_ROWS; i++) {
        store(m + (r + i) * PANEL + first, s0[i]);
        store(m + (r + i) * PANEL + first + LANES, s1[i]);
    }
}

FUSED void tiles_product(const float *v, int64_t rows, int64_t n, int64_t channels, const float *u, float *m) {
    assert(channels % PANEL == 0 && div_up(n, TILE_ROWS) * TILE_ROWS <= rows);
    for (int64_t r = 0; r < n; r += TILE_ROWS)
        for (int first = 0; first < PANEL; first += 2 * LANES) product_rows(v, rows, r, channels, u, first, m);
}

/* Columns [0, 2 LANES) of `to`, of ADD_ROWS outputs */
INLINE void add_rows(const float *d, const float *b, int64_t n, float *to) {
    V s0[ADD_ROWS] = {0}, s1[ADD_ROWS] = {0};
#pragma GCC unroll 2
    for (int64_t t = 0; t < n; t++, b += PANEL, d += PANEL) {
        V b0 = load(b), b1 = load(b + LANES);
#pragma GCC unroll 8
        for (int k = 0; k < ADD_ROWS; k++) {
            s0[k] += d[k] * b0;
            s1[k] += d[k] * b1;
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < ADD_ROWS; k++) {
        store(to + k * PANEL, load(to + k * PANEL) + s0[k]);
        store(to + k * PANEL + LANES, load(to + k * PANEL + LANES) + s1[k]);
    }
}

FUSED void tiles_product_add(const float *e, int64_t outputs, const float *v, int64_t inputs, int64_t rows, int64_t n,
                            float *a) {
    assert(inputs % PANEL == 0 && outputs % ADD_ROWS == 0 && n <= rows);
    for (int64_t i = 0; i < inputs; i += PANEL)
        for (int64_t o = 0; o < outputs; o += ADD_ROWS)
            for (int first = 0; first < PANEL; first += 2 * LANES)
                add_rows(e + panel_at(o, 0, rows), v + i * rows + first, n, a + i * outputs + o * PANEL + first);
}
