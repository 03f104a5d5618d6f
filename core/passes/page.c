/* Paging: a paged optimizer's states lie in the host's memory, as bitsandbytes' do, and visit the device for the update
 * of their parameter:
 *
 *     w.exp_avg.page = copy(w.exp_avg)       w.exp_avg is a persistent buffer of the host
 *     adam(g, w, w.exp_avg.page, ...)
 *     w.exp_avg = copy(w.exp_avg.page)
 *
 * So the device has the states of one parameter at a time. Copies run in line with the other ops, so they cost time, and
 * states of parameters below settings.page_least numbers stay: starting a copy takes longer than the copy. No number
 * changes. */
#include "rewrite.h"

typedef struct Visit { int state, page; } Visit; /* buffers: on the host; on the device */

/* Puts the update with its states on pages. */
static void put_paged(Program *p, const Op *update) {
    Op op = *update;
    Visit visit[OP_OUT];
    int n = 0;
    for (int k = 1; k < op_master(op.kind) && !p->failed; k++) {
        const int state = op.out[k];
        if (state == NO_BUF) continue;
        const Shape shape = p->bufs[state].shape;
        const int page = program_like(p, state, p->bufs[state].category, shape, p->bufs[state].dtype, "page");
        p->bufs[state].host = true;
        rewrite_emit(p, OP_copy, state, page, op.path);
        op.out[k] = page;
        visit[n++] = (Visit){state, page};
    }
    rewrite_put(p, &op);
    for (int i = 0; i < n; i++) rewrite_emit(p, OP_copy, visit[i].page, visit[i].state, op.path);
}

int pass_page(Program *p, Compile *c) {
    const Settings *s = c->settings;
    if (!p->updates || !optimizer_is_paged(s->optimizer.kind)) return UNCHANGED;
    Rewriter r;
    for (const Op *op = rewrite_begin(&r, p); op; op = rewrite_next(&r)) {
        if (op_is_update(op->kind) && optimizer_pages(s, &p->bufs[op->out[0]].shape)) put_paged(p, op);
        else rewrite_put(p, op);
    }
    rewrite_end(&r);
    return OK;
}
