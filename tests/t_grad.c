/* Every layer's gradient against central differences of the loss, parameter tensor by parameter tensor, along several directions.
 * Each layer stands between a convolution (so that the gradient of its input is needed) and a classifier. */
#include <stdlib.h>

#include "nets.h"
#include "runtime.h"
#include "tap.h"

static Device *cpu;
static Err e;

typedef Layer *Make(void);

#define MAKE(name, ...) static Layer *name(void) { return __VA_ARGS__; }
MAKE(conv_plain, CONV(&e, 4, 6, 3, 0, ))
MAKE(conv_strided, CONV(&e, 4, 5, 3, 1, {"stride", 2}, ))
MAKE(conv_dilated, CONV(&e, 4, 4, 3, 2, {"dilation", 2}, ))
MAKE(conv_grouped, CONV(&e, 4, 8, 3, 1, {"groups", 2}, ))
MAKE(conv_depthwise, CONV(&e, 4, 4, 3, 0, {"groups", 4}, ))
MAKE(conv_no_bias, CONV(&e, 4, 6, 1, 0, {"bias", 0}, ))
MAKE(conv_relu, NET_OF(&e, "Sequential", CONV(&e, 4, 6, 3, 0, ), NET_LAYER(&e, "ReLU", )))
MAKE(conv_tanh, NET_OF(&e, "Sequential", CONV(&e, 4, 6, 3, 0, ), NET_LAYER(&e, "Tanh", )))
MAKE(relu, NET_LAYER(&e, "ReLU", ))
MAKE(relu_inplace, NET_LAYER(&e, "ReLU", {"inplace", 1}, ))
MAKE(leaky, NET_LAYER(&e, "LeakyReLU", {"negative_slope", 0.2}, ))
MAKE(leaky_negative, NET_LAYER(&e, "LeakyReLU", {"negative_slope", -0.5}, ))
MAKE(sigmoid, NET_LAYER(&e, "Sigmoid", ))
MAKE(tanh_, NET_LAYER(&e, "Tanh", ))
MAKE(gelu, NET_LAYER(&e, "GELU", ))
MAKE(maxpool, NET_LAYER(&e, "MaxPool2d", {"kernel_size", 2}, ))
MAKE(maxpool_overlap, NET_LAYER(&e, "MaxPool2d", {"kernel_size", 3}, {"stride", 2}, {"padding", 1}, {"ceil_mode", 1}, ))
MAKE(maxpool_dilated, NET_LAYER(&e, "MaxPool2d", {"kernel_size", 2}, {"stride", 1}, {"dilation", 2}, ))
MAKE(avgpool, NET_LAYER(&e, "AvgPool2d", {"kernel_size", 2}, ))
MAKE(avgpool_pad, NET_LAYER(&e, "AvgPool2d", {"kernel_size", 3}, {"stride", 2}, {"padding", 1}, {"count_include_pad", 0}, ))
MAKE(avgpool_ceil, NET_LAYER(&e, "AvgPool2d", {"kernel_size", 3}, {"stride", 2}, {"ceil_mode", 1}, ))
MAKE(adaptive, NET_LAYER(&e, "AdaptiveAvgPool2d", {"output_size", 3}, ))
MAKE(dropout, NET_LAYER(&e, "Dropout", {"p", 0.3}, ))
MAKE(flatten_linear, NET_OF(&e, "Sequential", NET_LAYER(&e, "Flatten", ), LINEAR(&e, 256, 12), NET_LAYER(&e, "Tanh", )))
MAKE(residual, NET_OF(&e, "Residual", CONV(&e, 4, 4, 3, 1, )))
MAKE(residual_shortcut, NET_OF(&e, "Residual", CONV(&e, 4, 6, 3, 1, {"stride", 2}, ), CONV(&e, 4, 6, 1, 0, {"stride", 2}, )))
MAKE(residual_twice, NET_OF(&e, "Sequential", NET_OF(&e, "Residual", NET_LAYER(&e, "Tanh", )), NET_OF(&e, "Residual", CONV(&e, 4, 4, 1, 0, ))))
MAKE(checkpointed, NET_OF(&e, "Checkpoint", NET_OF(&e, "Sequential", CONV(&e, 4, 6, 3, 0, ), NET_LAYER(&e, "GELU", ), CONV(&e, 6, 4, 1, 0, ))))

static const struct { const char *name; Make *make; int features; } cases[] = {
    {"Conv2d", conv_plain, 6 * 36}, {"Conv2d, stride", conv_strided, 5 * 16}, {"Conv2d, dilation", conv_dilated, 256},
    {"Conv2d, groups", conv_grouped, 512}, {"Conv2d, depthwise", conv_depthwise, 144}, {"Conv2d, no bias", conv_no_bias, 384},
    {"Conv2d + ReLU fused", conv_relu, 216}, {"Conv2d + Tanh fused", conv_tanh, 216}, {"ReLU", relu, 256},
    {"ReLU in place", relu_inplace, 256}, {"LeakyReLU", leaky, 256}, {"LeakyReLU, negative slope", leaky_negative, 256},
    {"Sigmoid", sigmoid, 256}, {"Tanh", tanh_, 256}, {"GELU", gelu, 256}, {"MaxPool2d", maxpool, 64},
    {"MaxPool2d, overlapping, ceil", maxpool_overlap, 100}, {"MaxPool2d, dilated", maxpool_dilated, 144}, {"AvgPool2d", avgpool, 64},
    {"AvgPool2d, padding not counted", avgpool_pad, 64}, {"AvgPool2d, ceil", avgpool_ceil, 64}, {"AdaptiveAvgPool2d", adaptive, 36},
    {"Dropout", dropout, 256}, {"Flatten, Linear", flatten_linear, 12}, {"Residual", residual, 256},
    {"Residual with shortcut", residual_shortcut, 96}, {"Residual of Residual", residual_twice, 256}, {"Checkpoint", checkpointed, 144},
};

static Network *network(int i, const char *loss) {
    Network *net = NULL;
    Layer *root = NET_OF(&e, "Sequential", CONV(&e, 3, 4, 3, 1, ), cases[i].make(), NET_LAYER(&e, "Flatten", ),
                         LINEAR(&e, cases[i].features, 10));
    if (net_build(root, loss, shape4(2, 3, 8, 8), &net, &e)) printf("# %s\n", e.text);
    return net;
}

/* Loss with parameter `k` moved by `by` along `direction`; and its gradient into `grad` if wanted. Always the first step of a
 * fresh run, so that dropout draws the same. NaN on an error. */
static double loss_at(const Network *net, Program *p, int k, const float *direction, double by, float *grad) {
    Runtime *r = NULL;
    StepResult step = {0, NAN, false};
    const Param *param = &net->params[k];
    int64_t n = shape_elements(&param->shape);
    char name[BUF_NAME];
    float *w = calloc((size_t)n, sizeof *w);
    int code = !w || runtime_open(cpu, ALLOC_DIRECT, 0, net, &p, 1, 3, 0, &r, &e);
    if (!code) code = runtime_read(r, 0, param->name, w, &e);
    for (int64_t i = 0; !code && i < n; i++) w[i] += (float)(by * direction[i]);
    if (!code) code = runtime_write(r, param->name, w, &e);
    if (!code) code = runtime_step(r, 0, net_feed, p, &step, &e);
    snprintf(name, sizeof name, "%s.grad", param->name);
    if (!code && grad) code = runtime_read(r, 0, name, grad, &e);
    runtime_close(r);
    free(w);
    if (code) printf("# %s\n", e.text);
    return code ? NAN : (double)step.loss;
}

/* Largest error of <grad, direction> against the central difference, relative to the largest directional derivative. Kinks and
 * curvature err in proportion to the distance, rounding of the fp32 loss in inverse proportion: the better of two distances
 * counts, a wrong gradient is wrong at both. */
static double worst_error(const Network *net, Program *p, int k) {
    int64_t n = shape_elements(&net->params[k].shape);
    float *grad = calloc((size_t)n, sizeof *grad), *direction = calloc((size_t)n, sizeof *direction);
    double worst = 0, scale = 1e-3;
    const double distance[] = {3e-4, 4e-3};
    for (int d = 0; d < 4; d++) {
        double norm = 0, expected = 0;
        for (int64_t i = 0; i < n; i++) direction[i] = (float)sin(1.3 * (double)i + 0.7 * d + (double)((i * 7919) % 13));
        if (d == 0) loss_at(net, p, k, direction, 0, grad);
        for (int64_t i = 0; d == 3 && i < n; i++) direction[i] = grad[i];
        for (int64_t i = 0; i < n; i++) norm += (double)direction[i] * direction[i];
        for (int64_t i = 0; i < n; i++) direction[i] = (float)(direction[i] / sqrt(norm + 1e-30));
        for (int64_t i = 0; i < n; i++) expected += (double)direction[i] * grad[i];
        double error = INFINITY;
        for (size_t j = 0; j < ARRAY_LEN(distance); j++) {
            double h = distance[j], there = loss_at(net, p, k, direction, h, NULL), back = loss_at(net, p, k, direction, -h, NULL);
            error = fmin(error, fabs((there - back) / (2 * h) - expected));
        }
        if (!(error <= worst)) worst = error;
        if (fabs(expected) > scale) scale = fabs(expected);
    }
    free(grad);
    free(direction);
    return worst / scale;
}

static void check_case(int i, const char *loss) {
    Settings s = settings_default();
    Program *p = NULL;
    Network *net = network(i, loss);
    s.keep_gradients = true;
    s.optimizer.rule.lr = 0;
    s.checkpoint = CHECKPOINT_MARKED;
    if (!ok(net && compile(net, &s, cpu, NULL, NULL, &p, &e) == OK, "%s with %s compiles", cases[i].name, loss)) printf("# %s\n", e.text);
    for (int k = 0; p && k < net->n_params; k++) {
        double error = worst_error(net, p, k);
        if (!ok(error < 5e-3, "%s with %s: gradient of %s", cases[i].name, loss, net->params[k].name)) printf("# relative error %g\n", error);
    }
    program_free(p);
    network_free(net);
}

int main(void) {
    if (device_open("cpu", &cpu, &e)) return ok(0, "%s", e.text), tap_done();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) check_case((int)i, "CrossEntropyLoss");
    check_case(0, "MSELoss");
    check_case(0, "BCEWithLogitsLoss");
    device_close(cpu);
    return tap_done();
}
