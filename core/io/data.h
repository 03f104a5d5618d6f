/* data.h: samples from files or random numbers, and batches of them.
 *
 * A dataset hands out its samples as fp32 in PyTorch's order, (value * scale - mean[c]) / std[c]. Samples of plain IDX,
 * .npy, CIFAR and tar files stay there: the files are read once from front to back when the dataset is opened, for the
 * hash of their content, and then sample by sample. They must not change before the dataset is freed. Targets, texts,
 * and samples of compressed files or of what is not a regular file are held in host memory, as they are in the file.
 * Files are untrusted: sizes are checked before anything is allocated. The readers fail with ERR_FILE (cannot be opened
 * or read), ERR_FORMAT (wrong content), ERR_SCRIPT (wrong argument) or ERR_HOST_MEMORY. */
#ifndef MT_DATA_H
#define MT_DATA_H

#include "base/dtype.h"
#include "base/shape.h"

typedef struct Dataset Dataset;

/* Images (u8, rank 3: (N, H, W), becoming (1, H, W) samples; or rank 4) and labels (u8, rank 1) in IDX, plain or .gz.
 * Scale 1/255. */
int dataset_idx(const char *images, const char *labels, Dataset **out, Err *e);
/* CIFAR-10 binary batches: 3073-byte records. Samples (3, 32, 32), 10 classes. Scale 1/255. */
int dataset_cifar10(const char *const *paths, int n_paths, Dataset **out, Err *e);
/* .npy arrays whose first dimension is N; (N) is read as (N, 1). x: float32, float64, uint8, or int32 and int64 within
 * +-2^24 (token ids). y: labels (int32, int64, uint8), of which `ignored` is no class, or float targets; NULL: no targets. */
int dataset_npy(const char *x, const char *y, int32_t ignored, Dataset **out, Err *e);
/* Shards as WebDataset has them: plain tar archives. Members KEY.npy (an array, of the same type and shape in all) and,
 * in all samples or in none, KEY.cls (the label as decimal text) are a sample; their order is that of the archives. */
int dataset_tar(const char *const *paths, int n_paths, Dataset **out, Err *e);
/* `count` samples drawn from `seed`, each made when it is asked for. Inputs are standard normal. classes > 0: targets
 * are labels below `classes`, of shape `target` (NULL or rank 0: one label). classes = 0: targets are standard normal,
 * of shape `target`. */
int dataset_random(
    int64_t count, const Shape *sample, int classes, const Shape *target, uint64_t seed, Dataset **out, Err *e);
/* The same, but samples are indices below `tokens`. */
int dataset_random_tokens(int64_t count, const Shape *sample, int tokens, int classes, const Shape *target,
                          uint64_t seed, Dataset **out, Err *e);
/* Windows of `window` bytes of a text as tokens, one window every `stride` bytes. The targets of a window are the same
 * window one byte further on. */
int dataset_windows(const char *text, int64_t length, int64_t window, int64_t stride, Dataset **out, Err *e);
int dataset_text_file(const char *path, int64_t window, int64_t stride, Dataset **out, Err *e);
/* `count` samples of positions, as of rows of `steps` tokens in which several sequences lie, none longer than `most`: 0, 1, 2,
 * 0, 1 ... On average a sequence begins at four steps of a row beside the first one. */
int dataset_random_positions(int64_t count, int64_t steps, int64_t most, uint64_t seed, Dataset **out, Err *e);

/* Sequences one after the other: sequence s has length[s] tokens. */
typedef struct Sequences { const int32_t *token; const int64_t *length; int64_t count; } Sequences;
/* window: tokens of a row; wrapped, else best fit decreasing: see data_packed.c; shuffle: by `seed`, else the sequences are
 * packed in their own order; tokens: all are below it; ignore_index: the label of what is not predicted; pad: a token */
typedef struct Packing {
    int64_t window;
    bool wrapped, shuffle;
    uint64_t seed;
    int32_t tokens, ignore_index, pad;
} Packing;
/* The rows: ids (window) with labels (window) as targets, and positions (window). tokens, padding: places in the rows that
 * have one, and those that have none; padded: places without a token if each sequence had a row as long as the longest one */
typedef struct Packed { Dataset *ids, *positions; int64_t sequences, tokens, padding, padded; } Packed;
/* ERR_SCRIPT: there is no sequence, one is empty, a token is not below `tokens`, or an option is wrong. 12 bytes of host
 * memory for each place of the rows. */
int dataset_packed(const Sequences *of, const Packing *how, Packed *out, Err *e);
void dataset_free(Dataset *d); /* NULL is allowed */

int64_t dataset_count(const Dataset *d);
Shape dataset_sample(const Dataset *d); /* without the batch dimension */
int dataset_classes(const Dataset *d);  /* highest label + 1; 0: targets are not labels */
Shape dataset_target(const Dataset *d); /* of one sample; rank 0: one label, or no targets if there are 0 classes */
int dataset_tokens(const Dataset *d);   /* samples are indices below it; 0: they are numbers */
const char *dataset_alphabet(const Dataset *d); /* of a text: [token] -> the byte that it stands for; else NULL */
/* Per-channel normalisation, after the scale. mean[n] and std[n]: n is 1 or the number of channels (the first dimension
 * of a sample); all must be finite, std not 0, else ERR_SCRIPT. It changes dataset_text. No loader of the
 * dataset may be open. */
int dataset_normalize(Dataset *d, const double *mean, const double *std, int n, Err *e);
/* Samples are handed out as the bytes that the file has, without scale: ERR_SCRIPT unless it has bytes, which are not
 * normalised, or is random tokens below 256 at most. It changes dataset_text. No loader of the dataset may be open. */
int dataset_keep_bytes(Dataset *d, Err *e);
bool dataset_has_bytes(const Dataset *d);
/* Reads the files into memory, from which samples come from then on. No loader of the dataset may be open. */
int dataset_cache(Dataset *d, Err *e);
/* Copies sample i, 0 to dataset_count - 1, into x (fp32, or bytes: dataset_keep_bytes) and t (int32 labels or fp32 target; NULL: not wanted). Threads
 * may do so at once. ERR_FILE: the file cannot be read, or it was changed after it was opened. */
int dataset_get(const Dataset *d, int64_t i, void *x, void *t, Err *e);
/* Kind, sizes and a hash of the content, for cell ids: "idx 2000x1x28x28 7f3a..." */
const char *dataset_text(const Dataset *d);

/* Batches of one epoch after another. */
typedef struct Loader Loader;
enum { LOADER_PREFETCH_MAX = 1024 };
typedef struct LoaderOptions {
    int64_t batch;           /* samples of a batch */
    bool shuffle, drop_last; /* a permutation for each epoch, drawn from seed (the same on every machine); leave out an
                              * incomplete last batch (PyTorch's default is to keep it) */
    int prefetch;            /* how many batches a second thread fills ahead; 0: none, a batch is filled when it is asked for */
    uint64_t seed;
    int world, rank;         /* of every `world` batches in a row, which may lie in two epochs, only number `rank` is given and
                              * read; 0: there is one rank */
} LoaderOptions;
/* The dataset is borrowed. ERR_SCRIPT: there would be no batch, or one too large; ERR_HOST_MEMORY. */
int loader_open(const Dataset *d, const LoaderOptions *o, Loader **out, Err *e);
void loader_close(Loader *l); /* NULL is allowed */
int64_t loader_batches(const Loader *l); /* per epoch */
int loader_prefetch(const Loader *l);
int loader_world(const Loader *l);       /* at least 1 */
size_t loader_bytes(const Loader *l);    /* of host memory: the batches ahead; 8 bytes for each sample if shuffled */
/* The next batch: *count samples into x, and their targets into t (NULL: not wanted). *count = 0 at the end of an
 * epoch; the call after that starts the next epoch. Of several ranks no end is told. A batch that fails as dataset_get does stays the next one. */
int loader_next(Loader *l, void *x, void *t, int64_t *count, Err *e);
/* Makes a batch (0, 1, ... below loader_batches) of `epoch` (0, 1, ...) the next one; ERR_SCRIPT: there is none such. */
int loader_seek(Loader *l, int64_t epoch, int64_t batch, Err *e);
/* The next batch: what loader_seek takes to continue from here. */
void loader_place(const Loader *l, int64_t *epoch, int64_t *batch);

#endif
