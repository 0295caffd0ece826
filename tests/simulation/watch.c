/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - see watch.h. */
#include "tests/simulation/watch.h"

#include "tests/simulation/clients.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/symbolic_backend.h"
#include "tests/simulation/transitions.h"

#include <string.h>

enum { ROWS_MOST = 64, ORDINALS_MOST = 64, WORKLOADS_WATCHED = 32 };

struct watched_row {
    uint64_t id; /* 0: nobody's */
    double created_s;
    bool lease;
    enum state state;
};

struct watched_workload {
    struct workload *is; /* NULL: the place is free */
    enum state state, ordinal[ORDINALS_MOST];
};

static struct {
    const struct engine_state *state;
    struct watched_row rows[ROWS_MOST];
    struct watched_workload workloads[WORKLOADS_WATCHED];
    uint64_t reaped[ROWS_MOST]; /* [reaped_count] ids, of this turn */
    uint32_t reaped_count;
} watch;

void watch_begin(void)
{
    memset(&watch, 0, sizeof watch);
    watched_steps_begin();
    watched_history_begin();
}

void watch_see_state(const struct engine_state *state)
{
    watch.state = state;
}

const struct engine_state *watch_state(void)
{
    return watch.state;
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* The part of a request that tells when it was taken; NULL: it computes nothing. */
static struct request_output *output_of(struct request *request)
{
    if (request_kinds[request->kind].when != REQUEST_STEPPED)
        return NULL;
    return request->kind == REQUEST_MERGE ? &request->merge.out : &request->rows.out;
}

/* How far a request has come that is under way. */
static enum state stage_of(struct request *request)
{
    const struct request_queued *q = &request->queued;
    const struct request_output *out = output_of(request);
    if (request->status != 0)
        return STATE_GIVEN_UP;
    if (q->slices.begun)
        return q->slices.appended || !request->rows.k ? STATE_ATTENDS : STATE_APPENDS;
    if (q->looked == LOOKING)
        return STATE_COMPARES;
    if (out && out->queue_us >= 0)
        return STATE_COMPUTES;
    return q->resumes ? STATE_WANTS_ROOM : STATE_WAITS;
}

static enum state end_of(const struct request *request)
{
    if (request->status == 0)
        return STATE_ANSWERED;
    if (request->status == ATTND_DEVICE)
        return STATE_DEVICE_LOST;
    if (request->status == ATTND_DEADLINE)
        return STATE_LATE;
    if (request->status == ATTND_GONE && strstr(request->detail, "client went away"))
        return STATE_CLIENT_GONE;
    if (request->status == ATTND_GONE && strstr(request->detail, "was deleted before"))
        return STATE_DELETED;
    if (request->status == ATTND_GONE && strstr(request->detail, "was not used"))
        return STATE_REAPED;
    return STATE_REFUSED;
}

static void request_goes(struct op *op, enum state to)
{
    transitions_note(MACHINE_REQUESTS, (enum state)op->stage, to);
    op->stage = (uint8_t)to;
    if (to == STATE_GIVEN_UP)
        symbolic_backend_given_up();
}

void watch_submitted(struct op *op)
{
    struct request_output *out = output_of(op->request);
    if (out)
        out->queue_us = -1;
    op->stage = STATE_SUBMITTED;
}

void watch_answered(struct op *op)
{
    request_goes(op, end_of(op->request));
}

static void look_at_requests(void)
{
    for (uint32_t i = 0; i < SIM_REQUESTS_MOST; i++) {
        struct op *op = &clients_ops()[i];
        if (op->request && !op->done)
            request_goes(op, stage_of(op->request));
    }
}

/* ---- sequences and leases ------------------------------------------------------------------------ */

static enum state state_of(uint32_t row)
{
    const struct sequence *s = sequences_at(watch.state->sequences, row);
    const struct block_tables *tables = step_tables(watch.state->steps);
    bool swapped = block_tables_view(tables, row).swapped;
    if (s->pinned)
        return STATE_SLICED;
    if (s->queued)
        return swapped ? STATE_SWAPPED_QUEUED : STATE_QUEUED;
    if (swapped)
        return STATE_SWAPPED;
    return block_tables_in_flight(tables, row) ? STATE_RUNNING : STATE_IDLE;
}

static enum state end_of_row(uint64_t id)
{
    for (uint32_t i = 0; i < watch.reaped_count; i++) {
        if (watch.reaped[i] == id)
            return STATE_REAPED;
    }
    return STATE_DELETED;
}

static void look_at_row(uint32_t row)
{
    struct watched_row *at = &watch.rows[row];
    const struct sequence *s = sequences_at(watch.state->sequences, row);
    bool drives = s->id && !s->workload, same = drives && at->id == s->id && at->created_s == s->created_s;
    if (at->id && !same) {
        transitions_note(at->lease ? MACHINE_LEASES : MACHINE_SEQUENCES, at->state, end_of_row(at->id));
        *at = (struct watched_row){0};
    }
    if (!drives)
        return;
    if (!same)
        *at = (struct watched_row){s->id, s->created_s, s->lease, STATE_ABSENT};
    enum state to = state_of(row);
    if (!at->lease && at->state == STATE_SWAPPED &&
        to == STATE_IDLE) { /* all its blocks had come in with another one */
        transitions_note(MACHINE_SEQUENCES, STATE_SWAPPED, STATE_RUNNING);
        at->state = STATE_RUNNING;
    }
    transitions_note(at->lease ? MACHINE_LEASES : MACHINE_SEQUENCES, at->state, to);
    at->state = to;
}

void watch_reaped(uint64_t id, double now_s)
{
    watch.reaped[watch.reaped_count++] = id;
    client_idle_note_reaped(id, now_s);
}

/* ---- workloads ----------------------------------------------------------------------------------- */

void watch_workload(struct workload *w)
{
    struct watched_workload *at = watch.workloads;
    while (at->is)
        at++;
    *at = (struct watched_workload){.is = w};
}

static enum state state_of_workload(const struct workload *w)
{
    static const enum state states[] = {[WORKLOAD_RUNNING] = STATE_RUNNING,
                                        [WORKLOAD_VERIFYING] = STATE_VERIFYING,
                                        [WORKLOAD_FINISHED] = STATE_FINISHED,
                                        [WORKLOAD_CANCELLED] = STATE_CANCELLED};
    return w->report.id ? states[w->report.state] : STATE_ABSENT;
}

static bool waits(const struct workload *w, uint32_t ordinal)
{
    for (uint32_t i = 0; i < w->waiting_count; i++) {
        if (w->waiting[i] == ordinal)
            return true;
    }
    return false;
}

static bool has_arrived(const struct workload *w, uint32_t ordinal)
{
    const struct workload_sequence *s = &w->sequences[ordinal];
    return s->child ? w->sequences[ordinal - s->child].forked : s->request < w->next_arrival;
}

static enum state state_of_ordinal(const struct workload *w, uint32_t ordinal, enum state before)
{
    if (waits(w, ordinal))
        return before == STATE_RUNNING || before == STATE_PREEMPTED ? STATE_PREEMPTED : STATE_WAITS;
    if (!has_arrived(w, ordinal))
        return STATE_ABSENT;
    if (w->sequences[ordinal].done >= workload_length(w, ordinal))
        return STATE_FINISHED;
    return w->report.state == WORKLOAD_CANCELLED ? STATE_CANCELLED : STATE_RUNNING;
}

/* A workload is cancelled in parts: none of its sequences waits any more, and then those that run leave. */
static bool is_being_cancelled(const struct workload *w)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < w->report.sequences; i++)
        running += state_of_ordinal(w, i, STATE_ABSENT) == STATE_RUNNING;
    return running > w->report.running;
}

static void look_at_workload(struct watched_workload *at)
{
    enum state to = state_of_workload(at->is);
    transitions_note(MACHINE_WORKLOADS, at->state, to);
    at->state = to;
    bool cancelling = to != STATE_ABSENT && is_being_cancelled(at->is);
    for (uint32_t i = 0; to != STATE_ABSENT && i < at->is->report.sequences; i++) {
        enum state is = state_of_ordinal(at->is, i, at->ordinal[i]);
        if (is == STATE_RUNNING && cancelling && at->ordinal[i] != STATE_RUNNING)
            is = STATE_CANCELLED;
        if (is == STATE_ABSENT && to == STATE_CANCELLED)
            is = STATE_CANCELLED;
        transitions_note(MACHINE_ORDINALS, at->ordinal[i], is);
        at->ordinal[i] = is;
    }
}

void watch_released(const struct workload *w, bool ended)
{
    for (uint32_t i = 0; i < WORKLOADS_WATCHED; i++) {
        if (watch.workloads[i].is != w)
            continue;
        if (ended)
            look_at_workload(&watch.workloads[i]);
        watch.workloads[i].is = NULL;
    }
}

/* ---- all ----------------------------------------------------------------------------------------- */

void watch_turn(void)
{
    for (uint32_t row = 0; row < sim.config.limits.sequences; row++)
        look_at_row(row);
    watch.reaped_count = 0;
    for (uint32_t i = 0; i < WORKLOADS_WATCHED; i++) {
        if (watch.workloads[i].is)
            look_at_workload(&watch.workloads[i]);
    }
    look_at_requests();
    watched_steps_turn();
    watched_history_turn();
}
