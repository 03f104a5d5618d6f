/* bias.h: what stands beside a product where the library does not do it itself. All of it enqueues on the device's
 * stream. Rows are all dimensions but the channels, which lie next to each other. */
#ifndef MT_BIAS_H
#define MT_BIAS_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = f(y + b), in place; b->count 0: no bias. */
int bias_act(CudaDevice *c, const ActAttr *act, const View *b, const View *y, Err *e);
/* dx *= f'(s), in place (ACT_NONE: dx stays, s is not looked at); db = sum of dx over its rows, db->count 0: not
 * wanted. `scratch`: bias_scratch bytes. */
int bias_act_dx(CudaDevice *c, const ActAttr *act, const View *s, const View *dx, const View *db, void *scratch, Err *e);
size_t bias_scratch(int64_t rows, int64_t channels);
/* to (rows, c_to) = from (rows, c_from): zeros behind the last channel, or the first c_to of them. */
int bias_pad(CudaDevice *c, DType type, int64_t rows, const void *from, int64_t c_from, void *to, int64_t c_to, Err *e);

#ifdef __cplusplus
}
#endif

#endif
