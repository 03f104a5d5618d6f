/* t_leave.c: results that go past the caches are the bytes of those that do not, wherever they lie; and a thread leaves them past the
 * caches only in a loop that it shares, and only where stores take long. */
#include "../../kernels/cpu/leave.c"

#include <limits.h>
#include <stdlib.h>

#include "base/base.h"
#include "tap.h"

enum { ROOM = 1024, PIECE = 8192 };

#ifdef __x86_64__
/* Is each piece of some length, from and to some place, copied, and nothing beside it changed? */
static bool copies(size_t most) {
    static _Alignas(64) char from[ROOM], to[ROOM], expected[ROOM];
    for (int i = 0; i < ROOM; i++) from[i] = (char)(i * 7 + 1);
    for (size_t at = 64; at < 130; at++)
        for (size_t begin = 0; begin < 20; begin++)
            for (size_t n = 0; n <= most; n += n < 150 ? 1 : 37) {
                memset(to, 0, ROOM);
                memset(expected, 0, ROOM);
                memcpy(expected + at, from + begin, n);
                leave_bytes(to + at, from + begin, n);
                if (memcmp(to, expected, ROOM)) {
                    printf("# %zu bytes from %zu to %zu\n", n, begin, at);
                    return false;
                }
            }
    return true;
}

/* How many pieces are left elsewhere before the next one may be computed where it lies: at most `most` */
static int until_lies(char *to, const char *from, int most) {
    int n = 0;
    for (; n < most && !leave_lies(); n++) leave_bytes(to, from, PIECE);
    return n;
}

int main(void) {
    char *from = calloc(2, PIECE), *to = from ? from + PIECE : NULL;
    if (!from) return ok(0, "no memory"), tap_done();
    leave_patience = -1;
    ok(leave_lies(), "outside of a loop results are computed where they lie");
    leave_begin();
    ok(!leave_lies(), "in a loop the first one is not");
    leave_bytes(to, from, 64);
    ok(own.how == IN_MEMORY && !leave_lies(), "a store that takes too long: results go past the caches");
    ok(copies(ROOM - 200), "... and are the same bytes, wherever they lie");
    ok(!leave_lies() && until_lies(to, from, 1000) == 1000, "... until the loop's end");
    leave_end();
    ok(leave_lies() && own.how == IN_CACHE, "after it they are computed where they lie");
    leave_patience = INT_MAX / (SEEN / LINE); /* more than half a second for all of them, so that no other program disturbs the test */
    leave_begin();
    ok(!leave_lies(), "another loop: the first one is not");
    is_int(until_lies(to, from, 1000), 1, "... and the second one is, after quick stores of enough bytes");
    int lying = 1;
    while (lying < 1000 && leave_lies()) lying++;
    is_int(lying, AGAIN, "... and those after it, before one is timed again");
    leave_begin();
    for (int i = 0; i < SEEN / 256; i++) {
        if (leave_lies()) ok(0, "%d pieces of 256 bytes are enough", i);
        leave_bytes(to, from, 256);
    }
    ok(leave_lies(), "small ones are timed together");
    ok(copies(ROOM - 200), "... and copied");
    leave_end();
    free(from);
    return tap_done();
}
#else
int main(void) { return ok(1, "# SKIP no stores past the caches"), tap_done(); }
#endif
