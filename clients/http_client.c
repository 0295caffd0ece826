/* SPDX-License-Identifier: Apache-2.0 */
/* http_client.c - see http_client.h. */
#include "clients/http_client.h"

#include <curl/curl.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_S = 5, URL_BYTES = 4096, HINT_BYTES = 384, NODE_BYTES = 24, NODE_SHIFT = 40 };

struct http_client {
    CURL *curl;
    const char *key, *ca_file;
    char base[256], socket[256]; /* socket: empty over TCP */
    char error[CURL_ERROR_SIZE];
    const struct http_request *request;
    char *text;
    size_t bytes, room, line_start;
    char etag[128];
    uint64_t about;         /* that bodies name; 0: none */
    char node[NODE_BYTES];  /* X-Attnd-Node of the latest answer; "": it had none, as those of proxies */
    char asked[NODE_BYTES]; /* http_client_ask_node(); "": none */
    /* of one in a group */
    struct http_request own;
    struct curl_slist *headers;
    enum { IDLE, UNDER_WAY, DONE } state;
    CURLcode result;
};

struct http_group {
    CURLM *multi;
};

struct http_client *http_client_create(const char *url, const char *key, const char *ca_file)
{
    struct http_client *c = calloc(1, sizeof *c);
    if (!c || curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
        free(c);
        return NULL;
    }
    c->key = key;
    c->ca_file = ca_file && *ca_file ? ca_file : NULL;
    c->curl = curl_easy_init();
    bool is_unix = strncmp(url, "unix:", 5) == 0;
    if (is_unix)
        snprintf(c->socket, sizeof c->socket, "%s", url + 5);
    snprintf(c->base, sizeof c->base, "%s", is_unix ? "http://localhost" : url);
    size_t n = strlen(c->base);
    if (n && c->base[n - 1] == '/')
        c->base[n - 1] = '\0';
    if (!c->curl) {
        http_client_destroy(c);
        return NULL;
    }
    return c;
}

void http_client_destroy(struct http_client *c)
{
    if (!c)
        return;
    curl_easy_cleanup(c->curl);
    curl_global_cleanup();
    free(c->text);
    free(c);
}

/* Hand over the whole lines that have come; what they took is dropped. */
static void give_lines(struct http_client *c)
{
    size_t start = 0;
    for (char *mark; (mark = memchr(c->text + start, '\n', c->bytes - start));) {
        size_t n = (size_t)(mark - c->text) - start;
        c->request->line(c->text + start, n, c->request->cookie);
        start += n + 1;
    }
    memmove(c->text, c->text + start, c->bytes - start);
    c->bytes -= start;
}

static size_t on_data(char *data, size_t size, size_t n, void *cookie)
{
    struct http_client *c = cookie;
    long status = 0;
    n *= size;
    if (c->bytes + n + 1 > c->room) {
        size_t room = 2 * (c->bytes + n + 1);
        char *text = realloc(c->text, room);
        if (!text)
            return 0;
        c->text = text;
        c->room = room;
    }
    memcpy(c->text + c->bytes, data, n);
    c->bytes += n;
    c->text[c->bytes] = '\0';
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (c->request->line && status < 300)
        give_lines(c);
    return n;
}

/* The value of a header, if the line is one of that name. */
static void note_header(const char *line, size_t end, const char *name, char *value, size_t room)
{
    size_t front = strlen(name);
    if (end <= front || strncasecmp(line, name, front) != 0)
        return;
    while (front < end && line[front] == ' ')
        front++;
    while (end > front && (line[end - 1] == '\r' || line[end - 1] == '\n'))
        end--;
    snprintf(value, room, "%.*s", (int)(end - front), line + front);
}

static size_t on_header(char *line, size_t size, size_t n, void *cookie)
{
    struct http_client *c = cookie;
    note_header(line, n * size, "etag:", c->etag, sizeof c->etag);
    note_header(line, n * size, "x-attnd-node:", c->node, sizeof c->node);
    return n * size;
}

const char *http_client_node(const struct http_client *c)
{
    return c->node;
}

void http_client_ask_node(struct http_client *c, uint64_t node)
{
    snprintf(c->asked, sizeof c->asked, "n%llu", (unsigned long long)node);
}

uint64_t http_client_node_of(uint64_t id)
{
    return id >> NODE_SHIFT;
}

void http_client_about(struct http_client *c, uint64_t id)
{
    c->about = id;
}

/* The sequence or lease that a path names, else the one that bodies name; 0: none. */
static uint64_t id_about(const struct http_client *c)
{
    static const char *const of[] = {"/v1/sequences/", "/v1/leases/", "/v1/workloads/"};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        size_t n = strlen(of[i]);
        if (strncmp(c->request->path, of[i], n) == 0)
            return strtoull(c->request->path + n, NULL, 10);
    }
    return c->about;
}

static struct curl_slist *make_headers(const struct http_client *c)
{
    char line[512];
    const struct http_request *r = c->request;
    struct curl_slist *headers = NULL;
    if (c->key) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", c->key);
        headers = curl_slist_append(headers, line);
    }
    if (r->body || r->file) {
        snprintf(line, sizeof line, "Content-Type: %s", r->type ? r->type : "application/json");
        headers = curl_slist_append(headers, line);
    }
    if (r->if_match) {
        snprintf(line, sizeof line, "If-Match: %s", r->if_match);
        headers = curl_slist_append(headers, line);
    }
    if (r->timeout_ms) {
        snprintf(line, sizeof line, "X-Request-Timeout-Ms: %llu", (unsigned long long)r->timeout_ms);
        headers = curl_slist_append(headers, line);
    }
    uint64_t about = id_about(c);
    if (about && !c->asked[0])
        snprintf(line, sizeof line, "X-Attnd-Node: n%llu", (unsigned long long)http_client_node_of(about));
    else
        snprintf(line, sizeof line, "X-Attnd-Node: %s", c->asked[0] ? c->asked : c->node);
    if (about || c->asked[0] || c->node[0])
        headers = curl_slist_append(headers, line);
    snprintf(line, sizeof line, "Accept: %s", r->accept ? r->accept : "application/json");
    return curl_slist_append(headers, line);
}

/* A reply without a status, its text the reason. */
static struct http_reply no_reply(struct http_client *c, const char *what, const char *why)
{
    free(c->text);
    c->text = NULL;
    c->bytes = c->room = 0;
    int n = asprintf(&c->text, "%s: %s", what, why);
    if (n < 0)
        abort();
    c->room = (size_t)n + 1;
    return (struct http_reply){.text = c->text, .bytes = (size_t)n, .etag = c->etag};
}

bool http_client_is_tls(const char *url)
{
    return strncasecmp(url, "https:", 6) == 0;
}

/* A URL without a scheme is http. */
static bool is_plain(const struct http_client *c)
{
    return !c->socket[0] && !http_client_is_tls(c->base);
}

/* libcurl's text alone tells a name that is another from an authority that is not known: both are one code. */
static const char *hint_for_certificate(const struct http_client *c, char room[HINT_BYTES])
{
    const char *host = strstr(c->base, "://");
    host = host ? host + 3 : c->base;
    size_t n = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
    if (strstr(c->error, "subject name") || strstr(c->error, "target host"))
        snprintf(room, HINT_BYTES, "; the certificate is for another name than %.*s", (int)n, host);
    else if (strstr(c->error, "expired") || strstr(c->error, "not yet valid"))
        return "";
    else
        snprintf(room, HINT_BYTES,
                 "; it is signed by no authority that is known: --ca-file names the "
                 "certificates of authorities of your own");
    return room;
}

/* What may help; "": libcurl's words do. Servers that speak TLS answer http with an alert, which libcurl takes for HTTP/0.9, or with
 * nothing, as a listener of attnd does that wants a PROXY header first. */
static const char *hint_for(const struct http_client *c, CURLcode rc, char room[HINT_BYTES])
{
    if (is_plain(c) && (rc == CURLE_GOT_NOTHING || strstr(c->error, "HTTP/0.9")))
        return "; it speaks another protocol: https, or that of a listener with proxy_protocol?";
    switch (rc) {
    case CURLE_COULDNT_CONNECT:
        return "; is attnd running there?";
    case CURLE_PEER_FAILED_VERIFICATION:
        return hint_for_certificate(c, room);
    case CURLE_SSL_CONNECT_ERROR:
        return "; attnd serves http, and a proxy before it https";
    default:
        return "";
    }
}

/* What could not be reached. libcurl says "localhost port 80" of a unix socket. */
static struct http_reply not_reached(struct http_client *c, const char *url, CURLcode rc)
{
    char what[URL_BYTES], hint[HINT_BYTES], why[CURL_ERROR_SIZE + HINT_BYTES];
    long error = 0;
    if (rc == CURLE_ABORTED_BY_CALLBACK)
        return no_reply(c, url, "given up");
    if (rc != CURLE_COULDNT_CONNECT || !c->socket[0]) {
        snprintf(why, sizeof why, "%s%s", c->error[0] ? c->error : curl_easy_strerror(rc),
                 hint_for(c, rc, hint));
        return no_reply(c, url, why);
    }
    curl_easy_getinfo(c->curl, CURLINFO_OS_ERRNO, &error);
    snprintf(what, sizeof what, "unix:%s", c->socket);
    snprintf(why, sizeof why, "%s%s", error ? strerror((int)error) : "no daemon answers there",
             hint_for(c, rc, hint));
    return no_reply(c, what, why);
}

/* Called by libcurl about once a second, and whenever something happens. */
static int look_whether_stopped(void *cookie, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct http_client *client = cookie;
    (void)a, (void)b, (void)c, (void)d;
    return client->request->stopped();
}

/* Where a request goes. */
static void make_url(const struct http_client *c, char url[URL_BYTES])
{
    snprintf(url, URL_BYTES, "%s%s", c->base, c->request->path);
}

/* Have libcurl know all of the request that the client has; `file`: where the body comes from, or NULL. The headers, to be freed when it
 * is done. */
static struct curl_slist *prepare(struct http_client *c, FILE *file)
{
    char url[URL_BYTES];
    const struct http_request *request = c->request;
    struct curl_slist *headers = make_headers(c);
    c->bytes = 0;
    c->etag[0] = c->node[0] = '\0';
    if (c->text)
        c->text[0] = '\0';
    make_url(c, url);
    curl_easy_reset(c->curl);
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    if (c->socket[0])
        curl_easy_setopt(c->curl, CURLOPT_UNIX_SOCKET_PATH, c->socket);
    curl_easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    /* HTTP/2 would put the requests of a group on one connection */
    curl_easy_setopt(c->curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    if (c->ca_file)
        curl_easy_setopt(c->curl, CURLOPT_CAINFO, c->ca_file);
    curl_easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c->curl, CURLOPT_HEADERDATA, c);
    if (request->stopped) {
        curl_easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, look_whether_stopped);
        curl_easy_setopt(c->curl, CURLOPT_XFERINFODATA, c);
    }
    if (file) {
        curl_easy_setopt(c->curl, CURLOPT_POST, 1L);
        curl_easy_setopt(c->curl, CURLOPT_READDATA, file);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE, -1L);
    } else if (request->body) {
        size_t bytes = request->body_bytes ? request->body_bytes : strlen(request->body);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, request->body);
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
    }
    curl_easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, request->method);
    return headers;
}

/* What came of it. */
static struct http_reply take_reply(struct http_client *c, CURLcode rc)
{
    char url[URL_BYTES], *type = NULL;
    struct http_reply reply = {0};
    long status = 0;
    make_url(c, url);
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (rc != CURLE_OK) {
        reply = not_reached(c, url, rc);
        reply.is_cut = status >= 200 && (rc == CURLE_PARTIAL_FILE || rc == CURLE_RECV_ERROR);
        return reply;
    }
    reply.status = status;
    reply.text = c->text;
    reply.bytes = c->bytes;
    reply.etag = c->etag;
    curl_easy_getinfo(c->curl, CURLINFO_CONTENT_TYPE, &type);
    reply.type = type;
    reply.is_plain = is_plain(c);
    reply.node = http_client_is_tls(c->base) && c->node[0] ? c->node : NULL;
    return reply;
}

struct http_reply http_client_send(struct http_client *c, const struct http_request *request)
{
    bool is_input = request->file && strcmp(request->file, "-") == 0;
    FILE *file = is_input ? stdin : request->file ? fopen(request->file, "rb") : NULL;
    c->request = request;
    if (request->file && !file)
        return no_reply(c, request->file, strerror(errno));
    struct curl_slist *headers = prepare(c, file);
    CURLcode rc = curl_easy_perform(c->curl);
    curl_slist_free_all(headers);
    if (file && !is_input)
        fclose(file);
    return take_reply(c, rc);
}

/* ---- several at a time --------------------------------------------------------------------------- */

struct http_group *http_group_create(void)
{
    struct http_group *g = calloc(1, sizeof *g);
    if (g && !(g->multi = curl_multi_init())) {
        free(g);
        return NULL;
    }
    return g;
}

void http_group_destroy(struct http_group *g)
{
    if (!g)
        return;
    curl_multi_cleanup(g->multi);
    free(g);
}

bool http_group_start(struct http_group *g, struct http_client *c, const struct http_request *request)
{
    c->own = *request;
    c->request = &c->own;
    c->headers = prepare(c, NULL);
    curl_easy_setopt(c->curl, CURLOPT_PRIVATE, c);
    if (curl_multi_add_handle(g->multi, c->curl) != CURLM_OK) {
        curl_slist_free_all(c->headers);
        return false;
    }
    c->state = UNDER_WAY;
    return true;
}

static void end(struct http_group *g, struct http_client *c, CURLcode result)
{
    curl_multi_remove_handle(g->multi, c->curl);
    curl_slist_free_all(c->headers);
    c->headers = NULL;
    c->result = result;
    c->state = DONE;
}

void http_group_turn(struct http_group *g, int wait_ms)
{
    int running, left;
    const CURLMsg *message;
    curl_multi_perform(g->multi, &running);
    if (running && wait_ms > 0) {
        curl_multi_poll(g->multi, NULL, 0, wait_ms, NULL);
        curl_multi_perform(g->multi, &running);
    }
    while ((message = curl_multi_info_read(g->multi, &left))) {
        CURLcode result = message->data.result;
        char *client = NULL;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &client);
        if (message->msg == CURLMSG_DONE)
            end(g, (struct http_client *)(void *)client, result);
    }
}

bool http_client_has_sent(const struct http_client *c)
{
    long head = 0;
    curl_off_t body = 0;
    size_t bytes = c->own.body_bytes ? c->own.body_bytes : c->own.body ? strlen(c->own.body) : 0;
    if (c->state != UNDER_WAY)
        return true;
    curl_easy_getinfo(c->curl, CURLINFO_REQUEST_SIZE, &head);
    curl_easy_getinfo(c->curl, CURLINFO_SIZE_UPLOAD_T, &body);
    return head > 0 && (size_t)body >= bytes;
}

bool http_client_has_reply(struct http_client *c, struct http_reply *reply)
{
    if (c->state != DONE)
        return false;
    *reply = take_reply(c, c->result);
    return true;
}

void http_group_give_up(struct http_group *g, struct http_client *c)
{
    if (c->state == UNDER_WAY)
        end(g, c, CURLE_ABORTED_BY_CALLBACK);
}
