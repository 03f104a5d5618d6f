#include "settings.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "program/quant8.h"

const PrecisionInfo *precision_info(Precision p) {
#define AUTOCAST_ON true
#define AUTOCAST_OFF false
    static const PrecisionInfo table[] = {
#define X(name, text, low, weights, autocast, master, scaling, what) \
        {text, DT_##low, DT_##weights, autocast, master, scaling},
        PRECISIONS(X)
#undef X
    };
    assert((size_t)p < ARRAY_LEN(table));
    return &table[p];
}

bool settings_scale_loss(const Settings *s) {
    return s->scaler.enabled == UNSAID ? precision_info(s->precision)->loss_scaling : s->scaler.enabled == SAID_TRUE;
}

/* A paged optimizer has spec and op of its base. */
static const struct { const char *name; OptimKind base; const char *spec; OpKind op; } optimizers[] = {
#define OPTIMIZER(name, op, options) {#name, OPTIM_##name, options OPTIM_CLIPS, OP_##op},
#define PAGED(paged, of) {.name = #paged, .base = OPTIM_##of},
#include "program/optimizers.def"
};

OptimKind optimizer_base(OptimKind kind) { return optimizers[kind].base; }

bool optimizer_pages(const Settings *s, const Shape *like) {
    return optimizer_is_paged(s->optimizer.kind) && shape_elements(like) >= s->page_least;
}

const char *optimizer_spec(int kind, const char **name) {
    if (kind < 0 || kind >= OPTIM_COUNT) return NULL;
    if (name) *name = optimizers[kind].name;
    return optimizers[optimizer_base((OptimKind)kind)].spec;
}

OpKind optimizer_op(const Optimizer *o, const Shape *like) {
    const int64_t n = like ? shape_elements(like) : 0, block = o->rule.block_size;
    return block && n >= CODES_LEAST && n % block == 0 ? OP_adam8bit : optimizers[optimizer_base(o->kind)].op;
}

const char *optimizer_state_name(const Optimizer *o, int slot, const Shape *like) {
    const OpKind op = optimizer_op(o, like);
    assert(slot >= 1 && slot < op_master(op)); /* output 0 is the weight, the last one its master */
    return op == OP_formula ? o->formula.state_name[slot - 1] : op_info(op)->out[slot].name;
}

bool optimizer_keeps(const Optimizer *o, int slot, const Shape *like, DType type, OptimState *state) {
    const int rank = like->rank;
    const OpKind op = optimizer_op(o, like);
    /* the states that ops.def calls optional; over: the dimension, counted from the end, that has size 1 in the state;
     * 0: none */
    const struct { const char *state; bool wanted; int over; } optional[] = {
        {"momentum_buffer", o->rule.momentum != 0.0f, 0},
        {"grad_avg", o->rule.centered, 0},
        {"max_exp_avg_sq", o->rule.amsgrad, 0},
        {"row_var", rank > 1, 1},
        {"col_var", rank > 1, 2},
        {"variance", rank == 1, 0},
    };
    const char *name = optimizer_state_name(o, slot, like);
    *state = (OptimState){*like, op == OP_adam8bit ? DT_U8 : type};
    if (!strcmp(name, "scale"))
        *state = (OptimState){shape1(shape_elements(like) / o->rule.block_size * (2 + o->rule.amsgrad)), DT_F32};
    for (size_t i = 0; i < ARRAY_LEN(optional); i++) {
        if (strcmp(name, optional[i].state) != 0) continue;
        if (optional[i].wanted && optional[i].over) state->shape.dim[rank - optional[i].over] = 1;
        return optional[i].wanted;
    }
    return *name != '\0'; /* a formula has as many as it names */
}

/* Options that are one number of the rule each, for all optimizers that have them. any: also below 0. */
static const struct { const char *name; size_t at; bool any; } numbers[] = {
    {"lr", offsetof(OptimRule, lr), false},
    {"momentum", offsetof(OptimRule, momentum), false},
    {"dampening", offsetof(OptimRule, dampening), true},
    {"weight_decay", offsetof(OptimRule, weight_decay), false},
    {"eps", offsetof(OptimRule, eps), false},
    {"clip_norm", offsetof(OptimRule, clip_norm), false},
    {"alpha", offsetof(OptimRule, alpha), false},
    {"rho", offsetof(OptimRule, alpha), false}, /* no optimizer has both */
    {"lr_decay", offsetof(OptimRule, lr_decay), false},
    {"momentum_decay", offsetof(OptimRule, momentum_decay), false},
    {"initial_accumulator_value", offsetof(OptimRule, initial_accumulator_value), false},
    {"beta2_decay", offsetof(OptimRule, beta2_decay), true},
    {"d", offsetof(OptimRule, d), false},
};

static int set_adafactor(OptimRule *r, const Options *options, Err *e) {
    r->eps = (float)options_floats(options, "eps", 0);
    r->eps2 = (float)options_floats(options, "eps", 1);
    if (!(r->eps >= 0) || !(r->eps2 >= 0))
        return err_set(e, ERR_SCRIPT, "eps must not be negative, found %g and %g", (double)r->eps, (double)r->eps2);
    if (!(r->beta2_decay <= 0))
        return err_set(e, ERR_SCRIPT, "beta2_decay must not be above 0, found %g", (double)r->beta2_decay);
    if (!(r->d >= 1)) return err_set(e, ERR_SCRIPT, "d must be at least 1, found %g", (double)r->d);
    return OK;
}

static int set_block(OptimRule *r, const Options *options, Err *e) {
    const int64_t size = options_int(options, "block_size");
    if (size < 1 || size > CODES_MOST)
        return err_set(e, ERR_SCRIPT, "block_size must be from 1 to %d, found %lld", CODES_MOST, (long long)size);
    r->block_size = (int)size;
    return OK;
}

int optimizer_set(Optimizer *o, int kind, const Options *options, Err *e) {
    OptimRule r = {0};
    assert(kind >= 0 && kind < OPTIM_COUNT);
    const OptimKind base = optimizer_base((OptimKind)kind);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        double value = options_float(options, numbers[i].name);
        if (!numbers[i].any && !(value >= 0))
            return err_set(e, ERR_SCRIPT, "%s must not be negative, found %g", numbers[i].name, value);
        *(float *)(void *)((char *)&r + numbers[i].at) += (float)value;
    }
    if (options_float(options, "rho") > 1)
        return err_set(e, ERR_SCRIPT, "rho must not be above 1, found %g", options_float(options, "rho"));
    r.beta1 = (float)options_floats(options, "betas", 0);
    r.beta2 = (float)options_floats(options, "betas", 1);
    if (!(r.beta1 >= 0 && r.beta1 < 1) || !(r.beta2 >= 0 && r.beta2 < 1))
        return err_set(e, ERR_SCRIPT, "betas must be in [0, 1), found %g and %g", (double)r.beta1, (double)r.beta2);
    r.nesterov = options_bool(options, "nesterov");
    if (r.nesterov && (!(r.momentum > 0) || r.dampening != 0))
        return err_set(e, ERR_SCRIPT, "nesterov needs a momentum above 0 and dampening = 0");
    r.nesterov |= base == OPTIM_NAdam;
    r.centered = options_bool(options, "centered");
    r.amsgrad = options_bool(options, "amsgrad");
    const bool coded = base == OPTIM_Adam8bit || base == OPTIM_AdamW8bit;
    r.decoupled = base == OPTIM_AdamW || base == OPTIM_AdamW8bit || base == OPTIM_Lion || options_bool(options, "decoupled_weight_decay");
    if (base == OPTIM_Adafactor && set_adafactor(&r, options, e)) return ERR_SCRIPT;
    if (coded && set_block(&r, options, e)) return ERR_SCRIPT;
    *o = (Optimizer){.kind = (OptimKind)kind, .rule = r};
    return OK;
}

/* ---- settings.def */

#define AT(field) .at = offsetof(Settings, field), .size = sizeof((Settings *)0)->field
#define AT_text AT
#define AT_count AT
#define AT_size AT
#define AT_flag AT
#define AT_word AT
#define AT_optimizer AT
#define AT_options AT
#define AT_scaler AT
#define AT_mesh AT
#define AT_word_or_bytes(field, bytes) AT(field), .bytes_at = offsetof(Settings, bytes)
#define ANY .words = ""
#define RANGE(first, last) .words = "", .least = first, .most = last
#define WORDS(list) .words = list
#define FIRST(text, ...) text "|"
#define WORD(name, ...) FIRST(__VA_ARGS__, "")

static const Setting settings[] = {
#define COMMON(id, kind, value, about) .name = #id, .type = SETTING_##kind, .initial = value, .text = about
#define OUTER(name, type, value, allowed, tries, in, text) \
    {COMMON(name, type, value, text), .whose = SETTING_OUTER, .tried = tries, .unit = in, allowed},
#define SETTING(name, type, fields, value, allowed, tries, in, text) \
    {COMMON(name, type, value, text), .whose = SETTING_CELL, .tried = tries, .unit = in, allowed, AT_##type fields},
#define INNER(name, type, fields, value, allowed, in, text) \
    {COMMON(name, type, value, text), .whose = SETTING_INNER, .tried = "", .unit = in, allowed, AT_##type fields},
#include "settings.def"
};

const Setting *setting_info(int i) { return i >= 0 && i < (int)ARRAY_LEN(settings) ? &settings[i] : NULL; }

const char *setting_type_name(SettingType type) {
    static const char *const names[SETTING_TYPES] = {"text", "count", "size", "flag", "word",
                                                     "word_or_bytes", "optimizer", "options", "scaler", "mesh"};
    return names[type];
}

const Setting *setting_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        if (settings[i].whose != SETTING_OUTER && !strcmp(settings[i].name, name)) return &settings[i];
    return NULL;
}

/* The word that stands for a number of bytes; a script gives the number. */
#define BYTES "budget"

/* The place of the word in "a|b|", from 0; -1: it is not there. */
static int word_place(const char *words, const char *word) {
    const size_t length = strlen(word);
    for (int place = 0; *words; place++) {
        const size_t n = strcspn(words, "|");
        if (n == length && !memcmp(words, word, n)) return place;
        words += n + 1;
    }
    return -1;
}

/* ERR_SCRIPT: says what was expected in place of `found`. */
static int unexpected(const Setting *setting, const char *found, Err *e) {
    static const char *const expected[SETTING_TYPES] = {"a text", "", "a number of bytes", "true or false",
        "", "", "one of memtide.optim's", "", "", ""};
    char known[256] = "";
    if (setting->type == SETTING_count)
        return err_set(e, ERR_SCRIPT, "%s: expected a whole number from %" PRId64 " to %" PRId64 ", found %s",
                       setting->name, setting->least, setting->most, found);
    if (*expected[setting->type])
        return err_set(e, ERR_SCRIPT, "%s: expected %s, found %s", setting->name, expected[setting->type], found);
    size_t used = 0;
    for (const char *word = setting->words; *word && used < sizeof known; word += strcspn(word, "|") + 1)
        if (strncmp(word, BYTES "|", sizeof BYTES) != 0)
            used += (size_t)snprintf(known + used, sizeof known - used, used ? ", %.*s" : "%.*s",
                                     (int)strcspn(word, "|"), word);
    return err_set(e, ERR_SCRIPT, "%s: expected one of %s%s, found %s", setting->name, known,
                   setting->type == SETTING_word_or_bytes ? " or a number of bytes" : "", found);
}

/* The optimizer of that name with its defaults. */
static int set_optimizer(Optimizer *o, const char *name, Err *e) {
    const char *known, *spec;
    for (int kind = 0; (spec = optimizer_spec(kind, &known)) != NULL; kind++) {
        Options options;
        if (strcmp(known, name) != 0) continue;
        int code = options_parse(&options, spec, e);
        if (!code) code = options_finish(&options, e);
        if (!code) code = optimizer_set(o, kind, &options, e);
        options_free(&options);
        return code;
    }
    return err_set(e, ERR_SCRIPT, "there is no optimizer %s", name);
}

int setting_set_text(Settings *s, const Setting *setting, const char *text, Err *e) {
    char *field = (char *)s + setting->at;
    assert(setting->whose != SETTING_OUTER); /* it has a field */
    if (setting->type == SETTING_optimizer) return set_optimizer(&s->optimizer, text, e);
    if (setting->type == SETTING_options) return pytorch_options_set(&s->pytorch, text, e);
    if (setting->type == SETTING_scaler) return grad_scaler_set(&s->scaler, text, e);
    if (setting->type == SETTING_mesh) return mesh_set(&s->mesh, text, e);
    if (setting->type == SETTING_text) {
        snprintf(field, setting->size, "%s", text);
        return OK;
    }
    const int place = word_place(setting->words, text);
    if (place < 0 || !strcmp(text, BYTES)) return unexpected(setting, text, e);
    if (setting->size == sizeof(bool)) *field = (char)place; /* a flag, or a choice of two */
    else memcpy(field, &place, sizeof place);                /* an enum */
    return OK;
}

int setting_set_number(Settings *s, const Setting *setting, double value, Err *e) {
    const bool or_word = setting->type == SETTING_word_or_bytes, bytes = or_word || setting->type == SETTING_size;
    const double least = or_word ? 1 : bytes ? 0 : (double)setting->least;
    const double most = bytes ? 0x1p62 : (double)setting->most;
    char *field = (char *)s + setting->at, found[NUMBER_TEXT];
    assert(setting->whose != SETTING_OUTER); /* it has a field */
    if (setting->type == SETTING_scaler) return grad_scaler_set(&s->scaler, number_text(value, found), e);
    if ((!bytes && setting->type != SETTING_count) || !(value >= least && value <= most) ||
        value != (double)(int64_t)value)
        return unexpected(setting, number_text(value, found), e);
    if (or_word) {
        assert(setting->size == sizeof(int)); /* an enum */
        const int place = word_place(setting->words, BYTES);
        memcpy(field, &place, sizeof place);
        field = (char *)s + setting->bytes_at;
    }
    if (bytes) memcpy(field, &(size_t){(size_t)value}, sizeof(size_t));
    else memcpy(field, &(int){(int)value}, sizeof(int));
    return OK;
}

void setting_set_default(Settings *s, const Setting *setting) {
    const char *end;
    const double number = number_read(setting->initial, &end);
    if (end != setting->initial) setting_set_number(s, setting, number, NULL); /* t_settings holds the table */
    else setting_set_text(s, setting, setting->initial, NULL);
}

Settings settings_default(void) {
    Settings s = {.recompute_least = 4096, .offload_least = 4096, .page_least = PAGE_LEAST};
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        if (settings[i].whose != SETTING_OUTER) setting_set_default(&s, &settings[i]);
    return s;
}
