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

static void push_bufs(lua_State *L, const Program *p, const Placement *place, const Life *life, size_t alignment) {
    lua_newtable(L);
    for (int b = 0, n = 0; b < p->n_bufs; b++) {
        const Buf *buf = &p->bufs[b];
        if (!life[b].used) continue;
        lua_createtable(L, 0, 9);
        bind_set_string(L, "name", buf->name);
        bind_set_string(L, "category", category_name(buf->category));
        bind_set_integer(L, "bytes", (lua_Integer)life[b].bytes);
        bind_set_integer(L, "size", (lua_Integer)align_up(life[b].bytes, alignment));
        bind_set_integer(L, "first", life[b].first + 1);
        bind_set_integer(L, "last", life[b].last + 1);
        bind_set_integer(L, "offset", (lua_Integer)place->offsets[b]);
        bind_set_boolean(L, "always", buf->kind == BUF_PERSISTENT);
        bind_set_boolean(L, "host", buf->host);
        lua_rawseti(L, -2, ++n);
    }
}

/* program:step() -> the table; arena: bytes from the first buffer's offset to the end of the last. A buffer in the host's
 * memory has its offset there. */
int bind_program_step(lua_State *L) {
    Err e;
    const Box *box = bind_box(L, 1, BOX_PROGRAM);
    const Program *p = box->content;
    const Device *device = box->parent[1]->content;
    const size_t alignment = device->table->alignment;
    Placement place;
    /* in Lua's memory, so that nothing is lost where a table cannot be made */
    Life *life = lua_newuserdatauv(L, ((size_t)p->n_bufs + 1) * sizeof *life, 0);
    size_t *offsets = lua_newuserdatauv(L, ((size_t)p->n_bufs + 1) * sizeof *offsets, 0);
    if (placement_build(p, alignment, &place, &e)) return bind_fail(L, &e);
    for (int b = 0; b < p->n_bufs; b++) offsets[b] = place.offsets[b];
    placement_free(&place);
    place.offsets = offsets;
    program_lives(p, life);
    lua_createtable(L, 0, 3);
    push_ops(L, p);
    lua_setfield(L, -2, "ops");
    push_bufs(L, p, &place, life, alignment);
    lua_setfield(L, -2, "bufs");
    bind_set_integer(L, "arena", (lua_Integer)place.arena);
    return 1;
}

/* ---- PyTorch's step */

/* The lives of a trace's tensors, counted in the allocations of its last step: 0: not alive in it. */
typedef struct TraceLife { int first, last; } TraceLife;

/* Fills life[n_tensors]; returns how many allocations the step has. A tensor that is freed between two allocations was
 * alive during the first of them. */
static int trace_lives(const Trace *t, int from, TraceLife *life) {
    int n = 0;
    for (int i = 0; i < t->n_tensors; i++) life[i] = (TraceLife){0, 0};
    for (int i = 0; i < t->n_events; i++) {
        const int event = t->events[i];
        if (event >= 0) life[event] = (TraceLife){i < from ? 1 : ++n, -1};
        else if (i < from || n == 0) life[~event].first = 0;
        else life[~event].last = n;
    }
    for (int i = 0; i < t->n_tensors; i++) if (life[i].last < 0) life[i].last = n;
    return n;
}

static void push_call(lua_State *L, const TraceCall *c) {
    bind_set_string(L, "name", c->op);
    bind_set_string(L, "layer", c->layer);
    bind_set_string(L, "where", c->where);
}

/* trace:step() -> the table of the last step, without offsets and arena: an op is an allocation, and it and its buffer have
 * `where`, the script's line. An op has its `event`, as predict's peak has one. No op has a phase: a trace does not say
 * it. */
int bind_trace_step(lua_State *L) {
    const Trace *t = bind_trace(L, 1);
    const int from = t->n_marks ? t->marks[t->n_marks - 1].event : 0;
    TraceLife *life = lua_newuserdatauv(L, ((size_t)t->n_tensors + 1) * sizeof *life, 0);
    lua_createtable(L, 0, 2);
    lua_createtable(L, trace_lives(t, from, life), 0);
    for (int i = from, n = 0; i < t->n_events; i++) {
        if (t->events[i] < 0) continue;
        lua_createtable(L, 0, 4);
        push_call(L, &t->calls[t->tensors[t->events[i]].call]);
        bind_set_integer(L, "event", i);
        lua_rawseti(L, -2, ++n);
    }
    lua_setfield(L, -2, "ops");
    lua_newtable(L);
    for (int i = 0, n = 0; i < t->n_tensors; i++) {
        const TraceTensor *x = &t->tensors[i];
        if (!life[i].first) continue;
        lua_createtable(L, 0, 8);
        push_call(L, &t->calls[x->call]);
        bind_set_string(L, "category", category_name(x->category));
        bind_set_integer(L, "bytes", (lua_Integer)x->bytes);
        bind_set_integer(L, "size", (lua_Integer)x->bytes);
        bind_set_integer(L, "first", life[i].first);
        bind_set_integer(L, "last", life[i].last);
        lua_rawseti(L, -2, ++n);
    }
    lua_setfield(L, -2, "bufs");
    return 1;
}
