/* SPDX-License-Identifier: Apache-2.0 */
/* keys.c - keys files. */
#include "server/keys.h"
#include "tests/fuzz/files.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct keys *keys;
    char reason[KEYS_REASON_BYTES] = "";
    if (keys_load(fuzz_file(bytes, n), &keys, reason) != 0) {
        if (!reason[0])
            abort();
        return 0;
    }
    (void)keys_find(keys, (const char *)bytes, n);
    keys_destroy(keys);
    return 0;
}
