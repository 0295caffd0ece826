#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# POST /v1/batch: creates, forks, truncates and deletes as one transaction, as a beam search wants them. Whatever fails leaves
# everything as it was, which /stats and the audit say.
# shellcheck source=tests/integration/small.sh
. tests/integration/small.sh
append() { # ID N
    call /v1/append "{\"sequences\":[$1],\"indptr\":[0,$2],\"k\":$(rows 1 "$2"),\"v\":$(rows 2 "$2")}" |
        jq -c '.sequences[0].length // .detail'
}
batch() { call /v1/batch "{\"ops\":[$1]}"; }
# All of /stats but what time alone changes: ages, and the roof, which is measured again when the daemon is idle.
everything() { stat 'del(.uptime_s, .sequences.items[].age_s, .sequences.items[].idle_s, .scheduler.roof, .scheduler.roof_gb_per_s)'; }
audit() { curl -s -X POST "$URL/v1/audit" | jq .ok; }
lengths() { curl -s "$URL/v1/sequences" | jq -c '[.items[] | [.id, .length]] | sort'; }

start_daemon --config config/tiny.jsonc --set pool.blocks=64 --set limits.sequences=12
expect 'no ops, no results' '{"results":[]}' "$(batch '')"
expect 'a create answers as the single one' '{"results":[{"id":1,"length":0,"cached_tokens":0,"blocks":[]}]}' \
    "$(batch '{"op":"create","id":1}')"
append 1 6 >/dev/null
expect 'a fork too' '{"results":[{"sequences":[{"id":2,"length":6,"blocks":[0,1]},{"id":3,"length":6,"blocks":[0,1]}]}]}' \
    "$(batch '{"op":"fork","id":1,"ids":[2,3]}')"
expect 'a truncate' '[2,3,[0],1]' \
    "$(batch '{"op":"truncate","id":2,"length":3}' | jq -c '.results[0] | [.id, .length, .blocks, .parent]')"
expect 'a delete' '{"results":[{}]}' "$(batch '{"op":"delete","id":3}')"
expect 'what is left' '[[1,6],[2,3]]' "$(lengths)"

# Names of one op are those of the next.
expect 'across ops' '[0,6,5,{},6]' \
    "$(batch '{"op":"create","id":9},{"op":"fork","id":1,"ids":[10]},{"op":"fork","id":10,"ids":[11],"length":5},{"op":"delete","id":10},
              {"op":"fork","id":1,"ids":[10]}' | jq -c '[.results[] | .length // .sequences[0].length // .]')"
expect 'they are there' '[[1,6],[2,3],[9,0],[10,6],[11,5]]' "$(lengths)"
expect 'an id that we choose is none that the batch names' '[12,13,14]' \
    "$(batch '{"op":"create"},{"op":"create","id":13},{"op":"create"}' | jq -c '[.results[].id]' >"$WORK/ids"
       batch '{"op":"create","id":13}' | jq .status >/dev/null
       jq -c 'map(if . == 13 then . else "other" end) | if . == ["other",13,"other"] then [12,13,14] else . end' "$WORK/ids")"
curl -s "$URL/v1/sequences" | jq '.items[].id' | while read -r id; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
expect 'all are gone' '64 0' "$(stat .pool.free) $(stat .sequences.count)"

# A step of beam search: of eight beams four go on twice, and four end.
for id in 1 2 3 4 5 6 7 8; do batch "{\"op\":\"create\",\"id\":$id}" >/dev/null; append $id $((id + 3)) >/dev/null; done
step='{"op":"delete","id":5},{"op":"delete","id":6},{"op":"delete","id":7},{"op":"delete","id":8}'
for id in 1 2 3 4; do step="$step,{\"op\":\"fork\",\"id\":$id,\"ids\":[$((id + 20))]}"; done
expect 'fork 4 of 8 and delete 4' '[[1,4],[2,5],[3,6],[4,7],[21,4],[22,5],[23,6],[24,7]]' "$(batch "$step" >/dev/null; lengths)"
expect 'the books balance' true "$(audit)"
expect 'the beams go on by themselves' '5 5' "$(append 1 1) $(append 21 1)"

# Whatever fails, and wherever: nothing has changed.
call /v1/leases '{"id":77,"blocks":2}' >/dev/null
good=('{"op":"create","id":50,"max_tokens":20}' '{"op":"fork","id":2,"ids":[51]}' '{"op":"truncate","id":3,"length":1}' '{"op":"delete","id":4}')
before=$(everything)
while IFS='|' read -r name want bad; do
    for at in 0 1 2 3 4; do
        ops=("${good[@]:0:at}" "$bad" "${good[@]:at}")
        expect "$name, at $at" "$(sed "s/@:/ops[$at]:/; s/@/$at/" <<<"$want")" \
            "$(batch "$(IFS=,; echo "${ops[*]}")" | jq -r '"\(.status) \(.code) \(.detail)"')"
    done
    expect "$name: nothing has changed" "$before" "$(everything)"
done <<'LIST'
an unknown parent|404 not_found @: there is no sequence 99|{"op":"fork","id":99}
an id in use|409 exists @: there is a sequence 1 already|{"op":"create","id":1}
a fork with an id in use|409 exists @: there is a sequence 22 already|{"op":"fork","id":1,"ids":[60,22]}
an id twice|409 exists @: there is a sequence 60 already|{"op":"fork","id":1,"ids":[60,60]}
longer than the parent|422 invalid @: length is 6, and the sequence has 5|{"op":"fork","id":1,"length":6}
another node|421 other_node @: sequence 1099511627777 belongs to node 1, this is node 0|{"op":"delete","id":1099511627777}
a lease|404 not_found @: there is no sequence 77|{"op":"delete","id":77}
more than the pool|422 invalid @: max_tokens 257 are 65 blocks of 4 tokens; the pool has 64, and limits.sequence_tokens is 131072|{"op":"create","max_tokens":257}
more forks than rows|422 invalid @: /ops/@/count: wants an integer in 1..1000|{"op":"fork","id":1,"count":1001}
no length|422 invalid @: /ops/@/length: is missing|{"op":"truncate","id":1}
no id|422 invalid @: /ops/@/id: is missing|{"op":"delete"}
no such op|422 invalid @: /ops/@/op: wants create, fork, truncate or delete|{"op":"append","id":1}
no such member|422 invalid @: /ops/@/lenght: there is no such member; did you mean length?|{"op":"fork","id":1,"lenght":1}
no object|422 invalid @: /ops/@/op: wants create, fork, truncate or delete|7
LIST
expect 'the books balance' true "$(audit)"
expect 'deleted earlier in the batch' '404 ops[1]: there is no sequence 1 any more' \
    "$(batch '{"op":"delete","id":1},{"op":"fork","id":1}' | problem)"
expect 'named later in the batch' '404 ops[0]: there is no sequence 70' \
    "$(batch '{"op":"delete","id":70},{"op":"create","id":70}' | problem)"
expect 'nothing has changed' "$before" "$(everything)"

# Limits.
expect 'sequences' '503 ops[1]: limits.sequences (12) leave room for 2 of 3 forks' \
    "$(batch '{"op":"create"},{"op":"fork","id":1,"count":3}' | problem)"
expect 'what a delete leaves counts, in order' '503 200' \
    "$(batch '{"op":"fork","id":1,"count":4},{"op":"delete","id":24}' | jq .status) $(
       curl -s -o /dev/null -w '%{http_code}' --json '{"ops":[{"op":"delete","id":24},{"op":"fork","id":1,"ids":[31,32,33,34]}]}' "$URL/v1/batch")"
expect 'ops' '422 /ops: has 4097 ops, and one batch takes at most 4096' "$(batch "$(printf '{},%.0s' $(seq 4096)){}" | problem)"
expect 'bytes' 413 "$(batch "$(printf '{"op":"create"},%.0s' $(seq 5000)){}" | jq .status)"
expect 'no list' '422 /ops: wants a list of ops' "$(call /v1/batch '{"ops":{}}' | problem)"
expect 'no ops' '422 /ops: is missing' "$(call /v1/batch '{}' | problem)"
curl -s -X DELETE "$URL/v1/leases/77"
delete_all=$(curl -s "$URL/v1/sequences" | jq -c '[.items[] | {op: "delete", id}]')
expect 'delete everything' '64 0' "$(call /v1/batch "{\"ops\":$delete_all}" >/dev/null; stat .pool.free) $(stat .sequences.count)"

# Promises of all ops are summed up, and what deleted sequences were promised comes first.
batch '{"op":"create","id":1,"max_tokens":128}' >/dev/null
expect 'promises' '503 blocks_exhausted ops[1]: max_tokens needs 17 blocks more, and 16 are free or reclaimable and promised to nobody' \
    "$(batch '{"op":"create","max_tokens":64},{"op":"create","max_tokens":68}' | jq -r '"\(.status) \(.code) \(.detail)"')"
append 1 30 >/dev/null
expect 'a beam that ends gives its blocks to those that go on' 3 \
    "$(batch '{"op":"delete","id":1},{"op":"create","id":2,"max_tokens":128},{"op":"create","id":3,"max_tokens":128}' | jq '.results | length')"
expect 'and no more' 503 "$(batch '{"op":"create","max_tokens":1}' | jq .status)"
expect 'the books balance' true "$(audit)"
expect 'they can have them' '128 128' "$(append 2 128) $(append 3 128)"
expect 'delete them' '[{},{}]' "$(batch '{"op":"delete","id":2},{"op":"delete","id":3}' | jq -c .results)"

# A prompt that is cached, forked and cut in the same batch.
call /v1/sequences '{"id":4}' >/dev/null
known='"token_ids":[1,2,3,4,5,6,7,8]'
call /v1/append "{\"sequences\":[4],\"indptr\":[0,8],\"k\":$(rows 1 8),\"v\":$(rows 2 8),$known}" >/dev/null
expect 'a prompt is found after its sequence is deleted' '[{},8,7,2]' \
    "$(batch '{"op":"delete","id":4},{"op":"create","id":5,"tokens":[1,2,3,4,5,6,7,8,9]},{"op":"fork","id":5,"ids":[6],"length":7},
              {"op":"truncate","id":5,"length":2}' | jq -c '[.results[] | .cached_tokens // .length // .sequences[0].length // .]')"
expect 'the books balance' true "$(audit)"
stop_daemon
expect 'it ends cleanly' 0 $?

# Behind what is queued.
start_daemon --config config/tiny.jsonc --set pool.blocks=64 --set scheduler.batch_window_us=600000000
batch '{"op":"create","id":1},{"op":"create","id":2},{"op":"create","id":3}' >/dev/null
one() { echo "{\"sequences\":[$1],\"k\":$(rows 1 1),\"v\":$(rows 2 1)}"; }
call /v1/append "$(one 1)" >"$WORK/first" &
first=$!
eventually are_queued '[1]'
expect 'a batch that names others only does not wait' 200 \
    "$(curl -s -o /dev/null -w '%{http_code}' --json '{"ops":[{"op":"fork","id":2,"ids":[4]},{"op":"delete","id":4}]}' "$URL/v1/batch")"
expect 'one that fails there does not either' 404 "$(batch '{"op":"fork","id":2},{"op":"delete","id":4}' | jq .status)"
expect 'still it waits' '[1]' "$(curl -s "$URL/v1/sequences?state=queued" | jq -c '[.items[].id]')"
expect 'a fork is behind it, and sees it' '[1,{}]' \
    "$(batch '{"op":"fork","id":1,"ids":[5]},{"op":"delete","id":2}' | jq -c '[.results[] | .sequences[0].length // .]')"
wait $first
expect 'which ran' 1 "$(jq '.sequences[0].length' "$WORK/first")"
call /v1/append "$(one 3)" >"$WORK/ended" &
ended=$!
eventually are_queued '[3]'
before=$(everything)
expect 'a batch that fails ends nothing' '404 ops[1]: there is no sequence 2' "$(batch '{"op":"delete","id":3},{"op":"delete","id":2}' | problem)"
expect 'nothing has changed' "$before" "$(everything)"
expect 'one that deletes ends what is queued' '{"results":[{}]}' "$(batch '{"op":"delete","id":3}')"
wait $ended
expect 'as a single delete' '410 sequence 3 was deleted before the call ran' "$(problem <"$WORK/ended")"
expect 'the books balance' true "$(audit)"
stop_daemon
expect 'it ends cleanly' 0 $?

# A parent that is swapped out comes in first.
start_daemon --config config/tiny.jsonc --set pool.blocks=4 --set pool.host_blocks=8
batch '{"op":"create","id":1},{"op":"create","id":2}' >/dev/null
append 1 10 >/dev/null
append 2 10 >/dev/null
expect 'the first is on the host' swapped "$(curl -s "$URL/v1/sequences/1" | jq -r .state)"
expect 'a fork brings it back, and the second goes' '[10,10] idle swapped' \
    "$(batch '{"op":"fork","id":1,"ids":[3,4]}' | jq -c '[.results[0].sequences[].length]') $(
       for id in 3 2; do curl -s "$URL/v1/sequences/$id" | jq -r .state; done | paste -sd' ')"
expect 'both parents do not fit at once' '503 ops[1]' \
    "$(batch '{"op":"fork","id":1},{"op":"fork","id":2}' | jq -r '"\(.status) \(.detail[:6])"')"
expect 'but one can be cut, which needs no bytes' '[2,{}]' \
    "$(batch '{"op":"truncate","id":2,"length":2},{"op":"delete","id":1}' | jq -c '[.results[] | .length // .]')"
expect 'the books balance' true "$(audit)"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
