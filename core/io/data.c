/* Datasets: what all formats share, and random samples. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data_private.h"
#include "base/mem.h"
#include "math/rng_fill.h"

Dataset *dataset_start(const char *kind, Err *e) {
    Dataset *d = mem_new(sizeof *d);
    if (!d) {
        err_set(e, ERR_HOST_MEMORY, "%s data: no memory for %zu bytes", kind, sizeof *d);
        return NULL;
    }
    d->kind = kind;
    d->type = &data_types[DATA_U8];
    d->divisor = 1;
    return d;
}

void dataset_free(Dataset *d) {
    if (!d) return;
    for (int i = 0; i < d->n_parts; i++) part_close(&d->parts[i]);
    mem_free(d->parts);
    mem_free(d->offsets);
    mem_free(d->t);
    mem_free(d->mean);
    mem_free(d);
}

DataPart *dataset_part(Dataset *d, Err *e) {
    if (mem_grow(&d->parts, &d->parts_cap, d->n_parts + 1, sizeof *d->parts)) return &d->parts[d->n_parts++];
    data_no_memory(d->kind, (size_t)(d->n_parts + 1) * sizeof *d->parts, e);
    return NULL;
}

int dataset_labels(Dataset *d, const unsigned char *labels, int64_t n, Err *e) {
    assert(labels && n > 0);
    int32_t *t = d->t = mem_new((size_t)n * sizeof *t);
    if (!t) return data_no_memory("labels", (size_t)n * sizeof *t, e);
    for (int64_t i = 0; i < n; i++) t[i] = labels[i];
    return OK;
}

void dataset_count_classes(Dataset *d, int64_t n, int32_t ignored) {
    const int32_t *t = d->t;
    for (int64_t i = 0; i < n; i++)
        if (t[i] != ignored && t[i] >= d->classes) d->classes = t[i] + 1;
}

/* 4-byte values per sample in t; 0: no targets */
static int64_t target_size(const Dataset *d) { return d->target.rank || d->classes ? shape_elements(&d->target) : 0; }

/* The normalisation changes what a sample is, so it is part of the hash. */
static void describe(Dataset *d) {
    uint64_t hash = hash_bytes(d->hash, d->mean, (size_t)d->channels * 2 * sizeof *d->mean);
    int n = snprintf(d->text, sizeof d->text, "%s %" PRId64, d->kind, d->count);
    for (int i = 0; i < d->sample.rank; i++)
        n += snprintf(d->text + n, sizeof d->text - (size_t)n, "x%" PRId64, d->sample.dim[i]);
    assert(n + 24 <= DATA_TEXT); /* the hash is part of cell ids: it must not be cut off */
    snprintf(d->text + n, sizeof d->text - (size_t)n, " %016" PRIx64 "%s", hash, d->bytes ? " bytes" : "");
}

/* Where sample i of the part begins */
static int64_t offset_of(const Dataset *d, const DataPart *p, int64_t i) {
    return d->offsets ? d->offsets[i] : p->start + (i - p->first) * p->stride;
}

/* Adds the samples of a part, those before number `end`, to the hash: at once if they lie one after the other. */
static int hash_part(Dataset *d, const DataPart *p, int64_t end, Err *e) {
    int64_t n = shape_elements(&d->sample);
    if (d->text_bytes) return part_hash(p, d->type, p->start, (int64_t)d->text_bytes, &d->hash, e);
    if (p->stride == n * (int64_t)d->type->size)
        return part_hash(p, d->type, p->start, (end - p->first) * n, &d->hash, e);
    int code = OK;
    for (int64_t i = p->first; i < end && !code; i++)
        if ((code = part_hash(p, d->type, offset_of(d, p, i), n, &d->hash, e))) err_prefix(e, "sample %" PRId64, i);
    return code;
}

int dataset_finish(Dataset *d, int code, Dataset **out, Err *e) {
    if (!code) {
        assert(d->count > 0 && d->sample.rank > 0);
        if (d->t && !d->target.rank && !d->classes) dataset_count_classes(d, d->count, -1);
        d->hash = hash_bytes(HASH_START, &d->seed, d->n_parts ? 0 : sizeof d->seed);
        d->hash = hash_bytes(d->hash, &d->classes, sizeof d->classes);
        d->hash = hash_bytes(d->hash, d->target.dim, (size_t)d->target.rank * sizeof d->target.dim[0]);
    }
    for (int i = 0; i < d->n_parts && !code; i++)
        code = hash_part(d, &d->parts[i], i + 1 < d->n_parts ? d->parts[i + 1].first : d->count, e);
    if (code) {
        dataset_free(d);
        return code;
    }
    if (d->t) d->hash = hash_bytes(d->hash, d->t, (size_t)d->count * (size_t)target_size(d) * 4);
    describe(d);
    *out = d;
    return OK;
}

static int check_shape(const Shape *s, const char *what, Err *e) {
    int64_t n;
    char text[SHAPE_TEXT];
    if (s->rank < 1 || s->rank >= SHAPE_MAX)
        return err_set(
            e, ERR_SCRIPT, "random data: %s %s: expected 1 to %d dimensions", what, shape_text(s, text), SHAPE_MAX - 1);
    return shape_count(s, &n, e) ? err_prefix(e, "random data: %s", what) : OK;
}

int dataset_random(
    int64_t count, const Shape *sample, int classes, const Shape *target, uint64_t seed, Dataset **out, Err *e) {
    if (count < 1) return err_set(e, ERR_SCRIPT, "random data: expected at least 1 sample, found %" PRId64, count);
    if (classes < 0) return err_set(e, ERR_SCRIPT, "random data: expected 0 or more classes, found %d", classes);
    if (classes == 0 && !target)
        return err_set(e, ERR_SCRIPT, "random data: expected classes or the shape of a target, found neither");
    int code = check_shape(sample, "sample", e);
    if (!code && target && (classes == 0 || target->rank)) code = check_shape(target, "target", e);
    if (code) return code;
    Dataset *d = dataset_start("random", e);
    if (!d) return ERR_HOST_MEMORY;
    d->count = count;
    d->sample = *sample;
    d->classes = classes;
    if (target) d->target = *target;
    d->seed = seed;
    return dataset_finish(d, OK, out, e);
}

int dataset_random_tokens(int64_t count, const Shape *sample, int tokens, int classes, const Shape *target,
                          uint64_t seed, Dataset **out, Err *e) {
    if (tokens < 1) return err_set(e, ERR_SCRIPT, "random data: expected at least 1 token, found %d", tokens);
    int code = dataset_random(count, sample, classes, classes ? NULL : target, seed, out, e);
    if (code) return code;
    (*out)->tokens = tokens;
    (*out)->target = *target;
    (*out)->hash = hash_bytes((*out)->hash, &tokens, sizeof tokens);
    (*out)->hash = hash_bytes((*out)->hash, target->dim, (size_t)target->rank * sizeof target->dim[0]);
    describe(*out);
    return OK;
}

int dataset_random_positions(int64_t count, int64_t steps, int64_t most, uint64_t seed, Dataset **out, Err *e) {
    const Shape sample = shape1(steps), none = {0, {1, 1, 1, 1}};
    assert(most >= 1 && most <= INT32_MAX);
    int code = dataset_random_tokens(count, &sample, (int)most, 1, &none, seed, out, e);
    if (!code) (*out)->positions = true;
    return code;
}

int dataset_tokens(const Dataset *d) { return d->tokens; }
const char *dataset_alphabet(const Dataset *d) { return d->text_bytes ? d->alphabet : NULL; }
int64_t dataset_count(const Dataset *d) { return d->count; }
Shape dataset_sample(const Dataset *d) { return d->sample; }
int dataset_classes(const Dataset *d) { return d->classes; }
Shape dataset_target(const Dataset *d) { return d->target; }
const char *dataset_text(const Dataset *d) { return d->text; }

int dataset_normalize(Dataset *d, const double *mean, const double *std, int n, Err *e) {
    if (d->bytes)
        return err_set(e, ERR_SCRIPT, "normalize: samples stay bytes (keep_bytes): nn.FromBytes takes mean and std instead");
    if (n != 1 && n != d->sample.dim[0])
        return err_set(e, ERR_SCRIPT, "normalize: expected 1 or %" PRId64 " values, one per channel, found %d",
            d->sample.dim[0], n);
    float *values = mem_new((size_t)n * 2 * sizeof *values);
    if (!values) return data_no_memory("normalize", (size_t)n * 2 * sizeof *values, e);
    for (int c = 0; c < n; c++) {
        values[c] = (float)mean[c];
        values[n + c] = (float)std[c];
        if (isfinite(values[c]) && isfinite(values[n + c]) && values[n + c] != 0) continue;
        mem_free(values);
        return err_set(e, ERR_SCRIPT,
            "normalize: channel %d: expected a finite mean and a finite std that is not 0, found %g and %g", c, mean[c],
            std[c]);
    }
    mem_free(d->mean);
    d->mean = values;
    d->std = values + n;
    d->channels = n;
    describe(d);
    return OK;
}

int dataset_keep_bytes(Dataset *d, Err *e) {
    const bool drawn = !d->n_parts && d->tokens > 0 && d->tokens <= 256;
    if (!drawn && (!d->n_parts || d->type->value || d->text_bytes))
        return err_set(e, ERR_SCRIPT, "keep_bytes: expected data of bytes, such as images of IDX, CIFAR or uint8 arrays");
    if (d->channels)
        return err_set(e, ERR_SCRIPT, "keep_bytes: these data are normalised: nn.FromBytes takes mean and std instead");
    d->bytes = true;
    describe(d);
    return OK;
}

bool dataset_has_bytes(const Dataset *d) { return d->bytes; }

int dataset_cache(Dataset *d, Err *e) {
    int code = OK;
    for (int i = 0; i < d->n_parts && !code; i++) code = part_cache(&d->parts[i], e);
    return code;
}

enum { DRAW_X = 0, DRAW_T = 1 };

/* The random numbers of sample i are a function of the seed, i and what: the stream (RNG_DATA, a, b). */
static uint32_t stream_a(int64_t i) { return (uint32_t)i; }
static uint32_t stream_b(int64_t i, int what) { return (uint32_t)((uint64_t)i >> 32) << 1 | (uint32_t)what; }

static Philox draw(const Dataset *d, int64_t i, int what, int64_t block) {
    return philox(d->seed, RNG_DATA, stream_a(i), stream_b(i, what), (uint64_t)block);
}

static void draw_normal(const Dataset *d, int64_t i, int what, int64_t n, float *out) {
    const RngPlace from = {.seed = d->seed, .stream = RNG_DATA, .a = stream_a(i), .b = stream_b(i, what)};
    rng_fill(&from, true, out, n);
}

static void normalize(const Dataset *d, float *x, int64_t n) {
    if (!d->channels) return;
    int64_t plane = n / d->sample.dim[0];
    for (int64_t c = 0; c < d->sample.dim[0]; c++) {
        float mean = d->mean[d->channels > 1 ? c : 0], std = d->std[d->channels > 1 ? c : 0];
        for (int64_t k = c * plane; k < (c + 1) * plane; k++) x[k] = (x[k] - mean) / std;
    }
}

/* The k-th whole number of sample i, from 0 to end - 1 */
static int32_t draw_whole(const Dataset *d, int64_t i, int what, int end, int64_t k) {
    return (int32_t)((uint64_t)draw(d, i, what, k / 4).x[k % 4] * (uint64_t)end >> 32);
}

/* Each step begins a sequence with a chance of BEGINS in n. */
static void draw_positions(const Dataset *d, int64_t i, int64_t n, float *x) {
    enum { BEGINS = 4 };
    const int steps = (int)min_i64(n, INT32_MAX);
    x[0] = 0;
    for (int64_t k = 1; k < n; k++) {
        const bool begins = draw_whole(d, i, DRAW_X, steps, k) < BEGINS || x[k - 1] + 1 >= (float)d->tokens;
        x[k] = begins ? 0 : x[k - 1] + 1;
    }
}

/* The part that holds sample i */
static const DataPart *part_of(const Dataset *d, int64_t i) {
    int low = 0, high = d->n_parts;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (d->parts[middle].first <= i) low = middle;
        else high = middle;
    }
    return &d->parts[low];
}

static int get_x(const Dataset *d, int64_t i, float *x, Err *e) {
    int64_t n = shape_elements(&d->sample);
    if (d->n_parts) {
        const DataPart *p = part_of(d, i);
        int code = part_values(p, d->type, d->divisor, offset_of(d, p, i), 0, n, x, e);
        if (code) return code;
    } else if (d->positions) {
        draw_positions(d, i, n, x);
    } else if (d->tokens) {
        for (int64_t k = 0; k < n; k++) x[k] = (float)draw_whole(d, i, DRAW_X, d->tokens, k);
    } else {
        draw_normal(d, i, DRAW_X, n, x);
    }
    normalize(d, x, n);
    return OK;
}

static int get_bytes(const Dataset *d, int64_t i, unsigned char *x, Err *e) {
    const int64_t n = shape_elements(&d->sample);
    for (int64_t k = 0; !d->n_parts && k < n; k++) x[k] = (unsigned char)draw_whole(d, i, DRAW_X, d->tokens, k);
    if (!d->n_parts) return OK;
    const DataPart *p = part_of(d, i);
    return part_bytes(p, offset_of(d, p, i), x, (size_t)n, e);
}

int dataset_get(const Dataset *d, int64_t i, void *x, void *t, Err *e) {
    assert(i >= 0 && i < d->count && x);
    int64_t n = target_size(d);
    int code = d->bytes ? get_bytes(d, i, x, e) : get_x(d, i, x, e);
    if (code || !t || !n) return code;
    if (d->text_bytes) {
        const unsigned char *next = d->parts->bytes + i * d->parts->stride + 1;
        for (int64_t k = 0; k < n; k++) ((int32_t *)t)[k] = next[k];
    } else if (d->t) {
        memcpy(t, (const char *)d->t + i * n * 4, (size_t)n * 4);
    } else if (d->classes) {
        for (int64_t k = 0; k < n; k++) ((int32_t *)t)[k] = draw_whole(d, i, DRAW_T, d->classes, k);
    } else {
        draw_normal(d, i, DRAW_T, n, t);
    }
    return OK;
}
