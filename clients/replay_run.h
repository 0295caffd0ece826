/* SPDX-License-Identifier: Apache-2.0 */
/* replay_run.h - send the requests of a journal to one daemon or two, in their order. */
#ifndef CLIENTS_REPLAY_RUN_H
#define CLIENTS_REPLAY_RUN_H

#include "clients/journal_lines.h"
#include "clients/replay_judge.h"

struct replay_target {
    const char *url, *key;      /* NULL: it needs none */
    struct http_client *client; /* for what is asked beside the journal */
    char backend[64];           /* and instruction set */
};

struct replay_options {
    struct replay_target targets[REPLAY_TARGETS];
    unsigned target_count;
    const char *ca_file; /* see http_client_create() */
    double patience_s;   /* for an answer that was recorded before what comes next */
};

/* replay_run: send what comes behind the first record, and compare, until the end, Ctrl-C, or a daemon does not answer, which is said.
 * Returns whether the daemons were there to the end. */
bool replay_run(const struct replay_options *options, struct journal_lines *lines, struct replay_world *world,
                struct replay_judge *judge);

#endif
