#include "engines.h"

#include <string.h>

#include "cudnn_device.h"
#include "base/mem.h"

static const cudnnBackendHeurMode_t rankings[ENGINE_RANKINGS] = {
    CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK,
};

bool engine_may(const Engine *engine, bool exact) {
    unsigned never = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
                     1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    unsigned rounding = 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    return !(engine->notes & (exact ? never | rounding : never));
}

/* ---- what an engine's configuration says */

static cudnnStatus_t read_engine(Engine *engine) {
    enum { NOTES = CUDNN_NUMERICAL_NOTE_TYPE_COUNT, BEHAVIORS = CUDNN_BEHAVIOR_NOTE_TYPE_COUNT };
    cudnnBackendNumericalNote_t note[NOTES] = {0};
    cudnnBackendBehaviorNote_t behavior[BEHAVIORS] = {0};
    Node d = NULL;
    int64_t n = 0, n_notes = 0, n_behaviors = 0;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &d);
    if (!status)
        status = node_get(engine->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &d);
    if (!status)
        status = node_get(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &engine->id.engine);
    if (!status)
        status = node_get(d, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES, &n_notes, note);
    if (!status)
        status = node_get(d, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, BEHAVIORS, &n_behaviors,
                          behavior);
    for (int64_t k = 0; k < n_notes; k++) engine->notes |= 1u << note[k];
    for (int64_t k = 0; k < n_behaviors; k++)
        engine->compiled |= behavior[k] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    node_free(&d);
    return status;
}

static cudnnStatus_t read_knobs(Engine *engine) {
    Node d[ENGINE_KNOBS] = {NULL};
    int64_t count = 0, n = 0;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (int k = 0; k < ENGINE_KNOBS && !status; k++)
        status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &d[k]);
    if (!status)
        status = node_get(engine->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                          ENGINE_KNOBS, &count, d);
    for (int k = 0; k < (int)count && !status; k++) {
        cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
        status = node_get(d[k], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &n, &type);
        if (!status)
            status = node_get(d[k], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &n,
                              &engine->id.knob[k].value);
        engine->id.knob[k].type = type;
        engine->id.n_knobs = k + 1;
    }
    for (int k = 0; k < ENGINE_KNOBS; k++) node_free(&d[k]);
    return status;
}

/* Reads all of *engine from its configuration. */
static cudnnStatus_t engine_fill(Engine *engine) {
    int64_t bytes = 0, n = 0;
    cudnnStatus_t status = node_get(engine->config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                    &bytes);
    if (!status && bytes < 0) status = CUDNN_STATUS_INTERNAL_ERROR;
    if (!status) status = read_engine(engine);
    if (!status) status = read_knobs(engine);
    engine->workspace = (size_t)bytes;
    return status;
}

void engine_close(Engine *engine) { node_free(&engine->config); }

/* ---- the list */

static bool listed(const Engines *list, const EngineId *id) {
    for (int k = 0; k < list->n; k++)
        if (!memcmp(&list->at[k].id, id, sizeof *id)) return true;
    return false;
}

void engines_free(Engines *list) {
    for (int k = 0; k < list->n; k++) engine_close(&list->at[k]);
    mem_free(list->at);
    memset(list, 0, sizeof *list);
}

/* Appends the engine of *config, and takes *config over. Leaves an engine out that cannot be read or that is there
 * already. */
static int engines_add(Engines *list, Node *config, Err *e) {
    Engine engine;
    memset(&engine, 0, sizeof engine);
    engine.config = *config;
    if (engine_fill(&engine) || listed(list, &engine.id)) return OK;
    if (!mem_grow(&list->at, &list->cap, list->n + 1, sizeof *list->at))
        return err_set(e, ERR_HOST_MEMORY, "no host memory for %d engines", list->n + 1);
    list->at[list->n++] = engine;
    *config = NULL;
    return OK;
}

/* Appends the first configurations of the ranked list that `heuristic` is. */
static int take_results(Node heuristic, int most, Engines *list, Err *e) {
    int64_t count = 0, found = 0; /* announced, and found, which may be fewer */
    int code = OK;
    cudnnStatus_t status = node_get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count,
                                    NULL);
    if (status || count <= 0) return OK;
    count = min_i64(count, most);
    Node *d = mem_new((size_t)count * sizeof *d);
    if (!d) return err_set(e, ERR_HOST_MEMORY, "no host memory for %lld engines", (long long)count);
    for (int64_t k = 0; k < count && !status; k++)
        status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &d[k]);
    if (!status)
        status = node_get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &found, d);
    for (int64_t k = 0; k < found && !status && !code; k++) code = engines_add(list, &d[k], e);
    for (int64_t k = 0; k < count; k++) node_free(&d[k]);
    mem_free(d);
    return code ? code : cudnn_device_check(status, "a list of engines", e);
}

/* *properties: of a described GPU. NULL: the GPU is here, and the graph's handle names it. */
static int described(CudaDevice *c, Node *properties, Err *e) {
    *properties = NULL;
    return c->ordinal == NOT_HERE ? cudnn_device_properties(c, properties, e) : OK;
}

int engines_ask(CudaDevice *c, const Graph *g, int ranking, int most, Engines *list, Err *e) {
    assert(g->graph && 0 <= ranking && ranking < ENGINE_RANKINGS && most > 0);
    Node d = NULL, properties;
    int code = described(c, &properties, e);
    if (code) return code;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &d);
    if (!status)
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                          &g->graph);
    if (!status)
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &rankings[ranking]);
    if (!status && properties)
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                          &properties);
    /* a ranking that does not know the graph refuses it here: it then ranks no engine */
    bool ranked = !status && !cudnnBackendFinalize(d);
    code = ranked ? take_results(d, most, list, e) : cudnn_device_check(status, "a request for engines", e);
    node_free(&d);
    return code;
}

/* ---- one engine by its id */

/* properties: NULL if the graph's handle names the device */
static cudnnStatus_t make_engine(Node properties, const Graph *g, int64_t index, Node *out) {
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, out);
    if (!status)
        status = cudnnBackendSetAttribute(*out, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                          &g->graph);
    if (!status)
        status = cudnnBackendSetAttribute(*out, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    if (!status && properties)
        status = cudnnBackendSetAttribute(*out, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                          &properties);
    return status ? status : cudnnBackendFinalize(*out);
}

static cudnnStatus_t make_knob(int64_t type, int64_t value, Node *out) {
    cudnnBackendKnobType_t knob = (cudnnBackendKnobType_t)type;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, out);
    if (!status)
        status = cudnnBackendSetAttribute(*out, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &knob);
    if (!status)
        status = cudnnBackendSetAttribute(*out, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
    return status ? status : cudnnBackendFinalize(*out);
}

int engine_open(CudaDevice *c, const Graph *g, const EngineId *id, Engine *out, Err *e) {
    assert(g->graph && 0 <= id->n_knobs && id->n_knobs <= ENGINE_KNOBS);
    Node engine = NULL, properties, knob[ENGINE_KNOBS] = {NULL};
    memset(out, 0, sizeof *out);
    int code = described(c, &properties, e);
    if (code) return code;
    cudnnStatus_t status = make_engine(properties, g, id->engine, &engine);
    for (int k = 0; k < id->n_knobs && !status; k++) status = make_knob(id->knob[k].type, id->knob[k].value, &knob[k]);
    if (!status) status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &out->config);
    if (!status)
        status = cudnnBackendSetAttribute(out->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                          &engine);
    if (!status && id->n_knobs)
        status = cudnnBackendSetAttribute(out->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                          id->n_knobs, knob);
    if (!status) status = cudnnBackendFinalize(out->config);
    if (!status) status = engine_fill(out);
    for (int k = 0; k < id->n_knobs; k++) node_free(&knob[k]);
    node_free(&engine);
    if (!status) return OK;
    engine_close(out);
    char text[ENGINE_TEXT];
    return err_set(e, ERR_UNSUPPORTED, "cuDNN has no engine %s for this graph: %s", engine_text(id, text),
                   cudnnGetErrorString(status));
}
