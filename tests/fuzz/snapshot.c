/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.c - files of sequences that were saved. Digests are not compared, so that what is behind them is reached. */
#include "server/snapshot.h"
#include "tests/fuzz/files.h"

#include <fcntl.h>

enum { LAYERS = 2, DIM = 8, TOKENS = 64, PROMPT = 200 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const struct geometry g = {.layers = LAYERS,
                                      .query_heads = 1,
                                      .kv_heads = 1,
                                      .head_dim = DIM,
                                      .block_size = 4,
                                      .dtype = DTYPE_F32,
                                      .kv_dtype = DTYPE_F32};
    static float k[LAYERS * TOKENS * DIM], v[LAYERS * TOKENS * DIM];
    static uint32_t ids[TOKENS];
    struct snapshot_reader *r;
    struct snapshot_sequence q;
    char reason[SNAPSHOT_REASON_BYTES] = "";
    uint64_t sum = 0;
    if (snapshot_open(open(fuzz_file(bytes, n), O_RDONLY), &g, PROMPT, &r, reason) != 0) {
        if (!reason[0])
            abort();
        return 0;
    }
    for (uint32_t i = 0; i < snapshot_count(r); i++) {
        struct snapshot_tokens t = {0};
        if (snapshot_read(r, i, &q, reason) != 0)
            continue;
        for (uint32_t p = 0; p < q.prompt_count; p++)
            sum += q.prompt[p];
        while (snapshot_next(r, TOKENS, ids, k, v, &t, reason) == 0 && t.first < t.end)
            sum += t.id_count;
    }
    for (uint32_t i = 0; snapshot_head(r)->constants->sinks && i < LAYERS; i++)
        sum += snapshot_head(r)->constants->sinks[i] > 0;
    snapshot_close(r);
    return sum == UINT64_MAX; /* so that it is read */
}
