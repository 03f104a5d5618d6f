#include "waiting.h"

#include <assert.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* So many looks in a row make a change: a single one may have met a system task of some microseconds. */
enum { BUSY_LOOKS = 2, CALM_LOOKS = 10 };
static const double SECONDS_BETWEEN = 0.005;

void waiting_open(Waiting *w, int threads) {
    assert(threads >= 1);
    *w = (Waiting){.file = -1, .threads = threads, .processors = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    if (threads == 1 || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || sem_init(&w->over, 0, 0)) return;
    w->file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
}

/* Are more threads running or ready to run than there are processors? */
static bool crowded(const Waiting *w) {
    char text[128];
    int running;
    ssize_t n = pread(w->file, text, sizeof text - 1, 0); /* "0.20 0.18 0.12 3/80 11206" */
    text[n > 0 ? n : 0] = 0;
    return sscanf(text, "%*f %*f %*f %d/", &running) == 1 && running > w->processors;
}

/* libgomp counts a team's threads as long as the thread that started them lives. */
static void *hold(void *arg) {
    Waiting *w = arg;
    int spare = omp_get_num_procs() - w->threads;
#pragma omp parallel num_threads((spare > 0 ? spare : 0) + 2)
    __asm__ volatile(""); /* a region without a body would start nothing */
    while (sem_wait(&w->over)) continue;
    return NULL;
}

/* The new thread and its team take no signals: those are for the threads that were there before. */
static bool start(Waiting *w) {
    sigset_t all, before;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before)) return false;
    bool started = !pthread_create(&w->holder, NULL, hold, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void let_go(Waiting *w) {
    sem_post(&w->over);
    pthread_join(w->holder, NULL);
    w->held = false;
}

void waiting_look(Waiting *w, double now) {
    if (w->file < 0 || now < w->next) return;
    w->next = now + SECONDS_BETWEEN;
    w->looks = crowded(w) != w->held ? w->looks + 1 : 0;
    if (w->looks < (w->held ? CALM_LOOKS : BUSY_LOOKS)) return;
    w->looks = 0;
    if (w->held) let_go(w);
    else w->held = start(w);
}

void waiting_close(Waiting *w) {
    if (w->file < 0) return;
    if (w->held) let_go(w);
    sem_destroy(&w->over);
    close(w->file);
}
