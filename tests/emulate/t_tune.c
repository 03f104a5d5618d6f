/* t_tune.c: which picks a tuning of linear layers, convolutions and attention keeps, and how later devices use them, on an emulated
 * GPU whose products and launches take as long as the test says. */
#include <stdlib.h>
#include <unistd.h>

#include "memory/device.h"
#include "picks.h"
#include "tap.h"

/* EACH: algorithm k of the emulated library needs k EACH bytes. PARTS: of a sum of I products, if nothing is tuned */
enum { LIMIT = 1 << 20, EACH = 256, N = 8, I = 512, PARTS = 2 };

static char folder[] = "/tmp/memtide-test-XXXXXX", path[64];
static Device *device;
static ActFn act; /* of the ops that are prepared */
static Err e;

/* products: the algorithms' milliseconds (cublasLt.c) */
static void open_device(const char *name, const char *products) {
    e = (Err){0, ""};
    setenv("EMULATE_PRODUCTS", products, 1);
    ok(device_open(name, &device, &e) == OK, "%s opens %s", name, e.text);
}

static void close_device(void) {
    device_close(device);
    device = NULL;
}

static View view2(int64_t rows, int64_t columns) {
    return (View){.shape = shape2(rows, columns), .dtype = DT_BF16, .count = rows * columns};
}

/* The workspace of y (N, o) = x (N, I) w^T, or of dx; -1: the op cannot be prepared */
static long long workspace(OpKind kind, int64_t o, size_t limit) {
    Attr attr;
    KArgs a = {.kind = kind, .attr = &attr};
    memset(&attr, 0, sizeof attr);
    attr.linear.fused.act = act;
    void *state;
    size_t bytes;
    View x = view2(N, I), y = view2(N, o);
    a.in[0] = kind == OP_linear ? x : y;
    a.in[1] = view2(o, I);
    a.out[0] = kind == OP_linear ? y : x;
    return device->table->prepare(device, &a, limit, &state, &bytes, &e) ? -1 : (long long)bytes;
}

static const char *file(void) { return picks_text(path); }

static void write_file(const char *text) {
    FILE *f = fopen(path, "w");
    if (f) fputs(text, f);
    ok(f && !fclose(f), "a file of picks");
}

static void no_text(void *arg, const char *text) { (void)arg, (void)text; }

static int tune(void) { return device->table->tune(device, no_text, NULL, &e); }

static void test_untuned(void) {
    open_device("cuda:0", "3000 0 2000");
    is_int(workspace(OP_linear, 40, LIMIT), PARTS * N * 40 * 4, "untuned, shapes say what a product may have");
    is_int(workspace(OP_linear, 10, LIMIT), PARTS * N * 10 * 4, "and own kernels");
    is_str(file(), "", "nothing is kept");
    close_device();
}

static void test_tuned(void) {
    open_device("cuda:0", "3000 0 2000");
    is_int(tune(), OK, "tuned");
    is_int(workspace(OP_linear, 40, LIMIT), EACH, "the second of three algorithms is the fastest");
    has_text(file(), "\tplain\t1\t256\t50", "and is kept, by its name, with its workspace and its time");
    has_text(file(), "emulated CUDA device\t1\t1048576\tlinear m=8 n=40 k=512 x=4096:bf16 w=20480:bf16 y=320:bf16",
             "for this op");
    is_int(workspace(OP_linear, 10, LIMIT), EACH, "one product is faster than own kernels in two steps");
    is_int(workspace(OP_linear_dx, 10, LIMIT), 0, "own kernels in one are as fast as a product, and come first");
    has_text(file(), "\tsmall_n\t0\t0\t", "which is kept, too");
    is_int(workspace(OP_linear, 40, 100), 0, "under a limit the fastest of those that fit");
    has_text(file(), "\t100\tlinear m=8 n=40", "is a pick of its own");
    close_device();
}

static void test_repeats(void) {
    char before[4096];
    snprintf(before, sizeof before, "%s", file());
    open_device("cuda:0", "0 3000 2000");
    is_int(workspace(OP_linear, 40, LIMIT), EACH, "a later process takes the pick, though another would be faster");
    is_int(workspace(OP_linear, 10, LIMIT), EACH, "for few outputs, too");
    is_int(workspace(OP_linear, 40, 300), EACH, "and under a limit that it fits into");
    is_int(tune(), OK, "tuned again");
    device->table->trim(device, true);
    is_int(workspace(OP_linear, 40, LIMIT), EACH, "what has a pick is not timed again");
    is_str(file(), before, "and the file is as it was");
    close_device();
}

/* Writes the file: a pick for y (N, o) of device `name` under `limit`. */
static void write_pick(const char *name, int o, size_t limit, const char *way, const char *rest) {
    char text[512];
    snprintf(text, sizeof text, "%s\t1\t%zu\tlinear m=8 n=%d k=512 x=4096:bf16 w=%d:bf16 y=%d:bf16 act=%d,0 "
             "tf32=0\t%s\t%s\n", name, limit, o, 512 * o, 8 * o, act, way, rest);
    write_file(text);
}

static void test_described(void) {
    write_pick("NVIDIA H200", 40, LIMIT, "plain", "2\t512\t1.5");
    open_device("cuda:h200", "0");
    is_int(workspace(OP_linear, 40, LIMIT), 512, "a device that is not here plans with the pick's bytes");
    is_int(workspace(OP_linear, 48, LIMIT), PARTS * N * 48 * 4, "and by shapes where there is none");
    close_device();
}

/* Well-formed lines that cannot be used */
static void test_useless(void) {
    static const struct { const char *what, *way, *rest; } lines[] = {
        {"an algorithm that the library does not have", "plain", "7\t512\t1.5"},
        {"one that wants more than it did", "plain", "2\t256\t1.5"},
        {"a way that is none", "act+sum", "1\t512\t1.5"},
        {"fused, where there is nothing to fuse", "fused", "1\t512\t1.5"},
        {"own kernels for many outputs", "small_n", "0\t0\t1.5"},
    };
    for (size_t k = 0; k < ARRAY_LEN(lines); k++) {
        write_pick("emulated CUDA device", 40, LIMIT, lines[k].way, lines[k].rest);
        open_device("cuda:0", "0 0 0");
        is_int(workspace(OP_linear, 40, LIMIT), PARTS * N * 40 * 4, lines[k].what);
        close_device();
    }
}

/* A pick's workspace is laid out under the pick's limit, not under the caller's. */
static void test_rooms(void) {
    write_pick("emulated CUDA device", 10, 100, "small_n", "0\t0\t1.5");
    open_device("cuda:0", "0 0 0");
    is_int(workspace(OP_linear, 10, LIMIT), 0, "own kernels that had no room for parts take none now");
    close_device();
    act = ACT_GELU; /* after a product in fp32, in the workspace */
    write_pick("emulated CUDA device", 40, LIMIT, "plain", "1\t100\t1.5");
    open_device("cuda:0", "0 0 0");
    is_int(workspace(OP_linear, 40, LIMIT), N * 40 * 4 + PARTS * N * 40 * 4, "one without room for what comes before");
    close_device();
    act = ACT_NONE;
}

static void test_failures(void) {
    open_device("cuda:0", "0 0 0");
    is_int(tune(), OK, "tuned");
    setenv("EMULATE_FAIL", "cudaMalloc:1:2", 1);
    is_int(workspace(OP_linear, 56, LIMIT), -1, "no memory for a race");
    is_int(e.code, ERR_OOM, "is told");
    setenv("EMULATE_FAIL", "cudaLaunchKernelEx:30:700", 1);
    is_int(workspace(OP_linear, 56, LIMIT), -1, "a device that is lost in a race");
    has_text(e.text, "cudaErrorIllegalAddress", "ends it");
    unsetenv("EMULATE_FAIL");
    close_device();
}

static View view4(int64_t a, int64_t b, int64_t c, int64_t d) {
    return (View){.shape = shape4(a, b, c, d), .dtype = DT_BF16, .channels_last = 1, .count = a * b * c * d};
}

/* The workspace of dx through ReLU, with db: untuned, a shipped engine and an own kernel after it; -1: an error */
static long long conv_workspace(size_t limit) {
    Attr attr;
    KArgs a = {.kind = OP_conv2d_dx, .attr = &attr};
    void *state;
    size_t bytes;
    memset(&attr, 0, sizeof attr);
    attr.conv = (ConvAttr){.stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .fused = {.act = ACT_RELU}};
    const View x = view4(2, 8, 4, 4);
    a.in[0] = view4(2, 16, 4, 4);
    a.in[1] = view4(16, 8, 1, 1);
    a.in[2] = a.out[0] = x;
    a.out[1] = (View){.shape = shape1(8), .dtype = DT_F32, .count = 8};
    return device->table->prepare(device, &a, limit, &state, &bytes, &e) ? -1 : (long long)bytes;
}

static void test_convolution(void) {
    enum { ENGINE = 1 << 10 }; /* the first engine's bytes (cudnn.c) */
    char before[4096], *line;
    unlink(path);
    open_device("cuda:0", "0");
    is_int(conv_workspace(LIMIT), ENGINE, "a convolution, untuned");
    is_str(file(), "", "nothing is kept");
    device->table->trim(device, true);
    is_int(tune(), OK, "tuned");
    const long long bytes = conv_workspace(LIMIT); /* of either engine, which are as fast */
    ok(bytes >= 0, "its fastest way");
    has_text(file(), "\tconv2d_dx x=2,8,4,4:bf16 w=16,8,1,1:bf16 y=2,16,4,4:bf16 s=2,8,4,4:bf16 db=f32",
             "is kept for this op");
    has_text(file(), "\tact+sum\t", "the one that launches nothing beside the graph");
    close_device();

    snprintf(before, sizeof before, "%s", file());
    open_device("cuda:0", "0");
    is_int(tune(), OK, "tuned again");
    is_int(conv_workspace(LIMIT), bytes, "a convolution that has a pick");
    is_str(file(), before, "is not timed again");
    close_device();

    line = strstr(before, "\tact+sum\t");
    if (!ok(line != NULL, "the pick's line")) return;
    strcpy(line, "\tact+sum\t1\t0\t1.5\n");
    write_file(before);
    open_device("cuda:0", "0");
    is_int(conv_workspace(LIMIT), 0, "a pick of the engine that needs nothing is taken");
    close_device();
    strcpy(line, "\tact+sum\t1\t8\t1.5\n");
    write_file(before);
    open_device("cuda:0", "0");
    is_int(conv_workspace(LIMIT), ENGINE, "one that needs other bytes than it says is not");
    close_device();
}

/* The workspace of attention's gradient, or of attention; p: of dropout */
static long long attention_workspace(OpKind kind, float p, size_t limit) {
    const View x = {.shape = shape3(2, 6, 48), .dtype = DT_BF16, .count = 2 * 6 * 48};
    const View y = {.shape = shape3(2, 6, 16), .dtype = DT_BF16, .count = 2 * 6 * 16};
    const View lse = {.shape = shape3(2, 2, 6), .dtype = DT_F32, .count = 24};
    const View calls = {.shape = shape1(1), .dtype = DT_I32, .count = p > 0};
    Attr attr;
    KArgs a = {.kind = kind, .attr = &attr};
    void *state;
    size_t bytes;
    memset(&attr, 0, sizeof attr);
    attr.attention = (AttentionAttr){.heads = 2, .kv_heads = 2, .causal = 1, .batch_first = 1, .scale = 0.25f, .p = p};
    if (kind == OP_attention) {
        a.attention.q = x, a.attention.calls = calls;
        a.attention.y = y, a.attention.lse = lse;
    } else {
        a.attention_dx.dy = a.attention_dx.y = y, a.attention_dx.lse = lse, a.attention_dx.calls = calls;
        a.attention_dx.q = a.attention_dx.dq = x;
    }
    return device->table->prepare(device, &a, limit, &state, &bytes, &e) ? -1 : (long long)bytes;
}

/* A graph is one launch; own kernels are one, or two of the gradient; dropout's mask is one more. Engine 0 has 1024 bytes of
 * workspace of its own (cudnn.c), engine 1 none. */
static void test_attention(void) {
    enum { ENGINE = 1 << 10, OWN = 24 * 4, INNER = 256, MASK = 512 };
    setenv("EMULATE_LAUNCH", "50000", 1); /* beside which own kernels' real time, a hundredth of a second, does not matter */
    unlink(path);
    open_device("cuda:0", "0");
    is_int(attention_workspace(OP_attention_dx, 0, LIMIT), OWN, "attention's gradient, untuned: by own kernels");
    is_str(file(), "", "nothing is kept");
    device->table->trim(device, true);
    is_int(tune(), OK, "tuned");
    is_int(attention_workspace(OP_attention, 0, LIMIT), 0, "attention: an engine is not faster");
    has_text(file(), "\tattention q=2,6,48:bf16 y=2,6,16:bf16 lse=1 heads=2 kv_heads=2 causal=1 batch_first=1 scale=0.25 p=0 "
             "window=0 cap=0 positions=0\town\t0\t0\t", "so own kernels are kept");
    const long long bytes = attention_workspace(OP_attention_dx, 0, LIMIT);
    ok(bytes == INNER || bytes == INNER + ENGINE, "its gradient: either engine, which takes half as long: %lld", bytes);
    has_text(file(), "\tcudnn\t", "is kept");
    is_int(attention_workspace(OP_attention_dx, 0.5f, LIMIT), OWN, "with a mask to be made it is no longer faster");
    is_int(attention_workspace(OP_attention_dx, 0, INNER), INNER, "the engine that fits into the limit");
    is_int(attention_workspace(OP_attention_dx, 0, OWN), OWN, "and none where none does");
    close_device();

    char before[4096], *line;
    snprintf(before, sizeof before, "%s", file());
    line = strstr(before, "p=0 window=0 cap=0 positions=0\tcudnn\t");
    if (!ok(line != NULL, "the pick's line")) return;
    line = strstr(line, "\tcudnn\t");
    snprintf(line, sizeof before - (size_t)(line - before), "\tcudnn\t0\t%d\t1.5\n", INNER + ENGINE);
    write_file(before);
    open_device("cuda:0", "0");
    is_int(attention_workspace(OP_attention_dx, 0, LIMIT), INNER + ENGINE, "a pick of the engine is taken");
    is_int(attention_workspace(OP_attention_dx, 0.5f, LIMIT), OWN, "not for another op");
    close_device();
    snprintf(line, sizeof before - (size_t)(line - before), "\tcudnn\t0\t%d\t1.5\n", INNER + ENGINE + MASK);
    write_file(before);
    open_device("cuda:0", "0");
    is_int(attention_workspace(OP_attention_dx, 0, LIMIT), OWN, "one that needs other bytes than it says is not");
    close_device();
}

int main(void) {
    char plugin[1024], command[64];
    const char *build = getenv("BUILD");
    snprintf(plugin, sizeof plugin, "%s/emulate/memtide_cuda.so", build ? build : "build");
    setenv("MEMTIDE_CUDA", plugin, 1);
    setenv("EMULATE_LAUNCH", "500", 1); /* milliseconds, beside which the real time does not matter */
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/picks.txt", folder);
    setenv("MEMTIDE_PICKS", path, 1);
    test_untuned();
    test_tuned();
    test_repeats();
    test_described();
    test_useless();
    test_rooms();
    test_convolution();
    test_attention();
    test_failures(); /* the last: it loses the GPU */
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) puts("# the test's folder is still there");
    return tap_done();
}
