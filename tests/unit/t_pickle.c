/* Pickles of every protocol, byte by byte: what plain data is read as, and what is refused, with the opcode and its
 * place. FUZZ=n damages a good one so often (make fuzz-readers: many). */
#include <inttypes.h>

#include "data_files.h"
#include "io/pickle.h"
#include "io/pickle_write.h"
#include "math/rng.h"

static Err e;

static int open_bytes(const void *bytes, size_t n, Pickle **p) {
    FILE *f = fopen(path_x, "wb");
    *p = NULL;
    e = (Err){0};
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) return ok(0, "a file is written");
    return pickle_open(path_x, p, &e);
}

/* ---- a value as text */

typedef struct Out { char text[4096]; size_t n; } Out;

static void put(Out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(Out *o, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(o->text + o->n, sizeof o->text - o->n, format, args);
    va_end(args);
    o->n = o->n + (size_t)n < sizeof o->text ? o->n + (size_t)n : sizeof o->text - 1;
}

static void show(Out *o, PickleValue v, int depth) {
    PickleKind kind = pickle_kind(v);
    static const char *const open[] = {[PICKLE_LIST] = "[", [PICKLE_TUPLE] = "(", [PICKLE_DICT] = "{"},
        *const close[] = {[PICKLE_LIST] = "]", [PICKLE_TUPLE] = ")", [PICKLE_DICT] = "}"};
    if (kind == PICKLE_INT) put(o, "%" PRId64, pickle_int(v));
    else if (kind == PICKLE_BOOL) put(o, pickle_int(v) ? "True" : "False");
    else if (kind == PICKLE_FLOAT) put(o, "%gf", pickle_float(v));
    else if (kind == PICKLE_TEXT || kind == PICKLE_BYTES)
        put(o, "%s'%s'", kind == PICKLE_BYTES ? "b" : "", pickle_text(v));
    else if (kind < PICKLE_LIST) put(o, "%s", pickle_kind_name(kind));
    else if (depth == 0) put(o, "...");
    else {
        put(o, "%s", open[kind]);
        for (size_t i = 0; i < pickle_count(v); i++) {
            if (i) put(o, " ");
            if (kind == PICKLE_DICT) show(o, pickle_key(v, i), depth - 1), put(o, ":");
            show(o, pickle_item(v, i), depth - 1);
        }
        put(o, "%s", close[kind]);
    }
}

#define CASE(bytes, text) {bytes, sizeof bytes - 1, text}
typedef struct Case { const char *bytes; size_t n; const char *text; } Case;

static const Case good[] = {
    CASE("N.", "None"), CASE("I01\n.", "True"), CASE("I00\n.", "False"), CASE("\x80\2\x88.", "True"),
    CASE("\x80\2\x89.", "False"), CASE("I-12\n.", "-12"), CASE("L123L\n.", "123"), CASE("L-7L\n.", "-7"),
    CASE("L0\n.", "0"), CASE("I001\n.", "1"), CASE("K\xff.", "255"), CASE("M\1\2.", "513"),
    CASE("J\xff\xff\xff\xff.", "-1"), CASE("J\0\0\0\x80.", "-2147483648"), CASE("\x8a\0.", "0"),
    CASE("\x8a\1\xff.", "-1"), CASE("\x8a\2\xff\0.", "255"), CASE("\x8a\5\0\0\0\0\1.", "4294967296"),
    CASE("\x8b\2\0\0\0\0\1.", "256"), CASE("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x3f.", "4611686018427387903"),
    CASE("\x8a\x08\0\0\0\0\0\0\0\xc0.", "-4611686018427387904"),
    CASE("\x8a\x08\0\0\0\0\0\0\0\x40.", "a whole number of 2^62 or more"),
    CASE("\x8a\x09\0\0\0\0\0\0\0\0\1.", "a whole number of 2^62 or more"),
    CASE("L4611686018427387903L\n.", "4611686018427387903"),
    CASE("L4611686018427387904L\n.", "a whole number of 2^62 or more"),
    CASE("L99999999999999999999L\n.", "a whole number of 2^62 or more"),
    CASE("F1.5\n.", "1.5f"), CASE("G\x3f\xf8\0\0\0\0\0\0.", "1.5f"), CASE("G\xc0\0\0\0\0\0\0\0.", "-2f"),
    CASE("X\2\0\0\0ab.", "'ab'"), CASE("\x8c\2ab.", "'ab'"), CASE("\x8d\2\0\0\0\0\0\0\0ab.", "'ab'"),
    CASE("U\2ab.", "'ab'"), CASE("T\2\0\0\0ab.", "'ab'"), CASE("C\2ab.", "b'ab'"), CASE("B\1\0\0\0a.", "b'a'"),
    CASE("\x8e\1\0\0\0\0\0\0\0a.", "b'a'"), CASE("\x96\1\0\0\0\0\0\0\0a.", "b'a'"),
    CASE("Va\xe9\\u20ac\\U0001f600\\x\n.", "'a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\\x'"), CASE("V\n.", "''"),
    CASE("].", "[]"), CASE(").", "()"), CASE("}.", "{}"), CASE("(l.", "[]"), CASE("(d.", "{}"), CASE("(t.", "()"),
    CASE("(K\1K\2l.", "[1 2]"), CASE("(K\1K\2t.", "(1 2)"), CASE("(K\1K\2d.", "{1:2}"), CASE("K\1\x85.", "(1)"),
    CASE("K\1K\2\x86.", "(1 2)"), CASE("K\1K\2K\3\x87.", "(1 2 3)"), CASE("]K\1a.", "[1]"),
    CASE("](K\1K\2e.", "[1 2]"), CASE("](e.", "[]"), CASE("}K\1K\2s.", "{1:2}"), CASE("}(K\1K\2K\3K\4u.", "{1:2 3:4}"),
    CASE("](K\1e(K\2K\3eK\4aK\5aK\6a(K\7K\x08K\x09K\x0a" "e.", "[1 2 3 4 5 6 7 8 9 10]"),
    CASE("K\1K\2" "0.", "1"), CASE("K\1(K\2K\3" "1.", "1"), CASE("K\1(0.", "1"), CASE("]K\1" "2e", NULL),
    CASE("]K\1(22", NULL), CASE("](K\1" "2e.", "[1 1]"),
    CASE("\x80\4\x95\5\0\0\0\0\0\0\0]\x94(K\1h\0e.", "[1 [1 [1 ...]]]"), /* a list in itself */
    CASE("](X\1\0\0\0aq\5h\5j\5\0\0\0e.", "['a' 'a' 'a']"), CASE("(Va\np1\ng1\nt.", "('a' 'a')"),
    CASE("(K\1r\7\0\0\0h\7t.", NULL),
    CASE("(((lllK\1\x85t.", NULL),
};

static void test_good(void) {
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        Pickle *p;
        Out o = {.n = 0};
        int code = open_bytes(good[i].bytes, good[i].n, &p);
        if (!good[i].text) {
            ok(code == ERR_FORMAT && !p && e.text[0], "case %zu is damaged: %s", i, e.text);
            continue;
        }
        if (code) put(&o, "%s", e.text);
        else show(&o, pickle_root(p), 3);
        is_str(o.text, good[i].text, good[i].text);
        pickle_close(p);
    }
}

static const Case bad[] = {
    CASE("", "the file ends after 0 bytes, before STOP"), CASE("N", "the file ends after 1 bytes, before STOP"),
    CASE("\xff.", "byte 0: expected an opcode of a pickle, found 0xff"),
    CASE("\x80\6N.", "byte 0, PROTO: expected a protocol of at most 5, found 6"),
    CASE("cos\nsystem\n(X\2\0\0\0lstR.", "byte 0, GLOBAL: refused"), CASE("K\1K\2R.", "byte 4, REDUCE: refused"),
    CASE("}}b.", "byte 2, BUILD: refused"), CASE("(i", "byte 1, INST: refused"), CASE("(o", "byte 1, OBJ: refused"),
    CASE("P1\n.", "byte 0, PERSID: refused"), CASE("K\1Q.", "byte 2, BINPERSID: refused"),
    CASE("\x81", "byte 0, NEWOBJ: refused"), CASE("\x82\1", "byte 0, EXT1: refused"),
    CASE("\x83\1\0", "byte 0, EXT2: refused"), CASE("\x84\1\0\0\0", "byte 0, EXT4: refused"),
    CASE("\x8f", "byte 0, EMPTY_SET: refused"), CASE("(\x90", "byte 1, ADDITEMS: refused"),
    CASE("(\x91", "byte 1, FROZENSET: refused"), CASE("\x92", "byte 0, NEWOBJ_EX: refused"),
    CASE("\x8c\2os\x8c\6system\x93.", "byte 12, STACK_GLOBAL: refused"), CASE("\x97", "byte 0, NEXT_BUFFER: refused"),
    CASE("\x98", "byte 0, READONLY_BUFFER: refused"), CASE("S'a'\n.", "byte 0, STRING: refused"),
    CASE("NN.", "byte 2, STOP: expected one value on the stack, found 2 and 0 open marks"),
    CASE(".", "byte 0, STOP: expected one value on the stack, found 0"),
    CASE("(N.", "expected one value on the stack, found 1 and 1 open marks"),
    CASE("N.N", "byte 1, STOP: expected the end of the file after it, found 1 more bytes"),
    CASE("0", "byte 0, POP: expected 1 value on the stack, found 0"), CASE("1", "POP_MARK: expected a mark"),
    CASE("l", "LIST: expected a mark on the stack, found none"), CASE("K\1(2.", "DUP: expected 1 value on the stack"),
    CASE("](a", "APPEND: expected 2 values on the stack, found 0"),
    CASE("}K\1a", "byte 3, APPEND: expected a list to add to, found a dict"),
    CASE("]K\1K\1s", "SETITEM: expected a dict to add to, found a list"),
    CASE("(K\1e", "APPENDS: expected a list to add to, found nothing"),
    CASE("}(K\1u", "SETITEMS: expected pairs of a key and a value, found 1 values"),
    CASE("}]K\1s", "SETITEM: expected a key such as a text, found a list"),
    CASE("}}K\1s", "SETITEM: expected a key such as a text, found a dict"),
    CASE("K\1\x86", "TUPLE2: expected 2 values on the stack, found 1"),
    CASE("h\0", "BINGET: expected a place in the memo that was filled, found 0"),
    CASE("Nq\1h\0", "byte 3, BINGET: expected a place in the memo that was filled, found 0"),
    CASE("Nr\xff\xff\xff\xff.", "byte 1, LONG_BINPUT: expected a place in the memo of at most 1, found 4294967295"),
    CASE("q\0", "BINPUT: expected 1 value on the stack, found 0"), CASE("\x94", "MEMOIZE: expected 1 value"),
    CASE("Np\n.", "PUT: expected a place in the memo"), CASE("Np1x\n.", "PUT: expected a place in the memo"),
    CASE("g99999999999\n", "GET: expected a place in the memo"),
    CASE("X\3\0\0\0ab", "byte 0, BINUNICODE: expected at most 2 bytes, which the file still has, found a length of 3"),
    CASE("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "found a length of 18446744073709551615"),
    CASE("\x95\5\0\0\0\0\0\0\0N.", "FRAME: expected at most 2 bytes, which the file still has, found a length of 5"),
    CASE("\x8b\xff\xff\xff\xff", "LONG4: expected at most 0 bytes"),
    CASE("M\1", "BININT2: the file ends after 2 bytes"),
    CASE("G\1", "BINFLOAT: the file ends"), CASE("I12", "INT: the file ends"), CASE("I\n.", "expected a whole number"),
    CASE("I1L\n.", "INT: expected a whole number"), CASE("I1 2\n.", "expected a whole number"),
    CASE("L--1L\n.", "LONG: expected a whole number"), CASE("F\n.", "FLOAT: expected a number"),
    CASE("F1.5x\n.", "FLOAT: expected a number"), CASE("V\\u12\n.", "UNICODE: expected 4 hexadecimal digits after \\u"),
    CASE("V\\U00110000\n.", "UNICODE: expected 8 hexadecimal digits after \\U"), CASE("V\\uzzzz\n.", "hexadecimal"),
};

static void test_bad(void) {
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        Pickle *p;
        long live = mem_live();
        int code = open_bytes(bad[i].bytes, bad[i].n, &p);
        if (!ok(code == ERR_FORMAT && !p && mem_live() == live && strstr(e.text, bad[i].text) &&
                strstr(e.text, path_x), "refused: %s", bad[i].text))
            printf("# code %d: %s\n", code, e.text);
    }
    Pickle *p = NULL;
    is_int(pickle_open("/nowhere/x", &p, &e), ERR_FILE, "a file that is not there");
    is_int(pickle_open(folder, &p, &e), ERR_FILE, "a folder is no file");
}

static void test_depth(void) {
    static char bytes[PICKLE_DEPTH + 2];
    Pickle *p;
    memset(bytes, '(', sizeof bytes);
    is_int(open_bytes(bytes, PICKLE_DEPTH + 1, &p), ERR_FORMAT, "too many marks");
    has_text(e.text, "byte 1000, MARK: expected at most 1000 open marks", "... are named");
    /* lists in lists need no marks: there depth costs nothing, and nobody recurses */
    static char deep[400001];
    memset(deep, ']', 200000);
    memset(deep + 200000, 'a', 199999);
    deep[399999] = '.';
    is_int(open_bytes(deep, 400000, &p), OK, "200,000 lists, each in the next");
    int depth = 0;
    for (PickleValue v = pickle_root(p); pickle_count(v); v = pickle_item(v, 0)) depth++;
    is_int(depth, 199999, "... are all there");
    pickle_close(p);
}

static void test_values(void) {
    static const char bytes[] = "}(X\1\0\0\0aK\1X\1\0\0\0bX\1\0\0\0aX\1\0\0\0aK\2u.";
    Pickle *p;
    is_int(open_bytes(bytes, sizeof bytes - 1, &p), OK, "a dict");
    PickleValue d = pickle_root(p), a = pickle_find(p, "a"), b = pickle_find(p, "b");
    is_int(pickle_kind(pickle_find(p, "c")), PICKLE_ABSENT, "a text that is nowhere");
    is_int(pickle_kind(pickle_get(d, pickle_find(p, "c"))), PICKLE_ABSENT, "... is no key");
    is_int(pickle_int(pickle_get(d, a)), 2, "the later of two equal keys");
    ok(pickle_get(d, b).word == a.word, "equal texts are one");
    is_int(pickle_kind(pickle_get(a, a)), PICKLE_ABSENT, "a text has no keys");
    is_int(pickle_int(d), 0, "a dict is no number");
    is_str(pickle_text(d), "", "... and no text");
    is_int((long long)pickle_count(pickle_get(d, a)), 0, "a number has no items");
    is_int(pickle_kind(pickle_item(d, 3)), PICKLE_ABSENT, "there is no fourth pair");
    ok(pickle_float(pickle_get(d, a)) == 2, "a whole number is a number");
    pickle_close(p);
}

/* A text of any length, across the pieces in which a file is read. */
static void test_long(void) {
    enum { LONG = 200000 };
    static char bytes[LONG + 16];
    Pickle *p;
    static const size_t lengths[] = {65531, 65536, 65537, 131072, LONG};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        uint32_t n = (uint32_t)lengths[i];
        bytes[0] = 'X';
        memcpy(bytes + 1, &n, 4);
        for (size_t k = 0; k < n; k++) bytes[5 + k] = (char)('a' + k % 23);
        bytes[5 + n] = '.';
        int code = open_bytes(bytes, n + 6, &p);
        ok(!code && pickle_count(pickle_root(p)) == n && !memcmp(pickle_text(pickle_root(p)), bytes + 5, n) &&
           !pickle_text(pickle_root(p))[n], "a text of %u bytes", n);
        pickle_close(p);
    }
}

/* ---- the writer: what it writes is read as the same */

static void put_pair(PickleFile *f, const char *key, int64_t value) {
    pickle_put_text(f, key, strlen(key));
    pickle_put_int(f, value);
    pickle_set(f);
}

/* {"a": None, "b": [True, False, {"n": -1}, the same, "Z\u00fcrich?"], numbers at the ends of each opcode} */
static void put_sample(PickleFile *f) {
    static const int64_t numbers[] = {0, 255, 256, 65536, INT32_MAX, INT32_MIN, (int64_t)INT32_MAX + 1, -(INT64_C(1) << 61)};
    pickle_put_dict(f);
    pickle_put_text(f, "a", 1);
    pickle_remember(f, 0);
    pickle_put_none(f);
    pickle_set(f);
    pickle_put_text(f, "b", 1);
    pickle_put_list(f);
    pickle_put_bool(f, true);
    pickle_append(f);
    pickle_put_bool(f, false);
    pickle_append(f);
    pickle_put_dict(f);
    pickle_remember(f, 1);
    put_pair(f, "n", -1);
    pickle_append(f);
    pickle_put_again(f, 1);
    pickle_append(f);
    pickle_put_text(f, "Z\xc3\xbcrich\xff", 8);
    pickle_append(f);
    pickle_set(f);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) put_pair(f, (char[]){(char)('c' + i), 0}, numbers[i]);
}

static int write_sample(const char *path) {
    PickleFile *f;
    e = (Err){0};
    int code = pickle_new(path, &f, &e);
    if (code) return code;
    put_sample(f);
    return pickle_finish(f, &e);
}

static void test_write(void) {
    Pickle *p = NULL;
    Out o = {.n = 0};
    is_int(write_sample(path_x), OK, "a pickle is written");
    is_int(pickle_open(path_x, &p, &e), OK, "... and read back");
    if (!p) return;
    show(&o, pickle_root(p), 4);
    is_str(o.text, "{'a':None 'b':[True False {'n':-1} {'n':-1} 'Z\xc3\xbcrich?'] 'c':0 'd':255 'e':256 'f':65536 'g':2147483647 "
           "'h':-2147483648 'i':2147483648 'j':-2305843009213693952}", "... as the same");
    PickleValue list = pickle_get(pickle_root(p), pickle_find(p, "b"));
    ok(pickle_item(list, 2).word == pickle_item(list, 3).word, "what is put again is the same object");
    pickle_close(p);
}

static void test_write_fails(void) {
    static const char *const paths[] = {"/nowhere/x", "/dev/full", "/"};
    long before = mem_live(), failures = 0;
    int code = ERR_HOST_MEMORY;
    PickleFile *f;
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        is_int(write_sample(paths[i]), ERR_FILE, paths[i]);
        ok(strstr(e.text, "cannot write ") == e.text && strstr(e.text, paths[i]), "... and it says so: %s", e.text);
    }
    is_int(pickle_new(path_y, &f, &e), OK, "a pickle is begun");
    put_sample(f);
    pickle_discard(f);
    ok(access(path_y, F_OK), "... and dropped: there is no file");
    for (long k = 1; code == ERR_HOST_MEMORY && k < 100; k++) {
        mem_fail_after(k);
        code = write_sample(path_x);
        mem_fail_after(0);
        failures += code == ERR_HOST_MEMORY && mem_live() == before;
    }
    ok(code == OK && failures > 1 && mem_live() == before, "each of %ld host allocations fails once, nothing stays", failures);
}

static const char sample[] = "\x80\4\x95\x40\0\0\0\0\0\0\0}\x94(\x8c\1a\x94]\x94(K\1M\2\1J\3\0\0\0\x8a\6\1\2\3\4\5\6"
    "G\x3f\xf8\0\0\0\0\0\0eh\1C\2xyX\2\0\0\0pq)\x8c\1b\x94N\x88\x86h\3h\2\x85Vz\\u20ac\nI5\nF0.25\nK\1K\7L9L\nu.";

static void test_memory(void) {
    long before = mem_live(), failures = 0;
    int code = ERR_HOST_MEMORY;
    Pickle *p = NULL;
    if (open_bytes(sample, sizeof sample - 1, &p)) printf("# %s\n", e.text);
    ok(p != NULL, "a pickle of everything");
    pickle_close(p);
    for (long k = 1; code == ERR_HOST_MEMORY && k < 100; k++) {
        mem_fail_after(k);
        code = open_bytes(sample, sizeof sample - 1, &p);
        mem_fail_after(0);
        failures += code == ERR_HOST_MEMORY && mem_live() == before;
        if (failures < k && code) break;
    }
    ok(code == OK && failures > 3, "each of %ld host allocations fails once, nothing stays", failures);
    pickle_close(p);
}

/* Damaged in one to four places: read, or refused with a message; nothing stays. */
static void test_damaged(void) {
    const char *fuzz = getenv("FUZZ");
    long n = fuzz ? atol(fuzz) : 2000, live = mem_live(), wrong = 0, refused = 0;
    for (long i = 0; i < n; i++) {
        char bytes[sizeof sample];
        Pickle *p;
        Out o = {.n = 0};
        memcpy(bytes, sample, sizeof sample);
        for (uint32_t k = 0; k <= i % 4; k++) {
            Philox r = philox(7, RNG_NOISE, k, 0, (uint64_t)i);
            bytes[r.x[0] % (sizeof sample - 1)] = (char)r.x[1];
        }
        int code = open_bytes(bytes, sizeof sample - 1, &p);
        if (!code) show(&o, pickle_root(p), 4);
        else refused++;
        pickle_close(p);
        wrong += (code != OK && (code != ERR_FORMAT || !e.text[0])) || mem_live() != live;
    }
    ok(!wrong && refused > n / 10, "%ld damaged pickles, %ld of them refused", n, refused);
}

int main(void) {
    folder_make();
    test_good();
    test_bad();
    test_depth();
    test_values();
    test_long();
    test_write();
    test_write_fails();
    test_memory();
    test_damaged();
    folder_remove();
    return tap_done();
}
