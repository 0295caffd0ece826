/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma.cuh - products by a warpgroup (four warps in a row): wgmma.mma_async m64nNk16, f32 accumulation,
 * of operands that lie in shared memory as TMA brings them: 64 rows of an atom of 128 bytes
 * (64 elements), whose 16-byte vectors are exchanged by the row's number.
 *
 * D [64 x N], N 64 or 128: with g = lane / 4, c = lane % 4 and the warp's rows at 16 times its number in the
 * group, d[4 j + r] is row g + r / 2 * 8, column 8 j + 2 c + r % 2. A [64 x 16] in registers is as in
 * mma.cuh, a warp 16 rows.
 *
 * The products are asynchronous: what they read and write is touched between wgmma_wait() and
 * wgmma_begin() only. */
#pragma once

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/tile.h"

template <int N> struct wgmma_accumulators {
    float r[N / 2]; /* of D, of a thread */
};
static constexpr uint32_t WGMMA_ATOM_BYTES = SWIZZLE_BYTES * TILE_TOKENS;

/* Addresses of a thread block's own shared memory are below; in a cluster its rank lies above. */
static constexpr uint32_t SHARED_WINDOW = 1u << 18;

/* What a product needs to know of atoms in shared memory, in units of 16 bytes: the first one's address; the
 * distance of atoms, of groups of 8 rows; that vectors are exchanged within 128 bytes. */
static inline uint64_t wgmma_operand(uint32_t address)
{
    return (uint64_t)(1u << 30 | 8 * SWIZZLE_BYTES / 16) << 32 | WGMMA_ATOM_BYTES / 16 << 16 |
           address % SHARED_WINDOW >> 4;
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
template <int N> void wgmma_hold(wgmma_accumulators<N> &d)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        asm volatile("" : "+f"(d.r[i])::"memory");
}

#define WGMMA_4(i) "+f"(d.r[i]), "+f"(d.r[i + 1]), "+f"(d.r[i + 2]), "+f"(d.r[i + 3])
#define WGMMA_32(i)                                                                                          \
    WGMMA_4(i), WGMMA_4(i + 4), WGMMA_4(i + 8), WGMMA_4(i + 12), WGMMA_4(i + 16), WGMMA_4(i + 20),           \
        WGMMA_4(i + 24), WGMMA_4(i + 28)
#define WGMMA_D_64                                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "   \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D_128                                                                                          \
    WGMMA_D_64                                                                                               \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "           \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
/* The lists and the _at are numbers of the asm's operands; d's are the last arguments. */
#define WGMMA_PRODUCT(format, n, d_list, a_list, b_at, add_at, rows_at, ...)                                 \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_at ", 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." format "." format " {" d_list              \
                 "}, {" a_list "}, " b_at ", add, 1, 1, " rows_at ";\n}"                                     \
                 : __VA_ARGS__                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)add), "n"(B_IS_ROWS))
#define WGMMA_PRODUCT_64(format)                                                                             \
    WGMMA_PRODUCT(format, "64", WGMMA_D_64, "%32, %33, %34, %35", "%36", "%37", "%38", WGMMA_32(0))
#define WGMMA_PRODUCT_128(format)                                                                            \
    WGMMA_PRODUCT(format, "128", WGMMA_D_128, "%64, %65, %66, %67", "%68", "%69", "%70", WGMMA_32(0),        \
                  WGMMA_32(32))

/* d = a b^T of N rows of b, 16 elements along them; or, if B_IS_ROWS, d = a b of 16 rows of b. If `add`,
 * they are added to d. a: 64 x 16, in registers: a warp stands still until they are read, so one product of
 * 128 columns is better than two of 64. */
template <bool B_IS_ROWS, int N>
void wgmma_multiply(wgmma_accumulators<N> &d, const uint32_t (&a)[4], uint64_t b, bool add)
{
    static_assert(N == 64 || N == 128, "shapes that are written down");
    if constexpr (N == 64 && Q_DTYPE == DTYPE_BF16)
        WGMMA_PRODUCT_64("bf16");
    else if constexpr (N == 64)
        WGMMA_PRODUCT_64("f16");
    else if constexpr (Q_DTYPE == DTYPE_BF16)
        WGMMA_PRODUCT_128("bf16");
    else
        WGMMA_PRODUCT_128("f16");
}
