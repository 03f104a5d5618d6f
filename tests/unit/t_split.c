/* What ranks that divide products keep and send, counted by hand: with features divided alone, and with the sequence and the
 * vocabulary, too (tests/device/t_ranks.c has their numbers). */
#include "bare.h"

enum { N = 2, T = 8, D = 32, HEADS = 4, V = 160, RANKS = 4 };

/* One block of GPT's, whose first products are three: of queries, keys and values, of the feedforward part, and the head */
#define BLOCK(rows, last) \
    "Sequential{Embedding(" rows ", 32) PositionEmbedding(8, 32)" \
    " Residual{Sequential{LayerNorm(32) CausalSelfAttention(32, 4) Dropout(0.1)}}" \
    " Residual{Sequential{LayerNorm(32) Linear(32, 128) GELU Linear(128, 32) Dropout(0.1)}} LayerNorm(32) " last " Flatten(0, 1)}"
#define HEAD "Linear(32, 160, bias=false)"

static Settings ranks_of(int tensor, bool sequence) {
    Settings s = settings_default();
    s.world = s.mesh.tensor = tensor;
    s.sequence_parallel = sequence;
    return s;
}

/* Activations that the forward pass leaves to the backward pass, in numbers. */
static int64_t saved(const Program *p) {
    Life *life = calloc((size_t)p->n_bufs, sizeof *life);
    int64_t n = 0;
    if (!life) return -1;
    program_lives(p, life);
    for (int b = 0; b < p->n_bufs; b++)
        if (life[b].used && p->bufs[b].kind == BUF_TEMP && p->bufs[b].category == CAT_ACTIVATIONS &&
            life[b].first < p->forward_end && life[b].last >= p->forward_end)
            n += shape_elements(&p->bufs[b].shape);
    free(life);
    return n;
}

/* A token has D numbers in each of: what the sums and norms of the block read (x, x + attention, x + both), what the three norms
 * make; 3 D of queries, keys and values, D that attention makes; 4 D twice in the feedforward part; 2 for each of three norms;
 * one for each head; V logits; 2 that the loss knows of its logits, which every rank has. */
static void test_activations(void) {
    const Shape input = shape2(N, T);
    const int64_t tokens = N * T, between = 6 * D + 2 * 3, within = 3 * D + D + 8 * D + HEADS + V, loss = 2;
    for (int way = 0; way < 3; way++) {
        const Settings s = ranks_of(way ? RANKS : 1, way == 2);
        Program *p = compiled(BLOCK("160", HEAD), input, &s);
        if (!ok(p != NULL, "a block compiles")) continue;
        const int64_t expected[] = {tokens * (between + within + loss),
                                    tokens * (between + within / RANKS + loss),
                                    tokens * (between + within) / RANKS + tokens * loss};
        is_int(saved(p), expected[way], way == 0 ? "one rank keeps all activations"
                                        : way == 1 ? "ranks divide those within divided layers"
                                                   : "with the sequence they divide all");
        program_free(p);
    }
}

/* Each way sends a tensor (N, T, D) twice in both directions of each of three regions and of the embedding: as a sum that all
 * get, or scattered and gathered. What first products read is gathered once more for their gradients, and gradients of norms and
 * of what is added to slices are summed up. */
static void test_sent(void) {
    const Shape input = shape2(N, T);
    const int64_t once = (RANKS - 1) * N * T * D * 4 / RANKS, rows = (RANKS - 1) * N * T * 16;
    const int64_t params = 2 * (RANKS - 1) * 4 * (T * D + 3 * 2 * D + 2 * D) / RANKS;
    const int64_t expected[] = {(2 + 4 + 4 + 2) * once + rows, (2 + 4 + 4 + 2 + 3) * once + rows + params};
    for (int sequence = 0; sequence < 2; sequence++) {
        const Settings s = ranks_of(RANKS, sequence);
        Program *p = compiled(BLOCK("160", HEAD), input, &s);
        if (!ok(p != NULL, "a block compiles")) continue;
        is_int(program_transfer(p, MESH_TENSOR).sent, expected[sequence], sequence ? "with the sequence" : "by features");
        program_free(p);
    }
}

/* The rows of the buffer of that name; whole: of the network's tensor. */
static int64_t rows_of(const Program *p, const char *name, bool whole) {
    const int b = find_buf(p, name);
    if (b == NO_BUF) return -1;
    const Shape s = whole ? program_whole_shape(&p->bufs[b]) : p->bufs[b].shape;
    return s.dim[0];
}

static int64_t classes_of(const Program *p) {
    int64_t n = 0;
    for (int i = 0; i < p->n_ops && !n; i++) n = program_classes(p, &p->ops[i]);
    return n;
}

/* Who divides the vocabulary: rows of the embedding, and of the head. keeps: the output can be read */
static void test_vocabulary(const char *what, const char *text, bool keeps, int64_t words, int64_t table, int64_t head) {
    Settings s = ranks_of(RANKS, true);
    s.keep_output = keeps;
    Program *p = compiled(text, shape2(N, T), &s);
    if (!ok(p != NULL, "%s: compiles", what)) return;
    ok(rows_of(p, "0.weight", false) == table && rows_of(p, "0.weight", true) == words, "%s: %d rows of the table", what, (int)table);
    if (head) ok(rows_of(p, "5.weight", false) == head, "%s: %d rows of the head", what, (int)head);
    is_int(classes_of(p), 160, "labels are those of all classes");
    program_free(p);
}

static void refused(const Settings *s, Shape input, const char *part) {
    Err e = {0, ""};
    Program *p = NULL;
    static const DeviceTable table = {.kind = "none", .alignment = 64, .prepare = bare_prepare};
    static Device device = {.table = &table};
    Network *net = net_new(BLOCK("160", HEAD), "CrossEntropyLoss", input, &e);
    ok(net && compile(net, s, &device, NULL, NULL, &p, &e) == ERR_SCRIPT && strstr(e.text, part), "refused: %s", e.text);
    network_free(net);
}

int main(void) {
    test_activations();
    test_sent();
    test_vocabulary("words", BLOCK("160", HEAD), false, 160, 40, 40);
    test_vocabulary("a head with the table's weight", BLOCK("160", HEAD "&0"), false, 160, 40, 0);
    test_vocabulary("an output that is kept", BLOCK("160", HEAD), true, 160, 40, 40);
    test_vocabulary("a table of a kept output", BLOCK("160", HEAD "&0"), true, 160, 40, 0);
    test_vocabulary("words that ranks do not divide", BLOCK("161", HEAD), false, 161, 161, 160);
    Settings s = ranks_of(1, true);
    refused(&s, shape2(N, T), "sequence_parallel: expected a mesh with tensor above 1");
    s = ranks_of(RANKS, true);
    refused(&s, shape2(N, 6), "sequence_parallel: expected sequences whose length the 4 ranks of mesh.tensor divide, found 6");
    return tap_done();
}
