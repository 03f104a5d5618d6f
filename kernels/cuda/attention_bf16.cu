/* attention_bf16.cu: attention's kernels on tensor cores, bf16. */
#include "attention_kernels.h"

const AttentionKernels attention_bf16 = ATTENTION_KERNELS(Cores<DT_BF16>);
