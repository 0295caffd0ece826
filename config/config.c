/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - the table of keys, and the four passes that fill it.
 *
 *   default -> file -> environment -> flags        each pass overwrites the values that it names
 *
 * A value is kept as a cJSON item until it is stored; flags and environment are parsed as JSON when
 * they are JSON and taken as a string otherwise, so `--set geometry.dtype=f16` needs no quotes. For
 * every key an origin is kept - the value's text and its place - from which --print-config prints, and
 * to which an error found later (two keys that do not fit each other) can still point. */
#include "config/config.h"

#include "config/json.h"
#include "config/log.h"
#include "config/model_constants.h"
#include "config/nearest.h"
#include "config/zmq_address.h"

#include <cjson/cJSON.h>

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    KIND_STRING,   /* char[CONFIG_STRING_BYTES] */
    KIND_ENUM,     /* int: index into `names` */
    KIND_U32,      /* uint32_t in [min, max] */
    KIND_COUNT,    /* uint64_t in [min, max] */
    KIND_BYTES,    /* likewise; also "512MiB" */
    KIND_F32,      /* float in [min, max] */
    KIND_WINDOW,   /* uint32_t[LAYERS_MAX]: a number, or a list that repeats over the layers */
    KIND_LISTEN,   /* struct config_listener[CONFIG_LISTENERS_MAX]: one, or a list */
    KIND_LISTENER, /* struct config_listener: one, or "" */
    KIND_CONSTANTS /* kept as text; expanded by model_constants_init() once the geometry is known */
};

enum { PATH_BYTES = 128 }; /* of a path that is read, with its NUL */

struct key {
    const char *path;
    enum kind kind;
    size_t offset; /* in struct config; unused for KIND_CONSTANTS */
    double min, max;
    const char *fallback; /* JSON */
    const char *const *names;
    const char *help;
};

enum origin_kind { FROM_DEFAULT, FROM_FILE, FROM_ENVIRONMENT, FROM_FLAG };

struct config_origin {
    enum origin_kind kind;
    cJSON *item; /* owned: the value as given */
    char *place; /* owned: "config/x.jsonc:7:21", "ATTND_LISTEN=...", "--set ...", "default" */
};

const char *const config_kernel_names[] = {"auto", "paged_v1", "paged_v2", NULL};
static const char *const admission_names[] = {"forecast", "optimistic", NULL};
const char *const config_sharing_names[] = {"auto", "on", "off", NULL};

#define AT(member) offsetof(struct config, member)

static const char *const log_requests_names[] = {"off", "slow", "all", NULL};
static const char *const off_on_names[] = {"off", "on", NULL};

/* What q and o may be: the first of enum dtype. */
static const char *const query_dtype_names[] = {"f32", "f16", "bf16", NULL};

/* clang-format off */
static const struct key keys[] = {
    {"listen", KIND_LISTEN, AT(listeners), 0, 0, "\"127.0.0.1:8400\"", NULL,
     "HOST:PORT, [HOST]:PORT (port 0: any free one; without keys.file loopback only), unix:PATH or fd:N (handed over, from 3 on), or "
     "{address, anonymous: none|read|infer, proxy_protocol, mode: \"0660\", group}, or a list of these"},
    {"transport.listen", KIND_LISTENER, AT(transport), 0, 0, "\"\"", NULL,
     "unix:PATH, fd:N, or {address, anonymous, mode, group}, of clients with registered memory (docs/TRANSPORTS.md); empty: none"},
    {"transport.clients", KIND_U32, AT(transport_clients), 1, 16384, "256", NULL, "of these, at a time"},
    {"transport.gpu_bytes", KIND_BYTES, AT(transport_gpu_bytes), 0, INT64_MAX, "\"256MiB\"", NULL,
     "of GPU memory that they may have in regions, together"},
    {"transport.trust_clients", KIND_ENUM, AT(transport_trust_clients), 0, 0, "\"off\"", off_on_names,
     "on: they may name memory by CUDA IPC handles, and share a GPU that NVIDIA MPS serves, where one that fails takes the daemon's context with it"},
    {"transport.spin_us", KIND_U32, AT(transport_spin_us), 0, 10000, "50", NULL,
     "that the engine, with nothing else to do, looks for another call of theirs before it sleeps; takes a processor meanwhile"},
    {"management.listen", KIND_STRING, AT(management), 0, 0, "\"\"", NULL,
     "address or unix:PATH (mode 0600) of probes, metrics and administration, on connections of their own; empty: none"},
    {"keys.file", KIND_STRING, AT(keys_file), 0, 0, "\"\"", NULL,
     "keys that clients need (attnctl key new makes one); read again at SIGHUP; empty: none is needed"},
    {"node", KIND_U32, AT(node), 0, CONFIG_NODE_MAX, "0", NULL,
     "number of this daemon among several: ids of its sequences and leases are node * 2^40 + n"},
    {"trusted_proxies", KIND_STRING, AT(trusted_proxies), 0, 0, "\"\"", NULL,
     "ADDRESS or ADDRESS/BITS, separated by commas, from which headers of the PROXY protocol are believed"},
    {"backend.name", KIND_STRING, AT(backend), 0, 0, "\"auto\"", NULL, "auto (CUDA if there is a GPU), cuda, cpu or reference (double precision, slow)"},
    {"backend.isa", KIND_STRING, AT(isa), 0, 0, "\"auto\"", NULL, "of the CPU backend: auto, portable, avx2, avx512 or amx"},
    {"backend.threads", KIND_U32, AT(threads), 0, 1024, "0", NULL, "of the CPU backend; 0: as many as this process may use"},
    {"backend.device", KIND_U32, AT(device), 0, 1024, "0", NULL, "of the CUDA backend: which GPU"},
    {"backend.kernel", KIND_ENUM, AT(kernel), 0, 0, "\"auto\"", config_kernel_names,
     "of the CUDA backend with the layout vllm: paged_v1, paged_v2, or auto: by length and batch"},
    {"backend.l2_prefetch", KIND_ENUM, AT(l2_prefetch), 0, 0, "\"off\"", off_on_names,
     "of the CUDA backend: on: attention of a layer brings the first K and V of the next one into the L2 cache; changes no bit"},
    {"backend.pass_stamps", KIND_ENUM, AT(pass_stamps), 0, 0, "\"off\"", off_on_names,
     "of the CUDA backend: on: the GPU notes when parts of each pass begin and end, for /v1/trace and merge_us; steps take longer"},
    {"backend.cache", KIND_STRING, AT(cache), 0, 0, "\"\"", NULL,
     "of the CUDA backend: folder for compiled kernels; empty: attnd under $XDG_CACHE_HOME or ~/.cache; none: not kept"},
    {"backend.step_timeout_s", KIND_U32, AT(step_timeout_s), 1, 86400, "60", NULL,
     "of the CUDA backend: a step, or a call of the driver, that takes longer is a failure of the GPU, which ends the daemon"},
    {"geometry.layers", KIND_U32, AT(geometry.layers), 1, LAYERS_MAX, "4", NULL, "attention layers"},
    {"geometry.query_heads", KIND_U32, AT(geometry.query_heads), 1, QUERY_HEADS_MAX, "8", NULL,
     "query heads; a multiple of kv_heads"},
    {"geometry.kv_heads", KIND_U32, AT(geometry.kv_heads), 1, KV_HEADS_MAX, "2", NULL, "key and value heads"},
    {"geometry.head_dim", KIND_U32, AT(geometry.head_dim), 1, HEAD_DIM_MAX, "64", NULL, "elements of a head; a multiple of 8"},
    {"geometry.block_size", KIND_U32, AT(geometry.block_size), 1, BLOCK_SIZE_MAX, "16", NULL, "token slots of a block"},
    {"geometry.dtype", KIND_ENUM, AT(geometry.dtype), 0, 0, "\"bf16\"", query_dtype_names, "of q and o: f32, f16, bf16"},
    {"geometry.kv_dtype", KIND_ENUM, AT(geometry.kv_dtype), 0, 0, "\"bf16\"", dtype_names, "of stored k and v"},
    {"geometry.layout", KIND_ENUM, AT(geometry.layout), 0, 0, "\"hnd\"", layout_names, "of a block in memory"},
    {"geometry.scale", KIND_F32, AT(geometry.scale), 0, 1e6, "0", NULL, "of q.k; 0: 1 / sqrt(head_dim)"},
    {"geometry.sparse_vert_stride", KIND_U32, AT(geometry.sparse.vert_stride), 0, 1 << 20, "0", NULL,
     "block-sparse attention (layout vllm): every so many blocks are seen by all; 0 or 1: off"},
    {"geometry.sparse_local_blocks", KIND_U32, AT(geometry.sparse.local_blocks), 1, 1 << 20, "16", NULL,
     "likewise: the latest blocks, which are seen too"},
    {"geometry.sparse_block_size", KIND_U32, AT(geometry.sparse.block_size), 1, 1 << 20, "64", NULL,
     "likewise: tokens of such a block"},
    {"geometry.sparse_head_step", KIND_U32, AT(geometry.sparse.head_sliding_step), -1024, 1024, "0", NULL,
     "likewise: blocks by which the pattern slides a query head; negative: a KV head"},
    {"geometry.sparse_tp_rank", KIND_U32, AT(geometry.sparse.tp_rank), 0, 1024, "0", NULL,
     "likewise: rank whose heads these are, under tensor parallelism"},
    {"geometry.softcap", KIND_F32, AT(geometry.softcap), 0, 1e6, "0", NULL, "scores become c tanh(score / c); 0: off"},
    {"geometry.window", KIND_WINDOW, AT(geometry.window), 0, UINT32_MAX, "0", NULL,
     "tokens a query sees, itself included; 0: all; a list repeats over the layers"},
    {"geometry.sinks", KIND_CONSTANTS, 0, 0, 0, "false", NULL,
     "false, a number, a list per query head, lists per layer, or \"seeded\""},
    {"geometry.alibi", KIND_CONSTANTS, 0, 0, 0, "false", NULL,
     "slopes: false, a number, a list per query head, or \"seeded\" (the usual geometric ones)"},
    {"geometry.k_scale", KIND_CONSTANTS, 0, 0, 0, "1", NULL,
     "of fp8 keys: a number, a list per KV head, lists per layer, or \"seeded\""},
    {"geometry.v_scale", KIND_CONSTANTS, 0, 0, 0, "1", NULL, "of fp8 values: likewise"},
    {"pool.blocks", KIND_COUNT, AT(pool_blocks), 1, POOL_BLOCKS_MAX, "4096", NULL, "KV blocks"},
    {"pool.bytes", KIND_BYTES, AT(pool_bytes), 1, (double)POOL_BYTES_MAX, "\"128MiB\"", NULL,
     "the same as bytes (\"8GiB\"); of the two the one set last counts"},
    {"pool.memory", KIND_F32, AT(pool_memory), 0, 0.95, "0", NULL,
     "share of the memory that is free at start to take instead (with CUDA the GPU's, else with the history of blocks); 0: off"},
    {"pool.host_blocks", KIND_COUNT, AT(host_blocks), 0, POOL_BLOCKS_MAX, "0", NULL,
     "blocks in host memory, to which idle sequences are swapped when the pool is full; 0: none"},
    {"pool.file_blocks", KIND_COUNT, AT(file_blocks), 0, POOL_BLOCKS_MAX, "0", NULL,
     "that can be swapped out in all: in a file of state.dir, of which pool.host_blocks are kept in memory; 0: no file"},
    {"memory.bytes", KIND_BYTES, AT(memory_bytes), 0, (double)(UINT64_C(1) << 50), "0", NULL,
     "for bodies, answers, tensors and workloads, all together; 0: what is left after the start (--check-config)"},
    {"limits.connections", KIND_U32, AT(limits.connections), 1, 65536, "1024", NULL, "open at a time"},
    {"limits.unknown_connections", KIND_U32, AT(limits.unknown_connections), 1, 65536, "64", NULL,
     "of these, of one address from which no key has come yet; where there is a keys file"},
    {"limits.header_timeout_s", KIND_U32, AT(limits.header_timeout_s), 1, 3600, "10", NULL,
     "from the first byte of a request to the end of its headers"},
    {"limits.body_timeout_s", KIND_U32, AT(limits.body_timeout_s), 1, 3600, "30", NULL,
     "in which some of a body has to come, or some of an answer be read: limits.bytes_per_s of each second"},
    {"limits.bytes_per_s", KIND_U32, AT(limits.bytes_per_s), 1, 1 << 30, "4096", NULL,
     "of a body or an answer, at least; slower clients would keep memory from others"},
    {"limits.keepalive_s", KIND_U32, AT(limits.keepalive_s), 1, 86400, "75", NULL, "between two requests"},
    {"limits.sequences", KIND_U32, AT(limits.sequences), 1, 65536, "1024", NULL, "at a time"},
    {"limits.sequence_tokens", KIND_U32, AT(limits.sequence_tokens), 1, 1 << 24, "131072", NULL, "of one sequence"},
    {"limits.calls", KIND_U32, AT(limits.calls), 1, 4096, "256", NULL, "under way at a time; more are refused with 503"},
    {"limits.rows_per_call", KIND_U32, AT(limits.rows_per_call), 1, 65536, "16384", NULL,
     "query rows, and appended tokens, of one call; it is cut into as many steps as it takes"},
    {"limits.idle_timeout_s", KIND_U32, AT(limits.idle_timeout_s), 0, 31536000, "600", NULL,
     "after which an unused sequence is removed, unless it says otherwise; 0: never"},
    {"limits.workload_s", KIND_U32, AT(limits.workload_s), 1, 31536000, "604800", NULL,
     "that a workload may take, unless its deadline_s says less; then it is cancelled"},
    {"limits.workload_kept_s", KIND_U32, AT(limits.workload_kept_s), 0, 31536000, "3600", NULL,
     "that an ended workload is told about; of more than 16 the latest are"},
    {"limits.body_bytes", KIND_BYTES, AT(limits.body_bytes), 1 << 20, 1 << 30, "\"64MiB\"", NULL,
     "of a safetensors body; JSON has 64 KiB"},
    {"limits.staging_bytes", KIND_BYTES, AT(limits.staging_bytes), 0, (double)(UINT64_C(1) << 40), "0", NULL,
     "memory for tensors of all calls under way, pinned with a GPU; 0: eight times limits.body_bytes and 32 MiB"},
    {"scheduler.step_rows_max", KIND_U32, AT(step_rows_max), 1, 65536, "4096", NULL,
     "query rows, and appended tokens, of one step"},
    {"scheduler.step_us_max", KIND_U32, AT(step_us_max), 0, 60000000, "0", NULL,
     "estimated microseconds of a step: larger work is cut; 0: 20000 on a CPU, 4000 on a GPU"},
    {"scheduler.step_us_shared", KIND_U32, AT(step_us_shared), 0, 60000000, "0", NULL,
     "likewise of bulk work while others make small calls; 0: 2000 on a CPU, 500 on a GPU"},
    {"scheduler.batch_window_us", KIND_U32, AT(batch_window_us), 0, 600000000, "0", NULL,
     "that the rows of a client wait for others to share their step"},
    {"scheduler.slow_step_ms", KIND_U32, AT(slow_step_ms), 0, 3600000, "1000", NULL,
     "a step that takes longer is logged, one a second at most; 0: none is"},
    {"scheduler.admission", KIND_ENUM, AT(admission), 0, 0, "\"forecast\"", admission_names,
     "of workloads' sequences: forecast (never preempted) or optimistic"},
    {"scheduler.sharing", KIND_ENUM, AT(sharing), 0, 0, "\"auto\"", config_sharing_names,
     "whether rows whose tables begin alike read those blocks together: auto (where it saves time, as measured at start), on or off; a workload may say otherwise; the bits are the same"},
    {"history.epochs", KIND_U32, AT(history_epochs), 16, 16384, "1024", NULL,
     "latest changes of the block tables that can be undone: /v1/blocks?epoch="},
    {"drain.deadline_s", KIND_U32, AT(drain_deadline_s), 0, 86400, "25", NULL,
     "at the end (SIGTERM, POST /v1/drain), for what is under way; what remains is cut; 0: as long as it takes"},
    {"drain.lame_duck_s", KIND_U32, AT(drain_lame_duck_s), 0, 3600, "0", NULL,
     "before that: /readyz says draining, and clients are served as before, until load balancers have noticed"},
    {"drain.save_deadline_s", KIND_U32, AT(drain_save_deadline_s), 0, 86400, "0", NULL,
     "after that, for saving sequences in state.dir; what remains is named in the log; 0: half more than the disk should take (--check-config)"},
    {"state.dir", KIND_STRING, AT(state_dir), 0, 0, "\"\"", NULL,
     "folder, of mode 0700, in which sequences are saved at the end and from which they are restored at the start; empty: they end with the daemon"},
    {"journal.path", KIND_STRING, AT(journal_path), 0, 0, "\"\"", NULL,
     "folder in which requests and every decision are recorded, for attnctl replay --check (docs/OPERATIONS.md); empty: none are"},
    {"journal.bytes", KIND_BYTES, AT(journal_bytes), 1 << 18, (double)(UINT64_C(1) << 50), "\"4GiB\"", NULL,
     "of all its files; then the journal stops, and the daemon goes on. Files of earlier runs make room"},
    {"journal.file_bytes", KIND_BYTES, AT(journal_file_bytes), 1 << 16, (double)(UINT64_C(1) << 40), "\"64MiB\"", NULL,
     "of a file, after which the next one begins"},
    {"journal.token_ids", KIND_ENUM, AT(journal_token_ids), 0, 0, "\"off\"", off_on_names,
     "on: ids of tokens are recorded as they are; off: hashed, by a key that is never written"},
    {"debug.poison", KIND_ENUM, AT(poison), 0, 0, "\"off\"", off_on_names,
     "on: slots that nobody has written are NaN, and a call whose output is NaN is told which one it has read (docs/POISON.md); not with journal.path"},
    {"events.zmq.endpoint", KIND_STRING, AT(events.endpoint), 0, 0, "\"\"", NULL,
     "ipc://PATH (a socket of mode 0600) or tcp://HOST:PORT, where events of the prefix cache are published as vLLM's (docs/EVENTS.md); not loopback: wants curve_file and token_ids; empty: nowhere"},
    {"events.zmq.replay", KIND_STRING, AT(events.replay), 0, 0, "\"\"", NULL,
     "likewise, where past batches can be asked for; empty: nowhere"},
    {"events.zmq.replay_bytes", KIND_BYTES, AT(events.replay_bytes), 1 << 16, (double)(UINT64_C(1) << 40), "\"16MiB\"", NULL,
     "of past batches that are kept for that"},
    {"events.zmq.topic", KIND_STRING, AT(events.topic), 0, 0, "\"\"", NULL, "first frame of a batch, by which subscribers choose"},
    {"events.zmq.hwm", KIND_U32, AT(events.hwm), 1, 1000000, "1000", NULL,
     "batches that wait for a subscriber who does not read; what comes then it misses"},
    {"events.zmq.curve_file", KIND_STRING, AT(events.curve_file), 0, 0, "\"\"", NULL,
     "CURVE keys, of mode 0600: a line `secret KEY`, and a line `client KEY` for each public key that may subscribe; empty: no CURVE"},
    {"events.zmq.token_ids", KIND_ENUM, AT(events.token_ids), 0, 0, "\"off\"", off_on_names,
     "on: events, which have the token ids of prompts, may leave this machine"},
    {"events.zmq.salted", KIND_ENUM, AT(events.salted), 0, 0, "\"off\"", off_on_names,
     "on: blocks of salted sequences are published too, with their salts"},
    {"log.level", KIND_ENUM, AT(log_level), 0, 0, "\"info\"", log_level_names, "error, warning, info, debug"},
    {"log.format", KIND_ENUM, AT(log_format), 0, 0, "\"text\"", log_format_names, "text, logfmt or json"},
    {"log.requests", KIND_ENUM, AT(log_requests), 0, 0, "\"off\"", log_requests_names,
     "a line at info for requests that succeed: off, slow (those that take longer than log.slow_ms) or all; at most 1000 a second"},
    {"log.slow_ms", KIND_U32, AT(log_slow_ms), 0, 86400000, "1000", NULL,
     "from the head of a request to the end of its answer, which a stream's is too; for log.requests=slow"},
};
/* clang-format on */

enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

static const struct key *key_find(const char *path)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].path, path) == 0)
            return &keys[i];
    }
    return NULL;
}

static struct config_origin *origin_of(const struct config *c, const struct key *key)
{
    return &c->origins[key - keys];
}

static int __attribute__((format(printf, 2, 3))) fail(char error[CONFIG_ERROR_BYTES], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, CONFIG_ERROR_BYTES, format, args);
    va_end(args);
    return ATTND_INVALID;
}

static char *__attribute__((format(printf, 1, 2))) format_text(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        abort();
    va_end(args);
    return text;
}

/* "512MiB", "4096": false when it is neither. */
static bool parse_bytes(const char *text, double *bytes)
{
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || errno)
        return false;
    const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i]) == 0) {
            *bytes = number * (double)(UINT64_C(1) << (10 * i));
            return *bytes == floor(*bytes);
        }
    }
    return false;
}

static int wants(char *reason, const char *what)
{
    snprintf(reason, CONFIG_ERROR_BYTES, "wants %s", what);
    return ATTND_INVALID;
}

static int wants_integer(const struct key *key, char *reason)
{
    snprintf(reason, CONFIG_ERROR_BYTES, "wants an integer in %.0f..%.0f", key->min, key->max);
    return ATTND_INVALID;
}

/* One of the names; of off and on also false and true. */
static int store_enum(const struct key *key, const cJSON *item, int *value, char *reason)
{
    size_t n = 0;
    if (key->names == off_on_names && cJSON_IsBool(item)) {
        *value = cJSON_IsTrue(item);
        return 0;
    }
    if (cJSON_IsString(item)) {
        for (int i = 0; key->names[i]; i++) {
            if (strcmp(key->names[i], item->valuestring) == 0) {
                *value = i;
                return 0;
            }
        }
    }
    n = (size_t)snprintf(reason, CONFIG_ERROR_BYTES, "wants one of");
    for (int i = 0; key->names[i]; i++)
        n += (size_t)snprintf(reason + n, CONFIG_ERROR_BYTES - n, " \"%s\"", key->names[i]);
    return ATTND_INVALID;
}

static int store_window(const struct key *key, const cJSON *item, uint32_t *window, char *reason)
{
    int64_t value;
    uint32_t period = 0;
    const cJSON *entry;
    if (json_is_integer(item, 0, UINT32_MAX, &value)) {
        window[period++] = (uint32_t)value;
    } else if (cJSON_IsArray(item)) {
        cJSON_ArrayForEach (entry, item) {
            if (period == LAYERS_MAX || !json_is_integer(entry, 0, UINT32_MAX, &value))
                return wants_integer(key, reason);
            window[period++] = (uint32_t)value;
        }
    }
    if (period == 0) {
        snprintf(reason, CONFIG_ERROR_BYTES, "wants an integer in %.0f..%.0f, or a list of these", key->min,
                 key->max);
        return ATTND_INVALID;
    }
    for (uint32_t i = period; i < LAYERS_MAX; i++)
        window[i] = window[i - period];
    return 0;
}

static const cJSON *member(const cJSON *item, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(item, name);
}

/* "none", "read" or "infer"; absent: none. */
static bool store_anonymous(const cJSON *item, unsigned *scopes)
{
    const char *word = item ? cJSON_GetStringValue(item) : "none";
    if (!word)
        return false;
    *scopes = strcmp(word, "infer") == 0  ? SCOPE_INFER | SCOPE_READ
              : strcmp(word, "read") == 0 ? SCOPE_READ
                                          : 0;
    return *scopes || strcmp(word, "none") == 0;
}

/* An octal number, as a string: JSON has none. */
static bool store_mode(const cJSON *item, uint32_t *mode)
{
    char *end = NULL;
    const char *text = cJSON_GetStringValue(item);
    unsigned long value = text ? strtoul(text, &end, 8) : 0;
    *mode = (uint32_t)value;
    return !item ||
           (text && *text >= '0' && *text <= '7' && end && *end == '\0' && value >= 1 && value <= 0777);
}

/* Refuse members that a listener has not. */
static int check_members(const cJSON *item, char *reason)
{
    static const char *const names[] = {"address", "anonymous", "proxy_protocol", "mode", "group"};
    for (const cJSON *entry = cJSON_IsObject(item) ? item->child : NULL; entry; entry = entry->next) {
        const char *near = NULL;
        bool is_there = false;
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            near = nearest_of(entry->string, near, names[i]);
            is_there = is_there || strcmp(names[i], entry->string) == 0;
        }
        if (is_there)
            continue;
        snprintf(reason, CONFIG_ERROR_BYTES, "%.64s: no such member; %s%s", entry->string,
                 near ? "did you mean " : "there are address, anonymous, proxy_protocol, mode and group",
                 near ? near : "");
        if (near)
            strcat(reason, "?");
        return ATTND_INVALID;
    }
    return 0;
}

static int store_listener(const cJSON *item, struct config_listener *l, char *reason)
{
    const cJSON *address = cJSON_IsObject(item) ? member(item, "address") : item,
                *proxy = member(item, "proxy_protocol"), *group = member(item, "group");
    *l = (struct config_listener){.proxy_protocol = cJSON_IsTrue(proxy)};
    if (check_members(item, reason) != 0)
        return ATTND_INVALID;
    if (!cJSON_IsString(address) || strlen(address->valuestring) >= sizeof l->address)
        return wants(reason, "an address of at most 127 bytes, HOST:PORT, [HOST]:PORT, unix:PATH or fd:N, or "
                             "an object with one");
    strcpy(l->address, address->valuestring);
    if (!store_anonymous(member(item, "anonymous"), &l->anonymous))
        return wants(reason, "none, read or infer as anonymous");
    if (proxy && !cJSON_IsBool(proxy))
        return wants(reason, "true or false as proxy_protocol");
    if (!store_mode(member(item, "mode"), &l->mode))
        return wants(reason, "an octal number like \"0660\" as mode");
    if (group && (!cJSON_IsString(group) || strlen(group->valuestring) >= sizeof l->group))
        return wants(reason, "a string of at most 31 bytes as group");
    if (group)
        strcpy(l->group, group->valuestring);
    return 0;
}

static int store_listeners(struct config *c, const cJSON *item, char *reason)
{
    int rc = 0, n = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : 1;
    const cJSON *entry = cJSON_IsArray(item) ? item->child : item;
    if (n < 1 || n > CONFIG_LISTENERS_MAX)
        return wants(reason, "1 to 8 addresses");
    for (c->listener_count = 0; rc == 0 && (int)c->listener_count < n; entry = entry->next)
        rc = store_listener(entry, &c->listeners[c->listener_count++], reason);
    return rc;
}

/* Store `item` in the member of `c` that `key` names; ATTND_INVALID with `reason` when it does not fit. */
static int store(struct config *c, const struct key *key, const cJSON *item, char *reason)
{
    void *to = (char *)c + key->offset;
    double number = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    switch (key->kind) {
    case KIND_STRING:
        if (!cJSON_IsString(item) || strlen(item->valuestring) >= CONFIG_STRING_BYTES)
            return wants(reason, "a string of at most 127 bytes");
        strcpy(to, item->valuestring);
        return 0;
    case KIND_LISTEN:
        return store_listeners(c, item, reason);
    case KIND_LISTENER:
        return store_listener(item, to, reason);
    case KIND_ENUM:
        return store_enum(key, item, to, reason);
    case KIND_U32:
        if (!(number >= key->min && number <= key->max) || number != floor(number))
            return wants_integer(key, reason);
        *(uint32_t *)to = (uint32_t)(int64_t)number; /* int32_t where it may be negative */
        return 0;
    case KIND_BYTES:
        if (cJSON_IsString(item) && !parse_bytes(item->valuestring, &number))
            return wants(reason, "a whole number, or one with KiB, MiB, GiB or TiB");
        /* fall through */
    case KIND_COUNT:
        if (!(number >= key->min && number <= key->max) || number != floor(number))
            return wants_integer(key, reason);
        *(uint64_t *)to = (uint64_t)number;
        return 0;
    case KIND_F32:
        if (!(number >= key->min && number <= key->max)) {
            snprintf(reason, CONFIG_ERROR_BYTES, "wants a number in %g..%g", key->min, key->max);
            return ATTND_INVALID;
        }
        *(float *)to = (float)number;
        return 0;
    case KIND_WINDOW:
        return store_window(key, item, to, reason);
    case KIND_CONSTANTS:
        return 0; /* checked once the geometry is known */
    }
    return ATTND_INVALID;
}

/* Give `key` the value `item` from `place`; takes ownership of both. */
static int assign(struct config *c, const struct key *key, enum origin_kind kind, cJSON *item, char *place,
                  char error[CONFIG_ERROR_BYTES])
{
    char reason[CONFIG_ERROR_BYTES];
    struct config_origin *origin = origin_of(c, key);
    cJSON_Delete(origin->item);
    free(origin->place);
    *origin = (struct config_origin){kind, item, place};
    if (store(c, key, item, reason) != 0)
        return fail(error, "%s: %s: %.300s", place, key->path, reason);
    return 0;
}

static int apply_defaults(struct config *c, char error[CONFIG_ERROR_BYTES])
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        cJSON *item = cJSON_Parse(keys[i].fallback);
        int rc = assign(c, &keys[i], FROM_DEFAULT, item, format_text("default"), error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* The error of a path that is no key, found at `place`, with the key that it is near to, or that has it behind a section.
 * ATTND_NOT_FOUND: config_load() says where keys are listed. */
static int no_key(const char *place, const char *path, char error[CONFIG_ERROR_BYTES])
{
    const char *near = NULL;
    for (size_t i = 0; i < KEY_COUNT; i++)
        near = nearest_of(path, near, keys[i].path);
    for (size_t i = 0; !near && i < KEY_COUNT; i++) {
        const char *dot = strrchr(keys[i].path, '.');
        near = dot && strcmp(dot + 1, path) == 0 ? keys[i].path : NULL;
    }
    (void)fail(error, "%.300s: %s: no such key%s%s%s", place, path, near ? "; did you mean " : "",
               near ? near : "", near ? "?" : "");
    return ATTND_NOT_FOUND;
}

/* Refuse a section that is none, empty or not: sections are what paths of keys have ahead of their dots. */
static int check_section(const char *place, const char *name, char error[CONFIG_ERROR_BYTES])
{
    char section[PATH_BYTES], near[PATH_BYTES] = "";
    for (size_t i = 0; i < KEY_COUNT; i++) {
        for (const char *dot = keys[i].path; (dot = strchr(dot, '.')) != NULL; dot++) {
            snprintf(section, sizeof section, "%.*s", (int)(dot - keys[i].path), keys[i].path);
            if (strcmp(section, name) == 0)
                return 0;
            if (nearest_of(name, *near ? near : NULL, section) == section)
                strcpy(near, section);
        }
    }
    (void)fail(error, "%.300s: %.100s: no such section%s%s%s", place, name, *near ? "; did you mean " : "",
               near, *near ? "?" : "");
    return ATTND_NOT_FOUND;
}

/* Every member of `tree`, whose path so far is `prefix`: a section is entered, a key assigned. */
static int apply_tree(struct config *c, cJSON *tree, const char *prefix, const char *file, const char *text,
                      size_t bytes, char error[CONFIG_ERROR_BYTES])
{
    cJSON *next;
    for (cJSON *item = tree->child; item; item = next) {
        char path[PATH_BYTES];
        next = item->next;
        int n = snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", item->string);
        const struct key *key = n < (int)sizeof path ? key_find(path) : NULL;
        struct json_place at = json_place(text, json_locate(text, bytes, path));
        char *place = format_text("%s:%u:%u", file, at.line, at.column);
        int rc;
        if (key) {
            cJSON_DetachItemViaPointer(tree, item);
            rc = assign(c, key, FROM_FILE, item, place, error);
            place = NULL; /* kept by the origin */
        } else if (cJSON_IsObject(item) && n < (int)sizeof path) {
            rc = check_section(place, path, error);
            if (rc == 0)
                rc = apply_tree(c, item, path, file, text, bytes, error);
        } else {
            rc = no_key(place, path, error);
        }
        free(place);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* The whole file, malloc'd; NULL with `error` filled. */
static char *read_file(const char *path, size_t *bytes, char error[CONFIG_ERROR_BYTES])
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(CONFIG_FILE_BYTES_MAX + 1) : NULL;
    if (!text) {
        fail(error, "%s: %s", path, strerror(errno));
        if (f)
            fclose(f);
        return NULL;
    }
    *bytes = fread(text, 1, CONFIG_FILE_BYTES_MAX + 1, f);
    int broken = ferror(f) ? errno : 0;
    fclose(f);
    if (broken || *bytes > CONFIG_FILE_BYTES_MAX) {
        fail(error, "%s: %s", path, broken ? strerror(broken) : "larger than 1 MiB");
        free(text);
        return NULL;
    }
    return text;
}

/* Whether a text that is no JSON was not meant to be: it begins neither as that nor with a comment. */
static bool is_other(const char *text, size_t bytes, size_t *begin)
{
    *begin = 0;
    while (*begin < bytes && strchr(" \t\r\n", text[*begin]) && text[*begin])
        ++*begin;
    return *begin < bytes && !(text[*begin] && strchr("{[\"/", text[*begin]));
}

/* What is in a file, or would be in one: `file` is what errors call it. `text` is overwritten. */
static int apply_text(struct config *c, const char *file, char *text, size_t bytes,
                      char error[CONFIG_ERROR_BYTES])
{
    struct json_error wrong;
    size_t begin;
    cJSON *tree = NULL;
    int rc = json_blank_comments(text, bytes, &wrong);
    if (rc == 0)
        rc = json_parse(text, bytes, &tree, &wrong);
    if (rc != 0 && is_other(text, bytes, &begin)) {
        struct json_place at = json_place(text, begin);
        rc = fail(error,
                  "%s:%u:%u: this is no JSON: a configuration is one JSON object, with comments if wanted",
                  file, at.line, at.column);
    } else if (rc != 0) {
        struct json_place at = json_place(text, wrong.offset);
        rc = fail(error, "%s:%u:%u: %s", file, at.line, at.column, wrong.reason);
    } else if (!cJSON_IsObject(tree)) {
        rc = fail(error, "%s:1:1: the configuration is one JSON object", file);
    } else {
        rc = apply_tree(c, tree, "", file, text, bytes, error);
    }
    cJSON_Delete(tree);
    return rc;
}

static int apply_file(struct config *c, const char *file, char error[CONFIG_ERROR_BYTES])
{
    size_t bytes;
    char *text = read_file(file, &bytes, error);
    int rc = text ? apply_text(c, file, text, bytes, error) : ATTND_INVALID;
    free(text);
    return rc;
}

static int apply_copy(struct config *c, const char *from, char error[CONFIG_ERROR_BYTES])
{
    size_t bytes = strlen(from);
    if (bytes > CONFIG_FILE_BYTES_MAX)
        return fail(error, "configuration: larger than 1 MiB");
    char *text = strdup(from);
    int rc = text ? apply_text(c, "configuration", text, bytes, error) : fail(error, "out of memory");
    free(text);
    return rc;
}

/* Whether a text that is no JSON was to be: [::1]:8400 is an address. */
static bool is_broken_json(const struct key *key, const char *text)
{
    bool is_address = (key->kind == KIND_LISTEN || key->kind == KIND_LISTENER) && text[0] == '[' &&
                      text[1] != '"' && text[1] != '{';
    return !is_address && text[0] && strchr("[{\"", text[0]);
}

/* A value from a flag or the environment: JSON if it is JSON, else the text itself as a string. */
static int parse_word(const struct key *key, const char *text, const char *place, cJSON **item,
                      char error[CONFIG_ERROR_BYTES])
{
    struct json_error wrong;
    bool bare = key->kind == KIND_STRING || (key->kind == KIND_ENUM && key->names != off_on_names);
    if (!bare && json_parse(text, strlen(text), item, &wrong) == 0)
        return 0;
    if (!bare && is_broken_json(key, text))
        return fail(error, "%s: %s: broken JSON at character %zu: %s", place, key->path, wrong.offset + 1,
                    wrong.reason);
    *item = cJSON_CreateString(text);
    return 0;
}

/* GEOMETRY__HEAD_DIM -> geometry.head_dim; cut where it is longer than any. */
static void path_of_variable(const char *name, size_t name_bytes, char path[PATH_BYTES])
{
    size_t n = 0;
    name_bytes = name_bytes < PATH_BYTES ? name_bytes : PATH_BYTES - 1;
    for (size_t i = 0; i < name_bytes; i++) {
        bool section = name[i] == '_' && i + 1 < name_bytes && name[i + 1] == '_';
        path[n++] = section ? '.' : (char)tolower((unsigned char)name[i]);
        i += section;
    }
    path[n] = '\0';
}

/* geometry.head_dim -> GEOMETRY__HEAD_DIM. */
static void variable_of_path(const char *path, char name[PATH_BYTES])
{
    size_t n = 0;
    for (; *path && n + 2 < PATH_BYTES; path++) {
        if (*path == '.')
            name[n++] = '_';
        name[n++] = *path == '.' ? '_' : (char)toupper((unsigned char)*path);
    }
    name[n] = '\0';
}

/* Say that a variable is ignored, and which one it is near to: mostly one with two underscores. */
static void warn_of_variable(const char *name, size_t name_bytes)
{
    char written[PATH_BYTES], name_of_key[PATH_BYTES], near[PATH_BYTES] = "";
    snprintf(written, sizeof written, "%.*s", (int)(name_bytes < PATH_BYTES ? name_bytes : PATH_BYTES - 1),
             name);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        variable_of_path(keys[i].path, name_of_key);
        if (nearest_of(written, *near ? near : NULL, name_of_key) == name_of_key)
            strcpy(near, name_of_key);
    }
    log_line(LOG_WARNING, "environment ATTND_%s: no key of attnd%s%s%s (attnd --help lists them); ignored",
             written, *near ? "; did you mean ATTND_" : "", near, *near ? "?" : "");
}

static int apply_environment(struct config *c, char *const *environment, char error[CONFIG_ERROR_BYTES])
{
    static const char prefix[] = "ATTND_";
    for (; environment && *environment; environment++) {
        const char *equals = strchr(*environment, '=');
        if (strncmp(*environment, prefix, sizeof prefix - 1) != 0 || !equals)
            continue;
        const char *name = *environment + sizeof prefix - 1;
        char path[PATH_BYTES], place[2 * PATH_BYTES];
        path_of_variable(name, (size_t)(equals - name), path);
        const struct key *key = key_find(path);
        if (!key && !memmem(name, (size_t)(equals - name), "__",
                            2)) { /* Kubernetes sets ATTND_PORT for a service named attnd */
            warn_of_variable(name, (size_t)(equals - name));
            continue;
        }
        snprintf(place, sizeof place, "environment %.*s", (int)(equals - *environment), *environment);
        if (!key)
            return no_key(place, path, error);
        cJSON *item = NULL;
        int rc = parse_word(key, equals + 1, place, &item, error);
        if (rc == 0)
            rc = assign(c, key, FROM_ENVIRONMENT, item, format_text("environment %.200s", *environment),
                        error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int apply_sets(struct config *c, const struct config_inputs *in, char error[CONFIG_ERROR_BYTES])
{
    for (size_t i = 0; i < in->set_count; i++) {
        const char *set = in->sets[i], *word = in->set_word ? in->set_word : "--set";
        const char *equals = strchr(set, '=');
        char path[PATH_BYTES], place[2 * PATH_BYTES];
        if (!equals || (size_t)(equals - set) >= sizeof path)
            return fail(error, "%s %.200s: wants PATH=VALUE", word, set);
        memcpy(path, set, (size_t)(equals - set));
        path[equals - set] = '\0';
        snprintf(place, sizeof place, "%s %.200s", word, set);
        const struct key *key = key_find(path);
        if (!key)
            return no_key(place, path, error);
        cJSON *item = NULL;
        int rc = parse_word(key, equals + 1, place, &item, error);
        if (rc == 0)
            rc = assign(c, key, FROM_FLAG, item, format_text("%s", place), error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* The error of a check across keys, placed at `path`. */
static int misfit(const struct config *c, const char *path, const char *reason,
                  char error[CONFIG_ERROR_BYTES])
{
    const struct key *key = key_find(path);
    return fail(error, "%s: %s: %s", key ? origin_of(c, key)->place : "configuration", path, reason);
}

static int check_geometry(struct config *c, char error[CONFIG_ERROR_BYTES])
{
    const char *field;
    char reason[GEOMETRY_REASON_BYTES], path[64];
    if (c->geometry.scale == 0)
        c->geometry.scale = (float)(1.0 / sqrt((double)c->geometry.head_dim));
    if (geometry_check(&c->geometry, &field, reason) == 0)
        return 0;
    snprintf(path, sizeof path, "geometry.%s", field);
    return misfit(c, path, reason, error);
}

static int fill_constants(struct config *c, char error[CONFIG_ERROR_BYTES])
{
    const struct model_constants_source source = {
        .sinks = origin_of(c, key_find("geometry.sinks"))->item,
        .alibi = origin_of(c, key_find("geometry.alibi"))->item,
        .k_scale = origin_of(c, key_find("geometry.k_scale"))->item,
        .v_scale = origin_of(c, key_find("geometry.v_scale"))->item,
    };
    const char *field;
    char reason[GEOMETRY_REASON_BYTES], path[64];
    if (model_constants_init(&c->constants, &c->geometry, &source, &field, reason) == 0)
        return 0;
    snprintf(path, sizeof path, "geometry.%s", field);
    return misfit(c, path, reason, error);
}

/* Of pool.blocks and pool.bytes the one from the stronger source counts; blocks when they are equal. */
static int resolve_pool(struct config *c, char error[CONFIG_ERROR_BYTES])
{
    uint64_t block_bytes = geometry_block_bytes(&c->geometry);
    enum origin_kind blocks_from = origin_of(c, key_find("pool.blocks"))->kind;
    enum origin_kind bytes_from = origin_of(c, key_find("pool.bytes"))->kind;
    char reason[GEOMETRY_REASON_BYTES];
    if (bytes_from > blocks_from) {
        c->pool_blocks = c->pool_bytes / block_bytes;
        if (c->pool_blocks == 0 || c->pool_blocks > POOL_BLOCKS_MAX) {
            snprintf(reason, sizeof reason, "%llu blocks of %llu bytes fit; wants 1..%u",
                     (unsigned long long)c->pool_blocks, (unsigned long long)block_bytes, POOL_BLOCKS_MAX);
            return misfit(c, "pool.bytes", reason, error);
        }
    } else if (bytes_from == blocks_from && bytes_from != FROM_DEFAULT) {
        return misfit(c, "pool.bytes", "set pool.blocks or pool.bytes, not both", error);
    }
    if (c->pool_blocks > POOL_BYTES_MAX / block_bytes) {
        snprintf(reason, sizeof reason, "%llu blocks of %llu bytes are more than 1 PiB",
                 (unsigned long long)c->pool_blocks, (unsigned long long)block_bytes);
        return misfit(c, "pool.blocks", reason, error);
    }
    c->pool_bytes = c->pool_blocks * block_bytes;
    return 0;
}

/* Room for the tensors of at least one call beside small ones (staging.h): a body, copies of what is not
 * aligned in it, lists and outputs. */
static int resolve_staging(struct config *c, char error[CONFIG_ERROR_BYTES])
{
    struct config_limits *l = &c->limits;
    uint64_t least = 6 * l->body_bytes + (UINT64_C(32) << 20);
    char reason[GEOMETRY_REASON_BYTES];
    l->staging_bytes = l->staging_bytes ? l->staging_bytes : 8 * l->body_bytes + (UINT64_C(32) << 20);
    if (l->staging_bytes >= least)
        return 0;
    snprintf(reason, sizeof reason, "wants at least %llu MiB, six times limits.body_bytes and 32 MiB",
             (unsigned long long)(least >> 20));
    return misfit(c, "limits.staging_bytes", reason, error);
}

uint32_t config_sequence_blocks(const struct config *c)
{
    uint64_t tokens = c->limits.sequence_tokens, pool = c->pool_blocks * c->geometry.block_size;
    return (uint32_t)((tokens < pool ? tokens : pool) / c->geometry.block_size) + 1;
}

/* Host memory is where a sequence comes to whole, from the file. */
static int check_file_blocks(const struct config *c, char error[CONFIG_ERROR_BYTES])
{
    uint32_t least = c->pool_memory > 0
                         ? c->limits.sequence_tokens / c->geometry.block_size + 1
                         : config_sequence_blocks(c); /* how large the pool comes to be, is not known */
    char reason[GEOMETRY_REASON_BYTES];
    if (c->file_blocks == 0)
        return 0;
    if (!c->state_dir[0])
        return misfit(c, "pool.file_blocks", "the file is in state.dir, which is not set", error);
    if (c->host_blocks < least) {
        snprintf(
            reason, sizeof reason,
            "with pool.file_blocks wants %u at least, those of the longest sequence (limits.sequence_tokens)",
            least);
        return misfit(c, "pool.host_blocks", reason, error);
    }
    if (c->file_blocks <= c->host_blocks) {
        snprintf(reason, sizeof reason,
                 "wants more than pool.host_blocks (%llu), which hold as many without a file",
                 (unsigned long long)c->host_blocks);
        return misfit(c, "pool.file_blocks", reason, error);
    }
    if (c->file_blocks > (uint64_t)INT64_MAX / geometry_block_bytes(&c->geometry))
        return misfit(c, "pool.file_blocks", "no file is so large", error);
    return 0;
}

/* What the journal cannot record yet. */
static int check_memory(const struct config *c, char error[CONFIG_ERROR_BYTES])
{
    static_assert(CONFIG_MEMORY_LEAST == 64 << 20, "the sentence says so");
    if (c->memory_bytes == 0 || c->memory_bytes >= CONFIG_MEMORY_LEAST)
        return 0;
    return misfit(c, "memory.bytes", "wants at least 64MiB, or 0: what is left after the start", error);
}

static int check_journal(const struct config *c, char error[CONFIG_ERROR_BYTES])
{
    if (!c->journal_path[0])
        return 0;
    if (c->poison)
        return misfit(c, "journal.path", "what debug.poison finds is not recorded", error);
    return 0;
}

/* An address of events: batches have the token ids of prompts, so they leave the machine for those only who have a key, and when that
 * is wanted. */
static int check_events_address(const struct config *c, const char *path, const char *text,
                                char error[CONFIG_ERROR_BYTES])
{
    struct zmq_address address;
    char reason[ZMQ_ADDRESS_REASON_BYTES];
    if (!*text)
        return 0;
    if (zmq_address_parse(text, &address, reason) != 0)
        return misfit(c, path, reason, error);
    if (!address.is_local && (!c->events.curve_file[0] || !c->events.token_ids))
        return misfit(c, path,
                      "events have the token ids of prompts: an address that is not loopback wants "
                      "events.zmq.curve_file and events.zmq.token_ids on",
                      error);
    return 0;
}

static int check_events(const struct config *c, char error[CONFIG_ERROR_BYTES])
{
    const struct config_events *e = &c->events;
    int rc = check_events_address(c, "events.zmq.endpoint", e->endpoint, error);
    if (rc == 0)
        rc = check_events_address(c, "events.zmq.replay", e->replay, error);
    if (rc == 0 && e->replay[0] && !e->endpoint[0])
        rc = misfit(c, "events.zmq.replay", "nothing is published: events.zmq.endpoint is not set", error);
    if (rc == 0 && e->replay[0] && strcmp(e->replay, e->endpoint) == 0 && strncmp(e->replay, "ipc:", 4) == 0)
        rc = misfit(c, "events.zmq.replay", "wants another path than events.zmq.endpoint", error);
    return rc;
}

int config_load(struct config *config, const struct config_inputs *inputs, char error[CONFIG_ERROR_BYTES])
{
    *config = (struct config){.origins = calloc(KEY_COUNT, sizeof *config->origins)};
    if (!config->origins)
        return fail(error, "out of memory");

    int rc = apply_defaults(config, error);
    if (rc == 0 && inputs->file)
        rc = apply_file(config, inputs->file, error);
    if (rc == 0 && inputs->text)
        rc = apply_copy(config, inputs->text, error);
    if (rc == 0)
        rc = apply_environment(config, inputs->environment, error);
    if (rc == 0)
        rc = apply_sets(config, inputs, error);
    if (rc == 0)
        rc = check_geometry(config, error);
    if (rc == 0)
        rc = fill_constants(config, error);
    if (rc == 0)
        rc = resolve_pool(config, error);
    if (rc == 0)
        rc = resolve_staging(config, error);
    if (rc == 0)
        rc = check_file_blocks(config, error);
    if (rc == 0)
        rc = check_memory(config, error);
    if (rc == 0)
        rc = check_journal(config, error);
    if (rc == 0)
        rc = check_events(config, error);
    if (rc == ATTND_NOT_FOUND && inputs->has_help) {
        size_t n = strlen(error);
        snprintf(error + n, CONFIG_ERROR_BYTES - n, " (attnd --help lists the keys)");
    }
    if (rc == 0)
        return 0;
    enum log_format format = config->log_format;
    config_deinit(config);
    config->log_format = format;
    return ATTND_INVALID;
}

void config_deinit(struct config *config)
{
    for (size_t i = 0; config->origins && i < KEY_COUNT; i++) {
        cJSON_Delete(config->origins[i].item);
        // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): assign() replaced what it freed
        free(config->origins[i].place);
    }
    free(config->origins);
    model_constants_deinit(&config->constants);
    *config = (struct config){0};
}

/* Whether it is pool.bytes that counts, and not pool.blocks. */
static bool pool_is_in_bytes(const struct config *c)
{
    return c->origins &&
           origin_of(c, key_find("pool.bytes"))->kind > origin_of(c, key_find("pool.blocks"))->kind;
}

const char *config_pool_key(const struct config *c)
{
    return c->pool_memory > 0 ? "pool.memory" : pool_is_in_bytes(c) ? "pool.bytes" : "pool.blocks";
}

/* Of pool.blocks and pool.bytes, the one that did not count. */
static const struct key *overruled_key(const struct config *c)
{
    return key_find(pool_is_in_bytes(c) ? "pool.blocks" : "pool.bytes");
}

/* How deep a key is in sections. */
static unsigned depth_of(const char *path)
{
    unsigned depth = 0;
    while ((path = strchr(path, '.')) != NULL) {
        depth++;
        path++;
    }
    return depth;
}

/* How many sections, from the outermost on, two keys have in common; none with NULL. */
static unsigned shared_depth(const struct key *a, const struct key *b)
{
    unsigned depth = 0;
    for (size_t i = 0; a && b && a->path[i] && a->path[i] == b->path[i]; i++)
        depth += a->path[i] == '.';
    return depth;
}

/* The part of a path that is so deep, and its bytes. */
static const char *part_of(const char *path, unsigned depth, int *bytes)
{
    while (depth-- > 0)
        path = strchr(path, '.') + 1;
    *bytes = (int)strcspn(path, ".");
    return path;
}

/* One key, with the sections that begin with it and those that end. */
static void print_key(FILE *out, const struct config *config, const struct key *key, const struct key *before,
                      const struct key *next)
{
    const struct config_origin *origin = origin_of(config, key);
    unsigned depth = depth_of(key->path), shared = shared_depth(key, next);
    char *value = cJSON_PrintUnformatted(origin->item);
    int n;
    for (unsigned i = shared_depth(before, key); i < depth; i++) {
        const char *part = part_of(key->path, i, &n);
        fprintf(out, "%*s\"%.*s\": {\n", 2 * (int)i + 2, "", n, part);
    }
    const char *name = part_of(key->path, depth, &n);
    fprintf(out, "%*s\"%.*s\": %s%s // %s\n", 2 * (int)depth + 2, "", n, name, value ? value : "null",
            next && shared == depth ? "," : "", origin->place);
    for (unsigned i = depth; i-- > shared;)
        fprintf(out, "%*s}%s\n", 2 * (int)i + 2, "", next && i == shared ? "," : "");
    free(value);
}

void config_print(const struct config *config, FILE *out)
{
    const struct key *shown[KEY_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (&keys[i] != overruled_key(config))
            shown[count++] = &keys[i];
    }
    fputs("{\n", out);
    for (size_t i = 0; i < count; i++)
        print_key(out, config, shown[i], i ? shown[i - 1] : NULL, i + 1 < count ? shown[i + 1] : NULL);
    fputs("}\n", out);
}

void config_print_bytes(FILE *out, const char *what, uint64_t bytes)
{
    fprintf(out, "%-24s %14llu bytes (%.1f MiB)\n", what, (unsigned long long)bytes,
            (double)bytes / (1 << 20));
}

void config_print_memory(const struct config *config, FILE *out)
{
    const struct geometry *g = &config->geometry;
    fprintf(out,
            "K and V of one token     2 x %u heads x %u dims x %zu bytes (%s) x %u layers = %llu bytes\n",
            g->kv_heads, g->head_dim, dtype_bytes(g->kv_dtype), dtype_name(g->kv_dtype), g->layers,
            (unsigned long long)(geometry_token_bytes(g) * g->layers));
    fprintf(out, "one block                %u tokens = %llu bytes\n", g->block_size,
            (unsigned long long)geometry_block_bytes(g));
    fprintf(out, "pool                     %llu blocks = %llu tokens\n",
            (unsigned long long)config->pool_blocks,
            (unsigned long long)(config->pool_blocks * g->block_size));
    config_print_bytes(out, "pool, memory", config->pool_bytes);
}

void config_print_keys(FILE *out)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        fprintf(out, "  %-24s %-18s %s\n", keys[i].path, keys[i].fallback, keys[i].help);
}

/* What a key may be, in words. */
static void print_range(FILE *out, const struct key *key)
{
    switch (key->kind) {
    case KIND_ENUM:
        for (size_t i = 0; key->names[i]; i++)
            fprintf(out, "%s%s", i ? " | " : "", key->names[i]);
        break;
    case KIND_U32:
    case KIND_COUNT:
        fprintf(out, "integer, %.0f to %.0f", key->min, key->max);
        break;
    case KIND_BYTES:
        if (key->max >= (double)INT64_MAX)
            fprintf(out, "integer of %.0f or more, or a size such as \"8GiB\"", key->min);
        else
            fprintf(out, "integer, %.0f to %.0f, or a size such as \"8GiB\"", key->min, key->max);
        break;
    case KIND_F32:
        fprintf(out, "number, %g to %g", key->min, key->max);
        break;
    case KIND_WINDOW:
        fputs("integer, or a list of these", out);
        break;
    case KIND_LISTEN:
        fputs("address, or a list of these", out);
        break;
    case KIND_LISTENER:
        fputs("address", out);
        break;
    case KIND_STRING:
        fprintf(out, "string of at most %d bytes", CONFIG_STRING_BYTES - 1);
        break;
    case KIND_CONSTANTS:
        fputs("number, or a list of these", out);
        break;
    }
}

void config_describe_keys(FILE *out)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        fprintf(out, "%s\t%s\t", keys[i].path, keys[i].fallback);
        print_range(out, &keys[i]);
        fprintf(out, "\t%s\n", keys[i].help);
    }
}
