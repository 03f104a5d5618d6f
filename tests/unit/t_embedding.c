/* Embedding and PositionEmbedding: tables that start as PyTorch's, indices that only the network's input can be. */
#include "layers.h"

static void test_shapes(void) {
    is_network("Embedding(11, 9)", shape2(2, 6), "(2, 6, 9)", "weight (11, 9) normal 1\n");
    is_network("Embedding(11, 9)", shape3(2, 3, 4), "(2, 3, 4, 9)", "weight (11, 9) normal 1\n");
    is_network("Sequential{Embedding(11, 4) PositionEmbedding(6, 4)}", shape2(2, 6), "(2, 6, 4)",
               "0.weight (11, 4) normal 1\n1.weight (6, 4) normal 1\n");
}

static void test_padding(void) {
    static const struct { const char *net; int64_t zero_row; } cases[] = {
        {"Embedding(11, 9)", 0}, {"Embedding(11, 9, 2)", 3}, {"Embedding(11, 9, 0)", 1}, {"Embedding(11, 9, -1)", 11},
        {"Embedding(11, 9, -11)", 1}, {"Embedding(11, 9, none)", 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Err e = {0};
        Program *p = NULL;
        Network *n = net_new(cases[i].net, NULL, shape2(2, 6), &e);
        if (ok(n && lower_network(n, true, false, &p, &e) == OK, "%s: %s", cases[i].net, e.text)) {
            is_int(n->params[0].zero_row, cases[i].zero_row, "the row that starts at zero, counted from 1");
            is_int(attr_of(p, OP_embedding, 0)->embedding.padding, cases[i].zero_row - 1, "and gets no gradient");
        }
        program_free(p);
        network_free(n);
    }
}

static void test_indices(void) {
    Err e = {0};
    Network *n = net_new("Add{Embedding(11, 4) Embedding(7, 4)}", NULL, shape2(2, 6), &e);
    if (ok(n != NULL, "two tables: %s", e.text)) is_int(n->inputs[0].indices, 7, "indices must lie in the smaller one");
    network_free(n);
    n = net_new("Linear(6, 4)", NULL, shape2(2, 6), &e);
    if (ok(n != NULL, "no table: %s", e.text)) is_int(n->inputs[0].indices, 0, "numbers");
    network_free(n);
}

static void test_refused(void) {
    is_refused("Embedding(0, 9)", shape2(2, 6), "num_embeddings must be between 1 and");
    is_refused("Embedding(11, 0)", shape2(2, 6), "embedding_dim must be between 1 and");
    is_refused("Embedding(11, 9, 11)", shape2(2, 6), "padding_idx must be between -11 and 10, found 11");
    is_refused("Embedding(11, 9, -12)", shape2(2, 6), "padding_idx must be between -11 and 10, found -12");
    is_refused("Sequential{ReLU Embedding(11, 9)}", shape2(2, 6),
               "layer 1 Embedding (net:3): reads indices: expected the network's input, found a layer's output");
    is_refused("Embedding(11, 9)", shape4(2, 3, 4, 5), "expected at most 3 dimensions, found (2, 3, 4, 5)");
    is_refused("PositionEmbedding(0, 9)", shape3(2, 6, 9), "num_positions must be between 1 and");
    is_refused("PositionEmbedding(5, 9)", shape3(2, 6, 9),
               "expected 9 features at 5 positions at most, found (2, 6, 9)");
    is_refused("PositionEmbedding(6, 8)", shape3(2, 6, 9),
               "expected 8 features at 6 positions at most, found (2, 6, 9)");
    is_refused("PositionEmbedding(6, 9)", shape2(2, 9), "expected an input of 3 dimensions (N, T, D)");
}

static void test_programs(void) {
    is_program("Sequential{Embedding(11, 4, 2) PositionEmbedding(8, 4)}", NULL, shape2(2, 6), true,
               "0.weight f32 (11, 4) weights 176\n1.weight f32 (8, 4) weights 128\ninput i32 (2, 6) input 48\n"
               "  0 embedding 0: 0.y = idx:input w:0.weight\n      0.y f32 (2, 6, 4) activations 192\n"
               "  1 add_rows 1: 1.y = x:0.y w:1.weight\n      1.y f32 (2, 6, 4) activations 192\n");
}

int main(void) {
    test_shapes();
    test_padding();
    test_indices();
    test_refused();
    test_programs();
    survives_memory("Sequential{Embedding(11, 4) PositionEmbedding(8, 4)}", NULL, shape2(2, 6), 8);
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
