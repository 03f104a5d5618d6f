/* Workspaces of convolutions without a planning library: the committed table, and estimates with bounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "eager/conv_workspace.h"

typedef struct Row { const char *q; int64_t bytes[CARD_PLAN_COUNT]; } Row;
#include "eager/conv_table.def"

static ConvPass pass_of(const char *name) {
    return !strcmp(name, "forward") ? CONV_FORWARD : !strcmp(name, "data") ? CONV_DATA : CONV_WEIGHTS;
}

static DType type_of(const char *name) { return !strcmp(name, "f32") ? DT_F32 : !strcmp(name, "f16") ? DT_F16 : DT_BF16; }

/* The query that a row's text is of */
static ConvQuery query(const char *text) {
    ConvQuery q;
    char pass[16], type[8];
    long long n[12];
    int s[6];
    memset(&q, 0, sizeof q);
    const int found = sscanf(text, "%15s %7s %lldx%lldx%lldx%lld %lldx%lldx%lldx%lld %lldx%lldx%lldx%lld s%dx%d p%dx%d d%dx%d",
                             pass, type, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9, n + 10, n + 11, s,
                             s + 1, s + 2, s + 3, s + 4, s + 5);
    if (found != 20) return q;
    q.pass = pass_of(pass);
    q.type = type_of(type);
    for (int k = 0; k < 4; k++) {
        q.x[k] = n[k];
        q.w[k] = n[4 + k];
        q.y[k] = n[8 + k];
    }
    for (int k = 0; k < 2; k++) {
        q.steps.stride[k] = s[k];
        q.steps.pad[k] = s[2 + k];
        q.steps.dilation[k] = s[4 + k];
    }
    q.steps.groups = 1;
    return q;
}

static bool is_exact(const Workspace *w, int64_t bytes) {
    for (int k = 0; k < ESTIMATES; k++)
        if (w->bytes[k] != (size_t)bytes) return false;
    return w->source == WORKSPACE_TABLE && w->version == TABLE_VERSION;
}

static void test_table(void) {
    int sorted = 0, found = 0, none = 0, of_cards = 0;
    const int n = (int)ARRAY_LEN(rows);
    for (int i = 0; i < n; i++) {
        const ConvQuery q = query(rows[i].q);
        sorted += i == 0 || strcmp(rows[i - 1].q, rows[i].q) < 0;
        for (int k = 0; card_info(k); k++) {
            const Card *card = card_info(k);
            const int64_t bytes = rows[i].bytes[card->plan];
            const Workspace w = conv_workspace(card, &q, false);
            of_cards++;
            found += bytes >= 0 && is_exact(&w, bytes);
            none += bytes < 0 && w.source == WORKSPACE_ESTIMATE;
        }
    }
    ok(n > 1000, "a table");
    is_int(sorted, n, "its rows are sorted, none stands twice");
    is_int(found + none, of_cards, "each is found for each card, or estimated where cuDNN has no engine");
    ok(none > 0 && found > 10 * none, "most are found");
}

static void test_estimate(void) {
    const ConvQuery q = query("weights f32 33x5x17x17 7x5x3x3 33x7x15x15 s1x1 p0x0 d1x1");
    const Card *card = card_find("a100-80gb");
    const size_t operands = sizeof(float) * (33 * 5 * 17 * 17 + 7 * 5 * 9 + 33 * 7 * 15 * 15);
    Workspace w = conv_workspace(card, &q, false), all = conv_workspace(card, &q, true);
    is_int(w.source, WORKSPACE_ESTIMATE, "another size is estimated");
    is_int((long long)w.bytes[ESTIMATE_LIKELY], (long long)operands, "by its operands");
    ok(w.bytes[ESTIMATE_LEAST] < w.bytes[ESTIMATE_LIKELY] && w.bytes[ESTIMATE_LIKELY] < w.bytes[ESTIMATE_MOST], "with bounds");
    ok(all.bytes[ESTIMATE_MOST] > w.bytes[ESTIMATE_MOST], "cudnn.benchmark may take more");
    const ConvQuery known = query(rows[ARRAY_LEN(rows) / 2].q);
    w = conv_workspace(card, &known, false);
    all = conv_workspace(card, &known, true);
    is_int((long long)all.bytes[ESTIMATE_LIKELY], (long long)w.bytes[ESTIMATE_LIKELY], "cudnn.benchmark: likely the first engine");
    ok(all.bytes[ESTIMATE_LEAST] == 0 && all.bytes[ESTIMATE_MOST] >= w.bytes[ESTIMATE_LIKELY], "but any of them");
}

int main(void) {
    setenv("MEMTIDE_PLAN", "/none", 1);
    test_table();
    test_estimate();
    return tap_done();
}
