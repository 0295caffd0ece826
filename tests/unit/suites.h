/* SPDX-License-Identifier: Apache-2.0 */
/* suites.h - the unit tests, one test case of Check per file. */
#ifndef TESTS_UNIT_SUITES_H
#define TESTS_UNIT_SUITES_H

#include <check.h>

#include <stdbool.h>

/* ROUNDS_OF(n): of random histories, and a twentieth of that under a sanitizer, which slows them down so much. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS_OF(n) ((n) / 20)
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
