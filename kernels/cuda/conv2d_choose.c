/* conv2d_choose.c: chooses the way and the engine that run a convolution. A pick, if one fits; else the first engine
 * in rank that may be taken, shipped engines before those that must be compiled; in a race, the fastest of all. Only a
 * race times anything: so a prediction is the same with and without the GPU. */
#include <stdio.h>
#include <string.h>

#include "conv2d.h"
#include "libraries.h"
#include "base/mem.h"
#include "tuning.h"
#include "plan_cache.h"
#include "bench.h"

enum { RACERS = 12 }; /* engines of a ranking and way that are timed */

/* What a search needs, and what it learns on the way. */
typedef struct Search {
    CudaDevice *c;
    const Conv *v;
    size_t limit;
    size_t smallest; /* the least bytes that an engine needs; SIZE_MAX: there is no engine */
    Err trouble;     /* why the last engine within the limit could not be taken; code 0: there was none */
} Search;

/* Makes *s the engine's state, with its plan if the device is here. false: the engine cannot be taken. */
static bool take(Search *q, const Way *way, const Engine *engine, ConvState *s) {
    Node plan = NULL;
    if (!engine_may(engine, q->v->exact)) return false;
    size_t bytes = conv_place(q->v, way->does, engine->workspace, q->limit, s);
    if (bytes < q->smallest) q->smallest = bytes;
    if (bytes > q->limit) return false;
    if (q->c->ordinal != NOT_HERE && plan_open(q->c, q->v->op, way->name, engine, &plan, &q->trouble)) return false;
    node_free(&s->plan);
    s->plan = plan;
    return true;
}

typedef enum Stage { STAGE_SHIPPED, STAGE_COMPILED, STAGE_ROUNDED, STAGES } Stage;

/* Does this way make dw in 16 bits where the program wants fp32? */
static bool rounds(const Conv *v, const Way *way) { return v->pass == CONV_WEIGHTS && way->does & WAY_CAST; }

static bool of_stage(const Conv *v, const Way *way, Stage stage) {
    if (!conv_can(v, way->does) || rounds(v, way) != (stage == STAGE_ROUNDED)) return false;
    return stage != STAGE_SHIPPED || !conv_compiled(v, way->does);
}

/* The first engine of a ranking and way that can be taken. Asks for one engine first, which is most often enough, then
 * for all. */
static int first_of(Search *q, int ranking, const Way *way, Stage stage, ConvState *s, EngineId *id, bool *found,
                    Err *e) {
    Graph g;
    Engines list = {NULL};
    int code = OK, k = 0;
    bool good = conv_graph(q->c, q->v, way->does, &g, &q->trouble) == OK;
    for (int most = 1; good && !code && !*found && most <= ENGINES_ALL; most *= ENGINES_ALL) {
        code = engines_ask(q->c, &g, ranking, most, &list, e);
        for (; k < list.n && !code && !*found; k++) {
            *found = (stage != STAGE_SHIPPED || !list.at[k].compiled) && take(q, way, &list.at[k], s);
            *id = list.at[k].id;
        }
    }
    engines_free(&list);
    graph_free(&g);
    return code;
}

/* The lowest compute capability with convolutions of a type; 0: every GPU that memtide runs on has them. */
static const int least[DT_COUNT] = {[DT_BF16] = 80};

/* The error: why no engine could be taken. */
static int none(const Search *q, Err *e) {
    const CudaModel *m = &q->c->model;
    const DType type = q->v->pass == CONV_DATA ? q->v->y.dtype : q->v->x.dtype;
    const int have = m->capability, want = least[type];
    if (q->smallest == SIZE_MAX && have < want)
        return err_set(e, ERR_UNSUPPORTED, "convolutions in %s want compute capability %d.%d or later, %s has %d.%d: "
                       "cuDNN has no engine for %s", dtype_name(type), want / 10, want % 10, m->name, have / 10,
                       have % 10, q->v->op);
    if (q->smallest == SIZE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "cuDNN has no engine for %s on %s, compute capability %d.%d%s%s", q->v->op,
                       m->name, have / 10, have % 10, q->trouble.code ? ": " : "",
                       q->trouble.code ? q->trouble.text : "");
    if (q->smallest > q->limit)
        return err_set(e, ERR_UNSUPPORTED, "cuDNN has no engine within a workspace_limit of %zu bytes for %s: "
                       "expected at least %zu", q->limit, q->v->op, q->smallest);
    return err_set(e, ERR_UNSUPPORTED, "none of cuDNN's engines can be made ready for %s: %s", q->v->op,
                   q->trouble.text);
}

/* The ranking counts more than the way: engines of a better ranking come first, in any way. */
static int choose_ranked(Search *q, ConvState *s, const Way **way, EngineId *id, Err *e) {
    enum { EACH = ENGINE_RANKINGS * WAYS };
    bool found = false;
    int code = OK;
    for (int k = 0; k < STAGES * EACH && !found && !code; k++) {
        Stage stage = (Stage)(k / EACH);
        *way = &conv_ways[k % WAYS];
        if (of_stage(q->v, *way, stage)) code = first_of(q, k % EACH / WAYS, *way, stage, s, id, &found, e);
    }
    return code ? code : found ? OK : none(q, e);
}

/* ---- picks */

static const Way *way_named(const char *name) {
    for (int k = 0; k < WAYS; k++)
        if (!strcmp(conv_ways[k].name, name)) return &conv_ways[k];
    return NULL;
}

/* Takes the pick. false: it no longer applies, because its engine is gone or wants more workspace than before. */
static bool choose_picked(Search *q, const Pick *pick, ConvState *s) {
    const Way *way = way_named(pick->way);
    Graph g;
    Engine engine = {.config = NULL};
    if (!way || !conv_can(q->v, way->does)) return false;
    bool good = conv_graph(q->c, q->v, way->does, &g, NULL) == OK &&
                engine_open(q->c, &g, &pick->engine, &engine, NULL) == OK && take(q, way, &engine, s);
    engine_close(&engine);
    graph_free(&g);
    return good;
}

/* ---- races */

typedef struct Winner { const Way *way; EngineId engine; double us; } Winner;

/* Times one engine against the winner so far. What cannot be run does not win; a lost device ends the race. */
static int compete(Search *q, Bench *race, const Way *way, const Engine *engine, double first, Winner *winner, Err *e) {
    ConvState s = {.conv = *q->v};
    double us = 0;
    if (!take(q, way, engine, &s)) return OK;
    int code = bench_time(race, conv_run, &s, s.workspace, winner->us, &us, e);
    node_free(&s.plan);
    if (q->c->lost.code) return code;
    /* the first choice stays unless the gain is more than the noise */
    if (!code && us < winner->us && us < RACE_GAIN * first) *winner = (Winner){way, engine->id, us};
    return OK;
}

static int compete_all(Search *q, Bench *race, const Way *way, double first, Winner *winner, Err *e) {
    Graph g;
    Engines list = {NULL};
    int code = OK, before = 0;
    /* a way that rounds more does not compete */
    if (!conv_can(q->v, way->does) || (rounds(q->v, way) && !rounds(q->v, winner->way))) return OK;
    bool good = conv_graph(q->c, q->v, way->does, &g, NULL) == OK;
    for (int r = 0; r < ENGINE_RANKINGS && good && !code; r++) {
        code = engines_ask(q->c, &g, r, RACERS, &list, e);
        for (int k = before; k < list.n && !code; k++)
            code = compete(q, race, way, &list.at[k], first, winner, e);
        before = list.n;
    }
    engines_free(&list);
    graph_free(&g);
    return code;
}

static Pick pick_of(const Search *q, const Winner *w) {
    Pick pick = {.version = cudnnGetVersion(), .limit = q->limit, .engine = w->engine, .us = w->us};
    snprintf(pick.op, sizeof pick.op, "%s", q->v->op);
    snprintf(pick.way, sizeof pick.way, "%s", w->way->name);
    return pick;
}

/* *s is the first choice, which `way` and `id` name. It becomes the fastest one, which is kept as a pick. */
static int choose_raced(Search *q, const KArgs *args, const Way *way, const EngineId *id, ConvState *s, Err *e) {
    Bench race;
    Winner winner = {way, *id, 0};
    double first = 0;
    int code = bench_open(&race, &q->c->base, args, 2 * q->c->model.l2_bytes, e);
    if (code) return code;
    code = bench_time(&race, conv_run, s, s->workspace, 0, &first, e);
    winner.us = first;
    for (int k = 0; k < WAYS && !code; k++) code = compete_all(q, &race, &conv_ways[k], first, &winner, e);
    bench_close(&race);
    Pick pick = pick_of(q, &winner);
    if (!code && !choose_picked(q, &pick, s))
        code = err_set(e, ERR_INTERNAL, "the engine that won the race of %s cannot be had again", q->v->op);
    pick.workspace = s->workspace;
    return code ? code : tuning_keep(q->c, &pick, e);
}

static int choose(CudaDevice *c, const KArgs *args, const Conv *v, size_t limit, ConvState *s, Err *e) {
    Search q = {.c = c, .v = v, .limit = limit, .smallest = SIZE_MAX};
    const Pick *pick;
    const Way *way;
    EngineId id;
    bool race;
    int code = tuning_ask(c, cudnnGetVersion(), v->op, limit, &pick, &race, e);
    if (code) return code;
    if (pick && !race && choose_picked(&q, pick, s)) return OK;
    code = choose_ranked(&q, s, &way, &id, e);
    return code || !race ? code : choose_raced(&q, args, way, &id, s, e);
}

/* ---- the ops */

static int prepare(const KArgs *args, ConvPass pass, size_t limit, void **state, size_t *workspace, Err *e) {
    ConvState *s = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = conv_release;
    int code = conv_read(args, pass, &s->conv, e);
    if (!code) code = choose(cuda_of(args), args, &s->conv, limit, s, e);
    if (code) {
        conv_release(s);
        return code;
    }
    *state = s;
    *workspace = s->workspace;
    return OK;
}

int k_cuda_conv2d_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, CONV_FORWARD, limit, state, workspace, e);
}

int k_cuda_conv2d_dx_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, CONV_DATA, limit, state, workspace, e);
}

int k_cuda_conv2d_dw_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, CONV_WEIGHTS, limit, state, workspace, e);
}
