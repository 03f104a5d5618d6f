/* runtime.h: runs programs on a device: an allocator gives memory through the ledger, and each op is one kernel call.
 * On the dry device the same walk computes nothing: that is the predictor. */
#ifndef MT_RUNTIME_H
#define MT_RUNTIME_H

#include "passes/compile.h"

typedef struct Runtime Runtime;

/* The bytes that a feed fills of an input or a target: fp32 or int32, of an input of bytes these, and what is missing to a
 * multiple of 4. */
static inline size_t fed_bytes(const Buf *b) {
    return align_up((size_t)shape_elements(&b->shape) * (b->dtype == DT_U8 ? 1 : 4), 4);
}

/* Fills the values of one micro-batch: x the inputs, one after the other (fed_bytes), t the target (NULL: there is none),
 * each in its shape in PyTorch's order, fp32 (labels: int32, inputs of bytes: these). step counts updates, micro the
 * micro-batches of a step, from 0. Returns an ErrCode. */
typedef int FeedFn(void *arg, uint32_t step, uint32_t micro, float *x, void *t, Err *e);

typedef struct StepResult {
    double seconds;   /* from the begin of the step to the begin of the next one, or, where none has begun, to its own end */
    double ops;       /* of them, those of its ops alone, without what feeds them */
    bool replayed;    /* all of these were recorded, and ran as graphs */
    float loss;       /* the sum of the losses, each a mean over the micro-batches; 0 without a loss */
    bool skipped;     /* the loss scaler found an overflow: no update was made */
} StepResult;

/* What a runtime is opened for: a program, and the network that it was compiled from. */
typedef struct Job { const Network *net; Program *program; } Job;

/* Opens jobs, at least one, whose programs share persistent buffers by name (a training and an evaluation, say, or a
 * GAN's two trainings). Device, networks and programs are borrowed; a program keeps its placement. limit: bytes of the device, 0: none; fail_at: see
 * Ledger. Parameters are drawn from `seed` (PyTorch's initialisation), by their numbers in the first network that has
 * them, counted on from one network to the next. ERR_OOM: the limit, or the device's memory, is too small;
 * ERR_HOST_MEMORY; ERR_SCRIPT: a program has no ops, or programs share a buffer that differs in type or shape;
 * ERR_DEVICE. */
int runtime_open(Device *device, AllocKind kind, size_t limit, const Job *jobs, int n_jobs, uint64_t seed,
                 size_t fail_at, Runtime **out, Err *e);
void runtime_close(Runtime *r); /* NULL is allowed */
/* Closes it, too. ERR_INTERNAL: the ledger is not at zero after everything was given back. */
int runtime_close_checked(Runtime *r, Err *e);

/* Enqueues one step of program `which`; feed may be NULL. The host does not wait for the device, so the next step may begin
 * before the result of this one is asked for: UNDER_WAY of them at most. ERR_OOM and errors of the device name the op; after
 * an error the step's memory is given back. ERR_SCRIPT: a label or index is out of bounds. */
enum { UNDER_WAY = 2 };
int runtime_begin(Runtime *r, int which, FeedFn *feed, void *arg, Err *e);
/* Waits for the first of the steps that have begun, and gives its result: out may be NULL. What was kept of it can be read
 * from now on. */
int runtime_result(Runtime *r, StepResult *out, Err *e);
/* Both, one after the other: for who needs a step's result before the next one. No step may be under way here, or below. */
int runtime_step(Runtime *r, int which, FeedFn *feed, void *arg, StepResult *out, Err *e);
/* The same step with every op timed by itself: the host waits after each, and sections are neither recorded nor replayed.
 * op_seconds, one for each op of the program, become the device's times for them, summed over the micro-batches. Each
 * includes that of timing nothing, which runtime_timing_seconds measures (the median of several). */
int runtime_step_timed(Runtime *r, int which, FeedFn *feed, void *arg, double *op_seconds, StepResult *out, Err *e);
int runtime_timing_seconds(Runtime *r, double *seconds, Err *e);
/* A part of a step of program `which`, which was compiled for that; WHOLE is all of it, and none of these. FORWARD takes
 * the values of a batch and gives the loss; BACKWARD comes after it, once, and makes the gradients (fresh) or adds to
 * them; UPDATE takes them. What another step or a forward pass does between FORWARD and BACKWARD takes the place of what
 * the latter would read: ERR_SCRIPT. */
typedef enum StepPart { PART_WHOLE, PART_FORWARD, PART_BACKWARD, PART_UPDATE } StepPart;
int runtime_part(Runtime *r, int which, StepPart part, bool fresh, FeedFn *feed, void *arg, StepResult *out, Err *e);
const Ledger *runtime_ledger(const Runtime *r);
/* Bytes of host memory (pinned, on a GPU): of paged states, and of what the programs offload. The ledger counts the device's
 * only. */
size_t runtime_host_bytes(const Runtime *r);
/* No placement of program `which` needs fewer bytes, with the persistent buffers of all. */
size_t runtime_lower_bound(const Runtime *r, int which);
size_t runtime_empty_cache(Runtime *r); /* bytes given back to the device */
void runtime_reset_peak(Runtime *r);
uint64_t runtime_state(const Runtime *r); /* see allocator_state */

/* Reads or writes a persistent buffer by name ("0.weight"), or reads what the last step of program `which` kept
 * ("0.weight.grad", "5.y"), as fp32 (whole numbers: int32) in PyTorch's order. values: as many as the shape has
 * elements. A quantised weight is read and written as the numbers that its codes stand for, with all that belongs to
 * them. ERR_SCRIPT: there is no such buffer. */
int runtime_read(Runtime *r, int which, const char *name, float *values, Err *e);
int runtime_write(Runtime *r, const char *name, const float *values, Err *e);
/* Shape of such a buffer. */
int runtime_shape(const Runtime *r, int which, const char *name, Shape *shape, Err *e);

/* The loss scale of program `which` after its last step; 0: it has none. */
int runtime_loss_scale(Runtime *r, int which, float *scale, Err *e);

/* Its type; DT_F32 if there is no such buffer. */
DType runtime_type(const Runtime *r, int which, const char *name);

/* The i-th persistent buffer (borrowed), NULL past the last one: parameters, optimizer state, counters. read and write
 * copy its `bytes`: elements of its own type in PyTorch's order. A run can be resumed from all of them and the number
 * of steps. */
const Buf *runtime_persistent(const Runtime *r, int i);
int runtime_master(const Runtime *r, int i); /* of a weight: which of them is its fp32 copy; -1: none is */
/* How the buffer's codes are made; NULL: it is no quantised weight. */
const Quantization *runtime_quantization(const Runtime *r, int i);
/* Makes DoRA's magnitude, persistent buffer i, the norms of the rows of its layer's weight and adapter, which it starts as; with
 * is, says whether it has these values, and changes nothing. ERR_SCRIPT: it is no magnitude. */
int runtime_magnitude(Runtime *r, int i, bool *is, Err *e);
int runtime_read_bytes(Runtime *r, int i, void *bytes, Err *e);
int runtime_write_bytes(Runtime *r, int i, const void *bytes, Err *e);
uint32_t runtime_updates(const Runtime *r); /* steps made */
void runtime_set_updates(Runtime *r, uint32_t updates);

/* What a run of `rounds` equal rounds will need, each of them the n_calls calls one after the other, in a runtime of all
 * jobs; all in bytes. The training of one network is the round of one call: a whole step of its program. */
typedef struct Call { int which; StepPart part; } Call;
typedef struct Prediction {
    LedgerPeak peak;
    size_t lower_bound;  /* no placement of the called programs can be lower; 0 if nothing could be opened */
    size_t allocated, reserved; /* the ledger's `used` and `held` after the last round */
    size_t host;         /* runtime_host_bytes */
    bool fits;           /* false: it runs out of memory at the limit; reason says where */
    Err reason;
} Prediction;
/* `device` is asked for workspace and alignment only: nothing is allocated on it. Errors as runtime_open, runtime_step
 * and runtime_part, except ERR_OOM. */
int predict(const Job *jobs, int n_jobs, AllocKind kind, Device *device, size_t limit, const Call *calls, int n_calls,
            int rounds, Prediction *out, Err *e);

#endif
