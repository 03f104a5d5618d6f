/* nccl_told.h: what NCCL's stand-in tells a test: the calls of this process since it was last asked, "{ Reduce 512 x fp32 root 0;
 * } ". */
#ifndef NCCL_TOLD_H
#define NCCL_TOLD_H

const char *emulate_nccl_told(void);

#endif
