#include "ref_conv.h"

void ref_linear(double *y, const double *x, const double *w, const double *b, int64_t n, int64_t i, int64_t o) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t k = 0; k < o; k++) {
            double sum = b ? b[k] : 0.0;
            for (int64_t j = 0; j < i; j++) sum += x[r * i + j] * w[k * i + j];
            y[r * o + k] = sum;
        }
}

void ref_linear_dx(double *dx, const double *dy, const double *w, int64_t n, int64_t i, int64_t o) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < i; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < o; k++) sum += dy[r * o + k] * w[k * i + j];
            dx[r * i + j] = sum;
        }
}

void ref_linear_dw(double *dw, double *db, const double *x, const double *dy, int64_t n, int64_t i, int64_t o) {
    for (int64_t k = 0; k < o; k++) {
        for (int64_t j = 0; j < i; j++) {
            double sum = 0.0;
            for (int64_t r = 0; r < n; r++) sum += dy[r * o + k] * x[r * i + j];
            dw[k * i + j] = sum;
        }
        if (db) db[k] = 0.0;
        for (int64_t r = 0; db && r < n; r++) db[k] += dy[r * o + k];
    }
}
