/* RotaryPositionalEmbeddings: what it takes and refuses, and the one op that it becomes. */
#include "layers.h"

static const Shape IN = {3, {2, 5, 8, 1}};

static void test_shapes(void) {
    is_network("RotaryPositionalEmbeddings(4)", IN, "(2, 5, 8)", "");
    is_network("RotaryPositionalEmbeddings(8, 5)", IN, "(2, 5, 8)", "");
}

static void test_refused(void) {
    is_refused("RotaryPositionalEmbeddings(3)", IN, "dim must be even, found 3");
    is_refused("RotaryPositionalEmbeddings(0)", IN, "dim must be between 2 and");
    is_refused("RotaryPositionalEmbeddings(4096)", IN, "dim must be between 2 and");
    is_refused("RotaryPositionalEmbeddings(4, 0)", IN, "max_seq_len must be between 1 and");
    is_refused("RotaryPositionalEmbeddings(4, base=0)", IN, "base must be above 0, found 0");
    is_refused("RotaryPositionalEmbeddings(4, base=-1)", IN, "base must be above 0, found -1");
    is_refused("RotaryPositionalEmbeddings(4, 4)", IN,
               "expected at most 4 steps of heads of 4 features, found (2, 5, 8)");
    is_refused("RotaryPositionalEmbeddings(6)", IN,
               "expected at most 4096 steps of heads of 6 features, found (2, 5, 8)");
    is_refused("RotaryPositionalEmbeddings(4)", shape2(2, 8), "expected an input of 3 dimensions (N, T, heads dim)");
}

static void test_program(void) {
    is_program("RotaryPositionalEmbeddings(4)", NULL, IN, true,
               "input f32 (2, 5, 8) input 320\n  0 rotary .: y = x:input dim=4 base=10000 interleaved\n"
               "      y f32 (2, 5, 8) activations 320\n");
    Program *p = lowered("Sequential{RotaryPositionalEmbeddings(4)"
                         " RotaryPositionalEmbeddings(2, base=500, interleaved=false)}", NULL, IN, true);
    if (!p) return;
    const RotaryAttr a = attr_of(p, OP_rotary, 0)->rotary, b = attr_of(p, OP_rotary, 1)->rotary;
    ok(a.dim == 4 && a.base == 10000 && a.interleaved, "torchtune's defaults");
    ok(b.dim == 2 && b.base == 500 && !b.interleaved, "and what is given");
    program_free(p);
}

int main(void) {
    test_shapes();
    test_refused();
    test_program();
    survives_memory("Sequential{RotaryPositionalEmbeddings(4) RotaryPositionalEmbeddings(8)}", NULL, IN, 5);
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
