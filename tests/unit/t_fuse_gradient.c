/* The fuse_gradient pass: which products take an activation's gradient over, from what saved value, and whose bias. */
#include "bare.h"
#include "nets.h"
#include "tap.h"

/* What became of a program: act_dx that stay, products that took one over, and bias gradients that these sum up. */
typedef struct Found { int alone, fused, biases; } Found;

static Found find(const Program *p) {
    Found f = {0, 0, 0};
    for (int i = 0; p && i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        bool dx = op->kind == OP_conv2d_dx || op->kind == OP_linear_dx;
        f.alone += op->kind == OP_act_dx;
        f.fused += dx && op->in[2] != NO_BUF;
        f.biases += dx && op->out[1] != NO_BUF;
    }
    return f;
}

static const struct { const char *what, *net; Found expected; } cases[] = {
    {"convolutions", "Sequential{Conv2d(3, 4, 3) ReLU Conv2d(4, 5, 3) Flatten Linear(320, 10)}", {0, 1, 1}},
    {"what the input is saved for",
     "Sequential{Conv2d(3, 4, 3) GELU Conv2d(4, 5, 3) Flatten Linear(320, 10)}", {0, 1, 1}},
    {"no bias", "Sequential{Conv2d(3, 4, 3, bias=false) Tanh Conv2d(4, 5, 3) Flatten Linear(320, 10)}", {0, 1, 0}},
    {"matrix products",
     "Sequential{Flatten Linear(432, 20) Sigmoid Linear(20, 30) LeakyReLU Linear(30, 10)}", {0, 2, 2}},
    {"a view between: no channels to sum over", "Sequential{Conv2d(3, 4, 3) ReLU Flatten Linear(400, 10)}", {0, 1, 0}},
    {"a view before", "Sequential{Conv2d(3, 4, 3) Flatten ReLU Linear(400, 10)}", {0, 1, 0}},
    {"an input saved after a view", "Sequential{Conv2d(3, 4, 3) GELU Flatten Linear(400, 10)}", {1, 0, 0}},
    {"two activations", "Sequential{Flatten Linear(432, 20) ReLU Tanh Linear(20, 10)}", {1, 1, 0}},
    {"a pool between",
     "Sequential{Conv2d(3, 4, 3) ReLU MaxPool2d(2) Conv2d(4, 5, 3) Flatten Linear(45, 10)}", {0, 1, 0}},
    {"dropout between", "Sequential{Flatten Linear(432, 20) ReLU Dropout Linear(20, 10)}", {1, 0, 0}},
    {"dropout after", "Sequential{Flatten Linear(432, 20) Dropout ReLU Linear(20, 10)}", {0, 1, 0}},
    {"a sum of gradients",
     "Sequential{Flatten Linear(432, 20) ReLU Residual{Linear(20, 20)} Linear(20, 10)}", {1, 0, 0}},
    {"inside a residual block",
     "Sequential{Flatten Linear(432, 20) Residual{Sequential{Linear(20, 9) ReLU Linear(9, 20)}}"
                                " Linear(20, 10)}", {0, 1, 1}},
    {"the border of a checkpoint", "Sequential{Flatten Checkpoint{Sequential{Linear(432, 20) ReLU}} Linear(20, 10)}",
     {0, 1, 1}},
    {"a border before the activation", "Sequential{Flatten Checkpoint{Linear(432, 20)} ReLU Checkpoint{Linear(20, 10)}}", {0, 1, 1}},
    {"inside a checkpoint",
     "Sequential{Flatten Checkpoint{Sequential{Linear(432, 20) GELU Linear(20, 20)}} Linear(20, 10)}",
     {0, 1, 1}},
};

static void test_cases(void) {
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int precision = 0; precision < PREC_COUNT; precision++) {
            Settings s = settings_default();
            s.precision = (Precision)precision;
            s.checkpoint = CHECKPOINT_MARKED;
            s.accumulate = 1 + precision % 2;
            Program *p = compiled(cases[i].net, shape4(2, 3, 12, 12), &s);
            Found f = find(p), x = cases[i].expected;
            if (!ok(p && f.alone == x.alone && f.fused == x.fused && f.biases == x.biases, "%s, %s", cases[i].what,
                    precision_info((Precision)precision)->text))
                printf("# found %d act_dx, %d fused, %d biases\n", f.alone, f.fused, f.biases);
            program_free(p);
        }
}

static const Op *op_of(const Program *p, OpKind kind) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind) return &p->ops[i];
    return NULL;
}

static void test_operands(void) {
    Settings s = settings_default();
    Program *p = compiled(NET_ARTICLE, shape4(2, 3, 32, 32), &s);
    if (!ok(p != NULL, "the article's network")) return;
    const Op *linear = op_of(p, OP_linear_dx), *conv = op_of(p, OP_conv2d_dx), *dw = op_of(p, OP_conv2d_dw);
    is_str(p->bufs[linear->in[2]].name, "4.y", "after Flatten the saved value is its view");
    is_int(linear->attr.linear.fused.act, ACT_RELU, "with the activation");
    is_int(program_root(p, dw->in[1]), linear->out[0], "what the convolution before reads is what the product made");
    ok(dw->out[1] != NO_BUF, "and it sums its bias gradient up itself");
    is_str(p->bufs[conv->in[2]].name, "1.y", "between convolutions it is the activation's output");
    is_str(p->bufs[conv->out[1]].name, "0.bias.grad", "and the bias gradient is the one before");
    is_int(find(p).alone, 0, "no activation's gradient is left");
    program_free(p);
    s.eval = true;
    p = compiled(NET_ARTICLE, shape4(2, 3, 32, 32), &s);
    is_int(find(p).fused, 0, "evaluation has none");
    program_free(p);
}

/* The verifier knows what belongs together. */
static void test_verifier(void) {
    Settings s = settings_default();
    Err e = {0, ""};
    for (int broken = 0; broken < 3; broken++) {
        Program *p = compiled(NET_ARTICLE, shape4(2, 3, 32, 32), &s);
        if (!ok(p && !program_check(p, "test", &e), "valid as compiled")) return;
        Op *conv = (Op *)op_of(p, OP_conv2d_dx);
        if (broken == 0) conv->in[2] = NO_BUF;
        if (broken == 1) conv->attr.conv.fused.act = ACT_NONE;
        if (broken == 2) conv->in[2] = op_of(p, OP_conv2d_dw)->in[1];
        is_int(program_check(p, "test", &e), ERR_INTERNAL, "refused: without s, without f, with an s of another shape");
        has_text(e.text, "conv2d_dx", "by name");
        program_free(p);
    }
}

int main(void) {
    test_cases();
    test_operands();
    test_verifier();
    return tap_done();
}
