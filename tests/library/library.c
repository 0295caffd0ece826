/* SPDX-License-Identifier: Apache-2.0 */
/* library.c - the library as its users see it: through attnd.h alone, linked against the shared library.
 *
 * Outputs are compared with a softmax in double precision that knows nothing of blocks; bits with those of another way to the same
 * rows. Each test runs twice: turns of the engine in the calling thread, and in a thread of the library's. */
#include <attnd.h>

#include <check.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LAYERS = 2,
    QUERY_HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    BLOCK = 4,
    Q_ROW = QUERY_HEADS * DIM,
    KV_ROW = KV_HEADS * DIM
};

enum { TIMEOUT_S = 600 }; /* a GPU's kernels are compiled first */

static const char geometry[] =
    "{\n"
    "  \"geometry\": {\"layers\": 2, \"query_heads\": 4, \"kv_heads\": 2, \"head_dim\": 16,\n"
    "               \"block_size\": 4, \"dtype\": \"f32\", \"kv_dtype\": \"f32\"},\n"
    "  \"pool\": {\"blocks\": 256}, // few\n"
    "  \"backend\": {\"name\": \"cpu\", \"threads\": 2}\n"
    "}\n";

/* ---- values and tensors ----------------------------------------------------------------------------- */

/* Of element i of something: within +-1. */
static float value(uint32_t what, uint32_t i)
{
    uint32_t x = what * 2654435761U ^ (i + 1) * 2246822519U;
    x ^= x >> 15;
    x *= 3266489917U;
    x ^= x >> 13;
    return (float)(int32_t)x / 2147483648.0F;
}

static void fill(float *to, uint32_t what, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = value(what, first + i);
}

struct tensor {
    struct attnd_tensor t;
    int64_t shape[4];
};

static const struct attnd_tensor *tensor(struct tensor *x, void *data, int ndim, int64_t a, int64_t b,
                                         int64_t c, int64_t d)
{
    const int64_t shape[] = {a, b, c, d};
    memcpy(x->shape, shape, sizeof shape);
    x->t = (struct attnd_tensor){.data = data,
                                 .device_type = 1,
                                 .ndim = ndim,
                                 .dtype_code = 2,
                                 .dtype_bits = 32,
                                 .dtype_lanes = 1,
                                 .shape = x->shape};
    return &x->t;
}

/* K and V of token i of a content, at a layer; and q. */
static void token_kv(uint32_t content, uint32_t layer, uint32_t i, float k[KV_ROW], float v[KV_ROW])
{
    fill(k, content * 8 + layer * 2, i * KV_ROW, KV_ROW);
    fill(v, content * 8 + layer * 2 + 1, i * KV_ROW, KV_ROW);
}

static void token_q(uint32_t content, uint32_t layer, uint32_t i, float q[Q_ROW])
{
    fill(q, content * 8 + layer + 1000, i * Q_ROW, Q_ROW);
}

/* ---- what a test has -------------------------------------------------------------------------------- */

static struct attnd *a;

static struct attnd *open_with(const char *configuration, int thread)
{
    struct attnd *opened = NULL;
    const char *backend = getenv("BACKEND"); /* another one than the CPU's */
    char setting[64];
    const char *const settings[] = {setting};
    const struct attnd_options options = {.size = sizeof options,
                                          .configuration = configuration,
                                          .settings = settings,
                                          .setting_count = backend != NULL,
                                          .thread = thread};
    snprintf(setting, sizeof setting, "backend.name=%s", backend ? backend : "");
    int rc = attnd_open(&options, &opened);
    ck_assert_msg(rc == ATTND_OK, "%s", attnd_error());
    return opened;
}

/* The sentence of what has failed, and that it has. */
static void ck_fails(int rc, int code, const char *sentence)
{
    ck_assert_msg(rc == code, "%s (%s) instead of %s", attnd_code_name(rc), attnd_error(),
                  attnd_code_name(code));
    ck_assert_msg(strstr(attnd_error(), sentence), "\"%s\" is not in \"%s\"", sentence, attnd_error());
}

static void ck_good(int rc)
{
    ck_assert_msg(rc == ATTND_OK, "%s: %s", attnd_code_name(rc), attnd_error());
}

static uint64_t create(void)
{
    struct attnd_creation creation = {.size = sizeof creation};
    ck_good(attnd_create(a, &creation));
    return creation.id;
}

/* Append n tokens of a content to a sequence that has `at`, all layers at once. */
static void append(uint64_t id, uint32_t content, uint32_t at, uint32_t n)
{
    float *k = malloc(sizeof *k * LAYERS * n * KV_ROW), *v = malloc(sizeof *v * LAYERS * n * KV_ROW);
    struct tensor tk, tv;
    int64_t position = at;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < n; i++)
            token_kv(content, layer, at + i, k + (layer * n + i) * KV_ROW, v + (layer * n + i) * KV_ROW);
    }
    const struct attnd_rows rows = {.size = sizeof rows,
                                    .layer = ATTND_ALL_LAYERS,
                                    .sequences = &id,
                                    .sequence_count = 1,
                                    .counts = &n,
                                    .positions = &position,
                                    .k = tensor(&tk, k, 4, LAYERS, n, KV_HEADS, DIM),
                                    .v = tensor(&tv, v, 4, LAYERS, n, KV_HEADS, DIM)};
    ck_good(attnd_append(a, &rows, 1, NULL));
    free(k);
    free(v);
}

/* One query behind the last of `tokens`, of `content`: o and lse. */
static void attend(uint64_t id, uint32_t content, uint32_t layer, uint32_t tokens, float o[Q_ROW],
                   float lse[QUERY_HEADS])
{
    float q[Q_ROW];
    struct tensor tq, to, tl;
    token_q(content, layer, tokens - 1, q);
    const struct attnd_rows rows = {.size = sizeof rows,
                                    .layer = layer,
                                    .sequences = &id,
                                    .sequence_count = 1,
                                    .q = tensor(&tq, q, 3, 1, QUERY_HEADS, DIM, 0),
                                    .o = tensor(&to, o, 3, 1, QUERY_HEADS, DIM, 0),
                                    .lse = tensor(&tl, lse, 2, 1, QUERY_HEADS, 0, 0)};
    ck_good(attnd_attend(a, &rows, 1, NULL));
}

/* What that has to be, where token i is of content[i]. */
static void ck_right(const uint32_t *content, uint32_t q_content, uint32_t layer, uint32_t tokens,
                     const float *o, const float *lse)
{
    float q[Q_ROW], k[KV_ROW], v[KV_ROW];
    token_q(q_content, layer, tokens - 1, q);
    for (uint32_t head = 0; head < QUERY_HEADS; head++) {
        double sum = 0, expected[DIM] = {0};
        uint32_t kv = head / (QUERY_HEADS / KV_HEADS) * DIM;
        for (uint32_t i = 0; i < tokens; i++) {
            double s = 0;
            token_kv(content[i], layer, i, k, v);
            for (uint32_t d = 0; d < DIM; d++)
                s += (double)q[head * DIM + d] * k[kv + d];
            double p = exp(s / sqrt(DIM));
            sum += p;
            for (uint32_t d = 0; d < DIM; d++)
                expected[d] += p * v[kv + d];
        }
        ck_assert_double_lt(fabs(log(sum) - (double)lse[head]), 1e-5);
        for (uint32_t d = 0; d < DIM; d++)
            ck_assert_double_lt(fabs(expected[d] / sum - (double)o[head * DIM + d]), 1e-5);
    }
}

static void begin_in_caller(void)
{
    a = open_with(geometry, 0);
}

static void begin_in_thread(void)
{
    a = open_with(geometry, 1);
}

static void end(void)
{
    ck_good(attnd_audit(a));
    attnd_close(a);
}

/* ---- sequences -------------------------------------------------------------------------------------- */

START_TEST(outputs_are_right_and_forks_share)
{
    uint32_t contents[11] = {0};
    float o[Q_ROW], lse[QUERY_HEADS], again[Q_ROW];
    uint64_t id = create(), forks[2] = {0, 0};
    struct attnd_stats stats = {.size = sizeof stats};
    struct attnd_sequence look = {.size = sizeof look};
    append(id, 0, 0, 10);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        attend(id, 0, layer, 10, o, lse);
        ck_right(contents, 0, layer, 10, o, lse);
    }
    ck_good(attnd_fork(a, id, UINT32_MAX, forks, 2));
    ck_assert_uint_ne(forks[0], forks[1]);
    attend(forks[1], 0, 1, 10, again, lse);
    ck_assert_int_eq(memcmp(o, again, sizeof o), 0);
    ck_good(attnd_stats(a, &stats));
    ck_assert_uint_eq(stats.blocks_held, 3);
    ck_assert_uint_eq(stats.blocks_shared, 3);
    ck_assert_uint_eq(stats.sequences, 3);
    append(forks[0], 7, 10, 1); /* its last block is copied */
    contents[10] = 7;
    attend(forks[0], 0, 0, 11, o, lse);
    ck_right(contents, 0, 0, 11, o, lse);
    ck_good(attnd_stats(a, &stats));
    ck_assert_uint_eq(stats.copies_on_write, 1);
    ck_assert_uint_eq(stats.blocks_held, 4);
    ck_good(attnd_truncate(a, forks[0], 5));
    ck_good(attnd_look(a, forks[0], &look));
    ck_assert_uint_eq(look.length, 5);
    ck_assert_uint_eq(look.blocks, 2);
    ck_assert_uint_eq(look.parent, id);
    ck_good(attnd_delete(a, id));
    ck_fails(attnd_look(a, id, &look), ATTND_ERR_NOT_FOUND, "there is no sequence");
    uint32_t ids[4], count = 4;
    ck_fails(attnd_blocks(a, id, 0, ids, &count), ATTND_ERR_NOT_FOUND, "there is no sequence");
    attend(forks[1], 0, 0, 10, o, lse);
    ck_right(contents, 0, 0, 10, o, lse);
}
END_TEST

START_TEST(a_prompt_is_found_again)
{
    float k[8 * KV_ROW], v[8 * KV_ROW];
    uint32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, n = 8;
    struct tensor tk, tv;
    uint64_t id = create();
    struct attnd_creation creation = {
        .size = sizeof creation, .token_ids = tokens, .token_count = 9, .salt = "mine"};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct attnd_rows rows = {.size = sizeof rows,
                                  .layer = layer,
                                  .sequences = &id,
                                  .sequence_count = 1,
                                  .counts = &n,
                                  .token_ids = tokens,
                                  .token_count = 8,
                                  .k = tensor(&tk, k, 3, 8, KV_HEADS, DIM, 0),
                                  .v = tensor(&tv, v, 3, 8, KV_HEADS, DIM, 0)};
        for (uint32_t i = 0; i < 8; i++)
            token_kv(0, layer, i, k + i * KV_ROW, v + i * KV_ROW);
        ck_good(attnd_append(a, &rows, 1, NULL));
    }
    ck_good(attnd_create(a, &creation));
    ck_assert_uint_eq(creation.length, 0); /* of another salt */
    creation.id = 0;
    creation.salt = NULL;
    ck_good(attnd_create(a, &creation));
    ck_assert_uint_eq(creation.length, 8);
    uint32_t ids[8], others[8], count = 8;
    ck_good(attnd_blocks(a, id, 0, ids, &count));
    ck_assert_uint_eq(count, 2);
    count = 8;
    ck_good(attnd_blocks(a, creation.id, 0, others, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(memcmp(ids, others, 2 * sizeof *ids), 0);
}
END_TEST

START_TEST(a_batch_is_done_or_not)
{
    uint64_t id = create(), ids[2] = {0, 0};
    struct attnd_creation creation = {.size = sizeof creation, .id = 77};
    struct attnd_op ops[] = {
        {.size = sizeof *ops, .kind = ATTND_FORK, .id = id, .length = UINT32_MAX, .ids = ids, .count = 2},
        {.size = sizeof *ops, .kind = ATTND_CREATE, .creation = &creation},
        {.size = sizeof *ops, .kind = ATTND_DELETE, .id = 99}};
    struct attnd_stats stats = {.size = sizeof stats};
    ck_fails(attnd_batch(a, ops, 3), ATTND_ERR_NOT_FOUND, "99");
    ck_good(attnd_stats(a, &stats));
    ck_assert_uint_eq(stats.sequences, 1);
    ops[2].id = id;
    ck_good(attnd_batch(a, ops, 3));
    ck_good(attnd_stats(a, &stats));
    ck_assert_uint_eq(stats.sequences, 3);
    ck_assert_uint_ne(ids[1], 0);
    ck_good(attnd_delete(a, ids[1]));
    ck_good(attnd_delete(a, 77));
}
END_TEST

/* ---- calls ------------------------------------------------------------------------------------------ */

/* Several sequences of different lengths in a call, with and without tickets, all layers as a list: the bits of one at a time. */
START_TEST(bits_are_those_of_one_at_a_time)
{
    enum { N = 5 };
    uint64_t ids[N], ticket;
    uint32_t counts[N];
    float q[LAYERS][N][Q_ROW], o[LAYERS][N][Q_ROW], alone[Q_ROW], lse[QUERY_HEADS];
    struct tensor tq[LAYERS], to[LAYERS];
    struct attnd_rows rows[LAYERS];
    struct attnd_result result = {.size = sizeof result};
    for (uint32_t i = 0; i < N; i++) {
        ids[i] = create();
        counts[i] = 1;
        append(ids[i], i, 0, 3 + i * 5);
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < N; i++)
            token_q(i, layer, 2 + i * 5, q[layer][i]);
        rows[layer] = (struct attnd_rows){.size = sizeof *rows,
                                          .layer = layer,
                                          .sequences = ids,
                                          .sequence_count = N,
                                          .counts = counts,
                                          .q = tensor(&tq[layer], q[layer], 3, N, QUERY_HEADS, DIM, 0),
                                          .o = tensor(&to[layer], o[layer], 3, N, QUERY_HEADS, DIM, 0)};
    }
    ck_good(attnd_attend(a, rows, LAYERS, &ticket));
    int rc;
    do
        rc = attnd_poll(a, ticket, &result);
    while (rc == ATTND_PENDING);
    ck_good(rc);
    ck_assert_uint_ge(result.rows_in_step, N);
    ck_fails(attnd_poll(a, ticket, NULL), ATTND_ERR_NOT_FOUND, "ticket");
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < N; i++) {
            attend(ids[i], i, layer, 3 + i * 5, alone, lse);
            ck_assert_int_eq(memcmp(alone, o[layer][i], sizeof alone), 0);
        }
    }
    memset(o, 0, sizeof o);
    ck_good(attnd_attend(a, rows, LAYERS, &ticket));
    ck_good(attnd_await(a, ticket, 60, NULL));
    ck_assert_int_eq(memcmp(alone, o[1][N - 1], sizeof alone), 0);
}
END_TEST

/* Blocks of the caller's own, and the states of two halves. */
START_TEST(own_tables_have_the_bits_of_sequences)
{
    enum { TOKENS = 10, BLOCKS = 3 };
    uint64_t id = create(), lease;
    uint32_t blocks[BLOCKS], contents[TOKENS] = {0};
    int32_t table[2 * BLOCKS], lens[2] = {TOKENS, 4};
    int64_t slots[TOKENS];
    float k[TOKENS * KV_ROW], v[TOKENS * KV_ROW], q[2][Q_ROW], o[2][Q_ROW], of_sequence[Q_ROW],
        lse[2][QUERY_HEADS], lse_of[QUERY_HEADS];
    struct tensor tq, tk, tv, to, tl;
    append(id, 0, 0, TOKENS);
    ck_good(attnd_lease(a, BLOCKS, &lease, blocks));
    for (uint32_t i = 0; i < TOKENS; i++) {
        slots[i] = (int64_t)blocks[2 - i / BLOCK] * BLOCK + i % BLOCK;
        token_kv(0, 1, i, k + i * KV_ROW, v + i * KV_ROW);
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        table[i] = (int32_t)blocks[2 - i];
        table[BLOCKS + i] = (int32_t)blocks[2 - i];
    }
    token_q(0, 1, TOKENS - 1, q[0]);
    token_q(0, 1, 3, q[1]);
    struct attnd_paged_rows rows = {.size = sizeof rows,
                                    .lease = lease,
                                    .layer = 1,
                                    .slot_mapping = slots,
                                    .tokens = TOKENS,
                                    .k = tensor(&tk, k, 3, TOKENS, KV_HEADS, DIM, 0),
                                    .v = tensor(&tv, v, 3, TOKENS, KV_HEADS, DIM, 0)};
    ck_good(attnd_paged(a, &rows, NULL));
    rows = (struct attnd_paged_rows){.size = sizeof rows,
                                     .lease = lease,
                                     .layer = 1,
                                     .sequences = 2,
                                     .columns = BLOCKS,
                                     .block_tables = table,
                                     .context_lens = lens,
                                     .q = tensor(&tq, q, 3, 2, QUERY_HEADS, DIM, 0),
                                     .o = tensor(&to, o, 3, 2, QUERY_HEADS, DIM, 0),
                                     .lse = tensor(&tl, lse, 2, 2, QUERY_HEADS, 0, 0)};
    ck_good(attnd_paged(a, &rows, NULL));
    attend(id, 0, 1, TOKENS, of_sequence, lse_of);
    ck_assert_int_eq(memcmp(of_sequence, o[0], sizeof of_sequence), 0);
    ck_right(contents, 0, 1, 4, o[1], lse[1]);
    table[0] = 255; /* it is not the lease's */
    ck_fails(attnd_paged(a, &rows, NULL), ATTND_ERR_INVALID, "255");

    float states[2][Q_ROW], merged[Q_ROW], lse_merged[QUERY_HEADS];
    struct tensor ts, tls, tm, tlm;
    memcpy(states[0], o[0], sizeof states[0]);
    memcpy(states[1], o[0], sizeof states[1]);
    memcpy(lse[1], lse[0], sizeof lse[0]);
    struct attnd_states both = {.size = sizeof both,
                                .o = tensor(&ts, states, 4, 2, 1, QUERY_HEADS, DIM),
                                .lse = tensor(&tls, lse, 3, 2, 1, QUERY_HEADS, 0),
                                .merged_o = tensor(&tm, merged, 3, 1, QUERY_HEADS, DIM, 0),
                                .merged_lse = tensor(&tlm, lse_merged, 2, 1, QUERY_HEADS, 0, 0)};
    ck_good(attnd_merge(a, &both));
    for (uint32_t i = 0; i < QUERY_HEADS; i++)
        ck_assert_double_lt(fabs((double)lse_merged[i] - lse[0][i] - log(2)), 1e-5);
    for (uint32_t i = 0; i < Q_ROW; i++)
        ck_assert_double_lt(fabs((double)merged[i] - o[0][i]), 1e-6);
    ck_good(attnd_delete(a, lease));
}
END_TEST

START_TEST(what_is_wrong_is_said_and_changes_nothing)
{
    float k[2 * KV_ROW], v[2 * KV_ROW], q[Q_ROW], o[Q_ROW];
    struct tensor tk, tv, tq, to;
    uint64_t id = create(), ticket;
    int64_t gap = 5;
    uint32_t two = 2;
    struct attnd_sequence look = {.size = sizeof look};
    fill(k, 0, 0, 2 * KV_ROW);
    fill(v, 1, 0, 2 * KV_ROW);
    fill(q, 2, 0, Q_ROW);
    struct attnd_rows rows = {.size = sizeof rows,
                              .layer = 0,
                              .sequences = &id,
                              .sequence_count = 1,
                              .counts = &two,
                              .k = tensor(&tk, k, 3, 2, KV_HEADS, DIM, 0),
                              .v = tensor(&tv, v, 3, 2, KV_HEADS, DIM, 0)};
    v[KV_ROW + 3] = NAN;
    ck_fails(attnd_append(a, &rows, 1, NULL), ATTND_ERR_INVALID, "v: row 1, head 0, element 3 is not finite");
    v[KV_ROW + 3] = 0;
    tk.shape[0] = 3;
    ck_fails(attnd_append(a, &rows, 1, NULL), ATTND_ERR_INVALID,
             "k: wants the shape [2, 2, 16], has [3, 2, 16]");
    tk.shape[0] = 2;
    rows.positions = &gap;
    ck_fails(attnd_append(a, &rows, 1, NULL), ATTND_ERR_POSITION, "5");
    rows.positions = NULL;
    rows.layer = LAYERS;
    ck_fails(attnd_append(a, &rows, 1, NULL), ATTND_ERR_INVALID, "layer: wants 0..1");
    rows.layer = 0;
    tk.t.device_type = 7;
    ck_fails(attnd_append(a, &rows, 1, NULL), ATTND_ERR_UNSUPPORTED, "device of DLPack's type 7");
    tk.t.device_type = 1;
    tk.t.data = (char *)k + 1;
    ck_fails(attnd_append(a, &rows, 1, NULL), ATTND_ERR_INVALID, "k: is not aligned");
    tk.t.data = k;
    int64_t strides[] = {2 * KV_ROW, DIM, 1};
    tk.t.strides = strides;
    ck_fails(attnd_append(a, &rows, 1, NULL), ATTND_ERR_INVALID, "k: is not contiguous");
    tk.t.strides = NULL;
    rows.q = tensor(&tq, q, 3, 1, QUERY_HEADS, DIM, 0);
    ck_fails(attnd_append(a, &rows, 1, NULL), ATTND_ERR_INVALID, "q: goes with attnd_attend()");
    rows.o = tensor(&to, o, 3, 1, QUERY_HEADS, DIM, 0);
    ck_fails(attnd_attend(a, &rows, 1, NULL), ATTND_ERR_INVALID, "q: wants the shape [2, 4, 16]");
    rows.q = rows.o = NULL;
    ck_fails(attnd_append(a, &rows, 0, NULL), ATTND_ERR_INVALID, "count");
    ck_good(attnd_look(a, id, &look));
    ck_assert_uint_eq(look.blocks, 0);

    struct attnd_rows both[2] = {rows, rows}; /* the second fails, and says which it is */
    uint64_t none = 12345;
    both[1].sequences = &none;
    struct attnd_result result = {.size = sizeof result};
    ck_good(attnd_append(a, both, 2, &ticket));
    ck_fails(attnd_await(a, ticket, -1, &result), ATTND_ERR_NOT_FOUND, "12345");
    ck_assert_uint_eq(result.failed, 1);
    uint32_t lengths[LAYERS];
    look.lengths = lengths;
    ck_good(attnd_look(a, id, &look));
    ck_assert_uint_eq(lengths[0], 2);
    ck_assert_uint_eq(lengths[1], 0);
    ck_fails(attnd_fork(a, id, 3, &none, 1), ATTND_ERR_INVALID, "length");
}
END_TEST

/* ---- structs of other versions ---------------------------------------------------------------------- */

START_TEST(structs_have_the_size_that_the_caller_knows)
{
    struct {
        struct attnd_creation known;
        uint64_t later;
    } longer = {.known = {.size = sizeof longer}};
    struct attnd_creation creation = {.size = sizeof creation, .priority = -7};
    ck_good(attnd_create(a, &longer.known)); /* of a later version, which wants nothing new */
    longer.known.id = 0;
    longer.later = 1;
    ck_fails(attnd_create(a, &longer.known), ATTND_ERR_UNSUPPORTED,
             "creation: has a member that this library");
    creation.size = offsetof(struct attnd_creation, length);
    creation.length = 4711;
    ck_good(attnd_create(a, &creation));
    ck_assert_uint_eq(creation.length, 4711); /* beyond what an older caller has */
    creation.size = 3;
    ck_fails(attnd_create(a, &creation), ATTND_ERR_INVALID, "creation.size");
    ck_fails(attnd_create(a, NULL), ATTND_ERR_INVALID, "creation: is NULL");
    struct attnd_description description = {.size = sizeof description};
    ck_good(attnd_describe(a, &description));
    ck_assert_uint_eq(description.layers, LAYERS);
    ck_assert_uint_eq(description.blocks, 256);
    ck_assert_uint_eq(description.dtype_bits, 32);
    ck_assert_str_eq(description.backend, getenv("BACKEND") ? getenv("BACKEND") : "cpu");
    ck_assert_uint_eq(description.size, sizeof description);
}
END_TEST

/* ---- threads and processes -------------------------------------------------------------------------- */

static void *use_from_thread(void *cookie)
{
    uint32_t content = *(uint32_t *)cookie, contents[40];
    float o[Q_ROW], lse[QUERY_HEADS];
    uint64_t id = create();
    for (uint32_t i = 0; i < 40; i++) {
        contents[i] = content;
        append(id, content, i, 1);
        attend(id, content, i % LAYERS, i + 1, o, lse);
        ck_right(contents, content, i % LAYERS, i + 1, o, lse);
    }
    ck_good(attnd_delete(a, id));
    return NULL;
}

START_TEST(threads_take_turns)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    uint32_t contents[THREADS] = {1, 2, 3, 4};
    for (uint32_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, use_from_thread, &contents[i]), 0);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}
END_TEST

START_TEST(a_child_has_no_handle)
{
    struct attnd_stats stats = {.size = sizeof stats};
    int status;
    pid_t child = fork();
    if (child == 0) {
        int rc = attnd_stats(a, &stats);
        attnd_close(a);
        _exit(rc == ATTND_ERR_FORKED ? 17 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WEXITSTATUS(status), 17);
    ck_good(attnd_stats(a, &stats));
}
END_TEST

START_TEST(two_handles_know_nothing_of_each_other)
{
    struct attnd *first = a;
    struct attnd_stats stats = {.size = sizeof stats};
    uint64_t id = create();
    append(id, 0, 0, 9);
    a = open_with(geometry, 0);
    ck_good(attnd_stats(a, &stats));
    ck_assert_uint_eq(stats.blocks_held, 0);
    attnd_close(a);
    a = first;
}
END_TEST

/* What is submitted is finished, or let go, and nothing is left. */
START_TEST(closing_finishes_what_is_submitted)
{
    struct attnd *first = a;
    float o[Q_ROW] = {0}, expected[Q_ROW], lse[QUERY_HEADS], q[Q_ROW];
    struct tensor tq, to;
    uint64_t ticket;
    a = open_with(geometry, 0);
    uint64_t id = create();
    append(id, 0, 0, 20);
    attend(id, 0, 0, 20, expected, lse);
    token_q(0, 0, 19, q);
    const struct attnd_rows rows = {.size = sizeof rows,
                                    .sequences = &id,
                                    .sequence_count = 1,
                                    .q = tensor(&tq, q, 3, 1, QUERY_HEADS, DIM, 0),
                                    .o = tensor(&to, o, 3, 1, QUERY_HEADS, DIM, 0)};
    ck_good(attnd_attend(a, &rows, 1, &ticket));
    attnd_close(a);
    ck_assert_int_eq(memcmp(o, expected, sizeof o), 0);
    a = first;
}
END_TEST

/* ---- without a handle ------------------------------------------------------------------------------- */

static void keep_message(int level, const char *message, void *cookie)
{
    if (level <= 2)
        snprintf(cookie, 256, "%s", message);
}

START_TEST(opening_says_what_is_wrong)
{
    struct attnd *opened;
    struct attnd_options o = {.size = sizeof o, .configuration = "{\"geometry\": {\"head_dims\": 4}}"};
    ck_fails(attnd_open(&o, &opened), ATTND_ERR_INVALID, "configuration:1:");
    o.configuration_file = "/nonexistent.jsonc";
    ck_fails(attnd_open(&o, &opened), ATTND_ERR_INVALID, "exclude each other");
    o.configuration = NULL;
    ck_fails(attnd_open(&o, &opened), ATTND_ERR_INVALID, "/nonexistent.jsonc: No such file");
    const char *const settings[] = {"backend.name=cpu", "pool.blocks=0"};
    o = (struct attnd_options){.size = sizeof o, .settings = settings, .setting_count = 2};
    ck_fails(attnd_open(&o, &opened), ATTND_ERR_INVALID, "pool.blocks");
    if (strstr(attnd_backends(), "not usable here")) {
        const char *const cuda[] = {"backend.name=cuda"};
        o = (struct attnd_options){.size = sizeof o, .settings = cuda, .setting_count = 1};
        ck_fails(attnd_open(&o, &opened), ATTND_ERR_UNSUPPORTED, "CUDA");
    }
    ck_fails(attnd_open(NULL, &opened), ATTND_ERR_INVALID, "options: is NULL");
    ck_assert_int_eq(attnd_stats(NULL, &(struct attnd_stats){.size = sizeof(struct attnd_stats)}),
                     ATTND_ERR_INVALID);
    attnd_close(NULL);
    ck_assert_ptr_nonnull(strstr(attnd_version(), "attnd 0."));
    ck_assert_ptr_nonnull(strstr(attnd_backends(), "cpu: portable"));
    ck_assert_str_eq(attnd_code_name(ATTND_ERR_POSITION), "position");
    ck_assert_str_eq(attnd_code_name(ATTND_ERR_INTERNAL), "internal");
}
END_TEST

/* Messages go to whoever asks for them, and to no stream. */
START_TEST(nothing_is_written_to_a_stream)
{
    char message[256] = "", bytes[64];
    int ends[2], kept = dup(STDERR_FILENO);
    ck_assert_int_eq(pipe(ends), 0);
    fflush(NULL);
    dup2(ends[1], STDERR_FILENO);
    attnd_log(keep_message, message);
    attnd_close(open_with("{\"backend\": {\"name\": \"auto\"}, \"pool\": {\"blocks\": 16}}", 1));
    attnd_log(NULL, NULL);
    attnd_close(open_with("{\"backend\": {\"name\": \"auto\"}, \"pool\": {\"blocks\": 16}}", 0));
    dup2(kept, STDERR_FILENO);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], bytes, sizeof bytes), 0);
    close(ends[0]);
    close(kept);
}
END_TEST

/* With debug.poison: of a lease in which five slots are written, six are read. */
START_TEST(unwritten_slots_are_told)
{
    enum { WRITTEN = 5 };
    static float k[WRITTEN * KV_ROW], v[WRITTEN * KV_ROW], q[Q_ROW], o[Q_ROW];
    static const int64_t slots[WRITTEN] = {0, 1, 2, 3, 4};
    static const int32_t table[2] = {0, 1};
    struct tensor tk, tv, tq, to;
    uint32_t blocks[2];
    uint64_t lease;
    int32_t length = WRITTEN;
    const char *backend = getenv("BACKEND");
    char setting[64];
    const char *const settings[] = {"debug.poison=on", setting};
    const struct attnd_options options = {.size = sizeof options,
                                          .configuration = geometry,
                                          .settings = settings,
                                          .setting_count = backend ? 2 : 1};
    struct attnd *own = NULL;
    snprintf(setting, sizeof setting, "backend.name=%s", backend ? backend : "");
    ck_good(attnd_open(&options, &own));
    ck_good(attnd_lease(own, 2, &lease, blocks));
    ck_assert_uint_eq(blocks[0] + 2 * blocks[1], 2);
    const struct attnd_paged_rows rows = {.size = sizeof rows,
                                          .lease = lease,
                                          .layer = 1,
                                          .sequences = 1,
                                          .columns = 2,
                                          .block_tables = table,
                                          .context_lens = &length,
                                          .slot_mapping = slots,
                                          .tokens = WRITTEN,
                                          .q = tensor(&tq, q, 3, 1, QUERY_HEADS, DIM, 0),
                                          .k = tensor(&tk, k, 3, WRITTEN, KV_HEADS, DIM, 0),
                                          .v = tensor(&tv, v, 3, WRITTEN, KV_HEADS, DIM, 0),
                                          .o = tensor(&to, o, 3, 1, QUERY_HEADS, DIM, 0)};
    ck_good(attnd_paged(own, &rows, NULL));
    length++;
    ck_fails(attnd_paged(own, &rows, NULL), ATTND_ERR_INVALID, "position 5 in slot 1 of block 1");
    attnd_close(own);
}
END_TEST

/* float32 goes to a geometry of 16 bits and comes back. */
START_TEST(float32_is_converted)
{
    uint32_t contents[20] = {0};
    float o[Q_ROW], lse[QUERY_HEADS];
    a = open_with("{\"geometry\": {\"layers\": 2, \"query_heads\": 4, \"kv_heads\": 2, \"head_dim\": 16, "
                  "\"block_size\": 4,"
                  " \"dtype\": \"f16\"}, \"pool\": {\"blocks\": 64}, \"backend\": {\"name\": \"cpu\"}}",
                  0);
    uint64_t id = create();
    append(id, 0, 0, 20);
    attend(id, 0, 1, 20, o, lse);
    float q[Q_ROW], k[KV_ROW], v[KV_ROW];
    token_q(0, 1, 19, q);
    double sum = 0, expected = 0;
    for (uint32_t i = 0; i < 20; i++) {
        double s = 0;
        token_kv(contents[i], 1, i, k, v);
        for (uint32_t d = 0; d < DIM; d++)
            s += (double)q[d] * k[d];
        sum += exp(s / 4);
        expected += exp(s / 4) * v[0];
    }
    ck_assert_double_lt(fabs(expected / sum - (double)o[0]), 2e-3);
    ck_assert_double_lt(fabs(log(sum) - (double)lse[0]), 2e-3);
    uint16_t q16[Q_ROW] = {0}, o16[Q_ROW];
    struct tensor tq, to;
    const struct attnd_rows rows = {.size = sizeof rows,
                                    .sequences = &id,
                                    .sequence_count = 1,
                                    .q = tensor(&tq, q16, 3, 1, QUERY_HEADS, DIM, 0),
                                    .o = tensor(&to, o16, 3, 1, QUERY_HEADS, DIM, 0)};
    tq.t.dtype_bits = to.t.dtype_bits = 16;
    ck_good(attnd_attend(a, &rows, 1, NULL));
    tq.t.dtype_code = 4;
    ck_fails(attnd_attend(a, &rows, 1, NULL), ATTND_ERR_INVALID, "q: wants f16 or f32");
    attnd_close(a);
}
END_TEST

static void add_tests(TCase *tc)
{
    tcase_add_test(tc, outputs_are_right_and_forks_share);
    tcase_add_test(tc, a_prompt_is_found_again);
    tcase_add_test(tc, a_batch_is_done_or_not);
    tcase_add_test(tc, bits_are_those_of_one_at_a_time);
    tcase_add_test(tc, own_tables_have_the_bits_of_sequences);
    tcase_add_test(tc, what_is_wrong_is_said_and_changes_nothing);
    tcase_add_test(tc, threads_take_turns);
    tcase_add_test(tc, a_child_has_no_handle);
    tcase_add_test(tc, two_handles_know_nothing_of_each_other);
    tcase_add_test(tc, closing_finishes_what_is_submitted);
    tcase_set_timeout(tc, TIMEOUT_S);
}

/* Of the kernels alone; where there is no GPU a good shape is refused too, for that. */
START_TEST(shapes_of_kernels_are_looked_at)
{
    struct attnd_kernels *kernels = NULL;
    const struct attnd_shape good = {.size = sizeof good,
                                     .query_heads = 8,
                                     .kv_heads = 2,
                                     .head_dim = 64,
                                     .block_size = 16,
                                     .dtype_code = 4,
                                     .dtype_bits = 16,
                                     .kv_dtype_code = 4,
                                     .kv_dtype_bits = 16};
    struct attnd_shape of = good;
    const struct attnd_paged_call call = {.size = sizeof call};
    const struct attnd_cache_call cache = {.size = sizeof cache};
    struct attnd_plan plan = {.size = sizeof plan};
    of.kv_heads = 0;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_INVALID, "kv_heads");
    of.kv_heads = 3;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_INVALID, "query_heads");
    of = good;
    of.dtype_code = 7;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_INVALID, "dtype");
    of = good;
    of.block_size = 5;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_INVALID, "blocks of 8, 16 or 32");
    of = good;
    of.size = 3;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_INVALID, "shape.size");
    of = good;
    of.layout = 2;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_INVALID, "shape.layout: there is no 2");
    of = good;
    of.softcap = 30;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_INVALID, "shape.softcap");
    of.layout = ATTND_OWN;
    of.softcap = -1;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_INVALID, "shape.softcap");
    of = good;
    ck_fails(attnd_kernels_open(&of, NULL), ATTND_ERR_INVALID, "NULL");
    ck_fails(attnd_kernels_paged(NULL, &call), ATTND_ERR_INVALID, "NULL");
    ck_fails(attnd_kernels_cache(NULL, &cache), ATTND_ERR_INVALID, "NULL");
    ck_fails(attnd_kernels_plan(NULL, &plan), ATTND_ERR_INVALID, "NULL");
    attnd_kernels_close(NULL);
    if (!strstr(attnd_backends(), "not usable here") && !strstr(attnd_backends(), "not built in"))
        return;
    ck_fails(attnd_kernels_open(&of, &kernels), ATTND_ERR_UNSUPPORTED, "CUDA");
    ck_assert_ptr_null(kernels);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library");
    TCase *in_caller = tcase_create("turns in the calling thread"),
          *in_thread = tcase_create("turns in a thread"), *without = tcase_create("without a handle"),
          *structs = tcase_create("structs");
    tcase_add_checked_fixture(in_caller, begin_in_caller, end);
    tcase_add_checked_fixture(in_thread, begin_in_thread, end);
    add_tests(in_caller);
    add_tests(in_thread);
    tcase_add_checked_fixture(structs, begin_in_caller, end);
    tcase_add_test(structs, structs_have_the_size_that_the_caller_knows);
    tcase_add_test(without, opening_says_what_is_wrong);
    tcase_add_test(without, nothing_is_written_to_a_stream);
    tcase_add_test(without, unwritten_slots_are_told);
    tcase_add_test(without, float32_is_converted);
    tcase_add_test(without, shapes_of_kernels_are_looked_at);
    tcase_set_timeout(structs, TIMEOUT_S);
    tcase_set_timeout(without, TIMEOUT_S);
    suite_add_tcase(suite, in_caller);
    suite_add_tcase(suite, in_thread);
    suite_add_tcase(suite, structs);
    suite_add_tcase(suite, without);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
