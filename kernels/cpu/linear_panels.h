/* linear_panels.h: linear layers in fp32 as products of oneDNN, panel by panel, each by one thread (fp32_workspace.h): it parts
 * long sums among the threads that it has, so that their number would change bits.
 *
 *   workspace = [partial sums of db | slopes as bits, where dx lies in the storage of s] */
#ifndef MT_LINEAR_PANELS_H
#define MT_LINEAR_PANELS_H

#include "program/kernel.h"

/* Is the op one of these? Without AVX-512 gemm.h is faster. */
bool linear_panels_fits(const KArgs *args);
size_t linear_panels_workspace(const KArgs *args);
KernelRun linear_panels_run;
KernelOverwrites linear_panels_overwrites;

#endif
