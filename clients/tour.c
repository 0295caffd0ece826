/* SPDX-License-Identifier: Apache-2.0 */
/* tour.c - six steps through paging: create, append, fork, write, share, fill. Each is a call of the API, shown as a line for
 * a shell, with the block tables before and after it.
 *
 *     after     1  [0 4/4 x2] [1 2/4]        block 0, 4 of its 4 tokens, held by two sequences; block 1 ...
 *               2  [0 4/4 x2] [2 3/4]
 *
 * What the tour makes is deleted at its end. The last step takes all free blocks for a moment, so it is left out where somebody
 * else uses the daemon. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/curl_line.h"
#include "clients/own_daemon.h"
#include "clients/screen.h"
#include "clients/tensors.h"
#include "clients/terminal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SEQUENCES_MOST = 8,
    TABLE_BLOCKS = 8, /* of a sequence that are drawn */
    LINE_BYTES = 2048,
    ANSWER_SHOWN = 160,
    JSON_MOST = 60000, /* of a body: the daemon takes 64 KiB */
    LEASE_MOST = 100000
};

struct tour {
    struct command c; /* of the daemon at hand */
    struct model model;
    struct screen screen; /* for its styles */
    uint64_t ids[SEQUENCES_MOST];
    size_t count;
    uint64_t lease; /* 0: none */
    bool waits, failed;
    char *before; /* the tables as they were last drawn */
};

/* ---- tables -------------------------------------------------------------------------------------- */

/* The table of one sequence. */
static void draw_table(struct tour *t, FILE *f, uint64_t id)
{
    char path[COMMAND_PATH_BYTES];
    const cJSON *item;
    cJSON *blocks, *sequence;
    int left = TABLE_BLOCKS;
    snprintf(path, sizeof path, "/v1/sequences/%llu", (unsigned long long)id);
    command_try(&t->c, path, &sequence);
    const char *state = answer_text(sequence, "state");
    fprintf(f, "%6llu ", (unsigned long long)id);
    if (strcmp(state, "swapped") == 0)
        fprintf(f, " %sswapped to host memory%s", screen_style(&t->screen, SCREEN_MAGENTA),
                screen_style(&t->screen, SCREEN_PLAIN));
    snprintf(path, sizeof path, "/v1/sequences/%llu/blocks?limit=%d", (unsigned long long)id,
             TABLE_BLOCKS + 1);
    command_try(&t->c, path, &blocks);
    if (strcmp(state, "swapped") != 0 && cJSON_GetArraySize(blocks) == 0)
        fputs(sequence ? " no blocks" : " gone", f);
    cJSON_ArrayForEach (item, blocks) {
        double refs = answer_number(item, "refs");
        if (strcmp(state, "swapped") == 0 || left-- == 0) {
            fputs(left < 0 ? " ..." : "", f);
            break;
        }
        fprintf(f, " %s[%.0f %.0f/%u", screen_style(&t->screen, refs > 1 ? SCREEN_CYAN : SCREEN_GREEN),
                answer_number(item, "block"), answer_number(item, "fill"), t->model.block_size);
        if (refs > 1)
            fprintf(f, " x%.0f", refs);
        fprintf(f, "]%s", screen_style(&t->screen, SCREEN_PLAIN));
    }
    fputc('\n', f);
    cJSON_Delete(blocks);
    cJSON_Delete(sequence);
}

/* All tables, as text to be freed. */
static char *draw_tables(struct tour *t)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        abort();
    if (t->count == 0)
        fputs("       no sequence of the tour\n", f);
    for (size_t i = 0; i < t->count; i++)
        draw_table(t, f, t->ids[i]);
    if (t->lease)
        fprintf(f, "%6llu  a lease has the other blocks\n", (unsigned long long)t->lease);
    fclose(f);
    return text;
}

static void print_tables(const char *name, const char *text)
{
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        printf("%-7s%.*s\n", line == text ? name : "", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

static void show_tables(struct tour *t)
{
    char *after = draw_tables(t);
    if (t->before)
        print_tables("before", t->before);
    print_tables("after", after);
    putchar('\n');
    free(t->before);
    t->before = after;
}

/* ---- calls --------------------------------------------------------------------------------------- */

static void show_answer(const struct http_reply *reply)
{
    char text[ANSWER_SHOWN * 4];
    size_t n = reply->bytes < ANSWER_SHOWN ? reply->bytes : ANSWER_SHOWN;
    char piece[ANSWER_SHOWN + 1];
    memcpy(piece, reply->text ? reply->text : "", reply->text ? n : 0);
    piece[reply->text ? n : 0] = '\0';
    piece[strcspn(piece, "\r\n")] = '\0';
    printf("    %s%s\n", terminal_escape(piece, text, sizeof text), reply->bytes > ANSWER_SHOWN ? "..." : "");
}

/* Make a call and show it, with `program`, a pipe that makes its body, or NULL, as the line says it. Returns its answer, to be
 * deleted; of a refusal, which is shown, too, only if it is wanted. */
static cJSON *call(struct tour *t, const char *method, const char *path, const char *body,
                   const char *program, bool may_fail)
{
    char line[LINE_BYTES];
    const struct http_request request = {.method = method, .path = path, .body = body};
    curl_line_write(t->c.url, t->c.key, t->c.ca_file, method, path, program ? "@-" : body, line, sizeof line);
    printf("    %s%s%s%s%s\n", screen_style(&t->screen, SCREEN_BOLD), program ? program : "",
           program ? " | " : "", line, screen_style(&t->screen, SCREEN_PLAIN));
    struct http_reply reply = http_client_send(t->c.client, &request);
    bool ok = reply.status >= 200 && reply.status < 300;
    if (!ok && !may_fail) {
        command_explain(&reply);
        t->failed = true;
        return NULL;
    }
    if (reply.bytes)
        show_answer(&reply);
    return reply.bytes ? cJSON_Parse(reply.text) : NULL;
}

static void note(struct tour *t, const cJSON *sequence)
{
    if (answer_number(sequence, "id") > 0 && t->count < SEQUENCES_MOST)
        t->ids[t->count++] = (uint64_t)answer_number(sequence, "id");
}

/* A tensor of ones: [layers][n][kv_heads][head_dim]. */
static void put_ones(FILE *f, const struct model *m, uint32_t n)
{
    const uint32_t sides[] = {m->layers, n, m->kv_heads, m->head_dim};
    uint64_t total = 1;
    for (size_t i = 0; i < 4; i++)
        total *= sides[i];
    for (uint64_t at = 0; at < total; at++) {
        uint64_t inner = 1;
        if (at)
            fputc(',', f);
        for (size_t i = 4; i-- > 0;) { /* brackets that open here */
            inner *= sides[i];
            if (at % inner == 0)
                fputc('[', f);
        }
        fputc('1', f);
        inner = 1;
        for (size_t i = 4; i-- > 0;) { /* and that close */
            inner *= sides[i];
            if ((at + 1) % inner == 0)
                fputc(']', f);
        }
    }
}

/* Append n tokens; numbers are all 1, tables do not care. Where JSON is too small for them, attnctl says it. */
static bool append_tokens(struct tour *t, uint64_t id, uint32_t n, bool may_fail)
{
    const struct model *m = &t->model;
    char program[512], *body = NULL, count[16], name[24];
    size_t bytes = 0;
    if ((uint64_t)m->layers * n * m->kv_heads * m->head_dim * 4 > JSON_MOST) {
        char *argv[] = {name};
        struct command c = t->c;
        snprintf(name, sizeof name, "%llu", (unsigned long long)id);
        snprintf(count, sizeof count, "%u", n);
        c.argv = argv;
        c.argc = 1;
        c.info = &attention_append_info;
        memset(c.values, 0, sizeof c.values);
        for (size_t i = 0; c.info->options[i].name; i++) {
            if (strcmp(c.info->options[i].name, "count") == 0)
                c.values[i] = count;
        }
        printf("    attnctl append %s --count %s       (more numbers than JSON may have)\n    ", name, count);
        fflush(stdout);
        bool ok = c.info->verbs->run(&c) == EXIT_OK;
        if (!ok)
            puts("(refused)");
        t->failed |= !ok && !may_fail;
        return ok || may_fail;
    }
    snprintf(program, sizeof program,
             "jq -nc 'def ones: [range(%u) | [range(%u) | [range(%u) | [range(%u) | 1]]]]; "
             "{sequences: [%llu], indptr: [0,%u], k: ones, v: ones}'",
             m->layers, n, m->kv_heads, m->head_dim, (unsigned long long)id, n);
    FILE *f = open_memstream(&body, &bytes);
    if (!f)
        abort();
    fprintf(f, "{\"sequences\":[%llu],\"indptr\":[0,%u],\"k\":", (unsigned long long)id, n);
    put_ones(f, m, n);
    fputs(",\"v\":", f);
    put_ones(f, m, n);
    fputc('}', f);
    fclose(f);
    cJSON *answer = call(t, "POST", "/v1/append", body, program, may_fail);
    free(body);
    cJSON_Delete(answer);
    return !t->failed;
}

/* ---- the steps ----------------------------------------------------------------------------------- */

static void __attribute__((format(printf, 3, 4)))
begin(struct tour *t, const char *title, const char *format, ...)
{
    va_list args;
    printf("%s%s%s\n", screen_style(&t->screen, SCREEN_BOLD), title, screen_style(&t->screen, SCREEN_PLAIN));
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    puts("\n");
}

static void create(struct tour *t)
{
    begin(t, "1 of 6: create", "A sequence is a list of tokens that grows. It holds no memory yet.");
    cJSON *answer = call(t, "POST", "/v1/sequences", "{}", NULL, false);
    note(t, answer);
    cJSON_Delete(answer);
}

static void append(struct tour *t)
{
    uint32_t n = t->model.block_size + t->model.block_size / 2;
    n += t->model.block_size == 1;
    begin(t, "2 of 6: append",
          "K and V of %u tokens. A block has room for %u, so the sequence takes two, wherever\n"
          "there are free ones; its block table says which. [block fill/size]",
          n, t->model.block_size);
    append_tokens(t, t->ids[0], n, false);
}

static void fork_it(struct tour *t)
{
    char path[COMMAND_PATH_BYTES];
    const cJSON *item;
    begin(t, "3 of 6: fork",
          "A fork has the same tokens. Nothing is copied: both tables name the same blocks,\n"
          "and each block counts who holds it (x2).");
    snprintf(path, sizeof path, "/v1/sequences/%llu/fork", (unsigned long long)t->ids[0]);
    cJSON *answer = call(t, "POST", path, "{}", NULL, false);
    cJSON_ArrayForEach (item, answer_at(answer, "sequences")) {
        note(t, item);
    }
    cJSON_Delete(answer);
}

static void write_it(struct tour *t)
{
    begin(t, "4 of 6: write",
          t->model.block_size == 1
              ? "The fork gets a token of its own. Blocks of one token are never half full, so there\n"
                "is nothing to copy: it takes another block."
              : "The fork gets a token of its own. It would go into the half-full block that both\n"
                "hold, so that one is copied first: copy on write. Full blocks stay shared.");
    append_tokens(t, t->ids[1], 1, false);
}

/* The ids of the tokens of a prompt. */
static void write_prompt(char *body, size_t room, uint32_t n)
{
    size_t used = (size_t)snprintf(body, room, "{\"tokens\":[");
    for (uint32_t i = 0; i < n && used + 16 < room; i++)
        used += (size_t)snprintf(body + used, room - used, "%s%u", i ? "," : "", 101 + i);
    snprintf(body + used, room - used, "]}");
}

static void share(struct tour *t)
{
    uint32_t n = 2 * t->model.block_size < 128 ? 2 * t->model.block_size + 1 : t->model.block_size + 1;
    char body[4096];
    begin(t, "5 of 6: share",
          "Two prompts with the same token ids. What the first one appends is published under\n"
          "them; the second one finds its full blocks in the cache (cached_tokens) and shares\n"
          "them, though nobody forked.");
    write_prompt(body, sizeof body, n);
    cJSON *first = call(t, "POST", "/v1/sequences", body, NULL, false);
    note(t, first);
    cJSON_Delete(first);
    if (t->failed || !append_tokens(t, t->ids[t->count - 1], n, false))
        return;
    free(t->before);
    t->before = draw_tables(t);
    cJSON *second = call(t, "POST", "/v1/sequences", body, NULL, false);
    note(t, second);
    cJSON_Delete(second);
}

/* Whether nobody else, of any key, has anything here; *is_free: blocks that nobody has. */
static bool is_alone(struct tour *t, double *is_free, double *host)
{
    cJSON *stats;
    command_try(&t->c, "/stats?limit=1", &stats);
    *is_free = answer_number(stats, "pool.free");
    *host = answer_number(stats, "pool.host_blocks");
    double sequences = answer_number(stats, "scheduler.idle") + answer_number(stats, "scheduler.queued") +
                       answer_number(stats, "scheduler.running") + answer_number(stats, "scheduler.swapped");
    bool alone = stats && sequences == (double)t->count && answer_number(stats, "pool.leased") == 0 &&
                 *is_free >= 1 && *is_free <= LEASE_MOST;
    cJSON_Delete(stats);
    return alone;
}

static void fill(struct tour *t)
{
    char body[64];
    double is_free, host;
    if (!is_alone(t, &is_free, &host)) {
        begin(t, "6 of 6: fill",
              "Left out: it takes all free blocks for a moment, and there are other sequences or\n"
              "leases in this daemon (attnctl seq, attnctl lease), or too many blocks for one.\n"
              "attnctl tour --own starts one for itself.");
        return;
    }
    begin(t, "6 of 6: fill",
          "When no block is free, somebody has to give way. A lease takes all free blocks; then\n"
          "the first sequence grows by a block. %s",
          host > 0 ? "An idle sequence is swapped to host memory, and\ncomes back when it is used."
                   : "This daemon has no host memory to swap\nanybody to (pool.host_blocks), so the call is "
                     "refused, and nothing has changed.");
    snprintf(body, sizeof body, "{\"blocks\":%.0f}", is_free);
    cJSON *lease = call(t, "POST", "/v1/leases", body, NULL, false);
    t->lease = (uint64_t)answer_number(lease, "id");
    cJSON_Delete(lease);
    if (!t->failed)
        append_tokens(t, t->ids[0], t->model.block_size, true);
}

/* ---- from step to step --------------------------------------------------------------------------- */

static bool goes_on(struct tour *t, bool is_last)
{
    char line[16];
    if (t->failed || terminal_interrupted())
        return false;
    if (!t->waits || is_last)
        return true;
    fputs("Enter goes on, q ends: ", stdout);
    fflush(stdout);
    bool more = fgets(line, sizeof line, stdin) != NULL && line[0] != 'q';
    putchar('\n');
    return more && !terminal_interrupted();
}

/* What the tour has made goes, in one call where it can. */
static void clean_up(struct tour *t)
{
    char path[COMMAND_PATH_BYTES];
    struct http_request request = {.method = "DELETE", .path = path};
    snprintf(path, sizeof path, "/v1/leases/%llu", (unsigned long long)t->lease);
    if (t->lease)
        http_client_send(t->c.client, &request);
    for (size_t i = 0; i < t->count; i++) {
        snprintf(path, sizeof path, "/v1/sequences/%llu", (unsigned long long)t->ids[i]);
        http_client_send(t->c.client, &request);
    }
}

static int walk(struct tour *t)
{
    void (*const steps[])(struct tour *) = {create, append, fork_it, write_it, share, fill};
    enum { STEPS = sizeof steps / sizeof steps[0] };
    int code = model_fetch(&t->c, &t->model);
    if (code != EXIT_OK)
        return code;
    t->before = draw_tables(t);
    for (size_t i = 0; i < STEPS; i++) {
        steps[i](t);
        if (t->failed)
            break;
        putchar('\n');
        show_tables(t);
        if (!goes_on(t, i == STEPS - 1))
            break;
    }
    bool keeps = command_option(&t->c, "keep") != NULL;
    if (!keeps)
        clean_up(t);
    if (!t->failed && !terminal_interrupted())
        puts(keeps ? "Its sequences stay; attnctl seq lists them."
                   : "The tour has deleted what it made. attnctl blocks --watch shows the same on the map.");
    free(t->before);
    return t->failed ? EXIT_FAILED : terminal_interrupted() ? EXIT_INTERRUPTED : EXIT_OK;
}

static int run_tour(const struct command *c)
{
    static const char *const tiny[] = {
        "--set", "backend.name=cpu",    "--set", "geometry.layers=1",     "--set", "geometry.query_heads=1",
        "--set", "geometry.kv_heads=1", "--set", "geometry.head_dim=8",   "--set", "geometry.block_size=4",
        "--set", "geometry.dtype=f32",  "--set", "geometry.kv_dtype=f32", "--set", "pool.blocks=16",
        "--set", "pool.host_blocks=16", NULL};
    struct tour t = {.c = *c,
                     .waits = !command_option(c, "no-wait") && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    struct own_daemon *own = NULL;
    t.screen.colours = terminal_has_colours(stdout);
    terminal_watch_signals();
    if (command_option(c, "own")) {
        own = own_daemon_start(command_option(c, "attnd"), tiny);
        if (!own)
            return EXIT_UNAVAILABLE;
        t.c.url = own_daemon_url(own);
        t.c.key = NULL;
        t.c.client = http_client_create(t.c.url, NULL, NULL);
    }
    int code = t.c.client ? walk(&t) : EXIT_FAILED;
    if (own)
        http_client_destroy(t.c.client);
    own_daemon_stop(own);
    return code;
}

static const struct command_verb verbs[] = {{"", "[OPTION]...", 0, 0, NULL, run_tour}, {0}};
static const struct command_option options[] = {
    {"own", NULL, "start a daemon of 16 blocks, not the one at --url"},
    {"attnd", "PATH", "of --own: the daemon (beside attnctl, or in $PATH)"},
    {"no-wait", NULL, "do not wait for Enter between the steps"},
    {"keep", NULL, "leave its sequences"},
    {0}};

const struct command_info tour_info = {
    .name = "tour",
    .text = "six steps through paging, each a call and the block tables",
    .verbs = verbs,
    .text_only = true,
    .options = options,
    .more = "create, append, fork, write, share, fill. The calls are lines for a shell; jq\n"
            "makes their numbers. [3 2/4 x2]: block 3, 2 of its 4 tokens filled, held by two."};
