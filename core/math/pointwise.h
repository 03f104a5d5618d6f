/* pointwise.h: pointwise formulas in fp32, once for every device. Shared with .cu files. The derivative of an
 * activation is a function of what its row says is saved: the input x or the output y. */
#ifndef MT_POINTWISE_H
#define MT_POINTWISE_H

#include <math.h>

#include "exponential.h"
#include "rng.h"

/*    name        PyTorch      saved for the backward pass: the output y if the derivative can be computed from it. Not
 *                             Hardtanh's, whose bounds may not be 16-bit numbers, nor Softsign's, which in 16 bits is 1
 *                             for large x. */
#define ACTS(X)                      \
    X(NONE,      "",         'y')    \
    X(RELU,      "relu",     'y')    \
    X(LEAKY,     "leaky_relu", 'x')  \
    X(SIGMOID,   "sigmoid",  'y')    \
    X(TANH,      "tanh",     'y')    \
    X(GELU,      "gelu",     'x')    \
    X(GELU_TANH, "gelu_tanh", 'x')   \
    X(SILU,      "silu",     'x')    \
    X(ELU,       "elu",      'x')    \
    X(CELU,      "celu",     'x')    \
    X(SOFTPLUS,  "softplus", 'x')    \
    X(HARDSWISH, "hardswish", 'x')  \
    X(RELU6,     "relu6",    'y')    \
    X(HARDTANH,  "hardtanh", 'x')    \
    X(CLAMP,     "clamp",    'x')    \
    X(HARDSIGMOID, "hardsigmoid", 'y') \
    X(MISH,      "mish",     'x')    \
    X(LOGSIGMOID, "logsigmoid", 'y') \
    X(SOFTSIGN,  "softsign", 'x')    \
    X(SELU,      "selu",     'x')    \
    X(ABS,       "abs",      'x')    \
    X(EXP,       "exp",      'y')    \
    X(SCALE,     "scale",    'x')    \
    X(LOG,       "log",      'x')    \
    X(SQRT,      "sqrt",     'y')    \
    X(RSQRT,     "rsqrt",    'y')    \
    X(RECIPROCAL, "reciprocal", 'y') \
    X(POW,       "pow",      'x')    \
    X(SIN,       "sin",      'x')    \
    X(COS,       "cos",      'x')

typedef enum ActFn {
#define X(name, text, saved) ACT_##name,
    ACTS(X)
#undef X
    ACT_COUNT
} ActFn;

/* An activation with its options. slope: LeakyReLU's negative_slope, ELU's and CELU's alpha, Softplus's beta, Hardtanh's min_val,
 * Scale's factor or Pow's exponent; high: Hardtanh's max_val, or what Scale adds; inplace: the layer asked for it */
typedef struct ActAttr { ActFn act; float slope; int32_t inplace; float high; } ActAttr;

/* f without options; f with those of a */
MT_FN ActAttr act_of(ActFn f) {
    const ActAttr a = {f, 0.0f, 0, 0.0f};
    return a;
}
MT_FN ActAttr act_as(ActAttr a, ActFn f) {
    a.act = f;
    return a;
}

/* Is the derivative computed from the output? */
static inline bool act_saves_output(ActFn f) {
    static const char saved[] = {
#define X(name, text, saved) saved,
        ACTS(X)
#undef X
    };
    assert((unsigned)f < ACT_COUNT);
    return saved[f] == 'y';
}

/* Plain activations need at most a comparison and a product, so that a kernel made for them alone stays small. */
static inline bool act_is_plain(ActFn f) { return f <= ACT_LEAKY; }

MT_FN float act_value_plain(ActAttr a, float x) {
    if (a.act == ACT_RELU) return x < 0.0f ? 0.0f : x; /* a NaN goes through */
    return a.act == ACT_LEAKY && x < 0.0f ? a.slope * x : x;
}

MT_FN float act_slope_plain(ActAttr a, float s) {
    return a.act == ACT_NONE || s > 0.0f ? 1.0f : a.act == ACT_RELU ? 0.0f : a.slope;
}

/* PyTorch's, as in Klambauer et al. 2017, "Self-Normalizing Neural Networks" */
#define SELU_SCALE 1.0507009873554805f
#define SELU_ALPHA 1.6732632423543772f

/* Of the normal distribution at x: bell = exp(-a a / 2), which is sqrt(2 pi) times its density, and the share beyond a on one side, where
 * a = |x|, or 12.9 where |x| is larger: farther out the share would be no normal number of fp32.
 *
 * The share is bell R(a), and R, which falls from 1/2 to 0 without a bend, is the quotient of two polynomials whose coefficients are all
 * positive, fitted by least squares that were weighted until the largest relative error was least: 5e-9; in fp32 it is 4e-7.
 * (1 + erf(x / sqrt(2))) / 2, which has the same meaning, loses all places where x is far below 0, and cannot share the exponential with the
 * density that GELU's slope has, too. */
typedef struct Normal { float a, bell, beyond; } Normal;

MT_FN Normal normal_of(float x) {
    const float a = fabsf(x) > 12.9f ? 12.9f : fabsf(x);
    Normal normal;
    normal.a = a;
    normal.bell = exp2_negative(-0.72134752f * a * a);
    float above = 0.00399429817f, below = 0.0100120706f;
    above = above * a + 0.0398084261f;
    above = above * a + 0.180782959f;
    above = above * a + 0.434974819f;
    above = above * a + 0.5f;
    below = below * a + 0.0997925773f;
    below = below * a + 0.462998003f;
    below = below * a + 1.19230139f;
    below = below * a + 1.66783452f;
    below = below * a + 1.0f;
    normal.beyond = above * normal.bell / below;
    return normal;
}

/* GELU by tanh is x sigmoid(u); u and its derivative, of Hendrycks and Gimpel 2016, "Gaussian Error Linear Units" */
MT_FN float gelu_argument(float x) { return 1.59576912160573072f * (x + 0.044715f * x * x * x); }
MT_FN float gelu_argument_slope(float x) { return 1.59576912160573072f * (1.0f + 3.0f * 0.044715f * x * x); }

/* Mish is x above / below, where above / below = tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2), and its derivative has
 * x slope / below^2, too. For x > 0 all are divided by e^2x, so that none overflows (Misra 2019, "Mish"). */
typedef struct Mish { float above, below, slope; } Mish;

MT_FN Mish mish_of(float x) {
    const float e = exp_flushed(-fabsf(x)), square = e * e;
    Mish m;
    m.above = 2.0f * e + (x < 0.0f ? square : 1.0f);
    m.below = 2.0f * (x < 0.0f ? 1.0f : square) + m.above;
    m.slope = 4.0f * (1.0f + e) * (x < 0.0f ? e : square);
    return m;
}

/* y = f(x) */
MT_FN float act_value(ActAttr a, float x) {
    Mish m;
    Normal n;
    switch (a.act) {
    case ACT_SIGMOID: return sigmoid_value(x);
    case ACT_TANH: return tanh_value(x);
    case ACT_GELU: /* x times the share below x */
        n = normal_of(x);
        return (x < 0.0f ? 0.0f : x) - n.a * n.beyond;
    case ACT_GELU_TANH: return x * sigmoid_value(gelu_argument(x));
    case ACT_SILU: return x * sigmoid_value(x);
    case ACT_ELU: return x > 0.0f ? x : a.slope * expm1_negative(x);
    case ACT_CELU: return x > 0.0f ? x : a.slope * expm1f(x / a.slope);
    case ACT_SOFTPLUS: return a.slope * x > 20.0f ? x : (fmaxf(a.slope * x, 0.0f) + softplus_rest(a.slope * x)) / a.slope; /* PyTorch's threshold */
    case ACT_HARDSWISH: return x * (x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : (x + 3.0f) / 6.0f);
    case ACT_RELU6: return x < 0.0f ? 0.0f : x > 6.0f ? 6.0f : x;
    case ACT_CLAMP:
    case ACT_HARDTANH: return x < a.slope ? a.slope : x > a.high ? a.high : x;
    case ACT_HARDSIGMOID: return x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : (x + 3.0f) / 6.0f;
    case ACT_MISH:
        m = mish_of(x);
        return x * (m.above / m.below);
    case ACT_LOGSIGMOID: return (x < 0.0f ? x : 0.0f) - softplus_rest(x);
    case ACT_SOFTSIGN: return x / (1.0f + fabsf(x));
    case ACT_SELU: return SELU_SCALE * (x > 0.0f ? x : SELU_ALPHA * expm1_negative(x));
    case ACT_ABS: return fabsf(x);
    case ACT_EXP: return expf(x);
    case ACT_SCALE: return a.slope * x + a.high;
    case ACT_LOG: return logf(x);
    case ACT_SQRT: return sqrtf(x);
    case ACT_RSQRT: return 1.0f / sqrtf(x);
    case ACT_RECIPROCAL: return 1.0f / x;
    case ACT_POW: return a.slope == 2.0f ? x * x : powf(x, a.slope);
    case ACT_SIN: return sinf(x);
    case ACT_COS: return cosf(x);
    default: return act_value_plain(a, x);
    }
}

/* df/dx from the saved value s (see ACTS) */
MT_FN float act_slope(ActAttr a, float s) {
    Mish m;
    Normal n;
    float t;
    switch (a.act) {
    case ACT_SIGMOID: return s * (1.0f - s);
    case ACT_TANH: return 1.0f - s * s;
    case ACT_GELU:
        n = normal_of(s);
        t = n.beyond - 0.39894228040143268f * n.a * n.bell;
        return s > 0.0f ? 1.0f - t : t;
    case ACT_GELU_TANH:
        t = sigmoid_value(gelu_argument(s));
        return t + s * (t * (1.0f - t)) * gelu_argument_slope(s);
    case ACT_SILU:
        t = sigmoid_value(s);
        return t * (1.0f + s * (1.0f - t));
    case ACT_ELU: return s > 0.0f ? 1.0f : a.slope * exp_flushed(s);
    case ACT_CELU: return s > 0.0f ? 1.0f : expf(s / a.slope);
    case ACT_SOFTPLUS: return a.slope * s > 20.0f ? 1.0f : sigmoid_value(a.slope * s);
    case ACT_HARDSWISH: return s <= -3.0f ? 0.0f : s >= 3.0f ? 1.0f : (2.0f * s + 3.0f) / 6.0f;
    case ACT_RELU6: return s > 0.0f && s < 6.0f ? 1.0f : 0.0f;
    case ACT_CLAMP: return s >= a.slope && s <= a.high ? 1.0f : 0.0f;
    case ACT_HARDTANH: return s > a.slope && s < a.high ? 1.0f : 0.0f;
    case ACT_HARDSIGMOID: return s > 0.0f && s < 1.0f ? 1.0f / 6.0f : 0.0f;
    case ACT_MISH:
        m = mish_of(s);
        return m.above / m.below + s * m.slope / (m.below * m.below);
    case ACT_LOGSIGMOID: return -expm1_negative(s);
    case ACT_SOFTSIGN:
        t = 1.0f + fabsf(s);
        return 1.0f / (t * t);
    case ACT_SELU: return SELU_SCALE * (s > 0.0f ? 1.0f : SELU_ALPHA * exp_flushed(s));
    case ACT_ABS: return (float)((s > 0.0f) - (s < 0.0f));
    case ACT_EXP: return s;
    case ACT_SCALE: return a.slope;
    case ACT_LOG: return 1.0f / s;
    case ACT_SQRT: return 0.5f / s;
    case ACT_RSQRT: return -0.5f * s * s * s;
    case ACT_RECIPROCAL: return -s * s;
    case ACT_POW: return a.slope == 0.0f ? 0.0f : a.slope == 2.0f ? 2.0f * s : a.slope * powf(s, a.slope - 1.0f);
    case ACT_SIN: return cosf(s);
    case ACT_COS: return -sinf(s);
    default: return act_slope_plain(a, s);
    }
}

/* ---- GLU of one element of each half (Dauphin et al. 2017, "Language Modeling with Gated Convolutional Networks") */

MT_FN float glu_value(float a, float b) { return a * sigmoid_value(b); }

/* The gradients of a and b times dy. */
MT_FN void glu_slopes(float a, float b, float dy, float *da, float *db) {
    const float gate = sigmoid_value(b);
    *da = dy * gate;
    *db = dy * a * gate * (1.0f - gate);
}

/* ---- bytes as numbers, as a data set's reader makes them */

/* mean, std: of all channels, where each has none of its own */
typedef struct BytesAttr { float divisor, mean, std; } BytesAttr;

MT_FN float byte_value(float divisor, float mean, float std, uint8_t x) { return ((float)x / divisor - mean) / std; }

/* ---- losses that are sums over elements */

/*    name         PyTorch */
#define LOSSES(X)               \
    X(MSE,         "mse")       \
    X(L1,          "l1")        \
    X(SMOOTH_L1,   "smooth_l1") \
    X(HUBER,       "huber")     \
    X(IDENTITY,    "identity")  \
    X(BCE,         "bce")       \
    X(BCE_LOGITS,  "bce_logits")

typedef enum LossFn {
#define X(name, text) LOSS_##name,
    LOSSES(X)
#undef X
} LossFn;

/* PyTorch's lower bound of a log-probability in BCELoss; a NaN stays */
MT_FN float log_clamped(float log) { return log < -100.0f ? -100.0f : log; }

/* The term of element x with target t, which LOSS_IDENTITY ignores; beta: SmoothL1Loss's beta, HuberLoss's delta or
 * BCEWithLogitsLoss's pos_weight */
MT_FN float loss_term(LossFn f, float x, float t, float beta) {
    float d = x - t, far = fabsf(d), rest;
    switch (f) {
    case LOSS_L1: return far;
    case LOSS_SMOOTH_L1: return far < beta ? 0.5f * d * d / beta : far - 0.5f * beta;
    case LOSS_HUBER: return far <= beta ? 0.5f * d * d : beta * (far - 0.5f * beta);
    case LOSS_BCE: return (t - 1.0f) * log_clamped(log1pf(-x)) - t * log_clamped(logf(x));
    case LOSS_BCE_LOGITS:
        rest = softplus_rest(x);
        return beta * t * (fmaxf(-x, 0.0f) + rest) + (1.0f - t) * (fmaxf(x, 0.0f) + rest);
    case LOSS_IDENTITY: return x;
    default: return d * d;
    }
}

/* The derivative of loss_term with respect to x; at a kink, and for a NaN, it is PyTorch's */
MT_FN float loss_slope(LossFn f, float x, float t, float beta) {
    float d = x - t, far = fabsf(d), sign = (float)((d > 0.0f) - (d < 0.0f)), p;
    switch (f) {
    case LOSS_L1: return sign;
    case LOSS_SMOOTH_L1: return far >= beta ? sign : d / beta;
    case LOSS_HUBER: return far >= beta ? beta * sign : d;
    case LOSS_BCE: return d / fmaxf((1.0f - x) * x, 1e-12f);
    case LOSS_BCE_LOGITS:
        p = sigmoid_value(x);
        return (1.0f - t) * p - beta * t * (1.0f - p);
    case LOSS_IDENTITY: return 1.0f;
    default: return 2.0f * d;
    }
}

/* Dropout's factor for one random number: 1 / (1 - p) with probability 1 - p, else 0 */
MT_FN float dropout_keep(float p, uint32_t drawn) { return rng_uniform(drawn) < p ? 0.0f : 1.0f / (1.0f - p); }

/* Dropout's factor for element i; four consecutive elements share a block of Philox. id: names the op, so that layers
 * differ; call: counts micro-batches */
MT_FN float dropout_factor(float p, uint64_t seed, uint32_t id, uint32_t call, uint64_t i) {
    return dropout_keep(p, philox(seed, RNG_DROPOUT, id, call, i >> 2).x[i & 3]);
}

/* The index of the first random number of a row of `columns` probabilities. Each row begins with a new block of
 * Philox. */
MT_FN uint64_t dropout_row(int64_t row, int64_t columns) { return (uint64_t)row * (uint64_t)((columns + 3) / 4 * 4); }

/* ---- rotary positions (Su et al. 2021, "RoFormer") */

enum { ROTARY_PAIRS = 256 }; /* the most pairs of a head */

/* Angles for more steps than the weights were trained for, as transformers' modeling_rope_utils has them: all divided by
 * `factor` (linear); or those that turn at most `low` times within `original` steps, and, between, up to those that turn
 * `high` times, a part of it (llama3). kind: ROTARY_PLAIN: as they are */
typedef enum RotaryKind { ROTARY_PLAIN, ROTARY_LINEAR, ROTARY_LLAMA3 } RotaryKind;
typedef struct RotaryScaling { RotaryKind kind; float factor, low, high, original; } RotaryScaling;

/* dim: features of a head, even; interleaved: pair i is features 2 i and 2 i + 1, else i and dim / 2 + i; back: rotates
 * by the negative angle, as the gradient does */
typedef struct RotaryAttr {
    int32_t dim, interleaved, back;
    float base;
    RotaryScaling scaling;
} RotaryAttr;

/* The angle between two steps of pair i, in fp32 as in PyTorch. The CPU computes it for the GPU, too, since a
 * difference in the last bit would be multiplied by the number of steps. */
static inline float rotary_frequency(const RotaryAttr *r, int64_t i) {
    const RotaryScaling *s = &r->scaling;
    assert(r->dim > 0 && i >= 0 && 2 * i < r->dim);
    const float plain = 1.0f / powf(r->base, (float)(2 * i) / (float)r->dim);
    if (s->kind == ROTARY_PLAIN) return plain;
    if (s->kind == ROTARY_LINEAR) return plain / s->factor;
    const float turns = s->original * plain / 6.2831853071795865f; /* within the original steps */
    if (turns > s->high) return plain;
    if (turns < s->low) return plain / s->factor;
    const float part = (turns - s->low) / (s->high - s->low);
    return (1.0f - part) * plain / s->factor + part * plain;
}
/* Rotates (*a, *b) by the angle with this cosine and sine. */
MT_FN void rotary_turn(float cosine, float sine, float *a, float *b) {
    const float x = *a, y = *b;
    *a = x * cosine - y * sine;
    *b = y * cosine + x * sine;
}

/* ---- upsampling along one axis */

/* scale: input elements per output element, of rows and of columns */
typedef struct UpsampleAttr { float scale[2]; int32_t bilinear, align_corners; } UpsampleAttr;
/* An output element is the sum of share[k] times input element at[k]. */
typedef struct Sample { int64_t at[2]; float share[2]; } Sample;
/* The output elements [lo, hi), which may have a share of an input element. */
typedef struct Reach { int64_t lo, hi; } Reach;

/* Output element `o` of `out`, from `in` input elements along axis 0 (rows) or 1 (columns); positions in fp32, as in
 * PyTorch. */
MT_FN Sample upsample_sample(const UpsampleAttr *u, int axis, int64_t o, int64_t in, int64_t out) {
    float place = u->scale[axis] * (float)o;
    Sample s;
    if (u->bilinear && !u->align_corners) place = fmaxf(u->scale[axis] * ((float)o + 0.5f) - 0.5f, 0.0f);
    if (in == out) place = (float)o;
    s.at[0] = min_i64((int64_t)place, in - 1);
    s.at[1] = u->bilinear ? min_i64(s.at[0] + 1, in - 1) : s.at[0];
    s.share[1] = u->bilinear ? fminf(fmaxf(place - (float)s.at[0], 0.0f), 1.0f) : 0.0f;
    s.share[0] = 1.0f - s.share[1];
    return s;
}

/* Of input element `i` of `in`. Somewhat larger than needed, so that rounding loses no output element. */
MT_FN Reach upsample_reach(const UpsampleAttr *u, int axis, int64_t i, int64_t in, int64_t out) {
    float scale = in == out ? 1.0f : u->scale[axis], middle = (float)i;
    Reach r;
    if (u->bilinear && !u->align_corners) middle += 0.5f;
    r.lo = i == 0 || scale == 0.0f ? 0 : max_i64((int64_t)((middle - 1.0f) / scale) - 2, 0);
    r.hi = i == in - 1 || scale == 0.0f ? out : min_i64((int64_t)((middle + 1.0f) / scale) + 3, out);
    return r;
}

#endif
