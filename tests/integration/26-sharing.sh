#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether queries read K and V together is said by each workload, and scheduler.sharing is for all that say nothing. Workloads of one
# daemon, one after the other and at the same time, read more or less and have the same outputs, bit by bit.
. tests/integration/lib.sh
geometry=(--set geometry.layers=2 --set geometry.query_heads=4 --set geometry.kv_heads=2 --set geometry.head_dim=16
    --set geometry.block_size=4 --set 'geometry.window=[0,20]' --set pool.blocks=40000)
# Eight sequences of which 560 tokens are the same: reading them together saves most of the bytes.
family='{"seed":2,"sequences":[{"count":8,"prompt":600,"decode":200,"prefix":{"id":1,"length":560}}],"verify":{"rows":8}}'
says() { jq -c --arg s "$1" '.sharing = $s' <<<"$family"; }
run() { curl -sN -H 'Accept: application/x-ndjson' --json "$1" "$URL/v1/workloads" | tail -n 1; }
# holds REPORT FILTER - a filter of a report as $r, beside $on and $off of the two workloads that said so.
holds() { jq -nc --argjson on "$on" --argjson off "$off" --argjson r "$1" "$2"; }

start_daemon "${geometry[@]}" --set scheduler.sharing=off
on=$(run "$(says on)") off=$(run "$(says off)") auto=$(run "$(says auto)") silent=$(run "$family")
expect 'reports show it' 'on off auto off' "$(jq -r .sharing <<<"$on$off$auto$silent" | xargs)"
expect 'alone the same outputs for more bytes' '[true,true]' "$(holds "$off" '[$r.digest == $on.digest, $r.bytes_read > 1.2 * $on.bytes_read]')"
expect 'auto: the same outputs, no more bytes than alone' '[true,true]' \
    "$(holds "$auto" '[$r.digest == $on.digest, $r.bytes_read <= 1.05 * $off.bytes_read]')"
expect 'who says nothing is like scheduler.sharing' '[true,true]' \
    "$(holds "$silent" '[$r.digest == $on.digest, $r.bytes_read > 1.2 * $on.bytes_read]')"
expect 'all are right' 'true true true true' "$(jq -r .verify.ok <<<"$on$off$auto$silent" | xargs)"

# At the same time: rounds hold queries of all of them.
clients=()
for s in on off auto; do
    run "$(says $s)" >"$WORK/$s" &
    clients+=($!)
done
wait "${clients[@]}"
expect 'together: the same outputs' '[true]' "$(jq -sc --argjson on "$on" 'map(.digest == $on.digest) | unique' "$WORK/on" "$WORK/off" "$WORK/auto")"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"

# Traces say it in the query.
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,37,4\n' >"$WORK/t.csv"
trace() { curl -s -H 'Accept: application/x-ndjson' -H 'Content-Type: text/csv' --data-binary "@$WORK/t.csv" "$URL/v1/workloads?$1" | tail -n 1; }
expect 'a trace' 'on off' "$(jq -r .sharing <<<"$(trace sharing=on)$(trace '')" | xargs)"

while IFS='|' read -r name want value; do
    expect "$name" "$want" "$(run "$(jq -c --argjson v "$value" '.sharing = $v' <<<"$family")" | jq -r '"\(.status) \(.detail)"')"
done <<'LIST'
a word that is none|422 /sharing: wants auto, on or off|"maybe"
no word|422 /sharing: wants auto, on or off|""
no text|422 /sharing: wants auto, on or off|true
LIST
expect 'nor in a query' '422 parameter sharing: wants auto, on or off' "$(trace sharing= | jq -r '"\(.status) \(.detail)"')"
stop_daemon
expect 'it ends cleanly' 0 $?

start_daemon "${geometry[@]}" --set scheduler.sharing=on
silent=$(run "$family") off_too=$(run "$(says off)")
expect 'a daemon that shares: who says nothing' '["on",true,true]' \
    "$(holds "$silent" '[$r.sharing, $r.digest == $on.digest, 1.2 * $r.bytes_read < $off.bytes_read]')"
expect 'and who reads alone' '["off",true,true]' \
    "$(holds "$off_too" '[$r.sharing, $r.digest == $on.digest, $r.bytes_read > 1.2 * $on.bytes_read]')"
stop_daemon
finish
