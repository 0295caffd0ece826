/* SPDX-License-Identifier: Apache-2.0 */
/* geometry_json.c - see geometry_json.h. */
#include "config/geometry_json.h"

void geometry_write(struct json_writer *w, const struct geometry *g)
{
    json_uint(w, "layers", g->layers);
    json_uint(w, "query_heads", g->query_heads);
    json_uint(w, "kv_heads", g->kv_heads);
    json_uint(w, "head_dim", g->head_dim);
    json_uint(w, "block_size", g->block_size);
    json_string(w, "dtype", dtype_name(g->dtype));
    json_string(w, "kv_dtype", dtype_name(g->kv_dtype));
    json_string(w, "layout", layout_names[g->layout]);
}
