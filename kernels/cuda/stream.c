/* stream.c: marks in the stream, and recording what is enqueued as a graph. */
#include "cuda.h"

/* ---- marks */

int cuda_mark(Device *d, void **m, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    if (!code && !*m) code = cuda_check(c, cudaEventCreate((cudaEvent_t *)m), "an event", e);
    return code ? code : cuda_check(c, cudaEventRecord((cudaEvent_t)*m, c->stream), "an event", e);
}

int cuda_between(Device *d, void *from, void *to, double *seconds, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    float ms = 0;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_check(c, cudaEventSynchronize((cudaEvent_t)to), "waiting for the GPU", e);
    if (!code) code = cuda_check(c, cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to), "the time between two events", e);
    *seconds = 1e-3 * (double)ms;
    return code;
}

/* A lost context refuses it; that is ignored. */
void cuda_mark_free(Device *d, void *m) {
    if (m && cuda_ready((CudaDevice *)d, NULL) == OK) cuda_check((CudaDevice *)d, cudaEventDestroy((cudaEvent_t)m), "dropping an event", NULL);
}

/* ---- graphs */

/* Thread-local: calls of other threads, which some libraries have, do not end the recording. */
int cuda_record(Device *d, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    if (!code)
        code = cuda_check(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording", e);
    c->capturing = !code;
    return code;
}

int cuda_recording_check(CudaDevice *c, Err *e) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    int code = cuda_check(c, cudaStreamIsCapturing(c->stream, &status), "the recording", e);
    if (code || status == cudaStreamCaptureStatusActive) return code;
    return err_set(e, ERR_DEVICE, "this op cannot be recorded: it has ended the recording of the step");
}

int cuda_recorded(Device *d, void **graph, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t exec = NULL;
    *graph = NULL;
    if (!c->capturing) return err_set(e, ERR_INTERNAL, "expected a recording to end, found none");
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    c->capturing = false;
    /* also after an error: the stream must leave the recording */
    int ended = cuda_check(c, cudaStreamEndCapture(c->stream, &recorded), "the end of the recording", code ? NULL : e);
    if (!code) code = ended;
    if (!code) code = cuda_check(c, cudaGraphInstantiate(&exec, recorded, 0), "making a graph of the step", e);
    if (recorded) cuda_check(c, cudaGraphDestroy(recorded), "dropping the recording", NULL);
    if (!code) code = cuda_check(c, cudaGraphUpload(exec, c->stream), "sending the graph to the GPU", e);
    if (!code) *graph = exec;
    else if (exec) cuda_check(c, cudaGraphExecDestroy(exec), "dropping the graph", NULL);
    return code;
}

int cuda_replay(Device *d, void *graph, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    cuda_range_begin(c, "recorded step", NULL);
    if (!code) code = cuda_check(c, cudaGraphLaunch((cudaGraphExec_t)graph, c->stream), "the step's graph", e);
    cuda_range_end(c);
    return code;
}

void cuda_graph_free(Device *d, void *graph) {
    CudaDevice *c = (CudaDevice *)d;
    if (graph && cuda_ready(c, NULL) == OK)
        cuda_check(c, cudaGraphExecDestroy((cudaGraphExec_t)graph), "dropping the graph", NULL);
}
