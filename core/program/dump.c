/* The program as text.
 *
 *   input  f32 (64, 3, 32, 32) nhwc input 786432                    a buffer that no op makes: its bytes
 *   12  conv2d 2          2.y = x:0.y w:2.weight b:2.bias           op number, kind, layer path, outputs = inputs
 *       2.y f32 (64, 128, 28, 28) nhwc activations 25690112         ... and the buffers it makes */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "program.h"

typedef struct Line { char text[2048]; int n; } Line;

__attribute__((format(printf, 2, 3))) static void put(Line *l, const char *format, ...) {
    va_list args;
    if (l->n >= (int)sizeof l->text - 1) return;
    va_start(args, format);
    int n = vsnprintf(l->text + l->n, sizeof l->text - (size_t)l->n, format, args);
    va_end(args);
    l->n = n < 0 || l->n + n >= (int)sizeof l->text ? (int)sizeof l->text - 1 : l->n + n;
}

static void put_buf(Line *l, const Program *p, int i) {
    const Buf *b = &p->bufs[i];
    char text[SHAPE_TEXT];
    put(l, "%s %s %s", b->name, dtype_name(b->dtype), shape_text(&b->shape, text));
    if (b->layout == LAYOUT_NHWC) put(l, " nhwc");
    if (b->order[0]) put(l, " order=%" PRId64 "x%" PRId64 "x%" PRId64, b->order[0], b->order[1], b->order[2]);
    put(l, " %s", category_name(b->category));
    if (b->alias != NO_BUF) put(l, " in %s", p->bufs[b->alias].name);
    else put(l, " %zu", b->bytes);
    if (b->carried) put(l, " carried");
    if (b->keep) put(l, " keep");
    if (b->host) put(l, " host");
}

static void put_attr(Line *l, const Op *op) {
    static const char *const act[] = {
#define X(name, text, saved) text,
        ACTS(X)
#undef X
    };
    static const char *const loss[] = {
#define X(name, text) text,
        LOSSES(X)
#undef X
    };
    switch (op->kind) {
    case OP_conv2d: case OP_conv2d_dx: case OP_conv2d_dw: {
        const ConvAttr *c = &op->attr.conv;
        put(l, " stride=%dx%d pad=%d,%d,%d,%d dilation=%dx%d groups=%d", c->stride[0], c->stride[1], c->pad[0],
            c->pad[1], c->pad[2], c->pad[3], c->dilation[0], c->dilation[1], c->groups);
        if (c->fused.act) put(l, " act=%s", act[c->fused.act]);
        if (c->tf32) put(l, " tf32");
        break;
    }
    case OP_linear: case OP_linear_dx: case OP_linear_dw:
        if (op->attr.linear.fused.act) put(l, " act=%s", act[op->attr.linear.fused.act]);
        if (op->attr.linear.tf32) put(l, " tf32");
        break;
    case OP_act: case OP_act_dx: put(l, " f=%s", act[op->attr.act.act]); break;
    case OP_maxpool: case OP_maxpool_dx: case OP_avgpool: case OP_avgpool_dx: {
        const PoolAttr *a = &op->attr.pool;
        put(l, " kernel=%dx%d stride=%dx%d pad=%dx%d", a->kernel[0], a->kernel[1], a->stride[0], a->stride[1],
            a->pad[0], a->pad[1]);
        if (a->fused.act) put(l, " act=%s", act[a->fused.act]);
        break;
    }
    case OP_randn: put(l, " id=%u", op->attr.drop.id); break;
    case OP_dropout: case OP_dropout_dx: put(l, " p=%g id=%u", (double)op->attr.drop.p, op->attr.drop.id); break;
    case OP_element_loss: case OP_element_loss_dx:
        put(l, " f=%s scale=%g", loss[op->attr.loss.f], (double)op->attr.loss.scale);
        break;
    case OP_cross_entropy: case OP_cross_entropy_dx:
        put(l, "%s scale=%g", op->attr.loss.log ? " log" : "", (double)op->attr.loss.scale);
        if (op->attr.loss.beta != 0) put(l, " square=%g", (double)op->attr.loss.beta);
        break;
    case OP_attention: case OP_attention_dx: {
        const AttentionAttr *a = &op->attr.attention;
        put(l, " heads=%d kv_heads=%d%s", a->heads, a->kv_heads, a->causal ? " causal" : "");
        break;
    }
    case OP_rotary: {
        const RotaryAttr *r = &op->attr.rotary;
        put(l, " dim=%d base=%g %s%s", r->dim, (double)r->base, r->interleaved ? "interleaved" : "halves",
            r->back ? " back" : "");
        break;
    }
    case OP_broadcast: case OP_broadcast_ds: put(l, " %s", op->attr.broadcast.add ? "sum" : "product"); break;
    case OP_concat: put(l, " axis=%d", op->attr.axis.axis); break;
    case OP_slice: case OP_slice_dx:
        put(l, " axis=%d start=%" PRId64, op->attr.axis.axis, op->attr.axis.start);
        break;
    default:
        if (op_is_update(op->kind)) put(l, " lr=%g", (double)op->attr.optim.rule.lr);
    }
}

static void put_operands(Line *l, const Program *p, const Op *op, bool output) {
    int n = output ? op_info(op->kind)->n_out : op_info(op->kind)->n_in;
    for (int k = 0; k < n; k++) {
        int b = output ? op->out[k] : op->in[k];
        if (b == NO_BUF) continue;
        if (output) put(l, " %s", p->bufs[b].name);
        else put(l, " %s:%s", op_info(op->kind)->in[k].name, p->bufs[b].name);
    }
}

static void dump_op(const Program *p, int i, TextSink *sink, void *arg) {
    const Op *op = &p->ops[i];
    Line l = {"", 0};
    put(&l, "%3d %s %s%s:", i, op_info(op->kind)->name, op->path[0] ? op->path : ".", op->recomputed ? " again" : "");
    put_operands(&l, p, op, true);
    put(&l, " =");
    put_operands(&l, p, op, false);
    put_attr(&l, op);
    if (op->workspace != NO_BUF) put(&l, " workspace=%zu", p->bufs[op->workspace].bytes);
    sink(arg, l.text);
    for (int k = 0; k < op_info(op->kind)->n_out; k++) {
        if (op->out[k] == NO_BUF || op_info(op->kind)->out[k].updated) continue;
        l.n = 0;
        put(&l, "      ");
        put_buf(&l, p, op->out[k]);
        sink(arg, l.text);
    }
}

void program_dump(const Program *p, TextSink *sink, void *arg) {
    for (int b = 0; b < p->n_bufs; b++) {
        if (p->bufs[b].kind == BUF_TEMP && !p->bufs[b].carried) continue;
        Line l = {"", 0};
        put_buf(&l, p, b);
        sink(arg, l.text);
    }
    for (int i = 0; i < p->n_ops; i++) {
        if (i == 0 && p->micro_batches > 1) {
            Line l = {"", 0};
            put(&l, "-- body, %d times", p->micro_batches);
            sink(arg, l.text);
        }
        if (i == p->forward_end && i < p->body_end) sink(arg, "-- backward");
        if (i == p->body_end) sink(arg, "-- once per step");
        dump_op(p, i, sink, arg);
    }
}
