/* pool.cu - everything that moves bytes of the KV pool but does not compute attention.
 *
 *   change_tables   new entries of the device's block tables          a thread block a change
 *   copy_slots      copy-on-write: the filled slots of a block; vLLM's copy_blocks   (copy, layer, K or V)
 *   append          k and v of a pass's tokens, converted or generated, to their slots; vLLM's
 *                   reshape_and_cache                                  a thread block a token
 *   generate_q      q of a pass's rows                                a thread block a row
 *   merge_states    attention states into one, for any head_dim and format; in place if asked for
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

/* Elements 4 * quad and on of one head of one token. */
static inline float4 generated(value_source source, uint32_t position, uint32_t layer, uint32_t tensor,
                               uint32_t head, uint32_t quad)
{
    uint4 word = make_uint4((uint32_t)source.content, (uint32_t)(source.content >> 32), position,
                            layer << 20 | tensor << 18 | head << 6 | quad);
    word = philox(word, (uint32_t)source.seed, (uint32_t)(source.seed >> 32));
    return make_float4(value_of(word.x), value_of(word.y), value_of(word.z), value_of(word.w));
}

extern "C" __global__ void change_tables(cuda_list_pass pass)
{
    cuda_table_change change = ((const cuda_table_change *)pass.list)[blockIdx.x];
    uint32_t *row = pass.pool.tables + change.row * pass.pool.stride + change.first;
    for (uint32_t i = threadIdx.x; i < change.count; i += blockDim.x)
        row[i] = pass.ids[change.source + i];
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

/* Four elements, one after the other or V's in the vllm layout. */
struct quad_place {
    uint8_t *at;
    uint32_t apart; /* bytes */

    quad_place(uint8_t *half, const cuda_pool &pool, uint32_t head, uint32_t slot, uint32_t dim, bool v)
        : at(half + quad_offset(pool, head, slot, dim, v)),
          apart(bytes_of(KV_DTYPE) * (LAYOUT == LAYOUT_VLLM && v ? BLOCK_SIZE : 1))
    {
    }
    void copy(const uint8_t *from, uint32_t from_apart) const
    {
        constexpr uint32_t bytes = bytes_of(KV_DTYPE);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if constexpr (bytes == 4)
                *(uint32_t *)(at + i * apart) = *(const uint32_t *)(from + i * from_apart);
            else if constexpr (bytes == 2)
                *(uint16_t *)(at + i * apart) = *(const uint16_t *)(from + i * from_apart);
            else
                at[i * apart] = from[i * from_apart];
        }
    }
};

/* grid: (copies, layers, K and V). In the vllm layout (copy_blocks) element by element; else the filled
 * slots lie together per head (hnd) or for all heads at once (nhd). */
extern "C" __global__ void copy_slots(cuda_list_pass pass)
{
    constexpr uint32_t pieces = LAYOUT == LAYOUT_HND ? KV_HEADS : 1;
    const cuda_pool &pool = pass.pool;
    cuda_copy copy = ((const cuda_copy *)pass.list)[blockIdx.x];
    uint8_t *layer = pool.bytes + blockIdx.y * pool.layer_bytes + blockIdx.z * pool.half_bytes;
    uint8_t *from = layer + copy.from * pool.block_bytes;
    uint8_t *to = layer + copy.to * pool.block_bytes;
    if constexpr (LAYOUT == LAYOUT_VLLM) {
        bool v = blockIdx.z;
        for (uint32_t i = threadIdx.x; i < copy.slots * KV_HEADS * (HEAD_DIM / 4); i += blockDim.x) {
            uint32_t slot = i % copy.slots, head = i / copy.slots % KV_HEADS, dim = i / copy.slots / KV_HEADS * 4;
            const quad_place a(from, pool, head, slot, dim, v), b(to, pool, head, slot, dim, v);
            b.copy(a.at, a.apart);
        }
        return;
    }
    uint64_t words = copy.slots * pool.slot_bytes / 8; /* a row is whole vectors of 8 elements */
    for (uint64_t i = threadIdx.x; i < words * pieces; i += blockDim.x) {
        uint64_t at = i / words * pool.head_bytes + i % words * 8;
        *(uint64_t *)(to + at) = *(const uint64_t *)(from + at);
    }
}

/* Which append token `token` of the pass belongs to. */
static inline uint32_t append_of(const cuda_append *appends, uint32_t count, uint32_t token)
{
    uint32_t low = 0, high = count - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (appends[middle].first <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Divided by its scale and rounded once to the stored format. */
static inline void store_quad(const quad_place &to, float4 x, float scale)
{
    if (scale != 1.0f)
        x = make_float4(x.x / scale, x.y / scale, x.z / scale, x.w / scale);
    store_element<KV_DTYPE>(to.at, 0, x.x);
    store_element<KV_DTYPE>(to.at + to.apart, 0, x.y);
    store_element<KV_DTYPE>(to.at + 2 * to.apart, 0, x.z);
    store_element<KV_DTYPE>(to.at + 3 * to.apart, 0, x.w);
}

/* Four elements of k or v as they were handed in: as they are when they have the stored format. */
static inline void store_given(const quad_place &to, const uint8_t *tensor, dtype source_dtype,
                               size_t element, float scale)
{
    if (source_dtype == KV_DTYPE) {
        to.copy(tensor + element * bytes_of(KV_DTYPE), bytes_of(KV_DTYPE));
        return;
    }
    store_quad(to,
               make_float4(load_any(source_dtype, tensor, element),
                           load_any(source_dtype, tensor, element + 1),
                           load_any(source_dtype, tensor, element + 2),
                           load_any(source_dtype, tensor, element + 3)),
               scale);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) append(cuda_append_pass pass)
{
    constexpr uint32_t quads = HEAD_DIM / 4;
    let_next_begin();
    uint32_t which = append_of(pass.appends, pass.append_count, blockIdx.x);
    cuda_append append = pass.appends[which];
    uint32_t i = blockIdx.x - append.first, position = append.position + i;
    uint32_t block = pass.pool.tables[append.table * pass.pool.stride + position / BLOCK_SIZE];
    uint8_t *bytes = pass.pool.bytes + pass.layer * pass.pool.layer_bytes + block * pass.pool.block_bytes;
    for (uint32_t at = threadIdx.x; at < 2 * KV_HEADS * quads; at += blockDim.x) {
        uint32_t quad = at % quads, head = at / quads % KV_HEADS, v = at / quads / KV_HEADS;
        const quad_place to(bytes + v * pass.pool.half_bytes, pass.pool, head, position % BLOCK_SIZE, quad * 4, v);
        float scale = v ? pass.v_scale[head] : pass.k_scale[head];
        size_t element = ((size_t)(append.source + i) * KV_HEADS + head) * HEAD_DIM + quad * 4;
        if (pass.k)
            store_given(to, v ? pass.v : pass.k, (dtype)pass.source_dtype, element, scale);
        else
            store_quad(to, generated(append.generated, position, pass.layer, v ? VALUES_V : VALUES_K,
                                     head, quad),
                       scale);
    }
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) generate_q(cuda_attend_pass pass)
{
    constexpr uint32_t quads = HEAD_DIM / 4, heads = KV_HEADS * GROUP;
    let_next_begin();
    uint32_t position = pass.rows[blockIdx.x].keys - 1;
    for (uint32_t at = threadIdx.x; at < heads * quads; at += blockDim.x) {
        float4 x = generated(pass.q_source[blockIdx.x], position, pass.layer, VALUES_Q, at / quads,
                             at % quads);
        size_t element = ((size_t)blockIdx.x * heads * quads + at) * 4;
        store_element<Q_DTYPE>(pass.q, element, x.x);
        store_element<Q_DTYPE>(pass.q, element + 1, x.y);
        store_element<Q_DTYPE>(pass.q, element + 2, x.z);
        store_element<Q_DTYPE>(pass.q, element + 3, x.w);
    }
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

/* A thread block a head, a thread an element of it, which reads all states before it writes. */
extern "C" __global__ void __launch_bounds__(HEAD_DIM_MAX) merge_states(cuda_merge_states_pass pass)
{
    size_t head = blockIdx.x;
    float largest = -INFINITE, sum = 0, o = 0;
    for (uint32_t i = 0; i < pass.states; i++)
        largest = fmaxf(largest, pass.lse[i * (size_t)pass.heads + head]);
    for (uint32_t i = 0; i < pass.states && largest != -INFINITE; i++) {
        size_t at = i * (size_t)pass.heads + head;
        float w = expf(pass.lse[at] - largest);
        sum += w;
        if (w > 0 && threadIdx.x < pass.head_dim)
            o += w * load_any((dtype)pass.dtype, pass.o, at * pass.head_dim + threadIdx.x);
    }
    __syncthreads(); /* every lse is read, which may be written in place */
    if (threadIdx.x < pass.head_dim)
        store_any((dtype)pass.dtype, pass.merged_o, head * pass.head_dim + threadIdx.x, sum > 0 ? o / sum : 0.0f);
    if (threadIdx.x == 0)
        pass.merged_lse[head] = sum > 0 ? largest + logf(sum) : -INFINITE;
}
