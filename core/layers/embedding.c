/* Embedding: rows of a table w (V, D), chosen by the network's input, which then holds indices, or by whole numbers that are the same for
 * each batch (arange, a constant): (N) becomes (N, D), (N, T) becomes (N, T, D). PositionEmbedding: T rows of a table (P, D), from `offset` on, added to each sample
 * (T, D), as GPT does with an Embedding of the numbers 0 to T - 1. Both tables start as PyTorch's: normal. SelectToken:
 * of each sample the step where a token stands first in its indices. FromBytes: numbers of the network's input, which then
 * holds bytes. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "network/layer.h"

static int expect_sizes(const Layer *l, const char *rows, Err *e) {
    int code = layer_expect_range(l, rows, 1, INT32_MAX, e);
    return code ? code : layer_expect_range(l, "embedding_dim", 1, INT32_MAX, e);
}

/* The option padding_idx, counted from the front; -1: none. */
static int64_t padding_row(const Layer *l) {
    char text[OPTION_WORDS];
    int64_t row = options_int(&l->options, "padding_idx");
    if (options_word(&l->options, "padding_idx", text)[0]) return -1;
    return row < 0 ? row + options_int(&l->options, "num_embeddings") : row;
}

/* The index is an input of the network, or arange's numbers, or a constant: sets below which number they are. */
static int find_index(Network *n, const Layer *l, int64_t rows, Err *e) {
    const Value *index = &l->ins[0];
    const int64_t below = index->positions ? index->shape.dim[0] : index->below;
    if (below > rows) return layer_error(l, e, "index %" PRId64 " is out of bounds for %" PRId64 " rows", below - 1, rows);
    if (below) return OK;
    if (!index->input) return layer_error(l, e, "reads indices: expected the network's input, found a layer's output");
    int64_t *indices = &n->inputs[index->input - 1].indices;
    *indices = *indices ? min_i64(*indices, rows) : rows;
    return OK;
}

int layer_embedding_shape(Network *n, Layer *l, Err *e) {
    int64_t rows = options_int(&l->options, "num_embeddings"), dim = options_int(&l->options, "embedding_dim");
    char text[SHAPE_TEXT];
    int code = layer_expect_inputs(l, 1, e);
    if (!code) code = expect_sizes(l, "num_embeddings", e);
    if (!code) code = layer_expect_range(l, "padding_idx", -rows, rows - 1, e);
    if (!code) code = find_index(n, l, rows, e);
    if (code) return code;
    if (l->in.rank > 3) return layer_error(l, e, "expected at most 3 dimensions, found %s", shape_text(&l->in, text));
    const Param table = {.shape = shape2(rows, dim), .init = INIT_NORMAL, .bound = 1, .zero_row = padding_row(l) + 1};
    if ((code = network_tensor(n, l, "weight", &table, e))) return code;
    Shape out = l->in;
    assert(out.rank < SHAPE_MAX);
    out.dim[out.rank++] = dim;
    layer_output(l, out);
    return OK;
}

int layer_embedding_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.embedding.padding = padding_row(l);
    if (!l->in_is_positions) return lower_layer(lw, OP_embedding, l, in, &a);
    int32_t *rows; /* arange has no buffer of its own */
    const int numbers = program_whole_numbers(lw->p, l->path, l->in, &rows);
    for (int64_t i = 0; i < l->in.dim[0] && rows; i++) rows[i] = (int32_t)i;
    return lower_layer(lw, OP_embedding, l, &numbers, &a);
}

int layer_positions_shape(Network *n, Layer *l, Err *e) {
    int64_t rows = options_int(&l->options, "num_positions"), dim = options_int(&l->options, "embedding_dim");
    char text[SHAPE_TEXT];
    int code = expect_sizes(l, "num_positions", e);
    if (code || (code = layer_expect_rank(l, 3, "(N, T, D)", e))) return code;
    const int64_t places = rows - options_int(&l->options, "offset");
    if ((code = layer_expect_range(l, "offset", 0, rows - 1, e))) return code;
    if (l->in.dim[2] != dim || l->in.dim[1] > places)
        return layer_error(l, e, "expected %" PRId64 " features at %" PRId64 " positions at most, found %s", dim,
                           places, shape_text(&l->in, text));
    const Param table = {.shape = shape2(rows, dim), .init = INIT_NORMAL, .bound = 1};
    return network_tensor(n, l, "weight", &table, e);
}

int layer_positions_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.axis.start = options_int(&l->options, "offset");
    return lower_layer(lw, OP_add_rows, l, in, &a);
}

/* ---- what reads positions */

int layer_expect_positions(Network *n, const Layer *l, int k, Err *e) {
    const Value *given = &l->ins[k];
    const int64_t steps = l->in.dim[1];
    const Shape each = shape2(l->in.dim[0], steps);
    char text[SHAPE_TEXT];
    if (!given->input) return layer_error(l, e, "reads position_ids: expected an input of the network, found a layer's output");
    if (!shape_equal(&given->shape, &each))
        return layer_error(l, e, "expected position_ids (%" PRId64 ", %" PRId64 "), found %s", each.dim[0], steps,
                           shape_text(&given->shape, text));
    Input *input = &n->inputs[given->input - 1];
    input->positions = true;
    input->indices = input->indices ? min_i64(input->indices, steps) : steps;
    return OK;
}

/* ---- SelectToken: x (N, T, D) and ids (N, T) become (N, D), as x[arange(N), (ids == token).int().argmax(-1)] or, of the
 * largest, x[arange(N), ids.argmax(-1)]. A sample without the token gives its first step, as there. */

static int64_t token_of(const Layer *l) {
    char text[OPTION_WORDS];
    return options_word(&l->options, "token", text)[0] ? -1 : options_int(&l->options, "token");
}

int layer_select_token_shape(Network *n, Layer *l, Err *e) {
    char x[SHAPE_TEXT], ids[SHAPE_TEXT];
    if (l->n_in != 2) return layer_error(l, e, "takes 2 inputs (x, ids), found %d", l->n_in);
    int code = layer_expect_range(l, "token", 0, INT32_MAX, e);
    if (!code) code = layer_expect_rank(l, 3, "(N, T, D)", e);
    if (code) return code;
    const Value *tokens = &l->ins[1];
    if (!tokens->input || !n->inputs[tokens->input - 1].indices)
        return layer_error(l, e, "expected as ids an input of the network that an Embedding has read before");
    if (tokens->shape.rank != 2 || tokens->shape.dim[1] != l->in.dim[1])
        return layer_error(l, e, "expected x (N, T, D) and ids (N, T), found %s and %s", shape_text(&l->in, x),
                           shape_text(&tokens->shape, ids));
    layer_output(l, shape2(l->in.dim[0], l->in.dim[2]));
    return OK;
}

int layer_select_token_forward(Lower *lw, const Layer *l, const int *in) {
    Attr place, table;
    memset(&place, 0, sizeof place);
    memset(&table, 0, sizeof table);
    place.place.token = token_of(l);
    table.embedding.padding = -1;
    const Shape x = l->in;
    const int rows = lower_emit(lw, OP_first_place, l, &in[1], 1,
                                lower_temp(lw, l, "rows", shape1(x.dim[0]), NULL, DT_I32), &place);
    const int flat = lower_view_as(lw, l, "flat", shape2(x.dim[0] * x.dim[1], x.dim[2]), lower_rows(lw, l, in[0]));
    return lower_op(lw, OP_embedding, l, (int[]){rows, flat}, 2, &table);
}

/* ---- FromBytes */

static int expect_each(const Layer *l, const char *option, int64_t channels, const double **list, Err *e) {
    int64_t n;
    *list = options_list(&l->options, option, &n);
    if (!*list || (l->in.rank > 1 && n == channels)) return OK;
    return layer_error(l, e, "%s: expected a number for each of %" PRId64 " channels, found %" PRId64, option, channels, n);
}

int layer_from_bytes_shape(Network *n, Layer *l, Err *e) {
    const Options *o = &l->options;
    const int64_t channels = l->in.rank > 1 ? l->in.dim[1] : 1;
    const double *mean, *std;
    int code = expect_each(l, "mean", channels, &mean, e);
    if (!code) code = expect_each(l, "std", channels, &std, e);
    if (code) return code;
    if (!l->in_input) return layer_error(l, e, "reads bytes: expected the network's input, found a layer's output");
    if (!mean != !std) return layer_error(l, e, "mean and std: expected two numbers, or two lists of one for each channel");
    if (!(options_float(o, "divisor") > 0))
        return layer_error(l, e, "divisor must be above 0, found %g", options_float(o, "divisor"));
    for (int64_t c = 0; c < (std ? channels : 1); c++)
        if ((std ? std[c] : options_float(o, "std")) == 0) return layer_error(l, e, "std must not be 0: it divides");
    n->inputs[l->in_input - 1].bytes = true;
    if (mean) n->inputs[l->in_input - 1].channels = channels;
    layer_output(l, l->in);
    return OK;
}

/* The numbers of an option as a constant, which is no parameter: networks with and without it start alike. */
static int make_each(Lower *lw, const Layer *l, const char *option) {
    int64_t n;
    char name[BUF_NAME];
    const double *list = options_list(&l->options, option, &n);
    snprintf(name, sizeof name, "%s%s%s", l->path, l->path[0] ? "." : "", option);
    return list ? program_constant(lw->p, name, shape1(n), DT_F32, list) : NO_BUF;
}

int layer_from_bytes_forward(Lower *lw, const Layer *l, const int *in) {
    const int operands[] = {in[0], make_each(lw, l, "mean"), make_each(lw, l, "std")};
    Attr a;
    memset(&a, 0, sizeof a);
    a.bytes.divisor = (float)options_float(&l->options, "divisor");
    a.bytes.mean = (float)options_float(&l->options, "mean");
    a.bytes.std = (float)options_float(&l->options, "std");
    return lower_op(lw, OP_from_bytes, l, operands, 3, &a);
}
