/* SPDX-License-Identifier: Apache-2.0 */
/* swap_file.h - what moves blocks between host memory and a file, and the thread that does.
 *
 * The file has a place for every block: block b of all layers stands at b x its bytes, whatever frame of host memory it was
 * written from. Transfers that write are done in the order in which they were asked for; those that read go before them.
 * Every write notes a digest of the bytes (XXH3-64), and a read that finds others has failed. */
#ifndef SCHEDULER_SWAP_FILE_H
#define SCHEDULER_SWAP_FILE_H

#include "kernels/attention.h"

/* One block on its way. Its frame is not touched until it is taken back. */
struct swap_transfer {
    bool write;
    uint32_t block, frame;
    uint64_t digest; /* of its bytes: out of a write, into a read */
    int error;       /* out: errno; EBADMSG: other bytes than were written */
};

/* How the engine thread has it done; swap_file_io() or, in tests, something else. */
struct swap_io {
    void *cookie;
    /* Where the frames are; `wake` is called, from any thread, when there is something for take(). */
    void (*begin)(void *cookie, const struct attention_host *host, void (*wake)(void *), void *of_wake);
    void (*submit)(void *cookie, const struct swap_transfer *transfer);
    bool (*take)(void *cookie, struct swap_transfer *done); /* false: none is done */
    void (*end)(void *cookie); /* nothing touches a frame any more; what was not done is dropped */
};

struct swap_file;

/* swap_file_create(fd, frames, file): for a file that is long enough, of which it becomes the owner also when it fails; so
 * many transfers at a time. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int swap_file_create(int fd, uint32_t frames, struct swap_file **file);
void swap_file_destroy(struct swap_file *file); /* NULL is fine. After the engine. */

struct swap_io swap_file_io(struct swap_file *file);

#endif
