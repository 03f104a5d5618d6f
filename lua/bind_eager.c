/* The step that PyTorch makes of a network, for scripts. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bind.h"
#include "bind_program.h"
#include "eager/eager.h"

/* A step is like the one before it once states and gradients are there: the third is looked at. */
enum { STEPS = 3 };

typedef struct EagerBox { Trace trace; CachingSettings caching; ConvCalls convs; } EagerBox;

static void release(void *content) {
    EagerBox *box = content;
    trace_free(&box->trace);
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

/* eager(network, settings, card) -> the trace of three steps of PyTorch's loop */
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
    int code = content ? eager_trace(n, &s, card, STEPS, &content->trace, &content->convs, &e)
                       : err_set(&e, ERR_HOST_MEMORY, "out of host memory for a trace");
    if (code) return bind_fail(L, &e);
    content->caching = s.pytorch.caching;
    return 1;
}

const Trace *bind_trace(lua_State *L, int index) { return &((EagerBox *)bind_get(L, index, BOX_TRACE))->trace; }

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

/* Walks the trace on a device that only counts. */
static int replay(const EagerBox *box, size_t limit, int from, TracePeak *peak, Err *e) {
    Device *cpu, *dry;
    Ledger ledger;
    int code = device_open("cpu", &cpu, e);
    if (code) return code;
    if (!(code = device_dry_open(cpu, &dry, e))) {
        ledger_open(&ledger, dry, limit);
        code = trace_replay(&box->trace, &box->caching, &ledger, from, peak, e);
        device_close(dry);
    }
    device_close(cpu);
    return code;
}

/* trace:predict{memory = limit in bytes, context = bytes of the process's context, if it is known} -> what program:predict
 * gives, and max_memory_allocated, max_memory_reserved, needs (what the device must have), and, where the context is
 * known, device_bytes, which is the same */
static int predict_trace(lua_State *L) {
    Err e;
    const EagerBox *box = bind_get(L, 1, BOX_TRACE);
    const Trace *t = &box->trace;
    luaL_checktype(L, 2, LUA_TTABLE);
    const size_t limit = bind_bytes(L, 2, "memory"), context = bind_bytes(L, 2, "context");
    TracePeak peak;
    /* a limit of 0 is none: a card that the context fills has room for a byte */
    const size_t room = limit > context ? limit - context : limit ? 1 : 0;
    int code = replay(box, room, t->marks[t->n_marks - 1].event, &peak, &e);
    if (code && code != ERR_OOM) return bind_fail(L, &e);
    lua_createtable(L, 0, 10);
    bind_set_integer(L, "lower_bound", (lua_Integer)peak.allocated);
    bind_set_integer(L, "allocated", (lua_Integer)peak.allocated_end);
    bind_set_integer(L, "reserved", (lua_Integer)peak.reserved_end);
    bind_set_integer(L, "host", 0);
    bind_set_boolean(L, "fits", code == OK);
    if (code) bind_set_string(L, "reason", e.text);
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

/* trace:cost() -> 0, 0, 0: it is never run */
static int cost(lua_State *L) {
    for (int i = 0; i < 3; i++) lua_pushinteger(L, 0);
    return 3;
}

/* trace:convolutions() -> {table, library, estimate}: how many passes of convolutions in a step have their workspace from there;
 * {table, library}: which version of cuDNN it was, "9.26.0"; are all of them exact? */
static int convolutions(lua_State *L) {
    static const char *const names[] = {
#define X(name, text, what) text,
        WORKSPACE_SOURCES(X)
#undef X
    };
    const EagerBox *box = bind_get(L, 1, BOX_TRACE);
    lua_createtable(L, 0, WORKSPACE_SOURCE_COUNT);
    for (int i = 0; i < WORKSPACE_SOURCE_COUNT; i++) bind_set_integer(L, names[i], box->convs.count[i] / STEPS);
    lua_newtable(L);
    for (int i = 0; i < WORKSPACE_SOURCE_COUNT; i++) {
        const int version = (int)box->convs.version[i];
        if (!version) continue;
        lua_pushfstring(L, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
        lua_setfield(L, -2, names[i]);
    }
    lua_pushboolean(L, !box->convs.range);
    return 3;
}

/* cards() -> {{name, title, memory, log, multiprocessors, threads, cublas_workspace, context, source}, ...}, and the least and
 * the most of a context that is unknown */
static int cards(lua_State *L) {
    lua_newtable(L);
    for (int i = 0; card_info(i); i++) {
        const Card *c = card_info(i);
        lua_createtable(L, 0, 9);
        bind_set_string(L, "name", c->name);
        bind_set_string(L, "title", c->title);
        bind_set_integer(L, "memory", (lua_Integer)c->memory);
        bind_set_string(L, "log", c->log);
        bind_set_integer(L, "multiprocessors", c->multiprocessors);
        bind_set_integer(L, "threads", c->threads);
        bind_set_integer(L, "cublas_workspace", c->cublas_workspace);
        if (c->context) bind_set_integer(L, "context", (lua_Integer)c->context);
        bind_set_string(L, "source", c->source);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushinteger(L, CONTEXT_LEAST);
    lua_pushinteger(L, CONTEXT_MOST);
    return 3;
}

void bind_open_eager(lua_State *L) {
    static const luaL_Reg methods[] = {{"dump", dump}, {"predict", predict_trace}, {"alive", alive}, {"cost", cost}, {"convolutions", convolutions}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"eager", new_trace}, {"cards", cards}, {NULL, NULL}};
    bind_type(L, BOX_TRACE, methods);
    luaL_setfuncs(L, functions, 0);
}
