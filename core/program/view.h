/* view.h: from a program's buffers to what kernels and the border see: operand views, and element order and type. */
#ifndef MT_VIEW_H
#define MT_VIEW_H

#include "kernel.h"
#include "program.h"

/* The operand that kernels get for `b` (NULL: absent) with its storage at `data`. */
View view_of(const Buf *b, void *data);
/* args of op `op`, without data. */
void view_args(const Program *p, const Op *op, KArgs *args);

/* Across the border: fp32 in PyTorch's order <-> the buffer's element type, layout and order.
 * Integers: int32 both sides. */
void view_pack(const Buf *b, const void *values, void *storage);
void view_unpack(const Buf *b, const void *storage, void *values);
/* The same with elements of the buffer's own type, bit by bit. */
void view_pack_bytes(const Buf *b, const void *bytes, void *storage);
void view_unpack_bytes(const Buf *b, const void *storage, void *bytes);

#endif
