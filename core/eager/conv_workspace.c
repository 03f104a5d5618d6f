#include "conv_workspace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plugin.h"

/* ---- the table: sorted by its texts */

typedef struct Row { const char *q; int64_t bytes[CARD_PLAN_COUNT]; } Row; /* -1: cuDNN has no engine */
#include "conv_table.def"

enum { QUERY_TEXT = 256 };

/* "weights bf16 64x3x224x224 64x3x7x7 64x64x112x112 s2x2 p3x3 d1x1 nhwc": pass, type, x, w, y, stride, padding, dilation */
static void query_text(const ConvQuery *q, char text[QUERY_TEXT]) {
    static const char *const passes[] = {"forward", "data", "weights"};
    const int64_t *const dims[] = {q->x, q->w, q->y};
    int n = snprintf(text, QUERY_TEXT, "%s %s", passes[q->pass], dtype_name(q->type));
    for (int k = 0; k < 3; k++)
        n += snprintf(text + n, QUERY_TEXT - (size_t)n, " %lldx%lldx%lldx%lld", (long long)dims[k][0], (long long)dims[k][1],
                      (long long)dims[k][2], (long long)dims[k][3]);
    snprintf(text + n, QUERY_TEXT - (size_t)n, " s%dx%d p%dx%d d%dx%d%s", q->steps.stride[0], q->steps.stride[1],
             q->steps.pad[0], q->steps.pad[1], q->steps.dilation[0], q->steps.dilation[1], q->channels_last ? " nhwc" : "");
}

static int compare(const void *key, const void *row) { return strcmp(key, ((const Row *)row)->q); }

static Workspace exact(size_t bytes, size_t version, WorkspaceSource source) {
    return (Workspace){{bytes, bytes, bytes}, version, source};
}

static bool look_up(const Card *card, const ConvQuery *q, Workspace *out) {
    char text[QUERY_TEXT];
    query_text(q, text);
    const Row *row = bsearch(text, rows, ARRAY_LEN(rows), sizeof *rows, compare);
    if (!row || row->bytes[card->plan] < 0) return false;
    *out = exact((size_t)row->bytes[card->plan], TABLE_VERSION, WORKSPACE_TABLE);
    return true;
}

/* ---- the library: looked for once in a process */

static ConvPlan *library(void) {
    static const Plugin plugin = {"planning library", "memtide_plan.so", "MEMTIDE_PLAN", "memtide_plan_conv",
                                  "memtide_plan_abi", PLAN_ABI};
    static ConvPlan *plan;
    static bool looked;
    void *handle, *entry;
    if (!looked && !plugin_load(&plugin, &handle, &entry, NULL)) memcpy(&plan, &entry, sizeof plan);
    looked = true;
    return plan;
}

static bool ask(const Card *card, const ConvQuery *q, bool all, Workspace *out) {
    ConvPlan *plan = library();
    ConvAnswer answer;
    PlanCard c;
    card_describe(card, &c);
    if (!plan || plan(&c, q, all, &answer, NULL)) return false;
    *out = exact(answer.first, answer.version, WORKSPACE_LIBRARY);
    if (all) out->bytes[ESTIMATE_MOST] = answer.most;
    return true;
}

/* ---- the table's next smaller and next larger batch: cuDNN wants as much, or as much for each sample. Of 1,500 questions
 * 97 % had an answer within these bounds, and half of all were at most 0.05 % off the likely one (tests/peers/conv_table.py --check). */

static bool with_batch(const Card *card, const ConvQuery *q, int64_t batch, Workspace *out) {
    ConvQuery other = *q;
    other.x[0] = other.y[0] = batch;
    return look_up(card, &other, out);
}

static bool between(const Card *card, const ConvQuery *q, Workspace *out) {
    const size_t n = ARRAY_LEN(batches);
    size_t next = 0;
    while (next < n - 1 && batches[next] < q->x[0]) next++;
    const int64_t batch[] = {batches[next > 0 && batches[next] > q->x[0] ? next - 1 : next], batches[next]};
    Workspace bound = {{0, SIZE_MAX, 0}, TABLE_VERSION, WORKSPACE_BATCHES};
    for (int k = 0; k < 2; k++) {
        Workspace w;
        if (!with_batch(card, q, batch[k], &w)) return false;
        const size_t same = w.bytes[ESTIMATE_LIKELY], each = (size_t)((double)same * (double)q->x[0] / (double)batch[k]);
        bound.bytes[ESTIMATE_LEAST] = min_size(bound.bytes[ESTIMATE_LEAST], min_size(same, each));
        bound.bytes[ESTIMATE_MOST] = max_size(bound.bytes[ESTIMATE_MOST], max_size(same, each));
        /* the nearer one, the larger of two that are as near */
        if (k == 0 || batch[1] - q->x[0] <= q->x[0] - batch[0]) bound.bytes[ESTIMATE_LIKELY] = each;
    }
    *out = bound;
    return true;
}

/* ---- none of them */

/* In multiples of the bytes of x, w and y, of 21,504 answers of cuDNN 9.19 and 9.26 for eight cards (docs/pytorch.md): the
 * median for tensors that lie in order, the most for the engine that is ranked first, and the most for any engine. */
enum { RATIO_LIKELY = 1, RATIO_MOST = 12, RATIO_ANY = 120 };

static size_t operand_bytes(const ConvQuery *q) {
    int64_t elements = 0;
    const int64_t *const dims[] = {q->x, q->w, q->y};
    for (int k = 0; k < 3; k++) elements += dims[k][0] * dims[k][1] * dims[k][2] * dims[k][3];
    return (size_t)elements * dtype_size(q->type);
}

Workspace conv_workspace(const Card *card, const ConvQuery *q, bool benchmark) {
    const size_t operands = operand_bytes(q);
    Workspace w = {{[ESTIMATE_LIKELY] = RATIO_LIKELY * operands, [ESTIMATE_MOST] = RATIO_MOST * operands}, 0, WORKSPACE_ESTIMATE};
    const bool known = look_up(card, q, &w);
    if (known && !benchmark) return w;
    if (!known) (void)between(card, q, &w);
    Workspace asked;
    if (ask(card, q, benchmark, &asked)) {
        if (known) asked.bytes[ESTIMATE_LIKELY] = w.bytes[ESTIMATE_LIKELY];
        w = asked;
    } else if (benchmark) {
        w.bytes[ESTIMATE_MOST] = max_size(w.bytes[ESTIMATE_MOST], RATIO_ANY * operands);
    }
    if (benchmark) w.bytes[ESTIMATE_LEAST] = 0;
    return w;
}
