/* t_view.c: where a buffer has the elements of PyTorch's order, in each layout and type, and what kernels are told of it. */
#include "program/view.h"

#include "tap.h"

enum { ALL = 48 };

/* Element (n, c, s) of PyTorch's (n, c, hw) is stored as (n, s, c). */
static const struct { const char *what; Buf buf; int n, c, hw; } cases[] = {
    {"rows", {.shape = {2, {6, 8}}}, 1, 48, 1},
    {"an image by pixels", {.shape = {4, {2, 3, 2, 4}}, .layout = LAYOUT_NHWC}, 2, 3, 8},
    {"a sequence by steps", {.shape = {3, {2, 3, 8}}, .layout = LAYOUT_NHWC}, 2, 3, 8},
    {"a matrix that reads an image by pixels", {.shape = {2, {2, 24}}, .order = {3, 2, 4}}, 2, 3, 8},
    {"a turned matrix", {.shape = {2, {6, 8}}, .turned = true}, 1, 8, 6},
};

static void test_elements(DType type) {
    const size_t size = dtype_size(type);
    union { float f; int32_t i; } values[ALL], found[ALL];
    char plain[ALL * 4], expected[ALL * 4], storage[ALL * 4], bytes[ALL * 4];
    for (int i = 0; i < ALL; i++) {
        if (dtype_is_float(type)) values[i].f = (float)i - 7, dtype_store(type, plain, (size_t)i, values[i].f);
        else if (size == 4) values[i].i = 70000 + i, memcpy(plain + 4 * i, &values[i].i, 4);
        else values[i].i = 200 + i, plain[i] = (char)(200 + i);
    }
    for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
        Buf b = cases[k].buf;
        bool good = true;
        const int c = cases[k].c, hw = cases[k].hw;
        b.dtype = type;
        for (int i = 0; i < ALL; i++) memcpy(expected + (size_t)(i / (c * hw) * c * hw + i % hw * c + i / hw % c) * size, plain + (size_t)i * size, size);
        view_pack(&b, values, storage);
        good &= !memcmp(storage, expected, ALL * size);
        view_unpack(&b, storage, found);
        good &= !memcmp(found, values, sizeof values);
        memset(storage, 0, sizeof storage);
        view_pack_bytes(&b, plain, storage);
        good &= !memcmp(storage, expected, ALL * size);
        view_unpack_bytes(&b, storage, bytes);
        good &= !memcmp(bytes, plain, ALL * size);
        ok(good, "%s of %s", cases[k].what, dtype_name(type));
    }
}

static void test_views(void) {
    Buf b = {.shape = {4, {2, 3, 2, 4}}, .dtype = DT_BF16, .layout = LAYOUT_NHWC};
    View v = view_of(&b, &b);
    ok(v.data == &b && v.dtype == DT_BF16 && v.count == ALL && v.shape.rank == 4 && v.channels_last, "an image");
    b.shard.count = 20;
    v = view_of(&b, &b);
    ok(v.count == 20 && v.shape.rank == 1 && v.shape.dim[0] == 20 && !v.channels_last, "a shard of it is a row of numbers");
    b = cases[3].buf;
    v = view_of(&b, &b);
    ok(v.order[0] == 3 && v.order[1] == 2 && v.order[2] == 4 && !v.channels_last, "a matrix keeps its order");
    b.shard.count = 20;
    ok(!view_of(&b, &b).order[0], "and a shard has none");
    v = view_of(NULL, &b);
    ok(!v.data && !v.count, "what is absent has no elements");
}

static void test_args(void) {
    static Program p;
    Op op = {.kind = OP_copy, .workspace = NO_BUF, .begun = true, .flops = 3, .traffic = 4, .state = &p, .path = "2.0"};
    KArgs args;
    for (int k = 0; k < OP_IN; k++) op.in[k] = NO_BUF;
    for (int k = 0; k < OP_OUT; k++) op.out[k] = NO_BUF;
    memset(&args, 0x55, sizeof args);
    view_args(&p, &op, &args);
    ok(args.kind == OP_copy && args.attr == &op.attr && args.script == &p.formula && args.state == &p && args.begun && args.flops == 3 &&
       args.traffic == 4 && !strcmp(args.path, "2.0"), "kernels are told of the op");
    ok(!args.in[0].count && !args.out[0].count && !args.workspace && !args.workspace_bytes, "and of nothing else");
}

int main(void) {
    for (int type = 0; type < DT_COUNT; type++) test_elements((DType)type);
    test_views();
    test_args();
    return tap_done();
}
