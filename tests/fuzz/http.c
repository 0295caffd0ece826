/* SPDX-License-Identifier: Apache-2.0 */
/* http.c - bytes on a connection: heads, bodies with a length and in chunks, pipelined requests. The first byte says in what
 * pieces they are sent. */
#include "tests/fuzz/daemon.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n > 1)
        fuzz_send(bytes + 1, n - 1, bytes[0]);
    return 0;
}
