/* dora.h: weight-decomposed low-rank adaptation (Liu et al. 2024, DoRA, equation 5), as PEFT 0.21 computes it
 * (peft/tuners/lora/dora.py): a row of w + scaling b a keeps its direction, and a trained magnitude takes the place of its
 * length:
 *
 *     y = magnitude / norm (w + scaling b a) x + bias,    norm: of the rows of w + scaling b a, which counts as a constant
 *
 * For every device, in fp32. Shared with .cu files. */
#ifndef MT_DORA_H
#define MT_DORA_H

#include "base/base.h"

/* x: a feature of (w + scaling b a) x + bias; factor: dora_factor, of that feature */
MT_FN float dora_feature(float x, float bias, float factor) { return (x - bias) * factor + bias; }
MT_FN float dora_factor(float magnitude, float norm) { return magnitude / norm; }
/* What a row adds to the gradient of its feature's magnitude, before it is divided by the norm */
MT_FN float dora_term(float dy, float x, float bias) { return dy * (x - bias); }
/* A number of w + scaling b a, of its r products so far: times is scaling b */
MT_FN float dora_weight(float w, float times, float a) { return w + times * a; }

#endif
