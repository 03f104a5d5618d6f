/* csv.h: a results file that rows are appended to, and resumed from.
 *   append   one write per row, then fdatasync
 *   resume   rows already there are known by (cell, repeat); a torn last line moves to FILE.torn; damage earlier, and a
 *            header that differs (the column is named), are refused with the file untouched
 *   format   a file with the header of an earlier format keeps it: what it has no column for is not written there */
#ifndef MT_CSV_H
#define MT_CSV_H

#include "row.h"

enum { CSV_DAMAGED = -1, CSV_OPEN_QUOTE = -2 };
/* Splits line[0..n) as RFC 4180 has it, in place: the fields one after the other, each with its '\0', for the last of
 * which line[n] is room. Returns how many there are, CSV_OPEN_QUOTE, or CSV_DAMAGED: a quote or a zero byte where none
 * can be. */
int csv_split(char *line, size_t n);

typedef struct Csv Csv;

/* Is it why flock fails where a file system has no locks (NFS without lockd, Lustre without -o flock)? */
bool csv_no_locks(int error);
/* Opens or creates `path` for rows with the columns of `like`. Exclusive where there are locks: a second process is
 * refused (flock). A new file (and its header) appears with the first row. *torn is set when a torn line was moved. */
int csv_open(const char *path, const Row *like, Csv **out, bool *torn, Err *e);
void csv_close(Csv *c); /* NULL is allowed */
/* Is a row with this cell and repeat there, and what is its status? NULL: no such row, or another program has changed
 * the file meanwhile, which the next append refuses. Borrowed until the next call. */
const char *csv_status(Csv *c, const char *cell, int64_t repeat);
/* Value of `column` in that row, NULL: no such row or column. Borrowed until the next call. */
const char *csv_value(Csv *c, const char *cell, int64_t repeat, const char *column);
/* The cell of the latest row whose id has the same settings (what stands before its first '-'), and the same repeat;
 * NULL: there is none. Borrowed until the next call. */
const char *csv_latest(Csv *c, const char *cell, int64_t repeat);
/* Gives that row, and the ones that it has replaced, another id of the same length and settings, in place. */
int csv_rename(Csv *c, const char *cell, int64_t repeat, const char *to, Err *e);
/* How many pairs of cell and repeat there are; of two rows with the same pair the later counts. */
int64_t csv_rows(const Csv *c);
/* From now on rows are flushed to disk together, by csv_flush, instead of one by one: for rows that cost nothing to
 * make again (predictions: a thousand of them take less time than a thousand flushes). */
void csv_flush_late(Csv *c);
int csv_flush(Csv *c, Err *e);
/* Appends the row; on failure (disk full) the file ends where it ended before. */
int csv_append(Csv *c, const Row *r, Err *e);

#endif
