/* One step: the walk over the ops, and the memory that comes and goes with them. On the dry device it is the same walk.
 *
 * The host does not wait within a step: it enqueues, and prepares the next micro-batch while the device works. A
 * section whose addresses are the same in every step is recorded at its second run and replayed from then on. The walk
 * over the memory still takes place while the device works, so that the ledger says the same as without a recording. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime_private.h"

/* Gets memory for the roots whose life starts at op i. */
static int begin_op(Runtime *r, Loaded *l, int i, Err *e) {
    r->ledger.mark = i;
    for (int k = l->start_at[i]; k < l->start_at[i + 1]; k++) {
        int b = l->start[k];
        size_t offset = r->persistent + (l->place.offsets[b] - l->place.persistent);
        assert(l->place.offsets[b] >= l->place.persistent);
        if (l->block[b].data) continue; /* carried, or kept, since an earlier micro-batch */
        int code = allocator_get(r->alloc, l->life[b].bytes, l->p->bufs[b].category, offset, &l->block[b], e);
        if (code) return err_prefix(e, "op %d %s %s", i, op_info(l->p->ops[i].kind)->name, l->p->ops[i].path);
    }
    return OK;
}

/* Gives back the memory of the roots whose life ends at op i. */
static void end_op(Runtime *r, Loaded *l, int i, bool last_micro) {
    for (int k = l->end_at[i]; k < l->end_at[i + 1]; k++) {
        int b = l->end[k];
        if (!last_micro && l->p->bufs[b].carried) continue;
        allocator_put(r->alloc, &l->block[b]);
    }
}

static int run_op(Runtime *r, Loaded *l, int i, uint32_t micro, Err *e) {
    const Program *p = l->p;
    const Op *op = &p->ops[i];
    if (op->kind == OP_view) return OK;
    KArgs *a = &l->args[i];
    EACH_IN(op, k) a->in[k].data = runtime_data(r, l, op->in[k]);
    EACH_OUT(op, k) a->out[k].data = runtime_data(r, l, op->out[k]);
    if (op->workspace != NO_BUF) {
        a->workspace = runtime_data(r, l, op->workspace);
        a->workspace_bytes = p->bufs[op->workspace].bytes;
    }
    a->micro = micro > 0 || (op->kind == OP_accumulate && op->attr.accumulate.more);
    if (r->device->table->run(r->device, a, e) == OK) return OK;
    return err_prefix(e, "op %d %s %s", i, op_info(op->kind)->name, op->path);
}

/* The same, timed. */
static int time_op(Runtime *r, Loaded *l, int i, uint32_t micro, Err *e) {
    const DeviceTable *d = r->device->table;
    double seconds = 0;
    if (l->p->ops[i].kind == OP_view) return OK;
    int code = d->start(r->device, e);
    if (!code) code = run_op(r, l, i, micro, e);
    if (!code) code = d->stop(r->device, e);
    if (!code) code = d->elapsed(r->device, &seconds, e);
    r->op_seconds[i] += seconds;
    return code;
}

/* Walks over the section's memory, and with `run` runs its ops. The caller begins its first op and ends its last
 * one. */
static int walk(Runtime *r, Loaded *l, const Section *s, uint32_t micro, bool last_micro, bool run, Err *e) {
    for (int i = s->from; i < s->to; i++) {
        int code = i > s->from ? begin_op(r, l, i, e) : OK;
        if (!code && run) code = (r->op_seconds ? time_op : run_op)(r, l, i, micro, e);
        if (code) return code;
        if (i + 1 < s->to) end_op(r, l, i, last_micro);
    }
    return OK;
}

/* Walks over the section while the device records its ops instead of running them: s->graph. */
static int record(Runtime *r, Loaded *l, Section *s, uint32_t micro, bool last_micro, Err *e) {
    const DeviceTable *d = r->device->table;
    Err ignored;
    int code = d->record(r->device, e);
    if (code) return code;
    code = walk(r, l, s, micro, last_micro, true, e);
    int ended = d->recorded(r->device, &s->graph, code ? &ignored : e);
    return code ? code : ended;
}

static int run_section(Runtime *r, Loaded *l, int which, uint32_t micro, bool last_micro, Err *e) {
    const DeviceTable *d = r->device->table;
    Section *s = &l->section[which];
    if (r->op_seconds) return walk(r, l, s, micro, last_micro, !d->dry, e);
    bool replays = s->graph != NULL, records = !replays && s->warm && r->records && l->p->graph;
    int code = records ? record(r, l, s, micro, last_micro, e) : OK;
    if (!code) code = d->start(r->device, e);
    if (!code) code = s->graph ? d->replay(r->device, s->graph, e) : walk(r, l, s, micro, last_micro, !d->dry, e);
    if (!code) code = d->stop(r->device, e);
    if (!code && replays) code = walk(r, l, s, micro, last_micro, false, e);
    s->warm = true;
    return code;
}

static int feed_micro(Runtime *r, Loaded *l, uint32_t micro, FeedFn *feed, void *arg, Err *e) {
    if (!feed || r->device->table->dry) return OK;
    int code = l->staged ? OK : runtime_stage(r, l, r->updates, micro, feed, arg, e);
    l->staged = false;
    return code ? code : runtime_send(r, l, e);
}

static int run_step(Runtime *r, Loaded *l, FeedFn *feed, void *arg, Err *e) {
    const Program *p = l->p;
    int code = OK, micros = p->micro_batches;
    for (int m = 0; m < micros && !code; m++) {
        bool last = m + 1 == micros;
        code = begin_op(r, l, 0, e);
        if (!code) code = feed_micro(r, l, (uint32_t)m, feed, arg, e);
        if (!code) code = run_section(r, l, m ? SECTION_LATER : SECTION_FIRST, (uint32_t)m, last, e);
        if (!code && micros > 1 && (!last || p->body_end < p->n_ops)) end_op(r, l, p->body_end - 1, last);
    }
    if (!code && micros > 1 && p->body_end < p->n_ops) {
        code = begin_op(r, l, p->body_end, e);
        if (!code) code = run_section(r, l, SECTION_UPDATE, 0, true, e);
    }
    return code;
}

/* After all ops are enqueued: stages the next step's first micro-batch while the device works (ahead NULL: nothing),
 * then saves what was kept. */
static int finish_step(Runtime *r, Loaded *l, FeedFn *ahead, void *arg, double *seconds, Err *e) {
    int code = OK;
    if (!r->device->table->dry) {
        uint32_t next = r->updates + l->p->updates;
        if (ahead) code = runtime_stage(r, l, next, 0, ahead, arg, e);
        l->staged = ahead && !code;
        if (!code) code = runtime_save_kept(r, l, e);
    }
    if (!code) code = r->device->table->elapsed(r->device, seconds, e);
    if (!code) end_op(r, l, l->p->n_ops - 1, true);
    return code;
}

/* The memory of a step goes back, also of one that has failed. */
static void drop_step(Runtime *r, Loaded *l) {
    for (int b = 0; b < l->p->n_bufs; b++) allocator_put(r->alloc, &l->block[b]);
}

static void end_parts(Runtime *r) {
    if (r->in_parts) drop_step(r, r->in_parts);
    r->in_parts = NULL;
    r->forward_ran = false;
}

static float loss_of(const Loaded *l) {
    float sum = 0;
    for (int i = 0; i < l->n_kept; i++) {
        float loss = 0;
        if (l->p->bufs[l->kept[i].buf].loss) memcpy(&loss, l->kept[i].bytes, sizeof loss);
        sum += loss;
    }
    return sum;
}

/* A whole step, or its part. */
typedef int StepFn(Runtime *r, Loaded *l, FeedFn *feed, void *arg, bool more, double *seconds, Err *e);

int runtime_loss_scale(Runtime *r, int which, float *scale, Err *e) {
    assert(which >= 0 && which < r->n_loaded);
    Loaded *l = &r->loaded[which];
    StepState state = {0, 0, 0, 0};
    int code = OK;
    if (l->p->loss_scaling) code = r->device->table->download(r->device, &state, runtime_data(r, l, l->p->state), sizeof state, e);
    *scale = state.loss_scale;
    return code;
}

/* With `run`, which makes the update: whether the loss scaler has left it out. */
static int run_scaled(Runtime *r, Loaded *l, StepFn *run, FeedFn *feed, void *arg, bool more, StepResult *out, Err *e) {
    StepState before = {0, 0, 0, 0}, after = {0, 0, 0, 0};
    bool scaling = l->p->loss_scaling && !r->device->table->dry;
    void *state = scaling ? runtime_data(r, l, l->p->state) : NULL;
    int code = scaling ? r->device->table->download(r->device, &before, state, sizeof before, e) : OK;
    if (!code) code = run(r, l, feed, arg, more, &out->seconds, e);
    if (!code && scaling) code = r->device->table->download(r->device, &after, state, sizeof after, e);
    r->ledger.mark = -1;
    out->skipped = scaling && after.step == before.step;
    if (!code && l->p->updates) r->updates++;
    return code;
}

static int whole_step(Runtime *r, Loaded *l, FeedFn *feed, void *arg, bool more, double *seconds, Err *e) {
    int code = run_step(r, l, feed, arg, e);
    return code ? code : finish_step(r, l, more ? feed : NULL, arg, seconds, e);
}

int runtime_step(Runtime *r, int which, FeedFn *feed, void *arg, bool more, StepResult *out, Err *e) {
    assert(which >= 0 && which < r->n_loaded);
    Loaded *l = &r->loaded[which];
    StepResult result = {0, 0, false};
    r->ledger.program = which;
    end_parts(r);
    int code = run_scaled(r, l, whole_step, feed, arg, more, &result, e);
    if (code) {
        if (l->p->world > 1 && !r->device->table->dry) r->device->table->sync(r->device, NULL); /* what is under way has its memory */
        drop_step(r, l);
        return code;
    }
    result.loss = loss_of(l);
    if (out) *out = result;
    return OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int runtime_timing_seconds(Runtime *r, double *seconds, Err *e) {
    enum { TIMES = 101 };
    const DeviceTable *d = r->device->table;
    double found[TIMES];
    int code = OK;
    for (int i = 0; i < TIMES && !code; i++) {
        code = d->start(r->device, e);
        if (!code) code = d->stop(r->device, e);
        if (!code) code = d->elapsed(r->device, &found[i], e);
    }
    if (code) return code;
    qsort(found, TIMES, sizeof *found, by_value);
    *seconds = found[TIMES / 2];
    return OK;
}

int runtime_step_timed(Runtime *r, int which, FeedFn *feed, void *arg, bool more, double *op_seconds, StepResult *out,
                       Err *e) {
    assert(which >= 0 && which < r->n_loaded);
    const int n = r->loaded[which].p->n_ops;
    for (int i = 0; i < n; i++) op_seconds[i] = 0;
    r->op_seconds = op_seconds;
    int code = runtime_step(r, which, feed, arg, more, out, e);
    r->op_seconds = NULL;
    for (int i = 0; i < n && !code; i++) out->seconds += op_seconds[i];
    return code;
}

/* ---- a step in parts */

/* The section, with what begins and ends around it; nothing, where it has no ops. */
static int run_part(Runtime *r, Loaded *l, int which, uint32_t micro, FeedFn *feed, void *arg, double *seconds, Err *e) {
    const Section s = l->section[which];
    if (s.from == s.to) return OK;
    int code = begin_op(r, l, s.from, e);
    if (!code) code = feed_micro(r, l, 0, feed, arg, e);
    if (!code) code = run_section(r, l, which, micro, true, e);
    if (!code && feed && !r->device->table->dry) code = runtime_save_kept(r, l, e);
    if (!code) code = r->device->table->elapsed(r->device, seconds, e);
    if (!code) end_op(r, l, s.to - 1, true);
    return code;
}

static int update_part(Runtime *r, Loaded *l, FeedFn *feed, void *arg, bool more, double *seconds, Err *e) {
    (void)more;
    return run_part(r, l, SECTION_UPDATE, 0, feed, arg, seconds, e);
}

int runtime_part(Runtime *r, int which, StepPart part, bool fresh, FeedFn *feed, void *arg, StepResult *out, Err *e) {
    assert(which >= 0 && which < r->n_loaded && r->loaded[which].p->parts && part != PART_WHOLE);
    Loaded *l = &r->loaded[which];
    StepResult result = {0, 0, false};
    int code = OK;
    if (part == PART_BACKWARD && (r->in_parts != l || !r->forward_ran))
        return err_set(e, ERR_SCRIPT, "backward: no forward pass has run since the last backward pass, or a step or an "
                                      "evaluation ran between them");
    r->ledger.program = which;
    if (r->in_parts != l || part == PART_FORWARD) end_parts(r);
    r->in_parts = l;
    r->forward_ran = part == PART_FORWARD;
    if (part == PART_FORWARD) code = run_part(r, l, SECTION_FORWARD, 0, feed, arg, &result.seconds, e);
    else if (part == PART_UPDATE) code = run_scaled(r, l, update_part, NULL, NULL, false, &result, e);
    else code = run_part(r, l, fresh ? SECTION_BACKWARD : SECTION_BACKWARD_MORE, !fresh, NULL, NULL, &result.seconds, e);
    r->ledger.mark = -1;
    if (code || part == PART_UPDATE) end_parts(r);
    if (code) return code;
    result.loss = loss_of(l);
    *out = result;
    return OK;
}
