#include "fp32_product.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include "parallel.h"

typedef struct Product { int64_t m, n, k; float scale; Matrix a, b, c; bool add; } Product;

static int multiply(const Product *p) {
    return (int)dnnl_sgemm(p->a.transposed ? 'T' : 'N', p->b.transposed ? 'T' : 'N', p->m, p->n, p->k, p->scale, p->a.at, p->a.stride,
                           p->b.at, p->b.stride, p->add ? 1.0f : 0.0f, p->c.at, p->c.stride);
}

/* Row or column i of the matrix, at its first element */
static float *row_at(Matrix m, int64_t i) { return m.at + (m.transposed ? i : i * m.stride); }
static float *column_at(Matrix m, int64_t i) { return m.at + (m.transposed ? i * m.stride : i); }

/* How a product is cut, by its shape alone: into panels of rows of c, or of columns */
typedef struct Panels { bool by_rows; int64_t all, each; } Panels;

/* Of 8 panels or fewer each has at least LEAST rows or columns; of more it has MOST. Each has work for PANEL_MACS multiply-adds. A
 * transposed b is the dearer to read the fewer rows it is multiplied with. */
static Panels panels_of(const Product *p) {
    enum { FEW = 8, LEAST_ROWS = 32, LEAST_COLUMNS = 48, LEAST_TURNED = 128, MOST = 256, STEP = 8, PANEL_MACS = 1 << 19 };
    const bool turned = p->b.transposed, by_rows = turned ? p->m >= p->n : 4 * p->m >= p->n;
    const int64_t least = turned ? LEAST_TURNED : by_rows ? LEAST_ROWS : LEAST_COLUMNS, all = by_rows ? p->m : p->n;
    const double work = (double)p->m * (double)p->n * (double)p->k / PANEL_MACS;
    int64_t n = 1;
    while (all >= 2 * n * (n < FEW ? least : MOST) && work >= (double)(2 * n)) n *= 2;
    return (Panels){by_rows, all, div_up(all, n * STEP) * STEP};
}

static int multiply_panel(const Product *all, const Panels *s, int64_t from) {
    const int64_t each = min_i64(s->each, s->all - from);
    Product p = *all;
    if (s->by_rows) p.m = each, p.a.at = row_at(p.a, from), p.c.at = row_at(p.c, from);
    else p.n = each, p.b.at = column_at(p.b, from), p.c.at = column_at(p.c, from);
    return multiply(&p);
}

/* Panel by panel, each by one thread: oneDNN parts long sums among the threads that there are, and then their number would
 * change bits. */
static int multiply_panels(const Product *p) {
    const Panels s = panels_of(p);
    int status = 0;
    if (s.each >= s.all || omp_in_parallel()) { /* a region has its price */
        const int threads = threads_take(1);
        for (int64_t from = 0; from < s.all && !status; from += s.each) status = multiply_panel(p, &s, from);
        threads_back(threads);
        return status;
    }
#pragma omp parallel
    {
        omp_set_num_threads(1); /* of this thread, in this region */
#pragma omp for schedule(static) reduction(| : status)
        for (int64_t from = 0; from < s.all; from += s.each) status |= multiply_panel(p, &s, from);
    }
    return status;
}

int product(int64_t m, int64_t n, int64_t k, float scale, Matrix a, Matrix b, bool add, Matrix c) {
    assert(m > 0 && n > 0 && k > 0 && !c.transposed && c.stride >= n);
    assert(a.stride >= (a.transposed ? m : k) && b.stride >= (b.transposed ? k : n));
    const Product p = {m, n, k, scale, a, b, c, add};
    return multiply_panels(&p);
}

int product_check(int status, Err *e) {
    if (status == dnnl_success) return OK;
    return err_set(e, status == dnnl_out_of_memory ? ERR_HOST_MEMORY : ERR_DEVICE,
                   "oneDNN: cannot multiply matrices: %s", dnnl_status2str((dnnl_status_t)status));
}
