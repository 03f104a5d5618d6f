#include "shape.h"

#include <inttypes.h>
#include <stdio.h>

int shape_count(const Shape *s, int64_t *count, Err *e) {
    char text[SHAPE_TEXT];
    int64_t n = 1;
    assert(s->rank >= 0 && s->rank <= SHAPE_MAX);
    for (int i = 0; i < s->rank; i++) {
        if (s->dim[i] < 1)
            return err_set(e, ERR_SCRIPT, "shape %s: every dimension must be at least 1", shape_text(s, text));
        if (s->dim[i] > INT32_MAX || n > INT64_MAX / 16 / s->dim[i])
            return err_set(e, ERR_SCRIPT, "shape %s is too large", shape_text(s, text));
        n *= s->dim[i];
    }
    *count = n;
    return OK;
}

int64_t shape_elements(const Shape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++) {
        assert(s->dim[i] >= 1);
        n *= s->dim[i];
    }
    return n;
}

bool shape_equal(const Shape *a, const Shape *b) {
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

const char *shape_text(const Shape *s, char *text) {
    int n = snprintf(text, SHAPE_TEXT, "(");
    for (int i = 0; i < s->rank; i++)
        n += snprintf(text + n, (size_t)(SHAPE_TEXT - n), i ? ", %" PRId64 : "%" PRId64, s->dim[i]);
    snprintf(text + n, (size_t)(SHAPE_TEXT - n), ")");
    return text;
}
