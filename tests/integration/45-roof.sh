#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The read roof: measured at the start and again when somebody asks, beside a workload and beside others who ask; shown alike everywhere; a
# share above 1 has its reason. That an idle daemon measures again is tests/unit/test_roof.c's: here nothing waits for a time.
. tests/integration/lib.sh
measured() { curl -s "$URL/stats" | jq .scheduler.roof.measurements; }
roof='.best_gb_per_s >= .median_gb_per_s and .median_gb_per_s >= .worst_gb_per_s and .worst_gb_per_s > 0 and .roof_gb_per_s >= .best_gb_per_s'
# Whether each share above 1, and no other, has a reason.
explained='[.. | objects | select(has("roof_fraction")) | (.roof_fraction > 1) == has("above_roof")] | all and length > 0'

start_daemon --config config/tiny.jsonc --backend cpu --set pool.blocks=60000
expect 'the start has measured it' 'true 1' "$(curl -s "$URL/v1/info" | jq -r ".backend.roof | \"\($roof) \(.measurements)\"")"
expect 'asked, it measures again' 'true 2' "$(curl -s -X POST "$URL/v1/roof" | jq -r "\"\($roof) \(.measurements)\"")"
expect 'which all show' '2 2 2' "$(measured) $(curl -s "$URL/v1/info" | jq .backend.roof.measurements) \
$(curl -s "$URL/metrics" | sed -n 's/^attnd_roof_measurements_total //p')"
expect 'one number is the roof' true "$(curl -s "$URL/stats" | jq '.scheduler | .roof_gb_per_s == .roof.roof_gb_per_s')"
expect 'the metrics have its passes' 3 "$(curl -s "$URL/metrics" | grep -c '^attnd_roof_measured_bytes_per_second{pass="[a-z]*"} [1-9]')"
expect 'it takes no arguments' 422 "$(curl -s -X POST "$URL/v1/roof?passes=9" | jq .status)"

# ---- beside others
workload='{"seed":7,"sequences":[{"count":8,"prompt":20,"decode":40}]}'
digest=$(curl -s -H 'Accept: application/x-ndjson' --json "$workload" "$URL/v1/workloads" | tail -n 1 | jq -r .digest)
curl -sN -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":2,"prompt":8,"decode":100000}]}' "$URL/v1/workloads" --output /dev/null &
endless=$!
is_running() { [ "$(curl -s "$URL/v1/workloads" | jq -r '.items[0].state')" = running ]; }
eventually is_running
for _ in 1 2 3; do
    curl -s -X POST "$URL/v1/roof" --output /dev/null &
    asking+=($!)
done
curl -s -H 'Accept: application/x-ndjson' --json "$workload" "$URL/v1/workloads" | tail -n 1 >"$WORK/report"
wait "${asking[@]}"
expect 'three that ask have one each' 5 "$(measured)"
expect 'bits are what they are' "$digest" "$(jq -r .digest "$WORK/report")"
expect 'a share above 1 has a reason, in a report' true "$(jq "$explained" "$WORK/report")"
expect 'and in /stats' true "$(curl -s "$URL/stats" | jq "$explained")"
row='[[1,0,0,0,0,0,0,0]]'
id=$(curl -s --json '{}' "$URL/v1/sequences" | jq .id)
curl -s --json "{\"sequences\":[$id],\"k\":[$row],\"v\":[$row],\"q\":[$row]}" "$URL/v1/attend" >"$WORK/out"
expect 'and in the answer of a call' true "$(jq "$explained" "$WORK/out")"
curl -s -o /dev/null -X DELETE "$URL/v1/workloads/2"
wait $endless
stop_daemon
expect 'it ends cleanly' 0 $?

# ---- where there is none
start_daemon --config config/tiny.jsonc --backend reference
expect 'the reference is not measured' '0 0' "$(curl -s -X POST "$URL/v1/roof" | jq -r '"\(.roof_gb_per_s) \(.measurements)"')"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
