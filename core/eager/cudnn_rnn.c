#include "cudnn_rnn.h"

/* Arrays in the reserve begin at multiples of this; one more piece stands before them. */
enum { ALIGN = 32, HEAD = 256 };

static int64_t aligned(int64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static int64_t rows_of_gates(const CudnnRnn *r) { return rnn_info(r->mode).gates * r->units; }

int64_t cudnn_rnn_matrices(const CudnnRnn *r) {
    int64_t columns = 0;
    for (int64_t l = 0; l < r->layers; l++) columns += (l ? r->directions * r->units : r->inputs) + r->units;
    return r->directions * rows_of_gates(r) * columns;
}

int64_t cudnn_rnn_weights(const CudnnRnn *r) {
    return cudnn_rnn_matrices(r) + 2 * r->layers * r->directions * rows_of_gates(r);
}

static bool is_gated(const CudnnRnn *r) { return r->mode == RNN_LSTM || r->mode == RNN_GRU; }

/* Of each step, sample and unit: gates (GRU keeps six numbers), LSTM's cell, and of all layers but the last one the output;
 * dropout's mask has a bit for each number, twice where there are two directions. */
static int64_t standard_reserve(const CudnnRnn *r) {
    const int64_t bytes = (int64_t)scalar_bytes(r->type), parts = r->layers * r->directions;
    const int64_t numbers = r->steps * r->samples * r->units, gates = r->mode == RNN_LSTM ? 4 : r->mode == RNN_GRU ? 6 : 1;
    int64_t n = HEAD + aligned(parts * gates * numbers * bytes);
    if (r->mode == RNN_LSTM) n += aligned(parts * numbers * bytes);
    n += aligned((r->layers - 1) * r->directions * numbers * bytes);
    if (r->dropout) n += (r->layers - 1) * aligned((r->directions * r->directions * numbers + 7) / 8);
    return n;
}

/* The persistent algorithms: few units, on every card that is described; fp16 also up to 1,024 units of one layer. */
static bool is_persistent(const CudnnRnn *r) {
    const bool small = r->units <= (is_gated(r) ? 192 : 384);
    const bool half = r->type == T_HALF && r->layers == 1 && r->directions == 1 && r->units <= 1024 && r->units % 128 == 0 &&
                      r->inputs % 128 == 0;
    return small || half;
}

/* What a persistent algorithm keeps is the same gates; how is not known: from half of it to twice. */
int64_t cudnn_rnn_reserve(const CudnnRnn *r, EstimateKind which) {
    const int64_t n = standard_reserve(r);
    if (!is_persistent(r) || which == ESTIMATE_LIKELY) return n;
    return which == ESTIMATE_LEAST ? n / 2 : 2 * n;
}

/* cuDNN counts, before it asks the device for more: 8 MiB for each layer and direction, the weights, x and y, and the
 * gradients of the gates. The P100 of the issue above printed its weights and 4 to 6 MB. So at least the weights, and at
 * most twice that count. */
int64_t cudnn_rnn_workspace(const CudnnRnn *r, EstimateKind which) {
    const int64_t bytes = (int64_t)scalar_bytes(r->type), weights = cudnn_rnn_weights(r) * bytes;
    const int64_t row = r->inputs + r->directions * r->units * (1 + rnn_info(r->mode).gates);
    const int64_t n = (r->layers * r->directions << 23) + weights + r->steps * r->samples * row * bytes;
    return which == ESTIMATE_LEAST ? weights : which == ESTIMATE_MOST ? 2 * n : n;
}

/* "Slightly over 2MB" (RNN.cpp) on the cards of 2017; a generator for each thread that can run, whose states have 48 bytes
 * (cuRAND's XORWOW) or 64 (Philox). */
int64_t cudnn_dropout_state(const Card *card, EstimateKind which) {
    const int64_t threads = card->multiprocessors * card->threads;
    return which == ESTIMATE_LEAST ? 2 << 20 : which == ESTIMATE_MOST ? 64 * threads : 48 * threads;
}
