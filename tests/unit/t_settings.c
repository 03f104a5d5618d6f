/* Settings: the words of precisions, every optimizer's options, defaults and refusals, and which states it keeps. */
#include "base/number.h"
#include "passes/settings.h"

#include "tap.h"

static void test_precisions(void) {
    static const struct {
        Precision p;
        const char *text;
        DType low, weights;
        bool autocast, master, scaling;
    } rows[] = {
        {PREC_FP32, "fp32", DT_F32, DT_F32, false, false, false},
        {PREC_TF32, "tf32", DT_F32, DT_F32, false, false, false},
        {PREC_AMP_FP16, "amp_fp16", DT_F16, DT_F32, true, false, true},
        {PREC_AMP_BF16, "amp_bf16", DT_BF16, DT_F32, true, false, false},
        {PREC_MASTER_FP16, "master_fp16", DT_F16, DT_F16, false, true, true},
        {PREC_MASTER_BF16, "master_bf16", DT_BF16, DT_BF16, false, true, false},
        {PREC_FP16, "fp16", DT_F16, DT_F16, false, false, false},
        {PREC_BF16, "bf16", DT_BF16, DT_BF16, false, false, false}};
    is_int(ARRAY_LEN(rows), PREC_COUNT, "every precision is in this table");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const PrecisionInfo *p = precision_info(rows[i].p);
        is_str(p->text, rows[i].text, "its word");
        ok(p->low == rows[i].low && p->weights == rows[i].weights && p->autocast == rows[i].autocast &&
               p->master == rows[i].master && p->loss_scaling == rows[i].scaling, "%s: what it means", p->text);
    }
}

/* ---- optimizers */

static int kind_of(const char *name) {
    const char *found;
    for (int kind = 0; optimizer_spec(kind, &found); kind++)
        if (!strcmp(found, name)) return kind;
    return -1;
}

/* "lr=0.1 betas=0.5:2 nesterov=true", of that optimizer */
static int set(Optimizer *o, const char *name, const char *text, Err *e) {
    Options options;
    const int kind = kind_of(name);
    char word[32];
    double first, second;
    int n;
    memset(e, 0, sizeof *e);
    if (kind < 0 || options_parse(&options, optimizer_spec(kind, NULL), e)) return ERR_INTERNAL;
    for (; *text; text += n) {
        Option *option;
        if (sscanf(text, " %31[^=]=%n", word, &n) != 1 || !(option = options_find(&options, word, e))) return -1;
        text += n;
        int code = option->type == OPTION_BOOL ? (sscanf(text, "%4s%n", word, &n), option_set_bool(option, true, e))
                   : sscanf(text, "%lf:%lf%n", &first, &second, &n) == 2
                       ? option_set_numbers(option, first, second, e)
                       : (sscanf(text, "%lf%n", &first, &n), option_set_number(option, first, e));
        if (code) return code;
    }
    int code = options_finish(&options, e);
    if (!code) code = optimizer_set(o, kind, &options, e);
    options_free(&options);
    return code;
}

static Optimizer optimizer(const char *name, const char *text) {
    Optimizer o;
    Err e;
    memset(&o, 0, sizeof o);
    ok(set(&o, name, text, &e) == OK, "%s %s: %s", name, text, e.text);
    return o;
}

static void test_defaults(void) {
    const char *name = NULL;
    Err e;
    int n = 0;
    for (; optimizer_spec(n, &name); n++) {
        Optimizer o;
        ok(set(&o, name, "", &e) == OK && (int)o.kind == n, "%s needs no option: %s", name, e.text);
    }
    is_int(n, OPTIM_COUNT, "each kind has a row");
    ok(!optimizer_spec(-1, &name) && !optimizer_spec(OPTIM_COUNT, &name), "there are no others");
    const OptimRule adam = optimizer("Adam", "").rule, w = optimizer("AdamW", "").rule,
                    delta = optimizer("Adadelta", "").rule, factor = optimizer("Adafactor", "").rule;
    ok(adam.lr == 0.001f && adam.beta1 == 0.9f && adam.beta2 == 0.999f && adam.eps == 1e-8f && !adam.decoupled &&
           adam.weight_decay == 0, "Adam's defaults are PyTorch's");
    ok(w.weight_decay == 0.01f && w.decoupled, "AdamW decays weights by themselves");
    ok(delta.alpha == 0.9f && delta.lr == 1, "Adadelta's rho");
    ok(factor.eps == 0 && factor.eps2 == 0.001f && factor.beta2_decay == -0.8f && factor.d == 1, "Adafactor's");
    is_int(optimizer("Adam8bit", "").rule.block_size, 256, "codes share a scale in blocks of 256");
    ok(!optimizer("Adam8bit", "").rule.decoupled && optimizer("AdamW8bit", "").rule.decoupled,
       "of two that differ in the decay alone");
    ok(!optimizer("RAdam", "").rule.decoupled && optimizer("RAdam", "decoupled_weight_decay=true").rule.decoupled,
       "RAdam is asked");
    ok(optimizer("SGD", "momentum=0.9 nesterov=true clip_norm=2").rule.clip_norm == 2, "clip_norm is everybody's");
}

static void test_refused(void) {
    static const struct { const char *name, *text, *message; } cases[] = {
        {"SGD", "lr=-1", "lr must not be negative, found -1"},
        {"SGD", "momentum=-0.5", "momentum must not be negative, found -0.5"},
        {"SGD", "weight_decay=-1", "weight_decay must not be negative, found -1"},
        {"SGD", "clip_norm=-1", "clip_norm must not be negative, found -1"},
        {"SGD", "nesterov=true", "nesterov needs a momentum above 0 and dampening = 0"},
        {"SGD", "momentum=0.9 dampening=0.1 nesterov=true", "nesterov needs a momentum above 0 and dampening = 0"},
        {"Adam", "eps=-1", "eps must not be negative, found -1"},
        {"Adam", "betas=1:0.9", "betas must be in [0, 1), found 1 and 0.9"},
        {"Adam", "betas=0.9:-0.1", "betas must be in [0, 1), found 0.9 and -0.1"},
        {"RMSprop", "alpha=-1", "alpha must not be negative, found -1"},
        {"Adagrad", "lr_decay=-1", "lr_decay must not be negative, found -1"},
        {"Adagrad", "initial_accumulator_value=-1", "initial_accumulator_value must not be negative, found -1"},
        {"Adadelta", "rho=1.5", "rho must not be above 1, found 1.5"},
        {"Adadelta", "rho=-0.5", "rho must not be negative, found -0.5"},
        {"Adafactor", "eps=-1:0.1", "eps must not be negative, found -1"},
        {"Adafactor", "eps=0:-1", "eps must not be negative, found 0 and -1"},
        {"Adafactor", "beta2_decay=0.5", "beta2_decay must not be above 0, found 0.5"},
        {"Adafactor", "d=0.5", "d must be at least 1, found 0.5"},
        {"Adam8bit", "block_size=0", "block_size must be from 1 to "},
        {"AdamW8bit", "block_size=1000000", "block_size must be from 1 to "},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        Optimizer o = {.kind = OPTIM_COUNT, .rule = {.lr = 7}};
        Err e;
        is_int(set(&o, cases[i].name, cases[i].text, &e), ERR_SCRIPT, "refused");
        has_text(e.text, cases[i].message, cases[i].message);
        ok(o.kind == OPTIM_COUNT && o.rule.lr == 7, "%s %s: and nothing was set", cases[i].name, cases[i].text);
    }
    is_int(optimizer("SGD", "dampening=-1").rule.dampening < 0, 1, "PyTorch lets a dampening be negative");
}

/* ---- states */

/* The states' names and shapes: "exp_avg (3, 4)". */
static void is_states(const char *name, const char *text, Shape like, const char *expected) {
    const Optimizer o = optimizer(name, text);
    const OpKind op = optimizer_op(&o, &like);
    char found[256] = "", shape[SHAPE_TEXT];
    size_t used = 0;
    /* between the parameter and its fp32 master */
    for (int slot = 1; slot < op_master(op); slot++) {
        OptimState state;
        if (optimizer_keeps(&o, slot, &like, DT_F32, &state))
            used += (size_t)snprintf(found + used, sizeof found - used, "%s %s %s\n", op_info(op)->out[slot].name,
                                     dtype_name(state.type), shape_text(&state.shape, shape));
    }
    is_str(found, expected, "its states");
}

static void test_states(void) {
    const Shape matrix = shape2(6, 4), row = shape1(4), large = shape2(64, 256);
    is_states("SGD", "", matrix, "");
    is_states("SGD", "momentum=0.9", matrix, "momentum_buffer f32 (6, 4)\n");
    is_states("Adam", "", matrix, "exp_avg f32 (6, 4)\nexp_avg_sq f32 (6, 4)\n");
    is_states("Adam", "amsgrad=true", matrix,
              "exp_avg f32 (6, 4)\nexp_avg_sq f32 (6, 4)\nmax_exp_avg_sq f32 (6, 4)\n");
    is_states("RMSprop", "", matrix, "square_avg f32 (6, 4)\n");
    is_states("RMSprop", "momentum=0.5 centered=true", matrix,
              "square_avg f32 (6, 4)\nmomentum_buffer f32 (6, 4)\ngrad_avg f32 (6, 4)\n");
    is_states("Adafactor", "", matrix, "row_var f32 (6, 1)\ncol_var f32 (1, 4)\n");
    is_states("Adafactor", "", row, "variance f32 (4)\n");
    is_states("Adam8bit", "", large, "exp_avg u8 (64, 256)\nexp_avg_sq u8 (64, 256)\nscale f32 (128)\n");
    is_states("Adam8bit", "amsgrad=true", large,
              "exp_avg u8 (64, 256)\nexp_avg_sq u8 (64, 256)\nmax_exp_avg_sq u8 (64, 256)\nscale f32 (192)\n");
    is_states("Adam8bit", "", matrix, "exp_avg f32 (6, 4)\nexp_avg_sq f32 (6, 4)\n");
    const Optimizer o = optimizer("Adam8bit", "");
    is_int(optimizer_op(&o, NULL), OP_adam, "without a shape: the rule that has no codes");
    is_int(optimizer_op(&o, &large), OP_adam8bit, "large parameters in whole blocks have codes");
    const Shape odd = shape2(64, 255);
    is_int(optimizer_op(&o, &odd), OP_adam, "others have none");
}

static void test_default_settings(void) {
    const Settings s = settings_default();
    ok(s.precision == PREC_FP32 && s.accumulate == 1 && s.checkpoint == CHECKPOINT_NONE &&
           s.offload == OFFLOAD_NONE && s.inplace == INPLACE_MARKED && s.allocator == ALLOC_PLANNED && s.graph &&
           !s.eval && !s.scheduled, "nothing is swept yet");
    ok(s.workspace_limit == 4 << 20 && s.offload_least == 4096, "limits");
    ok(s.scaler.enabled == UNSAID && s.scaler.attr.growth == 2 && s.scaler.attr.backoff == 0.5 &&
           s.scaler.attr.interval == 2000 && s.scaler.init_scale == 65536, "PyTorch's loss scaler");
    const OptimRule adam = optimizer("Adam", "").rule;
    ok(s.optimizer.kind == OPTIM_Adam && !memcmp(&s.optimizer.rule, &adam, sizeof adam), "Adam as it is by default");
}

static void test_table(void) {
    const Setting *setting;
    for (int i = 0; (setting = setting_info(i)) != NULL; i++) {
        Settings s = settings_default();
        Err e = {0};
        const char *end;
        const double number = number_read(setting->initial, &end);
        if (setting->whose == SETTING_OUTER) continue;
        ok(setting_find(setting->name) == setting, "%s is found", setting->name);
        is_int(end != setting->initial && !*end ? setting_set_number(&s, setting, number, &e)
                                       : setting_set_text(&s, setting, setting->initial, &e), OK, "its default is set");
        ok(setting->size > 0 && setting->at + setting->size <= sizeof s, "it has a field");
    }
    Settings s = settings_default();
    Err e;
    is_int(setting_set_number(&s, setting_find("checkpoint"), 5e9, &e), OK, "a number of bytes for a word");
    ok(s.checkpoint == CHECKPOINT_BUDGET && s.budget == 5000000000, "is the budget");
    is_int(setting_set_text(&s, setting_find("checkpoint"), "budget", &e), ERR_SCRIPT, "which has no word");
    is_int(setting_set_text(&s, setting_find("inplace"), "true", &e), OK, "a flag among words");
    is_int(s.inplace, INPLACE_ON, "has its place");
    is_int(setting_set_text(&s, setting_find("mode"), "eval", &e), OK, "a choice of two");
    ok(s.eval, "is a flag");
    ok(!setting_find("batch"), "no program knows the batch");
}

static void test_grad_scaler(void) {
    static const struct { const char *text, *message; } refused[] = {
        {"often", "grad_scaler: expected name=value, found often"},
        {"growth_factor=1", "grad_scaler: growth_factor: expected a number above 1, found 1"},
        {"backoff_factor=1", "grad_scaler: backoff_factor: expected a number above 0 and below 1, found 1"},
        {"growth_interval=0", "grad_scaler: growth_interval: expected a number from 1 to 2147483647, found 0"},
        {"init_scale=-1", "grad_scaler: init_scale: expected a number above 0, of fp32, found -1"},
        {"init_scale=big", "grad_scaler: init_scale: expected a number, true or false, found big"},
        {"inf", "grad_scaler: the fixed scale: expected a number above 0, of fp32, found inf"},
        {"0", "grad_scaler: the fixed scale: expected a number above 0, of fp32, found 0"},
        {"scale=1", "grad_scaler: "},
    };
    GradScaler s;
    Err e = {0};
    Settings all = settings_default();
    ok(!settings_scale_loss(&all), "fp32 has no loss scale");
    all.precision = PREC_AMP_FP16;
    ok(settings_scale_loss(&all), "amp_fp16 has one");
    ok(!grad_scaler_set(&s, "init_scale=8 growth_interval=3 backoff_factor=0.1", &e) && s.enabled == SAID_TRUE &&
           s.init_scale == 8 && s.attr.growth == 2 && s.attr.backoff == 0.1 && s.attr.interval == 3, "options");
    ok(!grad_scaler_set(&s, "1024", &e) && s.enabled == SAID_TRUE && s.init_scale == 1024 && s.attr.growth == 1 &&
           s.attr.backoff == 1, "a fixed scale");
    ok(!grad_scaler_set(&s, "true", &e) && s.enabled == SAID_TRUE && s.init_scale == 65536 && s.attr.growth == 2, "PyTorch's");
    ok(!grad_scaler_set(&s, "false", &e) && s.enabled == SAID_FALSE, "none");
    ok(!grad_scaler_set(&s, "enabled=false", &e) && s.enabled == SAID_FALSE, "none, in PyTorch's words");
    ok(!grad_scaler_set(&s, "", &e) && s.enabled == UNSAID, "nothing is said");
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        is_int(grad_scaler_set(&s, refused[i].text, &e), ERR_SCRIPT, refused[i].text);
        has_text(e.text, refused[i].message, refused[i].message);
    }
}

int main(void) {
    test_grad_scaler();
    test_table();
    test_precisions();
    test_defaults();
    test_refused();
    test_states();
    test_default_settings();
    return tap_done();
}
