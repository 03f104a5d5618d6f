/* Batches in order. With prefetch, a second thread fills batches ahead of the caller.
 *
 * They wait in a ring of slots: number `taken` to `filled` - 1, each in the slot of its number modulo the slots. The
 * thread fills slot `filled` while `filling` is set, and owns it and the order of the epoch as long; the caller owns
 * slot `taken` while it is smaller than `filled`. The lock guards the numbers, the flags and `ahead`. */
#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "data_private.h"
#include "base/affinity.h"
#include "base/mem.h"
#include "math/rng.h"

/* A batch of an epoch, from 0; batch = the number of batches is the end of the epoch. */
typedef struct Place { int64_t epoch, batch; } Place;

typedef struct Slot {
    int64_t count;
    unsigned char *x, *t;
    int code;  /* of the filling */
    Err error;
} Slot;

struct Loader {
    const Dataset *data;
    int64_t batch, batches;
    int world, rank;
    size_t x_size, t_size;  /* bytes of one sample */
    uint64_t seed;
    int64_t *order;         /* the permutation of ordered_epoch; NULL: samples in their own order */
    int64_t ordered_epoch;
    Place next;             /* what loader_next gives */
    int prefetch;           /* slots; 0: no thread */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Slot *slots;
    unsigned char *slots_x, *slots_t; /* of all slots */
    int64_t filled, taken;
    bool filling, stop;
    Place ahead;            /* what the thread fills next */
};

/* The place `n` batches after this one, which is none of an end. */
static Place after(const Loader *l, Place p, int64_t n) {
    return (Place){p.epoch + (p.batch + n) / l->batches, (p.batch + n) % l->batches};
}

void data_permute(int64_t *order, int64_t n, uint64_t seed, int64_t epoch) {
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        Philox r = philox(seed, RNG_SHUFFLE, (uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32), (uint64_t)i);
        int64_t j = (int64_t)(((uint64_t)r.x[0] << 32 | r.x[1]) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static void shuffle(Loader *l, int64_t epoch) {
    if (!l->order || l->ordered_epoch == epoch) return;
    data_permute(l->order, dataset_count(l->data), l->seed, epoch);
    l->ordered_epoch = epoch;
}

/* Fills x and t (NULL: not wanted) with the batch at `place`, *count samples. */
static int fill(Loader *l, Place place, unsigned char *x, unsigned char *t, int64_t *count, Err *e) {
    assert(place.epoch >= 0 && place.batch >= 0 && place.batch < l->batches);
    int64_t first = place.batch * l->batch, n = min_i64(l->batch, dataset_count(l->data) - first);
    shuffle(l, place.epoch);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = l->order ? l->order[first + k] : first + k;
        int code = dataset_get(l->data, i, x + (size_t)k * l->x_size, t ? t + (size_t)k * l->t_size : NULL, e);
        if (code) return code;
    }
    *count = n;
    return OK;
}

static void *fill_ahead(void *arg) {
    Loader *l = arg;
    affinity_unbind();
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (l->filled - l->taken == l->prefetch) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        Slot *slot = &l->slots[l->filled % l->prefetch];
        Place place = l->ahead;
        l->ahead = after(l, place, l->world);
        l->filling = true;
        pthread_mutex_unlock(&l->lock);
        slot->code = fill(l, place, slot->x, slot->t, &slot->count, &slot->error);
        pthread_mutex_lock(&l->lock);
        l->filling = false;
        l->filled++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Waits for the next batch that the thread fills. */
static Slot *ready(Loader *l) {
    pthread_mutex_lock(&l->lock);
    while (l->filled == l->taken) pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return &l->slots[l->taken % l->prefetch];
}

static void give_back(Loader *l) {
    pthread_mutex_lock(&l->lock);
    l->taken++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* Drops what was filled, and goes on from `place`. */
static void restart(Loader *l, Place place) {
    pthread_mutex_lock(&l->lock);
    while (l->filling) pthread_cond_wait(&l->changed, &l->lock);
    l->taken = l->filled;
    l->ahead = place;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static int new_slots(Loader *l, int n, Err *e) {
    size_t x = (size_t)l->batch * l->x_size, t = (size_t)l->batch * l->t_size, bytes;
    if (!size_mul(x + t, (size_t)n, &bytes))
        return err_set(e, ERR_SCRIPT, "loader: %d batches of %zu bytes ahead are too many", n, x + t);
    l->slots = mem_new((size_t)n * sizeof *l->slots);
    l->slots_x = mem_new(x * (size_t)n);
    l->slots_t = mem_new(t * (size_t)n);
    if (!l->slots || !l->slots_x || !l->slots_t)
        return err_set(e, ERR_HOST_MEMORY, "loader: no memory for %d batches of %zu bytes ahead", n, x + t);
    for (int i = 0; i < n; i++) {
        l->slots[i].x = l->slots_x + (size_t)i * x;
        l->slots[i].t = l->slots_t + (size_t)i * t;
    }
    return OK;
}

static int start_thread(Loader *l, int n, Err *e) {
    int code = new_slots(l, n, e);
    if (code) return code;
    pthread_mutex_init(&l->lock, NULL); /* on Linux neither call fails with default attributes */
    pthread_cond_init(&l->changed, NULL);
    l->prefetch = n;
    int failed = pthread_create(&l->thread, NULL, fill_ahead, l);
    if (!failed) return OK;
    l->prefetch = 0;
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    return err_set(e, ERR_HOST_MEMORY, "loader: cannot start a thread to prefetch: %s", strerror(failed));
}

static int check(const Dataset *d, int64_t batch, bool drop_last, int prefetch, size_t sample_bytes, Err *e) {
    int64_t count = dataset_count(d);
    size_t bytes;
    if (batch < 1) return err_set(e, ERR_SCRIPT, "loader: expected a batch of at least 1, found %" PRId64, batch);
    if (prefetch < 0 || prefetch > LOADER_PREFETCH_MAX)
        return err_set(
            e, ERR_SCRIPT, "loader: prefetch: expected 0 to %d batches, found %d", LOADER_PREFETCH_MAX, prefetch);
    if (drop_last && batch > count)
        return err_set(e, ERR_SCRIPT,
            "loader: drop_last leaves no batch of %" PRId64 ": expected at most %" PRId64 ", the samples", batch,
            count);
    if (!size_mul((size_t)batch, sample_bytes, &bytes))
        return err_set(
            e, ERR_SCRIPT, "loader: a batch of %" PRId64 " samples of %zu bytes is too large", batch, sample_bytes);
    return OK;
}

int loader_open(const Dataset *d, const LoaderOptions *o, Loader **out, Err *e) {
    Shape sample = dataset_sample(d), target = dataset_target(d);
    size_t x_size = (size_t)shape_elements(&sample) * (dataset_has_bytes(d) ? 1 : 4);
    size_t t_size = target.rank || dataset_classes(d) ? (size_t)shape_elements(&target) * 4 : 0, order_bytes = 0;
    int64_t count = dataset_count(d);
    int code = check(d, o->batch, o->drop_last, o->prefetch, x_size + t_size, e);
    if (code) return code;
    Loader *l = mem_new(sizeof *l);
    if (!l) return err_set(e, ERR_HOST_MEMORY, "loader: no memory for %zu bytes", sizeof *l);
    *l = (Loader){.data = d, .batch = o->batch, .batches = count / o->batch, .world = o->world > 1 ? o->world : 1,
        .rank = o->rank, .x_size = x_size, .t_size = t_size, .seed = o->seed, .ordered_epoch = -1};
    assert(l->rank >= 0 && l->rank < l->world);
    if (!o->drop_last && count % o->batch) l->batches++;
    l->next = l->ahead = after(l, (Place){0, 0}, l->rank);
    if (o->shuffle && (!size_mul((size_t)count, sizeof *l->order, &order_bytes) || !(l->order = mem_new(order_bytes))))
        code = err_set(e, ERR_HOST_MEMORY, "loader: no memory to shuffle %" PRId64 " samples", count);
    if (!code && o->prefetch) code = start_thread(l, o->prefetch, e);
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
        l->stop = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
        pthread_cond_destroy(&l->changed);
        pthread_mutex_destroy(&l->lock);
    }
    mem_free(l->slots);
    mem_free(l->slots_x);
    mem_free(l->slots_t);
    mem_free(l->order);
    mem_free(l);
}

int64_t loader_batches(const Loader *l) { return l->batches; }
int loader_prefetch(const Loader *l) { return l->prefetch; }
int loader_world(const Loader *l) { return l->world; }

size_t loader_bytes(const Loader *l) {
    size_t order = l->order ? (size_t)dataset_count(l->data) * sizeof *l->order : 0;
    return order + (size_t)l->prefetch * (size_t)l->batch * (l->x_size + l->t_size);
}

/* One rank is told the end of an epoch first. */
static void go_on(Loader *l) {
    if (l->world == 1) l->next.batch++;
    else l->next = after(l, l->next, l->world);
}

int loader_next(Loader *l, void *x, void *t, int64_t *count, Err *e) {
    Place now = l->next;
    *count = 0;
    if (now.batch == l->batches) {
        l->next = (Place){now.epoch + 1, 0};
        return OK;
    }
    if (!l->prefetch) {
        int code = fill(l, now, x, t, count, e);
        if (!code) go_on(l);
        return code;
    }
    const Slot *slot = ready(l);
    int code = slot->code;
    if (code) {
        if (e) *e = slot->error;
        restart(l, now);
        return code;
    }
    go_on(l);
    *count = slot->count;
    memcpy(x, slot->x, (size_t)*count * l->x_size);
    if (t) memcpy(t, slot->t, (size_t)*count * l->t_size);
    give_back(l);
    return OK;
}

int loader_seek(Loader *l, int64_t epoch, int64_t batch, Err *e) {
    if (epoch < 0) return err_set(e, ERR_SCRIPT, "loader: expected an epoch of 0 or more, found %" PRId64, epoch);
    if (batch < 0 || batch >= l->batches)
        return err_set(e, ERR_SCRIPT, "loader: expected a batch from 0 to %" PRId64 ", found %" PRId64, l->batches - 1,
            batch);
    int64_t next_epoch, next_batch;
    loader_place(l, &next_epoch, &next_batch);
    l->next = (Place){epoch, batch};
    bool there = next_epoch == epoch && next_batch == batch; /* and so are the batches that wait */
    if (l->prefetch && !there) restart(l, l->next);
    return OK;
}

void loader_place(const Loader *l, int64_t *epoch, int64_t *batch) {
    bool over = l->next.batch == l->batches;
    *epoch = l->next.epoch + over;
    *batch = over ? 0 : l->next.batch;
}
