/* Products of two values, Permute and Transpose. Matmul and Bmm (`which`: the dimensions that both must have) are Einsums with
 * labels of their own. A value that was permuted is read as it was before: nothing is moved for a product.
 *
 * Sizes that are 1 where the other operand's are not are broadcast: they get labels of their own. */
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "network/layer.h"

/* Labels of one operand, from the first dimension on */
typedef struct Labels { int8_t of[SHAPE_MAX]; int n; } Labels;

static int is_no_product(const Layer *l, Err *e) {
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    return layer_error(l, e, "is no matrix product of %s and %s: sizes differ, or a letter stands twice in one operand, "
                       "or in one alone", shape_text(&l->ins[0].shape, a), shape_text(&l->ins[1].shape, b));
}

/* Attributes and shape of the product whose operands have these labels. */
static int product_of(const Layer *l, const Labels part[3], EinsumAttr *attr, Shape *out, Err *e) {
    int64_t size[EINSUM_LABELS];
    int8_t *const to[3] = {attr->a, attr->b, attr->y};
    int fresh = EINSUM_LABELS - 1;
    memset(attr, 0, sizeof *attr);
    for (int i = 0; i < EINSUM_LABELS; i++) size[i] = 0;
    for (int k = 0; k < 2; k++)
        for (int d = 0; d < part[k].n; d++) size[part[k].of[d]] = max_i64(size[part[k].of[d]], l->ins[k].shape.dim[d]);
    *out = (Shape){part[2].n, {1, 1, 1, 1}};
    for (int d = 0; d < part[2].n; d++) out->dim[d] = size[part[2].of[d]];
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < SHAPE_MAX; d++) {
            to[k][d] = d < part[k].n ? part[k].of[d] : -1;
            if (k < 2 && d < part[k].n && l->ins[k].shape.dim[d] != size[part[k].of[d]]) to[k][d] = (int8_t)fresh--;
        }
    EinsumPlan plan;
    return einsum_plan(attr, &l->ins[0].shape, &l->ins[1].shape, out, &plan) ? OK : is_no_product(l, e);
}

/* ---- labels, by kind */

enum { ROWS, SUMMED, COLUMNS, BATCH };

/* (..., n, k) and (..., k, m): dimensions before these count from the last one. */
static int matmul_labels(const Layer *l, Labels part[3], Err *e) {
    const int want = l->kind->which;
    char text[SHAPE_TEXT];
    int most = 2;
    for (int k = 0; k < 2; k++) {
        const Shape *s = &l->ins[k].shape;
        if (want ? s->rank != want : s->rank < 2)
            return layer_error(l, e, "expected values of %d dimensions%s, found %s", want ? want : 2,
                               want ? "" : " at least", shape_text(s, text));
        if (s->rank > most) most = s->rank;
        part[k].n = s->rank;
    }
    part[2].n = most;
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < part[k].n - 2; d++) part[k].of[d] = (int8_t)(BATCH + part[k].n - 3 - d);
    const int8_t last[3][2] = {{ROWS, SUMMED}, {SUMMED, COLUMNS}, {ROWS, COLUMNS}};
    for (int k = 0; k < 3; k++) memcpy(&part[k].of[part[k].n - 2], last[k], 2);
    for (int d = 0; want && d < want - 2; d++)
        if (l->ins[0].shape.dim[d] != l->ins[1].shape.dim[d]) return is_no_product(l, e);
    if (l->ins[0].shape.dim[part[0].n - 1] != l->ins[1].shape.dim[part[1].n - 2]) return is_no_product(l, e);
    return OK;
}

static int wrong_equation(const Layer *l, const char *equation, const char *text, Err *e) {
    return layer_error(l, e, "the equation %s %s", equation, text);
}

/* One operand of the equation: its letters, `dots` of further labels in place of "...". Labels by letter. */
static int read_operand(const Layer *l, const char **at, int dots, int8_t *label, int *used, Labels *part, Err *e) {
    char text[OPTION_WORDS];
    const char *equation = options_word(&l->options, "equation", text);
    bool dotted = false;
    part->n = 0;
    for (; **at && **at != ',' && **at != '-'; (*at)++) {
        const bool dot = **at == '.';
        if (dot ? dotted || strncmp(*at, "...", 3) != 0 : !isalpha((unsigned char)**at))
            return wrong_equation(l, equation, "is no \"bij,bjk->bik\": letters, and at most one \"...\" of each", e);
        if (part->n + (dot ? dots : 1) > SHAPE_MAX) return wrong_equation(l, equation, "names too many dimensions", e);
        for (int i = 0; dot && i < dots; i++) part->of[part->n++] = (int8_t)(dots - 1 - i);
        if (!dot && label[(unsigned char)**at] < 0) label[(unsigned char)**at] = (int8_t)(*used)++;
        if (!dot) part->of[part->n++] = label[(unsigned char)**at];
        if (dot) *at += 2;
        dotted |= dot;
    }
    return OK;
}

/* How many dimensions "..." stands for in an operand; -1: there is none in it. */
static int dots_of(const char *from, int rank) {
    const size_t n = strcspn(from, ",-");
    const char *dots = memchr(from, '.', n);
    return dots ? rank - ((int)n - 3) : -1;
}

static int equation_labels(const Layer *l, Labels part[3], Err *e) {
    char text[OPTION_WORDS];
    const char *equation = options_word(&l->options, "equation", text), *at = equation;
    const char *second = strchr(equation, ','), *arrow = strstr(equation, "->");
    int8_t label[256];
    if (!arrow || !second || second > arrow || strchr(second + 1, ','))
        return wrong_equation(l, equation, "is no \"bij,bjk->bik\": two operands, and what comes of them", e);
    const int dots[2] = {dots_of(equation, l->ins[0].shape.rank), dots_of(second + 1, l->ins[1].shape.rank)};
    int most = dots[0] > dots[1] ? dots[0] : dots[1], used = most > 0 ? most : 0, code = OK;
    memset(label, -1, sizeof label);
    for (int k = 0; k < 3 && !code; k++) {
        const int own = k == 2 ? most : dots[k];
        if (k < 2 && own < -1) return is_no_product(l, e);
        code = read_operand(l, &at, own > 0 ? own : 0, label, &used, &part[k], e);
        if (!code && k < 2 && part[k].n != l->ins[k].shape.rank) {
            char shape[SHAPE_TEXT];
            return layer_error(l, e, "the equation %s names %d dimensions of operand %d, found %s", equation, part[k].n,
                               k + 1, shape_text(&l->ins[k].shape, shape));
        }
        at += k == 0 ? 1 : k == 1 ? 2 : 0;
    }
    if (!code && *at) code = wrong_equation(l, equation, "is no \"bij,bjk->bik\": it has more than one result", e);
    for (int d = 0; d < part[2].n && !code; d++) {
        bool found = false;
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < part[k].n; i++) found |= part[k].of[i] == part[2].of[d];
        if (!found) return wrong_equation(l, equation, "has a letter after -> that stands nowhere before it", e);
    }
    return code;
}

/* ---- the kinds */

typedef int LabelsFn(const Layer *l, Labels part[3], Err *e);

static int product_shape(Layer *l, LabelsFn *labels, Err *e) {
    Labels part[3];
    EinsumAttr attr;
    Shape out;
    if (l->n_in != 2) return layer_error(l, e, "expects two values, found %d", l->n_in);
    int code = labels(l, part, e);
    if (!code) code = product_of(l, part, &attr, &out, e);
    if (code) return code;
    layer_output(l, out);
    l->out_rows = out.rank == 4;
    return OK;
}

/* (N, A, B) that lies as (N, B, A) does: a view of that, by Transpose. */
static bool is_turned(const Program *p, const Op *view) {
    const Buf *x = &p->bufs[view->view.x], *y = &p->bufs[view->view.y];
    return x->shape.rank == 3 && y->shape.rank == 3 && x->layout == LAYOUT_ROWS && y->layout == LAYOUT_NHWC &&
           x->shape.dim[1] == y->shape.dim[2] && x->shape.dim[2] == y->shape.dim[1];
}

/* The operand as it was before it was permuted, with its labels in that order; all of it in PyTorch's order. */
static int before_permute(Lower *lw, const Layer *l, int x, int8_t *labels) {
    static const int8_t turned[] = {0, 2, 1};
    int i = lower_source(lw, x, OP_permute);
    const int8_t *from = i == NO_OP ? turned : lw->p->ops[i].attr.permute.from;
    if (i == NO_OP && (i = lower_source(lw, x, OP_view)) != NO_OP && !is_turned(lw->p, &lw->p->ops[i])) i = NO_OP;
    if (i == NO_OP) return lower_plain(lw, l, x);
    int8_t own[SHAPE_MAX];
    memcpy(own, labels, sizeof own);
    for (int d = 0; d < lw->p->bufs[x].shape.rank; d++) labels[from[d]] = own[d];
    return lw->p->ops[i].in[0];
}

static int product_forward(Lower *lw, const Layer *l, const int *in, LabelsFn *labels) {
    Labels part[3];
    Attr attr;
    Shape out;
    memset(&attr, 0, sizeof attr);
    if (labels(l, part, NULL) || product_of(l, part, &attr.einsum, &out, NULL)) return 0; /* checked before */
    const int of[2] = {before_permute(lw, l, in[0], attr.einsum.a), before_permute(lw, l, in[1], attr.einsum.b)};
    return lower_op(lw, OP_einsum, l, of, 2, &attr);
}

int layer_matmul_shape(Network *n, Layer *l, Err *e) { return (void)n, product_shape(l, matmul_labels, e); }
int layer_matmul_forward(Lower *lw, const Layer *l, const int *in) { return product_forward(lw, l, in, matmul_labels); }
int layer_einsum_shape(Network *n, Layer *l, Err *e) { return (void)n, product_shape(l, equation_labels, e); }
int layer_einsum_forward(Lower *lw, const Layer *l, const int *in) {
    return product_forward(lw, l, in, equation_labels);
}

/* ---- another order of dimensions */

/* Transpose exchanges two. */
static int find_exchange(const Layer *l, int8_t from[SHAPE_MAX], Err *e) {
    const int rank = l->in.rank;
    const int64_t one = options_int(&l->options, "dim0"), two = options_int(&l->options, "dim1");
    memset(from, -1, SHAPE_MAX);
    if (one < -rank || one >= rank || two < -rank || two >= rank)
        return layer_error(l, e, "dim0 and dim1 must be between %d and %d, found %" PRId64 " and %" PRId64, -rank,
                           rank - 1, one, two);
    for (int d = 0; d < rank && d < SHAPE_MAX; d++) from[d] = (int8_t)d;
    from[(one + rank) % rank] = (int8_t)((two + rank) % rank);
    from[(two + rank) % rank] = (int8_t)((one + rank) % rank);
    return OK;
}

static int find_order(const Layer *l, int8_t from[SHAPE_MAX], Err *e) {
    if (l->kind->which == OP_view) return find_exchange(l, from, e);
    char text[SHAPE_TEXT];
    int64_t n;
    unsigned seen = 0;
    const double *dims = options_list(&l->options, "dims", &n);
    const int rank = l->in.rank;
    memset(from, -1, SHAPE_MAX);
    for (int64_t d = 0; d < n && n == rank; d++) {
        const double dim = dims[d] < 0 ? dims[d] + rank : dims[d];
        if (!(dim >= 0 && dim < rank) || dim != (double)(int)dim) break;
        from[d] = (int8_t)dim;
        seen |= 1u << from[d];
    }
    if (n == rank && seen == (1u << rank) - 1) return OK;
    return layer_error(l, e, "dims must name each dimension of %s once", shape_text(&l->in, text));
}

/* What lies as (N, A, B) is (N, B, A) channels-last. */
static bool turns_line(const Layer *l, const int8_t *from) { return l->in.rank == 3 && from[0] == 0 && from[1] == 2; }

/* Does an image, which lies channels-last, become (N, H, W, C) in PyTorch's order, or that an image? */
static bool turns_image(const Layer *l, const int8_t *from) {
    static const int8_t last[] = {0, 2, 3, 1}, first[] = {0, 3, 1, 2};
    return l->in.rank == 4 && !memcmp(from, l->in_rows ? first : last, sizeof last);
}

int layer_permute_shape(Network *n, Layer *l, Err *e) {
    int8_t from[SHAPE_MAX];
    const bool line = l->in.rank == 3 && l->in_order[0] != 0;
    Shape out = l->in;
    int code = layer_expect_inputs(l, 1, e);
    (void)n;
    if (!code) code = find_order(l, from, e);
    if (code) return code;
    for (int d = 0; d < out.rank; d++) out.dim[d] = l->in.dim[from[d]];
    layer_output(l, out);
    l->out_rows = out.rank == 4 && !(l->in_rows && turns_image(l, from));
    if (turns_line(l, from) && !line) memcpy(l->out_order, (int64_t[]){out.dim[1], 1, out.dim[2]}, sizeof l->out_order);
    return OK;
}

/* What moves nothing but dimensions of size 1 is a view. */
int layer_permute_forward(Lower *lw, const Layer *l, const int *in) {
    Attr a;
    int last = -1;
    bool same = true;
    memset(&a, 0, sizeof a);
    if (find_order(l, a.permute.from, NULL)) return 0; /* checked before */
    if (turns_line(l, a.permute.from) || turns_image(l, a.permute.from)) return lower_view(lw, l, in[0]);
    int x = lower_plain(lw, l, in[0]);
    for (int d = 0; d < l->in.rank; d++) {
        if (l->out.dim[d] == 1) continue;
        same &= a.permute.from[d] > last;
        last = a.permute.from[d];
    }
    return same ? lower_view(lw, l, x) : lower_op(lw, OP_permute, l, &x, 1, &a);
}
