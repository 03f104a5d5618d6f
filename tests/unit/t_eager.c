/* The step that eager PyTorch makes of a network: sequences that were worked out by hand, what is not predicted, and every
 * allocation of host memory made to fail. tests/lua/t_eager.lua has PyTorch's own lists. */
#include "eager/eager.h"
#include "each_failure.h"
#include "net.h"
#include "tap.h"

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

static ConvCalls convs;

/* x (4, 3), w (2, 3), b (2): y = x w^T + b; the mean of (y - t)^2. x and t are bound again, the old gradients go, then the
 * product; the loss has the storage of its terms, and a tensor of terms beside it while it runs. Backward: the gradient 1,
 * dy, dw (x needs none), db as a sum. SGD without momentum needs nothing. */
static void test_linear(void) {
    Network *net = network("Linear(3, 2)", "MSELoss", shape2(4, 3));
    Settings s = settings_default();
    Trace t = {0};
    Err e = {0, ""};
    char text[1024];
    s.optimizer.kind = OPTIM_SGD;
    is_int(eager_trace(net, &s, card_find("a100-80gb"), 2, &t, &convs, &e), OK, "a step of SGD");
    is_int(t.n_marks, 2, "two steps");
    step_text(&t, 2, text, sizeof text);
    is_str(text, "+48 -48 +32 -32 -24 -8 +32 -32 +32 +32 -32 -32 +4 +32 +24 +8 -32 -4", "the second step");
    trace_free(&t);
    network_free(net);
}

static void test_refused(void) {
    Network *net = network("LSTM(3, 2, batch_first=true)", "MSELoss", shape3(4, 5, 3));
    Settings s = settings_default();
    Trace t = {0};
    Err e = {0, ""};
    const Card *card = card_find("a100-80gb");
    is_int(eager_trace(net, &s, card, 2, &t, &convs, &e), ERR_SCRIPT, "a recurrent layer");
    has_text(e.text, "does not predict", "is not predicted");
    network_free(net);
    net = network("Linear(3, 2)", "MSELoss", shape2(4, 3));
    s.checkpoint = CHECKPOINT_SQRT;
    is_int(eager_trace(net, &s, card, 2, &t, &convs, &e), ERR_SCRIPT, "a choice of checkpoints that PyTorch has not");
    s.checkpoint = CHECKPOINT_NONE;
    s.optimizer.kind = OPTIM_Adam8bit;
    is_int(eager_trace(net, &s, card, 2, &t, &convs, &e), ERR_SCRIPT, "an optimizer of another library");
    ok(!card_find("a100"), "a card that there is not");
    network_free(net);
}

typedef struct Case { const Network *net; Settings s; } Case;

static int attempt(void *arg, Err *e) {
    const Case *c = arg;
    Trace t = {0};
    int code = eager_trace(c->net, &c->s, card_find("a100-80gb"), 2, &t, &convs, e);
    trace_free(&t);
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
    Network *net = network("MultiheadAttention(8, 2, batch_first=true) CausalSelfAttention(8, 2) LayerNorm(8)", "MSELoss",
                           shape3(2, 5, 8));
    Case c = {net, settings_default()};
    each_failure(attempt, &c, 100, "attention");
    network_free(net);
}

int main(void) {
    test_linear();
    test_refused();
    test_memory();
    return tap_done();
}
