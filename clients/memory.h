/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - memory that a command cannot do without. */
#ifndef CLIENTS_MEMORY_H
#define CLIENTS_MEMORY_H

#include <stdio.h>
#include <stdlib.h>

/* memory_must: what an allocation gave; NULL ends the program, with a word. Any thread. */
static inline void *memory_must(void *memory)
{
    if (!memory) {
        fputs("attnctl: out of memory\n", stderr);
        abort();
    }
    return memory;
}

#endif
