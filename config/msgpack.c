/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack.c - see msgpack.h. */
#include "config/msgpack.h"

#include <string.h>

/* First bytes of the format: of short forms those to which the value or the count is added. */
enum {
    FIX_MAP = 0x80,
    FIX_ARRAY = 0x90,
    FIX_STRING = 0xa0,
    NIL = 0xc0,
    FLOAT_64 = 0xcb,
    UINT_8 = 0xcc,
    UINT_16,
    UINT_32,
    UINT_64,
    STRING_8 = 0xd9,
    STRING_16,
    STRING_32,
    ARRAY_16 = 0xdc,
    ARRAY_32,
    MAP_16,
    MAP_32
};

void msgpack_init(struct msgpack *m, void *buffer, size_t capacity)
{
    *m = (struct msgpack){.bytes = buffer, .capacity = capacity};
}

static void put(struct msgpack *m, const void *bytes, size_t n)
{
    if (m->overflow || n > m->capacity - m->length) {
        m->overflow = true;
        return;
    }
    if (n)
        memcpy(m->bytes + m->length, bytes, n);
    m->length += n;
}

/* A first byte, and the `n` lower bytes of a number, the highest first. */
static void put_number(struct msgpack *m, unsigned first, uint64_t number, unsigned n)
{
    uint8_t bytes[1 + sizeof number] = {(uint8_t)first};
    for (unsigned i = 0; i < n; i++)
        bytes[1 + i] = (uint8_t)(number >> (8 * (n - 1 - i)));
    put(m, bytes, 1 + n);
}

void msgpack_nil(struct msgpack *m)
{
    put_number(m, NIL, 0, 0);
}

void msgpack_uint(struct msgpack *m, uint64_t value)
{
    if (value < 0x80)
        put_number(m, (unsigned)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_number(m, UINT_8, value, 1);
    else if (value <= UINT16_MAX)
        put_number(m, UINT_16, value, 2);
    else if (value <= UINT32_MAX)
        put_number(m, UINT_32, value, 4);
    else
        put_number(m, UINT_64, value, 8);
}

void msgpack_double(struct msgpack *m, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_number(m, FLOAT_64, bits, sizeof bits);
}

void msgpack_string(struct msgpack *m, const char *text, size_t n)
{
    if (n < 32)
        put_number(m, FIX_STRING | (unsigned)n, 0, 0);
    else if (n <= UINT8_MAX)
        put_number(m, STRING_8, n, 1);
    else if (n <= UINT16_MAX)
        put_number(m, STRING_16, n, 2);
    else
        put_number(m, STRING_32, n, 4);
    put(m, text, n);
}

void msgpack_text(struct msgpack *m, const char *text)
{
    msgpack_string(m, text, strlen(text));
}

/* A container of `n`, whose short form has room for 15. */
static void put_head(struct msgpack *m, unsigned fixed, unsigned first_16, unsigned first_32, uint32_t n)
{
    if (n < 16)
        put_number(m, fixed | n, 0, 0);
    else if (n <= UINT16_MAX)
        put_number(m, first_16, n, 2);
    else
        put_number(m, first_32, n, 4);
}

void msgpack_array(struct msgpack *m, uint32_t n)
{
    put_head(m, FIX_ARRAY, ARRAY_16, ARRAY_32, n);
}

void msgpack_map(struct msgpack *m, uint32_t n)
{
    put_head(m, FIX_MAP, MAP_16, MAP_32, n);
}
