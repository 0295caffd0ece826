/* SPDX-License-Identifier: Apache-2.0 */
/* operations.c - see operations.h.
 *
 *   step 1   compares of every kind of range and difference, on some of the sequences; reads of them; merges of
 *            states; and appends that overwrite the end of a sequence with other values, which none of these
 *            may see
 *   step 2   in flight with it: a copy of the sequence's last block over its first one, which all of these
 *            have to see; compares and reads of what the first step appended
 *            and a self-test beside them
 *   step 3   operations alone
 *
 * What is expected follows from the values that were handed in, not from what another backend says. */
#include "tests/conformance/operations.h"

#include "kernels/backend.h"
#include "kernels/numeric.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQUENCES = 4,   /* that are looked at */
    TOKENS = 90,     /* of a range, at most: several thread blocks of a GPU, and tasks of a CPU */
    OVERWRITTEN = 5, /* tokens */
    COMPARES_MAX = 256,
    READS_MAX = 64,
    GUARD = 0xa5,
    STATES = 3,
    MERGE_ROWS = 5,
    UNTOLD = 0xdeadbeef
};

static char fault[256];

/* A range of tokens. */
struct range {
    uint32_t sequence, layer, first, count;
};

/* A compare and what is expected. */
struct compared {
    struct range range;
    enum dtype dtype;
    uint32_t expected, equal;
    const char *what;
};

struct reading {
    struct range range;
    uint8_t *k, *v;
};

/* Where tensors lie: the backend's memory. */
struct arena {
    uint8_t *memory;
    size_t used, bytes;
};

struct test {
    const struct operations_world *w;
    struct arena arena;
    uint64_t version;
    uint32_t looked_at[SEQUENCES], count;
    struct compared compared[COMPARES_MAX];
    struct kv_compare compares[COMPARES_MAX];
    uint32_t compare_count;
    struct reading readings[READS_MAX];
    struct kv_read reads[READS_MAX];
    uint32_t read_count;
};

static uint8_t *take(struct test *t, size_t bytes)
{
    struct arena *x = &t->arena;
    uint8_t *at = x->memory + x->used;
    x->used += (bytes + 2 + 15) / 16 * 16; /* a guard behind each */
    if (x->used > x->bytes)
        abort();
    return at;
}

static size_t head_bytes(const struct test *t, enum dtype dtype)
{
    return t->w->g->head_dim * dtype_bytes(dtype);
}

static size_t row_bytes(const struct test *t, enum dtype dtype)
{
    return t->w->g->kv_heads * head_bytes(t, dtype);
}

/* K or V of a range, in a format. */
static void fill(const struct test *t, const struct range *r, enum dtype dtype, enum values_tensor tensor,
                 uint8_t *to)
{
    const struct operations_world *w = t->w;
    float row[HEAD_DIM_MAX];
    for (uint32_t i = 0; i < r->count * w->g->kv_heads; i++) {
        w->row(w->cookie, dtype == w->g->kv_dtype, r->sequence, r->first + i / w->g->kv_heads, r->layer,
               tensor, i % w->g->kv_heads, row);
        numeric_from_float(dtype, row, w->g->head_dim, to + i * head_bytes(t, dtype));
    }
}

/* Change the sign of one element. */
static void negate(const struct test *t, enum dtype dtype, uint8_t *tensor, uint32_t row, uint32_t head,
                   uint32_t dim)
{
    size_t element = ((size_t)row * t->w->g->kv_heads + head) * t->w->g->head_dim + dim;
    tensor[(element + 1) * dtype_bytes(dtype) - 1] ^= 0x80;
}

/* ---- adding -------------------------------------------------------------------------------------- */

/* A comparison of the right values; its tensors may be changed. */
static const struct kv_compare *add_compare(struct test *t, struct range r, enum dtype dtype,
                                            uint32_t expected, const char *what)
{
    uint32_t at = t->compare_count++;
    if (at >= COMPARES_MAX)
        abort();
    struct compared *x = &t->compared[at];
    *x = (struct compared){r, dtype, expected, UNTOLD, what};
    size_t bytes = r.count * row_bytes(t, dtype);
    uint8_t *k = take(t, bytes), *v = take(t, bytes);
    if (at % 4 == 1) /* both in one kind of memory, mostly */
        v = take(t, bytes);
    fill(t, &r, dtype, VALUES_K, k);
    fill(t, &r, dtype, VALUES_V, v);
    t->compares[at] = (struct kv_compare){r.sequence, r.layer, r.first, r.count, dtype, k, v, &x->equal};
    return &t->compares[at];
}

static uint8_t *k_of(const struct kv_compare *c)
{
    return (uint8_t *)(uintptr_t)c->k;
}

static uint8_t *v_of(const struct kv_compare *c)
{
    return (uint8_t *)(uintptr_t)c->v;
}

static void add_read(struct test *t, struct range r)
{
    uint32_t at = t->read_count++;
    if (at >= READS_MAX)
        abort();
    size_t bytes = r.count * row_bytes(t, t->w->g->kv_dtype);
    struct reading *x = &t->readings[at];
    *x = (struct reading){r, take(t, bytes + 1), take(t, bytes + 1)};
    if (at % 4 == 1)
        x->v = take(t, bytes + 1);
    memset(x->k, GUARD, bytes + 1);
    memset(x->v, GUARD, bytes + 1);
    t->reads[at] = (struct kv_read){r.sequence, r.layer, r.first, r.count, x->k, x->v};
}

/* Every kind of difference in one range. */
static void add_differences(struct test *t, struct range r, enum dtype dtype)
{
    uint32_t last = r.count - 1, middle = r.count / 2, heads = t->w->g->kv_heads, dims = t->w->g->head_dim;
    const struct kv_compare *c;
    add_compare(t, r, dtype, r.count, "equal rows");
    c = add_compare(t, r, dtype, 0, "the first row differs in k");
    negate(t, dtype, k_of(c), 0, 0, 0);
    c = add_compare(t, r, dtype, last, "the last row differs in v, at its very end");
    negate(t, dtype, v_of(c), last, heads - 1, dims - 1);
    c = add_compare(t, r, dtype, middle, "a row in the middle differs in one head of k");
    negate(t, dtype, k_of(c), middle, heads / 2, dims / 2);
    c = add_compare(t, r, dtype, middle, "two rows differ");
    negate(t, dtype, v_of(c), middle, heads - 1, 1);
    negate(t, dtype, k_of(c), last, 0, 2);
    if (dtype == t->w->g->kv_dtype) {
        c = add_compare(t, r, dtype, last, "the smallest bit of an element differs");
        k_of(c)[last * row_bytes(t, dtype)] ^= 1;
    }
}

/* Ranges of a sequence: its end, a part that begins within a block, a token, none. */
static void add_ranges(struct test *t, uint32_t sequence, uint32_t layer, enum dtype dtype)
{
    uint32_t length = t->w->lengths[sequence], n = length < TOKENS ? length : TOKENS;
    struct range end = {sequence, layer, length - n, n}, part = end, token = end, none = end;
    add_differences(t, end, dtype);
    part.first = length / 3;
    part.count = length - part.first < TOKENS / 2 ? length - part.first : TOKENS / 2;
    add_compare(t, part, dtype, part.count, "a part");
    token.count = 1;
    add_compare(t, token, dtype, 1, "a token");
    const struct kv_compare *c = add_compare(t, token, dtype, 0, "a token that differs");
    negate(t, dtype, v_of(c), 0, 0, 0);
    none.count = 0;
    add_compare(t, none, dtype, 0, "no token");
    add_read(t, end);
    add_read(t, part);
    add_read(t, token);
    add_read(t, none);
}

/* ---- merges -------------------------------------------------------------------------------------- */

/* Merges of the same states, into other memory and in place, and of one state alone, in place: these three
 * where kernels reach it, and where they do not. */
enum { MERGES = 3 };

struct merging {
    struct merge_states list[MERGES];
    float *expected_o, *expected_lse;
    size_t heads;
};

static float *take_floats(struct test *t, size_t n)
{
    return (float *)(void *)take(t, n * sizeof(float));
}

static float element_of_state(size_t i)
{
    return (float)(i * 7919 % 1000) / 500 - 1;
}

static void make_merges(struct test *t, struct merging *x)
{
    const struct geometry *g = t->w->g;
    size_t heads = x->heads = (size_t)MERGE_ROWS * g->query_heads, count = heads * g->head_dim;
    x->expected_o = calloc(count, sizeof *x->expected_o);
    x->expected_lse = calloc(heads, sizeof *x->expected_lse);
    if (!x->expected_o || !x->expected_lse)
        abort();
    for (unsigned i = 0; i < MERGES; i++) {
        float *o = take_floats(t, STATES * count), *lse = take_floats(t, STATES * heads),
              *merged_o = i ? o : take_floats(t, count), *merged_lse = i ? lse : take_floats(t, heads);
        for (size_t j = 0; j < STATES * heads; j++)
            lse[j] = j % 7 == 3 ? -INFINITY : (float)(j % 11) - 5;
        for (size_t j = 0; j < STATES * count; j++)
            o[j] = element_of_state(j);
        x->list[i] = (struct merge_states){.states = i == 2 ? 1 : STATES,
                                           .rows = MERGE_ROWS,
                                           .heads = g->query_heads,
                                           .head_dim = g->head_dim,
                                           .dtype = DTYPE_F32,
                                           .o = o,
                                           .lse = lse,
                                           .merged_o = merged_o,
                                           .merged_lse = merged_lse};
    }
    struct merge_states expected = x->list[0];
    expected.merged_o = x->expected_o;
    expected.merged_lse = x->expected_lse;
    merge_states_on_host(&expected, 0, heads);
}

static bool merge_agrees(const struct merging *x, int i)
{
    const struct merge_states *m = &x->list[i];
    const float *o = m->merged_o;
    for (size_t head = 0; head < x->heads; head++) {
        float lse = m->states > 1   ? x->expected_lse[head]
                    : head % 7 == 3 ? -INFINITY
                                    : (float)(head % 11) - 5;
        bool ok = m->merged_lse[head] == lse || fabsf(m->merged_lse[head] - lse) <= 1e-5F;
        for (size_t j = head * m->head_dim; ok && j < (head + 1) * m->head_dim; j++) {
            float wanted = m->states > 1 ? x->expected_o[j] : isinf(lse) ? 0 : element_of_state(j);
            ok = fabsf(o[j] - wanted) <= 1e-5F;
        }
        if (ok)
            continue;
        snprintf(fault, sizeof fault, "merge %d of %u states: head %zu of %zu is wrong, lse %g, wants %g", i,
                 m->states, head, x->heads, (double)m->merged_lse[head], (double)lse);
        return false;
    }
    return true;
}

static bool merges_agree(const struct merging *x)
{
    bool ok = true;
    for (int i = 0; ok && i < MERGES; i++)
        ok = merge_agrees(x, i);
    return ok;
}

static void free_merges(struct merging *x)
{
    free(x->expected_o);
    free(x->expected_lse);
}

/* ---- checking ------------------------------------------------------------------------------------ */

static bool compares_agree(const struct test *t)
{
    for (uint32_t i = 0; i < t->compare_count; i++) {
        const struct compared *x = &t->compared[i];
        if (x->equal == x->expected)
            continue;
        snprintf(
            fault, sizeof fault,
            "compare %u, %s: tokens %u to %u of sequence %u, layer %u, given in %s: %u are equal, wants %u",
            i, x->what, x->range.first, x->range.first + x->range.count, x->range.sequence, x->range.layer,
            dtype_name(x->dtype), x->equal, x->expected);
        return false;
    }
    return true;
}

static bool reads_agree(const struct test *t)
{
    enum dtype dtype = t->w->g->kv_dtype;
    bool ok = true;
    for (uint32_t i = 0; ok && i < t->read_count; i++) {
        const struct reading *x = &t->readings[i];
        size_t bytes = x->range.count * row_bytes(t, dtype);
        uint8_t *expected = malloc(bytes + 1);
        if (!expected)
            abort();
        for (int v = 0; ok && v < 2; v++) {
            const uint8_t *got = v ? x->v : x->k;
            fill(t, &x->range, dtype, v ? VALUES_V : VALUES_K, expected);
            ok = memcmp(got, expected, bytes) == 0 && got[bytes] == GUARD;
        }
        free(expected);
        if (!ok)
            snprintf(fault, sizeof fault, "read %u: tokens %u to %u of sequence %u, layer %u are others", i,
                     x->range.first, x->range.first + x->range.count, x->range.sequence, x->range.layer);
    }
    return ok;
}

/* ---- steps --------------------------------------------------------------------------------------- */

static uint64_t submit(struct test *t, struct attention_step *step)
{
    struct table_use uses[64];
    t->version++;
    for (uint32_t i = 0; i < t->w->sequences; i++)
        uses[i] = (struct table_use){i, t->w->stride, t->version};
    step->tables = t->w->tables;
    step->stride = t->w->stride;
    step->uses = uses;
    step->use_count = t->w->sequences;
    return attention_submit(t->w->attention, step);
}

static void choose_sequences(struct test *t)
{
    const struct operations_world *w = t->w;
    uint32_t longest = 0;
    for (uint32_t s = 0; s < w->sequences; s++)
        longest = w->lengths[s] > w->lengths[longest] ? s : longest;
    t->looked_at[t->count++] = longest;
    for (uint32_t s = w->sequences; s-- > 0 && t->count < SEQUENCES;) {
        if (s != longest && w->lengths[s])
            t->looked_at[t->count++] = s;
    }
}

/* Step 2 of the sequence `s`, whose tokens from `first` on were negated: the tests of `t`. */
static void add_overwritten(struct test *t, uint32_t s, uint32_t first, bool copied)
{
    const struct operations_world *w = t->w;
    uint32_t length = w->lengths[s], n = length - first, size = w->g->block_size;
    enum dtype dtype = w->g->kv_dtype;
    struct range now = {s, 1, first, n};
    const struct kv_compare *c = add_compare(t, now, dtype, n, "what was appended");
    for (uint32_t i = 0; i < n; i++)
        negate(t, dtype, k_of(c), i, 0, 0);
    add_compare(t, now, dtype, 0, "what was overwritten");
    if (!copied)
        return;
    /* the first block is now what the last one is */
    uint32_t from = (length - 1) / size * size, slots = length - from;
    struct range last = {s, 1, from, slots};
    c = add_compare(t, last, dtype, slots, "a block that was copied");
    for (uint32_t i = 0; i < slots; i++) {
        if (from + i >= first)
            negate(t, dtype, k_of(c), i, 0, 0);
    }
    t->compares[t->compare_count - 1].position = 0;
}

static bool run(struct test *t)
{
    const struct operations_world *w = t->w;
    uint32_t s = t->looked_at[0], length = w->lengths[s], size = w->g->block_size;
    uint32_t n = length < OVERWRITTEN ? length : OVERWRITTEN;
    enum dtype dtype = w->g->kv_dtype;
    struct merging merging;

    for (uint32_t i = 0; i < t->count; i++) {
        add_ranges(t, t->looked_at[i], 1, i % 2 ? w->given : dtype);
        add_ranges(t, t->looked_at[i], i % 2, i % 2 ? dtype : w->given);
    }
    make_merges(t, &merging);
    struct range end = {s, 1, length - n, n};
    uint8_t *k = take(t, n * row_bytes(t, dtype)), *v = take(t, n * row_bytes(t, dtype));
    fill(t, &end, dtype, VALUES_K, k);
    fill(t, &end, dtype, VALUES_V, v);
    for (uint32_t i = 0; i < n; i++)
        negate(t, dtype, k, i, 0, 0);
    const struct kv_append append = {.table = s, .position = length - n, .count = n, .k = k, .v = v};
    const struct attention_pass pass = {
        .layer = 1, .appends = &append, .append_count = 1, .source_dtype = dtype};
    struct attention_step first = {.compares = t->compares,
                                   .compare_count = t->compare_count,
                                   .reads = t->reads,
                                   .read_count = t->read_count,
                                   .merges = merging.list,
                                   .merge_count = MERGES,
                                   .passes = &pass,
                                   .pass_count = 1};
    uint64_t tickets[2] = {submit(t, &first)};

    uint32_t compares = t->compare_count, block = (length - 1) / size;
    const uint32_t *table = w->tables + (size_t)s * w->stride;
    /* the copy may not touch what the other compares look at */
    bool copied = block > 0 && size * block >= OVERWRITTEN + size;
    const struct block_copy copy = {COPY_BLOCK, table[block], table[0], length - block * size};
    add_overwritten(t, s, length - n, copied);
    struct attention_step second = {.copies = &copy,
                                    .copy_count = copied,
                                    .compares = t->compares + compares,
                                    .compare_count = t->compare_count - compares};
    tickets[1] = submit(t, &second);
    enum attention_verdict verdict; /* beside them */
    while ((verdict = attention_self_test(w->attention)) == ATTENTION_TEST_RUNS) {
    }
    attention_await(w->attention, tickets[1]);
    bool ok = attention_poll(w->attention, tickets[0]) && !attention_failure(w->attention);
    if (!ok)
        snprintf(fault, sizeof fault, "steps of operations: %.200s",
                 ok                                ? ""
                 : attention_failure(w->attention) ? attention_failure(w->attention)
                                                   : "not done in order");
    if (ok && verdict != ATTENTION_TEST_PASSED) {
        snprintf(fault, sizeof fault, "the self-test fails while steps are in flight");
        ok = false;
    }
    ok = ok && compares_agree(t) && reads_agree(t) && merges_agree(&merging);
    free_merges(&merging);

    /* alone, and of nothing */
    t->read_count = 0;
    struct range token = {s, 0, length - 1, 1}; /* of the layer that stayed as it was */
    add_read(t, token);
    struct attention_step third = {.reads = t->reads, .read_count = 1}, none = {0};
    tickets[0] = submit(t, &third);
    tickets[1] = submit(t, &none);
    attention_await(w->attention, tickets[0]);
    ok = ok && reads_agree(t);
    attention_await(w->attention, tickets[1]);
    return ok;
}

const char *operations_fault(const struct operations_world *w)
{
    struct test *t = calloc(1, sizeof *t);
    size_t elements = (size_t)w->g->query_heads * w->g->head_dim * MERGE_ROWS * STATES * 4,
           kv = (size_t)w->g->kv_heads * w->g->head_dim * TOKENS;
    if (!t)
        abort();
    t->w = w;
    t->version = w->version;
    t->arena.bytes = (elements + kv * 320) * sizeof(float) + (COMPARES_MAX + READS_MAX) * 512;
    t->arena.memory = attention_host_memory(w->attention, t->arena.bytes);
    if (!t->arena.memory)
        abort();
    choose_sequences(t);
    bool ok = t->w->lengths[t->looked_at[0]] == 0 || run(t);
    attention_free_host_memory(w->attention, t->arena.memory, t->arena.bytes);
    free(t);
    return ok ? NULL : fault;
}
