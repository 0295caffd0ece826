/* SPDX-License-Identifier: Apache-2.0 */
/* files.h - an input as a file. */
#ifndef TESTS_FUZZ_FILES_H
#define TESTS_FUZZ_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Its path, of a file that has these bytes, mode 0600. */
static inline const char *fuzz_file(const uint8_t *bytes, size_t n)
{
    static char path[64];
    if (!path[0])
        snprintf(path, sizeof path, "/tmp/attnd-fuzz-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0 || chmod(path, 0600) != 0)
        abort();
    return path;
}

#endif
