#include "bench.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { CHUNK = 1 << 20, RUNS = 16 }; /* CHUNK: elements of random values, repeated; RUNS: of the op in a graph, about */

static size_t view_bytes(const Device *d, const View *v) {
    return v->count ? align_up((size_t)v->count * dtype_size(v->dtype), d->table->alignment) : 0;
}

static View *operand(KArgs *args, int k) { return k < OP_IN ? &args->in[k] : &args->out[k - OP_IN]; }

/* Values in [-1, 1): a GPU that adds zeros draws less power and runs faster than with real values. */
static int fill(Device *d, View *v, Err *e) {
    size_t each = dtype_size(v->dtype), count = (size_t)v->count;
    size_t chunk = count < CHUNK ? count : CHUNK;
    char *values = mem_new(chunk * each);
    uint32_t state = 1;
    int code = OK;
    if (!values) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", chunk * each);
    for (size_t i = 0; i < chunk; i++) {
        state = state * 1664525u + 1013904223u;
        if (dtype_is_float(v->dtype)) dtype_store(v->dtype, values, i, (float)(state >> 8) / 8388608.0f - 1.0f);
    }
    for (size_t at = 0; at < count && !code; at += chunk) {
        size_t n = count - at < chunk ? count - at : chunk;
        code = d->table->upload(d, (char *)v->data + at * each, values, n * each, e);
    }
    mem_free(values);
    return code;
}

int bench_open(Bench *r, Device *device, const KArgs *args, size_t cache, Err *e) {
    size_t each = 0;
    KArgs views = *args;
    memset(r, 0, sizeof *r);
    r->device = device;
    for (int k = 0; k < OP_IN + OP_OUT; k++) each += view_bytes(device, operand(&views, k));
    assert(each > 0);
    r->n_sets = (int)(cache / each) + 1;
    if (r->n_sets > RACE_SETS) r->n_sets = RACE_SETS;
    r->bytes = each * (size_t)r->n_sets;
    int code = device->table->alloc(device, r->bytes, &r->memory, e);
    char *at = r->memory;
    for (int i = 0; i < r->n_sets && !code; i++) {
        r->set[i] = *args;
        r->set[i].device = device;
        for (int k = 0; k < OP_IN + OP_OUT && !code; k++) {
            View *v = operand(&r->set[i], k);
            if (!v->count) continue;
            v->data = at;
            at += view_bytes(device, v);
            code = fill(device, v, e);
        }
    }
    if (code) bench_close(r);
    return code;
}

static void drop_workspace(Bench *r) {
    if (r->workspace) r->device->table->free(r->device, r->workspace, r->workspace_bytes);
    r->workspace = NULL;
    r->workspace_bytes = 0;
}

void bench_close(Bench *r) {
    drop_workspace(r);
    if (r->memory) r->device->table->free(r->device, r->memory, r->bytes);
    for (int i = 0; i < 2 && r->mark[i]; i++) r->device->table->mark_free(r->device, r->mark[i]);
    memset(r, 0, sizeof *r);
}

/* Every run has the same workspace, which grows with what is asked for. */
static int set_workspace(Bench *r, size_t bytes, Err *e) {
    size_t room = align_up(bytes, r->device->table->alignment);
    int code = OK;
    if (room > r->workspace_bytes) {
        drop_workspace(r);
        code = r->device->table->alloc(r->device, room, &r->workspace, e);
        r->workspace_bytes = code ? 0 : room;
    }
    for (int i = 0; i < r->n_sets; i++) {
        r->set[i].workspace = r->workspace;
        r->set[i].workspace_bytes = bytes;
    }
    return code;
}

static int run_all(Bench *r, KernelRun *run, void *state, int n, Err *e) {
    int code = OK;
    for (int i = 0; i < n && !code; i++) {
        KArgs *args = &r->set[i % r->n_sets];
        args->state = state;
        code = run(args, e);
    }
    return code;
}

static int record(Bench *r, KernelRun *run, void *state, int n, void **graph, Err *e) {
    const DeviceTable *t = r->device->table;
    Err ended;
    int code = t->record(r->device, e);
    if (code) return code;
    code = run_all(r, run, state, n, e);
    /* also after an error: the stream must leave the recording */
    int end = t->recorded(r->device, graph, code ? &ended : e);
    if (code && !end) {
        t->graph_free(r->device, *graph);
        *graph = NULL;
    }
    return code ? code : end;
}

static int sample(Bench *r, void *graph, int n, double *us, Err *e) {
    const DeviceTable *t = r->device->table;
    double seconds = 0;
    int code = t->mark(r->device, &r->mark[0], e);
    if (!code) code = t->replay(r->device, graph, e);
    if (!code) code = t->mark(r->device, &r->mark[1], e);
    if (!code) code = t->between(r->device, r->mark[0], r->mark[1], &seconds, e);
    *us = 1e6 * seconds / n;
    return code;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int bench_time(Bench *r, KernelRun *run, void *state, size_t workspace, double best, double *us, Err *e) {
    assert(r->n_sets > 0);
    double found[RACE_SAMPLES] = {0};
    void *graph = NULL;
    int n = r->n_sets > RUNS ? r->n_sets : RUNS / r->n_sets * r->n_sets, done = 0;
    int code = set_workspace(r, workspace, e);
    if (!code) code = run_all(r, run, state, 1, e); /* the first run also loads code, which is no part of a step */
    if (!code) code = r->device->table->sync(r->device, e);
    if (!code) code = record(r, run, state, n, &graph, e);
    if (!code) code = sample(r, graph, n, &found[0], e); /* warms up */
    while (!code && done < RACE_SAMPLES) {
        code = sample(r, graph, n, &found[done++], e);
        if (best > 0 && found[0] > 2 * best) break;
    }
    if (graph) r->device->table->graph_free(r->device, graph);
    qsort(found, (size_t)done, sizeof *found, by_size);
    *us = done ? found[done / 2] : 0;
    return code;
}
