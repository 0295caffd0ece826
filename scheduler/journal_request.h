/* SPDX-License-Identifier: Apache-2.0 */
/* journal_request.h - a request as bytes, and back: what the engine looks at of it, without the bytes of tensors.
 *
 * One function goes through a request in both directions, so that what is written is what is read. Engine thread. */
#ifndef SCHEDULER_JOURNAL_REQUEST_H
#define SCHEDULER_JOURNAL_REQUEST_H

#include "scheduler/requests.h"

struct journal_wire {
    uint8_t *at, *end;
    bool reads;   /* else it writes */
    bool bad;     /* it did not fit, or made no sense */
    bool plain;   /* ids of tokens as they are; else hashed, like salts are */
    uint64_t key; /* of these hashes; never written */
    struct request *request;
};

/* journal_request: write the request to, or fill it in from, [at, end). False: w->bad. What it holds is the request's arena. A
 * workload is made, or left out of what is written if it is none to be started. */
bool journal_request(struct journal_wire *w, const struct config *config);

/* journal_digest: of the bytes of its tensors; 0: it has none. Any thread, which has the request. O(bytes): 0.1 us a KiB.
 * journal_digest_on: the same in pieces: of what had `digest`, and these bytes. */
enum { JOURNAL_DIGEST_OF_NOTHING = 1 };
uint64_t journal_digest(const struct request *request, const struct geometry *g);
uint64_t journal_digest_on(uint64_t digest, const void *bytes, size_t n);

#endif
