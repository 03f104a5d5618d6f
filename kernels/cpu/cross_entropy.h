/* cross_entropy.h: cross entropy in parts: loss.c's sums and gradients over some of a batch's samples, for
 * linear_loss.c. */
#ifndef MT_CPU_CROSS_ENTROPY_H
#define MT_CPU_CROSS_ENTROPY_H

#include "program/kernel.h"

/* a: a cross_entropy. The sum of its samples' terms; fills its stats, where there are any. */
double cross_entropy_terms(const KArgs *a);
/* a: a cross_entropy or its gradient. The sum of the weights of the samples that are not ignored; w: the classes'
 * weights, NULL: all are 1 */
double cross_entropy_count(const KArgs *a, const float *w);
/* a: a cross_entropy_dx, whose loss is the mean over so many samples. Fills its dx. */
void cross_entropy_slopes(const KArgs *a, double count);

#endif
