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

static constexpr int WGMMA_VALUES = 32; /* of D, of a thread */
struct wgmma_accumulators {
    float r[WGMMA_VALUES];
};
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
static inline void wgmma_hold(wgmma_accumulators &d)
{
#pragma unroll
    for (int i = 0; i < WGMMA_VALUES; i++)
        asm volatile("" : "+f"(d.r[i])::"memory");
}

#define WGMMA_4(i) "+f"(d.r[i]), "+f"(d.r[i + 1]), "+f"(d.r[i + 2]), "+f"(d.r[i + 3])
#define WGMMA_PRODUCT(format)                                                                                \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." format "." format                             \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "   \
                 "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                        \
                 "{%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"                                             \
                 : WGMMA_4(0), WGMMA_4(4), WGMMA_4(8), WGMMA_4(12), WGMMA_4(16), WGMMA_4(20), WGMMA_4(24),   \
                   WGMMA_4(28)                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)add), "n"(B_IS_ROWS))

/* d = a b^T of 64 rows of b, 16 elements along them; or, if B_IS_ROWS, d = a b of 16 rows of b. If `add`,
 * they are added to d. a: 64 x 16, in registers. */
template <bool B_IS_ROWS>
void wgmma_multiply(wgmma_accumulators &d, const uint32_t (&a)[4], uint64_t b, bool add)
{
    if constexpr (Q_DTYPE == DTYPE_BF16)
        WGMMA_PRODUCT("bf16");
    else
        WGMMA_PRODUCT("f16");
}
