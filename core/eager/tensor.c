#include "tensor.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

Size size_of(int rank, const int64_t *dims) {
    Size s = {rank, {0}};
    assert(rank <= TENSOR_RANK);
    memcpy(s.of, dims, (size_t)rank * sizeof *dims);
    return s;
}

Size size_from(const Shape *s) { return size_of(s->rank, s->dim); }

bool size_equal(const Size *a, const Size *b) {
    return a->rank == b->rank && !memcmp(a->of, b->of, (size_t)a->rank * sizeof *a->of);
}

int64_t size_elements(const Size *s) {
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) n *= s->of[i];
    return n;
}

/* ---- where we are */

void eager_op(Eager *g, const char *op) {
    work_end(g);
    if (g->op == op) return;
    g->op = op;
    g->call = -1;
}

void eager_inplace(Eager *g, const char *op, const Tensor *t, const Tensor *other) {
    eager_op(g, op);
    READS(g, t, t, other);
}

void eager_where(Eager *g, const Layer *l, const char *node) {
    g->layer = l;
    g->node = node;
    g->call = -1;
}

void eager_refuse(Eager *g, const char *why) {
    if (g->refused) return;
    g->refused = g->layer ? g->layer : g->net->root;
    g->why = trace_text(g->trace, why);
}

static int current_call(Eager *g) {
    if (g->call >= 0) return g->call;
    const char *op = g->op;
    char both[128];
    if (g->node) {
        snprintf(both, sizeof both, "%s|%s", g->node, g->op);
        op = trace_text(g->trace, both);
    }
    return g->call = trace_call(g->trace, op, g->layer ? g->layer->path : "", g->layer ? g->layer->where : "");
}

/* ---- storage */

/* Returns its number in the trace, or -1. */
static int traced(Eager *g, size_t bytes) {
    if (!g->uncounted) work_moves(g, (double)bytes);
    if (!bytes || g->halted) return -1;
    const int tensor = trace_alloc(g->trace, bytes, g->category, current_call(g));
    if (!g->trace->failed) g->trace->tensors[tensor].stream = g->stream;
    return tensor;
}

static Storage *storage_new(Eager *g, size_t bytes) {
    Storage *s = scratch_new(&g->scratch, 1, sizeof *s);
    if (s) *s = (Storage){1, traced(g, bytes), 0};
    return s;
}

void storage_resize(Eager *g, Storage *s, size_t bytes) {
    if (s->traced >= 0) trace_release(g->trace, s->traced);
    s->traced = traced(g, bytes);
}

void eager_inner(Eager *g, const int64_t *bytes, int n) {
    enum { MOST = 8 };
    int taken[MOST], count = 0;
    assert(n <= MOST);
    for (int i = 0; i < n; i++) {
        if (!g->uncounted) work_moves(g, 2.0 * (double)bytes[i]); /* written, and read */
        if (bytes[i] && !g->halted) taken[count++] = trace_alloc(g->trace, (size_t)bytes[i], CAT_WORKSPACE, current_call(g));
    }
    while (count) trace_release(g->trace, taken[--count]);
}

void eager_pages(Eager *g, size_t bytes) {
    g->host += bytes;
    if (g->trace->host < g->host) g->trace->host = g->host;
}

void eager_forever(Eager *g, size_t bytes) {
    if (bytes && !g->halted) trace_alloc(g->trace, bytes, CAT_WORKSPACE, current_call(g));
}

/* ---- tensors */

/* Takes over the reference to the storage. Without host memory the step's stand-in, which holds nothing. */
static Tensor *make(Eager *g, Storage *storage, ScalarType type, const Size *size, const int64_t *stride) {
    Tensor *t = storage ? scratch_new(&g->scratch, 1, sizeof *t) : NULL;
    if (!t) return tensor_ref(g->unnamed);
    t->storage = storage;
    t->refs = 1;
    t->size = *size;
    t->type = type;
    memcpy(t->stride, stride, sizeof t->stride);
    return t;
}

Tensor *tensor_new(Eager *g, ScalarType type, Size size) {
    int64_t stride[TENSOR_RANK];
    contiguous_strides(&size, stride);
    return make(g, storage_new(g, (size_t)size_elements(&size) * scalar_bytes(type)), type, &size, stride);
}

static void channels_last_strides(const Size *size, int64_t *stride) {
    int64_t step = size->of[1];
    memset(stride, 0, TENSOR_RANK * sizeof *stride);
    stride[1] = 1;
    for (int d = size->rank - 1; d > 1; d--) {
        stride[d] = step;
        step *= size->of[d];
    }
    stride[0] = step;
}

Tensor *tensor_in_format(Eager *g, ScalarType type, Size size, bool channels_last) {
    Tensor *t = tensor_new(g, type, size);
    if (channels_last && size.rank > 2 && t != g->unnamed) channels_last_strides(&size, t->stride);
    return t;
}

/* Does dimension a of the result lie further apart than b, as the operands say, the first of them that can? 0: none can. */
static int further(const Size *size, const Tensor *const *x, int n, int a, int b) {
    for (int k = 0; k < n; k++) {
        const int more = size->rank - x[k]->size.rank; /* it is broadcast along those */
        if (a < more || b < more || (x[k]->size.of[a - more] == 1 && size->of[a] > 1) ||
            (x[k]->size.of[b - more] == 1 && size->of[b] > 1)) continue;
        const int64_t one = x[k]->stride[a - more], other = x[k]->stride[b - more];
        if (!one || !other) continue;
        if (one != other) return one > other ? 1 : -1;
        if (size->of[a] > size->of[b]) return 1;
    }
    return 0;
}

/* As TensorIterator::reorder_dimensions: strides without holes in the operands' order. */
static void dense_strides(const Size *size, const Tensor *const *x, int n, int64_t *stride) {
    int order[TENSOR_RANK] = {0}; /* the closest first */
    int64_t step = 1;
    memset(stride, 0, TENSOR_RANK * sizeof *stride);
    for (int i = 0; i < size->rank; i++) order[i] = size->rank - 1 - i;
    for (int i = 1; i < size->rank; i++)
        for (int at = i, k = i - 1; k >= 0; k--) {
            const int way = further(size, x, n, order[k], order[at]);
            if (way < 0) break;
            if (way == 0) continue;
            const int kept = order[k];
            order[k] = order[at];
            order[at] = kept;
            at = k;
        }
    for (int i = 0; i < size->rank; i++) {
        stride[order[i]] = step;
        step *= size->of[order[i]];
    }
}

static bool all(const Tensor *const *x, int n, bool (*is)(const Tensor *)) {
    for (int k = 0; k < n; k++)
        if (!is(x[k])) return false;
    return true;
}

static bool same_shape(const Size *size, const Tensor *const *x, int n) {
    for (int k = 0; k < n; k++)
        if (!size_equal(&x[k]->size, size)) return false;
    return true;
}

/* As TensorIterator::compute_fast_setup_type, and where that finds nothing the order of the operands. */
Tensor *tensor_of_operands(Eager *g, ScalarType type, Size size, const Tensor *const *x, int n) {
    int64_t stride[TENSOR_RANK];
    bool same = same_shape(&size, x, n);
    if (same && all(x, n, tensor_is_contiguous)) return tensor_new(g, type, size);
    if (same && size.rank == 4 && all(x, n, tensor_lies_channels_last)) return tensor_in_format(g, type, size, true);
    for (int k = 1; k < n; k++) same = same && tensor_same_strides(x[0], x[k]);
    if (same && tensor_is_dense(x[0])) memcpy(stride, x[0]->stride, sizeof stride);
    else dense_strides(&size, x, n, stride);
    return make(g, storage_new(g, (size_t)size_elements(&size) * scalar_bytes(type)), type, &size, stride);
}

Tensor *tensor_like(Eager *g, const Tensor *x, ScalarType type) {
    int64_t stride[TENSOR_RANK];
    if (tensor_is_dense(x)) memcpy(stride, x->stride, sizeof stride);
    else dense_strides(&x->size, &x, 1, stride);
    return make(g, storage_new(g, (size_t)tensor_elements(x) * scalar_bytes(type)), type, &x->size, stride);
}

Tensor *tensor_view(Eager *g, Tensor *x, Size size, const int64_t *stride) {
    x->storage->refs++;
    Tensor *y = make(g, x->storage, x->type, &size, stride);
    if (y != g->unnamed) y->base = tensor_ref(x);
    return y;
}

Tensor *tensor_to_host(Eager *g, const Tensor *x) {
    int64_t stride[TENSOR_RANK];
    Storage *s = scratch_new(&g->scratch, 1, sizeof *s);
    eager_op(g, "aten::copy_");
    if (!tensor_is_contiguous(x)) INNER(g, (int64_t)tensor_bytes(x));
    contiguous_strides(&x->size, stride);
    if (s) {
        *s = (Storage){1, -1, 1};
        while (s->host < tensor_bytes(x)) s->host *= 2;
        eager_pages(g, s->host);
    }
    return make(g, s, x->type, &x->size, stride);
}

Tensor *tensor_detach(Eager *g, const Tensor *x) {
    x->storage->refs++;
    return make(g, x->storage, x->type, &x->size, x->stride);
}

int64_t tensor_elements(const Tensor *t) { return size_elements(&t->size); }
size_t tensor_bytes(const Tensor *t) { return (size_t)tensor_elements(t) * scalar_bytes(t->type); }

void contiguous_strides(const Size *size, int64_t *stride) {
    int64_t step = 1;
    memset(stride, 0, TENSOR_RANK * sizeof *stride);
    for (int i = size->rank - 1; i >= 0; i--) {
        stride[i] = step;
        step *= size->of[i] > 1 ? size->of[i] : 1;
    }
}

bool tensor_is_contiguous(const Tensor *t) {
    int64_t step = 1;
    for (int i = t->size.rank - 1; i >= 0; i--) {
        if (t->size.of[i] == 1) continue;
        if (t->stride[i] != step) return false;
        step *= t->size.of[i];
    }
    return true;
}

bool tensor_lies_channels_last(const Tensor *t) {
    int64_t stride[TENSOR_RANK];
    if (t->size.rank < 3) return false;
    channels_last_strides(&t->size, stride);
    for (int d = 0; d < t->size.rank; d++)
        if (t->size.of[d] != 1 && t->stride[d] != stride[d]) return false;
    return true;
}

/* c10/core/MemoryFormat.h: is_channels_last_strides_2d_s4 */
bool tensor_suggests_channels_last(const Tensor *t) {
    static const int order[] = {1, 3, 2, 0};
    int64_t least = 0;
    if (t->size.rank != 4 || t->stride[1] == 0) return false;
    for (int i = 0; i < 4; i++) {
        const int d = order[i];
        if (t->stride[d] < least || (d == 0 && least == t->stride[1])) return false;
        least = t->stride[d] * (t->size.of[d] > 1 ? t->size.of[d] : 1);
    }
    return true;
}

bool tensor_is_dense(const Tensor *t) {
    bool used[TENSOR_RANK] = {false};
    int64_t step = 1;
    for (int n = 0; n < t->size.rank; n++) {
        int found = -1;
        for (int i = 0; i < t->size.rank && found < 0; i++)
            if (!used[i] && (t->size.of[i] == 1 || t->stride[i] == step)) found = i;
        if (found < 0) return false;
        used[found] = true;
        step *= t->size.of[found];
    }
    return true;
}

bool tensor_same_strides(const Tensor *a, const Tensor *b) {
    for (int i = 0; i < a->size.rank; i++)
        if (a->size.of[i] != 1 && a->stride[i] != b->stride[i]) return false;
    return true;
}

bool tensor_is_only(const Tensor *t) { return t->refs == 1 && t->storage->refs == 1; }
