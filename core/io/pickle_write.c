/* pickle_write.c: the opcodes of protocol 2 that plain data needs (Lib/pickletools.py of Python describes them). */
#include "pickle_write.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "file.h"

struct PickleFile { NewFile *file; Err e; int code; };

static void put(PickleFile *f, const void *bytes, size_t n) {
    if (!f->code) f->code = file_write(f->file, bytes, n, &f->e);
}

/* An opcode and n bytes of a number, the lowest first. */
static void put_op(PickleFile *f, char op, uint64_t number, int n) {
    char bytes[9] = {op};
    for (int i = 0; i < n; i++) bytes[i + 1] = (char)(number >> 8 * i);
    put(f, bytes, (size_t)n + 1);
}

int pickle_new(const char *path, PickleFile **out, Err *e) {
    PickleFile *f = mem_new(sizeof *f);
    if (!f) return err_set(e, ERR_HOST_MEMORY, "%s: out of host memory", path);
    int code = file_new(path, &f->file, e);
    if (code) return mem_free(f), code;
    put(f, "\x80\2", 2);
    *out = f;
    return OK;
}

void pickle_put_none(PickleFile *f) { put(f, "N", 1); }

void pickle_put_bool(PickleFile *f, bool value) { put(f, value ? "\x88" : "\x89", 1); }

void pickle_put_int(PickleFile *f, int64_t value) {
    if (value >= 0 && value <= UINT8_MAX) put_op(f, 'K', (uint64_t)value, 1);
    else if (value >= INT32_MIN && value <= INT32_MAX) put_op(f, 'J', (uint64_t)value, 4);
    else put(f, "\x8a", 1), put_op(f, 8, (uint64_t)value, 8); /* LONG1: its length, then the bytes */
}

void pickle_put_text(PickleFile *f, const char *text, size_t n) {
    static const char mark = '?';
    if (n > UINT32_MAX && !f->code) f->code = err_set(&f->e, ERR_FORMAT, "a text of %zu bytes is too long for a pickle", n);
    put_op(f, 'X', n, 4);
    for (size_t i = 0, whole; i < n; i += whole ? whole : 1) {
        whole = utf8_length(text + i, text + n);
        put(f, whole ? text + i : &mark, whole ? whole : 1);
    }
}

void pickle_put_list(PickleFile *f) { put(f, "]", 1); }
void pickle_put_dict(PickleFile *f) { put(f, "}", 1); }
void pickle_append(PickleFile *f) { put(f, "a", 1); }
void pickle_set(PickleFile *f) { put(f, "s", 1); }
void pickle_remember(PickleFile *f, uint32_t number) { put_op(f, 'r', number, 4); }
void pickle_put_again(PickleFile *f, uint32_t number) { put_op(f, 'j', number, 4); }

int pickle_finish(PickleFile *f, Err *e) {
    put(f, ".", 1);
    int code = f->code;
    if (code) *e = f->e, file_discard(f->file);
    else code = file_finish(f->file, true, e);
    mem_free(f);
    return code;
}

void pickle_discard(PickleFile *f) {
    if (!f) return;
    file_discard(f->file);
    mem_free(f);
}
