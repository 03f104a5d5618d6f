/* t_shadow.cu: the shadow memory (shadow/shadow.h) finds what is planted: each kernel once with a fault, which must end the
 * program with a message that names the kernel, the kind and the thread or the launch, and once without, which must run. Blocks
 * and threads run first to last, last to first, and in two random orders. The table that it prints is in docs/gpu.md. */
#include <cuda_runtime.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

template <typename... P, typename... A>
static cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

enum { N = 128, ROOM = 512 /* ints of the arena */ };

/* ---- the kernels: BAD has the fault. y is an output of N ints, x an input of N; both lie in one arena. */

template <bool BAD> static __global__ void neighbour_warp(int *y, const int *x) {
    __shared__ int s[N];
    s[threadIdx.x] = 0;
    __syncthreads();
    s[threadIdx.x] = x[threadIdx.x];
    if (!BAD) __syncthreads();
    y[threadIdx.x] = s[(threadIdx.x + 32) % N];
}

template <bool BAD> static __global__ void tile_again(int *y, const int *x) {
    __shared__ int s[N];
    int sum = 0;
    for (int round = 0; round < 2; round++) {
        s[threadIdx.x] = x[threadIdx.x] + round;
        __syncthreads();
        sum += s[N - 1 - threadIdx.x];
        if (!BAD) __syncthreads();
    }
    y[threadIdx.x] = sum;
}

template <bool BAD> static __global__ void neighbour_lane(int *y, const int *x) {
    __shared__ int s[N];
    s[threadIdx.x] = 0;
    __syncthreads();
    s[threadIdx.x ^ 1] = x[threadIdx.x];
    if (!BAD) __syncwarp();
    y[threadIdx.x] = s[threadIdx.x];
}

template <bool BAD> static __global__ void shuffle_for_order(int *y, const int *x) {
    __shared__ int s[N];
    s[threadIdx.x ^ 1] = x[threadIdx.x];
    int v = __shfl_xor_sync(0xffffffffu, 1, 1);
    if (!BAD) __syncwarp();
    y[threadIdx.x] = s[threadIdx.x] + v;
}

template <bool BAD> static __global__ void lost_update(int *y, const int *x) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    if (BAD) sum = sum + x[threadIdx.x];
    else atomicAdd(&sum, x[threadIdx.x]);
    __syncthreads();
    y[threadIdx.x] = sum;
}

template <bool BAD> static __global__ void lost_between_blocks(int *y, const int *x) {
    if (threadIdx.x == 0 && BAD) y[0] = y[0] + x[blockIdx.x];
    if (threadIdx.x == 0 && !BAD) atomicAdd(&y[0], x[blockIdx.x]);
}

template <bool BAD> static __global__ void one_place(int *y, const int *) {
    if (BAD || blockIdx.x == 0) y[threadIdx.x] = 7;
}

template <bool BAD> static __global__ void block_after_block(int *y, const int *x) {
    y[blockIdx.x] = x[blockIdx.x] + (BAD && blockIdx.x == 1 ? y[0] : 0);
}

template <bool BAD> static __global__ void beyond_by_one(int *y, const int *x) {
    y[threadIdx.x] = x[threadIdx.x + BAD];
}

template <bool BAD> static __global__ void write_beyond_by_one(int *y, const int *x) {
    y[threadIdx.x + BAD] = x[threadIdx.x];
}

template <bool BAD> static __global__ void changes_input(int *y, int *x) {
    y[threadIdx.x] = x[threadIdx.x];
    if (BAD) x[threadIdx.x] = 0;
}

template <bool BAD> static __global__ void odd_address(int *y, const int *x) {
    const uint4 v = *(const uint4 *)(x + (BAD ? 2 : 4));
    y[0] = (int)(v.x + v.y + v.z + v.w);
}

template <bool BAD> static __global__ void next_array(int *y, const int *x) {
    __shared__ int a[N], b[N];
    a[threadIdx.x] = b[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = a[threadIdx.x + (BAD ? N : 0)] + b[threadIdx.x];
}

template <bool BAD> static __global__ void beyond_shared(int *y, const int *x) {
    __shared__ int a[N - 1];
    int *p = a;
    asm("" : "+r"(p)); /* the compiler does not see whose address it is */
    if (threadIdx.x < N - 1 || BAD) p[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = 0;
}

template <bool BAD> static __global__ void half_a_warp(int *y, const int *x) {
    int v = x[threadIdx.x];
    if (threadIdx.x % 32 < 16) v += __shfl_xor_sync(BAD ? 0xffffffffu : 0x0000ffffu, v, 1);
    y[threadIdx.x] = v;
}

template <bool BAD> static __global__ void two_shuffles(int *y, const int *x) {
    int v = x[threadIdx.x];
    if (BAD && threadIdx.x % 32 < 16)
        v += __shfl_xor_sync(0xffffffffu, v, 1);
    else
        v += __shfl_xor_sync(0xffffffffu, v, 1);
    y[threadIdx.x] = v;
}

template <bool BAD> static __global__ void old_shared(int *y, const int *x) {
    __shared__ int s[N];
    if (!BAD || threadIdx.x) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[N - 1 - threadIdx.x];
}

template <bool BAD> static __global__ void old_output(int *y, const int *x) {
    if (!BAD) y[threadIdx.x] = 0;
    y[threadIdx.x] += x[threadIdx.x];
}

template <bool BAD> static __global__ void two_barriers(int *y, const int *x) {
    y[threadIdx.x] = x[threadIdx.x];
    if (!BAD || threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

template <bool BAD> static __global__ void ended_early(int *y, const int *x) {
    if (BAD && threadIdx.x >= 96) return;
    y[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
}

template <bool BAD> static __global__ void atomic_and_not(int *y, const int *x) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[threadIdx.x]);
    if (!BAD) __syncthreads();
    y[threadIdx.x] = sum;
}

template <bool BAD> static __global__ void too_much_shared(int *y, const int *x) {
    __shared__ int s[(48 << 10) / 4 + (BAD ? 4 : 0)];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[N - 1 - threadIdx.x];
}

template <int BYTES> struct Many { char byte[BYTES]; };
template <bool BAD> static __global__ void many_parameters(int *y, const int *, Many<BAD ? 4088 : 4072>) { y[threadIdx.x] = 0; }

template <bool BAD> static __global__ void plain(int *y, const int *x) {
    if (blockIdx.x + blockIdx.y + blockIdx.z == 0) y[threadIdx.x % N] = x[threadIdx.x % N];
}

/* ---- the table */

struct Memory { int *y, *x; };

static Memory memory() {
    int host[ROOM], *arena = NULL;
    if (cudaMalloc((void **)&arena, sizeof host)) exit(2);
    for (int i = 0; i < ROOM; i++) host[i] = i + 1;
    cudaMemcpy(arena, host, sizeof host, cudaMemcpyHostToDevice);
    Memory m = {arena + N, arena + 2 * N + 8};
    const ShadowOperand may[] = {{"y", (uintptr_t)m.y, (uintptr_t)(m.y + N), true},
                                 {"x", (uintptr_t)m.x, (uintptr_t)(m.x + N), false}};
    shadow_allow(may, 2);
    return m;
}

template <typename K> static void run(K *kernel, dim3 grid = 1, dim3 block = N) {
    const Memory m = memory();
    launch(kernel, grid, block, m.y, m.x);
}

struct Planted { const char *kernel, *what, *found; void (*bad)(), (*clean)(); };
#define BOTH(kernel, what, found, ...) \
    {#kernel, what, found, [] { run(kernel<true>, ##__VA_ARGS__); }, [] { run(kernel<false>, ##__VA_ARGS__); }}

static const Planted planted[] = {
    BOTH(neighbour_warp, "no `__syncthreads` between a write and another warp's read", "race of warps, no __syncthreads between"),
    BOTH(tile_again, "no `__syncthreads` before a tile is written again", "race of warps, no __syncthreads between"),
    BOTH(neighbour_lane, "no `__syncwarp` between a write and another lane's read", "race within a warp, no __syncwarp between"),
    BOTH(shuffle_for_order, "a shuffle in its place, which orders no memory", "race within a warp, no __syncwarp between"),
    BOTH(lost_update, "threads add to one place, not atomically", "race"),
    BOTH(lost_between_blocks, "blocks do", "two blocks touch one place", 2),
    BOTH(one_place, "two blocks write one place, the same value", "two blocks touch one place", 2),
    BOTH(block_after_block, "a block reads what another one writes", "two blocks touch one place", 2, 1),
    BOTH(atomic_and_not, "a plain read beside atomic additions", "race"),
    BOTH(beyond_by_one, "reads one element after an operand, inside the arena", "out of bounds"),
    BOTH(write_beyond_by_one, "writes one element after an operand, inside the arena", "out of bounds"),
    BOTH(next_array, "an index of the next shared array", "out of bounds"),
    BOTH(beyond_shared, "a pointer to after a shared array", "out of bounds"),
    {"changes_input", "writes an input", "writes what it may only read",
     [] { const Memory m = memory(); launch(changes_input<true>, 1, N, m.y, m.x); },
     [] { const Memory m = memory(); launch(changes_input<false>, 1, N, m.y, m.x); }},
    BOTH(odd_address, "a 16-byte load from an address that is no multiple of 16", "misaligned", 1, 1),
    BOTH(old_shared, "reads shared memory that the block has not written", "uninitialised shared memory"),
    {"old_output", "reads an output that nobody has written", "uninitialised global memory",
     [] { const Memory m = memory(); shadow_junk(m.y, N * 4); launch(old_output<true>, 1, N, m.y, m.x); },
     [] { const Memory m = memory(); shadow_junk(m.y, N * 4); launch(old_output<false>, 1, N, m.y, m.x); }},
    BOTH(half_a_warp, "a shuffle of half a warp with a full mask", "of which some never come"),
    BOTH(two_shuffles, "lanes of one mask at two shuffles", "divergent: lanes of one mask wait at two places"),
    BOTH(two_barriers, "a barrier in each branch", "divergent: the block's threads wait at two places"),
    BOTH(ended_early, "a barrier after some threads have returned", "has ended"),
    {"plain", "a grid of 65536 along y", "launch: more blocks", [] { run(plain<true>, dim3(1, 65536)); },
     [] { run(plain<true>, dim3(1, 3)); }},
    {"plain", "a grid of 65536 along z", "launch: more blocks", [] { run(plain<true>, dim3(1, 1, 65536)); },
     [] { run(plain<true>, dim3(1, 1, 3)); }},
    {"plain", "1056 threads in a block", "launch: more threads", [] { run(plain<true>, 1, dim3(33, 32)); },
     [] { run(plain<true>, 1, 96); }},
    BOTH(too_much_shared, "more than 48 KiB of shared memory", "launch: more than 49152 bytes of shared memory"),
    {"many_parameters", "more than 4096 bytes of parameters", "launch: more than 4096 bytes of parameters",
     [] { const Memory m = memory(); launch(many_parameters<true>, 1, N, m.y, (const int *)m.x, Many<4088>{}); },
     [] { const Memory m = memory(); launch(many_parameters<false>, 1, N, m.y, (const int *)m.x, Many<4072>{}); }},
};

static const struct { const char *name, *reverse, *seed; } orders[] = {
    {"forward", "0", NULL}, {"reversed", "1", NULL}, {"random 1", "0", "1"}, {"random 2", "0", "2"},
};

/* Runs f in a process of its own; text: what it printed. Was it aborted? */
static bool dies(void (*f)(), size_t order, char *text, size_t size) {
    int fd[2], status = 0;
    if (pipe(fd)) exit(2);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(fd[1], 2);
        setenv("EMULATE_REVERSE", orders[order].reverse, 1);
        if (orders[order].seed) setenv("EMULATE_SEED", orders[order].seed, 1);
        signal(SIGABRT, SIG_DFL);
        f();
        _exit(0);
    }
    close(fd[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < size && (got = read(fd[0], text + n, size - 1 - n)) > 0;) n += (size_t)got;
    text[n] = 0;
    text[strcspn(text, "\n")] = 0;
    close(fd[0]);
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) && WEXITSTATUS(status)) return false;
    return WIFSIGNALED(status);
}

int main() {
    char text[2048];
    setenv("EMULATE_SHADOW", "1", 1);
#ifndef SHADOW
    skip("planted faults", "kernels are built without instrumentation");
    (void)dies, (void)text, (void)planted;
#else
    for (const Planted &p : planted)
        for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
            const bool died = dies(p.bad, k, text, sizeof text);
            const bool told = strstr(text, p.kernel) && strstr(text, p.found) && (strstr(text, "thread ") || strstr(p.found, "launch:"));
            if (!ok(died && told, "found, %s: %s", orders[k].name, p.what)) printf("# %s: %s\n", died ? "died" : "ran", text);
            if (!k) printf("# | %s | `%s` |\n", p.what, text);
            if (!ok(!dies(p.clean, k, text, sizeof text) && !*text, "and without it, %s, %s runs", orders[k].name, p.kernel))
                printf("# %s\n", text);
        }
#endif
    return tap_done();
}
