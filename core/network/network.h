/* network.h: layers with inferred shapes and named parameters; it owns no tensor memory.
 *
 * A network is a tree whose nodes are uses of layers: a layer that stands in two places, or is called twice, is two
 * nodes, and the second shares the first one's parameters. In a container each child says whose outputs it reads. */
#ifndef MT_NETWORK_H
#define MT_NETWORK_H

#include "base/names.h"
#include "math/quantized.h"
#include "options.h"
#include "program/program.h"

enum {
    LAYER_PATH = OP_PATH,
    LAYER_NAME = 64,
    LAYER_WHERE = 64,
    LAYER_IN = 8,      /* most inputs of one layer */
    LAYER_DEPTH = 32,  /* most levels of containers */
    PARAM_NAME = OP_PATH,
};

#define LAYER_OWN "." /* the name of a layer whose parameters have its container's own names */

typedef struct LayerKind LayerKind; /* layer.h */

/* What flows between layers. */
typedef struct Value {
    Shape shape;      /* dimension 0 is the batch */
    int64_t order[3]; /* (C, H, W) where it is stored as H, W, C: features of a flattened image, or (N, C, L) with H = 1;
                       * zeros: PyTorch's order, or an image, which is channels-last anyway */
    int input;        /* 1 + the number of the network's input that it is as it comes: an Embedding can read that as
                       * indices; 0: none */
    bool param;       /* a parameter by itself, which tensor operations read */
    bool labels;      /* the labels of a loss: whole numbers, which gather alone reads */
    bool positions;   /* 0, 1, 2 ... (Arange), which Compare and Embedding read; no buffer of memtide's step holds them */
    bool mask;        /* what Compare makes of them, and Mask, which MaskedFill and Where read; no buffer holds it either */
    bool rows;        /* of 4 dimensions: lies in PyTorch's order, no image channels-last */
    bool constant;    /* a Buffer's or a Tensor's numbers, or a part of them: none of its dimensions is the batch */
    int64_t below;    /* a constant of whole numbers, which Index and Embedding read: all are below this; 0: none */
} Value;

typedef struct Layer {
    const LayerKind *kind;
    Options options;
    char name[LAYER_NAME];   /* "conv1", "conv1#2" where it is used again, "relu#1" without a name; "": its number */
    char path[LAYER_PATH];   /* "2", "3.body.0"; "" for the outermost */
    char where[LAYER_WHERE]; /* "article.lua:12" */
    struct Layer *container; /* the layer whose child it is; NULL: it is the outermost */
    struct Layer **child;
    int n_child, cap_child;
    int depth;               /* levels of layers below it */
    int from[LAYER_IN], n_from; /* whose outputs it reads: child k of its container, or ~k: the container's input k */
    int held;                /* the last child of its container that runs while a variable holds its output; 0: none */
    int place;               /* the children's parameters are numbered by rising place; at first the child's number */
    int result[LAYER_IN], n_result; /* of a container: whose outputs are its own, numbered as in `from`. Only the network
                                     * as a whole may have more than one, and then has a loss for each. */
    const struct Layer *shares; /* the first use of the same layer, or NULL */
    const struct Layer *tied;   /* the layer whose first parameter is its first one, too, or NULL */
    bool frozen;             /* its parameters are not trained */
    bool wide;               /* its parameters are fp32 in every precision */
    double factor;           /* of a loss: what it is multiplied by */
    int n_in;                /* how many inputs; 1 but for containers and layers of role m */
    union {                  /* the inputs, set by network_infer; the first has names of its own */
        Value ins[LAYER_IN];
        struct { Shape in; int64_t in_order[3]; int in_input; bool in_is_param, in_is_labels, in_is_positions,
                 in_is_mask, in_rows, in_is_constant; int64_t in_below; };
    };
    union {
        Value output;
        struct { Shape out; int64_t out_order[3]; int out_input; bool out_is_param, out_is_labels, out_is_positions,
                 out_is_mask, out_rows, out_is_constant; int64_t out_below; };
    };
    int *param, n_params, cap_params; /* the Network.params that it reads itself; its children have their own */
} Layer;

typedef enum Init { INIT_UNIFORM, INIT_CONSTANT, INIT_NORMAL, INIT_DORA } Init;

/* shape: the weight's, (O, I), that the codes stand for; nested: absmax is of codes, too */
typedef struct Quantization { QuantFormat format; bool nested; Shape shape; } Quantization;

/* A parameter, or a buffer of a layer (PyTorch's register_buffer): kept like a parameter, but no gradient changes it.
 * It starts uniform in [-bound, bound] (PyTorch's kaiming_uniform with a = sqrt(5) means bound = 1/sqrt(fan_in)), with
 * all elements `bound`, normal with mean 0 and standard deviation `bound`, or (DORA, of DoraLinear) with the norms that follow
 * from other parameters, of which `bound` is the scaling. */
typedef struct Param {
    char name[PARAM_NAME]; /* "0.weight": the key in PyTorch's state_dict */
    Shape shape;           /* PyTorch's */
    Init init;
    double bound;
    int64_t zero_row;      /* 1 + the row that starts at zero; 0: none */
    DType dtype;           /* before the precision pass: fp32; i32 of a counter */
    bool buffer;
    const double *constant; /* of a buffer: the values that it has for good, borrowed from its layer; or NULL */
    bool plain;            /* lies in PyTorch's order whatever its dimensions */
    Layout layout;         /* how the program stores it */
    bool turned;           /* a matrix that the program stores transposed */
    int64_t order[3];      /* (C, H, W) if its columns follow the features of a flattened channels-last image; or zeros */
    bool trainable;        /* false: frozen, no gradient and no optimizer state */
    bool wide;             /* fp32 in every precision */
    Quantization quantized; /* how a weight is stored as codes, which `bound` and `init` draw before it becomes codes */
    bool derived;          /* a part of the quantised weight that was declared last: made with it */
    int number;            /* by which it is drawn: it counts the parameters before it, but not what is derived */
    const Layer *owner;    /* the first layer that uses it, whose name it has */
} Param;

/* A second name of a parameter: PyTorch's state_dict has it under both. */
typedef struct ParamAlias { char name[PARAM_NAME]; int param; } ParamAlias;

/* What a network is given: one value, or several, each under a name. */
typedef struct Input {
    char name[LAYER_NAME]; /* "pixels"; "": it is the only one */
    Shape shape;           /* dimension 0 is the batch, that of all */
    bool bytes;            /* it is read as bytes, by FromBytes */
    int64_t channels;      /* for so many of which that has a mean and a std each; 0: one for all */
    int64_t indices;       /* it is read as indices below this (an Embedding's rows); 0: as numbers */
    bool positions;        /* they are the positions of sequences that lie one after the other in a row: 0, 1, 2, 0, 1 ... */
} Input;

typedef struct Network {
    Layer *root;
    Layer *loss[LAYER_IN]; /* CrossEntropyLoss ...: one for each output of the root, or none at all */
    int n_losses;
    Input inputs[LAYER_IN];
    int n_inputs;
    int64_t batch;
    Shape output;          /* dimension 0 is the batch; the first one */
    int64_t targets;       /* labels or numbers per sample; 0: there is no loss */
    int class_dim;         /* the output's dimension that has the classes, where targets are labels; else 0 */
    Param *params;         /* parameters and buffers, in PyTorch's order */
    int n_params, cap_params, n_drawn; /* n_drawn: see Param.number */
    ParamAlias *aliases;
    int n_aliases, cap_aliases;
    Names names, alias_names; /* of params and of aliases */
    int64_t elements;      /* of all parameters; buffers do not count */
} Network;

/* ---- building the tree: the caller owns a layer until it is added or given to network_new */
/* where: the script's line, "" or NULL where there is none. NULL: ERR_SCRIPT for an unknown kind (the text names the
 * known ones), or ERR_HOST_MEMORY. */
Layer *layer_new(const char *kind, const char *where, Err *e);
/* Takes the child, also on failure, and wires it to the child before it. ERR_SCRIPT: the parent is no container, the
 * child is a loss, or there are more than LAYER_DEPTH levels. */
int layer_add(Layer *parent, Layer *child, Err *e);
void layer_free(Layer *l);                                      /* with its children; NULL is allowed */
/* The name under which its container has it, and its parameters' names begin with; "": its number there. ERR_SCRIPT:
 * the name is too long. */
int layer_set_name(Layer *l, const char *name, Err *e);
/* Lets child i read the outputs from[n] (see Layer.from), all of children before it. ERR_SCRIPT: too many inputs. */
int layer_wire(Layer *parent, int i, const int *from, int n, Err *e);
const char *layer_kind(const Layer *l);                         /* its kind's name */
/* The option line of a kind (see options.h), NULL when there is no such kind. */
const char *layer_spec(const char *kind);
/* The i-th kind's name, NULL past the end; *role: see layers.def. */
const char *layer_kind_name(int i, char *role);

/* Takes the tree and n losses, at most LAYER_IN, also on failure, and infers all shapes for the inputs, at most LAYER_IN,
 * whose shapes and names are given. ERR_SCRIPT names the layer's path and line, the expected and the found shape;
 * ERR_HOST_MEMORY. */
int network_new(Layer *root, Layer *const *losses, int n, const Input *inputs, int n_inputs, Network **out, Err *e);
void network_free(Network *n);
/* The number of elements of all parameters; of those that are not trained. Buffers do not count. */
int64_t network_parameters(const Network *n);
/* How many numbers a parameter stands for: of codes, those of the weight. */
int64_t param_elements(const Param *p);
int64_t network_frozen(const Network *n);
/* The output's shape, and the layer that decides how many rows a batch becomes: for messages about targets. */
void network_output_text(const Network *n, char *text, size_t room);
enum { NETWORK_OUTPUT = LAYER_PATH + LAYER_WHERE + 288 }; /* enough room for it */
/* The parameter that has that name, as its first or as a second one; -1: there is none. */
int network_find_param(const Network *n, const char *name);
/* The name of parameter i: a NameOf, for n->names. */
const char *network_param_name(const void *network, int i);
/* A line per layer: path, kind, options, output shape, parameters. */
void network_dump(const Network *n, TextSink *put, void *arg);
/* Visits the layers without children, in the order of the tree. */
typedef void LayerVisit(void *arg, const Network *n, const Layer *l);
void network_visit(const Network *n, LayerVisit *visit, void *arg);

#endif
