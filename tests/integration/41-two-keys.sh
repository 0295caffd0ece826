#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two keys: whatever one of them asks, nothing of the other's is in the answer.
. tests/integration/lib.sh
CTL=$(dirname "$ATTND")/attnctl
ann=$("$CTL" --json key new annskey infer) bob=$("$CTL" --json key new bob infer)
(umask 077; jq -n --argjson a "$ann" --argjson b "$bob" '{keys: [$a.entry, $b.entry]}' >"$WORK/keys")
start_daemon --config config/tiny.jsonc --set "keys.file=$WORK/keys" --set pool.blocks=20000 --set limits.sequences=8000
# shellcheck disable=SC2034 # finish() reads it
/usr/bin/python3 tests/two_keys.py "$URL" "$(jq -r .key <<<"$ann")" "$(jq -r .key <<<"$bob")" || FAILED=1
stop_daemon
expect 'it ends cleanly' 0 $?
finish
