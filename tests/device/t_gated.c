/* t_gated.c: a product that applies an activation to a factor gives the bits that activation and product give one after
 * the other: by the kernels, in the storage of a factor, too; and by training, in every precision. On the CPU, and on the
 * GPU that each_device.h finds. */
#include "apart.h"
#include "each_device.h"
#include "on_device.h"

/* ---- kernels */

enum { COUNT = 5 * 1031 };

typedef struct Values { float data[COUNT]; DType type; } Values; /* room for any type */

static View view_of(Values *v) {
    return (View){.data = v->data, .shape = shape2(5, 1031), .dtype = v->type, .count = COUNT};
}

static Values drawn(DType type, uint32_t seed) {
    Values v = {{0}, type};
    for (int i = 0; i < COUNT; i++)
        dtype_store(type, v.data, (size_t)i, 6.0f * ((float)(philox(seed, RNG_DATA, 0, 0, (uint64_t)i).x[0] >> 8) / (1 << 23) - 1.0f));
    return v;
}

static bool run(Device *d, OpKind kind, const Attr *attr, Values *a, Values *b, Values *c, Values *y) {
    Apply to = {d, 0, false};
    KArgs k = {.kind = kind, .attr = attr, .in = {view_of(a)}, .out = {view_of(y)}};
    Err e = {0, ""};
    if (b) k.in[1] = view_of(b);
    if (c) k.in[2] = view_of(c);
    const bool done = apply(&to, &k, 0, &e) == OK;
    if (!done) printf("# %s\n", e.text);
    return done;
}

static bool equal(const Values *x, const Values *y) { return !memcmp(x->data, y->data, COUNT * dtype_size(x->type)); }

static void test_kernels(Device *d) {
    static const DType types[] = {DT_F32, DT_F16, DT_BF16};
    static const ActFn acts[] = {ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_HARDSWISH};
    const Attr plain = {.mul = {.of = DT_F32}};
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t f = 0; f < ARRAY_LEN(acts); f++) {
            const Attr act = {.act = {.act = acts[f]}}, gated = {.mul = {act.act, types[t]}};
            Values a = drawn(types[t], 1), b = drawn(types[t], 2), dy = drawn(types[t], 3), made = {{0}, types[t]};
            Values y = made, y1 = made, da = made, da1 = made, db = made, db1 = made, part = made;
            bool done = run(d, OP_act, &act, &a, NULL, NULL, &made) && run(d, OP_mul, &plain, &made, &b, NULL, &y) &&
                        run(d, OP_mul, &plain, &dy, &made, NULL, &db) && run(d, OP_mul, &plain, &dy, &b, NULL, &part) &&
                        run(d, OP_act_dx, &act, &part, &a, NULL, &da) && run(d, OP_mul, &gated, &a, &b, NULL, &y1) &&
                        run(d, OP_mul_da, &gated, &b, &dy, &a, &da1) && run(d, OP_mul, &gated, &a, &dy, NULL, &db1);
            ok(done && equal(&y, &y1) && equal(&da, &da1) && equal(&db, &db1), "%s: %s in %s", d->table->kind,
               act_name(acts[f]), dtype_name(types[t]));
        }
}

/* ---- training: a rotation and its reverse keep activation and product apart */

static const ApartNet nets[] = {
    {"a gated MLP", "Sequential{Flatten Mul{Sequential{Linear(432, 32) SiLU} Linear(432, 32)} Linear(32, 10)}",
     "Sequential{Flatten Mul{Sequential{Linear(432, 32) SiLU Roll(1, 1) Roll(-1, 1)} Linear(432, 32)} Linear(32, 10)}", 2},
    {"the second factor, of images", "Sequential{Conv2d(3, 4, 3) Mul{Conv2d(4, 4, 1) Sequential{Conv2d(4, 4, 1) GELU}} Flatten Linear(400, 10)}",
     "Sequential{Conv2d(3, 4, 3) Mul{Conv2d(4, 4, 1) Sequential{Conv2d(4, 4, 1) GELU Roll(1, 1) Roll(-1, 1)}} Flatten Linear(400, 10)}", 2},
    {"an activation of each factor", "Sequential{Flatten Mul{Sequential{Linear(432, 32) SiLU} Sequential{Linear(432, 32) GELU}} Linear(32, 10)}",
     "Sequential{Flatten Mul{Sequential{Linear(432, 32) SiLU Roll(1, 1) Roll(-1, 1)} Sequential{Linear(432, 32) GELU Roll(1, 1) Roll(-1, 1)}} Linear(32, 10)}", 2},
    {"both factors of one tensor", "Sequential{Flatten Linear(432, 32) Mul{Identity SiLU} Linear(32, 10)}",
     "Sequential{Flatten Linear(432, 32) Mul{Identity Sequential{SiLU Roll(1, 1) Roll(-1, 1)}} Linear(32, 10)}", 2},
};

static bool is_gated(const Op *op) { return op->kind == OP_mul && op->attr.mul.f.act; }

static void test_training(Device *d) { check_all_apart(d, nets, ARRAY_LEN(nets), is_gated); }

int main(void) {
    each_device(test_kernels);
    each_device(test_training);
    return tap_done();
}
