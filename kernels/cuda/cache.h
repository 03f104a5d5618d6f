/* cache.h: small files that outlive the process: where they are, and writing one so that a reader sees the old content
 * or the new and nothing between. */
#ifndef MT_CACHE_H
#define MT_CACHE_H

#include "base/err.h"
#include "base/base.h"

enum { CACHE_PATH = 1024 };

/* $XDG_CACHE_HOME/memtide/NAME or ~/.cache/memtide/NAME into path[CACHE_PATH]. ERR_FILE: neither variable is set. */
int cache_path(const char *name, char *path, Err *e);
/* The whole file and a 0 byte after it, to be freed with mem_free(); ERR_FILE: it cannot be read. */
int cache_read(const char *path, char **text, size_t *bytes, Err *e);
/* Makes the folders that are missing. */
int cache_write(const char *path, const char *text, size_t bytes, Err *e);

#endif
