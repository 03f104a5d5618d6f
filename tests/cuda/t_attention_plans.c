/* What cuDNN answers about attention on GPUs that are not here: which engines it has for each graph and how much workspace they
 * need; that it takes each tensor as it lies in the op's operands; what it refuses. The figures are those of one version of cuDNN.
 * Its engines for attention are all compiled at run time, which nothing without a GPU can see to the end. */
#include <dlfcn.h>

#include "attention_cudnn.h"
#include "cards.h"
#include "engines.h"
#include "tuning.h"

enum { CARDS = 6, LIMIT = 1 << 30 };
static const char *const cards[CARDS] = {"t4", "a100-80gb", "rtx4090", "h100", "h200", "b200"};
static CudaDevice *devices[CARDS];

/* keys 0: q, k and v in one operand; else q, and k with v */
typedef struct Shaped {
    const char *name;
    int64_t n, heads, kv_heads, queries, keys, width;
    int causal, batch_first;
    float p;
    DType type;
} Shaped;
typedef enum Pass { EVALUATION, TRAINING, GRADIENT, PASSES } Pass;
static const char *const passes[PASSES] = {"evaluation", "training", "gradient"};

static const Shaped cases[] = {
    {"gpt2", 8, 12, 12, 1024, 0, 64, 1, 1, 0, DT_BF16},
    {"gpt2, fp16", 8, 12, 12, 1024, 0, 64, 1, 1, 0, DT_F16},
    {"gpt2, dropout", 8, 12, 12, 1024, 0, 64, 1, 1, 0.1f, DT_BF16},
    {"gpt2, time first", 8, 12, 12, 1024, 0, 64, 1, 0, 0, DT_BF16},
    {"llama, grouped", 1, 32, 8, 2048, 0, 128, 1, 1, 0, DT_BF16},
    {"vit", 64, 12, 12, 197, 0, 64, 0, 1, 0, DT_BF16},
    {"of another sequence, dropout", 8, 16, 16, 128, 301, 64, 0, 1, 0.1f, DT_BF16},
    {"small", 2, 4, 2, 17, 0, 8, 1, 1, 0, DT_BF16},
    {"wide", 2, 8, 8, 512, 0, 256, 1, 1, 0, DT_BF16},
    {"too wide", 2, 8, 8, 512, 0, 264, 1, 1, 0, DT_BF16},
};
enum { CASES = sizeof cases / sizeof *cases };

/* By card: engines that may be taken, and the least bytes of workspace of one of them, without what comes before it. */
typedef struct Answer { int engines; size_t least; } Answer;
static const Answer expected[CASES][PASSES][CARDS] = {
#include "attention_plans.inc"
};

/* ---- ops */

static View rows(const Shaped *c, int64_t steps, int64_t features) {
    View v = {.shape = c->batch_first ? shape3(c->n, steps, features) : shape3(steps, c->n, features), .dtype = c->type};
    v.count = shape_elements(&v.shape);
    return v;
}

static void ask_attention(Asked *q, const Shaped *c, Pass pass) {
    const int64_t own = c->heads * c->width, of_keys = 2 * c->kv_heads * c->width;
    const View y = rows(c, c->queries, own), calls = {.shape = shape1(1), .dtype = DT_I32, .count = c->p > 0};
    const View x = rows(c, c->queries, own + (c->keys ? 0 : of_keys)), kv = c->keys ? rows(c, c->keys, of_keys) : (View){.count = 0};
    const View lse = {.shape = shape3(c->n, c->heads, c->queries), .dtype = DT_F32, .count = c->n * c->heads * c->queries};
    memset(q, 0, sizeof *q);
    q->attr.attention = (AttentionAttr){.heads = (int32_t)c->heads, .kv_heads = (int32_t)c->kv_heads, .causal = c->causal,
                                        .batch_first = c->batch_first, .scale = 0.125f, .p = c->p};
    q->args = (KArgs){.kind = pass == GRADIENT ? OP_attention_dx : OP_attention, .attr = &q->attr};
    if (pass == GRADIENT) {
        q->args.attention_dx.dy = q->args.attention_dx.y = y;
        q->args.attention_dx.q = q->args.attention_dx.dq = x;
        q->args.attention_dx.k = q->args.attention_dx.dk = kv;
        q->args.attention_dx.lse = lse;
        q->args.attention_dx.calls = calls;
        return;
    }
    q->args.attention.q = x;
    q->args.attention.k = kv;
    q->args.attention.y = y;
    q->args.attention.calls = calls;
    if (pass == TRAINING) q->args.attention.lse = lse;
}

/* ---- engines */

static int engines_of(CudaDevice *c, Graph *g, Engines *list, Err *e) {
    int code = OK;
    for (int r = 0; r < ENGINE_RANKINGS && !code; r++) code = engines_ask(c, g, r, ENGINES_ALL, list, e);
    return code;
}

static Answer answer_of(CudaDevice *c, const Asked *q, int *shipped) {
    Answer found = {0, 0};
    Sdpa sdpa;
    Graph g;
    Engines list = {NULL};
    Err e;
    if (!sdpa_read(&q->args, &sdpa)) return (Answer){-1, 0};
    if (!sdpa_graph(c, &sdpa, &g, &e) && engines_of(c, &g, &list, &e)) found.engines = -2;
    for (int k = 0; k < list.n; k++) {
        if (!engine_may(&list.at[k], false)) continue;
        if (!found.engines++ || list.at[k].workspace < found.least) found.least = list.at[k].workspace;
        *shipped += !list.at[k].compiled;
    }
    engines_free(&list);
    graph_free(&g);
    return found;
}

/* PRINT_PLANS=1 prints what attention_plans.inc is to hold, for another version of cuDNN. */
static void test_engines(void) {
    int shipped = 0;
    for (int k = 0; k < CASES * PASSES; k++) {
        const Shaped *c = &cases[k / PASSES];
        const Answer *want = expected[k / PASSES][k % PASSES];
        int wrong = 0;
        Asked q;
        ask_attention(&q, c, (Pass)(k % PASSES));
        if (getenv("PRINT_PLANS")) fprintf(stderr, "%s", k % PASSES ? " {" : "{{");
        for (int i = 0; i < CARDS; i++) {
            const Answer found = answer_of(devices[i], &q, &shipped);
            if (getenv("PRINT_PLANS")) fprintf(stderr, "%s{%d, %zu}", i ? ", " : "", found.engines, found.least);
            if (found.engines == want[i].engines && found.least == want[i].least) continue;
            wrong++;
            printf("# %s: found %d engines, %zu bytes; expected %d, %zu\n", cards[i], found.engines, found.least, want[i].engines,
                   want[i].least);
        }
        if (getenv("PRINT_PLANS"))
            fprintf(stderr, "}%s, /* %s, %s */\n", k % PASSES == PASSES - 1 ? "}" : "", c->name, passes[k % PASSES]);
        is_int(wrong, 0, "the engines and the workspace of an attention on every card");
    }
    is_int(shipped, 0, "no engine ships with the library");
}

/* ---- tensors */

/* A tensor of the graph, as cuDNN has it; false: the descriptor is not one of a tensor, or of one inside. */
typedef struct Tensor { int64_t id, dim[4], stride[4]; cudnnDataType_t type; bool inside, by_value; } Tensor;
static bool read_tensor(Node d, Tensor *t) {
    int64_t n;
    memset(t, 0, sizeof *t);
    return !node_get(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &n, &t->id) &&
           !node_get(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &n, &t->type) &&
           !node_get(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, &n, t->dim) &&
           !node_get(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, &n, t->stride) &&
           !node_get(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &n, &t->inside) &&
           !node_get(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &n, &t->by_value) && !t->inside;
}

/* Operands and the workspace lie far apart, at addresses that nothing is read from. */
static char *far_at(int k) { return (char *)((uintptr_t)(k + 1) << 40); }

/* What is wrong with the place that the tensor is given, or NULL. */
static const char *trouble(const KArgs *a, const Sdpa *s, const Tensor *t, const char *data) {
    const size_t each = t->type == CUDNN_DATA_FLOAT ? 4 : 2;
    int64_t last = 0;
    if (t->by_value) return data == (const char *)&s->attr.scale || (data >= (const char *)s && data < (const char *)(s + 1))
                                ? NULL : "a number that is none of the op's";
    for (int k = 0; k < 4; k++) last += (t->dim[k] - 1) * t->stride[k];
    const size_t bytes = (size_t)(last + 1) * each;
    if ((uintptr_t)data % 16) return "an address between words";
    for (int k = 0; k <= OP_IN + OP_OUT; k++) {
        const bool is_operand = k < OP_IN + OP_OUT;
        const View *v = !is_operand ? NULL : k < OP_IN ? &a->in[k] : &a->out[k - OP_IN];
        const size_t room = is_operand ? (size_t)v->count * dtype_size(v->dtype) : sdpa_before(s);
        if (data < far_at(k) || data >= far_at(k) + room) continue;
        if (is_operand && dtype_size(v->dtype) != each) return "another type than the operand's";
        return data + bytes <= far_at(k) + room ? NULL : "more than its place has";
    }
    return "no place";
}

static void test_places(const Shaped *c, Pass pass) {
    int64_t id[SDPA_IDS];
    void *data[SDPA_IDS];
    Asked q;
    Sdpa s;
    Graph g;
    Err e = {0, ""};
    const char *wrong = NULL;
    int seen = 0;
    ask_attention(&q, c, pass);
    for (int k = 0; k < OP_IN + OP_OUT; k++) (k < OP_IN ? &q.args.in[k] : &q.args.out[k - OP_IN])->data = far_at(k);
    ok(sdpa_read(&q.args, &s) && !sdpa_graph(devices[CARDS - 1], &s, &g, &e), "%s, %s: a graph %s", c->name, passes[pass], e.text);
    const int n = sdpa_tensors(&s, far_at(OP_IN + OP_OUT), id, data);
    for (int k = 0; k < g.n_made && !wrong; k++) {
        Tensor t;
        int i = 0;
        if (!read_tensor(g.made[k], &t)) continue;
        while (i < n && id[i] != t.id) i++;
        wrong = i == n ? "no data" : trouble(&q.args, &s, &t, data[i]);
        if (wrong) printf("# tensor %lld: %s\n", (long long)t.id, wrong);
        if (i < n) seen |= 1 << i;
    }
    ok(!wrong, "each tensor lies within its place");
    is_int(seen, (1 << n) - 1, "and nothing else is given");
    graph_free(&g);
}

/* ---- ops, as they are told to cuDNN: the emulated GPU interprets the same graphs, and this is how they come to cuDNN. It does not give
 * all of a descriptor's attributes back, so they are noted as they are set. */

typedef struct Noted { Node d; cudnnBackendAttributeName_t name; int64_t value; } Noted;
static Noted noted[1024];
static int n_noted; /* 0 begins anew */
static bool noting;

typedef cudnnStatus_t SetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *);

/* In the place of cuDNN's function, for this program */
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t count, const void *value) {
    static SetAttribute *real;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "cudnnBackendSetAttribute");
    if (!real) return CUDNN_STATUS_INTERNAL_ERROR;
    if (noting && count == 1 && n_noted < (int)ARRAY_LEN(noted)) {
        const bool wide = type == CUDNN_TYPE_BACKEND_DESCRIPTOR || type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_DOUBLE;
        Noted *n = &noted[n_noted++];
        *n = (Noted){d, name, 0};
        memcpy(&n->value, value, type == CUDNN_TYPE_BOOLEAN ? 1 : wide ? 8 : 4);
    }
    return real(d, name, type, count, value);
}

/* What an attribute was set to; -1: it was not */
static int64_t set_to(const void *d, cudnnBackendAttributeName_t name) {
    for (int k = n_noted - 1; k >= 0; k--)
        if (noted[k].d == d && noted[k].name == name) return noted[k].value;
    return -1;
}

/* The id of an op's tensor; -1: the op has none of this kind. */
static int64_t tensor_of(Node op, cudnnBackendAttributeName_t name) {
    const int64_t d = set_to(op, name);
    return d == -1 ? -1 : set_to((const void *)(intptr_t)d, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

/* An attribute of the descriptor that says what the op does; -1: it has none */
static int64_t number_of(Node op, cudnnBackendAttributeName_t how, cudnnBackendAttributeName_t name) {
    const int64_t d = set_to(op, how);
    return d == -1 ? -1 : set_to((const void *)(intptr_t)d, name);
}

static const struct { int64_t mode; const char *name; } modes[] = {
    {CUDNN_POINTWISE_ADD, "add"}, {CUDNN_POINTWISE_SUB, "sub"}, {CUDNN_POINTWISE_MUL, "mul"}, {CUDNN_POINTWISE_DIV, "div"},
    {CUDNN_POINTWISE_EXP, "exp"}, {CUDNN_POINTWISE_LOG, "log"}, {CUDNN_POINTWISE_GEN_INDEX, "index"},
    {CUDNN_POINTWISE_CMP_GE, "ge"}, {CUDNN_POINTWISE_BINARY_SELECT, "select"},
};

static const char *mode_name(int64_t mode) {
    for (size_t k = 0; k < ARRAY_LEN(modes); k++)
        if (modes[k].mode == mode) return modes[k].name;
    return "none";
}

/* An op's name; sums say whether they have one order. */
static const char *op_name(Node op) {
    if (tensor_of(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC) >= 0) return "matmul";
    if (tensor_of(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC) >= 0) return "reshape";
    const int64_t sum = number_of(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_REDUCTION_OPERATOR);
    const bool ordered = number_of(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC) == 1;
    if (sum == CUDNN_REDUCE_TENSOR_ADD) return ordered ? "sum" : "sum in any order";
    if (sum == CUDNN_REDUCE_TENSOR_MAX) return "max";
    return mode_name(number_of(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE));
}

/* Tensors inside are numbered from 100 on as they come: in which order a compiler has made them does not matter. */
static long long shown_id(int64_t id, int64_t *inside, int *n_inside) {
    int k = 0;
    if (id < GRAPH_VIRTUAL) return id;
    while (k < *n_inside && inside[k] != id) k++;
    if (k == *n_inside) inside[(*n_inside)++] = id;
    return GRAPH_VIRTUAL + k;
}

/* "name operands > result; ...", an index with its axis */
static void graph_text(const Graph *g, char *text, size_t size) {
    static const struct { cudnnBackendAttributeName_t name; bool result; } tensors[] = {
        {CUDNN_ATTR_OPERATION_MATMUL_ADESC, false}, {CUDNN_ATTR_OPERATION_MATMUL_BDESC, false},
        {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, false}, {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, false},
        {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, false}, {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, false},
        {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, false}, {CUDNN_ATTR_OPERATION_MATMUL_CDESC, true},
        {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, true}, {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, true},
        {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, true}};
    int64_t inside[GRAPH_DESCRIPTORS];
    int n_inside = 0;
    size_t at = 0;
    for (int k = 0; k < g->n_ops; k++) {
        const int64_t axis = number_of(g->op[k], CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS);
        at += (size_t)snprintf(text + at, size - at, "%s%s", k ? "; " : "", op_name(g->op[k]));
        if (axis >= 0) at += (size_t)snprintf(text + at, size - at, "%lld", (long long)axis);
        for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
            const int64_t id = tensor_of(g->op[k], tensors[i].name);
            if (id >= 0)
                at += (size_t)snprintf(text + at, size - at, "%s %lld", tensors[i].result ? " >" : "", shown_id(id, inside, &n_inside));
        }
    }
}

/* Tensors: q 1, k 2, v 3, y 4, lse 5, dy 6, dq 7, dk 8, dv 9, <dy, y> 10, mask 11; numbers: scale 12, keep 13, share 14, unseen 15;
 * those inside from 100 on */
static void test_ops(const Shaped *c, Pass pass, const char *expected_text) {
    char text[2048];
    Asked q;
    Sdpa s;
    Graph g;
    Err e = {0, ""};
    n_noted = 0;
    noting = true;
    ask_attention(&q, c, pass);
    ok(sdpa_read(&q.args, &s) && !sdpa_graph(devices[CARDS - 1], &s, &g, &e), "%s, %s: a graph %s", c->name, passes[pass], e.text);
    noting = false;
    graph_text(&g, text, sizeof text);
    is_str(text, expected_text, "its ops, as they are told to cuDNN");
    graph_free(&g);
}

static const char *const forward_ops =
    "matmul 1 2 > 100; mul 100 12 > 101; index2 101 > 102; index3 101 > 103; ge 102 103 > 104; "
    "select 104 101 15 > 105; max 105 > 106; sub 105 106 > 107; exp 107 > 108; sum 108 > 109; log 109 > 110; "
    "add 106 110 > 5; div 108 109 > 111; matmul 111 3 > 4";
static const char *const gradient_ops =
    "mul 6 4 > 100; sum 100 > 101; mul 101 14 > 10; matmul 1 2 > 102; mul 102 12 > 103; sub 103 5 > 104; "
    "index2 104 > 105; index3 104 > 106; ge 105 106 > 107; select 107 104 15 > 108; exp 108 > 109; mul 109 11 > 110; "
    "mul 110 13 > 111; reshape 111 > 112; matmul 112 6 > 113; sum 113 > 9; matmul 6 3 > 114; mul 114 11 > 115; "
    "sub 115 10 > 116; mul 116 109 > 117; mul 117 13 > 118; mul 118 12 > 119; reshape 119 > 120; matmul 120 1 > 121; "
    "sum 121 > 8; reshape 2 > 122; matmul 119 122 > 7";
static const Shaped grouped = {"grouped, causal, dropout", 2, 4, 2, 17, 0, 8, 1, 1, 0.1f, DT_BF16};

/* ---- the order of sums */

/* The op's graph, but for dq, which is summed up in fp32 before it is rounded */
static int summed(const Sdpa *s, const Graph *g, Graph *out, Node factor[2]) {
    const Node last = g->op[g->n_ops - 1];
    int64_t n;
    memset(out, 0, sizeof *out);
    for (int k = 0; k < 2; k++) {
        const cudnnBackendAttributeName_t name = k ? CUDNN_ATTR_OPERATION_MATMUL_BDESC : CUDNN_ATTR_OPERATION_MATMUL_ADESC;
        if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &factor[k]) ||
            node_get(last, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &factor[k]))
            return ERR_DEVICE;
    }
    for (out->n_ops = 0; out->n_ops < g->n_ops - 1; out->n_ops++) out->op[out->n_ops] = g->op[out->n_ops];
    out->n_virtual = g->n_virtual;
    const SdpaTensor *dq = &s->at[SDPA_DQ];
    Node sums = graph_tensor_in_order(out, SDPA_IDS, DT_F32, dq->dim);
    graph_matmul(out, factor[0], factor[1], sums);
    graph_act(out, NULL, sums, graph_tensor_at(out, SDPA_DQ, s->type, dq->dim, dq->stride));
    return graph_finish(out, NULL, NULL);
}

/* cuDNN also has engines that need hardly any workspace, as blocks of keys add to dq one after the other, by atomics. Nothing that
 * it says of them tells so: hence memtide must not ask for that graph. */
static void test_sums(const Shaped *c, CudaDevice *device) {
    const unsigned any_order = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    Asked q;
    Sdpa s;
    Graph g, other = {.n_made = 0};
    Engines list = {NULL};
    Node factor[2] = {NULL, NULL};
    Err e = {0, ""};
    size_t least = SIZE_MAX;
    bool told = false;
    ask_attention(&q, c, GRADIENT);
    int code = sdpa_read(&q.args, &s) ? sdpa_graph(device, &s, &g, &e) : ERR_UNSUPPORTED;
    if (!code) code = summed(&s, &g, &other, factor);
    if (!code) code = engines_of(device, &other, &list, &e);
    for (int k = 0; k < list.n; k++) {
        if (list.at[k].workspace < least) least = list.at[k].workspace;
        told = told || list.at[k].notes & any_order;
    }
    ok(!code && list.n > 0, "%s: dq summed up in fp32 has engines, too %s", c->name, e.text);
    is_int((long long)least, 256, "which need hardly any workspace");
    ok(!told, "and none of which says that its sums have no order");
    engines_free(&list);
    graph_free(&other);
    for (int k = 0; k < 2; k++) node_free(&factor[k]);
    graph_free(&g);
}

/* ---- what is planned */

static int planned(const Asked *q, AttentionState **s, size_t *bytes, Err *e) {
    void *state = NULL;
    KernelPrepare *of = q->args.kind == OP_attention ? k_cuda_attention_prepare : k_cuda_attention_dx_prepare;
    int code = of(&q->args, LIMIT, &state, bytes, e);
    *s = state;
    return code;
}

/* Without a pick the plan is that of own kernels; else that of the engine, which cuDNN has by its name, too. */
static void test_planned(const Shaped *c, Pass pass, CudaDevice *device) {
    const int64_t own = pass == GRADIENT ? c->n * c->heads * c->queries * 4 : 0;
    AttentionState *s = NULL;
    Tuning *p;
    size_t bytes = 0;
    Asked q;
    Sdpa sdpa;
    Graph g;
    Engines list = {NULL};
    Err e = {0, ""};
    ask_attention(&q, c, pass);
    q.args.device = device;
    ok(!planned(&q, &s, &bytes, &e) && !s->cudnn, "%s, %s: planned by own kernels", c->name, passes[pass]);
    is_int((long long)bytes, own, "which need a number for each query of each head in the gradient");
    kernel_state_release(s);
    Pick pick = {.version = cudnnGetVersion(), .limit = LIMIT, .way = "cudnn"};
    snprintf(pick.device, sizeof pick.device, "%s", device->model.name);
    int code = attention_text(&q.args, pick.op, &e);
    if (!code) code = sdpa_read(&q.args, &sdpa) ? sdpa_graph(device, &sdpa, &g, &e) : ERR_UNSUPPORTED;
    if (!code) code = engines_of(device, &g, &list, &e);
    if (!code) code = tuning_of(device, &p, &e);
    for (int k = 0; k < list.n && !code; k++) {
        pick.engine = list.at[k].id;
        pick.workspace = sdpa_before(&sdpa) + list.at[k].workspace;
        code = tuned_set(&p->picks, &pick, &e);
        if (!code) code = planned(&q, &s, &bytes, &e);
        if (code) break;
        ok(s->cudnn && bytes == pick.workspace, "and by an engine that a pick names, with %zu bytes", pick.workspace);
        kernel_state_release(s);
        pick.workspace++;
        code = tuned_set(&p->picks, &pick, &e);
        if (!code) code = planned(&q, &s, &bytes, &e);
        if (code) break;
        ok(!s->cudnn, "not if it says other bytes");
        kernel_state_release(s);
    }
    ok(!code && list.n > 0, "%d engines %s", list.n, e.text);
    engines_free(&list);
    graph_free(&g);
}

int main(void) {
    bool good = true;
    if (!is_known("plans of attention")) return tap_done();
    if (!mkdtemp(test_folder)) return 1;
    setenv("XDG_CACHE_HOME", test_folder, 1);
    unsetenv("MEMTIDE_PICKS");
    for (int k = 0; k < CARDS && good; k++) good = (devices[k] = open_card(cards[k])) != NULL;
    if (good) {
        test_engines();
        for (int k = 0; k < CASES * PASSES; k++) test_places(&cases[k / PASSES], (Pass)(k % PASSES));
        test_ops(&cases[0], TRAINING, forward_ops);
        test_ops(&grouped, GRADIENT, gradient_ops);
        test_sums(&cases[0], devices[4]);
        for (int k = 0; k < PASSES; k++) {
            test_planned(&cases[0], (Pass)k, devices[4]);
            test_planned(&grouped, (Pass)k, devices[1]);
        }
    }
    for (int k = 0; k < CARDS; k++)
        if (devices[k]) cuda_release(devices[k]);
    remove_test_folder();
    return tap_done();
}
