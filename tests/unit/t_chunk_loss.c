/* The setting loss_chunks: which networks' losses become one op with the layer before them, what that op and its
 * gradient read and write, and what of it stays where the parts of a step run one by one. */
#include "bare.h"
#include "nets.h"
#include "tap.h"

static int count(const Program *p, OpKind kind) {
    int n = 0;
    for (int i = 0; p && i < p->n_ops; i++) n += p->ops[i].kind == kind;
    return n;
}

static const Op *find(const Program *p, OpKind kind) {
    for (int i = 0; p && i < p->n_ops; i++)
        if (p->ops[i].kind == kind) return &p->ops[i];
    return NULL;
}

#define HEAD(after) "Sequential{Linear(6, 8) Tanh " after "}"

/* For sequences (2, 5, 6); logits (10, 40), or (2, 40) */
static const struct { const char *what, *net, *loss; bool fused; } cases[] = {
    {"rows of logits", HEAD("Linear(8, 40) Flatten(0, 1)"), "CrossEntropyLoss", true},
    {"a row for each sample", HEAD("Select(1, -1) Linear(8, 40)"), "CrossEntropyLoss", true},
    {"all options", HEAD("Linear(8, 4, bias=false) Flatten(0, 1)"),
     "CrossEntropyLoss(weight=1:2:3:4, ignore_index=2, label_smoothing=0.1, lse_square_scale=0.1)", true},
    {"several views", HEAD("Linear(8, 40) Reshape(0:5:40:1) Reshape(0:5:40) Flatten(0, 1)"), "CrossEntropyLoss", true},
    {"inside of a checkpoint", HEAD("Checkpoint{Linear(8, 40)} Flatten(0, 1)"), "CrossEntropyLoss", false},
    {"a scale of the logits", HEAD("Linear(8, 40) Scale(0.5) Flatten(0, 1)"), "CrossEntropyLoss", false},
    {"an activation", HEAD("Linear(8, 40) Tanh Flatten(0, 1)"), "CrossEntropyLoss", false},
    {"classes of another layer", HEAD("Linear(8, 40) Reshape(0:5:20:2) Select(3, 0) Flatten(0, 1)"), "CrossEntropyLoss", false},
    {"rows cut apart", HEAD("Linear(8, 40) Reshape(20:20)"), "CrossEntropyLoss", false},
    {"classes before places", HEAD("Linear(8, 40)"), "CrossEntropyLoss", false},
    {"logarithms", HEAD("Linear(8, 40) Flatten(0, 1) LogSoftmax(1)"), "NLLLoss", false},
    {"another loss", HEAD("Linear(8, 40)"), "MSELoss", false},
    {"no linear layer", HEAD("Flatten(0, 1)"), "CrossEntropyLoss", false},
};

static Case open_case(const char *net, const char *loss, const Settings *s) {
    static const DeviceTable table = {.kind = "none", .alignment = 64, .prepare = bare_prepare};
    static Device device = {.table = &table};
    return case_open(&device, net, loss, shape3(2, 5, 6), s);
}

static void test_cases(void) {
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int precision = 0; precision < PREC_COUNT; precision++) {
            Settings s = settings_default();
            s.precision = (Precision)precision;
            s.loss_chunks = 4;
            Case train = open_case(cases[i].net, cases[i].loss, &s);
            is_int(count(train.p, OP_linear_cross_entropy_dx), cases[i].fused, cases[i].what);
            is_int(count(train.p, OP_linear_cross_entropy), 0, "and no other op computes the loss");
            s.eval = true;
            Case eval = open_case(cases[i].net, cases[i].loss, &s);
            is_int(count(eval.p, OP_linear_cross_entropy), cases[i].fused, "in evaluation, too");
            case_close(&train);
            case_close(&eval);
        }
}

/* The largest buffer of a step, in bytes, whatever it is */
static size_t largest(const Program *p) {
    size_t most = 0;
    for (int i = 0; p && i < p->n_ops; i++)
        EACH_OUT(&p->ops[i], k) most = max_size(most, p->bufs[p->ops[i].out[k]].bytes);
    return most;
}

static void test_settings(void) {
    Settings s = settings_default();
    Case one = open_case(cases[0].net, cases[0].loss, &s);
    is_int(count(one.p, OP_linear_cross_entropy_dx), 0, "one part is what it was");
    is_int((long long)largest(one.p), 10 * 40 * 4, "the logits are the largest tensor");
    s.loss_chunks = 2;
    Case two = open_case(cases[0].net, cases[0].loss, &s);
    ok(largest(two.p) < 10 * 40 * 4, "with two parts there is no such one");
    is_int(two.p ? two.p->output : 0, NO_BUF, "nor an output");
    s.keep_output = true;
    Case kept = open_case(cases[0].net, cases[0].loss, &s);
    is_int(count(kept.p, OP_linear_cross_entropy_dx), 0, "an output that can be read is there as a whole");
    s.keep_output = false;
    s.parts = true;
    Case parts = open_case(cases[0].net, cases[0].loss, &s);
    const Op *forward = find(parts.p, OP_linear_cross_entropy), *gradient = find(parts.p, OP_linear_cross_entropy_dx);
    ok(forward && gradient && forward < &parts.p->ops[parts.p->forward_end] &&
       gradient->linear_cross_entropy_dx.loss == NO_BUF, "in parts the forward pass makes the loss");
    case_close(&one);
    case_close(&two);
    case_close(&kept);
    case_close(&parts);
}

/* What is frozen gets no gradient. */
static void test_frozen(void) {
    static const struct { const char *net; bool dx, dw, db; } heads[] = {
        {HEAD("Linear(8, 40) Flatten(0, 1)"), true, true, true},
        {HEAD("Linear(8, 40, bias=false) Flatten(0, 1)"), true, true, false},
        {HEAD("Linear(8, 40)! Flatten(0, 1)"), true, false, false},
        {"Sequential{Linear(6, 8)! Tanh Linear(8, 40) Flatten(0, 1)}", false, true, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        Settings s = settings_default();
        s.loss_chunks = 2;
        Case c = open_case(heads[i].net, "CrossEntropyLoss", &s);
        const Op *op = find(c.p, OP_linear_cross_entropy_dx);
        ok(op && (op->linear_cross_entropy_dx.dx != NO_BUF) == heads[i].dx &&
           (op->linear_cross_entropy_dx.dw != NO_BUF) == heads[i].dw &&
           (op->linear_cross_entropy_dx.db != NO_BUF) == heads[i].db, "gradients of what is trained: %s", heads[i].net);
        ok(op && c.p->loss == op->linear_cross_entropy_dx.loss, "and the loss");
        case_close(&c);
    }
    Settings s = settings_default();
    s.loss_chunks = 2;
    Case c = open_case("Sequential{Linear(6, 8)! Tanh Linear(8, 40)! Flatten(0, 1)}", "CrossEntropyLoss", &s);
    ok(count(c.p, OP_linear_cross_entropy) == 1 && !count(c.p, OP_linear_cross_entropy_dx), "all frozen: the loss alone");
    case_close(&c);
}

int main(void) {
    test_cases();
    test_settings();
    test_frozen();
    return tap_done();
}
