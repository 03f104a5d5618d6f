/* t_pool.c: a max pooling that applies a ReLU gives the numbers that ReLU and pooling give one after the other: by the
 * kernels, of zeros, NaN, infinities and equal maxima; and by training, which ends in the same parameters. On the CPU,
 * and on the GPU that each_device.h finds. */
#include "apart.h"
#include "each_device.h"
#include "on_device.h"

static bool same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* ---- kernels */

enum { MOST = 2 * 8 * 7 * 9 };

typedef struct Map { float data[MOST]; Shape shape; DType type; } Map; /* room for any type */

static View map_view(Map *m) {
    return (View){.data = m->data, .shape = m->shape, .dtype = m->type, .channels_last = 1,
                  .count = shape_elements(&m->shape)};
}

static Map map_like(Shape shape, DType type) { return (Map){{0}, shape, type}; }

/* `n` values to choose from; a NaN is the last one, and rare. */
static Map map_drawn(Shape shape, DType type, const float *values, uint32_t n, uint32_t seed) {
    Map m = map_like(shape, type);
    for (int64_t i = 0; i < shape_elements(&shape); i++) {
        uint32_t drawn = philox(seed, RNG_DATA, 0, 0, (uint64_t)i).x[0], pick = drawn % n;
        dtype_store(type, m.data, (size_t)i, values[pick + 1 == n && drawn >> 16 & 3 ? 0 : pick]);
    }
    return m;
}

static bool maps_equal(const Map *a, const Map *b) {
    size_t n = (size_t)shape_elements(&a->shape), i = 0;
    while (i < n && same_number(dtype_load(a->type, a->data, i), dtype_load(b->type, b->data, i))) i++;
    return i == n;
}

static bool run(Device *d, OpKind kind, const Attr *attr, Map *a, Map *b, Map *y, Map *z) {
    Apply to = {d, 0, false};
    KArgs k = {.kind = kind, .attr = attr, .in = {map_view(a)}, .out = {map_view(y)}};
    Err e = {0, ""};
    if (b) k.in[1] = map_view(b);
    if (z) k.out[1] = map_view(z);
    bool done = apply(&to, &k, 0, &e) == OK;
    if (!done) printf("# %s\n", e.text);
    return done;
}

/* One after the other: r = relu(x), y = maxpool(r), back through both; then as one. */
static void test_kernels_of(Device *d, DType type, int64_t channels, const PoolAttr *window) {
    static const float values[] = {-1, -0.0f, 0, 0.5f, 2, 2, INFINITY, -INFINITY, -3, NAN};
    static const float slopes[] = {-2, 0, 0.75f, 1};
    const Attr relu = {.act = {.act = ACT_RELU}};
    Attr plain = {.pool = *window}, both = plain;
    both.pool.fused = relu.act;
    Shape large = shape4(2, channels, 7, 9), small = shape4(2, channels, 4, 5);
    for (uint32_t n = 2; n <= ARRAY_LEN(values); n += 2) { /* at first no number above 0 */
        Map x = map_drawn(large, type, values, n, n), dy = map_drawn(small, type, slopes, ARRAY_LEN(slopes), 100 + n);
        Map r = map_like(large, type), g = r, dx = r, dx1 = r;
        Map y = map_like(small, type), y1 = y, g1 = y, idx = map_like(small, DT_U8), idx1 = idx;
        bool done = run(d, OP_act, &relu, &x, NULL, &r, NULL) && run(d, OP_maxpool, &plain, &r, NULL, &y, &idx) &&
                    run(d, OP_maxpool_dx, &plain, &dy, &idx, &g, NULL) && run(d, OP_act_dx, &relu, &g, &r, &dx, NULL) &&
                    run(d, OP_maxpool, &both, &x, NULL, &y1, &idx1) &&
                    run(d, OP_act_dx, &relu, &dy, &y1, &g1, NULL) &&
                    run(d, OP_maxpool_dx, &plain, &g1, &idx1, &dx1, NULL);
        ok(done && maps_equal(&y, &y1) && maps_equal(&dx, &dx1) && !memcmp(idx.data, idx1.data, sizeof idx.data),
           "%s: %s, %d channels, %dx%d, of %d values", d->table->kind, dtype_name(type), (int)channels,
           (int)window->kernel[0], (int)window->kernel[1], (int)n);
    }
}

static void test_kernels(Device *d) {
    static const PoolAttr windows[] = {{.kernel = {2, 2}, .stride = {2, 2}, .pad = {1, 1}, .dilation = {1, 1}},
                                       {.kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}, .dilation = {1, 1}},
                                       {.kernel = {1, 3}, .stride = {2, 2}, .pad = {0, 1}, .dilation = {1, 1}}};
    static const DType types[] = {DT_F32, DT_F16, DT_BF16};
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t w = 0; w < ARRAY_LEN(windows); w++)
            for (int64_t c = 3; c <= 8; c += 5) test_kernels_of(d, types[t], c, &windows[w]);
}

/* ---- training: a LeakyReLU of slope 1, which changes nothing, keeps ReLU and pooling apart */

static const ApartNet nets[] = {
    {"after a convolution",
     "Sequential{Conv2d(3, 8, 3, padding=1) ReLU MaxPool2d(2) Conv2d(8, 4, 3) ReLU MaxPool2d(2)"
     " Flatten Linear(16, 10)}",
     "Sequential{Conv2d(3, 8, 3, padding=1) ReLU LeakyReLU(1) MaxPool2d(2) Conv2d(8, 4, 3) ReLU LeakyReLU(1) MaxPool2d(2)"
     " Flatten Linear(16, 10)}", 2},
    {"in front of a block",
     "Sequential{Conv2d(3, 8, 3, padding=1, bias=false) BatchNorm2d(8) ReLU(inplace=true)"
     " MaxPool2d(3, stride=2, padding=1) Residual{Conv2d(8, 8, 3, padding=1)} Flatten Linear(288, 10)}",
     "Sequential{Conv2d(3, 8, 3, padding=1, bias=false) BatchNorm2d(8) ReLU(inplace=true) LeakyReLU(1)"
     " MaxPool2d(3, stride=2, padding=1) Residual{Conv2d(8, 8, 3, padding=1)} Flatten Linear(288, 10)}", 1},
    {"the other way round",
     "Sequential{Conv2d(3, 8, 3, padding=1) MaxPool2d(2) ReLU Flatten Linear(288, 10)}",
     "Sequential{Conv2d(3, 8, 3, padding=1) MaxPool2d(2) LeakyReLU(1) ReLU Flatten Linear(288, 10)}", 1},
};

static bool is_fused(const Op *op) { return op->kind == OP_maxpool && op->attr.pool.fused.act; }

static void test_training(Device *d) { check_all_apart(d, nets, ARRAY_LEN(nets), is_fused); }

int main(void) {
    each_device(test_kernels);
    each_device(test_training);
    return tap_done();
}
