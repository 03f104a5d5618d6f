/* conv2d.h: a convolution op in a convolution's own words, and the ways in which it can be run. conv2d.c knows what
 * each way does and runs it. conv2d_choose.c says what can be chosen between. Shapes: x (N, C, H, W), w (O, C/groups,
 * KH, KW), y (N, O, OH, OW). */
#ifndef MT_CONV2D_H
#define MT_CONV2D_H

#include "cudnn_graph.h"
#include "engines.h"

/* dx is x in CONV_DATA, dw is w in CONV_WEIGHTS, dy is y in both. Absent operands have a count of 0. */
typedef struct Conv {
    ConvPass pass;
    ConvAttr attr;
    View x, w, y, b, s, db;
    bool exact;        /* fp32 operands that must not be rounded */
    char op[PICK_OP];  /* all of this as text */
} Conv;

/* ERR_UNSUPPORTED: operands of two types, or not channels-last. */
int conv_read(const KArgs *args, ConvPass pass, Conv *v, Err *e);

/* What cuDNN's graph does beside the product, and what is done to its operands before.
 *   ACT   bias and activation, or the activation's gradient
 *   SUM   db
 *   PAD   x and w get copies whose channels are filled up for the tensor cores' loads
 *   CAST  what is fp32 beside 16-bit operands is 16-bit in the graph: the bias (as in PyTorch's autocast); or dw, which
 *         loses precision: that is the last resort */
enum { WAY_ACT = 1, WAY_SUM = 2, WAY_PAD = 4, WAY_CAST = 8 };
typedef struct Way { unsigned does; const char *name; } Way;
enum { WAYS = 10 };
extern const Way conv_ways[WAYS]; /* in the order in which they are tried */

/* A graph's tensors, by id. X, W and B may be copies; ONE is a factor. */
enum { CONV_X = 1, CONV_W, CONV_B, CONV_Y, CONV_S, CONV_DB, CONV_ONE, CONV_IDS = CONV_ONE };

/* Can the op be run this way? */
bool conv_can(const Conv *v, unsigned does);
/* Are all engines that cuDNN has for it compiled at run time? */
bool conv_compiled(const Conv *v, unsigned does);
int conv_graph(CudaDevice *c, const Conv *v, unsigned does, Graph *g, Err *e);

/* A prepared op. Places are bytes from the start of the workspace. */
typedef struct ConvState {
    CudaState base;
    Conv conv;
    unsigned does;
    Node plan;               /* NULL: the device is not here */
    size_t at[CONV_B + 1];   /* by id: where the copies of operands that are padded or cast lie */
    size_t library_at, workspace;
} ConvState;

/* Sets out->does and the places. Returns the bytes that count against the limit: all of the workspace but copies that
 * change a type, which every way needs. Own sums use at most what the limit leaves. */
size_t conv_place(const Conv *v, unsigned does, size_t engine_workspace, size_t limit, ConvState *out);
/* The graph's tensors for a run: tensor id[k] lies at data[k]; returns how many there are. */
int conv_tensors(const Conv *v, const ConvState *s, char *workspace, int64_t id[CONV_IDS], void *data[CONV_IDS]);
void conv_release(void *state);
KernelRun conv_run;

#endif
