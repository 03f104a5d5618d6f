/* sort_keyed beside an insertion sort: order, and equal keys in the order in which they were. */
#include "base/sort.h"
#include "tap.h"

enum { MOST = 700 };

static uint64_t next(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 11;
}

static void insert_sorted(Keyed *list, int n) {
    for (int i = 1; i < n; i++) {
        const Keyed one = list[i];
        int k = i;
        for (; k > 0 && list[k - 1].key > one.key; k--) list[k] = list[k - 1];
        list[k] = one;
    }
}

/* The number of lists of random keys below `keys`, times `step`, that differ */
static int wrong_lists(uint64_t keys, uint64_t step) {
    static Keyed list[MOST], expected[MOST], spare[MOST];
    uint64_t random = keys + step;
    int wrong = 0;
    for (int n = 0; n <= MOST; n += n < 5 ? 1 : 139) {
        for (int i = 0; i < n; i++) expected[i] = list[i] = (Keyed){next(&random) % keys * step, i};
        insert_sorted(expected, n);
        sort_keyed(list, spare, n);
        for (int i = 0; i < n; i++)
            if (list[i].key != expected[i].key || list[i].value != expected[i].value) {
                wrong++;
                break;
            }
    }
    return wrong;
}

int main(void) {
    is_int(wrong_lists(1, 1), 0, "equal keys");
    is_int(wrong_lists(10, 1), 0, "few keys, many times each");
    is_int(wrong_lists(100000, 1), 0, "keys of several bytes");
    is_int(wrong_lists(200, 1 << 16), 0, "keys whose lowest bytes are equal");
    is_int(wrong_lists(200, 0x0100000001000001u), 0, "keys of eight bytes");
    ok(key_of_int(INT_MIN) < key_of_int(-1) && key_of_int(-1) < key_of_int(0) && key_of_int(0) < key_of_int(INT_MAX), "whole numbers");
    ok(key_falling(1e300) < key_falling(2.5) && key_falling(2.5) < key_falling(2) && key_falling(2) < key_falling(0), "falling numbers");
    return tap_done();
}
