/* depthwise.h: dw and db of convolutions whose groups have one, two or four channels: x and y have C channels, w is
 * (C, 1 or 2 or 4, KH, KW). oneDNN is fast at few of these shapes. Any floating types. A piece of work is LANES
 * channels of some rows of dy, whose pixels meet those of x tap by tap. dy's channels are rotated within their groups,
 * so that each channel of a group meets all of them.
 *
 *   workspace = sums of [a run of rows][a block of channels][how far it was rotated, and a tap; last: db][LANES]
 *
 * The number of threads changes no bit. */
#ifndef MT_CPU_DEPTHWISE_H
#define MT_CPU_DEPTHWISE_H

#include "program/kernel.h"

/* Is op `args` one of these, and does it fit into `limit` bytes of workspace? Then *bytes is what it takes. */
bool depthwise_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun depthwise_run;

#endif
