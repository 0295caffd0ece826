/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - what /metrics shows: one table, from which the answer and docs/METRICS.md are written.
 *
 * A family with one sample is a line ONE: its value is an expression of the figures below. A family with labels is a line MANY: a
 * function writes its samples. Prometheus text format 0.0.4. Names end with their unit, counters with _total. Families of
 * another prefix are names that dashboards know already, where they mean the same: process_ is every exporter's, vllm: is
 * vLLM's. */
#include "server/metrics.h"

#include "config/log.h"
#include "config/version.h"
#include "server/api.h"
#include "server/access.h"
#include "server/http_tally.h"
#include "server/keys.h"
#include "server/process_figures.h"
#include "server/state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { METRICS_DIGEST_BYTES = 9 };

/* What the loop knows of a key, when it is asked. */
struct metrics_key {
    char name[KEY_NAME_BYTES];
    uint32_t calls;
    uint64_t staging_bytes;
    uint64_t problems;
    struct work_done done;
    unsigned digest_count;
    double used_s[KEY_DIGESTS_MAX];
    char digests[KEY_DIGESTS_MAX][METRICS_DIGEST_BYTES]; /* their first digits */
};

/* What the table's expressions are of. */
struct figures {
    const struct engine_stats *stats;
    const struct block_pool_counts *pool;
    const struct block_tables_counts *tables;
    const struct render_context *context;
    const struct process_figures *process;
    const struct metrics_key *keys; /* [tenant_count], of each of */
    const struct request_tenant *tenants;
    uint32_t tenant_count;
};

typedef void (*write_samples)(struct json_writer *w, const char *name, const struct figures *f);

struct family {
    const char *type, *name;
    const char *labels;  /* names, for the document; NULL: none */
    write_samples write; /* NULL: one sample */
    const char *help;
};

/* ---- families with labels ---------------------------------------------------------------------------- */

static void write_value(struct json_writer *w, double value)
{
    char text[40];
    snprintf(text, sizeof text, isnan(value) ? " NaN\n" : " %.17g\n", value);
    json_raw(w, text);
}

/* One sample; `label` is a pair of a name and a value that needs no escapes. */
static void write_sample(struct json_writer *w, const char *name, const char *label, const char *is,
                         double value)
{
    char text[128];
    snprintf(text, sizeof text, "%s{%s=\"%s\"}", name, label, is);
    json_raw(w, text);
    write_value(w, value);
}

/* A histogram: `n` bounded buckets and one more; counts are of each bucket by itself. `labels` is "" or ends with a comma. */
static void write_histogram(struct json_writer *w, const char *name, const char *labels, const double *bounds,
                            const uint64_t *counts, unsigned n, double sum)
{
    char text[256];
    uint64_t all = 0;
    for (unsigned i = 0; i <= n; i++) {
        char bound[24] = "+Inf";
        all += counts[i];
        if (i < n)
            snprintf(bound, sizeof bound, "%g", bounds[i]);
        snprintf(text, sizeof text, "%s_bucket{%sle=\"%s\"} %" PRIu64 "\n", name, labels, bound, all);
        json_raw(w, text);
    }
    int pairs = labels[0] ? (int)strlen(labels) - 1 : 0;
    snprintf(text, sizeof text, pairs ? "%s_sum{%.*s} %.17g\n" : "%s_sum%.*s %.17g\n", name, pairs, labels,
             sum);
    json_raw(w, text);
    snprintf(text, sizeof text, pairs ? "%s_count{%.*s} %" PRIu64 "\n" : "%s_count%.*s %" PRIu64 "\n", name,
             pairs, labels, all);
    json_raw(w, text);
}

static void write_build(struct json_writer *w, const char *name, const struct figures *f)
{
    char text[512];
    const struct attention_info *backend = f->context->backend;
    snprintf(text, sizeof text, "%s{version=\"%s\",commit=\"%s\",backend=\"%s\",isa=\"%s\",node=\"n%u\"} 1\n",
             name, ATTND_VERSION, ATTND_COMMIT, backend->name, backend->isa, f->context->config->node);
    json_raw(w, text);
}

static void write_blocks(struct json_writer *w, const char *name, const struct figures *f)
{
    const double blocks[] = {f->pool->free, f->pool->held, f->pool->cached, f->pool->fenced};
    for (int i = 0; i < 4; i++)
        write_sample(w, name, "state", api_block_states[i], blocks[i]);
}

static void write_sequences(struct json_writer *w, const char *name, const struct figures *f)
{
    for (int i = 0; i < SEQUENCE_STATES; i++)
        write_sample(w, name, "state", api_sequence_states[i], f->stats->states[i]);
}

/* A sample a key: `value` is of key number i. */
#define OF_KEYS(function, value)                                                                             \
    static void function(struct json_writer *w, const char *name, const struct figures *f)                   \
    {                                                                                                        \
        for (uint32_t i = 0; i < f->tenant_count; i++)                                                       \
            write_sample(w, name, "key", f->keys[i].name, (double)(value));                                  \
    }
OF_KEYS(write_key_sequences, f->tenants[i].use.sequences)
OF_KEYS(write_key_blocks, f->tenants[i].use.blocks)
OF_KEYS(write_key_workloads, f->tenants[i].use.workloads)
OF_KEYS(write_key_calls, f->keys[i].calls)
OF_KEYS(write_key_staging, f->keys[i].staging_bytes)
OF_KEYS(write_key_tokens, f->keys[i].done.tokens)
OF_KEYS(write_key_rows, f->keys[i].done.query_rows)
OF_KEYS(write_key_prompts, f->keys[i].done.prompt_tokens)
OF_KEYS(write_key_cached, f->keys[i].done.cached_tokens)
OF_KEYS(write_key_problems, f->keys[i].problems)
#undef OF_KEYS

static void write_key_used(struct json_writer *w, const char *name, const struct figures *f)
{
    char text[KEY_NAME_BYTES + 128];
    for (uint32_t i = 0; i < f->tenant_count; i++) {
        const struct metrics_key *key = &f->keys[i];
        for (unsigned j = 0; j < key->digest_count; j++) {
            snprintf(text, sizeof text, "%s{key=\"%s\",digest=\"%s\"}", name, key->name, key->digests[j]);
            json_raw(w, text);
            write_value(w, key->used_s[j]);
        }
    }
}

static void write_roof(struct json_writer *w, const char *name, const struct figures *f)
{
    const struct roof_report *roof = &f->context->roof;
    write_sample(w, name, "pass", "best", roof->latest.best * 1e9);
    write_sample(w, name, "pass", "median", roof->latest.median * 1e9);
    write_sample(w, name, "pass", "worst", roof->latest.worst * 1e9);
}

static void write_steps(struct json_writer *w, const char *name, const struct figures *f)
{
    const struct step_stats *steps = &f->stats->steps;
    write_histogram(w, name, "", step_time_bounds, steps->times, STEP_TIMES, steps->busy_s);
}

static void write_waits(struct json_writer *w, const char *name, const struct figures *f)
{
    const struct step_stats *steps = &f->stats->steps;
    write_histogram(w, name, "", step_wait_bounds, steps->waits, STEP_WAITS, steps->waited_s);
}

/* Every code, so that the first of each is a change. */
static void write_problems(struct json_writer *w, const char *name, const struct figures *f)
{
    for (unsigned i = 0; i < STATUS_COUNT; i++) {
        uint64_t answered = atomic_load_explicit(&f->context->tally->problems[i], memory_order_relaxed);
        write_sample(w, name, "code", status_code(status_of_number(i)),
                     (double)(answered + f->stats->doorbell.problems[i]));
    }
}

/* Clients, and managers, who have connections of their own. */
static void write_listeners(struct json_writer *w, const char *name, double clients, double managers)
{
    write_sample(w, name, "listener", "clients", clients);
    write_sample(w, name, "listener", "management", managers);
}

static void write_accepted(struct json_writer *w, const char *name, const struct figures *f)
{
    write_listeners(w, name, (double)f->context->connections.accepted, (double)f->context->managers.accepted);
}

static void write_refused(struct json_writer *w, const char *name, const struct figures *f)
{
    write_listeners(w, name, (double)f->context->connections.refused, (double)f->context->managers.refused);
}

/* Labels of a route: its method and path, or "none" for what was refused before one was found. */
static void name_route(const struct http_tally *tally, uint32_t number, char *text, size_t room)
{
    const struct route *route = number < tally->routes ? routes_at(number) : NULL;
    snprintf(text, room, "method=\"%s\",route=\"%s\",", route ? http_method_name(route->method) : "none",
             route ? route->path : "none");
}

/* Routes that have answered nothing yet are left out. */
static void write_requests(struct json_writer *w, const char *name, const struct figures *f)
{
    const struct http_tally *tally = f->context->tally;
    char labels[128], text[256];
    for (uint32_t number = 0; number <= tally->routes; number++) {
        const struct http_tally_route *of = &tally->each[number];
        name_route(tally, number, labels, sizeof labels);
        for (unsigned slot = 0; slot <= HTTP_TALLY_STATUSES; slot++) {
            uint64_t answered = atomic_load_explicit(&of->answered[slot], memory_order_relaxed);
            uint32_t status = atomic_load_explicit(&of->status[slot], memory_order_relaxed);
            if (!answered)
                continue;
            snprintf(text, sizeof text, "%s{%sstatus=\"%u\"} %" PRIu64 "\n", name, labels, status, answered);
            json_raw(w, text);
        }
    }
}

static void write_request_times(struct json_writer *w, const char *name, const struct figures *f)
{
    const struct http_tally *tally = f->context->tally;
    char labels[128];
    for (uint32_t number = 0; number <= tally->routes; number++) {
        const struct http_tally_route *of = &tally->each[number];
        uint64_t counts[HTTP_TALLY_TIMES + 1], all = 0;
        for (unsigned i = 0; i <= HTTP_TALLY_TIMES; i++)
            all += counts[i] = atomic_load_explicit(&of->times[i], memory_order_relaxed);
        if (!all)
            continue;
        name_route(tally, number, labels, sizeof labels);
        double sum = (double)atomic_load_explicit(&of->took_ns, memory_order_relaxed) * 1e-9;
        write_histogram(w, name, labels, http_tally_bounds, counts, HTTP_TALLY_TIMES, sum);
    }
}

/* vLLM's dashboards choose by a model's name, which a daemon without models does not have. */
#define VLLM_LABELS "model_name=\"attnd\",engine=\"0\""

static void write_vllm_config(struct json_writer *w, const char *name, const struct figures *f)
{
    const struct geometry *g = &f->context->config->geometry;
    char text[256];
    snprintf(text, sizeof text,
             "%s{" VLLM_LABELS ",block_size=\"%u\",num_gpu_blocks=\"%" PRIu32 "\",cache_dtype=\"%s\"} 1\n",
             name, g->block_size, f->pool->blocks, dtype_name(g->kv_dtype));
    json_raw(w, text);
}

static void write_vllm(struct json_writer *w, const char *name, double value)
{
    json_raw(w, name);
    json_raw(w, "{" VLLM_LABELS "}");
    write_value(w, value);
}

static void write_vllm_running(struct json_writer *w, const char *name, const struct figures *f)
{
    write_vllm(w, name, f->stats->states[SEQUENCE_RUNNING]);
}

static void write_vllm_waiting(struct json_writer *w, const char *name, const struct figures *f)
{
    write_vllm(w, name, f->stats->states[SEQUENCE_QUEUED]);
}

static void write_vllm_prompts(struct json_writer *w, const char *name, const struct figures *f)
{
    write_vllm(w, name, (double)f->stats->done.prompt_tokens);
}

static void write_vllm_cached(struct json_writer *w, const char *name, const struct figures *f)
{
    write_vllm(w, name, (double)f->stats->done.cached_tokens);
}

static void write_vllm_usage(struct json_writer *w, const char *name, const struct figures *f)
{
    write_vllm(w, name, ((double)f->pool->held + f->pool->fenced) / (double)f->pool->blocks);
}

static void write_vllm_preemptions(struct json_writer *w, const char *name, const struct figures *f)
{
    write_vllm(w, name, (double)f->stats->preemptions);
}

/* ---- the table --------------------------------------------------------------------------------------- */

#define STATS  f->stats
#define POOL   f->pool
#define TABLES f->tables
#define LOOP   f->context

/* ONE(type, name, value, help)   MANY(type, name, labels, function, help) */
/* clang-format off */
#define FAMILIES(ONE, MANY)                                                                                                      \
    MANY(gauge, "attnd_build_info", "version, commit, backend, isa, node", write_build,                                          \
         "What this build is; always 1. backend: cpu, cuda, reference. isa: portable, avx2, avx512, amx; of the reference c; a GPU's architecture (sm_90a). node: as in X-Attnd-Node.") \
    ONE(gauge, "attnd_uptime_seconds", LOOP->uptime_s, "Since the start.")                                                       \
    ONE(gauge, "attnd_draining", LOOP->leaving, "1: the daemon is to end, and /readyz says so.")                                 \
    ONE(gauge, "attnd_lame_duck_seconds", LOOP->lame_duck_left_s, "That are left of a lame duck, in which clients are served; 0: there is none.") \
                                                                                                                                 \
    MANY(gauge, "attnd_blocks", "state", write_blocks,                                                                           \
         "KV blocks by state: free, held (by sequences, leases), cached (in the prefix cache alone), fenced (a step may use it still).") \
    ONE(gauge, "attnd_blocks_shared", POOL->shared, "Held blocks with more than one reference.")                                 \
    ONE(gauge, "attnd_blocks_leased", STATS->leased_blocks, "Held blocks that belong to leases.")                                \
    MANY(gauge, "attnd_sequences", "state", write_sequences, "Sequences by state: idle, queued, running, swapped.")              \
    ONE(gauge, "attnd_sequences_restored", LOOP->restored, "Sequences that the start has restored from state.dir.")              \
    ONE(gauge, "attnd_sequences_not_restored", LOOP->not_restored, "Of the snapshot, those that it could not, or 1 if nobody knows how many; the log has each.") \
    ONE(gauge, "attnd_previous_end_unclean", LOOP->follows_unclean, "1: the daemon before this one has not saved all that it had into state.dir.") \
    ONE(gauge, "attnd_blocks_promised", STATS->promised, "Of free and cached blocks, those kept for sequences with max_tokens and for workloads that run.") \
    ONE(gauge, "attnd_leases", STATS->leases, "Leases of blocks.")                                                               \
    ONE(gauge, "attnd_tokens_logical", TABLES->tokens_logical, "Tokens of all sequences.")                                       \
    ONE(gauge, "attnd_tokens_physical", TABLES->tokens_physical, "Token slots that hold them.")                                  \
    ONE(counter, "attnd_forks_total", TABLES->forks, "Sequences forked.")                                                        \
    ONE(counter, "attnd_cow_copies_total", TABLES->copies, "Blocks copied on write.")                                            \
    ONE(counter, "attnd_evictions_total", POOL->evictions, "Cached blocks evicted.")                                             \
    ONE(counter, "attnd_alloc_failures_total", STATS->refusals, "Requests refused since there were not enough blocks.")          \
    ONE(counter, "attnd_prefix_blocks_asked_total", TABLES->blocks_asked, "Full blocks of prompts looked up.")                   \
    ONE(counter, "attnd_prefix_blocks_hit_total", TABLES->blocks_hit, "Of these, found.")                                        \
    ONE(gauge, "attnd_workload_wait_seconds", STATS->workload_wait_s, "For how long a workload whose sequences wait has admitted none; of several the longest. 0: none waits.") \
    ONE(counter, "attnd_preemptions_total", STATS->preemptions, "Sequences of workloads preempted.")                             \
    ONE(counter, "attnd_tokens_appended_total", STATS->done.tokens, "Tokens appended, by clients and workloads; each once, at layer 0.") \
    ONE(counter, "attnd_query_rows_total", STATS->done.query_rows, "Rows of queries attended; a token has one for each layer.")  \
    ONE(counter, "attnd_prompt_tokens_total", STATS->done.prompt_tokens, "Tokens of prompts looked up in the prefix cache.")     \
    ONE(counter, "attnd_prompt_tokens_cached_total", STATS->done.cached_tokens, "Of these, found.")                              \
                                                                                                                                 \
    MANY(gauge, "attnd_key_sequences", "key", write_key_sequences,                                                               \
         "Sequences and leases of each key, by its name. Who is not admin sees its own; the management listener shows all.")     \
    MANY(gauge, "attnd_key_blocks", "key", write_key_blocks, "Blocks charged to it: in its tables, or promised to it.")          \
    MANY(gauge, "attnd_key_workloads", "key", write_key_workloads, "Its workloads that have not ended.")                         \
    MANY(gauge, "attnd_key_calls", "key", write_key_calls, "Its requests under way.")                                            \
    MANY(gauge, "attnd_key_staging_bytes", "key", write_key_staging, "Staging memory that these hold.")                          \
    MANY(counter, "attnd_key_tokens_appended_total", "key", write_key_tokens, "Of attnd_tokens_appended_total, its part.")       \
    MANY(counter, "attnd_key_query_rows_total", "key", write_key_rows, "Of attnd_query_rows_total.")                             \
    MANY(counter, "attnd_key_prompt_tokens_total", "key", write_key_prompts, "Of attnd_prompt_tokens_total.")                    \
    MANY(counter, "attnd_key_prompt_tokens_cached_total", "key", write_key_cached, "Of attnd_prompt_tokens_cached_total.")       \
    MANY(counter, "attnd_key_problems_total", "key", write_key_problems, "Of attnd_problems_total.")                             \
    MANY(gauge, "attnd_key_used_timestamp_seconds", "key, digest", write_key_used,                                               \
         "Unix time when a client showed it last; 0: not since the start. A key of several digests has a sample of each.")       \
    ONE(gauge, "attnd_keys_refused", LOOP->keys_refused, "1: the latest SIGHUP found a keys.file that is refused; those of before hold.") \
                                                                                                                                 \
    ONE(gauge, "attnd_host_blocks", TABLES->host_blocks, "Blocks to swap to, of host memory or the file.")                       \
    ONE(gauge, "attnd_host_blocks_free", TABLES->host_free, "Of these, free.")                                                   \
    ONE(counter, "attnd_swaps_out_total", TABLES->swaps_out, "Sequences swapped out.")                                           \
    ONE(counter, "attnd_swaps_in_total", TABLES->swaps_in, "Sequences swapped in.")                                              \
    ONE(counter, "attnd_swap_file_writes_total", STATS->swap.writes, "Blocks written from host memory to the file.")             \
    ONE(counter, "attnd_swap_file_reads_total", STATS->swap.reads, "Blocks read back.")                                          \
    ONE(gauge, "attnd_swap_file_failed", STATS->swap.failed, "1: the file cannot be written any more.")                          \
                                                                                                                                 \
    ONE(counter, "attnd_steps_total", STATS->steps.steps, "Steps run.")                                                          \
    ONE(counter, "attnd_step_seconds_total", STATS->steps.busy_s, "Time spent in steps.")                                        \
    MANY(histogram, "attnd_step_duration_seconds", NULL, write_steps, "Time that steps took, on the device.")                    \
    MANY(histogram, "attnd_call_queue_seconds", NULL, write_waits,                                                               \
         "Time that calls which compute waited, from the engine's queue to the forming of the step that takes them.")            \
    ONE(counter, "attnd_kv_read_bytes_total", STATS->steps.bytes_read, "K and V that steps have read.")                          \
    ONE(gauge, "attnd_roof_bytes_per_second", LOOP->roof.gb_per_s * 1e9,                                                         \
        "Rate at which the pool can be read: the best measured in the last half hour to hour.")                                  \
    MANY(gauge, "attnd_roof_measured_bytes_per_second", "pass", write_roof,                                                      \
         "Passes of the latest measurement of it: best, median, worst.")                                                         \
    ONE(counter, "attnd_roof_measurements_total", LOOP->roof.measurements, "Measurements of it.")                                \
    ONE(gauge, "attnd_latest_roof_fraction", api_latest_fraction(STATS, LOOP),                                                   \
        "Of the latest steps: time to read their K and V at that rate, over the time they took.")                                \
    ONE(counter, "attnd_graphs_launched_total", STATS->steps.graphs.launched, "Graphs of passes that a GPU was given.")          \
    ONE(counter, "attnd_graphs_recorded_total", STATS->steps.graphs.recorded, "Of these, recorded anew for that.")               \
                                                                                                                                 \
    ONE(gauge, "attnd_connections", LOOP->connections.open, "Connections of clients that are open.")                             \
    ONE(gauge, "attnd_management_connections", LOOP->managers.open, "Connections to the management listener that are open.")     \
    MANY(counter, "attnd_connections_accepted_total", "listener", write_accepted,                                                \
         "Connections accepted, by listener: clients, management.")                                                              \
    MANY(counter, "attnd_connections_refused_total", "listener", write_refused,                                                  \
         "Of these, refused, since as many as may be were open.")                                                                \
    MANY(counter, "attnd_http_requests_total", "method, route, status", write_requests,                                          \
         "Requests that ended. Status 499: the client went away; 503 also: cut by the end. Route: a path of docs/API.md; method and route none: no path was known.") \
    MANY(histogram, "attnd_http_request_duration_seconds", "method, route", write_request_times,                                 \
         "From a whole head to the last byte of the answer that the kernel took.")                                               \
    MANY(counter, "attnd_problems_total", "code", write_problems,                                                                \
         "Answers that were a problem, by HTTP or by registered memory; docs/API.md has the codes.")                             \
    ONE(gauge, "attnd_calls", LOOP->calls, "Requests under way, of limits.calls.")                                               \
    ONE(gauge, "attnd_streams", LOOP->streams, "Answers under way that go on until a workload ends.")                            \
    ONE(gauge, "attnd_uploads", LOOP->uploads, "Traces being read.")                                                             \
                                                                                                                                 \
    ONE(gauge, "attnd_transport_clients", STATS->doorbell.clients, "Clients with registered memory.")                            \
    ONE(gauge, "attnd_transport_regions", STATS->doorbell.regions, "Regions that they have registered.")                         \
    ONE(gauge, "attnd_transport_region_bytes", STATS->doorbell.bytes, "Bytes of these in host memory.")                          \
    ONE(gauge, "attnd_transport_gpu_bytes", STATS->doorbell.gpu_bytes, "Bytes of these in GPU memory.")                          \
    ONE(counter, "attnd_transport_calls_total", STATS->doorbell.calls, "Calls taken from their rings.")                          \
    ONE(counter, "attnd_transport_clients_ended_total", STATS->doorbell.ended,                                                   \
        "Clients with registered memory that were ended, since an index of their ring was wrong.")                               \
                                                                                                                                 \
    ONE(counter, "attnd_journal_records_total", STATS->journal.records, "Records of the journal that were written.")             \
    ONE(counter, "attnd_journal_bytes_total", STATS->journal.bytes, "Bytes of these.")                                           \
    ONE(gauge, "attnd_journal_stopped", STATS->journal.stopped != NULL,                                                          \
        "1: the journal has ended before the daemon; /stats says why.")                                                      \
                                                                                                                                 \
    ONE(counter, "attnd_kv_event_blocks_stored_total", STATS->kv_events.stored, "Published blocks that subscribers were told of.") \
    ONE(counter, "attnd_kv_event_blocks_removed_total", STATS->kv_events.removed, "Of these, told to be no more.")               \
    ONE(counter, "attnd_kv_event_batches_total", STATS->kv_events.batches, "Batches of these that were sent.")                   \
    ONE(counter, "attnd_kv_event_replays_total", STATS->kv_events.replays, "Questions for past batches.")                        \
    ONE(counter, "attnd_kv_event_rescans_total", STATS->kv_events.rescans, "Looks at all blocks, since changes came too fast.")  \
                                                                                                                                 \
    ONE(gauge, "attnd_staging_bytes_used", LOOP->staging_used, "Of limits.staging_bytes.")                                       \
    ONE(gauge, "attnd_memory_bytes", LOOP->memory_limit, "For what clients have under way (memory.bytes).")                      \
    ONE(gauge, "attnd_memory_bytes_used", LOOP->memory_used, "Of these, taken.")                                                 \
    ONE(counter, "attnd_memory_refused_total", LOOP->memory_refused, "Requests for which there was not enough.")                 \
    ONE(counter, "attnd_tensors_copied_total", LOOP->tensors_copied,                                                             \
        "Tensors of bodies that were copied, since they came in chunks or not aligned to 8 bytes.")                              \
    ONE(gauge, "attnd_loop_turn_seconds_max", LOOP->longest_turn_s,                                                              \
        "Longest turn of the loop that serves clients: processor time between two waits.")                                       \
    ONE(counter, "attnd_log_lines_dropped_total", log_dropped(), "Lines of the log that were dropped, since nobody read it or it could not be written.") \
                                                                                                                                 \
    ONE(counter, "process_cpu_seconds_total", f->process->cpu_s, "Processor time of all threads.")                               \
    ONE(gauge, "process_start_time_seconds", LOOP->started_unix_s, "Unix time of the start.")                                    \
    ONE(gauge, "process_resident_memory_bytes", f->process->resident_bytes, "Resident memory.")                                  \
    ONE(gauge, "process_virtual_memory_bytes", f->process->virtual_bytes, "Address space.")                                      \
    ONE(gauge, "process_open_fds", f->process->open_fds,                                                                         \
        "Open file descriptors; NaN beyond 4096 where the kernel is older than 6.2.")                                            \
    ONE(gauge, "process_max_fds", f->process->max_fds, "That may be open.")                                                      \
    ONE(gauge, "process_threads", f->process->threads, "Threads.")                                                               \
                                                                                                                                 \
    MANY(gauge, "vllm:num_requests_running", "model_name, engine", write_vllm_running, "attnd_sequences, state running.")        \
    MANY(gauge, "vllm:num_requests_waiting", "model_name, engine", write_vllm_waiting, "attnd_sequences, state queued.")         \
    MANY(gauge, "vllm:kv_cache_usage_perc", "model_name, engine", write_vllm_usage,                                              \
         "Share of the blocks that are held or fenced: 0 to 1.")                                                                 \
    MANY(counter, "vllm:num_preemptions_total", "model_name, engine", write_vllm_preemptions, "attnd_preemptions_total.")        \
    MANY(counter, "vllm:prefix_cache_queries_total", "model_name, engine", write_vllm_prompts, "attnd_prompt_tokens_total.")     \
    MANY(counter, "vllm:prefix_cache_hits_total", "model_name, engine", write_vllm_cached, "attnd_prompt_tokens_cached_total.")  \
    MANY(gauge, "vllm:cache_config_info", "model_name, engine, block_size, num_gpu_blocks, cache_dtype", write_vllm_config,      \
         "How the pool is made; always 1.")

static const struct family families[] = {
#define ONE(type, name, value, help) {#type, name, NULL, NULL, help},
#define MANY(type, name, labels, function, help) {#type, name, labels, function, help},
    FAMILIES(ONE, MANY)
#undef ONE
#undef MANY
};
/* clang-format on */

enum { FAMILY_COUNT = sizeof families / sizeof families[0] };

/* The value of each family that has one sample. */
static void take_values(const struct figures *f, double values[FAMILY_COUNT])
{
    size_t n = 0;
#define ONE(type, name, value, help)             values[n++] = (double)(value);
#define MANY(type, name, labels, function, help) values[n++] = 0;
    FAMILIES(ONE, MANY)
#undef ONE
#undef MANY
}

/* Whom the figures are for. */
static bool may_see(const struct http_exchange *x, const struct api_key *key)
{
    return x->listener->management || access_sees_all(x) || key == x->key;
}

int metrics_parse(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct answer *answer = answer_of(request);
    struct keys *keys = answer->daemon->keys;
    const struct api_key *key;
    unsigned at = 0, count = 0;
    request->page.limit = 1;
    int rc = api_parse_nothing(x, request, config);
    while (rc == 0 && keys && (key = keys_next(keys, &at)))
        count += may_see(x, key);
    if (!count)
        return rc;
    struct metrics_key *shown = request_alloc(request, count, sizeof *shown);
    struct request_tenant *tenants = request_alloc(request, count, sizeof *tenants);
    if (!shown || !tenants) {
        http_problem(x, ATTND_BUSY, "no room for the answer");
        return ATTND_BUSY;
    }
    at = count = 0;
    while ((key = keys_next(keys, &at))) {
        if (!may_see(x, key))
            continue;
        memcpy(shown[count].name, key->name, sizeof key->name);
        shown[count].calls = atomic_load(&key->use.calls);
        shown[count].staging_bytes = atomic_load(&key->use.staging_bytes);
        shown[count].problems = atomic_load(&key->use.problems);
        shown[count].done = work_tally_read(&key->use.done);
        shown[count].digest_count = key->digest_count;
        for (unsigned i = 0; i < key->digest_count; i++) {
            const uint8_t *digest = key->digests[i];
            shown[count].used_s[i] = key->used_s[i];
            snprintf(shown[count].digests[i], METRICS_DIGEST_BYTES, "%02x%02x%02x%02x", digest[0], digest[1],
                     digest[2], digest[3]);
        }
        tenants[count++] = (struct request_tenant){.key = key->id};
    }
    answer->metrics_keys = shown;
    request->stats.tenants = tenants;
    request->stats.tenant_count = count;
    return 0;
}

void metrics_render(struct http_exchange *x, const struct request *request, const struct render_context *c)
{
    const struct process_figures process = process_figures_read();
    const struct engine_stats *s = &request->stats.all;
    const struct figures figures = {.stats = s,
                                    .pool = &s->pool,
                                    .tables = &s->tables,
                                    .context = c,
                                    .process = &process,
                                    .keys = answer_of(request)->metrics_keys,
                                    .tenants = request->stats.tenants,
                                    .tenant_count = request->stats.tenant_count};
    struct json_writer *w = &x->reply;
    double values[FAMILY_COUNT];
    char text[320];
    take_values(&figures, values);
    x->content_type = "text/plain; version=0.0.4; charset=utf-8";
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        const struct family *of = &families[i];
        snprintf(text, sizeof text, "# HELP %s %s\n# TYPE %s %s\n", of->name, of->help, of->name, of->type);
        json_raw(w, text);
        if (of->write) {
            of->write(w, of->name, &figures);
        } else {
            json_raw(w, of->name);
            write_value(w, values[i]);
        }
    }
}

void metrics_describe(FILE *out)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++)
        fprintf(out, "%s\t%s\t%s\t%s\n", families[i].name, families[i].type,
                families[i].labels ? families[i].labels : "", families[i].help);
}
