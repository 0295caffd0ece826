#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A device that hangs is one that failed: whoever waits is told, and the daemon ends with 1, also when the driver does not
# return. On the CPU with defects 9 and 10 of config/fault.h; and, where the CUDA headers are, with the CUDA backend on a driver
# that is a stub (tests/cuda): at each wait in turn, then the daemon.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/integration/stub.sh
. "$(dirname "$0")/stub.sh"
cd "$(dirname "$0")/../.." || exit 1
needs_build 'a device that hangs'
limit=(--set backend.step_timeout_s=1)
workload='{"sequences":[{"count":4,"prompt":8,"decode":500}]}'
told='500 device_failed'
code_of() { jq -r 'select(.code) | "\(.status) \(.code)"' <<<"$1"; }
# expect_end NAME WANT - its exit code, and the reason that it has logged
expect_end() {
    wait "$DAEMON"
    local code=$?
    DAEMON=
    expect "$1" "$2" "$code $(sed -n 's/.*the backend has failed: //p' "$WORK/log")"
}

has_registered() { ! [ -x "$talk" ] || [ "$(curl -s "$URL/stats?limit=1" | jq .transport.regions)" = 1 ]; }

# ---- on the CPU
talk=$(dirname "$ATTND")/registered/talk # a client with registered memory, where there are such
while IFS='|' read -r defect reason ended; do
    build "faulty-$defect" "-DATTND_FAULT=$defect" kernels/attention.c "$build_folder/obj/server/main.o"
    ATTND=$WORK/faulty-$defect start_daemon --backend cpu "${limit[@]}" --set "transport.listen=unix:$WORK/r"
    ! [ -x "$talk" ] || printf 'open -\nregion 4096\nend\n' | "$talk" "$WORK/r" >"$WORK/said" &
    registered=$!
    eventually has_registered
    lines=$(curl -sN -H 'Accept: application/x-ndjson' --json "$workload" "$URL/v1/workloads")
    expect "defect $defect: the client is told" "$told" "$(code_of "$(tail -n 1 <<<"$lines")")"
    expect_end "defect $defect: the daemon ends with 1" "1 $reason"
    wait $registered
    ! [ -x "$talk" ] || expect "defect $defect: so is one with registered memory" "$ended" "$(tail -n 1 "$WORK/said")"
done <<'TABLE'
9|the device hangs: a step is not finished after 1 s|503 busy the daemon ends
10|the device hangs: its driver does not return|500 device_failed the device hangs: its driver does not return; the daemon ends
TABLE

# ---- on a stub of CUDA's driver
if ! on_stub_driver; then
    echo 'skip the CUDA backend on a stub: no CUDA headers'
    finish
fi
build hang "${wrap[@]}" tests/cuda/hang.c
# shellcheck disable=SC2034 # finish uses it
"$WORK/hang" >"$WORK/waits" 2>&1 || FAILED=1
grep '^ok\|^not ok\|was called' "$WORK/waits"
waits='a part of a step,a step,clearing the KV pool,replaying a graph,the self-test,timing the read roof,uploading tensor maps,what was issued before'
expect 'all waits are among them' "$waits the end" \
    "$(sed -n 's/^wait .*: the device hangs: \(.*\) is not finished after 1 s$/\1/p' "$WORK/waits" | sort -u | paste -sd,)"

on_stub() {
    rm -f "$STUB_HANGS"
    start_daemon --backend cuda "${limit[@]}" "$@"
}

on_stub
curl -sN -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":1,"prompt":8,"decode":5}]}' "$URL/v1/workloads" \
    >"$WORK/answer"
expect 'the stub serves' finished "$(tail -n 1 "$WORK/answer" | jq -r .state)"
stop_daemon
expect 'and ends with 0' 0 $?

# A launch on one kernel without shared memory of its own was given some, to come evenly beside merges, and failed.
for dtype in f32 bf16; do
    on_stub --set geometry.dtype=$dtype --set geometry.kv_dtype=$dtype --set pool.blocks=8192
    for sequences in 1,600 1,1000 1,3000 2,600 2,1000 3,600 3,1000 8,3000; do # count, tokens
        curl -sN -H 'Accept: application/x-ndjson' "$URL/v1/workloads" \
            --json '{"sequences":[{"count":'${sequences%,*}',"prompt":'${sequences#*,}',"decode":3}]}' | tail -n 1 | jq -r .state
    done >"$WORK/answer"
    expect "launches have no more shared memory than their kernels are allowed: $dtype" '8 finished' \
        "$(uniq -c "$WORK/answer" | tr -s ' ' | sed 's/^ //')"
    stop_daemon
done

on_stub
echo event >"$STUB_HANGS"
expect 'a self-test that never ends: the client is told' "$told" "$(code_of "$(curl -s -X POST "$URL/v1/selftest")")"
expect_end 'the daemon ends with 1, the driver is left alone' '1 the device hangs: the self-test is not finished after 1 s'

on_stub
echo launch >"$STUB_HANGS"
lines=$(curl -sN -H 'Accept: application/x-ndjson' --json "$workload" "$URL/v1/workloads")
expect 'a launch that never returns: the client is told' "$told" "$(code_of "$(tail -n 1 <<<"$lines")")"
expect_end 'the daemon ends with 1, its engine in the driver' '1 the device hangs: its driver does not return'

# Nobody waits, and the daemon is asked to end, when the device hangs.
on_stub
echo event >"$STUB_HANGS"
kill -TERM "$DAEMON"
expect_end 'a device and a driver that hang when the daemon ends: it ends with 1' \
    '1 the device hangs: what was issued before the end is not finished after 1 s'

# At start.
echo event >"$STUB_HANGS"
"$ATTND" --backend cuda --set listen=127.0.0.1:0 "${limit[@]}" 2>"$WORK/log"
expect 'a device that hangs at start: 69' '69 1' \
    "$? $(grep -c 'attnd: the device hangs: clearing the KV pool is not finished after 1 s' "$WORK/log")"
finish
