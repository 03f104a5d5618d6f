/* libraries.c: stands in for kernels/cuda/libraries.c and nvml.c: an emulated GPU has no libraries and no driver. */
#include <stdio.h>

#include "cuda.h"

void libraries_versions(char *text, size_t size) { snprintf(text, size, "no cuDNN"); }

int libraries_describe(CudaDevice *c, DeviceText *put, void *arg, Err *e) {
    (void)put, (void)arg;
    return err_set(e, ERR_UNSUPPORTED, "%s has no description", c->model.name);
}

void libraries_close(CudaDevice *c) { (void)c; }

Nvml *nvml_open(int ordinal) {
    (void)ordinal;
    return NULL;
}

void nvml_close(Nvml *n) { (void)n; }

size_t nvml_used(const Nvml *n) {
    (void)n;
    return 0;
}

/* A GPU at its highest clock: 1 MHz. */
void nvml_evidence(const Nvml *n, DeviceEvidence *out) {
    (void)n;
    *out = (DeviceEvidence){.mhz = 1, .memory_mhz = 1, .celsius = 20, .throttle = THROTTLE_POWER};
}

void nvml_driver(const Nvml *n, char *text, size_t size) {
    (void)n;
    snprintf(text, size, "emulated");
}
