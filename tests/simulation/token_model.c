/* SPDX-License-Identifier: Apache-2.0 */
/* token_model.c - see token_model.h. */
#include "tests/simulation/token_model.h"

#include "kernels/plan.h"
#include "tests/simulation/symbolic_backend.h"

#include <string.h>

struct token_model model;

void model_begin(void)
{
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++)
        model.sequences[i].used = model.sequences[i].live = false;
    model.unique = 0;
    model.unborn_count = 0;
}

void model_note_unborn(uint64_t id)
{
    if (model.unborn_count == MODEL_SEQUENCES)
        sim_fail("more sequences are removed than there are");
    model.unborn[model.unborn_count++] = id;
}

/* Whether an id was reaped before its birth; it may be chosen again later. */
static bool is_unborn(uint64_t id)
{
    for (uint32_t i = 0; i < model.unborn_count; i++) {
        if (model.unborn[i] != id)
            continue;
        model.unborn[i] = model.unborn[--model.unborn_count];
        return true;
    }
    return false;
}

/* One that is free, or that was reaped and that nobody has named since. */
static bool is_vacant(const struct model_sequence *s)
{
    return !s->used || (s->reaped && !s->live && s->queued == 0);
}

struct model_sequence *model_add(uint64_t id, bool lease)
{
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        struct model_sequence *s = &model.sequences[i];
        if (!is_vacant(s))
            continue;
        s->lease = lease;
        s->ended = s->voided = false;
        s->reaped = is_unborn(id);
        s->used = s->live = !s->reaped;
        s->used_low_s = s->used_high_s = sim.now_s;
        s->id = id;
        s->options = (struct sequence_options){0};
        s->salt = s->prompt = s->known = s->blocks = s->queued = s->planned_high = 0;
        for (uint32_t layer = 0; layer < SIM_LAYERS_MOST; layer++) {
            s->layer[layer].cursor = s->planned[layer] = 0;
            s->layer[layer].sum[0] = 0;
        }
        return s;
    }
    return NULL;
}

struct model_sequence *model_find(uint64_t id)
{
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        if (model.sequences[i].used && model.sequences[i].live && model.sequences[i].id == id)
            return &model.sequences[i];
    }
    return NULL;
}

uint32_t model_length(const struct model_sequence *s)
{
    uint32_t length = s->layer[0].cursor;
    for (uint32_t layer = 1; layer < sim.config.geometry.layers; layer++)
        length = s->layer[layer].cursor < length ? s->layer[layer].cursor : length;
    return length;
}

uint32_t model_longest(const struct model_sequence *s)
{
    uint32_t longest = 0;
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++)
        longest = s->layer[layer].cursor > longest ? s->layer[layer].cursor : longest;
    return longest;
}

uint64_t model_unique_base(void)
{
    return sim_mix(sim.seed ^ sim_mix(++model.unique)) | 1;
}

uint64_t model_named_base(const struct model_sequence *s, uint32_t at)
{
    uint64_t before = at ? s->planned_base[at - 1] : sim_mix(s->salt + 77);
    return sim_mix(before ^ sim_mix(s->token[at] + 1)) | 1;
}

uint64_t model_tag(uint64_t base, uint32_t layer)
{
    return sim_mix(base + layer) | 1;
}

void model_put(struct model_sequence *s, uint32_t layer, uint32_t at, uint64_t tag)
{
    struct model_layer *l = &s->layer[layer];
    l->tag[at] = tag;
    l->sum[at + 1] = l->sum[at] + symbolic_term(tag, at);
}

uint64_t model_seen(const struct model_sequence *s, uint32_t layer, uint32_t keys)
{
    uint32_t first = plan_visible(keys, sim.config.geometry.window[layer]).first;
    return keys ? s->layer[layer].sum[keys] - s->layer[layer].sum[first] : 0;
}

void model_truncate(struct model_sequence *s, uint32_t length)
{
    if (length < model_longest(s)) {
        s->prompt = s->prompt < length ? s->prompt : length;
        s->known = s->known < length ? s->known : length;
    }
    for (uint32_t layer = 0; layer < SIM_LAYERS_MOST; layer++)
        s->layer[layer].cursor = s->layer[layer].cursor < length ? s->layer[layer].cursor : length;
}

void model_fork(struct model_sequence *child, const struct model_sequence *parent, uint32_t length)
{
    child->options = parent->options;
    child->salt = parent->salt;
    child->known = parent->known < length ? parent->known : length;
    memcpy(child->token, parent->token, length * sizeof *child->token);
    memcpy(child->base, parent->base, length * sizeof *child->base);
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++) {
        struct model_layer *to = &child->layer[layer];
        const struct model_layer *from = &parent->layer[layer];
        to->cursor = length;
        memcpy(to->tag, from->tag, length * sizeof *to->tag);
        memcpy(to->sum, from->sum, (length + 1) * sizeof *to->sum);
    }
    model_settle(child);
}

void model_settle(struct model_sequence *s)
{
    s->planned_high = model_longest(s);
    memcpy(s->planned_base, s->base, s->planned_high * sizeof *s->base);
    for (uint32_t layer = 0; layer < SIM_LAYERS_MOST; layer++)
        s->planned[layer] = s->layer[layer].cursor;
}
