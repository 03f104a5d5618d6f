#include "formula.h"

#include <stdio.h>
#include <string.h>

#include "base/number.h"

static const FormulaInfo functions[] = {
#define X(name, text, aten, operands, ...) {text, "aten::" aten, operands},
    FORMULA_FNS(X)
#undef X
};

const FormulaInfo *formula_info(int fn) { return fn < (int)ARRAY_LEN(functions) ? &functions[fn] : NULL; }

/* The rest of the text, and what it is read into. */
typedef struct Reader { const char *at; Formula *f; Err *e; } Reader;

static int wrong(Reader *r, const char *expected) {
    return err_set(r->e, ERR_SCRIPT, "a formula's step %d: expected %s, found \"%.20s\"", r->f->n, expected, r->at);
}

static void skip_spaces(Reader *r) { r->at += strspn(r->at, " "); }

static bool take(Reader *r, char c) {
    skip_spaces(r);
    if (*r->at != c) return false;
    r->at++;
    return true;
}

/* A word of less than FORMULA_NAME characters. */
static int take_word(Reader *r, char *word) {
    skip_spaces(r);
    const size_t n = strspn(r->at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    if (!n || n >= FORMULA_NAME) return wrong(r, "a name of at most 23 characters");
    memcpy(word, r->at, n);
    word[n] = '\0';
    r->at += n;
    return OK;
}

/* A whole number below `limit`. */
static int take_number(Reader *r, int limit, uint8_t *to) {
    const char *end;
    skip_spaces(r);
    const double value = number_read(r->at, &end);
    if (end == r->at || !(value >= 0 && value < limit) || value != (int)value) return wrong(r, "the number of an earlier step");
    r->at = end;
    *to = (uint8_t)value;
    return OK;
}

static int take_until(Reader *r, uint8_t *to) { return take_number(r, FORMULA_KEPT + 1, to); }

static int function_of(const char *word) {
    static const char *const inputs[] = {
#define X(name, text) text,
        FORMULA_INPUTS(X)
#undef X
    };
    for (size_t i = 0; i < ARRAY_LEN(functions); i++)
        if (!strcmp(functions[i].text, word)) return (int)i;
    for (size_t i = 0; i < ARRAY_LEN(inputs); i++)
        if (!strcmp(inputs[i], word)) return (int)(ARRAY_LEN(functions) + i);
    return -1;
}

static int take_literal(Reader *r, int *numbers, uint8_t *to) {
    const char *end;
    skip_spaces(r);
    if (*numbers == FORMULA_NUMBERS) return err_set(r->e, ERR_SCRIPT, "a formula has at most %d numbers", FORMULA_NUMBERS);
    r->f->number[*numbers] = number_read(r->at, &end);
    if (end == r->at) return wrong(r, "a number");
    r->at = end;
    *to = (uint8_t)(*numbers)++;
    return OK;
}

static bool is_input(const Formula *f, int i) { return i < formula_inputs(f); }

static int take_operands(Reader *r, FormulaStep *s, int *numbers) {
    const FormulaInfo *info = formula_info(s->fn);
    const bool of_state = s->fn == FORMULA_STATE || s->fn == FORMULA_DEFAULT;
    const int count = info ? info->operands : 0;
    s->scalar = s->fn == FORMULA_LR || s->fn == FORMULA_STEP || s->fn == FORMULA_NUMBER || count > 0;
    if (of_state) return take_number(r, r->f->states, &s->of[0]);
    if (s->fn == FORMULA_NUMBER) return take_literal(r, numbers, &s->of[0]);
    for (int k = 0; k < count; k++) {
        const int code = take_number(r, r->f->n, &s->of[k]);
        if (code) return code;
        s->scalar = s->scalar && r->f->step[s->of[k]].scalar;
    }
    if (s->inplace && (count == 0 || r->f->step[s->of[0]].scalar)) return wrong(r, "a tensor to change in place");
    return OK;
}

static int take_step(Reader *r, int *numbers) {
    Formula *f = r->f;
    char word[FORMULA_NAME];
    if (f->n == FORMULA_STEPS)
        return err_set(r->e, ERR_SCRIPT, "a formula has at most %d operations and numbers", FORMULA_STEPS);
    FormulaStep *s = &f->step[f->n];
    int code = take_word(r, word);
    const int fn = code ? 0 : function_of(word), first = f->n < 2 ? FORMULA_PARAM + f->n : FORMULA_STATE;
    if (code) return code;
    if (fn < 0 || (f->n < formula_inputs(f)) != (fn >= FORMULA_PARAM && fn <= FORMULA_STATE) ||
        (f->n < formula_inputs(f) && fn != first))
        return wrong(r, "param, grad, the states, and then functions");
    s->fn = (uint8_t)fn;
    s->inplace = take(r, '!');
    if ((code = take_operands(r, s, numbers)) != OK) return code;
    if (fn == FORMULA_STATE && s->of[0] != f->n - 2) return wrong(r, "the states in their order");
    if (take(r, '@') && (code = take_until(r, &s->until)) != OK) return code;
    if (!take(r, ';')) return wrong(r, "a semicolon");
    f->n++;
    return OK;
}

static bool take_title(Reader *r, const char *title) {
    skip_spaces(r);
    const size_t n = strlen(title);
    if (strncmp(r->at, title, n) != 0) return false;
    r->at += n;
    return true;
}

static int take_states(Reader *r) {
    if (!take_title(r, "states")) return wrong(r, "states");
    while (!take(r, ';')) {
        if (r->f->states == OPTIM_STATES)
            return err_set(r->e, ERR_SCRIPT, "an update keeps at most %d states for each parameter", OPTIM_STATES);
        const int code = take_word(r, r->f->state_name[r->f->states]);
        if (code) return code;
        r->f->states++;
    }
    return OK;
}

/* A result is computed, or what it was: a device stores one after the other, where inputs lie. */
static int take_results(Reader *r) {
    Formula *f = r->f;
    for (int k = 0; k <= f->states; k++) {
        const int code = take_number(r, f->n, &f->result[k]), own = k ? k + 1 : 0;
        if (code) return code;
        if (f->step[f->result[k]].scalar || (is_input(f, f->result[k]) && f->result[k] != own))
            return wrong(r, "a tensor of its own as a result");
    }
    if (!take(r, ';') || !take_title(r, "replaced")) return wrong(r, "what is replaced");
    for (int k = 0; k < f->states; k++) {
        const int code = take_until(r, &f->replaced[k]);
        if (code) return code;
    }
    return take(r, ';') && !*r->at ? OK : wrong(r, "the end");
}

/* Gives each tensor a slot. A value's slot is free for the step that reads it last. */
static int place(Formula *f, Err *e) {
    int last[FORMULA_STEPS], owner[FORMULA_SLOTS];
    for (int i = 0; i < f->n; i++) {
        const FormulaInfo *info = formula_info(f->step[i].fn);
        last[i] = is_input(f, i) ? f->n : i;
        for (int k = 0; info && k < info->operands; k++) last[f->step[i].of[k]] = max_int(last[f->step[i].of[k]], i);
    }
    for (int k = 0; k <= f->states; k++) last[f->result[k]] = f->n;
    for (int i = 0; i < f->n; i++) {
        FormulaStep *s = &f->step[i];
        int slot = 0;
        if (s->scalar) continue;
        while (slot < f->slots && last[owner[slot]] > i) slot++;
        if (slot == FORMULA_SLOTS)
            return err_set(e, ERR_SCRIPT, "a formula needs more than %d tensors at once", FORMULA_SLOTS);
        owner[slot] = i;
        s->slot = (uint8_t)slot;
        f->slots = max_int(f->slots, slot + 1);
    }
    return OK;
}

int formula_read(Formula *f, const char *text, Err *e) {
    Reader r = {text, f, e};
    int numbers = 0;
    memset(f, 0, sizeof *f);
    int code = take_states(&r);
    while (!code && !take_title(&r, "results")) code = take_step(&r, &numbers);
    if (!code && f->n < formula_inputs(f)) code = wrong(&r, "param, grad and the states");
    if (!code) code = take_results(&r);
    return code ? code : place(f, e);
}

bool formula_counts(const Formula *f) {
    for (int i = 0; i < f->n; i++)
        if (f->step[i].fn == FORMULA_STEP) return true;
    return false;
}

int formula_storage(const Formula *f, int i) {
    while (f->step[i].inplace) i = f->step[i].of[0];
    return i;
}
