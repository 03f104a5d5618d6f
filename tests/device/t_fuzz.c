/* Random small networks under random settings: each either is refused with a reason, or compiles, runs, and needs
 * exactly the bytes that were predicted. FUZZ=n sets how many (make fuzz: many); SEED=n starts elsewhere. */
#include <stdlib.h>

#include "base/mem.h"
#include "math/rng.h"
#include "reference/reference.h"
#include "tap.h"
#include "truth.h"

static uint64_t seed = 1, draws;

static int below(int n) { return (int)(philox(seed, RNG_DATA, 77, 0, draws++).x[0] % (uint32_t)n); }

typedef struct Net { char text[16384]; int n, c, h, w; } Net; /* c, h, w: what flows out so far */

__attribute__((format(printf, 2, 3))) static void put(Net *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    t->n += vsnprintf(t->text + t->n, sizeof t->text - (size_t)t->n, format, args);
    va_end(args);
    if (t->n >= (int)sizeof t->text) {
        puts("Bail out! a network's text is too long");
        exit(1);
    }
}

static void conv(Net *t, bool keep_shape) {
    int k = 1 + below(3), groups = t->c % 2 == 0 && below(3) == 0 ? 2 : 1;
    int out = keep_shape ? t->c : groups * (1 + below(6));
    if (keep_shape) {
        put(t, "Conv2d(%d, %d, %d, padding=same, groups=%d, bias=%s)%s ", t->c, out, k, groups,
            below(2) ? "true" : "false", below(6) ? "" : "!");
        for (; below(4) == 0;) put(t, "Again ");
        return;
    }
    int stride = 1 + below(2), pad = below(k);
    if (t->h + 2 * pad < k || t->w + 2 * pad < k) return;
    put(t, "Conv2d(%d, %d, %d, stride=%d, padding=%d, groups=%d)%s ", t->c, out, k, stride, pad, groups,
        below(6) ? "" : "!");
    t->c = out;
    t->h = (t->h + 2 * pad - k) / stride + 1;
    t->w = (t->w + 2 * pad - k) / stride + 1;
}

static void activation(Net *t) {
    static const char *const all[] = {
        "ReLU6", "Hardtanh(-0.5, 2)", "Hardtanh(inplace=true)", "Hardsigmoid(inplace=true)", "Mish", "LogSigmoid",
        "Softsign", "ReLU", "ReLU(inplace=true)", "LeakyReLU(0.1, inplace=true)", "LeakyReLU", "Sigmoid", "Tanh",
        "SELU(inplace=true)", "Abs", "Scale(-0.5)", "Scale(2, -1)", "GELU",
        "GELU(tanh)", "Dropout(0.3)", "Dropout(0.5, inplace=true)", "Dropout(0)", "StochasticDepth(0.3, row)",
        "StochasticDepth(0.2, batch)"};
    put(t, "%s ", all[below((int)ARRAY_LEN(all))]);
}

/* Layers over (N, H, W, C), which lies in PyTorch's order */
static void pixels(Net *t) {
    static const char *const plain[] = {"Softmax(-1)", "LogSoftmax(1)", "Roll(1, 1)"}, *const norms[] = {"RMSNorm", "LayerNorm"};
    put(t, "Permute(0:2:3:1) ");
    for (int i = below(4); i >= 0; i--)
        switch (below(4)) {
        case 0: put(t, "%s(%d) ", norms[below((int)ARRAY_LEN(norms))], t->c); break;
        case 1: put(t, "Linear(%d, %d) ", t->c, t->c); break;
        case 2: put(t, "%s ", plain[below((int)ARRAY_LEN(plain))]); break;
        default: activation(t);
        }
    put(t, "Permute(0:3:1:2) ");
}

/* A layer that keeps the shape and has parameters, statistics or options */
static void normalisation(Net *t) {
    static const char *const more[] = {"", ", affine=false", ", momentum=none", ", track_running_stats=false"};
    static const char *const plain[] =
        {"SiLU(inplace=true)", "ELU(0.7)", "CELU(0.7)", "Softplus", "Hardswish", "PReLU", "Softmax(1)",
                                        "LogSoftmax(-1)", "Dropout2d(0.3)", "Dropout2d(0.3, inplace=true)", "Roll(1, 1)",
                                        "Roll(-3, 2)"};
    switch (below(8)) {
    case 5: pixels(t); break;
    case 4: put(t, "Conv2d(%d, %d, 1) GLU(1) ", t->c, 2 * t->c); break;
    case 0: put(t, "BatchNorm2d(%d%s)%s ", t->c, more[below((int)ARRAY_LEN(more))], below(6) ? "" : "!"); break;
    case 3: put(t, "InstanceNorm2d(%d%s) ", t->c, below(2) ? "" : ", affine=true"); break;
    case 1: put(t, "GroupNorm(%d, %d%s) ", below(2) ? t->c : 1, t->c, more[below(2)]); break;
    case 2: put(t, "PReLU(%d)%s ", t->c, below(6) ? "" : "!"); break;
    default: put(t, "%s ", plain[below((int)ARRAY_LEN(plain))]);
    }
}

/* A larger image. */
static void enlarge(Net *t) {
    int out = 1 + below(5), k = 1 + below(3), stride = 1 + below(2);
    if (t->h > 12 || t->w > 12) return;
    if (below(2)) {
        put(t, "Upsample(%dx%d, mode=%s) ", t->h + below(5), t->w + k, below(2) ? "nearest" : "bilinear");
        sscanf(strrchr(t->text, '(') + 1, "%dx%d", &t->h, &t->w);
        return;
    }
    put(t, "ConvTranspose2d(%d, %d, %d, stride=%d, bias=%s)%s ", t->c, out, k, stride, below(2) ? "true" : "false",
        below(6) ? "" : "!");
    t->c = out;
    t->h = (t->h - 1) * stride + k;
    t->w = (t->w - 1) * stride + k;
}

static void pool(Net *t) {
    static const char *const all[] = {"MaxPool2d", "AvgPool2d"};
    if (t->h < 2 || t->w < 2) return;
    if (below(4) == 0) {
        t->h = 1 + below(t->h);
        t->w = 1 + below(t->w);
        put(t, "AdaptiveAvgPool2d(%dx%d) ", t->h, t->w);
        return;
    }
    put(t, "%s(2) ", all[below(2)]);
    t->h /= 2;
    t->w /= 2;
}

static void layers(Net *t, int n, int depth, bool keep_shape);

/* Branches of one shape, which are summed, multiplied or concatenated; then perhaps a part is taken. */
static void branches(Net *t, int n, int depth, bool keep_shape) {
    static const char *const joins[] = {"Add", "Mul", "Concat", "Concat(2)", "Concat(3)"};
    int join = below(keep_shape ? 2 : (int)ARRAY_LEN(joins));
    put(t, "%s{", joins[join]);
    for (int i = 0; i < n; i++) {
        put(t, below(4) ? "Sequential{" : "Sequential{Identity ");
        layers(t, below(3), depth, true);
        put(t, "} ");
    }
    put(t, "} ");
    if (join < 2) return;
    int *size = join == 2 ? &t->c : join == 3 ? &t->h : &t->w, part = 1 + below(*size * n);
    *size *= n;
    if (below(2)) return;
    put(t, "Narrow(%d, %d, %d) ", join - 1, below(*size - part + 1), part);
    *size = part;
}

static void layers(Net *t, int n, int depth, bool keep_shape) {
    for (int i = 0; i < n; i++) {
        int what = below(keep_shape ? 7 : 10);
        if (what < 2) conv(t, keep_shape);
        else if (what == 4 && depth && below(2)) branches(t, 2 + below(3), depth - 1, keep_shape);
        else if (what < 4 || depth == 0) activation(t);
        else if (what == 4) {
            put(t, "Residual{Sequential{");
            layers(t, 1 + below(3), depth - 1, true);
            put(t, "}} ");
        } else if (what == 5) {
            put(t, "Checkpoint{Sequential{");
            layers(t, 1 + below(4), depth - 1, keep_shape);
            put(t, "}} ");
        } else if (what == 6) normalisation(t);
        else if (what == 7) enlarge(t);
        else pool(t);
    }
}

/* The same as (N, C, L): t->h channels, t->c pixels. */
static void line(Net *t) {
    int k = 1 + below(3), out = 1 + below(5), stride = 1 + below(2), what = below(7);
    if (what == 0) put(t, "Conv1d(%d, %d, %d, padding=same, dilation=%d) ", t->h, out, k, 1 + below(2));
    else if (what == 1 && t->c >= k) put(t, "Conv1d(%d, %d, %d, %d) ", t->h, out, k, stride);
    else if (what == 2) put(t, "ConvTranspose1d(%d, %d, %d, %d) ", t->h, out, k, stride);
    else if (what == 3 && t->c >= k) put(t, "%s(%d, %d) ", below(2) ? "MaxPool1d" : "AvgPool1d", k, stride);
    else if (what == 4) put(t, "AdaptiveAvgPool1d(%d) ", out);
    else if (what == 5) put(t, below(2) ? "BatchNorm1d(%d) " : below(2) ? "PReLU(%d) " : "InstanceNorm1d(%d) ", t->h);
    else if (what == 6) put(t, "Concat{Conv1d(%d, %d, 1) Identity} ", t->h, out);
    else return;
    if (what == 1 || what == 3) t->c = (t->c - k) / stride + 1;
    if (what == 2) t->c = (t->c - 1) * stride + k;
    if (what == 4) t->c = out;
    if (what < 3) t->h = out;
    if (what == 6) t->h += out;
}

/* Layers over (N, T, F), F = t->c; time is dimension 1 but for the recurrent layers that take the batch for it. */
static void sequence(Net *t, int n) {
    static const char *const cells[] = {"RNN", "LSTM", "GRU"};
    for (int i = 0; i < n; i++) {
        int what = below(10), heads = t->c % 2 ? 1 : 2, hidden = 1 + below(6), both = below(3) == 0;
        const char *first = below(3) ? "true" : "false";
        if (what < 2) {
            put(t, "%s(%d, %d, num_layers=%d, bias=%s, batch_first=%s, dropout=0.%d, bidirectional=%s) ",
                cells[below(3)], t->c, hidden, 1 + below(3), below(2) ? "true" : "false", first, below(4),
                both ? "true" : "false");
            t->c = hidden * (1 + both);
        } else if (what == 2) {
            put(t, "Residual{CausalSelfAttention(%d, %d, dropout=0.%d)} ", t->c, heads, below(3));
        } else if (what == 3) {
            put(t, "MultiheadAttention(%d, %d, batch_first=%s, is_causal=%s) ", t->c, heads, first,
                below(2) ? "true" : "false");
        } else if (what == 4) {
            put(t, "Graph{Tanh MultiheadAttention(%d, %d, batch_first=%s, dropout=0.%d)<%d,%d,%d>} ", t->c, heads,
                first, below(3), below(2) - 1, below(2) - 1, below(2) - 1);
        } else if (what == 5) {
            put(t, "Graph{Narrow(1, 0, %d) Linear(%d, %d) MultiheadAttention(%d, %d, kdim=%d, batch_first=true,"
                " is_causal=%s)<-1,1,0>} ", 1 + below((int)t->h), t->c, hidden, t->c, heads, hidden,
                below(2) ? "true" : "false");
        } else if (what == 6) {
            line(t);
        } else if (what == 7) {
            put(t, "Linear(%d, %d) RotaryPositionalEmbeddings(%d, interleaved=%s) ", t->c, 4 * hidden, 2 * hidden,
                first);
            t->c = 4 * hidden;
        } else if (what == 8) {
            put(t, "Graph{Linear(%d, %d) Linear(%d, %d)<-1> Tanh<1> ScaledDotProductAttention(num_heads=4,"
                " enable_gqa=true, dropout_p=0.%d, is_causal=%s)<0,1,2>} ", t->c, 4 * hidden, t->c, heads * hidden,
                below(3), first);
            t->c = 4 * hidden;
        } else {
            put(t, "Checkpoint{Sequential{RMSNorm(%d) Linear(%d, %d)}} ", t->c, t->c, hidden);
            t->c = hidden;
            activation(t);
        }
    }
}

static void sequence_network(Net *t, Shape *input) {
    *t = (Net){.c = 1 + below(6), .h = 1 + below(9), .w = 1};
    *input = shape3(1 + below(4), t->h, t->c);
    put(t, "Sequential{");
    sequence(t, 1 + below(5));
    if (below(2)) put(t, "Select(1, -1) Linear(%d, 10)}", t->c);
    else put(t, "Flatten Linear(%d, 10)}", t->c * t->h);
}

static void network(Net *t, Shape *input) {
    if (below(4) == 0) {
        sequence_network(t, input);
        return;
    }
    *t = (Net){.c = 1 + below(4), .h = 3 + below(9), .w = 3 + below(9)};
    *input = shape4(1 + below(4), t->c, t->h, t->w);
    put(t, "Sequential{");
    layers(t, 1 + below(7), 2, false);
    put(t, "Flatten ");
    int features = t->c * t->h * t->w;
    if (below(2)) {
        put(t, "Linear(%d, %d) ", features, 5 + below(20));
        sscanf(strrchr(t->text, ',') + 1, "%d", &features);
        activation(t);
    }
    put(t, "Linear(%d, 10)}", features);
}

/* A network for images with a head in the middle and one at the end, and a penalty on their shared output */
static void heads(Net *t, Shape *input) {
    *t = (Net){.c = 1 + below(4), .h = 3 + below(9), .w = 3 + below(9)};
    *input = shape4(2 + below(3), t->c, t->h, t->w);
    put(t, "Graph{Sequential{Identity ");
    layers(t, below(4), 1, false);
    put(t, "} Sequential{AdaptiveAvgPool2d(2x1) Flatten Linear(%d, 10)} Sequential{Identity ", 2 * t->c);
    layers(t, below(4), 1, false);
    put(t, "}<0> Sequential{Flatten Linear(%d, 10)} Add<1,3>}^3,1,4>", t->c * t->h * t->w);
}

static Settings settings(void) {
    Settings s = settings_default();
    s.precision = (Precision)below(PREC_COUNT);
    s.accumulate = 1 + below(3);
    s.checkpoint = (Checkpoint)below(CHECKPOINT_BUDGET + 1);
    s.inplace = (Inplace)below(3);
    s.allocator = (AllocKind)below(ALLOC_COUNT);
    s.eval = below(6) == 0;
    s.workspace_limit = below(3) ? (size_t)4 << 20 : (size_t)below(100000);
    s.optimizer.kind = (OptimKind)below(OPTIM_COUNT);
    if (s.optimizer.kind == OPTIM_Rule) (void)formula_read(&s.optimizer.formula, REF_FORMULA, &(Err){0, ""});
    s.optimizer.rule.momentum = below(2) ? 0.9f : 0.0f;
    s.optimizer.rule.alpha = 0.9f;
    s.optimizer.rule.d = 1;
    const OptimKind base = optimizer_base(s.optimizer.kind);
    if (base == OPTIM_Adam8bit || base == OPTIM_AdamW8bit) s.optimizer.rule.block_size = 1 << below(9);
    s.optimizer.rule.centered = below(2);
    s.optimizer.rule.amsgrad = below(2);
    s.keep_output = below(4) == 0;
    s.keep_gradients = below(4) == 0;
    s.offload = below(3) ? OFFLOAD_NONE : OFFLOAD_ALL;
    s.offload_least = (size_t)below(200);
    s.recompute_light = below(2);
    s.recompute_least = (size_t)below(200);
    s.page_least = below(200);
    s.scaler.enabled = (Ternary)below(3);
    return s;
}

/* A budget between the least and the most that the program may need. */
static int set_budget(Device *cpu, const Network *net, Settings *s, Err *e) {
    Program *p = NULL;
    Prediction most;
    if (s->checkpoint != CHECKPOINT_BUDGET) return OK;
    s->checkpoint = CHECKPOINT_NONE;
    int code = compile(net, s, cpu, NULL, NULL, &p, e);
    if (!code) code = predict(&(Job){net, p}, 1, ALLOC_PLANNED, cpu, 0, &(Call){0, PART_WHOLE}, 1, 1, &most, e);
    program_free(p);
    s->checkpoint = CHECKPOINT_BUDGET;
    s->budget = code ? 1 : most.peak.held - (size_t)below((int)(most.peak.held / 4));
    return code;
}

/* Offloaded activations and paged states come back unchanged. */
static int check_host(Device *cpu, const Network *net, Settings s, const float *loss, Err *e) {
    float kept[2];
    if (s.offload == OFFLOAD_NONE && !optimizer_is_paged(s.optimizer.kind)) return OK;
    s.offload = OFFLOAD_NONE;
    s.optimizer.kind = optimizer_base(s.optimizer.kind);
    int code = truth_check(cpu, net, &s, false, kept, e);
    if (code || memcmp(kept, loss, sizeof kept) == 0) return code;
    return err_set(e, ERR_INTERNAL, "losses %.9g %.9g, kept on the device %.9g %.9g", (double)loss[0], (double)loss[1],
                   (double)kept[0], (double)kept[1]);
}

static bool one(Device *cpu, int i, int *refused) {
    static const char *const losses[] = {"CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss(pos_weight=2)", "BCEWithLogitsLoss(pos_weight=1:2:0.5:3:1:0.25:1:2:0.75:1)",
                                         "SmoothL1Loss", "L1Loss", "NLLLoss",
                                         "CrossEntropyLoss(weight=1:2:0.5:3:1:0.25:1:2:0.75:1)", "HuberLoss(sum)"};
    Net text;
    Shape input;
    Err e = {0, ""};
    float loss[2];
    char what[160], terms[256];
    const char *term = losses[below((int)ARRAY_LEN(losses))];
    bool several = below(5) == 0;
    snprintf(terms, sizeof terms, several ? "%s 0.3*%s 0.01*IdentityLoss" : "%s", term, term);
    if (several) heads(&text, &input);
    else network(&text, &input);
    Settings s = settings();
    Network *net = net_new(text.text, terms, input, &e);
    int code = net ? set_budget(cpu, net, &s, &e) : e.code;
    if (!code) code = truth_check(cpu, net, &s, below(4) == 0, loss, &e);
    if (!code) code = check_host(cpu, net, s, loss, &e);
    if (!code && s.checkpoint == CHECKPOINT_BUDGET && s.allocator == ALLOC_PLANNED && !s.eval) {
        Program *p = NULL;
        Prediction found;
        code = compile(net, &s, cpu, NULL, NULL, &p, &e);
        if (!code) code = predict(&(Job){net, p}, 1, ALLOC_PLANNED, cpu, 0, &(Call){0, PART_WHOLE}, 1, 1, &found, &e);
        if (!code && found.peak.held > s.budget)
            code = err_set(&e, ERR_INTERNAL, "budget %zu, peak %zu", s.budget, found.peak.held);
        program_free(p);
    }
    bool out_of_budget = code == ERR_OOM && s.checkpoint == CHECKPOINT_BUDGET;
    bool good = !code || code == ERR_SCRIPT || out_of_budget;
    *refused += good && code;
    truth_describe(what, sizeof what, &s);
    if (!good) printf("# network %d: %s\n# %s\n# %s\n", i, text.text, what, e.text);
    network_free(net);
    return good;
}

int main(void) {
    Device *cpu;
    Err e = {0, ""};
    int n = getenv("FUZZ") ? atoi(getenv("FUZZ")) : 300, bad = 0, refused = 0;
    if (getenv("SEED")) seed = (uint64_t)atoll(getenv("SEED"));
    printf("# SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    if (device_open("cpu", &cpu, &e)) return ok(0, "%s", e.text), tap_done();
    for (int i = 0; i < n && bad < 5; i++) {
        if (!one(cpu, i, &refused)) bad++;
        cpu->table->trim(cpu, true);
    }
    device_close(cpu);
    ok(bad == 0, "%d random networks and settings: what is predicted is what is measured", n);
    ok(refused < n / 2, "%d of them were refused", refused);
    is_int(mem_live(), 0, "all host memory is given back");
    return tap_done();
}
