/* numbers.h - the smaller, the larger, and a quotient rounded up. */
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

/* n / of, rounded up; of > 0. */
static inline uint32_t ceiling(uint32_t n, uint32_t of)
{
    return n / of + (n % of != 0);
}

#endif
