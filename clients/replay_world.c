/* SPDX-License-Identifier: Apache-2.0 */
/* replay_world.c - see replay_world.h. */
#include "clients/replay_world.h"
#include "clients/memory.h"
#include "clients/replay_record.h"

#include <stdlib.h>
#include <string.h>

/* ---- hashes ---------------------------------------------------------------------------------------- */

/* SplitMix64's finalizer. */
uint64_t replay_world_hash(uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b + UINT64_C(0x632be59bd9b4e019);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x ? x : 1;
}

/* ---- things ---------------------------------------------------------------------------------------- */

static void free_thing(struct replay_thing *t)
{
    free(t->cursors);
    free(t->contents);
    free(t->chain);
    free(t->blocks);
    for (unsigned i = 0; i < REPLAY_TARGETS; i++)
        free(t->here[i]);
    free(t);
}

static void remove_thing(struct replay_world *w, uint64_t id)
{
    struct replay_thing *t = id_map_take(&w->things, id);
    if (!t)
        return;
    w->astray -= t->astray;
    free_thing(t);
}

static struct replay_thing *add_thing(struct replay_world *w, uint64_t id, bool lease)
{
    remove_thing(w, id);
    struct replay_thing *t = memory_must(calloc(1, sizeof *t));
    t->id = id;
    t->lease = lease;
    t->cursors = memory_must(calloc(w->model.layers, sizeof *t->cursors));
    id_map_put(&w->things, id, t);
    return t;
}

static void mark_astray(struct replay_world *w, uint64_t id)
{
    struct replay_thing *t = id_map_get(&w->things, id);
    if (!t || t->astray)
        return;
    t->astray = true;
    w->astray++;
}

void replay_world_free(struct replay_world *w)
{
    size_t at = 0;
    for (void *t; (t = id_map_next(&w->things, &at));)
        free_thing(t);
    at = 0;
    for (void *ids; (ids = id_map_next(&w->workloads, &at));)
        free(ids);
    id_map_free(&w->things);
    at = 0;
    for (void *content; (content = id_map_next(&w->odd, &at));)
        free(content);
    id_map_free(&w->workloads);
    id_map_free(&w->odd);
}

/* Positions up to `end` have a place in contents. */
static void make_room(struct replay_thing *t, uint32_t end)
{
    if (end <= t->room)
        return;
    uint32_t room = 2 * end;
    t->contents = memory_must(realloc(t->contents, room * sizeof *t->contents));
    memset(t->contents + t->room, 0, (room - t->room) * sizeof *t->contents);
    t->room = room;
}

/* The tokens at positions `known` and on are `ids`, without the first `skip` and up to `end` of them. */
static void name_tokens(struct replay_thing *t, const cJSON *ids, uint32_t skip, uint32_t end)
{
    const cJSON *id;
    uint32_t at = 0;
    if (end <= skip)
        return;
    t->chain = memory_must(realloc(t->chain, (t->known + end - skip) * sizeof *t->chain));
    cJSON_ArrayForEach (id, ids) {
        if (at >= skip && at < end) {
            t->chain[t->known] = replay_world_hash(
                t->known ? t->chain[t->known - 1] : replay_world_hash(t->salt, 1), (uint64_t)id->valuedouble);
            t->known++;
        }
        at++;
    }
}

/* All layers have `length` tokens, which were found in the cache: rows that follow from the tokens, or from what an odd call wrote. */
static void set_length(struct replay_world *w, struct replay_thing *t, uint32_t length)
{
    make_room(t, length);
    t->cached = length > 0;
    for (uint32_t i = 0; i < length; i++) {
        const uint64_t *odd = i < t->known ? id_map_get(&w->odd, t->chain[i]) : NULL;
        t->doubtful |= odd != NULL;
        t->contents[i] = odd ? *odd : i < t->known ? t->chain[i] : replay_world_hash(i, 2);
    }
    for (uint32_t i = 0; i < w->model.layers; i++)
        t->cursors[i] = length;
}

static uint32_t length_of(const struct replay_world *w, const struct replay_thing *t)
{
    uint32_t least = t->cursors[0];
    for (uint32_t i = 1; i < w->model.layers; i++)
        least = t->cursors[i] < least ? t->cursors[i] : least;
    return least;
}

/* What a row at a position follows from; `again`: another one than what stands there. */
uint64_t replay_world_content(const struct replay_thing *t, uint32_t layer, uint32_t position,
                              uint64_t digest, uint32_t row, bool again)
{
    bool stands = t && position < t->cursors[layer];
    if (stands && again)
        return replay_world_hash(replay_world_hash(digest, row), 3);
    if (t && position < t->room && t->contents[position])
        return t->contents[position];
    return t && position < t->known ? t->chain[position] : replay_world_hash(digest, row);
}

/* Where a sequence's first row goes. */
uint32_t replay_world_position(const struct replay_world *w, const struct replay_thing *t, const cJSON *named,
                               uint32_t layer, bool all_layers)
{
    const cJSON *position = record_member(named, "position");
    if (cJSON_IsNumber(position))
        return (uint32_t)position->valuedouble;
    return !t ? 0 : all_layers ? length_of(w, t) : t->cursors[layer];
}

/* Note rows of a sequence that its tokens name and that follow from something else: they stood before they were named. The prompt cache may
 * have them from now on. */
static void note_odd(struct replay_world *w, const struct replay_thing *t, uint32_t from, uint32_t end)
{
    for (uint32_t i = from; i < end && i < t->known && i < t->room; i++) {
        uint64_t *odd = id_map_get(&w->odd, t->chain[i]);
        if (!t->contents[i] || t->contents[i] == t->chain[i])
            continue;
        if (!odd) {
            odd = memory_must(calloc(1, sizeof *odd));
            id_map_put(&w->odd, t->chain[i], odd);
        }
        *odd = t->contents[i];
    }
}

/* What an append says of its tokens: those that continue what is known of their sequence. */
void replay_world_name_rows(struct replay_world *w, const cJSON *request, uint32_t layer, bool all_layers)
{
    const cJSON *tokens = record_member(request, "token_ids"), *named;
    uint32_t row = 0, count = (uint32_t)cJSON_GetArraySize(tokens);
    cJSON_ArrayForEach (named, record_member(request, "sequences")) {
        struct replay_thing *t = id_map_get(&w->things, record_integer(named, "id"));
        uint32_t n = (uint32_t)record_integer(named, "rows"),
                 position = replay_world_position(w, t, named, layer, all_layers);
        if (t && !t->lease && position <= t->known && row + n <= count)
            name_tokens(t, tokens, row + (t->known - position), row + n);
        row += n;
    }
}

/* ---- what follows ---------------------------------------------------------------------------------- */

static void note_create(struct replay_world *w, const cJSON *of, uint64_t id, uint32_t length)
{
    if (!id)
        return;
    struct replay_thing *t = add_thing(w, id, false);
    t->salt = record_hex(of, "salt");
    name_tokens(t, record_member(of, "tokens"), 0, (uint32_t)cJSON_GetArraySize(record_member(of, "tokens")));
    set_length(w, t, length);
}

/* One that the daemon had from its start, and that is not here. */
static void note_restored(struct replay_world *w, const cJSON *request, uint64_t id)
{
    note_create(w, request, id, (uint32_t)record_integer(request, "length"));
    mark_astray(w, id);
}

static void note_children(struct replay_world *w, uint64_t parent, const cJSON *of, const cJSON *children)
{
    const cJSON *child;
    bool cut = cJSON_IsNumber(record_member(of, "length"));
    uint32_t cut_at = (uint32_t)record_integer(of, "length");
    cJSON_ArrayForEach (child, children) {
        uint64_t id = cJSON_IsNumber(child) ? (uint64_t)child->valuedouble : record_integer(child, "id");
        struct replay_thing *t = add_thing(w, id, false), *from = id_map_get(&w->things, parent);
        if (!from)
            continue;
        for (uint32_t i = 0; i < w->model.layers; i++)
            t->cursors[i] = cut && cut_at < from->cursors[i] ? cut_at : from->cursors[i];
        make_room(t, from->room);
        if (from->room)
            memcpy(t->contents, from->contents, from->room * sizeof *t->contents);
        for (uint32_t i = cut ? cut_at : t->room; i < t->room; i++)
            t->contents[i] = 0;
        t->salt = from->salt;
        t->known = cut && cut_at < from->known ? cut_at : from->known;
        if (t->known > length_of(w, t))
            t->known = length_of(w, t);
        t->chain = memory_must(calloc(t->known + 1, sizeof *t->chain));
        if (t->known)
            memcpy(t->chain, from->chain, t->known * sizeof *t->chain);
        t->cached = from->cached;
        t->doubtful = from->doubtful;
        if (from->astray)
            mark_astray(w, id);
    }
}

static void note_truncate(struct replay_world *w, uint64_t id, uint32_t length)
{
    struct replay_thing *t = id_map_get(&w->things, id);
    uint32_t most = 0;
    for (uint32_t i = 0; t && i < w->model.layers; i++)
        most = t->cursors[i] > most ? t->cursors[i] : most;
    if (!t || length >= most) /* nothing is cut: what stands behind the end is named as before */
        return;
    for (uint32_t i = 0; i < w->model.layers; i++)
        t->cursors[i] = t->cursors[i] < length ? t->cursors[i] : length;
    for (uint32_t i = length; i < t->room; i++)
        t->contents[i] = 0;
    t->known = t->known < length ? t->known : length;
}

static void note_rows(struct replay_world *w, const cJSON *request)
{
    const cJSON *named;
    uint32_t layer = (uint32_t)record_integer(request, "layer"), row = 0;
    bool all = !cJSON_IsNumber(record_member(request, "layer")),
         keys = cJSON_IsTrue(record_member(request, "k"));
    uint64_t digest = record_hex(request, "digest");
    if (!keys || layer >= w->model.layers)
        return;
    cJSON_ArrayForEach (named, record_member(request, "sequences")) {
        struct replay_thing *t = id_map_get(&w->things, record_integer(named, "id"));
        uint32_t n = (uint32_t)record_integer(named, "rows"),
                 position = replay_world_position(w, t, named, layer, all);
        if (t && !t->lease) {
            make_room(t, position + n);
            for (uint32_t i = 0; i < n; i++)
                t->contents[position + i] =
                    replay_world_content(t, layer, position + i, digest, row + i, false);
            for (uint32_t i = 0; i < w->model.layers; i++) {
                if ((all || i == layer) && t->cursors[i] < position + n)
                    t->cursors[i] = position + n;
            }
            note_odd(w, t, position, position + n);
        }
        row += n;
    }
}

static void note_batch(struct replay_world *w, const cJSON *request, const cJSON *answer)
{
    const cJSON *op,
        *result = record_member(answer, "results") ? record_member(answer, "results")->child : NULL;
    cJSON_ArrayForEach (op, record_member(request, "ops")) {
        uint64_t id = record_integer(op, "id");
        const cJSON *made = record_member(result, "sequences"), *first = cJSON_GetArrayItem(made, 0);
        if (record_is(op, "op", "create"))
            note_create(w, op, record_integer(first, "id"), (uint32_t)record_integer(first, "length"));
        else if (record_is(op, "op", "fork"))
            note_children(w, id, op, made);
        else if (record_is(op, "op", "truncate"))
            note_truncate(w, id, (uint32_t)record_integer(op, "length"));
        else
            remove_thing(w, id);
        result = result ? result->next : NULL;
    }
}

static void note_lease(struct replay_world *w, const cJSON *answer)
{
    const cJSON *blocks = record_member(answer, "block_ids"), *block;
    struct replay_thing *t =
        add_thing(w, record_integer(cJSON_GetArrayItem(record_member(answer, "sequences"), 0), "id"), true);
    t->blocks = memory_must(calloc((size_t)cJSON_GetArraySize(blocks) + 1, sizeof *t->blocks));
    cJSON_ArrayForEach (block, blocks)
        t->blocks[t->count++] = (uint32_t)block->valuedouble;
}

void replay_world_note(struct replay_world *w, const cJSON *request, const cJSON *answer)
{
    uint64_t id = record_integer(request, "id");
    const cJSON *sequences = record_member(answer, "sequences"), *first = cJSON_GetArrayItem(sequences, 0);
    if (!record_was_done(answer))
        return;
    if (record_is(request, "what", "create"))
        note_create(w, request, record_integer(first, "id"), (uint32_t)record_integer(first, "length"));
    else if (record_is(request, "what", "restore"))
        note_restored(w, request, id);
    else if (record_is(request, "what", "fork"))
        note_children(w, id, request, sequences);
    else if (record_is(request, "what", "truncate"))
        note_truncate(w, id, (uint32_t)record_integer(request, "length"));
    else if (record_is(request, "what", "append") || record_is(request, "what", "attend"))
        note_rows(w, request);
    else if (record_is(request, "what", "batch"))
        note_batch(w, request, answer);
    else if (record_is(request, "what", "lease"))
        note_lease(w, answer);
    else if (record_is(request, "what", "delete") || record_is(request, "what", "moved"))
        remove_thing(w, id);
}

void replay_world_learn(struct replay_world *w, const cJSON *request, const cJSON *answer, const cJSON *here,
                        unsigned target)
{
    if (!record_was_done(answer))
        return;
    if (record_is(request, "what", "lease")) {
        struct replay_thing *t = id_map_get(
            &w->things, record_integer(cJSON_GetArrayItem(record_member(answer, "sequences"), 0), "id"));
        const cJSON *blocks = record_member(here, "blocks"), *block;
        uint32_t n = 0;
        if (!t || (uint32_t)cJSON_GetArraySize(blocks) != t->count)
            return;
        free(t->here[target]);
        t->here[target] = memory_must(calloc(t->count + 1, sizeof *t->blocks));
        cJSON_ArrayForEach (block, blocks)
            t->here[target][n++] = (uint32_t)block->valuedouble;
    } else if (record_is(request, "what", "workload_start")) {
        uint64_t *ids = id_map_get(&w->workloads, record_integer(answer, "workload"));
        if (!ids) {
            ids = memory_must(calloc(REPLAY_TARGETS, sizeof *ids));
            id_map_put(&w->workloads, record_integer(answer, "workload"), ids);
        }
        ids[target] = record_integer(here, "id");
    }
}

/* Call `each` for every id that a request names or, being answered, makes. */
static void each_id(const cJSON *request, const cJSON *answer, void (*each)(uint64_t id, void *cookie),
                    void *cookie)
{
    const cJSON *item, *child;
    each(record_integer(request, "id"), cookie);
    cJSON_ArrayForEach (item, record_member(request, "sequences"))
        each(record_integer(item, "id"), cookie);
    cJSON_ArrayForEach (item, record_member(answer, "sequences"))
        each(record_integer(item, "id"), cookie);
    cJSON_ArrayForEach (item, record_member(answer, "results"))
        cJSON_ArrayForEach (child, record_member(item, "sequences"))
            each(record_integer(child, "id"), cookie);
    cJSON_ArrayForEach (item, record_member(request, "ids"))
        each((uint64_t)item->valuedouble, cookie);
    cJSON_ArrayForEach (item, record_member(request, "ops")) {
        each(record_integer(item, "id"), cookie);
        cJSON_ArrayForEach (child, record_member(item, "ids"))
            each((uint64_t)child->valuedouble, cookie);
    }
}

static void mark_one(uint64_t id, void *cookie)
{
    mark_astray(cookie, id);
}

void replay_world_stray(struct replay_world *w, const cJSON *request, const cJSON *answer)
{
    each_id(request, answer, mark_one, w);
}

struct search {
    const struct replay_world *world;
    bool found, cached, doubtful;
};

static void look_at_one(uint64_t id, void *cookie)
{
    struct search *s = cookie;
    const struct replay_thing *t = id_map_get(&s->world->things, id);
    s->found |= t && t->astray;
    s->cached |= t && t->cached;
    s->doubtful |= t && t->doubtful;
}

bool replay_world_is_astray(const struct replay_world *w, const cJSON *request)
{
    struct search s = {.world = w};
    each_id(request, NULL, look_at_one, &s);
    return s.found;
}

bool replay_world_is_doubtful(const struct replay_world *w, const cJSON *request, bool strayed)
{
    struct search s = {.world = w};
    each_id(request, NULL, look_at_one, &s);
    return s.doubtful || (s.cached && strayed);
}
