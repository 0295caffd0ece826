/* SPDX-License-Identifier: Apache-2.0 */
/* api_dashboard.c - the page at GET /, and its files.
 *
 * The files of server/dashboard/ are in the binary as they are: the assembler reads them in, named from the root, where the build
 * runs. They are sent from where they lie. They hold no data and need no key; what the page shows it asks the API for, as its user.
 *
 * They are not compressed: all of them are read once a version (the ETag is their digest), and a proxy that compresses has less to
 * do than a second copy of each would cost here. tests/integration/51-page.sh keeps them below 64 KiB compressed. */
#include "server/api.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <string.h>

/* XX(identifier, name, media type); the first one is the page itself. */
#define DASHBOARD_FILES(XX)                                                                                  \
    XX(index, "index.html", "text/html; charset=utf-8")                                                      \
    XX(style, "style.css", "text/css; charset=utf-8")                                                        \
    XX(icon, "icon.svg", "image/svg+xml")                                                                    \
    XX(app, "app.js", "text/javascript; charset=utf-8")                                                      \
    XX(api, "api.js", "text/javascript; charset=utf-8")                                                      \
    XX(dom, "dom.js", "text/javascript; charset=utf-8")                                                      \
    XX(learn, "learn.js", "text/javascript; charset=utf-8")                                                  \
    XX(map, "map.js", "text/javascript; charset=utf-8")                                                      \
    XX(observe, "observe.js", "text/javascript; charset=utf-8")                                              \
    XX(pure, "pure.js", "text/javascript; charset=utf-8")                                                    \
    XX(sequences, "sequences.js", "text/javascript; charset=utf-8")

#define XX(identifier, name, type)                                                                           \
    __asm__(".pushsection .rodata\n"                                                                         \
            "dashboard_" #identifier ":\n"                                                                   \
            ".incbin \"server/dashboard/" name "\"\n"                                                        \
            "dashboard_" #identifier "_end:\n"                                                               \
            ".popsection\n");                                                                                \
    extern const char dashboard_##identifier[], dashboard_##identifier##_end[];
DASHBOARD_FILES(XX)
#undef XX

static const struct {
    const char *name, *type, *begin, *end;
} files[] = {
#define XX(identifier, name, type) {name, type, dashboard_##identifier, dashboard_##identifier##_end},
    DASHBOARD_FILES(XX)
#undef XX
};

enum { FILES = sizeof files / sizeof files[0] };

/* Scripts, styles and the API of this origin, and nothing else: no inline code, no frames, no forms that are sent anywhere. */
static const char headers[] =
    "Cache-Control: no-cache\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n";

/* Answer with file `i`, or say that the client has it. A digest is 5 us for the largest. */
static void send_file(struct http_exchange *x, size_t i)
{
    struct http_text text = {files[i].begin, (size_t)(files[i].end - files[i].begin)};
    char tag[24];
    int n = snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)XXH3_64bits(text.bytes, text.n));
    x->headers = headers;
    snprintf(x->extra, sizeof x->extra, "ETag: %s\r\n", tag);
    if (memmem(x->head.if_none_match.bytes, x->head.if_none_match.n, tag, (size_t)n)) {
        x->http_status = 304;
        return;
    }
    x->content_type = files[i].type;
    x->tail[x->tail_count++] = text;
}

static void get_page(struct http_exchange *x, struct daemon_state *daemon)
{
    (void)daemon;
    send_file(x, 0);
}

static void get_file(struct http_exchange *x, struct daemon_state *daemon)
{
    struct http_text name = x->head.path;
    const size_t front = sizeof "/dashboard/" - 1;
    (void)daemon;
    name.bytes += front;
    name.n -= front;
    for (size_t i = 1; i < FILES; i++) {
        if (http_text_is(name, files[i].name)) {
            send_file(x, i);
            return;
        }
    }
    http_problem(x, ATTND_NOT_FOUND, "the page has no such file: %.*s", (int)(name.n < 100 ? name.n : 100),
                 name.bytes);
}

static const struct api_schema schemas[] = {{NULL, NULL}};

static const struct route routes[] = {
    ANSWER(GET, "/", OPEN, TYPE_PAGE, 200, get_page, "The page in the browser", NULL, NULL, "text", 304),
    ANSWER(GET, "/dashboard/{name}", OPEN, TYPE_FILES, 200, get_file, "A file of the page", NULL, NULL,
           "text", 304),
    {0},
};

const struct api_resource api_dashboard = {routes, schemas};
