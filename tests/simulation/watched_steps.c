/* SPDX-License-Identifier: Apache-2.0 */
/* watched_steps.c - see watch.h: steps, what workloads run, and who is removed. */
#include "config/log.h"
#include "scheduler/requests.h"
#include "scheduler/reservation.h"
#include "scheduler/sequence_ops.h"
#include "scheduler/swapping.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/transitions.h"
#include "tests/simulation/watch.h"
#include "tests/simulation/watched.h"

#include <string.h>

enum { ROWS_MOST = 64 };

static const double HANGS_S = 0.3; /* a step that is in flight so long */

/* What a workload drives. */
struct run {
    enum state state;
    uint32_t length, tokens;
};

static struct {
    const struct steps *steps;
    const struct step *forming;
    struct {
        enum state state;
        double submitted_s;
    } step[STEPS_IN_FLIGHT];
    struct run runs[ROWS_MOST]; /* by row */
    uint64_t preemptions;
    double hung_s;
} seen;

/* ---- steps --------------------------------------------------------------------------------------- */

static void step_goes(const struct step *step, enum state to)
{
    enum state *at = &seen.step[step_slot(step)].state;
    transitions_note(MACHINE_STEPS, *at, to);
    *at = to;
}

/* The step that was being formed was not submitted: nothing is left of it. */
static void drop_forming(void)
{
    if (seen.forming && seen.step[step_slot(seen.forming)].state == STATE_FORMING)
        step_goes(seen.forming, STATE_DROPPED);
}

static bool is_in_flight(const struct step *step)
{
    enum state state = seen.step[step_slot(step)].state;
    return state == STATE_IN_FLIGHT || state == STATE_HANGING;
}

WATCHED(struct step *, step_begin, struct steps *steps)
{
    struct step *step = __real_step_begin(steps);
    if (!step)
        return NULL;
    drop_forming();
    seen.steps = steps;
    seen.forming = step;
    if (is_in_flight(step))
        return step; /* it is continued */
    seen.step[step_slot(step)].state = STATE_ABSENT;
    step_goes(step, STATE_FORMING);
    return step;
}

WATCHED(bool, step_skip, struct step *step)
{
    bool skipped = __real_step_skip(step);
    if (skipped)
        step_goes(step, STATE_SKIPPED);
    return skipped;
}

WATCHED(void, step_submit, struct step *step)
{
    if (!is_in_flight(step))
        step_goes(step, STATE_IN_FLIGHT);
    seen.step[step_slot(step)].submitted_s = sim.now_s;
    __real_step_submit(step);
}

WATCHED(void, step_retire, struct step *step)
{
    __real_step_retire(step);
    step_goes(step, step_failure(seen.steps) ? STATE_FAILED : STATE_RETIRED);
}

static void look_at_steps(void)
{
    for (unsigned slot = 0; slot < STEPS_IN_FLIGHT; slot++) {
        if (seen.step[slot].state == STATE_HANGING)
            seen.hung_s = sim.now_s;
        if (seen.step[slot].state != STATE_IN_FLIGHT || sim.now_s - seen.step[slot].submitted_s < HANGS_S)
            continue;
        transitions_note(MACHINE_STEPS, STATE_IN_FLIGHT, STATE_HANGING);
        seen.step[slot].state = STATE_HANGING;
        clients_storm();
    }
}

/* ---- what workloads run -------------------------------------------------------------------------- */

static void run_goes(uint32_t row, enum state to)
{
    transitions_note(MACHINE_RUNNING_ROWS, seen.runs[row].state, to);
    seen.runs[row].state = to;
}

WATCHED(void, reservation_run, struct engine_state *state, uint32_t row, const struct reservation_plan *plan,
        const struct block_tables_hit *hit)
{
    __real_reservation_run(state, row, plan, hit);
    seen.runs[row] = (struct run){STATE_ABSENT, plan->length, 0};
    run_goes(row, STATE_FILLS);
}

WATCHED(void, reservation_run_fork, struct engine_state *state, uint32_t row, uint32_t parent,
        const struct reservation_plan *plan)
{
    __real_reservation_run_fork(state, row, parent, plan);
    seen.runs[row] = (struct run){STATE_ABSENT, plan->length, 0};
    run_goes(row, STATE_FORKED);
}

WATCHED(void, reservation_note_run, struct engine_state *state, uint32_t row, uint32_t tokens, bool decodes)
{
    __real_reservation_note_run(state, row, tokens, decodes);
    seen.runs[row].tokens = tokens;
    run_goes(row, decodes ? STATE_DECODES : STATE_FILLS);
}

WATCHED(void, reservation_end_run, struct engine_state *state, uint32_t row)
{
    bool preempted = state->preemptions != seen.preemptions;
    seen.preemptions = state->preemptions;
    __real_reservation_end_run(state, row);
    run_goes(row, preempted                                        ? STATE_PREEMPTED
                  : state->failed                                  ? STATE_CANCELLED
                  : seen.runs[row].tokens == seen.runs[row].length ? STATE_FINISHED
                                                                   : STATE_CANCELLED);
}

WATCHED(void, workload_release, struct workload *w)
{
    watch_released(w, true);
    __real_workload_release(w);
}

/* One that ended long ago, or that was never started. */
WATCHED(void, workload_destroy, struct workload *w)
{
    watch_released(w, false);
    __real_workload_destroy(w);
}

/* ---- sequences ----------------------------------------------------------------------------------- */

WATCHED(int, sequence_ops_add_lease, struct engine_state *state, struct request *request, uint32_t row)
{
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    watched_blocks_leased(table.ids, table.entries);
    return __real_sequence_ops_add_lease(state, request, row);
}

WATCHED(void, sequences_note_reaped, struct sequences *sequences, uint32_t row, double now_s)
{
    watch_reaped(sequences_at(sequences, row)->id, now_s);
    __real_sequences_note_reaped(sequences, row, now_s);
}

/* A module of a new engine, which is made with what all share. */
WATCHED(int, swapping_create, struct engine_state *state, struct swapping **swapping)
{
    watch_see_state(state);
    return __real_swapping_create(state, swapping);
}

/* What the daemon would log: the history says more, and devices are lost on purpose, hundreds of them. */
WATCHED(void, log_line, enum log_level level, const char *format, ...)
{
    (void)level;
    (void)format;
}

WATCHED(void, log_event, enum log_level level, const char *event, const char *format, ...)
{
    (void)level;
    (void)event;
    (void)format;
}

void watched_steps_begin(void)
{
    memset(&seen, 0, sizeof seen);
}

void watched_steps_turn(void)
{
    look_at_steps();
}

double watch_hung_s(void)
{
    return seen.hung_s;
}
