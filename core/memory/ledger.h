/* ledger.h: the only gate for device bytes.
 *
 *   held   bytes taken from the device                      |<-------------- held -------------->|
 *   used   bytes of tensors in them, by category            |weights|acts|...|      other        |
 *   other  held - used: alignment, gaps, cached free blocks (and the loss)
 *
 * The peak instant is the first one with the most bytes held and, among those, the most bytes used; the categories at
 * that instant sum to the peak. A limit makes any device small; fail_at makes the n-th request fail. */
#ifndef MT_LEDGER_H
#define MT_LEDGER_H

#include "device.h"
#include "program/program.h" /* categories */

typedef struct LedgerPeak {
    size_t held;                 /* bytes */
    size_t category[CAT_COUNT];  /* sum to held */
    size_t used;                 /* held - slack: what tensors need at that instant */
    int mark;                    /* ledger.mark at that instant */
} LedgerPeak;

typedef struct Ledger {
    Device *device;              /* borrowed */
    size_t held, used, category[CAT_COUNT]; /* category: used bytes; slack is not in it */
    size_t limit;                /* most bytes that may be held; 0 = as much as the device has */
    size_t requests;             /* ledger_take calls so far */
    size_t fail_at;              /* make that request (1 = the next ledger's first) fail; 0 = none */
    int mark;                    /* set by the executor: the op that runs now; -1 outside ops */
    LedgerPeak peak;
} Ledger;

void ledger_open(Ledger *l, Device *device, size_t limit);
/* Takes `bytes` (a multiple of the device's alignment) from the device. ERR_OOM says requested, held and limit. */
int ledger_take(Ledger *l, size_t bytes, void **p, Err *e);
void ledger_give(Ledger *l, void *p, size_t bytes);
/* A tensor of `bytes` in `category` begins or stops to use held bytes. */
void ledger_use(Ledger *l, Category category, size_t bytes);
void ledger_unuse(Ledger *l, Category category, size_t bytes);
void ledger_reset_peak(Ledger *l);
/* ERR_INTERNAL naming what is left, if anything is. */
int ledger_check_zero(const Ledger *l, Err *e);

#endif
