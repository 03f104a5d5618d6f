/* fp32_workspace.h: what kernels that compute in fp32 only share: fp32 copies of 16-bit operands, laid out in the
 * workspace together with everything else that such a kernel needs there, and matrix products.
 *
 * A kernel lays its workspace out by taking room for one array after the other, by the same function when it is
 * prepared (base NULL: nothing is touched, the sum is what it needs) and when it runs. */
#ifndef MT_FP32_WORKSPACE_H
#define MT_FP32_WORKSPACE_H

#include "parallel.h"

typedef struct Room { char *base; size_t used; } Room;

/* `floats` numbers at an aligned place; NULL: base is NULL. */
float *room_take(Room *r, int64_t floats);
/* What `r` has used, as a preparation's answer. */
int room_prepared(const Room *r, void **state, size_t *workspace);
/* Does the op's workspace hold what `r` has used? */
int room_check(const Room *r, const KArgs *a, Err *e);

/* The same op over fp32 operands: those of 16 bits have copies in the room, inputs' copies are filled. */
void fp32_enter(const KArgs *a, Room *r, KArgs *wide);
/* Rounds the copies of outputs into the outputs. */
void fp32_leave(const KArgs *a, const KArgs *wide);

/* A matrix by rows, `stride` elements from one to the next; transposed: it stands for its transpose. */
typedef struct Matrix { float *at; int64_t stride; bool transposed; } Matrix;
static inline Matrix matrix(float *at, int64_t stride) { Matrix m = {at, stride, false}; return m; }
static inline Matrix transposed(float *at, int64_t stride) { Matrix m = {at, stride, true}; return m; }

/* c (m, n) = scale a (m, k) b (k, n), `add`: += instead. On all threads, or on the calling one inside a parallel
 * region. 0 or oneDNN's status. */
int product(int64_t m, int64_t n, int64_t k, float scale, Matrix a, Matrix b, bool add, Matrix c);
/* The status of products as an ErrCode. */
int product_check(int status, Err *e);

#endif
