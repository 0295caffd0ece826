/* SPDX-License-Identifier: Apache-2.0 */
/* host_memory.h - how much of the machine's memory this process may still take. */
#ifndef ATTND_HOST_MEMORY_H
#define ATTND_HOST_MEMORY_H

#include <stdint.h>

/* Bytes that can be had now without swapping: MemAvailable, or what the process's control groups leave, where that
 * is less; 0 when unknown. */
uint64_t host_memory_available(void);

/* Bytes that control groups leave: the least of limit - (used - cache that can be reclaimed) over the process's
 * group and all above it; UINT64_MAX where none has a limit. `membership` is a file like /proc/self/cgroup (version
 * 2's line, "0::PATH", and version 1's whose controllers have "memory"), `mount` the folder below which the groups
 * are, like /sys/fs/cgroup. A PATH that is not there - a container that sees its own group as the root - counts for
 * those above it. */
uint64_t control_groups_left(const char *membership, const char *mount);

#endif
