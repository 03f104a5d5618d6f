/* t_waiting.c: a team is held while the machine is crowded, and let go when it is not; never where the user has said
 * how threads wait. */
#include <dirent.h>
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../kernels/cpu/waiting.h"
#include "base/base.h"
#include "tap.h"

enum { MOST = 512, PATIENCE = 2 };

static int threads_of_process(void) {
    DIR *folder = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *d; folder && (d = readdir(folder));) n += d->d_name[0] != '.';
    if (folder) closedir(folder);
    return n;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* So many threads compute until it holds a team, or not, or PATIENCE seconds have gone; has it come to that? */
static bool becomes(Waiting *w, bool held, int threads) {
    for (double end = now() + PATIENCE; w->held != held && now() < end; waiting_look(w, now())) {
#pragma omp parallel num_threads(threads)
        for (double over = now() + 0.002; now() < over;) continue;
    }
    return w->held == held;
}

int main(void) {
    static pid_t busy[MOST];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int n = (int)(processors + 2 < MOST ? processors + 2 : MOST), before;
    Waiting w;
    unsetenv("GOMP_SPINCOUNT");
    setenv("OMP_WAIT_POLICY", "active", 1);
    waiting_open(&w, 2);
    ok(!w.tasks, "the user's policy is left alone");
    waiting_look(&w, 0);
    waiting_close(&w);
    unsetenv("OMP_WAIT_POLICY");
    waiting_open(&w, 1);
    ok(!w.tasks, "one thread waits for nobody");
    waiting_close(&w);

    waiting_open(&w, 2);
#pragma omp parallel num_threads(2)
    __asm__ volatile(""); /* the team that computes is there from now on */
    before = threads_of_process();
    for (int i = 0; i < n; i++)
        if ((busy[i] = fork()) == 0)
            for (;;) continue;
    if (access("/proc/self/schedstat", R_OK)) {
        skip("a crowded machine", "Linux does not count here how long threads lack a processor");
    } else {
        ok(becomes(&w, true, 2), "%d busy processes on %ld processors", n, processors);
        usleep(50000); /* the holder starts its team */
        ok(threads_of_process() > before + 1, "more threads are there");
    }
    for (int i = 0; i < n; i++)
        if (busy[i] > 0) kill(busy[i], SIGKILL);
    for (int i = 0; i < n; i++) waitpid(busy[i], NULL, 0);
    if (becomes(&w, false, 1)) ok(!w.held, "it is let go");
    else skip("a machine that is calm", "other programs keep it busy");
    waiting_close(&w);
    usleep(50000);
    is_int(threads_of_process(), before, "and its threads are gone");
    return tap_done();
}
