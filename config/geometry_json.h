/* SPDX-License-Identifier: Apache-2.0 */
/* geometry_json.h - a geometry's numbers as members of a JSON object: of /v1/info and of a journal's lines, which clients compare. */
#ifndef CONFIG_GEOMETRY_JSON_H
#define CONFIG_GEOMETRY_JSON_H

#include "config/geometry.h"
#include "config/json_writer.h"

/* geometry_write: into the object that is open. */
void geometry_write(struct json_writer *w, const struct geometry *g);

#endif
