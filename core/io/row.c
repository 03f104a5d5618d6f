#include "row.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "csv_line.h"

struct Row {
    int count;
    char **name, **value; /* [count]; a value that is not set is NULL */
    int *since;           /* [count] */
};

static const ColumnInfo columns[] = {
#define COLUMN(name, type, since, group, unit, text) {#name, #type, "", #group, unit, text, since},
#define OWN(name, type, with, group, unit, text) {#name, #type, #with, #group, unit, text, COLUMN_OWN},
#define AXES {"", "value", "", "", "", "", 1},
#include "columns.def"
#undef COLUMN
#undef OWN
#undef AXES
};

#define COLUMN(name, type, since, group, unit, text) \
    _Static_assert(since >= 1 && since <= ROW_FORMAT, "format of " #name);
#define OWN(name, type, with, group, unit, text)
#define AXES
#include "columns.def"
#undef COLUMN
#undef OWN
#undef AXES

const ColumnInfo *column_info(int i) { return i >= 0 && i < (int)ARRAY_LEN(columns) ? &columns[i] : NULL; }

static int find(const Row *r, const char *column) {
    for (int i = 0; i < r->count; i++)
        if (!strcmp(r->name[i], column)) return i;
    return -1;
}

static bool starts_formula(const char *text) { return *text && strchr("=+-@\t\r", *text); }

/* Spreadsheets read the header too, and a record is one line. A value is escaped; a name that would need it is an
 * error. */
static int check_axis(const char *axis, Err *e) {
    bool plain = *axis && !starts_formula(axis);
    for (const char *p = axis; *p; p++) plain = plain && (unsigned char)*p >= ' ';
    if (!plain)
        return err_set(e, ERR_SCRIPT, "axis \"%.50s\": a name must not be empty, start with = + - @ "
                       "or hold control characters", axis);
    for (size_t i = 0; i < ARRAY_LEN(columns); i++)
        if (columns[i].since != COLUMN_OWN && !strcmp(columns[i].name, axis))
            return err_set(e, ERR_SCRIPT, "axis \"%.50s\": every result has a column of that name already", axis);
    return OK;
}

static int add_column(Row *r, const char *name, int since, Err *e) {
    if (find(r, name) >= 0) return err_set(e, ERR_SCRIPT, "axis \"%.50s\" is given twice", name);
    char *copy = mem_copy(name, strlen(name) + 1);
    if (!copy) return err_set(e, ERR_HOST_MEMORY, "no memory for the columns of a row");
    r->since[r->count] = since;
    r->name[r->count++] = copy;
    return OK;
}

static int add_columns(Row *r, const char *const *axes, int n_axes, Err *e) {
    int code = OK;
    for (size_t i = 0; i < ARRAY_LEN(columns) && !code; i++) {
        if (columns[i].since == COLUMN_OWN) continue;
        if (*columns[i].name) {
            code = add_column(r, columns[i].name, columns[i].since, e);
            continue;
        }
        for (int a = 0; a < n_axes && !code; a++) {
            code = check_axis(axes[a], e);
            if (!code) code = add_column(r, axes[a], columns[i].since, e);
        }
    }
    return code;
}

Row *row_new(const char *const *axes, int n_axes, Err *e) {
    size_t room = ARRAY_LEN(columns) - 1 + (size_t)n_axes;
    Row *r = mem_new(sizeof *r);
    if (r) {
        r->name = mem_new(room * sizeof *r->name);
        r->value = mem_new(room * sizeof *r->value);
        r->since = mem_new(room * sizeof *r->since);
    }
    if (!r || !r->name || !r->value || !r->since) err_set(e, ERR_HOST_MEMORY, "no memory for a row");
    else if (!add_columns(r, axes, n_axes, e)) return r;
    row_free(r);
    return NULL;
}

void row_free(Row *r) {
    if (!r) return;
    if (r->value) row_clear(r);
    for (int i = 0; i < r->count; i++) mem_free(r->name[i]);
    mem_free(r->name);
    mem_free(r->value);
    mem_free(r->since);
    mem_free(r);
}

int row_columns(const Row *r) { return r->count; }

const char *row_column(const Row *r, int i) {
    assert(i >= 0 && i < r->count);
    return r->name[i];
}

bool row_in_format(const Row *r, int i, int format) {
    assert(i >= 0 && i < r->count && format >= 1 && format <= ROW_FORMAT);
    return r->since[i] <= format;
}

void row_clear(Row *r) {
    for (int i = 0; i < r->count; i++) {
        mem_free(r->value[i]);
        r->value[i] = NULL;
    }
}

/* Owns `value` from now on, also if it fails; NULL: there was no memory for it. */
static int set(Row *r, const char *column, char *value, Err *e) {
    int i = find(r, column);
    if (!value) return err_set(e, ERR_HOST_MEMORY, "no memory for column \"%s\" of a row", column);
    if (i < 0) {
        mem_free(value);
        return err_set(e, ERR_INTERNAL, "a row has no column \"%.50s\"", column);
    }
    mem_free(r->value[i]);
    r->value[i] = value;
    return OK;
}

int row_set_text(Row *r, const char *column, const char *text, Err *e) {
    size_t bytes = 2; /* the guard and the end */
    for (const char *p = text; *p; p++) bytes += *p == '\n' || *p == '\r' ? 2 : 1;
    char *value = mem_new(bytes), *out = value;
    if (!value) return set(r, column, NULL, e);
    if (starts_formula(text)) *out++ = '\'';
    for (const char *p = text; *p; p++) {
        bool escape = *p == '\n' || *p == '\r';
        if (escape) *out++ = '\\';
        *out++ = escape ? (*p == '\n' ? 'n' : 'r') : *p;
    }
    return set(r, column, value, e);
}

int row_set_int(Row *r, const char *column, int64_t value, Err *e) {
    char text[NUMBER_TEXT];
    int n = snprintf(text, sizeof text, "%" PRId64, value);
    return set(r, column, mem_copy(text, (size_t)n + 1), e);
}

int row_set_number(Row *r, const char *column, double value, Err *e) {
    char text[NUMBER_TEXT];
    number_text(value, text);
    return set(r, column, mem_copy(text, strlen(text) + 1), e);
}

const char *row_get(const Row *r, const char *column) {
    int i = find(r, column);
    return i < 0 || !r->value[i] ? "" : r->value[i];
}

/* field[i] is the text for column i; NULL: empty */
static char *join(const Row *r, char *const *field, int format) {
    size_t room = 1;
    for (int i = 0; i < r->count; i++) room += csv_field_room(field[i] ? strlen(field[i]) : 0) + 1;
    char *line = mem_new(room), *out = line;
    if (!line) return NULL;
    for (int i = 0; i < r->count; i++) {
        if (!row_in_format(r, i, format)) continue;
        if (i) *out++ = ','; /* the first column is in every format */
        out = csv_put_field(field[i] ? field[i] : "", field[i] ? strlen(field[i]) : 0, out);
    }
    *out = '\n';
    return line;
}

char *row_header_line(const Row *r, int format) { return join(r, r->name, format); }
char *row_line(const Row *r, int format) { return join(r, r->value, format); }
