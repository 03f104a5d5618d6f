/* mutate.c: changes inside of what a random one would only break. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "fuzz.h"

enum { ROOM = 1 << 16 };

size_t mutate_number(uint8_t *data, size_t n, size_t most, unsigned seed) {
    static const char *const ends[] = {"0", "1", "255", "65536", "2147483647", "2147483648", "4294967295", "4294967296",
        "9223372036854775807", "9223372036854775808", "18446744073709551616", "1e400", "-1"};
    size_t at[64], count = 0;
    for (size_t i = 0; i < n && count < ARRAY_LEN(at); i++)
        if (isdigit(data[i]) && (i == 0 || !isdigit(data[i - 1]))) at[count++] = i;
    if (!count) return 0;
    size_t from = at[seed / 16 % count], to = from;
    const char *end = ends[seed / 1024 % ARRAY_LEN(ends)];
    while (to < n && isdigit(data[to])) to++;
    size_t length = strlen(end);
    if (n - (to - from) + length > most) return 0;
    memmove(data + from + length, data + to, n - to);
    memcpy(data + from, end, length);
    return n - (to - from) + length;
}

/* One of the two ways to change text. */
static size_t change(uint8_t *data, size_t n, size_t most, unsigned seed) {
    size_t changed = seed & 8 ? mutate_number(data, n, most, seed) : 0;
    return changed ? changed : LLVMFuzzerMutate(data, n, most);
}

size_t mutate_gz(uint8_t *data, size_t n, size_t most, unsigned seed) {
    (void)seed;
    static uint8_t inside[ROOM];
    z_stream z = {0};
    if (inflateInit2(&z, 31) != Z_OK) return 0;
    z.next_in = data;
    z.avail_in = (unsigned)n;
    z.next_out = inside;
    z.avail_out = sizeof inside;
    inflate(&z, Z_FINISH);
    size_t got = z.total_out;
    inflateEnd(&z);
    if (!got) return 0;
    got = LLVMFuzzerMutate(inside, got, sizeof inside);
    z = (z_stream){0};
    if (deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) return 0;
    z.next_in = inside;
    z.avail_in = (unsigned)got;
    z.next_out = data;
    z.avail_out = (unsigned)most;
    int end = deflate(&z, Z_FINISH);
    size_t out = z.total_out;
    deflateEnd(&z);
    return end == Z_STREAM_END ? out : 0;
}

/* Of data[0..n), what stands from `at` to `at + length` is changed and has `before` in front of it; the rest stays. */
static size_t put_changed(uint8_t *data, size_t n, size_t most, size_t at, size_t length, unsigned seed,
                          size_t (*before)(size_t length, uint8_t *to)) {
    static uint8_t part[2 * ROOM], rest[ROOM];
    uint8_t head[32];
    size_t after = n - at - length;
    if (length > ROOM || after > ROOM) return 0;
    memcpy(part, data + at, length);
    memcpy(rest, data + at + length, after);
    length = change(part, length, sizeof part, seed);
    size_t first = before(length, head);
    if (first + length + after > most) return 0;
    memcpy(data, head, first);
    memcpy(data + first, part, length);
    memcpy(data + first + length, rest, after);
    return first + length + after;
}

static size_t header_length(size_t length, uint8_t *to) {
    uint64_t bytes = length;
    memcpy(to, &bytes, sizeof bytes);
    return sizeof bytes;
}

size_t mutate_header(uint8_t *data, size_t n, size_t most, unsigned seed) {
    uint64_t length;
    if (n < sizeof length) return 0;
    memcpy(&length, data, sizeof length);
    if (!length || length > n - sizeof length) return 0;
    return put_changed(data, n, most, sizeof length, (size_t)length, seed, header_length);
}

static size_t frame_length(size_t length, uint8_t *to) { return (size_t)sprintf((char *)to, "%zu\n", length); }

size_t mutate_frame(uint8_t *data, size_t n, size_t most, unsigned seed) {
    const uint8_t *end = memchr(data, '\n', n < 12 ? n : 12);
    if (!end || end + 1 == data + n) return 0;
    size_t at = (size_t)(end + 1 - data), length = (size_t)strtoul((const char *)data, NULL, 10);
    if (!length || length > n - at) return 0;
    return put_changed(data, n, most, at, length, seed, frame_length);
}

size_t mutate_tar(uint8_t *data, size_t n, size_t most, unsigned seed) {
    enum { BLOCK = 512, SUM = 148 };
    (void)most;
    if (n < BLOCK) return 0;
    uint8_t *block = data + seed / 16 % (n / BLOCK) * BLOCK;
    unsigned sum = 8 * ' ';
    if (!change(block, BLOCK, BLOCK, seed)) return 0;
    for (int i = 0; i < BLOCK; i++) sum += i >= SUM && i < SUM + 8 ? 0 : block[i];
    sprintf((char *)block + SUM, "%06o", sum);
    block[SUM + 7] = ' ';
    return n;
}
