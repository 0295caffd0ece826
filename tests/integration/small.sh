# small.sh - lib.sh, and a geometry whose tensors can be written in JSON: two layers, two heads on one, 8 numbers, blocks of 4.
#
#   call PATH BODY      the answer to a POST of JSON
#   stat FILTER         of /stats
#   problem             status and detail of the problem on standard input
#   rows FIRST N        N rows of k (or v), from a number on
# shellcheck shell=bash source=tests/integration/lib.sh
. tests/integration/lib.sh
call() { curl -s --json "$2" "$URL$1"; }
stat() { curl -s "$URL/stats" | jq -c "$1"; }
problem() { jq -r '"\(.status) \(.detail)"'; }
# shellcheck disable=SC2034
geometry=(--set geometry.layers=2 --set geometry.query_heads=2 --set geometry.kv_heads=1 --set geometry.head_dim=8
    --set geometry.block_size=4 --set geometry.dtype=f32 --set geometry.kv_dtype=f32)
rows() { jq -nc --argjson f "$1" --argjson n "$2" '[range($n) as $i | [[range(8) | ((. + 3) * ($f + $i) * 7 % 11) - 5]]]'; }
