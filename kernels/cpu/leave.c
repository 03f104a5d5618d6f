#include "leave.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <x86intrin.h>

/* SEEN: bytes whose stores are timed; BUFFERED: of these, what a processor keeps without waiting. AGAIN: so many times as many results
 * are then computed where they lie before some are timed again, since other lines may have had other readers. */
enum { LINE = 64, SEEN = 128 * LINE, BUFFERED = 32 * LINE, AGAIN = 16, PATIENCE = 48 };

int leave_patience = PATIENCE;

/* The thread's. shared: it is in a loop with others. timed: results since it began to see, with their bytes and ticks; results: those
 * that were computed where they lie since then */
static _Thread_local struct { enum { IN_CACHE, TO_SEE, IN_MEMORY } how; bool shared; int64_t timed, results, bytes, ticks; } own;

static void see(void) { own.how = TO_SEE, own.timed = own.results = own.bytes = own.ticks = 0; }

void leave_begin(void) {
    own.shared = true;
    see();
}

/* Others may only read what went past the caches when it has arrived. */
void leave_end(void) {
    if (own.how == IN_MEMORY) _mm_sfence();
    own.how = IN_CACHE;
    own.shared = false;
}

bool leave_lies(void) {
    if (own.how == IN_CACHE && own.shared && own.results++ == AGAIN * own.timed) see();
    return own.how == IN_CACHE;
}

/* Whole lines go past the caches: of a part of one, the rest would have to be fetched. */
static void past(char *to, const char *from, size_t bytes) {
    const size_t before = (size_t)(-(uintptr_t)to % LINE), first = before < bytes ? before : bytes, end = first + (bytes - first) / LINE * LINE;
    memcpy(to, from, first);
    for (size_t i = first; i < end; i += sizeof(__m128)) _mm_stream_ps((void *)(to + i), _mm_loadu_ps((const void *)(from + i)));
    memcpy(to + end, from + end, bytes - end);
}

void leave_bytes(void *to, const void *from, size_t bytes) {
    if (own.how == IN_MEMORY) {
        past(to, from, bytes);
        return;
    }
    const uint64_t begin = own.how == TO_SEE ? __rdtsc() : 0;
    memcpy(to, from, bytes);
    if (own.how == IN_CACHE) return;
    own.ticks += (int64_t)(__rdtsc() - begin);
    own.bytes += (int64_t)bytes;
    own.timed++;
    if (own.ticks > (SEEN - BUFFERED) / LINE * leave_patience) own.how = IN_MEMORY;
    else if (own.bytes >= SEEN) own.how = IN_CACHE;
}
#else
int leave_patience;
void leave_begin(void) {}
void leave_end(void) {}
bool leave_lies(void) { return true; }
void leave_bytes(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
#endif
