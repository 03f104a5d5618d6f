/* cudnn.c: stands in for libraries.c's part of cuDNN, cudnn_graph.c, engines.c and plan_cache.c: graphs are data. A
 * plan overwrites its workspace and runs its graph's ops one after the other, by the float64 loops of tests/reference,
 * as a task of the emulated stream. Each result is rounded to its tensor's type, also inside the graph.
 *
 * There are two engines for every graph: one with workspace, one without. */
#include <stdlib.h>
#include <string.h>

#include "cudnn_graph.h"
#include "emulate.h"
#include "engines.h"
#include "libraries.h"
#include "plan_cache.h"
#include "reference/ref_conv.h"
#include "shadow/shadow.h"

enum { TENSORS = 3 * GRAPH_OPS, MOST = 1 << 10 /* bytes of workspace */ };

typedef struct Tensor { int64_t id, dim[4]; DType type; bool inside, by_value; } Tensor;
typedef enum What { CONV_OP, ADD, SCALE, ACT, ACT_DX, SUM } What;
typedef struct Step { What what; ConvPass pass; ConvAttr attr; ActAttr act; Tensor a, b, out; } Step;

/* Any descriptor: a tensor; or the steps of a graph, of an engine's configuration or of a plan */
struct EmulatedNode { Tensor tensor; Step step[GRAPH_OPS]; int n; size_t workspace; };

size_t cudnnGetVersion(void) { return 1; }

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
    Node d = node_new(&(struct EmulatedNode){.tensor = t});
    if (g->n_made == GRAPH_DESCRIPTORS) abort();
    return g->made[g->n_made++] = d;
}

static Tensor tensor_of(int64_t id, DType type, const int64_t dim[4]) {
    return (Tensor){.id = id, .dim = {dim[0], dim[1], dim[2], dim[3]}, .type = type};
}

Node graph_tensor(Graph *g, int64_t id, DType type, const int64_t dim[4]) {
    Tensor t = tensor_of(id ? id : GRAPH_VIRTUAL + g->n_virtual++, type, dim);
    t.inside = id == 0;
    return tensor(g, t);
}

Node graph_factor(Graph *g, int64_t id) {
    Tensor t = tensor_of(id, DT_F32, (int64_t[]){1, 1, 1, 1});
    t.by_value = true;
    return tensor(g, t);
}

static Step *add(Graph *g, What what, Node a, Node b, Node out) {
    if (!g->graph) g->graph = node_new(&(struct EmulatedNode){.n = 0});
    if (g->graph->n == GRAPH_OPS) abort();
    Step *s = &g->graph->step[g->graph->n++];
    *s = (Step){.what = what, .a = a->tensor, .out = out->tensor};
    if (b) s->b = b->tensor;
    return s;
}

void graph_conv(Graph *g, ConvPass pass, const ConvAttr *attr, Node x, Node w, Node y) {
    Step *s = add(g, CONV_OP, pass == CONV_DATA ? y : x, pass == CONV_WEIGHTS ? y : w,
                  pass == CONV_FORWARD ? y : pass == CONV_DATA ? x : w);
    s->pass = pass;
    s->attr = *attr;
}

void graph_add(Graph *g, Node in, Node b, Node out) { add(g, ADD, in, b, out); }
void graph_scale(Graph *g, Node in, Node factor, Node out) { add(g, SCALE, in, factor, out); }
void graph_sum(Graph *g, Node in, Node out) { add(g, SUM, in, NULL, out); }

void graph_act(Graph *g, const ActAttr *act, Node in, Node out) {
    Step *s = add(g, ACT, in, NULL, out);
    if (act) s->act = *act;
}

void graph_act_dx(Graph *g, const ActAttr *act, Node dy, Node s, Node out) { add(g, ACT_DX, dy, s, out)->act = *act; }

int graph_finish(Graph *g, cudnnHandle_t handle, Err *e) {
    (void)handle;
    return g->graph ? OK : err_set(e, ERR_INTERNAL, "a graph without ops");
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

typedef struct Value { Tensor tensor; void *data; double *at; } Value;
typedef struct Task { struct EmulatedNode plan; Value value[TENSORS]; int n; void *workspace; } Task;

static int64_t count_of(const Tensor *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

/* Where element i of PyTorch's order lies */
static size_t stored_at(const Tensor *t, int64_t i) {
    int64_t c = t->dim[1], area = t->dim[2] * t->dim[3];
    return (size_t)((i / (c * area) * area + i % area) * c + i / area % c);
}

static Value *value_of(Task *task, const Tensor *t) {
    for (int k = 0; k < task->n; k++)
        if (task->value[k].tensor.id == t->id) return &task->value[k];
    abort(); /* the tensor was not given, and no step has made it */
}

static double *operand(Task *task, const Tensor *t) {
    Value *v = value_of(task, t);
    if (v->at) return v->at;
    v->at = must(calloc((size_t)count_of(t), sizeof *v->at));
    for (int64_t i = 0; i < count_of(t); i++) v->at[i] = dtype_load(t->type, v->data, stored_at(t, i));
    return v->at;
}

static void conv_step(const Step *s, double *out, const double *a, const double *b) {
    const int64_t *x = s->pass == CONV_DATA ? s->out.dim : s->a.dim;
    const int64_t *w = s->pass == CONV_WEIGHTS ? s->out.dim : s->b.dim;
    const ConvAttr *at = &s->attr;
    const RefConv d = {x[0], x[1], x[2], x[3], w[0], w[2], w[3], {at->stride[0], at->stride[1]},
                       {at->pad[0], at->pad[1], at->pad[2], at->pad[3]}, {at->dilation[0], at->dilation[1]},
                       x[1] / w[1]};
    if (s->pass == CONV_FORWARD) ref_conv2d(out, a, b, NULL, &d);
    if (s->pass == CONV_DATA) ref_conv2d_dx(out, a, b, &d);
    if (s->pass == CONV_WEIGHTS) ref_conv2d_dw(out, NULL, a, b, &d);
}

static void step_run(Task *task, const Step *s) {
    const double *a = operand(task, &s->a), *b = s->b.id ? operand(task, &s->b) : NULL;
    const int64_t n = count_of(&s->a), area = s->a.dim[2] * s->a.dim[3], channels = s->a.dim[1];
    const ActAttr *f = &s->act;
    Value *v = value_of(task, &s->out);
    double *out = v->at = must(calloc((size_t)count_of(&s->out), sizeof *v->at));
    switch (s->what) {
    case CONV_OP: conv_step(s, out, a, b); break;
    case ADD: for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i / area % channels]; break;
    case SCALE: for (int64_t i = 0; i < n; i++) out[i] = a[i] * b[0]; break;
    case ACT: for (int64_t i = 0; i < n; i++) out[i] = act_value(*f, (float)a[i]); break;
    case ACT_DX:
        for (int64_t i = 0; i < n; i++) out[i] = a[i] * act_slope(*f, (float)b[i]);
        break;
    case SUM: for (int64_t i = 0; i < n; i++) out[i / area % channels] += a[i]; break;
    }
    for (int64_t i = 0; i < count_of(&s->out); i++) {
        const size_t at = s->out.inside ? 0 : stored_at(&s->out, i);
        float inside;
        void *to = s->out.inside ? &inside : v->data;
        dtype_store(s->out.type, to, at, (float)out[i]);
        out[i] = dtype_load(s->out.type, to, at);
    }
    if (!s->out.inside) shadow_wrote(v->data, (size_t)count_of(&s->out) * dtype_size(s->out.type));
}

static void task_run(void *of) {
    Task *task = of;
    if (task->plan.workspace) memset(task->workspace, 0xFF, task->plan.workspace);
    for (int k = 0; k < task->plan.n; k++) step_run(task, &task->plan.step[k]);
    for (int k = 0; k < task->n; k++) free(task->value[k].at), task->value[k].at = NULL;
}

/* Adds `t` to the task's values, with the data that was given for it. */
static int task_add(Task *task, const Tensor *t, int n, const int64_t *id, void *const *data, Err *e) {
    int k = 0;
    for (int i = 0; i < task->n; i++)
        if (task->value[i].tensor.id == t->id) return OK;
    while (k < n && id[k] != t->id) k++;
    if (k == n && !t->inside) return err_set(e, ERR_INTERNAL, "nothing is given for tensor %lld", (long long)t->id);
    task->value[task->n++] = (Value){.tensor = *t, .data = t->inside ? NULL : data[k]};
    return OK;
}

int plan_run(CudaDevice *c, Node plan, int n, const int64_t *id, void *const *data, void *workspace, Err *e) {
    const cudaLaunchConfig_t config = {.gridDim = {1, 1, 1}, .blockDim = {1, 1, 1}, .stream = c->stream};
    Task task = {.plan = *plan, .workspace = workspace};
    int code = OK;
    for (int k = 0; k < plan->n && !code; k++) {
        const Step *s = &plan->step[k];
        code = task_add(&task, &s->a, n, id, data, e);
        if (!code && s->b.id) code = task_add(&task, &s->b, n, id, data, e);
        if (!code) code = task_add(&task, &s->out, n, id, data, e);
    }
    return code ? code : cuda_check(c, emulate_launch(&config, NULL, task_run, &task, sizeof task), "a graph", e);
}
