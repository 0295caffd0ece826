/* SPDX-License-Identifier: Apache-2.0 */
/* move.h - bring sequences from one daemon to another.
 *
 *     from   GET  /v1/sequences/7                     how long it is
 *     to     POST /v1/sequences                       9, empty
 *     from   GET  /v1/sequences/7/kv?range=...   ->   to   PUT /v1/sequences/9/kv?range=...     range after range
 *     from   POST /v1/sequences/7/moved               refused if it has grown meanwhile: then the rest follows
 *
 * The daemons do not talk to each other. Whatever fails, the sequence stays where it was, and what was made of it
 * elsewhere is deleted. */
#ifndef CLIENTS_MOVE_H
#define CLIENTS_MOVE_H

#include "clients/http_client.h"

struct move_options {
    struct http_client *from, *to;
    const char *url;  /* of the daemon that they go to, as its clients know it; "": the same one as before */
    const char *salt; /* NULL: none */
    char **ids;       /* [count] */
    size_t count;     /* 0: all sequences, but for those that a workload drives */
    bool json;        /* a line of JSON for each on stdout, else one of text */
};

enum move_result {
    MOVE_DONE,       /* all of them */
    MOVE_FAILED,     /* some stay; stderr says which and why */
    MOVE_UNAVAILABLE /* a daemon does not answer */
};

enum move_result move_run(const struct move_options *options);

#endif
