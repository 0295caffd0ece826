/* SPDX-License-Identifier: Apache-2.0 */
/* keys.c - see keys.h. */
#include "server/keys.h"

#include "config/json.h"

#include <cjson/cJSON.h>
#include <sha2.h>

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(KEY_DIGEST_BYTES == SHA256_DIGEST_LENGTH, "digests are SHA-256");

enum { ANONYMOUS_ID = 2, WEIGHT_MAX = 1000, SCOPE_NAMES_BYTES = 160, USER_BYTES = 4096 };

struct keys {
    char path[CONFIG_STRING_BYTES];
    struct api_key anonymous;
    struct api_key **list;  /* [count]; each stays where it is, and there: requests may still point to it */
    struct api_key **by_id; /* [count] the same, in the order of their ids */
    unsigned count;
    struct keys_outcome latest;
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

/* Who starts a daemon is often not whom it runs as. */
static void fail_for_user(struct reading *r)
{
    char text[USER_BYTES];
    struct passwd entry, *user = NULL;
    uid_t uid = geteuid();
    if (getpwuid_r(uid, &entry, text, sizeof text, &user) == 0 && user)
        fail(r, "Permission denied: the daemon runs as %.64s", user->pw_name);
    else
        fail(r, "Permission denied: the daemon runs as user %u", (unsigned)uid);
}

/* All of it, to be freed; NULL with a reason. Others than its owner and group must not read it. */
static char *read_file(struct reading *r, size_t *bytes)
{
    struct stat info;
    char *text = NULL;
    int fd = open(r->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == EACCES)
        fail_for_user(r);
    else if (fd < 0 || fstat(fd, &info) != 0)
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
    if (text && (n <= 0 || n > CONFIG_FILE_BYTES_MAX)) {
        fail(r, "%s", n < 0 ? strerror(errno) : n == 0 ? "is empty" : "has more than 1 MiB");
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

/* "read, infer ..." */
static const char *name_scopes(char names[SCOPE_NAMES_BYTES])
{
    size_t n = 0;
    for (size_t i = 0; i < SCOPES; i++)
        n += (size_t)snprintf(names + n, SCOPE_NAMES_BYTES - n, "%s%s", i ? ", " : "", scopes_known[i].name);
    return names;
}

/* What the engine counts against, too, is where it looks. */
static void set_limits(struct api_key *k)
{
    atomic_store(&k->use.calls_max, k->quotas.calls);
    atomic_store(&k->use.staging_max, k->quotas.staging_bytes);
    atomic_store(&k->use.requests_per_s, k->quotas.requests_per_s);
}

#define OF(member)   offsetof(struct key_quotas, member)
#define HALF_OF_KEYS "half of what all keys may have"
#define UNLIMITED    "no limit"

static const struct {
    const char *name;
    int64_t max;
    size_t at;
    bool is_wide; /* 64 bits */
    const char *absent, *text;
} quotas_known[] = {
    {"sequences", UINT32_MAX, OF(of_engine.sequences), false, UNLIMITED,
     "sequences and leases that there are; those of its workloads count"},
    {"blocks", UINT32_MAX, OF(of_engine.blocks), false, UNLIMITED,
     "in the tables of these, a shared one once for each that has it; where max_tokens promises more, so "
     "many"},
    {"workloads", UINT32_MAX, OF(of_engine.workloads), false, HALF_OF_KEYS, "that have not ended"},
    {"calls", UINT32_MAX, OF(calls), false, UNLIMITED, "requests under way, also those that wait for a step"},
    {"streams", UINT32_MAX, OF(streams), false, UNLIMITED,
     "answers that go on: events, and workloads that are watched"},
    {"uploads", UINT32_MAX, OF(uploads), false, HALF_OF_KEYS, "workloads and traces that are being posted"},
    {"requests_per_s", 1000000, OF(requests_per_s), false, UNLIMITED,
     "as many at once, and then as many a second"},
    {"staging_bytes", INT64_C(1) << 50, OF(staging_bytes), true, "half of limits.staging_bytes",
     "memory of bodies, tensors and outputs of calls under way, and regions of registered clients"},
};

enum { QUOTAS = sizeof quotas_known / sizeof quotas_known[0] };

static int read_quotas(struct reading *r, const char *name, const cJSON *object, struct key_quotas *q)
{
    const cJSON *item;
    int64_t value;
    if (object && !cJSON_IsObject(object))
        return fail(r, "key \"%s\": quotas: wants an object", name);
    cJSON_ArrayForEach (item, object) {
        size_t i = 0;
        while (i < QUOTAS && strcmp(quotas_known[i].name, item->string) != 0)
            i++;
        if (i == QUOTAS)
            return fail(r, "key \"%s\": quotas.%.40s: there is no such quota", name, item->string);
        if (!json_is_integer(item, 1, quotas_known[i].max, &value))
            return fail(r, "key \"%s\": quotas.%s: wants an integer in 1..%lld", name, quotas_known[i].name,
                        (long long)quotas_known[i].max);
        char *to = (char *)q + quotas_known[i].at;
        if (quotas_known[i].is_wide)
            *(uint64_t *)(void *)to = (uint64_t)value;
        else
            *(uint32_t *)(void *)to = (uint32_t)value;
    }
    return 0;
}

static void digest_of(const char *text, size_t n, uint8_t digest[KEY_DIGEST_BYTES])
{
    SHA2_CTX context;
    SHA256Init(&context);
    SHA256Update(&context, (const uint8_t *)text, n);
    SHA256Final(digest, &context);
}

/* An id for what belongs to a key: never that of another, or of nobody. */
static uint64_t id_of(const char *name)
{
    uint8_t digest[KEY_DIGEST_BYTES];
    uint64_t id;
    digest_of(name, strlen(name), digest);
    memcpy(&id, digest, sizeof id);
    return (id >> 1) | UINT64_C(1) << 32; /* the highest bit is not the loop's */
}

static const struct {
    const char *name, *wants, *absent, *text;
} members_known[] = {
    {"name", KEY_NAME_WANTS, "",
     "each once. What belongs to a key belongs to its name: the digest may change"},
    {"sha256", "64 hex digits, or a list of 1 to 4 of these", "",
     "the digest of the key; several while clients change from one to another"},
    {"scopes", NULL, "", "what it may do"},
    {"weight", NULL, "1",
     "its part of the time, beside those of other keys that want some, when there is not enough"},
    {"quotas", "object", "{}", "how much of the daemon it may have"},
};

enum { MEMBERS = sizeof members_known / sizeof members_known[0] };

/* A digest, or a list of them. */
static int read_digests(struct reading *r, const cJSON *item, struct api_key *k)
{
    bool is_list = cJSON_IsArray(item);
    int count = is_list ? cJSON_GetArraySize(item) : 1;
    if (count < 1 || count > KEY_DIGESTS_MAX)
        return fail(r, "key \"%s\": sha256: has %d digests: wants 1 to %d", k->name, count, KEY_DIGESTS_MAX);
    for (const cJSON *one = is_list ? item->child : item; (int)k->digest_count < count; one = one->next) {
        if (!cJSON_IsString(one) || !read_digest(one->valuestring, k->digests[k->digest_count++]))
            return fail(r, "key \"%s\": sha256: wants 64 hex digits, as attnctl key new prints them",
                        k->name);
    }
    return 0;
}

/* Whether some digest of one is one of the other's. */
static bool have_same(const struct api_key *a, const struct api_key *b)
{
    for (unsigned i = 0; i < a->digest_count * b->digest_count; i++) {
        if (memcmp(a->digests[i / b->digest_count], b->digests[i % b->digest_count], KEY_DIGEST_BYTES) == 0)
            return true;
    }
    return false;
}

static int read_key(struct reading *r, const cJSON *object)
{
    struct api_key *k = &r->keys[r->count];
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "name"));
    const cJSON *weight = cJSON_GetObjectItemCaseSensitive(object, "weight"), *item;
    int64_t number = 1;
    *k = (struct api_key){0};
    if (!cJSON_IsObject(object))
        return fail(r, "keys[%u]: wants an object", r->count);
    if (!name || !key_name_is_good(name))
        return fail(r, "keys[%u]: wants a name of " KEY_NAME_WANTS, r->count);
    strcpy(k->name, name);
    cJSON_ArrayForEach (item, object) {
        size_t i = 0;
        while (i < MEMBERS && strcmp(members_known[i].name, item->string) != 0)
            i++;
        if (i == MEMBERS)
            return fail(r, "key \"%s\": %.40s: there is no such member", name, item->string);
    }
    int rc = read_digests(r, cJSON_GetObjectItemCaseSensitive(object, "sha256"), k);
    if (rc != 0)
        return rc;
    char names[SCOPE_NAMES_BYTES];
    if (!read_scopes(cJSON_GetObjectItemCaseSensitive(object, "scopes"), &k->scopes))
        return fail(r, "key \"%s\": scopes: wants some of %s", name, name_scopes(names));
    if (weight && !json_is_integer(weight, 1, WEIGHT_MAX, &number))
        return fail(r, "key \"%s\": weight: wants an integer in 1..%d", name, WEIGHT_MAX);
    k->weight = (uint32_t)number;
    k->id = id_of(k->name);
    for (unsigned i = 0; i < r->count; i++) {
        if (strcmp(r->keys[i].name, k->name) == 0)
            return fail(r, "key \"%s\": is there twice", name);
        if (have_same(&r->keys[i], k))
            return fail(r, "key \"%s\": has the digest of \"%s\"", name, r->keys[i].name);
    }
    rc = read_quotas(r, name, cJSON_GetObjectItemCaseSensitive(object, "quotas"), &k->quotas);
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

void keys_describe(FILE *out)
{
    char names[SCOPE_NAMES_BYTES];
    for (size_t i = 0; i < MEMBERS; i++) {
        fprintf(out, "%s\t", members_known[i].name);
        if (strcmp(members_known[i].name, "scopes") == 0)
            fprintf(out, "list, some of %s", name_scopes(names));
        else if (strcmp(members_known[i].name, "weight") == 0)
            fprintf(out, "integer, 1 to %d", WEIGHT_MAX);
        else
            fputs(members_known[i].wants, out);
        fprintf(out, "\t%s\t%s\n", members_known[i].absent, members_known[i].text);
    }
    for (size_t i = 0; i < QUOTAS; i++)
        fprintf(out, "quotas.%s\tinteger, 1 to %lld\t%s\t%s\n", quotas_known[i].name,
                (long long)quotas_known[i].max, quotas_known[i].absent, quotas_known[i].text);
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

static struct api_key *find_name(const struct keys *keys, const char *name)
{
    for (unsigned i = 0; i < keys->count; i++) {
        if (strcmp(keys->list[i]->name, name) == 0)
            return keys->list[i];
    }
    return NULL;
}

static bool quotas_are_same(const struct key_quotas *a, const struct key_quotas *b)
{
    return a->of_engine.sequences == b->of_engine.sequences && a->of_engine.blocks == b->of_engine.blocks &&
           a->of_engine.workloads == b->of_engine.workloads && a->calls == b->calls &&
           a->streams == b->streams && a->uploads == b->uploads && a->staging_bytes == b->staging_bytes &&
           a->requests_per_s == b->requests_per_s;
}

/* Whether two entries of one name say the same. */
static bool are_same(const struct api_key *a, const struct api_key *b)
{
    return a->digest_count == b->digest_count &&
           memcmp(a->digests, b->digests, a->digest_count * sizeof a->digests[0]) == 0 &&
           a->scopes == b->scopes && a->weight == b->weight && quotas_are_same(&a->quotas, &b->quotas);
}

/* What a key may do from now on; what it has in use stays. */
static void renew(struct api_key *k, const struct api_key *from)
{
    double used_s[KEY_DIGESTS_MAX] = {0};
    for (unsigned i = 0; i < from->digest_count * k->digest_count; i++) {
        unsigned to = i / k->digest_count, of = i % k->digest_count;
        if (memcmp(from->digests[to], k->digests[of], KEY_DIGEST_BYTES) == 0)
            used_s[to] = k->used_s[of];
    }
    memcpy(k->used_s, used_s, sizeof used_s);
    memcpy(k->digests, from->digests, sizeof k->digests);
    k->digest_count = from->digest_count;
    k->scopes = from->scopes;
    k->weight = from->weight;
    k->quotas = from->quotas;
    k->changed = from->changed;
    k->gone = k->ended = false;
    set_limits(k);
}

static int by_id(const void *a, const void *b)
{
    const struct api_key *left = *(struct api_key *const *)a, *right = *(struct api_key *const *)b;
    return (left->id > right->id) - (left->id < right->id);
}

/* Room for `count` keys; false: no memory. */
static bool grow(struct api_key ***list, size_t count)
{
    struct api_key **grown = realloc(*list, count * sizeof(struct api_key *));
    if (grown)
        *list = grown;
    return grown != NULL;
}

/* Take over what was read. False: no memory, and nothing has changed. */
static bool merge(struct keys *keys, const struct reading *r)
{
    unsigned n = keys->count;
    size_t most = (size_t)n + r->count + 1;
    if (!grow(&keys->list, most) || !grow(&keys->by_id, most))
        return false;
    struct api_key **list = keys->list;
    for (unsigned i = 0; i < r->count; i++) {
        if (find_name(keys, r->keys[i].name))
            continue;
        list[n] = malloc(sizeof *list[n]);
        if (!list[n]) {
            while (n-- > keys->count)
                free(list[n]);
            return false;
        }
        *list[n] = r->keys[i];
        list[n++]->changed = true;
    }
    struct keys_outcome latest = {.added = n - keys->count};
    for (unsigned i = 0; i < r->count; i++) {
        const struct api_key *old = find_name(keys, r->keys[i].name);
        r->keys[i].changed = !old || old->gone || !are_same(old, &r->keys[i]);
        latest.added += old && old->gone;
        latest.changed += old && !old->gone && r->keys[i].changed;
    }
    for (unsigned i = 0; i < keys->count; i++)
        list[i]->gone = true;
    for (unsigned i = 0; i < r->count; i++) {
        struct api_key *old = find_name(keys, r->keys[i].name);
        if (old)
            renew(old, &r->keys[i]);
    }
    keys->latest = latest;
    keys->count = n;
    memcpy(keys->by_id, list, n * sizeof(struct api_key *));
    qsort(keys->by_id, n, sizeof(struct api_key *), by_id);
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
    if (rc == 0 && r.count == 0 && keys_count(keys) > 0)
        rc = fail(&r, KEYS_NONE);
    if (rc == 0 && !merge(keys, &r))
        rc = fail(&r, "no memory");
    free(r.keys);
    keys->latest.refused = rc != 0;
    return rc;
}

struct keys_outcome keys_latest(const struct keys *keys)
{
    return keys->latest;
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
    free(keys->by_id);
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
    unsigned found = keys->count, opened = 0;
    digest_of(text, n, digest);
    for (unsigned i = 0; i < keys->count; i++) {
        const struct api_key *k = keys->list[i];
        for (unsigned j = 0; j < k->digest_count; j++) {
            unsigned mask = equal_mask(digest, k->digests[j]) * 0x01010101U & (k->gone - 1U);
            found = (found & ~mask) | (i & mask);
            opened = (opened & ~mask) | (j & mask);
        }
    }
    if (found == keys->count)
        return NULL;
    keys->list[found]->used_s[opened] = (double)time(NULL);
    return keys->list[found];
}

struct api_key *keys_named(struct keys *keys, const char *name)
{
    struct api_key *key = find_name(keys, name);
    return key && !key->gone ? key : NULL;
}

struct api_key *keys_with_id(const struct keys *keys, uint64_t id)
{
    unsigned low = 0, high = keys->count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (keys->by_id[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < keys->count && keys->by_id[low]->id == id ? keys->by_id[low] : NULL;
}

struct api_key *keys_next(struct keys *keys, unsigned *at)
{
    return *at < keys->count ? keys->list[(*at)++] : NULL;
}

struct api_key *keys_anonymous(struct keys *keys)
{
    return &keys->anonymous;
}
