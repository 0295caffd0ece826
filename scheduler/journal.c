/* SPDX-License-Identifier: Apache-2.0 */
/* journal.c - see journal.h.
 *
 *     ring   | n, kind | payload, to 8 bytes | n, kind | payload | ... | WRAP |        head: engine, tail: writer
 *
 * An entry lies in one piece; WRAP says that the next one is at the front. The writer looks every few milliseconds, takes what
 * is there, puts checksums to it, and writes it. */
#include "scheduler/journal.h"

#include "config/log.h"
#include "config/mapping.h"
#include "config/numbers.h"
#include "scheduler/journal_request.h"
#include "scheduler/workload.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    RING_BYTES = 1 << 24,
    ENTRY_HEAD = 8,
    WRITER_NS = 20000000, /* between two looks */
    HASHED_IDS =
        8192, /* of a step: block ids of tables beyond so many are not compared, but for the last of each */
    VALUES_MOST = 1 << 16 /* of an effect */
};

static const uint32_t WRAP = UINT32_MAX;

/* What effects consist of, before lists. */
#define COUNTS                                                                                               \
    "free blocks", "held blocks", "cached blocks", "fenced blocks", "shared blocks", "filled slots",         \
        "evictions", "refused allocations", "rows", "swapped rows", "logical tokens", "physical tokens",     \
        "copies on write", "forks", "swaps out", "swaps in", "prefix hits", "prefix questions",              \
        "free host blocks", "preemptions", "leases", "leased blocks"

static const char *const
    step_names[] = {"step", "rows of clients", "rows of workloads", "sequences", "tables", COUNTS, "copies",
                    NULL},
    *const retired_names[] = {"step", COUNTS, NULL}, *const answer_names[] = {"request", "kind", "status",
                                                                              COUNTS,    "ids",  NULL};

static const char *const kind_names[JOURNAL_KINDS] = {
    "nothing",         "begin",         "turn",           "request",
    "client gone",     "step done",     "budget spent",   "roof measured",
    "self-test ended", "block swapped", "step submitted", "step retired",
    "answer",          "end",           "calls dropped"};

const char *journal_kind_name(enum journal_kind kind)
{
    return kind_names[kind];
}

const char *const *journal_value_names(enum journal_kind kind)
{
    return kind == JOURNAL_STEP      ? step_names
           : kind == JOURNAL_RETIRED ? retired_names
           : kind == JOURNAL_ANSWER  ? answer_names
                                     : NULL;
}

struct journal {
    bool token_ids;
    uint64_t key; /* of hashes */
    const struct config *config;
    uint8_t *scratch; /* [JOURNAL_RECORD_BYTES] a request; values of an effect */
    uint64_t requests;

    /* of one that records */
    bool on; /* nothing has stopped it */
    bool turn_pending;
    enum journal_kind last;        /* that was put */
    uint32_t asked[JOURNAL_KINDS]; /* facts, since the last record but a turn's, or the begin of the turn */
    struct journal_turn turn;
    uint8_t *ring; /* [RING_BYTES] */
    _Atomic uint64_t head, tail;
    uint64_t tail_seen; /* the engine's copy */
    _Atomic(const char *) stopped;
    _Atomic bool ends;
    _Atomic uint64_t records, bytes;
    _Atomic uint32_t file_count;
    struct journal_files files;
    pthread_t writer;
    bool writes;

    /* of one that checks */
    bool checks;
    struct journal_reader reader;
    struct journal_record next; /* kind 0: there is none */
    struct journal_check check;
    char fault[JOURNAL_REASON_BYTES];

    /* of blocks on their way between host memory and its file */
    struct swap_io file;
    struct swap_transfer *submitted; /* [frames] of one that checks; block NO_BLOCK: none */
    uint32_t frames;
};

/* ---- the ring -------------------------------------------------------------------------------------- */

static void say_stopped(const char *reason)
{
    log_event(LOG_ERROR, "journal_stopped", NULL, "journal.path: %s; nothing more is recorded", reason);
}

/* Nothing more is recorded. Whether this is why: the first reason counts. */
static bool set_stopped(struct journal *j, const char *reason)
{
    const char *none = NULL;
    j->on = false;
    return atomic_compare_exchange_strong(&j->stopped, &none, reason);
}

/* Likewise, which nobody has asked for. */
static void stop(struct journal *j, const char *reason)
{
    if (set_stopped(j, reason))
        say_stopped(reason);
}

/* Room for an entry in one piece; NULL: there is none, and the journal has stopped. */
static uint8_t *reserve(struct journal *j, uint32_t n, uint64_t *head)
{
    uint64_t bytes = ENTRY_HEAD + (n + 7ULL) / 8 * 8, at = *head % RING_BYTES, skipped = 0;
    if (RING_BYTES - at < bytes)
        skipped = RING_BYTES - at;
    if (RING_BYTES - (*head - j->tail_seen) < bytes + skipped)
        j->tail_seen = atomic_load_explicit(&j->tail, memory_order_acquire);
    if (RING_BYTES - (*head - j->tail_seen) < bytes + skipped) {
        stop(j, "the disk does not keep up");
        return NULL;
    }
    if (skipped) {
        memcpy(j->ring + at, &WRAP, sizeof WRAP);
        *head += skipped;
    }
    return j->ring + *head % RING_BYTES;
}

static void put(struct journal *j, enum journal_kind kind, const void *payload, uint32_t n)
{
    uint64_t head = atomic_load_explicit(&j->head, memory_order_relaxed);
    const uint32_t entry[2] = {n, kind};
    if (atomic_load_explicit(&j->stopped, memory_order_relaxed))
        j->on = false;
    uint8_t *to = j->on ? reserve(j, n, &head) : NULL;
    if (!to)
        return;
    memcpy(to, entry, sizeof entry);
    memcpy(to + ENTRY_HEAD, payload, n);
    j->last = kind;
    if (kind != JOURNAL_TURN)
        memset(j->asked, 0, sizeof j->asked);
    atomic_store_explicit(&j->head, head + ENTRY_HEAD + (n + 7ULL) / 8 * 8, memory_order_release);
}

/* Write what is in the ring; why it cannot be, or NULL. */
static const char *drain(struct journal *j)
{
    uint64_t tail = atomic_load_explicit(&j->tail, memory_order_relaxed),
             head = atomic_load_explicit(&j->head, memory_order_acquire);
    const char *failure = NULL;
    while (!failure && tail != head) {
        uint32_t entry[2];
        memcpy(entry, j->ring + tail % RING_BYTES, sizeof entry[0]);
        if (entry[0] == WRAP) {
            tail += RING_BYTES - tail % RING_BYTES;
            continue;
        }
        memcpy(entry, j->ring + tail % RING_BYTES, sizeof entry);
        failure = journal_files_put(&j->files, (uint8_t)entry[1], j->ring + tail % RING_BYTES + ENTRY_HEAD,
                                    entry[0]);
        tail += ENTRY_HEAD + (entry[0] + 7ULL) / 8 * 8;
        atomic_store_explicit(&j->tail, tail, memory_order_release);
        atomic_fetch_add_explicit(&j->records, !failure, memory_order_relaxed);
    }
    failure = failure ? failure : journal_files_flush(&j->files);
    atomic_store(&j->bytes, j->files.bytes);
    atomic_store(&j->file_count, j->files.file);
    return failure;
}

static void *write_journal(void *cookie)
{
    struct journal *j = cookie;
    const struct timespec pause = {0, WRITER_NS};
    for (bool ends = false; !ends;) {
        ends = atomic_load(&j->ends);
        const char *failure = drain(j), *none = NULL;
        if (failure) {
            atomic_compare_exchange_strong(&j->stopped, &none, failure);
            say_stopped(failure);
            return NULL;
        }
        if (!ends)
            nanosleep(&pause, NULL);
    }
    return NULL;
}

/* ---- of one that checks ---------------------------------------------------------------------------- */

bool journal_checks(const struct journal *j)
{
    return j && j->checks;
}

bool journal_next_is(const struct journal *j, enum journal_kind kind)
{
    return j->next.kind == kind && !j->check.fault;
}

/* Something is other than it was recorded: that was all. */
static void __attribute__((format(printf, 2, 3))) differs(struct journal *j, const char *format, ...)
{
    char place[JOURNAL_PLACE_BYTES], what[256];
    va_list args;
    if (j->check.fault)
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    journal_reader_place(&j->reader, &j->next, place);
    snprintf(j->fault, sizeof j->fault, "%s: record %llu (%s): %s", place, (unsigned long long)j->next.number,
             kind_names[j->next.kind], what);
    j->check.fault = j->fault;
}

static void read_next(struct journal *j)
{
    j->next.kind = 0;
    memset(j->asked, 0, sizeof j->asked);
    if (j->check.fault)
        return;
    int rc = journal_reader_next(&j->reader, &j->next, j->fault);
    if (rc < 0) {
        j->check.fault = j->fault;
        j->check.damaged = true;
        j->next.kind = 0;
    } else if (rc == 0) {
        j->check.ended = true;
        j->check.torn = j->reader.torn;
    } else if (j->next.kind == 0 || j->next.kind >= JOURNAL_KINDS) {
        j->next.kind = 0;
        differs(j, "there is no such kind of record");
    }
    j->check.records += rc > 0;
}

/* Take the next record, which is of that kind; false: it is another. */
static bool expect(struct journal *j, enum journal_kind kind, const char *met)
{
    if (j->check.fault || j->check.ended) /* what follows the last record was not recorded */
        return false;
    if (j->next.kind == kind)
        return true;
    differs(j, "this was recorded; the engine comes to: %s", met);
    return false;
}

/* ---- inputs ---------------------------------------------------------------------------------------- */

void journal_turn(struct journal *j, double *now_s, bool *keeps_all, bool *stopping)
{
    if (!j)
        return;
    if (!j->checks) {
        j->turn = (struct journal_turn){*now_s, *keeps_all, *stopping, {0}};
        j->turn_pending = true;
        memset(j->asked, 0, sizeof j->asked);
        return;
    }
    struct journal_turn turn;
    if (!expect(j, JOURNAL_TURN, "a turn"))
        return;
    if (j->next.n != sizeof turn) {
        differs(j, "it has another length");
        return;
    }
    memcpy(&turn, j->next.payload, sizeof turn);
    *now_s = turn.now_s;
    *keeps_all = turn.keeps_all;
    *stopping = turn.stopping;
    j->check.turns++;
    read_next(j);
}

void journal_note_turn(struct journal *j)
{
    if (!j || j->checks || !j->turn_pending)
        return;
    j->turn_pending = false;
    put(j, JOURNAL_TURN, &j->turn, sizeof j->turn);
}

void journal_note_attempt(struct journal *j)
{
    if (j && j->last != JOURNAL_TURN)
        journal_note_turn(j);
}

void journal_end_turn(struct journal *j)
{
    if (!j->check.fault && !j->check.ended && j->next.kind != JOURNAL_TURN && j->next.kind != JOURNAL_END)
        differs(j, "this was recorded; the engine does not come to it");
}

void journal_take(struct journal *j, struct request *request)
{
    if (!j || request_kinds[request->kind].when == REQUEST_LOOKING)
        return;
    request->journal_number = ++j->requests;
    if (j->checks || !j->on)
        return;
    struct journal_wire w = {.at = j->scratch,
                             .end = j->scratch + JOURNAL_RECORD_BYTES - 1,
                             .plain = j->token_ids,
                             .key = j->key,
                             .request = request};
    journal_note_turn(j);
    if (!journal_request(&w, j->config))
        stop(j, "a request has lists that are too long for a record");
    else
        put(j, JOURNAL_REQUEST, j->scratch, (uint32_t)(w.at - j->scratch));
}

bool journal_next_request(struct journal *j, struct request *request)
{
    /* The wire writes nothing when it reads. */
    uint8_t *at = j->scratch;
    memcpy(at, j->next.payload, j->next.n);
    struct journal_wire w = {.at = at, .end = at + j->next.n, .reads = true, .request = request};
    if (!journal_request(&w, j->config) || w.at != w.end) {
        differs(j, "it is no request of this version");
        return false;
    }
    j->check.requests++;
    read_next(j);
    return true;
}

/* A plain fact: noted, or whether it was. It is told from the same question asked before or after by how often that was asked since
 * the record before. */
static bool fact(struct journal *j, enum journal_kind kind, bool is)
{
    if (!j)
        return is;
    uint32_t asked = j->asked[kind]++, was = 0;
    if (j->checks) {
        if (!journal_next_is(j, kind) || j->next.n != sizeof was)
            return false;
        memcpy(&was, j->next.payload, sizeof was);
        if (was == asked)
            read_next(j);
        return was == asked;
    }
    if (is) {
        journal_note_turn(j);
        put(j, kind, &asked, sizeof asked);
    }
    return is;
}

bool journal_gone(struct journal *j, const struct request *request)
{
    return fact(j, JOURNAL_GONE, atomic_load(&request->cancelled));
}

bool journal_dropped(struct journal *j, bool drops)
{
    return fact(j, JOURNAL_DROPPED, drops);
}

bool journal_spent(struct journal *j, bool spent)
{
    return fact(j, JOURNAL_SPENT, spent);
}

bool journal_roof(struct journal *j, bool done)
{
    return fact(j, JOURNAL_ROOF, done);
}

bool journal_tested(struct journal *j, bool done)
{
    return fact(j, JOURNAL_TESTED, done);
}

bool journal_peek_done(const struct journal *j, struct journal_step_done *to)
{
    struct journal_done done;
    if (!journal_next_is(j, JOURNAL_DONE) || j->next.n < sizeof done)
        return false;
    memcpy(&done, j->next.payload, sizeof done);
    if ((j->next.n - sizeof done) / sizeof(uint32_t) != done.count)
        return false;
    *to = (struct journal_step_done){done.step, done.busy_s, done.idle_s, done.count,
                                     j->next.payload + sizeof done};
    return true;
}

void journal_done(struct journal *j, const struct step *step)
{
    if (!j)
        return;
    if (j->checks) {
        struct journal_step_done done;
        if (expect(j, JOURNAL_DONE, "a step that is done") && journal_peek_done(j, &done)) {
            if (done.step != step_figures(step).number)
                differs(j, "step %llu was done; this is step %llu", (unsigned long long)done.step,
                        (unsigned long long)step_figures(step).number);
            j->check.steps++;
            read_next(j);
        }
        return;
    }
    uint32_t count;
    const struct kv_compare *compares = step_compares(step, &count);
    struct attention_times times = step_times(step);
    const struct journal_done done = {step_figures(step).number, times.busy_s, times.idle_s, count, 0};
    memcpy(j->scratch, &done, sizeof done);
    for (uint32_t i = 0; i < count; i++)
        memcpy(j->scratch + sizeof done + i * sizeof *compares[i].equal, compares[i].equal,
               sizeof *compares[i].equal);
    journal_note_turn(j);
    put(j, JOURNAL_DONE, j->scratch, (uint32_t)(sizeof done + count * sizeof(uint32_t)));
}

/* ---- blocks on their way to the file and back -------------------------------------------------------- */

static void begin_swaps(void *cookie, const struct attention_host *host, void (*wake)(void *), void *of_wake)
{
    struct journal *j = cookie;
    if (!j->checks)
        j->file.begin(j->file.cookie, host, wake, of_wake);
}

static void end_swaps(void *cookie)
{
    struct journal *j = cookie;
    if (!j->checks)
        j->file.end(j->file.cookie);
}

static void submit_swap(void *cookie, const struct swap_transfer *transfer)
{
    struct journal *j = cookie;
    if (j->checks)
        j->submitted[transfer->frame] = *transfer;
    else
        j->file.submit(j->file.cookie, transfer);
}

/* The next one that was recorded as done, which has to be one that was submitted. */
static bool take_recorded(struct journal *j, struct swap_transfer *done)
{
    struct journal_swapped is;
    if (!journal_next_is(j, JOURNAL_SWAPPED))
        return false;
    if (j->next.n != sizeof is) {
        differs(j, "it has another length");
        return false;
    }
    memcpy(&is, j->next.payload, sizeof is);
    struct swap_transfer *was = is.frame < j->frames ? &j->submitted[is.frame] : NULL;
    if (!was || was->block == NO_BLOCK || was->block != is.block || was->write != (is.write != 0)) {
        differs(j, "block %u, %s frame %u: this is not under way", is.block,
                is.write ? "written from" : "read into", is.frame);
        return false;
    }
    *done = *was;
    done->error = is.error;
    was->block = NO_BLOCK;
    read_next(j);
    return true;
}

static bool take_swap(void *cookie, struct swap_transfer *done)
{
    struct journal *j = cookie;
    if (j->checks)
        return take_recorded(j, done);
    if (!j->file.take(j->file.cookie, done))
        return false;
    const struct journal_swapped is = {done->block, done->frame, done->error, done->write, {0}};
    journal_note_turn(j);
    put(j, JOURNAL_SWAPPED, &is, sizeof is);
    return true;
}

int journal_swap_io(struct journal *j, const struct swap_io *file, uint32_t frames, struct swap_io *io)
{
    if (!j) {
        *io = *file;
        return 0;
    }
    *io = (struct swap_io){j, begin_swaps, submit_swap, take_swap, end_swaps};
    if (!j->checks) {
        j->file = *file;
        return 0;
    }
    j->submitted = calloc(frames, sizeof *j->submitted);
    for (uint32_t f = 0; j->submitted && f < frames; f++)
        j->submitted[f].block = NO_BLOCK;
    j->frames = frames;
    return j->submitted ? 0 : ATTND_NO_MEMORY;
}

/* ---- effects --------------------------------------------------------------------------------------- */

/* Values of an effect, collected in scratch. */
struct values {
    uint64_t *list;
    uint32_t n;
};

static void add(struct values *v, uint64_t value)
{
    if (v->n < VALUES_MOST)
        v->list[v->n++] = value;
}

static void add_counts(struct values *v, const struct engine_state *state)
{
    const struct block_tables *tables = step_tables(state->steps);
    struct block_pool_counts p = block_pool_counts(block_tables_pool(tables));
    struct block_tables_counts t = block_tables_counts(tables);
    const uint64_t counts[] = {p.free,           p.held,
                               p.cached,         p.fenced,
                               p.shared,         p.filled,
                               p.evictions,      p.failures,
                               t.rows,           t.swapped,
                               t.tokens_logical, t.tokens_physical,
                               t.copies,         t.forks,
                               t.swaps_out,      t.swaps_in,
                               t.blocks_hit,     t.blocks_asked,
                               t.host_free,      state->preemptions,
                               state->leases,    state->leased_blocks};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        add(v, counts[i]);
}

/* The first value that differs. */
static void compare(struct journal *j, enum journal_kind kind, const char *const *names,
                    const struct values *v)
{
    uint32_t n = j->next.n / sizeof *v->list, at = 0, name = 0;
    if (!expect(j, kind, kind_names[kind]))
        return;
    uint64_t was = 0;
    for (; at < n && at < v->n; at++) {
        memcpy(&was, j->next.payload + at * sizeof was, sizeof was);
        if (was != v->list[at])
            break;
    }
    if (at == n && n == v->n) {
        read_next(j);
        return;
    }
    while (name < at && names[name + 1])
        name++;
    if (at < n && at < v->n)
        differs(j, "%s%s: recorded %llu, found %llu", names[name], at > name ? " (of a list)" : "",
                (unsigned long long)was, (unsigned long long)v->list[at]);
    else
        differs(j, "%s: recorded %u values, found %u", names[name], n, v->n);
}

static void effect(struct journal *j, enum journal_kind kind, const char *const *names,
                   const struct values *v)
{
    if (j->checks) {
        compare(j, kind, names, v);
        return;
    }
    journal_note_turn(j);
    put(j, kind, v->list, v->n * (uint32_t)sizeof *v->list);
}

/* The tables of the rows of a step: how long each is, and its blocks, of many rows only the last ones. */
static uint64_t hash_tables(const struct engine_state *state, const struct step *step)
{
    const struct block_tables *tables = step_tables(state->steps);
    uint32_t count, hashed = 0;
    const uint32_t *rows = step_table_rows(step, &count);
    XXH3_state_t hash;
    XXH3_64bits_reset(&hash);
    for (uint32_t i = 0; i < count; i++) {
        struct block_table_view table = block_tables_view(tables, rows[i]);
        uint32_t n = hashed + table.entries <= HASHED_IDS ? table.entries : table.entries > 0;
        const uint32_t row[] = {rows[i], table.entries, table.cursor_max};
        (void)XXH3_64bits_update(&hash, row, sizeof row);
        (void)XXH3_64bits_update(&hash, table.ids + (table.entries - n), n * sizeof *table.ids);
        hashed += n;
    }
    return XXH3_64bits_digest(&hash);
}

void journal_step(struct journal *j, const struct engine_state *state, const struct step *step)
{
    if (!j || (!j->checks && !j->on))
        return;
    struct values v = {.list = (uint64_t *)(void *)j->scratch};
    uint32_t rows[2], sequences, copies;
    const struct block_copy *list = step_copied(step, &copies);
    (void)step_table_rows(step, &sequences);
    step_rows_of(step, rows);
    add(&v, step_figures(step).number);
    add(&v, rows[STEP_OF_CLIENTS]);
    add(&v, rows[STEP_OF_WORKLOADS]);
    add(&v, sequences);
    add(&v, hash_tables(state, step));
    add_counts(&v, state);
    add(&v, copies);
    for (uint32_t i = 0; i < copies; i++) {
        add(&v, (uint64_t)list[i].kind << 32 | list[i].slots);
        add(&v, (uint64_t)list[i].from << 32 | list[i].to);
    }
    effect(j, JOURNAL_STEP, step_names, &v);
}

void journal_retired(struct journal *j, const struct engine_state *state, const struct step *step)
{
    if (!j || (!j->checks && !j->on))
        return;
    struct values v = {.list = (uint64_t *)(void *)j->scratch};
    add(&v, step_figures(step).number);
    add_counts(&v, state);
    effect(j, JOURNAL_RETIRED, retired_names, &v);
}

/* Sequences that an answer shows, with their blocks. */
static void add_shown(struct values *v, const struct request_shown *shown)
{
    add(v, shown->count);
    for (uint32_t i = 0; i < shown->count; i++) {
        const struct sequence_view *view = &shown->views[i];
        add(v, view->id);
        add(v, (uint64_t)view->length << 32 | view->blocks);
        add(v, (uint64_t)view->shared_blocks << 32 | view->listed);
    }
    for (uint32_t i = 0; i < shown->block_id_count; i++)
        add(v, shown->block_ids[i]);
}

static void add_op(struct values *v, const struct request_op *op)
{
    if (op->kind == REQUEST_CREATE)
        add_shown(v, &op->create.shown);
    else if (op->kind == REQUEST_FORK)
        add_shown(v, &op->fork.shown);
    else if (op->kind == REQUEST_TRUNCATE)
        add_shown(v, &op->truncate.shown);
    else
        add(v, 0);
}

static void add_answer(struct values *v, const struct request *r)
{
    switch (r->kind) {
    case REQUEST_CREATE:
        add_shown(v, &r->create.shown);
        break;
    case REQUEST_FORK:
        add_shown(v, &r->fork.shown);
        break;
    case REQUEST_TRUNCATE:
        add_shown(v, &r->truncate.shown);
        break;
    case REQUEST_LEASE:
        add_shown(v, &r->lease.shown);
        break;
    case REQUEST_BATCH:
        for (uint32_t i = 0; i < r->batch.count; i++)
            add_op(v, &r->batch.ops[i]);
        break;
    case REQUEST_APPEND:
        add(v, r->attend.view_count);
        for (uint32_t i = 0; i < r->attend.view_count; i++) {
            add(v, r->attend.views[i].id);
            add(v, (uint64_t)r->attend.views[i].length << 32 | r->attend.views[i].blocks);
        }
        break;
    case REQUEST_ATTEND:
    case REQUEST_PAGED:
        add(v, r->rows.out.rows_in_step);
        add(v, r->rows.out.bytes_read);
        break;
    case REQUEST_TRIM:
        add(v, r->trim.dropped);
        break;
    case REQUEST_WORKLOAD_START:
    case REQUEST_WORKLOAD:
    case REQUEST_WORKLOAD_CANCEL:
        add(v, r->workload.report->id);
        add(v, r->workload.report->state);
        add(v, r->workload.report->tokens_done);
        add(v, r->workload.report->steps);
        break;
    default: /* its status */
        add(v, 0);
        break;
    }
}

void journal_answer(struct journal *j, const struct engine_state *state, const struct request *request)
{
    if (!j || (!j->checks && !j->on) || request_kinds[request->kind].when == REQUEST_LOOKING)
        return;
    struct values v = {.list = (uint64_t *)(void *)j->scratch};
    add(&v, request->journal_number);
    add(&v, request->kind);
    add(&v, (uint64_t)(int64_t)-request->status);
    add_counts(&v, state);
    if (request->status == 0)
        add_answer(&v, request);
    effect(j, JOURNAL_ANSWER, answer_names, &v);
}

/* ---- begin and end --------------------------------------------------------------------------------- */

void journal_begin(struct journal *j, const struct journal_begin *begin, const char *settings,
                   const char *version)
{
    if (!j || j->checks)
        return;
    char text[JOURNAL_VERSION_BYTES] = "";
    snprintf(text, sizeof text, "%s", version);
    size_t n = strlen(settings) + 1;
    assert(sizeof *begin + sizeof text + n < JOURNAL_RECORD_BYTES);
    memcpy(j->scratch, begin, sizeof *begin);
    memcpy(j->scratch + sizeof *begin, text, sizeof text);
    memcpy(j->scratch + sizeof *begin + sizeof text, settings, n);
    put(j, JOURNAL_BEGIN, j->scratch, (uint32_t)(sizeof *begin + sizeof text + n));
}

const char *journal_read_begin(const struct journal_record *record, struct journal_begin *begin,
                               const char **version)
{
    const uint8_t *payload = record->payload;
    if (record->kind != JOURNAL_BEGIN || record->n <= sizeof *begin + JOURNAL_VERSION_BYTES ||
        payload[record->n - 1] || payload[sizeof *begin + JOURNAL_VERSION_BYTES - 1])
        return NULL;
    memcpy(begin, payload, sizeof *begin);
    if (version)
        *version = (const char *)payload + sizeof *begin;
    return (const char *)payload + sizeof *begin + JOURNAL_VERSION_BYTES;
}

const char *journal_settings(const struct journal *j, struct journal_begin *begin)
{
    return journal_read_begin(&j->next, begin, NULL);
}

/* With a last record that says why. Whether it is why. */
static bool end_with(struct journal *j, const char *reason)
{
    if (!j || j->checks || !j->on)
        return false;
    put(j, JOURNAL_END, reason, (uint32_t)strlen(reason));
    return set_stopped(j, reason);
}

void journal_end(struct journal *j, const char *reason)
{
    (void)end_with(j, reason);
}

void journal_stop(struct journal *j, const char *reason)
{
    if (end_with(j, reason))
        say_stopped(reason);
}

struct journal_state journal_state(const struct journal *j)
{
    if (!j)
        return (struct journal_state){0};
    return (struct journal_state){true, atomic_load(&j->records), atomic_load(&j->bytes),
                                  atomic_load(&j->file_count), atomic_load(&j->stopped)};
}

struct journal_check journal_check(const struct journal *j)
{
    return j->check;
}

static struct journal *make(char reason[JOURNAL_REASON_BYTES])
{
    struct journal *j = calloc(1, sizeof *j);
    snprintf(reason, JOURNAL_REASON_BYTES, "no memory for the journal");
    if (!j)
        return NULL;
    j->files.fd = -1;
    j->scratch = mapping_create(JOURNAL_RECORD_BYTES, 0);
    if (j->scratch)
        return j;
    free(j);
    return NULL;
}

int journal_create(const struct journal_options *o, struct journal **result,
                   char reason[JOURNAL_REASON_BYTES])
{
    struct journal *j = make(reason);
    const struct config *c = o->config;
    if (!j)
        return ATTND_NO_MEMORY;
    j->config = c;
    j->token_ids = c->journal_token_ids;
    j->ring = mapping_create(RING_BYTES, 0);
    if (j->ring)
        memset(j->ring, 0, RING_BYTES); /* so that the engine never waits for a page of it */
    int rc = j->ring && getrandom(&j->key, sizeof j->key, 0) == sizeof j->key ? 0 : ATTND_NO_MEMORY;
    if (rc == 0)
        rc = journal_files_open(&j->files, c->journal_path, c->journal_file_bytes, c->journal_bytes, reason);
    if (rc == 0) {
        j->on = true;
        j->writes = pthread_create(&j->writer, NULL, write_journal, j) == 0;
        rc = j->writes ? 0 : ATTND_NO_MEMORY;
    }
    if (rc != 0) {
        journal_destroy(j);
        return rc;
    }
    *result = j;
    return 0;
}

int journal_create_check(const char *path, struct journal **result, char reason[JOURNAL_REASON_BYTES])
{
    struct journal *j = make(reason);
    if (!j)
        return ATTND_NO_MEMORY;
    j->checks = true;
    int rc = journal_reader_open(&j->reader, path, reason);
    if (rc == 0) {
        read_next(j);
        rc = j->check.fault ? ATTND_INVALID : 0;
        if (rc != 0)
            snprintf(reason, JOURNAL_REASON_BYTES, "%s", j->fault);
    }
    if (rc != 0) {
        journal_destroy(j);
        return rc;
    }
    *result = j;
    return 0;
}

void journal_check_config(struct journal *j, const struct config *config)
{
    j->config = config;
    read_next(j); /* it has begun */
}

void journal_destroy(struct journal *j)
{
    if (!j)
        return;
    if (j->writes) {
        atomic_store(&j->ends, true);
        pthread_join(j->writer, NULL);
    }
    if (j->files.buffer)
        journal_files_close(&j->files);
    journal_reader_close(&j->reader);
    free(j->submitted);
    mapping_destroy(j->ring, RING_BYTES);
    mapping_destroy(j->scratch, JOURNAL_RECORD_BYTES);
    free(j);
}
