#include "linear_panels.h"

#include "act.h"
#include "cpu.h"
#include "fp32_workspace.h"
#include "isa.h"
#include "program/product.h"

bool linear_panels_fits(const KArgs *args) {
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const View *v = k < OP_IN ? &args->in[k] : &args->out[k - OP_IN];
        if (v->count && v->dtype != DT_F32) return false;
    }
    return isa_has(dnnl_cpu_isa_avx512_core);
}

size_t linear_panels_workspace(const KArgs *args) {
    return args->kind == OP_linear_dx ? align_up(act_dx_parts(&args->linear_dx.dx, &args->linear_dx.db), CPU_ALIGNMENT) : 0;
}

bool linear_panels_overwrites(const KArgs *args, size_t *more) {
    *more = act_bits_bytes(&args->linear_dx.s);
    return act_has_bits(&args->attr->linear.fused);
}

/* Bias and activation of a panel of y */
static void leave_y(const void *of, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    const KArgs *a = of;
    const ActAttr *act = &a->attr->linear.fused;
    const int64_t outputs = a->linear.w.shape.dim[0];
    for (int64_t r = row; r < row + rows; r++) {
        float *y = (float *)a->linear.y.data + r * outputs + column;
        if (a->linear.b.count) sum_rows(y, (const float *)a->linear.b.data + column, 1, columns);
        if (act->act) act_block(act, y, y, columns);
    }
}

static int run_forward(const KArgs *a, int64_t rows, int64_t inputs, int64_t outputs) {
    const ProductLeave leave = {leave_y, a};
    return product_leave(rows, outputs, inputs, matrix(a->linear.x.data, inputs), transposed(a->linear.w.data, inputs),
                         matrix(a->linear.y.data, outputs), &leave);
}

static int run_dx(const KArgs *a, int64_t rows, int64_t inputs, int64_t outputs) {
    const View *dx = &a->linear_dx.dx, *s = &a->linear_dx.s;
    const ActAttr *act = &a->attr->linear.fused;
    void *bits = act->act && s->data == dx->data ? (char *)a->workspace + linear_panels_workspace(a) : NULL;
    if (bits) act_bits(act, s, bits);
    const int status = product(rows, inputs, outputs, 1.0f, matrix(a->linear_dx.dy.data, outputs), matrix(a->linear_dx.w.data, inputs),
                               false, matrix(dx->data, inputs));
    if (!status && act->act) act_dx_sums(act, dx, s, bits, dx, &a->linear_dx.db, a->workspace);
    return status;
}

/* The rows of dy, added up */
static int sum_bias(const KArgs *args, Err *e) {
    KArgs sums = {.kind = OP_bias_db, .device = args->device};
    sums.bias_db.dy = args->linear_dw.dy;
    sums.bias_db.db = args->linear_dw.db;
    return k_cpu_bias_db(&sums, e);
}

int linear_panels_run(const KArgs *a, Err *e) {
    const ProductOperands p = product_operands(a);
    const int64_t outputs = p.w->shape.dim[0], inputs = p.w->shape.dim[1], rows = p.y->count / outputs;
    if (a->kind == OP_linear) return product_check(run_forward(a, rows, inputs, outputs), e);
    if (a->kind == OP_linear_dx) return product_check(run_dx(a, rows, inputs, outputs), e);
    const int status = product(outputs, inputs, rows, 1.0f, transposed(p.y->data, outputs), matrix(p.x->data, inputs), false,
                               matrix(p.w->data, inputs));
    return status || !a->linear_dw.db.count ? product_check(status, e) : sum_bias(a, e);
}
