/* SPDX-License-Identifier: Apache-2.0 */
/* returns.h - notes which return statements of a source file are taken. For the file that includes that
 * source: its headers come first, then this one, then the source.
 *
 * `return` becomes a loop that notes its place and is left at once by the statement itself; so it may
 * stand wherever a return may, and the compiler still sees that nothing comes after it. */
#ifndef TESTS_SIMULATION_RETURNS_H
#define TESTS_SIMULATION_RETURNS_H

#include <stdbool.h>
#include <stdint.h>

struct return_place {
    const char *file;
    uint64_t line, taken;
};

/* The linker lays pointers to those of all files side by side. */
extern struct return_place *const __start_return_places[], *const __stop_return_places[];

/* returns_count: how many return statements are watched; the N-th is *__start_return_places[N].
 * returns_report: how many were `taken` [returns_count()], and, if wanted, the `names` of the others;
 * false if there are some. */
uint32_t returns_count(void);
bool returns_report(const uint64_t *taken, bool names);

#endif

#ifdef RETURNS_WATCHED
#define return                                                                                               \
    for (({                                                                                                  \
             static struct return_place this_one = {__FILE__, __LINE__, 0};                                  \
             static struct return_place *const listed __attribute__((section("return_places"), used)) =      \
                 &this_one;                                                                                  \
             this_one.taken++;                                                                               \
         });                                                                                                 \
         ;)                                                                                                  \
    return
#endif
