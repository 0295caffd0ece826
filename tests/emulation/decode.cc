/* SPDX-License-Identifier: Apache-2.0 */
/* decode.cc - attention over a cache of the caller's own by the library (attnd_kernels_*), on the CPU, for one geometry that the compiler is
 * told: its host side as it is, on a driver that is a stub (tests/cuda/stub_driver.c) and runs store_tokens, write_tiles and merge. In place
 * of the kernels of attention the work tiles of a launch are computed in double precision, split groups too: so not their bits are tested,
 * but that with a plan, with lists that the GPU writes once and without, every key of every query is counted once. */
#include "tests/emulation/cuda_on_host.h"

extern "C" {
#include "kernels/numeric.h"
#include "library/attnd.h"
}

#include "kernels/cuda/device/pool.cu"

#include "kernels/cuda/device/merge.cu"

#include "kernels/cuda/device/tiles.cu"

#include <cstdio>
#include <dlfcn.h>
#include <random>

static const uint32_t HEADS = KV_HEADS * GROUP;
static std::mt19937 generator(5);
static std::string launched; /* names of the kernels of a call */

static float random_value()
{
    return std::normal_distribution<float>()(generator);
}

/* ---- in place of the kernels of attention */

/* One query head over some keys; m in units of ln 2. */
struct head_state {
    double m = -INFINITY, l = 0, o[HEAD_DIM] = {};

    void add(double of_m, double of_l, const double *of_o)
    {
        const double most = std::max(m, of_m);
        if (most == -INFINITY)
            return;
        const double into = std::exp2(m - most), from = std::exp2(of_m - most);
        l = l * into + of_l * from;
        for (uint32_t d = 0; d < HEAD_DIM; d++)
            o[d] = o[d] * into + of_o[d] * from;
        m = most;
    }
};

/* `block_of(token)`: where K of a token's block lies. */
template <typename F>
static head_state attend(F block_of, const cuda_pool &pool, const uint8_t *q, uint32_t kv_head,
                         plan_range keys, double scale)
{
    head_state state;
    for (uint32_t token = keys.first; token < keys.end; token++) {
        const uint8_t *row =
            block_of(token) + kv_head * pool.head_bytes + token % BLOCK_SIZE * pool.slot_bytes;
        double dot = 0, v[HEAD_DIM];
        for (uint32_t d = 0; d < HEAD_DIM; d++) {
            dot += (double)numeric_load(Q_DTYPE, q, d) * numeric_load(KV_DTYPE, row, d);
            v[d] = numeric_load(KV_DTYPE, row + pool.plane_bytes, d);
        }
        state.add(dot * scale * LOG2_E, 1, v);
    }
    return state;
}

static void finish(const cuda_attend_pass &pass, size_t at, const head_state &state)
{
    for (uint32_t d = 0; d < HEAD_DIM; d++) {
        const float x = state.l > 0 ? (float)(state.o[d] / state.l) : 0;
        numeric_from_float(Q_DTYPE, &x, 1, pass.o + (at * HEAD_DIM + d) * bytes_of(Q_DTYPE));
    }
    pass.lse[at] = state.l > 0 ? (float)(state.m * LN_2 + std::log(state.l)) : -INFINITY;
}

static head_state state_of_column(const cuda_attend_pass &pass, const cuda_work_tile &tile, uint32_t kv_head,
                                  uint32_t column)
{
    const cuda_work_tile_query &query =
        pass.work_tile_queries[tile.first_query + (tile.column + column) / GROUP];
    const size_t at = (size_t)query.query * HEADS + kv_head * GROUP + (tile.column + column) % GROUP;
    const plan_range all = plan_visible(query.keys, pass.window),
                     keys = {max(all.first, tile.seen.first), min(all.end, tile.seen.end)};
    const uint32_t first = tile.seen.first / TILE_TOKENS * TILE_TOKENS / BLOCK_SIZE;
    const auto block_of = [&](uint32_t token) {
        const uint32_t i = token / BLOCK_SIZE;
        const uint32_t block = i - first < CUDA_WORK_TILE_ENTRIES
                                   ? tile.entries[i - first]
                                   : pass.pool.tables[tile.table * pass.pool.stride + i];
        return pass.pool.bytes + block * pass.pool.block_bytes;
    };
    return attend(block_of, pass.pool, pass.q + at * HEAD_DIM * bytes_of(Q_DTYPE), kv_head, keys, pass.scale);
}

/* The work tiles of a place of the grid, which are one, or a split group. */
static void attend_group(const cuda_attend_pass &pass, uint32_t at)
{
    const uint32_t kv_head = at % KV_HEADS, splits = 1u << pass.split_bits;
    const cuda_work_tile *tiles = pass.work_tiles + (size_t)(at / KV_HEADS) * splits;
    for (uint32_t column = 0; column < tiles->columns; column++) {
        const uint32_t row = (tiles->column + column) / GROUP,
                       head = kv_head * GROUP + (tiles->column + column) % GROUP;
        head_state state;
        for (uint32_t i = 0; i < splits; i++) {
            const head_state split = state_of_column(pass, tiles[i], kv_head, column);
            state.add(split.m, split.l, split.o);
        }
        if (splits > 1 || tiles->partial == PLAN_NO_PARTIAL) {
            finish(pass, (size_t)pass.work_tile_queries[tiles->first_query + row].query * HEADS + head,
                   state);
            continue;
        }
        const size_t partial = (size_t)(tiles->partial + row) * HEADS + head;
        pass.partial_ml[2 * partial] = (float)state.m;
        pass.partial_ml[2 * partial + 1] = (float)state.l;
        for (uint32_t d = 0; d < HEAD_DIM; d++)
            pass.partial_o[partial * HEAD_DIM + d] = (float)state.o[d];
    }
}

/* What the driver is told to launch. */
static void run(const char *kernel, const unsigned grid[3], unsigned threads, const void *arguments)
{
    const auto &pass = *(const cuda_attend_pass *)arguments;
    const emulated_index at = {grid[0], grid[1], grid[2]};
    launched += std::string(kernel) + " ";
    if (strncmp(kernel, "attend", 6) == 0) {
        for (uint32_t i = 0; i < grid[0] >> (pass.split_bits - pass.cta_bits); i++)
            attend_group(pass, i);
    } else if (strcmp(kernel, "merge") == 0) {
        emulate(at, threads, merge_bytes(HEAD_DIM, threads, pass.merge_batch_size) / 4, [&] { merge(pass); });
    } else if (strcmp(kernel, "merge_spans") == 0) {
        emulate(at, threads, merge_bytes(HEAD_DIM, threads, pass.merge_batch_size) / 4,
                [&] { merge_spans(pass); });
    } else if (strcmp(kernel, "write_tiles") == 0) {
        const auto &tiles = *(const cuda_tiles_pass *)arguments;
        emulate(at, threads, TILES_WARPS + tiles.queries + 1, [&] { write_tiles(tiles); });
    } else if (strcmp(kernel, "store_tokens") == 0) {
        emulate(at, EMULATED_LANES, 0, [&] { store_tokens(*(const cuda_tokens_pass *)arguments); });
    } else {
        abort();
    }
}

/* ---- a batch */

struct batch {
    std::vector<int32_t> lengths;
    uint32_t shared, max_length, window; /* so many first tokens are all sequences' */
    std::vector<int32_t> starts;         /* rows of q of each sequence, from 0; empty: one */
    uint32_t spare;                      /* rows behind them, where the GPU finds whose they are */
};

static uint32_t rows_of(const batch &b)
{
    return b.starts.empty() ? (uint32_t)b.lengths.size() : (uint32_t)b.starts.back();
}

/* The sequence of a row, and its keys. */
static plan_query find_query(const batch &b, uint32_t row)
{
    uint32_t s = 0;
    if (b.starts.empty())
        return {row, (uint32_t)b.lengths[row]};
    while (b.starts[s + 1] <= (int32_t)row)
        s++;
    return {s, b.lengths[s] ? (uint32_t)b.lengths[s] - (b.starts[s + 1] - 1 - row) : 0};
}

struct world {
    attnd_kernels *kernels;
    uint32_t columns, blocks;
    std::vector<int32_t> tables;
    std::vector<uint16_t> cache, q, o;
    std::vector<float> lse, ones = std::vector<float>(KV_HEADS, 1);
};

static void fill(std::vector<uint16_t> &values)
{
    for (uint16_t &x : values) {
        const float value = random_value();
        numeric_from_float(Q_DTYPE, &value, 1, &x);
    }
}

static void make_world(world &w, const batch &b)
{
    const uint32_t n = (uint32_t)b.lengths.size();
    w.columns = b.max_length / BLOCK_SIZE + 1;
    w.tables.assign((size_t)n * w.columns, -1);
    w.blocks = b.shared / BLOCK_SIZE;
    for (uint32_t s = 0; s < n; s++) {
        for (uint32_t i = 0; i * BLOCK_SIZE < (uint32_t)b.lengths[s]; i++)
            w.tables[s * w.columns + i] = (int32_t)(i < b.shared / BLOCK_SIZE ? i : w.blocks++);
    }
    w.cache.resize((size_t)w.blocks * 2 * KV_HEADS * BLOCK_SIZE * HEAD_DIM);
    w.q.resize((size_t)(rows_of(b) + b.spare) * HEADS * HEAD_DIM);
    fill(w.cache);
    fill(w.q);
}

/* Tokens that are stored stand where they belong, and nothing else is touched. */
static bool append_is_right(world &w)
{
    enum { TOKENS = 5, BLOCKS = 3 };
    const int64_t slots[TOKENS] = {BLOCK_SIZE, 3 * BLOCK_SIZE - 1, -1, 0, BLOCK_SIZE + 1};
    const size_t row = (size_t)KV_HEADS * HEAD_DIM, plane = row * BLOCK_SIZE;
    std::vector<uint16_t> k(TOKENS * row), v(TOKENS * row), cache(2 * BLOCKS * plane, 0x7fff), wanted = cache;
    fill(k);
    fill(v);
    for (uint32_t i = 0; i < TOKENS * row; i++) {
        const uint32_t token = i / row, head = i / HEAD_DIM % KV_HEADS;
        if (slots[token] < 0)
            continue;
        const size_t at = (slots[token] / BLOCK_SIZE * 2 * KV_HEADS + head) * BLOCK_SIZE * HEAD_DIM +
                          slots[token] % BLOCK_SIZE * HEAD_DIM + i % HEAD_DIM;
        wanted[at] = k[i];
        wanted[at + plane] = v[i];
    }
    attnd_cache_call call = {};
    void *const there = cache.data();
    call.size = sizeof call;
    call.kind = ATTND_STORE;
    call.count = TOKENS;
    call.key = k.data();
    call.value = v.data();
    call.key_row = call.value_row = row;
    call.slots = slots;
    call.k_scale = call.v_scale = w.ones.data();
    call.dtype_code = 4;
    call.dtype_bits = 16;
    call.key_caches = &there;
    call.layers = 1;
    if (attnd_kernels_cache(w.kernels, &call) == ATTND_OK && cache == wanted)
        return true;
    printf("tokens are not stored where they belong: %s\n", attnd_error());
    return false;
}

enum way { PLANNED, WRITTEN_ONCE, WRITTEN };

/* Memory that holds NaN, from a multiple of 16 bytes on, as malloc() gives it. */
static void *room_of(std::vector<uint64_t> &memory, uint64_t bytes)
{
    memory.assign((bytes + 7) / 8, 0x7ff8000000000000u);
    return memory.data();
}

static int decode(world &w, const batch &b, way how, bool forgets_starts = false)
{
    const uint32_t n = (uint32_t)b.lengths.size(), rows = rows_of(b) + (how == PLANNED ? 0 : b.spare);
    uint64_t launches[ATTND_LAUNCHES_BYTES / 8];
    std::vector<uint64_t> lists, workspace;
    attnd_plan plan = {};
    plan.size = sizeof plan;
    plan.block_tables = how == PLANNED ? w.tables.data() : nullptr;
    plan.seq_lens = how == PLANNED ? b.lengths.data() : nullptr;
    plan.table_row = w.columns;
    plan.sequences = n;
    plan.max_seq_len = b.max_length;
    plan.window = b.window;
    plan.launches = launches;
    plan.rows = b.starts.empty() ? 0 : rows;
    plan.query_start_loc = b.starts.empty() || how != PLANNED ? nullptr : b.starts.data();
    int rc = attnd_kernels_plan(w.kernels, &plan);
    void *room = room_of(lists, plan.lists_bytes);
    if (rc == ATTND_OK && how == PLANNED) {
        plan.lists = room;
        rc = attnd_kernels_plan(w.kernels, &plan);
    }
    w.o.assign(w.q.size(), 0x7fff);
    w.lse.assign((size_t)rows * HEADS, NAN);
    attnd_paged_call call = {};
    call.size = sizeof call;
    call.query = w.q.data();
    call.out = w.o.data();
    call.key_cache = w.cache.data();
    call.block_tables = w.tables.data();
    call.seq_lens = b.lengths.data();
    call.k_scale = call.v_scale = w.ones.data();
    call.workspace = (float *)room_of(workspace, plan.workspace_bytes);
    call.table_row = w.columns;
    call.sequences = n;
    call.scale = 0.125F;
    call.launches = launches;
    call.lists = room;
    call.blocks = w.blocks;
    call.lse = w.lse.data();
    call.rows = plan.rows;
    call.query_start_loc = b.starts.empty() || forgets_starts ? nullptr : b.starts.data();
    launched.clear();
    if (rc == ATTND_OK && how == WRITTEN_ONCE) {
        call.find = 1;
        rc = attnd_kernels_paged(w.kernels, &call);
    }
    call.attend = 1;
    call.find = how == WRITTEN;
    return rc == ATTND_OK ? attnd_kernels_paged(w.kernels, &call) : rc;
}

/* What a plan says of rows that cannot be. */
static bool wrong_rows_are_refused(world &w)
{
    const struct {
        std::vector<int32_t> starts;
        uint32_t rows;
        const char *sentence;
    } wrong[] = {
        {{0, 2, 1}, 0, "wants 3 numbers, rising from 0"},
        {{1, 2, 3}, 0, "wants 3 numbers, rising from 0"},
        {{0, 0, INT32_MAX}, 0, "sequence 1 has 7 tokens, and 2147483647 rows ask for the last of them"},
        {{0, 0, 0}, 0, "has no rows"},
        {{0, 1, 8}, 9, "are 8 by query_start_loc, and 9 are said"}};
    for (const auto &of : wrong) {
        const batch b = {{0, 7}, 0, 100, 0, of.starts, 0};
        uint64_t launches[ATTND_LAUNCHES_BYTES / 8];
        attnd_plan plan = {};
        make_world(w, {{0, 7}, 0, 100, 0});
        plan.size = sizeof plan;
        plan.block_tables = w.tables.data();
        plan.seq_lens = b.lengths.data();
        plan.table_row = w.columns;
        plan.sequences = 2;
        plan.max_seq_len = 100;
        plan.launches = launches;
        plan.query_start_loc = of.starts.data();
        plan.rows = of.rows;
        if (attnd_kernels_plan(w.kernels, &plan) != ATTND_ERR_INVALID ||
            !strstr(attnd_error(), of.sentence)) {
            printf("not refused for \"%s\": %s\n", of.sentence, attnd_error());
            return false;
        }
    }
    const batch several = {{30, 7}, 0, 100, 0, {0, 2, 5}, 0};
    make_world(w, several);
    if (decode(w, several, WRITTEN, true) != ATTND_ERR_INVALID ||
        !strstr(attnd_error(), "2 sequences have 5 rows")) {
        printf("rows without query_start_loc: %s\n", attnd_error());
        return false;
    }
    return true;
}

static bool is_right(const world &w, const batch &b, way how)
{
    cuda_pool pool = {};
    pool.slot_bytes = HEAD_DIM * 2;
    pool.head_bytes = BLOCK_SIZE * pool.slot_bytes;
    pool.plane_bytes = KV_HEADS * pool.head_bytes;
    for (uint32_t i = 0; i < w.lse.size(); i++) {
        const uint32_t kv_head = i % HEADS / GROUP;
        const bool is_spare = i / HEADS >= rows_of(b);
        const plan_query query = is_spare ? plan_query{0, 0} : find_query(b, i / HEADS);
        const uint32_t s = query.table;
        const auto block_of = [&](uint32_t token) {
            const int64_t block = w.tables[s * w.columns + token / BLOCK_SIZE];
            return (const uint8_t *)w.cache.data() + block * (int64_t)(2 * pool.plane_bytes);
        };
        const head_state state = attend(block_of, pool, (const uint8_t *)&w.q[(size_t)i * HEAD_DIM], kv_head,
                                        plan_visible(query.keys, b.window), 0.125);
        const double lse = state.l > 0 ? state.m * LN_2 + std::log(state.l) : -INFINITY;
        bool right = lse == w.lse[i] || std::fabs(lse - w.lse[i]) < 1e-4;
        for (uint32_t d = 0; d < HEAD_DIM; d++) {
            const double o = state.l > 0 ? state.o[d] / state.l : 0;
            right &= std::fabs(o - numeric_load(Q_DTYPE, (const uint8_t *)w.o.data(),
                                                (size_t)i * HEAD_DIM + d)) <= 0.01 + 0.01 * std::fabs(o);
        }
        if (!right) {
            printf("way %d, %zu sequences, %u shared, window %u: head %u of row %u (sequence %u, %u keys) is "
                   "wrong, "
                   "lse %g, wanted %g\n",
                   how, b.lengths.size(), b.shared, b.window, i % HEADS, i / HEADS, s, query.keys,
                   (double)w.lse[i], lse);
            return false;
        }
    }
    return true;
}

int main()
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *hook = driver ? dlsym(driver, "stub_launch") : nullptr;
    attnd_shape shape = {};
    world w;
    shape.size = sizeof shape;
    shape.query_heads = HEADS;
    shape.kv_heads = KV_HEADS;
    shape.head_dim = HEAD_DIM;
    shape.block_size = BLOCK_SIZE;
    shape.dtype_code = shape.kv_dtype_code = 4;
    shape.dtype_bits = shape.kv_dtype_bits = 16;
    shape.layout = ATTND_OWN;
    if (!hook || attnd_kernels_open(&shape, &w.kernels) != ATTND_OK) {
        puts(hook ? attnd_error() : "no stub of a driver");
        return 2;
    }
    *(decltype(&run) *)hook = run;
    const batch batches[] = {{{1, 0, 30, 555, 64, 65, 1024}, 0, 1024, 0},
                             {{700, 701, 650, 1300, 3, 700}, 640, 1500, 0},
                             {{5000}, 0, 5000, 0},
                             {{1000}, 0, 9000, 0},
                             {{0, 0}, 0, 100, 0},
                             {{2100, 300, 4097, 77}, 0, 5000, 300},
                             {std::vector<int32_t>(40, 520), 512, 520, 0},
                             {{GROUP > 8 ? 9000 : 66000, 5}, 0, 66000, 0},
                             {{30, 0, 1000, 65, 7, 4100}, 0, 5000, 0, {0, 1, 5, 10, 10, 17, 20}, 2},
                             {{800, 801, 700}, 640, 1000, 0, {0, 12, 13, 17}, 0},
                             {{300, 700}, 0, 700, 128, {0, 20, 24}, 3}};
    bool ok = append_is_right(w) && wrong_rows_are_refused(w), merged = false, grouped = false;
    for (const batch &b : batches) {
        make_world(w, b);
        for (const way how : {PLANNED, WRITTEN_ONCE, WRITTEN}) {
            const int rc = decode(w, b, how);
            if (rc != ATTND_OK)
                puts(attnd_error());
            ok = rc == ATTND_OK && is_right(w, b, how) && ok;
            merged |= how == PLANNED && launched.find("merge") != std::string::npos;
            grouped |= how == PLANNED && launched.find("merge") == std::string::npos && b.lengths.size() == 1;
        }
    }
    /* a shared prefix whose segments fill the stub's four processors once, with enough to be read beside it: one of them is late */
    if (KV_HEADS == 1 && GROUP == 2) {
        const batch b = {std::vector<int32_t>(40, 16384 + 200), 16384, 16600, 0};
        make_world(w, b);
        const int rc = decode(w, b, PLANNED);
        ok = rc == ATTND_OK && is_right(w, b, PLANNED) && ok;
        if (launched != "attend_wide_128 attend_8 attend_wide_128 merge ") {
            printf("no work tile was late: %s\n", launched.c_str());
            ok = false;
        }
    }
    attnd_kernels_close(w.kernels);
    const bool all_kinds =
        (merged && grouped) || KV_HEADS == 1; /* where there are as many tasks as make both */
    if (!all_kinds)
        puts("no plan had merges, or none a split group");
    return !(ok && all_kinds);
}
