/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.h - the smaller, the larger, a quotient rounded up, a hash of an id, and the end of a word that is counted. */
#ifndef CONFIG_NUMBERS_H
#define CONFIG_NUMBERS_H

#include <stdint.h>

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* An id, spread over 32 bits: what a hash table begins with (Knuth, The Art of Computer Programming, 6.4: multiplicative
 * hashing by the golden ratio). */
static inline uint32_t hash_id(uint64_t id)
{
    return (uint32_t)(id * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

/* n / of, rounded up; of > 0. */
static inline uint32_t ceiling(uint32_t n, uint32_t of)
{
    return n / of + (n % of != 0);
}

/* "" for 1, else "s". */
static inline const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
