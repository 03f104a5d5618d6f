/* A gradient is copied into its place of a bucket when it has been accumulated; once all of a bucket are there, the bucket
 * is summed over the ranks, and at the end of the backward pass copied back. With gradient_as_bucket_view the gradient is
 * that place of the bucket from then on. */
#include "ddp.h"

#include <string.h>

enum { FIRST_BUCKET = 1 << 20, BROADCAST_BUCKET = 250 << 20, IN_FLIGHT = 2 };

typedef struct List { Tensor **of; int n; } List; /* lent */

struct Ddp {
    int world;
    size_t limit[2];          /* bytes of the first bucket and of the others, once they are rebuilt */
    bool views;               /* gradient_as_bucket_view */
    bool broadcasts;          /* broadcast_buffers */
    List params, buffers;     /* those that get gradients; all buffers */
    Tensor **bucket;          /* references */
    int n_buckets, *place;    /* of each parameter: its bucket */
    bool rebuilt;             /* the buckets are those of the order in which gradients arrive */
    bool sync, buffers_are_old; /* the backward pass sends gradients; the one before did */
    int *order, *count, n_arrived; /* of this backward pass: parameters as they arrived, and how often each */
};

/* ---- which tensors go together: compute_bucket_assignment_by_size */

/* Tensors of one type fill a bucket until it has limit[0] bytes, the next ones limit[1]. bucket[i]: that of t[i], counted in
 * the order of their first tensors, or, as they are closed, in that in which they are full. Returns how many there are. */
static int assign(const List *t, const size_t limit[2], bool as_closed, int *bucket, Scratch *scratch) {
    int open[T_COUNT], full[T_COUNT] = {0}, n = 0, closed = 0;
    size_t bytes[T_COUNT] = {0};
    int *number = scratch_new(scratch, (size_t)t->n, sizeof *number);
    if (!number) return 0;
    for (int i = 0; i < t->n; i++) {
        const ScalarType type = t->of[i]->type;
        if (!bytes[type]) number[open[type] = n++] = -1;
        bucket[i] = open[type];
        bytes[type] += tensor_bytes(t->of[i]);
        if (bytes[type] < limit[full[type] > 0]) continue;
        number[open[type]] = closed++;
        full[type]++;
        bytes[type] = 0;
    }
    for (int k = 0; k < n; k++)
        if (number[k] < 0) number[k] = closed++;
    for (int i = 0; as_closed && i < t->n; i++) bucket[i] = number[bucket[i]];
    return n;
}

/* ---- broadcast_coalesced: flat copies, two at a time */

/* flatten_dense_tensors: one tensor is viewed, several are copied. */
static Tensor *flatten(Eager *g, const List *t, const int *bucket, int which) {
    Tensor **whole = scratch_new(&g->scratch, (size_t)t->n, sizeof *whole);
    int n = 0;
    Size all = SIZE(0);
    if (!whole) return tensor_ref(g->unnamed);
    for (int i = 0; i < t->n; i++) {
        if (bucket[i] != which) continue;
        all.of[0] += tensor_elements(t->of[i]);
        whole[n++] = aten_contiguous(g, t->of[i]);
    }
    Tensor *flat = n == 1 ? tensor_ref(whole[0]) : aten_random(g, "aten::cat", all, whole[0]->type);
    work_reads(g, (const Tensor *const *)whole, n);
    while (n) tensor_drop(g, whole[--n]);
    return flat;
}

static void broadcast(Eager *g, const List *t) {
    static const size_t limit[2] = {BROADCAST_BUCKET, BROADCAST_BUCKET};
    Tensor *flight[IN_FLIGHT] = {NULL};
    int *bucket = scratch_new(&g->scratch, (size_t)t->n, sizeof *bucket);
    const int n = t->n && bucket ? assign(t, limit, false, bucket, &g->scratch) : 0;
    for (int k = 0; k < n; k++) {
        tensor_set(g, &flight[k % IN_FLIGHT], NULL);
        flight[k % IN_FLIGHT] = flatten(g, t, bucket, k);
    }
    for (int k = 0; k < IN_FLIGHT; k++) tensor_drop(g, flight[(n + k) % IN_FLIGHT]);
}

/* ---- buckets */

/* Reducer::initialize_buckets: those before go first. A gradient that is there moves into its new place. */
static void make_buckets(Eager *g, Ddp *d, int n) {
    const Category before = g->category;
    for (int k = 0; k < d->n_buckets; k++) tensor_drop(g, d->bucket[k]);
    d->n_buckets = 0;
    d->bucket = scratch_new(&g->scratch, (size_t)n, sizeof *d->bucket);
    if (!d->bucket) return;
    d->n_buckets = n;
    g->category = CAT_GRADIENTS;
    for (int k = 0; k < n; k++) {
        Size all = SIZE(0);
        ScalarType type = T_FLOAT;
        for (int i = 0; i < d->params.n; i++) {
            if (d->place[i] != k) continue;
            all.of[0] += tensor_elements(d->params.of[i]);
            type = d->params.of[i]->type;
        }
        d->bucket[k] = aten_random(g, "c10d::Reducer", all, type);
        for (int i = 0; d->views && i < d->params.n; i++) {
            Tensor *p = d->params.of[i];
            if (d->place[i] == k && p->grad) tensor_set(g, &p->grad, tensor_view(g, d->bucket[k], p->size, p->stride));
        }
    }
    g->category = before;
}

/* All of a type are one bucket until it is known in which order they arrive; then rank 0 tells the others. */
static void rebuild(Eager *g, Ddp *d) {
    List arrived = {scratch_new(&g->scratch, (size_t)d->params.n, sizeof *arrived.of), d->params.n};
    int *bucket = scratch_new(&g->scratch, (size_t)d->params.n, sizeof *bucket);
    if (!arrived.of || !bucket) return;
    for (int i = 0; i < arrived.n; i++) arrived.of[i] = d->params.of[d->order[i]];
    const int n = assign(&arrived, d->limit, true, bucket, &g->scratch);
    for (int i = 0; i < arrived.n; i++) d->place[d->order[i]] = bucket[i];
    Tensor *indices = aten_random(g, "c10d::Reducer", SIZE(arrived.n + 1), T_INT);
    Tensor *sizes = aten_random(g, "c10d::Reducer", SIZE(n), T_INT);
    tensor_drop(g, sizes);
    tensor_drop(g, indices);
    make_buckets(g, d, n);
    d->rebuilt = true;
}

static void take_gradient(Eager *g, Tensor *p);

/* ---- the constructor */

/* verify_params_across_processes: how many parameters each rank has, and their sizes and strides */
static void verify(Eager *g, const Ddp *d) {
    Tensor **counts = scratch_new(&g->scratch, (size_t)d->world + 1, sizeof *counts);
    int64_t dims = 0;
    if (!counts) return;
    for (int i = 0; i < d->params.n; i++) dims += d->params.of[i]->size.rank;
    for (int k = 0; k <= d->world; k++) counts[k] = aten_random(g, k ? "aten::empty_like" : "aten::to", SIZE(1), T_LONG);
    tensor_drop(g, aten_random(g, "aten::to", SIZE(2 * dims), T_LONG));
    for (int k = d->world; k >= 0; k--) tensor_drop(g, counts[k]);
}

/* The buckets come in the reverse order of their first parameters. */
static void first_buckets(Eager *g, Ddp *d) {
    static const size_t limit[2] = {SIZE_MAX, SIZE_MAX};
    const int n = assign(&d->params, limit, false, d->place, &g->scratch);
    for (int i = 0; i < d->params.n; i++) d->place[i] = n - 1 - d->place[i];
    make_buckets(g, d, n);
}

Ddp *ddp_new(Eager *g, const Settings *s) {
    const size_t n = (size_t)g->net->n_params;
    Ddp *d = scratch_new(&g->scratch, 1, sizeof *d);
    List states = {scratch_new(&g->scratch, n + (size_t)g->n_rotary, sizeof *states.of), 0};
    if (!d || !states.of) return NULL;
    const bool by_default = s->bucket_bytes == settings_default().bucket_bytes;
    *d = (Ddp){.world = s->world, .limit = {by_default ? FIRST_BUCKET : s->bucket_bytes, s->bucket_bytes},
               .views = s->pytorch.gradient_as_bucket_view == SAID_TRUE,
               .broadcasts = s->pytorch.broadcast_buffers != SAID_FALSE, .buffers_are_old = true,
               .params = {scratch_new(&g->scratch, n, sizeof *d->params.of), 0},
               .buffers = {scratch_new(&g->scratch, n + (size_t)g->n_rotary, sizeof *d->buffers.of), 0},
               .place = scratch_new(&g->scratch, n, sizeof *d->place), .order = scratch_new(&g->scratch, n, sizeof *d->order),
               .count = scratch_new(&g->scratch, n, sizeof *d->count)};
    if (g->scratch.failed) return NULL;
    for (int i = 0; i < g->net->n_params; i++) {
        const Param *p = &g->net->params[i];
        Tensor *t = g->params[i];
        if (p->derived) continue; /* bitsandbytes keeps it beside the weight, where no module knows of it */
        if (t->leaf) d->params.of[d->params.n++] = t;
        if (p->buffer) d->buffers.of[d->buffers.n++] = t;
        else states.of[states.n++] = t;
    }
    for (int i = 0; i < g->n_rotary; i++) d->buffers.of[d->buffers.n++] = g->rotary[i];
    for (int i = 0; d->broadcasts && i < d->buffers.n; i++) states.of[states.n++] = d->buffers.of[i];
    verify(g, d);
    broadcast(g, &states);
    first_buckets(g, d);
    g->hooks.gradient = take_gradient;
    return d;
}

/* ---- a step */

void ddp_forward(Eager *g, Ddp *d, bool sync) {
    const Category before = g->category;
    eager_where(g, NULL, NULL);
    g->category = CAT_OTHER;
    if (!d->rebuilt && d->n_arrived) rebuild(g, d);
    if (d->broadcasts && d->buffers_are_old) broadcast(g, &d->buffers);
    g->category = before;
    d->sync = d->buffers_are_old = sync;
    if (!sync) return;
    d->n_arrived = 0;
    memset(d->count, 0, (size_t)d->params.n * sizeof *d->count);
}

static int number_of(const Ddp *d, const Tensor *p) {
    int i = 0;
    while (d->params.of[i] != p) i++;
    return i;
}

static void take_gradient(Eager *g, Tensor *p) {
    Ddp *d = g->ddp;
    const int i = number_of(d, p);
    if (!d->sync) return;
    if (d->count[i]++) {
        eager_refuse(g, "PyTorch refuses it: DistributedDataParallel gets the gradient of a parameter twice in one backward pass");
        return;
    }
    d->order[d->n_arrived++] = i;
    Tensor *bucket = d->bucket[d->place[i]];
    if (p->grad->storage == bucket->storage) {
        eager_inplace(g, "aten::div_", p->grad, NULL);
        return;
    }
    eager_inplace(g, "torch::distributed::reducer::mul_out", p->grad, NULL);
    if (d->views) tensor_set(g, &p->grad, tensor_view(g, bucket, p->size, p->stride));
}

void ddp_backward_ends(Eager *g, Ddp *d) {
    if (!d->sync) return;
    if (d->n_arrived < d->params.n)
        eager_refuse(g, "PyTorch refuses it: DistributedDataParallel with find_unused_parameters=False expects a gradient for "
                        "every parameter");
    for (int i = 0; !d->views && i < d->params.n; i++)
        if (d->count[i]) eager_inplace(g, "aten::copy_", d->params.of[i]->grad, NULL);
}
