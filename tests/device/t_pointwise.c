/* t_pointwise.c: the formulas that all devices share (pointwise.h, optim.h, dtype.h, rng.h) against independent ones in
 * float64. */
#include "base/base.h"
#include "program/quant8.h"
#include "base/dtype.h"
#include "math/optim.h"
#include "math/pointwise.h"
#include "tap.h"

/* ---- activations: the slope is the derivative of the value */

static void test_slopes(void) {
    static const struct { const char *name; char saved; } acts[] = {
#define X(name, text, saved) {#name, saved},
        ACTS(X)
#undef X
    };
    for (int f = 0; f < ACT_COUNT; f++) {
        const ActAttr of = {.act = (ActFn)f, .slope = 0.125f, .high = 2};
        const bool steep = (f >= ACT_LOG && f <= ACT_RECIPROCAL) || f == ACT_POW; /* near 0, and some are NaN below */
        double worst = 0;
        for (double x = steep ? 0.53125 : -4.03125; x < 4; x += 0.0625) { /* never at the kink */
            const double h = 1.0 / 128;
            double at[5]; /* x - 2h to x + 2h */
            for (int k = 0; k < 5; k++) at[k] = act_value(of, (float)(x + (k - 2) * h));
            double central = (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * h); /* error of order h^4 */
            float saved = acts[f].saved == 'x' ? (float)x : (float)at[2];
            double slope = act_slope(of, saved);
            double off = fabs(central - slope) / fmax(1, fabs(slope));
            if (!(off <= worst)) worst = off; /* a NaN, too */
        }
        if (!ok(worst < 2e-4, "%s: slope from %c is the derivative", acts[f].name, acts[f].saved))
            printf("# off by %g\n", worst);
    }
    const ActAttr leaky = {.act = ACT_LEAKY, .slope = 0.1f};
    is_near(act_value(act_of(ACT_GELU), 1), 0.8413447460685429, 1e-6, 0, "gelu(1) is the normal distribution at 1");
    is_near(act_value(act_of(ACT_GELU_TANH), 1), 0.8411919906082768, 1e-6, 0, "gelu_tanh(1)");
    is_near(act_value(act_of(ACT_SIGMOID), -3), 0.04742587317756678, 1e-6, 0, "sigmoid(-3)");
    ok(act_value(act_of(ACT_SIGMOID), -200) == 0 && act_value(act_of(ACT_SIGMOID), 200) == 1,
       "sigmoid saturates without NaN");
    ok(isnan(act_value(act_of(ACT_RELU), NAN)) && isnan(act_value(leaky, NAN)),
       "NaN goes through relu and leaky_relu");
    ok(act_slope(act_of(ACT_RELU), 0) == 0 && act_slope(leaky, 0) == 0.1f, "the slope at 0 is PyTorch's");
}

static void near_at(float x, float found, double expected, const char *what) {
    char text[64];
    snprintf(text, sizeof text, "%s at %g", what, (double)x);
    is_near(found, expected, 2e-6, 1e-36, text); /* below lie fp32's subnormal numbers */
}

/* Values and slopes far out and near 0, where a formula that is right on paper overflows or cancels: against float64
 * ones that do not. */
static void test_extremes(void) {
    static const float at[] = {-3e4f, -200, -90, -30, -20.5f, -12, -1e-3f, -1e-6f, 0, 1e-6f, 1e-3f, 12, 19.5f, 20.5f,
                               45, 90, 200, 3e4f};
    for (size_t i = 0; i < ARRAY_LEN(at); i++) {
        float x = at[i], y = act_value(act_of(ACT_LOGSIGMOID), x);
        double d = (double)x, sigmoid = 1 / (1 + exp(-d)), soft = d > 40 ? d : log1p(exp(d)), cosine = cosh(soft);
        double slope = tanh(soft) + (soft > 300 ? 0 : d * sigmoid / (cosine * cosine)), share = 1 / (1 + fabs(d));
        near_at(x, act_value(act_of(ACT_MISH), x), d * tanh(soft), "mish");
        near_at(x, act_slope(act_of(ACT_MISH), x), slope, "mish's slope");
        near_at(x, y, d < -40 ? d : -log1p(exp(-d)), "logsigmoid");
        near_at(x, act_slope(act_of(ACT_LOGSIGMOID), y), 1 / (1 + exp(d)), "logsigmoid's slope");
        near_at(x, act_value(act_of(ACT_SOFTSIGN), x), d * share, "softsign");
        near_at(x, act_slope(act_of(ACT_SOFTSIGN), x), share * share, "softsign's slope");
        near_at(x, act_value(act_of(ACT_SELU), x), 1.05070098735548 * (d > 0 ? d : 1.67326324235438 * expm1(d)),
                "selu");
    }
    static const ActFn all[] = {ACT_RELU6, ACT_HARDTANH, ACT_CLAMP, ACT_HARDSIGMOID, ACT_MISH, ACT_LOGSIGMOID, ACT_SOFTSIGN,
                                ACT_SELU, ACT_ABS, ACT_EXP, ACT_SCALE};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        ok(isnan(act_value((ActAttr){.act = all[i], .slope = -1, .high = 1}, NAN)), "a NaN goes through activation %d",
           (int)all[i]);
    const ActAttr hardtanh = {.act = ACT_HARDTANH, .slope = -1, .high = 1};
    ok(act_slope(act_of(ACT_ABS), 0) == 0 && act_slope(act_of(ACT_ABS), -0.0f) == 0,
       "the slope of |x| at 0 is PyTorch's");
    ok(act_slope(act_of(ACT_RELU6), 0) == 0 && act_slope(act_of(ACT_RELU6), 6) == 0 &&
           act_slope(hardtanh, -1) == 0 && act_slope(hardtanh, 1) == 0 &&
           act_slope(act_of(ACT_HARDSIGMOID), 1) == 0,
       "the slope is 0 at both bounds, as PyTorch's");
    const ActAttr clamp = {.act = ACT_CLAMP, .slope = -1, .high = 1};
    ok(act_slope(clamp, -1) == 1 && act_slope(clamp, 1) == 1 && act_slope(clamp, 1.5f) == 0 && act_value(clamp, -3) == -1,
       "a clamp's slope is 1 at both bounds, as PyTorch's");
}

/* ---- losses of elements: the slope is the derivative of the value, and what PyTorch 2.6 gives at the edges */

static void test_losses(void) {
    static const struct { const char *name; float beta; } losses[] = {{"mse", 0}, {"l1", 0}, {"smooth_l1", 0.7f},
        {"huber", 0.7f}, {"bce", 0}, {"bce_logits", 2.5f}};
    for (int f = 0; f < (int)ARRAY_LEN(losses); f++) {
        double worst = 0;
        for (double x = 0.03125; x < 1; x += 0.0625) {
            const double h = 1.0 / 1024;
            float t = f >= LOSS_BCE ? 0.3f : -0.109375f, beta = losses[f].beta; /* never at the kink */
            double up = loss_term((LossFn)f, (float)(x + h), t, beta);
            double down = loss_term((LossFn)f, (float)(x - h), t, beta);
            double slope = loss_slope((LossFn)f, (float)x, t, beta);
            worst = fmax(worst, fabs((up - down) / (2 * h) - slope) / fmax(1, fabs(slope)));
        }
        if (!ok(worst < 1e-3, "%s: its slope is the derivative", losses[f].name)) printf("# off by %g\n", worst);
    }
    ok(loss_slope(LOSS_L1, 2, 2, 0) == 0 && loss_slope(LOSS_L1, NAN, 2, 0) == 0,
       "l1: the slope at 0, and of a NaN, is 0");
    ok(loss_term(LOSS_SMOOTH_L1, 3, 1, 0) == 2 && loss_slope(LOSS_SMOOTH_L1, 1, 3, 0) == -1 &&
       loss_slope(LOSS_SMOOTH_L1, 1, 1, 0) == 0, "smooth_l1 with beta 0 is l1");
    ok(loss_term(LOSS_BCE, 0, 1, 0) == 100 && loss_term(LOSS_BCE, 1, 0, 0) == 100 && loss_term(LOSS_BCE, 1, 1, 0) == 0,
       "bce: logarithms are at least -100");
    is_near(loss_slope(LOSS_BCE, 1, 0, 0), 1e12, 1e-6, 0, "bce: the divisor of its slope is at least 1e-12");
    ok(isnan(loss_term(LOSS_BCE, 1.5f, 1, 0)) && isnan(loss_term(LOSS_BCE, -0.5f, 0, 0)) &&
       isnan(loss_term(LOSS_BCE, NAN, 0, 0)), "bce of what is no probability is a NaN");
    ok(loss_term(LOSS_BCE_LOGITS, 300, 1, 3) == 0 && loss_term(LOSS_BCE_LOGITS, -300, 1, 3) == 900 &&
       loss_term(LOSS_BCE_LOGITS, 300, 0, 3) == 300, "bce_logits of large logits");
}

/* ---- optimizers: ten steps of one weight */

enum { STEPS = 10 };

static double gradient_at(int t) { return sin(1.7 * t) + 0.3; }

/* The pseudocode of torch.optim.SGD's documentation, in its own notation. */
static double sgd_reference(double theta, double gamma, double lambda, double mu, double tau, int nesterov) {
    double b = 0;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t);
        if (lambda != 0) g = g + lambda * theta;
        if (mu != 0) {
            if (t > 1) b = mu * b + (1 - tau) * g;
            else b = g;
            if (nesterov) g = g + mu * b;
            else g = b;
        }
        theta = theta - gamma * g;
    }
    return theta;
}

/* The pseudocode of torch.optim.Adam and AdamW. */
static double adam_reference(double theta, const OptimRule *o) {
    double m = 0, v = 0, v_max = 0, beta1 = o->beta1, beta2 = o->beta2;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t);
        if (o->decoupled) theta = theta - o->lr * o->weight_decay * theta;
        else g = g + o->weight_decay * theta;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        v_max = o->amsgrad ? fmax(v_max, v) : v;
        theta = theta - o->lr * (m / (1 - pow(beta1, t))) / (sqrt(v_max / (1 - pow(beta2, t))) + o->eps);
    }
    return theta;
}

/* The pseudocode of torch.optim.RMSprop. */
static double rmsprop_reference(double theta, const OptimRule *o) {
    double v = 0, b = 0, g_ave = 0;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t) + o->weight_decay * theta, v_tilde;
        v_tilde = v = o->alpha * v + (1 - (double)o->alpha) * g * g;
        if (o->centered) {
            g_ave = o->alpha * g_ave + (1 - (double)o->alpha) * g;
            v_tilde = v_tilde - g_ave * g_ave;
        }
        if (o->momentum > 0) {
            b = o->momentum * b + g / (sqrt(v_tilde) + o->eps);
            theta = theta - o->lr * b;
        } else {
            theta = theta - o->lr * g / (sqrt(v_tilde) + o->eps);
        }
    }
    return theta;
}

/* The pseudocode of torch.optim.Adagrad. */
static double adagrad_reference(double theta, const OptimRule *o) {
    double state_sum = o->initial_accumulator_value;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t), gamma_tilde = o->lr / (1 + (t - 1) * (double)o->lr_decay);
        if (o->weight_decay != 0) g = g + o->weight_decay * theta;
        state_sum = state_sum + g * g;
        theta = theta - gamma_tilde * g / (sqrt(state_sum) + o->eps);
    }
    return theta;
}

/* The pseudocode of torch.optim.RAdam. */
static double radam_reference(double theta, const OptimRule *o) {
    const double most = 2 / (1 - (double)o->beta2) - 1;
    double m = 0, v = 0;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t), seen = 1 - pow(o->beta2, t), rho = most - 2 * t * pow(o->beta2, t) / seen;
        if (o->decoupled) theta -= o->lr * o->weight_decay * theta;
        else g += o->weight_decay * theta;
        m = o->beta1 * m + (1 - (double)o->beta1) * g;
        v = o->beta2 * v + (1 - (double)o->beta2) * g * g;
        double length = rho > 5 ? sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)) : 0;
        theta -= o->lr * m / (1 - pow(o->beta1, t)) * (rho > 5 ? length * sqrt(seen) / (sqrt(v) + o->eps) : 1);
    }
    return theta;
}

/* The pseudocode of torch.optim.NAdam. */
static double nadam_reference(double theta, const OptimRule *o) {
    double m = 0, v = 0, product = 1;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t), mu = o->beta1 * (1 - 0.5 * pow(0.96, t * (double)o->momentum_decay));
        double next = o->beta1 * (1 - 0.5 * pow(0.96, (t + 1) * (double)o->momentum_decay));
        if (o->decoupled) theta -= o->lr * o->weight_decay * theta;
        else g += o->weight_decay * theta;
        product *= mu;
        m = o->beta1 * m + (1 - (double)o->beta1) * g;
        v = o->beta2 * v + (1 - (double)o->beta2) * g * g;
        double m_hat = next * m / (1 - product * next) + (1 - mu) * g / (1 - product);
        theta -= o->lr * m_hat / (sqrt(v / (1 - pow(o->beta2, t))) + o->eps);
    }
    return theta;
}

/* The pseudocode of torch.optim.Adamax, and of Adadelta. */
static double adamax_reference(double theta, const OptimRule *o) {
    double m = 0, u = 0;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t) + o->weight_decay * theta;
        m = o->beta1 * m + (1 - (double)o->beta1) * g;
        u = fmax(o->beta2 * u, fabs(g) + o->eps);
        theta = theta - o->lr * m / ((1 - pow(o->beta1, t)) * u);
    }
    return theta;
}

/* Chen et al. 2023, algorithm 2 */
static double lion_reference(double theta, const OptimRule *o) {
    double m = 0;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t), c = o->beta1 * m + (1 - (double)o->beta1) * g;
        theta = theta - o->lr * ((c > 0) - (c < 0) + o->weight_decay * theta);
        m = o->beta2 * m + (1 - (double)o->beta2) * g;
    }
    return theta;
}

static double adadelta_reference(double theta, const OptimRule *o) {
    double v = 0, u = 0, rho = o->alpha;
    for (int t = 1; t <= STEPS; t++) {
        double g = gradient_at(t) + o->weight_decay * theta, x;
        v = v * rho + g * g * (1 - rho);
        x = sqrt(u + o->eps) / sqrt(v + o->eps) * g;
        u = u * rho + x * x * (1 - rho);
        theta = theta - o->lr * x;
    }
    return theta;
}

/* Ten steps from 0.7 by a rule whose states start with `first`. */
static float run_rule(OptimFn *value, const OptimRule *o, float first) {
    OptimNumber x = {0.7f, {first, first, first}};
    for (int t = 1; t <= STEPS; t++) {
        StepState state = {1, 0, 0, t};
        OptimStep step = optim_step(o, &state, NULL, NULL);
        x = value(&step, x, (float)gradient_at(t));
    }
    return x.w;
}

static void test_sgd(void) {
    static const struct { const char *name; OptimRule rule; } cases[] = {
        {"plain", {.lr = 0.1f}},
        {"weight decay", {.lr = 0.1f, .weight_decay = 0.05f}},
        {"momentum", {.lr = 0.1f, .momentum = 0.9f}},
        {"momentum with dampening, none in the first step", {.lr = 0.1f, .momentum = 0.9f, .dampening = 0.4f}},
        {"nesterov", {.lr = 0.1f, .momentum = 0.9f, .nesterov = 1}},
        {"nesterov with weight decay", {.lr = 0.1f, .weight_decay = 0.05f, .momentum = 0.9f, .nesterov = 1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const OptimRule *o = &cases[i].rule;
        is_near(run_rule(sgd_value, o, NAN), /* the first step must not read the buffer */
                sgd_reference(0.7, o->lr, o->weight_decay, o->momentum, o->dampening, o->nesterov), 2e-6, 2e-6,
                cases[i].name);
    }
}

static void test_adam(void) {
    static const struct { const char *name; OptimRule rule; } cases[] = {
        {"adam", {.beta2 = 0.999f, .eps = 1e-8f}},
        {"adam with L2", {.beta2 = 0.999f, .weight_decay = 0.1f, .eps = 1e-8f}},
        {"adamw", {.beta2 = 0.999f, .weight_decay = 0.1f, .eps = 1e-8f, .decoupled = 1}},
        {"adam with a large eps", {.beta2 = 0.999f, .eps = 0.5f}},
        {"amsgrad, of squares that fall", {.beta2 = 0.5f, .eps = 1e-8f, .amsgrad = 1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        OptimRule o = cases[i].rule;
        o.lr = 0.01f;
        o.beta1 = 0.9f;
        is_near(run_rule(adam_value, &o, 0), adam_reference(0.7, &o), 2e-6, 2e-6, cases[i].name);
    }
}

static void test_rmsprop(void) {
    static const struct { const char *name; OptimRule rule; } cases[] = {
        {"rmsprop", {.eps = 1e-8f}},
        {"rmsprop with weight decay", {.weight_decay = 0.1f, .eps = 1e-8f}},
        {"rmsprop with momentum", {.momentum = 0.9f, .eps = 1e-8f}},
        {"rmsprop, centered", {.eps = 1e-3f, .centered = 1}},
        {"rmsprop, centered, with momentum", {.momentum = 0.5f, .eps = 1e-3f, .centered = 1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        OptimRule o = cases[i].rule;
        o.lr = 0.01f;
        o.alpha = 0.9f;
        is_near(run_rule(rmsprop_value, &o, 0), rmsprop_reference(0.7, &o), 2e-6, 2e-6, cases[i].name);
    }
}

static void test_adagrad(void) {
    static const struct { const char *name; OptimRule rule; } cases[] = {
        {"adagrad", {.eps = 1e-10f}},
        {"adagrad whose rate decays", {.eps = 1e-10f, .lr_decay = 0.3f}},
        {"adagrad with weight decay", {.eps = 1e-10f, .weight_decay = 0.1f}},
        {"adagrad from another sum", {.eps = 0.1f, .initial_accumulator_value = 0.5f}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        OptimRule o = cases[i].rule;
        o.lr = 0.1f;
        is_near(run_rule(adagrad_value, &o, o.initial_accumulator_value), adagrad_reference(0.7, &o), 2e-6, 2e-6,
                cases[i].name);
    }
}

static void test_others(void) {
    static const struct {
        const char *name; OptimFn *value; double (*reference)(double theta, const OptimRule *o); OptimRule rule;
    } cases[] = {
        {"adamax", adamax_value, adamax_reference, {.lr = 0.02f, .beta1 = 0.9f, .beta2 = 0.8f, .eps = 1e-8f}},
        {"adamax with weight decay", adamax_value, adamax_reference,
         {.lr = 0.02f, .beta1 = 0.5f, .beta2 = 0.999f, .eps = 0.1f, .weight_decay = 0.1f}},
        {"lion", lion_value, lion_reference, {.lr = 0.02f, .beta1 = 0.9f, .beta2 = 0.99f}},
        {"lion with weight decay", lion_value, lion_reference, {.lr = 0.02f, .beta1 = 0.3f, .beta2 = 0.6f, .weight_decay = 0.1f}},
        {"radam", radam_value, radam_reference, {.lr = 0.02f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-3f}},
        {"radam that is never rectified", radam_value, radam_reference,
         {.lr = 0.02f, .beta1 = 0.9f, .beta2 = 0.5f, .eps = 1e-3f, .weight_decay = 0.1f}},
        {"radam whose decay is decoupled", radam_value, radam_reference,
         {.lr = 0.02f, .beta1 = 0.5f, .beta2 = 0.9f, .eps = 1e-3f, .weight_decay = 0.1f, .decoupled = 1}},
        {"nadam", nadam_value, nadam_reference,
         {.lr = 0.02f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-3f, .momentum_decay = 0.004f, .nesterov = 1}},
        {"nadam whose momentum grows fast", nadam_value, nadam_reference,
         {.lr = 0.02f, .beta1 = 0.99f, .beta2 = 0.9f, .eps = 1e-3f, .momentum_decay = 5, .weight_decay = 0.1f,
          .nesterov = 1}},
        {"nadam whose decay is decoupled", nadam_value, nadam_reference,
         {.lr = 0.02f, .beta1 = 0.5f, .beta2 = 0.9f, .eps = 1e-3f, .weight_decay = 0.1f, .decoupled = 1, .nesterov = 1}},
        {"adadelta", adadelta_value, adadelta_reference, {.lr = 1, .alpha = 0.9f, .eps = 1e-6f}},
        {"adadelta with weight decay", adadelta_value, adadelta_reference,
         {.lr = 0.5f, .alpha = 0.5f, .eps = 1e-2f, .weight_decay = 0.1f}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        is_near(run_rule(cases[i].value, &cases[i].rule, 0), cases[i].reference(0.7, &cases[i].rule), 2e-6, 2e-6,
                cases[i].name);
}

/* ---- states of 8 bits */

/* How far it is from x to the nearest value */
static double least_distance(const double *value, double x) {
    double least = INFINITY;
    for (int c = 0; c < 256; c++) least = fmin(least, fabs(value[c] - x));
    return least;
}

/* Values in order, each its own code's, and whatever is between them goes to the nearest. */
static void test_codes(CodeMap map, const char *name) {
    double value[256], worst = 0;
    int ordered = 0, own = 0, falls = 0, last = 0;
    for (int c = 0; c < 256; c++) {
        value[c] = code_value(map, c);
        ordered += c > 0 && value[c] > value[c - 1];
        own += code_of(map, (float)value[c]) == c;
    }
    for (uint32_t bits = 0; bits <= 0x3f800000u; bits += 9973) {
        const float x = f32_from_bits(bits);
        const int code = code_of(map, x), negative = code_of(map, -x);
        worst = fmax(worst, fabs(value[code] - x) - least_distance(value, x) - 1e-7 * x);
        if (map == CODES_SIGNED) worst = fmax(worst, fabs(value[negative] + x) - least_distance(value, -x) - 1e-7 * x);
        falls += code < last;
        last = code;
    }
    ok(ordered == 255 && own == 256, "%s: 256 values that rise, each with its own code", name);
    ok(falls == 0 && worst <= 0, "%s: the code of the nearest value, which never falls", name);
    ok(code_value(map, code_of(map, 1)) == 1 && code_value(map, code_of(map, 0)) == 0, "%s: 0 and 1 are exact", name);
    is_near(value[255 - 1], 1 - 0.45 / (map == CODES_SIGNED ? 64 : 128), 1e-6, 0, "the last of them but 1");
    is_near(value[map == CODES_SIGNED ? 128 : 1], map == CODES_SIGNED ? 0.55e-6 : 0.325e-6, 1e-6, 0, "the first one");
}

static void test_scales(void) {
    ok(quant8_scale(quant8_magnitude(-3)) == 3 && quant8_scale(0) == 1e-12f, "a scale is the largest magnitude, not 0");
    ok(isnan(quant8_scale(quant8_magnitude(NAN))) && quant8_magnitude(NAN) > quant8_magnitude(INFINITY),
       "a NaN is larger than all");
    const Quant8Order image = {3, 4}, rows = {1, 1};
    int64_t sum = 0;
    for (int64_t i = 0; i < 24; i++) sum += quant8_at(image, i) * (quant8_at(image, i) + 1);
    is_int(quant8_at(rows, 17), 17, "rows lie in order");
    is_int(quant8_at(image, 12 + 2 * 4 + 3), 12 + 3 * 3 + 2, "of images a pixel's channels lie together");
    is_int(sum, 23 * 24 * 25 / 3, "and each element lies in a place of its own");
}

/* ---- 16-bit floats */

/* A pattern's value from the definition of its fields; `bits` of fraction, `bias` of exponent. */
static double field_value(uint32_t h, int bits, int bias) {
    int exponent = (int)(h >> bits & ((1u << (15 - bits)) - 1)), top = (1 << (15 - bits)) - 1;
    double fraction = (h & ((1u << bits) - 1)) / (double)(1u << bits), sign = h >> 15 ? -1 : 1;
    if (exponent == top) return fraction != 0 ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias));
}

typedef struct Half { const char *name; uint16_t (*from)(float); float (*to)(uint16_t); int bits, bias; } Half;

/* The nearest pattern: between neighbours h and h + 1 the middle goes to the even one. */
static void test_half(const Half *t) {
    int wrong_value = 0, wrong_back = 0, wrong_middle = 0, wrong_side = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        double value = field_value(h, t->bits, t->bias);
        float x = t->to((uint16_t)h);
        uint16_t back = t->from(x);
        if (isnan(value)) {
            wrong_back += !isnan(x) || !isnan(t->to(back));
            continue;
        }
        wrong_value += (double)x != value || !signbit(x) != !(h >> 15);
        wrong_back += back != h;
        double next = field_value(h + 1, t->bits, t->bias);
        if (h % 32768 == 32767 || isnan(next) || isinf(value)) continue;
        /* where the next one would be */
        if (isinf(next)) next = copysign(ldexp(1, (1 << (15 - t->bits)) - 1 - t->bias), value);
        float middle = (float)((value + next) / 2);
        wrong_middle += t->from(middle) != (h & 1 ? h + 1 : h);
        wrong_side += t->from(nextafterf(middle, 0)) != h || t->from(nextafterf(middle, middle * 2)) != h + 1;
    }
    ok(!wrong_value, "%s: every pattern has the value of its fields", t->name);
    ok(!wrong_back, "%s: every pattern survives the round trip, NaN as NaN", t->name);
    ok(!wrong_middle, "%s: a middle goes to the even neighbour, past the largest to infinity", t->name);
    ok(!wrong_side, "%s: next to a middle, the nearer neighbour", t->name);
}

/* ---- Philox4x32-10: the known answers published with Random123 */

static void test_philox(void) {
    static const struct { uint32_t counter[4], key[2], answer[4]; } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        Philox c;
        memcpy(c.x, known[i].counter, sizeof c.x);
        c = philox_block(c, known[i].key[0], known[i].key[1]);
        ok(!memcmp(c.x, known[i].answer, sizeof c.x), "philox known answer %zu", i);
    }
    ok(rng_uniform(0) == 0 && rng_uniform(0xffffffff) < 1, "uniform numbers are in [0, 1)");
}

static void test_dropout(void) {
    enum { N = 100000 };
    int kept = 0, same = 0, other = 0;
    for (uint64_t i = 0; i < N; i++) {
        float a = dropout_factor(0.3f, 42, 1, 5, i);
        kept += a != 0;
        same += a == dropout_factor(0.3f, 42, 1, 5, i);
        other += a == dropout_factor(0.3f, 42, 1, 6, i);
        if (a != 0 && fabsf(a - 1 / 0.7f) > 1e-6f) kept = -N;
    }
    is_near(kept / (double)N, 0.7, 0, 0.01, "dropout keeps 1 - p and scales by 1 / (1 - p)");
    is_int(same, N, "the same call draws the same factors");
    is_near(other / (double)N, 0.7 * 0.7 + 0.3 * 0.3, 0, 0.01, "another call draws independent ones");
    int zeros = 0;
    for (uint64_t i = 0; i < N; i++)
        zeros += dropout_factor(1, 42, 1, 5, i) == 0 && dropout_factor(0, 42, 1, 5, i) == 1;
    is_int(zeros, N, "p = 1 drops everything, p = 0 nothing");
}

/* The normal distribution is right to a few places of itself, and to the places that x x has in fp32, far out, too. */
static void test_normal(void) {
    const ActAttr gelu = act_of(ACT_GELU);
    double bell_far = 0, share_far = 0;
    for (int i = -1290; i <= 1290; i++) {
        const double x = (double)((float)i / 100), places = 4e-7 + 1e-7 * x * x;
        const Normal found = normal_of((float)x);
        bell_far = fmax(bell_far, fabs(found.bell / exp(-x * x / 2) - 1) / places);
        share_far = fmax(share_far, fabs(found.beyond / (erfc(fabs(x) / sqrt(2)) / 2) - 1) / places);
    }
    ok(bell_far < 1 && share_far < 1, "the normal distribution is right: %g and %g of what is allowed", bell_far, share_far);
    ok(act_value(gelu, 1e38f) == 1e38f && act_value(gelu, INFINITY) == INFINITY && fabsf(act_value(gelu, -1e38f)) < 1e-36f &&
           act_slope(gelu, 1e38f) == 1 && fabsf(act_slope(gelu, -1e38f)) < 1e-35f, "GELU and its slope far out");
    ok(isnan(act_value(gelu, NAN)) && isnan(act_slope(gelu, NAN)), "GELU of NaN is NaN");
}

/* What is made of one exponential, against the C library in double precision: `worst` relative errors of numbers of every size. Where
 * a function falls below EXP_LEAST it may be 0. */
static void test_exponentials(void) {
    const ActAttr softplus = {ACT_SOFTPLUS, 1.0f, 0, 0.0f};
    enum { EXP, EXPM1, SIGMOID, TANH, SILU, MISH, SOFTPLUS, FUNCTIONS };
    static const char *const names[] = {"exp", "expm1", "sigmoid", "tanh", "silu", "mish", "softplus"};
    double worst[FUNCTIONS] = {0};
    for (int i = -20000; i <= 20000; i++) {
        const float x = i % 2 ? (float)i / 250 : copysignf(powf(10.0f, fabsf((float)i) / 1000 - 18), (float)i); /* up to 80 and 100 */
        const double e = exp(-fabs((double)x)), n = x < 0 ? e * (e + 2) : 1 + 2 * e;
        const double found[] = {exp_flushed(-fabsf(x)), expm1_negative(-fabsf(x)), sigmoid_value(x), tanh_value(x),
                                act_value(act_of(ACT_SILU), x), act_value(act_of(ACT_MISH), x), act_value(softplus, x)};
        const double right[] = {e, expm1(-fabs((double)x)), 1 / (1 + exp(-(double)x)), tanh((double)x),
                                (double)x / (1 + exp(-(double)x)), (double)x * n / (n + 2 * (x < 0 ? 1 : e * e)), log1p(exp((double)x))};
        for (int k = 0; k < FUNCTIONS && fabsf(x) < -EXP_LEAST; k++)
            if (right[k] != 0) worst[k] = fmax(worst[k], fabs(found[k] / right[k] - 1));
    }
    for (int k = 0; k < FUNCTIONS; k++) ok(worst[k] < 5e-7, "%s is within %g of itself", names[k], worst[k]);
    ok(exp_flushed(-INFINITY) == 0 && expm1_negative(-INFINITY) == -1 && tanh_value(INFINITY) == 1 && sigmoid_value(-INFINITY) == 0,
       "exponentials far below 0 vanish");
    const ActAttr tanh_gelu = act_of(ACT_GELU_TANH), silu = act_of(ACT_SILU);
    ok(act_slope(tanh_gelu, 2e13f) == 1 && act_slope(tanh_gelu, -2e13f) == 0 && act_slope(silu, 1e30f) == 1 && act_slope(silu, -1e30f) == 0,
       "slopes far out are 1 and 0");
    ok(isnan(exp_flushed(NAN)) && isnan(expm1_negative(NAN)) && isnan(sigmoid_value(NAN)) && isnan(tanh_value(NAN)) &&
           isnan(act_value(act_of(ACT_MISH), NAN)) && isnan(act_value(softplus, NAN)),
       "NaN stays NaN");
}

int main(void) {
    test_normal();
    test_exponentials();
    static const Half halves[] = {{"bf16", bf16_from_f32, bf16_to_f32, 7, 127},
                                  {"f16", f16_from_f32, f16_to_f32, 10, 15}};
    test_slopes();
    test_extremes();
    test_losses();
    test_sgd();
    test_adam();
    test_rmsprop();
    test_adagrad();
    test_others();
    test_codes(CODES_SIGNED, "numbers of either sign");
    test_codes(CODES_POSITIVE, "numbers that are not negative");
    test_scales();
    for (size_t i = 0; i < ARRAY_LEN(halves); i++) test_half(&halves[i]);
    test_philox();
    test_dropout();
    return tap_done();
}
