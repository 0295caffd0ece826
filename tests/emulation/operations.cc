/* SPDX-License-Identifier: Apache-2.0 */
/* operations.cc - compares, reads and merges of steps by the CUDA backend, on the CPU: its host side as it
 * is, on a driver that is a stub (tests/cuda/stub_driver.c) and runs the kernels of pool.cu, for one
 * geometry that the compiler is told (-DHEAD_DIM= and so on, and -DGIVEN=, the format in which k and v are
 * handed in).
 *
 * The tests are those of tests/conformance/operations.c. Sequences are fed by appends, so append,
 * change_tables and copy_slots run too. Kernels of attention are launched, but do nothing. */
#include "tests/emulation/cuda_on_host.h"

extern "C" {
#include "kernels/numeric.h"
#include "kernels/values.h"
#include "tests/conformance/operations.h"
}

#include "kernels/cuda/device/pool.cu"

#include <cstdio>
#include <dlfcn.h>

enum { LAYERS = 2, SEQUENCES = 5, STRIDE = 48, SEED = 11 };

static const uint32_t lengths[SEQUENCES] = {1, 41, 0, 117, 64};
static uint64_t launches;

/* What the driver is told to launch; with a warp, where the number of threads does not matter. */
static void run(const char *kernel, const unsigned grid[3], unsigned threads, const void *arguments)
{
    const emulated_index at = {grid[0], grid[1], grid[2]};
    const auto &operations = *(const cuda_operations_pass *)arguments;
    launches++;
    if (strcmp(kernel, "change_tables") == 0)
        emulate(at, EMULATED_LANES, 0, [&] { change_tables(*(const cuda_list_pass *)arguments); });
    else if (strcmp(kernel, "copy_slots") == 0)
        emulate(at, EMULATED_LANES, 0, [&] { copy_slots(*(const cuda_list_pass *)arguments); });
    else if (strcmp(kernel, "append") == 0)
        emulate(at, EMULATED_LANES, 0, [&] { append(*(const cuda_append_pass *)arguments); });
    else if (strcmp(kernel, "compare_kv") == 0)
        emulate(at, EMULATED_LANES, 0, [&] { compare_kv(operations); });
    else if (strcmp(kernel, "read_kv") == 0)
        emulate(at, EMULATED_LANES, 0, [&] { read_kv(operations); });
    else if (strcmp(kernel, "merge_states") == 0)
        emulate(at, threads, 0, [&] { merge_states(operations); });
    else if (strcmp(kernel, "stamp") != 0)
        launches--;
}

struct world {
    geometry g;
    model_constants c;
    std::vector<float> k_scale, v_scale;
    std::vector<uint32_t> tables;
    attention *a;
};

static void row_of(void *cookie, bool stands, uint32_t sequence, uint32_t position, uint32_t layer,
                   enum values_tensor tensor, uint32_t head, float *row)
{
    const world *w = static_cast<world *>(cookie);
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    float scale = (tensor == VALUES_K ? w->k_scale : w->v_scale)[layer * KV_HEADS + head];
    values_row({SEED, sequence, 1}, position, layer, tensor, head, HEAD_DIM, row);
    numeric_from_float(GIVEN, row, HEAD_DIM, rounded);
    numeric_to_float(GIVEN, rounded, HEAD_DIM, row);
    if (!stands)
        return;
    for (uint32_t d = 0; GIVEN != KV_DTYPE && d < HEAD_DIM; d++)
        row[d] /= scale;
    numeric_from_float(KV_DTYPE, row, HEAD_DIM, rounded);
    numeric_to_float(KV_DTYPE, rounded, HEAD_DIM, row);
}

static bool open_backend(world &w)
{
    char error[ATTENTION_ERROR_BYTES] = "";
    uint32_t blocks = 0;
    w.g.layers = LAYERS;
    w.g.query_heads = KV_HEADS * GROUP;
    w.g.kv_heads = KV_HEADS;
    w.g.head_dim = HEAD_DIM;
    w.g.block_size = BLOCK_SIZE;
    w.g.dtype = Q_DTYPE;
    w.g.kv_dtype = KV_DTYPE;
    w.g.layout = LAYOUT;
    w.g.scale = 1;
    for (uint32_t i = 0; i < LAYERS * KV_HEADS; i++) {
        w.k_scale.push_back(dtype_is_fp8(KV_DTYPE) ? 0.03F + 0.01F * (float)i : 1);
        w.v_scale.push_back(dtype_is_fp8(KV_DTYPE) ? 0.5F + 0.25F * (float)i : 1);
    }
    w.c.k_scale = w.k_scale.data();
    w.c.v_scale = w.v_scale.data();
    for (uint32_t length : lengths)
        blocks += length / BLOCK_SIZE + 1;
    attention_options o = {};
    o.l2_prefetch = true;
    o.backend = "cuda";
    o.isa = "auto";
    o.cache = "none";
    o.geometry = &w.g;
    o.constants = &w.c;
    o.blocks = blocks;
    o.rows_max = 16;
    o.partials_max = 16;
    o.table_rows = SEQUENCES;
    o.table_stride = STRIDE;
    w.tables.assign(SEQUENCES * STRIDE, 0xffffffff);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        for (uint32_t i = 0; i * BLOCK_SIZE < lengths[s]; i++)
            w.tables[s * STRIDE + i] = --blocks;
    }
    if (attention_open(&o, &w.a, error) == 0)
        return true;
    printf("cannot open the backend: %s\n", error);
    return false;
}

/* Append all tokens, layer by layer. */
static void feed(world &w)
{
    const size_t row_bytes = KV_HEADS * HEAD_DIM * dtype_bytes(GIVEN);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        for (uint32_t layer = 0; layer < LAYERS && lengths[s]; layer++) {
            const size_t bytes = 2 * lengths[s] * row_bytes;
            uint8_t *k = (uint8_t *)attention_host_memory(w.a, bytes), *v = k + bytes / 2;
            for (uint32_t i = 0; i < lengths[s] * KV_HEADS; i++) {
                float row[HEAD_DIM];
                for (int tensor = VALUES_K; tensor <= VALUES_V; tensor++) {
                    row_of(&w, false, s, i / KV_HEADS, layer, (values_tensor)tensor, i % KV_HEADS, row);
                    numeric_from_float(GIVEN, row, HEAD_DIM,
                                       (tensor == VALUES_K ? k : v) + i * row_bytes / KV_HEADS);
                }
            }
            const kv_append append = {s, 0, lengths[s], k, v, {}};
            attention_pass pass = {};
            pass.layer = layer;
            pass.appends = &append;
            pass.append_count = 1;
            pass.source_dtype = GIVEN;
            const table_use use = {s, STRIDE, 1};
            attention_step step = {};
            step.tables = w.tables.data();
            step.stride = STRIDE;
            step.uses = &use;
            step.use_count = 1;
            step.passes = &pass;
            step.pass_count = 1;
            attention_await(w.a, attention_submit(w.a, &step));
            attention_free_host_memory(w.a, k, bytes);
        }
    }
}

/* A pass that fills the GPU ahead of one whose rows have no keys, and so no work tiles to be fetched ahead:
 * twice, since plans are known the second time. It only has to come back; attention itself is not
 * emulated. */
static void attend_ahead_of_nothing(world &w)
{
    enum { ROWS = 8 };
    const plan_query seeing[ROWS] = {{1, 41}, {1, 41}, {1, 41}, {1, 41}, {1, 41}, {1, 41}, {1, 41}, {1, 41}},
                     blind[1] = {{2, 0}};
    work_tile work_tiles[ROWS];
    uint32_t work_tile_queries[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        work_tiles[i] = {1, 0, 1, i, 1, PLAN_NO_PARTIAL};
        work_tile_queries[i] = i;
    }
    const plan_merge nothing = {0, 0, 0};
    const partial_ref none[1] = {};
    const plan full = {seeing, work_tiles, work_tile_queries, nullptr, nullptr, ROWS, ROWS, 0, 0, nullptr},
               empty = {blind, nullptr, nullptr, &nothing, none, 1, 0, 1, 0, nullptr};
    const value_source sources[ROWS] = {};
    const size_t bytes = ROWS * KV_HEADS * GROUP * HEAD_DIM * dtype_bytes(Q_DTYPE);
    void *o = attention_host_memory(w.a, bytes);
    attention_pass passes[4] = {};
    for (uint32_t i = 0; i < 4; i++) {
        passes[i].layer = i % LAYERS;
        passes[i].plan = i % 2 ? &empty : &full;
        passes[i].q_source = sources;
        passes[i].o = o;
    }
    const table_use uses[2] = {{1, STRIDE, 1}, {2, STRIDE, 1}};
    attention_step step = {};
    step.tables = w.tables.data();
    step.stride = STRIDE;
    step.uses = uses;
    step.use_count = 2;
    step.passes = passes;
    step.pass_count = 4;
    attention_await(w.a, attention_submit(w.a, &step));
    attention_free_host_memory(w.a, o, bytes);
}

int main()
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *hook = driver ? dlsym(driver, "stub_launch") : nullptr;
    world w = {};
    if (!hook || !open_backend(w)) /* whose kernels do nothing until here */
        return 2;
    *(decltype(&run) *)hook = run;
    feed(w);
    operations_world operations = {};
    operations.attention = w.a;
    operations.g = &w.g;
    operations.tables = w.tables.data();
    operations.stride = STRIDE;
    operations.sequences = SEQUENCES;
    operations.lengths = lengths;
    operations.version = 1;
    operations.given = GIVEN;
    operations.row = row_of;
    operations.cookie = &w;
    const char *wrong = operations_fault(&operations);
    attend_ahead_of_nothing(w);
    if (wrong)
        puts(wrong);
    attention_close(w.a);
    return wrong != nullptr;
}
