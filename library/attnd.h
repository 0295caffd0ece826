/* SPDX-License-Identifier: Apache-2.0 */
/* attnd.h - a paged KV cache and attention over it, in the process that calls.
 *
 *     struct attnd_options options = {.size = sizeof options, .configuration = "{\"pool\": {\"blocks\": 64}}"};
 *     struct attnd *a;
 *     if (attnd_open(&options, &a) != ATTND_OK)
 *         puts(attnd_error());
 *
 * Sequences have ids. Their tokens' K and V lie in blocks of the pool, which forks share. attnd_append() writes K and V at the
 * end of sequences, attnd_attend() computes attention of queries over them; blocks, copies on write and block tables are the
 * library's. With attnd_lease() and attnd_paged() block tables are the caller's own.
 *
 * Sizes. Every struct but attnd_tensor begins with `size`, the sizeof that it is compiled with; members that it does not reach
 * are 0. A member beyond what this library knows has to be 0, else the call is ATTND_ERR_UNSUPPORTED. An array's structs all have
 * the size of the first.
 *
 * Results. Functions return ATTND_OK (0), or what is wrong; then nothing has changed, and attnd_error() has a sentence.
 *
 * Threads. A handle may be used by any thread, and calls on it take turns. What is submitted is computed in the turns of the
 * engine: by the calling thread, in attnd_await(), attnd_poll() and attnd_turn(), or, with attnd_options.thread, by a thread of
 * the library's. The library installs no signal handler and writes to no stream (attnd_log()). After fork() a child can use none
 * of its parent's handles: its calls are ATTND_ERR_FORKED.
 *
 * Streams. With tensors on the GPU, calls are stream-ordered: they return when the GPU has been given what to do, and wait for nothing
 * that it does. What was given to `stream` before comes first, and what is given to it later finds the outputs. attnd_rows.stream has
 * the rest.
 *
 * Bits. o of a query depends on its own q and its own sequence's k and v alone: not on what is computed beside it, not on
 * blocks, forks or threads. docs/LIBRARY.md has the rest. */
#ifndef ATTND_H
#define ATTND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTND_API __attribute__((visibility("default")))

enum attnd_code {
    ATTND_PENDING = 1, /* of attnd_poll() and attnd_await(): not done yet */
    ATTND_OK = 0,
    ATTND_ERR_INVALID = -1,     /* an argument is wrong */
    ATTND_ERR_UNSUPPORTED = -2, /* this library, configuration or machine does not have it */
    ATTND_ERR_NOT_FOUND = -3,   /* no such sequence, lease or ticket */
    ATTND_ERR_GONE = -4,        /* it existed, and is gone */
    ATTND_ERR_EXISTS = -5,
    ATTND_ERR_POSITION = -6, /* the rows do not continue what stands */
    ATTND_ERR_CONFLICT = -7, /* other content stands there */
    /* Calls, memory for tensors or room on the GPU's queue are used up: retry when some are done. */
    ATTND_ERR_BUSY = -8,
    ATTND_ERR_NO_BLOCKS = -9,
    ATTND_ERR_NO_SEQUENCES = -10,
    ATTND_ERR_NO_MEMORY = -11,
    ATTND_ERR_DEADLINE = -12,
    ATTND_ERR_DEVICE = -13, /* the device failed: the handle is of no use any more */
    ATTND_ERR_FORKED = -14, /* the handle is a parent process's */
    ATTND_ERR_INTERNAL = -15
};

struct attnd; /* an engine: pool, sequences, backend */

/* What was wrong with the calling thread's last call that failed, in a sentence; stays until it is in the library again. */
ATTND_API const char *attnd_error(void);

/* A constant word for a code: "position", "no_blocks". */
ATTND_API const char *attnd_code_name(int code);

/* "attnd 0.1.0 (commit)". */
ATTND_API const char *attnd_version(void);

/* The backends that are in this build and can be used here, one a line: "cpu: portable avx2", "cuda: ...". A constant. */
ATTND_API const char *attnd_backends(void);

/* Of the process: `write` gets messages from now on, of level 0 (errors) to 3, from whichever thread has them; NULL, as at first:
 * they are dropped. Not while another thread is in the library; `write` calls nothing of the library. */
ATTND_API void attnd_log(void (*write)(int level, const char *message, void *cookie), void *cookie);

/* ---- open and close -------------------------------------------------------------------------------- */

struct attnd_options {
    size_t size;
    const char *
        configuration; /* keys of the daemon's as JSON with comments; NULL: the defaults. What is the server's (listen, keys,
                                       state, drain) is not looked at */
    const char *configuration_file; /* instead */
    const char *const *settings;    /* [setting_count] "path=value", stronger than both */
    size_t setting_count;
    int thread; /* 1: the engine has a thread of its own */
};

/* attnd_open(options, a): take the pool's memory, test the kernels against the reference, compile them for a GPU. The caller ends
 * it with attnd_close(), which finishes what is submitted and waits for threads that are in a call; none may begin one then. NULL is
 * fine. Returns ATTND_ERR_INVALID for a configuration that is wrong, ATTND_ERR_UNSUPPORTED for a backend that cannot be had here (no
 * driver, no GPU, no NVRTC, built without CUDA), ATTND_ERR_NO_MEMORY, or ATTND_ERR_INTERNAL where the kernels disagree with the
 * reference; then there is nothing to close. */
ATTND_API int attnd_open(const struct attnd_options *options, struct attnd **a);
ATTND_API void attnd_close(struct attnd *a);

struct attnd_description {
    size_t size;
    uint32_t layers, query_heads, kv_heads, head_dim, block_size;
    uint32_t blocks;          /* of the pool */
    uint32_t sequence_tokens; /* of one sequence, at most */
    uint32_t rows_per_call;   /* of q, and of k and v */
    uint32_t calls;           /* submitted and not done, at most */
    uint8_t dtype_code;       /* of q and o, */
    uint8_t dtype_bits;
    uint8_t kv_dtype_code; /* and of K and V as they are stored, as DLPack has them */
    uint8_t kv_dtype_bits;
    uint32_t bit_stable;                         /* 1: as above; 0: a kernel is configured that is not */
    uint32_t threads;                            /* of the host, or multiprocessors */
    const char *backend, *isa, *device, *kernel; /* as long as the handle */
    int32_t gpu;                                 /* whose tensors are used where they are; -1: none */
    uint32_t stream_rows;                        /* of q, and appends, of a call with such tensors */
};

ATTND_API int attnd_describe(struct attnd *a, struct attnd_description *description);

/* ---- sequences ------------------------------------------------------------------------------------- */

struct attnd_creation {
    size_t size;
    uint64_t id; /* 1 .. 2^53 - 1; 0: the library chooses one. Out */
    const uint32_t
        *token_ids; /* [token_count] of a prompt: blocks of it that are cached are taken over, whole ones */
    uint32_t token_count;
    uint32_t max_tokens; /* that it will have; 0: not known */
    int32_t priority;
    uint32_t length;  /* out: tokens that were cached */
    const char *salt; /* of prompts: only sequences with the same one share; NULL: none */
};

/* A new sequence, of no tokens but those cached. */
ATTND_API int attnd_create(struct attnd *a, struct attnd_creation *creation);

/* attnd_fork(a, id, length, ids, count): `count` new sequences that share the first `length` tokens of one; UINT32_MAX: all. Their
 * ids: those given, or, where they are 0, chosen and written. */
ATTND_API int attnd_fork(struct attnd *a, uint64_t id, uint32_t length, uint64_t *ids, uint32_t count);

/* Forget all tokens of a sequence but the first `length`, at every layer. It has no more than that already: nothing is forgotten, and 0. */
ATTND_API int attnd_truncate(struct attnd *a, uint64_t id, uint32_t length);
ATTND_API int attnd_delete(struct attnd *a, uint64_t id);

enum attnd_op_kind { ATTND_CREATE, ATTND_FORK, ATTND_TRUNCATE, ATTND_DELETE };

struct attnd_op {
    size_t size;
    uint32_t kind;
    uint32_t length;                 /* of a fork or truncation */
    uint64_t id;                     /* but of a creation */
    uint64_t *ids;                   /* of a fork: [count], as in attnd_fork() */
    uint32_t count;                  /* likewise */
    struct attnd_creation *creation; /* of a creation */
};

/* attnd_batch(a, ops, count): all of them, in order, or none. */
ATTND_API int attnd_batch(struct attnd *a, struct attnd_op *ops, uint32_t count);

struct attnd_sequence {
    size_t size;
    uint64_t parent;                /* it is a fork of; 0: none */
    uint32_t length;                /* tokens that all layers have */
    uint32_t blocks, shared_blocks; /* that it has, and has in common with others */
    uint32_t *lengths;              /* NULL, or [layers]: out, tokens that each layer has */
};

ATTND_API int attnd_look(struct attnd *a, uint64_t id, struct attnd_sequence *sequence);

/* attnd_blocks(a, id, first, ids, count): the ids of `count` blocks of a sequence or a lease, in token order from block `first` on;
 * *count becomes how many there are. */
ATTND_API int attnd_blocks(struct attnd *a, uint64_t id, uint32_t first, uint32_t *ids, uint32_t *count);

/* attnd_lease(a, blocks, lease, ids): reserve blocks for tables of the caller's own, [blocks] written to `ids`, which attnd_delete()
 * gives back. */
ATTND_API int attnd_lease(struct attnd *a, uint32_t blocks, uint64_t *lease, uint32_t *ids);

/* ---- tensors and calls ----------------------------------------------------------------------------- */

/* DLPack's DLTensor, whose layout this is: a pointer to one may be given. Contiguous: strides NULL or those of the shape. */
struct attnd_tensor {
    void *data;
    int32_t device_type; /* 1: host memory, 3: pinned, 2: the GPU of the backend */
    int32_t device_id;
    int32_t ndim;
    uint8_t dtype_code; /* 2: float of 16 or 32 bits, 4: bfloat of 16, 10: e4m3fn, 12: e5m2 */
    uint8_t dtype_bits;
    uint16_t dtype_lanes; /* 1 */
    const int64_t *shape;
    const int64_t *strides; /* in elements */
    uint64_t byte_offset;
};

#define ATTND_ALL_LAYERS UINT32_MAX

/* T rows, of which `counts` belong to the first sequence, and so on. */
struct attnd_rows {
    size_t size;
    uint32_t layer; /* ATTND_ALL_LAYERS: k and v, of an append, are those of all */
    uint32_t sequence_count;
    const uint64_t *sequences; /* [sequence_count] ids */
    const uint32_t *counts;    /* [sequence_count] rows of each; NULL: one */
    const int64_t *positions;  /* [sequence_count] of the first row of each; NULL: where the sequence ends */
    const uint32_t *
        token_ids; /* [token_count] of the first rows, so that full blocks can be found by attnd_create(); or NULL */
    uint32_t token_count;
    uint32_t kernel; /* 0; 1, 2: paged_v1, paged_v2 of the vllm layout */
    /* k and v are [T][kv_heads][head_dim], or [layers][T][kv_heads][head_dim]; q and o [T][query_heads][head_dim]; lse [T][query_heads]
       of f32, the natural logarithm. Of the geometry's dtype, k and v also of its kv_dtype. Where the geometry's has 16 bits, float32 is
       converted. Used where they are, so they stay untouched until the call is done. */
    const struct attnd_tensor *q, *k, *v, *o, *lse; /* NULL: not given, not wanted */
    /* Of tensors on the GPU, all of a call; nothing is converted but k and v as they are stored. `stream`: a CUstream (NULL: the legacy
       default one) that is not being captured. Whether k and v are finite is found out by the GPU. If not, 0 is stored, o and lse of
       the sequence are NaN from then on, and when the GPU is known to be that far, the append and all that followed on the sequence is
       void: it is truncated to what all layers had before, its tickets fail, and so does the next call on it, once, with ATTND_ERR_INVALID. */
    void *stream;
    /* 1: rows at positions that stand already are compared with them, and the call waits for that. 0: ATTND_ERR_CONFLICT. In host memory they
       are always compared. */
    uint32_t retry;
};

/* attnd_append(a, rows, count, ticket): write k and v of `count` lists of rows, in that order. attnd_attend: attention of q over
 * the sequences; k and v, if given, are appended first, and a query at position p sees the keys up to p. With `ticket` they return
 * at once, and attnd_poll() and attnd_await() say when all is done; with NULL they return when it is, or, with tensors on the GPU, at
 * once, too. Of lists that fail the others are done nevertheless, but for those on a sequence behind it. On the GPU, two times as many
 * lists as there are layers may be under way; more are ATTND_ERR_BUSY. */
ATTND_API int attnd_append(struct attnd *a, const struct attnd_rows *rows, uint32_t count, uint64_t *ticket);
ATTND_API int attnd_attend(struct attnd *a, const struct attnd_rows *rows, uint32_t count, uint64_t *ticket);

/* Attention over block tables of the caller's own, in leased blocks. */
struct attnd_paged_rows {
    size_t size;
    uint64_t lease;
    uint32_t layer;
    uint32_t kernel;             /* as above */
    uint32_t sequences;          /* S; 0: k and v are written only */
    uint32_t columns;            /* entries of a table */
    const int32_t *block_tables; /* [S][columns] */
    const int32_t *context_lens; /* [S] tokens of each, whose last ones are its rows */
    const int32_t *indptr;       /* [S + 1] rows of q of each, from 0; NULL: one */
    const int64_t
        *slot_mapping; /* [tokens] block * block_size + slot for each row of k and v; -1: not written */
    uint32_t tokens;
    const struct attnd_tensor *q, *k, *v, *o, *lse; /* as above */
    void *stream;                                   /* likewise */
};

ATTND_API int attnd_paged(struct attnd *a, const struct attnd_paged_rows *rows, uint64_t *ticket);

/* States of the same T rows over disjoint keys. lse is minus infinity for one without keys; on the GPU NaN is taken for that. */
struct attnd_states {
    size_t size;
    const struct attnd_tensor *o;        /* [n][T][query_heads][head_dim] */
    const struct attnd_tensor *lse;      /* [n][T][query_heads] */
    const struct attnd_tensor *merged_o; /* [T][query_heads][head_dim]; may be the first state's, in place */
    const struct attnd_tensor *merged_lse; /* [T][query_heads] */
    void *stream;                          /* as above */
};

/* attnd_merge(a, states): into those over all of their keys. Returns when that is done, or, with tensors on the GPU, at once. */
ATTND_API int attnd_merge(struct attnd *a, const struct attnd_states *states);

struct attnd_result {
    size_t size;
    uint32_t failed;       /* which of the lists is the first that failed */
    uint32_t rows_in_step; /* of the step that computed the last one */
    double queue_us, step_us;
    uint64_t bytes_read;
};

/* attnd_poll(a, ticket, result): whether it is done: ATTND_PENDING, or how it went, and then the ticket is no more. attnd_await: wait
 * for that, `timeout_s` seconds at most, for ever if it is negative. `result` may be NULL. */
ATTND_API int attnd_poll(struct attnd *a, uint64_t ticket, struct attnd_result *result);
ATTND_API int attnd_await(struct attnd *a, uint64_t ticket, double timeout_s, struct attnd_result *result);

/* attnd_turn(a): do what there is to do now: retire what is done, submit what is next. Returns 1 if there was anything, 0 if not. With
 * a thread of the engine's, which does that, 0. */
ATTND_API int attnd_turn(struct attnd *a);

/* ---- kernels over caches of the caller's own ------------------------------------------------------- */

/* vLLM's paged_attention_v1 and v2, reshape_and_cache, copy_blocks and swap_blocks, on its layout; and the engine's own attention, bit-stable,
 * on its: no engine, no pool, nothing kept. Calls launch on a stream, wait for nothing, and may be captured in a CUDA graph. Addresses are the
 * GPU's, and are not looked at. Any thread.
 *
 *   ATTND_VLLM   key_cache [blocks][kv_heads][head_dim / x][block_size][x], x elements being 16 bytes;
 *                value_cache [blocks][kv_heads][head_dim][block_size]
 *   ATTND_OWN    key_cache is the cache, [blocks][2: K, V][kv_heads][block_size][head_dim], from a multiple of 16 bytes on */
enum attnd_layout { ATTND_VLLM, ATTND_OWN };

struct attnd_kernels;

struct attnd_shape {
    size_t size;
    uint32_t query_heads, kv_heads, head_dim, block_size;
    uint8_t dtype_code, dtype_bits;       /* of q and o, as DLPack has them, */
    uint8_t kv_dtype_code, kv_dtype_bits; /* and of the caches */
    /* Block-sparse attention: every vert_stride'th block of sparse_block_size tokens, from a first one that slides with the heads, and the
       latest local_blocks. vert_stride 0 or 1: all are seen */
    uint32_t local_blocks, vert_stride, sparse_block_size, tp_rank;
    int32_t head_sliding_step;
    uint32_t gpu;
    const char *cache;      /* folder for compiled kernels, as backend.cache; NULL: the default one */
    uint32_t v1_max_length; /* out: of a call with v2 = 0 */
    uint32_t layout;        /* an enum attnd_layout */
    float softcap;          /* of ATTND_OWN: scores are softcap * tanh(score / softcap); 0: none */
};

/* attnd_kernels_open(shape, kernels): find or compile them. Seconds, or milliseconds when they are in the cache; not while a stream is
 * being captured. */
ATTND_API int attnd_kernels_open(struct attnd_shape *shape, struct attnd_kernels **kernels);
ATTND_API void attnd_kernels_close(struct attnd_kernels *kernels);

#define ATTND_LAUNCHES_BYTES 512

/* Of ATTND_OWN: how a call is cut into work tiles. With tables and lengths, for any number of calls (of other layers, other q) with the same
 * ones, which have to be those of the host's: what sequences share is read once for all of them. Without, for calls with so many rows
 * over sequences of any length up to max_seq_len: the GPU finds the work tiles as a call is launched, and a graph may be replayed with others. o and lse have
 * the same bits either way. */
struct attnd_plan {
    size_t size;
    const int32_t *block_tables; /* in host memory: [sequences][table_row]; NULL, like */
    const int32_t *seq_lens;     /* [sequences] */
    uint64_t table_row;
    uint32_t sequences, max_seq_len;
    uint32_t window; /* tokens that a query sees, itself included; 0: all */
    uint32_t zero;
    void *launches; /* out: [ATTND_LAUNCHES_BYTES] for attnd_paged_call, without an address in it */
    /* Out, with tables: [lists_bytes], aligned to 16, in host memory, which the caller copies to the GPU. NULL: only sizes are wanted */
    void *lists;
    uint64_t lists_bytes;     /* in: room at `lists`; out: what they take */
    uint64_t workspace_bytes; /* out */
    /* With tables: [sequences + 1] in host memory, rows of q of each sequence, its last tokens, from 0; NULL: one */
    const int32_t *query_start_loc;
    uint32_t rows; /* of q; 0: one a sequence, or as many as query_start_loc says */
    uint32_t zero_too;
};

/* attnd_kernels_plan(kernels, plan): by the host alone; with tables it compares those of neighbours as far as they agree. */
ATTND_API int attnd_kernels_plan(struct attnd_kernels *kernels, struct attnd_plan *plan);

/* One query a sequence; of ATTND_OWN several (`rows`). */
struct attnd_paged_call {
    size_t size;
    /* [sequences][query_heads][head_dim], or [rows].... Rows of query are query_row elements apart; 0: none between them. */
    const void *query;
    void *out;
    void *key_cache, *value_cache;
    const int32_t *block_tables;    /* [sequences][table_row] */
    const int32_t *seq_lens;        /* [sequences], at most max_seq_len each */
    const float *alibi_slopes;      /* [query_heads]; NULL */
    const float *k_scale, *v_scale; /* one for all; ATTND_OWN: [kv_heads] */
    /* Of v2: [sequences * query_heads * ceil(max_seq_len / 512) * (head_dim + 2)]; ATTND_OWN: workspace_bytes, from a multiple of 16
       bytes on */
    float *workspace;
    uint64_t query_row, table_row, block_bytes; /* the last: from one block of a cache to the next */
    uint32_t sequences, max_seq_len;
    uint32_t v2; /* 1: contexts are cut in partitions of 512 */
    float scale;
    void *stream;
    /* Of ATTND_OWN; there value_cache, query_row, block_bytes, max_seq_len and v2 are not looked at: */
    const void *launches; /* of attnd_plan, in host memory */
    void *lists;          /* [lists_bytes] of the GPU, from a multiple of 16 bytes on */
    uint32_t find;        /* 1: without tables in the plan, write the lists first; 0: they are there */
    uint32_t attend;      /* 1: attend. 0: only write the lists, for calls with find = 0 */
    uint64_t blocks;      /* of the cache */
    float *lse;           /* [sequences][query_heads], or [rows]...; NULL: not wanted */
    const float *sinks;   /* [query_heads]; NULL */
    /* With `find`: [sequences + 1] on the GPU, as in attnd_plan: those of sequence s see the keys up to their own token. What is behind the last
       one's is nobody's row, and sees none: o is 0, lse minus infinity. NULL: one row a sequence */
    const int32_t *query_start_loc;
    uint32_t rows; /* of query, out and lse; 0: one a sequence */
    uint32_t zero;
};

ATTND_API int attnd_kernels_paged(struct attnd_kernels *kernels, const struct attnd_paged_call *call);

enum attnd_cache_kind { ATTND_STORE, ATTND_COPY, ATTND_SWAP };

struct attnd_cache_call {
    size_t size;
    uint32_t kind;
    uint32_t count; /* tokens, or pairs of blocks */
    /* ATTND_STORE (reshape_and_cache): key and value [count][kv_heads][head_dim], rows *_row elements apart, of the shape's dtype or
       kv_dtype, to slots [count], block * block_size + slot, of which negative ones are none. Of ATTND_OWN value_caches and block_bytes are
       not looked at */
    const void *key, *value;
    uint64_t key_row, value_row;
    const int64_t *slots;
    const float *k_scale, *v_scale;
    uint8_t dtype_code, dtype_bits;
    /* ATTND_COPY: block pairs[i][0] to pairs[i][1] in each of `layers` caches. ATTND_SWAP: of key_caches[1] to that of key_caches[0], either
       in host memory or the GPU's; then pairs lie in host memory. ATTND_STORE: layers is 1 */
    const int64_t *pairs;                          /* [count][2] */
    void *const *key_caches, *const *value_caches; /* [layers], in host memory */
    uint32_t layers;
    uint64_t block_bytes;
    void *stream;
};

ATTND_API int attnd_kernels_cache(struct attnd_kernels *kernels, const struct attnd_cache_call *call);

/* ---- looking --------------------------------------------------------------------------------------- */

struct attnd_stats {
    size_t size;
    uint32_t blocks_free, blocks_cached, blocks_held, blocks_fenced, blocks_shared;
    uint32_t sequences;
    uint64_t tokens_logical, tokens_physical; /* that sequences have, and that are stored */
    uint64_t forks, copies_on_write, steps;
    double roof_gb_per_s; /* at which the pool can be read; 0: not measured yet */
    uint64_t voided;      /* calls on the GPU that became void, since it was opened */
};

ATTND_API int attnd_stats(struct attnd *a, struct attnd_stats *stats);

/* Recount every block and check every invariant; ATTND_ERR_INTERNAL with what does not add up. O(blocks). */
ATTND_API int attnd_audit(struct attnd *a);

#ifdef __cplusplus
}
#endif

#endif
