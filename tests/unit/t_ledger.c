/* The ledger, and the devices below it: device_open's answers and the dry device. */
#include "memory/ledger.h"

#include <stdlib.h>

#include "base/mem.h"
#include "tap.h"

/* A device with 1000 * 64 bytes, of which alloc says no beyond them and breaks at `broken` bytes. */
typedef struct Tiny {
    Device base;
    size_t taken, broken;
    int prepared, trimmed;
    const void *asked; /* the device that prepare was called for */
} Tiny;

static int tiny_alloc(Device *d, size_t bytes, void **p, Err *e) {
    Tiny *t = (Tiny *)d;
    if (bytes == t->broken) return err_set(e, ERR_DEVICE, "the tiny device broke");
    if (t->taken + bytes > 64000) return err_set(e, ERR_OOM, "the tiny device is full");
    t->taken += bytes;
    *p = t;
    return OK;
}

static void tiny_free(Device *d, void *p, size_t bytes) {
    (void)p;
    ((Tiny *)d)->taken -= bytes;
}

static int tiny_info(Device *d, DeviceInfo *info, Err *e) {
    (void)d, (void)e;
    memset(info, 0, sizeof *info);
    strcpy(info->name, "tiny");
    info->memory_total = 64000;
    return OK;
}

static int tiny_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    Tiny *t = (Tiny *)d;
    if (t->prepared++) return err_set(e, ERR_UNSUPPORTED, "once only");
    t->asked = args->device;
    *state = &t->prepared;
    *workspace = limit / 2;
    return OK;
}

static void tiny_trim(Device *d, bool all) { ((Tiny *)d)->trimmed += all; }

static const DeviceTable tiny_table = {.kind = "tiny", .alignment = 64, .info = tiny_info, .alloc = tiny_alloc,
                                       .free = tiny_free, .prepare = tiny_prepare, .trim = tiny_trim};

static Tiny tiny_device(void) { return (Tiny){.base = {&tiny_table}}; }

static void test_limit(void) {
    Tiny t = tiny_device();
    Ledger l;
    Err e = {0};
    void *a = NULL, *b = NULL;
    ledger_open(&l, &t.base, 640);
    is_int(l.mark, -1, "a new ledger is outside ops");
    is_int(ledger_take(&l, 576, &a, &e), OK, "576 of 640 bytes");
    is_int(ledger_take(&l, 128, &b, &e), ERR_OOM, "128 more are 64 too many");
    is_str(e.text, "out of memory: requested 128 bytes, held 576, limit 640", "the message has all three numbers");
    ok(b == NULL && l.held == 576 && t.taken == 576, "and nothing was taken");
    is_int(ledger_take(&l, 64, &b, &e), OK, "64 more are exactly the limit");
    is_int(ledger_take(&l, 64, &b, &e), ERR_OOM, "after which there is nothing");
    is_int(ledger_take(&l, SIZE_MAX - 63, &b, &e), ERR_OOM, "nor for a size that would wrap around");
    is_int((long long)l.requests, 5, "every request is counted");
    ledger_give(&l, a, 576);
    ledger_give(&l, b, 64);
    is_int(ledger_check_zero(&l, &e), OK, "all is given back");
    is_int((long long)t.taken, 0, "to the device");
    is_int((long long)l.peak.held, 640, "the peak stays");
}

static void test_refusals(void) {
    Tiny t = tiny_device();
    Ledger l;
    Err e = {0};
    void *p = NULL;
    ledger_open(&l, &t.base, 0);
    is_int(ledger_take(&l, 63, &p, &e), ERR_INTERNAL, "a size that is no multiple of the alignment");
    has_text(e.text, "multiple of 64 bytes, found 63", "is named");
    is_int(ledger_take(&l, 0, &p, &e), ERR_INTERNAL, "no bytes are no request");
    is_int(ledger_take(&l, 64064, &p, &e), ERR_OOM, "more than the device has");
    is_str(e.text, "out of memory: requested 64064 bytes, held 0, limit none; the tiny device is full",
           "with its reason");
    is_int(ledger_take(&l, 64064, &p, NULL), ERR_OOM, "the code does not need an Err");
    t.broken = 128;
    is_int(ledger_take(&l, 128, &p, &e), ERR_DEVICE, "another failure of the device keeps its code");
    is_str(e.text, "the tiny device broke", "and its text");
    is_int((long long)l.held, 0, "nothing is held after them");
    ledger_open(&l, &t.base, 0);
    l.fail_at = 2;
    int codes[3];
    for (int i = 0; i < 3; i++) codes[i] = ledger_take(&l, 64, &p, i == 1 ? &e : NULL);
    ok(codes[0] == OK && codes[1] == ERR_OOM && codes[2] == OK,
       "fail_at 2 lets the first and the third request through");
    has_text(e.text, "made to fail", "and says that it is no shortage");
    is_int(ledger_check_zero(&l, &e), ERR_INTERNAL, "held bytes at the end are an error");
    has_text(e.text, "found 128", "that says how many");
    ledger_use(&l, CAT_WORKSPACE, 7);
    is_int(ledger_check_zero(&l, &e), ERR_INTERNAL, "so are bytes in use");
    has_text(e.text, "7 of workspace", "with their category");
    ledger_unuse(&l, CAT_WORKSPACE, 7);
    ledger_give(&l, p, 64);
    ledger_give(&l, p, 64);
}

static size_t peak_sum(const Ledger *l) {
    size_t sum = 0;
    for (int c = 0; c < CAT_COUNT; c++) sum += l->peak.category[c];
    return sum;
}

static void test_peak(void) {
    Tiny t = tiny_device();
    Ledger l;
    void *p = NULL;
    ledger_open(&l, &t.base, 0);
    l.mark = 3;
    ledger_take(&l, 640, &p, NULL);
    is_int((long long)l.peak.category[CAT_OTHER], 640, "held bytes that no tensor uses are other");
    ledger_use(&l, CAT_WEIGHTS, 100);
    ledger_use(&l, CAT_OTHER, 4);
    ok(l.peak.held == 640 && l.peak.used == 104 && l.peak.mark == 3,
       "a take and its use are one instant, with the tensor in it");
    is_int((long long)l.peak.category[CAT_OTHER], 540, "other: the loss of 4 and the slack of 536");
    is_int((long long)l.category[CAT_OTHER], 4, "the running count has no slack in it");
    l.mark = 4;
    ledger_use(&l, CAT_ACTIVATIONS, 200);
    l.mark = 5;
    ledger_unuse(&l, CAT_ACTIVATIONS, 200);
    ledger_use(&l, CAT_ACTIVATION_GRADIENTS, 200);
    ok(l.peak.used == 304 && l.peak.mark == 4, "of two equal instants the first is the peak");
    is_int((long long)l.peak.category[CAT_ACTIVATIONS], 200, "with what was alive then");
    is_int((long long)l.peak.category[CAT_ACTIVATION_GRADIENTS], 0, "and not what came later");
    l.mark = 6;
    ledger_use(&l, CAT_WORKSPACE, 1);
    ok(l.peak.used == 305 && l.peak.mark == 6, "one byte more in use is a higher instant");
    ledger_unuse(&l, CAT_WORKSPACE, 1);
    ledger_unuse(&l, CAT_ACTIVATION_GRADIENTS, 200);
    l.mark = 7;
    ledger_take(&l, 64, &p, NULL);
    ok(l.peak.held == 704 && l.peak.used == 104 && l.peak.mark == 7, "more held outweighs more used");
    is_int((long long)peak_sum(&l), 704, "the categories sum to the peak");
    ledger_give(&l, p, 64);
    l.mark = -1;
    ledger_reset_peak(&l);
    ok(l.peak.held == 640 && l.peak.used == 104 && l.peak.mark == -1, "reset: the peak is what there is now");
    is_int((long long)peak_sum(&l), 640, "and sums to it");
}

static void test_dry(void) {
    Tiny t = tiny_device();
    Device *d = NULL;
    DeviceInfo info;
    Err e = {0};
    long before = mem_live();
    is_int(device_dry_open(&t.base, &d, &e), OK, "the dry device opens over a model");
    ok(d->table->dry && d->table->alignment == 64, "and has its alignment");
    is_str(d->table->kind, "dry", "its kind is its own");
    is_int(d->table->info(d, &info, &e), OK, "its info");
    is_str(info.name, "tiny", "is the model's");
    void *p[3] = {NULL, NULL, NULL};
    size_t big = (size_t)1 << 50;
    for (int i = 0; i < 3; i++) is_int(d->table->alloc(d, i == 1 ? big : 64, &p[i], &e), OK, "any size can be had");
    ok(p[0] && (char *)p[1] == (char *)p[0] + 64 && (char *)p[2] == (char *)p[1] + big, "addresses do not overlap");
    ok((uintptr_t)p[0] % 64 == 0, "and are aligned");
    is_int((long long)t.taken, 0, "the model is not asked for memory");
    is_int(d->table->alloc(d, SIZE_MAX - 63, &p[0], &e), ERR_OOM, "addresses can run out");
    for (int i = 0; i < 3; i++) d->table->free(d, p[i], i == 1 ? big : 64);
    KArgs args = {.device = d};
    void *state = NULL;
    size_t workspace = 0;
    char byte = 'b';
    is_int(d->table->prepare(d, &args, 100, &state, &workspace, &e), OK, "prepare asks the model");
    ok(state == &t.prepared && workspace == 50 && t.asked == &t.base, "as itself, and passes the answer on");
    is_int(d->table->prepare(d, &args, 100, &state, &workspace, &e), ERR_UNSUPPORTED, "its refusal too");
    d->table->trim(d, true);
    is_int(t.trimmed, 1, "trim reaches the model");
    ok(!d->table->run(d, &args, &e) && !d->table->sync(d, &e) && !d->table->upload(d, p[1], &byte, 1, &e) &&
       !d->table->download(d, &byte, p[1], 1, &e) && byte == 'b', "running and copying do nothing");
    double seconds = 1;
    void *mark = NULL;
    ok(!d->table->mark(d, &mark, &e) && !mark && !d->table->between(d, mark, mark, &seconds, &e) && seconds == 0 &&
       d->table->used(d) == 0, "in no time, with no memory");
    device_close(d);
    is_int(mem_live(), before, "closed without a trace");
    device_close(NULL);
    mem_fail_after(1);
    is_int(device_dry_open(&t.base, &d, &e), ERR_HOST_MEMORY, "without host memory there is none");
}

static void test_open(void) {
    Device *d = NULL;
    Err e = {0};
    is_int(device_open("cpu", &d, &e), OK, "the CPU is always there");
    is_str(d ? d->table->kind : NULL, "cpu", "by its name");
    device_close(d);
    setenv("MEMTIDE_CUDA", "/nowhere/plugin.so", 1);
    is_int(device_open("cuda:0", &d, &e), ERR_UNSUPPORTED, "without the plugin there is no GPU");
    has_text(e.text, "'cuda:0' is not available: the CUDA plugin is missing: looked for /nowhere/plugin.so",
             "and the reason says where it was looked for");
    is_int(device_open("cuda:h200", &d, &e), ERR_UNSUPPORTED, "nor a described one");
    setenv("MEMTIDE_CUDA", "Makefile", 1);
    is_int(device_open("cuda", &d, &e), ERR_UNSUPPORTED, "a file that is no library");
    has_text(e.text, "the CUDA plugin cannot be loaded: ", "is told in the loader's words");
    is_int(device_open("tpu", &d, &e), ERR_SCRIPT, "an unknown name is a mistake in the script");
    has_text(e.text, "'tpu': expected cpu, cuda:N or cuda:NAME", "and the message lists what is known");
    is_int(device_open("cudax", &d, &e), ERR_SCRIPT, "cudax is not cuda");
}

int main(void) {
    test_limit();
    test_refusals();
    test_peak();
    test_dry();
    test_open();
    return tap_done();
}
