/* shape.h: the dimensions of a tensor, at most four, in PyTorch's order whatever the order in memory. */
#ifndef MT_SHAPE_H
#define MT_SHAPE_H

#include "base.h"
#include "err.h"

enum { SHAPE_MAX = 4, SHAPE_TEXT = 96 };

typedef struct Shape {
    int rank; /* 0: one element */
    int64_t dim[SHAPE_MAX]; /* those from `rank` on do not count */
} Shape;

static inline Shape shape1(int64_t a) { Shape s = {1, {a, 1, 1, 1}}; return s; }
static inline Shape shape2(int64_t a, int64_t b) { Shape s = {2, {a, b, 1, 1}}; return s; }
static inline Shape shape3(int64_t a, int64_t b, int64_t c) { Shape s = {3, {a, b, c, 1}}; return s; }
static inline Shape shape4(int64_t a, int64_t b, int64_t c, int64_t d) { Shape s = {4, {a, b, c, d}}; return s; }

#ifdef __cplusplus
extern "C" {
#endif

/* *count: the number of elements. ERR_SCRIPT where a dimension is below 1 or above INT32_MAX, or where 16 times the
 * number of elements does not fit in int64_t. */
int shape_count(const Shape *s, int64_t *count, Err *e);
/* The same for a shape that shape_count has accepted. */
int64_t shape_elements(const Shape *s);
bool shape_equal(const Shape *a, const Shape *b);
/* "(64, 3, 32, 32)" into text[SHAPE_TEXT]; returns text */
const char *shape_text(const Shape *s, char *text);

#ifdef __cplusplus
}
#endif

#endif
