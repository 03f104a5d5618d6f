/* The options of PyTorch's step, "name=value name=value": a table of the setting "pytorch". */
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "settings.h"

static int set_ternary(const char *name, Ternary *to, const char *value, Err *e) {
    const bool yes = !strcmp(value, "true");
    *to = yes ? SAID_TRUE : SAID_FALSE;
    if (yes || !strcmp(value, "false")) return OK;
    return err_set(e, ERR_SCRIPT, "pytorch: %s: expected true or false, found %s", name, value);
}

/* "output,loss", one of them, or "none" */
static int set_keep(PyTorchOptions *o, const char *value, Err *e) {
    static const struct { const char *value; bool output, loss; } known[] = {
        {"output,loss", true, true}, {"loss,output", true, true}, {"output", true, false},
        {"loss", false, true}, {"none", false, false}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(known[i].value, value) != 0) continue;
        o->drops_output = !known[i].output;
        o->drops_loss = !known[i].loss;
        return OK;
    }
    return err_set(e, ERR_SCRIPT, "pytorch: keep: expected output, loss, both with a comma, or none, found %s", value);
}

const char *sdp_backend_text(SdpBackend b) {
    static const char *const texts[] = {
#define X(name, text, backend) text,
        SDP_BACKENDS(X)
#undef X
    };
    return texts[b];
}

static int set_dtype(const char *name, MpType *to, const char *value, Err *e) {
    const bool low = !strcmp(value, "bfloat16");
    *to = low ? MP_BFLOAT16 : MP_FLOAT32;
    if (low || !strcmp(value, "float32")) return OK;
    return err_set(e, ERR_SCRIPT, "pytorch: %s: expected bfloat16 or float32, found %s", name, value);
}

static int set_attention(SdpBackend *to, const char *value, Err *e) {
    for (int b = 0; b < SDP_COUNT; b++) {
        if (strcmp(value, sdp_backend_text((SdpBackend)b)) != 0) continue;
        *to = (SdpBackend)b;
        return OK;
    }
#define X(name, text, backend) " " text
    return err_set(e, ERR_SCRIPT, "pytorch: attention: expected one of" SDP_BACKENDS(X) ", found %s", value);
#undef X
}

/* "20480,20480": bytes of each tensor */
static int set_resident(PyTorchOptions *o, const char *value, Err *e) {
    const double most = (double)(INT64_C(1) << 50);
    bool good = true, more = true;
    const char *at = value, *end = value;
    for (o->n_resident = 0; good && more && o->n_resident < RESIDENTS; at = end + 1) {
        const double bytes = number_read(at, &end);
        more = *end == ',';
        good = end != at && (more || !*end) && bytes >= 1 && bytes <= most && bytes == floor(bytes);
        if (good) o->resident[o->n_resident++] = (int64_t)bytes;
    }
    if (good && !more) return OK;
    return err_set(e, ERR_SCRIPT, "pytorch: resident: expected the bytes of at most %d tensors, with commas between "
                   "them, found %s", RESIDENTS, value);
}

static int set_one(void *to, const char *name, const char *value, Err *e) {
    PyTorchOptions *o = to;
    const struct { const char *name; Ternary *to; } ternary[] = {
        {"foreach", &o->foreach}, {"fused", &o->fused}, {"set_to_none", &o->set_to_none},
        {"use_reentrant", &o->use_reentrant}, {"channels_last", &o->channels_last},
        {"cudnn_benchmark", &o->cudnn_benchmark}, {"step_function", &o->step_function},
        {"gradient_as_bucket_view", &o->gradient_as_bucket_view}, {"broadcast_buffers", &o->broadcast_buffers}};
    for (size_t i = 0; i < ARRAY_LEN(ternary); i++)
        if (!strcmp(ternary[i].name, name)) return set_ternary(name, ternary[i].to, value, e);
    if (!strcmp(name, "keep")) return set_keep(o, value, e);
    if (!strcmp(name, "resident")) return set_resident(o, value, e);
    if (!strcmp(name, "alloc_conf")) return caching_settings_parse(value, &o->caching, e);
    if (!strcmp(name, "attention")) return set_attention(&o->attention, value, e);
    if (!strcmp(name, "param_dtype")) return set_dtype(name, &o->param_dtype, value, e);
    if (!strcmp(name, "reduce_dtype")) return set_dtype(name, &o->reduce_dtype, value, e);
    if (!strcmp(name, "version")) {
        if (strlen(value) >= sizeof o->version)
            return err_set(e, ERR_SCRIPT, "pytorch: version: expected one such as 2.15, found %s", value);
        strcpy(o->version, value);
        return OK;
    }
    return err_set(e, ERR_SCRIPT, "pytorch: there is no option %s: expected alloc_conf, attention, broadcast_buffers, "
                   "channels_last, cudnn_benchmark, foreach, fused, gradient_as_bucket_view, keep, param_dtype, "
                   "reduce_dtype, resident, set_to_none, step_function, use_reentrant or version", name);
}

int pytorch_options_set(PyTorchOptions *o, const char *text, Err *e) {
    memset(o, 0, sizeof *o);
    int code = setting_pairs("pytorch: ", text, set_one, o, e);
    if (code) return code;
    if (o->foreach == SAID_TRUE && o->fused == SAID_TRUE)
        return err_set(e, ERR_SCRIPT, "pytorch: foreach and fused cannot both be true");
    return OK;
}
