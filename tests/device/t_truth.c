/* predicted == measured, to the byte, in every combination of settings; the limit is exact; all memory is freed. On the
 * CPU, or on the device that TEST_DEVICE names. */
#include "base/mem.h"
#include "unit/nets.h"
#include "tap.h"
#include "truth.h"

static Device *device;

#define CE "CrossEntropyLoss"
/* block: of Adam's states of 8 bits, 0: they are fp32; chunks: of the loss, 0: 1 */
static const struct { const char *what, *text; const char *loss; Shape input; int block, chunks; } others[] = {
    {"that normalises", NET_NORMS, CE, {4, {3, 3, 12, 12}}, 0, 0}, {"of lines", NET_LINES, CE, {3, {3, 3, 16, 1}}, 0, 0},
    {"of patches", NET_PATCHES, CE, {4, {3, 3, 12, 12}}, 0, 0},
    {"that reads indices", NET_WORDS, CE, {2, {2, 6, 1, 1}}, 0, 0},
    {"for sequences", NET_SEQUENCE, CE, {3, {3, 5, 6, 1}}, 0, 0},
    {"for two sequences", NET_CROSS, CE, {3, {3, 5, 6, 1}}, 0, 0}, {"like LLaMA", NET_LLAMA, CE, {3, {3, 5, 6, 1}}, 0, 0},
    {"of tensor operations", NET_OWN, CE, {3, {3, 5, 6, 1}}, 0, 0},
    {"of several outputs", NET_HEADS, LOSS_HEADS, {4, {3, 3, 12, 12}}, 0, 0},
    {"with states of 8 bits", NET_ARTICLE, CE, {4, {3, 3, 32, 32}}, 256, 0},
    {"with its loss in parts", NET_VOCABULARY("Linear(8, 40)"), CE, {2, {3, 6, 1, 1}}, 0, 3},
    {"with a frozen head", NET_VOCABULARY("Linear(8, 40, bias=false)!"), CE, {2, {3, 6, 1, 1}}, 0, 3},
    {"with a tied head", NET_TIED, CE "(ignore_index=3, lse_square_scale=0.01)", {2, {3, 6, 1, 1}}, 0, 2},
    {"whose loss has one part", NET_VOCABULARY("Linear(8, 40)"), CE, {2, {3, 6, 1, 1}}, 0, 0},
};

/* Every combination, or every `step`-th; losses do not depend on checkpointing, offloading, in-place or the
 * allocator by a bit. */
static void combinations(const Network *net, int step, int block, int chunks) {
    for (int precision = 0; precision < PREC_COUNT; precision++)
        for (int accumulate = 1; accumulate <= 3; accumulate += 2) {
            float first[2] = {0, 0};
            bool have = false;
            for (int i = 0; i < CHECKPOINT_BUDGET * 3 * ALLOC_COUNT; i += step) {
                Settings s = settings_default();
                char what[160];
                float loss[2];
                Err e = {0, ""};
                s.precision = (Precision)precision;
                s.optimizer.rule.block_size = block;
                s.accumulate = accumulate;
                s.loss_chunks = chunks ? chunks : 1;
                s.checkpoint = (Checkpoint)(i % CHECKPOINT_BUDGET);
                s.inplace = (Inplace)(i / CHECKPOINT_BUDGET % 3);
                s.allocator = (AllocKind)(i / CHECKPOINT_BUDGET / 3);
                s.offload = i / step % 2 ? OFFLOAD_ALL : OFFLOAD_NONE;
                s.offload_least = 0;
                s.recompute_light = i / step % 3 != 1;
                s.recompute_least = 0;
                truth_describe(what, sizeof what, &s);
                int code = truth_check(device, net, &s, i % 5 == 0, loss, &e);
                if (!ok(code == OK, "%s", what)) printf("# %s\n", e.text);
                if (have && memcmp(first, loss, sizeof first) != 0)
                    ok(0, "%s: losses %.9g %.9g, without it %.9g %.9g", what, (double)loss[0], (double)loss[1],
                       (double)first[0], (double)first[1]);
                if (!have) memcpy(first, loss, sizeof first);
                have = true;
            }
        }
}

static void evaluation(const Network *net, int chunks) {
    for (int precision = 0; precision < PREC_COUNT; precision++)
        for (int a = 0; a < ALLOC_COUNT; a++) {
            Settings s = settings_default();
            char what[160];
            float loss[2];
            Err e = {0, ""};
            s.precision = (Precision)precision;
            s.allocator = (AllocKind)a;
            s.eval = true;
            s.loss_chunks = chunks ? chunks : 1;
            truth_describe(what, sizeof what, &s);
            int code = truth_check(device, net, &s, true, loss, &e);
            if (!ok(code == OK, "%s", what)) printf("# %s\n", e.text);
            ok(loss[0] == loss[0] && loss[1] == loss[1], "%s: losses are numbers", what);
        }
}

/* Nothing can be dropped in evaluation, so a budget is met or refused to the byte. */
static void evaluation_budget(const Network *net) {
    Settings s = settings_default();
    Program *p = NULL;
    Prediction need;
    Err e = {0, ""};
    s.eval = true;
    int code = compile(net, &s, device, NULL, NULL, &p, &e);
    if (!code) code = predict(&(Job){net, p}, 1, ALLOC_PLANNED, device, 0, &(Call){0, PART_WHOLE}, 1, 1, &need, &e);
    program_free(p);
    s.checkpoint = CHECKPOINT_BUDGET;
    for (int less = 0; less < 2 && !code; less++) {
        p = NULL;
        s.budget = need.peak.held - (size_t)less;
        int found = compile(net, &s, device, NULL, NULL, &p, &e);
        is_int(found, less ? ERR_OOM : OK,
               less ? "evaluation, a byte below its need" : "evaluation, a budget of what it needs");
        program_free(p);
    }
    if (code) ok(0, "%s", e.text);
}

/* Bytes of activations at the peak of a step over sequences of that length. */
static size_t sequence_bytes(const char *net, int64_t steps, Err *e) {
    Settings s = settings_default();
    Program *p = NULL;
    Prediction found;
    Network *n = net_new(net, "CrossEntropyLoss", shape3(2, steps, 8), e);
    int code = n ? compile(n, &s, device, NULL, NULL, &p, e) : e->code;
    if (!code) code = predict(&(Job){n, p}, 1, ALLOC_DIRECT, device, 0, &(Call){0, PART_WHOLE}, 1, 1, &found, e);
    program_free(p);
    network_free(n);
    return code ? 0 : found.peak.category[CAT_ACTIVATIONS];
}

/* No matrix of scores is kept: twice the steps, twice the activations (and what does not grow). */
static void attention_is_linear(void) {
    Err e = {0, ""};
    const char *net = "Sequential{CausalSelfAttention(8, 2) MultiheadAttention(8, 2, batch_first=true)"
                      " Graph{Tanh MultiheadAttention(8, 2, batch_first=true)<-1,0,0>} Select(1, -1) Linear(8, 10)}";
    size_t at[3];
    for (int i = 0; i < 3; i++) at[i] = sequence_bytes(net, 128 << i, &e);
    ok(at[0] > 0 && at[2] - at[1] == 2 * (at[1] - at[0]) && at[1] <= 2 * at[0],
       "attention's activations grow with the steps: %zu, %zu, %zu bytes %s", at[0], at[1], at[2], e.text);
}

/* A NaN in a weight reaches the loss, whatever activation is fused after it. */
static void nan_shows(void) {
    static const char *const acts[] = {"ReLU", "LeakyReLU", "Sigmoid", "Tanh", "GELU"};
    static const Precision precisions[] = {PREC_FP32, PREC_AMP_BF16, PREC_BF16, PREC_FP16};
    for (size_t i = 0; i < ARRAY_LEN(acts) * ARRAY_LEN(precisions); i++) {
        const char *act = acts[i % ARRAY_LEN(acts)];
        Settings s = settings_default();
        char text[128];
        Err e = {0, ""};
        Program *p = NULL;
        Runtime *r = NULL;
        StepResult step = {0};
        float w[8 * 27] = {0};
        w[5] = NAN;
        s.precision = precisions[i / ARRAY_LEN(acts)];
        snprintf(text, sizeof text, "Sequential{Conv2d(3, 8, 3) %s Flatten Linear(800, 20) %s Linear(20, 10)}", act,
                 act);
        Network *net = net_new(text, "CrossEntropyLoss", shape4(2, 3, 12, 12), &e);
        int code = net ? compile(net, &s, device, NULL, NULL, &p, &e) : e.code;
        if (!code) code = runtime_open(device, ALLOC_PLANNED, 0, &(Job){net, p}, 1, 1, 0, &r, &e);
        if (!code) code = runtime_write(r, "0.weight", w, &e);
        if (!code) code = runtime_step(r, 0, net_feed, p, &step, &e);
        if (!ok(!code && isnan(step.loss), "%s in %s lets a NaN through", act, precision_info(s.precision)->text))
            printf("# loss %g %s\n", (double)step.loss, e.text);
        runtime_close(r);
        program_free(p);
        network_free(net);
    }
}

/* Every device allocation fails once in turn: a clean error, and the ledger at zero. */
static void device_failures(const Network *net) {
    for (int a = 0; a < ALLOC_COUNT; a++) {
        Settings s = settings_default();
        Program *p = NULL;
        Err e = {0, ""};
        s.allocator = (AllocKind)a;
        s.accumulate = 2;
        s.checkpoint = CHECKPOINT_ALL;
        if (compile(net, &s, device, NULL, NULL, &p, &e)) {
            ok(0, "compile: %s", e.text);
            continue;
        }
        size_t n = 1;
        bool clean = true;
        for (; n < 10000; n++) {
            Outcome o = truth_run(device, net, p, s.allocator, 0, n);
            if (o.code == OK) break;
            if (o.code != ERR_OOM) clean = false;
            if (o.code != ERR_OOM) printf("# request %zu: %s\n", n, o.err.text);
        }
        ok(clean && n < 10000, "%s: each of %zu device requests fails cleanly", alloc_name(s.allocator), n - 1);
        program_free(p);
    }
}

/* Every host allocation of compile, predict and run fails once in turn. */
static int whole(Err *e) {
    Program *p = NULL;
    Settings s = settings_default();
    Prediction guess;
    s.checkpoint = CHECKPOINT_SQRT;
    s.offload = OFFLOAD_ALL;
    s.offload_least = 0;
    s.accumulate = 2;
    s.precision = PREC_AMP_FP16;
    Network *net = net_new(NET_MIXED, "CrossEntropyLoss", shape4(2, 3, 12, 12), e);
    int code = net ? OK : e->code;
    if (!code) code = compile(net, &s, device, NULL, NULL, &p, e);
    if (!code) code = predict(&(Job){net, p}, 1, ALLOC_CACHING, device, 0, &(Call){0, PART_WHOLE}, 1, 1, &guess, e);
    if (!code) {
        Outcome o = truth_run(device, net, p, ALLOC_CACHING, 0, 0);
        code = o.code ? err_set(e, o.code, "%s", o.err.text) : OK;
    }
    program_free(p);
    network_free(net);
    return code;
}

static void host_failures(void) {
    Err e = {0, ""};
    ok(whole(&e) == OK, "the whole path runs");
    device->table->trim(device, true);
    long before = mem_live(), n = 1, odd = 0;
    for (; n < 100000; n++) {
        memset(&e, 0, sizeof e);
        mem_fail_after(n);
        int code = whole(&e);
        mem_fail_after(0);
        device->table->trim(device, true);
        if (code == OK) break;
        if (code != ERR_HOST_MEMORY && odd++ < 5) printf("# allocation %ld: %s: %s\n", n, err_name(code), e.text);
    }
    ok(odd == 0, "each of %ld host allocations fails with HOST_MEMORY", n - 1);
    is_int(mem_live(), before, "and nothing stays behind");
}

int main(void) {
    Err e = {0, ""};
    const char *name = getenv("TEST_DEVICE");
    if (device_open(name ? name : "cpu", &device, &e)) {
        ok(0, "%s", e.text);
        return tap_done();
    }
    Network *net = net_new(NET_MIXED, "CrossEntropyLoss", shape4(3, 3, 12, 12), &e);
    if (ok(net != NULL, "the network builds")) {
        combinations(net, 2, 0, 0);
        evaluation(net, 0);
        device_failures(net);
        evaluation_budget(net);
    }
    network_free(net);
    net = net_new(NET_BRANCHES, "CrossEntropyLoss", shape4(3, 3, 12, 12), &e);
    if (ok(net != NULL, "a network that branches builds")) combinations(net, 2, 0, 0);
    network_free(net);
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        net = net_new(others[i].text, others[i].loss, others[i].input, &e);
        if (ok(net != NULL, "a network %s builds", others[i].what)) {
            combinations(net, 7, others[i].block, others[i].chunks);
            evaluation(net, others[i].chunks);
        }
        network_free(net);
    }
    attention_is_linear();
    nan_shows();
    host_failures();
    device_close(device);
    is_int(mem_live(), 0, "all host memory is given back");
    return tap_done();
}
