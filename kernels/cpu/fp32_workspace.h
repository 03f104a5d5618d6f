/* fp32_workspace.h: for kernels that compute in fp32 only: the layout of their workspace, which holds fp32 copies of
 * 16-bit operands and all else that such a kernel needs there.
 *
 * A kernel lays its workspace out by taking room for one array after the other. The same function does so when the op
 * is prepared (base is NULL: nothing is touched, `used` is what the kernel needs) and when it runs. */
#ifndef MT_FP32_WORKSPACE_H
#define MT_FP32_WORKSPACE_H

#include "parallel.h"

typedef struct Room { char *base; size_t used; } Room;

/* Room for `floats` numbers, at a multiple of CPU_ALIGNMENT; NULL where base is NULL. */
float *room_take(Room *r, int64_t floats);
/* The answer of a preparation: no state, and the bytes that `r` has used as workspace. Returns OK. */
int room_prepared(const Room *r, void **state, size_t *workspace);
/* OK if the op's workspace holds what `r` has used, else ERR_INTERNAL. */
int room_check(const Room *r, const KArgs *a, Err *e);

/* All elements of a floating type as fp32, to[count]; and back, rounded */
void fp32_widen(const View *from, float *to);
void fp32_round(const float *from, const View *to);
/* *wide: the same op over fp32 operands. Operands of 16 bits get copies in the room; those of inputs are filled. */
void fp32_enter(const KArgs *a, Room *r, KArgs *wide);
/* Rounds the copies of outputs into the outputs. */
void fp32_leave(const KArgs *a, const KArgs *wide);

#endif
