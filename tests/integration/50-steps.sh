#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The latest steps as a table and as a trace, and a workload's table: what they say agrees with what was asked and with each other; by
# owner; who may see them.
. tests/integration/lib.sh
step() { jq -c ".columns | [$1]" "$WORK/steps"; }
table() { jq -c ".table | $1" "$WORK/report"; }
workload() { curl -s -H 'Accept: application/x-ndjson' --json "$1" "$URL/v1/workloads" | tail -n 1 >"$WORK/report"; }

start_daemon --config config/tiny.jsonc --backend cpu
expect 'no steps yet' '0 []' "$(curl -s "$URL/v1/steps" | jq -r '"\(.next) \(.columns.step)"')"
row='[[0,0,0,0,0,0,0,0]]'
curl -s -o /dev/null --json '{"id":7}' "$URL/v1/sequences"
curl -s -o /dev/null --json "{\"sequences\":[7],\"indptr\":[0,3],\"k\":[$row,$row,$row],\"v\":[$row,$row,$row]}" "$URL/v1/append"
curl -s -o /dev/null --json "{\"sequences\":[7],\"q\":[$row],\"k\":[$row],\"v\":[$row]}" "$URL/v1/attend"
curl -s -o /dev/null --json "{\"sequences\":[7],\"indptr\":[0,2],\"q\":[$row,$row]}" "$URL/v1/attend"
curl -s "$URL/v1/steps" >"$WORK/steps"
expect 'rows, tokens, sequences' '[[0,1,2],[3,1,0],[1,1,1],[0,0,0]]' "$(step '.rows_clients, .appends, .sequences, .rows_workloads')"
expect 'bytes: 64 a token, those of both queries read together or not' true "$(jq '.columns.kv_bytes | .[0] == 0 and .[1] == 256 and .[2] >= 256' "$WORK/steps")"
expect 'steps rise and follow each other' true "$(jq '.columns | .step == (.step | sort) and
    ([.begin_s, .end_s] | transpose | all(.[0] <= .[1])) and .begin_s == (.begin_s | sort) and .begin_s[0] >= 0' "$WORK/steps")"
expect 'each waited, was planned and computed' true "$(jq '.columns | [.queue_us, .plan_us, .compute_us, .idle_us] | flatten | all(. >= 0)' "$WORK/steps")"
expect 'what the CPU does not measure is null' '[[null],[null]]' "$(jq -c '.columns | [(.upload_us | unique), (.merge_us | unique)]' "$WORK/steps")"
expect 'no owners without keys' false "$(jq 'has("owners")' "$WORK/steps")"
expect 'the next ones' '3 []' "$(curl -s "$URL/v1/steps?since=$(jq .next "$WORK/steps")" | jq -r '"\(.next) \(.columns.step)"')"
expect 'a page, from the oldest on' '[1,2]' "$(curl -s "$URL/v1/steps?since=0&limit=2" | jq -c .columns.step)"
expect 'the last one' '[3]' "$(curl -s "$URL/v1/steps?limit=1" | jq -c .columns.step)"
expect 'limit has bounds' '422 422 422' "$(for query in limit=0 limit=1001 since=-1; do curl -s "$URL/v1/steps?$query" | jq .status; done | xargs)"

# ---- a fork writes: copied on write
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/7"
curl -s -o /dev/null --json '{"id":8}' "$URL/v1/sequences"
curl -s -o /dev/null --json "{\"sequences\":[8],\"k\":[$row],\"v\":[$row]}" "$URL/v1/append"
curl -s -o /dev/null --json '{"ids":[9]}' "$URL/v1/sequences/8/fork"
curl -s -o /dev/null --json "{\"sequences\":[9],\"k\":[$row],\"v\":[$row]}" "$URL/v1/append"
expect 'a copy' 1 "$(curl -s "$URL/v1/steps?limit=1" | jq -c '.columns.copies[0]')"

# ---- a workload, and its table
workload '{"sequences":[{"count":2,"prompt":6,"decode":3}],"table":100}'
expect 'a round a row: prompts, then a token of each' '[[12,0,0],[0,0,0],[0,2,2],[0,6,7],0]' \
    "$(table '.columns | [.prefill_chunk[:3], .kv_prefill[:3], .n_decode[:3], .kv_decode[:3]] + [(.time_us | map(select(. <= 0)) | length)]')"
expect 'as many rows as rounds' true "$(jq '.table | .left_out == 0 and ([.columns[] | length] | unique == [4])' "$WORK/report")"
expect 'all tokens are in it' '12 6' "$(table '.columns | "\(.prefill_chunk | add) \(.n_decode | add)"' | tr -d '"')"
workload '{"sequences":[{"count":1,"prompt":1,"decode":9}],"table":3}'
expect 'it is bounded' '[3,7]' "$(table '[(.columns.time_us | length), .left_out]')"
expect 'and shown later' '[3,7]' "$(curl -s "$URL/v1/workloads/2" | jq -c '.table | [(.columns.time_us | length), .left_out]')"
expect 'but in no list' false "$(curl -s "$URL/v1/workloads" | jq '[.items[] | has("table")] | any')"
workload '{"sequences":[{"decode":2}]}'
expect 'who does not ask has none' false "$(jq 'has("table")' "$WORK/report")"
expect 'nor more than there may be' '422 422' \
    "$(curl -s --json '{"sequences":[{"decode":2}],"table":4097}' "$URL/v1/workloads" | jq .status) $(
        curl -s -H 'Content-Type: text/csv' --data-binary '2023-11-16 18:15:46.6805900,4,2' "$URL/v1/workloads?table=4097" | jq .status)"
expect 'a trace may ask, too' 3 "$(curl -s -H 'Accept: application/x-ndjson' -H 'Content-Type: text/csv' \
    --data-binary '2023-11-16 18:15:46.6805900,4,2' "$URL/v1/workloads?table=9" | tail -n 1 | jq '.table.columns.time_us | length')"

# ---- more than the ring has room for
workload '{"sequences":[{"count":1,"prompt":1,"decode":60}]}'
for _ in $(seq 20); do workload '{"sequences":[{"count":1,"prompt":1,"decode":60}]}'; done
curl -s "$URL/v1/steps" >"$WORK/steps"
expect 'the last thousand' '[1000,1000]' "$(jq -c '.columns | [(.step | length), (.roof_fraction | length)]' "$WORK/steps")"
expect 'those behind a step that is gone begin with the oldest' true \
    "$(curl -s "$URL/v1/steps?since=1&limit=1" | jq --slurpfile all "$WORK/steps" '.columns.step[0] == $all[0].columns.step[0]')"
expect 'it has what the statistics have' true "$(curl -s "$URL/stats" | jq --slurpfile all "$WORK/steps" \
    '.scheduler.steps >= 1000 and .scheduler.batch_rows.max >= ($all[0].columns.rows_workloads | max)')"

# ---- the trace
curl -s "$URL/v1/trace?steps=1000" >"$WORK/trace"
expect 'it is a trace' 'ms' "$(jq -r .displayTimeUnit "$WORK/trace")"
expect 'each step is formed, planned, submitted and computed' '[1000,1000,1000,1000]' "$(jq -c '[.traceEvents[] | select(.ph == "X") | .name] |
    [map(select(. == "form")), map(select(. == "plan")), map(select(. == "submit")), map(select(. == "step"))] | map(length)' "$WORK/trace")"
expect 'spans of a thread do not overlap' '[]' "$(jq -c '[.traceEvents | map(select(.ph == "X" and (.tid == 2 or .tid == 3))) | group_by(.tid)[] | sort_by(.ts) |
    [.[:-1], .[1:]] | transpose[] | select(.[0].ts + .[0].dur > .[1].ts + 0.3)]' "$WORK/trace")"
expect 'turns of the loop are in it' true "$(jq '[.traceEvents[] | select(.name == "turn" and .tid == 1)] | length > 0' "$WORK/trace")"
expect 'every event names its process, thread and time' true "$(jq '.traceEvents | all(.pid == 1 and .tid >= 1 and (.ph == "M" or (.ts >= 0 and (.ph != "X" or .dur >= 0))))' "$WORK/trace")"
curl -s -o /dev/null --json "{\"sequences\":[8],\"q\":[$row]}" "$URL/v1/attend"
expect 'a wait begins and ends' '["b","e"]' "$(curl -s "$URL/v1/trace?steps=1" | jq -c '[.traceEvents[] | select(.cat == "queue") | .ph]')"
expect 'steps has bounds' '422 422' "$(curl -s "$URL/v1/trace?steps=0" | jq .status) $(curl -s "$URL/v1/trace?steps=1001" | jq .status)"
stop_daemon
expect 'it ends cleanly' 0 $?

# ---- blocks that are swapped
start_daemon --config config/tiny.jsonc --backend cpu --set pool.blocks=4 --set pool.host_blocks=8
five="[$row,$row,$row,$row,$row,$row,$row,$row,$row]"
for id in 1 2; do
    curl -s -o /dev/null --json "{\"id\":$id}" "$URL/v1/sequences"
    curl -s -o /dev/null --json "{\"sequences\":[$id],\"indptr\":[0,9],\"k\":$five,\"v\":$five}" "$URL/v1/append"
done
expect 'three blocks leave for the second one' 3 "$(curl -s "$URL/v1/steps" | jq '.columns.swaps | add')"
expect 'and are in the trace' '[3,0]' "$(curl -s "$URL/v1/trace" | jq -c '[.traceEvents[] | select(.name == "swap") | .args] | [(map(.blocks_out) | add), (map(.blocks_in) | add)]')"
stop_daemon
expect 'it ends cleanly' 0 $?

# ---- by owner
make_keys ann bob root
start_daemon --config config/tiny.jsonc --backend cpu --set "keys.file=$WORK/keys"
for name in ann bob; do
    id=$(as $name --json '{}' "$URL/v1/sequences" | jq .id)
    as $name -o /dev/null --json "{\"sequences\":[$id],\"q\":[$row],\"k\":[$row],\"v\":[$row]}" "$URL/v1/attend"
done
as bob -o /dev/null -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":3,"prompt":1,"decode":1}]}' "$URL/v1/workloads"
expect 'rows by owner, for admins' '[["ann",1],["bob",4]]' \
    "$(as root "$URL/v1/steps" | jq -c '[.owners[] | [.owner, (.rows | add)]] | sort')"
expect 'which are all rows' true "$(as root "$URL/v1/steps" | jq '([.owners[].rows] | transpose | map(add)) ==
    ([.columns.rows_clients, .columns.rows_workloads] | transpose | map(add))')"
expect 'for nobody else' false "$(as ann "$URL/v1/steps" | jq 'has("owners")')"
expect 'nobody else is named' '' "$(as ann "$URL/v1/steps" | grep -o 'bob\|root')"
expect 'the trace is for admins' '403 200' "$(as ann -o /dev/null -w '%{http_code}' "$URL/v1/trace") $(as root -o /dev/null -w '%{http_code}' "$URL/v1/trace")"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
