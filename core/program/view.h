/* view.h: a program's buffers as operands of kernels, and their contents as arrays in PyTorch's order. */
#ifndef MT_VIEW_H
#define MT_VIEW_H

#include "kernel.h"
#include "program.h"

/* The operand for buffer `b` with its storage at `data`; b NULL: absent. */
View view_of(const Buf *b, void *data);
/* Fills *args for the op: its operands without data, and its state. */
void view_args(const Program *p, const Op *op, KArgs *args);

/* pack: values in PyTorch's order -> the buffer's storage, with its type, layout and order; unpack: the reverse.
 * values: fp32 for a floating type, int32 for an integer type, one per element. */
void view_pack(const Buf *b, const void *values, void *storage);
void view_unpack(const Buf *b, const void *storage, void *values);
/* The same with elements of the buffer's own type, which are copied as they are. */
void view_pack_bytes(const Buf *b, const void *bytes, void *storage);
void view_unpack_bytes(const Buf *b, const void *storage, void *bytes);

#endif
