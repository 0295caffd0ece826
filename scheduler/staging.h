/* SPDX-License-Identifier: Apache-2.0 */
/* staging.h - memory for the tensors of requests: bodies are read into it, outputs are written into it,
 * and the backend finds both where they are.
 *
 *     | body of 7 | outputs of 5 |   free   :   free   | large body of 9 |   free   |
 *                                           a quarter
 *
 * One piece of attention_host_memory(), given out in blocks, each at the first place where it fits. Large
 * ones begin behind the first quarter, so that whoever sends large bodies, and slowly, leaves room for
 * small ones. A block costs O(blocks that are out). Any thread; nothing allocates after create. */
#ifndef SCHEDULER_STAGING_H
#define SCHEDULER_STAGING_H

#include "config/memory_budget.h"
#include "config/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STAGING_ALIGNMENT = 64 };

struct staging;

struct staging_options {
    void *memory; /* stays the caller's */
    size_t bytes;
    size_t small_bytes; /* of a block that is not large */
    uint32_t blocks_max;
    struct memory_budget *
        budget; /* its blocks are taken from there; NULL: the memory is not given back, and counts as a whole */
};

/* staging_create: returns 0 or ATTND_NO_MEMORY. */
MUST_USE int staging_create(const struct staging_options *options, struct staging **staging);
void staging_destroy(struct staging *staging);

/* staging_take: a block, aligned to STAGING_ALIGNMENT; NULL: there is no room now. staging_give: a block
 * comes back. NULL is fine. */
void *staging_take(struct staging *staging, size_t bytes);
void staging_give(struct staging *staging, void *block);

/* staging_trim: let the system have what was used and is free. Another thread may do it: it keeps takers waiting
 * for a tenth of a millisecond. */
void staging_trim(struct staging *staging);

/* Whether there is anything to trim. */
bool staging_is_touched(struct staging *staging);

/* Bytes that are out. */
size_t staging_used(struct staging *staging);

#endif
