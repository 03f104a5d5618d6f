/* RotaryPositionalEmbeddings: rotates each pair of features of each head of a sequence (N, T, heads dim) by an angle
 * that grows with the step (Su et al. 2021, "RoFormer"). The layer is torchtune's, which pairs neighbours as Meta's
 * LLaMA does; interleaved = false pairs the halves of a head, as Hugging Face's models do. `scaling` makes
 * angles smaller for longer sequences. There is no table of angles, and nothing is kept for the gradient. A second input
 * has the positions of sequences that share a row, in place of the steps. */
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

int layer_rotary_shape(Network *n, Layer *l, Err *e) {
    const int64_t dim = options_int(&l->options, "dim"), most = options_int(&l->options, "max_seq_len");
    static const char *const positive[] = {"base", "factor", "low_freq_factor", NULL};
    char text[SHAPE_TEXT];
    int code = layer_expect_inputs(l, 2, e);
    if (!code) code = layer_expect_range(l, "dim", 2, 2 * ROTARY_PAIRS, e);
    if (!code) code = layer_expect_range(l, "max_seq_len", 1, INT32_MAX, e);
    if (!code) code = layer_expect_range(l, "original_max_seq_len", 1, INT32_MAX, e);
    if (!code) code = layer_expect_rank(l, 3, "(N, T, heads dim)", e);
    if (code) return code;
    if (dim % 2) return layer_error(l, e, "dim must be even, found %" PRId64, dim);
    for (const char *const *option = positive; *option; option++)
        if (!(options_float(&l->options, *option) > 0))
            return layer_error(l, e, "%s must be above 0, found %g", *option, options_float(&l->options, *option));
    if (!(options_float(&l->options, "high_freq_factor") > options_float(&l->options, "low_freq_factor")))
        return layer_error(l, e, "high_freq_factor must be above low_freq_factor");
    if (l->in.dim[1] > most || l->in.dim[2] % dim)
        return layer_error(l, e, "expected at most %" PRId64 " steps of heads of %" PRId64 " features, found %s", most, dim,
                           shape_text(&l->in, text));
    return l->n_in == 2 ? layer_expect_positions(n, l, 1, e) : OK;
}

/* All zeros where nothing is scaled, so that equal ops have equal attributes. */
static RotaryScaling scaling_of(const Layer *l) {
    char word[OPTION_WORDS];
    RotaryScaling s;
    memset(&s, 0, sizeof s);
    options_word(&l->options, "scaling", word);
    if (!strcmp(word, "none")) return s;
    s.kind = !strcmp(word, "linear") ? ROTARY_LINEAR : ROTARY_LLAMA3;
    s.factor = (float)options_float(&l->options, "factor");
    if (s.kind == ROTARY_LINEAR) return s;
    s.low = (float)options_float(&l->options, "low_freq_factor");
    s.high = (float)options_float(&l->options, "high_freq_factor");
    s.original = (float)options_int(&l->options, "original_max_seq_len");
    return s;
}

int layer_rotary_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    memset(&a, 0, sizeof a);
    a.rotary.dim = (int32_t)options_int(&l->options, "dim");
    a.rotary.interleaved = options_bool(&l->options, "interleaved");
    a.rotary.base = (float)options_float(&l->options, "base");
    a.rotary.scaling = scaling_of(l);
    return lower_layer(lw, OP_rotary, l, in, &a);
}
