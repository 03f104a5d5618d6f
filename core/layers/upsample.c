/* Upsample: images at another size, by the nearest pixel or bilinearly. Sizes and places are PyTorch's: with a scale
 * factor the output has floor(input factor) pixels, and places follow from the factor as it was given. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "network/layer.h"

/* Was the option given as a number? */
static bool is_given(const Layer *l, const char *option) {
    char text[OPTION_WORDS];
    return !options_word(&l->options, option, text)[0];
}

static bool is_bilinear(const Layer *l) {
    char text[OPTION_WORDS];
    return !strcmp(options_word(&l->options, "mode", text), "bilinear");
}

int layer_upsample_shape(Network *n, Layer *l, Err *e) {
    const Options *o = &l->options;
    double factor = options_float(o, "scale_factor"), size[2];
    (void)n;
    int code = layer_expect_rank(l, 4, "(N, C, H, W)", e);
    if (code || (code = layer_expect_range(l, "size", 1, INT32_MAX, e))) return code;
    if (is_given(l, "size") == is_given(l, "scale_factor"))
        return layer_error(l, e, "expected either size or scale_factor");
    if (is_given(l, "scale_factor") && !(factor > 0))
        return layer_error(l, e, "scale_factor must be above 0, found %g", factor);
    if (options_bool(o, "align_corners") && !is_bilinear(l))
        return layer_error(l, e, "align_corners is for mode = \"bilinear\"");
    for (int i = 0; i < 2; i++) {
        size[i] = is_given(l, "size") ? (double)options_pair(o, "size", i) : floor((double)l->in.dim[2 + i] * factor);
        if (!(size[i] >= 1 && size[i] <= INT32_MAX))
            return layer_error(l, e, "an output of %g rows or columns is not possible", size[i]);
    }
    layer_output(l, shape4(l->in.dim[0], l->in.dim[1], (int64_t)size[0], (int64_t)size[1]));
    return OK;
}

/* Input pixels from one output pixel to the next along axis i, 0 or 1. Whatever factor was given, PyTorch copies the
 * input where the size stays, and repeats each pixel where mode "nearest" doubles the size. */
static float step_between(const Layer *l, int i, bool corners) {
    float from = (float)l->in.dim[2 + i], to = (float)l->out.dim[2 + i];
    if (from == to || (to == 2 * from && !is_bilinear(l))) return from / to;
    if (corners) return to > 1 ? (from - 1) / (to - 1) : 0;
    return is_given(l, "size") ? from / to : (float)(1 / options_float(&l->options, "scale_factor"));
}

int layer_upsample_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.upsample.bilinear = is_bilinear(l);
    a.upsample.align_corners = options_bool(&l->options, "align_corners");
    for (int i = 0; i < 2; i++) a.upsample.scale[i] = step_between(l, i, a.upsample.align_corners);
    return lower_layer(lw, OP_upsample, l, in, &a);
}
