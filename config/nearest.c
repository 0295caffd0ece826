/* SPDX-License-Identifier: Apache-2.0 */
/* nearest.c - see nearest.h. The distance is that of Damerau and Levenshtein, without a change inside an exchange. */
#include "config/nearest.h"

#include <stddef.h>
#include <string.h>

enum {
    NAME_MOST = 48, /* bytes of a name that is compared */
    NEAR_MOST = 3   /* changes, by which a name may be another one misspelt */
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to insert, remove, change or exchange to make `a` of `b`. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), rows[3][NAME_MOST + 1];
    if (n > NAME_MOST || m > NAME_MOST)
        return NAME_MOST;
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = rows[i % 3], *before = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least(least(before[j] + 1, now[j - 1] + 1), before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], second[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *nearest_of(const char *written, const char *best, const char *name)
{
    size_t n = strlen(written), most = least(NEAR_MOST, n / 2);
    size_t is = n >= 2 && strncmp(written, name, n) == 0 ? 1 : distance(written, name);
    size_t was = !best ? NAME_MOST : n >= 2 && strncmp(written, best, n) == 0 ? 1 : distance(written, best);
    return is <= most && is < was ? name : best;
}
