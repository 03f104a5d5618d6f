/* leave.h: how a thread leaves results: in its cache, or past the caches in memory.
 *
 * What several threads have read, such as weights, lies in the caches of all their processors. Before one of them may write there
 * again, the others have to give up each line. Where the processors share no cache that takes 30 to 40 ns a line, however early the
 * line is asked for, and a processor waits for one after the other; a store that goes past the caches (a non-temporal one) takes 3,
 * since nobody waits for it. But then who reads the result fetches it from memory, so elsewhere such stores are slower. Neither
 * the op nor the machine tells which it is: a virtual machine is moved between processors within minutes. So in each loop each
 * thread sees how long its first stores take, which the processor's counter tells. It changes no bit of a result. */
#ifndef MT_CPU_LEAVE_H
#define MT_CPU_LEAVE_H

#include <stdbool.h>
#include <stddef.h>

/* Around a thread's part of a loop that several threads share. Outside of such loops results stay in the cache. */
void leave_begin(void);
void leave_end(void);
/* May the next results be computed where they lie? Else they are computed elsewhere, and left by leave_bytes. */
bool leave_lies(void);
/* As memcpy */
void leave_bytes(void *to, const void *from, size_t bytes);

/* Counts of the processor's clock that a store of a line may take where results stay in the cache. Tests change it: below 0 all
 * that leave_bytes gets goes past the caches. */
extern int leave_patience;

#endif
