#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench_server.sh [--short] - start time and resident memory of the daemon with its default configuration.
#
# Memory is compared after request 1 000 and after request 100 000: attends that append and are retried, forks and
# deletes, questions, in JSON and safetensors, over several connections. --short: 200 and 1 000.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/integration/lib.sh
early=1000 late=100000
[ "${1:-}" != --short ] || { early=200 late=1000; }

started=$EPOCHREALTIME
start_daemon
ready=$EPOCHREALTIME
perl -e 'printf("server: from start to ready %.0f ms, touching a pool of 128 MiB included; goal 1000 beyond that\n", 1e3 * ($ARGV[1] - $ARGV[0]))' \
    "$started" "$ready"

resident_kib() { awk '/^VmRSS:/ { print $2 }' "/proc/$DAEMON/status"; }
# many N PATH [CURL-ARG...] - the same request N times over one connection (a fragment is not sent).
many() { command curl -s -o /dev/null "${@:3}" "$URL$2#[1-$1]"; }
row() { jq -nc "[range($1) | [range(64) | . % 7 - 3]]"; }
body=$(jq -nc --argjson q "$(row 8)" --argjson k "$(row 2)" '{sequences: [1], positions: [0], q: [$q], k: [$k], v: [$k]}')
printf '%s' "$body" >"$WORK/attend"
tensors sequences I64 1 1 q BF16 1,8,64 '512*1' >"$WORK/tensors"
curl -s --json '{"id":1,"idle_timeout_s":0}' "$URL/v1/sequences" >/dev/null

# About N requests of all kinds, 100 a round.
work() {
    local rounds=$(($1 / 100))
    for _ in $(seq $rounds); do
        many 40 /v1/attend --json "@$WORK/attend" &
        local json=$!
        many 20 /v1/attend -H 'Content-Type: application/x-safetensors' --data-binary "@$WORK/tensors"
        wait $json
        many 10 /v1/sequences/1/fork --json '{}'
        curl -s "$URL/v1/sequences?limit=1000" | jq -r '.items[].id | select(. != 1)' >"$WORK/ids"
        sed "s|.*|url = \"$URL/v1/sequences/&\"|" "$WORK/ids" | command curl -s -X DELETE -K -
        many 15 /stats
        many 4 '/v1/blocks?limit=1000'
    done
}
work $early
first=$(resident_kib)
work $((late - early))
last=$(resident_kib)
echo "server: resident after $early requests $first KiB, after $late requests $last KiB: $((last - first)) KiB more; goal below 1024"
stop_daemon
