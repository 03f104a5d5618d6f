/* RNN, LSTM and GRU: PyTorch's parameters by name, one op per layer and direction, and what a gradient keeps of it. */
#include "layers.h"

static const Shape IN = {3, {5, 2, 6, 1}};

static void test_params(void) {
    is_network("RNN(6, 4)", IN, "(5, 2, 4)",
               "weight_ih_l0 (4, 6) uniform 0.5\nweight_hh_l0 (4, 4) uniform 0.5\n"
               "bias_ih_l0 (4) uniform 0.5\nbias_hh_l0 (4) uniform 0.5\n");
    is_network("LSTM(6, 4, bias=false, bidirectional=true)", IN, "(5, 2, 8)",
               "weight_ih_l0 (16, 6) uniform 0.5\nweight_hh_l0 (16, 4) uniform 0.5\n"
               "weight_ih_l0_reverse (16, 6) uniform 0.5\nweight_hh_l0_reverse (16, 4) uniform 0.5\n");
    is_network("GRU(6, 4, num_layers=2, bias=false, bidirectional=true)", IN, "(5, 2, 8)",
               "weight_ih_l0 (12, 6) uniform 0.5\nweight_hh_l0 (12, 4) uniform 0.5\n"
               "weight_ih_l0_reverse (12, 6) uniform 0.5\nweight_hh_l0_reverse (12, 4) uniform 0.5\n"
               "weight_ih_l1 (12, 8) uniform 0.5\nweight_hh_l1 (12, 4) uniform 0.5\n"
               "weight_ih_l1_reverse (12, 8) uniform 0.5\nweight_hh_l1_reverse (12, 4) uniform 0.5\n");
}

static void test_refused(void) {
    is_refused("LSTM(6, 0)", IN, "hidden_size must be between 1 and");
    is_refused("LSTM(0, 4)", IN, "input_size must be between 1 and");
    is_refused("LSTM(6, 4, 0)", IN, "num_layers must be between 1 and 64, found 0");
    is_refused("LSTM(6, 4, 65)", IN, "num_layers must be between 1 and 64, found 65");
    is_refused("LSTM(6, 4, dropout=1.5)", IN, "dropout must be between 0 and 1, found 1.5");
    is_refused("LSTM(5, 4)", IN, "expected 5 input features (T, N, F), found 6");
    is_refused("GRU(5, 4, batch_first=true)", IN, "expected 5 input features (N, T, F), found 6");
    is_refused("RNN(6, 4)", shape2(5, 6), "expected an input of 3 dimensions (T, N, F)");
    is_refused("RNN(6, 4, nonlinearity=sigmoid)", IN, "expected \"tanh\" or \"relu\", found \"sigmoid\"");
}

static void test_programs(void) {
    is_program("LSTM(6, 4, 2, dropout=0.25)", NULL, IN, true,
               "weight_ih_l0 f32 (16, 6) weights 384\nweight_hh_l0 f32 (16, 4) weights 256\n"
               "bias_ih_l0 f32 (16) weights 64\nbias_hh_l0 f32 (16) weights 64\n"
               "weight_ih_l1 f32 (16, 4) weights 256\nweight_hh_l1 f32 (16, 4) weights 256\n"
               "bias_ih_l1 f32 (16) weights 64\nbias_hh_l1 f32 (16) weights 64\ninput f32 (5, 2, 6) input 240\n"
               "calls i32 (1) other 4\n"
               "  0 rnn .: l0.y l0.saved = "
               "x:input w_ih:weight_ih_l0 w_hh:weight_hh_l0 b_ih:bias_ih_l0 b_hh:bias_hh_l0\n"
               "      l0.y f32 (5, 2, 4) activations 160\n      l0.saved f32 (5, 2, 20) activations 800\n"
               "  1 dropout .: l0.dropped = x:l0.y calls:calls p=0.25 id=0\n"
               "      l0.dropped f32 (5, 2, 4) activations 160\n"
               "  2 rnn .: l1.y l1.saved = "
               "x:l0.dropped w_ih:weight_ih_l1 w_hh:weight_hh_l1 b_ih:bias_ih_l1 b_hh:bias_hh_l1\n"
               "      l1.y f32 (5, 2, 4) activations 160\n      l1.saved f32 (5, 2, 20) activations 800\n");
    is_program("GRU(6, 4, bias=false, batch_first=true, bidirectional=true)", NULL, IN, false,
               "weight_ih_l0 f32 (12, 6) weights 288\nweight_hh_l0 f32 (12, 4) weights 192\n"
               "weight_ih_l0_reverse f32 (12, 6) weights 288\nweight_hh_l0_reverse f32 (12, 4) weights 192\n"
               "input f32 (5, 2, 6) input 240\n  0 rnn .: l0.y = x:input w_ih:weight_ih_l0 w_hh:weight_hh_l0\n"
               "      l0.y f32 (5, 2, 4) activations 160\n"
               "  1 rnn .: l0_reverse.y = "
               "x:input w_ih:weight_ih_l0_reverse w_hh:weight_hh_l0_reverse\n"
               "      l0_reverse.y f32 (5, 2, 4) activations 160\n"
               "  2 concat .: l0.both = a:l0.y b:l0_reverse.y axis=2\n      l0.both f32 (5, 2, 8) activations 320\n");
}

static void test_modes(void) {
    static const struct { const char *net; RnnMode mode; int saved; } cases[] = {
        {"RNN(6, 4)", RNN_TANH, 0}, {"RNN(6, 4, nonlinearity=relu)", RNN_RELU, 0}, {"LSTM(6, 4)", RNN_LSTM, 1},
        {"GRU(6, 4)", RNN_GRU, 1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (int training = 0; training < 2; training++) {
            Program *p = lowered(cases[i].net, NULL, IN, training);
            if (!p) continue;
            is_int(attr_of(p, OP_rnn, 0)->rnn.mode, cases[i].mode, "the cell");
            is_int(find_buf(p, "l0.saved") != NO_BUF, training && cases[i].saved,
                   "gates are kept for a gradient where outputs do not tell them");
            program_free(p);
        }
    }
}

int main(void) {
    test_params();
    test_refused();
    test_programs();
    test_modes();
    survives_memory("Sequential{LSTM(6, 4, 2, dropout=0.25, bidirectional=true) GRU(8, 3)}", NULL, IN, 20);
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
