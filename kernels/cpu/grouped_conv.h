/* grouped_conv.h: convolutions of few channels, y and both gradients, in fp32, and in 16 bits where the processor does not multiply those:
 * in groups, or of images that are one group. A band of channels is done at a time: one group, whose channels fill registers, or
 * nearly, if there is one alone, or a register of smaller groups. Lines of the image that is read are packed, converted and padded, and
 * stay in the first caches while all taps meet them.
 *
 *   y  (pixels, outputs of a band) += x  (a number of a group) w (outputs of a band), number by number, tap by tap; dx from dy as well
 *   dw (numbers, outputs of a band) += x (a number of a group) dy (outputs of a band), pixel by pixel
 *
 * Where a register holds several groups, each number is packed as a register: in each lane that of the lane's own group.
 *
 *   workspace = [sums of db, or of dw and db, by run | thread 0's weights of some bands, packed lines, lines of sums, of s or dy | ...]
 *
 * A piece of work is some bands of a run of lines. The number of threads changes no bit. */
#ifndef MT_CPU_GROUPED_CONV_H
#define MT_CPU_GROUPED_CONV_H

#include "program/kernel.h"

/* Is op `args` (conv2d, conv2d_dx or conv2d_dw) one of these, is it faster this way, and does it fit into `limit`
 * bytes of workspace? Then *bytes is what it takes. */
bool grouped_conv_prepare(const KArgs *args, size_t limit, size_t *bytes);
KernelRun grouped_conv_run;

#endif
