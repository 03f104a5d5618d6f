#include "ledger.h"

#include <stdio.h>
#include <string.h>

void ledger_open(Ledger *l, Device *device, size_t limit) {
    *l = (Ledger){.device = device, .limit = limit, .mark = -1, .peak = {.mark = -1}};
}

/* ledger_take is followed by the ledger_use of the tensor that the bytes were taken for. At that use `held` is the same
 * and `used` is larger, so the use becomes the peak instant, and the peak contains the new tensor. */
static void see_peak(Ledger *l) {
    LedgerPeak *p = &l->peak;
    assert(l->used <= l->held);
    if (l->held < p->held || (l->held == p->held && l->used <= p->used)) return;
    p->held = l->held;
    p->used = l->used;
    p->mark = l->mark;
    p->program = l->program;
    memcpy(p->category, l->category, sizeof p->category);
    p->category[CAT_OTHER] += l->held - l->used;
}

static int out_of_memory(const Ledger *l, size_t bytes, const char *why, Err *e) {
    char limit[32] = "none";
    if (l->limit) snprintf(limit, sizeof limit, "%zu", l->limit);
    return err_set(e, ERR_OOM, "out of memory: requested %zu bytes, held %zu, limit %s%s", bytes, l->held, limit, why);
}

int ledger_take(Ledger *l, size_t bytes, void **p, Err *e) {
    size_t alignment = l->device->table->alignment, room = (l->limit ? l->limit : SIZE_MAX) - l->held;
    assert(!l->limit || l->held <= l->limit);
    l->requests++;
    if (bytes == 0 || bytes % alignment)
        return err_set(e, ERR_INTERNAL, "expected a request of a multiple of %zu bytes, found %zu", alignment, bytes);
    if (l->requests == l->fail_at) return out_of_memory(l, bytes, " (this request was made to fail)", e);
    if (bytes > room) return out_of_memory(l, bytes, "", e);
    Err device = {OK, ""};
    int code = l->device->table->alloc(l->device, bytes, p, &device);
    if (code == ERR_OOM) {
        char why[sizeof device.text];
        snprintf(why, sizeof why, "; %s", device.text);
        return out_of_memory(l, bytes, why, e);
    }
    if (code) return err_set(e, code, "%s", device.text);
    l->held += bytes;
    see_peak(l);
    return OK;
}

void ledger_give(Ledger *l, void *p, size_t bytes) {
    assert(bytes <= l->held - l->used);
    l->device->table->free(l->device, p, bytes);
    l->held -= bytes;
}

void ledger_use(Ledger *l, Category category, size_t bytes) {
    l->category[category] += bytes;
    l->used += bytes;
    see_peak(l);
}

void ledger_unuse(Ledger *l, Category category, size_t bytes) {
    assert(bytes <= l->category[category] && bytes <= l->used);
    l->category[category] -= bytes;
    l->used -= bytes;
}

void ledger_reset_peak(Ledger *l) {
    l->peak = (LedgerPeak){.mark = -1};
    see_peak(l);
}

int ledger_check_zero(const Ledger *l, Err *e) {
    for (int c = 0; c < CAT_COUNT; c++)
        if (l->category[c])
            return err_set(e, ERR_INTERNAL, "expected no bytes in use at the end, found %zu of %s", l->category[c],
                           category_name((Category)c));
    if (l->held) return err_set(e, ERR_INTERNAL, "expected no bytes held at the end, found %zu", l->held);
    return OK;
}
