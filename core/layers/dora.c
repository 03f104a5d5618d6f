/* DoraLinear: the magnitudes of DoRA (math/dora.h), PEFT's DoraLinearLayer. It reads base_layer(x) + scaling lora_B(lora_A(x)),
 * and beside it the weights of these three, which stand in the same graph under the names that mt.peft.lora gives them. */
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

/* The layer's first or later use under that name, "base_layer" or "base_layer#2" */
static bool is_named(const Layer *l, const char *name) {
    const size_t n = strlen(name);
    return !strncmp(l->name, name, n) && (!l->name[n] || l->name[n] == '#');
}

static const Layer *sibling(const Layer *l, const char *name) {
    for (int i = 0; l->container && i < l->container->n_child; i++)
        if (is_named(l->container->child[i], name)) return l->container->child[i];
    return NULL;
}

static bool is_linear(const Layer *l) { return l->kind->shape == layer_linear_shape || l->kind->shape == layer_linear_q_shape; }
/* A product without a bias */
static bool is_factor(const Layer *l) { return !strcmp(l->kind->name, "Linear") && l->n_params == 1; }

int dora_parts(const Layer *l, DoraParts *parts, Err *e) {
    *parts = (DoraParts){sibling(l, "base_layer"), sibling(l, "lora_A.default"), sibling(l, "lora_B.default")};
    const bool there = parts->base && parts->a && parts->b && is_linear(parts->base) && parts->base->n_params && is_factor(parts->a) &&
                       is_factor(parts->b);
    return there ? OK : layer_error(l, e, "is a part of what mt.peft.lora makes with use_dora: it needs base_layer, "
                                    "lora_A.default and lora_B.default before it in its graph");
}

int dora_weight_of(const DoraParts *parts) { return parts->base->param[0]; }

/* Parameters of a linear layer: the weight, the bias, and what was derived of codes */
int dora_bias_of(const Network *n, const DoraParts *parts) {
    const Layer *base = parts->base;
    const bool there = base->n_params > 1 && !n->params[base->param[1]].derived;
    return there ? base->param[1] : -1;
}

int layer_dora_shape(Network *n, Layer *l, Err *e) {
    char text[SHAPE_TEXT];
    DoraParts parts;
    int code = dora_parts(l, &parts, e);
    if (code) return code;
    const Shape *a = &n->params[parts.a->param[0]].shape, *b = &n->params[parts.b->param[0]].shape;
    const int64_t out = b->dim[0], in = a->dim[1], last = parts.base->out.rank - 1;
    if (b->dim[1] != a->dim[0] || parts.base->out.dim[last] != out || parts.base->in.dim[parts.base->in.rank - 1] != in)
        return layer_error(l, e, "lora_A and lora_B do not fit the weight of base_layer");
    if (l->in.dim[l->in.rank - 1] != out)
        return layer_error(l, e, "expected %" PRId64 " features, found %s", out, shape_text(&l->in, text));
    for (int k = 0; k < parts.base->n_params; k++)
        if (n->params[parts.base->param[k]].trainable)
            return layer_error(l, e, "expected a frozen base_layer, found that %s is trained", n->params[parts.base->param[k]].name);
    const Param like = {.shape = shape1(out), .init = INIT_DORA, .bound = options_float(&l->options, "scaling")};
    if ((code = network_tensor(n, l, "weight", &like, e))) return code;
    layer_output(l, l->in);
    l->out_rows = l->in.rank == 4;
    return OK;
}

/* The norms of the rows of w + scaling b a. What was derived of codes follows w, in the order of the base's parameters. */
static int emit_norm(Lower *lw, const Layer *l, const DoraParts *parts) {
    const int bias = dora_bias_of(lw->net, parts), operands = op_info(OP_dora_norm)->n_in;
    int of[OP_IN] = {lw->param[parts->a->param[0]], lw->param[dora_weight_of(parts)]}, n = 2;
    Attr a;
    memset(&a, 0, sizeof a);
    a.dora.scaling = (float)options_float(&l->options, "scaling");
    for (int k = bias < 0 ? 1 : 2; k < parts->base->n_params; k++) of[n++] = lw->param[parts->base->param[k]];
    while (n < operands - 1) of[n++] = NO_BUF;
    of[n++] = lw->param[parts->b->param[0]];
    const Shape features = shape1(l->out.dim[l->out.rank - 1]);
    return lower_emit(lw, OP_dora_norm, l, of, n, lower_temp(lw, l, "norm", features, NULL, DT_F32), &a);
}

int layer_dora_forward(Lower *lw, const Layer *l, const int *in) {
    DoraParts parts;
    if (dora_parts(l, &parts, NULL)) return 0; /* checked before */
    const int bias = dora_bias_of(lw->net, &parts);
    const int x = lower_plain(lw, l, in[0]), norm = emit_norm(lw, l, &parts);
    const int of[4] = {x, lw->param[l->param[0]], norm, bias < 0 ? NO_BUF : lw->param[bias]};
    return lower_op(lw, OP_dora, l, of, 4, NULL);
}
