/* update.h: the rules of optimizers (math/optim.h) over blocks of numbers, for adam8bit.c, too. */
#ifndef MT_CPU_UPDATE_H
#define MT_CPU_UPDATE_H

#include "program/kernel.h"

/* Updates w[n] by a rule that keeps its first `states` states, each state[k][n]. */
typedef void RuleFn(int states, const OptimStep *s, float *w, const float *g, float *const *state, int64_t n);
/* NULL: the kind has no such rule. */
RuleFn *rule_of(OpKind kind);

#endif
