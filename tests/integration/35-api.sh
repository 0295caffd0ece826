#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command of docs/API.md, in order, against its printed output.
. tests/integration/lib.sh
. tests/integration/documents.sh
check_document docs/API.md docs/API.md 40
expect 'every operation of the contract is in it' '' "$(
    "$ATTND" --set listen=127.0.0.1:0 --config config/tiny.jsonc 2>"$WORK/log" &
    DAEMON=$!
    eventually listens_or_ended
    URL=$(sed -n 's/.*listening on \(http[^"]*\).*/\1/p' "$WORK/log")
    curl -s "$URL/openapi.json" | jq -r '.paths | keys[]' | while read -r path; do
        grep -q -F -e "$path" docs/API.md || echo "$path"
    done
    kill $DAEMON
)"
finish
