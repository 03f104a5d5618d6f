/* t_plugin.c: the CUDA device's own functions, loaded as a plugin, on an emulated GPU: memory, copies, timed sections,
 * recorded graphs, errors that pass and errors that stay, and a device that is only described. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/device.h"
#include "tap.h"

enum { BYTES = 1 << 16 };

static Device *gpu;
static const DeviceTable *t;
static Err e;

/* call: EMULATE_FAIL (cuda_runtime.h) */
static void fail_next(const char *call) { setenv("EMULATE_FAIL", call, 1); }

/* *calls += 1 on the device */
static KArgs counting(void *calls) {
    static const Attr attr = {.count = {.by = 1}};
    KArgs a = {.kind = OP_count_call, .attr = &attr, .device = gpu};
    a.out[0] = (View){.data = calls, .shape = {.rank = 1, .dim = {1}}, .dtype = DT_I32, .count = 1};
    return a;
}

static int32_t number_at(const void *p) {
    int32_t n = -1;
    return t->download(gpu, &n, p, sizeof n, &e) ? -1 : n;
}

static void test_memory(void) {
    static char sent[BYTES], got[BYTES];
    void *p = NULL, *q = NULL, *pinned = NULL;
    for (int i = 0; i < BYTES; i++) sent[i] = (char)(i * 7);
    is_int(t->alignment, 256, "memory comes in multiples of 256 bytes");
    is_int(t->alloc(gpu, 100, &p, &e), ERR_INTERNAL, "of which 100 is none");
    if (!ok(!t->alloc(gpu, BYTES, &p, &e) && (uintptr_t)p % 256 == 0, "a block")) return;
    ok(!t->upload(gpu, p, sent, BYTES, &e) && !t->download(gpu, got, p, BYTES, &e) && !memcmp(sent, got, BYTES),
       "holds what is copied to it");

    setenv("EMULATE_MEMORY", "1048576", 1);
    is_int(t->alloc(gpu, 1 << 20, &q, &e), ERR_OOM, "no second one of all there is");
    has_text(e.text, "the GPU has not 1048576 bytes in one piece: 983040 of its 1048576 bytes are free",
             "with the numbers");
    ok(q == NULL && !t->alloc(gpu, 256, &q, &e), "then a smaller one: the error does not stay");
    ok(t->used(gpu) == BYTES + 256, "used is what is not free");
    unsetenv("EMULATE_MEMORY");
    t->free(gpu, q, 256);

    if (!ok(!t->host_alloc(gpu, BYTES, &pinned, &e), "pinned memory")) return;
    memset(pinned, 5, BYTES);
    ok(!t->send(gpu, 0, p, pinned, BYTES, &e) && !t->sent(gpu, 0, &e), "is sent");
    memset(pinned, 9, BYTES); /* a late copy would take this */
    ok(!t->download(gpu, got, p, BYTES, &e) && got[0] == 5 && got[BYTES - 1] == 5, "and may be reused then");
    is_int(t->sent(gpu, 1, &e), OK, "a slot that never sent is not waited for");
    t->host_free(gpu, pinned, BYTES);
    t->free(gpu, p, BYTES);
}

static void test_marks(void) {
    double seconds = -1, none = 1;
    void *mark[2] = {NULL, NULL};
    ok(!t->mark(gpu, &mark[0], &e) && !t->mark(gpu, &mark[1], &e) && !t->between(gpu, mark[0], mark[1], &seconds, &e) && seconds > 0,
       "there is time between two marks");
    ok(!t->between(gpu, mark[1], mark[1], &none, &e) && none == 0, "and none between one and itself");
    for (int i = 0; i < 2; i++) t->mark_free(gpu, mark[i]);
}

/* A copy that was begun and never waited for, because its step has failed, is over after sync: a later wait is for a later copy. */
static void test_begun(void) {
    void *to = NULL, *pinned = NULL;
    int32_t found = 0;
    if (!ok(!t->alloc(gpu, 256, &to, &e) && !t->host_alloc(gpu, 256, &pinned, &e), "memory to copy between")) return;
    KArgs copy = {.kind = OP_copy, .device = gpu, .begun = true}, wait = {.kind = OP_wait, .device = gpu};
    copy.in[0] = (View){.data = pinned, .shape = shape1(1), .dtype = DT_I32, .count = 1};
    copy.out[0] = wait.out[0] = (View){.data = to, .shape = shape1(1), .dtype = DT_I32, .count = 1};
    *(int32_t *)pinned = 1;
    ok(!t->run(gpu, &copy, &e) && !t->sync(gpu, &e), "a copy is begun, and nobody waits for it");
    *(int32_t *)pinned = 2;
    ok(!t->run(gpu, &copy, &e) && !t->run(gpu, &wait, &e) && !t->download(gpu, &found, to, sizeof found, &e), "another one is waited for");
    is_int(found, 2, "and is there");
    t->host_free(gpu, pinned, 256);
    t->free(gpu, to, 256);
}

static void test_graph(void) {
    void *p = NULL, *graph = NULL;
    if (!ok(!t->alloc(gpu, 256, &p, &e), "a block")) return;
    const int32_t zero = 0;
    KArgs a = counting(p);
    ok(!t->upload(gpu, p, &zero, sizeof zero, &e) && !t->run(gpu, &a, &e) && number_at(p) == 1, "an op runs");

    ok(!t->record(gpu, &e) && !t->run(gpu, &a, &e) && !t->run(gpu, &a, &e) && !t->recorded(gpu, &graph, &e) && graph,
       "two ops are recorded");
    is_int(number_at(p), 1, "and not run");
    ok(!t->replay(gpu, graph, &e) && !t->replay(gpu, graph, &e) && number_at(p) == 5, "a replay runs both");
    t->graph_free(gpu, graph);

    fail_next("cudaLaunchKernelEx:1:9");
    is_int(t->record(gpu, &e), OK, "a recording");
    is_int(t->run(gpu, &a, &e), ERR_DEVICE, "in which a launch fails");
    has_text(e.text, "count_call: cudaErrorInvalidConfiguration", "says which, and CUDA's name for it");
    t->recorded(gpu, &graph, &e);
    t->graph_free(gpu, graph);
    is_int(t->record(gpu, &e), OK, "another");
    is_int(t->sync(gpu, &e), ERR_DEVICE, "in which something waits");
    has_text(e.text, "waiting for the GPU: cudaErrorStreamCapture", "is told by that call");
    is_int(t->recorded(gpu, &graph, &e), ERR_DEVICE, "and is no graph");
    ok(graph == NULL && !t->run(gpu, &a, &e) && number_at(p) == 6, "after which ops run again");
    is_int(t->recorded(gpu, &graph, &e), ERR_INTERNAL, "nothing ends that was not begun");
    t->free(gpu, p, 256);
}

/* In a process of its own: it cannot use the device again. */
static void test_lost(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        Err first, later;
        void *p = NULL;
        fail_next("cudaStreamSynchronize:1:700");
        bool good = t->sync(gpu, &first) == ERR_DEVICE && strstr(first.text, "cudaErrorIllegalAddress") &&
                    t->alloc(gpu, 256, &p, &later) == ERR_DEVICE && strstr(later.text, "the GPU was lost: waiting") &&
                    t->sync(gpu, &later) == ERR_DEVICE && strstr(later.text, first.text);
        t->free(gpu, p, 256);
        device_close(gpu);
        _exit(good ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    is_int(status, 0, "after an illegal address every call gives that error, and the device can be closed");
}

/* A copy of the plugin that was built for another version of the program, as it says */
static void test_version(const char *plugin) {
    static char file[1 << 26];
    const uint64_t mine = DEVICE_ABI, other = mine + 1;
    char copy[] = "/tmp/memtide_plugin_XXXXXX";
    Device *d = NULL;
    FILE *from = fopen(plugin, "rb");
    size_t n = from ? fread(file, 1, sizeof file, from) : 0;
    if (from) fclose(from);
    char *at = memmem(file, n, &mine, sizeof mine);
    int fd = mkstemp(copy);
    if (!ok(at && fd >= 0, "the plugin says for which program it was built")) return;
    memcpy(at, &other, sizeof other);
    ok(write(fd, file, n) == (ssize_t)n, "a copy says otherwise");
    setenv("MEMTIDE_CUDA", copy, 1);
    is_int(device_open("cuda:0", &d, &e), ERR_UNSUPPORTED, "and is refused");
    has_text(e.text, "was built for another version of memtide", "for that");
    setenv("MEMTIDE_CUDA", plugin, 1);
    close(fd);
    unlink(copy);
}

static void count_names(void *arg, const char *name) {
    if (!strcmp(name, "cuda:h200")) ++*(int *)arg;
}

static void test_described(void) {
    Device *d = NULL;
    DeviceInfo info;
    int listed = 0;
    void *p = NULL;
    device_offline(count_names, &listed);
    is_int(listed, 1, "a description is listed");
    if (!ok(!device_open("cuda:h200", &d, &e), "and opens")) return;
    ok(!d->table->info(d, &info, &e), "it knows");
    is_str(info.name, "NVIDIA H200", "its name");
    is_str(info.detail, "compute capability 9.0, 132 multiprocessors", "what it can do");
    is_int(d->table->alignment, t->alignment, "it plans with the real one's alignment");
    KArgs a = counting(NULL);
    ok(d->table->alloc(d, 256, &p, &e) == ERR_UNSUPPORTED && d->table->sync(d, &e) == ERR_UNSUPPORTED &&
       d->table->run(d, &a, &e) == ERR_UNSUPPORTED && p == NULL, "and computes nothing");
    has_text(e.text, "planning only: NVIDIA H200", "as it says");
    ok(!d->table->record, "nor records");
    device_close(d);
    is_int(device_open("cuda:h300", &d, &e), ERR_UNSUPPORTED, "one without a description is refused");
    is_int(device_open("cuda:../h200", &d, &e), ERR_SCRIPT, "and what is no name");
    is_int(device_open("cuda:1", &d, &e), ERR_DEVICE, "a GPU that is not there");
    has_text(e.text, "device 'cuda:1' is not available: no such GPU: expected a number below 1, found 1",
             "with the reason");
}

static void test_drivers(void) {
    static const struct { const char *call, *says; } cases[] = {
        {"cudaGetDeviceCount:1:35", "the NVIDIA driver is too old: it has CUDA 13.0"},
        {"cudaGetDeviceCount:1:34", "there is no NVIDIA driver"},
        {"cudaGetDeviceCount:1:100", "the NVIDIA driver finds no GPU"},
        {"cudaGetDeviceCount:1:999", "the NVIDIA driver fails: cudaErrorUnknown"},
        {"cudaStreamCreateWithFlags:1:2", "a stream: cudaErrorMemoryAllocation"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Device *d = NULL;
        fail_next(cases[i].call);
        ok(device_open("cuda:0", &d, &e) != OK && d == NULL, "%s: no device", cases[i].call);
        has_text(e.text, cases[i].says, "the reason in plain words");
    }
}

int main(void) {
    const char *build = getenv("BUILD");
    char path[512];
    snprintf(path, sizeof path, "%s/emulate/memtide_cuda.so", build ? build : "build");
    setenv("MEMTIDE_CUDA", path, 1);
    setenv("EMULATE_LATE", "1", 1);
    if (!ok(!device_open("cuda:0", &gpu, &e), "the emulated GPU opens: %s", e.text)) return tap_done();
    t = gpu->table;
    test_memory();
    test_marks();
    test_begun();
    test_graph();
    test_described();
    test_version(path);
    test_drivers();
    test_lost();
    device_close(gpu);
    return tap_done();
}
