/* SPDX-License-Identifier: Apache-2.0 */
/* media_type.h - types of bodies and answers: Content-Type and Accept. Pure. */
#ifndef SERVER_MEDIA_TYPE_H
#define SERVER_MEDIA_TYPE_H

#include "server/http_request.h"

/* Whether a Content-Type, its parameters aside, is `name`. */
bool media_type_is(struct http_text type, const char *name);

/* Whether an Accept header takes `type`, by its name or by a range, and with a q above 0; an empty one takes
 * everything (RFC 9110, 12.5.1). */
bool media_type_accepted(struct http_text accept, const char *type);

/* Whether it takes `type` by its name: a range is no wish. */
bool media_type_asked_for(struct http_text accept, const char *type);

#endif
