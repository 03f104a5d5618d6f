/* Datasets, loaders and batches for scripts. */
#include <assert.h>
#include <string.h>

#include "bind.h"
#include "io/data.h"

/* ---- batches */

Batch *bind_batch_new(lua_State *L, Shape shape, bool integers) {
    Err e;
    int64_t count;
    if (shape_count(&shape, &count, &e)) bind_raise(L, e.text);
    Batch *b = lua_newuserdatauv(L, sizeof *b + (size_t)count * 4, 0);
    *b = (Batch){shape, integers, count, b + 1};
    memset(b->values, 0, (size_t)count * 4);
    luaL_setmetatable(L, BATCH_TYPE);
    return b;
}

/* batch:shape() -> {64, 3, 32, 32} */
static int batch_shape(lua_State *L) {
    const Batch *b = luaL_checkudata(L, 1, BATCH_TYPE);
    bind_push_shape(L, &b->shape);
    return 1;
}

/* batch:values() -> a table of its numbers */
static int batch_values(lua_State *L) {
    const Batch *b = luaL_checkudata(L, 1, BATCH_TYPE);
    lua_newtable(L);
    for (int64_t i = 0; i < b->count; i++) {
        if (b->integers) lua_pushinteger(L, ((const int32_t *)b->values)[i]);
        else lua_pushnumber(L, (lua_Number)((const float *)b->values)[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* batch(shape, labels, value) -> a batch in which every number is that one; labels: whole numbers */
static int new_batch(lua_State *L) {
    const Shape shape = bind_shape(L, 1);
    const bool labels = lua_toboolean(L, 2);
    const lua_Number value = luaL_checknumber(L, 3);
    Batch *b = bind_batch_new(L, shape, labels);
    if (labels && !(value >= INT32_MIN && value <= INT32_MAX && value == (lua_Number)(int32_t)value))
        bind_error(L, "expected a class label, found %s", bind_show(L, 3));
    for (int64_t i = 0; i < b->count && value != 0; i++) {
        if (labels) ((int32_t *)b->values)[i] = (int32_t)value;
        else ((float *)b->values)[i] = (float)value;
    }
    return 1;
}

/* joined({batch, ...}) -> one batch of the samples of all; they must be of one shape, and all labels or all numbers */
static int joined(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    const lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
    Shape shape = {0};
    bool labels = false;
    int64_t samples = 0, count = 0;
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, 1, i);
        const Batch *b = luaL_testudata(L, -1, BATCH_TYPE);
        if (!b) return bind_error(L, "expected a list of batches, found %s at %I", bind_show(L, -1), (LUAI_UACINT)i);
        if (i == 1) shape = b->shape, labels = b->integers;
        const int64_t dim = b->shape.dim[0];
        shape.dim[0] = dim;
        if (!shape_equal(&shape, &b->shape) || labels != b->integers)
            return bind_error(L, "batches of a list must have samples of one shape: the one at %I differs", (LUAI_UACINT)i);
        samples += dim;
        count += b->count;
        lua_pop(L, 1);
    }
    if (n < 1) return bind_error(L, "expected a list of batches, found an empty one");
    shape.dim[0] = samples;
    Batch *all = bind_batch_new(L, shape, labels);
    all->count = count;
    char *to = all->values;
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, 1, i);
        const Batch *b = lua_touserdata(L, -1);
        memcpy(to, b->values, (size_t)b->count * 4);
        to += b->count * 4;
        lua_pop(L, 1);
    }
    return 1;
}

/* ---- datasets */

static void release_dataset(void *content) { dataset_free(content); }

static int dataset_result(lua_State *L, Box *box, int code, Dataset *d, const Err *e) {
    if (code) return bind_fail(L, e);
    box->content = d;
    return 1;
}

/* dataset_idx(images, labels) */
static int new_idx(lua_State *L) {
    Err e;
    Dataset *d = NULL;
    const char *images = bind_path(L, 1, "data.idx: images", false);
    const char *labels = bind_path(L, 2, "data.idx: labels", false);
    Box *box = bind_new(L, BOX_DATASET, release_dataset);
    int code = dataset_idx(images, labels, &d, &e);
    return dataset_result(L, box, code, d, &e);
}

enum { FILES_MAX = 4096 };

/* The dataset that `read` makes of {path, ...} */
static int new_of_files(lua_State *L, const char *what, int (*read)(const char *const *, int, Dataset **, Err *)) {
    Err e;
    Dataset *d = NULL;
    const char *paths[FILES_MAX];
    lua_Unsigned n = lua_rawlen(L, 1);
    if (!lua_istable(L, 1) || n < 1 || n > FILES_MAX)
        return bind_error(L, "%s: expected a list of 1 to %d files, found %I", what, FILES_MAX, (LUAI_UACINT)n);
    luaL_checkstack(L, (int)n + LUA_MINSTACK, what);
    for (int i = 0; i < (int)n; i++) {
        lua_rawgeti(L, 1, i + 1);
        paths[i] = bind_path(L, -1, what, false);
    }
    Box *box = bind_new(L, BOX_DATASET, release_dataset);
    int code = read(paths, (int)n, &d, &e);
    return dataset_result(L, box, code, d, &e);
}

/* dataset_cifar10{path, ...}, dataset_tar{path, ...} */
static int new_cifar10(lua_State *L) { return new_of_files(L, "data.cifar10: files", dataset_cifar10); }
static int new_tar(lua_State *L) { return new_of_files(L, "data.tar: files", dataset_tar); }

/* dataset_npy(x, y or nil, ignore_index) */
static int new_npy(lua_State *L) {
    Err e;
    Dataset *d = NULL;
    const char *x = bind_path(L, 1, "data.npy: inputs", false);
    const char *y = lua_isnoneornil(L, 2) ? NULL : bind_path(L, 2, "data.npy: targets", false);
    const lua_Integer ignored = luaL_checkinteger(L, 3);
    if (ignored < INT32_MIN || ignored > INT32_MAX)
        return bind_error(L, "data.npy: ignore_index: expected a number of 32 bits, found %I", (LUAI_UACINT)ignored);
    Box *box = bind_new(L, BOX_DATASET, release_dataset);
    int code = dataset_npy(x, y, (int32_t)ignored, &d, &e);
    return dataset_result(L, box, code, d, &e);
}

/* dataset_text{file = or text =, window =, stride =} */
static int new_text(lua_State *L) {
    Err e;
    Dataset *d = NULL;
    size_t length = 0;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    const char *file = lua_getfield(L, 1, "file") == LUA_TNIL ? NULL : bind_path(L, 2, "data.text: file", false);
    lua_getfield(L, 1, "text");
    const char *text = lua_type(L, 3) == LUA_TSTRING ? lua_tolstring(L, 3, &length) : NULL;
    if (!file == !text) return bind_error(L, "data.text: expected either file or text");
    lua_Integer window = bind_integer(L, 1, "window", 0), stride = bind_integer(L, 1, "stride", window);
    Box *box = bind_new(L, BOX_DATASET, release_dataset);
    int code = file ? dataset_text_file(file, window, stride, &d, &e)
                    : dataset_windows(text, (int64_t)length, window, stride, &d, &e);
    return dataset_result(L, box, code, d, &e);
}

/* dataset_random{count =, shape =, tokens =, classes =, target = shape, seed =}: classes, target or both; positions = true: of
 * sequences that share a row, none longer than `tokens`; see data.h */
static int new_random(lua_State *L) {
    Err e;
    Dataset *d = NULL;
    Shape target = {0, {1, 1, 1, 1}};
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_getfield(L, 1, "shape");
    Shape sample = bind_shape(L, 2);
    if (lua_getfield(L, 1, "target") != LUA_TNIL) target = bind_shape(L, 3);
    lua_Integer count = bind_integer(L, 1, "count", 0), classes = bind_integer(L, 1, "classes", 0);
    if (classes < 0 || classes > INT32_MAX)
        return bind_error(L, "classes: expected a whole number that is not negative");
    uint64_t seed = (uint64_t)bind_integer(L, 1, "seed", 0);
    lua_Integer tokens = bind_integer(L, 1, "tokens", 0);
    const bool positions = bind_boolean(L, 1, "positions", false);
    if (positions && (sample.rank != 1 || tokens < 1)) return bind_error(L, "positions: expected steps, and how many tokens there are at most");
    if (tokens < 0 || tokens > INT32_MAX) return bind_error(L, "tokens: expected a whole number that is not negative");
    Box *box = bind_new(L, BOX_DATASET, release_dataset);
    int code = positions ? dataset_random_positions(count, sample.dim[0], tokens, seed, &d, &e)
               : tokens ? dataset_random_tokens(count, &sample, (int)tokens, (int)classes, &target, seed, &d, &e)
                      : dataset_random(count, &sample, (int)classes, &target, seed, &d, &e);
    return dataset_result(L, box, code, d, &e);
}

/* The length of the list, or of the string, on top of the stack, which is sequence i of data.packed */
static lua_Unsigned sequence_length(lua_State *L, lua_Integer i) {
    if (lua_type(L, -1) == LUA_TSTRING || lua_istable(L, -1)) return lua_rawlen(L, -1);
    bind_error(L, "data.packed: sequence %I: expected a list of tokens, or a string, found %s", (LUAI_UACINT)i, bind_show(L, -1));
    return 0;
}

/* Its tokens: whole numbers, or the string's bytes */
static void read_sequence(lua_State *L, lua_Integer i, int32_t *token, int64_t length) {
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    for (int64_t k = 0; k < length; k++) {
        if (text) {
            token[k] = (unsigned char)text[k];
            continue;
        }
        lua_rawgeti(L, -1, k + 1);
        if (!lua_isinteger(L, -1) || lua_tointeger(L, -1) < 0 || lua_tointeger(L, -1) > INT32_MAX)
            bind_error(L, "data.packed: sequence %I, place %I: expected a token, found %s", (LUAI_UACINT)i, (LUAI_UACINT)(k + 1),
                       bind_show(L, -1));
        token[k] = (int32_t)lua_tointeger(L, -1);
        lua_pop(L, 1);
    }
}

/* The list at `index` as sequences, whose numbers are in two blocks that are pushed */
static Sequences sequences_of(lua_State *L, int index) {
    const lua_Integer n = lua_istable(L, index) ? (lua_Integer)lua_rawlen(L, index) : 0;
    int64_t total = 0;
    if (!lua_istable(L, index)) bind_error(L, "data.packed: sequences: expected a list, found %s", bind_show(L, index));
    int64_t *length = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *length, 0);
    for (lua_Integer i = 1; i <= n; i++, lua_pop(L, 1)) {
        lua_rawgeti(L, index, i);
        length[i - 1] = (int64_t)sequence_length(L, i);
        total += length[i - 1];
    }
    int32_t *token = lua_newuserdatauv(L, ((size_t)total + 1) * sizeof *token, 0), *at = token;
    for (lua_Integer i = 1; i <= n; at += length[i - 1], i++, lua_pop(L, 1)) {
        lua_rawgeti(L, index, i);
        read_sequence(L, i, at, length[i - 1]);
    }
    return (Sequences){token, length, n};
}

static int32_t whole_in(lua_State *L, int index, const char *key, lua_Integer otherwise) {
    const lua_Integer n = bind_integer(L, index, key, otherwise);
    if (n < INT32_MIN || n > INT32_MAX) bind_error(L, "data.packed: %s: expected a number of 32 bits, found %I", key, (LUAI_UACINT)n);
    return (int32_t)n;
}

/* dataset_packed{sequences =, window =, tokens =, wrapped =, seed =, ignore_index =, pad =} -> the ids, the positions, {sequences,
 * tokens, padding, padded}; see Packed. seed nil: not shuffled */
static int new_packed(lua_State *L) {
    Err e;
    Packed made;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_getfield(L, 1, "sequences");
    const Sequences of = sequences_of(L, 2);
    const Packing how = {.window = bind_integer(L, 1, "window", 0), .wrapped = bind_boolean(L, 1, "wrapped", false),
                         .shuffle = lua_getfield(L, 1, "seed") != LUA_TNIL, .seed = (uint64_t)bind_integer(L, 1, "seed", 0),
                         .tokens = whole_in(L, 1, "tokens", 0), .ignore_index = whole_in(L, 1, "ignore_index", -100),
                         .pad = whole_in(L, 1, "pad", 0)};
    Box *ids = bind_new(L, BOX_DATASET, release_dataset), *positions = bind_new(L, BOX_DATASET, release_dataset);
    if (dataset_packed(&of, &how, &made, &e)) return bind_fail(L, &e);
    ids->content = made.ids;
    positions->content = made.positions;
    lua_createtable(L, 0, 4);
    bind_set_integer(L, "sequences", made.sequences);
    bind_set_integer(L, "tokens", made.tokens);
    bind_set_integer(L, "padding", made.padding);
    bind_set_integer(L, "padded", made.padded);
    return 3;
}

/* dataset:info() -> {count, shape, classes, target, tokens, alphabet, text}; what it does not have is nil. alphabet: of
 * a text, the bytes that its tokens stand for; text: see dataset_text */
static int info(lua_State *L) {
    const Dataset *d = bind_get(L, 1, BOX_DATASET);
    Shape sample = dataset_sample(d), target = dataset_target(d);
    lua_createtable(L, 0, 5);
    bind_set_integer(L, "count", dataset_count(d));
    bind_set_string(L, "text", dataset_text(d));
    if (dataset_tokens(d)) bind_set_integer(L, "tokens", dataset_tokens(d));
    if (dataset_alphabet(d)) {
        lua_pushlstring(L, dataset_alphabet(d), (size_t)dataset_tokens(d));
        lua_setfield(L, -2, "alphabet");
    }
    if (dataset_classes(d)) bind_set_integer(L, "classes", dataset_classes(d));
    bind_push_shape(L, &sample);
    lua_setfield(L, -2, "shape");
    if (target.rank > 0) {
        bind_push_shape(L, &target);
        lua_setfield(L, -2, "target");
    }
    return 1;
}

/* Copies the numbers of the table at `index`, at most `room`, to `values`; returns how many there are. */
static int numbers(lua_State *L, int index, double *values, int room) {
    lua_Unsigned n = lua_rawlen(L, index);
    if (!lua_istable(L, index) || n < 1 || n > (lua_Unsigned)room)
        bind_error(L, "normalize: expected a list of numbers, one or one per channel, found %s", bind_show(L, index));
    for (int i = 0; i < (int)n; i++) {
        int is_number;
        lua_rawgeti(L, index, i + 1);
        values[i] = lua_tonumberx(L, -1, &is_number);
        if (!is_number) bind_error(L, "normalize: expected a number, found %s at %d", bind_show(L, -1), i + 1);
        lua_pop(L, 1);
    }
    return (int)n;
}

/* The dataset at index 1, which is to be changed: no loader may read it meanwhile. */
static Dataset *unread(lua_State *L, const char *what) {
    const Box *box = bind_box(L, 1, BOX_DATASET);
    if (box->users > 0) bind_error(L, "%s: a loader of this dataset is open: close it, or %s before it", what, what);
    return box->content;
}

/* dataset:cache() -> the dataset, whose files are in memory now */
static int cache(lua_State *L) {
    Err e;
    if (dataset_cache(unread(L, "cache"), &e)) return bind_fail(L, &e);
    lua_settop(L, 1);
    return 1;
}

/* dataset:keep_bytes() -> the dataset, whose samples stay bytes */
static int keep_bytes(lua_State *L) {
    Err e;
    if (dataset_keep_bytes(unread(L, "keep_bytes"), &e)) return bind_fail(L, &e);
    lua_settop(L, 1);
    return 1;
}

/* dataset:normalize({mean, ...}, {std, ...}) -> the dataset */
static int normalize(lua_State *L) {
    enum { CHANNELS_MAX = 256 };
    Err e;
    double mean[CHANNELS_MAX], std[CHANNELS_MAX];
    bind_get(L, 1, BOX_DATASET);
    int n = numbers(L, 2, mean, CHANNELS_MAX);
    if (numbers(L, 3, std, CHANNELS_MAX) != n)
        return bind_error(L, "normalize: expected as many deviations as means: %d", n);
    if (dataset_normalize(unread(L, "normalize"), mean, std, n, &e)) return bind_fail(L, &e);
    lua_settop(L, 1);
    return 1;
}

/* ---- loaders */

typedef struct Loading { Loader *loader; const Dataset *data; int64_t batch; } Loading;

static void release_loader(void *content) { loader_close(content); }

/* The shape of a batch of such samples */
static Shape batched(Shape sample, int64_t batch) {
    assert(sample.rank < SHAPE_MAX);
    Shape s = {sample.rank + 1, {batch, 1, 1, 1}};
    for (int i = 0; i < sample.rank; i++) s.dim[i + 1] = sample.dim[i];
    return s;
}

/* The batch size is kept as the box's last user value, because a Loader has no function that returns it. */
static Loading loading(lua_State *L, int index) {
    Box *box = bind_box(L, index, BOX_LOADER);
    assert(box->parent[0] && box->parent[0]->content);
    Loading found = {box->content, box->parent[0]->content, 0};
    lua_getiuservalue(L, index, BOX_PARENTS);
    found.batch = lua_tointeger(L, -1);
    lua_pop(L, 1);
    return found;
}

/* options.prefetch as a number of batches: true is 1, false and nil are 0 */
static int prefetched(lua_State *L, int options) {
    if (lua_getfield(L, options, "prefetch") == LUA_TBOOLEAN) lua_pushinteger(L, lua_toboolean(L, -1));
    else if (lua_isnil(L, -1)) lua_pushinteger(L, 0);
    else lua_pushvalue(L, -1);
    lua_Integer n = lua_isinteger(L, -1) ? lua_tointeger(L, -1) : -1;
    if (n < 0 || n > LOADER_PREFETCH_MAX)
        bind_error(L, "prefetch: expected a number of batches from 0 to %d, true or false, found %s",
                   LOADER_PREFETCH_MAX, bind_show(L, -2));
    lua_pop(L, 2);
    return (int)n;
}

/* loader(dataset, {batch =, shuffle =, drop_last =, prefetch =, seed =, world =, rank =}): data.h's LoaderOptions */
static int new_loader(lua_State *L) {
    Err e;
    Loader *l;
    const Dataset *d = bind_get(L, 1, BOX_DATASET);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    LoaderOptions o = {.batch = bind_integer(L, 2, "batch", 1), .world = (int)bind_integer(L, 2, "world", 1),
        .rank = (int)bind_integer(L, 2, "rank", 0)};
    if (o.rank < 0 || o.rank >= o.world) return bind_error(L, "rank: expected 0 to world - 1, %d, found %d", o.world - 1, o.rank);
    if (dataset_sample(d).rank >= SHAPE_MAX)
        return bind_error(L, "samples of a batch have at most %d dimensions", SHAPE_MAX - 1);
    Box *box = bind_new(L, BOX_LOADER, release_loader);
    bind_borrow(L, box, 1, BOX_DATASET);
    lua_pushinteger(L, o.batch);
    lua_setiuservalue(L, -2, BOX_PARENTS);
    o.shuffle = bind_boolean(L, 2, "shuffle", false);
    o.drop_last = bind_boolean(L, 2, "drop_last", false);
    o.prefetch = prefetched(L, 2);
    o.seed = (uint64_t)bind_integer(L, 2, "seed", 0);
    if (loader_open(d, &o, &l, &e)) return bind_fail(L, &e);
    box->content = l;
    return 1;
}

/* Bytes, from the last one on, as numbers where they lie. */
static void widen(Batch *x) {
    for (int64_t i = x->count; i-- > 0;) ((float *)x->values)[i] = ((const unsigned char *)x->values)[i];
}

/* loader:next() -> x, t, count: two Batches and their number of samples; nothing at the end of an epoch */
static int next_batch(lua_State *L) {
    Err e;
    int64_t count = 0;
    Loading l = loading(L, 1);
    bool labels = dataset_classes(l.data) > 0;
    Batch *x = bind_batch_new(L, batched(dataset_sample(l.data), l.batch), false);
    Batch *t = bind_batch_new(L, batched(dataset_target(l.data), l.batch), labels);
    if (loader_next(l.loader, x->values, t->values, &count, &e)) return bind_fail(L, &e);
    if (count == 0) return 0;
    if (dataset_has_bytes(l.data)) widen(x);
    Batch *const both[] = {x, t};
    for (int i = 0; i < 2; i++) {
        both[i]->count = both[i]->count / l.batch * count;
        both[i]->shape.dim[0] = count;
    }
    lua_pushinteger(L, count);
    return 3;
}

/* loader:seek(epoch, batch): 0, 1, ... */
static int seek(lua_State *L) {
    Err e;
    lua_Integer epoch = luaL_checkinteger(L, 2), batch = luaL_optinteger(L, 3, 0);
    if (loader_seek(loading(L, 1).loader, epoch, batch, &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* loader:place() -> epoch, batch: of the next batch, as seek takes them */
static int place(lua_State *L) {
    int64_t epoch, batch;
    loader_place(loading(L, 1).loader, &epoch, &batch);
    lua_pushinteger(L, epoch);
    lua_pushinteger(L, batch);
    return 2;
}

/* loader:batches() -> batches per epoch */
static int batches(lua_State *L) {
    lua_pushinteger(L, loader_batches(loading(L, 1).loader));
    return 1;
}

/* loader:info() -> {prefetch = batches, bytes = of host memory} */
static int loader_info(lua_State *L) {
    const Loader *l = loading(L, 1).loader;
    lua_createtable(L, 0, 2);
    bind_set_integer(L, "prefetch", loader_prefetch(l));
    bind_set_integer(L, "bytes", (lua_Integer)loader_bytes(l));
    return 1;
}

static void check_shape(lua_State *L, const char *what, Shape found, const Shape *expected) {
    char a[SHAPE_TEXT], b[SHAPE_TEXT];
    if (shape_equal(&found, expected)) return;
    bind_error(L, "the data's %s is %s in a batch, the network's is %s", what, shape_text(&found, a),
               shape_text(expected, b));
}

void bind_check_loader(lua_State *L, int index, const Shape *x, bool bytes, const Shape *t, bool labels) {
    Loading l = loading(L, index);
    if (bytes != dataset_has_bytes(l.data))
        bind_error(L, bytes ? "nn.FromBytes reads bytes, the data are numbers: dataset:keep_bytes() leaves them bytes"
                            : "the data are bytes (keep_bytes), which a network reads by nn.FromBytes");
    check_shape(L, "input", batched(dataset_sample(l.data), l.batch), x);
    if (!t) return;
    if (labels != (dataset_classes(l.data) > 0))
        bind_error(L, "the loss needs %s as targets, the data has %s", labels ? "labels" : "numbers",
                   labels ? "numbers" : "labels");
    Shape target = batched(dataset_target(l.data), l.batch);
    if (labels && shape_elements(&target) != shape_elements(t)) check_shape(L, "target", target, t);
    if (!labels) check_shape(L, "target", target, t);
}

void bind_open_data(lua_State *L) {
    static const luaL_Reg of_batch[] = {{"shape", batch_shape}, {"values", batch_values}, {NULL, NULL}};
    static const luaL_Reg of_dataset[] = {{"info", info}, {"cache", cache}, {"keep_bytes", keep_bytes}, {"normalize", normalize}, {NULL, NULL}};
    static const luaL_Reg of_loader[] = {{"next", next_batch}, {"seek", seek}, {"place", place},
        {"batches", batches}, {"info", loader_info}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"dataset_idx", new_idx}, {"dataset_cifar10", new_cifar10},
        {"dataset_npy", new_npy}, {"dataset_tar", new_tar}, {"dataset_text", new_text},
        {"dataset_random", new_random}, {"dataset_packed", new_packed}, {"loader", new_loader}, {"batch", new_batch}, {"joined", joined}, {NULL, NULL}};
    luaL_newmetatable(L, BATCH_TYPE);
    luaL_newlib(L, of_batch);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    bind_type(L, BOX_DATASET, of_dataset);
    bind_type(L, BOX_LOADER, of_loader);
    luaL_setfuncs(L, functions, 0);
}
