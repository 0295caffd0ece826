/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_kernels.h - the inner loops of the CPU backend, one table of functions per instruction set.
 *
 * The backend walks plans, threads and block tables (cpu_backend.c); what is below it sees one tile of
 * keys and a handful of rows. Within one table the bits of a row depend on the row alone: not on the
 * other rows, nor on how many keys of the tile are readable beyond those that it sees, nor on how the
 * keys are cut into spans. */
#ifndef KERNELS_CPU_CPU_KERNELS_H
#define KERNELS_CPU_CPU_KERNELS_H

#include "kernels/plan.h"

#include "config/geometry.h"

#include <stdbool.h>

/* Softmax states of `rows` packed rows: m maximum, l sum of exp(s - m), o weighted sum of v. Empty: m
 * -inf, l 0, o not read. */
struct cpu_states {
    float *m; /* [rows] */
    float *l; /* [rows] */
    float *o; /* [rows][head_dim] */
};

/* Consecutive tokens of one block: their K and V rows, one stride apart. */
struct cpu_span {
    const uint8_t *k, *v;
    uint32_t tokens;
};

/* One tile of one KV head, and the rows that read it. */
struct cpu_tile {
    uint32_t head_dim, rows;
    uint32_t position;  /* of the tile's first key; a multiple of TILE_TOKENS */
    enum dtype q_dtype; /* that q was rounded to */
    enum dtype kv_dtype;
    const struct cpu_span *spans; /* the readable keys from `position` on, at most TILE_TOKENS of them */
    uint32_t span_count;
    const struct cpu_span *next_spans; /* of the tile that will be read after this one: worth fetching */
    uint32_t next_span_count;
    size_t token_stride;  /* bytes from one token's row to the next inside a span */
    size_t row_bytes;     /* of one token's row */
    const float *q;       /* [rows][head_dim] */
    const uint32_t *keys; /* [rows] the row sees positions below this */
    const float *slopes;  /* [rows] ALiBi, or NULL */
    uint32_t window;
    float scale; /* of q.k, k_scale included */
    float softcap;
    struct cpu_states states; /* updated */
    float *scratch;           /* [cpu_scratch_floats()], the worker's own, aligned to 64 bytes; what
                                 begin() left there is kept */
};

/* The places of the tile that a row sees. */
static inline struct plan_range cpu_tile_seen(const struct cpu_tile *t, uint32_t row)
{
    struct plan_range seen = plan_visible(t->keys[row], t->window);
    uint32_t first = seen.first > t->position ? seen.first - t->position : 0;
    uint32_t end = seen.end > t->position ? seen.end - t->position : 0;
    return (struct plan_range){first, end < TILE_TOKENS ? end : TILE_TOKENS};
}

/* Bytes of an element: dtype_bytes(), for a format that the compiler knows. */
static inline size_t kv_bytes(const enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : dtype == DTYPE_F16 || dtype == DTYPE_BF16 ? 2 : 1;
}

enum { CPU_SCRATCH_ROWS = 32 }; /* rows of scores */

/* For at most `rows` packed rows: two tiles of f32 and scores, or what cpu_amx.c lays out there. */
static inline size_t cpu_scratch_floats(uint32_t head_dim, uint32_t rows)
{
    return (size_t)TILE_TOKENS * (2 * head_dim + CPU_SCRATCH_ROWS) + (size_t)(rows + 16) * head_dim / 2;
}

struct cpu_kernels {
    const char *isa;
    bool (*supported)(void); /* by this processor; NULL: not in this build */

    /* begin: the tiles that follow have the same rows and q; NULL: nothing to prepare. */
    void (*begin)(const struct cpu_tile *tile);

    /* tile: one softmax update of every row that sees a key of the tile. */
    void (*tile)(const struct cpu_tile *tile);

    /* merge(rows, head_dim, into, from): into = merge(into, from), row by row. An empty side returns
     * the other one's bits. */
    void (*merge)(uint32_t rows, uint32_t head_dim, const struct cpu_states *into,
                  const struct cpu_states *from);

    /* finish(head_dim, states, row, sink, v_scale, o, lse): the output of one row: its state merged
     * with the sink (NULL: none), o [head_dim] as f32. An empty state gives zeros and -inf. */
    void (*finish)(uint32_t head_dim, const struct cpu_states *states, uint32_t row, const float *sink,
                   float v_scale, float *o, float *lse);
};

static inline bool cpu_kernels_run_here(const struct cpu_kernels *kernels)
{
    return kernels->supported && kernels->supported();
}

/* Tables of one isa give the same bits: avx512_vbmi is avx512 for processors that convert e4m3 faster. */
extern const struct cpu_kernels cpu_kernels_portable, cpu_kernels_avx2, cpu_kernels_avx512,
    cpu_kernels_avx512_vbmi, cpu_kernels_amx;

#endif
