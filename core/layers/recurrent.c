/* RNN, LSTM, GRU: layers on top of each other, each with one direction or two; one op per layer and direction. Initial
 * states are zero; the output is the last layer's at every step, both directions side by side. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "network/layer.h"

enum { STACK_MAX = 64 };

static bool is_true(const Layer *l, const char *option) { return options_bool(&l->options, option); }
static int directions(const Layer *l) { return is_true(l, "bidirectional") ? 2 : 1; }
static int stack(const Layer *l) { return (int)options_int(&l->options, "num_layers"); }

RnnMode layer_rnn_mode(const Layer *l) {
    char word[OPTION_WORDS];
    bool relu = !strcmp(options_word(&l->options, "nonlinearity", word), "relu");
    return relu ? RNN_RELU : (RnnMode)l->kind->which;
}

/* A layer and direction as PyTorch's parameters name it: "l0", "l0_reverse"; returns text. */
static const char *part_name(int layer, int reverse, char *text /* 24 */) {
    snprintf(text, 24, "l%d%s", layer, reverse ? "_reverse" : "");
    return text;
}

static int declare(Network *n, Layer *l, int layer, int reverse, int64_t inputs, Err *e) {
    int64_t hidden = options_int(&l->options, "hidden_size"), rows = rnn_info(layer_rnn_mode(l)).gates * hidden;
    const struct { const char *name; Shape shape; } params[] = {
        {"weight_ih", shape2(rows, inputs)}, {"weight_hh", shape2(rows, hidden)},
        {"bias_ih", shape1(rows)}, {"bias_hh", shape1(rows)}};
    char part[24], name[40];
    int code = OK;
    for (int k = 0; k < (is_true(l, "bias") ? 4 : 2) && !code; k++) {
        snprintf(name, sizeof name, "%s_%s", params[k].name, part_name(layer, reverse, part));
        code = network_param(n, l, name, params[k].shape, 1 / sqrt((double)hidden), NULL, e);
    }
    return code;
}

int layer_recurrent_shape(Network *n, Layer *l, Err *e) {
    static const struct { const char *option; int64_t most; } ranges[] = {
        {"input_size", INT32_MAX}, {"hidden_size", INT32_MAX / 8}, {"num_layers", STACK_MAX}};
    const char *meaning = is_true(l, "batch_first") ? "(N, T, F)" : "(T, N, F)";
    int64_t inputs = options_int(&l->options, "input_size"), hidden = options_int(&l->options, "hidden_size");
    double p = options_float(&l->options, "dropout");
    int code = OK;
    for (size_t i = 0; i < ARRAY_LEN(ranges) && !code; i++)
        code = layer_expect_range(l, ranges[i].option, 1, ranges[i].most, e);
    if (code || (code = layer_expect_rank(l, 3, meaning, e))) return code;
    if (!(p >= 0 && p <= 1)) return layer_error(l, e, "dropout must be between 0 and 1, found %g", p);
    if (l->in.dim[2] != inputs)
        return layer_error(l, e, "expected %" PRId64 " input features %s, found %" PRId64, inputs, meaning,
                           l->in.dim[2]);
    for (int layer = 0; layer < stack(l) && !code; layer++)
        for (int d = 0; d < directions(l) && !code; d++)
            code = declare(n, l, layer, d, layer ? directions(l) * hidden : inputs, e);
    layer_output(l, shape3(l->in.dim[0], l->in.dim[1], directions(l) * hidden));
    return code;
}

/* One layer in one direction. Each has n parameters, declared layer by layer, in a layer by direction. */
static int emit_part(Lower *lw, const Layer *l, int layer, int reverse, int x) {
    int n = is_true(l, "bias") ? 4 : 2, in[5] = {x};
    assert(l->n_params == stack(l) * directions(l) * n);
    int64_t hidden = options_int(&l->options, "hidden_size");
    char part[24], name[40];
    Attr a;
    memset(&a, 0, sizeof a);
    a.rnn = (RnnAttr){layer_rnn_mode(l), is_true(l, "batch_first"), reverse, 0};
    for (int k = 0; k < n; k++) in[1 + k] = lw->param[l->param[(layer * directions(l) + reverse) * n + k]];
    snprintf(name, sizeof name, "%s.y", part_name(layer, reverse, part));
    Shape shape = shape3(l->in.dim[0], l->in.dim[1], hidden);
    int y = lower_emit(lw, OP_rnn, l, in, n + 1, lower_temp(lw, l, name, shape, NULL, DT_F32), &a);
    shape.dim[2] *= rnn_info(a.rnn.mode).saved;
    if (lw->p->failed || !lw->training || shape.dim[2] == 0) return y;
    snprintf(name, sizeof name, "%s.saved", part);
    lower_keep(lw, 1, lower_temp(lw, l, name, shape, NULL, DT_F32));
    return y;
}

static int join_directions(Lower *lw, const Layer *l, int layer, const int *side) {
    char name[24];
    Attr a;
    memset(&a, 0, sizeof a);
    a.axis.axis = 2;
    snprintf(name, sizeof name, "l%d.both", layer);
    return lower_emit(lw, OP_concat, l, side, 2, lower_buf(lw, l, name, DT_F32), &a);
}

/* Dropout after a layer, before the next one. */
static int emit_dropout(Lower *lw, const Layer *l, int layer, int x) {
    char name[24];
    Attr a;
    memset(&a, 0, sizeof a);
    a.drop.p = (float)options_float(&l->options, "dropout");
    if (!lw->training || a.drop.p == 0) return x;
    a.drop.id = lw->drops++;
    snprintf(name, sizeof name, "l%d.dropped", layer);
    int y = lower_buf(lw, l, name, DT_F32);
    return lower_emit(lw, OP_dropout, l, (int[]){x, program_calls(lw->p)}, 2, y, &a);
}

int layer_recurrent_forward(Lower *lw, const Layer *l, const int *in) {
    int x = in[0];
    for (int layer = 0; layer < stack(l); layer++) {
        int side[2];
        if (layer) x = emit_dropout(lw, l, layer - 1, x);
        for (int d = 0; d < directions(l); d++) side[d] = emit_part(lw, l, layer, d, x);
        x = directions(l) == 1 ? side[0] : join_directions(lw, l, layer, side);
    }
    return x;
}
