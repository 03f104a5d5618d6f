/* runtime.h: runs programs on a device: memory by an allocator through the ledger, one kernel call per op.
 * On the dry device the same walk computes nothing: that is the predictor. */
#ifndef MT_RUNTIME_H
#define MT_RUNTIME_H

#include "passes/compile.h"

typedef struct Runtime Runtime;

/* Fills the input buffers of one micro-batch. x, t: the input and target buffers' bytes in PyTorch's order, fp32
 * (labels: int32). Returns an ErrCode. */
typedef int FeedFn(void *arg, uint32_t step, uint32_t micro, float *x, void *t, Err *e);

typedef struct StepResult {
    double seconds;   /* device time of the step, feeding excluded */
    float loss;       /* the losses' sum, mean over the micro-batches; 0 without a loss */
    bool skipped;     /* the loss scaler found an overflow: no update was made */
} StepResult;

/* Programs of one network that share parameters by buffer name (a training and an evaluation program, say). They are
 * borrowed. `limit` bytes (0 = none). Parameters are drawn from `seed` (PyTorch's initialisation). */
int runtime_open(Device *device, AllocKind kind, size_t limit, const Network *net, Program *const *programs,
                 int n_programs, uint64_t seed, size_t fail_at, Runtime **out, Err *e);
void runtime_close(Runtime *r); /* NULL is allowed */
/* Gives everything back and says whether the ledger is at zero; the runtime is closed afterwards. */
int runtime_close_checked(Runtime *r, Err *e);

/* One step of program `which`. more: the next call will be for another step of it with this feed, whose first
 * micro-batch may be asked for while the device works. */
int runtime_step(Runtime *r, int which, FeedFn *feed, void *arg, bool more, StepResult *out, Err *e);
const Ledger *runtime_ledger(const Runtime *r);
/* Host memory that the programs offload to (pinned, on a GPU): not the device's, so not in the ledger. */
size_t runtime_host_bytes(const Runtime *r);
size_t runtime_empty_cache(Runtime *r);
void runtime_reset_peak(Runtime *r);
uint64_t runtime_state(const Runtime *r); /* see allocator_state */
const Placement *runtime_placement(const Runtime *r, int which); /* borrowed */

/* Reads or writes a persistent buffer, or reads a kept one of the last step of program `which`, by name ("0.weight",
 * "0.weight.grad", "5.y"), as fp32 in PyTorch's order. values: shape_elements of the buffer's shape.
 * ERR_SCRIPT: no such buffer. */
int runtime_read(Runtime *r, int which, const char *name, float *values, Err *e);
int runtime_write(Runtime *r, const char *name, const float *values, Err *e);
/* Shape of such a buffer. */
int runtime_shape(const Runtime *r, int which, const char *name, Shape *shape, Err *e);

/* Its type: whole numbers are read and written as int32 in place of fp32. DT_F32 where there is no such buffer. */
DType runtime_type(const Runtime *r, int which, const char *name);

/* The i-th persistent buffer (borrowed), NULL past the last: parameters, optimizer state, counters. Its bytes are
 * elements of its own type in PyTorch's order. All of them, and the steps made, are what a run can be resumed from. */
const Buf *runtime_persistent(const Runtime *r, int i);
int runtime_read_bytes(Runtime *r, int i, void *bytes, Err *e);
int runtime_write_bytes(Runtime *r, int i, const void *bytes, Err *e);
uint32_t runtime_updates(const Runtime *r); /* steps made */
void runtime_set_updates(Runtime *r, uint32_t updates);

/* What a run of `steps` steps of the first program will take, in a runtime of all of them. The walk is runtime_step's,
 * on the dry device. */
typedef struct Prediction {
    LedgerPeak peak;
    size_t lower_bound;  /* no placement of this program can be lower; 0 where nothing could be opened */
    size_t allocated, reserved; /* used and held after the last step */
    size_t host;         /* runtime_host_bytes */
    bool fits;           /* false: out of memory at the limit; reason says where */
    Err reason;
} Prediction;
int predict(const Network *net, Program *const *programs, int n_programs, AllocKind kind, Device *device, size_t limit,
            int steps, Prediction *out, Err *e);
/* The same where in each step all programs run once, in their order. */
int predict_turns(const Network *net, Program *const *programs, int n_programs, AllocKind kind, Device *device,
                  size_t limit, int steps, Prediction *out, Err *e);

#endif
