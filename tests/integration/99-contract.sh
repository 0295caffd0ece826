#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# /openapi.json: well formed, complete, and what the other scripts have seen of the daemon. It runs last: `make check` keeps their exchanges.
. tests/integration/lib.sh
start_daemon --config config/tiny.jsonc
curl -s "$URL/openapi.json" >"$WORK/openapi.json"
expect 'it says what it is' '3.1.0 attnd' "$(jq -r '"\(.openapi) \(.info.title)"' "$WORK/openapi.json")"
expect 'every path is served with its methods, and no others' '' "$(
    jq -r '.paths | to_entries[] | "\(.key) \(.value | keys | map(ascii_upcase) | join(","))"' "$WORK/openapi.json" |
        while read -r path methods; do
            other=PUT
            [[ $methods != *PUT* ]] || other=DELETE
            allowed=$(curl -s -o /dev/null -D - -X $other "$URL${path/\{id\}/1}" | tr -d '\r' | sed -n 's/^Allow: //p' | sed 's/, HEAD//; s/, /,/g')
            [ "$(tr , '\n' <<<"$allowed" | sort | paste -sd,)" = "$(tr , '\n' <<<"$methods" | sort | paste -sd,)" ] || echo "$path: $allowed"
        done
)"
expect 'no answer is left to a default' 0 "$(jq '[.paths[][].responses | select(has("default"))] | length' "$WORK/openapi.json")"
expect 'no object takes what it does not name' 0 \
    "$(jq '[.components.schemas | .. | objects | select(.type? == "object" and .additionalProperties != false)] | length' "$WORK/openapi.json")"
expect 'operations have names of their own' 0 "$(jq '[.paths[][].operationId] | length - (unique | length)' "$WORK/openapi.json")"
stop_daemon

# The validator is no package of Debian 12.
venv=build/venv
if [ ! -x $venv/bin/openapi-spec-validator ]; then
    rm -rf $venv
    python3 -m venv $venv >/dev/null 2>&1 && $venv/bin/pip install -q 'openapi-spec-validator==0.9.0' >/dev/null 2>&1
fi
if [ -x $venv/bin/openapi-spec-validator ]; then
    expect 'it is well formed' "$WORK/openapi.json: OK" "$($venv/bin/openapi-spec-validator "$WORK/openapi.json" 2>&1 | tail -n 1)"
else
    lacks 'it is well formed: openapi-spec-validator cannot be had from PyPI'
fi
if [ -n "${EXCHANGES:-}" ]; then
    /usr/bin/python3 tests/exchanges.py "$WORK/openapi.json" "$EXCHANGES" || FAILED=1
else
    echo 'skip exchanges of the other scripts: make check keeps them'
fi
finish
