/* The fuse pass: which ops take an activation over, and that the backward pass then keeps the small map of a pooling in
 * place of the large one. */
#include "bare.h"
#include "base/mem.h"
#include "tap.h"

/* Activations that stay ops of the forward pass, and those that poolings and products apply. */
typedef struct Found { int alone, pools, products; } Found;

static Found find(const Program *p) {
    Found f = {0, 0, 0};
    for (int i = 0; p && i < p->forward_end; i++) {
        Op op = p->ops[i];
        const ActAttr *fused = attr_fused(op.kind, &op.attr);
        f.alone += op.kind == OP_act;
        if (fused && fused->act) *(op.kind == OP_maxpool ? &f.pools : &f.products) += 1;
    }
    return f;
}

/* Between a convolution and a product, for 3 x 12 x 12 images. */
#define NET(layers, features) "Sequential{Conv2d(3, 4, 3, padding=1) " layers " Flatten Linear(" #features ", 10)}"

static const struct { const char *what, *net; Found train, eval; } cases[] = {
    {"a ReLU before", NET("ReLU MaxPool2d(2)", 144), {0, 1, 0}, {0, 1, 0}},
    {"a ReLU after", NET("MaxPool2d(2) ReLU", 144), {0, 1, 0}, {0, 1, 0}},
    {"marked in place", NET("ReLU(inplace=true) MaxPool2d(3, stride=2, padding=1)", 144), {0, 1, 0}, {0, 1, 0}},
    {"after a normalisation", NET("BatchNorm2d(4) ReLU MaxPool2d(2)", 144), {0, 1, 0}, {0, 1, 0}},
    {"two ReLUs", NET("ReLU ReLU MaxPool2d(2)", 144), {0, 1, 0}, {0, 1, 0}},
    {"one on each side", NET("ReLU MaxPool2d(2) ReLU", 144), {1, 1, 0}, {1, 1, 0}},
    {"two poolings", NET("ReLU MaxPool2d(2) MaxPool2d(2)", 36), {0, 1, 0}, {0, 1, 0}},
    {"inside a checkpoint", NET("Checkpoint{Sequential{ReLU MaxPool2d(2)}}", 144), {0, 1, 0}, {0, 1, 0}},
    {"the border of a checkpoint", NET("Checkpoint{ReLU} MaxPool2d(2)", 144), {0, 1, 0}, {0, 1, 0}},
    {"the border of a checkpoint, after a product", NET("Checkpoint{Conv2d(4, 4, 3, padding=1)} ReLU", 576), {0, 0, 1}, {0, 0, 1}},
    {"two borders", NET("Checkpoint{Conv2d(4, 4, 3, padding=1)} Checkpoint{ReLU}", 576), {0, 0, 1}, {0, 0, 1}},
    {"something between", NET("ReLU Dropout(0.5) MaxPool2d(2)", 144), {0, 0, 1}, {0, 1, 0}},
    {"read by another, too", NET("ReLU Concat{MaxPool2d(3, stride=1, padding=1) Identity}", 1152),
     {0, 0, 1}, {0, 0, 1}},
    {"another slope below 0", NET("LeakyReLU MaxPool2d(2)", 144), {1, 0, 0}, {0, 0, 1}},
    {"another activation after", NET("MaxPool2d(2) Sigmoid", 144), {1, 0, 0}, {1, 0, 0}},
    {"another pooling", NET("ReLU AvgPool2d(2)", 144), {0, 0, 1}, {0, 0, 1}},
};

static void check(const char *what, const char *net, const Settings *s, Found x) {
    Program *p = compiled(net, shape4(2, 3, 12, 12), s);
    Found f = find(p);
    if (!ok(p && !memcmp(&f, &x, sizeof f), "%s, %s%s", what, precision_info(s->precision)->text,
            s->eval ? ", eval" : ""))
        printf("# found %d alone, %d in poolings, %d in products\n", f.alone, f.pools, f.products);
    program_free(p);
}

static void test_cases(void) {
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (int precision = 0; precision < PREC_COUNT; precision++) {
            Settings s = settings_default();
            s.precision = (Precision)precision;
            check(cases[i].what, cases[i].net, &s, cases[i].train);
            s.eval = true;
            check(cases[i].what, cases[i].net, &s, cases[i].eval);
        }
}

/* Bytes of activations that are made by the forward pass and read by the backward pass. */
static size_t kept(const char *net) {
    Settings s = settings_default();
    Program *p = compiled(net, shape4(2, 3, 12, 12), &s);
    Life *life = p ? mem_new((size_t)p->n_bufs * sizeof *life) : NULL;
    size_t bytes = 0;
    if (life) program_lives(p, life);
    for (int b = 0; life && b < p->n_bufs; b++)
        if (p->bufs[b].category == CAT_ACTIVATIONS && life[b].first < p->forward_end && life[b].last >= p->forward_end)
            bytes += life[b].bytes;
    mem_free(life);
    program_free(p);
    return bytes;
}

/* Maps of (2, 4, 12, 12), of (2, 4, 6, 6), and an index of a byte each; the loss reads (2, 10) again; statistics of 4
 * channels. A slope below 0 keeps activation and pooling apart. */
static void test_kept(void) {
    const size_t large = 2 * 4 * 12 * 12 * 4, small = 2 * 4 * 6 * 6 * 4, index = small / 4, rest = index + 2 * 10 * 4;
    is_int((long long)kept(NET("LeakyReLU MaxPool2d(2)", 144)), (long long)(large + small + rest), "apart");
    is_int((long long)kept(NET("ReLU MaxPool2d(2)", 144)), (long long)(small + rest), "as one");
    is_int((long long)kept(NET("MaxPool2d(2) ReLU", 144)), (long long)(small + rest), "as one the other way round");
    is_int((long long)kept(NET("BatchNorm2d(4) LeakyReLU MaxPool2d(2)", 144)),
           (long long)(2 * large + small + rest + 32), "after a normalisation, apart");
    is_int((long long)kept(NET("BatchNorm2d(4) ReLU MaxPool2d(2)", 144)), (long long)(large + small + rest + 32),
           "after a normalisation, as one");
}

static void test_verifier(void) {
    Settings s = settings_default();
    Err e = {0, ""};
    Program *p = compiled(NET("ReLU MaxPool2d(2)", 144), shape4(2, 3, 12, 12), &s);
    for (int i = 0; p && i < p->n_ops; i++)
        if (p->ops[i].kind == OP_maxpool) p->ops[i].attr.pool.fused.act = ACT_SIGMOID;
    is_int(p ? program_check(p, "test", &e) : 0, ERR_INTERNAL, "a pooling that applies anything else is refused");
    has_text(e.text, "maxpool", "by name");
    program_free(p);
}

int main(void) {
    test_cases();
    test_kept();
    test_verifier();
    return tap_done();
}
