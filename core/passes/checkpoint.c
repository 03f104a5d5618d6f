/* Checkpointing: activations inside a segment of the forward pass are not kept for the backward pass; the ops that
 * make them run again, from the segment's input, right before the backward pass first reads one of them. The same ops
 * run on the same inputs (dropout draws by its id), so no number changes.
 *
 * A cut between two segments lies where a single activation connects the ops before with the ops after, so a residual
 * block is one unit. What follows the last cut, above all the loss, is never dropped: it would be needed again at once.
 * Segments are those of nn.Checkpoint (marked), every unit (all), about sqrt(n) runs of units (sqrt: Chen et al. 2016,
 * "Training Deep Nets with Sublinear Memory Cost"), or what fits a number of bytes (checkpoint_budget.c). Mode
 * "selective" drops single cheap ops in place of segments (checkpoint_selective.c). What is gathered of a sequence for products
 * is kept in no mode: ranks keep their slices of it, and gather it once more. */
#include "checkpoint.h"

#include <assert.h>

int pass_checkpoint(Program *p, Compile *under) {
    Checkpoint mode = under->settings->checkpoint;
    if (under->settings->eval || (mode == CHECKPOINT_NONE && !under->settings->sequence_parallel) || !chain_has_choice(p)) return UNCHANGED;
    assert(p->body_end == p->n_ops && p->micro_batches == 1); /* before accumulate and update */
    Chain c;
    int code = OK, *segment = scratch_new(&under->scratch, (size_t)p->forward_end, sizeof *segment);
    if (!chain_find(&c, p, &under->scratch)) return OK;
    if (mode == CHECKPOINT_SELECTIVE) code = chain_select(&c, under, segment);
    else if (mode == CHECKPOINT_BUDGET) code = chain_fit(&c, under, segment, NULL);
    else chain_choose(&c, mode, segment);
    if (!code) chain_drop(&c, p, segment, NULL, &under->scratch);
    return code;
}
