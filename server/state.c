/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - see state.h.
 *
 * Everything is asked of the engine by requests, as clients do: DESCRIBE and EXPORT one way, RESTORE and APPEND the
 * other. Blocks that sequences share are saved with the first of them; the others begin as forks of it. */
#include "server/state.h"

#include "config/clock.h"
#include "config/log.h"
#include "config/model_constants.h"
#include "config/numbers.h"
#include "scheduler/engine.h"
#include "server/answer.h"
#include "server/api.h"
#include "server/keys.h"
#include "server/service.h"
#include "server/snapshot.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE = 1000,           /* sequences of a list */
    NAMES_A_LINE = 20,     /* ids in a line of the log */
    IDS_BYTES = 32768,     /* of the file, at most */
    IDS_RANGE = 65536,     /* ids that are covered together */
    PATIENCE_MS = 500,     /* for who reads the log */
    PROBE_BYTES = 4 << 20, /* written at a time to see how fast the disk is, */
    PROBES = 16,           /* as often at most */
    MARK_BYTES = 64,       /* of the file of the lock */
    FAILED_MOST = 100,     /* snapshots that were not restored, which are kept; */
    NAME_BYTES = 32        /* names of these */
};

static const char SNAPSHOT[] = "snapshot", RESTORING[] = "snapshot.restoring", FAILED[] = "snapshot.failed",
                  LOCK[] = "lock", PROBE[] = "probe", SWAP[] = "swap", IDS[] = "ids",
                  IDS_DRAFT[] = "ids.draft";
static const double TELL_S = 2, /* between two words to the service manager, and to the log */
    PROBE_S = 0.5,              /* for seeing how fast the disk is */
    SAVE_LEAST_S = 10,          /* for saving, however little that is, and */
    SAVE_FACTOR = 1.5;          /* of what the disk should take */

/* What the file `ids` says. */
struct ids {
    uint64_t next; /* all that the daemon gave out are below */
    struct id_ranges chosen;
};

static const char IDS_MAGIC[] = "attnd ids 1\n";
static const double AHEAD_AGAIN_S = 0.5; /* after it failed */

struct state {
    int dir, lock;
    double told_s;
    struct ids known;      /* to be on the disk; the loop's */
    bool begun;            /* state_ids_begin() is done */
    uv_work_t ahead;       /* a worker has the number go ahead, */
    bool goes_ahead;       /* now, */
    uint64_t ahead_to;     /* so far; */
    int ahead_rc;          /* and this came of it */
    double ahead_failed_s; /* when it failed last; 0: never */
    struct daemon_state *daemon;
    pthread_mutex_t writing; /* of what follows: */
    struct ids disk;         /* what is on the disk */
};

/* ---- the folder ---------------------------------------------------------------------------------- */

static int refuse(char reason[STATE_REASON_BYTES], int status, const char *path, const char *why)
{
    snprintf(reason, STATE_REASON_BYTES, "state.dir: %.300s: %s", path, why);
    return status;
}

/* Whether a file is ours, and of nobody else's business. */
static bool is_private(const struct stat *s)
{
    return s->st_uid == geteuid() && !(s->st_mode & (S_IRWXG | S_IRWXO));
}

int state_open(const char *path, struct state **result, char reason[STATE_REASON_BYTES])
{
    struct stat status;
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return refuse(reason, ATTND_INVALID, path, strerror(errno));
    int rc = 0, lock = -1;
    if (fstat(dir, &status) != 0 || !is_private(&status))
        rc = refuse(reason, ATTND_INVALID, path,
                    "it is not the daemon's own, or others can read it (chmod 700)");
    if (rc == 0)
        lock = openat(dir, LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (rc == 0 && lock < 0)
        rc = refuse(reason, ATTND_INVALID, path, strerror(errno));
    if (rc == 0 && flock(lock, LOCK_EX | LOCK_NB) != 0)
        rc = refuse(reason, ATTND_BUSY, path, "another daemon uses it");
    struct state *s = rc == 0 ? calloc(1, sizeof *s) : NULL;
    if (rc == 0 && !s)
        rc = refuse(reason, ATTND_NO_MEMORY, path, "no memory");
    if (rc != 0) {
        close(dir);
        if (lock >= 0)
            close(lock);
        return rc;
    }
    *s = (struct state){.dir = dir, .lock = lock};
    pthread_mutex_init(&s->writing, NULL);
    *result = s;
    return 0;
}

void state_close(struct state *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->writing);
    close(s->lock);
    close(s->dir);
    free(s);
}

double state_write_rate(const struct state *s)
{
    uint8_t *bytes = malloc(PROBE_BYTES);
    int fd = openat(s->dir, PROBE, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    double start = clock_s(), took = 0;
    uint64_t written = 0;
    for (uint32_t i = 0; bytes && i < PROBE_BYTES; i++)
        bytes[i] = (uint8_t)(i * 2654435761U >> 24); /* nothing that a disk could make small */
    for (int i = 0; bytes && fd >= 0 && i < PROBES && took < PROBE_S; i++) {
        if (write(fd, bytes, PROBE_BYTES) != PROBE_BYTES || fdatasync(fd) != 0)
            break;
        written += PROBE_BYTES;
        took = clock_s() - start;
    }
    if (fd >= 0)
        close(fd);
    (void)unlinkat(s->dir, PROBE, 0);
    free(bytes);
    return took > 0 ? (double)written / took : 0;
}

static int refuse_bytes(uint64_t bytes, const char *why, char reason[STATE_REASON_BYTES])
{
    snprintf(reason, STATE_REASON_BYTES, "pool.file_blocks: state.dir has no room for %llu MiB: %s",
             (unsigned long long)(bytes >> 20), why);
    return ATTND_NO_MEMORY;
}

uint64_t state_room(const struct state *s)
{
    struct statvfs disk;
    bool known = fstatvfs(s->dir, &disk) == 0 && disk.f_frsize && disk.f_bavail < UINT64_MAX / disk.f_frsize;
    return known ? (uint64_t)disk.f_bavail * disk.f_frsize : UINT64_MAX;
}

int state_has_room(const struct state *s, uint64_t bytes, char reason[STATE_REASON_BYTES])
{
    return bytes <= state_room(s) ? 0 : refuse_bytes(bytes, strerror(ENOSPC), reason);
}

int state_swap_file(const struct state *s, uint64_t bytes, int *result, char reason[STATE_REASON_BYTES])
{
    if (state_has_room(s, bytes, reason) != 0)
        return ATTND_NO_MEMORY;
    int fd = openat(s->dir, SWAP, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int rc = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    (void)unlinkat(s->dir, SWAP, 0);
    if (rc == 0) {
        *result = fd;
        return 0;
    }
    if (fd >= 0)
        close(fd);
    return refuse_bytes(bytes, strerror(rc), reason);
}

/* ---- asking the engine --------------------------------------------------------------------------- */

/* There is no other way out of a driver that hangs. */
static _Noreturn void give_up(const struct daemon_state *daemon)
{
    log_end(LOG_ERROR, EXIT_FAILURE, "the backend has failed",
            "nothing more is saved or restored: %s: exit code %d", daemon->given_up, EXIT_FAILURE);
    log_stop(PATIENCE_MS);
    _exit(EXIT_FAILURE);
}

/* An empty request of somebody who sees everything. */
static struct request *begin(struct daemon_state *daemon, enum request_kind kind, uint64_t id)
{
    struct request *request = routes_request(daemon);
    if (request) {
        request->kind = kind;
        request->id = id;
        request->sees_all = request->displaces_all = true;
        return request;
    }
    give_up(daemon);
}

static void ask(struct daemon_state *daemon, struct request *request)
{
    if (!routes_ask(daemon, request))
        give_up(daemon);
}

/* Say how far it is, now and then; the service manager must not lose patience. */
static void tell(struct state *s, const char *what, uint32_t done, uint32_t of, uint64_t bytes)
{
    double now = clock_s();
    if (now - s->told_s < TELL_S)
        return;
    s->told_s = now;
    log_line(LOG_INFO, "%s: %u of %u sequence%s, %llu MiB", what, done, of, plural(of),
             (unsigned long long)(bytes >> 20));
    service_notify("STATUS=%s: %u of %u sequence%s\nEXTEND_TIMEOUT_USEC=60000000\nWATCHDOG=1", what, done, of,
                   plural(of));
}

static void remove_one(struct daemon_state *daemon, uint64_t id, bool lease)
{
    struct request *request = begin(daemon, REQUEST_DELETE, id);
    request->of_leases = lease;
    ask(daemon, request);
    engine_release(daemon->engine, request);
}

static void describe_backend(const struct daemon_state *daemon, char text[SNAPSHOT_BACKEND_BYTES])
{
    const struct attention_info *backend = engine_backend(daemon->engine);
    snprintf(text, SNAPSHOT_BACKEND_BYTES, "%.30s %.30s", backend->name, backend->isa);
}

/* ---- ids ----------------------------------------------------------------------------------------- */

/* Read the file: lines of text, and a digest of all before it. */
static int read_ids(struct state *s, struct ids *ids)
{
    char *text = calloc(1, IDS_BYTES), *line = text, *end;
    unsigned long long first, last, digest;
    int fd = openat(s->dir, IDS, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = fd >= 0 && text ? read(fd, text, IDS_BYTES - 1) : -1;
    int rc = fd < 0 && errno == ENOENT ? ATTND_NOT_FOUND : ATTND_MALFORMED;
    *ids = (struct ids){0};
    for (bool good = n > 0 && strncmp(text, IDS_MAGIC, strlen(IDS_MAGIC)) == 0; good; line = end + 1) {
        end = strchr(line, '\n');
        good = end != NULL;
        if (good && sscanf(line, "next %llu\n", &first) == 1)
            ids->next = first;
        else if (good && sscanf(line, "chosen %llu %llu\n", &first, &last) == 2 && first <= last &&
                 last <= REQUEST_ID_MAX)
            id_ranges_add(&ids->chosen, first, last);
        else if (good && sscanf(line, "digest %16llx\n", &digest) == 1) {
            rc = digest == XXH3_64bits(text, (size_t)(line - text)) && ids->next ? 0 : ATTND_MALFORMED;
            break;
        }
    }
    if (fd >= 0)
        close(fd);
    free(text);
    return rc;
}

/* Write what is to be the file; it is on the disk then. Errors are in errno. */
static bool draft_ids(const struct state *s, const struct ids *ids)
{
    char *text = malloc(IDS_BYTES);
    size_t n = 0;
    if (!text)
        return false;
    n += (size_t)snprintf(text + n, IDS_BYTES - n, "%snext %llu\n", IDS_MAGIC, (unsigned long long)ids->next);
    for (uint32_t i = 0; i < ids->chosen.count; i++)
        n += (size_t)snprintf(text + n, IDS_BYTES - n, "chosen %llu %llu\n",
                              (unsigned long long)ids->chosen.all[i].first,
                              (unsigned long long)ids->chosen.all[i].last);
    n += (size_t)snprintf(text + n, IDS_BYTES - n, "digest %016llx\n",
                          (unsigned long long)XXH3_64bits(text, n));
    (void)unlinkat(s->dir, IDS_DRAFT, 0);
    int fd = openat(s->dir, IDS_DRAFT, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    ssize_t written = fd >= 0 ? write(fd, text, n) : -1;
    bool good = written == (ssize_t)n && fsync(fd) == 0;
    if (written >= 0 && written < (ssize_t)n)
        errno = ENOSPC;
    int error = errno;
    if (fd >= 0)
        close(fd);
    free(text);
    errno = error;
    return good;
}

/* Put it in the place of the one before. */
static bool write_ids(const struct state *s, const struct ids *ids)
{
    return draft_ids(s, ids) && renameat(s->dir, IDS_DRAFT, s->dir, IDS) == 0 && fsync(s->dir) == 0;
}

/* Call for each id that a request chooses. */
typedef void (*ids_visit)(uint64_t id, void *cookie);
static void visit_fork(const struct request_fork *fork, ids_visit visit, void *cookie)
{
    for (uint32_t i = 0; fork->ids && i < fork->count; i++)
        visit(fork->ids[i], cookie);
}

static void visit_ids(const struct request *request, ids_visit visit, void *cookie)
{
    if (request->kind == REQUEST_CREATE || request->kind == REQUEST_LEASE)
        visit(request->id, cookie);
    else if (request->kind == REQUEST_FORK)
        visit_fork(&request->fork, visit, cookie);
    for (uint32_t i = 0; request->kind == REQUEST_BATCH && i < request->batch.count; i++) {
        const struct request_op *op = &request->batch.ops[i];
        if (op->kind == REQUEST_CREATE)
            visit(op->id, cookie);
        else if (op->kind == REQUEST_FORK)
            visit_fork(&op->fork, visit, cookie);
    }
}

/* Those that a request chooses and the file does not cover; added to it, if wanted. */
struct uncovered {
    struct ids *add_to;
    const struct ids *ids;
    uint32_t count;
};

static void look_at_id(uint64_t id, void *cookie)
{
    struct uncovered *u = cookie;
    bool ours = id >> SEQUENCE_NODE_SHIFT == u->ids->next >> SEQUENCE_NODE_SHIFT; /* others are refused */
    if (!ours || id < u->ids->next || id_ranges_has(&u->ids->chosen, id)) /* 0: chosen by the daemon */
        return;
    u->count++;
    if (u->add_to)
        id_ranges_add(&u->add_to->chosen, id & ~(uint64_t)(IDS_RANGE - 1), id | (IDS_RANGE - 1));
}

bool state_ids_have(const struct state *s, const struct request *request)
{
    struct uncovered u = {.ids = &s->known};
    visit_ids(request, look_at_id, &u);
    return u.count == 0;
}

void state_ids_note(struct state *s, const struct request *request)
{
    struct uncovered u = {.ids = &s->known, .add_to = &s->known};
    visit_ids(request, look_at_id, &u);
}

int state_ids_keep(struct state *s, const struct request *request, char reason[STATE_REASON_BYTES])
{
    pthread_mutex_lock(&s->writing);
    struct ids ids = s->disk;
    struct uncovered u = {.ids = &ids, .add_to = &ids};
    visit_ids(request, look_at_id, &u);
    bool good = u.count == 0 || write_ids(s, &ids);
    if (good)
        s->disk = ids;
    else
        snprintf(reason, STATE_REASON_BYTES, "the ids cannot be kept in state.dir: %s", strerror(errno));
    pthread_mutex_unlock(&s->writing);
    return good ? 0 : ATTND_BUSY;
}

/* Worker. */
static void go_ahead(uv_work_t *work)
{
    struct state *s = work->data;
    pthread_mutex_lock(&s->writing);
    struct ids ids = s->disk;
    ids.next = s->ahead_to;
    id_ranges_remove_below(&ids.chosen, ids.next);
    s->ahead_rc = write_ids(s, &ids) ? 0 : errno;
    if (s->ahead_rc == 0)
        s->disk = ids;
    pthread_mutex_unlock(&s->writing);
}

/* Tell the engine how far it may go, whenever a request is free. */
static void allow(struct state *s, struct daemon_state *daemon, uint64_t limit)
{
    struct request *request = engine_acquire(daemon->engine);
    if (!request)
        return; /* it is tried again */
    *answer_of(request) = (struct answer){0};
    request->kind = REQUEST_IDS;
    request->ids.limit = limit;
    s->known.next = limit;
    engine_submit(daemon->engine, request);
}

static void after_go_ahead(uv_work_t *work, int status)
{
    struct state *s = work->data;
    (void)status;
    s->goes_ahead = false;
    if (s->ahead_rc == 0) {
        allow(s, s->daemon, s->ahead_to);
        return;
    }
    if (clock_s() - s->ahead_failed_s > TELL_S)
        log_line(LOG_ERROR,
                 "the number of ids cannot be kept in state.dir: %s; sequences are refused when they run out",
                 strerror(s->ahead_rc));
    s->ahead_failed_s = clock_s();
}

void state_ids_look(struct state *s, struct daemon_state *daemon)
{
    uint64_t reach = engine_ids_reach(daemon->engine);
    if (!s->begun || daemon->draining || s->goes_ahead || reach <= s->known.next ||
        clock_s() - s->ahead_failed_s < AHEAD_AGAIN_S)
        return;
    if (s->ahead_to >= reach && s->ahead_rc == 0) { /* it is on the disk, and the engine does not know */
        allow(s, daemon, s->ahead_to);
        return;
    }
    s->daemon = daemon;
    s->ahead_to = reach + REQUEST_IDS_AHEAD;
    s->ahead.data = s;
    s->goes_ahead = uv_queue_work(daemon->loop, &s->ahead, go_ahead, after_go_ahead) == 0;
}

/* The file, which may not be there; ATTND_INVALID with a sentence where it is damaged. */
static int load_ids(struct state *s, struct ids *ids, bool *is_there, char reason[STATE_REASON_BYTES])
{
    int rc = read_ids(s, ids);
    *is_there = rc == 0;
    if (rc != ATTND_MALFORMED)
        return 0;
    snprintf(reason, STATE_REASON_BYTES,
             "state.dir: the file ids is damaged: which ids were given out is not known. Remove it if no "
             "client has any from before, or give the daemon another node");
    return ATTND_INVALID;
}

static int refuse_ids(char reason[STATE_REASON_BYTES])
{
    snprintf(reason, STATE_REASON_BYTES, "state.dir: the file ids cannot be written: %s", strerror(errno));
    return ATTND_INVALID;
}

int state_ids_check(struct state *s, char reason[STATE_REASON_BYTES])
{
    struct ids ids;
    bool is_there;
    int rc = load_ids(s, &ids, &is_there, reason);
    if (rc == 0 && !draft_ids(s, &ids))
        rc = refuse_ids(reason);
    (void)unlinkat(s->dir, IDS_DRAFT, 0);
    return rc;
}

int state_ids_begin(struct state *s, struct daemon_state *daemon, char reason[STATE_REASON_BYTES])
{
    uint64_t node = (uint64_t)daemon->config->node << SEQUENCE_NODE_SHIFT;
    bool is_there;
    int rc = load_ids(s, &s->disk, &is_there, reason);
    if (rc != 0)
        return rc;
    if (!is_there || s->disk.next >> SEQUENCE_NODE_SHIFT != node >> SEQUENCE_NODE_SHIFT)
        s->disk = (struct ids){.next = node + 1};
    struct ids ids = s->disk;
    struct request *request = begin(daemon, REQUEST_IDS, 0);
    request->ids = (struct request_ids){.next = ids.next, .limit = ids.next, .chosen = &ids.chosen};
    ask(daemon, request);
    ids.next = request->ids.reach + REQUEST_IDS_AHEAD;
    engine_release(daemon->engine, request);
    id_ranges_remove_below(&ids.chosen, ids.next);
    if (!write_ids(s, &ids))
        return refuse_ids(reason);
    s->disk = s->known = ids;
    request = begin(daemon, REQUEST_IDS, 0);
    request->ids.limit = ids.next;
    ask(daemon, request);
    engine_release(daemon->engine, request);
    s->begun = true;
    return 0;
}

/* ---- the end of the daemon before ------------------------------------------------------------------- */

static const char MARK[] = "serving since ", MARK_SAVED[] = "saved %u of %u\n";

/* Write the file of the lock; what is there is overwritten first, which a full disk allows. */
static void write_mark(const struct state *s, const char *text)
{
    ssize_t n = (ssize_t)strlen(text);
    if (pwrite(s->lock, text, (size_t)n, 0) != n || ftruncate(s->lock, n) != 0 || fdatasync(s->lock) != 0)
        log_line(LOG_WARNING, "state.dir: the lock cannot be written: %s", strerror(errno));
}

/* Note that the daemon serves, and since when. */
static void note_serving(const struct state *s)
{
    char text[MARK_BYTES], since[MARK_BYTES / 2];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(text, sizeof text, "%s%s\n", MARK, since);
    write_mark(s, text);
}

/* Note that it has saved so many of its sequences. */
static void note_saved(const struct state *s, uint32_t saved, uint32_t of)
{
    char text[MARK_BYTES] = "";
    if (saved < of)
        snprintf(text, sizeof text, MARK_SAVED, saved, of);
    write_mark(s, text);
}

/* Whether the daemon before this one has not saved all that it had, which is logged. */
static bool lost_some(const struct state *s)
{
    char text[MARK_BYTES] = "";
    unsigned saved, of;
    ssize_t n = pread(s->lock, text, sizeof text - 1, 0);
    size_t front = strlen(MARK);
    if (n > 0 && sscanf(text, MARK_SAVED, &saved, &of) == 2 && saved < of) {
        log_event(
            LOG_WARNING, "sequences_lost", LOG_NUMBERS({"sequences", of - saved}, {"of", of}),
            "the daemon before this one could not save %u of its %u sequences at its end: they are lost; "
            "its log has the reason",
            of - saved, of);
        return true;
    }
    if (n <= (ssize_t)front || strncmp(text, MARK, front) != 0)
        return false;
    text[front + strspn(text + front, "0123456789-:TZ")] = '\0';
    log_event(
        LOG_WARNING, "sequences_lost", NULL,
        "the daemon before this one, which served since %s, saved nothing at its end (it was killed, or "
        "failed): "
        "what sequences it had are lost",
        text + front);
    return true;
}

/* ---- saving -------------------------------------------------------------------------------------- */

struct saved {
    uint64_t id;
    int32_t priority;
    bool declared; /* max_tokens */
    double idle_s;
};

/* What a block of the pool holds of a sequence that is saved. */
struct home {
    uint64_t id; /* 0: none */
    uint32_t index;
    uint32_t tokens; /* that it has up to the end of this block */
};

struct saving {
    struct state *state;
    struct daemon_state *daemon;
    const struct geometry *g;
    struct saved *all; /* [count], in the order in which they are saved */
    uint32_t count, done;
    uint64_t *saved; /* [saved_count] of them, that are still there */
    uint32_t saved_count;
    uint32_t whole, gone; /* that are in the file; that were removed since they were listed */
    uint64_t bytes;       /* of their K and V, at most */
    struct home *homes;   /* [pool.blocks] */
    struct snapshot_writer *writer;
    double deadline_s;
    char reason[SNAPSHOT_REASON_BYTES]; /* why one was not saved */
};

static int by_worth(const void *a, const void *b)
{
    const struct saved *one = a, *other = b;
    if (one->priority != other->priority)
        return one->priority > other->priority ? -1 : 1;
    if (one->declared != other->declared) /* these cannot give way, when all come back */
        return one->declared ? 1 : -1;
    if (one->idle_s != other->idle_s)
        return one->idle_s < other->idle_s ? -1 : 1;
    return one->id < other->id ? -1 : one->id > other->id;
}

/* All sequences but those of workloads. */
static bool list_sequences(struct saving *s)
{
    uint64_t cursor = 0;
    s->all = calloc(s->daemon->config->limits.sequences, sizeof *s->all);
    do {
        struct request *request = begin(s->daemon, REQUEST_LIST, 0);
        request->page.limit = PAGE;
        request->page.cursor = cursor;
        request->listed_max = 1;
        ask(s->daemon, request);
        for (uint32_t i = 0; s->all && i < request->list.shown.count; i++) {
            const struct sequence_view *v = &request->list.shown.views[i];
            if (v->workload)
                continue;
            s->all[s->count++] = (struct saved){v->id, v->priority, v->max_tokens > 0, v->idle_s};
            s->bytes += 2 * geometry_kv_bytes(s->g, v->length);
        }
        cursor = request->page.next;
        engine_release(s->daemon->engine, request);
    } while (cursor);
    s->saved = calloc((size_t)s->count + 1, sizeof *s->saved);
    if (s->all)
        qsort(s->all, s->count, sizeof *s->all, by_worth);
    return s->all && s->saved;
}

/* Leases are not saved, and their blocks are for sequences that have to come in. */
static void drop_leases(struct daemon_state *daemon)
{
    uint64_t ids[PAGE], cursor = 0;
    unsigned count = 0;
    do {
        struct request *request = begin(daemon, REQUEST_LIST, 0);
        request->of_leases = true;
        request->page.limit = PAGE;
        request->page.cursor = cursor;
        request->listed_max = 1;
        ask(daemon, request);
        uint32_t n = request->list.shown.count;
        for (uint32_t i = 0; i < n; i++)
            ids[i] = request->list.shown.views[i].id;
        cursor = request->page.next;
        engine_release(daemon->engine, request);
        for (uint32_t i = 0; i < n; i++)
            remove_one(daemon, ids[i], true);
        count += n;
    } while (cursor);
    if (count)
        log_event(LOG_WARNING, "leases_ended", LOG_NUMBERS({"leases", count}),
                  "%u lease%s with the daemon: %s blocks are not saved", count,
                  count == 1 ? " ends" : "s end", count == 1 ? "its" : "their");
}

/* The sequence whose front this one shares, among those that are saved; and note its own blocks. Only tokens that all layers have
 * count. A block that is not full is shared between sequences that have not declared max_tokens: who did is promised
 * the block to which it is copied by the next write. */
static void find_base(struct saving *s, const struct request_described *d, struct snapshot_sequence *q)
{
    uint32_t block_size = s->g->block_size;
    if (!d->blocks) { /* it comes in, and others may go: no block is where it was */
        memset(s->homes, 0, s->daemon->config->pool_blocks * sizeof *s->homes);
        return;
    }
    for (uint32_t i = (d->length + block_size - 1) / block_size; i-- > 0 && !q->base;) {
        const struct home *home = &s->homes[d->blocks[i]];
        uint32_t tokens = home->tokens < d->length ? home->tokens : d->length;
        if (!home->id || home->index != i || (d->options.max_tokens && tokens % block_size))
            continue;
        q->base = home->id;
        q->shared = tokens;
    }
}

static void note_blocks(struct saving *s, const struct request_described *d, uint64_t id)
{
    uint32_t block_size = s->g->block_size, at = 0;
    for (uint32_t i = 0; d->blocks && at < d->length; i++) {
        struct home *home = &s->homes[d->blocks[i]];
        at = d->length - at < block_size ? d->length : at + block_size;
        if (!home->id && !(d->options.max_tokens && at % block_size))
            *home = (struct home){id, i, at};
    }
}

/* K and V of the next tokens. */
static int save_tokens(struct saving *s, uint64_t id, uint32_t first, uint32_t end)
{
    struct request *request = begin(s->daemon, REQUEST_EXPORT, id);
    struct request_export *e = &request->export;
    uint32_t *ids = calloc(end - first, sizeof *ids);
    int rc = ATTND_NO_MEMORY;
    snprintf(s->reason, sizeof s->reason, "no memory");
    e->first = first;
    e->end = end;
    if (ids && request_make_outputs(request, s->g) == 0) {
        ask(s->daemon, request);
        rc = request->status;
        snprintf(s->reason, sizeof s->reason, "%.200s", request->detail);
    }
    if (rc == 0) {
        for (uint32_t i = 0; i < e->token_count; i++)
            ids[i] = (uint32_t)e->tokens[i];
        const struct snapshot_tokens tokens = {first, end, e->token_count, ids, e->k, e->v};
        rc = snapshot_put(s->writer, &tokens, s->reason);
    }
    free(ids);
    engine_release(s->daemon->engine, request);
    return rc;
}

/* What it is, and all its tokens. `fatal`: neither will the others be saved. */
static int save_one(struct saving *s, uint64_t id, bool *fatal)
{
    uint32_t step = api_kv_range_tokens(s->daemon->config);
    struct request *request = begin(s->daemon, REQUEST_DESCRIBE, id);
    const struct request_described *d = &request->described;
    ask(s->daemon, request);
    struct snapshot_sequence q = {.id = id,
                                  .parent = d->parent,
                                  .key = d->key,
                                  .options = d->options,
                                  .length = d->length,
                                  .salt_bytes = d->salt_bytes,
                                  .prompt = d->prompt.ids,
                                  .prompt_count = d->prompt.count};
    int rc = request->status;
    snprintf(s->reason, sizeof s->reason, "%.200s", request->detail);
    if (rc == 0) {
        memcpy(q.salt, d->salt, d->salt_bytes);
        find_base(s, d, &q);
        rc = snapshot_begin(s->writer, &q, s->reason);
        *fatal = rc != 0;
    }
    for (uint32_t at = q.shared, end; rc == 0 && at < q.length; at = end) {
        end = q.length - at < step ? q.length : at + step;
        rc = save_tokens(s, id, at, end);
        *fatal = rc == ATTND_NO_MEMORY || rc == ATTND_DEVICE;
        tell(s->state, "saving", s->done, s->count, snapshot_bytes(s->writer));
        if (rc == 0 && end < q.length && clock_s() > s->deadline_s) {
            snprintf(s->reason, sizeof s->reason, "drain.save_deadline_s has passed");
            rc = ATTND_DEADLINE;
            *fatal = true;
        }
    }
    if (rc == 0) {
        note_blocks(s, d, id);
        snapshot_end(s->writer);
    } else if (request->status == 0) {
        snapshot_drop(s->writer);
    }
    engine_release(s->daemon->engine, request);
    return rc;
}

/* Name all[n..end), which are not saved. */
static void name_left(const struct saving *s, uint32_t n, uint32_t end)
{
    while (n < end) {
        char names[NAMES_A_LINE * 22 + 1] = "";
        size_t at = 0;
        for (int i = 0; i < NAMES_A_LINE && n < end; i++, n++)
            at += (size_t)snprintf(names + at, sizeof names - at, " %llu", (unsigned long long)s->all[n].id);
        log_event(LOG_ERROR, "not_saved", NULL, "not saved: %s: sequences%s", s->reason, names);
    }
}

/* What has been saved is not needed any more: its blocks are for those that have to come in. */
static void make_room(struct saving *s)
{
    while (s->saved_count > 0)
        remove_one(s->daemon, s->saved[--s->saved_count], false);
    memset(s->homes, 0, s->daemon->config->pool_blocks * sizeof *s->homes);
}

/* Save the next one. Whoever has to come in and finds no room, has it when those before it are gone. */
static int save_next(struct saving *s, bool *fatal)
{
    uint64_t id = s->all[s->done].id;
    int rc = save_one(s, id, fatal);
    if (rc == ATTND_NO_BLOCKS && s->saved_count > 0) {
        make_room(s);
        rc = save_one(s, id, fatal);
    }
    if (rc == 0)
        s->saved[s->saved_count++] = id;
    s->whole += rc == 0;
    return rc;
}

/* Save all[done..count): false when there is no time or no disk for the rest. Those who found no room even so come to stand
 * in front, *put_off of them. */
static bool save_those(struct saving *s, uint32_t *put_off)
{
    bool fatal = false;
    for (*put_off = 0; s->done < s->count; s->done++) {
        if (clock_s() > s->deadline_s) {
            snprintf(s->reason, sizeof s->reason, "drain.save_deadline_s has passed");
            return false;
        }
        int rc = save_next(s, &fatal);
        if (fatal)
            return false;
        if (rc == ATTND_NO_BLOCKS)
            s->all[(*put_off)++] = s->all[s->done];
        else if (rc == ATTND_GONE)
            s->gone++;
        else if (rc != 0)
            log_event(LOG_ERROR, "not_saved", LOG_NUMBERS({"sequence", (double)s->all[s->done].id}),
                      "not saved: %s: sequence %llu", s->reason, (unsigned long long)s->all[s->done].id);
    }
    return true;
}

static bool save_all(struct saving *s)
{
    uint32_t count = s->count, put_off;
    if (save_those(s, &put_off) && put_off > 0) { /* they have the whole pool now */
        s->count = put_off;
        s->done = 0;
        make_room(s);
        (void)save_those(s, &put_off);
    }
    name_left(s, 0, put_off);
    name_left(s, s->done, s->count);
    uint64_t bytes = snapshot_bytes(s->writer);
    if (snapshot_publish(s->writer, s->reason) != 0) {
        log_event(LOG_ERROR, "not_saved", NULL, "nothing is saved: %s", s->reason);
        return false;
    }
    note_saved(s->state, s->whole, count - s->gone);
    log_event(s->whole + s->gone < count ? LOG_WARNING : LOG_INFO, "saved",
              LOG_NUMBERS({"sequences", s->whole}, {"of", count - s->gone}, {"bytes", (double)bytes}),
              "saved: %u of %u sequence%s, %llu MiB", s->whole, count - s->gone, plural(count - s->gone),
              (unsigned long long)(bytes >> 20));
    return s->whole + s->gone == count;
}

double state_save_seconds(const struct config *config, double write_rate, uint64_t bytes)
{
    if (config->drain_save_deadline_s)
        return config->drain_save_deadline_s;
    return SAVE_LEAST_S + (write_rate > 0 ? SAVE_FACTOR * (double)bytes / write_rate : 0);
}

bool state_save(struct state *state, struct daemon_state *daemon, double write_rate)
{
    const struct config *config = daemon->config;
    struct snapshot_head head = {.node = config->node,
                                 .constants_digest = engine_constants_digest(daemon->engine),
                                 .constants = engine_constants(daemon->engine)};
    struct saving s = {.state = state, .daemon = daemon, .g = &config->geometry};
    geometry_describe(&config->geometry, head.geometry);
    describe_backend(daemon, head.backend);
    s.homes = calloc(config->pool_blocks, sizeof *s.homes);
    state->told_s = clock_s();
    drop_leases(daemon);
    bool good = list_sequences(&s) && s.homes;
    engine_keep_all(daemon->engine, true);
    s.deadline_s = clock_s() + state_save_seconds(config, write_rate, s.bytes);
    if (good && api_kv_range_tokens(config) == 0) {
        log_event(LOG_ERROR, "not_saved", NULL,
                  "nothing is saved: limits.body_bytes has no room for K and V of a token");
        good = false;
    } else if (!good) {
        log_event(LOG_ERROR, "not_saved", NULL, "nothing is saved: no memory");
    } else if (s.count == 0) {
        log_event(LOG_INFO, "saved", LOG_NUMBERS({"sequences", 0}, {"of", 0}, {"bytes", 0}),
                  "saved: there are no sequences");
        note_saved(state, 0, 0);
    } else if (snapshot_create(state->dir, SNAPSHOT, &head, s.g, s.count, &s.writer, s.reason) != 0) {
        name_left(&s, 0, s.count);
        good = false;
    } else {
        good = save_all(&s);
    }
    free(s.all);
    free(s.saved);
    free(s.homes);
    return good;
}

/* ---- restoring ----------------------------------------------------------------------------------- */

struct restoring {
    struct state *state;
    struct daemon_state *daemon;
    const struct geometry *g;
    struct snapshot_reader *reader;
    uint32_t restored;
    uint64_t bytes;
    char reason[SNAPSHOT_REASON_BYTES]; /* why one was not restored */
};

/* Keep why a request has failed; its status. */
static int note_failure(struct restoring *r, const struct request *request)
{
    snprintf(r->reason, sizeof r->reason, "%.200s", request->detail);
    return request->status;
}

/* Whether the key to which a sequence belongs may still come. */
static bool has_key(const struct keys *keys, uint64_t id)
{
    const struct api_key *key = keys ? keys_with_id(keys, id) : NULL;
    return keys ? key && !key->gone : id == 0;
}

static bool is_there(struct restoring *r, uint64_t id)
{
    struct request *request = begin(r->daemon, REQUEST_SEQUENCE, id);
    request->listed_max = 1;
    ask(r->daemon, request);
    bool there = request->status == 0;
    engine_release(r->daemon->engine, request);
    return there;
}

/* Make the sequence, with what it shares. */
static int make_sequence(struct restoring *r, const struct snapshot_sequence *q)
{
    struct request *request = begin(r->daemon, REQUEST_RESTORE, q->id);
    struct request_described *d = &request->described;
    *d = (struct request_described){.options = q->options,
                                    .key = q->key,
                                    .parent = q->parent,
                                    .prompt.count = q->prompt_count,
                                    .salt_bytes = q->salt_bytes,
                                    .base = q->base,
                                    .shared = q->shared};
    memcpy(d->salt, q->salt, q->salt_bytes);
    d->prompt.ids = request_alloc(request, q->prompt_count, sizeof *d->prompt.ids);
    int rc = ATTND_NO_MEMORY;
    snprintf(r->reason, sizeof r->reason, "no memory for its prompt");
    if (d->prompt.ids) {
        memcpy(d->prompt.ids, q->prompt, q->prompt_count * sizeof *q->prompt);
        ask(r->daemon, request);
        rc = note_failure(r, request);
    }
    engine_release(r->daemon->engine, request);
    return rc;
}

/* Append the tokens that come next; *done: there were none any more. */
static int append_tokens(struct restoring *r, uint64_t id, bool *done)
{
    uint32_t room = api_kv_range_tokens(r->daemon->config);
    struct request *request = begin(r->daemon, REQUEST_APPEND, id);
    struct request_attend *append = &request->attend;
    struct snapshot_tokens tokens = {0};
    size_t bytes = geometry_kv_bytes(r->g, room);
    append->tokens.ids = request_alloc(request, room, sizeof *append->tokens.ids);
    append->sequences = request_alloc(request, 1, sizeof *append->sequences);
    int rc = ATTND_NO_MEMORY;
    snprintf(r->reason, sizeof r->reason, "no memory for K and V");
    void *k = request_tensor(request, bytes, 1), *v = request_tensor(request, bytes, 1);
    if (append->tokens.ids && append->sequences && k && v)
        rc = snapshot_next(r->reader, room, append->tokens.ids, k, v, &tokens, r->reason);
    *done = rc == 0 && tokens.first == tokens.end;
    if (rc == 0 && !*done) {
        request->rows.all_layers = true;
        request->rows.kv_source = r->g->kv_dtype;
        request->rows.count = tokens.end - tokens.first;
        request->rows.k = k;
        request->rows.v = v;
        append->tokens.count = tokens.id_count;
        append->tokens.ids = tokens.id_count ? append->tokens.ids : NULL;
        append->sequences[0] =
            (struct request_sequence){.id = id, .rows = request->rows.count, .position = tokens.first};
        append->sequence_count = 1;
        ask(r->daemon, request);
        rc = note_failure(r, request);
        r->bytes += 2 * geometry_kv_bytes(r->g, request->rows.count);
    }
    engine_release(r->daemon->engine, request);
    return rc;
}

/* One sequence, whole or not at all. At first those come that can give way to others: that did not declare max_tokens and
 * share nothing with such as did; REQUEST_WAITS: it is another one. */
static int restore_one(struct restoring *r, uint32_t n, bool at_first)
{
    struct snapshot_sequence q;
    bool done = false;
    int rc = snapshot_read(r->reader, n, &q, r->reason);
    bool orphaned = rc == 0 && q.base && !is_there(r, q.base);
    if (rc == 0 && at_first && (q.options.max_tokens || orphaned))
        return REQUEST_WAITS;
    if (orphaned) {
        snprintf(r->reason, sizeof r->reason, "sequence %llu, whose first %u tokens it shares, is not",
                 (unsigned long long)q.base, q.shared);
        rc = ATTND_NOT_FOUND;
    }
    if (rc == 0 && !has_key(r->daemon->keys, q.key)) {
        snprintf(r->reason, sizeof r->reason, "its key is no more");
        rc = ATTND_NO_KEY;
    }
    if (rc == 0)
        rc = make_sequence(r, &q);
    bool made = rc == 0;
    while (rc == 0 && !done)
        rc = append_tokens(r, q.id, &done);
    if (rc != 0 && made)
        remove_one(r->daemon, q.id, false);
    return rc;
}

/* Whether the snapshot is of this geometry and node; if not, a sentence. */
static bool is_ours(const struct snapshot_head *head, const struct config *config,
                    char reason[STATE_REASON_BYTES])
{
    char geometry[GEOMETRY_TEXT_BYTES];
    geometry_describe(&config->geometry, geometry);
    bool same = strcmp(geometry, head->geometry) == 0;
    if (!same)
        snprintf(reason, STATE_REASON_BYTES, "the snapshot is of %s; this daemon has %s", head->geometry,
                 geometry);
    else if (head->node != config->node)
        snprintf(reason, STATE_REASON_BYTES, "the snapshot is of node %u, this is node %u", head->node,
                 config->node);
    return same && head->node == config->node;
}

/* Whether the snapshot is of this model; its parameters, if they were given by a client, become ours. */
static bool fits(struct restoring *r)
{
    const struct snapshot_head *head = snapshot_head(r->reader);
    char backend[SNAPSHOT_BACKEND_BYTES], reason[STATE_REASON_BYTES];
    describe_backend(r->daemon, backend);
    if (!is_ours(head, r->daemon->config, reason)) {
        log_event(LOG_ERROR, "not_restored", NULL, "%s", reason);
        return false;
    }
    if (head->constants_digest != engine_constants_digest(r->daemon->engine)) {
        struct request *request = begin(r->daemon, REQUEST_PARAMETERS, 0);
        request->parameters = *head->constants;
        ask(r->daemon, request);
        engine_release(r->daemon->engine, request);
    }
    if (head->constants_digest != engine_constants_digest(r->daemon->engine)) {
        log_event(LOG_ERROR, "not_restored", NULL,
                  "the snapshot is of a model with other parameters than the configuration says");
        return false;
    }
    if (strcmp(backend, head->backend) != 0)
        log_line(LOG_WARNING,
                 "the snapshot is of the backend %s, this is %s: outputs are the same within rounding",
                 head->backend, backend);
    return true;
}

/* Restore what the open snapshot has. False: the daemon is to end. */
static bool restore_all(struct restoring *r)
{
    uint32_t count = snapshot_count(r->reader);
    bool *done = calloc(count + 1U, sizeof *done);
    for (uint32_t i = 0; i < 2 * count; i++) { /* twice */
        uint32_t n = i % count;
        if (r->daemon->leaving || !done)
            break;
        if (done[n])
            continue;
        tell(r->state, "restoring", r->restored, count, r->bytes);
        int rc = restore_one(r, n, i < count);
        done[n] = rc != REQUEST_WAITS;
        r->restored += rc == 0;
        if (rc < 0)
            log_event(LOG_ERROR, "not_restored", LOG_NUMBERS({"sequence", (double)snapshot_id(r->reader, n)}),
                      "sequence %llu is not restored: %s", (unsigned long long)snapshot_id(r->reader, n),
                      r->reason);
    }
    free(done);
    r->daemon->restored = r->restored;
    r->daemon->not_restored = count - r->restored;
    if (r->daemon->leaving)
        return false;
    log_event(r->restored < count ? LOG_WARNING : LOG_INFO, "restored",
              LOG_NUMBERS({"sequences", r->restored}, {"of", count}, {"bytes", (double)r->bytes}),
              "restored: %u of %u sequence%s, %llu MiB", r->restored, count, plural(count),
              (unsigned long long)(r->bytes >> 20));
    return true;
}

/* Keep what was not restored, beside what was kept before: in "snapshot.failed", or .1, .2 and so on behind it. False: there is nothing, or it
 * stays where it is. (The folder is ours alone, so nobody makes such a name meanwhile.) */
static bool keep_failed(struct state *s, char name[NAME_BYTES])
{
    for (unsigned n = 0; n < FAILED_MOST; n++) {
        snprintf(name, NAME_BYTES, n ? "%s.%u" : "%s", FAILED, n);
        if (faccessat(s->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
            return renameat(s->dir, RESTORING, s->dir, name) == 0;
    }
    log_event(LOG_ERROR, "not_restored", NULL,
              "what was not restored is in %s: there are %d such files already", RESTORING, FAILED_MOST);
    return false;
}

/* Likewise, of this start. */
static void keep_unrestored(struct state *s)
{
    char kept[NAME_BYTES];
    if (keep_failed(s, kept))
        log_event(LOG_WARNING, "not_restored", NULL, "what was not restored is in %s, and stays there", kept);
}

#define NOT_USED "the snapshot is not used: %s"

/* Why an open snapshot (or `fd` < 0, and errno) is not used; NULL: it is ours. */
static const char *fault_of(int fd, struct stat *status)
{
    if (fd < 0 || fstat(fd, status) != 0)
        return strerror(errno);
    if (!S_ISREG(status->st_mode) || status->st_uid != geteuid())
        return "it is not the daemon's own file (chown)";
    return NULL;
}

/* Likewise. Its mode may have been changed by whoever copied it, or mounted the volume; the folder is ours alone, so it is mended. */
static const char *mend_mode(int fd)
{
    struct stat status = {0};
    const char *fault = fault_of(fd, &status);
    if (fault || is_private(&status))
        return fault;
    if (fchmod(fd, 0600) != 0)
        return strerror(errno);
    log_line(LOG_WARNING,
             "the snapshot had the mode %04o, by which others can read or change it: it has 0600 now",
             (unsigned)status.st_mode & 07777U);
    return NULL;
}

static int open_snapshot(const struct state *s)
{
    return openat(s->dir, SNAPSHOT, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

int state_snapshot_check(const struct state *s, const struct config *config, char reason[STATE_REASON_BYTES])
{
    struct snapshot_reader *reader;
    struct stat status;
    char why[SNAPSHOT_REASON_BYTES];
    int fd = open_snapshot(s);
    if (fd < 0 && errno == ENOENT)
        return 0;
    const char *fault = fault_of(fd, &status);
    if (fault && fd >= 0)
        close(fd);
    else if (!fault &&
             snapshot_open(fd, &config->geometry, config->limits.sequence_tokens, &reader, why) != 0)
        fault = why;
    if (fault) {
        snprintf(reason, STATE_REASON_BYTES, NOT_USED, fault);
        return ATTND_INVALID;
    }
    bool ours = is_ours(snapshot_head(reader), config, reason);
    snapshot_close(reader);
    return ours ? 0 : ATTND_INVALID;
}

/* The snapshot, moved aside, so that nothing is saved over it; -1: there is none that can be used. */
static int take_snapshot(struct state *s, bool *unused)
{
    char kept[NAME_BYTES];
    if (keep_failed(s, kept))
        log_event(LOG_WARNING, "not_restored", NULL,
                  "the start before this one did not come to its end: what it was restoring is in %s, "
                  "and is not used again",
                  kept);
    int fd = open_snapshot(s);
    if (fd < 0 && errno == ENOENT)
        return -1;
    const char *fault = mend_mode(fd);
    if (fault)
        log_event(LOG_ERROR, "not_restored", NULL, NOT_USED, fault);
    bool aside = renameat(s->dir, SNAPSHOT, s->dir, RESTORING) == 0 && fsync(s->dir) == 0;
    if (aside && !fault)
        return fd;
    if (aside)
        keep_unrestored(s);
    else
        log_event(LOG_ERROR, "not_restored", NULL,
                  "the snapshot is not used, since it cannot be moved aside: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    *unused = true;
    return -1;
}

/* Restore what the snapshot has, if there is one. False: the daemon is to end. */
static bool restore_snapshot(struct state *s, struct daemon_state *daemon)
{
    struct restoring r = {.state = s, .daemon = daemon, .g = &daemon->config->geometry};
    bool stays = true, unused = false;
    int fd = take_snapshot(s, &unused);
    daemon->not_restored = unused;
    s->told_s = clock_s();
    if (fd < 0)
        return true;
    bool readable = snapshot_open(fd, r.g, daemon->config->limits.sequence_tokens, &r.reader, r.reason) == 0;
    uint32_t count = readable ? snapshot_count(r.reader) : 1; /* nobody knows how many */
    if (!readable)
        log_event(LOG_ERROR, "not_restored", NULL, NOT_USED, r.reason);
    engine_keep_all(daemon->engine, true);
    daemon->not_restored = count;
    if (readable && fits(&r))
        stays = restore_all(&r);
    engine_keep_all(daemon->engine, false);
    if (readable)
        snapshot_close(r.reader);
    if (!stays)
        (void)renameat(s->dir, RESTORING, s->dir, SNAPSHOT);
    else if (readable && r.restored == count)
        (void)unlinkat(s->dir, RESTORING, 0);
    else
        keep_unrestored(s);
    (void)fsync(s->dir);
    return stays;
}

bool state_restore(struct state *s, struct daemon_state *daemon)
{
    daemon->follows_unclean = lost_some(s);
    bool stays = restore_snapshot(s, daemon);
    if (stays)
        note_serving(s);
    return stays;
}
