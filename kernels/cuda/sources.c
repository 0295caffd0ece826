/* SPDX-License-Identifier: Apache-2.0 */
/* sources.c - see sources.h. The assembler reads the files in; they are named from the root, where the
 * build runs. */
#include "kernels/cuda/sources.h"

#include <stddef.h>

/* XX(identifier, path) */
#define SOURCE_FILES(XX)                                                                                     \
    XX(pool, "kernels/cuda/device/pool.cu")                                                                  \
    XX(measure, "kernels/cuda/device/measure.cu")                                                            \
    XX(paged, "kernels/cuda/device/paged.cu")                                                                \
    XX(merge, "kernels/cuda/device/merge.cu")                                                                \
    XX(tiles, "kernels/cuda/device/tiles.cu")                                                                \
    XX(attend_mma, "kernels/cuda/device/attend_mma.cu")                                                      \
    XX(attend_wide, "kernels/cuda/device/attend_wide.cu")                                                    \
    XX(attend_simple, "kernels/cuda/device/attend_simple.cu")                                                \
    XX(cluster_combine, "kernels/cuda/device/cluster_combine.cuh")                                           \
    XX(work_tile, "kernels/cuda/device/work_tile.cuh")                                                       \
    XX(epilogue, "kernels/cuda/device/epilogue.cuh")                                                         \
    XX(folds, "kernels/cuda/device/folds.cuh")                                                               \
    XX(online_softmax, "kernels/cuda/device/online_softmax.cuh")                                             \
    XX(kv_pipeline, "kernels/cuda/device/kv_pipeline.cuh")                                                   \
    XX(tma_producer, "kernels/cuda/device/tma_producer.cuh")                                                 \
    XX(async_producer, "kernels/cuda/device/async_producer.cuh")                                             \
    XX(producer, "kernels/cuda/device/producer.cuh")                                                         \
    XX(launch, "kernels/cuda/device/launch.cuh")                                                             \
    XX(mma, "kernels/cuda/device/mma.cuh")                                                                   \
    XX(ptx, "kernels/cuda/device/ptx.cuh")                                                                   \
    XX(wgmma, "kernels/cuda/device/wgmma.cuh")                                                               \
    XX(numeric, "kernels/cuda/device/numeric.cuh")                                                           \
    XX(states, "kernels/cuda/device/states.cuh")                                                             \
    XX(step, "kernels/cuda/device/step.h")                                                                   \
    XX(tile, "kernels/cuda/device/tile.h")                                                                   \
    XX(coefficients, "kernels/coefficients.h")                                                               \
    XX(plan, "kernels/plan.h")                                                                               \
    XX(values, "kernels/values.h")                                                                           \
    XX(block_copy, "config/block_copy.h")                                                                    \
    XX(geometry, "config/geometry.h")                                                                        \
    XX(status, "config/status.h")

#define XX(identifier, path)                                                                                 \
    __asm__(".pushsection .rodata\n"                                                                         \
            "cuda_source_" #identifier ":\n"                                                                 \
            ".incbin \"" path "\"\n"                                                                         \
            ".byte 0\n"                                                                                      \
            ".popsection\n");                                                                                \
    extern const char cuda_source_##identifier[];
SOURCE_FILES(XX)
#undef XX

/* What the C headers above include from the system. */
static const char integers[] = "#pragma once\n"
                               "typedef unsigned char uint8_t;\n"
                               "typedef unsigned short uint16_t;\n"
                               "typedef int int32_t;\n"
                               "typedef unsigned int uint32_t;\n"
                               "typedef unsigned long long uint64_t;\n"
                               "#define UINT32_MAX 0xffffffffu\n"
                               "#define UINT32_C(x) x##u\n"
                               "#define UINT64_C(x) x##ull\n";

const char *const cuda_source_names[] = {
#define XX(identifier, path) path,
    SOURCE_FILES(XX)
#undef XX
        "stdint.h",
    "stddef.h", "stdbool.h", NULL};

const char *const cuda_source_texts[] = {
#define XX(identifier, path) cuda_source_##identifier,
    SOURCE_FILES(XX)
#undef XX
        integers,
    "", "", NULL};
