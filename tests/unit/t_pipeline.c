/* Stages of a pipeline: their programs' transfers come in an order in which no rank waits for ever, even where each send waits
 * for its receive; every op of the whole step is run by one stage; and what is not supported is refused. */
#include "nets.h"
#include "tap.h"

enum { STAGES_MOST = 6 };

static Program *stage_program(const Network *net, Settings s, int stages, int stage, Err *e) {
    Device *device;
    Program *p = NULL;
    s.world = s.mesh.pipeline = stages;
    s.rank = stage;
    if (device_open("cpu", &device, e)) return NULL;
    if (compile(net, &s, device, NULL, NULL, &p, e)) p = NULL;
    device_close(device);
    return p;
}

/* The rank's next transfer from op *at on; NULL: there is none. */
static const Op *next_transfer(const Program *p, int *at) {
    while (*at < p->n_ops && p->ops[*at].kind != OP_transfer) ++*at;
    return *at < p->n_ops ? &p->ops[*at] : NULL;
}

/* Lets neighbours meet at their transfers until none can go on. True: all have come to their end. */
static bool all_end(Program *const *p, int stages, int *transfers) {
    int at[STAGES_MOST] = {0};
    *transfers = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < stages; r++) {
            const Op *sent = next_transfer(p[r], &at[r]);
            if (!sent || sent->attr.transfer.from != r) continue;
            const int to = sent->attr.transfer.to;
            const Op *got = next_transfer(p[to], &at[to]);
            if (!got || got->attr.transfer.from != r || got->attr.transfer.to != to) continue;
            if (p[r]->bufs[sent->transfer.x].bytes != p[to]->bufs[got->transfer.y].bytes) return false;
            at[r]++;
            at[to]++;
            ++*transfers;
            moved = true;
        }
    }
    for (int r = 0; r < stages; r++)
        if (next_transfer(p[r], &at[r])) return false;
    return true;
}

static int count(const Program *p, OpKind kind) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) n += p->ops[i].kind == kind;
    return n;
}

/* How many micro-batches are forward before the first gradient is received or, in the last stage, made. */
static int ahead_of(const Program *p) {
    int n = 0;
    for (int i = 0; i < p->forward_end; i++) n += p->ops[i].kind == OP_act;
    return n;
}

#define SIX \
    "Sequential{Linear(8, 8) ReLU Residual{Sequential{Linear(8, 8) ReLU Linear(8, 8)}} Linear(8, 8) ReLU Linear(8, 8) ReLU" \
    " Linear(8, 8) ReLU Linear(8, 8) ReLU Linear(8, 4)}"

static void schedules(void) {
    Err e = {0, ""};
    Network *net = net_new(SIX, "CrossEntropyLoss", shape2(2, 8), &e);
    for (int stages = 2; stages <= STAGES_MOST; stages++)
        for (int micro_batches = 1; micro_batches <= 8; micro_batches++)
            for (int k = 0; k < 2; k++) {
                Program *p[STAGES_MOST] = {NULL};
                Settings s = settings_default();
                int transfers = 0, products = 0, updates = 0;
                bool made = true, order = true;
                s.accumulate = micro_batches;
                s.pipeline_schedule = k ? PIPELINE_GPIPE : PIPELINE_1F1B;
                for (int r = 0; r < stages; r++) made &= (p[r] = stage_program(net, s, stages, r, &e)) != NULL;
                if (!ok(made, "%d stages, %d micro-batches %s", stages, micro_batches, e.text)) continue;
                ok(all_end(p, stages, &transfers) && transfers >= 2 * (stages - 1) * micro_batches + stages - 1,
                   "%d stages, %d micro-batches: all %d transfers meet", stages, micro_batches, transfers);
                for (int r = 0; r < stages; r++) {
                    const int each = count(p[r], OP_act) / micro_batches, most = k ? micro_batches : stages - r;
                    products += count(p[r], OP_linear);
                    updates += count(p[r], OP_adam);
                    order &= !each || ahead_of(p[r]) / each == (most < micro_batches ? most : micro_batches);
                }
                is_int(products, 8 * micro_batches, "each layer is one stage's, once for each micro-batch");
                is_int(updates, 16, "and so is each update");
                ok(order, "as many micro-batches are under way as the schedule says");
                for (int r = 0; r < stages; r++) program_free(p[r]);
            }
    network_free(net);
}

/* What is computed again is not sent again. */
static void checkpoints(void) {
    Err e = {0, ""};
    Network *net = net_new(SIX, "CrossEntropyLoss", shape2(2, 8), &e);
    for (int stages = 2; stages <= STAGES_MOST; stages++)
        for (int mode = CHECKPOINT_NONE, plain = 0; mode < CHECKPOINT_BUDGET; mode++) {
            Program *p[STAGES_MOST] = {NULL};
            Settings s = settings_default();
            bool made = true;
            int transfers = 0;
            s.accumulate = 2;
            s.checkpoint = (Checkpoint)mode;
            for (int r = 0; r < stages; r++) made &= (p[r] = stage_program(net, s, stages, r, &e)) != NULL;
            const bool end = made && all_end(p, stages, &transfers);
            if (mode == CHECKPOINT_NONE) plain = transfers;
            ok(end && transfers == plain, "%d stages, checkpoint %d: %d transfers %s", stages, mode, transfers, e.text);
            for (int r = 0; r < stages; r++) program_free(p[r]);
        }
    network_free(net);
}

/* The op of that kind along the pipeline, after all ops of the kind `after`: its place; NO_OP: there is none there. */
static int along_stages(const Program *p, OpKind kind, OpKind after) {
    int at = NO_OP;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind == kind && p->ops[i].attr.collective.axis == MESH_PIPELINE) at = i;
        if (p->ops[i].kind == after) at = NO_OP;
    }
    return at;
}

/* An overflow of one stage is one of all, and the norm is that of all stages' gradients. */
static void joint_updates(void) {
    Err e = {0, ""};
    Network *net = net_new(SIX, "CrossEntropyLoss", shape2(2, 8), &e);
    Settings s = settings_default();
    s.precision = PREC_AMP_FP16;
    s.optimizer.rule.clip_norm = 1;
    for (int stage = 0; stage < 3; stage++) {
        Program *p = stage_program(net, s, 3, stage, &e);
        const int overflow = p ? along_stages(p, OP_any_overflow, OP_grad_check) : NO_OP;
        const int norm = p ? along_stages(p, OP_all_reduce_, OP_grad_square) : NO_OP;
        ok(overflow != NO_OP && norm > overflow, "stage %d: the stages agree on an overflow and on the norm %s", stage, e.text);
        program_free(p);
    }
    network_free(net);
}

static void refused(const char *text, Shape input, const Settings *s, int stages, const char *expected) {
    Err e = {0, ""};
    Network *net = net_new(text, "CrossEntropyLoss", input, &e);
    Program *p = net ? stage_program(net, *s, stages, stages - 1, &e) : NULL;
    ok(!p && e.code == ERR_SCRIPT && strstr(e.text, expected), "refused: %s", e.text);
    program_free(p);
    network_free(net);
}

static void refusals(void) {
    const Shape x = shape2(2, 8);
    Settings s = settings_default();
    refused("Sequential{Linear(8, 4)}", x, &s, 3, "expected at most 2 stages of this network, found 3");
    refused("Sequential{Embedding(16, 8) Linear(8, 16, bias=false)& Flatten(0, 1)}", x, &s, 4, "at most 2 stages of this network, found 4; one stage has all layers that read 0.weight");
    s.eval = true;
    refused(SIX, x, &s, 2, "a pipeline trains");
    s = settings_default();
    s.offload = OFFLOAD_ALL;
    refused(SIX, x, &s, 2, "offload");
    s = settings_default();
    s.checkpoint = CHECKPOINT_BUDGET;
    s.budget = 1 << 30;
    refused(SIX, x, &s, 2, "no budget");
    s = settings_default();
    s.keep_gradients = true;
    refused(SIX, x, &s, 2, "keep_gradients");
    s = settings_default();
    s.optimizer.rule.clip_norm = 1;
    refused("Sequential{Linear(8, 8)! ReLU Linear(8, 4)}", x, &s, 2, "stage 0 of the pipeline has no parameter that is trained");
}

int main(void) {
    schedules();
    joint_updates();
    checkpoints();
    refusals();
    return tap_done();
}
