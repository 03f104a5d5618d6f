/* upsample.cu: channels-last images at another size, a thread per element of the output. Both directions gather: an
 * output pixel comes from at most four input pixels, an input's gradient from all output pixels that it has a share
 * in. */
#include "elements.h"

enum { UPSAMPLE_THREADS = 256 };

typedef struct Upsample {
    UpsampleAttr attr;
    Elements from, to;
    int64_t C, H, W, OH, OW, count; /* (H, W): the small image; elements of `to` */
} Upsample;

static __device__ inline float pixel_at(const Upsample &u, int64_t image, int64_t height, int64_t width, int64_t h,
                                        int64_t w, int64_t c) {
    return dtype_load(u.from.type, u.from.data, (size_t)(((image * height + h) * width + w) * u.C + c));
}

static __global__ void upsample_kernel(const __grid_constant__ Upsample u) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < u.count; i += stride) {
        int64_t c = i % u.C, w = i / u.C % u.OW, h = i / u.C / u.OW % u.OH, image = i / u.C / u.OW / u.OH;
        Sample down = upsample_sample(&u.attr, 0, h, u.H, u.OH), across = upsample_sample(&u.attr, 1, w, u.W, u.OW);
        float sum = 0.0f;
        for (int k = 0; k < 4; k++) {
            float share = down.share[k / 2] * across.share[k % 2];
            if (share != 0.0f) sum += share * pixel_at(u, image, u.H, u.W, down.at[k / 2], across.at[k % 2], c);
        }
        dtype_store(u.to.type, u.to.data, (size_t)i, sum);
    }
}

/* The share that input element i has in output element o along an axis. */
static __device__ inline float share_of(const Sample &s, int64_t i) {
    return (s.at[0] == i ? s.share[0] : 0.0f) + (s.at[1] == i ? s.share[1] : 0.0f);
}

static __global__ void upsample_dx_kernel(const __grid_constant__ Upsample u) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < u.count; i += stride) {
        int64_t c = i % u.C, w = i / u.C % u.W, h = i / u.C / u.W % u.H, image = i / u.C / u.W / u.H;
        Reach down = upsample_reach(&u.attr, 0, h, u.H, u.OH), across = upsample_reach(&u.attr, 1, w, u.W, u.OW);
        float sum = 0.0f;
        for (int64_t oh = down.lo; oh < down.hi; oh++) {
            float share = share_of(upsample_sample(&u.attr, 0, oh, u.H, u.OH), h);
            for (int64_t ow = across.lo; share != 0.0f && ow < across.hi; ow++) {
                float part = share * share_of(upsample_sample(&u.attr, 1, ow, u.W, u.OW), w);
                if (part != 0.0f) sum += part * pixel_at(u, image, u.OH, u.OW, oh, ow, c);
            }
        }
        dtype_store(u.to.type, u.to.data, (size_t)i, sum);
    }
}

static int upsample_run(const KArgs *a, Err *e, void (*kernel)(Upsample), const View *small, const View *large) {
    const int64_t *in = small->shape.dim, *out = large->shape.dim;
    if (!small->channels_last || !large->channels_last || small->shape.rank != 4)
        return err_set(e, ERR_INTERNAL, "%s: operands must be channels-last images (N, C, H, W)",
                       op_info(a->kind)->name);
    assert(in[0] == out[0] && in[1] == out[1]);
    Upsample u = {a->attr->upsample, elements_of(&a->in[0]), elements_of(&a->out[0]), in[1], in[2], in[3], out[2],
                  out[3], a->out[0].count};
    return launch_op(a, e, kernel, blocks_for(a, u.count, UPSAMPLE_THREADS), UPSAMPLE_THREADS, u);
}

int k_cuda_upsample(const KArgs *a, Err *e) {
    return upsample_run(a, e, upsample_kernel, &a->upsample.x, &a->upsample.y);
}

int k_cuda_upsample_dx(const KArgs *a, Err *e) {
    return upsample_run(a, e, upsample_dx_kernel, &a->upsample_dx.dx, &a->upsample_dx.dy);
}
