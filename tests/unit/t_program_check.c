/* The verifier: what passes could do wrong, done to valid programs, is found at its op and told. */
#include "bare.h"
#include "base/mem.h"
#include "nets.h"
#include "tap.h"

/* ---- one mistake after the other in a program that begins with
 *
 *   0 conv2d   0.y = input, 0.weight, 0.bias
 *   1 dropout  1.y (in 0.y) = 0.y, calls
 *   2 view     2.y (in 0.y) = 1.y
 *   3 linear   3.y = 2.y, 3.weight, 3.bias */
static const char NET[] = "Sequential{Conv2d(3, 4, 3) Dropout Flatten Linear(64, 10)}";

enum { OTHER = 1 << 20 };

typedef void Mistake(Program *p);

static int at(const Program *p, OpKind kind) {
    int i = 0;
    while (i < p->n_ops - 1 && p->ops[i].kind != kind) i++;
    return i;
}

static Buf *buf_of(Program *p, const char *name) { return &p->bufs[find_buf(p, name)]; }

static void input_out_of_range(Program *p) { p->ops[0].in[0] = OTHER; }
static void input_below(Program *p) { p->ops[0].in[0] = -2; }
static void too_many_inputs(Program *p) { p->ops[2].in[1] = 0; }
static void input_missing(Program *p) { p->ops[0].in[1] = NO_BUF; }
static void output_out_of_range(Program *p) { p->ops[0].out[0] = OTHER; }
static void too_many_outputs(Program *p) { p->ops[2].out[1] = 0; }
static void output_missing(Program *p) { p->ops[0].out[0] = NO_BUF; }
static void on_host(Program *p) { buf_of(p, "0.y")->host = true; }
static void copy_beside(Program *p) {
    p->ops[1].kind = OP_copy;
    p->ops[1].in[1] = NO_BUF;
}
static void not_made(Program *p) { p->ops[0].in[0] = find_buf(p, "3.y"); }
static void overwritten(Program *p) { p->ops[3].in[0] = find_buf(p, "0.y"); }
static void made_twice(Program *p) { p->ops[3].out[0] = find_buf(p, "0.y"); }
static void over_parameter(Program *p) { p->ops[0].out[0] = find_buf(p, "3.weight"); }
static void update_of_temp(Program *p) { p->ops[at(p, OP_sgd)].out[0] = find_buf(p, "3.weight.grad"); }
static void wrong_bytes(Program *p) { buf_of(p, "3.y")->bytes += 4; }
static void huge_shape(Program *p) { buf_of(p, "3.y")->shape = shape4(INT64_MAX, 2, 2, 2); }
static void alias_beyond(Program *p) { buf_of(p, "3.y")->alias = OTHER; }
static void alias_of_small(Program *p) { buf_of(p, "3.y")->alias = find_buf(p, "0.bias"); }
static void alias_of_alias(Program *p) { buf_of(p, "3.y")->alias = find_buf(p, "2.y"); }
static void in_anothers_storage(Program *p) {
    buf_of(p, "3.y")->alias = buf_of(p, "3.y.grad")->alias = find_buf(p, "0.y");
}
static void in_the_input(Program *p) { buf_of(p, "1.y")->alias = p->ops[1].in[0] = p->inputs[0]; }
static void in_two_inputs(Program *p) { p->ops[1].in[1] = p->ops[1].in[0]; }
static void kept_and_overwritten(Program *p) { buf_of(p, "0.y")->keep = true; }
static void last_micro_batch_only(Program *p) { p->micro_batches = 2; }
static void no_memory(Program *p) { p->failed = true; }

static const struct { Mistake *make; ErrCode code; const char *message; } mistakes[] = {
    {input_out_of_range, ERR_INTERNAL, "after test: op 0 conv2d 0: input out of range"},
    {input_below, ERR_INTERNAL, "op 0 conv2d 0: input out of range"},
    {too_many_inputs, ERR_INTERNAL, "op 2 view 2: too many inputs"},
    {input_missing, ERR_INTERNAL, "op 0 conv2d 0: an input is missing"},
    {output_out_of_range, ERR_INTERNAL, "op 0 conv2d 0: output out of range"},
    {too_many_outputs, ERR_INTERNAL, "op 2 view 2: too many outputs"},
    {output_missing, ERR_INTERNAL, "op 0 conv2d 0: an output is missing"},
    {on_host, ERR_INTERNAL, "op 0 conv2d 0: works on host memory: 0.y"},
    {copy_beside, ERR_INTERNAL, "op 1 copy 1: copies within one memory: 1.y"},
    {not_made, ERR_INTERNAL, "op 0 conv2d 0: reads a buffer that no op before it has written: 3.y"},
    {overwritten, ERR_INTERNAL, "op 3 linear 3: reads storage that was overwritten: 0.y"},
    {made_twice, ERR_INTERNAL, "op 3 linear 3: writes a buffer that another op has written: 0.y"},
    {over_parameter, ERR_INTERNAL, "op 0 conv2d 0: writes over a buffer that lasts: 3.weight"},
    {update_of_temp, ERR_INTERNAL, ": updates a buffer that does not last: 3.weight.grad"},
    {wrong_bytes, ERR_INTERNAL, "after test: 3.y has 84 bytes, its shape wants 80"},
    {huge_shape, ERR_INTERNAL, "after test: 3.y: "},
    {alias_beyond, ERR_INTERNAL, "after test: 3.y shares the storage of a buffer that cannot hold it"},
    {alias_of_small, ERR_INTERNAL, "after test: 3.y shares the storage of a buffer that cannot hold it"},
    {alias_of_alias, ERR_INTERNAL, "after test: 3.y shares the storage of a buffer that cannot hold it"},
    {in_anothers_storage, ERR_INTERNAL, "op 3 linear 3: writes into the storage of another buffer: 3.y"},
    {in_the_input, ERR_INTERNAL, "op 1 dropout 1: overwrites an input or parameter: 1.y"},
    {in_two_inputs, ERR_INTERNAL, "op 1 dropout 1: overwrites another of its inputs: 1.y"},
    {kept_and_overwritten, ERR_INTERNAL, "after test: 0.y is kept but overwritten"},
    {last_micro_batch_only, ERR_INTERNAL, ": reads a temporary of the last micro-batch only: "},
    {no_memory, ERR_HOST_MEMORY, "out of host memory in test"},
};

static void test_mistakes(void) {
    Settings s = settings_default();
    s.optimizer.kind = OPTIM_SGD;
    s.inplace = INPLACE_ON;
    Program *valid = compiled(NET, shape4(2, 3, 6, 6), &s);
    Err e = {0, ""};
    if (!ok(valid && program_check(valid, "test", &e) == OK, "a valid program: %s", e.text)) return;
    for (size_t i = 0; i < ARRAY_LEN(mistakes); i++) {
        Program *p = program_copy(valid);
        mistakes[i].make(p);
        is_int(program_check(p, "test", &e), mistakes[i].code, "a mistake is found");
        has_text(e.text, mistakes[i].message, mistakes[i].message);
        program_free(p);
    }
    for (int n = 1; n <= 3; n++) {
        mem_fail_after(n);
        is_int(program_check(valid, "test", &e), ERR_HOST_MEMORY, "without memory nothing can be said");
        mem_fail_after(0);
    }
    program_free(valid);
}

/* ---- operands that do not fit */

/* Puts a buffer of a shape that nothing has in the place of an operand. */
static bool replace(Program *p, int *operand) {
    const Buf was = p->bufs[*operand];
    const int b = program_buf(p, CAT_OTHER, shape4(1, 13, 1, 17), was.dtype, "other");
    if (p->failed) return false;
    p->bufs[b].kind = was.kind;
    p->bufs[b].layout = was.layout;
    *operand = b;
    return true;
}

/* how often it was done to the first operand on a side, and found at that op */
static int tried[OP_KIND_COUNT][2], found[OP_KIND_COUNT][2];

static void try_operand(const Program *valid, int i, bool output) {
    Program *p = program_copy(valid);
    char message[64];
    Err e = {0, ""};
    Op *op = &p->ops[i];
    snprintf(message, sizeof message, "after test: op %d %s ", i, op_info(op->kind)->name);
    if (replace(p, output ? &op->out[0] : &op->in[0])) {
        /* what an op reads is there before it, so that nothing else is wrong with it */
        if (!output) p->bufs[op->in[0]].kind = BUF_PERSISTENT;
        tried[op->kind][output]++;
        if (program_check(p, "test", &e) && !strncmp(e.text, message, strlen(message))) found[op->kind][output]++;
    }
    program_free(p);
}

static void try_all(const char *net, Shape input, const Settings *s) {
    Program *p = compiled(net, input, s);
    Err e = {0, ""};
    if (!ok(p && program_check(p, "test", &e) == OK, "%.40s...: %s", net, e.text)) return;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].in[0] != NO_BUF) try_operand(p, i, false);
        if (p->ops[i].out[0] != NO_BUF) try_operand(p, i, true);
    }
    program_free(p);
}

/* Of these the verifier looks at types alone, or at nothing: what their sizes are follows from their attributes. */
static bool is_loose(OpKind kind) {
    static const OpKind loose[] = {OP_maxpool, OP_maxpool_dx, OP_avgpool, OP_avgpool_dx, OP_adaptive_avgpool,
                                   OP_adaptive_avgpool_dx, OP_nhwc_to_nchw, OP_nhwc_to_nchw_dx, OP_prelu_dw, OP_bias_db,
                                   OP_cross_entropy, OP_count_call, OP_step_begin};
    for (size_t i = 0; i < ARRAY_LEN(loose); i++)
        if (loose[i] == kind) return true;
    return false;
}

static void test_operands(void) {
    static const struct { const char *net; Shape in; } nets[] = {
        {NET_MIXED, {4, {3, 3, 12, 12}}}, {NET_BRANCHES, {4, {3, 3, 12, 12}}}, {NET_NORMS, {4, {3, 3, 12, 12}}},
        {NET_SEQUENCE, {3, {3, 5, 6, 1}}}, {NET_CROSS, {3, {3, 5, 6, 1}}}, {NET_LLAMA, {3, {3, 5, 6, 1}}},
        {NET_PATCHES, {4, {3, 3, 12, 12}}}, {NET_WORDS, {2, {2, 6, 1, 1}}},
        {NET_OWN, {3, {3, 5, 6, 1}}}};
    for (size_t i = 0; i < ARRAY_LEN(nets); i++) {
        Settings s = settings_default();
        s.inplace = INPLACE_OFF;
        try_all(nets[i].net, nets[i].in, &s);
    }
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        for (int side = 0; side < 2; side++)
            if (tried[kind][side] && !is_loose((OpKind)kind))
                is_int(found[kind][side], tried[kind][side], op_info((OpKind)kind)->name);
}

int main(void) {
    test_mistakes();
    test_operands();
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
