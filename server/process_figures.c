/* SPDX-License-Identifier: Apache-2.0 */
/* process_figures.c - see process_figures.h; proc(5) has the fields. */
#include "server/process_figures.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_LISTED = 4096, STAT_FIELDS = 24 };

/* A small file of /proc as a string. */
static bool read_text(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, room - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Since kernel 6.2 the folder's size is their number. */
static double count_files(void)
{
    struct stat about;
    if (stat("/proc/self/fd", &about) == 0 && about.st_size > 0)
        return (double)about.st_size;
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;
    if (!folder)
        return NAN;
    while (n < FILES_LISTED + 3 && readdir(folder))
        n++;
    closedir(folder);
    return n < FILES_LISTED + 3 ? n - 3 : NAN; /* ".", ".." and the folder's own */
}

struct process_figures process_figures_read(void)
{
    struct process_figures figures = {NAN, NAN, NAN, NAN, NAN, NAN};
    double field[STAT_FIELDS + 1] = {0}, ticks = (double)sysconf(_SC_CLK_TCK);
    char text[1024];
    struct rlimit files;
    char *at = read_text("/proc/self/stat", text, sizeof text) ? strrchr(text, ')') : NULL;
    if (at) {
        at += strcspn(at, " ") + 2; /* fields 2, a name, and 3, a letter */
        for (int i = 4; i <= STAT_FIELDS; i++)
            field[i] = strtod(at, &at);
        figures.cpu_s = (field[14] + field[15]) / ticks;
        figures.threads = field[20];
        figures.virtual_bytes = field[23];
        figures.resident_bytes = field[24] * (double)sysconf(_SC_PAGESIZE);
    }
    figures.open_fds = count_files();
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        figures.max_fds = (double)files.rlim_cur;
    return figures;
}
