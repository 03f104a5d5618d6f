/* depthwise.h: dw and db of convolutions with a group for each channel, or each two or four (x and y have C channels, w
 * is (C, 1, 2 or 4, KH, KW)), for which oneDNN has a fast way for few shapes only. Any floating types. A piece of work
 * is LANES channels of some rows of dy, whose pixels meet those of x tap by tap; a group's channels meet all of theirs
 * as dy's are rotated within the group.
 *
 *   workspace = sums of [a run of rows][a block of channels][how far it was rotated, and a tap; last: db][LANES]
 *
 * The number of threads changes no bit. */
#ifndef MT_CPU_DEPTHWISE_H
#define MT_CPU_DEPTHWISE_H

#include "program/kernel.h"

/* Is op `args` one of these, and done in at most `limit` bytes? Then *bytes are what it takes. */
bool depthwise_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun depthwise_run;

#endif
