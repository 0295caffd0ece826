#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Several daemons: an id tells whose it is, another one's is 421 with its number, and every answer names who gave it.
. tests/integration/lib.sh
call() { curl -s --json "$2" "$URL$1"; }
problem() { jq -r '"\(.status) \(.code) \(.detail)"'; }
one='"k":[[[1,1,1,1,1,1,1,1]]],"v":[[[1,1,1,1,1,1,1,1]]]'
q='"q":[[[1,0,0,0,0,0,0,0]]]'
base=$((3 << 40))
start_daemon --config config/tiny.jsonc --set node=3
expect 'ids are the node'\''s' "$((base + 1)) $((base + 2))" "$(call /v1/sequences '{}' | jq .id) $(call /v1/leases '{"blocks":1}' | jq .id)"
expect 'so may chosen ones be' $((base + 77)) "$(call /v1/sequences "{\"id\":$((base + 77))}" | jq .id)"
expect 'no others' '421 other_node id 7 is one of node 0, this is node 3' "$(call /v1/sequences '{"id":7}' | problem)"
expect 'forks, too' "[$((base + 3)),$((base + 4))]" "$(call "/v1/sequences/$((base + 1))/fork" '{"count":2}' | jq -c '[.sequences[].id]')"
expect 'every answer names it' 'n3 n3 n3' "$(for path in /livez /v1/sequences/1 /nowhere; do curl -s -o /dev/null -D - "$URL$path" | tr -d '\r' | sed -n 's/^X-Attnd-Node: //p'; done | paste -sd' ')"
expect 'a request that names another node changes nothing (bug: this one did it)' '421 other_node X-Attnd-Node is "n4", and this is node n3' "$(curl -s -X POST -H 'X-Attnd-Node: n4' "$URL/v1/drain" | problem)"
expect 'one that names this one does' 200 "$(curl -s -o /dev/null -w '%{http_code}' -X POST -H 'X-Attnd-Node: n3' "$URL/v1/audit")"
expect '/v1/info and /stats do' '3 3' "$(curl -s "$URL/v1/info" | jq .node) $(curl -s "$URL/stats" | jq .node)"
expect '/metrics, too' n3 "$(curl -s "$URL/metrics" | sed -n 's/^attnd_build_info{.*,node="\(.*\)"} 1$/\1/p')"
ctl() { "$(dirname "$ATTND")/attnctl" --url "$URL" "$@"; }
expect 'so does attnctl' 'node n3: up|node n3: 4|node n3: no|node n3  up' "$(for command in stats 'seq list' 'workload list' top; do
    # shellcheck disable=SC2086
    ctl $command | grep -oE 'node n3(:|  )[ ]?(up|[0-9]+|no)'
done | paste -sd'|')"
expect 'also in JSON' 3 "$(ctl --json stats | jq .node)"
expect 'ids of workloads are, too (bug: each node began with 1, and a proxy asked any)' "$((base + 1)) finished" \
    "$(call /v1/workloads '{"sequences":[{"count":1,"prompt":4,"decode":1}]}' | jq -r .id) $(curl -s "$URL/v1/workloads/$((base + 1))/events" | tail -n 1 | jq -r .state)"
expect 'one that is not there yet' '404 not_found' "$(curl -s "$URL/v1/workloads/$((base + 2))" | jq -r '"\(.status) \(.code)"')"
expect 'and one of no number' '404 not_found' "$(curl -s "$URL/v1/workloads/$base" | jq -r '"\(.status) \(.code)"')"
other=$(((5 << 40) + 1))
while IFS='|' read -r name method path body; do
    expect "another node's: $name" '421 other_node' "$(curl -s -X "$method" ${body:+--json "$body"} "$URL$path" | jq -r '"\(.status) \(.code)"')"
done <<LIST
a sequence|GET|/v1/sequences/$other|
its blocks|GET|/v1/sequences/$other/blocks|
a fork|POST|/v1/sequences/$other/fork|{"count":1}
a truncate|POST|/v1/sequences/$other/truncate|{"length":0}
a delete|DELETE|/v1/sequences/$other|
a lease|GET|/v1/leases/$other|
a workload|GET|/v1/workloads/$other|
its events|GET|/v1/workloads/$other/events|
its end|DELETE|/v1/workloads/$other|
a call|POST|/v1/append|{"sequences":[$other],$one}
a call over two nodes|POST|/v1/attend|{"sequences":[$((base + 1)),$other],"k":[[[1,1,1,1,1,1,1,1]],[[1,1,1,1,1,1,1,1]]],"v":[[[1,1,1,1,1,1,1,1]],[[1,1,1,1,1,1,1,1]]],"q":[[[1,0,0,0,0,0,0,0]],[[1,0,0,0,0,0,0,0]]]}
a paged call|POST|/v1/paged|{"lease":$other,$q,"block_tables":[[0]],"context_lens":[1]}
a batch|POST|/v1/batch|{"ops":[{"op":"truncate","id":$((base + 1)),"length":0},{"op":"delete","id":$other}]}
LIST
expect 'whose it is is said' "421 other_node sequence $other belongs to node 5, this is node 3" "$(curl -s "$URL/v1/sequences/$other" | problem)"
expect 'none has changed anything' 0 "$(curl -s "$URL/v1/sequences/$((base + 1))" | jq .length)"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
expect 'it ends cleanly' 0 $?
expect 'a number that has no room in an id' 1 "$("$ATTND" --set node=8192 --check-config 2>&1 | grep -c 'node: wants an integer in 0..8191')"
start_daemon --config config/tiny.jsonc --set node=8191
last=$((8191 << 40))
expect 'the last node that does' $((last + 1)) "$(call /v1/sequences '{}' | jq .id)"
expect 'its largest id' $((last + (1 << 40) - 1)) "$(call /v1/sequences "{\"id\":$((last + (1 << 40) - 1))}" | jq .id)"
expect 'behind which they begin anew' "$((last + 2))" "$(call /v1/sequences '{}' | jq .id)"
stop_daemon
expect 'and ends cleanly' 0 $?
finish
