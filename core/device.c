#include "device.h"

#include <string.h>

int device_open(const char *name, Device **out, Err *e) {
    if (!strcmp(name, "cpu")) return device_cpu_open(out, e);
    if (!strcmp(name, "cuda") || !strncmp(name, "cuda:", 5))
        return err_set(e, ERR_UNSUPPORTED, "device '%s' is not available: this build has no CUDA plugin", name);
    return err_set(e, ERR_SCRIPT, "unknown device '%s': expected cpu, cuda:N or cuda:NAME", name);
}

void device_close(Device *d) {
    if (d) d->table->close(d);
}
