/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack.h - MessagePack written front to back into a buffer of the caller: the types that events have, each in its
 * shortest form. Source: the specification at msgpack.org.
 *
 * Never allocates: what does not fit is dropped and `overflow` set, to be looked at once at the end. A container is told how
 * many values follow, and does not count them. Any thread, one writer per thread; each function O(bytes). */
#ifndef CONFIG_MSGPACK_H
#define CONFIG_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct msgpack {
    uint8_t *bytes;
    size_t capacity, length;
    bool overflow; /* something did not fit */
};

void msgpack_init(struct msgpack *m, void *buffer, size_t capacity);

void msgpack_nil(struct msgpack *m);
void msgpack_uint(struct msgpack *m, uint64_t value);
void msgpack_double(struct msgpack *m, double value);

/* msgpack_string: `n` bytes of UTF-8, fewer than 2^32. msgpack_text: a string that ends with a NUL. */
void msgpack_string(struct msgpack *m, const char *text, size_t n);
void msgpack_text(struct msgpack *m, const char *text);

/* msgpack_array: `n` values follow. msgpack_map: `n` pairs, a string and a value each. */
void msgpack_array(struct msgpack *m, uint32_t n);
void msgpack_map(struct msgpack *m, uint32_t n);

#endif
