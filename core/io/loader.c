/* Batches in order. With prefetch, a second thread fills the next batch.
 *
 * There is one slot. The caller sets its place and state WANTED; the thread fills it and sets READY. While the slot is
 * WANTED, it and the order of the epoch belong to the thread, otherwise to the caller; the lock guards only `state` and
 * `stop`. */
#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "data.h"
#include "base/mem.h"
#include "math/rng.h"

/* A batch of an epoch, from 0; batch = the number of batches is the end of the epoch. */
typedef struct Place { int64_t epoch, batch; } Place;

typedef struct Slot {
    enum { WANTED, READY } state;
    bool stop;
    Place place;
    int64_t count;
    float *x;
    unsigned char *t;
    int code;  /* of the filling */
    Err error;
} Slot;

struct Loader {
    const Dataset *data;
    int64_t batch, batches;
    size_t x_size, t_size;  /* bytes of one sample */
    uint64_t seed;
    int64_t *order;         /* the permutation of ordered_epoch; NULL: samples in their own order */
    int64_t ordered_epoch;
    Place next;             /* what loader_next gives */
    bool prefetch;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Slot slot;
};

/* Fisher and Yates' shuffle, a function of seed and epoch only. The remainder is biased by less than count / 2^64. */
static void shuffle(Loader *l, int64_t epoch) {
    if (!l->order || l->ordered_epoch == epoch) return;
    int64_t n = dataset_count(l->data);
    for (int64_t i = 0; i < n; i++) l->order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        Philox r = philox(l->seed, RNG_SHUFFLE, (uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32), (uint64_t)i);
        int64_t j = (int64_t)(((uint64_t)r.x[0] << 32 | r.x[1]) % (uint64_t)(i + 1)), kept = l->order[i];
        l->order[i] = l->order[j];
        l->order[j] = kept;
    }
    l->ordered_epoch = epoch;
}

/* Fills x and t (NULL: not wanted) with the batch at `place`, *count samples. */
static int fill(Loader *l, Place place, float *x, unsigned char *t, int64_t *count, Err *e) {
    assert(place.epoch >= 0 && place.batch >= 0 && place.batch < l->batches);
    int64_t first = place.batch * l->batch, n = min_i64(l->batch, dataset_count(l->data) - first);
    shuffle(l, place.epoch);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = l->order ? l->order[first + k] : first + k;
        float *to = x + (size_t)k * (l->x_size / sizeof *x);
        int code = dataset_get(l->data, i, to, t ? t + (size_t)k * l->t_size : NULL, e);
        if (code) return code;
    }
    *count = n;
    return OK;
}

static void *fill_ahead(void *arg) {
    Loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->slot.stop) {
        if (l->slot.state == READY) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        l->slot.code = fill(l, l->slot.place, l->slot.x, l->slot.t, &l->slot.count, &l->slot.error);
        pthread_mutex_lock(&l->lock);
        l->slot.state = READY;
        pthread_cond_signal(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void wait_ready(Loader *l) {
    pthread_mutex_lock(&l->lock);
    while (l->slot.state != READY) pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

/* The slot is READY, so it belongs to the caller until its state changes. */
static void want(Loader *l, Place place) {
    l->slot.place = place;
    pthread_mutex_lock(&l->lock);
    assert(l->slot.state == READY);
    l->slot.state = WANTED;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static int start_thread(Loader *l, Err *e) {
    l->slot.x = mem_new((size_t)l->batch * l->x_size);
    l->slot.t = mem_new((size_t)l->batch * l->t_size);
    if (!l->slot.x || !l->slot.t)
        return err_set(e, ERR_HOST_MEMORY, "loader: no memory for a batch of %zu bytes",
            (size_t)l->batch * (l->x_size + l->t_size));
    pthread_mutex_init(&l->lock, NULL); /* on Linux neither call fails with default attributes */
    pthread_cond_init(&l->changed, NULL);
    int failed = pthread_create(&l->thread, NULL, fill_ahead, l);
    if (!failed) {
        l->prefetch = true;
        return OK;
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    return err_set(e, ERR_HOST_MEMORY, "loader: cannot start a thread to prefetch: %s", strerror(failed));
}

static int check(const Dataset *d, int64_t batch, bool drop_last, size_t sample_bytes, Err *e) {
    int64_t count = dataset_count(d);
    size_t bytes;
    if (batch < 1) return err_set(e, ERR_SCRIPT, "loader: expected a batch of at least 1, found %" PRId64, batch);
    if (drop_last && batch > count)
        return err_set(e, ERR_SCRIPT,
            "loader: drop_last leaves no batch of %" PRId64 ": expected at most %" PRId64 ", the samples", batch,
            count);
    if (!size_mul((size_t)batch, sample_bytes, &bytes))
        return err_set(
            e, ERR_SCRIPT, "loader: a batch of %" PRId64 " samples of %zu bytes is too large", batch, sample_bytes);
    return OK;
}

int loader_open(const Dataset *d, int64_t batch, bool shuffled, bool drop_last, bool prefetch, uint64_t seed,
    Loader **out, Err *e) {
    Shape sample = dataset_sample(d), target = dataset_target(d);
    size_t x_size = (size_t)shape_elements(&sample) * 4;
    size_t t_size = target.rank || dataset_classes(d) ? (size_t)shape_elements(&target) * 4 : 0, order_bytes = 0;
    int64_t count = dataset_count(d);
    int code = check(d, batch, drop_last, x_size + t_size, e);
    if (code) return code;
    Loader *l = mem_new(sizeof *l);
    if (!l) return err_set(e, ERR_HOST_MEMORY, "loader: no memory for %zu bytes", sizeof *l);
    *l = (Loader){.data = d, .batch = batch, .batches = count / batch, .x_size = x_size, .t_size = t_size, .seed = seed,
        .ordered_epoch = -1};
    if (!drop_last && count % batch) l->batches++;
    if (shuffled && (!size_mul((size_t)count, sizeof *l->order, &order_bytes) || !(l->order = mem_new(order_bytes))))
        code = err_set(e, ERR_HOST_MEMORY, "loader: no memory to shuffle %" PRId64 " samples", count);
    if (!code && prefetch) code = start_thread(l, e);
    if (code) {
        loader_close(l);
        return code;
    }
    *out = l;
    return OK;
}

void loader_close(Loader *l) {
    if (!l) return;
    if (l->prefetch) {
        pthread_mutex_lock(&l->lock);
        l->slot.stop = true;
        pthread_cond_signal(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
        pthread_cond_destroy(&l->changed);
        pthread_mutex_destroy(&l->lock);
    }
    mem_free(l->slot.x);
    mem_free(l->slot.t);
    mem_free(l->order);
    mem_free(l);
}

int64_t loader_batches(const Loader *l) { return l->batches; }

int loader_next(Loader *l, float *x, void *t, int64_t *count, Err *e) {
    Place now = l->next;
    *count = 0;
    if (now.batch == l->batches) {
        l->next = (Place){now.epoch + 1, 0};
        return OK;
    }
    if (!l->prefetch) {
        int code = fill(l, now, x, t, count, e);
        l->next.batch += !code;
        return code;
    }
    wait_ready(l);
    int code = l->slot.code;
    if (code) {
        if (e) *e = l->slot.error;
        want(l, now);
        return code;
    }
    l->next.batch++;
    *count = l->slot.count;
    memcpy(x, l->slot.x, (size_t)*count * l->x_size);
    if (t) memcpy(t, l->slot.t, (size_t)*count * l->t_size);
    want(l, now.batch + 1 < l->batches ? l->next : (Place){now.epoch + 1, 0});
    return OK;
}

int loader_seek(Loader *l, int64_t epoch, int64_t batch, Err *e) {
    if (epoch < 0) return err_set(e, ERR_SCRIPT, "loader: expected an epoch of 0 or more, found %" PRId64, epoch);
    if (batch < 0 || batch >= l->batches)
        return err_set(e, ERR_SCRIPT, "loader: expected a batch from 0 to %" PRId64 ", found %" PRId64, l->batches - 1,
            batch);
    l->next = (Place){epoch, batch};
    if (!l->prefetch) return OK;
    wait_ready(l);
    want(l, l->next);
    return OK;
}

void loader_place(const Loader *l, int64_t *epoch, int64_t *batch) {
    bool over = l->next.batch == l->batches;
    *epoch = l->next.epoch + over;
    *batch = over ? 0 : l->next.batch;
}
