/* attention_f16.cu: attention's kernels on tensor cores, f16. */
#include "attention_kernels.h"

const AttentionKernels attention_f16 = ATTENTION_KERNELS(Cores<DT_F16>);
