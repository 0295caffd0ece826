/* SPDX-License-Identifier: Apache-2.0 */
/* allocator_model.c - the allocator against a naive model, over random operations.
 *
 * Property: whatever is created, forked, appended, truncated, removed, swapped and retired in whatever
 * order, every sequence reads exactly what it wrote (or what it was forked from, or what its prompt's
 * tokens mean), no block is handed out while a step in flight touches it, the fill of a held block is what
 * its holders have of it, and the invariants I1 to I7 and I9 hold after every operation. An audit in
 * parts, one after each operation, finds no fault either. The state that the log of changes gives for an
 * earlier epoch is what was seen then, for every block, and who is named as its owner then held it.
 *
 * Method: the model keeps each sequence as a plain list of tags, one per layer and token. A fake device
 * holds a tag in every (block, layer, slot), written only by the copies and appends that the
 * allocator's answers demand. They are recorded when a step is formed and carried out when it retires,
 * copies first, as a GPU would; then every row of the step is read through the block table that it had
 * at submission. The tag of a token whose id is known is a hash of all tokens up to it, so a prefix hit
 * that serves another prompt's block is seen. After each operation all blocks are noted down with the epoch;
 * then one of the noted states is compared with what undoing the changes since gives.
 *
 * Usage: allocator_model [SEQUENCES [SEED]]    default 2000 sequences of 200 operations from a random
 * seed. A failure prints the seed of its sequence and the operations up to it - the shortest failing
 * prefix, since every operation is checked; `allocator_model 1 SEED` runs that sequence again. */
#include "allocator/block_log.h"
#include "allocator/block_table.h"
#include "allocator/prefix_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    OPERATIONS = 200,
    ROWS = 12,
    LAYERS_MOST = 3,
    TOKENS_MOST = 96,
    BLOCKS_MOST = 64,
    HOST_MOST = 32,
    BLOCK_SIZE_MOST = 16,
    COPIES_MOST = 4096,
    LOG_BYTES = 1 << 16,
    SEEN = 64, /* states that are noted down */
    ROOTS = 2
};

struct sequence {
    bool live, swapped;
    uint64_t id;
    uint32_t row, root;
    uint32_t cursor[LAYERS_MOST];
    uint64_t tag[TOKENS_MOST]; /* of the token; its tag at a layer is tag + layer */
    uint32_t known;            /* tokens whose ids the allocator was told */
    uint32_t token[TOKENS_MOST];
};

/* Something a step does on the device, or a row that it reads. */
struct action {
    enum { ACT_COPY, ACT_WRITE, ACT_READ } kind;
    struct block_copy copy;
    uint32_t block, layer, slot;
    uint64_t tag;
    struct sequence seen;      /* ACT_READ: what the row must show */
    uint32_t ids[TOKENS_MOST]; /* ACT_READ: its table at submission */
};

struct step {
    struct action *actions;
    uint32_t count, capacity;
    bool takes_part[ROWS];
    uint32_t rows[ROWS];
};

/* All blocks as they were at an epoch. */
struct seen {
    uint64_t epoch, unique, swaps;
    struct block_past blocks[BLOCKS_MOST];
    uint64_t ids[ROWS];            /* of sequences that were resident; 0: none */
    uint16_t holders[BLOCKS_MOST]; /* which of them have it in their tables, a bit each */
};

static struct {
    struct block_tables_options o;
    struct block_tables *tables;
    uint32_t roots[ROOTS];
    struct sequence sequences[ROWS];
    uint64_t device[BLOCKS_MOST][LAYERS_MOST][BLOCK_SIZE_MOST];
    uint64_t host[HOST_MOST][LAYERS_MOST][BLOCK_SIZE_MOST];
    uint32_t users[BLOCKS_MOST];      /* actions not yet carried out that touch the block */
    uint32_t generation[BLOCKS_MOST]; /* last seen */
    uint32_t device_of[HOST_MOST];    /* block that a host block stands for, NO_BLOCK: none */
    struct step steps[STEPS_IN_FLIGHT_MAX];
    uint64_t forming, retired;
    uint64_t unique, random;
    uint64_t seen_hits, seen_copies, seen_swaps, seen_evacuated, seen_refusals, seen_evictions;
    uint64_t seen_lowered, seen_audits, seen_past, seen_owners;
    uint64_t operations; /* of this run */
    struct seen seen[SEEN];
    char log[LOG_BYTES];
    size_t log_bytes;
    jmp_buf failed;
} m;

/* ---- randomness, log, failure -------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint32_t below(uint32_t n)
{
    m.random = mix(m.random);
    return (uint32_t)(m.random % n);
}

static void __attribute__((format(printf, 1, 2))) note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(m.log + m.log_bytes, LOG_BYTES - m.log_bytes, format, args);
    va_end(args);
    if (n > 0 && (size_t)n < LOG_BYTES - m.log_bytes)
        m.log_bytes += (size_t)n;
}

static void __attribute__((format(printf, 1, 2), noreturn)) fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("FAULT: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    longjmp(m.failed, 1);
}

static void require(bool ok, const char *what)
{
    if (!ok)
        fail("%s", what);
}

/* ---- the fake device ----------------------------------------------------------------------------- */

static struct step *step_of(uint64_t number)
{
    return &m.steps[number % STEPS_IN_FLIGHT_MAX];
}

static struct action *record(uint64_t step)
{
    struct step *s = step_of(step);
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->actions = realloc(s->actions, s->capacity * sizeof *s->actions);
        if (!s->actions)
            abort();
    }
    return &s->actions[s->count++];
}

/* Count (`by` 1) or discount (-1) the blocks that an action touches. */
static void use(const struct action *a, int by)
{
    if (a->kind == ACT_COPY) {
        if (a->copy.kind != COPY_SWAP_IN)
            m.users[a->copy.from] += (uint32_t)by;
        if (a->copy.kind != COPY_SWAP_OUT)
            m.users[a->copy.to] += (uint32_t)by;
    } else if (a->kind == ACT_WRITE) {
        m.users[a->block] += (uint32_t)by;
    } else {
        for (uint32_t i = 0; a->ids[i] != NO_BLOCK; i++)
            m.users[a->ids[i]] += (uint32_t)by;
    }
}

static void carry_out_copy(const struct block_copy *copy)
{
    for (uint32_t layer = 0; layer < m.o.layers; layer++) {
        const uint64_t *from =
            copy->kind == COPY_SWAP_IN ? m.host[copy->from][layer] : m.device[copy->from][layer];
        uint64_t *to = copy->kind == COPY_SWAP_OUT ? m.host[copy->to][layer] : m.device[copy->to][layer];
        memcpy(to, from, copy->slots * sizeof *to);
    }
}

static void check_read(const struct action *a)
{
    for (uint32_t layer = 0; layer < m.o.layers; layer++) {
        for (uint32_t at = 0; at < a->seen.cursor[layer]; at++) {
            uint32_t block = a->ids[at / m.o.block_size];
            uint64_t found = m.device[block][layer][at % m.o.block_size];
            if (found != a->seen.tag[at] + layer)
                fail("row %u, layer %u, token %u reads %llx from block %u, wanted %llx", a->seen.row, layer,
                     at, (unsigned long long)found, block, (unsigned long long)(a->seen.tag[at] + layer));
        }
    }
}

static void record_read(uint64_t step, const struct sequence *s)
{
    struct action *a = record(step);
    struct block_table_view view = block_tables_view(m.tables, s->row);
    *a = (struct action){.kind = ACT_READ, .seen = *s};
    for (uint32_t i = 0; i <= TOKENS_MOST - 1; i++)
        a->ids[i] = i < view.entries ? view.ids[i] : NO_BLOCK;
    use(a, 1);
}

/* No block that some unfinished action touches may have been handed out again. */
static void check_acquired(void)
{
    const struct block_pool *pool = block_tables_pool(m.tables);
    for (uint32_t id = 0; id < m.o.blocks; id++) {
        uint32_t generation = block_pool_generation(pool, id);
        if (generation != m.generation[id] && m.users[id])
            fail("block %u was handed out while a step in flight touches it", id);
        m.generation[id] = generation;
    }
}

static void record_copies(const struct block_copy *copies, uint32_t n)
{
    check_acquired();
    for (uint32_t i = 0; i < n; i++) {
        struct action *a = record(m.forming);
        *a = (struct action){.kind = ACT_COPY, .copy = copies[i]};
        use(a, 1);
    }
}

/* ---- who holds what ------------------------------------------------------------------------------ */

static uint32_t length_of(const struct sequence *s)
{
    uint32_t min = s->cursor[0];
    for (uint32_t layer = 1; layer < m.o.layers; layer++)
        min = s->cursor[layer] < min ? s->cursor[layer] : min;
    return min;
}

static uint32_t longest_of(const struct sequence *s)
{
    uint32_t max = 0;
    for (uint32_t layer = 0; layer < m.o.layers; layer++)
        max = s->cursor[layer] > max ? s->cursor[layer] : max;
    return max;
}

/* References to each block, and the largest number of its slots that one of its holders has: from the
 * model's cursors and the tables. */
struct holdings {
    uint32_t refs[BLOCKS_MOST], slots[BLOCKS_MOST];
    uint32_t host_refs[HOST_MOST], host_slots[HOST_MOST];
    uint64_t tokens; /* of all sequences */
};

static void count_entry(struct holdings *h, const struct sequence *s, uint32_t id, uint32_t i)
{
    uint32_t longest = longest_of(s), start = i * m.o.block_size;
    uint32_t slots = longest > start ? longest - start : 0, device = id;
    if (slots > m.o.block_size)
        slots = m.o.block_size;
    if (s->swapped) {
        h->host_refs[id]++;
        h->host_slots[id] = slots > h->host_slots[id] ? slots : h->host_slots[id];
        device = m.device_of[id];
    }
    if (device == NO_BLOCK)
        return;
    h->refs[device]++;
    h->slots[device] = slots > h->slots[device] ? slots : h->slots[device];
}

static struct holdings count_holdings(void)
{
    struct holdings h = {0};
    for (uint32_t k = 0; k < ROWS; k++) {
        const struct sequence *s = &m.sequences[k];
        if (!s->live)
            continue;
        struct block_table_view view = block_tables_view(m.tables, s->row);
        for (uint32_t i = 0; i < view.entries; i++)
            count_entry(&h, s, view.ids[i], i);
        h.tokens += longest_of(s);
    }
    return h;
}

/* A swap or an evacuation copies the slots that holders of a block had `before`, all of them and no
 * more. */
static void check_copied_slots(const struct holdings *before, const struct block_copy *copies, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bool in = copies[i].kind == COPY_SWAP_IN;
        uint32_t held = in ? before->host_slots[copies[i].from] : before->slots[copies[i].from];
        if (copies[i].slots != held)
            fail("%u slots of %s block %u are copied, and its holders have %u", copies[i].slots,
                 in ? "host" : "device", copies[i].from, held);
    }
}

/* A swap or an evacuation moved blocks to the host: those that nobody holds any more. */
static void forget_moved(void)
{
    for (uint32_t host = 0; host < m.o.host_blocks; host++) {
        uint32_t device = m.device_of[host];
        if (device != NO_BLOCK && block_pool_refs(block_tables_pool(m.tables), device) == 0)
            m.device_of[host] = NO_BLOCK;
    }
}

/* A swap replaced the entries of a table, device blocks by host blocks or the other way round. */
static void note_swapped(const uint32_t *host, const uint32_t *device, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        m.device_of[host[i]] = device[i];
    forget_moved();
}

/* Fill of every block against the holdings, and the token counts. */
static void check_fills(void)
{
    const struct block_pool *pool = block_tables_pool(m.tables);
    struct block_tables_counts counts = block_tables_counts(m.tables);
    struct holdings h = count_holdings();
    uint64_t physical = 0;
    for (uint32_t host = 0; host < m.o.host_blocks; host++)
        m.device_of[host] = h.host_refs[host] ? m.device_of[host] : NO_BLOCK;
    for (uint32_t id = 0; id < m.o.blocks; id++) {
        uint32_t fill = block_pool_fill(pool, id);
        require(h.refs[id] == block_pool_refs(pool, id), "a block's references differ from the model");
        if (h.refs[id] && fill != h.slots[id])
            fail("block %u has a fill of %u, and its holders have %u", id, fill, h.slots[id]);
        if (!h.refs[id] && block_pool_is_published(pool, id) && fill != m.o.block_size)
            fail("block %u, which nobody holds, is published with a fill of %u", id, fill);
        m.seen_lowered += h.refs[id] && block_pool_is_published(pool, id) && fill < m.o.block_size;
        physical += h.slots[id];
    }
    if (counts.tokens_physical != physical || counts.tokens_logical != h.tokens)
        fail("%llu tokens physical and %llu logical, wanted %llu and %llu",
             (unsigned long long)counts.tokens_physical, (unsigned long long)counts.tokens_logical,
             (unsigned long long)physical, (unsigned long long)h.tokens);
    require(physical <= h.tokens, "more tokens physical than logical");
}

/* ---- operations ---------------------------------------------------------------------------------- */

static struct sequence *pick(bool swapped)
{
    uint32_t start = below(ROWS);
    for (uint32_t i = 0; i < ROWS; i++) {
        struct sequence *s = &m.sequences[(start + i) % ROWS];
        if (s->live && s->swapped == swapped)
            return s;
    }
    return NULL;
}

static struct sequence *pick_vacant(void)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        if (!m.sequences[i].live)
            return &m.sequences[i];
    }
    return NULL;
}

/* The tag of token `at`, whose id is known, after the tokens before it. */
static uint64_t known_tag(const struct sequence *s, uint32_t at)
{
    uint64_t before = at ? s->tag[at - 1] : mix(s->root + 77);
    return mix(before ^ mix(s->token[at] + 1)) << 2;
}

static void do_add(void)
{
    struct sequence *s = pick_vacant();
    uint32_t prompt[TOKENS_MOST], n = below(TOKENS_MOST + 1);
    if (!s)
        return;
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = i % 7 == 0 ? below(2) : 0; /* few prompts, so that they meet */
    uint32_t root = below(ROOTS), row;
    int rc = block_tables_add(m.tables, m.roots[root], prompt, n, &row);
    note("add root=%u tokens=%u -> %d", root, n, rc);
    if (rc != 0)
        return; /* rows that leave with a step in flight */
    uint32_t hit = block_tables_view(m.tables, row).length;
    note(" row=%u hit=%u", row, hit);
    *s = (struct sequence){.live = true, .id = ++m.unique, .row = row, .root = root, .known = hit};
    block_log_name(block_tables_log(m.tables), row, s->id, 1 + root);
    require(hit <= n && hit % m.o.block_size == 0, "a hit is whole blocks of the prompt");
    memcpy(s->token, prompt, hit * sizeof *prompt);
    for (uint32_t i = 0; i < hit; i++)
        s->tag[i] = known_tag(s, i);
    for (uint32_t layer = 0; layer < m.o.layers; layer++)
        s->cursor[layer] = hit;
    m.seen_hits += hit > 0;
}

static void do_fork(void)
{
    struct sequence *parent = pick(false), *child = pick_vacant();
    uint32_t row;
    if (!parent || !child)
        return;
    uint32_t length = below(length_of(parent) + 1);
    int rc = block_tables_fork(m.tables, parent->row, length, &row);
    note("fork row=%u length=%u -> %d", parent->row, length, rc);
    if (rc != 0)
        return;
    note(" row=%u", row);
    *child = *parent;
    child->row = row;
    child->id = ++m.unique;
    block_log_name(block_tables_log(m.tables), row, child->id, 1 + child->root);
    child->known = parent->known < length ? parent->known : length;
    for (uint32_t layer = 0; layer < m.o.layers; layer++)
        child->cursor[layer] = length;
}

/* Blocks that the requests take, counted from the tables as they stand: every writer of a shared block
 * copies it, but the last holder. */
static uint32_t naive_need(const struct reserve_request *requests, uint32_t n)
{
    uint32_t writers[BLOCKS_MOST] = {0}, need = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct block_table_view view = block_tables_view(m.tables, requests[i].row);
        if (requests[i].first == requests[i].end)
            continue;
        for (uint32_t b = requests[i].first / m.o.block_size; b * m.o.block_size < requests[i].end; b++) {
            if (b < view.entries)
                writers[view.ids[b]]++;
            else
                need++;
        }
    }
    for (uint32_t id = 0; id < m.o.blocks; id++) {
        uint32_t refs = block_pool_refs(block_tables_pool(m.tables), id);
        need += writers[id] && writers[id] == refs ? refs - 1 : writers[id];
    }
    return need;
}

/* Write `n` tokens of `s` at `layer` (or at all). New tokens get ids that the allocator is told, or
 * not. */
static void write_tokens(struct sequence *s, bool all, uint32_t layer, uint32_t n, bool tell)
{
    uint32_t first = s->cursor[all ? 0 : layer], longest = longest_of(s);
    struct block_table_view view = block_tables_view(m.tables, s->row);
    for (uint32_t at = longest; at < first + n; at++) {
        s->token[at] = at % 7 == 0 ? below(2) : 0;
        if (tell && s->known == at)
            s->known = at + 1;
        s->tag[at] = s->known > at ? known_tag(s, at) : (mix(++m.unique) << 2);
    }
    if (tell && first + n > longest)
        block_tables_note_tokens(m.tables, s->row, longest, s->token + longest, first + n - longest);
    for (uint32_t l = all ? 0 : layer; l <= (all ? m.o.layers - 1 : layer); l++) {
        for (uint32_t at = first; at < first + n; at++) {
            struct action *a = record(m.forming);
            *a = (struct action){.kind = ACT_WRITE, .layer = l, .slot = at % m.o.block_size};
            a->block = view.ids[at / m.o.block_size];
            a->tag = s->tag[at] + l;
            use(a, 1);
        }
        s->cursor[l] += n;
    }
    if (all)
        block_tables_advance_all(m.tables, s->row, n);
    else
        block_tables_advance(m.tables, s->row, layer, n);
}

/* Submit the step being formed. It reads the rows that it writes and some others. */
static void submit(struct sequence *const *written, uint32_t n)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        struct sequence *s = &m.sequences[i];
        bool reads = below(3) == 0;
        for (uint32_t k = 0; k < n; k++)
            reads |= written[k] == s;
        if (!s->live || s->swapped || !reads)
            continue;
        record_read(m.forming, s);
        block_tables_submit(m.tables, s->row, m.forming);
        step_of(m.forming)->takes_part[i] = true;
        step_of(m.forming)->rows[i] = s->row;
    }
    m.forming++;
}

/* Form and submit a step that appends to up to four rows. */
static void do_step(void)
{
    if (m.forming == m.retired + STEPS_IN_FLIGHT_MAX)
        return; /* the next one could not be formed */

    struct reserve_request requests[4];
    struct sequence *chosen[4];
    struct block_copy copies[4];
    uint32_t tokens[4], layer[4], n = 0, copy_count = 0;
    bool all[4];
    for (uint32_t tries = 1 + below(4); tries > 0; tries--) {
        struct sequence *s = pick(false);
        bool again = false;
        for (uint32_t i = 0; i < n; i++)
            again |= chosen[i] == s;
        if (!s || again)
            continue;
        layer[n] = below(m.o.layers);
        all[n] = longest_of(s) == length_of(s) && below(4) != 0;
        uint32_t first = s->cursor[all[n] ? 0 : layer[n]];
        tokens[n] = below(TOKENS_MOST - first + 1);
        if (below(3))
            tokens[n] = tokens[n] ? 1 : 0;
        requests[n] = (struct reserve_request){s->row, first, first + tokens[n]};
        chosen[n++] = s;
    }
    uint32_t need = naive_need(requests, n);
    uint32_t available = block_pool_available(block_tables_pool(m.tables));
    require(block_tables_need(m.tables, requests, n) == need,
            "the need of a reserve differs from the naive count");
    int rc = block_tables_reserve(m.tables, m.forming, requests, n, copies, &copy_count);
    note("step %llu:", (unsigned long long)m.forming);
    for (uint32_t i = 0; i < n; i++)
        note(" row=%u layer=%d tokens=%u", requests[i].row, all[i] ? -1 : (int)layer[i], tokens[i]);
    note(" -> %d copies=%u", rc, copy_count);
    require((rc == 0) == (need <= available), "a reserve fails exactly when it needs more than can be had");
    if (rc != 0) {
        m.seen_refusals++;
        return;
    }
    m.seen_copies += copy_count;
    record_copies(copies, copy_count);
    for (uint32_t i = 0; i < n; i++)
        write_tokens(chosen[i], all[i], layer[i], tokens[i], below(3) != 0);
    submit(chosen, n);
}

static void do_truncate(void)
{
    struct sequence *s = pick(below(8) == 0);
    if (!s)
        return;
    uint32_t length = below(longest_of(s) + 2);
    note("truncate row=%u length=%u", s->row, length);
    block_tables_truncate(m.tables, s->row, length);
    for (uint32_t layer = 0; layer < m.o.layers; layer++)
        s->cursor[layer] = s->cursor[layer] < length ? s->cursor[layer] : length;
    s->known = s->known < length ? s->known : length;
}

static void do_remove(void)
{
    struct sequence *s = pick(below(8) == 0);
    if (!s)
        return;
    note("remove row=%u", s->row);
    block_tables_remove(m.tables, s->row);
    s->live = false;
}

static void do_swap(void)
{
    struct block_copy copies[COPIES_MOST];
    bool in = below(2);
    struct sequence *s = pick(in);
    uint32_t n = 0, ids[TOKENS_MOST + 1];
    if (!s)
        return;
    struct holdings held = count_holdings();
    struct block_table_view view = block_tables_view(m.tables, s->row);
    memcpy(ids, view.ids, view.entries * sizeof *ids);
    uint32_t expected =
        in ? block_tables_absent(m.tables, s->row) : block_tables_reclaimable(m.tables, &s->row, 1);
    struct block_pool_counts before = block_pool_counts(block_tables_pool(m.tables));
    int rc = in ? block_tables_swap_in(m.tables, s->row, m.forming, copies, &n)
                : block_tables_swap_out(m.tables, s->row, m.forming, copies, &n);
    note("swap_%s row=%u -> %d copies=%u", in ? "in" : "out", s->row, rc, n);
    if (rc != 0)
        return;
    struct block_pool_counts after = block_pool_counts(block_tables_pool(m.tables));
    uint32_t moved = in ? after.held - before.held : after.fenced - before.fenced;
    if (moved != expected)
        fail("swapping row %u %s moves %u blocks, and %u were announced", s->row, in ? "in" : "out", moved,
             expected);
    s->swapped = !in;
    m.seen_swaps++;
    note_swapped(in ? ids : view.ids, in ? view.ids : ids, view.entries);
    check_copied_slots(&held, copies, n);
    record_copies(copies, n);
}

/* Blocks that only swapped sequences hold follow them. */
static void do_evacuate(void)
{
    struct block_copy copies[COPIES_MOST];
    uint32_t n = 0, stranded = block_tables_stranded(m.tables), most = below(4);
    struct holdings held = count_holdings();
    uint32_t moved = block_tables_evacuate(m.tables, most, m.forming, copies, &n);
    note("evacuate %u of %u -> %u copies=%u", most, stranded, moved, n);
    if (moved != (stranded < most ? stranded : most) || block_tables_stranded(m.tables) != stranded - moved)
        fail("%u stranded blocks of %u were evacuated, %u are left", moved, stranded,
             block_tables_stranded(m.tables));
    m.seen_evacuated += moved;
    forget_moved();
    check_copied_slots(&held, copies, n);
    record_copies(copies, n);
}

static void do_retire(void)
{
    if (m.retired + 1 == m.forming)
        return;
    struct step *s = step_of(++m.retired);
    note("retire %llu", (unsigned long long)m.retired);
    for (uint32_t i = 0; i < s->count; i++) {
        struct action *a = &s->actions[i];
        if (a->kind == ACT_COPY)
            carry_out_copy(&a->copy);
        else if (a->kind == ACT_WRITE)
            m.device[a->block][a->layer][a->slot] = a->tag;
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->actions[i].kind == ACT_READ)
            check_read(&s->actions[i]);
        use(&s->actions[i], -1);
    }
    uint32_t rows[ROWS], n = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        if (s->takes_part[i])
            rows[n++] = s->rows[i];
    }
    block_tables_retire_step(m.tables, m.retired, rows, n);
    s->count = 0;
    memset(s->takes_part, 0, sizeof s->takes_part);
}

/* What a row's published front holds has been written by steps that are done: it is on the device now.
 */
static void check_published(const struct sequence *s, const struct block_table_view *view)
{
    for (uint32_t at = 0; at < view->published * m.o.block_size; at++) {
        for (uint32_t layer = 0; layer < m.o.layers; layer++) {
            if (m.device[view->ids[at / m.o.block_size]][layer][at % m.o.block_size] != s->tag[at] + layer)
                fail("row %u has published block %u before it was written", s->row,
                     view->ids[at / m.o.block_size]);
        }
    }
}

/* ---- the log of changes -------------------------------------------------------------------------- */

static struct block_past look_at(uint32_t block)
{
    struct block_past now = block_pool_now(block_tables_pool(m.tables), block);
    now.key = block_log_key(block_tables_log(m.tables), block);
    return now;
}

static void note_seen(struct seen *s)
{
    s->epoch = block_log_epoch(block_tables_log(m.tables));
    s->unique = m.unique;
    s->swaps = m.seen_swaps + m.seen_evacuated;
    memset(s->ids, 0, sizeof s->ids);
    memset(s->holders, 0, sizeof s->holders);
    for (uint32_t block = 0; block < m.o.blocks; block++)
        s->blocks[block] = look_at(block);
    for (uint32_t i = 0; i < ROWS; i++) {
        if (!m.sequences[i].live || m.sequences[i].swapped)
            continue;
        struct block_table_view view = block_tables_view(m.tables, m.sequences[i].row);
        s->ids[i] = m.sequences[i].id;
        for (uint32_t k = 0; k < view.entries; k++)
            s->holders[view.ids[k]] |= (uint16_t)(1U << i);
    }
}

/* Whether a sequence that is said to have held a block did; true also of one that was swapped out then. */
static bool did_hold(const struct seen *then, uint64_t id, uint32_t block)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        if (then->ids[i] == id)
            return then->holders[block] >> i & 1;
    }
    return id <= then->unique;
}

/* A sequence that holds a block now and has not come to hold it since; 0: none. */
static uint64_t find_holder(const struct seen *then, const struct seen *now, uint32_t block)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        if ((now->holders[block] >> i & 1) &&
            !block_log_gained(block_tables_log(m.tables), then->epoch, block, now->ids[i]))
            return now->ids[i];
    }
    return 0;
}

static void check_past(const struct seen *then, const struct seen *now)
{
    struct block_past past[BLOCKS_MOST];
    bool swapped = then->swaps != now->swaps; /* what a row has parked meanwhile has no owner, perhaps */
    for (uint32_t i = 0; i < ROWS; i++)
        swapped |= m.sequences[i].live && m.sequences[i].swapped;
    memcpy(past, now->blocks, sizeof past);
    block_log_rewind(block_tables_log(m.tables), then->epoch, 0, m.o.blocks, past);
    for (uint32_t block = 0; block < m.o.blocks; block++) {
        struct block_past got = past[block], want = then->blocks[block];
        if (got.refs != want.refs || got.state != want.state || got.published != want.published ||
            (got.state != BLOCK_FREE && (got.fill != want.fill || got.key != want.key)))
            fail("block %u at epoch %llu: refs %u, state %u, published %d, fill %u, key %llu; it had %u, %u, "
                 "%d, %u, "
                 "%llu",
                 block, (unsigned long long)then->epoch, got.refs, got.state, got.published, got.fill,
                 (unsigned long long)got.key, want.refs, want.state, want.published, want.fill,
                 (unsigned long long)want.key);
        if (got.state != BLOCK_HELD)
            continue;
        uint64_t owner = got.lost ? block_log_loser(block_tables_log(m.tables), then->epoch, block) : 0;
        m.seen_owners += owner != 0;
        if (!owner && !got.retaken)
            owner = find_holder(then, now, block);
        if (owner && !did_hold(then, owner, block))
            fail("block %u at epoch %llu: its owner %llu did not hold it", block,
                 (unsigned long long)then->epoch, (unsigned long long)owner);
        if (!owner && then->holders[block] && !swapped)
            fail("block %u at epoch %llu: nobody is found who held it", block,
                 (unsigned long long)then->epoch);
    }
    m.seen_past++;
}

/* The latest of the changes that are kept of each block left it as it is. */
static void check_lives(const struct seen *now)
{
    for (uint32_t block = 0; block < m.o.blocks; block++) {
        const struct block_life *life = block_log_life(block_tables_log(m.tables), block);
        const struct life_change *last = &life->changes[(life->count - 1) % LIFE_CHANGES];
        if (life->count == 0)
            require(block_pool_generation(block_tables_pool(m.tables), block) == 0,
                    "a block has changed without a life");
        else if (last->refs != now->blocks[block].refs)
            fail("block %u has %u references, and its latest change says %u", block, now->blocks[block].refs,
                 last->refs);
    }
}

static void check_log(void)
{
    struct seen *now = &m.seen[m.operations++ % SEEN];
    note_seen(now);
    check_lives(now);
    const struct seen *then = &m.seen[below(m.operations < SEEN ? (uint32_t)m.operations : SEEN)];
    if (then->epoch >= block_log_oldest(block_tables_log(m.tables)))
        check_past(then, now);
}

/* ---- a sequence of operations -------------------------------------------------------------------- */

/* Do a part of an audit, which goes on while everything changes; the next one follows. */
static void do_part_of_audit(void)
{
    const char *fault;
    if (!block_tables_audit(m.tables, 1 + below(12), &fault))
        return;
    note("an audit has ended\n");
    require(!fault, fault);
    m.seen_audits++;
    block_tables_begin_audit(m.tables);
}

static void one_operation(void)
{
    static void (*const operations[])(void) = {
        do_add,    do_add,    do_fork,   do_step,     do_step,   do_step, do_step,
        do_retire, do_retire, do_retire, do_truncate, do_remove, do_swap, do_evacuate,
    };
    operations[below(sizeof operations / sizeof operations[0])]();
    note("\n");
    if (below(100) == 0) {
        uint32_t cached = block_pool_counts(block_tables_pool(m.tables)).cached;
        note("trim\n");
        require(block_tables_trim(m.tables) == cached, "trim forgets every cached block");
    }
    const char *fault = block_tables_fault(m.tables);
    require(!fault, fault);
    do_part_of_audit();
    check_acquired();
    check_fills();
    check_log();
    for (uint32_t i = 0; i < ROWS; i++) {
        const struct sequence *s = &m.sequences[i];
        if (!s->live)
            continue;
        struct block_table_view view = block_tables_view(m.tables, s->row);
        require(view.length == length_of(s) && view.cursor_max == longest_of(s),
                "a length differs from the model");
        check_published(s, &view);
        for (uint32_t layer = 0; layer < m.o.layers; layer++)
            require(block_tables_cursor(m.tables, s->row, layer) == s->cursor[layer],
                    "a cursor differs from the model");
    }
}

/* Everything removed and retired: the pool is whole again. */
static void wind_up(void)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        if (m.sequences[i].live)
            block_tables_remove(m.tables, m.sequences[i].row);
        m.sequences[i].live = false;
    }
    m.forming++;
    while (m.retired + 1 < m.forming) {
        do_retire();
        note("\n");
        do_part_of_audit();
    }
    block_tables_trim(m.tables);
    const char *fault = block_tables_fault(m.tables);
    require(!fault, fault);
    struct block_pool_counts counts = block_pool_counts(block_tables_pool(m.tables));
    m.seen_evictions += counts.evictions;
    require(counts.free == m.o.blocks, "blocks are lost after everything was removed");
    require(block_tables_counts(m.tables).host_free == m.o.host_blocks, "host blocks are lost");
    require(block_tables_counts(m.tables).tokens_physical == 0,
            "tokens are left after everything was removed");
}

static void set_up(uint64_t seed)
{
    m.random = seed;
    memset(m.sequences, 0, sizeof m.sequences);
    memset(m.users, 0, sizeof m.users);
    memset(m.generation, 0, sizeof m.generation);
    memset(m.device_of, 0xff, sizeof m.device_of);
    memset(m.device, 0xee, sizeof m.device);
    m.log_bytes = 0;
    m.forming = 1;
    m.retired = 0;
    m.operations = 0;
    uint32_t block_size = 1 + below(BLOCK_SIZE_MOST);
    m.o = (struct block_tables_options){
        .blocks = 2 + below(BLOCKS_MOST - 1),
        .block_size = block_size,
        .layers = 1 + below(LAYERS_MOST),
        .rows = ROWS,
        .row_blocks = TOKENS_MOST / block_size + 1,
        .host_blocks = below(HOST_MOST + 1),
        .epochs = 1 + below(500),
        .hash_shift = below(2) ? 0 : 61,
    };
    note("blocks=%u block_size=%u layers=%u host_blocks=%u hash_shift=%u\n", m.o.blocks, m.o.block_size,
         m.o.layers, m.o.host_blocks, m.o.hash_shift);
    if (block_tables_create(&m.o, &m.tables) != 0)
        abort();
    block_tables_begin_audit(m.tables);
    for (uint32_t i = 0; i < ROOTS; i++)
        m.roots[i] = block_tables_open_root(m.tables, 1, "salt", i);
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++) {
        m.steps[i].count = 0;
        memset(m.steps[i].takes_part, 0, sizeof m.steps[i].takes_part);
    }
}

static bool run(uint64_t seed)
{
    set_up(seed);
    bool ok = setjmp(m.failed) == 0;
    if (ok) {
        for (int i = 0; i < OPERATIONS; i++)
            one_operation();
        wind_up();
    } else {
        printf("seed %llu, operations up to the fault:\n%s\n", (unsigned long long)seed, m.log);
    }
    block_tables_destroy(m.tables);
    return ok;
}

int main(int argc, char **argv)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t sequences = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : mix((uint64_t)now.tv_nsec);
    printf("allocator against its model: %llu sequences of %d operations, first seed %llu\n",
           (unsigned long long)sequences, OPERATIONS, (unsigned long long)seed);
    bool ok = true;
    for (uint64_t i = 0; ok && i < sequences; i++)
        ok = run(seed + i);
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++)
        free(m.steps[i].actions);
    printf("%llu hits, %llu copies, %llu swaps, %llu refusals, %llu evictions, "
           "%llu published blocks held in part, %llu audits in parts, %llu states of the past, %llu owners "
           "in them\n",
           (unsigned long long)m.seen_hits, (unsigned long long)m.seen_copies,
           (unsigned long long)m.seen_swaps, (unsigned long long)m.seen_refusals,
           (unsigned long long)m.seen_evictions, (unsigned long long)m.seen_lowered,
           (unsigned long long)m.seen_audits, (unsigned long long)m.seen_past,
           (unsigned long long)m.seen_owners);
    if (ok && sequences >= 1000 &&
        (!m.seen_hits || !m.seen_copies || !m.seen_swaps || !m.seen_refusals || !m.seen_lowered ||
         !m.seen_audits || !m.seen_past || !m.seen_owners)) {
        printf("not ok the operations never met a hit, a copy, a swap, a refusal, a block held in part, the "
               "end of an audit or a past: the test tests nothing\n");
        return 1;
    }
    printf("%s the allocator keeps to its model\n", ok ? "ok" : "not ok");
    return !ok;
}
