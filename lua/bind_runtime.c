/* Runtimes for scripts: steps, values of buffers, memory. */
#include <assert.h>
#include <string.h>

#include "bind.h"
#include "bind_program.h"
#include "io/data.h"
#include "base/mem.h"

/* The programs are borrowed from their boxes, which keep device and networks alive. */
typedef struct Running {
    Runtime *r;
    Job job[BOX_PARENTS];
    int n; /* number of jobs */
} Running;

static void release_runtime(void *content) {
    Running *run = content;
    runtime_close(run->r);
    mem_free(run);
}

static Running *running(lua_State *L) { return bind_get(L, 1, BOX_RUNTIME); }

Runtime *bind_runtime(lua_State *L, int index) { return ((Running *)bind_get(L, index, BOX_RUNTIME))->r; }

/* runtime{programs = {Program, ...}, allocator =, memory = limit in bytes, seed =, fail_at =} -> Runtime
 * The programs must belong to one device; parameters with the same name are shared. */
static int new_runtime(lua_State *L) {
    Err e;
    Job jobs[BOX_PARENTS];
    const Box *first = NULL;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_getfield(L, 1, "programs");
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_Unsigned count = lua_rawlen(L, 2);
    if (count < 1 || count > BOX_PARENTS) return bind_error(L, "programs: expected 1 to %d", BOX_PARENTS);
    for (int i = 0; i < (int)count; i++) lua_rawgeti(L, 2, i + 1);
    Box *box = bind_new(L, BOX_RUNTIME, release_runtime);
    for (int i = 0; i < (int)count; i++) {
        const Box *program = bind_box(L, 3 + i, BOX_PROGRAM);
        bind_borrow(L, box, 3 + i, BOX_PROGRAM);
        jobs[i] = (Job){program->parent[0]->content, program->content};
        if (i == 0) first = program;
        else if (program->parent[1] != first->parent[1])
            return bind_error(L, "programs of one runtime belong to one device");
    }
    size_t limit = bind_bytes(L, 1, "memory"), fail_at = bind_bytes(L, 1, "fail_at");
    AllocKind kind = bind_allocator(L, 1);
    uint64_t seed = (uint64_t)bind_integer(L, 1, "seed", 0);
    Running *run = mem_new(sizeof *run);
    if (!run) return bind_error(L, "out of host memory");
    run->n = (int)count;
    memcpy(run->job, jobs, (size_t)run->n * sizeof *jobs);
    Device *device = first->parent[1]->content;
    if (runtime_open(device, kind, limit, jobs, run->n, seed, fail_at, &run->r, &e)) {
        mem_free(run);
        return bind_fail(L, &e);
    }
    box->content = run;
    return 1;
}

/* The index of the program with the number at `index` (nil: 1) */
static int which_program(lua_State *L, const Running *run, int index) {
    lua_Integer which = lua_isnoneornil(L, index) ? 1 : lua_tointeger(L, index);
    if (which < 1 || which > run->n) return bind_error(L, "no such program: %s", bind_show(L, index));
    return (int)which - 1;
}

/* ---- feeding: the values that a script gives, divided into the micro-batches of one step */

typedef struct Source {
    const char *values;  /* packed fp32 or int32, or bytes */
    int64_t count;       /* of values */
    bool integers;
    size_t size;         /* of a value */
} Source;

typedef struct Feed {
    Source x[OP_IN], t;
    Loader *loader[OP_IN]; /* of each input, in step with each other; the first has the targets, too; or NULL */
    const Program *program;
    int64_t done[OP_IN + 1]; /* values of each x, and of t, handed out */
    const Network *network;
    lua_State *script; /* whose value at index 3 is called for each micro-batch; NULL: there is none */
    bool raised;       /* it has raised the error on top of its stack */
} Feed;

static int64_t elements(const Program *p, int buf) { return buf == NO_BUF ? 0 : shape_elements(&p->bufs[buf].shape); }

/* Fills targets t[from..count) of an incomplete batch with the label that the loss ignores. ERR_SCRIPT: the loss has no
 * such label. A program without targets needs none. */
static int pad_target(const Program *p, void *t, int64_t from, int64_t count, Err *e) {
    assert(from >= 0 && from <= count);
    const Op *loss = NULL;
    bool all = false;
    for (int i = 0; i < p->n_ops; i++) {
        if (program_classes(p, &p->ops[i])) loss = &p->ops[i];
        all |= p->ops[i].kind == OP_element_loss;
    }
    if (p->target != NO_BUF && (!loss || all || from == 0 || p->bufs[p->target].dtype != DT_I32))
        return err_set(e, ERR_SCRIPT, "a batch is incomplete (%lld of %lld targets): open the loader with "
                       "drop_last = true", (long long)from, (long long)count);
    for (int64_t i = from; i < count && p->target != NO_BUF; i++) ((int32_t *)t)[i] = loss->attr.loss.ignore_index;
    return OK;
}

/* Samples that a batch lacks are zeros, which no label counts. ERR_SCRIPT: an op takes its mean over all samples, and would
 * count them. */
static int check_incomplete(const Program *p, int64_t count, int64_t batch, Err *e) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_batchnorm)
            return err_set(e, ERR_SCRIPT, "a batch is incomplete (%lld of %lld samples), and batch normalisation \"%s\" takes the "
                           "mean of a whole one: open the loader with drop_last = true", (long long)count, (long long)batch,
                           p->ops[i].path);
    return OK;
}

/* The next batch of input k, and with it the targets (NULL: not wanted). Samples that an incomplete one lacks are zeros. */
static int feed_loader(Feed *f, int k, float *x, void *t, Err *e) {
    const Program *p = f->program;
    const int64_t size = elements(p, p->inputs[k]), batch = p->bufs[p->inputs[k]].shape.dim[0], per_sample = size / batch;
    int64_t count = 0;
    int code = loader_next(f->loader[k], x, t, &count, e);
    if (!code && count == 0) code = loader_next(f->loader[k], x, t, &count, e);
    if (code || count == batch) return code;
    assert(count < batch); /* bind_check_loader has compared the shapes */
    if (count == 0)
        return err_set(e, ERR_SCRIPT, "the dataset has no complete batch of %lld samples", (long long)batch);
    code = check_incomplete(p, count, batch, e);
    if (code) return code;
    const size_t each = p->bufs[p->inputs[k]].dtype == DT_U8 ? 1 : sizeof *x;
    memset((char *)x + (size_t)(count * per_sample) * each, 0, (size_t)((batch - count) * per_sample) * each);
    int64_t labels = elements(p, p->target) / batch;
    return k > 0 ? OK : pad_target(p, t, count * labels, batch * labels, e);
}

/* Copies the next `want` values of a source to `to`; if there are fewer, the rest is zero. Returns how many there were. */
static int64_t take(const Source *s, int64_t *done, int64_t want, void *to) {
    int64_t n = min_i64(want, s->count - *done);
    if (n > 0) memcpy(to, s->values + (size_t)*done * s->size, (size_t)n * s->size);
    else n = 0;
    memset((char *)to + (size_t)n * s->size, 0, (size_t)(want - n) * s->size);
    *done += n;
    return n;
}

/* The next values of input k that the script has given. */
static int feed_values(Feed *f, int k, float *x, Err *e) {
    const Program *p = f->program;
    const int64_t want = elements(p, p->inputs[k]), batch = p->bufs[p->inputs[k]].shape.dim[0];
    const int64_t got = take(&f->x[k], &f->done[k], want, x);
    return got < want ? check_incomplete(p, got / (want / batch), batch, e) : OK;
}

static int feed_script(Feed *f, float *x, void *t, Err *e);

/* The next micro-batch: of several ranks this rank's, which its loader or iterator picks by itself. */
static int feed_step(void *arg, uint32_t step, uint32_t micro, float *x, void *t, Err *e) {
    Feed *f = arg;
    const Program *p = f->program;
    int code = OK;
    (void)step;
    (void)micro;
    if (f->script) return feed_script(f, x, t, e);
    for (int k = 0; k < p->n_inputs && !code; x += fed_bytes(&p->bufs[p->inputs[k++]]) / sizeof *x) {
        if (f->loader[k]) code = feed_loader(f, k, x, k == 0 ? t : NULL, e);
        else code = feed_values(f, k, x, e);
    }
    if (code || !t || f->loader[0]) return code;
    int64_t want = elements(p, p->target), got = take(&f->t, &f->done[OP_IN], want, t);
    return got < want ? pad_target(p, t, got, want, e) : OK;
}

/* Stores the number on top of the stack as value i of the batch; raises for a string, even if it looks like a number. */
static void store_value(lua_State *L, Batch *batch, int64_t i, const char *what) {
    int whole = 0;
    bool number = lua_type(L, -1) == LUA_TNUMBER;
    lua_Integer label = number ? lua_tointegerx(L, -1, &whole) : 0;
    if (!batch->integers && number) ((float *)batch->values)[i] = (float)lua_tonumber(L, -1);
    else if (whole && label >= INT32_MIN && label <= INT32_MAX) ((int32_t *)batch->values)[i] = (int32_t)label;
    else
        bind_error(L, "%s: expected %s, found %s at %I", what,
                   batch->integers ? "a class label (a whole number of 32 bits)" : "a number",
                   bind_show(L, -1), (LUAI_UACINT)(i + 1));
}

/* Reads a Batch, a string of packed values or a table of numbers at `index`. */
static Source source_at(lua_State *L, int index, bool integers, const char *what) {
    Source s = {.integers = integers, .size = 4};
    Batch *batch = luaL_testudata(L, index, BATCH_TYPE);
    size_t bytes;
    if (!batch && lua_istable(L, index)) {
        int64_t n = (int64_t)lua_rawlen(L, index);
        batch = bind_batch_new(L, shape1(max_i64(n, 1)), integers);
        batch->count = n;
        for (int64_t i = 0; i < n; i++) {
            lua_rawgeti(L, index, i + 1);
            store_value(L, batch, i, what);
            lua_pop(L, 1);
        }
        lua_replace(L, index); /* the batch stays on the stack, because its values are borrowed */
    }
    if (batch) {
        s.values = batch->values;
        s.count = batch->count;
        if (batch->integers != integers)
            bind_error(L, "%s: expected %s", what, integers ? "labels" : "numbers, found labels");
    } else if (lua_type(L, index) == LUA_TSTRING) {
        s.values = lua_tolstring(L, index, &bytes);
        s.count = (int64_t)(bytes / 4);
        if (bytes % 4) bind_error(L, "%s: a string of packed values has 4 bytes for each", what);
    } else {
        bind_error(L, "%s: expected a batch, a table of numbers or a string of packed ones, found %s", what,
            bind_show(L, index));
    }
    return s;
}

/* The same of bytes: a string of them, or numbers, of which each is a whole one from 0 to 255. */
static Source bytes_at(lua_State *L, int index, const char *what) {
    size_t length;
    if (lua_type(L, index) == LUA_TSTRING) {
        const char *text = lua_tolstring(L, index, &length);
        return (Source){text, (int64_t)length, false, 1};
    }
    const Source from = source_at(L, index, false, what);
    unsigned char *bytes = lua_newuserdatauv(L, (size_t)max_i64(from.count, 1), 0);
    for (int64_t i = 0; i < from.count; i++) {
        float x;
        memcpy(&x, from.values + i * 4, sizeof x);
        bytes[i] = x >= 0 && x <= 255 ? (unsigned char)x : 0;
        if ((float)bytes[i] != x)
            bind_error(L, "%s: expected bytes, whole numbers from 0 to 255, found %f at %I", what, (lua_Number)x,
                       (LUAI_UACINT)(i + 1));
    }
    lua_replace(L, index); /* it stays on the stack, because its values are borrowed */
    return (Source){(const char *)bytes, from.count, false, 1};
}

/* The values of an input. */
static Source input_at(lua_State *L, int index, const Buf *input, const char *what) {
    return input->dtype == DT_U8 ? bytes_at(L, index, what) : source_at(L, index, false, what);
}

/* The samples of input k, which must be whole ones that fill all micro-batches of the step; only the last may be
 * incomplete. */
static int64_t count_samples(lua_State *L, const Program *p, int k, const Source *x) {
    const Buf *input = &p->bufs[p->inputs[k]];
    int64_t per_micro = shape_elements(&input->shape), per_sample = per_micro / input->shape.dim[0];
    const int micro_batches = p->micro_batches * p->fed;
    int64_t most = per_micro * micro_batches;
    char shape[SHAPE_TEXT];
    if (x->count % per_sample != 0 || x->count > most || x->count <= most - per_micro)
        bind_error(L, "%s: expected %d x %s values, found %I", input->name, micro_batches,
                   shape_text(&input->shape, shape), (LUAI_UACINT)x->count);
    return x->count / per_sample;
}

/* There must be targets for exactly the samples that were given. */
static void check_targets(lua_State *L, const Network *n, int64_t samples, const Source *t) {
    int64_t expected = samples * n->targets;
    char text[NETWORK_OUTPUT];
    if (t->count == expected) return;
    network_output_text(n, text, sizeof text);
    bind_error(L, "target: expected %I %s for %I samples, found %I: %s", (LUAI_UACINT)expected,
               t->integers ? "labels" : "numbers", (LUAI_UACINT)samples, (LUAI_UACINT)t->count, text);
}

/* Pushes the value of input k: the one at index 3, or of several inputs its field of that name. Returns its index. */
static int push_input(lua_State *L, const Network *n, int k) {
    const char *name = n->inputs[k].name;
    if (!*name) {
        lua_pushvalue(L, 3);
    } else {
        if (lua_type(L, 3) != LUA_TTABLE)
            bind_error(L, "input: expected a table with a value for each of the network's inputs, such as {%s = ...}, found %s",
                       name, bind_show(L, 3));
        if (lua_getfield(L, 3, name) == LUA_TNIL) bind_error(L, "input: there is no %s", name);
    }
    return lua_gettop(L);
}

typedef struct Pull { Feed *feed; float *x; void *t; } Pull; /* where a micro-batch goes; t NULL: not wanted */

/* Copies the values at `index` of batch `number`, which must fill the buffer. */
static void pull_values(lua_State *L, int index, lua_Integer number, const Buf *b, const char *name, bool labels, void *to) {
    const int64_t expected = shape_elements(&b->shape);
    char shape[SHAPE_TEXT], what[BUF_NAME + 64];
    snprintf(what, sizeof what, "data: batch %lld: %s", (long long)number, name);
    const Source s = labels ? source_at(L, index, true, what) : input_at(L, index, b, what);
    if (s.count != expected)
        bind_error(L, "%s: expected the %I values of %s, found %I", what, (LUAI_UACINT)expected,
                   shape_text(&b->shape, shape), (LUAI_UACINT)s.count);
    memcpy(to, s.values, (size_t)expected * s.size);
}

/* (iterator, Pull): one micro-batch of what the iterator returns: x, target, number of the batch */
static int pull(lua_State *L) {
    const Pull *to = lua_touserdata(L, 2);
    const Program *p = to->feed->program;
    lua_pushvalue(L, 1);
    lua_call(L, 0, 3);
    const lua_Integer number = lua_tointeger(L, 5);
    float *x = to->x;
    for (int k = 0; k < p->n_inputs; x += fed_bytes(&p->bufs[p->inputs[k++]]) / sizeof *x) {
        const Buf *b = &p->bufs[p->inputs[k]];
        pull_values(L, push_input(L, to->feed->network, k), number, b, b->name, false, x);
    }
    if (to->t) pull_values(L, 4, number, &p->bufs[p->target], "target", p->bufs[p->target].dtype == DT_I32, to->t);
    return 0;
}

/* What the iterator raises stays on the stack. */
static int feed_script(Feed *f, float *x, void *t, Err *e) {
    lua_State *L = f->script;
    Pull to = {f, x, t};
    if (!lua_checkstack(L, LUA_MINSTACK)) return err_set(e, ERR_HOST_MEMORY, "data: no memory for Lua's stack");
    lua_pushcfunction(L, pull);
    lua_pushvalue(L, 3);
    lua_pushlightuserdata(L, &to);
    f->raised = lua_pcall(L, 2, 0, 0) != LUA_OK;
    return f->raised ? err_set(e, ERR_SCRIPT, "data: the iterator raised an error") : OK;
}

static Feed feed_from(lua_State *L, const Job *job) {
    const Network *n = job->net;
    const Program *p = job->program;
    Feed f = {.program = p, .network = n};
    int64_t samples = 0;
    if (luaL_getmetafield(L, 3, "__call") != LUA_TNIL) {
        lua_pop(L, 1);
        f.script = L;
        return f;
    }
    for (int k = 0; k < p->n_inputs; k++) {
        const Buf *input = &p->bufs[p->inputs[k]];
        const bool has_target = p->target != NO_BUF && k == 0;
        const int at = push_input(L, n, k);
        if (luaL_testudata(L, at, BOX_LOADER)) {
            f.loader[k] = bind_get(L, at, BOX_LOADER);
            bind_check_loader(L, at, &input->shape, input->dtype == DT_U8, has_target ? &p->bufs[p->target].shape : NULL,
                              has_target && p->bufs[p->target].dtype == DT_I32);
            if (loader_world(f.loader[k]) != p->world)
                bind_error(L, "the loader gives batches of one of %d ranks, the program has %d", loader_world(f.loader[k]), p->world);
            if (k > 0 && !f.loader[0]) bind_error(L, "%s: found a loader, but %s has none", input->name, p->bufs[p->inputs[0]].name);
            continue;
        }
        if (k > 0 && f.loader[0]) bind_error(L, "%s: expected a loader, as %s has one", input->name, p->bufs[p->inputs[0]].name);
        f.x[k] = input_at(L, at, input, input->name);
        const int64_t found = count_samples(L, p, k, &f.x[k]);
        if (k > 0 && found != samples)
            bind_error(L, "%s: expected %I samples, as %s has, found %I", input->name, (LUAI_UACINT)samples,
                       p->bufs[p->inputs[0]].name, (LUAI_UACINT)found);
        samples = found;
    }
    if (p->target == NO_BUF || f.loader[0]) return f;
    f.t = source_at(L, 4, p->bufs[p->target].dtype == DT_I32, "target");
    check_targets(L, n, samples, &f.t);
    return f;
}

/* pack(values, labels, what, bytes) -> a Batch of a table of numbers, a string of packed ones or a Batch; of bytes a
 * string of them */
static int pack(lua_State *L) {
    lua_settop(L, 4);
    const char *what = lua_tostring(L, 3);
    if (lua_toboolean(L, 4)) {
        const Source s = bytes_at(L, 1, what);
        lua_pushlstring(L, s.values, (size_t)s.count);
        return 1;
    }
    const Source s = source_at(L, 1, lua_toboolean(L, 2), what);
    Batch *made = bind_batch_new(L, shape1(max_i64(s.count, 1)), s.integers);
    made->count = s.count;
    memcpy(made->values, s.values, (size_t)s.count * 4);
    return 1;
}

static int push_result(lua_State *L, const StepResult *found) {
    lua_pushnumber(L, (lua_Number)found->loss);
    lua_pushnumber(L, found->seconds);
    lua_pushboolean(L, found->skipped);
    lua_pushnumber(L, found->ops);
    lua_pushboolean(L, found->replayed);
    return 5;
}

/* runtime:step(which, x, t) or (which, loader) -> loss, seconds, skipped, ops, replayed. x and t hold all micro-batches of the
 * step. loader: or a value that can be called, which gives x and t of a micro-batch and the batch's number. skipped: the loss
 * scaler found an overflow, and no update was made. ops: of the seconds those of the ops alone; replayed: as graphs. */
static int step(lua_State *L) {
    Err e;
    StepResult found;
    lua_settop(L, 4);
    Running *run = running(L);
    int which = which_program(L, run, 2);
    Feed feed = feed_from(L, &run->job[which]);
    if (runtime_step(run->r, which, feed_step, &feed, &found, &e)) return feed.raised ? lua_error(L) : bind_fail(L, &e);
    return push_result(L, &found);
}

/* runtime:begin(which, x, t) or (which, loader) -> true: the same without waiting for the device; another step may begin before
 * the result of this one is asked for */
static int begin(lua_State *L) {
    Err e;
    lua_settop(L, 4);
    Running *run = running(L);
    int which = which_program(L, run, 2);
    Feed feed = feed_from(L, &run->job[which]);
    if (runtime_begin(run->r, which, feed_step, &feed, &e)) return feed.raised ? lua_error(L) : bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* runtime:result() -> of the first step that has begun: as runtime:step; its seconds go to the begin of the next one, if that has
 * begun */
static int result(lua_State *L) {
    Err e;
    StepResult found;
    lua_settop(L, 1);
    if (runtime_result(running(L)->r, &found, &e)) return bind_fail(L, &e);
    return push_result(L, &found);
}

/* runtime:step_timed(which, loader) -> loss, {seconds of each op}: the same step, slower, with every op timed by
 * itself; of several micro-batches the sum */
static int step_timed(lua_State *L) {
    Err e;
    StepResult found;
    lua_settop(L, 4);
    Running *run = running(L);
    int which = which_program(L, run, 2);
    const int n = run->job[which].program->n_ops;
    Feed feed = feed_from(L, &run->job[which]);
    double *seconds = lua_newuserdatauv(L, (size_t)n * sizeof *seconds, 0);
    if (runtime_step_timed(run->r, which, feed_step, &feed, seconds, &found, &e))
        return feed.raised ? lua_error(L) : bind_fail(L, &e);
    lua_pushnumber(L, (lua_Number)found.loss);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushnumber(L, seconds[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 2;
}

/* runtime:timing_seconds() -> seconds that each of these times holds for the timing itself */
static int timing_seconds(lua_State *L) {
    Err e;
    double seconds;
    if (runtime_timing_seconds(running(L)->r, &seconds, &e)) return bind_fail(L, &e);
    lua_pushnumber(L, seconds);
    return 1;
}

/* ---- the parts of a step */

static const Job *job_in_parts(lua_State *L, int which) {
    const Running *run = running(L);
    if (!run->job[which].program->parts) bind_error(L, "the program runs whole steps: it was compiled without parts");
    return &run->job[which];
}

static int run_part(lua_State *L, StepPart part, bool fresh, FeedFn *feed, void *arg) {
    Err e;
    StepResult found;
    Running *run = running(L);
    const int which = which_program(L, run, 2);
    if (runtime_part(run->r, which, part, fresh, feed, arg, &found, &e)) return bind_fail(L, &e);
    return push_result(L, &found);
}

/* runtime:forward(which, x, t) or (which, loader) -> loss, seconds */
static int forward(lua_State *L) {
    lua_settop(L, 4);
    const Running *run = running(L);
    const int which = which_program(L, run, 2);
    Feed feed = feed_from(L, job_in_parts(L, which));
    return run_part(L, PART_FORWARD, false, feed_step, &feed);
}

/* runtime:backward(which, fresh) -> the loss again, seconds. fresh: gradients are made, not added to */
static int backward(lua_State *L) {
    lua_settop(L, 3);
    job_in_parts(L, which_program(L, running(L), 2));
    return run_part(L, PART_BACKWARD, lua_toboolean(L, 3), NULL, NULL);
}

/* runtime:update(which) -> the loss again, seconds, skipped */
static int update(lua_State *L) {
    lua_settop(L, 2);
    job_in_parts(L, which_program(L, running(L), 2));
    return run_part(L, PART_UPDATE, false, NULL, NULL);
}

/* ---- looking and changing */

/* runtime:loss_scale(which) -> the loss scale after the last step; nil: that program has none */
static int loss_scale(lua_State *L) {
    Err e;
    float scale;
    const Running *run = running(L);
    lua_settop(L, 2);
    if (runtime_loss_scale(run->r, which_program(L, run, 2), &scale, &e)) return bind_fail(L, &e);
    if (scale != 0) lua_pushnumber(L, (lua_Number)scale);
    else lua_pushnil(L);
    return 1;
}

/* runtime:read(name, which, as_batch) -> {numbers in PyTorch's order}, shape: of a buffer of program `which` (nil: 1);
 * as_batch: a batch of them instead of the table */
static int read_values(lua_State *L) {
    Err e;
    Shape shape;
    lua_settop(L, 4);
    const Running *run = running(L);
    const char *name = bind_text_at(L, 2, "read: name");
    int which = which_program(L, run, 3);
    if (runtime_shape(run->r, which, name, &shape, &e)) return bind_fail(L, &e);
    bool integers = !dtype_is_float(runtime_type(run->r, which, name));
    Batch *batch = bind_batch_new(L, shape, integers);
    if (runtime_read(run->r, which, name, batch->values, &e)) return bind_fail(L, &e);
    if (lua_toboolean(L, 4)) {
        bind_push_shape(L, &shape);
        return 2;
    }
    lua_createtable(L, batch->count < INT32_MAX ? (int)batch->count : 0, 0);
    for (int64_t i = 0; i < batch->count; i++) {
        if (integers) lua_pushinteger(L, ((int32_t *)batch->values)[i]);
        else lua_pushnumber(L, (lua_Number)((float *)batch->values)[i]);
        lua_rawseti(L, -2, i + 1);
    }
    bind_push_shape(L, &shape);
    return 2;
}

/* runtime:write(name, values): a table of numbers, a batch, or a function from the index (1, 2, ...) to a number */
static int write_values(lua_State *L) {
    Err e;
    Shape shape;
    const Running *run = running(L);
    const char *name = bind_text_at(L, 2, "write: name");
    bool call = lua_isfunction(L, 3);
    const Batch *given = luaL_testudata(L, 3, BATCH_TYPE);
    if (!call && !given && !lua_istable(L, 3))
        return bind_error(L, "%s: expected a table of numbers or a function, found %s", name, bind_show(L, 3));
    if (runtime_shape(run->r, 0, name, &shape, &e)) return bind_fail(L, &e);
    Batch *batch = bind_batch_new(L, shape, !dtype_is_float(runtime_type(run->r, 0, name)));
    const int64_t found = given ? given->count : (int64_t)lua_rawlen(L, 3);
    if (!call && found != batch->count)
        return bind_error(L, "%s: expected %I values, found %I", name, (LUAI_UACINT)batch->count, (LUAI_UACINT)found);
    if (given && given->integers != batch->integers)
        return bind_error(L, "%s: expected %s", name, batch->integers ? "whole numbers" : "numbers");
    if (given) memcpy(batch->values, given->values, (size_t)found * 4);
    for (int64_t i = 0; i < batch->count && !given; i++) {
        if (call) {
            lua_pushvalue(L, 3);
            lua_pushinteger(L, i + 1);
            lua_call(L, 1, 1);
        } else {
            lua_rawgeti(L, 3, i + 1);
        }
        store_value(L, batch, i, name);
        lua_pop(L, 1);
    }
    bind_get(L, 1, BOX_RUNTIME); /* raises if the function has closed the runtime */
    if (runtime_write(run->r, name, batch->values, &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* runtime:memory() -> {used, held, limit, requests, host, categories, peak = {bytes, used, op, categories}}, in bytes;
 * requests: how often memory was asked for */
static int memory(lua_State *L) {
    const Running *run = running(L);
    const Ledger *l = runtime_ledger(run->r);
    lua_createtable(L, 0, 7);
    bind_set_integer(L, "used", (lua_Integer)l->used);
    bind_set_integer(L, "held", (lua_Integer)l->held);
    bind_set_integer(L, "limit", (lua_Integer)l->limit);
    bind_set_integer(L, "requests", (lua_Integer)l->requests);
    bind_set_integer(L, "host", (lua_Integer)runtime_host_bytes(run->r));
    bind_push_categories(L, l->category);
    lua_setfield(L, -2, "categories");
    bind_push_peak(L, &l->peak, run->job[l->peak.program].program);
    lua_setfield(L, -2, "peak");
    return 1;
}

/* runtime:reset_peak() */
static int reset_peak(lua_State *L) {
    runtime_reset_peak(running(L)->r);
    return 0;
}

/* runtime:empty_cache() -> bytes given back to the device */
static int empty_cache(lua_State *L) {
    lua_pushinteger(L, (lua_Integer)runtime_empty_cache(running(L)->r));
    return 1;
}

/* runtime:finish() closes it -> true; nil, message, code: it had not released all its bytes */
static int finish(lua_State *L) {
    Err e;
    Running *run = running(L);
    int code = runtime_close_checked(run->r, &e);
    run->r = NULL;
    lua_getfield(L, 1, "close");
    lua_pushvalue(L, 1);
    lua_call(L, 1, 0);
    if (code) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

void bind_open_runtime(lua_State *L) {
    static const luaL_Reg methods[] = {{"step", step}, {"begin", begin}, {"result", result}, {"step_timed", step_timed},
        {"timing_seconds", timing_seconds}, {"forward", forward}, {"backward", backward}, {"update", update},
        {"loss_scale", loss_scale}, {"read", read_values}, {"write", write_values}, {"memory", memory}, {"reset_peak", reset_peak}, {"empty_cache", empty_cache}, {"finish", finish}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"runtime", new_runtime}, {"pack", pack}, {NULL, NULL}};
    bind_type(L, BOX_RUNTIME, methods);
    luaL_setfuncs(L, functions, 0);
}
