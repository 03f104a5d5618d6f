/* Untrusted files: the size that a header gives is checked against the file's length, or, where that is not known,
 * while the file is read. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data_private.h"
#include "base/mem.h"

enum { READ_STEP = 1 << 16 };

int data_open(DataFile *f, const char *path, Err *e) {
    struct stat info;
    *f = (DataFile){.path = path, .length = -1};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_set(e, ERR_FILE, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &info) || S_ISDIR(info.st_mode)) {
        close(fd);
        return err_set(e, ERR_FILE, "cannot read %s: it is not a file", path);
    }
    f->fd = fd;
    f->gz = gzdopen(fd, "rb");
    if (!f->gz) {
        close(fd);
        return data_no_memory(path, READ_STEP, e);
    }
    gzbuffer(f->gz, READ_STEP);
    if (gzdirect(f->gz) && S_ISREG(info.st_mode)) f->length = info.st_size;
    return OK;
}

void data_close(DataFile *f) {
    if (f->gz) gzclose_r(f->gz);
    f->gz = NULL;
}

static int read_failed(const DataFile *f, Err *e) {
    int code;
    const char *text = gzerror(f->gz, &code);
    if (code == Z_ERRNO) return err_set(e, ERR_FILE, "cannot read %s: %s", f->path, strerror(errno));
    if (code == Z_MEM_ERROR) return data_no_memory(f->path, READ_STEP, e);
    return err_set(
        e, ERR_FORMAT, "%s: the compressed data are damaged after %" PRId64 " bytes (%s)", f->path, f->at, text);
}

int data_read(DataFile *f, void *to, size_t want, size_t *got, Err *e) {
    *got = 0;
    if (f->part) {
        *got = (size_t)min_i64((int64_t)want, f->length - f->at);
        f->at += (int64_t)*got;
        return part_bytes(f->part, f->origin + f->at - (int64_t)*got, to, *got, e);
    }
    while (*got < want) {
        size_t left = want - *got;
        int n = gzread(f->gz, (char *)to + *got, left < READ_STEP ? (unsigned)left : READ_STEP);
        if (n < 0) return read_failed(f, e);
        if (n == 0) break;
        *got += (size_t)n;
        f->at += n;
    }
    int code = Z_OK; /* a compressed file that was cut off reads like one that ends here; only gzerror tells them apart */
    if (*got < want) gzerror(f->gz, &code);
    return code == Z_OK || code == Z_STREAM_END ? OK : read_failed(f, e);
}

int data_need(DataFile *f, void *to, size_t want, const char *what, Err *e) {
    size_t got;
    int code = data_read(f, to, want, &got, e);
    if (!code && got < want)
        return err_set(e, ERR_FORMAT, "%s: too short: expected %zu bytes of %s, found %zu", f->path, want, what, got);
    return code;
}

static int wrong_length(const DataFile *f, const Shape *shape, size_t want, int64_t found, Err *e) {
    char text[SHAPE_TEXT];
    bool longer = found > (int64_t)want;
    const char *least = longer && f->length < 0 ? "at least " : "";
    return err_set(e, ERR_FORMAT, "%s: too %s: expected %zu bytes for the shape %s of its header, found %s%" PRId64,
        f->path, longer ? "long" : "short", want, shape_text(shape, text), least, found);
}

int data_rest_bytes(const DataFile *f, const Shape *shape, size_t element, size_t most, size_t *bytes, Err *e) {
    char text[SHAPE_TEXT];
    assert(element > 0 && shape->rank > 0);
    *bytes = element;
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dim[i] < 1 || shape->dim[i] > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: shape %s: expected sizes from 1 to %d", f->path, shape_text(shape, text),
                INT32_MAX);
        if (!size_mul(*bytes, (size_t)shape->dim[i], bytes) || *bytes > most)
            return err_set(e, ERR_FORMAT, "%s: shape %s: expected at most %zu bytes of data", f->path,
                shape_text(shape, text), most);
    }
    if (f->length < 0 || f->length - f->at == (int64_t)*bytes) return OK;
    return wrong_length(f, shape, *bytes, f->length - f->at, e);
}

int data_rest(DataFile *f, const Shape *shape, size_t element, void **out, Err *e) {
    unsigned char *bytes = NULL, extra;
    size_t want, have = 0, got, more = 0;
    int steps = 0, code = data_rest_bytes(f, shape, element, DATA_MAX, &want, e);
    if (code) return code;
    do {
        size_t next = f->length >= 0 || want - have < READ_STEP ? want : have + READ_STEP;
        if (!mem_grow(&bytes, &steps, (int)((next + READ_STEP - 1) / READ_STEP), READ_STEP))
            code = data_no_memory(f->path, next, e);
        else code = data_read(f, bytes + have, next - have, &got, e);
        if (code) goto failed;
        have += got;
        if (have < next) break;
    } while (have < want);
    code = data_read(f, &extra, 1, &more, e);
    if (!code && have + more != want) code = wrong_length(f, shape, want, (int64_t)(have + more), e);
    if (code) goto failed;
    *out = bytes;
    return OK;
failed:
    mem_free(bytes);
    return code;
}

int data_samples(DataFile *f, const Shape *shape, size_t element, DataPart *p, Err *e) {
    size_t bytes;
    void *rest = NULL;
    int code = part_open(p, f, e);
    if (!code) code = p->on_disk ? data_rest_bytes(f, shape, element, INT64_MAX, &bytes, e)
                                 : data_rest(f, shape, element, &rest, e);
    p->bytes = rest;
    p->stride = code ? 0 : shape_elements(shape) / shape->dim[0] * (int64_t)element;
    return code;
}
