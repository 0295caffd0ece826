/* SPDX-License-Identifier: Apache-2.0 */
/* test_block_table.c - the arithmetic of blocks by example: who copies what, who is refused, what is
 * evicted when. (tests/simulation/allocator_model.c covers the combinations.) */
#include "allocator/block_table.h"
#include "allocator/prefix_index.h"
#include "tests/unit/suites.h"

#include <string.h>

enum { BS = 8 };

static struct block_tables *tables_of(uint32_t blocks, uint32_t rows)
{
    const struct block_tables_options o = {.blocks = blocks,
                                           .block_size = BS,
                                           .layers = 2,
                                           .rows = rows,
                                           .row_blocks = blocks,
                                           .host_blocks = 4};
    struct block_tables *t = NULL;
    ck_assert_int_eq(block_tables_create(&o, &t), 0);
    return t;
}

static uint64_t next_step; /* each test begins with its own tables and sets this to 1 */

/* Append `n` tokens to `row` in a step of its own that retires at once; `tokens` are their ids or NULL.
 * Returns the number of copies made, or the error. */
static int append(struct block_tables *t, uint32_t row, uint32_t n, const uint32_t *tokens)
{
    struct block_copy copies[4];
    uint32_t count = 0, first = block_tables_view(t, row).cursor_max;
    const struct reserve_request request = {row, first, first + n};
    int rc = block_tables_reserve(t, next_step, &request, 1, copies, &count);
    if (rc != 0)
        return rc;
    if (tokens)
        block_tables_note_tokens(t, row, first, tokens, n);
    block_tables_submit_all(t, next_step, &request, 1);
    block_tables_retire_step(t, next_step++, &row, 1);
    ck_assert_ptr_null(block_tables_fault(t));
    return (int)count;
}

static uint32_t free_blocks(const struct block_tables *t)
{
    return block_pool_counts(block_tables_pool(t)).free;
}

static uint32_t add(struct block_tables *t, uint32_t root, const uint32_t *tokens, uint32_t n)
{
    uint32_t row = NO_ROW;
    ck_assert_int_eq(block_tables_add(t, root, tokens, n, &row), 0);
    return row;
}

static uint32_t fork_row(struct block_tables *t, uint32_t parent, uint32_t length)
{
    uint32_t row = NO_ROW;
    ck_assert_int_eq(block_tables_fork(t, parent, length, &row), 0);
    return row;
}

/* Every combination of prompt length, appended length, and who appends. */
START_TEST(fork_then_append_makes_exactly_one_copy)
{
    static const uint32_t lengths[] = {1, BS - 1, BS, BS + 1, 16 * BS + 1};
    for (size_t i = 0; i < 5 * 5 * 2; i++) {
        uint32_t prompt = lengths[i % 5], more = lengths[i / 5 % 5];
        bool parent_appends = i / 25;
        struct block_tables *t = tables_of(64, 4);
        next_step = 1;
        uint32_t parent = add(t, NO_ROOT, NULL, 0);
        ck_assert_int_eq(append(t, parent, prompt, NULL), 0);
        uint32_t child = fork_row(t, parent, prompt);
        uint32_t writer = parent_appends ? parent : child, other = parent_appends ? child : parent;
        uint32_t before = free_blocks(t), table[64];
        struct block_table_view view = block_tables_view(t, other);
        memcpy(table, view.ids, view.entries * sizeof *table);

        ck_assert_int_eq(append(t, writer, more, NULL), prompt % BS != 0);
        uint32_t expected = (prompt + more + BS - 1) / BS - prompt / BS;
        ck_assert_uint_eq(before - free_blocks(t), expected);
        ck_assert_int_eq(memcmp(table, block_tables_view(t, other).ids, view.entries * sizeof *table), 0);
        ck_assert_int_eq(append(t, other, 1, NULL), 0); /* the last holder writes in place */

        block_tables_remove(t, i % 2 ? parent : child);
        block_tables_remove(t, i % 2 ? child : parent);
        ck_assert_uint_eq(free_blocks(t), 64);
        block_tables_destroy(t);
    }
}
END_TEST

START_TEST(a_reserve_is_all_or_nothing)
{
    struct block_tables *t = tables_of(4, 4);
    struct block_copy copies[2];
    uint32_t count = 0;
    next_step = 1;
    uint32_t a = add(t, NO_ROOT, NULL, 0), b = add(t, NO_ROOT, NULL, 0);
    struct reserve_request requests[2] = {{a, 0, 2 * BS}, {b, 0, 2 * BS + 1}};
    ck_assert_uint_eq(block_tables_need(t, requests, 2), 5);
    ck_assert_int_eq(block_tables_reserve(t, 1, requests, 2, copies, &count), ATTND_NO_BLOCKS);
    ck_assert_uint_eq(free_blocks(t), 4);
    ck_assert_uint_eq(block_tables_view(t, a).entries, 0);
    requests[1].end = 2 * BS;
    ck_assert_int_eq(block_tables_reserve(t, 1, requests, 2, copies, &count), 0);
    ck_assert_uint_eq(free_blocks(t), 0);
    ck_assert_uint_eq(block_pool_counts(block_tables_pool(t)).failures, 1);
    block_tables_destroy(t);
}
END_TEST

/* Both holders of a block write in one call: one copies, the other writes in place. */
START_TEST(two_writers_of_one_block_need_one_copy)
{
    struct block_tables *t = tables_of(2, 4);
    struct block_copy copies[2];
    uint32_t count = 0;
    next_step = 1;
    uint32_t a = add(t, NO_ROOT, NULL, 0);
    append(t, a, 3, NULL);
    uint32_t b = fork_row(t, a, 3);
    const struct reserve_request requests[2] = {{a, 3, 4}, {b, 3, 4}};
    ck_assert_uint_eq(block_tables_need(t, requests, 2), 1);
    ck_assert_int_eq(block_tables_reserve(t, next_step, requests, 2, copies, &count), 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(copies[0].slots, 3);
    block_tables_destroy(t);
}
END_TEST

START_TEST(a_longer_sequence_than_allowed_is_invalid)
{
    struct block_tables *t = tables_of(4, 1);
    uint32_t count = 0, a = add(t, NO_ROOT, NULL, 0);
    const struct reserve_request request = {a, 0, 4 * BS + 1};
    ck_assert_int_eq(block_tables_reserve(t, 1, &request, 1, NULL, &count), ATTND_INVALID);
    ck_assert_int_eq(block_tables_add(t, NO_ROOT, NULL, 0, &a), ATTND_NO_SEQUENCES);
    block_tables_destroy(t);
}
END_TEST

static void fill_tokens(uint32_t *tokens, uint32_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = first + i;
}

START_TEST(prefixes_are_shared_by_tokens_and_salt)
{
    struct block_tables *t = tables_of(64, 8);
    uint32_t tokens[3 * BS + 4], other[3 * BS];
    next_step = 1;
    fill_tokens(tokens, 3 * BS + 4, 100);
    fill_tokens(other, 3 * BS, 100);
    other[2 * BS - 1] = 7;
    uint32_t root = block_tables_open_root(t, 1, "salt", 4);
    uint32_t stranger = block_tables_open_root(t, 1, "pepper", 6);
    ck_assert_uint_eq(block_tables_open_root(t, 1, "salt", 4), root);
    ck_assert_uint_ne(block_tables_open_root(t, 2, "salt", 4), root);

    uint32_t a = add(t, root, tokens, 3 * BS + 4);
    ck_assert_uint_eq(block_tables_view(t, a).length, 0);
    append(t, a, 3 * BS + 4, tokens);
    ck_assert_uint_eq(block_tables_view(t, a).published, 3); /* the partial block is not */

    uint32_t b = add(t, root, tokens, 3 * BS + 4), c = add(t, root, other, 3 * BS),
             d = add(t, stranger, tokens, 3 * BS);
    ck_assert_uint_eq(block_tables_view(t, b).length, 3 * BS);
    ck_assert_uint_eq(block_tables_view(t, c).length, BS);
    ck_assert_uint_eq(block_tables_view(t, d).length, 0);
    ck_assert_uint_eq(block_tables_shared(t, b), 3);

    append(t, d, 3 * BS, tokens); /* the same tokens under another salt: blocks of its own */
    ck_assert_uint_eq(block_tables_view(t, d).published, 3);
    ck_assert_uint_ne(block_tables_view(t, d).ids[0], block_tables_view(t, a).ids[0]);
    block_tables_destroy(t);
}
END_TEST

START_TEST(a_duplicate_and_what_follows_it_stay_private)
{
    struct block_tables *t = tables_of(64, 8);
    uint32_t tokens[3 * BS];
    next_step = 1;
    fill_tokens(tokens, 3 * BS, 0);
    uint32_t root = block_tables_open_root(t, 1, "", 0);
    uint32_t a = add(t, root, NULL, 0), b = add(t, root, NULL, 0); /* neither said its prompt beforehand */
    append(t, a, 2 * BS, tokens);
    append(t, b, 3 * BS, tokens);
    ck_assert_uint_eq(block_tables_view(t, a).published, 2);
    ck_assert_uint_eq(block_tables_view(t, b).published, 0);
    block_tables_destroy(t);
}
END_TEST

START_TEST(eviction_takes_the_oldest_chain_last_block_first)
{
    struct block_tables *t = tables_of(6, 8);
    uint32_t tokens[6 * BS];
    next_step = 1;
    fill_tokens(tokens, 6 * BS, 0);
    uint32_t root = block_tables_open_root(t, 1, "", 0);
    uint32_t a = add(t, root, NULL, 0), b = add(t, root, NULL, 0);
    append(t, a, 3 * BS, tokens);          /* blocks 0 1 2 */
    append(t, b, 2 * BS, tokens + 3 * BS); /* blocks 3 4 */
    block_tables_remove(t, b);
    block_tables_remove(t, a);
    ck_assert_uint_eq(block_pool_counts(block_tables_pool(t)).cached, 5);
    for (uint32_t id = 4; id > 0; id--)
        ck_assert(block_pool_leaves_before(block_tables_pool(t), id, id - 1));

    uint32_t c = add(t, root, tokens + 3 * BS, 2 * BS); /* a hit takes 3 and 4 out of the middle */
    ck_assert_uint_eq(block_tables_view(t, c).length, 2 * BS);
    uint32_t d = add(t, NO_ROOT, NULL, 0);
    append(t, d, 3 * BS, NULL); /* the free block 5, then the victims 2 and 1 */
    static const uint32_t taken[] = {5, 2, 1};
    ck_assert_int_eq(memcmp(block_tables_view(t, d).ids, taken, sizeof taken), 0);
    uint32_t e = add(t, root, tokens, 3 * BS);
    ck_assert_uint_eq(block_tables_view(t, e).length, BS); /* only block 0 is left of the chain */
    block_tables_destroy(t);
}
END_TEST

/* A block freed under a running step comes back when that step retires, and not before. */
START_TEST(fences_hold_until_their_step_retires)
{
    struct block_tables *t = tables_of(4, 4);
    struct block_copy copies[1];
    uint32_t count = 0, a = add(t, NO_ROOT, NULL, 0), b = add(t, NO_ROOT, NULL, 0);
    const struct reserve_request first = {a, 0, 1}, second = {b, 0, 1};
    ck_assert_int_eq(block_tables_reserve(t, 1, &first, 1, copies, &count), 0);
    block_tables_advance_all(t, a, 1);
    block_tables_submit(t, a, 1);
    ck_assert_int_eq(block_tables_reserve(t, 2, &second, 1, copies, &count), 0);
    block_tables_advance_all(t, b, 1);
    block_tables_submit(t, b, 2);
    block_tables_remove(t, b);
    block_tables_remove(t, a);
    ck_assert_uint_eq(block_pool_counts(block_tables_pool(t)).fenced, 2);
    block_tables_retire_step(t, 1, &a, 1); /* it is gone: left alone */
    ck_assert_uint_eq(free_blocks(t), 3);
    block_tables_retire_step(t, 2, NULL, 0);
    ck_assert_uint_eq(free_blocks(t), 4);
    block_tables_destroy(t);
}
END_TEST

START_TEST(ids_beyond_65536_work)
{
    enum { MANY = 200000 };
    struct block_pool *pool;
    static uint32_t ids[MANY];
    ck_assert_int_eq(block_pool_create(MANY, BS, NULL, NULL, NULL, &pool), 0);
    ck_assert_int_eq(block_pool_acquire(pool, MANY, ids), 0);
    ck_assert_int_eq(block_pool_acquire(pool, 1, ids), ATTND_NO_BLOCKS);
    for (uint32_t i = 0; i < MANY; i++)
        ck_assert_uint_eq(ids[i], i);
    block_pool_release(pool, &ids[150000], 1, 0);
    block_pool_release(pool, &ids[70000], 1, 0);
    ck_assert_int_eq(block_pool_acquire(pool, 2, ids), 0);
    ck_assert_uint_eq(ids[0], 70000);
    ck_assert_uint_eq(ids[1], 150000);
    struct block_pool_census census = {.filled = 0};
    for (uint32_t id = 0; id < MANY; id++)
        ck_assert_ptr_null(block_pool_check(pool, id, &census));
    ck_assert_ptr_null(block_pool_check_census(pool, &census));
    block_pool_destroy(pool);
}
END_TEST

/* Found by the model: a swapped block came back without the token ids of its slots and was published
 * under others. */
START_TEST(bug_swap_lost_the_token_ids)
{
    struct block_tables *t = tables_of(8, 4);
    struct block_copy copies[4];
    uint32_t tokens[2 * BS], count = 0;
    next_step = 1;
    fill_tokens(tokens, 2 * BS, 500);
    uint32_t root = block_tables_open_root(t, 1, "", 0), a = add(t, root, NULL, 0),
             b = add(t, NO_ROOT, NULL, 0);
    append(t, a, BS - 1, tokens);
    ck_assert_int_eq(block_tables_swap_out(t, a, next_step, copies, &count), 0);
    append(t, b, BS, tokens + BS);
    ck_assert_int_eq(block_tables_swap_in(t, a, next_step, copies, &count), 0);
    ck_assert_uint_eq(count, 2);
    append(t, a, 1, tokens + BS - 1);
    ck_assert_uint_eq(block_tables_view(t, add(t, root, tokens, BS)).length, BS);
    block_tables_destroy(t);
}
END_TEST

/* The token counts of /stats, and the fill of the block in which all these tests look. */
static void assert_tokens(struct block_tables *t, uint64_t logical, uint64_t physical, uint32_t block,
                          uint32_t fill)
{
    struct block_tables_counts counts = block_tables_counts(t);
    ck_assert_uint_eq(counts.tokens_logical, logical);
    ck_assert_uint_eq(counts.tokens_physical, physical);
    ck_assert_uint_eq(block_pool_fill(block_tables_pool(t), block), fill);
    ck_assert_ptr_null(block_tables_fault(t));
}

/* A fork at 1 whose parent of 4 tokens was removed: 1 token logical, 4 physical. */
START_TEST(bug_fill_counted_slots_that_nobody_holds)
{
    struct block_tables *t = tables_of(8, 8);
    next_step = 1;
    uint32_t parent = add(t, NO_ROOT, NULL, 0);
    append(t, parent, 4, NULL);
    uint32_t one = fork_row(t, parent, 1), block = block_tables_view(t, one).ids[0];
    assert_tokens(t, 5, 4, block, 4);
    block_tables_remove(t, parent);
    assert_tokens(t, 1, 1, block, 1);

    ck_assert_int_eq(append(t, one, BS - 1, NULL), 0); /* in place, and full */
    uint32_t three = fork_row(t, one, 3), two = fork_row(t, one, 2);
    assert_tokens(t, BS + 5, BS, block, BS);
    ck_assert_int_eq(append(t, three, 1, NULL), 1); /* to a copy; the others keep the block */
    assert_tokens(t, BS + 6, BS + 4, block, BS);
    block_tables_truncate(t, one, 5);
    assert_tokens(t, 11, 9, block, 5);
    ck_assert_int_eq(append(t, one, BS, NULL), 1);
    assert_tokens(t, 19, 19, block, 2);
    block_tables_truncate(t, two, 0);
    assert_tokens(t, 17, 17, block_tables_view(t, three).ids[0], 4);
    block_tables_destroy(t);
}
END_TEST

/* Held, it has what its holders have; cached, or shared by a prefix hit, all of it. */
START_TEST(bug_fill_of_a_published_block)
{
    struct block_tables *t = tables_of(8, 4);
    uint32_t tokens[BS];
    next_step = 1;
    fill_tokens(tokens, BS, 0);
    uint32_t root = block_tables_open_root(t, 1, "", 0), a = add(t, root, NULL, 0);
    append(t, a, BS, tokens);
    uint32_t block = block_tables_view(t, a).ids[0];
    block_tables_truncate(t, a, 3);
    assert_tokens(t, 3, 3, block, 3);
    uint32_t b = add(t, root, tokens, BS);
    assert_tokens(t, BS + 3, BS, block, BS);
    block_tables_remove(t, b);
    assert_tokens(t, 3, 3, block, 3);
    block_tables_submit(t, a, next_step);
    block_tables_remove(t, a);
    ck_assert_int_eq(block_pool_state(block_tables_pool(t), block), BLOCK_FENCED);
    assert_tokens(t, 0, 0, block, BS);
    block_tables_retire_step(t, next_step, NULL, 0);
    ck_assert_int_eq(block_pool_state(block_tables_pool(t), block), BLOCK_CACHED);
    assert_tokens(t, 0, 0, block, BS);
    b = add(t, root, tokens, BS);
    assert_tokens(t, BS, BS, block, BS);
    block_tables_destroy(t);
}
END_TEST

/* Rows that are swapped out hold a block as well, on the device or in host memory. */
START_TEST(bug_fill_of_a_block_of_swapped_rows)
{
    struct block_tables *t = tables_of(8, 4);
    struct block_copy copies[4];
    uint32_t count = 0;
    next_step = 1;
    uint32_t a = add(t, NO_ROOT, NULL, 0);
    append(t, a, 5, NULL);
    uint32_t b = fork_row(t, a, 2), c = fork_row(t, a, 3), block = block_tables_view(t, c).ids[0];
    ck_assert_int_eq(block_tables_swap_out(t, a, next_step, copies, &count), 0);
    ck_assert_int_eq(block_tables_swap_out(t, b, next_step, copies, &count), 0);
    assert_tokens(t, 10, 5, block, 5);
    block_tables_remove(t, a);
    assert_tokens(t, 5, 3, block, 3);
    ck_assert_int_eq(block_tables_swap_out(t, c, next_step, copies, &count), 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(copies[0].slots, 3);
    block_tables_remove(t, c); /* only b is left, in host memory */
    ck_assert_int_eq(block_tables_swap_in(t, b, next_step, copies, &count), 0);
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(copies[1].slots, 2);
    assert_tokens(t, 2, 2, block_tables_view(t, b).ids[0], 2);
    block_tables_destroy(t);
}
END_TEST

/* Two prompts that begin alike are forgotten a block at a time, those of another root stay. */
START_TEST(a_root_is_forgotten_in_parts)
{
    struct block_tables *t = tables_of(24, 4);
    uint32_t prompt[4 * BS] = {0}, at = 0, parts = 0;
    uint32_t mine = block_tables_open_root(t, 1, "mine", 4), other = block_tables_open_root(t, 1, "other", 5);
    next_step = 1;
    for (uint32_t i = 0; i < 3; i++) {
        prompt[2 * BS] = i; /* the third block is the first to differ */
        uint32_t row = add(t, i < 2 ? mine : other, prompt, 4 * BS), hit = block_tables_view(t, row).length;
        ck_assert_uint_eq(hit, i == 1 ? 2 * BS : 0);
        ck_assert_int_eq(append(t, row, 4 * BS - hit, prompt + hit), 0);
        block_tables_remove(t, row);
    }
    ck_assert_uint_eq(block_pool_counts(block_tables_pool(t)).cached, 2 + 2 + 2 + 4);
    for (bool ended = false; !ended; parts++) {
        uint32_t cached = block_pool_counts(block_tables_pool(t)).cached;
        ended = block_tables_trim_root(t, mine, &at, 1);
        ck_assert_uint_le(cached - block_pool_counts(block_tables_pool(t)).cached, 1);
        ck_assert_ptr_null(block_tables_fault(t));
    }
    ck_assert_uint_ge(parts, 6);
    ck_assert_uint_eq(block_pool_counts(block_tables_pool(t)).cached, 4);
    ck_assert_uint_eq(block_tables_match(t, mine, prompt, 4 * BS).hit, 0);
    ck_assert_uint_eq(block_tables_match(t, other, prompt, 4 * BS).hit, 4);
    block_tables_close_root(t, mine);
    block_tables_close_root(t, other);
    block_tables_destroy(t);
}
END_TEST

/* ---- audits in parts ----------------------------------------------------------------------------- */

/* Something that is wrong from now on about the block that row 0 shares, or is not any more. */
static void one_reference_more(struct block_tables *t, bool wrong)
{
    struct block_pool *pool = (struct block_pool *)(uintptr_t)block_tables_pool(t);
    uint32_t id = block_tables_view(t, 0).ids[0];
    if (wrong)
        block_pool_retain(pool, &id, 1);
    else
        block_pool_release(pool, &id, 1, 0);
}

static void one_reference_less(struct block_tables *t, bool wrong)
{
    one_reference_more(t, !wrong);
}

static void another_fill(struct block_tables *t, bool wrong)
{
    struct block_pool *pool = (struct block_pool *)(uintptr_t)block_tables_pool(t);
    block_pool_set_fill(pool, block_tables_view(t, 0).ids[1], wrong ? 4 : 3);
}

static void published_without_tokens(struct block_tables *t, bool wrong)
{
    struct block_pool *pool = (struct block_pool *)(uintptr_t)block_tables_pool(t);
    uint32_t id = block_tables_view(t, 0).ids[0];
    if (wrong)
        block_pool_publish(pool, id);
    else
        block_pool_unpublish(pool, id);
}

static void another_entry(struct block_tables *t, bool wrong)
{
    static uint32_t right;
    uint32_t *ids = (uint32_t *)(uintptr_t)block_tables_view(t, 0).ids;
    if (wrong)
        right = ids[1];
    ids[1] = wrong ? block_tables_view(t, 1).ids[1] : right;
}

/* An audit of one entry or block a part, while a row comes and goes that shares what is looked at. */
static const char *audit_while_things_change(struct block_tables *t)
{
    const char *fault;
    uint32_t row = NO_ROW, parts = 0;
    block_tables_begin_audit(t);
    for (bool ended = false; !ended; parts++) {
        ended = block_tables_audit(t, 1, &fault);
        if (row == NO_ROW) {
            row = fork_row(t, 2, 2 * BS + parts % BS);
        } else {
            block_tables_remove(t, row);
            row = NO_ROW;
        }
    }
    if (row != NO_ROW)
        block_tables_remove(t, row);
    ck_assert(fault || parts > 20);
    return fault;
}

START_TEST(an_audit_in_parts_finds_what_is_wrong)
{
    static const struct {
        void (*plant)(struct block_tables *t, bool wrong);
        const char *fault;
    } faults[] = {{one_reference_more, "I2: a block's references differ from the tables"},
                  {one_reference_less, "I2: a block's references differ from the tables"},
                  {another_fill, "I1: a block's fill differs from what its holders have"},
                  {published_without_tokens, "I6: the index and the pool disagree about what is published"},
                  {another_entry, "I4: a table entry is not a block of the right generation"}};
    struct block_tables *t = tables_of(24, 6);
    struct block_copy copies[4];
    uint32_t count = 0;
    next_step = 1;
    uint32_t first = add(t, NO_ROOT, NULL, 0);
    ck_assert_int_eq(append(t, first, BS + 3, NULL), 0);
    (void)fork_row(t, first, BS + 3);
    ck_assert_int_eq(append(t, 1, 1, NULL),
                     1); /* of a block of its own, in another generation from here on */
    uint32_t third = add(t, NO_ROOT, NULL, 0), swapped = add(t, NO_ROOT, NULL, 0);
    ck_assert_int_eq(append(t, third, 3 * BS, NULL), 0);
    ck_assert_int_eq(append(t, swapped, BS + 1, NULL), 0);
    ck_assert_int_eq(block_tables_swap_out(t, swapped, next_step, copies, &count), 0);
    block_tables_retire_step(t, next_step++, NULL, 0);
    block_tables_remove(t, 1);
    (void)fork_row(t, first, BS + 3);
    ck_assert_int_eq(append(t, 1, 1, NULL), 1);
    ck_assert_ptr_null(audit_while_things_change(t));
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        faults[i].plant(t, true);
        const char *fault = audit_while_things_change(t);
        ck_assert_msg(fault && strcmp(fault, faults[i].fault) == 0, "fault %zu: %s, wanted %s", i,
                      fault ? fault : "none", faults[i].fault);
        ck_assert_ptr_nonnull(block_tables_fault(t));
        faults[i].plant(t, false);
        ck_assert_ptr_null(audit_while_things_change(t));
        ck_assert_ptr_null(block_tables_fault(t));
    }
    block_tables_destroy(t);
}
END_TEST

TCase *block_table_case(void)
{
    TCase *tc = tcase_create("block_table");
    tcase_add_test(tc, fork_then_append_makes_exactly_one_copy);
    tcase_add_test(tc, a_reserve_is_all_or_nothing);
    tcase_add_test(tc, two_writers_of_one_block_need_one_copy);
    tcase_add_test(tc, a_longer_sequence_than_allowed_is_invalid);
    tcase_add_test(tc, prefixes_are_shared_by_tokens_and_salt);
    tcase_add_test(tc, a_duplicate_and_what_follows_it_stay_private);
    tcase_add_test(tc, eviction_takes_the_oldest_chain_last_block_first);
    tcase_add_test(tc, fences_hold_until_their_step_retires);
    tcase_add_test(tc, ids_beyond_65536_work);
    tcase_add_test(tc, bug_swap_lost_the_token_ids);
    tcase_add_test(tc, bug_fill_counted_slots_that_nobody_holds);
    tcase_add_test(tc, bug_fill_of_a_published_block);
    tcase_add_test(tc, bug_fill_of_a_block_of_swapped_rows);
    tcase_add_test(tc, a_root_is_forgotten_in_parts);
    tcase_add_test(tc, an_audit_in_parts_finds_what_is_wrong);
    return tc;
}
