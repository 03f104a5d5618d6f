/* plan_card.h: a GPU that is not here, as cuDNN describes devices. */
#ifndef MT_PLAN_CARD_H
#define MT_PLAN_CARD_H

#include "base/conv_plan.h"
#include "cuda.h"

/* Fills *m, whose bytes are zero, with what is known of the card; mem_free frees m->description. ERR_UNSUPPORTED: a compute
 * capability that is not known. */
int plan_card_describe(const PlanCard *card, CudaModel *m, Err *e);

#endif
