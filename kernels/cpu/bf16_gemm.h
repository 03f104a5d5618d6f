/* bf16_gemm.h: products of bf16 matrices with sums in fp32: many products of one shape, the right operand packed once.
 * Where the processor has instructions for them, by a primitive of oneDNN, which is made once: this leaves out what its
 * `gemm`, that it uses for few rows, allocates and frees within a call. Else by gemm.h, in fp32. The caller has room for
 * the scratch, bf16_gemm_scratch bytes.
 *
 * A primitive belongs to the thread that opens it. */
#ifndef MT_BF16_GEMM_H
#define MT_BF16_GEMM_H

#include <oneapi/dnnl/dnnl.h>

#include "parallel.h"

/* Does this processor have instructions for them? */
bool bf16_gemm_fits(void);

/* c (m, n) = a (m, k) b (k, n): how the operands lie, as in fp32_product.h's Matrix; c is of type `to`; add: += ;
 * packed: b is what bf16_gemm_pack has made, for a product with the same n, k and threads */
typedef struct Bf16GemmShape {
    int64_t m, n, k, a_stride, b_stride, c_stride;
    bool a_transposed, b_transposed, add, packed;
    DType to;
    int threads;                /* that it runs on; 1 inside a parallel region */
} Bf16GemmShape;

typedef struct Bf16Gemm {
    Bf16GemmShape shape;        /* all there is, where gemm.h multiplies */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratch;
    int threads;
} Bf16Gemm;

/* Bytes of scratch for products of this shape; 0 also where there is no such product, as bf16_gemm_open will say. */
size_t bf16_gemm_scratch(const Bf16GemmShape *s);
/* All return 0 or oneDNN's status; bf16_gemm_close is always right after bf16_gemm_open, and after a failed one. */
int bf16_gemm_open(Bf16Gemm *p, const Bf16GemmShape *s);
int bf16_gemm_run(Bf16Gemm *p, const void *a, const void *b, void *c, void *scratch);
void bf16_gemm_close(Bf16Gemm *p);
/* Bytes that hold b packed, and the packing of b at `from`. */
size_t bf16_gemm_packed(int64_t n, int64_t k);
int bf16_gemm_pack(const Bf16Gemm *p, const Bf16GemmShape *s, const void *from, void *to);

/* One product: open, run, close. */
int bf16_gemm_product(const Bf16GemmShape *s, const void *a, const void *b, void *c, void *scratch);

#endif
