/* Errors as values, and shapes: err.c, shape.c. */
#include "base/err.h"
#include "base/shape.h"
#include "tap.h"

static void test_err(void) {
    Err e = {0};
    is_int(err_set(&e, ERR_FILE, "expected %d, found %s", 3, "x"), ERR_FILE, "err_set returns its code");
    is_int(e.code, ERR_FILE, "and keeps it");
    is_str(e.text, "expected 3, found x", "the text is formatted");
    is_int(err_prefix(&e, "net.lua:%d", 8), ERR_FILE, "err_prefix returns the code that was there");
    is_str(e.text, "net.lua:8: expected 3, found x", "the prefix stands before the text");
    is_int(err_set(NULL, ERR_OOM, "nobody %s", "listens"), ERR_OOM, "err_set without an Err returns its code");
    is_int(err_prefix(NULL, "p"), ERR_INTERNAL, "err_prefix without an Err is an internal error");
}

static void test_long(void) {
    static char longer[3 * sizeof(((Err *)0)->text)];
    memset(longer, 'x', sizeof longer - 1);
    struct { Err e; char sentinel; } s = {{0}, 'S'};
    err_set(&s.e, ERR_SCRIPT, "a%s", longer);
    is_int((long long)strlen(s.e.text), sizeof s.e.text - 1, "a text that is too long is cut");
    err_prefix(&s.e, "before");
    ok(!strncmp(s.e.text, "before: axxx", 12), "a prefix before a full text pushes its end out");
    is_int((long long)strlen(s.e.text), sizeof s.e.text - 1, "which stays full");
    err_prefix(&s.e, "y%s", longer);
    ok(s.e.text[0] == 'y' && s.e.text[1] == 'x', "a prefix that is too long is cut");
    is_int((long long)strlen(s.e.text), sizeof s.e.text - 1, "and ends inside the text");
    is_int(s.sentinel, 'S', "nothing after the text is touched");
}

/* What a name in somebody else's file may hold. */
static void test_controls(void) {
    static char longer[ERR_TEXT];
    Err e = {0};
    err_set(&e, ERR_FORMAT, "found %s", "a\x1b[31m\n\x7f\xc2\x9b\xc3\x9b\xc2\xa0");
    is_str(e.text, "found a\\x1b[31m\\x0a\\x7f\\xc2\\x9b\xc3\x9b\xc2\xa0", "control characters are shown, others stay");
    err_prefix(&e, "b\t");
    is_str(e.text, "b\\x09: found a\\x1b[31m\\x0a\\x7f\\xc2\\x9b\xc3\x9b\xc2\xa0", "in a prefix too, and once");
    memset(longer, 1, sizeof longer - 1);
    err_set(&e, ERR_FORMAT, "%s", longer);
    is_int((long long)strlen(e.text), (ERR_TEXT - 1) / 4 * 4, "many of them are cut between two");
}

static void test_codes(void) {
    static const struct { int code, status; const char *name; } expected[] = {
        {ERR_OK, 0, "OK"}, {ERR_SCRIPT, 65, "SCRIPT"}, {ERR_OOM, 3, "OOM"}, {ERR_HOST_MEMORY, 71, "HOST_MEMORY"},
        {ERR_FILE, 66, "FILE"}, {ERR_FORMAT, 65, "FORMAT"}, {ERR_DEVICE, 69, "DEVICE"},
        {ERR_UNSUPPORTED, 69, "UNSUPPORTED"}, {ERR_INTERNAL, 70, "INTERNAL"},
        {-1, 70, "UNKNOWN"}, {ERR_CODE_COUNT, 70, "UNKNOWN"},
    };
    is_int(ERR_CODE_COUNT, ARRAY_LEN(expected) - 2, "every code is in this test");
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        is_str(err_name(expected[i].code), expected[i].name, expected[i].name);
        is_int(err_exit_status(expected[i].code), expected[i].status, "its exit status");
    }
}

static void test_shape_text(void) {
    char text[SHAPE_TEXT];
    Shape scalar = {0}, s = shape4(64, 3, 32, 31), t = shape2(5, 6), one = shape1(7);
    Shape full = shape4(INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN);
    is_str(shape_text(&scalar, text), "()", "the text of a scalar");
    is_str(shape_text(&one, text), "(7)", "of one dimension");
    is_str(shape_text(&s, text), "(64, 3, 32, 31)", "of four");
    is_str(shape_text(&full, text), "(-9223372036854775808, -9223372036854775808, -9223372036854775808, "
           "-9223372036854775808)", "the longest text fits");
    is_int(shape_elements(&s), 64 * 3 * 32 * 31, "elements");
    is_int(shape_elements(&scalar), 1, "a scalar has one element");
    ok(shape_equal(&s, &(Shape){4, {64, 3, 32, 31}}), "equal shapes");
    ok(!shape_equal(&s, &(Shape){4, {64, 3, 32, 30}}), "another last dimension");
    ok(!shape_equal(&t, &(Shape){3, {5, 6, 1, 1}}), "another rank");
    ok(shape_equal(&t, &(Shape){2, {5, 6, 9, 9}}), "dimensions beyond the rank do not count");
}

static void test_shape_count(void) {
    Err e;
    int64_t n = -5;
    Shape zero = shape2(3, 0), minus = shape4(1, 2, -1, 4), wide = shape1((int64_t)INT32_MAX + 1);
    Shape most = shape2(INT32_MAX, ((int64_t)1 << 28)), over = shape2(INT32_MAX, ((int64_t)1 << 28) + 1);
    Shape huge = shape4(INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX), scalar = {0};
    is_int(shape_count(&scalar, &n, &e), OK, "a scalar counts");
    is_int(n, 1, "as one");
    is_int(shape_count(&most, &n, &e), OK, "the product times 16 just fits");
    is_int(n, INT32_MAX * ((int64_t)1 << 28), "and is exact");
    is_int(shape_count(&over, &n, &e), ERR_SCRIPT, "one more does not");
    is_str(e.text, "shape (2147483647, 268435457) is too large", "the message has the shape");
    is_int(n, INT32_MAX * ((int64_t)1 << 28), "the count is as before");
    is_int(shape_count(&huge, &n, &e), ERR_SCRIPT, "a product that wraps around is refused");
    is_int(shape_count(&wide, &n, &e), ERR_SCRIPT, "a dimension that is no int32 is refused");
    is_int(shape_count(&zero, &n, &e), ERR_SCRIPT, "a dimension of zero is refused");
    is_str(e.text, "shape (3, 0): every dimension must be at least 1", "and said");
    is_int(shape_count(&minus, &n, &e), ERR_SCRIPT, "a negative one too");
}

int main(void) {
    test_err();
    test_long();
    test_controls();
    test_codes();
    test_shape_text();
    test_shape_count();
    return tap_done();
}
