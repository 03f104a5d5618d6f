/* t_bias.c: bias_pad of kernels/cuda/bias.h, called directly: channels that are padded or cut. It is linked with the
 * emulated device's objects, since the plugin exports one function only. */
#include <stdlib.h>

#include "bias.h"
#include "tap.h"

enum { ROWS = 1237, MOST = 16, GUARD = 16, JUNK = 0x77, PERIOD = 251 };

int memtide_cuda_open(const char *name, Device **out, Err *e);

static Device *device;

/* Whole numbers above 0 that every type holds */
static float value_at(int64_t i) { return (float)(i % PERIOD) + 1; }

/* shifted: `to` starts one element after a multiple of 16 bytes */
static bool pads(DType from_type, int64_t from_channels, DType to_type, int64_t to_channels, bool shifted) {
    static unsigned char from[ROWS * MOST * 4] __attribute__((aligned(256)));
    static unsigned char to[ROWS * MOST * 4 + 2 * GUARD] __attribute__((aligned(256)));
    KArgs a = {.kind = OP_conv2d, .device = device};
    unsigned char *at = to + (shifted ? dtype_size(to_type) : 0);
    size_t count = (size_t)(ROWS * to_channels);
    Err e;
    memset(to, JUNK, sizeof to);
    for (int64_t i = 0; i < ROWS * from_channels; i++) dtype_store(from_type, from, (size_t)i, value_at(i));
    if (bias_pad(&a, from, from_type, from_channels, at, to_type, to_channels, ROWS, &e)) return false;
    if (device->table->sync(device, &e)) return false;
    bool good = true;
    for (size_t i = 0; i < count; i++) {
        int64_t row = (int64_t)i / to_channels, c = (int64_t)i % to_channels;
        good &= dtype_load(to_type, at, i) == (c < from_channels ? value_at(row * from_channels + c) : 0);
    }
    for (size_t i = 0; i < GUARD; i++) good &= at[count * dtype_size(to_type) + i] == JUNK;
    return good;
}

int main(void) {
    static const DType types[] = {DT_F32, DT_BF16, DT_F16};
    static const struct { int64_t from, to; } channels[] = {{3, 8}, {3, 4}, {1, 8}, {10, 16}, {5, 5}, {8, 3}, {16, 3}};
    Err e;
    if (!ok(!memtide_cuda_open("cuda:0", &device, &e), "the emulated GPU opens")) return tap_done();
    for (size_t f = 0; f < ARRAY_LEN(types); f++)
        for (size_t t = 0; t < ARRAY_LEN(types); t++)
            for (size_t c = 0; c < ARRAY_LEN(channels); c++)
                for (int shifted = 0; shifted < 2; shifted++)
                    ok(pads(types[f], channels[c].from, types[t], channels[c].to, shifted), "%lld %s to %lld %s%s",
                       (long long)channels[c].from, dtype_name(types[f]), (long long)channels[c].to,
                       dtype_name(types[t]), shifted ? ", shifted" : "");
    device->table->close(device);
    return tap_done();
}
