/* Offloading: an activation that the backward pass will read waits in the host's memory, as under PyTorch's
 * save_on_cpu. It is copied there after the op that makes it, and back before the first op of the backward pass that
 * reads it:
 *
 *     y = conv2d(x, w)                       y's life without: ------------------------------
 *     y.host = copy(y)                                   with: ---                         ---
 *     ...
 *     y.back = copy(y.host)
 *     dx = act_dx(dy, y.back)
 *
 * Copies run in line with the other ops, so they cost time. An activation therefore stays on the device if it raises
 * the peak neither above the budget nor above somewhat less than the least peak (all activations moved); the largest are tried first. */
#include <assert.h>
#include <stdlib.h>

#include "checkpoint.h"
#include "levels.h"
#include "rewrite.h"

/* An activation that may be moved to the host. */
typedef struct Trip {
    int buf, host, back; /* buffers: the activation; its copies in the program that moves it, or NO_BUF */
    size_t bytes;
} Trip;

/* ---- which may be moved */

/* The largest first; ties in buffer order. */
static int compare_trips(const void *left, const void *right) {
    const Trip *a = left, *b = right;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a->buf - b->buf;
}

/* trip[n_bufs]; returns how many there are. Takes storage that is read at the end of the step out of c->saved: it
 * stays. least: bytes; what is smaller stays, too. */
static int find_trips(Chain *c, size_t least, Trip *trip) {
    const Program *p = c->p;
    int n = 0;
    for (int b = 0; b < p->n_bufs; b++)
        if (p->bufs[b].keep) c->saved[program_root(p, b)] = false;
    for (int b = 0; b < p->n_bufs; b++) {
        const Buf *buf = &p->bufs[b];
        if (c->writer[b] != NO_OP && c->saved[b] && buf->category == CAT_ACTIVATIONS && buf->bytes >= least)
            trip[n++] = (Trip){b, NO_BUF, NO_BUF, buf->bytes};
    }
    qsort(trip, (size_t)n, sizeof *trip, compare_trips);
    return n;
}

/* ---- moving them */

typedef struct Tour {
    Program *p;
    Trip **trip;   /* by buffer: its trip, or NULL */
    int n_bufs;    /* how many the program had before */
    int *twin;     /* by buffer: the one that the backward pass reads in its place, or NO_BUF */
} Tour;

static int twin_of(Program *p, int like, const char *suffix) {
    int n = program_like(p, like, p->bufs[like].category, p->bufs[like].shape, p->bufs[like].dtype, suffix);
    return p->failed ? like : n;
}

/* Copies what `op` has made to the host. */
static void send(Tour *r, const Op *op) {
    EACH_OUT(op, k) {
        Trip *t = r->trip[op->out[k]];
        if (!t || r->p->failed) continue;
        t->host = twin_of(r->p, t->buf, "host");
        r->p->bufs[t->host].host = true;
        rewrite_emit(r->p, OP_copy, t->buf, t->host, op->path);
    }
}

/* What the backward pass reads in place of `buf`: itself if it was not moved; else its copy, made here for the first
 * reader; of a view, a view of the copy. */
static int fetched(Tour *r, int buf, const char *path) {
    if (buf >= r->n_bufs) return buf;
    if (r->twin[buf] != NO_BUF) return r->twin[buf];
    int root = program_root(r->p, buf);
    Trip *t = r->trip[root];
    if (!t || r->p->failed) return buf;
    assert(t->host != NO_BUF); /* sent in the forward pass */
    if (buf == root) {
        t->back = twin_of(r->p, root, "back");
        rewrite_emit(r->p, OP_copy, t->host, t->back, path);
        return r->twin[buf] = t->back;
    }
    int whole = fetched(r, root, path), twin = twin_of(r->p, buf, "back");
    r->p->bufs[twin].alias = whole;
    rewrite_emit(r->p, OP_view, whole, twin, path);
    return r->twin[buf] = twin;
}

typedef struct Choice { Trip *trip; int n; } Choice;

/* An ApplyFn: makes the trips of a Choice in p, and sets their host and back. */
static void go(Program *p, const void *choice, Scratch *s) {
    const Choice *made = choice;
    Tour r = {p, scratch_new(s, (size_t)p->n_bufs, sizeof(Trip *)), p->n_bufs,
              scratch_new(s, (size_t)p->n_bufs, sizeof(int))};
    Rewriter w;
    if (s->failed) return;
    for (int i = 0; i < made->n; i++) r.trip[made->trip[i].buf] = &made->trip[i];
    for (int b = 0; b < r.n_bufs; b++) r.twin[b] = NO_BUF;
    for (const Op *old = rewrite_begin(&w, p); old; old = rewrite_next(&w)) {
        Op op = *old;
        if (w.at >= w.forward_end) {
            EACH_IN(&op, k) op.in[k] = fetched(&r, op.in[k], op.path);
        }
        rewrite_put(p, &op);
        if (w.at < w.forward_end) send(&r, &op);
    }
    rewrite_end(&w);
}

/* ---- which may stay */

/* The finished program in which all have been moved. */
typedef struct Tide {
    const Program *p;
    Alive alive;
    int *made, *read;   /* by buffer: the op whose first output it is; the first op whose first input it is */
    Levels levels;      /* the bytes alive with those that stay */
} Tide;

/* Does the activation stay, because no more than `limit` bytes are then alive? If so, it is added to the levels. Its storage is
 * free because it was moved until the copy back. */
static bool stays(const Tide *f, const Trip *t, size_t limit, size_t alignment) {
    const int from = levels_free_from(f->p, f->alive.life, t->buf, f->made[t->host]), to = f->read[t->host];
    const size_t bytes = align_up(f->alive.life[program_root(f->p, t->buf)].bytes, alignment);
    if (levels_most(&f->levels, from, to) + bytes > limit) return false;
    levels_raise(&f->levels, from, to, bytes);
    return true;
}

/* going[n]: the trips that must be made so that no more than `limit` bytes are alive; returns how many. */
static int pick(const Tide *f, const Trip *trip, int n, size_t limit, size_t alignment, Trip *going) {
    int left = 0;
    levels_fill(&f->levels, f->alive.live);
    for (int i = 0; i < n; i++)
        if (!stays(f, &trip[i], limit, alignment)) going[left++] = trip[i];
    return left;
}

/* A placed arena may be larger than the bytes alive at once: then the limit falls by the difference, and more go. Without a budget
 * above the least peak, those that stay leave a part of it free, one in FREE: an arena that is full nearly all the time has no place
 * for every buffer, also when threads add workspace and copies last longer (overlap_copies.c). Of smaller parts that is not enough. */
static int fit(const Program *p, const Tide *f, const Trip *trip, int n, Compile *c, Trip *going, int *left) {
    enum { TRIES = 8, FREE = 64 };
    const size_t budget = c->settings->offload_budget, most = f->alive.most, least = most - most / FREE;
    size_t alignment = c->device->table->alignment, limit = budget > most ? budget : least, arena;
    *left = 0;
    if (budget) { /* do all fit? Later passes may choose otherwise than in `f`, where none stays */
        int code = whatif(p, NULL, NULL, c, NULL, &arena);
        if (code || arena <= budget) return code;
    }
    for (int i = 0;; i++) {
        *left = pick(f, trip, n, limit, alignment, going);
        if (limit == least) return OK;
        int code = whatif(p, go, &(Choice){going, *left}, c, NULL, &arena);
        if (code || arena <= budget) return code;
        limit = i < TRIES ? max_size(least, limit - min_size(limit, arena - budget)) : least;
    }
}

/* going[*left]: the trips to make. all: p with all of them made, finished. */
static int choose(const Program *p, const Trip *trip, int n, const Program *all, Compile *c, Trip *going, int *left) {
    const size_t bufs = (size_t)all->n_bufs;
    Scratch *s = &c->scratch;
    Tide f = {all, placement_alive(all, c->device->table->alignment, s), scratch_new(s, bufs, sizeof(int)),
              scratch_new(s, bufs, sizeof(int)), levels_new(all->n_ops, s)};
    if (s->failed) return OK;
    for (int i = all->n_ops - 1; i >= 0; i--) {
        const Op *op = &all->ops[i];
        if (op->out[0] != NO_BUF) f.made[op->out[0]] = i;
        if (op->in[0] != NO_BUF) f.read[op->in[0]] = i;
    }
    return fit(p, &f, trip, n, c, going, left);
}

int pass_offload(Program *p, Compile *c) {
    if (c->settings->eval || c->settings->offload == OFFLOAD_NONE || !chain_has_choice(p)) return UNCHANGED;
    assert(p->body_end == p->n_ops && p->micro_batches == 1); /* before accumulate and update */
    Scratch *s = &c->scratch;
    Trip *trip = scratch_new(s, (size_t)p->n_bufs, sizeof *trip);
    Trip *going = scratch_new(s, (size_t)p->n_bufs, sizeof *going);
    Chain chain;
    Program *all;
    if (!chain_find(&chain, p, s)) return OK;
    int left = 0, n = find_trips(&chain, c->settings->offload_least, trip);
    int code = whatif(p, go, &(Choice){trip, n}, c, &all, NULL);
    if (code) return code;
    code = choose(p, trip, n, all, c, going, &left);
    program_free(all);
    if (!code && !s->failed) go(p, &(Choice){going, left}, s);
    return code;
}
