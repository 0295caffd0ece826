/* SPDX-License-Identifier: Apache-2.0 */
/* reservation.c - see reservation.h.
 *
 *   free + cached  >=  sum of `declared`  +  sum over workloads of (peak of its ledger - blocks of its own)
 *
 * What a running sequence of a workload holds is in two parts:
 *
 *     table   [ common ........ | own ................ | to come ...... ]
 *              0                 common                 entries           blocks of its length
 *
 * Common blocks have other holders, and are counted as held for ever. Holders of a block hold all before it,
 * so one number tells them apart. Own ones, and those to come, are in the ledger of its workload until its
 * end. Whoever counts a block as its own has his row in holder[block]: when somebody else finds that block
 * in the cache, the holder's become common at once. When sharing ends they become own again when the ledger
 * is next sorted. Both errors are on the safe side: too many blocks are counted as common, never too few.
 *
 * At a fork in the middle of a block the parent goes on counting that block as its own, and each child one to
 * come: of these writers all but the last copy it.
 *
 * From the round in which it is filled on a sequence gets a token in each, so its end is known. Before that
 * there is a bound of it: those that came before it fill first, and of the rows of a round those that
 * decode take at most one for each sequence there can be. Where that leaves too few rows, where the outputs
 * of prompts are computed, or where children fill, too, there is no end: they count with all their blocks.
 * Two rounds are on their way at a time, so a child is at most two behind its parent.
 *
 *   R1  `declared` is the sum over all sequences; `own` and the rest are the sums over running rows
 *   R2  a block is counted as its own by one row, which stands in holder[block]
 *   R3  it has no other holder, but for the first one of a row, in which it may have been forked
 *   R4  what a ledger says is not below what its sequences hold */
#include "scheduler/reservation.h"

#include "config/numbers.h"
#include "scheduler/ledger.h"

#include <assert.h>
#include <stdlib.h>

enum { CHILD_LAG = 2 /* rounds */, FILL_SHARE = 4 /* of the rows at least one in so many fills */ };

/* What is known of a row that a workload drives. */
struct outlook {
    uint8_t place;
    bool runs;    /* else the others say nothing */
    bool decodes; /* `end` is exact, else a bound, or LEDGER_OPEN */
    bool copies;  /* its last entry is still its parent's */
    uint32_t length, fill, forks, fork_at;
    uint32_t tokens;          /* it has with what is submitted */
    uint32_t entries, common; /* blocks of its table; the first ones that are not only its own */
    uint32_t marked;          /* entries [common, marked) have it in holder[] */
    uint64_t end;             /* round of its workload */
};

struct reservation {
    const struct config *config;

    /* clients */
    uint64_t declared;    /* sum of all */
    uint32_t *copying;    /* [copying_count] rows that share blocks which they will write */
    uint32_t *copying_at; /* [sequences] where a row is in it, plus 1; 0: it is not */
    uint32_t copying_count;
    bool noted; /* something has changed since all of these were counted */

    /* workloads */
    struct outlook *outlooks;     /* [sequences] by row */
    struct ledger_entry *entries; /* [2 * (sequences + 1)]: a row's own, and its children to come */
    uint32_t *holder;             /* [pool.blocks] see above */
    uint64_t running, to_fill;    /* rows; blocks that they still take for what they fill, */
    uint64_t tokens_to_fill;      /* and tokens */
    struct place {
        struct ledger ledger;
        uint64_t own;
        bool sharing_ended; /* somebody may be the last holder of common blocks */
    } places[RESERVATION_PLACES];
    uint64_t needed, there; /* blocks that were compared last */
};

int reservation_create(const struct config *config, struct reservation **result)
{
    struct reservation *x = calloc(1, sizeof *x);
    if (!x)
        return ATTND_NO_MEMORY;
    size_t rows = config->limits.sequences;
    x->config = config;
    x->copying = calloc(rows, sizeof *x->copying);
    x->copying_at = calloc(rows, sizeof *x->copying_at);
    x->outlooks = calloc(rows, sizeof *x->outlooks);
    x->entries = calloc(2 * (rows + 1), sizeof *x->entries);
    x->holder = calloc(config->pool_blocks, sizeof *x->holder);
    if (!x->copying || !x->copying_at || !x->outlooks || !x->entries || !x->holder) {
        reservation_destroy(x);
        return ATTND_NO_MEMORY;
    }
    for (int i = 0; i < RESERVATION_PLACES; i++)
        ledger_init(&x->places[i].ledger, x->entries, config->geometry.block_size);
    *result = x;
    return 0;
}

void reservation_destroy(struct reservation *x)
{
    if (!x)
        return;
    free(x->copying);
    free(x->copying_at);
    free(x->outlooks);
    free(x->entries);
    free(x->holder);
    free(x);
}

/* ---- the rule ------------------------------------------------------------------------------------ */

/* Blocks that the workloads' sequences will hold at most beyond those that they hold. */
static uint64_t forecast(struct reservation *x)
{
    uint64_t sum = 0;
    for (int i = 0; x->config->admission == ADMISSION_FORECAST && i < RESERVATION_PLACES; i++) {
        uint64_t peak = ledger_peak(&x->places[i].ledger);
        sum += peak > x->places[i].own ? peak - x->places[i].own : 0;
    }
    return sum;
}

static uint64_t available(const struct engine_state *state)
{
    return block_pool_available(block_tables_pool(step_tables(state->steps)));
}

uint64_t reservation_declared(const struct engine_state *state)
{
    return state->reservation->declared;
}

uint64_t reservation_promised(const struct engine_state *state)
{
    return forecast(state->reservation) + state->reservation->declared;
}

int64_t reservation_balance(const struct engine_state *state)
{
    return (int64_t)available(state) - (int64_t)reservation_promised(state);
}

uint64_t reservation_unpromised(const struct engine_state *state)
{
    int64_t balance = reservation_balance(state);
    return balance > 0 ? (uint64_t)balance : 0;
}

bool reservation_can_promise(struct engine_state *state, uint64_t need)
{
    if (need > reservation_unpromised(state))
        reservation_note_all(state); /* somebody may have stopped sharing meanwhile */
    return need <= reservation_unpromised(state);
}

/* ---- clients' sequences -------------------------------------------------------------------------- */

uint32_t reservation_need(const struct engine_state *state, uint32_t max_tokens, uint32_t tokens, bool shared)
{
    if (max_tokens <= tokens)
        return 0;
    bool copies = shared && tokens % state->config->geometry.block_size != 0;
    return geometry_blocks(&state->config->geometry, max_tokens) -
           geometry_blocks(&state->config->geometry, tokens) + copies;
}

/* A row is kept `declared` blocks, among them some for copies of blocks that it shares, or none. */
static void declare(struct engine_state *state, uint32_t row, uint32_t declared, bool copies)
{
    struct reservation *x = state->reservation;
    struct sequence *s = sequences_at(state->sequences, row);
    x->declared += declared;
    x->declared -= s->declared;
    s->declared = declared;
    if (copies && !x->copying_at[row]) {
        x->copying[x->copying_count] = row;
        x->copying_at[row] = ++x->copying_count;
    } else if (!copies && x->copying_at[row]) {
        uint32_t last = x->copying[--x->copying_count];
        x->copying[x->copying_at[row] - 1] = last;
        x->copying_at[last] = x->copying_at[row];
        x->copying_at[row] = 0;
    }
}

/* Whether a block that is about to be written may have to be copied: somebody shares it (the last
 * writer needs no copy, but who that is is not known yet), or can come to. */
static bool may_be_copied(const struct engine_state *state, uint32_t block)
{
    const struct block_pool *pool = block_tables_pool(step_tables(state->steps));
    return block_pool_refs(pool, block) > 1 || block_pool_is_published(pool, block);
}

void reservation_note(struct engine_state *state, uint32_t row)
{
    struct sequence *s = sequences_at(state->sequences, row);
    uint32_t need = 0, copies = 0;
    state->reservation->noted = true;
    if (!s->options.max_tokens) {
        if (s->key)
            sequences_charge(state->sequences, row,
                             block_tables_view(step_tables(state->steps), row).entries);
        return;
    }
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    uint32_t blocks = geometry_blocks(&state->config->geometry, s->options.max_tokens);
    need = blocks > table.entries ? blocks - table.entries : 0;
    for (uint32_t i = table.length / state->config->geometry.block_size;
         table.length < s->options.max_tokens && i < table.entries; i++)
        copies += may_be_copied(state, table.ids[i]);
    declare(state, row, need + copies, copies > 0);
    sequences_charge(state->sequences, row, table.entries + need);
}

void reservation_note_all(struct engine_state *state)
{
    struct reservation *x = state->reservation;
    if (!x->noted)
        return;
    for (uint32_t i = x->copying_count; i-- > 0;)
        reservation_note(state, x->copying[i]);
    x->noted = false;
}

uint32_t reservation_truncation(const struct engine_state *state, uint32_t row, uint32_t length)
{
    uint32_t need = 0;
    if (!sequences_at(state->sequences, row)->options.max_tokens)
        return 0;
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    for (uint32_t i = length / state->config->geometry.block_size; i < table.entries; i++)
        need += may_be_copied(state, table.ids[i]);
    return need;
}

void reservation_drop(struct engine_state *state, uint32_t row)
{
    state->reservation->noted = true;
    declare(state, row, 0, false);
}

/* ---- sequences of workloads ---------------------------------------------------------------------- */

/* Blocks that a row holds alone; what it still takes for what it fills. */
static uint32_t own_of(const struct outlook *o)
{
    return o->entries - o->common - o->copies;
}

static uint32_t to_fill(const struct reservation *x, const struct outlook *o)
{
    uint32_t blocks = geometry_blocks(&x->config->geometry, o->fill);
    return blocks > o->entries ? blocks - o->entries : 0;
}

static uint32_t tokens_to_fill(const struct outlook *o)
{
    return o->fill > o->tokens ? o->fill - o->tokens : 0;
}

/* The round in which a sequence that is admitted now ends at the latest; LEDGER_OPEN: not known. */
static uint64_t latest_end(const struct reservation *x, const struct outlook *o, bool attends)
{
    uint32_t rows = x->config->step_rows_max, sequences = x->config->limits.sequences;
    if (attends || rows < sequences + rows / FILL_SHARE + 1)
        return LEDGER_OPEN;
    uint64_t rounds = (x->tokens_to_fill + tokens_to_fill(o)) / (rows - sequences) + 1;
    return x->places[o->place].ledger.round + rounds + 1 + o->length - o->fill;
}

/* Write what is known of a row into its workload's ledger, as entries `at` and at + 1. */
static void enter(struct reservation *x, uint32_t at, const struct outlook *o)
{
    struct ledger *l = &x->places[o->place].ledger;
    uint32_t blocks = geometry_blocks(&x->config->geometry, o->length),
             kept = o->fork_at / x->config->geometry.block_size;
    uint32_t left = o->end > l->round ? (uint32_t)(o->end - l->round) : 0;
    bool in_step = o->end != LEDGER_OPEN && o->fork_at >= o->fill; /* its children fill nothing */
    ledger_set(l, at,
               &(struct ledger_entry){.count = o->runs,
                                      .waits = !o->decodes,
                                      .tokens = o->decodes ? o->length - left : o->fill,
                                      .common = o->common,
                                      .final = blocks - o->common,
                                      .end = o->end});
    ledger_set(l, at + 1,
               &(struct ledger_entry){.count = o->runs ? o->forks : 0,
                                      .waits = true,
                                      .tokens = o->fork_at,
                                      .common = kept,
                                      .final = blocks - kept,
                                      .end = in_step ? o->end + CHILD_LAG : LEDGER_OPEN});
}

/* The sums change from what they are with `old` to what they are with `o`. */
static void change(struct reservation *x, uint32_t row, const struct outlook *old)
{
    const struct outlook *o = &x->outlooks[row];
    struct place *p = &x->places[o->place];
    p->own -= old->runs ? own_of(old) : 0;
    p->own += o->runs ? own_of(o) : 0;
    x->to_fill -= old->runs ? to_fill(x, old) : 0;
    x->to_fill += o->runs ? to_fill(x, o) : 0;
    x->tokens_to_fill -= old->runs ? tokens_to_fill(old) : 0;
    x->tokens_to_fill += o->runs ? tokens_to_fill(o) : 0;
    bool entered = old->runs == o->runs && old->decodes == o->decodes && old->common == o->common &&
                   old->forks == o->forks;
    if (!entered)
        enter(x, 2 * row, o);
}

static void set_common(struct reservation *x, uint32_t row, uint32_t common)
{
    const struct outlook old = x->outlooks[row];
    x->outlooks[row].common = common;
    change(x, row, &old);
}

/* Entries of a row that are its own, and were not before. */
static void mark(struct engine_state *state, uint32_t row)
{
    struct reservation *x = state->reservation;
    struct outlook *o = &x->outlooks[row];
    const uint32_t *ids = block_tables_view(step_tables(state->steps), row).ids;
    for (; o->marked < o->entries; o->marked++)
        x->holder[ids[o->marked]] = row;
}

/* The row that counts a block as its own that another one is about to share; NO_ROW if there is none. */
static uint32_t find_holder(const struct engine_state *state, const struct block_tables_hit *hit)
{
    const struct reservation *x = state->reservation;
    if (hit->held == 0)
        return NO_ROW;
    uint32_t row = x->holder[hit->last_held];
    const struct outlook *o = &x->outlooks[row];
    bool holds = o->runs && o->common < hit->held && o->entries >= hit->held &&
                 block_tables_view(step_tables(state->steps), row).ids[hit->held - 1] == hit->last_held;
    return holds ? row : NO_ROW;
}

static struct outlook outlook_of(const struct reservation *x, const struct reservation_plan *plan,
                                 const struct block_tables_hit *hit)
{
    struct outlook o = {.place = (uint8_t)plan->place,
                        .runs = true,
                        .length = plan->length,
                        .fill = plan->fill,
                        .tokens = hit->hit * x->config->geometry.block_size,
                        .forks = plan->forks,
                        .fork_at = plan->fork_at,
                        .entries = hit->hit,
                        .common = hit->held,
                        .marked = hit->held};
    o.end = latest_end(x, &o, plan->attends);
    return o;
}

bool reservation_may_run(struct engine_state *state, const struct reservation_plan *plan,
                         const struct block_tables_hit *hit)
{
    struct reservation *x = state->reservation;
    struct outlook o = outlook_of(x, plan, hit);
    uint64_t all = available(state) - x->declared;
    x->needed = geometry_blocks(&x->config->geometry, plan->fill) - hit->held + x->running + x->to_fill;
    x->there = x->declared > available(state) ? 0 : all;
    if (x->declared > available(state))
        return false;
    if (x->config->admission == ADMISSION_OPTIMISTIC) /* each has a block to grow into */
        return x->needed <= all;
    uint32_t holder = find_holder(state, hit), at = 2 * x->config->limits.sequences;
    uint32_t common = holder != NO_ROW ? x->outlooks[holder].common : 0;
    if (holder != NO_ROW)
        set_common(x, holder, hit->held);
    enter(x, at, &o);
    x->needed = forecast(x);
    bool may = x->needed <= all;
    o.runs = false;
    enter(x, at, &o);
    if (holder != NO_ROW)
        set_common(x, holder, common);
    return may;
}

void reservation_compared(const struct engine_state *state, uint64_t *needed, uint64_t *there)
{
    *needed = state->reservation->needed;
    *there = state->reservation->there;
}

/* A row runs from now on. */
static void begin(struct engine_state *state, uint32_t row, const struct outlook *o)
{
    static const struct outlook none;
    struct reservation *x = state->reservation;
    x->outlooks[row] = *o;
    x->running++;
    change(x, row, &none);
}

void reservation_run(struct engine_state *state, uint32_t row, const struct reservation_plan *plan,
                     const struct block_tables_hit *hit)
{
    uint32_t holder = find_holder(state, hit);
    const struct outlook o = outlook_of(state->reservation, plan, hit);
    if (holder != NO_ROW)
        set_common(state->reservation, holder, hit->held);
    begin(state, row, &o);
    mark(state, row);
}

void reservation_run_fork(struct engine_state *state, uint32_t row, uint32_t parent,
                          const struct reservation_plan *plan)
{
    struct reservation *x = state->reservation;
    struct outlook *from = &x->outlooks[parent];
    uint32_t size = x->config->geometry.block_size, shared = from->fork_at / size;
    const struct block_tables_hit hit = {.hit = geometry_blocks(&x->config->geometry, from->fork_at),
                                         .held = shared};
    struct outlook o = outlook_of(x, plan, &hit);
    o.copies = from->fork_at % size != 0;
    o.tokens = from->fork_at;
    o.decodes = from->fork_at >= plan->fill;
    o.end = o.decodes ? x->places[o.place].ledger.round + plan->length - from->fork_at : LEDGER_OPEN;
    if (from->common < shared)
        set_common(x, parent, shared);
    if (from->marked > shared)
        from->marked = shared; /* the block in which it forks may be copied when it is next written */
    begin(state, row, &o);
}

void reservation_forked(struct engine_state *state, uint32_t row)
{
    const struct outlook old = state->reservation->outlooks[row];
    state->reservation->outlooks[row].forks = 0;
    change(state->reservation, row, &old);
}

/* Count again what a row shares: others may have gone. */
static void look_again(struct engine_state *state, uint32_t row)
{
    struct reservation *x = state->reservation;
    struct outlook *o = &x->outlooks[row];
    const struct block_tables *tables = step_tables(state->steps);
    const uint32_t *ids = block_tables_view(tables, row).ids;
    uint32_t common = o->common;
    while (common > 0 && block_pool_refs(block_tables_pool(tables), ids[common - 1]) == 1)
        x->holder[ids[--common]] = row;
    if (common < o->common)
        set_common(x, row, common);
}

void reservation_begin_round(struct engine_state *state, uint32_t place)
{
    struct reservation *x = state->reservation;
    struct place *p = &x->places[place];
    ledger_advance(&p->ledger);
    if (!p->sharing_ended || p->ledger.base != p->ledger.round)
        return;
    p->sharing_ended = false;
    for (uint32_t i = p->ledger.first; i != LEDGER_NONE; i = x->entries[i].next) {
        if (i % 2 == 0)
            look_again(state, i / 2);
    }
}

void reservation_note_run(struct engine_state *state, uint32_t row, uint32_t tokens, bool decodes)
{
    struct reservation *x = state->reservation;
    struct outlook *o = &x->outlooks[row];
    const struct outlook old = *o;
    uint64_t round = x->places[o->place].ledger.round;
    o->entries = block_tables_view(step_tables(state->steps), row).entries;
    o->copies = false;
    o->tokens = tokens;
    if (!o->decodes && decodes) {
        o->decodes = true;
        o->end = round + o->length - tokens;
        assert(o->end <= old.end);
    }
    assert(!o->decodes || o->end == round + o->length - tokens); /* it has got a token in each round */
    if (o->marked == o->entries && old.entries == o->entries && old.decodes == o->decodes &&
        old.tokens >= o->fill)
        return;
    change(x, row, &old);
    mark(state, row);
}

void reservation_end_run(struct engine_state *state, uint32_t row)
{
    struct reservation *x = state->reservation;
    const struct outlook old = x->outlooks[row];
    x->outlooks[row].runs = false;
    x->running--;
    x->places[old.place].sharing_ended |= old.common > 0;
    change(x, row, &old);
}

const char *reservation_row_fault(const struct engine_state *state, uint32_t row, uint32_t *entry,
                                  uint32_t *work)
{
    const struct reservation *x = state->reservation;
    const struct outlook *o = &x->outlooks[row];
    const struct sequence *s = sequences_at(state->sequences, row);
    const struct block_pool *pool = block_tables_pool(step_tables(state->steps));
    if (s->id == 0)
        return NULL;
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    if (s->key && !s->workload &&
        s->charged != larger(table.entries, geometry_blocks(&state->config->geometry, s->options.max_tokens)))
        return "R5: what counts for a key is not what a sequence has, or is promised";
    if (!o->runs)
        return NULL;
    if (o->entries != table.entries || o->common + o->copies > o->entries)
        return "R1: the blocks of a workload's sequence are not what its reservation says";
    uint32_t i = larger(*entry, o->common), end = o->entries - o->copies;
    for (; i<end && * work> 0; i++, --*work) {
        if (x->holder[table.ids[i]] != row)
            return "R2: a block is counted as its own by two sequences, or by one that is not noted";
        if ((i > o->common || !o->fork_at) && block_pool_refs(pool, table.ids[i]) != 1)
            return "R3: a block that is shared is counted as one of its own";
    }
    *entry = i;
    return NULL;
}

const char *reservation_fault(const struct engine_state *state)
{
    struct reservation *x = state->reservation;
    uint64_t declared = 0, running = 0, fills = 0, tokens = 0, own[RESERVATION_PLACES] = {0};
    for (uint32_t row = 0; row < x->config->limits.sequences; row++) {
        const struct outlook *o = &x->outlooks[row];
        declared += sequences_at(state->sequences, row)->declared;
        if (!o->runs)
            continue;
        running++;
        fills += to_fill(x, o);
        tokens += tokens_to_fill(o);
        own[o->place] += own_of(o);
    }
    if (declared != x->declared || running != x->running || fills != x->to_fill ||
        tokens != x->tokens_to_fill)
        return "R1: what is declared, runs or fills is not its sum";
    for (int i = 0; i < RESERVATION_PLACES; i++) {
        if (own[i] != x->places[i].own)
            return "R1: a workload's own blocks are not their sum";
        if (ledger_peak(&x->places[i].ledger) < own[i])
            return "R4: a ledger is below what its sequences hold";
    }
    return NULL;
}
