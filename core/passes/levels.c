#include "levels.h"

Levels levels_new(int n_ops, Scratch *s) {
    int leaves = 1;
    while (leaves < n_ops) leaves *= 2;
    return (Levels){scratch_new(s, 2 * (size_t)leaves, sizeof(Level)), leaves, n_ops};
}

static size_t most_below(const Level *level, int node) {
    return max_size(level[2 * node].most, level[2 * node + 1].most) + level[node].more;
}

void levels_fill(const Levels *l, const size_t *live) {
    for (int i = 0; i < l->leaves; i++) l->node[l->leaves + i] = (Level){i < l->n_ops ? live[i] : 0, 0};
    for (int node = l->leaves - 1; node > 0; node--) {
        l->node[node].more = 0;
        l->node[node].most = most_below(l->node, node);
    }
}

/* The same for the part of [from, to) in the range of `node`: `ops` ops, from `first` on. */
static size_t most_alive(const Level *level, int node, int first, int ops, int from, int to) {
    if (to <= first || first + ops <= from) return 0;
    if (from <= first && first + ops <= to) return level[node].most;
    size_t low = most_alive(level, 2 * node, first, ops / 2, from, to);
    size_t high = most_alive(level, 2 * node + 1, first + ops / 2, ops / 2, from, to);
    return max_size(low, high) + level[node].more;
}

size_t levels_most(const Levels *l, int from, int to) {
    return from < to ? most_alive(l->node, 1, 0, l->leaves, from, to) : 0;
}

static void raise_level(Level *level, int node, int first, int ops, int from, int to, size_t bytes) {
    if (to <= first || first + ops <= from) return;
    if (from <= first && first + ops <= to) {
        level[node].most += bytes;
        level[node].more += bytes;
        return;
    }
    raise_level(level, 2 * node, first, ops / 2, from, to, bytes);
    raise_level(level, 2 * node + 1, first + ops / 2, ops / 2, from, to, bytes);
    level[node].most = most_below(level, node);
}

void levels_raise(const Levels *l, int from, int to, size_t bytes) {
    if (from < to) raise_level(l->node, 1, 0, l->leaves, from, to, bytes);
}

int levels_free_from(const Program *p, const Life *life, int buf, int made) {
    const int root = program_root(p, buf);
    int from = made + 1;
    for (; from <= life[root].last; from++) {
        const Op *op = &p->ops[from];
        if (op->kind != OP_view && op->out[0] != NO_BUF && program_root(p, op->out[0]) == root) break;
    }
    return from;
}
