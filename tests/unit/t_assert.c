/* A function whose precondition does not hold stops the program, in every build. */
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/scratch.h"
#include "base/shape.h"
#include "memory/ledger.h"
#include "tap.h"

static void align_to_three(void) { (void)align_up(8, 3); }

static void release_foreign_mark(void) {
    Scratch s = {0};
    int mark;
    if (scratch_new(&s, 1, 8)) scratch_release(&s, &mark);
}

static void count_unchecked_shape(void) {
    Shape s = shape2(4, 0);
    (void)shape_elements(&s);
}

static void unuse_what_is_not_used(void) {
    Ledger l;
    ledger_open(&l, NULL, 0);
    ledger_unuse(&l, CAT_WEIGHTS, 1);
}

static void nothing_wrong(void) { (void)align_up(8, 4); }

/* The signal that ends a process which calls it; 0: none does. */
static int signal_of(void (*call)(void)) {
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        call();
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

int main(void) {
    is_int(signal_of(nothing_wrong), 0, "a call that is right returns");
    is_int(signal_of(align_to_three), SIGABRT, "an alignment that is no power of two");
    is_int(signal_of(release_foreign_mark), SIGABRT, "a mark that the scratch never had");
    is_int(signal_of(count_unchecked_shape), SIGABRT, "a dimension of 0 in a shape that nobody checked");
    is_int(signal_of(unuse_what_is_not_used), SIGABRT, "bytes that were not in use");
    return tap_done();
}
