/* Memory and ops: opening, one step, closing. The dry device walks exactly the same path. */
#include "runtime_private.h"

#include <string.h>

#include "mem.h"

static int no_memory(Err *e) { return err_set(e, ERR_HOST_MEMORY, "out of host memory in the runtime"); }

void *runtime_data(const Runtime *r, const Loaded *l, int b) {
    int root = program_root(l->p, b);
    return l->slot[root] >= 0 ? r->slots[l->slot[root]].block.data : l->block[root].data;
}

/* ---- opening */

/* Sorts the roots by the op at which their life starts or ends, buffer order within an op. */
static void index_events(const Loaded *l, bool ends, int *at, int *list) {
    const Program *p = l->p;
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) at[i] = 0;
    for (int b = 0; b < p->n_bufs; b++)
        if (l->life[b].used && l->slot[b] < 0) at[ends ? l->life[b].last : l->life[b].first]++;
    for (int i = 0; i <= p->n_ops; i++) {
        int count = i < p->n_ops ? at[i] : 0;
        at[i] = n;
        n += count;
    }
    for (int b = 0; b < p->n_bufs; b++)
        if (l->life[b].used && l->slot[b] < 0) list[at[ends ? l->life[b].last : l->life[b].first]++] = b;
    for (int i = p->n_ops; i > 0; i--) at[i] = at[i - 1];
    at[0] = 0;
}

static int slot_of(Runtime *r, const Buf *buf) {
    for (int i = 0; i < r->n_slots; i++)
        if (!strcmp(r->slots[i].buf->name, buf->name)) return i;
    Slot *s = &r->slots[r->n_slots];
    s->buf = buf;
    s->offset = r->persistent;
    r->persistent += align_up(buf->bytes, r->device->table->alignment);
    return r->n_slots++;
}

static int load_host(Runtime *r, Loaded *l, Err *e) {
    const Program *p = l->p;
    size_t bytes = 0, values = 0;
    for (int b = 0; b < p->n_bufs; b++) {
        if (p->bufs[b].kind == BUF_INPUT) {
            bytes = max_size(bytes, p->bufs[b].bytes);
            values += (size_t)shape_elements(&p->bufs[b].shape) * 4;
        }
        l->n_kept += p->bufs[b].keep;
    }
    l->kept = mem_new((size_t)l->n_kept * sizeof *l->kept);
    l->args = mem_new((size_t)p->n_ops * sizeof *l->args);
    l->values = mem_new(values);
    l->packed = mem_new(bytes);
    if (!l->kept || !l->args || !l->values || !l->packed) return no_memory(e);
    for (int b = 0, k = 0; b < p->n_bufs; b++) {
        if (!p->bufs[b].keep) continue;
        l->kept[k].buf = b;
        if (!(l->kept[k++].bytes = mem_new(p->bufs[b].bytes))) return no_memory(e);
    }
    for (int i = 0; i < p->n_ops; i++) {
        view_args(p, &p->ops[i], &l->args[i]);
        l->args[i].device = r->device;
        l->args[i].seed = r->seed;
        l->args[i].micro_batches = (uint32_t)p->micro_batches;
    }
    return OK;
}

static int load(Runtime *r, Loaded *l, const Program *p, Err *e) {
    size_t n = (size_t)p->n_bufs, ops = (size_t)p->n_ops;
    l->p = p;
    if (p->n_ops == 0) return err_set(e, ERR_SCRIPT, "the network has nothing to compute");
    int code = placement_build(p, r->device->table->alignment, &l->place, e);
    if (code) return code;
    l->life = mem_new(n * sizeof *l->life);
    l->slot = mem_new(n * sizeof *l->slot);
    l->block = mem_new(n * sizeof *l->block);
    l->start_at = mem_new((ops + 1) * sizeof(int));
    l->end_at = mem_new((ops + 1) * sizeof(int));
    l->start = mem_new(n * sizeof(int));
    l->end = mem_new(n * sizeof(int));
    if (!l->life || !l->slot || !l->block || !l->start_at || !l->end_at || !l->start || !l->end) return no_memory(e);
    program_lives(p, l->life);
    for (int b = 0; b < p->n_bufs; b++) l->slot[b] = p->bufs[b].kind == BUF_PERSISTENT ? slot_of(r, &p->bufs[b]) : -1;
    index_events(l, false, l->start_at, l->start);
    index_events(l, true, l->end_at, l->end);
    return r->device->table->dry ? OK : load_host(r, l, e);
}

static int open_memory(Runtime *r, AllocKind kind, Err *e) {
    size_t arena = 0;
    for (int i = 0; i < r->n_loaded; i++) arena = max_size(arena, r->loaded[i].place.plan.height);
    int code = allocator_open(kind, &r->ledger, r->persistent + arena, &r->alloc, e);
    for (int i = 0; i < r->n_slots && !code; i++) {
        Slot *s = &r->slots[i];
        code = allocator_get(r->alloc, s->buf->bytes, s->buf->category, s->offset, &s->block, e);
    }
    return code;
}

static int open_all(Runtime *r, AllocKind kind, Program *const *programs, int n_programs, Err *e) {
    int code = OK, slots = 0;
    for (int i = 0; i < n_programs; i++) slots += programs[i]->n_bufs;
    r->slots = mem_new((size_t)slots * sizeof *r->slots);
    r->loaded = mem_new((size_t)n_programs * sizeof *r->loaded);
    if (!r->slots || !r->loaded) return no_memory(e);
    r->n_loaded = n_programs;
    for (int i = 0; i < n_programs && !code; i++) code = load(r, &r->loaded[i], programs[i], e);
    if (!code) code = open_memory(r, kind, e);
    if (!code && !r->device->table->dry) code = runtime_first_values(r, e);
    return code;
}

int runtime_open(Device *device, AllocKind kind, size_t limit, const Network *net, Program *const *programs,
                 int n_programs, uint64_t seed, size_t fail_at, Runtime **out, Err *e) {
    Runtime *r = mem_new(sizeof *r);
    if (!r) return no_memory(e);
    r->device = device;
    r->net = net;
    r->seed = seed;
    ledger_open(&r->ledger, device, limit);
    r->ledger.fail_at = fail_at;
    r->ledger.mark = -1;
    int code = open_all(r, kind, programs, n_programs, e);
    if (code) runtime_close(r);
    else *out = r;
    return code;
}

/* ---- closing */

static void unload(Loaded *l) {
    placement_free(&l->place);
    for (int i = 0; l->kept && i < l->n_kept; i++) mem_free(l->kept[i].bytes);
    void *const all[] = {l->life, l->slot, l->block, l->start_at, l->end_at, l->start, l->end,
                         l->args, l->kept, l->values, l->packed};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) mem_free(all[i]);
}

int runtime_close_checked(Runtime *r, Err *e) {
    if (!r) return OK;
    for (int i = 0; r->slots && i < r->n_slots; i++)
        if (r->alloc) allocator_put(r->alloc, &r->slots[i].block);
    allocator_close(r->alloc);
    int code = ledger_check_zero(&r->ledger, e);
    for (int i = 0; r->loaded && i < r->n_loaded; i++) unload(&r->loaded[i]);
    mem_free(r->loaded);
    mem_free(r->slots);
    mem_free(r);
    return code;
}

void runtime_close(Runtime *r) { runtime_close_checked(r, NULL); }

/* ---- one step */

static int begin_op(Runtime *r, Loaded *l, int i, Err *e) {
    r->ledger.mark = i;
    for (int k = l->start_at[i]; k < l->start_at[i + 1]; k++) {
        int b = l->start[k];
        size_t offset = r->persistent + (l->place.offsets[b] - l->place.persistent);
        if (l->block[b].data) continue; /* carried or kept since an earlier micro-batch */
        int code = allocator_get(r->alloc, l->life[b].bytes, l->p->bufs[b].category, offset, &l->block[b], e);
        if (code) return err_prefix(e, "op %d %s %s", i, op_info(l->p->ops[i].kind)->name, l->p->ops[i].path);
    }
    return OK;
}

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
    if (r->device->table->dry || op->kind == OP_view) return OK;
    KArgs *a = &l->args[i];
    for (int k = 0; k < OP_IN; k++)
        if (op->in[k] != NO_BUF) a->in[k].data = runtime_data(r, l, op->in[k]);
    for (int k = 0; k < OP_OUT; k++)
        if (op->out[k] != NO_BUF) a->out[k].data = runtime_data(r, l, op->out[k]);
    if (op->workspace != NO_BUF) {
        a->workspace = runtime_data(r, l, op->workspace);
        a->workspace_bytes = p->bufs[op->workspace].bytes;
    }
    a->step = r->updates;
    a->micro = micro;
    if (r->device->table->run(r->device, a, e) == OK) return OK;
    return err_prefix(e, "op %d %s %s", i, op_info(op->kind)->name, op->path);
}

/* Ops [from, to); the memory of op `from` is already there. The last op's memory stays: the caller ends it. */
static int run_ops(Runtime *r, Loaded *l, int from, int to, uint32_t micro, bool last_micro, Err *e) {
    for (int i = from; i < to; i++) {
        int code = i > from ? begin_op(r, l, i, e) : OK;
        if (!code) code = run_op(r, l, i, micro, e);
        if (code) return code;
        if (i + 1 < to) end_op(r, l, i, last_micro);
    }
    return OK;
}

static int timed(Runtime *r, Loaded *l, int from, int to, uint32_t micro, bool last_micro, double *seconds, Err *e) {
    const DeviceTable *d = r->device->table;
    int code = d->sync(r->device, e);
    double start = d->seconds(r->device);
    if (!code) code = run_ops(r, l, from, to, micro, last_micro, e);
    if (!code) code = d->sync(r->device, e);
    *seconds += d->seconds(r->device) - start;
    return code;
}

static int run_step(Runtime *r, Loaded *l, FeedFn *feed, void *arg, double *seconds, Err *e) {
    const Program *p = l->p;
    int code = OK;
    for (int m = 0; m < p->micro_batches && !code; m++) {
        bool last = m + 1 == p->micro_batches;
        code = begin_op(r, l, 0, e);
        if (!code && feed && !r->device->table->dry) code = runtime_feed(r, l, (uint32_t)m, feed, arg, e);
        if (!code) code = timed(r, l, 0, p->body_end, (uint32_t)m, last, seconds, e);
        if (!code && (!last || p->body_end < p->n_ops)) end_op(r, l, p->body_end - 1, last);
    }
    if (!code && p->body_end < p->n_ops) {
        code = begin_op(r, l, p->body_end, e);
        if (!code) code = timed(r, l, p->body_end, p->n_ops, 0, true, seconds, e);
    }
    if (!code && !r->device->table->dry) code = runtime_save_kept(r, l, e);
    if (!code) end_op(r, l, p->n_ops - 1, true);
    return code;
}

int runtime_step(Runtime *r, int which, FeedFn *feed, void *arg, StepResult *out, Err *e) {
    Loaded *l = &r->loaded[which];
    StepResult result = {0, 0, false};
    StepState before = {0, 0, 0, 0}, after = {0, 0, 0, 0};
    bool scaling = l->p->loss_scaling && !r->device->table->dry;
    void *state = scaling ? runtime_data(r, l, l->p->state) : NULL;
    int code = scaling ? r->device->table->download(r->device, &before, state, sizeof before, e) : OK;
    if (!code) code = run_step(r, l, feed, arg, &result.seconds, e);
    if (!code && scaling) code = r->device->table->download(r->device, &after, state, sizeof after, e);
    r->ledger.mark = -1;
    if (code)
        for (int b = 0; b < l->p->n_bufs; b++) allocator_put(r->alloc, &l->block[b]);
    if (code) return code;
    result.skipped = scaling && after.step == before.step;
    for (int i = 0; i < l->n_kept; i++)
        if (l->kept[i].buf == l->p->loss) memcpy(&result.loss, l->kept[i].bytes, sizeof result.loss);
    if (l->p->body_end < l->p->n_ops) r->updates++;
    if (out) *out = result;
    return OK;
}

const Ledger *runtime_ledger(const Runtime *r) { return &r->ledger; }
size_t runtime_empty_cache(Runtime *r) { return allocator_empty_cache(r->alloc); }
void runtime_reset_peak(Runtime *r) { ledger_reset_peak(&r->ledger); }
uint64_t runtime_state(const Runtime *r) { return allocator_state(r->alloc); }
const Placement *runtime_placement(const Runtime *r, int which) { return &r->loaded[which].place; }
