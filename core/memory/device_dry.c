/* device_dry.c: a device that counts and computes nothing. Alignment and workspace sizes are those of the model
 * device. */
#include "device.h"
#include "base/mem.h"

typedef struct Dry {
    Device base;
    DeviceTable table; /* not shared: its alignment is the model's */
    Device *model;
    size_t next;       /* the next address to hand out */
} Dry;

static Device *model_of(Device *d) { return ((Dry *)d)->model; }

static void dry_close(Device *d) { mem_free(d); }

static int dry_info(Device *d, DeviceInfo *info, Err *e) { return model_of(d)->table->info(model_of(d), info, e); }

static int dry_alloc(Device *d, size_t bytes, void **p, Err *e) {
    Dry *dry = (Dry *)d;
    size_t at = dry->next;
    assert(bytes > 0 && bytes % dry->table.alignment == 0);
    if (!size_add(at, bytes, &dry->next))
        return err_set(e, ERR_OOM, "the dry device has no addresses left for %zu bytes", bytes);
    *p = (void *)(uintptr_t)at;
    return OK;
}

static void dry_free(Device *d, void *p, size_t bytes) { (void)d, (void)p, (void)bytes; }

static int dry_copy(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    (void)d, (void)to, (void)from, (void)bytes, (void)e;
    return OK;
}

static int dry_sync(Device *d, Err *e) {
    (void)d, (void)e;
    return OK;
}

static int dry_host_alloc(Device *d, size_t bytes, void **p, Err *e) {
    (void)d;
    return (*p = mem_new(bytes)) ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory for %zu bytes", bytes);
}

static void dry_host_free(Device *d, void *p, size_t bytes) {
    (void)d, (void)bytes;
    mem_free(p);
}

static int dry_send(Device *d, int slot, void *to, const void *from, size_t bytes, Err *e) {
    (void)slot;
    return dry_copy(d, to, from, bytes, e);
}

static int dry_sent(Device *d, int slot, Err *e) {
    (void)slot;
    return dry_sync(d, e);
}

static int dry_mark(Device *d, void **m, Err *e) {
    (void)m;
    return dry_sync(d, e);
}

static int dry_between(Device *d, void *from, void *to, double *seconds, Err *e) {
    (void)from, (void)to;
    *seconds = 0;
    return dry_sync(d, e);
}

static void dry_mark_free(Device *d, void *m) { (void)d, (void)m; }

static int dry_prepare(Device *d, const KArgs *args, size_t limit, void **state, size_t *workspace, Err *e) {
    KArgs asked = *args;
    asked.device = model_of(d);
    return model_of(d)->table->prepare(model_of(d), &asked, limit, state, workspace, e);
}

static bool dry_overwrites(Device *d, const KArgs *args, size_t *more) {
    KArgs asked = *args;
    asked.device = model_of(d);
    return model_of(d)->table->overwrites && model_of(d)->table->overwrites(model_of(d), &asked, more);
}

static bool dry_rounds(Device *d, const KArgs *args) {
    KArgs asked = *args;
    asked.device = model_of(d);
    return model_of(d)->table->rounds && model_of(d)->table->rounds(model_of(d), &asked);
}

static int dry_alone(Device *d, Device **out, Err *e) {
    Device *model = model_of(d);
    *out = model;
    return model->table->alone ? model->table->alone(model, out, e) : OK;
}

static int dry_run(Device *d, const KArgs *args, Err *e) {
    (void)d, (void)args, (void)e;
    return OK;
}

static void dry_trim(Device *d, bool all) { model_of(d)->table->trim(model_of(d), all); }

static size_t dry_used(Device *d) {
    (void)d;
    return 0;
}

int device_dry_open(Device *model, Device **out, Err *e) {
    Dry *d = mem_new(sizeof *d);
    if (!d) return err_set(e, ERR_HOST_MEMORY, "out of host memory for the dry device");
    d->table = (DeviceTable){.kind = "dry", .alignment = model->table->alignment, .close = dry_close, .info = dry_info,
        .alloc = dry_alloc, .free = dry_free, .upload = dry_copy, .download = dry_copy, .sync = dry_sync,
        .host_alloc = dry_host_alloc, .host_free = dry_host_free, .send = dry_send, .sent = dry_sent,
        .send_beside = dry_send, .take = dry_copy, .fetch = dry_copy, .mark = dry_mark, .between = dry_between,
        .mark_free = dry_mark_free, .prepare = dry_prepare, .alone = dry_alone, .overwrites = dry_overwrites, .rounds = dry_rounds, .run = dry_run, .trim = dry_trim, .dry = true, .used = dry_used};
    d->base.table = &d->table;
    d->model = model;
    d->next = model->table->alignment; /* not 0, which is NULL */
    *out = &d->base;
    return OK;
}
