/* SPDX-License-Identifier: Apache-2.0 */
/* journal_file.c - see journal_file.h. */
#include "scheduler/journal_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { BUFFER_BYTES = 1 << 18, MODE = 0600, FILES_MOST = 999999 };

static const char MAGIC[8] = "ATTNDJ1\n", SUFFIX[] = ".journal";

struct header {
    char magic[8];
    uint64_t run, first;
    uint32_t file, zero;
    uint64_t check; /* of all before */
};

struct head {
    uint32_t kind_and_bytes; /* kind << 24 | bytes */
    uint32_t check;          /* of that and the record's number */
    uint32_t payload_check;  /* of the payload and the number */
};

static uint64_t header_check(const struct header *h)
{
    return XXH3_64bits(h, offsetof(struct header, check));
}

static uint32_t check_of(const void *bytes, size_t n, uint64_t number)
{
    return (uint32_t)XXH3_64bits_withSeed(bytes, n, number);
}

static int refuse(char reason[JOURNAL_REASON_BYTES], const char *path, const char *what)
{
    snprintf(reason, JOURNAL_REASON_BYTES, "%.400s: %s", path, what);
    return ATTND_INVALID;
}

static void path_of(const char *folder, const char *name, uint32_t file, char path[JOURNAL_PLACE_BYTES])
{
    snprintf(path, JOURNAL_PLACE_BYTES, "%s/%s.%06u%s", folder, name, file, SUFFIX);
}

/* Whether that is the name of a file of a journal; then the run's name and the number. */
static bool parse_name(const char *text, char name[JOURNAL_NAME_BYTES], uint32_t *file)
{
    size_t n = strlen(text), tail = strlen(".000001") + strlen(SUFFIX);
    if (n <= tail || n - tail >= JOURNAL_NAME_BYTES || strcmp(text + n - strlen(SUFFIX), SUFFIX) != 0 ||
        text[n - tail] != '.' || strspn(text + n - tail + 1, "0123456789") != 6)
        return false;
    memcpy(name, text, n - tail);
    name[n - tail] = '\0';
    *file = (uint32_t)strtoul(text + n - tail + 1, NULL, 10);
    return true;
}

/* ---- writing --------------------------------------------------------------------------------------- */

/* Remove files of earlier runs, the oldest first, until they are at most `most` bytes; what is left. */
static uint64_t remove_old(const char *folder, uint64_t most)
{
    struct dirent **list;
    uint64_t sum = 0;
    int n = scandir(folder, &list, NULL, alphasort);
    for (int removing = 0; removing < 2; removing++) {
        for (int i = 0; i < n; i++) {
            char name[JOURNAL_NAME_BYTES], path[JOURNAL_FOLDER_BYTES + 260];
            uint32_t file;
            struct stat s;
            snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
            if (!parse_name(list[i]->d_name, name, &file) || lstat(path, &s) != 0 || !S_ISREG(s.st_mode))
                continue;
            if (!removing)
                sum += (uint64_t)s.st_size;
            else if (sum > most && unlink(path) == 0)
                sum -= (uint64_t)s.st_size;
        }
    }
    for (int i = 0; i < n; i++)
        free(list[i]);
    if (n >= 0)
        free(list);
    return sum;
}

const char *journal_files_why(int error)
{
    return error == ENOSPC || error == EDQUOT ? "the disk is full"
           : error == EFBIG                   ? "the file may not grow (ulimit -f)"
                                              : strerror(error);
}

static const char *write_all(struct journal_files *f, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t wrote = write(f->fd, bytes, n);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return journal_files_why(wrote < 0 ? errno : ENOSPC);
        bytes += wrote;
        n -= (size_t)wrote;
    }
    return NULL;
}

const char *journal_files_flush(struct journal_files *f)
{
    size_t n = f->used;
    f->used = 0;
    if (f->fd < 0 || n == 0)
        return NULL;
    const char *failure = write_all(f, f->buffer, n);
    if (!failure) {
        f->whole += n;
        f->bytes += n;
        return NULL;
    }
    /* What was flushed before ends with a whole record; of this nothing may be whole. */
    (void)!ftruncate(f->fd, (off_t)f->whole);
    return failure;
}

static void close_file(struct journal_files *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

static const char *begin_file(struct journal_files *f)
{
    char path[JOURNAL_PLACE_BYTES];
    if (f->file == FILES_MOST)
        return "there are too many files";
    struct header h = {.run = f->run, .first = f->number, .file = ++f->file};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    h.check = header_check(&h);
    path_of(f->folder, f->name, f->file, path);
    f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, MODE);
    if (f->fd < 0)
        return journal_files_why(errno);
    f->whole = 0;
    memcpy(f->buffer, &h, sizeof h);
    f->used = sizeof h;
    return journal_files_flush(f);
}

int journal_files_check(const char *folder, char reason[JOURNAL_REASON_BYTES])
{
    struct stat s;
    if (strlen(folder) >= JOURNAL_FOLDER_BYTES)
        return refuse(reason, folder, "the name is too long");
    if (stat(folder, &s) != 0)
        return refuse(reason, folder, strerror(errno));
    if (!S_ISDIR(s.st_mode))
        return refuse(reason, folder, "is no folder");
    return faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) == 0
               ? 0
               : refuse(reason, folder, journal_files_why(errno));
}

int journal_files_open(struct journal_files *f, const char *folder, uint64_t file_bytes, uint64_t bytes_max,
                       char reason[JOURNAL_REASON_BYTES])
{
    char path[JOURNAL_PLACE_BYTES];
    struct tm t;
    time_t now = time(NULL);
    *f = (struct journal_files){.fd = -1, .file_bytes = file_bytes};
    int rc = journal_files_check(folder, reason);
    if (rc != 0)
        return rc;
    if (getrandom(&f->run, sizeof f->run, 0) != sizeof f->run || !gmtime_r(&now, &t))
        return refuse(reason, folder, "there are no random numbers");
    snprintf(f->folder, sizeof f->folder, "%s", folder);
    strftime(f->name, sizeof f->name, "%Y%m%dT%H%M%S", &t);
    snprintf(f->name + strlen(f->name), sizeof f->name - strlen(f->name), "-%08x", (uint32_t)f->run);
    f->bytes_max = bytes_max - remove_old(folder, bytes_max / 2);
    f->buffer = malloc(BUFFER_BYTES);
    if (!f->buffer)
        return ATTND_NO_MEMORY;
    const char *failure = begin_file(f);
    if (!failure)
        return 0;
    journal_files_close(f);
    path_of(f->folder, f->name, f->file, path);
    (void)unlink(path); /* of which nothing is written */
    return refuse(reason, folder, failure);
}

void journal_files_close(struct journal_files *f)
{
    (void)journal_files_flush(f);
    close_file(f);
    free(f->buffer);
    f->buffer = NULL;
}

const char *journal_files_put(struct journal_files *f, uint8_t kind, const void *payload, uint32_t n)
{
    struct head head = {.kind_and_bytes = (uint32_t)kind << 24 | n};
    const char *failure = NULL;
    const bool begins =
        f->whole + f->used + sizeof head + n > f->file_bytes && f->whole + f->used > sizeof(struct header);
    if (f->bytes + f->used + (begins ? sizeof(struct header) : 0) + sizeof head + n > f->bytes_max)
        return "journal.bytes are written";
    if (begins) {
        failure = journal_files_flush(f);
        close_file(f);
        failure = failure ? failure : begin_file(f);
    }
    if (!failure && f->used + sizeof head + n > BUFFER_BYTES)
        failure = journal_files_flush(f);
    if (failure)
        return failure;
    head.check = check_of(&head.kind_and_bytes, sizeof head.kind_and_bytes, f->number);
    head.payload_check = check_of(payload, n, f->number);
    f->number++;
    memcpy(f->buffer + f->used, &head, sizeof head);
    f->used += sizeof head;
    if (sizeof head + n <= BUFFER_BYTES) {
        memcpy(f->buffer + f->used, payload, n);
        f->used += n;
        return NULL;
    }
    /* One that is larger than the buffer, which has only its head. */
    failure = write_all(f, f->buffer, f->used);
    failure = failure ? failure : write_all(f, payload, n);
    f->used = 0;
    if (failure) {
        (void)!ftruncate(f->fd, (off_t)f->whole);
        return failure;
    }
    f->whole += sizeof head + n;
    f->bytes += sizeof head + n;
    return NULL;
}

/* ---- reading --------------------------------------------------------------------------------------- */

/* The last run of a folder, by name. */
static bool find_last(const char *folder, char name[JOURNAL_NAME_BYTES])
{
    struct dirent **list;
    bool found = false;
    int n = scandir(folder, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        uint32_t file;
        found |= parse_name(list[i]->d_name, name, &file);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return found;
}

/* Whether the run has a file with that number or a later one. */
static bool goes_on(const struct journal_reader *r, uint32_t from)
{
    struct dirent **list;
    bool found = false;
    int n = scandir(r->folder, &list, NULL, NULL);
    for (int i = 0; i < n; i++) {
        char name[JOURNAL_NAME_BYTES];
        uint32_t file;
        found |= parse_name(list[i]->d_name, name, &file) && strcmp(name, r->name) == 0 && file >= from;
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return found;
}

static int read_file(struct journal_reader *r, const char *path, char reason[JOURNAL_REASON_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat s;
    free(r->bytes);
    r->bytes = NULL;
    r->n = r->at = 0;
    if (fd < 0 || fstat(fd, &s) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return refuse(reason, path,
                      error == ENOENT ? "this file of the journal is missing" : strerror(error));
    }
    size_t size = (size_t)s.st_size;
    r->bytes = malloc(size + 1);
    while (r->bytes && r->n < size) {
        ssize_t n = read(fd, r->bytes + r->n, size - r->n);
        if (n <= 0)
            break;
        r->n += (size_t)n;
    }
    close(fd);
    return r->bytes ? 0 : refuse(reason, path, "no memory for the file");
}

/* Begin with a file, whose number is known. False: it ends within its header, and is the last. */
static int begin_reading(struct journal_reader *r, bool *begun, char reason[JOURNAL_REASON_BYTES])
{
    char path[JOURNAL_PLACE_BYTES];
    struct header h;
    path_of(r->folder, r->name, r->file, path);
    int rc = read_file(r, path, reason);
    *begun = rc == 0 && r->n >= sizeof h;
    if (rc != 0)
        return rc;
    if (!*begun) {
        if (goes_on(r, r->file + 1) || r->file == 1)
            return refuse(reason, path, "it ends within its header");
        r->torn = r->n > 0;
        return 0;
    }
    memcpy(&h, r->bytes, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || h.check != header_check(&h) || h.file != r->file ||
        (r->file > 1 && (h.run != r->run || h.first != r->number)))
        return refuse(reason, path, "offset 0: its header is wrong");
    r->run = h.run;
    r->number = h.first;
    r->at = sizeof h;
    return 0;
}

int journal_reader_open(struct journal_reader *r, const char *path, char reason[JOURNAL_REASON_BYTES])
{
    struct stat s;
    bool begun;
    uint32_t file;
    *r = (struct journal_reader){.file = 1};
    if (stat(path, &s) != 0)
        return refuse(reason, path, strerror(errno));
    if (S_ISDIR(s.st_mode)) {
        snprintf(r->folder, sizeof r->folder, "%s", path);
        if (strlen(path) >= sizeof r->folder || !find_last(path, r->name))
            return refuse(reason, path, "there is no journal in it");
    } else {
        const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
        snprintf(r->folder, sizeof r->folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
        if (!parse_name(base, r->name, &file))
            return refuse(reason, path, "this is not the name of a file of a journal (RUN.NNNNNN.journal)");
    }
    return begin_reading(r, &begun, reason);
}

static int fault(const struct journal_reader *r, const char *what, char reason[JOURNAL_REASON_BYTES])
{
    const struct journal_record here = {.offset = r->at};
    char place[JOURNAL_PLACE_BYTES];
    journal_reader_place(r, &here, place);
    snprintf(reason, JOURNAL_REASON_BYTES, "%s: record %llu: %s", place, (unsigned long long)r->number, what);
    return ATTND_INVALID;
}

/* The file ends within a record. */
static int end_torn(struct journal_reader *r, char reason[JOURNAL_REASON_BYTES])
{
    if (goes_on(r, r->file + 1))
        return fault(r, "the file ends within it, and there is a later one", reason);
    r->torn = true;
    return 0;
}

int journal_reader_next(struct journal_reader *r, struct journal_record *record,
                        char reason[JOURNAL_REASON_BYTES])
{
    struct head head;
    while (r->at == r->n) {
        bool begun = false;
        if (r->torn || r->n == 0 || !goes_on(r, r->file + 1))
            return 0;
        r->file++;
        int rc = begin_reading(r, &begun, reason);
        if (rc != 0 || !begun)
            return rc;
    }
    if (r->n - r->at < sizeof head)
        return end_torn(r, reason);
    memcpy(&head, r->bytes + r->at, sizeof head);
    if (head.check != check_of(&head.kind_and_bytes, sizeof head.kind_and_bytes, r->number))
        return fault(r, "its head is damaged", reason);
    uint32_t n = head.kind_and_bytes & 0xffffff;
    if (r->n - r->at - sizeof head < n)
        return end_torn(r, reason);
    *record = (struct journal_record){(uint8_t)(head.kind_and_bytes >> 24), n, r->bytes + r->at + sizeof head,
                                      r->number, r->at};
    if (head.payload_check != check_of(record->payload, n, r->number))
        return fault(r, "it is damaged", reason);
    r->number++;
    r->at += sizeof head + n;
    return 1;
}

void journal_reader_place(const struct journal_reader *r, const struct journal_record *record,
                          char place[JOURNAL_PLACE_BYTES])
{
    char path[JOURNAL_PLACE_BYTES - 24];
    snprintf(path, sizeof path, "%s/%s.%06u%s", r->folder, r->name, r->file, SUFFIX);
    snprintf(place, JOURNAL_PLACE_BYTES, "%s:%llu", path, (unsigned long long)record->offset);
}

void journal_reader_close(struct journal_reader *r)
{
    free(r->bytes);
    r->bytes = NULL;
}
