/* SPDX-License-Identifier: Apache-2.0 */
/* turns.c - see turns.h. */
#include "scheduler/turns.h"

#include "scheduler/policy.h"
#include "scheduler/shares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct offer {
    uint32_t place; /* in kept */
    uint32_t owner; /* its account */
    bool small;
    struct policy_claim claim; /* among those of its owner */
};

/* The offers of an owner. */
struct group {
    uint32_t owner, first, next, end; /* in order */
};

struct turns {
    struct request **kept; /* [kept_count] */
    struct offer *offers;  /* [offer_count] */
    uint32_t *order;       /* [offer_count] of offers, by owner and claim */
    struct group *groups;
    uint32_t room, kept_count, offer_count, group_count;
};

int turns_create(uint32_t requests, struct turns **result)
{
    struct turns *t = calloc(1, sizeof *t);
    if (!t)
        return ATTND_NO_MEMORY;
    t->room = requests;
    t->kept = calloc(requests, sizeof *t->kept);
    t->offers = calloc(requests, sizeof *t->offers);
    t->order = calloc(requests, sizeof *t->order);
    t->groups = calloc(requests, sizeof *t->groups);
    if (!t->kept || !t->offers || !t->order || !t->groups) {
        turns_destroy(t);
        return ATTND_NO_MEMORY;
    }
    *result = t;
    return 0;
}

void turns_destroy(struct turns *t)
{
    if (!t)
        return;
    free(t->kept);
    free(t->offers);
    free(t->order);
    free(t->groups);
    free(t);
}

/* ---- what is kept -------------------------------------------------------------------------------- */

void turns_begin(struct turns *t)
{
    t->kept_count = t->offer_count = t->group_count = 0;
}

void turns_keep(struct turns *t, struct request *request)
{
    request->queued.place = t->kept_count;
    request->queued.tried = true;
    request->queued.wants_time = false;
    t->kept[t->kept_count++] = request;
}

void turns_forget(struct turns *t, const struct request *request)
{
    uint32_t place = request->queued.place;
    if (place < t->kept_count && t->kept[place] == request)
        t->kept[place] = NULL;
}

void turns_put_back(struct turns *t, struct request *request)
{
    t->kept[request->queued.place] = request;
}

uint32_t turns_count(const struct turns *t)
{
    return t->kept_count;
}

struct request *turns_kept(const struct turns *t, uint32_t i)
{
    return t->kept[i];
}

/* ---- offers -------------------------------------------------------------------------------------- */

/* The order of offers before their owners' times are looked at. */
static bool comes_before(const struct offer *a, const struct offer *b)
{
    return a->owner != b->owner ? a->owner < b->owner : policy_goes_before(&a->claim, &b->claim);
}

void turns_offer(struct turns *t, const struct engine_state *state, struct request *request, bool small)
{
    request->queued.tried = false;
    request->queued.wants_time = true;
    uint32_t account = request->queued.account, low = 0, high = t->offer_count;
    struct offer *offer = &t->offers[t->offer_count];
    *offer = (struct offer){.place = request->queued.place,
                            .owner = shares_owner(state->shares, account),
                            .small = small,
                            .claim = {.priority = request->queued.priority,
                                      .connection_at = shares_at(state->shares, account),
                                      .arrived_s = request->submitted_s,
                                      .id = request->queued.place}};
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (comes_before(offer, &t->offers[t->order[middle]]))
            high = middle;
        else
            low = middle + 1;
    }
    memmove(&t->order[low + 1], &t->order[low], (t->offer_count - low) * sizeof *t->order);
    t->order[low] = t->offer_count++;
}

void turns_arrange(struct turns *t)
{
    t->group_count = 0;
    for (uint32_t i = 0; i < t->offer_count; i++) {
        uint32_t owner = t->offers[t->order[i]].owner;
        if (t->group_count == 0 || t->groups[t->group_count - 1].owner != owner)
            t->groups[t->group_count++] = (struct group){owner, i, i, i};
        t->groups[t->group_count - 1].end = i + 1;
    }
}

/* The next offer of an owner, NULL if there is none. */
static const struct offer *head_of(const struct turns *t, struct group *g, bool small)
{
    for (; g->next < g->end; g->next++) {
        const struct offer *offer = &t->offers[t->order[g->next]];
        const struct request *request = t->kept[offer->place];
        if (request && !request->queued.tried && (offer->small || !small))
            return offer;
    }
    return NULL;
}

struct request *turns_next(struct turns *t, const struct engine_state *state, bool small)
{
    struct group *best = NULL;
    struct policy_claim first = {0};
    for (uint32_t i = 0; i < t->group_count; i++) {
        struct group *g = &t->groups[i];
        const struct offer *offer = head_of(t, g, small);
        if (!offer ||
            (small && !policy_is_within_share(shares_lead(state->shares, g->owner), state->step_us_max)))
            continue;
        struct policy_claim claim = offer->claim;
        claim.owner_at = shares_at(state->shares, g->owner);
        if (!best || policy_goes_before(&claim, &first)) {
            best = g;
            first = claim;
        }
    }
    return best ? t->kept[t->offers[t->order[best->next++]].place] : NULL;
}

double turns_at(struct turns *t, const struct engine_state *state, double *next_but_one)
{
    double first = INFINITY, second = INFINITY;
    for (uint32_t i = 0; i < t->group_count; i++) {
        double at =
            head_of(t, &t->groups[i], false) ? shares_at(state->shares, t->groups[i].owner) : INFINITY;
        second = fmin(second, fmax(first, at));
        first = fmin(first, at);
    }
    *next_but_one = second;
    return first;
}

uint32_t turns_owners(struct turns *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->group_count; i++)
        n += head_of(t, &t->groups[i], false) != NULL;
    return n;
}
