/* Feeding ahead: an input has a second buffer on the device, "input.ahead", to which the next micro-batch is copied while this one
 * is computed. When its turn comes, it is copied on from there, within the device, which takes a fraction of the time that the link
 * to the host takes. The second buffers last from step to step, and count as input. No number changes. */
#include <string.h>

#include "passes.h"

int pass_feed_ahead(Program *p, Compile *c) {
    if (!c->settings->feed_ahead) return UNCHANGED;
    char name[BUF_NAME];
    for (int k = 0; k < program_fed_buffers(p) * p->fed && !p->failed; k++) {
        const int of = program_fed(p, k % program_fed_buffers(p), k / program_fed_buffers(p));
        const int ahead = program_like(p, of, CAT_INPUT, p->bufs[of].shape, p->bufs[of].dtype, "ahead");
        if (p->failed) break;
        Buf *b = &p->bufs[ahead];
        b->kind = BUF_PERSISTENT;
        memcpy(b->name, program_scoped(p, b->name, name), sizeof name);
        p->bufs[of].ahead = ahead;
    }
    return OK;
}
