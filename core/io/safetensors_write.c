/* The writer: the header depends only on the content, and the file appears complete or not at all. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "json.h"
#include "base/mem.h"
#include "safetensors.h"

typedef struct Text { char *chars; int n, cap; bool failed; } Text;

typedef struct Placed { const TensorEntry *entry; int index; size_t bytes; } Placed;

typedef struct Writer {
    const char *path;
    Placed *placed;     /* [n] in the order of the file */
    int n;
    size_t largest;     /* bytes of a tensor */
    Text header;
} Writer;

static int no_memory(const Writer *w, Err *e) {
    return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", w->path);
}

/* ---- the header */

static void text_put(Text *t, const char *chars, size_t n) {
    if (t->failed || n > INT32_MAX / 4 || !mem_grow(&t->chars, &t->cap, t->n + (int)n, 1)) {
        t->failed = true;
        return;
    }
    memcpy(t->chars + t->n, chars, n);
    t->n += (int)n;
}

__attribute__((format(printf, 2, 3))) static void text_format(Text *t, const char *format, ...) {
    char chars[128];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(chars, sizeof chars, format, args);
    va_end(args);
    assert(n >= 0 && (size_t)n < sizeof chars);
    text_put(t, chars, (size_t)n);
}

static void text_string(Text *t, const char *s) {
    text_put(t, "\"", 1);
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20) text_format(t, "\\u%04x", (unsigned)*s);
        else {
            if (*s == '"' || *s == '\\') text_put(t, "\\", 1);
            text_put(t, s, 1);
        }
    }
    text_put(t, "\"", 1);
}

static void put_metadata(Text *t, const Pair *pairs, int n) {
    text_string(t, "__metadata__");
    for (int i = 0; i < n; i++) {
        text_put(t, i ? "," : ":{", i ? 1 : 2);
        text_string(t, pairs[i].key);
        text_put(t, ":", 1);
        text_string(t, pairs[i].value);
    }
    text_put(t, "}", 1);
}

static void put_tensor(Text *t, const Placed *p, size_t begin) {
    const Shape *s = &p->entry->shape;
    text_string(t, p->entry->name);
    text_format(t, ":{\"dtype\":\"%s\",\"shape\":[", tensor_type_name(p->entry->type));
    for (int i = 0; i < s->rank; i++) text_format(t, "%s%" PRId64, i ? "," : "", s->dim[i]);
    text_format(t, "],\"data_offsets\":[%zu,%zu]}", begin, begin + p->bytes);
}

/* Length and header together are a multiple of 8 bytes, so that tensors are aligned in a mapped file. */
static int put_header(Writer *w, const Pair *metadata, int n_metadata, Err *e) {
    Text *t = &w->header;
    size_t begin = 0;
    text_put(t, "\0\0\0\0\0\0\0\0{", 9);
    if (n_metadata) put_metadata(t, metadata, n_metadata);
    for (int i = 0; i < w->n; i++) {
        if (i || n_metadata) text_put(t, ",", 1);
        put_tensor(t, &w->placed[i], begin);
        if (!size_add(begin, w->placed[i].bytes, &begin)) t->failed = true;
    }
    text_put(t, "}", 1);
    while (t->n % 8 && !t->failed) text_put(t, " ", 1);
    if (t->failed) return no_memory(w, e);
    uint64_t length = (uint64_t)t->n - 8;
    memcpy(t->chars, &length, sizeof length);
    int code = json_open(&(Json){0}, t->chars + 8, (size_t)length, w->path, e);
    if (code) return code; /* a name is not UTF-8: no reader would accept the file */
    if (length <= SAFETENSORS_HEADER_MAX) return OK;
    return err_set(e, ERR_FILE, "cannot write %s: expected a header of at most %zu bytes, found %" PRIu64, w->path,
                   SAFETENSORS_HEADER_MAX, length);
}

static int by_place(const void *a, const void *b) {
    const TensorEntry *x = ((const Placed *)a)->entry, *y = ((const Placed *)b)->entry;
    size_t x_size = tensor_type_size(x->type), y_size = tensor_type_size(y->type);
    return x_size != y_size ? (x_size > y_size ? -1 : 1) : strcmp(x->name, y->name);
}

static int place(Writer *w, const TensorEntry *entries, Err *e) {
    w->placed = mem_new((size_t)w->n * sizeof *w->placed);
    if (!w->placed) return no_memory(w, e);
    for (int i = 0; i < w->n; i++) {
        int64_t count;
        int code = shape_count(&entries[i].shape, &count, e);
        if (code) return code;
        assert(tensor_type_size(entries[i].type) > 0);
        w->placed[i] = (Placed){&entries[i], i, (size_t)count * tensor_type_size(entries[i].type)};
        w->largest = max_size(w->largest, w->placed[i].bytes);
    }
    qsort(w->placed, (size_t)w->n, sizeof *w->placed, by_place);
    return OK;
}

/* ---- the file */

static int write_tensors(const Writer *w, NewFile *f, TensorFill *fill, void *arg, Err *e) {
    void *bytes = mem_new(w->largest);
    int code = bytes ? file_write(f, w->header.chars, (size_t)w->header.n, e) : no_memory(w, e);
    for (int i = 0; i < w->n && !code; i++) {
        code = fill(arg, w->placed[i].index, bytes, e);
        if (!code) code = file_write(f, bytes, w->placed[i].bytes, e);
    }
    mem_free(bytes);
    return code;
}

static int write_file(const Writer *w, TensorFill *fill, void *arg, Err *e) {
    NewFile *f;
    int code = file_new(w->path, &f, e);
    if (code) return code;
    code = write_tensors(w, f, fill, arg, e);
    if (!code) return file_finish(f, true, e);
    file_discard(f);
    return code;
}

int safetensors_write(const char *path, const TensorEntry *entries, int n, const Pair *metadata, int n_metadata,
                      TensorFill *fill, void *arg, Err *e) {
    Writer w = {.path = path, .n = n};
    int code = place(&w, entries, e);
    if (!code) code = put_header(&w, metadata, n_metadata, e);
    if (!code) code = write_file(&w, fill, arg, e);
    mem_free(w.placed);
    mem_free(w.header.chars);
    return code;
}
