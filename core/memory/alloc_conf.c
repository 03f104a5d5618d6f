/* alloc_conf.c: PYTORCH_CUDA_ALLOC_CONF as text: "key:value,key:[256:1,>:4]". */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "alloc_caching.h"
#include "base/nearest.h"
#include "base/number.h"

enum { TOKEN = 48 };
static const size_t MIB = 1 << 20, LEAST_MIB = 20;

typedef struct Conf {
    const char *at;
    char token[TOKEN]; /* the one that was taken last; "": the end */
    CachingSettings *to;
    Err *e;
} Conf;

/* Words and single signs, white space left out. */
static const char *next(Conf *c) {
    size_t n = 0;
    while (isspace((unsigned char)*c->at)) c->at++;
    bool sign = *c->at && strchr(":,[]", *c->at);
    if (sign) c->token[n++] = *c->at++;
    while (!sign && *c->at && !strchr(":,[] \t\n", *c->at) && n + 1 < TOKEN) c->token[n++] = *c->at++;
    c->token[n] = 0;
    return c->token;
}

static int wrong(const Conf *c, const char *key, const char *expected) {
    const char *found = c->token[0] ? c->token : "the end";
    return err_set(c->e, ERR_SCRIPT, "alloc_conf: %s: expected %s, found \"%s\"", key, expected, found);
}

static int sign(Conf *c, const char *key, const char *expected) {
    const char quoted[] = {'"', expected[0], '"', 0};
    return strcmp(next(c), expected) ? wrong(c, key, quoted) : OK;
}

/* The token as a whole number. */
static bool whole(const Conf *c, uint64_t *value) {
    *value = 0;
    for (const char *p = c->token; *p; p++) {
        if (!isdigit((unsigned char)*p) || *value > (UINT64_C(1) << 40)) return false;
        *value = *value * 10 + (uint64_t)(*p - '0');
    }
    return c->token[0] != 0;
}

static int take_mib(Conf *c, const char *key, size_t *bytes) {
    uint64_t value;
    next(c);
    if (!whole(c, &value) || value < LEAST_MIB || value > SIZE_MAX / MIB)
        return wrong(c, key, "at least 20 MiB");
    *bytes = (size_t)value * MIB;
    return OK;
}

static int take_max_split(Conf *c, const char *key) { return take_mib(c, key, &c->to->max_split_size); }

static int take_rounding(Conf *c, const char *key) { return take_mib(c, key, &c->to->max_non_split_rounding); }

static int take_threshold(Conf *c, const char *key) {
    const char *end;
    double value = number_read(next(c), &end);
    if (!c->token[0] || *end || !(value > 0 && value < 1)) return wrong(c, key, "a number above 0 and below 1");
    c->to->garbage_collection_threshold = value;
    return OK;
}

static bool power_of_2(uint64_t value) { return value && !(value & (value - 1)); }

static int divisions(Conf *c, const char *key, uint32_t *out) {
    uint64_t value;
    if (!whole(c, &value) || (value && !power_of_2(value)) || value > 1u << 16)
        return wrong(c, key, "0 or a power of two as the number of steps");
    *out = (uint32_t)value;
    return OK;
}

/* The interval of sizes of that many MiB. */
static int interval_of(uint64_t mib) {
    int i = 0;
    while (mib > 1 && i < ROUNDUP_INTERVALS - 1) {
        mib >>= 1;
        i++;
    }
    return i;
}

/* "[256:1,512:2,>:4]": below the first one as there; ">" is for the last one, too, as PyTorch has it. */
static int take_list(Conf *c, const char *key) {
    uint32_t *to = c->to->roundup_power2_divisions, value = 0;
    int last = 0;
    for (bool first = true;; first = false) {
        uint64_t mib = 0;
        bool rest = !strcmp(next(c), ">");
        if (!rest && (!whole(c, &mib) || !power_of_2(mib)))
            return wrong(c, key, "a power of two of MiB, or >");
        int code = sign(c, key, ":"), at = rest ? last : interval_of(mib);
        if (!code) next(c), code = divisions(c, key, &value);
        if (code) return code;
        int begin = rest ? last : first ? 0 : at, end = rest ? ROUNDUP_INTERVALS : at + 1;
        for (int i = begin; i < end; i++) to[i] = value;
        last = at;
        next(c);
        if (!strcmp(c->token, "]")) return OK;
        if (strcmp(c->token, ",")) return wrong(c, key, "\",\" or \"]\"");
    }
}

static int take_roundup(Conf *c, const char *key) {
    uint32_t value = 0;
    if (!strcmp(next(c), "[")) return take_list(c, key);
    int code = divisions(c, key, &value);
    for (int i = 0; i < ROUNDUP_INTERVALS && !code; i++) c->to->roundup_power2_divisions[i] = value;
    return code;
}

static int take_bool(Conf *c, const char *key, bool *value) {
    *value = !strcmp(next(c), "True");
    return *value || !strcmp(c->token, "False") ? OK : wrong(c, key, "True or False");
}

static int take_expandable(Conf *c, const char *key) { return take_bool(c, key, &c->to->expandable_segments); }

static int take_backend(Conf *c, const char *key) {
    if (!strcmp(next(c), "native")) return OK;
    return wrong(c, key, "native (cudaMallocAsync keeps its memory in the driver, which decides for itself)");
}

/* Known to PyTorch, and of no influence on bytes of the device. */
static int take_any(Conf *c, const char *key) {
    const char *value = next(c);
    return *value && !strchr(":,[]", *value) ? OK : wrong(c, key, "a value");
}

static const struct { const char *name; int (*take)(Conf *, const char *key); } keys[] = {
    {"expandable_segments", take_expandable}, {"max_split_size_mb", take_max_split},
    {"max_non_split_rounding_mb", take_rounding}, {"roundup_power2_divisions", take_roundup},
    {"garbage_collection_threshold", take_threshold}, {"backend", take_backend},
    {"pinned_use_background_threads", take_any}, {"pinned_use_cuda_host_register", take_any},
    {"pinned_num_register_threads", take_any}, {"pinned_reserve_segment_size_mb", take_any},
    {"release_lock_on_cudamalloc", take_any}, {"graph_capture_record_stream_reuse", take_any},
};

static int unknown_key(const Conf *c) {
    char known[400] = "", hint[TOKEN + 20] = "";
    const char *meant = NULL;
    Nearest nearest = nearest_to(c->token);
    for (size_t i = 0, n = 0; i < ARRAY_LEN(keys); i++) {
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", keys[i].name);
        if (nearest_try(&nearest, keys[i].name)) meant = keys[i].name;
    }
    if (meant) snprintf(hint, sizeof hint, " (did you mean \"%s\"?)", meant);
    return err_set(c->e, ERR_SCRIPT, "alloc_conf: unknown key \"%s\"%s; known: %s", c->token, hint, known);
}

static int take_key(Conf *c) {
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (strcmp(c->token, keys[i].name)) continue;
        int code = sign(c, keys[i].name, ":");
        return code ? code : keys[i].take(c, keys[i].name);
    }
    return unknown_key(c);
}

int caching_settings_parse(const char *text, CachingSettings *out, Err *e) {
    CachingSettings s = {0};
    Conf c = {.at = text, .to = &s, .e = e};
    bool more = *next(&c) != 0;
    while (more) {
        int code = take_key(&c);
        if (code) return code;
        more = *next(&c) != 0;
        if (more && strcmp(c.token, ",")) return wrong(&c, "after a value", "\",\"");
        if (more && !*next(&c)) return wrong(&c, "after a comma", "a key");
    }
    *out = s;
    return OK;
}

/* The next step between the power of two below and that above, as many steps as there are divisions. */
static size_t next_division(size_t bytes, size_t power, size_t divisions_of_it) {
    size_t step = power / divisions_of_it;
    return bytes == power ? bytes : step ? align_up(bytes, step) : 2 * power;
}

size_t caching_round(const CachingSettings *s, size_t bytes) {
    enum { BLOCK = 512 };
    size_t power = 1;
    while (power <= bytes / 2) power *= 2;
    uint32_t steps = s->roundup_power2_divisions[interval_of(power / MIB)];
    if (steps > 1 && bytes > (size_t)BLOCK * steps) return next_division(bytes, power, steps);
    return bytes < BLOCK ? BLOCK : align_up(bytes, BLOCK);
}
