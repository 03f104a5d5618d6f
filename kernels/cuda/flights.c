/* flights.c: ops that go on while the device computes: what ranks exchange, and copies between host and device. Each of the two
 * has a stream of its own, a lane, on which they follow all that was enqueued before; a wait lets the device's stream follow
 * them. Once the lane of exchanges is there, every op that exchanges goes by it, so that all ranks exchange in one order. A
 * recording takes the lanes along, since waits join all of them before the end. */
#include <assert.h>

#include "base/mem.h"
#include "cuda.h"

/* An op that was begun: `over` is recorded after it. */
typedef struct Flight { const void *y; cudaEvent_t over; bool on; } Flight;

struct CudaFlights {
    cudaStream_t stream;
    cudaEvent_t ready;  /* what was enqueued before an op */
    cudaEvent_t landed, taken; /* what send_beside has enqueued; what take has */
    Flight *list;
    int n, cap;
};

static void close_lane(CudaFlights *f) {
    if (!f) return;
    for (int i = 0; i < f->n; i++) cudaEventDestroy(f->list[i].over);
    cudaEvent_t *const events[] = {&f->ready, &f->landed, &f->taken};
    for (size_t i = 0; i < ARRAY_LEN(events); i++)
        if (*events[i]) cudaEventDestroy(*events[i]);
    if (f->stream) cudaStreamDestroy(f->stream);
    mem_free(f->list);
    mem_free(f);
}

static int start(CudaDevice *c, CudaLane lane, Err *e) {
    if (c->flights[lane]) return OK;
    CudaFlights *f = mem_new(sizeof *f);
    if (!f) return err_set(e, ERR_HOST_MEMORY, "out of host memory for ops that go on beside others");
    int code = cuda_check(c, cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking), "a stream", e);
    cudaEvent_t *const events[] = {&f->ready, &f->landed, &f->taken};
    for (size_t i = 0; i < ARRAY_LEN(events) && !code; i++)
        code = cuda_check(c, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming), "an event", e);
    if (code) {
        close_lane(f);
        return code;
    }
    c->flights[lane] = f;
    if (lane == LANE_EXCHANGE) c->exchange = f->stream;
    return OK;
}

/* The lane goes on after what was enqueued. */
static int follow(CudaDevice *c, const CudaFlights *f, Err *e) {
    int code = cuda_check(c, cudaEventRecord(f->ready, c->stream), "an event before an op", e);
    return code ? code : cuda_check(c, cudaStreamWaitEvent(f->stream, f->ready, 0), "an op's turn", e);
}

/* Notes the op that was enqueued last. */
static int note(CudaDevice *c, CudaFlights *f, const void *y, Err *e) {
    int i = 0;
    while (i < f->n && f->list[i].on) i++;
    if (i == f->n) {
        if (!mem_grow(&f->list, &f->cap, f->n + 1, sizeof *f->list)) return err_set(e, ERR_HOST_MEMORY, "out of host memory for %d ops", f->n + 1);
        const int code = cuda_check(c, cudaEventCreateWithFlags(&f->list[i].over, cudaEventDisableTiming), "an event", e);
        if (code) return code;
        f->n++;
    }
    f->list[i].y = y;
    f->list[i].on = true;
    return cuda_check(c, cudaEventRecord(f->list[i].over, f->stream), "an event after an op", e);
}

/* For the op that makes y, on whichever lane it is. */
static int wait_for(CudaDevice *c, const void *y, Err *e) {
    for (int lane = 0; lane < FLIGHT_LANES; lane++) {
        CudaFlights *f = c->flights[lane];
        for (int i = 0; f && i < f->n; i++) {
            if (!f->list[i].on || f->list[i].y != y) continue;
            f->list[i].on = false;
            return cuda_check(c, cudaStreamWaitEvent(c->stream, f->list[i].over, 0), "waiting for an op", e);
        }
    }
    return OK;
}

int cuda_fly(CudaDevice *c, KernelRun *run, const KArgs *args, Err *e) {
    const void *y = args->out[0].data;
    const CudaLane lane = args->kind == OP_copy ? LANE_COPY : LANE_EXCHANGE;
    if (args->kind == OP_wait) return wait_for(c, y, e);
    if (!args->begun && !c->flights[lane]) return run(args, e);
    int code = start(c, lane, e);
    if (!code) code = follow(c, c->flights[lane], e);
    if (!code && lane == LANE_COPY) c->copy = c->flights[lane]->stream;
    if (!code) code = run(args, e);
    c->copy = c->stream;
    if (!code) code = note(c, c->flights[lane], y, e);
    return code || args->begun ? code : wait_for(c, y, e);
}

/* ---- feeding ahead */

int cuda_send_beside(Device *d, int slot, void *to, const void *from, size_t bytes, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    assert(0 <= slot && slot < SEND_SLOTS);
    int code = cuda_ready(c, e);
    if (!code) code = start(c, LANE_COPY, e);
    const CudaFlights *f = c->flights[LANE_COPY];
    if (!code) code = cuda_check(c, cudaStreamWaitEvent(f->stream, f->taken, 0), "a copy's turn", e);
    if (!code) code = cuda_check(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, f->stream), "a copy to the GPU", e);
    return code ? code : cuda_check(c, cudaEventRecord(c->sent[slot], f->stream), "an event after a copy", e);
}

int cuda_take(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    if (!code) code = start(c, LANE_COPY, e);
    const CudaFlights *f = c->flights[LANE_COPY];
    if (!code) code = cuda_check(c, cudaEventRecord(f->landed, f->stream), "an event after a copy", e);
    if (!code) code = cuda_check(c, cudaStreamWaitEvent(c->stream, f->landed, 0), "waiting for a copy", e);
    if (!code) code = cuda_check(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->stream), "a copy within the GPU", e);
    return code ? code : cuda_check(c, cudaEventRecord(f->taken, c->stream), "an event after a copy", e);
}

/* After it all are over, also those of a step that has failed before it waited for them. */
int cuda_flights_sync(CudaDevice *c, Err *e) {
    int code = OK;
    for (int lane = 0; lane < FLIGHT_LANES && !code; lane++) {
        CudaFlights *f = c->flights[lane];
        if (f) code = cuda_check(c, cudaStreamSynchronize(f->stream), "waiting for ops beside others", e);
        for (int i = 0; f && i < f->n; i++) f->list[i].on = false;
    }
    return code;
}

/* A lost context refuses these calls; that is ignored. */
void cuda_flights_close(CudaDevice *c) {
    for (int lane = 0; lane < FLIGHT_LANES; lane++) close_lane(c->flights[lane]);
}
