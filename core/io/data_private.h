/* data_private.h: what the readers of file formats share: the fields of a dataset, the files that hold its samples, and
 * reading of untrusted files. */
#ifndef MT_DATA_PRIVATE_H
#define MT_DATA_PRIVATE_H

#include <sys/stat.h>
#include <zlib.h>

#include "data.h"

enum { DATA_TEXT = 128 };
#define DATA_MAX ((size_t)8 << 30) /* bytes of host memory that one file may ask for */

/* A type of elements in files. value: an element as a number; NULL for bytes, which are kept as they are. */
typedef struct DataType {
    const char *descr; /* as .npy calls it */
    size_t size;
    bool integer;
    double (*value)(const unsigned char *p);
} DataType;

enum { DATA_F32, DATA_F64, DATA_U8, DATA_I32, DATA_I64, DATA_TYPES };
extern const DataType data_types[DATA_TYPES];

/* Converts n elements of 4 or 8 bytes to fp32 or (labels) to int32 in `to`, which may be `from`. Whole numbers that
 * would change are an error: labels must be from 0 to 2^31 - 2 or `*ignored`, others within +-2^24, which fp32 holds
 * exactly. ignored: of labels the one that losses do not count; NULL: numbers. For the message: path, and first, the
 * number of the first element. */
int data_convert(const DataType *type, const void *from, int64_t n, const int32_t *ignored, void *to, const char *path,
                 int64_t first, Err *e);

/* A file with samples. It stays open, and a sample is read when it is asked for; of a compressed file, or one that is
 * not a regular file, the samples are in memory. All zero: none. */
typedef struct DataPart {
    char *path;
    bool on_disk;
    int fd;               /* on disk: of the file */
    struct stat opened;   /* on disk: what the file was when it was opened */
    unsigned char *bytes; /* in memory: those from `start` on */
    int64_t start;        /* bytes before the first sample */
    int64_t stride;       /* bytes from one sample to the next; 0: the dataset's offsets say where they are */
    int64_t first;        /* its first sample's number in the dataset */
} DataPart;

/* A random dataset has no parts and no t: it draws its samples. t is also NULL in a dataset without targets. */
struct Dataset {
    const char *kind;
    int64_t count;
    Shape sample, target;   /* target: rank 0 for labels and for a dataset without targets */
    int classes;
    const DataType *type;   /* of the elements in the parts */
    DataPart *parts;
    int n_parts, parts_cap;
    int64_t *offsets;       /* where each sample begins in its part, if no stride says it; else NULL */
    void *t;                /* (count) int32 labels or (count, target) fp32 */
    int tokens;             /* samples are indices below it; 0: they are numbers */
    size_t text_bytes;      /* of a text, whose targets are its samples one byte further on; else 0 */
    char alphabet[256];     /* the byte that a token of a text stands for */
    bool positions;         /* drawn samples are positions, each below `tokens` */
    float divisor;          /* of u8 values: 255 for pixels, as ToTensor does */
    bool bytes;             /* samples are handed out as the bytes that they are */
    int channels;           /* of the normalisation; 0: none */
    float *mean, *std;      /* [channels] each, one allocation */
    uint64_t seed, hash;
    char text[DATA_TEXT];
};

Dataset *dataset_start(const char *kind, Err *e); /* NULL: no memory */
/* Makes d->t from labels[n]. */
int dataset_labels(Dataset *d, const unsigned char *labels, int64_t n, Err *e);
/* Sets d->classes by the n labels of d->t, of which `ignored` is none. */
void dataset_count_classes(Dataset *d, int64_t n, int32_t ignored);
/* A further part, all zero, for the reader to fill; NULL: no memory. */
DataPart *dataset_part(Dataset *d, Err *e);
/* Ends a reader whose outcome is `code`. OK: counts the classes (unless the format fixes them), reads all samples once
 * for the hash of the content and sets *out. Anything else, or a sample that cannot be read: frees the dataset. Returns
 * the code. */
int dataset_finish(Dataset *d, int code, Dataset **out, Err *e);
int data_no_memory(const char *path, size_t bytes, Err *e);
/* Sets order[n] to a permutation of 0 to n - 1 (Fisher and Yates), a function of seed and epoch only. The remainder is biased
 * by less than n / 2^64. loader.c */
void data_permute(int64_t *order, int64_t n, uint64_t seed, int64_t epoch);

/* A plain or gzip-compressed file, or the bytes of one from `origin` on, read once from front to back. */
typedef struct DataFile {
    gzFile gz;
    int fd;         /* gz's */
    const DataPart *part; /* whose file it is; NULL: gz */
    int64_t origin;
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
/* The header of an .npy file; its elements follow. */
int data_npy_header(DataFile *f, const DataType **type, Shape *shape, Err *e);
/* The bytes of such elements: at most `most`, and all that is left as far as the file's length is known. */
int data_rest_bytes(const DataFile *f, const Shape *shape, size_t element, size_t most, size_t *bytes, Err *e);
/* Everything that is left, which must be the elements of `shape`, `element` bytes each; *out is freed with mem_free.
 * Memory grows with what the file really holds, so a header that promises too much costs nothing. */
int data_rest(DataFile *f, const Shape *shape, size_t element, void **out, Err *e);
/* The same as samples of the part: the first dimension of `shape` counts them. Of a plain file nothing is read. */
int data_samples(DataFile *f, const Shape *shape, size_t element, DataPart *p, Err *e);

/* Keeps the file of f for the part, from f->at on, if f's length is known: sets p->on_disk. Otherwise the caller gives
 * the part its bytes. */
int part_open(DataPart *p, const DataFile *f, Err *e);
void part_close(DataPart *p); /* a part of zeros is allowed */
/* Reads a part on disk into memory; if that fails, it stays on disk. */
int part_cache(DataPart *p, Err *e);
/* `n` bytes at `offset` of the file. ERR_FILE: they cannot be read, or the file has changed since it was opened. */
int part_bytes(const DataPart *p, int64_t offset, void *to, size_t n, Err *e);
/* Of the elements that begin at `offset`, those from `from` to `to` - 1 as fp32, bytes divided by `divisor`. */
int part_values(const DataPart *p, const DataType *type, float divisor, int64_t offset, int64_t from, int64_t to,
                float *out, Err *e);
/* The hash of what is kept of n elements at `offset`: bytes as they are, others as fp32. */
int part_hash(const DataPart *p, const DataType *type, int64_t offset, int64_t n, uint64_t *hash, Err *e);

#endif
