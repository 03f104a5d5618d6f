/* csv_line.h: one line of CSV by RFC 4180: from text to fields and back. */
#ifndef MT_CSV_LINE_H
#define MT_CSV_LINE_H

#include <stddef.h>

enum { CSV_DAMAGED = -1, CSV_OPEN_QUOTE = -2 };
/* Splits line[0..n) into its fields, in place: they follow each other, each ended by '\0'. line[n] must be writable.
 * Returns the number of fields; CSV_OPEN_QUOTE: a quote is not closed; CSV_DAMAGED: a quote or a zero byte where none
 * can be. */
int csv_split(char *line, size_t n);

/* The most bytes that csv_put_field writes for a field of n bytes */
size_t csv_field_room(size_t n);
/* Writes field[0..n) to `out`, with quotes if it needs them; returns the end of what it wrote. */
char *csv_put_field(const char *field, size_t n, char *out);

#endif
