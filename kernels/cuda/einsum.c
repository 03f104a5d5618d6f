/* einsum.c: y = a b by labels (core/math/einsum.h) by a library's products (gemm.h): the largest of the loops is
 * one call's, the others are calls. What has no rows and columns, sums over several labels, matrices that begin
 * between whole 16-byte words, and what the library has not, go by einsum.cu. */
#include "einsum.h"

#include "base/mem.h"
#include "gemm.h"

enum { WORD = 16 };

typedef struct EinsumState {
    CudaState head;
    EinsumPlan plan;
    Gemm gemm;
    GemmPlan *product; /* NULL: einsum.cu */
} EinsumState;

static void release(void *state) {
    EinsumState *s = state;
    gemm_close(s->product);
    mem_free(s);
}

/* The largest of the loops comes last, and is taken off: a call makes all of its products. */
static EinsumLoop take_batch(EinsumPlan *p) {
    int best = 0;
    for (int i = 1; i < p->n_outer; i++)
        if (p->outer[i].size > p->outer[best].size) best = i;
    if (!p->n_outer) return einsum_once;
    const EinsumLoop taken = p->outer[best];
    p->outer[best] = p->outer[--p->n_outer];
    return taken;
}

/* What lies by columns is the product of the transposed operands: a and b change places. */
static Gemm describe(const KArgs *a, const EinsumPlan *p, const EinsumLoop *batch) {
    const EinsumMatrix one = einsum_matrix(&p->m, p->m.a, &p->k, p->k.a), two = einsum_matrix(&p->k, p->k.b, &p->n, p->n.b);
    const EinsumMatrix y = einsum_matrix(&p->m, p->m.y, &p->n, p->n.y);
    Gemm g = {.m = p->m.size, .n = p->n.size, .k = p->k.size, .a_transposed = one.transposed,
              .b_transposed = two.transposed, .in = a->einsum.a.dtype, .out = a->einsum.y.dtype,
              .tf32 = a->attr->einsum.tf32, .a_stride = one.stride, .b_stride = two.stride, .d_stride = y.stride,
              .batch = batch->size > 1 ? batch->size : 0, .a_step = batch->a, .b_step = batch->b, .d_step = batch->y};
    if (!y.transposed) return g;
    const Gemm back = g;
    g.m = back.n, g.n = back.m;
    g.a_transposed = !back.b_transposed, g.b_transposed = !back.a_transposed;
    g.a_stride = back.b_stride, g.b_stride = back.a_stride;
    g.a_step = back.b_step, g.b_step = back.a_step;
    return g;
}

static bool is_word(int64_t elements, DType t) { return elements * (int64_t)dtype_size(t) % WORD == 0; }

static bool begins_well(const KArgs *a, const EinsumLoop *l) {
    return is_word(l->a, a->einsum.a.dtype) && is_word(l->b, a->einsum.b.dtype) && is_word(l->y, a->einsum.y.dtype);
}

static bool fits_library(const KArgs *a, const EinsumPlan *p) {
    bool fits = p->matrices && !p->n_inner && (a->einsum.y.dtype == a->einsum.a.dtype || a->einsum.y.dtype == DT_F32);
    for (int i = 0; i < p->n_outer; i++) fits &= begins_well(a, &p->outer[i]);
    return fits;
}

int k_cuda_einsum_prepare(const KArgs *a, size_t limit, void **state, size_t *workspace, Err *e) {
    CudaDevice *c = cuda_of(a);
    EinsumState *s = mem_new(sizeof *s);
    int code = OK;
    (void)limit;
    *workspace = 0;
    if (!s) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *s);
    s->head.release = release;
    einsum_plan(&a->attr->einsum, &a->einsum.a.shape, &a->einsum.b.shape, &a->einsum.y.shape, &s->plan); /* was checked */
    if (fits_library(a, &s->plan) && c->ordinal != NOT_HERE) {
        EinsumPlan calls = s->plan;
        const EinsumLoop batch = take_batch(&calls);
        s->gemm = describe(a, &calls, &batch);
        code = gemm_open(c, &s->gemm, NULL, 0, &s->product, e);
        if (s->product) s->plan = calls;
    }
    if (code) release(s);
    else *state = s;
    return code;
}

static char *at_element(const View *v, int64_t i) { return (char *)v->data + i * (int64_t)dtype_size(v->dtype); }

static bool is_aligned(const View *v) { return (uintptr_t)v->data % WORD == 0; }

int k_cuda_einsum(const KArgs *args, Err *e) {
    const EinsumState *s = args->state;
    const View *a = &args->einsum.a, *b = &args->einsum.b, *y = &args->einsum.y;
    const int64_t calls = einsum_count(s->plan.outer, s->plan.n_outer);
    int code = OK;
    if (!s->product || !is_aligned(a) || !is_aligned(b) || !is_aligned(y)) {
        EinsumPlan p;
        einsum_plan(&args->attr->einsum, &a->shape, &b->shape, &y->shape, &p);
        return cuda_einsum_loops(args, &p, e);
    }
    const bool back = einsum_matrix(&s->plan.m, s->plan.m.y, &s->plan.n, s->plan.n.y).transposed;
    for (int64_t i = 0; i < calls && !code; i++) {
        const EinsumPlace at = einsum_place(s->plan.outer, s->plan.n_outer, i, (EinsumPlace){0, 0, 0});
        const void *one = at_element(a, at.a), *two = at_element(b, at.b);
        code = gemm_run(args->device, s->product, back ? two : one, back ? one : two, NULL, at_element(y, at.y),
                        args->workspace, e);
    }
    return code;
}
