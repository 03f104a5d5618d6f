#include "uses.h"

#include <assert.h>

#include "rewrite.h"

/* Puts a read at the front of the buffer's list. */
static void link_read(Uses *u, int read, int buf) {
    int next = u->first[buf];
    u->next[read] = next;
    u->before[read] = -1;
    if (next >= 0) u->before[next] = read;
    u->first[buf] = read;
}

static void unlink_read(Uses *u, int read, int buf) {
    int before = u->before[read], next = u->next[read];
    if (before < 0) u->first[buf] = next;
    else u->next[before] = next;
    if (next >= 0) u->before[next] = before;
}

bool uses_open(Uses *u, Program *p, Scratch *s) {
    size_t reads = (size_t)p->n_ops * OP_IN, bufs = (size_t)p->n_bufs;
    *u = (Uses){p, p->n_ops, scratch_new(s, bufs, sizeof(int)), scratch_new(s, reads, sizeof(int)),
                scratch_new(s, reads, sizeof(int)), scratch_new(s, (size_t)p->n_ops, sizeof(bool))};
    if (s->failed) return false;
    for (int b = 0; b < p->n_bufs; b++) u->first[b] = -1;
    for (int i = 0; i < p->n_ops; i++)
        EACH_IN(&p->ops[i], k) link_read(u, i * OP_IN + k, p->ops[i].in[k]);
    return true;
}

void uses_close(Uses *u) {
    Rewriter r;
    assert(u->p->failed || u->n_ops == u->p->n_ops); /* no op was added meanwhile: `dropped` has their numbers */
    for (const Op *op = rewrite_begin(&r, u->p); op; op = rewrite_next(&r))
        if (!u->dropped[r.at]) rewrite_put(u->p, op);
    rewrite_end(&r);
}

int uses_reader(const Uses *u, int buf) {
    int read = u->first[buf];
    return read < 0 || u->next[read] >= 0 ? NO_OP : read / OP_IN;
}

void uses_move(Uses *u, int from, int to) {
    for (int read = u->first[from], next; read >= 0; read = next) {
        next = u->next[read];
        u->p->ops[read / OP_IN].in[read % OP_IN] = to;
        link_read(u, read, to);
    }
    u->first[from] = -1;
}

void uses_drop(Uses *u, int op) {
    assert(op >= 0 && op < u->n_ops && !u->dropped[op]);
    u->dropped[op] = true;
    EACH_IN(&u->p->ops[op], k) unlink_read(u, op * OP_IN + k, u->p->ops[op].in[k]);
}

void uses_swap(Uses *u, int op) {
    int *in = u->p->ops[op].in;
    const int first = in[0], second = in[1];
    for (int k = 0; k < 2; k++) unlink_read(u, op * OP_IN + k, in[k]);
    in[0] = second;
    in[1] = first;
    for (int k = 0; k < 2; k++) link_read(u, op * OP_IN + k, in[k]);
}
