/* SPDX-License-Identifier: Apache-2.0 */
/* test_doorbell.c - what a client's call says is checked before it is used.
 *
 * Property: of a call that is accepted every list and tensor lies in its region, reckoned in 128 bits; one that is refused has
 * something that does not. Method: calls whose numbers are small, near powers of two, and at the ends of their types. */
#include "scheduler/doorbell.h"
#include "scheduler/tenant_calls.h"
#include "tests/unit/suites.h"

#include <string.h>

enum { ROUNDS = 400000, ROWS_MAX = 65536 };

static const struct geometry geometry = {.layers = 80,
                                         .query_heads = 64,
                                         .kv_heads = 8,
                                         .head_dim = 128,
                                         .block_size = 16,
                                         .dtype = DTYPE_BF16,
                                         .kv_dtype = DTYPE_E4M3};

static uint64_t state = 1;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* A number that somebody might try. */
static uint64_t number(uint64_t region_bytes)
{
    uint64_t small = next() % 4;
    switch (next() % 8) {
    case 0:
        return small;
    case 1:
        return UINT64_MAX - small;
    case 2:
        return UINT32_MAX - small;
    case 3:
        return (UINT64_C(1) << next() % 64) - 2 + small;
    case 4:
        return region_bytes - 2 + small;
    case 5:
        return region_bytes - next() % (1 << 16);
    default:
        return next() % (region_bytes + 1);
    }
}

static struct registered_call random_call(uint64_t region_bytes)
{
    bool sane = next() % 2;
    struct registered_call c = {.kind = sane ? 1 + next() % 2 : (uint32_t)number(region_bytes),
                                .layer = sane ? next() % 80 : (uint32_t)number(region_bytes),
                                .kernel = sane ? 0 : (uint32_t)number(region_bytes),
                                .kv_stored = next() % 2,
                                .rows = 1 + next() % 64};
    uint64_t *const offsets[] = {&c.sequences, &c.counts, &c.positions, &c.tokens, &c.q,
                                 &c.k,         &c.v,      &c.o,         &c.lse};
    c.sequence_count = sane ? 1 + next() % c.rows : (uint32_t)number(region_bytes);
    c.rows = sane ? c.rows : (uint32_t)number(region_bytes);
    c.token_count = sane ? next() % (c.rows + 1) : (uint32_t)number(region_bytes);
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++)
        *offsets[i] = next() % 6 == 0 ? REGISTERED_NONE : sane ? next() % region_bytes : number(region_bytes);
    return c;
}

static bool inside(uint64_t offset, unsigned __int128 bytes, uint64_t region_bytes)
{
    return (unsigned __int128)offset + bytes <= region_bytes;
}

/* Everything that the engine would touch, without a sum or product that can wrap. */
static bool all_inside(const struct registered_call *c, uint64_t region_bytes)
{
    typedef unsigned __int128 wide;
    bool attends = c->kind == REGISTERED_ATTEND;
    wide rows = c->rows, n = c->sequence_count, q = rows * 64 * 128 * 2,
         kv = rows * 8 * 128 * (c->kv_stored ? 1 : 2) * (c->layer == REGISTERED_ALL ? 80 : 1);
    return inside(c->sequences, n * 8, region_bytes) &&
           (c->counts == REGISTERED_NONE || inside(c->counts, n * 4, region_bytes)) &&
           (c->positions == REGISTERED_NONE || inside(c->positions, n * 4, region_bytes)) &&
           (!c->token_count || inside(c->tokens, (wide)c->token_count * 4, region_bytes)) &&
           (!attends || (inside(c->q, q, region_bytes) && inside(c->o, q, region_bytes))) &&
           (c->k == REGISTERED_NONE || (inside(c->k, kv, region_bytes) && inside(c->v, kv, region_bytes))) &&
           (!attends || c->lse == REGISTERED_NONE || inside(c->lse, rows * 64 * 4, region_bytes));
}

/* What is refused for something else. */
static bool makes_sense(const struct registered_call *c)
{
    bool attends = c->kind == REGISTERED_ATTEND, k = c->k != REGISTERED_NONE;
    return (attends || c->kind == REGISTERED_APPEND) &&
           (c->layer < 80 || (!attends && c->layer == REGISTERED_ALL)) && c->kernel <= 2 &&
           c->sequence_count >= 1 && c->rows >= c->sequence_count && c->rows <= ROWS_MAX &&
           (c->counts != REGISTERED_NONE || c->rows == c->sequence_count) && k == (c->v != REGISTERED_NONE) &&
           (attends || k) && c->token_count <= c->rows && (!c->token_count || k) && c->sequence_count < 5000;
}

START_TEST(what_is_accepted_lies_in_the_region)
{
    static const uint64_t regions[] = {1, 4096, 1 << 20, UINT64_C(1) << 30};
    struct doorbell_bytes bytes;
    char detail[REQUEST_DETAIL_BYTES];
    unsigned accepted = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t region = regions[next() % 4];
        struct registered_call c = random_call(region);
        detail[0] = '\0';
        int rc = doorbell_check(&c, &geometry, ROWS_MAX, region, region, &bytes, detail);
        if (rc == 0)
            ck_assert_msg(makes_sense(&c) && all_inside(&c, region), "round %u was accepted", i);
        else
            ck_assert_msg(detail[0] && !(makes_sense(&c) && all_inside(&c, region)),
                          "round %u was refused: %s", i, detail);
        accepted += rc == 0;
    }
    ck_assert_uint_gt(accepted, ROUNDS / 100);
}
END_TEST

START_TEST(sizes_are_those_of_the_geometry)
{
    const struct registered_call c = {.kind = REGISTERED_APPEND,
                                      .layer = REGISTERED_ALL,
                                      .rows = 3,
                                      .sequence_count = 1,
                                      .positions = REGISTERED_NONE,
                                      .kv_stored = 1,
                                      .v = 1};
    struct doorbell_bytes bytes;
    char detail[REQUEST_DETAIL_BYTES];
    ck_assert_int_eq(
        doorbell_check(&c, &geometry, ROWS_MAX, 3 * 8 * 128 * 80 + 1, 3 * 8 * 128 * 80 + 1, &bytes, detail),
        0);
    ck_assert(bytes.kv == 3 * 8 * 128 * 80 && bytes.q == 0 && bytes.o == 0 && bytes.lse == 0 &&
              bytes.lists == 12);
    ck_assert_int_eq(
        doorbell_check(&c, &geometry, ROWS_MAX, 3 * 8 * 128 * 80, 3 * 8 * 128 * 80, &bytes, detail),
        ATTND_INVALID);
    ck_assert_str_eq(detail, "v: has 245760 bytes from 1 on, and the region has 245760");
}
END_TEST

START_TEST(what_a_key_has_in_use)
{
    struct tenant_calls t = {.calls_max = 2, .staging_max = 100, .requests_per_s = 2};
    ck_assert(tenant_calls_take(&t) && tenant_calls_take(&t) && !tenant_calls_take(&t));
    tenant_calls_give(&t);
    ck_assert(tenant_calls_take(&t));
    ck_assert(tenant_calls_take_staging(&t, 60, 1000) && !tenant_calls_take_staging(&t, 41, 1000));
    ck_assert(!tenant_calls_take_staging(&t, UINT64_MAX, 1000) && tenant_calls_take_staging(&t, 40, 1000));
    uint64_t now = UINT64_C(5000000000);
    ck_assert(tenant_calls_ask(&t, now) && tenant_calls_ask(&t, now) && !tenant_calls_ask(&t, now));
    ck_assert(!tenant_calls_ask(&t, now + 499999999) && tenant_calls_ask(&t, now + 500000000));
    struct tenant_calls none = {0};
    ck_assert(tenant_calls_take(&none) && tenant_calls_ask(&none, 1) && tenant_calls_part(&none, 10) == 5);
}
END_TEST

TCase *doorbell_case(void)
{
    TCase *tc = tcase_create("doorbell");
    tcase_add_test(tc, what_is_accepted_lies_in_the_region);
    tcase_add_test(tc, sizes_are_those_of_the_geometry);
    tcase_add_test(tc, what_a_key_has_in_use);
    return tc;
}
