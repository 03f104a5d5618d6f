/* emulate.h: between the emulator's files: a kernel call as data, and the grid that runs it. */
#ifndef EMULATE_H
#define EMULATE_H

#include <stdbool.h>

#include "cuda_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EMULATE_WARP = 32, EMULATE_WORDS = 3 /* that a lane offers at once */, EMULATE_BLOCK_MAX = 1024 };

/* One thread's call of a kernel with its arguments. */
typedef void EmulateCall(void *args);

/* A place of the source */
typedef struct EmulatePlace { const char *file; int line; } EmulatePlace;

/* Enqueues a launch; args[bytes] are copied. kernel: the function that `call` calls, of which the shadow memory knows the
 * name; NULL: what a library's stand-in computes. */
cudaError_t emulate_launch(const cudaLaunchConfig_t *config, const void *kernel, EmulateCall *call, const void *args,
                           size_t bytes);
/* Runs a grid now, block after block. */
void emulate_grid(dim3 grid, dim3 block, EmulateCall *call, void *args);
/* Makes the running task take `seconds` longer, as events measure it. */
void emulate_spend(double seconds);
/* Is the environment variable set to something other than 0? */
bool emulate_flag(const char *name);

/* What a running thread may call. All threads of the block, or all lanes of `mask`, must call it. */
void emulate_syncthreads(EmulatePlace at);
void emulate_syncwarp(unsigned mask, EmulatePlace at);
uint64_t emulate_shuffle(unsigned mask, uint64_t value, unsigned lane, EmulatePlace at); /* returns the value of that lane */
/* Offers words to all lanes of a whole warp; then emulate_read gives word `word` of `count` lanes from `first` on. */
void emulate_exchange(const uint64_t words[EMULATE_WORDS], EmulatePlace at);
void emulate_read(unsigned word, unsigned first, unsigned count, uint64_t *out);
unsigned emulate_ballot(unsigned mask, int predicate, EmulatePlace at);
unsigned emulate_lane(void);

#ifdef __cplusplus
}
#endif

#endif
