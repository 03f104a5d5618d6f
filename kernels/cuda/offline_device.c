/* offline_device.c: a GPU that is described, but not here. It prepares ops as the real one does, so that a program gets
 * the same workspace. It refuses all that needs the GPU. */
#include "cuda.h"
#include "base/mem.h"

static int refuse(Device *d, Err *e) {
    return err_set(e, ERR_UNSUPPORTED, "planning only: %s is described, not here; memtide predict takes it, run does "
                   "not", ((CudaDevice *)d)->model.name);
}

static int offline_info(Device *d, DeviceInfo *info, Err *e) {
    (void)e;
    cuda_model_info(&((CudaDevice *)d)->model, info);
    libraries_versions(info->driver, sizeof info->driver);
    tuning_warning((CudaDevice *)d, info->warning, sizeof info->warning);
    return OK;
}

static int offline_alloc(Device *d, size_t bytes, void **p, Err *e) {
    (void)bytes;
    *p = NULL;
    return refuse(d, e);
}

/* There is nothing to free: alloc gave nothing. */
static void offline_free(Device *d, void *p, size_t bytes) { (void)d, (void)p, (void)bytes; }

static int offline_copy(Device *d, void *to, const void *from, size_t bytes, Err *e) {
    (void)to, (void)from, (void)bytes;
    return refuse(d, e);
}

static int offline_send(Device *d, int slot, void *to, const void *from, size_t bytes, Err *e) {
    (void)slot, (void)to, (void)from, (void)bytes;
    return refuse(d, e);
}

static int offline_sent(Device *d, int slot, Err *e) {
    (void)slot;
    return refuse(d, e);
}

static int offline_mark(Device *d, void **m, Err *e) {
    (void)m;
    return refuse(d, e);
}

static int offline_between(Device *d, void *from, void *to, double *seconds, Err *e) {
    (void)from, (void)to;
    *seconds = 0;
    return refuse(d, e);
}

static void offline_mark_free(Device *d, void *m) { (void)d, (void)m; }

static int offline_run(Device *d, const KArgs *args, Err *e) {
    (void)args;
    return refuse(d, e);
}

static size_t offline_used(Device *d) {
    (void)d;
    return 0;
}

static void offline_close(Device *d) { cuda_release((CudaDevice *)d); }

static const DeviceTable table = {
    .kind = "cuda", .alignment = CUDA_ALIGNMENT, .close = offline_close, .info = offline_info,
    .alloc = offline_alloc, .free = offline_free, .upload = offline_copy, .download = offline_copy,
    .sync = refuse, .host_alloc = offline_alloc, .host_free = offline_free, .send = offline_send,
    .sent = offline_sent, .send_beside = offline_send, .take = offline_copy, .fetch = offline_copy, .mark = offline_mark, .between = offline_between,
    .mark_free = offline_mark_free, .prepare = cuda_prepare, .run = offline_run, .trim = cuda_trim, .used = offline_used,
};

int offline_open(const char *name, Device **out, Err *e) {
    CudaDevice *c = mem_new(sizeof *c);
    if (!c) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes", sizeof *c);
    c->base.table = &table;
    c->ordinal = NOT_HERE;
    int code = device_file_read(name, &c->model, e);
    if (!code) code = cuda_model_check(&c->model, e);
    if (code) cuda_release(c);
    else *out = &c->base;
    return code;
}
