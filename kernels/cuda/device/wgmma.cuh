/* wgmma.cuh - products by a warpgroup (four warps in a row): wgmma.mma_async m64n64k16, f32 accumulation,
 * of operands that lie in shared memory as TMA brings them: 64 rows of an atom of 128 bytes
 * (64 elements), whose 16-byte vectors are exchanged by the row's number.
 *
 * D [64 x 64]: with g = lane / 4, c = lane % 4 and the warp's rows at 16 times its number in the group,
 * d[4 j + r] is row g + r / 2 * 8, column 8 j + 2 c + r % 2. A [64 x 16] in registers is as in
 * mma.cuh, a warp 16 rows.
 *
 * The products are asynchronous: what they read and write is touched between wgmma_wait() and
 * wgmma_begin() only. */
#pragma once

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/tile.h"

#if WGMMA
static constexpr int WGMMA_VALUES = 32; /* of D, of a thread */
static constexpr uint32_t WGMMA_ATOM_BYTES = SWIZZLE_BYTES * TILE_TOKENS;

/* What a product needs to know of an atom in shared memory: its address in units of 16 bytes; the
 * distance of groups of 8 rows, 1 024 bytes; that vectors are exchanged within 128 bytes. */
static inline uint64_t wgmma_operand(uint32_t address)
{
    return (uint64_t)(1u << 30 | 8 * SWIZZLE_BYTES / 16) << 32 | 1u << 16 | address >> 4;
}
/* 16 elements of its rows further on (as the products' inner dimension, where it is along rows) */
static constexpr uint32_t WGMMA_STEP_ALONG = 32 / 16;
/* 16 rows further on */
static constexpr uint32_t WGMMA_STEP_ROWS = 16 * SWIZZLE_BYTES / 16;

static inline void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static inline void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All but the last `PENDING` groups of products are done. */
template <int PENDING> void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving what touches d across. */
static inline void wgmma_hold(float (&d)[WGMMA_VALUES])
{
#pragma unroll
    for (int i = 0; i < WGMMA_VALUES; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define WGMMA_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_ALL(d)                                                                                         \
    WGMMA_4(d, 0), WGMMA_4(d, 4), WGMMA_4(d, 8), WGMMA_4(d, 12), WGMMA_4(d, 16), WGMMA_4(d, 20),             \
        WGMMA_4(d, 24), WGMMA_4(d, 28)
#define WGMMA_NAMES                                                                                          \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "  \
    "%22, %23, %24, "                                                                                        \
    "%25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_OF(format) "wgmma.mma_async.sync.aligned.m64n64k16.f32." format "." format " " WGMMA_NAMES ", "

#define WGMMA_PRODUCT(format, transposed)                                                                    \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n" WGMMA_OF(                                  \
                     format) "{%32, %33, %34, %35}, %36, add, 1, 1, " transposed ";\n}"                      \
                 : WGMMA_ALL(d)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)add))

/* d = a b^T, or, if `add`, d += a b^T: a of 64 x 16 in registers, 64 rows of b, 16 elements along them. */
static inline void wgmma_along(float (&d)[WGMMA_VALUES], const uint32_t (&a)[4], uint64_t b, bool add)
{
    if constexpr (Q_DTYPE == DTYPE_BF16)
        WGMMA_PRODUCT("bf16", "0");
    else
        WGMMA_PRODUCT("f16", "0");
}

/* d = a b, or, if `add`, d += a b: a of 64 x 16 in registers, 16 rows of b. */
static inline void wgmma_rows(float (&d)[WGMMA_VALUES], const uint32_t (&a)[4], uint64_t b, bool add)
{
    if constexpr (Q_DTYPE == DTYPE_BF16)
        WGMMA_PRODUCT("bf16", "1");
    else
        WGMMA_PRODUCT("f16", "1");
}
#endif
