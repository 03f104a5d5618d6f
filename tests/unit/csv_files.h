/* csv_files.h: what the tests of csv.c share: a folder, a row, and a file of three rows. Included once per test. */
#ifndef CSV_FILES_H
#define CSV_FILES_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/csv.h"
#include "base/mem.h"
#include "tap.h"

enum { ROOM = 1 << 14 };

static char folder[64], path[80], torn_path[96];
static Row *row;
static Err err;

typedef struct Text { size_t n; char s[ROOM]; } Text;

static void spit(const char *file, const char *data, size_t n) {
    FILE *f = fopen(file, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) ok(false, "writing %s: %s", file, strerror(errno));
}

/* The file's bytes; n = 0 for an empty one, and s[0] = '?' for none */
static Text slurp(const char *file) {
    Text t = {0, "?"};
    FILE *f = fopen(file, "rb");
    if (!f) return t;
    t.n = fread(t.s, 1, ROOM - 1, f);
    t.s[t.n] = '\0';
    fclose(f);
    return t;
}

static bool same(const Text *a, const Text *b) { return a->n == b->n && !memcmp(a->s, b->s, a->n); }

static void start_afresh(void) {
    unlink(path);
    unlink(torn_path);
}

static Row *fill(const char *cell, int64_t repeat, const char *status, const char *reason) {
    row_clear(row);
    if (row_set_text(row, "cell", cell, &err) || row_set_int(row, "repeat", repeat, &err) ||
        row_set_text(row, "status", status, &err) || row_set_text(row, "reason", reason, &err) ||
        row_set_int(row, "peak_bytes", 4096 + repeat, &err))
        ok(false, "a row is filled: %s", err.text);
    return row;
}

/* Opens; a failure is the test's. */
static Csv *reopen(bool *torn) {
    Csv *c = NULL;
    if (csv_open(path, row, &c, torn, &err)) ok(false, "opens: %s", err.text);
    return c;
}

static const struct { const char *cell; int64_t repeat; const char *status, *reason; } three[] = {
    {"5f3a", 0, "ok", ""}, {"5f3a", 1, "oom", "wants \"1,024\" bytes\nhas none"}, {"c001", 0, "nan", "=loss"},
};

static void append_three(Csv *c, int from) {
    for (int i = from; i < 3; i++) {
        fill(three[i].cell, three[i].repeat, three[i].status, three[i].reason);
        if (csv_append(c, row, &err)) ok(false, "row %d is appended: %s", i, err.text);
    }
}

static Text file_of_three(void) {
    start_afresh();
    Csv *c = reopen(NULL);
    append_three(c, 0);
    csv_close(c);
    return slurp(path);
}

static int set_up(void) {
    /* in memory where there is such a place: the tests wait for thousands of fsyncs */
    snprintf(folder, sizeof folder, "%s/memtide-csv-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    row = row_new(NULL, 0, &err);
    if (!row || !mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/results.csv", folder);
    snprintf(torn_path, sizeof torn_path, "%s.torn", path);
    return 0;
}

static int tear_down(void) {
    start_afresh();
    row_free(row);
    is_int(mem_live(), 0, "no memory is left");
    is_int(rmdir(folder), 0, "no file is left");
    return tap_done();
}

#endif
