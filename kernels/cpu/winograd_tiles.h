/* winograd_tiles.h: the pieces of 3x3 convolutions by Winograd's algorithm F(2x2, 3x3), computed in fp32, for AVX-512
 * and AVX2. Images and weights are fp32 or bf16, and converted in registers; points are fp32.
 *
 * A tile is 2x2 pixels of y, which depend on the 4x4 patch of x around them. Three transforms make 4x4 points of their
 * operands, and point by point the convolution is a product:
 *
 *   patch d of x  -> B^T d B   = v        y  = A^T m A,  m = sum over C of v u       16 multiplications, not 36
 *   filter g of w -> G g G^T   = u        dw = G^T a G,  a = sum over tiles of v e
 *   tile e of dy  -> A e A^T   = e        (Winograd's algorithm transposed)
 *
 *         [1  0 -1  0]        [ 1    0    0 ]
 *   B^T = [0  1  1  0]    G = [1/2  1/2  1/2]    A^T = [1  1  1  0]
 *         [0 -1  1  0]        [1/2 -1/2  1/2]          [0  1 -1 -1]
 *         [0  1  0 -1]        [ 0    0    1 ]
 *
 * Points lie as 16 matrices (rows, channels) in panels of 32 channels: (16, channels / 32, rows, 32). Rows are tiles
 * (v, m, e), input channels (u) or output channels (a). Channels are multiples of 32. */
#ifndef MT_CPU_WINOGRAD_TILES_H
#define MT_CPU_WINOGRAD_TILES_H

#include "base/dtype.h"

/* Rows of which tiles_product and tiles_product_add keep two vectors of sums each in registers */
#ifdef __AVX512F__
enum { TILE_ROWS = 14, ADD_ROWS = 8 };
#else
enum { TILE_ROWS = 6, ADD_ROWS = 4 };
#endif

enum { PANEL = 32, POINTS = 16 };

/* Floats from a point's matrix to the next one's: a cache line more than a matrix has, since all sixteen might
 * otherwise share a set of the cache. */
static inline int64_t point_stride(int64_t rows, int64_t channels) { return rows * channels + PANEL / 2; }
static inline int64_t point_floats(int64_t rows, int64_t channels) { return POINTS * point_stride(rows, channels); }

/* (n, h, w, c), cut into tiles: the first one starts at pixel (-top, -left). */
typedef struct Image { DType type; void *at; int64_t h, w, c, top, left; } Image;
/* Tiles [first, first + n) of images that have high x wide each. */
typedef struct Tiles { int64_t high, wide, first, n; } Tiles;

/* v (rows, channels): the patches of t->n tiles, at most `rows`, and of channels [first, first + channels) of x */
void tiles_patches(const Image *x, const Tiles *t, int64_t first, int64_t channels, float *v, int64_t rows);
/* e (rows, channels) of dy in the same way; adds the pixels to sums[channels] unless it is NULL */
void tiles_gradients(const Image *dy, const Tiles *t, int64_t first, int64_t channels, float *e, int64_t rows,
                     float *sums);
/* m (tiles, 32) -> channels [first, first + 32) of y, b[32] added unless it is NULL; multiply: times what is there */
void tiles_outputs(const Image *y, const Tiles *t, int64_t first, const float *b, bool multiply, const float *m, int64_t rows);

/* Weights as (output, input, tap), the first one element `first`, with strides in elements; a tap stride below 0: rotated
 * by 180 degrees; rounds: fp32 ones are rounded to bf16 as they are read */
typedef struct Filters { DType type; void *at; int64_t first, output, input, tap; bool rounds; } Filters;
/* Rows [input, input + n) of u (inputs, 32), of 32 outputs from `output` on */
void tiles_filters(const Filters *w, int64_t output, int64_t input, int64_t n, float *u, int64_t inputs);
/* a (outputs, inputs) -> dw's filters from (output, input) on; dw's inputs lie side by side */
void tiles_filter_gradients(const Filters *dw, int64_t output, int64_t outputs, int64_t input, int64_t inputs,
                            const float *a);

/* One point: m (n, 32) = v (n, channels) u (channels, 32). n is rounded up to a multiple of TILE_ROWS, which is at most
 * `rows`. */
void tiles_product(const float *v, int64_t rows, int64_t n, int64_t channels, const float *u, float *m);
/* One point: a (outputs, inputs) += e^T v over n tiles, n at most `rows` */
void tiles_product_add(const float *e, int64_t outputs, const float *v, int64_t inputs, int64_t rows, int64_t n,
                       float *a);

#endif
