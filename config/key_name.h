/* SPDX-License-Identifier: Apache-2.0 */
/* key_name.h - what a key may be called, for the daemon, which reads its entry, and for attnctl, which makes one. */
#ifndef CONFIG_KEY_NAME_H
#define CONFIG_KEY_NAME_H

#include <stdbool.h>
#include <string.h>

enum { KEY_NAME_BYTES = 64 };

#define KEY_NAME_WANTS "1 to 63 letters, digits, dots, - and _"

static inline bool key_name_is_good(const char *name)
{
    size_t n = strlen(name);
    return n >= 1 && n < KEY_NAME_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == n;
}

#endif
