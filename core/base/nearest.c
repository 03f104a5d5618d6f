#include "nearest.h"

#include <string.h>

enum { LONGEST = 64 }; /* characters: longer names are not compared */

static int lower(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; }

/* The least number of slips that make a of b: the edit distance with swaps of neighbours (optimal string alignment).
 * row[i % 3][j] is that of the first i letters of a and the first j letters of b. */
static int slips(const char *a, const char *b) {
    int row[3][LONGEST + 1], n = (int)strlen(b), m = (int)strlen(a);
    assert(n < LONGEST && m < LONGEST);
    for (int j = 0; j <= n; j++) row[0][j] = j;
    for (int i = 1; i <= m; i++) {
        int *now = row[i % 3], *before = row[(i - 1) % 3];
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            const int x = lower(a[i - 1]), y = lower(b[j - 1]);
            now[j] = min_int(before[j - 1] + (x != y), min_int(before[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && x == lower(b[j - 2]) && lower(a[i - 2]) == y)
                now[j] = min_int(now[j], row[(i - 2) % 3][j - 2] + 1);
        }
    }
    return row[m % 3][n];
}

Nearest nearest_to(const char *name) {
    const size_t length = strlen(name);
    return (Nearest){name, length < 2 ? 1 : length < 6 ? 2 : 3};
}

bool nearest_try(Nearest *n, const char *known) {
    if (strlen(n->name) >= LONGEST || strlen(known) >= LONGEST) return false;
    const int found = slips(n->name, known);
    if (found >= n->least) return false;
    n->least = found;
    return true;
}
