/* reference.h: the definition of each op that every device is tested against: plain loops in float64 over tensors in
 * PyTorch's element order, written to be read. They know neither layouts nor element types. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "program/op.h"

typedef struct Tensor {
    Shape shape;
    int64_t count;
    double *at; /* [count]; NULL: absent. Labels and window positions are whole numbers in it. */
} Tensor;

typedef struct Ref {
    const Attr *attr;
#define SLOT Tensor
#include "program/slots.h"
    StepState *state;   /* the op's "state" operand, input or output; NULL: absent */
    uint64_t seed;
    uint32_t micro;
    double *scratch;    /* of recurrent layers: three numbers per unit; of attention: two per step */
    bool channels_last; /* how y is stored: random numbers are numbered by place in memory; other ops ignore it */
} Ref;

typedef void RefFn(Ref *r);

/* By op; NULL for convolutions, matrix products and their gradients (ref_conv.h), and for those of t_sequence.c. */
extern RefFn *const ref_table[OP_KIND_COUNT];

static inline double *pixel4(const Tensor *t, int64_t n, int64_t c, int64_t h, int64_t w) {
    return &t->at[((n * t->shape.dim[1] + c) * t->shape.dim[2] + h) * t->shape.dim[3] + w];
}

RefFn ref_batchnorm, ref_batchnorm_eval, ref_batchnorm_again, ref_batchnorm_dx, ref_norm, ref_norm_dx, ref_norm_dw, ref_prelu, ref_prelu_dx,
    ref_prelu_dw, ref_softmax, ref_softmax_dx, ref_embedding, ref_embedding_dw, ref_first_place, ref_add_rows, ref_add_rows_dw,
    ref_rotary, ref_upsample, ref_upsample_dx;
RefFn ref_mul, ref_mul_da, ref_broadcast, ref_broadcast_ds, ref_concat, ref_slice, ref_slice_dx, ref_roll, ref_bias_db;
RefFn ref_dora_norm, ref_dora, ref_dora_dm;
RefFn ref_linear_q, ref_linear_q_dx, ref_einsum, ref_permute, ref_binary, ref_binary_da, ref_reduce, ref_reduce_dx, ref_where;
RefFn ref_gather, ref_gather_dx, ref_from_bytes;
RefFn ref_act, ref_act_dx, ref_glu, ref_glu_dx, ref_maxpool, ref_maxpool_dx, ref_avgpool, ref_avgpool_dx, ref_adaptive_avgpool,
    ref_adaptive_avgpool_dx, ref_dropout, ref_randn, ref_count_call, ref_add, ref_copy, ref_accumulate,
    ref_cross_entropy, ref_cross_entropy_dx, ref_element_loss, ref_element_loss_dx, ref_grad_check, ref_grad_square,
    ref_step_begin, ref_scale_update;
#define EACH(op, ...) RefFn ref_##op;
#define TOGETHER(op, ...) RefFn ref_##op;
#include "program/optimizers.def"

/* Number (o, i) of a weight of 4 or 8 bits; derived: the five operands that belong to its codes. linear_q.c */
double ref_quantized(const Tensor *w, const Tensor *derived, int64_t o, int64_t i, int64_t columns);
/* x: a row of logits -> stats[2]: its maximum, and the logarithm of the sum of exp(x - maximum) */
void ref_softmax_stats(const double *x, int64_t classes, double *stats);

/* What ref_formula computes, as the text of a formula: an Adam, without the bias of its first state. */
#define REF_FORMULA                                                                                                 \
    "states m v; param; grad; state 0; state 1; number 0.9; mul 2 4; number 0.1; mul 1 6; add 5 7; mul 3 4; mul 7 1; " \
    "add 9 10; step; pow 4 12; number 1; sub 14 13; div 11 15; sqrt 16; number 0.001; add! 17 18; lr; neg 20; "       \
    "addcdiv! 0 8 19 21; results 22 8 11; replaced 5 9;"

/* Not in the table: their cases are in t_sequence.c. */
RefFn ref_rnn, ref_rnn_dx, ref_attention, ref_attention_dx, ref_linear_cross_entropy, ref_linear_cross_entropy_dx;

#endif
