/* Data sets: what valid files become, and that no malformed one crashes, leaks or is taken for valid. */
#include <fcntl.h>
#include <sys/stat.h>

#include "data_files.h"

enum { IMAGES = 5, HIGH = 2, WIDE = 3, PIXELS = HIGH * WIDE };

static Err e;

/* IDX bytes of these sizes (ending with 0), element i being (7 i) % below */
static Blob blob_idx(const int *sizes, int below) {
    Blob b = {.n = 4};
    unsigned count = 1;
    b.at[2] = 8;
    for (; sizes[b.at[3]]; b.at[3]++) {
        unsigned n = (unsigned)sizes[b.at[3]];
        unsigned char big[4] = {
            (unsigned char)(n >> 24), (unsigned char)(n >> 16), (unsigned char)(n >> 8), (unsigned char)n};
        blob_add(&b, big, 4);
        count *= n;
    }
    for (unsigned i = 0; i < count; i++) b.at[b.n++] = (unsigned char)(7 * i % (unsigned)below);
    return b;
}

static Blob images(void) { return blob_idx((const int[]){IMAGES, HIGH, WIDE, 0}, 256); }
static Blob labels(void) { return blob_idx((const int[]){IMAGES, 0}, 4); }

static Blob cifar(void) {
    Blob b = {.n = 2 * 3073};
    for (size_t i = 0; i < b.n; i++) b.at[i] = (unsigned char)(i % 251);
    b.at[0] = 3;
    b.at[3073] = 9;
    return b;
}

/* .npy of this version, header text and data */
static Blob npy(int major, const char *dict, const void *data, size_t n) {
    Blob b = {.at = "\x93NUMPY", .n = major == 1 ? 10 : 12};
    char text[200];
    int length = snprintf(text, sizeof text, "%s%*s\n", dict, 5, "");
    b.at[6] = (unsigned char)major;
    b.at[8] = (unsigned char)length;
    blob_add(&b, text, (size_t)length);
    blob_add(&b, data, n);
    return b;
}

static const float reals[6] = {0, 1.5f, -2, 3.25f, 1e-30f, 7};
static Blob npy_x(void) {
    return npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", reals, sizeof reals);
}

static int open_idx(Dataset **d) { return dataset_idx(path_x, path_y, d, &e); }
static int open_cifar(Dataset **d) { return dataset_cifar10((const char *const[]){path_x}, 1, d, &e); }
static int open_npy(Dataset **d) { return dataset_npy(path_x, NULL, -100, d, &e); }
static int open_npy_y(Dataset **d) { return dataset_npy(path_x, path_y, -100, d, &e); }

/* `b` as path_x (or path_y) is refused with this text and leaves nothing behind */
static void refused(int (*open)(Dataset **), const char *path, const Blob *b, bool gz, const char *text) {
    Dataset *d = NULL;
    long live = mem_live();
    blob_write(path, b, b->n, gz);
    int code = open(&d);
    if (!ok(code == ERR_FORMAT && !d && mem_live() == live && strstr(e.text, text) && strstr(e.text, path),
            "%srefused: %s", gz ? "gz " : "", text))
        printf("# code %d: %s; %ld live\n", code, code ? e.text : "", mem_live() - live);
    dataset_free(d);
}

static void test_idx(bool gz) {
    Blob x = images(), y = labels();
    float sample[PIXELS];
    int32_t label;
    int wrong = 0;
    Dataset *d = NULL;
    blob_write(path_x, &x, x.n, gz);
    blob_write(path_y, &y, y.n, gz);
    if (!ok(open_idx(&d) == OK, "idx opens%s", gz ? " compressed" : "")) { printf("# %s\n", e.text); return; }
    Shape expected = {3, {1, HIGH, WIDE, 1}}, found = dataset_sample(d), target = dataset_target(d);
    ok(dataset_count(d) == IMAGES && shape_equal(&found, &expected) && target.rank == 0 && dataset_classes(d) == 4,
        "its sizes");
    for (int i = 0; i < IMAGES; i++) {
        dataset_get(d, i, sample, &label, &e);
        wrong += label != 7 * i % 4;
        for (int k = 0; k < PIXELS; k++) wrong += sample[k] != (float)(7 * (i * PIXELS + k) % 256) / 255.0f;
    }
    is_int(wrong, 0, "every pixel is value / 255, every label as written");
    is_str(dataset_text(d), "idx 5x1x2x3 40bb0efc5b3b21b4",
        "its text: FNV-1a of classes, pixels, labels, plain and compressed alike");
    dataset_free(d);
}

static void test_idx_channels(void) {
    Blob x = blob_idx((const int[]){IMAGES, 3, HIGH, WIDE, 0}, 256), y = labels();
    Shape expected = {3, {3, HIGH, WIDE, 1}};
    Dataset *d = NULL;
    blob_write(path_x, &x, x.n, false);
    blob_write(path_y, &y, y.n, false);
    ok(open_idx(&d) == OK, "idx of rank 4 opens");
    Shape found = dataset_sample(d);
    ok(shape_equal(&found, &expected), "its samples have channels");
    dataset_free(d);
}

static void test_idx_refused(bool gz) {
    Blob x = images(), y = labels(), b;
    blob_write(path_y, &y, y.n, gz);
#define CHANGED(original, change, text, where) \
    b = original; \
    change; \
    refused(open_idx, where, &b, gz, text)
    CHANGED(x, b.at[0] = 1, "(magic 00 00 08 03), found 01 00 08 03", path_x);
    CHANGED(x, b.at[2] = 13, "found 00 00 0d 03", path_x);
    CHANGED(x, b.at[3] = 2, "found 00 00 08 02", path_x);
    CHANGED(x, b.at[3] = 5, "found 00 00 08 05", path_x);
    CHANGED(x, b.n = 0, "expected 4 bytes of magic number, found 0", path_x);
    CHANGED(x, b.n = 9, "expected 4 bytes of sizes, found 1", path_x);
    CHANGED(x, b.n--, "too short: expected 30 bytes for the shape (5, 2, 3) of its header, found 29", path_x);
    CHANGED(x, b.n++, gz ? "expected 30 bytes for the shape (5, 2, 3) of its header, found at least 31"
                         : "too long: expected 30 bytes for the shape (5, 2, 3) of its header, found 31", path_x);
    CHANGED(x, memset(b.at + 4, 0, 4), "shape (0, 2, 3): expected sizes from 1", path_x);
    CHANGED(x, memset(b.at + 4, 255, 4), "shape (4294967295, 2, 3): expected sizes from 1", path_x);
    CHANGED(x, memset(b.at + 5, 100, 11),
            gz ? "expected at most 8589934592 bytes" : "expected at most 9223372036854775807 bytes", path_x);
    CHANGED(x, b.at[5] = 64, "too short: expected 25165854 bytes", path_x);
    blob_write(path_x, &x, x.n, gz);
    CHANGED(blob_idx(((const int[]){IMAGES + 1, 0}), 4), (void)0, "expected 5 labels, one for each image", path_y);
    CHANGED(images(), (void)0, "(magic 00 00 08 01), found 00 00 08 03", path_y);
#undef CHANGED
}

static void test_cifar(void) {
    Blob b = cifar(), broken;
    static float x[3072];
    int32_t label;
    int wrong = 0;
    Dataset *d = NULL;
    blob_write(path_x, &b, b.n, false);
    blob_write(path_y, &b, b.n, true);
    const char *const both[] = {path_x, path_y};
    ok(dataset_cifar10(both, 2, &d, &e) == OK && dataset_count(d) == 4 && dataset_classes(d) == 10,
        "cifar10: two files, one compressed");
    for (int i = 0; i < 4; i++) {
        dataset_get(d, i, x, &label, &e);
        wrong += label != (i % 2 ? 9 : 3);
        for (int k = 0; k < 3072; k++) wrong += x[k] != (float)((i % 2 * 3073 + 1 + k) % 251) / 255.0f;
    }
    is_int(wrong, 0, "every value");
    dataset_free(d);
    for (int gz = 0; gz < 2; gz++) {
        broken = b;
        broken.n--;
        refused(open_cifar, path_x, &broken, gz, "expected a multiple of 3073 bytes, found 6145");
        broken.n += 2;
        refused(open_cifar, path_x, &broken, gz, "expected a multiple of 3073 bytes, found 6147");
        broken.n = 0;
        refused(open_cifar, path_x, &broken, gz, "expected a multiple of 3073 bytes, found 0");
        broken = b;
        broken.at[3073] = 10;
        refused(open_cifar, path_x, &broken, gz, "record 2: expected a label from 0 to 9, found 10");
    }
    is_int(dataset_cifar10(both, 0, &d, &e), ERR_SCRIPT, "cifar10 of no files is refused");
}

/* x and y as given; the fp32 values and, for labels, the numbers */
static void npy_is(const Blob *x, const Blob *y, const float *values, const int *numbers, const char *what) {
    Dataset *d = NULL;
    float got[2];
    int32_t label = 0;
    int wrong = 0;
    blob_write(path_x, x, x->n, false);
    if (y) blob_write(path_y, y, y->n, false);
    if (!ok((y ? open_npy_y(&d) : open_npy(&d)) == OK, "npy: %s", what)) { printf("# %s\n", e.text); return; }
    for (int i = 0; i < 3; i++) {
        dataset_get(d, i, got, &label, &e);
        wrong += memcmp(got, values + 2 * i, sizeof got) != 0 || (numbers && label != numbers[i]);
    }
    Shape s = dataset_sample(d);
    ok(wrong == 0 && dataset_count(d) == 3 && s.rank == 1 && s.dim[0] == 2, "its values and sizes");
    is_int(dataset_classes(d), numbers ? 8 : 0, "its classes");
    dataset_free(d);
}

static void test_npy(void) {
    const double doubles[] = {0, 1.5, -2, 3.25, 1e-30, 7};
    const unsigned char bytes[] = {0, 1, 2, 3, 254, 255};
    const int64_t longs[] = {0, -1, 1 << 24, 3, 4, 5}, long_labels[] = {7, 0, 5};
    const int32_t ints[] = {0, -1, 1 << 24, 3, 4, 5}, int_labels[] = {7, 0, 5};
    const unsigned char byte_labels[] = {7, 0, 5};
    const float from_bytes[] = {0, 1, 2, 3, 254, 255}, from_ints[] = {0, -1, 16777216, 3, 4, 5};
    const int numbers[] = {7, 0, 5};
    Blob f4 = npy_x(), x, y;
#define DICT(type, shape) "{'descr': '" type "', 'fortran_order': False, 'shape': " shape ", }"
    npy_is(&f4, NULL, reals, NULL, "float32 without targets");
    x = npy(2, "{\"shape\":(3,2),\"fortran_order\":False,\"descr\":\"<f8\"}", doubles, sizeof doubles);
    y = npy(1, DICT("<i8", "(3,)"), long_labels, sizeof long_labels);
    npy_is(&x, &y, reals, numbers, "float64, version 2.0, another order of keys; int64 labels");
    x = npy(3, DICT("|u1", "(3, 2)"), bytes, sizeof bytes);
    y = npy(1, DICT("<i4", "(3,)"), int_labels, sizeof int_labels);
    npy_is(&x, &y, from_bytes, numbers, "uint8, version 3.0; int32 labels");
    x = npy(1, DICT("<i8", "(3, 2)"), longs, sizeof longs);
    y = npy(1, DICT("|u1", "(3,)"), byte_labels, sizeof byte_labels);
    npy_is(&x, &y, from_ints, numbers, "int64; uint8 labels");
    x = npy(1, DICT("<i4", "(3, 2)"), ints, sizeof ints);
    npy_is(&x, NULL, from_ints, NULL, "int32");

    Dataset *d = NULL;
    float got, target[2];
    x = npy(1, DICT("<f4", "(3,)"), reals, 12);
    y = npy(1, DICT("<f8", "(3, 2)"), doubles, sizeof doubles);
    blob_write(path_x, &x, x.n, false);
    blob_write(path_y, &y, y.n, true);
    ok(open_npy_y(&d) == OK, "npy: one value per sample, two float64 targets");
    dataset_get(d, 1, &got, target, &e);
    Shape s = dataset_sample(d), t = dataset_target(d);
    ok(s.rank == 1 && s.dim[0] == 1 && t.rank == 1 && t.dim[0] == 2 && dataset_classes(d) == 0, "its sizes");
    ok(got == 1.5f && target[0] == -2 && target[1] == 3.25f, "its values");
    dataset_free(d);
}

static void test_npy_refused(void) {
    static const struct { const char *dict, *text; } headers[] = {
        {DICT(">f4", "(3, 2)"), "found '>f4' (big endian)"},
        {DICT("|O", "(3, 2)"), "found '|O' (Python objects)"},
        {DICT("<f2", "(3, 2)"), "expected elements of type '<f4', '<f8', '|u1', '<i4' or '<i8', found '<f2'"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }", "expected a string, found \"[('a', "},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }",
            "expected an array in C order, found Fortran order"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (3, 2), }", "expected True or False"},
        {"{'descr': '<f4', 'fortran_order': False}", "expected descr, fortran_order and shape, found only some"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", "'descr' is there twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), 'more': 1}", "found 'more'"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (3, 2)}", "expected a comma"},
        {"{'descr' '<f4', 'fortran_order': False, 'shape': (3, 2)}", "expected a colon"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2)} + 1",
            "expected nothing after the dict, found \"+ 1"},
        {"'descr'", "expected a dict"},
        {"{'descr: '<f4'}", "found 'descr: '"},
        {"{'descr", "expected a short string"},
        {DICT("<f4", "3"), "expected a shape in parentheses"},
        {DICT("<f4", "(6)"), "expected a comma in a shape of one size"},
        {DICT("<f4", "(3 2)"), "expected a comma"},
        {DICT("<f4", "(-3, 2)"), "expected a size, found \"-3"},
        {DICT("<f4", "()"), "expected an array of 1 to 4 dimensions, found a number"},
        {DICT("<f4", "(1, 1, 3, 1, 2)"), "expected an array of 1 to 4 dimensions, found more"},
        {DICT("<f4", "(3, 0)"), "shape (3, 0): expected sizes from 1"},
        {DICT("<f4", "(99999999999999999999999, 2)"), "expected sizes from 1 to 2147483647"},
        {DICT("<f4", "(2147483647, 2147483647)"), "expected at most 9223372036854775807 bytes"},
        {DICT("<f4", "(3, 3)"), "too short: expected 36 bytes for the shape (3, 3) of its header, found 24"},
        {DICT("<f4", "(3, 1)"), "too long: expected 12 bytes for the shape (3, 1) of its header, found 24"},
    };
    Blob b;
    for (size_t i = 0; i < ARRAY_LEN(headers); i++) {
        b = npy(1, headers[i].dict, reals, sizeof reals);
        refused(open_npy, path_x, &b, false, headers[i].text);
    }
    b = npy_x();
    b.at[1] = 'M';
    refused(open_npy, path_x, &b, false, "found 93 4d 55 4d 50 59, 1.0");
    b = npy_x();
    b.at[6] = 4;
    refused(open_npy, path_x, &b, true, "expected \\x93NUMPY and version 1.0, 2.0 or 3.0");
    b = npy_x();
    b.at[9] = 0x28;
    refused(open_npy, path_x, &b, false, "expected an npy header of at most 10000 bytes, found 10");
    b = npy(1, DICT("<i4", "(1, 1)"), (const int32_t[]){16777217}, 4);
    refused(
        open_npy, path_x, &b, false, "element 0: expected a whole number from -16777216 to 16777216, found 16777217");
}

/* Labels of several places of a sample, of which one number is no class. */
static void test_npy_ignored(void) {
    const int64_t longs[] = {2, -100, 0, 1, -100, -100};
    const unsigned char bytes[] = {2, 255, 0, 1, 255, 255};
    const struct { int32_t ignored; int classes; Blob y; const char *what; } cases[] = {
        {-100, 3, npy(1, DICT("<i8", "(3, 2)"), longs, sizeof longs), "int64, -100"},
        {255, 3, npy(1, DICT("|u1", "(3, 2)"), bytes, sizeof bytes), "bytes, 255"},
        {-100, 256, npy(1, DICT("|u1", "(3, 2)"), bytes, sizeof bytes), "bytes, 255 counts"},
    };
    Blob x = npy_x();
    blob_write(path_x, &x, x.n, false);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Dataset *d = NULL;
        float sample[2];
        int32_t labels[2] = {7, 7};
        blob_write(path_y, &cases[i].y, cases[i].y.n, false);
        if (!ok(!dataset_npy(path_x, path_y, cases[i].ignored, &d, &e), "npy labels of two places: %s", cases[i].what)) continue;
        const Shape t = dataset_target(d);
        ok(t.rank == 1 && t.dim[0] == 2, "their shape");
        is_int(dataset_classes(d), cases[i].classes, "classes, without what is ignored");
        ok(!dataset_get(d, 1, sample, labels, &e) && labels[0] == 0 && labels[1] == 1, "the second sample's");
        ok(!dataset_get(d, 2, sample, labels, &e) && labels[0] == (i ? 255 : -100), "what is ignored");
        dataset_free(d);
    }
}

static void test_npy_targets_refused(void) {
    const int32_t three[] = {0, 1, -1};
    const int64_t wide[] = {0, INT64_C(1) << 40, 1}, none[] = {-100, -100, -100};
    Blob x = npy_x(), b;
    blob_write(path_x, &x, x.n, false);
    b = npy(1, DICT("<i4", "(2,)"), three, 8);
    refused(open_npy_y, path_y, &b, false, "expected 3 targets, one for each sample, found 2");
    b = npy(1, DICT("<i4", "(3,)"), three, 12);
    refused(open_npy_y, path_y, &b, true, "element 2: expected a label from 0 to 2147483646 or ignore_index = -100, found -1");
    b = npy(1, DICT("<i8", "(3,)"), wide, 24);
    refused(open_npy_y, path_y, &b, false, "element 1: expected a label from 0 to 2147483646 or ignore_index = -100, found 1099511627776");
    b = npy(1, DICT("<i8", "(3,)"), none, 24);
    refused(open_npy_y, path_y, &b, false, "expected labels, found only ignore_index = -100");
}

/* The file's own bytes, which for a compressed one are not what was written. */
static Blob file_bytes(const char *path) {
    Blob b = {.n = 0};
    FILE *f = fopen(path, "rb");
    if (f) {
        b.n = fread(b.at, 1, sizeof b.at, f);
        fclose(f);
    }
    return b;
}

/* Every prefix is refused; every changed byte gives a set or a refusal, never a leak (nor, under the sanitizers, a
 * stray access). */
static void test_damage(int (*open)(Dataset **), const char *path, const char *what) {
    Blob b = file_bytes(path), c;
    Dataset *d = NULL;
    long live = mem_live();
    size_t step = b.n > 1000 ? 61 : 1;
    int taken = 0, odd = 0;
    for (size_t n = 0; n < b.n; n += step) {
        blob_write(path, &b, n, false);
        taken += open(&d) != ERR_FORMAT || d;
    }
    ok(b.n > 0 && taken == 0 && mem_live() == live, "%s: no prefix of its %zu bytes is taken, none leaks", what, b.n);
    for (size_t i = 0; i < b.n && i < 140; i++)
        for (int bit = 0; bit < 8; bit++) {
            c = b;
            c.at[i] ^= (unsigned char)(1 << bit);
            blob_write(path, &c, c.n, false);
            int code = open(&d);
            odd += code == OK ? !d : code != ERR_FORMAT || d;
            if (code == OK) dataset_free(d);
            d = NULL;
        }
    ok(odd == 0 && mem_live() == live, "%s: a changed bit gives a set or a refusal, never a leak", what);
    blob_write(path, &b, b.n, false);
}

/* Every allocation fails once. */
static void test_memory(int (*open)(Dataset **), const char *what) {
    Dataset *d = NULL;
    long live = mem_live(), n = 0;
    int code, wrong = 0;
    do {
        mem_fail_after(++n);
        code = open(&d);
        if (code) wrong += code != ERR_HOST_MEMORY || d || mem_live() != live;
    } while (code && n < 100);
    mem_fail_after(0);
    dataset_free(d);
    ok(n > 1 && n < 100 && !wrong && mem_live() == live, "%s: %ld allocations, each failing once, leave nothing", what,
        n - 1);
}

static void test_each_format(bool gz) {
    char what[40];
    Blob x = images(), y = labels(), c = cifar(), n = npy_x();
    blob_write(path_x, &x, x.n, gz);
    blob_write(path_y, &y, y.n, gz);
    snprintf(what, sizeof what, "idx%s", gz ? ".gz" : "");
    test_memory(open_idx, what);
    test_damage(open_idx, path_x, what);
    test_damage(open_idx, path_y, what);
    snprintf(what, sizeof what, "npy%s", gz ? ".gz" : "");
    blob_write(path_x, &n, n.n, gz);
    n = npy(1, DICT("|u1", "(3,)"), "\1\2\3", 3);
    blob_write(path_y, &n, n.n, gz);
    test_memory(open_npy_y, what);
    test_damage(open_npy_y, path_x, what);
    test_damage(open_npy_y, path_y, what);
    snprintf(what, sizeof what, "cifar10%s", gz ? ".gz" : "");
    blob_write(path_x, &c, 3073, gz);
    test_memory(open_cifar, what);
    test_damage(open_cifar, path_x, what);
}

static int open_files(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* A file that is not what it was when it was opened gives an error with its name, and never a wrong sample. */
static void test_changed(void) {
    Blob b = cifar();
    Dataset *d = NULL;
    static float x[3072];
    int32_t label;
    const struct timespec other[2] = {{1, 0}, {1, 0}};
    int before = open_files();
    blob_write(path_x, &b, b.n, false);
    ok(open_cifar(&d) == OK && open_files() == before + 1, "a plain file stays open");
    ok(!unlink(path_x) && dataset_get(d, 1, x, &label, &e) == OK && label == 9, "and is read though its name is gone");
    dataset_free(d);
    is_int(open_files(), before, "until the dataset is freed");

    blob_write(path_x, &b, b.n, false);
    ok(open_cifar(&d) == OK && !truncate(path_x, 4000), "a file that is cut off");
    is_int(dataset_get(d, 1, x, &label, &e), ERR_FILE, "cannot be read");
    has_text(e.text, "/x: expected 3072 bytes at byte 3074, found 926: the file was cut off after it was opened", "so");
    is_int(dataset_get(d, 0, x, &label, &e), ERR_FILE, "nor can samples that are still there");
    has_text(e.text, "/x: the file was changed after it was opened", "as said");
    dataset_free(d);

    blob_write(path_x, &b, b.n, false);
    ok(open_cifar(&d) == OK && !utimensat(AT_FDCWD, path_x, other, 0), "a file that is written to");
    is_int(dataset_get(d, 0, x, &label, &e), ERR_FILE, "cannot be read");
    dataset_free(d);

    blob_write(path_x, &b, b.n, false);
    ok(open_cifar(&d) == OK && !dataset_cache(d, &e) && open_files() == before && !truncate(path_x, 10) &&
        !dataset_get(d, 1, x, &label, &e) && label == 9 && x[0] == (float)(3074 % 251) / 255.0f,
        "a file that is cached is not needed");
    dataset_free(d);
    blob_write(path_x, &b, b.n, false);
    ok(open_cifar(&d) == OK && !truncate(path_x, 4000), "a file that is cut off");
    is_int(dataset_cache(d, &e), ERR_FILE, "cannot be cached");
    dataset_free(d);

    blob_write(path_x, &b, b.n, true);
    ok(open_cifar(&d) == OK && open_files() == before && !truncate(path_x, 10) && !dataset_get(d, 1, x, &label, &e) &&
        label == 9, "a compressed file is in memory");
    dataset_free(d);
}

static int open_random(Dataset **d) {
    Shape s = {3, {3, 32, 32, 1}};
    return dataset_random(1000, &s, 10, NULL, 7, d, &e);
}

static void test_random(void) {
    Dataset *d = NULL, *other = NULL;
    Shape s = {3, {3, 32, 32, 1}}, target = shape1(5), odd = shape1(5), bad = {0, {1, 1, 1, 1}};
    static float x[3072], again[3072];
    int32_t label, label_again;
    double sum = 0, squares = 0, fourth = 0;
    int seen[10] = {0}, least = 1000;
    ok(open_random(&d) == OK && dataset_count(d) == 1000 && dataset_classes(d) == 10, "random: labels");
    for (int i = 0; i < 1000; i++) {
        dataset_get(d, i, x, &label, &e);
        if (label >= 0 && label < 10) seen[label]++;
        for (int k = 0; i < 50 && k < 3072; k++) {
            sum += (double)x[k];
            squares += (double)x[k] * (double)x[k];
            fourth += pow((double)x[k], 4);
        }
    }
    is_near(sum / (50 * 3072), 0, 0, 0.01, "mean 0");
    is_near(squares / (50 * 3072), 1, 0.02, 0, "variance 1");
    is_near(fourth / (50 * 3072), 3, 0.05, 0, "fourth moment 3");
    int total = 0;
    for (int c = 0; c < 10; c++) {
        total += seen[c];
        if (seen[c] < least) least = seen[c];
    }
    ok(total == 1000 && least > 60, "every label is there about as often as the others");
    dataset_get(d, 17, x, &label, &e);
    dataset_get(d, 18, again, &label_again, &e);
    ok(memcmp(x, again, sizeof x) != 0, "another sample is another");
    dataset_get(d, 17, again, &label_again, &e);
    ok(!memcmp(x, again, sizeof x) && label == label_again, "a sample is the same again");
    ok(dataset_random(20, &odd, 0, &target, 8, &other, &e) == OK && dataset_classes(other) == 0, "random: targets");
    dataset_get(other, 3, x, again, &e);
    ok(x[4] != 0 && again[4] != 0 && memcmp(x, again, 20) != 0,
        "targets are drawn apart from inputs, also of odd sizes");
    ok(strcmp(dataset_text(d), dataset_text(other)) != 0, "their texts differ");
    dataset_free(d);
    dataset_free(other);
    is_int(dataset_random(0, &s, 10, NULL, 1, &d, &e), ERR_SCRIPT, "no samples: refused");
    is_int(dataset_random(1, &bad, 10, NULL, 1, &d, &e), ERR_SCRIPT, "no dimensions: refused");
    has_text(e.text, "sample (): expected 1 to 3 dimensions", "and says so");
    is_int(dataset_random(1, &s, 0, NULL, 1, &d, &e), ERR_SCRIPT, "neither classes nor target: refused");
    is_int(dataset_random(1, &s, -1, NULL, 1, &d, &e), ERR_SCRIPT, "negative classes: refused");
    bad = shape2(3, 0);
    is_int(dataset_random(1, &s, 0, &bad, 1, &d, &e), ERR_SCRIPT, "an empty target: refused");
    has_text(e.text, "random data: target: shape (3, 0)", "and says which");
}

/* Sequences of 5, 1, 9 and 2 tokens in rows of 4, both ways; the positions are given back. */
static int open_packed(bool wrapped, Dataset **d) {
    static const int32_t token[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
    static const int64_t length[] = {5, 1, 9, 2};
    const Packing how = {.window = 4, .wrapped = wrapped, .shuffle = true, .seed = 3, .tokens = 18, .ignore_index = -100};
    Packed made;
    int code = dataset_packed(&(Sequences){token, length, 4}, &how, &made, &e);
    *d = made.ids;
    dataset_free(made.positions);
    return code;
}

static int open_wrapped(Dataset **d) { return open_packed(true, d); }
static int open_fitted(Dataset **d) { return open_packed(false, d); }

/* Each begins with 0 and counts up to `most` at most; another sample is another. */
static void test_positions(void) {
    enum { ROWS = 50, WIDTH = 64, MOST = 9 };
    Dataset *d = NULL;
    float x[WIDTH], before[WIDTH] = {0};
    int wrong = 0, begins = 0, same = 0;
    ok(dataset_random_positions(ROWS, WIDTH, MOST, 5, &d, &e) == OK && dataset_tokens(d) == MOST, "random positions");
    for (int i = 0; i < ROWS; i++) {
        dataset_get(d, i, x, NULL, &e);
        for (int k = 0; k < WIDTH; k++) {
            wrong += x[k] != 0 && (k == 0 || x[k] != x[k - 1] + 1);
            wrong += x[k] >= MOST;
            begins += x[k] == 0;
        }
        same += !memcmp(x, before, sizeof x);
        memcpy(before, x, sizeof x);
    }
    is_int(wrong, 0, "count up, and begin anew");
    ok(begins > ROWS * WIDTH / MOST && begins < ROWS * WIDTH / 4 && !same, "at places of their own: %d sequences", begins);
    dataset_free(d);
}

static void test_normalize(void) {
    Blob b = cifar();
    Dataset *d = NULL;
    const double mean[] = {0.5, 0.25, 0}, std[] = {0.5, 2, 1}, none[] = {1, 0, 1};
    static float plain[3072], x[3072];
    char before[128], once[128];
    int wrong = 0;
    blob_write(path_x, &b, b.n, false);
    ok(open_cifar(&d) == OK, "a set to normalise");
    snprintf(before, sizeof before, "%s", dataset_text(d));
    dataset_get(d, 1, plain, NULL, &e);
    is_int(dataset_normalize(d, mean, none, 3, &e), ERR_SCRIPT, "a std of 0 is refused");
    has_text(e.text, "channel 1: expected a finite mean and a finite std that is not 0, found 0.25 and 0", "and named");
    is_int(dataset_normalize(d, mean, std, 2, &e), ERR_SCRIPT, "two values for three channels are refused");
    is_str(dataset_text(d), before, "a refusal changes nothing");
    ok(dataset_normalize(d, mean, std, 3, &e) == OK, "three channels");
    dataset_get(d, 1, x, NULL, &e);
    for (int k = 0; k < 3072; k++) wrong += x[k] != (plain[k] - (float)mean[k / 1024]) / (float)std[k / 1024];
    is_int(wrong, 0, "every value is (value - mean) / std of its channel");
    snprintf(once, sizeof once, "%s", dataset_text(d));
    ok(strcmp(before, once) != 0, "the text tells");
    ok(dataset_normalize(d, mean, std, 1, &e) == OK, "one value for all channels");
    dataset_get(d, 1, x, NULL, &e);
    ok(x[3071] == (plain[3071] - 0.5f) / 0.5f, "replaces the former");
    mem_fail_after(1);
    is_int(dataset_normalize(d, mean, std, 3, &e), ERR_HOST_MEMORY, "no memory is an error");
    mem_fail_after(0);
    dataset_free(d);
}

static void test_no_file(void) {
    Dataset *d = NULL;
    unlink(path_x);
    is_int(open_npy(&d), ERR_FILE, "a missing file");
    has_text(e.text, "/x: No such file", "is named with the reason");
    is_int(dataset_npy(folder, NULL, -100, &d, &e), ERR_FILE, "a folder is not a file");
}

int main(void) {
    long live = mem_live();
    folder_make();
    for (int gz = 0; gz < 2; gz++) {
        test_idx(gz);
        test_idx_refused(gz);
        test_each_format(gz);
    }
    test_idx_channels();
    test_cifar();
    test_npy();
    test_npy_refused();
    test_npy_ignored();
    test_npy_targets_refused();
    test_random();
    test_memory(open_random, "random");
    test_memory(open_wrapped, "packed, wrapped");
    test_memory(open_fitted, "packed, best fit");
    test_positions();
    test_normalize();
    test_changed();
    test_no_file();
    dataset_free(NULL);
    folder_remove();
    is_int(mem_live() - live, 0, "nothing is left allocated");
    return tap_done();
}
