/* Host memory: what is counted, and what stays when there is none. */
#include "base/mem.h"

#include "tap.h"

static void test_new(void) {
    long before = mem_live();
    unsigned char *p = mem_new(300), *none = mem_new(0), *copy;
    int sum = 0;
    for (int i = 0; p && i < 300; i++) sum += p[i];
    ok(p && sum == 0, "new memory is zero");
    ok(none != NULL, "no bytes can be had too");
    is_int(mem_live() - before, 2, "both are counted");
    memcpy(p, "abc", 4);
    copy = mem_copy(p, 4);
    p[0] = 'x';
    is_str((char *)copy, "abc", "a copy is apart from what it was made of");
    mem_free(p);
    mem_free(none);
    mem_free(copy);
    mem_free(NULL);
    is_int(mem_live(), before, "all of them are freed, NULL is nothing to free");
}

static void test_fail(void) {
    long before = mem_live();
    mem_fail_after(3);
    void *p[4];
    for (int i = 0; i < 4; i++) p[i] = mem_new(8);
    ok(p[0] && p[1] && !p[2] && p[3], "the third allocation fails, and only it");
    is_int(mem_live() - before, 3, "one that failed is not alive");
    for (int i = 0; i < 4; i++) mem_free(p[i]);
    mem_fail_after(1);
    ok(!mem_copy("x", 2), "a copy can fail");
    mem_fail_after(1);
    mem_fail_after(0);
    void *after = mem_new(1);
    ok(after != NULL, "0 takes it back");
    mem_free(after);
    is_int(mem_live(), before, "nothing is left");
}

static void test_grow(void) {
    long before = mem_live();
    int *array = NULL, cap = 0;
    ok(mem_grow(&array, &cap, 1, sizeof *array) && cap >= 1, "an array begins");
    for (int i = 0; i < cap; i++) array[i] = i;
    int *old = array, old_cap = cap;
    ok(mem_grow(&array, &cap, old_cap, sizeof *array) && array == old, "what fits does not move");
    mem_fail_after(1);
    ok(!mem_grow(&array, &cap, old_cap + 1, sizeof *array), "growing can fail");
    ok(array == old && cap == old_cap && array[cap - 1] == cap - 1, "and leaves the array as it was");
    ok(!mem_grow(&array, &cap, INT32_MAX, sizeof *array) && array == old && cap == old_cap,
       "as does one past every bound");
    ok(mem_grow(&array, &cap, 1000, sizeof *array) && cap >= 1000, "it grows as far as wanted");
    int kept = 0, zero = 0;
    for (int i = 0; i < old_cap; i++) kept += array[i] == i;
    for (int i = old_cap; i < cap; i++) zero += array[i] == 0;
    is_int(kept, old_cap, "the old items are kept");
    is_int(zero, cap - old_cap, "the new ones are zero");
    is_int(mem_live() - before, 1, "the old array is gone");
    mem_free(array);
}

int main(void) {
    test_new();
    test_fail();
    test_grow();
    return tap_done();
}
