/* PixelShuffle, PixelUnshuffle and ChannelShuffle: they put the dimensions of a channels-last image, or parts of them,
 * into another order. Each is a few exchanges of the two innermost dimensions, which the op nhwc_to_nchw makes. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "network/layer.h"

/* From (.., rows, cols) in memory to (.., cols, rows). */
typedef struct Exchange { int64_t rows, cols; } Exchange;
enum { EXCHANGES = 3 };

/* r is the factor, c the channels of the larger image, w the pixels in a row of the smaller one. The smaller image lies
 * as (.., w, c, r, r), the larger one as (.., r, w, r, c):
 *     w c i j  ->  i j w c  ->  i w c j  ->  i w j c   and back
 * Returns how many exchanges there are in to[EXCHANGES]. */
static int find_exchanges(const Layer *l, Exchange *to) {
    const bool up = l->kind->which == SHUFFLE_PIXELS, down = l->kind->which == SHUFFLE_BACK;
    const int64_t r = options_int(&l->options, up ? "upscale_factor" : down ? "downscale_factor" : "groups");
    const Shape *small = up ? &l->in : &l->out, *large = up ? &l->out : &l->in;
    const int64_t c = large->dim[1], w = small->dim[3];
    if (up) {
        to[0] = (Exchange){w * c, r * r};
        to[1] = (Exchange){r, w * c};
        to[2] = (Exchange){c, r};
    } else if (down) {
        to[0] = (Exchange){r, c};
        to[1] = (Exchange){w * c, r};
        to[2] = (Exchange){r * r, w * c};
    } else {
        to[0] = (Exchange){r, c / r};
    }
    return up || down ? EXCHANGES : 1;
}

static int not_divisible(const Layer *l, const char *what, int64_t by, Err *e) {
    char text[SHAPE_TEXT];
    return layer_error(l, e, "expected %s divisible by %" PRId64 ", found an input of %s", what, by,
                       shape_text(&l->in, text));
}

int layer_shuffle_shape(Network *n, Layer *l, Err *e) {
    static const char *const options[] = {"upscale_factor", "downscale_factor", "groups"};
    const char *option = options[l->kind->which];
    const int64_t r = options_int(&l->options, option), *d = l->in.dim;
    (void)n;
    int code = layer_expect_range(l, option, 1, WINDOW_MAX, e);
    if (code || (code = layer_expect_rank(l, 4, "(N, C, H, W)", e))) return code;
    if (l->kind->which == SHUFFLE_PIXELS) {
        if (d[1] % (r * r)) return not_divisible(l, "channels", r * r, e);
        layer_output(l, shape4(d[0], d[1] / (r * r), d[2] * r, d[3] * r));
    } else if (l->kind->which == SHUFFLE_BACK) {
        if (d[2] % r || d[3] % r) return not_divisible(l, "height and width", r, e);
        layer_output(l, shape4(d[0], d[1] * r * r, d[2] / r, d[3] / r));
    } else if (d[1] % r) {
        return not_divisible(l, "channels", r, e);
    }
    return OK;
}

int layer_shuffle_forward(Lower *lw, const Layer *l, const int *in) {
    Exchange exchange[EXCHANGES];
    const int n = find_exchanges(l, exchange);
    const int64_t elements = shape_elements(&l->in);
    int x = in[0];
    for (int i = 0; i < n; i++) {
        const int64_t rows = exchange[i].rows, cols = exchange[i].cols, samples = elements / (rows * cols);
        char name[16];
        assert(elements % (rows * cols) == 0);
        if (rows == 1 || cols == 1) continue;
        snprintf(name, sizeof name, "from%d", i);
        const int v = lower_view_as(lw, l, name, shape4(samples, cols, rows, 1), x);
        snprintf(name, sizeof name, "to%d", i);
        x = lower_emit(lw, OP_nhwc_to_nchw, l, &v, 1, lower_temp(lw, l, name, shape2(samples, rows * cols), NULL, DT_F32),
                       NULL);
    }
    return lower_view(lw, l, x);
}
