#include "op_cache.h"

#include <string.h>

#include "base/mem.h"
#include "operands.h"

/* All that a preparation depends on. All bytes are zero before it is filled, so that memcmp compares keys. */
typedef struct Key {
    Attr attr;
    size_t limit;
    struct { int64_t dim[SHAPE_MAX]; int32_t rank, dtype, channels_last, present; } view[OP_IN + OP_OUT];
    int32_t kind;
} Key;

struct OpCacheEntry {
    OpCacheEntry *next;            /* in its bucket */
    OpCacheEntry *newer, *older;   /* by when they were last asked for */
    int64_t turn;                  /* OpCache.turn at that time */
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
        const View *v = operand_at(args, k);
        if (!v->count) continue;
        assert(v->shape.rank >= 0 && v->shape.rank <= SHAPE_MAX);
        key->view[k].present = 1;
        key->view[k].rank = v->shape.rank;
        key->view[k].dtype = (int32_t)v->dtype;
        key->view[k].channels_last = v->channels_last;
        memcpy(key->view[k].dim, v->shape.dim, (size_t)v->shape.rank * sizeof v->shape.dim[0]);
    }
}

static OpCacheEntry **bucket_of(OpCache *p, uint64_t hash) { return &p->bucket[hash % PREPARED_BUCKETS]; }

static void unlink_entry(OpCache *p, OpCacheEntry *entry) {
    *(entry->newer ? &entry->newer->older : &p->newest) = entry->older;
    *(entry->older ? &entry->older->newer : &p->oldest) = entry->newer;
}

static void link_newest(OpCache *p, OpCacheEntry *entry) {
    entry->newer = NULL;
    entry->older = p->newest;
    *(p->newest ? &p->newest->newer : &p->oldest) = entry;
    p->newest = entry;
    entry->turn = p->turn;
}

int op_cache_get(OpCache *p, KernelPrepare *prepare, const KArgs *args, size_t limit, void **state, size_t *workspace,
                 Err *e) {
    *state = NULL;
    *workspace = 0;
    if (!prepare) return OK;
    Key key;
    key_fill(&key, args, limit);
    uint64_t hash = hash_bytes(HASH_START, &key, sizeof key);
    OpCacheEntry **bucket = bucket_of(p, hash), *entry = *bucket;
    while (entry && (entry->hash != hash || memcmp(&entry->key, &key, sizeof key))) entry = entry->next;
    if (entry) {
        unlink_entry(p, entry);
    } else {
        entry = mem_new(sizeof *entry);
        if (!entry) return err_set(e, ERR_HOST_MEMORY, "out of host memory for a prepared op");
        int code = prepare(args, limit, &entry->state, &entry->workspace, e);
        if (code) {
            mem_free(entry);
            return code;
        }
        entry->key = key;
        entry->hash = hash;
        entry->next = *bucket;
        *bucket = entry;
        p->count++;
    }
    link_newest(p, entry);
    *state = entry->state;
    *workspace = entry->workspace;
    return OK;
}

static void drop_oldest(OpCache *p, KernelRelease *release) {
    assert(p->oldest);
    OpCacheEntry *entry = p->oldest, **at = bucket_of(p, entry->hash);
    while (*at != entry) at = &(*at)->next;
    *at = entry->next;
    unlink_entry(p, entry);
    p->count--;
    release(entry->state);
    mem_free(entry);
}

void op_cache_trim(OpCache *p, int keep, KernelRelease *release) {
    assert(keep >= 0);
    while (p->count > keep && p->oldest->turn < p->turn) drop_oldest(p, release);
    p->turn++;
}

void op_cache_clear(OpCache *p, KernelRelease *release) {
    while (p->oldest) drop_oldest(p, release);
}
