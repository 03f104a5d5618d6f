/* Values between host and device: first values, feeding, reading and writing. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "dora.h"
#include "math/rng_fill.h"
#include "network/layer.h"
#include "quantize.h"
#include "runtime_private.h"

static int no_memory(Err *e) { return err_set(e, ERR_HOST_MEMORY, "out of host memory for a tensor's values"); }

/* The persistent buffer's; NULL: there is none of that name. */
static const Slot *named_slot(const Runtime *r, const char *name) {
    for (int i = 0; i < r->n_slots; i++)
        if (!strcmp(r->slots[i].buf->name, name)) return &r->slots[i];
    return NULL;
}

/* ---- a rank may have a part of a tensor alone: a slice of it, and of that a shard */

/* The buffer as it would be if it had all of the network's tensor. */
static Buf whole_of(const Buf *b) {
    Buf whole = *b;
    whole.shape = program_whole_shape(b);
    whole.slice = (Slice){0, 0, 0, 0};
    whole.shard = (Shard){0, 0};
    whole.bytes = (size_t)shape_elements(&whole.shape) * dtype_size(b->dtype);
    return whole;
}

static size_t slice_bytes(const Buf *b) { return (size_t)shape_elements(&b->shape) * dtype_size(b->dtype); }
static size_t shard_at(const Buf *b) { return (size_t)b->shard.first * dtype_size(b->dtype); }

/* Copies the slice of part `index` from the whole tensor's bytes, or into them. */
static void copy_slice(const Buf *b, int index, char *whole, char *part, bool into) {
    const Slice *s = &b->slice;
    size_t outer = (size_t)s->blocks, inner = dtype_size(b->dtype);
    for (int i = 0; i < s->axis; i++) outer *= (size_t)b->shape.dim[i];
    for (int i = s->axis + 1; i < b->shape.rank; i++) inner *= (size_t)b->shape.dim[i];
    const size_t run = (size_t)(b->shape.dim[s->axis] / s->blocks) * inner;
    for (size_t i = 0; i < outer; i++) {
        char *at = whole + (i * (size_t)s->parts + (size_t)index) * run;
        if (into) memcpy(at, part + i * run, run);
        else memcpy(part + i * run, at, run);
    }
}

/* Asks the other ranks along `axis` for their parts, which follow each other in `all`; the own one lies in its place. All
 * ranks must do so. */
static int gather_parts(const Runtime *r, MeshAxis axis, const Buf *b, void *all, Err *e) {
    Comm *comm = r->device->comm[axis];
    size_t *bytes = mem_new((size_t)comm->world * sizeof *bytes);
    if (!bytes) return no_memory(e);
    for (int k = 0; k < comm->world; k++)
        bytes[k] = axis == MESH_TENSOR
                       ? slice_bytes(b)
                       : (size_t)shard_of(shape_elements(&b->shape), comm->world, k).count * dtype_size(b->dtype);
    const int code = comm->table->gather(comm, all, bytes, e);
    mem_free(bytes);
    return code;
}

/* part: the slice's bytes, of which this rank's shard lies in its place -> packed, the whole tensor's. */
static int gather_whole(const Runtime *r, const Buf *b, char *part, char *packed, Err *e) {
    int code = b->shard.count ? gather_parts(r, MESH_DATA, b, part, e) : OK;
    if (code || !b->slice.parts) return code;
    const size_t bytes = slice_bytes(b);
    char *all = mem_new((size_t)b->slice.parts * bytes);
    if (!all) return no_memory(e);
    memcpy(all + (size_t)b->slice.index * bytes, part, bytes);
    code = gather_parts(r, MESH_TENSOR, b, all, e);
    for (int k = 0; k < b->slice.parts && !code; k++) copy_slice(b, k, packed, all + (size_t)k * bytes, true);
    mem_free(all);
    return code;
}

/* Enqueues a copy of these few bytes. */
static int send_note(Runtime *r, void *to, const void *from, size_t bytes, Err *e) {
    const DeviceTable *d = r->device->table;
    char *note = r->note[r->next_note];
    const int slot = STAGES + r->next_note;
    r->next_note = (r->next_note + 1) % NOTES;
    int code = d->sent(r->device, slot, e);
    if (code) return code;
    memcpy(note, from, bytes);
    return d->send(r->device, slot, to, note, bytes, e);
}

/* Puts what the buffer has of the whole tensor's bytes where the slot lies, once what was enqueued has run. */
static int slot_put(Runtime *r, const Slot *s, const void *packed, Err *e) {
    const DeviceTable *d = r->device->table;
    const Buf *b = s->buf;
    if (b->elsewhere) return OK;
    char *part = b->slice.parts ? mem_new(slice_bytes(b)) : NULL;
    if (b->slice.parts && !part) return no_memory(e);
    if (part) copy_slice(b, b->slice.index, (char *)packed, part, false);
    const char *own = (part ? part : (const char *)packed) + shard_at(b);
    int code = b->host              ? d->sync(r->device, e)
               : b->bytes <= SMALL ? send_note(r, s->block.data, own, b->bytes, e)
                                    : d->upload(r->device, s->block.data, own, b->bytes, e);
    if (!code && b->host) memcpy(s->block.data, own, b->bytes);
    mem_free(part);
    return code;
}

/* What lies in the slot, or (s NULL) what was kept of a step -> the whole tensor's bytes, on the ranks of the stage that has
 * it. */
static int get_own(Runtime *r, const Slot *s, const Buf *b, const void *kept, void *packed, Err *e) {
    const DeviceTable *d = r->device->table;
    char *part = b->slice.parts ? mem_new(slice_bytes(b)) : packed;
    if (!part) return no_memory(e);
    char *own = part + shard_at(b);
    int code = !s ? OK : b->host ? d->sync(r->device, e) : d->download(r->device, own, s->block.data, b->bytes, e);
    if (!code && (!s || b->host)) memcpy(own, s ? s->block.data : kept, b->bytes);
    if (!code) code = gather_whole(r, b, part, packed, e);
    if (b->slice.parts) mem_free(part);
    return code;
}

/* The same on all ranks, which must all ask. */
static int get_whole(Runtime *r, const Slot *s, const Buf *b, const void *kept, void *packed, Err *e) {
    Comm *stages = r->device->comm[MESH_PIPELINE];
    const int code = b->elsewhere ? OK : get_own(r, s, b, kept, packed, e);
    if (code || b->stage < 0) return code;
    return stages->table->broadcast(stages, packed, whole_of(b).bytes, b->stage, e);
}

static int slot_get(Runtime *r, const Slot *s, void *packed, Err *e) { return get_whole(r, s, s->buf, NULL, packed, e); }

/* Packs fp32 (or int32) values in PyTorch's order and puts them there. */
static int put_values(Runtime *r, const Slot *s, const void *values, Err *e) {
    const Buf whole = whole_of(s->buf);
    void *packed = mem_new(whole.bytes);
    if (!packed) return no_memory(e);
    view_pack(&whole, values, packed);
    int code = slot_put(r, s, packed, e);
    mem_free(packed);
    return code;
}

/* The n first values of PyTorch's initialisation of the parameter with that number, in rows of `row`; a weight and its fp32 master
 * get the same. */
static void draw(const Param *param, int number, uint64_t seed, float *values, int64_t n, int64_t row) {
    const RngPlace from = {.seed = seed, .stream = RNG_INIT, .a = (uint32_t)number};
    if (param->init == INIT_NORMAL || param->init == INIT_UNIFORM) rng_fill(&from, param->init == INIT_NORMAL, values, n);
    for (int64_t i = 0; i < n; i++) {
        const double unit = param->init == INIT_UNIFORM ? 2.0 * values[i] - 1 : param->init == INIT_NORMAL ? (double)values[i] : 1;
        values[i] = (float)(unit * param->bound);
    }
    if (param->zero_row) memset(&values[(param->zero_row - 1) * row], 0, (size_t)row * sizeof *values);
}

/* ---- weights of codes: the slots that follow that of the codes hold what was derived with them */

/* The slots of a quantised weight's parts, by QuantPart; NULL: it has no such part. */
static void parts_of(const Runtime *r, const Slot *codes, const Slot *part[QUANT_PARTS]) {
    static const char *const names[QUANT_PARTS] = {"", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
                                                   ".nested_offset"};
    const char *name = codes->buf->name;
    char text[BUF_NAME];
    for (int k = 0; k < QUANT_PARTS; k++) {
        snprintf(text, sizeof text, "%s%s", name, names[k]);
        if (k == QUANT_ABSMAX && codes->param->quantized.format == QUANT_INT8)
            snprintf(text, sizeof text, "%.*sSCB", (int)(strlen(name) - strlen("weight")), name);
        part[k] = named_slot(r, text);
    }
}

static bool is_quantized(const Slot *s) { return s && s->param && s->param->quantized.format != QUANT_NONE; }

/* Room for the bytes of all parts; false: out of host memory. free_parts is right after either. */
static bool room_for_parts(const Slot *const part[QUANT_PARTS], void *bytes[QUANT_PARTS]) {
    bool room = true;
    for (int k = 0; k < QUANT_PARTS; k++) {
        bytes[k] = part[k] ? mem_new(part[k]->buf->bytes) : NULL;
        room &= bytes[k] || !part[k];
    }
    return room;
}

static void free_parts(void *bytes[QUANT_PARTS]) {
    for (int k = 0; k < QUANT_PARTS; k++) mem_free(bytes[k]);
}

/* Makes codes of the weight's values and uploads them with all that belongs to them. */
static int put_quantized(Runtime *r, const Slot *codes, const float *values, Err *e) {
    const Slot *part[QUANT_PARTS];
    void *bytes[QUANT_PARTS];
    parts_of(r, codes, part);
    const bool room = room_for_parts(part, bytes) && quantize(&codes->param->quantized, values, bytes);
    int code = room ? OK : no_memory(e);
    for (int k = 0; k < QUANT_PARTS && !code; k++)
        if (part[k]) code = slot_put(r, part[k], bytes[k], e);
    free_parts(bytes);
    return code;
}

/* The values that the weight's codes stand for. */
static int get_quantized(Runtime *r, const Slot *codes, float *values, Err *e) {
    const Slot *part[QUANT_PARTS];
    void *bytes[QUANT_PARTS];
    parts_of(r, codes, part);
    int code = room_for_parts(part, bytes) ? OK : no_memory(e);
    for (int k = 0; k < QUANT_PARTS && !code; k++)
        if (part[k]) code = slot_get(r, part[k], bytes[k], e);
    if (!code) dequantize(&codes->param->quantized, bytes, values);
    free_parts(bytes);
    return code;
}

static int first_codes(Runtime *r, const Slot *s, Err *e) {
    const Shape *shape = &s->param->quantized.shape;
    const int64_t n = shape_elements(shape);
    float *values = mem_new((size_t)n * sizeof *values);
    if (!values) return no_memory(e);
    draw(s->param, s->number, r->seed, values, n, n / shape->dim[0]);
    const int code = put_quantized(r, s, values, e);
    mem_free(values);
    return code;
}

static int first_value(Runtime *r, const Slot *s, Err *e) {
    const Buf *b = s->buf;
    if (s->param && (s->param->derived || s->param->init == INIT_DORA)) return OK; /* the codes bring it; first_magnitudes */
    if (b->category == CAT_INPUT) return OK; /* a feed brings it */
    if (s->param && s->param->quantized.format) return first_codes(r, s, e);
    int64_t n = program_whole_elements(b);
    float *values = mem_new((size_t)n * sizeof *values);
    if (!values) return no_memory(e);
    if (s->param) draw(s->param, s->number, r->seed, values, n, n / s->param->shape.dim[0]);
    for (int64_t i = 0; i < n && !s->param && b->first != 0.0f; i++) {
        if (b->dtype == DT_I32) ((int32_t *)(void *)values)[i] = (int32_t)b->first;
        else values[i] = b->first;
    }
    if (b->constant) memcpy(values, b->constant, (size_t)n * CONSTANT_BYTES);
    int code = put_values(r, s, values, e);
    mem_free(values);
    return code;
}

/* ---- magnitudes of DoRA, which start as the norms of the rows of their layer's weight and adapter */

static bool is_magnitude(const Slot *s) { return s->param && s->param->init == INIT_DORA; }

/* The network that has the parameter */
static const Network *network_of(const Runtime *r, const Param *param) {
    for (int k = 0; k < r->n_loaded; k++)
        for (int i = 0; i < r->loaded[k].net->n_params; i++)
            if (&r->loaded[k].net->params[i] == param) return r->loaded[k].net;
    return NULL;
}

/* norm[] of the magnitude's elements */
static int norms_of(Runtime *r, const Slot *s, float *norm, Err *e) {
    const Network *net = network_of(r, s->param);
    DoraParts parts;
    assert(net && is_magnitude(s));
    int code = dora_parts(s->param->owner, &parts, e);
    if (code) return code;
    const Param *w = &net->params[dora_weight_of(&parts)], *a = &net->params[parts.a->param[0]], *b = &net->params[parts.b->param[0]];
    LowRank l = {b->shape.dim[0], a->shape.dim[1], a->shape.dim[0], w->turned, (float)s->param->bound, NULL, NULL};
    float *of_w = mem_new((size_t)(l.out * l.in) * sizeof *of_w), *of_a = mem_new((size_t)(l.rank * l.in) * sizeof *of_a);
    float *of_b = mem_new((size_t)(l.out * l.rank) * sizeof *of_b);
    if (!of_w || !of_a || !of_b) code = no_memory(e);
    if (!code) code = runtime_read(r, 0, w->name, of_w, e);
    if (!code) code = runtime_read(r, 0, a->name, of_a, e);
    if (!code) code = runtime_read(r, 0, b->name, of_b, e);
    if (!code) {
        l.a = of_a, l.b = of_b;
        low_rank_add(&l, of_w);
        row_norms(&l, of_w, norm);
    }
    mem_free(of_w);
    mem_free(of_a);
    mem_free(of_b);
    return code;
}

/* x as a buffer of that type holds it */
static float rounded(DType type, float x) {
    uint32_t bits;
    dtype_store(type, &bits, 0, x);
    return dtype_load(type, &bits, 0);
}

/* Makes the magnitude the norms. With is: says whether it has them, and changes nothing. */
static int magnitude(Runtime *r, const Slot *s, bool *is, Err *e) {
    const int64_t n = program_whole_elements(s->buf);
    float *norm = mem_new(2 * (size_t)n * sizeof *norm);
    if (!norm) return no_memory(e);
    int code = norms_of(r, s, norm, e);
    if (!code && !is) code = runtime_write(r, s->buf->name, norm, e);
    if (!code && is) code = runtime_read(r, 0, s->buf->name, norm + n, e);
    for (int64_t i = 0; i < n && !code && is; i++) *is = (i == 0 || *is) && rounded(s->buf->dtype, norm[i]) == norm[n + i];
    mem_free(norm);
    return code;
}

int runtime_magnitude(Runtime *r, int i, bool *is, Err *e) {
    assert(i >= 0 && i < r->n_slots);
    if (is_magnitude(&r->slots[i])) return magnitude(r, &r->slots[i], is, e);
    return err_set(e, ERR_SCRIPT, "%s is no magnitude of DoRA", r->slots[i].buf->name);
}

int runtime_first_values(Runtime *r, Err *e) {
    int code = OK;
    for (int i = 0; i < r->n_slots && !code; i++) code = first_value(r, &r->slots[i], e);
    for (int i = 0; i < r->n_slots && !code; i++)
        if (is_magnitude(&r->slots[i])) code = magnitude(r, &r->slots[i], NULL, e);
    for (int i = 0; i < r->n_loaded && !code; i++) {
        const Loaded *l = &r->loaded[i];
        StepState first = {l->p->first_scale, 0, 0, 0};
        if (l->p->state != NO_BUF)
            code = r->device->table->upload(r->device, runtime_data(r, l, l->p->state), &first, sizeof first, e);
    }
    return code;
}

/* Class labels are checked here, for all devices: kernels rely on it. All losses ignore the same label. */
static int check_labels(const Program *p, const int32_t *t, Err *e) {
    int64_t ignored = 0, classes = INT64_MAX; /* 0: a label that is one anyway */
    bool first = true;
    for (int i = 0; i < p->body_end; i++) {
        const Op *op = &p->ops[i];
        const int64_t of_loss = program_classes(p, op);
        if (op->kind == OP_gather) classes = min_i64(classes, p->bufs[op->in[0]].shape.dim[1]);
        if (!of_loss) continue;
        assert(first || op->attr.loss.ignore_index == ignored);
        first = false;
        ignored = op->attr.loss.ignore_index;
        classes = min_i64(classes, of_loss);
    }
    if (classes == INT64_MAX || !t) return OK;
    int64_t n = shape_elements(&p->bufs[p->target].shape);
    for (int64_t i = 0; i < n; i++)
        if (t[i] != ignored && (t[i] < 0 || t[i] >= classes))
            return err_set(e, ERR_SCRIPT, "target %d of sample %lld is out of bounds for %lld classes", (int)t[i],
                           (long long)i, (long long)classes);
    return OK;
}

/* Checks the positions (N, T) of sequences that share a row, on which kernels rely. */
static int check_positions(const Buf *input, const int32_t *at, Err *e) {
    const int64_t n = shape_elements(&input->shape), steps = input->shape.dim[1];
    for (int64_t i = 0; i < n; i++) {
        const int32_t next = i % steps ? at[i - 1] + 1 : 0;
        if (at[i] == 0 || at[i] == next) continue;
        if (!next)
            return err_set(e, ERR_SCRIPT, "%s %lld is %d: expected 0 where a row begins", input->name, (long long)i, (int)at[i]);
        return err_set(e, ERR_SCRIPT, "%s %lld is %d: expected %d, one more than before it, or 0, where a sequence begins",
                       input->name, (long long)i, (int)at[i], (int)next);
    }
    return OK;
}

/* Turns input k if it is of indices, which a feed gives as numbers, into int32 in place, and checks that every Embedding
 * that reads it has a row for each, and that positions count up. */
static int check_indices(const Program *p, int k, void *values, Err *e) {
    const Buf *input = &p->bufs[p->inputs[k]];
    int64_t rows = INT64_MAX, n = shape_elements(&input->shape);
    bool positions = false;
    if (input->dtype != DT_I32) return OK;
    for (int i = 0; i < p->forward_end; i++) {
        if (p->ops[i].kind == OP_embedding && p->ops[i].in[0] == p->inputs[k]) {
            const Shape table = program_whole_shape(&p->bufs[p->ops[i].in[1]]);
            rows = min_i64(rows, table.dim[0]);
        }
        positions |= program_positions(&p->ops[i]) == p->inputs[k];
    }
    for (int64_t i = 0; i < n; i++) {
        float x = ((const float *)values)[i];
        int32_t index = x >= 0 && x < (float)INT32_MAX ? (int32_t)x : -1;
        if (index < 0 || (float)index != x || index >= rows)
            return rows == INT64_MAX ? err_set(e, ERR_SCRIPT, "%s %lld is %g: expected a whole number that is not negative",
                                               input->name, (long long)i, (double)x)
                                     : err_set(e, ERR_SCRIPT, "%s %lld is %g: expected an index below %lld, the rows of nn.Embedding",
                                               input->name, (long long)i, (double)x, (long long)rows);
        ((int32_t *)values)[i] = index;
    }
    return positions ? check_positions(input, values, e) : OK;
}

/* Asks for micro-batch number `at` of those that the body takes, and packs it from *to on, which moves past it. */
static int stage_one(const Loaded *l, uint32_t step, uint32_t micro, int at, FeedFn *feed, void *arg, char **to, Err *e) {
    const Program *p = l->p;
    const int n = program_fed_buffers(p);
    char *values[OP_IN + 1] = {NULL}, *next = l->values;
    for (int k = 0; k < n; k++) {
        values[k] = next;
        next += fed_bytes(&p->bufs[program_fed(p, k, at)]);
    }
    char *t = p->target != NO_BUF ? values[p->n_inputs] : NULL;
    int code = feed(arg, step, micro, l->values, t, e);
    for (int k = 0; k < p->n_inputs && !code; k++) code = check_indices(p, k, values[k], e);
    if (!code) code = check_labels(p, (const int32_t *)(const void *)t, e);
    for (int k = 0; k < n && !code; k++) {
        const int b = program_fed(p, k, at);
        if (!l->life[b].used) continue;
        (p->bufs[b].dtype == DT_U8 ? view_pack_bytes : view_pack)(&p->bufs[b], values[k], *to);
        *to += align_up(p->bufs[b].bytes, STAGE_ALIGNMENT);
    }
    return code;
}

int runtime_stage(Runtime *r, Loaded *l, uint32_t step, uint32_t run, FeedFn *feed, void *arg, Err *e) {
    const uint32_t fed = (uint32_t)l->p->fed;
    char *to = l->stage[l->next_stage];
    int code = r->device->table->sent(r->device, l->next_stage, e);
    for (uint32_t m = 0; m < fed && !code; m++) code = stage_one(l, step, run * fed + m, (int)m, feed, arg, &to, e);
    return code;
}

int runtime_send(Runtime *r, Loaded *l, Err *e) {
    const DeviceTable *d = r->device->table;
    const char *from = l->stage[l->next_stage];
    const int each = program_fed_buffers(l->p), n = each * l->p->fed;
    int code = OK;
    for (int k = 0; k < n && !code; k++) {
        const int b = program_fed(l->p, k % each, k / each), ahead = l->p->bufs[b].ahead;
        const size_t bytes = l->p->bufs[b].bytes;
        if (!l->life[b].used) continue;
        code = (ahead == NO_BUF ? d->send : d->send_beside)(r->device, l->next_stage, runtime_data(r, l, ahead == NO_BUF ? b : ahead), from, bytes, e);
        from += align_up(bytes, STAGE_ALIGNMENT);
    }
    for (int k = 0; k < n && !code; k++) { /* after all of them, so that no copy waits for one that was taken */
        const int b = program_fed(l->p, k % each, k / each), ahead = l->p->bufs[b].ahead;
        if (!l->life[b].used || ahead == NO_BUF) continue;
        code = d->take(r->device, runtime_data(r, l, b), runtime_data(r, l, ahead), l->p->bufs[b].bytes, e);
    }
    l->next_stage = (l->next_stage + 1) % STAGES;
    return code;
}

int runtime_make_room(Runtime *r, Loaded *l, int room, Err *e) {
    if (l->room[room]) return OK;
    const int code = r->device->table->host_alloc(r->device, l->room_bytes, (void **)&l->room[room], e);
    if (!code) memset(l->room[room], 0, l->room_bytes);
    return code;
}

/* By name; a parameter also by its second one. NULL: there is none. */
static const Slot *find_slot(const Runtime *r, const char *name) {
    int param = -1;
    for (int k = 0; k < r->n_loaded && param < 0; k++) {
        const Network *net = r->loaded[k].net;
        param = network_find_param(net, name);
        if (param >= 0) name = net->params[param].name;
    }
    return named_slot(r, name);
}

static const Kept *find_kept(const Loaded *l, const char *name) {
    for (int i = 0; i < l->n_kept; i++)
        if (!strcmp(l->p->bufs[l->kept[i].buf].name, name)) return &l->kept[i];
    return NULL;
}

static int not_there(const char *name, Err *e) {
    return err_set(e, ERR_SCRIPT, "no buffer \"%s\" can be read: parameters and optimizer state can, "
                   "and what was kept of a step", name);
}

int runtime_shape(const Runtime *r, int which, const char *name, Shape *shape, Err *e) {
    const Slot *s = find_slot(r, name);
    const Kept *k = s ? NULL : find_kept(&r->loaded[which], name);
    if (!s && !k) return not_there(name, e);
    *shape = is_quantized(s) ? s->param->quantized.shape
                             : program_outer_shape(s ? s->buf : &r->loaded[which].p->bufs[k->buf]);
    return OK;
}

DType runtime_type(const Runtime *r, int which, const char *name) {
    const Slot *s = find_slot(r, name);
    const Kept *k = s ? NULL : find_kept(&r->loaded[which], name);
    return is_quantized(s) ? DT_F32 : s ? s->buf->dtype : k ? r->loaded[which].p->bufs[k->buf].dtype : DT_F32;
}

int runtime_read(Runtime *r, int which, const char *name, float *values, Err *e) {
    const Slot *s = find_slot(r, name);
    const Kept *k = s ? NULL : find_kept(&r->loaded[which], name);
    if (!s && !k) return not_there(name, e);
    if (is_quantized(s)) return get_quantized(r, s, values, e);
    const Buf *b = s ? s->buf : &r->loaded[which].p->bufs[k->buf];
    const Buf whole = whole_of(b);
    void *packed = mem_new(whole.bytes);
    if (!packed) return no_memory(e);
    int code = get_whole(r, s, b, k ? r->loaded[which].room[r->loaded[which].read] + k->at : NULL, packed, e);
    if (!code) view_unpack(&whole, packed, values);
    mem_free(packed);
    return code;
}

int runtime_write(Runtime *r, const char *name, const float *values, Err *e) {
    const Slot *s = find_slot(r, name);
    if (!s) return not_there(name, e);
    if (is_quantized(s)) return put_quantized(r, s, values, e);
    int code = put_values(r, s, values, e);
    if (code || s->master < 0) return code;
    return put_values(r, &r->slots[s->master], values, e);
}

const Buf *runtime_persistent(const Runtime *r, int i) { return i < r->n_slots ? r->slots[i].buf : NULL; }

int runtime_master(const Runtime *r, int i) {
    assert(i >= 0 && i < r->n_slots);
    return r->slots[i].master;
}

const Quantization *runtime_quantization(const Runtime *r, int i) {
    assert(i >= 0 && i < r->n_slots);
    return is_quantized(&r->slots[i]) ? &r->slots[i].param->quantized : NULL;
}

int runtime_read_bytes(Runtime *r, int i, void *bytes, Err *e) {
    assert(i >= 0 && i < r->n_slots);
    const Slot *s = &r->slots[i];
    const Buf whole = whole_of(s->buf);
    void *storage = mem_new(whole.bytes);
    if (!storage) return no_memory(e);
    int code = slot_get(r, s, storage, e);
    if (!code) view_unpack_bytes(&whole, storage, bytes);
    mem_free(storage);
    return code;
}

int runtime_write_bytes(Runtime *r, int i, const void *bytes, Err *e) {
    assert(i >= 0 && i < r->n_slots);
    const Slot *s = &r->slots[i];
    const Buf whole = whole_of(s->buf);
    void *storage = mem_new(whole.bytes);
    if (!storage) return no_memory(e);
    view_pack_bytes(&whole, bytes, storage);
    int code = slot_put(r, s, storage, e);
    mem_free(storage);
    return code;
}

uint32_t runtime_updates(const Runtime *r) { return r->updates; }
void runtime_set_updates(Runtime *r, uint32_t updates) { r->updates = updates; }
