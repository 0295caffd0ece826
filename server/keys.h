/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h - the keys that clients show, from a file, and what each may do and has in use.
 *
 *   {"keys": [{"name": "search", "sha256": "64 hex digits", "scopes": ["infer"], "weight": 1,
 *              "quotas": {"sequences": 100, "blocks": 10000, "calls": 16, "streams": 2, "workloads": 2, "uploads": 1,
 *                         "staging_bytes": 268435456, "requests_per_s": 200}}]}
 *
 * The file has digests, not keys: `attnctl key new` makes a key of 256 random bits, and the entry for it. A key is its name: the digest
 * may be another one from one reading to the next, or a list while clients change from one to the other. A quota
 * that is absent is none. Reading it again keeps the struct of a name that is still there, and marks one that is
 * gone. Loop thread. */
#ifndef SERVER_KEYS_H
#define SERVER_KEYS_H

#include "config/config.h"
#include "config/key_name.h"
#include "scheduler/tenant_calls.h"
#include "scheduler/tenants.h"

#include <stdint.h>
#include <stdio.h>

enum { KEYS_MAX = 1024, KEY_DIGEST_BYTES = 32, KEY_DIGESTS_MAX = 4, KEYS_REASON_BYTES = 256 };

/* 0: no limit. */
struct key_quotas {
    struct tenant_quotas of_engine; /* the engine counts these */
    uint32_t calls, streams, uploads, requests_per_s;
    uint64_t staging_bytes;
};

struct api_key {
    uint64_t id; /* of what belongs to it: from its name, so it is the same after a restart */
    char name[KEY_NAME_BYTES];
    uint8_t digests[KEY_DIGESTS_MAX][KEY_DIGEST_BYTES]; /* [digest_count] each opens */
    unsigned digest_count;
    double used_s[KEY_DIGESTS_MAX]; /* Unix time when each was shown last; 0: not since the start */
    unsigned scopes;                /* enum config_scope; those that one includes, too */
    uint32_t weight;                /* of its part of the time when there is not enough */
    struct key_quotas quotas;
    bool gone;    /* from the file */
    bool changed; /* or new, by the latest reading */
    bool ended;   /* then: what it had under way has been told; the reader's */

    struct tenant_calls use;   /* calls under way, staging memory that these hold */
    uint32_t streams, uploads; /* under way */
};

struct keys;

/* keys_load(path, keys, reason): 0, or ATTND_INVALID with a sentence that begins with the place. */
MUST_USE int keys_load(const char *path, struct keys **keys, char reason[KEYS_REASON_BYTES]);
void keys_destroy(struct keys *keys);

/* keys_reload(keys, reason): read the file again. A file without keys is refused, where there were some: all that belongs to keys would
 * be removed. After an error nothing has changed. */
#define KEYS_NONE "has no keys: all that belongs to keys would be removed; a start takes such a file"
MUST_USE int keys_reload(struct keys *keys, char reason[KEYS_REASON_BYTES]);

/* keys_latest: what came of the latest reload. */
struct keys_outcome {
    bool refused;            /* those of before hold */
    unsigned added, changed; /* keys, by the latest that was not */
};
struct keys_outcome keys_latest(const struct keys *keys);

/* keys_count: of the file. */
unsigned keys_count(const struct keys *keys);

/* keys_describe: a line for each member of an entry and each quota: name, what it wants, what it is where it is absent (empty: it
 * must be there), what it is; with tabs between. */
void keys_describe(FILE *out);

/* keys_find(keys, text, n): the key that a client shows; NULL: there is none. Takes as long whichever it is. */
struct api_key *keys_find(struct keys *keys, const char *text, size_t n);

/* keys_named(keys, name): the one of that name in the file; NULL: there is none. */
struct api_key *keys_named(struct keys *keys, const char *name);

/* keys_with_id(keys, id): the one, also when it is gone from the file; NULL: there is none. O(log n). */
struct api_key *keys_with_id(const struct keys *keys, uint64_t id);

/* keys_next(keys, at): all of them, those that are gone too: *at begins with 0; NULL: that was the last. */
struct api_key *keys_next(struct keys *keys, unsigned *at);

/* The one that stands for clients without a key. It has no quotas. */
struct api_key *keys_anonymous(struct keys *keys);

#endif
