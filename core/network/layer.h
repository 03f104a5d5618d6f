/* layer.h: the contract of a layer kind. A file in layers/ defines one or more kinds; layers.def lists them.
 * A layer knows shapes and emits forward ops. It never sees memory, dtypes or gradients: those are passes. */
#ifndef MT_LAYER_H
#define MT_LAYER_H

#include "lower.h"
#include "network.h"

/* Checks options and l->in (of several inputs: l->ins), declares parameters with network_param, and sets the output
 * where it differs from the input (l->out and l->out_order start as l->in and l->in_order). A container infers its
 * children. */
typedef int LayerShape(Network *n, Layer *l, Err *e);
/* Emits the forward ops on the buffers of the l->n_in inputs and returns the output buffer. A loss makes the program's
 * target first. */
typedef int LayerForward(Lower *lw, const Layer *l, const int *in);

struct LayerKind {
    const char *name, *spec;
    char role; /* see layers.def */
    int which;
    LayerShape *shape;
    LayerForward *forward;
};

#define LAYER(name, role, functions, which, spec)                                                                      \
    LayerShape layer_##functions##_shape;                                                                              \
    LayerForward layer_##functions##_forward;
#include "layers.def"
#undef LAYER

/* One for each row of layers.def: layers/layers.c */
extern const LayerKind layer_kinds[];
extern const int layer_kind_count;

/* What Reshape and its like, and PixelShuffle and its like, are told apart by. */
enum { RESHAPE_FLATTEN, RESHAPE_UNFLATTEN, RESHAPE_VIEW, RESHAPE_SQUEEZE, RESHAPE_UNSQUEEZE };

enum { SHUFFLE_PIXELS, SHUFFLE_BACK, SHUFFLE_CHANNELS };

/* Kernel sizes, strides, paddings and dilations stay below this, so that a product of two of them fits in int32_t. */
enum { WINDOW_MAX = 32767 };

/* Infers `l` (path already set) and its children for these inputs. */
int network_infer(Network *n, Layer *l, const Value *in, int n_in, Err *e);
/* Sets child i's path to the parent's plus `name` (the child's own name goes before) and infers it. */
int network_infer_child(Network *n, Layer *parent, int i, const char *name, const Value *in, int n_in, Err *e);
/* A parameter of this layer: "weight" becomes "<path>.weight"; uniform in [-bound, bound]; of a convolution, with
 * more than 2 dimensions, it is stored channels-last. `order`: the layer's in_order where its columns follow the
 * input's features, else NULL. The layer reads its parameters in the order in which it declares them. */
int network_param(Network *n, Layer *l, const char *name, Shape shape, double bound, const int64_t *order, Err *e);
/* The same for one that starts otherwise, or a buffer: takes shape, init, bound, zero_row, order, dtype and buffer of
 * `like`. */
int network_tensor(Network *n, Layer *l, const char *name, const Param *like, Err *e);

/* Axes of the images that it takes: 2 of (N, C, H, W), 1 of (N, C, L), where its options are whole numbers and no
 * pairs. Within, a layer of 1 axis has two, as the ops do: its own is the width, and the height is 1. */
int layer_axes(const Layer *l);
/* An option along axis 0 (height) or 1 (width); `missing` along the height that there is not. */
int64_t layer_along(const Layer *l, const char *option, int axis, int64_t missing);
/* A shape without the height that there is not. */
Shape layer_shape(const Layer *l, int64_t n, int64_t c, int64_t h, int64_t w);
/* The same of an image; checks the input's rank. */
int layer_expect_image(const Layer *l, Shape *image, Err *e);
/* Sets an image as the output. */
void layer_output_image(Layer *l, int64_t channels, const int64_t size[2]);

/* "layer 3.body.0 Linear (net.lua:8): <text>" with code ERR_SCRIPT */
int layer_error(const Layer *l, Err *e, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Sets an output of that shape in PyTorch's feature order. */
void layer_output(Layer *l, Shape out);
/* (N, C, L) is to lie as an image, in and out; other ranks stay as they are. */
void layer_take_line(Layer *l);
/* Checks that it was given at most that many inputs. */
int layer_expect_inputs(const Layer *l, int most, Err *e);
/* Checks the rank of the input; `meaning` says what the dimensions are: "(N, C, H, W)". */
int layer_expect_rank(const Layer *l, int rank, const char *meaning, Err *e);
/* Checks that an int option, or both numbers of a pair, lie in [min, max]. */
int layer_expect_range(const Layer *l, const char *option, int64_t min, int64_t max, Err *e);

#endif
