/* bind_program.h: what the bindings of programs and runtimes share. */
#ifndef MT_BIND_PROGRAM_H
#define MT_BIND_PROGRAM_H

#include <lua.h>

#include "memory/trace.h"
#include "passes/compile.h"
#include "run/runtime.h"

/* Pushes {bytes, used, op = "conv2d_dx 2", at = number of that op, from 1, categories = {weights = bytes, ...}}; p: the
 * program whose op the peak's mark is. Where it is at none, or p is NULL, op is "", and there is no `at`. */
void bind_push_peak(lua_State *L, const LedgerPeak *peak, const Program *p);
/* Pushes {weights = bytes, ...} of bytes[CAT_COUNT]. */
void bind_push_categories(lua_State *L, const size_t *bytes);
/* {name = value} at `index` -> Settings */
Settings bind_settings(lua_State *L, int index);
/* The trace of PyTorch's step at `index`. */
const Trace *bind_trace(lua_State *L, int index);
/* The open Runtime box at `index`. */
Runtime *bind_runtime(lua_State *L, int index);
/* t.allocator of the table at `index`, the default if it is nil */
AllocKind bind_allocator(lua_State *L, int index);
/* t[key] of the table at `index`, in bytes; 0 if it is nil */
size_t bind_bytes(lua_State *L, int index, const char *key);

/* program:step(): bind_step.c */
int bind_program_step(lua_State *L);
/* Pushes empty places, which are freed with the value on the stack. */
TracePlaces *bind_places_new(lua_State *L);
/* Pushes the table of what a trace does from event `from` on: bind_step.c. Returns 1. */
int bind_push_trace(lua_State *L, const Trace *t, int from, const TracePlaces *places);

#endif
