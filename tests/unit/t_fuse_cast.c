/* The fuse_cast pass: which casts are left under autocast, and what type is kept and written instead. */
#include "bare.h"
#include "program/program.h"
#include "tap.h"

#define SHAPE shape2(6, 432)

/* Casts of weights are made in any case, one per weight; so is one of the input, which a product reads. */
static int activation_casts(const Program *p) {
    int n = 0;
    for (int i = 0; p && i < p->n_ops; i++)
        n += p->ops[i].kind == OP_cast && p->bufs[p->ops[i].out[0]].category != CAT_WEIGHTS;
    return n;
}

static const struct { const char *what, *net; int casts, eval; } cases[] = {
    {"of the loss", "Sequential{Linear(432, 10)}", 1, 1},
    {"of a normalisation", "Sequential{Linear(432, 20) LayerNorm(20) Linear(20, 10)}", 1, 1},
    {"of one that is the output", "Sequential{Linear(432, 20) LayerNorm(20)}", 1, 1},
    {"of an activation after it: its own gradient reads fp32",
     "Sequential{Linear(432, 20) LayerNorm(20) ReLU Linear(20, 10)}", 2, 1},
    {"of one whose gradient reads what it read",
     "Sequential{Linear(432, 20) LayerNorm(20) GELU Linear(20, 10)}", 1, 1},
    {"of dropout", "Sequential{Linear(432, 20) LayerNorm(20) Dropout Linear(20, 10)}", 1, 1},
    {"of a branch and its gradient: the sum is read in fp32, too",
     "Sequential{Linear(432, 20) LayerNorm(20) Residual{Linear(20, 20)} Linear(20, 10)}", 4, 2},
    {"of probabilities, which their gradient reads in fp32",
     "Sequential{Linear(432, 20) Softmax(1) Linear(20, 10)}", 2, 1},
    {"of one that a product of parameters reads",
     "Sequential{Linear(432, 20) LayerNorm(20) PReLU Linear(20, 10)}", 1, 1},
};

static void test_cases(void) {
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int eval = 0; eval < 2; eval++) {
            Settings s = settings_default();
            s.precision = PREC_AMP_BF16;
            s.eval = eval;
            Program *p = compiled(cases[i].net, SHAPE, &s);
            is_int(activation_casts(p), eval ? cases[i].eval : cases[i].casts, cases[i].what);
            program_free(p);
        }
}

static const Op *op_of(const Program *p, OpKind kind) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind) return &p->ops[i];
    return NULL;
}

/* Logits exist once, in 16 bits, and so does their gradient, in the same place. */
static void test_loss(void) {
    Settings s = settings_default();
    s.precision = PREC_AMP_FP16;
    Program *p = compiled("Sequential{Linear(432, 200)}", SHAPE, &s);
    if (!ok(p != NULL, "many classes")) return;
    const Op *loss = op_of(p, OP_cross_entropy), *dx = op_of(p, OP_cross_entropy_dx);
    is_int(p->bufs[loss->in[0]].dtype, DT_F16, "the loss reads 16 bits");
    is_int(p->bufs[dx->out[0]].dtype, DT_F16, "and so does what its gradient writes");
    is_int(dx->in[0], loss->in[0], "from the same logits");
    is_int(program_root(p, dx->out[0]), program_root(p, loss->in[0]), "into their storage");
    is_int(p->bufs[loss->out[1]].dtype, DT_F32, "what the loss knows of a row is fp32");
    is_int(dx->in[4], loss->out[1], "and passed on");
    program_free(p);
    s.inplace = INPLACE_OFF;
    p = compiled("Sequential{Linear(432, 100)}", SHAPE, &s);
    if (!ok(p != NULL, "few classes, nothing in place")) return;
    dx = op_of(p, OP_cross_entropy_dx);
    is_int(p->bufs[dx->out[0]].alias, NO_BUF, "the gradient has storage of its own");
    is_int(dx->in[4], NO_BUF, "and short rows are gone through once more");
    program_free(p);
}

/* The output of a network is kept as the script asks for it. */
static void test_output(void) {
    Settings s = settings_default();
    s.precision = PREC_AMP_BF16;
    s.keep_output = true;
    Program *p = compiled("Sequential{Linear(432, 20) LayerNorm(20)}", SHAPE, &s);
    if (!ok(p != NULL, "an output that is kept")) return;
    is_int(p->bufs[p->output].dtype, DT_F32, "has the type that autocast gives it");
    is_int(p->bufs[op_of(p, OP_cross_entropy_dx)->out[0]].alias, NO_BUF, "and the gradient does not overwrite it");
    program_free(p);
}

/* What a normalisation keeps of a 16-bit image has 16 bits. */
static void test_kept(void) {
    Settings s = settings_default();
    s.precision = PREC_AMP_BF16;
    Program *p = compiled("Sequential{Conv2d(3, 8, 3) GroupNorm(2, 8) SiLU Flatten Linear(800, 10)}",
                          shape4(2, 3, 12, 12), &s);
    if (!ok(p != NULL, "an image")) return;
    const Op *norm = op_of(p, OP_norm), *dx = op_of(p, OP_norm_dx);
    is_int(p->bufs[norm->in[0]].dtype, DT_BF16, "the normalisation reads what the convolution wrote");
    is_int(dx->in[1], norm->in[0], "and its gradient, too");
    is_int(p->bufs[norm->out[0]].dtype, DT_F32, "what the activation after it is given is not rounded");
    is_int(p->bufs[dx->out[0]].dtype, DT_BF16, "the convolution gets its gradient in 16 bits");
    program_free(p);
}

int main(void) {
    test_cases();
    test_loss();
    test_output();
    test_kept();
    return tap_done();
}
