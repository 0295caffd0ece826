/* SPDX-License-Identifier: Apache-2.0 */
/* replay_world.h - what the clients of a journal had, as far as the journal says: sequences and what stands in them, leases, workloads.
 *
 * Tensors are not in a journal, only a digest of those of each call. So numbers are made up, by these rules:
 *
 *   a row of K and V    follows from the ids of the tokens up to it, where the journal has them (hashed ids do: equal ones stay equal), as it
 *                       does in a model; else from the digest of the call that appended it, and its place there
 *   one that stands     is the same again when it is sent again, but if the recorded answer says that it was another one
 *   q                   follows from the call's digest
 *
 * so calls that were equal are equal, prompts that began alike do, and retries are found to be retries. */
#ifndef CLIENTS_REPLAY_WORLD_H
#define CLIENTS_REPLAY_WORLD_H

#include "clients/id_map.h"
#include "clients/tensors.h"

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPLAY_TARGETS = 2 };

/* A sequence or a lease. */
struct replay_thing {
    uint64_t id;
    bool lease;
    bool astray;   /* it is known to be another one here than it was recorded */
    bool cached;   /* it, or what it was forked from, has begun with rows of the prompt cache, */
    bool doubtful; /* which may be of one call or of another */
    /* of a sequence */
    uint32_t *cursors;  /* [layers] tokens at each */
    uint64_t *contents; /* [room] of each position: what its row follows from; 0: nothing stood there */
    uint64_t *chain;    /* [known] of each position: a hash of the tokens up to it */
    uint32_t room, known;
    uint64_t salt;
    /* of a lease */
    uint32_t *blocks, count;        /* as recorded, */
    uint32_t *here[REPLAY_TARGETS]; /* [count] and where that is now; NULL: not known */
};

struct replay_world {
    struct model model;      /* of the daemon */
    double workload_s;       /* its limits.workload_s that was recorded */
    struct id_map things;    /* struct replay_thing */
    struct id_map workloads; /* by recorded id: uint64_t [REPLAY_TARGETS], ids now */
    uint32_t astray;         /* things that are */
    /* by a hash of tokens: uint64_t, what a row that they name follows from, where that is something else */
    struct id_map odd;
};

void replay_world_free(struct replay_world *world);

/* replay_world_hash: of two numbers; never 0. */
uint64_t replay_world_hash(uint64_t a, uint64_t b);

/* replay_world_position: where the first row of a sequence of a recorded call goes, one of its "sequences"; `all_layers`: the call names no layer.
 * `thing`: NULL if it is not known. */
uint32_t replay_world_position(const struct replay_world *world, const struct replay_thing *thing,
                               const cJSON *named, uint32_t layer, bool all_layers);

/* replay_world_content: what row `row` of a call follows from, which goes to `position`; `again`: it was another one than what stands there. */
uint64_t replay_world_content(const struct replay_thing *thing, uint32_t layer, uint32_t position,
                              uint64_t digest, uint32_t row, bool again);

/* replay_world_name_rows: what an append says of its tokens. */
void replay_world_name_rows(struct replay_world *world, const cJSON *request, uint32_t layer,
                            bool all_layers);

/* replay_world_note: the request was answered like that when it was recorded: what the clients have now. After the calls for it are made. */
void replay_world_note(struct replay_world *world, const cJSON *request, const cJSON *answer);

/* replay_world_learn: what the daemon `target` has answered (2xx): ids and blocks here. */
void replay_world_learn(struct replay_world *world, const cJSON *request, const cJSON *answer,
                        const cJSON *here, unsigned target);

/* replay_world_stray: from now on what the request names is another one here than recorded. replay_world_is_astray: whether something
 * that it names is, or follows from what is. */
void replay_world_stray(struct replay_world *world, const cJSON *request, const cJSON *answer);
bool replay_world_is_astray(const struct replay_world *world, const cJSON *request);

/* replay_world_is_doubtful: whether something that it names has rows of the prompt cache that the journal does not tell apart: two calls
 * had written other numbers for the same tokens; or has any of the cache, once what is in it may be other than it was (`strayed`). */
bool replay_world_is_doubtful(const struct replay_world *world, const cJSON *request, bool strayed);

#endif
