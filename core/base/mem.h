/* mem.h: host memory of the core and of the devices. All of it comes from here, so that a test can make the n-th
 * allocation fail and see that everything is freed. The memory of a device is the ledger's (memory/ledger.h). */
#ifndef MT_MEM_H
#define MT_MEM_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed memory, aligned for any type, to be freed with mem_free. NULL: out of memory. `bytes` may be 0. */
void *mem_new(size_t bytes);
/* The same, filled with `bytes` bytes of `from`, which may be NULL if bytes is 0. */
void *mem_copy(const void *from, size_t bytes);
/* Makes room for `want` items of `item` bytes (at least 1) in an array of capacity *cap. array_pointer: the address of
 * the pointer to it, which is NULL at first. New items are zero. false: out of memory, the array is as it was. */
bool mem_grow(void *array_pointer, int *cap, int want, size_t item);
void mem_free(void *p); /* NULL is allowed */

/* For tests, the only global state of the core: makes the n-th allocation from now on fail (0: none), and counts the
 * allocations that are not freed yet. */
void mem_fail_after(long n);
long mem_live(void);

#ifdef __cplusplus
}
#endif

#endif
