/* t_machine.c: what the process may use of a machine: lists of the kernel's, machines that folders of files describe, where its threads
 * may run; and how large blocks lie over memory nodes: which pages are asked for, when, and what follows where the kernel refuses. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../kernels/cpu/cpu.h"
#include "tap.h"

/* ---- lists */

static void is_list(const char *text, bool good, int count, int last, const char *what) {
    NumberSet set;
    memset(&set, 0xFF, sizeof set);
    const bool found = set_read(&set, text);
    ok(found == good && set_count(&set) == count, "%s: %d numbers", what, set_count(&set));
    if (good) ok(set_has(&set, last) && !set_has(&set, last + 1), "the last of which is %d", last);
}

static void test_lists(void) {
    is_list("0-3,8-11\n", true, 8, 11, "two ranges");
    is_list("7", true, 1, 7, "one number");
    is_list("0,2,4-5,63-64,8191\n", true, 7, 8191, "numbers and ranges, up to the last one");
    is_list("0-8191", true, 8192, 8191, "every number");
    is_list("\n", false, 0, 0, "an empty list");
    is_list("3-1", false, 0, 0, "a range that goes down");
    is_list("0-3,x", false, 0, 0, "a letter");
    is_list("0-", false, 0, 0, "half a range");
    is_list("8192", false, 0, 0, "a number beyond");
    is_list("0-99999999999999999999", false, 0, 0, "and one far beyond");
}

/* ---- machines */

enum { FILES = 12 };

typedef struct Described {
    const char *name, *file[FILES][2]; /* path, contents */
    const char *processors, *nodes;    /* lists; "": none */
    int threads;                       /* of as many as processors */
    double time;
} Described;

#define NODE "/sys/devices/system/node/"
#define TWO_NODES {NODE "has_memory", "0-1\n"}, {NODE "node0/cpulist", "0-31\n"}, {NODE "node1/cpulist", "32-63\n"}
#define GROUPS "/proc/self/cgroup"
#define V2 "/sys/fs/cgroup"
#define V1 "/sys/fs/cgroup/cpu"
#define STATUS(mems) {"/proc/self/status", "Name:\tx\nMems_allowed:\t00000000,ffffffff\nMems_allowed_list:\t" mems "\nThreads:\t1\n"}

static const Described machines[] = {
    {"two nodes", {TWO_NODES, STATUS("0-1"), {GROUPS, "0::/user.slice\n"}, {V2 "/user.slice/cpu.max", "max 100000\n"}}, "0-63", "0-1", 64, INFINITY},
    {"two nodes, threads on one", {TWO_NODES, STATUS("0-1")}, "32-47", "1", 16, INFINITY},
    {"two nodes, memory of one", {TWO_NODES, STATUS("0")}, "0-63", "0", 64, INFINITY},
    {"a kernel without cpusets", {TWO_NODES}, "0,63", "0-1", 2, INFINITY},
    {"memory without processors", {TWO_NODES, {NODE "has_memory", "0-2\n"}, {NODE "node2/cpulist", "\n"}}, "0-63", "0-1", 64, INFINITY},
    {"processors without memory", {TWO_NODES, {NODE "has_memory", "1\n"}}, "0-63", "1", 64, INFINITY},
    {"a container with 1.5 of 64 processors", {{GROUPS, "0::/\n"}, {V2 "/cpu.max", "150000 100000\n"}}, "0-63", "", 2, 1.5},
    {"a limit of a group above", {{GROUPS, "0::/a/b\n"}, {V2 "/a/b/cpu.max", "max 100000\n"}, {V2 "/a/cpu.max", "400000 100000\n"}}, "0-63", "", 4, 4},
    {"several limits, of which the least counts",
     {{GROUPS, "0::/a/b\n"}, {V2 "/a/b/cpu.max", "800000 100000\n"}, {V2 "/a/cpu.max", "310000 50000\n"}, {V2 "/cpu.max", "900000 100000\n"}},
     "0-63", "", 7, 6.2},
    {"a group beside its own", {{GROUPS, "0::/a\n"}, {V2 "/b/cpu.max", "100000 100000\n"}}, "0-63", "", 64, INFINITY},
    {"version 1, a container whose path is the host's",
     {{GROUPS, "5:cpuset:/docker/f00\n4:cpu,cpuacct:/docker/f00\n"}, {V1 "/cpu.cfs_quota_us", "150000\n"}, {V1 "/cpu.cfs_period_us", "100000\n"}},
     "0-63", "", 2, 1.5},
    {"version 1, a group of its own",
     {{GROUPS, "4:cpuacct,cpu:/job\n"}, {V1 "/job/cpu.cfs_quota_us", "50000\n"}, {V1 "/job/cpu.cfs_period_us", "100000\n"},
      {V1 "/cpu.cfs_quota_us", "-1\n"}, {V1 "/cpu.cfs_period_us", "100000\n"}}, "0-3", "", 1, 0.5},
    {"version 1 without a limit", {{GROUPS, "4:cpu:/\n"}, {V1 "/cpu.cfs_quota_us", "-1\n"}, {V1 "/cpu.cfs_period_us", "100000\n"}}, "0-7", "", 8, INFINITY},
    {"other controllers' groups",
     {{GROUPS, "3:cpuset:/x\n2:cpuacct:/x\n1:name=systemd:/x\n"}, {V1 "/x/cpu.cfs_quota_us", "100000\n"}, {V1 "/x/cpu.cfs_period_us", "100000\n"}},
     "0-7", "", 8, INFINITY},
    {"more time than processors", {{GROUPS, "0::/\n"}, {V2 "/cpu.max", "1600000 100000\n"}}, "0-7", "", 8, 16},
    {"files that make no sense", {{GROUPS, "::\nx\n0:\n0::/\n"}, {V2 "/cpu.max", "fast\n"}, {NODE "has_memory", "all\n"}}, "0-1", "", 2, INFINITY},
    {"a kernel that tells nothing", {{NULL}}, "0-1", "", 2, INFINITY},
};

/* The root of the files, and one of them with the folders above it */
static char root[64];

static bool put_file(const char *path, const char *text) {
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *at = strchr(whole + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        if (mkdir(whole, 0700) && errno != EEXIST) return false;
        *at = '/';
    }
    FILE *f = fopen(whole, "w");
    return f && fputs(text, f) >= 0 && fclose(f) == 0;
}

static void test_machine(const Described *d) {
    Machine m;
    NumberSet processors, nodes;
    bool made = set_read(&processors, d->processors);
    strcpy(root, "/tmp/memtide-machine.XXXXXX");
    made = made && mkdtemp(root);
    for (int i = 0; made && i < FILES && d->file[i][0]; i++) made = put_file(d->file[i][0], d->file[i][1]);
    if (!ok(made, "%s", d->name)) return;
    machine_look(root, &processors, &m);
    set_read(&nodes, d->nodes);
    is_int(m.processors, set_count(&processors), "its processors");
    is_int(machine_threads(&m, m.processors), d->threads, "as many threads as have time");
    ok(m.time == d->time || fabs(m.time - d->time) < 1e-9, "%g processors' time", m.time);
    ok(!memcmp(&m.nodes, &nodes, sizeof nodes), "memory nodes \"%s\", %d of them", d->nodes, set_count(&m.nodes));
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    ok(system(command) == 0, "nothing is left of it");
}

/* ---- processors */

static void test_affinity(void) {
    NumberSet all, one = {{0}}, found;
    affinity_processors(&all);
    is_int(set_count(&all), omp_get_num_procs(), "as many processors as OpenMP finds");
    int last = SET_NUMBERS - 1;
    while (last > 0 && !set_has(&all, last)) last--;
    set_add(&one, last);
    affinity_take(&one);
    affinity_processors(&found);
    ok(!memcmp(&found, &one, sizeof one), "a thread may be kept on one");
    affinity_take(&all);
    affinity_processors(&found);
    ok(!memcmp(&found, &all, sizeof all), "and let go");
}

/* On how many processors this thread may run */
static int may_run_on(void) {
    NumberSet found = {{0}};
    return sched_getaffinity(0, sizeof found.word, (cpu_set_t *)found.word) < 0 ? -1 : set_count(&found);
}

static int flight_may;
static int note_flight(const KArgs *args, Err *e) {
    (void)args, (void)e;
    flight_may = may_run_on();
    return OK;
}

/* In a process whose threads OpenMP binds: this thread, the one for collective ops, and what the process may use */
static int tell_bound(void) {
    KernelRun *run[OP_KIND_COUNT] = {note_flight};
    const KArgs args = {.kind = (OpKind)0};
    Flights f = {.open = false};
    NumberSet all;
    Err e;
    if (flights_begin(&f, run, &args, &e) || flights_wait_all(&f, &e)) return 1;
    affinity_processors(&all);
    printf("%d %d %d\n", may_run_on(), flight_may, set_count(&all));
    flights_close(&f);
    return 0;
}

static void test_bound(const char *program) {
    char command[512], found[64] = "", expected[64];
    const int count = may_run_on();
    snprintf(command, sizeof command, "env OMP_PROC_BIND=close OMP_PLACES=threads '%s' bound", program);
    FILE *f = popen(command, "r");
    if (f && !fgets(found, sizeof found, f)) found[0] = 0;
    snprintf(expected, sizeof expected, "1 %d %d\n", count, count);
    ok(f && pclose(f) == 0, "a process whose threads are bound");
    is_str(found, expected, "binds its first one, but not the one for collective ops, and knows all processors");
}

/* ---- memory */

enum { PAGE = 4096, BLOCK_BYTES = 8 << 20 };

/* Does the kernel take wishes about memory here? */
static bool allowed(void) { return !syscall(SYS_mbind, NULL, 0ul, MPOL_DEFAULT, NULL, 0ul, 0u) && !syscall(SYS_get_mempolicy, NULL, NULL, 0ul, NULL, 0ul); }

/* The policy of a page, and its nodes; -1: not known */
static int policy_at(const void *p, NumberSet *nodes) {
    int mode = -1;
    *nodes = (NumberSet){{0}};
    return syscall(SYS_get_mempolicy, &mode, nodes->word, SET_NUMBERS + 1ul, p, (unsigned long)MPOL_F_ADDR) ? -1 : mode;
}

/* How many of the pages in [p, p + bytes) have that policy, interleaved over `nodes` */
static int count_pages(const char *p, size_t bytes, int mode, const NumberSet *nodes) {
    int count = 0;
    NumberSet found;
    for (size_t i = 0; i < bytes; i += PAGE) count += policy_at(p + i, &found) == mode && (!nodes || !memcmp(&found, nodes, sizeof found));
    return count;
}

static NumberSet some_node(void) {
    NumberSet one = {{0}}, memory;
    machine_list("", NODE "has_memory", &memory);
    int i = 0;
    while (i < SET_NUMBERS - 1 && !set_has(&memory, i)) i++;
    set_add(&one, set_count(&memory) ? i : 0);
    return one;
}

static void test_pages(void) {
    const NumberSet nodes = some_node();
    const size_t around = 16 * PAGE, pages = BLOCK_BYTES / PAGE;
    char *map = mmap(NULL, BLOCK_BYTES + 2 * around, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p = map + around;
    if (!ok(map != MAP_FAILED, "memory")) return;
    spread_begin(&nodes, p, BLOCK_BYTES + 100);
    is_int(count_pages(p, BLOCK_BYTES, MPOL_INTERLEAVE, &nodes), (long)pages, "every page goes round the nodes that were given");
    is_int(count_pages(map, around, MPOL_DEFAULT, NULL), 16, "none before it");
    is_int(count_pages(p + BLOCK_BYTES, around, MPOL_DEFAULT, NULL), 16, "none after it, nor one that is others', too");
    memset(p, 1, BLOCK_BYTES);
    spread_end(p, BLOCK_BYTES + 100);
    is_int(count_pages(p, BLOCK_BYTES, MPOL_DEFAULT, NULL), (long)pages, "until its end");
    munmap(map, BLOCK_BYTES + 2 * around);
}

static Machine machine_of(int nodes) {
    Machine m = {.processors = 4, .time = INFINITY};
    for (int i = 0; i < nodes; i++) set_add(&m.nodes, i);
    return m;
}

static void test_wish(void) {
    const Machine none = machine_of(0), one = machine_of(1), two = machine_of(2);
    const NumberSet nodes = some_node();
    is_int(spread_find(&none, 4), SPREAD_NOT_NEEDED, "no node is known");
    is_int(spread_find(&one, 4), SPREAD_NOT_NEEDED, "one node");
    is_int(spread_find(&two, 1), SPREAD_NOT_NEEDED, "one thread");
    if (!allowed()) {
        is_int(spread_find(&two, 2), SPREAD_REFUSED, "this kernel refuses");
        return;
    }
    is_int(spread_find(&two, 2), SPREAD_ROUND, "two threads, two nodes");
    ok(!syscall(SYS_set_mempolicy, MPOL_BIND, nodes.word, SET_NUMBERS + 1ul), "where the user has chosen");
    is_int(spread_find(&two, 2), SPREAD_CHOSEN, "that stays");
    ok(!syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0ul), "and no more");
    is_int(spread_find(&two, 2), SPREAD_ROUND, "once it is taken back");
}

/* A device as it would be on a machine of several nodes, but its pages go round one that is here */
static CpuDevice *spread_device(void) {
    Device *d = NULL;
    Err e;
    if (!ok(device_cpu_open(&d, &e) == OK, "a device")) return NULL;
    CpuDevice *cpu = (CpuDevice *)d;
    cpu->spread = SPREAD_ROUND;
    cpu->machine.nodes = some_node();
    return cpu;
}

static void test_device(void) {
    enum { LARGE = (2 << 20) + 64, SMALL = 1 << 20 };
    CpuDevice *cpu = spread_device();
    if (!cpu) return;
    Device *d = &cpu->base;
    void *large, *small, *other;
    Err e;
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* pages that malloc keeps, so that they can be looked at when they are free */
    if (d->table->alloc(d, LARGE, &large, &e) || d->table->alloc(d, SMALL, &small, &e) || d->table->alloc(d, LARGE, &other, &e)) {
        ok(0, "%s", e.text);
        return;
    }
    is_int(count_pages(large, LARGE - PAGE, MPOL_INTERLEAVE, &cpu->machine.nodes), (2 << 20) / PAGE, "a large block is spread");
    ok(count_pages((char *)small + PAGE, SMALL - 2 * PAGE, MPOL_DEFAULT, NULL) > 0, "a small one is not");
    memset(large, 1, LARGE);
    d->table->free(d, large, LARGE);
    is_int(count_pages(large, LARGE - PAGE, MPOL_DEFAULT, NULL), (2 << 20) / PAGE, "when it is free, its pages are as others");
    cpu->spread = SPREAD_NOT_NEEDED;
    d->table->free(d, other, LARGE);
    if (!d->table->alloc(d, LARGE, &other, &e)) {
        is_int(count_pages(other, LARGE - PAGE, MPOL_INTERLEAVE, NULL), 0, "where that is not needed, nothing is asked for");
        d->table->free(d, other, LARGE);
    }
    d->table->free(d, small, SMALL);
    device_close(d);
}

/* From now on the kernel answers these calls with that error, as a container's does. */
static bool refuse(const int *calls, int n, unsigned error) {
    struct sock_filter code[8] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (int i = 0; i < n; i++) code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], (unsigned char)(n - i), 0);
    code[1 + n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[2 + n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
    const struct sock_fprog filter = {.len = (unsigned short)(3 + n), .filter = code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

/* A process whose kernel refuses: what it finds, and a device that takes memory all the same. Returns its exit status; 77: calls
 * cannot be refused here. */
static int refused(const int *calls, int n, unsigned error) {
    const pid_t child = fork();
    if (child == 0) {
        if (!refuse(calls, n, error)) _exit(77);
        const Machine two = machine_of(2);
        if (syscall(calls[0], NULL, 0ul, 0, NULL, 0ul, 0) != -1 || errno != (int)error) _exit(2);
        if (spread_find(&two, 2) != SPREAD_REFUSED) _exit(3);
        Device *d = NULL;
        Err e;
        if (device_cpu_open(&d, &e)) _exit(4);
        CpuDevice *cpu = (CpuDevice *)d; /* of a kernel that changes its mind */
        cpu->spread = SPREAD_ROUND;
        cpu->machine.nodes = two.nodes;
        void *p = NULL;
        if (d->table->alloc(d, BLOCK_BYTES, &p, &e)) _exit(5);
        memset(p, 1, BLOCK_BYTES);
        d->table->free(d, p, BLOCK_BYTES);
        device_close(d);
        _exit(0);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}

static void is_refused(const char *what, const int *calls, int n, unsigned error) {
    const int status = refused(calls, n, error);
    if (status == 77) skip(what, "no calls can be refused here");
    else is_int(status, 0, what);
}

int main(int argc, char **argv) {
    if (argc > 1) return tell_bound();
    static const int all[] = {SYS_mbind, SYS_get_mempolicy, SYS_set_mempolicy}, one[] = {SYS_mbind}, told[] = {SYS_get_mempolicy};
    test_lists();
    for (size_t i = 0; i < ARRAY_LEN(machines); i++) test_machine(&machines[i]);
    test_affinity();
    test_bound(argv[0]);
    test_wish();
    if (allowed()) {
        test_pages();
        test_device();
    } else {
        skip("policies of pages", "this kernel refuses them");
    }
    is_refused("a kernel that refuses every policy: memory lies where it puts it", all, ARRAY_LEN(all), EPERM);
    is_refused("one that has none", all, ARRAY_LEN(all), ENOSYS);
    is_refused("one that tells of policies and takes none", one, ARRAY_LEN(one), EPERM);
    is_refused("one that does not tell what the user has chosen", told, ARRAY_LEN(told), EPERM);
    return tap_done();
}
