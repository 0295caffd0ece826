/* SPDX-License-Identifier: Apache-2.0 */
/* operators.c - attnd_kernels_*: what is asked of kernels over the caller's own caches, checked and handed on (kernels/operators.h). */
#include "kernels/operators.h"

#include "library/handle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
        .layout = LAYOUT_VLLM,
        .scale = 1,
        .sparse = {of.local_blocks, of.vert_stride, of.sparse_block_size, of.tp_rank, of.head_sliding_step}};
    if (!handle_dtype(of.dtype_code, of.dtype_bits, &g.dtype) ||
        !handle_dtype(of.kv_dtype_code, of.kv_dtype_bits, &g.kv_dtype))
        return refuse("shape: dtype or kv_dtype is none that attnd has");
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

int attnd_kernels_paged(struct attnd_kernels *k, const struct attnd_paged_call *call)
{
    struct attnd_paged_call of;
    int rc = handle_take(&of, sizeof of, call, "call");
    if (rc != ATTND_OK)
        return rc;
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
    tokens.caches = (struct operators_caches){of->key_caches[0], of->value_caches[0], of->block_bytes,
                                              of->k_scale, of->v_scale};
    return answer(operators_store(k->operators, &tokens, of->stream));
}

int attnd_kernels_cache(struct attnd_kernels *k, const struct attnd_cache_call *call)
{
    struct attnd_cache_call of;
    int rc = handle_take(&of, sizeof of, call, "call");
    if (rc != ATTND_OK)
        return rc;
    if (!k || !of.key_caches || (of.kind != ATTND_SWAP && !of.value_caches))
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
