/* recurrent.c: a layer of RNN, LSTM or GRU in one direction, and its gradients. What does not depend on the step before is one
 * product over all steps: the sums from the input; and the gradients of w and x, once the walk back has made those of all sums.
 * Each step has one product with w_hh and one kernel (recurrent.cu). Products are a library's (gemm.h); those whose matrices
 * begin between whole 16-byte words, have several types, or which the library has not, are own tiles.
 *
 * Sums are fp32. What passes through a product, h and the gradients of sums, has the operands' type: so tensor cores multiply
 * 16-bit operands. GRU's h and LSTM's c, which also pass by the products, stay fp32. */
#include "recurrent.h"

#include "base/mem.h"
#include "gemm.h"

enum { WORD = 16 };

/* The products of both ops. GRU's slopes for w_ih, n r z, stand in another order than the rows of w_ih, r z n (rnn_cells.h): so
 * those of n are multiplied apart. */
typedef enum ProductKind {
    FROM_X,  /* sums from the input, of all steps */
    FROM_H,  /* sums from the step before */
    TO_H,    /* the gradient of h before a step */
    TO_W_IH, TO_W_IH_N,
    TO_X, TO_X_N,
    TO_W_HH,
    PRODUCTS
} ProductKind;

/* plan NULL: own tiles, or the device is not here. A workspace: [the layer's | a product's own]. */
typedef struct RnnState {
    CudaState base;
    GemmPlan *plan[PRODUCTS];
    size_t before, workspace;
} RnnState;

static void release(void *state) {
    RnnState *s = state;
    for (int k = 0; k < PRODUCTS; k++) gemm_close(s->plan[k]);
    mem_free(s);
}

/* ---- the workspace */

/* The next `count` elements, NULL if there is no workspace; *used: bytes so far */
static void *take(const KArgs *a, size_t *used, int64_t count, DType t) {
    void *p = a->workspace ? (char *)a->workspace + *used : NULL;
    *used += align_up((size_t)count * dtype_size(t), CUDA_ALIGNMENT);
    return p;
}

static RnnLayer open_forward(const KArgs *a, size_t *used) {
    const View *x = &a->rnn.x;
    RnnLayer l = {.p = rnn_path(a, x, &a->rnn.y)};
    const int64_t units = l.p.samples * l.p.units;
    l.from_x = take(a, used, l.p.rows * l.p.gates, DT_F32);
    l.from_h = take(a, used, l.p.samples * l.p.gates, DT_F32);
    l.h = take(a, used, units, x->dtype);
    if (l.p.mode == RNN_LSTM) l.c = take(a, used, units, DT_F32);
    if (l.p.mode == RNN_GRU) l.state = x->dtype == DT_F32 ? l.h : take(a, used, units, DT_F32);
    return l;
}

static RnnLayer open_back(const KArgs *a, size_t *used) {
    const View *x = &a->rnn_dx.x;
    RnnLayer l = {.p = rnn_path(a, x, &a->rnn_dx.y)};
    const int64_t units = l.p.samples * l.p.units, word = WORD / (int64_t)dtype_size(x->dtype);
    l.width = (l.p.info.slopes * l.p.units + word - 1) / word * word;
    l.slopes = take(a, used, l.p.rows * l.width, x->dtype);
    l.state = take(a, used, units, DT_F32);
    if (l.p.mode == RNN_LSTM) l.c = take(a, used, units, DT_F32);
    return l;
}

static RnnLayer open_layer(const KArgs *a, size_t *used) {
    return a->kind == OP_rnn ? open_forward(a, used) : open_back(a, used);
}

/* ---- products */

static RnnMatrix matrix(void *data, DType t, int64_t at, int64_t stride) { return (RnnMatrix){data, t, false, at, stride}; }
static RnnMatrix transposed(RnnMatrix m) { return m.transposed = true, m; }
static RnnMatrix of_view(const View *v, int64_t at, int64_t stride) { return matrix(v->data, v->dtype, at, stride); }

static RnnProduct product_forward(const KArgs *a, const RnnLayer *l, ProductKind kind) {
    const RnnPath *p = &l->p;
    const View *x = &a->rnn.x;
    if (kind == FROM_X)
        return (RnnProduct){matrix(l->from_x, DT_F32, 0, p->gates), of_view(x, 0, p->inputs),
                            transposed(of_view(&a->rnn.w_ih, 0, p->inputs)), p->rows, p->gates, p->inputs, false};
    return (RnnProduct){matrix(l->from_h, DT_F32, 0, p->gates), matrix(l->h, x->dtype, 0, p->units),
                        transposed(of_view(&a->rnn.w_hh, 0, p->units)), p->samples, p->gates, p->units, false};
}

/* k: TO_H's step. The gradient of w_hh: each row of slopes is multiplied by the row of y of the step before. The first step has
 * none: its slopes are 0 by then, so that all rows have their partners at the same distance. */
static RnnProduct product_back(const KArgs *a, const RnnLayer *l, ProductKind kind, int64_t k) {
    const RnnPath *p = &l->p;
    const View *x = &a->rnn_dx.x, *y = &a->rnn_dx.y, *w_ih = &a->rnn_dx.w_ih, *dw_ih = &a->rnn_dx.dw_ih;
    const int64_t u = p->units, in = p->inputs, column = rnn_hidden(p);
    const bool of_n = kind == TO_W_IH_N || kind == TO_X_N;
    const int64_t row = of_n ? 2 * u : 0, rows = of_n ? u : p->mode == RNN_GRU ? 2 * u : p->gates; /* of w_ih */
    const RnnMatrix slopes = matrix(l->slopes, x->dtype, of_n ? 0 : column, l->width);
    switch (kind) {
    case TO_H: {
        const RnnMatrix step = matrix(l->slopes, x->dtype, rnn_row(p, 0, k) * l->width + column, p->sample * l->width);
        return (RnnProduct){matrix(l->state, DT_F32, 0, u), step, of_view(&a->rnn_dx.w_hh, 0, u), p->samples, u, p->gates,
                            p->mode == RNN_GRU};
    }
    case TO_W_IH: case TO_W_IH_N:
        return (RnnProduct){of_view(dw_ih, row * in, in), transposed(slopes), of_view(x, 0, in), rows, in, p->rows, false};
    case TO_X: case TO_X_N:
        return (RnnProduct){of_view(&a->rnn_dx.dx, 0, in), slopes, of_view(w_ih, row * in, in), p->rows, in, rows, of_n};
    default: {
        const int64_t after = column + (p->reverse ? 0 : p->step * l->width), before = p->reverse ? p->step * u : 0;
        return (RnnProduct){of_view(&a->rnn_dx.dw_hh, 0, u), transposed(matrix(l->slopes, x->dtype, after, l->width)),
                            of_view(y, before, u), p->gates, u, p->rows - p->step, false};
    }
    }
}

static RnnProduct product_of(const KArgs *a, const RnnLayer *l, ProductKind kind, int64_t k) {
    return a->kind == OP_rnn ? product_forward(a, l, kind) : product_back(a, l, kind, k);
}

static bool has_product(const KArgs *a, const RnnLayer *l, ProductKind kind) {
    if (a->kind == OP_rnn) return kind == FROM_X || (kind == FROM_H && l->p.steps > 1);
    const bool gru = l->p.mode == RNN_GRU;
    const int64_t dx = a->rnn_dx.dx.count, dw_ih = a->rnn_dx.dw_ih.count, dw_hh = a->rnn_dx.dw_hh.count;
    const bool has[PRODUCTS] = {[TO_H] = l->p.steps > 1, [TO_W_IH] = dw_ih, [TO_W_IH_N] = dw_ih && gru, [TO_X] = dx,
                                [TO_X_N] = dx && gru, [TO_W_HH] = dw_hh};
    return has[kind];
}

static bool begins_well(const RnnMatrix *m) { return (size_t)m->at * dtype_size(m->type) % WORD == 0; }

/* May it be a library's? */
static bool fits_library(const RnnProduct *p) {
    return p->k > 0 && begins_well(&p->a) && begins_well(&p->b) && begins_well(&p->c) && p->a.type == p->b.type &&
           (p->c.type == p->a.type || p->c.type == DT_F32);
}

static Gemm gemm_of(const KArgs *a, const RnnProduct *p) {
    return (Gemm){.m = p->m, .n = p->n, .k = p->k, .a_transposed = p->a.transposed, .b_transposed = p->b.transposed,
                  .in = p->a.type, .out = p->c.type, .tf32 = a->attr->rnn.tf32, .a_stride = p->a.stride,
                  .b_stride = p->b.stride, .d_stride = p->c.stride};
}

static void *start(const RnnMatrix *m) { return (char *)m->data + m->at * (int64_t)dtype_size(m->type); }

static int product_run(const KArgs *a, const RnnLayer *l, ProductKind kind, int64_t k, Err *e) {
    const RnnState *s = a->state;
    const RnnProduct p = product_of(a, l, kind, k);
    void *own = (char *)a->workspace + s->before;
    if (!s->plan[kind]) return cuda_rnn_product(a, &p, e);
    return p.add ? gemm_add(cuda_of(a), s->plan[kind], start(&p.a), start(&p.b), start(&p.c), own, e)
                 : gemm_run(cuda_of(a), s->plan[kind], start(&p.a), start(&p.b), NULL, start(&p.c), own, e);
}

/* ---- preparing. The library answers only where there is a GPU: what its products may use follows from shapes. */

static int open_products(const KArgs *a, const RnnLayer *l, size_t limit, RnnState *s, Err *e) {
    CudaDevice *c = cuda_of(a);
    size_t most = 0;
    int code = OK;
    for (int kind = 0; kind < PRODUCTS && !code; kind++) {
        if (!has_product(a, l, (ProductKind)kind)) continue;
        const RnnProduct p = product_of(a, l, (ProductKind)kind, 1);
        if (!fits_library(&p)) continue;
        const Gemm g = gemm_of(a, &p);
        const size_t bytes = gemm_room(&g, limit);
        most = max_size(most, bytes);
        if (c->ordinal != NOT_HERE) code = gemm_open(c, &g, NULL, bytes, &s->plan[kind], e);
    }
    s->workspace = s->before + most;
    return code;
}

static int prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    RnnState *s = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = release;
    const RnnLayer l = open_layer(a, &s->before);
    const int code = open_products(a, &l, limit > s->before ? limit - s->before : 0, s, e);
    *workspace = s->workspace;
    if (code) release(s);
    else *state = s;
    return code;
}

int k_cuda_rnn_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, limit, state, workspace, e);
}

int k_cuda_rnn_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, limit, state, workspace, e);
}

/* ---- running */

static int check(const KArgs *a, Err *e) {
    const RnnState *s = a->state;
    if (a->workspace_bytes >= s->workspace) return OK;
    return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", s->workspace, a->workspace_bytes);
}

int k_cuda_rnn(const KArgs *a, Err *e) {
    size_t used = 0;
    const RnnLayer l = open_forward(a, &used);
    int code = check(a, e);
    if (!code) code = product_run(a, &l, FROM_X, 0, e);
    for (int64_t k = 0; k < l.p.steps && !code; k++) {
        if (k) code = product_run(a, &l, FROM_H, k, e);
        if (!code) code = cuda_rnn_cells(a, &l, k, e);
    }
    return code;
}

int k_cuda_rnn_dx(const KArgs *a, Err *e) {
    size_t used = 0;
    const RnnLayer l = open_back(a, &used);
    int code = check(a, e);
    for (int64_t k = l.p.steps - 1; k >= 0 && !code; k--) {
        code = cuda_rnn_cells_back(a, &l, k, e);
        if (k && !code) code = product_run(a, &l, TO_H, k, e);
    }
    if (!code && (a->rnn_dx.db_ih.count || a->rnn_dx.db_hh.count)) code = cuda_rnn_bias_gradients(a, &l, e);
    for (int kind = TO_W_IH; kind < PRODUCTS && !code; kind++) {
        if (!has_product(a, &l, (ProductKind)kind)) continue;
        if (kind == TO_W_HH) code = cuda_rnn_clear_first(a, &l, e);
        if (!code) code = product_run(a, &l, (ProductKind)kind, 0, e);
    }
    return code;
}
