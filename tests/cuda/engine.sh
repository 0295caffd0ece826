#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The engine on a GPU: workloads are decoded and verified; how they were scheduled leaves no trace in the bits; the GPU is
# busy.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
cd "$(dirname "$0")/../.." || exit 1

# run NAME WORKLOAD [ARG...] - one workload on a daemon of its own; its report in $WORK/NAME
run() {
    local name=$1 workload=$2
    shift 2
    start_daemon --set backend.name="${BACKEND:-cuda}" "$@"
    curl -sN -H 'Accept: application/x-ndjson' --json "$workload" "$URL/v1/workloads" | tail -n 1 >"$WORK/$name"
    curl -s -X POST "$URL/v1/audit" >"$WORK/$name.audit"
    curl -s "$URL/stats" >"$WORK/$name.stats"
    curl -s "$URL/v1/steps?limit=50" >"$WORK/$name.steps"
    curl -s "$URL/v1/trace?steps=50" >"$WORK/$name.trace"
    stop_daemon || echo "not ok $name: the daemon ends with $?"
    jq -c 'del(.shape, .seed, .state)' "$WORK/$name"
    jq -c '.scheduler | {steps, step_us, idle_us}' "$WORK/$name.stats"
}
verified() { jq -r '"\(.state) \(.verify.ok)"' "$WORK/$1"; }
digest() { jq -r .digest "$WORK/$1"; }

demo=$(cat config/demo-workload.json)
run demo "$demo" --config config/demo.jsonc
expect 'the demo: verified' 'finished true' "$(verified demo)"
run llama "$demo" --config config/llama-3-8b.jsonc
expect 'the demo with the shape of Llama 3 8B: verified' 'finished true' "$(verified llama)"

# The same sequences, short of blocks: preempted, and computed again.
part=$(jq -c '.count = 60 | .length_scale = 0.5' <<<"$demo")
run plenty "$part" --config config/llama-3-8b.jsonc
run scarce "$part" --config config/llama-3-8b.jsonc --set pool.blocks=400 --set scheduler.admission=optimistic
expect 'with few blocks: verified' 'finished true' "$(verified scarce)"
expect 'and preempted' true "$(jq '.preemptions > 0' "$WORK/scarce")"
expect 'with the same digest' "$(digest plenty)" "$(digest scarce)"
run bounded "$part" --config config/llama-3-8b.jsonc --set scheduler.step_us_max=100
expect 'in bounded steps: the same digest' "$(digest plenty)" "$(digest bounded)"

# The GPU notes when parts of passes end: the same bits, and a trace with them.
run stamped "$part" --config config/llama-3-8b.jsonc --set backend.pass_stamps=on
expect 'with stamps: the same digest' "$(digest plenty)" "$(digest stamped)"
long='{"seed":4,"sequences":[{"count":1,"prompt":60000,"decode":60}]}' # so long that there are merges
run stamped "$long" --config config/llama-3-8b.jsonc --set geometry.layers=4 --set pool.bytes=8GiB --set backend.pass_stamps=on
expect 'without them merges are not timed' '[null]' "$(jq -c '.columns.merge_us | unique' "$WORK/plenty.steps")"
expect 'with them they are, as a part of the step' true \
    "$(jq '.columns | [.merge_us, .compute_us] | transpose | (map(.[0]) | max) > 0 and all(.[0] >= 0 and .[0] < .[1])' "$WORK/stamped.steps")"
passes() { jq "[.traceEvents[] | select(.ph == \"X\" and .tid == 6)] | $1" "$WORK/stamped.trace"; }
expect 'each pass is in the trace' '["append","attend","merge"] [0,3]' \
    "$(passes '[.[].name] | unique' | jq -c) $(passes '[.[].args.layer] | [min, max]' | jq -c)"
expect 'parts take time, and no more than their step' true "$(jq '[.traceEvents[] | select(.ph == "X")] |
    (map(select(.name == "step") | {key: "\(.args.step)", value: .dur}) | from_entries) as $took |
    map(select(.tid == 6)) | group_by(.args.step) | all((map(.dur) | add) as $sum | $sum > 0 and $sum <= $took["\(.[0].args.step)"] * 1.01)' "$WORK/stamped.trace")"

# A prefix is appended once, by the first of those that share it, also while steps overlap.
prefixes=$(jq -nc '{seed: 5, sequences: [range(4) | {count: 16, prompt: 400, decode: 10, prefix: {id: (. + 1), length: 320}}], verify: {rows: 8}}')
run prefixes "$prefixes" --config config/demo.jsonc
expect 'prefixes are appended once' '6400 19200 true' "$(jq -r '"\(.tokens.prompt) \(.tokens.cached) \(.verify.ok)"' "$WORK/prefixes")"

# 64 sequences of 4 096 tokens and 4 layers; 256 of 1 024.
steady() { jq -nc --argjson n "$1" --argjson t "$2" '{seed: 3, sequences: [{count: $n, prompt: $t, decode: 400}], verify: {rows: 16}}'; }
run wide "$(steady 64 4096)" --config config/llama-3-8b.jsonc --set geometry.layers=4 --set pool.bytes=8GiB
expect '64 x 4 096 tokens: verified' 'finished true' "$(verified wide)"
run many "$(steady 256 1024)" --config config/llama-3-8b.jsonc --set geometry.layers=4 --set pool.bytes=8GiB
expect '256 x 1 024 tokens: verified' 'finished true' "$(verified many)"
finish
