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
    curl -s "$URL/openapi.json" | tee "$WORK/openapi" | jq -r '.paths | keys[]' | while read -r path; do
        grep -q -F -e "$path" docs/API.md || echo "$path"
    done
    kill $DAEMON
)"
expect 'every code of a problem is in it, with its status, and no other' '' \
    "$(diff <("$ATTND" --describe problems | cut -f1,2 | sort) <(sed -n '/^The proxies of config/q; s/^| `\([a-z_]*\)` | \([0-9]*\) | .*/\1\t\2/p' docs/API.md | sort))"
for proxy in haproxy.cfg nginx.conf; do
    [ $proxy = nginx.conf ] && ready='' || ready='not_ready ' # which nginx does not ask
    expect "and those of config/$proxy" "no_node node_cut node_down ${ready}which_node" "$(grep -o '"code":"[a-z_]*"' config/$proxy | cut -d'"' -f4 | sort -u |
        while read -r code; do sed -n "/^The proxies of config/,\$ s/^| \`\($code\)\` | .*/\1/p" docs/API.md; done | paste -sd' ')"
done

# The scope of each operation by the contract is the one that the table of scopes gives it.
named() { sed -n "s/^| $1 | \(.*\) |\$/\1/p" docs/API.md | grep -oE '`(GET|POST|PUT|DELETE) [^`]*`' | tr -d '`' | sed "s/\$/ $1/"; }
for scope in none read infer admin; do named $scope; done >"$WORK/scopes"
expect 'scopes are those of the contract' '' "$(jq -r '.paths | to_entries[] | .key as $p | .value | to_entries[]
    | "\(.key | ascii_upcase) \($p) \(.value.security[1].key[0] // "none")"' "$WORK/openapi" | while read -r method path scope; do
    said=$(sed -n "s|^$method $path ||p" "$WORK/scopes")
    [ "$said" ] || said=$([ "$method" = GET ] && echo read || echo infer)
    [ "$said" = "$scope" ] || echo "$method $path: $scope, not $said"
done)"
expect 'and there are as many as that names' "$(wc -l <"$WORK/scopes")" "$(while read -r method path _; do
    jq -e --arg p "$path" --arg m "${method,,}" '.paths[$p][$m]' "$WORK/openapi" >/dev/null && echo yes
done <"$WORK/scopes" | wc -l)"

# Members of /v1/info and /stats stand in their tables.
members() { jq -r ".components.schemas.$1.properties | keys[]" "$WORK/openapi"; }
expect 'every member of /v1/info is described' '' "$(members Info | while read -r member; do
    sed -n '/^| member of `.v1.info`/,/^$/p' docs/API.md | grep -q -F "\`$member\`" || echo "$member"
done)"
expect 'and of /stats' '' "$(members Stats | while read -r member; do
    sed -n '/^| member of `.stats`/,/^$/p' docs/API.md | grep -q -F "\`$member\`" || echo "$member"
done)"
finish
