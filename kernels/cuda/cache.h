/* cache.h: small files that outlive the process: where they are, and how one is written so that a reader sees either
 * the old content or the new. */
#ifndef MT_CACHE_H
#define MT_CACHE_H

#include "base/err.h"
#include "base/base.h"

enum { CACHE_PATH = 1024 };

/* Writes $XDG_CACHE_HOME/memtide/NAME or ~/.cache/memtide/NAME to path[CACHE_PATH]. ERR_FILE: neither variable is set,
 * or the path is too long. */
int cache_path(const char *name, char *path, Err *e);
/* *text: the whole file and a 0 byte after it, which mem_free() frees; *bytes: without that byte. ERR_FILE: it cannot
 * be read. */
int cache_read(const char *path, char **text, size_t *bytes, Err *e);
/* Makes the folders that are missing, too. */
int cache_write(const char *path, const char *text, size_t bytes, Err *e);

#endif
