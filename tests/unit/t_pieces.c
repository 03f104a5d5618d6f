/* t_pieces.c: into which pieces convolutions and products are cut, computed by hand from the rules of kernels/cpu/split.c. */
#include "../../kernels/cpu/split.c"

#include "tap.h"

#define MACS(millions) ((int64_t)(millions) << 20)

static void expect(const char *what, Split found, Split expected) {
    if (!ok(found.images == expected.images && found.parts == expected.parts && found.channels == expected.channels && found.slices == expected.slices, "%s", what))
        printf("# found %d x %d by %d x %d\n", (int)found.images, (int)found.parts, (int)found.channels, (int)found.slices);
}

static const struct { const char *what; Work work; Split split; } convolutions[] = {
    {"little work stays whole", {8, 256, 1000, 1000, MACS(1), false}, {8, 1, 256, 1}},
    {"16 pieces of images", {32, 256, 1000, 1000, MACS(64), false}, {2, 16, 256, 1}},
    {"few images, whose channels are cut down to 64", {4, 256, 1000, 1000, MACS(64), false}, {1, 4, 64, 4}},
    {"one image, whose channels are cut into 16 slices", {1, 1024, 1000, 1000, MACS(16), false}, {1, 1, 64, 16}},
    {"slices have multiples of 16 channels", {1, 144, 1000, 1000, MACS(64), false}, {1, 1, 144, 1}},
    {"prime numbers of images have pieces of one, up to four times as many as wanted", {61, 64, 1000, 1000, MACS(16), false}, {1, 61, 64, 1}},
    {"or as many as pay", {67, 64, 1000, 1000, MACS(67), false}, {1, 67, 64, 1}},
    {"but no more", {71, 64, 1000, 1000, MACS(67), false}, {71, 1, 64, 1}},
    {"sums of as many parts as four threads need", {16, 64, 36864, 1000, MACS(64), true}, {4, 4, 64, 1}},
    {"of no more than pay", {4, 64, 1, 1000, MACS(2), true}, {2, 2, 64, 1}},
    {"sums of two parts that would take longer to add up", {2, 64, 40000, 1000, MACS(4), true}, {2, 1, 64, 1}},
    {"slices of a sum that take longer to read", {1, 256, 1000, 2900000, MACS(64), true}, {1, 1, 256, 1}},
    {"and that do not", {1, 256, 1000, 2700000, MACS(64), true}, {1, 1, 64, 4}},
    {"sums of a prime number of images", {101, 64, 1000, 1000, MACS(128), true}, {1, 101, 64, 1}},
};

static const struct { const char *what; int64_t m, n, k; Split split; } products[] = {
    {"a small product stays whole", 8, 8, 8, {8, 1, 8, 1}},
    {"96 rows of a piece", 384, 128, 1024, {96, 4, 128, 1}},
    {"then 128 columns", 384, 256, 1024, {96, 4, 128, 2}},
    {"eight pieces are enough", 768, 256, 1024, {96, 8, 256, 1}},
    {"rows that only more parts divide", 217, 64, 1024, {31, 7, 64, 1}},
    {"columns that only more parts divide", 96, 385, 1024, {96, 1, 77, 5}},
};

int main(void) {
    for (size_t i = 0; i < ARRAY_LEN(convolutions); i++) expect(convolutions[i].what, split_work(&convolutions[i].work), convolutions[i].split);
    for (size_t i = 0; i < ARRAY_LEN(products); i++)
        expect(products[i].what, split_product(products[i].m, products[i].n, products[i].k), products[i].split);
    return tap_done();
}
