/* Asks the device, before anything is allocated, what its libraries need to run each op. That becomes a buffer of the
 * program: planned, predicted and counted like every other. The pass runs again after the update, for the ops that were
 * added meanwhile; the others keep what they have. */
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

int pass_workspace(Program *p, Compile *c) {
    for (int i = 0; i < p->n_ops; i++) {
        Op *op = &p->ops[i];
        KArgs args;
        size_t bytes = 0;
        if (!op_info(op->kind)->prepared || op->state || op->workspace != NO_BUF) continue;
        view_args(p, op, &args);
        args.device = c->device;
        int code = c->device->table->prepare(c->device, &args, c->settings->workspace_limit, &op->state, &bytes,
                                              c->e);
        if (code) {
            err_prefix(c->e, "op %d %s %s", i, op_info(op->kind)->name, op->path);
            return code;
        }
        if (bytes) workspace_add(p, i, bytes, c->device->table->alignment);
        if (p->failed) break;
    }
    return OK;
}
