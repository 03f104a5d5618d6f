/* apart.h: a network whose ops apply activations themselves trains as the same network whose ops do not, since
 * something between keeps them apart: losses and all that a run keeps are equal bit for bit, in every precision. */
#ifndef TEST_APART_H
#define TEST_APART_H

#include "trained.h"

/* fused: ops of `one` that apply an activation */
typedef struct ApartNet { const char *what, *one, *apart; int fused; } ApartNet;

static void check_apart(Device *d, const ApartNet *net, const Settings *s, CountedFn *is_fused) {
    Trained one = train(d, net->one, s, is_fused), apart = train(d, net->apart, s, is_fused);
    const bool same = !one.code && !apart.code && !memcmp(one.loss, apart.loss, sizeof one.loss) && one.count == apart.count &&
                      one.count > 1000 && !memcmp(one.values, apart.values, one.count * sizeof *one.values);
    if (!ok(same && one.counted == net->fused && !apart.counted && one.peak <= apart.peak && one.loss[0] != one.loss[TRAINED_STEPS - 1],
            "%s: %s, %s, accumulate %d", d->table->kind, net->what, precision_info(s->precision)->text, s->accumulate))
        printf("# losses %.9g and %.9g of %zu and %zu numbers; %d and %d fused, %zu and %zu bytes; %s%s\n",
               (double)one.loss[TRAINED_STEPS - 1], (double)apart.loss[TRAINED_STEPS - 1], one.count, apart.count, one.counted, apart.counted,
               one.peak, apart.peak, one.err.text, apart.err.text);
    free(one.values);
    free(apart.values);
}

static void check_all_apart(Device *d, const ApartNet *nets, size_t n, CountedFn *is_fused) {
    for (size_t k = 0; k < n; k++)
        for (int precision = 0; precision < PREC_COUNT; precision++) {
            Settings s = settings_default();
            s.precision = (Precision)precision;
            s.accumulate = 1 + precision % 2;
            s.inplace = (Inplace)(precision % 3);
            s.optimizer.kind = OPTIM_SGD;
            s.optimizer.rule = (OptimRule){.lr = 0.05f, .momentum = 0.9f};
            check_apart(d, &nets[k], &s, is_fused);
        }
}

#endif
