/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.h - how many blocks the running sequences of a workload hold at most, over all rounds to come.
 *
 * In a round each sequence of the workload that decodes gets one token more, so what it holds after round T
 * is known beforehand: blocks of (T + a constant) tokens, until the round of its end. The ledger sums that
 * up in a fixed number of buckets by the round of the end. Its peak is never below the true one.
 *
 * Memory is the caller's; nothing is allocated. Engine thread. */
#ifndef SCHEDULER_LEDGER_H
#define SCHEDULER_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

/* Widths of buckets grow with the distance of their ends: the first 32 rounds have one each, every doubling
 * after that has 16, up to 2^31 rounds. */
enum { LEDGER_BUCKETS = 32 + 16 * 26, LEDGER_SORT_ROUNDS = 16 };

#define LEDGER_OPEN UINT64_MAX /* an end that is not known */
#define LEDGER_NONE UINT32_MAX

/* What `count` sequences that are alike hold and will hold. The first six fields are the caller's. */
struct ledger_entry {
    uint32_t count;  /* 0: not in the ledger */
    bool waits;      /* it has `tokens` until a round that is not known, and may begin to grow in any */
    uint32_t tokens; /* it has in round `since`; one more in each round after */
    uint32_t common; /* leading blocks that are not counted: they are not given back at its end */
    uint32_t final;  /* blocks at its end, without those */
    uint64_t end;    /* the round after which it has given them back; LEDGER_OPEN: counts `final` for ever */
    uint64_t since;  /* set by ledger_set() */
    uint32_t bucket; /* that it is in */
    uint32_t next, prev;
};

/* Sums over entries: after round T they hold at most (count * T + constant) / block_size blocks, and `final`. */
struct ledger_bucket {
    int64_t count, constant;
    uint64_t final;
};

struct ledger {
    struct ledger_entry *entries; /* of several ledgers */
    uint32_t block_size, first;   /* entry */
    uint64_t round, base;         /* now; when ends were last sorted into buckets */
    uint64_t open;                /* blocks of the entries without an end */
    uint64_t peak;                /* if it is known */
    bool peak_known;
    struct ledger_bucket buckets[LEDGER_BUCKETS]; /* by end - base */
};

/* ledger_init(ledger, entries, block_size): an empty one. Entries that are zero are in no ledger. */
void ledger_init(struct ledger *ledger, struct ledger_entry *entries, uint32_t block_size);

/* ledger_set(ledger, i, entry): entry `i` is now `entry`; with a count of 0: it leaves. One that stays keeps
 * its place in the list of entries. O(1). */
void ledger_set(struct ledger *ledger, uint32_t i, const struct ledger_entry *entry);

/* ledger_advance: a round more. O(1), every LEDGER_SORT_ROUNDS-th time O(entries). */
void ledger_advance(struct ledger *ledger);

/* ledger_peak: blocks that all entries hold at most, now or after any round to come. O(buckets). */
uint64_t ledger_peak(struct ledger *ledger);

#endif
