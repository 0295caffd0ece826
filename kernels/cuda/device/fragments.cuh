/* fragments.cuh - tensor-core fragments: the instructions, and how K, V and Q elements of every format
 * get into them.
 *
 * mma.m16n8k16, f32 accumulation. With g = lane / 4 and c = lane % 4 a lane holds
 *   A  a0 (row g, k 2c..)  a1 (row g + 8, k 2c..)  a2 (row g, k 2c + 8..)  a3 (row g + 8, k 2c + 8..)
 *   B  b0 (k 2c.., column g)  b1 (k 2c + 8.., column g)
 *   C  c0, c1 (row g, columns 2c, 2c + 1)  c2, c3 (row g + 8)
 * each of a and b two 16-bit elements, k and k + 1.
 *
 * fp8 elements are loaded by the same matrix loads, as pairs, and widened in registers to the 16-bit
 * format of q. That permutes the elements of a fragment's k (keys) or rows (values); q is loaded in the
 * same order, and the outputs are named accordingly. Both are exact and always the same. */
#pragma once

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/tile.h"

static constexpr bool NARROW_KV = bytes_of(KV_DTYPE) == 1;

static constexpr uint32_t ALL_LANES = 0xffffffffu;

/* Where byte `byte` of row `row` of a half tile lies; rows are `row_bytes` apart, or come by the copy engine (ring.cuh). */
#if ENGINE
static constexpr uint32_t SEGMENT_BYTES = TILE_TOKENS * TILE_SEGMENT;

static inline uint32_t place_of(uint32_t tile, uint32_t row, uint32_t byte, uint32_t)
{
    return tile + byte / TILE_SEGMENT * SEGMENT_BYTES + row * TILE_SEGMENT + (byte % TILE_SEGMENT ^ row % 8 * 16);
}
#else
static inline uint32_t place_of(uint32_t tile, uint32_t row, uint32_t byte, uint32_t row_bytes)
{
    return tile + row * row_bytes + byte;
}
#endif

struct fragment_a {
    uint32_t r[4];
};
struct fragment_b {
    uint32_t r[2];
};
struct fragment_c {
    float r[4];
};

static inline uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

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
    if constexpr (Q_DTYPE == DTYPE_BF16)
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

/* One probability, rounded to the operand type. */
static inline uint16_t round_probability(float p)
{
    uint16_t bits;
    if constexpr (Q_DTYPE == DTYPE_BF16)
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(p));
    else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(p));
    return bits;
}

/* Two fp8 elements, each in the upper byte of a 16-bit lane, as two elements of q's format: the bits
 * are shifted to where exponent and mantissa belong and the difference of the biases is multiplied in,
 * which also makes denormals normal. Exact. */
static inline uint32_t widen_pair(uint32_t x)
{
    uint32_t sign = x & 0x80008000u, rest = x & 0x7fff7fffu, result;
    if constexpr (Q_DTYPE == DTYPE_F16 && KV_DTYPE == DTYPE_E5M2)
        return x;
    if constexpr (Q_DTYPE == DTYPE_F16) {
        uint32_t shifted = sign | rest >> 1, scale = 0x5c005c00u, zero = 0x80008000u; /* 2^8, -0 */
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(shifted), "r"(scale), "r"(zero));
    } else {
        constexpr uint32_t scale = KV_DTYPE == DTYPE_E4M3 ? 0x7b807b80u : 0x77807780u; /* 2^120, 2^112 */
        uint32_t shifted = sign | (KV_DTYPE == DTYPE_E4M3 ? rest >> 4 : rest >> 3), zero = 0x80008000u;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(shifted), "r"(scale), "r"(zero));
    }
    return result;
}

/* Bytes i and j of x as a pair of q's format. */
template <int I, int J> uint32_t widen_bytes(uint32_t x)
{
    return widen_pair(__byte_perm(x, 0, 0x0404 | I << 4 | J << 12));
}

/* The A fragment of keys [first, first + 16) of a half tile for 16 elements of head_dim. 8-bit formats: pairs of
 * fragments come from one load, `pair` holds it. */
static inline fragment_a key_fragment(uint32_t tile, uint32_t first, uint32_t row, uint32_t step, fragment_a &pair)
{
    uint32_t lane = threadIdx.x % 32, key = first + lane % 16;
    if constexpr (!NARROW_KV)
        return load_matrices(place_of(tile, key, step * 32 + lane / 16 * 16, row));
    if (step % 2 == 0) /* the padding behind a row has room for the second half */
        pair = load_matrices(place_of(tile, key, step * 16 + lane / 16 * 16, row));
    uint32_t low = pair.r[step % 2 * 2], high = pair.r[step % 2 * 2 + 1];
    return {widen_bytes<0, 1>(low), widen_bytes<0, 1>(high), widen_bytes<2, 3>(low),
            widen_bytes<2, 3>(high)};
}

/* The B fragment of 8 columns of q for the same 16 elements. `q`: [columns][..] in shared memory. */
static inline fragment_b query_fragment(const uint8_t *q, uint32_t row, uint32_t first_column, uint32_t step)
{
    uint32_t lane = threadIdx.x % 32;
    const uint8_t *at = q + (first_column + lane / 4) * row + step * 32;
    if constexpr (NARROW_KV) {
        uint2 both = *(const uint2 *)(at + lane % 4 * 8);
        return {both.x, both.y};
    } else {
        return {*(const uint32_t *)(at + lane % 4 * 4), *(const uint32_t *)(at + lane % 4 * 4 + 16)};
    }
}

/* The A fragment of 16 elements of head_dim (rows) for 16 tokens of a half tile. 8-bit formats: one load holds two
 * steps. */
static inline fragment_a value_fragment(uint32_t tile, uint32_t row, uint32_t dim_tile, uint32_t step,
                                        fragment_a &pair)
{
    uint32_t lane = threadIdx.x % 32;
    if constexpr (!NARROW_KV) {
        uint32_t token = step * 16 + lane / 16 * 8 + lane % 8;
        return load_matrices_transposed(place_of(tile, token, dim_tile * 32 + lane / 8 % 2 * 16, row));
    }
    if (step % 2 == 0)
        pair = load_matrices_transposed(place_of(tile, step * 16 + lane, dim_tile * 16, row));
    uint32_t first = pair.r[step % 2 * 2], second = pair.r[step % 2 * 2 + 1];
    return {widen_bytes<0, 2>(first), widen_bytes<1, 3>(first), widen_bytes<0, 2>(second),
            widen_bytes<1, 3>(second)};
}

/* Which element of head_dim the accumulators c0, c1 (half 0) and c2, c3 (half 1) of a dim_tile are. */
static inline uint32_t dim_of(uint32_t dim_tile, uint32_t half)
{
    uint32_t g = threadIdx.x % 32 / 4;
    return dim_tile * 16 + (NARROW_KV ? 2 * g + half : g + 8 * half);
}

/* The B fragment of 16 tokens for 8 columns of p, [columns][64] of 16 bits. */
static inline fragment_b probability_fragment(const uint8_t *p, uint32_t row, uint32_t first_column,
                                              uint32_t step)
{
    uint32_t lane = threadIdx.x % 32;
    const uint8_t *at = p + (first_column + lane / 4) * row + step * 32 + lane % 4 * 4;
    return {*(const uint32_t *)at, *(const uint32_t *)(at + 16)};
}

/* `BYTES` (8 or 16) from global to shared memory in the background; zeros if not `valid`. */
template <int BYTES> void copy_async(uint32_t to, const void *from, bool valid)
{
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0)
                     : "memory");
}

static inline void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until all but the last `PENDING` groups have arrived. */
template <int PENDING> void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- the copy engine: what it brings arrives at a barrier in shared memory (an mbarrier, 8 bytes) */

#if ENGINE
static inline void barrier_init(uint32_t barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

/* The engine sees the barriers that were initialised. */
static inline void barrier_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* The barrier's phase ends once so many bytes have arrived. */
static inline void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

static inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred arrived;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 arrived, [%0], %1;\n"
                 "@!arrived bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* What this thread has written is there before the engine writes. */
static inline void fence_engine()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static inline uint64_t evict_first_policy()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* One box of the pool; its number in each dimension of the map. */
static inline void copy_box(uint32_t to, const void *map, uint32_t barrier, uint32_t dim, uint32_t slot, uint32_t head,
                            uint32_t half, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(dim), "r"(slot), "r"(head), "r"(half), "l"(policy)
                 : "memory");
}
#endif
