/* linear_loss.c: the cross entropy of a linear layer's output, and its gradients, some rows of logits at a time. Each
 * part runs the kernels that make logits, their loss and their gradient where they are there as a whole:
 *
 *   linear            logits = x w^T + b, in x's type, into the workspace
 *   cross_entropy     its terms are added to the loss
 *   cross_entropy_dx  in the logits' place
 *   bias_db           is added to db
 *   a product         dw += logits^T x
 *   linear_dx         the part of dx, which may have the place of x
 *
 *   workspace = [logits | a pair of numbers per row | db of one part | what one of the kernels needs]
 *
 * dw and db are added up in their own types, rounded once for each part. */
#include <string.h>

#include "base/mem.h"
#include "bf16_gemm.h"
#include "cpu.h"
#include "cross_entropy.h"
#include "fp32_workspace.h"
#include "program/loss.h"

/* The whole parts, and the last one where that has fewer rows */
enum { WHOLE, LAST, SIZES };

typedef struct LossState {
    CpuState base;
    void *forward[SIZES], *dx[SIZES]; /* of linear and linear_dx */
} LossState;

/* Where the workspace's pieces lie */
typedef struct Places { size_t logits, stats, db, kernel, workspace; } Places;

static bool has_gradient(const KArgs *a) { return a->kind == OP_linear_cross_entropy_dx; }
static const View *loss_of(const KArgs *a) { return &a->out[has_gradient(a) ? 3 : 0]; }
/* Of an output of the gradient's op: absent from the other one. */
static View gradient(const KArgs *a, int out) {
    const View none = {0};
    return has_gradient(a) ? a->out[out] : none;
}

static int64_t inputs_of(const KArgs *a) { return a->linear_cross_entropy.w.shape.dim[1]; }
static int64_t classes_of(const KArgs *a) { return a->linear_cross_entropy.w.shape.dim[0]; }

static View matrix_view(void *data, int64_t rows, int64_t columns, DType t) {
    return (View){.data = data, .shape = shape2(rows, columns), .dtype = t, .count = rows * columns};
}

/* Rows [row, row + n) of x, or of dx */
static View rows_view(const View *v, int64_t row, int64_t n, int64_t inputs) {
    char *at = v->data;
    if (at) at += (size_t)(row * inputs) * dtype_size(v->dtype);
    return matrix_view(at, n, inputs, v->dtype);
}

/* One part: its rows, and its logits */
typedef struct Part { const KArgs *a; Attr attr; int64_t row, n; View x, logits; void *kernel; size_t room; } Part;

static Part part_of(const KArgs *a, const Places *at, int64_t row, int64_t n) {
    const View *x = &a->linear_cross_entropy.x;
    char *workspace = a->workspace;
    Part p = {.a = a, .row = row, .n = n, .x = rows_view(x, row, n, inputs_of(a))};
    memset(&p.attr, 0, sizeof p.attr);
    p.attr.linear.tf32 = a->attr->loss.tf32;
    p.logits = matrix_view(workspace ? workspace + at->logits : NULL, n, classes_of(a), x->dtype);
    p.kernel = workspace ? workspace + at->kernel : NULL;
    p.room = at->workspace - at->kernel;
    return p;
}

static KArgs kernel_args(const Part *p, OpKind kind, const Attr *attr, void *state) {
    KArgs k = {.kind = kind, .attr = attr, .workspace = p->kernel, .workspace_bytes = p->room, .state = state,
               .device = p->a->device};
    return k;
}

static KArgs linear_args(const Part *p, void *state) {
    KArgs k = kernel_args(p, OP_linear, &p->attr, state);
    k.linear.x = p->x;
    k.linear.w = p->a->linear_cross_entropy.w;
    k.linear.b = p->a->linear_cross_entropy.b;
    k.linear.y = p->logits;
    return k;
}

static KArgs dx_args(const Part *p, void *state) {
    KArgs k = kernel_args(p, OP_linear_dx, &p->attr, state);
    k.linear_dx.dy = p->logits;
    k.linear_dx.w = p->a->linear_cross_entropy.w;
    k.linear_dx.dx = rows_view(&p->a->linear_cross_entropy_dx.dx, p->row, p->n, inputs_of(p->a));
    return k;
}

/* ---- dw */

static KArgs dw_args(const Part *p) {
    KArgs k = kernel_args(p, OP_linear_dw, &p->attr, NULL);
    k.linear_dw.x = p->x;
    k.linear_dw.dy = p->logits;
    k.linear_dw.dw = p->a->linear_cross_entropy_dx.dw;
    return k;
}

static bool is_bf16(const KArgs *dw) {
    const DType to = dw->linear_dw.dw.dtype;
    return bf16_gemm_fits() && dw->linear_dw.dy.dtype == DT_BF16 && (to == DT_BF16 || to == DT_F32);
}

static Bf16GemmShape bf16_shape(const KArgs *dw, bool add) {
    const int64_t o = dw->linear_dw.dw.shape.dim[0], i = dw->linear_dw.dw.shape.dim[1];
    return (Bf16GemmShape){.m = o, .n = i, .k = dw->linear_dw.dy.count / o, .a_stride = o, .a_transposed = true,
                           .b_stride = i, .c_stride = i, .add = add, .to = dw->linear_dw.dw.dtype,
                           .threads = ((CpuDevice *)dw->device)->threads};
}

static size_t dw_workspace(const KArgs *dw) {
    KArgs wide;
    Room room = {NULL, 0};
    if (is_bf16(dw)) {
        const Bf16GemmShape first = bf16_shape(dw, false), more = bf16_shape(dw, true);
        return align_up(max_size(bf16_gemm_scratch(&first), bf16_gemm_scratch(&more)), CPU_ALIGNMENT);
    }
    fp32_enter(dw, &room, &wide);
    return room.used;
}

/* dw = dy^T x; add: += */
static int dw_run(const KArgs *dw, bool add, Err *e) {
    const int64_t o = dw->linear_dw.dw.shape.dim[0], i = dw->linear_dw.dw.shape.dim[1], n = dw->linear_dw.dy.count / o;
    Room room = {dw->workspace, 0};
    KArgs wide;
    if (is_bf16(dw)) {
        const Bf16GemmShape s = bf16_shape(dw, add);
        return product_check(bf16_gemm_product(&s, dw->linear_dw.dy.data, dw->linear_dw.x.data, dw->linear_dw.dw.data,
                                               dw->workspace), e);
    }
    fp32_enter(dw, &room, &wide);
    float *to = wide.linear_dw.dw.data;
    if (add && to != dw->linear_dw.dw.data) fp32_widen(&dw->linear_dw.dw, to);
    const int status = product(o, i, n, 1, transposed(wide.linear_dw.dy.data, o), matrix(wide.linear_dw.x.data, i), add,
                               matrix(to, i));
    fp32_leave(dw, &wide);
    return product_check(status, e);
}

/* ---- preparation */

static void release(void *state) {
    LossState *s = state;
    for (int k = 0; k < SIZES; k++) {
        cpu_state_release(s->forward[k]);
        cpu_state_release(s->dx[k]);
    }
    mem_free(s);
}

static int64_t rows_of(const KArgs *a) { return a->linear_cross_entropy.t.count; }
static int64_t part_rows(const KArgs *a) { return loss_chunk(&a->attr->loss, rows_of(a)); }

static void place(const KArgs *a, Places *at) {
    const size_t n = (size_t)part_rows(a), classes = (size_t)classes_of(a);
    const bool both = loss_of(a)->count && has_gradient(a);
    at->logits = 0;
    at->stats = align_up(n * classes * dtype_size(a->linear_cross_entropy.x.dtype), CPU_ALIGNMENT);
    at->db = at->stats + (both ? align_up(n * sizeof(Softmax), CPU_ALIGNMENT) : 0);
    at->kernel = at->db + (gradient(a, 2).count ? align_up(classes * sizeof(float), CPU_ALIGNMENT) : 0);
    at->workspace = at->kernel;
}

/* Prepares the kernels of a part; *room grows to what they need. */
static int part_prepare(const Part *p, size_t limit, void **forward, void **dx, size_t *room, Err *e) {
    size_t bytes;
    const KArgs linear = linear_args(p, NULL);
    int code = k_cpu_linear_prepare(&linear, limit, forward, &bytes, e);
    if (code) return code;
    *room = max_size(*room, bytes);
    if (gradient(p->a, 0).count) {
        const KArgs linear_dx = dx_args(p, NULL);
        code = k_cpu_linear_dx_prepare(&linear_dx, limit, dx, &bytes, e);
        if (code) return code;
        *room = max_size(*room, bytes);
    }
    if (gradient(p->a, 1).count) {
        const KArgs linear_dw = dw_args(p);
        *room = max_size(*room, dw_workspace(&linear_dw));
    }
    return OK;
}

static int prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    const int64_t rows = rows_of(a), each = part_rows(a), n[SIZES] = {each, rows % each};
    LossState *s = mem_new(sizeof *s);
    Places at;
    size_t room = 0;
    int code = OK;
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = release;
    place(a, &at);
    for (int k = 0; k < SIZES && !code; k++) {
        if (!n[k]) continue;
        const Part p = part_of(a, &at, 0, n[k]);
        code = part_prepare(&p, limit, &s->forward[k], &s->dx[k], &room, e);
    }
    if (code) {
        release(s);
        return code;
    }
    *state = s;
    *workspace = at.kernel + room;
    return OK;
}

int k_cpu_linear_cross_entropy_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, limit, state, workspace, e);
}

int k_cpu_linear_cross_entropy_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, limit, state, workspace, e);
}

/* ---- runs */

static View labels_of(const Part *p) {
    View t = p->a->linear_cross_entropy.t;
    t.data = (int32_t *)t.data + p->row;
    t.shape = shape1(p->n);
    t.count = p->n;
    return t;
}

/* The sum of the part's terms. stats is filled, where it is wanted. */
static double terms(const Part *p, const View *stats) {
    KArgs k = kernel_args(p, OP_cross_entropy, p->a->attr, NULL);
    k.cross_entropy.x = p->logits;
    k.cross_entropy.t = labels_of(p);
    k.cross_entropy.w = p->a->linear_cross_entropy.weight;
    k.cross_entropy.stats = *stats;
    return cross_entropy_terms(&k);
}

/* The logits become their gradient. */
static void slopes(const Part *p, const View *stats, double count) {
    KArgs k = kernel_args(p, OP_cross_entropy_dx, p->a->attr, NULL);
    k.cross_entropy_dx.x = k.cross_entropy_dx.dx = p->logits;
    k.cross_entropy_dx.t = labels_of(p);
    k.cross_entropy_dx.state = p->a->linear_cross_entropy_dx.state;
    k.cross_entropy_dx.w = p->a->linear_cross_entropy.weight;
    k.cross_entropy_dx.stats = *stats;
    cross_entropy_slopes(&k, count);
}

/* db = the sum of the part's rows; of later parts: += */
static int add_db(const Part *p, void *sum, Err *e) {
    KArgs db = kernel_args(p, OP_bias_db, &p->attr, NULL), add = kernel_args(p, OP_accumulate, &p->attr, NULL);
    db.bias_db.dy = p->logits;
    db.bias_db.db = add.accumulate.x =
        (View){.data = sum, .shape = shape1(classes_of(p->a)), .dtype = DT_F32, .count = classes_of(p->a)};
    add.accumulate.acc = p->a->linear_cross_entropy_dx.db;
    add.micro = p->row > 0;
    const int code = k_cpu_bias_db(&db, e);
    return code ? code : k_cpu_accumulate(&add, e);
}

/* The gradients that the part's rows give, from that of their logits. dx comes last: it may overwrite x. */
static int gradients(const Part *p, void *db, void *state, Err *e) {
    int code = OK;
    if (gradient(p->a, 2).count) code = add_db(p, db, e);
    if (!code && gradient(p->a, 1).count) {
        const KArgs dw = dw_args(p);
        code = dw_run(&dw, p->row > 0, e);
    }
    if (!code && gradient(p->a, 0).count) {
        const KArgs dx = dx_args(p, state);
        code = k_cpu_linear_dx(&dx, e);
    }
    return code;
}

static int run(const KArgs *a, Err *e) {
    const LossState *s = a->state;
    const int64_t rows = rows_of(a), each = part_rows(a);
    const double count = cross_entropy_count(&(KArgs){.attr = a->attr, .in = {{0}, a->linear_cross_entropy.t}},
                                             a->linear_cross_entropy.weight.data);
    const bool wanted = loss_of(a)->count > 0;
    double sum = 0;
    Places at;
    int code = OK;
    place(a, &at);
    at.workspace = a->workspace_bytes;
    for (int64_t row = 0; row < rows && !code; row += each) {
        const Part p = part_of(a, &at, row, min_i64(each, rows - row));
        const int size = p.n == each ? WHOLE : LAST;
        const KArgs linear = linear_args(&p, s->forward[size]);
        const bool kept = wanted && has_gradient(a);
        const View stats = kept ? matrix_view((char *)a->workspace + at.stats, p.n, 2, DT_F32) : (View){0};
        code = k_cpu_linear(&linear, e);
        if (!code && wanted) sum += terms(&p, &stats);
        if (code || !has_gradient(a)) continue;
        slopes(&p, &stats, count);
        code = gradients(&p, (char *)a->workspace + at.db, s->dx[size], e);
    }
    if (!code && wanted) ((float *)loss_of(a)->data)[0] = loss_value(&a->attr->loss, sum, count);
    return code;
}

int k_cpu_linear_cross_entropy(const KArgs *a, Err *e) { return run(a, e); }
int k_cpu_linear_cross_entropy_dx(const KArgs *a, Err *e) { return run(a, e); }
