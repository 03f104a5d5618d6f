/* data_files.h: sample files of every format in memory and in a temporary folder, for the tests of data and of the
 * loader. */
#ifndef DATA_FILES_H
#define DATA_FILES_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "io/data.h"
#include "base/mem.h"
#include "tap.h"

typedef struct Blob { unsigned char at[16384]; size_t n; } Blob;

static char folder[200], path_x[256], path_y[256];

static void folder_make(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/memtide-data-XXXXXX", base && strlen(base) < 150 ? base : "/tmp");
    if (!mkdtemp(folder)) {
        printf("Bail out! no temporary folder\n");
        exit(1);
    }
    snprintf(path_x, sizeof path_x, "%s/x", folder);
    snprintf(path_y, sizeof path_y, "%s/y", folder);
}

static void folder_remove(void) {
    unlink(path_x);
    unlink(path_y);
    rmdir(folder);
}

__attribute__((unused)) static void blob_add(Blob *b, const void *bytes, size_t n) {
    memcpy(b->at + b->n, bytes, n);
    b->n += n;
}

/* plain, or compressed by zlib */
__attribute__((unused)) static void blob_write(const char *path, const Blob *b, size_t n, bool gz) {
    gzFile f = gzopen(path, gz ? "wb" : "wbT");
    if (!f || (n && gzwrite(f, b->at, (unsigned)n) != (int)n) || gzclose(f)) {
        printf("Bail out! cannot write %s\n", path);
        exit(1);
    }
}

#endif
