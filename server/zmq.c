/* SPDX-License-Identifier: Apache-2.0 */
/* zmq.c - see zmq.h. */
#include "server/zmq.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libzmq.so.5"

/* The first function that the library lacks, or NULL. POSIX lets dlsym's result be used as a function; ISO C wants it copied. */
static const char *look_up(struct zmq_library *zmq)
{
#define XX(result, name, parameters)                                                                         \
    {                                                                                                        \
        void *symbol = dlsym(zmq->handle, #name);                                                            \
        if (!symbol)                                                                                         \
            return #name;                                                                                    \
        memcpy(&zmq->name, &symbol, sizeof symbol);                                                          \
    }
    ZMQ_SYMBOLS(XX)
#undef XX
    return NULL;
}

int zmq_open(struct zmq_library *zmq, char reason[ZMQ_REASON_BYTES])
{
    *zmq = (struct zmq_library){.handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (!zmq->handle) {
        snprintf(reason, ZMQ_REASON_BYTES, "%.180s (Debian has it in libzmq5)", dlerror());
        return ATTND_NOT_FOUND;
    }
    const char *missing = look_up(zmq);
    if (!missing)
        return 0;
    snprintf(reason, ZMQ_REASON_BYTES, "%s has no %s: 4.2 or later is wanted", LIBRARY, missing);
    zmq_shut(zmq);
    return ATTND_NOT_FOUND;
}

void zmq_shut(struct zmq_library *zmq)
{
    if (zmq->handle)
        dlclose(zmq->handle);
    *zmq = (struct zmq_library){0};
}
