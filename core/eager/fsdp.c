/* fully_shard. A parameter keeps its tensor, whose storage is there while its unit is gathered: what autograd has saved of
 * it comes and goes with it. The optimizer has the shards.
 *
 * A unit before its forward function: all-gather of its shards into one flat buffer, copies of that into the parameters. The
 * flat buffer stays until the next unit's copies are made, so that the next all-gather can overlap them. After it the
 * parameters go, unless reshard_after_forward is false; those of the model itself stay. In the backward pass the gradient of
 * a unit's output gathers it again, and begins the all-gather of the unit that ran before it; once the gradient of its input
 * is there, its gradients are copied into one flat buffer, which is reduced and scattered. That buffer goes when the next
 * unit is as far. */
#include "fsdp.h"

#include <math.h>
#include <string.h>

typedef enum State { IDLE, FORWARD, PRE_BACKWARD, POST_BACKWARD } State; /* TrainingState */

enum { STREAM, STREAM_COPY_IN, STREAM_REDUCE }; /* whose blocks an allocation can have */

struct FsdpUnit {
    const Layer *layer;
    State state;
    bool reshards;          /* after its forward function */
    bool backward;          /* the gradient of its output has come */
    bool whole;             /* its parameters are there */
    int *param, n;          /* numbers of its parameters */
    Tensor *gathered;       /* what has not been copied out of the all-gather's output: a reference, or NULL */
    int place;              /* among those that ran forward; -1: the backward pass has been there */
};

struct Fsdp {
    FsdpUnit *unit;         /* the first is the whole */
    int n, world, rank;
    Tensor **shard;         /* by parameter of the network: references */
    int64_t *padded;        /* elements of each rank's part */
    ScalarType type;        /* of gathered parameters, where it is another than theirs */
    bool casts, reduce_float, reduce_bfloat; /* param_dtype and reduce_dtype are said */
    Tensor *deferred;       /* the flat buffer of the unit that was gathered last in forward */
    Tensor *reducing;       /* ... of the gradients that were reduced last */
    FsdpUnit **order;       /* as they ran forward */
    int n_order;
};

/* ---- which layers are units: those with children that have a sibling with the same layers and shapes, the outermost */

static bool alike(const Network *net, const Layer *a, const Layer *b) {
    if (a->kind != b->kind || a->n_child != b->n_child || a->n_params != b->n_params) return false;
    for (int k = 0; k < a->n_params; k++)
        if (!shape_equal(&net->params[a->param[k]].shape, &net->params[b->param[k]].shape)) return false;
    for (int i = 0; i < a->n_child; i++)
        if (!alike(net, a->child[i], b->child[i])) return false;
    return true;
}

static bool has_params(const Layer *l) {
    bool any = l->n_params > 0;
    for (int i = 0; i < l->n_child && !any; i++) any = has_params(l->child[i]);
    return any;
}

static bool is_unit(const Network *net, const Layer *parent, int i) {
    const Layer *l = parent->child[i];
    if (!l->n_child || !has_params(l)) return false;
    for (int k = 0; k < parent->n_child; k++)
        if (k != i && alike(net, l, parent->child[k])) return true;
    return false;
}

/* Calls visit(to, layer, number of its unit) of each layer; the whole is unit 0. Returns how many units there are. */
typedef void VisitFn(void *to, const Layer *l, int unit);

static int walk(const Network *net, const Layer *l, int unit, int n, VisitFn *visit, void *to) {
    visit(to, l, unit);
    for (int i = 0; i < l->n_child; i++) {
        const bool is = unit == 0 && is_unit(net, l, i);
        n = walk(net, l->child[i], is ? n : unit, n + is, visit, to);
    }
    return n;
}

/* ---- what is refused */

typedef struct Check { const Network *net; int *unit; const Layer *shared; } Check;

static void check_layer(void *to, const Layer *l, int unit) {
    Check *c = to;
    for (int k = 0; k < l->n_params; k++) {
        int *of = &c->unit[l->param[k]];
        if (*of && *of != unit + 1 && !c->shared) c->shared = l;
        *of = unit + 1;
    }
    if (l->shares && l->n_params && !c->shared) c->shared = l;
}

static int refuse(Err *e, const char *what) {
    return err_set(e, ERR_SCRIPT, "framework = \"pytorch\": zero = 2 and 3 are fully_shard: %s", what);
}

static int check_params(const Network *net, const Settings *s, Err *e) {
    DType type = DT_F32;
    bool any = false;
    for (int i = 0; i < net->n_params; i++) {
        const Param *p = &net->params[i];
        const DType own = p->wide ? DT_F32 : precision_info(s->precision)->weights;
        if (p->buffer) continue;
        const char *recurrent = p->owner ? layer_kind(p->owner) : "";
        if (p->quantized.format) return layer_error(p->owner, e, "framework = \"pytorch\": quantised weights are not predicted in fully_shard");
        if (!strcmp(recurrent, "RNN") || !strcmp(recurrent, "LSTM") || !strcmp(recurrent, "GRU"))
            return layer_error(p->owner, e, "framework = \"pytorch\": recurrent layers are not predicted in fully_shard");
        if (p->shape.rank == 0 || (p->shape.rank == 4 && s->pytorch.channels_last == SAID_TRUE))
            return layer_error(p->owner, e, "framework = \"pytorch\": PyTorch refuses it: fully_shard expects contiguous parameters of "
                                            "at least one dimension");
        if (!p->trainable) continue;
        if (any && own != type)
            return layer_error(p->owner, e, "framework = \"pytorch\": PyTorch refuses it: fully_shard expects parameters of one type");
        type = own;
        any = true;
    }
    return OK;
}

int fsdp_check(const Network *net, const Settings *s, Err *e) {
    const PyTorchOptions *o = &s->pytorch;
    Scratch scratch = {0};
    Check c = {net, scratch_new(&scratch, (size_t)net->n_params + 1, sizeof *c.unit), NULL};
    if (!c.unit) {
        scratch_release(&scratch, NULL);
        return err_set(e, ERR_HOST_MEMORY, "out of host memory");
    }
    walk(net, net->root, 0, 1, check_layer, &c);
    scratch_release(&scratch, NULL);
    if (c.shared)
        return layer_error(c.shared, e, "framework = \"pytorch\": zero = 2 and 3 are fully_shard: a layer or a parameter with two "
                                        "uses is not predicted");
    if (*o->version && strcmp(o->version, "2.15") != 0) return refuse(e, "expected version 2.15");
    if (o->use_reentrant == SAID_TRUE) return refuse(e, "expected use_reentrant = false");
    if (s->offload != OFFLOAD_NONE) return refuse(e, "expected offload = \"none\"");
    if (s->optimizer.kind == OPTIM_Rule) return refuse(e, "a script's Rule is not predicted");
    if (s->optimizer.kind == OPTIM_Adafactor || s->optimizer.kind == OPTIM_Lion ||
        (s->optimizer.kind == OPTIM_Adagrad && o->fused == SAID_TRUE))
        return refuse(e, "PyTorch refuses Adafactor, Lion and the fused Adagrad of shards");
    return check_params(net, s, e);
}

static void pre_backward(Eager *g, FsdpUnit *u);
static void backward_ends(Eager *g);

/* ---- fully_shard() */

static void count_layer(void *to, const Layer *l, int unit) {
    Fsdp *f = to;
    if (!f->unit[unit].layer) f->unit[unit].layer = l;
    for (int k = 0; k < l->n_params; k++) f->order[l->param[k]] = &f->unit[unit];
}

static int64_t parts_of(const Fsdp *f, int64_t rows) { return (rows + f->world - 1) / f->world; }

/* A rank's part has as many rows as rank 0's, of which the last ranks' last ones are padding. */
static void shard(Eager *g, Fsdp *f, int i) {
    const Tensor *p = g->params[i];
    Size size = p->size;
    const int64_t rows = parts_of(f, size.of[0]), left = p->size.of[0] - f->rank * rows;
    size.of[0] = rows;
    f->padded[i] = size_elements(&size);
    Tensor *t = f->shard[i] = aten_random(g, "aten::new_zeros", size, p->type);
    if (t == g->unnamed) return;
    t->size.of[0] = left < 0 ? 0 : left < rows ? left : rows;
    t->leaf = p->leaf;
}

static void shard_unit(Eager *g, Fsdp *f, FsdpUnit *u) {
    eager_where(g, u->layer, NULL);
    for (int k = 0; k < u->n; k++) shard(g, f, u->param[k]);
    for (int k = 0; k < u->n; k++) {
        Tensor *p = g->params[u->param[k]];
        storage_resize(g, p->storage, 0);
        if (f->casts) p->type = f->type;
    }
}

static void nothing(void *to, const Layer *l, int unit) { (void)to, (void)l, (void)unit; }

static ScalarType type_of(const PyTorchOptions *o) { return o->param_dtype == MP_FLOAT32 ? T_FLOAT : T_BFLOAT16; }

Fsdp *fsdp_new(Eager *g, const Settings *s) {
    const size_t n = (size_t)g->net->n_params;
    const Category before = g->category;
    Fsdp *f = scratch_new(&g->scratch, 1, sizeof *f);
    if (!f) return NULL;
    *f = (Fsdp){.world = s->world, .rank = s->rank, .type = type_of(&s->pytorch), .casts = s->pytorch.param_dtype != MP_UNSAID,
                .reduce_float = s->pytorch.reduce_dtype == MP_FLOAT32, .reduce_bfloat = s->pytorch.reduce_dtype == MP_BFLOAT16};
    f->n = walk(g->net, g->net->root, 0, 1, nothing, NULL);
    f->unit = scratch_new(&g->scratch, (size_t)f->n, sizeof *f->unit);
    f->order = scratch_new(&g->scratch, n + (size_t)f->n, sizeof *f->order);
    f->shard = scratch_new(&g->scratch, n, sizeof *f->shard);
    f->padded = scratch_new(&g->scratch, n, sizeof *f->padded);
    if (g->scratch.failed) return NULL;
    walk(g->net, g->net->root, 0, 1, count_layer, f);
    for (int k = 0; k < f->n; k++) {
        FsdpUnit *u = &f->unit[k];
        u->reshards = k > 0 && s->zero == 3;
        u->param = scratch_new(&g->scratch, n, sizeof *u->param);
        for (int i = 0; u->param && i < g->net->n_params; i++)
            if (f->order[i] == u && !g->net->params[i].buffer) u->param[u->n++] = i;
    }
    g->category = CAT_WEIGHTS;
    for (int k = 1; k <= f->n && !g->scratch.failed; k++) shard_unit(g, f, &f->unit[k % f->n]);
    eager_where(g, NULL, NULL);
    g->category = before;
    g->hooks = (BackwardHooks){.output = pre_backward, .end = backward_ends};
    return f;
}

Tensor *fsdp_shard(const Fsdp *f, int i) { return f->shard[i]; }

FsdpUnit *fsdp_unit(const Eager *g, const Layer *l) {
    for (int k = 0; g->fsdp && k < g->fsdp->n; k++)
        if (g->fsdp->unit[k].layer == l) return &g->fsdp->unit[k];
    return NULL;
}

/* ---- gathering */

enum { PACK_BLOCK = 128 * 16 }; /* bytes that a block of threads copies: BLOCK_SIZE, BYTES_PER_THREAD */

/* What split_with_sizes_copy tells its kernel, in numbers of 8 bytes on the device (ATen/native/cuda/TensorShape.cu): four for
 * each parameter, and which of them each block copies. */
static int64_t pack_of_copies(const Eager *g, const Fsdp *f, const FsdpUnit *u) {
    int64_t blocks = 0, packed = 0;
    for (int k = 0; k < u->n; k++) {
        const int64_t bytes = f->padded[u->param[k]] * (int64_t)scalar_bytes(g->params[u->param[k]]->type);
        blocks += (bytes + PACK_BLOCK - 1) / PACK_BLOCK;
    }
    const int64_t most = g->card->multiprocessors * g->card->threads / 128 * 2;
    const int64_t turns = (blocks * f->world + most - 1) / most;
    int64_t of_block = (int64_t)ceil(sqrt((double)turns));
    if (of_block > f->world) of_block = f->world;
    const int64_t each = (turns + of_block - 1) / of_block * PACK_BLOCK;
    for (int k = 0; k < u->n; k++) {
        const int64_t bytes = f->padded[u->param[k]] * (int64_t)scalar_bytes(g->params[u->param[k]]->type);
        packed += (bytes + each - 1) / each;
    }
    return 8 * (4 * u->n + 1 + packed);
}

/* FSDPParamGroup.unshard */
static void all_gather(Eager *g, Fsdp *f, FsdpUnit *u) {
    const Category before = g->category;
    int64_t bytes = 0, cast = 0;
    if (u->gathered || u->whole || !u->n) return;
    for (int k = 0; k < u->n; k++) {
        const int i = u->param[k];
        bytes += f->padded[i] * (int64_t)scalar_bytes(g->params[i]->type);
        if (g->params[i]->type != f->shard[i]->type) cast += f->padded[i];
    }
    g->category = CAT_WEIGHTS;
    g->stream = STREAM_COPY_IN;
    Tensor *flat = cast ? aten_random(g, "aten::_foreach_copy_", SIZE(cast), f->type) : NULL;
    u->gathered = aten_random(g, "fsdp::all_gather_copy_in", SIZE(bytes * f->world), T_BYTE);
    tensor_drop(g, flat);
    g->stream = STREAM;
    g->category = before;
}

/* FSDPParamGroup.wait_for_unshard */
static void copy_out(Eager *g, Fsdp *f, FsdpUnit *u) {
    const Category before = g->category;
    if (!u->gathered) return;
    if (u->state == FORWARD) tensor_set(g, &f->deferred, NULL);
    g->category = CAT_WEIGHTS;
    eager_op(g, "fsdp::split_with_sizes_copy");
    READS(g, u->gathered);
    for (int k = 0; k < u->n; k++) {
        const int i = u->param[k];
        storage_resize(g, g->params[i]->storage, (size_t)(f->padded[i] * f->world) * scalar_bytes(g->params[i]->type));
    }
    INNER(g, pack_of_copies(g, f, u));
    g->category = before;
    u->whole = true;
    if (u->state == FORWARD) f->deferred = u->gathered;
    else tensor_drop(g, u->gathered);
    u->gathered = NULL;
}

static void reshard(Eager *g, FsdpUnit *u) {
    for (int k = 0; u->whole && k < u->n; k++) storage_resize(g, g->params[u->param[k]]->storage, 0);
    u->whole = false;
}

/* ---- the backward pass */

/* What _chunk_cat tells its kernel: six for each tensor, two more, and which tensor each block copies. */
static int64_t pack_of_gradients(const Fsdp *f, const int *param, int n, ScalarType type) {
    int64_t blocks = 0;
    for (int k = 0; k < n; k++) {
        const int64_t bytes = f->padded[param[k]] * (int64_t)scalar_bytes(type);
        blocks += (bytes + PACK_BLOCK - 1) / PACK_BLOCK;
    }
    return 8 * (6 * n + 2 + blocks);
}

/* foreach_reduce: the gradients of the parameters param[n], whose references it takes. */
static void reduce_scatter(Eager *g, Fsdp *f, const int *param, int n, Tensor **grad) {
    const ScalarType own = f->shard[param[0]]->type, type = f->reduce_float ? T_FLOAT : f->reduce_bfloat ? T_BFLOAT16 : own;
    int64_t part = 0;
    for (int k = 0; k < n; k++) part += f->padded[param[k]];
    f->reducing = aten_random(g, "fsdp::chunk_cat", SIZE(part * f->world), type);
    work_reads(g, (const Tensor *const *)grad, n);
    INNER(g, pack_of_gradients(f, param, n, type));
    for (int k = 0; k < n; k++) tensor_drop(g, grad[k]);
    g->stream = STREAM_REDUCE;
    Tensor *mine = aten_random(g, "c10d::reduce_scatter", SIZE(part), type);
    if (type != own) tensor_set(g, &mine, aten_random(g, "aten::_to_copy", SIZE(part), own));
    g->stream = STREAM;
    for (int k = 0; k < n; k++) {
        Tensor *t = f->shard[param[k]];
        if (t->grad) eager_inplace(g, "aten::add_", t->grad, t);
        else t->grad = tensor_view(g, mine, t->size, t->stride);
    }
    tensor_drop(g, mine);
}

static void post_backward(Eager *g, Fsdp *f, FsdpUnit *u) {
    const Category before = g->category;
    int n = 0, *param = scratch_new(&g->scratch, (size_t)u->n, sizeof *param);
    Tensor **grad = scratch_new(&g->scratch, (size_t)u->n, sizeof *grad);
    if (!param || !grad) return;
    u->state = POST_BACKWARD;
    for (int k = 0; k < u->n; k++) {
        Tensor *p = g->params[u->param[k]];
        if (!p->grad) continue;
        param[n] = u->param[k];
        grad[n++] = p->grad;
        p->grad = NULL;
    }
    reshard(g, u);
    tensor_set(g, &f->reducing, NULL);
    g->category = CAT_GRADIENTS;
    if (n) reduce_scatter(g, f, param, n, grad);
    g->category = before;
}

static void apply_post_backward(Eager *g, Node *n, Tensor *const *dy, Tensor **dx) {
    post_backward(g, g->fsdp, (FsdpUnit *)(intptr_t)n->number[0]);
    for (int i = 0; i < n->n_next; i++) dx[i] = tensor_ref(dy[i]);
}

static const NodeRule post_rule = {"RegisterPostBackwardFunctionBackward", apply_post_backward};

static void pre_backward(Eager *g, FsdpUnit *u) {
    Fsdp *f = g->fsdp;
    u->backward = true;
    if (!u->n || u->state == PRE_BACKWARD) return;
    u->state = PRE_BACKWARD;
    all_gather(g, f, u);
    copy_out(g, f, u);
    if (u->place > 0) all_gather(g, f, f->order[u->place - 1]);
    u->place = -1;
}

static void backward_ends(Eager *g) {
    Fsdp *f = g->fsdp;
    bool any = false;
    for (int k = 0; k < f->n; k++) any |= f->unit[k].backward;
    for (int k = 0; k < f->n; k++) {
        FsdpUnit *u = &f->unit[k];
        eager_where(g, u->layer, NULL);
        if (any && u->n && u->state != POST_BACKWARD) post_backward(g, f, u);
        u->state = IDLE;
        u->backward = false;
    }
    for (int k = 0; k < f->n; k++) tensor_set(g, &f->unit[k].gathered, NULL);
    tensor_set(g, &f->deferred, NULL);
    tensor_set(g, &f->reducing, NULL);
    f->n_order = 0;
}

/* ---- the forward pass */

/* The gradient of a unit's input passes through a node of its own. */
static void register_post_backward(Eager *g, FsdpUnit *u, Tensor **taken, int n) {
    Tensor *in[LAYER_IN];
    int count = 0, of[LAYER_IN];
    for (int k = 0; k < n; k++) {
        if (!tensor_requires_grad(taken[k])) continue;
        of[count] = k;
        in[count++] = taken[k];
    }
    Node *node = count ? node_new(g, &post_rule, in, count, 0) : NULL;
    if (!node) return;
    node->number[0] = (int64_t)(intptr_t)u;
    for (int k = 0; k < count; k++) {
        Tensor *x = in[k], *y = tensor_view(g, x, x->size, x->stride);
        node_output(g, node, y);
        tensor_set(g, &taken[of[k]], y);
    }
}

void fsdp_before(Eager *g, FsdpUnit *u, Tensor *const *in, int n, Tensor **taken) {
    Fsdp *f = g->fsdp;
    const bool again = u->backward; /* a checkpoint runs it once more */
    if (again && !u->whole) {
        all_gather(g, f, u);
        copy_out(g, f, u);
    }
    for (int k = 0; k < n; k++)
        taken[k] = f->casts && scalar_is_float(in[k]->type) ? aten_to(g, in[k], f->type) : tensor_ref(in[k]);
    if (again) return;
    if (u == f->unit && !g->grad) f->n_order = 0;
    u->state = FORWARD;
    all_gather(g, f, u);
    copy_out(g, f, u);
    if (u->n) register_post_backward(g, u, taken, n);
}

void fsdp_after(Eager *g, FsdpUnit *u, Tensor *y) {
    Fsdp *f = g->fsdp;
    if (u->backward) return;
    if (u->n) {
        if (u->reshards) reshard(g, u);
        u->place = f->n_order;
        f->order[f->n_order++] = u;
        u->state = IDLE;
    }
    node_hook(g, y, u);
    if (u != f->unit) return;
    for (int k = 0; k < g->n_more; k++) node_hook(g, g->more[k], u);
    tensor_set(g, &f->deferred, NULL);
}
