/* card.h: GPUs that are not here: what an op of PyTorch takes inside itself depends on them. */
#ifndef MT_CARD_H
#define MT_CARD_H

#include "base/conv_plan.h"

/* Cards for which cuDNN gives the same answers are one column of conv_table.def, named by the first of them: the compute
 * capability decides, and for 9.0 the clocks. */
#define CARD_PLANS(X) X(T4) X(A100) X(RTX3090) X(RTX4090) X(RTX5090) X(H100) X(H200) X(B200)
typedef enum CardPlan {
#define X(name) PLAN_##name,
    CARD_PLANS(X)
#undef X
    CARD_PLAN_COUNT
} CardPlan;

typedef struct Card {
    const char *name, *title;         /* "a100-80gb", "NVIDIA A100 80 GB" */
    size_t memory;                    /* bytes that a process can get: less than its data sheet has */
    const char *log;                  /* the version of PyTorch that printed them */
    int64_t multiprocessors, threads; /* and of each */
    int capability;                   /* compute capability: 90 is 9.0 */
    int64_t clock, memory_clock;      /* kHz, as cudaDeviceProp had them; cuDNN's answers for 9.0 depend on them */
    CardPlan plan;                    /* the column of conv_table.def */
    int64_t cublas_workspace;         /* bytes, of each thread that computes a product, in the newest version */
    size_t context;                   /* bytes of a process before its first tensor; 0: unknown */
    const char *source;               /* of the context's bytes, or "unknown" */
    double fp32, tf32, fp16, bf16;    /* FLOP/s at most; 0: it has no such unit, and computes in fp32 */
    double bandwidth;                 /* bytes of its memory per second at most */
} Card;

/* What a product is computed with. UNIT_3XTF32: three products in TF32 for one of fp32's precision. */
typedef enum Unit { UNIT_FP32, UNIT_TF32, UNIT_3XTF32, UNIT_FP16, UNIT_BF16 } Unit;
/* FLOP/s that the card does at most, by its data sheet. */
double card_flops(const Card *c, Unit u);

/* What a process took beside its allocator where the context is unknown: public messages of PyTorch ("this process has
 * ... memory in use", less what is allocated and reserved) give 130 MiB on a T4, 350 to 700 MiB on RTX 4090, RTX 5090, A100,
 * H200 and B200, and 1,429 MiB were measured on an A100 with 40 GB. */
enum { CONTEXT_LEAST = 128 << 20, CONTEXT_MOST = 1536 << 20 };

/* What PyTorch's versions do differently: versions.def. */
typedef struct PyTorchVersion {
    const char *name;          /* "2.15" */
#define DIFFERENCE(name, what) bool name;
#include "versions.def"
#undef DIFFERENCE
} PyTorchVersion;

/* The version of that name, "": the newest; NULL: it is not known. */
const PyTorchVersion *version_find(const char *name);
/* The i-th, NULL past the end. */
const PyTorchVersion *version_info(int i);
/* Bytes of cuBLAS's workspace. */
int64_t card_workspace(const Card *c, const PyTorchVersion *v);

/* The card as cuDNN is asked about it. All bytes of *out are set: it is compared as memory. */
void card_describe(const Card *c, PlanCard *out);

/* The card of that name; NULL: there is none. */
const Card *card_find(const char *name);
/* The i-th, NULL past the end. */
const Card *card_info(int i);

#endif
