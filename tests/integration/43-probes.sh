#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Probes: a daemon that computes is live and ready, one whose engine shows no sign of life is neither, and feeds no watchdog.
. tests/integration/lib.sh
# shellcheck source=tests/integration/stub.sh
. tests/integration/stub.sh
export WORK
codes() { # PATH N - how often which status
    for _ in $(seq "$2"); do curl -s -o /dev/null -w '%{http_code}\n' "$URL$1"; done | sort | uniq -c | awk '{print $2 "x" $1}'
}
state_of() { curl -s "$URL/v1/workloads" | jq -r '.items[0].state'; }
is_running() { [ "$(state_of)" = running ]; }

# ---- busy is not dead
start_daemon --config config/tiny.jsonc --set pool.blocks=60000 --set management.listen="unix:$WORK/manage"
curl -sN -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":2,"prompt":8,"decode":100000}]}' "$URL/v1/workloads" >"$WORK/lines" &
client=$!
eventually is_running
expect 'while it computes it is live' 200x50 "$(codes /livez 50)"
expect 'and ready' 200x50 "$(codes /readyz 50)"
expect 'also inside' '{"status":"ready"}' "$(curl -s --unix-socket "$WORK/manage" http://localhost/readyz)"
expect 'and it still computes' running "$(state_of)"
curl -s -o /dev/null -X DELETE "$URL/v1/workloads/$(curl -s "$URL/v1/workloads" | jq '.items[0].id')"
wait $client
stop_daemon
expect 'it ends cleanly' 0 $?

# ---- an engine that shows no sign of life: its driver does not return (defect 10 of config/fault.h)
needs_build 'a daemon that stalls'
build stuck -DATTND_FAULT=10 kernels/attention.c "$build_folder/obj/server/main.o"
keep_notes
fed() { [ "$(grep -c '^WATCHDOG=1$' "$WORK/notes")" -ge "$1" ]; }
export NOTIFY_SOCKET=$WORK/notify WATCHDOG_USEC=900000
ATTND=$WORK/stuck start_daemon --backend cpu --set backend.step_timeout_s=600 --set management.listen="unix:$WORK/manage"
unset NOTIFY_SOCKET WATCHDOG_USEC
expect 'before that it is live' 200 "$(codes /livez 1 | cut -c1-3)"
expect 'and feeds the watchdog' 0 "$(eventually fed 2; echo $?)"
curl -sN -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":4,"prompt":8,"decode":500}]}' "$URL/v1/workloads" >/dev/null &
client=$!
is_stalled() { [ "$(curl -s "$URL/livez")" = '{"status":"stalled"}' ]; }
eventually is_stalled
expect 'then it is not' 503 "$(codes /livez 1 | cut -c1-3)"
expect 'nor ready' '{"status":"stalled"}' "$(curl -s "$URL/readyz")"
expect 'inside, too' '{"status":"stalled"}' "$(curl -s --unix-socket "$WORK/manage" http://localhost/livez)"
fed=$(grep -c '^WATCHDOG=1$' "$WORK/notes")
codes /livez 200 >/dev/null # some of its periods of 0.3 s
expect 'and the watchdog is not fed any more' "$fed" "$(grep -c '^WATCHDOG=1$' "$WORK/notes")"
expect 'those who ask for nothing of the engine are served' 200 "$(codes /openapi.json 1 | cut -c1-3)"
kill -9 "$DAEMON" $listener $client
wait "$DAEMON" $listener $client 2>/dev/null
DAEMON=
finish
