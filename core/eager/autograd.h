/* autograd.h: PyTorch's engine. Nodes are run the latest first, once all who read their outputs have sent a gradient;
 * what a node has saved is dropped after it ran; a gradient that is the only one is passed on, and a second one is added
 * into it where nobody else holds it.
 *
 * Source of the rules: torch/csrc/autograd (engine.cpp, input_buffer.cpp, functions/accumulate_grad.h,
 * saved_variable.cpp), PyTorch 2.x; each is held to by the event lists of tests/peers. */
#ifndef MT_AUTOGRAD_H
#define MT_AUTOGRAD_H

#include "tensor.h"

/* Sets dx[i], a reference each, for the edges that are wanted (node_wants); dy[k], lent: the gradient of output k, NULL
 * where none was sent. */
typedef void NodeApply(Eager *g, Node *n, Tensor *const *dy, Tensor **dx);

typedef struct NodeRule {
    const char *name;  /* "ReluBackward0" */
    NodeApply *apply;
} NodeRule;

typedef struct Edge { Node *node; int output; } Edge; /* whose output; node NULL: no gradient is wanted */

typedef struct Meta { Size size; ScalarType type; } Meta;

/* Tensor.register_hook() on an output: the unit is told when its gradient is there. */
typedef struct Hook { FsdpUnit *unit; int output; struct Hook *next; } Hook;

enum { NODE_NUMBERS = 16, NODE_EDGES = 520 }; /* NODE_EDGES: most inputs of an op: 512 weights of recurrent layers */

struct Node {
    const NodeRule *rule;
    const Layer *layer;
    long sequence;
    int refs;
    Tensor *kept;          /* what a Python function holds that save_for_backward does not know: a reference, to the node's end */
    Tensor *variable;      /* of AccumulateGrad: the parameter, not counted, or another leaf, a reference */
    Edge *next;
    int n_next;
    Tensor **saved;        /* references */
    int n_saved;
    int n_out;
    Meta *out;             /* of each output */
    Tensor **sent;         /* in the backward pass: the gradient of each output, so far */
    int waits;             /* ... how many edges to it are still to be gone */
    bool seen;
    int64_t number[NODE_NUMBERS]; /* what the rule needs beside tensors: an axis, a type */
    Size size;                    /* ... often that of its input */
    Frame *frame;          /* of the checkpoint that it ran in, a reference: its saved tensors are made again */
    Angles angles;         /* of a reentrant checkpoint: its function holds them as long as the node is there */
    Hook *hooks;           /* in the order in which they were made */
    int *held;             /* then, by saved tensor: 1 + its number in the frame, 0: none */
};

/* A layer (end 0), or its children [first, end) one after the other. */
typedef struct Part { const Layer *layer; int first, end; } Part;

/* Number `number` of a frame, which nobody can ask for any more: its node went in the forward pass. */
typedef struct Gone { int number; struct Gone *next; } Gone;

/* What a checkpoint keeps in place of what its nodes would save (Eager.frame while it runs): PyTorch's
 * saved_tensors_hooks. What is saved is counted, and kept when all of it is made again. */
struct Frame {
    Part part;            /* what is run again */
    Tensor *in[LAYER_IN]; /* references, without their graph */
    Angles angles;        /* of the model that the layer is in */
    int refs;
    bool autocast;
    int counted;          /* tensors that were to be saved */
    int made;             /* of these, how many have been made again */
    Tensor **again;       /* [counted], references; NULL until they are made */
    Gone *gone;           /* what is made again, too, but not kept: its new node alone holds it */
    void (*make_again)(Eager *g, Frame *f); /* allocates `again` and runs the layer once more */
};

/* A node for an op on `in` (NULL entries allowed), of which it saves n_saved tensors later (node_save), or NULL if no
 * gradient is recorded or wanted. */
Node *node_new(Eager *g, const NodeRule *rule, Tensor *const *in, int n_in, int n_saved);
/* Saves x at place k. A saved output is saved without its graph. node NULL: nothing. */
void node_save(Eager *g, Node *n, int k, Tensor *x);
/* y is output k of the node; node NULL: nothing. Outputs are given in order. */
void node_output(Eager *g, Node *n, Tensor *y);
static inline bool node_wants(const Node *n, int i) { return n->next[i].node != NULL; }
/* y was written in place by an op: its graph is now that of the node. */
void node_rebase(Eager *g, Node *n, Tensor *y);

/* Of y; one that gets no gradient has no hook. */
void node_hook(Eager *g, const Tensor *y, FsdpUnit *unit);

bool tensor_requires_grad(const Tensor *t);

/* refs.c; NULL is allowed. node_drop_saved and node_drop_frame: what a node holds that has run. */
void node_drop(Eager *g, Node *n);
void node_drop_saved(Eager *g, Node *n);
void node_drop_frame(Eager *g, Node *n);
void frame_drop(Eager *g, Frame *f);

/* loss.backward(), or with the gradient of the loss given (lent; NULL: ones are made). */
void backward(Eager *g, Tensor *loss, Tensor *gradient);

#endif
