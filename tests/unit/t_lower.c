/* Lowering: networks as forward programs, op by op, with layouts, orders, regions and costs. */
#include <inttypes.h>

#include "layers.h"

static void test_programs(void) {
    is_program("Sequential{Conv2d(3, 4, 2, padding=same) ReLU MaxPool2d(2) Flatten Linear(16, 5)}", "CrossEntropyLoss",
               shape4(2, 3, 4, 4), true,
               "0.weight f32 (4, 3, 2, 2) nhwc weights 192\n0.bias f32 (4) weights 16\n"
               "4.weight f32 (5, 16) order=4x2x2 weights 320\n4.bias f32 (5) weights 20\n"
               "input f32 (2, 3, 4, 4) nhwc input 384\ntarget i32 (2) input 8\n"
               "  0 conv2d 0: 0.y = x:input w:0.weight b:0.bias stride=1x1 pad=0,0,1,1 dilation=1x1 groups=1\n"
               "      0.y f32 (2, 4, 4, 4) nhwc activations 512\n"
               "  1 act 1: 1.y = x:0.y f=relu\n      1.y f32 (2, 4, 4, 4) nhwc activations 512\n"
               "  2 maxpool 2: 2.y 2.idx = x:1.y kernel=2x2 stride=2x2 pad=0x0\n"
               "      2.y f32 (2, 4, 2, 2) nhwc activations 128\n      2.idx u8 (2, 4, 2, 2) nhwc activations 32\n"
               "  3 view 3: 3.y = x:2.y\n      3.y f32 (2, 16) order=4x2x2 activations in 2.y\n"
               "  4 linear 4: 4.y = x:3.y w:4.weight b:4.bias\n      4.y f32 (2, 5) activations 40\n"
               "  5 cross_entropy loss: loss = x:4.y t:target scale=1\n      loss f32 () other 4 keep\n");
    is_program("Sequential{Concat{Conv2d(2, 3, 1, bias=false)! Identity} Select(2, -1) Narrow(-1, 1, 2)"
               " Add{Tanh ReLU Identity}}",
               NULL, shape4(1, 2, 3, 4), true,
               "0.0.weight f32 (3, 2, 1, 1) nhwc weights 24\ninput f32 (1, 2, 3, 4) nhwc input 96\n"
               "  0 conv2d 0.0: 0.0.y = x:input w:0.0.weight stride=1x1 pad=0,0,0,0 dilation=1x1 groups=1\n"
               "      0.0.y f32 (1, 3, 3, 4) nhwc activations 144\n"
               "  1 concat 0: 0.y = a:0.0.y b:input axis=1\n      0.y f32 (1, 5, 3, 4) nhwc activations 240\n"
               "  2 slice 1: 1.part = x:0.y axis=2 start=2\n      1.part f32 (1, 5, 1, 4) nhwc activations 80\n"
               "  3 nhwc_to_nchw 1: 1.y = x:1.part\n      1.y f32 (1, 5, 4) activations 80\n"
               "  4 slice 2: 2.y = x:1.y axis=2 start=1\n      2.y f32 (1, 5, 2) activations 40\n"
               "  5 act 3.0: 3.0.y = x:2.y f=tanh\n      3.0.y f32 (1, 5, 2) activations 40\n"
               "  6 act 3.1: 3.1.y = x:2.y f=relu\n      3.1.y f32 (1, 5, 2) activations 40\n"
               "  7 add 3: 3.part1 = a:3.0.y b:3.1.y\n      3.part1 f32 (1, 5, 2) activations 40\n"
               "  8 add 3: 3.y = a:3.part1 b:2.y\n      3.y f32 (1, 5, 2) activations 40\n");
    is_program(
        "Sequential{MaxPool2d(2) Dropout AdaptiveAvgPool2d(1) Flatten Linear(3, 2, bias=false)}", NULL,
        shape4(2, 3, 4, 4), false,
        "4.weight f32 (2, 3) weights 24\ninput f32 (2, 3, 4, 4) nhwc input 384\n"
        "  0 maxpool 0: 0.y = x:input kernel=2x2 stride=2x2 pad=0x0\n      0.y f32 (2, 3, 2, 2) nhwc activations 96\n"
        "  1 adaptive_avgpool 2: 2.y = x:0.y\n      2.y f32 (2, 3, 1, 1) nhwc activations 24\n"
        "  2 view 3: 3.y = x:2.y\n      3.y f32 (2, 3) activations in 2.y\n"
        "  3 linear 4: 4.y = x:3.y w:4.weight\n      4.y f32 (2, 2) activations 16\n");
    is_program("Sequential{Conv1d(4, 3, 2) MaxPool1d(2) Concat{Identity ReLU} Flatten}", "MSELoss", shape3(2, 4, 7),
               false,
               "0.weight f32 (3, 4, 2) nhwc weights 96\n0.bias f32 (3) weights 12\n"
               "input f32 (2, 4, 7) nhwc input 224\ntarget f32 (2, 18) order=6x1x3 input 144\n"
               "  0 conv2d 0: 0.y = x:input w:0.weight b:0.bias stride=1x1 pad=0,0,0,0 dilation=1x1 groups=1\n"
               "      0.y f32 (2, 3, 6) nhwc activations 144\n"
               "  1 maxpool 1: 1.y = x:0.y kernel=1x2 stride=1x2 pad=0x0\n      1.y f32 (2, 3, 3) nhwc activations 72\n"
               "  2 act 2.1: 2.1.y = x:1.y f=relu\n      2.1.y f32 (2, 3, 3) nhwc activations 72\n"
               "  3 concat 2: 2.y = a:1.y b:2.1.y axis=1\n      2.y f32 (2, 6, 3) nhwc activations 144\n"
               "  4 view 3: 3.y = x:2.y\n      3.y f32 (2, 18) order=6x1x3 activations in 2.y\n"
               "  5 element_loss loss: loss = x:3.y t:target f=mse scale=1\n      loss f32 () other 4 keep\n");
    is_program("Sequential{Linear(5, 7) Conv1d(2, 3, 2, bias=false) Tanh Linear(6, 4)}", NULL, shape3(2, 2, 5), false,
               "0.weight f32 (7, 5) weights 140\n0.bias f32 (7) weights 28\n1.weight f32 (3, 2, 2) nhwc weights 48\n"
               "3.weight f32 (4, 6) weights 96\n3.bias f32 (4) weights 16\ninput f32 (2, 2, 5) input 80\n"
               "  0 linear 0: 0.y = x:input w:0.weight b:0.bias\n      0.y f32 (2, 2, 7) activations 112\n"
               "  1 nhwc_to_nchw_dx 1: 0.y.line = dy:0.y\n      0.y.line f32 (2, 2, 7) nhwc activations 112\n"
               "  2 conv2d 1: 1.y = x:0.y.line w:1.weight stride=1x1 pad=0,0,0,0 dilation=1x1 groups=1\n"
               "      1.y f32 (2, 3, 6) nhwc activations 144\n"
               "  3 act 2: 2.y = x:1.y f=tanh\n      2.y f32 (2, 3, 6) nhwc activations 144\n"
               "  4 nhwc_to_nchw 3: 2.y.rows = x:2.y\n      2.y.rows f32 (2, 3, 6) activations 144\n"
               "  5 linear 3: 3.y = x:2.y.rows w:3.weight b:3.bias\n      3.y f32 (2, 3, 4) activations 96\n");
    is_program("Flatten", "CrossEntropyLoss", shape4(2, 3, 2, 1), true,
               "input f32 (2, 3, 2, 1) nhwc input 48\ntarget i32 (2) input 8\n"
               "  0 view .: y = x:input\n      y f32 (2, 6) order=3x2x1 activations in input\n"
               "  1 nhwc_to_nchw loss: y.rows = x:y\n      y.rows f32 (2, 6) activations 48\n"
               "  2 cross_entropy loss: loss = x:y.rows t:target scale=1\n      loss f32 () other 4 keep\n");
    is_program("LogSoftmax(1)", "NLLLoss(weight=1:2:3)", shape2(2, 3), true,
               "input f32 (2, 3) input 24\nclass_weights f32 (3) other 12\ntarget i32 (2) input 8\n"
               "  0 softmax .: y = x:input\n      y f32 (2, 3) activations 24\n"
               "  1 cross_entropy loss: loss = x:y t:target w:class_weights log scale=1\n"
               "      loss f32 () other 4 keep\n");
    is_program("Graph{Linear(2, 3) Tanh ReLU<0>}^2,1,0>", "NLLLoss 0.5*CrossEntropyLoss(1:2:3) -2*IdentityLoss(sum)",
               shape2(4, 2), true,
               "0.weight f32 (3, 2) weights 24\n"
               "0.bias f32 (3) weights 12\n"
               "input f32 (4, 2) input 32\n"
               "class_weights.1 f32 (3) other 12\n"
               "target i32 (4) input 16\n"
               "  0 linear 0: 0.y = x:input w:0.weight b:0.bias\n"
               "      0.y f32 (4, 3) activations 48\n"
               "  1 element_loss loss.2: loss.2 = x:0.y f=identity scale=-2\n"
               "      loss.2 f32 () other 4 keep\n"
               "  2 act 1: 1.y = x:0.y f=tanh\n"
               "      1.y f32 (4, 3) activations 48\n"
               "  3 cross_entropy loss.1: loss.1 = x:1.y t:target w:class_weights.1 scale=0.5\n"
               "      loss.1 f32 () other 4 keep\n"
               "  4 act 2: 2.y = x:0.y f=relu\n"
               "      2.y f32 (4, 3) activations 48\n"
               "  5 cross_entropy loss.0: loss.0 = x:2.y t:target log scale=1\n"
               "      loss.0 f32 () other 4 keep\n");
    is_program("Graph{Linear(2, 3) Tanh ReLU<0>}^2,1,0>",
               "3*CrossEntropyLoss(lse_square_scale=0.1) 0.5*CrossEntropyLoss(1:2:3) -2*IdentityLoss(sum)",
               shape2(4, 2), false,
               "0.weight f32 (3, 2) weights 24\n"
               "0.bias f32 (3) weights 12\n"
               "input f32 (4, 2) input 32\n"
               "target i32 (4) input 16\n"
               "  0 linear 0: 0.y = x:input w:0.weight b:0.bias\n"
               "      0.y f32 (4, 3) activations 48\n"
               "  1 act 2: 2.y = x:0.y f=relu\n"
               "      2.y f32 (4, 3) activations 48\n"
               "  2 cross_entropy loss.0: loss.0 = x:2.y t:target scale=3 square=0.1\n"
               "      loss.0 f32 () other 4 keep\n");
    is_program("Graph{Flatten Tanh<-1> Flatten}^0,2>", "MSELoss L1Loss", shape4(2, 3, 2, 2), true,
               "input f32 (2, 3, 2, 2) nhwc input 96\n"
               "target f32 (2, 12) input 96\n"
               "  0 view 0: 0.y = x:input\n"
               "      0.y f32 (2, 12) order=3x2x2 activations in input\n"
               "  1 act 1: 1.y = x:input f=tanh\n"
               "      1.y f32 (2, 3, 2, 2) nhwc activations 96\n"
               "  2 view 2: 2.y = x:1.y\n"
               "      2.y f32 (2, 12) order=3x2x2 activations in 1.y\n"
               "  3 nhwc_to_nchw loss.1: 2.y.rows = x:2.y\n"
               "      2.y.rows f32 (2, 12) activations 96\n"
               "  4 element_loss loss.1: loss.1 = x:2.y.rows t:target f=l1 scale=1\n"
               "      loss.1 f32 () other 4 keep\n"
               "  5 nhwc_to_nchw loss.0: 0.y.rows = x:0.y\n"
               "      0.y.rows f32 (2, 12) activations 96\n"
               "  6 element_loss loss.0: loss.0 = x:0.y.rows t:target f=mse scale=1\n"
               "      loss.0 f32 () other 4 keep\n");
    is_program("Identity", "CrossEntropyLoss", shape4(2, 3, 5, 4), true,
               "input f32 (2, 3, 5, 4) nhwc input 480\ntarget i32 (40) input 160\n"
               "  0 view loss: loss.y = x:input\n      loss.y f32 (40, 3) activations in input\n"
               "  1 cross_entropy loss: loss = x:loss.y t:target scale=1\n      loss f32 () other 4 keep\n");
}

static void test_orders(void) {
    is_program("StochasticDepth(0.5, row)", "MSELoss", shape4(2, 3, 2, 1), true,
               "input f32 (2, 3, 2, 1) nhwc input 48\ncalls i32 (1) other 4\n"
               "target f32 (2, 3, 2, 1) nhwc input 48\n"
               "  0 view .: x = x:input\n"
               "      x f32 (2, 1, 1, 6) nhwc activations in input\n"
               "  1 dropout .: dropped = x:x calls:calls p=0.5 id=0\n"
               "      dropped f32 (2, 1, 1, 6) nhwc activations 48\n"
               "  2 view .: y = x:dropped\n"
               "      y f32 (2, 3, 2, 1) nhwc activations in dropped\n"
               "  3 element_loss loss: loss = x:y t:target f=mse scale=1\n      loss f32 () other 4 keep\n");
    is_program("Sequential{Flatten Dropout(0.25) Residual{Tanh}}", "MSELoss(sum)", shape4(2, 3, 2, 1), true,
               "input f32 (2, 3, 2, 1) nhwc input 48\ncalls i32 (1) other 4\n"
               "target f32 (2, 6) order=3x2x1 input 48\n"
               "  0 view 0: 0.y = x:input\n      0.y f32 (2, 6) order=3x2x1 activations in input\n"
               "  1 dropout 1: 1.y = x:0.y calls:calls p=0.25 id=0\n      1.y f32 (2, 6) order=3x2x1 activations 48\n"
               "  2 act 2.body: 2.body.y = x:1.y f=tanh\n      2.body.y f32 (2, 6) order=3x2x1 activations 48\n"
               "  3 add 2: 2.y = a:2.body.y b:1.y\n      2.y f32 (2, 6) order=3x2x1 activations 48\n"
               "  4 element_loss loss: loss = x:2.y t:target f=mse scale=1\n      loss f32 () other 4 keep\n");
    /* the body's order is lost in Linear: the other side is converted, once for both sums */
    is_program("Sequential{Flatten Residual{Residual{Linear(6, 6, false)}}}", NULL, shape4(2, 3, 2, 1), true,
               "1.body.body.weight f32 (6, 6) order=3x2x1 weights 144\ninput f32 (2, 3, 2, 1) nhwc input 48\n"
               "  0 view 0: 0.y = x:input\n      0.y f32 (2, 6) order=3x2x1 activations in input\n"
               "  1 linear 1.body.body: 1.body.body.y = x:0.y w:1.body.body.weight\n"
               "      1.body.body.y f32 (2, 6) activations 48\n"
               "  2 nhwc_to_nchw 1.body: 0.y.rows = x:0.y\n      0.y.rows f32 (2, 6) activations 48\n"
               "  3 add 1.body: 1.body.y = a:1.body.body.y b:0.y.rows\n      1.body.y f32 (2, 6) activations 48\n"
               "  4 add 1: 1.y = a:1.body.y b:0.y.rows\n      1.y f32 (2, 6) activations 48\n");
    Program *p = lowered("Residual{Sequential{Flatten Sigmoid} Sequential{AdaptiveAvgPool2d(1x2) Flatten}}", NULL,
                         shape4(2, 3, 2, 1), true);
    int rows = 0;
    for (int i = 0; p && i < p->n_ops; i++) rows += p->ops[i].kind == OP_nhwc_to_nchw;
    is_int(rows, 2, "two different orders are both given up");
    program_free(p);
    p = lowered("Conv2d(1, 1, 1)", "BCEWithLogitsLoss", shape4(2, 1, 2, 2), true);
    if (p)
        ok(p->bufs[p->target].layout == LAYOUT_NHWC && p->bufs[p->target].dtype == DT_F32,
           "an image's target lies as the output does");
    program_free(p);
}

static void test_attributes(void) {
    Program *p =
        lowered("Sequential{ReLU(true) LeakyReLU(0.2) GELU GELU(tanh) Sigmoid Dropout(0.5, true) Dropout(0) Dropout(1)"
                "MaxPool2d(3, 2, 1, 2, true) AvgPool2d(2x1, 1, count_include_pad=false, divisor_override=3)"
                "Flatten Linear(4, 3)}",
                "CrossEntropyLoss(none, 7, sum, 0.5)", shape4(1, 2, 4, 4), true);
    if (!p) return;
    static const ActFn acts[] = {ACT_RELU, ACT_LEAKY, ACT_GELU, ACT_GELU_TANH, ACT_SIGMOID};
    for (int i = 0; i < 5; i++) is_int(attr_of(p, OP_act, i)->act.act, acts[i], "the activation");
    is_int(attr_of(p, OP_act, 0)->act.inplace, 1, "inplace is noted");
    is_int(attr_of(p, OP_act, 1)->act.inplace, 0, "and is off by default");
    is_near(attr_of(p, OP_act, 1)->act.slope, 0.2f, 0, 0, "LeakyReLU's slope");
    const DropAttr d0 = attr_of(p, OP_dropout, 0)->drop, d1 = attr_of(p, OP_dropout, 1)->drop;
    ok(d0.p == 0.5f && d0.inplace && d0.id == 0 && d1.p == 1 && d1.id == 1,
       "each dropout draws its own numbers; p = 0 is no op");
    const PoolAttr m = attr_of(p, OP_maxpool, 0)->pool, a = attr_of(p, OP_avgpool, 0)->pool;
    ok(m.kernel[0] == 3 && m.stride[1] == 2 && m.pad[0] == 1 && m.dilation[1] == 2, "MaxPool2d's window");
    ok(a.kernel[0] == 2 && a.kernel[1] == 1 && a.stride[0] == 1 && a.dilation[0] == 1 && !a.count_include_pad &&
           a.divisor == 3,
       "AvgPool2d's window");
    const LossAttr l = attr_of(p, OP_cross_entropy, 0)->loss;
    ok(l.ignore_index == 7 && l.sum && l.smoothing == 0.5f && l.scale == 1, "CrossEntropyLoss's options");
    program_free(p);
    p = lowered("AvgPool2d(2, padding=1)", NULL, shape4(1, 2, 4, 4), true);
    if (p) is_int(attr_of(p, OP_avgpool, 0)->pool.count_include_pad, 1, "padding counts by default, as in PyTorch");
    if (p) is_int(attr_of(p, OP_avgpool, 0)->pool.stride[0], 2, "the stride is the kernel by default");
    program_free(p);
    p = lowered("Sequential{Upsample(scale_factor=1.2) Upsample(scale_factor=2.3) Upsample(scale_factor=2.3, "
                "mode=bilinear)}", NULL, shape4(1, 1, 3, 1), true);
    static const struct { float scale; const char *what; } steps[] = {
        {1, "a size that stays is copied, as in PyTorch"}, {0.5f, "one that is doubled repeats each pixel"},
        {(float)(1 / 2.3), "else the factor counts"}};
    for (int i = 0; p && i < 3; i++)
        is_near(attr_of(p, OP_upsample, i)->upsample.scale[0], steps[i].scale, 0, 0, steps[i].what);
    program_free(p);
}

static void test_regions(void) {
    static const int regions[] = {0, 1, 1, 1, 0, 2};
    Program *p = lowered("Sequential{ReLU Checkpoint{Sequential{ReLU Checkpoint{ReLU} ReLU}} ReLU Checkpoint{ReLU}}",
                         NULL, shape2(2, 3), true);
    if (!p) return;
    for (int i = 0; i < p->n_ops; i++)
        is_int(p->ops[i].region, regions[i], "the region of an op; an inner one belongs to the outer");
    is_str(p->ops[2].path, "1.1", "nn.Checkpoint adds nothing to the path");
    ok(p->inputs[0] == p->ops[0].in[0] && p->output == p->ops[5].out[0] && p->target == NO_BUF && p->loss == NO_BUF,
       "the program's ends");
    ok(p->forward_end == 6 && p->body_end == 6 && p->micro_batches == 1, "all of it is forward");
    program_free(p);
    p = lowered("Sequential{Dropout Flatten}", "MSELoss", shape2(2, 3), false);
    if (p) ok(p->output == p->inputs[0] && p->n_ops == 1, "a network of identities gives its input back");
    program_free(p);
}

/* Convolution (2, 4, 5, 5) -> (2, 6, 3, 3), 3x3, 2 groups: 2 * 2*3*3 * 6 * (4/2)*3*3 operations, in every direction. */
static void test_costs(void) {
    static const double conv = 2.0 * 2 * 9 * 6 * 2 * 9, linear = 2.0 * 2 * 54 * 5;
    Program *p = lowered("Sequential{Conv2d(4, 6, 3, groups=2) Flatten Linear(54, 5) ReLU}", "MSELoss",
                         shape4(2, 4, 5, 5), true);
    if (!p) return;
    Op back = p->ops[0];
    is_near(p->ops[0].flops, conv, 0, 0, "operations of a convolution");
    is_near(p->ops[0].traffic, 4 * (200 + 108 + 6 + 108), 0, 0, "its bytes");
    is_near(p->ops[1].flops + p->ops[1].traffic, 0, 0, 0, "a view costs nothing");
    is_near(p->ops[2].flops, linear, 0, 0, "operations of a matrix product");
    is_near(p->ops[3].flops, 10, 0, 0, "operations of an activation");
    is_near(p->ops[3].traffic, 80, 0, 0, "its bytes");
    back.kind = OP_conv2d_dx; /* dy w -> dx */
    back.in[0] = p->ops[0].out[0], back.in[2] = NO_BUF, back.out[0] = p->inputs[0];
    op_cost(p, &back);
    is_near(back.flops, conv, 0, 0, "towards the input");
    back.kind = OP_conv2d_dw; /* x dy -> dw */
    back.out[0] = back.in[1], back.in[1] = back.in[0], back.in[0] = p->inputs[0];
    op_cost(p, &back);
    is_near(back.flops, conv, 0, 0, "towards the weights");
    back = p->ops[2];
    back.kind = OP_linear_dw;
    back.out[0] = back.in[1], back.in[1] = p->ops[2].out[0], back.in[2] = NO_BUF;
    op_cost(p, &back);
    is_near(back.flops, linear, 0, 0, "towards a matrix product's weights");
    back.kind = OP_accumulate;
    back.in[0] = p->inputs[0], back.in[1] = NO_BUF, back.out[0] = p->inputs[0];
    op_cost(p, &back);
    is_near(back.traffic, 3 * 800, 0, 0, "what is updated is read and written");
    program_free(p);
}

static void test_memory(void) {
    Err e = {0};
    Network *n = net_new("Sequential{Conv2d(3, 3, 1) MaxPool2d(2) Flatten Residual{Linear(12, 3) Linear(12, 3)}}",
                         "CrossEntropyLoss(weight=1:2:3)", shape4(2, 3, 4, 4), &e);
    long before = mem_live();
    int failures = 0, wrong = 0;
    Program *p = NULL;
    if (!ok(n != NULL, "a network: %s", e.text)) return;
    while (!p && failures < 1000) {
        mem_fail_after(failures + 1);
        int code = lower_network(n, true, true, &p, &e);
        mem_fail_after(0);
        if (!code) break;
        failures++;
        wrong += code != ERR_HOST_MEMORY || e.code != code || mem_live() != before;
    }
    ok(p && failures >= 5, "%d allocations, each made to fail", failures);
    is_int(wrong, 0, "each failure is an error of its kind and leaves nothing behind");
    Program *copy = program_copy(p);
    const float *weights = p->bufs[find_buf(p, "class_weights")].constant;
    const float *copied = copy ? copy->bufs[find_buf(copy, "class_weights")].constant : weights;
    ok(copied != weights && !memcmp(copied, (float[]){1, 2, 3}, 3 * sizeof *copied),
       "a copy has class weights of its own");
    program_free(copy);
    program_free(p);
    network_free(n);
    n = net_new("ReLU", NULL, shape2(1, 1), &e);
    is_int(lower_network(n, true, true, &p, &e), ERR_SCRIPT, "a loss is wanted where there is none");
    has_text(e.text, "expected a loss", "and the text says so");
    network_free(n);
}

int main(void) {
    test_programs();
    test_orders();
    test_attributes();
    test_regions();
    test_costs();
    test_memory();
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
