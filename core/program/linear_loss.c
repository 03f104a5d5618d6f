#include "linear_loss.h"

#include <string.h>

#include "base/mem.h"
#include "loss.h"

/* The whole parts, and the last one where that has fewer rows */
enum { WHOLE, LAST, SIZES };

typedef struct LossState {
    KernelState base;
    void *linear[SIZES], *dx[SIZES], *dw[SIZES];
} LossState;

/* The operands of both ops. dx, dw, db are absent where they are not wanted, and so is loss. */
typedef struct Operands {
    const KArgs *a;
    View x, w, b, t, weight, state, dx, dw, db, loss;
    int64_t rows, each, inputs, classes; /* each: rows of a whole part */
    bool gradient, terms;                /* terms: the loss is wanted, or what its terms are made of */
} Operands;

/* Where the workspace's pieces lie, in bytes from its start; kernel: the last one */
typedef struct Places { size_t sums, logits, stats, db, kernel; } Places;

/* One part: its rows, and its logits */
typedef struct Part {
    const Operands *o;
    Attr product;
    int64_t row, n;
    View logits, stats;
    void *kernel; /* the workspace of a kernel, and its size */
    size_t room;
} Part;

static Operands operands_of(const KArgs *a) {
    const bool gradient = a->kind == OP_linear_cross_entropy_dx;
    Operands o = {.a = a, .x = a->linear_cross_entropy.x, .w = a->linear_cross_entropy.w, .b = a->linear_cross_entropy.b,
                  .t = a->linear_cross_entropy.t, .weight = a->linear_cross_entropy.weight, .gradient = gradient};
    if (gradient) {
        o.state = a->linear_cross_entropy_dx.state;
        o.dx = a->linear_cross_entropy_dx.dx;
        o.dw = a->linear_cross_entropy_dx.dw;
        o.db = a->linear_cross_entropy_dx.db;
        o.loss = a->linear_cross_entropy_dx.loss;
    } else {
        o.loss = a->linear_cross_entropy.loss;
    }
    o.terms = o.loss.count || a->attr->loss.world;
    o.classes = o.w.shape.dim[0];
    o.inputs = o.w.shape.dim[1];
    o.rows = o.t.count;
    o.each = loss_chunk(&a->attr->loss, o.rows);
    assert(o.x.count == o.rows * o.inputs && o.rows > 0);
    return o;
}

static View view(void *data, Shape shape, DType t) {
    return (View){.data = data, .shape = shape, .dtype = t, .count = shape_elements(&shape)};
}

/* The part's rows of x or dx, which may be absent */
static View rows_of(const Part *p, const View *v) {
    const Operands *o = p->o;
    char *at = v->data;
    if (at) at += (size_t)(p->row * o->inputs) * dtype_size(v->dtype);
    return v->count ? view(at, shape2(p->n, o->inputs), v->dtype) : *v;
}

static View labels_of(const Part *p) {
    int32_t *at = p->o->t.data;
    return view(at ? at + p->row : NULL, shape1(p->n), DT_I32);
}

/* `room` grows by a piece of that size; returns its place. */
static size_t piece(size_t *room, size_t bytes, size_t alignment) {
    const size_t at = *room;
    *room += align_up(bytes, alignment);
    return at;
}

/* sums: the bytes of the loss's sums */
static Places places_of(const Operands *o, size_t sums, size_t alignment) {
    const size_t each = (size_t)o->each, classes = (size_t)o->classes, row = classes * dtype_size(o->x.dtype);
    size_t room = 0;
    Places at;
    at.sums = piece(&room, o->terms ? sums : 0, alignment);
    at.logits = piece(&room, each * row, alignment);
    at.stats = piece(&room, o->terms && o->gradient ? each * sizeof(Softmax) : 0, alignment);
    at.db = piece(&room, o->db.count ? classes * sizeof(float) : 0, alignment);
    at.kernel = room;
    return at;
}

/* Before the op runs there is no workspace. */
static Part part_of(const Operands *o, const Places *at, int64_t row, int64_t n) {
    char *workspace = o->a->workspace;
    Part p = {.o = o, .row = row, .n = n};
    memset(&p.product, 0, sizeof p.product);
    p.product.linear.tf32 = o->a->attr->loss.tf32;
    p.logits = view(workspace ? workspace + at->logits : NULL, shape2(n, o->classes), o->x.dtype);
    if (o->terms && o->gradient)
        p.stats = view(workspace ? workspace + at->stats : NULL, shape2(n, 2), DT_F32);
    if (workspace) {
        p.kernel = workspace + at->kernel;
        p.room = o->a->workspace_bytes - at->kernel;
    }
    return p;
}

/* ---- the ops of a part */

static KArgs part_args(const Part *p, OpKind kind, const Attr *attr, void *state) {
    const KArgs args = {.kind = kind, .attr = attr, .workspace = p->kernel, .workspace_bytes = p->room, .state = state,
                        .device = p->o->a->device, .micro = p->row > 0};
    return args;
}

static KArgs linear_args(const Part *p, void *state) {
    KArgs k = part_args(p, OP_linear, &p->product, state);
    k.linear.x = rows_of(p, &p->o->x);
    k.linear.w = p->o->w;
    k.linear.b = p->o->b;
    k.linear.y = p->logits;
    return k;
}

static KArgs dx_args(const Part *p, void *state) {
    KArgs k = part_args(p, OP_linear_dx, &p->product, state);
    k.linear_dx.dy = p->logits;
    k.linear_dx.w = p->o->w;
    k.linear_dx.dx = rows_of(p, &p->o->dx);
    return k;
}

static KArgs dw_args(const Part *p, void *state) {
    KArgs k = part_args(p, OP_linear_dw, &p->product, state);
    k.linear_dw.x = rows_of(p, &p->o->x);
    k.linear_dw.dy = p->logits;
    k.linear_dw.dw = p->o->dw;
    return k;
}

static KArgs terms_args(const Part *p) {
    KArgs k = part_args(p, OP_cross_entropy, p->o->a->attr, NULL);
    k.cross_entropy.x = p->logits;
    k.cross_entropy.t = labels_of(p);
    k.cross_entropy.w = p->o->weight;
    k.cross_entropy.stats = p->stats;
    return k;
}

static KArgs slopes_args(const Part *p) {
    KArgs k = part_args(p, OP_cross_entropy_dx, p->o->a->attr, NULL);
    k.cross_entropy_dx.x = k.cross_entropy_dx.dx = p->logits;
    k.cross_entropy_dx.t = labels_of(p);
    k.cross_entropy_dx.state = p->o->state;
    k.cross_entropy_dx.w = p->o->weight;
    k.cross_entropy_dx.stats = p->stats;
    return k;
}

/* db, or a later part's share of it, which waits at `sum`. */
static int add_db(const LossKernels *with, const Part *p, void *sum, Err *e) {
    KArgs db = part_args(p, OP_bias_db, &p->product, NULL), add = part_args(p, OP_accumulate, &p->product, NULL);
    db.bias_db.dy = p->logits;
    db.bias_db.db = add.accumulate.x = view(sum, shape1(p->o->classes), DT_F32);
    add.accumulate.acc = p->o->db;
    const int code = with->db(&db, e);
    return code ? code : with->accumulate(&add, e);
}

/* ---- preparation */

static void release(void *state) {
    LossState *s = state;
    for (int k = 0; k < SIZES; k++) {
        kernel_state_release(s->linear[k]);
        kernel_state_release(s->dx[k]);
        kernel_state_release(s->dw[k]);
    }
    mem_free(s);
}

/* *room grows to what the op needs. */
static int prepare_one(KernelPrepare *prepare, const KArgs *a, size_t limit, void **state, size_t *room, Err *e) {
    size_t bytes = 0;
    const int code = prepare(a, limit, state, &bytes, e);
    if (!code) *room = max_size(*room, bytes);
    return code;
}

static int prepare_part(const LossKernels *with, const Part *p, size_t limit, LossState *s, int size, size_t *room,
                        Err *e) {
    const KArgs linear = linear_args(p, NULL), dx = dx_args(p, NULL), dw = dw_args(p, NULL), terms = terms_args(p);
    void *none = NULL;
    int code = prepare_one(with->prepare_linear, &linear, limit, &s->linear[size], room, e);
    if (!code && p->o->dx.count) code = prepare_one(with->prepare_dx, &dx, limit, &s->dx[size], room, e);
    if (!code && p->o->dw.count) code = prepare_one(with->prepare_dw, &dw, limit, &s->dw[size], room, e);
    if (!code && terms.attr->loss.world) code = prepare_one(with->prepare_terms, &terms, limit, &none, room, e);
    assert(!none);
    return code;
}

static size_t sums_of(const LossKernels *with, const Operands *o) {
    const Part whole = part_of(o, &(Places){0}, 0, o->each);
    const KArgs terms = terms_args(&whole);
    return with->sums(&terms);
}

int linear_loss_prepare(const LossKernels *with, const KArgs *a, size_t limit, void **state, size_t *workspace,
                        Err *e) {
    const Operands o = operands_of(a);
    const Places at = places_of(&o, sums_of(with, &o), with->alignment);
    const int64_t n[SIZES] = {o.each, o.rows % o.each};
    LossState *s = mem_new(sizeof *s);
    size_t room = 0;
    int code = OK;
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = release;
    for (int k = 0; k < SIZES && n[k] && !code; k++) {
        const Part p = part_of(&o, &at, 0, n[k]);
        code = prepare_part(with, &p, limit, s, k, &room, e);
    }
    if (code) {
        release(s);
        return code;
    }
    *state = s;
    *workspace = at.kernel + room;
    return OK;
}

/* ---- runs */

/* From the gradient of the part's logits. dx comes last: it may overwrite x. */
static int gradients(const LossKernels *with, const Part *p, void *db, const LossState *s, int size, Err *e) {
    const KArgs dw = dw_args(p, s->dw[size]), dx = dx_args(p, s->dx[size]);
    int code = p->o->db.count ? add_db(with, p, db, e) : OK;
    if (!code && p->o->dw.count) code = with->dw(&dw, e);
    return !code && p->o->dx.count ? with->dx(&dx, e) : code;
}

int linear_loss_run(const LossKernels *with, const KArgs *a, Err *e) {
    const LossState *s = a->state;
    const Operands o = operands_of(a);
    const size_t bytes = sums_of(with, &o);
    const Places at = places_of(&o, bytes, with->alignment);
    assert(a->workspace && a->workspace_bytes >= at.kernel);
    char *workspace = a->workspace, *sums = workspace + at.sums;
    int code = OK;
    for (int64_t row = 0; row < o.rows && !code; row += o.each) {
        const Part p = part_of(&o, &at, row, min_i64(o.each, o.rows - row));
        const int size = p.n == o.each ? WHOLE : LAST;
        const KArgs linear = linear_args(&p, s->linear[size]), terms = terms_args(&p), slopes = slopes_args(&p);
        code = with->linear(&linear, e);
        if (!code && o.terms) code = with->terms(&terms, sums, bytes, e);
        if (!code && o.gradient) code = with->slopes(&slopes, &o.t, e);
        if (!code && o.gradient) code = gradients(with, &p, workspace + at.db, s, size, e);
    }
    if (code || !o.loss.count) return code;
    KArgs whole = {.kind = OP_cross_entropy, .attr = a->attr, .device = a->device};
    whole.cross_entropy.t = o.t;
    whole.cross_entropy.w = o.weight;
    whole.cross_entropy.loss = o.loss;
    return with->finish(&whole, sums, bytes, e);
}
