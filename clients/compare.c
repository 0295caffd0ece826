/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c - the kernels of a daemon, and of others beside it, on the same K, V and q: times, errors and bits.
 *
 * A layout of blocks has its kernels: hnd the native one, vllm (on a GPU) vLLM's paged_v1 and paged_v2. So one daemon compares what
 * its layout has; --with names another one, and --own starts two. Each gets a lease, the same generated numbers by
 * POST /v1/paged, and the same queries through block tables whose blocks are scattered. Times are those of the steps, as the
 * answers say them, not of HTTP. The exact result is computed here, in double precision. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/own_daemon.h"
#include "clients/tensors.h"
#include "clients/terminal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    K,
    V,
    Q,
    RESULTS_MOST = 16,
    HEADER_ROOM = 65536,
    SLOTS_MOST = 1024 /* of a call: less than any scheduler.step_rows_max worth having */,
    NAME_BYTES = 64,
    SEQUENCE_TOKENS = 131072, /* limits.sequence_tokens, unless it is set */
    TABLE_SLACK = 256,
    LAYER = 0
};

static const double EXACT_MOST = 1 << 28; /* products that are computed here: a second or less */

/* A kernel on a daemon. */
struct result {
    char daemon[NAME_BYTES], kernel[NAME_BYTES];
    double best_us, median_us, bytes_read, roof_fraction,
        error; /* error: of the largest element of its head; negative: not known */
    char *o;   /* as it came */
    size_t bytes;
    char dtype[12];
};

struct compare {
    const struct command *c;
    uint64_t batch, context, repeat, seed;
    struct command here;
    struct model model;
    uint64_t lease;
    int64_t *blocks; /* [batch][per_sequence] */
    size_t per_sequence;
    struct result results[RESULTS_MOST];
    size_t count;
    bool has_native, has_paged;
    char above_roof[200]; /* why a share of the roof is above 1; empty: none is */
};

/* ---- a daemon's blocks --------------------------------------------------------------------------- */

static enum exit_code take_blocks(struct compare *k)
{
    char body[64];
    const cJSON *block;
    cJSON *lease;
    size_t i = 0,
           all = k->batch * (k->per_sequence = (k->context + k->model.block_size - 1) / k->model.block_size);
    snprintf(body, sizeof body, "{\"blocks\":%zu}", all);
    enum exit_code code = command_fetch(&k->here, "POST", "/v1/leases", body, &lease);
    if (!lease)
        return code;
    k->lease = (uint64_t)answer_number(lease, "id");
    k->blocks = calloc(all, sizeof *k->blocks);
    cJSON_ArrayForEach (block, answer_at(lease, "blocks")) {
        /* One after the other to each sequence in turn: no table has neighbours. */
        if (k->blocks && i < all)
            k->blocks[i % k->batch * k->per_sequence + i / k->batch] = (int64_t)block->valuedouble;
        i++;
    }
    cJSON_Delete(lease);
    if (k->blocks && i == all)
        return EXIT_OK;
    fprintf(stderr, "attnctl: the lease has %zu of %zu blocks\n", i, all);
    return EXIT_FAILED;
}

static void give_back(struct compare *k)
{
    char path[COMMAND_PATH_BYTES];
    const struct http_request request = {.method = "DELETE", .path = path};
    snprintf(path, sizeof path, "/v1/leases/%llu", (unsigned long long)k->lease);
    if (k->lease)
        http_client_send(k->here.client, &request);
    free(k->blocks);
    k->blocks = NULL;
    k->lease = 0;
}

/* Send tensors to /v1/paged. */
static struct http_reply send_paged(struct compare *k, const struct tensors *t, const char *kernel)
{
    char path[COMMAND_PATH_BYTES];
    struct http_request request = {
        .method = "POST", .path = path, .type = "application/x-safetensors", .stopped = terminal_interrupted};
    char *body = tensors_body(t, NULL, &request.body_bytes);
    request.body = body;
    request.accept = kernel ? "application/x-safetensors" : NULL;
    snprintf(path, sizeof path, "/v1/paged?lease=%llu&layer=%d%s%s", (unsigned long long)k->lease, LAYER,
             kernel && *kernel ? "&kernel=" : "", kernel ? kernel : "");
    struct http_reply reply = http_client_send(k->here.client, &request);
    free(body);
    return reply;
}

/* Write tokens first..first+n-1, counted over all sequences. */
static enum exit_code write_tokens(struct compare *k, uint64_t first, size_t n)
{
    const struct model *m = &k->model;
    size_t wide = (size_t)m->kv_heads * m->head_dim;
    const uint64_t shape[] = {n, m->kv_heads, m->head_dim};
    float *values = malloc(n * wide * sizeof *values);
    int64_t *slots = malloc(n * sizeof *slots);
    struct tensors t = {0};
    enum exit_code code = EXIT_FAILED;
    for (size_t i = 0; slots && i < n; i++) {
        uint64_t sequence = (first + i) / k->context, at = (first + i) % k->context;
        slots[i] = k->blocks[sequence * k->per_sequence + at / m->block_size] * m->block_size +
                   (int64_t)(at % m->block_size);
    }
    if (values && slots) {
        tensors_add_integers(&t, "slot_mapping", slots, n, 0);
        for (int which = K; which <= V; which++) {
            tensors_generate(k->seed, (uint64_t)which, first * wide, n * wide, values);
            tensors_add_values(&t, which == K ? "k" : "v", m->dtype, 3, shape, values);
        }
        struct http_reply reply = send_paged(k, &t, NULL);
        code = reply.status >= 200 && reply.status < 300 ? EXIT_OK : command_explain(&reply);
    }
    tensors_free(&t);
    free(values);
    free(slots);
    return code;
}

static enum exit_code write_all(struct compare *k)
{
    uint64_t all = k->batch * k->context;
    size_t token = (size_t)k->model.kv_heads * k->model.head_dim * 2 * sizeof(float) + sizeof(int64_t);
    size_t most = k->model.body_bytes / 2 > HEADER_ROOM ? (k->model.body_bytes - HEADER_ROOM) / token : 1;
    enum exit_code code = EXIT_OK;
    most = most > SLOTS_MOST ? SLOTS_MOST : most;
    for (uint64_t first = 0; first < all && code == EXIT_OK; first += most)
        code = terminal_interrupted() ? EXIT_INTERRUPTED
                                      : write_tokens(k, first, all - first < most ? all - first : most);
    return code;
}

/* ---- a kernel ------------------------------------------------------------------------------------ */

/* q, a row a sequence, with all tables. */
static void add_queries(const struct compare *k, struct tensors *t)
{
    const struct model *m = &k->model;
    size_t wide = (size_t)m->query_heads * m->head_dim;
    const uint64_t shape[] = {k->batch, m->query_heads, m->head_dim};
    float *q = malloc(k->batch * wide * sizeof *q);
    int64_t *lengths = malloc(k->batch * sizeof *lengths);
    if (!q || !lengths)
        abort();
    for (size_t i = 0; i < k->batch; i++)
        lengths[i] = (int64_t)k->context;
    tensors_generate(k->seed, Q, 0, k->batch * wide, q);
    tensors_add_integers(t, "block_tables", k->blocks, k->batch * k->per_sequence, k->per_sequence);
    tensors_add_integers(t, "context_lens", lengths, k->batch, 0);
    tensors_add_values(t, "q", m->dtype, 3, shape, q);
    free(q);
    free(lengths);
}

/* What attention gives for one head of one query, in double precision, to o[head_dim]. */
static void exact_head(const struct compare *k, const float *keys, const float *values, const float *q,
                       uint32_t kv_head, double *scores, double *o)
{
    const struct model *m = &k->model;
    size_t wide = (size_t)m->kv_heads * m->head_dim;
    double most = -INFINITY, sum = 0;
    for (size_t t = 0; t < k->context; t++) {
        const float *key = keys + t * wide + (size_t)kv_head * m->head_dim;
        double score = 0;
        for (uint32_t d = 0; d < m->head_dim; d++)
            score += (double)q[d] * (double)key[d];
        scores[t] = score * m->scale;
        most = fmax(most, scores[t]);
    }
    memset(o, 0, m->head_dim * sizeof *o);
    for (size_t t = 0; t < k->context; t++) {
        const float *value = values + t * wide + (size_t)kv_head * m->head_dim;
        double weight = exp(scores[t] - most);
        sum += weight;
        for (uint32_t d = 0; d < m->head_dim; d++)
            o[d] += weight * (double)value[d];
    }
    for (uint32_t d = 0; d < m->head_dim; d++)
        o[d] /= sum;
}

/* The largest error of `o` over some sequences, relative to the largest element of its head; negative: this model has more than
 * plain attention, or numbers that are rounded when they are stored. */
static double error_of(const struct compare *k, const struct tensor *o)
{
    const struct model *m = &k->model;
    double each = (double)m->query_heads * (double)k->context * m->head_dim, worst = 0;
    size_t rows = (double)k->batch * each < EXACT_MOST ? k->batch : (size_t)fmax(1, EXACT_MOST / each);
    size_t wide = (size_t)m->kv_heads * m->head_dim, q_wide = (size_t)m->query_heads * m->head_dim;
    float *keys = malloc(k->context * wide * sizeof *keys),
          *values = malloc(k->context * wide * sizeof *values);
    float *q = malloc(q_wide * sizeof *q);
    double *scores = malloc(k->context * sizeof *scores), *exact = malloc(m->head_dim * sizeof *exact);
    bool can = m->is_plain && keys && values && q && scores && exact;
    for (size_t row = 0; can && row < rows; row++) {
        tensors_generate(k->seed, K, row * k->context * wide, k->context * wide, keys);
        tensors_generate(k->seed, V, row * k->context * wide, k->context * wide, values);
        tensors_generate(k->seed, Q, row * q_wide, q_wide, q);
        for (uint32_t head = 0; head < m->query_heads; head++) {
            double largest = 0, difference = 0;
            exact_head(k, keys, values, q + (size_t)head * m->head_dim, head / (m->query_heads / m->kv_heads),
                       scores, exact);
            for (uint32_t d = 0; d < m->head_dim; d++) {
                largest = fmax(largest, fabs(exact[d]));
                difference =
                    fmax(difference,
                         fabs(tensors_value(o, row * q_wide + (size_t)head * m->head_dim + d) - exact[d]));
            }
            worst = fmax(worst, largest > 0 ? difference / largest : difference);
        }
    }
    free(keys);
    free(values);
    free(q);
    free(scores);
    free(exact);
    return can ? worst : -1;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Note one answer; false: it is not what was asked for. */
static bool note_answer(struct compare *k, struct result *r, const struct http_reply *reply, bool first,
                        double *us)
{
    struct tensors t;
    cJSON *metadata;
    bool ok = tensors_read(reply->text, reply->bytes, &t, &metadata);
    const struct tensor *o = tensors_find(&t, "o");
    size_t elements = k->batch * k->model.query_heads * k->model.head_dim;
    ok = ok && o && (o->bytes == 2 * elements || o->bytes == 4 * elements);
    *us = strtod(answer_text(metadata, "step_us"), NULL);
    if (ok && first) {
        r->bytes = o->bytes;
        r->o = malloc(o->bytes);
        snprintf(r->dtype, sizeof r->dtype, "%s", o->dtype);
        snprintf(r->kernel, sizeof r->kernel, "%s", answer_text(metadata, "kernel"));
        r->bytes_read = strtod(answer_text(metadata, "bytes_read"), NULL);
        r->error = error_of(k, o);
    }
    if (ok && first && r->o)
        memcpy(r->o, o->data, o->bytes);
    r->roof_fraction = fmax(r->roof_fraction, strtod(answer_text(metadata, "roof_fraction"), NULL));
    if (answer_at(metadata, "above_roof"))
        terminal_escape(answer_text(metadata, "above_roof"), k->above_roof, sizeof k->above_roof);
    ok = ok && r->o && (first || (r->bytes == o->bytes && memcmp(r->o, o->data, o->bytes) == 0));
    if (!ok)
        fprintf(stderr, "attnctl: %s\n",
                r->o && !first ? "the same call gave other bits" : "an answer without o");
    cJSON_Delete(metadata);
    return ok;
}

static enum exit_code measure(struct compare *k, const char *kernel)
{
    struct result *r = &k->results[k->count];
    struct tensors t = {0};
    double *us = calloc(k->repeat + 1, sizeof *us);
    enum exit_code code = us ? EXIT_OK : EXIT_FAILED;
    *r = (struct result){.best_us = INFINITY};
    terminal_escape(k->here.url, r->daemon, sizeof r->daemon);
    add_queries(k, &t);
    /* The first call warms up. */
    for (uint64_t i = 0; i <= k->repeat && code == EXIT_OK; i++) {
        struct http_reply reply = send_paged(k, &t, kernel);
        if (reply.status < 200 || reply.status > 299)
            code = terminal_interrupted() ? EXIT_INTERRUPTED : command_explain(&reply);
        else if (!note_answer(k, r, &reply, i == 0, &us[i]))
            code = EXIT_FAILED;
    }
    tensors_free(&t);
    if (code == EXIT_OK) {
        qsort(us + 1, k->repeat, sizeof *us, by_size);
        r->best_us = us[1];
        r->median_us = us[1 + k->repeat / 2];
        k->count++;
    } else {
        free(r->o);
    }
    free(us);
    return code;
}

/* Every kernel that this daemon has for its layout. */
static enum exit_code compare_here(struct compare *k)
{
    bool paged = strcmp(k->model.layout, "vllm") == 0 && strcmp(k->model.backend, "cuda") == 0;
    enum exit_code code = take_blocks(k);
    if (code == EXIT_OK)
        code = write_all(k);
    if (code == EXIT_OK && k->count + 2 <= RESULTS_MOST)
        code = measure(k, paged ? "paged_v1" : "");
    if (code == EXIT_OK && paged && k->count < RESULTS_MOST)
        code = measure(k, "paged_v2");
    k->has_paged |= code == EXIT_OK && paged;
    k->has_native |= code == EXIT_OK && strcmp(k->model.layout, "vllm") != 0;
    give_back(k);
    return code;
}

/* ---- daemons ------------------------------------------------------------------------------------- */

static enum exit_code compare_url(struct compare *k, const char *url, const char *key)
{
    struct model first = k->model;
    k->here = *k->c;
    k->here.url = url;
    k->here.client = http_client_create(url, key, k->c->ca_file);
    if (!k->here.client)
        return EXIT_FAILED;
    enum exit_code code = model_fetch(&k->here, &k->model);
    bool same =
        !first.layers || (first.query_heads == k->model.query_heads && first.kv_heads == k->model.kv_heads &&
                          first.head_dim == k->model.head_dim && strcmp(first.dtype, k->model.dtype) == 0);
    if (code == EXIT_OK && !same) {
        fputs("attnctl: the daemons have other heads or another dtype: there is nothing to compare\n",
              stderr);
        code = EXIT_FAILED;
    }
    if (code == EXIT_OK)
        code = compare_here(k);
    http_client_destroy(k->here.client);
    return code;
}

static enum exit_code compare_own(struct compare *k, const char *layout)
{
    char set[64], tokens[64];
    const char *arguments[7] = {"--set", set, "--set", tokens}, *config = command_option(k->c, "config");
    uint64_t all =
        k->batch * (k->context + TABLE_SLACK); /* of the lease: a block of each may be partly filled */
    snprintf(tokens, sizeof tokens, "limits.sequence_tokens=%llu",
             (unsigned long long)(all > SEQUENCE_TOKENS ? all : SEQUENCE_TOKENS));
    snprintf(set, sizeof set, "geometry.layout=%s", layout);
    if (config) {
        arguments[4] = "--config";
        arguments[5] = config;
    }
    struct own_daemon *d = own_daemon_start(command_option(k->c, "attnd"), arguments);
    enum exit_code code = d                        ? compare_url(k, own_daemon_url(d), NULL)
                          : terminal_interrupted() ? EXIT_INTERRUPTED
                                                   : EXIT_UNAVAILABLE;
    /* Its socket is gone then, and says nothing to anybody. */
    for (size_t i = 0; d && i < k->count; i++) {
        if (strcmp(k->results[i].daemon, own_daemon_url(d)) == 0)
            snprintf(k->results[i].daemon, sizeof k->results[i].daemon, "%s", layout);
    }
    own_daemon_stop(d);
    return code;
}

static void print_results(const struct compare *k)
{
    const struct model *m = &k->model;
    printf("batch %llu, context %llu; %u/%u heads of %u, %s; a layer, %llu calls each\n\n",
           (unsigned long long)k->batch, (unsigned long long)k->context, m->query_heads, m->kv_heads,
           m->head_dim, m->dtype, (unsigned long long)k->repeat);
    printf("%-24s %-12s %9s %9s %8s %8s %9s %s\n", "daemon", "kernel", "best us", "median", "GB/s", "of roof",
           "error", "bits");
    for (size_t i = 0; i < k->count; i++) {
        const struct result *r = &k->results[i];
        char error[16] = "-", kernel[NAME_BYTES * 4];
        size_t same = 0; /* the first one with the same bits */
        while (same < i &&
               (k->results[same].bytes != r->bytes || memcmp(k->results[same].o, r->o, r->bytes) != 0))
            same++;
        if (r->error >= 0)
            snprintf(error, sizeof error, "%.6f", r->error);
        printf("%-24.24s %-12.12s %9.1f %9.1f %8.1f %8.2f %9s %c\n", r->daemon,
               terminal_escape(r->kernel, kernel, sizeof kernel), r->best_us, r->median_us,
               r->bytes_read / r->best_us * 1e-3, r->roof_fraction, error, (char)('A' + same));
    }
    puts("\nbits: the same letter, the same bits. error: against double precision, of the largest\n"
         "element of a head; - where the model has more than plain attention or stores fp8.");
    if (k->above_roof[0])
        printf("of roof above 1: %s.\n", k->above_roof);
}

/* What was not compared, and what it takes. */
static void print_missing(const struct compare *k)
{
    if (!k->has_paged)
        printf("\nNot compared: vLLM's paged_v1 and paged_v2. They need a daemon with a GPU and its blocks\n"
               "in vLLM's layout; the one at hand has the layout %s and the backend %s:\n"
               "    attnd --backend cuda --set geometry.layout=vllm --set listen=127.0.0.1:8401\n"
               "    attnctl compare --with http://127.0.0.1:8401       (or: attnctl compare --own)\n",
               k->model.layout, k->model.backend);
    if (!k->has_native)
        puts("\nNot compared: the native kernel. It needs a daemon with the layout hnd, the default:\n"
             "    attnd --set listen=127.0.0.1:8401\n"
             "    attnctl compare --with http://127.0.0.1:8401       (or: attnctl compare --own)");
}

static int run_compare(const struct command *c)
{
    struct compare k = {.c = c, .batch = 8, .context = 1024, .repeat = 20, .seed = 1};
    const char *with = command_option(c, "with");
    bool own = command_option(c, "own") != NULL;
    if (!command_integer(c, "batch", 1, 4096, &k.batch) ||
        !command_integer(c, "context", 1, 1 << 24, &k.context) ||
        !command_integer(c, "repeat", 1, 100000, &k.repeat) ||
        !command_integer(c, "seed", 0, COMMAND_ID_MOST, &k.seed))
        return EXIT_USAGE;
    if (with && !command_check_url("--with", with))
        return EXIT_USAGE;
    if (own && with)
        return command_usage("compare starts daemons (--own), or asks that of --with");
    if (!own && (command_option(c, "attnd") || command_option(c, "config")))
        return command_usage("--attnd and --config are for daemons that --own starts");
    terminal_watch_signals();
    enum exit_code code = own ? compare_own(&k, "hnd") : compare_url(&k, c->url, c->key);
    if (code == EXIT_OK && (own || with))
        code = own ? compare_own(&k, "vllm") : compare_url(&k, with, c->key);
    if (k.count) {
        print_results(&k);
        print_missing(&k);
    }
    for (size_t i = 0; i < k.count; i++)
        free(k.results[i].o);
    return (int)code;
}

static const struct command_verb verbs[] = {{"", "[OPTION]...", 0, 0, NULL, run_compare}, {0}};
static const struct command_option options[] = {
    {"batch", "N", "sequences, with a query each (8)"},
    {"context", "N", "tokens of each (1024)"},
    {"repeat", "N", "calls of each kernel (20)"},
    {"seed", "N", "of the numbers (1)"},
    {"with", "URL", "another daemon, with the other layout"},
    {"own", NULL, "start two daemons, one a layout, instead"},
    {"attnd", "PATH", "of --own: the daemon (beside attnctl, or in $PATH)"},
    {"config", "FILE", "likewise: their configuration"},
    {0}};

const struct command_info compare_info = {
    .name = "compare",
    .text = "the native kernel beside vLLM's paged_v1 and paged_v2",
    .verbs = verbs,
    .text_only = true,
    .options = options,
    .more = "A daemon has the kernels of its geometry.layout: hnd the native one; vllm, on a\n"
            "GPU, paged_v1 and paged_v2. What is not compared is said, with what it needs."};
