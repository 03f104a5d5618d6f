/* kernel_cases.h: what t_kernels.c runs: the operands of each op, and the cases. */
#ifndef KERNEL_CASES_H
#define KERNEL_CASES_H

#include "program/op.h"

typedef struct Case {
    const char *name;
    OpKind kind;
    Shape x, y, z;         /* y, z: where they differ from x */
    Attr attr;
    unsigned absent_in, absent_out; /* bit per operand */
    int64_t order[3];      /* x is a flattened image */
    StepState state;
    uint32_t micro, calls;
    int infinity_at;       /* grad_check: the element that is infinite, + 1; 0: none */
    bool plain;            /* 4 dimensions lie in PyTorch's order */
    int terms;             /* of the sum that one result is, where a library may add up tens of thousands one after the other; 0: fewer */
    int limit;             /* bytes of workspace, at most; 0: many */
} Case;

/* One operand is two letters. Type: f the case's, g the case's other one (both run through all types, but not two
 * different 16-bit types), w f32, i labels, b window positions, q codes, v codes or (without absmax) the case's, a codes with double quantisation, else f32, c a
 * count of calls, s the step state. Shape: x, y or z; r: x in plain rows; n: one number per sample; 2: two per sample; 1:
 * one element. Of a quantised weight of shape z: k codes, o one number per row, e per block of 64 (of 8 bits per row), E per
 * 256 blocks, m 16 numbers, M 256. */
typedef struct Bench Bench;
typedef void FillFn(Bench *b);
typedef struct OpTest { OpKind kind; const char *in, *out; FillFn *fill; } OpTest;
static FillFn fill_batches, fill_variance, fill_indices;
static FillFn fill_steps, fill_update, fill_calls, fill_coarse, fill_positions, fill_labels, fill_stats, fill_probabilities;
static FillFn fill_bytes, fill_places, fill_rows, fill_infinity, fill_codes, fill_maxima, fill_quantized;

static const OpTest op_tests[] = {
    {OP_act, "fx", "gx", NULL},
    {OP_act_dx, "fx gx", "fx", NULL},
    {OP_glu, "fx", "gy", NULL},
    {OP_glu_dx, "fx gy", "fx", NULL},
    {OP_maxpool, "fx", "fy by", fill_coarse},
    {OP_maxpool_dx, "fy by", "fx", fill_positions},
    {OP_avgpool, "fx", "fy", NULL},
    {OP_avgpool_dx, "fy", "fx", NULL},
    {OP_adaptive_avgpool, "fx", "fy", NULL},
    {OP_adaptive_avgpool_dx, "fy", "fx", NULL},
    {OP_dropout, "fx c1", "gx", fill_calls},
    {OP_dropout_dx, "fx c1", "gx", fill_calls},
    {OP_randn, "c1", "fx", fill_calls},
    {OP_count_call, "", "c1", fill_calls},
    {OP_add, "fx gx", "fx", NULL},
    {OP_mul, "fx fx", "gx", NULL},
    {OP_mul_da, "fx gx fx", "gx", NULL},
    {OP_broadcast, "fx fz", "fx", NULL},
    {OP_broadcast_ds, "fx fx", "fz", NULL},
    {OP_concat, "fx fz fx", "fy", NULL},
    {OP_slice, "fx", "fy", NULL},
    {OP_slice_dx, "fy", "fx", NULL},
    {OP_roll, "fx", "fx", NULL},
    {OP_linear_q, "fx qk ae wm wE wM w1 fo", "fy", fill_quantized},
    {OP_linear_q_dx, "fy qk ae wm wE wM w1", "fx", fill_quantized},
    {OP_dora_norm, "gx vk ae wm wE wM w1 gy", "wo", fill_quantized},
    {OP_dora, "fx gz wz fz", "gx", NULL},
    {OP_dora_dm, "fx gx wz fz", "gz", NULL},
    {OP_einsum, "fx fz", "gy", NULL},
    {OP_permute, "fx", "fy", NULL},
    {OP_binary, "fx fz", "fy", NULL},
    {OP_binary_da, "fy fx fz", "gr", NULL},
    {OP_reduce, "fx", "fy", NULL},
    {OP_reduce_dx, "fy fx fy", "gx", fill_maxima},
    {OP_where, "fx fx", "fx", NULL},
    {OP_gather, "fx in", "fn", fill_rows},
    {OP_gather_dx, "fn in", "fx", fill_rows},
    {OP_batchnorm, "fx wz wz", "fx wz wz wz wz c1", fill_batches},
    {OP_batchnorm_eval, "fx wz wz wz wz", "fx", fill_variance},
    {OP_batchnorm_again, "fx wz wz wz wz", "fx", NULL},
    {OP_batchnorm_dx, "fx fx wz wz wz wz wz", "fx", NULL},
    {OP_norm, "fx wz wz", "gx wy wy", NULL},
    {OP_norm_dx, "fx gx wz wy wy", "gx", NULL},
    {OP_norm_dw, "fx gx wy wy", "wz wz", NULL},
    {OP_prelu, "fx fz", "fx", NULL},
    {OP_prelu_dx, "fx fx fz", "fx", NULL},
    {OP_prelu_dw, "fx fx", "gz", NULL},
    {OP_softmax, "fx", "gx", NULL},
    {OP_softmax_dx, "fx gx", "fx", NULL},
    {OP_embedding, "iy fz", "fx", fill_indices},
    {OP_embedding_dw, "fx iy", "gz", fill_indices},
    {OP_first_place, "ix", "in", fill_places},
    {OP_add_rows, "fx fz", "fx", NULL},
    {OP_add_rows_dw, "fx", "gz", NULL},
    {OP_rotary, "fx iz", "gx", fill_steps},
    {OP_upsample, "fx", "fy", NULL},
    {OP_upsample_dx, "fy", "fx", NULL},
    {OP_bias_db, "fx", "gz", NULL},
    {OP_copy, "fx", "fx", NULL},
    {OP_from_bytes, "qx wz wz", "gx", fill_bytes},
    {OP_cast, "fx", "gx", NULL},
    {OP_view, "fx", "fx", NULL},
    {OP_nhwc_to_nchw, "fx", "fr", NULL},
    {OP_nhwc_to_nchw_dx, "fr", "fx", NULL},
    {OP_cross_entropy, "fx in wz", "w1 w2", fill_labels},
    {OP_cross_entropy_dx, "fx in s1 wz w2", "gx", fill_stats},
    {OP_element_loss, "fx wx wz", "w1", fill_probabilities},
    {OP_element_loss_dx, "fx wx s1 wz", "gx", fill_probabilities},
    {OP_accumulate, "fx", "gx", NULL},
    {OP_grad_check, "fx", "s1", fill_infinity},
    {OP_step_begin, "", "s1", NULL},
    {OP_grad_square, "fx", "w1", NULL},
    {OP_sgd, "fx s1 w1 w1", "fx gx wx", fill_update},
    {OP_adam, "fx s1 w1 w1", "fx gx gx gx wx", fill_update},
    {OP_rmsprop, "fx s1 w1 w1", "fx gx gx gx wx", fill_update},
    {OP_adagrad, "fx s1 w1 w1", "fx gx wx", fill_update},
    {OP_radam, "fx s1 w1 w1", "fx gx gx wx", fill_update},
    {OP_nadam, "fx s1 w1 w1", "fx gx gx wx", fill_update},
    {OP_lion, "fx s1 w1 w1", "fx gx wx", fill_update},
    {OP_adamax, "fx s1 w1 w1", "fx gx gx wx", fill_update},
    {OP_adadelta, "fx s1 w1 w1", "fx gx gx wx", fill_update},
    {OP_adafactor, "fx s1 w1 w1", "fx wy wz wx wx", fill_update},
    {OP_adam8bit, "fx s1 w1 w1", "fx qx qx qx wy wx", fill_codes},
    {OP_formula, "fx s1 w1 w1", "gx gx gx gx wx", fill_update},
    {OP_scale_update, "", "s1", NULL},
};

/* Shapes: a single element, odd tails, several blocks on several threads. An emulated thread that waits costs much more than
 * an element, so a case that has a block or a warp for each of its rows has few of them: more than one sum takes (two or three
 * parts and a tail), and more than one grid of the emulated GPU has blocks. */
#define S1(a) {1, {a, 1, 1, 1}}
#define S2(a, b) {2, {a, b, 1, 1}}
#define S3(a, b, c) {3, {a, b, c, 1}}
#define S4(a, b, c, d) {4, {a, b, c, d}}
#define ONE S2(1, 1)
#define ODD S2(3, 7)
#define BIG S2(5, 4001)
#define IMAGE S4(2, 3, 5, 7)
#define ACT(f) .attr.act = {.act = ACT_##f, .slope = 0.1f, .high = 0.7f}
#define POOL(kh, kw, sh, sw, ph, pw, dh, dw, pad, div) .attr.pool = \
    {{kh, kw}, {sh, sw}, {ph, pw}, {dh, dw}, pad, div, {.act = ACT_NONE}}
#define POOL_RELU(kh, kw, sh, sw, ph, pw, dh, dw) .attr.pool = \
    {{kh, kw}, {sh, sw}, {ph, pw}, {dh, dw}, 0, 0, {.act = ACT_RELU}}
#define BOTH_ACT(f, shape) {#f, OP_act, .x = shape, ACT(f)}, {#f, OP_act_dx, .x = shape, ACT(f)}
#define BOTH_GATED(f_, shape) \
    {#f_, OP_mul, .x = shape, .attr.mul.f = {.act = ACT_##f_}}, {#f_, OP_mul_da, .x = shape, .attr.mul.f = {.act = ACT_##f_}}
#define BOTH_POOL(op, text, X, Y, ...) \
    {text, OP_##op, .x = X, .y = Y, __VA_ARGS__}, {text, OP_##op##_dx, .x = X, .y = Y, __VA_ARGS__}
#define AXIS(axis_, start_) .attr.axis = {axis_, start_}
#define EACH_SPREAD(text, X, Z) \
    {text, OP_broadcast, .x = X, .z = Z}, {text, OP_broadcast_ds, .x = X, .z = Z}, \
    {text ", a sum", OP_broadcast, .x = X, .z = Z, .attr.broadcast = {1}}, \
    {text ", a sum", OP_broadcast_ds, .x = X, .z = Z, .attr.broadcast = {1}, .absent_in = 2}
#define BOTH_PARTS(text, X, Y, ...) \
    {text, OP_slice, .x = X, .y = Y, __VA_ARGS__}, {text, OP_slice_dx, .x = X, .y = Y, __VA_ARGS__}
#define BOTH_GLU(text, X, Y, axis_) \
    {text, OP_glu, .x = X, .y = Y, AXIS(axis_, 0)}, {text, OP_glu_dx, .x = X, .y = Y, AXIS(axis_, 0)}
#define BYTES(text, X, Z, no_channels) \
    {text, OP_from_bytes, .x = X, .z = Z, .absent_in = no_channels * 6, .attr.bytes = {255, 0.4f, -0.3f}}
#define NORM(axis_, groups_, momentum_) .attr.norm = {axis_, groups_, 1e-5f, momentum_}
#define EACH_NORM(text, X, Y, Z, ...) \
    {text, OP_norm, .x = X, .y = Y, .z = Z, __VA_ARGS__}, {text, OP_norm_dx, .x = X, .y = Y, .z = Z, __VA_ARGS__}, \
    {text, OP_norm_dw, .x = X, .y = Y, .z = Z, __VA_ARGS__}
#define EACH_RMSNORM(text, X, Y, Z, ...) \
    {text, OP_norm, .x = X, .y = Y, .z = Z, __VA_ARGS__, .absent_in = 1 << 2, .absent_out = 1 << 1}, \
    {text, OP_norm_dx, .x = X, .y = Y, .z = Z, __VA_ARGS__, .absent_in = 1 << 3}, \
    {text, OP_norm_dw, .x = X, .y = Y, .z = Z, __VA_ARGS__, .absent_in = 1 << 2, .absent_out = 1 << 1}
#define EACH_BATCHNORM(text, X, Z) \
    {text, OP_batchnorm, .x = X, .z = Z, NORM(1, 0, 0.1f), .calls = 3}, \
    {text, OP_batchnorm_eval, .x = X, .z = Z, NORM(1, 0, 0)}, {text, OP_batchnorm_again, .x = X, .z = Z, NORM(1, 0, 0)}, \
    {text, OP_batchnorm_dx, .x = X, .z = Z, NORM(1, 0, 0)}, \
    {text, OP_norm_dw, .x = X, .y = Z, .z = Z, NORM(1, 0, 0)}
#define BOTH_SOFTMAX(text, X, axis_) \
    {text, OP_softmax, .x = X, .attr.softmax = {axis_, 0}}, \
    {text ", log", OP_softmax, .x = X, .attr.softmax = {axis_, 1}}, \
    {text, OP_softmax_dx, .x = X, .attr.softmax = {axis_, 0}}, \
    {text ", log", OP_softmax_dx, .x = X, .attr.softmax = {axis_, 1}}
#define EACH_PRELU(text, X, Z) {text, OP_prelu, .x = X, .z = Z}, {text, OP_prelu_dx, .x = X, .z = Z}, \
    {text, OP_prelu_dw, .x = X, .z = Z}
#define BOTH_TABLE(text, X, Y, Z, padding_, first_) \
    {text, OP_embedding, .x = X, .y = Y, .z = Z, .attr.embedding = {padding_, first_}}, \
    {text, OP_embedding_dw, .x = X, .y = Y, .z = Z, .attr.embedding = {padding_, first_}}
#define BOTH_ROWS(text, X, Z, from) \
    {text, OP_add_rows, .x = X, .z = Z, .attr.axis = {0, from}}, \
    {text, OP_add_rows_dw, .x = X, .z = Z, .attr.axis = {0, from}}
#define EACH_ROTARY(text, X, dim, base, ...) \
    {text, OP_rotary, .x = X, .attr.rotary = {dim, 1, 0, base}, __VA_ARGS__}, \
    {text ", back", OP_rotary, .x = X, .attr.rotary = {dim, 1, 1, base}, __VA_ARGS__}, \
    {text ", halves", OP_rotary, .x = X, .attr.rotary = {dim, 0, 0, base}, __VA_ARGS__}, \
    {text ", halves, back", OP_rotary, .x = X, .attr.rotary = {dim, 0, 1, base}, __VA_ARGS__}
#define STEPS .absent_in = 2 /* the positions are the steps */
#define BOTH_UPSAMPLE(text, X, Y, ...) \
    {text, OP_upsample, .x = X, .y = Y, .attr.upsample = {__VA_ARGS__}}, \
    {text, OP_upsample_dx, .x = X, .y = Y, .attr.upsample = {__VA_ARGS__}}
/* Labels by dimension, "abc" as 0, 1, 2 */
#define L1(a) {a, -1, -1, -1}
#define L2(a, b) {a, b, -1, -1}
#define L3(a, b, c) {a, b, c, -1}
#define L4(a, b, c, d) {a, b, c, d}
#define EINSUM(text, X, Z, Y, a_, b_, y_) \
    {text, OP_einsum, .x = X, .z = Z, .y = Y, .plain = true, .attr.einsum = {a_, b_, y_, 0}}
/* x (n, i), w (o, i): with double quantisation, without, of 8 bits */
#define NO_NESTED (1 << 4 | 1 << 5 | 1 << 6)
#define BOTH_QUANTIZED(text, n, i, o, absent) \
    {text, OP_linear_q, .x = S2(n, i), .y = S2(n, o), .z = S2(o, i), .absent_in = absent}, \
    {text ", no bias", OP_linear_q, .x = S2(n, i), .y = S2(n, o), .z = S2(o, i), .absent_in = (absent) | 1 << 7}, \
    {text, OP_linear_q_dx, .x = S2(n, i), .y = S2(n, o), .z = S2(o, i), .absent_in = absent}
#define EACH_QUANTIZED(text, n, i, o) \
    BOTH_QUANTIZED(text ", nested", n, i, o, 0), BOTH_QUANTIZED(text ", 4 bits", n, i, o, NO_NESTED), \
    BOTH_QUANTIZED(text ", 8 bits", n, i, o, NO_NESTED | 1 << 3)
/* of w (o, i) + b a of rank r: w in numbers, and as EACH_QUANTIZED; then of n rows with o features, with a bias and without */
#define DORA_NORM(text, r, i, o, absent) \
    {text, OP_dora_norm, .x = S2(r, i), .y = S2(o, r), .z = S2(o, i), .attr.dora = {0.75f}, .absent_in = absent}
#define EACH_DORA(text, n, r, i, o) \
    DORA_NORM(text, r, i, o, 1 << 2 | 1 << 3 | NO_NESTED), DORA_NORM(text ", nested", r, i, o, 0), \
    DORA_NORM(text ", 4 bits", r, i, o, NO_NESTED), DORA_NORM(text ", 8 bits", r, i, o, NO_NESTED | 1 << 3), \
    {text, OP_dora, .x = S2(n, o), .z = S1(o)}, {text ", no bias", OP_dora, .x = S2(n, o), .z = S1(o), .absent_in = 1 << 3}, \
    {text, OP_dora_dm, .x = S2(n, o), .z = S1(o)}, \
    {text ", no bias", OP_dora_dm, .x = S2(n, o), .z = S1(o), .absent_in = 1 << 3}
#define PERMUTE(text, X, Y, from_) {text, OP_permute, .x = X, .y = Y, .plain = true, .attr.permute = {from_}}
/* binary_da: of x, which "r" is; of the second operand with the shapes the other way round */
#define EACH_BINARY(text, X, Z, Y) \
    {text ", add", OP_binary, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_ADD, 0}}, \
    {text ", sub", OP_binary, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_SUB, 0}}, \
    {text ", mul", OP_binary, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_MUL, 0}}, \
    {text ", div", OP_binary, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_DIV, 0}}, \
    {text ", add", OP_binary_da, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_ADD, 0}, .absent_in = 6}, \
    {text ", sub", OP_binary_da, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_SUB, 1}, .absent_in = 6}, \
    {text ", mul", OP_binary_da, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_MUL, 0}, .absent_in = 2}, \
    {text ", mul", OP_binary_da, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_MUL, 1}, .absent_in = 4}, \
    {text ", div", OP_binary_da, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_DIV, 0}, .absent_in = 2}, \
    {text ", div", OP_binary_da, .x = X, .z = Z, .y = Y, .plain = true, .attr.binary = {BINARY_DIV, 1}}
#define EACH_SUM(text, X, Y) \
    {text ", sum", OP_reduce, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_SUM}}, \
    {text ", mean", OP_reduce, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_MEAN}}, \
    {text ", max", OP_reduce, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_MAX}}, \
    {text ", norm", OP_reduce, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_NORM}}, \
    {text ", sum", OP_reduce_dx, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_SUM}, .absent_in = 6}, \
    {text ", mean", OP_reduce_dx, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_MEAN}, .absent_in = 6}
#define EACH_MAXIMUM(text, X, Y) \
    {text ", norm", OP_reduce_dx, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_NORM}}, \
    {text ", amax", OP_reduce_dx, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_AMAX}}, \
    {text ", max", OP_reduce_dx, .x = X, .y = Y, .plain = true, .attr.reduce = {REDUCE_MAX}}
#define EACH_TRIANGLE(text, X, diagonal, upper) \
    {text, OP_where, .x = X, .plain = true, .attr.triangle = {diagonal, upper, 0}}, \
    {text ", a number", OP_where, .x = X, .plain = true, .attr.triangle = {diagonal, upper, -7}, .absent_in = 2}
#define LOSS(scale, smoothing, ignore, sum) .attr.loss = {scale, smoothing, ignore, sum, 0, LOSS_MSE, 0}
#define SQUARES(scale, smoothing, ignore, sum) .attr.loss = {scale, smoothing, ignore, sum, 0, LOSS_MSE, 0.05f}
#define OF_LOGARITHMS(scale, ignore, sum) .attr.loss = {scale, 0, ignore, sum, 1, LOSS_MSE, 0}
#define OF_ELEMENTS(f, beta, scale, sum) .attr.loss = {scale, 0, 0, sum, 0, LOSS_##f, beta}
#define SCALED .state = {1024, 3, 0, 5}
#define BOTH_LOSS(text, shape, no_weights, ...) \
    {text, OP_element_loss, .x = shape, .absent_in = no_weights << 2, __VA_ARGS__}, \
    {text, OP_element_loss_dx, .x = shape, .absent_in = no_weights << 3, SCALED, __VA_ARGS__}, \
    {text ", no scaler", OP_element_loss_dx, .x = shape, .absent_in = 1 << 2 | no_weights << 3, __VA_ARGS__}
#define OF_CLASSES(text, N, C, no_weights, no_stats, ...) \
    {text, OP_cross_entropy, .x = S2(N, C), .z = S1(C), .absent_in = no_weights << 2, .absent_out = no_stats << 1, \
     __VA_ARGS__}, \
    {text, OP_cross_entropy_dx, .x = S2(N, C), .z = S1(C), .absent_in = no_weights << 3 | no_stats << 4, SCALED, \
     __VA_ARGS__}, \
    {text ", no scaler", OP_cross_entropy_dx, .x = S2(N, C), .z = S1(C), \
     .absent_in = 1 << 2 | no_weights << 3 | no_stats << 4, __VA_ARGS__}
#define EACH_CLASS_LOSS(text, N, C, no_stats, ...) \
    OF_CLASSES(text, N, C, 1, no_stats, __VA_ARGS__), OF_CLASSES(text ", weights", N, C, 0, no_stats, __VA_ARGS__)
#define EACH_LOSS(f, beta) \
    BOTH_LOSS(#f ", one", ONE, 1, OF_ELEMENTS(f, beta, 1, 0)), \
    BOTH_LOSS(#f ", mean", BIG, 1, OF_ELEMENTS(f, beta, 0.25f, 0)), \
    BOTH_LOSS(#f ", sum of an image", IMAGE, 1, OF_ELEMENTS(f, beta, 1, 1))
#define NO_TARGET(text, shape, sum) \
    {text, OP_element_loss, .x = shape, .absent_in = 1 << 1 | 1 << 2, OF_ELEMENTS(IDENTITY, 0, -0.5f, sum)}, \
    {text, OP_element_loss_dx, .x = shape, .absent_in = 1 << 1 | 1 << 3, SCALED, OF_ELEMENTS(IDENTITY, 0, -0.5f, sum)}, \
    {text ", no scaler", OP_element_loss_dx, .x = shape, .absent_in = 1 << 1 | 1 << 2 | 1 << 3, OF_ELEMENTS(IDENTITY, 0, 1, sum)}
#define RULE(...) .attr = {.optim = {.rule = {__VA_ARGS__}}}
#define PLAIN_IN (1 << 2 | 1 << 3) /* no learning rate that changes, no norm */
#define SGD_CLIPPED(most) RULE(.momentum = 0.9f, .weight_decay = 0.1f, .clip_norm = most)
#define ADAM_CLIPPED(most) RULE(.beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .clip_norm = most)
#define SGD_PLAIN RULE(.lr = 0.1f)
#define SGD_FULL RULE(.lr = 0.1f, .momentum = 0.9f, .dampening = 0.3f, .weight_decay = 0.01f)
#define SGD_NESTEROV RULE(.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = 1)
#define ADAM RULE(.lr = 0.01f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f)
#define ADAMW RULE(.lr = 0.01f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decoupled = 1)
#define AMSGRAD RULE(.lr = 0.01f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.5f, .eps = 1e-8f, .amsgrad = 1)
#define ADAFACTOR(eps1, ...) \
    RULE(.lr = 0.1f, .eps = eps1, .eps2 = 1e-3f, .beta2_decay = -0.8f, __VA_ARGS__), SCALED
#define ADAGRAD(...) RULE(.lr = 0.1f, .eps = 1e-10f, __VA_ARGS__)
#define LION(...) RULE(.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, __VA_ARGS__)
#define ADAMAX(...) RULE(.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-8f, __VA_ARGS__)
#define RADAM(...) RULE(.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-3f, __VA_ARGS__)
#define NADAM(...) \
    RULE(.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-3f, .momentum_decay = 0.004f, .nesterov = 1, __VA_ARGS__)
#define ADADELTA(...) RULE(.lr = 0.5f, .alpha = 0.9f, .eps = 1e-4f, __VA_ARGS__)
#define RMSPROP(...) RULE(.lr = 0.01f, .alpha = 0.9f, .eps = 1e-8f, __VA_ARGS__)

#define ADAM8BIT(block, ...) RULE(.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .block_size = block, \
                                  __VA_ARGS__), SCALED

static const Case cases[] = {
    BOTH_ACT(RELU, ONE), BOTH_ACT(RELU, ODD), BOTH_ACT(RELU, BIG), BOTH_ACT(RELU, IMAGE),
    BOTH_ACT(NONE, ODD), BOTH_ACT(LEAKY, BIG), BOTH_ACT(SIGMOID, BIG), BOTH_ACT(TANH, BIG), BOTH_ACT(GELU, BIG),
    BOTH_ACT(GELU_TANH, BIG), BOTH_ACT(SIGMOID, ONE), BOTH_ACT(TANH, ODD), BOTH_ACT(GELU, ODD),
    BOTH_ACT(GELU_TANH, IMAGE),
    BOTH_ACT(SILU, BIG), BOTH_ACT(ELU, BIG), BOTH_ACT(SOFTPLUS, BIG), BOTH_ACT(HARDSWISH, BIG),
    BOTH_ACT(SILU, ODD), BOTH_ACT(ELU, IMAGE), BOTH_ACT(CELU, BIG), BOTH_ACT(CELU, ODD),
    BOTH_ACT(RELU6, BIG), BOTH_ACT(HARDTANH, BIG), BOTH_ACT(HARDSIGMOID, BIG), BOTH_ACT(MISH, BIG),
    BOTH_ACT(LOGSIGMOID, BIG), BOTH_ACT(SOFTSIGN, BIG), BOTH_ACT(MISH, ODD), BOTH_ACT(LOGSIGMOID, IMAGE),
    BOTH_ACT(SELU, BIG), BOTH_ACT(ABS, ODD), BOTH_ACT(EXP, BIG), BOTH_ACT(SCALE, BIG), BOTH_ACT(SCALE, IMAGE),
    BYTES("one byte", ONE, S1(1), 1), BYTES("all alike", BIG, S1(1), 1), BYTES("an image", IMAGE, S1(3), 1),
    BYTES("features", ODD, S1(7), 0), BYTES("channels of an image", IMAGE, S1(3), 0), BYTES("lines", S3(3, 5, 701), S1(5), 0),
    BYTES("a large image", S4(2, 3, 37, 41), S1(3), 0),
    BOTH_GLU("two elements", S2(1, 2), ONE, 1), BOTH_GLU("rows", S2(3, 14), ODD, 1), BOTH_GLU("wide", S2(5, 8002), BIG, 1),
    BOTH_GLU("the batch", S2(6, 7), ODD, 0), BOTH_GLU("channels", S4(2, 6, 5, 7), IMAGE, 1),
    BOTH_GLU("width", S4(2, 3, 5, 14), IMAGE, 3), BOTH_GLU("steps", S3(3, 80, 5), S3(3, 40, 5), 1),
    BOTH_GLU("features of steps", S3(3, 40, 10), S3(3, 40, 5), 2),
    EACH_SPREAD("a gate of channels", IMAGE, S4(2, 3, 1, 1)), EACH_SPREAD("of pixels", IMAGE, S4(2, 1, 5, 7)),
    EACH_SPREAD("of many channels", S4(2, 2051, 3, 2), S4(2, 2051, 1, 1)), EACH_SPREAD("one for all", ODD, S2(3, 1)),
    EACH_SPREAD("of many pixels", S4(3, 5, 37, 41), S4(3, 5, 1, 1)),
    EACH_SPREAD("of steps", S3(2, 70, 9), S3(2, 70, 1)),
    EACH_SPREAD("of features", S3(2, 9, 70), S3(2, 1, 70)), EACH_SPREAD("of samples", S3(2, 9, 300), S3(2, 1, 1)),
    EACH_SPREAD("one element", ONE, ONE), EACH_SPREAD("of rows of pixels", IMAGE, S4(2, 1, 5, 1)),
    EACH_SPREAD("of features of many samples", S3(23, 3, 100), S3(23, 1, 100)), /* on the CPU in groups of 128 columns */
    EACH_SPREAD("of whole words", S3(3, 9, 72), S3(3, 1, 72)), EACH_SPREAD("of many features", S4(2, 12, 5, 7), S4(2, 12, 1, 1)),
    BOTH_ACT(LOG, BIG), BOTH_ACT(SQRT, BIG), BOTH_ACT(RSQRT, BIG), BOTH_ACT(POW, BIG), BOTH_ACT(POW, ODD),
    {"a square", OP_act, .x = BIG, .attr.act = {.act = ACT_POW, .slope = 2}},
    {"a square", OP_act_dx, .x = BIG, .attr.act = {.act = ACT_POW, .slope = 2}},
    {"a cube", OP_act_dx, .x = ODD, .attr.act = {.act = ACT_POW, .slope = 3}},
    BOTH_ACT(SIN, BIG), BOTH_ACT(COS, ODD), BOTH_ACT(RECIPROCAL, BIG), BOTH_ACT(RECIPROCAL, IMAGE),
    EACH_BINARY("one shape", BIG, BIG, BIG), EACH_BINARY("a row", BIG, S1(4001), BIG),
    EACH_BINARY("a column", BIG, S2(5, 1), BIG), EACH_BINARY("both", S3(3, 1, 70), S3(1, 40, 1), S3(3, 40, 70)),
    EACH_BINARY("one for all", ODD, S1(1), ODD), EACH_BINARY("a smaller first", S1(7), ODD, ODD),
    EACH_BINARY("two dimensions", S4(2, 5, 1, 7), S2(6, 7), S4(2, 5, 6, 7)), EACH_BINARY("one element", ONE, ONE, ONE),
    EACH_BINARY("a gate", S4(2, 3, 5, 70), S3(3, 1, 70), S4(2, 3, 5, 70)),
    EACH_BINARY("small planes", S4(37, 1, 3, 8), S4(37, 11, 1, 8), S4(37, 11, 3, 8)), /* several to a block */
    EACH_BINARY("a first row of many", S3(1, 1, 300), S3(4, 50, 300), S3(4, 50, 300)),
    {"more rows than blocks, sum", OP_reduce, .x = S2(259, 131), .y = S2(259, 1), .plain = true, .attr.reduce = {REDUCE_SUM}},
    {"more rows than blocks, max", OP_reduce, .x = S2(259, 131), .y = S2(259, 1), .plain = true, .attr.reduce = {REDUCE_MAX}},
    EACH_SUM("many columns", S2(131, 300), S2(1, 300)), /* more of them than an emulated GPU has at once */
    EACH_SUM("rows", BIG, S2(5, 1)), EACH_SUM("columns", BIG, S2(1, 4001)), EACH_SUM("short rows", S2(7, 131), S2(7, 1)), EACH_MAXIMUM("short rows", S2(7, 131), S2(7, 1)),
    EACH_SUM("pairs", S2(41, 2), S2(41, 1)), EACH_MAXIMUM("pairs", S2(41, 2), S2(41, 1)), EACH_SUM("rows of three", S2(41, 3), S2(41, 1)), /* some all below 0 */
    EACH_SUM("everything", ODD, ONE), EACH_MAXIMUM("everything", ODD, ONE), EACH_SUM("the middle", S3(4, 20, 33), S3(4, 1, 33)), EACH_MAXIMUM("the middle", S3(4, 20, 33), S3(4, 1, 33)),
    EACH_SUM("both ends", S3(4, 20, 33), S3(1, 20, 1)), EACH_MAXIMUM("both ends", S3(4, 20, 33), S3(1, 20, 1)), EACH_SUM("nothing", ODD, ODD), EACH_MAXIMUM("nothing", ODD, ODD),
    EACH_SUM("of four", S4(2, 3, 30, 5), S4(2, 1, 30, 1)), EACH_MAXIMUM("of four", S4(2, 3, 30, 5), S4(2, 1, 30, 1)), EACH_SUM("one element", ONE, ONE), EACH_MAXIMUM("one element", ONE, ONE),
    EACH_SUM("wide", S3(4, 9, 530), S3(4, 1, 530)), EACH_MAXIMUM("wide", S3(4, 9, 530), S3(4, 1, 530)), /* on the CPU in groups of 128 columns */
    EACH_SUM("rows longer than a block", S2(2, 5000), S2(2, 1)), EACH_MAXIMUM("rows longer than a block", S2(2, 5000), S2(2, 1)),
    EACH_SUM("of four, between", S4(2, 3, 30, 5), S4(1, 3, 1, 5)), EACH_MAXIMUM("of four, between", S4(2, 3, 30, 5), S4(1, 3, 1, 5)),
    EACH_SUM("rows of several", S3(3, 7, 200), S3(1, 7, 1)), EACH_MAXIMUM("rows of several", S3(3, 7, 200), S3(1, 7, 1)),
    EACH_TRIANGLE("causal", S4(2, 3, 9, 9), 0, 0), EACH_TRIANGLE("later keys", S3(2, 40, 70), 30, 0),
    EACH_TRIANGLE("upper", S2(70, 40), 1, 1), EACH_TRIANGLE("below it", ODD, -2, 1),
    EINSUM("a matrix product", S2(5, 7), S2(7, 3), S2(5, 3), L2(0, 1), L2(1, 2), L2(0, 2)),
    EINSUM("of transposed matrices", S2(70, 50), S2(30, 70), S2(50, 30), L2(1, 0), L2(2, 1), L2(0, 2)),
    EINSUM("one that is transposed", S2(50, 70), S2(70, 30), S2(30, 50), L2(0, 1), L2(1, 2), L2(2, 0)),
    EINSUM("of one element", ONE, ONE, ONE, L2(0, 1), L2(1, 2), L2(0, 2)),
    EINSUM("many", S3(6, 16, 24), S3(6, 24, 8), S3(6, 16, 8), L3(3, 0, 1), L3(3, 1, 2), L3(3, 0, 2)),
    EINSUM("scores of heads", S4(2, 17, 3, 8), S4(2, 12, 3, 8), S4(2, 3, 17, 12), L4(0, 1, 2, 3), L4(0, 4, 2, 3),
           L4(0, 2, 1, 4)),
    EINSUM("values of heads", S4(2, 3, 17, 12), S4(2, 12, 3, 8), S4(2, 17, 3, 8), L4(0, 2, 1, 4), L4(0, 4, 2, 3),
           L4(0, 1, 2, 3)),
    EINSUM("one matrix for all", S4(2, 3, 5, 9), S2(9, 4), S4(2, 3, 5, 4), L4(4, 3, 0, 1), L2(1, 2), L4(4, 3, 0, 2)),
    EINSUM("a sum over the batch", S3(4, 9, 8), S3(4, 9, 12), S2(8, 12), L3(0, 1, 2), L3(0, 1, 3), L2(2, 3)),
    EINSUM("sums over two labels apart", S4(3, 5, 4, 7), S4(4, 6, 5, 7), S2(3, 6), L4(0, 1, 2, 3), L4(2, 4, 1, 3),
           L2(0, 4)),
    EINSUM("a dot product of rows", S2(5, 300), S2(5, 300), S1(5), L2(0, 1), L2(0, 1), L1(0)),
    EINSUM("a dot product of columns", S2(300, 5), S2(300, 5), S1(5), L2(1, 0), L2(1, 0), L1(0)),
    EINSUM("an outer product", S1(50), S1(70), S2(50, 70), L1(0), L1(1), L2(0, 1)),
    EINSUM("one of two is broadcast", S3(1, 6, 8), S3(4, 8, 5), S3(4, 6, 5), L3(9, 0, 1), L3(3, 1, 2), L3(3, 0, 2)),
    EINSUM("of many threads", S4(3, 4, 70, 33), S4(3, 4, 33, 65), S4(3, 4, 70, 65), L4(0, 1, 2, 3), L4(0, 1, 3, 4),
           L4(0, 1, 2, 4)),
    EACH_QUANTIZED("one weight", 1, 1, 1), EACH_QUANTIZED("odd", 3, 7, 5), EACH_QUANTIZED("whole blocks", 5, 128, 70),
    EACH_QUANTIZED("rows of half a block", 9, 96, 33), EACH_QUANTIZED("many blocks", 4, 200, 331),
    EACH_QUANTIZED("several strips", 70, 330, 290), EACH_QUANTIZED("many rows", 300, 200, 150),
    {"steps", OP_linear_q, .x = S3(2, 3, 65), .y = S3(2, 3, 10), .z = S2(10, 65)},
    {"steps", OP_linear_q_dx, .x = S3(2, 3, 65), .y = S3(2, 3, 10), .z = S2(10, 65)},
    {"several panels", OP_linear_q, .x = S2(2, 32768), .y = S2(2, 200), .z = S2(200, 32768), .absent_in = NO_NESTED, .terms = 32768},
    {"several panels", OP_linear_q_dx, .x = S2(2, 200), .y = S2(2, 32768), .z = S2(32768, 200), .terms = 32768},
    EACH_DORA("one weight", 1, 1, 1, 1), EACH_DORA("odd", 3, 2, 7, 5), EACH_DORA("whole blocks", 5, 8, 128, 70),
    EACH_DORA("several pieces", 300, 3, 1111, 17), EACH_DORA("many features", 9, 4, 33, 1037),
    EACH_DORA("many ranks", 2, 41, 264, 70),
    {"steps", OP_dora, .x = S3(2, 3, 10), .z = S1(10)}, {"steps", OP_dora_dm, .x = S3(2, 3, 10), .z = S1(10)},
    PERMUTE("transposed", S2(33, 70), S2(70, 33), L2(1, 0)), PERMUTE("rows move", S3(5, 9, 40), S3(9, 5, 40), L3(1, 0, 2)),
    PERMUTE("all", S4(2, 7, 3, 5), S4(5, 2, 3, 7), L4(3, 0, 2, 1)), PERMUTE("heads", S4(2, 31, 4, 16), S4(2, 4, 31, 16),
    L4(0, 2, 1, 3)), PERMUTE("one row", S2(1, 9), S2(9, 1), L2(1, 0)),
    EACH_BATCHNORM("features", S2(13, 7), S1(7)), EACH_BATCHNORM("two samples", S2(2, 3), S1(3)),
    EACH_BATCHNORM("image", IMAGE, S1(3)), EACH_BATCHNORM("many rows", S4(3, 5, 37, 41), S1(5)),
    EACH_BATCHNORM("many channels", S4(2, 1037, 3, 2), S1(1037)), EACH_BATCHNORM("wide rows", S2(9, 4001), S1(4001)),
    EACH_BATCHNORM("whole words", S4(2, 40, 9, 8), S1(40)), EACH_BATCHNORM("many channels, whole words", S2(150, 264), S1(264)),
    {"no parameters", OP_batchnorm, .x = IMAGE, .z = S1(3), NORM(1, 0, 0.1f), .absent_in = 6},
    {"not tracked", OP_batchnorm, .x = IMAGE, .z = S1(3), NORM(1, 0, 0.1f), .absent_out = 7 << 3},
    {"mean of all batches", OP_batchnorm, .x = IMAGE, .z = S1(3), NORM(1, 0, -1), .calls = 3},
    {"no parameters", OP_batchnorm_eval, .x = IMAGE, .z = S1(3), NORM(1, 0, 0), .absent_in = 6},
    {"no parameters", OP_batchnorm_again, .x = IMAGE, .z = S1(3), NORM(1, 0, 0), .absent_in = 6},
    {"no parameters", OP_batchnorm_dx, .x = IMAGE, .z = S1(3), NORM(1, 0, 0), .absent_in = 4},
    EACH_NORM("rows", S2(13, 7), S2(13, 1), S1(7), NORM(1, 1, 0)),
    EACH_NORM("steps", S3(5, 9, 40), S2(45, 1), S1(40), NORM(2, 1, 0)),
    EACH_NORM("wide rows", S2(9, 4001), S2(9, 1), S1(4001), NORM(1, 1, 0)),
    EACH_NORM("many rows", S2(150, 40), S2(150, 1), S1(40), NORM(1, 1, 0)), /* more than an emulated GPU has at once */
    EACH_NORM("rows of two warps", S2(5, 1032), S2(5, 1), S1(1032), NORM(1, 1, 0)),
    EACH_NORM("rows of eight warps", S2(3, 4104), S2(3, 1), S1(4104), NORM(1, 1, 0)),
    EACH_RMSNORM("rms of eight warps", S2(3, 4104), S2(3, 1), S1(4104), NORM(1, 1, 0)),
    EACH_NORM("rows too wide for registers", S2(2, 8200), S2(2, 1), S1(8200), NORM(1, 1, 0)),
    EACH_NORM("groups of features", S2(5, 12), S2(5, 3), S1(12), NORM(1, 3, 0)),
    EACH_NORM("groups of an image", S4(3, 6, 5, 7), S2(3, 2), S1(6), NORM(1, 2, 0)),
    EACH_NORM("groups of whole words", S4(3, 32, 5, 7), S2(3, 2), S1(32), NORM(1, 2, 0)),
    EACH_NORM("whole words, odd groups", S4(3, 24, 5, 7), S2(3, 2), S1(24), NORM(1, 2, 0)),
    EACH_NORM("one group", S4(2, 600, 3, 5), S2(2, 1), S1(600), NORM(1, 1, 0)),
    EACH_NORM("a group per channel", IMAGE, S2(2, 3), S1(3), NORM(1, 3, 0)),
    EACH_RMSNORM("rms", S2(13, 7), S2(13, 1), S1(7), NORM(1, 1, 0)),
    EACH_RMSNORM("rms of steps", S3(5, 9, 40), S2(45, 1), S1(40), NORM(2, 1, 0)),
    EACH_RMSNORM("rms of wide rows", S2(9, 4001), S2(9, 1), S1(4001), NORM(1, 1, 0)),
    EACH_NORM("a group per channel, wide", S4(1, 269, 3, 5), S2(1, 269), S1(269), NORM(1, 269, 0)),
    EACH_NORM("a group per channel, lines", S4(3, 19, 1, 40), S2(3, 19), S1(19), NORM(1, 19, 0)),
    {"no bias", OP_norm, .x = S2(13, 7), .y = S2(13, 1), .z = S1(7), NORM(1, 1, 0), .absent_in = 4},
    {"no parameters", OP_norm, .x = S2(13, 7), .y = S2(13, 1), .z = S1(7), NORM(1, 1, 0), .absent_in = 6},
    {"no parameters", OP_norm_dx, .x = S2(13, 7), .y = S2(13, 1), .z = S1(7), NORM(1, 1, 0), .absent_in = 4},
    {"no db", OP_norm_dw, .x = S2(13, 7), .y = S2(13, 1), .z = S1(7), NORM(1, 1, 0), .absent_out = 2},
    EACH_PRELU("one slope", BIG, S1(1)), EACH_PRELU("one slope, image", IMAGE, S1(1)), EACH_PRELU("one", ONE, S1(1)),
    EACH_PRELU("channels", IMAGE, S1(3)), EACH_PRELU("features", BIG, S1(4001)),
    EACH_PRELU("many rows", S4(3, 5, 37, 41), S1(5)),
    EACH_PRELU("whole words", S4(3, 12, 5, 7), S1(12)),
    BOTH_SOFTMAX("one", ONE, 1), BOTH_SOFTMAX("rows", S2(13, 10), 1), BOTH_SOFTMAX("batch", S2(13, 10), 0),
    BOTH_SOFTMAX("wide", BIG, 1), BOTH_SOFTMAX("channels", IMAGE, 1), BOTH_SOFTMAX("height", IMAGE, 2),
    BOTH_SOFTMAX("long columns", S3(2, 1100, 70), 1), BOTH_SOFTMAX("wide columns", S3(4, 9, 530), 1),
    BOTH_SOFTMAX("steps", S3(3, 40, 5), 1), BOTH_SOFTMAX("features of steps", S3(3, 40, 5), 2),
    BOTH_SOFTMAX("whole words", S2(11, 1032), 1), BOTH_SOFTMAX("half words", S2(9, 4100), 1), /* more rows than an emulated GPU has at once */
    BOTH_SOFTMAX("lines of sixteen warps", S2(3, 8301), 1), BOTH_SOFTMAX("just longer than a warp", S2(9, 1021), 1),
    BOTH_SOFTMAX("longer than registers", S2(2, 16392), 1), BOTH_SOFTMAX("longer than registers, odd", S2(3, 16501), 1),
    BOTH_TABLE("words", S3(3, 17, 5), S2(3, 17), S2(11, 5), -1, 0),
    BOTH_TABLE("more words than a round has", S3(1, 1101, 3), S2(1, 1101), S2(5, 3), -1, 0),
    BOTH_TABLE("padding", S3(3, 17, 5), S2(3, 17), S2(11, 5), 4, 0),
    BOTH_TABLE("some rows", S3(3, 17, 5), S2(3, 17), S2(11, 5), 15, 11),
    BOTH_TABLE("one", S2(1, 1), S1(1), S2(1, 1), -1, 0), BOTH_TABLE("wide", S2(7, 1537), S1(7), S2(5, 1537), -1, 0),
    BOTH_TABLE("whole words", S3(3, 5, 1032), S2(3, 5), S2(7, 1032), 2, 0),
    BOTH_TABLE("many rows", S3(1, 400, 8), S2(1, 400), S2(331, 8), 17, 0),
    BOTH_TABLE("some of many rows", S3(1, 2500, 5), S2(1, 2500), S2(37, 5), 40, 37),
    BOTH_ROWS("all", S3(3, 7, 5), S2(7, 5), 0), BOTH_ROWS("some", S3(4, 7, 301), S2(11, 301), 0),
    BOTH_ROWS("later ones", S3(4, 7, 301), S2(15, 301), 6),
    BOTH_ROWS("whole words", S3(3, 7, 12), S2(11, 12), 3), BOTH_ROWS("whole words at an odd place", S3(3, 4, 5), S2(11, 5), 3),
    EACH_ROTARY("one pair", S3(1, 1, 2), 2, 10000, STEPS), EACH_ROTARY("two heads", S3(2, 5, 12), 6, 10000, STEPS),
    EACH_ROTARY("whole words", S3(3, 37, 48), 16, 500000, STEPS), EACH_ROTARY("wide heads", S3(2, 3, 2560), 512, 100, STEPS),
    EACH_ROTARY("positions", S3(2, 5, 12), 6, 10000, .z = S2(2, 5)),
    EACH_ROTARY("positions, whole words", S3(3, 37, 48), 16, 500000, .z = S2(3, 37)),
    BOTH_UPSAMPLE("nearest, twice", IMAGE, S4(2, 3, 10, 14), {0.5f, 0.5f}, 0, 0),
    BOTH_UPSAMPLE("nearest, uneven", IMAGE, S4(2, 3, 7, 18), {5 / 7.0f, 7 / 18.0f}, 0, 0),
    BOTH_UPSAMPLE("nearest, smaller", IMAGE, S4(2, 3, 3, 2), {5 / 3.0f, 3.5f}, 0, 0),
    BOTH_UPSAMPLE("bilinear, twice", IMAGE, S4(2, 3, 10, 14), {0.5f, 0.5f}, 1, 0),
    BOTH_UPSAMPLE("bilinear, uneven", IMAGE, S4(2, 3, 8, 17), {0.625f, 7 / 17.0f}, 1, 0),
    BOTH_UPSAMPLE("bilinear, smaller", IMAGE, S4(2, 3, 2, 4), {2.5f, 1.75f}, 1, 0),
    BOTH_UPSAMPLE("corners", IMAGE, S4(2, 3, 9, 13), {0.5f, 0.5f}, 1, 1),
    BOTH_UPSAMPLE("corners, one pixel", IMAGE, S4(2, 3, 1, 13), {0, 0.5f}, 1, 1),
    BOTH_UPSAMPLE("wide rows", S4(1, 40, 2, 130), S4(1, 40, 4, 260), {0.5f, 0.5f}, 1, 0),
    BOTH_UPSAMPLE("far larger", S4(1, 3, 3, 2), S4(1, 3, 12, 2048), {0.25f, 1 / 1024.0f}, 1, 0),
    BOTH_UPSAMPLE("one pixel", S4(1, 600, 1, 1), S4(1, 600, 2, 3), {0.5f, 1 / 3.0f}, 1, 0),
    {"places that 32 bits of a count of blocks do not hold", OP_dropout, .x = S2(3, 213), .calls = 5,
     .attr.drop = {0.3f, 7, 0, 0, .within = {((int64_t)1 << 36) - 40, 70, (int64_t)1 << 34}}},
    {"channels", OP_dropout, .x = S4(3, 19, 5, 7), .attr.drop = {0.5f, 7, 0, 1}, .calls = 5},
    {"channels", OP_dropout_dx, .x = S4(3, 19, 5, 7), .attr.drop = {0.5f, 7, 0, 1}, .calls = 5},
    {"samples", OP_dropout, .x = S4(37, 1, 1, 301), .attr.drop = {0.5f, 8, 0, 1}, .calls = 6},
    {"samples, wide", OP_dropout_dx, .x = S4(3, 1, 1, 4001), .attr.drop = {0.5f, 8, 0, 1}, .calls = 7},
    {"the batch", OP_dropout, .x = S4(1, 1, 37, 301), .attr.drop = {0.5f, 9, 0, 1}, .calls = 5},
    {"the batch", OP_dropout_dx, .x = S4(1, 1, 37, 301), .attr.drop = {0.25f, 9, 0, 1}, .calls = 4},
    BOTH_POOL(maxpool, "one pixel", S4(1, 1, 1, 1), S4(1, 1, 1, 1), POOL(1, 1, 1, 1, 0, 0, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "2x2", S4(3, 19, 8, 6), S4(3, 19, 4, 3), POOL(2, 2, 2, 2, 0, 0, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "3x3 overlapping, padded", S4(2, 5, 7, 9), S4(2, 5, 4, 5), POOL(3, 3, 2, 2, 1, 1, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "3x2 dilated, oblong", S4(2, 3, 11, 8), S4(2, 3, 8, 6), POOL(3, 2, 1, 1, 1, 0, 3, 2, 0, 0)),
    BOTH_POOL(maxpool, "ceil_mode", S4(2, 3, 6, 8), S4(2, 3, 3, 4), POOL(3, 3, 2, 2, 0, 0, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "wide rows", S4(1, 40, 3, 201), S4(1, 40, 2, 101), POOL(3, 3, 2, 2, 1, 1, 1, 1, 0, 0)),
    BOTH_POOL(maxpool, "many channels", S4(1, 1037, 4, 4), S4(1, 1037, 2, 2), POOL(2, 2, 2, 2, 0, 0, 1, 1, 0, 0)),
    {"ReLU", OP_maxpool, .x = S4(3, 19, 8, 6), .y = S4(3, 19, 4, 3), POOL_RELU(2, 2, 2, 2, 0, 0, 1, 1)},
    {"ReLU, overlapping, padded", OP_maxpool, .x = S4(2, 8, 7, 9), .y = S4(2, 8, 4, 5),
     POOL_RELU(3, 3, 2, 2, 1, 1, 1, 1)},
    {"without idx", OP_maxpool, .x = IMAGE, .y = S4(2, 3, 2, 3), POOL(2, 2, 2, 2, 0, 0, 1, 1, 0, 0),
     .absent_out = 1 << 1},
    BOTH_POOL(avgpool, "one pixel", S4(1, 1, 1, 1), S4(1, 1, 1, 1), POOL(1, 1, 1, 1, 0, 0, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "2x2", S4(3, 19, 8, 6), S4(3, 19, 4, 3), POOL(2, 2, 2, 2, 0, 0, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "gaps between windows", S4(2, 3, 8, 9), S4(2, 3, 3, 2), POOL(2, 3, 3, 5, 0, 0, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "padding counted", S4(2, 5, 7, 9), S4(2, 5, 4, 5), POOL(3, 3, 2, 2, 1, 1, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "padding not counted", S4(2, 5, 7, 9), S4(2, 5, 4, 5), POOL(3, 3, 2, 2, 1, 1, 1, 1, 0, 0)),
    BOTH_POOL(avgpool, "divisor", S4(2, 5, 7, 9), S4(2, 5, 4, 5), POOL(3, 3, 2, 2, 1, 1, 1, 1, 1, 5)),
    BOTH_POOL(avgpool, "ceil_mode, padding counted", S4(2, 3, 6, 8), S4(2, 3, 4, 5),
              POOL(3, 3, 2, 2, 1, 1, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "ceil_mode, not counted", S4(2, 3, 6, 8), S4(2, 3, 3, 4), POOL(3, 3, 2, 2, 0, 0, 1, 1, 0, 0)),
    BOTH_POOL(avgpool, "wide rows", S4(1, 40, 3, 201), S4(1, 40, 2, 101), POOL(3, 3, 2, 2, 1, 1, 1, 1, 1, 0)),
    BOTH_POOL(avgpool, "many channels", S4(1, 1037, 4, 4), S4(1, 1037, 2, 2), POOL(2, 2, 2, 2, 0, 0, 1, 1, 1, 0)),
    BOTH_POOL(adaptive_avgpool, "to one", S4(2, 19, 5, 7), S4(2, 19, 1, 1), .micro = 0),
    BOTH_POOL(adaptive_avgpool, "uneven", S4(2, 3, 10, 7), S4(2, 3, 4, 3), .micro = 0),
    BOTH_POOL(adaptive_avgpool, "same", IMAGE, IMAGE, .micro = 0),
    BOTH_POOL(adaptive_avgpool, "larger", S4(1, 3, 3, 2), S4(1, 3, 7, 5), .micro = 0),
    BOTH_POOL(adaptive_avgpool, "long windows", S4(1, 3, 4, 1300), S4(1, 3, 2, 2), .micro = 0),
    {"one", OP_dropout, .x = ONE, .attr.drop = {0.5f, 1, 0}},
    {"odd", OP_dropout, .x = ODD, .attr.drop = {0.25f, 2, 0}, .calls = 13},
    {"several blocks", OP_dropout, .x = BIG, .attr.drop = {0.5f, 3, 0}, .calls = 3},
    {"image", OP_dropout, .x = IMAGE, .attr.drop = {0.1f, 4, 0}},
    {"of a slice of steps", OP_dropout, .x = S3(5, 7, 43), .attr.drop = {0.5f, 3, 0, 0, {602, 301, 1204}}, .calls = 3},
    {"of a slice of features", OP_dropout_dx, .x = S2(97, 33), .attr.drop = {0.25f, 4, 0, 0, {33, 33, 99}}, .calls = 2},
    {"p = 0", OP_dropout, .x = ODD, .attr.drop = {0, 5, 0}},
    {"p = 1", OP_dropout, .x = BIG, .attr.drop = {1, 6, 0}},
    {"gradient", OP_dropout_dx, .x = BIG, .attr.drop = {0.5f, 3, 0}, .calls = 3},
    {"one", OP_randn, .x = ONE, .attr.drop = {0, 1, 0}},
    {"odd", OP_randn, .x = ODD, .attr.drop = {0, 2, 0}, .calls = 13},
    {"several blocks", OP_randn, .x = BIG, .attr.drop = {0, 3, 0}, .calls = 3},
    {"image", OP_randn, .x = IMAGE},
    {"gradient of an image", OP_dropout_dx, .x = IMAGE, .attr.drop = {0.1f, 4, 0}},
    {"one", OP_add, .x = ONE}, {"odd", OP_add, .x = ODD}, {"several blocks", OP_add, .x = BIG},
    {"image", OP_add, .x = IMAGE},
    {"one", OP_mul, .x = ONE}, {"odd", OP_mul, .x = ODD}, {"several blocks", OP_mul, .x = BIG},
    {"image", OP_mul, .x = IMAGE}, BOTH_GATED(SILU, BIG), BOTH_GATED(GELU, ODD), BOTH_GATED(GELU_TANH, IMAGE), BOTH_GATED(SILU, ONE),
    {"channels", OP_concat, .x = IMAGE, .z = S4(2, 4, 5, 7), .y = S4(2, 10, 5, 7), AXIS(1, 0)},
    {"height", OP_concat, .x = IMAGE, .z = S4(2, 3, 1, 7), .y = S4(2, 3, 11, 7), AXIS(2, 0)},
    {"width", OP_concat, .x = IMAGE, .z = S4(2, 3, 5, 2), .y = S4(2, 3, 5, 16), AXIS(3, 0)},
    {"batch", OP_concat, .x = IMAGE, .z = S4(1, 3, 5, 7), .y = S4(5, 3, 5, 7), AXIS(0, 0)},
    {"features", OP_concat, .x = BIG, .z = S2(5, 7), .y = S2(5, 8009), AXIS(1, 0)},
    {"one value", OP_concat, .x = S4(2, 300, 5, 7), .y = S4(2, 300, 5, 7), AXIS(1, 0), .absent_in = 6},
    {"two values", OP_concat, .x = ODD, .z = S2(3, 2), .y = S2(3, 9), AXIS(1, 0), .absent_in = 4},
    {"steps", OP_concat, .x = S3(3, 4, 5), .z = S3(3, 1, 5), .y = S3(3, 9, 5), AXIS(1, 0)},
    {"whole words", OP_concat, .x = S2(3, 24), .z = S2(3, 40), .y = S2(3, 88), AXIS(1, 0)},
    {"half words", OP_concat, .x = S2(3, 24), .z = S2(3, 12), .y = S2(3, 60), AXIS(1, 0)},
    {"quarters of words", OP_concat, .x = S2(3, 6), .z = S2(3, 12), .y = S2(3, 24), AXIS(1, 0)},
    BOTH_PARTS("channels", IMAGE, S4(2, 1, 5, 7), AXIS(1, 1)), BOTH_PARTS("height", IMAGE, S4(2, 3, 2, 7), AXIS(2, 3)),
    BOTH_PARTS("width", IMAGE, S4(2, 3, 5, 6), AXIS(3, 0)), BOTH_PARTS("all", IMAGE, IMAGE, AXIS(1, 0)),
    BOTH_PARTS("features", BIG, S2(5, 4000), AXIS(1, 1)), BOTH_PARTS("batch", BIG, S2(2, 4001), AXIS(0, 3)),
    BOTH_PARTS("whole words", S2(9, 264), S2(9, 80), AXIS(1, 40)), BOTH_PARTS("halves of words", S2(9, 264), S2(9, 80), AXIS(1, 44)),
    {"channels", OP_roll, .x = IMAGE, AXIS(1, 2)}, {"height", OP_roll, .x = IMAGE, AXIS(2, 1)},
    {"width", OP_roll, .x = IMAGE, AXIS(3, 6)}, {"batch", OP_roll, .x = IMAGE, AXIS(0, 1)},
    {"features", OP_roll, .x = BIG, AXIS(1, 1234)}, {"steps", OP_roll, .x = S3(3, 4, 5), AXIS(1, 3)},
    {"whole words", OP_roll, .x = S2(5, 264), AXIS(1, 40)},
    BOTH_PARTS("last step", S3(3, 4, 5), S3(3, 1, 5), AXIS(1, 3)),
    {"one", OP_bias_db, .x = ONE, .z = S1(1)}, {"many features", OP_bias_db, .x = BIG, .z = S1(4001)},
    {"image", OP_bias_db, .x = S4(3, 67, 9, 5), .z = S1(67)}, {"steps", OP_bias_db, .x = S3(3, 40, 5), .z = S1(5)},
    {"two rows side by side", OP_bias_db, .x = S2(301, 30), .z = S1(30)},
    {"few features, many rows", OP_bias_db, .x = S2(9001, 3), .z = S1(3)}, {"parts of the rows", OP_bias_db, .x = S2(777, 100), .z = S1(100)},
    {"odd", OP_copy, .x = ODD}, {"several blocks", OP_copy, .x = BIG}, {"image", OP_copy, .x = IMAGE},
    {"one", OP_cast, .x = ONE}, {"odd", OP_cast, .x = ODD}, {"several blocks", OP_cast, .x = BIG},
    {"image", OP_cast, .x = IMAGE},
    {"same storage", OP_view, .x = ODD},
    {"image", OP_nhwc_to_nchw, .x = IMAGE}, {"flattened", OP_nhwc_to_nchw, .x = S2(2, 105), .order = {3, 5, 7}},
    {"more pieces than blocks", OP_nhwc_to_nchw, .x = S4(130, 33, 1, 2)}, {"more tiles than blocks", OP_nhwc_to_nchw, .x = S4(260, 5, 1, 2)},
    {"odd pieces", OP_nhwc_to_nchw, .x = S4(3, 67, 9, 5)}, {"pairs of two channels", OP_nhwc_to_nchw, .x = S4(2, 66, 9, 5)},
    {"pieces of fewer channels", OP_nhwc_to_nchw, .x = S4(1, 40, 27, 31)}, {"tiles", OP_nhwc_to_nchw, .x = S4(1, 37, 33, 40)}, {"one", OP_nhwc_to_nchw, .x = S4(1, 1, 1, 1)},
    {"three pixels", OP_nhwc_to_nchw, .x = S4(3, 41, 1, 3)}, {"four channels", OP_nhwc_to_nchw, .x = S4(2, 4, 9, 5)},
    {"image", OP_nhwc_to_nchw_dx, .x = IMAGE}, {"flattened", OP_nhwc_to_nchw_dx, .x = S2(2, 105), .order = {3, 5, 7}},
    {"more pieces than blocks", OP_nhwc_to_nchw_dx, .x = S4(130, 33, 1, 2)}, {"more tiles than blocks", OP_nhwc_to_nchw_dx, .x = S4(260, 5, 1, 2)},
    {"odd pieces", OP_nhwc_to_nchw_dx, .x = S4(3, 67, 9, 5)}, {"pairs of two channels", OP_nhwc_to_nchw_dx, .x = S4(2, 66, 9, 5)},
    {"pieces of fewer channels", OP_nhwc_to_nchw_dx, .x = S4(1, 40, 27, 31)}, {"tiles", OP_nhwc_to_nchw_dx, .x = S4(1, 37, 33, 40)}, {"one", OP_nhwc_to_nchw_dx, .x = S4(1, 1, 1, 1)},
    {"three pixels", OP_nhwc_to_nchw_dx, .x = S4(3, 41, 1, 3)}, {"four channels", OP_nhwc_to_nchw_dx, .x = S4(2, 4, 9, 5)},
    EACH_CLASS_LOSS("one sample", 1, 2, 1, LOSS(1, 0, -100, 0)),
    EACH_CLASS_LOSS("mean", 13, 10, 1, LOSS(0.5f, 0, -100, 0)),
    EACH_CLASS_LOSS("sum", 13, 10, 0, LOSS(1, 0, -100, 1)),
    EACH_CLASS_LOSS("ignored", 13, 5, 1, LOSS(1, 0, 2, 0)),
    EACH_CLASS_LOSS("smoothed, ignored", 13, 5, 0, LOSS(1, 0.1f, 2, 0)),
    EACH_CLASS_LOSS("many", 451, 37, 1, LOSS(1, 0.1f, -100, 0)),
    EACH_CLASS_LOSS("the most of few classes", 67, 64, 0, LOSS(1, 0.1f, 2, 0)),
    EACH_CLASS_LOSS("one more", 33, 65, 1, LOSS(1, 0, 2, 0)),
    EACH_CLASS_LOSS("many classes", 5, 4001, 0, LOSS(1, 0, 2, 0)),
    EACH_CLASS_LOSS("many classes, smoothed", 5, 1301, 1, LOSS(1, 0.1f, -100, 0)),
    EACH_CLASS_LOSS("whole words", 5, 528, 1, LOSS(1, 0, -100, 0)),
    EACH_CLASS_LOSS("squares", 13, 10, 1, SQUARES(0.5f, 0, -100, 0)),
    EACH_CLASS_LOSS("squares, smoothed, ignored", 451, 37, 0, SQUARES(1, 0.1f, 2, 1)),
    EACH_CLASS_LOSS("logarithms, one", 1, 1, 1, OF_LOGARITHMS(1, -100, 0)),
    EACH_CLASS_LOSS("logarithms, ignored", 13, 5, 1, OF_LOGARITHMS(0.5f, 2, 0)),
    EACH_CLASS_LOSS("logarithms of many classes", 5, 528, 1, OF_LOGARITHMS(1, 2, 0)),
    EACH_CLASS_LOSS("sum of many logarithms", 451, 37, 1, OF_LOGARITHMS(1, -100, 1)),
    EACH_LOSS(MSE, 0), EACH_LOSS(L1, 0), EACH_LOSS(SMOOTH_L1, 0.75f), EACH_LOSS(SMOOTH_L1, 0), EACH_LOSS(HUBER, 0.75f),
    EACH_LOSS(BCE, 0), EACH_LOSS(BCE_LOGITS, 1), EACH_LOSS(BCE_LOGITS, 2.5f),
    BOTH_LOSS("BCE_LOGITS, one class", ONE, 0, .z = S1(1), OF_ELEMENTS(BCE_LOGITS, 1, 1, 0)),
    BOTH_LOSS("BCE_LOGITS, classes", ODD, 0, .z = S1(7), OF_ELEMENTS(BCE_LOGITS, 1, 1, 1)),
    BOTH_LOSS("BCE_LOGITS, many", BIG, 0, .z = S1(4001), OF_ELEMENTS(BCE_LOGITS, 1, 0.25f, 0)),
    BOTH_LOSS("BCE_LOGITS, steps", S3(3, 40, 5), 0, .z = S1(5), OF_ELEMENTS(BCE_LOGITS, 1, 1, 0)),
    BOTH_LOSS("BCE_LOGITS, width", IMAGE, 0, .z = S1(7), .plain = true, OF_ELEMENTS(BCE_LOGITS, 1, 1, 0)),
    NO_TARGET("IDENTITY, mean", BIG, 0), NO_TARGET("IDENTITY, sum of an image", IMAGE, 1),
    {"next", OP_count_call, .x = ONE, .calls = 6, .attr = {.count = {1}}}, {"of ranks", OP_count_call, .x = ONE, .calls = 6, .attr = {.count = {3}}},
    {"first", OP_accumulate, .x = BIG}, {"second", OP_accumulate, .x = BIG, .micro = 1},
    {"second, odd", OP_accumulate, .x = ODD, .micro = 1},
    {"finite", OP_grad_check, .x = BIG, SCALED}, {"infinity", OP_grad_check, .x = BIG, SCALED, .infinity_at = 20000},
    {"NaN", OP_grad_check, .x = ONE, SCALED, .infinity_at = -1},
    {"step", OP_step_begin, .x = ONE, SCALED}, {"overflow", OP_step_begin, .x = ONE, .state = {1024, 3, 1, 5}},
    {"first", OP_grad_square, .x = BIG, .attr = {.square = {1, 1}}}, {"later", OP_grad_square, .x = ODD, .attr = {.square = {0, 1}}},
    {"shared", OP_grad_square, .x = ODD, .attr = {.square = {0, 0.25f}}},
    {"many", OP_grad_square, .x = S2(701, 1037), .attr = {.square = {0, 1}}},
    {"plain", OP_sgd, .x = BIG, SGD_PLAIN, .absent_in = PLAIN_IN | 1 << 1, .absent_out = 6},
    {"clipped", OP_sgd, .x = ODD, SGD_CLIPPED(0.5f), SCALED}, {"not clipped", OP_sgd, .x = BIG, SGD_CLIPPED(2), SCALED},
    {"clipped, no state", OP_sgd, .x = ODD, SGD_CLIPPED(0.5f), .absent_in = 1 << 1 | 1 << 2},
    {"clipped", OP_adam, .x = ODD, ADAM_CLIPPED(0.5f), SCALED, .absent_out = 8},
    {"plain, scaler, master", OP_sgd, .x = ODD, SGD_PLAIN, .absent_in = PLAIN_IN, SCALED, .absent_out = 2},
    {"without a state", OP_sgd, .x = BIG, SGD_NESTEROV, .absent_in = PLAIN_IN | 1 << 1, .absent_out = 4},
    {"first update", OP_sgd, .x = ODD, SGD_FULL, .state = {1024, 0, 0, 1}},
    {"later update", OP_sgd, .x = BIG, SGD_FULL, .absent_in = PLAIN_IN, SCALED},
    {"nesterov, master", OP_sgd, .x = BIG, SGD_NESTEROV, .absent_in = PLAIN_IN, SCALED},
    {"overflow", OP_sgd, .x = ODD, SGD_FULL, .state = {1024, 0, 1, 1}},
    {"one", OP_adam, .x = ONE, ADAM, .absent_in = PLAIN_IN, .state = {1, 0, 0, 1}, .absent_out = 8 | 16},
    {"adam", OP_adam, .x = BIG, ADAM, .absent_in = PLAIN_IN, SCALED, .absent_out = 8 | 16},
    {"adam, master", OP_adam, .x = ODD, ADAM, .absent_in = PLAIN_IN, SCALED, .absent_out = 8},
    {"adamw", OP_adam, .x = BIG, ADAMW, .absent_in = PLAIN_IN, SCALED, .absent_out = 8 | 16},
    {"adamw, master", OP_adam, .x = ODD, ADAMW, .absent_in = PLAIN_IN, SCALED, .absent_out = 8},
    {"overflow", OP_adam, .x = ODD, ADAM, .state = {1024, 0, 1, 5}, .absent_out = 8},
    {"amsgrad", OP_adam, .x = BIG, AMSGRAD, .absent_in = PLAIN_IN, SCALED, .absent_out = 16},
    {"amsgrad, master", OP_adam, .x = ODD, AMSGRAD, .absent_in = PLAIN_IN, SCALED},
    {"one", OP_rmsprop, .x = ONE, RMSPROP(.momentum = 0), .absent_in = PLAIN_IN | 1 << 1, .absent_out = 4 | 8 | 16},
    {"plain", OP_rmsprop, .x = BIG, RMSPROP(.weight_decay = 0.1f), .absent_in = 2 | 8, .absent_out = 4 | 8 | 16},
    {"momentum, master", OP_rmsprop, .x = ODD, RMSPROP(.momentum = 0.9f), .absent_in = PLAIN_IN, SCALED,
     .absent_out = 8},
    {"centered", OP_rmsprop, .x = BIG, RMSPROP(.centered = 1), .absent_in = PLAIN_IN | 1 << 1, .absent_out = 4 | 16},
    {"all, master", OP_rmsprop, .x = BIG,
     RMSPROP(.centered = 1, .momentum = 0.9f, .weight_decay = 0.1f, .clip_norm = 0.5f), SCALED},
    {"overflow", OP_rmsprop, .x = ODD, RMSPROP(.centered = 1, .momentum = 0.9f), .state = {1024, 0, 1, 5}},
    {"one", OP_adagrad, .x = ONE, ADAGRAD(.weight_decay = 0.1f), .absent_in = PLAIN_IN | 2, .absent_out = 4},
    {"plain", OP_adagrad, .x = BIG, ADAGRAD(.lr_decay = 0), .absent_in = 2 | 8, .absent_out = 4},
    {"decays, clipped, master", OP_adagrad, .x = BIG, ADAGRAD(.lr_decay = 0.5f, .clip_norm = 0.5f), SCALED},
    {"overflow", OP_adagrad, .x = ODD, ADAGRAD(.lr_decay = 0.5f), .state = {1024, 0, 1, 5}},
    {"one", OP_radam, .x = ONE, RADAM(.weight_decay = 0.1f), .absent_in = PLAIN_IN, SCALED, .absent_out = 8},
    {"rectified", OP_radam, .x = BIG, RADAM(.decoupled = 1, .weight_decay = 0.1f), .absent_in = 8,
     .state = {1024, 3, 0, 40}, .absent_out = 8},
    {"clipped, master", OP_radam, .x = BIG, RADAM(.clip_norm = 0.5f), .state = {1024, 3, 0, 40}},
    {"overflow", OP_radam, .x = ODD, RADAM(.weight_decay = 0), .state = {1024, 0, 1, 5}},
    {"one", OP_nadam, .x = ONE, NADAM(.weight_decay = 0.1f), .absent_in = PLAIN_IN, SCALED, .absent_out = 8},
    {"decoupled", OP_nadam, .x = BIG, NADAM(.decoupled = 1, .weight_decay = 0.1f), .absent_in = 8,
     .state = {1024, 3, 0, 400}, .absent_out = 8},
    {"clipped, master", OP_nadam, .x = BIG, NADAM(.clip_norm = 0.5f), .state = {1024, 3, 0, 40}},
    {"overflow", OP_nadam, .x = ODD, NADAM(.weight_decay = 0), .state = {1024, 0, 1, 5}},
    {"one", OP_lion, .x = ONE, LION(.weight_decay = 0.1f), .absent_in = PLAIN_IN, SCALED, .absent_out = 4},
    {"plain", OP_lion, .x = BIG, LION(.weight_decay = 0), .absent_in = 8, SCALED, .absent_out = 4},
    {"clipped, master", OP_lion, .x = BIG, LION(.weight_decay = 0.1f, .clip_norm = 0.5f), SCALED},
    {"overflow", OP_lion, .x = ODD, LION(.weight_decay = 0), .state = {1024, 0, 1, 5}},
    {"one", OP_adamax, .x = ONE, ADAMAX(.weight_decay = 0.1f), .absent_in = PLAIN_IN, SCALED, .absent_out = 8},
    {"plain", OP_adamax, .x = BIG, ADAMAX(.weight_decay = 0), .absent_in = 8, SCALED, .absent_out = 8},
    {"clipped, master", OP_adamax, .x = BIG, ADAMAX(.weight_decay = 0.1f, .clip_norm = 0.5f), SCALED},
    {"overflow", OP_adamax, .x = ODD, ADAMAX(.weight_decay = 0), .state = {1024, 0, 1, 5}},
    {"one", OP_adadelta, .x = ONE, ADADELTA(.weight_decay = 0.1f), .absent_in = PLAIN_IN | 2, .absent_out = 8},
    {"plain", OP_adadelta, .x = BIG, ADADELTA(.weight_decay = 0), .absent_in = 2 | 8, .absent_out = 8},
    {"clipped, master", OP_adadelta, .x = BIG, ADADELTA(.weight_decay = 0.1f, .clip_norm = 0.5f), SCALED},
    {"overflow", OP_adadelta, .x = ODD, ADADELTA(.weight_decay = 0), .state = {1024, 0, 1, 5}},
    {"one", OP_adafactor, .x = ONE, .y = ONE, .z = ONE, ADAFACTOR(1e-7f, .d = 1, .weight_decay = 0.1f),
     .absent_in = PLAIN_IN, .absent_out = 8 | 16},
    {"vector", OP_adafactor, .x = S1(6151), ADAFACTOR(1e-7f, .d = 1.5f), .absent_in = 8, .absent_out = 2 | 4 | 16},
    {"small vector", OP_adafactor, .x = S1(301), ADAFACTOR(1e-7f, .d = 1.5f), .absent_in = 8, .absent_out = 2 | 4 | 16},
    {"matrix", OP_adafactor, .x = ODD, .y = S2(3, 1), .z = S2(1, 7), ADAFACTOR(0.5f, .d = 1, .weight_decay = 0.1f),
     .absent_in = 8, .absent_out = 8 | 16},
    {"wide, clipped, master", OP_adafactor, .x = BIG, .y = S2(5, 1), .z = S2(1, 4001),
     ADAFACTOR(1e-7f, .d = 1, .clip_norm = 0.5f), .absent_out = 8},
    /* without a scale: beside the old means, squares of gradients that a scale divides are nothing */
    {"tall", OP_adafactor, .x = S2(1031, 7), .y = S2(1031, 1), .z = S2(1, 7),
     RULE(.lr = 0.1f, .eps = 1e-7f, .eps2 = 1e-3f, .beta2_decay = -0.8f, .d = 2), .state = {1, 0, 0, 5},
     .absent_in = PLAIN_IN, .absent_out = 8 | 16},
    {"several tiles, master", OP_adafactor, .x = S2(150, 264), .y = S2(150, 1), .z = S2(1, 264),
     ADAFACTOR(1e-7f, .d = 1, .weight_decay = 0.1f), .absent_in = 8, .absent_out = 8},
    {"little room", OP_adafactor, .x = S2(70, 68), .y = S2(70, 1), .z = S2(1, 68), ADAFACTOR(1e-7f, .d = 1), .absent_in = 8,
     .absent_out = 8 | 16, .limit = 1},
    {"flattened image", OP_adafactor, .x = S2(9, 105), .y = S2(9, 1), .z = S2(1, 105), ADAFACTOR(1e-7f, .d = 2),
     .absent_in = PLAIN_IN, .absent_out = 8 | 16, .order = {3, 5, 7}},
    {"image", OP_adafactor, .x = IMAGE, .y = S4(2, 3, 5, 1), .z = S4(2, 3, 1, 7), ADAFACTOR(1e-7f, .d = 1),
     .absent_in = PLAIN_IN, .absent_out = 8},
    {"large image", OP_adafactor, .x = S4(8, 12, 9, 7), .y = S4(8, 12, 9, 1), .z = S4(8, 12, 1, 7), ADAFACTOR(1e-7f, .d = 1),
     .absent_in = PLAIN_IN, .absent_out = 8},
    {"long line", OP_adafactor, .x = S4(37, 24, 1, 5), .y = S3(37, 24, 1), .z = S3(37, 1, 5), ADAFACTOR(1e-7f, .d = 1),
     .absent_in = PLAIN_IN, .absent_out = 8},
    {"many pixels", OP_adafactor, .x = S4(37, 131, 1, 1), .y = S4(37, 131, 1, 1), .z = S4(37, 131, 1, 1),
     ADAFACTOR(1e-7f, .d = 1, .weight_decay = 0.1f), .absent_in = PLAIN_IN, .absent_out = 8 | 16},
    {"line", OP_adafactor, .x = S4(37, 6, 1, 5), .y = S3(37, 6, 1), .z = S3(37, 1, 5), ADAFACTOR(1e-7f, .d = 1),
     .absent_in = PLAIN_IN, .absent_out = 8},
    {"pixels", OP_adafactor, .x = S4(37, 67, 1, 1), .y = S4(37, 67, 1, 1), .z = S4(37, 67, 1, 1),
     ADAFACTOR(1e-7f, .d = 1, .weight_decay = 0.1f), .absent_in = PLAIN_IN, .absent_out = 8 | 16},
    {"overflow", OP_adafactor, .x = ODD, .y = S2(3, 1), .z = S2(1, 7), RULE(.lr = 0.1f, .d = 1),
     .state = {1024, 0, 1, 5}, .absent_out = 8},
    {"one", OP_adam8bit, .x = ONE, .y = S1(2), ADAM8BIT(1, .weight_decay = 0.1f), .absent_in = PLAIN_IN,
     .absent_out = 8 | 32},
    {"blocks", OP_adam8bit, .x = S2(20, 512), .y = S1(80), ADAM8BIT(256, .decoupled = 1, .weight_decay = 0.1f),
     .absent_in = PLAIN_IN, .absent_out = 8 | 32},
    {"amsgrad, clipped, master", OP_adam8bit, .x = S2(7, 601), .y = S1(21), ADAM8BIT(601, .amsgrad = 1,
     .clip_norm = 0.5f)},
    {"large blocks", OP_adam8bit, .x = S2(4, 2048), .y = S1(8), ADAM8BIT(2048, .weight_decay = 0.1f), .absent_in = 8,
     .absent_out = 8 | 32},
    {"across rows", OP_adam8bit, .x = S2(48, 99), .y = S1(36), ADAM8BIT(264, .weight_decay = 0), .absent_in = PLAIN_IN,
     .absent_out = 8},
    {"image", OP_adam8bit, .x = S4(10, 12, 3, 5), .y = S1(40), ADAM8BIT(90, .weight_decay = 0.1f),
     .absent_in = PLAIN_IN, .absent_out = 8},
    {"image, amsgrad", OP_adam8bit, .x = S4(37, 64, 3, 3), .y = S1(333), ADAM8BIT(192, .amsgrad = 1),
     .absent_in = PLAIN_IN, .absent_out = 32},
    {"pixels", OP_adam8bit, .x = S4(16, 32, 1, 1), .y = S1(4), ADAM8BIT(256, .weight_decay = 0), .absent_in = PLAIN_IN,
     .absent_out = 8 | 32},
    {"flattened image", OP_adam8bit, .x = S2(10, 105), .y = S1(10), ADAM8BIT(210, .weight_decay = 0),
     .absent_in = PLAIN_IN, .absent_out = 8 | 32, .order = {3, 5, 7}},
    {"overflow", OP_adam8bit, .x = S2(4, 128), .y = S1(4), RULE(.lr = 0.1f, .block_size = 256),
     .state = {1024, 0, 1, 5}, .absent_out = 8},
    {"the largest", OP_first_place, .x = S2(4001, 5), .attr.place = {-1}},
    {"a token", OP_first_place, .x = S2(4001, 5), .attr.place = {2}},
    {"one place", OP_first_place, .x = S2(3, 1), .attr.place = {0}},
    {"one", OP_gather, .x = ONE}, {"odd", OP_gather, .x = ODD}, {"rows", OP_gather, .x = S2(4001, 5)},
    {"one", OP_gather_dx, .x = ONE}, {"odd", OP_gather_dx, .x = ODD}, {"rows", OP_gather_dx, .x = S2(4001, 5)},
    {"one", OP_formula, .x = ONE, RULE(.lr = 0.01f), .absent_in = PLAIN_IN, .state = {1, 0, 0, 1}, .absent_out = 8 | 16},
    {"plain", OP_formula, .x = BIG, RULE(.lr = 0.01f), .absent_in = 8, SCALED, .absent_out = 8 | 16},
    {"clipped, master", OP_formula, .x = BIG, RULE(.lr = 0.01f, .clip_norm = 0.5f), SCALED, .absent_out = 8},
    {"overflow", OP_formula, .x = ODD, RULE(.lr = 0.01f), .state = {1024, 0, 1, 5}, .absent_out = 8},
    {"good", OP_scale_update, .x = ONE, SCALED, .attr.scaler = {2, 0.5f, 2000}},
    {"grows", OP_scale_update, .x = ONE, SCALED, .attr.scaler = {2, 0.5f, 4}},
    {"backs off", OP_scale_update, .x = ONE, .state = {1024, 3, 1, 5}, .attr.scaler = {2, 0.5f, 4}},
    {"factors of double", OP_scale_update, .x = ONE, SCALED, .attr.scaler = {1.1, 0.3, 4}},
    {"too large to grow", OP_scale_update, .x = ONE, .state = {3e38f, 3, 0, 5}, .attr.scaler = {2, 0.5, 4}},
    {"fixed", OP_scale_update, .x = ONE, .state = {1024, 3, 1, 5}, .attr.scaler = {1, 1, 4}},
};

#endif
