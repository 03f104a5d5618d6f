/* Devices for scripts. */
#include "bind.h"
#include "device.h"

static void release(void *content) { device_close(content); }

/* device(name) -> Device */
static int open_device(lua_State *L) {
    Err e;
    Device *device;
    const char *name = luaL_checkstring(L, 1);
    Box *box = bind_new(L, BOX_DEVICE, release);
    if (device_open(name, &device, &e)) return bind_fail(L, &e);
    box->content = device;
    return 1;
}

/* device:info() -> {name, driver, memory_total, memory_free, threads, kind}; sizes that are not known are absent */
static int info(lua_State *L) {
    Err e;
    DeviceInfo found = {0};
    Device *device = bind_get(L, 1, BOX_DEVICE);
    if (device->table->info(device, &found, &e)) return bind_fail(L, &e);
    lua_newtable(L);
    bind_set_string(L, "kind", device->table->kind);
    bind_set_string(L, "name", found.name);
    bind_set_string(L, "driver", found.driver);
    if (found.memory_total) bind_set_integer(L, "memory_total", (lua_Integer)found.memory_total);
    if (found.memory_free) bind_set_integer(L, "memory_free", (lua_Integer)found.memory_free);
    if (found.threads) bind_set_integer(L, "threads", found.threads);
    return 1;
}

/* device:used() -> bytes that this process holds as the driver sees it; nil: not known */
static int used(lua_State *L) {
    Device *device = bind_get(L, 1, BOX_DEVICE);
    size_t bytes = device->table->used ? device->table->used(device) : 0;
    if (!bytes) return 0;
    lua_pushinteger(L, (lua_Integer)bytes);
    return 1;
}

void bind_open_device(lua_State *L) {
    static const luaL_Reg methods[] = {{"info", info}, {"used", used}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"device", open_device}, {NULL, NULL}};
    bind_type(L, BOX_DEVICE, methods);
    luaL_setfuncs(L, functions, 0);
}
