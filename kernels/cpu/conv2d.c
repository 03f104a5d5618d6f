/* conv2d.c: convolution and its gradients. Shapes: x (N, C, H, W), w (O, C/groups, KH, KW), b (O), y (N, O, OH, OW). */
#include <string.h>

#include "depthwise.h"
#include "parallel.h"
#include "onednn.h"
#include "direct_conv.h"
#include "gemm_ops.h"
#include "grouped_conv.h"
#include "winograd.h"

/* oneDNN's dimensions are in PyTorch's order, too; strides say how the image lies. */
static dnnl_memory_desc_t image_md(const View *v) {
    const int64_t *d = v->shape.dim;
    int64_t rows[] = {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}, last[] = {d[1] * d[2] * d[3], 1, d[3] * d[1], d[1]};
    return prim_md(v, 4, d, v->channels_last ? last : rows);
}

/* (O, I, KH, KW), or (groups, O/groups, I, KH, KW) */
static dnnl_memory_desc_t weights_md(const View *v, int groups) {
    const int64_t *d = v->shape.dim;
    int64_t per_output = d[1] * d[2] * d[3];
    int64_t dim[] = {groups, d[0] / groups, d[1], d[2], d[3]};
    int64_t rows[] = {d[0] / groups * per_output, per_output, d[2] * d[3], d[3], 1};
    int64_t last[] = {d[0] / groups * per_output, per_output, 1, d[3] * d[1], d[1]};
    int plain = groups == 1;
    return prim_md(v, 5 - plain, dim + plain, (v->channels_last ? last : rows) + plain);
}

static dnnl_status_t describe(const KArgs *args, const dnnl_memory_desc_t md[SLOTS], OpDesc *out) {
    const ConvAttr *c = &args->attr->conv;
    const dnnl_memory_desc_t *x = &md[SLOT_X], *w = &md[SLOT_W], *b = &md[SLOT_B], *y = &md[SLOT_Y];
    dnnl_dims_t stride = {c->stride[0], c->stride[1]}, dilation = {c->dilation[0] - 1, c->dilation[1] - 1};
    dnnl_dims_t before = {c->pad[0], c->pad[1]}, after = {c->pad[2], c->pad[3]};
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    switch (pass_of(args)) {
    case PASS_DATA:
        return dnnl_dilated_convolution_backward_data_desc_init(&out->conv, direct, x, w, y, stride, dilation, before,
                                                                after);
    case PASS_WEIGHTS:
        return dnnl_dilated_convolution_backward_weights_desc_init(&out->conv, direct, x, w, b, y, stride, dilation,
                                                                   before, after);
    default:
        return dnnl_dilated_convolution_forward_desc_init(&out->conv, dnnl_forward_training, direct, x, w, b, y, stride,
                                                          dilation, before, after);
    }
}

static void keep(void *state) { (void)state; }

/* Our own ways beside oneDNN's. The first one that can do the op and is worth it is taken: it is the op's state. overwrites: does
 * it read an element of s before it writes that element of dx? NULL: always */
typedef struct Way {
    CpuState base;
    bool (*prepare)(const KArgs *, size_t limit, size_t *bytes);
    KernelRun *run;
    bool (*overwrites)(const KArgs *);
} Way;
#define OWN {{keep}, false}
static Way ways[] = {{OWN, depthwise_prepare, depthwise_run, NULL}, {OWN, direct_conv_prepare, direct_conv_run, NULL},
                     {OWN, winograd_prepare, winograd_run, winograd_overwrites}, {OWN, grouped_conv_prepare, grouped_conv_run, NULL},
                     {OWN, gemm_op_prepare, gemm_op_run, gemm_op_overwrites}};
#undef OWN

/* ---- implementations of oneDNN 2.6.3 that touch memory outside of what they are given
 *
 * They were found by running each implementation on random convolutions between pages that must not be touched, under
 * every instruction set (tests/device/t_pages.c). Where such an implementation seems to work, it destroys padding. */

/* With a stride the 1x1 implementations copy the pixels that they meet to their scratch; they write past its end if the
 * channels do not fill the vectors. Under AVX2 the gradient of the weights may then also never end. */
static bool ragged_strides(const ConvAttr *c, const int64_t *x, const int64_t *w) {
    (void)w;
    return (c->stride[0] > 1 || c->stride[1] > 1) && x[1] % 16 != 0;
}

/* Is there an output that meets nothing but padding? AMX implementations read it from no address at all, or read and
 * write past the end of the scratch. d: 0 down, 1 across */
static bool meets_padding_only(const ConvAttr *c, const int64_t *x, const int64_t *w, int d) {
    int64_t size = x[2 + d], taps = w[2 + d], step = c->dilation[d];
    int64_t last = size + c->pad[2 + d] - (taps - 1) * step - 1, met = 1;
    for (int64_t at = -c->pad[d]; at <= last && met; at += c->stride[d]) {
        met = 0;
        for (int64_t k = at; k < at + taps * step; k += step) met += k >= 0 && k < size;
    }
    return !met;
}

static bool beside_image(const ConvAttr *c, const int64_t *x, const int64_t *w) {
    return meets_padding_only(c, x, w, 0) || meets_padding_only(c, x, w, 1);
}

/* The older 1x1 for AMX writes past the end of y if the pixels do not fill the tiles. */
static bool always(const ConvAttr *c, const int64_t *x, const int64_t *w) { return (void)c, (void)x, (void)w, true; }

static const struct {
    const char *name; /* oneDNN's name begins with it */
    bool (*fails)(const ConvAttr *, const int64_t *x, const int64_t *w);
} faults[] = {{"jit_1x1:avx512_core_amx", always}, {"jit_1x1", ragged_strides}, {"jit_bf16_1x1", ragged_strides},
              {"brgconv:avx512_core_amx", beside_image}};

static bool avoid(const KArgs *args, const char *name) {
    const int64_t *x = prim_view(args, SLOT_X)->shape.dim, *w = prim_view(args, SLOT_W)->shape.dim;
    for (size_t k = 0; k < ARRAY_LEN(faults); k++)
        if (!strncmp(name, faults[k].name, strlen(faults[k].name)) && faults[k].fails(&args->attr->conv, x, w))
            return true;
    return false;
}

static int prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    const ConvAttr *conv = &args->attr->conv;
    assert(conv->groups > 0 && conv->stride[0] > 0 && conv->stride[1] > 0);
    assert(conv->dilation[0] > 0 && conv->dilation[1] > 0 && conv->fused.act < ACT_COUNT);
    for (size_t k = 0; k < ARRAY_LEN(ways); k++)
        if (ways[k].prepare(args, limit, workspace)) return *state = &ways[k], OK;
    const View *b = prim_view(args, SLOT_B);
    PrimSpec spec = {.pass = pass_of(args), .pack_weights = true, .act = conv->fused, .describe = describe,
                     .avoid = avoid};
    spec.md[SLOT_X] = image_md(prim_view(args, SLOT_X));
    spec.md[SLOT_W] = weights_md(prim_view(args, SLOT_W), conv->groups);
    spec.md[SLOT_B] = prim_md(b, 1, b->shape.dim, &(int64_t){1});
    spec.md[SLOT_Y] = image_md(prim_view(args, SLOT_Y));
    return prim_prepare(args, &spec, limit, state, workspace, e);
}

int k_cpu_conv2d_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

int k_cpu_conv2d_dx_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

int k_cpu_conv2d_dw_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    return prepare(args, limit, state, workspace, e);
}

/* x w -> y here is dy w -> dx of conv2d_dx; the bias is added after it. */
static KArgs plain_dx(const KArgs *args) {
    KArgs plain = *args;
    plain.kind = OP_conv2d_dx;
    memset(&plain.conv2d_dx.s, 0, sizeof plain.conv2d_dx.s);
    return plain;
}

int k_cpu_conv_transpose_prepare(const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    const KArgs plain = plain_dx(args);
    return prepare(&plain, limit, state, workspace, e);
}

/* Items are pixels. */
static void bias_piece(const KArgs *a, int64_t begin, int64_t end) {
    float to[BLOCK], from[BLOCK];
    int64_t channels = a->conv_transpose.y.shape.dim[1];
    for (int64_t c = 0; c < channels; c += BLOCK) {
        int64_t n = min_i64(BLOCK, channels - c);
        const float *b = block_load(&a->conv_transpose.b, c, n, from);
        for (int64_t i = begin; i < end; i++) {
            float *y = block_load(&a->conv_transpose.y, i * channels + c, n, to);
            block_add(y, y, b, n);
            block_store(&a->conv_transpose.y, i * channels + c, n, y);
        }
    }
}

/* NULL: the op is oneDNN's */
static const Way *way_of(const KArgs *args) { return ((const CpuState *)args->state)->by_library ? NULL : args->state; }

static int run(const KArgs *args, Err *e) {
    if (!args->state) return err_set(e, ERR_INTERNAL, "run without a prepared state");
    return way_of(args) ? way_of(args)->run(args, e) : prim_run(args, e);
}

bool k_cpu_conv2d_dx_overwrites(const KArgs *args, size_t *more) {
    const Way *way = way_of(args);
    *more = 0;
    if (way) return !way->overwrites || way->overwrites(args);
    return prim_overwrites(args, more);
}

int k_cpu_conv_transpose(const KArgs *args, Err *e) {
    const KArgs plain = plain_dx(args);
    int64_t channels = args->conv_transpose.y.shape.dim[1];
    assert(operand_is_image(&args->conv_transpose.y));
    assert(!args->conv_transpose.b.count || args->conv_transpose.b.count == channels);
    int code = run(&plain, e);
    if (!code && args->conv_transpose.b.count)
        range_run(args, args->conv_transpose.y.count / channels, max_i64(1, BLOCK / channels), bias_piece);
    return code;
}

int k_cpu_conv2d(const KArgs *args, Err *e) { return run(args, e); }
int k_cpu_conv2d_dx(const KArgs *args, Err *e) { return run(args, e); }
int k_cpu_conv2d_dw(const KArgs *args, Err *e) { return run(args, e); }
