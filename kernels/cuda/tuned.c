#include "tuned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "base/mem.h"

enum { PARTS = 8, LINE = 1024 };

static bool same(const Pick *a, const char *device, size_t version, const char *op) {
    return a->version == version && !strcmp(a->op, op) && !strcmp(a->device, device);
}

/* A pick fits into the limit that it was made under, even if its workspace is larger: copies that every way needs do
 * not count against the limit. */
static bool fits(const Pick *pick, size_t limit) { return pick->limit <= limit || pick->workspace <= limit; }

const Pick *tuned_find(const Tuned *p, const char *device, size_t version, const char *op, size_t limit) {
    const Pick *best = NULL;
    for (int k = 0; k < p->n; k++) {
        const Pick *one = &p->at[k];
        if (!same(one, device, version, op) || !fits(one, limit)) continue;
        if (one->limit == limit) return one;
        if (!best || one->us < best->us) best = one;
    }
    return best;
}

int tuned_set(Tuned *p, const Pick *pick, Err *e) {
    for (int k = 0; k < p->n; k++) {
        if (p->at[k].limit != pick->limit || !same(&p->at[k], pick->device, pick->version, pick->op)) continue;
        p->at[k] = *pick;
        return OK;
    }
    if (!mem_grow(&p->at, &p->cap, p->n + 1, sizeof *p->at))
        return err_set(e, ERR_HOST_MEMORY, "no host memory for %d picks", p->n + 1);
    p->at[p->n++] = *pick;
    return OK;
}

void tuned_free(Tuned *p) {
    mem_free(p->at);
    memset(p, 0, sizeof *p);
}

/* ---- text */

const char *engine_text(const EngineId *id, char text[ENGINE_TEXT]) {
    int at = snprintf(text, ENGINE_TEXT, "%lld", (long long)id->engine);
    for (int k = 0; k < id->n_knobs && at < ENGINE_TEXT; k++)
        at += snprintf(text + at, (size_t)(ENGINE_TEXT - at), " %lld=%lld", (long long)id->knob[k].type,
                       (long long)id->knob[k].value);
    return text;
}

bool engine_read(const char *text, EngineId *id) {
    char *end;
    memset(id, 0, sizeof *id);
    id->engine = strtoll(text, &end, 10);
    if (end == text || id->engine < 0) return false;
    while (*end == ' ') {
        if (id->n_knobs == ENGINE_KNOBS) return false;
        const char *from = end + 1;
        id->knob[id->n_knobs].type = strtoll(from, &end, 10);
        if (end == from || *end != '=') return false;
        from = end + 1;
        id->knob[id->n_knobs++].value = strtoll(from, &end, 10);
        if (end == from) return false;
    }
    return *end == 0;
}

static bool take_text(char *to, size_t size, const char *from) {
    size_t n = strlen(from);
    if (n == 0 || n >= size) return false;
    memcpy(to, from, n + 1);
    return true;
}

static bool take_size(size_t *to, const char *from) {
    char *end;
    if (from[0] < '0' || from[0] > '9') return false;
    *to = (size_t)strtoull(from, &end, 10);
    return *end == 0;
}

/* Cuts `line` into its parts. false: they make no pick. */
static bool read_line(char *line, Pick *pick) {
    char *part[PARTS], *end;
    int n = 0;
    for (char *at = line; at; n++) {
        char *tab = strchr(at, '\t');
        if (n == PARTS) return false;
        part[n] = at;
        if (tab) *tab = 0;
        at = tab ? tab + 1 : NULL;
    }
    if (n != PARTS) return false;
    memset(pick, 0, sizeof *pick);
    pick->us = strtod(part[7], &end);
    return *end == 0 && end != part[7] && pick->us >= 0 && take_text(pick->device, sizeof pick->device, part[0]) &&
           take_size(&pick->version, part[1]) && take_size(&pick->limit, part[2]) &&
           take_text(pick->op, sizeof pick->op, part[3]) && take_text(pick->way, sizeof pick->way, part[4]) &&
           engine_read(part[5], &pick->engine) && take_size(&pick->workspace, part[6]);
}

int tuned_load(Tuned *p, const char *path, Err *e) {
    char *text;
    size_t bytes;
    int code = cache_read(path, &text, &bytes, e), number = 0;
    if (code) return code;
    for (char *line = text; line && *line && !code;) {
        char *end = strchr(line, '\n');
        Pick pick;
        number++;
        if (end) *end = 0;
        /* a last line without a newline was cut off, even if it looks good */
        if (end && read_line(line, &pick)) {
            code = tuned_set(p, &pick, e);
        } else if (p->damaged++ == 0) {
            err_set(&p->problem, ERR_FORMAT, "%s:%d: expected %d parts, separated by tabs, that make a pick; the line "
                    "is ignored", path, number, PARTS);
        }
        line = end ? end + 1 : NULL;
    }
    mem_free(text);
    return code;
}

int tuned_save(const Tuned *p, const char *path, Err *e) {
    size_t size = (size_t)p->n * LINE + 1, at = 0;
    char *text = mem_new(size), engine[ENGINE_TEXT];
    if (!text) return err_set(e, ERR_HOST_MEMORY, "no host memory for %zu bytes of picks", size);
    for (int k = 0; k < p->n; k++) {
        const Pick *one = &p->at[k];
        engine_text(&one->engine, engine);
        at += (size_t)snprintf(text + at, LINE, "%s\t%zu\t%zu\t%s\t%s\t%s\t%zu\t%.3f\n", one->device, one->version,
                               one->limit, one->op, one->way, engine, one->workspace, one->us);
    }
    int code = cache_write(path, text, at, e);
    mem_free(text);
    return code;
}
