/* Boxes, errors and values: what all bindings use. */
#include "bind.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/nearest.h"
#include "base/number.h"

/* ---- boxes */

/* Releases a closed box that nobody borrows from, then its parents. An empty box, whose content could not be made, has
 * parents too. */
static void box_release(Box *b) {
    if (!b->closed || b->users > 0) return;
    if (b->content) b->release(b->content);
    b->content = NULL;
    for (int i = 0; i < BOX_PARENTS && b->parent[i]; i++) {
        assert(b->parent[i]->users > 0);
        b->parent[i]->users--;
        box_release(b->parent[i]);
        b->parent[i] = NULL;
    }
}

static int box_close(lua_State *L) {
    Box *b = lua_touserdata(L, 1);
    b->closed = true;
    box_release(b);
    return 0;
}

static int box_text(lua_State *L) {
    Box *b = lua_touserdata(L, 1);
    lua_getfield(L, lua_upvalueindex(1), "__name");
    lua_pushfstring(L, "%s (%s)", lua_tostring(L, -1), b->closed ? "closed" : "open");
    return 1;
}

static int box_close_method(lua_State *L) {
    lua_pushvalue(L, lua_upvalueindex(1));
    if (!lua_getmetatable(L, 1) || !lua_rawequal(L, -1, -2)) return luaL_argerror(L, 1, "an object to close expected");
    lua_settop(L, 1);
    box_close(L);
    lua_pushboolean(L, true);
    return 1;
}

void bind_type(lua_State *L, const char *type, const luaL_Reg *methods) {
    luaL_newmetatable(L, type);
    lua_pushcfunction(L, box_close);
    lua_setfield(L, -2, "__gc");
    lua_pushcfunction(L, box_close);
    lua_setfield(L, -2, "__close");
    lua_pushvalue(L, -1);
    lua_pushcclosure(L, box_text, 1);
    lua_setfield(L, -2, "__tostring");
    lua_pushboolean(L, false); /* getmetatable: a script cannot call __gc on something else */
    lua_setfield(L, -2, "__metatable");
    lua_newtable(L);
    lua_pushvalue(L, -2);
    lua_pushcclosure(L, box_close_method, 1);
    lua_setfield(L, -2, "close");
    if (methods) luaL_setfuncs(L, methods, 0);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}

Box *bind_new(lua_State *L, const char *type, void (*release)(void *)) {
    Box *b = lua_newuserdatauv(L, sizeof *b, BOX_PARENTS);
    memset(b, 0, sizeof *b);
    b->release = release;
    luaL_setmetatable(L, type);
    return b;
}

void bind_borrow(lua_State *L, Box *box, int index, const char *type) {
    Box *parent = bind_box(L, index, type);
    assert(lua_touserdata(L, -1) == box && index > 0);
    int i = 0;
    while (i < BOX_PARENTS && box->parent[i]) i++;
    if (i == BOX_PARENTS) bind_error(L, "an object can be made from at most %d others", BOX_PARENTS);
    lua_pushvalue(L, index);
    lua_setiuservalue(L, -2, i + 1);
    box->parent[i] = parent;
    parent->users++;
}

Box *bind_box(lua_State *L, int index, const char *type) {
    Box *b = luaL_testudata(L, index, type);
    if (!b) bind_error(L, "expected a %s, found %s", strchr(type, '.') + 1, bind_show(L, index));
    if (b->closed || !b->content) bind_error(L, "this %s is closed", strchr(type, '.') + 1);
    return b;
}

void *bind_get(lua_State *L, int index, const char *type) { return bind_box(L, index, type)->content; }

/* ---- errors */

/* Pushes "script.lua:7: ", or "" when no function of a script is running. */
static void push_where(lua_State *L) {
    lua_Debug d;
    for (int level = 0; lua_getstack(L, level, &d); level++) {
        lua_getinfo(L, "Sl", &d);
        if (d.currentline <= 0 || !strncmp(d.source, "@memtide/", 9)) continue;
        lua_pushfstring(L, "%s:%d: ", d.short_src, d.currentline);
        return;
    }
    lua_pushliteral(L, "");
}

int bind_raise(lua_State *L, const char *text) { return bind_error(L, "%s", text); }

int bind_error(lua_State *L, const char *format, ...) {
    va_list args;
    va_start(args, format);
    push_where(L);
    lua_pushvfstring(L, format, args);
    va_end(args);
    lua_concat(L, 2);
    return lua_error(L);
}

int bind_fail(lua_State *L, const Err *e) {
    assert(e->code != OK);
    if (e->code == ERR_SCRIPT) return bind_raise(L, e->text);
    const char *name = err_name(e->code);
    char lower[32];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof lower; n++) lower[n] = (char)tolower((unsigned char)name[n]);
    lua_pushnil(L);
    lua_pushstring(L, e->text);
    lua_pushlstring(L, lower, n);
    return 3;
}

/* where() -> "script.lua:7: " */
static int where(lua_State *L) {
    push_where(L);
    return 1;
}

/* try(f, handler or nil, ...) -> true and what f(...) returns; false and what handler(error) returns (without a
 * handler, the error); or false, nil, true: Lua ran out of memory, for which no handler is called */
static int try_call(lua_State *L) {
    luaL_checkany(L, 2);
    lua_pushvalue(L, 1);
    lua_insert(L, 3);
    int status = lua_pcall(L, lua_gettop(L) - 3, LUA_MULTRET, lua_isnil(L, 2) ? 0 : 2);
    if (status == LUA_ERRMEM) {
        lua_pushboolean(L, false);
        lua_pushnil(L);
        lua_pushboolean(L, true);
        return 3;
    }
    lua_pushboolean(L, status == LUA_OK);
    lua_replace(L, 2);
    return lua_gettop(L) - 1;
}

/* ---- text */

static void text_release(void *content) {
    Text *t = content;
    mem_free(t->chars);
    mem_free(t);
}

Text *bind_text_new(lua_State *L) {
    Box *b = bind_new(L, BOX_TEXT, text_release);
    b->content = mem_new(sizeof(Text));
    if (!b->content) bind_error(L, "out of host memory");
    return b->content;
}

void bind_text_line(void *text, const char *line) {
    Text *t = text;
    size_t n = strlen(line);
    if (n > INT32_MAX / 4 || t->failed || !mem_grow(&t->chars, &t->cap, t->length + (int)n + 1, 1)) {
        t->failed = true;
        return;
    }
    memcpy(t->chars + t->length, line, n);
    t->length += (int)n;
    if (n == 0 || line[n - 1] != '\n') t->chars[t->length++] = '\n';
}

int bind_text_push(lua_State *L, const Text *text) {
    if (text->failed) return bind_error(L, "out of host memory for a text");
    lua_pushlstring(L, text->chars ? text->chars : "", (size_t)text->length);
    return 1;
}

/* ---- values */

lua_Integer bind_integer(lua_State *L, int index, const char *key, lua_Integer otherwise) {
    int is_integer;
    if (lua_getfield(L, index, key) == LUA_TNIL) {
        lua_pop(L, 1);
        return otherwise;
    }
    lua_Integer value = lua_tointegerx(L, -1, &is_integer);
    if (!is_integer) bind_error(L, "%s: expected a whole number, found %s", key, bind_show(L, -1));
    lua_pop(L, 1);
    return value;
}

bool bind_flag(lua_State *L, int index, const char *what) {
    if (!lua_isboolean(L, index)) bind_error(L, "%s: expected true or false, found %s", what, bind_show(L, index));
    return lua_toboolean(L, index);
}

bool bind_boolean(lua_State *L, int index, const char *key, bool otherwise) {
    bool value = lua_getfield(L, index, key) == LUA_TNIL ? otherwise : bind_flag(L, lua_gettop(L), key);
    lua_pop(L, 1);
    return value;
}

const char *bind_string(lua_State *L, int index, const char *key, const char *otherwise) {
    int type = lua_getfield(L, index, key);
    if (type != LUA_TNIL && type != LUA_TSTRING)
        bind_error(L, "%s: expected a string, found %s", key, bind_show(L, -1));
    const char *value = type == LUA_TNIL ? otherwise : lua_tostring(L, -1);
    lua_pop(L, 1); /* the table still holds it */
    return value;
}

const char *bind_text_at(lua_State *L, int index, const char *what) {
    if (lua_type(L, index) != LUA_TSTRING) bind_error(L, "%s: expected a string, found %s", what, bind_show(L, index));
    return lua_tostring(L, index);
}

const char *bind_show(lua_State *L, int index) {
    switch (lua_type(L, index)) {
    case LUA_TNONE: return lua_pushliteral(L, "nothing");
    case LUA_TNIL: case LUA_TBOOLEAN: case LUA_TNUMBER: return luaL_tolstring(L, index, NULL);
    case LUA_TSTRING: return lua_pushfstring(L, "\"%s\"", lua_tostring(L, index));
    default: return lua_pushfstring(L, "a %s", luaL_typename(L, index));
    }
}

void bind_set_integer(lua_State *L, const char *key, lua_Integer value) {
    lua_pushinteger(L, value);
    lua_setfield(L, -2, key);
}

void bind_set_number(lua_State *L, const char *key, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

void bind_set_string(lua_State *L, const char *key, const char *value) {
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
}

void bind_set_boolean(lua_State *L, const char *key, bool value) {
    lua_pushboolean(L, value);
    lua_setfield(L, -2, key);
}

Shape bind_shape(lua_State *L, int index) {
    Shape s = {0, {1, 1, 1, 1}};
    if (!lua_istable(L, index))
        bind_error(L, "expected a shape such as {3, 32, 32}, found %s", bind_show(L, index));
    lua_Unsigned n = lua_rawlen(L, index);
    if (n < 1 || n > SHAPE_MAX) bind_error(L, "a shape has 1 to %d dimensions, found %d", SHAPE_MAX, (int)n);
    s.rank = (int)n;
    for (int i = 0; i < s.rank; i++) {
        int is_integer;
        lua_rawgeti(L, index, i + 1);
        s.dim[i] = lua_tointegerx(L, -1, &is_integer);
        if (!is_integer || s.dim[i] < 1)
            bind_error(L, "dimension %d of a shape: expected a whole number of at least 1, found %s", i + 1,
                       bind_show(L, -1));
        lua_pop(L, 1);
    }
    return s;
}

void bind_push_shape(lua_State *L, const Shape *s) {
    lua_createtable(L, s->rank, 0);
    for (int i = 0; i < s->rank; i++) {
        lua_pushinteger(L, s->dim[i]);
        lua_rawseti(L, -2, i + 1);
    }
}

/* Sets `o` from the list of numbers on top of the stack. */
static int set_list(lua_State *L, Option *o, Err *e) {
    int64_t n = (int64_t)lua_rawlen(L, -1);
    double *values = lua_newuserdatauv(L, (size_t)n * sizeof *values, 0);
    for (int64_t i = 0; i < n; i++) {
        if (lua_rawgeti(L, -2, i + 1) != LUA_TNUMBER)
            return err_set(e, ERR_SCRIPT, "option \"%s\": expected numbers, found a %s as number %lld", o->name,
                           luaL_typename(L, -1), (long long)i + 1);
        values[i] = lua_tonumber(L, -1);
        lua_pop(L, 1);
    }
    int code = option_set_list(o, values, n, e);
    lua_pop(L, 1);
    return code;
}

/* Sets `o` from the value on top of the stack. */
static int set_option(lua_State *L, Option *o, Err *e) {
    if (option_takes_list(o) && lua_type(L, -1) == LUA_TTABLE) return set_list(L, o, e);
    switch (lua_type(L, -1)) {
    case LUA_TNUMBER: return option_set_number(o, lua_tonumber(L, -1), e);
    case LUA_TBOOLEAN: return option_set_bool(o, lua_toboolean(L, -1), e);
    case LUA_TSTRING: return option_set_word(o, lua_tostring(L, -1), e);
    case LUA_TTABLE:
        if (lua_rawlen(L, -1) != 2) break;
        lua_rawgeti(L, -1, 1);
        lua_rawgeti(L, -2, 2);
        double first = lua_tonumber(L, -2), second = lua_tonumber(L, -1);
        bool numbers = lua_isnumber(L, -2) && lua_isnumber(L, -1);
        lua_pop(L, 2);
        if (numbers) return option_set_numbers(o, first, second, e);
        break;
    default: break;
    }
    return err_set(e, ERR_SCRIPT, "option \"%s\": expected a number, true or false, a word or a pair of numbers, "
                   "found a %s", o->name, luaL_typename(L, -1));
}

int bind_options(lua_State *L, int index, Options *o, Err *e) {
    index = lua_absindex(L, index);
    assert(lua_istable(L, index));
    for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            return err_set(e, ERR_SCRIPT, "options are given by name, found a %s as a name", luaL_typename(L, -2));
        Option *option = options_find(o, lua_tostring(L, -2), e);
        if (!option || set_option(L, option, e)) return ERR_SCRIPT;
    }
    return options_finish(o, e);
}

/* check_options(spec, {name = value}) -> "kernel_size=3x3 ..."; nil and a message if a name or value is wrong */
static int check_options(lua_State *L) {
    Err e;
    Options o;
    char text[OPTIONS_TEXT];
    const char *spec = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    int code = options_parse(&o, spec, &e);
    if (!code) code = bind_options(L, 2, &o, &e);
    if (!code) options_text(&o, text, sizeof text);
    options_free(&o);
    if (code) {
        lua_pushnil(L);
        lua_pushstring(L, e.text);
        return 2;
    }
    lua_pushstring(L, text);
    return 1;
}

/* ---- small services */

/* make_folder(path) -> true: it is there now. Its parent folder must exist. */
static int make_folder(lua_State *L) {
    lua_pushboolean(L, !mkdir(luaL_checkstring(L, 1), 0777) || errno == EEXIST);
    return 1;
}

/* nearest(name, {known, ...}) -> the known name that was probably meant; nil: none is near */
static int nearest(lua_State *L) {
    Nearest n = nearest_to(luaL_checkstring(L, 1));
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    lua_pushnil(L);
    for (int i = 1; lua_rawgeti(L, 2, i) != LUA_TNIL; i++) {
        if (nearest_try(&n, luaL_tolstring(L, -1, NULL))) lua_copy(L, -2, 3);
        lua_settop(L, 3);
    }
    lua_settop(L, 3);
    return 1;
}

/* hash(text) -> 16 hexadecimal digits (FNV-1a, 64 bits) */
static int hash(lua_State *L) {
    size_t n;
    const char *s = luaL_checklstring(L, 1, &n);
    char text[17];
    uint64_t h = hash_bytes(HASH_START, s, n);
    for (int i = 0; i < 16; i++) text[i] = "0123456789abcdef"[(h >> (60 - 4 * i)) & 15];
    lua_pushlstring(L, text, 16);
    return 1;
}

/* isatty(1) -> is standard output a terminal? */
static int is_terminal(lua_State *L) {
    lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
    return 1;
}

/* window(2) -> columns and lines of the terminal that standard error goes to; nothing if it is no terminal or does not
 * say */
static int window(lua_State *L) {
    struct winsize size;
    if (ioctl((int)luaL_checkinteger(L, 1), TIOCGWINSZ, &size) || !size.ws_col || !size.ws_row) return 0;
    lua_pushinteger(L, size.ws_col);
    lua_pushinteger(L, size.ws_row);
    return 2;
}

/* number(x) -> the shortest text that reads back equal */
static int number(lua_State *L) {
    char text[NUMBER_TEXT];
    lua_pushstring(L, number_text(luaL_checknumber(L, 1), text));
    return 1;
}

/* switches() -> voluntary and involuntary context switches of this process so far */
static int switches(lua_State *L) {
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used)) return bind_error(L, "getrusage: %s", strerror(errno));
    lua_pushinteger(L, used.ru_nvcsw);
    lua_pushinteger(L, used.ru_nivcsw);
    return 2;
}

/* exit_status("oom") -> 3 */
static int exit_status(lua_State *L) {
    const char *name = luaL_checkstring(L, 1);
    for (int code = 0; code < ERR_CODE_COUNT; code++) {
        if (strcasecmp(name, err_name(code)) != 0) continue;
        lua_pushinteger(L, err_exit_status(code));
        return 1;
    }
    return 0;
}

#ifndef MT_COMMIT
#define MT_COMMIT "" /* "+" and the commit, from the Makefile */
#endif

int luaopen_memtide_core(lua_State *L) {
    static const luaL_Reg functions[] = {{"where", where}, {"check_options", check_options}, {"hash", hash},
        {"nearest", nearest},
        {"isatty", is_terminal}, {"window", window}, {"number", number}, {"switches", switches},
        {"exit_status", exit_status}, {"try", try_call}, {"make_folder", make_folder}, {NULL, NULL}};
    luaL_newlib(L, functions);
    bind_set_string(L, "version", MT_VERSION MT_COMMIT);
    bind_type(L, BOX_TEXT, NULL);
    bind_open_device(L);
    bind_open_network(L);
    bind_open_program(L);
    bind_open_eager(L);
    bind_open_runtime(L);
    bind_open_data(L);
    bind_open_row(L);
    bind_open_process(L);
    bind_open_lock(L);
    bind_open_file(L);
    bind_open_weights(L);
    bind_open_snapshot(L);
    bind_open_pickle(L);
    bind_open_locals(L);
    bind_open_json(L);
    bind_open_exponents(L);
    bind_open_comm(L);
    return 1;
}
