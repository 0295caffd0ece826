#!/usr/bin/env bash
# The engine on a GPU: workloads are decoded and verified; how they were scheduled leaves no trace in the bits.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
cd "$(dirname "$0")/../.." || exit 1

# run NAME WORKLOAD [ARG...] - one workload on a daemon of its own; its report in $WORK/NAME
run() {
    local name=$1 workload=$2
    shift 2
    start_daemon --set backend.name=cuda "$@"
    echo "$workload" >"$WORK/workload"
    build/release/attnctl --url "$URL" run "$WORK/workload" >"$WORK/$name" 2>&1
    echo "$?" >"$WORK/$name.status"
    curl -s -X POST "$URL/v1/audit" >"$WORK/$name.audit"
    stop_daemon || echo "not ok $name: the daemon ends with $?"
}
digest() { grep -o 'digest[": ]*[0-9a-f]*' "$WORK/$1" | tail -n 1 | grep -o '[0-9a-f]*$'; }

demo=$(cat config/demo-workload.json)
run demo "$demo" --config config/demo.jsonc
expect 'the demo: verified' 0 "$(cat "$WORK/demo.status")"
cat "$WORK/demo"
run llama "$demo" --config config/llama-3-8b.jsonc
expect 'the demo with the shape of Llama 3 8B: verified' 0 "$(cat "$WORK/llama.status")"
cat "$WORK/llama"
finish
