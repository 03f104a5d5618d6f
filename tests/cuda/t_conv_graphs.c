/* The graphs that cuDNN gets for convolutions, in every way of every pass, without a GPU: each tensor has the place
 * and the type that it is read and written with, no two graphs share a plan's key, and a GPU that cannot run a graph
 * says why. */
#include "described.h"
#include "plan_cache.h"

enum { LIMIT = 4 << 20, ENGINE_BYTES = 1000, KEYS = 4096 };

static CudaDevice *device;

/* Beside what t_conv_ways runs: the article's first layer, others with few channels, and a number of channels that is
 * not one of whole 16-byte words. */
static const Case layers[] = {
    {2, 3, 16, 3, 10, 0}, {3, 16, 24, 3, 9, 1}, {64, 3, 64, 3, 32, 0}, {16, 3, 64, 7, 64, 3}, {64, 1, 16, 3, 28, 1},
    {64, 100, 100, 3, 16, 1},
};

/* ---- every op */

typedef void Check(const Conv *v, const char *name);

static void check_op(Check *check, const Asked *q, const char *name) {
    Conv v;
    Err e = {.text = ""};
    int code = conv_read(&q->args, (ConvPass)(q->args.kind - OP_conv2d), &v, &e);
    if (ok(code == OK, "%s is read", name)) check(&v, name);
}

static void each_op(Check *check) {
    static const char *const passes[] = {"y", "dx", "dw"}, *const extras[] = {"bare", "with act", "with all"};
    Asked q;
    char name[128];
    for (int p = 0; p < PRECISIONS; p++)
        for (int pass = 0; pass < 3; pass++) {
            for (size_t l = 0; l < ARRAY_LEN(layers); l++)
                for (int k = 0; k < 3; k++) {
                    snprintf(name, sizeof name, "%lld->%lld @%lld %s %s %s", (long long)layers[l].c,
                             (long long)layers[l].o, (long long)layers[l].size, precisions[p].name, passes[pass],
                             extras[k]);
                    ask(&q, device, &layers[l], &precisions[p], (ConvPass)pass, (Extras)k);
                    check_op(check, &q, name);
                }
            for (size_t k = 0; k < ARRAY_LEN(odd); k++) {
                snprintf(name, sizeof name, "%s %s %s", odd[k].name, precisions[p].name, passes[pass]);
                ask_odd(&q, device, &odd[k], &precisions[p], (ConvPass)pass);
                check_op(check, &q, name);
            }
        }
}

/* ---- places */

static const struct { cudnnDataType_t theirs; DType ours; } types[] = {
    {CUDNN_DATA_FLOAT, DT_F32}, {CUDNN_DATA_BFLOAT16, DT_BF16}, {CUDNN_DATA_HALF, DT_F16}};

/* A tensor as cuDNN has it. */
typedef struct Tensor { int64_t id; DType type; size_t bytes; bool inside, by_value; } Tensor;

/* false: the descriptor is not one of a tensor */
static bool read_tensor(Node d, Tensor *t) {
    cudnnDataType_t type = CUDNN_DATA_INT8;
    int64_t n, dim[4] = {0, 0, 0, 0};
    if (node_get(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &n, &t->id)) return false;
    cudnnStatus_t status = node_get(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &n, &type);
    if (!status) status = node_get(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, &n, dim);
    if (!status) status = node_get(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &n, &t->inside);
    if (!status) status = node_get(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &n, &t->by_value);
    t->type = DT_COUNT;
    for (size_t k = 0; k < ARRAY_LEN(types); k++)
        if (type == types[k].theirs) t->type = types[k].ours;
    if (status || t->type == DT_COUNT) ok(0, "cuDNN does not tell what tensor %lld is", (long long)t->id), exit(1);
    t->bytes = (size_t)(dim[0] * dim[1] * dim[2] * dim[3]) * dtype_size(t->type);
    return true;
}

/* Bytes from a place in the workspace to what comes after it. */
static size_t room_at(const ConvState *s, size_t at) {
    size_t end = s->library_at;
    for (int id = CONV_X; id <= CONV_B; id++)
        if (s->at[id] > at && s->at[id] < end) end = s->at[id];
    return end - at;
}

/* Operands and workspace lie far apart, at addresses that nothing is read from. */
static char *far_at(int k) { return (char *)((uintptr_t)(k + 1) << 40); }

/* What is wrong with the place that the graph's tensor is given, or "". */
static const char *trouble(const Conv *v, const ConvState *s, const Tensor *t, const char *data) {
    static char text[160];
    const View *views[] = {&v->x, &v->w, &v->y, &v->b, &v->s, &v->db};
    const char *workspace = far_at(9);
    text[0] = 0;
    for (size_t k = 0; k < ARRAY_LEN(views); k++) {
        if (data != views[k]->data) continue;
        size_t room = (size_t)views[k]->count * dtype_size(views[k]->dtype);
        if (t->bytes != room || t->type != views[k]->dtype)
            snprintf(text, sizeof text, "tensor %lld: %zu bytes of %s, the operand has %zu of %s", (long long)t->id,
                     t->bytes, dtype_name(t->type), room, dtype_name(views[k]->dtype));
        return text;
    }
    size_t at = (size_t)(data - workspace), room = data < workspace || at >= s->library_at ? 0 : room_at(s, at);
    if (align_up(t->bytes, CUDA_ALIGNMENT) != room)
        snprintf(text, sizeof text, "tensor %lld: %zu bytes of %s, its copy's place has %zu", (long long)t->id,
                 t->bytes, dtype_name(t->type), room);
    return text;
}

static void check_places(const Conv *op, const char *name) {
    Conv v = *op;
    View *views[] = {&v.x, &v.w, &v.y, &v.b, &v.s, &v.db};
    for (size_t k = 0; k < ARRAY_LEN(views); k++) views[k]->data = far_at((int)k);
    for (int k = 0; k < WAYS; k++) {
        const Way *way = &conv_ways[k];
        int64_t id[CONV_IDS];
        void *data[CONV_IDS];
        ConvState s;
        Graph g;
        Err e = {.text = ""};
        char problem[160] = "";
        int found = 0;
        if (!conv_can(&v, way->does)) continue;
        conv_place(&v, way->does, ENGINE_BYTES, LIMIT, &s);
        const int n = conv_tensors(&v, &s, far_at(9), id, data);
        if (conv_graph(device, &v, way->does, &g, &e)) snprintf(problem, sizeof problem, "%.150s", e.text);
        for (int i = 0; i < g.n_made; i++) {
            Tensor t;
            int at = 0;
            if (!read_tensor(g.made[i], &t) || t.inside) continue;
            while (at < n && id[at] != t.id) at++;
            found += at < n;
            const char *wrong = at == n ? "a tensor that nothing is given for" : t.by_value ? "" :
                trouble(&v, &s, &t, data[at]);
            if (!problem[0]) snprintf(problem, sizeof problem, "%s", wrong);
        }
        if (!problem[0] && found != n) snprintf(problem, sizeof problem, "%d tensors, %d are given", found, n);
        if (!problem[0] && s.workspace < s.library_at + ENGINE_BYTES) snprintf(problem, sizeof problem, "no room left");
        if (!ok(!problem[0], "%s, %s: every tensor has its place", name, way->name)) printf("# %s\n", problem);
        graph_free(&g);
    }
}

/* ---- keys */

static struct { PlanKey key; char op[PICK_OP]; const Way *way; } seen[KEYS];
static int n_seen, n_shared;

/* Of one engine; that keys tell engines apart is seen below. */
static void check_keys(const Conv *v, const char *name) {
    static const EngineId engine = {.engine = 1, .n_knobs = 1, .knob = {{24, 8}}};
    for (int k = 0; k < WAYS; k++) {
        const Way *way = &conv_ways[k];
        bool again = false;
        if (!conv_can(v, way->does)) continue;
        if (n_seen == KEYS) exit(2);
        plan_key(device, v->op, way->name, &engine, &seen[n_seen].key);
        for (int i = 0; i < n_seen && !again; i++) {
            if (strcmp(seen[i].key.file, seen[n_seen].key.file)) continue;
            again = !strcmp(seen[i].op, v->op) && seen[i].way == way;
            n_shared += !again;
            if (!again) printf("# %s: %s and %s share %s\n", name, seen[i].way->name, way->name, seen[i].key.file);
        }
        if (again) continue;
        snprintf(seen[n_seen].op, sizeof seen[n_seen].op, "%s", v->op);
        seen[n_seen++].way = way;
    }
}

static void test_keys(void) {
    static const EngineId one = {.engine = 1}, two = {.engine = 2};
    static const EngineId knob = {.engine = 1, .n_knobs = 1, .knob = {{2, 7}}};
    CudaDevice other = *device;
    Asked q;
    Conv v, w;
    Err e;
    PlanKey a, b;
    each_op(check_keys);
    printf("# %d graphs\n", n_seen);
    ok(n_seen > 500, "there are graphs to tell apart");
    is_int(n_shared, 0, "no two ways share the key of a plan");
    snprintf(other.model.name, sizeof other.model.name, "another GPU");
    plan_key(device, "op", "act", &one, &a);
    const struct { const char *what; CudaDevice *device; const char *op, *way; const EngineId *engine; } all[] = {
        {"device", &other, "op", "act", &one}, {"op", device, "other op", "act", &one},
        {"way", device, "op", "act+sum", &one}, {"engine", device, "op", "act", &two},
        {"knob", device, "op", "act", &knob}};
    for (size_t k = 0; k < ARRAY_LEN(all); k++) {
        plan_key(all[k].device, all[k].op, all[k].way, all[k].engine, &b);
        ok(strcmp(a.text, b.text) && strcmp(a.file, b.file), "another %s has another key", all[k].what);
    }
    ask(&q, device, &layers[1], &precisions[0], CONV_FORWARD, WITH_ACT);
    q.attr.conv.fused = (ActAttr){.act = ACT_LEAKY, .slope = 0.1f};
    is_int(conv_read(&q.args, CONV_FORWARD, &v, &e), OK, "a leaky ReLU");
    q.attr.conv.fused.slope = 0.10000001f;
    ok(!conv_read(&q.args, CONV_FORWARD, &w, &e) && strcmp(v.op, w.op), "the next slope is another op");
}

/* ---- a GPU without bf16 */

/* A T4 runs fp32 (also where TF32 is allowed, which it has not) and fp16. Passes in bf16 that cuDNN refuses say why. */
static void test_without_bf16(void) {
    CudaDevice *old = described(&t4);
    int refused = 0;
    if (!old) return;
    for (int p = 0; p < PRECISIONS; p++)
        for (int pass = 0; pass < 3; pass++) {
            const bool bf16 = precisions[p].type == DT_BF16;
            Asked q;
            ConvState *s = NULL;
            size_t bytes = 0;
            Err e = {.text = ""};
            ask(&q, old, &layers[2], &precisions[p], (ConvPass)pass, WITH_ACT);
            int code = prepare(&q, LIMIT, &s, &bytes, &e);
            refused += code != OK;
            ok(code == OK || (bf16 && code == ERR_UNSUPPORTED), "%s, pass %d: %s", precisions[p].name, pass, e.text);
            if (code)
                has_text(e.text, "convolutions in bf16 want compute capability 8.0 or later, Tesla T4 has 7.5: cuDNN",
                         "it is told why");
            conv_release(s);
        }
    ok(refused > 0, "cuDNN has no engine for %d of them", refused);
    cuda_release(old);
}

int main(void) {
    device = described(&h200);
    if (!device) return tap_done();
    each_op(check_places);
    test_keys();
    test_without_bf16();
    cuda_release(device);
    remove_test_folder();
    return tap_done();
}
