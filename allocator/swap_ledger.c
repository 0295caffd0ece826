/* swap_ledger.c - see swap_ledger.h. */
#include "allocator/swap_ledger.h"

#include "allocator/id_bitmap.h"

#include <assert.h>
#include <stdlib.h>

struct host_block {
    uint32_t refs;   /* entries of swapped sequences that name it */
    uint32_t device; /* device block with the same bytes, or NO_BLOCK */
    bool has_bytes;  /* the host copy is good */
};

struct swap_ledger {
    uint32_t blocks, host_blocks;
    uint32_t *host_of; /* [blocks] */
    struct host_block *host;
    struct id_bitmap free; /* not initialised when host_blocks is 0 */
};

int swap_ledger_create(uint32_t blocks, uint32_t host_blocks, struct swap_ledger **result)
{
    struct swap_ledger *ledger = calloc(1, sizeof *ledger);
    if (!ledger)
        return ATTND_NO_MEMORY;
    ledger->blocks = blocks;
    ledger->host_blocks = host_blocks;
    ledger->host_of = malloc(blocks * sizeof *ledger->host_of);
    ledger->host = calloc(host_blocks ? host_blocks : 1, sizeof *ledger->host);
    if (!ledger->host_of || !ledger->host ||
        (host_blocks && id_bitmap_init(&ledger->free, host_blocks) != 0)) {
        swap_ledger_destroy(ledger);
        return ATTND_NO_MEMORY;
    }
    for (uint32_t id = 0; id < blocks; id++)
        ledger->host_of[id] = NO_BLOCK;
    *result = ledger;
    return 0;
}

void swap_ledger_destroy(struct swap_ledger *ledger)
{
    if (!ledger)
        return;
    free(ledger->host_of);
    free(ledger->host);
    id_bitmap_deinit(&ledger->free);
    free(ledger);
}

uint32_t swap_ledger_blocks(const struct swap_ledger *ledger)
{
    return ledger->host_blocks;
}

uint32_t swap_ledger_free(const struct swap_ledger *ledger)
{
    return ledger->free.count;
}

uint32_t swap_ledger_host_of(const struct swap_ledger *ledger, uint32_t id)
{
    return ledger->host_of[id];
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

uint32_t swap_ledger_refs(const struct swap_ledger *ledger, uint32_t host)
{
    return ledger->host[host].refs;
}

uint32_t swap_ledger_device_of(const struct swap_ledger *ledger, uint32_t host)
{
    return ledger->host[host].device;
}

bool swap_ledger_has_bytes(const struct swap_ledger *ledger, uint32_t host)
{
    return ledger->host[host].has_bytes;
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

const char *swap_ledger_check_free(const struct swap_ledger *ledger)
{
    return ledger->host_blocks ? id_bitmap_fault(&ledger->free) : NULL;
}
