/* The tree of layers, and its inference: shapes, orders and parameters in one walk. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "layer.h"
#include "base/mem.h"

static const LayerKind *find_kind(const char *name) {
    for (int i = 0; i < layer_kind_count; i++)
        if (!strcmp(layer_kinds[i].name, name)) return &layer_kinds[i];
    return NULL;
}

static void visit_layer(const Network *n, const Layer *l, LayerVisit *visit, void *arg) {
    if (l->n_child == 0) visit(arg, n, l);
    for (int i = 0; i < l->n_child; i++) visit_layer(n, l->child[i], visit, arg);
}

void network_visit(const Network *n, LayerVisit *visit, void *arg) { visit_layer(n, n->root, visit, arg); }

const char *layer_kind_name(int i, char *role) {
    if (i < 0 || i >= layer_kind_count) return NULL;
    *role = layer_kinds[i].role;
    return layer_kinds[i].name;
}

static bool is_loss(const Layer *l) { return strchr("sf", l->kind->role) != NULL; }
static bool holds_layers(const Layer *l) { return strchr("chf", l->kind->role) != NULL; }

const char *layer_kind(const Layer *l) { return l->kind->name; }

const char *layer_spec(const char *kind) {
    const LayerKind *k = find_kind(kind);
    return k ? k->spec : NULL;
}

/* ---- the tree */

enum { INPUT_0 = ~0 }; /* the container's first input, see Layer.from */

Layer *layer_new(const char *kind, const char *where, Err *e) {
    const LayerKind *k = find_kind(kind);
    if (!k) {
        char known[ERR_TEXT] = "";
        size_t n = 0;
        for (int i = 0; i < layer_kind_count && n < sizeof known; i++)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", layer_kinds[i].name);
        err_set(e, ERR_SCRIPT, "unknown layer '%.40s'; known: %s", kind, known);
        return NULL;
    }
    Layer *l = mem_new(sizeof *l);
    if (!l) {
        err_set(e, ERR_HOST_MEMORY, "out of host memory for a layer");
        return NULL;
    }
    l->kind = k;
    snprintf(l->where, sizeof l->where, "%s", where ? where : "");
    l->result[0] = INPUT_0;
    l->n_result = 1;
    l->factor = 1;
    if (options_parse(&l->options, k->spec, e) == OK) return l;
    layer_free(l);
    return NULL;
}

int layer_add(Layer *parent, Layer *child, Err *e) {
    int code = OK;
    if (!holds_layers(parent)) code = layer_error(parent, e, "takes no layers");
    else if (is_loss(child)) code = layer_error(parent, e, "cannot hold the loss %s", child->kind->name);
    else if (child->depth >= LAYER_DEPTH) code = layer_error(parent, e, "more than %d levels of layers", LAYER_DEPTH);
    else if (!mem_grow(&parent->child, &parent->cap_child, parent->n_child + 1, sizeof *parent->child))
        code = err_set(e, ERR_HOST_MEMORY, "out of host memory for a layer");
    if (code) {
        layer_free(child);
        return code;
    }
    child->from[0] = parent->result[0]; /* a chain, unless layer_wire says otherwise */
    child->n_from = 1;
    child->place = parent->n_child;
    child->container = parent;
    parent->result[0] = parent->n_child;
    parent->child[parent->n_child++] = child;
    if (parent->depth < child->depth + 1) parent->depth = child->depth + 1;
    return OK;
}

int layer_set_name(Layer *l, const char *name, Err *e) {
    if (strlen(name) >= sizeof l->name)
        return layer_error(l, e, "the name %.40s has more than %d characters", name, LAYER_NAME - 1);
    snprintf(l->name, sizeof l->name, "%s", name);
    return OK;
}

int layer_wire(Layer *parent, int i, const int *from, int n, Err *e) {
    assert(i >= 0 && i < parent->n_child);
    Layer *child = parent->child[i];
    if (n < 1 || n > LAYER_IN)
        return layer_error(child, e, "takes at most %d inputs, found %d", LAYER_IN, n);
    for (int k = 0; k < n; k++)
        if (from[k] >= i || from[k] < -LAYER_IN)
            return err_set(e, ERR_INTERNAL, "child %d of a graph cannot read value %d", i, from[k]);
    memcpy(child->from, from, (size_t)n * sizeof *from);
    child->n_from = n;
    return OK;
}

void layer_free(Layer *l) {
    if (!l) return;
    for (int i = 0; i < l->n_child; i++) layer_free(l->child[i]);
    mem_free(l->child);
    mem_free(l->param);
    options_free(&l->options);
    mem_free(l);
}

/* ---- mistakes, named by layer and line */

/* "layer 5 Linear (article.lua:12)"; a loss is not in the tree: "MSELoss (article.lua:20)" */
static void layer_title(const Layer *l, char *text, size_t room) {
    bool loss = is_loss(l);
    snprintf(text, room, "%s%s%s%s%s%s%s", loss ? "" : "layer ", loss ? "" : l->path, loss || !l->path[0] ? "" : " ",
             l->kind->name, l->where[0] ? " (" : "", l->where, l->where[0] ? ")" : "");
}

enum { TITLE = LAYER_PATH + LAYER_WHERE + 40 };

int layer_error(const Layer *l, Err *e, const char *format, ...) {
    char title[TITLE], text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    layer_title(l, title, sizeof title);
    return err_set(e, ERR_SCRIPT, "%s: %s", title, text);
}

/* Puts the layer before the text of an error that another function found; returns `code`. OK: nothing to say. */
static int layer_blame(const Layer *l, Err *e, int code) {
    char title[TITLE];
    layer_title(l, title, sizeof title);
    if (code) err_prefix(e, "%s", title);
    return code;
}

int layer_expect_inputs(const Layer *l, int most, Err *e) {
    if (l->n_in <= most) return OK;
    return layer_error(l, e, "takes %d input%s, found %d", most, most == 1 ? "" : "s", l->n_in);
}

int layer_expect_rank(const Layer *l, int rank, const char *meaning, Err *e) {
    char text[SHAPE_TEXT];
    if (l->in.rank == rank) return OK;
    return layer_error(l, e, "expected an input of %d dimensions %s, found %s", rank, meaning,
                       shape_text(&l->in, text));
}

int layer_expect_range(const Layer *l, const char *option, int64_t min, int64_t max, Err *e) {
    for (int i = 0; i < l->options.count; i++) {
        const Option *o = &l->options.item[i];
        if (strcmp(o->name, option) || o->word >= 0) continue;
        for (int k = 0; k < (o->type == OPTION_PAIR ? 2 : 1); k++)
            if (o->i[k] < min || o->i[k] > max)
                return layer_error(l, e, "%s must be between %" PRId64 " and %" PRId64 ", found %" PRId64, option, min,
                                   max, o->i[k]);
    }
    return OK;
}

/* ---- inference */

void layer_output(Layer *l, Shape out) {
    l->output = (Value){.shape = out, .rows = out.rank == 4 && l->in_rows};
}

static bool takes_lines(const Layer *l) { return l->kind->role == 'i'; }

/* Lets (N, C, L) lie as an image, or in PyTorch's order, and 4 dimensions as an image, or as they are; other ranks stay
 * as they are. */
static void lay(Value *v, bool line) {
    const int64_t order[3] = {v->shape.dim[1], 1, v->shape.dim[2]}, rows[3] = {0};
    if (v->shape.rank == 3) memcpy(v->order, line ? order : rows, sizeof v->order);
    if (v->shape.rank == 4 && line) v->rows = false;
}

void layer_take_line(Layer *l) {
    lay(&l->ins[0], true);
    lay(&l->output, true);
}

int layer_axes(const Layer *l) {
    for (int i = 0; i < l->options.count; i++)
        if (l->options.item[i].type == OPTION_PAIR) return 2;
    return 1;
}

int64_t layer_along(const Layer *l, const char *option, int axis, int64_t missing) {
    assert(axis == 0 || axis == 1);
    return axis == 0 && layer_axes(l) == 1 ? missing : options_pair(&l->options, option, axis);
}

Shape layer_shape(const Layer *l, int64_t n, int64_t c, int64_t h, int64_t w) {
    return layer_axes(l) == 1 ? shape3(n, c, w) : shape4(n, c, h, w);
}

int layer_expect_image(const Layer *l, Shape *image, Err *e) {
    int axes = layer_axes(l);
    const int64_t *d = l->in.dim;
    *image = axes == 1 ? shape4(d[0], d[1], 1, d[2]) : l->in;
    return layer_expect_rank(l, 2 + axes, axes == 1 ? "(N, C, L)" : "(N, C, H, W)", e);
}

void layer_output_image(Layer *l, int64_t channels, const int64_t size[2]) {
    layer_output(l, layer_shape(l, l->in.dim[0], channels, size[0], size[1]));
    lay(&l->output, true);
}

/* Tensor operations take parameters, and values of 1 dimension; so do functions of elements, and containers. */
static bool takes_any(const Layer *l) { return strchr("tghca", l->kind->role) != NULL; }

static int expect_activations(const Layer *l, Err *e) {
    char text[SHAPE_TEXT];
    for (int k = 0; k < l->n_in && !takes_any(l); k++)
        if (l->ins[k].param || l->ins[k].shape.rank < 2)
            return layer_error(l, e, "expected what a layer gives, of 2 dimensions at least, found %s %s",
                               l->ins[k].param ? "a parameter" : "a value", shape_text(&l->ins[k].shape, text));
    return OK;
}

/* Labels, masks, positions and whole numbers are read by kinds of role g alone; kinds of role h hand them on to these. */
static int expect_readable(const Layer *l, const Value *v, Err *e) {
    if (strchr("gh", l->kind->role)) return OK;
    if (v->labels) return layer_error(l, e, "reads the labels of a loss, which only gather does");
    if (v->mask) return layer_error(l, e, "reads a mask, which only masked_fill and where do");
    if (v->positions) return layer_error(l, e, "reads what arange gives, which only ge, gt, le, lt and an Embedding do");
    if (v->below) return layer_error(l, e, "reads whole numbers, which only x[index] and an Embedding do");
    return OK;
}

int network_infer(Network *n, Layer *l, const Value *in, int n_in, Err *e) {
    int64_t count;
    assert(n_in >= 1 && n_in <= LAYER_IN);
    memcpy(l->ins, in, (size_t)n_in * sizeof *in);
    l->n_in = n_in;
    for (int k = 0; k < n_in && strchr("lmtig", l->kind->role); k++) lay(&l->ins[k], takes_lines(l));
    if (is_loss(l)) l->in_rows = false;
    l->output = l->ins[0];
    int code = strchr("chmtg", l->kind->role) ? OK : layer_expect_inputs(l, 1, e);
    for (int k = 0; k < n_in && !code; k++) code = expect_readable(l, &in[k], e);
    if (!code) code = expect_activations(l, e);
    if (code) return code;
    code = options_finish(&l->options, e);
    if (code) return layer_blame(l, e, code);
    if (!strchr("ch", l->kind->role)) {
        l->output.input = 0;
        l->output.param = l->output.labels = false;
        l->output.positions = l->output.mask = l->output.constant = false;
        l->output.below = 0;
    }
    code = l->kind->shape(n, l, e);
    if (!code && l->tied && l->n_params == 0) code = layer_error(l, e, "has no parameter to share with another layer");
    return code ? code : layer_blame(l, e, shape_count(&l->out, &count, e));
}

int network_infer_child(Network *n, Layer *parent, int i, const char *name, const Value *in, int n_in, Err *e) {
    assert(i >= 0 && i < parent->n_child);
    Layer *child = parent->child[i];
    if (child->name[0]) name = strcmp(child->name, LAYER_OWN) ? child->name : "";
    const char *dot = parent->path[0] && name[0] ? "." : "";
    int length = snprintf(child->path, sizeof child->path, "%s%s%s", parent->path, dot, name);
    if (length > PARAM_NAME - (int)sizeof ".weight")
        return layer_error(parent, e, "nested too deep: the name of layer %.20s in it has more than %d characters",
                           name, PARAM_NAME - (int)sizeof ".weight");
    if (child->n_result > 1)
        return layer_error(child, e, "gives %d values: only the network as a whole does, one for each loss",
                           child->n_result);
    return network_infer(n, child, in, n_in, e);
}

/* Notes that layer `l` reads parameter `index`. */
static int reads_param(Layer *l, int index, Err *e) {
    if (!mem_grow(&l->param, &l->cap_params, l->n_params + 1, sizeof *l->param))
        return err_set(e, ERR_HOST_MEMORY, "out of host memory for the parameters of a layer");
    l->param[l->n_params++] = index;
    return OK;
}

const char *network_param_name(const void *network, int i) { return ((const Network *)network)->params[i].name; }
static const char *alias_name(const void *network, int i) { return ((const Network *)network)->aliases[i].name; }

static int no_room_for_params(Err *e) {
    return err_set(e, ERR_HOST_MEMORY, "out of host memory for the parameters of a network");
}

/* The next parameter of `l` is that of `with`. It must be the same there, and gets a second name under l's path. */
static int share_param(Network *n, Layer *l, const Layer *with, const char *name, const Param *like, Err *e) {
    const Shape shape = like->shape;
    const int64_t *order = like->order;
    char one[SHAPE_TEXT], two[SHAPE_TEXT];
    if (l->n_params >= with->n_params)
        return layer_error(l, e, "shares the parameters of %s, which has no %s", with->path, name);
    int index = with->param[l->n_params];
    assert(index >= 0 && index < n->n_params);
    Param *p = &n->params[index];
    if (!shape_equal(&p->shape, &shape) || memcmp(p->order, order, sizeof p->order) ||
        p->turned != like->turned)
        return layer_error(l, e, "shares %s, which is %s%s there, and %s%s here", p->name, shape_text(&p->shape, one),
                           p->order[0] ? " for a flattened image" : "", shape_text(&shape, two),
                           order[0] ? " for a flattened image" : "");
    p->trainable &= !l->frozen;
    p->wide |= l->wide;
    if (!strchr(l->path, '#')) { /* '#': a second call of a layer, whose parameters have this name already */
        if (!mem_grow(&n->aliases, &n->cap_aliases, n->n_aliases + 1, sizeof *n->aliases))
            return no_room_for_params(e);
        ParamAlias *a = &n->aliases[n->n_aliases++];
        snprintf(a->name, sizeof a->name, "%s%s%s", l->path, l->path[0] && name[0] ? "." : "", name);
        a->param = index;
        if (names_add(&n->alias_names, n->n_aliases - 1, alias_name, n) < 0)
            return no_room_for_params(e);
    }
    return reads_param(l, index, e);
}

int network_param(Network *n, Layer *l, const char *name, Shape shape, double bound, const int64_t *order, Err *e) {
    Param like = {.shape = shape, .bound = bound};
    if (order) memcpy(like.order, order, sizeof like.order);
    return network_tensor(n, l, name, &like, e);
}

int network_tensor(Network *n, Layer *l, const char *name, const Param *like, Err *e) {
    int64_t count;
    const Shape shape = like->shape;
    int code = shape_count(like->quantized.format ? &like->quantized.shape : &shape, &count, e);
    if (code) return layer_blame(l, e, code);
    if (l->shares) return share_param(n, l, l->shares, name, like, e);
    if (l->tied && l->n_params == 0) return share_param(n, l, l->tied, name, like, e);
    if (strchr(l->path, '#')) return layer_error(l, e, "has parameters: give it a name in its graph");
    if (network_parameters(n) > INT64_MAX / 16 - count) return layer_error(l, e, "too many parameters");
    if (!mem_grow(&n->params, &n->cap_params, n->n_params + 1, sizeof *n->params))
        return no_room_for_params(e);
    Param *p = &n->params[n->n_params];
    *p = *like;
    int length = snprintf(p->name, sizeof p->name, "%s%s%s", l->path, l->path[0] && name[0] ? "." : "", name);
    if (length >= (int)sizeof p->name)
        return layer_error(l, e, "the name of its parameter %s has more than %d characters", name, PARAM_NAME - 1);
    if (network_find_param(n, p->name) >= 0) return layer_error(l, e, "there is a parameter %s already", p->name);
    p->layout = shape.rank > 2 && !like->plain ? LAYOUT_NHWC : LAYOUT_ROWS;
    p->trainable = !l->frozen && !p->buffer;
    p->wide = l->wide;
    p->owner = l;
    p->number = n->n_drawn;
    if (!p->derived) n->n_drawn++;
    if (names_add(&n->names, n->n_params, network_param_name, n) < 0) return no_room_for_params(e);
    if (!p->buffer) n->elements += count;
    return reads_param(l, n->n_params++, e);
}

/* Loss k reads output k. Its path, "loss" or "loss.1", names what it makes. */
static int infer_losses(Network *n, Err *e) {
    const Layer *root = n->root;
    int code = OK;
    if (n->n_losses && n->n_losses != root->n_result)
        return layer_error(n->loss[0], e, "expected a loss for each output of the network: there %s %d for %d",
                           n->n_losses == 1 ? "is" : "are", n->n_losses, root->n_result);
    for (int k = 0; k < n->n_losses && !code; k++) {
        Layer *l = n->loss[k];
        if (!is_loss(l)) return layer_error(l, e, "is no loss, expected one as the loss");
        snprintf(l->path, sizeof l->path, n->n_losses > 1 ? "loss.%d" : "loss", k);
        code = network_infer(n, l, k ? &root->child[root->result[k]]->output : &root->output, 1, e);
    }
    return code;
}

/* The input in the order in which the layer wants it that reads it first, in most networks. */
static Value input_value(const Network *n, int k) {
    Value in = {.shape = n->inputs[k].shape, .input = 1 + k};
    const Layer *first = n->root;
    for (int i = first->n_child - 1; i >= 0 && k > 0; i--)
        if (n->root->child[i]->from[0] == ~k) first = n->root->child[i];
    while (first->n_child) first = first->child[0];
    lay(&in, takes_lines(first));
    return in;
}

static int check_input(const Network *n, const Input *in, Err *e) {
    char text[SHAPE_TEXT];
    int64_t count;
    if (in->shape.rank < 2)
        return err_set(e, ERR_SCRIPT, "the input of a network needs a batch and at least one more dimension, found %s",
                       shape_text(&in->shape, text));
    if (in->shape.dim[0] != n->batch)
        return err_set(e, ERR_SCRIPT, "the inputs of a network have the same batch, found %" PRId64 " samples of %s for %" PRId64,
                       in->shape.dim[0], in->name, n->batch);
    int code = shape_count(&in->shape, &count, e);
    if (code) err_prefix(e, "the input of a network");
    return code;
}

static int infer_all(Network *n, Err *e) {
    Value in[LAYER_IN];
    if (is_loss(n->root)) return layer_error(n->root, e, "is a loss, expected a layer as the model");
    int code = OK;
    for (int k = 0; k < n->n_inputs && !code; k++) {
        code = check_input(n, &n->inputs[k], e);
        in[k] = input_value(n, k);
    }
    if (!code) code = network_infer(n, n->root, in, n->n_inputs, e);
    if (!code && (n->root->output.positions || n->root->output.mask || n->root->output.below))
        code = layer_error(n->root, e, "gives a mask, or what one is made of, or whole numbers");
    if (code) return code;
    n->output = n->root->out;
    return infer_losses(n, e);
}

int network_new(Layer *root, Layer *const *losses, int n_losses, const Input *inputs, int n_inputs, Network **out, Err *e) {
    assert(n_losses >= 0 && n_losses <= LAYER_IN && n_inputs >= 1 && n_inputs <= LAYER_IN);
    Network *n = mem_new(sizeof *n);
    if (!n) {
        layer_free(root);
        for (int k = 0; k < n_losses; k++) layer_free(losses[k]);
        return err_set(e, ERR_HOST_MEMORY, "out of host memory for a network");
    }
    n->root = root;
    n->n_losses = n_losses;
    for (int k = 0; k < n_losses; k++) n->loss[k] = losses[k];
    n->n_inputs = n_inputs;
    n->batch = inputs[0].shape.dim[0];
    memcpy(n->inputs, inputs, (size_t)n_inputs * sizeof *inputs);
    int code = infer_all(n, e);
    if (code) network_free(n);
    else *out = n;
    return code;
}

void network_free(Network *n) {
    if (!n) return;
    layer_free(n->root);
    for (int k = 0; k < n->n_losses; k++) layer_free(n->loss[k]);
    mem_free(n->params);
    mem_free(n->aliases);
    names_free(&n->names);
    names_free(&n->alias_names);
    mem_free(n);
}

/* Looks for the layer that first gives as many rows as the output has, or the last layer if these are the batch's. */
typedef struct RowsSearch { const Layer *found; int64_t rows, before; } RowsSearch;

static void find_rows(void *arg, const Network *n, const Layer *l) {
    RowsSearch *s = arg;
    int64_t rows = l->out.rank ? l->out.dim[0] : 0;
    if (rows == s->rows && (rows != s->before || rows == n->batch)) s->found = l;
    s->before = rows;
}

void network_output_text(const Network *n, char *text, size_t room) {
    char shape[SHAPE_TEXT], title[TITLE] = "the input", rows[64] = "";
    const bool of_places = n->class_dim == 1 && n->output.rank == 3;
    RowsSearch s = {NULL, n->output.dim[0], n->batch};
    network_visit(n, find_rows, &s);
    if (s.found) layer_title(s.found, title, sizeof title);
    if (s.rows != n->batch)
        snprintf(rows, sizeof rows, ", %" PRId64 " rows of a batch of %" PRId64, s.rows, n->batch);
    snprintf(text, room, "the network's output is %s%s, by %s%s", shape_text(&n->output, shape), rows, title,
             of_places ? ", in which dimension 1 is that of the classes: of (N, T, C) say x:flatten(0, 1)" : "");
}

int64_t network_parameters(const Network *n) { return n->elements; }

int64_t network_frozen(const Network *n) {
    int64_t sum = 0;
    for (int i = 0; i < n->n_params; i++)
        if (!n->params[i].trainable && !n->params[i].buffer) sum += param_elements(&n->params[i]);
    return sum;
}

int64_t param_elements(const Param *p) {
    return shape_elements(p->quantized.format ? &p->quantized.shape : &p->shape);
}

int network_find_param(const Network *n, const char *name) {
    int param = names_find(&n->names, name, network_param_name, n);
    int alias = param < 0 ? names_find(&n->alias_names, name, alias_name, n) : -1;
    return alias < 0 ? param : n->aliases[alias].param;
}
