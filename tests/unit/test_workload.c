/* SPDX-License-Identifier: Apache-2.0 */
/* Workloads: contents and samples against a plain list, shapes and arrivals against their tables, the
 * digest against its definition, percentiles against sorting. One case: CK_RUN_CASE=workload. */
#include "tests/unit/suites.h"

#include "kernels/numeric.h"
#include "scheduler/verify.h"
#include "scheduler/workload.h"
#include "scheduler/workload_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct geometry geometry = {.layers = 3,
                                         .query_heads = 2,
                                         .kv_heads = 1,
                                         .head_dim = 8,
                                         .block_size = 4,
                                         .dtype = DTYPE_F32,
                                         .kv_dtype = DTYPE_F32,
                                         .scale = 0.5F};

static struct workload *closed(struct workload *w)
{
    char reason[WORKLOAD_REASON_BYTES] = "";
    int rc = workload_close(w, &geometry, 100000, 1000, 100000, reason);
    ck_assert_msg(rc == 0, "%s", reason);
    return w;
}

static void add(struct workload *w, struct workload_request r, const struct workload_span *spans, uint32_t n)
{
    char reason[WORKLOAD_REASON_BYTES] = "";
    int rc = workload_add(w, &r, spans, n, reason);
    ck_assert_msg(rc == 0, "%s", reason);
}

START_TEST(contents_follow_spans_forks_and_owners)
{
    const struct workload_span spans[] = {{.end = 3, .content = workload_content_id(CONTENT_HASH, 5)},
                                          {.end = 4, .content = workload_content_id(CONTENT_HASH, 6)},
                                          {.end = 9, .content = workload_content_id(CONTENT_PREFIX, 5)}};
    struct workload *w = workload_create(1);
    add(w, (struct workload_request){.prompt = 2, .decode = 1}, NULL, 0);
    add(w, (struct workload_request){.prompt = 12, .decode = 3, .fork_at = 7, .forks = 2}, spans, 3);
    closed(w);
    const uint64_t a = spans[0].content, b = spans[1].content, c = spans[2].content, own = 1, child = 3;
    const uint64_t parent[15] = {a, a, a, b, c, c, c, c, c, own, own, own, own, own, own};
    const uint64_t forked[15] = {a, a, a, b, c, c, c, child, child, child, child, child, child, child, child};
    for (uint32_t at = 0; at < 15; at++) {
        struct workload_span p = workload_span_at(w, 1, at), f = workload_span_at(w, 3, at);
        ck_assert_uint_eq(p.content, parent[at]);
        ck_assert_uint_eq(f.content, forked[at]);
        for (uint32_t i = at; i < p.end; i++)
            ck_assert_uint_eq(parent[i], p.content);
        for (uint32_t i = at; i < f.end; i++)
            ck_assert_uint_eq(forked[i], f.content);
        ck_assert_int_eq(p.token == f.token, p.content == f.content); /* numbers stand for contents */
        ck_assert_uint_gt(p.end, at);
    }
    ck_assert_uint_ne(workload_span_at(w, 1, 3).token, workload_span_at(w, 1, 4).token);
    ck_assert_uint_eq(workload_inherited(w, 2), 7);
    ck_assert_uint_eq(workload_first_row(w, 2), 12);
    workload_destroy(w);
}
END_TEST

START_TEST(many_shared_contents_keep_their_numbers)
{
    enum { REQUESTS = 3000 };
    struct workload *w = workload_create(1);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const struct workload_span spans[] = {
            {.end = 2, .content = workload_content_id(CONTENT_HASH, i / 2)},
            {.end = 5, .content = workload_content_id(CONTENT_HASH, 100000 + i)}};
        add(w, (struct workload_request){.prompt = 5, .decode = 1}, spans, 2);
    }
    closed(w);
    for (uint32_t i = 0; i + 1 < REQUESTS; i += 2) {
        ck_assert_uint_eq(workload_span_at(w, i, 0).token, workload_span_at(w, i + 1, 0).token);
        ck_assert_uint_ne(workload_span_at(w, i, 3).token, workload_span_at(w, i + 1, 3).token);
        ck_assert_uint_lt(workload_span_at(w, i, 3).token, w->content_count);
    }
    workload_destroy(w);
}
END_TEST

START_TEST(samples_are_distinct_rows_of_every_part)
{
    struct workload *w = workload_create(9);
    w->verify_rows = 40;
    for (int i = 0; i < 10; i++)
        add(w, (struct workload_request){.prompt = 5, .decode = 7, .fork_at = 8, .forks = 1}, NULL, 0);
    closed(w);
    ck_assert_uint_eq(w->report.tokens, 10 * (7 + 4));
    ck_assert_uint_eq(w->report.verify_rows, 40);
    for (uint32_t i = 0; i < 40; i++) {
        const struct workload_sample *s = &w->samples[i], *before = i ? s - 1 : NULL;
        ck_assert_uint_ge(s->position, workload_first_row(w, s->ordinal));
        ck_assert_uint_lt(s->position, workload_length(w, s->ordinal));
        ck_assert_uint_lt(s->layer, geometry.layers);
        if (before)
            ck_assert_int_lt(((int)before->ordinal * 100 + (int)before->position) * 100 + (int)before->layer,
                             ((int)s->ordinal * 100 + (int)s->position) * 100 + (int)s->layer);
        ck_assert_uint_le(w->sequences[s->ordinal].next_sample, i);
    }
    workload_destroy(w);
}
END_TEST

START_TEST(more_samples_than_rows_are_all_rows)
{
    struct workload *w = workload_create(9);
    w->verify_rows = 4096;
    add(w, (struct workload_request){.prompt = 5, .decode = 7}, NULL, 0);
    closed(w);
    ck_assert_uint_eq(w->report.verify_rows, 7 * geometry.layers);
    workload_destroy(w);
}
END_TEST

START_TEST(requests_run_in_the_order_of_their_arrival)
{
    struct workload *w = workload_create(9);
    for (int i = 0; i < 20; i++)
        add(w, (struct workload_request){.arrival_s = (double)(i * 7 % 20), .prompt = 1}, NULL, 0);
    closed(w);
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert_double_eq(w->requests[i].arrival_s, (double)i);
        ck_assert_uint_eq(w->sequences[w->requests[i].ordinal].request, i);
        ck_assert_uint_eq(w->requests[i].ordinal * 7 % 20, i); /* ordinals are as they were given */
    }
    workload_destroy(w);
}
END_TEST

START_TEST(the_digest_does_not_depend_on_order)
{
    struct workload *a = workload_create(1), *b = workload_create(1);
    const float o[4] = {1, 2, 3, 4}, p[4] = {1, 2, 3, 5};
    workload_digest(a, workload_hash_row(0, 1, 2, o, sizeof o));
    workload_digest(a, workload_hash_row(0, 2, 2, p, sizeof p));
    workload_digest(b, workload_hash_row(0, 2, 2, p, sizeof p));
    workload_digest(b, workload_hash_row(0, 1, 2, o, sizeof o));
    ck_assert_uint_eq(a->report.digest_low, b->report.digest_low);
    ck_assert_uint_eq(a->report.digest_high, b->report.digest_high);
    workload_digest(a, workload_hash_row(0, 3, 2, o, sizeof o));
    workload_digest(b, workload_hash_row(0, 3, 1, o, sizeof o));
    ck_assert_uint_ne(a->report.digest_low, b->report.digest_low);
    workload_destroy(a);
    workload_destroy(b);
}
END_TEST

START_TEST(verification_compares_with_the_generator)
{
    float ones[] = {1, 1, 1};
    const struct model_constants constants = {.k_scale = ones, .v_scale = ones};
    struct workload *w = workload_create(3);
    w->verify_rows = 1;
    add(w, (struct workload_request){.prompt = 0, .decode = 1}, NULL, 0);
    closed(w);
    /* one key: the output is its value */
    float *o = (float *)(void *)w->outputs;
    for (uint32_t head = 0; head < 2; head++)
        values_row((struct value_source){.seed = 3}, 0, w->samples[0].layer, VALUES_V, 0, 8, o + head * 8);
    double error;
    ck_assert_int_eq(verify_head(w, &geometry, &constants, 0, 0, &error), 0);
    ck_assert_double_le(error, verify_tolerance(&geometry, false));
    o[11] += 0.01F;
    ck_assert_int_eq(verify_head(w, &geometry, &constants, 0, 0, &error), 0);
    ck_assert_double_gt(error, verify_tolerance(&geometry, false));
    o[11] = NAN;
    ck_assert_int_eq(verify_head(w, &geometry, &constants, 0, 0, &error), 0);
    ck_assert(isnan(error));
    workload_destroy(w);
}
END_TEST

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

START_TEST(shapes_have_their_quantiles)
{
    enum { N = 20000 };
    static double drawn[N];
    const struct shape *shape = shape_find("azure-conv");
    struct random random = {1};
    for (int i = 0; i < N; i++)
        drawn[i] = shape_prompt(shape, &random);
    qsort(drawn, N, sizeof *drawn, by_value);
    ck_assert_double_eq_tol(drawn[N / 10] / 207, 1, 0.06);
    ck_assert_double_eq_tol(drawn[N / 2] / 1020, 1, 0.04);
    ck_assert_double_eq_tol(drawn[N * 9 / 10] / 2735, 1, 0.06);
    ck_assert_double_ge(drawn[0], 29);
    ck_assert_double_le(drawn[N - 1], 14050);
    ck_assert_ptr_null(shape_find("azure"));
}
END_TEST

START_TEST(gaps_have_their_mean_and_spread)
{
    enum { N = 200000 };
    static const double cvs[] = {0, 0.5, 1, 3};
    for (int k = 0; k < 4; k++) {
        struct random random = {5};
        double sum = 0, squares = 0;
        for (int i = 0; i < N; i++) {
            double gap = random_gap(&random, 4, cvs[k]);
            sum += gap;
            squares += gap * gap;
        }
        double mean = sum / N, deviation = sqrt(fmax(0, squares / N - mean * mean));
        ck_assert_double_eq_tol(mean, 0.25, 0.01);
        ck_assert_double_eq_tol(deviation / mean, cvs[k], 0.05 + 0.03 * cvs[k]);
    }
}
END_TEST

START_TEST(quantiles_are_within_two_percent)
{
    enum { N = 5000 };
    static double values[N];
    struct quantiles q = {0};
    struct random random = {3};
    for (int i = 0; i < N; i++) {
        values[i] = exp(12 * random_unit(&random));
        quantiles_add(&q, values[i]);
    }
    qsort(values, N, sizeof *values, by_value);
    ck_assert_double_eq_tol(quantiles_at(&q, 0.5) / values[N / 2], 1, 0.02);
    ck_assert_double_eq_tol(quantiles_at(&q, 0.99) / values[N * 99 / 100], 1, 0.02);
    const struct quantiles none = {0};
    ck_assert_double_eq(quantiles_at(&none, 0.5), 0);
}
END_TEST

TCase *workload_case(void)
{
    TCase *t = tcase_create("workload");
    tcase_add_test(t, contents_follow_spans_forks_and_owners);
    tcase_add_test(t, many_shared_contents_keep_their_numbers);
    tcase_add_test(t, samples_are_distinct_rows_of_every_part);
    tcase_add_test(t, more_samples_than_rows_are_all_rows);
    tcase_add_test(t, requests_run_in_the_order_of_their_arrival);
    tcase_add_test(t, the_digest_does_not_depend_on_order);
    tcase_add_test(t, verification_compares_with_the_generator);
    tcase_add_test(t, shapes_have_their_quantiles);
    tcase_add_test(t, gaps_have_their_mean_and_spread);
    tcase_add_test(t, quantiles_are_within_two_percent);
    return t;
}
