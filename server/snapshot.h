/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.h - the file in which sequences outlive the daemon.
 *
 *     head 4096 bytes | index, 40 bytes a sequence | model constants | sequence | sequence | ...
 *
 *     sequence    what it is, its salt, its prompt | tokens 0..511: ids, k, v | tokens 512..: ids, k, v | ...
 *
 * Every part has a digest (XXH3-128): that of the head is in it, those of the index and of the constants are in the
 * head, that of what a sequence is in the index, that of tokens ahead of them. So damage is found before anything is
 * used of it, and is that of one sequence unless it is in the first parts. Room for the index is taken before the first
 * sequence is written: a disk that is full later does not keep what was written before from being used. Numbers are
 * little-endian, as the machines are. The file has its name once it is whole and on the disk.
 *
 * Functions that return int return 0, or a status with a sentence in `reason`. One thread. */
#ifndef SERVER_SNAPSHOT_H
#define SERVER_SNAPSHOT_H

#include "allocator/prefix_index.h"
#include "config/geometry.h"
#include "scheduler/sequences.h"

#include <stddef.h>
#include <stdint.h>

enum { SNAPSHOT_REASON_BYTES = 256, SNAPSHOT_BACKEND_BYTES = 64 };

/* What all sequences have in common. */
struct snapshot_head {
    char geometry[GEOMETRY_TEXT_BYTES];   /* in words: other words, other outputs */
    char backend[SNAPSHOT_BACKEND_BYTES]; /* and instruction set */
    uint64_t constants_digest;            /* model_constants_digest() */
    uint32_t node;
    const struct model_constants *constants; /* borrowed; read: the reader's */
};

/* What a sequence is, apart from K and V. */
struct snapshot_sequence {
    uint64_t id, parent, key;
    struct sequence_options options;
    uint64_t base;           /* whose first `shared` tokens it shares; it comes before; 0: none */
    uint32_t shared, length; /* tokens; those from `shared` on follow */
    char salt[PREFIX_SALT_BYTES_MAX];
    uint32_t salt_bytes;
    const uint32_t *prompt; /* [prompt_count] */
    uint32_t prompt_count;
};

/* Tokens [first, end) of a sequence, of all layers. */
struct snapshot_tokens {
    uint32_t first, end;
    uint32_t id_count;   /* ids of the first ones are known */
    const uint32_t *ids; /* [id_count] */
    const void *k, *v;   /* [layers][end - first][kv_heads][head_dim] of geometry.kv_dtype */
};

/* ---- writing ---- */

struct snapshot_writer;

/* snapshot_create(dir, name, head, g, sequences, writer, reason): a new file in a folder, for at most so many
 * sequences. Whatever has that name stays until the end. */
MUST_USE int snapshot_create(int dir, const char *name, const struct snapshot_head *head,
                             const struct geometry *g, uint32_t sequences, struct snapshot_writer **writer,
                             char reason[SNAPSHOT_REASON_BYTES]);

/* snapshot_begin: the next sequence; snapshot_put: its tokens, in order; snapshot_end: it is whole. snapshot_drop: what
 * has been written of it is not; also after one of these has failed. */
MUST_USE int snapshot_begin(struct snapshot_writer *writer, const struct snapshot_sequence *sequence,
                            char reason[SNAPSHOT_REASON_BYTES]);
MUST_USE int snapshot_put(struct snapshot_writer *writer, const struct snapshot_tokens *tokens,
                          char reason[SNAPSHOT_REASON_BYTES]);
void snapshot_end(struct snapshot_writer *writer);
void snapshot_drop(struct snapshot_writer *writer);

/* snapshot_publish: make the file what has the name, once it is on the disk. It ends the writer, whatever comes of it,
 * as snapshot_abandon() does, which removes the file. */
MUST_USE int snapshot_publish(struct snapshot_writer *writer, char reason[SNAPSHOT_REASON_BYTES]);
void snapshot_abandon(struct snapshot_writer *writer);

/* Bytes written so far. */
uint64_t snapshot_bytes(const struct snapshot_writer *writer);

/* ---- reading ---- */

struct snapshot_reader;

/* snapshot_open(fd, g, most, reader, reason): the file `fd`, which is closed with the reader, or if this fails;
 * prompts of `most` tokens and longer are refused. */
MUST_USE int snapshot_open(int fd, const struct geometry *g, uint32_t most, struct snapshot_reader **reader,
                           char reason[SNAPSHOT_REASON_BYTES]);
void snapshot_close(struct snapshot_reader *reader);

const struct snapshot_head *snapshot_head(const struct snapshot_reader *reader);
uint32_t snapshot_count(const struct snapshot_reader *reader);

/* snapshot_id: of the n-th sequence, for messages. snapshot_read: what it is; its prompt stays until the next one.
 * snapshot_next: the tokens that follow, of which k, v and ids [at most `room` tokens] are read into what is given; at
 * the end first = end. */
uint64_t snapshot_id(const struct snapshot_reader *reader, uint32_t n);
MUST_USE int snapshot_read(struct snapshot_reader *reader, uint32_t n, struct snapshot_sequence *sequence,
                           char reason[SNAPSHOT_REASON_BYTES]);
MUST_USE int snapshot_next(struct snapshot_reader *reader, uint32_t room, uint32_t *ids, void *k, void *v,
                           struct snapshot_tokens *tokens, char reason[SNAPSHOT_REASON_BYTES]);

#endif
