/* network.h: layers with inferred shapes and named parameters; owns no tensor memory.
 *
 * A tree whose nodes are uses of layers: a layer that stands in two places, or is called twice, is two nodes, of
 * which the second shares the first one's parameters. In a container that is a graph each child says whose outputs
 * it reads. */
#ifndef MT_NETWORK_H
#define MT_NETWORK_H

#include "base/names.h"
#include "options.h"
#include "program/program.h"

enum {
    LAYER_PATH = OP_PATH,
    LAYER_NAME = 32,
    LAYER_WHERE = 64,
    LAYER_IN = OP_IN,  /* most inputs of one layer */
    LAYER_DEPTH = 32,  /* most levels of containers */
    PARAM_NAME = 80,
};

typedef struct LayerKind LayerKind; /* layer.h */

/* What flows between layers. */
typedef struct Value {
    Shape shape;      /* with the batch as dimension 0 */
    int64_t order[3]; /* nonzero (C, H, W): stored as H, W, C: features of a flattened image, or (N, C, L) with H = 1 */
    bool input;       /* the network's input as it comes: an Embedding can read it as indices */
    bool param;       /* a parameter by itself, which tensor operations read */
    bool rows;        /* of 4 dimensions: lies in PyTorch's order, no image channels-last */
} Value;

typedef struct Layer {
    const LayerKind *kind;
    Options options;
    char name[LAYER_NAME];   /* "conv1", "conv1#2" where it is used again, "relu#1" without a name; "": its number */
    char path[LAYER_PATH];   /* "2", "3.body.0"; "" for the outermost */
    char where[LAYER_WHERE]; /* "article.lua:12" */
    struct Layer **child;
    int n_child, cap_child;
    int depth;               /* levels of containers below */
    int from[LAYER_IN], n_from; /* whose outputs it reads: child k of its container, or ~k: the container's input k */
    int place;               /* order of its parameters among its siblings'; at first its number */
    int result[LAYER_IN], n_result; /* of a container: whose outputs are its own, in the same terms; only the network as
                                     * a whole has more than one, and a loss for each */
    const struct Layer *shares; /* the first use of the same layer, or NULL */
    const struct Layer *tied;   /* whose first parameter is its first one, too, or NULL */
    bool frozen;             /* its parameters are not trained */
    double factor;           /* of a loss: what it is multiplied by */
    int n_in;                /* inputs; 1 but for joins and graphs */
    union {                  /* all of them; the first has names of its own */
        Value ins[LAYER_IN];
        struct { Shape in; int64_t in_order[3]; bool in_is_input, in_is_param, in_rows; };
    };
    union {
        Value output;
        struct { Shape out; int64_t out_order[3]; bool out_is_input, out_is_param, out_rows; };
    };
    int *param, n_params, cap_params; /* Network.params that it reads, without its children's */
} Layer;

typedef enum Init { INIT_UNIFORM, INIT_CONSTANT, INIT_NORMAL } Init;

/* A parameter, or a buffer of a layer (PyTorch's register_buffer): kept like a parameter, but no gradient changes it.
 * How it starts: uniform in [-bound, bound] (PyTorch's kaiming_uniform with a = sqrt(5) comes to bound =
 * 1/sqrt(fan_in)), all `bound`, or normal with mean 0 and standard deviation `bound`. */
typedef struct Param {
    char name[PARAM_NAME]; /* "0.weight": the key in PyTorch's state_dict */
    Shape shape;           /* PyTorch's */
    Init init;
    double bound;
    int64_t zero_row;      /* 1 + the row that starts at zero, 0: none */
    DType dtype;           /* before the precision pass: fp32, or i32 of a counter */
    bool buffer;
    bool plain;            /* lies in PyTorch's order whatever its dimensions */
    Layout layout;         /* how the program stores it */
    int64_t order[3];      /* nonzero (C, H, W): the columns follow a flattened channels-last image */
    bool trainable;        /* false: frozen, no gradient and no optimizer state */
    const Layer *owner;    /* the first layer that uses it, whose name it has */
} Param;

/* A second name of a parameter, under which PyTorch's state_dict has it, too. */
typedef struct ParamAlias { char name[PARAM_NAME]; int param; } ParamAlias;

typedef struct Network {
    Layer *root;
    Layer *loss[LAYER_IN]; /* CrossEntropyLoss ..., of each output of the root, or none */
    int n_losses;
    Shape input, output;   /* dimension 0 is the batch */
    int64_t targets;       /* that one sample has, labels or numbers; 0: there is no loss */
    int64_t indices;       /* the input is read as indices below it (an Embedding's rows); 0: as numbers */
    Param *params;         /* and buffers */
    int n_params, cap_params;
    ParamAlias *aliases;
    int n_aliases, cap_aliases;
    Names names, alias_names; /* of params and of aliases */
    int64_t elements;      /* of all parameters; buffers do not count */
} Network;

/* ---- building the tree: the caller owns a layer until it is added or given to network_new */
/* NULL: unknown kind (the text names the known ones) or no memory. */
Layer *layer_new(const char *kind, const char *where, Err *e);
int layer_add(Layer *parent, Layer *child, Err *e);            /* takes the child, also on failure */
void layer_free(Layer *l);                                      /* with its children; NULL is allowed */
/* What parameters of it are called after; "": its number in its container. */
int layer_set_name(Layer *l, const char *name, Err *e);
/* Child `i` reads these outputs (see Layer.from), all of children before it; layer_add makes a chain. */
int layer_wire(Layer *parent, int i, const int *from, int n, Err *e);
const char *layer_kind(const Layer *l);                         /* its kind's name */
/* The option line of a kind (see options.h), NULL when there is no such kind. */
const char *layer_spec(const char *kind);
/* The i-th kind's name, NULL past the end; `role`: see layers.def. */
const char *layer_kind_name(int i, char *role);

/* Takes the tree and n losses, at most LAYER_IN (also on failure), and infers all shapes for inputs of shape `input`
 * (batch first). A mistake names the layer's path and line, the expected and the found shape. */
int network_new(Layer *root, Layer *const *losses, int n, const Shape *input, Network **out, Err *e);
void network_free(Network *n);
/* Sum over all parameters of their elements; over those that are not trained. Buffers do not count. */
int64_t network_parameters(const Network *n);
int64_t network_frozen(const Network *n);
/* What the output looks like, and which layer decides how many rows that is for the batch: for messages on targets. */
void network_output_text(const Network *n, char *text, size_t room);
enum { NETWORK_OUTPUT = LAYER_PATH + LAYER_WHERE + 160 }; /* room for it */
/* The parameter of that name, also a second one; -1: there is none. */
int network_find_param(const Network *n, const char *name);
/* The name of parameter i, for n->names. */
const char *network_param_name(const void *network, int i);
/* A line per layer: path, kind, options, output shape, parameters. */
void network_dump(const Network *n, TextSink *put, void *arg);
/* Walks the layers without children, in execution order. */
typedef void LayerVisit(void *arg, const Network *n, const Layer *l);
void network_visit(const Network *n, LayerVisit *visit, void *arg);

#endif
