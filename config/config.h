/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - what the daemon was told: one table of keys, four places a value can come from.
 *
 * A key is set by a flag (--set path=value), else by the environment (ATTND_PATH__KEY), else by the
 * file (JSON with comments), else by its default. Every problem is one sentence that starts with the
 * place:
 *
 *     config/x.jsonc:7:21: geometry.query_heads: 6 is not a multiple of kv_heads (4)
 *     --set pool.blocks=x: pool.blocks: wants an integer in 1..2147483647 */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include "config/geometry.h"
#include "config/log.h"

#include <stdbool.h>
#include <stdio.h>

enum {
    CONFIG_STRING_BYTES = 128,
    CONFIG_ERROR_BYTES = 512,
    CONFIG_FILE_BYTES_MAX = 1 << 20,
    CONFIG_SMALL_BODY_BYTES = 1 << 20, /* of a body that is not large */
    CONFIG_MEMORY_LEAST = 64 << 20,    /* of memory.bytes: less serves nobody */
    CONFIG_LISTENERS_MAX = 8,
    CONFIG_NODE_MAX = (1 << 13) - 1 /* ids have 53 bits */
};

/* What a key, or nobody in particular, may do. XX(constant, name, bit, bits that it includes) */
#define SCOPE_MAP(XX)                                                                                        \
    XX(READ, "read", 1, 0)     /* look at what is its own, and at what the daemon does */                    \
    XX(INFER, "infer", 2, 1)   /* sequences, leases, attention, workloads */                                 \
    XX(ADMIN, "admin", 4, ~0U) /* everything, also what belongs to others */                                 \
    XX(KEEP, "keep", 8, 0)     /* sequences and leases that are never idle for too long */

enum config_scope {
#define XX(constant, name, bit, includes) SCOPE_##constant = bit,
    SCOPE_MAP(XX)
#undef XX
#define XX(constant, name, bit, includes) | bit
        SCOPES_ALL = 0 SCOPE_MAP(XX)
#undef XX
};

/* Where clients come in. */
struct config_listener {
    char address[CONFIG_STRING_BYTES]; /* HOST:PORT, [HOST]:PORT or unix:PATH */
    unsigned anonymous;  /* enum config_scope, of clients without a key where there is a keys file */
    bool proxy_protocol; /* connections begin with a header of the PROXY protocol, version 2 */
    uint32_t mode;       /* of the unix socket; 0: as the umask has it */
    char group[32];      /* likewise, to which it belongs; empty: the process's */
};

/* Where the limits of the HTTP server stand; all counts are of one daemon. */
struct config_limits {
    uint32_t connections; /* open at a time */
    uint32_t
        unknown_connections;   /* of these, of one address from which no key has come; where there are keys */
    uint32_t header_timeout_s; /* from the first byte of a request to the end of its headers */
    uint32_t body_timeout_s;   /* a window of time, in each of which a body or an answer has to move */
    uint32_t bytes_per_s;      /* by so much of each second */
    uint32_t keepalive_s;      /* between two requests */
    uint32_t sequences;        /* at a time */
    uint32_t sequence_tokens;  /* of one sequence */
    uint32_t calls;            /* appends, attends and questions under way */
    uint32_t rows_per_call;    /* of q, and of k and v */
    uint32_t idle_timeout_s;   /* of sequences that do not say otherwise; 0: never reaped */
    uint32_t workload_s;       /* that a workload may take: the largest deadline_s, and the default */
    uint32_t workload_kept_s;  /* that one is told about after its end */
    uint64_t body_bytes;       /* of a safetensors body */
    uint64_t staging_bytes;    /* of memory for bodies with tensors and for outputs, all together */
};

/* Events of the prefix cache for subscribers by ZeroMQ (docs/EVENTS.md). */
struct config_events {
    char endpoint[CONFIG_STRING_BYTES]; /* where batches are published; empty: nowhere */
    char replay[CONFIG_STRING_BYTES];   /* where past ones can be asked for; empty: nowhere */
    char topic[CONFIG_STRING_BYTES];    /* first frame of a batch */
    char curve_file
        [CONFIG_STRING_BYTES]; /* keys of the daemon and of subscribers; empty: everybody may subscribe */
    uint64_t replay_bytes;     /* of past batches that are kept */
    uint32_t hwm;              /* batches that wait for one subscriber; later ones it misses */
    int token_ids;             /* 0 or 1: batches, which have token ids, may leave this machine */
    int salted;                /* 0 or 1: blocks of salted sequences are told of, too */
};

/* When a workload's sequence may start. */
enum admission {
    ADMISSION_FORECAST,  /* when all that run can come to their end without more blocks than there are */
    ADMISSION_OPTIMISTIC /* when its prompt fits; who came last is preempted when blocks run out */
};

/* Whether a query reads blocks that it has in common with others together with them. */
enum sharing {
    SHARING_AUTO, /* where that saves time, as measured at start */
    SHARING_ON,
    SHARING_OFF
};

/* Which requests that succeed have a line at info. */
enum config_log_requests { LOG_REQUESTS_OFF, LOG_REQUESTS_SLOW, LOG_REQUESTS_ALL };

struct config {
    struct config_listener listeners[CONFIG_LISTENERS_MAX];
    unsigned listener_count;
    struct config_listener transport; /* of clients with registered memory; no address: none */
    uint32_t transport_clients;       /* of these, at a time */
    uint64_t transport_gpu_bytes;     /* of GPU memory in their regions */
    int transport_trust_clients;      /* 0 or 1 */
    uint32_t transport_spin_us;       /* that the engine looks at their rings after a call before it sleeps */
    char management[CONFIG_STRING_BYTES];      /* likewise, of its own connections; empty: none */
    char keys_file[CONFIG_STRING_BYTES];       /* empty: none, and everybody may do everything */
    char trusted_proxies[CONFIG_STRING_BYTES]; /* ADDRESS or ADDRESS/BITS, separated by commas */
    uint32_t node;                             /* of this daemon among several: the upper bits of its ids */
    char backend[CONFIG_STRING_BYTES], isa[CONFIG_STRING_BYTES];
    uint32_t threads;                /* of the CPU backend; 0: as many as the process may use */
    uint32_t device;                 /* of the CUDA backend */
    int kernel;                      /* likewise: enum attention_kernel, by name */
    int l2_prefetch, pass_stamps;    /* likewise: 0 or 1 */
    char cache[CONFIG_STRING_BYTES]; /* likewise: see backend.cache */
    uint32_t step_timeout_s;         /* of a backend with a device: what takes longer is a failure */
    struct geometry geometry;
    struct model_constants constants; /* owned; config_deinit() frees them */
    uint64_t pool_blocks;             /* resolved from whichever of the two keys was set */
    uint64_t pool_bytes;
    float pool_memory; /* share of the free memory to take instead; 0: none */
    struct config_limits limits;
    uint32_t step_rows_max;    /* query rows and appended tokens of one step */
    uint32_t step_us_max;      /* estimated, of a step; 0: as the backend is */
    uint32_t step_us_shared;   /* of bulk work while others make small calls; 0: likewise */
    uint32_t batch_window_us;  /* that a client's rows wait for company */
    uint32_t slow_step_ms;     /* longer ones are logged; 0: none */
    enum admission admission;  /* of the sequences of workloads */
    enum sharing sharing;      /* of queries of clients, and of workloads that do not say otherwise */
    uint64_t host_blocks;      /* in host memory, to swap to, */
    uint64_t file_blocks;      /* or, if not 0, in a file, of which host memory is the cache */
    uint64_t memory_bytes;     /* for what clients have under way; 0: what is left after the start */
    uint32_t history_epochs;   /* changes of block tables that are kept (allocator/block_log.h) */
    uint32_t drain_deadline_s; /* for what is under way when the daemon is to end; 0: as long as it takes */
    uint32_t drain_save_deadline_s;      /* for saving sequences; 0: half more than it should take */
    char state_dir[CONFIG_STRING_BYTES]; /* empty: nothing outlives the daemon */
    uint32_t drain_lame_duck_s; /* before: /readyz says that it ends, and clients are served as before */
    char journal_path[CONFIG_STRING_BYTES];     /* folder; empty: there is none */
    uint64_t journal_bytes, journal_file_bytes; /* of all files; of one */
    int journal_token_ids;                      /* 0 or 1: ids of tokens are recorded as they are */
    int poison;                                 /* 0 or 1: debug.poison */
    struct config_events events;
    enum log_level log_level;
    enum log_format log_format;
    enum config_log_requests log_requests; /* of those that succeed; off: at debug only */
    uint32_t log_slow_ms;
    struct config_origin *origins; /* owned: text and place of each key's value */
};

/* Flags and environment, borrowed for the call. */
struct config_inputs {
    const char *file;        /* path, or NULL */
    const char *const *sets; /* "path=value" */
    size_t set_count;
    char *const *environment; /* as environ: "NAME=value", NULL-terminated */
    const char *text;         /* instead of a file: what would be in it, or NULL */
    const char *set_word;     /* what errors call one of sets; NULL: --set */
    bool has_help;            /* errors about keys point to attnd --help */
};

/* Names of the kernels of the vllm layout, by enum attention_kernel, and of enum sharing; NULL-terminated. */
extern const char *const config_kernel_names[], *const config_sharing_names[];

/* config_load(config, inputs, error): read every source and check the result. On success the caller
 * owns `config` and ends it with config_deinit(). Returns 0, or ATTND_INVALID with `error` filled and
 * nothing to free; `config` is empty then, but log_format is as far as it was read. */
MUST_USE int config_load(struct config *config, const struct config_inputs *inputs,
                         char error[CONFIG_ERROR_BYTES]);
void config_deinit(struct config *config);

/* config_sequence_blocks: blocks that one sequence may have, at most. */
uint32_t config_sequence_blocks(const struct config *config);

/* config_print: the effective configuration as a file that config_load() accepts, each value with a
 * comment that says where it came from. */
void config_print(const struct config *config, FILE *out);

/* config_pool_key: which key gave the pool its size. */
const char *config_pool_key(const struct config *config);

/* config_print_memory: how the pool's size follows from the geometry, for people. */
void config_print_memory(const struct config *config, FILE *out);

/* config_print_bytes: one line of such arithmetic. */
void config_print_bytes(FILE *out, const char *what, uint64_t bytes);

/* config_print_keys: every key with its default and meaning, for --help. */
void config_print_keys(FILE *out);

/* config_describe_keys: a line a key: path, default, what it may be, meaning, with tabs between. attnd.jsonc(5) is made of it. */
void config_describe_keys(FILE *out);

#endif
