/* SPDX-License-Identifier: Apache-2.0 */
/* block_table_state.h - the tables themselves, and what the files that keep them call of each other:
 *
 *     block_table.c     rows and cursors: create, fork, truncate, remove, a step's submission and retirement
 *     block_fill.c      partial holders and fill
 *     block_prefix.c    token ids, and what is published under them
 *     block_reserve.c   blocks for what will be written, with copy-on-write
 *     block_swap.c      rows that leave for the host and come back
 *     block_audit.c     whether all of it agrees
 *
 * Engine thread only; nothing here allocates or fails. */
#ifndef ALLOCATOR_BLOCK_TABLE_STATE_H
#define ALLOCATOR_BLOCK_TABLE_STATE_H

#include "allocator/block_log.h"
#include "allocator/block_table.h"
#include "allocator/id_bitmap.h"
#include "allocator/prefix_index.h"
#include "allocator/swap_ledger.h"
#include "config/numbers.h"

#include <assert.h>
#include <string.h>

enum row_state { ROW_VACANT, ROW_LIVE, ROW_LEAVING };

/* One cache line: what a decode step of a row looks at, and not much else. */
struct row {
    uint32_t entries;                /* blocks */
    uint32_t cursor_min, cursor_max; /* tokens; equal: the per-layer cursors are not kept */
    uint32_t plain_first,
        plain_end;      /* slots known to lie in blocks of our own that are not published: no need to look */
    uint32_t published; /* leading blocks that are published */
    uint32_t retired;   /* tokens written by retired steps, at most */
    uint32_t known;     /* tokens from 0 on whose ids are known */
    uint32_t pending[STEPS_IN_FLIGHT_MAX]; /* length when the step was submitted, by step modulo their
                                              number */
    uint64_t last_step;                    /* newest step that uses the row or its blocks */
    uint32_t root;
    uint8_t state;
    bool swapped;
    bool publish_stopped; /* another block says the same as the next one: the rest stays private */
};

_Static_assert(sizeof(struct row) == 64, "a row is one cache line");

/* The rest of a row. */
struct row_more {
    uint32_t high;         /* most entries it ever gave back from: up to here its tail is -1 */
    uint32_t version;      /* counts changes to entries that the row had */
    uint32_t next_leaving; /* in the list of rows that leave */
    uint32_t next_partial,
        prev_partial; /* in the list of partial holders that it is in; NO_ROW at the ends */
};

/* What the tables say of a block: entries that name it, and of how many all slots are written, or some. */
struct holders {
    uint32_t entries, full, partial;
};

/* How far an audit has come; block_audit.c. */
struct block_audit {
    bool runs;
    uint32_t cleared;    /* holders that are zero */
    uint32_t row, entry; /* the next entry of a row to look at: those before are counted in: */
    struct holders
        *holders; /* [blocks + host_blocks]; entries of a row that is swapped out name host blocks */
    uint32_t at;  /* the next block to look at; host blocks follow the others */
    struct block_pool_census blocks;
    struct prefix_census published;
};

struct block_tables {
    struct block_tables_options o;
    struct block_pool *pool;
    struct block_log *log; /* NULL: changes are not noted */
    struct prefix_index *index;
    struct swap_ledger ledger;
    struct id_bitmap free_rows;
    struct row *rows;      /* [rows] */
    struct row_more *more; /* [rows] */
    uint32_t *ids;         /* [rows + loose_rows][row_blocks] */
    uint32_t *generation;  /* [rows][row_blocks] of the entry's block when it was stored; 0 while swapped */
    uint32_t *cursors;     /* [rows][layers], see above */
    uint32_t *tokens; /* [blocks + host_blocks][block_size] token ids; they travel with a swapped block */
    uint32_t *claims; /* [blocks] writers counted while a reserve is planned; zero otherwise */
    uint32_t *marks;  /* [rows] requests that need more than a look, while a reserve runs */
    uint32_t leaving; /* first row of the list of those that leave with a step; NO_ROW: none does */
    struct block_tables_counts counts;
    struct block_audit audit;   /* in parts, */
    struct block_audit at_once; /* and that of block_tables_fault() */
};

static inline uint32_t *entry(const struct block_tables *t, uint32_t row, uint32_t i)
{
    return &t->ids[(uint64_t)row * t->o.row_blocks + i];
}

static inline uint32_t *entry_generation(const struct block_tables *t, uint32_t row, uint32_t i)
{
    return &t->generation[(uint64_t)row * t->o.row_blocks + i];
}

static inline struct row *live_row(const struct block_tables *t, uint32_t row)
{
    assert(row < t->o.rows && t->rows[row].state == ROW_LIVE);
    return &t->rows[row];
}

static inline void set_entry(struct block_tables *t, uint32_t row, uint32_t i, uint32_t id)
{
    *entry(t, row, i) = id;
    *entry_generation(t, row, i) = block_pool_generation(t->pool, id);
}

/* A new block; the caller has checked that there is one. */
static inline uint32_t take_block(struct block_tables *t)
{
    uint32_t id;
    int rc = block_pool_acquire(t->pool, 1, &id);
    assert(rc == 0);
    (void)rc;
    return id;
}

/* Token ids of one block to another; host block h is number blocks + h here. */
static inline void copy_tokens(struct block_tables *t, uint32_t from, uint32_t to)
{
    uint32_t n = t->o.block_size;
    memcpy(&t->tokens[(uint64_t)to * n], &t->tokens[(uint64_t)from * n], n * sizeof *t->tokens);
}

static inline void make_vacant(struct block_tables *t, uint32_t row)
{
    t->rows[row].state = ROW_VACANT;
    id_bitmap_put(&t->free_rows, row);
}

static inline uint32_t blocks_for(const struct block_tables *t, uint32_t tokens)
{
    return ceiling(tokens, t->o.block_size);
}

/* Where the bytes of a row's entry `i` are: a device block, or number blocks + h for host block h. */
static inline uint32_t place_of(const struct block_tables *t, uint32_t row, uint32_t i)
{
    uint32_t id = *entry(t, row, i);
    if (!t->rows[row].swapped)
        return id;
    uint32_t device = t->ledger.host[id].device;
    return device != NO_BLOCK ? device : t->o.blocks + id;
}

/* The list of a block, by place_of(). */
static inline struct block_partials *partials_at(const struct block_tables *t, uint32_t place)
{
    return place < t->o.blocks ? block_pool_partials(t->pool, place)
                               : &t->ledger.host[place - t->o.blocks].partials;
}

/* Entries [first, end) of a row, or how many of their slots are written, are about to change; they have
 * changed. Whoever changes a table says both, for an audit that has counted them. */
void block_audit_count(struct block_tables *tables, uint32_t row, uint32_t first, uint32_t end, uint32_t by);

static inline void begin_change(struct block_tables *t, uint32_t row, uint32_t first, uint32_t end)
{
    if (t->audit.runs)
        block_audit_count(t, row, first, end, UINT32_MAX);
}

static inline void end_change(struct block_tables *t, uint32_t row, uint32_t first, uint32_t end)
{
    if (t->audit.runs)
        block_audit_count(t, row, first, end, 1);
}

/* block_fill_link(t, row): enter a row in the list of partial holders of the block in which its longest
 * cursor ends, if it ends within one. block_fill_unlink: take it out, before the cursor or the entry changes.
 * O(1). */
void block_fill_link(struct block_tables *tables, uint32_t row);
void block_fill_unlink(struct block_tables *tables, uint32_t row);

/* block_fill_lower(t, row, i): a row has become a partial holder of its entry `i`, or has fewer slots of it.
 * block_fill_lower_host: a row has left a host block that has no device block, or has fewer slots of it.
 * O(partial holders of the block). */
void block_fill_lower(struct block_tables *tables, uint32_t row, uint32_t i);
void block_fill_lower_host(struct block_tables *tables, uint32_t host);

/* block_fill_of_partials(id, tables): the most slots that a partial holder of a block has; what
 * block_pool_create() asks for. O(partial holders of the block). */
uint32_t block_fill_of_partials(uint32_t id, void *tables);

/* block_prefix_publish(t, row): publish the row's full, retired blocks whose tokens are known, as far as nobody
 * else said the same before; nothing of a row that is swapped out. O(blocks published). */
void block_prefix_publish(struct block_tables *tables, uint32_t row);

/* block_prefix_unpublish(t, id): take a published block and everything below it out of the index. No
 * resident sequence but the caller's holds any of it. O(blocks unpublished). */
void block_prefix_unpublish(struct block_tables *tables, uint32_t id);

/* block_swap_unpark(t, row, i): give back entry `i` of a row that is swapped out, and is a partial holder of
 * it no more. O(partial holders of the block). */
void block_swap_unpark(struct block_tables *tables, uint32_t row, uint32_t i);

#endif
