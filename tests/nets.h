/* nets.h: small networks for C tests, built as a script's tables would be. */
#ifndef NETS_H
#define NETS_H

#include "compile.h"
#include "mem.h"

/* A layer with options given by name and number: NET_LAYER(e, "Linear", {"in_features", 8}, {"out_features", 4}, ) */
#define NET_LAYER(e, kind, ...) net_with(e, kind, (const NetOption[]){__VA_ARGS__ {NULL, 0}})
typedef struct NetOption { const char *name; double value; } NetOption;

__attribute__((unused)) static Layer *net_with(Err *e, const char *kind, const NetOption *options) {
    Layer *l = layer_new(kind, "test.lua:1", e);
    for (int i = 0; l && options[i].name; i++) {
        Option *o = options_find(&l->options, options[i].name, e);
        double v = options[i].value;
        if (o && !(o->type == OPTION_BOOL ? option_set_bool(o, v != 0, e) : option_set_number(o, v, e))) continue;
        layer_free(l);
        return NULL;
    }
    return l;
}

/* A container of `n` layers; on any failure everything is freed and NULL returned. */
__attribute__((unused)) static Layer *net_of(Err *e, const char *kind, int n, Layer *const *children) {
    Layer *l = layer_new(kind, "test.lua:1", e);
    bool good = l != NULL;
    for (int i = 0; i < n; i++) {
        if (!good) layer_free(children[i]);
        else if (!children[i] || layer_add(l, children[i], e)) good = false; /* takes the child, also when it fails */
    }
    if (good) return l;
    layer_free(l);
    return NULL;
}
#define NET_OF(e, kind, ...) \
    net_of(e, kind, (int)ARRAY_LEN(((Layer *const[]){__VA_ARGS__})), (Layer *const[]){__VA_ARGS__})

#define CONV(e, in, out, k, pad, ...) \
    NET_LAYER(e, "Conv2d", {"in_channels", in}, {"out_channels", out}, {"kernel_size", k}, {"padding", pad}, __VA_ARGS__)
#define LINEAR(e, in, out) NET_LAYER(e, "Linear", {"in_features", in}, {"out_features", out}, )

/* The article's network with `width` channels (64 in the article). */
__attribute__((unused)) static Layer *net_article(Err *e, int width) {
    return NET_OF(e, "Sequential", CONV(e, 3, width, 3, 0, ), NET_LAYER(e, "ReLU", ), CONV(e, width, 2 * width, 3, 0, ),
                  NET_LAYER(e, "ReLU", ), NET_LAYER(e, "Flatten", ), LINEAR(e, 2 * width * 28 * 28, 10));
}

/* Everything in one small network for 3 x 12 x 12 images: residual, checkpointed layers, pooling, dropout, every activation. */
__attribute__((unused)) static Layer *net_mixed(Err *e) {
    Layer *body = NET_OF(e, "Sequential", CONV(e, 8, 8, 3, 1, ), NET_LAYER(e, "GELU", ), CONV(e, 8, 8, 3, 1, {"groups", 2}, ));
    Layer *marked = NET_OF(e, "Sequential", CONV(e, 8, 12, 3, 1, {"bias", 0}, ), NET_LAYER(e, "LeakyReLU", ),
                           NET_LAYER(e, "Dropout", {"p", 0.25}, ), CONV(e, 12, 8, 1, 0, ), NET_LAYER(e, "Tanh", ));
    return NET_OF(e, "Sequential", CONV(e, 3, 8, 3, 1, ), NET_LAYER(e, "ReLU", {"inplace", 1}, ),
                  NET_LAYER(e, "MaxPool2d", {"kernel_size", 2}, ), NET_OF(e, "Residual", body), NET_LAYER(e, "ReLU", ),
                  NET_OF(e, "Checkpoint", marked), NET_LAYER(e, "AvgPool2d", {"kernel_size", 2}, {"padding", 1}, ),
                  NET_LAYER(e, "AdaptiveAvgPool2d", {"output_size", 3}, ), NET_LAYER(e, "Flatten", ), LINEAR(e, 72, 20),
                  NET_LAYER(e, "Sigmoid", ), NET_LAYER(e, "Dropout", ), LINEAR(e, 20, 10));
}

__attribute__((unused)) static int net_build(Layer *root, const char *loss, Shape input, Network **out, Err *e) {
    Layer *l = loss ? layer_new(loss, "test.lua:2", e) : NULL;
    if (!root || (loss && !l)) {
        layer_free(root);
        layer_free(l);
        return e->code ? e->code : err_set(e, ERR_HOST_MEMORY, "no layer");
    }
    return network_new(root, l, &input, out, e);
}

/* Nonzero inputs and labels in closed form. */
__attribute__((unused)) static int net_feed(void *arg, uint32_t step, uint32_t micro, float *x, void *t, Err *e) {
    const Program *p = arg;
    uint32_t s = step * (uint32_t)p->micro_batches + micro;
    int64_t n = shape_elements(&p->bufs[p->input].shape);
    (void)e;
    for (int64_t i = 0; i < n; i++) x[i] = (float)sin(0.377 * (double)i + 0.25 * s);
    if (!t) return OK;
    n = shape_elements(&p->bufs[p->target].shape);
    for (int64_t i = 0; i < n; i++) {
        if (p->bufs[p->target].dtype == DT_I32) ((int32_t *)t)[i] = (int32_t)((7 * i + 3 + s) % 10);
        else ((float *)t)[i] = (float)(0.5 * sin(0.193 * (double)i + s));
    }
    return OK;
}

#endif
