/* The recompute_light pass: what light ops make of kept activations is made again where that lowers the peak; no value
 * changes, no product runs twice, nothing is updated twice. */
#include "checkpoint_nets.h"
#include "digest.h"
#include "tap.h"

/* name, text, bytes that the peak must fall by at least, in fp32; and how many second runs all settings have: the quickest that reach
 * their peaks, so that another order, or another choice, has others */
static const struct { const char *name, *text; size_t falls; int again; } lights[] = {
    {"a chain", "Sequential{Conv2d(3, 8, 3, padding=1) GELU Conv2d(8, 8, 3, padding=1) GELU Conv2d(8, 8, 3, padding=1) GELU"
                " Conv2d(8, 8, 3, padding=1) GELU Flatten Linear(2048, 10)}", 64 << 10, 101},
    {"normalised blocks", "Sequential{Conv2d(3, 8, 3, padding=1) BatchNorm2d(8) ReLU Residual{Sequential{"
                          "Conv2d(8, 8, 3, padding=1) BatchNorm2d(8) ReLU Conv2d(8, 8, 3, padding=1) BatchNorm2d(8)}} ReLU"
                          " Residual{Sequential{Conv2d(8, 8, 1) GELU Dropout Conv2d(8, 8, 1)}} Flatten Linear(2048, 10)}", 64 << 10, 126},
    {"views", "Sequential{Conv2d(3, 4, 3, padding=1) Flatten GELU Tanh GELU Sigmoid GELU Tanh GELU Linear(1024, 10)}", 0, 4},
    {"checkpoints", marked, 0, 49},
    {"narrow products, as light as GELU", "Sequential{Flatten Linear(768, 2) Linear(2, 16384) GELU Linear(16384, 2) Linear(2, 16384) GELU"
                                          " Linear(16384, 2) Linear(2, 16384) GELU Linear(16384, 10)}", 128 << 10, 30},
    {"max poolings", plain, 0, 51},
    {"a large weight at the end, where nothing else is", "Sequential{Flatten Linear(768, 4) GELU Linear(4, 2000) GELU Linear(2000, 10)}", 0, 0},
};

static Settings light_settings(bool light) {
    Settings s = settings_default();
    s.recompute_light = light;
    s.recompute_least = 64;
    return s;
}

/* A copy after the pass; NULL on an error. */
static Program *lightened(const Program *p, const Settings *s, Err *e) {
    Program *c = program_copy(p);
    const int code = c ? pass_run(&(Pass){"recompute_light", pass_recompute_light}, c, &(Compile){.settings = s, .device = &model, .e = e})
                       : err_set(e, ERR_HOST_MEMORY, "no copy");
    if (!code) return c;
    program_free(c);
    return NULL;
}

static double all_seconds(const Program *p) {
    double seconds = 0;
    for (int i = 0; i < p->n_ops; i++) seconds += op_seconds(&p->ops[i]);
    return seconds;
}

/* Does an op run again that is a product, or that updates something? */
static bool heavy_again(const Program *p) {
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        if (!op->recomputed) continue;
        if (i < p->forward_end || op_info(op->kind)->autocast == AUTOCAST_LOW) return true;
        EACH_OUT(op, k)
            if (op_info(op->kind)->out[k].updated) return true;
    }
    return false;
}

/* Is a batch kept to make something of it again that is no larger, though nothing else of the backward pass reads the batch? */
static bool batch_waits(const Program *p) {
    for (int b = 0; b < p->n_bufs; b++) {
        bool again = false, else_read = false;
        for (int i = p->forward_end; p->bufs[b].kind == BUF_INPUT && i < p->n_ops; i++) {
            const Op *op = &p->ops[i];
            EACH_IN(op, k) {
                if (program_root(p, op->in[k]) != b) continue;
                if (!op->recomputed) else_read = true;
                else if (p->bufs[op->out[0]].bytes <= p->bufs[b].bytes) again = true;
            }
        }
        if (again && !else_read) return true;
    }
    return false;
}

/* Whatever the settings, the peak never rises and the values stay. */
static void test_choices(void) {
    for (size_t n = 0; n < ARRAY_LEN(lights); n++) {
        int again = 0;
        bool good = true;
        Err e = {0};
        for (int precision = 0; precision < PREC_COUNT; precision++)
            for (int way = 0; way < 4; way++) {
                Settings s = light_settings(true);
                s.precision = (Precision)precision;
                s.accumulate = 1 + way % 2;
                s.inplace = (Inplace)(precision % 3);
                s.checkpoint = way / 2 ? (Checkpoint)(precision % CHECKPOINT_BUDGET) : CHECKPOINT_NONE;
                Program *p = before(lights[n].text, &s, &e), *kept = p ? after(p, &s, &e) : NULL;
                Program *c = kept ? lightened(kept, &s, &e) : NULL;
                const size_t had = kept ? arena(kept, &s, &e) : 0, has = c ? arena(c, &s, &e) : 1;
                const int more = c ? again_count(c, OP_KIND_COUNT) - again_count(kept, OP_KIND_COUNT) : 0;
                good = good && c && same_values(kept, c) && has > 1 && (more ? has <= had - had / 100 : has == had);
                if (c && s.checkpoint == CHECKPOINT_NONE) {
                    good = good && !heavy_again(c) && !batch_waits(c) && again_seconds(c) <= all_seconds(p) / 25;
                    if (s.precision == PREC_FP32 && s.accumulate == 1 && !ok(had - has >= lights[n].falls, "%s: %zu bytes in place of %zu", lights[n].name, has, had))
                        printf("# %d second runs\n", more);
                }
                again += more;
                program_free(p);
                program_free(kept);
                program_free(c);
            }
        if (!ok(good && again == lights[n].again, "%s: %d second runs, the same values", lights[n].name, again)) printf("# %s\n", e.text);
    }
}

/* Each second run is needed: without any one of them the peak would be higher. */
static void test_stays(void) {
    Err e = {0};
    Settings s = light_settings(true);
    Program *p = before(lights[0].text, &s, &e), *c = p ? lightened(p, &s, &e) : NULL;
    if (!ok(c != NULL, "the chain compiles")) return;
    const int again = again_count(c, OP_act);
    ok(again > 0 && again < 4, "of four activations %d are made again: the peak is not at the others", again);
    is_int(again_count(c, OP_KIND_COUNT), again, "... and nothing else");
    size_t bytes = 0;
    for (int i = 0; i < c->n_ops; i++)
        if (c->ops[i].recomputed) bytes = max_size(bytes, c->bufs[c->ops[i].out[0]].bytes);
    program_free(c);
    s.recompute_least = bytes;
    c = lightened(p, &s, &e);
    is_int(c ? again_count(c, OP_KIND_COUNT) : -1, again, "what is as large as asked for, too");
    program_free(c);
    s.recompute_least = 1 << 20;
    c = lightened(p, &s, &e);
    is_int(c ? again_count(c, OP_KIND_COUNT) : -1, 0, "what is smaller than asked for stays");
    program_free(c);
    s = light_settings(false);
    c = lightened(p, &s, &e);
    is_int(c ? again_count(c, OP_KIND_COUNT) : -1, 0, "nothing runs again where the setting is off");
    program_free(c);
    s = light_settings(true);
    s.checkpoint = CHECKPOINT_BUDGET;
    c = lightened(p, &s, &e);
    is_int(c ? again_count(c, OP_KIND_COUNT) : -1, 0, "a budget alone says what is made again");
    program_free(c);
    program_free(p);
}

/* What is alive where nothing stays tells too little of this step, in place, with what may stay by it: that needs 116 MB, the step in
 * which nothing stays 108. */
static void test_nothing_stays(void) {
    static const char text[] = "Sequential{Conv2d(3, 32, 3, padding=1, bias=false) BatchNorm2d(32) ReLU Residual{Sequential{"
        "Conv2d(32, 8, 1, bias=false) BatchNorm2d(8) ReLU Conv2d(8, 8, 3, padding=1, bias=false) BatchNorm2d(8) ReLU "
        "Conv2d(8, 64, 1, bias=false) BatchNorm2d(64)} Sequential{Conv2d(32, 64, 1, bias=false) BatchNorm2d(64)}} ReLU "
        "Residual{Sequential{Conv2d(64, 64, 1, bias=false) BatchNorm2d(64) ReLU Conv2d(64, 64, 3, padding=1, bias=false) BatchNorm2d(64) "
        "ReLU Conv2d(64, 128, 1, bias=false) BatchNorm2d(128)} Sequential{Conv2d(64, 128, 1, bias=false) BatchNorm2d(128)}} ReLU "
        "AdaptiveAvgPool2d(1) Flatten Linear(128, 10)}";
    Err e = {0};
    Settings s = light_settings(true);
    s.inplace = INPLACE_ON;
    s.precision = PREC_BF16;
    Program *p = before_of(text, shape4(64, 3, 32, 32), &s, &e), *c = p ? lightened(p, &s, &e) : NULL;
    const size_t bytes = c ? arena(c, &s, &e) : 0;
    ok(bytes > 0 && bytes < 110 * 1000 * 1000, "nothing stays where what may stay needs more after all: %zu bytes", bytes);
    program_free(c);
    program_free(p);
}

int main(void) {
    test_choices();
    test_stays();
    test_nothing_stays();
    return tap_done();
}
