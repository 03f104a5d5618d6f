/* Activations, dropout, softmax, normalisation. */
#include <string.h>

#include "modules.h"

static int counted_dim(const Layer *l, const char *option, int rank) {
    const int64_t dim = options_int(&l->options, option);
    return (int)(dim < 0 ? dim + rank : dim);
}

/* Softsign: input / (input.abs() + 1) */
static Tensor *softsign(Eager *g, Tensor *x) {
    Tensor *size = aten_act(g, aten_act_rule("Abs"), x, false), *one = aten_binary_number(g, WITH_ADD, size);
    tensor_drop(g, size);
    Tensor *y = aten_binary(g, WITH_DIV, x, one);
    tensor_drop(g, one);
    return y;
}

/* x * factor + offset as a line of Python says it: without what changes nothing, and offset - x as one. */
static Tensor *scale(Eager *g, const Layer *l, Tensor *x) {
    const double factor = options_float(&l->options, "factor"), offset = options_float(&l->options, "offset");
    if (factor == -1) return offset == 0 ? aten_neg(g, x) : aten_rsub(g, x);
    if (factor == 1) return aten_binary_number(g, WITH_ADD, x);
    Tensor *y = aten_binary_number(g, WITH_MUL, x);
    if (offset != 0) tensor_set(g, &y, aten_binary_number(g, WITH_ADD, y));
    return y;
}

/* What autocast runs in fp32. */
static bool is_wide(const char *kind) {
    static const char *const wide[] = {"Exp", "Softplus", "Log", "Rsqrt", "Reciprocal", "Pow"};
    for (size_t i = 0; i < ARRAY_LEN(wide); i++)
        if (!strcmp(wide[i], kind)) return true;
    return false;
}

/* Where PyTorch's module has the option; the setting `inplace` says it for all of them. */
static bool is_inplace(const Eager *g, const Layer *l) {
    return g->inplace == INPLACE_MARKED ? options_bool(&l->options, "inplace") : g->inplace == INPLACE_ON && strstr(l->kind->spec, "inplace:");
}

static Tensor *clamp(Eager *g, const Layer *l, Tensor *x) {
    char min[OPTION_WORDS], max[OPTION_WORDS];
    options_word(&l->options, "min", min);
    options_word(&l->options, "max", max);
    return aten_clamp(g, x, !min[0] && !max[0]);
}

Tensor *module_activation(Eager *g, const Layer *l, Tensor *const *in) {
    const char *kind = layer_kind(l);
    if (!strcmp(kind, "Softsign")) return softsign(g, in[0]);
    if (!strcmp(kind, "Scale")) return scale(g, l, in[0]);
    if (!strcmp(kind, "Clamp")) return clamp(g, l, in[0]);
    Tensor *x = is_wide(kind) ? amp_wide(g, in[0]) : tensor_ref(in[0]);
    Tensor *y = aten_act(g, aten_act_rule(kind), x, is_inplace(g, l));
    tensor_drop(g, x);
    return y;
}

/* Autocast: prelu is in the list of 16-bit ops. */
Tensor *module_prelu(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *w = amp_low(g, module_param(g, l, 0)), *x = amp_low(g, in[0]), *y = aten_prelu(g, x, w);
    tensor_drop(g, x);
    tensor_drop(g, w);
    return y;
}

Tensor *module_softmax(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *x = in[0];
    return aten_softmax(g, x, counted_dim(l, "dim", x->size.rank), l->kind->which, g->autocast ? T_FLOAT : x->type);
}

Tensor *module_glu(Eager *g, const Layer *l, Tensor *const *in) {
    return aten_glu(g, in[0], counted_dim(l, "dim", in[0]->size.rank));
}

/* ---- dropout */

/* x * noise, as whole channels, or samples, are dropped, and anything in place */
static Tensor *by_noise(Eager *g, Tensor *x, const char *op, Size noise, bool inplace) {
    Tensor *drawn = aten_random(g, op, noise, x->type);
    Tensor *y = inplace ? aten_mul_inplace(g, x, drawn) : aten_binary(g, WITH_MUL, x, drawn);
    tensor_drop(g, drawn);
    return y;
}

Tensor *module_dropout(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *x = in[0];
    if (!g->training || options_float(&l->options, "p") == 0) return tensor_ref(x);
    const bool inplace = is_inplace(g, l);
    if (l->kind->which) return by_noise(g, x, "aten::new_empty", SIZE(x->size.of[0], x->size.of[1], 1, 1), inplace);
    return inplace ? by_noise(g, x, "aten::empty_like", x->size, true) : aten_dropout(g, x);
}

Tensor *module_stochastic_depth(Eager *g, const Layer *l, Tensor *const *in) {
    char mode[OPTION_WORDS];
    if (!g->training || options_float(&l->options, "p") == 0) return tensor_ref(in[0]);
    Size noise = in[0]->size;
    for (int d = 0; d < noise.rank; d++)
        if (d || !strcmp(options_word(&l->options, "mode", mode), "batch")) noise.of[d] = 1;
    return by_noise(g, in[0], "aten::empty", noise, false);
}

Tensor *module_randn(Eager *g, const Layer *l, Tensor *const *in) {
    (void)l;
    return aten_random(g, "aten::randn_like", in[0]->size, in[0]->type);
}

/* ---- normalisation */

Tensor *module_batchnorm(Eager *g, const Layer *l, Tensor *const *in) {
    const int affine = options_bool(&l->options, "affine") ? 2 : 0;
    Tensor *const running[2] = {module_param(g, l, affine), module_param(g, l, affine + 1)};
    Tensor *w = affine ? module_param(g, l, 0) : NULL, *b = affine ? module_param(g, l, 1) : NULL;
    return aten_batch_norm(g, in[0], w, b, running);
}

Tensor *module_layernorm(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *w = module_param(g, l, 0), *b = module_param(g, l, 1);
    char listing[OPTION_WORDS];
    if (!strcmp(options_word(&l->options, "listing", listing), "LlamaRMSNorm")) return llama_rms_norm(g, in[0], w);
    return l->kind->which ? aten_rms_norm(g, in[0], w) : aten_layer_norm(g, in[0], w, b, 1);
}

Tensor *module_groupnorm(Eager *g, const Layer *l, Tensor *const *in) {
    return aten_group_norm(g, in[0], module_param(g, l, 0), module_param(g, l, 1), options_int(&l->options, "num_groups"));
}

/* Batch normalisation of (1, N C, ...), with weights that are repeated for each sample. */
Tensor *module_instancenorm(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *const x = in[0];
    const int64_t n = x->size.of[0], c = x->size.of[1];
    Size one = x->size;
    one.of[0] = 1;
    one.of[1] = n * c;
    Tensor *w = aten_repeat(g, module_param(g, l, 0), n), *b = aten_repeat(g, module_param(g, l, 1), n);
    Tensor *lies = aten_contiguous(g, x), *whole = aten_view(g, lies, one), *z = aten_batch_norm(g, whole, w, b, NULL);
    tensor_drop(g, lies);
    tensor_drop(g, b);
    tensor_drop(g, whole);
    Tensor *y = aten_view(g, z, x->size);
    tensor_drop(g, z);
    tensor_drop(g, w);
    return y;
}
