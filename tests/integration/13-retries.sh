#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A client that does not know whether its append arrived sends it again, with the position it was for: what stands
# is compared, what is missing is appended, and the answer has the same bits.
. tests/integration/lib.sh
start_daemon --config config/tiny.jsonc --set geometry.layers=2
call() { curl -s --json "$2" "$URL$1"; }
problem() { jq -r '"\(.status) \(.code)"'; }
row() { echo "[[$1,0,0,0,0,0,0,0]]"; }
rows() { # three tokens, the last one's key is $1
    echo "\"k\":[$(row 1),$(row 2),$(row "$1")],\"v\":[$(row 4),$(row 5),$(row 6)]"
}
three="\"indptr\":[0,3],$(rows 3)"
queries="\"q\":[$(row 1),$(row 2),$(row 3)],\"lse\":true"

call /v1/sequences '{"id":1}' >/dev/null
first=$(call /v1/attend "{\"layer\":0,\"sequences\":[1],\"positions\":[0],$three,$queries}" | jq -c '[.o, .lse]')
expect 'a first attend with its position' 3 "$(jq '.[0] | length' <<<"$first")"
expect 'the same again: the same bits' "$first" \
    "$(call /v1/attend "{\"layer\":0,\"sequences\":[1],\"positions\":[0],$three,$queries}" | jq -c '[.o, .lse]')"
expect 'nothing was appended twice' '[3,0]' "$(curl -s "$URL/v1/sequences/1" | jq -c .lengths)"
expect 'only the queries, at their positions' "$first" \
    "$(call /v1/attend "{\"layer\":0,\"sequences\":[1],\"positions\":[0],\"indptr\":[0,3],$queries}" | jq -c '[.o, .lse]')"

expect 'other keys at the same place' \
    '409 content_conflict sequence 1, position 2, layer 0: other k or v stand there' \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[1],\"positions\":[0],\"indptr\":[0,3],$(rows 9)}" | jq -r '"\(.status) \(.code) \(.detail)"')"
expect 'a gap' \
    '409 position_gap sequence 1 has 3 tokens at layer 0; rows at position 4 do not continue them (length 0)' \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[1],\"positions\":[4],$three}" | jq -r '"\(.status) \(.code) \(.detail)"')"
expect 'queries beyond the end' '409 position_gap' \
    "$(call /v1/attend "{\"layer\":0,\"sequences\":[1],\"positions\":[1],\"indptr\":[0,3],$queries}" | problem)"
expect 'nothing has changed' '[3,0]' "$(curl -s "$URL/v1/sequences/1" | jq -c .lengths)"
expect 'half of it stands: the rest is appended' '{"sequences":[{"id":1,"length":0,"lengths":[5,0]}]}' \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[1],\"positions\":[2],\"indptr\":[0,3],\"k\":[$(row 3),$(row 7),$(row 8)],\"v\":[$(row 6),$(row 1),$(row 1)]}")"
expect 'at the other layer none of it stands' '{"sequences":[{"id":1,"length":3,"lengths":[5,3]}]}' \
    "$(call /v1/append "{\"layer\":1,\"sequences\":[1],\"positions\":[0],$three}")"
expect 'positions of the wrong number' \
    '/positions: wants integers [1], one for each sequence, has I64 [2]' \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[1],\"positions\":[0,1],$three}" | jq -r .detail)"

# Two sequences, of which one conflicts: none changes.
call /v1/sequences '{"id":2}' >/dev/null
expect 'all or none' '409 content_conflict' \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[2,1],\"positions\":[0,0],\"k\":[$(row 1),$(row 9)],\"v\":[$(row 1),$(row 4)]}" | problem)"
expect 'the other one has nothing' 0 "$(curl -s "$URL/v1/sequences/2" | jq .length)"

# After a fork and a copy on write the retry still meets the same content.
call /v1/sequences/1/fork '{"ids":[11,12]}' | jq -c '[.sequences[].id]' >"$WORK/ids"
expect 'forks with ids of our own' '[11,12]' "$(cat "$WORK/ids")"
call /v1/append "{\"layer\":0,\"sequences\":[11],\"k\":[$(row 5)],\"v\":[$(row 5)]}" >/dev/null
expect 'a retry on the fork' '{"sequences":[{"id":11,"length":3,"lengths":[4,3]}]}' \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[11],\"positions\":[0],$three}")"
expect 'ids in use' '409 exists' "$(call /v1/sequences/1/fork '{"ids":[13,12]}' | problem)"
expect 'the same id twice' '409 exists' "$(call /v1/sequences/1/fork '{"ids":[13,13]}' | problem)"
expect 'as many ids as forks' '422 invalid' "$(call /v1/sequences/1/fork '{"count":3,"ids":[13]}' | problem)"
expect 'none of them was made' 4 "$(curl -s "$URL/stats" | jq .sequences.count)"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
expect 'it ends cleanly' 0 $?

# Keys and values in the format that they are stored in, of all layers at once, and more than 1 MiB of them.
start_daemon --set geometry.layers=2 --set geometry.query_heads=2 --set geometry.kv_heads=2 --set geometry.head_dim=8 \
    --set geometry.kv_dtype=e4m3 --set geometry.k_scale=2 --set pool.blocks=4096 --set limits.body_bytes=4MiB
curl -s -X POST "$URL/v1/sequences" >/dev/null
expect 'stored as they are' 2 \
    "$(tensors sequences I64 1 1 indptr I64 2 0,2 k F8_E4M3 2,2,2,8 '64*56' v F8_E4M3 2,2,2,8 '64*64' | post /v1/append | jq '.sequences[0].length')"
expect 'the same numbers in bf16: 0x38 is 1, times the scale 2' '{"sequences":[{"id":1,"length":2,"lengths":[2,2]}]}' \
    "$(tensors sequences I64 1 1 positions I64 1 0 indptr I64 2 0,2 k BF16 2,2,8 '32*2' v BF16 2,2,8 '32*2' | post '/v1/append?layer=1')"
expect 'values come out as they went in' 2,2 \
    "$(tensors sequences I64 1 1 q BF16 1,2,8 '16*1' | post '/v1/attend?layer=1' >"$WORK/o"; numbers "$WORK/o" 4)"
layers="[[[[1,1,1,1,1,1,1,1],[1,1,1,1,1,1,1,1]]],[[[1,1,1,1,1,1,1,1],[1,1,1,1,1,1,1,1]]]]"
expect 'all layers at once in JSON, too' '{"sequences":[{"id":1,"length":3,"lengths":[3,3]}]}' \
    "$(curl -s --json "{\"sequences\":[1],\"k\":$layers,\"v\":$layers}" "$URL/v1/append")"
expect 'a NaN in the stored format' '/k: row 1, head 1, element 7 is not finite' \
    "$(tensors sequences I64 1 1 indptr I64 2 0,2 k F8_E4M3 2,2,8 '31*56,127' v F8_E4M3 2,2,8 '32*64' | post '/v1/append?layer=0' | jq -r .detail)"
expect 'k and v of different formats' '/v: wants the dtype and shape of k' \
    "$(tensors sequences I64 1 1 k F8_E4M3 1,2,8 '16*56' v BF16 1,2,8 '16*1' | post '/v1/append?layer=0' | jq -r .detail)"
expect 'all layers and one layer' 'parameter layer: goes with k and v of one layer, and these have all' \
    "$(tensors sequences I64 1 1 k BF16 2,1,2,8 '32*1' v BF16 2,1,2,8 '32*1' | post '/v1/append?layer=1' | jq -r .detail)"
tensors sequences I64 1 1 k BF16 1,2,8 '16*1' v BF16 1,2,8 '16*1' | post '/v1/append?layer=0' >/dev/null
expect 'layers that differ' '409 position_gap' \
    "$(tensors sequences I64 1 1 k BF16 2,1,2,8 '32*1' v BF16 2,1,2,8 '32*1' | post /v1/append | problem)"

curl -s -X POST "$URL/v1/sequences" >/dev/null
tensors sequences I64 1 2 indptr I64 2 0,4000 k BF16 4000,2,8 '64000*1' v BF16 4000,2,8 '64000*0.5' \
    q BF16 4000,2,8 '64000*1' token_ids I64 4000 '4000*7' >"$WORK/large"
expect 'the body has' 416 "$(($(wc -c <"$WORK/large") / 1000))"
tensors sequences I64 1 2 indptr I64 2 0,4000 k BF16 2,4000,2,8 '128000*1' v BF16 2,4000,2,8 '128000*0.5' \
    token_ids I64 4000 '4000*7' >"$WORK/larger"
tensors sequences I64 1 2 indptr I64 2 0,4096 k BF16 2,4096,2,8 '131072*1' v BF16 2,4096,2,8 '131072*0.5' \
    token_ids I64 4096 '4096*7' unused I64 70000 '70000*0' >"$WORK/unknown"
expect 'more than 1 MiB, but for one tensor' '/unused: there is no such tensor' \
    "$(post '/v1/append?layer=0' <"$WORK/unknown" | jq -r .detail)"
expect 'two layers of 4 000 tokens at once' '[4000,4000]' "$(post /v1/append <"$WORK/larger" | jq -c '.sequences[0].lengths')"
expect 'and attention for all of them' 128000 \
    "$(tensors sequences I64 1 2 indptr I64 2 0,4000 q BF16 4000,2,8 '64000*1' | post '/v1/attend?layer=0' >"$WORK/o"; header "$WORK/o" | jq .o.data_offsets[1])"
expect 'the last one' 0.5 "$(perl -e 'local $/; $_ = <STDIN>; print unpack("f<", pack("V", unpack("v", substr($_, -2)) << 16))' <"$WORK/o")"
expect 'a sequence of known tokens' 4000 \
    "$(tensors tokens I64 4000 '4000*7' | post '/v1/sequences?id=5' | jq .cached_tokens)"
head -c 5000000 /dev/zero >"$WORK/too-large"
expect 'more than limits.body_bytes' 413 "$(curl -s -o /dev/null -w '%{http_code}' -H 'Content-Type: application/x-safetensors' --data-binary "@$WORK/too-large" "$URL/v1/attend")"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
