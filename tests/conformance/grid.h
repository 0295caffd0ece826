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
     6,
     {{-1, 0, 700}, {0, 300, 310}, {0, 512, 900}, {0, 699, 700}, {2, 800, 801}, {1, 17, 40}}},
    {"several rows each", 7, 3, {{-1, 0, 5}, {-1, 0, 259}, {1, 256, 300}}},
    {"many rows on one prefix", 2, 24, {{-1, 0, 520},  {0, 520, 520}, {0, 520, 521}, {0, 519, 522},
                                        {0, 512, 520}, {0, 520, 523}, {0, 300, 301}, {0, 520, 521},
                                        {0, 520, 521}, {0, 520, 521}, {0, 520, 521}, {0, 520, 521},
                                        {0, 520, 521}, {0, 520, 521}, {0, 520, 521}, {0, 520, 521},
                                        {0, 520, 521}, {0, 520, 521}, {0, 520, 521}, {0, 520, 521},
                                        {0, 520, 521}, {0, 520, 521}, {0, 520, 521}, {0, 64, 100}}},
};

#define GRID_COUNT(array) (sizeof(array) / sizeof(array)[0])

static const unsigned grid_sizes[AXIS_COUNT] = {
    [AXIS_DTYPE] = GRID_COUNT(grid_dtypes),           [AXIS_KV_DTYPE] = GRID_COUNT(grid_kv_dtypes),
    [AXIS_HEAD_DIM] = GRID_COUNT(grid_head_dims),     [AXIS_HEADS] = GRID_COUNT(grid_heads),
    [AXIS_BLOCK_SIZE] = GRID_COUNT(grid_block_sizes), [AXIS_LAYOUT] = LAYOUT_COUNT,
    [AXIS_WINDOW] = GRID_COUNT(grid_windows),         [AXIS_SOFTCAP] = 2,
    [AXIS_CONSTANTS] = GRID_COUNT(grid_constants),    [AXIS_SOURCE] = SOURCE_COUNT,
    [AXIS_SHAPE] = GRID_COUNT(grid_shapes),
};

#endif
