/* SPDX-License-Identifier: Apache-2.0 */
/* paged.cc - append, paged_v1, paged_v2 and paged_reduce on the CPU, for one geometry that the compiler
 * is told (-DHEAD_DIM= and so on, as kernels/cuda/compiler.c tells NVRTC, and -DALIBI=).
 *
 * The pool is full of NaN and the tables' tails are -1, so nothing but a sequence's own slots may be
 * looked at. What append stores is compared with kv_pool.h, outputs and lse with reference_query(): of values
 * that append generates, and of given ones whose sums depend on their order. Of scores that are infinite
 * outputs have to lie within the values (tests/conformance/extreme.h; kernels/values.h has the others). */
#include "tests/emulation/cuda_on_host.h"

extern "C" {
#include "kernels/kv_pool.h"
#include "kernels/numeric.h"
#include "kernels/reference.h"
#include "kernels/values.h"
#include "tests/conformance/extreme.h"
}

#include "kernels/cuda/device/pool.cu"

#include "kernels/cuda/device/paged.cu"

#include <cstdio>

enum { SEQUENCES = 4, STRIDE = 96, SEED = 11, PARTITIONS = 2 };

static const uint32_t HEADS = KV_HEADS * GROUP;
static const uint32_t lengths[SEQUENCES] = {1, 33, 0, 640}; /* the last one has two partitions */

enum values { GENERATED, WIDE, EXTREME };

struct world {
    enum values values;
    geometry g;
    model_constants c;
    std::vector<float> k_scale, v_scale, alibi;
    kv_pool pool;
    std::vector<uint32_t> tables;
    std::vector<uint8_t> q;      /* [SEQUENCES][HEADS][HEAD_DIM] of Q_DTYPE */
    std::vector<float> q_values; /* the same as f32 */
};

/* One head of a token, rounded to the format of q, in which k and v are given too. */
static void value_row(const world &w, value_source source, uint32_t position, values_tensor tensor,
                      uint32_t head, uint8_t *to)
{
    float row[HEAD_DIM_MAX];
    source.wide = w.values != WIDE ? 0 : dtype_is_fp8(KV_DTYPE) ? 1 : 11;
    if (w.values == EXTREME)
        extreme_row(source, position, 0, tensor, head, HEAD_DIM, tensor == VALUES_Q ? Q_DTYPE : KV_DTYPE,
                    row);
    else
        values_row(source, position, 0, tensor, head, HEAD_DIM, row);
    numeric_from_float(Q_DTYPE, row, HEAD_DIM, to);
}

static size_t element(uint32_t row, uint32_t head)
{
    return ((size_t)row * HEADS + head) * HEAD_DIM;
}

static bool make_world(world &w)
{
    char error[ATTENTION_ERROR_BYTES];
    bool scaled = dtype_is_fp8(KV_DTYPE);
    uint32_t blocks = 0;
    w.g.layers = 1;
    w.g.query_heads = HEADS;
    w.g.kv_heads = KV_HEADS;
    w.g.head_dim = HEAD_DIM;
    w.g.block_size = BLOCK_SIZE;
    w.g.dtype = Q_DTYPE;
    w.g.kv_dtype = KV_DTYPE;
    w.g.layout = LAYOUT_VLLM;
    w.g.scale = 1 / sqrtf(HEAD_DIM);
    w.g.sparse = {SPARSE_LOCAL_BLOCKS, SPARSE_VERT_STRIDE, SPARSE_BLOCK_SIZE, SPARSE_TP_RANK,
                  SPARSE_HEAD_STEP};
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        w.k_scale.push_back(scaled ? 0.03F + 0.01F * (float)head : 1);
        w.v_scale.push_back(scaled ? 0.5F + 0.25F * (float)head : 1);
    }
    for (uint32_t head = 0; head < HEADS; head++)
        w.alibi.push_back(exp2f(-(float)(head % 8 + 1)));
    w.c.k_scale = w.k_scale.data();
    w.c.v_scale = w.v_scale.data();
    w.c.alibi = ALIBI ? w.alibi.data() : nullptr;
    for (uint32_t length : lengths)
        blocks += length / BLOCK_SIZE + 1;
    if (kv_pool_init(&w.pool, &w.g, blocks, "pool.blocks", error) != 0)
        return false;
    memset(w.pool.bytes, 0xff, w.pool.total_bytes);
    w.tables.assign(SEQUENCES * STRIDE, 0xffffffff);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        for (uint32_t i = 0; i * BLOCK_SIZE < lengths[s]; i++)
            w.tables[s * STRIDE + i] = --blocks;
    }
    w.q.resize(element(SEQUENCES, 0) * dtype_bytes(Q_DTYPE));
    w.q_values.resize(element(SEQUENCES, 0));
    for (uint32_t i = 0; i < SEQUENCES * HEADS; i++) {
        uint8_t *to = w.q.data() + (size_t)i * HEAD_DIM * dtype_bytes(Q_DTYPE);
        value_row(w, {SEED, 5000}, i / HEADS, VALUES_Q, i % HEADS, to);
        numeric_to_float(Q_DTYPE, to, HEAD_DIM, &w.q_values[(size_t)i * HEAD_DIM]);
    }
    return true;
}

static cuda_pool device_pool(world &w)
{
    return {w.pool.bytes,      w.pool.layer_bytes, w.pool.block_bytes, w.pool.plane_bytes,
            w.pool.head_bytes, w.pool.slot_bytes,  w.tables.data(),    STRIDE};
}

/* [tokens][KV_HEADS][HEAD_DIM] of a sequence. */
static std::vector<uint8_t> given(const world &w, uint32_t sequence, values_tensor tensor)
{
    size_t bytes = HEAD_DIM * dtype_bytes(Q_DTYPE);
    std::vector<uint8_t> rows(lengths[sequence] * KV_HEADS * bytes);
    for (uint32_t i = 0; i < lengths[sequence] * KV_HEADS; i++)
        value_row(w, {SEED, sequence}, i / KV_HEADS, tensor, i % KV_HEADS, &rows[i * bytes]);
    return rows;
}

/* Append all tokens and compare what is stored with what the host stores. */
static bool append_agrees(world &w)
{
    std::vector<cuda_append> appends;
    std::vector<uint8_t> bytes(w.pool.total_bytes);
    std::vector<uint8_t> k[SEQUENCES], v[SEQUENCES];
    uint32_t tokens = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (w.values != GENERATED) {
            k[s] = given(w, s, VALUES_K);
            v[s] = given(w, s, VALUES_V);
        }
        if (lengths[s])
            appends.push_back({tokens,
                               lengths[s],
                               s,
                               0,
                               k[s].empty() ? nullptr : k[s].data(),
                               v[s].empty() ? nullptr : v[s].data(),
                               {SEED, s}});
        tokens += lengths[s];
    }
    const cuda_append_pass pass = {device_pool(w),   appends.data(),  (uint32_t)appends.size(), 0, Q_DTYPE, 0,
                                   w.k_scale.data(), w.v_scale.data()};
    emulate({tokens, 1, 1}, EMULATED_LANES, 0, [&] { append(pass); });
    memcpy(bytes.data(), w.pool.bytes, bytes.size());
    memset(w.pool.bytes, 0xff, w.pool.total_bytes);
    attention_pass host = {};
    host.source_dtype = Q_DTYPE;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        const kv_append one = {s,
                               0,
                               lengths[s],
                               k[s].empty() ? nullptr : k[s].data(),
                               v[s].empty() ? nullptr : v[s].data(),
                               {SEED, s}};
        kv_pool_append(&w.pool, &w.c, &host, &one, &w.tables[s * STRIDE]);
    }
    return memcmp(bytes.data(), w.pool.bytes, bytes.size()) == 0;
}

struct sequence_of {
    const world *w;
    uint32_t sequence;
};

static void load_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const sequence_of *s = static_cast<sequence_of *>(cookie);
    uint32_t block = s->w->tables[s->sequence * STRIDE + position / BLOCK_SIZE];
    uint8_t row[HEAD_DIM_MAX * sizeof(float)];
    kv_pool_load(&s->w->pool, 0, block, position % BLOCK_SIZE, kv_head, false, row);
    numeric_to_float(KV_DTYPE, row, HEAD_DIM, k);
    kv_pool_load(&s->w->pool, 0, block, position % BLOCK_SIZE, kv_head, true, row);
    numeric_to_float(KV_DTYPE, row, HEAD_DIM, v);
}

/* Whether every o lies within the values of its sequence, and no lse is NaN; values are below 4. */
static bool outputs_within_values(const world &w, const uint8_t *o, const float *lse)
{
    for (size_t i = 0; i < SEQUENCES * HEADS; i++) {
        float most = 4.3F; /* after two roundings to fp8 */
        for (uint32_t d = 0; d < HEAD_DIM; d++) {
            float x = numeric_load(Q_DTYPE, o, i * HEAD_DIM + d);
            if (fabsf(x) <= (lse[i] == -INFINITY ? 0 : most) && !std::isnan(lse[i]))
                continue;
            printf("extremes: o of sequence %zu, head %zu is %g, lse %g\n", i / HEADS, i % HEADS, (double)x,
                   (double)lse[i]);
            return false;
        }
    }
    return true;
}

static bool attention_agrees(world &w, bool v2)
{
    const double unit = Q_DTYPE == DTYPE_F32 ? 2e-6 : Q_DTYPE == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    std::vector<uint8_t> o(w.q.size(), 0xff);
    std::vector<float> lse(SEQUENCES * HEADS, NAN), ml(2 * PARTITIONS * lse.size(), NAN),
        partial_o(PARTITIONS * w.q_values.size(), NAN);
    plan_query queries[SEQUENCES];
    cuda_paged_pass pass = {};
    cuda_attend_pass &a = pass.attend;
    double worst = 0, largest = 0, worst_lse = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++)
        queries[s] = {s, lengths[s]};
    a.pool = device_pool(w);
    a.queries = queries;
    a.q = w.q.data();
    a.o = o.data();
    a.lse = lse.data();
    a.partial_ml = ml.data();
    a.partial_o = partial_o.data();
    a.k_scale = w.c.k_scale;
    a.v_scale = w.c.v_scale;
    a.alibi = w.c.alibi;
    a.scale = w.g.scale;
    pass.partitions = v2 ? PARTITIONS : 1;
    size_t shared = max<size_t>(v2 ? PAGED_PARTITION : lengths[SEQUENCES - 1], 2 * HEAD_DIM);
    emulate({HEADS, SEQUENCES, pass.partitions}, CUDA_THREADS, shared,
            [&] { v2 ? paged_v2(pass) : paged_v1(pass); });
    if (v2)
        emulate({HEADS, SEQUENCES, 1}, CUDA_THREADS, 0, [&] { paged_reduce(pass); });
    if (w.values == EXTREME)
        return outputs_within_values(w, o.data(), lse.data());
    for (uint32_t i = 0; i < SEQUENCES * HEADS; i++) {
        double expected[HEAD_DIM_MAX], expected_lse;
        sequence_of s = {&w, i / HEADS};
        reference_query(&w.g, &w.c, 0, lengths[s.sequence], i % HEADS, &w.q_values[(size_t)i * HEAD_DIM],
                        load_kv, &s, expected, &expected_lse);
        for (uint32_t d = 0; d < HEAD_DIM; d++) {
            double error =
                fabs((double)numeric_load(Q_DTYPE, o.data(), (size_t)i * HEAD_DIM + d) - expected[d]);
            worst = error <= worst ? worst : error; /* a NaN is worse than anything */
            largest = max(largest, fabs(expected[d]));
        }
        double error = (double)lse[i] == expected_lse ? 0 : fabs((double)lse[i] - expected_lse);
        worst_lse = error <= worst_lse ? worst_lse : error;
    }
    if (worst <= unit * largest && worst_lse <= 1e-5)
        return true;
    printf("%s: o is off by %g (values up to %g), lse by %g\n", v2 ? "paged_v2" : "paged_v1", worst, largest,
           worst_lse);
    return false;
}

int main()
{
    bool ok = true;
    for (enum values values : {GENERATED, WIDE, EXTREME}) {
        world w = {};
        w.values = values;
        if (!make_world(w))
            return 2;
        if (!append_agrees(w)) {
            printf("append stores other bytes than the host, of values %d\n", values);
            return 1;
        }
        ok = attention_agrees(w, false) && ok;
        ok = attention_agrees(w, true) && ok;
        kv_pool_deinit(&w.pool);
    }
    return !ok;
}
