#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pool.file_blocks: what host memory has no room for goes to a file, and comes back with the same bits; what the file does not give back is
# never served.
. tests/integration/small.sh
folder=$WORK/state
mkdir -m 700 "$folder"
small=("${geometry[@]}" --set limits.sequence_tokens=32 --set pool.blocks=8)
begin() { start_daemon "${small[@]}" --state-dir "$folder" --set pool.host_blocks=9 --set pool.file_blocks=60 "$@"; }
look_at_all() { for id in "$@"; do look "$id"; done; }
# What a daemon with room for all of them answers.
start_daemon "${geometry[@]}" --set pool.blocks=100
for id in 1 2 3 4 5 6 7 8 9 10 11 12; do call /v1/sequences "{\"id\":$id}" >/dev/null && append "$id" "$id" 15 >/dev/null; done
wanted=$(look_at_all 1 2 3 4 5 6 7 8 9 10 11 12)
stop_daemon
expect 'a daemon with room ends cleanly' 0 $?

begin
for id in 1 2 3 4 5 6 7 8 9 10 11 12; do call /v1/sequences "{\"id\":$id}" >/dev/null && append "$id" "$id" 15 >/dev/null; done
expect 'of 48 blocks the pool has 8, and the host 60' '8 60' "$(stat .pool.blocks) $(stat .pool.host_blocks)"
expect 'nine of which memory has room for' '9' "$(stat .pool.file.memory_blocks)"
expect 'some have been written to the file' true "$(stat '.pool.file.writes > 0')"
expect 'all of them answer with the same bits' "$wanted" "$(look_at_all 1 2 3 4 5 6 7 8 9 10 11 12)"
expect 'some were read back for that' true "$(stat '.pool.file.reads > 0')"
expect 'in any order' "$(echo "$wanted" | tac)" "$(look_at_all 12 11 10 9 8 7 6 5 4 3 2 1)"
pids=()
for id in 1 2 3 4 5 6 7 8 9 10 11 12; do
    look "$id" >"$WORK/seen.$id" &
    pids+=($!)
done
wait "${pids[@]}"
expect 'and all at once' "$wanted" "$(cat "$WORK"/seen.{1,2,3,4,5,6,7,8,9,10,11,12})"
expect 'a sequence that is there goes on' '16 17' "$(append 1 30 1) $(append 1 31 1)"
expect 'or is forked' 1 "$(call /v1/sequences/2/fork '{}' | jq '.sequences | length')"
expect 'what it holds is exported' 200 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/sequences/3/kv?range=0:15")"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
expect 'the metrics count' yes "$(curl -s "$URL/metrics" | awk '/^attnd_swap_file_(reads|writes)_total/ {n += $2 > 0} END {print n == 2 ? "yes" : "no"}')"
expect 'the file has no name, and goes with the daemon' '' "$(find "$folder" -name 'swap*')"

# ---- the end saves what is in the file, too
curl -s -X DELETE "$URL/v1/sequences/1" >/dev/null
wanted=$(look_at_all 2 3 4 5 6 7 8 9 10 11 12)
stop_daemon
expect 'it ends cleanly' 0 $?
begin
expect 'and the next one has all of them' "$wanted" "$(look_at_all 2 3 4 5 6 7 8 9 10 11 12)"

# ---- damage: the file is overwritten
file=$(find "/proc/$DAEMON/fd" -lname "$folder/swap (deleted)")
head -c $((60 * 512)) /dev/zero | tr '\0' '\7' | dd of="$file" conv=notrunc status=none
answers=$(look_at_all 2 3 4 5 6 7 8 9 10 11 12)
expect 'whoever was in memory is as before, whoever was not is refused' yes "$(paste -d'|' <(echo "$wanted") <(echo "$answers") |
    awk -F'|' '$1 == $2 {same++; next} $2 ~ /were swapped to a file, which does not give them back/ {lost++; next} {other = $2} END {print same && lost && !other ? "yes" : same " " lost " " other}')"
lost=$(for id in 2 3 4 5 6 7 8 9 10 11 12; do call /v1/attend "{\"layer\":1,\"sequences\":[$id],\"q\":[[[1,0,2,0,1,0,0,1],[0,1,0,-1,0,1,0,1]]]}" | jq -r 'select(.code == "content_lost") | .status'; done | sort -u)
expect 'as a failure of ours' 500 "$lost"
expect 'the log says why' yes "$(grep -q 'cannot be read back: it has other bytes than were written' "$WORK/log" && echo yes)"
expect 'the books balance all the same' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
for id in $(curl -s "$URL/v1/sequences" | jq '.items[].id'); do curl -s -X DELETE "$URL/v1/sequences/$id"; done
expect 'they can be deleted, and all is given back' '[8,60]' "$(stat '[.pool.free, .pool.host_free]')"
call /v1/sequences '{"id":40}' >/dev/null
expect 'what comes later is not touched by that' "15 $(append 40 2 15 >/dev/null; look 40)" "$(curl -s "$URL/v1/sequences/40" | jq .length) $(echo "$wanted" | head -1)"
stop_daemon
expect 'it ends cleanly, too' 0 $?

# ---- what is refused
refusal() { "$ATTND" --check-config "${small[@]}" "$@" 2>&1 | sed 's/^attnd: --set [^:]*: //' | tail -1; }
expect 'a file without a folder' 'pool.file_blocks: the file is in state.dir, which is not set' "$(refusal --set pool.host_blocks=9 --set pool.file_blocks=60)"
expect 'host memory that is too small for a sequence' \
    'pool.host_blocks: with pool.file_blocks wants 9 at least, those of the longest sequence (limits.sequence_tokens)' \
    "$(refusal --state-dir "$folder" --set pool.host_blocks=8 --set pool.file_blocks=60)"
expect 'or may be, when the pool is as large as it turns out (bug: such a sequence never came in)' \
    'pool.host_blocks: with pool.file_blocks wants 9 at least, those of the longest sequence (limits.sequence_tokens)' \
    "$(refusal --state-dir "$folder" --set pool.blocks=2 --set pool.memory=0.01 --set pool.host_blocks=5 --set pool.file_blocks=60)"
expect 'a file that is no larger than host memory' 'pool.file_blocks: wants more than pool.host_blocks (9), which hold as many without a file' \
    "$(refusal --state-dir "$folder" --set pool.host_blocks=9 --set pool.file_blocks=9)"
large=(--set geometry.layers=64 --set geometry.kv_heads=64 --set geometry.query_heads=64 --set geometry.head_dim=256 --set geometry.block_size=256)
expect 'a file for which the disk has no room: 69' '69 pool.file_blocks: state.dir has no room' "$(
    "$ATTND" --set listen=127.0.0.1:0 "${large[@]}" --set pool.blocks=1 --set limits.sequence_tokens=256 --state-dir "$folder" \
        --set pool.host_blocks=2 --set pool.file_blocks=1000000 2>"$WORK/log"
    echo $? "$(sed -n 's/^attnd: \(pool.file_blocks: state.dir has no room\).*/\1/p' "$WORK/log")"
)"
finish
