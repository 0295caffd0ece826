/* SPDX-License-Identifier: Apache-2.0 */
/* test_log.c - formats of lines, what clients may not do to them, and a log that nobody reads. */
#include "config/log.h"
#include "tests/unit/suites.h"

#include <cjson/cJSON.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int kept, ends[2]; /* stderr as it was, and a pipe in its place */

static void begin(void)
{
    kept = dup(STDERR_FILENO);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
}

static void end(void)
{
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[0]);
    close(ends[1]);
    log_init(LOG_ERROR, LOG_TEXT);
}

/* What was logged, as one text. */
static const char *logged(void)
{
    static char text[8192];
    ssize_t n = read(ends[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

START_TEST(text_has_a_line_an_event)
{
    log_init(LOG_INFO, LOG_TEXT);
    log_line(LOG_DEBUG, "not this");
    log_line(LOG_INFO, "%s\nand \x1b[31mred", "one");
    const char *line = logged();
    ck_assert_msg(strncmp(line, "attnd: 20", 9) == 0 && strstr(line, "Z info one?and ?[31mred\n"), "%s",
                  line);
    log_request(LOG_WARNING, 1, &(struct log_about){.id = "abc"}, "refused");
    line = logged();
    ck_assert_msg(strstr(line, "Z warning refused (request abc)\n") != NULL, "%s", line);
}
END_TEST

START_TEST(json_is_json_whatever_is_said)
{
    char long_text[3000];
    log_init(LOG_INFO, LOG_JSON);
    memset(long_text, '"', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    const char *const messages[] = {"plain", "a \"quote\" and a \\ and a\nline", "\xff\xfe", long_text};
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        log_request(LOG_ERROR, 2, &(struct log_about){.id = "id-1"}, "%s", messages[i]);
        const char *line = logged();
        ck_assert_uint_lt(strlen(line), 1025);
        ck_assert_int_eq(line[strlen(line) - 1], '\n');
        cJSON *tree = cJSON_Parse(line);
        ck_assert_msg(tree != NULL, "%s", line);
        ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "level")), "error");
        ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "request")), "id-1");
        ck_assert_ptr_nonnull(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "msg")));
        cJSON_Delete(tree);
    }
}
END_TEST

START_TEST(logfmt_has_names_and_values)
{
    log_init(LOG_INFO, LOG_LOGFMT);
    log_request(LOG_INFO, 3, &(struct log_about){.id = "x"}, "say \"hi\"");
    const char *line = logged();
    ck_assert_msg(strncmp(line, "time=20", 7) == 0 &&
                      strstr(line, "Z level=info request=x msg=\"say \\\"hi\\\"\"\n"),
                  "%s", line);
}
END_TEST

START_TEST(what_a_line_is_about_are_members)
{
    const struct log_about about = {.id = "x",
                                    .method = "GET",
                                    .path = "/a\"b\nrest",
                                    .path_bytes = 5,
                                    .key = "alice",
                                    .status = 429,
                                    .code = "quota_exceeded",
                                    .route = "/a/{id}",
                                    .timed = true,
                                    .ms = 0.0625,
                                    .bytes = 5000000000,
                                    .subject = {{90, 7}, 2, false}};
    log_init(LOG_INFO, LOG_LOGFMT);
    log_request(LOG_INFO, 7, &about, "refused");
    ck_assert_ptr_nonnull(strstr(
        logged(), " request=x method=\"GET\" path=\"/a\\\"b?\" route=\"/a/{id}\" key=\"alice\" status=429 "
                  "code=\"quota_exceeded\" ms=0.062 bytes=5000000000 sequence_ids=90,7 msg=\"refused\"\n"));
    log_init(LOG_INFO, LOG_JSON);
    log_request(LOG_INFO, 7, &about, "refused");
    cJSON *tree = cJSON_Parse(logged());
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "path")), "/a\"b?");
    ck_assert(cJSON_GetNumberValue(cJSON_GetObjectItem(tree, "status")) == 429);
    ck_assert(cJSON_GetNumberValue(cJSON_GetObjectItem(tree, "ms")) == 0.062);
    ck_assert(cJSON_GetNumberValue(cJSON_GetObjectItem(tree, "bytes")) == 5e9);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "route")), "/a/{id}");
    ck_assert_ptr_null(cJSON_GetObjectItem(tree, "client"));
    cJSON_Delete(tree);
    log_init(LOG_INFO, LOG_TEXT);
    log_request(LOG_INFO, 7, &about, "refused");
    ck_assert_ptr_nonnull(strstr(logged(), " info refused (request x)\n"));
}
END_TEST

/* Bug: on journald JSON had no priority, so `journalctl -p warning` showed nothing of it. */
START_TEST(journald_has_the_priority_in_each_format)
{
    char stream[64];
    struct stat is;
    ck_assert_int_eq(fstat(STDERR_FILENO, &is), 0);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)is.st_dev,
             (unsigned long long)is.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_init(LOG_INFO, LOG_TEXT);
    log_line(LOG_WARNING, "that");
    ck_assert_str_eq(logged(), "<4>that\n");
    log_init(LOG_INFO, LOG_LOGFMT);
    log_line(LOG_ERROR, "that");
    ck_assert_msg(strncmp(logged(), "<3>time=", 8) == 0, "logfmt");
    log_init(LOG_INFO, LOG_JSON);
    log_line(LOG_INFO, "that");
    ck_assert_msg(strncmp(logged(), "<6>{\"time\":", 11) == 0, "JSON");
    unsetenv("JOURNAL_STREAM");
}
END_TEST

START_TEST(events_have_a_name)
{
    log_init(LOG_INFO, LOG_LOGFMT);
    log_event(LOG_DEBUG, "no", NULL, "not this");
    log_event(LOG_INFO, "saved", LOG_NUMBERS({"sequences", 5}, {"ms", 0.25}, {"of", 9007199254740991}),
              "saved: %d", 5);
    ck_assert_ptr_nonnull(strstr(
        logged(), "Z level=info event=saved sequences=5 ms=0.250 of=9007199254740991 msg=\"saved: 5\"\n"));
    log_end(LOG_INFO, 0, "asked to end", "stopped");
    ck_assert_ptr_nonnull(
        strstr(logged(), " event=stopped exit_code=0 reason=\"asked to end\" msg=\"stopped\"\n"));
    log_line(LOG_INFO, "plain");
    ck_assert_ptr_nonnull(strstr(logged(), " level=info msg=\"plain\"\n"));
    log_init(LOG_INFO, LOG_JSON);
    log_end(LOG_WARNING, 1, "it has failed", "stopped");
    cJSON *tree = cJSON_Parse(logged());
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "event")), "stopped");
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(tree, "reason")), "it has failed");
    ck_assert(cJSON_GetNumberValue(cJSON_GetObjectItem(tree, "exit_code")) == 1);
    cJSON_Delete(tree);
    log_init(LOG_INFO, LOG_TEXT);
    log_event(LOG_INFO, "saved", NULL, "saved: 5");
    const char *line = logged();
    ck_assert_msg(strstr(line, "Z info saved: 5\n") && line[strlen("attnd: 2026-11-21T05:16:29")] == '.',
                  "%s", line);
}
END_TEST

/* Lines of 500 requests of a kind at a level. */
static unsigned lines_of(enum log_level level, unsigned kind)
{
    static char all[65536];
    unsigned lines = 0;
    log_init(level, LOG_TEXT);
    for (int i = 0; i < 500; i++)
        log_request(LOG_INFO, kind, &(struct log_about){.id = "x"}, "again");
    ssize_t n = read(ends[0], all, sizeof all);
    for (ssize_t i = 0; i < n; i++)
        lines += all[i] == '\n';
    return lines;
}

START_TEST(answers_have_a_budget_of_their_own)
{
    ck_assert_uint_lt(lines_of(LOG_INFO, 5), 500);
    ck_assert_uint_eq(lines_of(LOG_INFO, LOG_ANSWERED), 500);
    ck_assert_uint_eq(lines_of(LOG_DEBUG, 5), 500); /* all, at debug */
}
END_TEST

START_TEST(a_long_text_keeps_its_request)
{
    char long_text[3000];
    log_init(LOG_INFO, LOG_TEXT);
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    log_request(LOG_INFO, 4, &(struct log_about){.id = "the-id"}, "%s", long_text);
    const char *line = logged();
    ck_assert_msg(strstr(line, "xxx (request the-id)\n") != NULL, "%s", line);
}
END_TEST

START_TEST(a_kind_has_so_many_lines_a_second)
{
    char all[65536];
    unsigned lines = 0;
    log_init(LOG_INFO, LOG_TEXT);
    for (int i = 0; i < 200; i++)
        log_request(LOG_INFO, 5, &(struct log_about){.id = "x"}, "again");
    ssize_t n = read(ends[0], all, sizeof all);
    for (ssize_t i = 0; i < n; i++)
        lines += all[i] == '\n';
    ck_assert_uint_ge(lines, LOG_KIND_PER_S);
    ck_assert_uint_lt(lines, 200); /* more than one second's, on a slow machine */
    log_request(LOG_INFO, 6, &(struct log_about){.id = "x"}, "another kind");
    ck_assert_msg(strstr(logged(), "another kind") != NULL, "it has its own");
}
END_TEST

/* A pipe that is full: nobody waits, and what was lost is said when somebody reads. */
START_TEST(nobody_waits_for_who_does_not_read)
{
    static char rest[1 << 20];
    size_t n = 0;
    log_init(LOG_INFO, LOG_TEXT);
    fcntl(ends[1], F_SETPIPE_SZ, 4096);
    log_start();
    for (int i = 0; i < 5000; i++)
        log_line(LOG_INFO, "line %d", i);
    uint64_t dropped = log_dropped();
    ck_assert_uint_gt(dropped, 1000);
    log_stop(10); /* it gives up waiting */
    log_line(LOG_INFO, "still nobody waits");
    while (n < sizeof rest - 1 &&
           !strstr(rest, " of the log were dropped: nobody read it, or it could not be written\n") &&
           !strstr(rest, " 1 line of the log was dropped: ")) {
        ssize_t got = read(ends[0], rest + n, sizeof rest - 1 - n);
        n += got > 0 ? (size_t)got : 0;
        rest[n] = '\0';
    }
    ck_assert_ptr_nonnull(strstr(rest, "line 0\n"));
    ck_assert_ptr_null(strstr(rest, "line 4999\n"));
}
END_TEST

/* A full disk (bug: nobody knew of the lines that were lost, and the next one began in the middle of a torn one). */
START_TEST(lines_that_cannot_be_written_are_counted)
{
    char text[1024] = "";
    FILE *file = tmpfile();
    struct rlimit old, few;
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    few = old;
    few.rlim_cur = 10;
    signal(SIGXFSZ, SIG_IGN);
    dup2(fileno(file), STDERR_FILENO);
    log_init(LOG_INFO, LOG_TEXT);
    uint64_t before = log_dropped();
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &few), 0);
    log_line(LOG_INFO, "torn");
    log_line(LOG_INFO, "lost");
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_uint_eq(log_dropped() - before, 2);
    log_line(LOG_INFO, "whole");
    log_start();
    log_stop(1000);
    ck_assert_int_gt(pread(fileno(file), text, sizeof text - 1, 0), 0);
    ck_assert_msg(strncmp(text, "attnd: 202\nattnd: 202", 21) == 0, "%s", text);
    ck_assert_ptr_nonnull(strstr(text, " info whole\nattnd: "));
    ck_assert_ptr_nonnull(strstr(text, "Z warning 2 lines of the log were dropped: "));
    ck_assert_ptr_null(strstr(text, "lost\n"));
    ck_assert_uint_eq(log_dropped() - before, 2);
    fclose(file);
}
END_TEST

static void keep_message(enum log_level level, const char *message, void *cookie)
{
    snprintf(cookie, 64, "%d %s", level, message);
}

START_TEST(a_sink_has_messages_alone)
{
    char kept_message[64] = "";
    log_to(keep_message, kept_message);
    log_init(LOG_INFO, LOG_JSON);
    log_line(LOG_DEBUG, "too little");
    ck_assert_str_eq(kept_message, "");
    log_line(LOG_WARNING, "%d words", 2);
    ck_assert_str_eq(kept_message, "1 2 words");
    log_to(NULL, NULL);
    log_line(LOG_ERROR, "for nobody");
    ck_assert_str_eq(kept_message, "1 2 words");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ck_assert_str_eq(logged(), "");
}
END_TEST

TCase *log_case(void)
{
    TCase *tc = tcase_create("log");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_test(tc, text_has_a_line_an_event);
    tcase_add_test(tc, json_is_json_whatever_is_said);
    tcase_add_test(tc, logfmt_has_names_and_values);
    tcase_add_test(tc, what_a_line_is_about_are_members);
    tcase_add_test(tc, journald_has_the_priority_in_each_format);
    tcase_add_test(tc, events_have_a_name);
    tcase_add_test(tc, answers_have_a_budget_of_their_own);
    tcase_add_test(tc, a_long_text_keeps_its_request);
    tcase_add_test(tc, a_kind_has_so_many_lines_a_second);
    tcase_add_test(tc, nobody_waits_for_who_does_not_read);
    tcase_add_test(tc, lines_that_cannot_be_written_are_counted);
    tcase_add_test(tc, a_sink_has_messages_alone); /* last: it stays, in its process */
    return tc;
}
