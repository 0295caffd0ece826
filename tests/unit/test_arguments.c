/* SPDX-License-Identifier: Apache-2.0 */
/* test_arguments.c - members of a body and parameters of a query are read alike, and queries to the byte. */
#include "server/arguments.h"
#include "tests/unit/suites.h"

#include <stdlib.h>
#include <string.h>

static char reply[4096];
static struct http_exchange x;
static struct arguments a;

static struct http_text text_of(const char *text)
{
    return (struct http_text){text, strlen(text)};
}

static void begin(const char *query, const char *body)
{
    x = (struct http_exchange){.http_status = 200};
    http_request_none(&x.head);
    json_writer_init(&x.reply, reply, sizeof reply - 1);
    x.head.query = text_of(query);
    x.body = text_of(body);
    x.head.body_type = text_of("application/json");
}

static const char *const names[] = {"n", "r", "flag", "word", "text", NULL}, *const elsewhere[] = {"q", NULL};

/* The detail of the problem that stands in the exchange. */
static const char *detail(void)
{
    char *from = strstr(reply, "\"detail\":\""), *end;
    reply[x.reply.length] = '\0';
    ck_assert_ptr_nonnull(from);
    from += strlen("\"detail\":\"");
    end = strstr(from, "\",\"code\"");
    ck_assert_ptr_nonnull(end);
    *end = '\0';
    return from;
}

static const struct {
    const char *query, *detail; /* NULL: it is fine */
} queries[] = {
    {"", NULL},
    {"n=1&r=0.5&flag=1&word=two&text=a%20b%2Bc%25", NULL},
    {"%6E=%31", NULL},
    {"text=", NULL},
    {"n=1&n=1", "parameter n: is there twice"},
    {"n=1&%6e=1", "parameter n: is there twice"},
    {"n", "parameter n: wants a value"},
    {"m=1", "parameter m: there is none of that name; there are n, r, flag, word, text"},
    {"q=1", "parameter q: belongs in the body"},
    {"&", "query: \\\"\\\": wants name=value, with %20 for a space, %2B for a plus, %25 for a percent sign"},
    {"text=a+b", "query: \\\"text=a+b\\\": wants name=value, with %20 for a space, %2B for a plus, %25 for a "
                 "percent sign"},
    {"text=%",
     "query: \\\"text=%\\\": wants name=value, with %20 for a space, %2B for a plus, %25 for a percent sign"},
    {"text=%2", "query: \\\"text=%2\\\": wants name=value, with %20 for a space, %2B for a plus, %25 for a "
                "percent sign"},
    {"text=%zz", "query: \\\"text=%zz\\\": wants name=value, with %20 for a space, %2B for a plus, %25 for a "
                 "percent sign"},
    {"text=%00", "query: \\\"text=%00\\\": wants name=value, with %20 for a space, %2B for a plus, %25 for a "
                 "percent sign"},
};

START_TEST(takes_queries_apart)
{
    begin(queries[_i].query, "");
    int rc = arguments_of_query(&a, &x, names, elsewhere);
    ck_assert_int_eq(rc, queries[_i].detail ? ATTND_INVALID : 0);
    if (rc)
        ck_assert_str_eq(detail(), queries[_i].detail);
}
END_TEST

/* One value of each kind; what it is or why not. */
static int read_all(int64_t *n, double *r, bool *flag, unsigned *word, struct http_text *text)
{
    static const char *const words[] = {"one", "two", "three"};
    int rc = arguments_integer(&a, "n", -5, 5, n);
    if (rc == 0)
        rc = arguments_number(&a, "r", 0, 1, r);
    if (rc == 0)
        rc = arguments_flag(&a, "flag", flag);
    if (rc == 0)
        rc = arguments_word(&a, "word", words, 3, word);
    return rc == 0 ? arguments_text(&a, "text", 8, text) : rc;
}

START_TEST(reads_both_alike)
{
    for (int in_body = 0; in_body < 2; in_body++) {
        int64_t n = 7;
        double r = 7;
        bool flag = false;
        unsigned word = 7;
        struct http_text text = {"", 0};
        begin(in_body ? "" : "n=-3&r=5e-1&flag=1&word=two&text=a%20b%C3%A9",
              in_body ? "{\"n\":-3,\"r\":0.5,\"flag\":true,\"word\":\"two\",\"text\":\"a b\\u00e9\"}" : "");
        ck_assert_int_eq(
            in_body ? arguments_of_json(&a, &x, names, NULL) : arguments_of_query(&a, &x, names, NULL), 0);
        ck_assert_int_eq(read_all(&n, &r, &flag, &word, &text), 0);
        ck_assert(n == -3 && r == 0.5 && flag && word == 1 && http_text_is(text, "a b\xc3\xa9"));
        arguments_close(&a);
        begin("", "");
        ck_assert_int_eq(
            in_body ? arguments_of_json(&a, &x, names, NULL) : arguments_of_query(&a, &x, names, NULL), 0);
        ck_assert_int_eq(read_all(&n, &r, &flag, &word, &text), 0); /* absent: all stay */
        ck_assert(n == -3 && r == 0.5 && flag && word == 1);
        arguments_close(&a);
    }
}
END_TEST

static const struct {
    const char *query, *body, *wants;
} wrong[] = {
    {"n=6", "{\"n\":6}", "n: wants an integer in -5..5"},
    {"n=1.0", "{\"n\":1.5}", "n: wants an integer in -5..5"},
    {"n=0x1", "{\"n\":\"1\"}", "n: wants an integer in -5..5"},
    {"n=-", "{\"n\":null}", "n: wants an integer in -5..5"},
    {"n=%201", "{\"n\":[]}", "n: wants an integer in -5..5"},
    {"n=99999999999999999999", "{\"n\":99999999999999999999}", "n: wants an integer in -5..5"},
    {"r=2", "{\"r\":2}", "r: wants a number in 0..1"},
    {"r=nan", "{\"r\":\"nan\"}", "r: wants a number in 0..1"},
    {"r=0.5x", "{\"r\":true}", "r: wants a number in 0..1"},
    {"word=four", "{\"word\":\"four\"}", "word: wants one, two or three"},
    {"word=", "{\"word\":1}", "word: wants one, two or three"},
    {"text=123456789", "{\"text\":\"123456789\"}", "text: wants a string of at most 8 bytes"},
};

/* A range of one value (bug: "wants an integer in 0..0"). */
START_TEST(one_value_is_no_range)
{
    int64_t n = 0;
    begin("", "{\"n\":1}");
    ck_assert_int_eq(arguments_of_json(&a, &x, names, NULL), 0);
    ck_assert_int_eq(arguments_integer(&a, "n", 0, 0, &n), ATTND_INVALID);
    ck_assert_str_eq(detail(), "/n: wants 0");
    arguments_close(&a);
}
END_TEST

START_TEST(refuses_both_alike)
{
    for (int in_body = 0; in_body < 2; in_body++) {
        int64_t n;
        double r;
        bool flag;
        unsigned word;
        struct http_text text;
        char wanted[128];
        begin(in_body ? "" : wrong[_i].query, in_body ? wrong[_i].body : "");
        ck_assert_int_eq(
            in_body ? arguments_of_json(&a, &x, names, NULL) : arguments_of_query(&a, &x, names, NULL), 0);
        ck_assert_int_eq(read_all(&n, &r, &flag, &word, &text), ATTND_INVALID);
        snprintf(wanted, sizeof wanted, "%s%s", in_body ? "/" : "parameter ", wrong[_i].wants);
        ck_assert_str_eq(detail(), wanted);
        arguments_close(&a);
    }
}
END_TEST

START_TEST(tells_where_a_parameter_belongs)
{
    begin("n=1", "{}");
    ck_assert_int_eq(arguments_of_json(&a, &x, names, elsewhere), ATTND_INVALID);
    ck_assert_str_eq(detail(), "parameter n: belongs in the body");
    begin("z=1", "{}");
    ck_assert_int_eq(arguments_of_json(&a, &x, names, elsewhere), ATTND_INVALID);
    ck_assert_str_eq(detail(), "parameter z: this request takes no parameters");
    begin("", "{\"z\":1}");
    ck_assert_int_eq(arguments_of_json(&a, &x, names, elsewhere), ATTND_INVALID);
    ck_assert_str_eq(detail(), "/z: there is no such member");
    arguments_close(&a);
    begin("", "[]");
    ck_assert_int_eq(arguments_of_json(&a, &x, names, elsewhere), ATTND_INVALID);
    ck_assert_str_eq(detail(), "/: the body is one JSON object");
    arguments_close(&a);
}
END_TEST

/* Whatever a query is, its pieces stay within their room. */
START_TEST(random_queries_are_harmless)
{
    static const char bytes[] = "nrtextwodflag=&&==%%0123456789abcdefEF+ ";
    char query[HTTP_URL_BYTES_MAX + 1];
    srand(1);
    for (int round = 0; round < 20000; round++) {
        size_t n = (size_t)rand() % (round % 100 ? 40 : HTTP_URL_BYTES_MAX);
        for (size_t i = 0; i < n; i++)
            query[i] = bytes[(size_t)rand() % (sizeof bytes - 1)];
        query[n] = '\0';
        begin(query, "");
        if (arguments_of_query(&a, &x, names, elsewhere) != 0)
            continue;
        for (unsigned i = 0; i < a.count; i++)
            ck_assert_uint_eq(strlen(a.query[i].value.bytes), a.query[i].value.n);
    }
}
END_TEST

TCase *arguments_case(void)
{
    TCase *tc = tcase_create("arguments");
    tcase_add_loop_test(tc, takes_queries_apart, 0, sizeof queries / sizeof queries[0]);
    tcase_add_test(tc, reads_both_alike);
    tcase_add_loop_test(tc, refuses_both_alike, 0, sizeof wrong / sizeof wrong[0]);
    tcase_add_test(tc, one_value_is_no_range);
    tcase_add_test(tc, tells_where_a_parameter_belongs);
    tcase_add_test(tc, random_queries_are_harmless);
    return tc;
}
