/* SPDX-License-Identifier: Apache-2.0 */
/* suites.h - the unit tests, one test case of Check per file. */
#ifndef TESTS_UNIT_SUITES_H
#define TESTS_UNIT_SUITES_H

#include <check.h>

#include <stdbool.h>

/* Check sends a message for each assertion that holds, to say where a test was when it crashed. These took a third of the time of this suite, and most
 * of it under a sanitizer; a debugger or the sanitizer says where that was, too. */
#define _mark_point(file, line) ((void)0)

/* ROUNDS_OF(n): of random histories, and a fifth of that under a sanitizer, which slows them down by five to twenty. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS_OF(n) ((n) / 5)
#else
#define ROUNDS_OF(n) (n)
#endif

/* XX(name): tests/unit/test_<name>.c defines `TCase *<name>_case(void)`. */
#define SUITES(XX)                                                                                           \
    XX(json)                                                                                                 \
    XX(geometry)                                                                                             \
    XX(config)                                                                                               \
    XX(host_memory)                                                                                          \
    XX(http_request)                                                                                         \
    XX(arguments)                                                                                            \
    XX(log)                                                                                                  \
    XX(listen_address)                                                                                       \
    XX(address_range)                                                                                        \
    XX(proxy_protocol)                                                                                       \
    XX(keys)                                                                                                 \
    XX(block_table)                                                                                          \
    XX(numeric)                                                                                              \
    XX(values)                                                                                               \
    XX(cpu_kernels)                                                                                          \
    XX(thread_pool)                                                                                          \
    XX(cost)                                                                                                 \
    XX(roof)                                                                                                 \
    XX(step_cost)                                                                                            \
    XX(plan)                                                                                                 \
    XX(lowering)                                                                                             \
    XX(cubin_cache)                                                                                          \
    XX(ptxas_report)                                                                                         \
    XX(planner)                                                                                              \
    XX(planner_states)                                                                                       \
    XX(safetensors)                                                                                          \
    XX(prompts)                                                                                              \
    XX(sequences)                                                                                            \
    XX(departures)                                                                                           \
    XX(id_ranges)                                                                                            \
    XX(workload)                                                                                             \
    XX(ledger)                                                                                               \
    XX(shares)                                                                                               \
    XX(journal_file)                                                                                         \
    XX(step_log)                                                                                             \
    XX(snapshot)                                                                                             \
    XX(staging)                                                                                              \
    XX(doorbell)                                                                                             \
    XX(http_tally)                                                                                           \
    XX(msgpack)                                                                                              \
    XX(zmq_address)                                                                                          \
    XX(kv_events)

#define XX(name) TCase *name##_case(void);
SUITES(XX)
#undef XX

#endif
