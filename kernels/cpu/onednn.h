/* onednn.h: one op as one oneDNN primitive. Convolution and linear layer have the same operands (x, w, b, y or their
 * gradients) and the same three passes. conv2d.c and linear.c say what differs; copies, formats, scratch and execution
 * are here.
 *
 * oneDNN parts work, and sums, among the threads that it has. So it never has more than one: the primitive is that of a piece
 * of the op (split.h), and the threads take pieces. Where the parts of a sum are added up, that is done in their order. So the
 * number of threads changes no bit. Nor does it change which primitive is taken: that is judged by what one thread needs.
 *
 *   workspace = [copies of operands in fp32 | partial sums of db | thread 0's scratchpad, copy and sums of a piece | thread 1's
 *                | ... | copies in the primitive's format | slopes as bits, where dx lies in the storage of s]
 *
 *   program's operand --convert--> fp32, same order --reorder--> what the primitive wants
 *
 * It converts where oneDNN lacks the type, and reorders weights only. Outputs go the other way. */
#ifndef MT_ONEDNN_H
#define MT_ONEDNN_H

#include "cpu.h"
#include "program/product.h"

typedef enum Pass { PASS_FORWARD, PASS_DATA, PASS_WEIGHTS } Pass;
static inline Pass pass_of(const KArgs *a) {
    return product_is_dx(a->kind) ? PASS_DATA : product_is_dw(a->kind) ? PASS_WEIGHTS : PASS_FORWARD;
}
enum { SLOT_X, SLOT_W, SLOT_B, SLOT_Y, SLOTS };

typedef union OpDesc { dnnl_convolution_desc_t conv; dnnl_matmul_desc_t product; } OpDesc;

typedef struct PrimSpec {
    Pass pass;                   /* pass_of */
    bool product;                /* of matrices: `md` has the pass's factors and product as they are multiplied */
    bool pack_weights;           /* the primitive may choose the format of w, which costs a copy */
    ActAttr act;                 /* follows y; PASS_DATA: its gradient follows dx */
    dnnl_memory_desc_t md[SLOTS]; /* the program's operands; all zero where one is absent */
    dnnl_status_t (*describe)(const KArgs *, const dnnl_memory_desc_t md[SLOTS], OpDesc *out);
    bool (*avoid)(const KArgs *, const char *name); /* must this implementation not be taken? NULL: take any */
} PrimSpec;

/* The operand of `args` that `slot` is; its count is 0 when it is absent. */
const View *prim_view(const KArgs *args, int slot);
/* A memory descriptor with the type of `v`. stride is counted in elements; all zero when v is absent. */
dnnl_memory_desc_t prim_md(const View *v, int ndims, const int64_t *dim, const int64_t *stride);

/* *state: for prim_run. *workspace: for as many threads as the device has. One thread's beyond `limit` is asked for only if no
 * implementation fits into the limit: then the smallest is taken, since a result matters more than its scratch. */
int prim_prepare(const KArgs *args, const PrimSpec *spec, size_t limit, void **state, size_t *workspace, Err *e);
/* Does oneDNN have more than reference loops for products of this type? */
bool prim_computes(dnnl_engine_t engine, DType t);

/* Of a prepared dx: may it lie where s does? A product that is made in a copy leaves s as it is until its slope is applied.
 * Of any other the slopes must be kept as bits, for which it needs *more bytes of workspace. */
bool prim_overwrites(const KArgs *args, size_t *more);

int prim_run(const KArgs *args, Err *e);

#endif
