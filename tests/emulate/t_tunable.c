/* t_tunable.c: tune.c with an op of the test's own, whose ways take as many launches as the test says: which one is taken
 * untuned, which one wins a race, what is kept, and when a pick no longer applies. Linked with the emulated device's
 * objects. */
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "picks.h"
#include "tap.h"
#include "tune.h"
#include "tuning.h"

enum { LIMIT = 1000, ENGINES = 4, COUNT = 64, VERSION = 3 };

int memtide_cuda_open(const char *name, Device **out, Err *e);

static CudaDevice *device;
static char folder[] = "/tmp/memtide-test-XXXXXX", path[64];
static Err told;

/* ---- the op: ways "own" and "library", which has ENGINES engines */

/* launches: of a run; 0: it fails. opens: how often it can be opened */
typedef struct Engine { int launches; int opens; size_t bytes; } Engine;
static Engine own, engines[ENGINES];
static int states, runs, offered; /* alive; of all states; in the race */
static int misfits;               /* runs with other bytes than the engine has */
static bool nameless;             /* engines cannot be asked for by their names */

typedef struct State { KernelState base; const Engine *engine; } State;

static void release(void *state) {
    states--;
    mem_free(state);
}

static size_t version(void) { return VERSION; }

static int text(const KArgs *a, char text[PICK_OP], Err *error) {
    if (a->kind != OP_act) return err_set(error, ERR_UNSUPPORTED, "another op");
    snprintf(text, PICK_OP, "the op");
    return OK;
}

static int first(const KArgs *a, size_t limit, Offer *offer, void *arg, Err *error) {
    Err why = {.code = OK};
    (void)a;
    Candidate c = {.way = "library", .any = true, .limit = limit, .workspace = engines[0].bytes};
    if (offer(arg, &c, &why)) return OK;
    Candidate other = {.way = "own", .limit = limit, .workspace = own.bytes};
    if (offer(arg, &other, &why)) return OK;
    return err_set(error, why.code, "neither way: %s", why.text);
}

static int candidates(const KArgs *a, size_t limit, const Candidate *than, Offer *offer, void *arg, Err *error) {
    Err why;
    (void)a, (void)error;
    is_str(than->way, "library", "a race knows the first choice");
    is_int(than->engine.engine, 0, "and its engine, by name");
    for (int k = 0; k < ENGINES; k++) {
        Candidate c = {.way = "library", .engine = {.engine = k}, .limit = limit, .workspace = engines[k].bytes,
                       .handle = &engines[k]};
        offered++;
        if (offer(arg, &c, &why)) return OK;
    }
    Candidate c = {.way = "own", .limit = limit, .workspace = own.bytes};
    offered++;
    offer(arg, &c, &why);
    return OK;
}

static int open_one(const KArgs *a, Candidate *c, void **state, size_t *workspace, Err *error) {
    Engine *engine = strcmp(c->way, "own") ? &engines[c->any ? 0 : c->engine.engine] : &own;
    (void)a;
    if (engine->opens-- <= 0 || engine->bytes > c->limit || (nameless && engine != &own && !c->handle && !c->any))
        return err_set(error, ERR_UNSUPPORTED, "it cannot be opened");
    if (c->any) c->engine = (EngineId){.engine = 0};
    State *s = mem_new(sizeof *s);
    s->base.release = release;
    s->engine = engine;
    states++;
    *state = s;
    *workspace = engine->bytes;
    return OK;
}

static int run(const KArgs *a, Err *error) {
    const State *s = a->state;
    int code = s->engine->launches ? OK : err_set(error, ERR_DEVICE, "it cannot be run");
    runs++;
    misfits += a->workspace_bytes != s->engine->bytes;
    for (int k = 0; k < s->engine->launches && !code; k++) code = k_cuda_act(a, error);
    return code;
}

static const Tunable op = {.version = version, .text = text, .first = first, .candidates = candidates, .open = open_one,
                           .run = run};
KernelPrepare k_cuda_of_the_test_prepare;
TUNED(of_the_test, op)

/* ---- what is done with it */

/* Ways of 4 launches each; engine k has 100 k bytes. */
static void reset(void) {
    own = (Engine){4, 100, 0};
    for (int k = 0; k < ENGINES; k++) engines[k] = (Engine){4, 100, 100 * (size_t)k};
    runs = offered = 0;
    nameless = false;
    unlink(path);
}

/* A device that knows the file's picks; racing: it looks for more. */
static void open_device(bool racing) {
    Device *d = NULL;
    Tuning *p;
    ok(!memtide_cuda_open("cuda:0", &d, &told), "a device");
    device = (CudaDevice *)d;
    ok(!tuning_of(device, &p, &told), "its picks");
    p->racing = racing;
}

/* Prepares the op under `limit`; the way that was taken is read off its bytes. -1: an error, which is in `told`. */
static long long prepare(OpKind kind, size_t limit) {
    const Attr attr = {.act = {.act = ACT_RELU}};
    const View x = {.shape = shape1(COUNT), .dtype = DT_F32, .count = COUNT};
    const KArgs a = {.kind = kind, .attr = &attr, .in = {x}, .out = {x}, .device = device};
    void *state = NULL;
    size_t bytes = 0;
    told = (Err){0, ""};
    int code = k_cuda_of_the_test_prepare(&a, limit, &state, &bytes, &told);
    is_int(states, !code, "no state is left but what was asked for");
    kernel_state_release(state);
    return code ? -1 : (long long)bytes;
}

static long long once(bool racing, size_t limit) {
    open_device(racing);
    long long bytes = prepare(OP_act, limit);
    device->base.table->close(&device->base);
    return bytes;
}

static const char *file(void) { return picks_text(path); }

static void test_untuned(void) {
    reset();
    engines[0].bytes = 50;
    is_int(once(false, LIMIT), 50, "untuned: the first guess");
    engines[0].opens = 0;
    is_int(once(false, LIMIT), 0, "the next one where that cannot be had");
    own.opens = 0;
    is_int(once(false, LIMIT), -1, "none");
    has_text(told.text, "neither way: it cannot be opened", "which is told");
    is_int(runs, 0, "nothing is timed");
    is_str(file(), "", "nothing is kept");
    open_device(false);
    is_int(prepare(OP_add, LIMIT), -1, "an op that has no name");
    has_text(told.text, "another op", "is refused");
    device->base.table->close(&device->base);
}

static void test_race(void) {
    reset();
    engines[1].launches = 0;
    engines[2].launches = 2;
    engines[3].launches = 1;
    engines[3].opens = 0;
    is_int(once(true, LIMIT), 200, "the fastest that can be opened and run");
    has_text(file(), "emulated CUDA device\t3\t1000\tthe op\tlibrary\t2\t200\t10", "is kept by its name");
    is_int(offered, ENGINES + 1, "all were offered");
    own.launches = 1;
    runs = 0;
    is_int(once(true, LIMIT), 200, "what has a pick is not raced again");
    is_int(once(false, LIMIT), 200, "it is taken");
    is_int(once(false, 150), 0, "not where it does not fit");
    is_int(once(false, 250), 200, "but where it fits");
    is_int(runs, 0, "without a run");
    is_int(once(true, 250), 0, "a race under another limit than the pick's is a race of its own");
    own.launches = 4;
    engines[2].bytes = 199;
    is_int(once(false, LIMIT), 0, "an engine that needs other bytes than it did is not taken");
    engines[2].bytes = 200;
    engines[2].opens = 0;
    is_int(once(false, LIMIT), 0, "nor one that is gone");

    /* Events measure the machine's time as well, of which a neighbour may have taken some: again where one has. */
    long long chosen = 0;
    for (int tries = 0; tries < 5 && (chosen != 7 || !strstr(file(), "\tlibrary\t0\t7\t50")); tries++) {
        reset();
        engines[0].launches = 100;
        engines[0].bytes = 7;
        engines[1].launches = own.launches = 99;
        engines[2].launches = engines[3].launches = 101;
        chosen = once(true, LIMIT);
    }
    is_int(chosen, 7, "a gain of a hundredth is noise: the first choice stays");
    has_text(file(), "\tlibrary\t0\t7\t50", "as a pick");
}

static void test_names(void) {
    reset();
    nameless = true;
    engines[0].bytes = 7;
    is_int(once(true, LIMIT), 7, "a first choice that cannot be asked for by name stays");
    is_str(file(), "", "without a pick");
    engines[2].launches = 1;
    is_int(once(true, LIMIT), -1, "another one that has no name");
    has_text(told.text, "what won the race of the op cannot be had again", "is an error");
    is_str(file(), "", "and no pick");
}

static void test_lost(void) {
    reset();
    /* the first choice takes 4 (1 + 16) launches: this one is of engine 0 */
    setenv("EMULATE_FAIL", "cudaLaunchKernelEx:100:700", 1);
    is_int(once(true, LIMIT), -1, "a device that is lost");
    has_text(told.text, "cudaErrorIllegalAddress", "is told");
    is_int(offered, 1, "and ends the race");
    unsetenv("EMULATE_FAIL");
}

int main(void) {
    char command[64];
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/picks.txt", folder);
    setenv("MEMTIDE_PICKS", path, 1);
    setenv("EMULATE_LAUNCH", "5", 1);
    test_untuned();
    test_race();
    test_names();
    test_lost();
    is_int(misfits, 0, "each run has the bytes that its engine needs");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) puts("# the test's folder is still there");
    return tap_done();
}
