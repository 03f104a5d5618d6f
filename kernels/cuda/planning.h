/* planning.h: what a device remembers between ops while it prepares them: the picks, and whether to look for more. */
#ifndef MT_PLANNING_H
#define MT_PLANNING_H

#include "cache.h"
#include "picks.h"

struct Planning {
    Picks picks;
    char path[CACHE_PATH]; /* where picks are kept: $MEMTIDE_PICKS or ~/.cache/memtide/picks-DEVICE.txt */
    bool racing;           /* every op that is prepared is raced, unless there is a pick for it under the same limit */
};

/* The first call reads the picks: those beside the plugin (devices/NAME.picks), then the user's own. */
int planning_of(CudaDevice *c, Planning **out, Err *e);
/* The pick for an op under a limit; NULL: none. */
const Pick *planning_find(CudaDevice *c, const Planning *p, const char *op, size_t limit);
/* Adds a pick to the user's file, as it is now. */
int planning_keep(CudaDevice *c, Planning *p, const char *op, size_t limit, const char *way, const EngineId *engine,
                  size_t workspace, double us, Err *e);

#endif
