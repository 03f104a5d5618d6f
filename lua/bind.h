/* bind.h: what the binding files share. Every object of the core that a script can hold is a Box around its pointer.
 *
 * A mistake in a script raises an error at the script's line. Other failures (no memory, no device, no file) return
 * nil, message, code. */
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
#define BOX_TRACE "memtide.Trace"
#define BOX_SNAPSHOT "memtide.Snapshot"
#define BOX_PLACES "memtide.Places"
#define BOX_ALIKE "memtide.Alike"

enum { BOX_PARENTS = 8 };

/* The content of a closed box is released when no open box borrows from it any more, so scripts may close in any
 * order. */
typedef struct Box {
    void *content;                    /* NULL: closed or not filled yet */
    void (*release)(void *);
    struct Box *parent[BOX_PARENTS];  /* what the content borrows from; kept alive by user values */
    int users;                        /* open boxes that have this one as a parent */
    bool closed;
} Box;

/* Makes the metatable of a type: its methods (NULL: none), close, __gc and __close. */
void bind_type(lua_State *L, const char *type, const luaL_Reg *methods);
/* Pushes an empty box. Set ->content afterwards: an error in between then leaks nothing. */
Box *bind_new(lua_State *L, const char *type, void (*release)(void *));
/* `box`, on top of the stack, borrows from the box of `type` at `index`. */
void bind_borrow(lua_State *L, Box *box, int index, const char *type);
/* The open box of `type` at `index`, and its content; raises if there is none. */
Box *bind_box(lua_State *L, int index, const char *type);
void *bind_get(lua_State *L, int index, const char *type);

/* ERR_SCRIPT raises; anything else pushes nil, message, code and returns 3. */
int bind_fail(lua_State *L, const Err *e);
/* Raises "script.lua:7: text"; the position is in the innermost function that is not memtide's own. */
int bind_raise(lua_State *L, const char *text);
int bind_error(lua_State *L, const char *format, ...); /* formats as lua_pushfstring does */

/* Text that the core writes line by line; the buffer is a box on the stack. */
typedef struct Text { char *chars; int length, cap; bool failed; } Text;
Text *bind_text_new(lua_State *L);
void bind_text_line(void *text, const char *line); /* a TextSink */
int bind_text_push(lua_State *L, const Text *text); /* as a string; returns 1 */

/* ---- values */
/* t[key] of the table at `index`, `otherwise` where it is nil; raises if it has another type. */
lua_Integer bind_integer(lua_State *L, int index, const char *key, lua_Integer otherwise);
bool bind_boolean(lua_State *L, int index, const char *key, bool otherwise);
const char *bind_string(lua_State *L, int index, const char *key, const char *otherwise);
/* The value at `index`, which messages call `what`; raises unless it is true or false itself. */
bool bind_flag(lua_State *L, int index, const char *what);
/* The string at `index`, which messages call `what`; raises unless it is a string. */
const char *bind_text_at(lua_State *L, int index, const char *what);
/* The path at `index` of a file that a script wants to read, or write; raises if it may not (confine in bind_file.c). */
const char *bind_path(lua_State *L, int index, const char *what, bool write);
/* The value at `index` as messages show it: 7, "word", a table; pushes the text. */
const char *bind_show(lua_State *L, int index);
/* Sets t[key] of the table on top of the stack. */
void bind_set_integer(lua_State *L, const char *key, lua_Integer value);
void bind_set_number(lua_State *L, const char *key, double value);
void bind_set_string(lua_State *L, const char *key, const char *value);
void bind_set_boolean(lua_State *L, const char *key, bool value);
/* A table such as {64, 3, 32, 32} as a shape and back; bind_shape raises unless it is one. */
Shape bind_shape(lua_State *L, int index);
void bind_push_shape(lua_State *L, const Shape *s);
/* Fills parsed options from the table {name = value} at `index`, and finishes them. ERR_SCRIPT: wrong name or value. */
int bind_options(lua_State *L, int index, Options *o, Err *e);

/* ---- one function per binding file: it adds the file's functions to the module table on top of the stack */
void bind_open_device(lua_State *L);
void bind_open_network(lua_State *L);
void bind_open_program(lua_State *L);
void bind_open_eager(lua_State *L);
void bind_open_runtime(lua_State *L);
void bind_open_data(lua_State *L);
void bind_open_row(lua_State *L);
void bind_open_process(lua_State *L);
void bind_open_lock(lua_State *L);
void bind_open_file(lua_State *L);
void bind_open_weights(lua_State *L);
void bind_open_snapshot(lua_State *L);
void bind_open_pickle(lua_State *L);
void bind_open_locals(lua_State *L);
void bind_open_json(lua_State *L);
void bind_open_exponents(lua_State *L);
void bind_open_comm(lua_State *L);

/* A batch of values that scripts pass on as a whole. */
typedef struct Batch {
    Shape shape;
    bool integers;   /* int32, else fp32 */
    int64_t count;   /* of values */
    void *values;
} Batch;
#define BATCH_TYPE "memtide.Batch"
/* Pushes a batch of zeros. */
Batch *bind_batch_new(lua_State *L, Shape shape, bool integers);
/* Raises unless batches of the loader at `index` have inputs of shape `x` and targets (labels or numbers) of shape `t`
 * (NULL: none needed). */
void bind_check_loader(lua_State *L, int index, const Shape *x, bool bytes, const Shape *t, bool labels);

int luaopen_memtide(lua_State *L);
int luaopen_memtide_core(lua_State *L);
/* Puts the modules written in Lua, and memtide.core, into package.preload. */
void modules_preload(lua_State *L);

#endif
