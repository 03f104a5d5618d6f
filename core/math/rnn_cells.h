/* rnn_cells.h: one step of one unit of a recurrent layer, once for every device, in fp32. Shared with .cu files.
 *
 * For each gate a unit has a sum from the input (x w_ih^T + b_ih) and one from the units of the step before (h w_hh^T +
 * b_hh). The gates are in PyTorch's order: LSTM i f g o, GRU r z n.
 *
 *   saved, per step and sample, H units each      LSTM  i f g o c        GRU  r z n hn      RNN  nothing: y is enough
 *   gradients of the sums                         LSTM  i f g o          GRU  n r z hn      RNN  h
 *
 * hn is GRU's sum from h for gate n, which r multiplies. In GRU's row of gradients, those for w_ih (n r z) are
 * consecutive, and so are those for w_hh (r z hn). */
#ifndef MT_RNN_CELLS_H
#define MT_RNN_CELLS_H

#include "pointwise.h"

typedef enum RnnMode { RNN_TANH, RNN_RELU, RNN_LSTM, RNN_GRU, RNN_MODES } RnnMode;

/* gates: rows of w_ih and w_hh per unit; saved, slopes: numbers per unit, as above */
typedef struct RnnInfo { int gates, saved, slopes; } RnnInfo;

MT_FN RnnInfo rnn_info(RnnMode mode) {
    const RnnInfo plain = {1, 0, 1}, lstm = {4, 5, 4}, gru = {3, 4, 4};
    return mode == RNN_LSTM ? lstm : mode == RNN_GRU ? gru : plain;
}

typedef struct LstmUnit { float i, f, g, o, c, h; } LstmUnit;
typedef struct LstmSlope { float i, f, g, o, c; } LstmSlope;

/* i, f, g, o: the gates' two sums, added; c: the unit's cell state before this step */
MT_FN LstmUnit lstm_unit(float i, float f, float g, float o, float c) {
    LstmUnit u;
    u.i = sigmoid_value(i);
    u.f = sigmoid_value(f);
    u.g = tanh_value(g);
    u.o = sigmoid_value(o);
    u.c = u.f * c + u.i * u.g;
    u.h = u.o * tanh_value(u.c);
    return u;
}

/* The gradients of the gates' sums, and of c before this step (LstmSlope.c). dh, dc: the gradients of h and c after
 * this step; c: as above */
MT_FN LstmSlope lstm_slope(LstmUnit u, float c, float dh, float dc) {
    LstmSlope d;
    float t = tanh_value(u.c);
    dc += dh * u.o * (1.0f - t * t);
    d.o = dh * t * u.o * (1.0f - u.o);
    d.i = dc * u.g * u.i * (1.0f - u.i);
    d.f = dc * c * u.f * (1.0f - u.f);
    d.g = dc * u.i * (1.0f - u.g * u.g);
    d.c = dc * u.f;
    return d;
}

typedef struct GruUnit { float r, z, n, hn, h; } GruUnit;
typedef struct GruSlope { float n, r, z, hn, h; } GruSlope;

/* r, z: the gates' two sums, added; n, hn: the two sums of gate n; h: the unit's value before this step */
MT_FN GruUnit gru_unit(float r, float z, float n, float hn, float h) {
    GruUnit u;
    u.r = sigmoid_value(r);
    u.z = sigmoid_value(z);
    u.hn = hn;
    u.n = tanh_value(n + u.r * hn);
    u.h = (1.0f - u.z) * u.n + u.z * h;
    return u;
}

/* The gradients of the sums. GruSlope.h: the part of the gradient of h before this step that does not come through
 * w_hh. dh: the gradient of h after this step */
MT_FN GruSlope gru_slope(GruUnit u, float h, float dh) {
    GruSlope d;
    d.n = dh * (1.0f - u.z) * (1.0f - u.n * u.n);
    d.z = dh * (h - u.n) * u.z * (1.0f - u.z);
    d.r = d.n * u.hn * u.r * (1.0f - u.r);
    d.hn = d.n * u.r;
    d.h = dh * u.z;
    return d;
}

#endif
