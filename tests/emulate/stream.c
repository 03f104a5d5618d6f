/* stream.c: what is enqueued on the emulated device: streams, launches, events and graphs. See cuda_runtime.h. */
#include "runtime.h"
#include "shadow/shadow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* PARAMETERS_MAX: CUDA's. ARGUMENTS_MAX: these and the kernel's address, or what a library's stand-in is told */
enum { PARAMETERS_MAX = 4096, ARGUMENTS_MAX = 8192 };

/* A call with a copy of its arguments */
typedef struct Task {
    struct Task *next;
    void (*run)(void *data);
    _Alignas(16) char data[];
} Task;

typedef struct Tasks { Task *first, *last; } Tasks;

struct EmulatedStream {
    Tasks waiting, captured;
    enum cudaStreamCaptureStatus capture;
    struct EmulatedStream *joins; /* the capture of that stream has taken this one along */
    int tasks, joined;            /* since then: captured; those of them that are in the other stream's list */
    int device; /* that it was made on */
    struct EmulatedStream *next;
};
/* pending: records of it that have not run yet; it stands for the last one */
struct EmulatedEvent { double at; bool timed, captured; int tasks, pending; struct EmulatedStream *stream; };
struct EmulatedGraph { Tasks tasks; };

static struct {
    struct EmulatedStream base, *streams; /* base: stream 0 */
    double spent; /* seconds that tasks have added by emulate_spend */
} all;

/* ---- tasks and streams */

static void tasks_add(Tasks *t, Task *task) {
    task->next = NULL;
    if (t->last) t->last->next = task;
    else t->first = task;
    t->last = task;
}

/* Moves the first `n` tasks to the end of another list. */
static void tasks_move(Tasks *from, Tasks *to, int n) {
    while (n-- > 0 && from->first) {
        Task *task = from->first;
        from->first = task->next;
        if (!from->first) from->last = NULL;
        tasks_add(to, task);
    }
}

static void tasks_free(Tasks *t) {
    while (t->first) {
        Task *next = t->first->next;
        free(t->first);
        t->first = next;
    }
    t->last = NULL;
}

static void tasks_run(const Tasks *t) {
    for (Task *task = t->first; task; task = task->next) task->run(task->data);
}

static struct EmulatedStream *stream_of(cudaStream_t stream) { return stream ? stream : &all.base; }

static void stream_drain(struct EmulatedStream *s) {
    Tasks waiting = s->waiting;
    s->waiting = (Tasks){NULL, NULL};
    tasks_run(&waiting);
    tasks_free(&waiting);
}

/* Only until the event has happened: what comes after it in its stream may be as late as it likes. */
static void drain_to(struct EmulatedEvent *event) {
    Tasks *t = &event->stream->waiting;
    while (t->first && event->pending > 0) {
        Task *task = t->first;
        t->first = task->next;
        if (!t->first) t->last = NULL;
        task->run(task->data);
        free(task);
    }
}

void emulate_drain_stream(cudaStream_t stream) { stream_drain(stream_of(stream)); }

void emulate_drain(void) {
    stream_drain(&all.base);
    for (struct EmulatedStream *s = all.streams; s; s = s->next) stream_drain(s);
}

cudaError_t emulate_push(cudaStream_t stream, void (*run)(void *), const void *data, size_t bytes) {
    struct EmulatedStream *s = stream_of(stream);
    if (stream && stream->device != emulate_device()) return emulate_give(cudaErrorInvalidResourceHandle);
    Task *task = malloc(sizeof *task + bytes);
    if (!task) return emulate_give(cudaErrorUnknown);
    task->run = run;
    memcpy(task->data, data, bytes);
    if (s->joins || s->capture == cudaStreamCaptureStatusActive) {
        tasks_add(&s->captured, task);
        s->tasks++;
    } else {
        tasks_add(&s->waiting, task);
        if (!emulate_flag("EMULATE_LATE")) stream_drain(s);
    }
    return cudaSuccess;
}

static cudaError_t not_while_capturing(struct EmulatedStream *s) {
    if (s->joins) s = s->joins;
    if (s->capture == cudaStreamCaptureStatusNone) return cudaSuccess;
    s->capture = cudaStreamCaptureStatusInvalidated;
    return emulate_give(cudaErrorStreamCaptureUnsupported);
}

bool emulate_captures(cudaStream_t stream) { return stream_of(stream)->capture != cudaStreamCaptureStatusNone; }

cudaError_t emulate_nothing_captures(void) {
    cudaError_t error = not_while_capturing(&all.base);
    for (struct EmulatedStream *s = all.streams; s && !error; s = s->next) error = not_while_capturing(s);
    return error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    (void)flags;
    ENTER();
    *out = calloc(1, sizeof **out);
    if (!*out) return emulate_give(cudaErrorUnknown);
    (*out)->device = emulate_device();
    (*out)->next = all.streams;
    all.streams = *out;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithFlags(out, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    struct EmulatedStream **at = &all.streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (!*at) return emulate_give(cudaErrorInvalidResourceHandle);
    *at = stream->next;
    stream_drain(stream);
    tasks_free(&stream->captured);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    ENTER_WHILE(not_while_capturing(stream_of(stream)));
    stream_drain(stream_of(stream));
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER_WHILE(emulate_nothing_captures());
    emulate_drain();
    return cudaSuccess;
}

/* ---- launches */

typedef struct Launch {
    dim3 grid, block;
    const void *kernel; /* or NULL */
    EmulateCall *call;
    unsigned operands;  /* the shadow memory's number of what it may touch */
    size_t bytes;
    _Alignas(16) char args[ARGUMENTS_MAX];
} Launch;

static void launch_run(void *data) {
    Launch *l = data;
    const char *ms = getenv("EMULATE_LAUNCH");
    if (ms) emulate_spend(1e-3 * strtod(ms, NULL));
    shadow_begin(l->kernel, l->operands, l->args, l->bytes, __builtin_frame_address(0));
    emulate_grid(l->grid, l->block, l->call, l->args);
    shadow_end();
}

/* Why a launch is refused, or NULL */
static const char *launch_refused(const cudaLaunchConfig_t *config, size_t parameters, cudaError_t *error) {
    const dim3 g = config->gridDim, b = config->blockDim;
    *error = cudaErrorInvalidConfiguration;
    if (!g.x || !g.y || !g.z || !b.x || !b.y || !b.z) return "a grid or block of nothing";
    if (g.x > 0x7fffffff || g.y > 65535 || g.z > 65535) return "more blocks than (2147483647, 65535, 65535)";
    if (b.x > EMULATE_BLOCK_MAX || b.y > EMULATE_BLOCK_MAX || b.z > 64 || b.x * b.y * b.z > EMULATE_BLOCK_MAX)
        return "more threads than 1024 in a block, or (1024, 1024, 64)";
    *error = cudaErrorInvalidValue;
    if (parameters > PARAMETERS_MAX) return "more than 4096 bytes of parameters";
    if (config->dynamicSmemBytes) return "shared memory that is not static";
    return NULL;
}

cudaError_t emulate_launch(const cudaLaunchConfig_t *config, const void *kernel, EmulateCall *call, const void *args,
                           size_t bytes) {
    cudaError_t error = emulate_enter("cudaLaunchKernelEx"), wrong;
    if (error) return error;
    const char *refused = launch_refused(config, kernel ? bytes - sizeof kernel : 0, &wrong);
    if (refused) {
        shadow_refused(kernel, refused);
        return emulate_give(wrong);
    }
    if (bytes > ARGUMENTS_MAX) return emulate_give(cudaErrorInvalidValue);
    Launch l;
    l.grid = config->gridDim;
    l.block = config->blockDim;
    l.kernel = kernel;
    l.call = call;
    l.operands = shadow_operands();
    l.bytes = bytes;
    memcpy(l.args, args, bytes);
    return emulate_push(config->stream, launch_run, &l, offsetof(Launch, args) + bytes);
}

/* ---- events */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec + all.spent;
}

void emulate_spend(double more) { all.spent += more; }

static void event_run(void *data) {
    struct EmulatedEvent *event = *(struct EmulatedEvent **)data;
    event->at = seconds();
    event->pending--;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    ENTER();
    *out = calloc(1, sizeof **out);
    if (!*out) return emulate_give(cudaErrorUnknown);
    (*out)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, cudaEventDefault); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER();
    event->stream = stream_of(stream);
    event->captured = event->stream->joins || event->stream->capture != cudaStreamCaptureStatusNone;
    event->tasks = event->stream->tasks;
    if (event->captured) return cudaSuccess;
    event->pending++;
    const cudaError_t error = emulate_push(stream, event_run, &event, sizeof event);
    event->pending -= error != cudaSuccess;
    return error;
}

/* An event that was never recorded is over. */
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER();
    if (event->captured) return emulate_give(cudaErrorStreamCaptureUnsupported);
    if (event->stream) drain_to(event);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER();
    if (event->captured) return emulate_give(cudaErrorStreamCaptureUnsupported);
    return event->pending > 0 ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    ENTER();
    if (!start->stream || !stop->stream || !start->timed || !stop->timed || start->captured || stop->captured)
        return emulate_give(cudaErrorInvalidResourceHandle);
    if (start->pending > 0 || stop->pending > 0) return emulate_give(cudaErrorNotReady);
    *milliseconds = (float)(1e3 * (stop->at - start->at));
    return cudaSuccess;
}

/* In a capture the tasks of a stream that was taken along run as late as the graph allows: when the capturing stream waits for
 * them. What they need of that stream stands before them there, since they were captured after it. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    struct EmulatedStream *s = stream_of(stream), *of = event->stream;
    (void)flags;
    ENTER();
    if (event->captured && of->joins && of->joins != s) return emulate_give(cudaErrorNotSupported);
    if (event->captured && of->joins == s && event->tasks > of->joined) {
        tasks_move(&of->captured, &s->captured, event->tasks - of->joined);
        of->joined = event->tasks;
    } else if (event->captured && of->capture == cudaStreamCaptureStatusActive && s != of && !s->joins) {
        stream_drain(s);
        s->joins = of;
        s->tasks = s->joined = 0;
    }
    if (event->stream && !event->captured) drain_to(event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    if (event && event->stream && !event->captured) drain_to(event);
    free(event);
    return cudaSuccess;
}

/* ---- graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)mode;
    ENTER_WHILE(not_while_capturing(stream_of(stream)));
    if (!stream) return emulate_give(cudaErrorStreamCaptureUnsupported); /* stream 0 cannot be captured */
    stream->capture = cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    struct EmulatedStream *s = stream_of(stream);
    enum cudaStreamCaptureStatus status = s->capture;
    for (struct EmulatedStream *other = all.streams; other; other = other->next) {
        if (other->joins != s) continue;
        if (other->joined < other->tasks) status = cudaStreamCaptureStatusInvalidated; /* not joined to the end */
        tasks_free(&other->captured);
        other->joins = NULL;
    }
    Tasks captured = s->captured;
    s->capture = cudaStreamCaptureStatusNone;
    s->captured = (Tasks){NULL, NULL};
    *out = NULL;
    cudaError_t error = emulate_enter(__func__);
    if (!error && status == cudaStreamCaptureStatusNone) error = emulate_give(cudaErrorInvalidValue);
    if (!error && status == cudaStreamCaptureStatusInvalidated) error = emulate_give(cudaErrorStreamCaptureInvalidated);
    if (!error) *out = calloc(1, sizeof **out);
    if (!error && !*out) error = emulate_give(cudaErrorUnknown);
    if (error) tasks_free(&captured);
    else (*out)->tasks = captured;
    return error;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out) {
    ENTER();
    *out = stream_of(stream)->capture;
    return cudaSuccess;
}

/* The count only. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void *nodes, size_t *count) {
    ENTER();
    if (nodes) return emulate_give(cudaErrorNotSupported);
    *count = 0;
    for (const Task *t = graph->tasks.first; t; t = t->next) ++*count;
    return cudaSuccess;
}

static void note_nodes(const Tasks *tasks) {
    const char *path = getenv("EMULATE_NODES");
    FILE *f = path ? fopen(path, "a") : NULL;
    size_t nodes = 0;
    if (!f) return;
    for (const Task *t = tasks->first; t; t = t->next) nodes++;
    fprintf(f, "%zu\n", nodes);
    fclose(f);
}

/* The tasks move to the executable graph: a graph is instantiated once only. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    ENTER();
    *out = calloc(1, sizeof **out);
    if (!*out) return emulate_give(cudaErrorUnknown);
    (*out)->tasks = graph->tasks;
    note_nodes(&graph->tasks);
    graph->tasks = (Tasks){NULL, NULL};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream) {
    (void)graph, (void)stream;
    ENTER();
    return cudaSuccess;
}

static void graph_run(void *data) { tasks_run(&(*(struct EmulatedGraph **)data)->tasks); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    ENTER();
    return emulate_push(stream, graph_run, &graph, sizeof graph);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    if (graph) tasks_free(&graph->tasks);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    emulate_drain();
    return cudaGraphDestroy(graph);
}
