/* slots.h: the operands of an op, by place and by name. It is included within a struct; SLOT is defined before as the
 * struct's type for an operand (the index of a buffer, a view, a tensor):
 *
 *   op->in[2], op->out[1]                  operands by place, of any op
 *   op->norm_dw.mean, op->norm_dw.db       the same places under the names that the op's row in ops.def gives them
 *
 * A function that serves several ops uses the names of the first one for operands that have the same name and place in
 * all of them (tests/unit/t_ops.c), and places for the others: x of an op is dy of its gradient. op->update has what
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
