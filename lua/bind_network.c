/* Layers and networks for scripts. A layer is a Lua table {kind =, where =, options = {name = value}, child, ...}. It
 * may also have frozen = true, wide = true and tied = another layer; a loss a `factor`; a container `names` and `places` of its
 * children; and a graph `from` and `result`, as Layer.from in the core. A table that stands in two places is one layer
 * that is used twice. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "bind.h"
#include "network/layer.h"
#include "network/network.h"

/* Stack indices of a container's lists, each a table or nil; entry i + 1 is child i's. */
typedef struct Wiring { int names, places, held, from; } Wiring;

static void release_layer(void *content) { layer_free(content); }
static void release_network(void *content) { network_free(content); }

/* layer_kinds() -> {{name =, role =, spec =}, ...}: role and spec as layers.def has them */
static int list_layers(lua_State *L) {
    const char *name;
    char role[2] = "";
    lua_newtable(L);
    for (int i = 0; (name = layer_kind_name(i, role)) != NULL; i++) {
        lua_createtable(L, 0, 3);
        bind_set_string(L, "name", name);
        bind_set_string(L, "role", role);
        bind_set_string(L, "spec", layer_spec(name));
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* Raises "net.lua:8: Linear: text" with the line that made the layer, not the line that builds the network. */
static int raise_at(lua_State *L, const char *where, const char *kind, const char *text) {
    lua_pushfstring(L, "%s%s%s: %s", where, *where ? ": " : "", kind, text);
    return lua_error(L);
}

/* The layer that the table at `index` describes, without its children. */
static Layer *layer_from(lua_State *L, int index) {
    Err e;
    if (!lua_istable(L, index)) bind_error(L, "a layer expected, found a %s", luaL_typename(L, index));
    const char *kind = bind_string(L, index, "kind", NULL), *where = bind_string(L, index, "where", "");
    if (!kind) bind_error(L, "a layer expected, found another table");
    Layer *l = layer_new(kind, where, &e);
    if (!l) raise_at(L, where, kind, e.text);
    return l;
}

/* The Layer of the first use of the table at `index`, NULL: it has none yet. seen: index of {[layer] = pointer} */
static Layer *first_use(lua_State *L, int index, int seen) {
    lua_pushvalue(L, index);
    lua_rawget(L, seen);
    Layer *found = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return found;
}

/* Sets shares, tied, frozen and factor of the layer `l`, made from the table at `index`. */
static void relate(lua_State *L, int index, Layer *l, int seen) {
    l->shares = first_use(L, index, seen);
    l->frozen = bind_boolean(L, index, "frozen", false);
    l->wide = bind_boolean(L, index, "wide", false);
    if (lua_getfield(L, index, "tied") != LUA_TNIL && !(l->tied = first_use(L, lua_gettop(L), seen)))
        raise_at(L, l->where, l->kind->name, "the layer that it is tied to does not come before it in the network");
    if (lua_getfield(L, index, "factor") != LUA_TNIL) l->factor = luaL_checknumber(L, -1);
    lua_pop(L, 2);
    if (l->shares) return;
    lua_pushvalue(L, index);
    lua_pushlightuserdata(L, l);
    lua_rawset(L, seen);
}

/* Copies the list on top of the stack to place[LAYER_IN], as much as fits; returns the list's length. */
static int read_places(lua_State *L, int *place) {
    assert(lua_istable(L, -1));
    int n = (int)lua_rawlen(L, -1);
    for (int i = 0; i < n && i < LAYER_IN; i++, lua_pop(L, 1)) {
        lua_rawgeti(L, -1, i + 1);
        place[i] = (int)lua_tointeger(L, -1);
    }
    return n;
}

/* Sets name, place, inputs of child i, and how long its output is held. */
static int wire_child(lua_State *L, Layer *l, int i, const Wiring *w, Err *e) {
    int from[LAYER_IN], code = OK;
    if (lua_istable(L, w->names) && lua_rawgeti(L, w->names, i + 1) == LUA_TSTRING)
        code = layer_set_name(l->child[i], lua_tostring(L, -1), e);
    if (lua_istable(L, w->places) && lua_rawgeti(L, w->places, i + 1) == LUA_TNUMBER)
        l->child[i]->place = (int)lua_tointeger(L, -1);
    if (lua_istable(L, w->held) && lua_rawgeti(L, w->held, i + 1) == LUA_TNUMBER)
        l->child[i]->held = (int)lua_tointeger(L, -1);
    if (!code && lua_istable(L, w->from) && lua_rawgeti(L, w->from, i + 1) == LUA_TTABLE) {
        int n = read_places(L, from);
        code = layer_wire(l, i, from, n, e);
    }
    return code;
}

/* Fills `l` from the table at `index`, and its children from the table's children. */
static void fill_layer(lua_State *L, int index, Layer *l, int seen, int depth) {
    Err e;
    index = lua_absindex(L, index);
    luaL_checkstack(L, 24, "layers are nested too deep");
    if (depth > LAYER_DEPTH) bind_error(L, "layers are nested more than %d deep", LAYER_DEPTH);
    relate(L, index, l, seen);
    if (lua_getfield(L, index, "options") == LUA_TTABLE && bind_options(L, -1, &l->options, &e))
        raise_at(L, l->where, l->kind->name, e.text);
    lua_pop(L, 1);
    lua_getfield(L, index, "names");
    lua_getfield(L, index, "places");
    lua_getfield(L, index, "held");
    lua_getfield(L, index, "from");
    int top = lua_gettop(L);
    const Wiring wiring = {top - 3, top - 2, top - 1, top};
    for (int i = 0; lua_rawgeti(L, index, i + 1) != LUA_TNIL; i++) {
        Layer *child = layer_from(L, lua_gettop(L));
        if (layer_add(l, child, &e) || wire_child(L, l, i, &wiring, &e))
            raise_at(L, l->where, l->kind->name, e.text);
        lua_settop(L, wiring.from);
        lua_rawgeti(L, index, i + 1);
        fill_layer(L, -1, child, seen, depth + 1);
        lua_settop(L, wiring.from);
    }
    if (lua_getfield(L, index, "result") == LUA_TTABLE) l->n_result = read_places(L, l->result);
    if (l->n_result > LAYER_IN) bind_error(L, "a network gives at most %d values, found %d", LAYER_IN, l->n_result);
    lua_settop(L, wiring.names - 1);
}

/* Pushes a box with the tree of the layer at `index`; the box owns it, also if an error is raised while it is built. */
static Box *push_layer(lua_State *L, int index) {
    Box *box = bind_new(L, BOX_LAYER, release_layer);
    int top = lua_gettop(L);
    lua_newtable(L);
    box->content = layer_from(L, index);
    fill_layer(L, index, box->content, top + 1, 0);
    lua_settop(L, top);
    return box;
}

static Layer *take_layer(Box *box) {
    Layer *l = box->content;
    assert(l);
    box->content = NULL;
    return l;
}

/* Of losses: how many a sum has, whose kind says so; 0: it is one loss, whose list are a graph's layers. */
static int sum_terms(lua_State *L, int at) {
    if (!lua_istable(L, at)) return 0;
    lua_getfield(L, at, "kind");
    const bool sum = lua_isstring(L, -1) && !strcmp(lua_tostring(L, -1), "sum");
    lua_pop(L, 1);
    return sum ? (int)lua_rawlen(L, at) : 0;
}

/* The inputs at `index`: a shape {batch, ...}, or a list of {name, shape}. Returns how many. */
static int take_inputs(lua_State *L, int index, Input *inputs) {
    lua_rawgeti(L, index, 1);
    const bool several = lua_istable(L, -1);
    lua_pop(L, 1);
    if (!several) {
        inputs[0] = (Input){.shape = bind_shape(L, index)};
        return 1;
    }
    const int n = (int)lua_rawlen(L, index);
    if (n > LAYER_IN) bind_error(L, "a network takes at most %d inputs, found %d", LAYER_IN, n);
    for (int k = 0; k < n; k++, lua_pop(L, 3)) {
        lua_rawgeti(L, index, k + 1);
        lua_rawgeti(L, -1, 1);
        lua_rawgeti(L, -2, 2);
        const char *name = luaL_checkstring(L, -2);
        if (strlen(name) >= sizeof inputs[k].name)
            bind_error(L, "the input %s has a name of more than %d characters", name, (int)sizeof inputs[k].name - 1);
        inputs[k] = (Input){.shape = bind_shape(L, lua_gettop(L))};
        strcpy(inputs[k].name, name);
    }
    return n;
}

/* network(layer, losses, inputs) -> Network; losses: one, a sum of them, or nil; inputs: take_inputs */
static int new_network(lua_State *L) {
    Err e;
    Network *network;
    Box *losses[LAYER_IN];
    Layer *loss[LAYER_IN];
    lua_settop(L, 3);
    int terms = sum_terms(L, 2), n = lua_isnil(L, 2) || terms ? terms : 1;
    Input inputs[LAYER_IN];
    const int n_inputs = take_inputs(L, 3, inputs);
    if (n > LAYER_IN) bind_error(L, "expected at most %d losses, found %d", LAYER_IN, n);
    Box *box = bind_new(L, BOX_NETWORK, release_network), *root = push_layer(L, 1);
    for (int k = 0; k < n; k++) {
        if (terms) lua_rawgeti(L, 2, k + 1);
        else lua_pushvalue(L, 2);
        losses[k] = push_layer(L, lua_gettop(L));
    }
    for (int k = 0; k < n; k++) loss[k] = take_layer(losses[k]);
    if (network_new(take_layer(root), loss, n, inputs, n_inputs, &network, &e)) {
        if (e.code != ERR_SCRIPT) return bind_fail(L, &e);
        lua_pushstring(L, e.text); /* already begins with the layer's line */
        return lua_error(L);
    }
    box->content = network;
    lua_settop(L, 4);
    return 1;
}

/* network:text() -> a line per layer */
static int text(lua_State *L) {
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    Text *t = bind_text_new(L);
    network_dump(n, bind_text_line, t);
    return bind_text_push(L, t);
}

/* Sets `aliases` of the table on top of the stack: the other names of parameter i. */
static void push_aliases(lua_State *L, const Network *n, int i) {
    lua_newtable(L);
    for (int k = 0, found = 0; k < n->n_aliases; k++) {
        if (n->aliases[k].param != i) continue;
        lua_pushstring(L, n->aliases[k].name);
        lua_rawseti(L, -2, ++found);
    }
    lua_setfield(L, -2, "aliases");
}

/* Sets the field quantized = {format, nested, shape} of the table on top. */
static void push_quantization(lua_State *L, const Quantization *q) {
    static const char *const formats[] = {[QUANT_NF4] = "nf4", [QUANT_FP4] = "fp4", [QUANT_INT8] = "int8"};
    lua_createtable(L, 0, 3);
    bind_set_string(L, "format", formats[q->format]);
    bind_set_boolean(L, "nested", q->nested);
    bind_push_shape(L, &q->shape);
    lua_setfield(L, -2, "shape");
    lua_setfield(L, -2, "quantized");
}

/* Pushes the list of parameters, or buffers, whose first user is `owner`; NULL: of all. */
static void push_params(lua_State *L, const Network *n, const Layer *owner, bool of_buffers) {
    lua_newtable(L);
    for (int i = 0, k = 0; i < n->n_params; i++) {
        const Param *p = &n->params[i];
        if ((owner && p->owner != owner) || p->buffer != of_buffers) continue;
        lua_createtable(L, 0, 5);
        bind_set_string(L, "name", p->name);
        push_aliases(L, n, i);
        bind_set_boolean(L, "trainable", p->trainable);
        bind_set_integer(L, "elements", param_elements(p));
        bind_push_shape(L, &p->shape);
        lua_setfield(L, -2, "shape");
        if (p->quantized.format) push_quantization(L, &p->quantized);
        if (p->derived) bind_set_boolean(L, "derived", true);
        lua_rawseti(L, -2, ++k);
    }
}

/* Does its output follow from the input and from parameters? */
static bool is_weighted(const Network *n, const Layer *l) {
    bool found = false;
    for (int i = 0; i < l->n_params; i++) found = found || !n->params[l->param[i]].buffer;
    return found && !l->output.param;
}

static void push_layer_row(void *arg, const Network *n, const Layer *l) {
    lua_State *L = arg;
    char options[OPTIONS_TEXT];
    lua_createtable(L, 0, 8);
    bind_set_string(L, "path", l->path);
    bind_set_string(L, "kind", l->kind->name);
    bind_set_string(L, "where", l->where);
    bind_set_string(L, "text", options_text(&l->options, options, sizeof options));
    bind_push_shape(L, &l->in);
    lua_setfield(L, -2, "input");
    bind_push_shape(L, &l->out);
    lua_setfield(L, -2, "out");
    push_params(L, n, l, false);
    lua_setfield(L, -2, "params");
    bind_set_boolean(L, "weighted", is_weighted(n, l));
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
}

/* network:layers() -> {{path, kind, where, text, input, out, weighted, params = {{name, shape, ...}, ...}}, ...}
 * params: those that no earlier layer uses; weighted: does its output follow from the input and from any? */
static int layers(lua_State *L) {
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    luaL_checkstack(L, 16, NULL);
    lua_newtable(L);
    network_visit(n, push_layer_row, L);
    return 1;
}

/* network:params() -> {{name, shape, elements, trainable, aliases = {names}, quantized}, ...}; quantized: of a weight that
 * is stored as codes: {format = "nf4", "fp4" or "int8", nested, shape = the weight's} */
static int params(lua_State *L) {
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    push_params(L, n, NULL, false);
    return 1;
}

/* network:buffers() -> the same for running statistics and counters, which training changes without a gradient, and with
 * derived = true what belongs to the codes of a weight */
static int buffers(lua_State *L) {
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    push_params(L, n, NULL, true);
    return 1;
}

/* network:parameters() -> number of elements of all parameters, and how many of these are frozen */
static int parameters(lua_State *L) {
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    lua_pushinteger(L, network_parameters(n));
    lua_pushinteger(L, network_frozen(n));
    return 2;
}

/* network:inputs() -> {{name, shape, indices, positions}, ...}; name: "" of a single one; indices: the input's must be below
 * it, nil: it is numbers; positions: they are those of sequences that share a row */
static int inputs(lua_State *L) {
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    lua_createtable(L, n->n_inputs, 0);
    for (int k = 0; k < n->n_inputs; k++) {
        const Input *in = &n->inputs[k];
        lua_createtable(L, 0, 3);
        bind_set_string(L, "name", in->name);
        if (in->indices) bind_set_integer(L, "indices", in->indices);
        if (in->positions) lua_pushboolean(L, true), lua_setfield(L, -2, "positions");
        if (in->bytes) lua_pushboolean(L, true), lua_setfield(L, -2, "bytes");
        bind_push_shape(L, &in->shape);
        lua_setfield(L, -2, "shape");
        lua_rawseti(L, -2, k + 1);
    }
    return 1;
}

/* network:targets() -> how many targets (labels or numbers) a sample has, and a text for messages about the output that
 * they are compared with; nil: there is no loss */
static int targets(lua_State *L) {
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    char text[NETWORK_OUTPUT];
    if (!n->targets) return 0;
    network_output_text(n, text, sizeof text);
    lua_pushinteger(L, n->targets);
    lua_pushstring(L, text);
    return 2;
}

/* network:shapes() -> the first input, output */
static int shapes(lua_State *L) {
    const Network *n = bind_get(L, 1, BOX_NETWORK);
    bind_push_shape(L, &n->inputs[0].shape);
    bind_push_shape(L, &n->output);
    return 2;
}

void bind_open_network(lua_State *L) {
    static const luaL_Reg methods[] =
        {{"text", text}, {"layers", layers}, {"params", params}, {"buffers", buffers}, {"inputs", inputs},
        {"parameters", parameters}, {"shapes", shapes}, {"targets", targets}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"layer_kinds", list_layers}, {"network", new_network}, {NULL, NULL}};
    bind_type(L, BOX_LAYER, NULL);
    bind_type(L, BOX_NETWORK, methods);
    luaL_setfuncs(L, functions, 0);
}
