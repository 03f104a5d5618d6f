/* NumPy's .npy: "\x93NUMPY", version, length of the header, the header (a Python dict of exactly descr, fortran_order
 * and shape), the elements. Only this form of dict is read: no expression is evaluated, pickled objects are an error. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "data_private.h"
#include "base/mem.h"

enum { NPY_HEADER_MAX = 10000, NPY_WORD = 64 };

/* The header while it is read. */
typedef struct Header { const char *path, *at, *end; const DataType *type; Shape shape; int seen; Err *e; } Header;

enum { SEEN_DESCR = 1, SEEN_ORDER = 2, SEEN_SHAPE = 4, SEEN_ALL = 7 };

static int bad(const Header *h, const char *expected) {
    int left = (int)(h->end - h->at);
    return err_set(h->e, ERR_FORMAT, "%s: npy header: expected %s, found \"%.*s\"", h->path, expected,
        left < 24 ? left : 24, h->at);
}

static bool take(Header *h, const char *token) {
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\n')) h->at++;
    size_t n = strlen(token);
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, token, n)) return false;
    h->at += n;
    return true;
}

static int take_string(Header *h, char *word) {
    if (!take(h, "'") && !take(h, "\"")) return bad(h, "a string");
    char quote = h->at[-1];
    int n = 0;
    while (h->at + n < h->end && n < NPY_WORD - 1 && h->at[n] >= ' ' && h->at[n] != quote) n++;
    if (h->at + n == h->end || h->at[n] != quote) return bad(h, "a short string");
    snprintf(word, NPY_WORD, "%.*s", n, h->at);
    h->at += n + 1;
    return OK;
}

static int take_descr(Header *h) {
    char word[NPY_WORD];
    int code = take_string(h, word);
    if (code) return code;
    for (size_t i = 0; i < DATA_TYPES; i++)
        if (!strcmp(word, data_types[i].descr)) h->type = &data_types[i];
    if (h->type) return OK;
    const char *what = word[0] == '>' ? " (big endian)" : strchr(word, 'O') ? " (Python objects)" : "";
    return err_set(h->e, ERR_FORMAT, "%s: expected elements of type '<f4', '<f8', '|u1', '<i4' or '<i8', found '%s'%s",
        h->path, word, what);
}

static int take_order(Header *h) {
    if (take(h, "False")) return OK;
    if (!take(h, "True")) return bad(h, "True or False");
    return err_set(h->e, ERR_FORMAT,
        "%s: expected an array in C order, found Fortran order: save numpy.ascontiguousarray(a)", h->path);
}

static int take_shape(Header *h) {
    bool comma = true;
    if (!take(h, "(")) return bad(h, "a shape in parentheses");
    while (!take(h, ")")) {
        int64_t n = 0;
        if (h->shape.rank && !comma) return bad(h, "a comma");
        if (h->shape.rank == SHAPE_MAX)
            return err_set(
                h->e, ERR_FORMAT, "%s: expected an array of 1 to %d dimensions, found more", h->path, SHAPE_MAX);
        if (h->at == h->end || *h->at < '0' || *h->at > '9') return bad(h, "a size");
        for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
            if (n <= INT32_MAX) n = 10 * n + (*h->at - '0');
        h->shape.dim[h->shape.rank++] = n;
        comma = take(h, ",");
    }
    if (h->shape.rank == 1 && !comma) return bad(h, "a comma in a shape of one size");
    if (!h->shape.rank)
        return err_set(
            h->e, ERR_FORMAT, "%s: expected an array of 1 to %d dimensions, found a number", h->path, SHAPE_MAX);
    return OK;
}

static int take_entry(Header *h) {
    static const struct { const char *key; int (*take)(Header *); } keys[] = {
        {"descr", take_descr}, {"fortran_order", take_order}, {"shape", take_shape},
    };
    char word[NPY_WORD];
    int code = take_string(h, word);
    if (code) return code;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (strcmp(word, keys[i].key)) continue;
        if (h->seen & 1 << i) return err_set(h->e, ERR_FORMAT, "%s: npy header: '%s' is there twice", h->path, word);
        h->seen |= 1 << i;
        return take(h, ":") ? keys[i].take(h) : bad(h, "a colon");
    }
    return err_set(
        h->e, ERR_FORMAT, "%s: npy header: expected descr, fortran_order and shape, found '%s'", h->path, word);
}

static int take_header(Header *h) {
    bool comma = true;
    if (!take(h, "{")) return bad(h, "a dict");
    while (!take(h, "}")) {
        if (!comma) return bad(h, "a comma");
        int code = take_entry(h);
        if (code) return code;
        comma = take(h, ",");
    }
    take(h, "");
    if (h->at != h->end) return bad(h, "nothing after the dict");
    if (h->seen != SEEN_ALL)
        return err_set(
            h->e, ERR_FORMAT, "%s: npy header: expected descr, fortran_order and shape, found only some", h->path);
    return OK;
}

int data_npy_header(DataFile *f, const DataType **type, Shape *shape, Err *e) {
    unsigned char start[8], size[4] = {0};
    char text[NPY_HEADER_MAX];
    int code = data_need(f, start, sizeof start, "npy magic and version", e);
    if (code) return code;
    if (memcmp(start, "\x93NUMPY", 6) || start[6] < 1 || start[6] > 3 || start[7])
        return err_set(e, ERR_FORMAT,
            "%s: expected \\x93NUMPY and version 1.0, 2.0 or 3.0, found %02x %02x %02x %02x %02x %02x, %d.%d", f->path,
            start[0], start[1], start[2], start[3], start[4], start[5], start[6], start[7]);
    code = data_need(f, size, start[6] == 1 ? 2 : 4, "npy header length", e);
    if (code) return code;
    uint32_t n = (uint32_t)size[3] << 24 | (uint32_t)size[2] << 16 | (uint32_t)size[1] << 8 | size[0];
    if (n > NPY_HEADER_MAX)
        return err_set(e, ERR_FORMAT, "%s: expected an npy header of at most %d bytes, found %" PRIu32, f->path,
            NPY_HEADER_MAX, n);
    code = data_need(f, text, n, "npy header", e);
    if (code) return code;
    Header h = {.path = f->path, .at = text, .end = text + n, .shape = {0, {1, 1, 1, 1}}, .e = e};
    code = take_header(&h);
    *type = h.type;
    *shape = h.shape;
    return code;
}

/* (N, ...) without N; (N) is (N, 1) */
static Shape without_first(const Shape *s) {
    Shape r = {s->rank > 1 ? s->rank - 1 : 1, {1, 1, 1, 1}};
    for (int i = 1; i < s->rank; i++) r.dim[i - 1] = s->dim[i];
    return r;
}

static int npy_samples(Dataset *d, const char *path, Err *e) {
    DataFile f;
    Shape shape = {0};
    DataPart *p = dataset_part(d, e);
    if (!p) return ERR_HOST_MEMORY;
    int code = data_open(&f, path, e);
    if (!code) code = data_npy_header(&f, &d->type, &shape, e);
    if (!code) code = data_samples(&f, &shape, d->type->size, p, e);
    data_close(&f);
    d->count = shape.dim[0];
    d->sample = without_first(&shape);
    return code;
}

/* Elements of 4 or 8 bytes are converted in place. */
static int npy_targets(Dataset *d, const char *path, int32_t ignored, Err *e) {
    DataFile f;
    Shape shape = {0};
    const DataType *type = NULL;
    void *bytes = NULL;
    int code = data_open(&f, path, e);
    if (!code) code = data_npy_header(&f, &type, &shape, e);
    if (!code) code = data_rest(&f, &shape, type->size, &bytes, e);
    data_close(&f);
    if (!code && shape.dim[0] != d->count)
        code = err_set(e, ERR_FORMAT, "%s: expected %" PRId64 " targets, one for each sample, found %" PRId64, path,
            d->count, shape.dim[0]);
    const int64_t n = code ? 0 : shape_elements(&shape);
    if (!code && !type->value) {
        code = dataset_labels(d, bytes, n, e);
    } else if (!code) {
        code = data_convert(type, bytes, n, type->integer ? &ignored : NULL, bytes, path, 0, e);
        d->t = bytes;
        bytes = NULL;
    }
    mem_free(bytes);
    if (code) return code;
    if (!type->integer || shape.rank > 1) d->target = without_first(&shape);
    if (type->integer) dataset_count_classes(d, n, ignored);
    if (type->integer && !d->classes)
        return err_set(e, ERR_FORMAT, "%s: expected labels, found only ignore_index = %d", path, ignored);
    return OK;
}

int dataset_npy(const char *x, const char *y, int32_t ignored, Dataset **out, Err *e) {
    Dataset *d = dataset_start("npy", e);
    if (!d) return ERR_HOST_MEMORY;
    int code = npy_samples(d, x, e);
    if (!code && y) code = npy_targets(d, y, ignored, e);
    return dataset_finish(d, code, out, e);
}
