/* depthwise.h: convolutions whose groups have one channel, and dw and db of those with two or four, too: x and y have C channels, w
 * is (C, 1 or 2 or 4, KH, KW). Any floating types, which are converted as they are loaded. A band of results, some rows and columns
 * of an image, is made for a block of 16 channels at a time: the inputs that it meets are packed with their padding, so that there
 * are no edges. The sums of y and dx are those of neighbouring results, the sums of dw those of neighbouring taps: they stay in
 * registers for all taps, or for all of a band, and meet an input with each load. With a stride, inputs that the same tap meets are
 * packed together, and results of dx that meet the same taps are made together. For dw, dy's channels are rotated within their
 * groups, so that each channel of a group meets all of them.
 *
 *   workspace of y, dx = [weights of a block, tap by tap | sums of db of a run of bands, channel by channel]
 *   workspace of dw    = sums of [a run of bands][a block of channels][how far it was rotated, and a tap; last: db]
 *
 * y of fp32 is oneDNN's, which is as fast. dx reads each element of s before it writes that of dx. The number of threads changes no
 * bit. */
#ifndef MT_CPU_DEPTHWISE_H
#define MT_CPU_DEPTHWISE_H

#include "program/kernel.h"

/* Is op `args` one of these, and does it fit into `limit` bytes of workspace? Then *bytes is what it takes. */
bool depthwise_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun depthwise_run;

#endif
