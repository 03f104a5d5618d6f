/* snapshot.h: what torch.cuda.memory._dump_snapshot has written of one GPU: the allocator's state when the recording
 * began, computed backwards from the one at its end, and what was allocated and freed from there on. */
#ifndef MT_SNAPSHOT_H
#define MT_SNAPSHOT_H

#include "memory/trace.h"

/* What PyTorch recorded of a tensor of the trace, beside its size. */
typedef struct SnapshotTensor {
    uint64_t address;
    int64_t time_us;   /* when it was allocated; 0: before the recording began */
    size_t block;      /* of the block that it had at the start, rounding included; 0: it came later */
} SnapshotTensor;

typedef struct Snapshot {
    Trace trace;               /* the first n_start events allocate what was there at the start, by address */
    SnapshotTensor *tensors;   /* as trace.tensors */
    int64_t *time_us;          /* as trace.events */
    TraceSegment *start;    /* segments at the start, by address */
    TraceSegment *segments; /* what became of segments, in order */
    CachingSettings settings;  /* that it was recorded with */
    int n_start, n_start_segments, n_segments, cap_segments, n_times, cap_times;
    int device, devices;       /* which GPU; how many have events */
    int ooms;                  /* times that memory ran out */
    size_t oom_bytes;          /* what the first of them asked for */
    bool expandable;           /* there are expandable segments: addresses cannot be replayed */
    size_t reserved_start, reserved_peak, reserved_end; /* as recorded, without any replay */
} Snapshot;

/* Reads the events of GPU `device` (-1: the first that has some). ERR_FORMAT: no snapshot, or one whose events do not
 * lead to its state; the message names the event. */
int snapshot_open(const char *path, int device, Snapshot **out, Err *e);
void snapshot_close(Snapshot *s); /* NULL is allowed */

/* Bytes at the instant with the most in blocks. */
typedef struct SnapshotPeak {
    int event;            /* of the trace; below n_start: at the start */
    size_t requested;     /* what tensors asked for */
    size_t allocated;     /* blocks: rounded up, and what was not worth cutting off; PyTorch's memory_allocated */
    size_t split, cached; /* free in segments that have blocks too, and in the others */
    size_t reserved;      /* segments, the sum of the three before */
} SnapshotPeak;

typedef struct SnapshotReplay {
    SnapshotPeak peak;
    size_t reserved_peak;          /* the most bytes in segments, at whatever time */
    size_t requested_peak;         /* the most bytes that tensors asked for: no allocator needs less */
    size_t allocated_start, allocated_end, reserved_end;
    int equal, different;          /* allocations at the recorded address, and elsewhere */
    int segments_equal, segments_different; /* segments taken and given back as recorded, and otherwise */
    int first;                     /* the first event that differs, -1: none */
    char difference[200];          /* what is different there */
} SnapshotReplay;

/* Replays the trace from the recorded start with the recorded settings, over a ledger without a limit on a dry device.
 * sizes: by tensor, receives the bytes of its block; or NULL.
 * Of expandable segments no state can be restored: there the start is allocated anew and nothing is compared. */
int snapshot_replay(const Snapshot *s, Ledger *ledger, SnapshotReplay *out, size_t *sizes, Err *e);

/* Where the tensors lay and what became of segments, as recorded; sizes of blocks are those of the replay. Those that were
 * there at the start were taken before event 0. out: zeroed. */
int snapshot_places(const Snapshot *s, Ledger *ledger, SnapshotReplay *replay, TracePlaces *out, Err *e);

#endif
