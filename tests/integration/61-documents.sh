#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Documents that are made of tables in the code are what the script makes of them now; every option is in the man page; groff and
# man find nothing wrong with the pages.
. tests/integration/lib.sh
bash scripts/make_documents.sh "$ATTND" "$WORK"
expect 'docs/METRICS.md is what `make documents` writes' '' "$(diff docs/METRICS.md "$WORK/METRICS.md" | head -5)"
expect 'man/attnd.jsonc.5 too' '' "$(diff man/attnd.jsonc.5 "$WORK/attnd.jsonc.5" | head -5)"
expect 'man/attnd-keys.5 too' '' "$(diff man/attnd-keys.5 "$WORK/attnd-keys.5" | head -5)"
expect 'its example is a file of keys' 0 "$(sed -n '/^{"keys"/,/^]}/p' man/attnd-keys.5 >"$WORK/keys"; chmod 600 "$WORK/keys"; "$ATTND" --set "keys.file=$WORK/keys" --check-config >/dev/null 2>&1; echo $?)"
expect 'every scope is in it' '' "$("$ATTND" --describe keys.file | sed -n 's/^scopes\tlist, some of \([^\t]*\).*/\1/p' | tr -d , | tr ' ' '\n' | while read -r scope; do
    sed '1,/^.SH SCOPES/d' man/attnd-keys.5 | grep -q -x -F ".B $scope" || echo "$scope"
done)"
expect 'every option is in attnd(8)' '' "$("$ATTND" --help | grep -oE -e '--[a-z][a-z-]+' | sort -u | while read -r option; do
    sed 's/\\-/-/g' man/attnd.8 | grep -q -e "$option" || echo "$option"
done)"
expect 'every key is in attnd.jsonc(5)' '' "$("$ATTND" --describe keys | cut -f1 | while read -r key; do
    sed 's/\\-/-/g' man/attnd.jsonc.5 | grep -q -x -F ".B $key" || echo "$key"
done)"
expect 'another table is refused' "2 attnd: --describe pools: wants keys, keys.file, metrics or problems" "$("$ATTND" --describe pools 2>"$WORK/log"; echo "$? $(cat "$WORK/log")")"
expect 'every event of the log is in docs/OPERATIONS.md, and no other' "$(cat {config,scheduler,server,kernels/cuda}/*.c | tr -d '\n' | grep -oE 'log_event(_of)?\([^"]*"[a-z_]+"' | grep -oE '"[a-z_]+"' | tr -d '"' | grep -vx stopped | sort -u)" \
    "$(sed -n '/^| `event` | level/,/^$/p' docs/OPERATIONS.md | sed '1,2d' | cut -d'|' -f2 | grep -oE '[a-z_]+' | grep -vx stopped | sort)"
if command -v groff >/dev/null; then
    for page in man/*.[1-8]; do
        expect "groff reads $page" '' "$(groff -man -Tutf8 -ww -z "$page" 2>&1 | head -3)"
    done
else
    lacks 'groff: not installed'
fi
finish
