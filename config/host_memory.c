/* SPDX-License-Identifier: Apache-2.0 */
#include "config/host_memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

/* What the two versions of control groups call the same. */
struct group_files {
    const char *limit, *used, *reclaimable;
};
static const struct group_files version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                             "total_inactive_file "},
                                version_2 = {"memory.max", "memory.current", "inactive_file "};

/* The number after `label` in a file of lines; `fallback` if it is not there. */
static uint64_t read_number(const char *path, const char *label, uint64_t fallback)
{
    char line[256];
    unsigned long long value = fallback;
    FILE *f = fopen(path, "r");
    if (!f)
        return fallback;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, label, strlen(label)) == 0 && sscanf(line + strlen(label), "%llu", &value) == 1)
            break;
    }
    fclose(f);
    return value;
}

static uint64_t read_in(const char *folder, const char *file, const char *label, uint64_t fallback)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path)
        return fallback;
    return read_number(path, label, fallback);
}

static uint64_t group_left(const char *folder, const struct group_files *files)
{
    uint64_t limit = read_in(folder, files->limit, "", UINT64_MAX); /* "max" is no number */
    if (limit == UINT64_MAX)
        return UINT64_MAX;
    uint64_t used = read_in(folder, files->used, "", 0),
             reclaimable = read_in(folder, "memory.stat", files->reclaimable, 0);
    used -= reclaimable < used ? reclaimable : used;
    return limit > used ? limit - used : 0;
}

/* The least over the group `path` below `mount`, and all above it. */
static uint64_t groups_left(const char *mount, const char *path, const struct group_files *files)
{
    char folder[PATH_MAX];
    uint64_t least = UINT64_MAX;
    size_t root = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, path) >= (int)sizeof folder)
        return least;
    for (;;) {
        uint64_t left = group_left(folder, files);
        char *last = strrchr(folder + root, '/');
        least = left < least ? left : least;
        if (!last)
            return least;
        *last = '\0';
    }
}

/* Whether "memory" is one of the controllers of a line of version 1: "4:cpu,memory:/path". */
static bool controls_memory(char *controllers)
{
    char *rest = NULL;
    for (char *one = strtok_r(controllers, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (strcmp(one, "memory") == 0)
            return true;
    }
    return false;
}

uint64_t control_groups_left(const char *membership, const char *mount)
{
    char line[PATH_MAX], below[PATH_MAX];
    uint64_t least = UINT64_MAX;
    FILE *f = fopen(membership, "r");
    if (!f)
        return least;
    while (fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        controllers++;
        bool second = !controllers[0];
        if (!second && !controls_memory(controllers))
            continue;
        if (snprintf(below, sizeof below, "%s%s", mount, second ? "" : "/memory") >= (int)sizeof below)
            continue;
        uint64_t left = groups_left(below, path, second ? &version_2 : &version_1);
        least = left < least ? left : least;
    }
    fclose(f);
    return least;
}

uint64_t host_memory_available(void)
{
    struct sysinfo info;
    uint64_t machine = read_number("/proc/meminfo", "MemAvailable:", 0) * 1024,
             groups = control_groups_left("/proc/self/cgroup", "/sys/fs/cgroup");
    if (machine == 0 && sysinfo(&info) == 0) /* no /proc: less exact, without the page cache */
        machine = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
    if (groups == UINT64_MAX)
        return machine;
    return groups < machine || !machine ? groups : machine;
}
