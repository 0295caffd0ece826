#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command of docs/OPERATIONS.md, in order, against its printed output.
. tests/integration/lib.sh
. tests/integration/documents.sh
CTL=$(dirname "$ATTND")/attnctl
others=() NEW='' NEXT=''
end_all() {
    local status=$?
    for pid in ${others[@]+"${others[@]}"} ${DAEMON:+"$DAEMON"}; do kill -9 "$pid" && wait "$pid"; done 2>/dev/null
    rm -rf "$WORK"
    exit $status
}
trap end_all EXIT
attnd() { "$ATTND" "$@" 2>&1; }
attnctl() { "$CTL" "$@" | sed "s,$NEXT,NEXT,"; }
DIR=$WORK
mkdir -m 700 "$DIR/state" "$DIR/next"
another() { # NAME - one more daemon; its URL is in the variable of that name
    : >"$WORK/log.$1"
    "$ATTND" --set listen=127.0.0.1:0 --config config/tiny.jsonc 2>"$WORK/log.$1" &
    others+=($!)
    there() { grep -q 'listening on' "$WORK/log.$1"; }
    eventually there "$1"
    printf -v "$1" %s "$(sed -n 's/.*listening on \(http[^"]*\).*/\1/p' "$WORK/log.$1")"
}
another NEW
another NEXT
curl -s -o /dev/null --json '{"id":7}' "$NEW/v1/sequences"
curl -s -o /dev/null --json '{"sequences":[7],"indptr":[0,2],"k":[[[1,0,0,0,0,0,0,0]],[[0,1,0,0,0,0,0,0]]],"v":[[[1,1,1,1,1,1,1,1]],[[3,3,3,3,3,3,3,3]]]}' "$NEW/v1/append"
MANAGE=$WORK/manage
start_daemon --config config/tiny.jsonc --state-dir "$DIR/state" --set "management.listen=unix:$MANAGE"
curl -s -o /dev/null --json '{"id":7}' "$URL/v1/sequences"
export DIR NEW NEXT MANAGE
# The drain ends the daemon before the next command looks at what it has left.
sed '/^## Restore/q' docs/OPERATIONS.md >"$WORK/before"
sed -n '/^## Restore/,$p' docs/OPERATIONS.md >"$WORK/after"
check_document docs/OPERATIONS.md "$WORK/before" 8
eventually has_ended
wait "$DAEMON"
expect 'it ends cleanly' 0 $?
DAEMON=
check_document "docs/OPERATIONS.md, after the end" "$WORK/after" 3
finish
