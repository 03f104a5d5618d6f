/* linear_loss.h: linear_cross_entropy and its gradient on any device: the cross entropy of a linear layer's output, some
 * rows of logits at a time. Each part runs the kernels that make logits, their loss and their gradients where they are
 * there as a whole:
 *
 *   linear            logits = x w^T + b, in x's type, into the workspace
 *   cross_entropy     their terms are added to the loss; where ranks have some of the classes each, they exchange what these
 *                     are made of, and the gradient needs that even where no loss is wanted
 *   cross_entropy_dx  in the logits' place
 *   bias_db           is added to db
 *   linear_dw         dw += logits^T x
 *   linear_dx         the part of dx, which may have the place of x
 *
 *   workspace = [sums of the loss | logits | two numbers per row | db of one part | what one of the kernels needs]
 *
 * dw and db are added up in their own types: of 16 bits they are rounded once for each part. */
#ifndef MT_LINEAR_LOSS_H
#define MT_LINEAR_LOSS_H

#include "kernel.h"

/* What a device has for that. A part's op comes as KArgs of that op; linear_dw and accumulate add to what is there where
 * `micro` is 1. */
typedef struct LossKernels {
    size_t alignment; /* of operands, in bytes */
    KernelPrepare *prepare_linear, *prepare_dx, *prepare_dw;
    KernelPrepare *prepare_terms; /* for `terms` where ranks have some of the classes each; keeps no state */
    KernelRun *linear, *dx, *dw, *db, *accumulate;
    /* Bytes of the sums of terms of parts like a, a cross_entropy */
    size_t (*sums)(const KArgs *a);
    /* Of a, a cross_entropy whose loss is absent: fills its stats, where there are any, and adds its terms to sums; where
     * a->micro is 0 it begins them. */
    int (*terms)(const KArgs *a, void *sums, size_t bytes, Err *e);
    /* Of a, a cross_entropy of all samples, whose x and stats are absent: its loss. */
    int (*finish)(const KArgs *a, const void *sums, size_t bytes, Err *e);
    /* Of a, a cross_entropy_dx: fills its dx. The loss is the mean over the samples t. */
    int (*slopes)(const KArgs *a, const View *t, Err *e);
} LossKernels;

/* A KernelPrepare and a KernelRun for both ops. */
int linear_loss_prepare(const LossKernels *with, const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e);
int linear_loss_run(const LossKernels *with, const KArgs *a, Err *e);

#endif
