/* SPDX-License-Identifier: Apache-2.0 */
/* handle.h - what the library's files share: a handle, its calls, and what of a caller's structs is taken.
 *
 *   attnd.h      library.c (open, close, turns)   calls.c (append, attend, paged, merge)   sequences.c (the rest)
 *                     |                                |                                       |
 *                     +----------- engine_acquire(), submit, turns until it is taken ----------+
 *
 * A call of the caller's becomes one request of the engine or several. Who waits for one keeps it (handle_run()); those that are
 * submitted belong to a struct call, which a ticket names, and go back to the engine as they are completed. All but a handle's
 * signal is guarded by its mutex. */
#ifndef LIBRARY_HANDLE_H
#define LIBRARY_HANDLE_H

#include "config/config.h"
#include "library/attnd.h"
#include "scheduler/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { HANDLE_ERROR_BYTES = 512 };

/* Submitted, and not yet told of. */
struct call {
    uint32_t generation; /* of the ticket */
    bool used;
    bool dropped;     /* of a stream, and nobody's: it is forgotten when it is done */
    uint32_t pending; /* requests that are not completed */
    int code;         /* of the first that failed */
    struct attnd_result result;
    char error[HANDLE_ERROR_BYTES];
};

/* An output that is computed elsewhere, and goes to the caller when the request is completed. */
struct output {
    void *to; /* NULL: it is where it belongs */
    enum dtype dtype;
    const void *from;
    enum dtype from_dtype;
    size_t elements;
};

/* Whose a request is: its cookie. In the request's arena, or on the stack of who waits. */
struct ownership {
    struct request *request;
    struct ownership *next; /* in struct attnd.untaken */
    struct call *call;      /* NULL: of who waits for it, and keeps it: */
    bool done;
    uint32_t index; /* of the list that it is */
    struct output o, lse;
};

struct attnd {
    struct config config;
    struct engine *engine;
    bool threaded;
    unsigned forks;     /* of the process, when it was opened */
    atomic_uint inside; /* callers in a function, also those that wait for the mutex */
    pthread_mutex_t mutex;
    struct call *calls; /* [call_count] */
    uint32_t call_count;
    uint32_t pending;          /* requests of calls */
    struct ownership *untaken; /* streamed ones that the device has not been given yet */
    uint64_t voided;

    pthread_mutex_t signal_mutex; /* of: */
    pthread_cond_t signal;
    uint64_t signals; /* how often the engine's thread had something */
};

/* handle_fail: keep a sentence for attnd_error(); returns the code. */
int handle_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* handle_enter: take a handle's mutex, or say why that cannot be: ATTND_OK or a code. handle_leave: give it back; returns `code`. */
int handle_enter(struct attnd *a);
int handle_leave(struct attnd *a, int code);

/* handle_acquire: an empty request of a kind about `id`, or NULL with the sentence kept. */
struct request *handle_acquire(struct attnd *a, enum request_kind kind, uint64_t id);

/* handle_run: have a request carried out, and wait for it. ATTND_OK, or a code with the sentence kept. It is still the caller's,
 * who releases it. */
int handle_run(struct attnd *a, struct request *request);

/* handle_begin_call: a call of no requests yet; NULL, with the sentence kept: there are too many. handle_submit: add a request,
 * whose cookie is its ownership, filled in but for the call. handle_end_call: the ticket, or, if `ticket` is NULL, wait and forget
 * it. */
struct call *handle_begin_call(struct attnd *a);
void handle_submit(struct attnd *a, struct call *call, struct request *request);
int handle_end_call(struct attnd *a, struct call *call, uint64_t *ticket);

/* handle_find_stream_room: whether so many streamed requests can be given to the device now: ATTND_OK, or ATTND_ERR_BUSY with the
 * sentence kept. handle_end_stream_call: give a call's to it; the ticket, or, if `ticket` is NULL, the call is nobody's. What is wrong
 * and can be seen without the device is returned at once. */
int handle_find_stream_room(struct attnd *a, uint32_t count);
int handle_end_stream_call(struct attnd *a, struct call *call, uint64_t *ticket);

/* handle_dtype: DLPack's code and bits; false: attnd has none such. */
bool handle_dtype(uint8_t code, uint8_t bits, enum dtype *dtype);

/* handle_take(to, known, from, what): copy a caller's struct, which begins with its size; `known` bytes are this library's. ATTND_OK,
 * or a code with the sentence kept. handle_give: copy back what is within the caller's size. */
int handle_take(void *to, size_t known, const void *from, const char *what);
void handle_give(void *to, const void *from, size_t known);

#endif
