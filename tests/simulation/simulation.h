/* SPDX-License-Identifier: Apache-2.0 */
/* simulation.h - what the parts of the engine's simulator share: the seed's randomness, virtual time, the
 * history, coverage, and how a fault is reported.
 *
 * One simulation runs at a time in a process, so its state is one variable. */
#ifndef TESTS_SIMULATION_SIMULATION_H
#define TESTS_SIMULATION_SIMULATION_H

#include "config/config.h"
#include "scheduler/engine.h"
#include "tests/simulation/transitions.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SIM_LAYERS_MOST = 3,
    SIM_TOKENS_MOST = 5100, /* of one sequence; more than a segment, so that it is cut */
    SIM_CONNECTIONS_MOST = 16,
    SIM_OWNERS_MOST = 4,
    SIM_REQUESTS_MOST = 48,
    SIM_HISTORY_LINES = 300,
    SIM_LINE_BYTES = 200,
    SIM_FAULT_BYTES = 512
};

/* XX(name, what is counted) */
#define COVERAGE_MAP(XX)                                                                                     \
    XX(requests, "requests accepted")                                                                        \
    XX(refused, "requests refused")                                                                          \
    XX(workload_tokens, "tokens of workloads")                                                               \
    XX(outputs_taken, "outputs of workloads that were taken")                                                \
    XX(faults, "faults")                                                                                     \
    XX(turns, "turns")                                                                                       \
    XX(steps, "steps")                                                                                       \
    XX(appended, "rows appended")                                                                            \
    XX(attended, "outputs compared with the model")                                                          \
    XX(retries, "rows compared with what stands")                                                            \
    XX(conflicts, "retries with other content")                                                              \
    XX(gaps, "gaps")                                                                                         \
    XX(hits, "prompts found in the cache")                                                                   \
    XX(forks, "forks")                                                                                       \
    XX(truncates, "truncates")                                                                               \
    XX(deletes, "deletes")                                                                                   \
    XX(batches, "batches")                                                                                   \
    XX(batches_refused, "batches of which an op was refused, and so all were")                               \
    XX(leases, "leases")                                                                                     \
    XX(paged, "paged requests")                                                                              \
    XX(questions, "questions")                                                                               \
    XX(merges, "states merged")                                                                              \
    XX(exports, "exports")                                                                                   \
    XX(exports_named, "exports with token ids")                                                              \
    XX(exports_in_parts, "exports over several steps")                                                       \
    XX(self_tests, "self-tests")                                                                             \
    XX(self_tests_failed, "self-tests that failed")                                                          \
    XX(roofs, "measurements of the roof")                                                                    \
    XX(budgets_spent, "turns that had no time for another request")                                          \
    XX(asked_meanwhile, "questions asked in the middle of a turn")                                           \
    XX(streamed, "streamed steps, and parts of them")                                                        \
    XX(continued, "parts that continued a step")                                                             \
    XX(voided, "sequences void from a value on that is not finite")                                          \
    XX(told, "calls that were told of it")                                                                   \
    XX(compared, "requests whose comparisons took a step")                                                   \
    XX(together, "work tiles of several queries")                                                            \
    XX(mixed, "passes of which some queries read alone")                                                     \
    XX(segments, "slices of segments")                                                                       \
    XX(cut_layers, "slices of a layer of a workload's round")                                                \
    XX(cancelled, "requests whose client has gone before they ran")                                          \
    XX(stood, "requests given up whose appends stand")                                                       \
    XX(sliced, "requests in slices")                                                                         \
    XX(too_late, "requests whose client has gone after they ran")                                            \
    XX(deadlines, "deadlines")                                                                               \
    XX(dropped, "requests ended by a delete")                                                                \
    XX(no_blocks, "requests refused for want of blocks")                                                     \
    XX(declared, "rows appended under max_tokens")                                                           \
    XX(no_requests, "times that all requests were under way")                                                \
    XX(copies, "copies on write")                                                                            \
    XX(swaps_out, "blocks swapped out")                                                                      \
    XX(swaps_in, "blocks swapped in")                                                                        \
    XX(file_writes, "blocks written to the file")                                                            \
    XX(file_reads, "blocks read from it")                                                                    \
    XX(files_failed, "files that could not be written any more")                                             \
    XX(in_the_file, "requests on what was in such a file and found no room in host memory")                  \
    XX(workloads, "workloads finished")                                                                      \
    XX(workloads_cancelled, "workloads cancelled")                                                           \
    XX(preemptions, "preemptions")                                                                           \
    XX(device_failures, "device failures")                                                                   \
    XX(hangs, "steps that hung")                                                                             \
    XX(audits, "audits")                                                                                     \
    XX(audits_in_parts, "audits in the course of which there were steps")                                    \
    XX(pages, "pages of blocks as they were at their epoch")                                                 \
    XX(pages_in_parts, "such in the course of which there were steps")                                       \
    XX(faults_planted, "faults planted for the audit of promises to find")                                   \
    XX(reaped, "sequences and leases that nobody used for long")                                             \
    XX(parameters, "parameters replaced")                                                                    \
    XX(parameters_starved, "parameters for which there was no memory")                                       \
    XX(refusals, "refusals for want of blocks looked at")                                                    \
    XX(busy, "workloads refused since there are too many")                                                   \
    XX(scarce, "engines that found no memory")                                                               \
    XX(unwritten, "blocks found unwritten: free ones, and ends of others")                                   \
    XX(changes, "changes replayed from the log")                                                             \
    XX(pasts, "states of the past compared")                                                                 \
    XX(tables, "tables of the past compared")                                                                \
    XX(tables_changed, "of those that have changed since")                                                   \
    XX(tables_swapped, "of sequences swapped out or in since")                                               \
    XX(tables_ended, "of sequences that have ended since")                                                   \
    XX(tables_told, "tables of one epoch told")                                                              \
    XX(tables_in_parts, "answers with tables in parts")                                                      \
    XX(tables_left_out, "answers that leave tables out")                                                     \
    XX(seconds_shared, "seconds of which each owner had its part")                                           \
    XX(small_at_once, "small requests in the first step after they came")

struct coverage {
#define XX(name, text) uint64_t name;
    COVERAGE_MAP(XX)
#undef XX
};

struct simulation {
    uint64_t seed;
    double now_s;
    struct config config;
    struct engine *engine;
    struct coverage seen;
    struct transitions moved;
    struct engine_stats stats; /* the latest answer */
    bool lost;                 /* the device has failed, so nobody knows how far requests have come */
    bool faults;               /* clients leave, cancel, ask too much */
    bool long_sequences;       /* some are longer than a segment */
    bool families;             /* sequences that are forked, swapped and deleted all the time */
    bool streams;              /* calls are streamed, as the library's with tensors on a GPU */
    bool notices;              /* clients see answers in the middle of a turn, and ask again */
    bool keep_history;
    char history[2 * SIM_HISTORY_LINES][SIM_LINE_BYTES];
    uint64_t history_count;
    const uint8_t *skip;              /* [skip_count] actions that are left out; NULL: none */
    uint64_t skip_count, action_most; /* the latest action */
    char fault[SIM_FAULT_BYTES];
    jmp_buf failed;
};

extern struct simulation sim;

/* sim_mix: SplitMix64's output function. sim_below: 0..n-1; n > 0. sim_chance: once in n times. */
uint64_t sim_mix(uint64_t x);
uint32_t sim_below(uint64_t *random, uint32_t n);
bool sim_chance(uint64_t *random, uint32_t n);

/* sim_note: a line of the history, if it is kept. sim_fail: end the simulation with a fault. */
void sim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
