/* SPDX-License-Identifier: Apache-2.0 */
/* move.c - bring sequences from one daemon to another.
 *
 *     from   GET  /v1/sequences/7                     how long it is
 *     to     POST /v1/sequences                       9, empty; for an admin it belongs to the key of the same name
 *     from   GET  /v1/sequences/7/kv?range=...   ->   to   PUT /v1/sequences/9/kv?range=...     range after range
 *     from   POST /v1/sequences/7/moved               refused if it has grown meanwhile: then the rest follows
 *
 * Each comes with tokens of its own: what forks and prompts share here they do not share there (docs/decisions/0022). So --all first adds up what
 * that takes at most, and moves nothing when there cannot be so much.
 *
 * The daemons do not talk to each other. Whatever fails, the sequence stays where it was, and what was made of it
 * elsewhere is deleted. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/terminal.h"
#include "config/clock.h"
#include "config/config.h"
#include "config/numbers.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PATH_BYTES = 192,
    BODY_BYTES = 512,
    PAGE = 1000,
    GROWN_MOST = 1000, /* times that a sequence may have grown while it was on its way */
    CUT_MOST = 3,      /* or was cut, and so was brought anew */
    UNEVEN_MS = 100,   /* between two looks whether all of its layers have the same tokens, */
    UNEVEN_MOST = 50,  /* as often */
    INSTANCE_BYTES = 32,
    OWNER_BYTES = 64
};

static const double SHOW_S = 2; /* between two lines that say how far one is */
static const char STATS[] = "/stats?limit=1";

/* Whose sequences an admin has moved. */
struct owners {
    char own[OWNER_BYTES];      /* the name of the admin's key; "": there are no keys */
    char (*names)[OWNER_BYTES]; /* [count] of other keys */
    size_t count, sequences;    /* sequences of them */
};

struct move_options {
    struct http_client *from, *to;
    const char *url; /* of the daemon that they go to, as its clients know it; "": the same one as before */
    const char *to_url, *to_node; /* as they were given; NULL: any node */
    const char *salt;             /* NULL: none */
    char **ids;                   /* [count] */
    size_t count;                 /* 0: all sequences, but for those that a workload drives */
    bool node_given;              /* --node says which daemon has them, else their ids do */
    bool force;                   /* of all: also where they cannot all fit */
    bool json;                    /* a line of JSON for each on stdout, else one of text */
    struct owners *owners;
};

enum move_result {
    MOVE_DONE,       /* all of them */
    MOVE_FAILED,     /* some stay; stderr says which and why */
    MOVE_MISNAMED,   /* --to is the same daemon: nothing is moved */
    MOVE_UNAVAILABLE /* a daemon does not answer */
};

/* A sequence on its way. */
struct move {
    const struct move_options *o;
    double id, to_id;
    uint32_t length, done, step; /* tokens: that it has; that are there; of a range */
    double bytes, begun_s, shown_s;
    char etag[128], bits[24];
    bool unavailable, was_here; /* it was found, or listed */
    bool has_owner;             /* another key than that which asks; */
    char owner[OWNER_BYTES];    /* "": clients without one */
};

enum outcome { GOES_ON, GREW, WAS_CUT, FAILED, AWAY /* it is not here any more */ };

/* ---- asking -------------------------------------------------------------------------------------- */

static bool is_success(const struct http_reply *reply)
{
    return reply->status >= 200 && reply->status < 300;
}

/* Say that what is to be moved is no sequence. */
static void say_none(const struct move *m)
{
    char path[PATH_BYTES];
    const struct http_request request = {.method = "GET", .path = path};
    snprintf(path, sizeof path, "/v1/leases/%.0f", m->id);
    struct http_reply reply = http_client_send(m->o->from, &request);
    fprintf(stderr,
            is_success(&reply) ? "attnctl: %.0f is a lease: leases are not moved\n"
                               : "attnctl: there is no sequence %.0f\n",
            m->id);
}

/* Say why a sequence stays, or that it is not where it was; `client`: whose answer that is. */
static enum outcome explain(struct move *m, const struct http_client *client, const char *what,
                            const struct http_reply *reply)
{
    cJSON *problem = reply->status && reply->text ? cJSON_Parse(reply->text) : NULL;
    const char *code = client == m->o->from ? answer_text(problem, "code") : "";
    bool moved = strcmp(code, "moved") == 0;
    bool not_found = strcmp(code, "not_found") == 0;
    bool away = moved || not_found || strcmp(code, "gone") == 0;
    if (not_found && !m->was_here) {
        cJSON_Delete(problem);
        say_none(m);
        return AWAY;
    }
    fprintf(stderr, "attnctl: sequence %.0f ", m->id);
    if (away)
        fputs(moved ? "has moved already: " : "is gone: ", stderr);
    else
        fprintf(stderr, "stays where it was: %s: ", what);
    if (reply->status)
        fprintf(stderr, "%ld ", reply->status);
    terminal_put(stderr, reply->status ? answer_text(problem, "detail") : reply->text);
    fputc('\n', stderr);
    m->unavailable |= command_is_unavailable(reply);
    cJSON_Delete(problem);
    return away ? AWAY : FAILED;
}

/* Ask for JSON; *tree is NULL, and said why, when there is none. */
static enum outcome ask(struct move *m, struct http_client *client, const char *what,
                        const struct http_request *request, cJSON **tree)
{
    struct http_reply reply = http_client_send(client, request);
    *tree = is_success(&reply) ? cJSON_Parse(reply.text) : NULL;
    return *tree ? GOES_ON : explain(m, client, what, &reply);
}

/* ---- a sequence ---------------------------------------------------------------------------------- */

/* How many tokens it has; waits until all layers have the same. */
static enum outcome look(struct move *m, cJSON **tree)
{
    char path[PATH_BYTES];
    const struct http_request request = {.method = "GET", .path = path};
    const struct timespec pause = {.tv_nsec = UNEVEN_MS * 1000000L};
    snprintf(path, sizeof path, "/v1/sequences/%.0f", m->id);
    for (int i = 0; i < UNEVEN_MOST; i++) {
        const cJSON *length;
        bool even = true;
        enum outcome is = ask(m, m->o->from, "it is not to be had", &request, tree);
        if (is != GOES_ON)
            return is;
        m->was_here = true;
        m->length = (uint32_t)answer_number(*tree, "length");
        cJSON_ArrayForEach (length, answer_at(*tree, "lengths"))
            even &= length->valuedouble == (double)m->length;
        if (even)
            return GOES_ON;
        cJSON_Delete(*tree);
        *tree = NULL;
        nanosleep(&pause, NULL);
    }
    fprintf(stderr,
            "attnctl: sequence %.0f stays where it was: some of its layers have more tokens than others\n",
            m->id);
    return FAILED;
}

/* Whose it is, if it is another key's; that is said to an admin only. */
static enum outcome note_owner(struct move *m, const cJSON *like)
{
    const cJSON *owner = answer_at(like, "owner");
    const char *name = cJSON_IsString(owner) ? owner->valuestring : NULL;
    m->has_owner = name && strcmp(name, m->o->owners->own) != 0;
    if (!m->has_owner)
        return GOES_ON;
    snprintf(m->owner, sizeof m->owner, "%s", name);
    if (strlen(name) < OWNER_BYTES &&
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == strlen(name))
        return GOES_ON;
    fprintf(stderr, "attnctl: sequence %.0f stays where it was: its owner's name is none\n", m->id);
    return FAILED;
}

/* Count one that has moved, and so has its owner. */
static void count_owner(const struct move *m)
{
    struct owners *o = m->o->owners;
    size_t at = 0;
    if (!m->has_owner)
        return;
    o->sequences++;
    while (at < o->count && strcmp(o->names[at], m->owner) != 0)
        at++;
    if (at < o->count)
        return;
    char(*names)[OWNER_BYTES] = realloc(o->names, (o->count + 1) * sizeof *names);
    if (!names)
        abort();
    o->names = names;
    snprintf(o->names[o->count++], OWNER_BYTES, "%s", m->owner);
}

/* An empty sequence, like this one. */
static enum outcome create(struct move *m, const cJSON *like)
{
    cJSON *body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "priority", answer_number(like, "priority"));
    if (answer_number(like, "max_tokens") > 0)
        cJSON_AddNumberToObject(body, "max_tokens", answer_number(like, "max_tokens"));
    if (m->o->salt)
        cJSON_AddStringToObject(body, "salt", m->o->salt);
    if (m->has_owner)
        cJSON_AddStringToObject(body, "owner", m->owner);
    char *text = cJSON_PrintUnformatted(body);
    const struct http_request request = {.method = "POST", .path = "/v1/sequences", .body = text};
    cJSON *made;
    (void)ask(m, m->o->to, "no sequence there", &request, &made);
    m->to_id = made ? answer_number(made, "id") : 0;
    cJSON_Delete(made);
    cJSON_Delete(body);
    free(text);
    return m->to_id > 0 ? GOES_ON : FAILED;
}

/* It did not come to its end: what is there of it is deleted. */
static void take_back(struct move *m)
{
    char path[PATH_BYTES];
    const struct http_request request = {.method = "DELETE", .path = path};
    snprintf(path, sizeof path, "/v1/sequences/%.0f", m->to_id);
    if (m->to_id > 0)
        (void)http_client_send(m->o->to, &request);
    m->to_id = 0;
}

/* Say how far a long one is. */
static void show_progress(struct move *m)
{
    double now = clock_s();
    if (now - m->shown_s < SHOW_S)
        return;
    m->shown_s = now;
    fprintf(stderr, "sequence %.0f: %u of %u token%s, %.1f MB, %.0f MB/s\n", m->id, m->done, m->length,
            plural(m->length), m->bytes * 1e-6, m->bytes * 1e-6 / (now - m->begun_s));
}

/* Bring the next range over. */
static enum outcome bring(struct move *m)
{
    char path[PATH_BYTES];
    uint32_t end = m->length - m->done < m->step ? m->length : m->done + m->step;
    struct http_request request = {.method = "GET",
                                   .path = path,
                                   .accept = "application/x-safetensors",
                                   .if_match = m->etag[0] ? m->etag : NULL};
    snprintf(path, sizeof path, "/v1/sequences/%.0f/kv?range=%u:%u", m->id, m->done, end);
    struct http_reply reply = http_client_send(m->o->from, &request);
    if (reply.status == 412)
        return WAS_CUT;
    if (!is_success(&reply))
        return explain(m, m->o->from, "K and V are not to be had", &reply);
    snprintf(m->etag, sizeof m->etag, "%s", reply.etag);
    size_t bytes = reply.bytes;
    request = (struct http_request){.method = "PUT",
                                    .path = path,
                                    .type = "application/x-safetensors",
                                    .body = reply.text,
                                    .body_bytes = bytes};
    snprintf(path, sizeof path, "/v1/sequences/%.0f/kv?range=%u:%u%s%s", m->to_id, m->done, end,
             m->has_owner ? "&owner=" : "", m->has_owner ? m->owner : "");
    cJSON *put;
    (void)ask(m, m->o->to, "K and V are not taken there", &request, &put);
    const cJSON *bits = answer_at(put, "bits");
    if (cJSON_IsString(bits))
        snprintf(m->bits, sizeof m->bits, "%s", bits->valuestring);
    if (!put)
        return FAILED;
    cJSON_Delete(put);
    m->done = end;
    m->bytes += (double)bytes;
    show_progress(m);
    return GOES_ON;
}

/* Where it is now. */
static void new_place(const struct move *m, char place[BODY_BYTES])
{
    size_t n = strlen(m->o->url);
    while (n > 0 && m->o->url[n - 1] == '/')
        n--;
    snprintf(place, BODY_BYTES, "%.*s/v1/sequences/%.0f", (int)n, m->o->url, m->to_id);
}

/* The old daemon gives it up. */
static enum outcome give_up(struct move *m)
{
    char path[PATH_BYTES], place[BODY_BYTES];
    cJSON *body = cJSON_CreateObject();
    new_place(m, place);
    cJSON_AddStringToObject(body, "moved_to", place);
    cJSON_AddNumberToObject(body, "length", m->length);
    char *text = cJSON_PrintUnformatted(body);
    const struct http_request request = {
        .method = "POST", .path = path, .body = text, .if_match = m->etag[0] ? m->etag : NULL};
    snprintf(path, sizeof path, "/v1/sequences/%.0f/moved", m->id);
    struct http_reply reply = http_client_send(m->o->from, &request);
    cJSON_Delete(body);
    free(text);
    if (reply.status == 412)
        return WAS_CUT;
    if (reply.status == 409)
        return GREW;
    return is_success(&reply) ? GOES_ON : explain(m, m->o->from, "it is not given up", &reply);
}

/* Once, from its first token on. */
static enum outcome attempt(struct move *m)
{
    cJSON *like;
    enum outcome is = look(m, &like);
    m->done = 0;
    m->etag[0] = '\0';
    snprintf(m->bits, sizeof m->bits, "same"); /* of nothing */
    if (is == GOES_ON)
        is = note_owner(m, like);
    if (is == GOES_ON)
        is = create(m, like);
    cJSON_Delete(like);
    for (int i = 0; is == GOES_ON || (is == GREW && i < GROWN_MOST); i++) {
        if (is == GREW && (is = look(m, &like)) == GOES_ON)
            cJSON_Delete(like);
        while (is == GOES_ON && m->done < m->length)
            is = bring(m);
        if (is == GOES_ON && (is = give_up(m)) == GOES_ON)
            return GOES_ON;
    }
    return is;
}

static void show(const struct move *m)
{
    char place[BODY_BYTES];
    new_place(m, place);
    if (m->o->json)
        printf("{\"id\":%.0f,\"moved_to\":\"%s\",\"length\":%u,\"bits\":\"%s\"%s%s%s}\n", m->id, place,
               m->length, m->bits, m->has_owner ? ",\"owner\":\"" : "", m->has_owner ? m->owner : "",
               m->has_owner ? "\"" : "");
    else
        printf("%.0f -> %s  %u token%s, %.1f MB, bits %s\n", m->id, place, m->length, plural(m->length),
               m->bytes * 1e-6, m->bits);
    fflush(stdout);
}

static enum move_result move_one(const struct move_options *o, double id, uint32_t step)
{
    struct move m = {.o = o,
                     .id = id,
                     .step = step,
                     .begun_s = clock_s(),
                     .shown_s = clock_s(),
                     .was_here = o->count == 0};
    enum outcome is = WAS_CUT;
    for (int i = 0; is == WAS_CUT && i < CUT_MOST; i++) {
        is = attempt(&m);
        if (is != GOES_ON)
            take_back(&m);
    }
    if (is == GOES_ON) {
        count_owner(&m);
        show(&m);
    } else if (is == AWAY && o->count == 0) { /* of all it is none any more */
        return MOVE_DONE;
    } else if (is != FAILED && is != AWAY) {
        fprintf(stderr, "attnctl: sequence %.0f stays where it was: it changes all the time\n", id);
    }
    return is == GOES_ON ? MOVE_DONE : m.unavailable ? MOVE_UNAVAILABLE : MOVE_FAILED;
}

/* ---- all of them --------------------------------------------------------------------------------- */

/* What a move has to know of a daemon. */
struct node {
    uint32_t range_tokens;         /* of a range that it sends, or takes */
    char instance[INSTANCE_BYTES]; /* which daemon it is */
    char key[OWNER_BYTES];         /* the name of the key that asks */
    cJSON *geometry;
};

/* What to make of a request about no sequence that failed; says why. */
static enum move_result refuse(const struct move_options *o, const struct http_client *client,
                               const struct http_reply *reply)
{
    enum exit_code code =
        client == o->to ? command_explain_other(reply, o->to_url, "--to-key-file") : command_explain(reply);
    return code == EXIT_UNAVAILABLE ? MOVE_UNAVAILABLE : MOVE_FAILED;
}

/* MOVE_DONE, or said why not: it does not answer, refuses the key, or has no ranges. */
static enum move_result learn(const struct move_options *o, struct http_client *client, struct node *n)
{
    enum move_result result = MOVE_DONE;
    const struct http_request request = {.method = "GET", .path = "/v1/info"};
    struct http_reply reply = http_client_send(client, &request);
    cJSON *info = is_success(&reply) ? cJSON_Parse(reply.text) : NULL;
    n->range_tokens = (uint32_t)answer_number(info, "limits.kv_range_tokens");
    snprintf(n->instance, sizeof n->instance, "%s", answer_text(info, "instance"));
    snprintf(n->key, sizeof n->key, "%s", answer_text(info, "key.name"));
    if (!info) {
        result = refuse(o, client, &reply);
    } else if (!n->range_tokens) {
        fprintf(stderr, "attnctl: limits.body_bytes has no room for K and V of a token\n");
        result = MOVE_FAILED;
    }
    n->geometry = n->range_tokens ? cJSON_DetachItemFromObject(info, "geometry") : NULL;
    cJSON_Delete(info);
    return result;
}

static void say_difference(const cJSON *here, const cJSON *there)
{
    if (cJSON_IsArray(here)) { /* of all layers */
        fputs("differs", stderr);
        return;
    }
    char *has = cJSON_PrintUnformatted(here), *wants = cJSON_PrintUnformatted(there);
    fputs("is ", stderr);
    terminal_put(stderr, wants);
    fputs(" there and ", stderr);
    terminal_put(stderr, has);
    fputs(" here", stderr);
    free(has);
    free(wants);
}

/* Say where K and V of the one mean nothing to the other, which would take sequences without tokens all the same; true: nowhere. Blocks and
 * their layout are each one's own. */
static bool is_same_model(const struct node *here, const struct node *there)
{
    static const char *const members[] = {"layers", "query_heads", "kv_heads", "head_dim",
                                          "dtype",  "kv_dtype",    "scale",    "softcap",
                                          "window", "sinks",       "alibi"};
    bool same = true;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const cJSON *a = answer_at(here->geometry, members[i]), *b = answer_at(there->geometry, members[i]);
        if (!a || !b || cJSON_Compare(a, b, true))
            continue;
        fprintf(stderr, "%sgeometry.%s ", same ? "attnctl: --to has another geometry: " : ", ", members[i]);
        say_difference(a, b);
        same = false;
    }
    if (!same)
        fputs(": nothing is moved\n", stderr);
    return same;
}

static enum move_result worse(enum move_result a, enum move_result b)
{
    return a > b ? a : b;
}

/* A page of sequences; *next: where the one behind it begins, negative: there is none. Moving some does not shift the
 * others. *tree is NULL, and said why: it is not to be had. */
static enum move_result fetch_page(const struct move_options *o, double *next, cJSON **tree)
{
    char path[PATH_BYTES];
    const struct http_request request = {.method = "GET", .path = path};
    snprintf(path, sizeof path, "/v1/sequences?limit=%d&cursor=%.0f", PAGE, *next);
    struct http_reply reply = http_client_send(o->from, &request);
    *tree = is_success(&reply) ? cJSON_Parse(reply.text) : NULL;
    const cJSON *after = answer_at(*tree, "next");
    *next = cJSON_IsNumber(after) ? after->valuedouble : -1;
    return *tree ? MOVE_DONE : refuse(o, o->from, &reply);
}

/* The next page of all; *found: sequences so far. */
static enum move_result move_page(const struct move_options *o, uint32_t step, double *next, size_t *found)
{
    cJSON *page;
    const cJSON *item;
    enum move_result result = fetch_page(o, next, &page);
    cJSON_ArrayForEach (item, answer_at(page, "items")) {
        if (result == MOVE_UNAVAILABLE)
            break;
        ++*found;
        if (answer_number(item, "workload") > 0)
            fprintf(stderr, "attnctl: sequence %.0f stays: workload %.0f drives it\n",
                    answer_number(item, "id"), answer_number(item, "workload"));
        else
            result = worse(result, move_one(o, answer_number(item, "id"), step));
    }
    cJSON_Delete(page);
    return result;
}

/* What all take at most, without a word about what they share. */
struct needed {
    double sequences, blocks;
};

/* Blocks of `block_size` tokens that a sequence has at its end, or has been promised. */
static double blocks_of(const cJSON *sequence, double block_size)
{
    const cJSON *length;
    double tokens = fmax(answer_number(sequence, "length"), answer_number(sequence, "max_tokens"));
    cJSON_ArrayForEach (length, answer_at(sequence, "lengths"))
        tokens = fmax(tokens, length->valuedouble);
    return ceil(tokens / block_size);
}

static enum move_result add_up(const struct move_options *o, double block_size, struct needed *needed)
{
    for (double next = 0; next >= 0;) {
        cJSON *page;
        const cJSON *item;
        enum move_result result = fetch_page(o, &next, &page);
        if (result != MOVE_DONE)
            return result;
        cJSON_ArrayForEach (item, answer_at(page, "items")) {
            if (answer_number(item, "workload") > 0)
                continue;
            needed->sequences++;
            needed->blocks += blocks_of(item, block_size);
        }
        cJSON_Delete(page);
    }
    return MOVE_DONE;
}

/* NULL: it is not to be had, perhaps for want of a scope. */
static cJSON *get(struct http_client *client, const char *path)
{
    const struct http_request request = {.method = "GET", .path = path};
    struct http_reply reply = http_client_send(client, &request);
    return is_success(&reply) ? cJSON_Parse(reply.text) : NULL;
}

/* Say what is held besides sequences, of what the key is told: that is not moved. */
static void say_what_stays(const struct move_options *o)
{
    const cJSON *item;
    cJSON *stats = get(o->from, STATS), *page = get(o->from, "/v1/workloads");
    double leases = answer_number(stats, "leases"), workloads = 0;
    cJSON_ArrayForEach (item, answer_at(page, "items")) {
        const char *state = answer_text(item, "state");
        workloads += strcmp(state, "running") == 0 || strcmp(state, "verifying") == 0;
    }
    if (leases > 0)
        fprintf(stderr, "%.0f lease%s", leases, answer_plural(leases));
    if (workloads > 0)
        fprintf(stderr, "%s%.0f running workload%s", leases > 0 ? " and " : "", workloads,
                answer_plural(workloads));
    if (leases + workloads > 0)
        fprintf(stderr, " stay%s: only sequences are moved\n", leases + workloads == 1 ? "s" : "");
    cJSON_Delete(page);
    cJSON_Delete(stats);
}

/* "41 sequences need at most 123 blocks there, which has 64" */
static void say_needed(const struct needed *needed, double has)
{
    bool one = needed->sequences == 1;
    fprintf(stderr, "%.0f sequence%s at most %.0f block%s there, which has %.0f", needed->sequences,
            one ? " needs" : "s need", needed->blocks, answer_plural(needed->blocks), has);
}

/* Say what all take there and what there is; nothing is moved where they cannot fit. */
static enum move_result check_room(const struct move_options *o)
{
    struct needed needed = {0};
    cJSON *there = get(o->to, STATS);
    double size = answer_number(there, "pool.block_size");
    double has = answer_number(there, "pool.free") + answer_number(there, "pool.cached") +
                 answer_number(there, "pool.host_free");
    cJSON_Delete(there);
    enum move_result result = size > 0 ? add_up(o, size, &needed) : MOVE_DONE;
    if (result != MOVE_DONE || needed.sequences == 0)
        return result;
    if (needed.blocks <= has) {
        if (!o->json) {
            say_needed(&needed, has);
            fputc('\n', stderr);
        }
        return MOVE_DONE;
    }
    cJSON *here = get(o->from, STATS);
    fputs("attnctl: ", stderr);
    say_needed(&needed, has);
    fprintf(stderr, "; here %.0f are held, but what is shared is moved once for each%s\n",
            answer_number(here, "pool.held"), o->force ? "" : ". Nothing is moved; --force moves what fits");
    cJSON_Delete(here);
    return o->force ? MOVE_DONE : MOVE_FAILED;
}

/* Whether sequences can go from the daemon that answers to `there`; *step: tokens of a range that both know. */
static enum move_result check_source(const struct move_options *o, const struct node *there, uint32_t *step)
{
    struct node here;
    enum move_result result = learn(o, o->from, &here);
    if (result != MOVE_DONE)
        return result;
    if (here.instance[0] &&
        strcmp(here.instance, there->instance) == 0) { /* each would get another id, and its clients a 410 */
        cJSON_Delete(here.geometry);
        fprintf(stderr, "attnctl: --to is the daemon that has them: nothing is moved%s\n",
                command_is_proxy(o->to_url) && !o->to_node
                    ? "; --to-node N says which daemon behind the proxy takes them"
                    : "");
        return MOVE_MISNAMED;
    }
    *step = here.range_tokens < *step ? here.range_tokens : *step;
    snprintf(o->owners->own, sizeof o->owners->own, "%s", here.key);
    bool same = is_same_model(&here, there);
    cJSON_Delete(here.geometry);
    return same ? MOVE_DONE : MOVE_FAILED;
}

/* 0: it is none. */
static uint64_t read_id(const char *text)
{
    char *end;
    double id = strtod(text, &end);
    return *end || !(id >= 1) || id > (double)COMMAND_ID_MOST || id != floor(id) ? 0 : (uint64_t)id;
}

/* Likewise of all sequences that are named, before any is moved. Through a proxy each daemon is asked that has some of them. */
static enum move_result check_sources(const struct move_options *o, const struct node *there, uint32_t *step)
{
    enum move_result result = MOVE_DONE;
    uint64_t node = 0;
    bool asked = false;
    for (size_t i = 0; i < o->count && result == MOVE_DONE; i++) {
        uint64_t id = read_id(o->ids[i]);
        if (!id || (asked && (o->node_given || http_client_node_of(id) == node)))
            continue;
        node = http_client_node_of(id);
        asked = true;
        if (!o->node_given)
            http_client_about(o->from, id);
        result = check_source(o, there, step);
        http_client_about(o->from, 0);
    }
    return result;
}

static enum move_result move_ids(const struct move_options *o, uint32_t step)
{
    enum move_result result = MOVE_DONE;
    for (size_t i = 0; i < o->count && result != MOVE_UNAVAILABLE; i++) {
        uint64_t id = read_id(o->ids[i]);
        if (!id)
            fprintf(stderr, "attnctl: \"%.40s\" is no id\n", o->ids[i]);
        result = worse(result, id ? move_one(o, (double)id, step) : MOVE_FAILED);
    }
    return result;
}

static enum move_result move_all(const struct move_options *o, uint32_t step)
{
    size_t found = 0;
    enum move_result result = check_room(o);
    if (result != MOVE_DONE)
        return result;
    for (double next = 0; next >= 0 && result != MOVE_UNAVAILABLE;)
        result = worse(result, move_page(o, step, &next, &found));
    if (found == 0 && result == MOVE_DONE)
        fputs("there are no sequences to move\n", stderr);
    if (!o->json && result != MOVE_UNAVAILABLE)
        say_what_stays(o);
    return result;
}

static enum move_result move(const struct move_options *o)
{
    struct node there;
    enum move_result result = learn(o, o->to, &there);
    if (result != MOVE_DONE)
        return result;
    uint32_t step = there.range_tokens;
    result = o->count ? check_sources(o, &there, &step) : check_source(o, &there, &step);
    cJSON_Delete(there.geometry);
    if (result != MOVE_DONE)
        return result;
    return o->count ? move_ids(o, step) : move_all(o, step);
}

/* ---- the command --------------------------------------------------------------------------------- */

static int run_move(const struct command *c)
{
    const char *url = command_option(c, "to"), *as = command_option(c, "as");
    const char *key_file = command_option(c, "to-key-file");
    bool all = command_option(c, "all") != NULL;
    char *key = NULL;
    uint64_t to_node = 0;
    struct owners owners = {0};
    if (!url || (c->argc > 0) == all)
        return command_usage("move wants --to URL, and ids or --all");
    if (!command_check_url("--to", url) || !command_integer(c, "to-node", 0, CONFIG_NODE_MAX, &to_node))
        return EXIT_USAGE;
    if (all && !command_one_daemon(c, "move --all"))
        return EXIT_USAGE;
    if (key_file && !(key = command_read_key(key_file)))
        return EXIT_USAGE;
    struct http_client *to = http_client_create(url, key ? key : c->key, c->ca_file);
    const struct move_options options = {.from = c->client,
                                         .to = to,
                                         .url = as                              ? as
                                                : strncmp(url, "unix:", 5) == 0 ? ""
                                                                                : url,
                                         .to_url = url,
                                         .to_node = command_option(c, "to-node"),
                                         .salt = command_option(c, "salt"),
                                         .ids = c->argv,
                                         .count = all ? 0 : (size_t)c->argc,
                                         .node_given = c->node != NULL,
                                         .force = command_option(c, "force") != NULL,
                                         .json = c->json,
                                         .owners = &owners};
    if (!to)
        return command_usage("out of memory");
    if (options.to_node)
        http_client_ask_node(to, to_node);
    enum move_result result = move(&options);
    if (owners.count > 0 && !c->json)
        fprintf(stderr, "%zu sequence%s moved with %s owner%s (%zu other key%s)\n", owners.sequences,
                plural(owners.sequences), owners.sequences == 1 ? "its" : "their", plural(owners.count),
                owners.count, plural(owners.count));
    free(owners.names);
    http_client_destroy(to);
    free(key);
    return result == MOVE_DONE          ? EXIT_OK
           : result == MOVE_UNAVAILABLE ? EXIT_UNAVAILABLE
           : result == MOVE_MISNAMED    ? EXIT_USAGE
                                        : EXIT_FAILED;
}

static const struct command_verb verbs[] = {{"", "--to URL ID... | --to URL --all", 0, -1, NULL, run_move},
                                            {0}};
static const struct command_option options[] = {
    {"to", "URL", "the daemon that they go to"},
    {"to-node", "N", "behind a proxy the daemon with this number"},
    {"all", NULL, "all sequences, but for those that a workload drives"},
    {"force", NULL, "of --all: move what fits, where not all can"},
    {"to-key-file", "FILE", "the key for that daemon (default: the same one)"},
    {"as", "URL", "what its clients call it (default: the URL)"},
    {"salt", "TEXT", "their prompts are found there under this salt only"},
    {0}};

const struct command_info move_info = {
    .name = "move",
    .text = "bring sequences to another daemon",
    .verbs = verbs,
    .options = options,
    .more = "Calls on a sequence that was moved are told where it is. What sequences share\n"
            "here they do not share there: --all says before it moves how many blocks that\n"
            "takes. With an admin's key sequences of other keys belong to the keys of the\n"
            "same names there; those whose key is not there stay."};
