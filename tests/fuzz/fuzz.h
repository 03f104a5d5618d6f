/* fuzz.h: what the targets of readers.c share. A target gets bytes as they might stand in somebody's file, and dies
 * where the reader does what it must not; that memory is used as it may be is looked after by the sanitizers. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

typedef struct Target {
    const char *name;
    void (*run)(const uint8_t *data, size_t n);
    /* How its format is changed without breaking what holds it together; NULL: byte by byte. 0: that went wrong. */
    size_t (*mutate)(uint8_t *data, size_t n, size_t most, unsigned seed);
} Target;

/* Ends the process: what was expected of the reader did not hold. */
_Noreturn void fuzz_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The path of file `i` (0, 1) of this process, with these bytes. */
const char *fuzz_file(int i, const uint8_t *data, size_t n);

/* ---- mutators: mutate.c */
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t most); /* libFuzzer's own */
size_t mutate_gz(uint8_t *data, size_t n, size_t most, unsigned seed);     /* what is compressed, compressed again */
size_t mutate_header(uint8_t *data, size_t n, size_t most, unsigned seed); /* safetensors': header, and its length */
size_t mutate_frame(uint8_t *data, size_t n, size_t most, unsigned seed);  /* a worker's message, and its length */
size_t mutate_tar(uint8_t *data, size_t n, size_t most, unsigned seed);    /* an archive, and its headers' sums */
size_t mutate_number(uint8_t *data, size_t n, size_t most, unsigned seed); /* a number becomes one at a type's end */

/* ---- targets */
void fuzz_describe(const uint8_t *data, size_t n);  /* device_file.c */
void fuzz_state(const uint8_t *data, size_t n);     /* lua.c: the functions of targets.lua */
void fuzz_wire(const uint8_t *data, size_t n);
void fuzz_list(const uint8_t *data, size_t n);

#endif
