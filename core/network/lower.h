/* lower.h: Network -> Program: the forward ops and the loss of one micro-batch, in fp32. Passes do the rest.
 *
 * Layout: activations (N, C, H, W) lie channels-last, but for those of tensor operations (Value.rows), which are
 * converted where a layer takes them as images. (N, C, L) lies channels-last between layers that take it as an image; it
 * is converted where another layer follows. Flattening such an image is a view whose features keep the order; the layer
 * that reads it absorbs the order (Linear: in its weight) or asks for lower_rows. The network decides all orders
 * (Layer.out_order). */
#ifndef MT_LOWER_H
#define MT_LOWER_H

#include "network.h"

/* What holds a buffer's values in another order: 1 + the buffer in PyTorch's order, 1 + the buffer in that of an image
 * (C, 1, L); 0: there is none yet. */
typedef struct Other { int rows, line; } Other;

typedef struct Lower {
    Program *p;
    const Network *net;
    int *param;      /* by parameter of the network: its buffer */
    bool training;   /* false: evaluation mode (dropout is the identity) */
    bool with_loss;
    int region, regions; /* the nn.Checkpoint being emitted (0: none), and how many there are so far */
    uint32_t drops;  /* ops so far that draw random numbers: the id of the next one */
    Other *other;    /* [cap_other], by buffer */
    int cap_other;
} Lower;

/* ---- for layers; all return a buffer (0 once p->failed is set). A failure stays in p->failed: lower_network says
 * so. */
/* The layer's output for the buffers in[l->n_in]; (N, C, L) is converted first where the layer wants it otherwise. */
int lower_forward(Lower *lw, const Layer *l, const int *in);
/* A new activation "<path>.<operand>" with the layer's output shape and order. */
int lower_buf(Lower *lw, const Layer *l, const char *operand, DType dtype);
/* A new activation of another shape; order NULL: PyTorch's. Of 4 dimensions it lies as the output does, or as the input where the output has fewer. */
int lower_temp(Lower *lw, const Layer *l, const char *operand, Shape shape, const int64_t *order, DType dtype);
/* Emits out = kind(in[n_in]) and returns out; attr may be NULL. */
int lower_emit(Lower *lw, OpKind kind, const Layer *l, const int *in, int n_in, int out, const Attr *attr);
/* Emits y = kind(in[n_in]); y is named after the kind's output. attr may be NULL. */
int lower_op(Lower *lw, OpKind kind, const Layer *l, const int *in, int n_in, const Attr *attr);
/* Makes `buf` output `slot` of the op that was emitted last: its gradient needs it. */
void lower_keep(Lower *lw, int slot, int buf);
/* Emits y = kind(the layer's inputs, its own parameters). */
int lower_layer(Lower *lw, OpKind kind, const Layer *l, const int *in, const Attr *attr);
/* The layer's output as a view: x's storage under another shape. */
int lower_view(Lower *lw, const Layer *l, int x);
/* A view "<path>.<operand>" of x: its storage under `shape`, in the order in which its elements lie. */
int lower_view_as(Lower *lw, const Layer *l, const char *operand, Shape shape, int x);
/* Of 4 dimensions: x as a matrix of its last one, (N, A, B, F) as (N A B, F), and in *flat the layer as it is for that,
 * whose inputs and outputs lower_unflat gives their dimensions back. Of fewer: x, and the layer as it is. `features`: of
 * the output. */
int lower_flat(Lower *lw, const Layer *l, int x, int64_t features, Layer *flat);
int lower_unflat(Lower *lw, const Layer *l, int y);
/* x in PyTorch's element order: x itself unless it is a flattened channels-last image, or (N, C, L) that lies as one;
 * converted once per buffer. */
int lower_rows(Lower *lw, const Layer *l, int x);

/* The same of 4 dimensions, too; and back: 4 dimensions as an image. */
int lower_plain(Lower *lw, const Layer *l, int x);
int lower_image(Lower *lw, const Layer *l, int x);
/* One of several values that become the output: of 4 dimensions in PyTorch's order where the output lies so, of fewer in any case. */
int lower_as_output(Lower *lw, const Layer *l, int x);
/* The op that makes x, if it is of this kind; else NO_OP. */
int lower_source(const Lower *lw, int x, OpKind kind);

/* (N, C, L) as an image lies, channels-last: x itself, or converted once per buffer. */
int lower_line(Lower *lw, const Layer *l, int x);
/* Emits the loss of x, output k of the network: in training of every output, in evaluation of the first one. Called as
 * soon as x is there, so that what only the loss reads does not live through the rest of the forward pass. */
void lower_loss(Lower *lw, int k, int x);

/* The forward program of the network; its input and target are BUF_INPUT buffers. ERR_SCRIPT: with_loss, but the
 * network has no loss; or a layer may not read what it is given (see check_ops). ERR_HOST_MEMORY. */
int lower_network(const Network *net, bool training, bool with_loss, Program **out, Err *e);

#endif
