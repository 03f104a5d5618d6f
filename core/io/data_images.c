/* Images and labels as bytes: IDX (the format of MNIST) and CIFAR-10's binary batches. */
#include <inttypes.h>
#include <string.h>

#include "data_private.h"
#include "base/mem.h"

/* IDX: 00 00, element type (08: u8), rank, then as many sizes of 4 bytes, big-endian, then the elements. The rank must
 * be from `low` to `high`. */
static int idx_header(DataFile *f, int low, int high, Shape *shape, Err *e) {
    unsigned char magic[4], size[4];
    int code = data_need(f, magic, sizeof magic, "magic number", e);
    if (code) return code;
    if (magic[0] || magic[1] || magic[2] != 8 || magic[3] < low || magic[3] > high)
        return err_set(e, ERR_FORMAT,
            "%s: expected IDX bytes of rank %d%s (magic 00 00 08 %02x), found %02x %02x %02x %02x", f->path, low,
            low < high ? " or more" : "", low, magic[0], magic[1], magic[2], magic[3]);
    *shape = (Shape){.rank = magic[3], .dim = {1, 1, 1, 1}};
    for (int i = 0; i < shape->rank && !code; i++) {
        code = data_need(f, size, sizeof size, "sizes", e);
        if (!code) shape->dim[i] = (int64_t)size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3];
    }
    return code;
}

static int idx_images(Dataset *d, const char *path, Err *e) {
    DataFile f;
    Shape shape;
    DataPart *p = dataset_part(d, e);
    if (!p) return ERR_HOST_MEMORY;
    int code = data_open(&f, path, e);
    if (!code) code = idx_header(&f, 3, SHAPE_MAX, &shape, e);
    if (!code) code = data_samples(&f, &shape, 1, p, e);
    data_close(&f);
    if (code) return code;
    d->divisor = 255;
    d->count = shape.dim[0];
    d->sample = (Shape){3, {1, shape.dim[shape.rank - 2], shape.dim[shape.rank - 1], 1}};
    if (shape.rank == 4) d->sample.dim[0] = shape.dim[1];
    return OK;
}

static int idx_labels(Dataset *d, const char *images, const char *path, Err *e) {
    DataFile f;
    Shape shape = {0};
    void *bytes = NULL;
    int code = data_open(&f, path, e);
    if (!code) code = idx_header(&f, 1, 1, &shape, e);
    if (!code) code = data_rest(&f, &shape, 1, &bytes, e);
    data_close(&f);
    if (!code && shape.dim[0] != d->count)
        code = err_set(e, ERR_FORMAT, "%s: expected %" PRId64 " labels, one for each image of %s, found %" PRId64, path,
            d->count, images, shape.dim[0]);
    if (!code) code = dataset_labels(d, bytes, d->count, e);
    mem_free(bytes);
    return code;
}

int dataset_idx(const char *images, const char *labels, Dataset **out, Err *e) {
    Dataset *d = dataset_start("idx", e);
    if (!d) return ERR_HOST_MEMORY;
    int code = idx_images(d, images, e);
    if (!code) code = idx_labels(d, images, labels, e);
    return dataset_finish(d, code, out, e);
}

enum { CIFAR_PIXELS = 3 * 32 * 32, CIFAR_RECORD = 1 + CIFAR_PIXELS, CIFAR_CLASSES = 10 };

/* The records read so far: the labels of all files, the pixels of the part that is read if it is not on disk. */
typedef struct Cifar { DataPart *part; int32_t *labels; int count, pixels_cap, labels_cap; } Cifar;

static int cifar_add(Cifar *c, const DataFile *f, const unsigned char *record, Err *e) {
    int before = c->count - (int)c->part->first;
    if (record[0] >= CIFAR_CLASSES)
        return err_set(e, ERR_FORMAT, "%s: record %" PRId64 ": expected a label from 0 to 9, found %d", f->path,
            f->at / CIFAR_RECORD, record[0]);
    if (!c->part->on_disk && (size_t)before >= DATA_MAX / CIFAR_RECORD)
        return err_set(e, ERR_FORMAT, "%s: expected at most %zu bytes of data", f->path, DATA_MAX);
    if ((!c->part->on_disk && !mem_grow(&c->part->bytes, &c->pixels_cap, before + 1, CIFAR_PIXELS)) ||
        !mem_grow(&c->labels, &c->labels_cap, c->count + 1, 4))
        return data_no_memory(f->path, (size_t)(before + 1) * CIFAR_RECORD, e);
    c->labels[c->count++] = record[0];
    if (!c->part->on_disk) memcpy(c->part->bytes + (size_t)before * CIFAR_PIXELS, record + 1, CIFAR_PIXELS);
    return OK;
}

/* On disk a sample is what follows its label; in memory the samples follow each other. */
static int cifar_part(Cifar *c, const DataFile *f, Err *e) {
    int code = part_open(c->part, f, e);
    c->part->start = c->part->on_disk ? 1 : 0;
    c->part->stride = c->part->on_disk ? CIFAR_RECORD : CIFAR_PIXELS;
    c->part->first = c->count;
    c->pixels_cap = 0;
    return code;
}

static int cifar_read(Cifar *c, const char *path, Err *e) {
    DataFile f;
    unsigned char record[CIFAR_RECORD];
    size_t got = CIFAR_RECORD;
    int code = data_open(&f, path, e);
    if (!code && f.length > 0 && f.length % CIFAR_RECORD)
        code = err_set(
            e, ERR_FORMAT, "%s: expected a multiple of %d bytes, found %" PRId64, path, CIFAR_RECORD, f.length);
    if (!code) code = cifar_part(c, &f, e);
    while (!code && got == CIFAR_RECORD) {
        code = data_read(&f, record, CIFAR_RECORD, &got, e);
        if (!code && got == CIFAR_RECORD) code = cifar_add(c, &f, record, e);
    }
    if (!code && (got || !f.at))
        code = err_set(e, ERR_FORMAT, "%s: expected a multiple of %d bytes, found %" PRId64, path, CIFAR_RECORD, f.at);
    data_close(&f);
    return code;
}

int dataset_cifar10(const char *const *paths, int n_paths, Dataset **out, Err *e) {
    Cifar c = {0};
    if (n_paths < 1) return err_set(e, ERR_SCRIPT, "cifar10: expected at least one file, found none");
    Dataset *d = dataset_start("cifar10", e);
    if (!d) return ERR_HOST_MEMORY;
    int code = OK;
    for (int i = 0; i < n_paths && !code; i++) {
        c.part = dataset_part(d, e);
        code = c.part ? cifar_read(&c, paths[i], e) : ERR_HOST_MEMORY;
    }
    d->divisor = 255;
    d->count = c.count;
    d->sample = (Shape){3, {3, 32, 32, 1}};
    d->classes = CIFAR_CLASSES;
    d->t = c.labels;
    return dataset_finish(d, code, out, e);
}
