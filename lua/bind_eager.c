/* The step that PyTorch makes of a network, for scripts. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bind.h"
#include "bind_program.h"
#include "eager/eager.h"

/* of: by EstimateKind; the bounds are zeroed where no size is estimated */
typedef struct EagerBox { EagerStep of[ESTIMATES]; CachingSettings caching; } EagerBox;

static void release(void *content) {
    EagerBox *box = content;
    for (int k = 0; k < ESTIMATES; k++) trace_free(&box->of[k].trace);
    mem_free(box);
}

static const Card *card_at(lua_State *L, int index) {
    const char *name = luaL_checkstring(L, index);
    const Card *card = card_find(name);
    if (!card) {
        luaL_Buffer known;
        luaL_buffinit(L, &known);
        for (int i = 0; card_info(i); i++) {
            luaL_addstring(&known, i ? ", " : "");
            luaL_addstring(&known, card_info(i)->name);
        }
        luaL_pushresult(&known);
        bind_error(L, "there is no card %s: expected one of %s", name, lua_tostring(L, -1));
    }
    return card;
}

/* eager(network, settings, card) -> the trace of some steps of PyTorch's loop, of which the last is like all later ones */
static int new_trace(lua_State *L) {
    Err e;
    lua_settop(L, 3);
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    luaL_checktype(L, 2, LUA_TTABLE);
    Settings s = bind_settings(L, 2);
    const Card *card = card_at(L, 3);
    Box *box = bind_new(L, BOX_TRACE, release);
    bind_borrow(L, box, 1, BOX_NETWORK);
    EagerBox *content = box->content = mem_new(sizeof *content);
    int code = content ? OK : err_set(&e, ERR_HOST_MEMORY, "out of host memory for a trace");
    for (int k = 0; k < ESTIMATES && !code && (k == 0 || content->of[0].estimated); k++)
        code = eager_trace(n, &s, card, eager_steps(&s), (EstimateKind)k, &content->of[k], &e);
    if (code) return bind_fail(L, &e);
    content->caching = s.pytorch.caching;
    return 1;
}

const Trace *bind_trace(lua_State *L, int index) { return &((EagerBox *)bind_get(L, index, BOX_TRACE))->of->trace; }

static const char *or_dash(const char *text) { return *text ? text : "-"; }

static void put_allocation(const Trace *t, int i, TextSink *put, void *arg) {
    const TraceTensor *x = &t->tensors[i];
    const TraceCall *c = &t->calls[x->call];
    char line[512];
    snprintf(line, sizeof line, "+%d %zu %s %s %s %s", i + 1, x->bytes, category_name(x->category), or_dash(c->op),
             or_dash(c->layer), or_dash(c->where));
    put(arg, line);
}

/* trace:dump() -> an event a line: "+number bytes category op layer where", "-number", "= mark" */
static int dump(lua_State *L) {
    const Trace *t = bind_trace(L, 1);
    Text *text = bind_text_new(L);
    char line[64];
    for (int i = 0, mark = 0; i < t->n_events; i++) {
        for (; mark < t->n_marks && t->marks[mark].event == i; mark++) {
            snprintf(line, sizeof line, "= %s", t->marks[mark].text);
            bind_text_line(text, line);
        }
        if (t->events[i] >= 0) {
            put_allocation(t, t->events[i], bind_text_line, text);
        } else {
            snprintf(line, sizeof line, "-%d", ~t->events[i] + 1);
            bind_text_line(text, line);
        }
    }
    return bind_text_push(L, text);
}

/* A trace's last step on a device that only counts; code: OK, or ERR_OOM at the limit. */
typedef struct Walk { TracePeak peak; int code; Err e; } Walk;

static int walk(const EagerBox *box, const Trace *t, size_t limit, Walk *out, TracePlaces *places, Err *e) {
    Device *cpu, *dry;
    Ledger ledger;
    int code = device_open("cpu", &cpu, e);
    if (code) return code;
    if (!(code = device_dry_open(cpu, &dry, e))) {
        ledger_open(&ledger, dry, limit);
        const int from = t->marks[t->n_marks - 1].event;
        out->code = trace_replay(t, &box->caching, &ledger, from, &out->peak, places, &out->e);
        device_close(dry);
        if (out->code && out->code != ERR_OOM) code = (*e = out->e, out->code);
    }
    device_close(cpu);
    return code;
}

static bool is_less(const Walk *a, const Walk *b) {
    return a->code == b->code ? a->peak.reserved < b->peak.reserved : a->code == OK;
}

/* What sizes that only cuDNN knows are taken for: predict's option `estimate`. */
static EstimateKind estimate_of(lua_State *L) {
    static const char *const words[] = {"likely", "least", "most", NULL};
    lua_getfield(L, 2, "estimate");
    const char *word = lua_isnil(L, -1) ? words[ESTIMATE_LIKELY] : luaL_checkstring(L, -1);
    int which = 0;
    while (words[which] && strcmp(words[which], word) != 0) which++;
    if (!words[which]) bind_error(L, "expected estimate = \"likely\", \"least\" or \"most\", found \"%s\"", word);
    lua_pop(L, 1);
    return (EstimateKind)which;
}

/* The bounds are those of three walks: a larger workspace may fit into a segment that a smaller one leaves empty. */
static void push_bounds(lua_State *L, const Walk *found, int n) {
    size_t allocated[2] = {SIZE_MAX, 0}, reserved[2] = {SIZE_MAX, 0};
    for (int k = 0; k < n; k++) {
        const TracePeak *p = &found[k].peak;
        if (p->allocated < allocated[0]) allocated[0] = p->allocated;
        if (p->allocated > allocated[1]) allocated[1] = p->allocated;
        if (p->reserved < reserved[0]) reserved[0] = p->reserved;
        if (p->reserved > reserved[1]) reserved[1] = p->reserved;
    }
    bind_set_boolean(L, "estimated", n > 1);
    if (n == 1) return;
    bind_set_integer(L, "allocated_least", (lua_Integer)allocated[0]);
    bind_set_integer(L, "allocated_most", (lua_Integer)allocated[1]);
    bind_set_integer(L, "reserved_least", (lua_Integer)reserved[0]);
    bind_set_integer(L, "reserved_most", (lua_Integer)reserved[1]);
}

/* What the options {memory, context, estimate} at 2 ask for: the limit of memory, a walk for each kind of estimate in found[],
 * and which of them is meant. */
typedef struct Walks { Walk found[ESTIMATES]; int n, at; size_t context, room; } Walks;

static int walk_all(lua_State *L, const EagerBox *box, Walks *out, Err *e) {
    luaL_checktype(L, 2, LUA_TTABLE);
    const EstimateKind which = estimate_of(L);
    const size_t limit = bind_bytes(L, 2, "memory"), context = bind_bytes(L, 2, "context");
    /* a limit of 0 is none: a card that the context fills has room for a byte */
    out->room = limit > context ? limit - context : limit ? 1 : 0;
    out->context = context;
    out->n = box->of->estimated ? ESTIMATES : 1;
    out->at = ESTIMATE_LIKELY;
    for (int k = 0; k < out->n; k++) {
        int code = walk(box, &box->of[k].trace, out->room, &out->found[k], NULL, e);
        if (code) return code;
        if (which != ESTIMATE_LIKELY && is_less(&out->found[k], &out->found[out->at]) == (which == ESTIMATE_LEAST)) out->at = k;
    }
    return OK;
}

/* trace:step{the options of predict} -> the table of the last step: bind_step.c. Where it does not fit, it is that of a device
 * that has the room. */
static int step(lua_State *L) {
    Err e;
    Walks all;
    const EagerBox *box = bind_get(L, 1, BOX_TRACE);
    lua_settop(L, 2);
    if (walk_all(L, box, &all, &e)) return bind_fail(L, &e);
    const Trace *t = &box->of[all.at].trace;
    Walk again;
    if (walk(box, t, all.found[all.at].code ? 0 : all.room, &again, bind_places_new(L), &e)) return bind_fail(L, &e);
    return bind_push_trace(L, t, t->marks[t->n_marks - 1].event, bind_get(L, 3, BOX_PLACES));
}

/* trace:predict{memory = limit in bytes, context = bytes of the process's context, if it is known, estimate = "likely",
 * "least" or "most" of sizes that only cuDNN knows} -> what program:predict gives, and max_memory_allocated,
 * max_memory_reserved, needs (what the device must have), and, where the context is known, device_bytes, which is the same;
 * estimated: there are such sizes, and then allocated_least, allocated_most, reserved_least, reserved_most, the bounds of
 * the two peaks */
static int predict_trace(lua_State *L) {
    Err e;
    const EagerBox *box = bind_get(L, 1, BOX_TRACE);
    Walks all;
    if (walk_all(L, box, &all, &e)) return bind_fail(L, &e);
    const Trace *t = &box->of[all.at].trace;
    const Walk *found = &all.found[all.at];
    const TracePeak peak = found->peak;
    const size_t context = all.context;
    const int code = found->code;
    lua_createtable(L, 0, 15);
    push_bounds(L, all.found, all.n);
    bind_set_integer(L, "lower_bound", (lua_Integer)peak.allocated);
    bind_set_integer(L, "allocated", (lua_Integer)peak.allocated_end);
    bind_set_integer(L, "reserved", (lua_Integer)peak.reserved_end);
    bind_set_integer(L, "host", (lua_Integer)t->host);
    bind_set_boolean(L, "fits", code == OK);
    if (code) bind_set_string(L, "reason", found->e.text);
    bind_set_integer(L, "max_memory_allocated", (lua_Integer)peak.allocated);
    bind_set_integer(L, "max_memory_reserved", (lua_Integer)peak.reserved);
    bind_set_integer(L, "needs", (lua_Integer)(peak.reserved + context));
    if (context) bind_set_integer(L, "device_bytes", (lua_Integer)(peak.reserved + context));
    const TraceCall *at = &t->calls[t->tensors[t->events[peak.event] < 0 ? 0 : t->events[peak.event]].call];
    lua_createtable(L, 0, 5);
    bind_set_integer(L, "event", peak.event);
    bind_set_integer(L, "bytes", (lua_Integer)peak.allocated);
    bind_set_integer(L, "used", (lua_Integer)peak.allocated);
    lua_pushfstring(L, "%s%s%s", at->op, *at->layer ? " " : "", at->layer);
    lua_setfield(L, -2, "op");
    bind_push_categories(L, peak.category);
    lua_setfield(L, -2, "categories");
    lua_setfield(L, -2, "peak");
    return 1;
}

/* trace:alive(event) -> {{bytes, category, op, layer, where}, ...}: the tensors that are alive after an event, as
 * predict's peak.event is one, in the order in which they were allocated */
static int alive(lua_State *L) {
    Err e;
    const Trace *t = bind_trace(L, 1);
    const lua_Integer last = luaL_checkinteger(L, 2);
    luaL_argcheck(L, last >= 0 && last < t->n_events, 2, "there is no such event");
    bool *lives = mem_new((size_t)t->n_tensors + 1);
    if (!lives) {
        err_set(&e, ERR_HOST_MEMORY, "out of host memory for the tensors of a trace");
        return bind_fail(L, &e);
    }
    for (int i = 0; i <= last; i++) {
        const int event = t->events[i];
        lives[event < 0 ? ~event : event] = event >= 0;
    }
    lua_newtable(L);
    for (int i = 0, n = 0; i < t->n_tensors; i++) {
        if (!lives[i]) continue;
        const TraceCall *c = &t->calls[t->tensors[i].call];
        lua_createtable(L, 0, 5);
        bind_set_integer(L, "bytes", (lua_Integer)t->tensors[i].bytes);
        bind_set_string(L, "category", category_name(t->tensors[i].category));
        bind_set_string(L, "op", c->op);
        bind_set_string(L, "layer", c->layer);
        bind_set_string(L, "where", c->where);
        lua_rawseti(L, -2, ++n);
    }
    mem_free(lives);
    return 1;
}

/* trace:cost() -> floating-point operations of products, convolutions and attention, and bytes read and written, of a step */
static int cost(lua_State *L) {
    const EagerBox *box = bind_get(L, 1, BOX_TRACE);
    lua_pushnumber(L, box->of->work.flops);
    lua_pushnumber(L, box->of->work.bytes);
    return 2;
}

/* trace:floor() -> seconds: no step on the trace's card can be faster. As program:floor, whose arguments the card has. */
static int floor_time(lua_State *L) {
    const EagerBox *box = bind_get(L, 1, BOX_TRACE);
    lua_pushnumber(L, box->of->work.seconds);
    return 1;
}

/* trace:convolutions() -> {{source, passes, version}, ...}: from where how many passes of convolutions in a step have their
 * workspace (WORKSPACE_SOURCES), in that order, and which version of cuDNN it was, "9.26.0" */
static int convolutions(lua_State *L) {
    static const char *const names[] = {
#define X(name, text, what) text,
        WORKSPACE_SOURCES(X)
#undef X
    };
    const EagerStep *made = ((EagerBox *)bind_get(L, 1, BOX_TRACE))->of;
    const ConvCalls *convs = &made->convs;
    lua_newtable(L);
    for (int i = 0, n = 0; i < WORKSPACE_SOURCE_COUNT; i++) {
        const int version = (int)convs->version[i];
        if (!convs->count[i]) continue;
        lua_createtable(L, 0, 3);
        bind_set_string(L, "source", names[i]);
        bind_set_integer(L, "passes", convs->count[i] / made->steps);
        if (version) {
            lua_pushfstring(L, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
            lua_setfield(L, -2, "version");
        }
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

/* Per second at most: bytes of its memory, and operations of products by type. */
static void push_peaks(lua_State *L, const Card *c) {
    lua_createtable(L, 0, 5);
    bind_set_number(L, "bytes", c->bandwidth);
    bind_set_number(L, "fp32", card_flops(c, UNIT_FP32));
    bind_set_number(L, "tf32", card_flops(c, UNIT_TF32));
    bind_set_number(L, "fp16", card_flops(c, UNIT_FP16));
    bind_set_number(L, "bf16", card_flops(c, UNIT_BF16));
}

/* cards() -> {{name, title, memory, log, multiprocessors, threads, cublas_workspace, context, source, peaks = {bytes, fp32,
 * tf32, fp16, bf16}}, ...}, and the least and the most of a context that is unknown */
static int cards(lua_State *L) {
    lua_newtable(L);
    for (int i = 0; card_info(i); i++) {
        const Card *c = card_info(i);
        lua_createtable(L, 0, 10);
        bind_set_string(L, "name", c->name);
        bind_set_string(L, "title", c->title);
        bind_set_integer(L, "memory", (lua_Integer)c->memory);
        bind_set_string(L, "log", c->log);
        bind_set_integer(L, "multiprocessors", c->multiprocessors);
        bind_set_integer(L, "threads", c->threads);
        bind_set_integer(L, "cublas_workspace", c->cublas_workspace);
        if (c->context) bind_set_integer(L, "context", (lua_Integer)c->context);
        bind_set_string(L, "source", c->source);
        push_peaks(L, c);
        lua_setfield(L, -2, "peaks");
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushinteger(L, CONTEXT_LEAST);
    lua_pushinteger(L, CONTEXT_MOST);
    return 3;
}

void bind_open_eager(lua_State *L) {
    static const luaL_Reg methods[] = {{"dump", dump}, {"step", step}, {"predict", predict_trace},
                                       {"alive", alive},
                                       {"cost", cost}, {"floor", floor_time}, {"convolutions", convolutions}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"eager", new_trace}, {"cards", cards}, {NULL, NULL}};
    bind_type(L, BOX_TRACE, methods);
    bind_type(L, BOX_PLACES, NULL);
    luaL_setfuncs(L, functions, 0);
}
