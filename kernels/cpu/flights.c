#include "flights.h"

#include <assert.h>
#include <omp.h>
#include <signal.h>
#include <string.h>

#include "base/affinity.h"
#include "base/mem.h"

/* Its kernels have no team of threads: the processors are the other ops'. */
static void *fly(void *arg) {
    Flights *f = arg;
    affinity_unbind();
    omp_set_num_threads(1);
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        if (f->over == f->begun) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        const KArgs args = f->list[f->over];
        Err e = f->failed;
        pthread_mutex_unlock(&f->lock);
        if (!e.code) e.code = f->run[args.kind](&args, &e);
        pthread_mutex_lock(&f->lock);
        f->failed = e;
        f->over++;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* The thread takes no signals: those are for the threads that were there before. */
static int start(Flights *f, KernelRun *const *run, Err *e) {
    sigset_t all, before;
    sigfillset(&all);
    memset(f, 0, sizeof *f);
    f->run = run;
    pthread_mutex_init(&f->lock, NULL); /* on Linux neither call fails with default attributes */
    pthread_cond_init(&f->changed, NULL);
    int failed = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!failed) {
        failed = pthread_create(&f->thread, NULL, fly, f);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    f->open = !failed;
    return failed ? err_set(e, ERR_HOST_MEMORY, "cannot start a thread for collective ops: %s", strerror(failed)) : OK;
}

int flights_begin(Flights *f, KernelRun *const *run, const KArgs *args, Err *e) {
    int code = f->open ? OK : start(f, run, e);
    if (code) return code;
    assert(f->run == run);
    pthread_mutex_lock(&f->lock);
    if (!mem_grow(&f->list, &f->cap, f->begun + 1, sizeof *f->list))
        code = err_set(e, ERR_HOST_MEMORY, "out of host memory for %d collective ops", f->begun + 1);
    else f->list[f->begun++] = *args;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return code;
}

/* Until `number` ops are over; the list is emptied where all are. */
static int wait_for(Flights *f, int number, Err *e) {
    while (f->over < number) pthread_cond_wait(&f->changed, &f->lock);
    if (f->over == f->begun) f->over = f->begun = 0;
    if (f->failed.code && e) *e = f->failed;
    return f->failed.code;
}

int flights_wait(Flights *f, const void *y, Err *e) {
    if (!f->open) return OK;
    pthread_mutex_lock(&f->lock);
    int number = f->begun;
    while (number > 0 && f->list[number - 1].out[0].data != y) number--;
    const int code = wait_for(f, number, e);
    pthread_mutex_unlock(&f->lock);
    return code;
}

int flights_wait_all(Flights *f, Err *e) {
    if (!f->open) return OK;
    pthread_mutex_lock(&f->lock);
    const int code = wait_for(f, f->begun, e);
    f->failed.code = OK; /* told */
    pthread_mutex_unlock(&f->lock);
    return code;
}

void flights_close(Flights *f) {
    if (!f->open) return;
    flights_wait_all(f, NULL);
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    mem_free(f->list);
    f->open = false;
}
