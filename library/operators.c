/* SPDX-License-Identifier: Apache-2.0 */
/* operators.c - attnd_kernels_*: what is asked of kernels over the caller's own caches, checked and handed on (kernels/operators.h). */
#include "kernels/operators.h"

#include "config/numbers.h"
#include "library/handle.h"
#include "scheduler/planner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ADDRESS_ALIGNMENT = 16,
    PARTIALS_PER_QUERY = 6,
    PARTIALS_LEAST = 4096 /* as the engine's plans have */
};

_Static_assert(sizeof(struct operators_launches) <= ATTND_LAUNCHES_BYTES, "room in the caller's memory");

struct attnd_kernels {
    struct geometry geometry;
    struct operators *operators;
};

static int refuse(const char *what)
{
    return handle_fail(ATTND_ERR_INVALID, "%s", what);
}

/* What a launch has answered. */
static int answer(const char *wrong)
{
    return wrong ? handle_fail(ATTND_ERR_DEVICE, "%s", wrong) : ATTND_OK;
}

int attnd_kernels_open(struct attnd_shape *shape, struct attnd_kernels **result)
{
    struct attnd_shape of;
    char reason[GEOMETRY_REASON_BYTES], error[OPERATORS_ERROR_BYTES];
    const char *field;
    int rc = handle_take(&of, sizeof of, shape, "shape");
    if (rc != ATTND_OK)
        return rc;
    if (!result)
        return refuse("kernels: is NULL");
    struct geometry g = {
        .layers = 1,
        .query_heads = of.query_heads,
        .kv_heads = of.kv_heads,
        .head_dim = of.head_dim,
        .block_size = of.block_size,
        .layout = of.layout == ATTND_OWN ? LAYOUT_HND : LAYOUT_VLLM,
        .scale = 1,
        .softcap = of.softcap,
        .sparse = {of.local_blocks, of.vert_stride, of.sparse_block_size, of.tp_rank, of.head_sliding_step}};
    if (!handle_dtype(of.dtype_code, of.dtype_bits, &g.dtype) ||
        !handle_dtype(of.kv_dtype_code, of.kv_dtype_bits, &g.kv_dtype))
        return refuse("shape: dtype or kv_dtype is none that attnd has");
    if (of.layout > ATTND_OWN)
        return handle_fail(ATTND_ERR_INVALID, "shape.layout: there is no %u", of.layout);
    if (of.layout == ATTND_VLLM && of.softcap != 0)
        return refuse("shape.softcap: kernels of vLLM's layout have none");
    if (of.kv_heads == 0 || geometry_check(&g, &field, reason) != 0)
        return handle_fail(ATTND_ERR_INVALID, "shape.%s: %s", of.kv_heads ? field : "kv_heads",
                           of.kv_heads ? reason : "wants 1 at least");
    struct attnd_kernels *k = calloc(1, sizeof *k);
    if (!k)
        return handle_fail(ATTND_ERR_NO_MEMORY, "no memory for the kernels' handle");
    k->geometry = g;
    if (operators_open(&k->geometry, of.gpu, of.cache ? of.cache : "", &k->operators, error) != 0) {
        free(k);
        return handle_fail(ATTND_ERR_UNSUPPORTED, "%s", error);
    }
    of.v1_max_length = operators_v1_max(k->operators);
    handle_give(shape, &of, sizeof of);
    *result = k;
    return ATTND_OK;
}

void attnd_kernels_close(struct attnd_kernels *k)
{
    if (k)
        operators_close(k->operators);
    free(k);
}

/* ---- attention over the library's own layout ------------------------------------------------------- */

/* Rows of q of sequence i. */
static int64_t rows_of(const struct attnd_plan *of, uint32_t i)
{
    return of->query_start_loc ? (int64_t)of->query_start_loc[i + 1] - of->query_start_loc[i] : 1;
}

/* Whether rows are counted from 0 on, and are as many as are said. */
static int look_at_rows(const struct attnd_plan *of)
{
    const int32_t *starts = of->query_start_loc;
    for (uint32_t i = 0; starts && i < of->sequences; i++) {
        int64_t rows = rows_of(of, i);
        if (starts[0] != 0 || rows < 0)
            return handle_fail(ATTND_ERR_INVALID, "query_start_loc: wants %u numbers, rising from 0",
                               of->sequences + 1);
        if (of->seq_lens[i] && rows > of->seq_lens[i])
            return handle_fail(
                ATTND_ERR_INVALID,
                "query_start_loc: sequence %u has %d tokens, and %lld rows ask for the last of them", i,
                of->seq_lens[i], (long long)rows);
    }
    uint32_t rows = starts ? (uint32_t)starts[of->sequences] : of->sequences;
    if (rows == 0)
        return refuse("query_start_loc: has no rows");
    if (of->rows && of->rows != rows)
        return handle_fail(ATTND_ERR_INVALID, "rows: are %u by query_start_loc, and %u are said", rows,
                           of->rows);
    return (uint64_t)rows * larger(plan_spans(of->max_seq_len), PARTIALS_PER_QUERY) <= UINT32_MAX
               ? ATTND_OK
               : refuse("rows: are too many over so many tokens");
}

/* What of a plan's tables and lengths cannot be: ATTND_OK, or a code with the sentence kept. */
static int look_at_tables(const struct attnd_kernels *k, const struct attnd_plan *of)
{
    for (uint32_t i = 0; i < of->sequences; i++) {
        int32_t length = of->seq_lens[i];
        const int32_t *table = of->block_tables + i * of->table_row;
        if (length < 0 || (uint32_t)length > of->max_seq_len)
            return handle_fail(ATTND_ERR_INVALID,
                               "seq_lens: that of sequence %u is %d, and max_seq_len is %u", i, length,
                               of->max_seq_len);
        uint32_t blocks = geometry_blocks(&k->geometry, (uint32_t)length);
        if (blocks > of->table_row)
            return handle_fail(ATTND_ERR_INVALID,
                               "block_tables: sequence %u has %d tokens, and a table has %llu blocks", i,
                               length, (unsigned long long)of->table_row);
        for (uint32_t b = 0; b < blocks; b++) {
            if (table[b] < 0)
                return handle_fail(ATTND_ERR_INVALID,
                                   "block_tables: sequence %u has %d tokens, and its block %u is %d", i,
                                   length, b, table[b]);
        }
    }
    return look_at_rows(of);
}

/* The queries of all rows: the last tokens of their sequences. */
static void put_queries(const struct attnd_plan *of, struct planner_query *queries)
{
    for (uint32_t i = 0, at = 0; i < of->sequences; i++) {
        uint32_t length = (uint32_t)of->seq_lens[i], rows = (uint32_t)rows_of(of, i);
        for (uint32_t r = 0; r < rows; r++)
            queries[at++] = (struct planner_query){i, length ? length - rows + r + 1 : 0, 1, SHARING_AUTO};
    }
}

/* Plan for the tables and lengths of the host's, and lower that into of->lists, if there is room. */
static int plan_tables(struct attnd_kernels *k, struct attnd_plan *of, struct operators_launches *launches)
{
    const struct geometry *g = &k->geometry;
    int rc = look_at_tables(k, of);
    if (rc != ATTND_OK)
        return rc;
    uint32_t rows = of->query_start_loc ? (uint32_t)of->query_start_loc[of->sequences] : of->sequences,
             least = planner_partials_least(rows, of->max_seq_len),
             enough = larger(PARTIALS_PER_QUERY * rows, PARTIALS_LEAST);
    const struct planner_options options = {.queries_max = rows,
                                            .partials_max = larger(least, enough),
                                            .tasks = operators_tasks(k->operators),
                                            .kv_heads = g->kv_heads,
                                            .group = geometry_group(g),
                                            .block_size = g->block_size,
                                            .window = of->window,
                                            .caps = *operators_caps(k->operators)};
    struct planner *planner = NULL;
    struct planner_query *queries = calloc(rows, sizeof *queries);
    if (!queries || planner_create(&options, &planner) != 0) {
        free(queries);
        return handle_fail(ATTND_ERR_NO_MEMORY, "no memory for a plan of %u rows", rows);
    }
    put_queries(of, queries);
    const uint32_t *tables = (const uint32_t *)of->block_tables, stride = (uint32_t)of->table_row;
    const struct plan *plan = planner_make(planner, queries, rows, tables, stride);
    uint64_t room = of->lists ? of->lists_bytes : 0;
    operators_lower(k->operators, plan, tables, stride, of->max_seq_len, of->window, launches, NULL);
    if (of->lists && room < launches->lists_bytes)
        rc = handle_fail(ATTND_ERR_INVALID, "lists: take %llu bytes, and there is room for %llu",
                         (unsigned long long)launches->lists_bytes, (unsigned long long)room);
    else if (of->lists)
        operators_lower(k->operators, plan, tables, stride, of->max_seq_len, of->window, launches, of->lists);
    planner_destroy(planner);
    free(queries);
    return rc;
}

int attnd_kernels_plan(struct attnd_kernels *k, struct attnd_plan *plan)
{
    struct attnd_plan of;
    struct operators_launches launches = {0};
    int rc = handle_take(&of, sizeof of, plan, "plan");
    if (rc != ATTND_OK)
        return rc;
    if (!k || !of.launches)
        return refuse("the kernels, or plan.launches, are NULL");
    if (k->geometry.layout == LAYOUT_VLLM)
        return refuse("kernels of vLLM's layout take no plan");
    if (of.sequences == 0 || of.max_seq_len == 0)
        return refuse("sequences, max_seq_len: want 1 at least");
    if (!of.block_tables != !of.seq_lens)
        return refuse("block_tables and seq_lens: both, or none");
    if (!of.block_tables && of.query_start_loc)
        return refuse("query_start_loc: without tables the call has it, and the plan `rows`");
    if ((uintptr_t)of.lists % ADDRESS_ALIGNMENT)
        return refuse("lists: do not begin at a multiple of 16 bytes");
    if (of.table_row > UINT32_MAX)
        return refuse("table_row: is too large");
    const char *wrong = of.block_tables ? NULL
                                        : operators_size(k->operators, of.rows ? of.rows : of.sequences,
                                                         of.max_seq_len, of.window, &launches);
    if (wrong)
        return refuse(wrong);
    if (of.block_tables && (rc = plan_tables(k, &of, &launches)) != ATTND_OK)
        return rc;
    memset(of.launches, 0, ATTND_LAUNCHES_BYTES);
    memcpy(of.launches, &launches, sizeof launches);
    of.lists_bytes = launches.lists_bytes;
    of.workspace_bytes = launches.workspace_bytes;
    handle_give(plan, &of, sizeof of);
    return ATTND_OK;
}

static int decode(struct attnd_kernels *k, const struct attnd_paged_call *of)
{
    struct operators_launches launches;
    uint32_t rows = of->rows ? of->rows : of->sequences;
    if (!of->launches || !of->lists || !of->block_tables ||
        (of->attend &&
         (!of->query || !of->out || !of->key_cache || !of->workspace || !of->k_scale || !of->v_scale)) ||
        (of->find && !of->seq_lens))
        return refuse("an address of the call is NULL");
    memcpy(&launches, of->launches, sizeof launches);
    if (!operators_are_for(k->operators, &launches))
        return refuse(
            "plan: was made for other kernels (heads, head_dim, block_size, dtypes or GPU), or is none");
    if (launches.queries != rows)
        return handle_fail(ATTND_ERR_INVALID, "plan: is of %u rows of query, and the call has %u",
                           launches.queries, rows);
    if (of->find && !of->query_start_loc && rows != of->sequences)
        return handle_fail(ATTND_ERR_INVALID, "query_start_loc: is NULL, and %u sequences have %u rows",
                           of->sequences, rows);
    if (of->sequences == 0)
        return refuse("sequences: wants 1 at least");
    if (of->find && launches.slots == 0)
        return refuse("plan: has tables and lengths, and the GPU is to find others");
    if (((uintptr_t)of->lists | (uintptr_t)of->workspace | (uintptr_t)of->key_cache | (uintptr_t)of->query |
         (uintptr_t)of->out) %
        ADDRESS_ALIGNMENT)
        return refuse("lists, workspace, key_cache, query or out: does not begin at a multiple of 16 bytes");
    if (of->attend && !isfinite(of->scale))
        return refuse("scale: is not finite");
    const struct operators_decode attention = {
        .launches = &launches,
        .lists = of->lists,
        .workspace = of->workspace,
        .finds = of->find != 0,
        .tables = of->block_tables,
        .lengths = of->seq_lens,
        .starts = of->query_start_loc,
        .table_row = of->table_row,
        .sequences = of->sequences,
        .caches = {.k = of->attend ? of->key_cache : NULL, .k_scale = of->k_scale, .v_scale = of->v_scale},
        .blocks = of->blocks,
        .q = of->query,
        .o = of->out,
        .lse = of->lse,
        .sinks = of->sinks,
        .alibi = of->alibi_slopes,
        .scale = of->scale};
    return answer(operators_decode(k->operators, &attention, of->stream));
}

int attnd_kernels_paged(struct attnd_kernels *k, const struct attnd_paged_call *call)
{
    struct attnd_paged_call of;
    int rc = handle_take(&of, sizeof of, call, "call");
    if (rc != ATTND_OK)
        return rc;
    if (k && k->geometry.layout != LAYOUT_VLLM)
        return decode(k, &of);
    if (!k || !of.query || !of.out || !of.key_cache || !of.value_cache || !of.block_tables || !of.seq_lens ||
        !of.k_scale || !of.v_scale)
        return refuse("the kernels, or an address of the call, are NULL");
    if (!of.v2 && of.max_seq_len > operators_v1_max(k->operators))
        return handle_fail(
            ATTND_ERR_INVALID,
            "max_seq_len: paged_v1 keeps logits in shared memory, of %u tokens at most: take v2",
            operators_v1_max(k->operators));
    if (of.v2 && !of.workspace)
        return refuse("workspace: is NULL");
    if (!isfinite(of.scale))
        return refuse("scale: is not finite");
    if (of.sequences == 0 || of.max_seq_len == 0)
        return ATTND_OK;
    const struct operators_attention attention = {
        .caches = {of.key_cache, of.value_cache, of.block_bytes, of.k_scale, of.v_scale},
        .q = of.query,
        .q_row = of.query_row,
        .o = of.out,
        .tables = of.block_tables,
        .lengths = of.seq_lens,
        .table_row = of.table_row,
        .sequences = of.sequences,
        .max_length = of.max_seq_len,
        .alibi = of.alibi_slopes,
        .scale = of.scale,
        .partials = of.workspace};
    return answer(operators_attend(k->operators, &attention, of.v2 != 0, of.stream));
}

static int store(struct attnd_kernels *k, const struct attnd_cache_call *of)
{
    struct operators_tokens tokens = {.k = of->key,
                                      .v = of->value,
                                      .k_row = of->key_row,
                                      .v_row = of->value_row,
                                      .slots = of->slots,
                                      .tokens = of->count};
    if (!of->key || !of->value || !of->slots || !of->k_scale || !of->v_scale || of->layers != 1)
        return refuse("an address of the call is NULL, or layers is not 1");
    if (!handle_dtype(of->dtype_code, of->dtype_bits, &tokens.dtype) ||
        (tokens.dtype != k->geometry.dtype && tokens.dtype != k->geometry.kv_dtype))
        return refuse("dtype: wants that of the shape, or its kv_dtype");
    tokens.caches =
        (struct operators_caches){of->key_caches[0], of->value_caches ? of->value_caches[0] : NULL,
                                  of->block_bytes, of->k_scale, of->v_scale};
    return answer(operators_store(k->operators, &tokens, of->stream));
}

int attnd_kernels_cache(struct attnd_kernels *k, const struct attnd_cache_call *call)
{
    struct attnd_cache_call of;
    int rc = handle_take(&of, sizeof of, call, "call");
    if (rc != ATTND_OK)
        return rc;
    bool has_values = k && (k->geometry.layout == LAYOUT_VLLM || of.kind != ATTND_STORE);
    if (!k || !of.key_caches || (has_values && of.kind != ATTND_SWAP && !of.value_caches))
        return refuse("the kernels, or an address of the call, are NULL");
    if (of.kind != ATTND_STORE && !of.pairs && of.count)
        return refuse("pairs: is NULL");
    if (of.kind == ATTND_STORE)
        return store(k, &of);
    if (of.kind == ATTND_SWAP)
        return answer(operators_swap(k->operators, of.key_caches[0], of.key_caches[1], of.block_bytes,
                                     of.pairs, of.count, of.stream));
    if (of.kind != ATTND_COPY)
        return handle_fail(ATTND_ERR_INVALID, "kind: there is no %u", of.kind);
    if (k->geometry.layout != LAYOUT_VLLM)
        return refuse("kind: ATTND_COPY goes with kernels of vLLM's layout");
    if (of.block_bytes % 16)
        return refuse("block_bytes: wants a multiple of 16");
    const struct operators_copies copies = {.k = of.key_caches,
                                            .v = of.value_caches,
                                            .block_bytes = of.block_bytes,
                                            .pairs = of.pairs,
                                            .layers = of.layers,
                                            .pair_count = of.count};
    return answer(operators_copy(k->operators, &copies, of.stream));
}
