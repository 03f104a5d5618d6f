/* The loader: order, counts, shuffling, seeking, and that a second thread changes nothing but the time. */
#include "data_files.h"

enum { COUNT = 23, BATCH = 5, WIDE = 3, CLASSES = 6 };

static Err e;
static float all_x[COUNT][WIDE];
static int32_t all_t[COUNT];

typedef struct Batch { float x[BATCH][WIDE]; int32_t t[BATCH]; int64_t count; } Batch;

static Dataset *random_set(int64_t count) {
    Dataset *d = NULL;
    Shape s = shape1(WIDE);
    if (dataset_random(count, &s, CLASSES, NULL, 42, &d, &e)) {
        printf("Bail out! %s\n", e.text);
        exit(1);
    }
    return d;
}

static Loader *opened(const Dataset *d, bool shuffle, bool drop_last, int prefetch, uint64_t seed) {
    Loader *l = NULL;
    if (loader_open(d, &(LoaderOptions){.batch = BATCH, .shuffle = shuffle, .drop_last = drop_last, .prefetch = prefetch, .seed = seed}, &l, &e)) {
        printf("Bail out! %s\n", e.text);
        exit(1);
    }
    return l;
}

static Batch next(Loader *l) {
    Batch b;
    memset(&b, 0, sizeof b);
    if (loader_next(l, &b.x[0][0], b.t, &b.count, &e)) b.count = -1;
    return b;
}

/* which sample this is; -1: none, or with another's label */
static int which(const float *x, int32_t t) {
    for (int i = 0; i < COUNT; i++)
        if (!memcmp(x, all_x[i], sizeof all_x[i])) return t == all_t[i] ? i : -1;
    return -1;
}

/* Reads an epoch to its end into order[COUNT]; returns the number of samples, or -1. */
static int epoch(Loader *l, int *order) {
    int n = 0;
    for (int64_t i = 0; i < loader_batches(l); i++) {
        Batch b = next(l);
        if (b.count < 1 || b.count > BATCH || n + b.count > COUNT) return -1;
        for (int k = 0; k < b.count; k++) order[n++] = which(b.x[k], b.t[k]);
    }
    return next(l).count == 0 ? n : -1;
}

static bool is_permutation(const int *order) {
    bool seen[COUNT] = {false};
    for (int i = 0; i < COUNT; i++) {
        if (order[i] < 0 || seen[order[i]]) return false;
        seen[order[i]] = true;
    }
    return true;
}

static void test_order(const Dataset *d, int prefetch) {
    const char *how = prefetch ? "prefetched" : "direct";
    int first[COUNT], second[COUNT], again[COUNT], wrong = 0;
    Loader *l = opened(d, false, false, prefetch, 1);
    is_int(loader_batches(l), 5, "an incomplete last batch counts");
    for (int round = 0; round < 2; round++) {
        ok(epoch(l, first) == COUNT, "%s: an epoch hands out every sample, then 0", how);
        for (int i = 0; i < COUNT; i++) wrong += first[i] != i;
    }
    is_int(wrong, 0, "in their own order");
    loader_close(l);

    l = opened(d, false, true, prefetch, 1);
    is_int(loader_batches(l), 4, "drop_last leaves it out");
    ok(epoch(l, first) == 20 && epoch(l, first) == 20, "%s: in every epoch", how);
    loader_close(l);

    l = opened(d, true, false, prefetch, 1);
    ok(epoch(l, first) == COUNT && is_permutation(first), "%s: shuffled, an epoch is a permutation", how);
    ok(epoch(l, second) == COUNT && is_permutation(second) && memcmp(first, second, sizeof first),
        "%s: the next is another", how);
    ok(!loader_seek(l, 0, 0, &e) && epoch(l, again) == COUNT && !memcmp(first, again, sizeof first),
        "%s: epoch 0 comes back", how);
    next(l);
    next(l);
    ok(!loader_seek(l, 1, 0, &e) && epoch(l, again) == COUNT && !memcmp(second, again, sizeof first),
        "%s: seeking from the middle of an epoch", how);
    is_int(loader_seek(l, -1, 0, &e), ERR_SCRIPT, "a negative epoch is refused");
    loader_close(l);

    l = opened(d, true, false, prefetch, 2);
    ok(epoch(l, again) == COUNT && is_permutation(again) && memcmp(first, again, sizeof first),
        "%s: another seed, another order", how);
    loader_close(l);
}

static void test_same_with_prefetch(const Dataset *d, int prefetch) {
    Loader *direct = opened(d, true, false, 0, 9), *ahead = opened(d, true, false, prefetch, 9);
    int different = 0;
    for (int i = 0; i < 40; i++) {
        if (i == 27) different += loader_seek(direct, 11, 0, &e) || loader_seek(ahead, 11, 0, &e);
        if (i == 31) different += loader_seek(direct, 11, 4, &e) || loader_seek(ahead, 11, 4, &e); /* the next one */
        Batch a = next(direct), b = next(ahead);
        different += memcmp(&a, &b, sizeof a) != 0;
    }
    is_int(different, 0, "40 batches over epochs and seeks are the same bits with and without prefetch");
    loader_close(direct);
    loader_close(ahead);
}

/* Every order of 4 samples is drawn about as often: 2400 epochs, 100 expected of each of the 24. */
static void test_uniform(void) {
    Dataset *d = random_set(4);
    Loader *l = opened(d, true, false, false, 5);
    int seen[256] = {0}, kinds = 0, least = 2400, most = 0;
    for (int round = 0; round < 2400; round++) {
        Batch b = next(l);
        int code = 0;
        for (int k = 0; k < 4; k++) code = code * 4 + (which(b.x[k], b.t[k]) & 3);
        seen[code]++;
        next(l);
    }
    for (int i = 0; i < 256; i++) {
        if (!seen[i]) continue;
        kinds++;
        if (seen[i] < least) least = seen[i];
        if (seen[i] > most) most = seen[i];
    }
    if (!ok(kinds == 24 && least > 60 && most < 140, "all orders are drawn about as often"))
        printf("# %d kinds, %d to %d\n", kinds, least, most);
    loader_close(l);
    dataset_free(d);
}

static void test_close_anywhere(const Dataset *d) {
    long live = mem_live();
    for (int batches = 0; batches < 12; batches++) {
        Loader *l = opened(d, true, false, 1 + batches % 4, (uint64_t)batches);
        for (int i = 0; i < batches; i++) next(l);
        if (batches & 1) loader_seek(l, batches, 0, &e);
        loader_close(l);
    }
    loader_close(NULL);
    is_int(mem_live(), live, "closing at any batch leaves nothing");
}

/* The ranks' batches in turns are those of one loader, which tells the ends of epochs. */
static void test_ranks(const Dataset *d, int world, bool drop_last, int prefetch) {
    enum { TURNS = 12 };
    Loader *one = opened(d, true, drop_last, 0, 7), *l[8];
    int wrong = 0;
    for (int r = 0; r < world; r++)
        if (loader_open(d, &(LoaderOptions){.batch = BATCH, .shuffle = true, .drop_last = drop_last, .prefetch = prefetch, .seed = 7,
                                            .world = world, .rank = r}, &l[r], &e)) wrong++;
    for (int i = 0; i < TURNS * world && !wrong; i++) {
        Batch expected = next(one), found = next(l[i % world]);
        if (expected.count == 0) expected = next(one);
        wrong += memcmp(&expected, &found, sizeof found) != 0 || found.count < 1;
    }
    ok(!wrong && loader_world(l[0]) == world && loader_world(one) == 1, "%d ranks, prefetch %d, drop_last %d: each has its batches", world, prefetch, drop_last);
    for (int r = 0; r < world; r++) loader_close(l[r]);
    loader_close(one);
}

static void test_refused(const Dataset *d) {
    Loader *l = NULL;
    is_int(loader_open(d, &(LoaderOptions){.batch = 0, .seed = 1}, &l, &e), ERR_SCRIPT, "a batch of 0 is refused");
    is_int(loader_open(d, &(LoaderOptions){.batch = COUNT + 1, .drop_last = true, .prefetch = 1, .seed = 1}, &l, &e), ERR_SCRIPT,
        "drop_last that leaves nothing is refused");
    has_text(e.text, "no batch of 24: expected at most 23", "and says so");
    is_int(
        loader_open(d, &(LoaderOptions){.batch = INT64_MAX, .prefetch = 1, .seed = 1}, &l, &e), ERR_SCRIPT, "a batch beyond all memory is refused");
    is_int(loader_open(d, &(LoaderOptions){.batch = 1, .prefetch = -1, .seed = 1}, &l, &e), ERR_SCRIPT, "fewer than no batches ahead are refused");
    is_int(loader_open(d, &(LoaderOptions){.batch = 1, .prefetch = 1025, .seed = 1}, &l, &e), ERR_SCRIPT, "so are too many");
    has_text(e.text, "prefetch: expected 0 to 1024 batches, found 1025", "and said");
    is_int(loader_open(d, &(LoaderOptions){.batch = INT64_MAX / 64, .prefetch = 1024, .seed = 1}, &l, &e), ERR_SCRIPT, "more than all memory, too");
    ok(!l, "no loader comes of it");
    long live = mem_live(), n = 0;
    int code, wrong = 0;
    do {
        mem_fail_after(++n);
        code = loader_open(d, &(LoaderOptions){.batch = BATCH, .shuffle = true, .prefetch = 1, .seed = 1}, &l, &e);
        if (code) wrong += code != ERR_HOST_MEMORY || l || mem_live() != live;
    } while (code && n < 100);
    mem_fail_after(0);
    loader_close(l);
    ok(n == 6 && !wrong && mem_live() == live, "each of its 5 allocations failing leaves nothing");
}

static void test_targets(int prefetch) {
    const float reals[] = {1, 2, 3, 4, 5, 6};
    Shape s = shape1(WIDE), target = shape2(2, 2);
    Dataset *d = NULL;
    float x[2][WIDE], t[2][4], expected[4], one[WIDE];
    int64_t count;
    if (!ok(!dataset_random(2, &s, 0, &target, 3, &d, &e), "a set with targets")) return;
    Loader *l = NULL;
    ok(!loader_open(d, &(LoaderOptions){.batch = 2, .prefetch = prefetch, .seed = 1}, &l, &e) && !loader_next(l, &x[0][0], t, &count, &e) && count == 2,
        "its batch");
    dataset_get(d, 1, one, expected, &e);
    ok(!memcmp(t[1], expected, sizeof expected) && !memcmp(x[1], one, sizeof one), "the second sample and its target");
    ok(!loader_seek(l, 4, 0, &e) && !loader_next(l, &x[0][0], NULL, &count, &e) && count == 2,
        "targets that are not wanted");
    loader_close(l);
    dataset_free(d);

    Blob b = {.at = "\x93NUMPY\1", .n = 10};
    const char *dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
    b.at[8] = (unsigned char)strlen(dict);
    blob_add(&b, dict, strlen(dict));
    blob_add(&b, reals, sizeof reals);
    blob_write(path_x, &b, b.n, false);
    memset(t, 77, sizeof t);
    memcpy(expected, t, sizeof expected);
    d = NULL;
    l = NULL;
    ok(!dataset_npy(path_x, NULL, -100, &d, &e) && !loader_open(d, &(LoaderOptions){.batch = 2, .prefetch = prefetch, .seed = 1}, &l, &e) &&
        !loader_next(l, &x[0][0], t, &count, &e) && count == 2 && x[1][2] == 6, "a set without targets");
    ok(!memcmp(t[0], expected, sizeof expected), "leaves the targets alone");
    loader_close(l);
    dataset_free(d);
}

/* Two files with a batch each, of which the second is cut off. The rank whose the first is never reads the other. */
static void test_reads_own(int prefetch) {
    enum { RECORD = 3073 };
    const char *const both[] = {path_x, path_y};
    static Blob b;
    static float x[RECORD];
    int32_t t;
    int64_t count;
    Dataset *d = NULL;
    memset(&b, 0, sizeof b);
    b.n = RECORD;
    blob_write(path_x, &b, b.n, false);
    blob_write(path_y, &b, b.n, false);
    if (!ok(!dataset_cifar10(both, 2, &d, &e) && !truncate(path_y, 10), "prefetch %d: the second of two files is cut off", prefetch)) return;
    for (int r = 0; r < 2; r++) {
        Loader *l = NULL;
        int failed = loader_open(d, &(LoaderOptions){.batch = 1, .prefetch = prefetch, .world = 2, .rank = r}, &l, &e);
        for (int i = 0; i < 3 && !failed; i++) failed = loader_next(l, x, &t, &count, &e);
        ok((failed != 0) == (r > 0), "rank %d %s", r, r ? "has no batch" : "reads its own alone");
        loader_close(l);
    }
    dataset_free(d);
}

/* A file that is cut off: an error each time a batch is asked for, and never a sample. */
static void test_file_error(int prefetch) {
    Blob b = {.at = "\x93NUMPY\1", .n = 10};
    const char *dict = "{'descr': '|u1', 'fortran_order': False, 'shape': (12, 3), }\n";
    unsigned char bytes[12 * WIDE];
    float x[4][WIDE];
    int64_t count;
    Dataset *d = NULL;
    Loader *l = NULL;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)i;
    b.at[8] = (unsigned char)strlen(dict);
    blob_add(&b, dict, strlen(dict));
    blob_add(&b, bytes, sizeof bytes);
    blob_write(path_x, &b, b.n, false);
    if (!ok(!dataset_npy(path_x, NULL, -100, &d, &e) && !truncate(path_x, 10) &&
        !loader_open(d, &(LoaderOptions){.batch = 4, .prefetch = prefetch, .seed = 1}, &l, &e), "prefetch %d: a file that is cut off", prefetch)) return;
    for (int i = 0; i < 3; i++) {
        e = (Err){0, ""};
        ok(loader_next(l, &x[0][0], NULL, &count, &e) == ERR_FILE && count == 0 && e.code == ERR_FILE &&
            strstr(e.text, path_x) && strstr(e.text, "cut off"), "is an error with its name, time %d", i + 1);
    }
    int64_t epoch_now, batch_now;
    loader_place(l, &epoch_now, &batch_now);
    ok(epoch_now == 0 && batch_now == 0, "and the batch is still the next one");
    loader_close(l);
    dataset_free(d);
}

static void test_bytes(const Dataset *d) {
    Loader *l = opened(d, true, false, 3, 1);
    is_int((int64_t)loader_bytes(l), 3 * BATCH * (WIDE * 4 + 4) + COUNT * 8, "bytes of three batches and of the order");
    is_int(loader_prefetch(l), 3, "and their number");
    loader_close(l);
    l = opened(d, false, false, 0, 1);
    is_int((int64_t)loader_bytes(l), 0, "a plain loader holds nothing");
    loader_close(l);
}

int main(void) {
    long live = mem_live();
    Dataset *d = random_set(COUNT);
    for (int i = 0; i < COUNT; i++) dataset_get(d, i, all_x[i], &all_t[i], &e);
    folder_make();
    static const int ahead[] = {0, 1, 2, 7, 30};
    for (size_t i = 0; i < ARRAY_LEN(ahead); i++) {
        test_order(d, ahead[i]);
        test_targets(ahead[i]);
        test_same_with_prefetch(d, ahead[i]);
        test_file_error(ahead[i]);
        test_ranks(d, 2 + (int)i, i % 2 > 0, ahead[i]);
        test_reads_own(ahead[i]);
    }
    test_bytes(d);
    test_uniform();
    test_close_anywhere(d);
    test_refused(d);
    dataset_free(d);
    folder_remove();
    is_int(mem_live() - live, 0, "nothing is left allocated");
    return tap_done();
}
