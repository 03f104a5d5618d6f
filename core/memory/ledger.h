/* ledger.h: the only way to the device's memory; it counts every byte.
 *
 *   held   bytes taken from the device                      |<-------------- held -------------->|
 *   used   bytes of tensors in them, by category            |weights|acts|...|      other        |
 *   other  held - used: alignment, gaps, cached free blocks; and the tensors of CAT_OTHER
 *
 * The peak instant is the first instant with the most bytes held and, among those, with the most bytes used. The
 * categories at that instant sum to the peak. `limit` makes a device smaller than it is; fail_at makes one request
 * fail. Always used <= held, and held <= limit where there is one. */
#ifndef MT_LEDGER_H
#define MT_LEDGER_H

#include "device.h"
#include "program/program.h" /* categories */

typedef struct LedgerPeak {
    size_t held;                 /* bytes */
    size_t category[CAT_COUNT];  /* bytes; they sum to held, since CAT_OTHER has held - used, too */
    size_t used;                 /* bytes of tensors at that instant */
    int mark, program;           /* Ledger.mark and .program at that instant */
} LedgerPeak;

typedef struct Ledger {
    Device *device;              /* borrowed */
    size_t held, used, category[CAT_COUNT]; /* bytes; the categories sum to used */
    size_t limit;                /* the most bytes that may be held; 0: what the device has */
    size_t requests;             /* calls of ledger_take so far */
    size_t fail_at;              /* the request that fails, counted from 1; 0: none */
    int mark, program;           /* set by the runtime: the op that runs, -1 outside of ops; whose it is */
    LedgerPeak peak;
} Ledger;

/* Nothing held; device: borrowed, NULL where no bytes are taken. */
void ledger_open(Ledger *l, Device *device, size_t limit);
/* Takes `bytes`, a multiple of the device's alignment and not 0, from the device. The text of ERR_OOM has the bytes
 * that were requested, those held and the limit. */
int ledger_take(Ledger *l, size_t bytes, void **p, Err *e);
/* Gives bytes that no tensor uses back to the device: a p and `bytes` of ledger_take. */
void ledger_give(Ledger *l, void *p, size_t bytes);
/* A tensor of `bytes` begins (use) or ceases (unuse) to use held bytes; it counts in `category`. */
void ledger_use(Ledger *l, Category category, size_t bytes);
void ledger_unuse(Ledger *l, Category category, size_t bytes);
/* The peak is that from now on. */
void ledger_reset_peak(Ledger *l);
/* ERR_INTERNAL, with what is left, where something is still held or used. */
int ledger_check_zero(const Ledger *l, Err *e);

#endif
