/* alloc_caching.h: PyTorch's CUDACachingAllocator: its settings, and what a replay of its own recordings asks of it. */
#ifndef MT_ALLOC_CACHING_H
#define MT_ALLOC_CACHING_H

#include "alloc.h"

enum { ROUNDUP_INTERVALS = 16 };

/* What PYTORCH_CUDA_ALLOC_CONF can say; 0 is PyTorch's default everywhere. */
typedef struct CachingSettings {
    bool expandable_segments;      /* a segment per pool that grows by pages of 2 MiB (small pool) and 20 MiB */
    size_t max_split_size;         /* bytes: larger blocks are not cut, nor given to smaller requests; 0: no limit */
    size_t max_non_split_rounding; /* bytes that such a block may be larger than its request; 0: 20 MiB */
    /* Part of the limit above which cached segments that were long unused go back; 0: never. It wants a limit, as
     * PyTorch wants set_per_process_memory_fraction. */
    double garbage_collection_threshold;
    /* Steps between two powers of two that requests are rounded up to, 0 or 1: none. [0]: below 2 MiB, [1]: below
     * 4 MiB, ..., [15]: from 32 GiB on. */
    uint32_t roundup_power2_divisions[ROUNDUP_INTERVALS];
} CachingSettings;

/* Reads "max_split_size_mb:128,expandable_segments:True" as PyTorch does. ERR_SCRIPT names the known keys. */
int caching_settings_parse(const char *text, CachingSettings *out, Err *e);
/* What the allocator takes for a request of that many bytes, which the block is at least as large as. */
size_t caching_round(const CachingSettings *s, size_t bytes);

/* settings: NULL is all defaults; copied. Expandable segments can only be predicted: ERR_UNSUPPORTED on a device that
 * is not dry. */
int alloc_caching_open(Ledger *ledger, const CachingSettings *settings, Allocator **out, Err *e);

/* ---- of an allocator that alloc_caching_open has made */

/* Requests from now on are for that stream; blocks of other streams are not for them. At first 0. */
void alloc_caching_stream(Allocator *a, int stream);
/* Of equal blocks that of the lowest segment is taken. Without this the youngest segment is the highest; PyTorch goes
 * by addresses, which a replay knows: those of the next segment (0: it is the highest again). */
void alloc_caching_next_address(Allocator *a, uint64_t address);
/* Where the block lies: its segment's address + the offset in it. */
uint64_t alloc_caching_address(const Block *b);

/* Addresses that were taken from the device at once: a segment, or pages of an expandable one. */
typedef struct CachedRange { uint64_t address; size_t size; int stream; bool small, page; } CachedRange;
typedef void CachingWatch(void *arg, const CachedRange *range, bool taken);
/* `watch` (NULL: nobody) is told of each range that is taken from the device from now on, or given back. Addresses are those
 * of the blocks' data. */
void alloc_caching_watch(Allocator *a, CachingWatch *watch, void *arg);

/* A block that was there before: `bytes` and `category` of `block` are set, `block->size` is all that it has. */
typedef struct CachedBlock { size_t offset; Block *block; } CachedBlock;
typedef struct CachedSegment { uint64_t address; size_t size; int stream; bool small; } CachedSegment;
/* Takes a segment with these blocks, which stand in order of offset and do not overlap. */
int alloc_caching_restore(Allocator *a, const CachedSegment *s, const CachedBlock *blocks, int n, Err *e);
/* Gives back the segment at that address if it has no live block; false: there is none. */
bool alloc_caching_release(Allocator *a, uint64_t address);

typedef struct CachingStats {
    size_t cached;   /* bytes of segments without a live block */
    size_t split;    /* free bytes in the others */
    size_t segments;
    size_t retries;  /* times that free segments went back to make room */
} CachingStats;
CachingStats alloc_caching_stats(const Allocator *a);

#endif
