/* plan.c: the planning library's exports: what cuDNN would take for a convolution of PyTorch on a GPU that is not here. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "plan_card.h"
#include "cudnn_device.h"
#include "engines.h"

extern const uint64_t memtide_plan_abi;
const uint64_t memtide_plan_abi = PLAN_ABI;
ConvPlan memtide_plan_conv;

/* ---- the card */

/* The card that was asked about last; it stays to the end of the process. */
static int card_device(const PlanCard *card, CudaDevice **out, Err *e) {
    static PlanCard last;
    static CudaDevice device;
    *out = &device;
    if (device.model.description && !memcmp(card, &last, sizeof last)) return OK;
    cudnn_device_close(&device);
    mem_free(device.model.description);
    memset(&device, 0, sizeof device);
    device.ordinal = NOT_HERE;
    last = *card;
    return plan_card_describe(card, &device.model, e);
}

/* ---- what was asked */

static Node tensor(Graph *g, const ConvQuery *q, int64_t id, const int64_t dim[4]) {
    return (q->channels_last ? graph_tensor : graph_tensor_in_order)(g, id, q->type, dim);
}

/* PyTorch takes no engine that rounds its operands to a smaller type; tensor cores are allowed. */
static bool pytorch_may(const Engine *engine) {
    return !(engine->notes & 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
}

static int no_engine(const char *card, Err *e) {
    return err_set(e, ERR_UNSUPPORTED, "cuDNN has no engine for this convolution on %s", card);
}

/* As ATen/native/cudnn/Conv_v8.cpp: the quick ranking, then the engines that work. */
static int ask(CudaDevice *c, const Graph *g, bool all, ConvAnswer *out, Err *e) {
    static const int rankings[] = {0, ENGINE_RANKINGS - 1};
    enum { FEW = 4 }; /* the first is nearly always taken */
    bool found = false;
    for (size_t r = 0; r < ARRAY_LEN(rankings) && (all || !found); r++)
        for (int most = all ? ENGINES_ALL : FEW; most; most = found || most == ENGINES_ALL ? 0 : ENGINES_ALL) {
            Engines list = {0};
            int code = engines_ask(c, g, rankings[r], most, &list, e);
            for (int k = 0; k < list.n && !code; k++) {
                if (!pytorch_may(&list.at[k]) || (found && !all)) continue;
                if (!found) *out = (ConvAnswer){list.at[k].workspace, list.at[k].workspace, cudnnGetVersion()};
                out->most = max_size(out->most, list.at[k].workspace);
                found = true;
            }
            engines_free(&list);
            if (code) return code;
        }
    return found ? OK : no_engine(c->model.name, e);
}

static int plan(const PlanCard *card, const ConvQuery *q, bool all, ConvAnswer *out, Err *e) {
    enum { X = 1, W, Y };
    CudaDevice *c;
    int code = card_device(card, &c, e);
    if (code) return code;
    const ConvSteps *s = &q->steps;
    const ConvAttr attr = {.stride = {s->stride[0], s->stride[1]}, .pad = {s->pad[0], s->pad[1], s->pad[0], s->pad[1]},
                           .dilation = {s->dilation[0], s->dilation[1]}, .groups = s->groups};
    Graph g = {0};
    Node x = tensor(&g, q, X, q->x), w = tensor(&g, q, W, q->w), y = tensor(&g, q, Y, q->y);
    graph_conv(&g, q->pass, &attr, x, w, y);
    code = graph_finish(&g, NULL, e);
    if (!code) code = ask(c, &g, all, out, e);
    graph_free(&g);
    return code;
}

/* An answer takes up to a millisecond, all of them more than ten, and that there is none takes as long. A step asks the same in each of
 * its passes, a search for the largest batch in each of its variants: what was answered is kept, one answer for each hash, and also that
 * cuDNN has no engine (`none`). Any other failure may pass. */
int memtide_plan_conv(const PlanCard *card, const ConvQuery *q, bool all, ConvAnswer *out, Err *e) {
    enum { ANSWERS = 1024 };
    static struct { PlanCard card; ConvQuery q; bool known, all, none; ConvAnswer found; } answers[ANSWERS];
    const uint64_t hash = hash_bytes(hash_bytes(HASH_START, card, sizeof *card), q, sizeof *q);
    const size_t at = (size_t)(hash % ANSWERS);
    const bool known = answers[at].known && !memcmp(&answers[at].q, q, sizeof *q) && !memcmp(&answers[at].card, card, sizeof *card);
    if (known && answers[at].none) return no_engine(card->name, e);
    if (known && (answers[at].all || !all)) {
        *out = answers[at].found;
        if (!all) out->most = out->first;
        return OK;
    }
    int code = plan(card, q, all, out, e);
    if (code && code != ERR_UNSUPPORTED) return code;
    answers[at].card = *card;
    answers[at].q = *q;
    answers[at].known = true;
    answers[at].all = all;
    answers[at].none = code;
    if (!code) answers[at].found = *out;
    return code;
}
