/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_avx512.c - the vector path with 16 lanes: see cpu_vec512.h and cpu_simd.h. */
#include "kernels/cpu/cpu_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "kernels/cpu/cpu_vec512.h"

#include "kernels/cpu/cpu_simd.h"

const struct cpu_kernels cpu_kernels_avx512 = {
    "avx512", vec512_supported, NULL, simd_tile, states_merge, states_finish,
};

#else

const struct cpu_kernels cpu_kernels_avx512 = {.isa = "avx512"};

#endif
