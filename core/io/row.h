/* row.h: one result as named values in the order of its columns, and as one RFC 4180 line. */
#ifndef MT_ROW_H
#define MT_ROW_H

#include "base/base.h"
#include "base/err.h"

enum {
    ROW_FORMAT = 2,  /* the newest; files of all formats, from 1, are read and gone on with */
    COLUMN_OWN = 0,  /* as `since`: no format has the column, but files whose script asks for it do */
};

/* A row of columns.def; the one whose name is "" stands for the script's own axes. */
typedef struct ColumnInfo {
    const char *name, *type, *group, *unit, *text;
    int since;
} ColumnInfo;
/* The i-th, from 0; NULL past the last */
const ColumnInfo *column_info(int i);

typedef struct Row Row;

/* The columns of columns.def, n_axes of the script's own among them; an axis may not be called like a column of
 * every file. NULL and *e: failed. */
Row *row_new(const char *const *axes, int n_axes, Err *e);
void row_free(Row *r);
int row_columns(const Row *r);
const char *row_column(const Row *r, int i);
bool row_in_format(const Row *r, int i, int format); /* does a file of that format have the column? */
/* Values; a column that does not exist is ERR_INTERNAL. Text starting with = + - @ tab or CR gets a leading '
 * (spreadsheets would run it); newlines are written as \n. */
int row_set_text(Row *r, const char *column, const char *text, Err *e);
int row_set_int(Row *r, const char *column, int64_t value, Err *e);
/* In the shortest form that reads back equal; NaN and infinities as nan, inf, -inf. */
int row_set_number(Row *r, const char *column, double value, Err *e);
/* "" when not set */
const char *row_get(const Row *r, const char *column);
void row_clear(Row *r); /* values, not columns */
/* The header, or the values, as one line with "\n" in a file of that format, 1 to ROW_FORMAT. Free with mem_free;
 * NULL: no memory. */
char *row_header_line(const Row *r, int format);
char *row_line(const Row *r, int format);

#endif
