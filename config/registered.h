/* SPDX-License-Identifier: Apache-2.0 */
/* registered.h - what a client with registered memory and the daemon say to each other (docs/TRANSPORTS.md).
 *
 *   socket (SOCK_SEQPACKET)   struct registered_message ->   <- struct registered_answer, with descriptors
 *   ring (a memfd)            calls ->                       <- completions
 *   regions (memfds)          q, k, v, lists ->              <- o, lse
 *
 *     call      put: fill calls[calls_tail % REGISTERED_CALLS], then calls_tail + 1 (release)
 *     wake-up   full fence; if `asleep`, write 1 to the bell (an eventfd)
 *     answer    completions[done_head % REGISTERED_CALLS] is there once done_tail (acquire) != done_head
 *     wait      waiting = 1; full fence; if done_tail == done_head, FUTEX_WAIT on done_tail; waiting = 0
 *
 * A slot is in use from the call until its completion has been read: calls_tail - done_head <= REGISTERED_CALLS. Indices count on
 * beyond 2^32. A client writes calls, calls_tail, done_head and waiting, the daemon the rest. All is little-endian. */
#ifndef CONFIG_REGISTERED_H
#define CONFIG_REGISTERED_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REGISTERED_VERSION = 1,
    REGISTERED_CALLS = 64,  /* slots of a ring */
    REGISTERED_REGIONS = 8, /* of a client at a time; numbered from 0 */
    REGISTERED_KEY_BYTES = 228,
    REGISTERED_IPC_BYTES = 64,
    REGISTERED_CODE_BYTES = 32,
    REGISTERED_DETAIL_BYTES = 264
};

#define REGISTERED_NONE UINT64_MAX /* an offset: there is no such list or tensor */
#define REGISTERED_ALL  UINT32_MAX /* a layer: all of them, of an append */

/* ---- the socket ---------------------------------------------------------------------------------- */

enum registered_kind {
    REGISTERED_HELLO = 1,    /* first; answered with the ring and the bell */
    REGISTERED_REGION,       /* the daemon makes a region of `bytes`; answered with it */
    REGISTERED_OWN_REGION,   /* the region is the memfd that comes along */
    REGISTERED_CLOSE_REGION, /* answered when no call uses it any more */
    REGISTERED_END,          /* the daemon's: the client has ended, and why */
    REGISTERED_GPU_REGION, /* as REGION, in memory of the daemon's GPU: a descriptor for cuMemImportFromShareableHandle() */
    REGISTERED_OWN_GPU_REGION, /* as OWN_REGION: what cuMemExportToShareableHandle() has made comes along */
    REGISTERED_IPC_REGION /* likewise, with a CUipcMemHandle in `key`; only where the daemon trusts clients. The memory has to stay until it is closed */
};

struct registered_message {
    uint32_t kind;
    uint32_t version; /* of HELLO */
    uint64_t bytes;   /* of a region */
    uint32_t region;  /* of CLOSE_REGION */
    uint32_t key_bytes;
    char key[REGISTERED_KEY_BYTES]; /* of HELLO; of IPC_REGION: the handle */
    uint32_t
        writes; /* of OWN_GPU_REGION and IPC_REGION: 1: o and lse may go there; 0: the daemon only reads it */
};

struct registered_answer {
    uint32_t kind;   /* of the message */
    uint32_t status; /* as of HTTP: 200, or why not: */
    uint32_t region;
    uint32_t version; /* the daemon's */
    uint64_t bytes;   /* of the region, or of the ring */
    char code[REGISTERED_CODE_BYTES];
    char detail[REGISTERED_DETAIL_BYTES];
};

/* ---- the ring ------------------------------------------------------------------------------------ */

enum registered_call_kind { REGISTERED_APPEND = 1, REGISTERED_ATTEND };

/* Offsets are into the region; those of q, k, v, o and lse into that of `tensors`. In GPU memory they are aligned to 8 bytes and written
 * before the call is put; whether k and v are finite is found out by the GPU, and then the call is void, and what followed on the
 * sequence (docs/LIBRARY.md has the rules). */
struct registered_call {
    uint64_t tag; /* comes back with the completion */
    uint32_t kind;
    uint32_t region;
    uint32_t layer;                /* or REGISTERED_ALL: k and v are [layers][rows][kv_heads][head_dim] */
    uint32_t kernel;               /* 0: auto, 1: paged_v1, 2: paged_v2 */
    uint32_t kv_stored;            /* 1: k and v are of geometry.kv_dtype, else of geometry.dtype */
    uint32_t timeout_ms;           /* after it was taken; 0: none */
    uint32_t sequence_count, rows; /* rows: of all sequences */
    uint32_t token_count;          /* ids of the first rows' tokens */
    uint32_t tensors;   /* 0: they lie in `region`; else 1 + the number of a region in GPU memory */
    uint64_t sequences; /* u64[sequence_count] ids */
    uint64_t counts;    /* u32[sequence_count] rows of each; NONE: one each */
    uint64_t positions; /* u32[sequence_count] of the first row of each; NONE: where it ends */
    uint64_t tokens;    /* u32[token_count]; with token_count 0 unused */
    uint64_t q;         /* [rows][query_heads][head_dim]; with ATTEND */
    uint64_t k, v;      /* [rows][kv_heads][head_dim]; both or NONE */
    uint64_t o;         /* as q; with ATTEND */
    uint64_t lse;       /* f32 [rows][query_heads]; or NONE */
    uint32_t
        retry; /* 1: in GPU memory, too, rows at positions that stand are compared; else they are refused */
    uint32_t spare;
};

struct registered_completion {
    uint64_t tag;
    uint32_t status; /* as of HTTP: 200, or why not: */
    uint32_t rows_in_step;
    double queue_us, step_us;
    uint64_t bytes_read; /* by its step */
    char code[REGISTERED_CODE_BYTES];
    char detail[184];
};

/* An index or flag, alone on its cache line. */
struct registered_word {
    _Alignas(64) uint32_t value;
};

/* registered_load, registered_store: of a word that the other side shares. registered_store_and_look: likewise, and before any load that
 * follows: of two sides that store and then look, one sees the other. */
static inline uint32_t registered_load(const struct registered_word *word)
{
    return __atomic_load_n(&word->value, __ATOMIC_SEQ_CST);
}

static inline void registered_store(struct registered_word *word, uint32_t value)
{
    __atomic_store_n(&word->value, value, __ATOMIC_RELEASE);
}

static inline void registered_store_and_look(struct registered_word *word, uint32_t value)
{
    __atomic_store_n(&word->value, value, __ATOMIC_SEQ_CST);
}

struct registered_ring {
    struct registered_word calls_tail; /* client's */
    struct registered_word calls_head; /* daemon's: taken */
    struct registered_word asleep;     /* daemon's: it wants the bell */
    struct registered_word done_tail;  /* daemon's; a futex */
    struct registered_word done_head;  /* client's */
    struct registered_word waiting;    /* client's: it wants the futex */
    _Alignas(4096) struct registered_call calls[REGISTERED_CALLS];
    struct registered_completion completions[REGISTERED_CALLS];
};

static_assert(sizeof(struct registered_message) == 256, "a message");
static_assert(sizeof(struct registered_answer) == 320, "an answer");
static_assert(sizeof(struct registered_call) == 128, "two cache lines");
static_assert(sizeof(struct registered_completion) == 256, "four cache lines");
static_assert(offsetof(struct registered_ring, calls) == 4096 && sizeof(struct registered_ring) == 28672,
              "the ring that docs/TRANSPORTS.md shows");

#endif
