/* Checkpointing: activations inside a segment of the forward pass are not kept for the backward pass; the ops that
 * make them run again, from the segment's input, right before the backward pass first reads one. The same ops run on
 * the same inputs (dropout draws by its id), so no number changes.
 *
 * A cut between two segments lies where a single activation connects what is before with what is after, so a residual
 * block is one unit by itself. What is after the last cut, the loss above all, is never dropped: it would be made
 * again at once. Segments: nn.Checkpoint (marked), every unit (all), about sqrt(n) runs of units (sqrt: Chen et al.
 * 2016, "Training Deep Nets with Sublinear Memory Cost"), or what fits a number of bytes (checkpoint_budget.c). Not
 * segments, but single ops that cost little: checkpoint_selective.c. */
#include "checkpoint.h"

int pass_checkpoint(Program *p, Compile *under) {
    Checkpoint mode = under->settings->checkpoint;
    if (under->settings->eval || mode == CHECKPOINT_NONE || p->forward_end == p->n_ops) return OK;
    Chain c;
    int code = OK, *segment = scratch_new(&under->scratch, (size_t)p->forward_end, sizeof *segment);
    if (!chain_find(&c, p, &under->scratch)) return OK;
    if (mode == CHECKPOINT_SELECTIVE) code = chain_select(&c, under, segment);
    else if (mode == CHECKPOINT_BUDGET) code = chain_fit(&c, under, segment);
    else chain_choose(&c, mode, segment);
    if (!code) chain_drop(&c, p, segment, &under->scratch);
    return code;
}
