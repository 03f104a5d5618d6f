/* layers.c: the table of all layers, as network/layers.def has them. */
#include "network/layer.h"

const LayerKind layer_kinds[] = {
#define LAYER(name, role, functions, which, spec)                                                                      \
    {#name, spec, role, which, layer_##functions##_shape, layer_##functions##_forward},
#include "network/layers.def"
#undef LAYER
};

const int layer_kind_count = (int)ARRAY_LEN(layer_kinds);
