/* SPDX-License-Identifier: Apache-2.0 */
/* kv_file.c - K and V of a sequence to a file, and from one: GET and PUT /v1/sequences/{id}/kv.
 *
 * The file is safetensors, k and v [layers, T, kv_heads, head_dim] as they are stored, and token_ids as far as they are known. What
 * fits one answer is that answer. A longer sequence comes in ranges, which are put together here; then __metadata__ has, instead of
 * one digest, "ranges": "0:512:DIGEST 512:700:DIGEST", and importing sends the same ranges, so that each is checked as ever.
 *
 *     file   k  layer 0: [range 0][range 1]  layer 1: [range 0][range 1] ...   v likewise   token_ids [range 0][range 1] */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/sequences.h"
#include "clients/tensors.h"
#include "clients/terminal.h"
#include "config/numbers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ETAG_BYTES = 128, DIGEST_BYTES = 40, RANGE_BYTES = 80 };

/* A sequence on its way to a file. */
struct export
{
    const struct command *c;
    uint64_t id, first, end, step;
    uint32_t layers;
    char etag[ETAG_BYTES];
    struct tensors all; /* k, v and token_ids, without their data */
    char *k, *v;        /* [layers][tokens][row_bytes] */
    int64_t *ids;
    size_t row_bytes, id_count;
    cJSON *metadata; /* of the first range */
    char *ranges;    /* "0:512:DIGEST ..." */
};

static int file_error(const char *file)
{
    fputs("attnctl: ", stderr);
    terminal_put(stderr, file);
    fprintf(stderr, ": %s\n", strerror(errno));
    return EXIT_FAILED;
}

/* ---- out ----------------------------------------------------------------------------------------- */

/* Note a range that has come; false: it is not what was asked for. */
static bool take_range(struct export *e, const char *body, size_t bytes, uint64_t first, uint64_t end)
{
    struct tensors t;
    cJSON *metadata;
    char range[RANGE_BYTES];
    bool ok = tensors_read(body, bytes, &t, &metadata);
    const struct tensor *k = tensors_find(&t, "k"), *v = tensors_find(&t, "v"),
                        *ids = tensors_find(&t, "token_ids");
    uint64_t tokens = end - first, all = e->end - e->first;
    ok = ok && k && v && k->rank == 4 && k->shape[1] == tokens && k->shape[0] > 0 && k->bytes == v->bytes &&
         k->bytes % (k->shape[0] * tokens) == 0 && (!ids || ids->bytes <= tokens * sizeof *e->ids);
    if (ok && !e->k) {
        e->all = t;
        e->layers = (uint32_t)k->shape[0];
        e->row_bytes = k->bytes / (k->shape[0] * tokens);
        e->metadata = metadata;
        metadata = NULL;
        e->k = malloc(e->layers * all * e->row_bytes);
        e->v = malloc(e->layers * all * e->row_bytes);
        e->ids = calloc(all, sizeof *e->ids);
        e->ranges = calloc((all + e->step - 1) / e->step, RANGE_BYTES);
    }
    ok = ok && e->k && e->v && e->ids && e->ranges && k->bytes == e->layers * tokens * e->row_bytes;
    for (uint32_t l = 0; ok && l < e->layers; l++) {
        size_t to = (l * all + first - e->first) * e->row_bytes, from = l * tokens * e->row_bytes;
        memcpy(e->k + to, k->data + from, tokens * e->row_bytes);
        memcpy(e->v + to, v->data + from, tokens * e->row_bytes);
    }
    if (ok && ids && e->id_count == first - e->first) {
        memcpy(e->ids + e->id_count, ids->data, ids->bytes);
        e->id_count += ids->bytes / sizeof *e->ids;
    }
    if (ok) {
        snprintf(range, sizeof range, "%s%llu:%llu:%.36s", *e->ranges ? " " : "", (unsigned long long)first,
                 (unsigned long long)end, answer_text(metadata ? metadata : e->metadata, "digest"));
        strcat(e->ranges, range);
    }
    cJSON_Delete(metadata);
    return ok;
}

static enum exit_code get_range(struct export *e, uint64_t first, uint64_t end, struct http_reply *reply)
{
    char path[COMMAND_PATH_BYTES];
    const struct http_request request = {.method = "GET",
                                         .path = path,
                                         .accept = "application/x-safetensors",
                                         .stopped = terminal_interrupted,
                                         .if_match = e->etag[0] ? e->etag : NULL};
    snprintf(path, sizeof path, "/v1/sequences/%llu/kv?range=%llu:%llu", (unsigned long long)e->id,
             (unsigned long long)first, (unsigned long long)end);
    *reply = http_client_send(e->c->client, &request);
    if (reply->status < 200 || reply->status > 299)
        return terminal_interrupted() ? EXIT_INTERRUPTED : command_explain(reply);
    snprintf(e->etag, sizeof e->etag, "%s", reply->etag);
    return EXIT_OK;
}

/* Put the ranges together and write them; the header says how. */
static int write_ranges(struct export *e, FILE *f, const char *file)
{
    struct tensors t = {0};
    uint64_t all = e->end - e->first;
    size_t bytes = e->layers * all * e->row_bytes, header = 0;
    char range[RANGE_BYTES];
    const char *const names[] = {"k", "v"};
    for (size_t i = 0; i < 2; i++) {
        t.list[i] = *tensors_find(&e->all, names[i]);
        t.list[i].shape[1] = all;
        t.list[i].begin = i * bytes;
        t.list[i].bytes = bytes;
    }
    t.count = 2;
    if (e->id_count)
        t.list[t.count++] = (struct tensor){.name = "token_ids",
                                            .dtype = "I64",
                                            .rank = 1,
                                            .shape = {e->id_count},
                                            .begin = 2 * bytes,
                                            .bytes = e->id_count * sizeof *e->ids};
    snprintf(range, sizeof range, "%llu:%llu", (unsigned long long)e->first, (unsigned long long)e->end);
    cJSON_DeleteItemFromObject(e->metadata, "digest");
    cJSON_DeleteItemFromObject(e->metadata, "range");
    cJSON_AddStringToObject(e->metadata, "range", range);
    cJSON_AddStringToObject(e->metadata, "ranges", e->ranges);
    char *metadata = cJSON_PrintUnformatted(e->metadata), *head = tensors_body(&t, metadata, &header);
    bool ok = head && fwrite(head, 1, header, f) == header && fwrite(e->k, 1, bytes, f) == bytes &&
              fwrite(e->v, 1, bytes, f) == bytes &&
              fwrite(e->ids, sizeof *e->ids, e->id_count, f) == e->id_count;
    free(metadata);
    free(head);
    return ok ? EXIT_OK : file_error(file);
}

/* Bring it over, range after range, and write it. */
static int export_to(struct export *e, FILE *f, const char *file)
{
    struct http_reply reply = {0};
    if (e->end - e->first <= e->step) {
        enum exit_code code = get_range(e, e->first, e->end, &reply);
        if (code != EXIT_OK)
            return code;
        return fwrite(reply.text, 1, reply.bytes, f) == reply.bytes ? EXIT_OK : file_error(file);
    }
    for (uint64_t first = e->first; first < e->end; first += e->step) {
        uint64_t end = e->end - first < e->step ? e->end : first + e->step;
        enum exit_code code = get_range(e, first, end, &reply);
        if (code != EXIT_OK)
            return code;
        if (!take_range(e, reply.text, reply.bytes, first, end)) {
            fprintf(stderr, "attnctl: tokens %llu:%llu came in a form that is not known\n",
                    (unsigned long long)first, (unsigned long long)end);
            return EXIT_FAILED;
        }
    }
    return write_ranges(e, f, file);
}

/* "FIRST:END" of --range; absent: all that the sequence has. */
static int find_range(struct export *e)
{
    char path[COMMAND_PATH_BYTES];
    const char *range = command_option(e->c, "range");
    unsigned long long first, end;
    cJSON *sequence;
    int used = 0;
    snprintf(path, sizeof path, "/v1/sequences/%llu", (unsigned long long)e->id);
    int code = command_fetch(e->c, "GET", path, NULL, &sequence);
    if (code != EXIT_OK)
        return code;
    e->end = (uint64_t)answer_number(sequence, "length");
    cJSON_Delete(sequence);
    if (range && (sscanf(range, "%llu:%llu%n", &first, &end, &used) != 2 || range[used] || first >= end ||
                  end > e->end))
        return command_usage("--range wants FIRST:END within its %llu token%s", (unsigned long long)e->end,
                             plural(e->end));
    if (range) {
        e->first = first;
        e->end = end;
    }
    if (e->first < e->end)
        return EXIT_OK;
    fprintf(stderr, "attnctl: sequence %llu has no tokens\n", (unsigned long long)e->id);
    return EXIT_FAILED;
}

static int run_export(const struct command *c)
{
    struct model m;
    struct export e = {.c = c};
    char temporary[4096];
    const char *file = c->argv[1];
    bool to_output = strcmp(file, "-") == 0;
    if (!command_read_integer("the id", c->argv[0], 1, COMMAND_ID_MOST, &e.id))
        return EXIT_USAGE;
    int code = model_fetch(c, &m);
    if (code == EXIT_OK)
        code = find_range(&e);
    if (code != EXIT_OK)
        return code;
    e.step = m.kv_range_tokens ? m.kv_range_tokens : 1;
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.part", file) >= sizeof temporary)
        return command_usage("the name of the file is too long");
    FILE *f = to_output ? stdout : fopen(temporary, "wb");
    if (!f)
        return file_error(file);
    terminal_watch_signals();
    code = export_to(&e, f, file);
    if (fflush(f) != 0 && code == EXIT_OK)
        code = file_error(file);
    if (!to_output)
        fclose(f);
    /* The file is there when it is whole. */
    if (!to_output && code == EXIT_OK && rename(temporary, file) != 0)
        code = file_error(file);
    if (!to_output && code != EXIT_OK)
        unlink(temporary);
    if (!to_output && code == EXIT_OK && !c->json)
        printf("tokens %llu:%llu of sequence %llu\n", (unsigned long long)e.first, (unsigned long long)e.end,
               (unsigned long long)e.id);
    cJSON_Delete(e.metadata);
    free(e.k);
    free(e.v);
    free(e.ids);
    free(e.ranges);
    return code;
}

/* ---- in ------------------------------------------------------------------------------------------ */

static enum exit_code put(const struct command *c, uint64_t id, uint64_t first, uint64_t end,
                          const char *body, size_t bytes, char bits[24])
{
    char path[COMMAND_PATH_BYTES];
    const struct http_request request = {.method = "PUT",
                                         .path = path,
                                         .type = "application/x-safetensors",
                                         .body = body,
                                         .body_bytes = bytes,
                                         .stopped = terminal_interrupted};
    snprintf(path, sizeof path, "/v1/sequences/%llu/kv?range=%llu:%llu", (unsigned long long)id,
             (unsigned long long)first, (unsigned long long)end);
    struct http_reply reply = http_client_send(c->client, &request);
    if (reply.status < 200 || reply.status > 299)
        return terminal_interrupted() ? EXIT_INTERRUPTED : command_explain(&reply);
    cJSON *answer = cJSON_Parse(reply.text);
    snprintf(bits, 24, "%s", answer_text(answer, "bits"));
    cJSON_Delete(answer);
    return EXIT_OK;
}

/* The body of one range of a file. */
static char *cut_range(const struct tensors *t, const cJSON *metadata, uint64_t at, uint64_t tokens,
                       const char *digest, size_t *bytes)
{
    const struct tensor *ids = tensors_find(t, "token_ids");
    const char *const names[] = {"k", "v"};
    uint64_t known = ids && ids->shape[0] > at ? ids->shape[0] - at : 0;
    size_t kv_bytes = tensors_find(t, "k")->bytes / tensors_find(t, "k")->shape[1] * tokens;
    struct tensors cut = {.count = 2, .n = 2 * kv_bytes, .room = 2 * kv_bytes, .data = malloc(2 * kv_bytes)};
    known = known < tokens ? known : tokens;
    int64_t *some = malloc((known + 1) * sizeof *some); /* those of a file need not be aligned */
    if (!cut.data || !some) {
        free(cut.data);
        free(some);
        return NULL;
    }
    for (size_t i = 0; i < 2; i++) {
        const struct tensor *all = tensors_find(t, names[i]);
        size_t layer_bytes = all->bytes / all->shape[0], row_bytes = layer_bytes / all->shape[1];
        cut.list[i] = *all;
        cut.list[i].shape[1] = tokens;
        cut.list[i].begin = i * kv_bytes;
        cut.list[i].bytes = kv_bytes;
        for (uint64_t l = 0; l < all->shape[0]; l++)
            memcpy(cut.data + i * kv_bytes + l * tokens * row_bytes,
                   all->data + l * layer_bytes + at * row_bytes, tokens * row_bytes);
    }
    if (known) {
        memcpy(some, ids->data + at * sizeof *some, known * sizeof *some);
        tensors_add_integers(&cut, "token_ids", some, known, 0);
    }
    free(some);
    cJSON *says = cJSON_Duplicate(metadata, true);
    cJSON_DeleteItemFromObject(says, "ranges");
    cJSON_DeleteItemFromObject(says, "range");
    if (*digest)
        cJSON_AddStringToObject(says, "digest", digest);
    char *text = cJSON_IsObject(says) ? cJSON_PrintUnformatted(says) : NULL;
    char *body = tensors_body(&cut, text, bytes);
    cJSON_Delete(says);
    free(text);
    tensors_free(&cut);
    return body;
}

/* Send the ranges that the file is made of; where it says none, as many as it takes. */
static enum exit_code import_ranges(const struct command *c, const struct model *m, uint64_t id,
                                    const struct tensors *t, const cJSON *metadata, uint64_t at,
                                    char bits[24])
{
    const char *ranges = answer_text(metadata, "ranges");
    uint64_t tokens = tensors_find(t, "k")->shape[1], done = 0, origin = 0;
    enum exit_code code = EXIT_OK;
    for (const char *s = ranges; done < tokens && code == EXIT_OK;) {
        unsigned long long first, end;
        char digest[DIGEST_BYTES] = "";
        int used = 0;
        uint64_t n = tokens - done < m->kv_range_tokens ? tokens - done : m->kv_range_tokens;
        if (sscanf(s, "%llu:%llu:%39[0-9a-f]%n", &first, &end, digest, &used) == 3 && used > 0) {
            origin = done == 0 ? first : origin;
            s += used;
            if (first != origin + done || end <= first || end - first > tokens - done) {
                fprintf(stderr, "attnctl: the file's \"ranges\" are not in order\n");
                return EXIT_FAILED;
            }
            n = end - first;
        }
        size_t bytes = 0;
        char *body = cut_range(t, metadata, done, n, digest, &bytes);
        code = body ? put(c, id, at + done, at + done + n, body, bytes, bits) : EXIT_FAILED;
        free(body);
        done += n;
    }
    return code;
}

/* A new sequence, or the one that is named; where it ends to *at. */
static int find_target(const struct command *c, uint64_t *id, uint64_t *at, bool *is_new)
{
    char path[COMMAND_PATH_BYTES];
    cJSON *sequence;
    *is_new = c->argc < 2;
    if (!*is_new && !command_read_integer("the id", c->argv[1], 1, COMMAND_ID_MOST, id))
        return EXIT_USAGE;
    snprintf(path, sizeof path, "/v1/sequences/%llu", (unsigned long long)*id);
    int code = *is_new ? command_fetch(c, "POST", "/v1/sequences", "{}", &sequence)
                       : command_fetch(c, "GET", path, NULL, &sequence);
    *id = sequence ? (uint64_t)answer_number(sequence, "id") : *id;
    *at = (uint64_t)answer_number(sequence, "length");
    cJSON_Delete(sequence);
    return code;
}

static int import_tensors(const struct command *c, const char *data, size_t bytes, const struct tensors *t,
                          const cJSON *metadata)
{
    const struct tensor *k = tensors_find(t, "k"), *v = tensors_find(t, "v");
    char path[COMMAND_PATH_BYTES], bits[24] = "";
    struct model m;
    uint64_t id = 0, at = 0;
    bool is_new;
    if (!k || !v || k->rank != 4 || v->rank != 4 || k->bytes != v->bytes || !k->bytes ||
        k->shape[1] != v->shape[1]) {
        fputs("attnctl: the file has no k and v [layers, tokens, kv_heads, head_dim]\n", stderr);
        return EXIT_FAILED;
    }
    int code = model_fetch(c, &m);
    if (code == EXIT_OK)
        code = find_target(c, &id, &at, &is_new);
    if (code != EXIT_OK)
        return code;
    bool whole = k->shape[1] <= m.kv_range_tokens && !*answer_text(metadata, "ranges");
    code = whole ? put(c, id, at, at + k->shape[1], data, bytes, bits)
                 : import_ranges(c, &m, id, t, metadata, at, bits);
    if (code == EXIT_OK && c->json)
        printf("{\"id\":%llu,\"length\":%llu,\"bits\":\"%s\"}\n", (unsigned long long)id,
               (unsigned long long)(at + k->shape[1]), bits);
    else if (code == EXIT_OK)
        printf("sequence %llu has %llu token%s, %llu of them from the file; bits %s\n",
               (unsigned long long)id, (unsigned long long)(at + k->shape[1]), plural(at + k->shape[1]),
               (unsigned long long)k->shape[1], bits);
    else if (is_new) {
        struct http_request request = {.method = "DELETE", .path = path};
        snprintf(path, sizeof path, "/v1/sequences/%llu", (unsigned long long)id);
        http_client_send(c->client, &request);
    }
    return code;
}

static int run_import(const struct command *c)
{
    struct tensors t;
    cJSON *metadata;
    size_t bytes;
    char *data = command_read_file(c->argv[0], &bytes);
    if (!data)
        return EXIT_FAILED;
    terminal_watch_signals();
    int code = EXIT_FAILED;
    if (tensors_read(data, bytes, &t, &metadata))
        code = import_tensors(c, data, bytes, &t, metadata);
    else
        fprintf(stderr, "attnctl: %s is no safetensors\n", c->argv[0]);
    cJSON_Delete(metadata);
    free(data);
    return code;
}

static const struct command_verb export_verbs[] = {
    {"", "ID FILE", 2, 2, "K and V as they are stored, in safetensors; - for standard output", run_export},
    {0}};
static const struct command_verb import_verbs[] = {
    {"", "FILE [ID]", 1, 2, "to the end of a sequence; absent: to a new one. - for standard input",
     run_import},
    {0}};
static const struct command_option export_options[] = {{"range", "FIRST:END", "these tokens (all)"}, {0}};

const struct command_info kv_file_export_info = {.name = "export",
                                                 .text = "write K and V of a sequence to a file",
                                                 .verbs = export_verbs,
                                                 .options = export_options};
const struct command_info kv_file_import_info = {
    .name = "import",
    .text = "append K and V of a file to a sequence",
    .verbs = import_verbs,
    .more = "The daemon checks geometry, parameters and digests, and says whether what is\n"
            "computed will have the same bits."};
