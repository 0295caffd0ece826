/* SPDX-License-Identifier: Apache-2.0 */
/* slicing.c - see slicing.h. */
#include "scheduler/slicing.h"

#include "config/numbers.h"

#include <assert.h>

uint32_t slicing_appends(struct append_slicing *s, uint32_t tokens, struct kv_append *to, uint32_t room,
                         uint32_t *done)
{
    uint32_t n = 0;
    for (*done = 0; n < room && s->done < s->count && *done < tokens; n++) {
        const struct kv_append *whole = &s->appends[s->done];
        uint32_t count = smaller(whole->count - s->tokens, tokens - *done);
        to[n] = kv_append_part(whole, s->tokens, count, s->row_bytes);
        *done += count;
        s->tokens += count;
        if (s->tokens == whole->count) {
            s->done++;
            s->tokens = 0;
        }
    }
    return n;
}

void slicing_begin(struct slicing *s, const struct planner_place *places, uint32_t n)
{
    *s = (struct slicing){.places = places, .n = n};
}

bool slicing_is_done(const struct slicing *s)
{
    return s->at == s->n;
}

/* Add what the query at a place does; `shared` of its first chunks are read by the one before it. */
static void add_query(struct cost_work *work, const struct planner_place *place, uint32_t shared)
{
    uint64_t chunks = place->end - place->first;
    work->tokens += (chunks - smaller(shared, place->end - place->first)) * CHUNK_TOKENS;
    work->weighed += chunks * CHUNK_TOKENS;
    work->queries++;
}

void slicing_count(const struct planner_place *places, uint32_t n, uint32_t together, struct cost_work *work)
{
    for (uint32_t i = 0; i < n; i++)
        add_query(work, &places[i], i % together ? places[i - 1].common : 0);
}

static double most_us(const struct slicing_room *room)
{
    return room->together_us > room->us ? room->together_us : room->us;
}

/* Queries from s->at on that fit whole, and what they do. */
static uint32_t whole_queries(const struct slicing *s, const struct steps *steps,
                              const struct slicing_room *room, uint32_t together, struct cost_work *work)
{
    uint32_t n = 0;
    *work = (struct cost_work){.passes = 1};
    while (s->at + n < s->n && n < room->queries) {
        struct cost_work more = *work;
        uint32_t common = n % together ? s->places[s->at + n - 1].common : 0;
        add_query(&more, &s->places[s->at + n], common);
        if (step_us_of(steps, &more) > (n < together && common ? most_us(room) : room->us))
            break;
        *work = more;
        n++;
    }
    return n;
}

/* Microseconds of a segment of n queries that read together. */
static double segment_us(const struct steps *steps, uint32_t n)
{
    const uint64_t tokens = (uint64_t)SEGMENT_CHUNKS * CHUNK_TOKENS;
    const struct cost_work work = {.passes = 1, .tokens = tokens, .weighed = tokens * n, .queries = n};
    return step_us_of(steps, &work);
}

enum begun { BEGUN, NO_STATES, ONE_SEGMENT };

/* Begin slices of segments of the queries from s->at on that share more than a segment: as many as a
 * segment of which fits, and leaves others half of the states. Queries that see one segment only are not
 * cut. */
static enum begun begin_segments(struct slicing *s, struct steps *steps, const struct slicing_room *room,
                                 uint32_t together)
{
    uint32_t n = 1, most = smaller(smaller(together, s->n - s->at), room->queries);
    while (n < most && s->places[s->at + n - 1].common >= SEGMENT_CHUNKS)
        n++;
    while (n > 1 && segment_us(steps, n) > most_us(room))
        n = (n + 1) / 2;
    for (;; n = (n + 1) / 2) {
        uint32_t base = UINT32_MAX, end = 0;
        for (uint32_t i = s->at; i < s->at + n; i++) {
            base = smaller(base, s->places[i].first / SEGMENT_CHUNKS);
            end = larger(end, (s->places[i].end + SEGMENT_CHUNKS - 1) / SEGMENT_CHUNKS);
        }
        uint32_t states = n * (end - base), available = step_states_free(steps);
        if (end - base < 2)
            return ONE_SEGMENT;
        if (n > 1 && states > available / 2)
            continue;
        s->states = step_keep_states(steps, states);
        if (s->states == STEP_NO_STATES)
            return NO_STATES;
        s->together = n;
        s->segments = (struct plan_slice){base, base, base, s->states};
        s->segment_end = end;
        return BEGUN;
    }
}

/* The next segments of the queries whose segments have begun. */
static bool next_segments(struct slicing *s, struct steps *steps, const struct slicing_room *room,
                          struct step_part *part, bool *last)
{
    double each = segment_us(steps, s->together), fit = room->us / each;
    uint32_t rest = s->segment_end - s->segments.first;
    if (s->together > room->queries || (fit < 1 && !room->any))
        return false;
    uint32_t n = fit < 1 ? 1 : fit < (double)rest ? (uint32_t)fit : rest;
    *last = n == rest;
    s->segments.end = *last ? UINT32_MAX : s->segments.first + n;
    part->row_count = s->together;
    part->slice = &s->segments;
    part->cost_us = each * n;
    return true;
}

/* The next `n` queries with all that they see. */
static void take_whole(struct slicing *s, const struct steps *steps, uint32_t n, struct cost_work *work,
                       struct step_part *part)
{
    if (n == 0) { /* longer than there is time for */
        add_query(work, &s->places[s->at], 0);
        n = 1;
    }
    part->row_count = n;
    part->slice = NULL;
    part->cost_us = step_us_of(steps, work);
    s->at += n;
}

bool slicing_next(struct slicing *s, struct steps *steps, const struct slicing_room *room,
                  struct step_part *part, uint32_t *first, bool *last)
{
    assert(!slicing_is_done(s));
    *first = s->at;
    *last = true;
    if (s->together == 0) {
        uint32_t together = step_takes_segments(steps) ? step_rows_together(steps) : 1;
        struct cost_work work;
        uint32_t n = whole_queries(s, steps, room, together, &work);
        bool all = s->at + n == s->n;
        if (room->queries == 0 || (n == 0 && !room->any))
            return false;
        if (!all && n > together)
            n -= n % together;
        /* those behind would read again what these have read */
        bool cut = n == 0 || (!all && n < together && s->places[s->at + n - 1].common >= SEGMENT_CHUNKS);
        enum begun begun =
            cut && step_takes_segments(steps) ? begin_segments(s, steps, room, together) : ONE_SEGMENT;
        if (begun == NO_STATES && n == 0)
            return false;
        if (begun != BEGUN) {
            take_whole(s, steps, n, &work, part);
            return true;
        }
    } else {
        s->segments.first = s->segments.end; /* the slice made last is submitted */
    }
    if (!next_segments(s, steps, room, part, last))
        return false;
    if (*last) {
        s->at += s->together;
        s->together = 0;
        step_drop_states(steps, s->states);
    }
    return true;
}

void slicing_stop(struct slicing *s, struct steps *steps)
{
    if (s->together)
        step_drop_states(steps, s->states);
    s->together = 0;
    s->at = s->n;
}
