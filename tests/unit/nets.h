/* nets.h: the networks that several C tests share, and what they are fed with. */
#ifndef NETS_H
#define NETS_H

#include <math.h>

#include "passes/compile.h"
#include "net.h"

/* The article's network at a sixteenth of its width, for 3 x 32 x 32 images. */
#define NET_ARTICLE "Sequential{Conv2d(3, 4, 3) ReLU Conv2d(4, 8, 3) ReLU Flatten Linear(6272, 10)}"

/* Everything in one small network for 3 x 12 x 12 images: residual, checkpointed layers, pooling, dropout,
 * every activation. */
#define NET_MIXED \
    "Sequential{Conv2d(3, 8, 3, padding=1) ReLU(inplace=true) MaxPool2d(2)" \
    " Residual{Sequential{Conv2d(8, 8, 3, padding=1) GELU Conv2d(8, 8, 3, padding=1, groups=2)}} ReLU" \
    " Checkpoint{Sequential{Conv2d(8, 12, 3, padding=1, bias=false) LeakyReLU Dropout(0.25) Conv2d(12, 8, 1) Tanh}}" \
    " AvgPool2d(2, padding=1) AdaptiveAvgPool2d(3) Flatten Linear(72, 20) Sigmoid Dropout Linear(20, 10)}"

/* Branches that join in every way, a part, a layer used twice, frozen layers, a trained bias beside a frozen weight;
 * for 3 x 12 x 12 images. */
#define NET_BRANCHES \
    "Sequential{Conv2d(3, 4, 3, padding=1)!" \
    " Concat{Conv2d(4, 4, 3, padding=1) Sequential{Conv2d(4, 2, 1) ReLU} Identity} Mul{Identity Sigmoid}" \
    " Narrow(1, 2, 6) Add{Sequential{Conv2d(6, 6, 3, padding=1) ReLU Again} Conv2d(6, 6, 1)! Conv2d(6, 6, 1)&}" \
    " MaxPool2d(2) Flatten Linear(216, 10)}"

/* Every recurrent layer and attention, for sequences (T, 6). */
#define NET_SEQUENCE \
    "Sequential{LSTM(6, 5, num_layers=2, batch_first=true, dropout=0.2)" \
    " Checkpoint{Sequential{GRU(5, 4, bidirectional=true, batch_first=true)" \
    " Residual{CausalSelfAttention(8, 2, dropout=0.1)}}}" \
    " MultiheadAttention(8, 4, batch_first=true) RNN(8, 6, batch_first=true) Select(1, -1) Linear(6, 10)}"

/* Attention to another sequence: keys and values of one input, of two, of other widths; for sequences (T, 6). */
#define NET_CROSS \
    "Sequential{Linear(6, 8) Graph{Narrow(1, 0, 3) Tanh<-1>" \
    " MultiheadAttention(8, 2, dropout=0.1, batch_first=true)<0,1,1> Add<2,0> Linear(8, 6)<1>" \
    " MultiheadAttention(8, 4, kdim=6, batch_first=true, is_causal=true)<3,4,1> Add<5,3>}" \
    " Checkpoint{Graph{Tanh MultiheadAttention(8, 1, bias=false, batch_first=true)<0,-1,-1> Add<1,-1>}}" \
    " Graph{Tanh MultiheadAttention(8, 2, batch_first=true)<-1,-1,0> Add<1,-1>} Select(1, -1) Linear(8, 10)}"

/* A block of LLaMA's: rotary positions, queries in groups, a gated product; both pairings; for sequences (T, 6). */
#define NET_LLAMA \
    "Sequential{Linear(6, 8) Residual{Graph{RMSNorm(8) Linear(8, 16, bias=false)<0> Linear(8, 8, bias=false)<0>" \
    " Linear(8, 8, bias=false)<0> RotaryPositionalEmbeddings(4, interleaved=false)<1>" \
    " RotaryPositionalEmbeddings(4, interleaved=false)<2>" \
    " ScaledDotProductAttention(num_heads=4, is_causal=true, enable_gqa=true, dropout_p=0.1)<4,5,3>" \
    " Linear(16, 8, bias=false)<6>}} Checkpoint{Residual{Graph{RMSNorm(8) Linear(8, 12, bias=false)<0> SiLU<1>" \
    " Linear(8, 12, bias=false)<0> Mul<2,3> Linear(12, 8, bias=false)<4>}}}" \
    " RotaryPositionalEmbeddings(8) Select(1, -1) Linear(8, 10)}"

/* A transformer's block that is written in tensor operations; for sequences (5, 6). */
#define NET_OWN \
    "Sequential{Linear(6, 8) Residual{Graph{Pow(2) Mean(-1, true)<0> Scale(1, 0.1)<1> Rsqrt<2> Mul<-1,3>" \
    " Parameter(8, 1)<-1> Mul<4,5> Linear(8, 8)<6> Linear(8, 8)<6> Linear(8, 8)<6> Reshape(0:5:2:4)<7>" \
    " Permute(0:2:1:3)<10> Reshape(0:5:2:4)<8> Permute(0:2:3:1)<12> Matmul<11,13> Scale(0.5)<14>" \
    " MaskedFill(5, 5, 0, false, value=-inf)<15> Amax(-1, true)<16> Sub<16,17> Exp<18> Sum(-1, true)<19> Div<19,20>" \
    " Reshape(0:5:2:4)<9> Einsum(bhts:bshd->bhtd)<21,22> Permute(0:2:1:3)<23> Reshape(0:5:8)<24> Linear(8, 8)<25>}}" \
    " Graph{Tanh Where(5, 8, 1, true)<-1,0>} Max(1) Linear(8, 10)}"

/* What normalises, drops or enlarges channels; for 3 x 12 x 12 images. */
#define NET_NORMS \
    "Sequential{Conv2d(3, 6, 3, bias=false) BatchNorm2d(6) ReLU PReLU(6) Dropout2d(0.2)" \
    " Checkpoint{Sequential{Conv2d(6, 8, 3, stride=2, padding=1) BatchNorm2d(8, momentum=none) SiLU GroupNorm(2, 8)}}" \
    " ConvTranspose2d(8, 4, 4, stride=2, padding=1) ELU Upsample(scale_factor=1.5, mode=bilinear) MaxPool2d(3)" \
    " Residual{InstanceNorm2d(4, affine=true)} Upsample(7x3) Flatten Linear(84, 20)" \
    " LayerNorm(20) PReLU Linear(20, 12) BatchNorm1d(12) Hardswish" \
    " RMSNorm(12, elementwise_affine=false)" \
    " Linear(12, 10) Softplus LogSoftmax(1)}"

/* Lines of 3 x 16: layers over (N, C, L) among others that read it, or leave it, in PyTorch's order. */
#define NET_LINES \
    "Sequential{Conv1d(3, 6, 3, padding=same) BatchNorm1d(6) ReLU MaxPool1d(2)" \
    " Concat{Conv1d(6, 4, 3, padding=1) Identity} ReLU6" \
    " Residual{Sequential{Conv1d(10, 10, 1, groups=2) Mish PReLU(10)}}" \
    " Checkpoint{Sequential{ConvTranspose1d(10, 6, 4, stride=2, padding=1) LogSigmoid GroupNorm(2, 6)}}" \
    " Hardtanh(-2, 1.5) AvgPool1d(3, 2) Residual{InstanceNorm1d(6)} Linear(7, 9) RMSNorm(9) Softsign" \
    " Conv1d(6, 5, 3, dilation=2) Hardsigmoid" \
    " AdaptiveAvgPool1d(3) Flatten Linear(15, 10)}"

/* Images of 3 x 12 x 12 as patches: the same elements in other dimensions, as views and moved. */
#define NET_PATCHES \
    "Sequential{Conv2d(3, 8, 3, stride=3) Flatten(2) Transpose(1, 2) LayerNorm(8)" \
    " Residual{Sequential{Transpose(1, 2) Linear(16, 16) SELU Transpose(2, 1)}} Scale(0.5, 1)" \
    " Checkpoint{Sequential{Transpose(1, 2) Unflatten(2, 4:4) Conv2d(8, 6, 3, padding=1) Abs Scale(-0.1)" \
    " ChannelShuffle(3) ZeroPad2d(0:1:1:0) Conv2d(6, 8, 2) PixelShuffle(2) PixelUnshuffle(2) Conv2d(8, 6, 1)}}" \
    " Mul{Identity Sequential{AdaptiveAvgPool2d(1) Conv2d(6, 6, 1) Sigmoid}} Add{Identity Conv2d(6, 1, 1)}" \
    " Flatten(1, 2) Exp Reshape(0:6:-1) Unsqueeze(2) Conv2d(6, 4, 1x3) Squeeze(2) Flatten Linear(56, 10)}"

/* Three outputs: logits of what noise is added to, logits of a head in between, and squares; for 3 x 12 x 12 images. */
#define NET_HEADS \
    "Graph{Conv2d(3, 8, 3, padding=1) ReLU MaxPool2d(2)" \
    " Sequential{Conv2d(8, 4, 1) BatchNorm2d(4) ReLU Dropout(0.2) Flatten Linear(144, 10)}" \
    " Checkpoint{Sequential{Conv2d(8, 8, 3, padding=1) GELU Conv2d(8, 6, 3)}}<2> Tanh Mul<5,5> RandnLike<5>" \
    " Mul<6,7> Add<5,8> Flatten Linear(96, 10)}^11,3,6>"
#define LOSS_HEADS \
    "CrossEntropyLoss(weight=1:2:0.5:3:1:0.25:1:2:0.75:1) 0.3*CrossEntropyLoss(weight=2:2:2:1:1:1:1:1:1:1)" \
    " -0.02*IdentityLoss(sum)"

/* Indices, 2 x 6 of them, to words with places. */
#define NET_WORDS \
    "Sequential{Embedding(11, 9, padding_idx=2) PositionEmbedding(8, 9) LayerNorm(9, bias=false) Softmax(1) Flatten" \
    " Linear(54, 10)}"

/* A word for each place, from the words before it, of which a head makes logits in rows; the second with a head that
 * has the embedding's weight. For 3 x 6 indices. */
#define NET_VOCABULARY(head) \
    "Sequential{Embedding(40, 8) PositionEmbedding(6, 8) Residual{Sequential{LayerNorm(8) Linear(8, 8) GELU}}" \
    " Checkpoint{Sequential{Linear(8, 12) Dropout(0.2) Tanh Linear(12, 8)}} LayerNorm(8) " head " Flatten(0, 1)}"
#define NET_TIED "Sequential{Embedding(40, 8) Linear(8, 40, bias=false)& Flatten(0, 1)}"

/* Nonzero inputs, or indices below 8, and labels in closed form. */
__attribute__((unused)) static int net_feed(void *arg, uint32_t step, uint32_t micro, float *x, void *t, Err *e) {
    const Program *p = arg;
    uint32_t s = step * (uint32_t)p->micro_batches + micro;
    int64_t n = shape_elements(&p->bufs[p->inputs[0]].shape);
    (void)e;
    for (int64_t i = 0; i < n; i++)
        x[i] = p->bufs[p->inputs[0]].dtype == DT_I32 ? (float)((5 * i + i / 3 + s) % 8)
                                                 : (float)sin(0.377 * (double)i + 0.25 * s);
    if (!t) return OK;
    n = shape_elements(&p->bufs[p->target].shape);
    for (int64_t i = 0; i < n; i++) {
        if (p->bufs[p->target].dtype == DT_I32) ((int32_t *)t)[i] = (int32_t)((7 * i + 3 + s) % 10);
        else ((float *)t)[i] = (float)(0.5 * sin(0.193 * (double)i + s));
    }
    return OK;
}

#endif
