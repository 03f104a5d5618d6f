/* runtime.h: shared by runtime.c, the emulated device and its memory, and stream.c, what is enqueued on it. */
#ifndef EMULATE_RUNTIME_H
#define EMULATE_RUNTIME_H

#include "emulate.h"

/* Remembers the error for cudaGetLastError; returns it. */
cudaError_t emulate_give(cudaError_t error);
/* The number of the current device */
int emulate_device(void);
/* Every function calls it first. An error if the device is lost, or if EMULATE_FAIL makes this call fail. */
cudaError_t emulate_enter(const char *name);

#define ENTER() ENTER_WHILE(cudaSuccess)
#define ENTER_WHILE(condition)                         \
    do {                                               \
        cudaError_t entered = emulate_enter(__func__); \
        if (!entered) entered = (condition);           \
        if (entered) return entered;                   \
    } while (0)

/* Enqueues run(data); data[bytes] are copied. */
cudaError_t emulate_push(cudaStream_t stream, void (*run)(void *), const void *data, size_t bytes);
/* Does p[bytes] lie in one allocation of a device? */
bool emulate_on_device(const void *p, size_t bytes);
/* Waits for one stream, or for all. */
void emulate_drain_stream(cudaStream_t stream);
void emulate_drain(void);
bool emulate_captures(cudaStream_t stream);
/* For calls that a capture forbids: as on a GPU, they end the capture with an error. */
cudaError_t emulate_nothing_captures(void);

#endif
