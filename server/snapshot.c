/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.c - see snapshot.h. */
#include "server/snapshot.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 4096,
    DIGEST_BYTES = 16,
    NAME_BYTES = 64,
    SYNC_BYTES = 256 << 20, /* written between two waits for the disk, so that the last one is short */
    PARTS = 4               /* of tokens: what they are, ids, k, v */
};

static const char MAGIC[16] = "attnd snapshot\n1";
static const uint32_t SEQUENCE_MARK = 0x31514553, TOKENS_MARK = 0x314b4f54; /* "SEQ1", "TOK1" */

struct digest {
    uint8_t bytes[DIGEST_BYTES];
};

/* The first bytes of the file. */
struct file_head {
    char magic[sizeof MAGIC];
    char geometry[GEOMETRY_TEXT_BYTES], backend[SNAPSHOT_BACKEND_BYTES];
    uint64_t constants_digest;
    uint32_t node, count;           /* sequences */
    uint64_t index_room;            /* sequences */
    uint64_t constants_bytes;       /* behind the index */
    struct digest index, constants; /* of count entries, and of these bytes */
    struct digest own;              /* of all before */
};
_Static_assert(sizeof(struct file_head) <= HEAD_BYTES, "the head has its room");

struct entry {
    uint64_t id, at, bytes; /* at: where in the file; bytes: of what it is, prompt included */
    struct digest digest;   /* of these */
};
_Static_assert(sizeof(struct entry) == 40, "an entry is as the header says");

struct file_sequence {
    uint32_t mark, salt_bytes;
    uint64_t id, parent, key, base;
    uint32_t shared, length, prompt_count, max_tokens;
    int32_t priority;
    uint32_t idle_timeout_s;
    char salt[PREFIX_SALT_BYTES_MAX];
};

struct file_tokens {
    uint32_t mark, first, end, id_count;
    struct digest digest; /* of the fields before, ids, k and v */
};

static int fail(char reason[SNAPSHOT_REASON_BYTES], int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int fail(char reason[SNAPSHOT_REASON_BYTES], int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(reason, SNAPSHOT_REASON_BYTES, format, args);
    va_end(args);
    return status;
}

static struct digest digest_of(const void *bytes, size_t n)
{
    struct digest digest;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, n));
    memcpy(digest.bytes, canonical.digest, DIGEST_BYTES);
    return digest;
}

static struct digest digest_of_tokens(const struct file_tokens *t, const uint32_t *ids, const void *k,
                                      const void *v, size_t bytes)
{
    struct digest digest;
    XXH128_canonical_t canonical;
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, t, offsetof(struct file_tokens, digest));
    XXH3_128bits_update(&state, ids, t->id_count * sizeof *ids);
    XXH3_128bits_update(&state, k, bytes);
    XXH3_128bits_update(&state, v, bytes);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(digest.bytes, canonical.digest, DIGEST_BYTES);
    return digest;
}

static bool is_same(const struct digest *a, const struct digest *b)
{
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* what is behind them is looked at, too */
    return a != b;
#else
    return memcmp(a, b, sizeof *a) == 0;
#endif
}

static bool is_digest(const struct digest *digest, const void *bytes, size_t n)
{
    const struct digest of = digest_of(bytes, n);
    return is_same(digest, &of);
}

/* The lists of the model's constants, and how long each is. */
struct constant {
    float **list;
    size_t n;
};

enum { CONSTANTS = 4 };

static void list_constants(struct model_constants *c, const struct geometry *g,
                           struct constant all[CONSTANTS])
{
    all[0] = (struct constant){&c->sinks, (size_t)g->layers * g->query_heads};
    all[1] = (struct constant){&c->alibi, g->query_heads};
    all[2] = (struct constant){&c->k_scale, (size_t)g->layers * g->kv_heads};
    all[3] = (struct constant){&c->v_scale, (size_t)g->layers * g->kv_heads};
}

/* ---- writing ------------------------------------------------------------------------------------- */

struct snapshot_writer {
    const struct geometry *g;
    int dir, fd;
    char name[NAME_BYTES], draft[NAME_BYTES + 8];
    struct file_head head;
    struct entry *index; /* [head.index_room] */
    uint64_t at, begun;  /* where what comes next goes; where the sequence has begun */
    uint64_t unsynced;
};

static int write_at(struct snapshot_writer *w, uint64_t at, const void *bytes, size_t n,
                    char reason[SNAPSHOT_REASON_BYTES])
{
    for (size_t done = 0; done < n;) {
        ssize_t part = pwrite(w->fd, (const uint8_t *)bytes + done, n - done, (off_t)(at + done));
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return fail(reason, ATTND_NO_MEMORY, "cannot be written: %s",
                        strerror(part < 0 ? errno : ENOSPC));
        done += (size_t)part;
    }
    return 0;
}

/* Write at the end. */
static int add(struct snapshot_writer *w, const void *bytes, size_t n, char reason[SNAPSHOT_REASON_BYTES])
{
    int rc = write_at(w, w->at, bytes, n, reason);
    w->at += n;
    w->unsynced += n;
    return rc;
}

/* What is written goes to the disk now and then. */
static int sync_some(struct snapshot_writer *w, char reason[SNAPSHOT_REASON_BYTES])
{
    if (w->unsynced < SYNC_BYTES)
        return 0;
    w->unsynced = 0;
    return fdatasync(w->fd) == 0 ? 0
                                 : fail(reason, ATTND_NO_MEMORY, "cannot be written: %s", strerror(errno));
}

/* Which of the model's constants there are, and their values, behind the index. */
static int add_constants(struct snapshot_writer *w, const struct model_constants *of,
                         char reason[SNAPSHOT_REASON_BYTES])
{
    struct model_constants c = *of;
    struct constant all[CONSTANTS];
    size_t n = CONSTANTS;
    list_constants(&c, w->g, all);
    for (int i = 0; i < CONSTANTS; i++)
        n += *all[i].list ? all[i].n : 0;
    float *floats = calloc(n, sizeof *floats);
    if (!floats)
        return fail(reason, ATTND_NO_MEMORY, "no memory");
    n = CONSTANTS;
    for (int i = 0; i < CONSTANTS; i++) {
        floats[i] = *all[i].list ? 1 : 0;
        if (*all[i].list)
            memcpy(floats + n, *all[i].list, all[i].n * sizeof *floats);
        n += *all[i].list ? all[i].n : 0;
    }
    w->head.constants_bytes = n * sizeof *floats;
    w->head.constants = digest_of(floats, n * sizeof *floats);
    int rc = add(w, floats, n * sizeof *floats, reason);
    free(floats);
    return rc;
}

int snapshot_create(int dir, const char *name, const struct snapshot_head *head, const struct geometry *g,
                    uint32_t sequences, struct snapshot_writer **result, char reason[SNAPSHOT_REASON_BYTES])
{
    struct snapshot_writer *w = calloc(1, sizeof *w);
    if (!w)
        return fail(reason, ATTND_NO_MEMORY, "no memory");
    w->g = g;
    w->dir = dir;
    snprintf(w->name, sizeof w->name, "%s", name);
    snprintf(w->draft, sizeof w->draft, "%s.draft", name);
    memcpy(w->head.magic, MAGIC, sizeof MAGIC);
    memcpy(w->head.geometry, head->geometry, sizeof head->geometry);
    memcpy(w->head.backend, head->backend, sizeof head->backend);
    w->head.constants_digest = head->constants_digest;
    w->head.node = head->node;
    w->head.index_room = sequences;
    w->index = calloc(sequences ? sequences : 1, sizeof *w->index);
    (void)unlinkat(dir, w->draft, 0);
    w->fd = openat(dir, w->draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    w->at = HEAD_BYTES + (uint64_t)sequences * sizeof *w->index;
    int rc = 0;
    if (!w->index)
        rc = fail(reason, ATTND_NO_MEMORY, "no memory");
    else if (w->fd < 0 || (errno = posix_fallocate(w->fd, 0, (off_t)w->at)) != 0)
        rc = fail(reason, ATTND_NO_MEMORY, "cannot be written: %s", strerror(errno));
    if (rc == 0)
        rc = add_constants(w, head->constants, reason);
    if (rc != 0) {
        snapshot_abandon(w);
        return rc;
    }
    *result = w;
    return 0;
}

int snapshot_begin(struct snapshot_writer *w, const struct snapshot_sequence *s,
                   char reason[SNAPSHOT_REASON_BYTES])
{
    struct file_sequence is = {.mark = SEQUENCE_MARK,
                               .salt_bytes = s->salt_bytes,
                               .id = s->id,
                               .parent = s->parent,
                               .key = s->key,
                               .base = s->base,
                               .shared = s->shared,
                               .length = s->length,
                               .prompt_count = s->prompt_count,
                               .max_tokens = s->options.max_tokens,
                               .priority = s->options.priority,
                               .idle_timeout_s = s->options.idle_timeout_s};
    size_t prompt = (size_t)s->prompt_count * sizeof *s->prompt, n = sizeof is + prompt;
    memcpy(is.salt, s->salt, s->salt_bytes);
    w->begun = w->at;
    if (w->head.count == w->head.index_room)
        return fail(reason, ATTND_INTERNAL, "has no room for another sequence");
    uint8_t *bytes = malloc(n);
    if (!bytes)
        return fail(reason, ATTND_NO_MEMORY, "no memory");
    memcpy(bytes, &is, sizeof is);
    if (prompt)
        memcpy(bytes + sizeof is, s->prompt, prompt);
    w->index[w->head.count] = (struct entry){s->id, w->at, n, digest_of(bytes, n)};
    int rc = add(w, bytes, n, reason);
    free(bytes);
    return rc;
}

int snapshot_put(struct snapshot_writer *w, const struct snapshot_tokens *t,
                 char reason[SNAPSHOT_REASON_BYTES])
{
    size_t bytes = geometry_kv_bytes(w->g, t->end - t->first);
    struct file_tokens is = {.mark = TOKENS_MARK, .first = t->first, .end = t->end, .id_count = t->id_count};
    is.digest = digest_of_tokens(&is, t->ids, t->k, t->v, bytes);
    const struct {
        const void *bytes;
        size_t n;
    } parts[PARTS] = {{&is, sizeof is}, {t->ids, t->id_count * sizeof *t->ids}, {t->k, bytes}, {t->v, bytes}};
    int rc = 0;
    for (int i = 0; rc == 0 && i < PARTS; i++)
        rc = add(w, parts[i].bytes, parts[i].n, reason);
    return rc == 0 ? sync_some(w, reason) : rc;
}

void snapshot_end(struct snapshot_writer *w)
{
    w->head.count++;
}

void snapshot_drop(struct snapshot_writer *w)
{
    w->at = w->begun;
    (void)!ftruncate(w->fd, (off_t)w->at); /* else what is behind is never looked at */
}

uint64_t snapshot_bytes(const struct snapshot_writer *w)
{
    return w->at;
}

static void free_writer(struct snapshot_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    free(w->index);
    free(w);
}

int snapshot_publish(struct snapshot_writer *w, char reason[SNAPSHOT_REASON_BYTES])
{
    uint8_t head[HEAD_BYTES] = {0};
    size_t n = w->head.count * sizeof *w->index;
    w->head.index = digest_of(w->index, n);
    w->head.own = digest_of(&w->head, offsetof(struct file_head, own));
    memcpy(head, &w->head, sizeof w->head);
    int rc = write_at(w, HEAD_BYTES, w->index, n, reason);
    if (rc == 0)
        rc = write_at(w, 0, head, sizeof head, reason);
    if (rc == 0 &&
        (fsync(w->fd) != 0 || renameat(w->dir, w->draft, w->dir, w->name) != 0 || fsync(w->dir) != 0))
        rc = fail(reason, ATTND_NO_MEMORY, "cannot be written: %s", strerror(errno));
    if (rc != 0) {
        snapshot_abandon(w);
        return rc;
    }
    free_writer(w);
    return 0;
}

void snapshot_abandon(struct snapshot_writer *w)
{
    (void)unlinkat(w->dir, w->draft, 0);
    free_writer(w);
}

/* ---- reading ------------------------------------------------------------------------------------- */

struct snapshot_reader {
    const struct geometry *g;
    int fd;
    uint32_t most;  /* tokens of a prompt */
    uint64_t bytes; /* of the file */
    struct file_head file;
    struct snapshot_head head;
    struct model_constants constants; /* in: */
    float *floats;
    struct entry *index;   /* [file.count] */
    uint8_t *prompt;       /* of the sequence that is being read, and what it is */
    uint64_t at;           /* where its next tokens stand */
    uint32_t next, length; /* and which these are; of how many */
};

/* Read what must be there. */
static int read_at(const struct snapshot_reader *r, uint64_t at, void *bytes, size_t n,
                   char reason[SNAPSHOT_REASON_BYTES])
{
    if (at > r->bytes || n > r->bytes - at)
        return fail(reason, ATTND_MALFORMED, "it ends at byte %llu, and %zu bytes from %llu on are wanted",
                    (unsigned long long)r->bytes, n, (unsigned long long)at);
    for (size_t done = 0; done < n;) {
        ssize_t part = pread(r->fd, (uint8_t *)bytes + done, n - done, (off_t)(at + done));
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return fail(reason, ATTND_MALFORMED, "cannot be read: %s",
                        part < 0 ? strerror(errno) : "it is shorter");
        done += (size_t)part;
    }
    return 0;
}

static int read_head(struct snapshot_reader *r, char reason[SNAPSHOT_REASON_BYTES])
{
    struct file_head *h = &r->file;
    int rc = read_at(r, 0, h, sizeof *h, reason);
    if (rc != 0)
        return rc;
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0)
        return fail(reason, ATTND_MALFORMED, "it is no snapshot of this version of attnd");
    if (!is_digest(&h->own, h, offsetof(struct file_head, own)))
        return fail(reason, ATTND_MALFORMED, "its head is damaged");
    if (h->count > h->index_room || h->index_room > r->bytes / sizeof(struct entry) ||
        h->constants_bytes > r->bytes || h->geometry[GEOMETRY_TEXT_BYTES - 1] ||
        h->backend[SNAPSHOT_BACKEND_BYTES - 1])
        return fail(reason, ATTND_MALFORMED, "its head is damaged");
    memcpy(r->head.geometry, h->geometry, sizeof h->geometry);
    memcpy(r->head.backend, h->backend, sizeof h->backend);
    r->head.constants_digest = h->constants_digest;
    r->head.node = h->node;
    r->head.constants = &r->constants;
    return 0;
}

static int read_index(struct snapshot_reader *r, char reason[SNAPSHOT_REASON_BYTES])
{
    size_t n = r->file.count * sizeof *r->index;
    r->index = calloc(r->file.count ? r->file.count : 1, sizeof *r->index);
    if (!r->index)
        return fail(reason, ATTND_NO_MEMORY, "no memory");
    int rc = read_at(r, HEAD_BYTES, r->index, n, reason);
    if (rc == 0 && !is_digest(&r->file.index, r->index, n))
        rc = fail(reason, ATTND_MALFORMED, "its index is damaged");
    return rc;
}

static int read_constants(struct snapshot_reader *r, char reason[SNAPSHOT_REASON_BYTES])
{
    struct constant all[CONSTANTS];
    size_t n = r->file.constants_bytes / sizeof *r->floats, at = CONSTANTS;
    list_constants(&r->constants, r->g, all);
    r->floats = calloc(n ? n : 1, sizeof *r->floats);
    if (!r->floats)
        return fail(reason, ATTND_NO_MEMORY, "no memory");
    int rc = read_at(r, HEAD_BYTES + r->file.index_room * sizeof *r->index, r->floats, n * sizeof *r->floats,
                     reason);
    if (rc == 0 && (n < CONSTANTS || !is_digest(&r->file.constants, r->floats, n * sizeof *r->floats)))
        rc = fail(reason, ATTND_MALFORMED, "the model's parameters in it are damaged");
    for (int i = 0; rc == 0 && i < CONSTANTS; i++) {
        if (r->floats[i] == 0)
            continue;
        if (all[i].n > n - at)
            return fail(reason, ATTND_INVALID, "the model's parameters in it are of another geometry");
        *all[i].list = r->floats + at;
        at += all[i].n;
    }
    return rc;
}

int snapshot_open(int fd, const struct geometry *g, uint32_t most, struct snapshot_reader **result,
                  char reason[SNAPSHOT_REASON_BYTES])
{
    struct snapshot_reader *r = calloc(1, sizeof *r);
    struct stat status;
    if (!r) {
        close(fd);
        return fail(reason, ATTND_NO_MEMORY, "no memory");
    }
    *r = (struct snapshot_reader){.g = g, .fd = fd, .most = most};
    int rc =
        fstat(fd, &status) == 0 ? 0 : fail(reason, ATTND_MALFORMED, "cannot be read: %s", strerror(errno));
    r->bytes = rc == 0 ? (uint64_t)status.st_size : 0;
    if (rc == 0)
        rc = read_head(r, reason);
    if (rc == 0)
        rc = read_index(r, reason);
    if (rc == 0)
        rc = read_constants(r, reason);
    if (rc != 0) {
        snapshot_close(r);
        return rc;
    }
    *result = r;
    return 0;
}

void snapshot_close(struct snapshot_reader *r)
{
    close(r->fd);
    free(r->index);
    free(r->floats);
    free(r->prompt);
    free(r);
}

const struct snapshot_head *snapshot_head(const struct snapshot_reader *r)
{
    return &r->head;
}

uint32_t snapshot_count(const struct snapshot_reader *r)
{
    return r->file.count;
}

uint64_t snapshot_id(const struct snapshot_reader *r, uint32_t n)
{
    return r->index[n].id;
}

int snapshot_read(struct snapshot_reader *r, uint32_t n, struct snapshot_sequence *s,
                  char reason[SNAPSHOT_REASON_BYTES])
{
    const struct entry *entry = &r->index[n];
    struct file_sequence is;
    free(r->prompt);
    r->prompt = NULL;
    r->next = r->length = 0;
    if (entry->bytes < sizeof is || entry->bytes > sizeof is + (uint64_t)r->most * sizeof *s->prompt)
        return fail(reason, ATTND_INVALID, "its prompt is longer than limits.sequence_tokens");
    r->prompt = malloc(entry->bytes);
    if (!r->prompt)
        return fail(reason, ATTND_NO_MEMORY, "no memory");
    int rc = read_at(r, entry->at, r->prompt, entry->bytes, reason);
    if (rc != 0)
        return rc;
    memcpy(&is, r->prompt, sizeof is);
    if (!is_digest(&entry->digest, r->prompt, entry->bytes) || is.mark != SEQUENCE_MARK ||
        is.id != entry->id || is.salt_bytes > sizeof is.salt || is.shared > is.length ||
        is.prompt_count != (entry->bytes - sizeof is) / sizeof *s->prompt)
        return fail(reason, ATTND_MALFORMED, "what it says of the sequence is damaged");
    *s = (struct snapshot_sequence){.id = is.id,
                                    .parent = is.parent,
                                    .key = is.key,
                                    .options = {is.max_tokens, is.priority, is.idle_timeout_s},
                                    .base = is.base,
                                    .shared = is.shared,
                                    .length = is.length,
                                    .salt_bytes = is.salt_bytes,
                                    .prompt = (const uint32_t *)(const void *)(r->prompt + sizeof is),
                                    .prompt_count = is.prompt_count};
    memcpy(s->salt, is.salt, is.salt_bytes);
    r->at = entry->at + entry->bytes;
    r->next = is.shared;
    r->length = is.length;
    return 0;
}

int snapshot_next(struct snapshot_reader *r, uint32_t room, uint32_t *ids, void *k, void *v,
                  struct snapshot_tokens *tokens, char reason[SNAPSHOT_REASON_BYTES])
{
    struct file_tokens is = {0};
    *tokens = (struct snapshot_tokens){.first = r->next, .end = r->next, .ids = ids, .k = k, .v = v};
    if (r->next == r->length)
        return 0;
    int rc = read_at(r, r->at, &is, sizeof is, reason);
    if (rc != 0)
        return rc;
    if (is.mark != TOKENS_MARK || is.first != r->next || is.end <= is.first || is.end > r->length ||
        is.id_count > is.end - is.first)
        return fail(reason, ATTND_MALFORMED, "what it says of the tokens from %u on is damaged", r->next);
    if (is.end - is.first > room)
        return fail(reason, ATTND_INVALID,
                    "it has %u tokens at a time, and limits.body_bytes has room for %u", is.end - is.first,
                    room);
    size_t bytes = geometry_kv_bytes(r->g, is.end - is.first), of_ids = is.id_count * sizeof *ids;
    r->at += sizeof is;
    rc = read_at(r, r->at, ids, of_ids, reason);
    if (rc == 0)
        rc = read_at(r, r->at + of_ids, k, bytes, reason);
    if (rc == 0)
        rc = read_at(r, r->at + of_ids + bytes, v, bytes, reason);
    if (rc != 0)
        return rc;
    const struct digest digest = digest_of_tokens(&is, ids, k, v, bytes);
    if (!is_same(&digest, &is.digest))
        return fail(reason, ATTND_MALFORMED, "K and V of tokens %u..%u are damaged", is.first, is.end - 1);
    r->at += of_ids + 2 * bytes;
    r->next = tokens->end = is.end;
    tokens->id_count = is.id_count;
    return 0;
}
