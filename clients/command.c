/* SPDX-License-Identifier: Apache-2.0 */
/* command.c - see command.h. */
#include "clients/command.h"
#include "clients/answer.h"
#include "clients/terminal.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MOST_GB = 64 };

static const char KEY_FROM[] = "--key-file FILE or $ATTNCTL_KEY_FILE";

/* Of the command line, so it is of the process. */
static const char *command_name;

const char *command_option(const struct command *c, const char *name)
{
    for (size_t i = 0; c->info->options && c->info->options[i].name; i++) {
        if (strcmp(c->info->options[i].name, name) == 0)
            return c->values[i];
    }
    fprintf(stderr, "attnctl: %s asks for its option --%s, which it does not have\n", c->info->name, name);
    abort();
}

bool command_number(const struct command *c, const char *name, double low, double high, double *value)
{
    const char *text = command_option(c, name);
    char *end;
    if (!text)
        return true;
    double number = strtod(text, &end);
    if (end == text || *end || !isfinite(number) || number < low || number > high) {
        command_usage("--%s wants a number in %g..%g, not \"%.40s\"", name, low, high, text);
        return false;
    }
    *value = number;
    return true;
}

bool command_read_integer(const char *what, const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || number < low || number > high) {
        if (low == high)
            command_usage("%s wants %llu, not \"%.40s\"", what, (unsigned long long)low, text);
        else
            command_usage("%s wants an integer in %llu..%llu, not \"%.40s\"", what, (unsigned long long)low,
                          (unsigned long long)high, text);
        return false;
    }
    *value = number;
    return true;
}

bool command_integer(const struct command *c, const char *name, uint64_t low, uint64_t high, uint64_t *value)
{
    char what[64];
    const char *text = command_option(c, name);
    snprintf(what, sizeof what, "--%s", name);
    return !text || command_read_integer(what, text, low, high, value);
}

bool command_count(const struct command *c, uint64_t most, uint64_t *count)
{
    if (c->argc == 2 && command_option(c, "count")) {
        command_usage("there are two counts: --count %.40s and %.40s", command_option(c, "count"),
                      c->argv[1]);
        return false;
    }
    return c->argc == 2 ? command_read_integer("COUNT", c->argv[1], 1, most, count)
                        : command_integer(c, "count", 1, most, count);
}

int64_t *command_read_ids(const char *text, size_t *count)
{
    size_t most = 1;
    for (const char *s = text; *s; s++)
        most += *s == ',';
    int64_t *ids = calloc(most, sizeof *ids);
    *count = 0;
    for (const char *s = text; ids; s++) {
        char *end;
        long long id = strtoll(s, &end, 10);
        if (*s < '0' || *s > '9' || (*end && *end != ','))
            break;
        ids[(*count)++] = id;
        if (!*(s = end))
            return ids;
    }
    free(ids);
    return NULL;
}

bool command_id_path(const struct command *c, const char *resource, const char *rest,
                     char path[COMMAND_PATH_BYTES])
{
    uint64_t id;
    if (!command_read_integer("the id", c->argv[0], 1, COMMAND_ID_MOST, &id))
        return false;
    snprintf(path, COMMAND_PATH_BYTES, "/v1/%s/%llu%s", resource, (unsigned long long)id, rest);
    return true;
}

/* Say what came where an answer of attnd is JSON: its type, and how it begins, without the markup. */
static void put_other(FILE *f, const struct http_reply *reply)
{
    enum { SHOWN = 80 };
    char text[SHOWN + 4] = "";
    size_t n = 0, type = reply->type ? strcspn(reply->type, ";") : 0;
    bool inside = false, space = false;
    for (size_t i = 0; reply->text && i < reply->bytes && n < SHOWN; i++) {
        char c = reply->text[i];
        inside |= c == '<';
        space |= inside || strchr(" \t\r\n", c);
        if (!inside && !strchr(" \t\r\n", c)) {
            if (space && n)
                text[n++] = ' ';
            text[n++] = c;
            space = false;
        }
        inside &= c != '>';
    }
    fprintf(f, "%ld, and no JSON: ", reply->status);
    snprintf(text + n, sizeof text - n, "%s", n >= SHOWN ? "..." : "");
    if (type) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(type < sizeof name ? type : sizeof name - 1), reply->type);
        terminal_put(f, name);
    }
    fputs(type && n ? ", " : type ? "" : n ? "" : "nothing", f);
    if (n) {
        putc('"', f);
        terminal_put(f, text);
        putc('"', f);
    }
    fputs(reply->is_plain && reply->text && strcasestr(reply->text, "https") ? "; https?"
                                                                             : "; is attnd there?",
          f);
}

/* `key_from`: where attnctl takes the daemon's key from. */
static void put_reason(FILE *f, const struct http_reply *reply, const char *key_from)
{
    cJSON *problem = reply->status && reply->text ? cJSON_Parse(reply->text) : NULL;
    if (problem) {
        fprintf(f, "%ld ", reply->status);
        terminal_put(f, answer_text(problem, "code"));
        if (reply->node) {
            fputs(" at node ", f);
            terminal_put(f, reply->node);
        }
        fputs(": ", f);
        terminal_put(f, answer_text(problem, "detail"));
        if (reply->status == 401)
            fprintf(f, "; attnctl takes it from %s", key_from);
    } else if (reply->status) {
        put_other(f, reply);
    } else {
        terminal_put(f, reply->text);
    }
    cJSON_Delete(problem);
}

bool command_reached_none(const cJSON *problem)
{
    const char *code = answer_text(problem, "code");
    return strcmp(code, "node_down") == 0 || strcmp(code, "not_ready") == 0;
}

bool command_is_unavailable(const struct http_reply *reply)
{
    cJSON *problem = reply->status == 503 && reply->text ? cJSON_Parse(reply->text) : NULL;
    bool none = reply->status == 0 || command_reached_none(problem);
    cJSON_Delete(problem);
    return none;
}

char *command_reason(const struct http_reply *reply)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        abort();
    put_reason(f, reply, KEY_FROM);
    if (fclose(f) != 0)
        abort();
    return text;
}

enum exit_code command_explain(const struct http_reply *reply)
{
    fputs("attnctl: ", stderr);
    put_reason(stderr, reply, KEY_FROM);
    fputc('\n', stderr);
    return command_is_unavailable(reply) ? EXIT_UNAVAILABLE : EXIT_FAILED;
}

enum exit_code command_explain_other(const struct http_reply *reply, const char *url, const char *key_option)
{
    char from[128];
    snprintf(from, sizeof from, "%s FILE (default: the same key)", key_option);
    fputs("attnctl: ", stderr);
    if (reply->status) { /* else the reason has it */
        terminal_put(stderr, url);
        fputs(": ", stderr);
    }
    put_reason(stderr, reply, from);
    fputc('\n', stderr);
    return command_is_unavailable(reply) ? EXIT_UNAVAILABLE : EXIT_FAILED;
}

/* Send, print if it is wanted, and parse if that is. */
static enum exit_code send_one(const struct command *c, const struct http_request *request, bool print,
                               cJSON **tree)
{
    struct http_reply reply = http_client_send(c->client, request);
    if (tree)
        *tree = NULL;
    if (reply.status < 200 || reply.status > 299)
        return command_explain(&reply);
    if (print && reply.bytes) {
        fwrite(reply.text, 1, reply.bytes, stdout);
        if (reply.text[reply.bytes - 1] != '\n')
            putchar('\n');
    }
    if (tree && reply.bytes)
        *tree = cJSON_Parse(reply.text);
    return tree && reply.bytes && !*tree ? command_explain(&reply) : EXIT_OK;
}

enum exit_code command_fetch(const struct command *c, const char *method, const char *path, const char *body,
                             cJSON **tree)
{
    return send_one(c, &(struct http_request){.method = method, .path = path, .body = body}, false, tree);
}

bool command_say_cut(const struct command *c, const char *path, const char *amid)
{
    char node[64];
    cJSON *now;
    terminal_escape(http_client_node(c->client), node, sizeof node);
    command_try(c, path, &now);
    if (now)
        fprintf(stderr, "attnctl: the connection to the daemon broke amid %s", amid);
    else
        fprintf(stderr, "attnctl: the daemon%s%s%s went away amid %s", *node ? " (node " : "", node,
                *node ? ")" : "", amid);
    cJSON_Delete(now);
    return now != NULL;
}

enum exit_code command_follow(const struct command *c, const char *path, http_client_line line, void *cookie,
                              const double *last)
{
    const struct http_request request = {.method = "GET",
                                         .path = path,
                                         .accept = "application/x-ndjson",
                                         .line = line,
                                         .stopped = terminal_interrupted,
                                         .cookie = cookie};
    terminal_watch_signals();
    struct http_reply reply = http_client_send(c->client, &request);
    if (terminal_interrupted())
        return EXIT_INTERRUPTED;
    if (!reply.is_cut)
        return reply.status >= 200 && reply.status < 300 ? EXIT_OK : command_explain(&reply);
    (void)command_say_cut(c, "/livez", "its events");
    if (last && *last > 0)
        fprintf(stderr, "; the last one was %.0f", *last);
    fputc('\n', stderr);
    return EXIT_UNAVAILABLE;
}

struct http_reply command_try(const struct command *c, const char *path, cJSON **tree)
{
    const struct http_request request = {.method = "GET", .path = path, .stopped = terminal_interrupted};
    struct http_reply reply = http_client_send(c->client, &request);
    *tree = reply.status >= 200 && reply.status < 300 && reply.bytes ? cJSON_Parse(reply.text) : NULL;
    return reply;
}

bool command_sees_all(const struct command *c)
{
    cJSON *info;
    const cJSON *scope;
    command_try(c, "/v1/info", &info);
    const cJSON *scopes = answer_at(info, "key.scopes");
    bool all = !scopes;
    cJSON_ArrayForEach (scope, scopes) {
        all |= cJSON_IsString(scope) && strcmp(scope->valuestring, "admin") == 0;
    }
    cJSON_Delete(info);
    return all;
}

enum exit_code command_get(const struct command *c, const char *path, cJSON **tree)
{
    return send_one(c, &(struct http_request){.method = "GET", .path = path}, c->json, tree);
}

enum exit_code command_get_all(const struct command *c, const char *list, cJSON **all)
{
    char path[COMMAND_PATH_BYTES];
    double next = 0;
    enum exit_code code;
    *all = cJSON_CreateArray();
    do {
        cJSON *page, *item;
        snprintf(path, sizeof path, "%s?limit=100&cursor=%.0f", list, next);
        code = command_get(c, path, &page);
        cJSON *items = cJSON_GetObjectItemCaseSensitive(page, "items");
        while (!c->json && (item = cJSON_DetachItemFromArray(items, 0)))
            cJSON_AddItemToArray(*all, item);
        next = answer_number(page, "next");
        cJSON_Delete(page);
    } while (next > 0);
    return code;
}

enum exit_code command_ask(const struct command *c, const char *method, const char *path, const char *body,
                           cJSON **tree)
{
    const struct http_request request = {.method = method, .path = path, .body = body};
    *tree = NULL;
    return send_one(c, &request, c->json, c->json ? NULL : tree);
}

static void file_error(const char *file, int error)
{
    fputs("attnctl: ", stderr);
    terminal_put(stderr, file);
    fprintf(stderr, ": %s\n", strerror(error));
}

bool command_can_send(const char *file)
{
    struct stat is = {0};
    int error = strcmp(file, "-") == 0 ? 0 : stat(file, &is) != 0 || access(file, R_OK) != 0 ? errno : 0;
    if (!error && strcmp(file, "-") != 0 && S_ISDIR(is.st_mode))
        error = EISDIR;
    if (error)
        file_error(file, error);
    return !error;
}

char *command_read_file(const char *file, size_t *bytes)
{
    bool from_input = strcmp(file, "-") == 0;
    FILE *f = from_input ? stdin : fopen(file, "rb");
    char *data = NULL;
    size_t n = 0, room = 0, got = 1;
    while (f && got > 0 && n >> 30 < FILE_MOST_GB) {
        if (room - n < BUFSIZ) {
            char *grown = realloc(data, room = 2 * room + (size_t)2 * BUFSIZ);
            if (!grown)
                break;
            data = grown;
        }
        n += got = fread(data + n, 1, room - n, f);
    }
    bool ok = f && got == 0 && !ferror(f);
    if (!ok)
        file_error(file, errno);
    if (f && !from_input)
        fclose(f);
    *bytes = n;
    if (ok)
        return data;
    free(data);
    return NULL;
}

void command_set_name(const char *name)
{
    command_name = name;
}

int command_usage(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fputs("attnctl: ", stderr);
    terminal_put(stderr, text);
    if (command_name)
        fprintf(stderr, " (attnctl %s --help says what it takes)\n", command_name);
    else
        fputs(" (--help lists the commands)\n", stderr);
    return EXIT_USAGE;
}

bool command_check_url(const char *what, const char *url)
{
    const char *rest = strstr(url, "://");
    if (!rest || strncmp(url, "unix:", 5) == 0 || strncasecmp(url, "http://", 7) == 0 ||
        strncasecmp(url, "https://", 8) == 0)
        return true;
    command_usage("%s %.80s: a URL is http://HOST:PORT, https://HOST:PORT or unix:PATH", what, url);
    return false;
}

bool command_is_proxy(const char *url)
{
    return http_client_is_tls(url);
}

bool command_one_daemon(const struct command *c, const char *what)
{
    if (c->node || !command_is_proxy(c->url))
        return true;
    command_usage("%s through a proxy wants --node N: which daemon", what);
    return false;
}

void command_put_node(const struct command *c)
{
    const char *node = http_client_node(c->client);
    if (!*node)
        return;
    fputs("node ", stdout);
    terminal_put(stdout, node);
    fputs(!c->node && command_is_proxy(c->url) ? " (one of those behind the proxy; --node N asks another): "
                                               : ": ",
          stdout);
}

void command_row(const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("  %-22s", name);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

char *command_read_key(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    struct stat info;
    FILE *f = fopen(path, "r");
    ssize_t n = f ? getline(&line, &room, f) : -1;
    bool open_to_all =
        n > 0 && fstat(fileno(f), &info) == 0 && S_ISREG(info.st_mode) && info.st_mode & S_IROTH;
    if (f)
        fclose(f);
    if (n > 0)
        line[strcspn(line, "\r\n")] = '\0';
    if (n > 0 && *line == '{') {
        fprintf(stderr,
                "attnctl: %s: is JSON, and a key is wanted: of what attnctl --json key new has printed jq -r "
                ".key; "
                "a keys file of the daemon has no keys, only their digests\n",
                path);
        free(line);
        return NULL;
    }
    if (n > 0 && *line) {
        if (open_to_all)
            fprintf(stderr, "attnctl: %s: everybody on this machine can read this key (chmod 600 it)\n",
                    path);
        return line;
    }
    fprintf(stderr, "attnctl: %s: %s\n", path, n < 0 && errno ? strerror(errno) : "has no key");
    free(line);
    return NULL;
}
