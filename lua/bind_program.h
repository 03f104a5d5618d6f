/* bind_program.h: what the bindings of programs and runtimes share. */
#ifndef MT_BIND_PROGRAM_H
#define MT_BIND_PROGRAM_H

#include <lua.h>

#include "passes/compile.h"
#include "run/runtime.h"

/* {bytes, used, op = "conv2d_dx 2", categories = {weights = bytes, ...}}; p: whose op the mark is (NULL: nobody's) */
void bind_push_peak(lua_State *L, const LedgerPeak *peak, const Program *p);
void bind_push_categories(lua_State *L, const size_t *bytes);
/* {name = value} at `index` -> Settings */
Settings bind_settings(lua_State *L, int index);
/* The open Runtime box at `index`. */
Runtime *bind_runtime(lua_State *L, int index);
/* t.allocator of the table at `index` */
AllocKind bind_allocator(lua_State *L, int index);
/* t[key] in bytes; 0: absent */
size_t bind_bytes(lua_State *L, int index, const char *key);

#endif
