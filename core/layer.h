/* layer.h: the contract of a layer kind. A file in layers/ defines one or more kinds; layers.def lists them.
 * A layer knows shapes and emits forward ops. It never sees memory, dtypes or gradients: those are passes. */
#ifndef MT_LAYER_H
#define MT_LAYER_H

#include "lower.h"
#include "network.h"

typedef struct LayerKind {
    const char *name, *spec;
    char role; /* 'l' layer, 'c' container, 's' loss */
    /* Checks options and input shape, sets *out, declares parameters with network_param. A container infers its children. */
    int (*shape)(Network *n, Layer *l, const Shape *in, Shape *out, Err *e);
    /* Emits the forward ops on buffer x; returns the output buffer. Losses use lower->p->target. */
    int (*forward)(Lower *lower, const Layer *l, int x);
} LayerKind;

/* Infers `l` (path already set) and its children for input `in`. */
int network_infer(Network *n, Layer *l, const Shape *in, Err *e);
/* Sets the child's path to the parent's plus `name`. */
void layer_name_child(const Layer *parent, Layer *child, const char *name);
/* A parameter of this layer: "weight" becomes "<path>.weight"; uniform in [-bound, bound]. */
int network_param(Network *n, Layer *l, const char *name, Shape shape, double bound, Layout layout, Err *e);
/* "3.body.0 Linear (net.lua:8): <text>" with code ERR_SCRIPT */
int layer_error(const Layer *l, Err *e, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Checks the rank of an input; the message names expected and found. */
int layer_expect_rank(const Layer *l, const Shape *in, int rank, const char *meaning, Err *e);

#endif
