#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh [ARG...] - start the daemon on a free loopback port with the demo configuration (and these arguments), decode a
# workload with the lengths of a real trace, verify it, print what came of it, shut down. Fails if anything did.
#
#   MODE=release        which build
#   WORKLOAD=FILE       instead of config/demo-workload.json
set -u
cd "$(dirname "$0")/.." || exit 1
build=build/${MODE:-release}
workload=${WORKLOAD:-config/demo-workload.json}
log=$(mktemp)
daemon=
trap '[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null; rm -f "$log"' EXIT

"$build/attnd" --config config/demo.jsonc --set listen=127.0.0.1:0 "$@" 2>"$log" &
daemon=$!
until grep -q 'listening on' "$log"; do # however long that takes: a large pool is touched, kernels are compiled
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.05
done
url=$(sed -n 's/.*listening on \(http.*\)/\1/p' "$log")
if [ -z "$url" ]; then
    echo "demo: the daemon did not start:" >&2
    cat "$log" >&2
    exit 1
fi
sed -n 's/.*info backend/attnd:    backend/p' "$log"
echo "workload: $workload $(tr -s ' \n' ' ' <"$workload")"

status=0
"$build/attnctl" --url "$url" run "$workload" || status=1
if "$build/attnctl" --url "$url" audit; then :; else status=1; fi
"$build/attnctl" --url "$url" stats || status=1

kill -TERM "$daemon"
wait "$daemon" || { echo "demo: the daemon ended with $?" >&2; status=1; }
daemon=
grep -E ' (warning|error) ' "$log" && status=1

cat <<TEXT

The same by hand: in one terminal \`make run\`, in another
    curl -sN -H 'Accept: application/x-ndjson' --json @$workload http://127.0.0.1:8400/v1/workloads
    curl -s http://127.0.0.1:8400/stats | jq '.pool, .scheduler'
    curl -s 'http://127.0.0.1:8400/v1/blocks?limit=20' | jq -c '.blocks[]'
    curl -s -X POST http://127.0.0.1:8400/v1/audit
    build/release/attnctl run --shape azure-code --count 50 --length-scale 0.2 --verify 32
TEXT
[ $status -eq 0 ] && echo "demo: ok" || echo "demo: FAILED" >&2
exit $status
