/* PixelShuffle, PixelUnshuffle and ChannelShuffle: the exchanges that they are made of, followed element by element,
 * give PyTorch's order. */
#include "layers.h"

enum { MOST = 1024 };

/* Element numbers of the network's input as they lie, through the program's ops. */
static bool follow(const Program *p, int *at /* MOST */) {
    int before[MOST];
    const int64_t n = shape_elements(&p->bufs[p->inputs[0]].shape);
    for (int i = 0; i < n; i++) at[i] = i;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind == OP_view) continue;
        if (p->ops[i].kind != OP_nhwc_to_nchw) return false;
        const int64_t *d = p->bufs[p->ops[i].in[0]].shape.dim; /* (samples, cols, rows, 1) */
        memcpy(before, at, sizeof before);
        for (int64_t s = 0; s < d[0]; s++)
            for (int64_t row = 0; row < d[2]; row++)
                for (int64_t col = 0; col < d[1]; col++)
                    at[(s * d[1] + col) * d[2] + row] = before[(s * d[2] + row) * d[1] + col];
    }
    return true;
}

/* Where (n, c, h, w) lies in an image, channels last. */
static int64_t place(const Shape *s, int64_t n, int64_t c, int64_t h, int64_t w) {
    return ((n * s->dim[2] + h) * s->dim[3] + w) * s->dim[1] + c;
}

/* Which element of x PyTorch puts at (n, c, h, w) of y. */
typedef int64_t Origin(const Shape *x, int64_t r, int64_t n, int64_t c, int64_t h, int64_t w);

static int64_t shuffled(const Shape *x, int64_t r, int64_t n, int64_t c, int64_t h, int64_t w) {
    return place(x, n, (c * r + h % r) * r + w % r, h / r, w / r);
}

static int64_t unshuffled(const Shape *x, int64_t r, int64_t n, int64_t c, int64_t h, int64_t w) {
    return place(x, n, c / (r * r), h * r + c / r % r, w * r + c % r);
}

static int64_t channels(const Shape *x, int64_t r, int64_t n, int64_t c, int64_t h, int64_t w) {
    return place(x, n, c % r * (x->dim[1] / r) + c / r, h, w);
}

static void is_order(const char *net, Shape input, int64_t r, Origin *origin) {
    int at[MOST];
    int wrong = 0;
    Program *p = lowered(net, NULL, input, true);
    if (!p) return;
    const Shape y = p->bufs[p->output].shape;
    if (ok(shape_elements(&y) == shape_elements(&input) && shape_elements(&y) <= MOST && follow(p, at),
           "elements are moved, none is made"))
        for (int64_t n = 0; n < y.dim[0]; n++)
            for (int64_t c = 0; c < y.dim[1]; c++)
                for (int64_t h = 0; h < y.dim[2]; h++)
                    for (int64_t w = 0; w < y.dim[3]; w++)
                        wrong += at[place(&y, n, c, h, w)] != origin(&input, r, n, c, h, w);
    is_int(wrong, 0, "each comes to where PyTorch puts it");
    program_free(p);
}

static void test_orders(void) {
    is_order("PixelShuffle(2)", shape4(2, 12, 3, 5), 2, shuffled);
    is_order("PixelShuffle(3)", shape4(2, 9, 2, 4), 3, shuffled);
    is_order("PixelShuffle(1)", shape4(2, 3, 2, 4), 1, shuffled);
    is_order("PixelUnshuffle(2)", shape4(2, 3, 6, 4), 2, unshuffled);
    is_order("PixelUnshuffle(3)", shape4(1, 2, 3, 9), 3, unshuffled);
    is_order("ChannelShuffle(3)", shape4(2, 12, 3, 5), 3, channels);
    is_order("ChannelShuffle(12)", shape4(2, 12, 3, 5), 12, channels);
    is_order("ChannelShuffle(1)", shape4(2, 12, 3, 5), 1, channels);
}

/* One undoes the other. */
static void test_inverse(void) {
    int at[MOST], wrong = 0;
    const Shape input = shape4(2, 12, 4, 6);
    Program *p = lowered("Sequential{PixelShuffle(2) PixelUnshuffle(2)}", NULL, input, true);
    if (!p) return;
    if (ok(follow(p, at), "exchanges only"))
        for (int i = 0; i < shape_elements(&input); i++) wrong += at[i] != i;
    is_int(wrong, 0, "a shuffle is undone");
    program_free(p);
}

static void test_refused(void) {
    const Shape image = shape4(2, 12, 3, 5);
    is_network("PixelShuffle(2)", image, "(2, 3, 6, 10)", "");
    is_refused("PixelShuffle(0)", image, "upscale_factor must be between 1 and 32767, found 0");
    is_refused("PixelShuffle(5)", image, "expected channels divisible by 25, found an input of (2, 12, 3, 5)");
    is_refused("PixelUnshuffle(40000)", image, "downscale_factor must be between 1 and 32767, found 40000");
    is_refused("PixelUnshuffle(3)", image, "expected height and width divisible by 3, found an input of (2, 12, 3, 5)");
    is_refused("PixelUnshuffle(5)", image, "expected height and width divisible by 5, found an input of (2, 12, 3, 5)");
    is_refused("ChannelShuffle(5)", image, "expected channels divisible by 5, found an input of (2, 12, 3, 5)");
    is_refused("ChannelShuffle(3)", shape3(2, 12, 3), "expected an input of 4 dimensions (N, C, H, W)");
}

int main(void) {
    test_orders();
    test_inverse();
    test_refused();
    is_program("ChannelShuffle(2)", NULL, shape4(2, 4, 1, 3), true,
               "input f32 (2, 4, 1, 3) nhwc input 96\n  0 view .: from0 = x:input\n"
               "      from0 f32 (6, 2, 2, 1) nhwc activations in input\n  1 nhwc_to_nchw .: to0 = x:from0\n"
               "      to0 f32 (6, 4) activations 96\n  2 view .: y = x:to0\n"
               "      y f32 (2, 4, 1, 3) nhwc activations in to0\n");
    survives_memory("Sequential{PixelShuffle(2) PixelUnshuffle(2) ChannelShuffle(3)}", NULL, shape4(2, 12, 4, 6), 10);
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
