#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prefix reuse: full blocks whose token ids are known stay in a cache when their sequence goes, and the next prompt that begins
# with the same ids, under the same salt, gets them. Eviction takes the last block of a chain first.
. tests/integration/lib.sh
start_daemon --set geometry.layers=2 --set geometry.query_heads=1 --set geometry.kv_heads=1 --set geometry.head_dim=8 \
    --set geometry.block_size=4 --set geometry.dtype=f32 --set geometry.kv_dtype=f32 --set pool.blocks=8
post() { curl -s --json "$2" "$URL$1"; }
stat() { curl -s "$URL/stats" | jq -c "$1"; }
rows() { jq -nc --argjson n "$2" --argjson t "$1" '[range($n) as $i | [[range(8) | (. + $t + $i) % 7]]]'; }
# n tokens from id first on, at both layers; the ids come with the layer that comes first.
append() { # SEQUENCE FIRST N
    local ids
    ids=$(jq -nc --argjson f "$2" --argjson n "$3" '[range($f; $f + $n)]')
    post /v1/append "{\"layer\":0,\"sequences\":[$1],\"indptr\":[0,$3],\"token_ids\":$ids,\"k\":$(rows "$2" "$3"),\"v\":$(rows "$2" "$3")}" >/dev/null
    post /v1/append "{\"layer\":1,\"sequences\":[$1],\"indptr\":[0,$3],\"k\":$(rows "$2" "$3"),\"v\":$(rows "$2" "$3")}" | jq '.sequences[0].length'
}
create() { post /v1/sequences "$1" | jq -c '[.cached_tokens, (.blocks | length)]'; }
look() { post /v1/attend "{\"layer\":1,\"sequences\":[$1],\"q\":[[[1,0,2,0,1,0,0,1]]],\"lse\":true}" | jq -c '[.o, .lse]'; }

expect 'nothing is cached yet' '[0,0]' "$(create '{"id":1,"tokens":[10,11,12,13,14,15,16,17]}')"
expect 'ten tokens with their ids: two full blocks' 10 "$(append 1 10 10)"
first=$(look 1)
expect 'they can be shared while they are held' '[8,2]' "$(create '{"id":2,"tokens":[10,11,12,13,14,15,16,17,18,19]}')"
expect 'two blocks are shared' 2 "$(stat .pool.shared)"
expect 'asked for four blocks, got two' '[4,2]' "$(stat '[.counters.prefix_blocks_asked, .counters.prefix_blocks_hit]')"
expect 'the rest is appended' 10 "$(append 2 18 2)"
expect 'and the same bits come out' "$first" "$(look 2)"
curl -s -X DELETE "$URL/v1/sequences/1"
curl -s -X DELETE "$URL/v1/sequences/2"
expect 'both gone: two blocks stay' '{"free":6,"cached":2,"held":0}' "$(stat '.pool | {free, cached, held}')"
expect 'another salt shares nothing' '[0,0]' "$(create '{"id":3,"salt":"other","tokens":[10,11,12,13,14,15,16,17]}')"
expect 'nor does another beginning' '[0,0]' "$(create '{"id":4,"tokens":[9,11,12,13,14,15,16,17]}')"
expect 'the same first block' '[4,1]' "$(create '{"id":5,"tokens":[10,11,12,13,99,15,16,17]}')"
expect 'part of a block is no block' '[4,1]' "$(create '{"id":6,"tokens":[10,11,12,13,14,15,16]}')"
for id in 3 4 5 6; do curl -s -X DELETE "$URL/v1/sequences/$id"; done

# A chain of three, and a pool of eight: whoever needs the seventh block evicts the chain's last one, then the one before it.
create '{"id":7,"tokens":[10,11,12,13,14,15,16,17]}' >/dev/null
append 7 18 4 >/dev/null
curl -s -X DELETE "$URL/v1/sequences/7"
expect 'three are cached' 3 "$(stat .pool.cached)"
create '{"id":8}' >/dev/null
append 8 500 24 >/dev/null
expect 'one was evicted' '[2,1]' "$(stat '[.pool.cached, .counters.evictions]')"
expect 'it was the last of the chain' '[8,2]' "$(create '{"id":9,"tokens":[10,11,12,13,14,15,16,17,18,19,20,21]}')"
curl -s -X DELETE "$URL/v1/sequences/9"
append 8 524 4 >/dev/null
expect 'then the one before it' '[4,1]' "$(create '{"id":9,"tokens":[10,11,12,13,14,15,16,17,18,19,20,21]}')"
expect 'a held block is not evicted: one block short' '503 needs 1 block of 8; 0 free, 0 reclaimable' \
    "$(post /v1/append "{\"layer\":0,\"sequences\":[8],\"k\":$(rows 1 1),\"v\":$(rows 1 1)}" | jq -r '"\(.status) \(.detail)"')"
curl -s -X DELETE "$URL/v1/sequences/8"

# A published block is never written: truncate into it, go on with other tokens, and the cache still has the first ones.
append 9 14 4 >/dev/null
expect 'truncated into a cached block' 6 "$(post /v1/sequences/9/truncate '{"length":6}' | jq .length)"
create '{"id":11,"tokens":[10,11,12,13,14,15,16,17]}' >/dev/null
expect 'other tokens from there on' 8 "$(append 9 900 2)"
expect 'the cached block is as it was' '[8,2]' "$(create '{"id":12,"tokens":[10,11,12,13,14,15,16,17]}')"
expect 'the new one is found by its own ids' '[8,2]' "$(create '{"id":13,"tokens":[10,11,12,13,14,15,900,901]}')"
for id in 9 11 12 13; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
expect 'trim drops what is cached' '0' "$(curl -s -X POST "$URL/v1/trim" >/dev/null; stat .pool.cached)"
expect 'the pool is whole' 8 "$(stat .pool.free)"

# Tokens given at creation name the prompt: what is appended there is published under them, though no call says them again.
plain() { # SEQUENCE FIRST N - to both layers, without ids
    local layer
    for layer in 0 1; do
        post /v1/append "{\"layer\":$layer,\"sequences\":[$1],\"indptr\":[0,$3],\"k\":$(rows "$2" "$3"),\"v\":$(rows "$2" "$3")}"
    done | jq -r '.detail // .sequences[0].length' | tail -n 1
}
create '{"id":20,"tokens":[30,31,32,33,34,35,36,37,38]}' >/dev/null
expect 'a prompt appended in two parts, and a token more' '3 10' "$(plain 20 30 3) $(plain 20 33 7)"
expect 'is found by the next one' '[8,2]' "$(create '{"id":21,"tokens":[30,31,32,33,34,35,36,37,38]}')"
expect 'which appends the rest' 9 "$(plain 21 38 1)"
create '{"id":22,"tokens":[30,31,32,33,34,35,36,99]}' >/dev/null
wrong="{\"layer\":0,\"sequences\":[22],\"indptr\":[0,3],\"token_ids\":[34,35,7],\"k\":$(rows 1 3),\"v\":$(rows 1 3)}"
expect 'ids that contradict the prompt' '422 token_ids: sequence 22, position 6: 7, but the prompt says 36' \
    "$(post /v1/append "$wrong" | jq -r '"\(.status) \(.detail)"')"
expect 'change nothing' 4 "$(curl -s "$URL/v1/sequences/22" | jq .length)"
expect 'ids that agree are fine, also behind the prompt' 9 "$(append 22 34 3 >/dev/null; append 22 99 2)"
post /v1/sequences/20/truncate '{"length":2}' >/dev/null
expect 'truncated, it may go on otherwise' 5 "$(append 20 70 3)"
for id in 20 21 22; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
curl -s -X POST "$URL/v1/trim" >/dev/null

# A salt may have any character; in a query it is encoded.
prompt=$(seq -s, 900 911)
post /v1/sequences "{\"id\":30,\"salt\":\"a b+é\",\"tokens\":[$prompt]}" >/dev/null
append 30 900 12 >/dev/null
cached() { tensors tokens I64 12 "$prompt" | curl -s -H 'Content-Type: application/x-safetensors' --data-binary @- "$URL/v1/sequences?salt=$1" | jq .cached_tokens; }
expect 'a salt in a query' 12 "$(cached 'a%20b%2b%C3%A9')"
expect 'another one' 0 "$(cached 'a%20b%2be')"
for id in $(curl -s "$URL/v1/sequences" | jq '.items[].id'); do curl -s -X DELETE "$URL/v1/sequences/$id"; done

while IFS='|' read -r name path want request; do
    expect "$name" "$want" "$(post "$path" "$request" | jq -r '"\(.status) \(.detail)"')"
done <<LIST
a token id that is none|/v1/sequences|422 /tokens: entry 0: wants a token id in 0..4294967295|{"tokens":[-1]}
tokens that are no list|/v1/sequences|422 /tokens: wants a list|{"tokens":5}
a salt that is too long|/v1/sequences|422 /salt: wants a string of at most 64 bytes|{"salt":"$(printf 'x%.0s' $(seq 65))"}
ids for other rows|/v1/append|422 /token_ids: wants integers [1], one for each row, has I64 [2]|{"layer":0,"sequences":[1],"token_ids":[1,2],"k":$(rows 1 1),"v":$(rows 1 1)}
ids without k and v|/v1/attend|422 /token_ids: belongs to k and v, which are missing|{"layer":0,"sequences":[1],"token_ids":[1],"q":[[[0,0,0,0,0,0,0,0]]]}
LIST
stop_daemon
expect 'it ends cleanly' 0 $?
finish
