/* One step: the walk over the ops, and the memory that comes and goes with them. On the dry device it is the same walk.
 *
 * The host does not wait for the device: it enqueues, and prepares the next micro-batch, or the next step's first one, while
 * the device works; a step's result is there once its last mark is reached. A section whose addresses are the same in every
 * step is recorded at its second run and replayed from then on. The walk over the memory still takes place while the device
 * works, so that the ledger says the same as without a recording. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "runtime_private.h"

/* Gets memory for the roots whose life starts at op i. */
static int begin_op(Runtime *r, Loaded *l, int i, Err *e) {
    r->ledger.mark = i;
    for (int k = l->start_at[i]; k < l->start_at[i + 1]; k++) {
        int b = l->start[k];
        size_t offset = r->persistent + (l->place->offsets[b] - l->place->persistent);
        assert(l->place->offsets[b] >= l->place->persistent);
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
    int code = d->mark(r->device, &r->op_mark[0], e);
    if (!code) code = run_op(r, l, i, micro, e);
    if (!code) code = d->mark(r->device, &r->op_mark[1], e);
    if (!code) code = d->between(r->device, r->op_mark[0], r->op_mark[1], &seconds, e);
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

/* The two marks of the section that runs next; NULL: no host memory. */
static void **section_marks(Step *s) {
    const int n = 2 * s->sections, had = s->cap;
    if (!mem_grow(&s->mark, &s->cap, n + 2, sizeof *s->mark)) return NULL;
    if (s->cap > had) memset(&s->mark[had], 0, (size_t)(s->cap - had) * sizeof *s->mark);
    return &s->mark[n];
}

static int run_section(Runtime *r, Loaded *l, int which, uint32_t micro, bool last_micro, Err *e) {
    const DeviceTable *d = r->device->table;
    Section *s = &l->section[which];
    if (r->op_seconds) return walk(r, l, s, micro, last_micro, !d->dry, e);
    void **mark = section_marks(r->now);
    bool replays = s->graph != NULL, records = !replays && s->warm && r->records && l->p->graph;
    if (!mark) return err_set(e, ERR_HOST_MEMORY, "out of host memory for %d marks", 2 * r->now->sections + 2);
    int code = records ? record(r, l, s, micro, last_micro, e) : OK;
    r->now->replayed &= s->graph != NULL;
    if (!code) code = d->mark(r->device, &mark[0], e);
    if (!code) code = s->graph ? d->replay(r->device, s->graph, e) : walk(r, l, s, micro, last_micro, !d->dry, e);
    if (!code) code = d->mark(r->device, &mark[1], e);
    r->now->sections++;
    if (!code && replays) code = walk(r, l, s, micro, last_micro, false, e);
    s->warm = true;
    return code;
}

static int feed_micro(Runtime *r, Loaded *l, uint32_t micro, FeedFn *feed, void *arg, Err *e) {
    if (!feed || r->device->table->dry) return OK;
    const int code = runtime_stage(r, l, r->updates, micro, feed, arg, e);
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

/* The memory of a step goes back, also of one that has failed. */
static void drop_step(Runtime *r, Loaded *l) {
    for (int b = 0; b < l->p->n_bufs; b++) allocator_put(r->alloc, &l->block[b]);
}

void runtime_end_parts(Runtime *r) {
    if (r->in_parts) drop_step(r, r->in_parts);
    r->in_parts = NULL;
    r->forward_ran = false;
}

/* ---- the result of a step */

static float loss_of(const Loaded *l, const char *room) {
    float sum = 0;
    for (int i = 0; i < l->n_kept; i++) {
        float loss = 0;
        if (l->p->bufs[l->kept[i].buf].loss) memcpy(&loss, room + l->kept[i].at, sizeof loss);
        sum += loss;
    }
    return sum;
}

int runtime_loss_scale(Runtime *r, int which, float *scale, Err *e) {
    assert(which >= 0 && which < r->n_loaded);
    Loaded *l = &r->loaded[which];
    StepState state = {0, 0, 0, 0};
    int code = OK;
    if (l->p->loss_scaling) code = r->device->table->download(r->device, &state, runtime_data(r, l, l->p->state), sizeof state, e);
    *scale = state.loss_scale;
    return code;
}

/* Is the loss scaler's state looked at before the step (0) and after it (1)? Then it is copied to the step's room. */
static int fetch_state(Runtime *r, const Step *s, int when, Err *e) {
    const Loaded *l = s->l;
    if (!l->p->loss_scaling || r->device->table->dry) return OK;
    char *to = l->room[s->room] + l->states_at + (size_t)when * sizeof(StepState);
    return r->device->table->fetch(r->device, to, runtime_data(r, l, l->p->state), sizeof(StepState), e);
}

static int fetch_kept(Runtime *r, const Step *s, Err *e) {
    const Loaded *l = s->l;
    int code = OK;
    for (int i = 0; i < l->n_kept && !code && !r->device->table->dry; i++) {
        const int b = l->kept[i].buf;
        code = r->device->table->fetch(r->device, l->room[s->room] + l->kept[i].at, runtime_data(r, l, b), l->p->bufs[b].bytes, e);
    }
    return code;
}

/* Begins to enqueue a step, or a part of one: r->now. */
static int open_step(Runtime *r, Loaded *l, Err *e) {
    const int room = r->under_way ? 1 - r->first : 0;
    Step *s = r->now = &r->step[room];
    s->l = l;
    s->sections = 0;
    s->replayed = true;
    s->room = room;
    int code = r->device->table->dry ? OK : runtime_make_room(r, l, room, e);
    if (!code) code = r->device->table->mark(r->device, &s->begin, e);
    return code ? code : fetch_state(r, s, 0, e);
}

/* After all that the step needs was enqueued. kept: it made what is kept */
static int shut_step(Runtime *r, bool kept, Err *e) {
    Step *s = r->now;
    int code = kept ? fetch_kept(r, s, e) : OK;
    if (!code) code = fetch_state(r, s, 1, e);
    if (!code) code = r->device->table->mark(r->device, &s->end, e);
    if (!code && !r->under_way++) r->first = s->room;
    return code;
}

int runtime_result(Runtime *r, StepResult *out, Err *e) {
    const DeviceTable *d = r->device->table;
    StepResult found = {0, 0, false, 0, false};
    StepState state[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (!r->under_way) return err_set(e, ERR_SCRIPT, "no step is under way");
    const Step *s = &r->step[r->first], *next = &r->step[1 - r->first];
    Loaded *l = s->l;
    int code = d->between(r->device, s->begin, r->under_way > 1 ? next->begin : s->end, &found.seconds, e);
    for (int i = 0; i < s->sections && !code; i++) {
        double seconds = 0;
        code = d->between(r->device, s->mark[2 * i], s->mark[2 * i + 1], &seconds, e);
        found.ops += seconds;
    }
    r->under_way--;
    r->first = 1 - r->first;
    if (code) return code;
    if (!d->dry) {
        l->read = s->room;
        memcpy(state, l->room[s->room] + l->states_at, sizeof state);
        found.loss = loss_of(l, l->room[s->room]);
    }
    found.replayed = s->replayed && s->sections > 0;
    found.skipped = l->p->loss_scaling && l->p->updates && !d->dry && state[0].step == state[1].step;
    if (out) *out = found;
    return OK;
}

/* ---- whole steps */

static int begin_step(Runtime *r, Loaded *l, FeedFn *feed, void *arg, Err *e) {
    int code = open_step(r, l, e);
    if (!code) code = run_step(r, l, feed, arg, e);
    if (!code) code = shut_step(r, true, e);
    if (code) {
        if (!r->device->table->dry) r->device->table->sync(r->device, NULL); /* what is under way has its memory */
        drop_step(r, l);
        return code;
    }
    end_op(r, l, l->p->n_ops - 1, true);
    if (l->p->updates) r->updates++;
    return OK;
}

int runtime_begin(Runtime *r, int which, FeedFn *feed, void *arg, Err *e) {
    assert(which >= 0 && which < r->n_loaded);
    if (r->under_way == UNDER_WAY)
        return err_set(e, ERR_SCRIPT, "%d steps are under way: the result of the first must be asked for before another begins", UNDER_WAY);
    r->ledger.program = which;
    runtime_end_parts(r);
    const int code = begin_step(r, &r->loaded[which], feed, arg, e);
    r->ledger.mark = -1;
    return code;
}

static int none_under_way(const Runtime *r, Err *e) {
    return r->under_way ? err_set(e, ERR_SCRIPT, "a step is under way, and its result was not asked for") : OK;
}

int runtime_step(Runtime *r, int which, FeedFn *feed, void *arg, StepResult *out, Err *e) {
    int code = none_under_way(r, e);
    if (!code) code = runtime_begin(r, which, feed, arg, e);
    return code ? code : runtime_result(r, out, e);
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
        code = d->mark(r->device, &r->op_mark[0], e);
        if (!code) code = d->mark(r->device, &r->op_mark[1], e);
        if (!code) code = d->between(r->device, r->op_mark[0], r->op_mark[1], &found[i], e);
    }
    if (code) return code;
    qsort(found, TIMES, sizeof *found, by_value);
    *seconds = found[TIMES / 2];
    return OK;
}

int runtime_step_timed(Runtime *r, int which, FeedFn *feed, void *arg, double *op_seconds, StepResult *out, Err *e) {
    assert(which >= 0 && which < r->n_loaded);
    const int n = r->loaded[which].p->n_ops;
    for (int i = 0; i < n; i++) op_seconds[i] = 0;
    r->op_seconds = op_seconds;
    const int code = runtime_step(r, which, feed, arg, out, e);
    r->op_seconds = NULL;
    return code;
}

/* ---- a step in parts */

/* The section, with what begins and ends around it; nothing, where it has no ops. feed: it takes a batch, and makes what is
 * kept */
static int run_part(Runtime *r, Loaded *l, int which, uint32_t micro, FeedFn *feed, void *arg, Err *e) {
    const Section s = l->section[which];
    const bool empty = s.from == s.to;
    int code = open_step(r, l, e);
    if (!code && !empty) code = begin_op(r, l, s.from, e);
    if (!code && !empty) code = feed_micro(r, l, 0, feed, arg, e);
    if (!code && !empty) code = run_section(r, l, which, micro, true, e);
    if (!code) code = shut_step(r, feed != NULL, e);
    if (!code && !empty) end_op(r, l, s.to - 1, true);
    return code;
}

int runtime_part(Runtime *r, int which, StepPart part, bool fresh, FeedFn *feed, void *arg, StepResult *out, Err *e) {
    assert(which >= 0 && which < r->n_loaded && r->loaded[which].p->parts && part != PART_WHOLE);
    static const int later[] = {[PART_BACKWARD] = SECTION_BACKWARD_MORE, [PART_UPDATE] = SECTION_UPDATE};
    const int section = part == PART_FORWARD ? SECTION_FORWARD : part == PART_BACKWARD && fresh ? SECTION_BACKWARD : later[part];
    Loaded *l = &r->loaded[which];
    if (part == PART_BACKWARD && (r->in_parts != l || !r->forward_ran))
        return err_set(e, ERR_SCRIPT, "backward: no forward pass has run since the last backward pass, or a step or an "
                                      "evaluation ran between them");
    int code = none_under_way(r, e);
    if (code) return code;
    r->ledger.program = which;
    if (r->in_parts != l || part == PART_FORWARD) runtime_end_parts(r);
    r->in_parts = l;
    r->forward_ran = part == PART_FORWARD;
    code = run_part(r, l, section, part == PART_BACKWARD && !fresh, part == PART_FORWARD ? feed : NULL, arg, e);
    if (!code && part == PART_UPDATE && l->p->updates) r->updates++;
    if (!code) code = runtime_result(r, out, e);
    r->ledger.mark = -1;
    if (code && !r->device->table->dry) r->device->table->sync(r->device, NULL);
    if (code || part == PART_UPDATE) runtime_end_parts(r);
    if (!code && part != PART_UPDATE) out->skipped = false;
    return code;
}
