/* SPDX-License-Identifier: Apache-2.0 */
/* reservation_watched.c - scheduler/reservation.c, with its return statements watched, and with faults
 * that its audit must find. It takes that file's place in the simulation, since the linker sees it first. */
#include "scheduler/reservation.h"

#include "scheduler/ledger.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RETURNS_WATCHED
#include "tests/simulation/returns.h"

#include "scheduler/reservation.c"

#undef return
#include "tests/simulation/reservation_faults.h"

#include "tests/simulation/simulation.h"

void __real_block_pool_retain(struct block_pool *pool, const uint32_t *ids, uint32_t n);
void __real_block_pool_release(struct block_pool *pool, const uint32_t *ids, uint32_t n, uint64_t step);

/* What the audit of promises says: of each row, then of their sums. */
static const char *find_fault(const struct engine_state *state)
{
    const char *fault = NULL;
    for (uint32_t row = 0; !fault && row < state->config->limits.sequences; row++) {
        uint32_t entry = 0, work = UINT32_MAX;
        fault = reservation_row_fault(state, row, &entry, &work);
    }
    return fault ? fault : reservation_fault(state);
}

/* The audit must say what begins like this. */
static void expect_fault(const struct engine_state *state, const char *wanted)
{
    const char *fault = find_fault(state);
    if (!fault || strncmp(fault, wanted, strlen(wanted)) != 0)
        sim_fail("the audit says \"%s\" of a fault that is \"%s\"", fault ? fault : "nothing", wanted);
    sim.seen.faults_planted++;
}

/* Add one to a number while the audit looks. */
#define PLANT(state, number, wanted)                                                                         \
    do {                                                                                                     \
        (number)++;                                                                                          \
        expect_fault(state, wanted);                                                                         \
        (number)--;                                                                                          \
    } while (0)

/* A row that a workload drives and that counts a block as its own which nobody else can have; NO_ROW: none. */
static uint32_t find_owner(const struct reservation *x)
{
    uint32_t row = 0, rows = x->config->limits.sequences;
    for (; row < rows; row++) {
        const struct outlook *o = &x->outlooks[row];
        if (o->runs && o->common + o->copies + 1 < o->entries)
            return row;
    }
    return NO_ROW;
}

/* Faults in what is noted of a row. */
static void plant_in_row(const struct engine_state *state, uint32_t row)
{
    struct reservation *x = state->reservation;
    struct outlook *o = &x->outlooks[row];
    /* only its references change, and back */
    struct block_pool *pool = (struct block_pool *)(uintptr_t)block_tables_pool(step_tables(state->steps));
    uint32_t block = block_tables_view(step_tables(state->steps), row).ids[o->common + 1];
    struct ledger *ledger = &x->places[o->place].ledger;
    const struct ledger kept = *ledger;
    PLANT(state, o->entries, "R1: the blocks of a workload's sequence");
    PLANT(state, x->holder[block], "R2:");
    PLANT(state, x->places[o->place].own, "R1: a workload's own blocks");
    __real_block_pool_retain(pool, &block, 1); /* unseen by watched_blocks.c */
    expect_fault(state, "R3:");
    __real_block_pool_release(pool, &block, 1, 0);
    ledger->peak = 0;
    ledger->peak_known = true;
    expect_fault(state, "R4:");
    *ledger = kept;
}

/* A client's row that counts for a key; NO_ROW: none. */
static uint32_t find_charged(const struct engine_state *state)
{
    for (uint32_t row = 0; row < state->config->limits.sequences; row++) {
        const struct sequence *s = sequences_at(state->sequences, row);
        if (s->id && s->key && !s->workload)
            return row;
    }
    return NO_ROW;
}

void reservation_plant_faults(const struct engine_state *state)
{
    struct reservation *x = state->reservation;
    uint32_t row = find_owner(x), charged = find_charged(state);
    PLANT(state, x->declared, "R1: what is declared");
    if (row != NO_ROW)
        plant_in_row(state, row);
    if (charged != NO_ROW)
        PLANT(state, sequences_at(state->sequences, charged)->charged, "R5:");
}
