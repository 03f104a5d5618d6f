/* describe.c: a description of a GPU. The reader's own file, for what reads the text is not seen outside of it. */
#include "device_file.c"

#include "fuzz.h"

void fuzz_describe(const uint8_t *data, size_t n) {
    Err e = {0};
    CudaModel m = {0};
    if (n >= LONGEST || memchr(data, 0, n)) return; /* load refuses these */
    m.description = mem_new(n + 1);
    if (!m.description) return;
    memcpy(m.description, data, n);
    int code = parse("description", &m, &e);
    if (code && !e.text[0]) fuzz_failed("an error without text");
    if (!code && (m.processors < 1 || m.capability < 0 || !m.l2_bytes || !m.memory_bytes || !m.name[0]))
        fuzz_failed("a GPU with %d processors, capability %d, %zu and %zu bytes", m.processors, m.capability,
                    m.l2_bytes, m.memory_bytes);
    mem_free(m.description);
}
