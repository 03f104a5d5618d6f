/* narrow.h: products of bf16 matrices with sums in fp32, where the processor has instructions for them: many products
 * of one shape by one primitive of oneDNN, its right operand packed once. The caller has room for its scratch, as much
 * as narrow_scratch says; what is left out is what oneDNN's `gemm`, its way with few rows, takes and gives back within
 * a call, as that of product() in wide.h.
 *
 * A primitive belongs to the thread that opens it. */
#ifndef MT_NARROW_H
#define MT_NARROW_H

#include <oneapi/dnnl/dnnl.h>

#include "loops.h"

/* Does this processor multiply bf16? */
bool narrow_fits(void);

/* c (m, n) = a (m, k) b (k, n): how the operands lie, as in wide.h's Matrix; c is of type `to`; add: += ;
 * packed: b is what narrow_pack has made, for a product with the same n, k and threads */
typedef struct NarrowShape {
    int64_t m, n, k, a_stride, b_stride, c_stride;
    bool a_turned, b_turned, add, packed;
    DType to;
    int threads;                /* that it runs on; 1 inside a parallel region */
} NarrowShape;

typedef struct Narrow {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratch;
    int threads;
} Narrow;

/* Bytes of scratch for products of this shape; 0 also where there is no such product, as narrow_open will say. */
size_t narrow_scratch(const NarrowShape *s);
/* All return 0 or oneDNN's status; narrow_close is always right after narrow_open, and after a failed one. */
int narrow_open(Narrow *p, const NarrowShape *s);
int narrow_run(Narrow *p, const void *a, const void *b, void *c, void *scratch);
void narrow_close(Narrow *p);
/* Bytes that hold b packed, and the packing of b at `from`. */
size_t narrow_packed(int64_t n, int64_t k);
int narrow_pack(const Narrow *p, const NarrowShape *s, const void *from, void *to);

/* One product: open, run, close. */
int narrow_product(const NarrowShape *s, const void *a, const void *b, void *c, void *scratch);

#endif
