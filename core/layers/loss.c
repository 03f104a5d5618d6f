/* The losses, told apart by the op. CrossEntropyLoss: logits (N, C) and a class (N) each, or (N, C, H, W) and a class
 * (N, H, W) of each pixel. The others: a target like the network's output, in whatever order that is. The result is one
 * number. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "layer.h"

int layer_loss_shape(Network *n, Layer *l, Err *e) {
    (void)n;
    if (l->kind->which == OP_cross_entropy) {
        double smoothing = options_float(&l->options, "label_smoothing");
        int code = l->in.rank == 4 ? OK : layer_expect_rank(l, 2, "(N, classes) or 4 (N, classes, H, W)", e);
        if (code || (code = layer_expect_range(l, "ignore_index", INT32_MIN, INT32_MAX, e))) return code;
        if (!(smoothing >= 0 && smoothing <= 1))
            return layer_error(l, e, "label_smoothing must be between 0 and 1, found %g", smoothing);
    }
    layer_output(l, (Shape){0, {1, 1, 1, 1}});
    return OK;
}

/* Logits as (N, C) or, of an image, whose channels lie side by side, as (N H W, C). */
static int logit_rows(Lower *lw, const Layer *l, int x) {
    const int64_t *d = l->in.dim;
    Layer rows = *l;
    if (l->in.rank == 2) return lower_rows(lw, l, x);
    rows.out = shape2(d[0] * d[2] * d[3], d[1]);
    return lower_view(lw, &rows, x);
}

static int make_target(Lower *lw, bool classes, int x) {
    const Buf like = lw->p->bufs[x];
    int t = program_buf(lw->p, CAT_INPUT, classes ? shape1(like.shape.dim[0]) : like.shape, classes ? DT_I32 : DT_F32,
                        "target");
    if (lw->p->failed) return 0;
    Buf *b = &lw->p->bufs[t];
    b->kind = BUF_INPUT;
    if (classes) return t;
    b->layout = like.layout;
    memcpy(b->order, like.order, sizeof b->order);
    return t;
}

int layer_loss_forward(Lower *lw, const Layer *l, const int *in) {
    bool classes = l->kind->which == OP_cross_entropy;
    Program *p = lw->p;
    int x = in[0];
    char text[OPTION_WORDS];
    Attr a;
    memset(&a, 0, sizeof a);
    a.loss.scale = 1;
    a.loss.sum = !strcmp(options_word(&l->options, "reduction", text), "sum");
    if (classes) {
        a.loss.smoothing = (float)options_float(&l->options, "label_smoothing");
        a.loss.ignore_index = (int32_t)options_int(&l->options, "ignore_index");
        x = logit_rows(lw, l, x);
    }
    if (p->failed) return 0;
    p->target = make_target(lw, classes, x);
    int loss = lower_op(lw, (OpKind)l->kind->which, l, (int[]){x, p->target}, 2, &a);
    if (p->failed) return 0;
    Buf *b = &p->bufs[loss];
    snprintf(b->name, sizeof b->name, "loss");
    b->category = CAT_OTHER;
    b->keep = true;
    return loss;
}
