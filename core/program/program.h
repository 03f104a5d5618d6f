/* program.h: one training step as data: buffers, and a flat list of ops over them.
 *
 * Ops [0, body_end) are the body, which runs once per micro-batch. Ops [body_end, n_ops) run once per step, after the
 * last micro-batch; if there is only one, parameters may be updated in the body. A stage of a pipeline has one body for all
 * micro-batches (pass schedule_stages). Every temporary buffer is written by exactly one op; operands marked UPDATED in ops.def
 * must be persistent, carried, or temporaries that a copy from the host's memory has made (their update is copied back). Passes
 * change a program in place
 * and leave it valid: program_check checks it after each of them. */
#ifndef MT_PROGRAM_H
#define MT_PROGRAM_H

#include "math/formula.h"
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
const char *category_name(Category c); /* "weights" */

/* The order of elements in memory: the last dimension innermost (ROWS), or the channels, which are dimension 1 (NHWC).
 * NHWC is for images (N, C, H, W), for (N, C, L) as an image of height 1, and for the weights of convolutions,
 * (O, I, KH, KW) and (O, I, K). */
typedef enum Layout { LAYOUT_ROWS, LAYOUT_NHWC } Layout;

typedef enum BufKind {
    BUF_TEMP,       /* lives from its op to its last use */
    BUF_PERSISTENT, /* lives as long as the runtime: parameters, optimizer state, class weights */
    BUF_INPUT,      /* filled before each micro-batch; lives to its last use in the body */
} BufKind;

enum { BUF_NAME = 160, NO_BUF = -1, NO_OP = -1, CONSTANT_BYTES = 4 /* of a number */ };

/* One of `parts` equal parts of a tensor along an axis of its stored shape, a row-major one; blocks: the axis consists of so
 * many neighbours that are divided each for itself (query, key and value of one weight). */
typedef struct Slice { int axis, parts, index, blocks; } Slice;

typedef struct Buf {
    char name[BUF_NAME]; /* "2.weight", "2.weight.grad", "2.out" */
    Shape shape;         /* PyTorch's order */
    DType dtype;
    Layout layout;
    int64_t order[3];    /* (C, H, W), not 0: dimension 1 of this matrix (N, C H W) is stored as H, W, C */
    bool turned;         /* a matrix whose rows are the columns of PyTorch's */
    Category category;
    BufKind kind;
    Slice slice;         /* of the network's tensor it is a part, and `shape` is that part's; parts 0: it is all of it */
    Shard shard;         /* of the tensor of this shape it has these elements alone, in the order of memory; count 0: all */
    size_t bytes;        /* not rounded up */
    int ahead;           /* of an input: the persistent buffer that the next micro-batch is copied to meanwhile, or NO_BUF */
    int alias;           /* the root buffer, whose alias is NO_BUF, that this one shares the storage of; or NO_BUF */
    int64_t start;       /* of one with an alias: the elements before it there */
    int stage;           /* the only stage of the pipeline that has it, of a parameter's buffers; -1: each has one */
    bool elsewhere;      /* that is another one: here it is a temporary that no op uses */
    int param;           /* the number of the parameter that this is, or is the master, gradient or state of; or -1 */
    bool frozen;         /* a parameter that is not trained: it gets no gradient */
    bool terms;          /* a parameter of whose gradient each rank that divides products makes a term, of its slice of the sequence */
    bool wide;           /* a parameter that is fp32 in every precision */
    bool carried;        /* a temporary that keeps its value between micro-batches: lives through the whole body */
    bool keep;           /* lives to the end of the step, so that it can be read after it */
    bool host;           /* in host memory (pinned, on a GPU), where only copies reach it */
    bool loss;           /* one of the step's losses; the loss of the step is their sum */
    float first;         /* persistent, no parameter: the first value of its elements */
    void *constant;      /* persistent, never written: its values, float or int32_t, in PyTorch's order, owned; else NULL */
} Buf;

typedef struct Op {
    OpKind kind;
#define SLOT int /* indices of buffers, NO_BUF where absent */
#include "slots.h"
    int workspace;              /* buffer or NO_BUF */
    Attr attr;
    int region;                 /* the nn.Checkpoint that a forward op is in (1, 2, ...), 0: none */
    bool begun;                 /* it goes on while others run, until an op `wait`: what ranks exchange (pass overlap), or a copy
                                 * between host and device (pass overlap_copies) */
    bool recomputed;            /* computed a second time, for the backward pass: emitted by the checkpoint pass */
    double flops, traffic;      /* floating-point operations; bytes read and written: for cost estimates */
    void *state;                /* what the device prepared for it; borrowed from the device */
    size_t limit;               /* of workspace, with which it was prepared */
    char path[OP_PATH];         /* of the layer: "2", "body.0" */
} Op;

/* The buffers of one of the network's parameters, by role; NO_BUF where a role is absent. */
typedef struct ParamBufs {
    int weight;
    int grad;   /* what the update reads: the sum over the micro-batches */
    int master; /* the fp32 copy of a 16-bit weight */
    int slices; /* its update will be that of so many slices (pass slice_updates); below 2: of all of it */
} ParamBufs;

typedef struct Program {
    Buf *bufs;
    Op *ops;
    ParamBufs *params; /* as the network numbers them */
    int n_bufs, cap_bufs, n_ops, cap_ops, n_params, cap_params;
    int body_end;      /* n_ops until the update pass */
    int forward_end;   /* ops [0, forward_end) are forward and loss; the rest of the body is backward */
    int micro_batches; /* how often the body runs in a step */
    int inputs[OP_IN], n_inputs;
    int fed;           /* micro-batches that one run of the body takes: several where it has the ops of each (pass schedule_stages) */
    int more_inputs;   /* with several: the first of the buffers of all but the last, see program_fed */
    int target, output, loss; /* buffers; target and loss (the output's) may be NO_BUF in evaluation */
    int state;         /* the StepState buffer, NO_BUF until program_state makes it */
    int lr;            /* the learning rate (fp32) if it can change between steps, else NO_BUF (pass update) */
    Formula formula;   /* of its formula ops (set by the update pass) */
    int calls;         /* counts the micro-batches that random numbers were drawn for; NO_BUF until program_calls */
    char scope[32];    /* a setting: the prefix of the names of state, lr, grad_square and constants */
    int world, rank;   /* of how many ranks that have other samples this is which (a setting) */
    int tensor, tensor_rank; /* of how many ranks that divide products this is which (a setting) */
    int pipeline, stage;     /* of how many stages, each some layers, this rank has which (a setting) */
    bool graph;        /* a run may record the step and replay it (a setting) */
    bool parts;        /* forward, backward and update can run one by one: gradients persist, and sum up (a setting) */
    bool updates;      /* it changes parameters: set by the update pass */
    bool masters;      /* 16-bit parameters have an fp32 master copy (set by the precision pass) */
    bool loss_scaling; /* dynamic loss scaling is on (set by the precision pass) */
    float first_scale; /* the first loss scale of a run (set by the update pass) */
    struct Placement *placed; /* where its buffers lay when that was last asked (passes.h), NULL: never; one block of memory */
    bool failed;       /* host memory ran out while it was built or changed: program_check reports it */
} Program;

Program *program_new(void);                    /* without ops and buffers; NULL: out of host memory */
Program *program_copy(const Program *p);       /* without `placed`; NULL: out of host memory */
void program_free(Program *p);                 /* NULL is allowed */

/* A new temporary buffer with its bytes filled in; name: a format of printf. Returns its index. On failure sets
 * p->failed and returns 0. Pointers into p->bufs are no longer valid. */
int program_buf(Program *p, Category category, Shape shape, DType dtype, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* A new buffer "<like>.<suffix>" with the layout of `like` where the ranks are equal, its order where dimension 1 is
 * equal; turned, and a part of a tensor, as it is where the shapes are equal. On failure as program_buf. */
int program_like(Program *p, int like, Category category, Shape shape, DType dtype, const char *suffix);
/* A persistent buffer for the network's next parameter: number n_params. On failure as program_buf. */
int program_param(Program *p, Shape shape, DType dtype, const char *name);
/* Computes the buffer's bytes again, after its shape or dtype has changed. */
void program_resize(Program *p, int buf);
/* Appends an op with all operands absent. On failure sets p->failed and returns a dummy that may be written to.
 * Pointers into p->ops are no longer valid. */
Op *program_op(Program *p, OpKind kind, const char *path);

/* Loops over the indices k of the op's inputs, or outputs, that are not absent. */
#define EACH_IN(op, k) for (int k = 0; k < OP_IN; k++) if ((op)->in[k] == NO_BUF) {} else
#define EACH_OUT(op, k) for (int k = 0; k < OP_OUT; k++) if ((op)->out[k] == NO_BUF) {} else

/* How many ranks there are along an axis, and which of them this is. */
typedef struct AxisPlace { int rank, world; } AxisPlace;
static inline AxisPlace program_axis(const Program *p, MeshAxis axis) {
    return axis == MESH_DATA     ? (AxisPlace){p->rank, p->world}
           : axis == MESH_TENSOR ? (AxisPlace){p->tensor_rank, p->tensor}
                                 : (AxisPlace){p->stage, p->pipeline};
}
/* How many buffers a micro-batch fills: the inputs and, unless it is absent, the target. */
static inline int program_fed_buffers(const Program *p) { return p->n_inputs + (p->target != NO_BUF); }
/* Buffer k of them, of micro-batch `micro` below p->fed. The last one has p->inputs and p->target. */
static inline int program_fed(const Program *p, int k, int micro) {
    if (micro + 1 < p->fed) return p->more_inputs + micro * program_fed_buffers(p) + k;
    return k < p->n_inputs ? p->inputs[k] : p->target;
}
/* The buffer whose storage `buf` uses. */
static inline int program_root(const Program *p, int buf) {
    assert(buf >= 0 && buf < p->n_bufs);
    return p->bufs[buf].alias == NO_BUF ? buf : p->bufs[buf].alias;
}
/* The elements that it has. */
static inline int64_t program_elements(const Buf *b) { return b->shard.count ? b->shard.count : shape_elements(&b->shape); }
/* Bytes from the start of that storage to the buffer */
static inline size_t program_offset(const Program *p, int buf) {
    return (size_t)p->bufs[buf].start * dtype_size(p->bufs[buf].dtype);
}
/* The shape of the whole tensor as kernels see it: (N, C, L) with layout NHWC is the image (N, C, 1, L). */
static inline Shape program_shape(const Buf *b) {
    const int64_t *d = b->shape.dim;
    return b->layout == LAYOUT_NHWC && b->shape.rank == 3 ? shape4(d[0], d[1], 1, d[2]) : b->shape;
}
/* The shape of the network's tensor, of which the buffer may be a part. */
static inline Shape program_whole_shape(const Buf *b) {
    Shape s = b->shape;
    if (b->slice.parts) s.dim[b->slice.axis] *= b->slice.parts;
    return s;
}
static inline int64_t program_whole_elements(const Buf *b) {
    const Shape s = program_whole_shape(b);
    return shape_elements(&s);
}
/* That tensor's shape in PyTorch, of a parameter's buffer or of what lies as it does. */
static inline Shape program_outer_shape(const Buf *b) {
    const Shape s = program_whole_shape(b);
    return b->turned ? shape2(s.dim[1], s.dim[0]) : s;
}
/* The name with the program's scope before it: "scope.name". text[BUF_NAME]; returns text. */
const char *program_scoped(const Program *p, const char *name, char *text);
/* The buffer with the positions of sequences that share a row, which the forward op reads; NO_BUF: it reads none. */
int program_positions(const Op *op);
/* The classes of which the op, a loss, gives each label one; 0: it is no such loss. */
int64_t program_classes(const Program *p, const Op *op);
/* The persistent StepState buffer, and the counter `calls`; the first call makes it. On failure as program_buf. */
int program_state(Program *p);
int program_calls(Program *p);
/* Makes `buf` a constant: persistent, with these values, one for each element in PyTorch's order, kept as its type is,
 * float or int32_t. On failure sets p->failed. */
void program_set_constant(Program *p, int buf, const double *values);
/* A new constant, fp32 or i32, of the category other. On failure as program_buf. */
int program_constant(Program *p, const char *name, Shape shape, DType dtype, const double *values);
/* The same of whole numbers, which the caller fills in: *values has room for all; NULL once p->failed is set. */
int program_whole_numbers(Program *p, const char *name, Shape shape, int32_t **values);

/* Fills in op->flops and op->traffic. All operands that are not optional must be there. */
void op_cost(const Program *p, Op *op);

/* What a rank exchanges with the others, in bytes; what it keeps for itself does not count. rounds: how often all ranks hand
 * their parts on to all others: twice for a sum that all get (the parts of its terms, then the sums), else once. calls: of the
 * library that does it. Ops of one bucket are one call, with the rounds of that which has most. */
typedef struct Transfer { int64_t sent, received, calls, rounds; } Transfer;
/* Of one collective op (0 for any other); and of a step, with all its micro-batches, among the ranks along that axis. The
 * algorithm is that of kernels/cpu/collective.c; a ring sends as much. */
Transfer op_transfer(const Program *p, const Op *op);
/* Among which ranks an op exchanges something, if it does; bucket: 0 where it has none. */
CollectiveAttr op_collective(const Op *op);
Transfer program_transfer(const Program *p, MeshAxis axis);

/* The verifier. Operands are there and in range, written before they are read, and by one op unless UPDATED; shapes and
 * types fit the op; no op reads storage that was overwritten; ops after the body read no temporaries of it if it runs
 * several times. after: the name of the pass that ran. ERR_INTERNAL names the op; ERR_HOST_MEMORY, as where
 * p->failed. */
int program_check(const Program *p, const char *after, Err *e);

/* The program as text, one buffer or op per line, through `put(arg, line)`. */
typedef void TextSink(void *arg, const char *line);
void program_dump(const Program *p, TextSink *put, void *arg);

/* The life of a root buffer's storage: [first, last] are indices of ops, for a persistent buffer [0, n_ops - 1]; bytes:
 * of the largest buffer in it; persistent, host: what the root buffer is. A buffer that is no root, or that no op uses, has `used`
 * false and bytes 0. */
typedef struct Life { int first, last; size_t bytes; bool used, persistent, host; } Life;
/* Fills life[n_bufs]. */
void program_lives(const Program *p, Life *life);

#endif
