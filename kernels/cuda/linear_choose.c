/* linear_choose.c: what tune.c wants to know of linear layers. The first choice are own kernels if there are few outputs,
 * since memory then sets the pace and a library's tiles would be mostly empty; else the library's first algorithm.
 *
 * The library answers only where there is a GPU. So the workspace follows from shapes, or from the pick: it is the
 * same with and without a GPU. */
#include <stdio.h>
#include <string.h>

#include "bias.h"
#include "linear.h"
#include "small_n_gemm.h"
#include "tune.h"
#include "base/mem.h"
#include "program/product.h"

/* Rows are taken in multiples of it, so that each part starts at a 16-byte word. */
enum { ROWS = 8 };

/* ---- the workspace */

static size_t db_bytes(const KArgs *a, size_t limit) {
    const View *of = a->kind == OP_linear_dx ? &a->linear_dx.dx : &a->linear_dw.dy, *db = &a->linear_dx.db;
    return a->kind != OP_linear && db->count ? bias_workspace(of->count / db->count, db->count, limit) : 0;
}

/* Sets the product and what comes before it, within `room` bytes. s->way becomes PLAIN where FUSED would do the same. */
static void place(const KArgs *a, LinearWay way, size_t room, LinearState *s) {
    Gemm *g = &s->gemm;
    *g = linear_gemm(a);
    if (way == LINEAR_PLAIN || linear_copy(a, g->epilogue) > room) g->epilogue = GEMM_PLAIN;
    size_t row = (size_t)g->n * sizeof(float);
    int64_t rows = (int64_t)(room / CUDA_ALIGNMENT * CUDA_ALIGNMENT / row);
    rows = rows < g->m ? rows / ROWS * ROWS : g->m;
    s->wide = a->kind == OP_linear && linear_leaves(a, g->epilogue) && g->out != DT_F32 && rows > 0;
    if (s->wide) {
        g->epilogue = GEMM_PLAIN;
        g->out = DT_F32;
        g->m = rows;
    }
    s->before = s->wide ? align_up((size_t)rows * row, CUDA_ALIGNMENT) : linear_copy(a, g->epilogue);
    s->way = g->epilogue ? LINEAR_FUSED : LINEAR_PLAIN;
}

/* The whole op's workspace if the placed product takes `bytes`; the sum of db runs after the product, in the same bytes. */
static size_t whole(const KArgs *a, const LinearState *s, size_t bytes, size_t limit) {
    return max_size(s->before + bytes, db_bytes(a, limit));
}

/* ---- one candidate */

static void close_plans(LinearState *s) {
    gemm_close(s->plan);
    gemm_close(s->rest);
    s->plan = s->rest = NULL;
}

static void state_release(void *state) {
    if (state) close_plans(state);
    mem_free(state);
}

static bool fits_small_n(const KArgs *a) { return cuda_small_n_fits(product_operands(a).w); }

static int types_check(const KArgs *a, const Gemm *g, Err *e) {
    const View *other = a->kind == OP_linear_dw ? &a->linear_dw.x : &a->linear.w;
    if (other->dtype == g->in && (g->out == g->in || g->out == DT_F32)) return OK;
    return err_set(e, ERR_UNSUPPORTED, "%s: a product of %s and %s with a result in %s: the GPU wants operands of one "
                   "type, and the result in it or in f32", op_info(a->kind)->name, dtype_name(g->in),
                   dtype_name(other->dtype), dtype_name(g->out));
}

/* Opens the plans of a placed product within `bytes`, with the algorithm `id` (NULL: the library's first). The rows that
 * are left at the end use the library's first algorithm. A device that is not here has no plans. */
static int open_plans(const KArgs *a, const EngineId *id, size_t bytes, LinearState *s, Err *e) {
    CudaDevice *c = cuda_of(a);
    const Gemm *g = &s->gemm;
    Gemm rest = *g;
    if (c->ordinal == NOT_HERE) return OK;
    rest.m = s->wide ? (a->linear.y.count / rest.n) % rest.m : 0;
    int code = gemm_open(c, g, id, bytes, &s->plan, e);
    if (!code && s->plan && rest.m) code = gemm_open(c, &rest, NULL, bytes, &s->rest, e);
    if (code || (s->plan && (s->rest || !rest.m))) return code;
    return err_set(e, ERR_UNSUPPORTED, "%s: no algorithm for a product (%lld, %lld, %lld) of %s within %zu bytes",
                   op_info(a->kind)->name, (long long)g->m, (long long)g->n, (long long)g->k, dtype_name(g->in), bytes);
}

static bool way_named(const char *name, LinearWay *way) {
    for (int k = 0; k < LINEAR_WAYS; k++) {
        *way = (LinearWay)k;
        if (!strcmp(linear_ways[k], name)) return true;
    }
    return false;
}

static int open_product(const KArgs *a, LinearWay way, Candidate *from, LinearState *s, Err *e) {
    place(a, way, from->limit, s);
    if (s->way != way || from->workspace < s->before || from->workspace > from->limit)
        return err_set(e, ERR_UNSUPPORTED, "%s: a product cannot be \"%s\" within %zu bytes", op_info(a->kind)->name,
                       from->way, from->workspace);
    int code = types_check(a, &s->gemm, e);
    s->workspace = from->workspace;
    if (!code) code = open_plans(a, from->any ? NULL : &from->engine, from->workspace - s->before, s, e);
    if (!code && from->any && s->plan) gemm_id(s->plan, &from->engine);
    return code;
}

static int open_small_n(const KArgs *a, const Candidate *from, LinearState *s, Err *e) {
    if (!fits_small_n(a))
        return err_set(e, ERR_UNSUPPORTED, "%s: too many outputs for own kernels", op_info(a->kind)->name);
    s->way = LINEAR_SMALL_N;
    s->workspace = cuda_small_n_workspace(a, from->limit);
    return OK;
}

static int open_candidate(const KArgs *a, Candidate *from, void **state, size_t *workspace, Err *e) {
    LinearState *s = mem_new(sizeof *s);
    LinearWay way;
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = state_release;
    int code = !way_named(from->way, &way) ? err_set(e, ERR_UNSUPPORTED, "no way of a linear layer: %s", from->way)
               : way == LINEAR_SMALL_N     ? open_small_n(a, from, s, e)
                                           : open_product(a, way, from, s, e);
    if (code) {
        state_release(s);
        return code;
    }
    *state = s;
    *workspace = s->workspace;
    return OK;
}

/* ---- which there are */

/* Offers the own kernels; false: there are none, or they were not taken. */
static bool offer_small_n(const KArgs *a, size_t limit, Offer *offer, void *arg, Err *why) {
    if (!fits_small_n(a)) return false;
    Candidate c = {.way = linear_ways[LINEAR_SMALL_N], .limit = limit, .workspace = cuda_small_n_workspace(a, limit)};
    return offer(arg, &c, why);
}

/* The product with its epilogue. If the library has none with it: without it, within the same bytes. */
static int first_choice(const KArgs *a, size_t limit, Offer *take, void *arg, Err *e) {
    LinearState s = {.way = LINEAR_FUSED};
    Err why = {.code = OK};
    if (offer_small_n(a, limit, take, arg, &why)) return OK;
    place(a, LINEAR_FUSED, limit, &s);
    Candidate c = {.way = linear_ways[s.way], .any = true, .limit = limit,
                   .workspace = whole(a, &s, gemm_room(&s.gemm, limit - s.before), limit)};
    if (take(arg, &c, &why)) return OK;
    if (why.code == ERR_UNSUPPORTED && s.way == LINEAR_FUSED) {
        c.way = linear_ways[LINEAR_PLAIN];
        c.limit = c.workspace;
        if (take(arg, &c, &why)) return OK;
    }
    return err_set(e, why.code, "%s", why.text);
}

/* Bytes that the product of a way takes with an algorithm, and the rows that are left; false: the library has none. */
static bool product_needs(const KArgs *a, const LinearState *placed, const EngineId *id, size_t room, size_t *bytes) {
    LinearState s = *placed;
    bool ready = open_plans(a, id, room, &s, NULL) == OK;
    if (ready) *bytes = max_size(gemm_workspace(s.plan), s.rest ? gemm_workspace(s.rest) : 0);
    close_plans(&s);
    return ready;
}

static int candidates(const KArgs *a, size_t limit, const Candidate *than, Offer *compete, void *arg, Err *e) {
    Err why;
    bool over = false;
    int code = OK;
    (void)than; /* every way may compete */
    for (int k = 0; k < LINEAR_SMALL_N && !code && !over; k++) {
        EngineId id[GEMM_CANDIDATES];
        LinearState s = {.way = (LinearWay)k};
        size_t bytes = 0;
        int n = 0;
        place(a, (LinearWay)k, limit, &s);
        if (s.way != (LinearWay)k || types_check(a, &s.gemm, NULL)) continue;
        code = gemm_candidates(cuda_of(a), &s.gemm, limit - s.before, id, &n, e);
        for (int i = 0; i < n && !code && !over; i++) {
            if (!product_needs(a, &s, &id[i], limit - s.before, &bytes)) continue;
            Candidate c = {.way = linear_ways[k], .engine = id[i], .limit = limit, .workspace = whole(a, &s, bytes, limit)};
            over = compete(arg, &c, &why);
        }
    }
    if (!code && !over) offer_small_n(a, limit, compete, arg, &why);
    return code;
}

/* ---- the op's name */

void linear_text(const KArgs *a, char text[PICK_OP]) {
    const Gemm g = linear_gemm(a);
    const LinearAttr *l = &a->attr->linear;
    const OpInfo *info = op_info(a->kind);
    int at = snprintf(text, PICK_OP, "%s m=%lld n=%lld k=%lld", info->name, (long long)g.m, (long long)g.n,
                      (long long)g.k);
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const bool out = k >= OP_IN;
        const int slot = out ? k - OP_IN : k;
        const View *v = out ? &a->out[slot] : &a->in[slot];
        if (!v->count) continue;
        at += snprintf(text + at, (size_t)(PICK_OP - at), " %s=%lld:%s", (out ? info->out : info->in)[slot].name,
                       (long long)v->count, dtype_name(v->dtype));
    }
    snprintf(text + at, (size_t)(PICK_OP - at), " act=%d,%g tf32=%d", l->fused.act, (double)l->fused.slope, l->tf32);
}

static int op_text(const KArgs *a, char text[PICK_OP], Err *e) {
    (void)e;
    linear_text(a, text);
    return OK;
}

static const Tunable layer = {.version = gemm_version, .text = op_text, .first = first_choice, .candidates = candidates,
                              .open = open_candidate, .run = linear_run};
TUNED(linear, layer)
TUNED(linear_dx, layer)
TUNED(linear_dw, layer)
