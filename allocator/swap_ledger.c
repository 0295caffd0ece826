/* SPDX-License-Identifier: Apache-2.0 */
/* swap_ledger.c - see swap_ledger.h. */
#include "allocator/swap_ledger.h"

#include <assert.h>
#include <stdlib.h>

int swap_ledger_init(struct swap_ledger *ledger, uint32_t blocks, uint32_t host_blocks)
{
    ledger->host_of = malloc(blocks * sizeof *ledger->host_of);
    ledger->host = calloc((size_t)host_blocks + 1, sizeof *ledger->host);
    if (!ledger->host_of || !ledger->host || id_bitmap_init(&ledger->free, host_blocks) != 0) {
        swap_ledger_deinit(ledger);
        return ATTND_NO_MEMORY;
    }
    for (uint32_t id = 0; id < blocks; id++)
        ledger->host_of[id] = NO_BLOCK;
    return 0;
}

void swap_ledger_deinit(struct swap_ledger *ledger)
{
    free(ledger->host_of);
    free(ledger->host);
    id_bitmap_deinit(&ledger->free);
    *ledger = (struct swap_ledger){0};
}

uint32_t swap_ledger_park(struct swap_ledger *ledger, uint32_t id)
{
    uint32_t host = ledger->host_of[id];
    if (host == NO_BLOCK) {
        host = id_bitmap_take(&ledger->free);
        ledger->host[host] = (struct host_block){.device = id};
        ledger->host_of[id] = host;
    }
    ledger->host[host].refs++;
    return host;
}

void swap_ledger_unpark(struct swap_ledger *ledger, uint32_t host)
{
    struct host_block *h = &ledger->host[host];
    assert(h->refs > 0);
    if (--h->refs > 0)
        return;
    if (h->device != NO_BLOCK)
        ledger->host_of[h->device] = NO_BLOCK;
    *h = (struct host_block){.device = NO_BLOCK};
    id_bitmap_put(&ledger->free, host);
}

void swap_ledger_detach(struct swap_ledger *ledger, uint32_t host)
{
    struct host_block *h = &ledger->host[host];
    assert(h->refs > 0 && h->device != NO_BLOCK);
    ledger->host_of[h->device] = NO_BLOCK;
    h->device = NO_BLOCK;
    h->has_bytes = true;
}

void swap_ledger_attach(struct swap_ledger *ledger, uint32_t host, uint32_t id)
{
    struct host_block *h = &ledger->host[host];
    assert(h->refs > 0 && h->device == NO_BLOCK && h->has_bytes && ledger->host_of[id] == NO_BLOCK);
    h->device = id;
    ledger->host_of[id] = host;
}

const char *swap_ledger_check(const struct swap_ledger *ledger, uint32_t host)
{
    const struct host_block *h = &ledger->host[host];
    if ((h->refs == 0) != id_bitmap_has(&ledger->free, host))
        return "swap: a host block is free and named, or neither";
    if (h->refs > 0 && h->device == NO_BLOCK && !h->has_bytes)
        return "swap: a host block's bytes are nowhere";
    if (h->refs > 0 && h->device != NO_BLOCK && ledger->host_of[h->device] != host)
        return "swap: a device block does not name the host block that names it";
    return NULL;
}
