#include "alike.h"

#include <assert.h>

#include "base/mem.h"

/* Marks the ranks along the axis "data" at which a class begins: where a buffer that is divided has a shard of another size. */
static void mark(const Program *p, bool *begins) {
    for (int b = 0; b < p->n_bufs; b++) {
        int at[2];
        if (!p->bufs[b].shard.count) continue;
        const int n = shard_changes(shape_elements(&p->bufs[b].shape), p->world, at);
        for (int i = 0; i < n; i++) begins[at[i]] = true;
    }
}

int ranks_alike(const Program *const *programs, int n_programs, Alike **out, int *n, Err *e) {
    const int world = programs[0]->world, tensor = programs[0]->tensor;
    bool *begins = mem_new((size_t)world * sizeof *begins);
    int classes = 1;
    if (!begins) return err_set(e, ERR_HOST_MEMORY, "out of host memory for %d ranks", world);
    for (int i = 0; i < n_programs; i++) {
        assert(programs[i]->world == world && programs[i]->tensor == tensor);
        mark(programs[i], begins);
    }
    for (int r = 1; r < world; r++) classes += begins[r];
    *out = mem_new((size_t)classes * sizeof **out);
    *n = 0;
    for (int r = 0; r < world && *out; r++) {
        if (r == 0 || begins[r]) (*out)[(*n)++].rank = r * tensor;
        (*out)[*n - 1].count += tensor;
    }
    mem_free(begins);
    return *out ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory for %d ranks", world);
}
