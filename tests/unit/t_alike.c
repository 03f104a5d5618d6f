/* Ranks that are alike: their classes, held against a prediction of every rank; and what ranks send, counted by hand. */
#include "bare.h"
#include "base/mem.h"
#include "run/alike.h"
#include "run/runtime.h"
#include "tap.h"

static const DeviceTable table = {.kind = "none", .alignment = 4, .prepare = bare_prepare};
static Device device = {.table = &table};
#define NET "Sequential{Linear(37, 150) ReLU Linear(150, 70) ReLU Linear(70, 10)}"

/* The ranks at which shards change their size are those that a look at every rank finds. */
static void test_changes(void) {
    int wrong = 0;
    for (int world = 2; world <= 9; world++)
        for (int64_t n = (int64_t)world * SHARD_UNIT; n < 20 * SHARD_UNIT; n += 64) {
            int at[2];
            const int found = shard_changes(n, world, at);
            for (int r = 1, k = 0; r < world; r++) {
                const bool changes = shard_of(n, world, r).count != shard_of(n, world, r - 1).count, told = k < found && at[k] == r;
                /* the last rank may have as much as the one before it after all: that is told, too */
                wrong += changes && !told;
                k += told;
                wrong += r == world - 1 && k != found;
            }
        }
    is_int(wrong, 0, "every change of a shard's size is told");
}

/* What each rank needs, as its own program predicts it. */
static size_t peak_of(const Settings *of, int rank) {
    Settings s = *of;
    s.rank = rank;
    Case c = case_open(&device, NET, "CrossEntropyLoss", shape2(3, 37), &s);
    Prediction found = {.fits = false};
    Err e = {0, ""};
    const Job job = {c.net, c.p};
    if (c.p) predict(&job, 1, s.allocator, &device, 0, &(Call){0, PART_WHOLE}, 1, 3, &found, &e);
    case_close(&c);
    return found.peak.held;
}

static void test_classes(int world, int tensor, int zero, int expected) {
    Settings s = settings_default();
    s.world = world;
    s.mesh.tensor = tensor;
    s.zero = zero;
    Case c = case_open(&device, NET, "CrossEntropyLoss", shape2(3, 37), &s);
    Alike *classes = NULL;
    int n = 0, ranks = 0, wrong = 0;
    Err e = {0, ""};
    if (c.p && ok(ranks_alike(&(const Program *){c.p}, 1, &classes, &n, &e) == OK, "classes of %d ranks %s", world, e.text)) {
        for (int k = 0; k < n; k++) {
            const size_t first = peak_of(&s, classes[k].rank);
            wrong += classes[k].rank != ranks;
            for (int r = 0; r < classes[k].count; r++) wrong += peak_of(&s, ranks + r) != first;
            ranks += classes[k].count;
        }
        ok(wrong == 0, "%d ranks, %d for tensors, zero %d: those of a class need the same", world, tensor, zero);
        is_int(ranks, world, "each rank is in one class");
        is_int(n, expected, "as many classes as there must be");
    }
    mem_free(classes);
    case_close(&c);
}

/* Linear(64, 24) on 4 ranks, fp32. w has 6 units of 1024 bytes: 2, 2, 1 and 1 of them are the ranks' shards. b has 96 bytes and is
 * not divided: each rank sums up 24 of them. Of the loss rank 0 sums up all 4 bytes. */
static void test_sent(int zero, int rank, int accumulate, int64_t sent, int64_t received, int64_t calls, int64_t rounds) {
    Settings s = settings_default();
    s.world = 4;
    s.rank = rank;
    s.zero = zero;
    s.accumulate = accumulate;
    Case c = case_open(&device, "Linear(64, 24)", "CrossEntropyLoss", shape2(3, 64), &s);
    if (c.p) {
        const Transfer found = program_transfer(c.p, MESH_DATA), other = program_transfer(c.p, MESH_TENSOR);
        printf("# zero %d, rank %d, %d micro-batches\n", zero, rank, accumulate);
        is_int(found.sent, sent, "bytes sent");
        is_int(found.received, received, "and received");
        is_int(found.calls, calls, "in so many calls");
        is_int(found.rounds, rounds, "and rounds");
        is_int(other.sent + other.calls, 0, "nothing goes along the other axis");
    }
    case_close(&c);
}

static void test_transfers(void) {
    const int64_t sum_w = 6144 - 1536 + 3 * 1536, sum_b = 96 - 24 + 3 * 24, loss = 4, loss_0 = 3 * 4;
    /* shards of w: of ranks 0 and 1, of 2 and 3; a sum's terms that go to the others, and that come from them */
    const int64_t two = 2048, one = 1024, terms_0 = 6144 - two, terms_3 = 6144 - one;
    test_sent(0, 0, 1, sum_w + sum_b + loss_0, sum_w + sum_b + loss_0, 2, 4); /* gradients are one bucket */
    test_sent(0, 1, 1, sum_w + sum_b + loss, sum_w + sum_b + loss, 2, 4);
    test_sent(0, 1, 3, sum_w + sum_b + loss, sum_w + sum_b + loss, 2, 4);     /* once a step */
    test_sent(1, 0, 1, terms_0 + sum_b + loss_0 + 3 * two, 3 * two + sum_b + loss_0 + terms_0, 3, 5);
    test_sent(1, 3, 3, terms_3 + sum_b + loss + 3 * one, 3 * one + sum_b + loss + terms_3, 3, 5);
    test_sent(2, 3, 3, 3 * (terms_3 + sum_b) + loss + 3 * one, 3 * (3 * one + sum_b) + loss + terms_3, 5, 9);
    test_sent(3, 3, 1, 3 * one + terms_3 + sum_b + loss, terms_3 + 3 * one + sum_b + loss, 3, 5);
}

static void test_no_memory(void) {
    Settings s = settings_default();
    s.world = 4;
    Case c = case_open(&device, NET, "CrossEntropyLoss", shape2(3, 37), &s);
    for (long at = 1; c.p && at <= 2; at++) {
        Alike *classes = NULL;
        int n;
        Err e = {0, ""};
        const long before = mem_live();
        mem_fail_after(at);
        ok(ranks_alike(&(const Program *){c.p}, 1, &classes, &n, &e) == ERR_HOST_MEMORY, "no memory for piece %ld: %s", at, e.text);
        mem_fail_after(0);
        is_int(mem_live(), before, "nothing is left over");
    }
    case_close(&c);
}

int main(void) {
    test_changes();
    test_classes(1, 1, 3, 1);
    test_classes(4, 1, 0, 1);
    test_classes(2, 1, 1, 2);
    /* the weights have 21, 41 and 2 units, and a rest each, which the last rank has */
    test_classes(5, 1, 3, 3); /* 21 and 41 units: rank 0 has one more */
    test_classes(7, 1, 2, 2); /* 3 units each; 6 of the larger one, but for the last rank */
    test_classes(8, 2, 3, 3); /* of half a weight each, 10 and 20 units for 4 ranks along the other axis */
    test_transfers();
    test_no_memory();
    return tap_done();
}
