/* SPDX-License-Identifier: Apache-2.0 */
/* mma.cuh - tensor-core fragments: the instructions, and how K, V and Q elements of every format
 * get into them.
 *
 * mma.m16n8k16, f32 accumulation. With g = lane / 4 and c = lane % 4 a lane holds
 *   A  a0 (row g, k 2c..)  a1 (row g + 8, k 2c..)  a2 (row g, k 2c + 8..)  a3 (row g + 8, k 2c + 8..)
 *   B  b0 (k 2c.., column g)  b1 (k 2c + 8.., column g)
 *   C  c0, c1 (row g, columns 2c, 2c + 1)  c2, c3 (row g + 8)
 * each of a and b two 16-bit elements, k and k + 1.
 *
 * fp8 elements are loaded by the same matrix loads, as pairs, and widened in registers to f16. That
 * permutes the elements of a fragment's k (keys) or rows (values); q is loaded in the same order, and the
 * outputs are named accordingly. Both are exact and always the same. */
#pragma once

#include "kernels/cuda/device/states.cuh"
#include "kernels/cuda/device/tile.h"

static constexpr bool NARROW_KV = bytes_of(KV_DTYPE) == 1;

/* Of what is multiplied. fp8 is widened to f16, for which there is an instruction; q in bf16 is scaled to
 * f16's range. */
static constexpr dtype OPERAND = NARROW_KV ? DTYPE_F16 : Q_DTYPE;

/* Rows of a stage of STAGE_TOKENS rows whose atoms lie together: those of a box of TMA, or all. */
template <uint32_t STAGE_TOKENS>
static constexpr uint32_t atom_rows = TMA ? tile_box_rows(BLOCK_SIZE, STAGE_TOKENS) : STAGE_TOKENS;

/* Where byte `byte` of row `row` of a stage lies (kv_pipeline.cuh), whose rows take ROW bytes, the atoms of ATOM_ROWS
 * of them together. */
template <uint32_t ATOM_ROWS, uint32_t ROW> uint32_t swizzled(uint32_t stage, uint32_t row, uint32_t byte)
{
    return stage + row / ATOM_ROWS * (ATOM_ROWS * ROW) + byte / SWIZZLE_BYTES * (ATOM_ROWS * SWIZZLE_BYTES) +
           row % ATOM_ROWS * SWIZZLE_BYTES + (byte % SWIZZLE_BYTES ^ row % 8 * 16);
}

struct fragment_a {
    uint32_t r[4];
};
struct fragment_b {
    uint32_t r[2];
};
struct fragment_c {
    float r[4];
};

static inline fragment_a load_matrices(uint32_t address)
{
    fragment_a a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.r[0]), "=r"(a.r[1]), "=r"(a.r[2]), "=r"(a.r[3])
                 : "r"(address)
                 : "memory");
    return a;
}

static inline fragment_a load_matrices_transposed(uint32_t address)
{
    fragment_a a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.r[0]), "=r"(a.r[1]), "=r"(a.r[2]), "=r"(a.r[3])
                 : "r"(address)
                 : "memory");
    return a;
}

/* c += a b */
static inline void multiply(fragment_c &c, const fragment_a &a, const fragment_b &b)
{
    if constexpr (OPERAND == DTYPE_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
            : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
            : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

/* Two values, rounded to the operands' format. */
static inline uint32_t round_operands(float low, float high)
{
    uint32_t bits;
    if constexpr (OPERAND == DTYPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/* An 8 x 8 matrix of 16-bit elements, row lane / 4, transposed. */
static inline uint32_t transpose(uint32_t rows)
{
    uint32_t columns;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
    return columns;
}

/* Two e4m3 elements, each in the upper byte of a 16-bit lane, as f16: the bits are shifted to where
 * exponent and mantissa belong and the difference of the biases is multiplied in, which also makes
 * denormals normal. Exact. */
static inline uint32_t widen_pair(uint32_t x)
{
    uint32_t shifted = (x & 0x80008000u) | (x & 0x7fff7fffu) >> 1, scale = 0x5c005c00u,
             zero = 0x80008000u, /* 2^8, -0 */
        result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(shifted), "r"(scale), "r"(zero));
    return result;
}

/* The four fp8 elements of x as two pairs of f16. */
static inline void widen(uint32_t x, uint32_t &low, uint32_t &high)
{
    uint32_t first = __byte_perm(x, 0, 0x1404), second = __byte_perm(x, 0, 0x3424);
    if constexpr (KV_DTYPE == DTYPE_E5M2) {
        low = first;
        high = second;
    } else {
#if __CUDA_ARCH__ >= 890
        asm("{\n"
            ".reg .b16 low, high;\n"
            "mov.b32 {low, high}, %2;\n"
            "cvt.rn.f16x2.e4m3x2 %0, low;\n"
            "cvt.rn.f16x2.e4m3x2 %1, high;\n"
            "}"
            : "=r"(low), "=r"(high)
            : "r"(x));
#else
        low = widen_pair(first);
        high = widen_pair(second);
#endif
    }
}

/* 16-element steps of a product that one matrix load feeds. */
static constexpr int LOAD_STEPS = NARROW_KV ? 2 : 1;

/* The A fragments of keys [first, first + 16) of a stage for LOAD_STEPS times 16 elements of head_dim. */
template <uint32_t STAGE_TOKENS, uint32_t ROW>
void load_keys(fragment_a (&k)[LOAD_STEPS], uint32_t stage, uint32_t first, uint32_t step)
{
    uint32_t key = first + lane() % 16;
    fragment_a x = load_matrices(
        swizzled<atom_rows<STAGE_TOKENS>, ROW>(stage, key, step * (32 / LOAD_STEPS) + lane() / 16 * 16));
    if constexpr (NARROW_KV) { /* the padding behind a row has room for the second step */
        for (int i = 0; i < 2; i++) {
            widen(x.r[2 * i], k[i].r[0], k[i].r[2]);
            widen(x.r[2 * i + 1], k[i].r[1], k[i].r[3]);
        }
    } else {
        k[0] = x;
    }
}

/* The B fragment of 8 columns of q for the same 16 elements. `q`: the row of column lane / 4; NULL: zeros. */
static inline fragment_b query_fragment(const uint8_t *q, uint32_t step)
{
    constexpr uint32_t words = HEAD_DIM / 2;
    uint32_t at = step * 8 + threadIdx.x % 4 * (NARROW_KV ? 2 : 1), next = NARROW_KV ? 1 : 4;
    const uint32_t *row = (const uint32_t *)q;
    return {q && at < words ? row[at] : 0, q && at + next < words ? row[at + next] : 0};
}

/* The A fragments of 16 elements of head_dim (rows) for LOAD_STEPS times 16 tokens of a stage. */
template <uint32_t STAGE_TOKENS, uint32_t ROW>
void load_values(fragment_a (&v)[LOAD_STEPS], uint32_t stage, uint32_t dim_tile, uint32_t step)
{
    if constexpr (NARROW_KV) {
        fragment_a x = load_matrices_transposed(
            swizzled<atom_rows<STAGE_TOKENS>, ROW>(stage, step * 16 + lane(), dim_tile * 16));
        for (int i = 0; i < 2;
             i++) { /* an element of x is two rows of one token; a pair is two tokens of one row */
            widen(__byte_perm(x.r[2 * i], 0, 0x3120), v[i].r[0], v[i].r[1]);
            widen(__byte_perm(x.r[2 * i + 1], 0, 0x3120), v[i].r[2], v[i].r[3]);
        }
    } else {
        uint32_t token = step * 16 + lane() / 16 * 8 + lane() % 8;
        v[0] = load_matrices_transposed(
            swizzled<atom_rows<STAGE_TOKENS>, ROW>(stage, token, dim_tile * 32 + lane() / 8 % 2 * 16));
    }
}

/* Which element of head_dim the accumulators c0, c1 (half 0) and c2, c3 (half 1) of a dim_tile are. */
static inline uint32_t dim_of(uint32_t dim_tile, uint32_t half)
{
    uint32_t g = threadIdx.x % 32 / 4;
    return dim_tile * 16 + (NARROW_KV ? 2 * g + half : g + 8 * half);
}
