#include "csv_line.h"

#include <stdbool.h>
#include <string.h>

int csv_split(char *line, size_t n) {
    const char *p = line, *end = line + n;
    char *out = line;
    if (n && end[-1] == '\r') end--; /* RFC 4180 ends lines by CRLF, and spreadsheets write that */
    for (int count = 1;; count++) {
        bool quoted = p < end && *p == '"', open = quoted;
        for (p += quoted; p < end && (open || *p != ','); p++) {
            if (*p == '\0' || (*p == '"' && !open)) return CSV_DAMAGED;
            if (*p == '"' && (p + 1 == end || p[1] != '"')) {
                p++;
                open = false;
                break;
            }
            p += *p == '"';
            *out++ = *p;
        }
        if (open) return CSV_OPEN_QUOTE;
        bool last = p >= end;
        if (!last && *p != ',') return CSV_DAMAGED;
        *out++ = '\0';
        if (last) return count;
        p++;
    }
}

size_t csv_field_room(size_t n) { return 2 * n + 2; }

char *csv_put_field(const char *field, size_t n, char *out) {
    bool quoted = false;
    for (size_t i = 0; i < n; i++) quoted |= memchr(",\"\r\n", field[i], 4) != NULL;
    if (quoted) *out++ = '"';
    for (size_t i = 0; i < n; i++) {
        if (field[i] == '"') *out++ = '"';
        *out++ = field[i];
    }
    if (quoted) *out++ = '"';
    return out;
}
