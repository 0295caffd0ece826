/* SPDX-License-Identifier: Apache-2.0 */
/* minimal.c - attention over block tables of one's own, with attnd.h alone.
 *
 *     cc minimal.c $(pkg-config --cflags --libs attnd) -lm && ./a.out
 *
 * A caller that has an allocator of its own leases blocks once, says with each step where the step's K and V go (slot_mapping) and
 * where each sequence's tokens lie (block_tables, context_lens), and has the library compute. Here two sequences of one head of 8
 * numbers decode six tokens each; every token's output is compared with a softmax in double precision. */
#include <attnd.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DIM = 8, BLOCK = 4, SEQUENCES = 2, TOKENS = 6, TABLE = 2 /* blocks of a sequence */ };

static const char configuration[] =
    "{\"geometry\": {\"layers\": 1, \"query_heads\": 1, \"kv_heads\": 1, \"head_dim\": 8,"
    " \"block_size\": 4, \"dtype\": \"f32\", \"kv_dtype\": \"f32\"},"
    " \"pool\": {\"blocks\": 16}}";

static void check(int code)
{
    if (code == ATTND_OK)
        return;
    fprintf(stderr, "%s: %s\n", attnd_code_name(code), attnd_error());
    exit(1);
}

int main(void)
{
    static float k[SEQUENCES][TOKENS][DIM], v[SEQUENCES][TOKENS][DIM];
    float q[SEQUENCES][DIM], step_k[SEQUENCES][DIM], step_v[SEQUENCES][DIM], o[SEQUENCES][DIM];
    const int64_t shape[] = {SEQUENCES, 1, DIM};
    const struct attnd_tensor like = {
        .device_type = 1, .ndim = 3, .dtype_code = 2, .dtype_bits = 32, .dtype_lanes = 1, .shape = shape};
    struct attnd_tensor tq = like, tk = like, tv = like, to = like;
    int32_t tables[SEQUENCES][TABLE], lens[SEQUENCES];
    int64_t slots[SEQUENCES];
    uint32_t blocks[SEQUENCES * TABLE];
    uint64_t lease;
    struct attnd *a;
    double largest = 0;

    tq.data = q;
    tk.data = step_k;
    tv.data = step_v;
    to.data = o;
    const struct attnd_options options = {.size = sizeof options, .configuration = configuration};
    check(attnd_open(&options, &a));
    check(attnd_lease(a, SEQUENCES * TABLE, &lease, blocks));
    for (int s = 0; s < SEQUENCES; s++) {
        for (int i = 0; i < TABLE; i++)
            tables[s][i] = (int32_t)blocks[i * SEQUENCES + s];
    }
    for (int t = 0; t < TOKENS; t++) {
        for (int s = 0; s < SEQUENCES; s++) {
            for (int d = 0; d < DIM; d++) {
                q[s][d] = sinf((float)(t + s + d));
                step_k[s][d] = k[s][t][d] = cosf((float)(t * s + d));
                step_v[s][d] = v[s][t][d] = (float)(t - s) + 0.25F * (float)d;
            }
            lens[s] = t + 1;
            slots[s] = (int64_t)tables[s][t / BLOCK] * BLOCK + t % BLOCK;
        }
        const struct attnd_paged_rows rows = {.size = sizeof rows,
                                              .lease = lease,
                                              .sequences = SEQUENCES,
                                              .columns = TABLE,
                                              .block_tables = tables[0],
                                              .context_lens = lens,
                                              .slot_mapping = slots,
                                              .tokens = SEQUENCES,
                                              .q = &tq,
                                              .k = &tk,
                                              .v = &tv,
                                              .o = &to};
        check(attnd_paged(a, &rows, NULL));
        for (int s = 0; s < SEQUENCES; s++) {
            double sum = 0, expected[DIM] = {0};
            for (int i = 0; i <= t; i++) {
                double score = 0;
                for (int d = 0; d < DIM; d++)
                    score += (double)q[s][d] * k[s][i][d];
                score = exp(score / sqrt(DIM));
                sum += score;
                for (int d = 0; d < DIM; d++)
                    expected[d] += score * v[s][i][d];
            }
            for (int d = 0; d < DIM; d++)
                largest = fmax(largest, fabs(expected[d] / sum - (double)o[s][d]));
        }
        printf("token %d: o[0][0] %9.6f, o[1][0] %9.6f\n", t, (double)o[0][0], (double)o[1][0]);
    }
    check(attnd_audit(a));
    attnd_close(a);
    printf("largest error %.1e: %s\n", largest, largest < 1e-5 ? "ok" : "wrong");
    return largest < 1e-5 ? 0 : 1;
}
