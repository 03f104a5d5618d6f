/* digest.h: what the ops of a program compute, without computing it: an op's outputs are a digest of its kind, attributes and inputs, so equal digests mean equal
 * bits. */
#ifndef DIGEST_H
#define DIGEST_H

#include <stdlib.h>
#include <string.h>

#include "program/program.h"

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

static void digest(const Program *p, uint64_t *value) {
    for (int b = 0; b < p->n_bufs; b++) value[b] = p->bufs[b].kind == BUF_TEMP ? 0 : mix(1, (uint64_t)b);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        uint64_t h = mix(2, (uint64_t)op->kind);
        for (size_t k = 0; k < sizeof op->attr; k++) h = mix(h, ((const unsigned char *)&op->attr)[k]);
        for (int k = 0; k < OP_IN; k++) h = mix(h, op->in[k] == NO_BUF ? 3 : value[op->in[k]]);
        for (int k = 0; k < OP_OUT; k++)
            if (op->out[k] != NO_BUF) value[op->out[k]] = mix(h, (uint64_t)k);
    }
}

/* Buffers keep their index, so those of the program without checkpointing can be compared one by one. */
static bool same_values(const Program *a, const Program *b) {
    uint64_t *va = calloc((size_t)a->n_bufs, sizeof *va), *vb = calloc((size_t)b->n_bufs, sizeof *vb);
    bool same = va && vb && b->n_bufs >= a->n_bufs;
    if (same) {
        digest(a, va);
        digest(b, vb);
        same = !memcmp(va, vb, (size_t)a->n_bufs * sizeof *va);
    }
    free(va);
    free(vb);
    return same;
}

#endif
