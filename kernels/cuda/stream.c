/* stream.c: timed sections of the stream, and recording what is enqueued as a graph. */
#include "cuda.h"
#include "base/mem.h"

/* ---- timed sections */

static int make_section(CudaDevice *c, Err *e) {
    if (!mem_grow(&c->sections, &c->cap_sections, c->n_sections + 1, sizeof *c->sections))
        return err_set(e, ERR_HOST_MEMORY, "no host memory for %d timed sections", c->n_sections + 1);
    CudaSection *s = &c->sections[c->n_sections];
    int code = s->start ? OK : cuda_check(c, cudaEventCreate(&s->start), "an event", e);
    if (!code && !s->stop) code = cuda_check(c, cudaEventCreate(&s->stop), "an event", e);
    return code;
}

int cuda_start(Device *d, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    if (!code) code = make_section(c, e);
    return code ? code : cuda_check(c, cudaEventRecord(c->sections[c->n_sections].start, c->stream), "an event", e);
}

int cuda_stop(Device *d, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    int code = cuda_ready(c, e);
    if (!code) code = cuda_flush(c, e);
    if (!code) code = cuda_check(c, cudaEventRecord(c->sections[c->n_sections].stop, c->stream), "an event", e);
    if (!code) c->n_sections++;
    return code;
}

int cuda_elapsed(Device *d, double *seconds, Err *e) {
    CudaDevice *c = (CudaDevice *)d;
    *seconds = 0;
    int code = cuda_sync(d, e);
    for (int i = 0; i < c->n_sections && !code; i++) {
        const CudaSection *s = &c->sections[i];
        float ms = 0;
        code = cuda_check(c, cudaEventElapsedTime(&ms, s->start, s->stop), "a timed section", e);
        *seconds += 1e-3 * (double)ms;
    }
    c->n_sections = 0;
    return code;
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
