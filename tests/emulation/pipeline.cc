/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.cc - the ring by which K and V come into shared memory, on the CPU, for one geometry that the
 * compiler is told (-DHEAD_DIM= and so on, as kernels/cuda/compiler.c tells NVRTC).
 *
 * The property: whatever the order in which threads go on and copies arrive, consumers see of every key and
 * value of their work tile the pool's bytes, of values that nobody sees zeros, and all of them come to their
 * end.
 *
 * The method: the producer (producer.cuh) and the pipeline (kv_pipeline.cuh) are the device's own, of the
 * tiles of attend_mma.cu and attend_wide.cu. Barriers and copies are modelled (copies.h), and so is the
 * scheduler (fibers.h). The consumers here wait and release in the order of the kernels' loops, and compare
 * what lies in a stage between. The pool is NaN where the sequence has nothing, a stage is from the moment
 * that a copy into it is issued, and none may be issued before all have read what was there.
 *
 *   pipeline [SEED [COUNT]]   COUNT seeds from SEED on; a seed is a tile, a work tile and its splits, and all
 *                             choices of the scheduler. What fails says its seed. */
#define EMULATED_FIBERS
#include "tests/emulation/cuda_on_host.h"

extern "C" {
#include "kernels/cuda/compiler.h"
#include "kernels/kv_pool.h"
}

#include "kernels/cuda/device/attend_mma.cu"
#if WGMMA
#include "kernels/cuda/device/attend_wide.cu"
#endif

enum {
    SEEDS = 400,
    LAYERS = 2,
    LENGTH = 2990, /* of the sequence */
    SPARE = 3,     /* blocks that are nobody's */
    BLOCKS = (LENGTH + BLOCK_SIZE - 1) / BLOCK_SIZE + SPARE,
    STAGES_IN_ALL = PLAN_SPLITS_MAX * TILE_STAGES_MAX
};

static struct {
    geometry g;
    kv_pool pool;
    std::vector<uint32_t> table; /* its tail is -1 */
    uint8_t all_maps[2 * CUDA_MAP_BYTES];
} world;

/* What a seed chose. */
static struct {
    cuda_attend_pass pass;
    cuda_work_tile work_tiles[PLAN_SPLITS_MAX];
    float scales[KV_HEADS];
    uint32_t split_bytes, stage_bytes, stages, barriers; /* of the tile's shape */
    uint32_t readers;                                    /* lanes */
    uint64_t reads[STAGES_IN_ALL];                       /* lanes that have read a stage, of all its fills */
} run;

/* ---- the pool */

static const uint8_t *row_of(uint32_t token, uint32_t head, bool of_values)
{
    return kv_pool_key(&world.pool, run.pass.layer, world.table[token / BLOCK_SIZE], token % BLOCK_SIZE,
                       head) +
           of_values * world.pool.plane_bytes;
}

/* As make_maps() of cuda_memory.c describes the pool: all atoms of some slots a box, or one atom. */
static void make_maps()
{
    const uint32_t element = bytes_of(KV_DTYPE), part = SWIZZLE_BYTES / element,
                   atoms = HEAD_DIM % part ? 1 : HEAD_DIM / part,
                   stage_tokens = tile_shape_of(HEAD_DIM, element, 8, SM_BYTES, true).stage_tokens,
                   rows = tile_box_rows(BLOCK_SIZE, stage_tokens);
    const kv_pool &p = world.pool;
    for (uint32_t i = 0; i < 2; i++) {
        const emulated_map map = {
            p.bytes,
            element,
            {HEAD_DIM / atoms, BLOCK_SIZE, atoms, KV_HEADS, 2 * LAYERS * BLOCKS},
            {part, rows, i == 0 ? atoms : 1, 1, 1},
            {element, p.slot_bytes, SWIZZLE_BYTES, p.head_bytes, p.plane_bytes},
        };
        static_assert(sizeof map <= CUDA_MAP_BYTES, "it stands for one");
        memcpy(world.all_maps + i * CUDA_MAP_BYTES, &map, sizeof map);
    }
}

static bool make_world()
{
    char error[ATTENTION_ERROR_BYTES];
    uint32_t ids[BLOCKS];
    world.g.layers = LAYERS;
    world.g.query_heads = KV_HEADS * GROUP;
    world.g.kv_heads = KV_HEADS;
    world.g.head_dim = HEAD_DIM;
    world.g.block_size = BLOCK_SIZE;
    world.g.dtype = Q_DTYPE;
    world.g.kv_dtype = KV_DTYPE;
    world.g.layout = LAYOUT;
    if (kv_pool_init(&world.pool, &world.g, BLOCKS, "pool.blocks", error) != 0)
        return false;
    memset(world.pool.bytes, 0xff, world.pool.total_bytes);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const uint32_t other = emulated_random(i + 1);
        ids[i] = ids[other];
        ids[other] = i;
    }
    world.table.assign(ids, ids + BLOCKS - SPARE);
    for (run.pass.layer = 0; run.pass.layer < LAYERS; run.pass.layer++) {
        for (uint32_t i = 0; i < 2 * KV_HEADS * LENGTH; i++) {
            uint8_t *row = (uint8_t *)row_of(i / (2 * KV_HEADS), i / 2 % KV_HEADS, i % 2);
            for (uint32_t byte = 0; byte < HEAD_DIM * bytes_of(KV_DTYPE); byte++)
                row[byte] = (uint8_t)(1 + emulated_random(254));
        }
    }
    world.table.resize(world.table.size() + TILE_ENTRIES, 0xffffffff);
    make_maps();
    return true;
}

/* ---- who may write a stage, and what may be read */

static void must_be_read(uint32_t to, uint32_t)
{
    const uint32_t split = to / run.split_bytes, stage = to % run.split_bytes / run.stage_bytes;
    if (stage >= run.stages)
        return; /* behind the ring */
    const emulated_mbarrier &full = emulated_mbarrier_at(split * run.split_bytes + run.barriers + stage * 8);
    const uint64_t reads = run.reads[split * TILE_STAGES_MAX + stage];
    if (reads != (uint64_t)full.phase * run.readers)
        emulated_fail("stage %u of split %u is filled for its phase %u: %llu lanes have read before, of %llu",
                      stage, split, full.phase, (unsigned long long)reads,
                      (unsigned long long)full.phase * run.readers);
}

static bool is_somewhere(const void *from, uint32_t bytes)
{
    const uint8_t *at = (const uint8_t *)from, *pool = world.pool.bytes,
                  *table = (uint8_t *)world.table.data();
    return (at >= pool && at + bytes <= pool + world.pool.total_bytes) ||
           (at >= table && at + bytes <= table + world.table.size() * sizeof(uint32_t));
}

/* ---- a consumer */

template <class TILE, bool BY_WGMMA> struct consumer {
    using tiles = kv_pipeline<TILE>;
    using state = typename tiles::state;
    static constexpr tile_shape SHAPE = tiles::SHAPE;
    static constexpr uint32_t FILLS = tiles::FILLS, ROW_BYTES = tiles::ROW_BYTES,
                              READ_BYTES =
                                  SHAPE.padded_dim * bytes_of(KV_DTYPE); /* of a key, zeros of q behind */

    tiles ring;
    uint32_t kv_head;

    consumer(const cuda_work_tile &work_tile, uint32_t kv_head_, uint8_t *shared)
        : ring(run.pass, work_tile, kv_head_, shared), kv_head(kv_head_)
    {
    }

    /* 16 bytes of a row, as load_keys() and load_values() or wgmma's descriptors find them. */
    static const uint8_t *piece_at(uint32_t stage, uint32_t row, uint32_t byte)
    {
        const uint32_t by_group = stage + byte / SWIZZLE_BYTES * (TILE_TOKENS * SWIZZLE_BYTES) +
                                  row * SWIZZLE_BYTES + (byte % SWIZZLE_BYTES ^ row % 8 * 16),
                       at = BY_WGMMA ? by_group : swizzled<TILE::ATOM_ROWS, SHAPE.kv_row>(stage, row, byte);
        emulated_must_be_there(at, 16, "read");
        if (BY_WGMMA && !TMA)
            emulated_read_by_wgmma(at);
        return emulated_at(at);
    }

    void must_equal(const state &at, uint32_t token, bool of_values, uint32_t byte, const uint8_t *got,
                    const uint8_t *expected, uint32_t bytes) const
    {
        for (uint32_t i = 0; i < bytes; i++) {
            const uint32_t is = expected ? expected[i] : 0;
            if (got[i] != is)
                emulated_fail(
                    "%s of token %u (seen: %u to %u), stage %u, phase %u: byte %u is 0x%02x instead of "
                    "0x%02x",
                    of_values ? "V" : "K", token, ring.seen.first, ring.seen.end, at.stage, at.phase,
                    byte + i, got[i], is);
        }
    }

    void read_row(const state &at, uint32_t token, uint32_t row, bool of_values) const
    {
        const bool is_seen = plan_sees(ring.seen, token);
        const uint8_t *expected = is_seen ? row_of(token, kv_head, of_values) : nullptr;
        const uint32_t stage = ring.address(at);
        for (uint32_t byte = 0; byte < SHAPE.kv_row; byte += 16) {
            const uint8_t *piece = piece_at(stage, row, byte);
            const uint32_t there = byte < ROW_BYTES ? min(16u, ROW_BYTES - byte) : 0,
                           behind = min(16u, READ_BYTES - min(READ_BYTES, byte));
            if (is_seen || of_values)
                must_equal(at, token, of_values, byte, piece, expected ? expected + byte : nullptr, there);
            if (is_seen && !of_values && behind > there)
                must_equal(at, token, of_values, byte + there, piece + there, nullptr, behind - there);
        }
    }

    /* A lane's part of a fill that is there: each warp reads all of it. */
    void read(const state &at, uint32_t position, bool of_values) const
    {
        for (uint32_t row = lane(); row < SHAPE.stage_tokens; row += 32) {
            emulated_yield();
            read_row(at, position + row, row, of_values);
        }
        run.reads[threadIdx.y * TILE_STAGES_MAX + at.stage]++;
    }

    /* attend_mma.cu */
    void walk() const
    {
        for (uint32_t fill = 0; fill < ring.fills; fill += 2 * FILLS) {
            for (uint32_t u = 0; u < FILLS; u++) {
                ring.wait_full(fill + u);
                read(fill + u, ring.position_of(fill + u), false);
                ring.release(fill + u);
            }
            for (uint32_t u = 0; u < FILLS; u++) {
                ring.wait_values(fill + FILLS + u);
                read(fill + FILLS + u, ring.position_of(fill + FILLS + u), true);
                ring.release(fill + FILLS + u);
            }
        }
    }

    /* attend_wide.cu: keys a tile ahead of values. plain: all are seen. */
    void walk_ahead(bool plain) const
    {
        state keys(0), values(1);
        uint32_t position = ring.position_of(0);
        const uint32_t end = position + ring.fills / 2 * TILE_TOKENS;
        ring.wait_full(keys);
        ring.fence_for_wgmma();
        read(keys, position, false);
        ring.release(keys);
        keys.advance(2);
        bool are_there = false;
        while (position + TILE_TOKENS < end) {
            if (!are_there) {
                ring.wait_full(keys);
                ring.wait_full(values);
            }
            if (!plain)
                ring.clear_unseen_values(values, position);
            ring.fence_for_wgmma();
            read(keys, position + TILE_TOKENS, false);
            ring.fence_for_wgmma();
            ring.release(keys);
            state next_keys = keys, next_values = values;
            next_keys.advance(2);
            next_values.advance(2);
            are_there = __all_sync(ALL_LANES, ring.has_arrived(next_keys) & ring.has_arrived(next_values));
            read(values, position, true);
            ring.release(values);
            position += TILE_TOKENS;
            keys = next_keys;
            values = next_values;
        }
        ring.wait_full(values);
        if (!plain)
            ring.clear_unseen_values(values, position);
        ring.fence_for_wgmma();
        read(values, position, true);
        ring.release(values);
    }

    /* The splits of a thread block write their states over their stages, and read each other's. */
    void exchange() const
    {
        const uint32_t splits = 1u << run.pass.cta_bits, mark = 0x5a000000 + threadIdx.x,
                       here = shared_address(ring.stages) - threadIdx.y * SHAPE.bytes + threadIdx.x * 4;
        ring.sync(); /* its stages are read */
        store_shared(here + threadIdx.y * SHAPE.bytes, mark + (threadIdx.y << 16));
        if (run.pass.split_bits > run.pass.cta_bits)
            return; /* the cluster's barrier */
        named_barrier_sync(BARRIER_OF_SPLIT_GROUP, ring.consumers * 32 << run.pass.split_bits);
        for (uint32_t split = 0; split < splits; split++) {
            const uint32_t got = load_shared(here + split * SHAPE.bytes);
            if (got != mark + (split << 16))
                emulated_fail("split %u wrote 0x%x, 0x%x is there", split, mark + (split << 16), got);
        }
    }

    /* As attend::run() and attend_wide::run(). */
    static void kernel()
    {
        const tile_coord coord(run.pass);
        uint8_t *shared = emulated_at(tile_coord::cta_split() * SHAPE.bytes);
        work_tile_memory &memory = *(work_tile_memory *)(shared + SHAPE.work_tile);
        if (tiles::is_producer()) {
            produce<TILE>(run.pass, coord, memory, shared);
        } else if (threadIdx.x / 32 < SHAPE.warps) {
            tiles::wait_work_tile();
            const consumer self(memory.work_tile, coord.kv_head, shared);
            const plan_range seen = self.ring.seen;
            if (threadIdx.x / 32 >= self.ring.consumers)
                return;
            if (!BY_WGMMA)
                self.walk();
            else if (self.ring.fills > 0)
                self.walk_ahead(seen.first % TILE_TOKENS == 0 && seen.end % TILE_TOKENS == 0);
            if (run.pass.split_bits > 0)
                self.exchange();
        }
    }
};

/* ---- a seed */

/* A work tile's range, within what is left of the sequence: of a few tiles, or of many. */
static void choose_range(cuda_work_tile &work_tile, uint32_t from)
{
    static const uint32_t most[] = {1, TILE_TOKENS, 4 * TILE_TOKENS, 8 * TILE_TOKENS, LENGTH};
    uint32_t first = from + emulated_random(LENGTH / 2),
             end = min(first + 1 + emulated_random(most[emulated_random(5)]), (uint32_t)LENGTH);
    if (emulated_random(4) == 0)
        first = first / TILE_TOKENS * TILE_TOKENS;
    if (emulated_random(4) == 0)
        end = (end + TILE_TOKENS - 1) / TILE_TOKENS * TILE_TOKENS;
    if (end > LENGTH)
        end = LENGTH;
    work_tile.seen.first = first;
    work_tile.seen.end = emulated_random(16) == 0 ? 0 : end; /* now and then there is nothing */
    const uint32_t first_entry = first / TILE_TOKENS * TILE_TOKENS / BLOCK_SIZE;
    memset(work_tile.entries, 0, sizeof work_tile.entries);
    for (uint32_t i = 0; i < CUDA_WORK_TILE_ENTRIES && (first_entry + i) * BLOCK_SIZE < work_tile.seen.end;
         i++)
        work_tile.entries[i] = world.table[first_entry + i];
}

/* As prefetch_for() of cuda_step.c says. */
static void choose_prefetch()
{
    cuda_l2_prefetch &next = run.pass.prefetch;
    const uint32_t most = (CUDA_WORK_TILE_ENTRIES - (BLOCK_SIZE > TILE_TOKENS)) * BLOCK_SIZE;
    if (!TMA || emulated_random(2) == 0)
        return;
    next = {run.work_tiles, KV_HEADS << run.pass.split_bits, 1 + emulated_random(2),
            min(most, 1 + emulated_random(4 * TILE_TOKENS)), run.pass.map_first};
}

template <class TILE, bool BY_WGMMA> static void take(uint64_t seed, const char *name)
{
    constexpr tile_shape SHAPE = TILE::SHAPE;
    uint32_t together = 0, columns = 1 + emulated_random(SHAPE.columns);
    while (2u << together <= tile_cta_splits_max(&SHAPE))
        together++;
    run.pass = cuda_attend_pass();
    cuda_attend_pass &p = run.pass;
    p.layer = emulated_random(LAYERS);
    p.pool = {world.pool.bytes,      world.pool.layer_bytes, world.pool.block_bytes, world.pool.plane_bytes,
              world.pool.head_bytes, world.pool.slot_bytes,  world.table.data(),     0};
    p.maps = world.all_maps;
    p.map_first = 2 * p.layer * BLOCKS;
    p.work_tiles = run.work_tiles;
    p.k_scale = p.v_scale = run.scales;
    p.cta_bits = emulated_random(together + 1);
    p.split_bits = p.cta_bits + (p.cta_bits < 2 && emulated_random(4) == 0);
    for (uint32_t i = 0; i < 1u << p.split_bits; i++) {
        run.work_tiles[i] = cuda_work_tile();
        run.work_tiles[i].columns = columns;
        choose_range(run.work_tiles[i], emulated_random(LENGTH / 2));
    }
    choose_prefetch();
    run.split_bytes = SHAPE.bytes;
    run.stage_bytes = SHAPE.stage_bytes;
    run.stages = SHAPE.stages;
    run.barriers = SHAPE.barriers;
    run.readers = TILE::consumers(run.work_tiles[0]) * 32;
    memset(run.reads, 0, sizeof run.reads);
    gridDim = {KV_HEADS << (p.split_bits - p.cta_bits), 1, 1};
    const emulated_index at = {emulated_random(gridDim.x), 0, 0},
                         threads = {kv_pipeline<TILE>::THREADS + (BY_WGMMA && TMA ? 96 : 0), 1u << p.cta_bits,
                                    1};
    snprintf(scheduler.what, sizeof scheduler.what,
             "seed %llu: %s, %u columns, %u splits of %u, work tile [%u, %u)", (unsigned long long)seed, name,
             columns, 1u << p.cta_bits, 1u << p.split_bits, run.work_tiles[0].seen.first,
             run.work_tiles[0].seen.end);
    const size_t bytes = SHAPE.bytes << p.cta_bits;
    emulated_background_reset(bytes);
    emulate_block(at, threads, bytes, consumer<TILE, BY_WGMMA>::kernel);
    if (!background.boxes.empty())
        emulated_fail("%zu boxes are in flight when the block has ended", background.boxes.size());
}

template <int COLUMNS> static void take_mma(uint64_t seed, const char *name)
{
    if constexpr (COLUMNS <= tile_columns_max(HEAD_DIM, bytes_of(KV_DTYPE), SM_BYTES, TMA))
        take<mma_tile<COLUMNS>, false>(seed, name);
}

static void take_seed(uint64_t seed)
{
    scheduler.random = seed * 1000003;
    switch (emulated_random(WGMMA ? 5 : 3)) {
    case 0:
        return take_mma<8>(seed, "attend_8");
    case 1:
        return take_mma<32>(seed, "attend_32");
    case 2:
        return take_mma<64>(seed, "attend_64");
#if WGMMA
    case 3:
        return take<wide_tile<64>, true>(seed, "attend_wide_64");
    case 4:
        return take<wide_tile<128>, true>(seed, "attend_wide_128");
#endif
    }
}

/* The macros are what the backend would define. */
static bool are_as_for_nvrtc()
{
    bool same = true;
#if BUILT_IN
#define TEXT(name)    #name
#define TEXT_OF(name) TEXT(name)
    cuda_target target;
    same = cuda_target_known(TEXT_OF(ARCH), &target) && target.sm_bytes == SM_BYTES &&
           cuda_uses_tma(&world.g, &target) == TMA && cuda_uses_warpgroups(&world.g, &target) == WGMMA;
#endif
    if (!same)
        printf("TMA, WGMMA or SM_BYTES is another one for this geometry\n");
    return same;
}

int main(int argc, char **argv)
{
    const uint64_t first = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1,
                   count = argc > 2   ? strtoull(argv[2], nullptr, 10)
                           : argc > 1 ? 1
                                      : SEEDS;
    background.begins = must_be_read;
    background.may_read = is_somewhere;
    if (!make_world() || !are_as_for_nvrtc())
        return 2;
    for (uint64_t seed = first; seed < first + count; seed++)
        take_seed(seed);
    if (TMA ? background.boxes_arrived == 0 : background.copies_arrived == 0) {
        printf("no copy has arrived\n");
        return 1;
    }
    kv_pool_deinit(&world.pool);
    return 0;
}
