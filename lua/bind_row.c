/* Result rows and their files for scripts. */
#include <string.h>

#include "bind.h"
#include "io/csv.h"
#include "io/csv_line.h"
#include "base/mem.h"
#include "io/row.h"

/* ---- rows */

static void release_row(void *content) { row_free(content); }
static void release_csv(void *content) { csv_close(content); }

/* row{axis, ...} -> Row with the columns of columns.def and these */
static int new_row(lua_State *L) {
    enum { AXES_MAX = 32 };
    Err e;
    const char *axes[AXES_MAX];
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_Unsigned n = lua_rawlen(L, 1);
    if (n > AXES_MAX) return bind_error(L, "at most %d axes of the script's own", AXES_MAX);
    luaL_checkstack(L, AXES_MAX + 4, NULL);
    for (int i = 0; i < (int)n; i++) {
        lua_rawgeti(L, 1, i + 1);
        axes[i] = luaL_checkstring(L, -1);
    }
    Box *box = bind_new(L, BOX_ROW, release_row);
    box->content = row_new(axes, (int)n, &e);
    return box->content ? 1 : bind_fail(L, &e);
}

/* row:set(column, value): nil changes nothing; a value other than a number is set as text */
static int set(lua_State *L) {
    Err e;
    Row *r = bind_get(L, 1, BOX_ROW);
    const char *column = luaL_checkstring(L, 2);
    int code = OK;
    switch (lua_type(L, 3)) {
    case LUA_TNIL: case LUA_TNONE: break;
    case LUA_TNUMBER:
        if (lua_isinteger(L, 3)) code = row_set_int(r, column, lua_tointeger(L, 3), &e);
        else code = row_set_number(r, column, lua_tonumber(L, 3), &e);
        break;
    default: code = row_set_text(r, column, luaL_tolstring(L, 3, NULL), &e);
    }
    return code ? bind_fail(L, &e) : 0;
}

/* row:get(column) -> text, "" if it is not set */
static int get(lua_State *L) {
    lua_pushstring(L, row_get(bind_get(L, 1, BOX_ROW), luaL_checkstring(L, 2)));
    return 1;
}

/* row:columns(format or nil) -> {name, ...} of a file of that format, from 1; nil means the newest. Returns nil if
 * there is no such format. */
static int columns(lua_State *L) {
    const Row *r = bind_get(L, 1, BOX_ROW);
    lua_Integer format = luaL_optinteger(L, 2, ROW_FORMAT);
    if (format < 1 || format > ROW_FORMAT) return 0;
    lua_createtable(L, row_columns(r), 0);
    for (int i = 0, n = 0; i < row_columns(r); i++) {
        if (!row_in_format(r, i, (int)format)) continue;
        lua_pushstring(L, row_column(r, i));
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

/* row:clear(): empties all columns */
static int clear(lua_State *L) {
    row_clear(bind_get(L, 1, BOX_ROW));
    return 0;
}

static int push_line(lua_State *L, char *line) {
    if (!line) return bind_error(L, "out of host memory");
    lua_pushstring(L, line);
    mem_free(line);
    return 1;
}

/* row:line(), row:header() -> a line as in a file of the newest format, with its newline */
static int line(lua_State *L) { return push_line(L, row_line(bind_get(L, 1, BOX_ROW), ROW_FORMAT)); }
static int header(lua_State *L) { return push_line(L, row_header_line(bind_get(L, 1, BOX_ROW), ROW_FORMAT)); }

/* columns() -> {{name, type, with, group, unit, text, since}, ...}: the lines of columns.def, in the order of a file */
static int column_table(lua_State *L) {
    const ColumnInfo *info;
    lua_newtable(L);
    for (int i = 0; (info = column_info(i)) != NULL; i++) {
        lua_createtable(L, 0, 7);
        bind_set_string(L, "name", info->name);
        bind_set_string(L, "type", info->type);
        bind_set_string(L, "with", info->with);
        bind_set_string(L, "group", info->group);
        bind_set_string(L, "unit", info->unit);
        bind_set_string(L, "text", info->text);
        bind_set_integer(L, "since", info->since);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* ---- files */

/* csv_split(line) -> {field, ...}; nil: a quote is missing or out of place, or the line has a zero byte */
static int split_line(lua_State *L) {
    size_t n;
    const char *line = luaL_checklstring(L, 1, &n);
    char *fields = lua_newuserdatauv(L, n + 1, 0);
    memcpy(fields, line, n + 1);
    const int count = csv_split(fields, n);
    if (count < 0) {
        lua_pushnil(L);
        return 1;
    }
    lua_createtable(L, count, 0);
    for (int i = 1; i <= count; i++) {
        lua_pushstring(L, fields);
        lua_rawseti(L, -2, i);
        fields += strlen(fields) + 1;
    }
    return 1;
}

/* csv_field(text) -> the text as a field of a line, with quotes if it needs them */
static int quote_field(lua_State *L) {
    size_t n;
    luaL_Buffer b;
    const char *field = luaL_checklstring(L, 1, &n);
    char *out = luaL_buffinitsize(L, &b, csv_field_room(n));
    luaL_pushresultsize(&b, (size_t)(csv_put_field(field, n, out) - out));
    return 1;
}

/* csv(path, row) -> Csv, was a torn last line moved? */
static int new_csv(lua_State *L) {
    Err e;
    Csv *csv;
    bool torn = false;
    const char *path = luaL_checkstring(L, 1);
    const Row *like = bind_get(L, 2, BOX_ROW);
    Box *box = bind_new(L, BOX_CSV, release_csv);
    if (csv_open(path, like, &csv, &torn, &e)) return bind_fail(L, &e);
    box->content = csv;
    lua_pushboolean(L, torn);
    return 2;
}

/* csv:value(cell, repeat, column) -> text; nil: no such row */
static int value(lua_State *L) {
    Csv *csv = bind_get(L, 1, BOX_CSV);
    lua_pushstring(L, csv_value(csv, luaL_checkstring(L, 2), luaL_checkinteger(L, 3), luaL_checkstring(L, 4)));
    return 1;
}

/* csv:latest(cell, repeat) -> cell id of the latest row with the same settings and repeat; nil: no such row */
static int latest(lua_State *L) {
    Csv *csv = bind_get(L, 1, BOX_CSV);
    lua_pushstring(L, csv_latest(csv, luaL_checkstring(L, 2), luaL_checkinteger(L, 3)));
    return 1;
}

/* csv:rename(cell, repeat, to) -> true */
static int rename_cell(lua_State *L) {
    Err e;
    Csv *csv = bind_get(L, 1, BOX_CSV);
    if (csv_rename(csv, luaL_checkstring(L, 2), luaL_checkinteger(L, 3), luaL_checkstring(L, 4), &e))
        return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* csv:append(row) -> true */
static int append(lua_State *L) {
    Err e;
    if (csv_append(bind_get(L, 1, BOX_CSV), bind_get(L, 2, BOX_ROW), &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* csv:flush_late(): from now on rows are on the disk only after csv:flush() */
static int flush_late(lua_State *L) {
    csv_flush_late(bind_get(L, 1, BOX_CSV));
    return 0;
}

/* csv:flush() -> true */
static int flush(lua_State *L) {
    Err e;
    if (csv_flush(bind_get(L, 1, BOX_CSV), &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* csv:rows() -> number of different pairs of cell and repeat */
static int rows(lua_State *L) {
    lua_pushinteger(L, csv_rows(bind_get(L, 1, BOX_CSV)));
    return 1;
}

void bind_open_row(lua_State *L) {
    static const luaL_Reg of_row[] = {{"set", set}, {"get", get}, {"columns", columns}, {"line", line},
        {"header", header}, {"clear", clear}, {NULL, NULL}};
    static const luaL_Reg of_csv[] = {{"value", value}, {"append", append}, {"rows", rows},
        {"latest", latest}, {"rename", rename_cell}, {"flush", flush}, {"flush_late", flush_late}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"row", new_row}, {"csv", new_csv}, {"columns", column_table},
        {"csv_split", split_line}, {"csv_field", quote_field}, {NULL, NULL}};
    bind_type(L, BOX_ROW, of_row);
    bind_type(L, BOX_CSV, of_csv);
    luaL_setfuncs(L, functions, 0);
}
