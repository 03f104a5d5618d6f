/* Attention: parameters as PyTorch has them for inputs of one width and of several, products that are made in one where
 * they read the same, and what is kept for the gradient. */
#include "layers.h"

static const Shape IN = {3, {5, 2, 8, 1}}; /* (T, N, C), or five samples of two steps */

static void test_params(void) {
    is_network("MultiheadAttention(8, 2)", IN, "(5, 2, 8)",
               "in_proj_weight (24, 8) uniform 0.433013\nin_proj_bias (24) uniform 0\n"
               "out_proj.weight (8, 8) uniform 0.353553\nout_proj.bias (8) uniform 0\n");
    is_network("Graph{Linear(8, 6) MultiheadAttention(8, 2, bias=false, kdim=6)<-1,0,-1>}", IN, "(5, 2, 8)",
               "0.weight (6, 8) uniform 0.353553\n0.bias (6) uniform 0.353553\n"
               "1.q_proj_weight (8, 8) uniform 0.612372\n1.k_proj_weight (8, 6) uniform 0.654654\n"
               "1.v_proj_weight (8, 8) uniform 0.612372\n1.out_proj.weight (8, 8) uniform 0.353553\n");
    is_network("CausalSelfAttention(8, 2)", IN, "(5, 2, 8)",
               "c_attn.weight (24, 8) uniform 0.353553\nc_attn.bias (24) uniform 0.353553\n"
               "c_proj.weight (8, 8) uniform 0.353553\nc_proj.bias (8) uniform 0.353553\n");
    is_network("Graph{Linear(8, 4) ScaledDotProductAttention(num_heads=4, enable_gqa=true)<-1,0,0>}", IN, "(5, 2, 8)",
               "0.weight (4, 8) uniform 0.353553\n0.bias (4) uniform 0.353553\n");
}

static void test_refused(void) {
    is_refused("MultiheadAttention(8, 2, dropout=-0.5)", IN, "dropout must be between 0 and 1, found -0.5");
    is_refused("MultiheadAttention(0, 2)", IN, "embed_dim must be between 1 and");
    is_refused("MultiheadAttention(8, 0)", IN, "num_heads must be between 1 and");
    is_refused("MultiheadAttention(8, 2, kdim=-1)", IN, "kdim must be between 1 and");
    is_refused("CausalSelfAttention(8, 3)", IN, "n_embd must be a multiple of n_head, found 8 and 3");
    is_refused("ScaledDotProductAttention(num_heads=2)", IN, "takes 3 inputs or 4 (query, key, value, bias), found 1");
    is_refused("ScaledDotProductAttention(num_heads=0)", IN, "num_heads must be between 1 and");
    is_refused("ScaledDotProductAttention(num_heads=2)", shape2(5, 8), "expected an input of 3 dimensions (N, T, C)");
    is_refused("Graph{Tanh ScaledDotProductAttention(num_heads=3)<0,0,0>}", IN,
               "num_heads: expected a divisor of the query's 8 features, found 3");
    is_refused("Graph{Tanh ScaledDotProductAttention(num_heads=2, dropout_p=2)<0,0,0>}", IN,
               "dropout_p must be between 0 and 1, found 2");
    is_refused("Graph{Linear(8, 4) ScaledDotProductAttention(num_heads=4)<-1,0,0>}", IN,
               "expected a key of 8 features (N, T, C), found 4");
    is_refused("Graph{Linear(8, 3) ScaledDotProductAttention(num_heads=4, enable_gqa=true)<-1,0,0>}", IN,
               "expected a key of 8 features (N, T, C), found 3");
}

static void test_programs(void) {
    is_program("MultiheadAttention(8, 2, dropout=0.25)", NULL, IN, true,
               "in_proj_weight f32 (24, 8) weights 768\nin_proj_bias f32 (24) weights 96\n"
               "out_proj.weight f32 (8, 8) weights 256\nout_proj.bias f32 (8) weights 32\n"
               "input f32 (5, 2, 8) input 320\ncalls i32 (1) other 4\n"
               "  0 linear .: qkv = x:input w:in_proj_weight b:in_proj_bias\n"
               "      qkv f32 (5, 2, 24) activations 960\n"
               "  1 attention .: mixed lse = q:qkv calls:calls heads=2 kv_heads=2\n"
               "      mixed f32 (5, 2, 8) activations 320\n      lse f32 (2, 2, 5) activations 80\n"
               "  2 linear .: y = x:mixed w:out_proj.weight b:out_proj.bias\n      y f32 (5, 2, 8) activations 320\n");
    is_program("Graph{Tanh MultiheadAttention(8, 2, bias=false, batch_first=true)<-1,0,0>}", NULL, IN, false,
               "1.in_proj_weight f32 (24, 8) weights 768\n1.out_proj.weight f32 (8, 8) weights 256\n"
               "input f32 (5, 2, 8) input 320\n  0 act 0: 0.y = x:input f=tanh\n"
               "      0.y f32 (5, 2, 8) activations 320\n"
               "  1 slice 1: 1.q_weight = x:1.in_proj_weight axis=0 start=0\n"
               "      1.q_weight f32 (8, 8) weights 256\n  2 linear 1: 1.q = x:input w:1.q_weight\n"
               "      1.q f32 (5, 2, 8) activations 320\n"
               "  3 slice 1: 1.kv_weight = x:1.in_proj_weight axis=0 start=8\n"
               "      1.kv_weight f32 (16, 8) weights 512\n  4 linear 1: 1.kv = x:0.y w:1.kv_weight\n"
               "      1.kv f32 (5, 2, 16) activations 640\n"
               "  5 attention 1: 1.mixed = q:1.q k:1.kv heads=2 kv_heads=2\n"
               "      1.mixed f32 (5, 2, 8) activations 320\n  6 linear 1: 1.y = x:1.mixed w:1.out_proj.weight\n"
               "      1.y f32 (5, 2, 8) activations 320\n");
    is_program("Graph{Linear(8, 6) MultiheadAttention(8, 2, kdim=6)<-1,0,-1>}", NULL, IN, false,
               "0.weight f32 (6, 8) weights 192\n0.bias f32 (6) weights 24\n1.q_proj_weight f32 (8, 8) weights 256\n"
               "1.k_proj_weight f32 (8, 6) weights 192\n1.v_proj_weight f32 (8, 8) weights 256\n"
               "1.in_proj_bias f32 (24) weights 96\n1.out_proj.weight f32 (8, 8) weights 256\n"
               "1.out_proj.bias f32 (8) weights 32\ninput f32 (5, 2, 8) input 320\n"
               "  0 linear 0: 0.y = x:input w:0.weight b:0.bias\n      0.y f32 (5, 2, 6) activations 240\n"
               "  1 slice 1: 1.q_bias = x:1.in_proj_bias axis=0 start=0\n      1.q_bias f32 (8) weights 32\n"
               "  2 linear 1: 1.q = x:input w:1.q_proj_weight b:1.q_bias\n      1.q f32 (5, 2, 8) activations 320\n"
               "  3 slice 1: 1.k_bias = x:1.in_proj_bias axis=0 start=8\n      1.k_bias f32 (8) weights 32\n"
               "  4 linear 1: 1.k = x:0.y w:1.k_proj_weight b:1.k_bias\n      1.k f32 (5, 2, 8) activations 320\n"
               "  5 slice 1: 1.v_bias = x:1.in_proj_bias axis=0 start=16\n      1.v_bias f32 (8) weights 32\n"
               "  6 linear 1: 1.v = x:input w:1.v_proj_weight b:1.v_bias\n      1.v f32 (5, 2, 8) activations 320\n"
               "  7 attention 1: 1.mixed = q:1.q k:1.k v:1.v heads=2 kv_heads=2\n"
               "      1.mixed f32 (5, 2, 8) activations 320\n"
               "  8 linear 1: 1.y = x:1.mixed w:1.out_proj.weight b:1.out_proj.bias\n"
               "      1.y f32 (5, 2, 8) activations 320\n");
    is_program("CausalSelfAttention(8, 2, dropout=0.5)", NULL, IN, true,
               "c_attn.weight f32 (24, 8) weights 768\nc_attn.bias f32 (24) weights 96\n"
               "c_proj.weight f32 (8, 8) weights 256\nc_proj.bias f32 (8) weights 32\ninput f32 (5, 2, 8) input 320\n"
               "calls i32 (1) other 4\n  0 linear .: qkv = x:input w:c_attn.weight b:c_attn.bias\n"
               "      qkv f32 (5, 2, 24) activations 960\n"
               "  1 attention .: mixed lse = q:qkv calls:calls heads=2 kv_heads=2 causal\n"
               "      mixed f32 (5, 2, 8) activations 320\n      lse f32 (5, 2, 2) activations 80\n"
               "  2 linear .: y = x:mixed w:c_proj.weight b:c_proj.bias\n      y f32 (5, 2, 8) activations 320\n"
               "  3 dropout .: dropped = x:y calls:calls p=0.5 id=1\n      dropped f32 (5, 2, 8) activations 320\n");
    is_program("Graph{Linear(8, 4) ScaledDotProductAttention(num_heads=4, is_causal=true, enable_gqa=true, scale=0.5)"
               "<-1,0,0>}", NULL, IN, true,
               "0.weight f32 (4, 8) weights 128\n0.bias f32 (4) weights 16\ninput f32 (5, 2, 8) input 320\n"
               "  0 linear 0: 0.y = x:input w:0.weight b:0.bias\n      0.y f32 (5, 2, 4) activations 160\n"
               "  1 attention 1: 1.mixed 1.lse = q:input k:0.y v:0.y heads=4 kv_heads=2 causal\n"
               "      1.mixed f32 (5, 2, 8) activations 320\n      1.lse f32 (5, 4, 2) activations 160\n");
}

int main(void) {
    test_params();
    test_refused();
    test_programs();
    survives_memory("Sequential{MultiheadAttention(8, 2, dropout=0.1) CausalSelfAttention(8, 2, dropout=0.1)}", NULL,
                    IN, 15);
    survives_memory("Graph{Linear(8, 6) MultiheadAttention(8, 2, kdim=6)<-1,0,-1>"
                    " ScaledDotProductAttention(num_heads=2, dropout_p=0.1)<1,1,1>}", NULL, IN, 20);
    is_int(mem_live(), 0, "no memory is left");
    return tap_done();
}
