/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c - safetensors bodies. The first line is the path behind /v1/, with the query; of those that are put, the method is PUT. Sequence 1 has tokens
 * at both layers. */
#include "tests/fuzz/daemon.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char made[] = "{\"id\":1}",
                      appended[] = "{\"sequences\":[1],\"k\":[[[[1,0,0,0,0,0,0,0]]],[[[1,0,0,0,0,0,0,0]]]],"
                                   "\"v\":[[[[1,0,0,0,0,0,0,0]]],[[[1,0,0,0,0,0,0,0]]]]}";
    static unsigned runs;
    char path[200], target[208];
    if (runs++ % 16 == 0) { /* what is removed now and then */
        fuzz_request("POST", "/v1/sequences", "application/json", (const uint8_t *)made, sizeof made - 1);
        fuzz_request("POST", "/v1/append", "application/json", (const uint8_t *)appended,
                     sizeof appended - 1);
    }
    fuzz_line(&bytes, &n, path, sizeof path);
    snprintf(target, sizeof target, "/v1/%s", path);
    bool put = strncmp(path, "parameters", 10) == 0 || strncmp(path, "sequences/1/kv", 14) == 0;
    fuzz_request(put ? "PUT" : "POST", target, "application/x-safetensors", bytes, n);
    return 0;
}
