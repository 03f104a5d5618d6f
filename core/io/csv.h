/* csv.h: a results file. A sweep appends rows to it and resumes from them.
 *   append   one write per row, then fdatasync
 *   resume   rows already there are known by (cell, repeat). A torn last line moves to FILE.torn. Earlier damage and a
 *            header that differs (the message names the column) are errors that leave the file as it is.
 *   format   a file with the header of an earlier format keeps it; values that have no column there are not written */
#ifndef MT_CSV_H
#define MT_CSV_H

#include "row.h"

typedef struct Csv Csv;

/* Is `error` the errno of flock on a file system without locks (NFS without lockd, Lustre without -o flock)? */
bool csv_no_locks(int error);
/* Opens or creates `path` for rows with the columns of `like`. Where there are locks, a second process that opens it
 * gets an error (flock). A new file (and its header) appears with the first row. *torn is set if a torn line was moved.
 * ERR_FILE: it cannot be read, locked or made; ERR_FORMAT: it is damaged or has other columns. */
int csv_open(const char *path, const Row *like, Csv **out, bool *torn, Err *e);
void csv_close(Csv *c); /* NULL is allowed */
/* Status of the row with this cell and repeat. NULL: there is no such row, or another program has changed the file
 * meanwhile (then the next append fails). Borrowed until the next call. */
const char *csv_status(Csv *c, const char *cell, int64_t repeat);
/* Value of `column` in that row, NULL: no such row or column. Borrowed until the next call. */
const char *csv_value(Csv *c, const char *cell, int64_t repeat, const char *column);
/* The cell of the latest row with the same settings (the part of the id before its first '-') and the same repeat;
 * NULL: there is none. Borrowed until the next call. */
const char *csv_latest(Csv *c, const char *cell, int64_t repeat);
/* Changes the id of that row, and of the earlier rows with the same id and repeat, to `to`, in place. `to` must have
 * the same length and settings, else ERR_INTERNAL. */
int csv_rename(Csv *c, const char *cell, int64_t repeat, const char *to, Err *e);
/* Number of different pairs of cell and repeat; of two rows with the same pair the later counts. */
int64_t csv_rows(const Csv *c);
/* From now on rows are flushed to disk together, by csv_flush, instead of one by one. For predictions, which are cheap
 * to make again: a thousand of them take less time than a thousand flushes. */
void csv_flush_late(Csv *c);
int csv_flush(Csv *c, Err *e);
/* Appends the row. If that fails (disk full), the file ends where it ended before. */
int csv_append(Csv *c, const Row *r, Err *e);

#endif
