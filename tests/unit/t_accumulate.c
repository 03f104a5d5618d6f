/* Gradient accumulation: what is summed up over micro-batches, and that nothing else is kept through the step. */
#include "bare.h"
#include "tap.h"

static int count_ops(const Program *p, OpKind kind) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) n += p->ops[i].kind == kind;
    return n;
}

static Program *accumulated(const char *net, Precision precision) {
    Settings s = settings_default();
    s.accumulate = 4;
    s.precision = precision;
    Program *p = compiled(net, shape2(2, 6), &s);
    ok(p != NULL && p->micro_batches == 4, "%s in 4 micro-batches", net);
    return p;
}

static void test_sums(void) {
    Program *p = accumulated("Sequential{Linear(6, 6) ReLU Linear(6, 6, bias=false)}", PREC_FP32);
    if (!p) return;
    is_int(count_ops(p, OP_accumulate), 4, "the loss and three gradients are summed up");
    int grad = find_buf(p, "0.weight.grad"), micro = find_buf(p, "0.weight.grad.micro");
    ok(grad >= 0 && p->bufs[grad].carried && p->bufs[grad].dtype == DT_F32, "in a buffer that lasts");
    ok(micro >= 0 && !p->bufs[micro].carried, "of one that does not");
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_cross_entropy) is_near(p->ops[i].attr.loss.scale, 0.25, 0, 0, "a mean's part");
    program_free(p);
    p = accumulated("Linear(6, 6)", PREC_MASTER_BF16);
    if (!p) return;
    grad = find_buf(p, "weight.grad");
    ok(grad >= 0 && p->bufs[grad].dtype == DT_F32, "gradients of 16 bits are summed up in 32");
    program_free(p);
}

/* A layer that is used three times: its gradients are sums, whose parts are of no use after their micro-batch. */
static void test_shared(void) {
    Program *p = accumulated("Sequential{Linear(6, 6) Again Again}", PREC_FP32);
    if (!p) return;
    int carried = 0;
    for (int b = 0; b < p->n_bufs; b++) carried += p->bufs[b].carried;
    is_int(count_ops(p, OP_add), 4, "a weight and a bias with two sums of parts each");
    is_int(count_ops(p, OP_accumulate), 3, "the loss and two gradients are summed up");
    is_int(carried, 3, "and nothing else is carried");
    program_free(p);
}

int main(void) {
    test_sums();
    test_shared();
    return tap_done();
}
