/* ref_conv.h: convolution and linear layers in float64 plain loops, in PyTorch's element order. Outputs first. */
#ifndef REF_CONV_H
#define REF_CONV_H

#include <stdint.h>

/* x (n, c, h, w), weights (o, c/groups, kh, kw), y (n, o, oh, ow); pad: top left bottom right */
typedef struct RefConv { int64_t n, c, h, w, o, kh, kw, stride[2], pad[4], dilation[2], groups; } RefConv;

int64_t ref_conv_oh(const RefConv *d);
int64_t ref_conv_ow(const RefConv *d);
void ref_conv2d(double *y, const double *x, const double *w, const double *b, const RefConv *d); /* b may be NULL */
void ref_conv2d_dx(double *dx, const double *dy, const double *w, const RefConv *d);
void ref_conv2d_dw(double *dw, double *db, const double *x, const double *dy, const RefConv *d); /* db may be NULL */

/* x (n, i), w (o, i), y (n, o) */
void ref_linear(double *y, const double *x, const double *w, const double *b, int64_t n, int64_t i, int64_t o);
void ref_linear_dx(double *dx, const double *dy, const double *w, int64_t n, int64_t i, int64_t o);
void ref_linear_dw(double *dw, double *db, const double *x, const double *dy, int64_t n, int64_t i, int64_t o);

#endif
