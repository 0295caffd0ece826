/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - JSON bodies. The first line is the path, with or without a query. */
#include "tests/fuzz/daemon.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char path[200], target[208];
    fuzz_line(&bytes, &n, path, sizeof path);
    snprintf(target, sizeof target, "/%s", path);
    fuzz_request("POST", target, "application/json", bytes, n);
    return 0;
}
