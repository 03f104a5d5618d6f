/* A Comm that tells whether this rank is inside it, for who asks a rank that does not go on what it is doing. */
#include "comm.h"

#include "base/mem.h"

typedef struct Watched { Comm base; Comm *inner; volatile sig_atomic_t *inside; } Watched;

static Comm *enter(Comm *c) {
    Watched *w = (Watched *)c;
    *w->inside = 1;
    return w->inner;
}

static int leave(Comm *c, int code) {
    *((Watched *)c)->inside = 0;
    return code;
}

static void watched_close(Comm *c) {
    comm_close(((Watched *)c)->inner);
    mem_free(c);
}

static int watched_exchange(Comm *c, const void *from, const size_t *at, const size_t *bytes, void *to, const size_t *own, Err *e) {
    Comm *in = enter(c);
    return leave(c, in->table->exchange(in, from, at, bytes, to, own, e));
}

static int watched_gather(Comm *c, void *all, const size_t *bytes, Err *e) {
    Comm *in = enter(c);
    return leave(c, in->table->gather(in, all, bytes, e));
}

static int watched_broadcast(Comm *c, void *data, size_t bytes, int root, Err *e) {
    Comm *in = enter(c);
    return leave(c, in->table->broadcast(in, data, bytes, root, e));
}

static int watched_send(Comm *c, const void *data, size_t bytes, int to, Err *e) {
    Comm *in = enter(c);
    return leave(c, in->table->send(in, data, bytes, to, e));
}

static int watched_receive(Comm *c, void *data, size_t bytes, int from, Err *e) {
    Comm *in = enter(c);
    return leave(c, in->table->receive(in, data, bytes, from, e));
}

static int watched_barrier(Comm *c, Err *e) {
    Comm *in = enter(c);
    return leave(c, in->table->barrier(in, e));
}

static int watched_split(Comm *c, int color, Comm **out, Err *e) {
    Comm *in = enter(c), *part;
    int code = leave(c, in->table->split(in, color, &part, e));
    if (code) return code;
    code = comm_watch(part, ((Watched *)c)->inside, out, e);
    if (code) comm_close(part);
    return code;
}

static void watched_abort(Comm *c, int status) {
    Comm *in = ((Watched *)c)->inner;
    void (*const end)(Comm *, int) = in->table->abort;
    end(in, status);
}

int comm_watch(Comm *inner, volatile sig_atomic_t *inside, Comm **out, Err *e) {
    static const CommTable table = {"watched", watched_close, watched_exchange, watched_gather, watched_broadcast, watched_send,
                                    watched_receive, watched_barrier, watched_split, watched_abort};
    Watched *w = mem_new(sizeof *w);
    if (!w) return err_set(e, ERR_HOST_MEMORY, "out of host memory for a group of ranks");
    *w = (Watched){{&table, inner->rank, inner->world, inner->any_thread}, inner, inside};
    *out = &w->base;
    return OK;
}
