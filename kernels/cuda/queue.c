/* queue.c: see queue.h */
#include "queue.h"

#include <string.h>

#include "base/mem.h"

struct CudaQueue {
    OpKind kind;
    QueueEnqueue *enqueue;
    union {
        QueueHead head;
        char launch[PARAMETER_BYTES];
    } waits;
};

void cuda_queue_free(CudaQueue *queue) { mem_free(queue); }

int cuda_flush(CudaDevice *c, Err *e) {
    CudaQueue *q = c->queue;
    if (!q || !q->waits.head.n) return OK;
    cuda_range_begin(c, op_info(q->kind)->name, "queued");
    const int code = q->enqueue(c, q->kind, &q->waits, e);
    cuda_range_end(c);
    q->waits.head.n = 0; /* also after a failure: nothing is launched twice */
    return code;
}

void *queue_waiting(CudaDevice *c, OpKind kind) {
    CudaQueue *q = c->queue;
    return q && q->waits.head.n && q->kind == kind ? &q->waits : NULL;
}

static bool same_head(const QueueHead *a, const QueueHead *b) {
    return a->state == b->state && a->lr == b->lr && a->square == b->square && !memcmp(&a->rule, &b->rule, sizeof a->rule);
}

int queue_join(const KArgs *a, const QueueHead *head, int most, QueueEnqueue *enqueue, void **launch, Err *e) {
    CudaDevice *c = cuda_of(a);
    if (!c->queue) c->queue = mem_new(sizeof *c->queue);
    if (!c->queue) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *c->queue);
    CudaQueue *q = c->queue;
    if (q->waits.head.n && (q->kind != a->kind || !same_head(&q->waits.head, head) || q->waits.head.n == most)) {
        const int code = cuda_flush(c, e);
        if (code) return code;
    }
    if (!q->waits.head.n) {
        memset(&q->waits, 0, sizeof q->waits);
        q->waits.head = *head;
        q->waits.head.n = 0;
    }
    q->kind = a->kind;
    q->enqueue = enqueue;
    *launch = &q->waits;
    return OK;
}
