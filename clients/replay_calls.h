/* SPDX-License-Identifier: Apache-2.0 */
/* replay_calls.h - what is sent to a daemon for a recorded request. */
#ifndef CLIENTS_REPLAY_CALLS_H
#define CLIENTS_REPLAY_CALLS_H

#include "clients/replay_world.h"

enum { REPLAY_PATH_BYTES = 512 };

/* A request as it is sent. */
struct replay_call {
    const char *method;
    char path[REPLAY_PATH_BYTES];
    const char *type, *accept; /* NULL: JSON */
    char *body;                /* NULL: none; to be freed */
    size_t bytes;
};

/* replay_call_of: what to send to daemon `target` for a recorded request, whose recorded answer is `answer`. NULL and *call; or why that
 * cannot be: a constant, by which they are counted. */
const char *replay_call_of(struct replay_world *world, const cJSON *request, const cJSON *answer,
                           unsigned target, struct replay_call *call);

#endif
