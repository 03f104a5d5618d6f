/* attention_plain.cu: attention's kernels in plain arithmetic. */
#include "attention_kernels.h"

const AttentionKernels attention_plain = ATTENTION_KERNELS(Plain);
