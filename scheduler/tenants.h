/* SPDX-License-Identifier: Apache-2.0 */
/* tenants.h - what each key has of the engine: sequences, leases, workloads, and the blocks charged for them.
 *
 * A tenant is there as long as something belongs to its key. What belongs to no key (0) is counted for nobody.
 * Engine thread; nothing allocates after create. */
#ifndef SCHEDULER_TENANTS_H
#define SCHEDULER_TENANTS_H

#include "config/status.h"

#include <stdbool.h>
#include <stdint.h>

struct tenants;

/* How much of the engine's a key may have; 0: any number. */
struct tenant_quotas {
    uint32_t sequences; /* and leases */
    uint32_t blocks;    /* in their tables, those that several have once for each, or promised to them */
    uint32_t workloads; /* that have not ended */
};

struct tenant_use {
    uint32_t sequences; /* and leases, */
    uint32_t leases;    /* which are so many */
    uint32_t workloads;
    uint64_t blocks;
};

/* tenants_create(most, tenants): so many at a time. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int tenants_create(uint32_t most, struct tenants **tenants);
void tenants_destroy(struct tenants *tenants); /* NULL is fine. */

/* tenants_add: something more, or less, belongs to a key. Whatever a key had is given back piece by piece. */
void tenants_add(struct tenants *tenants, uint64_t key, int sequences, int workloads, int64_t blocks);

/* tenants_add_leases: so many of the key's sequences are leases. */
void tenants_add_leases(struct tenants *tenants, uint64_t key, int leases);

/* A check of the sequences and blocks that are counted: begin, then once for each sequence that there is, then
 * the result. O(tenants). */
void tenants_begin_check(struct tenants *tenants);
void tenants_check(struct tenants *tenants, uint64_t key, uint32_t charged);
bool tenants_are_right(const struct tenants *tenants);

struct tenant_use tenants_use(const struct tenants *tenants, uint64_t key);

#endif
