/* rule.h: what is known of an op in addition to its row in ops.def: one rule per op, in ops/<family>.c. A rule that is
 * missing is a link error.
 *
 * A further column belongs here: what PyTorch saves for an op's gradient and what it allocates to compute it. */
#ifndef MT_RULE_H
#define MT_RULE_H

#include "gradient.h"

typedef const Buf *BufRef;

/* An op's operands as buffers, NULL where absent: o->norm_dw.mean->shape. Valid until p->bufs changes. */
typedef struct Operands {
    const Attr *attr;
#define SLOT BufRef
#include "slots.h"
} Operands;

/* A line of text that is being written. n: its length; what is too long is cut off. */
typedef struct Line { char text[2048]; int n; } Line;
/* Appends a text; format as printf. */
void line_put(Line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef struct OpRule {
    /* Do the operands' shapes, types and orders fit each other? All operands that are not optional are there. NULL:
     * they always do. */
    bool (*fits)(const Operands *o);
    /* Floating-point operations. NULL: one per element of the largest operand. */
    double (*flops)(const Operands *o);
    /* Emits ops for the gradient of the forward op f into g->p. f is a copy, since p->ops may move. dy: the gradient of
     * output 0, NO_BUF for a loss. NULL: the op has no gradient. */
    void (*gradient)(Gradients *g, const Op *f, int dy);
    /* Writes the attributes as text, each after a space. NULL: none are shown. */
    void (*show)(const Attr *a, Line *l);
} OpRule;

const OpRule *op_rule(OpKind kind);

#define OP(name, in, out, inplace, autocast, prepare, equation) extern const OpRule rule_##name;
#include "ops.def"
#undef OP

Operands operands_of(const Program *p, const Op *op);

/* ---- what several families share */

/* 0 for an operand that is absent */
static inline double buf_elements(const Buf *b) { return b ? (double)program_elements(b) : 0; }
/* The same shape, shard, and elements in the same order in memory; types may differ. */
bool same_elements(const Buf *a, const Buf *b);
/* The same, and the same type. */
bool same_buf(const Buf *a, const Buf *b);
/* Input 0 and output 0 have the same elements; the same elements and type; the same type. */
bool fits_elements(const Operands *o);
bool fits_whole(const Operands *o);
bool fits_type(const Operands *o);
/* Inputs 0 and 1 and output 0 have the same elements. */
bool fits_pair(const Operands *o);

const char *act_name(ActFn act); /* PyTorch's: "relu" */

#endif
