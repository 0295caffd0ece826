/* SPDX-License-Identifier: Apache-2.0 */
/* doorbell.c - see doorbell.h.
 *
 *     a call:   taken -> q, k, v copied in pieces -> client_queue.c -> o, lse copied in pieces -> completion
 *
 * A client is hot or cold. The rings of hot ones are looked at every turn. When the engine goes to sleep all become cold: their `asleep`
 * is set, and the rings are looked at once more, so a call that was put meanwhile is seen by one side or the other. A cold
 * one becomes hot when it rings. So a turn costs nothing for those that sleep, however many are registered.
 *
 * A client's calls are copied one after the other and so keep their order; a large one has the next ones wait in the ring. Clients take
 * turns, a call or a piece each. A client with calls that were left in its ring stays hot. A client has at most as many calls under way as others could still take, so there is always one left for another.
 *
 *   I1  a slot of the ring is in use from the call until the client has read its completion: calls_tail - done_head <= REGISTERED_CALLS,
 *       so there is always room for a completion; a client that says otherwise ends
 *   I2  client.calls is the number of its requests outside the free list, region.calls likewise
 *   I3  a closed region, or client, has calls == 0: nobody reads its descriptor any more
 *
 * Bells are edge-triggered and never read: descriptor flags are shared with the client, who could make a read wait for ever. */
#include "scheduler/doorbell.h"

#include "config/log.h"
#include "config/mapping.h"
#include "config/numbers.h"
#include "kernels/numeric.h"
#include "scheduler/client_queue.h"
#include "scheduler/journal.h"
#include "scheduler/journal_request.h"
#include "scheduler/staging.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 64 << 10, /* copied at a time, and looked at: 10 us */
    EVENTS = 64,            /* bells taken at a time */
    RINGS_LOOKED = 16,      /* looks at rings for one at the bells of cold clients, while the engine spins */
    TENSORS = 3,            /* q, k, v; or o, lse */
    LISTS_LEAST = 64 << 10, /* of memory.bytes, for the lists of a call, and */
    LISTS_FACTOR = 16,      /* for each of their bytes what is made of them */
    GPU_ALIGNMENT = 8,      /* of tensors there: kernels load so much at once */
    ANSWER_BYTES_MAX = REQUEST_ARENA_BYTES / 2
};

#define COLD UINT32_MAX

static const double BELLS_S = 20e-6; /* between two looks at the bells of cold clients, while there is work */

/* A tensor that is being copied. */
struct passage {
    uint64_t offset, bytes;
    uint8_t *memory; /* staging */
    const char *name;
    struct request_elements elements; /* of q, k and v */
};

/* What is known of a request that came from a ring; its cookie. */
struct doorbell_call {
    struct doorbell_client *client;  /* NULL: the request is free */
    struct doorbell_region *region;  /* NULL: there is none with that number */
    struct doorbell_region *tensors; /* likewise: of its tensors, if they are in GPU memory */
    struct registered_call of;       /* the copy */
    struct request *request;
    struct passage passages[TENSORS];
    uint32_t passage_count, passage; /* the one that is being copied, */
    uint64_t copied;                 /* and so much of it is */
    uint64_t digest;                 /* of all that was copied, for the journal */
    bool counts;                     /* as a call of its key */
    uint64_t staging_bytes;          /* counted for its key */
    uint64_t memory;                 /* of memory.bytes, for its lists */
    struct doorbell_call *next;      /* of the free ones, or of those whose outputs are being copied */
};

struct doorbell {
    struct doorbell_options o;
    int epoll;
    struct request *requests; /* [o.requests] */
    struct doorbell_call *calls;
    uint8_t *arenas;
    struct doorbell_call *free_calls;
    uint32_t free_count;
    bool released; /* a request is free since rings were last read */
    bool drops;    /* doorbell_drops() */
    struct doorbell_call *writing, **writing_end;
    struct doorbell_client **hot; /* [hot_room] */
    uint32_t hot_count, hot_room;
    uint32_t turn;   /* counts turns: who has the first */
    double active_s; /* when a call was last taken or answered, */
    double bells_s;  /* and the bells of cold clients looked at */
    uint32_t rings;  /* counts looks */
    struct budget budget;
    struct doorbell_counts counts; /* but for */
    atomic_uint_least64_t ended;
};

/* ---- words that a client shares ------------------------------------------------------------------ */

/* Copy a call out of the ring, each word once: what the compiler reads again could be another one. */
static void copy_call(struct registered_call *to, const struct registered_call *from)
{
    uint64_t words[sizeof *to / sizeof(uint64_t)] = {0};
    const uint64_t *shared = (const uint64_t *)(const void *)from;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        words[i] = __atomic_load_n(&shared[i], __ATOMIC_RELAXED);
    memcpy(to, words, sizeof *to);
}

/* ---- hot and cold -------------------------------------------------------------------------------- */

static void make_hot(struct doorbell *d, struct doorbell_client *client)
{
    if (client->hot != COLD)
        return;
    registered_store(&client->ring->asleep, 0);
    client->hot = d->hot_count;
    d->hot[d->hot_count++] = client;
}

static void make_cold(struct doorbell *d, struct doorbell_client *client)
{
    if (client->hot == COLD)
        return;
    struct doorbell_client *last = d->hot[--d->hot_count];
    d->hot[client->hot] = last;
    last->hot = client->hot;
    client->hot = COLD;
}

/* Make those hot that have rung; whether any has, and whether the engine is woken. */
static bool take_bells(struct doorbell *d, int timeout_ms, bool *wakes)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(d->epoll, events, EVENTS, timeout_ms);
    bool any = false;
    *wakes = false;
    for (int i = 0; i < n; i++) {
        struct doorbell_client *client = events[i].data.ptr;
        *wakes |= !client;
        if (!client)
            continue;
        any = true;
        if (!atomic_load(&client->ended))
            make_hot(d, client);
    }
    return any;
}

/* Whether there is something to take from a client: a call that has not been looked at, or one that was left for want of a request, and
 * one is free now. */
static bool has_rung(const struct doorbell *d, const struct doorbell_client *client)
{
    uint32_t tail = registered_load(&client->ring->calls_tail);
    return tail != client->seen || (d->released && tail != client->head);
}

bool doorbell_rings(struct doorbell *d)
{
    bool wakes;
    for (uint32_t i = 0; i < d->hot_count; i++) {
        if (has_rung(d, d->hot[i]))
            return true;
    }
    return d->counts.clients > d->hot_count && ++d->rings % RINGS_LOOKED == 0 && take_bells(d, 0, &wakes);
}

double doorbell_spin_until_s(const struct doorbell *d)
{
    return d->hot_count ? d->active_s + d->o.state->config->transport_spin_us * 1e-6 : 0;
}

bool doorbell_await(struct doorbell *d, double idle_s)
{
    bool rings = false, wakes;
    for (uint32_t i = 0; i < d->hot_count; i++)
        registered_store_and_look(&d->hot[i]->ring->asleep,
                                  1); /* a client puts its call, and looks at `asleep` */
    for (uint32_t i = 0; i < d->hot_count; i++)
        rings |= has_rung(d, d->hot[i]);
    for (uint32_t i = d->hot_count; i-- > 0;) {
        struct doorbell_client *client = d->hot[i];
        if (rings || registered_load(&client->ring->calls_tail) !=
                         client->head) /* calls are left: it need not ring for more */
            registered_store(&client->ring->asleep, 0);
        else
            make_cold(d, client);
    }
    if (rings)
        return false;
    if (idle_s >= 0) {
        const struct timespec wait = {(time_t)idle_s, (long)((idle_s - floor(idle_s)) * 1e9)};
        struct pollfd ready = {.fd = d->epoll, .events = POLLIN};
        (void)ppoll(&ready, 1, &wait, NULL);
    }
    (void)take_bells(d, idle_s < 0 ? -1 : 0, &wakes);
    return wakes;
}

/* ---- what a call says ---------------------------------------------------------------------------- */

/* Whether `bytes` from `offset` on lie in a region. */
static bool lies_within(uint64_t offset, uint64_t bytes, uint64_t region_bytes)
{
    return bytes <= region_bytes && offset <= region_bytes - bytes;
}

static int __attribute__((format(printf, 2, 3)))
refuse(char detail[REQUEST_DETAIL_BYTES], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(detail, REQUEST_DETAIL_BYTES, format, args);
    va_end(args);
    return ATTND_INVALID;
}

static int check_kind(const struct registered_call *c, const struct geometry *g, uint32_t rows_max,
                      char *detail)
{
    bool attends = c->kind == REGISTERED_ATTEND, all = c->layer == REGISTERED_ALL;
    if (!attends && c->kind != REGISTERED_APPEND)
        return refuse(detail, "kind: wants 1 (append) or 2 (attend), has %u", c->kind);
    if (c->layer >= g->layers && (!all || attends)) {
        char most[16] = ""; /* behind the first layer, where there are more */
        if (g->layers > 1)
            snprintf(most, sizeof most, "..%u", g->layers - 1);
        return refuse(detail, "layer: wants 0%s%s", most,
                      attends ? "" : ", or 4294967295 for k and v of all");
    }
    if (c->kernel > ATTENTION_PAGED_V2)
        return refuse(detail, "kernel: wants 0 (auto), 1 (paged_v1) or 2 (paged_v2)");
    if (c->kv_stored > 1)
        return refuse(detail, "kv_stored: wants 0 or 1");
    if (c->sequence_count < 1 || c->rows < c->sequence_count || c->rows > rows_max)
        return refuse(
            detail,
            "%u row%s of %u sequence%s: wants a sequence at least, a row of each, and %u row%s at most "
            "(limits.rows_per_call)",
            c->rows, plural(c->rows), c->sequence_count, plural(c->sequence_count), rows_max,
            plural(rows_max));
    if ((uint64_t)c->sequence_count *
            (sizeof(struct sequence_view) + (uint64_t)g->layers * sizeof(uint32_t)) >
        ANSWER_BYTES_MAX)
        return refuse(detail, "sequences: is too long for one call");
    if (c->counts == REGISTERED_NONE && c->rows != c->sequence_count)
        return refuse(detail, "rows: without counts wants one of each sequence");
    if ((c->k == REGISTERED_NONE) != (c->v == REGISTERED_NONE))
        return refuse(detail, "%s: is missing: k and v come together", c->k == REGISTERED_NONE ? "k" : "v");
    if (!attends && c->k == REGISTERED_NONE)
        return refuse(detail, "k: is missing");
    if (c->token_count > c->rows || (c->token_count && c->k == REGISTERED_NONE))
        return refuse(detail, "tokens: wants an id for each of the first rows of k and v");
    return 0;
}

int doorbell_check(const struct registered_call *c, const struct geometry *g, uint32_t rows_max,
                   uint64_t region_bytes, uint64_t tensor_bytes, struct doorbell_bytes *bytes,
                   char detail[REQUEST_DETAIL_BYTES])
{
    bool attends = c->kind == REGISTERED_ATTEND;
    *bytes = (struct doorbell_bytes){0};
    int rc = check_kind(c, g, rows_max, detail);
    if (rc != 0)
        return rc;
    /* Of rows there are 2^16 at most, of everything else less: no product comes near 2^64. */
    uint64_t layers = c->layer == REGISTERED_ALL ? g->layers : 1,
             ids = (uint64_t)c->sequence_count * sizeof(uint64_t),
             numbers = (uint64_t)c->sequence_count * sizeof(uint32_t),
             element = dtype_bytes(c->kv_stored ? g->kv_dtype : g->dtype);
    bytes->q = bytes->o = attends ? c->rows * geometry_q_row_bytes(g) : 0;
    bytes->lse =
        attends && c->lse != REGISTERED_NONE ? (uint64_t)c->rows * g->query_heads * sizeof(float) : 0;
    bytes->kv = c->k == REGISTERED_NONE ? 0 : layers * c->rows * g->kv_heads * g->head_dim * element;
    const struct {
        const char *name;
        uint64_t offset, bytes;
        bool wanted;
    } parts[] = {{"sequences", c->sequences, ids, true},
                 {"counts", c->counts, numbers, c->counts != REGISTERED_NONE},
                 {"positions", c->positions, numbers, c->positions != REGISTERED_NONE},
                 {"tokens", c->tokens, (uint64_t)c->token_count * sizeof(uint32_t), c->token_count > 0},
                 {"q", c->q, bytes->q, attends},
                 {"k", c->k, bytes->kv, bytes->kv > 0},
                 {"v", c->v, bytes->kv, bytes->kv > 0},
                 {"o", c->o, bytes->o, attends},
                 {"lse", c->lse, bytes->lse, bytes->lse > 0}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool list = i < 4;
        uint64_t most = list ? region_bytes : tensor_bytes;
        bytes->lists += list && parts[i].wanted ? parts[i].bytes : 0;
        if (parts[i].wanted && !lies_within(parts[i].offset, parts[i].bytes, most))
            return refuse(detail, "%s: has %llu bytes from %llu on, and the region has %llu", parts[i].name,
                          (unsigned long long)parts[i].bytes, (unsigned long long)parts[i].offset,
                          (unsigned long long)most);
        if (parts[i].wanted && !list && c->tensors && parts[i].offset % GPU_ALIGNMENT)
            return refuse(detail, "%s: wants a multiple of %d in GPU memory, has %llu", parts[i].name,
                          GPU_ALIGNMENT, (unsigned long long)parts[i].offset);
    }
    return 0;
}

/* ---- the end of a call --------------------------------------------------------------------------- */

static void complete_control(struct doorbell *d, struct request **closer)
{
    struct request *request = *closer;
    *closer = NULL;
    if (request)
        d->o.complete(request, d->o.cookie);
}

static bool is_on_gpu(const struct doorbell_region *region)
{
    return region->fd < 0;
}

static uint64_t *bytes_like(struct doorbell *d, const struct doorbell_region *region)
{
    return is_on_gpu(region) ? &d->counts.gpu_bytes : &d->counts.bytes;
}

/* It is counted no more; memory of the GPU is unmapped, too, a memfd the loop's to close. */
static void give_up_region(struct doorbell *d, struct doorbell_region *region)
{
    d->counts.regions--;
    *bytes_like(d, region) -= region->bytes;
    if (!is_on_gpu(region))
        return;
    attention_region_end(step_attention(d->o.state->steps), &region->gpu);
    region->open = false;
}

/* A region is the loop's again. */
static void close_region(struct doorbell *d, struct doorbell_region *region)
{
    assert(region->open && region->calls == 0);
    if (region->closer) {
        region->closer->doorbell.fd = region->fd;
        region->closer->doorbell.bytes = region->bytes;
        region->closer->doorbell.gpu = is_on_gpu(region);
    }
    give_up_region(d, region);
    region->open = false;
    complete_control(d, &region->closer);
}

/* Nothing of a client is under way any more: it is the loop's again, with its regions. */
static void close_client(struct doorbell *d, struct doorbell_client *client)
{
    for (uint32_t i = 0; i < REGISTERED_REGIONS; i++) {
        if (client->regions[i].open)
            give_up_region(d, &client->regions[i]);
    }
    make_cold(d, client);
    client->open = false;
    (void)epoll_ctl(d->epoll, EPOLL_CTL_DEL, client->bell, NULL);
    d->counts.clients--;
    complete_control(d, &client->closer);
}

/* A call is done with: give back what it has. */
static void release_call(struct doorbell *d, struct doorbell_call *call)
{
    struct doorbell_client *client = call->client;
    struct doorbell_region *const regions[] = {call->region, call->tensors};
    struct request *request = call->request;
    if (call->counts)
        tenant_calls_give(client->terms.use);
    if (call->staging_bytes)
        tenant_calls_give_staging(client->terms.use, call->staging_bytes);
    if (d->o.budget)
        memory_give(d->o.budget, call->memory);
    request_trim_arena(request->arena, request->arena_used);
    request_reset(request, request->arena, request->arena_bytes);
    *call = (struct doorbell_call){.request = request, .next = d->free_calls};
    d->free_calls = call;
    d->free_count++;
    d->released = true;
    client->calls--;
    for (size_t i = 0; i < sizeof regions / sizeof regions[0]; i++) {
        if (regions[i] && --regions[i]->calls == 0 && regions[i]->closer)
            close_region(d, regions[i]);
    }
    if (client->closer && client->calls == 0)
        close_client(d, client);
}

/* Whether somebody waits for the answers of a client's calls. */
static bool is_answered(const struct doorbell_client *client)
{
    return client->answers && !atomic_load(&client->ended);
}

/* A call is answered: with its status, or why not. */
static void answer(struct doorbell *d, struct doorbell_call *call)
{
    struct doorbell_client *client = call->client;
    const struct request *request = call->request;
    struct registered_completion c = {.tag = call->of.tag, .status = 200};
    if (request->status != 0) {
        d->counts.problems[status_number(request->status)]++;
        if (client->terms.use)
            atomic_fetch_add(&client->terms.use->problems, 1);
        c.status = (uint32_t)status_http(request->status);
        snprintf(c.code, sizeof c.code, "%s", status_code(request->status));
        snprintf(c.detail, sizeof c.detail, "%.*s", (int)sizeof c.detail - 1, request->detail);
    } else if (request->kind == REQUEST_ATTEND) {
        c.rows_in_step = request->rows.out.rows_in_step;
        c.queue_us = request->rows.out.queue_us;
        c.step_us = request->rows.out.step_us;
        c.bytes_read = request->rows.out.bytes_read;
    }
    if (is_answered(client)) {
        memcpy(&client->ring->completions[client->done % REGISTERED_CALLS], &c, sizeof c);
        registered_store_and_look(&client->ring->done_tail,
                                  ++client->done); /* a client sets `waiting`, and looks at done_tail */
        if (registered_load(&client->ring->waiting))
            (void)syscall(SYS_futex, &client->ring->done_tail.value, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    d->active_s = d->o.clock(d->o.clock_cookie);
    release_call(d, call);
}

static void __attribute__((format(printf, 4, 5)))
fail(struct doorbell *d, struct doorbell_call *call, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(call->request->detail, sizeof call->request->detail, format, args);
    va_end(args);
    call->request->status = status;
    answer(d, call);
}

/* What is under way of a client is dropped when it is done, and what only waits fails. */
static void cancel_calls(struct doorbell *d, struct doorbell_client *client)
{
    struct doorbell_call *reading = client->reading;
    client->answers = false;
    for (uint32_t i = 0; i < d->o.requests; i++) {
        if (d->calls[i].client == client)
            atomic_store(&d->requests[i].cancelled, true);
    }
    client->reading = NULL;
    if (reading)
        release_call(d, reading);
    d->drops = true;
}

bool doorbell_drops(struct doorbell *d)
{
    bool drops = d->drops;
    d->drops = false;
    return drops;
}

/* A client has broken the protocol: no more is taken from it. The loop says so, and closes it. */
static void end_client(struct doorbell *d, struct doorbell_client *client, const char *why)
{
    atomic_store(&client->ended, why);
    atomic_fetch_add(&d->ended, 1);
    make_cold(d, client);
    cancel_calls(d, client);
    d->o.notify(d->o.clock_cookie);
}

/* ---- copying tensors ----------------------------------------------------------------------------- */

static bool read_region(const struct doorbell_region *region, uint64_t offset, void *to, uint64_t bytes)
{
    return pread(region->fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* All tensors are there: the request goes the way of all others. */
static void submit(struct doorbell *d, struct doorbell_call *call)
{
    struct engine_state *state = d->o.state;
    call->client->reading = NULL;
    call->request->submitted_s = d->o.clock(d->o.clock_cookie);
    call->request->digest = call->digest;
    if (request_stream(call->request)) /* what the GPU finds in its rows is not recorded */
        journal_stop(state->journal, "a call has its tensors in GPU memory");
    journal_take(state->journal, call->request);
    state->taken++;
    client_queue_add(state->clients, call->request);
}

/* Copy the next piece of q, k or v and look at it. */
static void read_piece(struct doorbell *d, struct doorbell_call *call)
{
    struct passage *p = &call->passages[call->passage];
    uint64_t left = p->bytes - call->copied, n = left < PIECE_BYTES ? left : PIECE_BYTES;
    size_t element = dtype_bytes(p->elements.dtype);
    char text[128];
    bool read = read_region(call->region, p->offset + call->copied, p->memory + call->copied, n);
    if (!read ||
        !request_some_are_good(&p->elements, call->copied / element, n / element, text, sizeof text)) {
        call->client->reading = NULL;
        fail(d, call, ATTND_INVALID, "%s: %s", p->name, read ? text : "the region cannot be read");
        return;
    }
    if (d->o.state->journal)
        call->digest = journal_digest_on(call->digest, p->memory + call->copied, n);
    call->copied += n;
    if (call->copied < p->bytes)
        return;
    call->copied = 0;
    if (++call->passage == call->passage_count)
        submit(d, call);
}

/* Copy the next piece of o or lse; false: that was the last. */
static bool write_piece(struct doorbell *d, struct doorbell_call *call)
{
    struct passage *p = &call->passages[call->passage];
    uint64_t left = p->bytes - call->copied, n = left < PIECE_BYTES ? left : PIECE_BYTES;
    bool written = call->client->answers && pwrite(call->region->fd, p->memory + call->copied, n,
                                                   (off_t)(p->offset + call->copied)) == (ssize_t)n;
    call->copied += n;
    if (written && call->copied == p->bytes) {
        call->copied = 0;
        call->passage++;
    }
    if (written && call->passage < call->passage_count)
        return true;
    if (!written)
        fail(d, call, ATTND_INVALID, "%s: the region cannot be written", p->name);
    else
        answer(d, call);
    return false;
}

void doorbell_complete(struct doorbell *d, struct request *request)
{
    struct doorbell_call *call = request->cookie;
    const struct request_output *out = &request->rows.out;
    struct doorbell_bytes bytes;
    if (request->status != 0 || request->kind != REQUEST_ATTEND || call->tensors ||
        !is_answered(call->client)) {
        answer(d, call);
        return;
    }
    int rc =
        doorbell_check(&call->of, &d->o.state->config->geometry, d->o.state->config->limits.rows_per_call,
                       call->region->bytes, call->region->bytes, &bytes, request->detail);
    assert(rc == 0); /* as it was when it was taken */
    (void)rc;
    call->passages[0] =
        (struct passage){.offset = call->of.o, .bytes = bytes.o, .memory = out->o, .name = "o"};
    call->passages[1] = (struct passage){
        .offset = call->of.lse, .bytes = bytes.lse, .memory = (uint8_t *)out->lse, .name = "lse"};
    call->passage_count = 1 + (bytes.lse > 0);
    call->passage = 0;
    call->copied = 0;
    call->next = NULL;
    *d->writing_end = call;
    d->writing_end = &call->next;
}

/* Copy outputs, those of one call after the other. */
static bool write_outputs(struct doorbell *d)
{
    bool worked = d->writing != NULL;
    while (d->writing && budget_allows(&d->budget)) {
        struct doorbell_call *call = d->writing, *next = call->next;
        if (write_piece(d, call))
            continue;
        d->writing = next;
        d->writing_end = next ? d->writing_end : &d->writing;
    }
    return worked;
}

/* ---- taking a call ------------------------------------------------------------------------------- */

/* Read the lists of a call; false: it has been answered with what is wrong. */
static bool read_lists(struct doorbell *d, struct doorbell_call *call)
{
    const struct registered_call *c = &call->of;
    struct request *request = call->request;
    struct request_attend *attend = &request->attend;
    uint32_t n = c->sequence_count;
    uint64_t *ids = request_alloc(request, n, sizeof *ids), sum = 0;
    uint32_t *counts = c->counts == REGISTERED_NONE ? NULL : request_alloc(request, n, sizeof *counts),
             *positions =
                 c->positions == REGISTERED_NONE ? NULL : request_alloc(request, n, sizeof *positions);
    attend->tokens.count = c->token_count;
    attend->tokens.ids =
        c->token_count ? request_alloc(request, c->token_count, sizeof *attend->tokens.ids) : NULL;
    attend->sequences = request_alloc(request, n, sizeof *attend->sequences);
    attend->sequence_count = n;
    assert(attend->sequences); /* of 2^16 rows all that is in the arena */
    if (!read_region(call->region, c->sequences, ids, n * sizeof *ids) ||
        (counts && !read_region(call->region, c->counts, counts, n * sizeof *counts)) ||
        (positions && !read_region(call->region, c->positions, positions, n * sizeof *positions)) ||
        (c->token_count && !read_region(call->region, c->tokens, attend->tokens.ids,
                                        c->token_count * sizeof *attend->tokens.ids))) {
        fail(d, call, ATTND_INVALID, "the region cannot be read");
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows = counts ? counts[i] : 1;
        const char *wrong = ids[i] < 1 || ids[i] > REQUEST_ID_MAX
                                ? "sequences: entry %u: wants an id in 1..9007199254740991"
                            : rows < 1 ? "counts: entry %u: wants 1 at least"
                            : positions && positions[i] > (uint32_t)INT_MAX
                                ? "positions: entry %u: wants a position in 0..2147483647"
                                : NULL;
        if (wrong) {
            fail(d, call, ATTND_INVALID, wrong, i);
            return false;
        }
        sum += rows;
        attend->sequences[i] = (struct request_sequence){
            .id = ids[i], .rows = rows, .position = positions ? positions[i] : REQUEST_POSITION_ABSENT};
    }
    if (sum == c->rows)
        return true;
    fail(d, call, ATTND_INVALID, "counts: come to %llu rows, and rows is %u", (unsigned long long)sum,
         c->rows);
    return false;
}

/* Room for a tensor of a call, and that it is to be copied there; false: there is none. */
static bool add_passage(struct doorbell *d, struct doorbell_call *call, const char *name, uint64_t offset,
                        uint64_t bytes)
{
    const struct geometry *g = &d->o.state->config->geometry;
    bool q = name[0] == 'q';
    uint8_t *memory = request_tensor(call->request, bytes, 1);
    call->passages[call->passage_count++] =
        (struct passage){.offset = offset,
                         .bytes = bytes,
                         .memory = memory,
                         .name = name,
                         .elements = {.array = memory,
                                      .dtype = q ? g->dtype : call->request->rows.kv_source,
                                      .layers = call->request->rows.all_layers ? g->layers : 1,
                                      .rows = call->of.rows,
                                      .heads = q ? g->query_heads : g->kv_heads,
                                      .head_dim = g->head_dim,
                                      .summed = name[0] == 'v'}};
    return memory;
}

/* Tensors of a call that lie in GPU memory are used there; and room for what the GPU says of k and v. */
static bool use_in_place(struct doorbell *d, struct doorbell_call *call, const struct doorbell_bytes *bytes)
{
    const struct registered_call *c = &call->of;
    struct request_rows *rows = &call->request->rows;
    uint8_t *memory = call->tensors->gpu.address;
    rows->stream =
        (struct request_stream){.on = true, .of = attention_own_stream(step_attention(d->o.state->steps))};
    rows->retries = c->retry;
    rows->q = bytes->q ? memory + c->q : NULL;
    rows->k = bytes->kv ? memory + c->k : NULL;
    rows->v = bytes->kv ? memory + c->v : NULL;
    rows->out.o = bytes->o ? memory + c->o : NULL;
    rows->out.lse = bytes->lse ? (float *)(void *)(memory + c->lse) : NULL;
    if (!bytes->kv)
        return true;
    rows->wrong = request_tensor(call->request, c->sequence_count, 1);
    if (!rows->wrong) {
        fail(d, call, ATTND_BUSY, "no memory for marks: limits.staging_bytes or memory.bytes are in use");
        return false;
    }
    memset(rows->wrong, 0, c->sequence_count);
    return true;
}

/* Find staging memory for the tensors of a call. */
static bool find_room(struct doorbell *d, struct doorbell_call *call, const struct doorbell_bytes *bytes)
{
    const struct registered_call *c = &call->of;
    struct request *request = call->request;
    struct request_rows *rows = &request->rows;
    struct tenant_calls *use = call->client->terms.use;
    uint64_t all = bytes->q + 2 * bytes->kv + bytes->o + bytes->lse,
             staging = d->o.state->config->limits.staging_bytes;
    if (use && !tenant_calls_take_staging(use, all, staging)) {
        uint64_t part = tenant_calls_part(use, staging);
        if (all > part)
            fail(d, call, ATTND_INVALID, "quotas.staging_bytes of the key is %llu, and this takes %llu",
                 (unsigned long long)part, (unsigned long long)all);
        else
            fail(d, call, ATTND_QUOTA, "quotas.staging_bytes (%llu) of the key are used up",
                 (unsigned long long)part);
        return false;
    }
    call->staging_bytes = use ? all : 0;
    bool there = true;
    if (bytes->q)
        there = add_passage(d, call, "q", c->q, bytes->q);
    if (there && bytes->kv)
        there = add_passage(d, call, "k", c->k, bytes->kv) && add_passage(d, call, "v", c->v, bytes->kv);
    if (there) {
        uint32_t at = 0;
        rows->q = bytes->q ? call->passages[at++].memory : NULL;
        rows->k = bytes->kv ? call->passages[at++].memory : NULL;
        rows->v = bytes->kv ? call->passages[at++].memory : NULL;
        there = request_make_outputs(request, &d->o.state->config->geometry) == 0;
    }
    if (!there)
        fail(d, call, ATTND_BUSY, "no memory for tensors: limits.staging_bytes or memory.bytes are in use");
    return there;
}

/* Count a call for its key; false: it has been answered. */
static bool count_call(struct doorbell *d, struct doorbell_call *call)
{
    struct tenant_calls *use = call->client->terms.use;
    if (!use)
        return true;
    bool may_ask = tenant_calls_ask(use, (uint64_t)(d->o.clock(d->o.clock_cookie) * 1e9));
    call->counts = may_ask && tenant_calls_take(use);
    if (!call->counts)
        fail(d, call, ATTND_QUOTA, "quotas.%s (%u) of the key are used up",
             may_ask ? "calls" : "requests_per_s",
             may_ask ? atomic_load(&use->calls_max) : atomic_load(&use->requests_per_s));
    return call->counts;
}

/* Fill in the request of a call, whose tensors can be copied then; else it has been answered. */
static void begin_call(struct doorbell *d, struct doorbell_call *call)
{
    const struct registered_call *c = &call->of;
    const struct config *config = d->o.state->config;
    const struct doorbell_terms *terms = &call->client->terms;
    struct request *request = call->request;
    struct doorbell_bytes bytes;
    char detail[REQUEST_DETAIL_BYTES];
    call->digest = JOURNAL_DIGEST_OF_NOTHING;
    request->kind = c->kind == REGISTERED_APPEND ? REQUEST_APPEND : REQUEST_ATTEND;
    request->rings = true;
    request->key = terms->key;
    request->sees_all = terms->sees_all;
    request->owner = terms->owner;
    request->connection = terms->connection;
    request->weight = terms->weight;
    request->quotas = terms->quotas;
    request->use = terms->use;
    request->deadline_s = c->timeout_ms * 1e-3;
    if (!count_call(d, call))
        return;
    if (!call->region) {
        fail(d, call, ATTND_NOT_FOUND, "region: there is no region %u in host memory", c->region);
        return;
    }
    if (c->tensors && !call->tensors) {
        fail(d, call, ATTND_NOT_FOUND, "tensors: there is no region %u in GPU memory", c->tensors - 1);
        return;
    }
    if (doorbell_check(c, &config->geometry, config->limits.rows_per_call, call->region->bytes,
                       call->tensors ? call->tensors->bytes : call->region->bytes, &bytes, detail) != 0) {
        fail(d, call, ATTND_INVALID, "%s", detail);
        return;
    }
    if (call->tensors && bytes.o && !call->tensors->writes) {
        fail(d, call, ATTND_INVALID, "o: the region was registered to be read only");
        return;
    }
    uint64_t lists = LISTS_LEAST + LISTS_FACTOR * bytes.lists;
    lists = lists < REQUEST_ARENA_BYTES ? lists : REQUEST_ARENA_BYTES;
    if (!memory_take(d->o.budget, lists)) {
        fail(d, call, ATTND_BUSY, "memory.bytes are in use");
        return;
    }
    call->memory = lists;
    request->rows.layer = c->layer == REGISTERED_ALL ? 0 : c->layer;
    request->rows.all_layers = c->layer == REGISTERED_ALL;
    request->rows.kernel = (enum attention_kernel)c->kernel;
    request->rows.count = c->rows;
    request->rows.kv_source = c->kv_stored ? config->geometry.kv_dtype : config->geometry.dtype;
    if (!read_lists(d, call))
        return;
    if (!call->tensors) {
        if (find_room(d, call, &bytes))
            call->client->reading = call;
    } else if (use_in_place(d, call, &bytes)) {
        submit(d, call);
    }
}

/* The region of that number, which a call is to use; NULL: there is none in such memory. */
static struct doorbell_region *use_region(struct doorbell_client *client, uint32_t number, bool on_gpu)
{
    struct doorbell_region *region = number < REGISTERED_REGIONS ? &client->regions[number] : NULL;
    if (!region || !region->open || region->closer || is_on_gpu(region) != on_gpu)
        return NULL;
    region->calls++;
    return region;
}

/* How many calls a client has put; ends it, and is 0, when its ring makes no sense (I1). */
static uint32_t calls_put(struct doorbell *d, struct doorbell_client *client)
{
    uint32_t tail = registered_load(&client->ring->calls_tail),
             read = registered_load(&client->ring->done_head);
    client->seen = tail;
    if (tail - client->head > REGISTERED_CALLS)
        end_client(d, client, "calls_tail is more than 64 calls ahead of those taken");
    else if (client->done - read > REGISTERED_CALLS)
        end_client(d, client, "done_head is no place of the latest 64 completions");
    else if (tail - read > REGISTERED_CALLS)
        end_client(
            d, client,
            "calls_tail is more than 64 ahead of done_head: a slot is in use until its completion is read");
    else
        return tail - client->head;
    return 0;
}

/* Take a call of a client, if it has put one and may have another under way. */
static bool take_call(struct doorbell *d, struct doorbell_client *client)
{
    if (client->closer || calls_put(d, client) == 0 || client->calls >= d->free_count)
        return false;
    struct doorbell_call *call = d->free_calls;
    d->free_calls = call->next;
    d->free_count--;
    call->client = client;
    call->next = NULL;
    client->calls++;
    copy_call(&call->of, &client->ring->calls[client->head % REGISTERED_CALLS]);
    registered_store(&client->ring->calls_head, ++client->head);
    call->region = use_region(client, call->of.region, false);
    call->tensors = call->of.tensors ? use_region(client, call->of.tensors - 1, true) : NULL;
    d->counts.calls++;
    d->active_s = d->o.clock(d->o.clock_cookie);
    begin_call(d, call);
    return true;
}

/* Take a call of a client, or copy a piece of one: the next tensors, too, as long as one piece is a whole one. */
static bool read_client(struct doorbell *d, struct doorbell_client *client)
{
    if (!client->reading && !take_call(d, client))
        return false;
    for (struct doorbell_call *call; (call = client->reading);) {
        read_piece(d, call);
        if (client->reading && (call->copied > 0 || !budget_allows(&d->budget)))
            break;
    }
    return true;
}

/* Hot clients take turns as long as there is time. */
static bool read_calls(struct doorbell *d)
{
    bool worked = false, any = true;
    d->released = false;
    for (d->turn++; any; worked |= any) {
        any = false;
        for (uint32_t i = 0; i < d->hot_count; i++) {
            struct doorbell_client *client = d->hot[(d->turn + i) % d->hot_count];
            if (!client->reading && registered_load(&client->ring->calls_tail) == client->head) {
                client->seen = client->head;
                continue;
            }
            if (!budget_allows(&d->budget))
                return true;
            any |= read_client(d, client);
        }
    }
    return worked;
}

bool doorbell_turn(struct doorbell *d)
{
    double now = d->o.state->now_s;
    bool wakes; /* stays so until the engine reads it */
    if (d->counts.clients > d->hot_count && now - d->bells_s > BELLS_S) {
        d->bells_s = now;
        (void)take_bells(d, 0, &wakes);
    }
    if (!d->writing && d->hot_count == 0)
        return false;
    budget_begin(&d->budget);
    bool worked = write_outputs(d);
    return read_calls(d) || worked;
}

/* ---- clients come and go ------------------------------------------------------------------------- */

static int open_client(struct doorbell *d, struct request *request)
{
    struct doorbell_client *client = request->doorbell.client;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = client};
    if (d->counts.clients == d->hot_room || epoll_ctl(d->epoll, EPOLL_CTL_ADD, client->bell, &event) != 0)
        return request_fail(request, ATTND_BUSY, "no room for another client");
    client->hot = COLD;
    client->open = client->answers = true;
    d->counts.clients++;
    make_hot(d, client);
    return 0;
}

/* Memory of the GPU, made for a region or a client's own. */
static int map_region(struct doorbell *d, struct request *request, struct doorbell_region *region)
{
    struct request_doorbell *ask = &request->doorbell;
    struct attention *attention = step_attention(d->o.state->steps);
    char error[ATTENTION_ERROR_BYTES];
    bool own = ask->fd >= 0;
    region->writes = (!own && !ask->ipc) || ask->writes;
    int rc = ask->ipc ? attention_region_open(attention, ask->ipc, ask->bytes, &region->gpu, error)
             : own ? attention_region_take(attention, ask->fd, ask->bytes, ask->writes, &region->gpu, error)
                   : attention_region_make(attention, ask->bytes, &region->gpu, &ask->fd, error);
    return rc == 0 ? 0 : request_fail(request, rc, "%s", error);
}

static int open_region(struct doorbell *d, struct request *request)
{
    struct request_doorbell *ask = &request->doorbell;
    uint32_t i = 0;
    while (i < REGISTERED_REGIONS && ask->client->regions[i].open)
        i++;
    if (i == REGISTERED_REGIONS)
        return request_fail(request, ATTND_BUSY, "a client has %d regions at most: close one",
                            REGISTERED_REGIONS);
    struct doorbell_region *region = &ask->client->regions[i];
    *region = (struct doorbell_region){.fd = ask->gpu ? -1 : ask->fd, .writes = true, .bytes = ask->bytes};
    int rc = ask->gpu ? map_region(d, request, region) : 0;
    if (rc != 0)
        return rc;
    region->open = true;
    ask->region = i;
    d->counts.regions++;
    *bytes_like(d, region) += ask->bytes;
    return 0;
}

static int ask_to_close_region(struct doorbell *d, struct request *request)
{
    struct request_doorbell *ask = &request->doorbell;
    struct doorbell_region *region =
        ask->region < REGISTERED_REGIONS ? &ask->client->regions[ask->region] : NULL;
    if (!region || !region->open || region->closer)
        return request_fail(request, ATTND_NOT_FOUND, "region: there is no region %u", ask->region);
    region->closer = request;
    if (region->calls == 0)
        close_region(d, region);
    return REQUEST_WAITS;
}

static int ask_to_close(struct doorbell *d, struct request *request)
{
    struct doorbell_client *client = request->doorbell.client;
    struct request *region_closer;
    for (uint32_t i = 0; i < REGISTERED_REGIONS; i++) { /* the loop has forgotten it */
        region_closer = client->regions[i].closer;
        client->regions[i].closer = NULL;
        if (region_closer) {
            request_fail(region_closer, ATTND_GONE, "the client has ended");
            d->o.complete(region_closer, d->o.cookie);
        }
    }
    if (!client->open)
        return 0;
    if (!request->doorbell.answers)
        cancel_calls(d, client);
    if (client->closer || !client->open) /* asked again, for the calls to be dropped */
        return 0;
    client->closer = request;
    if (client->calls == 0)
        close_client(d, client);
    return REQUEST_WAITS;
}

int doorbell_control(struct engine_state *state, struct request *request)
{
    struct doorbell *d = state->doorbell;
    switch (request->doorbell.op) {
    case DOORBELL_OPEN:
        return open_client(d, request);
    case DOORBELL_RENEW:
        request->doorbell.client->terms = request->doorbell.terms;
        return 0;
    case DOORBELL_REGION:
        return open_region(d, request);
    case DOORBELL_CLOSE_REGION:
        return ask_to_close_region(d, request);
    case DOORBELL_CLOSE:
        return ask_to_close(d, request);
    }
    return request_fail(request, ATTND_INTERNAL, "there is no such op");
}

struct doorbell_counts doorbell_counts(const struct doorbell *d)
{
    struct doorbell_counts counts = {0};
    if (d)
        counts = d->counts;
    counts.ended = d ? doorbell_ended(d) : 0;
    return counts;
}

uint64_t doorbell_ended(const struct doorbell *d)
{
    return atomic_load(&d->ended);
}

/* ---- create and destroy -------------------------------------------------------------------------- */

int doorbell_create(const struct doorbell_options *options, struct doorbell **result)
{
    uint32_t n = options->requests;
    struct doorbell *d = calloc(1, sizeof *d);
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = NULL};
    if (!d)
        return ATTND_NO_MEMORY;
    d->o = *options;
    d->writing_end = &d->writing;
    d->hot_room = options->state->config->transport_clients;
    d->budget = options->state->taking;
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    d->requests = calloc(n, sizeof *d->requests);
    d->calls = calloc(n, sizeof *d->calls);
    d->hot = calloc(d->hot_room, sizeof *d->hot);
    d->arenas = mapping_create((uint64_t)n * REQUEST_ARENA_BYTES, 0);
    if (d->epoll < 0 || epoll_ctl(d->epoll, EPOLL_CTL_ADD, options->wake, &wake) != 0 || !d->requests ||
        !d->calls || !d->hot || !d->arenas) {
        doorbell_destroy(d);
        return ATTND_NO_MEMORY;
    }
    for (uint32_t i = n; i-- > 0;) {
        d->requests[i].staging = options->staging;
        d->requests[i].cookie = &d->calls[i];
        request_reset(&d->requests[i], d->arenas + (uint64_t)i * REQUEST_ARENA_BYTES, REQUEST_ARENA_BYTES);
        d->calls[i] = (struct doorbell_call){.request = &d->requests[i], .next = d->free_calls};
        d->free_calls = &d->calls[i];
        d->free_count++;
    }
    *result = d;
    return 0;
}

void doorbell_destroy(struct doorbell *d)
{
    if (!d)
        return;
    if (d->epoll >= 0)
        close(d->epoll);
    mapping_destroy(d->arenas, (uint64_t)d->o.requests * REQUEST_ARENA_BYTES);
    free(d->hot);
    free(d->calls);
    free(d->requests);
    free(d);
}
