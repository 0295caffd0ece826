#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Graphs of a workload's passes come again beside a client whose calls differ: they are recorded as seldom as without it, also
# where rounds are cut for its sake. With the CUDA backend on a driver that is a stub.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/integration/stub.sh
. "$(dirname "$0")/stub.sh"
cd "$(dirname "$0")/../.." || exit 1
needs_build 'graphs beside clients'
if ! on_stub_driver; then
    echo 'skip graphs beside clients: no CUDA headers'
    exit 0
fi
CALLS=600
geometry=(--set geometry.query_heads=2 --set geometry.kv_heads=1 --set geometry.head_dim=16)
metric() { curl -s "$URL/metrics" | sed -n "s/^attnd_$1_total //p"; }
SIZES=12 # of calls: one after the other is for so many sequences
for n in $(seq $SIZES); do
    # shellcheck disable=SC2051
    jq -nc "[range($n)|[range(2)|[range(16)|0.5]]] as \$q | {layer: 0, sequences: [range($n) + 1], q: \$q}" >"$WORK/body.$n"
done

# beside US - calls answered, and how many graphs were recorded while they were, with rounds cut at that time
beside() {
    start_daemon --backend cuda --set geometry.layers=24 "${geometry[@]}" --set scheduler.step_us_max=60000000 --set "scheduler.step_us_shared=$1"
    local workload before
    for id in $(seq $SIZES); do
        curl -s -o /dev/null -X POST "$URL/v1/sequences"
        curl -s -o /dev/null --json "{\"layer\":0,\"sequences\":[$id],\"k\":[[[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]]],\"v\":[[[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]]]}" "$URL/v1/append"
    done
    workload=$(curl -s --json '{"sequences":[{"count":1000,"prompt":64,"decode":20000}]}' "$URL/v1/workloads" | jq .id)
    for i in $(seq $CALLS); do
        printf '%s\n' next "url=$URL/v1/attend" "json=@$WORK/body.$((i % SIZES + 1))" 'write-out="%{http_code}\n"' output=/dev/null
    done >"$WORK/calls"
    before=$(metric graphs_recorded)
    answered=$(curl -sK "$WORK/calls" | grep -c 200)
    recorded=$(($(metric graphs_recorded) - before))
    launched=$(metric graphs_launched)
    state=$(curl -s -X DELETE "$URL/v1/workloads/$workload" | jq -r .state)
    stop_daemon
}
for us in 60000000 300000; do
    beside $us
    expect "rounds cut at $us us: all calls are answered beside the workload" "$CALLS cancelled" "$answered $state"
    expect "$recorded of $launched graphs are recorded: fewer than one in two calls" 1 $((recorded * 2 < CALLS))
done
finish
