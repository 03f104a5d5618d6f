#include "state_dict.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "pickle.h"

enum { END_BYTES = 22, END64_BYTES = 56, LOCATOR_BYTES = 20, ENTRY_BYTES = 46, LOCAL_BYTES = 30, COMMENT_MAX = 65535 };
enum { DIRECTORY_MAX = 100000000 };
static const uint32_t END_MARK = 0x06054b50, END64_MARK = 0x06064b50, LOCATOR_MARK = 0x07064b50, ENTRY_MARK = 0x02014b50,
    LOCAL_MARK = 0x04034b50;

/* A file of the archive; header: where its own header stands */
typedef struct Entry { const char *name; uint64_t bytes, header; } Entry;

typedef struct Archive {
    const char *path;
    int fd;
    uint64_t bytes;
    unsigned char *directory;
    char *names;    /* of all entries, each ended by a zero byte */
    Entry *entries;
    int n, cap;
} Archive;

static int wrong(const Archive *a, Err *e, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int wrong(const Archive *a, Err *e, const char *format, ...) {
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(e, ERR_FORMAT, "%s: %s", a->path, text);
}

static int no_memory(const Archive *a, Err *e) { return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", a->path); }

/* ---- the archive */

static uint64_t number(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | from[i];
    return value;
}

static int read_at(const Archive *a, void *to, uint64_t n, uint64_t at, Err *e) {
    if (at > a->bytes || n > a->bytes - at)
        return wrong(a, e, "expected %" PRIu64 " bytes at %" PRIu64 ", found a file of %" PRIu64, n, at, a->bytes);
    for (uint64_t done = 0; done < n;) {
        ssize_t got = pread(a->fd, (char *)to + done, (size_t)(n - done), (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, ERR_FILE, "cannot read %s: %s", a->path, strerror(errno));
        if (got == 0) return wrong(a, e, "ends at byte %" PRIu64, at + done);
        done += (uint64_t)got;
    }
    return OK;
}

static int open_archive(Archive *a, Err *e) {
    struct stat info;
    a->fd = open(a->path, O_RDONLY | O_CLOEXEC);
    if (a->fd < 0) return err_set(e, ERR_FILE, "cannot open %s: %s", a->path, strerror(errno));
    if (fstat(a->fd, &info)) return err_set(e, ERR_FILE, "cannot read %s: %s", a->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return err_set(e, ERR_FILE, "cannot read %s: it is not a file", a->path);
    a->bytes = (uint64_t)info.st_size;
    return OK;
}

/* The place of the directory, from the record at the file's end; of archives of 4 GiB and more from that record's own
 * longer one. */
static int find_directory(const Archive *a, uint64_t *at, uint64_t *bytes, uint64_t *count, Err *e) {
    uint64_t room = a->bytes < END_BYTES + COMMENT_MAX ? a->bytes : END_BYTES + COMMENT_MAX;
    unsigned char *tail = mem_new((size_t)room + 1), long_one[END64_BYTES];
    if (!tail) return no_memory(a, e);
    int code = read_at(a, tail, room, a->bytes - room, e);
    const unsigned char *end = NULL;
    for (uint64_t i = END_BYTES; i <= room && !code && !end; i++)
        if (number(tail + room - i, 4) == END_MARK) end = tail + room - i;
    if (!code && !end) code = wrong(a, e, "expected a zip archive, as torch.save writes, found no directory at its end");
    if (!code) *count = number(end + 10, 2), *bytes = number(end + 12, 4), *at = number(end + 16, 4);
    if (!code && end - tail >= LOCATOR_BYTES && number(end - LOCATOR_BYTES, 4) == LOCATOR_MARK) {
        code = read_at(a, long_one, END64_BYTES, number(end - LOCATOR_BYTES + 8, 8), e);
        if (!code && number(long_one, 4) != END64_MARK) code = wrong(a, e, "its directory is damaged");
        if (!code) *count = number(long_one + 32, 8), *bytes = number(long_one + 40, 8), *at = number(long_one + 48, 8);
    }
    mem_free(tail);
    return code;
}

/* Sizes that do not fit into 32 bits stand in the extra field 1, in this order. */
static void read_long(const unsigned char *extra, uint64_t n, uint64_t *size, uint64_t *packed, uint64_t *header) {
    uint64_t *const fields[] = {size, packed, header};
    for (uint64_t at = 0; at + 4 <= n; at += 4 + number(extra + at + 2, 2)) {
        uint64_t length = number(extra + at + 2, 2), from = at + 4;
        if (number(extra + at, 2) != 1 || from + length > n) continue;
        for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
            if (*fields[i] != UINT32_MAX || from + 8 > at + 4 + length) continue;
            *fields[i] = number(extra + from, 8);
            from += 8;
        }
    }
}

static int read_directory(Archive *a, Err *e) {
    uint64_t at = 0, bytes = 0, count = 0, used = 0;
    int code = find_directory(a, &at, &bytes, &count, e);
    if (!code && bytes > DIRECTORY_MAX) code = wrong(a, e, "its directory of %" PRIu64 " bytes is too long", bytes);
    if (code) return code;
    a->directory = mem_new((size_t)bytes + 1);
    a->names = mem_new((size_t)bytes + 1);
    if (!a->directory || !a->names) return no_memory(a, e);
    code = read_at(a, a->directory, bytes, at, e);
    for (uint64_t place = 0; place < bytes && !code;) {
        const unsigned char *d = a->directory + place;
        if (bytes - place < ENTRY_BYTES || number(d, 4) != ENTRY_MARK) return wrong(a, e, "its directory is damaged");
        const uint64_t name = number(d + 28, 2), extra = number(d + 30, 2), comment = number(d + 32, 2);
        if (name + extra + comment > bytes - place - ENTRY_BYTES) return wrong(a, e, "its directory is damaged");
        if (!mem_grow(&a->entries, &a->cap, a->n + 1, sizeof *a->entries)) return no_memory(a, e);
        char *text = a->names + used;
        memcpy(text, d + ENTRY_BYTES, (size_t)name);
        text[name] = '\0';
        used += name + 1;
        uint64_t packed = number(d + 20, 4);
        Entry one = {.name = text, .bytes = number(d + 24, 4), .header = number(d + 42, 4)};
        read_long(d + ENTRY_BYTES + name, extra, &one.bytes, &packed, &one.header);
        if (number(d + 10, 2) != 0 || packed != one.bytes)
            return wrong(a, e, "%.80s is compressed, which torch.save does not do", text);
        a->entries[a->n++] = one;
        place += ENTRY_BYTES + name + extra + comment;
    }
    if (!code && (uint64_t)a->n != count) code = wrong(a, e, "expected %" PRIu64 " files in it, found %d", count, a->n);
    return code;
}

/* The entry "archive/`name``key`": the archive's own folder has any name. NULL: there is none. */
static const Entry *find(const Archive *a, const char *name, const char *key) {
    const size_t n = strlen(name);
    for (int i = 0; i < a->n; i++) {
        const char *own = strchr(a->entries[i].name, '/');
        if (own && !strncmp(own + 1, name, n) && !strcmp(own + 1 + n, key)) return &a->entries[i];
    }
    return NULL;
}

/* *at: where the entry's bytes begin */
static int place_of(const Archive *a, const Entry *entry, uint64_t *at, Err *e) {
    unsigned char local[LOCAL_BYTES];
    int code = read_at(a, local, LOCAL_BYTES, entry->header, e);
    if (code) return code;
    *at = entry->header + LOCAL_BYTES + number(local + 26, 2) + number(local + 28, 2);
    if (number(local, 4) == LOCAL_MARK && *at <= a->bytes && entry->bytes <= a->bytes - *at) return OK;
    return wrong(a, e, "%.80s: expected %" PRIu64 " bytes, found that it does not lie in the file", entry->name,
                 entry->bytes);
}

/* ---- tensors in the pickle */

static const char rebuild[] = "torch._utils _rebuild_tensor_v2", parameter[] = "torch._utils _rebuild_parameter";
#define STORAGES(X)                                                                                                   \
    X(Float, F32) X(Double, F64) X(Half, F16) X(BFloat16, BF16) X(Long, I64) X(Int, I32) X(Short, I16) X(Char, I8) \
    X(Byte, U8) X(Bool, BOOL)
static const struct { const char *name; TensorType type; } storages[] = {
#define X(name, type) {"torch " #name "Storage", TENSOR_##type},
    STORAGES(X)
#undef X
};
/* All that the pickle may name */
static const char *const names[] = {
    PICKLE_ORDERED_DICT, rebuild, parameter,
#define X(name, type) "torch " #name "Storage",
    STORAGES(X)
#undef X
    NULL,
};

/* The arguments of what `name` makes; absent: v is something else. name: "": a storage */
static PickleValue made(PickleValue v, const char *name) {
    const bool right = pickle_kind(v) == PICKLE_MADE && !strcmp(pickle_text(pickle_item(v, 0)), name);
    return right ? pickle_item(v, 1) : (PickleValue){0};
}

static int wrong_tensor(const Archive *a, const char *name, Err *e, const char *text) {
    return wrong(a, e, "tensor \"%.80s\": %s", name, text);
}

/* ("storage", type, key, device, elements) */
static int read_storage(const Archive *a, PickleValue storage, Tensor *t, const Entry **entry, Err *e) {
    const PickleValue part = made(storage, "");
    size_t kind = 0;
    while (kind < ARRAY_LEN(storages) && strcmp(pickle_text(pickle_item(part, 1)), storages[kind].name)) kind++;
    if (pickle_kind(part) != PICKLE_TUPLE || strcmp(pickle_text(pickle_item(part, 0)), "storage") ||
        kind == ARRAY_LEN(storages))
        return wrong_tensor(a, t->name, e, "expected a storage");
    t->type = storages[kind].type;
    *entry = find(a, "data/", pickle_text(pickle_item(part, 2)));
    return *entry ? OK : wrong_tensor(a, t->name, e, "the archive has no such storage");
}

/* Size and stride, from the last dimension to the first; *elements: their number */
static int read_shape(const Archive *a, PickleValue size, PickleValue stride, Tensor *t, size_t *elements, Err *e) {
    const size_t rank = pickle_count(size);
    if (pickle_kind(size) != PICKLE_TUPLE || pickle_count(stride) != rank || rank > TENSOR_RANK)
        return wrong_tensor(a, t->name, e, "expected a shape of at most 8 dimensions");
    t->rank = (int)rank;
    *elements = 1;
    bool whole = true, lies = true;
    for (size_t d = rank; d-- > 0;) {
        const int64_t n = pickle_int(pickle_item(size, d)), step = pickle_int(pickle_item(stride, d));
        whole = whole && n >= 0 && pickle_kind(pickle_item(size, d)) == PICKLE_INT;
        lies = lies && (n <= 1 || step == (int64_t)*elements);
        t->dim[d] = n;
        if (!whole || !size_mul(*elements, (size_t)n, elements)) return wrong_tensor(a, t->name, e, "its shape is damaged");
    }
    return lies || !*elements ? OK : wrong_tensor(a, t->name, e, "does not lie in order: save its .contiguous()");
}

static int read_tensor(const Archive *a, PickleValue v, Tensor *t, Err *e) {
    const Entry *entry = NULL;
    const PickleValue inner = made(v, parameter), part = made(inner.word ? pickle_item(inner, 0) : v, rebuild);
    uint64_t at = 0;
    size_t elements = 0, room;
    if (!part.word)
        return wrong(a, e, "\"%.80s\": expected a tensor, found %s: a state_dict is read, or one under \"model\", \"state_dict\" or "
                     "\"model_state_dict\": torch.save(model.state_dict(), FILE) writes one", t->name, pickle_kind_name(pickle_kind(v)));
    int code = read_storage(a, pickle_item(part, 0), t, &entry, e);
    if (!code) code = read_shape(a, pickle_item(part, 2), pickle_item(part, 3), t, &elements, e);
    if (!code) code = place_of(a, entry, &at, e);
    if (code) return code;
    const int64_t first = pickle_int(pickle_item(part, 1));
    const size_t size = tensor_type_size(t->type);
    room = (size_t)entry->bytes / size;
    if (first < 0 || (uint64_t)first > room || elements > room - (size_t)first)
        return wrong_tensor(a, t->name, e, "does not fit its storage");
    t->begin = (size_t)at + (size_t)first * size;
    t->bytes = elements * size;
    return OK;
}

/* The state_dict: the whole, or what a checkpoint has under one of the names that training programs give it */
static PickleValue state_dict_in(const Pickle *p) {
    static const char *const keys[] = {"model", "state_dict", "model_state_dict"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const PickleValue found = pickle_get(pickle_root(p), pickle_find(p, keys[i]));
        if (pickle_kind(found) == PICKLE_DICT) return found;
    }
    return pickle_root(p);
}

static int read_tensors(const Archive *a, PickleValue root, Safetensors **out, Err *e) {
    const size_t n = pickle_count(root);
    if (pickle_kind(root) != PICKLE_DICT)
        return wrong(a, e, "expected a state_dict, found %s", pickle_kind_name(pickle_kind(root)));
    Tensor *tensors = mem_new((n + 1) * sizeof *tensors);
    int code = tensors ? OK : no_memory(a, e);
    for (size_t i = 0; i < n && !code; i++) {
        const PickleValue key = pickle_key(root, i);
        tensors[i] = (Tensor){.name = pickle_text(key)};
        if (pickle_kind(key) != PICKLE_TEXT) code = wrong(a, e, "expected names of tensors, found %s",
                                                          pickle_kind_name(pickle_kind(key)));
        else code = read_tensor(a, pickle_item(root, i), &tensors[i], e);
    }
    if (!code) code = safetensors_of(a->path, tensors, (int)n, out, e);
    mem_free(tensors);
    return code;
}

static int check_order(const Archive *a, Err *e) {
    char order[8] = "";
    uint64_t at;
    const Entry *entry = find(a, "byteorder", "");
    if (!entry || entry->bytes >= sizeof order) return OK;
    int code = place_of(a, entry, &at, e);
    if (!code) code = read_at(a, order, entry->bytes, at, e);
    if (code || strcmp(order, "big")) return code;
    return err_set(e, ERR_UNSUPPORTED, "%s: its numbers are big-endian", a->path);
}

static int read_archive(Archive *a, Safetensors **out, Err *e) {
    Pickle *p = NULL;
    uint64_t at = 0;
    int code = read_directory(a, e);
    if (!code) code = check_order(a, e);
    const Entry *entry = code ? NULL : find(a, "data.pkl", "");
    if (!code && !entry) code = wrong(a, e, "expected data.pkl in the archive, as torch.save writes it, found none");
    if (!code) code = place_of(a, entry, &at, e);
    if (!code) code = pickle_open_part(a->path, at, entry->bytes, names, &p, e);
    if (!code) code = read_tensors(a, state_dict_in(p), out, e);
    pickle_close(p);
    return code;
}

int state_dict_open(const char *path, Safetensors **out, Err *e) {
    Archive a = {.path = path, .fd = -1};
    unsigned char first[4] = {0};
    int code = open_archive(&a, e);
    if (!code && a.bytes >= sizeof first) code = read_at(&a, first, sizeof first, 0, e);
    const bool zip = number(first, 4) == LOCAL_MARK, old = first[0] == 0x80 && first[1] == 2 && first[2] == 0x8a;
    if (!code && old)
        code = err_set(e, ERR_UNSUPPORTED, "%s: is in the format of PyTorch before 1.6: torch.save(torch.load(FILE), FILE) "
                       "makes it the newer one", path);
    if (!code && zip) code = read_archive(&a, out, e);
    if (a.fd >= 0) close(a.fd);
    mem_free(a.directory);
    mem_free(a.names);
    mem_free(a.entries);
    return code || zip ? code : safetensors_open(path, out, e);
}
