/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - configuration files; what is accepted is printed, and accepted again. */
#include "config/config.h"
#include "tests/fuzz/files.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct config_inputs inputs = {.file = fuzz_file(bytes, n)};
    struct config config;
    char error[CONFIG_ERROR_BYTES], *text = NULL;
    size_t length;
    if (config_load(&config, &inputs, error) != 0) {
        if (strnlen(error, sizeof error) == sizeof error || !error[0])
            abort();
        return 0;
    }
    FILE *out = open_memstream(&text, &length);
    config_print(&config, out);
    fclose(out);
    config_deinit(&config);
    inputs.file = fuzz_file((uint8_t *)text, length);
    free(text);
    if (config_load(&config, &inputs, error) != 0) {
        fprintf(stderr, "what was printed is refused: %s\n", error);
        abort();
    }
    config_deinit(&config);
    return 0;
}
