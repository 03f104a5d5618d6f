/* attention_choose.c: what tune.c wants to know of attention and its gradient: own kernels, which come first, or an engine of
 * cuDNN (attention_cudnn.h), which only a race or a pick takes. All engines are compiled at run time. lse means the same in
 * all ways, so that the op and its gradient are chosen each by itself. */
#include <stdio.h>
#include <string.h>

#include "attention_cudnn.h"
#include "attention_own.h"
#include "engines.h"
#include "base/mem.h"
#include "plan_cache.h"
#include "tune.h"

enum { RACERS = 12 }; /* engines of a ranking that are timed */

static const char *const own = "own", *const by_cudnn = "cudnn";

static void release(void *state) {
    AttentionState *s = state;
    if (!s) return;
    node_free(&s->plan);
    mem_free(s);
}

/* ---- the op's name in picks */

static int view_text(const char *name, const View *v, char *text, int size) {
    int at = v->count ? snprintf(text, (size_t)size, " %s", name) : 0;
    for (int d = 0; d < v->shape.rank && v->count; d++)
        at += snprintf(text + at, (size_t)(size - at), "%c%lld", d ? ',' : '=', (long long)v->shape.dim[d]);
    return v->count ? at + snprintf(text + at, (size_t)(size - at), ":%s", dtype_name(v->dtype)) : at;
}

int attention_text(const KArgs *a, char text[PICK_OP], Err *e) {
    const AttentionAttr *t = &a->attr->attention;
    const AttentionOperands o = attention_operands(a);
    const struct { const char *name; const View *view; } shown[] = {
        {"q", &o.qkv[0]}, {"k", &o.qkv[1]}, {"v", &o.qkv[2]}, {"y", o.y}, {"bias", o.bias}};
    int at = snprintf(text, PICK_OP, "%s", op_info(a->kind)->name);
    for (size_t k = 0; k < ARRAY_LEN(shown); k++) at += view_text(shown[k].name, shown[k].view, text + at, PICK_OP - at);
    at += a->kind == OP_attention_dx
              ? snprintf(text + at, (size_t)(PICK_OP - at), " dy:%s dq:%s dbias=%d", dtype_name(a->attention_dx.dy.dtype),
                         dtype_name(a->attention_dx.dq.dtype), a->attention_dx.dbias.count > 0)
              : snprintf(text + at, (size_t)(PICK_OP - at), " lse=%d", o.lse->count > 0);
    at += snprintf(text + at, (size_t)(PICK_OP - at),
                   " heads=%d kv_heads=%d causal=%d batch_first=%d scale=%.9g p=%.9g window=%d cap=%.9g positions=%d", t->heads,
                   t->kv_heads, t->causal, t->batch_first, (double)t->scale, (double)t->p, t->window, (double)t->cap,
                   o.positions->count > 0);
    return at < PICK_OP ? OK : err_set(e, ERR_INTERNAL, "an op's name of %d characters", at);
}

/* ---- one candidate */

/* The whole op's workspace; SIZE_MAX: the engine may not be taken. */
static size_t needs(const Sdpa *sdpa, const Engine *engine) {
    return engine_may(engine, false) ? sdpa_before(sdpa) + engine->workspace : SIZE_MAX;
}

static int open_engine(const KArgs *a, const Sdpa *sdpa, const Engine *engine, size_t limit, AttentionState *s, Err *e) {
    CudaDevice *c = cuda_of(a);
    char op[PICK_OP];
    if (needs(sdpa, engine) > limit)
        return err_set(e, ERR_UNSUPPORTED, "the engine may not be taken within %zu bytes", limit);
    s->cudnn = true;
    s->engine_at = sdpa_before(sdpa);
    s->workspace = needs(sdpa, engine);
    int code = attention_text(a, op, e);
    return code || c->ordinal == NOT_HERE ? code : plan_open(c, op, by_cudnn, engine, &s->plan, e);
}

static int open_cudnn(const KArgs *a, const Candidate *from, AttentionState *s, Err *e) {
    Sdpa sdpa;
    Graph g;
    Engine engine = {.config = NULL};
    if (!sdpa_read(a, &sdpa)) return err_set(e, ERR_UNSUPPORTED, "%s: cuDNN cannot run it", op_info(a->kind)->name);
    if (from->handle) return open_engine(a, &sdpa, from->handle, from->limit, s, e);
    int code = sdpa_graph(cuda_of(a), &sdpa, &g, e);
    if (!code) code = engine_open(cuda_of(a), &g, &from->engine, &engine, e);
    if (!code) code = open_engine(a, &sdpa, &engine, from->limit, s, e);
    engine_close(&engine);
    graph_free(&g);
    return code;
}

static int open_candidate(const KArgs *a, Candidate *from, void **state, size_t *workspace, Err *e) {
    AttentionState *s = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = release;
    s->workspace = attention_own_workspace(a);
    int code = !strcmp(from->way, own)        ? OK
               : !strcmp(from->way, by_cudnn) ? open_cudnn(a, from, s, e)
                                              : err_set(e, ERR_UNSUPPORTED, "no way of attention: %s", from->way);
    if (code) {
        release(s);
        return code;
    }
    *state = s;
    *workspace = s->workspace;
    return OK;
}

/* ---- which there are */

static int first_choice(const KArgs *a, size_t limit, Offer *take, void *arg, Err *e) {
    Err why = {.code = OK};
    Candidate c = {.way = own, .limit = limit};
    (void)a;
    return take(arg, &c, &why) ? OK : err_set(e, why.code, "%s", why.text);
}

/* The first choice is all own kernels; here are the engines. */
static int candidates(const KArgs *a, size_t limit, const Candidate *than, Offer *compete, void *arg, Err *e) {
    CudaDevice *c = cuda_of(a);
    Engines list = {NULL};
    Sdpa sdpa;
    Graph g;
    Err why;
    bool over = false;
    int code = OK;
    (void)than;
    if (!sdpa_read(a, &sdpa)) return OK;
    if (!sdpa_graph(c, &sdpa, &g, NULL))
        for (int r = 0; r < ENGINE_RANKINGS && !code; r++) code = engines_ask(c, &g, r, RACERS, &list, e);
    for (int k = 0; k < list.n && !code && !over; k++) {
        Candidate one = {.way = by_cudnn, .engine = list.at[k].id, .limit = limit, .handle = &list.at[k]};
        over = compete(arg, &one, &why);
    }
    engines_free(&list);
    graph_free(&g);
    return code;
}

/* ---- running */

static int run_cudnn(const KArgs *a, const AttentionState *s, Err *e) {
    char *workspace = a->workspace;
    int64_t id[SDPA_IDS];
    void *data[SDPA_IDS];
    Sdpa sdpa;
    if (!s->plan || !sdpa_read(a, &sdpa)) return err_set(e, ERR_INTERNAL, "%s has no plan", op_info(a->kind)->name);
    const int n = sdpa_tensors(&sdpa, workspace, id, data);
    int code = sdpa.drops ? attention_mask(a, workspace, sdpa.type, sdpa.at[SDPA_MASK].stride[2], e) : OK;
    return code ? code : plan_run(cuda_of(a), s->plan, n, id, data, workspace + s->engine_at, e);
}

static int attention_run(const KArgs *a, Err *e) {
    const AttentionState *s = a->state;
    if (a->workspace_bytes < s->workspace)
        return err_set(e, ERR_INTERNAL, "expected %zu bytes of workspace, found %zu", s->workspace, a->workspace_bytes);
    return s->cudnn ? run_cudnn(a, s, e) : attention_own(a, e);
}

int k_cuda_attention(const KArgs *a, Err *e) { return attention_run(a, e); }
int k_cuda_attention_dx(const KArgs *a, Err *e) { return attention_run(a, e); }

static const Tunable attention = {.version = cudnnGetVersion, .text = attention_text, .first = first_choice, .candidates = candidates,
                                  .open = open_candidate, .run = attention_run};
TUNED(attention, attention)
TUNED(attention_dx, attention)
