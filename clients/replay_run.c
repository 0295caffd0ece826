/* SPDX-License-Identifier: Apache-2.0 */
/* replay_run.c - see replay_run.h.
 *
 *     recorded    request 1   request 2   answer 2   answer 1   request 3
 *     here        send 1      send 2      wait for 2 wait for 1 send 3
 *
 * A request is sent when all answers that were recorded before it have come, and not before: so calls that waited for what others gave back
 * wait here too, and are not waited for before those others are sent. Where one is left waiting, the daemon has read all of it before
 * the next one is sent: a look at /livez on another connection has its turn behind it. An answer that does not come, since this daemon
 * decided otherwise, is waited for for so many seconds; that is a difference, and it goes on.
 *
 * Records are read ahead up to the answer of the request that is to be sent: what was answered says whether rows that were sent again were
 * the same, and whether the client had left. */
#include "clients/replay_run.h"

#include "clients/answer.h"
#include "clients/memory.h"
#include "clients/replay_calls.h"
#include "clients/terminal.h"
#include "config/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURN_MS = 100, SHOWN_EVERY = 1000 };

static const char *const client_left = "the client left before the answer",
                         *const no_answer = "the journal ends before the answer";

/* A request, or an answer, in the order of the journal. */
struct item {
    cJSON *record;
    struct item *of; /* an answer's request; NULL: it is a request, with */
    cJSON *answer;   /* NULL: not read yet, or never */
    bool left;       /* its client has gone */
    bool sent, together, astray;
    struct replay_call calls[REPLAY_TARGETS];
    struct http_client *clients[REPLAY_TARGETS]; /* NULL: none is under way */
    struct item *next;
};

/* Clients of a daemon without a request. */
struct spare {
    struct http_client **list;
    size_t count, room;
};

struct run {
    const struct replay_options *o;
    struct journal_lines *lines;
    struct replay_world *world;
    struct replay_judge *judge;
    struct http_group *group;
    struct spare spare[REPLAY_TARGETS];
    struct item *first, *last; /* read, and not dealt with */
    struct id_map waiting;     /* requests without an answer: by number, struct item; */
    struct id_map under_way;   /* those that were sent */
    struct id_map late;        /* those that were not answered here when they should have been */
    struct id_map workloads;   /* recorded ones that have not ended, by id */
    uint64_t open;             /* recorded requests without an answer, that were dealt with */
    char key[32];              /* of the request before; "": there is none */
    bool gone;                 /* the record before is of a client that has */
    bool ended, failed;
};

/* ---- reading --------------------------------------------------------------------------------------- */

static void append(struct run *r, struct item *item)
{
    *(r->last ? &r->last->next : &r->first) = item;
    r->last = item;
}

static void drop_first(struct run *r)
{
    r->first = r->first->next;
    if (!r->first)
        r->last = NULL;
}

static void free_request(struct item *item)
{
    for (unsigned i = 0; i < REPLAY_TARGETS; i++)
        free(item->calls[i].body);
    cJSON_Delete(item->record);
    free(item);
}

/* One more record. */
static void read_more(struct run *r)
{
    cJSON *record = journal_lines_next(r->lines);
    const char *kind = answer_text(record, "kind");
    bool request = strcmp(kind, "request") == 0, answer = strcmp(kind, "answer") == 0;
    uint64_t number = (uint64_t)answer_number(record, "request");
    struct item *of = answer ? id_map_take(&r->waiting, number) : NULL;
    r->ended = !record;
    if (!request && !of) {
        r->gone = strcmp(kind, "client gone") == 0;
        cJSON_Delete(record);
        return;
    }
    struct item *item = memory_must(calloc(1, sizeof *item));
    *item = (struct item){.record = record, .of = of};
    if (request)
        id_map_put(&r->waiting, number, item);
    if (of) {
        of->answer = record;
        of->left = r->gone && strcmp(answer_text(record, "status"), "gone") == 0;
    }
    r->gone = false;
    append(r, item);
}

/* ---- sending --------------------------------------------------------------------------------------- */

static struct http_client *take_client(struct run *r, unsigned target)
{
    struct spare *s = &r->spare[target];
    if (s->count)
        return s->list[--s->count];
    return memory_must(
        http_client_create(r->o->targets[target].url, r->o->targets[target].key, r->o->ca_file));
}

static void give_client(struct run *r, unsigned target, struct http_client *client)
{
    struct spare *s = &r->spare[target];
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 16;
        s->list = memory_must(realloc(s->list, s->room * sizeof(struct http_client *)));
    }
    s->list[s->count++] = client;
}

static bool stops(const struct run *r)
{
    return r->failed || terminal_interrupted();
}

static void fail(struct run *r, const struct http_reply *reply)
{
    fputs("attnctl: ", stderr);
    terminal_put(stderr, reply->text);
    fputc('\n', stderr);
    r->failed = true;
}

/* Ask for something beside the journal; NULL: it is not to be had. */
static cJSON *ask(struct run *r, unsigned target, const char *method, const char *path)
{
    const struct http_request request = {.method = method, .path = path};
    struct http_reply reply = http_client_send(r->o->targets[target].client, &request);
    if (reply.status == 0)
        fail(r, &reply);
    return reply.status == 200 ? cJSON_Parse(reply.text) : NULL;
}

/* The daemon has read a request that is left waiting. */
static void see_read(struct run *r, const struct item *item)
{
    for (unsigned t = 0; t < r->o->target_count; t++) {
        while (item->clients[t] && !http_client_has_sent(item->clients[t]) && !stops(r))
            http_group_turn(r->group, TURN_MS);
        cJSON_Delete(ask(r, t, "GET", "/livez"));
    }
}

static void send_to(struct run *r, struct item *item, unsigned target)
{
    const struct replay_call *call = &item->calls[target];
    const struct http_request request = {.method = call->method,
                                         .path = call->path,
                                         .type = call->type,
                                         .accept = call->accept,
                                         .body = call->body,
                                         .body_bytes = call->bytes,
                                         .timeout_ms =
                                             (uint64_t)(answer_number(item->record, "timeout_s") * 1e3)};
    struct http_client *client = take_client(r, target);
    if (!http_group_start(r->group, client, &request))
        memory_must(NULL);
    item->clients[target] = client;
    http_group_turn(r->group, 0);
}

/* A workload begins, or has ended, in the recording. */
static void follow_workload(struct run *r, const cJSON *request, const cJSON *answer)
{
    const char *state = answer_text(answer, "state");
    uint64_t id = (uint64_t)answer_number(answer, "workload");
    if (strcmp(answer_text(request, "what"), "workload_start") == 0 && id)
        id_map_put(&r->workloads, id, r);
    else if (strcmp(state, "finished") == 0 || strcmp(state, "cancelled") == 0)
        (void)id_map_take(&r->workloads, id);
}

static void mark_together(struct run *r)
{
    size_t at = 0;
    for (struct item *other; (other = id_map_next(&r->under_way, &at));)
        other->together = true;
}

/* Whether a request that is not sent has changed, or made, sequences when it was recorded. */
static bool changes_things(const struct item *item)
{
    static const char *const looks[] = {"events", "describe", "ids", "workload_start", "workload", NULL};
    const char *const *look = looks;
    while (*look && strcmp(answer_text(item->record, "what"), *look) != 0)
        look++;
    return !*look && strcmp(answer_text(item->answer, "status"), "ok") == 0;
}

/* The next record is a request. */
static void begin_request(struct run *r, struct item *item)
{
    const char *why = NULL;
    uint64_t number = (uint64_t)answer_number(item->record, "request");
    while (!item->answer && !r->ended)
        read_more(r);
    r->judge->requests++;
    const char *key = answer_text(item->record, "key");
    r->judge->keys |= r->key[0] && strcmp(r->key, key) != 0;
    snprintf(r->key, sizeof r->key, "%.31s", key);
    if (item->left || !item->answer)
        why = item->left ? client_left : no_answer;
    for (unsigned t = 0; !why && t < r->o->target_count; t++)
        why = replay_call_of(r->world, item->record, item->answer, t, &item->calls[t]);
    if (why)
        replay_judge_not_sent(r->judge, why);
    item->astray = replay_world_is_astray(r->world, item->record);
    id_map_put(&r->under_way, number, item);
    if (++r->open > 1 || r->workloads.count) {
        r->judge->together = true;
        mark_together(r);
    }
    if (!why) {
        item->sent = true;
        r->judge->sent++;
        for (unsigned t = 0; t < r->o->target_count; t++)
            send_to(r, item, t);
    } else if (item->answer && !item->left && changes_things(item)) {
        r->judge->uncountable = true;
    }
    if (item->answer)
        replay_world_note(r->world, item->record, item->answer);
    while (!r->first && !r->ended)
        read_more(r);
    if (item->sent && !(r->first && r->first->of == item))
        see_read(r, item);
    if (r->judge->requests % SHOWN_EVERY == 0 && isatty(STDERR_FILENO))
        fprintf(stderr, "\r%" PRIu64 " requests", r->judge->requests);
}

/* ---- answers --------------------------------------------------------------------------------------- */

/* Wait for an answer of a daemon; false: there is none, which was noted. */
static bool await(struct run *r, struct item *item, unsigned target, const struct replay_case *of,
                  struct http_reply *reply)
{
    bool by_time = strcmp(answer_text(item->answer, "status"), "deadline") == 0;
    double most = r->o->patience_s + (by_time ? answer_number(item->record, "timeout_s") : 0);
    double end = clock_s() + most;
    while (!http_client_has_reply(item->clients[target], reply)) {
        if (stops(r))
            return false;
        if (clock_s() > end) {
            replay_judge_late(r->judge, of, target, most);
            return false;
        }
        http_group_turn(r->group, TURN_MS);
    }
    if (reply->status == 0)
        fail(r, reply);
    return reply->status != 0;
}

/* What was made here and not there is removed, so that later requests meet the same. */
static void undo(struct run *r, unsigned target, const char *what, const cJSON *here)
{
    char path[REPLAY_PATH_BYTES];
    const cJSON *list = cJSON_GetObjectItem(here, "sequences"),
                *one = cJSON_IsArray(list) ? list->child : here;
    for (; one; one = cJSON_IsArray(list) ? one->next : NULL) {
        snprintf(path, sizeof path, "/v1/%s/%.0f", strcmp(what, "lease") == 0 ? "leases" : "sequences",
                 answer_number(one, "id"));
        cJSON_Delete(ask(r, target, "DELETE", path));
    }
}

/* All that was asked has been answered, there and here: compare the counts. */
static void compare_counts(struct run *r, const struct replay_case *of)
{
    for (unsigned t = 0; t < r->o->target_count && !stops(r); t++) {
        cJSON *stats = ask(r, t, "GET", "/stats?limit=1");
        if (stats)
            replay_judge_counts(r->judge, of, t, stats);
        cJSON_Delete(stats);
    }
}

/* Give a request's clients back; with `drops` those that wait still are dropped. Whether none is left. */
static bool finish(struct run *r, struct item *item, bool drops)
{
    struct http_reply reply;
    bool none = true;
    for (unsigned t = 0; t < r->o->target_count; t++) {
        if (!item->clients[t])
            continue;
        if (drops)
            http_group_give_up(r->group, item->clients[t]);
        if (drops || http_client_has_reply(item->clients[t], &reply)) {
            give_client(r, t, item->clients[t]);
            item->clients[t] = NULL;
        } else {
            none = false;
        }
    }
    return none;
}

static void take_answers(struct run *r, struct item *item, const struct replay_case *of)
{
    struct http_reply replies[REPLAY_TARGETS] = {{0}};
    bool all = true;
    for (unsigned t = 0; t < r->o->target_count; t++)
        all &= await(r, item, t, of, &replies[t]);
    if (all && r->o->target_count > 1)
        replay_judge_outputs(r->judge, of, replies);
    for (unsigned t = 0; t < r->o->target_count && !stops(r); t++) {
        cJSON *here = NULL;
        bool extra = replies[t].status && replay_judge_answer(r->judge, of, t, &replies[t], &here);
        if (replies[t].status >= 200 && replies[t].status < 300)
            replay_world_learn(r->world, item->record, item->answer, here, t);
        if (extra)
            undo(r, t, answer_text(item->record, "what"), here);
        cJSON_Delete(here);
    }
}

/* The next record is an answer. */
static void end_request(struct run *r, struct item *answer)
{
    struct item *item = answer->of;
    const struct replay_case of = {item->record, item->answer, item->together, item->astray};
    bool quiet;
    (void)id_map_take(&r->under_way, (uint64_t)answer_number(item->record, "request"));
    if (item->sent)
        take_answers(r, item, &of);
    bool whole = finish(r, item, false);
    follow_workload(r, item->record, item->answer);
    quiet = --r->open == 0 && r->workloads.count == 0;
    if (quiet && whole && item->sent && !stops(r))
        compare_counts(r, &of);
    if (whole) {
        cJSON_Delete(answer->record);
        free_request(item);
    } else { /* it goes on, and gets what it waits for when others give it back */
        id_map_put(&r->late, (uint64_t)answer_number(item->record, "request"), item);
    }
    free(answer);
}

/* ---- all ------------------------------------------------------------------------------------------- */

static void drop_all(struct run *r, struct id_map *map, bool with_answers)
{
    size_t at = 0;
    for (struct item *item; (item = id_map_next(map, &at));) {
        (void)finish(r, item, true);
        if (with_answers)
            cJSON_Delete(item->answer);
        free_request(item);
    }
    id_map_free(map);
}

static void clean_up(struct run *r)
{
    /* An answer in the list has its request there, too, or in under_way. */
    for (struct item *item = r->first, *next; item; item = next) {
        next = item->next;
        if (item->of) {
            cJSON_Delete(item->record);
            free(item);
        } else {
            free_request(item);
        }
    }
    drop_all(r, &r->under_way, false);
    drop_all(r, &r->late, true);
    for (unsigned t = 0; t < REPLAY_TARGETS; t++) {
        for (size_t i = 0; i < r->spare[t].count; i++)
            http_client_destroy(r->spare[t].list[i]);
        free(r->spare[t].list);
    }
    id_map_free(&r->waiting);
    id_map_free(&r->workloads);
    http_group_destroy(r->group);
}

bool replay_run(const struct replay_options *o, struct journal_lines *lines, struct replay_world *world,
                struct replay_judge *judge)
{
    struct run r = {
        .o = o, .lines = lines, .world = world, .judge = judge, .group = memory_must(http_group_create())};
    while (!stops(&r)) {
        if (!r.first && !r.ended)
            read_more(&r);
        struct item *item = r.first;
        if (!item && r.ended)
            break;
        if (!item)
            continue;
        drop_first(&r);
        if (item->of)
            end_request(&r, item);
        else
            begin_request(&r, item);
    }
    if (judge->requests >= SHOWN_EVERY && isatty(STDERR_FILENO))
        fputc('\n', stderr);
    clean_up(&r);
    return !r.failed;
}
