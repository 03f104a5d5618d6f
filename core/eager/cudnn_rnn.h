/* cudnn_rnn.h: what cuDNN's recurrent layers ask PyTorch for: sizes that cuDNN alone decides.
 *
 * Exact: the flat buffer of weights, and with the standard algorithm the reserve, as cudnnGetRNNWeightSpaceSize and
 * cudnnGetRNNTempSpaceSizes of cuDNN 9.19 and 9.26 answer; two reserves that a Tesla P100 printed (pytorch issue 2895,
 * cuDNN 7: 736,000,000 bytes of an LSTM with four layers, 864,000,000 of a GRU) are 23 and 27 times 32,000,000, as here.
 *
 * Estimated, between bounds: the workspace, the reserve of the persistent algorithms, which PyTorch takes for few units
 * (RNN.cpp, get_algo), and the state of the random numbers of dropout. */
#ifndef MT_CUDNN_RNN_H
#define MT_CUDNN_RNN_H

#include "math/rnn_cells.h"
#include "tensor.h"

typedef struct CudnnRnn {
    RnnMode mode;
    int64_t steps, samples, inputs, units, layers, directions;
    ScalarType type;
    bool dropout;                    /* between the layers, in training */
    bool batch_first;                /* x and y are seen as (N, T, F) */
} CudnnRnn;

int64_t cudnn_rnn_matrices(const CudnnRnn *r); /* elements, of the weights without biases */
int64_t cudnn_rnn_weights(const CudnnRnn *r);  /* elements; there are biases even where the layer has none */
int64_t cudnn_rnn_reserve(const CudnnRnn *r, EstimateKind which);          /* bytes */
int64_t cudnn_rnn_workspace(const CudnnRnn *r, EstimateKind which);        /* bytes */
int64_t cudnn_dropout_state(const Card *card, EstimateKind which);         /* bytes */

#endif
