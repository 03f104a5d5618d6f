/* PyTorch's memory snapshots for scripts. */
#include <stdlib.h>
#include <string.h>

#include "bind.h"
#include "bind_program.h"
#include "base/mem.h"
#include "io/snapshot.h"
#include "memory/trace_compare.h"

static void release_snapshot(void *content) { snapshot_close(content); }

/* snapshot(path, GPU or nil) -> Snapshot */
static int open_snapshot(lua_State *L) {
    Err e;
    Snapshot *s;
    const char *path = bind_path(L, 1, "path", false);
    int device = (int)luaL_optinteger(L, 2, -1);
    Box *box = bind_new(L, BOX_SNAPSHOT, release_snapshot);
    if (snapshot_open(path, device, &s, &e)) return bind_fail(L, &e);
    box->content = s;
    return 1;
}

/* Calls walk(s, ledger, arg) over a ledger with that limit; memory is only counted. */
static int on_ledger(const Snapshot *s, size_t limit, int (*walk)(const Snapshot *, Ledger *, void *, Err *), void *arg,
                     Err *e) {
    Device *cpu = NULL, *dry = NULL;
    Ledger ledger;
    int code = device_open("cpu", &cpu, e);
    if (!code) code = device_dry_open(cpu, &dry, e);
    if (!code) {
        ledger_open(&ledger, dry, limit);
        code = walk(s, &ledger, arg, e);
        device_close(dry);
    }
    if (cpu) device_close(cpu);
    return code;
}

static void set_size(lua_State *L, const char *key, size_t value) { bind_set_integer(L, key, (lua_Integer)value); }

/* snapshot:info() -> what it holds */
static int info(lua_State *L) {
    const Snapshot *s = bind_get(L, 1, BOX_SNAPSHOT);
    lua_createtable(L, 0, 12);
    bind_set_integer(L, "device", s->device);
    bind_set_integer(L, "devices", s->devices);
    bind_set_integer(L, "allocations", s->trace.n_tensors - s->n_start);
    bind_set_integer(L, "frees", s->trace.n_events - s->trace.n_tensors);
    bind_set_integer(L, "tensors_start", s->n_start);
    bind_set_integer(L, "segments_start", s->n_start_segments);
    bind_set_boolean(L, "expandable", s->expandable);
    bind_set_integer(L, "ooms", s->ooms);
    set_size(L, "oom_bytes", s->oom_bytes);
    set_size(L, "reserved_start", s->reserved_start);
    set_size(L, "reserved_peak", s->reserved_peak);
    set_size(L, "reserved_end", s->reserved_end);
    return 1;
}

static int walk_replay(const Snapshot *s, Ledger *l, void *arg, Err *e) { return snapshot_replay(s, l, arg, NULL, e); }

typedef struct PlacesReplay { SnapshotReplay replay; TracePlaces *places; } PlacesReplay;

static int walk_places(const Snapshot *s, Ledger *l, void *arg, Err *e) {
    PlacesReplay *both = arg;
    return snapshot_places(s, l, &both->replay, both->places, e);
}

/* snapshot:step() -> the whole recording as trace:step() gives a step, where nothing has a layer */
static int snapshot_step(lua_State *L) {
    Err e;
    const Snapshot *s = bind_get(L, 1, BOX_SNAPSHOT);
    PlacesReplay both = {.places = bind_places_new(L)};
    if (on_ledger(s, 0, walk_places, &both, &e)) return bind_fail(L, &e);
    return bind_push_trace(L, &s->trace, s->n_start, both.places);
}

static void push_peak(lua_State *L, const Snapshot *s, const SnapshotPeak *p) {
    lua_createtable(L, 0, 7);
    bind_set_integer(L, "event", p->event - s->n_start + 1);
    set_size(L, "requested", p->requested);
    set_size(L, "allocated", p->allocated);
    set_size(L, "split", p->split);
    set_size(L, "cached", p->cached);
    set_size(L, "reserved", p->reserved);
}

/* snapshot:replay() -> {peak =, equal =, different =, first =, difference =, ...} */
static int replay(lua_State *L) {
    const Snapshot *s = bind_get(L, 1, BOX_SNAPSHOT);
    SnapshotReplay r;
    Err e;
    if (on_ledger(s, 0, walk_replay, &r, &e)) return bind_fail(L, &e);
    lua_createtable(L, 0, 12);
    push_peak(L, s, &r.peak);
    lua_setfield(L, -2, "peak");
    set_size(L, "reserved_peak", r.reserved_peak);
    set_size(L, "requested_peak", r.requested_peak);
    set_size(L, "allocated_start", r.allocated_start);
    set_size(L, "allocated_end", r.allocated_end);
    set_size(L, "reserved_end", r.reserved_end);
    bind_set_integer(L, "equal", r.equal);
    bind_set_integer(L, "different", r.different);
    bind_set_integer(L, "segments_equal", r.segments_equal);
    bind_set_integer(L, "segments_different", r.segments_different);
    if (r.first >= 0) bind_set_integer(L, "first", r.first - s->n_start + 1);
    bind_set_string(L, "difference", r.difference);
    return 1;
}

typedef struct WhatIf { CachingSettings settings; TracePeak peak; } WhatIf;

static int walk_what_if(const Snapshot *s, Ledger *l, void *arg, Err *e) {
    WhatIf *w = arg;
    return trace_replay(&s->trace, &w->settings, l, s->n_start, &w->peak, NULL, e);
}

/* snapshot:what_if(alloc_conf or nil, limit or nil) -> {fits =, allocated =, reserved =, reason =}: the same requests
 * from an empty allocator with other settings (nil: those of the recording), and at most `limit` bytes */
static int what_if(lua_State *L) {
    const Snapshot *s = bind_get(L, 1, BOX_SNAPSHOT);
    WhatIf w = {.settings = s->settings};
    Err e;
    const char *conf = luaL_optstring(L, 2, NULL);
    if (conf && caching_settings_parse(conf, &w.settings, &e)) return bind_fail(L, &e);
    int code = on_ledger(s, (size_t)luaL_optinteger(L, 3, 0), walk_what_if, &w, &e);
    if (code && code != ERR_OOM) return bind_fail(L, &e);
    lua_createtable(L, 0, 4);
    bind_set_boolean(L, "fits", !code);
    set_size(L, "allocated", w.peak.allocated);
    set_size(L, "reserved", w.peak.reserved);
    if (code) bind_set_string(L, "reason", e.text);
    return 1;
}

/* check_alloc_conf(text): raises where it is wrong */
static int check_alloc_conf(lua_State *L) {
    CachingSettings settings;
    Err e;
    if (caching_settings_parse(luaL_checkstring(L, 1), &settings, &e)) return bind_fail(L, &e);
    return 0;
}

/* ---- who has allocated what */

/* Which tensors live after the event. NULL: out of host memory. */
static bool *alive_at(const Snapshot *s, int event) {
    const Trace *t = &s->trace;
    bool *alive = mem_new((size_t)t->n_tensors * sizeof *alive);
    int last = event < s->n_start ? s->n_start - 1 : event;
    for (int i = 0; i <= last && alive; i++) alive[t->events[i] < 0 ? ~t->events[i] : t->events[i]] = t->events[i] >= 0;
    return alive;
}

typedef struct CallSum { size_t count, bytes, live, live_bytes; } CallSum;

static void push_calls(lua_State *L, const Trace *t, const CallSum *sum) {
    lua_createtable(L, t->n_calls, 0);
    for (int i = 0, n = 0; i < t->n_calls; i++) {
        if (!sum[i].count && !sum[i].live) continue;
        lua_createtable(L, 0, 6);
        bind_set_string(L, "op", t->calls[i].op);
        bind_set_string(L, "where", t->calls[i].where);
        set_size(L, "count", sum[i].count);
        set_size(L, "bytes", sum[i].bytes);
        set_size(L, "live", sum[i].live);
        set_size(L, "live_bytes", sum[i].live_bytes);
        lua_rawseti(L, -2, ++n);
    }
}

typedef struct Ranked { size_t bytes; int tensor; } Ranked;

static int by_bytes(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    return x->bytes == y->bytes ? x->tensor - y->tensor : x->bytes > y->bytes ? -1 : 1;
}

static void push_tensor(lua_State *L, const Snapshot *s, int tensor, int event, int born) {
    const TraceTensor *t = &s->trace.tensors[tensor];
    lua_createtable(L, 0, 6);
    set_size(L, "bytes", t->bytes);
    bind_set_string(L, "op", s->trace.calls[t->call].op);
    bind_set_string(L, "where", s->trace.calls[t->call].where);
    bind_set_boolean(L, "start", tensor < s->n_start);
    if (tensor < s->n_start || event < s->n_start) return;
    bind_set_integer(L, "events", event - born);
    if (s->tensors[tensor].time_us && s->time_us[event])
        bind_set_integer(L, "age_us", s->time_us[event] - s->tensors[tensor].time_us);
}

/* The largest ones that live after the event. */
static bool push_largest(lua_State *L, const Snapshot *s, const bool *alive, int event, int most) {
    int n = s->trace.n_tensors, found = 0;
    Ranked *list = mem_new((size_t)n * sizeof *list);
    int *born = mem_new((size_t)n * sizeof *born);
    for (int i = 0; i < n && list; i++)
        if (alive[i]) list[found++] = (Ranked){s->trace.tensors[i].bytes, i};
    for (int i = 0; i < s->trace.n_events && born; i++)
        if (s->trace.events[i] >= 0) born[s->trace.events[i]] = i;
    bool good = list && born;
    if (good && found) qsort(list, (size_t)found, sizeof *list, by_bytes);
    lua_newtable(L);
    for (int i = 0; good && i < found && i < most; i++) {
        push_tensor(L, s, list[i].tensor, event, born[list[i].tensor]);
        lua_rawseti(L, -2, i + 1);
    }
    mem_free(list);
    mem_free(born);
    return good;
}

/* snapshot:who(event, most) -> calls, tensors: what each call has allocated in the recording and still has after the
 * event, and the `most` largest tensors then */
static int who(lua_State *L) {
    const Snapshot *s = bind_get(L, 1, BOX_SNAPSHOT);
    const Trace *t = &s->trace;
    int event = (int)luaL_checkinteger(L, 2) + s->n_start - 1, most = (int)luaL_checkinteger(L, 3);
    if (event < s->n_start - 1 || event >= t->n_events) return luaL_error(L, "no such event");
    bool *alive = alive_at(s, event);
    CallSum *sum = mem_new((size_t)t->n_calls * sizeof *sum);
    for (int i = 0; i < t->n_tensors && sum && alive; i++) {
        CallSum *c = &sum[t->tensors[i].call];
        if (i >= s->n_start) c->count++, c->bytes += t->tensors[i].bytes;
        if (alive[i]) c->live++, c->live_bytes += t->tensors[i].bytes;
    }
    bool good = sum && alive;
    if (good) push_calls(L, t, sum);
    if (good) good = push_largest(L, s, alive, event, most);
    mem_free(alive);
    mem_free(sum);
    return good ? 2 : bind_fail(L, &(Err){ERR_HOST_MEMORY, "out of host memory for the tensors of a snapshot"});
}

/* snapshot:events() -> an iterator of kind ("alloc", "free"), number of the tensor, bytes, op, where: from the start of
 * the recording on */
static int next_event(lua_State *L) {
    const Snapshot *s = bind_get(L, lua_upvalueindex(1), BOX_SNAPSHOT);
    int i = (int)lua_tointeger(L, lua_upvalueindex(2));
    if (i >= s->trace.n_events) return 0;
    lua_pushinteger(L, i + 1);
    lua_replace(L, lua_upvalueindex(2));
    int event = s->trace.events[i], tensor = event < 0 ? ~event : event;
    const TraceTensor *t = &s->trace.tensors[tensor];
    lua_pushstring(L, event < 0 ? "free" : "alloc");
    lua_pushinteger(L, tensor + 1);
    lua_pushinteger(L, (lua_Integer)t->bytes);
    lua_pushstring(L, s->trace.calls[t->call].op);
    lua_pushstring(L, s->trace.calls[t->call].where);
    return 5;
}

static int events(lua_State *L) {
    const Snapshot *s = bind_get(L, 1, BOX_SNAPSHOT);
    lua_pushvalue(L, 1);
    lua_pushinteger(L, s->n_start);
    lua_pushcclosure(L, next_event, 2);
    return 1;
}

/* ---- beside a prediction */

/* Pushes what an event of the trace is. */
static void push_event(lua_State *L, const Trace *t, int event) {
    const TraceTensor *x = &t->tensors[t->events[event] < 0 ? ~t->events[event] : t->events[event]];
    const TraceCall *c = &t->calls[x->call];
    lua_createtable(L, 0, 6);
    bind_set_string(L, "kind", t->events[event] < 0 ? "free" : "alloc");
    set_size(L, "bytes", x->bytes);
    bind_set_string(L, "op", c->op);
    bind_set_string(L, "layer", c->layer);
    bind_set_string(L, "where", c->where);
}

static void push_ops(lua_State *L, const TraceComparison *c) {
    lua_createtable(L, c->n_ops, 0);
    for (int i = 0; i < c->n_ops; i++) {
        const TraceOp *o = &c->ops[i];
        lua_createtable(L, 0, 6);
        bind_set_string(L, "predicted_op", o->op[0]);
        bind_set_string(L, "recorded_op", o->op[1]);
        set_size(L, "predicted", o->count[0]);
        set_size(L, "recorded", o->count[1]);
        set_size(L, "predicted_bytes", o->bytes[0]);
        set_size(L, "recorded_bytes", o->bytes[1]);
        lua_rawseti(L, -2, i + 1);
    }
}

/* snapshot:compare(trace) -> {pairs =, equal =, difference =, ops = {...}, ...}: the last step of the trace, looked for
 * in the recording */
static int compare(lua_State *L) {
    const Snapshot *s = bind_get(L, 1, BOX_SNAPSHOT);
    const Trace *t = bind_trace(L, 2);
    const Trace *both[2] = {t, &s->trace};
    TraceComparison c;
    Err e;
    if (trace_compare(t, t->marks[t->n_marks - 1].event, t->n_events, &s->trace, s->n_start, &c, &e)) return bind_fail(L, &e);
    lua_createtable(L, 0, 12);
    if (c.pairs) {
        bind_set_integer(L, "first_event", c.begin - s->n_start + 1);
        bind_set_integer(L, "last_event", c.end - s->n_start);
    }
    bind_set_integer(L, "pairs", c.pairs);
    bind_set_integer(L, "equal", c.equal);
    bind_set_integer(L, "only_predicted", c.only[0]);
    bind_set_integer(L, "only_recorded", c.only[1]);
    bind_set_integer(L, "outside", c.outside);
    bind_set_integer(L, "moved", c.moved);
    for (int i = 0; i < 2; i++) {
        if (c.event[i] < 0) continue;
        push_event(L, both[i], c.event[i]);
        if (i) bind_set_integer(L, "event", c.event[i] - s->n_start + 1);
        lua_setfield(L, -2, i ? "recorded" : "predicted");
    }
    push_ops(L, &c);
    lua_setfield(L, -2, "ops");
    trace_comparison_free(&c);
    return 1;
}

void bind_open_snapshot(lua_State *L) {
    static const luaL_Reg methods[] = {{"info", info}, {"replay", replay}, {"what_if", what_if}, {"who", who},
        {"events", events}, {"step", snapshot_step}, {"compare", compare}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"snapshot", open_snapshot}, {"check_alloc_conf", check_alloc_conf},
        {NULL, NULL}};
    bind_type(L, BOX_SNAPSHOT, methods);
    luaL_setfuncs(L, functions, 0);
}
