#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_faults.sh - the demo must fail when the daemon has a defect: one build for each of config/fault.h, and the sound one,
# which must pass. Proves that the verification of workloads can fail.
set -u
cd "$(dirname "$0")/.." || exit 1
export WORKLOAD=tests/faults-workload.json
# A window on half of the layers, and as few blocks as make sequences wait and reuse each other's.
settings=(--set 'geometry.window=[0,100]' --set pool.blocks=1200 --set scheduler.slow_step_ms=0) # how long a step takes is no verdict
passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

judge() { # NAME CONDITION...
    local name=$1
    shift
    if "$@"; then
        echo "ok $name: $(grep -E '^ +verified' "$log" | tr -s ' ')"
        passed=$((passed + 1))
    else
        echo "not ok $name"
        sed 's/^/    /' "$log"
        failed=$((failed + 1))
    fi
}
demo() { MODE=$1 bash scripts/demo.sh "${settings[@]}" >"$log" 2>&1; }
is_found() { ! demo "$1" && grep -qE '^ +verified .*NOT OK' "$log"; }

judge 'without a defect the demo passes' demo release
while read -r number name; do
    if make --no-print-directory -j"$(nproc)" MODE="fault-$number" all >"$log" 2>&1; then
        judge "defect $number, $name, is found" is_found "fault-$number"
    else
        judge "defect $number, $name, builds" false
    fi
done <<<"$(sed -n 's/^#define FAULT_\([A-Z_]*\) *\([0-9]*\) .*/\2 \1/p' config/fault.h | tr '[:upper:]_' '[:lower:] ')"

# A device that is lost in the middle of a workload: the client is told, the daemon turns unready and ends with 1.
loses_device() {
    local daemon url code
    : >"$log"
    ./build/fault-8/attnd --set listen=127.0.0.1:0 --set limits.header_timeout_s=3600 2>"$log" &
    daemon=$!
    until grep -q 'listening on' "$log"; do
        kill -0 $daemon 2>/dev/null || return 1
        sleep 0.05
    done
    url=$(sed -n 's/.*listening on \(http.*\)/\1/p' "$log")
    exec 3<>"/dev/tcp/127.0.0.1/${url##*:}" # a request that is not finished keeps the daemon there to be asked
    printf 'GET /livez HTTP/1.1\r\nHost: localhost\r\n' >&3
    curl -sN -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":4,"prompt":8,"decode":500}]}' \
        "$url/v1/workloads" >"$log.answer"
    wait $daemon
    code=$?
    exec 3<&-
    cat "$log.answer" >>"$log"
    rm -f "$log.answer"
    [ $code -eq 1 ] && grep -q 'the backend has failed: the device was lost on purpose' "$log" &&
        grep -q '"device_failed"' "$log"
}
if make --no-print-directory -j"$(nproc)" MODE=fault-8 all >"$log" 2>&1; then
    judge 'a daemon that loses its device says so and ends' loses_device
else
    judge 'a build that loses its device builds' false
fi

# Kernels that add in another order: the bits of conformance's wide values must tell. (Not with QUICK=1.)
if [ -z "${QUICK:-}" ]; then
    bash scripts/check_mutants.sh conformance >"$log" 2>&1
    cat "$log"
    passed=$((passed + $(grep -c '^ok' "$log"))) failed=$((failed + $(grep -c '^not ok' "$log")))
    grep -q 'mutants found' "$log" || failed=$((failed + 1))
fi

echo "$passed passed, $failed failed, $(grep -c '^skip' "$log") skipped"
[ $failed -eq 0 ] && [ $passed -ge $((${QUICK:+-3} + 12)) ]
