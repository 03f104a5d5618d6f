#include "reference.h"

/* The elements of one index of the axis: the product of the dimensions after it. */
static int64_t inner_of(const Tensor *t, int axis) {
    int64_t inner = 1;
    for (int d = axis + 1; d < t->shape.rank; d++) inner *= t->shape.dim[d];
    return inner;
}

/* Copies `part` into `whole`, or out of it, where it begins at index `start` of the axis. */
static void move_part(const Tensor *whole, const Tensor *part, int axis, int64_t start, bool out) {
    int64_t inner = inner_of(whole, axis), n = part->shape.dim[axis] * inner, step = whole->shape.dim[axis] * inner;
    for (int64_t i = 0; i < part->count; i++) {
        double *in_whole = &whole->at[i / n * step + start * inner + i % n];
        if (out) part->at[i] = *in_whole;
        else *in_whole = part->at[i];
    }
}

/* The element of `s`, whose sizes are those of x or 1, that belongs to element i of `x`. */
static int64_t broadcast_place(const Tensor *x, const Tensor *s, int64_t i) {
    int64_t place = 0, step = 1;
    for (int d = x->shape.rank - 1; d >= 0; i /= x->shape.dim[d--]) {
        if (s->shape.dim[d] > 1) place += i % x->shape.dim[d] * step;
        step *= s->shape.dim[d];
    }
    return place;
}

void ref_broadcast(Ref *r) {
    const Tensor *x = &r->broadcast.x, *s = &r->broadcast.s;
    for (int64_t i = 0; i < x->count; i++) {
        double value = s->at[broadcast_place(x, s, i)];
        r->broadcast.y.at[i] = r->attr->broadcast.add ? x->at[i] + value : x->at[i] * value;
    }
}

void ref_broadcast_ds(Ref *r) {
    const Tensor *dy = &r->broadcast_ds.dy, *ds = &r->broadcast_ds.ds;
    for (int64_t i = 0; i < ds->count; i++) ds->at[i] = 0;
    for (int64_t i = 0; i < dy->count; i++)
        ds->at[broadcast_place(dy, ds, i)] += dy->at[i] * (r->broadcast_ds.x.at ? r->broadcast_ds.x.at[i] : 1);
}

void ref_concat(Ref *r) {
    int axis = r->attr->axis.axis;
    for (int64_t k = 0, start = 0; k < OP_IN && r->in[k].at; start += r->in[k++].shape.dim[axis])
        move_part(&r->concat.y, &r->in[k], axis, start, false);
}

void ref_slice(Ref *r) { move_part(&r->slice.x, &r->slice.y, r->attr->axis.axis, r->attr->axis.start, true); }

void ref_slice_dx(Ref *r) {
    for (int64_t i = 0; i < r->slice_dx.dx.count; i++) r->slice_dx.dx.at[i] = 0;
    move_part(&r->slice_dx.dx, &r->slice_dx.dy, r->attr->axis.axis, r->attr->axis.start, false);
}

void ref_roll(Ref *r) {
    const Tensor *x = &r->roll.x;
    const int64_t inner = inner_of(x, r->attr->axis.axis), size = x->shape.dim[r->attr->axis.axis];
    for (int64_t i = 0; i < x->count; i++) {
        const int64_t k = i / inner % size, to = (k + r->attr->axis.start) % size;
        r->roll.y.at[i + (to - k) * inner] = x->at[i];
    }
}

/* Features are dimension 1 of an image, the last one otherwise. */
void ref_bias_db(Ref *r) {
    int axis = r->bias_db.dy.shape.rank == 4 ? 1 : r->bias_db.dy.shape.rank - 1;
    int64_t inner = inner_of(&r->bias_db.dy, axis), features = r->bias_db.db.count;
    for (int64_t i = 0; i < features; i++) r->bias_db.db.at[i] = 0;
    for (int64_t i = 0; i < r->bias_db.dy.count; i++) r->bias_db.db.at[i / inner % features] += r->bias_db.dy.at[i];
}
