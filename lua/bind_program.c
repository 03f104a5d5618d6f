/* Settings, step programs and their prediction for scripts. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bind.h"
#include "bind_program.h"
#include "run/alike.h"

static void release_program(void *content) { program_free(content); }

/* ---- settings */

/* Sets the optimizer from the table on top of the stack: {kind = "Adam", options = {lr = 0.001}}; a Rule also has its
 * formula (program/formula.h) */
static void set_optimizer(lua_State *L, Settings *s) {
    Err e;
    Options o;
    const char *name, *spec;
    luaL_checktype(L, -1, LUA_TTABLE);
    const char *kind = bind_string(L, lua_gettop(L), "kind", "");
    for (int i = 0; (spec = optimizer_spec(i, &name)) != NULL; i++) {
        if (strcmp(kind, name) != 0) continue;
        lua_getfield(L, -1, "options");
        int code = options_parse(&o, spec, &e);
        if (!code && lua_istable(L, -1)) code = bind_options(L, -1, &o, &e);
        if (!code) code = optimizer_set(&s->optimizer, i, &o, &e);
        options_free(&o);
        if (!code && i == OPTIM_Rule) code = formula_read(&s->optimizer.formula, bind_string(L, lua_gettop(L) - 1, "formula", ""), &e);
        lua_pop(L, 1);
        if (!code) return;
        bind_error(L, "%s: %s", kind, e.text);
    }
    bind_error(L, "optimizer: expected one of memtide.optim's");
}

/* Sets the setting from the value on top of the stack. */
static void set(lua_State *L, Settings *s, const Setting *setting) {
    Err e;
    int code;
    assert(setting);
    if (setting->type == SETTING_optimizer) {
        set_optimizer(L, s);
        return;
    }
    /* the words "true" and "false" of settings.def mean the flags true and false: a script's strings are not these */
    const char *word = setting->type == SETTING_word && lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    if (setting->type == SETTING_flag || !strcmp(word, "true") || !strcmp(word, "false"))
        bind_flag(L, lua_gettop(L), setting->name);
    if (lua_type(L, -1) == LUA_TNUMBER) code = setting_set_number(s, setting, lua_tonumber(L, -1), &e);
    else {
        code = setting_set_text(s, setting, luaL_tolstring(L, -1, NULL), &e);
        lua_pop(L, 1);
    }
    if (code) bind_error(L, "%s", e.text);
}

Settings bind_settings(lua_State *L, int index) {
    Settings s = settings_default();
    for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
        const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
        const Setting *setting = setting_find(name);
        if (!setting) bind_error(L, "unknown setting \"%s\"", name);
        set(L, &s, setting);
    }
    return s;
}

/* check_setting(name, text) -> true, or nil and what is wrong with that value */
static int check_setting(lua_State *L) {
    Err e;
    Settings s = settings_default();
    const Setting *setting = setting_find(luaL_checkstring(L, 1));
    if (!setting) return bind_error(L, "there is no such setting");
    if (!setting_set_text(&s, setting, luaL_checkstring(L, 2), &e)) {
        lua_pushboolean(L, true);
        return 1;
    }
    lua_pushnil(L);
    lua_pushstring(L, e.text);
    return 2;
}

/* Sets t[key] to the list of the words in "a|b|". */
static void set_words(lua_State *L, const char *key, const char *words) {
    lua_newtable(L);
    for (int i = 1; *words; i++) {
        const size_t n = strcspn(words, "|");
        lua_pushlstring(L, words, n);
        lua_rawseti(L, -2, i);
        words += n + 1;
    }
    lua_setfield(L, -2, key);
}

/* settings() -> {{name, type, default = text, words = {...}, least, most, tried = {...}, unit, text, whose}, ...}: the
 * rows of settings.def in their order; whose: "outer", "cell" or "inner" */
static int setting_table(lua_State *L) {
    static const char *const whose[] = {"outer", "cell", "inner"};
    const Setting *setting;
    lua_newtable(L);
    for (int i = 0; (setting = setting_info(i)) != NULL; i++) {
        lua_createtable(L, 0, 10);
        bind_set_string(L, "name", setting->name);
        bind_set_string(L, "type", setting_type_name(setting->type));
        bind_set_string(L, "default", setting->initial);
        set_words(L, "words", setting->words);
        bind_set_integer(L, "least", setting->least);
        bind_set_integer(L, "most", setting->most);
        set_words(L, "tried", setting->tried);
        bind_set_string(L, "unit", setting->unit);
        bind_set_string(L, "text", setting->text);
        bind_set_string(L, "whose", whose[setting->whose]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* The type that a precision computes in, as the name of the precision that uses this type for everything */
static const char *type_of(Precision p) {
    const DType low = precision_info(p)->low;
    for (Precision q = 0; q < PREC_COUNT; q++) {
        const PrecisionInfo *info = precision_info(q);
        if (info->low == low && info->weights == low && !info->master) return info->text;
    }
    return precision_info(p)->text;
}

/* precision_types() -> {fp32 = "fp32", amp_bf16 = "bf16", ...}: the type that each precision computes in, by the names
 * that device:info().emulated uses */
static int precision_types(lua_State *L) {
    lua_createtable(L, 0, PREC_COUNT);
    for (Precision p = 0; p < PREC_COUNT; p++) bind_set_string(L, precision_info(p)->text, type_of(p));
    return 1;
}

/* The type with the name at `index`, as in program:bufs() */
static DType type_at(lua_State *L, int index) {
    const char *name = luaL_checkstring(L, index);
    for (int t = 0; t < DT_COUNT; t++) if (!strcmp(name, dtype_name((DType)t))) return (DType)t;
    return (DType)bind_error(L, "there is no type %s", name);
}

/* optimizer_bytes({kind =, options =, formula =}, shape or nil ({1}), type or nil ("f32")) -> bytes of the optimizer's states for
 * a parameter of that shape and type; raises if an option is wrong */
static int optimizer_bytes(lua_State *L) {
    Settings s = settings_default();
    OptimState state;
    Shape like = lua_istable(L, 2) ? bind_shape(L, 2) : shape1(1);
    DType type = lua_isnoneornil(L, 3) ? DT_F32 : type_at(L, 3);
    int64_t bytes = 0;
    lua_settop(L, 1);
    set_optimizer(L, &s);
    for (int k = 1; k < op_master(optimizer_op(&s.optimizer, &like)); k++)
        if (optimizer_keeps(&s.optimizer, k, &like, type, &state))
            bytes += shape_elements(&state.shape) * (int64_t)dtype_size(state.type);
    lua_pushinteger(L, bytes);
    return 1;
}

/* optimizer_kinds() -> {{name =, spec =, paged =}, ...}; paged: its states wait in the host's memory */
static int optimizer_kinds(lua_State *L) {
    const char *name, *spec;
    lua_newtable(L);
    for (int i = 0; (spec = optimizer_spec(i, &name)) != NULL; i++) {
        lua_createtable(L, 0, 3);
        bind_set_string(L, "name", name);
        bind_set_string(L, "spec", spec);
        bind_set_boolean(L, "paged", optimizer_is_paged((OptimKind)i));
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* ---- compiling */

static void watch_pass(void *arg, const char *pass, const Program *p) {
    char title[64];
    snprintf(title, sizeof title, "# after %s", pass);
    bind_text_line(arg, title);
    program_dump(p, bind_text_line, arg);
    bind_text_line(arg, "");
}

/* compile(network, settings, device, want_passes) -> Program and, if wanted, the program's text after each pass */
static int new_program(lua_State *L) {
    Err e;
    lua_settop(L, 4);
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    luaL_checktype(L, 2, LUA_TTABLE);
    Settings s = bind_settings(L, 2);
    Device *device = bind_get(L, 3, BOX_DEVICE);
    Text *passes = lua_toboolean(L, 4) ? bind_text_new(L) : NULL;
    Program *program;
    Box *box = bind_new(L, BOX_PROGRAM, release_program);
    bind_borrow(L, box, 1, BOX_NETWORK);
    bind_borrow(L, box, 3, BOX_DEVICE);
    if (compile(n, &s, device, passes ? watch_pass : NULL, passes, &program, &e)) return bind_fail(L, &e);
    box->content = program;
    return passes ? 1 + bind_text_push(L, passes) : 1;
}

/* ---- looking at a program */

/* program:dump() -> text: a line per buffer and op */
static int dump(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    Text *t = bind_text_new(L);
    program_dump(p, bind_text_line, t);
    return bind_text_push(L, t);
}

/* program:plan() -> text: a line per buffer with offset, bytes, and the first and last op that it lives for */
static int plan(lua_State *L) {
    Err e;
    const Placement *place;
    const Box *box = bind_box(L, 1, BOX_PROGRAM);
    const Device *device = box->parent[1]->content;
    Text *t = bind_text_new(L);
    if (placement_of(box->content, device->table->alignment, &place, &e)) return bind_fail(L, &e);
    placement_dump(box->content, place, bind_text_line, t);
    return bind_text_push(L, t);
}

static void push_operands(lua_State *L, const Program *p, const int *bufs, int n, const char *key) {
    lua_newtable(L);
    for (int i = 0; i < n; i++) {
        if (bufs[i] == NO_BUF) continue;
        lua_pushstring(L, p->bufs[bufs[i]].name);
        lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    }
    lua_setfield(L, -2, key);
}

/* program:ops() -> {{kind, path, phase, times, inputs = {names}, outputs = {names}, recomputed, flops, traffic}, ...};
 * phase: "forward", "backward" or "update"; times: how often it runs in a step; flops, and traffic, the bytes read and
 * written: of one time */
static int ops(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    lua_createtable(L, p->n_ops, 0);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        lua_createtable(L, 0, 9);
        bind_set_string(L, "kind", op_info(op->kind)->name);
        bind_set_string(L, "phase", op_is_update(op->kind) || i >= p->body_end ? "update" : i < p->forward_end ? "forward" : "backward");
        bind_set_integer(L, "times", i < p->body_end ? p->micro_batches : 1);
        bind_set_string(L, "path", op->path);
        bind_set_boolean(L, "recomputed", op->recomputed);
        bind_set_number(L, "flops", op->flops);
        bind_set_number(L, "traffic", op->traffic);
        push_operands(L, p, op->in, OP_IN, "inputs");
        push_operands(L, p, op->out, OP_OUT, "outputs");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* A step or a part of it, by the word at `index`; nil: the step */
static StepPart part_at(lua_State *L, int index) {
    static const char *const names[] = {"step", "forward", "backward", "update", NULL};
    return (StepPart)luaL_checkoption(L, index, "step", names);
}

/* The ops of a part are those from *from on, to the one before the last. Returns that. */
static int ops_of(const Program *p, StepPart part, int *from) {
    *from = part == PART_BACKWARD ? p->forward_end : part == PART_UPDATE ? p->body_end : 0;
    return part == PART_FORWARD ? p->forward_end : part == PART_BACKWARD ? p->body_end : p->n_ops;
}

/* program:cost(part) -> floating-point operations, bytes read and written, and number of ops of one step with all its
 * micro-batches; or of that part of it: "forward", "backward", "update" */
static int cost(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    double flops = 0, traffic = 0, ops = 0;
    int from, to = ops_of(p, part_at(L, 2), &from);
    for (int i = from; i < to; i++) {
        double times = i < p->body_end ? p->micro_batches : 1;
        flops += times * p->ops[i].flops;
        traffic += times * p->ops[i].traffic;
        ops += times;
    }
    lua_pushnumber(L, flops);
    lua_pushnumber(L, traffic);
    lua_pushnumber(L, ops);
    return 3;
}

/* program:floor(operations per second, bytes per second, part) -> seconds: no step, or part of it, can be faster. The sum
 * over all ops of the larger of two times: to compute, and to move its bytes. */
static int floor_time(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    double per_flop = 1 / luaL_checknumber(L, 2), per_byte = 1 / luaL_checknumber(L, 3), seconds = 0;
    int from, to = ops_of(p, part_at(L, 4), &from);
    for (int i = from; i < to; i++) {
        double compute = p->ops[i].flops * per_flop, move = p->ops[i].traffic * per_byte;
        seconds += (i < p->body_end ? p->micro_batches : 1) * (compute > move ? compute : move);
    }
    lua_pushnumber(L, seconds);
    return 1;
}

/* program:bufs() -> {{name, shape, dtype, width, category, kind, bytes, alias, keep, host, divided, master}, ...}; width: bytes of
 * an element; divided: of a tensor of the network it is this rank's part; alias: name of the buffer whose storage it uses, or nil; master: of a 16-bit weight that has one, the name
 * of its fp32 copy */
static int bufs(lua_State *L) {
    static const char *const kinds[] = {"temporary", "persistent", "input"};
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    lua_createtable(L, p->n_bufs, 0);
    for (int i = 0; i < p->n_bufs; i++) {
        const Buf *b = &p->bufs[i];
        lua_createtable(L, 0, 11);
        bind_set_string(L, "name", b->name);
        bind_set_string(L, "dtype", dtype_name(b->dtype));
        bind_set_integer(L, "width", (lua_Integer)dtype_size(b->dtype));
        bind_set_string(L, "category", category_name(b->category));
        bind_set_string(L, "kind", kinds[b->kind]);
        bind_set_integer(L, "bytes", (lua_Integer)b->bytes);
        bind_set_boolean(L, "keep", b->keep);
        bind_set_boolean(L, "host", b->host);
        bind_set_boolean(L, "divided", b->shard.count || b->slice.parts);
        if (b->alias != NO_BUF) bind_set_string(L, "alias", p->bufs[b->alias].name);
        bind_push_shape(L, &b->shape);
        lua_setfield(L, -2, "shape");
        lua_rawseti(L, -2, i + 1);
    }
    for (int i = 0; i < p->n_params; i++) {
        if (p->params[i].master == NO_BUF) continue;
        lua_rawgeti(L, -1, p->params[i].weight + 1);
        bind_set_string(L, "master", p->bufs[p->params[i].master].name);
        lua_pop(L, 1);
    }
    return 1;
}

/* program:names() -> {input, target, output, loss}: names of these buffers, of the first input; nil: the program has none */
static int names(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    const struct { const char *key; int buf; } all[] = {
        {"input", p->inputs[0]}, {"target", p->target}, {"output", p->output}, {"loss", p->loss}};
    lua_newtable(L);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i].buf != NO_BUF) bind_set_string(L, all[i].key, p->bufs[all[i].buf].name);
    return 1;
}

/* program:transfer() -> {data = {ranks, stride, sent, received, calls, rounds}, tensor = ..., pipeline = ...}: what a rank sends
 * in a step to the others along each axis of the mesh, and receives from them, in bytes, and what else program.h says of a
 * Transfer. stride: from one of them to the next */
static int transfer(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    const int strides[MESH_AXES] = {[MESH_DATA] = p->tensor, [MESH_TENSOR] = 1, [MESH_PIPELINE] = p->world * p->tensor};
    lua_createtable(L, 0, MESH_AXES);
    for (int axis = 0; axis < MESH_AXES; axis++) {
        const Transfer of = program_transfer(p, (MeshAxis)axis);
        lua_createtable(L, 0, 6);
        bind_set_integer(L, "ranks", program_axis(p, (MeshAxis)axis).world);
        bind_set_integer(L, "stride", strides[axis]);
        bind_set_integer(L, "sent", of.sent);
        bind_set_integer(L, "received", of.received);
        bind_set_integer(L, "calls", of.calls);
        bind_set_integer(L, "rounds", of.rounds);
        lua_setfield(L, -2, mesh_axis_name((MeshAxis)axis));
    }
    return 1;
}

/* ---- prediction */

void bind_push_peak(lua_State *L, const LedgerPeak *peak, const Program *p) {
    char op[OP_PATH + 40] = "";
    lua_createtable(L, 0, 5);
    bind_set_integer(L, "bytes", (lua_Integer)peak->held);
    bind_set_integer(L, "program", peak->program + 1);
    bind_set_integer(L, "used", (lua_Integer)peak->used);
    if (p && peak->mark >= 0 && peak->mark < p->n_ops) {
        const Op *at = &p->ops[peak->mark];
        snprintf(op, sizeof op, "%s%s%s", op_info(at->kind)->name, *at->path ? " " : "", at->path);
        bind_set_integer(L, "at", peak->mark + 1);
    }
    bind_set_string(L, "op", op);
    bind_push_categories(L, peak->category);
    lua_setfield(L, -2, "categories");
}

void bind_push_categories(lua_State *L, const size_t *bytes) {
    lua_createtable(L, 0, CAT_COUNT);
    for (int c = 0; c < CAT_COUNT; c++) bind_set_integer(L, category_name((Category)c), (lua_Integer)bytes[c]);
}

AllocKind bind_allocator(lua_State *L, int index) {
    Settings s;
    const Setting *setting = setting_find("allocator");
    if (lua_getfield(L, index, setting->name) != LUA_TNIL) set(L, &s, setting);
    else setting_set_default(&s, setting);
    lua_pop(L, 1);
    return s.allocator;
}

size_t bind_bytes(lua_State *L, int index, const char *key) {
    lua_Integer bytes = bind_integer(L, index, key, 0);
    if (bytes < 0) bind_error(L, "%s: expected a number of bytes, found %I", key, (LUAI_UACINT)bytes);
    return (size_t)bytes;
}

static Job job_at(lua_State *L, int index) {
    const Box *box = bind_box(L, index, BOX_PROGRAM);
    return (Job){box->parent[0]->content, box->content};
}

/* The jobs of a prediction: the program at index 1, and those in the field `with` of the table at 2. Returns how many. */
static int predicted_jobs(lua_State *L, Job *jobs) {
    jobs[0] = job_at(L, 1);
    if (lua_getfield(L, 2, "with") == LUA_TNIL) return 1;
    luaL_checktype(L, -1, LUA_TTABLE);
    int n = 1 + (int)lua_rawlen(L, -1);
    if (n > BOX_PARENTS) bind_error(L, "with: expected at most %d programs", BOX_PARENTS - 1);
    for (int i = 1; i < n; i++) {
        lua_rawgeti(L, -1, i);
        jobs[i] = job_at(L, -1);
        lua_pop(L, 1);
    }
    return n;
}

/* The call {program's number, "step"} on top of the stack; or one of a step's parts by its name. */
static Call call_at(lua_State *L, const Job *jobs, int n) {
    luaL_checktype(L, -1, LUA_TTABLE);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    const lua_Integer which = lua_tointeger(L, -2);
    const StepPart part = part_at(L, lua_gettop(L));
    if (which < 1 || which > n) bind_error(L, "calls: no such program: %s", bind_show(L, -2));
    if (part != PART_WHOLE && !jobs[which - 1].program->parts) bind_error(L, "calls: program %I has no parts", (LUAI_UACINT)which);
    lua_pop(L, 2);
    return (Call){(int)which - 1, part};
}

/* The calls of a round, from the field `calls` of the table at 2: *n of them, at least one; else a step of the first
 * program. They stay on the stack. */
static const Call *predicted_calls(lua_State *L, const Job *jobs, int n_jobs, int *n) {
    const bool given = lua_getfield(L, 2, "calls") == LUA_TTABLE;
    const lua_Unsigned count = given ? lua_rawlen(L, -1) : 1;
    if (count < 1 || count > INT32_MAX) bind_error(L, "calls: expected at least one");
    Call *calls = lua_newuserdatauv(L, (size_t)count * sizeof *calls, 0);
    *n = (int)count;
    *calls = (Call){0, PART_WHOLE};
    for (int i = 0; i < *n && given; i++) {
        lua_rawgeti(L, -2, i + 1);
        calls[i] = call_at(L, jobs, n_jobs);
        lua_pop(L, 1);
    }
    return calls;
}

/* program:predict{allocator =, memory = limit in bytes, steps =, with = {programs of the same runtime}, calls = {{1,
 * "step"}, ...}} -> {peak = {bytes, used, op, program, categories}, lower_bound, allocated, reserved, host, fits,
 * reason}, in bytes. calls: each step is a round of these calls of the programs, by number; without them it is one of
 * the first program. fits = false: `reason` says what did not fit. */
static int predict_program(lua_State *L) {
    Err e;
    Prediction found;
    const Box *box = bind_box(L, 1, BOX_PROGRAM);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_Integer steps = bind_integer(L, 2, "steps", 2);
    if (steps < 1 || steps > INT32_MAX) bind_error(L, "steps: expected at least 1");
    Device *device = box->parent[1]->content;
    AllocKind kind = bind_allocator(L, 2);
    size_t limit = bind_bytes(L, 2, "memory");
    Job jobs[BOX_PARENTS];
    int n_calls, n = predicted_jobs(L, jobs);
    const Call *calls = predicted_calls(L, jobs, n, &n_calls);
    if (predict(jobs, n, kind, device, limit, calls, n_calls, (int)steps, &found, &e)) return bind_fail(L, &e);
    lua_createtable(L, 0, 7);
    bind_set_integer(L, "lower_bound", (lua_Integer)found.lower_bound);
    bind_set_integer(L, "allocated", (lua_Integer)found.allocated);
    bind_set_integer(L, "reserved", (lua_Integer)found.reserved);
    bind_set_integer(L, "host", (lua_Integer)found.host);
    bind_set_boolean(L, "fits", found.fits);
    if (!found.fits) bind_set_string(L, "reason", found.reason.text);
    bind_push_peak(L, &found.peak, jobs[found.peak.program].program);
    lua_setfield(L, -2, "peak");
    return 1;
}

/* program:alike{with = {programs of the same runtime}} -> {{rank, count}, ...}: the classes of the training's ranks that are
 * alike, each with its first rank (run/alike.h) */
static int alike(lua_State *L) {
    Err e;
    Job jobs[BOX_PARENTS];
    const Program *programs[BOX_PARENTS];
    Alike *classes;
    int found;
    luaL_checktype(L, 2, LUA_TTABLE);
    const int n = predicted_jobs(L, jobs);
    for (int i = 0; i < n; i++) programs[i] = jobs[i].program;
    for (int i = 1; i < n; i++)
        if (programs[i]->world != programs[0]->world || programs[i]->tensor != programs[0]->tensor)
            bind_error(L, "with: expected programs for the same ranks");
    Box *box = bind_new(L, BOX_ALIKE, mem_free);
    if (ranks_alike(programs, n, &classes, &found, &e)) return bind_fail(L, &e);
    box->content = classes;
    lua_createtable(L, found, 0);
    for (int i = 0; i < found; i++) {
        lua_createtable(L, 0, 2);
        bind_set_integer(L, "rank", classes[i].rank);
        bind_set_integer(L, "count", classes[i].count);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

void bind_open_program(lua_State *L) {
    static const luaL_Reg methods[] = {{"dump", dump}, {"plan", plan}, {"step", bind_program_step}, {"ops", ops},
        {"cost", cost}, {"floor", floor_time}, {"bufs", bufs}, {"names", names}, {"transfer", transfer},
        {"alike", alike}, {"predict", predict_program}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"compile", new_program}, {"settings", setting_table}, {"check_setting", check_setting},
        {"precision_types", precision_types}, {"optimizer_kinds", optimizer_kinds},
        {"optimizer_bytes", optimizer_bytes}, {NULL, NULL}};
    bind_type(L, BOX_PROGRAM, methods);
    bind_type(L, BOX_ALIKE, NULL);
    luaL_setfuncs(L, functions, 0);
    lua_pushinteger(L, BOX_PARENTS); /* the most programs of one runtime */
    lua_setfield(L, -2, "most_programs");
}
