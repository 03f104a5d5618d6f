/* Networks: shapes as PyTorch's, parameters, names, orders, and every mistake with its text. */
#include <inttypes.h>

#include "layers.h"

#define ARTICLE "Sequential{Conv2d(3, 64, 3) ReLU Conv2d(64, 128, 3) ReLU Flatten Linear(100352, 10)}"
#define C(i, o) "Conv2d(" #i ", " #o ", 3, padding=1) ReLU(inplace=true) "
#define POOL "MaxPool2d(2) "
#define VGG16                                                                                                          \
    "Sequential{Sequential{" C(3, 64) C(64, 64) POOL C(64, 128) C(128, 128) POOL C(128, 256) C(256, 256) C(256, 256)   \
        POOL C(256, 512) C(512, 512) C(512, 512) POOL C(512, 512) C(512, 512) C(512, 512) POOL                         \
        "} AdaptiveAvgPool2d(7) Flatten "                                                                              \
        "Sequential{Linear(25088, 4096) ReLU Dropout Linear(4096, 4096) ReLU Dropout Linear(4096, 1000)}}"

static void visit_path(void *arg, const Network *n, const Layer *l) {
    (void)n;
    collect(arg, l->path);
}

static void test_article(void) {
    Err e = {0};
    Network *n = net_new(ARTICLE, "CrossEntropyLoss", shape4(64, 3, 32, 32), &e);
    if (!ok(n != NULL, "the article's network: %s", e.text)) return;
    Lines dump = {"", 0}, paths = {"", 0};
    is_int(network_parameters(n), 1079178, "1,079,178 parameters");
    is_int(shape_elements(&n->params[0].shape) + shape_elements(&n->params[1].shape), 1792,
           "1,792 in the first convolution");
    is_int(shape_elements(&n->params[2].shape) + shape_elements(&n->params[3].shape), 73856, "73,856 in the second");
    is_int(shape_elements(&n->params[4].shape) + shape_elements(&n->params[5].shape), 1003530,
           "1,003,530 in the last layer");
    is_str(n->params[4].name, "5.weight", "PyTorch's name");
    is_near(n->params[0].bound, 0.19245008972987526, 1e-15, 0, "bound of a convolution: 1/sqrt(27)");
    is_near(n->params[4].bound, n->params[5].bound, 0, 0, "the bias has its weight's bound");
    ok(n->params[0].layout == LAYOUT_NHWC && n->params[4].layout == LAYOUT_ROWS, "layouts of weights");
    ok(n->params[4].order[0] == 128 && n->params[4].order[1] == 28 && n->params[4].order[2] == 28,
       "Linear absorbs the image's order");
    network_dump(n, collect, &dump);
    is_str(dump.text,
           ". Sequential (64, 10)\n0 Conv2d in_channels=3 out_channels=64 kernel_size=3x3 (64, 64, 30, 30) 1792\n"
           "1 ReLU (64, 64, 30, 30)\n2 Conv2d in_channels=64 out_channels=128 kernel_size=3x3 (64, 128, 28, 28) 73856\n"
           "3 ReLU (64, 128, 28, 28)\n4 Flatten (64, 100352)\n"
           "5 Linear in_features=100352 out_features=10 (64, 10) 1003530\n"
           "loss CrossEntropyLoss ()\n1079178 parameters\n",
           "the network as text");
    network_visit(n, visit_path, &paths);
    is_str(paths.text, "0\n1\n2\n3\n4\n5\n", "visited in execution order");
    network_free(n);
}

static void test_names(void) {
    Err e = {0};
    Network *n = net_new("Sequential{Residual{Sequential{Checkpoint{Conv2d(2, 2, 1)}} Conv2d(2, 2, 1, bias=false)}}",
                         NULL, shape4(1, 2, 4, 4), &e);
    if (!ok(n && n->n_params == 3, "residual and checkpoint: %s", e.text)) return;
    is_str(n->params[0].name, "0.body.0.weight", "a checkpointed layer keeps its name");
    is_str(n->params[2].name, "0.shortcut.weight", "the shortcut's name");
    network_free(n);
    n = net_new("Linear(4, 2)", NULL, shape2(3, 4), &e);
    if (!ok(n && n->n_params == 2, "one layer alone: %s", e.text)) return;
    is_str(n->params[0].name, "weight", "the outermost layer's parameter");
    network_free(n);
    n = net_new(VGG16, "CrossEntropyLoss", shape4(1, 3, 224, 224), &e);
    is_int(n ? network_parameters(n) : 0, 138357544, "VGG16 at 224 has 138,357,544 parameters");
    network_free(n);
}

/* Sizes follow PyTorch's formulas; those with ceil_mode, 'same' and dilation were also compared with torch 1.13. */
static const struct { const char *net; Shape in, out; } shapes[] = {
    {"Conv2d(2, 4, 3)", {4, {1, 2, 7, 9}}, {4, {1, 4, 5, 7}}},
    {"Conv2d(2, 4, 3, 2, 1)", {4, {1, 2, 8, 7}}, {4, {1, 4, 4, 4}}},
    {"Conv2d(2, 4, 3x1, 2x3, 1x0, 2x1)", {4, {1, 2, 9, 10}}, {4, {1, 4, 4, 4}}},
    {"Conv2d(2, 4, 4, padding=same)", {4, {1, 2, 7, 9}}, {4, {1, 4, 7, 9}}},
    {"Conv2d(2, 4, 2x3, padding=same, dilation=3)", {4, {1, 2, 7, 9}}, {4, {1, 4, 7, 9}}},
    {"Conv2d(2, 4, 3, padding=valid)", {4, {1, 2, 3, 3}}, {4, {1, 4, 1, 1}}},
    {"Conv1d(2, 4, 3, 2, 1)", {3, {1, 2, 8, 1}}, {3, {1, 4, 4, 1}}},
    {"Conv1d(2, 4, 4, padding=same, dilation=3)", {3, {1, 2, 7, 1}}, {3, {1, 4, 7, 1}}},
    {"ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2)", {3, {2, 4, 5, 1}}, {3, {2, 6, 10, 1}}},
    {"MaxPool1d(3, 2, 1, ceil_mode=true)", {3, {2, 4, 6, 1}}, {3, {2, 4, 4, 1}}},
    {"AvgPool1d(3)", {3, {2, 4, 7, 1}}, {3, {2, 4, 2, 1}}},
    {"AdaptiveAvgPool1d(5)", {3, {2, 4, 3, 1}}, {3, {2, 4, 5, 1}}},
    {"Conv2d(4, 6, 1, groups=2)", {4, {2, 4, 1, 1}}, {4, {2, 6, 1, 1}}},
    {"MaxPool2d(2)", {4, {1, 3, 7, 8}}, {4, {1, 3, 3, 4}}},
    {"MaxPool2d(3, 2, 1)", {4, {1, 3, 112, 7}}, {4, {1, 3, 56, 4}}},
    {"MaxPool2d(2, ceil_mode=true)", {4, {1, 3, 7, 8}}, {4, {1, 3, 4, 4}}},
    {"MaxPool2d(2, 3, 1, ceil_mode=true)", {4, {1, 3, 5, 6}}, {4, {1, 3, 2, 3}}}, /* no third: in padding */
    {"MaxPool2d(3, 2, ceil_mode=true)", {4, {1, 3, 2, 6}}, {4, {1, 3, 1, 3}}},
    {"MaxPool2d(2, 1, dilation=3)", {4, {1, 3, 5, 4}}, {4, {1, 3, 2, 1}}},
    {"AvgPool2d(3, 2, 1, ceil_mode=true)", {4, {1, 3, 8, 6}}, {4, {1, 3, 5, 4}}},
    {"AvgPool2d(3x2, divisor_override=5)", {4, {1, 3, 9, 9}}, {4, {1, 3, 3, 4}}},
    {"AdaptiveAvgPool2d(3x7)", {4, {1, 3, 9, 5}}, {4, {1, 3, 3, 7}}},
    {"Flatten", {4, {5, 2, 3, 4}}, {2, {5, 24}}},
    {"Flatten(-3, 3)", {4, {5, 2, 3, 4}}, {2, {5, 24}}},
    {"Flatten", {2, {5, 2}}, {2, {5, 2}}},
    {"AdaptiveMaxPool2d(2x1)", {4, {1, 3, 8, 5}}, {4, {1, 3, 2, 1}}},
    {"AdaptiveMaxPool1d(5)", {3, {1, 3, 5, 1}}, {3, {1, 3, 5, 1}}},
    {"ZeroPad2d(1:2:3:0)", {4, {1, 3, 8, 5}}, {4, {1, 3, 11, 8}}},
    {"ZeroPad2d(2:2:2:2)", {4, {1, 3, 8, 5}}, {4, {1, 3, 12, 9}}},
    {"ZeroPad1d(0:4)", {3, {1, 3, 5, 1}}, {3, {1, 3, 9, 1}}},
    {"PixelShuffle(3)", {4, {1, 18, 8, 5}}, {4, {1, 2, 24, 15}}},
    {"PixelUnshuffle(2)", {4, {1, 3, 8, 6}}, {4, {1, 12, 4, 3}}},
    {"ChannelShuffle(3)", {4, {1, 6, 8, 5}}, {4, {1, 6, 8, 5}}},
    {"Flatten(2)", {4, {5, 2, 3, 4}}, {3, {5, 2, 12}}},
    {"Flatten(1, 2)", {4, {5, 2, 3, 4}}, {3, {5, 6, 4}}},
    {"Flatten(0, 1)", {4, {5, 2, 3, 4}}, {3, {10, 3, 4}}},
    {"Unflatten(1, 2:3:-1)", {2, {5, 24}}, {4, {5, 2, 3, 4}}},
    {"Unflatten(-1, 3:1)", {3, {5, 2, 3}}, {4, {5, 2, 3, 1}}},
    {"Reshape(0:-1:6)", {4, {5, 2, 3, 4}}, {3, {5, 4, 6}}},
    {"Reshape(-1:3)", {3, {5, 2, 3}}, {2, {10, 3}}},
    {"Reshape(0:0:1:0)", {4, {5, 2, 1, 4}}, {4, {5, 2, 1, 4}}},
    {"Squeeze(-1)", {4, {5, 2, 3, 1}}, {3, {5, 2, 3}}},
    {"Squeeze(1)", {3, {5, 2, 3}}, {3, {5, 2, 3}}},
    {"Unsqueeze(-1)", {3, {5, 2, 3}}, {4, {5, 2, 3, 1}}},
    {"Unsqueeze(1)", {2, {5, 2}}, {3, {5, 1, 2}}},
    {"Transpose(1, -1)", {3, {5, 2, 3}}, {3, {5, 3, 2}}},
    {"Transpose(2, 2)", {3, {5, 2, 3}}, {3, {5, 2, 3}}},
    {"Sequential{Flatten Linear(12, 3)}", {3, {5, 3, 4}}, {2, {5, 3}}},
    {"Sequential", {4, {5, 2, 3, 4}}, {4, {5, 2, 3, 4}}},
    {"Identity", {2, {5, 2}}, {2, {5, 2}}},
    {"Concat{Identity Conv2d(2, 5, 1)}", {4, {5, 2, 3, 4}}, {4, {5, 7, 3, 4}}},
    {"Concat(-1){Identity Identity Identity}", {3, {5, 2, 3}}, {3, {5, 2, 9}}},
    {"Concat(2)", {3, {5, 2, 3}}, {3, {5, 2, 3}}},
    {"Add{Flatten Flatten}", {4, {5, 2, 3, 4}}, {2, {5, 24}}},
    {"Mul{Tanh Identity}", {2, {5, 2}}, {2, {5, 2}}},
    {"Mul{AdaptiveAvgPool2d(1) Identity}", {4, {5, 2, 3, 4}}, {4, {5, 2, 3, 4}}},
    {"Add{Identity Conv2d(2, 1, 1)}", {4, {5, 2, 3, 4}}, {4, {5, 2, 3, 4}}},
    {"Narrow(-2, -2, 2)", {4, {5, 2, 3, 4}}, {4, {5, 2, 2, 4}}},
    {"Select(1, -1)", {3, {5, 2, 3}}, {2, {5, 3}}},
    {"Roll(-7, -1)", {4, {5, 2, 3, 4}}, {4, {5, 2, 3, 4}}},
    {"Select(-1, 0)", {4, {5, 2, 3, 4}}, {3, {5, 2, 3}}},
    {"Residual{Conv2d(2, 4, 3, 2, 1) Conv2d(2, 4, 1, 2)}", {4, {1, 2, 8, 8}}, {4, {1, 4, 4, 4}}},
    {"Residual{Checkpoint{GELU(tanh)}}", {2, {1, 2}}, {2, {1, 2}}},
};

static void test_shapes(void) {
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        Err e = {0};
        char found[SHAPE_TEXT] = "", expected[SHAPE_TEXT];
        Network *n = net_new(shapes[i].net, NULL, shapes[i].in, &e);
        ok(n && shape_equal(&n->output, &shapes[i].out), "%s gives %s (%s)", shapes[i].net,
           shape_text(&shapes[i].out, expected), n ? shape_text(&n->output, found) : e.text);
        network_free(n);
    }
}

#define IMAGE {4, {2, 3, 8, 8}}
#define TWO "Graph{Linear(4, 5) Linear(4, 6)<-1>}^0,1>"
static const struct { const char *net, *loss; Shape in; const char *message; } mistakes[] = {
    {"Sequential{Conv3d(1)}", NULL, IMAGE,
     "unknown layer 'Conv3d'; known: Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, Linear"},
    {"ReLU{ReLU}", NULL, IMAGE, "layer ReLU (net:1): takes no layers"},
    {"Sequential{MSELoss}", NULL, IMAGE, "layer Sequential (net:1): cannot hold the loss MSELoss"},
    {"MSELoss", NULL, IMAGE, "MSELoss (net:1): is a loss, expected a layer as the model"},
    {"ReLU", "ReLU", IMAGE, "ReLU (net:91): is no loss, expected one as the loss"},
    {"ReLU", NULL, {1, {3}}, "the input of a network needs a batch and at least one more dimension, found (3)"},
    {"ReLU", NULL, {2, {3, 0}}, "the input of a network: shape (3, 0): every dimension must be at least 1"},
    {"Sequential{ReLU Conv2d(3, 4)}", NULL, IMAGE, "layer 1 Conv2d (net:3): option \"kernel_size\" is required"},
    {"Conv2d(3, 4, 3, groups=2)", NULL, IMAGE,
     "in_channels and out_channels must be divisible by groups, found 3, 4 and 2"},
    {"Conv2d(3, 4, 3, 2, same)", NULL, IMAGE, "padding = 'same' needs stride 1, found 2"},
    {"Conv1d(3, 4, 3, 2, same)", NULL, {3, {2, 3, 8, 1}}, "padding = 'same' needs stride 1, found 2"},
    {"Conv1d(3, 4, 3)", NULL, IMAGE, "expected an input of 3 dimensions (N, C, L), found (2, 3, 8, 8)"},
    {"Conv1d(8, 4, 3)", NULL, {3, {2, 3, 8, 1}}, "expected 8 input channels, found 3: input (2, 3, 8)"},
    {"Conv1d(3, 4, 5, dilation=2)", NULL, {3, {2, 3, 8, 1}},
     "the kernel (with dilation 1x9) is larger than the padded input 1x8"},
    {"ConvTranspose1d(3, 4, 5, 2, 0, 2)", NULL, {3, {2, 3, 8, 1}}, "output_padding must be smaller than stride 2"},
    {"MaxPool1d(9)", NULL, {3, {2, 3, 8, 1}}, "the output is too small"},
    {"AdaptiveAvgPool1d(2)", NULL, IMAGE, "expected an input of 3 dimensions (N, C, L), found (2, 3, 8, 8)"},
    {"InstanceNorm2d(3, track_running_stats=true)", NULL, IMAGE, "track_running_stats = true is not known here"},
    {"InstanceNorm1d(3)", NULL, {3, {2, 3, 1, 1}}, "expected more than 1 value per channel of a sample"},
    {"InstanceNorm1d(3)", NULL, IMAGE, "expected an input of 3 dimensions (N, C, L), found (2, 3, 8, 8)"},
    {"RMSNorm(5)", NULL, {2, {2, 3}}, "expected 5 features, found 3"},
    {"RMSNorm(3, -1)", NULL, {2, {2, 3}}, "eps must not be negative, found -1"},
    {"Hardtanh(1, 1)", NULL, IMAGE, "max_val must be above min_val 1, found 1"},
    {"Conv2d(3, 4, 0)", NULL, IMAGE, "kernel_size must be between 1 and 32767, found 0"},
    {"Conv2d(3, 4, 3, padding=0x-1)", NULL, IMAGE, "padding must be between 0 and 32767, found -1"},
    {"Conv2d(1, 4, 3)", NULL, IMAGE, "layer Conv2d (net:1): expected 1 input channels, found 3: input (2, 3, 8, 8)"},
    {"Conv2d(3, 4, 5, dilation=3)", NULL, IMAGE,
     "the kernel (with dilation 13x13) is larger than the padded input 8x8"},
    {"Conv2d(3, 4, 3)", NULL, {2, {2, 3}}, "expected an input of 4 dimensions (N, C, H, W), found (2, 3)"},
    {"Conv2d(3, 2000000000, 32767)", NULL, {4, {1, 3, 32767, 32767}},
     "shape (2000000000, 3, 32767, 32767) is too large"},
    {"Conv2d(1, 2000000000, 1)", NULL, {4, {2000000000, 1, 1, 1}}, "shape (2000000000, 2000000000, 1, 1) is too large"},
    {"Sequential{Flatten Linear(100, 10)}", NULL, IMAGE,
     "layer 1 Linear (net:3): expected 100 input features, found 192: input (2, 3, 8, 8) flattened"},
    {"Linear(100, 10)", NULL, {2, {2, 3}}, "expected 100 input features, found 3: input (2, 3)"},
    {"Concat(4){Identity Identity}", NULL, IMAGE, "dim must be between 1 and 3 (0 is the batch), found 4"},
    {"Concat(0){Identity Identity}", NULL, IMAGE, "dim must be between 1 and 3 (0 is the batch), found 0"},
    {"Concat(1){Identity MaxPool2d(2)}", NULL, IMAGE,
     "expected values of one shape apart from the sizes that are put together, found (2, 3, 8, 8) and (2, 3, 4, 4)"},
    {"Add{Identity Flatten}", NULL, IMAGE, "expected values of one shape, found (2, 3, 8, 8) and (2, 192)"},
    {"Add{Identity Tanh Tanh Tanh Tanh Tanh Tanh Tanh Tanh}", NULL, IMAGE, "takes at most 8 branches, found 9"},
    {"Narrow(1, 2, 2)", NULL, IMAGE, "start 2 and length 2 do not lie in dimension 1, whose size is 3"},
    {"Narrow(1, -4, 1)", NULL, IMAGE, "start -4 and length 1 do not lie in dimension 1, whose size is 3"},
    {"Narrow(1, 0, 0)", NULL, IMAGE, "start 0 and length 0 do not lie in dimension 1"},
    {"Roll(1, 0)", NULL, IMAGE, "dim must be between 1 and 3 (0 is the batch), found 0"},
    {"Select(1, 3)", NULL, IMAGE, "index 3 and length 1 do not lie in dimension 1"},
    {"Select(1, 0)", NULL, {2, {2, 3}}, "expected an input of at least 3 dimensions, found (2, 3)"},
    {"Sequential{Conv2d(3, 4, 3, padding=1) Again}", NULL, IMAGE, "expected 3 input channels, found 4"},
    {"Linear(192, 10)", NULL, IMAGE,
     "Linear applies to the last dimension, found an input of (2, 3, 8, 8): use nn.Flatten before it"},
    {"Linear(3, 0)", NULL, {2, {2, 3}}, "out_features must be between 1"},
    {"MaxPool2d(2, padding=2)", NULL, IMAGE, "padding must be at most half of kernel_size, found 2 and 2"},
    {"MaxPool2d(16)", NULL, IMAGE, "kernel_size 16x16: at most 255 places in a window"},
    {"MaxPool2d(9)", NULL, IMAGE, "input (2, 3, 8, 8) gives an output of 0x0: the output is too small"},
    {"MaxPool2d(2, 1, 1, 9)", NULL, IMAGE,
     "dilation 9 on an input of 8 with padding: a window would hold padding only"},
    {"AvgPool2d(2, 0)", NULL, IMAGE, "stride must be between 1 and 32767, found 0"},
    {"AdaptiveAvgPool2d(0)", NULL, IMAGE, "output_size must be between 1 and 32767, found 0"},
    {"Dropout(1.5)", NULL, IMAGE, "the probability p must be between 0 and 1, found 1.5"},
    {"StochasticDepth(-0.5, row)", NULL, IMAGE, "the probability p must be between 0 and 1, found -0.5"},
    {"AdaptiveMaxPool2d(3)", NULL, IMAGE, "expected windows of one size and at most 255 places, found an input of"},
    {"AdaptiveMaxPool1d(1)", NULL, {3, {2, 3, 256}}, "(2, 3, 256): nn.MaxPool1d may go before it"},
    {"ZeroPad2d(1:2)", NULL, IMAGE, "padding: expected a number, or 4 of them, found 2"},
    {"ZeroPad2d(0:0:-1:0)", NULL, IMAGE, "padding: expected whole numbers from 0 to 32767, found -1"},
    {"ZeroPad1d(1:1)", NULL, IMAGE, "expected an input of 3 dimensions (N, C, L)"},
    {"PixelShuffle(2)", NULL, IMAGE, "expected channels divisible by 4, found an input of (2, 3, 8, 8)"},
    {"PixelUnshuffle(3)", NULL, IMAGE, "expected height and width divisible by 3, found an input of (2, 3, 8, 8)"},
    {"ChannelShuffle(2)", NULL, IMAGE, "expected channels divisible by 2, found an input of (2, 3, 8, 8)"},
    {"PixelShuffle(2)", NULL, {3, {2, 3, 4}}, "expected an input of 4 dimensions (N, C, H, W)"},
    {"LayerNorm(7)", NULL, IMAGE, "expected 7 features, found 8: input (2, 3, 8, 8)"},
    {"LayerNorm(8, -1)", NULL, {2, {2, 8}}, "eps must not be negative, found -1"},
    {"LayerNorm(6)", NULL, {2, {2, 8}}, "expected 6"},
    {"BatchNorm1d(3)", NULL, IMAGE, "expected an input of 2 dimensions (N, C) or 3 dimensions (N, C, L)"},
    {"GroupNorm(4, 6)", NULL, IMAGE, "num_channels must be divisible by num_groups, found 6 and 4"},
    {"Sequential{Flatten GroupNorm(2, 192)}", NULL, IMAGE,
     "normalises (N, C), (N, C, L) or (N, C, H, W), found (2, 192), a flattened image"},
    {"Sequential{Linear(4, 4) ReLU Linear(4, 5)}", NULL, {2, {2, 3}}, "expected 4"},
    {"Sequential{Linear(4, 4) Linear(4, 5)&}", NULL, {2, {2, 4}},
     "shares 0.weight, which is (4, 4) there, and (5, 4) here"},
    {"Sequential{Flatten Linear(192, 192) Linear(192, 192)&}", NULL, IMAGE,
     "shares 1.weight, which is (192, 192) for a flattened image there, and (192, 192) here"},
    {"Sequential{ReLU Linear(4, 4)&}", NULL, {2, {2, 4}}, "shares the parameters of 0, which has no weight"},
    {"Softplus(0)", NULL, {2, {2, 8}}, "beta must be above 0, found 0"},
    {"PReLU(3)", NULL, {2, {2, 8}}, "expected 3 channels of (N, C), (N, C, L) or (N, C, H, W), found (2, 8)"},
    {"Linear(8, 3)", "BCEWithLogitsLoss(pos_weight=1:2)", {2, {2, 8}},
     "pos_weight: expected a number for each of 3 classes, the last dimension, found 2"},
    {"Sequential{Tanh FromBytes}", NULL, {2, {2, 8}}, "reads bytes: expected the network's input, found a layer's output"},
    {"FromBytes(mean=1:2, std=1:2)", NULL, {4, {2, 3, 4, 4}}, "mean: expected a number for each of 3 channels, found 2"},
    {"FromBytes(mean=1:2:3)", NULL, {4, {2, 3, 4, 4}},
     "mean and std: expected two numbers, or two lists of one for each channel"},
    {"FromBytes(mean=0, std=0)", NULL, {2, {2, 8}}, "std must not be 0: it divides"},
    {"FromBytes(divisor=0)", NULL, {2, {2, 8}}, "divisor must be above 0, found 0"},
    {"GLU(0)", NULL, {2, {2, 8}}, "dim must be between 1 and 1 (0 is the batch), found 0"},
    {"GLU(2)", NULL, {2, {2, 8}}, "dim must be between 1 and 1 (0 is the batch), found 2"},
    {"GLU", NULL, {2, {2, 7}}, "halves dimension 1, whose size 7 is odd"},
    {"Softmax(2)", NULL, {2, {2, 8}}, "dim must be between -2 and 1, found 2"},
    {"Upsample", NULL, IMAGE, "expected either size or scale_factor"},
    {"Upsample(2x2, 2)", NULL, IMAGE, "expected either size or scale_factor"},
    {"Upsample(scale_factor=-1)", NULL, IMAGE, "scale_factor must be above 0, found -1"},
    {"Upsample(scale_factor=0.1)", NULL, IMAGE, "an output of 0 rows or columns is not possible"},
    {"Upsample(2x2, align_corners=true)", NULL, IMAGE, "align_corners is for mode = \"bilinear\""},
    {"Flatten(0)", NULL, IMAGE, "a value keeps 2 dimensions at least: from (2, 3, 8, 8)"},
    {"Flatten(2, 1)", NULL, IMAGE, "expected dimensions of an input of 4, found 2 to 1"},
    {"Unflatten(0, 2:1)", NULL, IMAGE, "dim must be between 1 and 3 (0 is the batch), found 0"},
    {"Unflatten(1, 3:2)", NULL, {2, {2, 3}}, "unflattened_size: 2 at place 1 does not fit an input of (2, 3)"},
    {"Unflatten(1, 2:-1)", NULL, {2, {2, 3}}, "unflattened_size: there is no size for -1: the other sizes multiply to 2, which does not divide 3: input (2, 3)"},
    {"Unflatten(1, -1:-1)", NULL, {2, {2, 3}}, "unflattened_size: -1 at place 1 does not fit"},
    {"Unflatten(1, 2:1.5)", NULL, {2, {2, 3}}, "unflattened_size: 1.5 at place 1 does not fit"},
    {"Unflatten(1, 1:1:1:3)", NULL, {2, {2, 3}}, "unflattened_size gives more than 4 dimensions"},
    {"Unflatten(1, 1:3)", NULL, IMAGE, "gives more than 4 dimensions"},
    {"Reshape(0:1:1:1:-1)", NULL, IMAGE, "shape gives more than 4 dimensions"},
    {"Reshape(-2:3)", NULL, IMAGE, "shape: -2 at place 0 does not fit an input of (2, 3, 8, 8)"},
    {"Squeeze(1)", NULL, {2, {2, 1}}, "a value keeps 2 dimensions: leave it out"},
    {"Unsqueeze(1)", NULL, IMAGE, "gives more than 4 dimensions"},
    {"Unsqueeze(0)", NULL, {2, {2, 1}}, "dim must be between 1 and 2 (0 is the batch), found 0"},
    {"Transpose(1, 4)", NULL, IMAGE, "dim0 and dim1 must be between -4 and 3, found 1 and 4"},
    {"Permute(0:1)", NULL, {3, {2, 3, 4}}, "dims must name each dimension of (2, 3, 4) once"},
    {"Permute(0:2:2)", NULL, {3, {2, 3, 4}}, "dims must name each dimension of (2, 3, 4) once"},
    {"Graph{Sub<-1,-1> Sum(2)<0> Linear(3, 2)<1> Sum(1)<1> ReLU<3> Linear(2, 2)<4>}", NULL, {3, {2, 3, 4}},
     "expected what a layer gives, of 2 dimensions at least, found a value (2)"},
    {"Graph{Parameter(3:3) Linear(3, 2)<0>}", NULL, {2, {3, 3}}, "found a parameter (3, 3)"},
    {"Parameter(3:0.5)", NULL, {2, {3, 3}}, "shape: expected whole numbers of at least 1, found 0.5"},
    {"Graph{Transpose(1, 2) Sub<-1,0>}", NULL, {3, {2, 3, 4}}, "or sizes of 1 where they differ, found (2, 3, 4)"},
    {"Sum(1:-2)", NULL, {3, {2, 3, 4}}, "dim must name dimensions between -3 and 2, each once, found -2"},
    {"Sum(0:1)", NULL, {2, {2, 3}}, "a value keeps 1 dimension at least: say keepdim"},
    {"MaskedFill(3, 3, 0, true, value=0)", NULL, {3, {2, 3, 4}}, "a mask of (3, 3) does not fit (2, 3, 4)"},
    {"Graph{Arange(4) Compare(ge)<0,0> MaskedFill(3, 4, 0, true, value=0)<-1,1>}", NULL, {3, {2, 3, 4}},
     "a mask of (3, 4) is not (4, 4)"},
    {"Graph{Arange(4) Compare(ge)<0,0> Add<-1,1>}", NULL, {2, {4, 4}}, "reads a mask, which only masked_fill"},
    {"Graph{Arange(4) Compare(ge)<0,0> ReLU<1>}", NULL, {2, {4, 4}}, "reads a mask, which only masked_fill"},
    {"Graph{Arange(4) Sub<-1,0>}", NULL, {2, {4, 4}}, "reads what arange gives, which only ge, gt, le, lt and an Embedding do"},
    {"Graph{Arange(4) Compare(ge)<0,-1>}", NULL, {2, {4, 4}}, "expected two values of arange"},
    {"Graph{Arange(4) Compare(ge)<0,0> Where(4, 4, 0, false, value=0)<1,1>}", NULL, {2, {4, 4}},
     "value 0 is made of whole numbers"},
    {"Graph{Arange(4) Compare(ge)<0,0>}", NULL, {2, {4, 4}}, "gives a mask, or what one is made of"},
    {"Matmul", NULL, {3, {2, 3, 4}}, "expects two values, found 1"},
    {"Graph{Matmul<-1,-1>}", NULL, {3, {2, 3, 4}}, "is no matrix product of (2, 3, 4) and (2, 3, 4)"},
    {"Graph{Bmm<-1,-1>}", NULL, {2, {3, 3}}, "expected values of 3 dimensions, found (3, 3)"},
    {"Graph{Permute(1:0:2) Bmm<-1,0>}", NULL, {3, {2, 3, 2}}, "is no matrix product of (2, 3, 2) and (3, 2, 2)"},
    {"Graph{Einsum(ab:cd->abcd)<-1,-1>}", NULL, {3, {2, 3, 4}}, "ab,cd->abcd names 2 dimensions of operand 1"},
    {"Graph{Einsum(ab:ab->a->b)<-1,-1>}", NULL, {2, {2, 3}}, "the equation ab,ab->a->b is no \"bij,bjk->bik\""},
    {"Graph{Einsum(ab->a)<-1,-1>}", NULL, {2, {2, 3}}, "two operands, and what comes of them"},
    {"Graph{Einsum(ab:ac->bd)<-1,-1>}", NULL, {2, {2, 3}}, "has a letter after -> that stands nowhere before it"},
    {"Graph{Einsum(ab:cd->ad)<-1,-1>}", NULL, {2, {2, 3}}, "a letter stands twice in one operand, or in one alone"},
    {"Graph{Einsum(aa:ab->b)<-1,-1>}", NULL, {2, {3, 3}}, "a letter stands twice in one operand"},
    {"Graph{Einsum(a....b:ab->b)<-1,-1>}", NULL, {2, {3, 3}}, "at most one \"...\" of each"},
    {"MultiheadAttention(6, 2)", NULL, {2, {3, 6}}, "expected an input of 3 dimensions (T, N, C), found (3, 6)"},
    {"MultiheadAttention(8, 2)", NULL, {3, {3, 5, 6}}, "expected an input of 8 features (T, N, C), found 6"},
    {"MultiheadAttention(6, 4)", NULL, {3, {3, 5, 6}}, "embed_dim must be a multiple of num_heads, found 6 and 4"},
    {"MultiheadAttention(6, 2, kdim=5)", NULL, {3, {3, 5, 6}}, "expected a key of 5 features (T, N, C), found 6"},
    {"MultiheadAttention(6, 2, vdim=0)", NULL, {3, {3, 5, 6}}, "vdim must be between 1 and"},
    {"Graph{Tanh MultiheadAttention(6, 2)<0,-1>}", NULL, {3, {3, 5, 6}},
     "layer 1 MultiheadAttention (net:3): takes 1 input or 3 (query, key, value), found 2"},
    {"Graph{Select(1, 0) MultiheadAttention(6, 2)<-1,0,0>}", NULL, {3, {3, 5, 6}},
     "expected a key of 3 dimensions (T, N, C), found (3, 6)"},
    {"Graph{Narrow(1, 0, 2) MultiheadAttention(6, 2)<-1,0,0>}", NULL, {3, {3, 5, 6}},
     "expected one batch, and as many keys as values (T, N, C), found (3, 5, 6), (3, 2, 6) and (3, 2, 6)"},
    {"Graph{Narrow(1, 0, 2) MultiheadAttention(6, 2, batch_first=true)<-1,-1,0>}", NULL, {3, {3, 5, 6}},
     "expected one batch, and as many keys as values (N, T, C), found (3, 5, 6), (3, 5, 6) and (3, 2, 6)"},
    {"Graph{Tanh CausalSelfAttention(6, 2)<0,-1,-1>}", NULL, {3, {3, 5, 6}}, "takes 1 input or 2 (x, position_ids), found 3"},
    {"Residual", NULL, IMAGE, "expected a body and at most one shortcut, found 0 layers"},
    {"Sequential{Residual{Conv2d(3, 4, 3)}}", NULL, IMAGE,
     "layer 0 Residual (net:2): the body gives (2, 4, 6, 6), but the input that is added to it is (2, 3, 8, 8)"},
    {"Residual{Conv2d(3, 4, 3) Conv2d(3, 4, 1)}", NULL, IMAGE,
     "the body gives (2, 4, 6, 6), but the shortcut gives (2, 4, 8, 8)"},
    {"Checkpoint{ReLU ReLU}", NULL, IMAGE, "expected exactly one layer, found 2"},
    {"ReLU", "CrossEntropyLoss(weight=1:2)", {3, {2, 3, 8}},
     "CrossEntropyLoss (net:91): weight: expected a number for each of 3 classes, found 2"},
    {"ReLU", "CrossEntropyLoss(label_smoothing=2)", {2, {2, 3}}, "label_smoothing must be between 0 and 1, found 2"},
    {"ReLU", "CrossEntropyLoss(lse_square_scale=-1)", {2, {2, 3}}, "lse_square_scale must be at least 0, found -1"},
    {"ReLU", "CrossEntropyLoss(weight=1:2)", {2, {2, 3}},
     "CrossEntropyLoss (net:91): weight: expected a number for each of 3 classes, found 2"},
    {"ReLU", "SmoothL1Loss(beta=-1)", {2, {2, 3}}, "SmoothL1Loss (net:91): beta must be at least 0, found -1"},
    {"ReLU", "HuberLoss(delta=0)", {2, {2, 3}}, "HuberLoss (net:91): delta must be above 0, found 0"},
    {TWO, "MSELoss", {2, {2, 4}}, "MSELoss (net:91): expected a loss for each output of the network: there is 1 for 2"},
    {"ReLU", "MSELoss MSELoss", {2, {2, 4}}, "MSELoss (net:91): expected a loss for each output of the network: there "
     "are 2 for 1"},
    {TWO, "MSELoss ReLU", {2, {2, 4}}, "ReLU (net:92): is no loss, expected one as the loss"},
    {TWO, "MSELoss L1Loss", {2, {2, 4}},
     "L1Loss (net:92): the losses of a step have the same target, but MSELoss has (2, 5), and this one (2, 6)"},
    {TWO, "CrossEntropyLoss 0.5*L1Loss", {2, {2, 4}},
     "L1Loss (net:92): the losses of a step have the same target, but CrossEntropyLoss has labels, and this one "
     "numbers"},
    {TWO, "CrossEntropyLoss CrossEntropyLoss", {3, {2, 5, 4}},
     "the losses of a step have the same target, but CrossEntropyLoss has (10), and this one (12)"},
    {TWO, "CrossEntropyLoss NLLLoss(ignore_index=1)", {2, {2, 4}},
     "NLLLoss (net:92): expected ignore_index = -100, as CrossEntropyLoss has it"},
    {TWO, "IdentityLoss MSELoss", {2, {2, 4}}, "IdentityLoss (net:91): expected a loss with a target as the first one"},
    {"Sequential{" TWO "}", NULL, {2, {2, 4}},
     "layer 0 Graph (net:2): gives 2 values: only the network as a whole does, one for each loss"},
    {"Graph{ReLU}^0,-1>", NULL, {2, {2, 4}}, "Graph (net:1): gives its own input for a loss"},
    {"Graph{ReLU}^0,3>", NULL, {2, {2, 4}}, "has no layer 3"},
};

static void test_mistakes(void) {
    for (size_t i = 0; i < ARRAY_LEN(mistakes); i++) {
        Err e = {0};
        Network *n = net_new(mistakes[i].net, mistakes[i].loss, mistakes[i].in, &e);
        ok(!n && e.code == ERR_SCRIPT, "%s is refused", mistakes[i].net);
        has_text(e.text, mistakes[i].message, mistakes[i].message);
        network_free(n);
    }
}

/* What an error on targets says of the network. */
static void test_output_text(void) {
    static const struct { const char *net, *text; } cases[] = {
        {"Sequential{Flatten Linear(192, 10)}", "the network's output is (2, 10), by layer 1 Linear (net:3)"},
        {"Sequential{ReLU Reshape(-1:48) Linear(48, 10) ReLU}",
         "the network's output is (8, 10), 8 rows of a batch of 2, by layer 1 Reshape (net:3)"},
        {"Sequential", "the network's output is (2, 3, 8, 8), by layer Sequential (net:1)"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Err e = {0};
        char text[NETWORK_OUTPUT];
        Network *n = net_new(cases[i].net, NULL, (Shape)IMAGE, &e);
        if (!ok(n != NULL, "%s: %s", cases[i].net, e.text)) continue;
        network_output_text(n, text, sizeof text);
        is_str(text, cases[i].text, "which layer decides how many rows there are");
        network_free(n);
    }
}

static void test_depth(void) {
    Err e = {0};
    Layer *l = layer_new("ReLU", NULL, &e);
    int levels = 0, code = OK;
    while (levels < 1000 && !code) {
        Layer *outer = layer_new("Checkpoint", NULL, &e);
        code = layer_add(outer, l, &e);
        l = outer;
        levels += !code;
    }
    is_int(levels, LAYER_DEPTH, "containers nest to a limit");
    has_text(e.text, "more than 32 levels of layers", "which is named");
    layer_free(l);
    l = layer_new("Linear", NULL, &e);
    for (int i = 0; i < 24; i++) {
        Layer *outer = layer_new("Sequential", NULL, &e);
        layer_set_name(l, "block", &e);
        layer_add(outer, l, &e);
        l = outer;
    }
    Network *n;
    Shape in = shape2(1, 1);
    is_int(network_new(l, NULL, 0, &(Input){.shape = in}, 1, &n, &e), ERR_SCRIPT, "and names to a length");
    has_text(e.text, "nested too deep", "which is an error of its own");
}

static Layer *child_of(Layer *parent, const char *kind, const char *name, int place) {
    Err e = {0};
    Layer *l = layer_new(kind, name, &e);
    for (int i = 0; l->options.count && i < 2; i++) option_set_number(&l->options.item[i], 2, &e);
    layer_set_name(l, name, &e);
    layer_add(parent, l, &e);
    l->place = place;
    return l;
}

/* a, b and a again, whose sum with the input is the result; the parameters of b come first, those of a are frozen. */
static void test_graph(void) {
    Err e = {0};
    Lines dump = {"", 0};
    Network *n;
    Shape in = shape2(3, 2);
    Layer *g = layer_new("Graph", NULL, &e), *a = child_of(g, "Linear", "a", 1);
    child_of(g, "Linear", "b", 0);
    child_of(g, "Linear", "a#2", 2)->shares = a;
    child_of(g, "Add", "add#1", 3);
    child_of(g, "Linear", "c", 4)->tied = a;
    a->frozen = true;
    is_int(layer_wire(g, 3, (int[]){2, ~0, 0}, 3, &e), OK, "a child reads the outputs before it");
    is_int(layer_wire(g, 2, (int[]){2}, 1, &e), ERR_INTERNAL, "and not its own");
    is_int(layer_wire(g, 2, (int[]){0}, 9, &e), ERR_SCRIPT, "and not more than fit");
    has_text(e.text, "takes at most 8 inputs, found 9", "which is told");
    g->result[0] = 3;
    if (!ok(network_new(g, NULL, 0, &(Input){.shape = in}, 1, &n, &e) == OK, "a graph: %s", e.text)) return;
    network_dump(n, collect, &dump);
    is_str(dump.text,
           ". Graph (3, 2) gives add#1\na Linear in_features=2 out_features=2 (3, 2) 6 frozen\n"
           "b Linear in_features=2 out_features=2 (3, 2) 6\n"
           "a#2 Linear in_features=2 out_features=2 (3, 2) shares a.weight shares a.bias\n"
           "add#1 Add (3, 2) <- a#2, input, a\n"
           "c Linear in_features=2 out_features=2 (3, 2) 2 shares a.weight\n14 parameters\n",
           "as text");
    is_str(n->params[0].name, "b.weight", "parameters in the order of the children's places");
    is_str(n->params[n->root->child[2]->param[1]].name, "a.bias", "a second use reads the first one's");
    is_int(network_frozen(n), 6, "six numbers are frozen");
    is_int(network_find_param(n, "c.weight"), network_find_param(n, "a.weight"), "a second name");
    is_int(network_find_param(n, "a#2.weight"), -1, "a second call has none");
    network_free(n);
}

static void test_long_names(void) {
    Err e = {0};
    Layer *l = layer_new("ReLU", NULL, &e);
    is_int(layer_set_name(l, "a_name_of_more_than_sixty_three_letters_is_longer_than_what_a_layer_can_have", &e), ERR_SCRIPT, "a name that does not fit");
    has_text(e.text, "has more than 63 characters", "is told, not cut off");
    layer_free(l);
    Program *p = program_new();
    char name[200];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    int one = program_buf(p, CAT_ACTIVATIONS, shape1(1), DT_F32, "%s", name);
    int two = program_buf(p, CAT_ACTIVATIONS, shape1(1), DT_F32, "%s", name);
    ok(strcmp(p->bufs[one].name, p->bufs[two].name) != 0, "names that are cut off stay different");
    program_free(p);
}

static void test_table(void) {
    char role;
    int n = 0;
    for (const char *name; (name = layer_kind_name(n, &role)) != NULL; n++) {
        Options o;
        Err e = {0};
        ok(options_parse(&o, layer_spec(name), &e) == OK && strchr("laimtgchsf", role),
           "%s: its options can be read", name);
    }
    ok(layer_kind_name(-1, &role) == NULL && !layer_spec("relu"), "no such kind");
}

static void test_memory(void) {
    static const char net[] =
        "Sequential{Residual{Conv2d(3, 3, 1)} Conv2d(3, 3, 1) Again Concat{Identity Conv2d(3, 3, 1)!}"
        " Flatten Linear(384, 4) ReLU ReLU ReLU ReLU ReLU ReLU ReLU}";
    long before = mem_live();
    int failures = 0, wrong = 0;
    Network *n = NULL;
    while (!n && failures < 1000) {
        Err e = {0};
        mem_fail_after(failures + 1);
        n = net_new(net, "NLLLoss(weight=1:2:3:4)", shape4(2, 3, 8, 8), &e);
        mem_fail_after(0);
        if (n) break;
        failures++;
        wrong += e.code != ERR_HOST_MEMORY || mem_live() != before;
    }
    ok(n && failures > 15, "%d allocations, each made to fail", failures);
    is_int(wrong, 0, "each failure is an error of its kind and leaves nothing behind");
    network_free(n);
}

int main(void) {
    test_article();
    test_names();
    test_shapes();
    test_mistakes();
    test_output_text();
    test_depth();
    test_graph();
    test_long_names();
    test_table();
    test_memory();
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
