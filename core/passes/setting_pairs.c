/* Options of a setting as text: "name=value name=value". */
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
