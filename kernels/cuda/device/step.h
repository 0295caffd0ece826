/* SPDX-License-Identifier: Apache-2.0 */
/* step.h - what the host hands to the device kernels: plain structures, read by C11 and by CUDA C.
 *
 * NVRTC compiles the kernels for one geometry and one GPU (compiler.c). It is given HEAD_DIM, BLOCK_SIZE,
 * KV_HEADS, GROUP, Q_DTYPE, KV_DTYPE, LAYOUT, SOFTCAP, SM_BYTES, TENSOR_CORES, TMA and WGMMA as macros, and
 * KERNEL and KERNEL_COLUMNS where a file has one kernel a width. Functions are device functions unless they
 * say otherwise.
 *
 * Everything is prepared in one pinned buffer of the host and uploaded at once; pointers are device
 * addresses. Plans cross as they are (kernels/plan.h), but for work tiles: one of the plan becomes as many
 * as its query heads need thread blocks.
 *
 * A column is one query head of one query, packed (PackGQA): column c of a work tile is query
 * work_tile_queries[first_query + c / group], query head kv_head * group + c % group. A partial state is kept
 * as { m, l } [query_heads] and o [query_heads][head_dim], m in units of ln 2. */
#ifndef KERNELS_CUDA_DEVICE_STEP_H
#define KERNELS_CUDA_DEVICE_STEP_H

#include "config/block_copy.h"
#include "config/geometry.h"
#include "kernels/plan.h"
#include "kernels/values.h"

/* A device address of const T; the host only does arithmetic with it. */
#ifdef __CUDACC_RTC__
#define DEVICE(T)       T *
#define HOST_AND_DEVICE static constexpr
#else
#define DEVICE(T)       unsigned long long
#define HOST_AND_DEVICE static inline
#endif

enum {
    CUDA_THREADS = 128,          /* of every thread block, unless its kernel says otherwise */
    PAGED_PARTITION = 512,       /* tokens of a thread block of paged_v2 */
    CUDA_MAP_BYTES = 128,        /* of a tensor map */
    CUDA_WORK_TILE_ENTRIES = 16, /* of the block table, that come with a work tile */
    CUDA_COLUMNS_MAX = 128,      /* of a work tile: those of the widest kernel */
    CUDA_COMPARE_TOKENS = 8,     /* of a thread block of compare_kv */
    CUDA_VECTOR_BYTES = 8,       /* to which tensors in the host's memory are aligned */
    CUDA_ROW_VECTORS = 1024,     /* of a row, that a thread block of load_q or store_rows takes */
    MERGE_BATCH_MAX = 32         /* partial states that a merge takes at a time: a lane each */
};

struct cuda_work_tile {
    uint32_t table;
    uint32_t first_query;     /* in work_tile_queries */
    uint32_t column, columns; /* the columns [column, column + columns) of the plan's work tile */
    uint32_t partial;         /* of the work tile's first query, or PLAN_NO_PARTIAL */
    struct plan_range seen;   /* positions that any of its columns sees in the range */
    uint32_t seen_by_all;     /* all columns see every position from the tile of seen.first up to this one; 0:
                                 none */
    uint32_t entries[CUDA_WORK_TILE_ENTRIES]; /* of its table, from the tile of seen.first on, where they
                                                 are */
};

/* A query of a work tile. */
struct cuda_work_tile_query {
    uint32_t query, keys;
};

/* New entries of one of the device's block tables: `count` ids at `source` of the uploaded ids go
 * to entries `first` and on. */
struct cuda_table_change {
    uint32_t table, first, count, source;
};

/* Tokens of one sequence to be stored: token i of them is token first + i of the pass. */
struct cuda_append {
    uint32_t first, count;
    uint32_t table, position;
    DEVICE(const uint8_t)
    k; /* [count][kv_heads][head_dim] of the pass's source_dtype, the client's; 0: generated */
    DEVICE(const uint8_t) v;
    struct value_source generated;
    DEVICE(uint8_t) wrong; /* kv_append.wrong; 0: all elements are good */
    uint64_t content;      /* kv_append.content */
};

/* Where q, o and lse of a query lie: in the host's memory, or in the client's on the device. */
struct cuda_client_row {
    DEVICE(const uint8_t) q;
    DEVICE(uint8_t) o;
    DEVICE(float) lse; /* 0: not wanted */
    uint64_t content;  /* attention_row.content */
    uint32_t table, zero;
};

/* Rows of a pass that are loaded from there, or stored there. */
struct cuda_rows_pass {
    DEVICE(const struct cuda_client_row) rows;
    DEVICE(uint8_t) tensor;         /* q, or o: [queries][query_heads][head_dim] */
    DEVICE(float) lse;              /* [queries][query_heads] */
    DEVICE(const uint64_t) refused; /* by table: the content that had wrong elements last */
};

/* Where things lie in the pool; [layer][block][K, V][head and slot in the order of the layout][dim]. */
struct cuda_pool {
    DEVICE(uint8_t) bytes;
    uint64_t layer_bytes, block_bytes, plane_bytes, head_bytes, slot_bytes;
    DEVICE(uint32_t) tables; /* [..][stride] */
    uint64_t stride;
};

/* Table changes and their ids, or copies. */
struct cuda_list_pass {
    struct cuda_pool pool;
    DEVICE(const void) list;
    DEVICE(const uint32_t) ids;
};

/* Memory to be read for the roof, in vectors of 16 bytes. */
struct cuda_read_pass {
    DEVICE(const void) from;
    uint64_t vectors;
};

struct cuda_append_pass {
    struct cuda_pool pool;
    DEVICE(const struct cuda_append) appends; /* in order of `first` */
    uint32_t append_count, layer;
    uint32_t source_dtype, zero; /* an enum dtype; no padding: they are compared byte by byte */
    DEVICE(const float) k_scale; /* [kv_heads] of the layer */
    DEVICE(const float) v_scale;
    DEVICE(uint64_t) refused; /* cuda_rows_pass.refused */
};

/* What a launch brings into the L2 cache for the one behind it, when it has sent for all of its own (backend.l2_prefetch): of
 * every `step`th of `places` (work tiles times KV heads) the first `tokens`, from the tile of seen.first
 * on. */
struct cuda_l2_prefetch {
    DEVICE(const struct cuda_work_tile) work_tiles;
    uint32_t places, step, tokens; /* places 0: nothing */
    uint32_t map_first;            /* of their layer */
};

struct cuda_attend_pass {
    struct cuda_pool pool;
    DEVICE(const uint8_t) maps; /* tensor maps of the pool, for TMA */
    DEVICE(const struct plan_query) queries;
    DEVICE(const struct cuda_work_tile) work_tiles; /* of this launch */
    DEVICE(const struct cuda_work_tile_query) work_tile_queries;
    DEVICE(const struct plan_merge) merges;
    DEVICE(const struct partial_ref) merge_partials;
    DEVICE(const struct value_source) q_source; /* [queries], for generated q */
    DEVICE(uint8_t) q;                          /* [queries][query_heads][head_dim] */
    DEVICE(uint8_t) o;                          /* likewise */
    DEVICE(float) lse;                          /* [queries][query_heads] */
    DEVICE(float) partial_ml;                   /* [partials][query_heads][2] */
    DEVICE(float) partial_o;                    /* [partials][query_heads][head_dim] */
    DEVICE(const float) k_scale;                /* [kv_heads] of the layer */
    DEVICE(const float) v_scale;
    DEVICE(uint8_t) fold_workspace;        /* [slots] levels of a fold (tile_workspace_bytes) */
    DEVICE(uint32_t) slots_taken;          /* [slots] 1: a thread block has it */
    DEVICE(const float) sinks;             /* [query_heads] of the layer, or 0 */
    DEVICE(const float) alibi;             /* [query_heads], or 0 */
    float scale, softcap, inverse_softcap; /* softcap 0: none */
    uint32_t layer, window;
    uint32_t map_first;  /* of the layer's planes in the map */
    uint32_t concurrent; /* 1: independent of the previous launch of this pass, may run concurrently (PDL) */
    uint32_t merge_count;
    uint32_t merge_batch_size; /* partial states: a power of two */
    uint32_t split_bits;       /* a split group is 2^split_bits work tiles, */
    uint32_t cta_bits;         /* 2^cta_bits of them in a thread block */
    uint32_t slots;            /* as many as thread blocks that use the workspace run at a time */
    struct cuda_l2_prefetch prefetch;
};

/* Query heads that a thread block of merge.cu may take elements of: a thread has four. */
HOST_AND_DEVICE uint32_t merge_heads(uint32_t head_dim, uint32_t threads)
{
    uint32_t of_head = head_dim / 4;
    return threads % of_head == 0 ? threads / of_head : (threads - 1) / of_head + 2;
}

/* Its shared memory for `batch_size` partial states at a time. */
HOST_AND_DEVICE uint32_t merge_bytes(uint32_t head_dim, uint32_t threads, uint32_t batch_size)
{
    uint32_t heads = merge_heads(head_dim, threads);
    return batch_size * (threads * 16 + heads * 32) + heads * PLAN_SPAN * 4;
}

/* Of the vllm layout's kernels, for the queries from `first_query` on. Partial states are [queries of the
 * launch][query_heads][partitions]. */
struct cuda_paged_pass {
    struct cuda_attend_pass attend;
    uint32_t partitions, first_query;
    /* Of operators (operators.h), whose k_scale and v_scale are those of all KV heads: */
    DEVICE(const uint32_t) lengths; /* [queries] keys of the query in table i; 0: attend.queries says it */
    uint64_t q_row;                 /* elements from one query's q to the next; 0: they lie together */
};

/* Tokens that go to slots of the caller's caches. */
struct cuda_tokens_pass {
    struct cuda_pool pool;
    DEVICE(const uint8_t) k;
    DEVICE(const uint8_t) v;
    DEVICE(const long long) slots;
    DEVICE(const float) k_scale;
    DEVICE(const float) v_scale;
    uint64_t k_row, v_row; /* elements from one token to the next */
    uint32_t source_dtype, zero;
};

/* Blocks of the caller's caches that are copied: (pair, layer, K or V). */
struct cuda_copies_pass {
    DEVICE(const long long) pairs;
    uint64_t block_bytes;
    uint64_t caches[128][2]; /* [layers][K, V] */
};

/* The work tiles of queries whose lengths the GPU finds (tiles.cu). A split has a slot, whose number is also that of its partial state, and as
 * many work tiles there as a group's query heads need. */
struct cuda_tiles_pass {
    DEVICE(const int32_t) lengths; /* [sequences] */
    DEVICE(const int32_t)
    starts; /* [sequences + 1] queries starts[s] to starts[s + 1] are sequence s's last tokens, those behind the
                                      last one nobody's; 0: query s is sequence s's last token */
    DEVICE(const uint32_t) tables; /* [sequences][stride] */
    uint64_t stride;
    DEVICE(struct cuda_work_tile) work_tiles; /* [slots][of a split]; those without keys come last */
    DEVICE(struct cuda_work_tile_query) work_tile_queries; /* [queries] */
    DEVICE(struct plan_merge) merges;                      /* [queries] */
    DEVICE(struct partial_ref) merge_partials;             /* [slots] */
    uint32_t sequences, queries;
    uint32_t max_length; /* which the slots are for: what is beyond it is not seen */
    uint32_t slots;      /* cuda_tile_slots() or more */
    uint32_t tasks;      /* pieces of work to aim for, of a KV head */
    uint32_t columns;    /* of a work tile */
    uint32_t window, zero;
};

/* Of a thread block of write_tiles, whose shared memory is so many words as it has warps, and another one a query, and one. */
enum { TILES_THREADS = 256, TILES_WARPS = TILES_THREADS / 32 };

/* Slots with which tiles.cu cuts queries as finely as there are tasks, or has a split for each span of each query. */
static inline uint64_t cuda_tile_slots(uint32_t queries, uint32_t max_length, uint32_t tasks)
{
    const uint64_t chunks = ((uint64_t)max_length + CHUNK_TOKENS - 1) / CHUNK_TOKENS,
                   few = (uint64_t)queries * plan_spans(max_length) + 2 * (uint64_t)tasks,
                   most = queries * chunks;
    return few < most ? few : most;
}

/* The operations of a step beside passes (attention.h), those of a kind in one launch: a list in order of
 * `first`, the first thread block of each.
 *
 * Rows of k and v that are compared: a thread block CUDA_COMPARE_TOKENS tokens. */
struct cuda_compare {
    uint32_t first;
    uint32_t table, layer, position, count;
    uint32_t dtype;          /* an enum dtype */
    DEVICE(const uint8_t) k; /* [count][kv_heads][head_dim], the host's */
    DEVICE(const uint8_t) v;
};

/* Rows that are read: a thread block a token. */
struct cuda_read {
    uint32_t first;
    uint32_t table, layer, position;
    DEVICE(uint8_t) k; /* [count][kv_heads][head_dim], likewise */
    DEVICE(uint8_t) v;
};

/* States that are merged: a thread block a head of a query, a thread an element. */
struct cuda_merge_states {
    uint32_t first;
    uint32_t states, apart; /* apart: heads from one state to the next */
    uint32_t head_dim, dtype, zero;
    DEVICE(const uint8_t) o;
    DEVICE(const float) lse;
    DEVICE(uint8_t) merged_o;
    DEVICE(float) merged_lse;
};

struct cuda_operations_pass {
    struct cuda_pool pool;
    DEVICE(const void) list;
    DEVICE(uint32_t) equal;      /* of comparisons: rows by thread block, in the host's memory */
    DEVICE(const float) k_scale; /* [layers][kv_heads] */
    DEVICE(const float) v_scale;
    uint32_t count, zero; /* no padding: launches are compared byte by byte */
};

#endif
