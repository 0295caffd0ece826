/* SPDX-License-Identifier: Apache-2.0 */
/* diff.c - attnctl diff A B: two journals beside each other.
 *
 *     A    request 1   step 1   retired 1   answer 1   request 2 ...
 *     B    request 1   step 1   retired 1   answer 1   request 2 ...
 *            ^ the same?  ^ ...                       up to the first record that differs
 *
 * Compared are what was asked and what was decided, in order, with every id and count; not times, which are never the same, nor numbers of
 * connections. Ids of tokens and salts are hashed with a key of each run, so of those only how many there are. From the first
 * difference on both are read to their ends for the figures, and answers are set beside each other by the order of their requests. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/journal_lines.h"
#include "clients/memory.h"
#include "clients/terminal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { EXIT_UNREADABLE = 2, STATUSES = 48, STATUS_BYTES = 32, VALUE_BYTES = 96 };

/* What stays of an answer. */
struct answered {
    uint64_t what, status, values; /* hashes; 0: there is no such request, or no answer */
};

struct side {
    const char *name; /* "A" or "B" */
    struct journal_lines lines;
    cJSON *begin, *record;    /* record: the decision at hand; NULL: there are no more */
    struct answered *answers; /* [room] by number of request */
    size_t room;
    double *step_us; /* [steps_done] */
    size_t steps_done, steps_room;
    struct status {
        char name[STATUS_BYTES];
        uint64_t n;
    } statuses[STATUSES];
    uint64_t decisions, requests, answer_count, steps, client_rows, workload_rows, copies;
    double held_most, shared_most, free_least;
    bool closed, whole; /* read to its end; and that was its end */
    cJSON *last;        /* the latest effect, whose counters are those of the end */
};

static bool is(const cJSON *record, const char *kind)
{
    return strcmp(answer_text(record, "kind"), kind) == 0;
}

/* ---- records --------------------------------------------------------------------------------------- */

static bool is_one_of(const char *name, const char *const *list)
{
    while (*list && strcmp(name, *list) != 0)
        list++;
    return *list != NULL;
}

/* Leave out of a tree what two runs never have in common. */
static void neutralize(cJSON *tree, bool plain_ids)
{
    static const char *const others[] = {"record", "file", "offset", "connection", "submitted_s", NULL};
    static const char *const hashed[] = {"tokens", "token_ids", "salt", NULL};
    cJSON *item = tree->child;
    while (item) {
        cJSON *next = item->next;
        const char *name = item->string;
        if (name && is_one_of(name, others)) {
            cJSON_Delete(cJSON_DetachItemViaPointer(tree, item));
        } else if (name && !(plain_ids && strcmp(name, "salt") != 0) && is_one_of(name, hashed)) {
            int n = cJSON_IsString(item) ? 1 : cJSON_GetArraySize(item);
            cJSON_ReplaceItemInObjectCaseSensitive(tree, name, memory_must(cJSON_CreateNumber(n)));
        } else {
            neutralize(item, plain_ids);
        }
        item = next;
    }
}

/* XXH3-64, never 0. */
static uint64_t hash(const char *text)
{
    uint64_t x = XXH3_64bits(text, strlen(text));
    return x ? x : 1;
}

/* What an answer says, without the counts of the pool. */
static uint64_t hash_values(const cJSON *answer)
{
    static const char *const values[] = {"sequences", "block_ids",   "results", "dropped",
                                         "state",     "tokens_done", NULL};
    uint64_t x = 1;
    for (size_t i = 0; values[i]; i++) {
        char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(answer, values[i]));
        x = x * 31 + hash(text ? text : "");
        free(text);
    }
    return x ? x : 1;
}

static struct answered *answered(struct side *s, uint64_t number)
{
    if (number >= s->room) {
        size_t room = 2 * (size_t)number + 64;
        s->answers = memory_must(realloc(s->answers, room * sizeof *s->answers));
        memset(s->answers + s->room, 0, (room - s->room) * sizeof *s->answers);
        s->room = room;
    }
    return &s->answers[number];
}

static void count_status(struct side *s, const char *status)
{
    struct status *at = s->statuses;
    while (at->n && strcmp(at->name, status) != 0 && at + 1 < s->statuses + STATUSES)
        at++;
    snprintf(at->name, sizeof at->name, "%s", status);
    at->n++;
}

/* Take a record into the figures. */
static void note(struct side *s, const cJSON *record)
{
    uint64_t number = (uint64_t)answer_number(record, "request");
    if (is(record, "step done")) {
        if (s->steps_done == s->steps_room) {
            s->steps_room = 2 * s->steps_room + 64;
            s->step_us = memory_must(realloc(s->step_us, s->steps_room * sizeof *s->step_us));
        }
        s->step_us[s->steps_done++] = answer_number(record, "busy_us");
    } else if (is(record, "request")) {
        s->requests++;
        answered(s, number)->what = hash(answer_text(record, "what"));
    } else if (is(record, "answer")) {
        s->answer_count++;
        count_status(s, answer_text(record, "status"));
        answered(s, number)->status = hash(answer_text(record, "status"));
        answered(s, number)->values = hash_values(record);
    } else if (is(record, "step submitted")) {
        s->steps++;
        s->client_rows += (uint64_t)answer_number(record, "rows_of_clients");
        s->workload_rows += (uint64_t)answer_number(record, "rows_of_workloads");
        s->copies += (uint64_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(record, "copies"));
    }
    if (cJSON_GetObjectItemCaseSensitive(record, "held_blocks")) {
        double held = answer_number(record, "held_blocks"), shared = answer_number(record, "shared_blocks"),
               free_blocks = answer_number(record, "free_blocks");
        s->held_most = held > s->held_most ? held : s->held_most;
        s->shared_most = shared > s->shared_most ? shared : s->shared_most;
        s->free_least = free_blocks < s->free_least ? free_blocks : s->free_least;
    }
}

/* No more is read of it. */
static void close_lines(struct side *s)
{
    if (!s->closed)
        s->whole = journal_lines_close(&s->lines);
    s->closed = true;
}

/* Go on to the next record that is asked or decided. */
static void next_decision(struct side *s)
{
    if (s->record && cJSON_GetObjectItemCaseSensitive(s->record, "held_blocks")) {
        cJSON_Delete(s->last);
        s->last = s->record;
    } else {
        cJSON_Delete(s->record);
    }
    for (;;) {
        s->record = s->closed ? NULL : journal_lines_next(&s->lines);
        if (!s->record) {
            close_lines(s);
            return;
        }
        note(s, s->record);
        if (is(s->record, "request") || is(s->record, "answer") || is(s->record, "step submitted") ||
            is(s->record, "step retired"))
            break;
        cJSON_Delete(s->record);
    }
    s->decisions++;
}

/* ---- the first difference -------------------------------------------------------------------------- */

static const char *value_text(const cJSON *item, char text[VALUE_BYTES])
{
    char *printed = item ? cJSON_PrintUnformatted(item) : NULL;
    snprintf(text, VALUE_BYTES, "%s", printed ? printed : "nothing");
    if (printed && strlen(printed) >= VALUE_BYTES)
        memcpy(text + VALUE_BYTES - 4, "...", 4);
    free(printed);
    return text;
}

/* The first member that differs, in the order of a; both values as text. NULL: they are the same. */
static const char *other_member(const cJSON *a, const cJSON *b, char was[VALUE_BYTES],
                                char is_now[VALUE_BYTES])
{
    const cJSON *item;
    cJSON_ArrayForEach (item, a) {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(b, item->string);
        if (!cJSON_Compare(item, other, true)) {
            value_text(item, was);
            value_text(other, is_now);
            return item->string;
        }
    }
    cJSON_ArrayForEach (item, b) {
        if (!cJSON_GetObjectItemCaseSensitive(a, item->string)) {
            value_text(NULL, was);
            value_text(item, is_now);
            return item->string;
        }
    }
    return NULL;
}

static void show_record(const struct side *s)
{
    const cJSON *r = s->record;
    printf("  %s  ", s->name);
    if (!r) {
        puts("there are no more records");
        return;
    }
    printf("record %.0f (file %.0f, offset %.0f): %s", answer_number(r, "record"), answer_number(r, "file"),
           answer_number(r, "offset"), answer_text(r, "kind"));
    if (is(r, "answer") || is(r, "request"))
        printf(" %.0f, %s", answer_number(r, "request"), answer_text(r, "what"));
    else
        printf(" %.0f", answer_number(r, "step"));
    putchar('\n');
}

/* Whether what is at hand is the same; if not, it is said. */
static bool records_are_same(const struct side *a, const struct side *b, bool plain_ids)
{
    char was[VALUE_BYTES] = "", now[VALUE_BYTES] = "";
    const char *member = NULL;
    if (a->record && b->record) {
        cJSON *x = memory_must(cJSON_Duplicate(a->record, true)),
              *y = memory_must(cJSON_Duplicate(b->record, true));
        neutralize(x, plain_ids);
        neutralize(y, plain_ids);
        member = other_member(x, y, was, now);
        if (member) {
            printf("first one that differs, after %" PRIu64 " that are the same: ", a->decisions - 1);
            printf("%s: ", member);
            terminal_put(stdout, was);
            fputs(" beside ", stdout);
            terminal_put(stdout, now);
            putchar('\n');
        }
        cJSON_Delete(x);
        cJSON_Delete(y);
    } else if ((a->record || a->whole) && (b->record || b->whole) && (a->record || b->record)) {
        printf("first one that differs: %s ends after %" PRIu64 " that are the same\n",
               a->record ? b->name : a->name, a->record ? b->decisions : a->decisions);
        member = "";
    }
    if (!member)
        return true;
    show_record(a);
    show_record(b);
    return false;
}

/* ---- configurations -------------------------------------------------------------------------------- */

/* Print the settings that differ, by their path; how many. */
static unsigned compare_settings(const cJSON *a, const cJSON *b, const char *path)
{
    char was[VALUE_BYTES], now[VALUE_BYTES], inner[VALUE_BYTES];
    unsigned n = 0;
    const cJSON *item;
    cJSON_ArrayForEach (item, a) {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(b, item->string);
        snprintf(inner, sizeof inner, "%s%s%s", path, *path ? "." : "", item->string);
        if (cJSON_IsObject(item) && cJSON_IsObject(other)) {
            n += compare_settings(item, other, inner);
        } else if (!cJSON_Compare(item, other, true)) {
            printf("    %s: ", inner);
            terminal_put(stdout, value_text(item, was));
            fputs(" beside ", stdout);
            terminal_put(stdout, value_text(other, now));
            putchar('\n');
            n++;
        }
    }
    return n;
}

static void compare_begins(const cJSON *a, const cJSON *b)
{
    static const char *const of_daemon[] = {"version",     "geometry", "pool_blocks",
                                            "host_blocks", "tasks",    "on_device"};
    char was[2 * VALUE_BYTES], now[VALUE_BYTES];
    for (size_t i = 0; i < sizeof of_daemon / sizeof of_daemon[0]; i++) {
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(a, of_daemon[i]),
                    *y = cJSON_GetObjectItemCaseSensitive(b, of_daemon[i]);
        if (cJSON_Compare(x, y, true)) {
            command_row(of_daemon[i], "the same");
            continue;
        }
        if (cJSON_IsObject(x))
            (void)other_member(x, y, was, now);
        else
            value_text(x, was), value_text(y, now);
        command_row(of_daemon[i], "%s beside %s", was, now);
    }
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(a, "settings"),
                *y = cJSON_GetObjectItemCaseSensitive(b, "settings");
    command_row("settings", "%s", cJSON_Compare(x, y, true) ? "the same" : "differ:");
    (void)compare_settings(x, y, "");
}

/* ---- figures --------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Of a sorted list. */
static double percentile(const double *list, size_t n, double p)
{
    return n ? list[(size_t)(p * (double)(n - 1) + 0.5)] : 0;
}

static void show_pair(const char *name, double a, double b)
{
    if (a != 0 || b != 0)
        printf("  %-28s %12.0f %12.0f%s\n", name, a, b, a == b ? "" : "  *");
}

static void show_statuses(const struct side *a, const struct side *b)
{
    char name[STATUS_BYTES + 16];
    for (size_t i = 0; i < STATUSES && a->statuses[i].n; i++) {
        uint64_t other = 0;
        for (size_t k = 0; k < STATUSES && b->statuses[k].n; k++) {
            if (strcmp(a->statuses[i].name, b->statuses[k].name) == 0)
                other = b->statuses[k].n;
        }
        snprintf(name, sizeof name, "answers %s", a->statuses[i].name);
        show_pair(name, (double)a->statuses[i].n, (double)other);
    }
    for (size_t k = 0; k < STATUSES && b->statuses[k].n; k++) {
        size_t i = 0;
        while (i < STATUSES && a->statuses[i].n && strcmp(a->statuses[i].name, b->statuses[k].name) != 0)
            i++;
        snprintf(name, sizeof name, "answers %s", b->statuses[k].name);
        if (i == STATUSES || !a->statuses[i].n)
            show_pair(name, 0, (double)b->statuses[k].n);
    }
}

/* Answers beside each other, by the order of their requests. */
static void show_answers(const struct side *a, const struct side *b)
{
    uint64_t kinds = 0, statuses = 0, values = 0, both = 0;
    for (size_t i = 0; i < a->room && i < b->room; i++) {
        const struct answered *x = &a->answers[i], *y = &b->answers[i];
        if (!x->what || !y->what)
            continue;
        both++;
        kinds += x->what != y->what;
        statuses += x->what == y->what && x->status != y->status;
        values += x->what == y->what && x->status == y->status && x->values != y->values;
    }
    command_row("by order of requests",
                "%" PRIu64 " in both; %" PRIu64 " of another kind, %" PRIu64 " with another status, %" PRIu64
                " with other lengths or blocks",
                both, kinds, statuses, values);
}

static void show_figures(struct side *a, struct side *b)
{
    static const struct {
        const char *name, *member;
    } counters[] = {{"evictions", "evictions"},
                    {"preemptions", "preemptions"},
                    {"blocks copied on write", "copies_on_write"},
                    {"forks", "forks"},
                    {"swapped out", "swaps_out"},
                    {"swapped in", "swaps_in"},
                    {"prefix blocks hit", "prefix_hits"},
                    {"refused allocations", "refused_allocations"}};
    if (a->steps_done)
        qsort(a->step_us, a->steps_done, sizeof *a->step_us, by_value);
    if (b->steps_done)
        qsort(b->step_us, b->steps_done, sizeof *b->step_us, by_value);
    printf("  %-28s %12s %12s\n", "", "A", "B");
    show_pair("requests", (double)a->requests, (double)b->requests);
    show_statuses(a, b);
    show_pair("steps", (double)a->steps, (double)b->steps);
    show_pair("rows of clients", (double)a->client_rows, (double)b->client_rows);
    show_pair("rows of workloads", (double)a->workload_rows, (double)b->workload_rows);
    show_pair("copies in steps", (double)a->copies, (double)b->copies);
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++)
        show_pair(counters[i].name, answer_number(a->last, counters[i].member),
                  answer_number(b->last, counters[i].member));
    show_pair("held blocks, at most", a->held_most, b->held_most);
    show_pair("shared blocks, at most", a->shared_most, b->shared_most);
    show_pair("free blocks, at least", a->free_least, b->free_least);
    printf("  %-28s %12.1f %12.1f\n", "step, microseconds, p50", percentile(a->step_us, a->steps_done, 0.5),
           percentile(b->step_us, b->steps_done, 0.5));
    printf("  %-28s %12.1f %12.1f\n", "step, microseconds, p99", percentile(a->step_us, a->steps_done, 0.99),
           percentile(b->step_us, b->steps_done, 0.99));
}

/* ---- all ------------------------------------------------------------------------------------------- */

/* Whether all decisions are the same, up to both ends. */
static bool compare(struct side *a, struct side *b)
{
    bool same = true, plain = cJSON_IsTrue(answer_at(a->begin, "token_ids_are_plain")) &&
                              cJSON_IsTrue(answer_at(b->begin, "token_ids_are_plain"));
    compare_begins(a->begin, b->begin);
    a->free_least = answer_number(a->begin, "pool_blocks");
    b->free_least = answer_number(b->begin, "pool_blocks");
    next_decision(a);
    next_decision(b);
    while (same && (a->record || b->record) && !terminal_interrupted()) {
        same = records_are_same(a, b, plain);
        next_decision(a);
        next_decision(b);
    }
    while (a->record && !terminal_interrupted())
        next_decision(a);
    while (b->record && !terminal_interrupted())
        next_decision(b);
    return same;
}

static bool open_side(const struct command *c, struct side *s, const char *name, const char *path)
{
    s->name = name;
    if (!journal_lines_open(&s->lines, command_option(c, "attnd"), path))
        return false;
    s->begin = journal_lines_next(&s->lines);
    return is(s->begin, "begin");
}

static void close_side(struct side *s)
{
    close_lines(s);
    cJSON_Delete(s->begin);
    cJSON_Delete(s->record);
    cJSON_Delete(s->last);
    free(s->answers);
    free(s->step_us);
}

/* What it has come to, once both are read. */
static enum exit_code show(struct side *a, struct side *b, bool same)
{
    if (!same)
        show_answers(a, b);
    show_figures(a, b);
    for (const struct side *s = a; s; s = s == a ? b : NULL) {
        if (s->lines.torn)
            printf("note: the last file of %s ends within a record, which was left out\n", s->name);
    }
    puts(terminal_interrupted() ? "interrupted" : same ? "the same decisions" : "other decisions");
    return terminal_interrupted() ? EXIT_INTERRUPTED : same ? EXIT_OK : EXIT_FAILED;
}

static int diff(const struct command *c)
{
    struct side a = {0}, b = {0};
    int code = EXIT_UNREADABLE;
    bool there = open_side(c, &a, "A", c->argv[0]), same = false;
    there = open_side(c, &b, "B", c->argv[1]) && there;
    terminal_watch_signals();
    if (there)
        same = compare(&a, &b);
    close_lines(&a);
    close_lines(&b);
    if (there && a.whole && b.whole)
        code = show(&a, &b, same);
    else
        fprintf(stderr, "attnctl: diff: %s cannot be read to %s end\n",
                a.whole || b.whole ? (a.whole ? "B" : "A") : "A and B", a.whole || b.whole ? "its" : "their");
    close_side(&a);
    close_side(&b);
    return code;
}

static const struct command_option options[] = {
    {"attnd", "PROGRAM", "the daemon's program; else the one beside this one"},
    {NULL, NULL, NULL},
};

static const struct command_verb verbs[] = {
    {"", "A B", 2, 2, "compare what was asked and decided in two journals", diff},
    {NULL, NULL, 0, 0, NULL, NULL},
};

const struct command_info diff_info = {
    .name = "diff",
    .text = "compare two journals",
    .verbs = verbs,
    .options = options,
    .more = "A and B are folders (their latest runs), or files, of journals. It says what\n"
            "differs in version, geometry and settings, names the first record that differs,\n"
            "and shows the figures of both. Times, connections and hashed ids are left out.\n"
            "\n"
            "Exit code 0: the same decisions. 1: others. 2: one cannot be read.\n",
    .offline = true,
    .text_only = true,
};
