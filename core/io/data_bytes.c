/* A text as windows of tokens, one token per byte. The bytes that occur in the text are numbered from 0 in the order of
 * their values. A sample is a window; its targets are the same window one byte further on. */
#include <inttypes.h>
#include <string.h>

#include "data_private.h"
#include "base/mem.h"

/* Replaces each byte by its token, and fills d's alphabet, tokens and classes. */
static void number_bytes(Dataset *d, unsigned char *text, int64_t n) {
    unsigned char number[256] = {0};
    for (int64_t i = 0; i < n; i++) number[text[i]] = 1;
    for (int b = 0; b < 256; b++) {
        if (!number[b]) continue;
        d->alphabet[d->tokens] = (char)b;
        number[b] = (unsigned char)d->tokens++;
    }
    for (int64_t i = 0; i < n; i++) text[i] = number[text[i]];
    d->classes = d->tokens;
}

int dataset_windows(const char *text, int64_t length, int64_t window, int64_t stride, Dataset **out, Err *e) {
    if (window < 1 || stride < 1)
        return err_set(e, ERR_SCRIPT,
                       "text: expected a window and a stride of at least 1, found %" PRId64 " and %" PRId64,
                       window, stride);
    if (window > INT32_MAX || length <= window)
        return err_set(e, ERR_SCRIPT, "text: expected more than the %" PRId64 " bytes of a window, found %" PRId64,
                       window, length);
    Dataset *d = dataset_start("text", e);
    if (!d) return ERR_HOST_MEMORY;
    DataPart *p = dataset_part(d, e);
    if (!p) return dataset_finish(d, ERR_HOST_MEMORY, out, e);
    p->bytes = mem_copy(text, (size_t)length);
    if (!p->bytes) return dataset_finish(d, data_no_memory("text", (size_t)length, e), out, e);
    number_bytes(d, p->bytes, length);
    d->sample = d->target = shape1(window);
    p->stride = stride;
    d->count = (length - window - 1) / stride + 1;
    d->text_bytes = (size_t)length;
    return dataset_finish(d, OK, out, e);
}

int dataset_text_file(const char *path, int64_t window, int64_t stride, Dataset **out, Err *e) {
    enum { FIRST = 1 << 16 };
    DataFile f;
    char *text = NULL;
    size_t n = 0, got = 1;
    int room = 0, code = data_open(&f, path, e);
    if (code) return code;
    while (!code && got) {
        if (n + FIRST > INT32_MAX) code = err_set(e, ERR_FORMAT, "%s: a text of more than %d bytes", path, INT32_MAX);
        else if (!mem_grow(&text, &room, (int)n + FIRST, 1)) code = data_no_memory(path, n + FIRST, e);
        else code = data_read(&f, text + n, FIRST, &got, e);
        n += code ? 0 : got;
    }
    data_close(&f);
    if (!code && (code = dataset_windows(text, (int64_t)n, window, stride, out, e))) err_prefix(e, "%s", path);
    mem_free(text);
    return code;
}
