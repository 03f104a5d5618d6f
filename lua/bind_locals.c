/* Which values the variables of the running functions hold: how PyTorch's forward function, which a script's stands
 * for, keeps tensors alive. A local variable of Lua is taken as Python's: a name of its whole function, which holds what
 * it was bound to last, also after the block that it stands in, and while `return f(x)` runs f.
 *
 * A hook looks at the variables of a function when a line of it begins and when it calls something. Lua's tail calls
 * give a function's variables up before that; what was seen of them last is kept until the call returns. Lines are watched
 * only while a function runs whose variables count: memtide's own are called far more often than they are asked for. */
#include <string.h>

#include "base/mem.h"
#include "bind.h"

#define BOX_LOCALS "memtide.Locals"

typedef struct Locals {
    lua_State *L;
    struct Locals *outer; /* the one whose place this one has taken, or NULL */
    lua_Hook before;      /* the hook that a script had set, and how; it goes on */
    int mask, count;
    int depth;            /* of the running function: 1 for the one that began to watch */
} Locals;

static const char current; /* registry key: the Locals that watch */

static Locals *watching(lua_State *L) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, &current);
    Locals *w = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return w;
}

static void watch(lua_State *L, Locals *w) {
    lua_pushlightuserdata(L, w);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &current);
}

/* Functions of memtide's stand for one call of PyTorch's, but those that are networks themselves. */
static bool is_own(const char *source) {
    static const char *const networks[] = {"@memtide/net/models.lua", "@memtide/net/decoders.lua",
                                           "@memtide/net/clip.lua", "@memtide/net/encoders.lua",
                                           "@memtide/net/seq2seq.lua", "@memtide/net/transformer.lua"};
    for (size_t i = 0; i < ARRAY_LEN(networks); i++)
        if (!strcmp(source, networks[i])) return false;
    return !strncmp(source, "@memtide/", 9);
}

/* Do the variables of the function at that level count? Fills d. False where no function runs there. */
static bool counts(lua_State *L, int level, lua_Debug *d) {
    return lua_getstack(L, level, d) && lua_getinfo(L, "S", d) && *d->what != 'C' && !is_own(d->source);
}

/* Replaces the value on top of the stack by nil where it is neither a value of `metatable` nor a plain table. */
static void filter(lua_State *L, int metatable) {
    bool good = lua_istable(L, -1);
    if (good && lua_getmetatable(L, -1)) {
        good = lua_rawequal(L, -1, metatable);
        lua_pop(L, 1);
    }
    if (good) return;
    lua_pop(L, 1);
    lua_pushnil(L);
}

/* Notes the variables of the function at that level, whose depth is given: frames[depth][name] = value. */
static void see(lua_State *L, Locals *w, int level, int depth) {
    lua_Debug d;
    const int top = lua_gettop(L);
    if (!counts(L, level, &d)) return;
    lua_rawgetp(L, LUA_REGISTRYINDEX, w);
    lua_rawgeti(L, -1, 0);
    if (lua_rawgeti(L, top + 1, depth) == LUA_TNIL) {
        lua_pop(L, 1);
        lua_newtable(L);
        lua_pushvalue(L, -1);
        lua_rawseti(L, top + 1, depth);
    }
    const char *name;
    for (int i = 1; (name = lua_getlocal(L, &d, i)); i++) {
        if (*name == '(') { /* no variable of the script's */
            lua_pop(L, 1);
            continue;
        }
        filter(L, top + 2);
        lua_setfield(L, top + 3, name);
    }
    lua_settop(L, top);
}

/* frames[depth] = nil; tail: what it was goes on as [1] of a new one. */
static void leave(lua_State *L, Locals *w, bool tail) {
    const int top = lua_gettop(L);
    lua_rawgetp(L, LUA_REGISTRYINDEX, w);
    if (lua_rawgeti(L, -1, w->depth) != LUA_TNIL) {
        if (tail) {
            lua_newtable(L);
            lua_insert(L, -2);
            lua_rawseti(L, -2, 1);
        } else {
            lua_pushnil(L);
        }
        lua_rawseti(L, top + 1, w->depth);
    }
    lua_settop(L, top);
}

static void on_event(lua_State *L, lua_Debug *ar);

/* Watches lines, or no longer, as the function at that level asks for it. A hook that an interrupt has set stays. */
static void watch_lines(lua_State *L, const Locals *w, int level) {
    lua_Debug d;
    const int calls = LUA_MASKCALL | LUA_MASKRET;
    const int mask = (w->before ? w->mask : 0) & LUA_MASKLINE || counts(L, level, &d) ? calls | LUA_MASKLINE : calls;
    if (mask != lua_gethookmask(L) && lua_gethook(L) == on_event) lua_sethook(L, on_event, mask, 0);
}

static void on_event(lua_State *L, lua_Debug *ar) {
    static const int masks[] = {[LUA_HOOKCALL] = LUA_MASKCALL, [LUA_HOOKTAILCALL] = LUA_MASKCALL, [LUA_HOOKRET] = LUA_MASKRET,
        [LUA_HOOKLINE] = LUA_MASKLINE};
    Locals *w = watching(L);
    if (ar->event == LUA_HOOKCALL) {
        see(L, w, 1, w->depth++);
        watch_lines(L, w, 0);
    } else if (ar->event == LUA_HOOKLINE) {
        see(L, w, 0, w->depth);
    } else {
        const bool tail = ar->event == LUA_HOOKTAILCALL;
        leave(L, w, tail);
        if (!tail) w->depth--;
        watch_lines(L, w, tail ? 0 : 1);
    }
    if (w->before && w->mask & masks[ar->event]) w->before(L, ar);
}

static void release_locals(void *content) {
    Locals *w = content;
    /* An interrupt may have set a hook of its own: that one stays. */
    if (!w->outer && lua_gethook(w->L) == on_event) lua_sethook(w->L, w->before, w->mask, w->count);
    lua_pushnil(w->L);
    lua_rawsetp(w->L, LUA_REGISTRYINDEX, w);
    watch(w->L, w->outer);
    mem_free(w);
}

/* locals(metatable) -> Locals, which watch until they are closed: tables with that metatable are values */
static int locals(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    Box *box = bind_new(L, BOX_LOCALS, release_locals);
    Locals *w = mem_new(sizeof *w);
    if (!w) return luaL_error(L, "out of memory");
    w->outer = watching(L);
    w->L = L;
    w->before = w->outer ? w->outer->before : lua_gethook(L);
    w->mask = w->outer ? w->outer->mask : lua_gethookmask(L);
    w->count = lua_gethookcount(L);
    w->depth = 2; /* this function's */
    lua_newtable(L);
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, 0);
    lua_rawsetp(L, LUA_REGISTRYINDEX, w);
    watch(L, w);
    box->content = w;
    lua_sethook(L, on_event, LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE, 0);
    return 1;
}

/* locals:frames() -> {[depth] = {[name] = a value, or a plain table, [1] = such a frame that a tail call gave up}} of the
 * running functions, the values' metatable at 0 */
static int locals_frames(lua_State *L) {
    lua_rawgetp(L, LUA_REGISTRYINDEX, bind_get(L, 1, BOX_LOCALS));
    return 1;
}

void bind_open_locals(lua_State *L) {
    static const luaL_Reg methods[] = {{"frames", locals_frames}, {NULL, NULL}};
    bind_type(L, BOX_LOCALS, methods);
    lua_pushcfunction(L, locals);
    lua_setfield(L, -2, "locals");
}
