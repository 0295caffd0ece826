#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# When the pool is full, idle sequences are swapped to host memory and come back when they are called: their outputs keep their
# bits. Who declared max_tokens, is waited for, or has a higher priority stays.
. tests/integration/small.sh
state() { curl -s "$URL/v1/sequences/$1" | jq -c '[.state, (.blocks | length), (.host_blocks // [] | length)]'; }

start_daemon "${geometry[@]}" --set pool.blocks=8 --set pool.host_blocks=12 --set limits.sequences=12
for id in 1 2 3 4; do call /v1/sequences "{\"id\":$id}" >/dev/null; done
expect 'a first sequence' 14 "$(append 1 10 14)"
expect 'a second one: the pool is full' '16 0' "$(append 2 50 16) $(stat .pool.free)"
one=$(look 1) two=$(look 2)
expect 'a third one has room' 5 "$(append 3 90 5)"
expect 'since the later of the two is on the host' '["idle",4,0] ["swapped",0,4]' "$(state 1) $(state 2)"
expect 'it has its length there' '16' "$(curl -s "$URL/v1/sequences/2" | jq .length)"
expect 'and a table of host blocks' '[0,4] [1,4] [2,4] [3,4]' \
    "$(curl -s "$URL/v1/sequences/2/blocks" | jq -c 'sort_by(.host_block)[] | [.host_block, .fill]' | tr '\n' ' ' | sed 's/ $//')"
expect 'the figures say so' '{"host_blocks":12,"host_free":8} {"swaps_out":1,"swaps_in":0} 1' \
    "$(stat '.pool | {host_blocks, host_free}') $(stat '.counters | {swaps_out, swaps_in}') $(stat .scheduler.swapped)"
expect 'a list of those that are swapped' '[2]' "$(curl -s "$URL/v1/sequences?state=swapped" | jq -c '[.items[].id]')"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
expect 'it comes back with the same bits' "$two" "$(look 2)"
expect 'and the one went that moves least' '["idle",4,0] ["idle",4,0] ["swapped",0,2]' "$(state 1) $(state 2) $(state 3)"
expect 'the first one is as it was' "$one" "$(look 1)"
expect 'a swapped sequence goes on' '17 21' "$(append 2 66 1) $(append 2 67 4)"
expect 'it is forked' 2 "$(append 4 5 2 >/dev/null; append 1 24 2 >/dev/null; call /v1/sequences/2/fork '{"count":2}' | jq '.sequences | length')"
expect 'truncated on the host' '["swapped",0,4] 6' \
    "$(look 2 >/dev/null; state 1) $(call /v1/sequences/1/truncate '{"length":6}' | jq .length)"
expect 'and deleted there' 204 "$(append 2 80 8 >/dev/null; curl -s -o /dev/null -w '%{http_code}' -X DELETE "$URL/v1/sequences/1")"
expect 'the books balance still' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
for id in 2 3 4 5 6; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
expect 'all is given back' '[8,12]' "$(stat '[.pool.free, .pool.host_free]')"

# Who may be moved: the lowest priority first, none above the asker's, none that declared its length.
call /v1/sequences '{"id":11,"priority":5}' >/dev/null
call /v1/sequences '{"id":12}' >/dev/null
call /v1/sequences '{"id":13,"max_tokens":8}' >/dev/null
call /v1/sequences '{"id":14,"priority":-1}' >/dev/null
append 11 1 12 >/dev/null
append 12 1 8 >/dev/null
append 13 1 8 >/dev/null
expect 'four sequences, and the pool is full' '4 0' "$(append 14 1 4) $(stat .pool.free)"
expect 'the lowest priority goes, though another one would be enough' '16 ["swapped",0,1]' "$(append 11 13 4) $(state 14)"
expect 'it may not push out those above' '503 needs 1 block of 8; 0 free, 0 reclaimable; too few idle sequences can be swapped out (11 host blocks free)' \
    "$(call /v1/attend '{"layer":0,"sequences":[14],"q":[[[1,0,0,0,0,0,0,0],[1,0,0,0,0,0,0,0]]]}' | problem)"
expect 'and it is whole where it is' '["swapped",0,1]' "$(state 14)"
expect 'the others stay where they are' '["idle",4,0] ["idle",2,0] ["idle",2,0]' "$(state 11) $(state 12) $(state 13)"
for id in 11 12 13 14; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
expect 'nothing is left' '[8,12]' "$(stat '[.pool.free, .pool.host_free]')"

# Blocks that were shared with one on the host, and whose last holder here has gone, follow it when room is needed.
call /v1/sequences '{"id":21}' >/dev/null
append 21 1 12 >/dev/null
call /v1/sequences/21/fork '{"ids":[22]}' >/dev/null
append 22 13 1 >/dev/null
fork=$(look 22)
call /v1/sequences '{"id":23,"max_tokens":16}' >/dev/null
append 23 1 16 >/dev/null
expect 'a fork goes, what it shares stays' '13 ["swapped",0,4] 0' "$(append 21 13 1) $(state 22) $(stat .pool.free)"
for id in 21 23; do curl -s -X DELETE "$URL/v1/sequences/$id"; done
expect 'three blocks belong to nobody else now' '[5,3]' "$(stat '[.pool.free, .pool.held]')"
call /v1/sequences '{"id":24}' >/dev/null
expect 'and go when all are needed' '30 [0,8]' "$(append 24 1 30) $(stat '[.pool.free, .pool.held]')"
expect 'the fork has its bits' "$fork" "$(look 22)"
for id in 22 24; do curl -s -X DELETE "$URL/v1/sequences/$id"; done

# A call that cannot be served moves nobody.
for id in 31 32 33 34; do call /v1/sequences "{\"id\":$id}" >/dev/null; done
append 31 1 12 >/dev/null
append 32 1 12 >/dev/null
append 33 1 8 >/dev/null
expect 'nothing is moved in vain' '503 [0,12]' \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[31],\"indptr\":[0,24],\"k\":$(rows 1 24),\"v\":$(rows 1 24)}" | jq .status) $(stat '[.scheduler.swapped, .pool.host_free]')"
expect 'nor by a fork that is refused' '422 [0,12]' \
    "$(call /v1/sequences/31/fork '{"length":13}' | jq .status) $(stat '[.scheduler.swapped, .pool.host_free]')"
# A call that is refused leaves a sequence where it is: each of these once brought it in.
append 34 1 24 >/dev/null
swapped=$(for id in 31 32 33; do [ "$(curl -s "$URL/v1/sequences/$id" | jq -r .state)" = swapped ] && echo $id; done | head -n 1)
home=$(state "$swapped")
expect 'one is on the host' '"swapped"' "$(jq -c '.[0]' <<<"$home")"
expect 'a gap moves nobody' "409 $home" \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[$swapped],\"positions\":[30],\"k\":$(rows 1 1),\"v\":$(rows 1 1)}" | jq .status) $(state "$swapped")"
expect 'nor do more rows than it has' "422 $home" \
    "$(call /v1/attend "{\"layer\":0,\"sequences\":[$swapped],\"q\":$(jq -nc '[range(20) | [[range(8) | 0], [range(8) | 0]]]'),\"indptr\":[0,20]}" | jq .status) $(state "$swapped")"
expect 'nor a sequence that is not there' "404 $home" \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[$swapped,99],\"k\":$(rows 1 2),\"v\":$(rows 1 2)}" | jq .status) $(state "$swapped")"
expect 'nor more tokens than the pool has' "422 $home" \
    "$(call /v1/append "{\"layer\":0,\"sequences\":[$swapped],\"indptr\":[0,25],\"k\":$(rows 1 25),\"v\":$(rows 1 25)}" | jq .status) $(state "$swapped")"
expect 'nor forks for which there is no room' "503 $home" \
    "$(call "/v1/sequences/$swapped/fork" '{"count":9}' | jq .status) $(state "$swapped")"
stop_daemon
expect 'it ends cleanly' 0 $?

# Two that do not fit together, called at the same time: the second one runs in the next step.
start_daemon "${geometry[@]}" --set pool.blocks=8 --set pool.host_blocks=12 --set scheduler.batch_window_us=600000000
for id in 1 2; do call /v1/sequences "{\"id\":$id}" >/dev/null; done
for id in 1 2; do
    for layer in 0 1; do
        call /v1/append "{\"layer\":$layer,\"sequences\":[$id],\"indptr\":[0,24],\"k\":$(rows 1 24),\"v\":$(rows $id 24)}" >/dev/null &
        appends=$!
        eventually are_queued "[$id]"
        flush "$id"
        wait $appends
    done
done
for _ in 1 2 3; do
    look 1 >"$WORK/one" &
    looks[1]=$!
    look 2 >"$WORK/two" &
    looks[2]=$!
    eventually are_queued '[1,2]'
    flush 1
    wait "${looks[@]}"
    jq -r type "$WORK/one" "$WORK/two"
done >"$WORK/types"
expect 'both are answered' 'array array array array array array' "$(tr '\n' ' ' <"$WORK/types" | sed 's/ $//')"
stop_daemon
expect 'it ends cleanly' 0 $?

# The same random appends and looks with too few blocks and with plenty: the same outputs, all the way.
random() { # prints what came out
    local i=0 sequence first seed=$1
    for sequence in 1 2 3 4 5 6; do call /v1/sequences "{\"id\":$sequence}" >/dev/null; done
    while [ $((i += 1)) -le 45 ]; do
        seed=$(((seed * 1103515245 + 12345) & 0x7fffffff))
        sequence=$((seed / 65536 % 6 + 1)) first=$((seed / 1024 % 50))
        append $sequence $first $((seed / 4096 % 3 + 1))
        look $((seed / 256 % 6 + 1))
        [ $((i % 15)) != 0 ] || call /v1/sequences/$sequence/truncate '{"length":3}' | jq .length
    done
}
start_daemon "${geometry[@]}" --set pool.blocks=11 --set pool.host_blocks=64
random 7 >"$WORK/scarce"
swaps=$(stat .counters.swaps_in)
expect 'the books balance after many swaps' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
start_daemon "${geometry[@]}" --set pool.blocks=256
random 7 >"$WORK/plenty"
stop_daemon
expect 'sequences came back from the host' true "$([ "$swaps" -gt 10 ] && echo true || echo "$swaps")"
expect 'with plenty of blocks the same comes out' "$(sha256sum <"$WORK/plenty")" "$(sha256sum <"$WORK/scarce")"
finish
