/* SPDX-License-Identifier: Apache-2.0 */
/* values.c - see values.h.
 *
 * Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#include "kernels/values.h"

#include <string.h>

enum { PHILOX_ROUNDS = 10 };

static void philox(uint32_t word[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t a = (uint64_t)word[0] * 0xd2511f53U, b = (uint64_t)word[2] * 0xcd9e8d57U;
        uint32_t next0 = (uint32_t)(b >> 32) ^ word[1] ^ key0;
        uint32_t next2 = (uint32_t)(a >> 32) ^ word[3] ^ key1;
        word[0] = next0;
        word[1] = (uint32_t)b;
        word[2] = next2;
        word[3] = (uint32_t)a;
        key0 += 0x9e3779b9U;
        key1 += 0xbb67ae85U;
    }
}

static float value_of(uint32_t word)
{
    uint32_t sum = (word & 0xff) + (word >> 8 & 0xff) + (word >> 16 & 0xff) + (word >> 24);
    return (float)((int32_t)sum - 510) * (1.0F / 128);
}

void values_words(struct value_source source, uint32_t position, uint32_t layer, enum values_tensor tensor,
                  uint32_t head, uint32_t dim, uint32_t word[4])
{
    word[0] = (uint32_t)source.content;
    word[1] = (uint32_t)(source.content >> 32);
    word[2] = position;
    word[3] = layer << 20 | (uint32_t)tensor << 18 | head << 6 | dim / 4;
    philox(word, (uint32_t)source.seed, (uint32_t)(source.seed >> 32));
}

/* 2^exponent, which is normal. */
static float power_of_two(int exponent)
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* The exponent of a dimension of a tensor's head. */
static int channel_of(enum values_tensor tensor, uint32_t head, uint32_t dim, uint32_t spread)
{
    int channel = (int)((dim * 2654435769U >> 16) % (2 * spread + 1)) - (int)spread;
    if (tensor != VALUES_K)
        return channel;
    return -channel + ((dim + 7 * head) % VALUES_OUTLIER_EVERY == 5 ? VALUES_OUTLIER_EXPONENT : 0);
}

static float wide_value_of(uint32_t word, int channel)
{
    return (float)(int32_t)word * power_of_two(channel + (int)(word & 1) - 31);
}

void values_row(struct value_source source, uint32_t position, uint32_t layer, enum values_tensor tensor,
                uint32_t head, uint32_t dims, float *row)
{
    for (uint32_t dim = 0; dim < dims; dim += 4) {
        uint32_t word[4];
        values_words(source, position, layer, tensor, head, dim, word);
        for (uint32_t i = 0; i < 4; i++)
            row[dim + i] = source.wide
                               ? wide_value_of(word[i], channel_of(tensor, head, dim + i, source.wide - 1))
                               : value_of(word[i]);
    }
}
