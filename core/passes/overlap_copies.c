/* Copies beside computing: a copy between the device's memory and the host's (passes offload, page) only begins, and an op `wait`
 * ends it. One to the host ends later than it did in line, one to the device begins earlier:
 *
 *     y = conv2d(x, w)                       y = conv2d(x, w)
 *     y.host = copy(y)                       y.host = copy(y), begun
 *     ...                                    ... y lives on
 *                                            wait(y.host, y)
 *                                            y.back = copy(y.host), begun
 *     ...                                    ... y.back lives already
 *     y.back = copy(y.host)                  wait(y.back, y.host)
 *     dx = act_dx(dy, y.back)                dx = act_dx(dy, y.back)
 *
 * So the device's memory holds what is copied for longer. This takes only what is free below the step's peak, with the workspace of
 * all threads: no op has more bytes alive than the most that one had before, and the arena does not grow, or copies stay in line. No
 * number changes. Copies follow each other on one lane of the device, so each begins no earlier than the copy AHEAD places before it
 * in line, and is over when the one AHEAD places after it begins. */
#include <string.h>

#include "rewrite.h"

/* A choice whose arena is larger is followed by another one with so much less room, but at least 1 / 2^LESS of what is alive at most; the
 * next one with four times that, and so on. */
enum { AHEAD = 8, TRIES = 8, LESS = 14 };

/* A copy in the program as it was: op `at`. It begins before op `begin`, and is waited for before op `end`. */
typedef struct Beside { int at, begin, end; } Beside;

typedef struct Room {
    const Program *p;
    Alive before;      /* where all copies are in line */
    size_t *live;      /* by op: the bytes alive, with what copies hold for longer */
    size_t alignment, limit;
    Beside *copy;      /* [n], in the order of ops */
    int n;
} Room;

static bool goes_to_host(const Room *r, int k) { return r->p->bufs[r->p->ops[r->copy[k].at].out[0]].host; }
static bool is_beside(const Beside *b) { return b->end > b->at + 1 || b->begin < b->at; }

/* May the copy of x to y be under way while the op runs: it neither changes x nor touches y? A view of x computes nothing. */
static bool undisturbed(const Program *p, const Op *op, int x, int y) {
    return (op->kind == OP_view || !rewrite_touches(p, op, x, false)) && !rewrite_touches(p, op, y, true);
}

/* The ops [*from, *to) of the part of the step that op `at` is in: what begins there must be over there. */
static void part_of(const Program *p, int at, int *from, int *to) {
    const int ends[] = {p->parts ? p->forward_end : 0, p->parts || p->micro_batches > 1 ? p->body_end : 0};
    *from = 0;
    *to = p->n_ops;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        if (ends[i] <= at && ends[i] > *from) *from = ends[i];
        if (ends[i] > at && ends[i] < *to) *to = ends[i];
    }
}

/* Would what stands before op i part two updates that a device can run together? */
static bool parts_updates(const Program *p, int i) {
    return i > 0 && i < p->n_ops && op_is_update(p->ops[i].kind) && p->ops[i - 1].kind == p->ops[i].kind;
}

/* The root has `bytes` more alive during [from, to). */
static void raise_live(Room *r, int root, int from, int to) {
    for (int i = from; i < to; i++) r->live[i] += align_up(r->before.life[root].bytes, r->alignment);
}

static bool has_room(const Room *r, int root, int at) {
    return r->live[at] + align_up(r->before.life[root].bytes, r->alignment) <= r->limit;
}

/* Copy k goes to the host: it ends as late as there is room, but before the backward pass, where that fetches, and at most when the
 * copy `ahead` places after it begins. */
static void end_late(Room *r, int k, int ahead) {
    const Program *p = r->p;
    Beside *b = &r->copy[k];
    const Op *op = &p->ops[b->at];
    const int x = program_root(p, op->in[0]), y = program_root(p, op->out[0]), last = r->before.life[x].last, before = b->end;
    int from, to;
    part_of(p, b->at, &from, &to);
    if (b->at < p->forward_end) to = min_int(to, p->forward_end);
    if (k + ahead < r->n) to = min_int(to, r->copy[k + ahead].at);
    for (int i = k + 1; i < r->n; i++) /* the copy that brings it back */
        if (program_root(p, p->ops[r->copy[i].at].in[0]) == y) to = min_int(to, r->copy[i].begin);
    while (b->end < to && undisturbed(p, &p->ops[b->end], x, y) && (b->end <= last || has_room(r, x, b->end))) b->end++;
    while (b->end > before && parts_updates(p, b->end)) b->end--;
    raise_live(r, x, max_int(last + 1, before), b->end);
}

/* Copy k comes to the device: it begins as early as there is room, but not before op `least`, nor before what it reads is there,
 * and at the earliest after the copy `ahead` places before it. */
static void begin_early(Room *r, int k, int ahead, int least) {
    const Program *p = r->p;
    Beside *b = &r->copy[k];
    const Op *op = &p->ops[b->at];
    const int x = program_root(p, op->in[0]), y = program_root(p, op->out[0]), before = b->begin;
    int from, to;
    part_of(p, b->at, &from, &to);
    from = max_int(from, least);
    if (k >= ahead) from = max_int(from, r->copy[k - ahead].at + 1);
    for (int i = 0; i < k; i++) /* the copy that has brought it to the host */
        if (program_root(p, p->ops[r->copy[i].at].out[0]) == x) from = max_int(from, r->copy[i].end);
    while (b->begin > from && undisturbed(p, &p->ops[b->begin - 1], x, y) && has_room(r, y, b->begin - 1)) b->begin--;
    while (b->begin < before && parts_updates(p, b->begin)) b->begin++;
    raise_live(r, y, b->begin, before);
}

/* First all copies get what is most use, then more. */
static void choose(Room *r, size_t limit) {
    r->limit = limit;
    memcpy(r->live, r->before.live, (size_t)r->p->n_ops * sizeof *r->live);
    for (int k = 0; k < r->n; k++) r->copy[k].begin = r->copy[k].at, r->copy[k].end = r->copy[k].at + 1;
    for (int ahead = 1; ahead <= AHEAD; ahead *= 2) {
        int least = 0;
        for (int k = 0; k < r->n; k++)
            if (goes_to_host(r, k)) end_late(r, k, ahead);
        for (int k = 0; k < r->n; k++) {
            if (goes_to_host(r, k)) continue;
            begin_early(r, k, ahead, least);
            least = r->copy[k].begin;
        }
    }
}

/* ---- the program with what was chosen */

static void put_begun(Program *p, const Op *copy) { rewrite_put(p, copy)->begun = true; }

static void put_wait(Program *p, const Op *copy) {
    Op *op = program_op(p, OP_wait, copy->path);
    op->wait.x = copy->in[0];
    op->wait.y = copy->out[0];
}

/* Puts op `at`, old, with what begins before it and what ends after it. Waits come first where both fall between two ops: what
 * they end gives its memory to what begins. */
static void put(Program *p, const Room *r, const Rewriter *w, const Op *old) {
    const int at = w->at;
    const Beside *of = NULL; /* the copy that the op is */
    for (int k = 0; k < r->n; k++) {
        const Beside *b = &r->copy[k];
        if (b->at == at && is_beside(b)) of = b;
        else if (b->begin == at && b->at > at) put_begun(p, &w->old[b->at]);
    }
    if (!of) rewrite_put(p, old);
    else if (of->begin < at) put_wait(p, old);
    else put_begun(p, old);
    for (int k = 0; k < r->n; k++)
        if (r->copy[k].at <= at && r->copy[k].end == at + 1 && is_beside(&r->copy[k]) && r->copy[k].begin == r->copy[k].at)
            put_wait(p, &w->old[r->copy[k].at]);
}

static void apply(Program *p, const Room *r) {
    Rewriter w;
    for (const Op *op = rewrite_begin(&w, p); op; op = rewrite_next(&w)) put(p, r, &w, op);
    rewrite_end(&w);
}

static bool is_same(const Beside *a, const Beside *b, int n) {
    for (int k = 0; k < n; k++)
        if (a[k].begin != b[k].begin || a[k].end != b[k].end) return false;
    return true;
}

/* Makes another choice than the one before, with a limit that is lower by `bytes`, or by so much more that the choice is another one.
 * false: there is none. tried: [n] for its use */
static bool choose_less(Room *r, size_t bytes, Beside *tried) {
    memcpy(tried, r->copy, (size_t)r->n * sizeof *tried);
    for (size_t limit = r->limit; limit; bytes *= 2) {
        limit -= min_size(limit, bytes);
        choose(r, limit);
        if (!is_same(tried, r->copy, r->n)) return true;
    }
    return false;
}

/* Applies the choice to a copy of the program, and keeps that as *chosen if its arena is not larger than `most`; else *above says by
 * how much it is. */
static int judge(const Program *p, const Room *r, size_t most, Program **chosen, size_t *above, Err *e) {
    size_t arena = 0;
    Program *copy = program_copy(p);
    if (!copy) return err_set(e, ERR_HOST_MEMORY, "out of host memory for a copy of the program");
    apply(copy, r);
    int code = copy->failed ? err_set(e, ERR_HOST_MEMORY, "out of host memory in a choice") : placement_arena(copy, r->alignment, &arena, e);
    if (!code && arena <= most) {
        *chosen = copy;
        return OK;
    }
    *above = arena - most;
    program_free(copy);
    return code;
}

int pass_overlap_copies(Program *p, Compile *c) {
    Scratch *s = &c->scratch;
    const size_t ops = (size_t)p->n_ops;
    Beside *tried = scratch_new(s, ops, sizeof *tried);
    Room r = {.p = p, .live = scratch_new(s, ops, sizeof *r.live), .alignment = c->device->table->alignment,
              .copy = scratch_new(s, ops, sizeof *r.copy)};
    Program *chosen = NULL;
    size_t most, above;
    if (s->failed) return OK;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_copy) r.copy[r.n++].at = i;
    if (!r.n) return UNCHANGED;
    r.before = placement_alive(p, r.alignment, s);
    if (s->failed) return OK;
    choose(&r, r.before.most);
    int code = placement_arena(p, r.alignment, &most, c->e);
    if (!code) code = judge(p, &r, most, &chosen, &above, c->e);
    size_t least = r.before.most >> LESS;
    for (int i = 1; i < TRIES && !code && !chosen && choose_less(&r, max_size(above, least), tried); i++, least *= 4)
        code = judge(p, &r, most, &chosen, &above, c->e);
    if (!chosen) return code;
    apply(p, &r);
    placement_move(p, chosen); /* p is now as that program */
    program_free(chosen);
    return code;
}
