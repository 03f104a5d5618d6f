/* Operations that a forward function writes: arithmetic of two values, reductions, triangles, parameters of its own. */
#include <string.h>

#include "modules.h"

static int dim_of(double dim, int rank) { return (int)(dim < 0 ? dim + rank : dim); }

Tensor *module_binary(Eager *g, const Layer *l, Tensor *const *in) {
    static const WithOp ops[] = {[BINARY_ADD] = WITH_ADD, [BINARY_SUB] = WITH_SUB, [BINARY_MUL] = WITH_MUL, [BINARY_DIV] = WITH_DIV};
    const bool expands = l->kind->which == BINARY_DIV && options_bool(&l->options, "expand");
    Tensor *other = expands ? aten_expand(g, in[1], in[0]->size) : tensor_ref(in[1]);
    Tensor *y = aten_binary(g, ops[l->kind->which], in[0], other);
    tensor_drop(g, other);
    return y;
}

Tensor *module_reduce(Eager *g, const Layer *l, Tensor *const *in) {
    const ReduceFn f = (ReduceFn)l->kind->which;
    const bool keepdim = options_bool(&l->options, "keepdim");
    const int rank = in[0]->size.rank;
    unsigned dims = 0;
    int64_t n = 0;
    if (f == REDUCE_MAX) return aten_max(g, in[0], dim_of((double)options_int(&l->options, "dim"), rank), keepdim);
    const double *list = options_list(&l->options, "dim", &n);
    for (int64_t i = 0; i < n; i++) dims |= 1u << dim_of(list[i], rank);
    if (f == REDUCE_NORM) {
        Tensor *x = amp_wide(g, in[0]), *y = aten_norm(g, x, dims, keepdim);
        tensor_drop(g, x);
        return y;
    }
    if (f == REDUCE_AMAX) return aten_amax(g, in[0], dims, keepdim);
    if (f == REDUCE_MEAN) return aten_mean(g, in[0], dims, keepdim);
    return aten_sum(g, in[0], dims, keepdim);
}

/* The mask is the last value that the layer reads, or torch.tril's, made for this call, with any diagonal. */
Tensor *module_triangle(Eager *g, const Layer *l, Tensor *const *in) {
    char word[OPTION_WORDS];
    const int last = l->n_in - 1;
    const bool two = !strcmp(options_word(&l->options, "value", word), "none");
    Tensor *y, *mask = l->ins[last].mask
        ? tensor_ref(in[last]) : aten_triangle(g, options_int(&l->options, "rows"), options_int(&l->options, "columns"));
    if (!strcmp(l->kind->name, "MaskedFill")) y = aten_masked_fill(g, in[0], mask);
    else y = aten_where(g, mask, in[0], two ? in[1] : NULL);
    tensor_drop(g, mask);
    return y;
}

/* ---- masks that a module keeps in a buffer, or makes of numbers */

static bool has_buffer(const Layer *l) {
    int64_t n;
    return !strcmp(l->kind->name, "Mask") && options_list(&l->options, "of", &n);
}

static void count_mask(void *arg, const Network *n, const Layer *l) {
    (void)n;
    *(int *)arg += has_buffer(l) && !l->shares;
}

static void make_mask(void *arg, const Network *n, const Layer *l) {
    Eager *g = arg;
    char made[OPTION_WORDS];
    int64_t sizes;
    (void)n;
    if (!has_buffer(l) || l->shares) return;
    const double *of = options_list(&l->options, "of", &sizes);
    const bool booleans = !strcmp(options_word(&l->options, "made", made), "booleans");
    eager_where(g, l, NULL);
    g->masks[g->n_masks++] = (MaskBuffer){l, aten_random(g, "aten::to", SIZE((int64_t)of[0], (int64_t)of[1]), booleans ? T_BOOL : T_FLOAT)};
}

void mask_buffers(Eager *g, const Network *net, bool several) {
    int count = 0;
    network_visit(net, count_mask, &count);
    if (!count || !(g->masks = scratch_new(&g->scratch, (size_t)count, sizeof *g->masks))) return;
    network_visit(net, make_mask, g);
    if (several) eager_refuse(g, "framework = \"pytorch\": a mask in a buffer is not predicted on several ranks");
}

static Tensor *mask_buffer(const Eager *g, const Layer *l) {
    const Layer *first = l->shares ? l->shares : l;
    int i = 0;
    while (g->masks[i].layer != first) i++; /* mask_buffers has made it */
    return g->masks[i].tensor;
}

/* ones: torch.ones(rows, columns, dtype=torch.bool).tril(diagonal); numbers: the same of numbers, == 0; buffer: buffer[:rows, :columns] == 0;
 * booleans: such a part of a buffer of booleans. */
Tensor *module_mask(Eager *g, const Layer *l, Tensor *const *in) {
    GUARD(g);
    const Size size = size_from(&l->out);
    char made[OPTION_WORDS];
    Tensor *numbers = NULL;
    (void)in;
    options_word(&l->options, "made", made);
    if (!strcmp(made, "ones")) return aten_triangle(g, size.of[0], size.of[1]);
    if (!strcmp(made, "numbers")) {
        Tensor *ones = aten_random(g, "aten::ones", size, T_FLOAT);
        numbers = aten_random(g, "aten::tril", size, T_FLOAT);
        READS(g, ones);
        tensor_drop(g, ones);
    } else {
        Tensor *whole = mask_buffer(g, l), *rows = aten_narrow(g, whole, 0, size.of[0]);
        numbers = aten_narrow(g, rows, 1, size.of[1]);
        tensor_drop(g, rows);
        if (!strcmp(made, "booleans")) return numbers;
    }
    Tensor *mask = aten_random(g, "aten::eq", size, T_BOOL);
    READS(g, numbers);
    tensor_drop(g, numbers);
    return mask;
}

Tensor *module_arange(Eager *g, const Layer *l, Tensor *const *in) {
    (void)in;
    return aten_random(g, "aten::arange", SIZE(options_int(&l->options, "end")), T_LONG);
}

/* rows.unsqueeze(1) >= columns.unsqueeze(0) */
Tensor *module_compare(Eager *g, const Layer *l, Tensor *const *in) {
    static const char *const ops[] = {"aten::ge", "aten::gt", "aten::le", "aten::lt"};
    char word[OPTION_WORDS];
    int op = 0;
    options_word(&l->options, "op", word);
    while (strcmp(ops[op] + strlen("aten::"), word)) op++; /* the option has one of these words */
    Tensor *mask = aten_random(g, ops[op], SIZE(in[0]->size.of[0], in[1]->size.of[0]), T_BOOL);
    READS(g, in[0], in[1]);
    return mask;
}

/* A buffer was made when the model was moved; torch.tensor(values, device=device) is made at each call. */
Tensor *module_constant(Eager *g, const Layer *l, Tensor *const *in) {
    (void)in;
    return l->kind->which ? aten_random(g, "aten::to", size_from(&l->out), l->out_below ? T_LONG : T_FLOAT)
                          : tensor_ref(module_param(g, l, 0));
}

/* T5Attention.compute_bias without the lookup: positions of keys less those of queries, and what
 * _relative_position_bucket makes of them. What is dead before the result is there is not traced but for the largest. */
Tensor *module_buckets(Eager *g, const Layer *l, Tensor *const *in) {
    const Size size = size_from(&l->out);
    (void)in;
    Tensor *distance = aten_random(g, "aten::sub", size, T_LONG), *y = aten_random(g, "aten::add", size, T_LONG);
    tensor_drop(g, distance);
    return y;
}

/* CLIPTextTransformer: x[torch.arange(N), ids.to(torch.int).argmax(-1)], or (ids.to(torch.int) == token).int().argmax(-1) */
Tensor *module_select_token(Eager *g, const Layer *l, Tensor *const *in) {
    const Size ids = size_from(&l->ins[1].shape), x = in[0]->size;
    char text[OPTION_WORDS];
    const bool largest = options_word(&l->options, "token", text)[0];
    Tensor *samples = aten_random(g, "aten::arange", SIZE(x.of[0]), T_LONG), *whole = aten_random(g, "aten::_to_copy", ids, T_INT);
    if (!largest) {
        Tensor *same = aten_random(g, "aten::eq", ids, T_BOOL);
        tensor_set(g, &whole, aten_random(g, "aten::_to_copy", ids, T_INT));
        tensor_drop(g, same);
    }
    Tensor *place = aten_random(g, "aten::argmax", SIZE(x.of[0]), T_LONG);
    tensor_drop(g, whole);
    Tensor *flat = aten_view(g, in[0], SIZE(x.of[0] * x.of[1], x.of[2])), *y = aten_index(g, flat, place);
    tensor_drop(g, flat);
    tensor_drop(g, place);
    tensor_drop(g, samples);
    return y;
}

Tensor *module_index(Eager *g, const Layer *l, Tensor *const *in) {
    (void)l;
    return aten_index(g, in[0], in[1]);
}

Tensor *module_gather(Eager *g, const Layer *l, Tensor *const *in) {
    (void)l;
    return aten_gather(g, in[0], in[1]);
}

Tensor *module_parameter(Eager *g, const Layer *l, Tensor *const *in) {
    (void)in;
    return tensor_ref(module_param(g, l, 0));
}
