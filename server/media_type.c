/* SPDX-License-Identifier: Apache-2.0 */
/* media_type.c - see media_type.h. */
#include "server/media_type.h"

#include <string.h>
#include <strings.h>

bool media_type_is(struct http_text type, const char *name)
{
    size_t n = strlen(name);
    return type.n >= n && strncasecmp(type.bytes, name, n) == 0 &&
           (type.n == n || type.bytes[n] == ';' || type.bytes[n] == ' ');
}

/* Whether one element of an Accept header, "type/subtype;q=0.5", takes `type`; by_name: and no range does. */
static bool element_accepts(const char *element, size_t n, const char *type, bool by_name)
{
    const char *slash = strchr(type, '/');
    size_t front = (size_t)(slash - type) + 1, name = 0, q;
    while (n && (*element == ' ' || *element == '\t')) {
        element++;
        n--;
    }
    while (name < n && !strchr("; \t", element[name]))
        name++;
    bool named = name == strlen(type) && strncasecmp(element, type, name) == 0;
    bool ranged =
        !by_name && name > 2 && element[name - 1] == '*' &&
        ((name == 3 && element[0] == '*') || (name == front + 1 && strncasecmp(element, type, front) == 0));
    for (q = name; q + 2 < n && strncasecmp(element + q, "q=0", 3) != 0; q++)
        ;
    bool refused = q + 2 < n;
    for (q += 3; refused && q < n && element[q] != ',' && element[q] != ';'; q++)
        refused = !(element[q] >= '1' && element[q] <= '9');
    return (named || ranged) && !refused;
}

static bool accepts(struct http_text accept, const char *type, bool by_name)
{
    bool takes = false;
    for (size_t at = 0, n; !takes && at < accept.n; at += n + 1) {
        const char *comma = memchr(accept.bytes + at, ',', accept.n - at);
        n = comma ? (size_t)(comma - accept.bytes) - at : accept.n - at;
        takes = element_accepts(accept.bytes + at, n, type, by_name);
    }
    return takes;
}

bool media_type_accepted(struct http_text accept, const char *type)
{
    return accept.n == 0 || accepts(accept, type, false);
}

bool media_type_asked_for(struct http_text accept, const char *type)
{
    return accepts(accept, type, true);
}
