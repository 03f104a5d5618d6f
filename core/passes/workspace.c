/* Asks the device, before anything is allocated, what its libraries need to run each op. That becomes a buffer of the
 * program: planned, predicted and counted like every other. The pass runs again after the update, for the ops that were
 * added meanwhile; the others keep what they have. All of it is for one thread, until nothing is left to be chosen. */
#include "passes.h"
#include "program/view.h"

void workspace_add(Program *p, int i, size_t bytes, size_t alignment) {
    const Op *op = &p->ops[i];
    int ws = op->workspace;
    if (ws == NO_BUF) {
        ws = program_buf(p, CAT_WORKSPACE, shape1(1), DT_U8, "%s.%s.workspace", op->path, op_info(op->kind)->name);
        if (p->failed) return;
        p->bufs[ws].bytes = 0;
        p->ops[i].workspace = ws;
    }
    p->bufs[ws].bytes = align_up(p->bufs[ws].bytes, alignment) + bytes;
}

int workspace_ask(Program *p, int i, Device *device, size_t limit, size_t *bytes, Err *e) {
    Op *op = &p->ops[i];
    KArgs args;
    view_args(p, op, &args);
    args.device = device;
    op->limit = limit;
    return device->table->prepare(device, &args, limit, &op->state, bytes, e);
}

int pass_workspace(Program *p, Compile *c) {
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        size_t bytes = 0;
        if (!op_info(op->kind)->prepared || op->state || op->workspace != NO_BUF) continue;
        int code = workspace_ask(p, i, c->device, c->settings->workspace_limit, &bytes, c->e);
        if (code) {
            err_prefix(c->e, "op %d %s %s", i, op_info(op->kind)->name, op->path);
            return code;
        }
        if (bytes) workspace_add(p, i, bytes, c->device->table->alignment);
        if (p->failed) break;
    }
    return OK;
}

/* Each op becomes that of all the device's threads: the way is the one that was chosen, since the limit is for what one thread needs,
 * and only what each thread has of its own is added. What is in a workspace beside what the device has said, to overwrite an operand,
 * stays. */
int pass_workspace_threads(Program *p, Compile *c) {
    const size_t alignment = c->device->table->alignment;
    if (c->threads == c->device) return UNCHANGED;
    for (int i = 0; i < p->n_ops && !p->failed; i++) {
        Op *op = &p->ops[i];
        size_t one, all;
        if (!op_info(op->kind)->prepared) continue;
        int code = workspace_ask(p, i, c->device, op->limit, &one, c->e);
        if (!code) code = workspace_ask(p, i, c->threads, op->limit, &all, c->e);
        if (code) return code;
        const size_t had = op->workspace == NO_BUF ? 0 : p->bufs[op->workspace].bytes, beside = had > one ? had - align_up(one, alignment) : 0;
        if (!all && !beside) continue;
        if (had) p->bufs[op->workspace].bytes = 0;
        if (all) workspace_add(p, i, all, alignment);
        if (beside) workspace_add(p, i, beside, alignment);
    }
    return OK;
}
