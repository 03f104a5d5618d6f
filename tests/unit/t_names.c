/* Names: found by number, whatever moves or is added. */
#include "base/names.h"

#include "each_failure.h"

enum { MANY = 5000 };
typedef struct Thing { char name[32]; } Thing;
static Thing things[MANY];

static const char *name_of(const void *all, int i) { return ((const Thing *)all)[i].name; }

static void test_many(void) {
    Names names = {0};
    int wrong = 0;
    is_int(names_find(&names, "thing 0", name_of, things), -1, "nothing is in an empty index");
    for (int i = 0; i < MANY; i++) {
        snprintf(things[i].name, sizeof things[i].name, "thing %d", i);
        wrong += names_add(&names, i, name_of, things) != i;
        wrong += names_find(&names, things[i].name, name_of, things) != i;
    }
    for (int i = 0; i < MANY; i++) wrong += names_find(&names, things[i].name, name_of, things) != i;
    is_int(wrong, 0, "each of 5000 is found, at once and at the end");
    is_int(names_find(&names, "thing 5000", name_of, things), -1, "another is not");
    names_free(&names);
    is_int(names.n, 0, "and none when it is freed");
}

static void test_first_of_equals(void) {
    Thing three[] = {{"a"}, {"b"}, {"a"}};
    Names names = {0};
    int added[3];
    for (int i = 0; i < 3; i++) added[i] = names_add(&names, i, name_of, three);
    ok(added[0] == 0 && added[1] == 1 && added[2] == 0, "what is added tells which thing has its name");
    is_int(names_find(&names, "a", name_of, three), 0, "of equal names the first is found");
    is_int(names.n, 2, "and the second takes no place");
    int at = names_place(&names, "b", name_of, three);
    three[2] = three[1];
    names.slot[at] = 1 + 2;
    is_int(names_find(&names, "b", name_of, three), 2, "a thing that has moved");
    is_int(names_place(&names, "c", name_of, three), -1, "what is not there has no place");
    names_free(&names);
}

/* Names that differ in one byte, wherever it is and however long they are; also where one is the other with a byte more. */
static void test_alike(void) {
    enum { LENGTH = 30, OTHER = 'b' };
    Thing alike[2 * LENGTH];
    Names names = {0};
    int wrong = 0;
    for (int i = 0; i < 2 * LENGTH; i++) {
        const int n = i < LENGTH ? i + 1 : LENGTH;
        memset(alike[i].name, 'a', (size_t)n);
        alike[i].name[n] = 0;
        if (i >= LENGTH) alike[i].name[i - LENGTH] = OTHER;
        wrong += names_add(&names, i, name_of, alike) != i;
    }
    for (int i = 0; i < 2 * LENGTH; i++) wrong += names_find(&names, alike[i].name, name_of, alike) != i;
    is_int(wrong, 0, "names that differ in one byte are different");
    names_free(&names);
}

static int add_all(void *arg, Err *e) {
    Names names = {0};
    (void)arg;
    int code = OK;
    for (int i = 0; i < MANY && !code; i++)
        if (names_add(&names, i, name_of, things) < 0) code = err_set(e, ERR_HOST_MEMORY, "no host memory");
    names_free(&names);
    return code;
}

int main(void) {
    test_many();
    test_first_of_equals();
    test_alike();
    each_failure(add_all, NULL, 8, "an index that grows");
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
