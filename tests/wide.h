/* wide.h: makes of the kernels for AVX2 those for AVX-512, each of whose registers the compiler makes of two: `make wide-check` compiles
 * with `-include tests/wide.h`. So the code that only processors with AVX-512 run is tested on others, at their speed. oneDNN's kernels and
 * the compiler's instructions stay AVX2's. */
#ifndef TESTS_WIDE_H
#define TESTS_WIDE_H

#include <oneapi/dnnl/dnnl.h>
#include <x86intrin.h> /* before __AVX512F__: it defines what needs AVX-512's instructions */

#define __AVX512F__ 1
#define dnnl_cpu_isa_avx512_core dnnl_cpu_isa_avx2
#define __builtin_cpu_supports(set) true
#define cpu_kernels_v4 cpu_kernels_wide

#endif
