/* SPDX-License-Identifier: Apache-2.0 */
/* keys.c - see keys.h. */
#include "server/keys.h"

#include "config/json.h"

#include <cjson/cJSON.h>
#include <sha2.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(KEY_DIGEST_BYTES == SHA256_DIGEST_LENGTH, "digests are SHA-256");

enum { ANONYMOUS_ID = 2, WEIGHT_MAX = 1000 };

struct keys {
    char path[CONFIG_STRING_BYTES];
    struct api_key anonymous;
    struct api_key **list; /* [count]; each stays where it is, and there: requests may still point to it */
    unsigned count;
};

/* A file being read. */
struct reading {
    const char *path;
    char *reason;
    struct api_key *keys; /* [KEYS_MAX] */
    unsigned count;
};

static int __attribute__((format(printf, 2, 3))) fail(struct reading *r, const char *format, ...)
{
    va_list args;
    int n = snprintf(r->reason, KEYS_REASON_BYTES, "%.120s: ", r->path);
    va_start(args, format);
    vsnprintf(r->reason + n, (size_t)(KEYS_REASON_BYTES - n), format, args);
    va_end(args);
    return ATTND_INVALID;
}

/* ---- the file -------------------------------------------------------------------------------------- */

/* All of it, to be freed; NULL with a reason. Others than its owner and group must not read it. */
static char *read_file(struct reading *r, size_t *bytes)
{
    struct stat info;
    char *text = NULL;
    int fd = open(r->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0)
        fail(r, "%s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        fail(r, "is no file");
    else if (info.st_mode & (S_IRWXO | S_IWGRP))
        fail(r, "its mode is %04o: others can read or change it (chmod 600)", info.st_mode & 07777);
    else if (info.st_size > CONFIG_FILE_BYTES_MAX)
        fail(r, "has more than 1 MiB");
    else if (!(text = malloc(CONFIG_FILE_BYTES_MAX + 1)))
        fail(r, "no memory");
    ssize_t n = text ? read(fd, text, CONFIG_FILE_BYTES_MAX + 1) : 0;
    if (text && (n < 0 || n > CONFIG_FILE_BYTES_MAX)) {
        fail(r, "%s", n < 0 ? strerror(errno) : "has more than 1 MiB");
        free(text);
        text = NULL;
    }
    if (fd >= 0)
        close(fd);
    *bytes = text ? (size_t)n : 0;
    return text;
}

static bool read_digest(const char *text, uint8_t digest[KEY_DIGEST_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    const size_t length = (size_t)2 * KEY_DIGEST_BYTES;
    if (strlen(text) != length || strspn(text, digits) != length)
        return false;
    for (size_t i = 0; i < KEY_DIGEST_BYTES; i++)
        digest[i] = (uint8_t)((strchr(digits, text[2 * i]) - digits) << 4 |
                              (strchr(digits, text[2 * i + 1]) - digits));
    return true;
}

static const struct {
    const char *name;
    unsigned bits; /* with those that it includes */
} scopes_known[] = {
#define XX(constant, name, bit, includes) {name, (bit | (includes)) & SCOPES_ALL},
    SCOPE_MAP(XX)
#undef XX
};

enum { SCOPES = sizeof scopes_known / sizeof scopes_known[0] };

/* A list of words into bits. */
static bool read_scopes(const cJSON *list, unsigned *scopes)
{
    const cJSON *word;
    *scopes = 0;
    cJSON_ArrayForEach (word, list) {
        size_t i = 0;
        while (i < SCOPES && !(cJSON_IsString(word) && strcmp(word->valuestring, scopes_known[i].name) == 0))
            i++;
        if (i == SCOPES)
            return false;
        *scopes |= scopes_known[i].bits;
    }
    return cJSON_IsArray(list) && *scopes != 0;
}

/* "scopes: wants some of read, infer ..." */
static int refuse_scopes(struct reading *r, const char *name)
{
    char names[160] = "";
    size_t n = 0;
    for (size_t i = 0; i < SCOPES; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", scopes_known[i].name);
    return fail(r, "key \"%s\": scopes: wants some of %s", name, names);
}

/* What the engine counts against, too, is where it looks. */
static void set_limits(struct api_key *k)
{
    atomic_store(&k->use.calls_max, k->quotas.calls);
    atomic_store(&k->use.staging_max, k->quotas.staging_bytes);
    atomic_store(&k->use.requests_per_s, k->quotas.requests_per_s);
}

static int read_quotas(struct reading *r, const char *name, const cJSON *object, struct key_quotas *q)
{
    const struct {
        const char *name;
        int64_t max;
        uint32_t *to;
        uint64_t *wide;
    } known[] = {{"sequences", UINT32_MAX, &q->of_engine.sequences, NULL},
                 {"blocks", UINT32_MAX, &q->of_engine.blocks, NULL},
                 {"workloads", UINT32_MAX, &q->of_engine.workloads, NULL},
                 {"calls", UINT32_MAX, &q->calls, NULL},
                 {"streams", UINT32_MAX, &q->streams, NULL},
                 {"uploads", UINT32_MAX, &q->uploads, NULL},
                 {"requests_per_s", 1000000, &q->requests_per_s, NULL},
                 {"staging_bytes", INT64_C(1) << 50, NULL, &q->staging_bytes}};
    const cJSON *item;
    int64_t value;
    if (object && !cJSON_IsObject(object))
        return fail(r, "key \"%s\": quotas: wants an object", name);
    cJSON_ArrayForEach (item, object) {
        size_t i = 0;
        while (i < sizeof known / sizeof known[0] && strcmp(known[i].name, item->string) != 0)
            i++;
        if (i == sizeof known / sizeof known[0])
            return fail(r, "key \"%s\": quotas.%.40s: there is no such quota", name, item->string);
        if (!json_is_integer(item, 1, known[i].max, &value))
            return fail(r, "key \"%s\": quotas.%s: wants an integer in 1..%lld", name, known[i].name,
                        (long long)known[i].max);
        if (known[i].to)
            *known[i].to = (uint32_t)value;
        if (known[i].wide)
            *known[i].wide = (uint64_t)value;
    }
    return 0;
}

/* An id for what belongs to a key: never that of another, or of nobody. */
static uint64_t id_of(const uint8_t digest[KEY_DIGEST_BYTES])
{
    uint64_t id;
    memcpy(&id, digest, sizeof id);
    return (id >> 1) | UINT64_C(1) << 32; /* the highest bit is not the loop's */
}

static bool is_name(const char *name)
{
    size_t n = strlen(name);
    return n >= 1 && n < KEY_NAME_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == n;
}

static int read_key(struct reading *r, const cJSON *object)
{
    static const char *const members[] = {"name", "sha256", "scopes", "weight", "quotas"};
    struct api_key *k = &r->keys[r->count];
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "name"));
    const char *digest = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "sha256"));
    const cJSON *weight = cJSON_GetObjectItemCaseSensitive(object, "weight"), *item;
    int64_t number = 1;
    *k = (struct api_key){0};
    if (!cJSON_IsObject(object))
        return fail(r, "keys[%u]: wants an object", r->count);
    if (!name || !is_name(name))
        return fail(r, "keys[%u]: wants a name of 1 to 63 letters, digits, dots, - and _", r->count);
    strcpy(k->name, name);
    cJSON_ArrayForEach (item, object) {
        size_t i = 0;
        while (i < sizeof members / sizeof members[0] && strcmp(members[i], item->string) != 0)
            i++;
        if (i == sizeof members / sizeof members[0])
            return fail(r, "key \"%s\": %.40s: there is no such member", name, item->string);
    }
    if (!digest || !read_digest(digest, k->digest))
        return fail(r, "key \"%s\": sha256: wants 64 hex digits, as attnctl key new prints them", name);
    if (!read_scopes(cJSON_GetObjectItemCaseSensitive(object, "scopes"), &k->scopes))
        return refuse_scopes(r, name);
    if (weight && !json_is_integer(weight, 1, WEIGHT_MAX, &number))
        return fail(r, "key \"%s\": weight: wants an integer in 1..%d", name, WEIGHT_MAX);
    k->weight = (uint32_t)number;
    k->id = id_of(k->digest);
    for (unsigned i = 0; i < r->count; i++) {
        if (strcmp(r->keys[i].name, k->name) == 0)
            return fail(r, "key \"%s\": is there twice", name);
        if (r->keys[i].id == k->id)
            return fail(r, "key \"%s\": has the digest of \"%s\"", name, r->keys[i].name);
    }
    int rc = read_quotas(r, name, cJSON_GetObjectItemCaseSensitive(object, "quotas"), &k->quotas);
    set_limits(k);
    return rc;
}

static int read_list(struct reading *r, const cJSON *tree)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(tree, "keys"), *item;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(tree) != 1)
        return fail(r, "wants {\"keys\": [...]}");
    cJSON_ArrayForEach (item, list) {
        if (r->count == KEYS_MAX)
            return fail(r, "has more than %d keys", KEYS_MAX);
        int rc = read_key(r, item);
        if (rc != 0)
            return rc;
        r->count++;
    }
    return 0;
}

/* The keys of the file, r->keys, to be freed. */
static int read_keys(struct reading *r)
{
    struct json_error wrong;
    cJSON *tree = NULL;
    size_t bytes;
    char *text = read_file(r, &bytes);
    r->keys = text ? calloc(KEYS_MAX, sizeof *r->keys) : NULL;
    int rc = r->keys ? 0 : text ? fail(r, "no memory") : ATTND_INVALID;
    if (rc == 0 &&
        (json_blank_comments(text, bytes, &wrong) != 0 || json_parse(text, bytes, &tree, &wrong) != 0)) {
        struct json_place at = json_place(text, wrong.offset);
        rc = fail(r, "line %u, column %u: %s", at.line, at.column, wrong.reason);
    }
    if (rc == 0)
        rc = read_list(r, tree);
    cJSON_Delete(tree);
    free(text);
    return rc;
}

/* ---- all of them ----------------------------------------------------------------------------------- */

static struct api_key *find_digest(const struct keys *keys, const uint8_t digest[KEY_DIGEST_BYTES])
{
    for (unsigned i = 0; i < keys->count; i++) {
        if (memcmp(keys->list[i]->digest, digest, KEY_DIGEST_BYTES) == 0)
            return keys->list[i];
    }
    return NULL;
}

/* What a key may do from now on; what it has in use stays. */
static void renew(struct api_key *k, const struct api_key *from)
{
    memcpy(k->name, from->name, sizeof k->name);
    k->scopes = from->scopes;
    k->weight = from->weight;
    k->quotas = from->quotas;
    k->gone = k->ended = false;
    set_limits(k);
}

/* Take over what was read. False: no memory, and nothing has changed. */
static bool merge(struct keys *keys, const struct reading *r)
{
    struct api_key **list = realloc(keys->list, (keys->count + r->count + 1) * sizeof(struct api_key *));
    unsigned n = keys->count;
    if (!list)
        return false;
    keys->list = list;
    for (unsigned i = 0; i < r->count; i++) {
        if (find_digest(keys, r->keys[i].digest))
            continue;
        list[n] = malloc(sizeof *list[n]);
        if (!list[n]) {
            while (n-- > keys->count)
                free(list[n]);
            return false;
        }
        *list[n++] = r->keys[i];
    }
    for (unsigned i = 0; i < keys->count; i++)
        list[i]->gone = true;
    for (unsigned i = 0; i < r->count; i++) {
        struct api_key *old = find_digest(keys, r->keys[i].digest);
        if (old)
            renew(old, &r->keys[i]);
    }
    keys->count = n;
    return true;
}

unsigned keys_count(const struct keys *keys)
{
    unsigned n = 0;
    for (unsigned i = 0; i < keys->count; i++)
        n += !keys->list[i]->gone;
    return n;
}

int keys_reload(struct keys *keys, char reason[KEYS_REASON_BYTES])
{
    struct reading r = {.path = keys->path, .reason = reason};
    int rc = read_keys(&r);
    if (rc == 0 && !merge(keys, &r))
        rc = fail(&r, "no memory");
    free(r.keys);
    return rc;
}

int keys_load(const char *path, struct keys **result, char reason[KEYS_REASON_BYTES])
{
    struct keys *keys = calloc(1, sizeof *keys);
    if (!keys) {
        snprintf(reason, KEYS_REASON_BYTES, "no memory for keys");
        return ATTND_NO_MEMORY;
    }
    snprintf(keys->path, sizeof keys->path, "%s", path);
    keys->anonymous = (struct api_key){.id = ANONYMOUS_ID, .name = "anonymous", .weight = 1};
    int rc = keys_reload(keys, reason);
    if (rc != 0) {
        keys_destroy(keys);
        keys = NULL;
    }
    *result = keys;
    return rc;
}

void keys_destroy(struct keys *keys)
{
    if (!keys)
        return;
    for (unsigned i = 0; i < keys->count; i++)
        free(keys->list[i]);
    free(keys->list);
    free(keys);
}

/* 0xff if all bytes are equal, else 0, without a branch that depends on them. */
static unsigned equal_mask(const uint8_t *a, const uint8_t *b)
{
    unsigned different = 0;
    for (unsigned i = 0; i < KEY_DIGEST_BYTES; i++)
        different |= a[i] ^ b[i];
    return ((different - 1) >> 8) & 0xff;
}

struct api_key *keys_find(struct keys *keys, const char *text, size_t n)
{
    uint8_t digest[KEY_DIGEST_BYTES];
    SHA2_CTX context;
    unsigned found = keys->count;
    SHA256Init(&context);
    SHA256Update(&context, (const uint8_t *)text, n);
    SHA256Final(digest, &context);
    for (unsigned i = 0; i < keys->count; i++) {
        unsigned mask = equal_mask(digest, keys->list[i]->digest) * 0x01010101U;
        found = (found & ~mask) | (i & mask);
    }
    return found < keys->count && !keys->list[found]->gone ? keys->list[found] : NULL;
}

struct api_key *keys_next(struct keys *keys, unsigned *at)
{
    return *at < keys->count ? keys->list[(*at)++] : NULL;
}

struct api_key *keys_anonymous(struct keys *keys)
{
    return &keys->anonymous;
}
