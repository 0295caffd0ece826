/* SPDX-License-Identifier: Apache-2.0 */
/* swap_file.c - see swap_file.h. */
#include "scheduler/swap_file.h"

#include "config/geometry.h"
#include "config/numbers.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Transfers in the order in which they came; one thread at a time. */
struct queue {
    struct swap_transfer *of; /* [size] */
    uint32_t first, count;
};

struct swap_file {
    int fd;
    uint32_t size;
    struct attention_host host;
    void (*wake)(void *);
    void *of_wake;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t more;
    struct queue reads, writes, done;
    bool ends;
};

static void put(const struct swap_file *f, struct queue *q, const struct swap_transfer *t)
{
    assert(q->count < f->size);
    q->of[(q->first + q->count++) % f->size] = *t;
}

static struct swap_transfer take_first(const struct swap_file *f, struct queue *q)
{
    struct swap_transfer t = q->of[q->first];
    q->first = (q->first + 1) % f->size;
    q->count--;
    return t;
}

static int make_queue(const struct swap_file *f, struct queue *q)
{
    q->of = calloc(f->size, sizeof *q->of);
    return q->of ? 0 : ATTND_NO_MEMORY;
}

int swap_file_create(int fd, uint32_t frames, struct swap_file **result)
{
    struct swap_file *f = calloc(1, sizeof *f);
    if (!f) {
        close(fd);
        return ATTND_NO_MEMORY;
    }
    f->fd = fd;
    f->size = larger(frames, 1);
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->more, NULL);
    if (make_queue(f, &f->reads) || make_queue(f, &f->writes) || make_queue(f, &f->done)) {
        swap_file_destroy(f);
        return ATTND_NO_MEMORY;
    }
    *result = f;
    return 0;
}

/* ---- the thread ---------------------------------------------------------------------------------- */

/* The layers of a frame, as a file has them one behind the other. */
static void lay_out(const struct attention_host *host, uint32_t frame, struct iovec parts[LAYERS_MAX])
{
    for (uint32_t layer = 0; layer < host->layers; layer++)
        parts[layer] = (struct iovec){host->bytes + layer * host->layer_stride + frame * host->block_stride,
                                      host->layer_bytes};
}

static uint64_t digest_of(const struct attention_host *host, const struct iovec parts[LAYERS_MAX])
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (uint32_t layer = 0; layer < host->layers; layer++)
        XXH3_64bits_update(&state, parts[layer].iov_base, parts[layer].iov_len);
    return XXH3_64bits_digest(&state);
}

/* Move all of the parts: 0, or errno. */
static int move(int fd, struct iovec *parts, uint32_t n, off_t at, bool write)
{
    while (n > 0) {
        ssize_t moved = write ? pwritev(fd, parts, (int)n, at) : preadv(fd, parts, (int)n, at);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return moved < 0 ? errno : EIO;
        at += moved;
        for (; n > 0 && (size_t)moved >= parts->iov_len; parts++, n--)
            moved -= (ssize_t)parts->iov_len;
        if (n > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + moved;
            parts->iov_len -= (size_t)moved;
        }
    }
    return 0;
}

static void transfer(const struct swap_file *f, struct swap_transfer *t)
{
    const struct attention_host *host = &f->host;
    struct iovec parts[LAYERS_MAX] = {{0}}, left[LAYERS_MAX] = {{0}};
    off_t at = (off_t)(t->block * (uint64_t)host->layers * host->layer_bytes);
    lay_out(host, t->frame, parts);
    lay_out(host, t->frame, left);
    if (t->write)
        t->digest = digest_of(host, parts);
    t->error = move(f->fd, left, host->layers, at, t->write);
    if (!t->write && t->error == 0 && digest_of(host, parts) != t->digest)
        t->error = EBADMSG;
}

static void *swap_file_main(void *cookie)
{
    struct swap_file *f = cookie;
    pthread_mutex_lock(&f->mutex);
    for (;;) {
        while (!f->ends && f->reads.count + f->writes.count == 0)
            pthread_cond_wait(&f->more, &f->mutex);
        if (f->ends)
            break;
        struct swap_transfer t = take_first(f, f->reads.count ? &f->reads : &f->writes);
        pthread_mutex_unlock(&f->mutex);
        transfer(f, &t);
        pthread_mutex_lock(&f->mutex);
        put(f, &f->done, &t);
        f->wake(f->of_wake);
    }
    pthread_mutex_unlock(&f->mutex);
    return NULL;
}

/* ---- the engine's side --------------------------------------------------------------------------- */

static void begin(void *cookie, const struct attention_host *host, void (*wake)(void *), void *of_wake)
{
    struct swap_file *f = cookie;
    f->host = *host;
    f->wake = wake;
    f->of_wake = of_wake;
}

/* The thread begins with the first transfer. Without one, the transfer has failed. */
static void submit(void *cookie, const struct swap_transfer *t)
{
    struct swap_file *f = cookie;
    pthread_mutex_lock(&f->mutex);
    int rc = f->started ? 0 : pthread_create(&f->thread, NULL, swap_file_main, f);
    f->started = rc == 0;
    if (rc == 0) {
        put(f, t->write ? &f->writes : &f->reads, t);
        pthread_cond_signal(&f->more);
    } else {
        struct swap_transfer failed = *t;
        failed.error = rc;
        put(f, &f->done, &failed);
        f->wake(f->of_wake);
    }
    pthread_mutex_unlock(&f->mutex);
}

static bool take(void *cookie, struct swap_transfer *done)
{
    struct swap_file *f = cookie;
    pthread_mutex_lock(&f->mutex);
    bool any = f->done.count > 0;
    if (any)
        *done = take_first(f, &f->done);
    pthread_mutex_unlock(&f->mutex);
    return any;
}

static void end(void *cookie)
{
    struct swap_file *f = cookie;
    pthread_mutex_lock(&f->mutex);
    bool started = f->started;
    f->ends = true;
    f->started = false;
    pthread_cond_signal(&f->more);
    pthread_mutex_unlock(&f->mutex);
    if (started)
        pthread_join(f->thread, NULL);
}

struct swap_io swap_file_io(struct swap_file *f)
{
    return (struct swap_io){f, begin, submit, take, end};
}

void swap_file_destroy(struct swap_file *f)
{
    if (!f)
        return;
    end(f);
    pthread_cond_destroy(&f->more);
    pthread_mutex_destroy(&f->mutex);
    free(f->reads.of);
    free(f->writes.of);
    free(f->done.of);
    close(f->fd);
    free(f);
}
