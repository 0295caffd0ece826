#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Workloads: the daemon decodes sequences by itself, from generated values, and proves its outputs right. Digests tell that
# nothing of how it was done - blocks, sharing, order, preemption, steps, threads - has any influence on the bits.
. tests/integration/lib.sh
post() { curl -s --json "$2" "$URL$1"; }
status() { jq -r '"\(.status) \(.code)"'; }
# Run a workload to its end; prints the report.
run() { curl -sN -H 'Accept: application/x-ndjson' --json "$1" "$URL/v1/workloads" | tail -n 1; }
geometry=(--set geometry.layers=2 --set geometry.query_heads=4 --set geometry.kv_heads=2 --set geometry.head_dim=16
    --set geometry.block_size=4 --set 'geometry.window=[0,20]')
start_daemon "${geometry[@]}" --set pool.blocks=40000

# One sequence: a prompt of 10 tokens is appended, then 5 are decoded, each in a step of its own.
one='{"seed":7,"sequences":[{"prompt":10,"decode":5}],"verify":{"rows":10}}'
report=$(run "$one")
expect 'it finishes' finished "$(jq -r .state <<<"$report")"
expect 'a step for the prompt, five for the tokens' 6 "$(jq .steps <<<"$report")"
expect 'five tokens at two layers' '5 10' "$(jq -r '"\(.tokens.done) \(.rows)"' <<<"$report")"
expect 'every row verified' '10 true' "$(jq -r '"\(.verify.done) \(.verify.ok)"' <<<"$report")"
expect 'the same seed, the same digest' "$(jq .digest <<<"$report")" "$(run "$one" | jq .digest)"
expect 'another seed, another digest' true "$(run "${one/7/8}" | jq --argjson d "$(jq .digest <<<"$report")" '.digest != $d')"
expect 'nothing is left behind' '0 0' "$(curl -s "$URL/stats" | jq -r '"\(.pool.held) \(.pool.cached)"')"

expect 'nothing of it is to come' '{"left":0,"next_s":null}' "$(jq -c .arrivals <<<"$report")"
rare=$(post /v1/workloads '{"sequences":[{"count":3,"prompt":10,"decode":5}],"arrival":{"rate":0.00001}}' | jq .id)
expect 'requests that are not due are counted, and when the next one is' 'true true' \
    "$(curl -s "$URL/v1/workloads/$rare" | jq -r '.sequences as $s | .arrivals | "\(.left + $s.waiting + $s.running + $s.finished == 3) \(.next_s > 1)"')"
expect 'a cancelled one has none' '{"left":0,"next_s":null}' "$(curl -s -X DELETE "$URL/v1/workloads/$rare" -o /dev/null; curl -s "$URL/v1/workloads/$rare" | jq -c .arrivals)"
long=$(post /v1/workloads '{"sequences":[{"prompt":10,"decode":60000}]}' | jq .id)
sequence_of() { curl -s "$URL/v1/sequences" | jq -e '.items[0] | select(.age_s > 0.5)' >"$WORK/decodes"; }
eventually sequence_of
expect 'what a workload decodes is used (bug: idle_s was its age)' true "$(jq '.idle_s < .age_s / 2' "$WORK/decodes")"
curl -s -o /dev/null -X DELETE "$URL/v1/workloads/$long"
no_sequence() { [ "$(curl -s "$URL/stats" | jq '.sequences.count + .pool.held')" = 0 ]; }
eventually no_sequence

# A prefix that sixteen sequences share is appended once: 32 of 40 tokens are 8 blocks.
shared='{"seed":1,"sequences":[{"count":16,"prompt":40,"decode":6,"prefix":{"id":3,"length":32}}],"verify":{"rows":64}}'
report=$(run "$shared")
expect 'fifteen find the prefix in the cache' $((15 * 32)) "$(jq .tokens.cached <<<"$report")"
expect 'the rest is appended' $((40 + 15 * 8)) "$(jq .tokens.prompt <<<"$report")"
expect 'sharing saves blocks' true "$(jq '.pool.saved_peak >= 15 * 8' <<<"$report")"
expect 'and is right' true "$(jq .verify.ok <<<"$report")"

expect '/stats has the latest steps, and the time that reading takes at the roof' '[true,true,true]' \
    "$(curl -s "$URL/stats" | jq -c '.scheduler.latest | [.bytes_read > 0, .ideal_seconds < .seconds, (.roof_fraction - .ideal_seconds / .seconds | fabs < 0.001)]')"
expect 'and /metrics their share' 1 "$(curl -s "$URL/metrics" | grep -c '^attnd_latest_roof_fraction [0-9]')"

# Forks: three children leave at token 42, in the middle of a block, and go on with tokens of their own.
forked='{"seed":1,"sequences":[{"count":4,"prompt":40,"decode":20,"fork":{"at":42,"count":3}}],"verify":{"rows":100}}'
report=$(run "$forked")
expect 'twelve children' '12 16' "$(jq -r '"\(.forks) \(.sequences.finished)"' <<<"$report")"
expect 'each writer but the last copies its block' 12 "$(jq .copies <<<"$report")"
expect 'tokens of all' $((4 * (20 + 3 * 18))) "$(jq .tokens.done <<<"$report")"
expect 'and they are right' true "$(jq .verify.ok <<<"$report")"
# A fork inside the prompt; prompts attended, not only appended.
early='{"seed":5,"prefill":"attend","sequences":[{"count":3,"prompt":30,"decode":4,"fork":{"at":9,"count":2},"prefix":{"id":1,"length":20}}],"verify":{"rows":200}}'
report=$(run "$early")
expect 'prompts attended: outputs for every token' $((3 * (34 + 2 * 25))) "$(jq .tokens.done <<<"$report")"
expect 'right too' true "$(jq .verify.ok <<<"$report")"
early_digest=$(jq -r .digest <<<"$report")

# Found by reading, each once a hang: a prompt that decodes nothing and stands in the cache as a whole; gaps without spread.
only='{"sequences":[{"count":3,"prompt":32,"decode":0,"prefix":{"id":1,"length":32}}]}'
expect 'prompts only, all of it cached (bug: the engine looped)' 'finished 3' "$(run "$only" | jq -r '"\(.state) \(.sequences.finished)"')"
expect 'a tiny cv (bug: the loop thread looped)' finished \
    "$(run '{"shape":"azure-code","count":3,"length_scale":0.01,"arrival":{"rate":1000,"cv":1e-160}}' | jq -r .state)"

# Shapes, arrivals, and what is reported of them.
shape='{"seed":3,"shape":"azure-conv","count":40,"length_scale":0.1,"prefix_share":{"fraction":0.5,"length":24},"fork_share":{"fraction":0.25,"count":2},"verify":{"rows":64}}'
report=$(run "$shape")
digest=$(jq -r .digest <<<"$report") steps=$(jq .steps <<<"$report")
expect 'a shape' 'finished true' "$(jq -r '"\(.state) \(.verify.ok)"' <<<"$report")"
slow=$(run "$(jq -c '.arrival = {rate: 20, cv: 1.1}' <<<"$shape")")
expect 'spread over time: other steps' true "$(jq --argjson s "$(jq .steps <<<"$report")" '.steps > $s' <<<"$slow")"
expect 'percentiles rise' true "$(jq '[.step_us, .queue_ms, .first_token_ms, .per_token_ms][] | .p50 <= .p90 and .p90 <= .p99' <<<"$slow" | jq -s all)"

# 202 and a look now and then; cancelling; a stream of events. It runs until it is cancelled, since its last request never arrives.
long=$(jq -nc '{trace: [(range(8) | {arrival_s: 0, prompt: 64, decode: 16000}), {arrival_s: 1e5, prompt: 1, decode: 1}]}')
expect '202 without Accept' '202 /v1/workloads/' "$(curl -s -o "$WORK/body" -D - --json "$long" "$URL/v1/workloads" | tr -d '\r' |
    awk '/^HTTP/ { s = $2 } /^Location/ { sub(/[0-9]+$/, "", $2); l = $2 } END { print s, l }')"
id=$(jq .id "$WORK/body")
all_run() { [ "$(curl -s "$URL/v1/workloads/$id" | jq -r '"\(.state) \(.sequences.running)"')" = 'running 8' ]; }
expect 'it runs, eight sequences at a time' 0 "$(eventually all_run; echo $?)"
expect 'its sequences are listed' 8 "$(curl -s "$URL/stats" | jq '[.sequences.items[] | select(.state == "running")] | length')"
driven=$(curl -s "$URL/stats" | jq '.sequences.items[0].id')
expect 'clients keep their hands off them' '409 in_workload' "$(curl -s -X DELETE "$URL/v1/sequences/$driven" | status)"
expect 'events are lines' 3 "$(curl -sN "$URL/v1/workloads/$id/events" 2>/dev/null | head -n 3 | grep -c '"state":"running"')"
expect 'looking at events does not end it' running "$(curl -s "$URL/v1/workloads/$id" | jq -r .state)"
expect 'the books balance in the middle of it' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
expect 'DELETE cancels' cancelled "$(curl -s -X DELETE "$URL/v1/workloads/$id" | jq -r .state)"
expect 'and again: the same' cancelled "$(curl -s -X DELETE "$URL/v1/workloads/$id" | jq -r .state)"
expect 'every block is back' 40000 "$(curl -s "$URL/stats" | jq .pool.free)"

# A streamed workload ends with its client.
start_stream() { # sets client; returns when its first report has come
    : >"$WORK/stream"
    command curl -sN --json "$long" -H 'Accept: application/x-ndjson' "$URL/v1/workloads" >"$WORK/stream" &
    client=$!
    eventually has_report
}
has_report() { [ "$(wc -l <"$WORK/stream")" -gt 0 ]; }
has_stopped() { [ "$(curl -s "$URL/v1/workloads/$id" | jq -r .state)" != running ]; }
start_stream
kill -9 $client
wait $client 2>/dev/null
id=$(head -n 1 "$WORK/stream" | jq .id)
eventually has_stopped
expect 'its client was killed: cancelled' cancelled "$(curl -s "$URL/v1/workloads/$id" | jq -r .state)"
expect 'its blocks are back' 40000 "$(curl -s "$URL/stats" | jq .pool.free)"

# Traces as they are, read as a stream.
cat >"$WORK/azure.csv" <<'CSV'
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
CSV
cat >"$WORK/mooncake.jsonl" <<'LINES'
{"timestamp": 0, "input_length": 1700, "output_length": 20, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 50, "input_length": 1600, "output_length": 5, "hash_ids": [0, 1, 2, 9]}
{"timestamp": 80, "input_length": 900, "output_length": 9, "hash_ids": [0, 4]}
LINES
trace() { curl -s -H 'Accept: application/x-ndjson' -H "Content-Type: $1" --data-binary "@$2" "$URL/v1/workloads?$3" | tail -n 1; }
report=$(trace text/csv "$WORK/azure.csv" 'length_scale=0.1&time_scale=0.01&verify=20')
expect 'Azure: 4 + 11 + 6 tokens' '3 21 true' "$(jq -r '"\(.requests) \(.tokens.done) \(.verify.ok)"' <<<"$report")"
report=$(trace application/x-ndjson "$WORK/mooncake.jsonl" 'length_scale=0.0625&time_scale=1&verify=20')
expect 'Mooncake: shared hash blocks of 32 tokens are found' "$((3 * 32 + 32)) true" "$(jq -r '"\(.tokens.cached) \(.verify.ok)"' <<<"$report")"
expect 'count takes the first ones' 1 "$(trace text/csv "$WORK/azure.csv" 'length_scale=0.1&count=1' | jq .requests)"

# Mistakes.
while IFS='|' read -r name want request; do
    expect "$name" "$want" "$(post /v1/workloads "$request" | jq -r '"\(.status) \(.detail)"')"
done <<'LIST'
no requests|422 exactly one of sequences, shape and trace is wanted|{"seed":1}
two kinds|422 exactly one of sequences, shape and trace is wanted|{"shape":"azure-conv","trace":[]}
an empty list|422 there are no requests|{"sequences":[]}
no tokens|422 a request has neither a prompt nor tokens to decode|{"sequences":[{"prompt":0}]}
an unknown shape|422 /shape: wants azure-conv, azure-code, mooncake-conv or arxiv-summary|{"shape":"x"}
a member that is not there|422 /sequences/0/promt: there is no such member; did you mean prompt?|{"sequences":[{"promt":3}]}
a fork behind the end|422 /sequences/0/fork/at: wants a token before the sequence's last one|{"sequences":[{"prompt":3,"decode":1,"fork":{"at":4}}]}
a prefix longer than the prompt|422 /sequences/0/prefix/length: wants 1 to all tokens of the prompt|{"sequences":[{"prompt":3,"prefix":{"id":1,"length":4}}]}
too long for a sequence|422 sequence 0 would have 200000 tokens; limits.sequence_tokens is 131072|{"sequences":[{"prompt":200000}]}
too large for the pool, with a fork|422 sequence 0 needs 25025 blocks, and its fork 25025; the pool has 40000|{"sequences":[{"prompt":100000,"decode":100,"fork":{"at":1,"count":1}}]}
too large for the pool|422 sequence 0 needs 25025 blocks, and 25025 for each of its 2 forks; the pool has 40000|{"sequences":[{"prompt":100000,"decode":100,"fork":{"at":1,"count":2}}]}
LIST
printf 'nonsense\n' >"$WORK/bad.csv"
expect 'a line that is none' '400 line 1: wants YYYY-MM-DD HH:MM:SS.FFF,ContextTokens,GeneratedTokens' \
    "$(trace text/csv "$WORK/bad.csv" '' | jq -r '"\(.status) \(.detail)"')"
while IFS='|' read -r name line; do
    printf '%b\n' "$line" >"$WORK/bad.csv"
    expect "$name" 400 "$(trace text/csv "$WORK/bad.csv" '' | jq .status)"
done <<'LIST'
a month of 99|2023-99-16 18:15:46.6,374,44
a day of 0|2023-11-00 18:15:46.6,374,44
an hour of 24|2023-11-16 24:15:46.6,374,44
bytes behind a NUL|2023-11-16 18:15:46.6,374,44\0nonsense
LIST
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6,374,44\r\n' >"$WORK/dos.csv"
expect 'lines that end as those of Windows' 1 "$(trace text/csv "$WORK/dos.csv" '' | jq .requests)"
for parameter in seed=0.5 count=1.5 verify=1e-1 fork_at=2.5; do
    expect "a fraction where a whole number is wanted ($parameter)" 422 "$(trace text/csv "$WORK/azure.csv" "$parameter" | jq .status)"
done
printf '{"timestamp": 0}\n{"timestamp": -1, "input_length": 3}\n' >"$WORK/bad.jsonl"
expect 'a line without tokens' '422 line 1: a request has neither a prompt nor tokens to decode' \
    "$(trace application/x-ndjson "$WORK/bad.jsonl" '' | jq -r '"\(.status) \(.detail)"')"
expect 'a parameter that is none' 422 "$(trace text/csv "$WORK/azure.csv" 'length=2' | jq .status)"
expect 'an unknown workload' '404 not_found' "$(curl -s "$URL/v1/workloads/99" | status)"
# Server-sent events, and the list of workloads.
stream=$(curl -s -H 'Accept: text/event-stream' -D "$WORK/head" --json '{"sequences":[{"count":2,"prompt":4,"decode":3}]}' "$URL/v1/workloads")
expect 'a stream of events' 'text/event-stream event: report' \
    "$(tr -d '\r' <"$WORK/head" | sed -n 's/^Content-Type: //p') $(grep '^event: ' <<<"$stream" | tail -n 1)"
expect 'whose last has the report' finished "$(grep '^data: ' <<<"$stream" | tail -n 1 | cut -c7- | jq -r .state)"
expect 'each event ends with an empty line' 0 "$(grep -c . <<<"$(grep -A2 '^event: ' <<<"$stream" | grep -v '^event: \|^data: \|^--')")"
id=$(sed -n 's/^data: //p' <<<"$stream" | tail -n 1 | jq .id)
expect 'events of one that has ended' "report $id" "$(curl -s -H 'Accept: text/event-stream' "$URL/v1/workloads/$id/events" |
    sed -n 's/^event: //p;s/^data: //p' | { read -r kind; jq -r "\"$kind \\(.id)\""; })"
expect 'the list has the newest first' "$id true" "$(curl -s "$URL/v1/workloads" | jq -r '"\(.items[0].id) \([.items[].id] == ([.items[].id] | sort | reverse))"')"

# The end with a stream open: the workload that belongs to it is cancelled at the deadline, the client gets the last report, the daemon ends.
start_stream
curl -s -o /dev/null --json '{"deadline_s":1}' "$URL/v1/drain"
wait "$DAEMON"
expect 'it ends with a stream open, which is no clean end' 1 $?
DAEMON=
wait $client
expect 'whose client knows' cancelled "$(tail -n 1 "$WORK/stream" | jq -r .state)"

# The same shape in quite other circumstances: the same digest, right everywhere, and the books balance.
again() {
    local name=$1 condition=$2
    shift 2
    start_daemon "${geometry[@]}" "$@"
    report=$(run "$shape")
    expect "$name: same digest" "$digest" "$(jq -r .digest <<<"$report")"
    expect "$name: verified" true "$(jq .verify.ok <<<"$report")"
    expect "$name: $condition" true "$(jq "$condition" <<<"$report")"
    expect "$name: the books balance" true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
    expect "$name: every block is back" 0 "$(curl -s "$URL/stats" | jq '.pool.held + .pool.cached')"
    stop_daemon
}
again 'a tight pool, by forecast' '.preemptions == 0 and .pool.held_peak <= 400' --set pool.blocks=400
again 'a tight pool, optimistic' '.preemptions > 0 and .tokens.recomputed > 0' --set pool.blocks=400 \
    --set scheduler.admission=optimistic
again 'four sequences at a time' ".steps > 2 * $steps" --set limits.sequences=4
again 'small steps' ".steps > $steps" --set scheduler.step_rows_max=32
again "steps of little time" ".steps > $steps" --set scheduler.step_us_max=50
again 'one thread' '.steps > 0' --set backend.threads=1
again 'in other blocks' '.steps > 0' --set geometry.block_size=32 --set geometry.layout=nhd

# Attended prompts under pressure: rows of cached tokens are computed all the same.
start_daemon "${geometry[@]}" --set pool.blocks=60 --set scheduler.admission=optimistic --set scheduler.step_rows_max=16
expect 'attended prompts, preempted: same digest' "$early_digest" "$(run "$early" | jq -r .digest)"
stop_daemon
finish
