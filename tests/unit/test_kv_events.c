/* SPDX-License-Identifier: Apache-2.0 */
/* test_kv_events.c - a mirror that is built from events is what is published.
 *
 * Property: a block is stored once, after the block before it, with its tokens, and removed once; when all is told, the mirror has
 * what is published and nothing else, blocks of salted rows apart.
 * Method: random rows on a small pool, with a ring of few events that the mirror empties now and then, and with bursts that the log
 * does not hold, a few looks a turn. SEED=n CK_RUN_CASE=kv_events build/release/tests/unit runs one seed. */
#include "allocator/block_log.h"
#include "allocator/block_table.h"
#include "allocator/prefix_index.h"
#include "config/numbers.h"
#include "scheduler/kv_events.h"
#include "server/kv_batch.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BS = 4,
    BLOCKS = 48,
    ROWS = 8,
    ROW_BLOCKS = 12,
    SLOTS = 16,
    LOOKS = 20,
    OPERATIONS = 4000,
    SEEDS = 8,
    ROOTS = 3
};

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % n);
}

struct world {
    struct block_tables *tables;
    struct kv_events *events;
    uint64_t step, seed;
    uint32_t roots[ROOTS]; /* the last one is salted */
    uint32_t rows[ROWS], count;
    bool salted; /* blocks of salted rows are told */

    struct mirrored {
        uint64_t hash, parent;
        uint8_t salt_bytes;
        uint32_t tokens[BS];
    } mirror[BLOCKS];
    uint32_t mirrored, batches;
    uint64_t stored, removed;
};

static struct mirrored *find(struct world *w, uint64_t hash)
{
    for (uint32_t i = 0; i < w->mirrored; i++) {
        if (w->mirror[i].hash == hash)
            return &w->mirror[i];
    }
    return NULL;
}

static void apply(struct world *w, const struct kv_event *event)
{
    struct mirrored *at = find(w, event->hash);
    if (!event->stored) {
        ck_assert_msg(at != NULL, "seed %llu: what is not there is removed", (unsigned long long)w->seed);
        *at = w->mirror[--w->mirrored];
        w->removed++;
        return;
    }
    ck_assert_msg(at == NULL && w->mirrored < BLOCKS, "seed %llu: stored twice", (unsigned long long)w->seed);
    ck_assert_msg(!event->parent || find(w, event->parent), "seed %llu: stored before its parent",
                  (unsigned long long)w->seed);
    struct mirrored *m = &w->mirror[w->mirrored++];
    *m = (struct mirrored){event->hash, event->parent, event->salt_bytes, {0}};
    memcpy(m->tokens, event->tokens, sizeof m->tokens);
    w->stored++;
}

/* Take what was told. */
static void take(struct world *w)
{
    uint32_t n;
    while ((n = kv_events_batch(w->events)) > 0) {
        for (uint32_t i = 0; i < n; i++)
            apply(w, kv_events_at(w->events, i));
        kv_events_sent(w->events, n);
        w->batches++;
    }
}

/* Have all told, and compare. */
static void settle(struct world *w)
{
    uint32_t published = 0;
    do {
        kv_events_turn(w->events, w->tables);
        take(w);
    } while (kv_events_idle_s(w->events, w->tables) >= 0);
    for (uint32_t id = 0; id < BLOCKS; id++) {
        struct block_published p, parent;
        if (!block_tables_published(w->tables, id, &p) || (p.salt_bytes && !w->salted))
            continue;
        const struct mirrored *m = find(w, p.hash);
        published++;
        ck_assert_msg(m != NULL, "seed %llu: block %u is not told", (unsigned long long)w->seed, id);
        ck_assert_mem_eq(m->tokens, p.tokens, sizeof m->tokens);
        ck_assert_uint_eq(m->salt_bytes, p.salt_bytes);
        bool has_parent = p.parent != NO_BLOCK && block_tables_published(w->tables, p.parent, &parent);
        ck_assert_uint_eq(m->parent, has_parent ? parent.hash : 0);
    }
    ck_assert_msg(published == w->mirrored, "seed %llu: %u are published, %u told",
                  (unsigned long long)w->seed, published, w->mirrored);
}

static void append(struct world *w, uint32_t row, const uint32_t *tokens, uint32_t n)
{
    struct block_copy copies[ROW_BLOCKS];
    uint32_t count = 0, first = block_tables_view(w->tables, row).cursor_max;
    const struct reserve_request request = {row, first, first + n};
    if (n == 0 || first + n > ROW_BLOCKS * BS ||
        block_tables_reserve(w->tables, w->step, &request, 1, copies, &count) != 0)
        return;
    block_tables_note_tokens(w->tables, row, first, tokens, n);
    block_tables_submit_all(w->tables, w->step, &request, 1);
    block_tables_retire_step(w->tables, w->step++, &row, 1);
}

static void make_row(struct world *w)
{
    uint32_t tokens[ROW_BLOCKS * BS], n = 1 + below(ROW_BLOCKS * BS - 1), row;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i % BS ? i : below(2);
    if (w->count == ROWS || block_tables_add(w->tables, w->roots[below(ROOTS)], tokens, n, &row) != 0)
        return;
    w->rows[w->count++] = row;
    uint32_t shared = block_tables_view(w->tables, row).cursor_max;
    append(w, row, tokens + shared, n - shared);
}

/* Tokens that nobody has named: the row is cut, and goes on otherwise. */
static void rewrite(struct world *w, uint32_t row)
{
    uint32_t length = block_tables_view(w->tables, row).length, tokens[2 * BS];
    for (uint32_t i = 0; i < 2 * BS; i++)
        tokens[i] = 100 + below(2);
    block_tables_truncate(w->tables, row, below(length + 1));
    append(w, row, tokens, 1 + below(2 * BS));
}

static void remove_row(struct world *w, uint32_t i)
{
    block_tables_remove(w->tables, w->rows[i]);
    w->rows[i] = w->rows[--w->count];
}

/* More changes than the log holds. */
static void burst(struct world *w, uint32_t parent)
{
    const struct block_log *log = block_tables_log(w->tables);
    uint64_t until = log->number + BLOCK_LOG_RING_LEAST + 100;
    while (log->number < until) {
        uint32_t row, length = block_tables_view(w->tables, parent).length;
        if (length < BS || block_tables_fork(w->tables, parent, length, &row) != 0)
            return;
        block_tables_remove(w->tables, row);
    }
}

static void operate(struct world *w)
{
    uint32_t i = w->count ? below(w->count) : 0, row;
    switch (w->count ? below(16) : 0) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        make_row(w);
        break;
    case 5:
    case 6:
    case 7:
        remove_row(w, i);
        break;
    case 8:
    case 9:
    case 10:
        rewrite(w, w->rows[i]);
        break;
    case 11:
    case 12:
        if (w->count < ROWS &&
            block_tables_fork(w->tables, w->rows[i],
                              below(block_tables_view(w->tables, w->rows[i]).length + 1), &row) == 0)
            w->rows[w->count++] = row;
        break;
    case 13:
        if (below(8) == 0)
            block_tables_trim(w->tables);
        break;
    case 14:
        if (below(8) == 0)
            burst(w, w->rows[i]);
        break;
    default:
        settle(w);
    }
}

static void begin(struct world *w, bool salted, uint64_t seed)
{
    const struct block_tables_options tables = {.blocks = BLOCKS,
                                                .block_size = BS,
                                                .layers = 1,
                                                .rows = ROWS + 1,
                                                .row_blocks = ROW_BLOCKS,
                                                .epochs = 16};
    const struct kv_events_options events = {.blocks = BLOCKS,
                                             .block_size = BS,
                                             .row_blocks = ROW_BLOCKS,
                                             .slots = SLOTS,
                                             .salted = salted,
                                             .looks = LOOKS};
    *w = (struct world){.step = 1, .salted = salted, .seed = seed};
    random_state = seed;
    ck_assert_int_eq(block_tables_create(&tables, &w->tables), 0);
    ck_assert_int_eq(kv_events_create(&events, &w->events), 0);
    for (uint32_t i = 0; i < ROOTS; i++)
        w->roots[i] = block_tables_open_root(w->tables, i, "salt", i == ROOTS - 1 ? 4 : 0);
}

static void end(struct world *w)
{
    kv_events_destroy(w->events);
    block_tables_destroy(w->tables);
}

START_TEST(a_mirror_has_what_is_published)
{
    static struct world w;
    const char *only = getenv("SEED");
    uint64_t seed = only ? strtoull(only, NULL, 10) : (uint64_t)_i + 1;
    begin(&w, seed % 2, seed);
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        operate(&w);
        if (below(3) > 0)
            kv_events_turn(w.events, w.tables);
        if (below(4) == 0)
            take(&w);
    }
    settle(&w);
    struct kv_events_counts counts = kv_events_counts(w.events);
    ck_assert_msg(counts.rescans > 0 && w.removed > 100 && w.mirrored > 0,
                  "seed %llu looks at little: %llu rescans, %llu removed, %u left", (unsigned long long)seed,
                  (unsigned long long)counts.rescans, (unsigned long long)w.removed, w.mirrored);
    ck_assert_uint_eq(counts.stored, w.stored);
    ck_assert_uint_eq(counts.removed, w.removed);
    ck_assert_uint_eq(counts.batches, w.batches);
    end(&w);
}
END_TEST

/* Nobody takes what is told: the engine goes on, and what has gone meanwhile is never told. */
START_TEST(a_full_ring_holds_nobody)
{
    static struct world w;
    begin(&w, true, 2);
    for (uint32_t i = 0; i < 200; i++) {
        make_row(&w);
        if (w.count == ROWS)
            remove_row(&w, below(w.count));
        kv_events_turn(w.events, w.tables);
    }
    struct kv_events_counts counts = kv_events_counts(w.events);
    ck_assert_uint_eq(counts.stored + counts.removed, SLOTS);
    ck_assert(kv_events_idle_s(w.events, w.tables) > 0);
    settle(&w);
    ck_assert(kv_events_idle_s(w.events, w.tables) < 0);
    end(&w);
}
END_TEST

/* ---- batches --------------------------------------------------------------------------------------- */

/* An event of a block, whose tokens are 10 hash and on. */
static const struct kv_event *event_of(uint64_t hash, uint64_t parent, bool stored, const char *salt)
{
    struct kv_event *e = calloc(1, sizeof *e + BS * sizeof *e->tokens);
    *e = (struct kv_event){.hash = hash, .parent = parent, .stored = stored};
    e->salt_bytes = (uint8_t)strlen(salt);
    memcpy(e->salt, salt, e->salt_bytes);
    for (uint32_t i = 0; i < BS; i++)
        e->tokens[i] = (uint32_t)hash * 10 + i;
    return e;
}

/* What python3-msgpack reads is what vLLM's publisher would send of the same blocks. */
START_TEST(batches_are_read_by_others)
{
    static const char want[] =
        "[1.5, [{'type': 'BlockRemoved', 'block_hashes': [7, 8], 'medium': 'GPU', 'group_idx': 0}, "
        "{'type': 'BlockStored', 'block_hashes': [1, 2], 'parent_block_hash': None, "
        "'token_ids': [10, 11, 12, 13, 20, 21, 22, 23], 'block_size': 4, 'lora_id': None, 'medium': 'GPU', "
        "'lora_name': None, 'extra_keys': [None, None], 'group_idx': 0, 'kv_cache_spec_kind': "
        "'full_attention'}, "
        "{'type': 'BlockStored', 'block_hashes': [3], 'parent_block_hash': 1, 'token_ids': [30, 31, 32, 33], "
        "'block_size': 4, 'lora_id': None, 'medium': 'GPU', 'lora_name': None, 'extra_keys': [None], "
        "'group_idx': 0, 'kv_cache_spec_kind': 'full_attention'}, "
        "{'type': 'BlockStored', 'block_hashes': [4, 5], 'parent_block_hash': None, "
        "'token_ids': [40, 41, 42, 43, 50, 51, 52, 53], 'block_size': 4, 'lora_id': None, 'medium': 'GPU', "
        "'lora_name': None, 'extra_keys': [['salt'], None], 'group_idx': 0, 'kv_cache_spec_kind': "
        "'full_attention'}"
        "], 0]\n[2.5, [{'type': 'AllBlocksCleared'}], 0]\n";
    const struct kv_event *events[] = {event_of(7, 0, false, ""),   event_of(8, 0, false, ""),
                                       event_of(1, 0, true, ""),    event_of(2, 1, true, ""),
                                       event_of(3, 1, true, ""),    event_of(4, 0, true, "salt"),
                                       event_of(5, 4, true, "salt")};
    uint8_t bytes[4096];
    char got[4096] = "", path[] = "/tmp/attnd-batch-XXXXXX", command[256];
    struct msgpack m;
    const char *ci = getenv("CI");
    if (system("/usr/bin/python3 -c 'import msgpack' 2>/dev/null") != 0) {
        ck_assert_msg(!ci || strcmp(ci, "true") != 0, "python3-msgpack is not installed");
        return;
    }
    msgpack_init(&m, bytes, sizeof bytes);
    kv_batch_write(&m, events, 7, BS, 1.5);
    ck_assert(!m.overflow && m.length <= kv_batch_bytes(7, BS));
    kv_batch_write_cleared(&m, 2.5);
    FILE *f = fdopen(mkstemp(path), "w");
    ck_assert_uint_eq(fwrite(bytes, 1, m.length, f), m.length);
    fclose(f);
    snprintf(command, sizeof command,
             "/usr/bin/python3 -c \"import msgpack; [print(x) for x in msgpack.Unpacker(open('%s', 'rb'))]\"",
             path);
    FILE *said = popen(command, "r");
    got[fread(got, 1, sizeof got - 1, said)] = '\0';
    ck_assert_int_eq(pclose(said), 0);
    unlink(path);
    ck_assert_str_eq(got, want);
    for (size_t i = 0; i < 7; i++)
        free((void *)(uintptr_t)events[i]);
}
END_TEST

/* The largest numbers and salts fit what is taken for a batch. */
START_TEST(a_batch_fits)
{
    enum { MOST = 20 };
    const struct kv_event *events[MOST];
    char salt[KV_EVENTS_SALT_BYTES + 1];
    uint8_t bytes[1 << 14];
    memset(salt, 'x', KV_EVENTS_SALT_BYTES);
    salt[KV_EVENTS_SALT_BYTES] = '\0';
    for (uint32_t i = 0; i < MOST; i++) {
        struct kv_event *e = (struct kv_event *)(uintptr_t)event_of(UINT64_MAX - i, 0, true, salt);
        memset(e->tokens, 0xff, BS * sizeof *e->tokens);
        events[i] = e;
    }
    for (uint32_t n = 1; n <= MOST; n++) {
        struct msgpack m;
        msgpack_init(&m, bytes, kv_batch_bytes(n, BS));
        ck_assert_uint_le(kv_batch_bytes(n, BS), sizeof bytes);
        kv_batch_write(&m, events, n, BS, 1.5);
        ck_assert_msg(!m.overflow, "%u events", n);
    }
    for (uint32_t i = 0; i < MOST; i++)
        free((void *)(uintptr_t)events[i]);
}
END_TEST

TCase *kv_events_case(void)
{
    TCase *c = tcase_create("kv_events");
    tcase_add_loop_test(c, a_mirror_has_what_is_published, 0, SEEDS);
    tcase_add_test(c, a_full_ring_holds_nobody);
    tcase_add_test(c, batches_are_read_by_others);
    tcase_add_test(c, a_batch_fits);
    return c;
}
