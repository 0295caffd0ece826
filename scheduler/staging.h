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

#include "config/status.h"

#include <stddef.h>
#include <stdint.h>

enum { STAGING_ALIGNMENT = 64 };

struct staging;

struct staging_options {
    void *memory; /* stays the caller's */
    size_t bytes;
    size_t small_bytes; /* of a block that is not large */
    uint32_t blocks_max;
};

/* staging_create: returns 0 or ATTND_NO_MEMORY. */
MUST_USE int staging_create(const struct staging_options *options, struct staging **staging);
void staging_destroy(struct staging *staging);

/* staging_take: a block, aligned to STAGING_ALIGNMENT; NULL: there is no room now. staging_give: a block
 * comes back. NULL is fine. */
void *staging_take(struct staging *staging, size_t bytes);
void staging_give(struct staging *staging, void *block);

/* Bytes that are out. */
size_t staging_used(struct staging *staging);

#endif
