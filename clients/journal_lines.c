/* SPDX-License-Identifier: Apache-2.0 */
/* journal_lines.c - see journal_lines.h. */
#include "clients/journal_lines.h"
#include "clients/answer.h"
#include "clients/own_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void run(const char *binary, const char *path, int to, int says)
{
    /* It ends with the command; Ctrl-C is the command's. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGINT, SIG_IGN);
    if (dup2(to, STDOUT_FILENO) >= 0 && dup2(says, STDERR_FILENO) >= 0)
        execlp(binary, "attnd", "--journal-print", path, (char *)NULL);
    fprintf(stderr, "attnctl: %s: %s\n", binary, strerror(errno));
    fflush(stderr);
    _exit(127);
}

bool journal_lines_open(struct journal_lines *l, const char *binary, const char *path)
{
    char beside[PATH_MAX];
    int ends[2], says[2] = {-1, -1};
    *l = (struct journal_lines){.path = path};
    if (pipe2(ends, O_CLOEXEC) != 0 || pipe2(says, O_CLOEXEC | O_NONBLOCK) != 0) {
        fprintf(stderr, "attnctl: %s: %s\n", path, strerror(errno));
        return false;
    }
    binary = binary ? binary : own_daemon_binary(beside);
    fflush(NULL);
    l->pid = fork();
    if (l->pid == 0)
        run(binary, path, ends[1], says[1]);
    close(ends[1]);
    close(says[1]);
    l->says = says[0];
    l->from = l->pid > 0 ? fdopen(ends[0], "r") : NULL;
    if (l->from)
        return true;
    close(ends[0]);
    close(l->says);
    return false;
}

/* What attnd said, as a sentence of the command that the user knows of. */
static void pass_on(int says)
{
    static const char name[] = "attnd: ";
    char text[1024];
    ssize_t n = read(says, text, sizeof text - 1);
    close(says);
    if (n <= 0)
        return;
    text[n] = '\0';
    bool named = strncmp(text, name, sizeof name - 1) == 0;
    fprintf(stderr, "%s%s", named ? "attnctl: " : "", text + (named ? sizeof name - 1 : 0));
}

cJSON *journal_lines_next(struct journal_lines *l)
{
    ssize_t n = getline(&l->line, &l->room, l->from);
    cJSON *record = n > 0 ? cJSON_ParseWithLength(l->line, (size_t)n) : NULL;
    if (strcmp(answer_text(record, "kind"), "torn") != 0)
        return record;
    l->torn = true;
    cJSON_Delete(record);
    return NULL;
}

bool journal_lines_close(struct journal_lines *l)
{
    int status = 0;
    bool ended = !l->from || feof(l->from);
    if (l->from)
        fclose(l->from);
    free(l->line);
    l->from = NULL;
    l->line = NULL;
    if (l->pid <= 0)
        return false;
    while (waitpid(l->pid, &status, 0) < 0 && errno == EINTR) {
    }
    l->pid = 0;
    pass_on(l->says);
    return !ended || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
