/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - append tokens to a sequence and attend to it, with numbers from the command line or generated ones.
 *
 *     attnctl append 7 --k 1,0,0,0,0,0,0,0:0,1,0,0,0,0,0,0 --v 1:3      two tokens
 *     attnctl attend 7 --q 0                                            2 2 2 2 2 2 2 2
 *
 * Generated numbers depend on --seed, the tensor, the position and the layer, so an append that is repeated has the same ones. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/sequences.h"
#include "clients/tensors.h"
#include "clients/terminal.h"
#include "config/numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { K, V, Q, SHOWN_ELEMENTS = 8, TOKENS_MOST = 1 << 20, HEADER_ROOM = 4096 };

/* Tokens to append: their numbers, or where those come from. */
struct rows {
    float *k, *v; /* [count][kv_heads * head_dim], the same for all layers; NULL: generated */
    int64_t *ids; /* [count]; NULL: none */
    size_t count;
    uint64_t seed;
};

/* What went wrong, as the problem document says it; where there is none, in the same members. */
static cJSON *problem_of(const struct http_reply *reply)
{
    cJSON *problem = reply->status && reply->text ? cJSON_Parse(reply->text) : NULL;
    if (cJSON_IsObject(problem))
        return problem;
    cJSON_Delete(problem);
    problem = cJSON_CreateObject();
    cJSON_AddNumberToObject(problem, "status", (double)reply->status);
    cJSON_AddStringToObject(problem, "detail", reply->status || !reply->text ? "no JSON" : reply->text);
    return problem;
}

/* Send a body of tensors, and parse the answer, or why there is none. With --json an answer is printed. */
static enum exit_code send_tensors(const struct command *c, const char *path, const struct tensors *t,
                                   cJSON **answer)
{
    struct http_request request = {.method = "POST", .path = path, .type = "application/x-safetensors"};
    char *body = tensors_body(t, NULL, &request.body_bytes);
    request.body = body;
    struct http_reply reply = http_client_send(c->client, &request);
    free(body);
    if (reply.status < 200 || reply.status > 299) {
        *answer = problem_of(&reply);
        return command_explain(&reply);
    }
    if (c->json)
        fputs(reply.text, stdout);
    *answer = cJSON_Parse(reply.text);
    return EXIT_OK;
}

/* "5,6,7" into rows->ids, which are as many as tokens. */
static bool read_ids(const char *text, struct rows *rows)
{
    size_t n;
    rows->ids = command_read_ids(text, &n);
    if (rows->ids && n == rows->count)
        return true;
    command_usage("--tokens wants an id for each of %zu tokens, with commas between", rows->count);
    return false;
}

static bool read_rows(const struct command *c, const struct model *m, struct rows *rows)
{
    const char *k = command_option(c, "k"), *v = command_option(c, "v"), *ids = command_option(c, "tokens");
    size_t count_v = 0;
    uint64_t count = 1;
    bool counted = c->argc == 2 || command_option(c, "count");
    if ((k != NULL) != (v != NULL) || (k && (counted || command_option(c, "seed")))) {
        command_usage("append wants --k and --v, or --count and --seed for generated numbers");
        return false;
    }
    if (!command_count(c, TOKENS_MOST, &count) || !command_integer(c, "seed", 0, UINT64_MAX, &rows->seed))
        return false;
    for (const char *s = ids && !k && !counted ? ids : ""; *s; s++)
        count += *s == ','; /* so many tokens as ids */
    rows->count = count;
    if (k && (!(rows->k = tensors_parse_rows("k", k, m->kv_heads, m->head_dim, &rows->count)) ||
              !(rows->v = tensors_parse_rows("v", v, m->kv_heads, m->head_dim, &count_v))))
        return false;
    if (k && count_v != rows->count) {
        command_usage("--k has %zu row%s, and --v %zu", rows->count, plural(rows->count), count_v);
        return false;
    }
    return !ids || read_ids(ids, rows);
}

/* k or v of tokens first..first+n-1 of those to append, whose first one has the position `at`, for layers low..low+layers-1. */
static void add_kv(struct tensors *t, const struct model *m, const struct rows *rows, int which, uint32_t low,
                   uint32_t layers, size_t first, size_t n, uint64_t at)
{
    size_t wide = (size_t)m->kv_heads * m->head_dim;
    const float *given = which == K ? rows->k : rows->v;
    float *values = malloc(layers * n * wide * sizeof *values);
    const uint64_t shape[] = {layers, n, m->kv_heads, m->head_dim};
    for (uint32_t l = 0; values && l < layers; l++) {
        float *to = values + l * n * wide;
        if (given)
            memcpy(to, given + first * wide, n * wide * sizeof *to);
        else
            tensors_generate(rows->seed, (uint64_t)(low + l) * 4 + (uint64_t)which, (at + first) * wide,
                             n * wide, to);
    }
    if (values && layers > 1)
        tensors_add_values(t, which == K ? "k" : "v", m->dtype, 4, shape, values);
    else if (values)
        tensors_add_values(t, which == K ? "k" : "v", m->dtype, 3, shape + 1, values);
    free(values);
}

/* One call: some of the tokens. When it fails, *problem is why, to be deleted. */
static enum exit_code append_some(const struct command *c, const struct model *m, const struct rows *rows,
                                  uint64_t id, uint32_t low, uint32_t layers, size_t first, size_t n,
                                  uint64_t at, cJSON **problem)
{
    char path[COMMAND_PATH_BYTES] = "/v1/append";
    const int64_t sequences[] = {(int64_t)id}, indptr[] = {0, (int64_t)n};
    struct tensors t = {0};
    cJSON *answer;
    tensors_add_integers(&t, "sequences", sequences, 1, 0);
    tensors_add_integers(&t, "indptr", indptr, 2, 0);
    add_kv(&t, m, rows, K, low, layers, first, n, at);
    add_kv(&t, m, rows, V, low, layers, first, n, at);
    if (rows->ids)
        tensors_add_integers(&t, "token_ids", rows->ids + first, n, 0);
    if (layers == 1 && m->layers > 1)
        snprintf(path, sizeof path, "/v1/append?layer=%u", low);
    enum exit_code code = send_tensors(c, path, &t, &answer);
    if (code == EXIT_OK)
        cJSON_Delete(answer);
    else
        *problem = answer;
    tensors_free(&t);
    return code;
}

/* The sequence as it is; NULL, and said why. */
static cJSON *look(const struct command *c, uint64_t id, enum exit_code *code)
{
    char path[COMMAND_PATH_BYTES];
    cJSON *sequence;
    snprintf(path, sizeof path, "/v1/sequences/%llu", (unsigned long long)id);
    *code = command_fetch(c, "GET", path, NULL, &sequence);
    return sequence;
}

/* Where the next token goes at this layer. */
static uint64_t end_of(const cJSON *sequence, uint32_t layer)
{
    const cJSON *length = cJSON_GetArrayItem(answer_at(sequence, "lengths"), (int)layer);
    return length ? (uint64_t)length->valuedouble : (uint64_t)answer_number(sequence, "length");
}

/* Whether the sequence may have so many tokens at all; else that was said. Of one call the daemon says it before anything is appended,
 * of several only in the midst of them. */
static bool can_fit(const struct model *m, uint64_t id, uint64_t tokens, uint64_t declared)
{
    uint64_t blocks = (tokens + m->block_size - 1) / m->block_size;
    if (tokens <= m->sequence_tokens && (!declared || tokens <= declared) && blocks <= m->blocks)
        return true;
    fprintf(stderr, "attnctl: sequence %llu would have %llu tokens", (unsigned long long)id,
            (unsigned long long)tokens);
    if (tokens > m->sequence_tokens)
        fprintf(stderr, "; limits.sequence_tokens is %llu", (unsigned long long)m->sequence_tokens);
    else if (declared && tokens > declared)
        fprintf(stderr, "; it declared max_tokens %llu", (unsigned long long)declared);
    else
        fprintf(stderr, " and needs %llu blocks; the pool has %llu", (unsigned long long)blocks,
                (unsigned long long)m->blocks);
    fputs(": nothing was appended\n", stderr);
    return false;
}

/* Say on stdout, too, that not all was appended: the documents before this one are answers of the calls that were done. */
static void print_stopped(size_t done, size_t wanted, const cJSON *problem)
{
    char *text = cJSON_PrintUnformatted(problem);
    printf("{\"appended\":%zu,\"wanted\":%zu,\"problem\":%s}\n", done, wanted, text ? text : "null");
    free(text);
}

/* Whether what was appended is still there: no more of a sequence or a daemon that is gone. */
static bool can_be_taken_back(const cJSON *problem)
{
    double status = answer_number(problem, "status");
    return status != 0 && status != 404 && status != 410 && !command_reached_none(problem);
}

/* Say on stderr how many tokens a sequence has got that had `at` before. */
static void say_stopped(size_t done, size_t wanted, size_t most, uint64_t id, uint64_t at,
                        const cJSON *problem)
{
    fprintf(stderr, "attnctl: %zu of %zu tokens were appended, %zu a call", done, wanted, most);
    if (can_be_taken_back(problem))
        fprintf(stderr, "; attnctl seq truncate %llu %llu takes them back", (unsigned long long)id,
                (unsigned long long)at);
    fputc('\n', stderr);
}

static int append_all(const struct command *c, const struct model *m, const struct rows *rows, uint64_t id)
{
    uint64_t layer = 0;
    enum exit_code code;
    bool one = command_option(c, "layer") != NULL;
    if (!command_integer(c, "layer", 0, m->layers - 1, &layer))
        return EXIT_USAGE;
    uint32_t layers = one ? 1 : m->layers;
    size_t token_bytes = (size_t)m->kv_heads * m->head_dim * 2 * sizeof(float) * layers;
    size_t most = m->body_bytes > HEADER_ROOM ? (m->body_bytes - HEADER_ROOM) / token_bytes : 0;
    cJSON *before = look(c, id, &code);
    if (!before)
        return code;
    uint64_t at = end_of(before, (uint32_t)layer), declared = (uint64_t)answer_number(before, "max_tokens");
    cJSON_Delete(before);
    most = most < 1 ? 1 : most > m->rows_per_call ? m->rows_per_call : most;
    if (rows->count > most && !can_fit(m, id, at + rows->count, declared))
        return EXIT_FAILED;
    size_t done = 0;
    cJSON *problem = NULL;
    while (done < rows->count && code == EXIT_OK) {
        size_t n = rows->count - done < most ? rows->count - done : most;
        code = append_some(c, m, rows, id, (uint32_t)layer, layers, done, n, at, &problem);
        done += code == EXIT_OK ? n : 0;
    }
    if (code != EXIT_OK && done > 0 && c->json)
        print_stopped(done, rows->count, problem);
    if (code != EXIT_OK && done > 0)
        say_stopped(done, rows->count, most, id, at, problem);
    cJSON_Delete(problem);
    cJSON *after = code == EXIT_OK && !c->json ? look(c, id, &code) : NULL;
    if (after)
        sequences_print(after);
    cJSON_Delete(after);
    return code;
}

static int append(const struct command *c)
{
    struct model m;
    struct rows rows = {0};
    uint64_t id;
    if (!command_read_integer("the id", c->argv[0], 1, COMMAND_ID_MOST, &id))
        return EXIT_USAGE;
    http_client_about(c->client, id);
    int code = model_fetch(c, &m);
    if (code == EXIT_OK)
        code = read_rows(c, &m, &rows) ? append_all(c, &m, &rows, id) : EXIT_USAGE;
    free(rows.k);
    free(rows.v);
    free(rows.ids);
    return code;
}

/* ---- attend -------------------------------------------------------------------------------------- */

/* The output of one head of one row. */
static void show_head(size_t row, int head, const cJSON *o, const cJSON *lse)
{
    const cJSON *element;
    int left = SHOWN_ELEMENTS;
    printf("row %zu head %-3d ", row, head);
    cJSON_ArrayForEach (element, o) {
        if (left-- == 0) {
            fputs(" ...", stdout);
            break;
        }
        printf(" %7.4g", element->valuedouble);
    }
    if (cJSON_IsNumber(lse))
        printf("   lse %.5g", lse->valuedouble);
    putchar('\n');
}

static void show_outputs(const cJSON *answer)
{
    const cJSON *row, *head;
    char kernel[64];
    size_t r = 0;
    cJSON_ArrayForEach (row, answer_at(answer, "o")) {
        const cJSON *lse = cJSON_GetArrayItem(answer_at(answer, "lse"), (int)r);
        int h = 0;
        cJSON_ArrayForEach (head, row) {
            show_head(r, h, head, cJSON_GetArrayItem(lse, h));
            h++;
        }
        r++;
    }
    printf("%.1f us in its step, %.0f bytes of K and V, kernel %s\n", answer_number(answer, "step_us"),
           answer_number(answer, "bytes_read"),
           terminal_escape(answer_text(answer, "kernel"), kernel, sizeof kernel));
}

static int attend_with(const struct command *c, const struct model *m, uint64_t id)
{
    char path[COMMAND_PATH_BYTES];
    const char *given = command_option(c, "q");
    uint64_t count = 1, seed = 0, layer = 0;
    size_t rows = 0, wide = (size_t)m->query_heads * m->head_dim;
    struct tensors t = {0};
    cJSON *answer;
    float *q = NULL;
    if (given && (command_option(c, "count") || command_option(c, "seed")))
        return command_usage("attend wants --q, or --count and --seed for generated numbers");
    if (!command_integer(c, "count", 1, m->rows_per_call, &count) ||
        !command_integer(c, "seed", 0, UINT64_MAX, &seed) ||
        !command_integer(c, "layer", 0, m->layers - 1, &layer))
        return EXIT_USAGE;
    if (given) {
        q = tensors_parse_rows("q", given, m->query_heads, m->head_dim, &rows);
    } else if ((q = calloc(count * wide, sizeof *q))) {
        rows = count;
        tensors_generate(seed, layer * 4 + Q, 0, rows * wide, q);
    }
    if (!q)
        return EXIT_USAGE;
    const int64_t sequences[] = {(int64_t)id}, indptr[] = {0, (int64_t)rows};
    const uint64_t shape[] = {rows, m->query_heads, m->head_dim};
    tensors_add_integers(&t, "sequences", sequences, 1, 0);
    tensors_add_integers(&t, "indptr", indptr, 2, 0);
    tensors_add_values(&t, "q", m->dtype, 3, shape, q);
    snprintf(path, sizeof path, "/v1/attend?layer=%llu&lse=1&accept=json", (unsigned long long)layer);
    int code = send_tensors(c, path, &t, &answer);
    if (code == EXIT_OK && answer && !c->json)
        show_outputs(answer);
    cJSON_Delete(answer);
    tensors_free(&t);
    free(q);
    return code;
}

static int attend(const struct command *c)
{
    struct model m;
    uint64_t id;
    if (!command_read_integer("the id", c->argv[0], 1, COMMAND_ID_MOST, &id))
        return EXIT_USAGE;
    http_client_about(c->client, id);
    int code = model_fetch(c, &m);
    return code == EXIT_OK ? attend_with(c, &m, id) : code;
}

static const struct command_verb append_verbs[] = {
    {"", "ID --k ROWS --v ROWS [OPTION]...", 1, 2, "tokens with these numbers, the same at every layer",
     append},
    {"", "ID [--count N] [--seed N] [OPTION]...", 1, 1, "tokens with generated numbers", append},
    {0}};
static const struct command_verb attend_verbs[] = {
    {"", "ID --q ROWS [--layer N]", 1, 1, "what queries at its end get", attend},
    {"", "ID [--count N] [--seed N] [--layer N]", 1, 1, "generated queries, of its last tokens", attend},
    {0}};
static const struct command_option append_options[] = {
    {"k", "ROWS", "a row a token"},
    {"v", "ROWS", "likewise"},
    {"count", "N", "tokens (1)"},
    {"seed", "N", "another one generates others (0)"},
    {"tokens", "ID,ID...", "of the prompt: published for reuse"},
    {"layer", "N", "of this layer only (all)"},
    {0}};
static const struct command_option attend_options[] = {{"q", "ROWS", "a row a query"},
                                                       {"count", "N", "queries (1)"},
                                                       {"seed", "N", "another one generates others (0)"},
                                                       {"layer", "N", "at this layer (0)"},
                                                       {0}};
#define ROWS_HELP                                                                                            \
    "ROWS: rows with : between, numbers with commas between. A row has a number for\n"                       \
    "all elements, for each element of a head, or for each of all heads:\n1,0,0,0,0,0,0,0:3"

const struct command_info attention_append_info = {
    .name = "append",
    .text = "append tokens to a sequence",
    .verbs = append_verbs,
    .options = append_options,
    .more = ROWS_HELP "\n\nMany tokens go in several calls. --json prints their answers; when a later call\n"
                      "fails, a last line has \"appended\", \"wanted\" and its \"problem\"."};
const struct command_info attention_attend_info = {.name = "attend",
                                                   .text = "attend to a sequence, and show what comes out",
                                                   .verbs = attend_verbs,
                                                   .options = attend_options,
                                                   .more = ROWS_HELP};
