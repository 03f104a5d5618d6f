/* stream.h: how fast this machine's memory is. */
#ifndef MT_CPU_STREAM_H
#define MT_CPU_STREAM_H

#include <stddef.h>

/* Bytes of each side of a copy that no cache holds: the two are four times the last cache, and at least 128 MiB. */
size_t cpu_stream_bytes(void);
/* Bytes per second, those read and those written, of the fastest of several copies of so many bytes on all threads. */
double cpu_stream(void *to, void *from, size_t bytes);

#endif
