/* Opening and closing: the memory that programs share, and what the host keeps for each of them. */
#include "runtime_private.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

static int no_memory(Err *e) { return err_set(e, ERR_HOST_MEMORY, "out of host memory in the runtime"); }

/* ---- opening */

/* Does root buffer b get memory from the allocator in every step, and give it back? */
static bool comes_and_goes(const Loaded *l, int b) { return l->life[b].used && l->slot[b] < 0 && !l->p->bufs[b].host; }

/* Lists these roots by the op at which their life starts, or ends: op i's are list[at[i] .. at[i + 1]), in buffer
 * order. at[n_ops + 1], list[n_bufs]. */
static void index_events(const Loaded *l, bool ends, int *at, int *list) {
    const Program *p = l->p;
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) at[i] = 0;
    for (int b = 0; b < p->n_bufs; b++)
        if (comes_and_goes(l, b)) at[ends ? l->life[b].last : l->life[b].first]++;
    for (int i = 0; i <= p->n_ops; i++) {
        int count = i < p->n_ops ? at[i] : 0;
        at[i] = n;
        n += count;
    }
    for (int b = 0; b < p->n_bufs; b++)
        if (comes_and_goes(l, b)) list[at[ends ? l->life[b].last : l->life[b].first]++] = b;
    for (int i = p->n_ops; i > 0; i--) at[i] = at[i - 1];
    at[0] = 0;
}

static const char *slot_name(const void *runtime, int i) { return ((const Runtime *)runtime)->slots[i].buf->name; }

/* The slot of a persistent buffer, a new one for a new name; -1: no host memory. */
static int slot_of(Runtime *r, const Buf *buf) {
    size_t *place = buf->host ? &r->host_persistent : &r->persistent;
    r->slots[r->n_slots] = (Slot){.buf = buf, .master = -1, .offset = *place}; /* there is room for one of each buffer */
    const int slot = names_add(&r->slot_names, r->n_slots, slot_name, r);
    if (slot < r->n_slots) return slot;
    if (!buf->elsewhere) *place += align_up(buf->bytes, r->device->table->alignment);
    return r->n_slots++;
}

/* Tells the slots of a program's parameters, and of their masters, which parameters they are: those of the first network
 * that has them. before: how many parameters the networks before the program's draw. Whole numbers are not drawn, so
 * they need no parameter. */
static void link_params(Runtime *r, const Loaded *l, int before) {
    for (int i = 0; i < l->p->n_params; i++) {
        const ParamBufs *of = &l->p->params[i];
        Slot *weight = &r->slots[l->slot[of->weight]];
        if (weight->buf->dtype == DT_I32) continue;
        const int number = weight->param ? -1 : network_find_param(l->net, weight->buf->name);
        if (number >= 0) {
            weight->param = &l->net->params[number];
            weight->number = before + l->net->params[number].number;
        }
        if (of->master == NO_BUF) continue;
        Slot *master = &r->slots[weight->master = l->slot[of->master]];
        master->param = weight->param;
        master->number = weight->number;
    }
}

/* What the host needs to run a program, beside the walk over its memory: stages for inputs, kept values, arguments. */
static int load_host(Runtime *r, Loaded *l, Err *e) {
    const Program *p = l->p;
    size_t values = 0;
    for (int b = 0; b < p->n_bufs; b++) {
        if (p->bufs[b].kind == BUF_INPUT) {
            l->stage_bytes += align_up(p->bufs[b].bytes, STAGE_ALIGNMENT);
            values += fed_bytes(&p->bufs[b]);
        }
        l->n_kept += p->bufs[b].keep;
    }
    for (int k = 0; k < STAGES; k++) {
        int code = r->device->table->host_alloc(r->device, l->stage_bytes, (void **)&l->stage[k], e);
        if (code) return code;
    }
    l->kept = mem_new((size_t)l->n_kept * sizeof *l->kept);
    l->args = mem_new((size_t)p->n_ops * sizeof *l->args);
    l->values = mem_new(values);
    if (!l->kept || !l->args || !l->values) return no_memory(e);
    for (int b = 0, k = 0; b < p->n_bufs; b++) {
        if (!p->bufs[b].keep) continue;
        l->kept[k++] = (Kept){b, l->states_at};
        l->states_at += align_up(p->bufs[b].bytes, STAGE_ALIGNMENT);
    }
    l->room_bytes = l->states_at + 2 * sizeof(StepState);
    for (int i = 0; i < p->n_ops; i++) {
        view_args(p, &p->ops[i], &l->args[i]);
        l->args[i].device = r->device;
        l->args[i].seed = r->seed;
    }
    return runtime_make_room(r, l, 0, e);
}

static int load(Runtime *r, Loaded *l, const Job *job, int drawn_before, Err *e) {
    Program *p = job->program;
    size_t n = (size_t)p->n_bufs, ops = (size_t)p->n_ops;
    assert(!p->failed && p->micro_batches >= 1 && p->body_end <= p->n_ops);
    l->p = p;
    l->net = job->net;
    l->section[SECTION_FIRST] = (Section){0, p->micro_batches == 1 ? p->n_ops : p->body_end, false, NULL};
    l->section[SECTION_LATER] = (Section){0, p->body_end, false, NULL};
    l->section[SECTION_UPDATE] = (Section){p->body_end, p->n_ops, false, NULL};
    l->section[SECTION_FORWARD] = (Section){0, p->forward_end, false, NULL};
    l->section[SECTION_BACKWARD] = l->section[SECTION_BACKWARD_MORE] = (Section){p->forward_end, p->body_end, false, NULL};
    for (int axis = 0; axis < MESH_AXES && !r->device->table->dry; axis++) {
        const Comm *comm = r->device->comm[axis];
        const AxisPlace is = {comm ? comm->rank : 0, comm ? comm->world : 1}, wanted = program_axis(p, (MeshAxis)axis);
        if (is.rank != wanted.rank || is.world != wanted.world)
            return err_set(e, ERR_SCRIPT, "the program is that of rank %d of %d along the axis %s, but this process is rank %d of %d",
                           wanted.rank, wanted.world, mesh_axis_name((MeshAxis)axis), is.rank, is.world);
    }
    if (p->n_ops == 0) return err_set(e, ERR_SCRIPT, "the network has nothing to compute");
    int code = placement_of(p, r->device->table->alignment, &l->place, e);
    if (code) return code;
    l->life = l->place->life;
    l->slot = mem_new(n * sizeof *l->slot);
    l->block = mem_new(n * sizeof *l->block);
    l->start_at = mem_new((ops + 1) * sizeof(int));
    l->end_at = mem_new((ops + 1) * sizeof(int));
    l->start = mem_new(n * sizeof(int));
    l->end = mem_new(n * sizeof(int));
    if (!l->slot || !l->block || !l->start_at || !l->end_at || !l->start || !l->end) return no_memory(e);
    for (int b = 0; b < p->n_bufs; b++) {
        const Buf *buf = &p->bufs[b];
        l->slot[b] = -1;
        if (buf->kind != BUF_PERSISTENT && !buf->elsewhere) continue;
        if ((l->slot[b] = slot_of(r, buf)) < 0) return no_memory(e);
        const Buf *first = r->slots[l->slot[b]].buf;
        if (first->host != buf->host)
            return err_set(e, ERR_SCRIPT, "programs that run together share %s, but only one has it in the host's memory: their "
                                          "optimizers are paged or not", buf->name);
        if (first->stage != buf->stage)
            return err_set(e, ERR_SCRIPT, "programs that run together share %s, but other stages of the pipeline have it", buf->name);
        if (first->dtype == buf->dtype && shape_equal(&first->shape, &buf->shape) && first->bytes == buf->bytes) continue;
        char one[SHAPE_TEXT], two[SHAPE_TEXT];
        return err_set(e, ERR_SCRIPT, "programs that run together share %s, but it is %s %s in one and %s %s in another",
                       buf->name, dtype_name(first->dtype), shape_text(&first->shape, one), dtype_name(buf->dtype),
                       shape_text(&buf->shape, two));
    }
    link_params(r, l, drawn_before);
    index_events(l, false, l->start_at, l->start);
    index_events(l, true, l->end_at, l->end);
    return r->device->table->dry ? OK : load_host(r, l, e);
}

/* The allocator, with an arena for the slots and the largest program's temporaries; the host's memory, for the same; the
 * slots. */
static int open_memory(Runtime *r, AllocKind kind, Err *e) {
    size_t arena = 0, host = 0;
    for (int i = 0; i < r->n_loaded; i++) arena = max_size(arena, r->loaded[i].place->plan.height);
    for (int i = 0; i < r->n_loaded; i++) host = max_size(host, r->loaded[i].place->host.height);
    r->host_bytes = r->host_persistent + host;
    int code = allocator_open(kind, &r->ledger, r->persistent + arena, &r->alloc, e);
    if (!code && r->host_bytes && !r->device->table->dry)
        code = r->device->table->host_alloc(r->device, r->host_bytes, &r->host, e);
    for (int i = 0; i < r->n_slots && !code; i++) {
        Slot *s = &r->slots[i];
        if (s->buf->elsewhere) continue;
        if (!s->buf->host) code = allocator_get(r->alloc, s->buf->bytes, s->buf->category, s->offset, &s->block, e);
        else if (r->host) s->block.data = (char *)r->host + s->offset;
    }
    return code;
}

static int open_all(Runtime *r, AllocKind kind, const Job *jobs, int n_jobs, Err *e) {
    int code = OK, slots = 0, drawn = 0;
    for (int i = 0; i < n_jobs; i++) slots += jobs[i].program->n_bufs;
    r->slots = mem_new((size_t)slots * sizeof *r->slots);
    r->loaded = mem_new((size_t)n_jobs * sizeof *r->loaded);
    if (!r->slots || !r->loaded) return no_memory(e);
    r->n_loaded = n_jobs;
    for (int i = 0; i < n_jobs && !code; drawn += jobs[i++].net->n_drawn)
        code = load(r, &r->loaded[i], &jobs[i], drawn, e);
    for (int k = 0; k < NOTES && !code && !r->device->table->dry; k++)
        code = r->device->table->host_alloc(r->device, SMALL, (void **)&r->note[k], e);
    if (!code) code = open_memory(r, kind, e);
    if (!code && !r->device->table->dry) code = runtime_first_values(r, e);
    return code;
}

int runtime_open(Device *device, AllocKind kind, size_t limit, const Job *jobs, int n_jobs, uint64_t seed,
                 size_t fail_at, Runtime **out, Err *e) {
    assert(n_jobs >= 1);
    Runtime *r = mem_new(sizeof *r);
    if (!r) return no_memory(e);
    r->device = device;
    r->seed = seed;
    ledger_open(&r->ledger, device, limit);
    r->ledger.fail_at = fail_at;
    r->ledger.mark = -1;
    /* a recording holds addresses, which differ from step to step with the other allocators */
    r->records = kind == ALLOC_PLANNED && device->table->record;
    int code = open_all(r, kind, jobs, n_jobs, e);
    if (code) runtime_close(r);
    else *out = r;
    return code;
}

/* ---- closing */

static void unload(const Runtime *r, Loaded *l) {
    const DeviceTable *d = r->device->table;
    for (int k = 0; k < SECTIONS; k++)
        if (l->section[k].graph) d->graph_free(r->device, l->section[k].graph);
    for (int k = 0; k < STAGES; k++)
        if (l->stage[k]) d->host_free(r->device, l->stage[k], l->stage_bytes);
    for (int k = 0; k < UNDER_WAY; k++)
        if (l->room[k]) d->host_free(r->device, l->room[k], l->room_bytes);
    void *const all[] = {l->slot, l->block, l->start_at, l->end_at, l->start, l->end, l->args, l->kept, l->values};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) mem_free(all[i]);
}

static void drop_steps(Runtime *r) {
    const DeviceTable *d = r->device->table;
    if (r->under_way) d->sync(r->device, NULL);
    for (int k = 0; k < UNDER_WAY; k++) {
        Step *s = &r->step[k];
        d->mark_free(r->device, s->begin);
        d->mark_free(r->device, s->end);
        for (int i = 0; i < s->cap; i++) d->mark_free(r->device, s->mark[i]);
        mem_free(s->mark);
    }
    for (size_t i = 0; i < ARRAY_LEN(r->op_mark); i++) d->mark_free(r->device, r->op_mark[i]);
    for (int k = 0; k < NOTES; k++)
        if (r->note[k]) d->host_free(r->device, r->note[k], SMALL);
}

int runtime_close_checked(Runtime *r, Err *e) {
    if (!r) return OK;
    drop_steps(r);
    runtime_end_parts(r);
    for (int i = 0; r->slots && i < r->n_slots; i++)
        if (r->alloc && !r->slots[i].buf->host) allocator_put(r->alloc, &r->slots[i].block);
    allocator_close(r->alloc);
    if (r->host) r->device->table->host_free(r->device, r->host, r->host_bytes);
    int code = ledger_check_zero(&r->ledger, e);
    for (int i = 0; r->loaded && i < r->n_loaded; i++) unload(r, &r->loaded[i]);
    mem_free(r->loaded);
    mem_free(r->slots);
    names_free(&r->slot_names);
    mem_free(r);
    return code;
}

void runtime_close(Runtime *r) { runtime_close_checked(r, NULL); }

const Ledger *runtime_ledger(const Runtime *r) { return &r->ledger; }
size_t runtime_host_bytes(const Runtime *r) { return r->host_bytes; }
size_t runtime_empty_cache(Runtime *r) { return allocator_empty_cache(r->alloc); }
void runtime_reset_peak(Runtime *r) { ledger_reset_peak(&r->ledger); }
uint64_t runtime_state(const Runtime *r) { return allocator_state(r->alloc); }
size_t runtime_lower_bound(const Runtime *r, int which) {
    return r->persistent + r->loaded[which].place->plan.lower_bound;
}
