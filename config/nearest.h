/* SPDX-License-Identifier: Apache-2.0 */
/* nearest.h - which name was meant, by who misspelt it. */
#ifndef CONFIG_NEAREST_H
#define CONFIG_NEAREST_H

/* nearest_of(written, best, name): the nearer of two names to what was written, `best` or `name`; NULL where neither is
 * near. `best` is NULL before the first name. A beginning counts as near. Any thread; never allocates. */
const char *nearest_of(const char *written, const char *best, const char *name);

#endif
