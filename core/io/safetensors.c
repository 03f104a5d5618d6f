/* The reader: opens a file only if its header is sound and accounts for every byte after it. */
#include "safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "json.h"
#include "base/mem.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are copied from and to files, which are little-endian");

enum { LENGTH_BYTES = 8, PIECE = 1 << 16 };

static const struct { const char *name; unsigned bits; DType as; } types[] = {
#define X(name, bits, as) {#name, bits, DT_##as},
    TENSOR_TYPES(X)
#undef X
};

const char *tensor_type_name(TensorType t) {
    assert(t < TENSOR_TYPE_COUNT);
    return types[t].name;
}

DType tensor_type_as(TensorType t) {
    assert(t < TENSOR_TYPE_COUNT);
    return types[t].as;
}

size_t tensor_type_size(TensorType t) {
    assert(t < TENSOR_TYPE_COUNT);
    return types[t].bits / 8;
}

TensorType tensor_type_of(DType t) {
    static const TensorType of[] = {[DT_F32] = TENSOR_F32, [DT_BF16] = TENSOR_BF16, [DT_F16] = TENSOR_F16,
        [DT_I32] = TENSOR_I32, [DT_U8] = TENSOR_U8};
    _Static_assert(ARRAY_LEN(of) == DT_COUNT, "each type has one here");
    assert(t < DT_COUNT);
    return of[t];
}

struct Safetensors {
    int fd;
    char *path, *header;  /* names and texts point into the header */
    size_t header_bytes, file_bytes, data; /* data: where the tensors' offsets count from */
    Tensor *tensors;      /* by name */
    Pair *metadata;
    int n, cap, n_metadata, cap_metadata;
};

static int no_memory(const Safetensors *s, Err *e) {
    return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", s->path ? s->path : "safetensors");
}

static int wrong(const Safetensors *s, const Tensor *t, Err *e, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "model.safetensors: tensor "0.weight": text" */
static int wrong(const Safetensors *s, const Tensor *t, Err *e, const char *format, ...) {
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(e, ERR_FORMAT, "%s: tensor \"%.80s\": %s", s->path, t->name, text);
}

/* ---- bytes */

static int read_at(Safetensors *s, void *to, size_t n, size_t at, Err *e) {
    assert(at <= s->file_bytes && n <= s->file_bytes - at);
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->fd, (char *)to + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, ERR_FILE, "cannot read %s: %s", s->path, strerror(errno));
        if (got == 0)
            return err_set(e, ERR_FORMAT, "%s: expected %zu bytes, as when it was opened, found %zu", s->path,
                           s->file_bytes, at + done);
        done += (size_t)got;
    }
    return OK;
}

static int open_file(Safetensors *s, Err *e) {
    struct stat info;
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0) return err_set(e, ERR_FILE, "cannot open %s: %s", s->path, strerror(errno));
    if (fstat(s->fd, &info)) return err_set(e, ERR_FILE, "cannot read %s: %s", s->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return err_set(e, ERR_FILE, "cannot read %s: it is not a file", s->path);
    s->file_bytes = (size_t)info.st_size;
    return OK;
}

static int read_header(Safetensors *s, Err *e) {
    uint64_t length;
    if (s->file_bytes < LENGTH_BYTES)
        return err_set(e, ERR_FORMAT, "%s: expected at least %d bytes, found %zu", s->path, LENGTH_BYTES,
                       s->file_bytes);
    int code = read_at(s, &length, sizeof length, 0, e);
    if (code) return code;
    if (length > SAFETENSORS_HEADER_MAX)
        return err_set(e, ERR_FORMAT, "%s: expected a header of at most %zu bytes, found a length of %" PRIu64, s->path,
                       SAFETENSORS_HEADER_MAX, length);
    s->header_bytes = (size_t)length;
    if (s->header_bytes > s->file_bytes - LENGTH_BYTES)
        return err_set(e, ERR_FORMAT, "%s: expected a header of %zu bytes, found a file of %zu", s->path,
                       s->header_bytes, s->file_bytes);
    s->data = LENGTH_BYTES + s->header_bytes;
    s->header = mem_new(s->header_bytes + 1);
    return s->header ? read_at(s, s->header, s->header_bytes, LENGTH_BYTES, e) : no_memory(s, e);
}

/* ---- the header */

static int parse_metadata(Safetensors *s, Json *j, Err *e) {
    int code = json_expect(j, '{', e);
    if (code || json_accept(j, '}')) return code;
    do {
        if (!mem_grow(&s->metadata, &s->cap_metadata, s->n_metadata + 1, sizeof *s->metadata)) return no_memory(s, e);
        char *key = NULL, *value = NULL;
        code = json_string(j, &key, e);
        if (!code) code = json_expect(j, ':', e);
        if (!code) code = json_string(j, &value, e);
        if (code) return code;
        s->metadata[s->n_metadata++] = (Pair){key, value};
    } while (json_accept(j, ','));
    return json_expect(j, '}', e);
}

/* [n, ...] of at most `room` numbers */
static int parse_numbers(const Safetensors *s, const Tensor *t, Json *j, const char *field, int64_t *to, int room,
                         int *count, Err *e) {
    int code = json_expect(j, '[', e);
    *count = 0;
    if (code || json_accept(j, ']')) return code;
    do {
        if (*count == room) return wrong(s, t, e, "%s: expected at most %d numbers, found more", field, room);
        code = json_whole(j, &to[(*count)++], e);
        if (code) return code;
    } while (json_accept(j, ','));
    return json_expect(j, ']', e);
}

static int parse_type(const Safetensors *s, Tensor *t, Json *j, Err *e) {
    char *name;
    int code = json_string(j, &name, e);
    if (code) return code;
    for (t->type = 0; t->type < TENSOR_TYPE_COUNT; t->type++)
        if (!strcmp(name, types[t->type].name)) return OK;
    return wrong(s, t, e, "dtype: expected a type such as F32, found \"%.20s\"", name);
}

static int parse_offsets(const Safetensors *s, Tensor *t, Json *j, Err *e) {
    int64_t offset[2];
    int count, code = parse_numbers(s, t, j, "data_offsets", offset, 2, &count, e);
    if (code) return code;
    if (count != 2) return wrong(s, t, e, "data_offsets: expected 2 numbers, found %d", count);
    size_t data = s->file_bytes - LENGTH_BYTES - s->header_bytes;
    if (offset[0] > offset[1] || (uint64_t)offset[1] > data)
        return wrong(s, t, e, "data_offsets: expected a range of the file's %zu bytes of data, found [%" PRId64
                     ", %" PRId64 "]", data, offset[0], offset[1]);
    t->begin = (size_t)offset[0];
    t->bytes = (size_t)(offset[1] - offset[0]);
    return OK;
}

enum Field { FIELD_TYPE, FIELD_SHAPE, FIELD_OFFSETS, FIELD_COUNT };
static const char *const field_names[] = {"dtype", "shape", "data_offsets"};

static int parse_field(const Safetensors *s, Tensor *t, Json *j, bool *seen, Err *e) {
    char *name;
    int field = 0, code = json_string(j, &name, e);
    if (!code) code = json_expect(j, ':', e);
    if (code) return code;
    while (field < FIELD_COUNT && strcmp(name, field_names[field])) field++;
    if (field == FIELD_COUNT)
        return wrong(s, t, e, "expected dtype, shape and data_offsets, found \"%.40s\"", name);
    if (seen[field]) return wrong(s, t, e, "%s: expected once, found twice", name);
    seen[field] = true;
    if (field == FIELD_TYPE) return parse_type(s, t, j, e);
    if (field == FIELD_OFFSETS) return parse_offsets(s, t, j, e);
    return parse_numbers(s, t, j, name, t->dim, TENSOR_RANK, &t->rank, e);
}

/* Type and shape need as many bytes as the offsets span. */
static int check_size(const Safetensors *s, const Tensor *t, Err *e) {
    size_t bits = types[t->type].bits;
    bool fits = true;
    for (int i = 0; i < t->rank && fits; i++) fits = size_mul(bits, (size_t)t->dim[i], &bits);
    if (fits && bits % 8 == 0 && bits / 8 == t->bytes) return OK;
    return wrong(s, t, e, "data_offsets: expected %s%zu bytes for its dtype %s and shape, found %zu",
                 fits ? "" : "more than ", fits ? bits / 8 : SIZE_MAX / 8, types[t->type].name, t->bytes);
}

static int parse_tensor(Safetensors *s, Json *j, const char *name, Err *e) {
    bool seen[FIELD_COUNT] = {false};
    Tensor t = {.name = name};
    int code = json_expect(j, '{', e);
    if (!code && !json_accept(j, '}')) {
        do code = parse_field(s, &t, j, seen, e);
        while (!code && json_accept(j, ','));
        if (!code) code = json_expect(j, '}', e);
    }
    for (int i = 0; i < FIELD_COUNT && !code; i++)
        if (!seen[i]) code = wrong(s, &t, e, "expected %s, found none", field_names[i]);
    if (!code) code = check_size(s, &t, e);
    if (code) return code;
    if (!mem_grow(&s->tensors, &s->cap, s->n + 1, sizeof *s->tensors)) return no_memory(s, e);
    s->tensors[s->n++] = t;
    return OK;
}

static int parse_header(Safetensors *s, Json *j, Err *e) {
    if (s->header_bytes == 0 || s->header[0] != '{')
        return err_set(e, ERR_FORMAT, "%s: expected a header that begins with '{'", s->path);
    int code = json_expect(j, '{', e);
    bool metadata = false;
    if (!code && json_accept(j, '}')) return json_end(j, e);
    while (!code) {
        char *name;
        code = json_string(j, &name, e);
        if (!code) code = json_expect(j, ':', e);
        if (code) return code;
        if (strcmp(name, "__metadata__")) code = parse_tensor(s, j, name, e);
        else if (metadata) code = err_set(e, ERR_FORMAT, "%s: expected __metadata__ once, found it twice", s->path);
        else code = parse_metadata(s, j, e);
        metadata |= !strcmp(name, "__metadata__");
        if (!code && !json_accept(j, ',')) break;
    }
    if (!code) code = json_expect(j, '}', e);
    return code ? code : json_end(j, e);
}

/* ---- what holds between tensors */

static int by_begin(const void *a, const void *b) {
    const Tensor *x = a, *y = b;
    size_t x_end = x->begin + x->bytes, y_end = y->begin + y->bytes;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x_end == y_end ? 0 : x_end < y_end ? -1 : 1;
}

static int by_name(const void *a, const void *b) {
    const Tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b) {
    const Pair *x = a, *y = b;
    return strcmp(x->key, y->key);
}

/* Every byte of data belongs to exactly one tensor. */
static int check_cover(Safetensors *s, Err *e) {
    size_t end = 0, data = s->file_bytes - LENGTH_BYTES - s->header_bytes;
    if (s->n) qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_begin);
    for (int i = 0; i < s->n; i++) {
        const Tensor *t = &s->tensors[i];
        if (t->begin != end)
            return wrong(s, t, e, "data_offsets: expected to begin at %zu, where the tensor before it ends, found %zu",
                         end, t->begin);
        end += t->bytes;
    }
    if (end == data) return OK;
    return err_set(e, ERR_FORMAT, "%s: expected %zu bytes of data for its tensors, found %zu", s->path, end, data);
}

static int check_names(Safetensors *s, Err *e) {
    if (s->n) qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_name);
    if (s->n_metadata) qsort(s->metadata, (size_t)s->n_metadata, sizeof *s->metadata, by_key);
    for (int i = 1; i < s->n; i++)
        if (!by_name(&s->tensors[i - 1], &s->tensors[i]))
            return wrong(s, &s->tensors[i], e, "expected once, found twice");
    for (int i = 1; i < s->n_metadata; i++)
        if (!by_key(&s->metadata[i - 1], &s->metadata[i]))
            return err_set(e, ERR_FORMAT, "%s: __metadata__: expected \"%.80s\" once, found it twice", s->path,
                           s->metadata[i].key);
    return OK;
}

static int open_path(const char *path, Safetensors **out, Err *e) {
    Safetensors *s = *out = mem_new(sizeof *s);
    if (!s) return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", path);
    s->fd = -1;
    s->path = mem_copy(path, strlen(path) + 1);
    return s->path ? open_file(s, e) : no_memory(s, e);
}

int safetensors_open(const char *path, Safetensors **out, Err *e) {
    Json j;
    Safetensors *s;
    int code = open_path(path, &s, e);
    if (!code) code = read_header(s, e);
    if (!code) code = json_open(&j, s->header, s->header_bytes, s->path, e);
    if (!code) code = parse_header(s, &j, e);
    if (!code) code = check_cover(s, e);
    if (!code) code = check_names(s, e);
    if (code) safetensors_close(s);
    else *out = s;
    return code;
}

static int copy_tensors(Safetensors *s, const Tensor *tensors, int n, Err *e) {
    size_t used = 0;
    for (int i = 0; i < n; i++) s->header_bytes += strlen(tensors[i].name) + 1;
    s->header = mem_new(s->header_bytes + 1);
    if (!s->header || !mem_grow(&s->tensors, &s->cap, n, sizeof *s->tensors)) return no_memory(s, e);
    for (int i = 0; i < n; i++) {
        const Tensor *t = &tensors[i];
        const size_t length = strlen(t->name) + 1;
        if (t->begin > s->file_bytes || t->bytes > s->file_bytes - t->begin)
            return wrong(s, t, e, "expected it in the file's %zu bytes, found %zu at %zu", s->file_bytes, t->bytes, t->begin);
        memcpy(s->header + used, t->name, length);
        s->tensors[s->n] = *t;
        s->tensors[s->n++].name = s->header + used;
        used += length;
    }
    return OK;
}

int safetensors_of(const char *path, const Tensor *tensors, int n, Safetensors **out, Err *e) {
    Safetensors *s;
    int code = open_path(path, &s, e);
    if (!code) code = copy_tensors(s, tensors, n, e);
    if (!code) code = check_names(s, e);
    if (code) safetensors_close(s);
    else *out = s;
    return code;
}

void safetensors_close(Safetensors *s) {
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    mem_free(s->tensors);
    mem_free(s->metadata);
    mem_free(s->header);
    mem_free(s->path);
    mem_free(s);
}

/* ---- looking */

const Tensor *safetensors_tensors(const Safetensors *s, int *n) {
    *n = s->n;
    return s->tensors;
}

const Pair *safetensors_metadata(const Safetensors *s, int *n) {
    *n = s->n_metadata;
    return s->metadata;
}

const Tensor *safetensors_find(const Safetensors *s, const char *name) {
    const Tensor key = {.name = name};
    return s->n ? bsearch(&key, s->tensors, (size_t)s->n, sizeof key, by_name) : NULL;
}

int safetensors_check_shape(const Safetensors *s, const Tensor *t, const Shape *expected, Err *e) {
    bool same = t->rank == expected->rank || (!t->rank && expected->rank == 1 && expected->dim[0] == 1); /* a number */
    for (int i = 0; i < t->rank && same; i++) same = t->dim[i] == expected->dim[i];
    if (same) return OK;
    char text[SHAPE_TEXT], found[24 * TENSOR_RANK] = "";
    size_t n = 0;
    for (int i = 0; i < t->rank && n < sizeof found; i++)
        n += (size_t)snprintf(found + n, sizeof found - n, "%s%" PRId64, i ? ", " : "", t->dim[i]);
    return wrong(s, t, e, "expected the shape %s, found (%s)", shape_text(expected, text), found);
}

/* ---- values */

int safetensors_read_bytes(Safetensors *s, const Tensor *t, void *bytes, Err *e) {
    return read_at(s, bytes, t->bytes, s->data + t->begin, e);
}

/* Converts element i of from[] to fp32 or int32 at `to`; false: an I64 that does not fit into int32. */
static bool convert(TensorType type, const unsigned char *from, size_t i, void *to) {
    double f64;
    int64_t i64;
    switch (type) {
    case TENSOR_F16: *(float *)to = dtype_load(DT_F16, from, i); return true;
    case TENSOR_BF16: *(float *)to = dtype_load(DT_BF16, from, i); return true;
    case TENSOR_F64:
        memcpy(&f64, from + 8 * i, 8);
        *(float *)to = (float)f64;
        return true;
    case TENSOR_I64:
        memcpy(&i64, from + 8 * i, 8);
        *(int32_t *)to = (int32_t)i64;
        return i64 == *(int32_t *)to;
    case TENSOR_U8: *(int32_t *)to = from[i]; return true;
    case TENSOR_BOOL: *(int32_t *)to = from[i] != 0; return true;
    default: memcpy(to, from + 4 * i, 4); return true;
    }
}

int safetensors_read(Safetensors *s, const Tensor *t, DType as, void *values, Err *e) {
    assert(as == DT_F32 || as == DT_I32);
    if (types[t->type].as != as) {
        wrong(s, t, e, "expected %s, found %s", as == DT_F32 ? "F32, F16, BF16 or F64" : "I32, I64, U8 or BOOL",
              types[t->type].name);
        if (e) e->code = ERR_UNSUPPORTED;
        return ERR_UNSUPPORTED;
    }
    size_t size = types[t->type].bits / 8, n = t->bytes / size, piece = PIECE / size;
    unsigned char *bytes = mem_new(PIECE);
    int code = bytes ? OK : no_memory(s, e);
    for (size_t done = 0; done < n && !code; done += piece) {
        size_t count = n - done < piece ? n - done : piece;
        code = read_at(s, bytes, count * size, s->data + t->begin + done * size, e);
        for (size_t i = 0; i < count && !code; i++)
            if (!convert(t->type, bytes, i, (char *)values + (done + i) * 4))
                code = wrong(s, t, e, "expected numbers of 32 bits, found a larger one at %zu", done + i);
    }
    mem_free(bytes);
    return code;
}

int safetensors_checksum(Safetensors *s, const Tensor *t, uint32_t *sum, Err *e) {
    unsigned char *bytes = mem_new(PIECE);
    uLong crc = crc32_z(0, NULL, 0);
    int code = bytes ? OK : no_memory(s, e);
    for (size_t done = 0; done < t->bytes && !code; done += PIECE) {
        size_t n = t->bytes - done < PIECE ? t->bytes - done : PIECE;
        code = read_at(s, bytes, n, s->data + t->begin + done, e);
        if (!code) crc = crc32_z(crc, bytes, n);
    }
    mem_free(bytes);
    *sum = (uint32_t)crc;
    return code;
}
