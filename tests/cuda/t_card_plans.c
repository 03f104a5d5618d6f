/* The plans of many cards: the way and the workspace that each convolution of the article's network, VGG16 and ResNet-18 gets on seven
 * GPUs, as cuDNN answers for their descriptions. Peaks alone prove little: most are the same on all of them.
 *
 * PLANS=all: every op (make cuda-test); else the article's, and those on which cards differ most. PRINT_PLANS=1 prints what card_plans.inc
 * is to hold, for another version of cuDNN. */
#include "cards.h"

/* OFTEN: ops with so many different plans are always asked about */
enum { LIMIT = 4 << 20, CARDS = 7, OFTEN = 3 };
static const char *const cards[CARDS] = {"t4", "a100-80gb", "rtx3090", "rtx4090", "h100", "h200", "b200"};

/* Each network's different convolutions, batch 64. After a convolution comes ReLU; or batch normalisation, and then the convolution has
 * no bias. */
typedef struct Layer { Case conv; int32_t stride; bool normed; } Layer;
typedef struct Net { const char *name; int n; Layer layer[12]; } Net;
static const Net nets[] = {
    {"article", 2, {{{64, 3, 64, 3, 32, 0}, 1, false}, {{64, 64, 128, 3, 30, 0}, 1, false}}},
    {"vgg16", 9,
     {{{64, 3, 64, 3, 224, 1}, 1, false},   {{64, 64, 64, 3, 224, 1}, 1, false},  {{64, 64, 128, 3, 112, 1}, 1, false},
      {{64, 128, 128, 3, 112, 1}, 1, false}, {{64, 128, 256, 3, 56, 1}, 1, false}, {{64, 256, 256, 3, 56, 1}, 1, false},
      {{64, 256, 512, 3, 28, 1}, 1, false},  {{64, 512, 512, 3, 28, 1}, 1, false}, {{64, 512, 512, 3, 14, 1}, 1, false}}},
    {"resnet18", 11,
     {{{64, 3, 64, 7, 224, 3}, 2, true},   {{64, 64, 64, 3, 56, 1}, 1, true},   {{64, 64, 128, 3, 56, 1}, 2, true},
      {{64, 64, 128, 1, 56, 0}, 2, true},  {{64, 128, 128, 3, 28, 1}, 1, true}, {{64, 128, 256, 3, 28, 1}, 2, true},
      {{64, 128, 256, 1, 28, 0}, 2, true}, {{64, 256, 256, 3, 14, 1}, 1, true}, {{64, 256, 512, 3, 14, 1}, 2, true},
      {{64, 256, 512, 1, 14, 0}, 2, true}, {{64, 512, 512, 3, 7, 1}, 1, true}}},
};

typedef struct Plan { const char *way; size_t workspace; } Plan;
typedef struct Row { const char *op; Plan plan[CARDS]; } Row; /* by card */
static const Row rows[] = {
#include "card_plans.inc"
};
enum { ROWS = sizeof rows / sizeof *rows };

static CudaDevice *devices[CARDS];

/* The op as the network's training step has it: what is fused into it, and dx only where something asks for it. */
static bool ask_layer(Asked *q, const Layer *l, const Precision *p, ConvPass pass) {
    const Extras forward = l->normed ? BARE : WITH_ACT, data = l->normed ? WITH_ACT : WITH_ALL;
    const int64_t size = l->conv.size, out = (size + 2 * l->conv.pad - l->conv.k) / l->stride + 1;
    if (pass == CONV_DATA && l->conv.c == 3) return false; /* the images */
    ask(q, NULL, &l->conv, p, pass, pass == CONV_FORWARD ? forward : pass == CONV_DATA ? data : BARE);
    q->attr.conv.stride[0] = q->attr.conv.stride[1] = l->stride;
    View *y = pass == CONV_FORWARD ? &q->args.out[0] : pass == CONV_DATA ? &q->args.in[0] : &q->args.in[1];
    *y = view4(y->dtype, l->conv.n, l->conv.o, out, out);
    return true;
}

static Plan plan_of(Asked *q, int card) {
    static char way[CARDS][ERR_TEXT];
    ConvState *s = NULL;
    size_t bytes = 0;
    Err e = {.text = ""};
    q->args.device = devices[card];
    int code = prepare(q, LIMIT, &s, &bytes, &e);
    snprintf(way[card], sizeof way[card], "%s", code ? e.text : way_name(s->does));
    conv_release(s);
    return (Plan){way[card], bytes};
}

static bool same(const Plan *a, const Plan *b) { return a->workspace == b->workspace && !strcmp(a->way, b->way); }

/* How many different plans the cards have of an op. */
static int kinds(const Row *r) {
    int n = 0;
    for (int k = 0; k < CARDS; k++) {
        bool seen = false;
        for (int i = 0; i < k; i++) seen |= same(&r->plan[i], &r->plan[k]);
        n += !seen;
    }
    return n;
}

static void print_row(const char *op, const Plan *found) {
    fprintf(stderr, "{\"%s\",\n {", op);
    for (int k = 0; k < CARDS; k++) fprintf(stderr, "%s{\"%s\", %zu}", k ? ", " : "", found[k].way, found[k].workspace);
    fprintf(stderr, "}},\n");
}

static void check_op(Asked *q, const char *op, const Row *row) {
    Plan found[CARDS];
    int wrong = 0;
    for (int k = 0; k < CARDS; k++) {
        found[k] = plan_of(q, k);
        if (row && same(&found[k], &row->plan[k])) continue;
        wrong++;
        printf("# %s on %s: found %s, %zu; expected %s, %zu\n", op, cards[k], found[k].way, found[k].workspace,
               row ? row->plan[k].way : "nothing", row ? row->plan[k].workspace : 0);
    }
    ok(wrong == 0, "%s: %d plans on %d cards", op, row ? kinds(row) : 0, CARDS);
    if (getenv("PRINT_PLANS")) print_row(op, found);
}

static void test_plans(bool all) {
    static const char *const passes[] = {"y", "dx", "dw"};
    static const int of[] = {0, 3}; /* fp32, amp_fp16: what all seven have */
    int at = 0, asked = 0, differ = 0;
    for (size_t n = 0; n < ARRAY_LEN(nets); n++)
        for (int l = 0; l < nets[n].n; l++)
            for (int k = 0; k < 6; k++) {
                const Layer *layer = &nets[n].layer[l];
                const Precision *p = &precisions[of[k / 3]];
                Asked q;
                char op[96];
                if (!ask_layer(&q, layer, p, (ConvPass)(k % 3))) continue;
                snprintf(op, sizeof op, "%s %lld->%lld %lldx%lld @%lld /%d %s %s", nets[n].name, (long long)layer->conv.c,
                         (long long)layer->conv.o, (long long)layer->conv.k, (long long)layer->conv.k,
                         (long long)layer->conv.size, layer->stride, p->name, passes[k % 3]);
                const Row *row = at < ROWS && !strcmp(rows[at].op, op) ? &rows[at] : NULL;
                at++;
                differ += row && kinds(row) > 1;
                if (!all && row && n && kinds(row) < OFTEN) continue;
                check_op(&q, op, row);
                asked++;
            }
    is_int(at, ROWS, "each op has a row, in this order");
    ok(differ > 0, "%d of %d ops differ between the cards, %d were asked", differ, at, asked);
}

int main(void) {
    const char *plans = getenv("PLANS");
    bool good = true;
    if (!is_known("plans of many cards")) return tap_done();
    if (!mkdtemp(test_folder)) return 1;
    setenv("XDG_CACHE_HOME", test_folder, 1);
    unsetenv("MEMTIDE_PICKS");
    for (int k = 0; k < CARDS && good; k++) good = (devices[k] = open_card(cards[k])) != NULL;
    if (good) test_plans(plans && !strcmp(plans, "all"));
    for (int k = 0; k < CARDS; k++)
        if (devices[k]) cuda_release(devices[k]);
    remove_test_folder();
    return tap_done();
}
