#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench_journal.sh [ROUNDS] [SECONDS] - what the journal takes of small attends: requests a second by wrk with 16 connections, from a daemon that
# writes a journal and one that does not, by turns, and quartiles of the rounds' ratios. Wants wrk.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/integration/lib.sh
rounds=${1:-40} seconds=${2:-1}
command -v wrk >/dev/null || { echo 'journal: skip: there is no wrk'; exit 0; }

cat >"$WORK/attend.lua" <<'LUA'
wrk.method = "POST"
wrk.path = "/v1/attend"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"sequences":[1],"q":[[[1,0,0,0,0,0,0,0]]]}'
LUA
begin() { # ARGUMENT... - a daemon with one sequence of one token
    start_daemon --config config/tiny.jsonc --backend cpu --set backend.threads=1 "$@"
    curl -s --json '{"id":1}' "$URL/v1/sequences" >/dev/null
    curl -s --json '{"sequences":[1],"k":[[[1,2,3,4,5,6,7,8]]],"v":[[[1,2,3,4,5,6,7,8]]]}' "$URL/v1/append" >/dev/null
}
rate() { wrk -t 1 -c 16 -d "${seconds}s" -s "$WORK/attend.lua" "$1" | awk '/Requests\/sec/ {print $2} /Non-2xx/ {print "failed"}' | paste -sd' '; }

mkdir "$WORK/journal"
begin
plain=$URL
PLAIN=$DAEMON
begin --set "journal.path=$WORK/journal" --set journal.bytes=17179869184
for round in $(seq "$rounds"); do
    if [ $((round % 2)) -eq 0 ]; then without=$(rate "$plain") with=$(rate "$URL"); else with=$(rate "$URL") without=$(rate "$plain"); fi
    awk "BEGIN {printf \"%.0f %.0f %.4f\n\", $without, $with, $with / $without}"
done >"$WORK/rounds"
quartiles() { cut -d' ' -f"$1" "$WORK/rounds" | sort -n | awk '{a[NR] = $1} END {print a[int((NR + 3) / 4)], a[int((NR + 1) / 2)], a[int((3 * NR + 3) / 4)]}'; }
echo "journal: requests a second, quartiles of $rounds rounds: without $(quartiles 1); with $(quartiles 2); ratio $(quartiles 3); $(du -m "$WORK/journal" | cut -f1) MB"
stop_daemon
kill "$PLAIN" && wait "$PLAIN"
