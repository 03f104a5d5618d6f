/* tuning.h: the picks of a device, and whether it looks for more while it prepares ops. */
#ifndef MT_TUNING_H
#define MT_TUNING_H

#include "cache.h"
#include "cuda.h"
#include "tuned.h"

struct Tuning {
    Tuned picks;
    char path[CACHE_PATH]; /* where picks are kept: $MEMTIDE_PICKS or ~/.cache/memtide/picks-DEVICE.txt */
    bool racing;           /* race every op that is prepared, unless there is a pick for it under the same limit */
};

/* *out: the device's, which the first call makes: it reads the picks beside the plugin (devices/NAME.picks), then the
 * user's own. */
int tuning_of(CudaDevice *c, Tuning **out, Err *e);
/* How to prepare an op of a library's `version` under a limit: *pick is the pick for it, NULL if there is none; *race:
 * race it, and do not take the pick. */
int tuning_ask(CudaDevice *c, size_t version, const char *op, size_t limit, const Pick **pick, bool *race, Err *e);
/* Adds a pick of device c to the user's file as it is now. */
int tuning_keep(CudaDevice *c, const Pick *pick, Err *e);

#endif
