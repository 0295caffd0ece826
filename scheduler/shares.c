/* SPDX-License-Identifier: Apache-2.0 */
/* shares.c - see shares.h.
 *
 *   live     [ A | B | a1 | a2 | b1 ]      accounts: of owners, and of their connections
 *   buckets  key and parent -> account
 *
 * What is `now` among accounts of a kind only grows: it is the least of those that wait for time. When none
 * does, everybody had what it asked for, nobody is owed anything, and it is the most that any has had. An
 * account that was not left waiting by the latest step starts at `now` if it is behind.
 *
 *   S1  an account that exists holds its parent's
 *   S2  one that nobody holds is ahead of `now`: else it would say nothing that a new one does not */
#include "scheduler/shares.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE = 64, SLOTS_MAX = 2 };

/* Virtual time among accounts of a kind. */
struct level {
    double now;
    double least, most; /* of those that wait, and of all, while `now` is being found */
};

struct account {
    uint64_t key;    /* of the owner, or the connection */
    uint32_t parent; /* the owner's account; SHARES_NONE: it is one */
    uint32_t next;   /* in its bucket, or free */
    uint32_t place;  /* in live */
    uint32_t holders, weight;
    bool waits, waited; /* for time in the step being formed; in the latest one */
    double at;
    double charged[SLOTS_MAX]; /* microseconds in steps in flight */
    struct level connections;
};

struct shares {
    struct account *accounts; /* [room] */
    uint32_t *live;           /* [live_count] */
    uint32_t *buckets;        /* [bucket_mask + 1] */
    uint32_t room, live_count, free, bucket_mask;
    struct level owners;
    double charged[SLOTS_MAX]; /* in all */
};

int shares_create(uint32_t holders, uint32_t slots, struct shares **result)
{
    struct shares *x = calloc(1, sizeof *x);
    uint32_t buckets = 1;
    assert(slots <= SLOTS_MAX);
    (void)slots;
    if (!x)
        return ATTND_NO_MEMORY;
    x->room = 2 * holders + SPARE;
    while (buckets < x->room)
        buckets *= 2;
    x->bucket_mask = buckets - 1;
    x->accounts = calloc(x->room, sizeof *x->accounts);
    x->live = calloc(x->room, sizeof *x->live);
    x->buckets = malloc(buckets * sizeof *x->buckets);
    if (!x->accounts || !x->live || !x->buckets) {
        shares_destroy(x);
        return ATTND_NO_MEMORY;
    }
    memset(x->buckets, 0xff, buckets * sizeof *x->buckets);
    for (uint32_t i = 0; i < x->room; i++)
        x->accounts[i].next = i + 1 < x->room ? i + 1 : SHARES_NONE;
    *result = x;
    return 0;
}

void shares_destroy(struct shares *x)
{
    if (!x)
        return;
    free(x->accounts);
    free(x->live);
    free(x->buckets);
    free(x);
}

/* ---- accounts ------------------------------------------------------------------------------------ */

static const struct level *level_of(const struct shares *x, const struct account *a)
{
    return a->parent == SHARES_NONE ? &x->owners : &x->accounts[a->parent].connections;
}

static uint32_t *bucket_of(const struct shares *x, uint32_t parent, uint64_t key)
{
    uint64_t hash = (key ^ (uint64_t)parent << 32) * UINT64_C(0x9e3779b97f4a7c15);
    return &x->buckets[(hash >> 32) & x->bucket_mask];
}

/* Forget an account that nobody holds. */
static void forget(struct shares *x, uint32_t i)
{
    struct account *a = &x->accounts[i];
    uint32_t *at = bucket_of(x, a->parent, a->key), last = x->live[--x->live_count];
    while (*at != i)
        at = &x->accounts[*at].next;
    *at = a->next;
    x->live[a->place] = last;
    x->accounts[last].place = a->place;
    if (a->parent != SHARES_NONE)
        x->accounts[a->parent].holders--;
    a->next = x->free;
    x->free = i;
}

/* Forget the account that is the least ahead of those that nobody holds. */
static void make_room(struct shares *x)
{
    uint32_t least = SHARES_NONE;
    double lead = INFINITY;
    for (uint32_t i = 0; i < x->live_count; i++) {
        const struct account *a = &x->accounts[x->live[i]];
        if (a->holders == 0 && a->at - level_of(x, a)->now < lead) {
            least = x->live[i];
            lead = a->at - level_of(x, a)->now;
        }
    }
    assert(least != SHARES_NONE); /* there is room for all that are held */
    forget(x, least);
}

/* The account of a key, a new one if need be. */
static uint32_t find(struct shares *x, uint32_t parent, uint64_t key)
{
    uint32_t *bucket = bucket_of(x, parent, key), i = *bucket;
    while (i != SHARES_NONE && (x->accounts[i].key != key || x->accounts[i].parent != parent))
        i = x->accounts[i].next;
    if (i != SHARES_NONE)
        return i;
    if (parent != SHARES_NONE)
        x->accounts[parent].holders++;
    if (x->free == SHARES_NONE)
        make_room(x);
    i = x->free;
    x->free = x->accounts[i].next;
    x->accounts[i] =
        (struct account){.key = key, .parent = parent, .next = *bucket, .place = x->live_count, .weight = 1};
    *bucket = i;
    x->live[x->live_count++] = i;
    return i;
}

uint32_t shares_hold(struct shares *x, uint64_t owner, uint64_t connection, uint32_t weight)
{
    uint32_t parent = find(x, SHARES_NONE, owner), i = find(x, parent, connection);
    x->accounts[parent].weight = weight;
    x->accounts[i].holders++;
    return i;
}

void shares_drop(struct shares *x, uint32_t i)
{
    assert(x->accounts[i].holders > 0);
    x->accounts[i].holders--;
}

uint32_t shares_owner(const struct shares *x, uint32_t i)
{
    return x->accounts[i].parent;
}

double shares_at(const struct shares *x, uint32_t i)
{
    const struct account *a = &x->accounts[i];
    return a->waited ? a->at : fmax(a->at, level_of(x, a)->now);
}

double shares_lead(const struct shares *x, uint32_t owner)
{
    return shares_us(x, owner, shares_at(x, owner) - x->owners.now);
}

double shares_us(const struct shares *x, uint32_t owner, double virtual_us)
{
    return virtual_us * x->accounts[owner].weight;
}

/* ---- a step -------------------------------------------------------------------------------------- */

void shares_charge(struct shares *x, uint32_t slot, uint32_t account, double us)
{
    x->charged[slot] += us;
    for (uint32_t i = account; i != SHARES_NONE; i = x->accounts[i].parent) {
        struct account *a = &x->accounts[i];
        a->at = shares_at(x, i) + us / a->weight;
        a->charged[slot] += us;
    }
}

void shares_wait(struct shares *x, uint32_t account)
{
    for (uint32_t i = account; i != SHARES_NONE; i = x->accounts[i].parent) {
        x->accounts[i].at = shares_at(x, i);
        x->accounts[i].waits = true;
    }
}

static void begin_level(struct level *l)
{
    l->least = INFINITY;
    l->most = l->now;
}

static void end_level(struct level *l)
{
    l->now = fmax(l->now, isinf(l->least) ? l->most : l->least);
}

void shares_end(struct shares *x)
{
    begin_level(&x->owners);
    for (uint32_t i = 0; i < x->live_count; i++)
        begin_level(&x->accounts[x->live[i]].connections);
    for (uint32_t i = 0; i < x->live_count; i++) {
        struct account *a = &x->accounts[x->live[i]];
        struct level *l = a->parent == SHARES_NONE ? &x->owners : &x->accounts[a->parent].connections;
        l->least = a->waits ? fmin(l->least, a->at) : l->least;
        l->most = fmax(l->most, a->at);
        a->waited = a->waits;
        a->waits = false;
    }
    end_level(&x->owners);
    for (uint32_t i = 0; i < x->live_count; i++)
        end_level(&x->accounts[x->live[i]].connections);
    for (uint32_t i = x->live_count; i-- > 0;) { /* connections' before their owners' or after: next time */
        const struct account *a = &x->accounts[x->live[i]];
        if (a->holders == 0 && a->at <= level_of(x, a)->now)
            forget(x, x->live[i]);
    }
}

void shares_retire(struct shares *x, uint32_t slot, double took_us)
{
    double factor = x->charged[slot] > 0 ? took_us / x->charged[slot] - 1 : 0;
    for (uint32_t i = 0; i < x->live_count; i++) {
        struct account *a = &x->accounts[x->live[i]];
        a->at += a->charged[slot] * factor / a->weight;
        a->charged[slot] = 0;
    }
    x->charged[slot] = 0;
}
