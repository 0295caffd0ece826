/* SPDX-License-Identifier: Apache-2.0 */
/* openapi.h - /openapi.json, composed once from the table of routes and the schemas beside them.
 *
 * Schemas are written in a notation of one line, which becomes JSON Schema:
 *
 *     {id:id length:uint parent:id? blocks_next?:uint}   an object, no other members; blocks_next may be absent, parent null
 *     [uint]   (a|b|c)   Name   A|B                      a list; one of these words; another schema; one of two
 *     uint int number bool text id range any             id: 1..2^53-1; range: FIRST:END
 *     uint(1..1000)  number(0..1)  text(..256)           within bounds
 *
 * Parameters of a query are written like the members of an object. */
#ifndef SERVER_OPENAPI_H
#define SERVER_OPENAPI_H

#include "config/config.h"

struct api_resource;

/* openapi_create(resources, n): the document as text that ends with NUL, to be freed; NULL without memory. A notation that
 * is none is a defect, and ends the process. */
char *openapi_create(const struct api_resource *const *resources, size_t n);

#endif
