#include "nearest.h"

#include <string.h>

enum { LONGEST = 64 }; /* of names that are compared */

static int lower(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; }
static int least_of(int a, int b) { return a < b ? a : b; }

/* Slips between two names shorter than LONGEST. row[i % 3][j]: between the first i letters of a and the first j of b */
static int slips(const char *a, const char *b) {
    int row[3][LONGEST + 1], n = (int)strlen(b), m = (int)strlen(a);
    for (int j = 0; j <= n; j++) row[0][j] = j;
    for (int i = 1; i <= m; i++) {
        int *now = row[i % 3], *before = row[(i - 1) % 3];
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            const int x = lower(a[i - 1]), y = lower(b[j - 1]);
            now[j] = least_of(before[j - 1] + (x != y), least_of(before[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && x == lower(b[j - 2]) && lower(a[i - 2]) == y)
                now[j] = least_of(now[j], row[(i - 2) % 3][j - 2] + 1);
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
