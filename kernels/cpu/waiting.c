#include "waiting.h"

#include <assert.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const double SECONDS_BETWEEN = 0.1;
/* Of the time between two looks: what all threads together lacked a processor. One busy program beside two threads on two processors
 * makes that 0.48 at least, a calm machine 0.01. */
static const double CROWDED = 0.25;

void waiting_open(Waiting *w, int threads) {
    assert(threads >= 1);
    *w = (Waiting){.threads = threads};
    if (threads == 1 || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || sem_init(&w->over, 0, 0)) return;
    w->tasks = opendir("/proc/self/task");
}

/* Seconds that this process's threads were ready to run and had no processor, since each of them began */
static double lacked(const Waiting *w) {
    unsigned long long sum = 0, nanoseconds;
    rewinddir(w->tasks);
    for (struct dirent *task; (task = readdir(w->tasks));) {
        char path[sizeof task->d_name + 16], text[128];
        if (task->d_name[0] == '.') continue; /* "../schedstat" is there, too: that of the first thread */
        snprintf(path, sizeof path, "%s/schedstat", task->d_name);
        int file = openat(dirfd(w->tasks), path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue; /* the thread has ended */
        ssize_t n = read(file, text, sizeof text - 1); /* nanoseconds on a processor and in wait of one, times: "4021371 119002 7" */
        text[n > 0 ? n : 0] = 0;
        if (sscanf(text, "%*u %llu", &nanoseconds) == 1) sum += nanoseconds;
        close(file);
    }
    return 1e-9 * (double)sum;
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
    if (!w->tasks || now < w->looked + SECONDS_BETWEEN) return;
    double before = w->lacked, since = w->looked;
    w->lacked = lacked(w);
    w->looked = now;
    bool crowded = w->lacked - before > CROWDED * (now - since);
    if (crowded && !w->held) w->held = start(w);
    else if (!crowded && w->held) let_go(w);
}

void waiting_close(Waiting *w) {
    if (!w->tasks) return;
    if (w->held) let_go(w);
    sem_destroy(&w->over);
    closedir(w->tasks);
}
