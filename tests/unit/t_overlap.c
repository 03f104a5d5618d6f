/* Pass overlap: what is begun is waited for, ops stand between, the order in which ranks exchange stays, and the verifier finds a
 * program in which something touches what is under way. */
#include "base/mem.h"
#include "nets.h"
#include "tap.h"

#define DEEP "Sequential{Linear(24, 64) ReLU Linear(64, 64) ReLU Linear(64, 64) ReLU Linear(64, 64) ReLU Linear(64, 10)}"

static Program *made(const Network *net, const Settings *s, Err *e) {
    Device *device;
    Program *p = NULL;
    if (device_open("cpu", &device, e)) return NULL;
    if (compile(net, s, device, NULL, NULL, &p, e)) p = NULL;
    device_close(device);
    return p;
}

/* The next op from i on that exchanges; n_ops: none. */
static int next_exchange(const Program *p, int i) {
    while (i < p->n_ops && (p->ops[i].kind == OP_wait || !op_exchanges(p->ops[i].kind))) i++;
    return i;
}

static bool same_exchanges(const Program *a, const Program *b) {
    int i = next_exchange(a, 0), k = next_exchange(b, 0);
    for (; i < a->n_ops && k < b->n_ops; i = next_exchange(a, i + 1), k = next_exchange(b, k + 1)) {
        const Op *one = &a->ops[i], *two = &b->ops[k];
        if (one->kind != two->kind || strcmp(a->bufs[one->out[0]].name, b->bufs[two->out[0]].name)) return false;
    }
    return i == a->n_ops && k == b->n_ops;
}

/* Ops that compute between a begun op and its wait: the fewest and the most of all begun ops of a kind. NO_OP: none was begun. */
static void between(const Program *p, OpKind kind, int *least, int *most) {
    *least = *most = NO_OP;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        int n = 0, k = i + 1;
        if (op->kind != kind || !op->begun) continue;
        for (; k < p->n_ops && !(p->ops[k].kind == OP_wait && p->ops[k].wait.y == op->out[0]); k++) n += !op_exchanges(p->ops[k].kind);
        if (k == p->n_ops) n = -1000;
        *least = *least == NO_OP ? n : min_int(*least, n);
        *most = max_int(*most, n);
    }
}

/* The most buckets that are under way while ops compute; *all: how many there are. */
static int buckets_at_once(const Program *p, int *all) {
    enum { BUCKETS = 64 };
    int under_way[BUCKETS] = {0}, most = 0;
    *all = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        int now = 0;
        if (op->begun) under_way[op->attr.collective.bucket % BUCKETS]++, *all = max_int(*all, op->attr.collective.bucket);
        for (int k = 0; op->kind == OP_wait && k < i; k++)
            if (p->ops[k].begun && p->ops[k].out[0] == op->wait.y) under_way[p->ops[k].attr.collective.bucket % BUCKETS]--;
        for (int k = 1; k < BUCKETS; k++) now += under_way[k] > 0;
        if (!op_exchanges(op->kind) && !op_is_update(op->kind)) most = max_int(most, now);
    }
    return most;
}

static void check(const Network *net, Settings s, OpKind kind, int fewest, const char *what) {
    Err e = {0, ""};
    int least, most;
    Program *in_line = made(net, &s, &e);
    s.overlap_comm = true;
    Program *p = in_line ? made(net, &s, &e) : NULL;
    if (ok(p != NULL, "%s: compiles %s", what, e.text)) {
        between(p, kind, &least, &most);
        ok(least >= 0 && most >= fewest, "%s: %s: from %d to %d ops run beside it", what, op_info(kind)->name, least, most);
        int all, at_once = buckets_at_once(p, &all);
        ok(at_once == 1 && (s.accumulate > 1 || all > 2), "%s: one of %d buckets at a time is under way", what, all);
        ok(same_exchanges(in_line, p), "%s: ranks exchange in the same order", what);
    }
    program_free(in_line);
    program_free(p);
}

/* The program with ops a and b exchanged, or with op a left out (b = a): what the verifier says. */
static int changed(const Program *p, int a, int b, Err *e) {
    Program *c = program_copy(p);
    if (!c) return OK;
    const Op kept = c->ops[a];
    c->ops[a] = c->ops[b];
    c->ops[b] = kept;
    if (a == b) {
        memmove(&c->ops[a], &c->ops[a + 1], (size_t)(c->n_ops - a - 1) * sizeof *c->ops);
        c->n_ops--;
        c->body_end -= a < c->body_end;
        c->forward_end -= a < c->forward_end;
    }
    const int code = program_check(c, "a mistake", e);
    program_free(c);
    return code;
}

static void test_verifier(const Network *net, Settings s) {
    Err e = {0, ""};
    s.zero = 3;
    s.overlap_comm = true;
    Program *p = made(net, &s, &e);
    if (!ok(p != NULL, "a program to break %s", e.text)) return;
    int wait = 0, reader;
    while (p->ops[wait].kind != OP_wait) wait++;
    for (reader = wait + 1; p->ops[reader].in[0] != p->ops[wait].wait.y && p->ops[reader].in[1] != p->ops[wait].wait.y;) reader++;
    is_int(changed(p, wait, reader, &e), ERR_INTERNAL, "an op that reads what is under way is found");
    has_text(e.text, "reads what is still under way", "and named");
    is_int(changed(p, wait, wait, &e), ERR_INTERNAL, "a wait that is missing is found");
    for (wait = 0; wait < p->n_ops && (p->ops[wait].kind != OP_wait || p->ops[wait].wait.room == NO_BUF); wait++) continue;
    if (ok(wait < p->n_ops, "a wait of an op with workspace")) {
        p->ops[wait].wait.room = NO_BUF;
        is_int(program_check(p, "a mistake", &e), ERR_INTERNAL, "a workspace that would be given back early is found");
        has_text(e.text, "waits for less than the op has", "and named");
    }
    program_free(p);
}

#define BLOCK "Residual{Sequential{LayerNorm(64) Linear(64, 128) GELU Linear(128, 64)}} "
#define WORDS "Sequential{Embedding(64, 64) PositionEmbedding(6, 64) " BLOCK BLOCK BLOCK "LayerNorm(64) Linear(64, 64) Flatten(0, 1)}"

/* Ops whose own kernel exchanges, as the bytes that they send tell: how many there are; *beside: begun ops that are under way then. */
static int exchanging_kernels(const Program *p, int *beside) {
    int n = 0, under_way = 0;
    *beside = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        under_way += op->begun - (op->kind == OP_wait);
        if (op_exchanges(op->kind) || !op_transfer(p, op).calls) continue;
        n++;
        *beside += under_way;
    }
    return n;
}

/* Ranks that have some of the classes each tell each other of them, in one thread with what else they exchange. */
static void test_vocabulary(void) {
    for (int chunks = 1; chunks <= 3; chunks += 2) {
        Err e = {0, ""};
        Network *net = net_new(WORDS, "CrossEntropyLoss", shape2(4, 6), &e);
        Settings s = settings_default();
        s.world = 4;
        s.mesh.tensor = 2;
        s.zero = 3;
        s.gather_ahead = 3;
        s.accumulate = 2;
        s.loss_chunks = chunks;
        s.overlap_comm = true;
        Program *p = net ? made(net, &s, &e) : NULL;
        int beside, n = p ? exchanging_kernels(p, &beside) : 0;
        ok(n > 0 && beside == 0, "a loss in %d parts: %d kernels exchange, and nothing is under way beside them %s", chunks, n, e.text);
        program_free(p);
        network_free(net);
    }
}

int main(void) {
    Err e = {0, ""};
    test_vocabulary();
    Network *net = net_new(DEEP, "CrossEntropyLoss", shape2(4, 24), &e);
    if (!ok(net != NULL, "a network %s", e.text)) return tap_done();
    Settings s = settings_default();
    s.world = 2;
    s.bucket_bytes = 8000;
    check(net, s, OP_all_reduce, 3, "data parallel");
    s.zero = 1;
    check(net, s, OP_reduce_scatter, 2, "ZeRO-1");
    check(net, s, OP_all_gather_, 0, "ZeRO-1");
    s.zero = 3;
    check(net, s, OP_reduce_scatter, 2, "ZeRO-3");
    check(net, s, OP_all_gather, 2, "ZeRO-3");
    s.gather_ahead = 3;
    check(net, s, OP_all_gather, 5, "ZeRO-3, three layers ahead");
    s.accumulate = 2;
    check(net, s, OP_reduce_scatter, 3, "ZeRO-3, two micro-batches");
    s.zero = 1;
    check(net, s, OP_reduce_scatter, 0, "ZeRO-1, two micro-batches");
    s.accumulate = 1;
    test_verifier(net, s);
    network_free(net);
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
