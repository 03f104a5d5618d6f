/* A C program that predicts a training step with memtide's core: 64 samples of 784 numbers, two linear layers, cross
 * entropy. The package's test compiles it:
 *
 *   cc example.c $(pkg-config --cflags --libs memtide) -o example */
#include <stdio.h>

#include "network/network.h"
#include "passes/compile.h"
#include "run/runtime.h"

static Layer *linear(double in, double out, Err *e) {
    Layer *l = layer_new("Linear", NULL, e);
    if (!l) return NULL;
    if (option_set_number(options_find(&l->options, "in_features", e), in, e) == OK &&
        option_set_number(options_find(&l->options, "out_features", e), out, e) == OK)
        return l;
    layer_free(l);
    return NULL;
}

/* Takes the child. */
static bool add(Layer *parent, Layer *child, Err *e) { return child && layer_add(parent, child, e) == OK; }

int main(void) {
    Err e = {0, ""};
    Device *device = NULL;
    Network *net = NULL;
    Program *program = NULL;
    Prediction found = {0};
    const Call step = {0, PART_WHOLE};
    const Settings settings = settings_default();
    const Input input = {.shape = {2, {64, 784}}};
    Layer *root = layer_new("Sequential", NULL, &e);
    bool good = root && add(root, linear(784, 128, &e), &e) && add(root, layer_new("ReLU", NULL, &e), &e) &&
                add(root, linear(128, 10, &e), &e);
    Layer *loss = good ? layer_new("CrossEntropyLoss", NULL, &e) : NULL;
    if (!loss) layer_free(root);
    good = loss && network_new(root, &loss, 1, &input, 1, &net, &e) == OK && device_open("cpu", &device, &e) == OK &&
           compile(net, &settings, device, NULL, NULL, &program, &e) == OK &&
           predict(&(Job){net, program}, 1, ALLOC_PLANNED, device, 0, &step, 1, 3, &found, &e) == OK;
    if (good) printf("%lld parameters, peak %zu bytes\n", (long long)network_parameters(net), found.peak.held);
    else fprintf(stderr, "%s\n", e.text);
    program_free(program);
    network_free(net);
    device_close(device);
    return good ? 0 : 1;
}
