/* device.c: the CPU as a device: host memory, oneDNN's engine, and a cache of prepared ops. */
#include "cpu.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/mem.h"
#include "stream.h"
#include "isa.h"
#include "parallel.h"
#include "program/operands.h"

/* Best first. oneDNN says which instructions may be used, the compiler's runtime whether the machine has all of the
 * set's. */
static const CpuKernels *best_kernels(void) {
#ifdef __x86_64__
    if (isa_has(dnnl_cpu_isa_avx512_core) && __builtin_cpu_supports("x86-64-v4")) return &cpu_kernels_v4;
    if (isa_has(dnnl_cpu_isa_avx2) && __builtin_cpu_supports("x86-64-v3")) return &cpu_kernels_v3;
#endif
    return &cpu_kernels_base;
}

/* Without an instruction for bf16 oneDNN's kernels for AVX-512 take several steps instead: that counts as emulated. */
static void find_emulated(CpuDevice *cpu) {
    cpu->emulated[DT_BF16] = !isa_has(dnnl_cpu_isa_avx512_core_bf16) || !cpu->kernels->computes(cpu->engine, DT_BF16);
    cpu->emulated[DT_F16] = !cpu->kernels->computes(cpu->engine, DT_F16);
}

/* Is the op over before several threads would have begun and ended a loop together? That takes them 0.6 us where they are
 * awake, and tens of them where they sleep. One thread then does it, whatever there are. */
static bool is_small(const KArgs *args) {
    static const double FLOPS = 20e9, BYTES = 30e9, SECONDS = 3e-6; /* a thread's per second, nearly; at most */
    const double seconds = args->flops / FLOPS + args->traffic / BYTES;
    return seconds > 0 && seconds < SECONDS;
}

/* A small op begins, with one thread. Returns what threads_back needs after it. */
static int threads_for(const KArgs *args) { return is_small(args) ? threads_take(1) : omp_get_max_threads(); }

static int cpu_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    CpuDevice *cpu = (CpuDevice *)d;
    KArgs bound = *args;
    bound.device = d;
    const int threads = threads_for(args);
    const int code = op_cache_get(&cpu->prepared, cpu->kernels->prepare[args->kind], &bound, limit, state, workspace, e);
    threads_back(threads);
    return code;
}

static int cpu_alone(Device *d, Device **out, Err *e) {
    CpuDevice *cpu = (CpuDevice *)d;
    *out = d;
    if (cpu->threads == 1) return OK;
    if (!cpu->alone) {
        cpu->alone = mem_copy(cpu, sizeof *cpu);
        if (!cpu->alone) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *cpu);
        cpu->alone->threads = 1;
        cpu->alone->prepared = (OpCache){0};
    }
    *out = &cpu->alone->base;
    return OK;
}

static bool cpu_overwrites(Device *d, const KArgs *args, size_t *more) {
    KernelOverwrites *const asked = ((CpuDevice *)d)->kernels->overwrites[args->kind];
    assert(asked && op_info(args->kind)->asks);
    return asked(args, more);
}

static bool cpu_rounds(Device *d, const KArgs *args) {
    assert(args->device == d);
    return ((CpuDevice *)d)->kernels->rounds(args);
}

/* An op that exchanges follows those under way, since ranks must exchange in one order, and by one thread at a time. */
static int cpu_exchange(CpuDevice *cpu, const KArgs *args, Err *e) {
    KernelRun *const *run = cpu->kernels->run;
    const bool begins = args->begun && cpu->base.comm[args->attr->collective.axis]->any_thread;
    if (!begins && !flights_any(&cpu->flights)) return run[args->kind](args, e);
    const int code = flights_begin(&cpu->flights, run, args, e);
    return code || begins ? code : flights_wait_all(&cpu->flights, e);
}

static int cpu_run(Device *d, const KArgs *args, Err *e) {
    CpuDevice *cpu = (CpuDevice *)d;
    assert(operands_are_ready(args) && workspace_is_ready(args, CPU_ALIGNMENT));
    if (args->kind == OP_wait) return flights_wait(&cpu->flights, args->wait.y.data, e);
    const int threads = threads_for(args);
    const int code = op_exchanges(args->kind) ? cpu_exchange(cpu, args, e) : cpu->kernels->run[args->kind](args, e);
    threads_back(threads);
    return code;
}

/* Called between two cells of a sweep. Beside the last cell's states few may be kept, or a worker would grow: a state
 * takes about 8 KB, and twice that after its first run. */
static void cpu_trim(Device *d, bool all) {
    enum { KEEP = 256, LOOSE = 2 << 20 };
    CpuDevice *cpu = (CpuDevice *)d;
    for (CpuDevice *each = cpu; each; each = each->alone)
        if (all) op_cache_clear(&each->prepared, cpu->kernels->release);
        else op_cache_trim(&each->prepared, KEEP, cpu->kernels->release);
    if (mallinfo2().fordblks > LOOSE) malloc_trim(0); /* malloc would keep what a large cell has freed */
}

static void cpu_close(Device *d) {
    CpuDevice *cpu = (CpuDevice *)d;
    op_cache_clear(&cpu->prepared, cpu->kernels->release);
    if (cpu->alone) op_cache_clear(&cpu->alone->prepared, cpu->kernels->release);
    mem_free(cpu->alone);
    flights_close(&cpu->flights);
    waiting_close(&cpu->waiting);
    if (cpu->stream) dnnl_stream_destroy(cpu->stream);
    if (cpu->engine) dnnl_engine_destroy(cpu->engine);
    mem_free(cpu);
}

static size_t proc_kib(const char *name) {
    char value[64];
    machine_text("", "/proc/meminfo", name, value, sizeof value);
    return (size_t)strtoull(value, NULL, 10) * 1024;
}

/* "4 threads on 16 processors (time of 3.5), 2 memory nodes (interleaved)" */
static void describe_machine(const CpuDevice *cpu, char *text, size_t size) {
    const Machine *m = &cpu->machine;
    const int nodes = set_count(&m->nodes);
    char time[32] = "", spread[96] = "";
    if (m->time < m->processors) snprintf(time, sizeof time, " (time of %.3g)", m->time);
    if (spread_text(cpu->spread)[0]) snprintf(spread, sizeof spread, " (%s)", spread_text(cpu->spread));
    snprintf(text, size, "%d thread%s on %d processor%s%s, %d memory node%s%s", cpu->threads, cpu->threads == 1 ? "" : "s", m->processors,
             m->processors == 1 ? "" : "s", time, nodes > 1 ? nodes : 1, nodes > 1 ? "s" : "", spread);
}

static int cpu_info(Device *d, DeviceInfo *info, Err *e) {
    (void)e;
    const dnnl_version_t *v = dnnl_version();
    const CpuDevice *cpu = (CpuDevice *)d;
    memset(info, 0, sizeof *info);
    machine_text("", "/proc/cpuinfo", "model name", info->name, sizeof info->name);
    if (!info->name[0]) snprintf(info->name, sizeof info->name, "CPU");
    snprintf(info->driver, sizeof info->driver, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    info->memory_total = proc_kib("MemTotal");
    info->memory_free = proc_kib("MemAvailable");
    describe_machine(cpu, info->detail, sizeof info->detail);
    info->threads = cpu->threads;
    info->processors = cpu->machine.processors;
    info->nodes = max_int(1, set_count(&cpu->machine.nodes));
    memcpy(info->emulated, cpu->emulated, sizeof info->emulated);
    return OK;
}

enum { HUGE_PAGE = 2 << 20 }; /* bytes; with such pages the processor translates fewer addresses */

static bool is_spread(const Device *d, size_t bytes) {
    return bytes >= HUGE_PAGE && ((const CpuDevice *)d)->spread == SPREAD_ROUND;
}

/* posix_memalign instead of mem_new, which does not align. */
static int cpu_alloc(Device *d, size_t bytes, void **p, Err *e) {
    *p = NULL;
    if (bytes == 0 || bytes % CPU_ALIGNMENT)
        return err_set(e, ERR_INTERNAL, "expected a multiple of %d bytes, found %zu", CPU_ALIGNMENT, bytes);
    if (posix_memalign(p, bytes >= HUGE_PAGE ? HUGE_PAGE : CPU_ALIGNMENT, bytes)) {
        *p = NULL;
        return err_set(e, ERR_OOM, "the host has no %zu bytes left", bytes);
    }
    if (bytes >= HUGE_PAGE) madvise(*p, bytes, MADV_HUGEPAGE); /* a wish: without it all is slower */
    if (is_spread(d, bytes)) spread_begin(&((CpuDevice *)d)->machine.nodes, *p, bytes);
    return OK;
}

static void cpu_free(Device *d, void *p, size_t bytes) {
    if (p && is_spread(d, bytes)) spread_end(p, bytes);
    free(p);
}

static int cpu_copy(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    (void)d;
    (void)e;
    memcpy(to, from, bytes);
    return OK;
}

static int cpu_sync(Device *d, Err *e) { return flights_wait_all(&((CpuDevice *)d)->flights, e); }

static int cpu_host_alloc(Device *d, size_t bytes, void **p, Err *e) {
    (void)d;
    return (*p = mem_new(bytes)) ? OK : err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", bytes);
}

static void cpu_host_free(Device *d, void *p, size_t bytes) {
    (void)d;
    (void)bytes;
    mem_free(p);
}

static int cpu_send(Device *d, int slot, void *to, const void *from, size_t bytes, Err *e) {
    (void)slot;
    return cpu_copy(d, to, from, bytes, e);
}

static int cpu_sent(Device *d, int slot, Err *e) {
    (void)slot;
    return cpu_sync(d, e);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ops run as they are enqueued, so a mark is a time. */
static int cpu_mark(Device *d, void **m, Err *e) {
    if (!*m && !(*m = mem_new(sizeof(double)))) return err_set(e, ERR_HOST_MEMORY, "no host memory for a mark");
    *(double *)*m = now();
    waiting_look(&((CpuDevice *)d)->waiting, *(double *)*m);
    return OK;
}

static int cpu_between(Device *d, void *from, void *to, double *seconds, Err *e) {
    (void)d, (void)e;
    *seconds = *(double *)to - *(double *)from;
    return OK;
}

static void cpu_mark_free(Device *d, void *m) {
    (void)d;
    mem_free(m);
}

/* 0: the process's memory is more than the device's, so there is nothing to compare the ledger with. */
static size_t cpu_used(Device *d) {
    (void)d;
    return 0;
}

static int cpu_measure_stream(Device *d, double *rate, Err *e) {
    const size_t bytes = cpu_stream_bytes();
    void *from = NULL, *to = NULL;
    int code = cpu_alloc(d, bytes, &from, e);
    if (!code) code = cpu_alloc(d, bytes, &to, e);
    if (!code) *rate = cpu_stream(to, from, bytes);
    cpu_free(d, from, bytes);
    cpu_free(d, to, bytes);
    return code;
}

static const DeviceTable table = {
    .kind = "cpu", .alignment = CPU_ALIGNMENT, .close = cpu_close, .info = cpu_info, .alloc = cpu_alloc,
    .free = cpu_free, .upload = cpu_copy, .download = cpu_copy, .sync = cpu_sync,
    .host_alloc = cpu_host_alloc, .host_free = cpu_host_free, .send = cpu_send, .sent = cpu_sent,
    .send_beside = cpu_send, .take = cpu_copy, .fetch = cpu_copy, .mark = cpu_mark, .between = cpu_between, .mark_free = cpu_mark_free,
    .prepare = cpu_prepare, .alone = cpu_alone, .overwrites = cpu_overwrites, .rounds = cpu_rounds, .run = cpu_run, .trim = cpu_trim, .dry = false, .used = cpu_used,
    .stream = cpu_measure_stream,
};

/* oneDNN has a cache of what it compiled, too. Prepared ops keep their own primitives, so it is asked again only for
 * reorders of the same shapes. */
enum { PRIMITIVES = 32 };

/* OpenMP's number is that of the processors on which the process may run. It does not know of how much of their time a control group
 * leaves (a container's --cpus). */
static void open_machine(CpuDevice *cpu) {
    NumberSet processors;
    const char *said = getenv("OMP_NUM_THREADS");
    affinity_processors(&processors);
    machine_look("", &processors, &cpu->machine);
    if (!said || !*said) omp_set_num_threads(machine_threads(&cpu->machine, omp_get_max_threads()));
    cpu->threads = omp_get_max_threads();
    cpu->spread = spread_find(&cpu->machine, cpu->threads);
}

int device_cpu_open(Device **out, Err *e) {
    *out = NULL;
    CpuDevice *cpu = mem_new(sizeof *cpu);
    if (!cpu) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *cpu);
    cpu->base.table = &table;
    cpu->kernels = best_kernels();
    open_machine(cpu);
    waiting_open(&cpu->waiting, cpu->threads);
    dnnl_status_t status = dnnl_set_primitive_cache_capacity(PRIMITIVES);
    if (!status) status = dnnl_engine_create(&cpu->engine, dnnl_cpu, 0);
    if (!status) status = dnnl_stream_create(&cpu->stream, cpu->engine, dnnl_stream_in_order);
    if (!status) find_emulated(cpu);
    if (status) {
        cpu_close(&cpu->base);
        return err_set(e, ERR_DEVICE, "oneDNN has no CPU engine: %s", dnnl_status2str(status));
    }
    *out = &cpu->base;
    return OK;
}
