/* each_device.h: runs a test on the CPU, and on the CUDA plugin that MEMTIDE_CUDA names, or else on the emulated one;
 * on one of them, if TEST_DEVICE names it. */
#ifndef EACH_DEVICE_H
#define EACH_DEVICE_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/device.h"
#include "tap.h"

static void each_device(void (*test)(Device *device)) {
    static const char *const names[] = {"cpu", "cuda:0"};
    const char *build = getenv("BUILD"), *only = getenv("TEST_DEVICE");
    char plugin[1024];
    snprintf(plugin, sizeof plugin, "%s/emulate/memtide_cuda.so", build ? build : "build");
    setenv("MEMTIDE_CUDA", plugin, 0);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        Device *device = NULL;
        Err e = {0, ""};
        if (only && strcmp(only, names[i])) continue;
        if (i > 0 && access(getenv("MEMTIDE_CUDA"), R_OK)) skip(names[i], "no CUDA plugin was built");
        else if (ok(device_open(names[i], &device, &e) == OK, "%s opens %s", names[i], e.text)) test(device);
        device_close(device);
    }
}

#endif
