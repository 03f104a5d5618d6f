/* The results file: csv.c, and damage of all kinds. t_csv_disk.c has what the disk and other processes do. */
#include <sys/stat.h>
#include <time.h>

#include "csv_files.h"

static void test_new(void) {
    bool torn = true;
    start_afresh();
    Csv *c = reopen(&torn);
    ok(access(path, F_OK) != 0, "opening creates no file");
    ok(!torn && csv_rows(c) == 0, "and there are no rows");
    ok(!csv_status(c, "5f3a", 0) && !csv_value(c, "5f3a", 0, "cell"), "so nothing is known");
    is_int(csv_append(c, fill("5f3a", 0, "ok", ""), &err), OK, "a row is appended");
    Text t = slurp(path);
    char *header = row_header_line(row, ROW_FORMAT), *line = row_line(row, ROW_FORMAT);
    ok(!strncmp(t.s, header, strlen(header)) && !strcmp(t.s + strlen(header), line), "the file is header and row");
    is_str(csv_status(c, "5f3a", 0), "ok", "a row of this session is known");
    ok(!csv_status(c, "5f3a", 1) && !csv_status(c, "5f3", 0), "others are not");
    csv_close(c);
    csv_close(NULL);
    mem_free(header);
    mem_free(line);
}

static void test_resume(void) {
    bool torn = true;
    Text before = file_of_three();
    Csv *c = reopen(&torn);
    ok(!torn, "nothing is torn");
    is_int(csv_rows(c), 3, "three rows are back");
    is_str(csv_status(c, "5f3a", 0), "ok", "status of the first");
    is_str(csv_status(c, "5f3a", 1), "oom", "of its repetition");
    is_str(csv_value(c, "5f3a", 1, "reason"), "wants \"1,024\" bytes\\nhas none", "quotes and commas come back");
    is_str(csv_value(c, "c001", 0, "reason"), "'=loss", "as does the guard of a formula");
    is_str(csv_value(c, "c001", 0, "peak_bytes"), "4096", "a number");
    is_str(csv_value(c, "c001", 0, "model"), "", "a value that was not set");
    ok(!csv_value(c, "c001", 0, "no_such") && !csv_value(c, "c002", 0, "model"), "no such column, no such row");
    csv_append(c, fill("5f3a", 1, "ok", "again"), &err);
    is_int(csv_rows(c), 3, "a cell that is run again is no further row");
    is_str(csv_status(c, "5f3a", 1), "ok", "the later row counts");
    csv_close(c);
    Text after = slurp(path);
    ok(after.n > before.n && !memcmp(before.s, after.s, before.n), "the file only grew");
    c = reopen(&torn);
    is_int(csv_rows(c), 3, "also when read back");
    is_str(csv_value(c, "5f3a", 1, "reason"), "again", "the later row counts");
    csv_close(c);
}

/* Rows of one cell with several networks, and one that gets its network later */
static void test_rename(void) {
    bool torn;
    start_afresh();
    Csv *c = reopen(&torn);
    ok(!csv_latest(c, "aa-11-22", 1), "no row has these settings yet");
    fill("aa-00-00", 1, "crashed", "");
    row_set_text(row, "case", "\"a\", b", &err);
    csv_append(c, row, &err);
    csv_append(c, fill("aa-00-00", 2, "crashed", ""), &err);
    csv_append(c, fill("ab-00-00", 1, "error", ""), &err);
    is_str(csv_latest(c, "aa-11-22", 1), "aa-00-00", "the row with the same settings");
    ok(!csv_latest(c, "aa-11-22", 3) && !csv_latest(c, "a-11-22", 1), "of the same repeat");
    Text before = slurp(path);
    is_int(csv_rename(c, "aa-00-00", 1, "aa-11-22", &err), OK, "it gets its network");
    ok(!csv_status(c, "aa-00-00", 1), "the old id has no row");
    is_str(csv_status(c, "aa-11-22", 1), "crashed", "the new one has");
    is_str(csv_status(c, "aa-00-00", 2), "crashed", "other repeats have theirs");
    Text after = slurp(path);
    char *at = strstr(before.s, "aa-00-00");
    ok(at && memcpy(at, "aa-11-22", 8) && same(&before, &after), "the file has the new id, and else what it had");
    static const char *const wrong[] = {"aa-11-2", "ab-11-22", "aa-11-22"}; /* the last: its own */
    for (int i = 0; i < 3; i++)
        ok(csv_rename(c, "aa-11-22", 1, wrong[i], &err) == ERR_INTERNAL, "refused: %s", wrong[i]);
    ok(csv_rename(c, "aa-33-33", 1, "aa-44-44", &err) == ERR_INTERNAL, "refused: no such row");
    csv_append(c, fill("aa-33-33", 1, "ok", ""), &err);
    is_str(csv_latest(c, "aa-00-00", 1), "aa-33-33", "of two networks the later row's");
    csv_append(c, fill("aa-11-22", 1, "ok", ""), &err);
    is_str(csv_latest(c, "aa-00-00", 1), "aa-11-22", "whichever was first");
    csv_close(c);
    c = reopen(&torn);
    is_int(csv_rows(c), 4, "four pairs of cell and repeat are read back");
    is_str(csv_status(c, "aa-11-22", 1), "ok", "the later row counts");
    is_str(csv_latest(c, "aa-00-00", 1), "aa-11-22", "and is the latest");
    csv_append(c, fill("ad-00-00", 1, "crashed", ""), &err);
    csv_append(c, fill("ad-00-00", 2, "crashed", ""), &err);
    csv_append(c, fill("ad-00-00", 1, "error", ""), &err);
    is_int(csv_rename(c, "ad-00-00", 1, "ad-11-22", &err), OK, "a row that has replaced another");
    is_int(csv_rows(c), 6, "two pairs more");
    is_str(csv_status(c, "ad-11-22", 1), "error", "the later one still counts");
    Text whole = slurp(path);
    ok(strstr(whole.s, "ad-00-00") && !strstr(strstr(whole.s, "ad-00-00") + 1, "ad-00-00"),
       "no row is left under the old id but that of another repeat");
    csv_append(c, fill("ad-00-00", 1, "oom", ""), &err);
    is_int(csv_rename(c, "ad-00-00", 1, "ad-11-22", &err), OK, "beside a row of the new id, as a crash may leave it");
    is_str(csv_status(c, "ad-11-22", 1), "oom", "the later of both counts");
    is_int(csv_rows(c), 6, "and they are one pair");
    csv_append(c, fill("ad-00-00", 1, "ok", ""), &err);
    csv_close(c);
    c = reopen(&torn);
    is_int(csv_rows(c), 7, "read back, with the old id once more");
    Text other = slurp(path);
    char *line = strstr(other.s, "ab-00-00");
    if (line) memcpy(line, "ac", 2);
    spit(path, other.s, other.n);
    is_int(csv_rename(c, "ab-00-00", 1, "ab-11-22", &err), ERR_INTERNAL, "refused: another program wrote over it");
    csv_close(c);
}

/* The file of three rows cut at every byte: no complete row is lost, and what was cut off is kept. */
static void test_torn(void) {
    Text whole = file_of_three();
    int bad = 0;
    for (size_t n = 0; n <= whole.n && bad < 5; n++) {
        bool torn = false;
        int lines = 0;
        size_t good = 0;
        for (size_t i = 0; i < n; i++)
            if (whole.s[i] == '\n') { lines++; good = i + 1; }
        start_afresh();
        spit(path, whole.s, n);
        Csv *c = reopen(&torn);
        int rows = lines ? lines - 1 : 0;
        bool right = c && csv_rows(c) == rows && torn == (good < n);
        for (int i = 0; c && i < 3; i++)
            right = right && !csv_status(c, three[i].cell, three[i].repeat) == (i >= rows);
        Text cut = slurp(path), kept = slurp(torn_path);
        right = right && cut.n == good && kept.n == (torn ? n - good + 1 : 0);
        if (torn) right = right && !memcmp(kept.s, whole.s + good, n - good) && kept.s[n - good] == '\n';
        append_three(c, rows);
        csv_close(c);
        Text again = slurp(path);
        if (right && same(&again, &whole)) continue;
        ok(false, "cut after %zu bytes", n);
        bad++;
    }
    ok(!bad, "a file cut at any of %zu bytes keeps its rows and can be completed", whole.n);
}

static void test_open_quote(void) {
    bool torn = false;
    Text t = file_of_three(), whole = t;
    strcpy(t.s + t.n, "x,\"y,z\n");
    spit(path, t.s, strlen(t.s));
    csv_close(reopen(&torn));
    Text after = slurp(path), kept = slurp(torn_path);
    ok(torn && same(&after, &whole), "a last line with an open quote is torn");
    is_str(kept.s, "x,\"y,z\n", "and kept");
    spit(path, t.s, strlen(t.s) - 3);
    csv_close(reopen(&torn));
    kept = slurp(torn_path);
    is_str(kept.s, "x,\"y,z\nx,\"y\n", "after it the next one");
    unlink(torn_path);
    ok(!mkdir(torn_path, 0700), "where FILE.torn cannot be written");
    spit(path, t.s, strlen(t.s));
    Csv *c;
    is_int(csv_open(path, row, &c, &torn, &err), ERR_FILE, "the file is refused");
    has_text(err.text, torn_path, "the message names FILE.torn");
    after = slurp(path);
    ok(after.n == strlen(t.s) && !torn && !c, "and nothing is cut off");
    rmdir(torn_path);
}

/* The file with `text` is refused with this message, and nothing is touched. */
static void check_refused(const char *data, size_t n, const char *message, const char *what) {
    bool torn = true;
    Csv *c;
    start_afresh();
    spit(path, data, n);
    is_int(csv_open(path, row, &c, &torn, &err), ERR_FORMAT, what);
    has_text(err.text, message, "the message says where");
    has_text(err.text, path, "and in which file");
    Text after = slurp(path);
    ok(!c && !torn && after.n == n && !memcmp(after.s, data, n) && access(torn_path, F_OK), "the file is untouched");
    csv_close(c);
}

/* `whole` with `from` (its first occurrence after the header where `row_only`) replaced by `to` */
static Text replaced(const Text *whole, const char *from, const char *to) {
    Text t = {0, ""};
    const char *at = strstr(whole->s, from);
    t.n = (size_t)snprintf(t.s, ROOM, "%.*s%s%s", (int)(at - whole->s), whole->s, to, at + strlen(from));
    return t;
}

static void test_damage(void) {
    static const struct { const char *from, *to, *message, *what; } cases[] = {
        {"5f3a,1,", "5f3a,1,,", "line 3: expected 49 fields, found 50", "a field too many"},
        {"5f3a,1,", "5f3a,1", "line 3: expected 49 fields, found 48", "a field too few"},
        {"5f3a,1,", "\n", "line 3: expected 49 fields, found 3", "a line broken in two"},
        {"5f3a,1,", "\"5f3a,1,", "line 3: a quote or a zero byte", "a stray quote before a field with quotes"},
        {"5f3a,0,", "\"5f3a,0,", "line 2: a quote is not closed", "an open quote that is not in the last line"},
        {"5f3a,0,", "5f\"3a,0,", "line 2: a quote or a zero byte", "a quote inside a field"},
        {"5f3a,0,", "\"5f\"3a,0,", "line 2: a quote or a zero byte", "text after a quote"},
        {",status,", ",foo,", "column 18 is \"foo\", expected \"status\"", "a column of another name"},
        {",status,", ",", "column 18 is \"reason\", expected \"status\"", "a column that is missing in the middle"},
        {",started_at", "", "column 49, \"started_at\", is missing", "a column that is missing at the end"},
        {",started_at", ",started_at,more", "column 50, \"more\", is not expected", "a column too many"},
        {",status,", ",\x1b[31m,", "column 18 is \"?[31m\"", "a name that would colour the terminal"},
        {"experiment,", "\"experiment,", "line 1: a quote is not closed", "an open quote in the header"},
        {"experiment,", "\nexperiment,", "column 1 is \"\", expected \"experiment\"", "an empty first line"},
    };
    Text whole = file_of_three();
    is_int(row_columns(row), 49, "rows have 49 columns");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Text t = replaced(&whole, cases[i].from, cases[i].to);
        check_refused(t.s, t.n, cases[i].message, cases[i].what);
    }
    Text t = whole;
    t.s[strstr(t.s, "5f3a,1") - t.s] = '\0';
    check_refused(t.s, t.n, "line 3: a quote or a zero byte", "a zero byte");
    t = whole;
    t.s[t.n++] = '\n';
    check_refused(t.s, t.n, "line 5: expected 49 fields, found 1", "an empty last line");
    check_refused("print(1)", 8, "column 1 is \"print(1)\"", "another file of one line, without a newline,");
    check_refused("experiment,case,xyz", 19, "column 3 is \"xyz\", expected \"cell\"", "one that starts like ours");
}

/* A file of each format: it is read, gone on with in that format, and refused where it is damaged. */
static void test_formats(void) {
    for (int format = 1; format <= ROW_FORMAT; format++) {
        char text[ROOM], expected[ROOM];
        bool torn = true;
        char *header = row_header_line(row, format), *line = row_line(fill("5f3a", 0, "ok", "a,b"), format);
        snprintf(text, sizeof text, "%s%s", header, line);
        start_afresh();
        spit(path, text, strlen(text));
        Csv *c = reopen(&torn);
        ok(!torn && csv_rows(c) == 1, "a file of format %d is read", format);
        is_str(csv_value(c, "5f3a", 0, "reason"), "a,b", "by the names of its columns");
        const char *known = csv_value(c, "5f3a", 0, "emulated");
        ok(format < 2 ? !known : known && !*known, "where a column is not there, nothing is known of it");
        fill("c001", 1, "crashed", "");
        row_set_text(row, "emulated", "bf16", &err);
        row_set_number(row, "graph_ms", 7.25, &err);
        row_set_text(row, "version", "1", &err);
        is_int(csv_append(c, row, &err), OK, "and gone on with");
        char *further = row_line(row, format);
        snprintf(expected, sizeof expected, "%s%s", text, further);
        Text after = slurp(path);
        is_str(after.s, expected, "in its own format");
        ok(!strstr(further, "bf16") == (format < 2) && !strstr(further, "7.25") == (format < 3), "which has no place for later columns");
        is_str(csv_value(c, "c001", 1, "version"), "1", "the others keep theirs");
        csv_close(c);
        const size_t whole = strlen(text), names = strlen(header);
        for (size_t n = 1; n < names; n++) {
            start_afresh();
            spit(path, text, n);
            c = reopen(&torn);
            if (!c || !torn || csv_rows(c)) ok(false, "a header of format %d, cut after %zu bytes", format, n);
            csv_close(c);
        }
        snprintf(expected, sizeof expected, "%.*s%s", (int)(strstr(text, "started_at") - text), text, "begun\n");
        char message[80];
        snprintf(message, sizeof message, "column %d is \"begun\", expected \"started_at\"", 46 + format);
        check_refused(expected, strlen(expected), message, "a damaged header of that format");
        snprintf(expected, sizeof expected, "%s,x\n", text);
        expected[whole - 1] = ',';
        check_refused(expected, strlen(expected), "line 2: expected", "a damaged row of that format");
        mem_free(header);
        mem_free(line);
        mem_free(further);
    }
}

static void test_line_ends(void) {
    Text whole = file_of_three(), t = {0, ""};
    bool torn = true;
    for (size_t i = 0; i < whole.n; i++) {
        if (whole.s[i] == '\n') t.s[t.n++] = '\r';
        t.s[t.n++] = whole.s[i];
    }
    spit(path, t.s, t.n);
    Csv *c = reopen(&torn);
    ok(!torn && csv_rows(c) == 3, "a file with CR LF, as a spreadsheet saves it, is read");
    is_str(csv_value(c, "c001", 0, "started_at"), "", "and the CR is no part of a value");
    csv_close(c);
}

static void test_bad_files(void) {
    Csv *c;
    char name[120];
    is_int(csv_open(folder, row, &c, NULL, &err), ERR_FILE, "a folder is refused");
    is_int(csv_open("/dev/full", row, &c, NULL, &err), ERR_FILE, "a device is refused");
    has_text(err.text, "\"/dev/full\" is not a regular file", "and the message says so");
    snprintf(name, sizeof name, "%s/none/x.csv", folder);
    is_int(csv_open(name, row, &c, NULL, &err), ERR_FILE, "a file in a folder that is not there is refused at once");
    has_text(err.text, strerror(ENOENT), "with the reason");
    file_of_three();
    c = reopen(NULL);
    Text t = slurp(path);
    spit(path, t.s, t.n - 1);
    is_int(csv_append(c, fill("d", 0, "ok", ""), &err), ERR_FILE, "a file that another program has changed is refused");
    has_text(err.text, "was changed by another program", "and the message says so");
    csv_close(c);
    file_of_three();
    c = reopen(NULL);
    unlink(path);
    is_int(csv_append(c, row, &err), ERR_FILE, "one that was removed is refused");
    has_text(err.text, "was removed or replaced", "and the message says so");
    csv_close(c);
    start_afresh();
    const char *axis = "width";
    Row *other = row_new(&axis, 1, &err);
    c = reopen(NULL);
    is_int(csv_append(c, other, &err), ERR_INTERNAL, "a row with other columns is refused");
    ok(access(path, F_OK) != 0, "before there is a file");
    csv_close(c);
    row_free(other);
}

static double seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void test_many(void) {
    enum { ROWS = 10000 };
    char cell[24];
    FILE *f = fopen(path, "wb");
    char *header = row_header_line(row, ROW_FORMAT);
    fputs(header, f);
    mem_free(header);
    for (int i = 0; i < ROWS; i++) {
        snprintf(cell, sizeof cell, "%08x", (unsigned)i * 2654435761u);
        char *line = row_line(fill(cell, i % 3, i % 2 ? "ok" : "oom", "some reason, quoted"), ROW_FORMAT);
        fputs(line, f);
        mem_free(line);
    }
    fclose(f);
    double start = seconds();
    Csv *c = reopen(NULL);
    double opened = seconds();
    int right = 0;
    for (int i = 0; i < ROWS; i++) {
        snprintf(cell, sizeof cell, "%08x", (unsigned)i * 2654435761u);
        const char *status = csv_status(c, cell, i % 3);
        right += status && !strcmp(status, i % 2 ? "ok" : "oom") && !csv_status(c, cell, 3);
    }
    double looked = seconds();
    printf("# %d rows: opened in %.3f s, looked up in %.3f s\n", ROWS, opened - start, looked - opened);
    is_int(csv_rows(c), ROWS, "10,000 rows are read");
    is_int(right, ROWS, "and all of them found, also those (about three pairs) that the index cannot tell apart");
    ok(looked - start < 1, "in less than a second of processor time");
    csv_close(c);
}

/* Rows are read in pieces: one that is longer than several of them. */
static void test_long(void) {
    enum { LENGTH = 50000 };
    static char reason[LENGTH + 1];
    memset(reason, 'r', LENGTH);
    file_of_three();
    Csv *c = reopen(NULL);
    is_int(csv_append(c, fill("long", 0, "error", reason), &err), OK, "a row of 50 kB is appended");
    is_int(csv_append(c, fill("next", 0, "ok", ""), &err), OK, "and one after it");
    for (int i = 0; i < 2; i++) {
        is_str(csv_value(c, "long", 0, "reason"), reason, "it is read back");
        is_str(csv_status(c, "next", 0), "ok", "and so is the next");
        csv_close(c);
        c = reopen(NULL);
    }
    csv_append(c, fill("long", 0, "ok", "short"), &err);
    is_str(csv_value(c, "long", 0, "reason"), "short", "a shorter one in its place counts");
    is_int(csv_rows(c), 5, "and is no further row");
    csv_close(c);
}

static uint64_t random_state = 20240607;
static size_t draw(size_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)(random_state >> 33) % below;
}

static void mutate(Text *t) {
    static const char bytes[] = ",\"\n\r\0'=a\xff";
    size_t at = draw(t->n), n = 1 + draw(8);
    if (n > t->n - at) n = t->n - at;
    switch (draw(4)) {
    case 0: t->s[at] = bytes[draw(sizeof bytes)]; break;
    case 1: t->s[at] ^= (char)(1 << draw(8)); break;
    case 2: memmove(t->s + at, t->s + at + n, t->n - at - n); t->n -= n; break;
    default: memmove(t->s + at + n, t->s + at, t->n - at); t->n += n; break;
    }
}

/* Whatever the bytes: refused and untouched, or accepted, and then fit to be appended to and read back. */
static void test_fuzz(void) {
    Text whole = file_of_three();
    int accepted = 0, refused = 0, bad = 0;
    size_t header = (size_t)(strchr(whole.s, '\n') - whole.s);
    for (int i = 0; i < 4000 && bad < 5; i++) {
        Text t = whole;
        size_t skip = i % 4 ? header : 0; /* mostly the rows: any change to the header is refused */
        Text part = {t.n - skip, ""};
        memcpy(part.s, t.s + skip, part.n);
        for (size_t k = 0; k <= draw(3); k++) mutate(&part);
        memcpy(t.s + skip, part.s, part.n);
        t.n = skip + part.n;
        spit(path, t.s, t.n);
        bool torn = false;
        Csv *c, *again;
        int code = csv_open(path, row, &c, &torn, &err);
        Text after = slurp(path);
        if (code) {
            refused++;
            bad += code != ERR_FORMAT || c || !same(&t, &after);
            continue;
        }
        accepted++;
        int64_t rows = csv_rows(c);
        bool good = after.n <= t.n && (after.n < t.n) == torn && !memcmp(after.s, t.s, after.n);
        good = good && !csv_append(c, fill("new", 0, "ok", ""), &err);
        csv_close(c);
        if (!csv_open(path, row, &again, &torn, &err)) {
            good = good && !torn && csv_rows(again) == rows + 1 && csv_status(again, "new", 0);
            csv_close(again);
        } else good = false;
        bad += !good;
    }
    printf("# %d accepted, %d refused\n", accepted, refused);
    ok(!bad && accepted > 200 && refused > 200, "4000 files of damaged bytes");
}

/* Opens a torn file of two rows and appends the third. */
static int complete(void) {
    Csv *c;
    int code = csv_open(path, row, &c, NULL, &err);
    if (!code) code = csv_append(c, row, &err);
    csv_close(c);
    return code;
}

static void test_memory(void) {
    Text whole = file_of_three();
    long before = mem_live(), n = 0;
    int code = ERR_HOST_MEMORY, bad = 0;
    fill(three[2].cell, three[2].repeat, three[2].status, three[2].reason);
    while (code && n < 1000) {
        spit(path, whole.s, whole.n - 5);
        mem_fail_after(++n);
        long live = mem_live();
        code = complete();
        mem_fail_after(0);
        bad += live != mem_live() || (code && code != ERR_HOST_MEMORY);
        Text after = slurp(path);
        if (code && after.n != whole.n - 5) bad += after.s[after.n - 1] != '\n' || memcmp(after.s, whole.s, after.n);
    }
    Text after = slurp(path);
    ok(!code && n > 10 && same(&after, &whole), "it fails at each of %ld allocations, and then works", n - 1);
    is_int(bad, 0, "with ERR_HOST_MEMORY, no memory and no row lost");
    spit(path, whole.s, whole.n);
    is_int(mem_live(), before, "all memory is back");
}

int main(void) {
    if (set_up()) return 1;
    test_new();
    test_resume();
    test_rename();
    test_torn();
    test_long();
    test_open_quote();
    test_damage();
    test_formats();
    test_line_ends();
    test_bad_files();
    test_many();
    test_fuzz();
    test_memory();
    return tear_down();
}
