/* SPDX-License-Identifier: Apache-2.0 */
/* curl_line.c - see curl_line.h. */
#include "clients/curl_line.h"

#include <stdio.h>
#include <string.h>

/* A word as the shell reads it back. */
static void put_word(FILE *f, const char *word)
{
    if (*word && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+=,") ==
                     strlen(word)) {
        fputs(word, f);
        return;
    }
    fputc('\'', f);
    for (; *word; word++) {
        if (*word == '\'')
            fputs("'\\''", f);
        else
            fputc(*word, f);
    }
    fputc('\'', f);
}

char *curl_line_write(const char *url, const char *key, const char *ca_file, const char *method,
                      const char *path, const char *body, char *out, size_t room)
{
    char target[1024];
    FILE *f = fmemopen(out, room, "w");
    *out = '\0';
    if (!f)
        return out;
    size_t n = strlen(url);
    fputs("curl -s ", f);
    if (strncmp(url, "unix:", 5) == 0) {
        fputs("--unix-socket ", f);
        put_word(f, url + 5);
        fputc(' ', f);
    }
    if (ca_file && *ca_file && strncmp(url, "https:", 6) == 0) {
        fputs("--cacert ", f);
        put_word(f, ca_file);
        fputc(' ', f);
    }
    if (key)
        fputs("-H \"Authorization: Bearer $ATTND_KEY\" ", f);
    if (strcmp(method, body ? "POST" : "GET") != 0)
        fprintf(f, "-X %s ", method);
    if (body) {
        fputs("--json ", f);
        put_word(f, body);
        fputc(' ', f);
    }
    snprintf(target, sizeof target, "%.*s%s", n && url[n - 1] == '/' ? (int)n - 1 : (int)n,
             strncmp(url, "unix:", 5) == 0 ? "http://localhost" : url, path);
    if (strncmp(url, "unix:", 5) == 0)
        snprintf(target, sizeof target, "http://localhost%s", path);
    put_word(f, target);
    fputc('\0', f);
    fclose(f);
    out[room - 1] = '\0';
    return out;
}
