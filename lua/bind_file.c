/* Files for Lua: new ones that take their name when they are complete. */
#include <stdio.h>

#include "bind.h"
#include "file.h"

#define BOX_FILE "memtide.File"

static void release_file(void *content) { file_discard(content); }

/* new_file(path) -> File: closed before it is finished, it leaves what was there as it was */
static int new_file(lua_State *L) {
    Err e;
    NewFile *f;
    const char *path = luaL_checkstring(L, 1);
    Box *box = bind_new(L, BOX_FILE, release_file);
    fflush(stdout); /* it may be the file */
    if (file_new(path, &f, &e)) return bind_fail(L, &e);
    box->content = f;
    return 1;
}

/* file:write(text) -> true */
static int write_text(lua_State *L) {
    Err e;
    size_t n;
    NewFile *f = bind_get(L, 1, BOX_FILE);
    const char *text = luaL_checklstring(L, 2, &n);
    if (file_write(f, text, n, &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* file:is_output() -> is it standard output that is written? */
static int is_output(lua_State *L) {
    lua_pushboolean(L, file_is_output(bind_get(L, 1, BOX_FILE)));
    return 1;
}

/* file:finish(sync) -> true: it has its name, with `sync` when it is on the disk */
static int finish(lua_State *L) {
    Err e;
    Box *box = bind_box(L, 1, BOX_FILE);
    NewFile *f = box->content;
    box->content = NULL;
    if (file_finish(f, lua_toboolean(L, 2), &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

void bind_open_file(lua_State *L) {
    static const luaL_Reg methods[] = {{"write", write_text}, {"is_output", is_output}, {"finish", finish},
        {NULL, NULL}};
    static const luaL_Reg functions[] = {{"new_file", new_file}, {NULL, NULL}};
    bind_type(L, BOX_FILE, methods);
    luaL_setfuncs(L, functions, 0);
}
