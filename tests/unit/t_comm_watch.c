/* A Comm that is watched: passes calls on, and is inside exactly while one of them runs. */
#include <string.h>

#include "base/mem.h"
#include "memory/comm.h"
#include "tap.h"

static volatile sig_atomic_t inside;
static char calls[128];
static int answer, closed, aborted;

static int note(const char *call, Err *e) {
    snprintf(calls + strlen(calls), sizeof calls - strlen(calls), "%s%d ", call, (int)inside);
    return answer ? err_set(e, answer, "%s has failed", call) : OK;
}

static void fake_close(Comm *c) { closed += c != NULL; }
static int fake_exchange(Comm *c, const void *from, const size_t *at, const size_t *bytes, void *to, const size_t *own, Err *e) {
    (void)c, (void)from, (void)at, (void)bytes, (void)to, (void)own;
    return note("exchange", e);
}
static int fake_gather(Comm *c, void *all, const size_t *bytes, Err *e) { return (void)c, (void)all, (void)bytes, note("gather", e); }
static int fake_broadcast(Comm *c, void *data, size_t bytes, int root, Err *e) {
    return (void)c, (void)data, (void)bytes, (void)root, note("broadcast", e);
}
static int fake_send(Comm *c, const void *data, size_t bytes, int to, Err *e) {
    return (void)c, (void)data, (void)bytes, (void)to, note("send", e);
}
static int fake_receive(Comm *c, void *data, size_t bytes, int from, Err *e) {
    return (void)c, (void)data, (void)bytes, (void)from, note("receive", e);
}
static int fake_barrier(Comm *c, Err *e) { return (void)c, note("barrier", e); }
static int fake_split(Comm *c, int color, Comm **out, Err *e);
static void fake_abort(Comm *c, int status) { (void)c, aborted = status; }

static const CommTable table = {"fake", fake_close, fake_exchange, fake_gather, fake_broadcast, fake_send, fake_receive,
                                fake_barrier, fake_split, fake_abort};
static Comm whole = {&table, 2, 4, true}, part = {&table, 1, 2, false};

static int fake_split(Comm *c, int color, Comm **out, Err *e) {
    (void)c, (void)color;
    *out = &part;
    return note("split", e);
}

int main(void) {
    Err e = {0, ""};
    Comm *c, *half;
    const size_t sizes[4] = {0};
    mem_fail_after(1);
    is_int(comm_watch(&whole, &inside, &c, &e), ERR_HOST_MEMORY, "without memory");
    mem_fail_after(0);
    if (!ok(!comm_watch(&whole, &inside, &c, &e), "a watched Comm: %s", e.text)) return tap_done();
    ok(c->rank == 2 && c->world == 4 && c->any_thread, "of the same rank, for the same threads");
    const CommTable *t = c->table;
    ok(!t->exchange(c, NULL, sizes, sizes, NULL, sizes, &e) && !t->gather(c, NULL, sizes, &e) && !t->broadcast(c, NULL, 0, 0, &e) &&
       !t->send(c, NULL, 0, 1, &e) && !t->receive(c, NULL, 0, 1, &e) && !t->barrier(c, &e), "calls are passed on");
    is_str(calls, "exchange1 gather1 broadcast1 send1 receive1 barrier1 ", "each of them inside");
    is_int(inside, 0, "and outside after them");
    calls[0] = 0;
    if (!ok(!t->split(c, 1, &half, &e), "a part of it")) return tap_done();
    ok(half->rank == 1 && half->world == 2 && !half->table->barrier(half, &e), "has its own ranks");
    is_str(calls, "split1 barrier1 ", "and is watched, too");
    comm_close(half);
    is_int(closed, 1, "closing closes what is watched");
    answer = ERR_DEVICE;
    is_int(t->gather(c, NULL, sizes, &e), ERR_DEVICE, "an error is passed on");
    is_str(e.text, "gather has failed", "with its text");
    is_int(inside, 0, "and is outside");
    is_int(t->split(c, 1, &half, &e), ERR_DEVICE, "a part that cannot be made");
    t->abort(c, 7);
    is_int(aborted, 7, "the end of all");
    answer = OK;
    mem_fail_after(1);
    is_int(t->split(c, 1, &half, &e), ERR_HOST_MEMORY, "a part that there is no memory for");
    mem_fail_after(0);
    is_int(closed, 2, "is closed");
    comm_close(c);
    is_int(closed, 3, "and so is the whole");
    is_int((int)mem_live(), 0, "and nothing is left");
    return tap_done();
}
