#include "op.h"

#define LOW AUTOCAST_LOW
#define WIDE AUTOCAST_WIDE
#define SAME AUTOCAST_SAME
#define NONE AUTOCAST_NONE
#define PREPARED true
#define PLAIN false

/* IN_conv2d, OUT_conv2d: how many operands the op has */
enum {
#define IN(...) +1
#define OPT(...) +1
#define OUT(...) +1
#define NOTHING +0
#define OP(name, in, out, inplace, autocast, prepare, equation) IN_##name = 0 in, OUT_##name = 0 out,
#include "ops.def"
#undef OP
#undef NOTHING
#undef OUT
#undef OPT
#undef IN
};

static const OpInfo table[OP_KIND_COUNT] = {
#define UPDATED .updated = true
#define FP32 .fp32 = true
#define ANY .any = true
#define AS_IS .as_is = true
#define ROUNDED .rounded = true
#define OPERAND(text, ...) {.name = #text, __VA_ARGS__},
#define IN(...) OPERAND(__VA_ARGS__, )
#define OPT(...) OPERAND(__VA_ARGS__, .optional = true)
#define OUT(...) OPERAND(__VA_ARGS__, )
#define NOTHING {.name = NULL}
#define ASK(index) index, .asks = true
#define OP(text, in_, out_, inplace_, autocast_, prepare, says)                                                             \
    {.name = #text, .equation = says, .inplace = inplace_, .autocast = autocast_, .prepared = prepare, .n_in = IN_##text,   \
     .n_out = OUT_##text, .in = {in_}, .out = {out_}},
#include "ops.def"
#undef OP
};

const OpInfo *op_info(OpKind kind) {
    assert((unsigned)kind < OP_KIND_COUNT);
    return &table[kind];
}
