/* row.h: one result: named values in the order of its columns, and one line of CSV (RFC 4180). */
#ifndef MT_ROW_H
#define MT_ROW_H

#include "base/base.h"
#include "base/err.h"

enum {
    ROW_FORMAT = 3,  /* the newest; files of every format from 1 on are read and continued */
    COLUMN_OWN = 0,  /* as `since`: no format has the column; a file has it if its script asks for it */
};

/* A line of columns.def; the one whose name is "" stands for the script's own axes. */
typedef struct ColumnInfo {
    const char *name, *type, *with, *group, *unit, *text; /* with: "" unless it is an OWN column */
    int since;
} ColumnInfo;
/* The i-th, from 0; NULL past the last */
const ColumnInfo *column_info(int i);

typedef struct Row Row;

/* A row with the columns of columns.def and the script's own axes, axes[0..n_axes). NULL: ERR_SCRIPT (an axis is given
 * twice, is empty, has a column's name or begins as a formula) or ERR_HOST_MEMORY. */
Row *row_new(const char *const *axes, int n_axes, Err *e);
void row_free(Row *r);
int row_columns(const Row *r);
const char *row_column(const Row *r, int i);
bool row_in_format(const Row *r, int i, int format); /* does a file of that format have the column? */
/* Set a value; ERR_INTERNAL: there is no such column. Text that starts with = + - @ tab or CR gets a leading ', because
 * spreadsheets would run it as a formula; newlines become \n. */
int row_set_text(Row *r, const char *column, const char *text, Err *e);
int row_set_int(Row *r, const char *column, int64_t value, Err *e);
/* In the shortest form that reads back equal; NaN and infinities as nan, inf, -inf. */
int row_set_number(Row *r, const char *column, double value, Err *e);
/* "" if it is not set or there is no such column */
const char *row_get(const Row *r, const char *column);
void row_clear(Row *r); /* values, not columns */
/* The header, or the values, as one line with "\n" of a file of that format, 1 to ROW_FORMAT. Free with mem_free;
 * NULL: no memory. */
char *row_header_line(const Row *r, int format);
char *row_line(const Row *r, int format);

#endif
