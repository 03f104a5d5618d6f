#include "utf8.h"

size_t utf8_length(const char *text, const char *text_end) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)text, *end = (const unsigned char *)text_end;
    size_t n = *p < 0x80 ? 1 : *p >> 5 == 6 ? 2 : *p >> 4 == 14 ? 3 : *p >> 3 == 30 ? 4 : 0;
    if (n < 2) return n;
    if ((size_t)(end - p) < n) return 0;
    uint32_t c = *p & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if (p[i] >> 6 != 2) return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    return c >= least[n] && c <= 0x10ffff && c >> 11 != 0xd800 >> 11 ? n : 0;
}
