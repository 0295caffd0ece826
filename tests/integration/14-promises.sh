#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the daemon promises its clients and what they tell it: blocks kept for max_tokens, priorities, deadlines,
# calls that nobody waits for any more, sequences that nobody uses, model constants, draining.
. tests/integration/lib.sh
call() { curl -s --json "$2" "$URL$1"; }
problem() { jq -r '"\(.status) \(.code)"'; }
zeros() { jq -nc "[range($1) | [[range(8) | 0]]]"; }
append() { # ID ROWS
    call /v1/append "{\"layer\":0,\"sequences\":[$1],\"indptr\":[0,$2],\"k\":$(zeros "$2"),\"v\":$(zeros "$2")}"
}

# Blocks of 4 tokens, 16 of them.
start_daemon --config config/tiny.jsonc --set pool.blocks=16
expect 'ten blocks are kept' 201 "$(curl -s -o /dev/null -w '%{http_code}' --json '{"id":1,"max_tokens":40,"priority":-3}' "$URL/v1/sequences")"
expect 'and shown as such (bug: nowhere)' '10 10 1' "$(curl -s "$URL/stats" | jq .pool.promised) $(curl -s "$URL/metrics" | sed -n 's/^attnd_blocks_promised //p') $(
    "$(dirname "$ATTND")/attnctl" --url "$URL" stats | grep -c '^  blocks .*; 10 promised$')"
expect 'they show' '40 -3' "$(curl -s "$URL/v1/sequences/1" | jq -r '"\(.max_tokens) \(.priority)"')"
expect 'none of them is held yet' 16 "$(curl -s "$URL/stats" | jq .pool.free)"
expect 'eight more cannot be promised' \
    'max_tokens needs 8 blocks more, and 6 are free or reclaimable and promised to nobody' \
    "$(call /v1/sequences '{"id":2,"max_tokens":32}' | jq -r .detail)"
expect 'more than the pool is never possible' \
    '422 max_tokens 65 are 17 blocks of 4 tokens; the pool has 16, and limits.sequence_tokens is 131072' \
    "$(call /v1/sequences '{"max_tokens":65}' | jq -r '"\(.status) \(.detail)"')"
call /v1/sequences '{"id":3}' >/dev/null
expect 'who declared nothing may have the other six' 24 "$(append 3 24 | jq '.sequences[0].length')"
expect 'and not a seventh' '503 blocks_exhausted' "$(append 3 1 | problem)"
expect 'both refusals are counted' '2 2' "$(curl -s "$URL/metrics" | sed -n 's/^attnd_alloc_failures_total //p') $(curl -s "$URL/stats" | jq .counters.alloc_failures)"
expect 'who declared has its ten' 40 "$(append 1 40 | jq '.sequences[0].length')"
expect 'and no more' 'sequence 1 would have 41 tokens; it declared max_tokens 40' "$(append 1 1 | jq -r .detail)"
curl -s -X DELETE "$URL/v1/sequences/1"
expect 'deleted: they are anybody'"'"'s' 32 "$(append 3 8 | jq '.sequences[0].length')"
curl -s -X DELETE "$URL/v1/sequences/3"
call /v1/sequences '{"id":4,"max_tokens":16}' >/dev/null
append 4 6 >/dev/null
expect 'forks need what they may grow to, and a copy' \
    'max_tokens needs 16 blocks more, and 12 are free or reclaimable and promised to nobody' \
    "$(call /v1/sequences/4/fork '{"count":5}' | jq -r .detail)"
expect 'three fit' 3 "$(call /v1/sequences/4/fork '{"ids":[5,6,7]}' | jq '.sequences | length')"
for id in 5 6 7 4; do append $id 10 >"$WORK/o.$id"; done
expect 'all of them grow to their end' '16 16 16 16' "$(cat "$WORK"/o.* | jq -r '.sequences[0].length' | paste -sd' ')"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
expect 'a workload has what is not promised' finished \
    "$(for id in 4 5 6 7; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
       call /v1/sequences '{"id":8,"max_tokens":20}' >/dev/null
       curl -s -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":6,"prompt":10,"decode":10}],"verify":{"rows":4}}' "$URL/v1/workloads" |
           tail -n 1 | jq -r .state)"
expect 'and never takes what is' true \
    "$(curl -s -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":6,"prompt":10,"decode":10}]}' "$URL/v1/workloads" |
        tail -n 1 | jq '.pool.held_peak <= 11')"

curl -s -X DELETE "$URL/v1/sequences/8"

# What goes wrong when promises are not counted again: each of these once did.
call /v1/sequences '{"id":30,"max_tokens":24}' >/dev/null
append 30 24 >/dev/null
call /v1/sequences/30/fork '{"ids":[31,32,33]}' >/dev/null
call /v1/sequences/31/truncate '{"length":0}' >/dev/null
expect 'truncating what is shared needs blocks that are there' '503 blocks_exhausted' \
    "$(call /v1/sequences/32/truncate '{"length":0}' | problem)"
expect 'and does nothing then' 24 "$(curl -s "$URL/v1/sequences/32" | jq .length)"
expect 'the first one has its blocks' 24 "$(append 31 24 | jq '.sequences[0].length')"
for id in 30 31 32 33; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
call /v1/sequences '{"id":34,"max_tokens":6}' >/dev/null
append 34 5 >/dev/null
call /v1/sequences/34/fork '{"ids":[35]}' >/dev/null
curl -s -X DELETE "$URL/v1/sequences/35"
call /v1/sequences '{"id":36}' >/dev/null
expect 'who stops sharing leaves no promise behind' 56 "$(append 36 56 | jq '.sequences[0].length')"
expect 'and takes none away' 6 "$(append 34 1 | jq '.sequences[0].length')"
for id in 34 36; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
known='"token_ids":[1,2,3,4,5,6,7,8]'
call /v1/sequences '{"id":37,"max_tokens":8}' >/dev/null
call /v1/append "{\"sequences\":[37],\"indptr\":[0,8],\"k\":$(zeros 8),\"v\":$(zeros 8),$known}" >/dev/null
call /v1/sequences/37/truncate '{"length":6}' >/dev/null
expect 'another one finds what was cut off' 8 "$(call /v1/sequences '{"id":38,"tokens":[1,2,3,4,5,6,7,8]}' | jq .cached_tokens)"
call /v1/sequences '{"id":39}' >/dev/null
expect 'the copy that this takes is kept for the first' '52 503' \
    "$(echo "$(append 39 52 | jq '.sequences[0].length')" "$(append 39 4 | jq .status)")"
expect 'which has it' 8 "$(append 37 2 | jq '.sequences[0].length')"
for id in 37 38 39; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
curl -s -X POST "$URL/v1/trim" >/dev/null
call /v1/sequences '{"id":8,"max_tokens":20}' >/dev/null

# A call on a sequence that declared and one that did not took the blocks of the promise for the second one.
curl -s -X DELETE "$URL/v1/sequences/8"
call /v1/sequences '{"id":40,"max_tokens":40}' >/dev/null
call /v1/sequences '{"id":41}' >/dev/null
expect 'together with one that declared one gets no more than alone' '503 7 28' \
    "$(call /v1/append "{\"sequences\":[40,41],\"indptr\":[0,1,30],\"k\":$(zeros 30),\"v\":$(zeros 30)}" | jq .status) $(
       call /v1/append "{\"sequences\":[40,41],\"indptr\":[0,4,28],\"k\":$(zeros 28),\"v\":$(zeros 28)}" | jq '.sequences[1].length / 4 + 1') $(
       append 40 24 | jq '.sequences[0].length')"
expect 'and the promise is kept to its end' 40 "$(append 40 12 | jq '.sequences[0].length')"
for id in 40 41; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
call /v1/sequences '{"id":8,"max_tokens":20}' >/dev/null

# A page of blocks as columns, and only what is wanted of them.
append 8 6 >/dev/null
expect 'columns' '{"block":[0,1],"fill":[4,2],"next":2}' \
    "$(curl -s "$URL/v1/blocks?format=columns&fields=fill,block&limit=2" | jq -c 'del(.epoch)')"
expect 'only held ones' '[0,1]' "$(curl -s "$URL/v1/blocks?state=held&format=columns" | jq -c .block)"
expect 'Link keeps the question' '</v1/blocks?cursor=3&limit=1&state=free&fields=block&format=columns>; rel="next"' \
    "$(curl -s -o /dev/null -w '%header{link}' "$URL/v1/blocks?state=free&fields=block&format=columns&limit=1")"
expect 'a list of fields that does not end' 422 "$(curl -s "$URL/v1/blocks?fields=block," | jq .status)"
expect 'an unknown field' 422 "$(curl -s "$URL/v1/blocks?fields=color" | jq .status)"
expect 'sequences by state' '[[8],[]]' \
    "$(for state in idle queued; do curl -s "$URL/v1/sequences?state=$state" | jq -c '[.items[].id]'; done | jq -sc .)"
expect 'the kernels are what they were at the start' true "$(curl -s -X POST "$URL/v1/selftest" | jq .ok)"
stop_daemon
expect 'it ends cleanly' 0 $?

# Rows wait for company until something is to change blocks, so there is a queue to look at.
start_daemon --config config/tiny.jsonc --set scheduler.batch_window_us=600000000 --set limits.idle_timeout_s=2 \
    --set limits.header_timeout_s=3600
one='"k":[[[1,1,1,1,1,1,1,1]]],"v":[[[1,1,1,1,1,1,1,1]]]'
for id in 1 2 3 4; do call /v1/sequences "{\"id\":$id,\"idle_timeout_s\":0}" >/dev/null; done
call /v1/sequences '{"id":5}' >/dev/null
curl -s -H 'X-Request-Timeout-Ms: 100' --json "{\"sequences\":[1],$one}" "$URL/v1/append" >"$WORK/late" &
late=$!
is_queued_or_late() { are_queued '[1]' || [ -s "$WORK/late" ]; } # on a slow machine it is late before anybody looks (bug: it waited for ever)
eventually is_queued_or_late
sleep 0.2 # at least: its deadline has passed then
flush 1
wait $late
expect 'a deadline passes in the queue' '504 deadline' "$(problem <"$WORK/late")"
expect 'a deadline that is none' 400 "$(curl -s -H 'X-Request-Timeout-Ms: soon' "$URL/livez" | jq .status)"
command curl -s --json "{\"sequences\":[1],$one}" "$URL/v1/append" >/dev/null &
leaving=$!
eventually are_queued '[1]'
kill -9 $leaving
wait $leaving 2>/dev/null
eventually is_alone
flush 1
expect 'a client goes away while its call waits: it is dropped' 0 "$(eventually are_queued '[]'; echo $?)"
call /v1/append "{\"sequences\":[2],$one}" >"$WORK/deleted" &
waiting=$!
expect 'it waits' 0 "$(eventually are_queued '[2]'; echo $?)"
curl -s -X DELETE "$URL/v1/sequences/2"
wait $waiting
expect 'a delete ends the calls that wait' '410 gone sequence 2 was deleted before the call ran' \
    "$(jq -r '"\(.status) \(.code) \(.detail)"' "$WORK/deleted")"
for id in 3 4; do call /v1/attend "{\"sequences\":[$id],$one,\"q\":[[[0,0,0,0,0,0,0,0]]]}" >"$WORK/step.$id" & pids[id]=$!; done
eventually are_queued '[3,4]'
flush 3
wait "${pids[@]}"
expect 'two calls keep each other company' '2 2' "$(cat "$WORK"/step.* | jq .rows_in_step | paste -sd' ')"
expect 'neither the late call nor the abandoned one was run' 0 "$(curl -s "$URL/v1/sequences/1" | jq .length)"
is_removed() { [ "$(curl -s "$URL/v1/sequences/$1" | jq .status)" != null ]; }
eventually is_removed 5
expect 'the log says so, as an event' 1 "$(grep -c 'sequence 5 was not used for [0-9]* s and is removed' "$WORK/log")"
expect 'an unused sequence is removed' '410 gone' "$(curl -s "$URL/v1/sequences/5" | problem)"
expect 'which says why' 'sequence 5 was not used for N s (its idle_timeout_s) and was removed N s ago' \
    "$(curl -s "$URL/v1/sequences/5" | jq -r .detail | sed 's/ [0-9]* s / N s /g')"
for _ in 1 2; do call /v1/sequences '{"idle_timeout_s":2}' | jq .id; done >"$WORK/ids"
expect 'its id is not given to somebody else' false "$(jq -s 'any(. == 5)' "$WORK/ids")"
while read -r id; do eventually is_removed "$id"; done <"$WORK/ids"
expect 'those that are to stay do' '[1,3,4]' "$(curl -s "$URL/v1/sequences" | jq -c '[.items[].id] | sort')"
expect 'its id can be used again' 201 "$(curl -s -o /dev/null -w '%{http_code}' --json '{"id":5}' "$URL/v1/sequences")"

# What is asked with a higher priority goes first, but never before an earlier call on the same sequence.
call /v1/sequences '{"id":21,"priority":1,"idle_timeout_s":0}' >/dev/null
call /v1/append "{\"sequences\":[3],\"positions\":[1],$one}" >"$WORK/earlier" &
pids[1]=$!
eventually are_queued '[3]'
call /v1/append "{\"sequences\":[3,21],\"positions\":[2,0],\"k\":$(zeros 2),\"v\":$(zeros 2)}" >"$WORK/later" &
pids[2]=$!
eventually are_queued '[3,21]'
flush 3
wait "${pids[1]}" "${pids[2]}"
expect 'the later one of the same sequence waits' '3 1' "$(jq -r '[.sequences[].length] | "\(.[0]) \(.[1])"' "$WORK/later")"
expect 'a drain that is refused is one line' '1 422' \
    "$(call /v1/drain '{"deadline_s":0}' >"$WORK/drain"; echo "$(wc -l <"$WORK/drain") $(jq .status "$WORK/drain")")"
call /v1/append "{\"sequences\":[3],$one}" >"$WORK/last" &
last=$!
eventually are_queued '[3]'
exec 3<>"/dev/tcp/127.0.0.1/$PORT" # begun before the drain, and finished after it: what was queued is run for it
printf 'POST /v1/sequences/3/truncate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n' >&3
caught_up
expect 'drain: what is under way is finished' '202 draining 3600' \
    "$(curl -s -o "$WORK/drain" -w '%{http_code}' --json '{"deadline_s":3600}' "$URL/v1/drain") $(jq -r '"\(.status) \(.deadline_s)"' "$WORK/drain")"
printf 'Content-Length: 21\r\n\r\n{"length":4000000000}' >&3
wait $last
expect 'the call that waited has its answer' 4 "$(jq '.sequences[0].length' "$WORK/last")"
wait "$DAEMON"
expect 'then it ends' 0 $?
DAEMON=
exec 3>&-

# Two sequences that declared what they take, in one step.
start_daemon --config config/tiny.jsonc --set scheduler.batch_window_us=600000000 --set pool.blocks=10 --set geometry.layers=256
for id in 1 2; do call /v1/sequences "{\"id\":$id,\"max_tokens\":20}" >/dev/null; done
for id in 1 2; do append $id 20 >"$WORK/both.$id" & pids[id]=$!; done
eventually are_queued '[1,2]'
flush 1
wait "${pids[1]}" "${pids[2]}"
expect 'both get it' '20 20' "$(cat "$WORK"/both.* | jq '.sequences[0].lengths[0]' | paste -sd' ')"
n=1000
expect 'an answer that would not fit is refused before anything is appended' \
    '1000 sequences of 256 layers are too many for one answer' \
    "$(tensors sequences I64 $n "$(seq -s, 3 $((n + 2)))" k F32 $n,1,8 "$((n * 8))*1" v F32 $n,1,8 "$((n * 8))*1" | post '/v1/append?layer=0' | jq -r .detail)"
expect 'chunks beyond 1 MiB want a length' 411 \
    "$(head -c 1100000 /dev/zero | curl -s -o /dev/null -w '%{http_code}' -H 'Transfer-Encoding: chunked' -H 'Content-Type: application/x-safetensors' --data-binary @- "$URL/v1/append")"
stop_daemon
expect 'it ends cleanly' 0 $?

# One block is left, and two calls want it.
start_daemon --config config/tiny.jsonc --set scheduler.batch_window_us=600000000 --set pool.blocks=1
call /v1/sequences '{"id":1}' >/dev/null
call /v1/sequences '{"id":2,"priority":7}' >/dev/null
call /v1/append "{\"sequences\":[1],$one}" >"$WORK/first" &
pids[1]=$!
eventually are_queued '[1]'
call /v1/append "{\"sequences\":[2],$one}" >"$WORK/second" &
pids[2]=$!
eventually are_queued '[1,2]'
flush 1
wait "${pids[1]}" "${pids[2]}"
expect 'the one of higher priority gets it, though it came later' 1 "$(jq '.sequences[0].length' "$WORK/second")"
expect 'the other one does not' '503 blocks_exhausted' "$(problem <"$WORK/first")"
stop_daemon
expect 'it ends cleanly' 0 $?

# Model constants from outside, before anything is appended.
start_daemon --config config/tiny.jsonc
put() { curl -s -w '%{http_code}' -X PUT -H 'Content-Type: application/x-safetensors' --data-binary @- "$URL/v1/parameters"; }
expect 'sinks and slopes' 204 "$(tensors sinks F32 1,1 0 alibi_slopes F32 1 0.5 | put)"
expect 'they show' '[true,true]' "$(curl -s "$URL/v1/info" | jq -c '[.geometry.sinks,.geometry.alibi]')"
call /v1/sequences '{"id":1}' >/dev/null
expect 'a sink of 0 halves the only value' '[[[0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5]]]' \
    "$(call /v1/attend "{\"sequences\":[1],$one,\"q\":[[[0,0,0,0,0,0,0,0]]]}" | jq -c .o)"
expect 'fixed from then on' 409 "$(tensors sinks F32 1,1 1 | put | head -c 500 | jq -r .status 2>/dev/null | head -n 1)"
expect 'a wrong shape' '/sinks: wants F32 [1, 1], has F32 [2]' "$(tensors sinks F32 2 1,1 | put | jq -r .detail 2>/dev/null | head -n 1)"
expect 'scales of what is not fp8' '/k_scale: only fp8 has scales' "$(tensors k_scale F32 1,1 1 | put | jq -r .detail 2>/dev/null | head -n 1)"
stop_daemon
expect 'it ends cleanly' 0 $?

# A client that leaves before the answer to its parameters: /v1/info shows what the engine computes with (bug: it showed what had
# been answered). Before them the engine has to attend, and nothing is appended, so the client is gone when it gets to them.
start_daemon --config config/tiny.jsonc --set geometry.block_size=256 --set pool.blocks=600
send() { # METHOD PATH - the tensors on standard input
    cat >"$WORK/body"
    printf '%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-safetensors\r\nContent-Length: %d\r\n\r\n' \
        "$1" "$2" "$(wc -c <"$WORK/body")"
    cat "$WORK/body"
}
has_sinks() { [ "$(curl -s "$URL/v1/info" | jq .geometry.sinks)" = true ]; }
call /v1/leases '{"id":1,"blocks":512}' >/dev/null
exec 3<>"/dev/tcp/127.0.0.1/$PORT" 4<>"/dev/tcp/127.0.0.1/$PORT"
tensors q F32 2000,1,8 '16000*1' indptr I64 2 0,2000 block_tables I64 1,512 "$(seq -s, 0 511)" context_lens I64 1 131072 |
    send POST '/v1/paged?lease=1' >&3
caught_up
tensors sinks F32 1,1 0 | send PUT /v1/parameters >&4
exec 4>&-
expect 'its sinks show' 0 "$(eventually has_sinks; echo $?)"
call /v1/sequences '{"id":2}' >/dev/null
expect 'and halve the only value' '[[[0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5]]]' \
    "$(call /v1/attend "{\"sequences\":[2],$one,\"q\":[[[0,0,0,0,0,0,0,0]]]}" | jq -c .o)"
exec 3>&-
stop_daemon
expect 'it ends cleanly' 0 $?
finish
