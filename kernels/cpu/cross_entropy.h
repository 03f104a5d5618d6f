/* cross_entropy.h: cross entropy in parts, for linear_loss.c: loss.c's sums and gradients over some of a batch's
 * samples. */
#ifndef MT_CPU_CROSS_ENTROPY_H
#define MT_CPU_CROSS_ENTROPY_H

#include "program/kernel.h"

/* a: a cross_entropy. *sum: of its samples' terms; fills its stats, where there are any. Fails where other ranks do. */
int cross_entropy_terms(const KArgs *a, double *sum, Err *e);
/* a: a cross_entropy; its t: of all samples, of whose terms `sum` is the sum. Stores the loss. */
void cross_entropy_finish(const KArgs *a, double sum);
/* a: a cross_entropy_dx; t: the samples of which the loss is the mean, its own among them. Fills its dx. */
void cross_entropy_slopes(const KArgs *a, const View *t);

#endif
