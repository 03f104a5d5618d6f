/* Rows: row.c. */
#include <stdlib.h>

#include "base/mem.h"
#include "io/row.h"
#include "tap.h"

/* The order is part of the interface, so it is spelled out here. */
static const char HEADER[] =
    "experiment,case,cell,repeat,"
    "model,device,batch,accumulate,effective_batch,precision,checkpoint,inplace,mode,optimizer,"
    "allocator,workspace_limit,graph,"
    "width,\"depth, in \"\"blocks\"\"\","
    "status,reason,predicted_peak_bytes,lower_bound_bytes,"
    "peak_bytes,allocated_bytes,reserved_bytes,device_used_bytes,untracked_bytes,"
    "weights_bytes,gradients_bytes,optimizer_bytes,activations_bytes,activation_gradients_bytes,input_bytes,"
    "workspace_bytes,other_bytes,peak_op,"
    "steps,step_ms,step_ms_min,step_ms_p90,graph_ms,samples_per_s,loss_first,loss_last,"
    "seed,device_name,driver,emulated,version,started_at\n";
static const char *const axes[] = {"width", "depth, in \"blocks\""};

static void test_columns(void) {
    Err e;
    Row *r = row_new(axes, 2, &e), *plain = row_new(NULL, 0, &e);
    char *header = row_header_line(r, ROW_FORMAT), *short_header = row_header_line(plain, ROW_FORMAT);
    is_str(header, HEADER, "the header, with the script's axes after graph");
    has_text(short_header, "allocator,workspace_limit,graph,status,reason", "without axes");
    is_int(row_columns(r), row_columns(plain) + 2, "two columns more with two axes");
    is_str(row_column(r, 0), "experiment", "the first column");
    is_str(row_column(r, row_columns(r) - 1), "started_at", "the last column");
    static const char *const later[] = {"graph_ms,", "emulated,"}; /* of format 3, of format 2 */
    for (size_t i = 0; i < ARRAY_LEN(later); i++) {
        const int format = ROW_FORMAT - 1 - (int)i;
        char *older = row_header_line(r, format), *at = strstr(header, later[i]);
        const size_t n = strlen(later[i]);
        is_str(at ? memmove(at, at + n, strlen(at + n) + 1), header : "", older, "a format lacks what came later");
        mem_free(older);
    }
    mem_free(header);
    mem_free(short_header);
    row_free(plain);
    row_free(r);
    row_free(NULL);
}

static void test_axes(void) {
    static const struct { const char *axis[2], *text; } bad[] = {
        {{"width", "batch"}, "axis \"batch\": every result has a column of that name already"},
        {{"status", "width"}, "axis \"status\": every result has a column of that name already"},
        {{"width", "width"}, "axis \"width\" is given twice"},
        {{"", "width"}, "axis \"\": a name must not be empty, start with = + - @ or hold control characters"},
        {{"=A1", "width"}, "axis \"=A1\": a name must not be empty, start with = + - @ or hold control characters"},
        {{"a\nb", "width"}, "a name must not be empty"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        Err e = {0};
        Row *r = row_new(bad[i].axis, 2, &e);
        ok(!r && e.code == ERR_SCRIPT, "axes %zu are refused", i);
        has_text(e.text, bad[i].text, "and the message says why");
        row_free(r);
    }
}

/* The line of a row in which only `reason` is set */
static void check_reason(const char *text, const char *value, const char *in_file) {
    Err e;
    Row *r = row_new(NULL, 0, &e);
    int before = 0;
    while (strcmp(row_column(r, before), "reason") != 0) before++;
    is_int(row_set_text(r, "reason", text, &e), OK, "a text is set");
    is_str(row_get(r, "reason"), value, "its value");
    char *line = row_line(r, ROW_FORMAT), expected[200] = "";
    memset(expected, ',', (size_t)before);
    strcpy(expected + before, in_file);
    memset(expected + strlen(expected), ',', (size_t)(row_columns(r) - before - 1));
    strcat(expected, "\n");
    is_str(line, expected, "its line");
    mem_free(line);
    row_free(r);
}

static void test_text(void) {
    check_reason("plain", "plain", "plain");
    check_reason("", "", "");
    check_reason(" spaces ", " spaces ", " spaces ");
    check_reason("a,b", "a,b", "\"a,b\"");
    check_reason("\"", "\"", "\"\"\"\"");
    check_reason("say \"x\"", "say \"x\"", "\"say \"\"x\"\"\"");
    check_reason("two\nlines\r\n", "two\\nlines\\r\\n", "two\\nlines\\r\\n");
    check_reason("=1+2", "'=1+2", "'=1+2");
    check_reason("+1", "'+1", "'+1");
    check_reason("-1", "'-1", "'-1");
    check_reason("@SUM(A1)", "'@SUM(A1)", "'@SUM(A1)");
    check_reason("\tx", "'\tx", "'\tx");
    check_reason("\rx", "'\\rx", "'\\rx");
    check_reason("'=1", "'=1", "'=1");
    check_reason("a=1", "a=1", "a=1");
    check_reason("=\",\"", "'=\",\"", "\"'=\"\",\"\"\"");
    check_reason("gr\xc3\xb6\xc3\x9f" "e", "gr\xc3\xb6\xc3\x9f" "e", "gr\xc3\xb6\xc3\x9f" "e");
}

static void test_numbers(void) {
    Err e;
    Row *r = row_new(NULL, 0, &e);
    is_str(row_get(r, "peak_bytes"), "", "a value that is not set is empty");
    row_set_int(r, "peak_bytes", INT64_MAX, &e);
    is_str(row_get(r, "peak_bytes"), "9223372036854775807", "the largest whole number");
    row_set_int(r, "untracked_bytes", INT64_MIN, &e);
    is_str(row_get(r, "untracked_bytes"), "-9223372036854775808", "the smallest, not taken for a formula");
    row_set_number(r, "loss_last", -0.1, &e);
    is_str(row_get(r, "loss_last"), "-0.1", "a number in its shortest form");
    row_set_number(r, "loss_last", 0.1 + 0.2, &e);
    is_str(row_get(r, "loss_last"), "0.30000000000000004", "a later value replaces the earlier");
    row_set_number(r, "loss_first", NAN, &e);
    is_str(row_get(r, "loss_first"), "nan", "not a number");
    row_set_number(r, "step_ms", -INFINITY, &e);
    is_str(row_get(r, "step_ms"), "-inf", "an infinity");
    is_int(row_set_int(r, "no_such", 1, &e), ERR_INTERNAL, "a column that does not exist is an error");
    is_str(e.text, "a row has no column \"no_such\"", "which names it");
    is_int(row_set_text(r, "no_such", "x", &e), ERR_INTERNAL, "for text too");
    is_int(row_set_number(r, "no_such", 1, &e), ERR_INTERNAL, "for numbers too");
    is_str(row_get(r, "no_such"), "", "and its value is empty");
    row_clear(r);
    is_str(row_get(r, "peak_bytes"), "", "a cleared row has no values");
    is_int(row_set_int(r, "peak_bytes", 5, &e), OK, "but its columns");
    row_free(r);
}

/* All of it with the n-th allocation refused; returns whether it got through. */
static bool use(void) {
    Err e = {0};
    Row *r = row_new(axes, 2, &e);
    char *header = NULL, *line = NULL;
    bool done = r && !row_set_text(r, "reason", "a,\nb", &e) && !row_set_int(r, "peak_bytes", 5, &e) &&
                !row_set_number(r, "step_ms", 0.5, &e) && !row_set_text(r, "reason", "b", &e);
    if (done) done = (header = row_header_line(r, ROW_FORMAT)) != NULL && (line = row_line(r, ROW_FORMAT)) != NULL;
    else if (e.code != ERR_HOST_MEMORY) ok(false, "no memory is ERR_HOST_MEMORY, found %s", err_name(e.code));
    mem_free(header);
    mem_free(line);
    row_free(r);
    return done;
}

static void test_memory(void) {
    long before = mem_live(), n = 0, leaks = 0;
    bool done = false;
    while (!done && n < 1000) {
        mem_fail_after(++n);
        done = use();
        mem_fail_after(0);
        leaks += mem_live() != before;
    }
    ok(done && n > 50, "a row fails at each of its %ld allocations, and then works", n - 1);
    is_int(leaks, 0, "without losing memory");
    Err e = {0};
    Row *r = row_new(NULL, 0, &e);
    row_set_text(r, "reason", "old", &e);
    mem_fail_after(1);
    is_int(row_set_text(r, "reason", "new", &e), ERR_HOST_MEMORY, "no memory for a value");
    is_str(row_get(r, "reason"), "old", "leaves the one that was there");
    row_free(r);
}

int main(void) {
    test_columns();
    test_axes();
    test_text();
    test_numbers();
    test_memory();
    return tap_done();
}
