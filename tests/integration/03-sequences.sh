#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A tour of sequences with curl: create, extend, attend, fork, copy-on-write, truncate, delete. The pool is tiny - 8 blocks of
# 4 tokens - and one KV head of 8 numbers serves two query heads, so everything can be followed by eye.
. tests/integration/lib.sh
small=(--set geometry.layers=2 --set geometry.query_heads=2 --set geometry.kv_heads=1 --set geometry.head_dim=8
    --set geometry.block_size=4 --set geometry.dtype=f32 --set geometry.kv_dtype=f32 --set pool.blocks=8)
start_daemon "${small[@]}" --set limits.sequences=6

post() { curl -s --json "$2" "$URL$1"; }
table() { curl -s "$URL/v1/sequences/$1" | jq -c .blocks; }
stat() { curl -s "$URL/stats" | jq -r "$1"; }
status() { jq -r '"\(.status) \(.code)"'; }

# k and v of one token: a unit vector, and the numbers n..n+7.
key() { jq -nc --argjson i "$1" '[[[range(8)] | map(if . == $i then 1 else 0 end)]]'; }
value() { jq -nc --argjson n "$1" '[[[range(8)] | map(. + $n)]]'; }
# A token for both layers of a sequence: its number is its value, its key is number modulo 8.
extend() {
    for layer in 1 0; do
        post /v1/append "{\"layer\":$layer,\"sequences\":[$1],\"k\":$(key $(($2 % 8))),\"v\":$(value "$2")}"
    done
}
look='[[[0,0,0,0,0,0,0,0],[0,0,0,0,0,0,0,0]]]' # q = 0 looks at every token alike

# Create. The daemon chooses the id, or the client does.
expect 'a new sequence is empty' '{"id":1,"length":0,"cached_tokens":0,"blocks":[]}' "$(post /v1/sequences '{}')"
expect 'an id of one'"'"'s own' 7 "$(post /v1/sequences '{"id":7}' | jq .id)"
expect 'Location names it' "/v1/sequences/2" \
    "$(curl -s -o /dev/null -D - -X POST "$URL/v1/sequences" | tr -d '\r' | sed -n 's/^Location: //p')"
expect 'an id in use' '409 exists' "$(post /v1/sequences '{"id":7}' | status)"
expect 'another node'"'"'s id' '421 other_node' "$(post /v1/sequences '{"id":1099511627777}' | status)"
expect 'what is wrong is named' '[{"pointer":"/id","detail":"wants an integer in 1..9007199254740991"}]' \
    "$(post /v1/sequences '{"id":0}' | jq -c .errors)"
expect 'a member that is not there' '422 invalid' "$(post /v1/sequences '{"toks":[1]}' | status)"

# Extend. A sequence's length is what all of its layers have.
expect 'layer 1 alone does not make it longer' '{"sequences":[{"id":7,"length":0,"lengths":[0,1]}]}' \
    "$(post /v1/append "{\"layer\":1,\"sequences\":[7],\"k\":$(key 0),\"v\":$(value 0)}")"
expect 'its layers show' '[0,1]' "$(curl -s "$URL/v1/sequences/7" | jq -c .lengths)"
expect 'layer 0 follows' '{"sequences":[{"id":7,"length":1,"lengths":[1,1]}]}' \
    "$(post /v1/append "{\"layer\":0,\"sequences\":[7],\"k\":$(key 0),\"v\":$(value 0)}")"
for token in 1 2 3 4 5; do extend 7 $token >/dev/null; done
expect 'six tokens are two blocks' '6 [0,1]' "$(curl -s "$URL/v1/sequences/7" | jq -c -r '"\(.length) \(.blocks)"')"
expect 'the second is half full' '[{"index":0,"block":0,"fill":4,"refs":1},{"index":1,"block":1,"fill":2,"refs":1}]' \
    "$(curl -s "$URL/v1/sequences/7/blocks")"

# Attend. q = 0 gives every token the same weight: the mean of 0..5 is 2.5, and lse is ln 6.
expect 'the mean of all values' '[2.5,3.5,4.5,5.5,6.5,7.5,8.5,9.5]' \
    "$(post /v1/attend "{\"layer\":0,\"sequences\":[7],\"q\":$look}" | jq -c '.o[0][0]')"
expect 'lse is ln 6' '1.7918' "$(post /v1/attend "{\"layer\":0,\"sequences\":[7],\"q\":$look,\"lse\":true}" | jq '.lse[0][1] * 10000 | round / 10000')"
expect 'an empty sequence has nothing to attend to' '422 sequence 1 has no tokens at layer 0 to attend to' \
    "$(post /v1/attend "{\"layer\":0,\"sequences\":[1],\"q\":$look,\"lse\":true}" | jq -c -r '"\(.status) \(.detail)"')"
expect 'a layer that is not named (bug: it was 0)' '422 /layer: is missing: there are layers 0..1' \
    "$(post /v1/attend "{\"sequences\":[1],\"q\":$look}" | jq -c -r '"\(.status) \(.detail)"')"

# Several rows of one sequence: the last tokens, each with its own causal limit.
expect 'the last two tokens' '[2,2.5]' \
    "$(post /v1/attend "{\"layer\":0,\"sequences\":[7],\"indptr\":[0,2],\"q\":[$(jq -c '.[0]' <<<"$look"),$(jq -c '.[0]' <<<"$look")]}" | jq -c '[.o[][0][0]]')"

# Fork: the child shares the blocks; the first to write in the half-full one gets a copy.
expect 'a fork shares the table' '{"id":3,"length":6,"blocks":[0,1]}' "$(post /v1/sequences/7/fork '{}' | jq -c '.sequences[0]')"
expect 'two blocks are shared' 2 "$(stat .pool.shared)"
expect 'no copy so far' 0 "$(stat .counters.cow_copies)"
extend 3 100 >/dev/null
expect 'the child wrote: one copy' 1 "$(stat .counters.cow_copies)"
expect 'the child has a block of its own' '[0,2]' "$(table 3)"
expect 'the parent'"'"'s table is as it was' '[0,1]' "$(table 7)"
expect 'the parent'"'"'s values too' 2.5 "$(post /v1/attend "{\"layer\":0,\"sequences\":[7],\"q\":$look}" | jq '.o[0][0][0]')"
expect 'the child sees both' 16.4286 "$(post /v1/attend "{\"layer\":0,\"sequences\":[3],\"q\":$look}" | jq '.o[0][0][0] * 10000 | round / 10000')"
extend 7 6 >/dev/null
expect 'the parent writes in place: still one copy' 1 "$(stat .counters.cow_copies)"
expect 'both in one call, same bits as alone' true \
    "$(a=$(post /v1/attend "{\"layer\":0,\"sequences\":[7],\"q\":$look}" | jq -c .o[0]) b=$(post /v1/attend "{\"layer\":0,\"sequences\":[3],\"q\":$look}" | jq -c .o[0])
       post /v1/attend "{\"layer\":0,\"sequences\":[3,7],\"q\":[$(jq -c '.[0]' <<<"$look"),$(jq -c '.[0]' <<<"$look")]}" | jq -c ".o == [$b,$a]")"

# Free the parent first, then the child: every block comes back, whatever the order.
expect 'delete answers 204' 204 "$(curl -s -o /dev/null -w '%{http_code}' -X DELETE "$URL/v1/sequences/7")"
expect 'the child still has all it sees' 16.4286 "$(post /v1/attend "{\"layer\":0,\"sequences\":[3],\"q\":$look}" | jq '.o[0][0][0] * 10000 | round / 10000')"
expect 'it is gone' '404 not_found' "$(curl -s "$URL/v1/sequences/7" | status)"
curl -s -X DELETE "$URL/v1/sequences/3"
expect 'the pool is whole' '8 0' "$(stat '"\(.pool.free) \(.pool.held)"')"

# What a parent has beyond its fork goes with the parent (bug: its slots were counted on, 1 token logical and 4 physical).
tokens() { stat '.pool | "\(.tokens_logical) \(.tokens_physical) \(.sharing_ratio)"'; }
parent=$(post /v1/sequences '{}' | jq .id)
for token in 0 1 2 3; do extend "$parent" $token >/dev/null; done
child=$(post "/v1/sequences/$parent/fork" '{"length":1}' | jq '.sequences[0].id')
expect 'a fork at 1 shares a slot' '5 4 1.25' "$(tokens)"
curl -s -X DELETE "$URL/v1/sequences/$parent"
expect 'its parent is gone: one token in one slot' '1 1 1' "$(tokens)"
expect 'the block has a fill of 1' "{\"fill\":1,\"owner\":$child}" \
    "$(curl -s "$URL/v1/blocks" | jq -c '.blocks[] | select(.state == "held") | {fill, owner}')"
curl -s -X DELETE "$URL/v1/sequences/$child"

# Child first.
for token in 0 1 2; do extend 1 $token >/dev/null; done
post /v1/sequences/1/fork '{"count":2,"length":2}' >/dev/null
expect 'forks at a shorter length' '[2,2]' "$(curl -s "$URL/v1/sequences" | jq -c '[.items[] | select(.parent == 1) | .length]')"
expect 'longer than the parent' '422 invalid' "$(post /v1/sequences/1/fork '{"length":4}' | status)"
for id in $(curl -s "$URL/v1/sequences" | jq '.items[] | select(.parent == 1) | .id'); do curl -s -X DELETE "$URL/v1/sequences/$id"; done
expect 'children gone, the parent keeps its block' '[0]' "$(table 1)"

# Truncate, and go on from there.
for path in truncate fork moved; do
    expect "$path to a length below 0" '422 /length' "$(post "/v1/sequences/1/$path" "$([ $path = moved ] && echo '{"length":-1,"moved_to":"/x"}' || echo '{"length":-1}')" | jq -r '"\(.status) \(.errors[0].pointer)"')"
done
expect 'truncate' '1 [0]' "$(post /v1/sequences/1/truncate '{"length":1}' | jq -c -r '"\(.length) \(.blocks)"')"
expect 'beyond the end it keeps what there is, and says how much' '200 1 [0]' "$(curl -s -w '%{http_code}' -o "$WORK/cut" --json '{"length":500}' "$URL/v1/sequences/1/truncate") \
$(jq -c -r '"\(.length) \(.blocks)"' "$WORK/cut")"
extend 1 9 >/dev/null
expect 'tokens 0 and 9' 4.5 "$(post /v1/attend "{\"layer\":0,\"sequences\":[1],\"q\":$look}" | jq '.o[0][0][0]')"

# One block short: refused with the arithmetic, and nothing has changed.
many() { jq -nc --argjson n "$1" '[range($n) | [[1,0,0,0,0,0,0,0]]]'; }
body() { echo "{\"layer\":0,\"sequences\":[$1],\"indptr\":[0,$2],\"k\":$(many "$2"),\"v\":$(many "$2")}"; }
post /v1/append "$(body 1 30)" >/dev/null
expect 'a call that fills the pool to the last slot' '[32,2] 0' "$(curl -s "$URL/v1/sequences/1" | jq -c .lengths) $(stat .pool.free)"
post /v1/sequences/1/truncate '{"length":2}' >/dev/null
extend 2 0 >/dev/null
expect 'one block short is 503' 'needs 7 blocks of 8; 6 free, 0 reclaimable' "$(post /v1/append "$(body 1 29)" | jq -r .detail)"
expect 'with Retry-After' 1 "$(curl -s -o /dev/null -D - --json "$(body 1 29)" "$URL/v1/append" | tr -d '\r' | sed -n 's/^Retry-After: //p')"
# This hung once: two calls on a sequence, both refused before any step was run.
expect 'and refused again, not left waiting (bug: a refused call blocked the next one)' 503 \
    "$(curl -s -o /dev/null -w '%{http_code}' --json "$(body 1 29)" "$URL/v1/append")"
expect 'nothing has changed' '2 6' "$(curl -s "$URL/v1/sequences/1" | jq .length) $(stat .pool.free)"
expect 'more than the pool has is 422' '422 invalid' "$(post /v1/append "$(body 1 40)" | status)"
expect 'no more sequences than allowed' 503 "$(for _ in 1 2 3 4 5; do post /v1/sequences '{}'; done | jq -r 'select(.status) | .status' | head -1)"

# Mistakes are named, and change nothing.
while IFS='|' read -r name path want request; do
    expect "$name" "$want" "$(post "$path" "$request" | jq -r '"\(.status) \(.detail)"')"
done <<LIST
twice the same sequence|/v1/attend|422 sequence 1 is named twice in one call|{"layer":0,"sequences":[1,1],"q":[[[0,0,0,0,0,0,0,0],[0,0,0,0,0,0,0,0]],[[0,0,0,0,0,0,0,0],[0,0,0,0,0,0,0,0]]]}
an unknown sequence|/v1/attend|404 there is no sequence 99|{"layer":0,"sequences":[99],"q":$look}
another node's sequence|/v1/attend|421 sequence 1099511627777 belongs to node 1, this is node 0|{"layer":0,"sequences":[1099511627777],"q":$look}
a head of the wrong size|/v1/attend|422 /q: wants F32 [1, 2, 8], has F32 [1, 2, 1]|{"layer":0,"sequences":[1],"q":[[[1],[2]]]}
too few heads|/v1/attend|422 /q: wants F32 [1, 2, 8], has F32 [1, 1, 1]|{"layer":0,"sequences":[1],"q":[[[1]]]}
k without v|/v1/attend|422 /v: is missing: k and v come together|{"layer":0,"sequences":[1],"q":$look,"k":[[[0,0,0,0,0,0,0,0]]]}
not a number|/v1/append|422 /k/0/0/2: wants a number|{"layer":0,"sequences":[1],"k":[[[0,0,"x",0,0,0,0,0]]],"v":[[[0,0,0,0,0,0,0,0]]]}
too large for f32|/v1/append|422 /k: row 0, head 0, element 0 is not finite|{"layer":0,"sequences":[1],"k":[[[1e300,0,0,0,0,0,0,0]]],"v":[[[0,0,0,0,0,0,0,0]]]}
a layer that is not there|/v1/attend|422 /layer: wants an integer in 0..1|{"layer":2,"sequences":[1],"q":$look}
more rows than tokens|/v1/attend|422 sequence 2 has 1 token at layer 0, and 2 rows ask for them|{"layer":0,"sequences":[2],"indptr":[0,2],"q":[[[0,0,0,0,0,0,0,0],[0,0,0,0,0,0,0,0]],[[0,0,0,0,0,0,0,0],[0,0,0,0,0,0,0,0]]]}
indptr that does not rise|/v1/attend|422 /indptr: wants numbers that rise from 0, each by at least 1|{"layer":0,"sequences":[1],"indptr":[0,0],"q":[]}
an unknown member|/v1/attend|422 /Q: there is no such member|{"layer":0,"sequences":[1],"Q":1}
the same member twice|/v1/attend|400 line 1, column 12: member "layer" occurs twice|{"layer":0,"layer":1}
not JSON|/v1/attend|400 line 1, column 2: a member name in quotes was expected here|{sequences:[1]}
LIST
expect 'another content type' 415 "$(curl -s -o /dev/null -w '%{http_code}' -d '{}' "$URL/v1/sequences")"
expect 'an id that is none' '404 no such path: /v1/sequences/abc/fork: {id} of /v1/sequences/{id}/fork wants a number, at most 9007199254740991' \
    "$(curl -s -X POST "$URL/v1/sequences/abc/fork" | jq -r '"\(.status) \(.detail)"')"
expect 'no such path below a sequence' 404 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/sequences/1/nope")"
expect 'a limit out of range' 422 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/stats?limit=0")"

# Pages, and the pool block by block.
expect 'a page of sequences says where the next begins' true "$(curl -s "$URL/v1/sequences?limit=2" | jq '(.items | length) == 2 and .next != null')"
expect 'all pages together' 6 "$(next=0; while [ "$next" != null ]; do
    page=$(curl -s "$URL/v1/sequences?limit=4&cursor=$next"); jq '.items[].id' <<<"$page"; next=$(jq .next <<<"$page"); done | wc -l)"
expect 'blocks by state' '{"free":6,"held":2}' \
    "$(curl -s "$URL/v1/blocks" | jq -c '.blocks | group_by(.state) | map({(.[0].state): length}) | add')"
expect 'a block knows a sequence that holds it' 1 "$(curl -s "$URL/v1/blocks?limit=1" | jq '.blocks[0].owner')"
expect 'Link leads to the next page' '</v1/blocks?cursor=3&limit=3>; rel="next"' \
    "$(curl -s -o /dev/null -D - "$URL/v1/blocks?limit=3" | tr -d '\r' | sed -n 's/^Link: //p')"
tag=$(curl -s -o /dev/null -D - "$URL/stats" | tr -d '\r' | sed -n 's/^ETag: //p')
expect 'nothing has changed: 304, and no body' '304 0' "$(curl -s -o /dev/null -w '%{http_code} %{size_download}' -H "If-None-Match: $tag" "$URL/stats")"
expect 'and the tag names this start, not an epoch alone' true "$([[ $tag =~ ^W/\"[0-9a-f]+-[0-9]+\"$ ]] && echo true)"
expect 'something has: 200' 200 "$(curl -s -X POST "$URL/v1/trim" >/dev/null; curl -s -o /dev/null -w '%{http_code}' -H "If-None-Match: $tag" "$URL/stats")"
metrics=$(curl -s "$URL/metrics")
expect 'metrics say the same as /stats' "$(stat '"\(.pool.free) \(.pool.held) \(.scheduler.steps) \(.counters.cow_copies)"')" \
    "$(for name in 'blocks{state="free"}' 'blocks{state="held"}' steps_total cow_copies_total; do
        awk -v n="attnd_$name" '$1 == n { printf "%s ", $2 }' <<<"$metrics"; done | sed 's/ $//')"
expect 'of which a scraper knows the version' 'text/plain; version=0.0.4; charset=utf-8' \
    "$(curl -s -o "$WORK/metrics" -D - "$URL/metrics" | tr -d '\r' | sed -n 's/^Content-Type: //p')"
expect 'each family has its help and its type, once, before its samples' '' "$(awk '
    $1 == "#" { if (said[$2 $3]++) print "twice: " $0; next }
    { name = $1; sub(/[{].*/, "", name); sub(/_(bucket|sum|count)$/, "", name); if (!said["HELP" name] || !said["TYPE" name]) print "none of " name }' "$WORK/metrics")"
expect 'the last line ends' 1 "$(tail -c 1 "$WORK/metrics" | wc -l)"
expect 'in Prometheus text: a name and a number a line' 0 \
    "$(grep -v '^#' <<<"$metrics" | grep -cvE '^[a-z_:]+(\{[a-z_]+="[^"\\]*"(,[a-z_]+="[^"\\]*")*\})? ([0-9.e+-]+|NaN)$')"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
expect 'counts add up' true "$(stat '.pool | .free + .cached + .held + .fenced == .blocks')"

stop_daemon
expect 'it ends cleanly' 0 $?
finish
