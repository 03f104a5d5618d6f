/* The program as text.
 *
 *   input f32 (64, 3, 32, 32) nhwc input 786432              a buffer that no op makes: type, shape, category, bytes
 *    12 conv2d 2: 2.y = x:0.y w:2.weight b:2.bias            op number, kind, layer path, outputs = inputs
 *       2.y f32 (64, 128, 28, 28) nhwc activations 25690112  below it the buffers that it makes */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "rule.h"

void line_put(Line *l, const char *format, ...) {
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
    line_put(l, "%s %s %s", b->name, dtype_name(b->dtype), shape_text(&b->shape, text));
    if (b->layout == LAYOUT_NHWC) line_put(l, " nhwc");
    if (b->turned) line_put(l, " turned");
    if (b->order[0]) line_put(l, " order=%" PRId64 "x%" PRId64 "x%" PRId64, b->order[0], b->order[1], b->order[2]);
    if (b->slice.parts) line_put(l, " part=%d/%d along %d", b->slice.index, b->slice.parts, b->slice.axis);
    if (b->shard.count) line_put(l, " shard=%" PRId64 "+%" PRId64, b->shard.first, b->shard.count);
    line_put(l, " %s", category_name(b->category));
    if (b->alias == NO_BUF) line_put(l, " %zu", b->bytes);
    else line_put(l, " in %s", p->bufs[b->alias].name);
    if (b->start) line_put(l, " from=%" PRId64, b->start);
    if (b->carried) line_put(l, " carried");
    if (b->keep) line_put(l, " keep");
    if (b->host) line_put(l, " host");
}

static void put_operands(Line *l, const Program *p, const Op *op, bool output) {
    int n = output ? op_info(op->kind)->n_out : op_info(op->kind)->n_in;
    for (int k = 0; k < n; k++) {
        int b = output ? op->out[k] : op->in[k];
        if (b == NO_BUF) continue;
        if (output) line_put(l, " %s", p->bufs[b].name);
        else line_put(l, " %s:%s", op_info(op->kind)->in[k].name, p->bufs[b].name);
    }
}

static void dump_op(const Program *p, int i, TextSink *sink, void *arg) {
    const Op *op = &p->ops[i];
    Line l = {"", 0};
    line_put(&l, "%3d %s %s%s:", i, op_info(op->kind)->name, op->path[0] ? op->path : ".",
             op->recomputed ? " again" : "");
    put_operands(&l, p, op, true);
    line_put(&l, " =");
    put_operands(&l, p, op, false);
    if (op_rule(op->kind)->show) op_rule(op->kind)->show(&op->attr, &l);
    if (op->begun) line_put(&l, " begun");
    if (op->workspace != NO_BUF) line_put(&l, " workspace=%zu", p->bufs[op->workspace].bytes);
    sink(arg, l.text);
    for (int k = 0; k < op_info(op->kind)->n_out; k++) {
        if (op->out[k] == NO_BUF || op_info(op->kind)->out[k].updated || p->bufs[op->out[k]].kind == BUF_PERSISTENT) continue;
        l.n = 0;
        line_put(&l, "      ");
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
            line_put(&l, "-- body, %d times", p->micro_batches);
            sink(arg, l.text);
        }
        if (i == p->forward_end && i < p->body_end) sink(arg, "-- backward");
        if (i == p->body_end) sink(arg, "-- once per step");
        dump_op(p, i, sink, arg);
    }
}
