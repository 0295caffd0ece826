/* SPDX-License-Identifier: Apache-2.0 */
/* sequences.c - see sequences.h.
 *
 * Open addressing with linear probing, at most half full; removal shifts entries back, as in
 * allocator/prefix_index.c.
 *
 * States are counted where they are noted. That a step retires is noted of no sequence: those that run
 * until a step are counted by its number, and are idle once it has retired:
 *
 *     noted    idle 7   queued 2   swapped 0   run on 3   run until step 41: 4, step 42: 1
 *     count, when 41 has retired:   idle 11   queued 2   running 4 */
#include "scheduler/sequences.h"

#include "config/numbers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORKLOAD_TENANTS = 64, /* keys that have workloads and no sequences: more than there are workloads */
    IDS_A_ROW = 2,         /* ids that one request, and the forks of workloads that run, may take, a row, */
    IDS_MORE = 8192,       /* and more, of batches that delete what they have made */
    DEPARTURES_LEAST = 4096,
    DEPARTURES_MOST = 65536,
    COUNTERS = SEQUENCE_STATES + STEPS_IN_FLIGHT_MAX
};

struct sequences {
    uint32_t rows;
    struct sequence *at; /* [rows] */
    struct tenants *tenants;
    uint32_t *slots; /* [mask + 1] row or NO_ROW */
    uint32_t mask;
    uint64_t node;    /* what ids begin with */
    uint64_t next_id; /* all that were given out are below */
    /* Those from next_id on that clients have chosen, ever, in order; they are never given out. */
    struct id_ranges chosen;
    uint64_t limit; /* none from here on is given out yet */
    struct departures *departures;
    uint64_t contents; /* numbers given out */
    uint32_t
        counts[COUNTERS]; /* those noted: in each state, but for those that run until a step, and these */
    uint64_t until[STEPS_IN_FLIGHT_MAX]; /* the steps, by step modulo their number */
};

static uint32_t home_of(const struct sequences *s, uint64_t id)
{
    return hash_id(id) & s->mask;
}

int sequences_create(uint32_t rows, uint32_t node, struct sequences **result)
{
    struct sequences *s = calloc(1, sizeof *s);
    uint32_t slots = 4;
    while (slots < 2 * rows)
        slots *= 2;
    if (!s)
        return ATTND_NO_MEMORY;
    s->rows = rows;
    s->mask = slots - 1;
    s->node = (uint64_t)node << SEQUENCE_NODE_SHIFT;
    s->next_id = s->node + 1;
    s->limit = UINT64_MAX;
    s->at = calloc(rows, sizeof *s->at);
    s->slots = malloc(slots * sizeof *s->slots);
    uint32_t departures = rows > DEPARTURES_LEAST ? rows : DEPARTURES_LEAST;
    departures = departures < DEPARTURES_MOST ? departures : DEPARTURES_MOST;
    if (!s->at || !s->slots || tenants_create(rows + WORKLOAD_TENANTS, &s->tenants) != 0 ||
        departures_create(departures, &s->departures) != 0) {
        sequences_destroy(s);
        return ATTND_NO_MEMORY;
    }
    memset(s->slots, 0xff, slots * sizeof *s->slots);
    *result = s;
    return 0;
}

void sequences_destroy(struct sequences *s)
{
    if (!s)
        return;
    tenants_destroy(s->tenants);
    departures_destroy(s->departures);
    free(s->at);
    free(s->slots);
    free(s);
}

uint32_t sequences_find(const struct sequences *s, uint64_t id)
{
    uint32_t at = home_of(s, id);
    while (s->slots[at] != NO_ROW && s->at[s->slots[at]].id != id)
        at = (at + 1) & s->mask;
    return s->slots[at];
}

void sequences_choose(struct sequences *s, uint64_t first, uint64_t last)
{
    if (last >= s->next_id)
        id_ranges_add(&s->chosen, first > s->next_id ? first : s->next_id, last);
}

void sequences_allow(struct sequences *s, uint64_t next, uint64_t limit)
{
    s->next_id = next > s->next_id ? next : s->next_id;
    id_ranges_remove_below(&s->chosen, s->next_id);
    s->limit = limit;
}

uint64_t sequences_reach(const struct sequences *s, uint64_t n)
{
    uint64_t end = s->next_id + n;
    for (uint32_t i = 0; i < s->chosen.count && s->chosen.all[i].first < end; i++)
        end += s->chosen.all[i].last + 1 -
               (s->chosen.all[i].first > s->next_id ? s->chosen.all[i].first : s->next_id);
    return end;
}

bool sequences_are_limited(const struct sequences *s)
{
    return s->limit != UINT64_MAX;
}

bool sequences_may_add(const struct sequences *s)
{
    return !sequences_are_limited(s) ||
           sequences_reach(s, IDS_A_ROW * (uint64_t)s->rows + IDS_MORE) <= s->limit;
}

/* An id that nobody ever had. (After 2^40 they begin anew.) */
static uint64_t next_id(struct sequences *s)
{
    for (;;) {
        if (s->next_id >> SEQUENCE_NODE_SHIFT != s->node >> SEQUENCE_NODE_SHIFT)
            s->next_id = s->node + 1;
        if (s->chosen.count && s->chosen.all[0].first <= s->next_id) {
            s->next_id = s->chosen.all[0].last + 1;
            id_ranges_remove_below(&s->chosen, s->next_id);
            continue;
        }
        uint64_t id = s->next_id++;
        if (sequences_find(s, id) == NO_ROW)
            return id;
    }
}

uint64_t sequences_add(struct sequences *s, uint32_t row, uint64_t id, uint64_t parent, uint64_t key,
                       double now_s)
{
    if (id)
        sequences_choose(s, id, id);
    else
        id = next_id(s);
    departures_forget(s->departures, id); /* a client may take up an id again */
    assert(s->at[row].id == 0 && sequences_find(s, id) == NO_ROW);
    s->at[row] = (struct sequence){.id = id,
                                   .parent = parent,
                                   .content = ++s->contents,
                                   .key = key,
                                   .created_s = now_s,
                                   .used_s = now_s};
    tenants_add(s->tenants, key, 1, 0, 0);
    uint32_t at = home_of(s, id);
    while (s->slots[at] != NO_ROW)
        at = (at + 1) & s->mask;
    s->slots[at] = row;
    return id;
}

/* ---- states -------------------------------------------------------------------------------------- */

/* The counter of a noted sequence: of its state, or of the step until which it runs. */
static uint32_t counter_of(const struct sequences *s, const struct sequence *of)
{
    uint32_t slot = of->until % STEPS_IN_FLIGHT_MAX;
    if (of->state != SEQUENCE_RUNNING || of->until == SEQUENCE_RUNS_ON)
        return of->state;
    return s->until[slot] == of->until ? SEQUENCE_STATES + slot
                                       : SEQUENCE_IDLE; /* a later step has the slot */
}

void sequences_note_state(struct sequences *s, uint32_t row, enum sequence_state state, uint64_t until)
{
    struct sequence *of = &s->at[row];
    uint32_t slot = until % STEPS_IN_FLIGHT_MAX;
    if (of->noted)
        s->counts[counter_of(s, of)]--;
    if (state == SEQUENCE_RUNNING && until != SEQUENCE_RUNS_ON &&
        s->until[slot] < until) { /* that has retired */
        s->counts[SEQUENCE_IDLE] += s->counts[SEQUENCE_STATES + slot];
        s->counts[SEQUENCE_STATES + slot] = 0;
        s->until[slot] = until;
    }
    of->noted = true;
    of->state = state;
    of->until = until;
    s->counts[counter_of(s, of)]++;
}

enum sequence_state sequences_state(const struct sequences *s, uint32_t row, uint64_t retired)
{
    const struct sequence *of = &s->at[row];
    return of->state == SEQUENCE_RUNNING && of->until <= retired ? SEQUENCE_IDLE : of->state;
}

void sequences_count(const struct sequences *s, uint64_t retired, uint32_t counts[SEQUENCE_STATES])
{
    memcpy(counts, s->counts, SEQUENCE_STATES * sizeof *counts);
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++)
        counts[s->until[i] > retired ? SEQUENCE_RUNNING : SEQUENCE_IDLE] += s->counts[SEQUENCE_STATES + i];
}

/* Whether what counts for each key is what its sequences have. */
static const char *fault_of_tenants(const struct sequences *s)
{
    tenants_begin_check(s->tenants);
    for (uint32_t row = 0; row < s->rows; row++) {
        if (s->at[row].id)
            tenants_check(s->tenants, s->at[row].key, s->at[row].charged);
    }
    return tenants_are_right(s->tenants) ? NULL : "S2: what counts for a key is not what its sequences have";
}

const char *sequences_fault(const struct sequences *s)
{
    uint32_t counts[COUNTERS] = {0};
    for (uint32_t row = 0; row < s->rows; row++) {
        if (s->at[row].id && s->at[row].noted)
            counts[counter_of(s, &s->at[row])]++;
    }
    return memcmp(counts, s->counts, sizeof counts) == 0
               ? fault_of_tenants(s)
               : "S1: a count of sequences is not that of their states";
}

void sequences_remove(struct sequences *s, uint32_t row)
{
    if (s->at[row].noted)
        s->counts[counter_of(s, &s->at[row])]--;
    uint32_t hole = home_of(s, s->at[row].id);
    while (s->slots[hole] != row)
        hole = (hole + 1) & s->mask;
    for (uint32_t at = (hole + 1) & s->mask; s->slots[at] != NO_ROW; at = (at + 1) & s->mask) {
        uint32_t home = home_of(s, s->at[s->slots[at]].id);
        if (((at - home) & s->mask) >= ((at - hole) & s->mask)) {
            s->slots[hole] = s->slots[at];
            hole = at;
        }
    }
    s->slots[hole] = NO_ROW;
    tenants_add(s->tenants, s->at[row].key, -1, 0, -(int64_t)s->at[row].charged);
    s->at[row].id = 0;
}

void sequences_charge(struct sequences *s, uint32_t row, uint32_t blocks)
{
    struct sequence *of = &s->at[row];
    if (!of->key || of->charged == blocks)
        return;
    tenants_add(s->tenants, of->key, 0, 0, (int64_t)blocks - of->charged);
    of->charged = blocks;
}

struct tenants *sequences_tenants(struct sequences *s)
{
    return s->tenants;
}

void sequences_note_reaped(struct sequences *s, uint32_t row, double now_s)
{
    const struct sequence *of = &s->at[row];
    const struct departure gone = {of->id, of->key, of->lease, now_s, now_s - of->used_s, ""};
    departures_note(s->departures, &gone);
}

void sequences_note_moved(struct sequences *s, uint32_t row, const char *moved_to, double now_s)
{
    const struct sequence *of = &s->at[row];
    struct departure gone = {of->id, of->key, of->lease, now_s, 0, ""};
    snprintf(gone.moved_to, sizeof gone.moved_to, "%s", moved_to);
    departures_note(s->departures, &gone);
}

const struct departures *sequences_departures(const struct sequences *s)
{
    return s->departures;
}

void sequences_note_cut(struct sequences *s, uint32_t row)
{
    s->at[row].content = ++s->contents;
}

struct sequence *sequences_at(struct sequences *s, uint32_t row)
{
    return &s->at[row];
}
