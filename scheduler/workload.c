/* SPDX-License-Identifier: Apache-2.0 */
/* workload.c - see workload.h.
 *
 * Shared contents get small numbers as they are first named, by a hash table that lives while the
 * workload is built: the prefix index compares 32-bit token ids, and equal numbers mean equal contents.
 */
#include "scheduler/workload.h"

#include "config/mapping.h"
#include "scheduler/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { CONTENT_SLOTS = 2 * WORKLOAD_SPANS_MAX, LIST_FIRST = 256, DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* Open addressing, at most half full; content 0 marks an empty slot, since no shared content is 0. Of its
 * 64 MiB there are pages only where something stands: one that grew stopped the loop for 65 ms while it
 * moved a million contents. */
struct workload_contents {
    uint64_t seed;
    struct {
        uint64_t content;
        uint32_t token;
    } slots[CONTENT_SLOTS];
};

/* ---- shared contents ----------------------------------------------------------------------------- */

static uint32_t find_content(const struct workload_contents *c, uint64_t content)
{
    uint32_t at = (uint32_t)XXH3_64bits_withSeed(&content, sizeof content, c->seed) & (CONTENT_SLOTS - 1);
    while (c->slots[at].content && c->slots[at].content != content)
        at = (at + 1) & (CONTENT_SLOTS - 1);
    return at;
}

/* The number of a shared content, a new one if it was not named before. */
static int number_content(struct workload *w, uint64_t content, uint32_t *token)
{
    if (!w->contents) {
        w->contents = mapping_create(sizeof *w->contents, 0);
        if (!w->contents)
            return ATTND_NO_MEMORY;
        w->contents->seed = w->hash_seed;
    }
    uint32_t at = find_content(w->contents, content);
    if (!w->contents->slots[at].content) {
        w->contents->slots[at].content = content;
        w->contents->slots[at].token = w->content_count++;
    }
    *token = w->contents->slots[at].token;
    return 0;
}

static void forget_contents(struct workload *w)
{
    mapping_destroy(w->contents, sizeof *w->contents);
    w->contents = NULL;
}

/* ---- building ------------------------------------------------------------------------------------ */

struct workload *workload_create(uint64_t seed)
{
    struct workload *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->seed = seed;
    if (getrandom(&w->hash_seed, sizeof w->hash_seed, GRND_NONBLOCK) != sizeof w->hash_seed)
        w->hash_seed = (uint64_t)(uintptr_t)w; /* of an early boot: better than nothing */
    return w;
}

/* Free the list whose pointer stands there; false: it is none. */
static bool free_list(void *place)
{
    void *list, *none = NULL;
    memcpy(&list, place, sizeof list);
    memcpy(place, &none, sizeof none);
    free(list);
    return list != NULL;
}

bool workload_release(struct workload *w)
{
    if (w->kept && !workload_outputs_any(w->kept)) {
        workload_outputs_destroy(w->kept);
        w->kept = NULL;
        return true;
    }
    bool freed = free_list(&w->requests) || free_list(&w->spans) || free_list(&w->sequences) ||
                 free_list(&w->samples) || free_list(&w->outputs) || free_list(&w->waiting) ||
                 free_list(&w->filling);
    if (!freed) {
        memory_give(w->budget, w->charged);
        w->charged = 0;
    }
    return freed;
}

void workload_destroy(struct workload *w)
{
    while (w && workload_release(w))
        continue;
    if (w) {
        forget_contents(w);
        workload_outputs_destroy(w->kept);
        free(w->table);
    }
    free(w);
}

uint64_t workload_bytes(const struct workload *w, const struct geometry *g)
{
    return (uint64_t)w->request_room * sizeof *w->requests + (uint64_t)w->span_room * sizeof *w->spans +
           (uint64_t)w->report.sequences * (sizeof *w->sequences + sizeof *w->waiting + sizeof *w->filling) +
           (uint64_t)w->content_count * sizeof *w->filling +
           (uint64_t)w->report.verify_rows * (sizeof *w->samples + geometry_q_row_bytes(g)) +
           2 * w->outputs_room + (uint64_t)w->table_room * sizeof *w->table;
}

/* Room for `n` more elements behind `count`. */
static int make_room(void **list, uint32_t *room, uint32_t count, uint32_t n, size_t size)
{
    uint64_t wanted = *room ? *room : LIST_FIRST;
    while (wanted < (uint64_t)count + n)
        wanted *= 2;
    if (*list && wanted == *room)
        return 0;
    void *larger = realloc(*list, wanted * size);
    if (!larger)
        return ATTND_NO_MEMORY;
    *list = larger;
    *room = (uint32_t)wanted;
    return 0;
}

static int refuse(char reason[WORKLOAD_REASON_BYTES], const char *what)
{
    snprintf(reason, WORKLOAD_REASON_BYTES, "%s", what);
    return ATTND_INVALID;
}

int workload_add(struct workload *w, const struct workload_request *request,
                 const struct workload_span *spans, uint32_t n, char reason[WORKLOAD_REASON_BYTES])
{
    struct workload_request r = *request;
    uint64_t length = (uint64_t)r.prompt + r.decode;
    if (length == 0)
        return refuse(reason, "a request has neither a prompt nor tokens to decode");
    if (w->request_count == WORKLOAD_REQUESTS_MAX)
        return refuse(reason, "more requests than a workload may have (131072)");
    if (r.forks && (r.fork_at == 0 || r.fork_at >= length)) {
        snprintf(reason, WORKLOAD_REASON_BYTES, "a fork at token %u of %llu", r.fork_at,
                 (unsigned long long)length);
        return ATTND_INVALID;
    }
    if (w->report.sequences + 1 + (uint64_t)r.forks > WORKLOAD_SEQUENCES_MAX)
        return refuse(reason, "more sequences than a workload may have (262144)");
    if (n > WORKLOAD_SPANS_MAX - w->span_count)
        return refuse(reason, "more shared parts than a workload may have (2097152)");
    if (make_room((void **)&w->requests, &w->request_room, w->request_count, 1, sizeof *w->requests) != 0 ||
        make_room((void **)&w->spans, &w->span_room, w->span_count, n, sizeof *w->spans) != 0)
        return ATTND_NO_MEMORY;

    r.first_span = w->span_count;
    r.span_count = n;
    r.ordinal = w->report.sequences;
    for (uint32_t i = 0; i < n; i++) {
        struct workload_span span = spans[i];
        if (number_content(w, span.content, &span.token) != 0)
            return ATTND_NO_MEMORY;
        w->spans[w->span_count++] = span;
    }
    w->unordered |= r.arrival_s < w->latest_s;
    w->latest_s = r.arrival_s > w->latest_s ? r.arrival_s : w->latest_s;
    w->requests[w->request_count++] = r;
    w->report.sequences += 1 + r.forks;
    return 0;
}

/* ---- closing ------------------------------------------------------------------------------------- */

/* When a request arrives: the bits of a number that is not negative, which are in the order of the numbers. */
struct arrival {
    uint64_t at;
    uint32_t request;
};

/* Put arrivals in the order of one digit, equal ones as they were. */
static void sort_by_digit(const struct arrival *from, struct arrival *to, uint32_t n, unsigned shift)
{
    uint32_t place[DIGITS] = {0}, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        place[from[i].at >> shift & (DIGITS - 1)]++;
    for (uint32_t digit = 0; digit < DIGITS; digit++) {
        uint32_t count = place[digit];
        place[digit] = sum;
        sum += count;
    }
    for (uint32_t i = 0; i < n; i++)
        to[place[from[i].at >> shift & (DIGITS - 1)]++] = from[i];
}

/* Put the requests in the order of arrival, of equals by ordinal: digit by digit, the lowest first. For
 * 131 072 of them qsort(), or merging, takes 30 ms. */
static int sort_requests(struct workload *w)
{
    uint32_t n = w->request_count;
    struct arrival *from = calloc(n, sizeof *from), *to = calloc(n, sizeof *to), *other;
    struct workload_request *sorted = calloc(n, sizeof *sorted), *requests = w->requests;
    bool room = from && to && sorted;
    for (uint32_t i = 0; room && i < n; i++) {
        memcpy(&from[i].at, &requests[i].arrival_s, sizeof from[i].at);
        from[i].request = i;
    }
    for (unsigned shift = 0; room && shift < 64; shift += DIGIT_BITS) {
        sort_by_digit(from, to, n, shift);
        other = from;
        from = to;
        to = other;
    }
    for (uint32_t i = 0; room && i < n; i++)
        sorted[i] = requests[from[i].request];
    free(from);
    free(to);
    free(room ? requests : sorted);
    if (!room)
        return ATTND_NO_MEMORY;
    w->requests = sorted;
    w->request_room = n;
    return 0;
}

/* Whether a request and its forks can run at all, alone. */
static int check_request(const struct workload_request *r, const struct geometry *g, uint32_t blocks,
                         uint32_t sequences, uint32_t sequence_tokens, char reason[WORKLOAD_REASON_BYTES])
{
    uint64_t length = (uint64_t)r->prompt + r->decode;
    uint64_t need = geometry_blocks(g, length);
    uint64_t of_child = need - r->fork_at / g->block_size;
    if (length > sequence_tokens)
        snprintf(reason, WORKLOAD_REASON_BYTES,
                 "sequence %u would have %llu tokens; limits.sequence_tokens is %u", r->ordinal,
                 (unsigned long long)length, sequence_tokens);
    else if (1 + (uint64_t)r->forks > sequences)
        snprintf(reason, WORKLOAD_REASON_BYTES, "sequence %u and its %u forks; limits.sequences is %u",
                 r->ordinal, r->forks, sequences);
    else if (r->forks == 0 && need > blocks)
        snprintf(reason, WORKLOAD_REASON_BYTES, "sequence %u needs %llu blocks; the pool has %u", r->ordinal,
                 (unsigned long long)need, blocks);
    else if (r->forks == 1 && need + of_child > blocks)
        snprintf(reason, WORKLOAD_REASON_BYTES,
                 "sequence %u needs %llu blocks, and its fork %llu; the pool has %u", r->ordinal,
                 (unsigned long long)need, (unsigned long long)of_child, blocks);
    else if (need + r->forks * of_child > blocks)
        snprintf(reason, WORKLOAD_REASON_BYTES,
                 "sequence %u needs %llu blocks, and %llu for each of its %u forks; the pool has %u",
                 r->ordinal, (unsigned long long)need, (unsigned long long)of_child, r->forks, blocks);
    else
        return 0;
    return ATTND_INVALID;
}

static uint64_t rows_of(const struct workload *w, uint32_t ordinal)
{
    return workload_length(w, ordinal) - workload_first_row(w, ordinal);
}

/* One of the numbers in stretch i of n of 0..total-1; total when there is no such stretch. */
static uint64_t draw_from_stretch(struct random *random, uint64_t total, uint32_t n, uint32_t i)
{
    if (i >= n)
        return total;
    uint64_t begin = total * i / n, end = total * (i + 1) / n;
    return begin + random_next(random) % (end - begin);
}

/* Draw the rows to be verified: of all (row, layer) pairs in order, one from each of as many equal
 * stretches. */
static int draw_samples(struct workload *w, const struct geometry *g)
{
    uint64_t total = w->report.tokens * g->layers, before = 0;
    uint32_t n = w->verify_rows < total ? w->verify_rows : (uint32_t)total;
    struct random random = {w->seed ^ UINT64_C(0x7665726966790000)}; /* "verify" */
    w->samples = calloc((size_t)n + 1, sizeof *w->samples);
    w->outputs = calloc((size_t)n + 1, geometry_q_row_bytes(g));
    if (!w->samples || !w->outputs)
        return ATTND_NO_MEMORY;
    uint64_t drawn = draw_from_stretch(&random, total, n, 0);
    for (uint32_t ordinal = 0, i = 0; ordinal < w->report.sequences; ordinal++) {
        uint64_t end = before + rows_of(w, ordinal) * g->layers;
        w->sequences[ordinal].next_sample = i;
        while (i < n && drawn < end) {
            w->samples[i++] = (struct workload_sample){.ordinal = ordinal,
                                                       .position = workload_first_row(w, ordinal) +
                                                                   (uint32_t)((drawn - before) / g->layers),
                                                       .layer = (uint32_t)((drawn - before) % g->layers)};
            drawn = draw_from_stretch(&random, total, n, i);
        }
        before = end;
    }
    w->report.verify_rows = n;
    return 0;
}

/* Memory for the outputs that its client wants; reason: what does not fit there. */
static int make_outputs(struct workload *w, const struct geometry *g, char reason[WORKLOAD_REASON_BYTES])
{
    uint32_t numbers = g->query_heads * g->head_dim;
    if (numbers > WORKLOAD_OUTPUT_NUMBERS) {
        snprintf(reason, WORKLOAD_REASON_BYTES, "return: an output has %u numbers; at most %d are returned",
                 numbers, WORKLOAD_OUTPUT_NUMBERS);
        return ATTND_INVALID;
    }
    w->kept = workload_outputs_create(g, w->outputs_room);
    if (!w->kept)
        return ATTND_NO_MEMORY;
    if (w->widest <= workload_outputs_tokens(w->kept))
        return 0;
    snprintf(reason, WORKLOAD_REASON_BYTES,
             "return: a request with its forks has %u sequences; the outputs of %u fit", w->widest,
             workload_outputs_tokens(w->kept));
    return ATTND_INVALID;
}

int workload_close(struct workload *w, const struct geometry *g, uint32_t blocks, uint32_t sequences,
                   uint32_t sequence_tokens, char reason[WORKLOAD_REASON_BYTES])
{
    if (w->request_count == 0)
        return refuse(reason, "there are no requests");
    if (w->report.deadline_s > 0 && w->latest_s > w->report.deadline_s) {
        snprintf(reason, WORKLOAD_REASON_BYTES,
                 "the last request arrives after %.0f s, and deadline_s is %.0f", w->latest_s,
                 w->report.deadline_s);
        return ATTND_INVALID;
    }
    if (w->unordered && sort_requests(w) != 0)
        return ATTND_NO_MEMORY;
    w->report.requests = w->request_count;
    w->sequences = calloc(w->report.sequences, sizeof *w->sequences);
    w->waiting = calloc(w->report.sequences, sizeof *w->waiting);
    w->filling = calloc((size_t)w->content_count + w->report.sequences, sizeof *w->filling);
    w->table = w->table_room ? calloc(w->table_room, sizeof *w->table) : NULL;
    if (!w->sequences || !w->waiting || !w->filling || !w->table != !w->table_room)
        return ATTND_NO_MEMORY;
    for (uint32_t i = 0; i < w->request_count; i++) {
        const struct workload_request *r = &w->requests[i];
        int rc = check_request(r, g, blocks, sequences, sequence_tokens, reason);
        if (rc != 0)
            return rc;
        w->longest = r->prompt + r->decode > w->longest ? r->prompt + r->decode : w->longest;
        w->widest = r->forks >= w->widest ? r->forks + 1 : w->widest;
        for (uint32_t child = 0; child <= r->forks; child++) {
            w->sequences[r->ordinal + child] =
                (struct workload_sequence){.request = i, .child = child, .admitted_s = -1, .first_s = -1};
            w->report.tokens += rows_of(w, r->ordinal + child);
        }
    }
    forget_contents(w);
    int rc = w->outputs_room ? make_outputs(w, g, reason) : 0;
    return rc == 0 ? draw_samples(w, g) : rc;
}

/* ---- sequences ----------------------------------------------------------------------------------- */

static const struct workload_request *request_of(const struct workload *w, uint32_t ordinal)
{
    return &w->requests[w->sequences[ordinal].request];
}

uint32_t workload_length(const struct workload *w, uint32_t ordinal)
{
    return request_of(w, ordinal)->prompt + request_of(w, ordinal)->decode;
}

uint32_t workload_inherited(const struct workload *w, uint32_t ordinal)
{
    return w->sequences[ordinal].child ? request_of(w, ordinal)->fork_at : 0;
}

uint32_t workload_first_row(const struct workload *w, uint32_t ordinal)
{
    uint32_t inherited = workload_inherited(w, ordinal), prompt = request_of(w, ordinal)->prompt;
    return w->attend_prompt || inherited > prompt ? inherited : prompt;
}

struct workload_span workload_span_at(const struct workload *w, uint32_t ordinal, uint32_t position)
{
    const struct workload_request *r = request_of(w, ordinal);
    uint32_t end = workload_length(w, ordinal), inherited = workload_inherited(w, ordinal);
    const struct workload_span *spans = w->spans + r->first_span;
    uint32_t owner = ordinal, low = 0, high = r->span_count;
    if (inherited && position < inherited) {
        end = inherited;
        owner = r->ordinal;
    }
    if (owner == r->ordinal && high && position < spans[high - 1].end) {
        while (low + 1 < high) { /* the first span that ends behind the position */
            uint32_t middle = (low + high - 1) / 2;
            if (spans[middle].end > position)
                high = middle + 1;
            else
                low = middle + 1;
        }
        struct workload_span span = spans[low];
        span.end = span.end < end ? span.end : end;
        return span;
    }
    return (struct workload_span){
        .end = end, .token = w->content_count + owner, .content = workload_content_id(CONTENT_OWN, owner)};
}

struct value_source workload_query_source(const struct workload *w, uint32_t ordinal)
{
    return (struct value_source){.seed = w->seed, .content = workload_content_id(CONTENT_OWN, ordinal)};
}

struct workload_hash workload_hash_row(uint32_t ordinal, uint32_t position, uint32_t layer, const void *o,
                                       size_t bytes)
{
    const uint64_t place[3] = {ordinal, position, layer};
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, place, sizeof place);
    XXH3_128bits_update(&state, o, bytes);
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    return (struct workload_hash){hash.low64, hash.high64};
}

void workload_note_round(struct workload *w, const struct workload_table_row *row)
{
    if (!w->table)
        return;
    if (w->report.table_rows < w->table_room)
        w->table[w->report.table_rows++] = *row;
    else
        w->report.table_left_out++;
}

void workload_digest(struct workload *w, struct workload_hash hash)
{
    w->report.digest_low += hash.low;
    w->report.digest_high += hash.high + (w->report.digest_low < hash.low);
}
