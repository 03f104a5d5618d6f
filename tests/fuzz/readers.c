/* readers.c: libFuzzer's entry, and the targets that are readers of the core. FUZZ_TARGET says which; FUZZ_DIR is a
 * folder for the files that are read (best in memory). make fuzz-readers runs them all. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/csv.h"
#include "io/data.h"
#include "fuzz.h"
#include "base/mem.h"
#include "io/pickle.h"
#include "io/row.h"
#include "io/safetensors.h"
#include "io/snapshot.h"
#include "io/state_dict.h"

_Noreturn void fuzz_failed(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("fuzz: ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

const char *fuzz_file(int i, const uint8_t *data, size_t n) {
    static char path[2][256];
    const char *folder = getenv("FUZZ_DIR");
    snprintf(path[i], sizeof path[i], "%s/%d.%d", folder ? folder : "/tmp", (int)getpid(), i);
    int fd = open(path[i], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd)) fuzz_failed("%s cannot be written", path[i]);
    return path[i];
}

/* ---- datasets */

static void use_loader(Dataset *d, size_t sample, size_t target) {
    Err e;
    Loader *l = NULL;
    int64_t count;
    double mean = 0.5, deviation = 0.25;
    dataset_normalize(d, &mean, &deviation, 1, &e);
    if (loader_open(d, &(LoaderOptions){.batch = 4, .shuffle = true, .seed = 7}, &l, &e)) return;
    float *x = calloc(sample * 4, sizeof *x), *t = calloc(target * 4, sizeof *t);
    for (int i = 0; i < 3 && x && t && !loader_next(l, x, t, &count, &e); i++)
        if (count < 0 || count > 4) fuzz_failed("%lld samples in a batch of 4", (long long)count);
    loader_close(l);
    free(x);
    free(t);
}

/* What a reader said and gave: a file that it takes can be used. */
static void use_dataset(int code, Dataset *d, const Err *e) {
    enum { LARGEST = 1 << 18, SAMPLES = 50 };
    if (code && !e->text[0]) fuzz_failed("an error without text");
    if (code) return;
    Shape s = dataset_sample(d), t = dataset_target(d);
    int64_t sample = shape_elements(&s), target = t.rank ? shape_elements(&t) : 1, count = dataset_count(d);
    if (sample < 1 || target < 1 || count < 1 || !dataset_text(d)) fuzz_failed("a dataset without samples");
    if (sample <= LARGEST && target <= LARGEST) {
        Err again;
        float *x = calloc((size_t)sample, sizeof *x), *y = calloc((size_t)target, sizeof *y);
        for (int64_t i = 0; i < count && i < SAMPLES && x && y; i++)
            if (dataset_get(d, i, x, y, &again)) fuzz_failed("%s", again.text);
        if (x && y && dataset_get(d, count - 1, x, y, &again)) fuzz_failed("%s", again.text);
        free(x);
        free(y);
        use_loader(d, (size_t)sample, (size_t)target);
    }
    dataset_free(d);
}

/* The first two bytes say where the first of two files ends. */
static const uint8_t *split(const uint8_t *data, size_t *n, size_t *first) {
    if (*n < 2) return NULL;
    *n -= 2;
    *first = (size_t)(data[0] | data[1] << 8) % (*n + 1);
    return data + 2;
}

static void run_idx(const uint8_t *data, size_t n) {
    Err e = {0};
    Dataset *d = NULL;
    size_t first;
    const uint8_t *files = split(data, &n, &first);
    if (!files) return;
    const char *images = fuzz_file(0, files, first), *labels = fuzz_file(1, files + first, n - first);
    int code = dataset_idx(images, labels, &d, &e);
    use_dataset(code, d, &e);
}

static void run_gz(const uint8_t *data, size_t n) {
    static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4};
    Err e = {0};
    Dataset *d = NULL;
    const char *images = fuzz_file(0, data, n);
    int code = dataset_idx(images, fuzz_file(1, labels, sizeof labels), &d, &e);
    use_dataset(code, d, &e);
}

static void run_cifar(const uint8_t *data, size_t n) {
    Err e = {0};
    Dataset *d = NULL;
    const char *path = fuzz_file(0, data, n);
    int code = dataset_cifar10(&path, 1, &d, &e);
    use_dataset(code, d, &e);
}

static void run_npy(const uint8_t *data, size_t n) {
    Err e = {0};
    Dataset *d = NULL;
    int code = dataset_npy(fuzz_file(0, data, n), NULL, -100, &d, &e);
    use_dataset(code, d, &e);
}

static void run_npy_pair(const uint8_t *data, size_t n) {
    Err e = {0};
    Dataset *d = NULL;
    size_t first;
    const uint8_t *files = split(data, &n, &first);
    if (!files) return;
    const char *x = fuzz_file(0, files, first), *y = fuzz_file(1, files + first, n - first);
    int code = dataset_npy(x, y, -100, &d, &e);
    use_dataset(code, d, &e);
}

static void run_tar(const uint8_t *data, size_t n) {
    Err e = {0};
    Dataset *d = NULL;
    const char *path = fuzz_file(0, data, n);
    int code = dataset_tar(&path, 1, &d, &e);
    use_dataset(code, d, &e);
}

static void run_text(const uint8_t *data, size_t n) {
    Err e = {0};
    Dataset *d = NULL;
    int code = dataset_text_file(fuzz_file(0, data, n), 1 + (int64_t)(n % 5), 1 + (int64_t)(n % 3), &d, &e);
    use_dataset(code, d, &e);
}

/* ---- safetensors */

static void use_tensor(Safetensors *s, const Tensor *t) {
    Err e;
    uint32_t sum;
    int64_t count = 1;
    Shape other = shape1(3);
    size_t one = tensor_type_size(t->type);
    if (safetensors_find(s, t->name) != t) fuzz_failed("a tensor that is not found under its name");
    for (int i = 0; i < t->rank; i++) count *= t->dim[i];
    if (one && (size_t)count * one != t->bytes) fuzz_failed("a tensor of %zu bytes with another shape", t->bytes);
    char *bytes = malloc(t->bytes + 1);
    float *values = malloc(one ? t->bytes / one * sizeof *values + 1 : 1);
    if (bytes) safetensors_read_bytes(s, t, bytes, &e);
    if (values) safetensors_read(s, t, DT_F32, values, &e);
    if (values) safetensors_read(s, t, DT_I32, values, &e);
    free(bytes);
    free(values);
    safetensors_checksum(s, t, &sum, &e);
    safetensors_check_shape(s, t, &other, &e);
}

/* What a reader said and gave, of a file of n bytes */
static void use_tensors(int code, Safetensors *s, const Err *e, size_t n) {
    int tensors, pairs;
    if (code && !e->text[0]) fuzz_failed("an error without text");
    if (code) return;
    const Tensor *t = safetensors_tensors(s, &tensors);
    const Pair *p = safetensors_metadata(s, &pairs);
    size_t bytes = 0;
    for (int i = 0; i < pairs; i++) bytes += strlen(p[i].key) + strlen(p[i].value);
    if (bytes > n) fuzz_failed("more metadata than there are bytes");
    for (int i = 0; i < tensors; i++) use_tensor(s, &t[i]);
    safetensors_close(s);
}

static void run_safetensors(const uint8_t *data, size_t n) {
    Err e = {0};
    Safetensors *s = NULL;
    const int code = safetensors_open(fuzz_file(0, data, n), &s, &e);
    use_tensors(code, s, &e, n);
}

static void run_state_dict(const uint8_t *data, size_t n) {
    Err e = {0};
    Safetensors *s = NULL;
    const int code = state_dict_open(fuzz_file(0, data, n), &s, &e);
    use_tensors(code, s, &e, n);
}

/* ---- pickles */

/* Looks at what the value holds, at most `room` values: a few bytes can make billions. */
static void use_value(const Pickle *p, PickleValue v, int depth, int *room) {
    PickleKind kind = pickle_kind(v);
    size_t n = pickle_count(v);
    if (kind == PICKLE_ABSENT || kind >= PICKLE_KIND_COUNT) fuzz_failed("a value that is none");
    if (kind == PICKLE_TEXT || kind == PICKLE_BYTES) {
        if (pickle_text(v)[n]) fuzz_failed("a text without an end");
    } else if (depth > 0) {
        for (size_t i = 0; i < n && --*room > 0; i++) {
            if (kind == PICKLE_DICT) use_value(p, pickle_key(v, i), 0, room);
            use_value(p, pickle_item(v, i), depth - 1, room);
        }
    }
    pickle_get(v, pickle_find(p, "frames"));
    if (pickle_int(v) && kind != PICKLE_INT && kind != PICKLE_BOOL) fuzz_failed("a number that is none");
}

static void run_pickle(const uint8_t *data, size_t n) {
    Err e = {0};
    Pickle *p = NULL;
    int room = 10000, code = pickle_open(fuzz_file(0, data, n), &p, &e);
    if (code && !e.text[0]) fuzz_failed("an error without text");
    if (code) return;
    use_value(p, pickle_root(p), 50, &room);
    pickle_close(p);
}

/* What is taken is a trace that holds together, and can be replayed. */
static void run_snapshot(const uint8_t *data, size_t n) {
    Err e = {0};
    Snapshot *s = NULL;
    Device *cpu = NULL, *dry = NULL;
    Ledger ledger;
    SnapshotReplay replay;
    int code = snapshot_open(fuzz_file(0, data, n), -1, &s, &e);
    if (code && !e.text[0]) fuzz_failed("an error without text");
    if (code) return;
    if (device_open("cpu", &cpu, &e) || device_dry_open(cpu, &dry, &e)) fuzz_failed("no device: %s", e.text);
    ledger_open(&ledger, dry, 0);
    bool *alive = calloc((size_t)s->trace.n_tensors + 1, 1);
    for (int i = 0; i < s->trace.n_events && alive; i++) {
        int what = s->trace.events[i], tensor = what < 0 ? ~what : what;
        if (tensor >= s->trace.n_tensors || alive[tensor] == (what >= 0)) fuzz_failed("event %d makes no sense", i);
        alive[tensor] = what >= 0;
    }
    free(alive);
    if (!snapshot_replay(s, &ledger, &replay, NULL, &e) && replay.peak.allocated < replay.peak.requested)
        fuzz_failed("blocks smaller than what is in them");
    if (ledger_check_zero(&ledger, &e)) fuzz_failed("%s", e.text);
    device_close(dry);
    device_close(cpu);
    snapshot_close(s);
}

/* ---- results */

static Csv *open_results(const char *path, const Row *row, bool *torn) {
    Err e = {0};
    Csv *c = NULL;
    *torn = false;
    int code = csv_open(path, row, &c, torn, &e);
    for (const char *p = e.text; *p && code; p++)
        if ((unsigned char)*p < ' ') fuzz_failed("a message with control characters");
    if (code && !e.text[0]) fuzz_failed("an error without text");
    return code ? NULL : c;
}

static void expect_row(Csv *c) {
    const char *status = csv_status(c, "abc-1-2", 1);
    if (!status || strcmp(status, "ok")) fuzz_failed("a row that was appended is not found");
}

/* What was taken and appended to is taken again, with as many rows and no torn line. */
static void run_csv(const uint8_t *data, size_t n) {
    static const char *const axes[] = {"width"};
    char torn_path[300];
    Err e = {0};
    bool torn;
    const char *path = fuzz_file(0, data, n);
    Row *row = row_new(axes, 1, &e);
    Csv *c = row ? open_results(path, row, &torn) : NULL;
    if (c) {
        row_set_text(row, "cell", "abc-1-2", &e);
        row_set_int(row, "repeat", 1, &e);
        row_set_text(row, "status", "ok", &e);
        csv_value(c, "aa", 1, "reason");
        csv_value(c, "", 0, "nothing");
        int64_t before = csv_rows(c);
        if (csv_append(c, row, &e)) fuzz_failed("a row cannot be appended: %s", e.text);
        expect_row(c);
        int64_t rows = csv_rows(c);
        if (rows < before) fuzz_failed("%lld rows became %lld", (long long)before, (long long)rows);
        csv_close(c);
        c = open_results(path, row, &torn);
        if (!c || torn || csv_rows(c) != rows) fuzz_failed("the file that was written is another");
        expect_row(c);
        csv_close(c);
        snprintf(torn_path, sizeof torn_path, "%s.torn", path);
        unlink(torn_path);
    }
    row_free(row);
}

/* ---- */

static const Target targets[] = {
    {"idx", run_idx, NULL}, {"gz", run_gz, mutate_gz}, {"cifar", run_cifar, NULL}, {"npy", run_npy, mutate_number},
    {"npy_pair", run_npy_pair, mutate_number}, {"tar", run_tar, mutate_tar}, {"text", run_text, NULL},
    {"safetensors", run_safetensors, mutate_header}, {"state_dict", run_state_dict, NULL}, {"csv", run_csv, mutate_number},
    {"pickle", run_pickle, NULL}, {"snapshot", run_snapshot, mutate_number},
    {"describe", fuzz_describe, mutate_number},
    {"state", fuzz_state, mutate_header}, {"wire", fuzz_wire, mutate_frame}, {"list", fuzz_list, mutate_number},
};
static const Target *target;

/* --targets: their names */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = getenv("FUZZ_TARGET");
    bool list = *argc > 1 && !strcmp((*argv)[1], "--targets");
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        if (list) puts(targets[i].name);
        if (name && !strcmp(targets[i].name, name)) target = &targets[i];
    }
    if (list) exit(0);
    if (!target) fuzz_failed("FUZZ_TARGET names none of the targets");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static bool warm; /* what Lua's targets keep is there from the first run on */
    long live = mem_live();
    target->run(data, n);
    if (warm && mem_live() != live) fuzz_failed("%ld allocations became %ld", live, mem_live());
    warm = true;
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed) {
    size_t changed = target->mutate && seed % 3 ? target->mutate(data, n, most, seed) : 0;
    return changed ? changed : LLVMFuzzerMutate(data, n, most);
}
