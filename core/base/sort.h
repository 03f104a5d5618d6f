/* sort.h: an order by whole numbers, in a time linear in how many there are. */
#ifndef MT_SORT_H
#define MT_SORT_H

#include <limits.h>
#include <stdint.h>
#include <string.h>

typedef struct Keyed { uint64_t key; int value; } Keyed;

/* Sorts the n entries by their key, the least first; of equal keys the one that was before stays before. spare: [n] for its use */
void sort_keyed(Keyed *list, Keyed *spare, int n);

/* Keys in the order of what they are of */
static inline uint64_t key_of_int(int value) { return (uint64_t)((int64_t)value - INT_MIN); }
/* The largest first; value: 0 or more. The bits of such numbers rise as they do. */
static inline uint64_t key_falling(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return ~bits;
}

#endif
