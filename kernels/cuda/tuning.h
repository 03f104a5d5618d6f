/* tuning.h: what a device remembers between ops while it prepares them: the picks, and whether to look for more. */
#ifndef MT_TUNING_H
#define MT_TUNING_H

#include "cache.h"
#include "cuda.h"
#include "tuned.h"

struct Tuning {
    Tuned picks;
    char path[CACHE_PATH]; /* where picks are kept: $MEMTIDE_PICKS or ~/.cache/memtide/picks-DEVICE.txt */
    bool racing;           /* every op that is prepared is raced, unless there is a pick for it under the same limit */
};

/* The first call reads the picks: those beside the plugin (devices/NAME.picks), then the user's own. */
int tuning_of(CudaDevice *c, Tuning **out, Err *e);
/* How an op of a library's `version` is to be prepared under a limit: *pick is what was picked for it, NULL: nothing;
 * *race: it is to be raced, and the pick is not to be taken. */
int tuning_ask(CudaDevice *c, size_t version, const char *op, size_t limit, const Pick **pick, bool *race, Err *e);
/* Adds a pick to the user's file, as it is now; the device is c's. */
int tuning_keep(CudaDevice *c, const Pick *pick, Err *e);

#endif
