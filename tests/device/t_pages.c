/* t_pages.c: random convolutions and linear layers of the CPU device. Every operand and the workspace ends right
 * before a page that must not be written, or begins right after one. A kernel that writes such a page ends the test,
 * which then says where.
 *
 *   PAGES=20000 SEED=1 t_pages    that many of them, from that seed on */
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/device.h"
#include "math/rng.h"
#include "tap.h"

enum { PAGE = 4096, FENCE = 32 * PAGE, BLOCKS = OP_IN + OP_OUT + 1, MOST = 300000 };

typedef struct Block { char *map; size_t mapped, bytes; } Block; /* FENCE bytes, the block, FENCE bytes */

static Device *device;
static Block blocks[BLOCKS];
static int count;
static char now[256]; /* the op that runs */
static uint32_t drawn;
static uint64_t seed;

static int64_t draw(int64_t n) { return (int64_t)(philox(seed, RNG_DATA, 0, 0, drawn++).x[0] % (uint64_t)n); }

#define ONE_OF(...) ((const int64_t[]){__VA_ARGS__})[draw(sizeof (int64_t[]){__VA_ARGS__} / sizeof(int64_t))]

static void fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    const char *at = info->si_addr;
    printf("not ok - %s: touches %p", now, info->si_addr);
    for (int i = 0; i < count; i++)
        if (at >= blocks[i].map && at < blocks[i].map + blocks[i].mapped)
            printf(", block %d of %zu bytes", i, blocks[i].bytes);
    puts("");
    fflush(stdout);
    _exit(1);
}

/* A block with a fence right after it, or right before it; aligned as the device's memory is */
static void *fenced(size_t bytes, bool at_end) {
    size_t room = align_up(bytes, device->table->alignment), body = align_up(room, PAGE);
    Block b = {NULL, body + 2 * FENCE, bytes};
    b.map = mmap(NULL, b.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.map == MAP_FAILED || mprotect(b.map, FENCE, PROT_READ) || mprotect(b.map + FENCE + body, FENCE, PROT_READ)) {
        puts("Bail out! no memory");
        exit(1);
    }
    blocks[count++] = b;
    return b.map + FENCE + (at_end ? body - room : 0);
}

static View view(Shape shape, DType t, bool channels_last) {
    return (View){.shape = shape, .dtype = t, .channels_last = channels_last, .count = shape_elements(&shape)};
}

/* The op's three operands and a bias by pass: forward, gradient of the input, of the weights. */
static void set_views(KArgs *a, int pass, View x, View w, View b, View y) {
    View *const at[3][4] = {{&a->in[0], &a->in[1], &a->in[2], &a->out[0]},
                            {&a->out[0], &a->in[1], NULL, &a->in[0]},
                            {&a->in[0], &a->out[0], &a->out[1], &a->in[1]}};
    const View views[] = {x, w, b, y};
    for (int k = 0; k < 4; k++)
        if (at[pass][k] && (k != 2 || draw(2))) *at[pass][k] = views[k];
}

/* Types as precisions have them: all alike, or with parameters and their gradients in f32 */
static DType wide_or(DType t) { return draw(2) ? DT_F32 : t; }

static bool random_conv(KArgs *a, Attr *attr, int pass, DType t) {
    static const OpKind kinds[] = {OP_conv2d, OP_conv2d_dx, OP_conv2d_dw};
    int64_t n = ONE_OF(1, 1, 2, 3, 5), groups = ONE_OF(1, 1, 1, 1, 2, 0), square = draw(4);
    int64_t c = ONE_OF(1, 2, 3, 4, 5, 7, 8, 11, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 100);
    int64_t o = ONE_OF(1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 33, 36, 48, 64, 96);
    int64_t kh = ONE_OF(1, 1, 1, 2, 3, 5), kw = square ? kh : ONE_OF(1, 2, 3, 4, 7);
    int64_t h = ONE_OF(1, 2, 3, 4, 5, 7, 8, 9, 12, 14, 15, 16, 21, 28);
    int64_t wide = ONE_OF(1, 3, 4, 5, 7, 9, 13, 14, 16, 17, 28, 31);
    ConvAttr *v = &attr->conv;
    for (int k = 0; k < 2; k++) v->stride[k] = (int32_t)ONE_OF(1, 1, 2, 2, 3);
    for (int k = 0; k < 2; k++) v->dilation[k] = (int32_t)ONE_OF(1, 1, 1, 2);
    for (int k = 0; k < 4; k++) v->pad[k] = (int32_t)ONE_OF(0, 0, 0, 1, 1, 2);
    if (draw(2)) v->pad[2] = v->pad[0], v->pad[3] = v->pad[1];
    if (groups) c *= groups, o *= groups;
    else groups = c, o = c * ONE_OF(1, 1, 2);
    v->groups = (int32_t)groups;
    int64_t high = h + v->pad[0] + v->pad[2] - (kh - 1) * v->dilation[0] - 1;
    int64_t across = wide + v->pad[1] + v->pad[3] - (kw - 1) * v->dilation[1] - 1;
    if (high < 0 || across < 0 || n * c * h * wide > MOST) return false;
    Shape y = shape4(n, o, high / v->stride[0] + 1, across / v->stride[1] + 1);
    if (shape_elements(&y) > MOST || shape_elements(&y) * (c / groups) * kh * kw > 50 * MOST) return false;
    a->kind = kinds[pass];
    DType w = pass == 2 ? wide_or(t) : t;
    set_views(a, pass, view(shape4(n, c, h, wide), t, true), view(shape4(o, c / groups, kh, kw), w, true),
              view(shape1(o), wide_or(t), false), view(y, pass == 0 ? wide_or(t) : t, true));
    snprintf(now, sizeof now, "%s seed %llu: %lld of (%lld, %lld, %lld), %lld outputs, kernel %lldx%lld, %lld groups, "
             "stride %dx%d, dilation %dx%d, padding %d %d %d %d, %s", op_info(a->kind)->name, (unsigned long long)seed,
             (long long)n, (long long)c, (long long)h, (long long)wide, (long long)o, (long long)kh, (long long)kw,
             (long long)groups, v->stride[0], v->stride[1], v->dilation[0], v->dilation[1], v->pad[0], v->pad[1],
             v->pad[2], v->pad[3], dtype_name(t));
    return true;
}

static bool random_linear(KArgs *a, Attr *attr, int pass, DType t) {
    static const OpKind kinds[] = {OP_linear, OP_linear_dx, OP_linear_dw};
    int64_t n = ONE_OF(1, 2, 3, 7, 16, 33, 67), i = ONE_OF(1, 7, 20, 33, 64, 65, 300, 1000);
    int64_t o = ONE_OF(1, 3, 10, 13, 16, 17, 29, 32, 40, 64, 100);
    (void)attr;
    a->kind = kinds[pass];
    DType w = pass == 2 ? wide_or(t) : t;
    set_views(a, pass, view(shape2(n, i), t, false), view(shape2(o, i), w, false), view(shape1(o), wide_or(t), false),
              view(shape2(n, o), pass == 0 ? wide_or(t) : t, false));
    snprintf(now, sizeof now, "%s seed %llu: %lld rows, %lld to %lld, %s", op_info(a->kind)->name,
             (unsigned long long)seed, (long long)n, (long long)i, (long long)o, dtype_name(t));
    return true;
}

/* 0, or an ErrCode */
static int run_fenced(KArgs *a, Err *e) {
    size_t limit = (size_t)ONE_OF(0, 1 << 16, 4 << 20);
    bool at_end = draw(4);
    a->device = device;
    int code = device->table->prepare(device, a, limit, &a->state, &a->workspace_bytes, e);
    for (int k = 0; k < OP_IN + OP_OUT && !code; k++) {
        View *v = k < OP_IN ? &a->in[k] : &a->out[k - OP_IN];
        if (v->count) v->data = fenced((size_t)v->count * dtype_size(v->dtype), at_end);
    }
    if (!code) a->workspace = fenced(a->workspace_bytes, at_end);
    if (!code) code = device->table->run(device, a, e);
    for (; count > 0; count--) munmap(blocks[count - 1].map, blocks[count - 1].mapped);
    return code;
}

int main(void) {
    static bool (*const ops[])(KArgs *, Attr *, int, DType) = {random_conv, random_conv, random_conv, random_linear};
    const char *most = getenv("PAGES"), *first = getenv("SEED");
    uint64_t begin = first ? strtoull(first, NULL, 10) : 1, end = begin + (most ? strtoull(most, NULL, 10) : 2500);
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    int ran = 0;
    Err e = {0, ""};
    omp_set_num_threads(2);
    if (!ok(!device_open("cpu", &device, &e) && !sigaction(SIGSEGV, &action, NULL), "the CPU opens %s", e.text))
        return tap_done();
    for (seed = begin; seed < end; seed++) {
        Attr attr = {0};
        KArgs a = {.attr = &attr};
        drawn = 0;
        int pass = (int)draw(3);
        DType t = (DType)ONE_OF(DT_F32, DT_BF16, DT_BF16, DT_F16);
        if (!ops[draw(ARRAY_LEN(ops))](&a, &attr, pass, t)) continue;
        if (run_fenced(&a, &e)) ok(0, "%s: %s", now, e.text);
        ran++;
        if (seed % 500 == 0) device->table->trim(device, true);
    }
    ok(ran > 0, "%d ops wrote nothing outside of their operands and workspace", ran);
    device_close(device);
    return tap_done();
}
