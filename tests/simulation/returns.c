/* SPDX-License-Identifier: Apache-2.0 */
/* returns.c - see returns.h. */
#include "tests/simulation/returns.h"

#include <stdio.h>
#include <string.h>

uint32_t returns_count(void)
{
    return (uint32_t)(__stop_return_places - __start_return_places);
}

/* Print the text of a line, if the sources are there. */
static void print_line(const char *file, uint64_t line)
{
    char text[200] = "";
    FILE *in = fopen(file, "r");
    for (uint64_t i = 0; in && i < line && fgets(text, sizeof text, in); i++)
        continue;
    if (in)
        fclose(in);
    text[strcspn(text, "\n")] = '\0';
    printf(" %s\n", text + strspn(text, " "));
}

bool returns_report(const uint64_t *taken, bool names)
{
    uint32_t all = returns_count(), met = 0;
    for (uint32_t i = 0; i < all; i++)
        met += taken[i] > 0;
    printf("  %-40s %4u %4u\n", "returns of reservation.c and policy.c", met, all);
    for (uint32_t i = 0; names && i < all; i++) {
        const struct return_place *place = __start_return_places[i];
        if (taken[i])
            continue;
        printf("never taken: %s:%llu:", place->file, (unsigned long long)place->line);
        print_line(place->file, place->line);
    }
    return met == all;
}
