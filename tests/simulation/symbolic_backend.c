/* SPDX-License-Identifier: Apache-2.0 */
/* symbolic_backend.c - see symbolic_backend.h.
 *
 *   submit     what may change before the step is done is copied: plans, appends, and the rows of the
 *              block tables, through a copy that knows of changes only what table_use tells it (I8)
 *   computed   at the very end of its time, swaps before the rest or after it, as the seed says:
 *              copies, comparisons, reads and merges of states, then pass by pass appends and attention,
 *              work tile by work tile as the plan has them
 *
 * Every slot is UNWRITTEN until something is put there, and reading it is a fault. With debug.poison a slot is UNWRITTEN only
 * where a copy made it so, and LEFT where nobody did: at the start, and behind the slots of copies and swaps. */
#include "tests/simulation/symbolic_backend.h"

#include "kernels/backend.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/watch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ROOM_BYTES = 4 << 20, /* of what is copied of a step */
    REGIONS_MOST = 16,
    ROOF_PARTS = 3, /* of a measurement of the roof */
    MORE_MOST = 5,  /* parts that continue a step */
    /* Where keys take time, the other rates are those of cost_fallback(): */
    READ_KEYS = 2,      /* a key is read in the time in which so many queries see one, */
    GENERATE_KEYS = 80, /* and the k, v and q of a token generated */
    STEP_US = 20,
    PASS_US = 5,
    PLANS_CHECKED = 16 /* one plan in so many is checked by plan_fault() too */
};

#define UNWRITTEN UINT64_MAX
#define CLEARED   0
#define LEFT      UINT64_C(0xfefefefefefefefe)

/* A step that was submitted and not computed. */
struct pending {
    uint64_t ticket, constants;      /* a hash of the model's */
    double done_s, busy_s, overhead; /* what it takes over what its work tiles and passes do */
    bool swaps_last;
    struct block_copy *copies;
    struct kv_compare *compares;
    struct kv_read *reads;
    struct merge_states *merges;
    uint32_t copy_count, compare_count, read_count, merge_count, pass_count;
    struct attention_pass *passes;
    struct table_use *uses;
    uint32_t use_count;
    const uint32_t **tables; /* [use_count] */
    uint8_t *room;
    size_t used;
};

struct symbolic_backend {
    struct attention base;
    struct attention_options o;
    struct symbolic_conduct conduct;
    uint64_t random;
    uint64_t *pool, *host;   /* [layers][blocks][block_size] */
    uint32_t *tables;        /* [table_rows][table_stride] as the backend knows them */
    struct table_use *known; /* [table_rows] */
    uint32_t *use_of;        /* [table_rows] index of the row among the uses of the step being run */
    struct pending pending[ATTENTION_STEPS_IN_FLIGHT];
    struct pending more[ATTENTION_STEPS_IN_FLIGHT][MORE_MOST]; /* [more_count] that continue it */
    uint32_t more_count[ATTENTION_STEPS_IN_FLIGHT];
    bool streamed;       /* the latest */
    uint64_t *refused;   /* [table_rows] contents that had a wrong k or v */
    uint64_t done;       /* tickets up to this one */
    uint64_t appended;   /* turn in which something was, first */
    bool test_begun;     /* a self-test has two parts */
    uint64_t tests;      /* done */
    uint32_t roof_parts; /* of a measurement of the roof under way */
    uint64_t roofs;      /* done */
    uint32_t layer;      /* of the latest pass of workloads, plus 1 */
    double free_s;       /* when the latest step is done */
    uint64_t *partials;
    uint32_t *partial_keys;
    struct host_region {
        uint8_t *memory;
        size_t bytes;
    } regions[REGIONS_MOST]; /* that were given out for tensors */
};

struct symbolic_conduct symbolic_backend_conduct;
struct symbolic_meter symbolic_meters[SYMBOLIC_METERS];
static struct symbolic_backend *current;

/* ---- tags ---------------------------------------------------------------------------------------- */

uint64_t symbolic_term(uint64_t tag, uint32_t position)
{
    uint64_t x = (tag ^ (uint64_t)position * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 29);
}

struct symbolic_row symbolic_k(uint64_t tag, uint64_t base)
{
    return (struct symbolic_row){{tag, base}};
}

struct symbolic_row symbolic_v(uint64_t tag)
{
    return (struct symbolic_row){{sim_mix(tag)}};
}

struct symbolic_row symbolic_wrong(uint64_t tag)
{
    return (struct symbolic_row){{sim_mix(tag), 1}};
}

static const struct symbolic_row refused_row = {{1, 2, 3, 4}};

bool symbolic_is_refused(const struct symbolic_row *row)
{
    return memcmp(row, &refused_row, sizeof *row) == 0;
}

uint64_t symbolic_generated(struct value_source source, uint32_t position, uint32_t layer,
                            enum values_tensor tensor)
{
    uint64_t place = (uint64_t)position << 16 | (uint64_t)layer << 4 | (uint64_t)tensor;
    return sim_mix(sim_mix(source.seed ^ sim_mix(source.content)) ^ place) | 1;
}

enum sharing symbolic_sharing(uint64_t seed)
{
    return (enum sharing)(seed % (SHARING_OFF + 1));
}

struct symbolic_row symbolic_output(uint64_t q, uint64_t sum, uint32_t keys)
{
    uint64_t word = sim_mix(q + sum);
    return (struct symbolic_row){{word, word * 3, keys, q}};
}

void symbolic_put(struct symbolic_row *tensor, size_t row, uint32_t heads, struct symbolic_row value)
{
    for (uint32_t head = 0; head < heads; head++)
        tensor[row * heads + head] = value;
}

const struct symbolic_row *symbolic_get(const void *tensor, size_t row, uint32_t heads)
{
    const struct symbolic_row *first = (const struct symbolic_row *)tensor + row * heads;
    for (uint32_t head = 1; head < heads; head++) {
        if (memcmp(first, &first[head], sizeof *first) != 0)
            return NULL;
    }
    return first;
}

static uint64_t add_floats(uint64_t hash, const float *values, size_t n)
{
    uint32_t bits;
    hash = sim_mix(hash + (values != NULL));
    for (size_t i = 0; values && i < n; i++) {
        memcpy(&bits, &values[i], sizeof bits);
        hash = sim_mix(hash ^ bits);
    }
    return hash;
}

uint64_t symbolic_constants(const struct model_constants *c, const struct geometry *g)
{
    uint64_t hash = add_floats(0, c->sinks, (size_t)g->layers * g->query_heads);
    return add_floats(hash, c->alibi, g->query_heads);
}

uint64_t symbolic_backend_constants(void)
{
    return symbolic_constants(current->o.constants, current->o.geometry);
}

uint64_t symbolic_backend_appended(void)
{
    return current->appended;
}

/* ---- the pool ------------------------------------------------------------------------------------ */

static uint64_t *slots_of(const struct symbolic_backend *b, bool host, uint32_t layer, uint32_t block)
{
    uint32_t blocks = host ? b->o.host_blocks : b->o.blocks;
    if (block >= blocks)
        sim_fail("a step names %s block %u of %u", host ? "host" : "device", block, blocks);
    return (host ? b->host : b->pool) + ((size_t)layer * blocks + block) * b->o.geometry->block_size;
}

static bool is_swap(const struct block_copy *copy)
{
    return copy->kind == COPY_SWAP_OUT || copy->kind == COPY_SWAP_IN;
}

/* Slots become UNWRITTEN. */
static void run_poison(struct symbolic_backend *b, const struct block_copy *copy)
{
    if (copy->slots == 0 || copy->from + copy->slots > b->o.geometry->block_size)
        sim_fail("slots %u and %u more become unwritten", copy->from, copy->slots);
    for (uint32_t layer = 0; layer < b->o.geometry->layers; layer++) {
        uint64_t *slots = slots_of(b, false, layer, copy->to);
        for (uint32_t i = copy->from; i < copy->from + copy->slots; i++)
            slots[i] = UNWRITTEN;
    }
}

/* What stands behind the slots that are copied is not to be read. */
static void run_copy(struct symbolic_backend *b, const struct block_copy *copy)
{
    uint32_t size = b->o.geometry->block_size;
    if (copy->kind == COPY_POISON) {
        run_poison(b, copy);
        return;
    }
    if (copy->slots > size)
        sim_fail("a copy of %u slots of %u", copy->slots, size);
    for (uint32_t layer = 0; layer < b->o.geometry->layers; layer++) {
        uint64_t *to = slots_of(b, copy->kind == COPY_SWAP_OUT, layer, copy->to);
        const uint64_t *from =
            copy->kind == COPY_CLEAR ? NULL : slots_of(b, copy->kind == COPY_SWAP_IN, layer, copy->from);
        for (uint32_t i = 0; i < size; i++) {
            uint64_t behind = !sim.config.poison ? UNWRITTEN : copy->kind == COPY_BLOCK ? to[i] : LEFT;
            to[i] = i >= copy->slots ? behind : from ? from[i] : CLEARED;
        }
    }
    sim.seen.copies += copy->kind == COPY_BLOCK;
    sim.seen.swaps_out += copy->kind == COPY_SWAP_OUT;
    sim.seen.swaps_in += copy->kind == COPY_SWAP_IN;
}

static void run_copies(struct symbolic_backend *b, const struct pending *p, bool swaps)
{
    for (uint32_t i = 0; i < p->copy_count; i++) {
        if (is_swap(&p->copies[i]) == swaps)
            run_copy(b, &p->copies[i]);
    }
}

/* The block table of a row, as it was when the step was submitted. */
static const uint32_t *table_of(const struct symbolic_backend *b, const struct pending *p, uint32_t row,
                                uint32_t *entries)
{
    uint32_t use = row < b->o.table_rows ? b->use_of[row] : UINT32_MAX;
    if (use >= p->use_count || p->uses[use].row != row)
        sim_fail("step %llu reads row %u of the tables, which is not among its uses",
                 (unsigned long long)p->ticket, row);
    *entries = p->uses[use].entries;
    return p->tables[use];
}

static uint64_t *slot_at(const struct symbolic_backend *b, const struct pending *p, uint32_t row,
                         uint32_t layer, uint32_t position)
{
    uint32_t entries, size = b->o.geometry->block_size;
    const uint32_t *table = table_of(b, p, row, &entries);
    if (position / size >= entries)
        sim_fail("step %llu wants position %u of row %u, which has %u blocks", (unsigned long long)p->ticket,
                 position, row, entries);
    return slots_of(b, false, layer, table[position / size]) + position % size;
}

/* A row that a step is given, of which all heads are of one token. */
static const struct symbolic_row *given(const struct pending *p, const void *tensor, size_t row,
                                        uint32_t heads)
{
    const struct symbolic_row *at = symbolic_get(tensor, row, heads);
    if (!at)
        sim_fail("step %llu: the heads of row %zu are of different tokens", (unsigned long long)p->ticket,
                 row);
    return at;
}

/* ---- a pass -------------------------------------------------------------------------------------- */

static void run_append(struct symbolic_backend *b, const struct pending *p, const struct attention_pass *pass,
                       const struct kv_append *a)
{
    uint32_t heads = b->o.geometry->kv_heads;
    for (uint32_t i = 0; i < a->count; i++) {
        uint64_t tag;
        if (a->k) {
            tag = given(p, a->k, i, heads)->word[0];
            if (given(p, a->v, i, heads)->word[0] != sim_mix(tag))
                sim_fail("step %llu, row %u, position %u: k and v are of different tokens",
                         (unsigned long long)p->ticket, a->table, a->position + i);
            if (given(p, a->v, i, heads)->word[1]) {
                if (!a->wrong)
                    sim_fail("step %llu: a wrong v, and nobody asks", (unsigned long long)p->ticket);
                *a->wrong = KV_WRONG_V;
                b->refused[a->table] = a->content;
                tag = CLEARED;
            }
        } else {
            tag = symbolic_generated(a->generated, a->position + i, pass->layer, VALUES_K);
        }
        *slot_at(b, p, a->table, pass->layer, a->position + i) = tag;
    }
}

/* The sum over the keys of one row that lie in a work tile. */
static uint64_t fold(struct symbolic_backend *b, const struct pending *p, uint32_t layer,
                     const struct work_tile *work_tile, const struct plan_query *query, uint32_t *keys)
{
    uint32_t at = work_tile->first_chunk * CHUNK_TOKENS, end = at + work_tile->chunks * CHUNK_TOKENS;
    uint32_t first = plan_visible(query->keys, b->o.geometry->window[layer]).first;
    uint32_t entries, size = b->o.geometry->block_size;
    uint64_t sum = 0;
    at = first > at ? first : at;
    end = query->keys < end ? query->keys : end;
    const uint32_t *table = table_of(b, p, work_tile->table, &entries);
    if (at < end && (end - 1) / size >= entries)
        sim_fail("step %llu reads %u tokens of row %u, which has %u blocks", (unsigned long long)p->ticket,
                 end, work_tile->table, entries);
    for (*keys = at < end ? end - at : 0; at < end;) {
        const uint64_t *slots = slots_of(b, false, layer, table[at / size]);
        for (uint32_t i = at % size; i < size && at < end; i++, at++) {
            bool may = sim.config.poison &&
                       work_tile->table >= sim.config.limits.sequences; /* a lease's: its model has 0 */
            if (slots[i] == UNWRITTEN && !may)
                sim_fail("step %llu, layer %u: position %u of row %u (block %u) is read before it is written",
                         (unsigned long long)p->ticket, layer, at, work_tile->table, table[at / size]);
            sum += symbolic_term(slots[i] == UNWRITTEN ? CLEARED : slots[i], at);
        }
    }
    return sum;
}

static void finish_query(const struct symbolic_backend *b, const struct pending *p,
                         const struct attention_pass *pass, uint32_t row, uint64_t sum, uint32_t keys)
{
    uint32_t heads = b->o.geometry->query_heads;
    uint32_t position = pass->plan->queries[row].keys - 1;
    uint64_t tag = pass->rows ? given(p, pass->rows[row].q, 0, heads)->word[0]
                              : symbolic_generated(pass->q_source[row], position, pass->layer, VALUES_Q);
    if (pass->rows) {
        bool refused =
            pass->rows[row].content && b->refused[pass->plan->queries[row].table] == pass->rows[row].content;
        symbolic_put(pass->rows[row].o, 0, heads, refused ? refused_row : symbolic_output(tag, sum, keys));
        for (uint32_t head = 0; pass->rows[row].lse && head < heads; head++)
            pass->rows[row].lse[head] = (float)keys;
        return;
    }
    symbolic_put(pass->o, row, heads, symbolic_output(tag, sum, keys));
}

/* What a row takes of its work tile and its pass. */
static double us_of(const struct symbolic_backend *b, const struct attention_pass *pass,
                    const struct work_tile *work_tile)
{
    const struct plan *plan = pass->plan;
    double tokens = (double)plan_work_tile_tokens(plan, work_tile, 0),
           keys = (double)plan->queries[plan->work_tile_queries[work_tile->first_query]].keys;
    double part = keys > 0 ? tokens / keys : 1; /* of the row */
    return b->conduct.key_us * (tokens * (READ_KEYS + work_tile->queries) / work_tile->queries +
                                (pass->rows ? 0 : GENERATE_KEYS) * part) +
           PASS_US * part / plan->query_count;
}

/* Note what a row has taken. */
static void meter(const struct symbolic_backend *b, const struct pending *p,
                  const struct attention_pass *pass, uint32_t row, double us)
{
    uint64_t at = 0;
    if (pass->rows)
        at = given(p, pass->rows[row].q, 0, b->o.geometry->query_heads)->word[SYMBOLIC_METER] - 1;
    while (!pass->rows && at < SYMBOLIC_METERS && symbolic_meters[at].seed != pass->q_source[row].seed)
        at++;
    if (at >= SYMBOLIC_METERS)
        return;
    struct symbolic_meter *m = &symbolic_meters[at];
    uint64_t gap = p->ticket - m->ticket;
    m->us += us * p->overhead;
    m->longest = m->ticket && gap > m->longest ? gap : m->longest;
    m->ticket = p->ticket;
}

/* Whether a query of a pass reads alone. */
static bool reads_alone(const struct attention_pass *pass, uint32_t row)
{
    enum sharing sharing = pass->rows ? sim.config.sharing : symbolic_sharing(pass->q_source[row].seed);
    return sharing == SHARING_OFF;
}

static void check_sharing(const struct pending *p, const struct attention_pass *pass)
{
    const struct plan *plan = pass->plan;
    uint32_t alone = 0;
    for (uint32_t row = 0; row < plan->query_count; row++)
        alone += reads_alone(pass, row);
    sim.seen.mixed += alone > 0 && alone < plan->query_count;
    for (uint32_t i = 0; i < plan->work_tile_count; i++) {
        const struct work_tile *work_tile = &plan->work_tiles[i];
        const uint32_t *rows = plan->work_tile_queries + work_tile->first_query;
        sim.seen.together += work_tile->queries > 1;
        for (uint32_t r = 0; work_tile->queries > 1 && r < work_tile->queries; r++) {
            if (reads_alone(pass, rows[r]))
                sim_fail("step %llu: query %u reads alone, and a work tile has it and %u others",
                         (unsigned long long)p->ticket, rows[r], work_tile->queries - 1);
        }
    }
}

static void run_work_tiles(struct symbolic_backend *b, const struct pending *p,
                           const struct attention_pass *pass)
{
    const struct plan *plan = pass->plan;
    for (uint32_t i = 0; i < plan->work_tile_count; i++) {
        const struct work_tile *work_tile = &plan->work_tiles[i];
        for (uint32_t r = 0; r < work_tile->queries; r++) {
            uint32_t row = plan->work_tile_queries[work_tile->first_query + r], keys;
            uint64_t sum = fold(b, p, pass->layer, work_tile, &plan->queries[row], &keys);
            meter(b, p, pass, row, us_of(b, pass, work_tile));
            if (work_tile->partial == PLAN_NO_PARTIAL) {
                finish_query(b, p, pass, row, sum, keys);
                continue;
            }
            b->partials[work_tile->partial + r] = sum;
            b->partial_keys[work_tile->partial + r] = keys;
        }
    }
}

static void run_merges(struct symbolic_backend *b, const struct pending *p, const struct attention_pass *pass)
{
    const struct plan *plan = pass->plan;
    for (uint32_t i = 0; i < plan->merge_count; i++) {
        const struct plan_merge *merge = &plan->merges[i];
        uint64_t sum = 0;
        uint32_t keys = 0;
        for (uint32_t k = merge->first; k < merge->first + merge->count; k++) {
            sum += b->partials[plan->merge_partials[k].partial];
            keys += b->partial_keys[plan->merge_partials[k].partial];
        }
        finish_query(b, p, pass, merge->query, sum, keys);
    }
}

static void run_pass(struct symbolic_backend *b, const struct pending *p, const struct attention_pass *pass)
{
    for (uint32_t i = 0; i < pass->append_count; i++)
        run_append(b, p, pass, &pass->appends[i]);
    if (!pass->plan)
        return;
    if (pass->plan->query_count && !pass->rows && pass->o)
        memset(pass->o, 0xee,
               (size_t)pass->plan->query_count * b->o.geometry->query_heads * sizeof(struct symbolic_row));
    if (sim_chance(&b->random, PLANS_CHECKED)) {
        const char *fault = plan_fault(pass->plan, b->o.geometry->window[pass->layer]);
        if (fault)
            sim_fail("step %llu: %s", (unsigned long long)p->ticket, fault);
    }
    check_sharing(p, pass);
    run_work_tiles(b, p, pass);
    run_merges(b, p, pass);
}

static void run_compare(struct symbolic_backend *b, const struct pending *p, const struct kv_compare *c)
{
    uint32_t heads = b->o.geometry->kv_heads, i = 0;
    for (; i < c->count; i++) {
        uint64_t stands = *slot_at(b, p, c->table, c->layer, c->position + i);
        if (stands == UNWRITTEN)
            sim_fail("step %llu: position %u of row %u is compared and was never written",
                     (unsigned long long)p->ticket, c->position + i, c->table);
        if (stands != given(p, c->k, i, heads)->word[0])
            break;
    }
    *c->equal = i;
}

static void run_read(struct symbolic_backend *b, const struct pending *p, const struct kv_read *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        uint64_t tag = *slot_at(b, p, r->table, r->layer, r->position + i);
        symbolic_put(r->k, i, b->o.geometry->kv_heads, symbolic_k(tag, 0));
        symbolic_put(r->v, i, b->o.geometry->kv_heads, symbolic_v(tag));
    }
}

static void run_operations(struct symbolic_backend *b, const struct pending *p)
{
    for (uint32_t i = 0; i < p->compare_count; i++)
        run_compare(b, p, &p->compares[i]);
    for (uint32_t i = 0; i < p->read_count; i++)
        run_read(b, p, &p->reads[i]);
    for (uint32_t i = 0; i < p->merge_count; i++)
        merge_states_on_host(&p->merges[i], 0, (size_t)p->merges[i].rows * p->merges[i].heads);
}

static void run_step(struct symbolic_backend *b, const struct pending *p)
{
    if (p->constants != symbolic_backend_constants())
        sim_fail("step %llu: the model's constants have changed while it was in flight",
                 (unsigned long long)p->ticket);
    for (uint32_t i = 0; i < p->use_count; i++)
        b->use_of[p->uses[i].row] = i;
    if (!p->swaps_last)
        run_copies(b, p, true);
    run_copies(b, p, false);
    run_operations(b, p);
    for (uint32_t i = 0; i < p->pass_count; i++)
        run_pass(b, p, &p->passes[i]);
    if (p->swaps_last)
        run_copies(b, p, true);
}

/* ---- submitting ---------------------------------------------------------------------------------- */

static void *keep(struct pending *p, const void *bytes, size_t n, size_t size)
{
    void *to = p->room + p->used;
    p->used += (n * size + 15) / 16 * 16;
    if (p->used > ROOM_BYTES)
        sim_fail("a step does not fit the simulator's room");
    if (bytes && n)
        memcpy(to, bytes, n * size);
    return to;
}

static const struct plan *keep_plan(struct pending *p, const struct plan *plan)
{
    uint32_t work_tile_queries = 0, partials = 0;
    for (uint32_t i = 0; i < plan->work_tile_count; i++) {
        uint32_t end = plan->work_tiles[i].first_query + plan->work_tiles[i].queries;
        work_tile_queries = end > work_tile_queries ? end : work_tile_queries;
    }
    for (uint32_t i = 0; i < plan->merge_count; i++) {
        uint32_t end = plan->merges[i].first + plan->merges[i].count;
        partials = end > partials ? end : partials;
    }
    struct plan *kept = keep(p, plan, 1, sizeof *plan);
    kept->queries = keep(p, plan->queries, plan->query_count, sizeof *plan->queries);
    kept->work_tiles = keep(p, plan->work_tiles, plan->work_tile_count, sizeof *plan->work_tiles);
    kept->work_tile_queries =
        keep(p, plan->work_tile_queries, work_tile_queries, sizeof *plan->work_tile_queries);
    kept->merges = keep(p, plan->merges, plan->merge_count, sizeof *plan->merges);
    kept->slice = plan->slice ? keep(p, plan->slice, 1, sizeof *plan->slice) : NULL;
    kept->merge_partials = keep(p, plan->merge_partials, partials, sizeof *plan->merge_partials);
    return kept;
}

/* Tensors lie where a device finds them. */
static void check_place(const struct symbolic_backend *b, const struct pending *p, const void *tensor,
                        uint32_t rows, uint32_t heads)
{
    const uint8_t *at = tensor, *end = at + (size_t)rows * heads * sizeof(struct symbolic_row);
    bool found = tensor == NULL;
    for (int i = 0; i < REGIONS_MOST; i++) {
        const struct host_region *r = &b->regions[i];
        found |= r->memory && at >= r->memory && end <= r->memory + r->bytes;
    }
    if (!found || (uintptr_t)tensor % 8)
        sim_fail("step %llu: a tensor is not in the backend's memory", (unsigned long long)p->ticket);
}

static void check_places(const struct symbolic_backend *b, const struct pending *p,
                         const struct attention_pass *pass)
{
    const struct geometry *g = b->o.geometry;
    for (uint32_t i = 0; i < pass->append_count; i++) {
        check_place(b, p, pass->appends[i].k, pass->appends[i].count, g->kv_heads);
        check_place(b, p, pass->appends[i].v, pass->appends[i].count, g->kv_heads);
    }
    for (uint32_t i = 0; pass->plan && pass->rows && i < pass->plan->query_count; i++) {
        check_place(b, p, pass->rows[i].q, 1, g->query_heads);
        check_place(b, p, pass->rows[i].o, 1, g->query_heads);
    }
}

/* What is written is nobody else's, and is not in the index of prompts (I5, I6). */
static void check_writes(const struct symbolic_backend *b, const struct pending *p,
                         const struct attention_pass *pass)
{
    uint32_t size = b->o.geometry->block_size;
    for (uint32_t i = 0; i < pass->append_count; i++) {
        const struct kv_append *a = &pass->appends[i];
        for (uint32_t at = a->position / size; at <= (a->position + a->count - 1) / size; at++) {
            uint32_t entries, block;
            const uint32_t *table = table_of(b, p, a->table, &entries);
            block = at < entries ? table[at] : UINT32_MAX;
            if (block < b->o.blocks && !watched_blocks_may_write(block, !a->k))
                sim_fail("I5: step %llu writes to block %u, which others hold or may find",
                         (unsigned long long)p->ticket, block);
        }
    }
}

static void keep_passes(struct symbolic_backend *b, struct pending *p, const struct attention_step *step)
{
    p->pass_count = step->pass_count;
    p->passes = keep(p, step->passes, step->pass_count, sizeof *p->passes);
    for (uint32_t i = 0; i < p->pass_count; i++) {
        struct attention_pass *pass = &p->passes[i];
        pass->appends = keep(p, pass->appends, pass->append_count, sizeof *pass->appends);
        if (pass->append_count && b->appended > sim.seen.turns)
            b->appended = sim.seen.turns;
        check_places(b, p, pass);
        check_writes(b, p, pass);
        if (!pass->plan)
            continue;
        if (pass->plan->partial_count > b->o.partials_max || pass->plan->query_count > b->o.rows_max)
            sim_fail("a plan has %u rows and %u partials", pass->plan->query_count,
                     pass->plan->partial_count);
        pass->plan = keep_plan(p, pass->plan);
        if (pass->rows)
            pass->rows = keep(p, pass->rows, pass->plan->query_count, sizeof *pass->rows);
        else
            pass->q_source = keep(p, pass->q_source, pass->plan->query_count, sizeof *pass->q_source);
    }
}

static void keep_operations(struct pending *p, const struct attention_step *step)
{
    p->compare_count = step->compare_count;
    p->compares = keep(p, step->compares, step->compare_count, sizeof *p->compares);
    p->read_count = step->read_count;
    p->reads = keep(p, step->reads, step->read_count, sizeof *p->reads);
    p->merge_count = step->merge_count;
    p->merges = keep(p, step->merges, step->merge_count, sizeof *p->merges);
}

/* Bring the backend's copy of a row up to date by what the use says, as a device does; it must then be
 * what the scheduler has. */
static const uint32_t *update_table(struct symbolic_backend *b, struct pending *p,
                                    const struct attention_step *step, const struct table_use *use)
{
    if (use->row >= b->o.table_rows || use->entries > b->o.table_stride)
        sim_fail("a use of row %u with %u entries", use->row, use->entries);
    struct table_use *known = &b->known[use->row];
    uint32_t *mine = b->tables + (size_t)use->row * b->o.table_stride;
    const uint32_t *theirs = step->tables + (size_t)use->row * step->stride;
    uint32_t from = known->version != use->version  ? 0
                    : known->entries < use->entries ? known->entries
                                                    : use->entries;
    memcpy(mine + from, theirs + from, (use->entries - from) * sizeof *mine);
    if (memcmp(mine, theirs, use->entries * sizeof *mine) != 0)
        sim_fail("I8: row %u of the tables has changed, and its version %llu has not", use->row,
                 (unsigned long long)use->version);
    *known = *use;
    return keep(p, mine, use->entries, sizeof *mine);
}

static void keep_tables(struct symbolic_backend *b, struct pending *p, const struct attention_step *step)
{
    p->use_count = step->use_count;
    p->uses = keep(p, step->uses, step->use_count, sizeof *p->uses);
    p->tables = keep(p, NULL, step->use_count, sizeof *p->tables);
    for (uint32_t i = 0; i < step->use_count; i++)
        p->tables[i] = update_table(b, p, step, &step->uses[i]);
}

static bool touches(const struct pending *p, uint32_t block)
{
    for (uint32_t i = 0; i < p->copy_count; i++) {
        const struct block_copy *c = &p->copies[i];
        bool reads = c->kind == COPY_BLOCK || c->kind == COPY_SWAP_OUT;
        if ((reads && c->from == block) || (c->kind != COPY_SWAP_OUT && c->to == block))
            return true;
    }
    for (uint32_t use = 0; use < p->use_count; use++) {
        for (uint32_t i = 0; i < p->uses[use].entries; i++) {
            if (p->tables[use][i] == block)
                return true;
        }
    }
    return false;
}

/* A block that a copy fills was just handed out: no step in flight may touch it. */
static void check_fences(const struct symbolic_backend *b, const struct pending *p)
{
    for (uint64_t ticket = b->done + 1; ticket < p->ticket; ticket++) {
        const struct pending *other = &b->pending[ticket % ATTENTION_STEPS_IN_FLIGHT];
        for (uint32_t i = 0; i < p->copy_count; i++) {
            bool touched = touches(other, p->copies[i].to);
            for (uint32_t k = 0; k < b->more_count[ticket % ATTENTION_STEPS_IN_FLIGHT]; k++)
                touched |= touches(&b->more[ticket % ATTENTION_STEPS_IN_FLIGHT][k], p->copies[i].to);
            if (p->copies[i].kind != COPY_SWAP_OUT && touched)
                sim_fail("block %u was handed out while step %llu, which touches it, is in flight",
                         p->copies[i].to, (unsigned long long)ticket);
        }
    }
}

static void note_pending(const struct pending *p)
{
    uint32_t appends = 0, rows = 0;
    for (uint32_t i = 0; i < p->pass_count; i++) {
        appends += p->passes[i].append_count;
        rows += p->passes[i].plan ? p->passes[i].plan->query_count : 0;
    }
    sim_note("  step %llu: %u copies, %u compares, %u reads, %u merges, %u passes, %u appends, %u rows",
             (unsigned long long)p->ticket, p->copy_count, p->compare_count, p->read_count, p->merge_count,
             p->pass_count, appends, rows);
    for (uint32_t i = 0; i < p->copy_count; i++)
        sim_note("    copy kind %d from %u to %u, %u slots", (int)p->copies[i].kind, p->copies[i].from,
                 p->copies[i].to, p->copies[i].slots);
}

/* Layers of a workload's rounds follow each other: one that comes again was cut. */
static void count_slices(struct symbolic_backend *b, const struct pending *p)
{
    for (uint32_t i = 0; i < p->pass_count; i++) {
        const struct attention_pass *pass = &p->passes[i];
        bool generated = pass->plan ? !pass->rows : !pass->appends[0].k;
        sim.seen.segments += pass->plan && pass->plan->slice;
        sim.seen.cut_layers += generated && b->layer == pass->layer + 1 && b->o.geometry->layers > 1;
        b->layer = generated ? pass->layer + 1 : b->layer;
    }
}

/* What the work tiles and passes of a step take. */
static double busy_us(const struct symbolic_backend *b, const struct pending *p)
{
    double us = 0;
    for (uint32_t i = 0; i < p->pass_count; i++) {
        const struct plan *plan = p->passes[i].plan;
        for (uint32_t k = 0; plan && k < plan->work_tile_count; k++)
            us += us_of(b, &p->passes[i], &plan->work_tiles[k]) * plan->work_tiles[k].queries;
    }
    return us;
}

static void symbolic_submit(struct attention *attention, const struct attention_step *step, uint64_t ticket)
{
    struct symbolic_backend *b = (struct symbolic_backend *)attention;
    unsigned slot = ticket % ATTENTION_STEPS_IN_FLIGHT;
    struct pending *whole = &b->pending[slot], *p = whole;
    if (step->continues) {
        if (ticket != whole->ticket || ticket <= b->done || b->more_count[slot] == MORE_MOST)
            sim_fail("step %llu is continued, and may not be", (unsigned long long)ticket);
        p = &b->more[slot][b->more_count[slot]++];
        sim.seen.continued++;
    } else {
        b->more_count[slot] = 0;
    }
    b->streamed = step->streamed;
    sim.seen.streamed += step->streamed;
    if (ticket - b->done > ATTENTION_STEPS_IN_FLIGHT)
        sim_fail("more than %d steps are in flight", ATTENTION_STEPS_IN_FLIGHT);
    p->used = 0;
    p->ticket = ticket;
    p->constants = symbolic_backend_constants();
    p->swaps_last = sim_chance(&b->random, 2);
    p->copy_count = step->copy_count;
    p->copies = keep(p, step->copies, step->copy_count, sizeof *p->copies);
    keep_tables(b, p, step);
    for (uint32_t i = 0; i < p->use_count; i++)
        b->use_of[p->uses[i].row] = i;
    keep_operations(p, step);
    keep_passes(b, p, step);
    note_pending(p);
    count_slices(b, p);
    check_fences(b, p);
    p->busy_s = b->conduct.latency_s * (0.25 + sim_below(&b->random, 1000) * 0.0015);
    if (b->conduct.key_us > 0) {
        double us = busy_us(b, p);
        p->overhead = us > 0 ? (us + STEP_US) / us : 1;
        p->busy_s = (us + STEP_US) * (0.5 + sim_below(&b->random, 1000) * 0.001) * 1e-6;
    }
    if (ticket == b->conduct.hang_at && !b->streamed &&
        p == whole) { /* a client's stream may take its time */
        p->busy_s = b->conduct.hang_s;
        sim.seen.hangs++;
    }
    b->free_s = (b->free_s > sim.now_s ? b->free_s : sim.now_s) + p->busy_s;
    /* the scheduler awaits steps of operations alone, and virtual time stands still meanwhile */
    bool marks = p->copy_count && p->copies[0].kind == COPY_POISON && !sim.engine; /* at the start */
    bool awaited = (marks || ((p->compare_count || p->read_count || p->merge_count) && !p->copy_count)) &&
                   !p->pass_count;
    whole->done_s = b->conduct.at_once || (awaited && p == whole) ? sim.now_s : b->free_s;
    sim.seen.steps += p == whole;
}

static bool symbolic_may_continue(struct attention *attention)
{
    struct symbolic_backend *b = (struct symbolic_backend *)attention;
    uint64_t ticket = b->base.submitted;
    return b->streamed && ticket > b->done &&
           b->more_count[ticket % ATTENTION_STEPS_IN_FLIGHT] < sim_mix(ticket) % (MORE_MOST + 1);
}

static bool symbolic_poll(struct attention *attention, uint64_t ticket)
{
    struct symbolic_backend *b = (struct symbolic_backend *)attention;
    const struct pending *p = &b->pending[ticket % ATTENTION_STEPS_IN_FLIGHT];
    if (ticket <= b->done)
        return true;
    if (p->done_s > sim.now_s && !b->base.failure[0])
        return false;
    if (b->conduct.fail_at && ticket >= b->conduct.fail_at && !b->base.failure[0]) {
        strcpy(b->base.failure, "the device was lost on purpose");
        sim.seen.device_failures++;
        sim.seen.faults++;
    }
    if (!b->base.failure[0])
        run_step(b, p);
    for (uint32_t k = 0; !b->base.failure[0] && k < b->more_count[ticket % ATTENTION_STEPS_IN_FLIGHT]; k++)
        run_step(b, &b->more[ticket % ATTENTION_STEPS_IN_FLIGHT][k]);
    b->done = ticket;
    return true;
}

void symbolic_backend_given_up(void)
{
    if (current->conduct.fail_given_up && !current->conduct.fail_at)
        current->conduct.fail_at = current->done + 1;
}

double symbolic_backend_done_s(void)
{
    const struct symbolic_backend *b = current;
    return b->done == b->base.submitted ? -1 : b->pending[(b->done + 1) % ATTENTION_STEPS_IN_FLIGHT].done_s;
}

bool symbolic_backend_is_unwritten(uint32_t block, uint32_t first)
{
    bool is = true;
    for (uint32_t layer = 0; layer < current->o.geometry->layers; layer++) {
        for (uint32_t i = first; i < current->o.geometry->block_size; i++)
            is &= slots_of(current, false, layer, block)[i] == UNWRITTEN;
    }
    return is;
}

uint64_t symbolic_backend_tag(uint32_t layer, uint32_t block, uint32_t slot)
{
    return slots_of(current, false, layer, block)[slot];
}

static struct attention_times symbolic_times(struct attention *attention, uint64_t ticket)
{
    const struct symbolic_backend *b = (struct symbolic_backend *)attention;
    return (struct attention_times){b->pending[ticket % ATTENTION_STEPS_IN_FLIGHT].busy_s, 0};
}

/* ---- the rest of a backend ----------------------------------------------------------------------- */

static enum attention_verdict symbolic_self_test(struct attention *attention)
{
    struct symbolic_backend *b = (struct symbolic_backend *)attention;
    b->test_begun = !b->test_begun;
    b->tests += !b->test_begun;
    return b->test_begun        ? ATTENTION_TEST_RUNS
           : b->conduct.differs ? ATTENTION_TEST_FAILED
                                : ATTENTION_TEST_PASSED;
}

uint64_t symbolic_backend_tests(void)
{
    return current->tests;
}

/* Some parts, and nothing that could be measured. */
static bool symbolic_roof_part(struct attention *attention, bool begins, struct attention_roof *roof)
{
    struct symbolic_backend *b = (struct symbolic_backend *)attention;
    (void)roof;
    b->roof_parts = begins ? 1 : b->roof_parts + 1;
    if (b->roof_parts < ROOF_PARTS)
        return false;
    b->roofs++;
    return true;
}

uint64_t symbolic_backend_roofs(void)
{
    return current->roofs;
}

static void symbolic_close(struct attention *attention)
{
    struct symbolic_backend *b = (struct symbolic_backend *)attention;
    for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT; i++) {
        free(b->pending[i].room);
        for (int k = 0; k < MORE_MOST; k++)
            free(b->more[i][k].room);
    }
    free(b->refused);
    free(b->pool);
    free(b->host);
    free(b->tables);
    free(b->known);
    free(b->use_of);
    free(b->partials);
    free(b->partial_keys);
    free(b);
}

static void *symbolic_host_memory(struct attention *attention, size_t bytes)
{
    struct symbolic_backend *b = (struct symbolic_backend *)attention;
    int place = 0;
    while (b->regions[place].memory)
        place++;
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == REGIONS_MOST || memory == MAP_FAILED)
        abort();
    b->regions[place] = (struct host_region){memory, bytes};
    return memory;
}

static void symbolic_free_host_memory(struct attention *attention, void *memory, size_t bytes)
{
    struct symbolic_backend *b = (struct symbolic_backend *)attention;
    for (int i = 0; i < REGIONS_MOST; i++) {
        if (b->regions[i].memory == memory)
            b->regions[i] = (struct host_region){0};
    }
    munmap(memory, bytes);
}

static const struct attention_ops ops = {
    .host_memory = symbolic_host_memory,
    .free_host_memory = symbolic_free_host_memory,
    .may_continue = symbolic_may_continue,
    .close = symbolic_close,
    .submit = symbolic_submit,
    .poll = symbolic_poll,
    .times = symbolic_times,
    .self_test = symbolic_self_test,
    .roof_part = symbolic_roof_part,
};

static void *make(size_t n, size_t size, int byte)
{
    void *memory = malloc((n + 1) * size);
    return memory ? memset(memory, byte, (n + 1) * size) : NULL;
}

/* What a GPU might have. It is not looked at here, but plan_fault() sees what the planner makes of it. */
static struct tile_caps tile_caps(uint64_t seed)
{
    return (struct tile_caps){
        .widths = {{8, 0, 4}, {16, 0, 2}, {64, RUN_CHUNKS, 1}, {128, SEGMENT_CHUNKS, 1}},
        .width_count = seed / 16 % 5,
        .splits_max = seed / 128 % 2 ? PLAN_SPLITS_MAX : 0,
        .cluster_max = 1 + (uint32_t)(seed / 256 % 2),
        .processors = 1 + (uint32_t)(seed / 512 % 50)};
}

int symbolic_backend_open(const struct attention_options *options, struct attention **attention,
                          char error[ATTENTION_ERROR_BYTES])
{
    struct symbolic_backend *b = make(1, sizeof *b, 0);
    const struct geometry *g = options->geometry;
    size_t slots = (size_t)g->layers * g->block_size, block_bytes = g->block_size * sizeof *b->host;
    strcpy(error, "no memory for the symbolic backend");
    if (!b)
        return ATTND_NO_MEMORY;
    b->o = *options;
    b->conduct = symbolic_backend_conduct;
    b->random = b->conduct.seed;
    b->appended = UINT64_MAX;
    b->pool = make(slots * options->blocks, sizeof *b->pool, sim.config.poison ? 0xfe : 0xff);
    b->host = make(slots * options->host_blocks, sizeof *b->host, 0xff);
    b->tables = make((size_t)options->table_rows * options->table_stride, sizeof *b->tables, 0xff);
    b->known = make(options->table_rows, sizeof *b->known, 0);
    b->use_of = make(options->table_rows, sizeof *b->use_of, 0xff);
    b->refused = make(options->table_rows, sizeof *b->refused, 0);
    b->partials = make(options->partials_max, sizeof *b->partials, 0);
    b->partial_keys = make(options->partials_max, sizeof *b->partial_keys, 0);
    bool made = b->pool && b->host && b->refused && b->tables && b->known && b->use_of && b->partials &&
                b->partial_keys;
    for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT; i++) {
        b->pending[i].room = malloc(ROOM_BYTES); /* touched as far as it is used */
        made &= b->pending[i].room != NULL;
        for (int k = 0; k < MORE_MOST; k++) {
            b->more[i][k].room = malloc(ROOM_BYTES);
            made &= b->more[i][k].room != NULL;
        }
    }
    if (!made) {
        symbolic_close(&b->base);
        return ATTND_NO_MEMORY;
    }
    b->base.ops = &ops;
    b->base.info = (struct attention_info){.name = "symbolic",
                                           .isa = "none",
                                           .kernel = "symbolic",
                                           .threads = 1,
                                           .tasks = 1 + (uint32_t)(b->conduct.seed % 16),
                                           .bit_stable = true,
                                           .tile_caps = tile_caps(b->conduct.seed),
                                           .host = {.bytes = (uint8_t *)b->host,
                                                    .layers = g->layers,
                                                    .layer_stride = options->host_blocks * block_bytes,
                                                    .block_stride = block_bytes,
                                                    .layer_bytes = block_bytes}};
    current = b;
    *attention = &b->base;
    return 0;
}
