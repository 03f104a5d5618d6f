#include "options.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/nearest.h"
#include "base/number.h"

enum { TOKEN_MAX = 128, LIST_TEXT = 400 };

static const struct { const char *name, *expected; } types[] = {
    [OPTION_INT] = {"int", "a whole number"},
    [OPTION_FLOAT] = {"float", "a number"},
    [OPTION_BOOL] = {"bool", "true or false"},
    [OPTION_PAIR] = {"pair", "a number or a pair"},
    [OPTION_FLOATS] = {"floats", "two numbers"},
    [OPTION_LIST] = {"list", "a list of numbers"},
    [OPTION_EACH] = {"each", "a number or a list of numbers"},
    [OPTION_TEXT] = {"text", "a text"},
    [OPTION_WORD] = {"", ""},
};

__attribute__((format(printf, 4, 5)))
static void append(char *text, size_t room, size_t *used, const char *format, ...) {
    if (*used >= room) return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + *used, room - *used, format, args);
    va_end(args);
    if (n > 0) *used += (size_t)n;
}

/* Word `index` of "none|tanh": where it starts, and its length; NULL past the last. */
static const char *word_at(const char *words, int index, int *length) {
    if (!*words) return NULL;
    for (; index > 0; index--) {
        words = strchr(words, '|');
        if (!words) return NULL;
        words++;
    }
    *length = (int)strcspn(words, "|");
    return words;
}

/* Setting a value */

static int wrong_type(const Option *o, Err *e, const char *found) {
    char expected[LIST_TEXT] = "";
    size_t used = 0;
    const char *word;
    int length;
    append(expected, sizeof expected, &used, "%s", types[o->type].expected);
    for (int i = 0; (word = word_at(o->words, i, &length)) != NULL; i++)
        append(expected, sizeof expected, &used, "%s\"%.*s\"", used ? " or " : "", length, word);
    return err_set(e, ERR_SCRIPT, "option \"%s\": expected %s, found %s", o->name, expected, found);
}

/* value[2], both of them; found: the same as text. */
static int set_values(Option *o, const double *value, const char *found, Err *e) {
    bool whole = o->type == OPTION_INT || o->type == OPTION_PAIR;
    for (int k = 0; k < 2; k++) {
        if (whole && !(value[k] >= INT32_MIN && value[k] <= INT32_MAX && value[k] == floor(value[k])))
            return err_set(e, ERR_SCRIPT, "option \"%s\": expected a whole number from %d to %d, found %s",
                           o->name, INT32_MIN, INT32_MAX, found);
        if (!isfinite(value[k]))
            return err_set(e, ERR_SCRIPT, "option \"%s\": expected a finite number, found %s", o->name, found);
    }
    for (int k = 0; k < 2; k++) {
        if (whole) o->i[k] = (int64_t)value[k];
        else o->f[k] = value[k];
    }
    o->word = -1;
    o->given = true;
    return OK;
}

int option_set_number(Option *o, double value, Err *e) {
    char found[NUMBER_TEXT];
    number_text(value, found);
    if (o->type != OPTION_INT && o->type != OPTION_FLOAT && o->type != OPTION_PAIR && o->type != OPTION_EACH)
        return wrong_type(o, e, found);
    return set_values(o, (const double[2]){value, value}, found, e);
}

int option_set_numbers(Option *o, double first, double second, Err *e) {
    char a[NUMBER_TEXT], b[NUMBER_TEXT], found[2 * NUMBER_TEXT + 8];
    snprintf(found, sizeof found, "{%s, %s}", number_text(first, a), number_text(second, b));
    if (o->type != OPTION_PAIR && o->type != OPTION_FLOATS) return wrong_type(o, e, found);
    return set_values(o, (const double[2]){first, second}, found, e);
}

int option_set_list(Option *o, const double *values, int64_t n, Err *e) {
    if (!option_takes_list(o) || n < 1) return wrong_type(o, e, n < 1 ? "none" : "a list of numbers");
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return err_set(e, ERR_SCRIPT, "option \"%s\": expected finite numbers, found %g as number %lld", o->name,
                           values[i], (long long)i + 1);
    double *list = mem_copy(values, (size_t)n * sizeof *values);
    if (!list) return err_set(e, ERR_HOST_MEMORY, "no host memory for %lld numbers", (long long)n);
    mem_free(o->list);
    o->list = list;
    o->n = n;
    o->word = -1;
    o->given = true;
    return OK;
}

int option_set_bool(Option *o, bool value, Err *e) {
    if (o->type != OPTION_BOOL) return wrong_type(o, e, value ? "true" : "false");
    o->i[0] = value;
    o->given = true;
    return OK;
}

static int set_text(Option *o, const char *text, Err *e) {
    size_t n = strlen(text);
    if (n == 0 || n >= sizeof o->words || strpbrk(text, " \t\n"))
        return err_set(e, ERR_SCRIPT, "option \"%s\": expected a text of 1 to %zu characters without spaces, found "
                       "\"%.60s\"", o->name, sizeof o->words - 1, text);
    memcpy(o->words, text, n + 1);
    o->given = true;
    return OK;
}

int option_set_word(Option *o, const char *word, Err *e) {
    const char *known;
    char found[64];
    int length;
    if (o->type == OPTION_TEXT) return set_text(o, word, e);
    for (int i = 0; (known = word_at(o->words, i, &length)) != NULL; i++) {
        if (strlen(word) != (size_t)length || memcmp(word, known, (size_t)length) != 0) continue;
        o->word = i;
        o->i[0] = o->i[1] = 0;
        o->given = true;
        return OK;
    }
    snprintf(found, sizeof found, "\"%.50s\"", word);
    return wrong_type(o, e, found);
}

/* Reading a spec */

/* The option of that name, or NULL; to be changed only by callers that may change `o`. */
static Option *find(const Options *o, const char *name) {
    for (int i = 0; i < o->count; i++)
        if (!strcmp(o->item[i].name, name)) return (Option *)&o->item[i];
    return NULL;
}

static bool parse_type(Option *n, const char *type) {
    size_t first = strcspn(type, "|");
    const char *words = type;
    n->type = OPTION_WORD;
    for (int t = 0; t < OPTION_WORD; t++) {
        if (strlen(types[t].name) != first || memcmp(types[t].name, type, first) != 0) continue;
        n->type = (OptionType)t;
        if (type[first] && (t == OPTION_BOOL || t == OPTION_FLOATS || t == OPTION_TEXT)) return false;
        words = type[first] ? type + first + 1 : "";
    }
    if (n->type == OPTION_WORD && !type[first]) return false; /* neither a type nor a choice */
    if (strlen(words) >= sizeof n->words || strstr(words, "||")) return false;
    if (type[first] && (!*words || words[0] == '|' || words[strlen(words) - 1] == '|')) return false;
    memcpy(n->words, words, strlen(words) + 1);
    return true;
}

/* text: "3", "0.9,0.999", "true", a word, or the name of an option before it. */
static bool parse_default(const Options *o, Option *n, const char *text) {
    const Option *other = find(o, text);
    const char *end;
    bool good;
    if (other) {
        n->from = (int)(other - o->item);
        return other->type == n->type && !strcmp(other->words, n->words);
    }
    double first = number_read(text, &end);
    if (n->type == OPTION_BOOL) {
        good = (!strcmp(text, "true") || !strcmp(text, "false")) && !option_set_bool(n, text[0] == 't', NULL);
    } else if (end == text) {
        good = !option_set_word(n, text, NULL);
    } else if (*end == ',') {
        const char *rest = end + 1;
        double second = number_read(rest, &end);
        good = end != rest && !*end && !option_set_numbers(n, first, second, NULL);
    } else {
        good = !*end && !option_set_number(n, first, NULL);
    }
    n->given = false;
    return good;
}

static bool parse_option(Options *o, char *token) {
    if (o->count == OPTIONS_MAX) return false;
    Option *n = &o->item[o->count];
    char *type = strchr(token, ':'), *value = strchr(token, '=');
    if (!type || (value && value < type)) return false;
    *type++ = '\0';
    if (value) *value++ = '\0';
    if (!*token || strlen(token) >= sizeof n->name || find(o, token)) return false;
    memcpy(n->name, token, strlen(token) + 1);
    n->word = n->from = -1;
    n->required = !value;
    if (!parse_type(n, type)) return false;
    if (value && !parse_default(o, n, value)) return false;
    o->count++;
    return true;
}

int options_parse(Options *o, const char *spec, Err *e) {
    memset(o, 0, sizeof *o);
    o->spec = spec;
    for (const char *p = spec; *p;) {
        char token[TOKEN_MAX];
        size_t length = strcspn(p, " ");
        snprintf(token, sizeof token, "%.*s", (int)length, p);
        bool good = length < sizeof token && (!strcmp(token, "*") || parse_option(o, token));
        if (!good)
            return err_set(e, ERR_INTERNAL, "options \"%s\": cannot read \"%.*s\"", spec, (int)length, p);
        p += length;
        if (*p) p++;
    }
    return OK;
}

void options_free(Options *o) {
    for (int i = 0; i < o->count; i++) mem_free(o->item[i].list);
}

/* Finding by name */

Option *options_find(Options *o, const char *name, Err *e) {
    Option *found = find(o, name);
    if (found) return found;
    char known[LIST_TEXT] = "none";
    size_t used = 0;
    const char *meant = NULL;
    Nearest nearest = nearest_to(name);
    for (int i = 0; i < o->count; i++) {
        append(known, sizeof known, &used, i ? ", %s" : "%s", o->item[i].name);
        if (nearest_try(&nearest, o->item[i].name)) meant = o->item[i].name;
    }
    err_set(e, ERR_SCRIPT, "unknown option \"%.50s\"; known: %s%s%s%s", name, known, meant ? "; did you mean \"" : "",
            meant ? meant : "", meant ? "\"?" : "");
    return NULL;
}

/* Finished values */

int options_finish(Options *o, Err *e) {
    for (int i = 0; i < o->count; i++) {
        Option *n = &o->item[i];
        if (n->given) continue;
        if (n->required) return err_set(e, ERR_SCRIPT, "option \"%s\" is required", n->name);
        if (n->from < 0) continue;
        assert(n->from < i); /* an option before it, whose value is there already */
        const Option *from = &o->item[n->from];
        n->word = from->word;
        memcpy(n->i, from->i, sizeof n->i);
        memcpy(n->f, from->f, sizeof n->f);
    }
    return OK;
}

static const Option *get(const Options *o, const char *name) {
    static const Option none = {.word = -1, .from = -1};
    const Option *found = find(o, name);
    return found ? found : &none;
}

int64_t options_int(const Options *o, const char *name) { return get(o, name)->i[0]; }
int64_t options_pair(const Options *o, const char *name, int which) { return get(o, name)->i[which != 0]; }
double options_float(const Options *o, const char *name) { return get(o, name)->f[0]; }
double options_floats(const Options *o, const char *name, int which) { return get(o, name)->f[which != 0]; }
bool options_bool(const Options *o, const char *name) { return get(o, name)->i[0] != 0; }

const double *options_list(const Options *o, const char *name, int64_t *n) {
    *n = get(o, name)->n;
    return get(o, name)->list;
}

const char *options_word(const Options *o, const char *name, char *text) {
    const Option *n = get(o, name);
    int length;
    const char *word = n->word < 0 ? NULL : word_at(n->words, n->word, &length);
    if (n->type == OPTION_TEXT) word = n->words, length = (int)strlen(word);
    length = word ? min_int(length, OPTION_WORDS - 1) : 0;
    memcpy(text, word ? word : "", (size_t)length);
    text[length] = '\0';
    return text;
}

static bool same_value(const Option *a, const Option *b) {
    return !a->list && !b->list && a->word == b->word && a->i[0] == b->i[0] && a->i[1] == b->i[1] && a->f[0] == b->f[0] && a->f[1] == b->f[1];
}

enum { ROOM = OPTION_WORDS + LIST_SHOWN * (NUMBER_TEXT + 1) }; /* of a value as text */

/* The numbers of a list; of a long one their count and their hash. */
static void list_text(const Option *n, char *text) {
    char number[NUMBER_TEXT];
    size_t used = 0;
    for (int64_t i = 0; n->n <= LIST_SHOWN && i < n->n; i++)
        append(text, ROOM, &used, i ? ",%s" : "%s", number_text(n->list[i], number));
    if (n->n <= LIST_SHOWN) return;
    uint64_t hash = hash_bytes(HASH_START, n->list, (size_t)n->n * sizeof *n->list);
    append(text, ROOM, &used, "%" PRId64 "#%016" PRIx64, n->n, hash);
}

/* text[ROOM] */
static void value_text(const Options *o, const Option *n, char *text) {
    char a[NUMBER_TEXT], b[NUMBER_TEXT];
    if (n->word >= 0 || n->type == OPTION_TEXT) options_word(o, n->name, text);
    else if (n->type == OPTION_BOOL) snprintf(text, ROOM, "%s", n->i[0] ? "true" : "false");
    else if (n->type == OPTION_INT) snprintf(text, ROOM, "%lld", (long long)n->i[0]);
    else if (n->type == OPTION_PAIR) snprintf(text, ROOM, "%lldx%lld", (long long)n->i[0], (long long)n->i[1]);
    else if (n->list) list_text(n, text);
    else if (n->type == OPTION_FLOAT || n->type == OPTION_EACH) snprintf(text, ROOM, "%s", number_text(n->f[0], a));
    else snprintf(text, ROOM, "%s,%s", number_text(n->f[0], a), number_text(n->f[1], b));
}

const char *options_text(const Options *o, char *text, size_t room) {
    char value[ROOM];
    Options defaults;
    size_t used = 0;
    if (room) text[0] = '\0';
    if (options_parse(&defaults, o->spec ? o->spec : "", NULL)) return text;
    for (int i = 0; i < o->count; i++) {
        const Option *n = &o->item[i], *other = n->from >= 0 ? &o->item[n->from] : &defaults.item[i];
        if (!n->required && same_value(n, other)) continue;
        value_text(o, n, value);
        append(text, room, &used, "%s%s=%s", used ? " " : "", n->name, value);
    }
    return text;
}
