/* t_emulate.cu: the emulated CUDA (tests/emulate/): does it do what CUDA does, and does it catch what CUDA forbids? */
#include <cuda_runtime.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

enum { WARP = 32, THREADS = 96, BLOCKS = 5, COUNT = THREADS * BLOCKS };

template <typename... P, typename... A>
static cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* ---- threads */

static __global__ void number_threads(int *y) {
    unsigned in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    y[block * blockDim.x * blockDim.y * blockDim.z + in_block] = (int)in_block + 1000 * (int)block;
}

/* y = x with each block's elements in reverse order, by way of the other threads */
static __global__ void reverse_blocks(int *y, const int *x) {
    __shared__ int values[THREADS];
    unsigned i = threadIdx.x, begin = blockIdx.x * blockDim.x;
    for (int round = 0; round < 3; round++) { /* an even number of times too often */
        values[i] = round ? y[begin + i] : x[begin + i];
        __syncthreads();
        y[begin + i] = values[blockDim.x - 1 - i];
        __syncthreads();
    }
}

static __global__ void lanes(int *y) {
    const unsigned all = 0xffffffffu;
    int lane = (int)threadIdx.x % warpSize, sum = lane;
    for (int bit = 16; bit; bit /= 2) sum += __shfl_xor_sync(all, sum, bit);
    y[0 * THREADS + threadIdx.x] = sum;
    y[1 * THREADS + threadIdx.x] = __shfl_down_sync(all, lane, 3u);
    y[2 * THREADS + threadIdx.x] = __shfl_up_sync(all, lane, 2u, 8);
    y[3 * THREADS + threadIdx.x] = (int)__ballot_sync(all, lane % 2);
    int votes = 1000 * __any_sync(all, lane == 7) + 2000 * __all_sync(all, lane < 31);
    y[4 * THREADS + threadIdx.x] = __shfl_sync(all, 10 * lane, 5) + votes;
}

/* Some lanes exchange once more than the others, before an exchange of all and after it. */
static __global__ void some_lanes(int *y) {
    const unsigned all = 0xffffffffu, some = 0x00ff00ffu;
    const int lane = (int)threadIdx.x % warpSize;
    int value = lane;
    for (int round = 0; round < 2; round++) {
        if (some >> lane & 1) value = __shfl_xor_sync(some, value, 7);
        value = __shfl_xor_sync(all, value, 31);
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = value;
    if (some >> lane & 1) __shfl_sync(some, value, 0); /* and the next block begins with lanes of which some are ahead */
}

/* y = what a block finds in its shared memory */
static __global__ void leave_behind(int *y) {
    __shared__ int found[4];
    y[blockIdx.x] = found[blockIdx.x % 4];
    for (int i = 0; i < 4; i++) found[i] = 7;
}

/* Number 100 k + 10 row + column stands in row and column of matrix k. Words of both loads, by load, matrix and lane */
static __global__ void load_matrices(int *y) {
    __shared__ uint4 row[WARP];
    const unsigned lane = threadIdx.x, first = 100 * (lane / 8) + 10 * (lane % 8);
    const uint4 mine = make_uint4(first | (first + 1) << 16, (first + 2) | (first + 3) << 16, (first + 4) | (first + 5) << 16,
                                  (first + 6) | (first + 7) << 16);
    row[lane] = mine;
    __syncwarp();
    for (int transposed = 0; transposed < 2; transposed++) {
        uint32_t to[4];
        emulate_ldmatrix(transposed, to, (const uint32_t *)&row[lane]);
        for (int k = 0; k < 4; k++) y[(transposed * 4 + k) * WARP + lane] = (int)to[k];
    }
}

static __global__ void count_up(unsigned *n) { atomicAdd(n, 1u); }
static __global__ void diverge(int *y) {
    if (threadIdx.x < 40) __syncthreads();
    else __shfl_sync(0xffffffffu, y[0], 0);
}

static int *device_ints(int count) {
    void *p = NULL;
    if (cudaMalloc(&p, (size_t)count * sizeof(int))) exit(2);
    return (int *)p;
}

static void test_threads() {
    int *y = device_ints(COUNT), *x = device_ints(COUNT), host[COUNT], good = 1;
    is_int(launch(number_threads, dim3(BLOCKS, 1), dim3(4, 6, 4), NULL, y), cudaSuccess, "a launch");
    cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
    for (int i = 0; i < COUNT; i++) good &= host[i] == i % THREADS + 1000 * (i / THREADS);
    ok(good, "every thread of every block ran with its own index");
    launch(reverse_blocks, BLOCKS, THREADS, NULL, x, (const int *)y);
    cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
    good = 1;
    for (int i = 0; i < COUNT; i++) good &= host[i] == THREADS - 1 - i % THREADS + 1000 * (i / THREADS);
    ok(good, "threads of a block meet at a barrier and share memory");
    launch(lanes, 1, THREADS, NULL, y);
    cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
    good = 1;
    for (int i = 0; i < THREADS; i++) {
        int lane = i % 32;
        good &= host[i] == 496 && host[THREADS + i] == (lane < 29 ? lane + 3 : lane);
        good &= host[2 * THREADS + i] == (lane % 8 >= 2 ? lane - 2 : lane);
        good &= host[3 * THREADS + i] == (int)0xaaaaaaaau && host[4 * THREADS + i] == 50 + 1000;
    }
    ok(good, "shuffles and votes of a warp");
    launch(some_lanes, BLOCKS, THREADS, NULL, y);
    cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
    good = 1;
    for (int i = 0; i < COUNT; i++) good &= host[i] == (i % WARP ^ 7);
    ok(good, "where some lanes exchange more often than others, each gets what the other has sent then");
    launch(load_matrices, 1, WARP, NULL, y);
    cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
    good = 1;
    for (int i = 0; i < 4 * WARP; i++) { /* as PTX's ldmatrix has it */
        const int k = i / WARP, g = i % WARP / 4, t = i % WARP % 4, plain = 100 * k + 10 * g + 2 * t, turned = 100 * k + 20 * t + g;
        good &= host[i] == (plain | (plain + 1) << 16) && host[4 * WARP + i] == (turned | (turned + 10) << 16);
    }
    ok(good, "a warp's lanes get the words of four matrices, as they lie and transposed");
    launch(leave_behind, 3, 1, NULL, y);
    cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
#ifdef __SANITIZE_ADDRESS__
    skip("shared memory is junk", "not under AddressSanitizer");
#else
    ok(host[0] == -1 && host[1] == -1 && host[2] == -1, "shared memory is junk when a block begins");
#endif
    cudaFree(x);
    cudaFree(y);
}

static void test_divergence() {
    fflush(stdout);
    pid_t child = fork();
    int status = 0;
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        signal(SIGABRT, SIG_DFL);
        launch(diverge, 1, 64, NULL, device_ints(1));
        _exit(0);
    }
    waitpid(child, &status, 0);
    ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "threads that wait for each other for ever end the program");
}

/* ---- streams, graphs, limits */

static unsigned counted(unsigned *n) {
    unsigned host = 0;
    cudaMemcpy(&host, n, sizeof host, cudaMemcpyDeviceToHost);
    return host;
}

static void test_graphs() {
    unsigned *n = (unsigned *)device_ints(1);
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *p;
    cudaStreamCreate(&s);
    cudaMemset(n, 0, sizeof *n);
    is_int(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess, "a capture begins");
    launch(count_up, 2, 3, s, n);
    is_int(cudaStreamEndCapture(s, &graph), cudaSuccess, "and ends");
    is_int(counted(n), 0, "what is captured does not run");
    is_int(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess, "the graph is instantiated");
    cudaGraphDestroy(graph);
    cudaGraphLaunch(exec, s);
    cudaGraphLaunch(exec, s);
    cudaStreamSynchronize(s);
    is_int(counted(n), 12, "and runs as often as it is launched");
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    is_int(cudaMalloc(&p, 64), cudaErrorStreamCaptureUnsupported, "no allocation while a stream is captured");
    is_int(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated, "which spoils the capture");
    is_int(cudaGetLastError(), cudaErrorStreamCaptureInvalidated, "the last error is kept");
    is_int(cudaGetLastError(), cudaSuccess, "until it is asked for");
    cudaGraphExecDestroy(exec);
    cudaStreamDestroy(s);
    cudaFree(n);
}

static void test_late() {
    int *x = device_ints(1), value = 0;
    void *pinned;
    cudaStream_t s;
    cudaStreamCreate(&s);
    cudaMallocHost(&pinned, sizeof(int));
    setenv("EMULATE_LATE", "1", 1);
    *(int *)pinned = 1;
    cudaMemcpyAsync(x, pinned, sizeof(int), cudaMemcpyHostToDevice, s);
    *(int *)pinned = 2; /* too early */
    cudaStreamSynchronize(s);
    cudaMemcpy(&value, x, sizeof value, cudaMemcpyDeviceToHost);
    is_int(value, 2, "a staging buffer that is reused too early shows");
    unsetenv("EMULATE_LATE");
    cudaStreamDestroy(s);
    cudaFreeHost(pinned);
    cudaFree(x);
}

/* A graph of two streams: s computes, `beside` copies x to y meanwhile. waits: s waits for the copy before it writes x again. *found: y
 * after a launch; the end of the capture */
static cudaError_t copied_beside(bool waits, bool joins, int *found) {
    int *x = device_ints(1), *y = device_ints(1), *two = device_ints(1), value = 1;
    cudaStream_t s, beside;
    cudaEvent_t ready, over;
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    cudaStreamCreate(&s);
    cudaStreamCreate(&beside);
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&over, cudaEventDisableTiming);
    cudaMemcpy(x, &value, sizeof value, cudaMemcpyHostToDevice);
    value = 2;
    cudaMemcpy(two, &value, sizeof value, cudaMemcpyHostToDevice);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(ready, s);
    cudaStreamWaitEvent(beside, ready, 0);
    cudaMemcpyAsync(y, x, sizeof(int), cudaMemcpyDeviceToDevice, beside);
    cudaEventRecord(over, beside);
    if (waits) cudaStreamWaitEvent(s, over, 0);
    cudaMemcpyAsync(x, two, sizeof(int), cudaMemcpyDeviceToDevice, s);
    if (joins) cudaStreamWaitEvent(s, over, 0);
    const cudaError_t ended = cudaStreamEndCapture(s, &graph);
    *found = 0;
    if (!ended) {
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphLaunch(exec, s);
        cudaStreamSynchronize(s);
        cudaMemcpy(found, y, sizeof *found, cudaMemcpyDeviceToHost);
        cudaGraphDestroy(graph);
        cudaGraphExecDestroy(exec);
    }
    cudaGetLastError();
    cudaEventDestroy(ready);
    cudaEventDestroy(over);
    cudaStreamDestroy(beside);
    cudaStreamDestroy(s);
    cudaFree(x);
    cudaFree(y);
    cudaFree(two);
    return ended;
}

static void test_beside() {
    int found;
    ok(copied_beside(true, false, &found) == cudaSuccess && found == 1, "what another stream copies is there where it is waited for");
    ok(copied_beside(false, true, &found) == cudaSuccess && found == 2, "without the wait it is copied as late as the graph allows");
    is_int(copied_beside(false, false, &found), cudaErrorStreamCaptureInvalidated, "a stream that is never waited for spoils the capture");
}

/* An event stands for its last record, and what comes after it in its stream may wait. */
static void test_events() {
    int *x = device_ints(2), value[2] = {0, 0};
    void *pinned;
    cudaStream_t s;
    cudaEvent_t event;
    cudaStreamCreate(&s);
    cudaEventCreate(&event);
    cudaMallocHost(&pinned, 2 * sizeof(int));
    setenv("EMULATE_LATE", "1", 1);
    int *from = (int *)pinned;
    from[0] = from[1] = 1;
    cudaEventRecord(event, s);
    cudaMemcpyAsync(x, from, sizeof(int), cudaMemcpyHostToDevice, s);
    cudaEventRecord(event, s);
    cudaMemcpyAsync(x + 1, from + 1, sizeof(int), cudaMemcpyHostToDevice, s);
    is_int(cudaEventQuery(event), cudaErrorNotReady, "nothing has happened yet");
    cudaEventSynchronize(event);
    from[0] = from[1] = 2;
    cudaStreamSynchronize(s);
    cudaMemcpy(value, x, sizeof value, cudaMemcpyDeviceToHost);
    ok(value[0] == 1 && value[1] == 2, "an event is its last record, and what comes after it is later");
    unsetenv("EMULATE_LATE");
    cudaEventDestroy(event);
    cudaStreamDestroy(s);
    cudaFreeHost(pinned);
    cudaFree(x);
}

static void test_limits() {
    void *p, *q;
    int *x = device_ints(4), host[4];
    size_t before, after, total;
    cudaMemGetInfo(&before, &total);
    setenv("EMULATE_MEMORY", "1000", 1);
    is_int(cudaMalloc(&p, 900), cudaSuccess, "memory within the limit");
    is_int(cudaMalloc(&q, 900), cudaErrorMemoryAllocation, "but not beyond");
    cudaFree(p);
    unsetenv("EMULATE_MEMORY");
    cudaMemGetInfo(&after, &total);
    ok(after == before, "what is freed is free again");
    cudaError_t error = cudaMemcpy(host, x, sizeof host + 4, cudaMemcpyDeviceToHost);
    is_int(error, cudaErrorInvalidValue, "no copy past a block's end");
    error = cudaMemcpy(x, host, sizeof host, cudaMemcpyDeviceToHost);
    is_int(error, cudaErrorInvalidValue, "nor the wrong way round");
    is_int(launch(count_up, 0, 32, NULL, (unsigned *)x), cudaErrorInvalidConfiguration, "no launch of no blocks");
    is_int(launch(count_up, 1, 1025, NULL, (unsigned *)x), cudaErrorInvalidConfiguration, "nor of too many threads");
    is_int(cudaFree(host), cudaErrorInvalidValue, "host memory is not the device's to free");
    setenv("EMULATE_FAIL", "cudaMemsetAsync:2:719", 1);
    is_int(cudaMemsetAsync(x, 0, 4, NULL), cudaSuccess, "the first call of a function that is to fail the second time");
    is_int(cudaMemsetAsync(x, 0, 4, NULL), cudaErrorLaunchFailure, "the second");
    is_int(cudaMemGetInfo(&after, &total), cudaErrorLaunchFailure, "from then on the device is lost");
    is_str(cudaGetErrorName(cudaGetLastError()), "cudaErrorLaunchFailure", "and its error has CUDA's name");
}

static void test_devices() {
    int count = 0, *x = device_ints(4), current = -1;
    size_t bytes, total;
    void *p;
    cudaStream_t stream;
    setenv("EMULATE_MEMORY", "1000,5000", 1);
    cudaGetDeviceCount(&count);
    is_int(count, 2, "as many devices as EMULATE_MEMORY has numbers");
    cudaStreamCreate(&stream);
    is_int(cudaSetDevice(2), cudaErrorInvalidDevice, "no more");
    is_int(cudaSetDevice(1), cudaSuccess, "the second one");
    cudaGetDevice(&current);
    cudaMalloc(&p, 3000);
    cudaMemGetInfo(&bytes, &total);
    ok(current == 1 && total == 5000 && bytes == 2000, "is current, and memory is taken from it");
    is_int(cudaMemsetAsync(x, 0, 4, stream), cudaErrorInvalidResourceHandle, "a stream is of the device that made it");
    setenv("EMULATE_FAIL", "cudaMemGetInfo:1:2:0", 1);
    is_int(cudaMemGetInfo(&bytes, &total), cudaSuccess, "a call that is to fail on another device");
    cudaSetDevice(0);
    is_int(cudaMemGetInfo(&bytes, &total), cudaErrorMemoryAllocation, "fails there");
    unsetenv("EMULATE_FAIL");
    cudaStreamDestroy(stream);
    cudaFree(p);
    cudaFree(x);
    cudaMemGetInfo(&bytes, &total);
    ok(total == 1000, "which has memory of its own");
    cudaGetLastError();
    unsetenv("EMULATE_MEMORY");
}

int main() {
    test_threads();
    test_divergence();
    test_graphs();
    test_late();
    test_beside();
    test_events();
    test_devices();
    test_limits(); /* the last: the device is lost after it */
    return tap_done();
}
