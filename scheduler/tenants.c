/* SPDX-License-Identifier: Apache-2.0 */
/* tenants.c - see tenants.h. A hash table with chains; a tenant that has nothing left is vacant again. */
#include "scheduler/tenants.h"

#include "config/numbers.h"

#include <assert.h>
#include <stdlib.h>

#define NONE UINT32_MAX

struct tenant {
    uint64_t key;
    struct tenant_use use, checked;
    uint32_t next; /* of its bucket, or of the vacant ones */
};

struct tenants {
    struct tenant *at;
    uint32_t *buckets; /* [mask + 1] */
    uint32_t mask, vacant, most;
    bool checked; /* every sequence had a tenant */
};

int tenants_create(uint32_t most, struct tenants **result)
{
    struct tenants *t = calloc(1, sizeof *t);
    uint32_t buckets = 4;
    while (buckets < most)
        buckets *= 2;
    if (!t)
        return ATTND_NO_MEMORY;
    t->mask = buckets - 1;
    t->most = most;
    t->at = calloc(most, sizeof *t->at);
    t->buckets = malloc(buckets * sizeof *t->buckets);
    if (!t->at || !t->buckets) {
        tenants_destroy(t);
        return ATTND_NO_MEMORY;
    }
    for (uint32_t i = 0; i < most; i++)
        t->at[i].next = i + 1 < most ? i + 1 : NONE;
    for (uint32_t i = 0; i < buckets; i++)
        t->buckets[i] = NONE;
    *result = t;
    return 0;
}

void tenants_destroy(struct tenants *t)
{
    if (!t)
        return;
    free(t->at);
    free(t->buckets);
    free(t);
}

/* Where the index of a key's tenant stands, or would. */
static uint32_t *place_of(const struct tenants *t, uint64_t key)
{
    uint32_t *place = &t->buckets[hash_id(key) & t->mask];
    while (*place != NONE && t->at[*place].key != key)
        place = &t->at[*place].next;
    return place;
}

void tenants_add(struct tenants *t, uint64_t key, int sequences, int workloads, int64_t blocks)
{
    if (!key)
        return;
    uint32_t *place = place_of(t, key), i = *place;
    if (i == NONE) {
        i = t->vacant;
        assert(i != NONE);
        t->vacant = t->at[i].next;
        t->at[i] = (struct tenant){.key = key, .next = NONE};
        *place = i;
    }
    struct tenant_use *use = &t->at[i].use;
    use->sequences += (uint32_t)sequences;
    use->workloads += (uint32_t)workloads;
    use->blocks += (uint64_t)blocks;
    if (use->sequences || use->workloads || use->blocks)
        return;
    *place = t->at[i].next;
    t->at[i].next = t->vacant;
    t->vacant = i;
}

void tenants_add_leases(struct tenants *t, uint64_t key, int leases)
{
    uint32_t i = key ? *place_of(t, key) : NONE;
    if (i != NONE)
        t->at[i].use.leases += (uint32_t)leases;
}

void tenants_begin_check(struct tenants *t)
{
    t->checked = true;
    for (uint32_t i = 0; i < t->most; i++)
        t->at[i].checked = (struct tenant_use){0};
}

void tenants_check(struct tenants *t, uint64_t key, uint32_t charged)
{
    uint32_t i = key ? *place_of(t, key) : NONE;
    t->checked &= (i != NONE) == (key != 0);
    if (i == NONE)
        return;
    t->at[i].checked.sequences++;
    t->at[i].checked.blocks += charged;
}

bool tenants_are_right(const struct tenants *t)
{
    bool right = t->checked;
    for (uint32_t i = 0; i < t->most; i++) {
        const struct tenant_use *use = &t->at[i].use, *checked = &t->at[i].checked;
        right &= use->sequences == checked->sequences && use->blocks == checked->blocks;
    }
    return right;
}

struct tenant_use tenants_use(const struct tenants *t, uint64_t key)
{
    uint32_t i = *place_of(t, key);
    const struct tenant_use nothing = {0};
    return i == NONE ? nothing : t->at[i].use;
}
