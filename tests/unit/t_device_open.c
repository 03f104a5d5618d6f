/* Devices by name: what is refused and why, where the CUDA plugin is looked for, the list of described GPUs; and the
 * dry device, which counts and computes nothing. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/device.h"
#include "base/mem.h"
#include "tap.h"

static void is_refused(const char *name, int code, const char *message) {
    Device *d = NULL;
    Err e = {0, ""};
    is_int(device_open(name, &d, &e), code, name);
    has_text(e.text, message, message);
    ok(!d, "there is no device");
}

static void test_names(void) {
    is_refused("", ERR_SCRIPT, "unknown device '': expected cpu, cuda:N or cuda:NAME");
    is_refused("gpu", ERR_SCRIPT, "unknown device 'gpu': expected cpu, cuda:N or cuda:NAME");
    is_refused("cpu:0", ERR_SCRIPT, "unknown device 'cpu:0'");
    is_refused("cudax", ERR_SCRIPT, "unknown device 'cudax'");
    Device *d = NULL;
    Err e = {0, ""};
    if (ok(device_open("cpu", &d, &e) == OK, "the CPU is always there: %s", e.text))
        is_str(d->table->kind, "cpu", "it");
    device_close(d);
    device_close(NULL);
}

/* mpirun, srun: what their variables say, NULL: nothing */
static void is_rank_device(const char *mpirun, const char *srun, const char *name, int world, const char *expected) {
    char found[DEVICE_NAME] = "", what[128];
    Err e = {0, ""};
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
    unsetenv("SLURM_LOCALID");
    if (mpirun) setenv("OMPI_COMM_WORLD_LOCAL_RANK", mpirun, 1);
    if (srun) setenv("SLURM_LOCALID", srun, 1);
    const int code = device_of_rank(name, world, found, &e);
    snprintf(what, sizeof what, "%s of %d ranks, of which mpirun says %s and srun %s", name, world, mpirun ? mpirun : "nothing",
             srun ? srun : "nothing");
    if (!code) is_str(found, expected, what);
    else if (has_text(e.text, expected, what)) is_int(code, strlen(name) < DEVICE_NAME ? ERR_UNSUPPORTED : ERR_SCRIPT, "with its code");
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
    unsetenv("SLURM_LOCALID");
}

static void test_rank_devices(void) {
    is_rank_device("3", NULL, "cuda:0", 4, "cuda:3");
    is_rank_device("0", NULL, "cuda:0", 4, "cuda:0");
    is_rank_device("1", NULL, "cuda", 2, "cuda:1");
    is_rank_device("1", NULL, "cuda:4", 2, "cuda:5");
    is_rank_device(NULL, "2", "cuda:0", 4, "cuda:2");
    is_rank_device("1", "0", "cuda:0", 4, "cuda:1"); /* mpirun within a job of Slurm */
    is_rank_device("", "2", "cuda:0", 4, "cuda:2");
    is_rank_device("1", NULL, "cuda:2", 1, "cuda:2"); /* not one of several ranks */
    is_rank_device(NULL, NULL, "cuda:2", 1, "cuda:2");
    is_rank_device("1", NULL, "cpu", 2, "cpu");
    is_rank_device("1", NULL, "cuda:h200", 2, "cuda:h200");
    is_rank_device("1", NULL, "cuda:2a", 2, "cuda:2a");
    is_rank_device(NULL, NULL, "cuda:0", 2, "device 'cuda:0' of 2 ranks: which of its machine's ranks this process is, neither "
                   "OMPI_COMM_WORLD_LOCAL_RANK (mpirun) nor SLURM_LOCALID (srun) says");
    is_rank_device("x", "-1", "cuda:0", 2, "neither OMPI_COMM_WORLD_LOCAL_RANK");
    is_rank_device("1", NULL, "a-name-that-is-longer-than-any-device-name-could-be-in-this-program", 2, "unknown device 'a-name");
}

static int joins;

static int model_join(Device *d, MeshAxis axis, Comm *comm, Err *e) {
    joins++;
    return comm->rank == 0 && !d->comm[axis] ? OK : err_set(e, ERR_UNSUPPORTED, "not this rank");
}

static void test_join(void) {
    static const DeviceTable plain = {.kind = "plain"}, joining = {.kind = "joining", .join = model_join};
    Device one = {.table = &plain}, two = {.table = &joining}, three = {.table = &joining};
    Comm first = {.rank = 0, .world = 2}, second = {.rank = 1, .world = 2};
    Err e = {0, ""};
    ok(device_join(&one, MESH_DATA, &second, &e) == OK && one.comm[MESH_DATA] == &second && !one.comm[MESH_TENSOR],
       "a device that needs nothing else has its ranks");
    ok(device_join(&two, MESH_TENSOR, &first, &e) == OK && two.comm[MESH_TENSOR] == &first && joins == 1, "one that does is asked");
    is_int(device_join(&three, MESH_TENSOR, &second, &e), ERR_UNSUPPORTED, "and may refuse");
    ok(three.comm[MESH_TENSOR] == NULL, "then it has none");
}

/* ---- the plugin's file */

static char folder[] = "/tmp/memtide_device_XXXXXX", file[64];

static void put_file(const char *name) {
    FILE *f;
    snprintf(file, sizeof file, "%s/%s", folder, name);
    ok((f = fopen(file, "w")) && fclose(f) == 0, "%s", name);
}

static void collect(void *arg, const char *name) {
    char *text = arg;
    snprintf(text + strlen(text), 256 - strlen(text), "%s ", name);
}

static void test_plugin(void) {
    char text[1200], found[256] = "", program[1024] = "";
    /* beside the program, where none is: it is built into build/, or build/emulate/ */
    unsetenv("MEMTIDE_CUDA");
    if (!ok(readlink("/proc/self/exe", program, sizeof program - 1) > 0, "the program's own name")) return;
    *strrchr(program, '/') = '\0';
    snprintf(text, sizeof text, "device 'cuda:0' is not available: the CUDA plugin is missing: looked for "
             "memtide_cuda.so in %s/", program);
    is_refused("cuda:0", ERR_UNSUPPORTED, text);
    setenv("MEMTIDE_CUDA", "", 1);
    is_refused("cuda", ERR_UNSUPPORTED, "the CUDA plugin is missing: looked for memtide_cuda.so in ");
    device_offline(collect, found);
    is_str(found, "", "without a plugin no GPU is described");

    if (!ok(mkdtemp(folder) != NULL, "a folder")) return;
    snprintf(file, sizeof file, "%s/none.so", folder);
    setenv("MEMTIDE_CUDA", file, 1);
    snprintf(text, sizeof text, "the CUDA plugin is missing: looked for %s, which MEMTIDE_CUDA names", file);
    is_refused("cuda:h200", ERR_UNSUPPORTED, text);
    put_file("empty.so");
    setenv("MEMTIDE_CUDA", file, 1);
    is_refused("cuda:0", ERR_UNSUPPORTED, "device 'cuda:0' is not available: the CUDA plugin cannot be loaded: ");
    device_offline(collect, found);
    is_str(found, "", "beside it there is no description");
    snprintf(text, sizeof text, "%s/devices", folder);
    ok(mkdir(text, 0700) == 0, "a folder of descriptions");
    put_file("devices/h200.json");
    put_file("devices/a100.json");
    put_file("devices/read.me");
    device_offline(collect, found);
    is_str(found, "cuda:a100 cuda:h200 ", "descriptions are listed in order");

    Dl_info libc; /* a library that is there, and no plugin */
    if (ok(dladdr((void *)(size_t)&puts, &libc) && libc.dli_fname, "the C library")) {
        setenv("MEMTIDE_CUDA", libc.dli_fname, 1);
        is_refused("cuda:0", ERR_UNSUPPORTED, "is not memtide's CUDA plugin: it has no memtide_cuda_open");
    }
    static const char *const made[] = {"devices/h200.json", "devices/a100.json", "devices/read.me", "devices",
                                       "empty.so", ""};
    for (size_t i = 0; i < ARRAY_LEN(made); i++) {
        snprintf(file, sizeof file, "%s/%s", folder, made[i]);
        remove(file);
    }
}

/* ---- the dry device */

static int asked_info(Device *d, DeviceInfo *info, Err *e) {
    (void)d, (void)e;
    info->threads = 3;
    return OK;
}

static Device *asked;

static int asked_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    if (limit == 0) return err_set(e, ERR_UNSUPPORTED, "the model cannot");
    asked = args->device == d ? d : NULL;
    *state = NULL;
    *workspace = limit / 2;
    return OK;
}

static int trims;

static void asked_trim(Device *d, bool all) {
    (void)d;
    trims += all;
}

static void test_dry(void) {
    static const DeviceTable table = {.kind = "model", .alignment = 256, .info = asked_info, .prepare = asked_prepare,
                                      .trim = asked_trim};
    Device model = {.table = &table}, *d = NULL;
    const long before = mem_live();
    Err e = {0, ""};
    mem_fail_after(1);
    is_int(device_dry_open(&model, &d, &e), ERR_HOST_MEMORY, "without host memory it does not open");
    mem_fail_after(0);
    if (!ok(device_dry_open(&model, &d, &e) == OK, "it opens: %s", e.text)) return;
    const DeviceTable *t = d->table;
    ok(t->dry && !strcmp(t->kind, "dry") && t->alignment == 256, "it aligns as its model");

    void *p[2] = {NULL, NULL}, *none = NULL, *host = NULL, *state = &state;
    ok(t->alloc(d, 512, &p[0], &e) == OK && t->alloc(d, 256, &p[1], &e) == OK, "addresses are handed out");
    ok(p[0] && (uintptr_t)p[0] % 256 == 0 && (char *)p[1] == (char *)p[0] + 512, "one after the other");
    is_int(t->alloc(d, SIZE_MAX - 255, &none, &e), ERR_OOM, "until there are none left");
    has_text(e.text, "the dry device has no addresses left for ", "which is told");
    t->free(d, p[0], 512);
    is_int((long long)t->used(d), 0, "nothing of a device is used");

    ok(t->upload(d, p[0], "x", 1, &e) == OK && t->download(d, p[0], p[0], 1, &e) == OK && t->sync(d, &e) == OK &&
           t->send(d, 0, p[0], "x", 1, &e) == OK && t->sent(d, 0, &e) == OK && t->run(d, NULL, &e) == OK,
       "copies and ops touch nothing");
    double seconds = 1;
    void *mark = NULL;
    ok(t->fetch(d, p[0], p[0], 1, &e) == OK && t->mark(d, &mark, &e) == OK && t->between(d, mark, mark, &seconds, &e) == OK && seconds == 0,
       "and take no time");
    t->mark_free(d, mark);
    mem_fail_after(1);
    is_int(t->host_alloc(d, 64, &host, &e), ERR_HOST_MEMORY, "host memory can lack");
    mem_fail_after(0);
    ok(t->host_alloc(d, 64, &host, &e) == OK && host, "or be there");
    t->host_free(d, host, 64);

    DeviceInfo info = {.threads = 0};
    KArgs args;
    size_t workspace = 0;
    memset(&args, 0, sizeof args);
    args.device = d;
    ok(t->info(d, &info, &e) == OK && info.threads == 3, "what it is, its model says");
    ok(t->prepare(d, &args, 100, &state, &workspace, &e) == OK && workspace == 50 && asked == &model,
       "what an op needs, too, which is asked in its own name");
    is_int(t->prepare(d, &args, 0, &state, &workspace, &e), ERR_UNSUPPORTED, "and what it cannot");
    t->trim(d, true);
    is_int(trims, 1, "states are the model's");
    device_close(d);
    is_int(mem_live(), before, "all is given back");
}

int main(void) {
    test_names();
    test_rank_devices();
    test_join();
    test_plugin();
    test_dry();
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
