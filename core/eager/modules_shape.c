/* What changes shapes: views where PyTorch's are, and what is padded, put together or cut out. */
#include <string.h>

#include "modules.h"

static Size out_size(const Layer *l) { return size_from(&l->out); }

static int dim_of(const Layer *l, const char *option, int rank) {
    const int64_t dim = options_int(&l->options, option);
    return (int)(dim < 0 ? dim + rank : dim);
}

Tensor *module_reshape(Eager *g, const Layer *l, Tensor *const *in) { return aten_reshape(g, in[0], out_size(l)); }

/* Transpose has two dimensions that change places, Permute an order of all. */
Tensor *module_permute(Eager *g, const Layer *l, Tensor *const *in) {
    const int rank = in[0]->size.rank;
    int order[TENSOR_RANK];
    int64_t n;
    const double *dims = options_list(&l->options, "dims", &n);
    if (!dims) return aten_transpose(g, in[0], dim_of(l, "dim0", rank), dim_of(l, "dim1", rank));
    for (int d = 0; d < rank; d++) order[d] = (int)(dims[d] < 0 ? dims[d] + rank : dims[d]);
    return aten_permute(g, in[0], order);
}

/* Part k of n of x, which the first one who asks for a part makes all: by split where there are sizes, else by unbind. */
static Tensor *take_part(Eager *g, Tensor *x, int dim, const double *sizes, int n, int k) {
    GUARD(g);
    Parts *p = &g->parts;
    const bool there = p->n == n && p->of == x->storage && size_equal(&p->size, &x->size) && p->dim == dim && p->part[k];
    if (!there) {
        for (int i = 0; i < p->n; i++) tensor_drop(g, p->part[i]);
        int64_t *length = scratch_new(&g->scratch, (size_t)n, sizeof *length);
        *p = (Parts){x->storage, x->size, dim, 0, scratch_new(&g->scratch, (size_t)n, sizeof *p->part)};
        if (!length || !p->part) return tensor_ref(x);
        for (int i = 0; sizes && i < n; i++) length[i] = (int64_t)sizes[i];
        if (sizes) aten_split(g, x, length, dim, p->part, n);
        else aten_unbind(g, x, dim, p->part);
        p->n = n;
    }
    Tensor *y = p->part[k];
    p->part[k] = NULL;
    return y;
}

Tensor *module_select(Eager *g, const Layer *l, Tensor *const *in) {
    const int dim = dim_of(l, "dim", in[0]->size.rank);
    const int64_t n = options_int(&l->options, "unbind"), index = options_int(&l->options, "index");
    return n ? take_part(g, in[0], dim, NULL, (int)n, (int)(index < 0 ? index + n : index)) : aten_select(g, in[0], dim);
}

Tensor *module_narrow(Eager *g, const Layer *l, Tensor *const *in) {
    int64_t n = 0, at = 0;
    const double *sizes = options_list(&l->options, "split", &n);
    if (sizes) {
        const int dim = dim_of(l, "dim", in[0]->size.rank);
        const int64_t given = options_int(&l->options, "start"), start = given < 0 ? given + in[0]->size.of[dim] : given;
        int k = 0;
        while (at < start) at += (int64_t)sizes[k++]; /* layer_narrow_shape has found it there */
        return take_part(g, in[0], dim, sizes, (int)n, k);
    }
    return aten_slice(g, in[0], dim_of(l, "dim", in[0]->size.rank), options_int(&l->options, "length"),
                      options_int(&l->options, "step"));
}

Tensor *module_roll(Eager *g, const Layer *l, Tensor *const *in) {
    (void)l;
    return aten_roll(g, in[0]);
}

Tensor *module_pad(Eager *g, const Layer *l, Tensor *const *in) { return aten_pad(g, in[0], out_size(l)); }

/* pixel_shuffle and pixel_unshuffle: view, permute, and a copy; channel_shuffle alike */
Tensor *module_shuffle(Eager *g, const Layer *l, Tensor *const *in) {
    const int64_t *d = in[0]->size.of;
    const bool up = l->kind->which == SHUFFLE_PIXELS, down = l->kind->which == SHUFFLE_BACK;
    const int64_t r = options_int(&l->options, up ? "upscale_factor" : down ? "downscale_factor" : "groups");
    static const int orders[3][TENSOR_RANK] = {
        [SHUFFLE_PIXELS] = {0, 1, 4, 2, 5, 3}, [SHUFFLE_BACK] = {0, 1, 3, 5, 2, 4}, [SHUFFLE_CHANNELS] = {0, 2, 1, 3, 4}};
    Size parts = up     ? SIZE(d[0], d[1] / (r * r), r, r, d[2], d[3])
                 : down ? SIZE(d[0], d[1], d[2] / r, r, d[3] / r, r)
                        : SIZE(d[0], r, d[1] / r, d[2], in[0]->size.rank > 3 ? d[3] : 1);
    Tensor *apart = aten_reshape(g, in[0], parts), *turned = aten_permute(g, apart, orders[l->kind->which]);
    Tensor *y = aten_reshape(g, turned, out_size(l));
    tensor_drop(g, apart);
    tensor_drop(g, turned);
    return y;
}

/* ---- windows; of lines as images of height 1 */

/* (N, C, L) as (N, C, 1, L) and back, around f. */
static Size image_size(Size s) { return s.rank == 3 ? SIZE(s.of[0], s.of[1], 1, s.of[2]) : s; }

static Tensor *as_image(Eager *g, Tensor *x) {
    return x->size.rank == 3 ? aten_view(g, x, image_size(x->size)) : tensor_ref(x);
}

/* Takes over y. */
static Tensor *back(Eager *g, const Layer *l, Tensor *y) {
    if (l->out.rank == y->size.rank) return y;
    Tensor *line = aten_view(g, y, out_size(l));
    tensor_drop(g, y);
    return line;
}

/* padding = "same": where one side wants more than the other, that much is padded before (_convolution_same). */
static Tensor *padded_same(Eager *g, const Layer *l, Tensor *x) {
    char text[OPTION_WORDS];
    Size size = x->size;
    if (l->kind->which == OP_conv_transpose || strcmp(options_word(&l->options, "padding", text), "same") != 0)
        return tensor_ref(x);
    for (int d = 2; d < size.rank; d++) {
        const int axis = size.rank == 3 ? 1 : d - 2;
        const int64_t total = layer_along(l, "dilation", axis, 1) * (layer_along(l, "kernel_size", axis, 1) - 1);
        size.of[d] += total % 2;
    }
    return size_equal(&size, &x->size) ? tensor_ref(x) : aten_pad(g, x, size);
}

Tensor *module_conv(Eager *g, const Layer *l, Tensor *const *in) {
    const ConvAttr a = layer_conv_attr(l);
    /* an odd padding of "same" is longer at the bottom and right; padded_same has made the rest of it */
    const ConvHow how = {out_size(l), {{a.stride[0], a.stride[1]}, {a.pad[0], a.pad[1]}, {a.dilation[0], a.dilation[1]}, a.groups},
                         l->kind->which == OP_conv_transpose};
    Tensor *x = padded_same(g, l, in[0]), *y = aten_convolution(g, x, module_param(g, l, 0), module_param(g, l, 1), &how);
    tensor_drop(g, x);
    return y;
}

Tensor *module_pool(Eager *g, const Layer *l, Tensor *const *in) {
    const Size size = image_size(out_size(l));
    Tensor *x = as_image(g, in[0]);
    Tensor *y = l->kind->which == OP_maxpool ? aten_max_pool2d(g, x, size, false) : aten_avg_pool2d(g, x, size);
    tensor_drop(g, x);
    return back(g, l, y);
}

Tensor *module_adaptive_pool(Eager *g, const Layer *l, Tensor *const *in) {
    const Size size = image_size(out_size(l));
    char listing[OPTION_WORDS];
    Tensor *x = as_image(g, in[0]), *y;
    if (l->kind->which == OP_maxpool) y = aten_max_pool2d(g, x, size, true);
    else if (!strcmp(options_word(&l->options, "listing", listing), "mean")) y = aten_mean(g, x, 1u << 2 | 1u << 3, true);
    else y = aten_adaptive_avg_pool2d(g, x, size);
    tensor_drop(g, x);
    return back(g, l, y);
}

Tensor *module_upsample(Eager *g, const Layer *l, Tensor *const *in) {
    char mode[OPTION_WORDS];
    return aten_upsample(g, in[0], out_size(l), !strcmp(options_word(&l->options, "mode", mode), "bilinear"));
}

/* ---- tables */

Tensor *module_embedding(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *y = aten_embedding(g, in[0], module_param(g, l, 0));
    if (l == g->asks) y->leaf |= !y->node; /* requires_grad_(True) */
    return y;
}

/* x.to(float).div_(divisor).sub_(mean).div_(std), whose mean and std the script holds, and may be views of such */
Tensor *module_from_bytes(Eager *g, const Layer *l, Tensor *const *in) {
    (void)l;
    Tensor *y = aten_to(g, in[0], g->numbers);
    static const char *const steps[] = {"aten::div_", "aten::sub_", "aten::div_"};
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) eager_inplace(g, steps[i], y, NULL);
    return y;
}

/* x + wpe(torch.arange(T)) */
Tensor *module_positions(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *numbers = aten_random(g, "aten::arange", SIZE(in[0]->size.of[1]), T_LONG);
    Tensor *rows = aten_embedding(g, numbers, module_param(g, l, 0));
    tensor_drop(g, numbers);
    Tensor *y = aten_binary(g, WITH_ADD, in[0], rows);
    tensor_drop(g, rows);
    return y;
}
