/* conv_axis.h: how the pixels of a convolution's result meet those of the image that it reads, down or across. */
#ifndef MT_CPU_CONV_AXIS_H
#define MT_CPU_CONV_AXIS_H

#include "program/operands.h"

/* Row r (of a product, or a pixel of a line) and tap t meet at pixel r stride + first + t step, if
 * 0 <= that < size; the tap is number tap + t tap_step of the weights. Row r stands for pixel place + r place_step of the
 * result. */
typedef struct Axis {
    int64_t size, rows, taps;
    int64_t stride, first, step;
    int64_t tap, tap_step, place, place_step;
} Axis;

/* Of a pass from x to y */
static inline Axis forward_axis(const ConvAttr *c, int d, int64_t x, int64_t y, int64_t taps) {
    return (Axis){.size = x, .rows = y, .taps = taps, .stride = c->stride[d], .first = -c->pad[d],
                  .step = c->dilation[d], .tap_step = 1, .place_step = 1};
}

/* Of a pass from y to pixels p, p + stride, ... of x: tap a meets them if p + pad - a dilation is a multiple of the
 * stride. These taps lie equally far apart. */
static inline Axis backward_axis(const ConvAttr *c, int d, int64_t x, int64_t y, int64_t taps, int64_t p) {
    const int64_t stride = c->stride[d], dilation = c->dilation[d], from = p + c->pad[d];
    Axis a = {.size = y, .rows = p < x ? div_up(x - p, stride) : 0, .stride = 1, .place = p, .place_step = stride, .tap = -1};
    for (int64_t t = 0; t < taps; t++) {
        if ((from - t * dilation) % stride) continue;
        if (a.taps == 0) a.tap = t, a.first = (from - t * dilation) / stride;
        if (a.taps == 1) a.tap_step = t - a.tap, a.step = (from - t * dilation) / stride - a.first;
        a.taps++;
    }
    return a;
}

#endif
