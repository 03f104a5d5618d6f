/* The step that eager PyTorch makes of a network: sequences that were worked out by hand, what is not predicted, and every
 * allocation of host memory made to fail. tests/lua/t_eager.lua has PyTorch's own lists. */
#include "eager/eager.h"
#include "each_failure.h"
#include "net.h"
#include "tap.h"

#include <math.h>

static Network *network(const char *layers, const char *loss, Shape input) {
    Err e = {0, ""};
    char text[512];
    snprintf(text, sizeof text, "Sequential{%s}", layers);
    Network *net = net_new(text, loss, input, &e);
    if (!net) printf("# %s\n", e.text);
    return net;
}

/* The events of step `step`, as "+bytes" and "-bytes", into text. */
static void step_text(const Trace *t, int step, char *text, size_t room) {
    const int from = t->marks[step - 1].event, to = step < t->n_marks ? t->marks[step].event : t->n_events;
    size_t n = 0;
    *text = '\0';
    for (int i = from; i < to && n < room; i++) {
        const int event = t->events[i], tensor = event < 0 ? ~event : event;
        n += (size_t)snprintf(text + n, room - n, "%s%c%zu", n ? " " : "", event < 0 ? '-' : '+', t->tensors[tensor].bytes);
    }
}

/* x (4, 3), w (2, 3), b (2): y = x w^T + b; the mean of (y - t)^2. x and t are bound again, the old gradients go, then the
 * product; the loss has the storage of its terms, and a tensor of terms beside it while it runs. Backward: the gradient 1,
 * dy, dw (x needs none), db as a sum. SGD without momentum needs nothing. */
static void test_linear(void) {
    Network *net = network("Linear(3, 2)", "MSELoss", shape2(4, 3));
    Settings s = settings_default();
    EagerStep made = {.estimated = false};
    Err e = {0, ""};
    char text[1024];
    s.optimizer.kind = OPTIM_SGD;
    is_int(eager_trace(net, &s, card_find("a100-80gb"), 2, ESTIMATE_LIKELY, &made, &e), OK, "a step of SGD");
    is_int(made.trace.n_marks, 2, "two steps");
    step_text(&made.trace, 2, text, sizeof text);
    is_str(text, "+48 -48 +32 -32 -24 -8 +32 -32 +32 +32 -32 -32 +4 +32 +24 +8 -32 -4", "the second step");
    trace_free(&made.trace);
    network_free(net);
}

/* A trace that would fill the host's memory is refused after two micro-batches; the most that the message offers is made. (RAdam and
 * others have more steps, evaluation has fewer.) */
static void test_too_long(void) {
    Network *net = network("Linear(3, 2)", "MSELoss", shape2(4, 3));
    Settings s = settings_default();
    EagerStep made = {.estimated = false};
    Err e = {0, ""};
    s.optimizer.kind = OPTIM_SGD;
    s.accumulate = 1 << 20;
    is_int(eager_trace(net, &s, card_find("a100-80gb"), 4, ESTIMATE_LIKELY, &made, &e), ERR_SCRIPT, "2^20 micro-batches are refused");
    is_str(e.text, "framework = \"pytorch\": expected accumulate of at most 381300, found 1048576: each allocation of each micro-batch "
           "is predicted, which would take about 42 GB of the host's memory", "... with what they would take");
    ok(made.trace.n_tensors < 100, "... before they are made");
    trace_free(&made.trace);
    s.accumulate = 1000;
    is_int(eager_trace(net, &s, card_find("a100-80gb"), 4, ESTIMATE_LIKELY, &made, &e), OK, "1000 are made");
    const int thousand = made.trace.n_tensors;
    trace_free(&made.trace);
    s.accumulate = 1001;
    is_int(eager_trace(net, &s, card_find("a100-80gb"), 4, ESTIMATE_LIKELY, &made, &e), OK, "... and one more");
    is_int(381300LL * (made.trace.n_tensors - thousand) <= 1 << 24, 1, "so many of them are no more than a trace may have");
    is_int(381301LL * (made.trace.n_tensors - thousand) > 1 << 24, 1, "... and one more would be");
    trace_free(&made.trace);
    network_free(net);
}

/* A step of layers with MSELoss and SGD on an A100. */
static Work work_of(const char *layers, Shape input, Precision precision) {
    Network *net = network(layers, "MSELoss", input);
    Settings s = settings_default();
    EagerStep made = {.estimated = false};
    Err e = {0, ""};
    s.optimizer.kind = OPTIM_SGD;
    s.precision = precision;
    is_int(eager_trace(net, &s, card_find("a100-80gb"), 2, ESTIMATE_LIKELY, &made, &e), OK, layers);
    trace_free(&made.trace);
    network_free(net);
    return made.work;
}

/* What the calls compute and move, in their order. */
static void test_work(void) {
    const Card *card = card_find("a100-80gb");
    /* 4 x 3 x 2 multiply-adds for y, and as many for dw. x (48 bytes) and t (32) are written; x, w, b read and y written;
     * y, t read, the terms written and read; 1; y, t read, dy written; dy, x, dw; dy, db; SGD reads parameters and gradients and
     * writes the parameters. */
    Work work = work_of("Linear(3, 2)", shape2(4, 3), PREC_FP32);
    is_int((long long)work.flops, 2 * 2 * 24, "operations of a product");
    is_int((long long)work.bytes, 48 + 32 + 112 + 128 + 4 + 96 + 104 + 40 + 3 * 32, "and its bytes");
    ok(fabs(work.seconds * card->bandwidth / work.bytes - 1) < 1e-12, "which take longer than they do");
    /* x 1536 bytes, w 288, b 16, y 1728: 432 results of 18 multiply-adds, and as many for dw. b is added in place, and db a
     * sum of dy. */
    work = work_of("Conv2d(2, 4, 3)", shape4(3, 2, 8, 8), PREC_FP32);
    is_int((long long)work.flops, 2 * 2 * 432 * 18, "operations of a convolution");
    is_int((long long)work.bytes, 1536 + 1728 + (1536 + 288 + 1728) + (2 * 1728 + 16) + 4 * 1728 + 4 + 3 * 1728
           + (1728 + 1536 + 288) + (1728 + 16) + 3 * 304, "and its bytes");
    /* Of a group a result sees only its channels; transposed, each pixel of x meets each weight. */
    work = work_of("Conv2d(2, 4, 3, groups=2)", shape4(3, 2, 8, 8), PREC_FP32);
    is_int((long long)work.flops, 2 * 2 * 432 * 9, "in groups");
    work = work_of("ConvTranspose2d(2, 4, 3)", shape4(3, 2, 8, 8), PREC_FP32);
    is_int((long long)work.flops, 2 * 2 * (3 * 64) * (2 * 4 * 9), "transposed");
    /* Each of the three layers of 4096 x 4096 x 4096 multiply-adds forward and for dw, two of them for dx. */
    static const char wide[] = "Linear(4096, 4096) Linear(4096, 4096) Linear(4096, 4096)";
    const double flops = 2.0 * 8 * 4096 * 4096 * 4096;
    const struct { Precision precision; double peak; } peaks[] = {
        {PREC_FP32, card->fp32}, {PREC_TF32, card->tf32}, {PREC_AMP_FP16, card->fp16}, {PREC_AMP_BF16, card->bf16}};
    for (size_t i = 0; i < ARRAY_LEN(peaks); i++) {
        work = work_of(wide, shape2(4096, 4096), peaks[i].precision);
        ok(work.flops == flops, "operations of products");
        const double rest = work.seconds - flops / peaks[i].peak; /* products' bytes take no time of their own */
        ok(rest > 0 && rest < work.bytes / card->bandwidth - 8 * 3 * 4096.0 * 4096 * 2 / card->bandwidth,
           "at the peak of their type, and the other calls at the bandwidth");
    }
}

static void test_refused(void) {
    Network *net = network("Linear(3, 2)", "MSELoss", shape2(4, 3));
    Settings s = settings_default();
    EagerStep made = {.estimated = false};
    Err e = {0, ""};
    const Card *card = card_find("a100-80gb");
    s.checkpoint = CHECKPOINT_ALL;
    is_int(eager_trace(net, &s, card, 2, ESTIMATE_LIKELY, &made, &e), ERR_SCRIPT, "a choice of checkpoints that PyTorch has not");
    s.checkpoint = CHECKPOINT_NONE;
    s.optimizer.kind = OPTIM_Adam8bit;
    is_int(eager_trace(net, &s, card, 2, ESTIMATE_LIKELY, &made, &e), ERR_SCRIPT, "an optimizer of another library");
    s.optimizer.kind = OPTIM_SGD;
    s.checkpoint = CHECKPOINT_MARKED;
    s.pytorch.use_reentrant = SAID_TRUE;
    Network *whole = network("Checkpoint{Linear(3, 2)}", "MSELoss", shape2(4, 3));
    is_int(eager_trace(whole, &s, card, 2, ESTIMATE_LIKELY, &made, &e), ERR_SCRIPT, "a loss that is outside of any graph");
    ok(strstr(e.text, "PyTorch refuses it: loss.backward()") != NULL, "... which PyTorch refuses");
    trace_free(&made.trace);
    Network *odds = network("Linear(3, 2) Sigmoid", "BCELoss", shape2(4, 3));
    s.precision = PREC_AMP_BF16;
    is_int(eager_trace(odds, &s, card, 2, ESTIMATE_LIKELY, &made, &e), ERR_SCRIPT, "BCELoss under autocast");
    ok(strstr(e.text, "unsafe to autocast") != NULL, "... which PyTorch refuses");
    trace_free(&made.trace);
    s.precision = PREC_FP32;
    is_int(eager_trace(odds, &s, card, 2, ESTIMATE_LIKELY, &made, &e), OK, "... and without it");
    trace_free(&made.trace);
    network_free(odds);
    network_free(whole);
    ok(!card_find("a100"), "a card that there is not");
    network_free(net);
}

typedef struct Case { const Network *net; Settings s; } Case;

static int attempt(void *arg, Err *e) {
    const Case *c = arg;
    EagerStep made = {.estimated = false};
    int code = eager_trace(c->net, &c->s, card_find("a100-80gb"), 2, ESTIMATE_LIKELY, &made, e);
    trace_free(&made.trace);
    return code;
}

static void test_memory(void) {
    static const char *const nets[] = {
        "Conv2d(2, 4, 3) BatchNorm2d(4) ReLU MaxPool2d(2) Flatten Linear(36, 3)",
        "Checkpoint{Sequential{Conv2d(2, 4, 3) GroupNorm(2, 4) GELU}} AdaptiveAvgPool2d(1) Flatten Dropout(0.5) Linear(4, 3)"};
    for (size_t i = 0; i < ARRAY_LEN(nets); i++) {
        Network *net = network(nets[i], "CrossEntropyLoss(label_smoothing=0.1)", shape4(3, 2, 8, 8));
        Case c = {net, settings_default()};
        c.s.checkpoint = CHECKPOINT_MARKED;
        c.s.precision = i ? PREC_AMP_FP16 : PREC_FP32;
        c.s.optimizer.rule.clip_norm = 1;
        each_failure(attempt, &c, 100, nets[i]);
        network_free(net);
    }
    static const char *const attentions[] = {
        "MultiheadAttention(8, 2, batch_first=true) CausalSelfAttention(8, 2) LayerNorm(8)",
        "Graph{Parameter(5:5) ScaledDotProductAttention(num_heads=1, is_causal=true)<-1,-1,-1,0>"
        " ScaledDotProductAttention(num_heads=2, is_causal=true, window=2)<1,1,1>"
        " ScaledDotProductAttention(num_heads=2, is_causal=true, softcap=3)<2,2,2>}"};
    for (size_t i = 0; i < ARRAY_LEN(attentions); i++) {
        Network *net = network(attentions[i], "MSELoss", shape3(2, 5, 8));
        Case c = {net, settings_default()};
        each_failure(attempt, &c, 100, attentions[i]);
        network_free(net);
    }
}

int main(void) {
    test_linear();
    test_too_long();
    test_work();
    test_refused();
    test_memory();
    return tap_done();
}
