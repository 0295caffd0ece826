/* SPDX-License-Identifier: Apache-2.0 */
/* zmq.h - libzmq, opened when it is wanted: what of its interface (4.2 or later) the publisher of events calls.
 *
 * Declared here, so that building needs neither its headers nor the library. Constants are those of its manual pages; they are part
 * of its binary interface. */
#ifndef SERVER_ZMQ_H
#define SERVER_ZMQ_H

#include "config/status.h"

#include <stddef.h>
#include <stdint.h>

enum { ZMQ_REASON_BYTES = 256 };

/* Kinds of sockets; options; flags of sending and receiving; what may be polled. */
enum { ZMQ_PUB = 1, ZMQ_REP = 4, ZMQ_ROUTER = 6 };
enum {
    ZMQ_RCVMORE = 13,
    ZMQ_LINGER = 17,
    ZMQ_MAXMSGSIZE = 22,
    ZMQ_SNDHWM = 23,
    ZMQ_CURVE_SERVER = 47,
    ZMQ_CURVE_SECRETKEY = 49,
    ZMQ_ZAP_DOMAIN = 55,
    ZMQ_USE_FD = 89 /* a socket that listens already; the library closes it */
};
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2 };
enum { ZMQ_POLLIN = 1 };

enum { ZMQ_KEY_BYTES = 32, ZMQ_KEY_CHARACTERS = 40 /* in Z85 */ };

struct zmq_message {
    _Alignas(8) unsigned char opaque[64];
};

struct zmq_poll_item {
    void *socket; /* NULL: the file descriptor */
    int fd;
    short events, revents;
};

/* XX(result, name, parameters) */
#define ZMQ_SYMBOLS(XX)                                                                                      \
    XX(void *, zmq_ctx_new, (void))                                                                          \
    XX(int, zmq_ctx_term, (void *context))                                                                   \
    XX(void *, zmq_socket, (void *context, int kind))                                                        \
    XX(int, zmq_close, (void *socket))                                                                       \
    XX(int, zmq_setsockopt, (void *socket, int option, const void *value, size_t bytes))                     \
    XX(int, zmq_getsockopt, (void *socket, int option, void *value, size_t *bytes))                          \
    XX(int, zmq_bind, (void *socket, const char *address))                                                   \
    XX(int, zmq_send, (void *socket, const void *frame, size_t bytes, int flags))                            \
    XX(int, zmq_recv, (void *socket, void *frame, size_t bytes, int flags))                                  \
    XX(int, zmq_msg_init, (struct zmq_message * message))                                                    \
    XX(int, zmq_msg_init_size, (struct zmq_message * message, size_t bytes))                                 \
    XX(void *, zmq_msg_data, (struct zmq_message * message))                                                 \
    XX(int, zmq_msg_copy, (struct zmq_message * to, struct zmq_message * from))                              \
    XX(int, zmq_msg_send, (struct zmq_message * message, void *socket, int flags))                           \
    XX(int, zmq_msg_close, (struct zmq_message * message))                                                   \
    XX(int, zmq_poll, (struct zmq_poll_item * items, int count, long timeout_ms))                            \
    XX(int, zmq_errno, (void))                                                                               \
    XX(const char *, zmq_strerror, (int error))                                                              \
    XX(int, zmq_has, (const char *capability))                                                               \
    XX(uint8_t *, zmq_z85_decode, (uint8_t * key, const char *text))                                         \
    XX(int, zmq_curve_public, (char *public_key, const char *secret_key))

struct zmq_library {
    void *handle;
#define XX(result, name, parameters) result(*name) parameters;
    ZMQ_SYMBOLS(XX)
#undef XX
};

/* zmq_open: open the library. 0, or ATTND_NOT_FOUND with a sentence. zmq_shut: close it; what was not opened is fine. */
MUST_USE int zmq_open(struct zmq_library *zmq, char reason[ZMQ_REASON_BYTES]);
void zmq_shut(struct zmq_library *zmq);

#endif
