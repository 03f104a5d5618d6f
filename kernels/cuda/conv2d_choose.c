/* conv2d_choose.c: what tune.c wants to know of convolutions. The first choice is the first engine in rank that may be
 * taken, shipped engines before those that must be compiled. */
#include <stdio.h>
#include <string.h>

#include "conv2d.h"
#include "libraries.h"
#include "base/mem.h"
#include "plan_cache.h"
#include "tune.h"

enum { RACERS = 12 }; /* engines of a ranking and way that are timed */

static int conv_of(const KArgs *a, Conv *v, Err *e) { return conv_read(a, (ConvPass)(a->kind - OP_conv2d), v, e); }

static int op_text(const KArgs *a, char text[PICK_OP], Err *e) {
    Conv v;
    int code = conv_of(a, &v, e);
    if (!code) memcpy(text, v.op, PICK_OP);
    return code;
}

/* ---- one candidate */

static const Way *way_named(const char *name) {
    for (int k = 0; k < WAYS; k++)
        if (!strcmp(conv_ways[k].name, name)) return &conv_ways[k];
    return NULL;
}

/* Lays *s out for the engine. Returns the bytes that count against the limit; SIZE_MAX: the engine may not be taken. */
static size_t place(const Conv *v, const Way *way, const Engine *engine, size_t limit, ConvState *s) {
    return engine_may(engine, v->exact) ? conv_place(v, way->does, engine->workspace, limit, s) : SIZE_MAX;
}

/* Makes *s the engine's state, with its plan if the device is here. */
static int open_engine(CudaDevice *c, const Way *way, const Engine *engine, size_t limit, ConvState *s, Err *e) {
    if (place(&s->conv, way, engine, limit, s) > limit)
        return err_set(e, ERR_UNSUPPORTED, "the engine may not be taken within %zu bytes", limit);
    return c->ordinal == NOT_HERE ? OK : plan_open(c, s->conv.op, way->name, engine, &s->plan, e);
}

static int open_named(CudaDevice *c, const Way *way, const Candidate *from, ConvState *s, Err *e) {
    Graph g;
    Engine engine = {.config = NULL};
    int code = conv_graph(c, &s->conv, way->does, &g, e);
    if (!code) code = engine_open(c, &g, &from->engine, &engine, e);
    if (!code) code = open_engine(c, way, &engine, from->limit, s, e);
    engine_close(&engine);
    graph_free(&g);
    return code;
}

static int open_candidate(const KArgs *a, Candidate *from, void **state, size_t *workspace, Err *e) {
    CudaDevice *c = cuda_of(a);
    const Way *way = way_named(from->way);
    ConvState *s = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->base.release = conv_release;
    int code = conv_of(a, &s->conv, e);
    if (!code && !(way && conv_can(&s->conv, way->does)))
        code = err_set(e, ERR_UNSUPPORTED, "%s cannot be run in way \"%s\"", s->conv.op, from->way);
    if (!code)
        code = from->handle ? open_engine(c, way, from->handle, from->limit, s, e) : open_named(c, way, from, s, e);
    if (code) {
        conv_release(s);
        return code;
    }
    *state = s;
    *workspace = s->workspace;
    return OK;
}

/* ---- which there are */

/* What a search needs, and what it learns on the way. */
typedef struct Search {
    CudaDevice *c;
    Conv v;
    size_t limit;
    Offer *offer;
    void *arg;
    size_t smallest; /* the least bytes that an engine needs; SIZE_MAX: there is no engine */
    Err trouble;     /* why the last engine within the limit could not be taken; code 0: there was none */
    bool over;       /* no more are wanted */
} Search;

static int search(Search *q, const KArgs *a, size_t limit, Offer *offer, void *arg, Err *e) {
    *q = (Search){.c = cuda_of(a), .limit = limit, .offer = offer, .arg = arg, .smallest = SIZE_MAX};
    return conv_of(a, &q->v, e);
}

static void offer(Search *q, const Way *way, const Engine *engine) {
    ConvState s;
    size_t bytes = place(&q->v, way, engine, q->limit, &s);
    if (bytes < q->smallest) q->smallest = bytes;
    if (bytes > q->limit) return;
    Candidate c = {.way = way->name, .engine = engine->id, .limit = q->limit, .handle = engine};
    q->over = q->offer(q->arg, &c, &q->trouble);
}

typedef enum Stage { STAGE_SHIPPED, STAGE_COMPILED, STAGE_ROUNDED, STAGES } Stage;

/* Does this way make dw in 16 bits where the program wants fp32? */
static bool rounds(const Conv *v, const Way *way) { return v->pass == CONV_WEIGHTS && way->does & WAY_CAST; }

static bool of_stage(const Conv *v, const Way *way, Stage stage) {
    if (!conv_can(v, way->does) || rounds(v, way) != (stage == STAGE_ROUNDED)) return false;
    return stage != STAGE_SHIPPED || !conv_compiled(v, way->does);
}

/* Offers the engines of a ranking and way. Asks for one engine first, which is most often enough, then for all. */
static int offer_ranked(Search *q, int ranking, const Way *way, Stage stage, Err *e) {
    Graph g;
    Engines list = {NULL};
    int code = OK, k = 0;
    bool good = conv_graph(q->c, &q->v, way->does, &g, &q->trouble) == OK;
    for (int most = 1; good && !code && !q->over && most <= ENGINES_ALL; most *= ENGINES_ALL) {
        code = engines_ask(q->c, &g, ranking, most, &list, e);
        for (; k < list.n && !code && !q->over; k++)
            if (stage != STAGE_SHIPPED || !list.at[k].compiled) offer(q, way, &list.at[k]);
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
    const DType type = q->v.pass == CONV_DATA ? q->v.y.dtype : q->v.x.dtype;
    const int have = m->capability, want = least[type];
    if (q->smallest == SIZE_MAX && have < want)
        return err_set(e, ERR_UNSUPPORTED, "convolutions in %s want compute capability %d.%d or later, %s has %d.%d: "
                       "cuDNN has no engine for %s", dtype_name(type), want / 10, want % 10, m->name, have / 10,
                       have % 10, q->v.op);
    if (q->smallest == SIZE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "cuDNN has no engine for %s on %s, compute capability %d.%d%s%s", q->v.op,
                       m->name, have / 10, have % 10, q->trouble.code ? ": " : "",
                       q->trouble.code ? q->trouble.text : "");
    if (q->smallest > q->limit)
        return err_set(e, ERR_UNSUPPORTED, "cuDNN has no engine within a workspace_limit of %zu bytes for %s: "
                       "expected at least %zu", q->limit, q->v.op, q->smallest);
    return err_set(e, ERR_UNSUPPORTED, "none of cuDNN's engines can be made ready for %s: %s", q->v.op,
                   q->trouble.text);
}

/* The ranking counts more than the way: engines of a better ranking come first, in any way. */
static int first_choice(const KArgs *a, size_t limit, Offer *take, void *arg, Err *e) {
    enum { EACH = ENGINE_RANKINGS * WAYS };
    Search q;
    int code = search(&q, a, limit, take, arg, e);
    for (int k = 0; k < STAGES * EACH && !q.over && !code; k++) {
        Stage stage = (Stage)(k / EACH);
        const Way *way = &conv_ways[k % WAYS];
        if (of_stage(&q.v, way, stage)) code = offer_ranked(&q, k % EACH / WAYS, way, stage, e);
    }
    return code ? code : q.over ? OK : none(&q, e);
}

/* Offers the first engines of each ranking. */
static int offer_racers(Search *q, const Way *way, Err *e) {
    Graph g;
    Engines list = {NULL};
    int code = OK, k = 0;
    bool good = conv_graph(q->c, &q->v, way->does, &g, NULL) == OK;
    for (int r = 0; r < ENGINE_RANKINGS && good && !code; r++) {
        code = engines_ask(q->c, &g, r, RACERS, &list, e);
        for (; k < list.n && !code && !q->over; k++) offer(q, way, &list.at[k]);
    }
    engines_free(&list);
    graph_free(&g);
    return code;
}

/* A way that rounds more than the first choice does not compete. */
static int candidates(const KArgs *a, size_t limit, const Candidate *than, Offer *compete, void *arg, Err *e) {
    Search q;
    int code = search(&q, a, limit, compete, arg, e);
    const bool may_round = !code && rounds(&q.v, way_named(than->way));
    for (int k = 0; k < WAYS && !code && !q.over; k++)
        if (conv_can(&q.v, conv_ways[k].does) && (may_round || !rounds(&q.v, &conv_ways[k])))
            code = offer_racers(&q, &conv_ways[k], e);
    return code;
}

static const Tunable convolution = {.version = cudnnGetVersion, .text = op_text, .first = first_choice, .candidates = candidates,
                                    .open = open_candidate, .run = conv_run};
TUNED(conv2d, convolution)
TUNED(conv2d_dx, convolution)
TUNED(conv2d_dw, convolution)
