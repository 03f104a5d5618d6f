/* t_comm.c: the MPI plugin (memory/comm.h) as one of the ranks that t_comm.sh starts. Every rank checks what it has received;
 * rank 0 prints TAP: a check is good where it is on all ranks. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "memory/comm.h"
#include "tap.h"

enum { MOST = 1 << 20, UNIT = 1000 };

static Comm *all;

/* The check that is good on every rank; rank 0 tells. */
static void everywhere(bool good, const char *what) {
    Err e = {0, ""};
    char found[64] = {0};
    size_t bytes[64];
    for (int r = 0; r < all->world; r++) bytes[r] = 1;
    found[all->rank] = good;
    const bool heard = !all->table->gather(all, found, bytes, &e);
    if (all->rank) return;
    int count = 0;
    for (int r = 0; r < all->world; r++) count += found[r];
    if (!ok(heard && count == all->world, "%d ranks: %s", all->world, what)) printf("# good on %d of them %s\n", count, e.text);
}

/* Byte i of what rank `from` has for rank `to` */
static char byte_of(int from, int to, size_t i) { return (char)((size_t)(from * 31 + to * 7 + 1) + i * 13 + i / 251); }

static bool filled(const char *data, size_t n, int from, int to) {
    for (size_t i = 0; i < n; i++)
        if (data[i] != byte_of(from, to, i)) return false;
    return true;
}

static void fill(char *data, size_t n, int from, int to) {
    for (size_t i = 0; i < n; i++) data[i] = byte_of(from, to, i);
}

/* How many bytes rank `from` has for rank `to`, by pattern */
static size_t uneven(int from, int to) { return (size_t)((from + 2 * to) % 4) * UNIT + (size_t)(from + to) % 3; }
static size_t even(int from, int to) { (void)from, (void)to; return 3 * UNIT; }
static size_t nothing(int from, int to) { (void)from, (void)to; return 0; }
static size_t one_alone(int from, int to) { return from == 0 && to == 0 ? 0 : to == all->world - 1 ? 2 * UNIT + 1 : 0; }

typedef size_t SizeOf(int from, int to);
static const struct { const char *name; SizeOf *size; } patterns[] = {
    {"even", even}, {"uneven", uneven}, {"empty", nothing}, {"to the last one alone", one_alone}};

static void exchange(Comm *c, SizeOf *size, const char *what, char *from, char *to) {
    Err e = {0, ""};
    size_t at[64], bytes[64], own[64], put = 5, got = 0; /* what is sent need not lie at the beginning */
    for (int r = 0; r < c->world; r++) {
        at[r] = put;
        bytes[r] = size(c->rank, r);
        own[r] = size(r, c->rank);
        fill(from + put, bytes[r], c->rank, r);
        put += bytes[r] + 3;
        got += own[r];
    }
    memset(to, 0x55, got + 1);
    bool good = !c->table->exchange(c, from, at, bytes, to, own, &e) && to[got] == 0x55;
    const char *place = to;
    for (int r = 0; r < c->world; place += own[r++]) good = good && filled(place, own[r], r, c->rank);
    everywhere(good, what);
}

static void gather(Comm *c, SizeOf *size, const char *what, char *data) {
    Err e = {0, ""};
    size_t bytes[64], sum = 0;
    memset(data, 0x55, MOST);
    for (int r = 0; r < c->world; sum += bytes[r++]) {
        bytes[r] = size(r, 0);
        if (r == c->rank) fill(data + sum, bytes[r], r, 0);
    }
    bool good = !c->table->gather(c, data, bytes, &e) && data[sum] == 0x55;
    const char *place = data;
    for (int r = 0; r < c->world; place += bytes[r++]) good = good && filled(place, bytes[r], r, 0);
    everywhere(good, what);
}

static void broadcast(Comm *c, char *data) {
    static const size_t sizes[] = {0, 1, 10 * UNIT + 7};
    for (int root = 0; root < c->world; root++)
        for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
            Err e = {0, ""};
            char what[80];
            memset(data, 0x55, sizes[k] + 1);
            if (c->rank == root) fill(data, sizes[k], root, 9);
            snprintf(what, sizeof what, "%zu bytes of rank %d to all", sizes[k], root);
            const bool good = !c->table->broadcast(c, data, sizes[k], root, &e);
            everywhere(good && filled(data, sizes[k], root, 9) && data[sizes[k]] == 0x55, what);
        }
}

/* Each rank sends to the next one, the first one first: no rank waits for itself. */
static void around(Comm *c, size_t bytes, char *from, char *to) {
    Err e = {0, ""};
    const int next = (c->rank + 1) % c->world, last = (c->rank + c->world - 1) % c->world;
    char what[80];
    if (c->world == 1) return;
    fill(from, bytes, c->rank, next);
    memset(to, 0x55, bytes + 1);
    bool good = c->rank > 0 || !c->table->send(c, from, bytes, next, &e);
    good = !c->table->receive(c, to, bytes, last, &e) && good;
    good = (c->rank == 0 || !c->table->send(c, from, bytes, next, &e)) && good;
    snprintf(what, sizeof what, "%zu bytes go around", bytes);
    everywhere(good && filled(to, bytes, last, c->rank) && to[bytes] == 0x55, what);
}

/* Every call among the ranks of `c`; name: who they are */
static void calls(Comm *c, const char *name, char *from, char *to) {
    char what[120];
    for (size_t k = 0; k < ARRAY_LEN(patterns); k++) {
        snprintf(what, sizeof what, "%s exchange, %s", name, patterns[k].name);
        exchange(c, patterns[k].size, what, from, to);
        snprintf(what, sizeof what, "%s gather, %s", name, patterns[k].name);
        gather(c, patterns[k].size, what, from);
    }
}

/* Groups of the ranks by color. The ranks of a group keep their order. */
static void split(int colors, const char *name, char *from, char *to) {
    Err e = {0, ""};
    Comm *group = NULL;
    const int color = all->rank % colors, members = (all->world - color + colors - 1) / colors;
    const bool good = !all->table->split(all, color, &group, &e);
    everywhere(good && group->world == members && group->rank == all->rank / colors, name);
    if (!good) return;
    calls(group, name, from, to);
    if (colors == all->world || all->world % colors == 0) around(group, 2 * UNIT + 1, from, to);
    comm_close(group);
}

int main(void) {
    Err e = {0, ""};
    if (comm_open(&all, &e)) {
        printf("not ok 1 - the plugin opens\n# %s\n1..1\n", e.text);
        return 1;
    }
    char *from = mem_new(MOST), *to = mem_new(MOST);
    if (!from || !to) all->table->abort(all, 1);
    everywhere(!strcmp(all->table->kind, "mpi") && all->rank < all->world, "the plugin opens");
    Comm *again = NULL;
    everywhere(comm_open(&again, &e) == ERR_INTERNAL && strstr(e.text, "begun already"), "once in a process");
    calls(all, "all:", from, to);
    broadcast(all, from);
    around(all, 0, from, to);
    around(all, 1, from, to);
    around(all, 20 * UNIT + 3, from, to);
    split(1, "one group:", from, to);
    split(2, "even and odd ranks:", from, to);
    split(all->world, "each alone:", from, to);
    everywhere(!all->table->barrier(all, &e), "all meet");
    const int rank = all->rank;
    comm_close(all);
    mem_free(from);
    mem_free(to);
    return rank ? tap_failed != 0 : tap_done();
}
