/* SPDX-License-Identifier: Apache-2.0 */
/* pool.cu - what moves bytes around attention: of the KV pool, of q and o, of block tables.
 *
 *   change_tables   new entries of the device's block tables          a thread block a change
 *   copy_slots      copy-on-write: the filled slots of a block; vLLM's copy_blocks   (copy, layer, K or V)
 *   append          k and v of a pass's tokens, converted or generated, to their slots; vLLM's
 *                   reshape_and_cache                                  a thread block a token
 *   generate_q      q of a pass's queries                             a thread block a query
 *   store_tokens, copy_blocks   reshape_and_cache and copy_blocks of vLLM, on caches of the caller's own; the former for
 *                   every layout
 *   compare_kv      k and v with what stands, as append would convert them: a retry of an append
 *   read_kv         what stands, token by token                       a thread block a token
 *   load_q          q of clients from where it lies                   thread blocks a query
 *   store_rows      o and lse to where they belong                    thread blocks a query
 *   merge_states    attention states into one, for any head_dim and format; in place if asked for
 *
 * compare_kv, read_kv and merge_states take all operations of their kind in a step, in tensors that may lie
 * in the host's pinned memory: elements are read and written once, by fours, side by side.
 *
 * Generated values are those of kernels/values.c, bit for bit. */
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/step.h"

static constexpr int PHILOX_ROUNDS = 10;

/* Philox4x32-10: Salmon, Moraes, Dror and Shaw, SC 2011. */
static inline uint4 philox(uint4 word, uint32_t key0, uint32_t key1)
{
#pragma unroll
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint32_t high0 = __umulhi(word.x, 0xd2511f53u), low0 = word.x * 0xd2511f53u;
        uint32_t high1 = __umulhi(word.z, 0xcd9e8d57u), low1 = word.z * 0xcd9e8d57u;
        word = make_uint4(high1 ^ word.y ^ key0, low1, high0 ^ word.w ^ key1, low0);
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return word;
}

static inline float value_of(uint32_t word)
{
    uint32_t sum = (word & 0xff) + (word >> 8 & 0xff) + (word >> 16 & 0xff) + (word >> 24);
    return (float)((int)sum - 510) * (1.0f / 128);
}

/* 2^exponent, which is normal. */
static inline float power_of_two(int exponent)
{
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

/* A wide value: the word with its sign / 2^31, times 2^bit 0, times 2^channel. */
static inline float wide_value_of(uint32_t word, uint32_t tensor, uint32_t head, uint32_t dim,
                                  uint32_t spread)
{
    int channel = (int)((dim * 2654435769u >> 16) % (2 * spread + 1)) - (int)spread;
    bool outlier = (dim + 7 * head) % VALUES_OUTLIER_EVERY == 5;
    if (tensor == VALUES_K)
        channel = -channel + (outlier ? VALUES_OUTLIER_EXPONENT : 0);
    return (float)(int)word * power_of_two(channel + (int)(word & 1) - 31);
}

/* Elements 4 * quad and on of one head of one token. */
static inline float4 generated(value_source source, uint32_t position, uint32_t layer, uint32_t tensor,
                               uint32_t head, uint32_t quad)
{
    uint4 word = make_uint4((uint32_t)source.content, (uint32_t)(source.content >> 32), position,
                            layer << 20 | tensor << 18 | head << 6 | quad);
    word = philox(word, (uint32_t)source.seed, (uint32_t)(source.seed >> 32));
    if (source.wide == 0)
        return make_float4(value_of(word.x), value_of(word.y), value_of(word.z), value_of(word.w));
    const uint32_t words[4] = {word.x, word.y, word.z, word.w};
    float wide[4];
    for (uint32_t i = 0; i < 4; i++)
        wide[i] = wide_value_of(words[i], tensor, head, 4 * quad + i, source.wide - 1);
    return make_float4(wide[0], wide[1], wide[2], wide[3]);
}

extern "C" __global__ void change_tables(cuda_list_pass pass)
{
    cuda_table_change change = ((const cuda_table_change *)pass.list)[blockIdx.x];
    uint32_t *table = pass.pool.tables + change.table * pass.pool.stride + change.first;
    for (uint32_t i = threadIdx.x; i < change.count; i += blockDim.x)
        table[i] = pass.ids[change.source + i];
}

/* Bytes from the beginning of K (or V) of a block to elements dim .. dim + 3 of one head of one token;
 * those of V are block_size apart in the vllm layout. */
static inline uint64_t quad_offset(const cuda_pool &pool, uint32_t head, uint32_t slot, uint32_t dim, bool v)
{
    constexpr uint32_t bytes = bytes_of(KV_DTYPE), x = 16 / bytes;
    if constexpr (LAYOUT != LAYOUT_VLLM)
        return head * pool.head_bytes + slot * pool.slot_bytes + dim * bytes;
    uint64_t row = (uint64_t)head * HEAD_DIM + dim;
    return (v ? row * BLOCK_SIZE + slot : (row / x * BLOCK_SIZE + slot) * x + dim % x) * bytes;
}

/* The bits of four elements in the stored format. */
struct quad {
    uint32_t at[4];

    bool operator!=(const quad &other) const
    {
        return ((at[0] ^ other.at[0]) | (at[1] ^ other.at[1]) | (at[2] ^ other.at[2]) |
                (at[3] ^ other.at[3])) != 0;
    }
};

/* Where they stand: one after the other or, V's in the vllm layout, apart. */
struct quad_place {
    uint8_t *at;
    uint32_t apart; /* bytes */

    quad_place(uint8_t *plane, const cuda_pool &pool, uint32_t head, uint32_t slot, uint32_t dim, bool v)
        : at(plane + quad_offset(pool, head, slot, dim, v)),
          apart(bytes_of(KV_DTYPE) * (LAYOUT == LAYOUT_VLLM && v ? BLOCK_SIZE : 1))
    {
    }
    bits_of<KV_DTYPE> &element(uint32_t i) const
    {
        return *(bits_of<KV_DTYPE> *)(at + i * apart);
    }
    quad load() const
    {
        return {{element(0), element(1), element(2), element(3)}};
    }
    void store(const quad &q) const
    {
        for (uint32_t i = 0; i < 4; i++)
            element(i) = (bits_of<KV_DTYPE>)q.at[i];
    }
};

/* grid: (copies, layers, K and V). In the vllm layout (copy_blocks) element by element; else the filled
 * slots lie together per head (hnd) or for all heads at once (nhd). */
extern "C" __global__ void copy_slots(cuda_list_pass pass)
{
    constexpr uint32_t pieces = LAYOUT == LAYOUT_HND ? KV_HEADS : 1;
    const cuda_pool &pool = pass.pool;
    block_copy copy = ((const block_copy *)pass.list)[blockIdx.x];
    uint8_t *layer = pool.bytes + blockIdx.y * pool.layer_bytes + blockIdx.z * pool.plane_bytes;
    uint8_t *from = layer + copy.from * pool.block_bytes;
    uint8_t *to = layer + copy.to * pool.block_bytes;
    if constexpr (LAYOUT == LAYOUT_VLLM) {
        bool v = blockIdx.z;
        for (uint32_t i = threadIdx.x; i < copy.slots * KV_HEADS * (HEAD_DIM / 4); i += blockDim.x) {
            uint32_t slot = i % copy.slots, head = i / copy.slots % KV_HEADS,
                     dim = i / copy.slots / KV_HEADS * 4;
            const quad_place a(from, pool, head, slot, dim, v), b(to, pool, head, slot, dim, v);
            b.store(a.load());
        }
        return;
    }
    uint64_t words = copy.slots * pool.slot_bytes / 8; /* a row is whole vectors of 8 elements */
    for (uint64_t i = threadIdx.x; i < words * pieces; i += blockDim.x) {
        uint64_t at = i / words * pool.head_bytes + i % words * 8;
        *(uint64_t *)(to + at) = *(const uint64_t *)(from + at);
    }
}

/* Which of a list in order of `first` has number `at`. */
template <class T> uint32_t owner_of(const T *list, uint32_t count, uint32_t at)
{
    uint32_t low = 0, high = count - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (list[middle].first <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Divided by their scale and rounded once. */
template <dtype D> quad encode_quad(float4 x, float scale)
{
    if (scale != 1.0f)
        x = make_float4(x.x / scale, x.y / scale, x.z / scale, x.w / scale);
    return {{encode<D>(x.x), encode<D>(x.y), encode<D>(x.z), encode<D>(x.w)}};
}

/* The bits of four elements of a tensor of so many bytes each, loaded at once. */
static inline quad load_bits(const uint8_t *tensor, uint32_t bytes, size_t element)
{
    const uint8_t *at = tensor + element * bytes;
    if (bytes == 4) {
        uint2 x = ((const uint2 *)at)[0], y = ((const uint2 *)at)[1];
        return {{x.x, x.y, y.x, y.y}};
    }
    if (bytes == 2) {
        uint2 x = *(const uint2 *)at;
        return {{x.x & 0xffff, x.x >> 16, x.y & 0xffff, x.y >> 16}};
    }
    uint32_t x = *(const uint32_t *)at;
    return {{x & 0xff, x >> 8 & 0xff, x >> 16 & 0xff, x >> 24}};
}

template <dtype D> void store_bits(uint8_t *tensor, size_t element, const quad &q)
{
    uint8_t *at = tensor + element * bytes_of(D);
    if constexpr (bytes_of(D) == 4)
        *(uint4 *)at = make_uint4(q.at[0], q.at[1], q.at[2], q.at[3]);
    else if constexpr (bytes_of(D) == 2)
        *(uint2 *)at = {q.at[0] | q.at[1] << 16, q.at[2] | q.at[3] << 16};
    else
        *(uint32_t *)at = q.at[0] | q.at[1] << 8 | q.at[2] << 16 | q.at[3] << 24;
}

/* Four elements of k or v as they were handed in, as they are stored: as they are when they have the
 * stored format. */
static inline quad given_quad(const uint8_t *tensor, dtype source_dtype, size_t element, float scale)
{
    if (source_dtype == KV_DTYPE)
        return load_bits(tensor, bytes_of(KV_DTYPE), element);
    const quad bits = load_bits(tensor, bytes_of(source_dtype), element);
    return encode_quad<KV_DTYPE>(
        make_float4(decode_any(source_dtype, bits.at[0]), decode_any(source_dtype, bits.at[1]),
                    decode_any(source_dtype, bits.at[2]), decode_any(source_dtype, bits.at[3])),
        scale);
}

/* Which block of a row of the tables has a position, in a layer. */
static inline uint8_t *block_at(const cuda_pool &pool, uint32_t table, uint32_t layer, uint32_t position)
{
    uint32_t block = pool.tables[table * pool.stride + position / BLOCK_SIZE];
    return pool.bytes + layer * pool.layer_bytes + block * pool.block_bytes;
}

/* The quads of a token, K and V of all heads: number `at` of them. */
struct token_quad {
    static constexpr uint32_t QUADS = HEAD_DIM / 4, COUNT = 2 * KV_HEADS * QUADS;
    uint32_t quad, head, v;

    token_quad(uint32_t at) : quad(at % QUADS), head(at / QUADS % KV_HEADS), v(at / QUADS / KV_HEADS)
    {
    }
    quad_place place(const cuda_pool &pool, uint8_t *block, uint32_t position) const
    {
        return {block + v * pool.plane_bytes, pool, head, position % BLOCK_SIZE, quad * 4, v != 0};
    }
    size_t element(uint32_t token) const
    {
        return ((size_t)token * KV_HEADS + head) * HEAD_DIM + quad * 4;
    }
};

/* Whether four elements are finite and, where they are summed, below 2^97: what the host sees to for tensors in its memory. */
static inline bool are_good(const uint8_t *tensor, dtype d, size_t element, bool summed)
{
    const quad bits = load_bits(tensor, bytes_of(d), element);
    const float most = summed ? 0x1p97f : INFINITE;
    bool good = true;
    for (uint32_t i = 0; i < 4; i++)
        good &= fabsf(decode_any(d, bits.at[i])) < most; /* false for NaN */
    return good;
}

/* What is stored of a token: of given ones, as they were handed in; generated ones are made here. */
static inline quad quad_of(const cuda_append_pass &pass, const cuda_append &append, uint32_t i,
                           const token_quad &q)
{
    float scale = q.v ? pass.v_scale[q.head] : pass.k_scale[q.head];
    const uint8_t *tensor = q.v ? append.v : append.k;
    if (append.wrong && !are_good(tensor, (dtype)pass.source_dtype, q.element(i), q.v)) {
        *append.wrong = q.v ? KV_WRONG_V : KV_WRONG_K;
        pass.refused[append.table] = append.content;
        return {{0, 0, 0, 0}};
    }
    if (append.k)
        return given_quad(tensor, (dtype)pass.source_dtype, q.element(i), scale);
    return encode_quad<KV_DTYPE>(generated(append.generated, append.position + i, pass.layer,
                                           q.v ? VALUES_V : VALUES_K, q.head, q.quad),
                                 scale);
}

/* A thread block a token. A thread asks for some quads before it stores the first, since they come from
 * the host: one by one each would take a microsecond and more. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) append(cuda_append_pass pass)
{
    constexpr uint32_t ASKED = 4;
    let_next_begin();
    const cuda_append append = pass.appends[owner_of(pass.appends, pass.append_count, blockIdx.x)];
    uint32_t i = blockIdx.x - append.first, position = append.position + i;
    uint8_t *block = block_at(pass.pool, append.table, pass.layer, position);
    for (uint32_t from = threadIdx.x; from < token_quad::COUNT; from += ASKED * blockDim.x) {
        quad stored[ASKED];
#pragma unroll
        for (uint32_t n = 0; n < ASKED; n++) {
            if (from + n * blockDim.x < token_quad::COUNT)
                stored[n] = quad_of(pass, append, i, token_quad(from + n * blockDim.x));
        }
#pragma unroll
        for (uint32_t n = 0; n < ASKED; n++) {
            if (from + n * blockDim.x < token_quad::COUNT)
                token_quad(from + n * blockDim.x).place(pass.pool, block, position).store(stored[n]);
        }
    }
}

/* vLLM's reshape_and_cache, on caches of the caller's own. There a scale holds for all KV heads, in the other layouts each has one. grid:
 * (tokens). */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    store_tokens(const __grid_constant__ cuda_tokens_pass pass)
{
    const long long slot = pass.slots[blockIdx.x];
    if (slot < 0)
        return;
    uint8_t *block = pass.pool.bytes + slot / BLOCK_SIZE * pass.pool.block_bytes;
    for (uint32_t at = threadIdx.x; at < token_quad::COUNT; at += blockDim.x) {
        const token_quad q(at);
        const size_t element = blockIdx.x * (q.v ? pass.v_row : pass.k_row) + q.head * HEAD_DIM + q.quad * 4;
        q.place(pass.pool, block, (uint32_t)(slot % BLOCK_SIZE))
            .store(given_quad(q.v ? pass.v : pass.k, (dtype)pass.source_dtype, element,
                              (q.v ? pass.v_scale : pass.k_scale)[LAYOUT == LAYOUT_VLLM ? 0 : q.head]));
    }
}

/* Its copy_blocks. grid: (pairs, layers, K and V). */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    copy_blocks(const __grid_constant__ cuda_copies_pass pass)
{
    uint8_t *cache = (uint8_t *)pass.caches[blockIdx.y][blockIdx.z];
    const uint4 *from = (const uint4 *)(cache + pass.pairs[2 * blockIdx.x] * pass.block_bytes);
    uint4 *to = (uint4 *)(cache + pass.pairs[2 * blockIdx.x + 1] * pass.block_bytes);
    for (uint64_t i = threadIdx.x; i < pass.block_bytes / sizeof(uint4); i += blockDim.x)
        to[i] = from[i];
}

/* Vectors of 8 bytes of a row of q and o, to which tensors of clients are aligned. */
static constexpr uint32_t ROW_VECTORS = KV_HEADS * GROUP * HEAD_DIM * bytes_of(Q_DTYPE) / sizeof(uint2);

/* grid: (rows, CUDA_ROW_VECTORS of each). What is ahead is awaited while the host's memory answers: the
 * appends must be complete before attention begins, and the pass before done with q. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) load_q(cuda_rows_pass pass)
{
    constexpr uint32_t EACH = CUDA_ROW_VECTORS / CUDA_THREADS;
    const uint2 *from = (const uint2 *)pass.rows[blockIdx.x].q;
    uint2 *to = (uint2 *)pass.tensor + (size_t)blockIdx.x * ROW_VECTORS, x[EACH];
    uint32_t first = blockIdx.y * CUDA_ROW_VECTORS, end = min(first + CUDA_ROW_VECTORS, ROW_VECTORS);
    for (uint32_t n = 0; n < EACH; n++) {
        if (first + threadIdx.x + n * CUDA_THREADS < end)
            x[n] = from[first + threadIdx.x + n * CUDA_THREADS];
    }
    await_previous();
    let_next_begin();
    for (uint32_t n = 0; n < EACH; n++) {
        if (first + threadIdx.x + n * CUDA_THREADS < end)
            to[first + threadIdx.x + n * CUDA_THREADS] = x[n];
    }
}

/* grid: likewise. What follows a wrong element of k or v becomes NaN: all bits set, in every format. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) store_rows(cuda_rows_pass pass)
{
    constexpr uint32_t heads = KV_HEADS * GROUP;
    const cuda_client_row row = pass.rows[blockIdx.x];
    const uint2 *from = (const uint2 *)pass.tensor + (size_t)blockIdx.x * ROW_VECTORS;
    uint32_t first = blockIdx.y * CUDA_ROW_VECTORS, end = min(first + CUDA_ROW_VECTORS, ROW_VECTORS);
    await_previous();
    const bool refused = row.content && pass.refused[row.table] == row.content;
    for (uint32_t at = first + threadIdx.x; at < end; at += CUDA_THREADS)
        ((uint2 *)row.o)[at] = refused ? uint2{~0u, ~0u} : from[at];
    for (uint32_t head = threadIdx.x; row.lse && blockIdx.y == 0 && head < heads; head += CUDA_THREADS)
        row.lse[head] = refused ? __uint_as_float(~0u) : pass.lse[(size_t)blockIdx.x * heads + head];
}

/* How many of its tokens are equal, from the first one on, is the smallest number of a token that any
 * thread finds to differ. */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS) compare_kv(cuda_operations_pass pass)
{
    __shared__ uint32_t found[CUDA_THREADS];
    const cuda_compare *list = (const cuda_compare *)pass.list;
    const cuda_compare c = list[owner_of(list, pass.count, blockIdx.x)];
    uint32_t first = (blockIdx.x - c.first) * CUDA_COMPARE_TOKENS,
             tokens = min(c.count - first, CUDA_COMPARE_TOKENS), equal = tokens;
    for (uint32_t at = threadIdx.x; at < tokens * token_quad::COUNT && equal == tokens; at += blockDim.x) {
        uint32_t token = at / token_quad::COUNT, position = c.position + first + token;
        const token_quad q(at % token_quad::COUNT);
        const float *scales = (q.v ? pass.v_scale : pass.k_scale) + c.layer * KV_HEADS;
        uint8_t *block = block_at(pass.pool, c.table, c.layer, position);
        if (q.place(pass.pool, block, position).load() !=
            given_quad(q.v ? c.v : c.k, (dtype)c.dtype, q.element(first + token), scales[q.head]))
            equal = token;
    }
    found[threadIdx.x] = equal;
    __syncthreads(); /* every thread has said what it found */
    if (threadIdx.x > 0)
        return;
    for (uint32_t i = 1; i < blockDim.x; i++)
        equal = min(equal, found[i]);
    pass.equal[blockIdx.x] = equal;
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) read_kv(cuda_operations_pass pass)
{
    const cuda_read *list = (const cuda_read *)pass.list;
    const cuda_read r = list[owner_of(list, pass.count, blockIdx.x)];
    uint32_t token = blockIdx.x - r.first, position = r.position + token;
    uint8_t *block = block_at(pass.pool, r.table, r.layer, position);
    for (uint32_t at = threadIdx.x; at < token_quad::COUNT; at += blockDim.x) {
        const token_quad q(at);
        store_bits<KV_DTYPE>(q.v ? r.v : r.k, q.element(token), q.place(pass.pool, block, position).load());
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) generate_q(cuda_attend_pass pass)
{
    constexpr uint32_t quads = HEAD_DIM / 4, heads = KV_HEADS * GROUP;
    let_next_begin();
    uint32_t position = pass.queries[blockIdx.x].keys - 1;
    for (uint32_t at = threadIdx.x; at < heads * quads; at += blockDim.x) {
        float4 x =
            generated(pass.q_source[blockIdx.x], position, pass.layer, VALUES_Q, at / quads, at % quads);
        store_bits<Q_DTYPE>(pass.q, ((size_t)blockIdx.x * heads * quads + at) * 4,
                            encode_quad<Q_DTYPE>(x, 1.0f));
    }
}

/* Of f32, f16 or bf16. */
static inline float load_any(dtype d, const void *array, size_t i)
{
    return decode_any(d, d == DTYPE_F32 ? ((const uint32_t *)array)[i] : ((const uint16_t *)array)[i]);
}

static inline void store_any(dtype d, void *array, size_t i, float value)
{
    if (d == DTYPE_F32)
        store_element<DTYPE_F32>(array, i, value);
    else if (d == DTYPE_F16)
        store_element<DTYPE_F16>(array, i, value);
    else
        store_element<DTYPE_BF16>(array, i, value);
}

/* Which reads all states of its head before it writes, perhaps in place. Weights are computed by a thread
 * a state, and added in order. */
extern "C" __global__ void __launch_bounds__(HEAD_DIM_MAX) merge_states(cuda_operations_pass pass)
{
    __shared__ float shared[HEAD_DIM_MAX];
    const cuda_merge_states *list = (const cuda_merge_states *)pass.list;
    const cuda_merge_states m = list[owner_of(list, pass.count, blockIdx.x)];
    size_t head = blockIdx.x - m.first;
    float largest = -INFINITE, sum = 0, o = 0;
    for (uint32_t i = threadIdx.x; i < m.states; i += blockDim.x)
        largest = fmaxf(largest, m.lse[i * (size_t)m.apart + head]);
    shared[threadIdx.x] = largest;
    __syncthreads(); /* every thread has the largest of its states there */
    for (uint32_t i = 0; i < blockDim.x; i++)
        largest = fmaxf(largest, shared[i]);
    for (uint32_t first = 0; first < m.states && largest != -INFINITE; first += blockDim.x) {
        uint32_t count = min(m.states - first, blockDim.x);
        __syncthreads(); /* what was there is read */
        if (threadIdx.x < count) {
            float lse = m.lse[(first + threadIdx.x) * (size_t)m.apart + head];
            shared[threadIdx.x] = lse == largest  ? 1.0f
                                  : lse < largest ? expf(lse - largest)
                                                  : 0.0f; /* NaN */
        }
        __syncthreads(); /* the weights are there */
        for (uint32_t i = 0; i < count; i++) {
            float w = shared[i];
            sum += w;
            if (w > 0 && threadIdx.x < m.head_dim)
                o += w * load_any((dtype)m.dtype, m.o,
                                  ((first + i) * (size_t)m.apart + head) * m.head_dim + threadIdx.x);
        }
    }
    __syncthreads(); /* every lse is read, which may be written in place */
    if (threadIdx.x < m.head_dim)
        store_any((dtype)m.dtype, m.merged_o, head * m.head_dim + threadIdx.x, sum > 0 ? o / sum : 0.0f);
    if (threadIdx.x == 0)
        m.merged_lse[head] = sum > 0 ? largest + logf(sum) : -INFINITE;
}
