# SPDX-License-Identifier: Apache-2.0
# small.sh - lib.sh, and a geometry whose tensors can be written in JSON: two layers, two heads on one, 8 numbers, blocks of 4.
#
#   call PATH BODY      the answer to a POST of JSON
#   stat FILTER         of /stats
#   problem             status and detail of the problem on standard input
#   rows FIRST N        N rows of k (or v), from a number on
#   append ID FIRST N   append them to both layers; the length, or the problem
#   look ID             what a query sees of a sequence at layer 1, or the problem
# shellcheck shell=bash source=tests/integration/lib.sh
. tests/integration/lib.sh
call() { curl -s --json "$2" "$URL$1"; }
stat() { curl -s "$URL/stats" | jq -c "$1"; }
problem() { jq -r '"\(.status) \(.detail)"'; }
# shellcheck disable=SC2034
geometry=(--set geometry.layers=2 --set geometry.query_heads=2 --set geometry.kv_heads=1 --set geometry.head_dim=8
    --set geometry.block_size=4 --set geometry.dtype=f32 --set geometry.kv_dtype=f32)
rows() { jq -nc --argjson f "$1" --argjson n "$2" '[range($n) as $i | [[range(8) | ((. + 3) * ($f + $i) * 7 % 11) - 5]]]'; }
append() { # SEQUENCE FIRST N - to both layers
    local layer
    for layer in 0 1; do
        call /v1/append "{\"layer\":$layer,\"sequences\":[$1],\"indptr\":[0,$3],\"k\":$(rows "$2" "$3"),\"v\":$(rows "$(($2 + layer + 1))" "$3")}"
    done | jq -r '.detail // .sequences[0].length' | tail -n 1
}
look() { # SEQUENCE
    call /v1/attend "{\"layer\":1,\"sequences\":[$1],\"q\":[[[1,0,2,0,1,0,0,1],[0,1,0,-1,0,1,0,1]]],\"lse\":true}" | jq -c '.detail // [.o, .lse]'
}
