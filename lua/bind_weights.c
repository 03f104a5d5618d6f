/* Weights and saved runs for scripts: safetensors files, and copies of a runtime's persistent buffers from and to them. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "bind.h"
#include "bind_program.h"
#include "base/mem.h"
#include "math/dora.h"
#include "run/dora.h"
#include "io/state_dict.h"

static void release_file(void *content) { safetensors_close(content); }

/* safetensors(path) -> Tensors; also of a state_dict that torch.save has written */
static int open_file(lua_State *L) {
    Err e;
    Safetensors *s;
    const char *path = bind_path(L, 1, "path", false);
    Box *box = bind_new(L, BOX_TENSORS, release_file);
    if (state_dict_open(path, &s, &e)) return bind_fail(L, &e);
    box->content = s;
    return 1;
}

static void push_shape(lua_State *L, int rank, const int64_t *dim) {
    lua_createtable(L, rank, 0);
    for (int i = 0; i < rank; i++) {
        lua_pushinteger(L, dim[i]);
        lua_rawseti(L, -2, i + 1);
    }
}

/* Appends {name, dtype, shape, as} to the list on top of the stack; as: the type that its values can be read as, or nil */
static void push_tensor(lua_State *L, const char *name, TensorType type, int rank, const int64_t *dim) {
    DType as = tensor_type_as(type);
    lua_createtable(L, 0, 4);
    bind_set_string(L, "name", name);
    bind_set_string(L, "dtype", tensor_type_name(type));
    if (as != DT_COUNT) bind_set_string(L, "as", dtype_name(as));
    push_shape(L, rank, dim);
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
}

/* file:list() -> {{name, dtype, shape, as}, ...} by name */
static int list(lua_State *L) {
    int n;
    const Tensor *t = safetensors_tensors(bind_get(L, 1, BOX_TENSORS), &n);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) push_tensor(L, t[i].name, t[i].type, t[i].rank, t[i].dim);
    return 1;
}

/* file:metadata() -> {key = text} */
static int metadata(lua_State *L) {
    int n;
    const Pair *pair = safetensors_metadata(bind_get(L, 1, BOX_TENSORS), &n);
    lua_createtable(L, 0, n);
    for (int i = 0; i < n; i++) bind_set_string(L, pair[i].key, pair[i].value);
    return 1;
}

/* The type of a persistent buffer in files that have its own bytes. The codes of 8 bits have a sign. */
static TensorType stored_type(const Runtime *r, int i) {
    const Quantization *q = runtime_quantization(r, i);
    return q && q->format == QUANT_INT8 ? TENSOR_I8 : tensor_type_of(runtime_persistent(r, i)->dtype);
}

/* persistent(runtime) -> {{name, dtype, shape, as, constant, master}, ...}: its persistent buffers. Other functions take
 * the index in this list as a buffer's number; master: of a 16-bit weight that has one, the number of its fp32 copy. */
static int persistent(lua_State *L) {
    const Runtime *r = bind_runtime(L, 1);
    const Buf *b;
    lua_newtable(L);
    for (int i = 0; (b = runtime_persistent(r, i)) != NULL; i++) {
        const Shape shape = program_outer_shape(b);
        push_tensor(L, b->name, stored_type(r, i), shape.rank, shape.dim);
        lua_rawgeti(L, -1, i + 1);
        bind_set_boolean(L, "constant", b->constant != NULL || b->category == CAT_INPUT); /* what a feed brings is no state */
        if (runtime_master(r, i) >= 0) bind_set_integer(L, "master", runtime_master(r, i) + 1);
        lua_pop(L, 1);
    }
    return 1;
}

/* The persistent buffer with the number at `index`. */
static int buffer_at(lua_State *L, const Runtime *r, int index) {
    lua_Integer i = luaL_checkinteger(L, index) - 1;
    if (i < 0 || i > INT32_MAX || !runtime_persistent(r, (int)i))
        bind_error(L, "no persistent buffer has the number %I", (LUAI_UACINT)(i + 1));
    return (int)i;
}

/* ---- reading */

/* The shape that a tensor must have for a persistent buffer: of a quantised weight its own unless its codes are read. */
static Shape read_shape(const Runtime *r, int buffer, bool stored) {
    const Quantization *q = runtime_quantization(r, buffer);
    return q && !stored ? q->shape : program_outer_shape(runtime_persistent(r, buffer));
}

/* Reads tensor t into a persistent buffer, by way of values[elements], 4 bytes each; stored: see read_tensor. A constant is
 * compared instead. */
static int read_into(Runtime *r, Safetensors *s, const Tensor *t, int buffer, bool stored, void *values, Err *e) {
    const Buf *b = runtime_persistent(r, buffer);
    const Shape shape = read_shape(r, buffer, stored);
    const bool numbers = dtype_is_float(b->dtype) || runtime_quantization(r, buffer);
    const TensorType expected = stored_type(r, buffer);
    int code = safetensors_check_shape(s, t, &shape, e);
    if (!code && !stored) code = safetensors_read(s, t, numbers ? DT_F32 : DT_I32, values, e);
    if (!code && stored && t->type != expected)
        code = err_set(e, ERR_FORMAT, "tensor \"%.80s\": expected %s, found %s", t->name, tensor_type_name(expected),
                       tensor_type_name(t->type));
    assert(code || !stored || t->bytes <= (size_t)program_whole_elements(b) * 4);
    if (!code && stored) code = safetensors_read_bytes(s, t, values, e);
    if (code) return code;
    if (b->constant && memcmp(values, b->constant, (size_t)program_whole_elements(b) * CONSTANT_BYTES))
        return err_set(e, ERR_FORMAT, "tensor \"%.80s\": its numbers are not those of the script's nn.Buffer", t->name);
    if (b->constant) return OK;
    return stored ? runtime_write_bytes(r, buffer, values, e) : runtime_write(r, b->name, values, e);
}

/* file:read(name, runtime, number, stored) -> true: copies the tensor into the persistent buffer of that number.
 * stored: it must have the buffer's type, and its bytes are copied; otherwise it is converted, and copied to the
 * buffer's master copy too. */
static int read_tensor(lua_State *L) {
    Err e;
    Safetensors *s = bind_get(L, 1, BOX_TENSORS);
    const char *name = bind_text_at(L, 2, "name");
    Runtime *r = bind_runtime(L, 3);
    int buffer = buffer_at(L, r, 4);
    const Tensor *t = safetensors_find(s, name);
    if (!t) return bind_error(L, "no tensor \"%s\" in this file", name);
    const Shape shape = read_shape(r, buffer, lua_toboolean(L, 5));
    void *values = mem_new((size_t)shape_elements(&shape) * 4);
    if (!values) return bind_error(L, "out of host memory");
    int code = read_into(r, s, t, buffer, lua_toboolean(L, 5), values, &e);
    mem_free(values);
    if (code) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* The tensor of that name in the file at index 1. */
static const Tensor *tensor_at(lua_State *L, int index) {
    const Tensor *t = safetensors_find(bind_get(L, 1, BOX_TENSORS), bind_text_at(L, index, "name"));
    if (!t) bind_error(L, "no tensor \"%s\" in this file", lua_tostring(L, index));
    return t;
}

enum { BYTES_MOST = 1 << 20 };

/* file:bytes(name) -> the tensor's bytes as a string; of a tensor of more than BYTES_MOST nil, message, code */
static int tensor_bytes(lua_State *L) {
    Err e;
    luaL_Buffer bytes;
    const Tensor *t = tensor_at(L, 2);
    if (t->bytes > BYTES_MOST) {
        err_set(&e, ERR_FORMAT, "tensor \"%.80s\": expected at most %d bytes, found %zu", t->name, BYTES_MOST, t->bytes);
        return bind_fail(L, &e);
    }
    char *to = luaL_buffinitsize(L, &bytes, t->bytes);
    if (safetensors_read_bytes(bind_get(L, 1, BOX_TENSORS), t, to, &e)) return bind_fail(L, &e);
    luaL_pushresultsize(&bytes, t->bytes);
    return 1;
}

/* file:finite(name) -> are all numbers of a tensor of a floating type finite? Or nil, message, code */
static int tensor_finite(lua_State *L) {
    Err e;
    const Tensor *t = tensor_at(L, 2);
    const size_t n = t->bytes / tensor_type_size(t->type);
    float *values = mem_new(n * sizeof *values);
    if (!values) return bind_error(L, "out of host memory");
    int code = safetensors_read(bind_get(L, 1, BOX_TENSORS), t, DT_F32, values, &e);
    bool finite = true;
    for (size_t i = 0; i < n && !code; i++) finite &= isfinite(values[i]) != 0;
    mem_free(values);
    if (code) return bind_fail(L, &e);
    lua_pushboolean(L, finite);
    return 1;
}

/* ---- checksums: CRC-32 as 8 hexadecimal digits */

static int push_checksum(lua_State *L, uint32_t sum) {
    char text[9];
    snprintf(text, sizeof text, "%08" PRIx32, sum);
    lua_pushstring(L, text);
    return 1;
}

/* file:checksum(name) -> checksum of the tensor's bytes */
static int file_checksum(lua_State *L) {
    Err e;
    uint32_t sum;
    Safetensors *s = bind_get(L, 1, BOX_TENSORS);
    const Tensor *t = safetensors_find(s, bind_text_at(L, 2, "name"));
    if (!t) return bind_error(L, "no tensor \"%s\" in this file", lua_tostring(L, 2));
    return safetensors_checksum(s, t, &sum, &e) ? bind_fail(L, &e) : push_checksum(L, sum);
}

/* checksum(text) -> checksum of the text; checksum(runtime, number) -> of a persistent buffer's bytes, as save_tensors
 * stores them */
static int checksum(lua_State *L) {
    Err e;
    size_t n;
    if (lua_type(L, 1) == LUA_TSTRING) {
        const char *text = lua_tolstring(L, 1, &n);
        return push_checksum(L, (uint32_t)crc32_z(0, (const Bytef *)text, n));
    }
    Runtime *r = bind_runtime(L, 1);
    int buffer = buffer_at(L, r, 2);
    const Buf *b = runtime_persistent(r, buffer);
    n = (size_t)program_whole_elements(b) * tensor_type_size(tensor_type_of(b->dtype));
    void *bytes = mem_new(n);
    if (!bytes) return bind_error(L, "out of host memory");
    int code = runtime_read_bytes(r, buffer, bytes, &e);
    uint32_t sum = code ? 0 : (uint32_t)crc32_z(0, bytes, n);
    mem_free(bytes);
    return code ? bind_fail(L, &e) : push_checksum(L, sum);
}

/* ---- writing */

/* A product of low rank that a tensor is saved with: + scaling b a, a (r, I) and b (O, r) persistent buffers; and, of DoRA,
 * its magnitude, or -1. */
typedef struct Adapter { int a, b; double scaling; int magnitude; } Adapter;

/* One of the tensors that are saved: a persistent buffer, or with buffer -1 a text. adapter: scaling 0: none */
typedef struct Saved { int buffer; const char *text; Adapter adapter; } Saved;
typedef struct Saving { Runtime *r; const Saved *tensor; bool stored; } Saving;

/* The types of PyTorch's files: fp32, 64 bits for whole numbers, and codes as they are */
static TensorType portable_type(const Runtime *r, int i) {
    const DType type = runtime_persistent(r, i)->dtype;
    return dtype_is_float(type) ? TENSOR_F32 : type == DT_I32 ? TENSOR_I64 : stored_type(r, i);
}

/* Converts n int32 to int64 in place; `values` has room for them. The last one first: none is overwritten unread. */
static void widen(void *values, int64_t n) {
    for (int64_t i = n; i-- > 0;) {
        int32_t narrow;
        memcpy(&narrow, (char *)values + 4 * i, sizeof narrow);
        int64_t wide = narrow;
        memcpy((char *)values + 8 * i, &wide, sizeof wide);
    }
}

/* The values of persistent buffer i, in PyTorch's order; ERR_HOST_MEMORY: *values is NULL. */
static int values_of(Runtime *r, int i, float **values, Err *e) {
    const Buf *b = runtime_persistent(r, i);
    *values = mem_new((size_t)program_whole_elements(b) * sizeof **values);
    return *values ? runtime_read(r, 0, b->name, *values, e) : err_set(e, ERR_HOST_MEMORY, "out of host memory");
}

/* Rows of w get the lengths of the magnitude: factor = magnitude / norm, as PEFT's merge_and_unload */
static int scale_rows(const Saving *s, int magnitude, const LowRank *l, float *w, Err *e) {
    float *factor = NULL, *norm = mem_new((size_t)l->out * sizeof *norm);
    int code = norm ? values_of(s->r, magnitude, &factor, e) : err_set(e, ERR_HOST_MEMORY, "out of host memory");
    if (!code) {
        row_norms(l, w, norm);
        for (int64_t o = 0; o < l->out; o++) factor[o] = dora_factor(factor[o], norm[o]);
        rows_scale(l, w, factor);
    }
    mem_free(norm);
    mem_free(factor);
    return code;
}

/* w (O, I) of `like`, or (I, O) where that lies turned, += scaling b a */
static int add_adapter(const Saving *s, const Adapter *d, const Buf *like, float *w, Err *e) {
    const Buf *of_a = runtime_persistent(s->r, d->a), *of_b = runtime_persistent(s->r, d->b);
    LowRank l = {of_b->shape.dim[0], of_a->shape.dim[1], of_a->shape.dim[0], like->turned, (float)d->scaling, NULL, NULL};
    float *a = NULL, *b = NULL;
    int code = values_of(s->r, d->a, &a, e);
    if (!code) code = values_of(s->r, d->b, &b, e);
    if (!code) {
        l.a = a, l.b = b;
        low_rank_add(&l, w);
    }
    if (!code && d->magnitude >= 0) code = scale_rows(s, d->magnitude, &l, w, e);
    mem_free(a);
    mem_free(b);
    return code;
}

static int fill(void *arg, int i, void *bytes, Err *e) {
    const Saving *s = arg;
    const Saved *t = &s->tensor[i];
    if (t->text) {
        memcpy(bytes, t->text, strlen(t->text));
        return OK;
    }
    const Buf *b = runtime_persistent(s->r, t->buffer);
    const bool codes = b->dtype == DT_U8 && t->adapter.scaling == 0;
    if (s->stored || codes) return runtime_read_bytes(s->r, t->buffer, bytes, e);
    int code = runtime_read(s->r, 0, b->name, bytes, e);
    if (!code && b->dtype == DT_I32) widen(bytes, program_whole_elements(b));
    if (!code && t->adapter.scaling != 0) code = add_adapter(s, &t->adapter, b, bytes, e);
    return code;
}

/* The list {key, value, key, value, ...} at `index` as *n pairs; the list keeps their texts alive. */
static Pair *pairs_at(lua_State *L, int index, int *n) {
    *n = (int)lua_rawlen(L, index) / 2;
    Pair *pairs = lua_newuserdatauv(L, (size_t)*n * sizeof *pairs + 1, 0);
    for (int i = 0; i < *n; i++) {
        lua_rawgeti(L, index, 2 * i + 1);
        lua_rawgeti(L, index, 2 * i + 2);
        pairs[i] = (Pair){bind_text_at(L, -2, "key"), bind_text_at(L, -1, "value")};
        lua_pop(L, 2);
    }
    return pairs;
}

/* Of the tensor of that name, in the table {name = {number of a, of b, scaling, of magnitude}} at `index`, which may be none */
static Adapter adapter_of(lua_State *L, int index, const Runtime *r, const char *name) {
    Adapter d = {0, 0, 0, -1};
    if (!lua_istable(L, index)) return d;
    if (lua_getfield(L, index, name) == LUA_TTABLE) {
        for (int k = 1; k <= 4; k++) lua_rawgeti(L, -k, k);
        d = (Adapter){buffer_at(L, r, -4), buffer_at(L, r, -3), luaL_checknumber(L, -2), lua_isnil(L, -1) ? -1 : buffer_at(L, r, -1)};
        lua_pop(L, 4);
    }
    lua_pop(L, 1);
    return d;
}

/* Fills tensor i from the list of names and what they stand for, which keeps their texts alive. With an adapter a weight
 * that is stored as codes is saved as numbers. */
static TensorEntry entry_at(lua_State *L, const Saving *s, int i, Saved *tensor) {
    lua_rawgeti(L, 3, 2 * i + 1);
    lua_rawgeti(L, 3, 2 * i + 2);
    TensorEntry entry = {bind_text_at(L, -2, "name"), TENSOR_U8, shape1(1)};
    *tensor = (Saved){-1, NULL, {0, 0, 0, -1}};
    if (lua_type(L, -1) == LUA_TSTRING) {
        tensor->text = bind_text_at(L, -1, "text");
        entry.shape = shape1((int64_t)strlen(tensor->text));
    } else {
        tensor->buffer = buffer_at(L, s->r, -1);
        tensor->adapter = adapter_of(L, 6, s->r, entry.name);
        const Quantization *q = tensor->adapter.scaling != 0 ? runtime_quantization(s->r, tensor->buffer) : NULL;
        entry.shape = q ? q->shape : program_outer_shape(runtime_persistent(s->r, tensor->buffer));
        entry.type = q ? TENSOR_F32 : s->stored ? stored_type(s->r, tensor->buffer) : portable_type(s->r, tensor->buffer);
    }
    lua_pop(L, 2);
    return entry;
}

/* save_tensors(runtime, path, {name, number or text, ...}, {key, text, ...}, stored, adapters) -> true: writes persistent
 * buffers and texts, as bytes, under these names, and metadata. stored: buffers in their own types; otherwise as fp32 and
 * 64-bit whole numbers, but codes as they are. adapters: see adapter_of. */
static int save_tensors(lua_State *L) {
    Err e;
    int n_metadata;
    Saving s = {.r = bind_runtime(L, 1), .stored = lua_toboolean(L, 5)};
    const char *path = bind_path(L, 2, "path", true);
    luaL_checktype(L, 3, LUA_TTABLE);
    luaL_checktype(L, 4, LUA_TTABLE);
    int n = (int)lua_rawlen(L, 3) / 2;
    TensorEntry *entries = lua_newuserdatauv(L, (size_t)n * sizeof *entries + 1, 0);
    Saved *tensor = lua_newuserdatauv(L, (size_t)n * sizeof *tensor + 1, 0);
    for (int i = 0; i < n; i++) entries[i] = entry_at(L, &s, i, &tensor[i]);
    s.tensor = tensor;
    const Pair *pairs = pairs_at(L, 4, &n_metadata);
    if (safetensors_write(path, entries, n, pairs, n_metadata, fill, &s, &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* is_norm(runtime, number) -> does that magnitude of DoRA have the values that it starts as?; set_norm(runtime, number) -> true */
static int is_norm(lua_State *L) {
    Err e;
    bool is = false;
    Runtime *r = bind_runtime(L, 1);
    if (runtime_magnitude(r, buffer_at(L, r, 2), &is, &e)) return bind_fail(L, &e);
    lua_pushboolean(L, is);
    return 1;
}

static int set_norm(lua_State *L) {
    Err e;
    Runtime *r = bind_runtime(L, 1);
    if (runtime_magnitude(r, buffer_at(L, r, 2), NULL, &e)) return bind_fail(L, &e);
    lua_pushboolean(L, true);
    return 1;
}

/* updates(runtime, n or nil) -> number of updates made; n sets that number first */
static int updates(lua_State *L) {
    Runtime *r = bind_runtime(L, 1);
    if (!lua_isnoneornil(L, 2)) runtime_set_updates(r, (uint32_t)luaL_checkinteger(L, 2));
    lua_pushinteger(L, runtime_updates(r));
    return 1;
}

void bind_open_weights(lua_State *L) {
    static const luaL_Reg methods[] = {{"list", list}, {"metadata", metadata}, {"read", read_tensor},
        {"checksum", file_checksum}, {"bytes", tensor_bytes}, {"finite", tensor_finite}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"safetensors", open_file}, {"persistent", persistent},
        {"save_tensors", save_tensors}, {"updates", updates}, {"is_norm", is_norm}, {"set_norm", set_norm}, {"checksum", checksum}, {NULL, NULL}};
    bind_type(L, BOX_TENSORS, methods);
    luaL_setfuncs(L, functions, 0);
}
