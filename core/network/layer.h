/* layer.h: the contract of a layer kind. A file in layers/ defines one or more kinds; layers.def lists them.
 * A layer knows shapes and emits forward ops. It never sees memory, dtypes or gradients: passes add those. */
#ifndef MT_LAYER_H
#define MT_LAYER_H

#include "lower.h"
#include "network.h"

/* Checks the options and the inputs (l->in, or all l->n_in of l->ins), declares parameters with network_param, and sets
 * the output where it differs from the first input: l->out and l->out_order start as l->in and l->in_order. A container
 * infers its children. ERR_SCRIPT: an option or a shape is wrong. */
typedef int LayerShape(Network *n, Layer *l, Err *e);
/* Emits the forward ops on the buffers in[l->n_in] and returns the output buffer (0 once p->failed is set). Runs after
 * the LayerShape of the same layer has succeeded. A loss makes the program's target first. */
typedef int LayerForward(Lower *lw, const Layer *l, const int *in);

struct LayerKind {
    const char *name, *spec;
    char role; /* see layers.def */
    int which; /* see layers.def */
    LayerShape *shape;
    LayerForward *forward;
};

#define LAYER(name, role, functions, which, spec)                                                                      \
    LayerShape layer_##functions##_shape;                                                                              \
    LayerForward layer_##functions##_forward;
#include "layers.def"
#undef LAYER

/* The rows of layers.def, in its order: layers/layers.c. */
extern const LayerKind layer_kinds[];
extern const int layer_kind_count;

/* LayerKind.which of Flatten, Unflatten, Reshape, Squeeze, Unsqueeze. */
enum { RESHAPE_FLATTEN, RESHAPE_UNFLATTEN, RESHAPE_VIEW, RESHAPE_SQUEEZE, RESHAPE_UNSQUEEZE };
/* LayerKind.which of PixelShuffle, PixelUnshuffle, ChannelShuffle. */
enum { SHUFFLE_PIXELS, SHUFFLE_BACK, SHUFFLE_CHANNELS };

/* Kernel sizes, strides, paddings and dilations stay below this, so that a product of two of them fits in int32_t. */
enum { WINDOW_MAX = 32767 };

/* Infers `l`, whose path is set, and its children for the inputs in[n_in], n_in from 1 to LAYER_IN. */
int network_infer(Network *n, Layer *l, const Value *in, int n_in, Err *e);
/* Sets child i's path to the parent's path and the child's name (`name` where it has none), and infers it. */
int network_infer_child(Network *n, Layer *parent, int i, const char *name, const Value *in, int n_in, Err *e);
/* Declares a parameter of this layer: "weight" becomes "<path>.weight". It starts uniform in [-bound, bound]; with more
 * than 2 dimensions (a convolution's) it is stored channels-last. order: the layer's in_order if its columns follow the
 * input's features, else NULL. The layer reads its parameters in the order in which it declares them. */
int network_param(Network *n, Layer *l, const char *name, Shape shape, double bound, const int64_t *order, Err *e);
/* The same for a parameter that starts otherwise, or a buffer: takes shape, init, bound, zero_row, order, turned,
 * dtype, buffer, constant and plain from `like`. */
int network_tensor(Network *n, Layer *l, const char *name, const Param *like, Err *e);

/* Is it a loss whose target is a class for each row, not numbers like the output? */
bool layer_has_labels(const Layer *l);
/* The dimension of such a loss's input that has the classes. */
int layer_class_dim(const Layer *l);

/* How many axes its images have: 2 of (N, C, H, W); 1 of (N, C, L), for kinds whose options are whole numbers in place
 * of pairs. Ops always have two axes: a layer's only axis is their width, and their height is 1. */
int layer_axes(const Layer *l);
/* An option along axis 0 (height) or 1 (width); `missing` along the height of a layer that has none. */
int64_t layer_along(const Layer *l, const char *option, int axis, int64_t missing);
/* (n, c, h, w), or (n, c, w) for a layer of 1 axis. */
Shape layer_shape(const Layer *l, int64_t n, int64_t c, int64_t h, int64_t w);
/* Of a layer whose row of layers.def has a convolution's options. All bytes that it does not set are zero. */
ConvAttr layer_conv_attr(const Layer *l);
/* Checks the input's rank, and gives the input as (N, C, H, W): of (N, C, L) H is 1. */
int layer_expect_image(const Layer *l, Shape *image, Err *e);
/* Sets an image (N, channels, size) as the output. */
void layer_output_image(Layer *l, int64_t channels, const int64_t size[2]);

/* The cell of a recurrent layer. */
RnnMode layer_rnn_mode(const Layer *l);

/* Sets how the weight of a linear layer of `in` features starts: as PyTorch's, or as the option `std` says. linear.c */
int layer_linear_start(const Layer *l, int64_t in, Param *weight, Err *e);

/* ERR_SCRIPT where a batch normalisation in the layer has one value per channel, of which there is no variance; PyTorch refuses
 * it, too. norm.c */
int layer_batchnorm_check(const Layer *l, bool training, Err *e);

/* What a DoraLinear reads the parameters of, by the names of mt.peft.lora's graph: base_layer, lora_A.default, lora_B.default.
 * dora_parts: ERR_SCRIPT where one is not there. layers/dora.c */
typedef struct DoraParts { const Layer *base, *a, *b; } DoraParts;
int dora_parts(const Layer *l, DoraParts *parts, Err *e);
/* The base's weight, and its bias or -1, as numbers of Network.params. */
int dora_weight_of(const DoraParts *parts);
int dora_bias_of(const Network *n, const DoraParts *parts);

/* "layer 3.body.0 Linear (net.lua:8): <text>" with code ERR_SCRIPT */
int layer_error(const Layer *l, Err *e, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Sets an output of that shape in PyTorch's feature order. */
void layer_output(Layer *l, Shape out);
/* Lets (N, C, L) lie as an image, in and out; other ranks stay as they are. */
void layer_take_line(Layer *l);
/* The next four return ERR_SCRIPT if the check fails. The layer has at most that many inputs. */
int layer_expect_inputs(const Layer *l, int most, Err *e);
/* Input k of the layer, whose first input is (N, T, C), is an input (N, T) of the network: the positions of sequences that
 * lie one after the other. Notes there that it is. embedding.c */
int layer_expect_positions(Network *n, const Layer *l, int k, Err *e);
/* The first input has that rank; `meaning` says what the dimensions are: "(N, C, H, W)". */
int layer_expect_rank(const Layer *l, int rank, const char *meaning, Err *e);
/* An int option, or both numbers of a pair, lie in [min, max]. An option given as a word, or unknown, passes. */
int layer_expect_range(const Layer *l, const char *option, int64_t min, int64_t max, Err *e);

#endif
