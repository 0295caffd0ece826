/* SPDX-License-Identifier: Apache-2.0 */
/* api_kv.c - /v1/sequences/{id}/kv and /moved: K and V of a sequence as they are stored, out of one daemon and into
 * another one.
 *
 *     GET  old  /v1/sequences/7/kv?range=0:512      k, v, token_ids, and in __metadata__ what they mean and a digest
 *     PUT  new  /v1/sequences/9/kv?range=0:512      the same body, at the same positions
 *     POST old  /v1/sequences/7/moved               calls on it are told where it is
 *
 * An ETag names the content of a sequence: appending leaves it as it is, cutting does not. What is put is an append,
 * with the rule for retries that appends have. */
#include "server/api.h"
#include "server/tensors.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 8192, /* of an export, at most */
    DIGEST_CHARS = 33,   /* XXH3-128 in hexadecimal */
    CONSTANTS_CHARS = 17,
    ISA_CHARS = 64
};

static const char FORMAT[] = "attnd-kv-1";

/* ---- what both have in common ---------------------------------------------------------------------- */

/* Bytes of K and V of a token at all layers, and of its id. */
static uint64_t token_bytes(const struct geometry *g)
{
    return geometry_token_bytes(g) * g->layers + sizeof(int64_t);
}

uint32_t api_kv_range_tokens(const struct config *config)
{
    uint64_t tokens = (config->limits.body_bytes - HEADER_BYTES) / token_bytes(&config->geometry);
    return tokens < config->limits.rows_per_call ? (uint32_t)tokens : config->limits.rows_per_call;
}

/* "range", FIRST:END. Absent it stays as it is. */
static int read_range(struct arguments *a, const struct config *config, uint32_t *first, uint32_t *end)
{
    struct http_text text = {NULL, 0};
    char range[32], *rest, wants[160];
    uint32_t most = api_kv_range_tokens(config);
    int rc = arguments_text(a, "range", sizeof range - 1, &text);
    if (rc != 0 || !arguments_has(a, "range"))
        return rc;
    memcpy(range, text.bytes, text.n);
    range[text.n] = '\0';
    bool digits = range[0] >= '0' && range[0] <= '9';
    unsigned long long from = digits ? strtoull(range, &rest, 10) : 0;
    digits = digits && rest[0] == ':' && rest[1] >= '0' && rest[1] <= '9';
    unsigned long long to = digits ? strtoull(rest + 1, &rest, 10) : 0;
    if (!digits || *rest || from >= to)
        return arguments_refuse(a, "range", "wants FIRST:END, the first token and the one behind the last");
    if (to > config->limits.sequence_tokens)
        return arguments_refuse(a, "range", "ends behind limits.sequence_tokens");
    snprintf(wants, sizeof wants,
             "is of %llu tokens, and K and V of at most %u fit an answer and a body: ask for it in parts",
             to - from, most);
    if (to - from > most)
        return arguments_refuse(a, "range", wants);
    *first = (uint32_t)from;
    *end = (uint32_t)to;
    return 0;
}

/* Which content If-Match wants; 0: any. */
static int read_condition(struct http_exchange *x, const struct request *request, uint64_t *content)
{
    unsigned long long instance = 0, number = 0;
    char text[64];
    int used = 0;
    if (x->head.if_match.n == 0 || http_text_is(x->head.if_match, "*"))
        return 0;
    snprintf(text, sizeof text, "%.*s", (int)(x->head.if_match.n < 60 ? x->head.if_match.n : 60),
             x->head.if_match.bytes);
    if (sscanf(text, "\"%16llx-%16llx\"%n", &instance, &number, &used) == 2 && text[used] == '\0' && used &&
        number && instance == answer_of(request)->daemon->instance) {
        *content = number;
        return 0;
    }
    http_problem(x, ATTND_CHANGED, "If-Match is no ETag of this daemon since its start");
    return ATTND_CHANGED;
}

/* XXH3-128 of k and, behind it, v. */
static void digest_of(const void *k, const void *v, size_t bytes, char text[DIGEST_CHARS])
{
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, k, bytes);
    XXH3_128bits_update(&state, v, bytes);
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    snprintf(text, DIGEST_CHARS, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

/* ---- out ------------------------------------------------------------------------------------------- */

static int parse_export(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"range", NULL};
    struct request_export *e = &request->export;
    struct arguments a;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_no_body(x);
    if (rc == 0)
        rc = read_range(&a, config, &e->first, &e->end);
    if (rc == 0 && e->end == 0)
        rc = arguments_refuse(&a, "range",
                              "is missing: FIRST:END, the first token and the one behind the last");
    if (rc == 0)
        rc = read_condition(x, request, &e->content);
    return rc;
}

static void write_metadata(struct json_writer *w, const struct request *request,
                           const struct render_context *c, const char *digest)
{
    const struct request_export *e = &request->export;
    char geometry[GEOMETRY_TEXT_BYTES], text[32];
    geometry_describe(&c->config->geometry, geometry);
    json_open(w, NULL, '{');
    json_string(w, "format", FORMAT);
    snprintf(text, sizeof text, "%llu", (unsigned long long)request->id);
    json_string(w, "sequence", text);
    snprintf(text, sizeof text, "%u:%u", e->first, e->end);
    json_string(w, "range", text);
    snprintf(text, sizeof text, "%u", e->length);
    json_string(w, "length", text);
    json_string(w, "geometry", geometry);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)e->constants);
    json_string(w, "parameters", text);
    json_string(w, "backend", c->backend->name);
    json_string(w, "isa", c->backend->isa);
    json_string(w, "digest", digest);
    json_close(w, '}');
}

static void render_export(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct geometry *g = &c->config->geometry;
    const struct request_export *e = &request->export;
    uint32_t tokens = e->end - e->first;
    size_t bytes = geometry_kv_bytes(g, tokens);
    struct named_tensors tensors = {.count = e->token_count ? 3 : 2};
    const struct named_tensor kv = {
        .rank = 4, .shape = {g->layers, tokens, g->kv_heads, g->head_dim}, .end = bytes};
    char metadata[1024], digest[DIGEST_CHARS];
    struct json_writer w;
    digest_of(e->k, e->v, bytes, digest);
    json_writer_init(&w, metadata, sizeof metadata);
    write_metadata(&w, request, c, digest);
    tensors.tensors[0] = tensors.tensors[1] = kv;
    for (int i = 0; i < 2; i++) {
        snprintf(tensors.tensors[i].name, sizeof kv.name, "%s", i == 0 ? "k" : "v");
        snprintf(tensors.tensors[i].dtype, sizeof kv.dtype, "%s", safetensors_dtype_name(g->kv_dtype));
    }
    tensors.tensors[2] = (struct named_tensor){.name = "token_ids",
                                               .dtype = "I64",
                                               .rank = 1,
                                               .shape = {e->token_count},
                                               .end = e->token_count * sizeof *e->tokens};
    metadata[w.length] = '\0';
    x->content_type = "application/x-safetensors";
    x->reply.length = safetensors_write_header(&tensors, metadata, x->reply.buffer, x->reply.capacity);
    x->reply.overflow = x->reply.length == 0 || w.overflow;
    x->tail[x->tail_count++] = (struct http_text){e->k, bytes};
    x->tail[x->tail_count++] = (struct http_text){e->v, bytes};
    if (e->token_count)
        x->tail[x->tail_count++] =
            (struct http_text){(const char *)e->tokens, e->token_count * sizeof *e->tokens};
    snprintf(x->extra, sizeof x->extra, "ETag: \"%llx-%llx\"\r\n", (unsigned long long)c->instance,
             (unsigned long long)e->content);
}

/* ---- in -------------------------------------------------------------------------------------------- */

/* What __metadata__ may say of k and v. */
enum { GEOMETRY, PARAMETERS, BACKEND, ISA, DIGEST, SAYINGS };
struct origin {
    struct safetensors_text says[SAYINGS];
    char text[SAYINGS][GEOMETRY_TEXT_BYTES];
};

static void read_origin(const struct tensor_body *b, struct origin *o)
{
    static const struct {
        const char *name;
        size_t room;
    } known[SAYINGS] = {[GEOMETRY] = {"geometry", GEOMETRY_TEXT_BYTES},
                        [PARAMETERS] = {"parameters", CONSTANTS_CHARS},
                        [BACKEND] = {"backend", GEOMETRY_TEXT_BYTES},
                        [ISA] = {"isa", ISA_CHARS},
                        [DIGEST] = {"digest", DIGEST_CHARS}};
    for (int i = 0; i < SAYINGS; i++)
        o->says[i] = (struct safetensors_text){known[i].name, o->text[i], known[i].room, false};
    if (tensors_wanted(b->x))
        safetensors_metadata(b->x->body.bytes, b->x->body.n, o->says, SAYINGS);
}

/* Whether k and v come from the same model. What is not said is not looked at. */
static int check_origin(struct tensor_body *b, const struct origin *o)
{
    const struct attention_info *here = engine_backend(answer_of(b->request)->daemon->engine);
    struct answer *answer = answer_of(b->request);
    char ours[GEOMETRY_TEXT_BYTES];
    geometry_describe(b->g, ours);
    if (o->says[GEOMETRY].there && strcmp(o->text[GEOMETRY], ours) != 0) {
        http_problem(b->x, ATTND_INVALID, "k and v come from %.160s; this daemon has %.160s",
                     o->text[GEOMETRY], ours);
        return ATTND_INVALID;
    }
    b->request->attend.has_constants = o->says[PARAMETERS].there;
    if (o->says[PARAMETERS].there)
        b->request->attend.constants = strtoull(o->text[PARAMETERS], NULL, 16);
    answer->bits = "unknown";
    if (o->says[BACKEND].there && o->says[ISA].there)
        answer->bits = strcmp(o->text[BACKEND], here->name) == 0 && strcmp(o->text[ISA], here->isa) == 0
                           ? "same"
                           : "within_rounding";
    return 0;
}

/* Whether k and v are what their sender had. */
static int check_digest(struct tensor_body *b, const struct origin *o)
{
    const struct named_tensor *k = tensors_find(b, "k");
    char ours[DIGEST_CHARS];
    if (!o->says[DIGEST].there)
        return 0;
    digest_of(b->request->rows.k, b->request->rows.v, k->end - k->begin, ours);
    if (strcmp(o->text[DIGEST], ours) == 0)
        return 0;
    http_problem(b->x, ATTND_INVALID,
                 "k and v have the digest %s, and __metadata__ says %s: they were changed on their way", ours,
                 o->text[DIGEST]);
    return ATTND_INVALID;
}

/* k and v of all layers, in the stored format, of as many tokens as the range has. */
static int read_stored(struct tensor_body *b, uint32_t first, uint32_t end)
{
    const struct named_tensor *k = tensors_find(b, "k");
    const struct geometry *g = b->g;
    struct request *request = b->request;
    uint64_t tokens = k && k->rank == 4 ? k->shape[1] : 0;
    const char *dtype = safetensors_dtype_name(g->kv_dtype);
    if (tokens == 0 || tokens > UINT32_MAX || strcmp(k->dtype, dtype) != 0)
        return tensors_mismatch(b, "k", "wants %s [%u, T, %u, %u]", dtype, g->layers, g->kv_heads,
                                g->head_dim);
    if (end && tokens != end - first)
        return tensors_mismatch(b, "k", "wants %u tokens, as range says", end - first);
    request->rows.count = (uint32_t)tokens;
    request->rows.kv_source = g->kv_dtype;
    return api_read_keys_and_values(b, request->rows.count, true, true);
}

static int read_import(struct tensor_body *b, const struct config *config)
{
    struct request_attend *append = &b->request->attend;
    uint32_t first = REQUEST_POSITION_ABSENT, end = 0;
    struct origin origin;
    read_origin(b, &origin);
    int rc = read_range(&b->arguments, config, &first, &end);
    if (rc == 0)
        rc = api_read_owner(&b->arguments, b->request);
    if (rc == 0)
        rc = check_origin(b, &origin);
    if (rc == 0)
        rc = read_stored(b, first, end);
    if (rc == 0)
        rc = check_digest(b, &origin);
    if (rc == 0)
        rc = tensors_tokens(b, "token_ids", UINT64_MAX, &append->tokens);
    if (rc == 0 && append->tokens.count > b->request->rows.count)
        rc = tensors_mismatch(b, "token_ids", "wants at most %u ids, of the first tokens",
                              b->request->rows.count);
    if (rc != 0)
        return rc;
    append->sequences = request_alloc(b->request, 1, sizeof *append->sequences);
    if (!append->sequences)
        return tensors_refuse(b, "k", "is too long for one call");
    append->sequences[0] =
        (struct request_sequence){.id = b->x->id, .rows = b->request->rows.count, .position = first};
    append->sequence_count = 1;
    return 0;
}

static int parse_import(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const struct tensor_spec specs[] = {
        {"k", TENSOR_VALUES}, {"v", TENSOR_VALUES}, {"token_ids", TENSOR_INTEGERS}, {NULL, TENSOR_VALUES}};
    static const char *const names[] = {"range", "owner", NULL};
    struct tensor_body b;
    int rc = tensors_open(&b, x, request, &config->geometry, names, specs);
    if (rc == 0)
        rc = read_import(&b, config);
    tensors_close(&b);
    return rc;
}

static void render_import(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_attend *append = &request->attend;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_uint(w, "id", append->views[0].id);
    json_uint(w, "length", append->views[0].length);
    api_write_lengths(w, append->lengths, c->config->geometry.layers);
    json_string(w, "bits", answer_of(request)->bits);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- moved ----------------------------------------------------------------------------------------- */

/* Whether a text is the URL of something, or a path: what stands in a URL, and nothing else. */
static bool is_place(struct http_text text)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?#[]@!$&'()*+,;=%";
    bool good =
        text.n > 0 && ((text.n > 7 && memcmp(text.bytes, "http://", 7) == 0) ||
                       (text.n > 8 && memcmp(text.bytes, "https://", 8) == 0) || text.bytes[0] == '/');
    for (size_t i = 0; good && i < text.n; i++)
        good = text.bytes[i] && strchr(allowed, text.bytes[i]);
    return good;
}

static int parse_moved(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"moved_to", "length", NULL};
    struct request_moved *moved = &request->moved;
    struct arguments a;
    struct http_text to = {NULL, 0};
    int64_t length = -1;
    (void)config;
    int rc = arguments_of_json(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_text(&a, "moved_to", sizeof moved->moved_to - 1, &to);
    if (rc == 0 && !is_place(to))
        rc = arguments_refuse(&a, "moved_to", "wants a URL (http://, https://) or a path");
    if (rc == 0)
        rc = arguments_integer(&a, "length", 0, UINT32_MAX, &length);
    if (rc == 0 && length < 0)
        rc = arguments_refuse(&a, "length", "is missing");
    if (rc == 0) {
        memcpy(moved->moved_to, to.bytes, to.n);
        moved->moved_to[to.n] = '\0';
        moved->length = (uint32_t)length;
    }
    arguments_close(&a);
    return rc == 0 ? read_condition(x, request, &moved->content) : rc;
}

static const struct api_schema schemas[] = {
    {"StoredKV", "{k:[any] v:[any] token_ids?:[uint] range?:range owner?:text(..63)}"},
    {"Imported", "{id:id length:uint lengths:[uint] bits:(same|within_rounding|unknown)}"},
    {"Moved", "{moved_to:text(..255) length:uint}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK_TYPES(GET, "/v1/sequences/{id}/kv", INFER, EXPORT, SMALL, TYPE_TENSORS, parse_export, render_export,
              200, "K and V of tokens FIRST:END, as they are stored", "range:range", NULL, "any", 0),
    ASK(PUT, "/v1/sequences/{id}/kv", INFER, APPEND, TENSORS, parse_import, render_import, 200,
        "Append K and V that another daemon has stored", "range?:range owner?:text(..63)", "StoredKV",
        "Imported", 0),
    ASK(POST, "/v1/sequences/{id}/moved", INFER, MOVED, SMALL, parse_moved, NULL, 204,
        "Delete a sequence that is elsewhere now; calls on it are told where", NULL, "Moved", NULL, 0),
    {0},
};

const struct api_resource api_kv = {routes, schemas};
