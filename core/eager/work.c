/* Work is counted where a call is made: eager_op begins one and ends the one before, its allocations are written, and the
 * op says what it reads, what it writes in place and what it computes. */
#include "tensor.h"

/* What one reads of a tensor: what was expanded is read once. */
static double bytes_of(const Tensor *t) {
    double n = (double)scalar_bytes(t->type);
    for (int d = 0; d < t->size.rank; d++)
        if (t->stride[d] || !t->size.of[d]) n *= (double)t->size.of[d];
    return n;
}

void work_moves(Eager *g, double bytes) {
    if (!g->halted) g->kernel.bytes += bytes;
}

void work_reads(Eager *g, const Tensor *const *t, int n) {
    for (int i = 0; i < n; i++)
        if (t[i]) work_moves(g, bytes_of(t[i]));
}

void work_flops(Eager *g, ScalarType type, Unit wide, double flops, double least) {
    const Unit unit = type == T_HALF ? UNIT_FP16 : type == T_BFLOAT16 ? UNIT_BF16 : wide;
    if (g->halted) return;
    g->kernel.flops += flops;
    g->kernel.seconds += least / card_flops(g->card, unit);
}

void work_end(Eager *g) {
    const double move = g->kernel.bytes / g->card->bandwidth;
    g->work.flops += g->kernel.flops;
    g->work.bytes += g->kernel.bytes;
    g->work.seconds += g->kernel.seconds > move ? g->kernel.seconds : move;
    g->kernel = (Kernel){0, 0, 0};
}
