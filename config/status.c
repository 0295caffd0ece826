/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - the rows of the status table, found by code. */
#include "config/status.h"

#include <assert.h>
#include <stddef.h>

struct status_row {
    const char *code;
    const char *title;
    int http;
};

static const struct status_row rows[] = {
#define XX(constant, code, title, http) {code, title, http},
    STATUS_MAP(XX)
#undef XX
};

unsigned status_number(int status)
{
    assert(status > ATTND_STATUS_BASE && status < ATTND_STATUS_END);
    return (unsigned)(status - ATTND_STATUS_BASE - 1);
}

int status_of_number(unsigned number)
{
    assert(number < STATUS_COUNT);
    return ATTND_STATUS_BASE + 1 + (int)number;
}

static const struct status_row *row_of(int status)
{
    return &rows[status_number(status)];
}

const char *status_code(int status)
{
    return row_of(status)->code;
}

const char *status_title(int status)
{
    return row_of(status)->title;
}

int status_http(int status)
{
    return row_of(status)->http;
}
