/* Tar shards: samples as they were stored, and that no hostile archive crashes, leaks or is taken for another. */
#include "data_files.h"
#include "each_failure.h"

enum { BLOCK = 512, CHECKSUM = 148, TYPE = 156 };

static Err e;

/* A header with its checksum, then the content to a whole block. name: at most 100 bytes. */
static size_t add_member(Blob *b, const char *name, char type, const void *bytes, size_t n) {
    unsigned char *h = b->at + b->n;
    unsigned sum = 0;
    size_t at = b->n, padded = (n + BLOCK - 1) / BLOCK * BLOCK;
    memset(h, 0, BLOCK + padded);
    memcpy(h, name, strnlen(name, 100));
    snprintf((char *)h + 100, 9, "0000644");
    snprintf((char *)h + 124, 13, "%011zo", n);
    h[TYPE] = (unsigned char)type;
    memcpy(h + 257, "ustar\00000", 8);
    memset(h + CHECKSUM, ' ', 8);
    for (int i = 0; i < BLOCK; i++) sum += h[i];
    snprintf((char *)h + CHECKSUM, 8, "%06o", sum);
    if (n) memcpy(h + BLOCK, bytes, n);
    b->n += BLOCK + padded;
    return at;
}

/* Makes the header at `at` whole again after a change. */
static void fix_sum(Blob *b, size_t at) {
    unsigned sum = 0;
    memset(b->at + at + CHECKSUM, ' ', 8);
    for (int i = 0; i < BLOCK; i++) sum += b->at[at + (size_t)i];
    snprintf((char *)b->at + at + CHECKSUM, 8, "%06o", sum);
}

static void add_end(Blob *b) {
    memset(b->at + b->n, 0, 2 * BLOCK);
    b->n += 2 * BLOCK;
}

/* An .npy of shape (2, 3) with these six bytes */
static Blob npy_bytes(const char *six) {
    Blob b = {.at = "\x93NUMPY\1", .n = 10};
    const char *dict = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }\n";
    b.at[8] = (unsigned char)strlen(dict);
    blob_add(&b, dict, strlen(dict));
    blob_add(&b, six, 6);
    return b;
}

static size_t add_npy(Blob *b, const char *name, const char *six) {
    Blob x = npy_bytes(six);
    return add_member(b, name, '0', x.at, x.n);
}

static size_t add_label(Blob *b, const char *name, const char *text) {
    return add_member(b, name, '0', text, strlen(text));
}

/* Three samples with labels 7, 0, 12 and bytes "abcdef", "ghijkl", "mnopqr" */
static Blob shard(void) {
    Blob b = {.n = 0};
    add_npy(&b, "a.npy", "abcdef");
    add_label(&b, "a.cls", "7");
    add_label(&b, "b.CLS", " 0\n");
    add_npy(&b, "b.npy", "ghijkl");
    add_npy(&b, "c.npy", "mnopqr");
    add_label(&b, "c.cls", "12");
    add_end(&b);
    return b;
}

static int open_tar(Dataset **d) { return dataset_tar((const char *const[]){path_x}, 1, d, &e); }

static bool is_sample(const Dataset *d, int64_t i, const char *six, int label) {
    float x[6];
    int32_t t = -1;
    if (dataset_get(d, i, x, &t, &e)) return false;
    for (int k = 0; k < 6; k++)
        if (x[k] != (float)six[k]) return false;
    return label == t;
}

static void test_samples(void) {
    Blob b = shard(), one = {.n = 0};
    Dataset *d = NULL;
    blob_write(path_x, &b, b.n, false);
    if (!ok(open_tar(&d) == OK, "a shard opens")) { printf("# %s\n", e.text); return; }
    Shape s = dataset_sample(d);
    ok(dataset_count(d) == 3 && s.rank == 2 && s.dim[0] == 2 && s.dim[1] == 3 && dataset_classes(d) == 13, "its sizes");
    ok(is_sample(d, 0, "abcdef", 7) && is_sample(d, 1, "ghijkl", 0) && is_sample(d, 2, "mnopqr", 12), "its samples");
    dataset_free(d);

    add_npy(&one, "d/e.npy", "stuvwx");
    add_label(&one, "d/e.cls", "3");
    add_end(&one);
    blob_write(path_y, &one, one.n, false);
    const char *const both[] = {path_y, path_x};
    ok(dataset_tar(both, 2, &d, &e) == OK && dataset_count(d) == 4, "two shards are one dataset");
    ok(is_sample(d, 0, "stuvwx", 3) && is_sample(d, 1, "abcdef", 7) && is_sample(d, 3, "mnopqr", 12), "in their order");
    ok(!truncate(path_x, 3000) && dataset_get(d, 3, (float[6]){0}, NULL, &e) == ERR_FILE && strstr(e.text, path_x) &&
        is_sample(d, 0, "stuvwx", 3), "a shard that is cut off is an error with its name, the other one is read");
    dataset_free(d);
    is_int(dataset_tar(both, 0, &d, &e), ERR_SCRIPT, "no shards are refused");

    blob_write(path_x, &b, b.n, false);
    ok(dataset_tar(both, 2, &d, &e) == OK, "two shards again");
    mem_fail_after(2);
    ok(dataset_cache(d, &e) == ERR_HOST_MEMORY && is_sample(d, 1, "abcdef", 7), "without memory they stay on disk");
    mem_fail_after(0);
    ok(dataset_cache(d, &e) == OK && !unlink(path_x) && !truncate(path_y, 0) && is_sample(d, 0, "stuvwx", 3) &&
        is_sample(d, 3, "mnopqr", 12), "in memory they need no file");
    dataset_free(d);
}

/* Content of a pax header: one record, "LENGTH KEY=VALUE\n" */
static size_t pax_record(char *to, size_t room, const char *text) {
    int n = (int)strlen(text) + 4;
    return (size_t)snprintf(to, room, "%d %s\n", n + (n > 99), text);
}

static void test_names(void) {
    char record[400], path[300], text[320];
    Blob b = {.n = 0};
    Dataset *d = NULL;
    size_t at;
    memset(path, 'p', sizeof path);
    snprintf(path + 250, sizeof path - 250, "/x.y/k.npy");

    add_member(&b, "folder/", '5', NULL, 0);
    add_member(&b, "pax", 'g', record, pax_record(record, sizeof record, "comment=of all of them"));
    add_member(&b, "././@LongLink", 'L', path, strlen(path) + 1);
    add_npy(&b, "cut", "abcdef");
    snprintf(text, sizeof text, "path=%s", path);
    text[strlen(text) - 5]++; /* another key: l.npy */
    add_member(&b, "pax", 'x', record, pax_record(record, sizeof record, text));
    add_npy(&b, "cut", "ghijkl");
    at = add_npy(&b, "m.npy", "mnopqr");
    memcpy(b.at + at + 345, "pre/fix", 7);
    fix_sum(&b, at);
    at = add_npy(&b, "n.npy", "stuvwx");
    int n = (int)strtol((char *)b.at + at + 124, NULL, 8);
    memcpy(b.at + at + 124, (unsigned char[12]){0x80, [11] = (unsigned char)n}, 12);
    fix_sum(&b, at);
    snprintf(text, sizeof text, "size=%05d", n);
    add_member(&b, "pax", 'x', record, pax_record(record, sizeof record, text));
    at = add_npy(&b, "o.npy", "yzabcd");
    memcpy(b.at + at + 124, "00000000000", 12);
    fix_sum(&b, at);
    add_end(&b);
    blob_write(path_x, &b, b.n, false);
    if (!ok(open_tar(&d) == OK, "long names, prefixes and sizes in every form")) { printf("# %s\n", e.text); return; }
    ok(dataset_count(d) == 5 && dataset_classes(d) == 0 && is_sample(d, 0, "abcdef", -1) &&
        is_sample(d, 1, "ghijkl", -1) && is_sample(d, 2, "mnopqr", -1) && is_sample(d, 3, "stuvwx", -1) &&
        is_sample(d, 4, "yzabcd", -1), "samples without labels");
    dataset_free(d);
}

/* The archive is refused with this text, and the place. */
static void refused(const Blob *b, const char *text) {
    Dataset *d = NULL;
    long live = mem_live();
    blob_write(path_x, b, b->n, false);
    int code = open_tar(&d);
    if (!ok(code == ERR_FORMAT && !d && mem_live() == live && strstr(e.text, text) && strstr(e.text, path_x),
            "refused: %s", text))
        printf("# code %d: %s; %ld live\n", code, code ? e.text : "", mem_live() - live);
    dataset_free(d);
}

static void refused_member(const char *name, char type, const char *content, const char *text) {
    Blob b = {.n = 0};
    add_member(&b, name, type, content, strlen(content));
    add_end(&b);
    refused(&b, text);
}

static void refused_size(const char *field, const char *text) {
    Blob b = {.n = 0};
    add_npy(&b, "a.npy", "abcdef");
    memcpy(b.at + 124, field, 12);
    fix_sum(&b, 0);
    add_end(&b);
    refused(&b, text);
}

static void test_refused(void) {
    static const struct { const char *name; char type; const char *content, *text; } members[] = {
        {"a.jpg", '0', "JFIF", "byte 0: \"a.jpg\": JPEG is not decoded: store .npy"},
        {"a.PNG", '0', "PNG", "\"a.PNG\": PNG is not decoded: store .npy"},
        {"a.json", '0', "{}", "expected KEY.npy and KEY.cls, found \"a.json\""},
        {"README", '0', "x", "expected KEY.npy and KEY.cls, found \"README\""},
        {"d.x/.npy", '0', "x", "expected KEY.npy and KEY.cls, found \"d.x/.npy\""},
        {"a.npy", '1', "", "\"a.npy\": expected files and folders, found a hard link"},
        {"a.npy", '2', "", "found a symbolic link"}, {"a.npy", '3', "", "found a device"},
        {"a.npy", '6', "", "found a FIFO"}, {"a.npy", 'S', "", "found a sparse file"},
        {"a.npy", 'K', "", "found a link with a long name"}, {"a.npy", '!', "", "found a member of type 21"},
        {"a.npy", '0', "", "\"a.npy\": too short: expected 8 bytes of npy magic and version, found 0"},
        {"a.cls", '0', "-1", "\"a.cls\": expected a label from 0 to 2147483646 in decimal digits, found \"-1\""},
        {"a.cls", '0', "2147483647", "found \"2147483647\""}, {"a.cls", '0', "1 2", "found \"1 2\""},
        {"a.cls", '0', "", "found \"\""}, {"a.cls", '0', "99999999999999999999", "found \"99999999999999999999\""},
        {"a.cls", '0', "                                                1", "expected a label"},
        {"a.cls", '0', "1", "sample \"a\" before it has no .npy"},
        {"p", 'x', "9 path=a", "pax header: expected LENGTH KEY=VALUE, found \"9 path=a\""},
        {"p", 'x', "99 path=a\n", "expected LENGTH KEY=VALUE"}, {"p", 'x', "0 path=a\n", "expected LENGTH KEY=VALUE"},
        {"p", 'x', "path=a\n", "expected LENGTH KEY=VALUE"}, {"p", 'x', "2 \n", "expected LENGTH KEY=VALUE"},
        {"p", 'x', "7 path\n", "expected KEY=VALUE, found \"path\""},
        {"p", 'x', "8 path=\n", "expected a name of 1 to 4095 bytes that are not zero, found 0 bytes"},
        {"p", 'x', "10 size=x\n", "size: expected a number, found \"x\""},
        {"p", 'x', "24 GNU.sparse.major=1.0\n", "found a sparse file"},
        {"p", 'g', "10 path=a\n", "pax header of all members: found a \"path\""},
        {"p", 'x', "10 path=a\n", "expected the member of an extended header, found the end"},
        {"p", 'L', "", "expected a name of 1 to 4095 bytes"},
    };
    for (size_t i = 0; i < ARRAY_LEN(members); i++)
        refused_member(members[i].name, members[i].type, members[i].content, members[i].text);
    refused_size("77777777777", "\"a.npy\": expected 8589934591 bytes, found 1536: the archive was cut off");
    refused_size("0000000000x", "\"a.npy\": expected a size in octal digits");
    refused_size("           ", "expected a size in octal digits");
    refused_size("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", "expected 9223372036854775807 bytes");
    refused_size("\x80\0\0\0\x80\0\0\0\0\0\0\0", "expected a size in octal digits");
    refused_size("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "expected a size in octal digits");
    refused_size("00000000107", "too short: expected 6 bytes for the shape (2, 3) of its header, found 1");
}

static void test_archives_refused(void) {
    Blob b = shard(), c = {.n = 0};
    c = b;
    c.n -= 2 * BLOCK;
    refused(&c, "byte 6144: expected a header or the blocks of zeros that end an archive, found 0 bytes");
    c.n = 700;
    refused(&c, "byte 1024: expected a header"); /* the content is there, but not all of its block */
    c.n = 560;
    refused(&c, "byte 0: \"a.npy\": expected 76 bytes, found 48: the archive was cut off");
    c = b;
    c.at[3]++;
    refused(&c, "byte 0: expected a header of tar: its checksum is wrong");
    c = b;
    c.at[c.n - 1] = 1;
    refused(&c, "expected nothing but zeros after the archive's end");
    c.n = 0;
    refused(&c, "byte 0: expected a header");
    add_end(&c);
    refused(&c, "expected samples, found none");
#define ARCHIVE(text, ...) \
    c.n = 0; \
    __VA_ARGS__; \
    add_end(&c); \
    refused(&c, text)
    ARCHIVE("byte 1024: \"a.npy\" is there twice", add_npy(&c, "a.npy", "abcdef"); add_npy(&c, "a.npy", "abcdef"));
    ARCHIVE("\"a.cls\" is there twice", add_label(&c, "a.cls", "1"); add_label(&c, "a.cls", "1"));
    ARCHIVE("sample \"b\" before it has no .cls, the samples before have one", add_npy(&c, "a.npy", "abcdef");
            add_label(&c, "a.cls", "1"); add_npy(&c, "b.npy", "abcdef"));
    ARCHIVE("sample \"b\" before it has a .cls, the samples before have none", add_npy(&c, "a.npy", "abcdef");
            add_npy(&c, "b.npy", "abcdef"); add_label(&c, "b.cls", "1"));
    ARCHIVE("byte 1024: sample \"a\" before it has no .npy", add_label(&c, "a.cls", "1");
            add_npy(&c, "b.npy", "abcdef"));
    Blob x = npy_bytes("abcdef");
    x.at[strcspn((char *)x.at + 10, "2") + 10] = '1';
    ARCHIVE("\"b.npy\": expected type '|u1' and shape (2, 3), as all samples before, found '|u1' and (1, 3)",
            add_npy(&c, "a.npy", "abcdef"); add_member(&c, "b.npy", '0', x.at, x.n - 3));
#undef ARCHIVE
    blob_write(path_x, &b, b.n, true);
    Dataset *d = NULL;
    ok(open_tar(&d) == ERR_FORMAT && strstr(e.text, "expected a plain tar archive"), "a compressed archive is refused");
}

static int attempt(void *arg, Err *err) {
    Dataset *d = NULL;
    (void)arg;
    int code = dataset_tar((const char *const[]){path_x, path_x}, 2, &d, err);
    dataset_free(d);
    if (code == ERR_HOST_MEMORY && strstr(err->text, "no memory for")) snprintf(err->text, 12, "host memory");
    return code;
}

/* Every prefix is refused; every changed bit, with and without the checksum, gives a set or a refusal. */
static void test_damage(void) {
    Blob b = shard(), c;
    Dataset *d = NULL;
    long live = mem_live();
    int taken = 0, odd = 0;
    blob_write(path_x, &b, b.n, false);
    each_failure(attempt, NULL, 7, "tar");
    for (size_t n = 0; n + BLOCK < b.n - BLOCK; n += 37) {
        blob_write(path_x, &b, n, false);
        taken += open_tar(&d) != ERR_FORMAT || d;
    }
    ok(taken == 0 && mem_live() == live, "no prefix is taken, none leaks");
    for (size_t i = 0; i < 2 * BLOCK; i++)
        for (int bit = 0; bit < 8; bit += 1 + (i >= 160 && i < BLOCK) * 3) {
            c = b;
            c.at[i] ^= (unsigned char)(1 << bit);
            if (i < BLOCK && bit % 2 == 0) fix_sum(&c, 0);
            blob_write(path_x, &c, c.n, false);
            int code = open_tar(&d);
            odd += code == OK ? !d : code != ERR_FORMAT || d;
            if (code == OK) dataset_free(d);
            d = NULL;
        }
    ok(odd == 0 && mem_live() == live, "a changed bit gives a set or a refusal, never a leak");
}

int main(void) {
    long live = mem_live();
    folder_make();
    test_samples();
    test_names();
    test_refused();
    test_archives_refused();
    test_damage();
    folder_remove();
    is_int(mem_live() - live, 0, "nothing is left allocated");
    return tap_done();
}
