/* Options of a setting as text: "name=value name=value". */
#include <stdlib.h>
#include <string.h>

#include "settings.h"

int setting_pairs(const char *whose, const char *text, SetPairFn *set, void *to, Err *e) {
    enum { MOST = 256 };
    char pair[MOST];
    for (size_t length; *text; text += length + (text[length] == ' ')) {
        length = strcspn(text, " ");
        if (length >= MOST) return err_set(e, ERR_SCRIPT, "%sexpected options of at most %d characters", whose, MOST - 1);
        memcpy(pair, text, length);
        pair[length] = '\0';
        char *equals = strchr(pair, '=');
        if (!equals) return err_set(e, ERR_SCRIPT, "%sexpected name=value, found %s", whose, pair);
        *equals = '\0';
        int code = set(to, pair, equals + 1, e);
        if (code) return code;
    }
    return OK;
}

static int set_size(void *to, const char *name, const char *value, Err *e) {
    MeshSizes *m = to;
    char *end;
    const long size = strtol(value, &end, 10);
    int *field = NULL;
    const struct { const char *name; int *size; } axes[] = {
#define X(axis, name, what) {#name, &m->name},
        MESH(X)
#undef X
    };
    for (size_t i = 0; i < ARRAY_LEN(axes); i++)
        if (!strcmp(axes[i].name, name)) field = axes[i].size;
    if (!field) return err_set(e, ERR_SCRIPT, "mesh: expected data, tensor and pipeline, found %s", name);
    if (*end || end == value || size < 1 || size > 1 << 20)
        return err_set(e, ERR_SCRIPT, "mesh: %s: expected a whole number from 1 to %d, found %s", name, 1 << 20, value);
    *field = (int)size;
    return OK;
}

int mesh_set(MeshSizes *m, const char *text, Err *e) {
    *m = (MeshSizes){0, 1, 1};
    return setting_pairs("mesh: ", text, set_size, m, e);
}
