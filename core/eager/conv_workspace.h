/* conv_workspace.h: the workspace that a pass of a convolution takes from PyTorch's allocator while it runs. PyTorch asks
 * cuDNN, which answers for cards that are not here, too (base/conv_plan.h). */
#ifndef MT_CONV_WORKSPACE_H
#define MT_CONV_WORKSPACE_H

#include "card.h"
#include "estimate.h"
#include "base/conv_plan.h"

/*   source: where the bytes come from */
#define WORKSPACE_SOURCES(X)                                                             \
    X(TABLE,    "table",    "conv_table.def: what the cuDNN of PyTorch's version answered") \
    X(LIBRARY,  "library",  "the cuDNN of this machine, asked about the card")           \
    X(ESTIMATE, "estimate", "neither knows: the bytes of input, weight and output")

typedef enum WorkspaceSource {
#define X(name, text, what) WORKSPACE_##name,
    WORKSPACE_SOURCES(X)
#undef X
    WORKSPACE_SOURCE_COUNT
} WorkspaceSource;

/* version: of cuDNN, 92600; 0 of an estimate. */
typedef struct Workspace { size_t bytes[ESTIMATES], version; WorkspaceSource source; } Workspace;

/* How many passes have their bytes from where, and from which version of cuDNN. */
typedef struct ConvCalls { int count[WORKSPACE_SOURCE_COUNT]; size_t version[WORKSPACE_SOURCE_COUNT]; } ConvCalls;

/* benchmark: torch.backends.cudnn.benchmark: PyTorch takes the engine that is the fastest, which may be any of them. */
Workspace conv_workspace(const Card *card, const ConvQuery *q, bool benchmark);

#endif
