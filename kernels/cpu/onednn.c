#include "onednn.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <string.h>

#include "act.h"
#include "base/mem.h"
#include "fp32_workspace.h"
#include "parallel.h"
#include "program/operands.h"
#include "split.h"

#define NOWHERE SIZE_MAX

/* arg: oneDNN's name of a slot. query, index: how oneDNN is asked for its format. output, where: its place in KArgs. */
typedef struct Slot { int arg; dnnl_query_t query; int index; bool output; int where; } Slot;

/* Of convolutions */
static const Slot slots[][SLOTS] = {
    [PASS_FORWARD] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, false, 0},
                      {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, false, 1},
                      {DNNL_ARG_BIAS, dnnl_query_weights_md, 1, false, 2},
                      {DNNL_ARG_DST, dnnl_query_dst_md, 0, true, 0}},
    [PASS_DATA] = {{DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0, true, 0},
                   {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, false, 1},
                   {0, dnnl_query_undef, 0, false, 3}, /* dx has no bias; it has three inputs, so this one is absent */
                   {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0, false, 0}},
    [PASS_WEIGHTS] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, false, 0},
                      {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0, true, 0},
                      {DNNL_ARG_DIFF_BIAS, dnnl_query_diff_weights_md, 1, true, 1},
                      {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0, false, 1}},
};

/* Of products: src (m, k) times weights (k, n) is dst (m, n), in every pass */
static const Slot product_slots[][SLOTS] = {
    [PASS_FORWARD] = {{DNNL_ARG_SRC, dnnl_query_src_md, 0, false, 0},
                      {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, false, 1},
                      {DNNL_ARG_BIAS, dnnl_query_weights_md, 1, false, 2},
                      {DNNL_ARG_DST, dnnl_query_dst_md, 0, true, 0}},
    [PASS_DATA] = {{DNNL_ARG_DST, dnnl_query_dst_md, 0, true, 0},
                   {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, false, 1},
                   {0, dnnl_query_undef, 0, false, 3},
                   {DNNL_ARG_SRC, dnnl_query_src_md, 0, false, 0}},
    [PASS_WEIGHTS] = {{DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, false, 0},
                      {DNNL_ARG_DST, dnnl_query_dst_md, 0, true, 0},
                      {0, dnnl_query_undef, 0, true, 1}, /* db is no product */
                      {DNNL_ARG_SRC, dnnl_query_src_md, 0, false, 1}},
};

static const dnnl_data_type_t types[] = {[DT_F32] = dnnl_f32, [DT_BF16] = dnnl_bf16, [DT_F16] = dnnl_f16};

static const dnnl_alg_kind_t eltwise[ACT_COUNT] = { /* 0: oneDNN has none with the same parameter */
    [ACT_RELU] = dnnl_eltwise_relu, [ACT_LEAKY] = dnnl_eltwise_relu, [ACT_SIGMOID] = dnnl_eltwise_logistic,
    [ACT_TANH] = dnnl_eltwise_tanh, [ACT_GELU] = dnnl_eltwise_gelu_erf, [ACT_GELU_TANH] = dnnl_eltwise_gelu_tanh,
};

/* plain: all of it, in the program's order and the primitive's type; cut: a piece of that, where it lies; inner: a piece
 * as the primitive wants it */
typedef struct Operand {
    const Slot *slot;                 /* NULL: absent */
    dnnl_memory_desc_t plain, cut, inner;
    size_t part_step, slice_step;     /* bytes in `plain` from a piece to that of the next part, of the next slice */
    size_t plain_at, inner_at;        /* where the copies of all and of all slices lie in the workspace; NOWHERE: no copy is needed */
    size_t own_at;                    /* where a thread's copy of a piece lies in what is its own; NOWHERE: it has none */
    dnnl_primitive_t reorder;
} Operand;

typedef struct Prim {
    CpuState base;
    CpuDevice *cpu;
    dnnl_primitive_desc_t desc;       /* of a piece */
    dnnl_primitive_t primitive;       /* made at the first run, since a prediction never runs and must be quick; one with
                                         an activation inside is made when it is prepared */
    Split split;
    Operand operand[SLOTS];
    size_t workspace, parts_at;       /* parts: the partial sums of db */
    size_t own_at, own;               /* what is thread 0's own, which begins with the scratchpad; bytes of each thread's */
    int threads;                      /* that there is room for */
    size_t library;                   /* bytes of the workspace that another implementation might not need, with one thread */
    Pass pass;
    bool product;                     /* see PrimSpec */
    ActAttr act_after;                /* the activation that the primitive could not take over */
    bool opened;                      /* all that runs are made of is there */
    bool reference;                   /* oneDNN's plain loops */
} Prim;

const View *prim_view(const KArgs *args, int slot) {
    assert(0 <= slot && slot < SLOTS);
    const Slot *s = &slots[pass_of(args)][slot];
    assert(s->where < (s->output ? OP_OUT : OP_IN));
    return s->output ? &args->out[s->where] : &args->in[s->where];
}

dnnl_memory_desc_t prim_md(const View *v, int ndims, const int64_t *dim, const int64_t *stride) {
    dnnl_memory_desc_t md;
    assert(operand_is_float(v));
    if (!v->count || dnnl_memory_desc_init_by_strides(&md, ndims, dim, types[v->dtype], stride))
        memset(&md, 0, sizeof md);
    return md;
}

static int check(dnnl_status_t status, const char *what, Err *e) {
    if (!status) return OK;
    int code = status == dnnl_out_of_memory ? ERR_HOST_MEMORY : ERR_DEVICE;
    return err_set(e, code, "oneDNN could not %s: %s", what, dnnl_status2str(status));
}

/* ---- pieces */

/* The slot whose channels are cut into slices, beside those of the weights and the bias: it is that of the result, or of
 * what comes back through it. */
static int sliced_slot(Pass pass) { return pass == PASS_DATA ? SLOT_X : SLOT_Y; }

/* Which dimension of an operand its parts divide, and which its slices; -1: none */
typedef struct Cuts { int part, slice; } Cuts;

static Cuts cuts_of(bool product, Pass pass, int k) {
    if (product)
        switch (product_slots[pass][k].arg) {
        case DNNL_ARG_SRC: return (Cuts){0, -1};
        case DNNL_ARG_DST: return (Cuts){0, 1};
        default: return (Cuts){-1, 1};
        }
    switch (k) {
    case SLOT_W: return (Cuts){-1, pass == PASS_DATA ? 1 : 0};
    case SLOT_B: return (Cuts){-1, 0};
    default: return (Cuts){0, k == sliced_slot(pass) ? 1 : -1};
    }
}

/* Does a thread copy its slices of the operand? A product takes them where they lie. */
static bool is_copied(const Split *s, bool product, Pass pass, int k) {
    return !product && s->slices > 1 && k == sliced_slot(pass);
}

static size_t type_bytes(dnnl_data_type_t t) { return t == dnnl_f32 ? 4 : 2; }

static int64_t step_of(const dnnl_memory_desc_t *md, int d) { return md->format_desc.blocking.strides[d]; }

/* A piece of `all`, where it lies */
static dnnl_memory_desc_t cut_md(const dnnl_memory_desc_t *all, const Split *s, Cuts cuts) {
    dnnl_memory_desc_t md = *all;
    int64_t dim[DNNL_MAX_NDIMS];
    if (!all->ndims) return md;
    memcpy(dim, all->dims, sizeof dim);
    if (cuts.part >= 0) dim[cuts.part] = s->images;
    if (cuts.slice >= 0 && s->slices > 1) dim[cuts.slice] = s->channels;
    dnnl_memory_desc_init_by_strides(&md, all->ndims, dim, all->data_type, all->format_desc.blocking.strides);
    return md;
}

/* The same piece by itself: channels of an image lie together. */
static dnnl_memory_desc_t dense_md(const dnnl_memory_desc_t *cut) {
    dnnl_memory_desc_t md = *cut;
    const dnnl_dim_t *d = cut->dims;
    const dnnl_dims_t stride = {d[1] * d[2] * d[3], 1, d[3] * d[1], d[1]};
    dnnl_memory_desc_init_by_strides(&md, 4, d, cut->data_type, stride);
    return md;
}

/* What the primitive of a piece is asked to take of slot k */
static dnnl_memory_desc_t piece_md(const dnnl_memory_desc_t *all, const Prim *p, int k) {
    const dnnl_memory_desc_t cut = cut_md(all, &p->split, cuts_of(p->product, p->pass, k));
    return is_copied(&p->split, p->product, p->pass, k) ? dense_md(&cut) : cut;
}

/* May the channels of a convolution's result be cut? */
static bool can_slice(const PrimSpec *spec) {
    const dnnl_memory_desc_t *y = &spec->md[sliced_slot(spec->pass)];
    return spec->md[SLOT_W].ndims == 4 && y->ndims == 4 && step_of(y, 1) == 1;
}

static int64_t md_elements(const dnnl_memory_desc_t *md) {
    int64_t n = 1;
    for (int d = 0; d < md->ndims; d++) n *= md->dims[d];
    return n;
}

/* The operand of a product that is its `arg` */
static const dnnl_memory_desc_t *factor(const PrimSpec *spec, int arg) {
    int k = 0;
    while (product_slots[spec->pass][k].arg != arg) k++;
    return &spec->md[k];
}

static Split split_of(const PrimSpec *spec) {
    if (spec->product) {
        const dnnl_memory_desc_t *src = factor(spec, DNNL_ARG_SRC), *dst = factor(spec, DNNL_ARG_DST);
        return split_product(dst->dims[0], dst->dims[1], src->dims[1]);
    }
    const dnnl_memory_desc_t *x = &spec->md[SLOT_X], *w = &spec->md[SLOT_W], *y = &spec->md[SLOT_Y];
    const int64_t weights = md_elements(w);
    const Work work = {.images = x->dims[0], .channels = can_slice(spec) ? spec->md[sliced_slot(spec->pass)].dims[1] : 1,
                       .weights = weights, .read = md_elements(spec->pass == PASS_DATA ? y : x),
                       .macs = md_elements(y) / y->dims[1] * weights, .sums = spec->pass == PASS_WEIGHTS};
    return split_work(&work);
}

/* Are the sums of the parts added up? */
static bool is_summed(const Prim *p, int slot) {
    return !p->product && p->pass == PASS_WEIGHTS && p->split.parts > 1 && (slot == SLOT_W || slot == SLOT_B);
}

static int64_t pieces_of(const Prim *p) { return p->split.parts * p->split.slices; }

/* ---- choosing an implementation */

/* Takes `bytes` of the workspace; returns their offset. */
static size_t piece(size_t *total, size_t bytes) {
    size_t at = *total;
    *total += align_up(bytes, CPU_ALIGNMENT);
    return at;
}

/* Lays out what each thread has of its own: the scratchpad, and copies and sums of a piece. */
static void own_layout(Prim *p) {
    p->own = 0;
    piece(&p->own, dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0)));
    for (int k = 0; k < SLOTS; k++) {
        Operand *o = &p->operand[k];
        const bool copied = o->slot && (is_copied(&p->split, p->product, p->pass, k) || is_summed(p, k));
        o->own_at = copied ? piece(&p->own, dnnl_memory_desc_get_size(&o->inner)) : NOWHERE;
    }
}

/* Lays the workspace out for so many threads. Copies that change the type come first: every implementation needs them. Products need
 * little for a piece: there is room for all pieces, so that their bytes do not depend on the threads. */
static void prim_layout(Prim *p, const KArgs *args, const dnnl_memory_desc_t plain[SLOTS], int threads) {
    p->workspace = 0;
    p->threads = (int)(p->product ? pieces_of(p) : min_i64(threads, pieces_of(p)));
    memset(p->operand, 0, sizeof p->operand);
    for (int k = 0; k < SLOTS; k++) {
        Operand *o = &p->operand[k];
        const View *v = prim_view(args, k);
        const Cuts cuts = cuts_of(p->product, p->pass, k);
        const size_t bytes = type_bytes(plain[k].data_type);
        if (!v->count || !plain[k].ndims) continue;
        o->slot = p->product ? &product_slots[p->pass][k] : &slots[p->pass][k];
        o->plain = plain[k];
        o->cut = cut_md(&plain[k], &p->split, cuts);
        o->inner = *dnnl_primitive_desc_query_md(p->desc, o->slot->query, o->slot->index);
        o->part_step = cuts.part >= 0 ? (size_t)(p->split.images * step_of(&plain[k], cuts.part)) * bytes : 0;
        o->slice_step = cuts.slice >= 0 ? (size_t)(p->split.channels * step_of(&plain[k], cuts.slice)) * bytes : 0;
        bool convert = types[v->dtype] != plain[k].data_type;
        o->plain_at = convert ? piece(&p->workspace, dnnl_memory_desc_get_size(&o->plain)) : NOWHERE;
    }
    p->parts_at = p->workspace;
    if (p->pass == PASS_DATA) piece(&p->workspace, act_dx_parts(&args->out[0], &args->out[1]));
    size_t types_only = p->workspace;
    own_layout(p);
    p->own_at = piece(&p->workspace, (size_t)p->threads * p->own);
    for (int k = 0; k < SLOTS; k++) {
        Operand *o = &p->operand[k];
        bool reorder = o->slot && !is_copied(&p->split, p->product, p->pass, k) && !dnnl_memory_desc_equal(&o->cut, &o->inner);
        o->inner_at = reorder ? piece(&p->workspace, (size_t)p->split.slices * dnnl_memory_desc_get_size(&o->inner)) : NOWHERE;
    }
    p->library = p->workspace - types_only;
}

/* An implementation that is no reference loop is better; then one within the limit. Of those within it the first one is
 * best, of those beyond it the smallest. */
static bool prim_better(const Prim *p, const Prim *best, size_t limit) {
    if (!best->desc) return true;
    if (p->reference != best->reference) return best->reference;
    return best->library > limit && p->library < best->library;
}

static bool prim_good(const Prim *p, size_t limit) { return p->desc && !p->reference && p->library <= limit; }

/* One way to ask. wide: in fp32, not in the program's types; pack: the format of w is free; after: the activation
 * follows the primitive, and is not inside of it */
typedef struct Ask { bool wide, pack, after; } Ask;

/* oneDNN's ReLU turns a NaN into 0 and would hide it from the loss. Its gradients take no activation. */
static bool act_fits_inside(const PrimSpec *spec) {
    return spec->act.act != ACT_RELU && eltwise[spec->act.act] && spec->pass == PASS_FORWARD;
}

static dnnl_status_t ask_attr(const PrimSpec *spec, Ask ask, dnnl_primitive_attr_t *attr) {
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (!status) status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status || !spec->act.act || ask.after) return status;
    status = dnnl_post_ops_create(&ops);
    float alpha = spec->act.act == ACT_LEAKY ? spec->act.slope : 0.0f;
    if (!status) status = dnnl_post_ops_append_eltwise(ops, 1.0f, eltwise[spec->act.act], alpha, 0.0f);
    if (!status) status = dnnl_primitive_attr_set_post_ops(*attr, ops);
    if (ops) dnnl_post_ops_destroy(ops);
    return status;
}

static bool is_reference(const char *name) { return !strncmp(name, "ref", 3); }

/* Goes through oneDNN's implementations, fastest first, until one is good; *best is the best so far. */
static dnnl_status_t ask_iterate(dnnl_primitive_desc_iterator_t it, Prim *candidate, const KArgs *args,
                                 const PrimSpec *spec, const dnnl_memory_desc_t plain[SLOTS], size_t limit,
                                 Prim *best) {
    dnnl_status_t status = dnnl_success;
    while (!status && !prim_good(best, limit)) {
        const char *name = "";
        candidate->desc = dnnl_primitive_desc_iterator_fetch(it);
        if (!candidate->desc) return dnnl_out_of_memory;
        dnnl_primitive_desc_query(candidate->desc, dnnl_query_impl_info_str, 0, &name);
        candidate->reference = is_reference(name);
        prim_layout(candidate, args, plain, 1);
        bool avoided = spec->avoid && spec->avoid(args, name);
        if (!avoided && prim_better(candidate, best, limit)) {
            if (best->desc) dnnl_primitive_desc_destroy(best->desc);
            *best = *candidate;
        } else {
            dnnl_primitive_desc_destroy(candidate->desc);
        }
        status = dnnl_primitive_desc_iterator_next(it);
    }
    return status == dnnl_iterator_ends ? dnnl_success : status;
}

/* dnnl_unimplemented, dnnl_invalid_arguments: oneDNN cannot do the op this way. */
static dnnl_status_t ask_once(const KArgs *args, const PrimSpec *spec, Ask ask, size_t limit, Prim *best) {
    dnnl_memory_desc_t plain[SLOTS], wanted[SLOTS];
    Prim candidate;
    memcpy(plain, spec->md, sizeof plain);
    memset(&candidate, 0, sizeof candidate);
    candidate.cpu = args->device;
    candidate.pass = spec->pass;
    candidate.product = spec->product;
    if (ask.after) candidate.act_after = spec->act;
    candidate.split = best->split;
    for (int k = 0; k < SLOTS; k++) {
        if (plain[k].ndims && (ask.wide || is_summed(&candidate, k))) plain[k].data_type = dnnl_f32;
        wanted[k] = piece_md(&plain[k], &candidate, k);
    }
    dnnl_memory_desc_t *w = &wanted[SLOT_W];
    if (ask.pack) dnnl_memory_desc_init_by_tag(w, w->ndims, w->dims, w->data_type, dnnl_format_tag_any);

    OpDesc desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_iterator_t it = NULL;
    dnnl_status_t status = spec->describe(args, wanted, &desc);
    if (!status) status = ask_attr(spec, ask, &attr);
    /* on a CPU the backward passes need no forward hint; making one would double the time of a prediction */
    if (!status) status = dnnl_primitive_desc_iterator_create(&it, &desc, attr, candidate.cpu->engine, NULL);
    if (!status) status = ask_iterate(it, &candidate, args, spec, plain, limit, best);
    if (it) dnnl_primitive_desc_iterator_destroy(it);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

bool prim_computes(dnnl_engine_t engine, DType t) {
    enum { N = 64 };
    const char *name = "ref";
    dnnl_inner_product_desc_t desc;
    dnnl_memory_desc_t md;
    dnnl_primitive_desc_t found = NULL;
    dnnl_status_t status = dnnl_memory_desc_init_by_strides(&md, 2, (dnnl_dims_t){N, N}, types[t], (dnnl_dims_t){N, 1});
    if (!status)
        status = dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_training, &md, &md, NULL, &md);
    if (!status) status = dnnl_primitive_desc_create(&found, &desc, NULL, engine, NULL);
    if (status) return false;
    dnnl_primitive_desc_query(found, dnnl_query_impl_info_str, 0, &name);
    bool computes = !is_reference(name);
    dnnl_primitive_desc_destroy(found);
    return computes;
}

/* oneDNN counts an operand's rows (all dimensions but the channels) in 32 bits: with more of them it divides by zero. */
static int check_rows(const PrimSpec *spec, Err *e) {
    static const int batched[] = {SLOT_X, SLOT_Y};
    for (size_t k = 0; k < ARRAY_LEN(batched); k++) {
        const dnnl_memory_desc_t *md = &spec->md[batched[k]];
        double rows = 1;
        for (int d = 0; d < md->ndims; d++) rows *= d == 1 ? 1 : (double)md->dims[d];
        if (rows > INT32_MAX)
            return err_set(e, ERR_DEVICE, "oneDNN takes at most %d rows of channels, found %.0f: too large a batch",
                           INT32_MAX, rows);
    }
    return OK;
}

/* oneDNN makes a primitive for the number of threads that OpenMP has at that moment. */
static int prim_compile(Prim *p, Err *e) {
    if (p->primitive) return OK;
    const int threads = threads_take(1);
    const dnnl_status_t status = dnnl_primitive_create(&p->primitive, p->desc);
    threads_back(threads);
    return check(status, "compile a primitive", e);
}

static void prim_release(void *state) {
    Prim *p = state;
    for (int k = 0; k < SLOTS; k++)
        if (p->operand[k].reorder) dnnl_primitive_destroy(p->operand[k].reorder);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    dnnl_primitive_desc_destroy(p->desc);
    mem_free(p);
}

/* Goes through the ways to ask until one is good. Returns why the last one that could not be asked could not. */
static dnnl_status_t ask_all(const KArgs *args, const PrimSpec *spec, size_t limit, Prim *best) {
    dnnl_status_t failure = dnnl_success;
    bool narrow = false;
    for (int k = 0; k < SLOTS; k++) narrow |= spec->md[k].ndims && spec->md[k].data_type != dnnl_f32;
    for (int way = 0; way < 8 && !prim_good(best, limit); way++) {
        Ask ask = {.after = way & 4, .wide = way & 2, .pack = !(way & 1)};
        if (ask.wide && best->desc && !best->reference) continue; /* fp32 would need copies and compute slower */
        if (!ask.after && spec->act.act && !act_fits_inside(spec)) continue;
        if ((ask.after && !spec->act.act) || (ask.wide && !narrow) || (ask.pack && !spec->pack_weights)) continue;
        dnnl_status_t status = ask_once(args, spec, ask, limit, best);
        if (status) failure = status;
    }
    return failure;
}

int prim_prepare(const KArgs *args, const PrimSpec *spec, size_t limit, void **state, size_t *workspace, Err *e) {
    assert(args->device && spec->describe && spec->pass == pass_of(args));
    assert(spec->md[SLOT_X].ndims && spec->md[SLOT_W].ndims && spec->md[SLOT_Y].ndims);
    Prim best;
    memset(&best, 0, sizeof best);
    int code = check_rows(spec, e);
    if (code) return code;
    best.split = split_of(spec);
    best.product = spec->product;
    const int threads = threads_take(1);
    const dnnl_status_t failure = ask_all(args, spec, limit, &best);
    threads_back(threads);
    if (!best.desc) return check(failure ? failure : dnnl_unimplemented, "prepare", e);
    dnnl_memory_desc_t plain[SLOTS];
    for (int k = 0; k < SLOTS; k++) plain[k] = best.operand[k].plain;
    prim_layout(&best, args, plain, best.cpu->threads);
    Prim *p = mem_copy(&best, sizeof best);
    if (!p) {
        dnnl_primitive_desc_destroy(best.desc);
        return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *p);
    }
    /* oneDNN 2.6 may have taken the descriptor from a primitive in its cache. Such a one points to the activation of the
     * descriptor that the primitive was made of, which is freed since; that is not read while the primitive is there. */
    if (spec->act.act && !p->act_after.act && (code = prim_compile(p, e))) return prim_release(p), code;
    p->base = (CpuState){{prim_release}, true};
    *state = p;
    *workspace = p->workspace;
    return OK;
}

/* ---- dx in the storage of s */

/* Does the primitive write its product where dx lies? */
static bool writes_result(const Prim *p) { return p->operand[SLOT_X].plain_at == NOWHERE; }

bool prim_overwrites(const KArgs *args, size_t *more) {
    const Prim *p = args->state;
    assert(p->pass == PASS_DATA && p->act_after.act);
    *more = writes_result(p) ? act_bits_bytes(&args->in[2]) : 0;
    return !writes_result(p) || act_has_bits(&p->act_after);
}

/* Where the slopes are kept as bits while the product lies in the storage of s; NULL: s can be read after the product. */
static void *bits_of(const Prim *p, const KArgs *args) {
    const bool over = p->pass == PASS_DATA && p->act_after.act && writes_result(p) && args->in[2].data == args->out[0].data;
    return over ? (char *)args->workspace + p->workspace : NULL;
}

/* ---- running it */

static int operand_open(Operand *o, dnnl_engine_t engine, Err *e) {
    const dnnl_memory_desc_t *from = o->slot->output ? &o->inner : &o->cut, *to = o->slot->output ? &o->cut : &o->inner;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, NULL);
    if (!status) status = dnnl_primitive_create(&o->reorder, desc);
    if (desc) dnnl_primitive_desc_destroy(desc);
    return check(status, "make a copy of an operand", e);
}

/* If one part fails, those made before it stay in *p; prim_release frees them. */
static int prim_open(Prim *p, Err *e) {
    for (int k = 0; k < SLOTS; k++) {
        Operand *o = &p->operand[k];
        const int code = o->inner_at == NOWHERE || o->reorder || !o->slot ? OK : operand_open(o, p->cpu->engine, e);
        if (code) return code;
    }
    return prim_compile(p, e);
}

/* The slot of the operand that the activation is applied to. */
static int result_slot(const Prim *p) { return p->pass == PASS_DATA ? SLOT_X : SLOT_Y; }

/* Applies the activation, or its gradient, to what the primitive has written, and rounds the result into the operand. */
static int activate(const Prim *p, const KArgs *args, Err *e) {
    const Operand *o = &p->operand[result_slot(p)];
    Attr attr = {.act = p->act_after};
    KArgs act = {.kind = OP_act, .attr = &attr};
    act.in[0] = act.out[0] = args->out[0];
    if (o->plain_at != NOWHERE) {
        act.in[0].data = (char *)args->workspace + o->plain_at;
        act.in[0].dtype = DT_F32;
    }
    if (p->pass == PASS_FORWARD) return k_cpu_act(&act, e);
    void *parts = (char *)args->workspace + p->parts_at;
    act_dx_sums(&attr.act, &act.in[0], &args->in[2], bits_of(p, args), &args->out[0], &args->out[1], parts);
    return OK;
}

/* Where the whole operand lies in the primitive's type */
static char *plain_of(const Operand *o, const KArgs *args) {
    if (o->plain_at != NOWHERE) return (char *)args->workspace + o->plain_at;
    return o->slot->output ? args->out[o->slot->where].data : args->in[o->slot->where].data;
}

/* Where the piece of a part and a slice lies, for the primitive, unless a thread has it */
static char *piece_of(const Operand *o, const KArgs *args, int64_t part, int64_t slice) {
    if (o->inner_at != NOWHERE)
        return (char *)args->workspace + o->inner_at + (size_t)slice * dnnl_memory_desc_get_size(&o->inner);
    return plain_of(o, args) + (size_t)part * o->part_step + (size_t)slice * o->slice_step;
}

/* Slice by slice, by all threads: nothing is added up. */
static dnnl_status_t operand_reorder(const Prim *p, const Operand *o, const KArgs *args) {
    dnnl_status_t status = dnnl_success;
    for (int64_t s = 0; s < p->split.slices && o->reorder && !status; s++) {
        char *cut = plain_of(o, args) + (size_t)s * o->slice_step;
        dnnl_memory_t from = NULL, to = NULL;
        status = dnnl_memory_create(&from, &o->cut, p->cpu->engine, cut);
        if (!status) status = dnnl_memory_create(&to, &o->inner, p->cpu->engine, piece_of(o, args, 0, s));
        const dnnl_exec_arg_t list[] = {{DNNL_ARG_FROM, o->slot->output ? to : from}, {DNNL_ARG_TO, o->slot->output ? from : to}};
        if (!status) status = dnnl_primitive_execute(o->reorder, p->cpu->stream, ARRAY_LEN(list), list);
        if (from) dnnl_memory_destroy(from);
        if (to) dnnl_memory_destroy(to);
    }
    return status;
}

/* Fills an input's copies. */
static dnnl_status_t operand_enter(const Prim *p, const Operand *o, const KArgs *args) {
    if (o->slot->output) return dnnl_success;
    if (o->plain_at != NOWHERE) fp32_widen(&args->in[o->slot->where], (float *)(void *)plain_of(o, args));
    return operand_reorder(p, o, args);
}

static dnnl_status_t operand_leave(const Prim *p, const Operand *o, const KArgs *args) {
    if (!o->slot->output) return dnnl_success;
    const dnnl_status_t status = operand_reorder(p, o, args);
    if (!status && o->plain_at != NOWHERE) fp32_round((const float *)(void *)plain_of(o, args), &args->out[o->slot->where]);
    return status;
}

static char *own_of(const Prim *p, const KArgs *args, int64_t thread) {
    return (char *)args->workspace + p->own_at + (size_t)thread * p->own;
}

/* Copies a piece of an image, pixel by pixel, to `own` or from it. */
static void copy_channels(const Operand *o, char *cut, char *own, bool to_own) {
    const size_t bytes = (size_t)o->cut.dims[1] * type_bytes(o->cut.data_type);
    const size_t step = (size_t)step_of(&o->cut, 3) * type_bytes(o->cut.data_type);
    const int64_t pixels = o->cut.dims[0] * o->cut.dims[2] * o->cut.dims[3];
    for (int64_t i = 0; i < pixels; i++, cut += step, own += bytes) memcpy(to_own ? own : cut, to_own ? cut : own, bytes);
}

/* One piece, by the calling thread, with what is its own; its sums are left there. */
static dnnl_status_t run_piece(const Prim *p, const KArgs *args, int64_t number, char *own) {
    const int64_t part = number % p->split.parts, slice = number / p->split.parts;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    dnnl_exec_arg_t list[SLOTS + 1];
    dnnl_stream_t stream = NULL;
    int n = 0;
    dnnl_status_t status = dnnl_stream_create(&stream, p->cpu->engine, dnnl_stream_in_order);
    for (int k = 0; k < SLOTS && !status; k++) {
        const Operand *o = &p->operand[k];
        if (!o->slot) continue;
        char *cut = piece_of(o, args, part, slice), *at = o->own_at == NOWHERE ? cut : own + o->own_at;
        if (at != cut && !o->slot->output) copy_channels(o, cut, at, true);
        list[n].arg = o->slot->arg;
        status = dnnl_memory_create(&list[n].memory, &o->inner, p->cpu->engine, at);
        n += !status;
    }
    list[n].arg = DNNL_ARG_SCRATCHPAD;
    if (!status) status = dnnl_memory_create(&list[n].memory, scratch, p->cpu->engine, own);
    n += !status;
    if (!status) status = dnnl_primitive_execute(p->primitive, stream, n, list);
    if (!status) status = dnnl_stream_wait(stream);
    for (int k = 0; k < n; k++) dnnl_memory_destroy(list[k].memory);
    if (stream) dnnl_stream_destroy(stream);
    const Operand *y = &p->operand[sliced_slot(p->pass)];
    if (y->own_at != NOWHERE && y->slot->output) copy_channels(y, piece_of(y, args, part, slice), own + y->own_at, false);
    return status;
}

/* total[i] += part[i], or the first part itself; by chunks, which the calling team shares */
static void add_sums(float *total, const float *part, int64_t n, bool first) {
#pragma omp for simd schedule(static)
    for (int64_t i = 0; i < n; i++) total[i] = first ? part[i] : total[i] + part[i];
}

/* Adds the sums of pieces [begin, end), which the threads have, to those of the pieces before them, in their order. */
static void add_pieces(const Prim *p, const KArgs *args, int64_t begin, int64_t end) {
    for (int k = 0; k < SLOTS; k++) {
        const Operand *o = &p->operand[k];
        if (!o->slot || !is_summed(p, k)) continue;
        for (int64_t i = begin; i < end; i++) {
            const char *own = own_of(p, args, i - begin) + o->own_at;
            add_sums((float *)(void *)piece_of(o, args, 0, i / p->split.parts), (const float *)(const void *)own,
                     (int64_t)(dnnl_memory_desc_get_size(&o->inner) / sizeof(float)), i % p->split.parts == 0);
        }
    }
}

/* As many pieces at a time as there are threads, where their sums are added up; else each thread takes the next one. */
static dnnl_status_t run_pieces(const Prim *p, const KArgs *args) {
    const int64_t pieces = pieces_of(p);
    const bool summed = is_summed(p, SLOT_W);
    const int threads = threads_within(p->threads);
    int status = 0;
#pragma omp parallel num_threads(threads)
    {
        const int64_t team = omp_get_num_threads(), turn = summed ? team : pieces;
        omp_set_num_threads(1); /* of this thread, in this region */
        for (int64_t begin = 0; begin < pieces; begin += turn) {
            const int64_t end = min_i64(begin + turn, pieces);
#pragma omp for schedule(static) reduction(| : status)
            for (int64_t i = begin; i < end; i++)
                status |= (int)run_piece(p, args, i, own_of(p, args, summed ? i - begin : omp_get_thread_num()));
            if (summed) add_pieces(p, args, begin, end);
        }
    }
    return (dnnl_status_t)status;
}

static dnnl_status_t prim_execute(const Prim *p, const KArgs *args) {
    dnnl_status_t status = dnnl_success;
    for (int k = 0; k < SLOTS && !status; k++)
        if (p->operand[k].slot) status = operand_enter(p, &p->operand[k], args);
    if (!status && bits_of(p, args)) act_bits(&p->act_after, &args->in[2], bits_of(p, args));
    if (!status) status = run_pieces(p, args);
    if (!status && p->act_after.act && activate(p, args, NULL)) return dnnl_runtime_error;
    for (int k = 0; k < SLOTS && !status; k++) /* an activation has written its operand already */
        if (p->operand[k].slot && !(p->act_after.act && k == result_slot(p)))
            status = operand_leave(p, &p->operand[k], args);
    return status;
}

int prim_run(const KArgs *args, Err *e) {
    Prim *p = args->state;
    if (!p) return err_set(e, ERR_INTERNAL, "run without a prepared state");
    const size_t needed = p->workspace + (bits_of(p, args) ? act_bits_bytes(&args->in[2]) : 0);
    if (args->workspace_bytes < needed)
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", needed, args->workspace_bytes);
    const int code = p->primitive && p->opened ? OK : prim_open(p, e);
    if (code) return code;
    p->opened = true;
    return check(prim_execute(p, args), "run", e);
}
