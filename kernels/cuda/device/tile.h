/* tile.h - how much shared memory the tensor-core kernel takes, and for what. Computed alike by the
 * compiler of the device code and by the host, which launches with it. C11 and CUDA C.
 *
 *   ring     halves of tiles (64 keys, or 64 values) on their way in, `slots` of them
 *   q        [columns][head_dim], p [columns][64 tokens] of 16 bits, the warps' maxima and sums, and
 *            barriers of the slots
 *   folds    the fold's three levels, a slot a thread, when they do not fit in registers
 *
 * Rows of q, p and, where the copy engine does not bring them, of K and V are padded by 16 bytes, so
 * that the eight rows that a matrix load touches lie in different banks. The engine brings K and V in
 * segments of 128 bytes a row (ring.cuh). */
#ifndef KERNELS_CUDA_DEVICE_TILE_H
#define KERNELS_CUDA_DEVICE_TILE_H

#include "kernels/plan.h"

#include <stdbool.h>

#ifdef __cplusplus
#define TILE_FUNCTION static constexpr
#else
#define TILE_FUNCTION static inline
#endif

enum {
    TILE_WARPS = 4,
    TILE_ROW_PAD = 16,     /* bytes */
    TILE_SEGMENT = 128,    /* bytes of a row, where the copy engine brings it */
    TILE_ALIGNMENT = 1024, /* of the ring, then */
    TILE_SLOTS_MIN = 3,
    TILE_SLOTS_MAX = 8,
    TILE_BLOCK_BYTES = 1024, /* of shared memory that the hardware keeps per thread block */
    TILE_FOLD_REGISTERS = 60 /* of a thread, at most, for folds; more go to shared memory */
};

struct tile_shape {
    uint32_t padded_dim;           /* head_dim in whole fragments of 16 */
    uint32_t kv_row, q_row, p_row; /* bytes */
    uint32_t half;                 /* bytes of a ring slot */
    uint32_t slots, blocks;
    uint32_t fold_floats; /* of a thread and level */
    bool folds_in_registers;
    uint32_t bytes; /* in all, 0 if it does not fit */
};

/* kv_bytes: of an element. columns: 8, 16 or 32. sm_bytes: shared memory of a multiprocessor. engine: K
 * and V come by the copy engine. */
TILE_FUNCTION struct tile_shape tile_shape_of(uint32_t head_dim, uint32_t kv_bytes, uint32_t columns,
                                              uint32_t sm_bytes, bool engine)
{
    struct tile_shape t = {0};
    t.padded_dim = (head_dim + 15) / 16 * 16;
    t.kv_row = engine ? (head_dim * kv_bytes + TILE_SEGMENT - 1) / TILE_SEGMENT * TILE_SEGMENT
                      : t.padded_dim * kv_bytes + TILE_ROW_PAD;
    t.q_row = t.padded_dim * 2 + TILE_ROW_PAD;
    t.p_row = TILE_TOKENS * 2 + TILE_ROW_PAD;
    t.half = TILE_TOKENS * t.kv_row;
    uint32_t warp_tiles = (t.padded_dim / 16 + TILE_WARPS - 1) / TILE_WARPS;
    t.fold_floats = columns / 8 * (warp_tiles * 4 + 4);
    t.folds_in_registers = 3 * t.fold_floats <= TILE_FOLD_REGISTERS;
    uint32_t fixed = columns * (t.q_row + t.p_row) + 2 * TILE_WARPS * columns * 4 + TILE_SLOTS_MAX * 8;
    if (!t.folds_in_registers)
        fixed += 3 * t.fold_floats * TILE_WARPS * 32 * 4;
    /* 4 blocks leave 128 registers a thread, 3 leave 168, 2 all that there are */
    t.blocks = columns == 8    ? (head_dim <= 128   ? 4
                                  : head_dim <= 192 ? 3
                                                    : 2)
               : columns == 16 ? (head_dim <= 128 ? 3 : 2)
                               : 2;
    for (; t.blocks > 0; t.blocks--) {
        uint32_t room = sm_bytes / t.blocks - TILE_BLOCK_BYTES;
        t.slots = room > fixed ? (room - fixed) / t.half : 0;
        if (t.slots >= (t.blocks > 1 ? TILE_SLOTS_MIN : 2))
            break;
    }
    if (t.slots > TILE_SLOTS_MAX)
        t.slots = TILE_SLOTS_MAX;
    t.bytes = t.blocks ? fixed + t.slots * t.half : 0;
    return t;
}

/* The most packed columns that a thread block can take: 32, 16 or 8, or 0 where not even 8 fit. */
TILE_FUNCTION uint32_t tile_columns_max(uint32_t head_dim, uint32_t kv_bytes, uint32_t sm_bytes,
                                        bool engine)
{
    uint32_t columns = head_dim <= 128 ? 32 : 16; /* accumulators of more would not fit in registers */
    while (columns >= 8 && tile_shape_of(head_dim, kv_bytes, columns, sm_bytes, engine).blocks == 0)
        columns /= 2;
    return columns >= 8 ? columns : 0;
}

#endif
