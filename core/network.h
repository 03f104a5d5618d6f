/* network.h: layers with inferred shapes and named parameters. A tree of layers; owns no tensor memory. */
#ifndef MT_NETWORK_H
#define MT_NETWORK_H

#include "options.h"
#include "program.h"

enum { LAYER_PATH = OP_PATH, LAYER_WHERE = 64, PARAM_NAME = 40, LAYER_DEPTH = 32 /* most levels of containers */ };

typedef struct LayerKind LayerKind; /* layer.h */

typedef struct Layer {
    const LayerKind *kind;
    Options options;
    char path[LAYER_PATH];   /* "2", "3.body.0"; "" for the outermost */
    char where[LAYER_WHERE]; /* "article.lua:12" */
    struct Layer **child;
    int n_child, cap_child;
    int depth;               /* levels of containers below */
    Shape in, out;           /* with the batch as dimension 0 */
    int64_t in_order[3], out_order[3]; /* nonzero (C, H, W): features of a flattened image, stored as H, W, C */
    int first_param, n_params; /* own ones, without the children's */
} Layer;

/* How a parameter starts: uniform in [-bound, bound] (PyTorch's kaiming_uniform with a = sqrt(5) comes to
 * bound = 1/sqrt(fan_in)). */
typedef struct Param {
    char name[PARAM_NAME]; /* "0.weight": the key in PyTorch's state_dict */
    Shape shape;           /* PyTorch's */
    double bound;
    Layout layout;         /* how the program stores it */
    int64_t order[3];      /* nonzero (C, H, W): the columns follow a flattened channels-last image */
} Param;

typedef struct Network {
    Layer *root;
    Layer *loss;           /* CrossEntropyLoss ..., NULL: none */
    Shape input, output;   /* dimension 0 is the batch */
    Param *params;
    int n_params, cap_params;
} Network;

/* ---- building the tree: the caller owns a layer until it is added or given to network_new */
/* NULL: unknown kind (the text names the known ones) or no memory. */
Layer *layer_new(const char *kind, const char *where, Err *e);
int layer_add(Layer *parent, Layer *child, Err *e);            /* takes the child, also on failure */
void layer_free(Layer *l);                                      /* with its children; NULL is allowed */
/* The option line of a kind (see options.h), NULL when there is no such kind. */
const char *layer_spec(const char *kind);
/* The i-th kind's name, NULL past the end; `role` gets 'l' layer, 'c' container of layers, 's' loss. */
const char *layer_kind_name(int i, char *role);

/* Takes the tree and the loss (also on failure) and infers all shapes for inputs of shape `input` (batch first).
 * A mistake names the layer's path and line, the expected and the found shape. */
int network_new(Layer *root, Layer *loss, const Shape *input, Network **out, Err *e);
void network_free(Network *n);
/* Sum over all parameters of their elements. */
int64_t network_parameters(const Network *n);
/* A line per layer: path, kind, options, output shape, parameters. */
void network_dump(const Network *n, TextSink *put, void *arg);
/* Walks the layers that are no containers, in execution order. */
typedef void LayerVisit(void *arg, const Network *n, const Layer *l);
void network_visit(const Network *n, LayerVisit *visit, void *arg);

#endif
