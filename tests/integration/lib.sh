# lib.sh - what the integration scripts share. Source it first; it starts nothing by itself.
#
#   start_daemon [ARG...]   start $ATTND on a free loopback port; sets URL, PORT and DAEMON (its process id)
#   stop_daemon             SIGTERM, and wait; its exit code is the result
#   expect NAME WANT GOT    print ok or not ok
# shellcheck shell=bash
set -u
ATTND=${ATTND:-$PWD/build/release/attnd}
WORK=$(mktemp -d)
DAEMON=
# shellcheck disable=SC2154
trap 'status=$?; [ -z "$DAEMON" ] || kill -9 $DAEMON 2>/dev/null; rm -rf "$WORK"; exit $status' EXIT

# No answer is worth waiting for that long.
curl() { command curl -m 20 "$@"; }

start_daemon() {
    "$ATTND" --set listen=127.0.0.1:0 "$@" 2>"$WORK/log" &
    DAEMON=$!
    for _ in $(seq 100); do
        URL=$(sed -n 's/.*listening on \(http.*\)/\1/p' "$WORK/log")
        [ -z "$URL" ] || break
        kill -0 "$DAEMON" 2>/dev/null || break
        sleep 0.05
    done
    export PORT=${URL##*:}
    if [ -z "$URL" ]; then
        echo "not ok the daemon starts: $(cat "$WORK/log")"
        exit 1
    fi
}

stop_daemon() {
    kill -TERM "$DAEMON"
    wait "$DAEMON"
    local code=$?
    DAEMON=
    return $code
}

expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: wanted '$2', got '$3'"
        FAILED=1
    fi
}

finish() { exit "${FAILED:-0}"; }
