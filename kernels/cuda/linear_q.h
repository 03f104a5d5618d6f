/* linear_q.h: what linear_q.c (products) and linear_q.cu (weights from codes) share. For C and .cu files. */
#ifndef MT_CUDA_LINEAR_Q_H
#define MT_CUDA_LINEAR_Q_H

#include "cuda.h"
#include "math/quantized.h"

/* Rows [row, row + rows), columns [column, column + columns) of a weight. */
typedef struct Panel { int64_t row, rows, column, columns; } Panel;

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues the panel as numbers of type `type` to `to`, its rows side by side. */
int cuda_dequantize(const KArgs *a, const Quantized *w, Panel p, DType type, void *to, Err *e);

#ifdef __cplusplus
}
#endif

#endif
