/* SPDX-License-Identifier: Apache-2.0 */
/* token_model.h - what every sequence must hold, as plain lists of tags: the simulator's truth.
 *
 * It knows nothing of blocks, steps or swapping. A token has a base, and at each layer a tag that follows
 * from it. The base of a token whose id the engine knows is a hash of all ids up to it, since whoever
 * names the same ids must be given the same content; any other base is unique. */
#ifndef TESTS_SIMULATION_TOKEN_MODEL_H
#define TESTS_SIMULATION_TOKEN_MODEL_H

#include "tests/simulation/simulation.h"

enum { MODEL_SEQUENCES = 80, MODEL_LEASE_BLOCKS = 64 };

struct op;

struct model_layer {
    uint32_t cursor;
    uint64_t tag[SIM_TOKENS_MOST];
    uint64_t sum[SIM_TOKENS_MOST + 1]; /* of the terms of the tags before */
};

/* A sequence or a lease. One that was deleted stays until all requests on it are judged. */
struct model_sequence {
    bool used, live, lease;
    bool ended;  /* by a batch, and with it what waited behind that */
    bool voided; /* by a wrong v, and nobody was told yet */
    bool reaped; /* by the engine, at reaped_s; it lives until so many that were queued are judged: */
    double reaped_s;
    uint32_t reaped_behind;
    double used_low_s, used_high_s; /* when it was used last, at the earliest and at the latest */
    uint64_t id;
    struct sequence_options options;
    uint32_t salt;
    uint32_t prompt; /* positions that the prompt names */
    uint32_t known;  /* leading tokens whose ids the engine was told, perhaps */
    uint32_t token[SIM_TOKENS_MOST];
    uint64_t base[SIM_TOKENS_MOST];
    struct model_layer layer[SIM_LAYERS_MOST];

    /* As it will be if all requests under way succeed. */
    uint32_t planned[SIM_LAYERS_MOST], planned_high;
    uint64_t planned_base[SIM_TOKENS_MOST];

    uint32_t blocks; /* of a lease; their slots are its tokens */
    uint32_t block[MODEL_LEASE_BLOCKS];

    struct op *queue[SIM_REQUESTS_MOST]; /* requests on it that are not judged, in the order of submission */
    uint32_t queued;
};

struct token_model {
    struct model_sequence sequences[MODEL_SEQUENCES];
    uint64_t unborn[MODEL_SEQUENCES]; /* [unborn_count] reaped before the request that made them was judged */
    uint32_t unborn_count;
    uint64_t unique;
};

extern struct token_model model;

/* model_begin: there are no sequences. */
void model_begin(void);

/* model_note_unborn: an id that the model does not know yet was reaped: it will not live. */
void model_note_unborn(uint64_t id);

/* model_add: a new sequence that is live; NULL: no room. model_find: the live one of an id. */
struct model_sequence *model_add(uint64_t id, bool lease);
struct model_sequence *model_find(uint64_t id);

uint32_t model_length(const struct model_sequence *s);
uint32_t model_longest(const struct model_sequence *s);

/* A base that nobody else has; the base of a token by all ids up to it; the tag of a base at a layer. */
uint64_t model_unique_base(void);
uint64_t model_named_base(const struct model_sequence *s, uint32_t at);
uint64_t model_tag(uint64_t base, uint32_t layer);

/* model_put: token `at` <= cursor at a layer. */
void model_put(struct model_sequence *s, uint32_t layer, uint32_t at, uint64_t tag);

/* The sum of the terms that a row with `keys` sees at a layer. */
uint64_t model_seen(const struct model_sequence *s, uint32_t layer, uint32_t keys);

void model_truncate(struct model_sequence *s, uint32_t length);
void model_fork(struct model_sequence *child, const struct model_sequence *parent, uint32_t length);

/* What is planned is what stands: no request is under way. */
void model_settle(struct model_sequence *s);

#endif
