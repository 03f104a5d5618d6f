#include "prepared.h"

#include <string.h>

#include "mem.h"

/* Cleared to zero bytes before it is filled, so that it compares as memory. */
typedef struct Key {
    Attr attr;
    size_t limit;
    struct { int64_t dim[SHAPE_MAX]; int32_t rank, dtype, channels_last, present; } view[OP_IN + OP_OUT];
    int32_t kind;
} Key;

struct PreparedEntry {
    PreparedEntry *next;
    uint64_t hash;
    Key key;
    void *state;
    size_t workspace;
};

static void key_fill(Key *key, const KArgs *args, size_t limit) {
    memset(key, 0, sizeof *key);
    memcpy(&key->attr, args->attr, sizeof key->attr);
    key->limit = limit;
    key->kind = (int32_t)args->kind;
    for (int k = 0; k < OP_IN + OP_OUT; k++) {
        const View *v = k < OP_IN ? &args->in[k] : &args->out[k - OP_IN];
        if (!v->count) continue;
        key->view[k].present = 1;
        key->view[k].rank = v->shape.rank;
        key->view[k].dtype = (int32_t)v->dtype;
        key->view[k].channels_last = v->channels_last;
        memcpy(key->view[k].dim, v->shape.dim, (size_t)v->shape.rank * sizeof v->shape.dim[0]);
    }
}

int prepared_get(Prepared *p, KernelPrepare *prepare, const KArgs *args, size_t limit, void **state, size_t *workspace,
                 Err *e) {
    *state = NULL;
    *workspace = 0;
    if (!prepare) return OK;
    Key key;
    key_fill(&key, args, limit);
    uint64_t hash = hash_bytes(HASH_START, &key, sizeof key);
    PreparedEntry **bucket = &p->bucket[hash % PREPARED_BUCKETS], *entry = *bucket;
    while (entry && (entry->hash != hash || memcmp(&entry->key, &key, sizeof key))) entry = entry->next;
    if (!entry) {
        entry = mem_new(sizeof *entry);
        if (!entry) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *entry);
        int code = prepare(args, limit, &entry->state, &entry->workspace, e);
        if (code) {
            mem_free(entry);
            return code;
        }
        entry->key = key;
        entry->hash = hash;
        entry->next = *bucket;
        *bucket = entry;
    }
    *state = entry->state;
    *workspace = entry->workspace;
    return OK;
}

void prepared_clear(Prepared *p, KernelRelease *release) {
    for (int i = 0; i < PREPARED_BUCKETS; i++) {
        while (p->bucket[i]) {
            PreparedEntry *entry = p->bucket[i];
            p->bucket[i] = entry->next;
            release(entry->state);
            mem_free(entry);
        }
    }
}
