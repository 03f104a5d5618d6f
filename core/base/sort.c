/* A radix sort by bytes of the key, from the lowest on. Bytes in which all keys are equal are passed: most keys are small. */
#include "sort.h"

enum { BITS = 8, DIGITS = 1 << BITS };

static unsigned digit(uint64_t key, int shift) { return (unsigned)(key >> shift) % DIGITS; }

/* Copies the entries to `to`, ordered by one digit. */
static void scatter(const Keyed *from, Keyed *to, int n, int shift) {
    int begin[DIGITS + 1] = {0}; /* by digit: how many entries have a lower one */
    for (int i = 0; i < n; i++) begin[digit(from[i].key, shift) + 1]++;
    for (int d = 0; d < DIGITS; d++) begin[d + 1] += begin[d];
    for (int i = 0; i < n; i++) to[begin[digit(from[i].key, shift)]++] = from[i];
}

void sort_keyed(Keyed *list, Keyed *spare, int n) {
    Keyed *from = list, *to = spare;
    uint64_t different = 0; /* the bits in which keys differ */
    for (int i = 1; i < n; i++) different |= list[i].key ^ list[0].key;
    for (int shift = 0; shift < 64; shift += BITS) {
        if (!digit(different, shift)) continue;
        scatter(from, to, n, shift);
        Keyed *sorted = to;
        to = from;
        from = sorted;
    }
    if (from != list && n > 0) memcpy(list, from, (size_t)n * sizeof *list);
}
