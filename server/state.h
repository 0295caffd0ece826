/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - what of a daemon outlives it, in the folder state.dir: its sequences, saved when it ends and restored once
 * when it starts again; and which ids it may have given out, however it ended.
 *
 *     drain -> save: snapshot.draft -> fsync -> snapshot          start -> snapshot.restoring -> sequences -> gone
 *
 * A snapshot is used once: the start moves it aside before it reads it, and what a start that was killed has left there is
 * not used again (snapshot.failed).
 *
 * The file `lock` says since when a daemon serves; one that has saved what it had empties it, and one that could
 * not save all says how many. So a start knows whether the daemon before was killed, or has lost some.
 *
 * The file `ids` has a number above all ids that were given out, and ranges of those that clients chose above it. It is on the
 * disk before the first of them is used: the number goes ahead by some hundred thousand, ranges are of 65 536.
 *
 * Loop thread, and but for the ids while no client is served. */
#ifndef SERVER_STATE_H
#define SERVER_STATE_H

#include "server/routes.h"

enum { STATE_REASON_BYTES = 2 * GEOMETRY_TEXT_BYTES + 64 };

struct state;

/* state_open(path, state, reason): take the folder, which is ours and nobody else's (mode 0700), and which no other
 * daemon has. Returns 0, or ATTND_INVALID or ATTND_BUSY with a sentence. */
MUST_USE int state_open(const char *path, struct state **state, char reason[STATE_REASON_BYTES]);
void state_close(struct state *state);

/* state_ids_begin: no id that was given out before is given out again. 0, or ATTND_INVALID with a sentence. _check: whether it would
 * say so; changes nothing. */
MUST_USE int state_ids_check(struct state *state, char reason[STATE_REASON_BYTES]);
MUST_USE int state_ids_begin(struct state *state, struct daemon_state *daemon,
                             char reason[STATE_REASON_BYTES]);

/* state_ids_look: have the number go ahead if it is time for that: ask now and then. */
void state_ids_look(struct state *state, struct daemon_state *daemon);

/* state_ids_have: whether the ids that a request chooses are on the disk. state_ids_keep: bring them there; 0, or
 * ATTND_BUSY with a sentence; any thread. state_ids_note: that has been done. */
bool state_ids_have(const struct state *state, const struct request *request);
MUST_USE int state_ids_keep(struct state *state, const struct request *request,
                            char reason[STATE_REASON_BYTES]);
void state_ids_note(struct state *state, const struct request *request);

/* state_write_rate: bytes a second that reach the disk, measured; 0: nothing can be written. Takes a second at most, or
 * as long as the disk does for 4 MiB. */
double state_write_rate(const struct state *state);

/* state_room: how many bytes its disk has left; UINT64_MAX: nobody knows. state_has_room(state, bytes, reason): whether it has so many:
 * 0, or ATTND_NO_MEMORY with a sentence. */
uint64_t state_room(const struct state *state);
MUST_USE int state_has_room(const struct state *state, uint64_t bytes, char reason[STATE_REASON_BYTES]);

/* state_swap_file(state, bytes, fd, reason): a file of so many bytes, which the disk has, and which is gone when it is closed,
 * however that comes. Returns 0, or ATTND_NO_MEMORY with a sentence. */
MUST_USE int state_swap_file(const struct state *state, uint64_t bytes, int *fd,
                             char reason[STATE_REASON_BYTES]);

/* state_restore: the sequences of the snapshot, if there is one; each that is not restored is logged with the reason, and so is a daemon
 * before that has not saved all that it had. From then on this one serves.
 * False: a signal wants the daemon to end, and the snapshot is there as before. */
bool state_restore(struct state *state, struct daemon_state *daemon);

/* state_snapshot_check(state, config, reason): whether a start would use the snapshot, as far as geometry, node and damage say; it changes
 * nothing, and knows nothing of the model's parameters or of keys. 0, also where there is none, or ATTND_INVALID with the sentence
 * that the start would log. */
MUST_USE int state_snapshot_check(const struct state *state, const struct config *config,
                                  char reason[STATE_REASON_BYTES]);

/* state_save_seconds: how long saving so many bytes may take: drain.save_deadline_s, or half more than the disk
 * should. */
double state_save_seconds(const struct config *config, double write_rate, uint64_t bytes);

/* state_save(state, daemon, write_rate): all sequences but those of workloads, the highest priority first, and of one
 * priority those that were used last. Those for which neither the time nor the disk are enough are logged. Whether
 * all are saved. */
bool state_save(struct state *state, struct daemon_state *daemon, double write_rate);

#endif
