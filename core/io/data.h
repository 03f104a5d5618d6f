/* data.h: samples from files or a formula, and batches of them.
 *
 * A dataset holds its samples in host memory as they are in the file (u8 or fp32) and hands them out as fp32 in
 * PyTorch's order, (value * scale - mean[c]) / std[c]. Files are untrusted: sizes are checked before anything is
 * allocated. */
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
/* .npy arrays of the first dimension N, (N) being (N, 1): x float32/float64/uint8, or int32/int64 within +-2^24 (token
 * ids); y (may be NULL: no targets) int32/int64/uint8 labels of rank 1, or float targets. */
int dataset_npy(const char *x, const char *y, Dataset **out, Err *e);
/* `count` samples drawn from `seed`, made when asked for: standard normal inputs; labels below `classes`, of which a
 * sample has `target` (NULL or rank 0: one), or, with classes 0, standard normal targets of shape `target`. */
int dataset_random(
    int64_t count, const Shape *sample, int classes, const Shape *target, uint64_t seed, Dataset **out, Err *e);
/* The same with samples of indices below `tokens`. */
int dataset_random_tokens(int64_t count, const Shape *sample, int tokens, int classes, const Shape *target,
                          uint64_t seed,
                          Dataset **out, Err *e);
/* Windows of `window` bytes of a text, every `stride` bytes, as tokens; targets are the tokens that come next. */
int dataset_windows(const char *text, int64_t length, int64_t window, int64_t stride, Dataset **out, Err *e);
int dataset_text_file(const char *path, int64_t window, int64_t stride, Dataset **out, Err *e);
void dataset_free(Dataset *d); /* NULL is allowed */

int64_t dataset_count(const Dataset *d);
Shape dataset_sample(const Dataset *d); /* without the batch dimension */
int dataset_classes(const Dataset *d);  /* highest label + 1; 0: targets are not labels */
Shape dataset_target(const Dataset *d); /* of one sample; rank 0 for one label, and with 0 classes for no targets */
int dataset_tokens(const Dataset *d);   /* samples are indices below it; 0: they are numbers */
const char *dataset_alphabet(const Dataset *d); /* of a text: by token, the byte that it stands for; else NULL */
/* Per-channel normalisation on top of scale; n = 1 or the channels (the first dimension of a sample); std must not be
 * 0. Part of dataset_text. Before any loader is opened. */
int dataset_normalize(Dataset *d, const double *mean, const double *std, int n, Err *e);
/* Sample i into x (fp32) and t (int32 label or fp32 target; NULL: not wanted). */
void dataset_get(const Dataset *d, int64_t i, float *x, void *t);
/* A short stable description with a content hash, for cell ids: "idx 2000x1x28x28 7f3a..." */
const char *dataset_text(const Dataset *d);

/* Batches of one epoch after another. */
typedef struct Loader Loader;
/* shuffle: a permutation per epoch drawn from seed (counter-based: the same on every machine). drop_last: leave out an
 * incomplete last batch (PyTorch's default is to keep it). prefetch: fill the next batch on a second thread. The
 * dataset is borrowed. */
int loader_open(
    const Dataset *d, int64_t batch, bool shuffle, bool drop_last, bool prefetch, uint64_t seed, Loader **out, Err *e);
void loader_close(Loader *l); /* NULL is allowed */
int64_t loader_batches(const Loader *l); /* per epoch */
/* The next batch: *count samples into x and t; *count = 0 at the end of an epoch, the next call starts the next one. */
int loader_next(Loader *l, float *x, void *t, int64_t *count, Err *e);
/* Goes to a batch (0, 1, ... below loader_batches) of `epoch` (0, 1, ...). */
int loader_seek(Loader *l, int64_t epoch, int64_t batch, Err *e);
/* The place of the next batch: what loader_seek takes to go on from here. */
void loader_place(const Loader *l, int64_t *epoch, int64_t *batch);

#endif
