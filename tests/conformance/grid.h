/* SPDX-License-Identifier: Apache-2.0 */
/* grid.h - the axes over which every kernel is compared with the reference, and their values: all of
 * them, here.
 *
 * `check` runs a set of cases in which every pair of values of any two axes occurs; `check-full` one in
 * which every triple of values of any three axes does. */
#ifndef TESTS_CONFORMANCE_GRID_H
#define TESTS_CONFORMANCE_GRID_H

#include "config/geometry.h"

#include <stdbool.h>

enum axis {
    AXIS_DTYPE,
    AXIS_KV_DTYPE,
    AXIS_HEAD_DIM,
    AXIS_HEADS,
    AXIS_BLOCK_SIZE,
    AXIS_LAYOUT,
    AXIS_WINDOW,
    AXIS_SOFTCAP,
    AXIS_CONSTANTS,
    AXIS_SOURCE,
    AXIS_SHAPE,
    AXIS_COUNT
};

static const enum dtype grid_dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
static const enum dtype grid_kv_dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_E4M3, DTYPE_E5M2};
static const uint32_t grid_head_dims[] = {8, 16, 24, 32, 40, 64, 80, 96, 112, 120, 128, 192, 256};
static const uint32_t grid_block_sizes[] = {1, 2, 3, 5, 8, 16, 17, 32, 64, 100, 128, 256};
static const uint32_t grid_windows[] = {0, 1, 64, 100, 300};

/* MHA, groups of 2, 3, 4, 5, 7 and 8, MQA */
static const struct {
    uint32_t query, kv;
} grid_heads[] = {{1, 1}, {3, 3}, {4, 2}, {6, 2}, {8, 2}, {5, 1}, {14, 2}, {8, 1}, {20, 1}};

static const struct {
    bool sinks, alibi;
} grid_constants[] = {{false, false}, {true, false}, {false, true}, {true, true}};

/* Where k and v come from. */
enum source { SOURCE_GENERATED, SOURCE_DTYPE, SOURCE_KV_DTYPE, SOURCE_COUNT };

/* A family of sequences: the parent's length, then forks of it; and how many of each one's last tokens
 * are query rows. */
struct shape {
    const char *name;
    uint32_t rows; /* query rows of each sequence, at most its length; 1 also for a length of 0 */
    uint32_t count;
    struct {
        int parent; /* an earlier sequence, or -1 */
        uint32_t fork, length;
    } sequences[24];
};

static const struct shape grid_shapes[] = {
    {"one token", 1, 1, {{-1, 0, 1}}},
    {"short and ragged",
     1,
     9,
     {{-1, 0, 0},
      {-1, 0, 1},
      {-1, 0, 2},
      {-1, 0, 15},
      {-1, 0, 16},
      {-1, 0, 17},
      {-1, 0, 63},
      {-1, 0, 64},
      {-1, 0, 65}}},
    {"around a chunk", 1, 4, {{-1, 0, 255}, {-1, 0, 256}, {-1, 0, 257}, {-1, 0, 511}}},
    {"around a run", 1, 3, {{-1, 0, 1023}, {-1, 0, 1024}, {-1, 0, 1281}}},
    {"over a segment", 1, 2, {{-1, 0, 4500}, {0, 4200, 4300}}},
    {"a family of forks",
     1,
     8,
     {{-1, 0, 700},
      {0, 300, 310},
      {0, 512, 900},
      {0, 699, 700},
      {2, 800, 801},
      {1, 17, 40},
      {4, 801, 1100}, /* 0, 2, 4, 6, 7: four deep */
      {6, 1024, 1090}}},
    {"several rows each", 7, 3, {{-1, 0, 5}, {-1, 0, 259}, {1, 256, 300}}},
    {"264 rows", 11, 24, {{-1, 0, 11}, {-1, 0, 90}, {-1, 0, 12}, {-1, 0, 33}, {-1, 0, 64}, {-1, 0, 65},
                          {-1, 0, 17}, {-1, 0, 31}, {1, 64, 76}, {1, 64, 77}, {1, 64, 78}, {1, 64, 79},
                          {1, 64, 80}, {1, 64, 81}, {1, 64, 82}, {1, 64, 83}, {8, 70, 81}, {8, 70, 82},
                          {8, 70, 83}, {8, 70, 84}, {8, 70, 85}, {8, 70, 86}, {8, 70, 87}, {8, 70, 88}}},
    {"many rows on one prefix", 2, 24, {{-1, 0, 520},  {0, 520, 520}, {0, 520, 521}, {0, 519, 522},
                                        {0, 512, 520}, {0, 520, 523}, {0, 300, 301}, {0, 520, 521},
                                        {0, 520, 521}, {0, 520, 521}, {0, 520, 521}, {0, 520, 521},
                                        {0, 520, 521}, {0, 520, 521}, {0, 520, 521}, {0, 520, 521},
                                        {0, 520, 521}, {0, 520, 521}, {0, 520, 521}, {0, 520, 521},
                                        {0, 520, 521}, {0, 520, 521}, {0, 520, 521}, {0, 64, 100}}},
};

/* The grid of the vllm layout's kernels: what vLLM's own tests go over, and block-sparse masks. */
enum paged_axis {
    PAGED_DTYPE,
    PAGED_KV,
    PAGED_HEAD_DIM,
    PAGED_HEADS,
    PAGED_BLOCK_SIZE,
    PAGED_ALIBI,
    PAGED_KERNEL,
    PAGED_SPARSE,
    PAGED_SOURCE,
    PAGED_SHAPE,
    PAGED_AXIS_COUNT
};

static const enum dtype paged_kv_dtypes[] = {DTYPE_COUNT /* that of q */, DTYPE_E4M3, DTYPE_E5M2};
static const uint32_t paged_head_dims[] = {32, 64, 80, 96, 112, 120, 128, 192, 256};
static const uint32_t paged_block_sizes[] = {8, 16, 32};
static const struct {
    uint32_t query, kv;
} paged_heads[] = {{40, 40}, {64, 8}, {6, 2}, {5, 1}};
static const struct block_sparse paged_sparse[] = {
    {0, 0, 0, 0, 0}, {1, 3, 32, 0, 0}, {2, 4, 64, 1, 2}, {1, 5, 32, 1, -3}};

/* Lengths drawn once, as vLLM's tests draw them; then some of grid_shapes. */
static const struct shape paged_shapes[] = {
    {"seven of any length",
     1,
     7,
     {{-1, 0, 1871}, {-1, 0, 44}, {-1, 0, 2048}, {-1, 0, 513}, {-1, 0, 1}, {-1, 0, 512}, {-1, 0, 907}}},
    {"one token", 1, 1, {{-1, 0, 1}}},
    {"short and ragged", 1, 6, {{-1, 0, 0}, {-1, 0, 2}, {-1, 0, 31}, {-1, 0, 32}, {-1, 0, 33}, {-1, 0, 65}}},
    {"forks and several rows", 3, 3, {{-1, 0, 700}, {0, 300, 310}, {0, 699, 1100}}},
};

/* What FlashInfer's tests of its paged kernels go over: batch decode, batch attention, shared prefixes. */
enum flashinfer_axis {
    FLASHINFER_DTYPE,
    FLASHINFER_KV,
    FLASHINFER_HEAD_DIM,
    FLASHINFER_HEADS,
    FLASHINFER_BLOCK_SIZE,
    FLASHINFER_LAYOUT,
    FLASHINFER_SOFTCAP,
    FLASHINFER_SHAPE,
    FLASHINFER_AXIS_COUNT
};

static const enum dtype flashinfer_dtypes[] = {DTYPE_F16, DTYPE_BF16};
static const enum dtype flashinfer_kv_dtypes[] = {DTYPE_COUNT /* that of q */, DTYPE_E4M3};
static const uint32_t flashinfer_head_dims[] = {64, 128, 256};
static const uint32_t flashinfer_block_sizes[] = {1, 8, 16};
static const struct {
    uint32_t query, kv;
} flashinfer_heads[] = {{4, 4}, {4, 1}, {7, 1}, {8, 1}, {16, 4}, {32, 4}};

static const struct shape flashinfer_shapes[] = {
    {"decode, 54 to 512", 1, 3, {{-1, 0, 54}, {-1, 0, 97}, {-1, 0, 512}}},
    {"decode, 2 048", 1, 2, {{-1, 0, 2048}, {-1, 0, 2048}}},
    {"one row and many", 17, 3, {{-1, 0, 1024}, {-1, 0, 766}, {-1, 0, 235}}},
    {"two and three rows", 3, 4, {{-1, 0, 600}, {-1, 0, 2}, {-1, 0, 3}, {-1, 0, 513}}},
    {"a shared prefix of 512, 12 sequences",
     1,
     12,
     {{-1, 0, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549},
      {0, 512, 549}}},
    {"appended behind a shared prefix of 128", 17, 3, {{-1, 0, 145}, {0, 128, 145}, {0, 128, 145}}},
};

/* Work tiles of many query heads: large groups over several runs and segments, and many rows that share
 * them. */
enum columns_axis {
    COLUMNS_DTYPE,
    COLUMNS_KV,
    COLUMNS_HEAD_DIM,
    COLUMNS_HEADS,
    COLUMNS_BLOCK_SIZE,
    COLUMNS_LAYOUT,
    COLUMNS_WINDOW,
    COLUMNS_SOFTCAP,
    COLUMNS_SHAPE,
    COLUMNS_AXIS_COUNT
};

static const uint32_t columns_head_dims[] = {64, 72, 96, 128};
static const uint32_t columns_block_sizes[] = {8, 16, 64, 128};
static const uint32_t columns_windows[] = {0, 1100};
static const struct {
    uint32_t query, kv;
} columns_heads[] = {{16, 2}, {20, 1}, {33, 1}, {64, 1}, {96, 2}};

static const struct shape columns_shapes[] = {
    {"two rows in a segment", 1, 2, {{-1, 0, 2300}, {-1, 0, 3900}}},
    {"a row of two segments", 1, 2, {{-1, 0, 8000}, {0, 4200, 4300}}},
    {"nine rows each behind a run", 9, 2, {{-1, 0, 1209}, {0, 1100, 1300}}},
    {"eight sequences on one prefix of 2 100",
     1,
     8,
     {{-1, 0, 2110},
      {0, 2100, 2101},
      {0, 2100, 2105},
      {0, 2100, 2110},
      {0, 2100, 2164},
      {0, 2100, 2240},
      {0, 2100, 2305},
      {0, 2100, 2100}}},
};

/* Rows of several spans (kernels/plan.h): they end one token ahead of the end of one, at it, and behind it. */
enum spans_axis { SPANS_FORMAT, SPANS_HEADS, SPANS_WINDOW, SPANS_SINKS, SPANS_SHAPE, SPANS_AXIS_COUNT };

static const struct {
    enum dtype dtype, kv_dtype;
} spans_formats[] = {{DTYPE_BF16, DTYPE_BF16}, {DTYPE_F16, DTYPE_E4M3}};
static const struct {
    uint32_t query, kv;
} spans_heads[] = {{4, 1}, {1, 1}};
static const uint32_t spans_windows[] = {0, 300, 65600};

static const struct shape spans_shapes[] = {
    {"around a span", 3, 2, {{-1, 0, 65537}, {0, 65536, 65700}}},
    {"three spans", 1, 1, {{-1, 0, 131329}}},
};

/* Blocks of no power of two, and groups of 128 and of 48. */
enum odd_axis {
    ODD_FORMAT,
    ODD_HEADS,
    ODD_HEAD_DIM,
    ODD_BLOCK_SIZE,
    ODD_WINDOW,
    ODD_LAYOUT,
    ODD_SHAPE,
    ODD_AXIS_COUNT
};

static const struct {
    enum dtype dtype, kv_dtype;
} odd_formats[] = {{DTYPE_BF16, DTYPE_BF16}, {DTYPE_F16, DTYPE_E4M3}, {DTYPE_F32, DTYPE_F32}};
static const struct {
    uint32_t query, kv;
} odd_heads[] = {{128, 1}, {48, 1}, {6, 3}};
static const uint32_t odd_head_dims[] = {64, 128, 96}, odd_block_sizes[] = {192, 96, 24},
                      odd_windows[] = {0, 500};

static const struct shape odd_shapes[] = {
    {"two forks", 2, 3, {{-1, 0, 1100}, {0, 600, 900}, {0, 600, 601}}},
    {"a row of two segments", 1, 2, {{-1, 0, 4500}, {-1, 0, 193}}},
};

/* In a pool of more than 4 GiB, at both ends of it. */
enum large_axis { LARGE_FORMAT, LARGE_SHAPE, LARGE_AXIS_COUNT };

#define GRID_COUNT(array) (sizeof(array) / sizeof(array)[0])

static const unsigned grid_sizes[AXIS_COUNT] = {
    [AXIS_DTYPE] = GRID_COUNT(grid_dtypes),           [AXIS_KV_DTYPE] = GRID_COUNT(grid_kv_dtypes),
    [AXIS_HEAD_DIM] = GRID_COUNT(grid_head_dims),     [AXIS_HEADS] = GRID_COUNT(grid_heads),
    [AXIS_BLOCK_SIZE] = GRID_COUNT(grid_block_sizes), [AXIS_LAYOUT] = LAYOUT_NHD + 1 /* hnd, nhd */,
    [AXIS_WINDOW] = GRID_COUNT(grid_windows),         [AXIS_SOFTCAP] = 2,
    [AXIS_CONSTANTS] = GRID_COUNT(grid_constants),    [AXIS_SOURCE] = SOURCE_COUNT,
    [AXIS_SHAPE] = GRID_COUNT(grid_shapes),
};

static const unsigned flashinfer_sizes[FLASHINFER_AXIS_COUNT] = {
    [FLASHINFER_DTYPE] = GRID_COUNT(flashinfer_dtypes),
    [FLASHINFER_KV] = GRID_COUNT(flashinfer_kv_dtypes),
    [FLASHINFER_HEAD_DIM] = GRID_COUNT(flashinfer_head_dims),
    [FLASHINFER_HEADS] = GRID_COUNT(flashinfer_heads),
    [FLASHINFER_BLOCK_SIZE] = GRID_COUNT(flashinfer_block_sizes),
    [FLASHINFER_LAYOUT] = LAYOUT_NHD + 1,
    [FLASHINFER_SOFTCAP] = 2,
    [FLASHINFER_SHAPE] = GRID_COUNT(flashinfer_shapes),
};

static const unsigned columns_sizes[COLUMNS_AXIS_COUNT] = {
    [COLUMNS_DTYPE] = GRID_COUNT(flashinfer_dtypes),        [COLUMNS_KV] = GRID_COUNT(flashinfer_kv_dtypes),
    [COLUMNS_HEAD_DIM] = GRID_COUNT(columns_head_dims),     [COLUMNS_HEADS] = GRID_COUNT(columns_heads),
    [COLUMNS_BLOCK_SIZE] = GRID_COUNT(columns_block_sizes), [COLUMNS_LAYOUT] = LAYOUT_NHD + 1,
    [COLUMNS_WINDOW] = GRID_COUNT(columns_windows),         [COLUMNS_SOFTCAP] = 2,
    [COLUMNS_SHAPE] = GRID_COUNT(columns_shapes),
};

static const unsigned spans_sizes[SPANS_AXIS_COUNT] = {
    [SPANS_FORMAT] = GRID_COUNT(spans_formats), [SPANS_HEADS] = GRID_COUNT(spans_heads),
    [SPANS_WINDOW] = GRID_COUNT(spans_windows), [SPANS_SINKS] = 2,
    [SPANS_SHAPE] = GRID_COUNT(spans_shapes),
};

static const unsigned odd_sizes[ODD_AXIS_COUNT] = {
    [ODD_FORMAT] = GRID_COUNT(odd_formats),     [ODD_HEADS] = GRID_COUNT(odd_heads),
    [ODD_HEAD_DIM] = GRID_COUNT(odd_head_dims), [ODD_BLOCK_SIZE] = GRID_COUNT(odd_block_sizes),
    [ODD_WINDOW] = GRID_COUNT(odd_windows),     [ODD_LAYOUT] = LAYOUT_NHD + 1,
    [ODD_SHAPE] = GRID_COUNT(odd_shapes),
};

static const unsigned large_sizes[LARGE_AXIS_COUNT] = {
    [LARGE_FORMAT] = 2, /* of odd_formats */
    [LARGE_SHAPE] = GRID_COUNT(odd_shapes),
};

static const unsigned paged_sizes[PAGED_AXIS_COUNT] = {
    [PAGED_DTYPE] = GRID_COUNT(grid_dtypes),
    [PAGED_KV] = GRID_COUNT(paged_kv_dtypes),
    [PAGED_HEAD_DIM] = GRID_COUNT(paged_head_dims),
    [PAGED_HEADS] = GRID_COUNT(paged_heads),
    [PAGED_BLOCK_SIZE] = GRID_COUNT(paged_block_sizes),
    [PAGED_ALIBI] = 2,
    [PAGED_KERNEL] = 3,
    [PAGED_SPARSE] = GRID_COUNT(paged_sparse),
    [PAGED_SOURCE] = SOURCE_COUNT,
    [PAGED_SHAPE] = GRID_COUNT(paged_shapes),
};

#endif
