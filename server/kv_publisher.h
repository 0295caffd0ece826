/* SPDX-License-Identifier: Apache-2.0 */
/* kv_publisher.h - batches of KV cache events for subscribers by ZeroMQ (events.zmq.*, docs/EVENTS.md).
 *
 *     engine thread ==> kv_events (scheduler/kv_events.h) ==> thread of the publisher ==> PUB: topic, number, batch
 *                                                              keeps past batches <==> ROUTER: from a number on
 *
 * It has a thread of its own, since libzmq's sockets belong to one, and never waits for a subscriber: who does not read misses
 * batches, and sees so by their numbers. */
#ifndef SERVER_KV_PUBLISHER_H
#define SERVER_KV_PUBLISHER_H

#include "config/config.h"

enum { KV_PUBLISHER_REASON_BYTES = 512 };

struct kv_publisher;
struct kv_events;

/* kv_publisher_open(config, publisher, reason): open libzmq, bind events.zmq.endpoint and replay, begin the thread. 0; or with a sentence
 * ATTND_INVALID (a key file), ATTND_NOT_FOUND (no libzmq, or an address that cannot be bound) or ATTND_NO_MEMORY. `config` is borrowed,
 * and its pool has its size. kv_publisher_close: after the engine has ended: what it told is sent. NULL is fine. */
MUST_USE int kv_publisher_open(const struct config *config, struct kv_publisher **publisher,
                               char reason[KV_PUBLISHER_REASON_BYTES]);
void kv_publisher_close(struct kv_publisher *publisher);

/* kv_publisher_check(config, reason): refuse what kv_publisher_open() refuses, but for addresses that cannot be bound: nothing is bound. */
MUST_USE int kv_publisher_check(const struct config *config, char reason[KV_PUBLISHER_REASON_BYTES]);

/* kv_publisher_events: what the engine tells, NULL of NULL. kv_publisher_bytes: memory that it takes, libzmq's queues apart. */
struct kv_events *kv_publisher_events(const struct kv_publisher *publisher);
uint64_t kv_publisher_bytes(const struct config *config);

/* kv_publisher_log: tell the log where it publishes. Of NULL nothing. */
void kv_publisher_log(const struct kv_publisher *publisher);

#endif
