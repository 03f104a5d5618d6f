/* flights.c: collective ops that go on while the device computes. They have a stream of their own, which follows all that was
 * enqueued before; a wait lets the device's stream follow it. Once it is there, every op that exchanges goes by it, so that all
 * ranks exchange in one order. A recording takes the second stream along, since waits join all of it before the end. */
#include "base/mem.h"
#include "cuda.h"

/* An op that was begun: `over` is recorded after it. */
typedef struct Flight { const void *y; cudaEvent_t over; bool on; } Flight;

struct CudaFlights {
    cudaStream_t stream;
    cudaEvent_t ready;  /* what was enqueued before an op */
    Flight *list;
    int n, cap;
};

static int start(CudaDevice *c, Err *e) {
    if (c->flights) return OK;
    CudaFlights *f = mem_new(sizeof *f);
    if (!f) return err_set(e, ERR_HOST_MEMORY, "out of host memory for collective ops");
    int code = cuda_check(c, cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking), "a stream", e);
    if (!code) code = cuda_check(c, cudaEventCreateWithFlags(&f->ready, cudaEventDisableTiming), "an event", e);
    if (code) {
        cuda_flights_close(f);
        return code;
    }
    c->flights = f;
    c->exchange = f->stream;
    return OK;
}

/* The stream `exchange` goes on after what was enqueued. */
static int follow(CudaDevice *c, Err *e) {
    const CudaFlights *f = c->flights;
    int code = cuda_check(c, cudaEventRecord(f->ready, c->stream), "an event before a collective op", e);
    return code ? code : cuda_check(c, cudaStreamWaitEvent(f->stream, f->ready, 0), "a collective op's turn", e);
}

/* Notes the op that was enqueued last. */
static int note(CudaDevice *c, const void *y, Err *e) {
    CudaFlights *f = c->flights;
    int i = 0;
    while (i < f->n && f->list[i].on) i++;
    if (i == f->n) {
        if (!mem_grow(&f->list, &f->cap, f->n + 1, sizeof *f->list)) return err_set(e, ERR_HOST_MEMORY, "out of host memory for %d collective ops", f->n + 1);
        const int code = cuda_check(c, cudaEventCreateWithFlags(&f->list[i].over, cudaEventDisableTiming), "an event", e);
        if (code) return code;
        f->n++;
    }
    f->list[i].y = y;
    f->list[i].on = true;
    return cuda_check(c, cudaEventRecord(f->list[i].over, f->stream), "an event after a collective op", e);
}

static int wait_for(CudaDevice *c, const void *y, Err *e) {
    CudaFlights *f = c->flights;
    for (int i = 0; f && i < f->n; i++) {
        if (!f->list[i].on || f->list[i].y != y) continue;
        f->list[i].on = false;
        return cuda_check(c, cudaStreamWaitEvent(c->stream, f->list[i].over, 0), "waiting for a collective op", e);
    }
    return OK;
}

int cuda_exchange(CudaDevice *c, KernelRun *run, const KArgs *args, Err *e) {
    const void *y = args->out[0].data;
    if (args->kind == OP_wait) return wait_for(c, y, e);
    if (!args->begun && !c->flights) return run(args, e);
    int code = start(c, e);
    if (!code) code = follow(c, e);
    if (!code) code = run(args, e);
    if (!code) code = note(c, y, e);
    return code || args->begun ? code : wait_for(c, y, e);
}

int cuda_exchange_sync(CudaDevice *c, Err *e) {
    return c->flights ? cuda_check(c, cudaStreamSynchronize(c->flights->stream), "waiting for collective ops", e) : OK;
}

/* A lost context refuses these calls; that is ignored. */
void cuda_flights_close(CudaFlights *f) {
    if (!f) return;
    for (int i = 0; i < f->n; i++) cudaEventDestroy(f->list[i].over);
    if (f->ready) cudaEventDestroy(f->ready);
    if (f->stream) cudaStreamDestroy(f->stream);
    mem_free(f->list);
    mem_free(f);
}
