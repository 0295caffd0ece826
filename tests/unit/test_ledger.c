/* SPDX-License-Identifier: Apache-2.0 */
/* test_ledger.c - the forecast of blocks is never below the true peak, and close to it.
 *
 * Property: whatever sequences are entered, changed and removed while rounds pass, ledger_peak() is at least
 * the largest sum over all rounds to come of what each holds then, computed from its definition; and in sets
 * like those of real traces at most a few percent more. Admission by it lets nearly as many sequences run as
 * admission by the true peak. Method: random sets and a brute force; seeds are fixed. One case:
 * CK_RUN_CASE=ledger. */
#include "scheduler/ledger.h"
#include "scheduler/row_order.h"
#include "scheduler/shape.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 400 };

static struct ledger_entry entries[ENTRIES];
static struct ledger ledger;
static struct random source;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(random_next(&source) % n);
}

static uint64_t blocks_of(uint64_t tokens)
{
    return (tokens + ledger.block_size - 1) / ledger.block_size;
}

/* What an entry holds after `round`: from its own numbers, not from sums. */
static uint64_t held(const struct ledger_entry *e, uint64_t round)
{
    if (e->count == 0 || (e->end < round && e->end > ledger.round))
        return 0; /* one that should have ended and is still there does so after this round */
    if (e->end != LEDGER_OPEN && e->end <= ledger.round && round > ledger.round)
        return 0;
    uint64_t most = (uint64_t)e->count * e->final;
    if (e->end == LEDGER_OPEN)
        return most;
    uint64_t now = e->count * (blocks_of(e->tokens + (round - e->since)) - e->common);
    return now < most ? now : most;
}

static uint64_t true_peak(void)
{
    uint64_t peak = 0, last = ledger.round;
    for (int i = 0; i < ENTRIES; i++) {
        if (entries[i].count && entries[i].end != LEDGER_OPEN && entries[i].end > last)
            last = entries[i].end;
    }
    for (uint64_t round = ledger.round; round <= last; round++) {
        uint64_t sum = 0;
        for (int i = 0; i < ENTRIES; i++)
            sum += held(&entries[i], round);
        peak = sum > peak ? sum : peak;
    }
    return peak;
}

/* A sequence that decodes, one that still fills, or children to come. */
static struct ledger_entry any_entry(uint32_t longest)
{
    uint32_t tokens = below(longest), left = 1 + below(1U << below(10)), size = ledger.block_size;
    struct ledger_entry e = {.count = 1, .tokens = tokens, .end = ledger.round + left};
    e.common = below(4) ? 0 : below(tokens / size + 1);
    if (below(8) == 0) {
        e.waits = true;
        e.count = 1 + below(3);
        e.common = tokens / size;
    }
    e.final = (uint32_t)blocks_of(tokens + left) - e.common;
    if (below(8) == 0)
        e.end = LEDGER_OPEN;
    return e;
}

START_TEST(the_peak_is_never_below_the_true_one)
{
    static const uint32_t sizes[] = {1, 3, 16, 256};
    for (int k = 0; k < 4; k++) {
        source = (struct random){(uint64_t)k + 1};
        memset(entries, 0, sizeof entries);
        ledger_init(&ledger, entries, sizes[k]);
        double largest = 1;
        for (int step = 0; step < ROUNDS_OF(1500); step++) {
            for (uint32_t n = below(6); n > 0; n--) {
                uint32_t i = below(step < 700 ? 20 : ENTRIES);
                struct ledger_entry e = below(3) ? any_entry(4000) : (struct ledger_entry){0};
                ledger_set(&ledger, i, &e);
            }
            for (uint32_t n = below(4); n > 0; n--)
                ledger_advance(&ledger);
            if (step % 5)
                continue;
            uint64_t found = ledger_peak(&ledger), want = true_peak();
            ck_assert_msg(found >= want,
                          "block_size %u, step %d, round %llu: %llu, and the true peak is %llu", sizes[k],
                          step, (unsigned long long)ledger.round, (unsigned long long)found,
                          (unsigned long long)want);
            if (want > 100)
                largest = fmax(largest, (double)found / (double)want);
        }
        for (uint32_t i = 0; i < ENTRIES; i++)
            ledger_set(&ledger, i, &(struct ledger_entry){0});
        ck_assert_uint_eq(ledger_peak(&ledger), 0);
        ck_assert_uint_eq(ledger.first, LEDGER_NONE);
    }
}
END_TEST

START_TEST(one_alone_is_exact)
{
    for (uint32_t left = 1; left < 5000; left += 7) {
        memset(entries, 0, sizeof entries);
        ledger_init(&ledger, entries, 16);
        for (uint32_t round = 0; round < left; round++)
            ledger_advance(&ledger);
        ledger_set(
            &ledger, 0,
            &(struct ledger_entry){.count = 1, .tokens = left, .end = ledger.round + left, .final = 2});
        ck_assert_uint_eq(ledger_peak(&ledger), 2);
        ledger_set(&ledger, 1,
                   &(struct ledger_entry){.count = 3, .tokens = 5, .end = LEDGER_OPEN, .final = 4});
        ck_assert_uint_eq(ledger_peak(&ledger), 14);
    }
}
END_TEST

/* ---- admission ----------------------------------------------------------------------------------- */

/* The admission that was before: all ends sorted for each, no sequence above its growth in whole blocks. */
static int by_end(const void *a, const void *b)
{
    const struct ledger_entry *x = *(const struct ledger_entry *const *)a,
                              *y = *(const struct ledger_entry *const *)b;
    return (x->end < y->end) - (x->end > y->end);
}

static uint64_t sorted_peak(void)
{
    const struct ledger_entry *list[ENTRIES];
    uint64_t n = 0, now = 0, peak = 0;
    for (int i = 0; i < ENTRIES; i++) {
        if (entries[i].count)
            list[n++] = &entries[i];
    }
    qsort(list, n, sizeof *list, by_end);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t left = list[i]->end - ledger.round;
        now += blocks_of(list[i]->tokens + ledger.round - list[i]->since);
        peak = now + (i + 1) * blocks_of(left) > peak ? now + (i + 1) * blocks_of(left) : peak;
    }
    return peak;
}

struct outcome {
    uint32_t rounds, running_most;
    double excess; /* of the forecast above the true peak, mean */
};

/* Run 200 sequences in a pool, admitted in order as long as `forecast` has them fit. */
static struct outcome run(uint64_t seed, uint32_t pool, uint64_t (*forecast)(void))
{
    struct outcome result = {0};
    uint32_t next = 0, running = 0, asked = 0, prompt[200], decode[200];
    const struct shape *shape = shape_find("azure-conv");
    source = (struct random){seed};
    for (int i = 0; i < 200; i++) {
        prompt[i] = shape_prompt(shape, &source);
        decode[i] = shape_decode(shape, &source);
    }
    memset(entries, 0, sizeof entries);
    ledger_init(&ledger, entries, 16);
    for (; next < 200 || running; result.rounds++) {
        for (; next < 200; next++) {
            uint32_t final = (uint32_t)blocks_of(prompt[next] + decode[next]);
            ledger_set(
                &ledger, next,
                &(struct ledger_entry){
                    .count = 1, .tokens = prompt[next], .end = ledger.round + decode[next], .final = final});
            uint64_t peak = forecast();
            if (peak > pool && running) {
                ledger_set(&ledger, next, &(struct ledger_entry){0});
                break;
            }
            running++;
        }
        result.running_most = running > result.running_most ? running : result.running_most;
        if (result.rounds % 16 == 0) {
            asked++;
            result.excess += (double)forecast() / (double)true_peak() - 1;
        }
        ledger_advance(&ledger);
        for (uint32_t i = 0; i < next; i++) {
            if (!entries[i].count || entries[i].end > ledger.round)
                continue;
            ledger_set(&ledger, i, &(struct ledger_entry){0});
            running--;
        }
    }
    result.excess /= asked;
    return result;
}

static uint64_t bucket_peak(void)
{
    return ledger_peak(&ledger);
}

START_TEST(admission_is_as_good_as_by_the_true_peak)
{
    static const uint32_t pools[] = {1000, 2000, 4000, 8000};
    for (int k = 0; k < 4; k++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            struct outcome buckets = run(seed, pools[k], bucket_peak),
                           sorted = run(seed, pools[k], sorted_peak), exact = run(seed, pools[k], true_peak);
            if (getenv("LEDGER_SHOW"))
                printf("pool %u seed %llu: running most %u, sorted %u, exact %u; rounds %u %u %u; above the "
                       "true peak %.2f %% %.2f %%\n",
                       pools[k], (unsigned long long)seed, buckets.running_most, sorted.running_most,
                       exact.running_most, buckets.rounds, sorted.rounds, exact.rounds, buckets.excess * 100,
                       sorted.excess * 100);
            ck_assert_uint_ge(buckets.running_most * 100, sorted.running_most * 95);
            ck_assert_uint_le(buckets.rounds * 95, sorted.rounds * 100);
            ck_assert_double_le(buckets.excess, 0.03);
        }
    }
}
END_TEST

/* ---- rows in order ------------------------------------------------------------------------------- */

static uint32_t keys[ENTRIES];

static bool key_before(uint32_t a, uint32_t b, const void *cookie)
{
    (void)cookie;
    return keys[a] != keys[b] ? keys[a] < keys[b] : a < b;
}

static bool key_below(uint32_t a, const void *wanted, const void *cookie)
{
    (void)cookie;
    return keys[a] < *(const uint32_t *)wanted;
}

START_TEST(an_order_of_rows_is_that_of_their_keys)
{
    struct row_order order;
    bool here[ENTRIES] = {false};
    source = (struct random){5};
    ck_assert_int_eq(row_order_init(&order, ENTRIES, key_before, NULL), 0);
    for (int step = 0; step < ROUNDS_OF(20000); step++) {
        uint32_t row = below(ENTRIES), wanted = below(100), before;
        if (here[row]) {
            row_order_remove(&order, row);
        } else {
            keys[row] = below(100);
            row_order_insert(&order, row);
        }
        here[row] = !here[row];
        uint32_t first = ROW_ORDER_NONE, last = first, found = first, below_it = first;
        for (uint32_t i = 0; i < ENTRIES; i++) {
            ck_assert(row_order_has(&order, i) == here[i]);
            if (!here[i])
                continue;
            first = first == ROW_ORDER_NONE || key_before(i, first, NULL) ? i : first;
            last = last == ROW_ORDER_NONE || key_before(last, i, NULL) ? i : last;
            if (keys[i] >= wanted)
                found = found == ROW_ORDER_NONE || key_before(i, found, NULL) ? i : found;
            else
                below_it = below_it == ROW_ORDER_NONE || key_before(below_it, i, NULL) ? i : below_it;
        }
        ck_assert_uint_eq(row_order_first(&order), first);
        ck_assert_uint_eq(row_order_last(&order), last);
        ck_assert_uint_eq(row_order_find(&order, key_below, &wanted, &before), found);
        ck_assert_uint_eq(before, below_it);
    }
    row_order_deinit(&order);
}
END_TEST

TCase *ledger_case(void)
{
    TCase *t = tcase_create("ledger");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_peak_is_never_below_the_true_one);
    tcase_add_test(t, one_alone_is_exact);
    tcase_add_test(t, admission_is_as_good_as_by_the_true_peak);
    tcase_add_test(t, an_order_of_rows_is_that_of_their_keys);
    return t;
}
