/* A step as pictures need it: its ops in their order, and the buffers that live during them, as Lua tables. Of
 * memtide's program and of PyTorch's step alike: what reads the table need not know which of the two it has.
 *
 *   {ops = {{name, layer, phase}, ...},
 *    bufs = {{name, category, bytes, size, first, last, offset, always, host}, ...}, arena}
 *
 * first and last: numbers of ops, from 1, with first <= last; the buffer is alive during both. bytes: of the tensor;
 * size: with the alignment. */
#include "bind.h"
#include "bind_program.h"
#include "base/mem.h"



/* ---- memtide's step */

static void push_ops(lua_State *L, const Program *p) {
    lua_createtable(L, p->n_ops, 0);
    for (int i = 0; i < p->n_ops; i++) {
        lua_createtable(L, 0, 3);
        bind_set_string(L, "name", op_info(p->ops[i].kind)->name);
        bind_set_string(L, "layer", p->ops[i].path);
        bind_set_string(L, "phase", i < p->forward_end ? "forward" : i < p->body_end ? "backward" : "update");
        lua_rawseti(L, -2, i + 1);
    }
}

static void push_bufs(lua_State *L, const Program *p, const Placement *place) {
    lua_newtable(L);
    for (int b = 0, n = 0; b < p->n_bufs; b++) {
        const Buf *buf = &p->bufs[b];
        const Life *life = &place->life[b];
        if (!life->used) continue;
        lua_createtable(L, 0, 9);
        bind_set_string(L, "name", buf->name);
        bind_set_string(L, "category", category_name(buf->category));
        bind_set_integer(L, "bytes", (lua_Integer)life->bytes);
        bind_set_integer(L, "size", (lua_Integer)align_up(life->bytes, place->alignment));
        bind_set_integer(L, "first", life->first + 1);
        bind_set_integer(L, "last", life->last + 1);
        bind_set_integer(L, "offset", (lua_Integer)place->offsets[b]);
        bind_set_boolean(L, "always", life->persistent);
        bind_set_boolean(L, "host", life->host);
        lua_rawseti(L, -2, ++n);
    }
}

/* program:step() -> the table; arena: bytes from the first buffer's offset to the end of the last. A buffer in the host's
 * memory has its offset there. */
int bind_program_step(lua_State *L) {
    Err e;
    const Box *box = bind_box(L, 1, BOX_PROGRAM);
    Program *p = box->content;
    const Device *device = box->parent[1]->content;
    const Placement *place;
    if (placement_of(p, device->table->alignment, &place, &e)) return bind_fail(L, &e);
    lua_createtable(L, 0, 3);
    push_ops(L, p);
    lua_setfield(L, -2, "ops");
    push_bufs(L, p, place);
    lua_setfield(L, -2, "bufs");
    bind_set_integer(L, "arena", (lua_Integer)place->arena);
    return 1;
}

/* ---- PyTorch's step, or a recording */

static void release_places(void *content) {
    trace_places_free(content);
    mem_free(content);
}

TracePlaces *bind_places_new(lua_State *L) {
    Box *box = bind_new(L, BOX_PLACES, release_places);
    box->content = mem_new(sizeof(TracePlaces));
    if (!box->content) luaL_error(L, "out of host memory");
    return box->content;
}

/* The lives of a trace's tensors, counted in the allocations from event `from` on: 0: not alive then. */
typedef struct TraceLife { int first, last; bool before, after; } TraceLife;

/* Fills life[n_tensors]; returns how many allocations there are. A tensor that is freed between two allocations was
 * alive during the first of them. */
static int trace_lives(const Trace *t, int from, TraceLife *life) {
    int n = 0;
    for (int i = 0; i < t->n_tensors; i++) life[i] = (TraceLife){0};
    for (int i = 0; i < t->n_events; i++) {
        const int event = t->events[i];
        if (event >= 0) life[event] = (TraceLife){i < from ? 1 : ++n, -1, i < from, true};
        else if (i < from || n == 0) life[~event].first = 0;
        else life[~event].last = n, life[~event].after = false;
    }
    for (int i = 0; i < t->n_tensors; i++) if (life[i].last < 0) life[i].last = n;
    return n;
}

static void push_call(lua_State *L, const TraceCall *c) {
    bind_set_string(L, "name", c->op);
    bind_set_string(L, "layer", c->layer);
    bind_set_string(L, "where", c->where);
}

/* The segments of places, where op[i] is the number of allocations before event i. */
static void push_segments(lua_State *L, const TracePlaces *places, const int *op) {
    lua_createtable(L, places->n_segments, 0);
    for (int i = 0; i < places->n_segments; i++) {
        const TraceSegment *s = &places->segments[i];
        lua_createtable(L, 0, 7);
        bind_set_integer(L, "offset", (lua_Integer)s->address);
        bind_set_integer(L, "bytes", (lua_Integer)s->size);
        bind_set_integer(L, "op", op[s->event]);
        bind_set_boolean(L, "taken", s->taken);
        bind_set_boolean(L, "small", s->small);
        bind_set_boolean(L, "page", s->page);
        lua_rawseti(L, -2, i + 1);
    }
}

static void push_tensors(lua_State *L, const Trace *t, const TraceLife *life, const TracePlaces *places) {
    lua_newtable(L);
    for (int i = 0, n = 0; i < t->n_tensors; i++) {
        const TraceTensor *x = &t->tensors[i];
        if (!life[i].first) continue;
        lua_createtable(L, 0, 12);
        push_call(L, &t->calls[x->call]);
        bind_set_string(L, "category", category_name(x->category));
        bind_set_integer(L, "bytes", (lua_Integer)x->bytes);
        bind_set_integer(L, "size", (lua_Integer)places->size[i]);
        bind_set_integer(L, "offset", (lua_Integer)places->address[i]);
        bind_set_integer(L, "first", life[i].first);
        bind_set_integer(L, "last", life[i].last);
        bind_set_boolean(L, "before", life[i].before);
        bind_set_boolean(L, "after", life[i].after);
        lua_rawseti(L, -2, ++n);
    }
}

/* The same without an arena. An op is an allocation, and it and its buffer have `where`, the script's line. An op has its
 * `event`, as predict's peak has one; no op has a phase: a trace does not say it. size: of the buffer's block; offset: its
 * address; before, after: it was there before the first op, it is there after the last.
 * segments: {{offset, bytes, op, taken, small, page}, ...}, in order: what was taken from the device (else: given back) after
 * that op, and before the next; 0: before the first. */
int bind_push_trace(lua_State *L, const Trace *t, int from, const TracePlaces *places) {
    TraceLife *life = lua_newuserdatauv(L, ((size_t)t->n_tensors + 1) * sizeof *life, 0);
    int *op = lua_newuserdatauv(L, ((size_t)t->n_events + 1) * sizeof *op, 0);
    lua_createtable(L, 0, 3);
    lua_createtable(L, trace_lives(t, from, life), 0);
    for (int i = 0; i < from; i++) op[i] = 0;
    op[from] = 0;
    for (int i = from, n = 0; i < t->n_events; op[++i] = n) {
        if (t->events[i] < 0) continue;
        lua_createtable(L, 0, 4);
        push_call(L, &t->calls[t->tensors[t->events[i]].call]);
        bind_set_integer(L, "event", i);
        lua_rawseti(L, -2, ++n);
    }
    lua_setfield(L, -2, "ops");
    push_tensors(L, t, life, places);
    lua_setfield(L, -2, "bufs");
    push_segments(L, places, op);
    lua_setfield(L, -2, "segments");
    return 1;
}
