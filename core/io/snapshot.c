#include "snapshot.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "pickle.h"

enum { SMALL_REST = 1 << 20, SMALL_SEGMENT = 2 << 20 };
#define LARGEST (INT64_C(1) << 50) /* bytes, of anything */

/* ---- numbers by a 64-bit key other than 0 */

typedef struct IntMap { struct Entry { uint64_t key; int value; } *slot; size_t slots, n; } IntMap;

static struct Entry *entry_of(const IntMap *m, uint64_t key) {
    size_t at = (key * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (m->slots - 1);
    while (m->slot[at].key && m->slot[at].key != key) at = (at + 1) & (m->slots - 1);
    return &m->slot[at];
}

static int map_get(const IntMap *m, uint64_t key) {
    const struct Entry *found = m->slots ? entry_of(m, key) : NULL;
    return found && found->key ? found->value : -1;
}

/* false: out of host memory, nothing has changed. */
static bool map_set(IntMap *m, uint64_t key, int value) {
    if (2 * (m->n + 1) > m->slots) {
        IntMap bigger = {.slots = m->slots ? 2 * m->slots : 1024, .n = m->n};
        bigger.slot = mem_new(bigger.slots * sizeof *bigger.slot);
        if (!bigger.slot) return false;
        for (size_t i = 0; i < m->slots; i++)
            if (m->slot[i].key) *entry_of(&bigger, m->slot[i].key) = m->slot[i];
        mem_free(m->slot);
        *m = bigger;
    }
    struct Entry *at = entry_of(m, key);
    m->n += !at->key;
    *at = (struct Entry){key, value};
    return true;
}

/* ---- what the pickle says, before it is put together */

#define KEYS(X) X(segments) X(device_traces) X(allocator_settings) X(device) X(address) X(total_size) X(stream) \
    X(segment_type) X(is_expandable) X(blocks) X(size) X(requested_size) X(state) X(frames) X(history) X(action) \
    X(addr) X(time_us) X(name) X(filename) X(line) X(inactive) X(small) X(PYTORCH_CUDA_ALLOC_CONF) X(max_split_size) \
    X(garbage_collection_threshold) X(expandable_segments) X(roundup_power2_divisions)

#define ACTIONS(X) X(alloc) X(free_requested) X(free_completed) X(segment_alloc) X(segment_free) X(segment_map) \
    X(segment_unmap) X(snapshot) X(oom)

typedef enum Action {
#define X(name) ACTION_##name,
    ACTIONS(X)
#undef X
    ACTION_COUNT
} Action;

static const char *const action_names[] = {
#define X(name) #name,
    ACTIONS(X)
#undef X
};

typedef struct Event { uint64_t address; size_t size; int64_t time_us; int stream, call; Action action; } Event;

/* A block that was live at some time and was not allocated in the trace before. */
typedef struct Live { uint64_t address; size_t block, requested; int call, stream; bool alive; } Live;

typedef enum FrameKind { FRAME_OTHER, FRAME_OP, FRAME_NODE, FRAME_USER, FRAME_LIBRARY } FrameKind;
typedef struct Frame { FrameKind kind; const char *text; } Frame;
typedef struct CallKey { const char *op, *node, *where; } CallKey;

typedef struct Reader {
    Snapshot *s;
    const char *path;
    const Pickle *p;
    struct { PickleValue
#define X(name) name,
    KEYS(X)
#undef X
    action_of[ACTION_COUNT]; } key;
    Event *events;
    TraceSegment *ends; /* segments: at the end, and then at the start */
    Live *lives;
    Frame *frames;
    CallKey *calls;
    const char **texts;
    int n_events, n_ends, cap_ends, n_lives, cap_lives, n_frames, cap_frames, cap_calls, n_texts, cap_texts;
    IntMap frame_at, call_of_list, call_at, text_at, live_at;
} Reader;

static int no_memory(const Reader *r, Err *e) { return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", r->path); }

/* A place in the file: "device_traces[0][17]", "segments[3].blocks[0]". */
typedef struct Place { const char *list; size_t i; const char *inner; size_t k; } Place;

static int broken(const Reader *r, const Place *at, Err *e, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int broken(const Reader *r, const Place *at, Err *e, const char *format, ...) {
    char text[240], inner[64] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (at->inner) snprintf(inner, sizeof inner, "%s[%zu]", at->inner, at->k);
    return err_set(e, ERR_FORMAT, "%s: %s[%zu]%s: %s", r->path, at->list, at->i, inner, text);
}

/* dict[key], which must be of that kind. */
static int member(const Reader *r, const Place *at, PickleValue dict, PickleValue key, const char *name,
                  PickleKind kind, PickleValue *out, Err *e) {
    *out = pickle_get(dict, key);
    PickleKind found = pickle_kind(*out);
    if (found == kind) return OK;
    return broken(r, at, e, "%s: expected %s, found %s", name, pickle_kind_name(kind), pickle_kind_name(found));
}

/* A whole number from 0 to `most`. */
static int number(const Reader *r, const Place *at, PickleValue dict, PickleValue key, const char *name, int64_t most,
                  int64_t *out, Err *e) {
    PickleValue v;
    int code = member(r, at, dict, key, name, PICKLE_INT, &v, e);
    *out = pickle_int(v);
    if (code || (*out >= 0 && *out <= most)) return code;
    return broken(r, at, e, "%s: expected a number from 0 to %" PRId64 ", found %" PRId64, name, most, *out);
}

#define NUMBER(r, at, dict, name, most, out, e) number(r, at, dict, (r)->key.name, #name, most, out, e)
#define MEMBER(r, at, dict, name, kind, out, e) member(r, at, dict, (r)->key.name, #name, kind, out, e)

/* ---- tracebacks: which op, which node of the backward pass, which line of the user's */

/* The same text always has the same address. */
static const char *intern(Reader *r, const char *text) {
    uint64_t key = hash_bytes(HASH_START, text, strlen(text)) | 1;
    int i;
    for (; (i = map_get(&r->text_at, key)) >= 0; key += 2)
        if (!strcmp(r->texts[i], text)) return r->texts[i];
    const char *copy = trace_text(&r->s->trace, text);
    if (!mem_grow(&r->texts, &r->cap_texts, r->n_texts + 1, sizeof *r->texts) ||
        !map_set(&r->text_at, key, r->n_texts)) {
        r->s->trace.failed = true;
        return "";
    }
    return r->texts[r->n_texts++] = copy;
}

/* Names of at::_ops: an op's, then its overload's, which begins with a capital letter or is one of these. */
static void cut_overload(char *op) {
    static const char *const overloads[] = {"_dim", "_dim_IntList", "_memory_format", "_self", "_int", "_start",
        "_start_step", "_start_out", "_correction", "_other"};
    for (char *p = op + 1; *p; p++)
        if (p[0] == '_' && p[1] >= 'A' && p[1] <= 'Z') *p = 0;
    size_t n = strlen(op);
    for (size_t i = 0; i < ARRAY_LEN(overloads); i++) {
        size_t more = strlen(overloads[i]);
        if (n > more && !strcmp(op + n - more, overloads[i])) op[n - more] = 0;
    }
}

static size_t word_length(const char *text) {
    size_t n = 0;
    while ((text[n] >= '0' && text[n] <= '9') || (text[n] >= 'a' && text[n] <= 'z') ||
           (text[n] >= 'A' && text[n] <= 'Z') || text[n] == '_') n++;
    return n;
}

static bool is_library(const char *file) {
    static const char *const parts[] = {"/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>",
        "/torch/"};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (strstr(file, parts[i])) return true;
    return false;
}

static Frame classify_native(Reader *r, const char *name) {
    enum { MOST = 100 };
    char text[MOST + 8] = "aten::";
    if (!strncmp(name, "memtide::", 9)) return (Frame){FRAME_OP, intern(r, name + 9)}; /* of memtide dump --snapshot */
    const char *op = !strncmp(name, "at::_ops::", 10) ? name + 10 : NULL;
    const char *node = strstr(name, "torch::autograd::generated::");
    const char *word = op ? op : node ? node + 28 : NULL;
    size_t n = word ? word_length(word) : 0;
    if (op && n && n < MOST) {
        memcpy(text + 6, op, n);
        text[6 + n] = 0;
        cut_overload(text + 6);
        return (Frame){FRAME_OP, intern(r, text)};
    }
    if (node && n && n < MOST) {
        memcpy(text, word, n);
        text[n] = 0;
        char *end = strstr(text, "_apply_functional");
        if (end) *end = 0;
        if (strstr(text, "Backward")) return (Frame){FRAME_NODE, intern(r, text)};
    }
    if (strstr(name, "torch::autograd::AccumulateGrad")) return (Frame){FRAME_NODE, intern(r, "AccumulateGrad")};
    return (Frame){FRAME_OTHER, ""};
}

static Frame classify(Reader *r, PickleValue frame) {
    const char *file = pickle_text(pickle_get(frame, r->key.filename));
    size_t n = strlen(file);
    bool python = (n > 3 && !strcmp(file + n - 3, ".py")) || (n > 4 && !strcmp(file + n - 4, ".lua")) || file[0] == '<';
    char where[600];
    if (!python) return classify_native(r, pickle_text(pickle_get(frame, r->key.name)));
    snprintf(where, sizeof where, "%.560s:%" PRId64, file, pickle_int(pickle_get(frame, r->key.line)));
    return (Frame){is_library(file) ? FRAME_LIBRARY : FRAME_USER, intern(r, where)};
}

/* Frames are shared by many tracebacks: each is looked at once. */
static Frame frame_of(Reader *r, PickleValue frame) {
    int i = map_get(&r->frame_at, frame.word);
    if (i >= 0) return r->frames[i];
    Frame found = classify(r, frame);
    if (mem_grow(&r->frames, &r->cap_frames, r->n_frames + 1, sizeof *r->frames) &&
        map_set(&r->frame_at, frame.word, r->n_frames)) r->frames[r->n_frames++] = found;
    else r->s->trace.failed = true;
    return found;
}

/* The call of what a traceback says, each once. */
static int call_for(Reader *r, CallKey c) {
    Trace *t = &r->s->trace;
    char op[256];
    int i;
    uint64_t key = hash_bytes(HASH_START, &c, sizeof c) | 1;
    for (; (i = map_get(&r->call_at, key)) >= 0; key += 2)
        if (r->calls[i].op == c.op && r->calls[i].node == c.node && r->calls[i].where == c.where) return i;
    snprintf(op, sizeof op, "%s%s%s", c.node, *c.node && *c.op ? "|" : "", c.op);
    i = trace_call(t, intern(r, op), "", c.where);
    if (t->failed || !mem_grow(&r->calls, &r->cap_calls, i + 1, sizeof *r->calls) || !map_set(&r->call_at, key, i))
        t->failed = true;
    else r->calls[i] = c;
    return i;
}

/* Of a traceback, innermost frame first: the outermost op before Python's first frame and before the node of the
 * backward pass; the innermost line that is not a library's. */
static int call_of(Reader *r, PickleValue frames) {
    CallKey c = {"", "", ""};
    bool inside = true;
    if (pickle_kind(frames) != PICKLE_LIST) return call_for(r, c);
    int known = map_get(&r->call_of_list, frames.word);
    if (known >= 0) return known;
    for (size_t i = 0, user = 0; i < pickle_count(frames) && !user; i++) {
        Frame f = frame_of(r, pickle_item(frames, i));
        user = f.kind == FRAME_USER;
        if (f.kind == FRAME_OP && inside) c.op = f.text;
        else if (f.kind == FRAME_NODE && !*c.node) c.node = f.text;
        else if (user || (f.kind == FRAME_LIBRARY && !*c.where)) c.where = f.text;
        if (f.kind != FRAME_OP && f.kind != FRAME_OTHER) inside = false;
    }
    int call = call_for(r, c);
    if (!map_set(&r->call_of_list, frames.word, call)) r->s->trace.failed = true;
    return call;
}

/* ---- settings, events, segments */

static int read_settings(Reader *r, PickleValue dict, Err *e) {
    CachingSettings *s = &r->s->settings;
    const char *text = pickle_text(pickle_get(dict, r->key.PYTORCH_CUDA_ALLOC_CONF));
    int code = caching_settings_parse(text, s, e);
    if (code) return err_prefix(e, "%s: allocator_settings", r->path), e->code = ERR_FORMAT;
    PickleValue split = pickle_get(dict, r->key.max_split_size);
    PickleValue steps = pickle_get(dict, r->key.roundup_power2_divisions);
    if (pickle_kind(split) == PICKLE_INT) s->max_split_size = pickle_int(split) > 0 ? (size_t)pickle_int(split) : 0;
    PickleValue expandable = pickle_get(dict, r->key.expandable_segments);
    if (pickle_kind(expandable) == PICKLE_BOOL) s->expandable_segments = pickle_int(expandable);
    PickleValue threshold = pickle_get(dict, r->key.garbage_collection_threshold);
    if (threshold.word) s->garbage_collection_threshold = pickle_float(threshold);
    for (size_t i = 0; i < pickle_count(steps) && i < ROUNDUP_INTERVALS; i++) {
        int64_t n = pickle_int(pickle_item(steps, i));
        if (n < 0 || n > 1 << 16 || (n & (n - 1)))
            return err_set(e, ERR_FORMAT, "%s: allocator_settings: roundup_power2_divisions: expected powers of two, "
                           "found %" PRId64, r->path, n);
        s->roundup_power2_divisions[i] = (uint32_t)n;
    }
    return OK;
}

static int read_event(Reader *r, PickleValue dict, const Place *at, Err *e) {
    Event ev = {.action = 0};
    int64_t address = 0, size = 0, stream = 0;
    PickleValue action;
    int code = MEMBER(r, at, dict, action, PICKLE_TEXT, &action, e);
    if (code) return code;
    while (ev.action < ACTION_COUNT && r->key.action_of[ev.action].word != action.word) ev.action++;
    if (ev.action == ACTION_COUNT)
        return broken(r, at, e, "action: expected one such as alloc or free_completed, found \"%.40s\"",
                      pickle_text(action));
    if (ev.action == ACTION_free_requested || ev.action == ACTION_snapshot) return OK;
    if (!code && ev.action != ACTION_oom) code = NUMBER(r, at, dict, addr, INT64_MAX, &address, e);
    if (!code) code = NUMBER(r, at, dict, size, LARGEST, &size, e);
    stream = pickle_int(pickle_get(dict, r->key.stream));
    if (!code && !address && ev.action != ACTION_oom) code = broken(r, at, e, "addr: expected an address, found 0");
    if (!code && !size && ev.action == ACTION_alloc) code = broken(r, at, e, "size: expected at least 1 byte, found 0");
    if (code) return code;
    ev.address = (uint64_t)address;
    ev.size = (size_t)size;
    ev.stream = (int)(stream % INT32_MAX); /* a handle: equal or not is all that counts */
    ev.time_us = pickle_int(pickle_get(dict, r->key.time_us));
    if (ev.action == ACTION_alloc) ev.call = call_of(r, pickle_get(dict, r->key.frames));
    r->events[r->n_events++] = ev;
    return OK;
}

static int read_events(Reader *r, PickleValue traces, Err *e) {
    Snapshot *s = r->s;
    for (size_t i = 0; i < pickle_count(traces); i++) {
        if (!pickle_count(pickle_item(traces, i))) continue;
        if (s->device < 0) s->device = (int)i;
        s->devices++;
    }
    PickleValue trace = pickle_item(traces, s->device < 0 ? 0 : (size_t)s->device);
    size_t n = pickle_count(trace);
    if (pickle_kind(trace) != PICKLE_LIST || !n)
        return err_set(e, ERR_FORMAT, "%s: no events of GPU %d: torch.cuda.memory._record_memory_history() begins a "
                       "recording", r->path, s->device < 0 ? 0 : s->device);
    r->events = n < INT32_MAX / 2 ? mem_new(n * sizeof *r->events) : NULL;
    if (!r->events) return no_memory(r, e);
    int code = OK;
    for (size_t i = 0; i < n && !code; i++)
        code = read_event(r, pickle_item(trace, i), &(Place){"device_traces", (size_t)s->device, "", i}, e);
    return code;
}

static int add_live(Reader *r, Live live, Err *e) {
    if (!mem_grow(&r->lives, &r->cap_lives, r->n_lives + 1, sizeof *r->lives) ||
        !map_set(&r->live_at, live.address, r->n_lives)) return no_memory(r, e);
    r->lives[r->n_lives++] = live;
    return OK;
}

/* *address: where the block before it ends, and then where this one does. */
static int read_block(Reader *r, PickleValue dict, const TraceSegment *s, uint64_t *address, const Place *at,
                      Err *e) {
    int64_t size = 0, requested = 0, here = (int64_t)*address;
    PickleValue state = {0}, history = pickle_get(dict, r->key.history), frames = pickle_get(dict, r->key.frames);
    int code = NUMBER(r, at, dict, size, LARGEST, &size, e);
    if (!code) code = MEMBER(r, at, dict, state, PICKLE_TEXT, &state, e);
    if (!code && pickle_get(dict, r->key.address).word) code = NUMBER(r, at, dict, address, INT64_MAX, &here, e);
    bool live = !code && state.word != r->key.inactive.word; /* a free block has its last request's size */
    if (live && pickle_get(dict, r->key.requested_size).word)
        code = NUMBER(r, at, dict, requested_size, size, &requested, e);
    if (code) return code;
    if ((uint64_t)here < *address || (uint64_t)here + (uint64_t)size > s->address + s->size || size == 0)
        return broken(r, at, e, "address, size: expected a block of at least 1 byte inside its segment, after the one "
                      "before it");
    *address = (uint64_t)here + (uint64_t)size;
    if (!live) return OK;
    if (pickle_kind(frames) != PICKLE_LIST) frames = pickle_get(pickle_item(history, 0), r->key.frames);
    return add_live(r, (Live){(uint64_t)here, (size_t)size, (size_t)(requested ? requested : size), call_of(r, frames),
                              s->stream, true}, e);
}

static int add_segment(Reader *r, TraceSegment s, Err *e) {
    if (!mem_grow(&r->ends, &r->cap_ends, r->n_ends + 1, sizeof *r->ends)) return no_memory(r, e);
    r->ends[r->n_ends++] = s;
    return OK;
}

static int read_segment(Reader *r, PickleValue dict, size_t i, Err *e) {
    Place at = {"segments", i, NULL, 0};
    int64_t address = 0, size = 0;
    PickleValue device = pickle_get(dict, r->key.device), stream = pickle_get(dict, r->key.stream), type, blocks;
    if (pickle_kind(device) == PICKLE_INT && pickle_int(device) != r->s->device) return OK;
    int code = NUMBER(r, &at, dict, address, INT64_MAX - LARGEST, &address, e);
    if (!code) code = NUMBER(r, &at, dict, total_size, LARGEST, &size, e);
    if (!code) code = MEMBER(r, &at, dict, segment_type, PICKLE_TEXT, &type, e);
    if (!code) code = MEMBER(r, &at, dict, blocks, PICKLE_LIST, &blocks, e);
    if (code) return code;
    if (!address || !size || size % 512)
        return broken(r, &at, e, "expected an address and a size in multiples of 512 bytes");
    TraceSegment s = {.address = (uint64_t)address, .size = (size_t)size, .small = type.word == r->key.small.word,
        .stream = (int)(pickle_int(stream) % INT32_MAX), .page = pickle_int(pickle_get(dict, r->key.is_expandable))};
    if (s.page) r->s->expandable = true;
    uint64_t next = s.address;
    for (size_t k = 0; k < pickle_count(blocks) && !code; k++)
        code = read_block(r, pickle_item(blocks, k), &s, &next, &(Place){"segments", i, ".blocks", k}, e);
    return code ? code : add_segment(r, s, e);
}

/* ---- backwards, to the state at the start */

static int event_wrong(const Reader *r, int i, const char *what, Err *e) {
    const Event *ev = &r->events[i];
    return err_set(e, ERR_FORMAT, "%s: event %d of GPU %d, %s at 0x%" PRIx64 " of %zu bytes: %s, so that the events do "
                   "not lead to the state that was dumped", r->path, i, r->s->device, action_names[ev->action],
                   ev->address, ev->size, what);
}

static int undo_segment(Reader *r, int i, Err *e) {
    const Event *ev = &r->events[i];
    bool page = ev->action == ACTION_segment_map || ev->action == ACTION_segment_unmap;
    if (page) {
        r->s->expandable = true;
        return OK;
    }
    if (ev->action == ACTION_segment_free)
        return add_segment(r, (TraceSegment){.address = ev->address, .size = ev->size, .stream = ev->stream,
                                                .small = ev->size == SMALL_SEGMENT}, e);
    int k = 0;
    while (k < r->n_ends && r->ends[k].address != ev->address) k++;
    if (k == r->n_ends) return r->s->expandable ? OK : event_wrong(r, i, "this segment is not there afterwards", e);
    r->ends[k] = r->ends[--r->n_ends];
    return OK;
}

static int undo(Reader *r, int i, Err *e) {
    const Event *ev = &r->events[i];
    int live = map_get(&r->live_at, ev->address);
    bool alive = live >= 0 && r->lives[live].alive;
    switch (ev->action) {
    case ACTION_alloc:
        if (!alive) return event_wrong(r, i, "this block is not there afterwards", e);
        r->lives[live].alive = false;
        return OK;
    case ACTION_free_completed:
        if (alive) return event_wrong(r, i, "this block is there afterwards", e);
        return add_live(r, (Live){ev->address, 0, ev->size ? ev->size : 1, call_for(r, (CallKey){"", "", ""}),
                                  ev->stream, true}, e);
    case ACTION_segment_alloc: case ACTION_segment_free: case ACTION_segment_map: case ACTION_segment_unmap:
        return undo_segment(r, i, e);
    default: return OK;
    }
}

static int by_address(const void *a, const void *b) {
    uint64_t x = ((const Live *)a)->address, y = ((const Live *)b)->address;
    return x == y ? 0 : x < y ? -1 : 1;
}

static int segments_by_address(const void *a, const void *b) {
    uint64_t x = ((const TraceSegment *)a)->address, y = ((const TraceSegment *)b)->address;
    return x == y ? 0 : x < y ? -1 : 1;
}

/* Of `lives`, by address: the last at or below, or -1. */
static int last_live(const Reader *r, uint64_t address) {
    int low = 0, high = r->n_lives;
    while (low < high) {
        int middle = (low + high) / 2;
        if (r->lives[middle].address <= address) low = middle + 1;
        else high = middle;
    }
    return low - 1;
}

/* The segment at the start that the address lies in, or NULL. */
static const TraceSegment *segment_of(const Reader *r, uint64_t address) {
    int low = 0, high = r->n_ends;
    while (low < high) {
        int middle = (low + high) / 2;
        if (r->ends[middle].address <= address) low = middle + 1;
        else high = middle;
    }
    const TraceSegment *s = low ? &r->ends[low - 1] : NULL;
    return s && address - s->address < s->size ? s : NULL;
}

/* A block of the large pool may have up to 1 MiB more than was asked for, which the recording does not say: where so
 * little follows it, it is the block's; elsewhere the first block tells that is put after it. */
static int size_blocks(Reader *r, Err *e) {
    for (int i = 0; i < r->n_lives; i++) {
        Live *live = &r->lives[i];
        const TraceSegment *s = segment_of(r, live->address);
        if (!s)
            return err_set(e, ERR_FORMAT, "%s: the block at 0x%" PRIx64 " of %zu bytes lay in no segment at the start",
                           r->path, live->address, live->requested);
        uint64_t end = s->address + s->size;
        if (i + 1 < r->n_lives && r->lives[i + 1].address < end) end = r->lives[i + 1].address;
        size_t room = (size_t)(end - live->address), size = caching_round(&r->s->settings, live->requested);
        if (live->block) size = live->block;
        else if (!s->small && size <= room && room - size <= SMALL_REST) size = live->block = room;
        if (size > room)
            return err_set(e, ERR_FORMAT, "%s: the block at 0x%" PRIx64 " of %zu bytes had room for %zu at the start",
                           r->path, live->address, live->requested, room);
        if (s->small) live->block = size;
    }
    for (int i = 0; i < r->n_events; i++) {
        const Event *ev = &r->events[i];
        int k = ev->action == ACTION_alloc || ev->action == ACTION_free_completed ? last_live(r, ev->address) : -1;
        if (k < 0 || r->lives[k].block) continue;
        size_t size = caching_round(&r->s->settings, r->lives[k].requested);
        uint64_t end = r->lives[k].address + size;
        bool freed = ev->action == ACTION_free_completed && ev->address == r->lives[k].address;
        if (freed) r->lives[k].block = size;
        else if (ev->action == ACTION_alloc && ev->address >= end && ev->address - end <= SMALL_REST)
            r->lives[k].block = (size_t)(ev->address - r->lives[k].address);
    }
    return OK;
}

static int rewind_state(Reader *r, Err *e) {
    int code = OK, n = 0;
    for (int i = r->n_events - 1; i >= 0 && !code; i--) code = undo(r, i, e);
    if (code) return code;
    for (int i = 0; i < r->n_lives; i++)
        if (r->lives[i].alive) r->lives[n++] = r->lives[i];
    r->n_lives = n;
    if (n) qsort(r->lives, (size_t)n, sizeof *r->lives, by_address);
    if (r->n_ends) qsort(r->ends, (size_t)r->n_ends, sizeof *r->ends, segments_by_address);
    for (int i = 1; i < r->n_ends; i++)
        if (r->ends[i].address - r->ends[i - 1].address < r->ends[i - 1].size)
            return err_set(e, ERR_FORMAT, "%s: the segments at 0x%" PRIx64 " and 0x%" PRIx64 " overlap at the start",
                           r->path, r->ends[i - 1].address, r->ends[i].address);
    return r->s->expandable ? OK : size_blocks(r, e);
}

/* ---- forwards: the trace */

static int add_tensor(Reader *r, SnapshotTensor t, TraceTensor asked, int *cap, Err *e) {
    Snapshot *s = r->s;
    int n = s->trace.n_tensors;
    if (!mem_grow(&s->tensors, cap, n + 1, sizeof *s->tensors)) return no_memory(r, e);
    s->tensors[n] = t;
    trace_alloc(&s->trace, asked.bytes, CAT_OTHER, asked.call);
    if (s->trace.failed || !map_set(&r->live_at, t.address, n)) return no_memory(r, e);
    s->trace.tensors[n].stream = asked.stream;
    return OK;
}

static int add_time(Reader *r, int64_t time_us, Err *e) {
    Snapshot *s = r->s;
    if (!mem_grow(&s->time_us, &s->cap_times, s->n_times + 1, sizeof *s->time_us)) return no_memory(r, e);
    s->time_us[s->n_times++] = time_us;
    return OK;
}

static int add_segment_event(Reader *r, const Event *ev, size_t *reserved, Err *e) {
    Snapshot *s = r->s;
    bool taken = ev->action == ACTION_segment_alloc || ev->action == ACTION_segment_map;
    bool page = ev->action == ACTION_segment_map || ev->action == ACTION_segment_unmap;
    if (!mem_grow(&s->segments, &s->cap_segments, s->n_segments + 1, sizeof *s->segments)) return no_memory(r, e);
    s->segments[s->n_segments++] = (TraceSegment){ev->address, ev->size, s->trace.n_events, ev->stream, taken,
        ev->size == SMALL_SEGMENT, page};
    *reserved += taken ? ev->size : -ev->size;
    s->reserved_peak = max_size(s->reserved_peak, *reserved);
    return OK;
}

static int build_event(Reader *r, int i, size_t *reserved, int *cap, Err *e) {
    const Event *ev = &r->events[i];
    Snapshot *s = r->s;
    int code = OK;
    if (ev->action == ACTION_alloc) {
        const TraceTensor asked = {.bytes = ev->size, .call = ev->call, .stream = ev->stream};
        code = add_tensor(r, (SnapshotTensor){ev->address, ev->time_us, 0}, asked, cap, e);
    } else if (ev->action == ACTION_free_completed) {
        trace_release(&s->trace, map_get(&r->live_at, ev->address));
    } else if (ev->action == ACTION_oom) {
        if (!s->ooms++) s->oom_bytes = ev->size;
        return OK;
    } else {
        return add_segment_event(r, ev, reserved, e);
    }
    return code ? code : add_time(r, ev->time_us, e);
}

static int build(Reader *r, Err *e) {
    Snapshot *s = r->s;
    int code = OK, cap = 0;
    s->reserved_end = s->reserved_start; /* read_all has put the sum at the end there */
    for (int i = 0; i < r->n_events; i++) {
        Action a = r->events[i].action;
        if (a == ACTION_segment_alloc || a == ACTION_segment_map) s->reserved_start -= r->events[i].size;
        if (a == ACTION_segment_free || a == ACTION_segment_unmap) s->reserved_start += r->events[i].size;
    }
    size_t reserved = s->reserved_peak = s->reserved_start;
    for (int i = 0; i < r->n_lives && !code; i++) {
        const Live *live = &r->lives[i];
        size_t block = live->block ? live->block : caching_round(&s->settings, live->requested);
        const TraceTensor asked = {.bytes = live->requested, .call = live->call, .stream = live->stream};
        code = add_tensor(r, (SnapshotTensor){live->address, 0, block}, asked, &cap, e);
        if (!code) code = add_time(r, 0, e);
    }
    s->n_start = r->n_lives;
    for (int i = 0; i < r->n_events && !code; i++) code = build_event(r, i, &reserved, &cap, e);
    s->start = r->ends;
    s->n_start_segments = r->n_ends;
    r->ends = NULL;
    return code || (!s->trace.failed && !s->trace.scratch.failed) ? code : no_memory(r, e);
}

/* ---- files */

static void find_keys(Reader *r) {
#define X(name) r->key.name = pickle_find(r->p, #name);
    KEYS(X)
#undef X
    for (int i = 0; i < ACTION_COUNT; i++) r->key.action_of[i] = pickle_find(r->p, action_names[i]);
}

static int read_all(Reader *r, PickleValue root, Err *e) {
    PickleValue segments = pickle_get(root, r->key.segments), traces = pickle_get(root, r->key.device_traces);
    if (pickle_kind(segments) != PICKLE_LIST || pickle_kind(traces) != PICKLE_LIST)
        return err_set(e, ERR_FORMAT, "%s: expected a dict with the lists segments and device_traces, as "
                       "torch.cuda.memory._dump_snapshot writes it, found %s", r->path,
                       pickle_kind_name(pickle_kind(root)));
    int code = read_settings(r, pickle_get(root, r->key.allocator_settings), e);
    if (!code) code = read_events(r, traces, e);
    for (size_t i = 0; i < pickle_count(segments) && !code; i++) code = read_segment(r, pickle_item(segments, i), i, e);
    for (int i = 0; i < r->n_ends; i++) r->s->reserved_start += r->ends[i].size;
    if (r->s->settings.expandable_segments) r->s->expandable = true;
    return code || !r->s->trace.failed ? code : no_memory(r, e);
}

int snapshot_open(const char *path, int device, Snapshot **out, Err *e) {
    Reader r = {.path = path, .s = mem_new(sizeof *r.s)};
    Pickle *p = NULL;
    if (!r.s) return no_memory(&r, e);
    r.s->device = device;
    int code = pickle_open(path, &p, e);
    if (!code) {
        r.p = p;
        find_keys(&r);
        code = read_all(&r, pickle_root(p), e);
        pickle_close(p);
    }
    if (!code) code = rewind_state(&r, e);
    if (!code) code = build(&r, e);
    IntMap *maps[] = {&r.frame_at, &r.call_of_list, &r.call_at, &r.text_at, &r.live_at};
    for (size_t i = 0; i < ARRAY_LEN(maps); i++) mem_free(maps[i]->slot);
    void *arrays[] = {r.events, r.ends, r.lives, r.frames, r.calls, r.texts};
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++) mem_free(arrays[i]);
    if (code) snapshot_close(r.s);
    else *out = r.s;
    return code;
}

void snapshot_close(Snapshot *s) {
    if (!s) return;
    trace_free(&s->trace);
    mem_free(s->tensors);
    mem_free(s->time_us);
    mem_free(s->start);
    mem_free(s->segments);
    mem_free(s);
}

/* ---- replay */

typedef struct Replay {
    const Snapshot *s;
    Allocator *a;
    Ledger *ledger;
    Block *blocks;     /* by tensor */
    SnapshotReplay *out;
    size_t allocated;
    int segment;       /* the next of s->segments */
    size_t *sizes;     /* by tensor, of blocks; NULL: nobody asks */
} Replay;

static void note(Replay *r, int event, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void note(Replay *r, int event, const char *format, ...) {
    va_list args;
    if (r->out->first >= 0) return;
    r->out->first = event;
    va_start(args, format);
    vsnprintf(r->out->difference, sizeof r->out->difference, format, args);
    va_end(args);
}

static int restore(Replay *r, Err *e) {
    const Snapshot *s = r->s;
    CachedBlock *list = mem_new((size_t)s->n_start * sizeof *list + 1);
    int code = list ? OK : err_set(e, ERR_HOST_MEMORY, "out of host memory for a replay"), tensor = 0;
    for (int i = 0; i < s->n_start_segments && !code; i++) {
        const TraceSegment *seg = &s->start[i];
        int n = 0;
        for (; tensor < s->n_start && s->tensors[tensor].address - seg->address < seg->size; tensor++, n++) {
            r->blocks[tensor] = (Block){.bytes = s->trace.tensors[tensor].bytes, .category = CAT_OTHER,
                .size = s->tensors[tensor].block};
            list[n] = (CachedBlock){(size_t)(s->tensors[tensor].address - seg->address), &r->blocks[tensor]};
            r->allocated += s->tensors[tensor].block;
            if (r->sizes) r->sizes[tensor] = s->tensors[tensor].block;
        }
        const CachedSegment segment = {seg->address, seg->size, seg->stream, seg->small};
        code = alloc_caching_restore(r->a, &segment, list, n, e);
    }
    mem_free(list);
    return code;
}

/* What became of segments before this event: those that went back go now; bytes of the one that was taken, or 0. */
static size_t segments_before(Replay *r, int event) {
    const Snapshot *s = r->s;
    size_t taken = 0;
    for (; r->segment < s->n_segments && s->segments[r->segment].event <= event; r->segment++) {
        const TraceSegment *seg = &s->segments[r->segment];
        bool good = seg->taken || alloc_caching_release(r->a, seg->address);
        if (seg->taken) {
            taken = seg->size;
            alloc_caching_next_address(r->a, seg->address);
            continue;
        }
        *(good ? &r->out->segments_equal : &r->out->segments_different) += 1;
        if (!good)
            note(r, event, "the segment at 0x%" PRIx64 " of %zu bytes went back, which is in use here", seg->address,
                 seg->size);
    }
    return taken;
}

static int replay_alloc(Replay *r, int event, size_t expected, Err *e) {
    const Snapshot *s = r->s;
    int tensor = s->trace.events[event];
    const SnapshotTensor *t = &s->tensors[tensor];
    size_t before = r->ledger->held;
    alloc_caching_stream(r->a, s->trace.tensors[tensor].stream);
    int code = allocator_get(r->a, s->trace.tensors[tensor].bytes, CAT_OTHER, 0, &r->blocks[tensor], e);
    if (code) return code;
    r->allocated += r->blocks[tensor].size;
    if (r->sizes) r->sizes[tensor] = r->blocks[tensor].size;
    alloc_caching_next_address(r->a, 0);
    if (s->expandable) return OK;
    size_t found = r->ledger->held - before;
    uint64_t address = alloc_caching_address(&r->blocks[tensor]);
    if (found || expected) *(found == expected ? &r->out->segments_equal : &r->out->segments_different) += 1;
    if (found != expected)
        note(r, event, "a request of %zu bytes takes a segment of %zu, and took one of %zu",
             s->trace.tensors[tensor].bytes, found, expected);
    *(address == t->address ? &r->out->equal : &r->out->different) += 1;
    if (address != t->address)
        note(r, event, "a request of %zu bytes gets 0x%" PRIx64 ", and got 0x%" PRIx64, s->trace.tensors[tensor].bytes,
             address, t->address);
    return OK;
}

static int replay_event(Replay *r, int event, Err *e) {
    int what = r->s->trace.events[event];
    size_t expected = r->s->expandable ? 0 : segments_before(r, event);
    if (what >= 0) return replay_alloc(r, event, expected, e);
    r->allocated -= r->blocks[~what].size;
    allocator_put(r->a, &r->blocks[~what]);
    return OK;
}

/* From the start to the event `last`, with the peaks that are met. */
static int replay_to(Replay *r, int last, Err *e) {
    SnapshotReplay *out = r->out;
    int code = r->s->expandable ? OK : restore(r, e), first = r->s->expandable ? 0 : r->s->n_start;
    for (int i = first - 1; i <= last && !code; i++) {
        if (i >= first) code = replay_event(r, i, e);
        if (i < r->s->n_start) out->allocated_start = r->allocated;
        if (i < r->s->n_start - 1) continue;
        if (i == r->s->n_start - 1 || r->allocated > out->peak.allocated)
            out->peak = (SnapshotPeak){.event = i, .requested = r->ledger->used, .allocated = r->allocated,
                .reserved = r->ledger->held};
        out->requested_peak = max_size(out->requested_peak, r->ledger->used);
        out->reserved_peak = max_size(out->reserved_peak, r->ledger->held);
    }
    return code;
}

static int replay(const Snapshot *s, Ledger *ledger, int last, SnapshotReplay *out, size_t *sizes, CachingStats *stats, Err *e) {
    Replay r = {.s = s, .ledger = ledger, .out = out, .sizes = sizes};
    *out = (SnapshotReplay){.first = -1};
    r.blocks = mem_new((size_t)s->trace.n_tensors * sizeof *r.blocks);
    if (!r.blocks) return err_set(e, ERR_HOST_MEMORY, "out of host memory for a replay");
    int code = alloc_caching_open(ledger, &s->settings, &r.a, e);
    if (!code) code = replay_to(&r, last, e);
    if (r.a) *stats = alloc_caching_stats(r.a);
    bool whole = !code && !s->expandable && last == s->trace.n_events - 1;
    if (whole) segments_before(&r, s->trace.n_events); /* what came after the last event */
    out->allocated_end = r.allocated;
    out->reserved_end = ledger->held;
    for (int i = 0; i < s->trace.n_tensors && r.a; i++) allocator_put(r.a, &r.blocks[i]);
    allocator_close(r.a);
    mem_free(r.blocks);
    return code;
}

int snapshot_replay(const Snapshot *s, Ledger *ledger, SnapshotReplay *out, size_t *sizes, Err *e) {
    SnapshotReplay again;
    CachingStats stats;
    int code = replay(s, ledger, s->trace.n_events - 1, out, sizes, &stats, e);
    if (!code) code = replay(s, ledger, out->peak.event, &again, NULL, &stats, e); /* what is free at the peak */
    if (code) return code;
    out->peak.cached = stats.cached;
    out->peak.split = stats.split;
    return OK;
}

int snapshot_places(const Snapshot *s, Ledger *ledger, SnapshotReplay *replay, TracePlaces *out, Err *e) {
    const size_t n = (size_t)s->trace.n_tensors + 1, n_segments = (size_t)(s->n_start_segments + s->n_segments);
    out->address = mem_new(n * sizeof *out->address);
    out->size = mem_new(n * sizeof *out->size);
    out->segments = mem_new((n_segments + 1) * sizeof *out->segments);
    if (!out->address || !out->size || !out->segments) return err_set(e, ERR_HOST_MEMORY, "out of host memory for the places of tensors");
    for (int i = 0; i < s->trace.n_tensors; i++) out->address[i] = s->tensors[i].address;
    for (int i = 0; i < s->n_start_segments; i++) {
        TraceSegment *at = &out->segments[out->n_segments++];
        *at = s->start[i];
        at->taken = true;
        at->event = 0;
    }
    for (int i = 0; i < s->n_segments; i++) out->segments[out->n_segments++] = s->segments[i];
    return snapshot_replay(s, ledger, replay, out->size, e);
}
