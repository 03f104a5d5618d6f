/* Linear4bit and Linear8bitLt, bitsandbytes' linear layers: y = x w^T + b with a weight of 4 or 8 bits (math/quantized.h),
 * which is not trained. LayerKind.which: the bits of a weight. Parameters have the names of bitsandbytes' state_dict,
 * but for nested_offset, which has none there. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "network/layer.h"

/* Declares what is made together with the weight. */
static int derive(Network *n, Layer *l, const char *name, Shape shape, DType type, Err *e) {
    const Param like = {.shape = shape, .init = INIT_CONSTANT, .dtype = type, .buffer = true, .derived = true};
    return network_tensor(n, l, name, &like, e);
}

static int derive_4bit(Network *n, Layer *l, int64_t blocks, bool nested, Err *e) {
    int code = derive(n, l, "weight.absmax", shape1(blocks), nested ? DT_U8 : DT_F32, e);
    if (!code) code = derive(n, l, "weight.quant_map", shape1(QUANT_MAP), DT_F32, e);
    if (!code && nested) code = derive(n, l, "weight.nested_absmax", shape1(quant4_nested(blocks)), DT_F32, e);
    if (!code && nested) code = derive(n, l, "weight.nested_quant_map", shape1(QUANT_NESTED_MAP), DT_F32, e);
    if (!code && nested) code = derive(n, l, "weight.nested_offset", shape1(1), DT_F32, e);
    return code;
}

int layer_linear_q_shape(Network *n, Layer *l, Err *e) {
    const bool four = l->kind->which == 4;
    char text[SHAPE_TEXT], word[OPTION_WORDS];
    int code;
    if ((code = layer_expect_range(l, "input_features", 1, INT32_MAX, e))) return code;
    if ((code = layer_expect_range(l, "output_features", 1, INT32_MAX, e))) return code;
    const int64_t in = options_int(&l->options, "input_features"), out = options_int(&l->options, "output_features");
    Shape y = l->in;
    if (y.dim[y.rank - 1] != in)
        return layer_error(l, e, "expected %" PRId64 " input features in the last dimension, found %s", in,
                           shape_text(&y, text));
    l->frozen = true;
    const Shape w = shape2(out, in);
    const bool nested = four && options_bool(&l->options, "compress_statistics");
    const bool nf4 = four && !strcmp(options_word(&l->options, "quant_type", word), "nf4");
    const QuantFormat format = !four ? QUANT_INT8 : nf4 ? QUANT_NF4 : QUANT_FP4;
    Param weight = {.shape = four ? shape2(quant4_bytes(in * out), 1) : w, .dtype = DT_U8, .quantized = {format, nested, w}};
    if ((code = layer_linear_start(l, in, &weight, e))) return code;
    if ((code = network_tensor(n, l, "weight", &weight, e))) return code;
    const bool bias = options_bool(&l->options, "bias");
    if (bias && (code = network_param(n, l, "bias", shape1(out), 1 / sqrt((double)in), NULL, e))) return code;
    code = four ? derive_4bit(n, l, quant4_blocks(in * out), nested, e) : derive(n, l, "SCB", shape1(out), DT_F32, e);
    if (code) return code;
    y.dim[y.rank - 1] = out;
    layer_output(l, y);
    l->out_rows = y.rank == 4;
    return OK;
}

/* The op's operands are x, the codes, what was derived, in the same order, and the bias last. */
int layer_linear_q_forward(Lower *lw, const Layer *l, const int *in) {
    const bool bias = options_bool(&l->options, "bias");
    const int operands = op_info(OP_linear_q)->n_in;
    Layer flat;
    int of[OP_IN] = {lower_flat(lw, l, lower_rows(lw, l, in[0]), l->out.dim[l->out.rank - 1], &flat),
                     lw->param[l->param[0]]};
    for (int k = 2; k < OP_IN; k++) of[k] = NO_BUF;
    for (int k = 1 + bias; k < l->n_params; k++) of[k + 1 - bias] = lw->param[l->param[k]];
    if (bias) of[operands - 1] = lw->param[l->param[1]];
    return lower_unflat(lw, l, lower_op(lw, OP_linear_q, &flat, of, operands, NULL));
}
