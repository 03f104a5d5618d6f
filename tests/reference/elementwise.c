#include "reference.h"

RefFn *const ref_table[OP_KIND_COUNT] = {
    [OP_act] = ref_act, [OP_act_dx] = ref_act_dx, [OP_glu] = ref_glu, [OP_glu_dx] = ref_glu_dx,
    [OP_maxpool] = ref_maxpool, [OP_maxpool_dx] = ref_maxpool_dx,
    [OP_avgpool] = ref_avgpool, [OP_avgpool_dx] = ref_avgpool_dx,
    [OP_adaptive_avgpool] = ref_adaptive_avgpool, [OP_adaptive_avgpool_dx] = ref_adaptive_avgpool_dx,
    [OP_dropout] = ref_dropout, [OP_dropout_dx] = ref_dropout, [OP_randn] = ref_randn,
    [OP_batchnorm] = ref_batchnorm, [OP_batchnorm_eval] = ref_batchnorm_eval,
    [OP_batchnorm_again] = ref_batchnorm_again, [OP_batchnorm_dx] = ref_batchnorm_dx,
    [OP_norm] = ref_norm, [OP_norm_dx] = ref_norm_dx, [OP_norm_dw] = ref_norm_dw,
    [OP_prelu] = ref_prelu, [OP_prelu_dx] = ref_prelu_dx, [OP_prelu_dw] = ref_prelu_dw,
    [OP_softmax] = ref_softmax, [OP_softmax_dx] = ref_softmax_dx,
    [OP_embedding] = ref_embedding, [OP_embedding_dw] = ref_embedding_dw,
    [OP_first_place] = ref_first_place, [OP_add_rows] = ref_add_rows, [OP_add_rows_dw] = ref_add_rows_dw,
    [OP_rotary] = ref_rotary, [OP_upsample] = ref_upsample, [OP_upsample_dx] = ref_upsample_dx,
    [OP_broadcast] = ref_broadcast, [OP_broadcast_ds] = ref_broadcast_ds,
    [OP_mul] = ref_mul, [OP_mul_da] = ref_mul_da, [OP_concat] = ref_concat, [OP_slice] = ref_slice, [OP_slice_dx] = ref_slice_dx,
    [OP_binary] = ref_binary, [OP_binary_da] = ref_binary_da, [OP_reduce] = ref_reduce,
    [OP_reduce_dx] = ref_reduce_dx, [OP_where] = ref_where, [OP_gather] = ref_gather, [OP_gather_dx] = ref_gather_dx,
    [OP_dora_norm] = ref_dora_norm, [OP_dora] = ref_dora, [OP_dora_dm] = ref_dora_dm,
    [OP_linear_q] = ref_linear_q, [OP_linear_q_dx] = ref_linear_q_dx, [OP_einsum] = ref_einsum, [OP_permute] = ref_permute,
    [OP_roll] = ref_roll, [OP_bias_db] = ref_bias_db,
    [OP_count_call] = ref_count_call, [OP_add] = ref_add, [OP_accumulate] = ref_accumulate,
    /* these change only the element type, the shape or the layout, which the reference does not know */
    [OP_from_bytes] = ref_from_bytes, [OP_cast] = ref_copy, [OP_copy] = ref_copy, [OP_view] = ref_copy, [OP_nhwc_to_nchw] = ref_copy,
    [OP_nhwc_to_nchw_dx] = ref_copy,
    [OP_cross_entropy] = ref_cross_entropy, [OP_cross_entropy_dx] = ref_cross_entropy_dx,
    [OP_element_loss] = ref_element_loss, [OP_element_loss_dx] = ref_element_loss_dx,
    [OP_grad_check] = ref_grad_check, [OP_grad_square] = ref_grad_square, [OP_step_begin] = ref_step_begin,
    [OP_scale_update] = ref_scale_update,
#define EACH(op, ...) [OP_##op] = ref_##op,
#define TOGETHER(op, ...) [OP_##op] = ref_##op,
#include "program/optimizers.def"
};

void ref_add(Ref *r) {
    for (int64_t i = 0; i < r->add.y.count; i++) r->add.y.at[i] = r->add.a.at[i] + r->add.b.at[i];
}

/* The channel is dimension 1. */
void ref_from_bytes(Ref *r) {
    const Tensor *x = &r->from_bytes.x, *mean = &r->from_bytes.mean, *std = &r->from_bytes.std;
    const BytesAttr *a = &r->attr->bytes;
    int64_t inner = 1;
    for (int d = 2; d < x->shape.rank; d++) inner *= x->shape.dim[d];
    for (int64_t i = 0; i < x->count; i++) {
        const int64_t c = mean->at ? i / inner % mean->count : 0;
        r->from_bytes.y.at[i] = (x->at[i] / a->divisor - (mean->at ? mean->at[c] : a->mean)) / (mean->at ? std->at[c] : a->std);
    }
}

void ref_copy(Ref *r) {
    for (int64_t i = 0; i < r->copy.y.count; i++) r->copy.y.at[i] = r->copy.x.at[i];
}

void ref_accumulate(Ref *r) {
    for (int64_t i = 0; i < r->accumulate.acc.count; i++)
        r->accumulate.acc.at[i] = r->accumulate.x.at[i] + (r->micro == 0 ? 0 : r->accumulate.acc.at[i]);
}

/* The place in memory of element i in PyTorch's order. */
static int64_t memory_index(const Ref *r, int64_t i) {
    if (!r->channels_last) return i;
    const int64_t *d = r->dropout.y.shape.dim, C = d[1], HW = d[2] * d[3];
    int64_t n = i / (C * HW), c = i / HW % C, hw = i % HW;
    return (n * HW + hw) * C + c;
}

void ref_dropout(Ref *r) {
    double p = r->attr->drop.p;
    uint32_t call = (uint32_t)r->dropout.calls.at[0];
    for (int64_t i = 0; i < r->dropout.y.count; i++) {
        const int64_t *d = r->dropout.x.shape.dim;
        const Within *in = &r->attr->drop.within;
        const int64_t place = in->piece ? in->first + i / in->piece * in->whole + i % in->piece : memory_index(r, i);
        uint64_t draw = (uint64_t)(r->attr->drop.channels ? i / (d[2] * d[3]) : place);
        uint32_t drawn = philox(r->seed, RNG_DROPOUT, r->attr->drop.id, call, draw / 4).x[draw % 4];
        bool keep = (drawn >> 8) / 16777216.0 >= p;
        r->dropout.y.at[i] = keep ? r->dropout.x.at[i] / (1 - p) : 0;
    }
}

void ref_randn(Ref *r) {
    for (int64_t i = 0; i < r->randn.y.count; i++) {
        uint64_t draw = (uint64_t)memory_index(r, i);
        float four[4];
        rng_normals(philox(r->seed, RNG_NOISE, r->attr->drop.id, (uint32_t)r->randn.calls.at[0], draw / 4), four);
        r->randn.y.at[i] = four[draw % 4];
    }
}

void ref_count_call(Ref *r) { r->count_call.calls.at[0] += r->attr->count.by; }
