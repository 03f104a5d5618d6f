#include "plan_cache.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "libraries.h"
#include "base/mem.h"

/* The first line: 2 is the format's number (plans of format 1 did not name their way and are not read); then the hash
 * and the length of the JSON text that follows, and the key. */
static const char *const HEAD = "memtide plan 2 %016llx %zu %s\n";

/* *plan: a new plan, of the handle of a device that is here, or of a description */
static int plan_start(CudaDevice *c, Node *plan, Err *e) {
    cudnnHandle_t handle = NULL;
    Node properties = NULL;
    bool here = c->ordinal != NOT_HERE;
    int code = here ? libraries_cudnn(c, &handle, e) : cudnn_device_properties(c, &properties, e);
    if (code) return code;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan);
    if (!status && here)
        status = cudnnBackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    if (!status && !here)
        status = cudnnBackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                          &properties);
    return cudnn_device_check(status, "a plan", e);
}

static int plan_set(CudaDevice *c, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                    const void *value, Node *plan, Err *e) {
    int code = plan_start(c, plan, e);
    cudnnStatus_t status = code ? CUDNN_STATUS_SUCCESS : cudnnBackendSetAttribute(*plan, name, type, n, value);
    if (!code && !status) status = cudnnBackendFinalize(*plan);
    if (!code) code = cudnn_device_check(status, "a plan of an engine", e);
    if (code) node_free(plan);
    return code;
}

int plan_write(Node plan, const char *path, const char *key, Err *e) {
    int64_t n = 0;
    const cudnnBackendAttributeName_t name = CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
    int code = cudnn_device_check(node_get(plan, name, CUDNN_TYPE_CHAR, 0, &n, NULL), "a plan's text", e);
    if (code) return code;
    char *json = mem_new((size_t)n + 1), *text = mem_new((size_t)n + PLAN_KEY + 64);
    if (!json || !text) code = err_set(e, ERR_HOST_MEMORY, "no host memory for a plan of %lld bytes", (long long)n);
    if (!code) code = cudnn_device_check(node_get(plan, name, CUDNN_TYPE_CHAR, n, &n, json), "a plan's text", e);
    if (!code) {
        size_t bytes = strlen(json);
        int head = snprintf(text, PLAN_KEY + 64, HEAD, (unsigned long long)hash_bytes(HASH_START, json, bytes), bytes,
                            key);
        memcpy(text + head, json, bytes);
        code = cache_write(path, text, (size_t)head + bytes, e);
    }
    mem_free(json);
    mem_free(text);
    return code;
}

int plan_read(CudaDevice *c, const char *path, const char *key, Node *plan, Err *e) {
    char *text, head[PLAN_KEY + 64];
    size_t bytes;
    int code = cache_read(path, &text, &bytes, e);
    if (code) return code;
    char *end = strchr(text, '\n'), *json = end ? end + 1 : text;
    size_t n = bytes - (size_t)(json - text);
    snprintf(head, sizeof head, HEAD, (unsigned long long)hash_bytes(HASH_START, json, n), n, key);
    if (strncmp(text, head, strlen(head)))
        code = err_set(e, ERR_FORMAT, "%s: expected a whole plan for %s", path, key);
    else
        code = plan_set(c, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)n, json, plan, e);
    mem_free(text);
    return code;
}

/* Memory was planned by what the engine's configuration said: the plan may need no more. */
static int check_workspace(const Engine *engine, Node *plan, Err *e) {
    int64_t bytes = 0, n = 0;
    int code = cudnn_device_check(node_get(*plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                        &bytes), "a plan's workspace", e);
    if (!code && (bytes < 0 || (size_t)bytes > engine->workspace))
        code = err_set(e, ERR_UNSUPPORTED, "cuDNN: a plan wants %lld bytes of workspace where its engine had said %zu",
                       (long long)bytes, engine->workspace);
    if (code) node_free(plan);
    return code;
}

void plan_key(const CudaDevice *c, const char *op, const char *way, const EngineId *engine, PlanKey *key) {
    char knobs[ENGINE_TEXT];
    snprintf(key->text, sizeof key->text, "%s, cuDNN %zu, engine %s, %s, %s", c->model.name, cudnnGetVersion(),
             engine_text(engine, knobs), way, op);
    snprintf(key->file, sizeof key->file, "plans/%016llx.plan",
             (unsigned long long)hash_bytes(HASH_START, key->text, strlen(key->text)));
}

int plan_open(CudaDevice *c, const char *op, const char *way, const Engine *engine, Node *plan, Err *e) {
    char path[CACHE_PATH];
    PlanKey key = {{0}, {0}};
    *plan = NULL;
    plan_key(c, op, way, &engine->id, &key);
    /* without a cache, or without an entry there, it is compiled: the cache only saves time */
    bool cached = engine->compiled && !cache_path(key.file, path, NULL);
    if (cached && !plan_read(c, path, key.text, plan, NULL)) return check_workspace(engine, plan, e);
    int code = plan_set(c, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine->config,
                        plan, e);
    if (!code && cached) plan_write(*plan, path, key.text, NULL);
    return code ? code : check_workspace(engine, plan, e);
}

int plan_run(CudaDevice *c, Node plan, int n, const int64_t *id, void *const *data, void *workspace, Err *e) {
    assert(plan && n > 0);
    cudnnHandle_t handle;
    Node pack = NULL;
    int code = libraries_cudnn(c, &handle, e);
    if (code) return code;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (!status)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, id);
    if (!status)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    if (!status)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (!status) status = cudnnBackendFinalize(pack);
    if (!status) status = cudnnBackendExecute(handle, plan, pack);
    node_free(&pack);
    return cudnn_device_check(status, "a run of a plan", e);
}
