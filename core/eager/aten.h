/* aten.h: PyTorch's ops as they run on a GPU: each allocates what its kernel allocates, in that order, and leaves a node
 * that has saved what its derivative needs. The source of each is PyTorch's derivatives.yaml and its ATen functions; all
 * are compared with PyTorch's own event lists (tests/peers).
 *
 * All arguments are lent, results are the caller's. Dimensions count from the front. */
#ifndef MT_ATEN_H
#define MT_ATEN_H

#include "autograd.h"
#include "cudnn_rnn.h"
#include "reduce.h"

/* ---- aten_view.c: no new storage, but for copies of what cannot be a view */
Tensor *aten_view(Eager *g, Tensor *x, Size size);             /* x lies so that it can be one */
Tensor *aten_reshape(Eager *g, Tensor *x, Size size);          /* a view, or a copy */
Tensor *aten_permute(Eager *g, Tensor *x, const int *order);   /* order[rank] */
Tensor *aten_transpose(Eager *g, Tensor *x, int a, int b);
Tensor *aten_expand(Eager *g, Tensor *x, Size size);
Tensor *aten_narrow(Eager *g, Tensor *x, int dim, int64_t length);
Tensor *aten_slice(Eager *g, Tensor *x, int dim, int64_t length, int64_t step);
Tensor *aten_select(Eager *g, Tensor *x, int dim);
Tensor *aten_as_strided(Eager *g, Tensor *x, const int64_t *stride); /* of x's sizes; x is whole */
Tensor *aten_contiguous(Eager *g, Tensor *x);                  /* x itself, or a copy */
Tensor *aten_clone(Eager *g, Tensor *x, bool contiguous);
Tensor *aten_cat(Eager *g, Tensor *const *x, int n, int dim);
Tensor *aten_roll(Eager *g, Tensor *x);
Tensor *aten_repeat(Eager *g, Tensor *x, int64_t times); /* (C) as (times C); NULL: NULL */
Tensor *aten_pad(Eager *g, Tensor *x, Size size);              /* constant_pad_nd to that size */
/* Parts of these lengths along dim: views whose gradients are put together by one cat. part[n] */
void aten_split(Eager *g, Tensor *x, const int64_t *length, int dim, Tensor **part, int n);
/* One for each index of dim, put together by one stack. part[x->size.of[dim]] */
void aten_unbind(Eager *g, Tensor *x, int dim, Tensor **part);

/* ---- aten_pointwise.c */
typedef enum WithOp { WITH_ADD, WITH_SUB, WITH_MUL, WITH_DIV } WithOp;
Tensor *aten_binary(Eager *g, WithOp op, Tensor *a, Tensor *b);  /* broadcast */
Tensor *aten_binary_number(Eager *g, WithOp op, Tensor *a);      /* with a number on the right */
Tensor *aten_add_inplace(Eager *g, Tensor *a, Tensor *b);          /* a += b; a itself */
Tensor *aten_mul_inplace(Eager *g, Tensor *a, Tensor *b);
typedef struct ActRule ActRule;
/* The activation of that name, "ReLU", or NULL. */
const ActRule *aten_act_rule(const char *name);
/* inplace: the result is x itself. */
Tensor *aten_act(Eager *g, const ActRule *rule, Tensor *x, bool inplace);
Tensor *aten_glu(Eager *g, Tensor *x, int dim);
Tensor *aten_to(Eager *g, Tensor *x, ScalarType type);         /* x itself, or a copy of that type */
Tensor *aten_dropout(Eager *g, Tensor *x);                     /* native_dropout, 0 < p < 1, training */
Tensor *aten_prelu(Eager *g, Tensor *x, Tensor *w);
Tensor *aten_neg(Eager *g, Tensor *x);
Tensor *aten_rsub(Eager *g, Tensor *x); /* a number less x */
Tensor *aten_clamp(Eager *g, Tensor *x, bool both); /* both: below and above */
Tensor *aten_masked_fill(Eager *g, Tensor *x, Tensor *mask);
Tensor *aten_triangle(Eager *g, int64_t rows, int64_t columns); /* ones(rows, columns, dtype=bool).tril() */
Tensor *aten_where(Eager *g, Tensor *mask, Tensor *a, Tensor *b); /* b NULL: a number */
void aten_masked_fill_inplace(Eager *g, Tensor *x, Tensor *mask);
/* A tensor without a gradient, made by that op. */
Tensor *aten_random(Eager *g, const char *op, Size size, ScalarType type);

/* ---- aten_reduce.c; dims: a bit each */
Tensor *aten_sum(Eager *g, Tensor *x, unsigned dims, bool keepdim);
Tensor *aten_mean(Eager *g, Tensor *x, unsigned dims, bool keepdim);
Tensor *aten_norm(Eager *g, Tensor *x, unsigned dims, bool keepdim); /* the square root of the sum of squares */
Tensor *aten_amax(Eager *g, Tensor *x, unsigned dims, bool keepdim);
Tensor *aten_max(Eager *g, Tensor *x, int dim, bool keepdim); /* its values */
Tensor *aten_softmax(Eager *g, Tensor *x, int dim, bool log, ScalarType type); /* type: of the result */

/* ---- aten_product.c */
Tensor *aten_mm(Eager *g, Tensor *a, Tensor *b);
Tensor *aten_bmm(Eager *g, Tensor *a, Tensor *b);
Tensor *aten_baddbmm(Eager *g, Tensor *added, Tensor *a, Tensor *b); /* added: of no gradient */
Tensor *aten_matmul(Eager *g, Tensor *a, Tensor *b);
/* A letter for each dimension: "bij", "bjk", "bik"; no letter stands twice in an operand, or in one alone. */
Tensor *aten_einsum(Eager *g, const char *a_letters, const char *b_letters, const char *y_letters, Tensor *a, Tensor *b);
Tensor *aten_linear(Eager *g, Tensor *x, Tensor *w, Tensor *b); /* b may be NULL */
void eager_cublas(Eager *g); /* a product runs: its thread has a workspace from here on */

/* ---- aten_recurrent.c: the layers of an RNN, an LSTM or a GRU as one op, from states of zeros; w[n_w]: their weights, as
 * nn.RNNBase has them. y, without the last states. dropout: the probability. r.type is set by what is given. */
Tensor *aten_cudnn_rnn(Eager *g, CudnnRnn r, Tensor *x, Tensor *const *w, int n_w, double dropout);
/* flatten_parameters(): w[n] become parts of one buffer. */
void aten_cudnn_rnn_flatten(Eager *g, CudnnRnn r, Tensor **w, int n);

/* ---- aten_convolution.c; x (N, C, L) or (N, C, H, W), b may be NULL; y: the output's size */
typedef struct ConvHow { Size y; ConvSteps steps; bool transposed; } ConvHow;
Tensor *aten_convolution(Eager *g, Tensor *x, Tensor *w, Tensor *b, const ConvHow *how);

/* ---- aten_norm.c; w and b may be NULL */
/* running[2]: of mean and variance, entries may be NULL; or NULL */
Tensor *aten_batch_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b, Tensor *const *running);
Tensor *aten_layer_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b, int dims); /* the last `dims` dimensions */
Tensor *aten_rms_norm(Eager *g, Tensor *x, Tensor *w);
Tensor *aten_group_norm(Eager *g, Tensor *x, Tensor *w, Tensor *b, int64_t groups);

/* ---- aten_window.c */
Tensor *aten_max_pool2d(Eager *g, Tensor *x, Size y, bool adaptive);
Tensor *aten_avg_pool2d(Eager *g, Tensor *x, Size y);
Tensor *aten_adaptive_avg_pool2d(Eager *g, Tensor *x, Size y);
Tensor *aten_upsample(Eager *g, Tensor *x, Size y, bool bilinear);
Tensor *aten_gather(Eager *g, Tensor *x, Tensor *index);
Tensor *aten_embedding(Eager *g, Tensor *index, Tensor *w);
Tensor *aten_index(Eager *g, Tensor *w, Tensor *index); /* w[index] */

/* ---- aten_loss.c; each a number */
Tensor *aten_nll_loss(Eager *g, Tensor *x, Tensor *target, Tensor *weight);
/* mse_loss, smooth_l1_loss, huber_loss, binary_cross_entropy */
Tensor *aten_pair_loss(Eager *g, const char *name, Tensor *x, Tensor *target);

/* pos_weight may be NULL */
Tensor *aten_bce_with_logits(Eager *g, Tensor *x, Tensor *target, Tensor *pos_weight);

/* ---- aten_attention.c: q, k, v (N, heads, T, width); mask: lent, bool or what is added to the scores, of dimensions that
 * broadcast to (N, heads, T, S); NULL: none. Not with causal, as PyTorch takes one of them alone. */
typedef struct SdpaHow { double dropout; bool causal; Tensor *mask; } SdpaHow;
Tensor *aten_sdpa(Eager *g, Tensor *q, Tensor *k, Tensor *v, SdpaHow how);
Tensor *aten_repeat_heads(Eager *g, Tensor *x, int64_t heads); /* each key's head for a group of query heads, a copy */

/* ---- autocast (amp.c): x in the type that the op runs in, a reference of the caller's. */
Tensor *amp_low(Eager *g, Tensor *x);  /* 16 bits; a parameter's copy is made once and kept to the context's end */
Tensor *amp_wide(Eager *g, Tensor *x); /* fp32 */
void amp_end(Eager *g);                /* the context ends: the copies go */

#endif
