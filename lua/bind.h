/* bind.h: what the binding files share. Every object that a script can hold is a Box around a pointer of the core.
 *
 * A script's mistake raises an error at the script's line. What the world does (no memory, no device, no file) comes
 * back as nil, message, code. */
#ifndef MT_BIND_H
#define MT_BIND_H

#include <lauxlib.h>
#include <lua.h>

#include "base/base.h"
#include "base/err.h"
#include "network/options.h"
#include "base/shape.h"

#define BOX_DEVICE "memtide.Device"
#define BOX_LAYER "memtide.Layer"
#define BOX_NETWORK "memtide.Network"
#define BOX_PROGRAM "memtide.Program"
#define BOX_RUNTIME "memtide.Runtime"
#define BOX_DATASET "memtide.Dataset"
#define BOX_LOADER "memtide.Loader"
#define BOX_ROW "memtide.Row"
#define BOX_CSV "memtide.Csv"
#define BOX_TENSORS "memtide.Tensors"
#define BOX_TEXT "memtide.Text"
#define BOX_SNAPSHOT "memtide.Snapshot"

enum { BOX_PARENTS = 4 };

/* A closed box gives its content up when no other open box was made from it: scripts may close in any order. */
typedef struct Box {
    void *content;                    /* NULL: closed or not filled yet */
    void (*release)(void *);
    struct Box *parent[BOX_PARENTS];  /* what the content borrows from; kept alive by user values */
    int users;                        /* open boxes that have this one as a parent */
    bool closed;
} Box;

/* Makes the metatable of a type: the methods, close, __gc and __close. */
void bind_type(lua_State *L, const char *type, const luaL_Reg *methods);
/* Pushes an empty box: acquire into ->content afterwards, so that an error in between leaks nothing. */
Box *bind_new(lua_State *L, const char *type, void (*release)(void *));
/* The box on top of the stack borrows from the one at `index`. */
void bind_borrow(lua_State *L, Box *box, int index, const char *type);
/* The open box at `index`, and its content. */
Box *bind_box(lua_State *L, int index, const char *type);
void *bind_get(lua_State *L, int index, const char *type);

/* ERR_SCRIPT raises; anything else pushes nil, message, code and returns 3. */
int bind_fail(lua_State *L, const Err *e);
/* Raises "script.lua:7: text"; the position is that of the innermost function that is not memtide's own. */
int bind_raise(lua_State *L, const char *text);
int bind_error(lua_State *L, const char *format, ...); /* formats as lua_pushfstring does */

/* Text that the core writes line by line; the buffer is a box on the stack. */
typedef struct Text { char *chars; int length, cap; bool failed; } Text;
Text *bind_text_new(lua_State *L);
void bind_text_line(void *text, const char *line); /* a TextSink */
int bind_text_push(lua_State *L, const Text *text); /* as a string; returns 1 */

/* ---- values */
/* t[key] at table `index`: optional members of an argument table */
lua_Integer bind_integer(lua_State *L, int index, const char *key, lua_Integer otherwise);
bool bind_boolean(lua_State *L, int index, const char *key, bool otherwise);
/* The value at `index`, called `what`: true or false, nothing that Lua would take for one of them. */
bool bind_flag(lua_State *L, int index, const char *what);
const char *bind_string(lua_State *L, int index, const char *key, const char *otherwise);
/* The string at `index`, an argument called `what`. */
const char *bind_text_at(lua_State *L, int index, const char *what);
/* The same, of a file that a script names: see confine in bind_file.c. */
const char *bind_path(lua_State *L, int index, const char *what, bool write);
/* The value at `index` as a message shows it: 7, "word", a table; pushes the text. */
const char *bind_show(lua_State *L, int index);
/* Sets t[key] of the table on top of the stack. */
void bind_set_integer(lua_State *L, const char *key, lua_Integer value);
void bind_set_number(lua_State *L, const char *key, double value);
void bind_set_string(lua_State *L, const char *key, const char *value);
void bind_set_boolean(lua_State *L, const char *key, bool value);
/* {64, 3, 32, 32} */
Shape bind_shape(lua_State *L, int index);
void bind_push_shape(lua_State *L, const Shape *s);
/* Fills parsed options from the table of names and values at `index`, and finishes them. */
int bind_options(lua_State *L, int index, Options *o, Err *e);

/* ---- one per binding file: adds its functions to the module table on top of the stack */
void bind_open_device(lua_State *L);
void bind_open_network(lua_State *L);
void bind_open_program(lua_State *L);
void bind_open_runtime(lua_State *L);
void bind_open_data(lua_State *L);
void bind_open_row(lua_State *L);
void bind_open_process(lua_State *L);
void bind_open_lock(lua_State *L);
void bind_open_file(lua_State *L);
void bind_open_weights(lua_State *L);
void bind_open_snapshot(lua_State *L);

/* A batch of values that scripts pass on without looking into it. */
typedef struct Batch {
    Shape shape;
    bool integers;   /* int32, else fp32 */
    int64_t count;   /* of values */
    void *values;
} Batch;
#define BATCH_TYPE "memtide.Batch"
Batch *bind_batch_new(lua_State *L, Shape shape, bool integers);
/* Raises unless the loader at `index` hands out inputs of shape `x` and targets of shape `t` (NULL: none wanted). */
void bind_check_loader(lua_State *L, int index, const Shape *x, const Shape *t, bool labels);

int luaopen_memtide(lua_State *L);
int luaopen_memtide_core(lua_State *L);
/* Puts the modules written in Lua, and memtide.core, into package.preload. */
void modules_preload(lua_State *L);

#endif
