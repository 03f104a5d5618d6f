#include "onednn.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <string.h>

#include "act.h"
#include "base/mem.h"
#include "program/operands.h"

#define NOWHERE SIZE_MAX

/* arg: oneDNN's name of a slot. query, index: how oneDNN is asked for its format. output, where: its place in KArgs. */
typedef struct Slot { int arg; dnnl_query_t query; int index; bool output; int where; } Slot;

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

static const dnnl_data_type_t types[] = {[DT_F32] = dnnl_f32, [DT_BF16] = dnnl_bf16, [DT_F16] = dnnl_f16,
                                         [DT_I32] = dnnl_s32, [DT_U8] = dnnl_u8};

static const dnnl_alg_kind_t eltwise[ACT_COUNT] = { /* 0: oneDNN has none with the same parameter */
    [ACT_RELU] = dnnl_eltwise_relu, [ACT_LEAKY] = dnnl_eltwise_relu, [ACT_SIGMOID] = dnnl_eltwise_logistic,
    [ACT_TANH] = dnnl_eltwise_tanh, [ACT_GELU] = dnnl_eltwise_gelu_erf, [ACT_GELU_TANH] = dnnl_eltwise_gelu_tanh,
};

typedef struct Operand {
    const Slot *slot;
    size_t count;                     /* 0: absent */
    DType dtype;                      /* in the program */
    dnnl_memory_desc_t plain, inner;  /* the program's order, in the primitive's type; what the primitive wants */
    size_t plain_at, inner_at;        /* where their copies lie in the workspace; NOWHERE: no copy is needed */
    dnnl_memory_t plain_memory, inner_memory;
    dnnl_primitive_t reorder;
} Operand;

typedef struct Prim {
    KernelState base;
    CpuDevice *cpu;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;       /* made at the first run, since a prediction never runs and must be quick; one with
                                         an activation inside is made when it is prepared */
    dnnl_memory_t scratch;
    Operand operand[SLOTS];
    size_t workspace, scratch_at, parts_at; /* parts: the partial sums of db */
    size_t library;                   /* bytes of the workspace that another implementation might not need */
    Pass pass;
    ActAttr act_after;                /* the activation that the primitive could not take over */
    bool reference;                   /* oneDNN's plain loops */
} Prim;

const View *prim_view(const KArgs *args, Pass pass, int slot) {
    const Slot *s = &slots[pass][slot];
    assert(0 <= slot && slot < SLOTS && s->where < (s->output ? OP_OUT : OP_IN));
    return s->output ? &args->out[s->where] : &args->in[s->where];
}

dnnl_memory_desc_t prim_md(const View *v, int ndims, const int64_t *dim, const int64_t *stride) {
    dnnl_memory_desc_t md;
    if (!v->count || dnnl_memory_desc_init_by_strides(&md, ndims, dim, types[v->dtype], stride))
        memset(&md, 0, sizeof md);
    return md;
}

static int check(dnnl_status_t status, const char *what, Err *e) {
    if (!status) return OK;
    int code = status == dnnl_out_of_memory ? ERR_HOST_MEMORY : ERR_DEVICE;
    return err_set(e, code, "oneDNN could not %s: %s", what, dnnl_status2str(status));
}

/* ---- choosing an implementation */

/* Takes `bytes` of the workspace; returns their offset. */
static size_t piece(size_t *total, size_t bytes) {
    size_t at = *total;
    *total += align_up(bytes, CPU_ALIGNMENT);
    return at;
}

/* Lays the workspace out. Copies that change the type come first: every implementation needs them. */
static void prim_layout(Prim *p, const KArgs *args, Pass pass, const dnnl_memory_desc_t plain[SLOTS]) {
    p->workspace = 0;
    memset(p->operand, 0, sizeof p->operand);
    for (int k = 0; k < SLOTS; k++) {
        Operand *o = &p->operand[k];
        const View *v = prim_view(args, pass, k);
        if (!v->count) continue;
        o->slot = &slots[pass][k];
        o->count = (size_t)v->count;
        o->dtype = v->dtype;
        o->plain = plain[k];
        o->inner = *dnnl_primitive_desc_query_md(p->desc, o->slot->query, o->slot->index);
        bool convert = types[v->dtype] != plain[k].data_type;
        o->plain_at = convert ? piece(&p->workspace, dnnl_memory_desc_get_size(&o->plain)) : NOWHERE;
    }
    p->parts_at = p->workspace;
    if (pass == PASS_DATA) piece(&p->workspace, act_dx_parts(&args->out[0], &args->out[1]));
    size_t types_only = p->workspace;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    p->scratch_at = piece(&p->workspace, dnnl_memory_desc_get_size(scratch));
    for (int k = 0; k < SLOTS; k++) {
        Operand *o = &p->operand[k];
        bool reorder = o->count && !dnnl_memory_desc_equal(&o->plain, &o->inner);
        o->inner_at = reorder ? piece(&p->workspace, dnnl_memory_desc_get_size(&o->inner)) : NOWHERE;
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
        prim_layout(candidate, args, spec->pass, plain);
        bool avoided = spec->avoid && spec->avoid(args, spec->pass, name);
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
    memcpy(plain, spec->md, sizeof plain);
    for (int k = 0; k < SLOTS && ask.wide; k++)
        if (plain[k].ndims) plain[k].data_type = dnnl_f32;
    memcpy(wanted, plain, sizeof wanted);
    dnnl_memory_desc_t *w = &wanted[SLOT_W];
    if (ask.pack) dnnl_memory_desc_init_by_tag(w, w->ndims, w->dims, w->data_type, dnnl_format_tag_any);

    OpDesc desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_iterator_t it = NULL;
    Prim candidate;
    memset(&candidate, 0, sizeof candidate);
    candidate.cpu = args->device;
    candidate.pass = spec->pass;
    if (ask.after) candidate.act_after = spec->act;
    dnnl_status_t status = spec->describe(args, spec->pass, wanted, &desc);
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

static int prim_compile(Prim *p, Err *e) {
    return p->primitive ? OK : check(dnnl_primitive_create(&p->primitive, p->desc), "compile a primitive", e);
}

static void prim_release(void *state) {
    Prim *p = state;
    for (int k = 0; k < SLOTS; k++) {
        Operand *o = &p->operand[k];
        if (o->reorder) dnnl_primitive_destroy(o->reorder);
        if (o->plain_memory) dnnl_memory_destroy(o->plain_memory);
        if (o->inner_memory) dnnl_memory_destroy(o->inner_memory);
    }
    if (p->scratch) dnnl_memory_destroy(p->scratch);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    dnnl_primitive_desc_destroy(p->desc);
    mem_free(p);
}

int prim_prepare(const KArgs *args, const PrimSpec *spec, size_t limit, void **state, size_t *workspace, Err *e) {
    assert(args->device && spec->describe);
    assert(spec->md[SLOT_X].ndims && spec->md[SLOT_W].ndims && spec->md[SLOT_Y].ndims);
    Prim best;
    memset(&best, 0, sizeof best);
    dnnl_status_t failure = dnnl_success;
    bool narrow = false;
    int code = check_rows(spec, e);
    if (code) return code;
    for (int k = 0; k < SLOTS; k++) narrow |= spec->md[k].ndims && spec->md[k].data_type != dnnl_f32;
    for (int way = 0; way < 8 && !prim_good(&best, limit); way++) {
        Ask ask = {.after = way & 4, .wide = way & 2, .pack = !(way & 1)};
        if (ask.wide && best.desc && !best.reference) continue; /* fp32 would need copies and compute slower */
        if (!ask.after && spec->act.act && !act_fits_inside(spec)) continue;
        if ((ask.after && !spec->act.act) || (ask.wide && !narrow) || (ask.pack && !spec->pack_weights)) continue;
        dnnl_status_t status = ask_once(args, spec, ask, limit, &best);
        if (status) failure = status;
    }
    if (!best.desc) return check(failure ? failure : dnnl_unimplemented, "prepare", e);
    Prim *p = mem_copy(&best, sizeof best);
    if (!p) {
        dnnl_primitive_desc_destroy(best.desc);
        return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *p);
    }
    /* oneDNN 2.6 may have taken the descriptor from a primitive in its cache. Such a one points to the activation of the
     * descriptor that the primitive was made of, which is freed since; that is not read while the primitive is there. */
    if (spec->act.act && !p->act_after.act && (code = prim_compile(p, e))) return prim_release(p), code;
    p->base.release = prim_release;
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
    dnnl_status_t status = dnnl_memory_create(&o->inner_memory, &o->inner, engine, DNNL_MEMORY_NONE);
    if (!status && o->inner_at != NOWHERE) {
        const dnnl_memory_desc_t *from = o->slot->output ? &o->inner : &o->plain;
        const dnnl_memory_desc_t *to = o->slot->output ? &o->plain : &o->inner;
        dnnl_primitive_desc_t desc = NULL;
        status = dnnl_memory_create(&o->plain_memory, &o->plain, engine, DNNL_MEMORY_NONE);
        if (!status) status = dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, NULL);
        if (!status) status = dnnl_primitive_create(&o->reorder, desc);
        if (desc) dnnl_primitive_desc_destroy(desc);
    }
    return check(status, "make an operand", e);
}

/* If one part fails, those made before it stay in *p; prim_release frees them. */
static int prim_open(Prim *p, Err *e) {
    dnnl_engine_t engine = p->cpu->engine;
    for (int k = 0; k < SLOTS; k++) {
        Operand *o = &p->operand[k];
        if (!o->count || o->inner_memory) continue;
        int code = operand_open(o, engine, e);
        if (code) return code;
    }
    int code = prim_compile(p, e);
    if (code) return code;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    return check(dnnl_memory_create(&p->scratch, scratch, engine, DNNL_MEMORY_NONE), "make the scratch", e);
}

static void convert(DType from, const void *source, DType to, void *target, size_t count) {
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++) dtype_store(to, target, i, dtype_load(from, source, i));
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

static dnnl_status_t operand_reorder(Operand *o, dnnl_stream_t stream) {
    if (!o->reorder) return dnnl_success;
    bool out = o->slot->output;
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, out ? o->inner_memory : o->plain_memory},
                              {DNNL_ARG_TO, out ? o->plain_memory : o->inner_memory}};
    return dnnl_primitive_execute(o->reorder, stream, 2, args);
}

/* Points the operand's memories at its data and at its copies; fills an input's copies. */
static dnnl_status_t operand_enter(Operand *o, const KArgs *args, dnnl_stream_t stream) {
    void *data = o->slot->output ? args->out[o->slot->where].data : args->in[o->slot->where].data;
    char *workspace = args->workspace;
    void *plain = o->plain_at == NOWHERE ? data : workspace + o->plain_at;
    void *inner = o->inner_at == NOWHERE ? plain : workspace + o->inner_at;
    dnnl_status_t status = dnnl_memory_set_data_handle(o->inner_memory, inner);
    if (!status && o->plain_memory) status = dnnl_memory_set_data_handle(o->plain_memory, plain);
    if (status || o->slot->output) return status;
    if (plain != data) convert(o->dtype, data, DT_F32, plain, o->count);
    return operand_reorder(o, stream);
}

static dnnl_status_t operand_leave(Operand *o, const KArgs *args, dnnl_stream_t stream) {
    if (!o->slot->output) return dnnl_success;
    dnnl_status_t status = operand_reorder(o, stream);
    if (!status && o->plain_at != NOWHERE)
        convert(DT_F32, (char *)args->workspace + o->plain_at, o->dtype, args->out[o->slot->where].data, o->count);
    return status;
}

static dnnl_status_t prim_execute(Prim *p, const KArgs *args) {
    dnnl_exec_arg_t list[SLOTS + 1];
    dnnl_stream_t stream = p->cpu->stream;
    dnnl_status_t status = dnnl_memory_set_data_handle(p->scratch, (char *)args->workspace + p->scratch_at);
    int n = 0;
    list[n++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, p->scratch};
    for (int k = 0; k < SLOTS; k++) {
        if (!p->operand[k].count) continue;
        if (!status) status = operand_enter(&p->operand[k], args, stream);
        list[n++] = (dnnl_exec_arg_t){p->operand[k].slot->arg, p->operand[k].inner_memory};
    }
    if (!status && bits_of(p, args)) act_bits(&p->act_after, &args->in[2], bits_of(p, args));
    if (!status) status = dnnl_primitive_execute(p->primitive, stream, n, list);
    if (!status) status = dnnl_stream_wait(stream);
    if (!status && p->act_after.act && activate(p, args, NULL)) return dnnl_runtime_error;
    for (int k = 0; k < SLOTS && !status; k++) /* an activation has written its operand already */
        if (p->operand[k].count && !(p->act_after.act && k == result_slot(p)))
            status = operand_leave(&p->operand[k], args, stream);
    return status;
}

int prim_run(const KArgs *args, Err *e) {
    Prim *p = args->state;
    if (!p) return err_set(e, ERR_INTERNAL, "run without a prepared state");
    const size_t needed = p->workspace + (bits_of(p, args) ? act_bits_bytes(&args->in[2]) : 0);
    if (args->workspace_bytes < needed)
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", needed, args->workspace_bytes);
    if (!p->scratch) {
        int code = prim_open(p, e);
        if (code) return code;
    }
    return check(prim_execute(p, args), "run", e);
}
