/* Every layer's gradient against central differences of the loss, for each parameter tensor along several directions.
 * Each layer stands between a convolution, so that the gradient of its input is needed, and a classifier. */
#include <stdlib.h>

#include "unit/nets.h"
#include "run/runtime.h"
#include "sample.h"
#include "tap.h"

static Device *cpu;
static Err e;

static const struct { const char *layer; int features; } cases[] = {
    {"Conv2d(4, 6, 3)", 6 * 36},
    {"Conv2d(4, 5, 3, stride=2, padding=1)", 5 * 16},
    {"Conv2d(4, 4, 3, dilation=2, padding=2)", 256},
    {"Conv2d(4, 8, 3, groups=2, padding=1)", 512},
    {"Conv2d(4, 4, 3, groups=4)", 144},
    {"Conv2d(4, 4, 2x4, padding=same)", 256},
    {"Conv2d(4, 6, 1, bias=false)", 384},
    {"Sequential{Conv2d(4, 6, 3) ReLU}", 216},
    {"Sequential{Conv2d(4, 6, 3) Tanh}", 216},
    {"ReLU", 256},
    {"ReLU(inplace=true)", 256},
    {"LeakyReLU(0.2)", 256},
    {"LeakyReLU(-0.5)", 256},
    {"Sigmoid", 256},
    {"Tanh", 256},
    {"GELU", 256},
    {"GELU(tanh)", 256},
    {"MaxPool2d(2)", 64},
    {"MaxPool2d(3, stride=2, padding=1, ceil_mode=true)", 100},
    {"MaxPool2d(2, stride=1, dilation=2)", 144},
    {"AvgPool2d(2)", 64},
    {"AvgPool2d(3, stride=2, padding=1, count_include_pad=false)", 64},
    {"AvgPool2d(3, stride=2, ceil_mode=true)", 64},
    {"AdaptiveAvgPool2d(3)", 36},
    {"AdaptiveMaxPool2d(4)", 64}, {"AdaptiveMaxPool2d(1)", 4},
    {"Sequential{ZeroPad2d(1:2:0:3) Conv2d(4, 2, 5)}", 98}, {"ZeroPad2d(1:1:1:1)", 400},
    {"Sequential{PixelShuffle(2) Conv2d(1, 2, 3)}", 392}, {"Sequential{PixelUnshuffle(4) Conv2d(64, 3, 1)}", 12},
    {"Sequential{ChannelShuffle(2) Conv2d(4, 3, 3, groups=1)}", 108},
    {"Dropout(0.3)", 256},
    {"Sequential{Flatten Linear(256, 12) Tanh}", 12},
    {"Sequential{Flatten Linear(256, 12, bias=false) ReLU}", 12},
    {"Concat{Conv2d(4, 2, 3, padding=1) Tanh Identity}", 640},
    {"Concat(2){Sequential{Conv2d(4, 4, 2) ReLU} Conv2d(4, 4, 1x2)}", 420},
    {"Concat(-1){Tanh Identity}", 512},
    {"Concat{Sequential{Flatten Linear(256, 3)} Sequential{Flatten Tanh}}", 259},
    {"Add{Conv2d(4, 4, 1) Tanh Identity Conv2d(4, 4, 3, padding=1)}", 256},
    {"Add{Identity Identity}", 256},
    {"Add{Sequential{Flatten Linear(256, 256)} Flatten}", 256},
    {"Mul{Conv2d(4, 4, 1) Sigmoid}", 256},
    {"Mul{Identity Identity}", 256},
    {"Sequential{Narrow(1, 1, 2) Narrow(2, -5, 4) Narrow(3, 0, 7)}", 56},
    {"Sequential{Select(1, 2) Select(-1, -1)}", 8},
    {"Select(2, 3)", 32},
    {"Narrow(2, 1, 4, step=2)", 128}, {"Sequential{Narrow(1, 1, 1, step=2) Narrow(3, 5, 2, step=2) Tanh}", 16},
    {"Select(3, 0)", 32},
    {"Roll(1, 1)", 256}, {"Sequential{Roll(-3, 2) Roll(5, 3)}", 256}, {"Sequential{Flatten Roll(100, 1) Tanh}", 256},
    {"Checkpoint{Sequential{Tanh Roll(2, 1) Conv2d(4, 6, 1) Tanh}}", 384},
    {"Sequential{Flatten Narrow(1, 10, 100)}", 100},
    {"Mul{Sequential{AdaptiveAvgPool2d(1) Conv2d(4, 4, 1) Sigmoid} Tanh}", 256},
    {"Mul{Identity Sequential{Conv2d(4, 1, 1) Sigmoid}}", 256},
    {"Add{Conv2d(4, 5, 1) Sequential{AdaptiveAvgPool2d(1) Conv2d(4, 5, 1)}}", 320},
    {"Mul{Sequential{Conv2d(4, 5, 1) Flatten} Sequential{Flatten Linear(256, 1) Tanh}}", 320},
    {"Graph{Flatten(2) AdaptiveAvgPool1d(1)<0> Mul<0,1> Add<2,1>}", 256},
    {"Graph{Sequential{Flatten(2) Transpose(1, 2) Tanh} Linear(4, 1)<0> Mul<1,0>"
     " Sequential{Transpose(1, 2) AdaptiveAvgPool1d(1) Transpose(1, 2) Linear(4, 4)}<0> Add<2,3>}", 256},
    {"Sequential{Flatten(2) Tanh Transpose(1, 2) Linear(4, 3)}", 192},
    {"Sequential{Flatten(1, 2) Conv1d(32, 2, 3)}", 12},
    {"Sequential{Flatten(2) Transpose(1, 2) LayerNorm(4) Transpose(1, 2) Unflatten(2, 4:16) Conv2d(4, 2, 1)}", 128},
    {"Sequential{Reshape(0:8:4:8) Conv2d(8, 2, 3)}", 24},
    {"Sequential{Flatten Tanh Unflatten(1, 16:4:-1) Conv2d(16, 2, 1)}", 32},
    {"Sequential{Reshape(-1:4) Linear(4, 2) Reshape(2:128)}", 128},
    {"Sequential{Select(1, 0) Unsqueeze(1) Conv2d(1, 2, 3)}", 72},
    {"Residual{Conv2d(4, 4, 1) Linear(8, 8)}", 256}, {"Residual{Linear(8, 8) Conv2d(4, 4, 1)}", 256},
    {"Sequential{AdaptiveAvgPool2d(8x1) Squeeze(-1) Conv1d(4, 2, 3)}", 12},
    {"Concat{Narrow(1, 0, 1) Narrow(1, 2, 2)}", 192},
    {"Sequential{Conv2d(4, 4, 3, padding=1) Again ReLU Again}", 256},
    {"Sequential{Conv2d(4, 4, 3, padding=1) Again Again}", 256},
    {"Sequential{Conv2d(4, 4, 3)! Tanh}", 144},
    {"SiLU", 256}, {"ELU(1.5)", 256}, {"CELU(1.5)", 256}, {"Softplus(2)", 256}, {"Hardswish", 256},
    {"ReLU6", 256}, {"Hardtanh", 256}, {"Hardtanh(-0.25, 0.5)", 256}, {"Clamp(-0.25, 0.5)", 256}, {"Clamp(max=0.1)", 256}, {"Hardsigmoid", 256}, {"Mish", 256},
    {"SELU", 256}, {"Abs", 256}, {"Exp", 256}, {"Scale(-0.5, 2)", 256}, {"Sequential{Conv2d(4, 6, 3) Scale(3)}", 216},
    {"LogSigmoid", 256}, {"Softsign", 256}, {"Sequential{Conv2d(4, 6, 3) LogSigmoid}", 216},
    {"GLU(1)", 128}, {"GLU", 128}, {"Sequential{Conv2d(4, 6, 3) GLU(2)}", 108}, {"Sequential{Flatten GLU}", 128},
    {"PReLU", 256}, {"PReLU(4, 0.1)", 256},
    {"Sequential{Flatten PReLU(256)}", 256},
    {"BatchNorm2d(4)", 256}, {"BatchNorm2d(4, affine=false)", 256}, {"BatchNorm2d(4)!", 256},
    {"Sequential{Conv2d(4, 6, 3) BatchNorm2d(6, momentum=none) ReLU Conv2d(6, 4, 1, bias=false) BatchNorm2d(4)}", 144},
    {"BatchNorm2d(4, track_running_stats=false)", 256},
    {"Sequential{BatchNorm2d(4) Again}", 256},
    {"Sequential{Flatten Linear(256, 12) BatchNorm1d(12) Tanh}", 12}, {"Sequential{Flatten BatchNorm1d(256)}", 256},
    {"Sequential{Flatten Linear4bit(256, 12, quant_type=nf4) Tanh}", 12}, {"Sequential{Flatten Linear8bitLt(256, 12, bias=false)}", 12},
    {"Checkpoint{Sequential{Flatten Linear(256, 12) Linear4bit(12, 9, compress_statistics=false) Tanh}}", 9},
    {"Sequential{Flatten Linear(256, 12) LayerNorm(12)}", 12}, {"Sequential{Flatten LayerNorm(256)}", 256},
    {"Sequential{Flatten LayerNorm(256, bias=false) Tanh}", 256},
    {"Sequential{Flatten LayerNorm(256, elementwise_affine=false)}", 256},
    {"Sequential{Flatten Linear(256, 12) RMSNorm(12)}", 12}, {"Sequential{Flatten RMSNorm(256)}", 256},
    {"Sequential{Flatten RMSNorm(256, 0.5, elementwise_affine=false) Tanh}", 256},
    {"InstanceNorm2d(4)", 256}, {"Sequential{InstanceNorm2d(4, affine=true) Mish}", 256},
    {"GroupNorm(2, 4)", 256}, {"GroupNorm(4, 4, affine=false)", 256}, {"GroupNorm(1, 4)", 256},
    {"Sequential{Flatten Linear(256, 12) GroupNorm(3, 12)}", 12},
    {"Softmax(1)", 256}, {"LogSoftmax(1)", 256}, {"Softmax(-1)", 256}, {"LogSoftmax(2)", 256}, {"Softmax(0)", 256},
    {"Sequential{Flatten Softmax(1)}", 256},
    {"Dropout2d(0.4)", 256}, {"StochasticDepth(0.4, row)", 256}, {"StochasticDepth(0.4, batch)", 256},
    {"Sequential{Permute(0:2:3:1) StochasticDepth(0.4, row) Tanh StochasticDepth(0.2, batch) Permute(0:3:1:2)}", 256},
    {"Residual{Sequential{Conv2d(4, 6, 1) ReLU Conv2d(6, 4, 1) StochasticDepth(0.4, row)}}", 256},
    {"Checkpoint{Sequential{Tanh Conv2d(4, 6, 1) StochasticDepth(0.5, row) Tanh}}", 384},
    {"Sequential{Flatten Linear(256, 12) StochasticDepth(0.5, row) Tanh}", 12},
    {"ConvTranspose2d(4, 6, 3)", 600}, {"ConvTranspose2d(4, 6, 4, stride=2, padding=1)", 1536},
    {"ConvTranspose2d(4, 6, 3x2, 2, 1, 1, groups=2)", 1440},
    {"ConvTranspose2d(4, 3, 3, dilation=2, bias=false)", 432}, {"ConvTranspose2d(4, 4, 2)!", 324},
    {"Sequential{ConvTranspose2d(4, 6, 3) GELU ConvTranspose2d(6, 3, 2) Tanh Conv2d(3, 2, 3)}", 162},
    {"Upsample(scale_factor=2)", 1024}, {"Upsample(11x5)", 220}, {"Upsample(scale_factor=1.7, mode=bilinear)", 676},
    {"Upsample(11x5, mode=bilinear, align_corners=true)", 220}, {"Upsample(scale_factor=0.5, mode=bilinear)", 64},
    {"Checkpoint{Sequential{Conv2d(4, 6, 3) BatchNorm2d(6) ReLU Conv2d(6, 4, 1) GroupNorm(2, 4)}}", 144},
    {"Residual{Conv2d(4, 4, 3, padding=1)}", 256},
    {"Residual{Conv2d(4, 6, 3, padding=1, stride=2) Conv2d(4, 6, 1, stride=2)}", 96},
    {"Sequential{Residual{Tanh} Residual{Conv2d(4, 4, 1)}}", 256},
    {"Checkpoint{Sequential{Conv2d(4, 6, 3) GELU Conv2d(6, 4, 1)}}", 144},
};

/* Of sequences (2, 5, 6) */
static const struct { const char *layer; int features; } sequences[] = {
    {"RNN(6, 4, batch_first=true)", 20},
    {"RNN(6, 4, nonlinearity=relu, batch_first=true, bias=false)", 20},
    {"RNN(6, 3, num_layers=3, bidirectional=true, batch_first=true)", 30},
    {"LSTM(6, 4, batch_first=true)", 20},
    {"LSTM(6, 4, num_layers=2, batch_first=true, bias=false)", 20},
    {"LSTM(6, 4, num_layers=2, batch_first=true, dropout=0.3)", 20},
    {"LSTM(6, 3, num_layers=2, bidirectional=true)", 30},
    {"Sequential{LSTM(6, 4, batch_first=true) Select(1, -1)}", 4}, {"StochasticDepth(0.4, row)", 30},
    {"Sequential{Roll(-2, 1) Linear(6, 4) Roll(1, -1)}", 20}, {"Sequential{Tanh Linear4bit(6, 7) Tanh}", 35},
    {"Sequential{Conv1d(5, 4, 1) Linear8bitLt(6, 7)}", 28},
    {"GRU(6, 4, batch_first=true)", 20},
    {"GRU(6, 4, num_layers=2, batch_first=true, bias=false)", 20},
    {"GRU(6, 3, num_layers=2, bidirectional=true, dropout=0.2)", 30},
    {"Checkpoint{Sequential{LSTM(6, 4, batch_first=true) GRU(4, 5, batch_first=true)}}", 25},
    {"MultiheadAttention(6, 2, batch_first=true)", 30},
    {"MultiheadAttention(6, 3, bias=false, is_causal=true)", 30},
    {"Sequential{Linear(6, 8) Tanh MultiheadAttention(8, 2, dropout=0.3, batch_first=true)}", 40},
    {"CausalSelfAttention(6, 2)", 30},
    {"Residual{CausalSelfAttention(6, 3, bias=false, dropout=0.1)}", 30},
    {"Checkpoint{Sequential{CausalSelfAttention(6, 1, dropout=0.2) Tanh}}", 30},
    {"Graph{Narrow(1, 0, 2) MultiheadAttention(6, 2, batch_first=true)<0,-1,-1>}", 12},
    {"Graph{Narrow(1, 0, 4) Tanh<-1> MultiheadAttention(6, 3, batch_first=true, is_causal=true)<1,0,0>}", 30},
    {"Graph{Narrow(1, 2, 3) Linear(6, 8) MultiheadAttention(6, 2, kdim=6, vdim=8, batch_first=true)<-1,0,1>}", 30},
    {"Graph{Linear(6, 8) MultiheadAttention(6, 1, bias=false, kdim=8, vdim=8, dropout=0.3)<-1,0,0>}", 30},
    {"Graph{Tanh MultiheadAttention(6, 2, dropout=0.2)<-1,-1,0>}", 30},
    {"Graph{Tanh MultiheadAttention(6, 2, bias=false)<-1,0,-1>}", 30},
    {"Checkpoint{Graph{Narrow(1, 0, 2) MultiheadAttention(6, 2, batch_first=true)<0,-1,-1>"
     " Again<-1,1,1> Again<2,2,2>}}", 30},
    {"Graph{Tanh MultiheadAttention(6, 2)!<-1,0,0>}", 30},
    {"RotaryPositionalEmbeddings(6)", 30}, {"Sequential{Tanh RotaryPositionalEmbeddings(2, base=3)}", 30},
    {"RotaryPositionalEmbeddings(6, 5, 100, interleaved=false)", 30},
    {"Residual{Checkpoint{RotaryPositionalEmbeddings(2, interleaved=false)}}", 30},
    {"Graph{Linear(6, 6) Tanh<-1> ScaledDotProductAttention(num_heads=3)<0,1,-1>}", 30},
    {"Graph{Linear(6, 2) Tanh<0> ScaledDotProductAttention(num_heads=3, enable_gqa=true, is_causal=true)<-1,0,1>}", 30},
    {"Graph{Linear(6, 12) Tanh<0> ScaledDotProductAttention(num_heads=4)<1,0,0>}", 60},
    {"Graph{Linear(6, 12) Linear(6, 6)<-1> Narrow(1, 1, 3)<1> RotaryPositionalEmbeddings(6)<0>"
     " ScaledDotProductAttention(num_heads=4, enable_gqa=true, scale=0.7, dropout_p=0.2)<3,2,2>}", 60},
    {"BatchNorm1d(5)", 30}, {"BatchNorm1d(5, affine=false)!", 30}, {"Residual{BatchNorm1d(5, momentum=none)}", 30},
    {"Conv1d(5, 4, 3, padding=1)", 24}, {"Conv1d(5, 10, 2, stride=2, groups=5, bias=false)", 30},
    {"Conv1d(5, 4, 3, dilation=2, padding=same)", 24}, {"Sequential{Conv1d(5, 4, 3) ReLU Conv1d(4, 3, 2)}", 9},
    {"Sequential{Conv1d(5, 4, 3)! BatchNorm1d(4) ReLU MaxPool1d(2)}", 8}, {"Sequential{Tanh MaxPool1d(3, 2, 1)}", 15},
    {"ConvTranspose1d(5, 4, 3)", 32}, {"ConvTranspose1d(5, 6, 3, 2, 1, 1, groups=1, dilation=2)", 84},
    {"AvgPool1d(2)", 15}, {"AvgPool1d(3, 2, padding=1, ceil_mode=true, count_include_pad=false)", 20},
    {"AdaptiveAvgPool1d(4)", 20}, {"AdaptiveMaxPool1d(2)", 10},
    {"ZeroPad1d(2:1)", 45}, {"Sequential{Transpose(1, 2) ZeroPad1d(1:0) Transpose(1, 2) PositionEmbedding(6, 6)}", 36},
    {"Sequential{Conv1d(5, 8, 1) GLU(1) Conv1d(4, 2, 1)}", 12}, {"Sequential{Linear(6, 8) GLU}", 20}, {"GLU(2)", 15},
    {"Sequential{Conv1d(5, 4, 1) GLU(2)}", 12}, {"Checkpoint{Sequential{Conv1d(5, 4, 1) GLU(1) Tanh}}", 12},
    {"Sequential{Conv1d(5, 4, 1) PReLU(4) Linear(6, 3)}", 12}, {"PReLU(5)", 30},
    {"Concat{Conv1d(5, 2, 1) Sequential{Conv1d(5, 3, 1) Tanh}}", 30},
    {"Concat(2){Conv1d(5, 5, 2) Identity}", 55}, {"Concat{Conv1d(5, 2, 1) Identity}", 42},
    {"Residual{Conv1d(5, 5, 3, padding=1)}", 30}, {"Add{Conv1d(5, 5, 1) Conv1d(5, 5, 3, padding=1)}", 30},
    {"Sequential{Conv1d(5, 4, 1) Narrow(1, 1, 2) Conv1d(2, 3, 2) Select(1, 0)}", 5},
    {"Sequential{Conv1d(5, 4, 1) LSTM(6, 3, batch_first=true) Conv1d(4, 2, 1)}", 6},
    {"Checkpoint{Sequential{Conv1d(5, 4, 3, padding=1) Mish BatchNorm1d(4)}}", 24},
    {"Sequential{Conv1d(5, 4, 1) Softmax(1) Dropout(0.2)}", 24},
    {"Sequential{Conv1d(5, 1, 2) Conv1d(1, 2, 5)}", 2}, {"Sequential{Conv1d(5, 3, 6) ReLU}", 3},
    {"RMSNorm(6)", 30}, {"Residual{Sequential{RMSNorm(6, eps=0.1) Linear(6, 6)}}", 30}, {"RMSNorm(6)!", 30},
    {"InstanceNorm1d(5)", 30}, {"Sequential{Conv1d(5, 4, 3) InstanceNorm1d(4, affine=true) ReLU}", 16},
    {"Graph{Parameter(6, 1) Mul<-1,0>}", 30}, {"Graph{Parameter(5:6, normal) Sub<0,-1>}", 30},
    {"Graph{Parameter(5:1, 2) Div<-1,0> Parameter(2:5:6)<-1> Add<1,2>}", 30},
    {"Graph{Parameter(6, 2) Exp<-1> Div<0,1>}", 30}, {"Graph{Parameter(6:4, normal) Tanh<0> Matmul<-1,1>}", 20},
    {"Graph{Parameter(4:6, normal)! Permute(1:0)<0> Matmul<-1,1>}", 20},
    {"Graph{Parameter(4:6, normal) Permute(1:0)<0> Matmul<-1,1> Parameter(4)<-1> Add<2,3>}", 20},
    {"Graph{Pow(2) Mean(-1, true)<0> Scale(1, 0.1)<1> Rsqrt<2> Mul<-1,3> Parameter(6, 1)<-1> Mul<4,5>}", 30},
    {"Graph{Amax(-1, true) Sub<-1,0> Exp<1> Sum(-1, true)<2> Div<2,3>}", 30},
    {"Graph{Exp Sqrt<0> Log<1> Reciprocal<0> Sin<2> Cos<3> Add<4,5>}", 30}, {"Pow(3)", 30},
    {"Graph{Sum(2) Unsqueeze(2)<0> Mul<-1,1>}", 30}, {"Graph{Mean(0) Mul<-1,0>}", 30}, {"Max(1)", 6},
    {"Graph{Sum(0:2) Reshape(1:5:1)<0> Sub<-1,1>}", 30}, {"Graph{Max(2) Amax(2)<-1> Mean(2)<-1> Sub<0,2> Add<1,3>}", 5},
    {"Graph{Reshape(0:5:2:3) Sum(2, true)<0> Div<0,1> Amax(3)<2>}", 10},
    {"Graph{MaskedFill(5, 6, 0, false, value=-2)}", 30}, {"Graph{Tanh Where(5, 6, 1, true)<-1,0>}", 30},
    {"Graph{Reshape(0:5:2:3) Einsum(bthd:bshd->bhts)<0,0> MaskedFill(5, 5, 0, false, value=-inf)<1> Softmax(-1)<2>"
     " Einsum(bhts:bshd->bthd)<3,0> Flatten(2)<4>}", 30},
    {"Checkpoint{Graph{Parameter(6, normal) Mul<-1,0> Tanh<1> Sub<2,0>}}", 30},
    {"Graph{Linear(6, 4) Linear(6, 4)<-1> Einsum(btd:bsd->bts)<0,1> Matmul<2,-1>}", 30},
    {"Graph{Transpose(1, 2) Bmm<-1,0> Matmul<1,-1>}", 30},
    {"Graph{Transpose(1, 2) Tanh<-1> Matmul<0,1> Flatten<2> Linear(36, 30)<3>}", 30},
    {"Graph{Reshape(0:5:2:3)<-1> Linear(6, 6)<-1> Reshape(0:5:2:3)<1> Einsum(bthd:bshd->bhts)<0,2> Softmax(-1)<3>"
     " Einsum(bhts:bshd->bthd)<4,0> Reshape(0:0:6)<5>}", 30},
    {"Graph{Reshape(0:5:2:3)<-1> Permute(0:2:1:3)<0> Transpose(2, 3)<1> Matmul<1,2> Matmul<3,1> Transpose(1, 2)<4>"
     " Tanh<5> Reshape(0:5:6)<6>}", 30},
    {"Graph{Permute(1:2:0) Einsum(tdb:btd->bd)<0,-1>}", 6}, {"Sequential{Permute(1:0:2) Tanh Permute(1:2:0)}", 30},
    {"Graph{Einsum(...i:...i->...)<-1,-1>}", 5}, {"Graph{Linear(6, 3) Einsum(...i:...j->...ij)<0,-1> Tanh<1>}", 90},
    {"Checkpoint{Graph{Transpose(0, 1) Tanh<0> Einsum(tbd:btd->btd)<1,-1>}}", 30},
    {"Graph{Norm(-1, true) Clamp(min=0.01)<0> Div<-1,1>}", 30}, {"Norm(1)", 6},
    {"Graph{Parameter(8:2, normal) RelativePositionBuckets(8, 6)<-1> Index<0,1> Permute(2:0:1)<2>"
     " ScaledDotProductAttention(num_heads=2)<-1,-1,-1,3>}", 30},
    {"Graph{Parameter(4:6, normal) Buffer(0:3:3:1:0, 5, int64) Index<0,1> Mul<-1,2>}", 30},
    {"Graph{Linear(6, 3) Flatten(0, 1)<0> Buffer(9:0:3:3, 2:2, int64) Index<1,2> Mean(0)<3> Sum(0, true)<4> Mul<0,5>}", 15},
    {"Graph{Parameter(4:6, normal) Parameter(4, normal) Buffer(1:0:1:1, 4) Mul<1,2> LinearFunction<-1,0,3>}", 20},
    {"Checkpoint{Graph{Tensor(0.5:-1:2:0:1:1, 6) Add<-1,0> Parameter(6:6, normal) LinearFunction<1,2>}}", 30},
    {"GroupNorm(5, 5)", 30}, {"Checkpoint{Sequential{GroupNorm(1, 5) Tanh}}", 30},
    {"Sequential{Unsqueeze(2) Residual{Conv2d(5, 5, 1)}}", 30}, {"Sequential{Unsqueeze(2) Residual{Conv2d(5, 5, 1) Conv2d(5, 5, 1)}}", 30},
    {"Sequential{Unsqueeze(2) Concat{Conv2d(5, 2, 1) Conv2d(5, 5, 1)}}", 42},
    {"Sequential{Unsqueeze(2) Mul{Conv2d(5, 5, 1) Sequential{Conv2d(5, 5, 1) AdaptiveAvgPool2d(1)}}}", 30},
};

static Network *sequence(const char *layer, int features, const char *loss) {
    char text[256];
    snprintf(text, sizeof text, "Sequential{Linear(6, 6) Tanh %s Flatten Linear(%d, 10)}", layer, features);
    return net_new(text, loss, shape3(2, 5, 6), &e);
}

/* Networks that read indices stand by themselves: 10 outputs from 2 x 6 of them below 8. */
static const char *const of_indices[] = {
    "Sequential{Embedding(10, 5) Flatten Linear(30, 10)}",
    "Sequential{Embedding(10, 5, 3) PositionEmbedding(6, 5) LayerNorm(5) Tanh Flatten Linear(30, 10)}",
    "Sequential{Embedding(10, 5, padding_idx=-1) PositionEmbedding(9, 5) Select(1, -1) Linear(5, 10)}",
    "Graph{Embedding(10, 5)<-1> SelectToken(max)<0,-1> Linear(5, 10)<1>}",
    "Graph{Embedding(10, 5)<-1> Tanh<0> SelectToken(4)<1,-1> Linear(5, 10)<2>}",
    "Sequential{Embedding(10, 10)! PositionEmbedding(6, 10) Softmax(1) LayerNorm(10) Flatten(0, 1)}",
};

static Network *network(int i, const char *loss) {
    char text[256];
    snprintf(text, sizeof text, "Sequential{Conv2d(3, 4, 3, padding=1) %s Flatten Linear(%d, 10)}", cases[i].layer,
             cases[i].features);
    /* the mean of two values makes steps of them, along which there is no gradient to be found */
    return net_new(text, loss, shape4(strstr(text, "BatchNorm1d") ? 16 : 2, 3, 8, 8), &e);
}

/* The loss after parameter `k` is moved by `by` along `direction`; its gradient goes to `grad` unless that is NULL. It
 * is always the first step of a fresh run, so that dropout draws the same numbers. NaN: an error */
static double loss_at(const Network *net, Program *p, int k, const float *direction, double by, float *grad) {
    Runtime *r = NULL;
    StepResult step = {.loss = NAN};
    const Param *param = &net->params[k];
    int64_t n = shape_elements(&param->shape);
    char name[BUF_NAME];
    float *w = calloc((size_t)n, sizeof *w);
    int code = !w || runtime_open(cpu, ALLOC_DIRECT, 0, &(Job){net, p}, 1, 3, 0, &r, &e);
    if (!code) code = runtime_read(r, 0, param->name, w, &e);
    for (int64_t i = 0; !code && i < n; i++) w[i] += (float)(by * direction[i]);
    if (!code) code = runtime_write(r, param->name, w, &e);
    if (!code) code = runtime_step(r, 0, net_feed, p, &step, &e);
    snprintf(name, sizeof name, "%s.grad", param->name);
    if (!code && grad) code = runtime_read(r, 0, name, grad, &e);
    runtime_close(r);
    free(w);
    if (code) printf("# %s\n", e.text);
    return code ? NAN : (double)step.loss;
}

/* The largest error of <grad, direction> against the central difference, relative to the largest directional
 * derivative. Kinks and curvature make errors in proportion to the distance, rounding of the fp32 loss in inverse
 * proportion. So the best of four distances counts: a wrong gradient is wrong at all of them. */
static double worst_error(const Network *net, Program *p, int k) {
    int64_t n = shape_elements(&net->params[k].shape);
    float *grad = calloc((size_t)n, sizeof *grad), *direction = calloc((size_t)n, sizeof *direction);
    double worst = 0, scale = 1e-2; /* below it lies what rounding the loss to fp32 makes of a gradient of zero */
    const double distance[] = {3e-4, 1e-3, 4e-3, 5e-2};
    for (int d = 0; d < 4; d++) {
        double norm = 0, expected = 0;
        for (int64_t i = 0; i < n; i++)
            direction[i] = (float)sin(1.3 * (double)i + 0.7 * d + (double)((i * 7919) % 13));
        if (d == 0) loss_at(net, p, k, direction, 0, grad);
        for (int64_t i = 0; d == 3 && i < n; i++) direction[i] = grad[i];
        for (int64_t i = 0; i < n; i++) norm += (double)direction[i] * direction[i];
        for (int64_t i = 0; i < n; i++) direction[i] = (float)(direction[i] / sqrt(norm + 1e-30));
        for (int64_t i = 0; i < n; i++) expected += (double)direction[i] * grad[i];
        double error = INFINITY;
        for (size_t j = 0; j < ARRAY_LEN(distance); j++) {
            double h = distance[j], there = loss_at(net, p, k, direction, h, NULL);
            double back = loss_at(net, p, k, direction, -h, NULL);
            error = fmin(error, fabs((there - back) / (2 * h) - expected));
        }
        if (!(error <= worst)) worst = error;
        if (fabs(expected) > scale) scale = fabs(expected);
    }
    free(grad);
    free(direction);
    return worst / scale;
}

/* Takes the network. chunks: of its loss */
static void check_chunks(Network *net, const char *layer, const char *loss, int chunks) {
    Settings s = settings_default();
    Program *p = NULL;
    s.keep_gradients = true;
    s.optimizer.rule.lr = 0;
    s.checkpoint = CHECKPOINT_MARKED;
    s.recompute_light = true;
    s.recompute_least = 0;
    s.loss_chunks = chunks;
    if (!ok(net && compile(net, &s, cpu, NULL, NULL, &p, &e) == OK, "%s with %s compiles", layer, loss))
        printf("# %s\n", e.text);
    for (int k = 0; p && k < net->n_params; k++) {
        if (!net->params[k].trainable) continue;
        double error = worst_error(net, p, k);
        if (!ok(error < 5e-3, "%s with %s: gradient of %s", layer, loss, net->params[k].name))
            printf("# relative error %g\n", error);
    }
    program_free(p);
    network_free(net);
}

static void check_network(Network *net, const char *layer, const char *loss) { check_chunks(net, layer, loss, 1); }

/* Losses in parts: 18 rows of 40 logits as 8, 8 and 2 */
static const struct { const char *what, *net; } in_parts[] = {
    {"a loss in parts", NET_VOCABULARY("Linear(8, 40)")}, {"with a frozen head", NET_VOCABULARY("Linear(8, 40)!")},
    {"with a tied head", NET_TIED}, {"with a body that is frozen", "Sequential{Embedding(40, 8)! Linear(8, 40) Flatten(0, 1)}"},
};
static const char *const parts_losses[] = {
    "CrossEntropyLoss", "CrossEntropyLoss(reduction=sum, ignore_index=3)",
    "CrossEntropyLoss(label_smoothing=0.3, ignore_index=3, lse_square_scale=0.1)",
};

/* Other losses, and what stands before them */
static const struct { const char *before, *loss; } losses[] = {
    {"", "CrossEntropyLoss(weight=1:2:0.5:3:1:0.25:1:2:0.75:1)"},
    {"", "CrossEntropyLoss(weight=1:2:0.5:3:1:0.25:1:2:0.75:1, label_smoothing=0.3, ignore_index=3)"},
    {"", "CrossEntropyLoss(lse_square_scale=0.1, ignore_index=3, weight=1:2:0.5:3:1:0.25:1:2:0.75:1)"},
    {"LogSoftmax(1)", "NLLLoss(weight=1:2:0.5:3:1:0.25:1:2:0.75:1)"},
    {"LogSoftmax(1)", "NLLLoss"}, {"LogSoftmax(1)", "NLLLoss(ignore_index=3, reduction=sum)"},
    {"", "MSELoss"}, {"", "L1Loss"}, {"", "SmoothL1Loss(beta=0.5)"}, {"", "HuberLoss(sum, 0.3)"},
    {"Sigmoid", "BCELoss"}, {"", "BCEWithLogitsLoss"}, {"", "BCEWithLogitsLoss(pos_weight=3)"},
    {"", "BCEWithLogitsLoss(pos_weight=1:2:0.5:3:1:0.25:1:2:0.75:1)"},
};

static void check_loss(const char *before, const char *loss) {
    char text[256];
    snprintf(text, sizeof text, "Sequential{Conv2d(3, 4, 3) Tanh Flatten Linear(144, 10) %s}", before);
    check_network(net_new(text, loss, shape4(2, 3, 8, 8), &e), before, loss);
}

int main(void) {
    if (device_open("cpu", &cpu, &e)) return ok(0, "%s", e.text), tap_done();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (sampled(i, ARRAY_LEN(cases)))
            check_network(network((int)i, "CrossEntropyLoss"), cases[i].layer, "CrossEntropyLoss");
    for (size_t i = 0; i < ARRAY_LEN(sequences); i++)
        if (sampled(i, ARRAY_LEN(sequences)))
            check_network(sequence(sequences[i].layer, sequences[i].features, "CrossEntropyLoss"), sequences[i].layer,
                          "CrossEntropyLoss");
    for (size_t i = 0; i < ARRAY_LEN(of_indices); i++)
        check_network(net_new(of_indices[i], "CrossEntropyLoss", shape2(2, 6), &e), of_indices[i], "CrossEntropyLoss");
    check_network(net_new("Sequential{Conv2d(2, 10, 3) Tanh}", "CrossEntropyLoss", shape4(2, 2, 5, 4), &e), "an image",
                  "CrossEntropyLoss");
    check_network(net_new("Sequential{Linear(4, 4) Tanh}", "CrossEntropyLoss", shape3(2, 10, 4), &e), "a line",
                  "CrossEntropyLoss");
    for (size_t i = 0; i < ARRAY_LEN(losses); i++)
        if (sampled(i, ARRAY_LEN(losses))) check_loss(losses[i].before, losses[i].loss);
    check_network(net_new(NET_HEADS, LOSS_HEADS, shape4(3, 3, 12, 12), &e), "three outputs", LOSS_HEADS);
    for (size_t i = 0; i < ARRAY_LEN(in_parts) * ARRAY_LEN(parts_losses); i++) {
        const char *loss = parts_losses[i % ARRAY_LEN(parts_losses)];
        const size_t k = i / ARRAY_LEN(parts_losses);
        if (sampled(i, ARRAY_LEN(in_parts) * ARRAY_LEN(parts_losses)))
            check_chunks(net_new(in_parts[k].net, loss, shape2(3, 6), &e), in_parts[k].what, loss, 3);
    }
    device_close(cpu);
    return tap_done();
}
