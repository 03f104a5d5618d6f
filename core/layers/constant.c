/* Values that a script gives: Buffer, a module's own (PyTorch's register_buffer), which is in the state_dict, and
 * Tensor, which forward makes (torch.tensor). `which`: 0, 1. RelativePositionBuckets: whole numbers that follow from how
 * many steps a sequence has. And Index: rows of a table (V, D), a value or a parameter, by a constant of whole numbers:
 * (...) becomes (..., D). */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "network/layer.h"

/* ---- constants */

static DType type_of(const Layer *l) {
    char word[OPTION_WORDS];
    return strcmp(options_word(&l->options, "dtype", word), "int64") ? DT_F32 : DT_I32;
}

/* The values, in PyTorch's order, and their shape. */
static const double *find_values(const Layer *l, Shape *shape, Err *e) {
    int64_t rank, n, count;
    const double *sizes = options_list(&l->options, "shape", &rank), *values = options_list(&l->options, "values", &n);
    *shape = (Shape){rank > SHAPE_MAX ? 0 : (int)rank, {1, 1, 1, 1}};
    for (int d = 0; d < shape->rank; d++) {
        if (!(sizes[d] >= 1 && sizes[d] <= INT32_MAX) || sizes[d] != floor(sizes[d])) shape->rank = 0;
        else shape->dim[d] = (int64_t)sizes[d];
    }
    if (!shape->rank || shape_count(shape, &count, NULL) || count != n) {
        layer_error(l, e, "shape: expected 1 to %d sizes whose product is the number of values, %" PRId64, SHAPE_MAX,
                    n);
        return NULL;
    }
    return values;
}

/* What kernels rely on: rows of a table lie at 0 and above. */
static int find_below(const Layer *l, const double *values, int64_t n, int64_t *below, Err *e) {
    *below = 1;
    for (int64_t i = 0; i < n; i++) {
        if (!(values[i] >= 0 && values[i] < INT32_MAX) || values[i] != floor(values[i]))
            return layer_error(l, e, "int64: expected whole numbers from 0 on, found %g as number %" PRId64, values[i],
                               i + 1);
        *below = max_i64(*below, (int64_t)values[i] + 1);
    }
    return OK;
}

int layer_constant_shape(Network *n, Layer *l, Err *e) {
    Shape shape;
    const double *values = find_values(l, &shape, e);
    const DType type = type_of(l);
    int code = values ? OK : ERR_SCRIPT;
    int64_t below = 0;
    if (!code && type == DT_I32) code = find_below(l, values, shape_elements(&shape), &below, e);
    const Param like = {.shape = shape, .dtype = type, .buffer = true, .constant = values, .plain = true};
    if (!code && !l->kind->which) code = network_tensor(n, l, "", &like, e);
    if (code) return code;
    layer_output(l, shape);
    l->out_rows = shape.rank == 4;
    l->out_is_constant = true;
    l->out_below = below;
    return OK;
}

int layer_constant_forward(Lower *lw, const Layer *l, const int *in) {
    Shape shape;
    (void)in;
    if (!l->kind->which) return lw->param[l->param[0]];
    const double *values = find_values(l, &shape, NULL);
    return values ? program_constant(lw->p, l->path, shape, type_of(l), values) : 0; /* checked before */
}

/* ---- buckets of relative positions: of (N, T, ...) the T x T buckets in which key j lies for query i, as transformers'
 * T5Attention._relative_position_bucket has them. Half of the buckets are for one distance each, the others widen with
 * its logarithm until max_distance; where they are bidirectional, keys after the query have half of all for themselves. */

typedef struct Buckets { int64_t n, most; bool both; } Buckets;

static Buckets buckets_of(const Layer *l) {
    return (Buckets){options_int(&l->options, "num_buckets"), options_int(&l->options, "max_distance"),
                     options_bool(&l->options, "bidirectional")};
}

/* In fp32, as PyTorch computes it: a distance at the edge of a bucket must fall as it does there. */
static int64_t bucket_of(Buckets b, int64_t query, int64_t key) {
    const int64_t n = b.both ? b.n / 2 : b.n, exact = n / 2, first = b.both && key > query ? n : 0;
    const int64_t distance = key > query ? b.both ? key - query : 0 : query - key;
    if (distance < exact) return first + distance;
    const float part = logf((float)distance / (float)exact) / (float)log((double)b.most / (double)exact);
    return first + min_i64(exact + (int64_t)(part * (float)(n - exact)), n - 1);
}

int layer_buckets_shape(Network *n, Layer *l, Err *e) {
    char text[SHAPE_TEXT];
    (void)n;
    int code = layer_expect_inputs(l, 1, e);
    const int64_t least = options_bool(&l->options, "bidirectional") ? 4 : 2; /* one bucket for a single distance */
    if (!code) code = layer_expect_range(l, "num_buckets", least, INT32_MAX, e);
    if (!code) code = layer_expect_range(l, "max_distance", buckets_of(l).n / (least / 2) / 2 + 1, INT32_MAX, e);
    if (code) return code;
    if (l->in_is_param || l->in.rank < 2)
        return layer_error(l, e, "expected a sequence (N, T, ...), found %s", shape_text(&l->in, text));
    layer_output(l, shape2(l->in.dim[1], l->in.dim[1]));
    l->out_below = buckets_of(l).n;
    return OK;
}

int layer_buckets_forward(Lower *lw, const Layer *l, const int *in) {
    const Buckets buckets = buckets_of(l);
    const int64_t steps = l->out.dim[0];
    int32_t *values;
    (void)in;
    const int made = program_whole_numbers(lw->p, l->path, l->out, &values);
    for (int64_t i = 0; i < steps * steps && values; i++)
        values[i] = (int32_t)bucket_of(buckets, i / steps, i % steps);
    return made;
}

/* ---- rows by a constant */

int layer_index_shape(Network *n, Layer *l, Err *e) {
    char text[SHAPE_TEXT];
    (void)n;
    if (l->n_in != 2) return layer_error(l, e, "expects 2 values, found %d", l->n_in);
    if (!l->ins[1].below || l->ins[0].below)
        return layer_error(l, e, "expected x[index], index a nn.Buffer or nn.tensor of int64");
    const Value *index = &l->ins[1];
    if (l->in.rank != 2)
        return layer_error(l, e, "expected rows (V, D) that index chooses from, found %s", shape_text(&l->in, text));
    if (index->below > l->in.dim[0])
        return layer_error(l, e, "index %" PRId64 " is out of bounds for %" PRId64 " rows", index->below - 1,
                           l->in.dim[0]);
    Shape out = index->shape;
    if (out.rank == SHAPE_MAX) return layer_error(l, e, "gives more than %d dimensions", SHAPE_MAX);
    out.dim[out.rank++] = l->in.dim[1];
    layer_output(l, out);
    l->out_rows = out.rank == 4;
    return OK;
}

int layer_index_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.embedding.padding = -1;
    return lower_op(lw, OP_embedding, l, (int[]){in[1], lower_rows(lw, l, in[0])}, 2, &a);
}
