/* SPDX-License-Identifier: Apache-2.0 */
/* journal_print.c - see journal_print.h.
 *
 *     {"record":8,"file":1,"offset":2310,"kind":"request","request":3,"what":"attend","id":0, ...
 *     {"record":9,"file":1,"offset":2498,"kind":"step submitted","step":2,"rows_of_clients":1, ...
 *
 * Requests are read by the function that wrote them (journal_request.h), so there is one decoder. What stands behind the counts of an
 * answer follows add_answer() in journal.c. Numbers of 64 bits that are no counts or ids (digests, keys) are strings of hexadecimal digits,
 * since programs that read JSON may take numbers for doubles. */
#include "scheduler/journal_print.h"

#include "config/geometry_json.h"
#include "config/json_writer.h"
#include "config/mapping.h"
#include "scheduler/journal.h"
#include "scheduler/journal_request.h"
#include "scheduler/replay.h"
#include "scheduler/workload.h"

#include <cjson/cJSON.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A record has 8 MiB at most, and a value of 4 bytes takes 11 as text. Mapped, so what is not written takes no memory. */
static const uint64_t TEXT_BYTES = 8ULL * JOURNAL_RECORD_BYTES;

enum { NAME_BYTES = 48 };

struct printer {
    FILE *out;
    struct json_writer w;
    char *text; /* [TEXT_BYTES] a line */
    struct journal_reader reader;
    bool begun;
    struct config config; /* of the daemon; once it has begun */
    uint64_t requests;
    struct request *request; /* one at a time, of which */
    uint8_t *arena, *bytes;  /* [REQUEST_ARENA_BYTES], and [JOURNAL_RECORD_BYTES] its record */
};

/* ---- values ---------------------------------------------------------------------------------------- */

static void put_hex(struct json_writer *w, const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    json_string(w, name, text);
}

/* "rows of clients" as rows_of_clients, so that jq takes it without quotes. */
static const char *plain(const char *words, char name[NAME_BYTES])
{
    size_t n = 0;
    for (; words[n] && n + 1 < NAME_BYTES; n++)
        name[n] = words[n] == ' ' || words[n] == '-' ? '_' : (char)tolower((unsigned char)words[n]);
    name[n] = '\0';
    return name;
}

static void put_words(struct json_writer *w, const char *name, const char *words)
{
    char text[NAME_BYTES];
    json_string(w, name, plain(words, text));
}

static void put_integers(struct json_writer *w, const char *name, const uint32_t *values, size_t n)
{
    json_open(w, name, '[');
    for (size_t i = 0; values && i < n; i++)
        json_uint(w, NULL, values[i]);
    json_close(w, ']');
}

static void put_ids(struct json_writer *w, const char *name, const uint64_t *values, size_t n)
{
    json_open(w, name, '[');
    for (size_t i = 0; values && i < n; i++)
        json_uint(w, NULL, values[i]);
    json_close(w, ']');
}

/* [n / columns][columns] numbers; absent: nothing. */
static void put_floats(struct json_writer *w, const char *name, const float *values, size_t n, size_t columns)
{
    if (!values)
        return;
    json_open(w, name, '[');
    for (size_t i = 0; i < n; i++) {
        if (columns && i % columns == 0)
            json_open(w, NULL, '[');
        json_float(w, NULL, values[i]);
        if (columns && i % columns == columns - 1)
            json_close(w, ']');
    }
    json_close(w, ']');
}

/* ---- requests -------------------------------------------------------------------------------------- */

static void put_options(struct json_writer *w, const struct sequence_options *o)
{
    json_uint(w, "max_tokens", o->max_tokens);
    json_int(w, "priority", o->priority);
    json_uint(w, "idle_timeout_s", o->idle_timeout_s);
}

static void put_salt(struct json_writer *w, const char *salt, uint32_t n)
{
    uint64_t hash = 0;
    if (n != sizeof hash) {
        json_null(w, "salt");
        return;
    }
    memcpy(&hash, salt, sizeof hash);
    put_hex(w, "salt", hash);
}

static void put_create(struct json_writer *w, const struct request_create *c)
{
    put_options(w, &c->options);
    put_salt(w, c->salt, c->salt_bytes);
    put_integers(w, "tokens", c->tokens.ids, c->tokens.count);
}

static void put_fork(struct json_writer *w, const struct request_fork *f)
{
    json_uint(w, "count", f->count);
    if (f->length == UINT32_MAX)
        json_null(w, "length");
    else
        json_uint(w, "length", f->length);
    put_ids(w, "ids", f->ids, f->ids ? f->count : 0);
}

static void put_rows(struct json_writer *w, const struct request_rows *r)
{
    if (r->all_layers)
        json_null(w, "layer");
    else
        json_uint(w, "layer", r->layer);
    json_string(w, "kernel",
                config_kernel_names[r->kernel <= ATTENTION_PAGED_V2 ? r->kernel : ATTENTION_AUTO]);
    json_uint(w, "rows", r->count);
    json_bool(w, "q", r->q);
    json_bool(w, "k", r->k);
    if (r->k)
        json_string(w, "kv_dtype", dtype_name(r->kv_source < DTYPE_COUNT ? r->kv_source : DTYPE_F32));
}

static void put_attend(struct json_writer *w, const struct request_attend *a)
{
    put_rows(w, &a->rows);
    json_bool(w, "imported", a->has_constants);
    json_open(w, "sequences", '[');
    for (uint32_t i = 0; i < a->sequence_count; i++) {
        json_open(w, NULL, '{');
        json_uint(w, "id", a->sequences[i].id);
        json_uint(w, "rows", a->sequences[i].rows);
        if (a->sequences[i].position == REQUEST_POSITION_ABSENT)
            json_null(w, "position");
        else
            json_uint(w, "position", a->sequences[i].position);
        json_close(w, '}');
    }
    json_close(w, ']');
    put_integers(w, "token_ids", a->tokens.ids, a->tokens.count);
}

static void put_paged(struct json_writer *w, const struct request_paged *p)
{
    put_rows(w, &p->rows);
    put_integers(w, "indptr", p->indptr, p->indptr ? p->sequences + 1 : 0);
    put_integers(w, "context_lens", p->context, p->sequences);
    json_open(w, "block_tables", '[');
    for (uint32_t i = 0; p->first && p->ids && i < p->sequences; i++)
        put_integers(w, NULL, p->ids + p->first[i], p->first[i + 1] - p->first[i]);
    json_close(w, ']');
    json_open(w, "slot_mapping", '[');
    for (uint32_t i = 0; p->slots && i < p->tokens; i++)
        json_int(w, NULL, p->slots[i]);
    json_close(w, ']');
}

static void put_batch(struct json_writer *w, const struct request_batch *b)
{
    json_open(w, "ops", '[');
    for (uint32_t i = 0; i < b->count; i++) {
        const struct request_op *op = &b->ops[i];
        json_open(w, NULL, '{');
        put_words(w, "op", request_kinds[op->kind].name);
        json_uint(w, "id", op->id);
        if (op->kind == REQUEST_CREATE)
            put_create(w, &op->create);
        else if (op->kind == REQUEST_FORK)
            put_fork(w, &op->fork);
        else if (op->kind == REQUEST_TRUNCATE)
            json_uint(w, "length", op->truncate.length);
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void put_workload(struct json_writer *w, const struct workload *of)
{
    static const char *const contents[] = {"own", "prefix", "hash"};
    json_uint(w, "seed", of->seed);
    json_bool(w, "attend_prompt", of->attend_prompt);
    json_uint(w, "verify_rows", of->verify_rows);
    json_string(w, "sharing", config_sharing_names[of->report.sharing]);
    json_double(w, "deadline_s", of->report.deadline_s);
    json_bool(w, "outputs", of->outputs_room > 0);
    json_bool(w, "streamed", of->awaited);
    json_open(w, "requests", '[');
    for (uint32_t i = 0; i < of->request_count; i++) {
        const struct workload_request *r = &of->requests[i];
        json_open(w, NULL, '{');
        json_double(w, "arrival_s", r->arrival_s);
        json_uint(w, "prompt", r->prompt);
        json_uint(w, "decode", r->decode);
        json_uint(w, "fork_at", r->fork_at);
        json_uint(w, "forks", r->forks);
        json_int(w, "priority", r->priority);
        json_open(w, "spans", '[');
        for (uint32_t s = 0; s < r->span_count; s++) {
            const struct workload_span *span = &of->spans[r->first_span + s];
            json_open(w, NULL, '{');
            json_uint(w, "end", span->end);
            json_string(w, "content",
                        contents[span->content >> 56 <= CONTENT_HASH ? span->content >> 56 : 0]);
            json_uint(w, "number", span->content & CONTENT_ID_MAX);
            json_close(w, '}');
        }
        json_close(w, ']');
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void put_parameters(struct json_writer *w, const struct model_constants *c, const struct geometry *g)
{
    put_floats(w, "sinks", c->sinks, (size_t)g->layers * g->query_heads, g->query_heads);
    put_floats(w, "alibi_slopes", c->alibi, g->query_heads, 0);
    put_floats(w, "k_scale", c->k_scale, (size_t)g->layers * g->kv_heads, g->kv_heads);
    put_floats(w, "v_scale", c->v_scale, (size_t)g->layers * g->kv_heads, g->kv_heads);
}

/* What a request of its kind asks. */
static void put_arguments(struct json_writer *w, const struct request *r, const struct geometry *g)
{
    switch (r->kind) {
    case REQUEST_CREATE:
        put_create(w, &r->create);
        break;
    case REQUEST_FORK:
        put_fork(w, &r->fork);
        break;
    case REQUEST_TRUNCATE:
        json_uint(w, "length", r->truncate.length);
        break;
    case REQUEST_EXPORT:
        json_uint(w, "first", r->export.first);
        json_uint(w, "end", r->export.end);
        break;
    case REQUEST_RESTORE:
        put_options(w, &r->described.options);
        json_uint(w, "length", r->described.length);
        json_uint(w, "base", r->described.base);
        json_uint(w, "shared", r->described.shared);
        put_salt(w, r->described.salt, r->described.salt_bytes);
        put_integers(w, "tokens", r->described.prompt.ids, r->described.prompt.count);
        break;
    case REQUEST_MOVED:
        json_string(w, "moved_to", r->moved.moved_to);
        json_uint(w, "length", r->moved.length);
        break;
    case REQUEST_BATCH:
        put_batch(w, &r->batch);
        break;
    case REQUEST_LEASE:
        json_uint(w, "blocks", r->lease.blocks);
        put_options(w, &r->lease.options);
        break;
    case REQUEST_APPEND:
    case REQUEST_ATTEND:
        put_attend(w, &r->attend);
        break;
    case REQUEST_PAGED:
        put_paged(w, &r->paged);
        break;
    case REQUEST_MERGE:
        json_uint(w, "states", r->merge.states);
        json_uint(w, "rows", r->merge.rows);
        break;
    case REQUEST_PARAMETERS:
        put_parameters(w, &r->parameters, g);
        break;
    case REQUEST_BLOCKS:
    case REQUEST_STATS:
    case REQUEST_LIST:
        json_uint(w, "cursor", r->page.cursor);
        json_uint(w, "limit", r->page.limit);
        break;
    case REQUEST_STEPS:
        json_uint(w, "limit", r->steps.limit);
        break;
    case REQUEST_WORKLOAD_START:
        put_workload(w, r->workload.workload);
        break;
    default:
        break;
    }
}

static bool put_request(struct printer *p, const struct journal_record *record)
{
    struct request *r = p->request;
    struct json_writer *w = &p->w;
    memcpy(p->bytes, record->payload, record->n);
    request_reset(r, p->arena, REQUEST_ARENA_BYTES);
    struct journal_wire wire = {.at = p->bytes, .end = p->bytes + record->n, .reads = true, .request = r};
    bool good = journal_request(&wire, &p->config) && wire.at == wire.end;
    if (good) {
        json_uint(w, "request", ++p->requests);
        put_words(w, "what", request_kinds[r->kind].name);
        json_uint(w, "id", r->id);
        json_bool(w, "of_leases", r->of_leases);
        put_hex(w, "key", r->key);
        put_hex(w, "owner", r->owner);
        put_hex(w, "connection", r->connection);
        json_double(w, "submitted_s", r->submitted_s);
        json_double(w, "timeout_s", r->deadline_s);
        if (r->digest)
            put_hex(w, "digest", r->digest);
        put_arguments(w, r, &p->config.geometry);
    }
    if (good && r->kind == REQUEST_WORKLOAD_START)
        workload_destroy(r->workload.workload);
    return good;
}

/* ---- effects --------------------------------------------------------------------------------------- */

/* The values of an effect, taken one after the other; those beyond its end are 0. */
struct values {
    const uint8_t *from;
    uint32_t n, at;
};

static uint64_t take(struct values *v)
{
    uint64_t value = 0;
    if (v->at < v->n)
        memcpy(&value, v->from + v->at * sizeof value, sizeof value);
    v->at++;
    return value;
}

static void put_copies(struct json_writer *w, uint64_t n, struct values *v)
{
    static const char *const kinds[] = {"copy", "swap_out", "swap_in", "clear"};
    json_open(w, "copies", '[');
    for (uint64_t i = 0; i < n && v->at < v->n; i++) {
        uint64_t what = take(v), blocks = take(v);
        json_open(w, NULL, '{');
        json_string(w, "copy", kinds[what >> 32 & 3]);
        json_uint(w, "slots", what & UINT32_MAX);
        json_uint(w, "from", blocks >> 32);
        json_uint(w, "to", blocks & UINT32_MAX);
        json_close(w, '}');
    }
    json_close(w, ']');
}

/* Sequences that an answer shows, then the blocks of all of them. */
static void put_shown(struct json_writer *w, struct values *v)
{
    uint64_t count = take(v), listed = 0;
    json_open(w, "sequences", '[');
    for (uint64_t i = 0; i < count && v->at < v->n; i++) {
        uint64_t id = take(v), sizes = take(v), shared = take(v);
        listed += shared & UINT32_MAX;
        json_open(w, NULL, '{');
        json_uint(w, "id", id);
        json_uint(w, "length", sizes >> 32);
        json_uint(w, "blocks", sizes & UINT32_MAX);
        json_uint(w, "shared_blocks", shared >> 32);
        json_uint(w, "listed", shared & UINT32_MAX);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_open(w, "block_ids", '[');
    for (uint64_t i = 0; i < listed && v->at < v->n; i++)
        json_uint(w, NULL, take(v));
    json_close(w, ']');
}

/* Of each operation of a batch, in order. */
static void put_results(struct json_writer *w, struct values *v)
{
    json_open(w, "results", '[');
    while (v->at < v->n) {
        json_open(w, NULL, '{');
        put_shown(w, v);
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void put_appended(struct json_writer *w, struct values *v)
{
    uint64_t count = take(v);
    json_open(w, "sequences", '[');
    for (uint64_t i = 0; i < count && v->at < v->n; i++) {
        uint64_t id = take(v), sizes = take(v);
        json_open(w, NULL, '{');
        json_uint(w, "id", id);
        json_uint(w, "length", sizes >> 32);
        json_uint(w, "blocks", sizes & UINT32_MAX);
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void put_answered(struct json_writer *w, enum request_kind kind, struct values *v)
{
    static const char *const states[] = {"running", "verifying", "finished", "cancelled"};
    switch (kind) {
    case REQUEST_CREATE:
    case REQUEST_FORK:
    case REQUEST_TRUNCATE:
    case REQUEST_LEASE:
        put_shown(w, v);
        break;
    case REQUEST_BATCH:
        put_results(w, v);
        break;
    case REQUEST_APPEND:
        put_appended(w, v);
        break;
    case REQUEST_ATTEND:
    case REQUEST_PAGED:
        json_uint(w, "rows_in_step", take(v));
        json_uint(w, "bytes_read", take(v));
        break;
    case REQUEST_TRIM:
        json_uint(w, "dropped", take(v));
        break;
    case REQUEST_WORKLOAD_START:
    case REQUEST_WORKLOAD:
    case REQUEST_WORKLOAD_CANCEL:
        json_uint(w, "workload", take(v));
        json_string(w, "state", states[take(v) & 3]);
        json_uint(w, "tokens_done", take(v));
        json_uint(w, "steps", take(v));
        break;
    default:
        break;
    }
}

static bool put_effect(struct json_writer *w, const struct journal_record *record)
{
    enum journal_kind kind = record->kind;
    const char *const *names = journal_value_names(kind);
    struct values v = {record->payload, record->n / (uint32_t)sizeof(uint64_t), 0};
    char name[NAME_BYTES];
    uint64_t what = REQUEST_KINDS, status = 0;
    for (; names[1]; names++) {
        uint64_t value = take(&v);
        if (kind == JOURNAL_ANSWER && strcmp(*names, "kind") == 0)
            put_words(w, "what", request_kinds[(what = value) < REQUEST_KINDS ? value : 0].name);
        else if (kind == JOURNAL_ANSWER && strcmp(*names, "status") == 0)
            json_string(w, "status", (status = value) == 0 ? "ok" : status_code(-(int)value));
        else if (kind == JOURNAL_STEP && strcmp(*names, "tables") == 0)
            put_hex(w, "tables", value);
        else
            json_uint(w, plain(*names, name), value);
    }
    if (kind == JOURNAL_STEP)
        put_copies(w, take(&v), &v);
    else if (kind == JOURNAL_RETIRED)
        json_uint(w, plain(*names, name), take(&v));
    else if (status == 0)
        put_answered(w, (enum request_kind)what, &v);
    return v.at <= v.n && (kind != JOURNAL_ANSWER || what < REQUEST_KINDS);
}

/* ---- the others ------------------------------------------------------------------------------------ */

/* The configuration without its comments, as a part of the line. */
static void put_settings(struct json_writer *w, const char *settings)
{
    char *copy = strdup(settings);
    if (!copy)
        return;
    cJSON_Minify(copy);
    json_name(w, "settings");
    json_raw(w, copy);
    w->comma = true;
    free(copy);
}

static int put_begin(struct printer *p, const struct journal_record *record,
                     char reason[JOURNAL_REASON_BYTES])
{
    struct journal_begin begin;
    const char *version, *settings = journal_read_begin(record, &begin, &version);
    struct json_writer *w = &p->w;
    if (!settings || p->begun) {
        snprintf(reason, JOURNAL_REASON_BYTES, "its first record is of another version");
        return ATTND_INVALID;
    }
    int rc = replay_config(settings, &begin, &p->config, reason);
    if (rc != 0)
        return rc;
    p->begun = true;
    json_string(w, "version", version);
    json_open(w, "geometry", '{');
    geometry_write(w, &p->config.geometry);
    json_close(w, '}');
    json_uint(w, "pool_blocks", begin.pool_blocks);
    json_uint(w, "host_blocks", p->config.file_blocks ? p->config.file_blocks : p->config.host_blocks);
    json_uint(w, "tasks", begin.tasks);
    json_bool(w, "on_device", begin.on_device);
    json_bool(w, "token_ids_are_plain", p->config.journal_token_ids);
    put_settings(w, settings);
    return 0;
}

static bool put_turn(struct json_writer *w, const struct journal_record *record)
{
    struct journal_turn turn;
    if (record->n != sizeof turn)
        return false;
    memcpy(&turn, record->payload, sizeof turn);
    json_double(w, "now_s", turn.now_s);
    json_bool(w, "keeps_all", turn.keeps_all);
    json_bool(w, "stopping", turn.stopping);
    return true;
}

static bool put_done(struct json_writer *w, const struct journal_record *record)
{
    struct journal_done done;
    if (record->n < sizeof done)
        return false;
    memcpy(&done, record->payload, sizeof done);
    json_uint(w, "step", done.step);
    json_double(w, "busy_us", done.busy_s * 1e6);
    json_double(w, "idle_us", done.idle_s * 1e6);
    json_uint(w, "compared", done.count);
    return true;
}

static bool put_fact(struct json_writer *w, const struct journal_record *record)
{
    uint32_t asked;
    if (record->n != sizeof asked)
        return false;
    memcpy(&asked, record->payload, sizeof asked);
    json_uint(w, "asked_before", asked);
    return true;
}

static bool put_swapped(struct json_writer *w, const struct journal_record *record)
{
    struct journal_swapped is;
    if (record->n != sizeof is)
        return false;
    memcpy(&is, record->payload, sizeof is);
    json_uint(w, "block", is.block);
    json_uint(w, "frame", is.frame);
    json_bool(w, "write", is.write);
    json_int(w, "errno", is.error);
    return true;
}

static void put_end(struct json_writer *w, const struct journal_record *record)
{
    char reason[128];
    snprintf(reason, sizeof reason, "%.*s", (int)record->n, (const char *)record->payload);
    json_string(w, "reason", reason);
}

static int write_line(struct printer *p)
{
    json_close(&p->w, '}');
    json_end(&p->w, "\n");
    return !p->w.overflow && fwrite(p->text, 1, p->w.length, p->out) == p->w.length ? 0 : ATTND_NO_MEMORY;
}

static int print_record(struct printer *p, const struct journal_record *record,
                        char reason[JOURNAL_REASON_BYTES])
{
    struct json_writer *w = &p->w;
    bool known = record->kind > 0 && record->kind < JOURNAL_KINDS, good = true;
    int rc = 0;
    json_writer_init(w, p->text, TEXT_BYTES);
    json_open(w, NULL, '{');
    json_uint(w, "record", record->number);
    json_uint(w, "file", p->reader.file);
    json_uint(w, "offset", record->offset);
    json_string(w, "kind", known ? journal_kind_name(record->kind) : "?");
    switch (known && (p->begun || record->kind == JOURNAL_BEGIN) ? record->kind : JOURNAL_KINDS) {
    case JOURNAL_BEGIN:
        rc = put_begin(p, record, reason);
        break;
    case JOURNAL_TURN:
        good = put_turn(w, record);
        break;
    case JOURNAL_REQUEST:
        good = put_request(p, record);
        break;
    case JOURNAL_DONE:
        good = put_done(w, record);
        break;
    case JOURNAL_STEP:
    case JOURNAL_RETIRED:
    case JOURNAL_ANSWER:
        good = put_effect(w, record);
        break;
    case JOURNAL_SWAPPED:
        good = put_swapped(w, record);
        break;
    case JOURNAL_END:
        put_end(w, record);
        break;
    case JOURNAL_KINDS:
        good = false;
        break;
    default:
        good = put_fact(w, record);
        break;
    }
    if (rc == 0 && good)
        return write_line(p);
    if (rc == 0) {
        char place[JOURNAL_PLACE_BYTES];
        journal_reader_place(&p->reader, record, place);
        snprintf(reason, JOURNAL_REASON_BYTES, "%s: record %llu (%s): it is none of this version", place,
                 (unsigned long long)record->number, known ? journal_kind_name(record->kind) : "?");
    }
    return rc == 0 ? ATTND_INVALID : rc;
}

/* The line that says that the last file ends within a record. */
static int print_torn(struct printer *p)
{
    json_writer_init(&p->w, p->text, TEXT_BYTES);
    json_open(&p->w, NULL, '{');
    json_uint(&p->w, "record", p->reader.number);
    json_uint(&p->w, "file", p->reader.file);
    json_uint(&p->w, "offset", p->reader.at);
    json_string(&p->w, "kind", "torn");
    return write_line(p);
}

static int print_all(struct printer *p, char reason[JOURNAL_REASON_BYTES])
{
    struct journal_record record;
    int rc;
    while ((rc = journal_reader_next(&p->reader, &record, reason)) > 0) {
        rc = print_record(p, &record, reason);
        if (rc != 0)
            return rc;
    }
    return rc == 0 && p->reader.torn ? print_torn(p) : rc;
}

int journal_print(const char *path, FILE *out, char reason[JOURNAL_REASON_BYTES])
{
    struct printer p = {.out = out};
    snprintf(reason, JOURNAL_REASON_BYTES, "there is no memory, or the output cannot be written");
    p.text = mapping_create(TEXT_BYTES, 0);
    p.arena = mapping_create(REQUEST_ARENA_BYTES, 0);
    p.bytes = mapping_create(JOURNAL_RECORD_BYTES, 0);
    p.request = calloc(1, sizeof *p.request);
    int rc = p.text && p.arena && p.bytes && p.request ? 0 : ATTND_NO_MEMORY;
    if (rc == 0)
        rc = journal_reader_open(&p.reader, path, reason);
    if (rc == 0)
        rc = print_all(&p, reason);
    journal_reader_close(&p.reader);
    if (rc == 0 && fflush(out) != 0)
        rc = ATTND_NO_MEMORY;
    if (p.begun)
        config_deinit(&p.config);
    mapping_destroy(p.text, TEXT_BYTES);
    mapping_destroy(p.arena, REQUEST_ARENA_BYTES);
    mapping_destroy(p.bytes, JOURNAL_RECORD_BYTES);
    free(p.request);
    return rc;
}
