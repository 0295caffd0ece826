/* SPDX-License-Identifier: Apache-2.0 */
/* mapping.c - see mapping.h. */
#include "config/mapping.h"

#include <sys/mman.h>

void *mapping_create(uint64_t bytes, int huge)
{
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (huge)
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* where the kernel has none, small pages work as well */
    return p;
}

void mapping_destroy(void *mapping, uint64_t bytes)
{
    if (mapping)
        munmap(mapping, bytes ? bytes : 1);
}
