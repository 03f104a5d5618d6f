/* program.h: one training step as data: buffers, and a flat list of ops over them.
 *
 * Ops [0, body_end) are the body: they run once per micro-batch. Ops [body_end, n_ops) run once per step, after the
 * last micro-batch; where there is only one, parameters may be updated within the body. Every temporary buffer is
 * written by exactly one op; operands marked UPDATED in ops.def must be persistent or carried. Passes change a program in
 * place and leave it valid: program_check says so after each of them. */
#ifndef MT_PROGRAM_H
#define MT_PROGRAM_H

#include "op.h"

/*   name                  CSV column             what it counts */
#define CATEGORIES(X)                                                                                                  \
    X(WEIGHTS,              "weights",              "parameters, their 16-bit copies, and fp32 master copies")         \
    X(GRADIENTS,            "gradients",            "gradients of parameters, accumulation buffers included")          \
    X(OPTIMIZER,            "optimizer",            "the optimizer's states, step count, loss scale")                  \
    X(ACTIVATIONS,          "activations",          "outputs of forward ops, recomputed ones too, pooling indices")    \
    X(ACTIVATION_GRADIENTS, "activation_gradients", "gradients of activations")                                        \
    X(INPUT,                "input",                "the micro-batch: inputs and targets")                             \
    X(WORKSPACE,            "workspace",            "scratch that one op's library call needs")                        \
    X(OTHER,                "other",                "losses, constants, a count of draws; alignment, gaps, free blocks")

typedef enum Category {
#define X(name, text, what) CAT_##name,
    CATEGORIES(X)
#undef X
    CAT_COUNT
} Category;
const char *category_name(Category c);

/* How elements lie in memory. NHWC is for images (N, C, H, W), for (N, C, L) as an image of height 1, and for the
 * weights of convolutions, (O, I, KH, KW) and (O, I, K), alike. */
typedef enum Layout { LAYOUT_ROWS, LAYOUT_NHWC } Layout;

typedef enum BufKind {
    BUF_TEMP,       /* lives from its op to its last use */
    BUF_PERSISTENT, /* lives as long as the runtime: parameters, optimizer state, class weights */
    BUF_INPUT,      /* filled before each micro-batch: lives to its last use in the body */
} BufKind;

enum { BUF_NAME = 128, NO_BUF = -1, NO_OP = -1 };

typedef struct Buf {
    char name[BUF_NAME]; /* "2.weight", "2.weight.grad", "2.out" */
    Shape shape;         /* PyTorch's order */
    DType dtype;
    Layout layout;
    int64_t order[3];    /* nonzero (C, H, W): dimension 1 of this (N, C*H*W) matrix is stored as H, W, C */
    Category category;
    BufKind kind;
    size_t bytes;        /* exact */
    int alias;           /* the buffer whose storage this one shares, or NO_BUF; never a chain: always the root */
    int param;           /* the network's parameter that this is (or is the master, gradient, state of), or -1 */
    bool frozen;         /* a parameter that is not trained: it gets no gradient */
    bool carried;        /* a temporary that holds its value between micro-batches: lives through the whole body */
    bool keep;           /* lives to the end of the step, so that it can be read then */
    bool host;           /* lies in the host's memory (pinned, on a GPU), where only copies reach it */
    bool loss;           /* one of the step's losses, whose sum is the step's */
    float first;         /* persistent, no parameter: what its elements start with */
    float *constant;     /* persistent: what they always are, for the rest NULL; owned */
    bool master;         /* a 16-bit parameter with an fp32 master copy (set by the precision pass, used by update) */
} Buf;

typedef struct Op {
    OpKind kind;
#define SLOT int /* buffers, NO_BUF where absent */
#include "slots.h"
    int workspace;              /* buffer or NO_BUF */
    Attr attr;
    int region;                 /* nn.Checkpoint that it stands in (1, 2, ...), 0 = none */
    bool recomputed;            /* a second forward, emitted by the checkpoint pass */
    double flops, traffic;      /* floating-point operations; bytes read and written: for cost estimates */
    void *state;                /* what the device prepared for it; borrowed from the device */
    char path[OP_PATH];         /* layer: "2", "body.0" */
} Op;

typedef struct Program {
    Buf *bufs;
    Op *ops;
    int n_bufs, cap_bufs, n_ops, cap_ops;
    int body_end;      /* == n_ops until the update pass */
    int forward_end;   /* ops [0, forward_end) are forward and loss; the rest of the body is backward */
    int micro_batches; /* how often the body runs in a step */
    int input, target, output, loss; /* buffers; target and loss (the output's) may be NO_BUF: evaluation without one */
    int state;         /* the StepState buffer, NO_BUF until a pass needs one (program_state) */
    int lr;            /* the learning rate (fp32), where it can change between steps, else NO_BUF (pass update) */
    int calls;         /* how many micro-batches were drawn for, NO_BUF where nothing is (program_calls) */
    char scope[32];    /* a setting: what the names of state, lr, grad_square and constants begin with */
    bool graph;        /* a run may record the step and replay it (a setting) */
    bool updates;      /* it trains: set by the update pass */
    bool loss_scaling; /* dynamic loss scaling is on (set by the precision pass) */
    float first_scale; /* the loss scale that a run starts with (set by the update pass) */
    bool failed;       /* host memory ran out while it was built: program_check reports it */
} Program;

Program *program_new(void);                    /* NULL: no host memory */
Program *program_copy(const Program *p);       /* NULL: no host memory */
void program_free(Program *p);

/* A buffer with its byte count filled in; name as printf.
 * Returns its index; on failure sets p->failed and returns 0. */
int program_buf(Program *p, Category category, Shape shape, DType dtype, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* Recomputes bytes after shape or dtype changed. */
void program_resize(Program *p, int buf);
/* An op with all operands absent, put at the end (NULL: sets p->failed; returns a dummy that may be written to). */
Op *program_op(Program *p, OpKind kind, const char *path);

/* The buffer whose storage `buf` uses. */
static inline int program_root(const Program *p, int buf) {
    return p->bufs[buf].alias == NO_BUF ? buf : p->bufs[buf].alias;
}
/* What kernels see of a buffer's shape: of (N, C, L) that lies as an image, the image (N, C, 1, L). */
static inline Shape program_shape(const Buf *b) {
    const int64_t *d = b->shape.dim;
    return b->layout == LAYOUT_NHWC && b->shape.rank == 3 ? shape4(d[0], d[1], 1, d[2]) : b->shape;
}
/* The name of buffer b, for an index of names (names.h). */
const char *program_buf_name(const void *program, int b);
/* A name of this program's own for a persistent number: with its scope. text[BUF_NAME]; returns text. */
const char *program_scoped(const Program *p, const char *name, char *text);
/* The persistent StepState buffer, and the counter of what draws, made at the first call. */
int program_state(Program *p);
int program_calls(Program *p);
/* A persistent buffer [n] with these values. */
int program_constant(Program *p, const char *name, const double *values, int64_t n);

/* Fills op->flops and op->traffic from its operands, all of which are there. */
void op_cost(const Program *p, Op *op);

/* The verifier: operands present and in range, defined before use, one writer or UPDATED, shapes and dtypes as the kind
 * wants, aliases sound (no read of storage that was overwritten), body temporaries not used after the body unless it
 * runs once. `after` names the pass. */
int program_check(const Program *p, const char *after, Err *e);

/* The program as text, one buffer or op per line, through `put(arg, line)`. */
typedef void TextSink(void *arg, const char *line);
void program_dump(const Program *p, TextSink *put, void *arg);

/* Storage lifetimes, by root buffer (others: bytes 0). first/last are op indices;
 * a persistent buffer has [0, n_ops - 1]. */
typedef struct Life { int first, last; size_t bytes; bool used; } Life;
/* life[n_bufs] */
void program_lives(const Program *p, Life *life);

#endif
