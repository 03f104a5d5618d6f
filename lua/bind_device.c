/* Devices for scripts. */
#include <string.h>

#include "bind.h"
#include "memory/device.h"

static void release_device(void *content) { device_close(content); }

/* device(name) -> Device */
static int open_device(lua_State *L) {
    Err e;
    Device *device;
    const char *name = luaL_checkstring(L, 1);
    Box *box = bind_new(L, BOX_DEVICE, release_device);
    if (device_open(name, &device, &e)) return bind_fail(L, &e);
    box->content = device;
    return 1;
}

/* Appends the name to the list on top of the stack. */
static void put_name(void *arg, const char *name) {
    lua_State *L = arg;
    lua_pushstring(L, name);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
}

/* offline_devices() -> {"cuda:h200", ...}: GPUs that can be planned for */
static int described(lua_State *L) {
    lua_newtable(L);
    device_offline(put_name, L);
    return 1;
}

/* Sets `emulated` of the table on top of the stack: {"bf16", "fp16"}, the names that settings use */
static void set_emulated(lua_State *L, const DeviceInfo *found) {
    static const struct { DType type; const char *name; } types[] = {{DT_BF16, "bf16"}, {DT_F16, "fp16"}};
    lua_newtable(L);
    for (size_t k = 0; k < ARRAY_LEN(types); k++)
        if (found->emulated[types[k].type]) put_name(L, types[k].name);
    lua_setfield(L, -2, "emulated");
}

/* device:info() -> {kind, name, driver, detail, memory_total, memory_free, threads, processors, memory_nodes, count, warning, emulated};
 * what is not known is nil; emulated: the types, "bf16" or "fp16", that it does not compute in itself, but in fp32 on
 * copies or in several steps */
static int info(lua_State *L) {
    Err e;
    DeviceInfo found = {0};
    Device *device = bind_get(L, 1, BOX_DEVICE);
    if (device->table->info(device, &found, &e)) return bind_fail(L, &e);
    lua_newtable(L);
    bind_set_string(L, "kind", device->table->kind);
    bind_set_string(L, "name", found.name);
    bind_set_string(L, "driver", found.driver);
    if (found.detail[0]) bind_set_string(L, "detail", found.detail);
    if (found.memory_total) bind_set_integer(L, "memory_total", (lua_Integer)found.memory_total);
    if (found.memory_free) bind_set_integer(L, "memory_free", (lua_Integer)found.memory_free);
    if (found.threads) bind_set_integer(L, "threads", found.threads);
    if (found.processors) bind_set_integer(L, "processors", found.processors);
    if (found.nodes) bind_set_integer(L, "memory_nodes", found.nodes);
    if (found.warning[0]) bind_set_string(L, "warning", found.warning);
    if (found.count) bind_set_integer(L, "count", found.count);
    set_emulated(L, &found);
    return 1;
}

/* device:used() -> bytes that this process holds on the device, as the driver counts them; nil: not known */
static int used(lua_State *L) {
    Device *device = bind_get(L, 1, BOX_DEVICE);
    size_t bytes = device->table->used ? device->table->used(device) : 0;
    if (!bytes) return 0;
    lua_pushinteger(L, (lua_Integer)bytes);
    return 1;
}

/* device:stream() -> bytes per second that it reads and writes at most, measured now by a copy; nil: it does not measure
 * that; nil, message, code: an error */
static int stream(lua_State *L) {
    Err e;
    double rate;
    Device *device = bind_get(L, 1, BOX_DEVICE);
    if (!device->table->stream) return 0;
    if (device->table->stream(device, &rate, &e)) return bind_fail(L, &e);
    lua_pushnumber(L, rate);
    return 1;
}

/* device:trim(): drops cached states that were not used lately; does nothing while a program exists */
static int trim(lua_State *L) {
    const Box *box = bind_box(L, 1, BOX_DEVICE);
    Device *device = bind_get(L, 1, BOX_DEVICE);
    if (box->users == 0) device->table->trim(device, false);
    return 0;
}

static void set_known(lua_State *L, const char *name, int value) {
    if (value >= 0) bind_set_integer(L, name, value);
}

/* device:evidence() -> {gpu_mhz, gpu_memory_mhz, gpu_celsius, gpu_throttle = "power thermal brake"}: clocks,
 * temperature and what slows the device down now; what is not known is nil */
static int evidence(lua_State *L) {
    static const char *const words[] = {"power ", "thermal ", "brake "}; /* DeviceThrottle */
    Device *device = bind_get(L, 1, BOX_DEVICE);
    DeviceEvidence found = {-1, -1, -1, -1};
    char text[32] = "";
    if (device->table->evidence) device->table->evidence(device, &found);
    lua_newtable(L);
    set_known(L, "gpu_mhz", found.mhz);
    set_known(L, "gpu_memory_mhz", found.memory_mhz);
    set_known(L, "gpu_celsius", found.celsius);
    if (found.throttle < 0) return 1;
    for (int i = 0; i < 3; i++)
        if (found.throttle & 1 << i) strcat(text, words[i]);
    if (text[0]) text[strlen(text) - 1] = 0;
    bind_set_string(L, "gpu_throttle", text);
    return 1;
}

static void push_text(void *arg, const char *text) { lua_pushstring(arg, text); }

/* device:describe() -> the text of a device file, from which a GPU that is not here can be planned for */
static int describe(lua_State *L) {
    Err e;
    Device *device = bind_get(L, 1, BOX_DEVICE);
    if (!device->table->describe)
        err_set(&e, ERR_UNSUPPORTED, "only a GPU that is here can be described");
    else if (device->table->describe(device, push_text, L, &e) == OK)
        return 1;
    return bind_fail(L, &e);
}

/* device:tune() -> the file with the fastest choices, and a message if something is wrong with that file */
static int tune(lua_State *L) {
    Err e;
    Device *device = bind_get(L, 1, BOX_DEVICE);
    int before = lua_gettop(L);
    if (!device->table->tune)
        err_set(&e, ERR_UNSUPPORTED, "this device has nothing to choose between: expected a GPU that is here");
    else if (device->table->tune(device, push_text, L, &e) == OK)
        return lua_gettop(L) - before;
    return bind_fail(L, &e);
}

void bind_open_device(lua_State *L) {
    static const luaL_Reg methods[] = {
        {"info", info}, {"used", used}, {"trim", trim}, {"evidence", evidence}, {"describe", describe}, {"tune", tune},
        {"stream", stream},
        {NULL, NULL}};
    static const luaL_Reg functions[] = {{"device", open_device}, {"offline_devices", described}, {NULL, NULL}};
    bind_type(L, BOX_DEVICE, methods);
    luaL_setfuncs(L, functions, 0);
}
