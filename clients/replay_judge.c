/* SPDX-License-Identifier: Apache-2.0 */
/* replay_judge.c - see replay_judge.h.
 *
 * An answer that is another one is a difference, unless
 *
 *   it follows      from one that is named, or explained, before: the sequence is another one since
 *   time            a deadline has passed, or an idle timeout, in one of the two
 *   together        the recorded daemon had several calls at once, whose order it chose: who got the last blocks, and what was in the cache
 *   the pool        is larger here, and has what there was not
 *   keys            a request was refused since what it names is another key's, or by its quota; all go with one key here
 *   the cache       had rows of two calls with other numbers for the same tokens: which of them a sequence shares is not in the journal
 *
 * With a smaller pool, a call that finds no blocks is a difference, whatever was under way. */
#include "clients/replay_judge.h"
#include "clients/answer.h"
#include "clients/command.h"
#include "clients/tensors.h"
#include "clients/terminal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHO_BYTES = 128, TEXT_BYTES = 512 };

static const char *const reasons[REPLAY_REASONS] = {
    NULL,
    "follow from one before",
    "time: deadlines, idle timeouts",
    "the recorded daemon had several calls at once",
    "the pool is larger here",
    "requests of several keys go with one here",
    "rows of the prompt cache that the journal does not tell apart"};

static const char *const kinds[REPLAY_KINDS] = {"status", "lengths", "counts of blocks", "outputs",
                                                "no answer"};

/* ---- words ----------------------------------------------------------------------------------------- */

/* "record 17 (request 4, attend of sequence 7)" */
static const char *who(const struct replay_case *of, char text[WHO_BYTES])
{
    const cJSON *sequences = cJSON_GetObjectItem(of->request, "sequences");
    double id = answer_number(of->request, "id");
    const char *what = answer_text(of->request, "what");
    int others = cJSON_GetArraySize(sequences) - 1, n;
    bool lease = cJSON_IsTrue(cJSON_GetObjectItem(of->request, "of_leases"));
    if (id == 0 && others >= 0)
        id = answer_number(cJSON_GetArrayItem(sequences, 0), "id");
    n = snprintf(text, WHO_BYTES, "record %.0f (request %.0f, %s", answer_number(of->request, "record"),
                 answer_number(of->request, "request"), what);
    if (id > 0 && n < WHO_BYTES)
        n += snprintf(text + n, (size_t)(WHO_BYTES - n), " of %s %.0f",
                      strncmp(what, "workload", 8) == 0 ? "workload"
                      : lease                           ? "lease"
                                                        : "sequence",
                      id);
    if (others > 0 && n < WHO_BYTES)
        n += snprintf(text + n, (size_t)(WHO_BYTES - n), " and %d other%s", others, answer_plural(others));
    if (n < WHO_BYTES)
        snprintf(text + n, (size_t)(WHO_BYTES - n), ")");
    return text;
}

static void note_stray(struct replay_judge *j, const struct replay_case *of)
{
    j->strayed = true;
    replay_world_stray(j->world, of->request, of->answer);
}

static void count(struct replay_tally *tally, const struct replay_case *of)
{
    if (tally->n++ == 0)
        tally->first = (uint64_t)answer_number(of->request, "record");
}

/* A difference: the first one, or each, is said. */
static void __attribute__((format(printf, 5, 6)))
differ(struct replay_judge *j, const struct replay_case *of, enum replay_kind kind, unsigned target,
       const char *format, ...)
{
    char name[WHO_BYTES], text[TEXT_BYTES];
    va_list args;
    bool first = !replay_judge_differs(j);
    count(&j->differences[kind], of);
    if (kind != REPLAY_OUTPUTS)
        note_stray(j, of);
    if (!first && !j->shows_all)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("%sdiffers: %s: ", first && !j->shows_all ? "first one that " : "", who(of, name));
    terminal_put(stdout, text);
    if (j->targets > 1 && kind != REPLAY_OUTPUTS) {
        fputs(" at ", stdout);
        terminal_put(stdout, j->urls[target]);
    }
    putchar('\n');
    fflush(stdout);
}

static void explain(struct replay_judge *j, const struct replay_case *of, enum replay_reason reason,
                    const char *was, const char *is)
{
    char name[WHO_BYTES];
    count(&j->explained[reason], of);
    note_stray(j, of);
    if (!j->shows_all)
        return;
    printf("explained: %s: recorded %s, found ", who(of, name), was);
    terminal_put(stdout, is);
    printf(" (%s)\n", reasons[reason]);
}

void replay_judge_not_sent(struct replay_judge *j, const char *why)
{
    struct replay_cause *c = j->not_sent;
    while (c->why && c->why != why && c + 1 < j->not_sent + REPLAY_CAUSES)
        c++;
    c->why = why;
    c->n++;
}

static bool is_astray(const struct replay_judge *j, const struct replay_case *of)
{
    return of->astray || replay_world_is_astray(j->world, of->request);
}

/* ---- answers --------------------------------------------------------------------------------------- */

static bool is_one_of(const char *status, const char *const *list)
{
    while (*list && strcmp(status, *list) != 0)
        list++;
    return *list != NULL;
}

static bool is_of_time(const char *status)
{
    static const char *const list[] = {"deadline", "busy", "timeout", "gone", NULL};
    return is_one_of(status, list);
}

static bool is_of_room(const char *status)
{
    static const char *const list[] = {"blocks_exhausted", "host_blocks_exhausted", "sequences_exhausted",
                                       NULL};
    return is_one_of(status, list);
}

/* Whether the order of calls may have decided it. `cached`: it is about what was in the cache, which is another one only once blocks have
 * been evicted, or swapped out. */
static bool is_of_order(const struct replay_judge *j, const struct replay_case *of, bool cached)
{
    bool scarce = answer_number(of->answer, "evictions") > 0 || answer_number(of->answer, "swaps_out") > 0;
    return of->together || j->strayed || (j->together && (!cached || scarce));
}

static bool is_of_keys(const char *status)
{
    static const char *const list[] = {"not_found",      "exists",       "forbidden",
                                       "quota_exceeded", "unauthorized", NULL};
    return is_one_of(status, list);
}

static enum replay_reason reason_of_status(const struct replay_judge *j, const struct replay_case *of,
                                           const char *was, const char *is)
{
    bool was_ok = strcmp(was, "ok") == 0, is_ok = strcmp(is, "ok") == 0;
    if (is_astray(j, of))
        return REPLAY_FOLLOWS;
    if (is_of_time(was) || is_of_time(is))
        return REPLAY_TIME;
    if ((strcmp(is, "content_conflict") == 0 || strcmp(was, "content_conflict") == 0) &&
        replay_world_is_doubtful(j->world, of->request, j->strayed))
        return REPLAY_CACHED;
    if (is_of_keys(was) && is_ok && j->keys)
        return REPLAY_KEYS;
    if (is_of_room(was) && is_ok && j->larger)
        return REPLAY_LARGER;
    if (((is_of_room(was) && is_ok) || (is_of_room(is) && was_ok && !j->smaller)) &&
        is_of_order(j, of, false))
        return REPLAY_TOGETHER;
    return REPLAY_SAME;
}

/* How long sequences are, of an answer or of a result of a batch: false, and said or explained, when one has another length. */
static bool lengths_are_same(struct replay_judge *j, const struct replay_case *of, unsigned target,
                             const cJSON *was, const cJSON *here)
{
    const cJSON *is = cJSON_GetObjectItem(here, "sequences"), *one;
    const char *what = answer_text(of->request, "what");
    bool looked_up = strcmp(what, "create") == 0 || strcmp(what, "batch") == 0;
    char expects[32], finds[32];
    int at = 0;
    cJSON_ArrayForEach (one, was) {
        const cJSON *other = cJSON_IsArray(is) ? cJSON_GetArrayItem(is, at++) : here;
        const cJSON *length = cJSON_GetObjectItem(other, "length");
        double expected = answer_number(one, "length");
        if (!cJSON_IsNumber(length) || length->valuedouble == expected)
            continue;
        snprintf(expects, sizeof expects, "%.0f tokens", expected);
        snprintf(finds, sizeof finds, "%.0f", length->valuedouble);
        if (is_astray(j, of))
            explain(j, of, REPLAY_FOLLOWS, expects, finds);
        else if (looked_up && is_of_order(j, of, true))
            explain(j, of, REPLAY_TOGETHER, expects, finds);
        else
            differ(j, of, REPLAY_LENGTH, target, "%s of sequence %.0f: recorded %.0f, found %.0f",
                   looked_up ? "cached tokens" : "length", answer_number(one, "id"), expected,
                   length->valuedouble);
        return false;
    }
    return true;
}

static void compare_lengths(struct replay_judge *j, const struct replay_case *of, unsigned target,
                            const cJSON *here)
{
    const cJSON *result, *results = cJSON_GetObjectItem(here, "results");
    bool same = lengths_are_same(j, of, target, cJSON_GetObjectItem(of->answer, "sequences"), here);
    int at = 0;
    cJSON_ArrayForEach (result, cJSON_GetObjectItem(of->answer, "results")) {
        same = same && lengths_are_same(j, of, target, cJSON_GetObjectItem(result, "sequences"),
                                        cJSON_GetArrayItem(results, at++));
    }
    j->same += same;
}

/* How a workload has ended. */
static void compare_workload(struct replay_judge *j, const struct replay_case *of, unsigned target,
                             const cJSON *here)
{
    const char *was = answer_text(of->answer, "state"), *is = answer_text(here, "state");
    double done = answer_number(here, "tokens.done"), expected = answer_number(of->answer, "tokens_done");
    bool same = strcmp(was, is) == 0;
    if (strcmp(was, "running") == 0 || strcmp(was, "verifying") == 0 ||
        (same && (strcmp(was, "cancelled") == 0 || done == expected)))
        j->same++;
    else if (!same && (strcmp(was, "cancelled") == 0 || strcmp(is, "cancelled") == 0))
        explain(j, of, REPLAY_TIME, was, is);
    else if (!same)
        differ(j, of, REPLAY_STATUS, target, "state: recorded %s, found %s", was, is);
    else
        differ(j, of, REPLAY_LENGTH, target, "tokens decoded: recorded %.0f, found %.0f", expected, done);
}

/* The last line of a stream, else all of an answer, if it is JSON. */
static cJSON *parse(const struct http_reply *reply)
{
    size_t n = reply->bytes;
    if (!reply->text)
        return NULL;
    while (n > 0 && reply->text[n - 1] == '\n')
        n--;
    size_t from = n;
    while (from > 0 && reply->text[from - 1] != '\n')
        from--;
    if (n > 0 && reply->text[0] != '{' && reply->text[0] != '[')
        return NULL;
    cJSON *tree = cJSON_ParseWithLength(reply->text + from, n - from);
    return tree ? tree : cJSON_ParseWithLength(reply->text, n);
}

bool replay_judge_answer(struct replay_judge *j, const struct replay_case *of, unsigned target,
                         const struct http_reply *reply, cJSON **here)
{
    bool done = reply->status >= 200 && reply->status < 300;
    const char *what = answer_text(of->request, "what"), *was = answer_text(of->answer, "status");
    *here = parse(reply);
    const char *code = answer_text(*here, "code"), *is = done    ? "ok"
                                                         : *code ? code
                                                                 : "a status without a code";
    j->answers++;
    if (strcmp(was, is) != 0) {
        enum replay_reason reason = reason_of_status(j, of, was, is);
        const char *detail = answer_text(*here, "detail");
        if (reason != REPLAY_SAME)
            explain(j, of, reason, was, is);
        else
            differ(j, of, REPLAY_STATUS, target, "status: recorded %s, found %s%s%s%s", was, is,
                   *detail ? " (" : "", detail, *detail ? ")" : "");
        return done &&
               (strcmp(what, "create") == 0 || strcmp(what, "fork") == 0 || strcmp(what, "lease") == 0);
    }
    if (done && strncmp(what, "workload", 8) == 0 && strcmp(what, "workloads") != 0)
        compare_workload(j, of, target, *here);
    else if (done)
        compare_lengths(j, of, target, *here);
    else
        j->same++;
    return false;
}

void replay_judge_late(struct replay_judge *j, const struct replay_case *of, unsigned target, double seconds)
{
    if (is_astray(j, of))
        explain(j, of, REPLAY_FOLLOWS, answer_text(of->answer, "status"), "no answer");
    else
        differ(j, of, REPLAY_NONE, target,
               "recorded %s, before what comes next; here it still waits after %.0f s",
               answer_text(of->answer, "status"), seconds);
}

/* ---- outputs --------------------------------------------------------------------------------------- */

/* Two elements, in words. */
static void show_elements(const struct tensor *x, const struct tensor *y, size_t at, size_t wide,
                          char text[TEXT_BYTES])
{
    if (wide == 1)
        snprintf(text, TEXT_BYTES, "%s, element %zu: 0x%02x beside 0x%02x", x->name, at,
                 (unsigned char)x->data[at], (unsigned char)y->data[at]);
    else
        snprintf(text, TEXT_BYTES, "%s, element %zu: %.9g beside %.9g", x->name, at, tensors_value(x, at),
                 tensors_value(y, at));
}

/* Whether two tensors of one shape are the same; else `text` names the first place where they are not. With a tolerance only values beyond it
 * count, and *largest is of those within. */
static bool tensor_is_same(const struct tensor *x, const struct tensor *y, double tolerance, double *largest,
                           char text[TEXT_BYTES])
{
    uint64_t elements = 1;
    for (unsigned r = 0; r < x->rank; r++)
        elements *= x->shape[r];
    size_t wide = x->bytes / (elements ? elements : 1);
    for (size_t at = 0; at < elements; at++) {
        if (memcmp(x->data + at * wide, y->data + at * wide, wide) == 0)
            continue;
        double apart = wide == 1 ? HUGE_VAL : fabs(tensors_value(x, at) - tensors_value(y, at));
        if (!(apart <= tolerance)) { /* NaN is beyond it, too */
            show_elements(x, y, at, wide, text);
            return false;
        }
        *largest = apart > *largest ? apart : *largest;
    }
    return true;
}

/* The first place where two bodies differ, in words; true: there is none. */
static bool bodies_are_same(const struct tensors *a, const struct tensors *b, double tolerance,
                            double *largest, char text[TEXT_BYTES])
{
    bool same = a->count == b->count;
    snprintf(text, TEXT_BYTES, "%zu tensors beside %zu", a->count, b->count);
    for (size_t i = 0; same && i < a->count; i++) {
        const struct tensor *x = &a->list[i], *y = tensors_find(b, x->name);
        same = y && x->bytes == y->bytes && strcmp(x->dtype, y->dtype) == 0;
        if (!same)
            snprintf(text, TEXT_BYTES, "%s: %zu bytes beside %zu", x->name, x->bytes, y ? y->bytes : 0);
        else if (memcmp(x->data, y->data, x->bytes) != 0)
            same = tensor_is_same(x, y, tolerance, largest, text);
    }
    return same;
}

void replay_judge_outputs(struct replay_judge *j, const struct replay_case *of,
                          const struct http_reply replies[REPLAY_TARGETS])
{
    struct tensors a, b;
    cJSON *metadata[REPLAY_TARGETS] = {NULL, NULL}, *reports[REPLAY_TARGETS] = {NULL, NULL};
    char text[TEXT_BYTES] = "";
    bool found = false, compared = false;
    for (unsigned i = 0; i < REPLAY_TARGETS; i++) {
        if (replies[i].status != 200)
            return;
    }
    if (is_astray(j, of)) {
        j->outputs_left++;
        return;
    }
    if (tensors_read(replies[0].text, replies[0].bytes, &a, &metadata[0]) &&
        tensors_read(replies[1].text, replies[1].bytes, &b, &metadata[1])) {
        double largest = 0;
        compared = true;
        found = !bodies_are_same(&a, &b, j->tolerance, &largest, text);
        j->rounded += !found && largest > 0;
        j->largest = largest > j->largest ? largest : j->largest;
    } else if (j->tolerance == 0 && strcmp(answer_text(of->answer, "state"), "finished") == 0) {
        for (unsigned i = 0; i < REPLAY_TARGETS; i++)
            reports[i] = parse(&replies[i]);
        compared = strcmp(answer_text(reports[0], "state"), answer_text(reports[1], "state")) == 0 &&
                   answer_text(reports[0], "digest")[0];
        found = compared && strcmp(answer_text(reports[0], "digest"), answer_text(reports[1], "digest")) != 0;
        snprintf(text, sizeof text, "digest of the workload's outputs: %s beside %s",
                 answer_text(reports[0], "digest"), answer_text(reports[1], "digest"));
    }
    j->outputs += compared;
    if (found)
        differ(j, of, REPLAY_OUTPUTS, 0, "outputs: %s", text);
    for (unsigned i = 0; i < REPLAY_TARGETS; i++) {
        cJSON_Delete(metadata[i]);
        cJSON_Delete(reports[i]);
    }
}

/* ---- counts ---------------------------------------------------------------------------------------- */

void replay_judge_counts(struct replay_judge *j, const struct replay_case *of, unsigned target,
                         const cJSON *stats)
{
    static const struct {
        const char *was, *is, *text;
        bool of_sharing;
    } counts[] = {{"logical_tokens", "pool.tokens_logical", "tokens of all sequences", false},
                  {"held_blocks", "pool.held", "held blocks", true},
                  {"shared_blocks", "pool.shared", "shared blocks", true},
                  {"leased_blocks", "pool.leased", "leased blocks", false}};
    /* What was swapped out when is a matter of who was idle, and of how much was cached. Where several calls decided it, or the pool is
     * larger, so is what is shared from then on: a sequence comes back with blocks of its own, beside those that stayed in the cache. What
     * was found in the cache once decides what is found later. */
    bool swapped =
        answer_number(of->answer, "swapped_rows") > 0 || answer_number(stats, "scheduler.swapped") > 0;
    bool swaps = answer_number(of->answer, "swaps_out") > 0 || answer_number(stats, "counters.swaps_out") > 0;
    bool shares_alike = !swapped && !j->strayed && !(swaps && (j->together || j->larger));
    bool countable = !j->uncountable && !j->world->astray && !j->differences[REPLAY_COUNTS].n;
    j->counts += countable && shares_alike;
    j->counts_left += !countable || !shares_alike;
    for (size_t i = 0; countable && i < sizeof counts / sizeof counts[0]; i++) {
        double was = answer_number(of->answer, counts[i].was), is = answer_number(stats, counts[i].is);
        if (was == is || (counts[i].of_sharing && !shares_alike))
            continue;
        differ(j, of, REPLAY_COUNTS, target, "%s after it: recorded %.0f, found %.0f", counts[i].text, was,
               is);
        return;
    }
}

/* ---- the summary ----------------------------------------------------------------------------------- */

bool replay_judge_differs(const struct replay_judge *j)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < REPLAY_KINDS; i++)
        n += j->differences[i].n;
    return n > 0;
}

static void show_tally(const char *name, const struct replay_tally *tally)
{
    if (tally->n)
        printf("    %8" PRIu64 "  %s (the first: record %" PRIu64 ")\n", tally->n, name, tally->first);
}

void replay_judge_show(const struct replay_judge *j)
{
    uint64_t differences = 0, explained = 0;
    for (unsigned i = 0; i < REPLAY_KINDS; i++)
        differences += j->differences[i].n;
    for (unsigned i = 0; i < REPLAY_REASONS; i++)
        explained += j->explained[i].n;
    command_row("requests", "%" PRIu64 ", of which %" PRIu64 " were sent", j->requests, j->sent);
    for (unsigned i = 0; i < REPLAY_CAUSES && j->not_sent[i].why; i++)
        printf("    %8" PRIu64 "  not sent: %s\n", j->not_sent[i].n, j->not_sent[i].why);
    command_row("answers", "%" PRIu64 " compared, %" PRIu64 " the same", j->answers, j->same);
    command_row("counts of blocks", "%" PRIu64 " times compared, %" PRIu64 " times not", j->counts,
                j->counts_left);
    if (j->targets > 1)
        command_row("outputs", "%" PRIu64 " compared%s, %" PRIu64 " not", j->outputs,
                    j->tolerance > 0 ? "" : " bit by bit", j->outputs_left);
    if (j->rounded)
        printf("    %8" PRIu64 "  have other bits, by %.3g at most\n", j->rounded, j->largest);
    command_row("explained", "%" PRIu64, explained);
    for (unsigned i = 0; i < REPLAY_REASONS; i++)
        show_tally(reasons[i], &j->explained[i]);
    command_row("differences", "%" PRIu64, differences);
    for (unsigned i = 0; i < REPLAY_KINDS; i++)
        show_tally(kinds[i], &j->differences[i]);
}
