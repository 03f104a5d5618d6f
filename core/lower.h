/* lower.h: Network -> Program: the forward ops and the loss of one micro-batch, in fp32. The rest are passes. */
#ifndef MT_LOWER_H
#define MT_LOWER_H

#include "network.h"

typedef struct Lower {
    Program *p;
    const Network *net;
    int *param;      /* buffer of each parameter */
    bool training;   /* false: evaluation mode (dropout is the identity) */
    int region, regions; /* the nn.Checkpoint being emitted, and how many there are */
    uint32_t drops;  /* dropout ops so far: each draws its own numbers */
} Lower;

/* ---- for layers: emit one op over buffers; output names are "<path>.<operand>"; all return the output buffer */
int lower_unary(Lower *lw, OpKind kind, const Layer *l, int x, Shape out, const Attr *attr);
int lower_op(Lower *lw, OpKind kind, const Layer *l, const int *in, int n_in, Shape out, const Attr *attr);
/* The same storage under another shape; `order` as in Buf. */
int lower_view(Lower *lw, const Layer *l, int x, Shape out, const int64_t *order);
/* x in PyTorch's element order: x itself unless it is a channels-last image or a flattened one. */
int lower_rows(Lower *lw, const Layer *l, int x);

/* input and target are BUF_INPUT buffers of the program. `with_loss` needs net->loss. */
int lower_network(const Network *net, bool training, bool with_loss, Program **out, Err *e);

#endif
