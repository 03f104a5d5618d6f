#include <math.h>
#include "reference.h"

/* The element of `part` that is broadcast to element i of `whole`. */
static int64_t place(const Shape *whole, const Shape *part, int64_t i) {
    int64_t at = 0, step = 1;
    for (int d = 1; d <= whole->rank; d++) {
        const int64_t size = whole->dim[whole->rank - d], index = i % size;
        i /= size;
        if (d > part->rank) continue;
        if (part->dim[part->rank - d] > 1) at += index * step;
        step *= part->dim[part->rank - d];
    }
    return at;
}

void ref_binary(Ref *r) {
    const Tensor *a = &r->binary.a, *b = &r->binary.b, *y = &r->binary.y;
    for (int64_t i = 0; i < y->count; i++) {
        const double p = a->at[place(&y->shape, &a->shape, i)], q = b->at[place(&y->shape, &b->shape, i)];
        const BinaryFn f = r->attr->binary.f;
        y->at[i] = f == BINARY_ADD ? p + q : f == BINARY_SUB ? p - q : f == BINARY_MUL ? p * q : p / q;
    }
}

static double slope(const BinaryAttr *f, double a, double b) {
    if (f->f == BINARY_ADD) return 1;
    if (f->f == BINARY_SUB) return f->second ? -1 : 1;
    if (f->f == BINARY_MUL) return f->second ? a : b;
    return f->second ? -a / (b * b) : 1 / b;
}

void ref_binary_da(Ref *r) {
    const Tensor *dy = &r->binary_da.dy, *a = &r->binary_da.a, *b = &r->binary_da.b, *da = &r->binary_da.da;
    for (int64_t i = 0; i < da->count; i++) da->at[i] = 0;
    for (int64_t i = 0; i < dy->count; i++)
        da->at[place(&dy->shape, &da->shape, i)] +=
            dy->at[i] * slope(&r->attr->binary, a->at ? a->at[place(&dy->shape, &a->shape, i)] : 0,
                              b->at ? b->at[place(&dy->shape, &b->shape, i)] : 0);
}

void ref_reduce(Ref *r) {
    const Tensor *x = &r->reduce.x, *y = &r->reduce.y;
    const ReduceFn f = r->attr->reduce.f;
    for (int64_t i = 0; i < y->count; i++) y->at[i] = reduce_is_max(f) ? -1.0 / 0.0 : 0;
    for (int64_t i = 0; i < x->count; i++) {
        double *to = &y->at[place(&x->shape, &y->shape, i)];
        if (f == REDUCE_NORM) *to += x->at[i] * x->at[i];
        else if (!reduce_is_max(f)) *to += x->at[i] / (f == REDUCE_MEAN ? (double)(x->count / y->count) : 1);
        else if (x->at[i] > *to) *to = x->at[i];
    }
    for (int64_t i = 0; f == REDUCE_NORM && i < y->count; i++) y->at[i] = sqrt(y->at[i]);
}

/* Is element i of x the first one that is as large as that one of y? */
static bool is_first(const Tensor *x, const Tensor *y, int64_t i) {
    const int64_t to = place(&x->shape, &y->shape, i);
    for (int64_t k = 0; k < i; k++)
        if (place(&x->shape, &y->shape, k) == to && x->at[k] == y->at[to]) return false;
    return true;
}

void ref_reduce_dx(Ref *r) {
    const Tensor *dy = &r->reduce_dx.dy, *x = &r->reduce_dx.x, *y = &r->reduce_dx.y, *dx = &r->reduce_dx.dx;
    const ReduceFn f = r->attr->reduce.f;
    for (int64_t i = 0; i < dx->count; i++) {
        const int64_t to = place(&dx->shape, &dy->shape, i);
        double equal = 0;
        dx->at[i] = f == REDUCE_MEAN ? dy->at[to] * (double)dy->count / (double)dx->count : dy->at[to];
        if (f == REDUCE_NORM) dx->at[i] *= y->at[to] > 0 ? x->at[i] / y->at[to] : 0;
        if (!reduce_is_max(f)) continue;
        if (x->at[i] != y->at[to] || (f == REDUCE_MAX && !is_first(x, y, i))) {
            dx->at[i] = 0;
            continue;
        }
        for (int64_t k = 0; f == REDUCE_AMAX && k < dx->count; k++)
            equal += place(&dx->shape, &dy->shape, k) == to && x->at[k] == y->at[to];
        if (f == REDUCE_AMAX) dx->at[i] /= equal;
    }
}

void ref_where(Ref *r) {
    const Shape *s = &r->where.y.shape;
    const TriangleAttr *t = &r->attr->triangle;
    const int64_t rows = s->dim[s->rank - 2], columns = s->dim[s->rank - 1];
    for (int64_t i = 0; i < r->where.y.count; i++) {
        const int64_t right = i % columns - i / columns % rows;
        const bool in = t->upper ? right >= t->diagonal : right <= t->diagonal;
        r->where.y.at[i] = in ? r->where.a.at[i] : r->where.b.at ? r->where.b.at[i] : (double)t->value;
    }
}

void ref_gather(Ref *r) {
    for (int64_t i = 0; i < r->gather.y.count; i++)
        r->gather.y.at[i] = r->gather.x.at[i * r->gather.x.shape.dim[1] + (int64_t)r->gather.t.at[i]];
}

void ref_gather_dx(Ref *r) {
    const Tensor *dx = &r->gather_dx.dx, *dy = &r->gather_dx.dy, *t = &r->gather_dx.t;
    const int64_t columns = dx->shape.dim[1];
    for (int64_t i = 0; i < dx->count; i++)
        dx->at[i] = i % columns == (int64_t)t->at[i / columns] ? dy->at[i / columns] : 0;
}
