#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What has happened: the blocks as they were at an epoch, the life of a block, and the stream of events, its ids, what is missed, and its end.
. tests/integration/lib.sh
rows() { jq -nc --argjson n "$1" '[range($n) | [[1,0,0,0,0,0,0,0]]]'; }
append() { curl -s -o /dev/null --json "{\"sequences\":[$1],\"indptr\":[0,$2],\"k\":$(rows "$2"),\"v\":$(rows "$2")}" "$URL/v1/append"; }
# listen LINES ARG... - the first lines of a stream that are not empty
listen() {
    local lines=$1 line stream client
    shift
    exec {stream}< <(exec curl -sN -m $HANG_S "$@")
    client=$!
    while [ "$lines" -gt 0 ] && IFS= read -r -u "$stream" line; do
        [ -n "$line" ] || continue
        echo "$line"
        lines=$((lines - 1))
    done
    exec {stream}<&-
    kill "$client" 2>/dev/null
}
lines() { listen "$1" -H 'Accept: application/x-ndjson' "${@:2}"; }
# What is compared of blocks: who holds a shared one may be another of its holders.
blocks() { curl -s "$URL/v1/blocks?limit=1000$1" | jq -c '.epoch, [.blocks[] | [.block, .state, .refs, .fill, (if .refs == 1 then .owner else .owner != null end)]]'; }
start_daemon --config config/tiny.jsonc --set history.epochs=64 --set pool.host_blocks=16

# ---- a page has bounds, which are wider where it is short
expect 'pages of blocks have bounds' '200 422 200 422 422' "$(for query in limit=1000 limit=1001 'limit=4000&format=columns' 'limit=4001&format=columns' \
    'limit=0&format=columns'; do curl -s -o /dev/null -w '%{http_code}\n' "$URL/v1/blocks?$query"; done | xargs)"

# ---- the past: every state that was seen is shown again
declare -a seen=() held=()
tables() { curl -s "$URL/v1/sequences?limit=1000" | jq -c '[.items[] | {id, parent, blocks, block_count: (if .state == "swapped" then 0 else .blocks | length end)}] | sort_by(.id)'; }
past() { curl -s "$URL/v1/tables?epoch=$1" | jq -c 'select(.epoch == '"$1"' and .left_out == 0).sequences | sort_by(.id)'; }
see() { seen+=("$(blocks '')") && held+=("$(tables)"); }
see
curl -s -o /dev/null --json "{\"id\":7,\"tokens\":[1,2,3,4,5,6]}" "$URL/v1/sequences"
see
append 7 6
see
curl -s -o /dev/null --json '{"ids":[8]}' "$URL/v1/sequences/7/fork"
see
append 8 1 # a copy on write
see
append 7 1
see
curl -s -o /dev/null --json '{"length":2}' "$URL/v1/sequences/8/truncate"
see
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/7"
see
curl -s -o /dev/null -X POST "$URL/v1/trim"
see
for i in "${!seen[@]}"; do
    epoch=${seen[i]%%$'\n'*}
    expect "the blocks at epoch $epoch" "${seen[i]}" "$(blocks "&epoch=$epoch")"
    expect "the tables at epoch $epoch" "${held[i]}" "$(past "$epoch")"
done
expect 'they are not all alike' yes "$([ "$(printf '%s\n' "${held[@]}" | sort -u | wc -l)" -ge 6 ] && echo yes)"
expect 'without an epoch the tables are those of now' "${held[-1]}" "$(curl -s "$URL/v1/tables" | jq -c .sequences)"
middle=${seen[4]%%$'\n'*}
expect 'a limit leaves out' '1 1' "$(curl -s "$URL/v1/tables?epoch=$middle&limit=1" | jq -r '"\(.sequences | length) \(.left_out)"')"
expect 'which has bounds' '200 422 422' "$(for limit in 1000 1001 0; do curl -s -o /dev/null -w '%{http_code}\n' "$URL/v1/tables?limit=$limit"; done | xargs)"
expect 'epochs rise' "$(printf '%s\n' "${seen[@]%%$'\n'*}" | sort -nu | paste -sd' ')" "$(printf '%s\n' "${seen[@]%%$'\n'*}" | paste -sd' ')"
epoch=$(curl -s "$URL/v1/blocks" | jq .epoch)
expect 'who looks changes nothing' "$epoch" "$(curl -s "$URL/v1/blocks" | jq .epoch)"
expect 'what is to come is not there' '422 invalid' "$(curl -s "$URL/v1/blocks?epoch=$((epoch + 1))" | jq -r '"\(.status) \(.code)"')"
expect 'nor are its tables' '422 invalid' "$(curl -s "$URL/v1/tables?epoch=$((epoch + 1))" | jq -r '"\(.status) \(.code)"')"
expect 'a page of the past leads to the next one' "</v1/blocks?cursor=2&limit=2&epoch=$epoch>; rel=\"next\"" "$(curl -s -o /dev/null -w '%header{link}' "$URL/v1/blocks?limit=2&epoch=$epoch")"

# ---- the life of a block
expect 'the life of the block that was copied' 'taken 1 7,shared 2 8,unshared 1 8,freed 0 7' "$(curl -s "$URL/v1/blocks/1/history" | jq -r '[.changes[] | select(.change | test("fenced|cached|published") | not) | "\(.change) \(.refs) \(.sequence)"] | join(",")')"
expect 'of the copy' 'taken,copied' "$(curl -s "$URL/v1/blocks/2/history" | jq -r '[.changes[].change] | .[0:2] | join(",")')"
expect 'of one that was never taken' '{"generation":0,"state":"free","changes":[]}' "$(curl -s "$URL/v1/blocks/60/history" | jq -c '{generation, state, changes}')"
expect 'of none' 404 "$(curl -s "$URL/v1/blocks/64/history" | jq .status)"
for i in $(seq 20); do
    curl -s -o /dev/null --json "{\"id\":$((100 + i))}" "$URL/v1/sequences"
    append $((100 + i)) 1
    curl -s -o /dev/null -X DELETE "$URL/v1/sequences/$((100 + i))"
done
expect 'the latest 32 changes are kept, the oldest first' '32 true true' "$(curl -s "$URL/v1/blocks/1/history" | jq -r '[(.changes | length), ([.changes[].epoch] | . == sort), .changes[-1].generation == .generation] | map(tostring) | join(" ")')"
expect 'generations count how often it was taken' true "$(curl -s "$URL/v1/blocks/1/history" | jq '[.changes[] | select(.change == "taken").generation] | . == [range(.[0]; .[0] + length)]')"
expect 'what is too long ago is gone' '410 epoch_gone' "$(curl -s "$URL/v1/blocks?epoch=${seen[0]%%$'\n'*}" | jq -r '"\(.status) \(.code)"')"
expect 'and so are its tables' '410 epoch_gone' "$(curl -s "$URL/v1/tables?epoch=${seen[0]%%$'\n'*}" | jq -r '"\(.status) \(.code)"')"

# ---- events
from=$(curl -s "$URL/v1/blocks" | jq .epoch)
curl -s -o /dev/null --json '{"id":20}' "$URL/v1/sequences"
curl -s -o /dev/null --json '{"ids":[21]}' "$URL/v1/sequences/20/fork"
curl -s -o /dev/null --json '{"length":0}' "$URL/v1/sequences/21/truncate"
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/20"
expect 'sequences come, fork and go' 'created 20,forked 21 of 20,ended 20 request' "$(lines 3 "$URL/v1/events?types=sequence&since=$from" | jq -r '"\(.change) \(.sequence)\(if .parent then " of \(.parent)" else "" end)\(if .reason then " \(.reason)" else "" end)"' | paste -sd,)"
append 21 5
expect 'blocks and steps, in order' 'block taken 21,block taken 21,step 5' "$(lines 3 "$URL/v1/events?types=block,step&since=$from" | jq -r 'if .event == "step" then "step \(.rows + 5)" else "\(.event) \(.change) \(.sequence)" end' | paste -sd,)"
first=$(listen 3 -H 'Accept: text/event-stream' "$URL/v1/events?since=$from")
expect 'an event of a stream has an id, a name and data' "id: event: sequence data: created" "$(awk '/^id/{printf "id: "} /^event/{printf "%s ", $0}' <<<"$first")data: $(sed -n 's/^data: //p' <<<"$first" | jq -r .change)"
id=$(sed -n 's/^id: //p' <<<"$first")
expect 'it goes on behind the last one' forked "$(listen 3 -H "Last-Event-ID: $id" "$URL/v1/events?types=sequence" | sed -n 's/^data: //p' | jq -r .change)"
expect 'a wrong id' '422 invalid Last-Event-ID' "$(curl -s -H 'Last-Event-ID: x' "$URL/v1/events" | jq -r '"\(.status) \(.code) \(.detail[0:13])"')"
expect 'a wrong type' '422 types' "$(curl -s "$URL/v1/events?types=block,wish" | jq -r '"\(.status) \(.errors[0].parameter)"')"
expect 'one that is to come is of another start' '{"event":"missed","missed":0}' "$(lines 1 "$URL/v1/events?since=123456789" | jq -c '{event, missed}')"
expect 'each block event is a change of the map' true "$(lines 40 "$URL/v1/events?types=block&since=1" | jq -s 'all(.[]; (.state == "held") == (.refs > 0))')"

# ---- what is missed: a thousand forks are more changes than the ring has
append 21 60
before=$(curl -s "$URL/v1/blocks" | jq .epoch)
curl -s -o /dev/null --json '{"count":300}' "$URL/v1/sequences/21/fork"
curl -s -o /dev/null --json "{\"ops\":$(curl -s "$URL/v1/sequences?limit=1000" | jq -c '[.items[] | select(.parent == 21) | {op: "delete", id}]')}" "$URL/v1/batch"
missed=$(lines 2 "$URL/v1/events?since=$before")
expect 'a client is told how much it has missed' 'missed true' "$(jq -rs '"\(.[0].event) \(.[0].missed + '"$before"' + 1 == .[0].next and .[1].id >= .[0].next)"' <<<"$missed")"

# ---- the prefix cache
prompt='[1,2,3,4,5,6,7,8,9]'
curl -s -o /dev/null --json '{"length":0}' "$URL/v1/sequences/21/truncate"
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/8"
curl -s -o /dev/null -X POST "$URL/v1/trim"
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/8"
curl -s -o /dev/null -X POST "$URL/v1/trim"
curl -s -o /dev/null --json "{\"id\":40,\"tokens\":$prompt,\"salt\":\"s\"}" "$URL/v1/sequences"
append 40 9
chains() { curl -s "$URL/v1/prefixes" | jq -c '.items[] | {salted, tokens, block_count, held, cached, hits, evicted_next}'; }
expect 'what is published is a chain' '{"salted":true,"tokens":8,"block_count":2,"held":2,"cached":0,"hits":0,"evicted_next":null}' "$(chains)"
expect 'from its root on' "$(curl -s "$URL/v1/sequences/40" | jq -c '.blocks[0:2]')" "$(curl -s "$URL/v1/prefixes" | jq -c '.items[0].blocks')"
curl -s -o /dev/null --json "{\"id\":41,\"tokens\":$prompt,\"salt\":\"s\"}" "$URL/v1/sequences"
expect 'who begins with it counts' 1 "$(chains | jq .hits)"
curl -s -o /dev/null --json '{"ops":[{"op":"delete","id":40},{"op":"delete","id":41}]}' "$URL/v1/batch"
curl -s -o /dev/null --json "{\"id\":42,\"tokens\":[7,7,7,7]}" "$URL/v1/sequences"
append 42 4
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/42"
expect 'its end goes first, then its root, then the later one' '[1,2] [3,1]' "$(chains | jq -s 'sort_by(.evicted_next) | map([.evicted_next, .cached]) | map(tostring) | join(" ")' -r)"
expect 'a page of chains' '1 true' "$(curl -s "$URL/v1/prefixes?limit=1" | jq -r '"\(.items | length) \(.next != null)"')"

# ---- the end
curl -sN "$URL/v1/events" >"$WORK/stream" &
listener=$!
streams() { [ -s "$WORK/stream" ]; }
eventually streams
expect 'a stream begins with a comment' : "$(head -n 1 "$WORK/stream")"
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/21"
has_told() { grep -q '"change":"ended","sequence":21' "$WORK/stream"; }
eventually has_told
stop_daemon
expect 'the daemon ends with somebody listening' 0 $?
wait "$listener"
expect 'and so does the stream, whole' 0 $?

# ---- the tables of sequences that were swapped out: a lease of more than is free has them leave, and an append brings one back
seen=() held=()
start_daemon --config config/tiny.jsonc --set pool.blocks=8 --set pool.host_blocks=16
for id in 70 71; do
    curl -s -o /dev/null --json "{\"id\":$id}" "$URL/v1/sequences"
    append $id 6
done
curl -s -o /dev/null --json '{"ids":[72]}' "$URL/v1/sequences/70/fork"
see
lease=$(curl -s --json "{\"blocks\":$(curl -s "$URL/stats" | jq '.pool.free + .pool.cached + 1')}" "$URL/v1/leases" | jq .id)
see
curl -s -o /dev/null -X DELETE "$URL/v1/leases/$lease"
swapped=$(curl -s "$URL/v1/sequences?state=swapped" | jq '.items[0].id')
append "$swapped" 1
see
for i in "${!seen[@]}"; do
    expect "the tables at epoch ${seen[i]%%$'\n'*}, of which some are swapped out" "${held[i]}" "$(past "${seen[i]%%$'\n'*}")"
done
expect 'some were' true "$(jq 'any(.[]; .blocks == [])' <<<"${held[1]}")"
stop_daemon

# ---- why it waits: a sequence of a workload has the pool, and the next one wants it; calls on one sequence follow each other
start_daemon --config config/tiny.jsonc --set pool.blocks=20000 --set scheduler.step_us_max=2000
curl -s -o /dev/null --json '{"id":30}' "$URL/v1/sequences"
tensors sequences I64 1 30 indptr I64 2 0,16384 k F32 16384,1,8 131072*0.5 v F32 16384,1,8 131072*0.25 | post /v1/append >/dev/null
curl -s -o /dev/null --json '{"sequences":[{"count":50,"prompt":1,"decode":47000}]}' "$URL/v1/workloads"
curl -s -o /dev/null --json '{"trace":[{"arrival_s":5000,"prompt":1,"decode":1}]}' "$URL/v1/workloads"
waits() { curl -s "$URL/v1/waiting" | jq -r "[.items[] | select($1)][0] | $2"; }
runs() { [ "$(waits '.workload == 1' .reason)" = blocks ]; }
eventually runs
expect 'the sequence of a workload that has no blocks' 'workload 49 true null' "$(waits '.workload == 1' '"\(.kind) \(.sequence_count) \(.needed > .free) \(.behind)"')"
expect 'one that is not due' 'arrival 1' "$(waits '.workload == 2' '"\(.reason) \(.sequence_count)"')"
expect 'when it is due is known' true "$(waits '.workload == 2' '.estimate_s > 4000 and .estimate_s < 5000')"
has_an_end() { [ "$(waits '.workload == 1' '.estimate_s > 0')" = true ]; }
eventually has_an_end # once tokens have been decoded there is a time of one
echo 'ok when the first sequence that runs is at its end is estimated'
expect 'everything that waits is counted' '2 0 true' "$(curl -s "$URL/v1/waiting" | jq -r '"\(.count) \(.others) \([.items[].since_s >= 0] | all)"')"
tensors sequences I64 1 30 indptr I64 2 0,16384 q F32 16384,1,8 131072*1 >"$WORK/q"
calls=()
for n in 1 2 3 4; do
    curl -s -o /dev/null -H "X-Request-Id: call-$n" -H 'Content-Type: application/x-safetensors' --data-binary @"$WORK/q" "$URL/v1/attend" &
    calls+=($!)
done
behind() { [ "$(waits '.reason == "sequence"' .kind)" = attend ]; }
eventually behind
curl -s "$URL/v1/waiting" | jq -c '[.items[] | select(.reason == "sequence")][0]' >"$WORK/wait"
expect 'a call behind another one says so' 'true [30] sequence 30 behind another call on sequence 30' \
    "$(jq -r '"\(.request | test("^call-[1-4]$")) \(.sequences) \(.behind.kind) \(.behind.id) \(.detail)"' "$WORK/wait")"
wait "${calls[@]}"
waited() { curl -s "$URL/metrics" | sed -n 's/^attnd_workload_wait_seconds //p'; }
expect 'a metric has how long the longest has' true "$(waited | jq '. > 0')"
curl -s -o /dev/null -X DELETE "$URL/v1/workloads/1"
curl -s -o /dev/null -X DELETE "$URL/v1/workloads/2"
expect 'then nothing waits' '0 0' "$(curl -s "$URL/v1/waiting" | jq .count) $(waited)"
stop_daemon
expect 'the daemon ends cleanly' 0 $?
finish
