/* SPDX-License-Identifier: Apache-2.0 */
/* ring.h - a bounded queue of pointers from one thread to one other.
 *
 * One producer, one consumer, no locks: each side owns one index and reads the other's. Never allocates
 * after init. */
#ifndef SCHEDULER_RING_H
#define SCHEDULER_RING_H

#include "config/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct ring {
    uint32_t mask;
    void **slots;
    _Alignas(64) _Atomic uint32_t head; /* next to be taken; written by the consumer */
    _Alignas(64) _Atomic uint32_t tail; /* next to be filled; written by the producer */
};

/* ring_init(ring, n): room for at least n pointers. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE static inline int ring_init(struct ring *ring, uint32_t n)
{
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    ring->mask = size - 1;
    ring->slots = calloc(size, sizeof *ring->slots);
    atomic_init(&ring->head, 0);
    atomic_init(&ring->tail, 0);
    return ring->slots ? 0 : ATTND_NO_MEMORY;
}

static inline void ring_deinit(struct ring *ring)
{
    free(ring->slots);
    ring->slots = NULL;
}

/* Producer: false when the ring is full. */
MUST_USE static inline bool ring_put(struct ring *ring, void *item)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&ring->head, memory_order_acquire) > ring->mask)
        return false;
    ring->slots[tail & ring->mask] = item;
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

/* Consumer: NULL when the ring is empty. */
static inline void *ring_take(struct ring *ring)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&ring->tail, memory_order_acquire))
        return NULL;
    void *item = ring->slots[head & ring->mask];
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return item;
}

/* Consumer: how many items can be taken now, at least. */
static inline uint32_t ring_count(const struct ring *ring)
{
    return atomic_load_explicit(&ring->tail, memory_order_acquire) -
           atomic_load_explicit(&ring->head, memory_order_relaxed);
}

#endif
