/* The setting "grad_scaler": torch.amp.GradScaler with its options, a fixed loss scale, or none. */
#include <float.h>
#include <string.h>

#include "base/number.h"
#include "settings.h"

/* In the order of GradScaler's arguments, with its defaults (torch/amp/grad_scaler.py) */
#define SPEC "init_scale:float=65536 growth_factor:float=2 backoff_factor:float=0.5 growth_interval:int=2000 enabled:bool=true"

static int set_one(void *to, const char *name, const char *value, Err *e) {
    Option *option = options_find(to, name, e);
    const bool yes = !strcmp(value, "true");
    const char *end;
    if (!option) return ERR_SCRIPT;
    if (yes || !strcmp(value, "false")) return option_set_bool(option, yes, e);
    const double number = number_read(value, &end);
    if (end == value || *end) return err_set(e, ERR_SCRIPT, "%s: expected a number, true or false, found %s", name, value);
    return option_set_number(option, number, e);
}

static int out_of_range(const char *name, const char *expected, double found, Err *e) {
    char text[NUMBER_TEXT];
    return err_set(e, ERR_SCRIPT, "%s: expected a number %s, found %s", name, expected, number_text(found, text));
}

static int set_scale(GradScaler *s, double scale, const char *name, Err *e) {
    if (!(scale >= (double)FLT_MIN && scale <= (double)FLT_MAX)) return out_of_range(name, "above 0, of fp32", scale, e);
    s->init_scale = (float)scale;
    return OK;
}

static int from_options(GradScaler *s, const Options *o, Err *e) {
    const double growth = options_float(o, "growth_factor"), backoff = options_float(o, "backoff_factor");
    const int64_t interval = options_int(o, "growth_interval");
    if (!(growth > 1)) return out_of_range("growth_factor", "above 1", growth, e);
    if (!(backoff > 0 && backoff < 1)) return out_of_range("backoff_factor", "above 0 and below 1", backoff, e);
    if (interval < 1 || interval > INT32_MAX)
        return out_of_range("growth_interval", "from 1 to 2147483647", (double)interval, e);
    s->attr = (ScalerAttr){growth, backoff, interval};
    s->enabled = options_bool(o, "enabled") ? SAID_TRUE : SAID_FALSE;
    return set_scale(s, options_float(o, "init_scale"), "init_scale", e);
}

static int set_options(GradScaler *s, const char *text, Err *e) {
    Options o;
    int code = options_parse(&o, SPEC, e);
    if (!code) code = setting_pairs("", text, set_one, &o, e);
    if (!code) code = options_finish(&o, e);
    if (!code) code = from_options(s, &o, e);
    options_free(&o);
    return code;
}

int grad_scaler_set(GradScaler *s, const char *text, Err *e) {
    const char *end;
    const double fixed = number_read(text, &end);
    const bool given = *text != '\0', flag = !strcmp(text, "true") || !strcmp(text, "false");
    GradScaler made;
    int code = set_options(&made, flag || (given && !*end) ? "" : text, e);
    if (!code && given && !*end) {
        code = set_scale(&made, fixed, "the fixed scale", e);
        made.attr.growth = made.attr.backoff = 1;
    }
    if (code) return err_prefix(e, "grad_scaler");
    if (!given) made.enabled = UNSAID;
    if (!strcmp(text, "false")) made.enabled = SAID_FALSE;
    *s = made;
    return OK;
}
