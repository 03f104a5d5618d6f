/* slots.h: the operands of an op, by place and by name. It is included within a struct, after SLOT is defined as what
 * the struct has of each operand (a buffer, a view, a tensor):
 *
 *   op->in[2], op->out[1]                  operand by place, whatever the op
 *   op->norm_dw.mean, op->norm_dw.db       the same places under the names that the op's row in ops.def gives them
 *
 * A function that serves several ops uses the names of the first one for what all have under that name at that place
 * (tests/unit/t_ops.c), and places for what they name differently: x of an op is dy of its gradient. op->update is what
 * all updates of parameters share. */
union {
    struct { SLOT in[OP_IN], out[OP_OUT]; };
    struct { union { SLOT in[OP_IN]; struct { SLOT g, state, lr, square; }; }; SLOT w; } update;
#define SLOT_OF(name, ...) SLOT name;
#define IN(...) SLOT_OF(__VA_ARGS__, )
#define OPT(...) SLOT_OF(__VA_ARGS__, )
#define OUT(...) SLOT_OF(__VA_ARGS__, )
#define NOTHING SLOT nothing;
#define OP(name, inputs, outputs, inplace, autocast, prepare, equation)                                                \
    struct { union { SLOT in[OP_IN]; struct { inputs }; }; struct { outputs }; } name;
#include "ops.def"
#undef OP
#undef NOTHING
#undef OUT
#undef OPT
#undef IN
#undef SLOT_OF
};
#undef SLOT
