/* staging.h - memory for the tensors of requests: bodies are read into it, outputs are written into it, and the
 * backend finds both where they are.
 *
 *     | body of 7 | outputs of 5 |      free      | body of 9 |   free   |
 *
 * One piece of attention_host_memory(), given out in blocks, each at the first place where it fits. A block costs
 * O(blocks that are out). Loop thread; nothing allocates after create. */
#ifndef SCHEDULER_STAGING_H
#define SCHEDULER_STAGING_H

#include "config/status.h"

#include <stddef.h>
#include <stdint.h>

enum { STAGING_ALIGNMENT = 64 };

struct staging;

/* staging_create(memory, bytes, blocks_max, staging): give out `bytes` of memory, which stays the caller's, in at
 * most that many blocks. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int staging_create(void *memory, size_t bytes, uint32_t blocks_max, struct staging **staging);
void staging_destroy(struct staging *staging);

/* staging_take: a block, aligned to STAGING_ALIGNMENT; NULL: there is no room now. staging_give: a block comes
 * back. NULL is fine. */
void *staging_take(struct staging *staging, size_t bytes);
void staging_give(struct staging *staging, void *block);

/* Bytes that are out. */
size_t staging_used(const struct staging *staging);

#endif
