/* cards.h: the GPUs of core/eager/cards.def, described for cuDNN. */
#ifndef TEST_CARDS_H
#define TEST_CARDS_H

#include "described.h"
#include "eager/card.h"
#include "plan_card.h"

/* The version of cuDNN whose answers the tests have */
enum { KNOWN = 91900 };

/* NULL: cuDNN cannot be asked about it, which was told. */
static CudaDevice *open_card(const char *name) {
    const Card *c = card_find(name);
    CudaDevice *device = c ? mem_new(sizeof *device) : NULL;
    Node properties;
    PlanCard p;
    Err e = {.text = "no such card"};
    if (!ok(device != NULL, "%s is a card", name)) return NULL;
    card_describe(c, &p);
    device->ordinal = NOT_HERE;
    int code = plan_card_describe(&p, &device->model, &e);
    if (!code) code = cudnn_device_properties(device, &properties, &e);
    if (ok(!code, "%s is described: %s", c->title, code ? e.text : device->model.name)) return device;
    cuda_release(device);
    return NULL;
}

/* Does this cuDNN answer as the tests have it? If not, that is told of `what`. */
static bool is_known(const char *what) {
    char why[80];
    if (cudnnGetVersion() == KNOWN || getenv("PRINT_PLANS")) return true;
    snprintf(why, sizeof why, "cuDNN is %zu, the figures are those of %d", cudnnGetVersion(), KNOWN);
    skip(what, why);
    return false;
}

#endif
