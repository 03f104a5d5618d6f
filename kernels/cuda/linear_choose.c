/* linear_choose.c: chooses the way and the library's algorithm that run a linear layer's op. A pick, if one fits; else
 * own kernels if there are few outputs, since memory then sets the pace and a library's tiles would be mostly empty;
 * else the library's first algorithm; in a race, the fastest of all. Only a race times anything.
 *
 * The library answers only where there is a GPU. So the workspace follows from shapes, or from the pick: it is the
 * same with and without a GPU. */
#include <stdio.h>
#include <string.h>

#include "bias.h"
#include "linear.h"
#include "tuning.h"
#include "bench.h"
#include "small_n_gemm.h"
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

static void place_small_n(const KArgs *a, size_t limit, LinearState *s) {
    s->way = LINEAR_SMALL_N;
    s->workspace = cuda_small_n_workspace(a, limit);
}

/* Sets the whole op's workspace if the product takes `bytes`; the sum of db runs after the product, in the same bytes. */
static void grant(const KArgs *a, size_t bytes, size_t limit, LinearState *s) {
    s->workspace = max_size(s->before + bytes, db_bytes(a, limit));
}

/* ---- making it ready */

static void close_plans(LinearState *s) {
    gemm_close(s->plan);
    gemm_close(s->rest);
    s->plan = s->rest = NULL;
}

static bool fits_small_n(const KArgs *a) { return cuda_small_n_fits(product_operands(a).w); }

static int types_check(const KArgs *a, const Gemm *g, Err *e) {
    const View *other = a->kind == OP_linear_dw ? &a->linear_dw.x : &a->linear.w;
    if (other->dtype == g->in && (g->out == g->in || g->out == DT_F32)) return OK;
    return err_set(e, ERR_UNSUPPORTED, "%s: a product of %s and %s with a result in %s: the GPU wants operands of one "
                   "type, and the result in it or in f32", op_info(a->kind)->name, dtype_name(g->in),
                   dtype_name(other->dtype), dtype_name(g->out));
}

/* Opens the plans of a placed product within `bytes`, with the algorithm `id` (NULL: the library's first). *ready: the
 * library has it, or the device is not here. The rows that are left at the end use the library's first algorithm. */
static int open_plans(const KArgs *a, const EngineId *id, size_t bytes, LinearState *s, bool *ready, Err *e) {
    CudaDevice *c = cuda_of(a);
    Gemm rest = s->gemm;
    *ready = true;
    if (c->ordinal == NOT_HERE) return OK;
    rest.m = s->wide ? (a->linear.y.count / rest.n) % rest.m : 0;
    int code = gemm_open(c, &s->gemm, id, bytes, &s->plan, e);
    if (!code && s->plan && rest.m) code = gemm_open(c, &rest, NULL, bytes, &s->rest, e);
    *ready = !code && s->plan && (s->rest || !rest.m);
    if (!*ready) close_plans(s);
    return code;
}

/* The product with its epilogue. If the library has none with it: without it, within the same bytes. */
static int choose_first(const KArgs *a, size_t limit, LinearState *s, Err *e) {
    bool ready;
    if (fits_small_n(a)) {
        place_small_n(a, limit, s);
        return OK;
    }
    place(a, LINEAR_FUSED, limit, s);
    size_t bytes = gemm_room(&s->gemm, limit - s->before), room = s->before + bytes;
    grant(a, bytes, limit, s);
    int code = types_check(a, &s->gemm, e);
    if (!code) code = open_plans(a, NULL, bytes, s, &ready, e);
    if (!code && !ready && s->way == LINEAR_FUSED) {
        place(a, LINEAR_PLAIN, room, s);
        bytes = gemm_room(&s->gemm, room - s->before);
        code = open_plans(a, NULL, bytes, s, &ready, e);
    }
    if (code || ready) return code;
    const Gemm *g = &s->gemm;
    return err_set(e, ERR_UNSUPPORTED, "%s: no algorithm for a product (%lld, %lld, %lld) of %s within %zu bytes",
                   op_info(a->kind)->name, (long long)g->m, (long long)g->n, (long long)g->k, dtype_name(g->in), bytes);
}

/* ---- picks */

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

static bool way_named(const char *name, LinearWay *way) {
    for (int k = 0; k < LINEAR_WAYS; k++) {
        *way = (LinearWay)k;
        if (!strcmp(linear_ways[k], name)) return true;
    }
    return false;
}

/* Takes the pick, under its own limit, which may differ from the caller's. false: it no longer applies, because its
 * algorithm is gone or wants more workspace than before, or because its line was changed. */
static bool choose_picked(const KArgs *a, const Pick *pick, LinearState *s) {
    LinearWay way;
    bool ready;
    if (!way_named(pick->way, &way)) return false;
    if (way == LINEAR_SMALL_N) {
        if (!fits_small_n(a)) return false;
        place_small_n(a, pick->limit, s);
        return s->workspace == pick->workspace;
    }
    place(a, way, pick->limit, s);
    if (s->way != way || pick->workspace < s->before || pick->workspace > pick->limit) return false;
    if (types_check(a, &s->gemm, NULL)) return false;
    s->workspace = pick->workspace;
    return open_plans(a, &pick->engine, s->workspace - s->before, s, &ready, NULL) == OK && ready;
}

/* ---- races */

typedef struct Winner { LinearWay way; EngineId engine; size_t workspace; double us; } Winner;

/* first: microseconds of the first choice */
typedef struct Contest { const KArgs *a; size_t limit; Bench race; double first; } Contest;

/* Times one way and algorithm against the winner so far. What cannot be run does not win; a lost device ends the race. */
static int compete(Contest *q, LinearWay way, const EngineId *id, Winner *winner, Err *e) {
    LinearState s = {.way = way};
    bool ready = true;
    double us = 0;
    int code = OK;
    if (way == LINEAR_SMALL_N) {
        place_small_n(q->a, q->limit, &s);
    } else {
        place(q->a, way, q->limit, &s);
        code = open_plans(q->a, id, q->limit - s.before, &s, &ready, e);
        if (!code && ready) {
            size_t rest = s.rest ? gemm_workspace(s.rest) : 0;
            grant(q->a, max_size(gemm_workspace(s.plan), rest), q->limit, &s);
        }
    }
    if (!code && ready) code = bench_time(&q->race, linear_run, &s, s.workspace, winner->us, &us, e);
    close_plans(&s);
    if (cuda_of(q->a)->lost.code) return code;
    /* the first choice stays unless the gain is more than the noise */
    if (!code && ready && us < winner->us && us < RACE_GAIN * q->first) *winner = (Winner){way, *id, s.workspace, us};
    return OK;
}

static int compete_all(Contest *q, LinearWay way, Winner *winner, Err *e) {
    EngineId id[GEMM_CANDIDATES] = {{.engine = 0}};
    LinearState s = {.way = way};
    int n = 1, code = OK;
    if (way == LINEAR_SMALL_N && !fits_small_n(q->a)) return OK;
    if (way != LINEAR_SMALL_N) {
        place(q->a, way, q->limit, &s);
        if (s.way != way || types_check(q->a, &s.gemm, NULL)) return OK;
        code = gemm_candidates(cuda_of(q->a), &s.gemm, q->limit - s.before, id, &n, e);
    }
    for (int k = 0; k < n && !code; k++) code = compete(q, way, &id[k], winner, e);
    return code;
}

/* *s is the first choice. It becomes the fastest one, which is kept as a pick. */
static int choose_raced(const KArgs *a, const char *op, size_t limit, LinearState *s, Err *e) {
    CudaDevice *c = cuda_of(a);
    Contest q = {.a = a, .limit = limit};
    Winner winner = {.way = s->way, .workspace = s->workspace};
    if (s->plan) gemm_id(s->plan, &winner.engine);
    int code = bench_open(&q.race, &c->base, a, 2 * c->model.l2_bytes, e);
    if (code) return code;
    code = bench_time(&q.race, linear_run, s, s->workspace, 0, &q.first, e);
    winner.us = q.first;
    for (int k = 0; k < LINEAR_WAYS && !code; k++) code = compete_all(&q, (LinearWay)k, &winner, e);
    bench_close(&q.race);
    if (code) return code;
    LinearState fastest = {.base = s->base};
    Pick pick = {.version = gemm_version(), .limit = limit, .engine = winner.engine, .workspace = winner.workspace,
                 .us = winner.us};
    snprintf(pick.op, sizeof pick.op, "%s", op);
    snprintf(pick.way, sizeof pick.way, "%s", linear_ways[winner.way]);
    if (choose_picked(a, &pick, &fastest)) {
        close_plans(s);
        *s = fastest;
        return tuning_keep(c, &pick, e);
    }
    close_plans(&fastest);
    /* the library's first choice may be one that cannot be asked for by name: then it stays, without a pick */
    return winner.us == q.first ? OK : err_set(e, ERR_INTERNAL, "what won the race of %s cannot be had again", op);
}

static int choose(const KArgs *a, size_t limit, LinearState *s, Err *e) {
    char op[PICK_OP];
    const Pick *pick;
    bool race;
    linear_text(a, op);
    int code = tuning_ask(cuda_of(a), gemm_version(), op, limit, &pick, &race, e);
    if (code) return code;
    if (pick && !race && choose_picked(a, pick, s)) return OK;
    code = choose_first(a, limit, s, e);
    return code || !race ? code : choose_raced(a, op, limit, s, e);
}

/* ---- the ops */

static void state_release(void *state) {
    if (state) close_plans(state);
    mem_free(state);
}

static int prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    LinearState *s = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = state_release;
    int code = choose(a, limit, s, e);
    if (code) {
        state_release(s);
        return code;
    }
    *state = s;
    *workspace = s->workspace;
    return OK;
}

int k_cuda_linear_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, limit, state, workspace, e);
}

int k_cuda_linear_dx_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, limit, state, workspace, e);
}

int k_cuda_linear_dw_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(a, limit, state, workspace, e);
}
