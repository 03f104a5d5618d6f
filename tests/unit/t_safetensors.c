/* safetensors files: what is written is read back equal; what is malformed is refused by name and leaves nothing
 * after. The last part feeds damaged headers: FUZZ=n sets how many, SEED=n where they start (make fuzz: many). */
#include <dirent.h>

#include "data_files.h"
#include "math/rng.h"
#include "io/safetensors.h"

static Err e;

/* A file of this header, padded by `spaces`, and `data` bytes 0, 1, 2, ... after it. */
static Blob file(const char *header, size_t spaces, size_t data) {
    Blob b = {.n = 0};
    uint64_t length = strlen(header) + spaces;
    blob_add(&b, &length, sizeof length);
    blob_add(&b, header, strlen(header));
    memset(b.at + b.n, ' ', spaces);
    b.n += spaces;
    for (size_t i = 0; i < data; i++) b.at[b.n++] = (unsigned char)i;
    return b;
}

static int open_blob(const Blob *b, Safetensors **s) {
    blob_write(path_x, b, b->n, false);
    *s = NULL;
    return safetensors_open(path_x, s, &e);
}

static void refused(const char *header, size_t data, const char *text) {
    Safetensors *s;
    Blob b = file(header, 0, data);
    long live = mem_live();
    int code = open_blob(&b, &s);
    if (!ok(code == ERR_FORMAT && !s && mem_live() == live && strstr(e.text, text) && strstr(e.text, path_x),
            "refused: %s", text))
        printf("# code %d: %s; %ld live\n", code, code ? e.text : "", mem_live() - live);
    safetensors_close(s);
}

#define TENSOR(name, type, shape, offsets) "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape                     \
    ",\"data_offsets\":" offsets "}"

static void test_refused(void) {
    refused("", 0, "expected a header that begins with '{'");
    refused(" {}", 0, "expected a header that begins with '{'");
    refused("{", 0, "expected a string at byte 1, found the end");
    refused("{}x", 0, "expected the end of the text at byte 2, found 'x'");
    refused("{}", 3, "expected 0 bytes of data for its tensors, found 3");
    refused("{\"a\" 1}", 0, "expected ':' at byte 5, found '1'");
    refused("{\"a\":[]}", 0, "expected '{' at byte 5, found '['");
    refused("{\"a\":{}}", 0, "tensor \"a\": expected dtype, found none");
    refused("{\"a\":{\"dtype\":\"F32\"}}", 0, "tensor \"a\": expected shape, found none");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "tensor \"a\": expected data_offsets, found none");
    refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "tensor \"a\": dtype: expected once, found twice");
    refused("{\"a\":{\"order\":1}}", 0, "tensor \"a\": expected dtype, shape and data_offsets, found \"order\"");
    refused("{" TENSOR("a", "F33", "[]", "[0,4]") "}", 4, "tensor \"a\": dtype: expected a type such as F32, found");
    refused("{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "expected a whole number that is not negative at byte");
    refused("{" TENSOR("a", "F32", "[1.5]", "[0,4]") "}", 4, "expected a whole number that is not negative at byte");
    refused("{" TENSOR("a", "F32", "[1e0]", "[0,4]") "}", 4, "expected a whole number that is not negative at byte");
    refused("{" TENSOR("a", "F32", "[01]", "[0,4]") "}", 4, "expected a number without leading zeros");
    refused("{" TENSOR("a", "F32", "[9223372036854775808]", "[0,4]") "}", 4, "expected a number below 2^63");
    refused("{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "shape: expected at most 8 numbers");
    refused("{" TENSOR("a", "F32", "[1,]", "[0,4]") "}", 4, "expected a whole number");
    refused("{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "data_offsets: expected 2 numbers, found 1");
    refused("{" TENSOR("a", "F32", "[1]", "[0,4,8]") "}", 4, "data_offsets: expected at most 2 numbers");
    refused("{" TENSOR("a", "F32", "[1]", "[4,0]") "}", 4, "data_offsets: expected a range of the file's 4 bytes");
    refused("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 4, "range of the file's 4 bytes of data, found [0, 8]");
    refused("{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4, "expected 8 bytes for its dtype F32 and shape, found 4");
    refused("{" TENSOR("a", "F4", "[3]", "[0,1]") "}", 1, "bytes for its dtype F4 and shape, found 1");
    refused("{" TENSOR("a", "U8", "[4611686018427387904,16]", "[0,0]") "}", 0, "expected more than");
    refused("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[2,6]") "}", 6,
            "tensor \"b\": data_offsets: expected to begin at 4, where the tensor before it ends, found 2");
    refused("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[5,9]") "}", 9,
            "tensor \"b\": data_offsets: expected to begin at 4");
    refused("{" TENSOR("a", "F32", "[1]", "[1,5]") "}", 5, "tensor \"a\": data_offsets: expected to begin at 0");
    refused("{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 5, "expected 4 bytes of data for its tensors, found 5");
    refused("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("\\u0061", "F32", "[1]", "[4,8]") "}", 8,
            "tensor \"a\": expected once, found twice");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "expected __metadata__ once, found it twice");
    refused("{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}", 0, "__metadata__: expected \"k\" once, found it twice");
    refused("{\"__metadata__\":{\"k\":1}}", 0, "expected a string at byte 21, found '1'");
    refused("{\"\xff\":1}", 0, "expected UTF-8 at byte 2, found byte 0xff");
    refused("{\"\xc0\xaf\":1}", 0, "expected UTF-8 at byte 2");
    refused("{\"\xed\xa0\x80\":1}", 0, "expected UTF-8 at byte 2");
    refused("{\"\xf4\x90\x80\x80\":1}", 0, "expected UTF-8 at byte 2");
    refused("{\"\xe2\x82", 0, "expected UTF-8 at byte 2");
    refused("{\"a\nb\":1}", 0, "expected no bare control character in a string at byte 3, found byte 0x0a");
    refused("{\"\\x\":1}", 0, "expected an escape such as \\n at byte 3");
    refused("{\"\\u00g0\":1}", 0, "expected four hexadecimal digits at byte 6, found 'g'");
    refused("{\"\\u0000\":1}", 0, "is zero or half of a surrogate pair");
    refused("{\"\\ud800\":1}", 0, "expected the second half of a surrogate pair");
    refused("{\"\\ud800\\u0041\":1}", 0, "is zero or half of a surrogate pair");
    refused("{\"\\udc00\":1}", 0, "is zero or half of a surrogate pair");
    refused("{\"abc", 0, "expected the end of a string at byte 5, found the end");
}

static void test_lengths(void) {
    static const struct { uint64_t length; size_t bytes; const char *text; } cases[] = {
        {0, 0, "expected at least 8 bytes, found 0"}, {0, 7, "expected at least 8 bytes, found 7"},
        {3, 10, "expected a header of 3 bytes, found a file of 10"},
        {UINT64_MAX, 64, "expected a header of at most 100000000 bytes"},
        {100000000, 64, "expected a header of 100000000 bytes, found a file of 64"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Safetensors *s;
        Blob b = {.n = cases[i].bytes};
        memcpy(b.at, &cases[i].length, 8);
        is_int(open_blob(&b, &s), ERR_FORMAT, "a wrong length is refused");
        has_text(e.text, cases[i].text, "... with its numbers");
    }
    Safetensors *s;
    is_int(safetensors_open("/nowhere/x", &s, &e), ERR_FILE, "a file that is not there");
    is_int(safetensors_open(folder, &s, &e), ERR_FILE, "a folder is no file");
}

/* ---- values */

static void test_values(void) {
    static const struct { const char *type, *shape; size_t bytes; DType as; double first, last; } cases[] = {
        {"F32", "[2]", 8, DT_F32, 1, -2.5}, {"F16", "[2]", 4, DT_F32, 1, -2.5}, {"BF16", "[2]", 4, DT_F32, 1, -2.5},
        {"F64", "[1,2]", 16, DT_F32, 1, -2.5}, {"I32", "[2]", 8, DT_I32, 1, -3}, {"I64", "[2]", 16, DT_I32, 1, -3},
        {"U8", "[2]", 2, DT_I32, 1, 253}, {"BOOL", "[2]", 2, DT_I32, 1, 1}};
    const float f32[2] = {1, -2.5f};
    const double f64[2] = {1, -2.5};
    const uint16_t f16[2] = {f16_from_f32(1), f16_from_f32(-2.5f)}, bf16[2] = {bf16_from_f32(1), bf16_from_f32(-2.5f)};
    const int32_t i32[2] = {1, -3};
    const int64_t i64[2] = {1, -3};
    const uint8_t u8[2] = {1, 253};
    const void *const data[] = {f32, f16, bf16, f64, i32, i64, u8, u8};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Safetensors *s;
        char header[200];
        snprintf(header, sizeof header, "{\"t\":{\"shape\":%s, \"dtype\":\"%s\",\n\"data_offsets\":[0,%zu]}}",
                 cases[i].shape, cases[i].type, cases[i].bytes);
        Blob b = file(header, i, 0);
        blob_add(&b, data[i], cases[i].bytes);
        union { float f[2]; int32_t i[2]; } v = {{0, 0}};
        bool good = !open_blob(&b, &s);
        const Tensor *t = good ? safetensors_find(s, "t") : NULL;
        bool floats = cases[i].as == DT_F32;
        ok(t && !safetensors_read(s, t, cases[i].as, &v, &e) && (floats ? v.f[0] : v.i[0]) == cases[i].first &&
           (floats ? v.f[1] : v.i[1]) == cases[i].last, "%s is read", cases[i].type);
        ok(t && safetensors_read(s, t, floats ? DT_I32 : DT_F32, &v, &e) == ERR_UNSUPPORTED &&
           strstr(e.text, "tensor \"t\": expected ") && strstr(e.text, cases[i].type), "%s as the other is refused",
           cases[i].type);
        safetensors_close(s);
    }
}

static void test_odd_files(void) {
    Safetensors *s;
    int n;
    float value[2];
    Blob b = file("{}", 0, 0);
    ok(!open_blob(&b, &s) && (safetensors_tensors(s, &n), n == 0) && !safetensors_find(s, "a"), "a file of nothing");
    safetensors_close(s);
    b = file("{" TENSOR("z", "C64", "[]", "[2,10]") "," TENSOR("none", "F32", "[0,7]", "[2,2]") ","
             TENSOR("a\\\"\\u20ac\\ud83d\\ude00", "F4", "[4]", "[0,2]") "}", 6, 10);
    ok(!open_blob(&b, &s), "types that are not loaded, no elements, a scalar, and escapes in a name");
    ok(safetensors_find(s, "a\"\xe2\x82\xac\xf0\x9f\x98\x80") && safetensors_tensors(s, &n) && n == 3, "are there");
    is_int(safetensors_read(s, safetensors_find(s, "z"), DT_F32, value, &e), ERR_UNSUPPORTED, "but refused");
    has_text(e.text, "tensor \"z\": expected F32, F16, BF16 or F64, found C64", "... by name");
    is_int(safetensors_check_shape(s, safetensors_find(s, "none"), &(Shape){2, {1, 7, 1, 1}}, &e), ERR_FORMAT,
           "a shape is compared");
    has_text(e.text, "tensor \"none\": expected the shape (1, 7), found (0, 7)", "... and shown");
    if (truncate(path_x, (off_t)b.n - 1)) ok(0, "the file is cut");
    unsigned char bytes[8];
    is_int(safetensors_read_bytes(s, safetensors_find(s, "z"), bytes, &e), ERR_FORMAT, "a file that shrinks");
    has_text(e.text, "as when it was opened", "... is told");
    safetensors_close(s);
    const int64_t large = (int64_t)1 << 31;
    b = file("{" TENSOR("t", "I64", "[1]", "[0,8]") "}", 0, 0);
    blob_add(&b, &large, 8);
    ok(!open_blob(&b, &s) && safetensors_read(s, safetensors_find(s, "t"), DT_I32, value, &e) == ERR_FORMAT,
       "an I64 of more than 32 bits is refused");
    safetensors_close(s);
}

/* ---- writing */

static const TensorEntry entries[] = {{"b.u8", TENSOR_U8, {1, {3, 1, 1, 1}}}, {"a.f32", TENSOR_F32, {2, {2, 3, 1, 1}}},
    {"h\n\"\xe2\x82\xac", TENSOR_F16, {1, {5, 1, 1, 1}}}, {"A.i32", TENSOR_I32, {0, {1, 1, 1, 1}}}};
static const Pair pairs[] = {{"z", "last \\ \x01"}, {"a", ""}};

static int fill(void *arg, int i, void *bytes, Err *err) {
    if (arg && i == *(int *)arg) return err_set(err, ERR_DEVICE, "no values");
    for (size_t k = 0; k < (size_t)shape_elements(&entries[i].shape) * tensor_type_size(entries[i].type); k++)
        ((unsigned char *)bytes)[k] = (unsigned char)(10 * i + (int)k);
    return OK;
}

static int write_all(void *arg) {
    return safetensors_write(path_x, entries, ARRAY_LEN(entries), pairs, ARRAY_LEN(pairs), fill, arg, &e);
}

static int files_in_folder(void) {
    int n = 0;
    DIR *d = opendir(folder);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n - 2; /* . and .. */
}

static Blob content(void) {
    Blob b = {.n = 0};
    FILE *f = fopen(path_x, "rb");
    b.n = f ? fread(b.at, 1, sizeof b.at, f) : 0;
    if (f) fclose(f);
    return b;
}

static void test_write(void) {
    static const char *const order[] = {"A.i32", "a.f32", "h\n\"\xe2\x82\xac", "b.u8"};
    static const int index_of[] = {3, 1, 2, 0};
    Safetensors *s = NULL;
    int n, failing = 2;
    uint64_t length;
    ok(!write_all(NULL) && files_in_folder() == 1, "a file is written, and nothing beside it");
    Blob first = content();
    memcpy(&length, first.at, 8);
    ok(length % 8 == 0 && first.n == 8 + length + 4 + 24 + 10 + 3, "its data are aligned and complete");
    ok(!write_all(NULL), "it is written again");
    Blob second = content();
    ok(first.n == second.n && !memcmp(first.at, second.at, first.n), "with the same bytes");
    if (!ok(!safetensors_open(path_x, &s, &e), "it opens")) return;
    size_t begin = 0;
    for (int i = 0; i < 4; i++) {
        const Tensor *t = safetensors_find(s, order[i]);
        const TensorEntry *entry = &entries[index_of[i]];
        unsigned char found[32] = {0}, expected[32] = {0};
        fill(NULL, index_of[i], expected, NULL);
        ok(t && t->begin == begin && t->type == entry->type &&
           !safetensors_check_shape(s, t, &entry->shape, &e) && !safetensors_read_bytes(s, t, found, &e) &&
           !memcmp(found, expected, sizeof found), "tensor %d is as it was", i);
        begin += t ? t->bytes : 0;
    }
    const Pair *p = safetensors_metadata(s, &n);
    ok(n == 2 && !strcmp(p[0].key, "a") && !strcmp(p[1].value, "last \\ \x01"), "metadata, too");
    safetensors_close(s);
    is_int(write_all(&failing), ERR_DEVICE, "values that cannot be had");
    second = content();
    ok(files_in_folder() == 1 && first.n == second.n, "leave the old file as it was");
    is_int(safetensors_write("/nowhere/x", entries, 1, NULL, 0, fill, NULL, &e), ERR_FILE, "no such folder");
    const Pair latin = {"k", "\xe9"};
    is_int(safetensors_write(path_x, entries, 1, &latin, 1, fill, NULL, &e), ERR_FORMAT, "text that is not UTF-8");
    ok(!safetensors_write(path_x, NULL, 0, NULL, 0, fill, NULL, &e) && !safetensors_open(path_x, &s, &e),
       "a file of nothing is written and opens");
    safetensors_close(s);
}

static void test_memory(void) {
    long live = mem_live();
    int n = 1, wrong = 0, code = ERR_HOST_MEMORY;
    for (; code && n < 100; n++) {
        mem_fail_after(n);
        code = write_all(NULL);
        wrong += (code && code != ERR_HOST_MEMORY) || mem_live() != live || files_in_folder() != 1;
    }
    mem_fail_after(0);
    ok(n > 5 && n < 100 && !wrong, "writing survives each of %d failures of memory", n - 2);
    code = ERR_HOST_MEMORY;
    for (n = 1; code && n < 100; n++) {
        Safetensors *s = NULL;
        float values[6];
        mem_fail_after(n);
        code = safetensors_open(path_x, &s, &e);
        if (!code) code = safetensors_read(s, safetensors_find(s, "a.f32"), DT_F32, values, &e);
        safetensors_close(s);
        wrong += (code && code != ERR_HOST_MEMORY) || mem_live() != live;
    }
    mem_fail_after(0);
    ok(n > 5 && n < 100 && !wrong, "reading survives each of %d", n - 2);
}

/* ---- damaged headers */

static uint64_t seed = 1, draws;
static size_t below(size_t n) { return philox(seed, RNG_DATA, 78, 0, draws++).x[0] % (uint32_t)n; }

/* Changes, inserts or removes a few bytes; what is inserted is likely to mean something. */
static void damage(Blob *b) {
    static const char *const parts[] = {"{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "0", "-1", "1e9", " ", "F32",
        "\"shape\":[2]", "\"data_offsets\":[0,8]", "18446744073709551615", "\xff", "\xe2\x82\xac", "\\ud83d\\ude00"};
    for (size_t times = 1 + below(3); times > 0; times--) {
        size_t at = below(b->n), cut = below(4), kind = below(3);
        const char *part = parts[below(ARRAY_LEN(parts))];
        if (kind == 0) b->at[at] = (unsigned char)(b->at[at] ^ (1u << below(8)));
        if (kind == 1 && at + cut <= b->n) memmove(b->at + at, b->at + at + cut, (b->n -= cut) - at);
        if (kind == 2) {
            size_t n = strlen(part);
            memmove(b->at + at + n, b->at + at, b->n - at);
            memcpy(b->at + at, part, n);
            b->n += n;
        }
    }
    uint64_t length = b->n > 40 ? b->n - 40 : b->n; /* most often what the data want */
    if (below(4)) memcpy(b->at, &length, 8);
}

/* Everything that opened can be read, and keeps what the format promises. */
static bool sound(Safetensors *s) {
    int n;
    size_t sum = 0;
    static unsigned char bytes[sizeof ((Blob *)0)->at * 4];
    const Tensor *t = safetensors_tensors(s, &n);
    for (int i = 0; i < n; i++) {
        sum += t[i].bytes;
        if (safetensors_find(s, t[i].name) != &t[i] || safetensors_read_bytes(s, &t[i], bytes, &e)) return false;
        DType as = tensor_type_as(t[i].type);
        int code = as == DT_COUNT ? OK : safetensors_read(s, &t[i], as, bytes, &e);
        if (code && code != ERR_FORMAT) return false;
    }
    return sum < sizeof ((Blob *)0)->at;
}

static void test_damaged(void) {
    const char *times = getenv("FUZZ"), *from = getenv("SEED");
    int n = times ? atoi(times) : 3000, opened = 0, wrong = 0;
    long live = mem_live();
    if (from) seed = strtoull(from, NULL, 10);
    const Blob good = file("{\"__metadata__\":{\"k\":\"v\"}," TENSOR("a", "F32", "[2,3]", "[0,24]") ","
                           TENSOR("b", "I64", "[1]", "[24,32]") "," TENSOR("c", "BF16", "[0]", "[32,32]") "}", 3, 32);
    for (int i = 0; i < n; i++) {
        Safetensors *s;
        Blob b = good;
        damage(&b);
        int code = open_blob(&b, &s);
        opened += !code;
        wrong += code ? code != ERR_FORMAT : !sound(s);
        safetensors_close(s);
        wrong += mem_live() != live;
    }
    if (!ok(!wrong && opened > 0 && opened < n, "%d damaged files of seed %llu: %d are still files, all others refused",
            n, (unsigned long long)seed, opened))
        printf("# %d wrong\n", wrong);
}

int main(void) {
    folder_make();
    test_refused();
    test_lengths();
    test_values();
    test_odd_files();
    test_write();
    write_all(NULL);
    test_memory();
    test_damaged();
    is_int(mem_live(), 0, "no memory is left over");
    folder_remove();
    return tap_done();
}
