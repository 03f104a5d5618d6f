/* mem.h: host memory of the core and of the devices. One place, so that a test can make the n-th allocation fail and
 * see all of them freed. Device bytes never come from here: see ledger.h. */
#ifndef MT_MEM_H
#define MT_MEM_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

void *mem_new(size_t bytes);                  /* zeroed; NULL when there is none; free with mem_free */
void *mem_copy(const void *from, size_t bytes);
/* Makes room for `want` items of `item` bytes in *array (capacity *cap).
 * false: out of memory, the array is as before. */
bool mem_grow(void *array_pointer, int *cap, int want, size_t item);
void mem_free(void *p);

/* For tests, the only global state of the core: fail the n-th allocation from now on (0 = none),
 * and count the live ones. */
void mem_fail_after(long n);
long mem_live(void);

#ifdef __cplusplus
}
#endif

#endif
