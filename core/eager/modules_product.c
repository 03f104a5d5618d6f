/* Linear, and products of two values. */
#include <string.h>

#include "modules.h"

/* Conv1D's addmm(bias, x.view(-1, nx), weight) is Linear's, which turns its weight. */
Tensor *module_linear(Eager *g, const Layer *l, Tensor *const *in) {
    if (l->kind->which) return aten_linear(g, in[0], module_param(g, l, 0), module_param(g, l, 1));
    GUARD(g);
    Tensor *low = amp_low(g, module_param(g, l, 0)), *weight = aten_transpose(g, low, 0, 1);
    Tensor *y = aten_linear(g, in[0], weight, module_param(g, l, 1));
    tensor_drop(g, weight);
    tensor_drop(g, low);
    return y;
}

Tensor *module_linear_function(Eager *g, const Layer *l, Tensor *const *in) {
    return aten_linear(g, in[0], in[1], l->n_in == 3 ? in[2] : NULL);
}

/* ---- products of two values */

Tensor *module_matmul(Eager *g, const Layer *l, Tensor *const *in) {
    Tensor *b = amp_low(g, in[1]), *a = amp_low(g, in[0]), *y = l->kind->which ? aten_bmm(g, a, b) : aten_matmul(g, a, b);
    tensor_drop(g, a);
    tensor_drop(g, b);
    return y;
}

/* The letters of one operand, "..." as capitals, of which the last stands for the last such dimension. */
static int read_letters(const char *text, size_t length, int rank, char *letters) {
    int n = 0, named = 0;
    for (size_t i = 0; i < length; i++) named += text[i] != '.';
    for (size_t i = 0; i < length; i++) {
        if (text[i] != '.') {
            letters[n++] = text[i];
            continue;
        }
        for (int more = rank - named; more > 0; more--) letters[n++] = (char)('Z' + 1 - more);
        i += 2;
    }
    return n;
}

Tensor *module_einsum(Eager *g, const Layer *l, Tensor *const *in) {
    char text[OPTION_WORDS], letters[3][TENSOR_RANK + 1] = {{0}};
    const char *equation = options_word(&l->options, "equation", text);
    const char *comma = strchr(equation, ','), *arrow = strstr(equation, "->");
    Tensor *b = amp_low(g, in[1]), *a = amp_low(g, in[0]);
    read_letters(equation, (size_t)(comma - equation), a->size.rank, letters[0]);
    read_letters(comma + 1, (size_t)(arrow - comma - 1), b->size.rank, letters[1]);
    read_letters(arrow + 2, strlen(arrow + 2), l->out.rank, letters[2]);
    Tensor *y = aten_einsum(g, letters[0], letters[1], letters[2], a, b);
    tensor_drop(g, a);
    tensor_drop(g, b);
    return y;
}
