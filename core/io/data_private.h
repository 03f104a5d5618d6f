/* data_private.h: what the readers of file formats share: the fields of a dataset, and reading of untrusted files. */
#ifndef MT_DATA_PRIVATE_H
#define MT_DATA_PRIVATE_H

#include <zlib.h>

#include "data.h"

enum { DATA_TEXT = 128 };
#define DATA_MAX ((size_t)8 << 30) /* bytes that one file may ask for */

/* x and t are NULL in a random dataset, which draws its samples; t is also NULL in a dataset without targets. */
struct Dataset {
    const char *kind;
    int64_t count;
    Shape sample, target;   /* target: rank 0 for labels and for a dataset without targets */
    int classes;
    DType stored;           /* of x: DT_U8 or DT_F32 */
    void *x;                /* (count, sample) */
    void *t;                /* (count) int32 labels or (count, target) fp32 */
    int tokens;             /* x are indices below it; 0: x are numbers */
    int64_t stride;         /* of a text: sample i begins at x[i * stride], its targets one further on; else 0 */
    size_t x_bytes;         /* of a text */
    char alphabet[256];     /* the byte that a token of a text stands for */
    float divisor;          /* of u8 values: 255 for pixels, as ToTensor does */
    int channels;           /* of the normalisation; 0: none */
    float *mean, *std;      /* [channels] each, one allocation */
    uint64_t seed, hash;
    char text[DATA_TEXT];
};

Dataset *dataset_start(const char *kind, Err *e); /* NULL: no memory */
/* Makes d->t from labels[d->count]. */
int dataset_labels(Dataset *d, const unsigned char *labels, Err *e);
/* Ends a reader whose outcome is `code`. OK: counts the classes (unless the format fixes them), hashes the content and
 * sets *out. Anything else: frees the dataset. Returns `code`. */
int dataset_finish(Dataset *d, int code, Dataset **out);
int data_no_memory(const char *path, size_t bytes, Err *e);

/* A plain or gzip-compressed file, read once from front to back. */
typedef struct DataFile {
    gzFile gz;
    const char *path;
    int64_t length; /* -1: not known before the end is reached (compressed, or a pipe) */
    int64_t at;     /* bytes read so far */
} DataFile;

int data_open(DataFile *f, const char *path, Err *e);
void data_close(DataFile *f);
/* Up to `want` bytes; fewer only at the end of the file. */
int data_read(DataFile *f, void *to, size_t want, size_t *got, Err *e);
/* Exactly `want` bytes of what is called `what`. */
int data_need(DataFile *f, void *to, size_t want, const char *what, Err *e);
/* Everything that is left, which must be the elements of `shape`, `element` bytes each; *out is freed with mem_free.
 * Memory grows with what the file really holds, so a header that promises too much costs nothing. */
int data_rest(DataFile *f, const Shape *shape, size_t element, void **out, Err *e);

#endif
