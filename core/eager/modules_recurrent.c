/* nn.RNN, nn.LSTM and nn.GRU: their output, without the last states, which go when the module returns. Source:
 * torch/nn/modules/rnn.py. */
#include "modules.h"

static CudnnRnn sizes_of(const Eager *g, const Layer *l, const Size *in) {
    const bool batch_first = options_bool(&l->options, "batch_first");
    const int64_t layers = options_int(&l->options, "num_layers");
    return (CudnnRnn){.mode = layer_rnn_mode(l), .steps = in->of[batch_first], .samples = in->of[!batch_first],
                      .inputs = in->of[2], .units = options_int(&l->options, "hidden_size"), .layers = layers,
                      .directions = options_bool(&l->options, "bidirectional") ? 2 : 1,
                      .dropout = g->training && layers > 1 && options_float(&l->options, "dropout") > 0,
                      .batch_first = batch_first};
}

/* The layer's parameters: they were declared together. */
static Tensor **weights_of(const Eager *g, const Layer *l) { return &g->params[l->param[0]]; }

void module_moved(Eager *g, const Layer *l) {
    if (g->modules[l->kind - layer_kinds] != module_recurrent) return;
    const Size in = size_from(&l->in);
    aten_cudnn_rnn_flatten(g, sizes_of(g, l, &in), weights_of(g, l), l->n_params);
}

Tensor *module_recurrent(Eager *g, const Layer *l, Tensor *const *in) {
    const double dropout = options_float(&l->options, "dropout");
    return aten_cudnn_rnn(g, sizes_of(g, l, &in[0]->size), in[0], weights_of(g, l), l->n_params, dropout);
}
