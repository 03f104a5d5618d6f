/* Host memory for one piece of work: what it gives back, and that a failure stays. */
#include "base/mem.h"
#include "base/scratch.h"
#include "tap.h"

static void test_release(void) {
    Scratch s = {0};
    long before = mem_live();
    unsigned char *first = scratch_new(&s, 3, 100), *none = scratch_new(&s, 0, 4);
    int sum = 0;
    for (int i = 0; first && i < 300; i++) sum += first[i];
    ok(first && !sum && none, "memory is zero; no items can be had, too");
    is_int((long long)((uintptr_t)first % _Alignof(max_align_t)), 0, "aligned for everything");
    memset(first, 7, 300);
    void *mark = s.last;
    for (int i = 0; i < 5; i++) scratch_new(&s, 10, 10);
    is_int(mem_live() - before, 7, "seven are there");
    scratch_release(&s, mark);
    is_int(mem_live() - before, 2, "what came after the mark is gone");
    ok(first[0] == 7 && first[299] == 7, "and what came before it as it was");
    scratch_release(&s, NULL);
    is_int(mem_live(), before, "all of it is gone");
    scratch_release(&s, NULL);
    ok(!s.last && !s.failed, "nothing is left to give back");
}

static void test_failure(void) {
    Scratch s = {0};
    long before = mem_live();
    scratch_new(&s, 1, 8);
    mem_fail_after(1);
    ok(!scratch_new(&s, 1, 8) && s.failed, "an allocation fails");
    mem_fail_after(0);
    ok(!scratch_new(&s, 1, 8) && s.failed, "and so does each one after it");
    scratch_release(&s, NULL);
    is_int(mem_live(), before, "what was there before is given back");
    Scratch large = {0};
    ok(!scratch_new(&large, SIZE_MAX / 4, 8) && large.failed, "more items than bytes can be counted");
    Scratch nearly = {0};
    ok(!scratch_new(&nearly, SIZE_MAX, 1) && nearly.failed, "as many as leave no room for the block's head");
}

int main(void) {
    test_release();
    test_failure();
    return tap_done();
}
