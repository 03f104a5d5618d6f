/* ops.def: the operands that functions for several ops take by one name are at one place in all of them; every row
 * says what the table keeps of it. */
#include <stddef.h>

#include "program/kernel.h"
#include "tap.h"

/* The place of an operand, outputs after inputs; -1: the op has none of that name. */
static int place(OpKind kind, const char *name, size_t length) {
    const OpInfo *info = op_info(kind);
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const char *at = k < OP_IN ? info->in[k].name : info->out[k - OP_IN].name;
        if (at && strlen(at) == length && !memcmp(at, name, length)) return k;
    }
    return -1;
}

/* names: of operands, each followed by a space */
static void is_shared(OpKind first, OpKind other, const char *names) {
    for (const char *end; (end = strchr(names, ' ')); names = end + 1) {
        int at = place(first, names, (size_t)(end - names));
        ok(at >= 0 && at == place(other, names, (size_t)(end - names)), "%s and %s have %.*s at one place",
           op_info(first)->name, op_info(other)->name, (int)(end - names), names);
    }
}

static void check_families(void) {
    is_shared(OP_conv2d, OP_linear, "x w b y ");
    is_shared(OP_conv2d_dx, OP_linear_dx, "dy w s dx db ");
    is_shared(OP_conv2d_dw, OP_linear_dw, "x dy dw db ");
    is_shared(OP_conv2d_dx, OP_conv2d_dw, "db ");
    is_shared(OP_dropout, OP_dropout_dx, "calls ");
    is_shared(OP_batchnorm, OP_batchnorm_eval, "x w b y ");
    is_shared(OP_batchnorm, OP_batchnorm_again, "x w b y ");
    is_shared(OP_batchnorm_eval, OP_batchnorm_again, "mean ");
    is_shared(OP_batchnorm, OP_norm, "x w b y mean istd ");
    is_shared(OP_batchnorm_dx, OP_norm_dx, "dy x w mean istd dx ");
    is_shared(OP_norm_dx, OP_norm_dw, "dy x ");
    is_shared(OP_cast, OP_accumulate, "x ");
    is_shared(OP_cross_entropy, OP_element_loss, "x t loss ");
    is_shared(OP_cross_entropy, OP_cross_entropy_dx, "x t ");
    is_shared(OP_cross_entropy_dx, OP_element_loss_dx, "x t state dx ");
    is_shared(OP_element_loss, OP_element_loss_dx, "x t ");
    is_shared(OP_avgpool, OP_adaptive_avgpool, "x y ");
    is_shared(OP_avgpool_dx, OP_adaptive_avgpool_dx, "dy dx ");
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        if (op_is_update((OpKind)kind)) is_shared(OP_sgd, (OpKind)kind, "g state lr square w ");
}

static void check_slots(void) {
    is_int(offsetof(KArgs, norm_dw.mean), offsetof(KArgs, in[2]), "a name is a place: an input");
    is_int(offsetof(KArgs, norm_dw.db), offsetof(KArgs, out[1]), "an output");
    is_int(offsetof(KArgs, step_begin.state), offsetof(KArgs, out[0]), "an output of an op without inputs");
    is_int(offsetof(KArgs, concat.h), offsetof(KArgs, in[7]), "the last input that an op can have");
    is_int(offsetof(KArgs, batchnorm.batches), offsetof(KArgs, out[5]), "the last output");
    is_int(offsetof(KArgs, update.square), offsetof(KArgs, sgd.square), "what updates share: an input");
    is_int(offsetof(KArgs, update.w), offsetof(KArgs, sgd.w), "the parameter");
}

static void check_rows(void) {
    const OpInfo *batch = op_info(OP_batchnorm), *step = op_info(OP_step_begin), *act = op_info(OP_act);
    is_int(batch->n_in, 3, "inputs of batchnorm");
    is_int(batch->n_out, 6, "its outputs");
    ok(!batch->in[0].optional && batch->in[1].optional, "x must be there, w need not be");
    ok(!batch->in[0].fp32 && batch->in[1].fp32, "w is fp32");
    ok(batch->out[3].updated && !batch->out[1].updated, "running_mean is updated, mean is made");
    ok(act->in[0].any && act->out[0].any && !batch->in[0].any, "act converts what it reads and writes");
    is_int(step->n_in, 0, "step_begin has no inputs");
    ok(!step->in[0].name && !strcmp(step->out[0].name, "state"), "and one output");
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const OpInfo *info = op_info((OpKind)kind);
        ok(info->n_in <= OP_IN && info->n_out >= 1 && info->n_out <= OP_OUT, "%s has as many operands as ops can",
           info->name);
    }
}

int main(void) {
    check_families();
    check_slots();
    check_rows();
    return tap_done();
}
