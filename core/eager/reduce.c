#include "reduce.h"

static int64_t last_pow2(int64_t n) {
    int64_t p = 1;
    while (p * 2 <= n) p *= 2;
    return p;
}

static bool is_reduced(unsigned dims, int d) { return dims >> d & 1; }

/* The dimension that lies closest, of all (reduced -1) or of those that are not reduced; -1: all have size 1. */
static int fastest_dim(const Tensor *x, unsigned dims, bool kept_only) {
    int best = -1;
    for (int d = 0; d < x->size.rank; d++)
        if (x->size.of[d] != 1 && !(kept_only && is_reduced(dims, d)) && (best < 0 || x->stride[d] <= x->stride[best]))
            best = d;
    return best;
}

void reduce_inner(Eager *g, const Tensor *x, unsigned dims, int64_t element) {
    int64_t outputs = 1, inputs = 1, last = 1;
    for (int d = 0; d < x->size.rank; d++) *(is_reduced(dims, d) ? &inputs : &outputs) *= x->size.of[d];
    const int best = fastest_dim(x, dims, false), kept = fastest_dim(x, dims, true);
    if (best < 0 || inputs == 1) return;
    const bool fastest = is_reduced(dims, best), dense = x->stride[best] == 1;
    for (int d = kept; d >= 0 && !is_reduced(dims, d); d--) last *= x->size.of[d];
    /* threads of a block along the dimension that lies closest, and across; elements that a thread reads at once */
    int64_t dim0 = fastest ? inputs : outputs, dim1 = fastest ? outputs : inputs, vector = 1;
    if (dense && fastest && dim0 > 128 && outputs == 1) {
        dim0 /= 4;
    } else if (dense && !fastest) {
        for (vector = 4; vector > 1 && last % vector;) vector /= 2;
        dim0 /= vector;
    }
    const int64_t most = 512 / vector, p0 = dim0 < most ? last_pow2(dim0) : most, p1 = dim1 < most ? last_pow2(dim1) : most;
    int64_t width = min_i64(p0, 32), height = min_i64(p1, most / width);
    width = min_i64(p0, most / height);
    int64_t split = fastest ? width : 1, out_per_block = fastest ? 1 : width;
    int64_t values = div_up(inputs, split);
    const bool over_height = values >= height * 16 || values >= 256;
    *(over_height ? &split : &out_per_block) *= height;
    values = div_up(inputs, split);
    const int64_t grid = div_up(outputs / vector, out_per_block);
    const int64_t target = g->card->multiprocessors * (g->card->threads / (width * height));
    if (!over_height || values < 256 || grid > target) return;
    int64_t blocks = min_i64(div_up(target, grid), div_up(values, 16));
    if (blocks < div_up(values, 256)) blocks = div_up(values, 256);
    if (blocks <= 1) return;
    INNER(g, element * outputs * blocks * (fastest ? 1 : width * vector), 4 * grid);
}

Size reduced_size(const Size *s, unsigned dims, bool keepdim) {
    Size out = {0, {0}};
    for (int d = 0; d < s->rank; d++)
        if (!is_reduced(dims, d)) out.of[out.rank++] = s->of[d];
        else if (keepdim) out.of[out.rank++] = 1;
    return out;
}

Tensor *reduce(Eager *g, const char *op, const Tensor *x, ScalarType type, unsigned dims, bool keepdim) {
    eager_op(g, op);
    READS(g, x);
    Tensor *y = tensor_new(g, type, reduced_size(&x->size, dims, keepdim));
    reduce_inner(g, x, dims, 4);
    return y;
}

Tensor *aten_sum_to(Eager *g, Tensor *x, Size size) {
    GUARD(g);
    const int more = x->size.rank - size.rank;
    unsigned dims = 0;
    for (int d = 0; d < x->size.rank; d++)
        if (d < more || (size.of[d - more] == 1 && x->size.of[d] != 1)) dims |= 1u << d;
    int64_t stride[TENSOR_RANK];
    Tensor *sum = dims ? reduce(g, "aten::sum", x, x->type, dims, true) : tensor_ref(x);
    if (size_equal(&sum->size, &size)) return sum;
    contiguous_strides(&size, stride);
    Tensor *y = tensor_view(g, sum, size, stride);
    tensor_drop(g, sum);
    return y;
}
