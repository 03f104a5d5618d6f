/* formula.h: formulas as text, which optim.Rule makes of a script's function. */
#ifndef MT_FORMULA_TEXT_H
#define MT_FORMULA_TEXT_H

#include "base/err.h"
#include "math/formula.h"

/* A row of FORMULA_FNS; aten: "aten::mul" */
typedef struct FormulaInfo { const char *text, *aten; int operands; } FormulaInfo;
/* NULL: an input. */
const FormulaInfo *formula_info(int fn);

/*   text   = "states" name ... ";" { step ";" } "results" number ... ";" "replaced" until ... ";"
 *   step   = function ["!"] number ... ["@" until]      numbers of earlier steps; "!": in place
 *
 * Steps are numbered from 0; they begin with "param; grad; state 0; ..." ERR_SCRIPT: not such a text, or one that is too
 * long; says at which step. */
int formula_read(Formula *f, const char *text, Err *e);

/* Does it ask for the number of the update? */
bool formula_counts(const Formula *f);
/* The step that made the storage which step i is written into: i itself, or what it changes in place. */
int formula_storage(const Formula *f, int i);

#endif
