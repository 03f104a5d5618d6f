/* Samples in files that stay open. They are read by pread and not mapped: a file that is cut off while it is used gives
 * an error with its name, where a mapping would end the process by SIGBUS. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "data_private.h"
#include "base/mem.h"

enum { PIECE = 1 << 15 }; /* bytes that are converted or hashed at a time */

static double f32_value(const unsigned char *p) { float v; memcpy(&v, p, sizeof v); return (double)v; }
static double f64_value(const unsigned char *p) { double v; memcpy(&v, p, sizeof v); return v; }
static double i32_value(const unsigned char *p) { int32_t v; memcpy(&v, p, sizeof v); return v; }
static double i64_value(const unsigned char *p) { int64_t v; memcpy(&v, p, sizeof v); return (double)v; }

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are copied from files, which are little-endian");

const DataType data_types[DATA_TYPES] = {
    [DATA_F32] = {"<f4", 4, false, f32_value}, [DATA_F64] = {"<f8", 8, false, f64_value},
    [DATA_U8] = {"|u1", 1, true, NULL},
    [DATA_I32] = {"<i4", 4, true, i32_value},  [DATA_I64] = {"<i8", 8, true, i64_value},
};

/* In place, element i is read before it is written, and it never reaches a later one. */
int data_convert(const DataType *type, const void *from, int64_t n, const int32_t *ignored, void *to, const char *path,
                 int64_t first, Err *e) {
    const bool labels = ignored;
    assert(type->value && type->size >= 4 && (type->integer || !labels));
    const double low = labels ? 0 : -16777216, high = labels ? INT32_MAX - 1 : 16777216;
    for (int64_t i = 0; i < n; i++) {
        double v = type->value((const unsigned char *)from + (size_t)i * type->size);
        const bool fits = !type->integer || (v >= low && v <= high) || (labels && v == *ignored);
        if (!fits && labels)
            return err_set(e, ERR_FORMAT, "%s: element %" PRId64 ": expected a label from %.0f to %.0f or ignore_index = %d, found %.0f",
                path, first + i, low, high, *ignored, v);
        if (!fits)
            return err_set(e, ERR_FORMAT, "%s: element %" PRId64 ": expected a whole number from %.0f to %.0f, found %.0f", path,
                first + i, low, high, v);
        float real = (float)v;
        int32_t label = labels ? (int32_t)v : 0;
        memcpy((unsigned char *)to + (size_t)i * 4, labels ? (void *)&label : (void *)&real, 4);
    }
    return OK;
}

int data_no_memory(const char *path, size_t bytes, Err *e) {
    return err_set(e, ERR_HOST_MEMORY, "%s: no memory for %zu bytes", path, bytes);
}

int part_open(DataPart *p, const DataFile *f, Err *e) {
    p->start = f->at;
    p->path = mem_copy(f->path, strlen(f->path) + 1);
    if (!p->path) return data_no_memory(f->path, strlen(f->path) + 1, e);
    if (f->length < 0) return OK;
    p->fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
    if (p->fd < 0) return err_set(e, ERR_FILE, "cannot open %s: %s", f->path, strerror(errno));
    p->on_disk = true;
    if (fstat(p->fd, &p->opened)) return err_set(e, ERR_FILE, "cannot read %s: %s", f->path, strerror(errno));
    return OK;
}

void part_close(DataPart *p) {
    if (p->on_disk) close(p->fd);
    mem_free(p->bytes);
    mem_free(p->path);
    *p = (DataPart){0};
}

static bool has_changed(const DataPart *p) {
    struct stat now;
    return fstat(p->fd, &now) || now.st_size != p->opened.st_size || now.st_mtim.tv_sec != p->opened.st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != p->opened.st_mtim.tv_nsec;
}

int part_bytes(const DataPart *p, int64_t offset, void *to, size_t n, Err *e) {
    assert(offset >= p->start);
    if (!p->on_disk) {
        memcpy(to, p->bytes + (offset - p->start), n);
        return OK;
    }
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(p->fd, (char *)to + done, n - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return err_set(e, ERR_FILE, "cannot read %s at byte %" PRId64 ": %s", p->path, offset + (int64_t)done,
                strerror(errno));
        if (got == 0)
            return err_set(e, ERR_FILE, "%s: expected %zu bytes at byte %" PRId64 ", found %zu: the file was cut off "
                           "after it was opened", p->path, n, offset, done);
        done += (size_t)got;
    }
    if (has_changed(p)) return err_set(e, ERR_FILE, "%s: the file was changed after it was opened", p->path);
    return OK;
}

int part_values(const DataPart *p, const DataType *type, float divisor, int64_t offset, int64_t from, int64_t to,
                float *out, Err *e) {
    unsigned char piece[PIECE];
    int64_t size = (int64_t)type->size, n;
    if (type == &data_types[DATA_F32])
        return part_bytes(p, offset + from * size, out, (size_t)(to - from) * sizeof *out, e);
    for (; from < to; from += n, out += n) {
        n = min_i64(to - from, PIECE / size);
        int code = part_bytes(p, offset + from * size, piece, (size_t)(n * size), e);
        if (!code && type->value) code = data_convert(type, piece, n, NULL, out, p->path, from, e);
        if (code) return code;
        for (int64_t k = 0; k < n && !type->value; k++) out[k] = piece[k] / divisor;
    }
    return OK;
}

int part_hash(const DataPart *p, const DataType *type, int64_t offset, int64_t n, uint64_t *hash, Err *e) {
    float piece[PIECE / sizeof(float)];
    int64_t kept = type->value ? sizeof *piece : 1;
    for (int64_t at = 0, next; at < n; at = next) {
        next = min_i64(n, at + PIECE / kept);
        int code = type->value ? part_values(p, type, 1, offset, at, next, piece, e)
                               : part_bytes(p, offset + at, piece, (size_t)(next - at), e);
        if (code) return code;
        *hash = hash_bytes(*hash, piece, (size_t)((next - at) * kept));
    }
    return OK;
}

int part_cache(DataPart *p, Err *e) {
    if (!p->on_disk) return OK;
    size_t n = (size_t)(p->opened.st_size - p->start);
    unsigned char *bytes = mem_new(n);
    int code = bytes ? part_bytes(p, p->start, bytes, n, e) : data_no_memory(p->path, n, e);
    if (code) {
        mem_free(bytes);
        return code;
    }
    close(p->fd);
    p->on_disk = false;
    p->bytes = bytes;
    return OK;
}
