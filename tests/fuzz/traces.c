/* SPDX-License-Identifier: Apache-2.0 */
/* traces.c - workloads as CSV and as lines of JSON. The first line is the query; "j" before it: JSON. */
#include "tests/fuzz/daemon.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char query[200], target[240];
    fuzz_line(&bytes, &n, query, sizeof query);
    snprintf(target, sizeof target, "/v1/workloads?%s", query[0] == 'j' ? query + 1 : query);
    fuzz_request("POST", target, query[0] == 'j' ? "application/x-ndjson" : "text/csv", bytes, n);
    return 0;
}
