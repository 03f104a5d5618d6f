#include <math.h>
#include <stdlib.h>

#include "reference.h"

/* The pseudocode of torch.optim.Adafactor: PyTorch's last two dimensions are a matrix; its others count the
 * matrices. */

static double mean_of_squares(const double *x, int64_t n, int64_t stride) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i * stride] * x[i * stride];
    return sum / (double)n;
}

/* u: the gradients (rows, columns), which become gradients divided by their roots; row[rows], column[columns]: the
 * averages of squares */
static void matrix(double *u, double *row, double *column, int64_t rows, int64_t columns, double share, double eps) {
    double mean = 0;
    for (int64_t r = 0; r < rows; r++) {
        row[r] += share * (mean_of_squares(u + r * columns, columns, 1) - row[r]);
        mean += row[r] / (double)rows;
    }
    for (int64_t c = 0; c < columns; c++) column[c] += share * (mean_of_squares(u + c, rows, columns) - column[c]);
    for (int64_t i = 0; i < rows * columns; i++)
        u[i] /= sqrt(fmax(row[i / columns] * column[i % columns] / fmax(mean, eps), eps * eps));
}

static void vector(double *u, double *variance, int64_t n, double share, double eps) {
    for (int64_t i = 0; i < n; i++) {
        variance[i] += share * (u[i] * u[i] - variance[i]);
        u[i] /= sqrt(fmax(variance[i], eps * eps));
    }
}

void ref_adafactor(Ref *r) {
    const OptimRule *o = &r->attr->optim.rule;
    const Tensor *w = r->adafactor.master.at ? &r->adafactor.master : &r->adafactor.w;
    const int rank = w->shape.rank;
    const int64_t columns = w->shape.dim[rank - 1], matrices = rank > 1 ? r->adafactor.col_var.count / columns : 1;
    const int64_t rows = w->count / (matrices * columns); /* a Conv1d's weight (O, I, 1, K) is (O, I, K) in PyTorch: I */
    double t = r->state->step, lr = r->adafactor.lr.at ? r->adafactor.lr.at[0] : (double)o->lr;
    double share = pow(t, o->beta2_decay);
    double unscale = 1.0 / r->state->loss_scale, *u = malloc((size_t)w->count * sizeof *u);
    if (r->state->overflow || !u) {
        free(u);
        return;
    }
    if (o->clip_norm > 0) unscale *= fmin(1, o->clip_norm / (sqrt(r->adafactor.square.at[0]) * unscale + 1e-6));
    for (int64_t i = 0; i < w->count; i++) u[i] = r->adafactor.g.at[i] * unscale;
    for (int64_t m = 0; m < matrices && rank > 1; m++)
        matrix(u + m * rows * columns, r->adafactor.row_var.at + m * rows, r->adafactor.col_var.at + m * columns, rows,
               columns, share, o->eps);
    if (rank == 1) vector(u, r->adafactor.variance.at, w->count, share, o->eps);
    double alpha = fmax(o->eps2, sqrt(mean_of_squares(w->at, w->count, 1))) * fmin(lr, 1 / sqrt(t));
    alpha /= fmax(1, sqrt(mean_of_squares(u, w->count, 1)) / o->d);
    for (int64_t i = 0; i < w->count; i++) {
        w->at[i] = w->at[i] * (1 - lr * o->weight_decay) - alpha * u[i];
        r->adafactor.w.at[i] = w->at[i];
    }
    free(u);
}
