/* cudnn.c: stands in for libraries.c's part of cuDNN, cudnn_graph.c, engines.c and plan_cache.c: graphs are data. A
 * plan overwrites its workspace and runs its graph's ops one after the other, by the float64 loops of tests/reference
 * and its own, as a task of the emulated stream. Each result is rounded to its tensor's type, also inside the graph. Numbers in
 * host memory are read when the plan is enqueued. A graph whose tensors do not fit its ops is refused.
 *
 * There are two engines for every graph: one with workspace, one without. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn_graph.h"
#include "emulate.h"
#include "engines.h"
#include "libraries.h"
#include "plan_cache.h"
#include "reference/ref_conv.h"
#include "shadow/shadow.h"

enum { TENSORS = 44, MOST = 1 << 10 /* bytes of workspace */, VERSION = 91900 };

typedef struct Tensor { int64_t id, dim[4], stride[4]; DType type; bool inside, by_value, flags; } Tensor;
typedef enum What { CONV_OP, MATH, ACT, ACT_DX, MATMUL, TRANSPOSE, INDEX, AT_LEAST, SELECT, REDUCE } What;
/* of: ConvPass, GraphMath, GraphReduce, or the axis of INDEX. a, b, c: operands, out: the result, as numbers of the graph's
 * tensors; NONE: there is none */
enum { NONE = 255 };
typedef struct Step { What what; int of; ConvAttr attr; ActAttr act; uint8_t a, b, c, out; } Step;

/* Any descriptor: a tensor, the first; or the tensors and steps of a graph, of an engine's configuration or of a plan.
 * wrong: why the graph is refused */
struct EmulatedNode { Tensor tensor[TENSORS]; Step step[GRAPH_OPS]; int n_tensors, n; size_t workspace; const char *wrong; };

size_t cudnnGetVersion(void) { return VERSION; }

int libraries_cudnn(CudaDevice *c, cudnnHandle_t *handle, Err *e) {
    (void)c, (void)e;
    *handle = NULL;
    return OK;
}

int cudnn_device_properties(CudaDevice *c, cudnnBackendDescriptor_t *properties, Err *e) {
    (void)properties;
    return err_set(e, ERR_UNSUPPORTED, "%s has no description", c->model.name);
}

static void *must(void *p) {
    if (!p) abort(); /* the machine is too small for the tests */
    return p;
}

/* ---- graphs */

static Node node_new(const struct EmulatedNode *from) {
    Node d = must(malloc(sizeof *d));
    *d = *from;
    return d;
}

void node_free(Node *d) {
    free(*d);
    *d = NULL;
}

static Node tensor(Graph *g, Tensor t) {
    Node d = node_new(&(struct EmulatedNode){.tensor = {t}});
    if (g->n_made == GRAPH_DESCRIPTORS) abort();
    return g->made[g->n_made++] = d;
}

static int64_t next_inside(Graph *g) { return GRAPH_VIRTUAL + g->n_virtual++; }

Node graph_tensor_at(Graph *g, int64_t id, DType type, const int64_t dim[4], const int64_t stride[4]) {
    Tensor t = {.id = id ? id : next_inside(g), .type = type, .inside = id == 0};
    memcpy(t.dim, dim, sizeof t.dim);
    memcpy(t.stride, stride, sizeof t.stride);
    return tensor(g, t);
}

Node graph_tensor(Graph *g, int64_t id, DType type, const int64_t dim[4]) {
    return graph_tensor_at(g, id, type, dim, (int64_t[]){dim[1] * dim[2] * dim[3], 1, dim[3] * dim[1], dim[1]});
}

Node graph_tensor_in_order(Graph *g, int64_t id, DType type, const int64_t dim[4]) {
    return graph_tensor_at(g, id, type, dim, (int64_t[]){dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1});
}

Node graph_flags(Graph *g, const int64_t dim[4]) {
    Node d = graph_tensor_in_order(g, 0, DT_F32, dim);
    d->tensor->flags = true;
    return d;
}

Node graph_number(Graph *g, int64_t id) {
    Node d = graph_tensor_in_order(g, id, DT_F32, (int64_t[]){1, 1, 1, 1});
    d->tensor->by_value = true;
    return d;
}

static uint8_t number_of(struct EmulatedNode *graph, Node t) {
    if (!t) return NONE;
    for (int k = 0; k < graph->n_tensors; k++)
        if (graph->tensor[k].id == t->tensor->id) return (uint8_t)k;
    if (graph->n_tensors == TENSORS) abort();
    graph->tensor[graph->n_tensors] = *t->tensor;
    return (uint8_t)graph->n_tensors++;
}

static Step *add(Graph *g, What what, Node a, Node b, Node c, Node out) {
    if (!g->graph) g->graph = node_new(&(struct EmulatedNode){.n = 0});
    struct EmulatedNode *graph = g->graph;
    if (graph->n == GRAPH_OPS) abort();
    Step *s = &graph->step[graph->n++];
    *s = (Step){.what = what, .a = number_of(graph, a), .b = number_of(graph, b), .c = number_of(graph, c),
                .out = number_of(graph, out)};
    return s;
}

/* What is wrong with the op's tensors makes the graph be refused. */
static void expect(Graph *g, bool fits, const char *wrong) {
    if (!fits && !g->graph->wrong) g->graph->wrong = wrong;
}

/* Each dimension of x is the one of `of`, or a divisor of it. */
static bool divides(Node x, Node of) {
    for (int k = 0; k < 4; k++)
        if (of->tensor->dim[k] % x->tensor->dim[k]) return false;
    return true;
}
static bool same_dims(Node a, Node b) { return !memcmp(a->tensor->dim, b->tensor->dim, sizeof a->tensor->dim); }
static bool is_float(Node t) { return !t->tensor->flags && t->tensor->type != DT_I32; }
static bool is_whole(Node t) { return !t->tensor->flags && t->tensor->type == DT_I32; }

void graph_conv(Graph *g, ConvPass pass, const ConvAttr *attr, Node x, Node w, Node y) {
    Step *s = add(g, CONV_OP, pass == CONV_DATA ? y : x, pass == CONV_WEIGHTS ? y : w, NULL,
                  pass == CONV_FORWARD ? y : pass == CONV_DATA ? x : w);
    s->of = (int)pass;
    s->attr = *attr;
}

void graph_act(Graph *g, const ActAttr *act, Node in, Node out) {
    Step *s = add(g, ACT, in, NULL, NULL, out);
    if (act) s->act = *act;
}

void graph_act_dx(Graph *g, const ActAttr *act, Node dy, Node s, Node out) {
    add(g, ACT_DX, dy, s, NULL, out)->act = *act;
}

void graph_math(Graph *g, GraphMath f, Node a, Node b, Node out) {
    add(g, MATH, a, b, NULL, out)->of = (int)f;
    expect(g, same_dims(a, out) && is_float(a) && is_float(out), "a pointwise op's result");
    if (!b) expect(g, f == GRAPH_EXP || f == GRAPH_LOG, "a pointwise op without its second operand");
    for (int k = 0; b && k < 4; k++)
        expect(g, is_float(b) && (b->tensor->dim[k] == 1 || b->tensor->dim[k] == out->tensor->dim[k]),
               "a pointwise op's second operand");
}

void graph_matmul(Graph *g, Node a, Node b, Node out) {
    const int64_t *of_a = a->tensor->dim, *of_b = b->tensor->dim, *d = out->tensor->dim;
    add(g, MATMUL, a, b, NULL, out);
    expect(g, of_a[0] == d[0] && of_b[0] == d[0] && of_a[1] == d[1] && d[1] % of_b[1] == 0, "a product's matrices");
    expect(g, of_a[2] == d[2] && of_b[3] == d[3] && of_a[3] == of_b[2], "a product's rows and columns");
    expect(g, a->tensor->type == b->tensor->type && is_float(a), "a product's types");
}

void graph_transpose(Graph *g, Node in, Node out) {
    const Tensor *a = in->tensor, *b = out->tensor;
    add(g, TRANSPOSE, in, NULL, NULL, out);
    for (int k = 0; k < 4; k++) {
        const int from = k < 2 ? k : 5 - k;
        expect(g, b->dim[k] == a->dim[from], "a transposition's dimensions");
        expect(g, b->stride[k] == a->stride[from], "a transposition that moves elements");
    }
}

void graph_index(Graph *g, int axis, Node like, Node out) {
    add(g, INDEX, like, NULL, NULL, out)->of = axis;
    expect(g, 0 <= axis && axis < 4 && same_dims(like, out) && is_whole(out), "an index");
}

void graph_at_least(Graph *g, Node a, Node b, Node flags) {
    add(g, AT_LEAST, a, b, NULL, flags);
    expect(g, same_dims(a, b) && same_dims(a, flags) && is_whole(a) && is_whole(b) && flags->tensor->flags, "a comparison");
}

void graph_select(Graph *g, Node flags, Node a, Node b, Node out) {
    add(g, SELECT, a, b, flags, out);
    expect(g, same_dims(a, out) && same_dims(flags, out) && divides(b, out) && flags->tensor->flags, "a selection");
    expect(g, is_float(a) && is_float(b) && is_float(out), "a selection's types");
}

void graph_reduce(Graph *g, GraphReduce f, Node in, Node out) {
    add(g, REDUCE, in, NULL, NULL, out)->of = (int)f;
    expect(g, divides(out, in) && is_float(in) && is_float(out), "a reduction");
}

int graph_finish(Graph *g, cudnnHandle_t handle, Err *e) {
    (void)handle;
    if (!g->graph) return err_set(e, ERR_INTERNAL, "a graph without ops");
    return g->graph->wrong ? err_set(e, ERR_UNSUPPORTED, "a graph of cuDNN's stand-in: %s", g->graph->wrong) : OK;
}

void graph_free(Graph *g) {
    for (int k = 0; k < g->n_made; k++) node_free(&g->made[k]);
    node_free(&g->graph);
    memset(g, 0, sizeof *g);
}

/* ---- engines: a configuration is the graph itself, with the bytes that the engine needs */

bool engine_may(const Engine *engine, bool exact) {
    (void)engine, (void)exact;
    return true;
}

void engine_close(Engine *engine) { node_free(&engine->config); }

void engines_free(Engines *list) {
    for (int k = 0; k < list->n; k++) engine_close(&list->at[k]);
    free(list->at);
    memset(list, 0, sizeof *list);
}

int engine_open(CudaDevice *c, const Graph *g, const EngineId *id, Engine *out, Err *e) {
    memset(out, 0, sizeof *out);
    if (id->engine > 1 || id->n_knobs)
        return err_set(e, ERR_UNSUPPORTED, "%s has no engine %lld", c->model.name, (long long)id->engine);
    out->id = *id;
    out->config = node_new(g->graph);
    out->config->workspace = out->workspace = id->engine ? 0 : MOST;
    return OK;
}

int engines_ask(CudaDevice *c, const Graph *g, int ranking, int most, Engines *list, Err *e) {
    (void)ranking;
    if (!list->at) list->at = must(calloc(2, sizeof *list->at));
    for (int code = OK; !code && list->n < 2 && list->n < most; list->n++) {
        const EngineId id = {.engine = list->n};
        code = engine_open(c, g, &id, &list->at[list->n], e);
    }
    return OK;
}

/* ---- plans */

int plan_open(CudaDevice *c, const char *op, const char *way, const Engine *engine, Node *plan, Err *e) {
    (void)c, (void)op, (void)way, (void)e;
    *plan = node_new(engine->config);
    return OK;
}

/* Where a tensor's elements lie, and while the task runs, what they are */
typedef struct Value { void *data; double number, *at; } Value;
typedef struct Task { struct EmulatedNode plan; Value value[TENSORS]; void *workspace; } Task;

static int64_t count_of(const Tensor *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

/* The indices of element i of PyTorch's order */
static void indices_of(const Tensor *t, int64_t i, int64_t at[4]) {
    for (int k = 3; k >= 0; k--) {
        at[k] = i % t->dim[k];
        i /= t->dim[k];
    }
}

/* Where element i of PyTorch's order lies */
static size_t stored_at(const Tensor *t, int64_t i) {
    int64_t at[4], sum = 0;
    indices_of(t, i, at);
    for (int k = 0; k < 4; k++) sum += at[k] * t->stride[k];
    return (size_t)sum;
}

/* The element of t whose indices are those of element i of `of`, scaled down where t is shorter: in PyTorch's order */
static int64_t like(const Tensor *t, const Tensor *of, int64_t i) {
    int64_t at[4], sum = 0;
    indices_of(of, i, at);
    for (int k = 0; k < 4; k++) sum = sum * t->dim[k] + at[k] / (of->dim[k] / t->dim[k]);
    return sum;
}

static const double *operand(Task *task, uint8_t which) {
    if (which == NONE) return NULL;
    const Tensor *t = &task->plan.tensor[which];
    Value *v = &task->value[which];
    if (v->at) return v->at;
    if (!v->data && !t->by_value) abort(); /* no step has made it */
    v->at = must(calloc((size_t)count_of(t), sizeof *v->at));
    v->at[0] = v->number;
    for (int64_t i = 0; v->data && i < count_of(t); i++) v->at[i] = dtype_load(t->type, v->data, stored_at(t, i));
    return v->at;
}

static void conv_step(const Step *s, const Tensor *of, double *out, const double *a, const double *b) {
    const int64_t *x = of[s->of == CONV_DATA ? s->out : s->a].dim;
    const int64_t *w = of[s->of == CONV_WEIGHTS ? s->out : s->b].dim;
    const ConvAttr *at = &s->attr;
    const RefConv d = {x[0], x[1], x[2], x[3], w[0], w[2], w[3], {at->stride[0], at->stride[1]},
                       {at->pad[0], at->pad[1], at->pad[2], at->pad[3]}, {at->dilation[0], at->dilation[1]},
                       x[1] / w[1]};
    if (s->of == CONV_FORWARD) ref_conv2d(out, a, b, NULL, &d);
    if (s->of == CONV_DATA) ref_conv2d_dx(out, a, b, &d);
    if (s->of == CONV_WEIGHTS) ref_conv2d_dw(out, NULL, a, b, &d);
}

static double math_of(GraphMath f, double a, double b) {
    switch (f) {
    case GRAPH_ADD: return a + b;
    case GRAPH_SUB: return a - b;
    case GRAPH_MUL: return a * b;
    case GRAPH_DIV: return a / b;
    case GRAPH_EXP: return exp(a);
    default: return log(a);
    }
}

/* Element i of a product's result */
static double product_at(const Tensor *a, const Tensor *b, const Tensor *out, const double *of_a, const double *of_b, int64_t i) {
    int64_t at[4];
    double sum = 0;
    indices_of(out, i, at);
    const double *row = of_a + ((at[0] * a->dim[1] + at[1]) * a->dim[2] + at[2]) * a->dim[3];
    const double *matrix = of_b + (at[0] * b->dim[1] + at[1] / (out->dim[1] / b->dim[1])) * b->dim[2] * b->dim[3];
    for (int64_t k = 0; k < a->dim[3]; k++) sum += row[k] * matrix[k * b->dim[3] + at[3]];
    return sum;
}

static void reduce_step(GraphReduce f, const Tensor *in, const Tensor *out, const double *a, double *to) {
    for (int64_t i = 0; i < count_of(out); i++) to[i] = f == GRAPH_MAX ? -INFINITY : 0;
    for (int64_t i = 0; i < count_of(in); i++) {
        double *one = &to[like(out, in, i)];
        *one = f == GRAPH_MAX ? fmax(*one, a[i]) : *one + a[i];
    }
}

/* Element i of a step's result, where each is made by itself */
static double element(const Task *task, const Step *s, const double *a, const double *b, const double *c, int64_t i) {
    const Tensor *t = task->plan.tensor, *out = &t[s->out];
    const double second = b && s->what != MATMUL ? b[like(&t[s->b], out, i)] : 0;
    int64_t at[4];
    indices_of(out, i, at);
    switch (s->what) {
    case MATH: return math_of((GraphMath)s->of, a[i], second);
    case ACT: return act_value(s->act, (float)a[i]);
    case ACT_DX: return a[i] * act_slope(s->act, (float)second);
    case MATMUL: return product_at(&t[s->a], &t[s->b], out, a, b, i);
    case TRANSPOSE: return a[((at[0] * out->dim[1] + at[1]) * out->dim[3] + at[3]) * out->dim[2] + at[2]];
    case INDEX: return (double)at[s->of];
    case AT_LEAST: return a[i] >= second;
    case SELECT: return c[i] != 0 ? a[i] : second;
    default: abort();
    }
}

static double rounded(const Tensor *t, double x) {
    float stored;
    if (t->flags || t->type == DT_I32) return x;
    dtype_store(t->type, &stored, 0, (float)x);
    return dtype_load(t->type, &stored, 0);
}

static void step_run(Task *task, const Step *s) {
    const double *a = operand(task, s->a), *b = operand(task, s->b), *c = operand(task, s->c);
    const Tensor *t = &task->plan.tensor[s->out];
    Value *v = &task->value[s->out];
    double *out = v->at = must(calloc((size_t)count_of(t), sizeof *v->at));
    if (s->what == CONV_OP) conv_step(s, task->plan.tensor, out, a, b);
    else if (s->what == REDUCE) reduce_step((GraphReduce)s->of, &task->plan.tensor[s->a], t, a, out);
    else for (int64_t i = 0; i < count_of(t); i++) out[i] = element(task, s, a, b, c, i);
    for (int64_t i = 0; i < count_of(t); i++) {
        out[i] = rounded(t, out[i]);
        if (t->inside) continue;
        const size_t at = stored_at(t, i), each = dtype_size(t->type);
        dtype_store(t->type, v->data, at, (float)out[i]);
        shadow_wrote((char *)v->data + at * each, each);
    }
}

static void task_run(void *of) {
    Task *task = of;
    if (task->plan.workspace) memset(task->workspace, 0xFF, task->plan.workspace);
    for (int k = 0; k < task->plan.n; k++) step_run(task, &task->plan.step[k]);
    for (int k = 0; k < task->plan.n_tensors; k++) free(task->value[k].at), task->value[k].at = NULL;
}

int plan_run(CudaDevice *c, Node plan, int n, const int64_t *id, void *const *data, void *workspace, Err *e) {
    const cudaLaunchConfig_t config = {.gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .stream = c->stream};
    Task task = {.plan = *plan, .workspace = workspace};
    for (int k = 0; k < plan->n_tensors; k++) {
        const Tensor *t = &plan->tensor[k];
        int i = 0;
        while (i < n && id[i] != t->id) i++;
        if (i == n && !t->inside) return err_set(e, ERR_INTERNAL, "nothing is given for tensor %lld", (long long)t->id);
        if (t->by_value) task.value[k].number = *(const float *)data[i];
        else if (!t->inside) task.value[k].data = data[i];
    }
    return cuda_check(c, emulate_launch(&config, NULL, task_run, &task, sizeof task), "a graph", e);
}
