/* recurrent.h: what recurrent.c (the order of steps, products) and recurrent.cu (kernels) share. For C and .cu files. */
#ifndef MT_CUDA_RECURRENT_H
#define MT_CUDA_RECURRENT_H

#include "cuda.h"
#include "program/rnn_layout.h"

/* A layer in one direction, and where the parts of its workspace are: NULL: the op has none of them. */
typedef struct RnnLayer {
    RnnPath p;
    int64_t width;            /* elements from row to row of slopes: a whole number of words */
    void *h, *slopes;         /* in x's type: (samples, units), h as the next step's product reads it; (rows, width), gradients
                                 of sums, of which the first info.slopes units of a row are used */
    float *state, *c;         /* (samples, units): forward GRU's h and LSTM's c; back the gradients of h and c */
    float *from_x, *from_h;   /* sums: (rows, gates), (samples, gates) */
} RnnLayer;

/* Element (i, j) is data[at + i stride + j]; transposed: data[at + j stride + i]. */
typedef struct RnnMatrix { void *data; DType type; bool transposed; int64_t at, stride; } RnnMatrix;

/* c (m, n) = a (m, k) b (k, n); add: c += a b */
typedef struct RnnProduct { RnnMatrix c, a, b; int64_t m, n, k; bool add; } RnnProduct;

#ifdef __cplusplus
extern "C" {
#endif

/* What step k of all samples makes of its sums; back: of the gradients of h and c */
int cuda_rnn_cells(const KArgs *a, const RnnLayer *l, int64_t k, Err *e);
int cuda_rnn_cells_back(const KArgs *a, const RnnLayer *l, int64_t k, Err *e);
/* db_ih and db_hh: sums of slopes over all rows */
int cuda_rnn_bias_gradients(const KArgs *a, const RnnLayer *l, Err *e);
/* Slopes of the first step become 0. */
int cuda_rnn_clear_first(const KArgs *a, const RnnLayer *l, Err *e);
/* The product by own tiles of fp32, whatever types and places the matrices have */
int cuda_rnn_product(const KArgs *a, const RnnProduct *p, Err *e);

#ifdef __cplusplus
}
#endif

#endif
