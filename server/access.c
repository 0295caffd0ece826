/* SPDX-License-Identifier: Apache-2.0 */
/* access.c - see access.h. */
#include "server/access.h"

#include "server/api.h"
#include "server/keys.h"

#include <uv.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    unsigned scope;           /* 0: none is needed */
    bool managed, open_there; /* served at the management listener; and without a key */
} accesses[ACCESSES] = {
    [ACCESS_OPEN] = {0, true, true},
    [ACCESS_METRICS] = {SCOPE_READ, true, true},
#define XX(constant, name, bit, includes) [ACCESS_##constant] = {SCOPE_##constant, false, false},
    SCOPE_MAP(XX)
#undef XX
        [ACCESS_CONTROL] = {SCOPE_ADMIN, true, false},
};

static const char *scope_name(unsigned scope)
{
    switch (scope) {
#define XX(constant, name, bit, includes)                                                                    \
    case SCOPE_##constant:                                                                                   \
        return name;
        SCOPE_MAP(XX)
#undef XX
    default:
        return "";
    }
}

const char *access_scope(enum route_access access)
{
    return accesses[access].scope ? scope_name(accesses[access].scope) : NULL;
}

static bool refuse_key(struct http_exchange *x, const char *why)
{
    http_problem(x, ATTND_NO_KEY, "%s", why);
    snprintf(x->extra, sizeof x->extra, "WWW-Authenticate: Bearer realm=\"attnd\"\r\n");
    return false;
}

/* The key that the client shows, if there are keys. False: it is none of them. */
static bool note_key(struct http_exchange *x, struct daemon_state *daemon)
{
    static const char scheme[] = "bearer ";
    struct http_text shown = x->head.authorization;
    size_t front = sizeof scheme - 1;
    x->known = !daemon->keys;
    if (!daemon->keys) {
        x->scopes = SCOPES_ALL;
        return true;
    }
    if (shown.n == 0) {
        x->key = keys_anonymous(daemon->keys);
        x->scopes = x->listener->anonymous;
        return true;
    }
    x->stranger = shown.n <= front || strncasecmp(shown.bytes, scheme, front) != 0;
    if (x->stranger)
        return refuse_key(x, "Authorization wants \"Bearer KEY\"");
    struct api_key *key = keys_find(daemon->keys, shown.bytes + front, shown.n - front);
    x->stranger = key == NULL;
    if (!key)
        return refuse_key(x, "there is no such key");
    x->key = key;
    x->scopes = key->scopes;
    x->known = true;
    return true;
}

/* Whether the key may make another request now: as many a second as its quota says, and at most as many at
 * once. */
static bool has_allowance(struct http_exchange *x)
{
    struct api_key *key = x->key;
    if (!key)
        return true;
    if (tenant_calls_ask(&key->use, uv_hrtime()))
        return true;
    access_refuse_quota(x, "requests_per_s", key->quotas.requests_per_s);
    return false;
}

int access_refuse_quota(struct http_exchange *x, const char *quota, uint64_t limit)
{
    http_problem(x, ATTND_QUOTA, "quotas.%s (%llu) of the key \"%s\" are used up", quota,
                 (unsigned long long)limit, x->key->name);
    snprintf(x->extra, sizeof x->extra, "Retry-After: 1\r\n");
    return ATTND_QUOTA;
}

void access_write_key(struct json_writer *w, const struct http_exchange *x)
{
    if (!x->key)
        return;
    json_open(w, "key", '{');
    json_string(w, "name", x->key->name);
    json_open(w, "scopes", '[');
#define XX(constant, name, bit, includes)                                                                    \
    if (x->scopes & SCOPE_##constant)                                                                        \
        json_string(w, NULL, name);
    SCOPE_MAP(XX)
#undef XX
    json_close(w, ']');
    json_close(w, '}');
}

bool access_sees_all(const struct http_exchange *x)
{
    return x->scopes & SCOPE_ADMIN;
}

/* At the management listener. */
static bool admit_manager(struct http_exchange *x, enum route_access access)
{
    if (!accesses[access].managed) {
        http_problem(
            x, ATTND_NOT_FOUND,
            "the management listener serves /livez, /readyz, /metrics and POST /v1/drain, /v1/audit, "
            "/v1/roof, /v1/selftest and /v1/trim");
        return false;
    }
    if (x->is_owner)
        x->scopes = SCOPES_ALL;
    if (accesses[access].open_there || x->scopes & SCOPE_ADMIN)
        return true;
    if (x->listener->address.is_unix)
        http_problem(x, ATTND_FORBIDDEN, "this is for processes of the daemon's user and root");
    else
        refuse_key(x, "this needs a key with the scope admin");
    return false;
}

bool access_admit(struct http_exchange *x, struct daemon_state *daemon)
{
    enum route_access access = x->route ? x->route->access : ACCESS_READ;
    unsigned scope = accesses[access].scope;
    if (access == ACCESS_OPEN)
        return true;
    if (!note_key(x, daemon))
        return false;
    if (x->listener->management) {
        x->scopes &= daemon->keys ? ~0U : 0; /* without keys nobody has one */
        return admit_manager(x, access);
    }
    if (scope & ~x->scopes) {
        if (!x->known)
            return refuse_key(x, "this needs a key: Authorization: Bearer KEY");
        http_problem(x, ATTND_FORBIDDEN, "the key \"%s\" lacks the scope %s", x->key->name,
                     scope_name(scope));
        return false;
    }
    return has_allowance(x);
}
