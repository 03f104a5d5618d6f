/* Settings, step programs and their prediction for scripts. */
#include <stdio.h>
#include <string.h>

#include "bind.h"
#include "bind_program.h"

static void release_program(void *content) { program_free(content); }

/* ---- settings: {name = value} -> Settings */

static const char *const precisions[] = {
#define X(name, text, low, weights, autocast, master, scaling, what) text,
    PRECISIONS(X)
#undef X
    NULL};
static const char *const checkpoints[] = {
#define X(name, text, what) text,
    CHECKPOINTS(X)
#undef X
    NULL};
static const char *const offloads[] = {
#define X(name, text) text,
    OFFLOADS(X)
#undef X
    NULL};
static const char *const allocators[] = {
#define X(name, text) text,
    ALLOCATORS(X)
#undef X
    NULL};
static const char *const modes[] = {"train", "eval", NULL};

/* Index of the string on top of the stack in `words`. */
static int word(lua_State *L, const char *key, const char *const *words) {
    const char *found = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    luaL_Buffer known;
    for (int i = 0; found && words[i]; i++)
        if (!strcmp(found, words[i])) return i;
    const char *shown = luaL_tolstring(L, -1, NULL);
    luaL_buffinit(L, &known);
    for (int i = 0; words[i]; i++) {
        if (i) luaL_addstring(&known, ", ");
        luaL_addstring(&known, words[i]);
    }
    luaL_pushresult(&known);
    return bind_error(L, "%s: \"%s\" is not one of %s", key, shown, lua_tostring(L, -1));
}

static lua_Integer whole(lua_State *L, const char *key, lua_Integer least) {
    int is_integer;
    lua_Integer value = lua_tointegerx(L, -1, &is_integer);
    if (is_integer && value >= least) return value;
    return bind_error(L, "%s: expected a whole number of at least %I, found %s", key, (LUAI_UACINT)least,
                      luaL_tolstring(L, -1, NULL));
}

/* The place of one of the words; that of "budget" for a number of bytes, which is what stands for it. */
static int word_or_bytes(lua_State *L, const char *key, const char *const *words, int budget, size_t *bytes) {
    if (lua_type(L, -1) != LUA_TNUMBER) {
        int found = word(L, key, words);
        return found == budget ? bind_error(L, "%s: give a budget as a number of bytes", key) : found;
    }
    *bytes = (size_t)whole(L, key, 1);
    return budget;
}

static void set_checkpoint(lua_State *L, Settings *s) {
    s->checkpoint = (Checkpoint)word_or_bytes(L, "checkpoint", checkpoints, CHECKPOINT_BUDGET, &s->budget);
}
static void set_offload(lua_State *L, Settings *s) {
    s->offload = (Offload)word_or_bytes(L, "offload", offloads, OFFLOAD_BUDGET, &s->offload_budget);
}

/* {kind = "Adam", options = {lr = 0.001}} */
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
        lua_pop(L, 1);
        if (!code) return;
        bind_error(L, "%s: %s", kind, e.text);
    }
    bind_error(L, "optimizer: expected one of memtide.optim's");
}

static bool flag(lua_State *L, const char *key) { return bind_flag(L, lua_gettop(L), key); }
static void set_precision(lua_State *L, Settings *s) { s->precision = (Precision)word(L, "precision", precisions); }
static void set_accumulate(lua_State *L, Settings *s) {
    lua_Integer n = whole(L, "accumulate", 1);
    if (n > 1 << 20) bind_error(L, "accumulate: more than 1048576 micro-batches");
    s->accumulate = (int)n;
}
static void set_inplace(lua_State *L, Settings *s) { s->inplace = flag(L, "inplace") ? INPLACE_ON : INPLACE_OFF; }
static void set_mode(lua_State *L, Settings *s) { s->eval = word(L, "mode", modes) == 1; }
static void set_allocator(lua_State *L, Settings *s) { s->allocator = (AllocKind)word(L, "allocator", allocators); }
static void set_workspace(lua_State *L, Settings *s) { s->workspace_limit = (size_t)whole(L, "workspace_limit", 0); }
static void set_graph(lua_State *L, Settings *s) { s->graph = flag(L, "graph"); }
static void set_loss_scale(lua_State *L, Settings *s) { s->loss_scale = (float)luaL_checknumber(L, -1); }
static void set_growth_interval(lua_State *L, Settings *s) {
    s->scaler.interval = (int32_t)whole(L, "growth_interval", 1);
}
static void set_scheduled(lua_State *L, Settings *s) { s->scheduled = flag(L, "scheduled"); }
static void set_scope(lua_State *L, Settings *s) {
    snprintf(s->scope, sizeof s->scope, "%s", luaL_checkstring(L, -1));
}
static void set_no_loss(lua_State *L, Settings *s) { s->no_loss = flag(L, "no_loss"); }
static void set_keep_output(lua_State *L, Settings *s) { s->keep_output = flag(L, "keep_output"); }
static void set_keep_gradients(lua_State *L, Settings *s) { s->keep_gradients = flag(L, "keep_gradients"); }

static const struct { const char *key; void (*set)(lua_State *, Settings *); } setters[] = {
    {"precision", set_precision}, {"accumulate", set_accumulate}, {"checkpoint", set_checkpoint},
    {"offload", set_offload}, {"inplace", set_inplace}, {"mode", set_mode}, {"allocator", set_allocator},
    {"workspace_limit", set_workspace}, {"graph", set_graph}, {"optimizer", set_optimizer},
    {"loss_scale", set_loss_scale}, {"growth_interval", set_growth_interval}, {"no_loss", set_no_loss},
    {"scheduled", set_scheduled}, {"scope", set_scope},
    {"keep_output", set_keep_output}, {"keep_gradients", set_keep_gradients},
};

static Settings settings_from(lua_State *L, int index) {
    Settings s = settings_default();
    for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
        const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
        size_t i = 0;
        while (i < ARRAY_LEN(setters) && strcmp(key, setters[i].key) != 0) i++;
        if (i == ARRAY_LEN(setters)) bind_error(L, "unknown setting \"%s\"", key);
        setters[i].set(L, &s);
    }
    return s;
}

static void push_words(lua_State *L, const char *key, const char *const *words) {
    lua_newtable(L);
    for (int i = 0; words[i]; i++) {
        lua_pushstring(L, words[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, key);
}

/* The type that a precision computes in, by the name of the precision that has it for everything */
static const char *type_of(Precision p) {
    const DType low = precision_info(p)->low;
    for (Precision q = 0; q < PREC_COUNT; q++) {
        const PrecisionInfo *info = precision_info(q);
        if (info->low == low && info->weights == low && !info->master) return info->text;
    }
    return precision_info(p)->text;
}

/* setting_words() -> {precision = {"fp32", ...}, ..., type = {fp32 = "fp32", amp_bf16 = "bf16", ...}}: type: what a
 * precision computes in, of those that device:info().emulated may name */
static int setting_words(lua_State *L) {
    lua_newtable(L);
    lua_createtable(L, 0, PREC_COUNT);
    for (Precision p = 0; p < PREC_COUNT; p++) bind_set_string(L, precision_info(p)->text, type_of(p));
    lua_setfield(L, -2, "type");
    push_words(L, "precision", precisions);
    push_words(L, "checkpoint", checkpoints);
    push_words(L, "offload", offloads);
    push_words(L, "allocator", allocators);
    push_words(L, "mode", modes);
    return 1;
}

/* The type of that name, as program:bufs() has it. */
static DType type_at(lua_State *L, int index) {
    const char *name = luaL_checkstring(L, index);
    for (int t = 0; t < DT_COUNT; t++) if (!strcmp(name, dtype_name((DType)t))) return (DType)t;
    return (DType)bind_error(L, "there is no type %s", name);
}

/* optimizer_bytes({kind =, options =}, shape = {1}, type = "f32") -> how many it keeps of a parameter of that shape
 * and type; raises what is wrong with its values */
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

/* optimizer_kinds() -> {{name =, spec =}, ...} */
static int optimizer_kinds(lua_State *L) {
    const char *name, *spec;
    lua_newtable(L);
    for (int i = 0; (spec = optimizer_spec(i, &name)) != NULL; i++) {
        lua_createtable(L, 0, 2);
        bind_set_string(L, "name", name);
        bind_set_string(L, "spec", spec);
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

/* compile(network, settings, device, want_passes) -> Program, the program's text after each pass */
static int new_program(lua_State *L) {
    Err e;
    lua_settop(L, 4);
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    luaL_checktype(L, 2, LUA_TTABLE);
    Settings s = settings_from(L, 2);
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

/* program:dump() -> a line per buffer and op */
static int dump(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    Text *t = bind_text_new(L);
    program_dump(p, bind_text_line, t);
    return bind_text_push(L, t);
}

/* program:plan() -> a line per buffer: offset, bytes, the ops between which it lives */
static int plan(lua_State *L) {
    Err e;
    Placement place;
    const Box *box = bind_box(L, 1, BOX_PROGRAM);
    const Device *device = box->parent[1]->content;
    Text *t = bind_text_new(L);
    if (placement_build(box->content, device->table->alignment, &place, &e)) return bind_fail(L, &e);
    int code = placement_dump(box->content, &place, bind_text_line, t, &e);
    placement_free(&place);
    return code ? bind_fail(L, &e) : bind_text_push(L, t);
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

/* program:ops() -> {{kind, path, inputs = {names}, outputs = {names}, recomputed, flops, traffic}, ...} */
static int ops(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    lua_createtable(L, p->n_ops, 0);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        lua_createtable(L, 0, 7);
        bind_set_string(L, "kind", op_info(op->kind)->name);
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

/* program:cost() -> floating-point operations, bytes read and written, and ops of one step with its micro-batches */
static int cost(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    double flops = 0, traffic = 0, ops = 0;
    for (int i = 0; i < p->n_ops; i++) {
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

/* program:floor(operations per second, bytes per second) -> seconds below which the step cannot be: of each op the
 * larger of both times */
static int floor_time(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    double per_flop = 1 / luaL_checknumber(L, 2), per_byte = 1 / luaL_checknumber(L, 3), seconds = 0;
    for (int i = 0; i < p->n_ops; i++) {
        double compute = p->ops[i].flops * per_flop, move = p->ops[i].traffic * per_byte;
        seconds += (i < p->body_end ? p->micro_batches : 1) * (compute > move ? compute : move);
    }
    lua_pushnumber(L, seconds);
    return 1;
}

/* program:bufs() -> {{name, shape, dtype, width, category, kind, bytes, alias, keep, host}, ...}; width: bytes of an
 * element */
static int bufs(lua_State *L) {
    static const char *const kinds[] = {"temporary", "persistent", "input"};
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    lua_createtable(L, p->n_bufs, 0);
    for (int i = 0; i < p->n_bufs; i++) {
        const Buf *b = &p->bufs[i];
        lua_createtable(L, 0, 10);
        bind_set_string(L, "name", b->name);
        bind_set_string(L, "dtype", dtype_name(b->dtype));
        bind_set_integer(L, "width", (lua_Integer)dtype_size(b->dtype));
        bind_set_string(L, "category", category_name(b->category));
        bind_set_string(L, "kind", kinds[b->kind]);
        bind_set_integer(L, "bytes", (lua_Integer)b->bytes);
        bind_set_boolean(L, "keep", b->keep);
        bind_set_boolean(L, "host", b->host);
        if (b->alias != NO_BUF) bind_set_string(L, "alias", p->bufs[b->alias].name);
        bind_push_shape(L, &b->shape);
        lua_setfield(L, -2, "shape");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* program:names() -> {input, target, output, loss}: names of those buffers, absent ones left out */
static int names(lua_State *L) {
    const Program *p = bind_get(L, 1, BOX_PROGRAM);
    const struct { const char *key; int buf; } all[] = {
        {"input", p->input}, {"target", p->target}, {"output", p->output}, {"loss", p->loss}};
    lua_newtable(L);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i].buf != NO_BUF) bind_set_string(L, all[i].key, p->bufs[all[i].buf].name);
    return 1;
}

/* ---- prediction */

void bind_push_peak(lua_State *L, const LedgerPeak *peak, const Program *p) {
    char op[OP_PATH + 40] = "";
    lua_createtable(L, 0, 4);
    bind_set_integer(L, "bytes", (lua_Integer)peak->held);
    bind_set_integer(L, "used", (lua_Integer)peak->used);
    if (p && peak->mark >= 0 && peak->mark < p->n_ops) {
        const Op *at = &p->ops[peak->mark];
        snprintf(op, sizeof op, "%s%s%s", op_info(at->kind)->name, *at->path ? " " : "", at->path);
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
    AllocKind kind = ALLOC_PLANNED;
    if (lua_getfield(L, index, "allocator") != LUA_TNIL) kind = (AllocKind)word(L, "allocator", allocators);
    lua_pop(L, 1);
    return kind;
}

size_t bind_bytes(lua_State *L, int index, const char *key) {
    lua_Integer bytes = bind_integer(L, index, key, 0);
    if (bytes < 0) bind_error(L, "%s: expected a number of bytes, found %I", key, (LUAI_UACINT)bytes);
    return (size_t)bytes;
}

/* The programs of a prediction: this one, and those in the table's field `with`. */
static int predicted_programs(lua_State *L, Program **programs) {
    programs[0] = bind_get(L, 1, BOX_PROGRAM);
    if (lua_getfield(L, 2, "with") == LUA_TNIL) return 1;
    luaL_checktype(L, -1, LUA_TTABLE);
    int n = 1 + (int)lua_rawlen(L, -1);
    if (n > BOX_PARENTS) bind_error(L, "with: expected at most %d programs", BOX_PARENTS - 1);
    for (int i = 1; i < n; i++) {
        lua_rawgeti(L, -1, i);
        programs[i] = bind_get(L, -1, BOX_PROGRAM);
        lua_pop(L, 1);
    }
    return n;
}

/* program:predict{allocator =, memory = limit in bytes, steps =, with = {programs of the same runtime}} ->
 * turns = true: all of them run in each step.
 * {peak = {bytes, used, op, categories}, lower_bound, allocated, reserved, host, fits, reason} */
static int predict_program(lua_State *L) {
    Err e;
    Prediction found;
    Box *box = bind_box(L, 1, BOX_PROGRAM);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_Integer steps = bind_integer(L, 2, "steps", 2);
    if (steps < 1 || steps > INT32_MAX) bind_error(L, "steps: expected at least 1");
    const Network *network = box->parent[0]->content;
    Device *device = box->parent[1]->content;
    AllocKind kind = bind_allocator(L, 2);
    size_t limit = bind_bytes(L, 2, "memory");
    Program *programs[BOX_PARENTS];
    int n = predicted_programs(L, programs);
    int (*walk)(const Network *, Program *const *, int, AllocKind, Device *, size_t, int, Prediction *, Err *) =
        bind_boolean(L, 2, "turns", false) ? predict_turns : predict;
    if (walk(network, programs, n, kind, device, limit, (int)steps, &found, &e)) return bind_fail(L, &e);
    lua_createtable(L, 0, 7);
    bind_set_integer(L, "lower_bound", (lua_Integer)found.lower_bound);
    bind_set_integer(L, "allocated", (lua_Integer)found.allocated);
    bind_set_integer(L, "reserved", (lua_Integer)found.reserved);
    bind_set_integer(L, "host", (lua_Integer)found.host);
    bind_set_boolean(L, "fits", found.fits);
    if (!found.fits) bind_set_string(L, "reason", found.reason.text);
    bind_push_peak(L, &found.peak, box->content);
    lua_setfield(L, -2, "peak");
    return 1;
}

void bind_open_program(lua_State *L) {
    static const luaL_Reg methods[] = {{"dump", dump}, {"plan", plan}, {"ops", ops}, {"cost", cost},
        {"floor", floor_time}, {"bufs", bufs}, {"names", names}, {"predict", predict_program}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"compile", new_program}, {"setting_words", setting_words},
        {"optimizer_kinds", optimizer_kinds}, {"optimizer_bytes", optimizer_bytes}, {NULL, NULL}};
    bind_type(L, BOX_PROGRAM, methods);
    luaL_setfuncs(L, functions, 0);
}
