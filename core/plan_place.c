/* First fit, in about the square root of n steps for each of n pieces: the pieces lie in runs of about as many as there
 * are runs, and a search passes a run as a whole where all of its pieces are in the way, or none of them is. */
#include <string.h>

#include "mem.h"
#include "plan_private.h"

enum { LEAST_ROOM = 32 };

bool placed_open(Placed *p, int n) {
    int room = LEAST_ROOM;
    while (room < n / room) room *= 2;
    size_t runs = 2 * (size_t)(n / room) + 2; /* all but the first are at least half full */
    *p = (Placed){mem_new(runs * (size_t)room * sizeof(Piece)), mem_new(runs * sizeof(Run)), 0, room};
    return p->piece && p->run;
}

void placed_close(Placed *p) {
    mem_free(p->piece);
    mem_free(p->run);
}

void placed_clear(Placed *p) { p->n_runs = 0; }

static Piece *pieces(const Placed *p, const Run *r) { return &p->piece[(size_t)r->at * (size_t)p->room]; }

static bool at_once(const Piece *a, const Piece *b) { return a->first <= b->last && b->first <= a->last; }

static void summarize(const Placed *p, Run *r) {
    const Piece *piece = pieces(p, r);
    r->low = piece->offset;
    r->high = piece->offset + piece->size;
    r->gap = 0;
    r->first[0] = r->first[1] = piece->first;
    r->last[0] = r->last[1] = piece->last;
    for (int i = 1; i < r->n; i++) {
        const Piece *q = &piece[i];
        if (q->offset > r->high) r->gap = max_size(r->gap, q->offset - r->high);
        r->high = max_size(r->high, q->offset + q->size);
        if (q->first < r->first[0]) r->first[0] = q->first;
        if (q->first > r->first[1]) r->first[1] = q->first;
        if (q->last < r->last[0]) r->last[0] = q->last;
        if (q->last > r->last[1]) r->last[1] = q->last;
    }
}

/* ---- the search */

/* Passes the run, if no end of the search lies in it, and nothing in it must be looked at. */
static bool pass(const Run *r, Piece *piece) {
    if (r->first[1] <= piece->last && piece->first <= r->last[0]) { /* all of it is in the way */
        if (r->gap >= piece->size || r->low >= piece->offset + piece->size) return false;
        piece->offset = max_size(piece->offset, r->high);
        return true;
    }
    bool none = r->first[0] > piece->last || r->last[1] < piece->first;
    return none && r->high < piece->offset + piece->size; /* hence every offset in it, too */
}

/* Looks at the run's pieces one by one; returns how many lie before the end of the search: fewer than all, if it ends
 * here. */
static int look(const Placed *p, const Run *r, Piece *piece) {
    const Piece *other = pieces(p, r);
    int i = 0;
    for (; i < r->n; i++, other++) {
        size_t end = other->offset + other->size;
        if (other->offset >= piece->offset + piece->size) break;
        if (end > piece->offset && at_once(other, piece)) piece->offset = end;
    }
    return i;
}

/* ---- putting it there */

/* Makes two runs of a full one. */
static void split(Placed *p, int at) {
    Run *r = &p->run[at];
    memmove(r + 2, r + 1, (size_t)(p->n_runs - at - 1) * sizeof *r);
    r[1] = (Run){.n = r->n - r->n / 2, .at = p->n_runs++};
    r->n /= 2;
    memcpy(pieces(p, r + 1), pieces(p, r) + r->n, (size_t)r[1].n * sizeof(Piece));
    summarize(p, r);
    summarize(p, r + 1);
}

/* Behind all that do not begin higher; `at`: a run behind the one that it goes into, or that one. */
static void insert(Placed *p, int at, const Piece *piece) {
    if (p->n_runs == 0) p->run[p->n_runs++] = (Run){0};
    if (at == p->n_runs) at--;
    while (at > 0 && p->run[at].low > piece->offset) at--;
    if (p->run[at].n == p->room) {
        split(p, at);
        at += p->run[at + 1].low <= piece->offset;
    }
    Run *r = &p->run[at];
    Piece *list = pieces(p, r);
    int k = r->n++;
    for (; k > 0 && list[k - 1].offset > piece->offset; k--) list[k] = list[k - 1];
    list[k] = *piece;
    summarize(p, r);
}

bool placed_put(Placed *p, Piece *piece, size_t limit, long *steps) {
    int at = 0, before = 1;
    for (; at < p->n_runs; at++) {
        const Run *r = &p->run[at];
        int passed = pass(r, piece) ? r->n : look(p, r, piece);
        before += passed;
        if (passed < r->n) break;
    }
    *steps += before;
    if (piece->offset + piece->size > limit) return false;
    insert(p, at, piece);
    return true;
}
