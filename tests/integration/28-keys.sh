#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Keys: who is let in, what of whom exists for whom, and how much of it. Addresses, listeners and proxies.
. tests/integration/lib.sh
CTL=$(dirname "$ATTND")/attnctl

# key NAME SCOPES QUOTAS - add a key to the file, and keep it in $WORK/NAME.
entries=()
key() {
    local made
    # shellcheck disable=SC2086
    made=$("$CTL" --json key new "$1" $2)
    jq -r .key <<<"$made" >"$WORK/$1"
    entries+=("$(jq -c ".entry + ${3:-"{}"}" <<<"$made")")
}
expect 'a scope that is none is named' '2 attnctl: "write" is no scope; scopes are read infer admin keep (attnctl key --help says what it takes)' \
    "$("$CTL" key new bob write 2>"$WORK/said"; echo "$? $(cat "$WORK/said")")"
for name in a/b '' "$(printf '%064d' 0)"; do
    expect "a name that the daemon would refuse (\"$name\")" "2 attnctl: \"$name\" is no name: a key wants a name of 1 to 63 letters, digits, dots, - and _ (attnctl key --help says what it takes)" \
        "$("$CTL" key new "$name" infer 2>"$WORK/said"; echo "$? $(cat "$WORK/said")")"
done
write_keys() {
    local IFS=,
    (umask 077; printf '{"keys": [%s]}\n' "${entries[*]}" >"$WORK/keys")
}
as() { # NAME CURL-ARGUMENT... - with its key
    curl -s -H "Authorization: Bearer $(cat "$WORK/$1")" "${@:2}"
}
code() { "$@" -o /dev/null -w '%{http_code}'; }
problem() { jq -r '"\(.status) \(.code) \(.detail)"'; }

key ann infer
key bob infer
key eve read
key root admin
key few infer '{"quotas":{"sequences":3,"blocks":8,"workloads":1,"calls":1,"streams":1,"uploads":1,"staging_bytes":4096}}'
key lone infer '{"quotas":{"streams":1,"uploads":1}}'
key narrow infer '{"quotas":{"sequences":3,"staging_bytes":4096}}'
key slow infer '{"quotas":{"requests_per_s":2}}'
key keeper 'infer keep'
write_keys

# ---- what does not start
# shellcheck disable=SC2069 # of what it says only what is wrong
fails() { "$ATTND" "$@" 2>&1 >/dev/null; echo $?; }
expect 'another address without keys' $'attnd: listen: 0.0.0.0:0: without keys.file only loopback addresses and unix sockets are listened on\n78' \
    "$(fails --set listen=0.0.0.0:0)"
chmod 644 "$WORK/keys"
expect 'a keys file that others can read' "attnd: keys.file: $WORK/keys: its mode is 0644: others can read or change it (chmod 600)
78" "$(fails --set "keys.file=$WORK/keys")"
chmod 600 "$WORK/keys"
expect 'proxies that nobody trusts' $'attnd: listen: 127.0.0.1:0: proxy_protocol wants trusted_proxies: whose headers are believed\n78' \
    "$(fails --set 'listen={"address":"127.0.0.1:0","proxy_protocol":true}')"
expect 'anonymous clients where there are no keys' 78 "$(fails --set 'listen={"address":"127.0.0.1:0","anonymous":"read"}' | tail -1)"
expect 'a listener with a member that is none' 1 "$(fails --set 'listen={"address":"127.0.0.1:0","x":1}' | grep -c 'x: no such member; there are address')"

# ---- scopes
logged() { jq -r "$@" "$WORK/log"; } # each of its lines is JSON
start_daemon --config config/tiny.jsonc --set log.format=json --set "keys.file=$WORK/keys" --set scheduler.batch_window_us=600000000 \
    --set "listen=[\"127.0.0.1:0\",{\"address\":\"unix:$WORK/s\",\"mode\":\"0660\",\"anonymous\":\"read\"},{\"address\":\"unix:$WORK/p\",\"proxy_protocol\":true}]" \
    --set "management.listen=unix:$WORK/m" --set limits.unknown_connections=4
expect 'probes need none' '200 200' "$(code curl -s "$URL/livez") $(code curl -s "$URL/readyz")"
expect 'without a key' '401 unauthorized this needs a key: Authorization: Bearer KEY' "$(curl -s "$URL/stats" | problem)"
expect 'and what is wanted is said' 'Bearer realm="attnd"' "$(curl -s -D - -o /dev/null "$URL/stats" | tr -d '\r' | sed -n 's/^WWW-Authenticate: //p')"
expect 'attnctl says where it takes one from' 'attnctl: 401 unauthorized: this needs a key: Authorization: Bearer KEY; attnctl takes it from --key-file FILE or $ATTNCTL_KEY_FILE' \
    "$("$CTL" --url "$URL" stats 2>&1)"
"$CTL" --json key new zoe infer >"$WORK/json"
expect 'of JSON with a key, that the key alone belongs there (bug: 401, there is no such key)' "2 attnctl: $WORK/json: is JSON, and a key is wanted: of what attnctl --json key new has printed jq -r .key" \
    "$("$CTL" --url "$URL" --key-file "$WORK/json" stats 2>"$WORK/said"; echo "$? $(sed 's/;.*//' "$WORK/said")")"
install -m 644 <(echo none) "$WORK/open"
expect 'and that everybody can read that file' "attnctl: $WORK/open: everybody on this machine can read this key (chmod 600 it)" \
    "$("$CTL" --url "$URL" --key-file "$WORK/open" stats 2>&1 | head -n 1)"
expect 'an unknown path is not told from others' 401 "$(code curl -s "$URL/nothing")"
expect 'so is every path, with every method, but probes, the contract and the page' '' "$(
    curl -s "$URL/openapi.json" | jq -r '.paths | to_entries[] | .key as $path | .value | keys[] | "\(. | ascii_upcase) \($path)"' |
        grep -v '^GET /livez$\|^GET /readyz$\|^GET /openapi.json$\|^GET /$\|^GET /dashboard/{name}$' | while read -r method path; do
        [ "$(code curl -s -X "$method" "$URL${path/\{id\}/1}")" = 401 ] || echo "$method $path"
    done
)"
is_told() { # the log has 20 lines of a kind a second
    curl -s -o /dev/null -H 'X-Request-Id: none-in-the-log' -H 'Authorization: Bearer attnd_y' "$URL/stats"
    has_logged none-in-the-log
}
eventually is_told
expect 'a key that is none is unknown in the log' 'from 127.0.0.1, unknown key: 401 unauthorized: there is no such key' "$(logged 'select(.request == "none-in-the-log").msg' | head -n 1 | sed 's,refused GET /stats ,,; s,;.*,,')"
is_told_too() {
    curl -s -o /dev/null -H 'X-Request-Id: no-key-in-the-log' "$URL/stats"
    has_logged no-key-in-the-log
}
eventually is_told_too
expect 'and none is no key' 'from 127.0.0.1, no key: 401 unauthorized: this needs a key' "$(logged 'select(.request == "no-key-in-the-log").msg' | head -n 1 | sed 's,refused GET /stats ,,; s,: Auth.*,,')"
expect 'a key that is none' '401 unauthorized there is no such key' "$(curl -s -H 'Authorization: Bearer attnd_x' "$URL/stats" | problem)"
expect 'another scheme' 401 "$(code curl -s -u user:password "$URL/stats")"
expect 'two keys' 400 "$(code curl -s -H 'Authorization: Bearer a' -H 'Authorization: Bearer b' "$URL/stats")"
expect 'any Host, with a key' 200 "$(code as ann -H 'Host: attnd.example' "$URL/stats")"
expect 'read may look' '200 200 200' "$(code as eve "$URL/stats") $(code as eve "$URL/metrics") $(code as eve "$URL/v1/info")"
expect 'but not make' '403 forbidden the key "eve" lacks the scope infer' "$(as eve --json '{}' "$URL/v1/sequences" | problem)"
expect 'infer does not administrate' '403 403 403 403 403' "$(for path in audit trim selftest roof drain; do code as ann -X POST "$URL/v1/$path"; echo; done | paste -sd' ')"
expect 'a key is told its scopes' '{"name":"eve","scopes":["read"]} {"name":"keeper","scopes":["read","infer","keep"]} {"name":"root","scopes":["read","infer","admin","keep"]}' \
    "$(for k in eve keeper root; do as $k "$URL/v1/info" | jq -c .key; done | paste -sd' ')"
expect 'read sees the pool' 200 "$(code as eve "$URL/v1/blocks")"
expect 'admin does' '200 200' "$(code as root -X POST "$URL/v1/audit") $(code as root "$URL/v1/blocks")"
unix() { curl -s --unix-socket "$1" "http://localhost$2" "${@:3}"; }
expect 'the unix socket has its mode' 660 "$(stat -c %a "$WORK/s")"
expect 'there anonymous clients may look' 200 "$(code unix "$WORK/s" /stats)"
expect 'and no more' 401 "$(code unix "$WORK/s" /v1/sequences --json '{}')"

# ---- what belongs to whom
expect 'two sequences' '1 2' "$(as ann --json '{}' "$URL/v1/sequences" | jq .id) $(as bob --json '{}' "$URL/v1/sequences" | jq .id)"
as ann --json '{"blocks":2}' "$URL/v1/leases" >/dev/null # 3
as ann --json '{"sequences":[{"count":1,"prompt":4,"decode":2}]}' "$URL/v1/workloads" >/dev/null # 1
one='"k":[[[1,1,1,1,1,1,1,1]]],"v":[[[1,1,1,1,1,1,1,1]]]'
q='"q":[[[1,0,0,0,0,0,0,0]]]'
while IFS='|' read -r name want method path body; do
    expect "of another key: $name" "$want" "$(as bob -X "$method" ${body:+--json "$body"} "$URL$path" | problem)"
done <<LIST
a sequence|404 not_found there is no sequence 1|GET|/v1/sequences/1|
its blocks|404 not_found there is no sequence 1|GET|/v1/sequences/1/blocks|
a fork|404 not_found there is no sequence 1|POST|/v1/sequences/1/fork|{"count":1}
a truncate|404 not_found there is no sequence 1|POST|/v1/sequences/1/truncate|{"length":0}
a delete|404 not_found there is no sequence 1|DELETE|/v1/sequences/1|
an append|404 not_found there is no sequence 1|POST|/v1/append|{"sequences":[1],$one}
an attend|404 not_found there is no sequence 1|POST|/v1/attend|{"sequences":[2,1],"q":[[[1,0,0,0,0,0,0,0]],[[1,0,0,0,0,0,0,0]]]}
a batch|404 not_found ops[0]: there is no sequence 1|POST|/v1/batch|{"ops":[{"op":"delete","id":1}]}
a lease|404 not_found there is no lease 3|GET|/v1/leases/3|
a paged call|404 not_found there is no lease 3|POST|/v1/paged|{"lease":3,$q,"block_tables":[[0]],"context_lens":[1]}
its id for a new one|409 exists the id 1 is in use|POST|/v1/sequences|{"id":1}
a workload|404 not_found there is no workload 1|GET|/v1/workloads/1|
its end|404 not_found there is no workload 1|DELETE|/v1/workloads/1|
LIST
expect 'lists have what is its own' '[2] [1] [] [3]' "$(as bob "$URL/v1/sequences" | jq -c '[.items[].id]') $(as ann "$URL/v1/sequences" | jq -c '[.items[].id]') $(
    as bob "$URL/v1/leases" | jq -c '[.items[].id]') $(as ann "$URL/v1/leases" | jq -c '[.items[].id]')"
expect 'so has /stats' '[2] 1 0 [1] 1 1' "$(for k in bob ann; do as $k "$URL/stats" | jq -c '[.sequences.items[].id], .sequences.count, .leases'; done | paste -sd' ')"
epoch=$(as root "$URL/v1/tables" | jq .epoch)
expect 'and the tables of an epoch' '[2] [1] [] [1,2]' "$(for k in bob ann eve root; do as $k "$URL/v1/tables?epoch=$epoch" | jq -c '[.sequences[].id]'; done | paste -sd' ')"
expect 'admin sees all' '[1,2] 2 1' "$(as root "$URL/stats" | jq -c '[.sequences.items[].id], .sequences.count, .leases' | paste -sd' ')"
expect 'an admin is told whose they are, others are not' '["ann","bob"] ["ann","bob"] "ann" [null] null' \
    "$(for path in v1/sequences stats; do as root "$URL/$path" | jq -c '[.items // .sequences.items | .[].owner]'; done | paste -sd' ') $(
        as root "$URL/v1/sequences/1" | jq .owner) $(as ann "$URL/v1/sequences" | jq -c '[.items[].owner]') $(as ann "$URL/v1/sequences/1" | jq .owner)"
ctl_as() { "$CTL" --url "$URL" --key-file <(cat "$WORK/$1") "${@:2}"; }
expect 'of leases, too' '["ann"] ann 1' "$(as root "$URL/v1/leases" | jq -c '[.items[].owner]') $(as root "$URL/v1/leases/3" | jq -r .owner) $(ctl_as root lease list | grep -c '  ann$')"
expect 'attnctl shows it' 'owner ann,owner bob 0' "$(ctl_as root seq list | grep -o 'owner [a-z]*' | paste -sd,) $(ctl_as ann seq list | grep -c owner)"
expect 'of one, too' 'owner bob' "$(ctl_as root seq show 2 | grep -o 'owner [a-z]*')"
expect 'and passes it on' '["ann","bob"]' "$(ctl_as root --json seq list | jq -c '[.items[].owner]')"
# Bug: the id of a sequence that had moved was anybody's at once, and its clients were told 404.
as ann --json '{"id":700}' -o /dev/null "$URL/v1/sequences"
as ann --json '{"moved_to":"/v1/sequences/9","length":0}' "$URL/v1/sequences/700/moved"
gone_to() { as ann "$URL/v1/sequences/700" | jq -r '"\(.status) \(.moved_to)"'; }
expect 'the id of one that has moved is not for other keys' '409 exists the id 700 is in use 410 /v1/sequences/9' "$(as bob --json '{"id":700}' "$URL/v1/sequences" | problem) $(gone_to)"
expect 'nor in a batch, for a fork or a lease' '409 409 409 410 /v1/sequences/9' "$(as bob --json '{"ops":[{"op":"create","id":700}]}' "$URL/v1/batch" | jq .status) $(
    as bob --json '{"ids":[700]}' "$URL/v1/sequences/2/fork" | jq .status) $(as bob --json '{"id":700,"blocks":1}' "$URL/v1/leases" | jq .status) $(gone_to)"
expect 'its own may take it up again' '201 200' "$(code as ann --json '{"id":700}' "$URL/v1/sequences") $(code as ann "$URL/v1/sequences/700")"
as ann -X DELETE "$URL/v1/sequences/700"
expect 'nothing has changed' '0 0' "$(as ann "$URL/v1/sequences/1" | jq .length) $(as bob "$URL/v1/sequences/2" | jq .length)"

# Prompts of one key are not found by another.
prompt='{"tokens":[1,2,3,4,5,6,7,8]}'
rows=$(printf '[[1,1,1,1,1,1,1,1]],%.0s' $(seq 8))
id=$(as ann --json "$prompt" "$URL/v1/sequences" | jq .id)
as ann --json "{\"sequences\":[$id],\"indptr\":[0,8],\"k\":[${rows%,}],\"v\":[${rows%,}]}" "$URL/v1/append" >/dev/null &
waiting=$!
queued_of() { [ "$(as root "$URL/v1/sequences?state=queued" | jq -c '[.items[].id]')" = "$1" ]; }
flush_of() { as "$1" -o /dev/null --json '{"length":4000000000}' "$URL/v1/sequences/$2/truncate"; }
eventually queued_of "[$id]"
flush_of ann "$id"
wait $waiting
expect 'a prompt is cached for its key' '8 0' "$(as ann --json "$prompt" "$URL/v1/sequences" | jq .cached_tokens) $(as bob --json "$prompt" "$URL/v1/sequences" | jq .cached_tokens)"

# What has ended since is told to its key alone.
gone=$(as ann --json '{}' "$URL/v1/sequences" | jq .id)
epoch=$(as root "$URL/v1/tables" | jq .epoch)
as ann -X DELETE "$URL/v1/sequences/$gone"
expect 'a sequence that has ended is told to its key alone' 'false true true' \
    "$(for k in bob ann root; do as $k "$URL/v1/tables?epoch=$epoch" | jq "any(.sequences[]; .id == $gone)"; done | paste -sd' ')"

# ---- quotas
for _ in 1 2 3; do as few --json '{}' "$URL/v1/sequences" | jq .id; done >"$WORK/ids"
expect 'a quota of sequences' '429 quota_exceeded quotas.sequences of the key is 3: it has 3, and this makes 1 more' "$(as few --json '{}' "$URL/v1/sequences" | problem)"
first=$(head -1 "$WORK/ids")
expect 'forks count' 429 "$(code as few --json '{"count":1}' "$URL/v1/sequences/$first/fork")"
expect 'so do ops of a batch' '429 quota_exceeded ops[1]: quotas.sequences of the key is 3: it has 3, and this makes 1 more' \
    "$(as few --json "{\"ops\":[{\"op\":\"delete\",\"id\":$first},{\"op\":\"fork\",\"id\":$(sed -n 2p "$WORK/ids"),\"count\":2}]}" "$URL/v1/batch" | problem)"
expect 'more of them than the whole quota are never within it' '422 invalid ops[3]: quotas.sequences of the key is 3, and this makes 4' \
    "$(as narrow --json '{"ops":[{"op":"create"},{"op":"create"},{"op":"create"},{"op":"create"}]}' "$URL/v1/batch" | problem)"
expect 'one deleted, one made: that is within it' 200 \
    "$(code as few --json "{\"ops\":[{\"op\":\"delete\",\"id\":$first},{\"op\":\"create\",\"max_tokens\":16}]}" "$URL/v1/batch")"
expect 'what is promised counts' '429 quota_exceeded quotas.blocks of the key is 8: its tables have 4, those promised included, and this takes 5 more' \
    "$(as few --json "{\"ops\":[{\"op\":\"delete\",\"id\":$(sed -n 2p "$WORK/ids")}]}" -o /dev/null "$URL/v1/batch"; as few --json '{"blocks":5}' "$URL/v1/leases" | problem)"
expect 'more than the whole quota is never had: of a lease' '422 invalid quotas.blocks of the key is 8, and this takes 9' "$(as few --json '{"blocks":9}' "$URL/v1/leases" | problem)"
expect 'of a sequence with max_tokens' '422 invalid quotas.blocks of the key is 8, and this takes 10' "$(as few --json '{"max_tokens":40}' "$URL/v1/sequences" | problem)"
third=$(sed -n 3p "$WORK/ids")
rows=$(printf '[[1,1,1,1,1,1,1,1]],%.0s' $(seq 17))
expect 'so does what is appended' '429 quota_exceeded quotas.blocks of the key is 8: its tables have 4, those promised included, and this takes 5 more' "$(
    as few --json "{\"sequences\":[$third],\"indptr\":[0,17],\"k\":[${rows%,}],\"v\":[${rows%,}]}" "$URL/v1/append" >"$WORK/refused" &
    waiting=$!
    eventually queued_of "[$third]"
    as root -o /dev/null --json '{"length":4000000000}' "$URL/v1/sequences/$third/truncate"
    wait $waiting
    problem <"$WORK/refused")"
as few --json "{\"sequences\":[$third],$q,$one}" "$URL/v1/attend" >"$WORK/call" &
waiting=$!
eventually queued_of "[$third]"
expect 'a quota of calls' '429 quota_exceeded quotas.calls (1) of the key "few" are used up' "$(as few --json '{}' "$URL/v1/sequences" | problem)"
expect 'others have theirs' 201 "$(code as ann --json '{}' "$URL/v1/sequences")"
as root -o /dev/null --json '{"length":4000000000}' "$URL/v1/sequences/$third/truncate"
wait $waiting
expect 'it is answered' 1 "$(jq .rows_in_step "$WORK/call")"
expect 'more than all staging memory of a key' '422 invalid quotas.staging_bytes of the key "few" is 4096, and this takes 6040' \
    "$(tensors sequences I64 1 "$third" indptr I64 2 0,90 k F32 90,1,8 '720*1' v F32 90,1,8 '720*1' |
        as few -H 'Content-Type: application/x-safetensors' --data-binary @- "$URL/v1/append" | problem)"
# half_sent KEY PATH TYPE LENGTH BYTES - a request of which no more than so much of its body comes; it is on 9.
half_sent() {
    exec 9<>"/dev/tcp/127.0.0.1/$PORT"
    printf 'POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %s\r\n\r\n%s' "$2" "$(cat "$WORK/$1")" "$3" "$4" "$5" >&9
    caught_up
}
half_sent narrow /v1/append application/x-safetensors 3000 x
expect 'a quota of staging memory' '429 quota_exceeded quotas.staging_bytes (4096) of the key "narrow" are used up' \
    "$(head -c 2000 /dev/zero | as narrow -H 'Content-Type: application/x-safetensors' --data-binary @- "$URL/v1/append" | problem)"
exec 9>&- 9<&-
endless='{"sequences":[{"count":2,"prompt":4,"decode":3}],"arrival":{"rate":0.00001}}'
as lone -N -H 'Accept: application/x-ndjson' --json "$endless" "$URL/v1/workloads" >"$WORK/stream" &
streaming=$!
has_begun() { [ -s "$WORK/stream" ]; }
eventually has_begun
expect 'a quota of streams' '429 quota_exceeded quotas.streams (1) of the key "lone" are used up' \
    "$(as lone -H 'Accept: application/x-ndjson' --json "$endless" "$URL/v1/workloads" | problem)"
half_sent lone /v1/workloads text/csv 1000 TIMESTAMP,
expect 'a quota of uploads' '429 quota_exceeded quotas.uploads (1) of the key "lone" are used up' \
    "$(as lone -H 'Content-Type: text/csv' --data-binary 'x' "$URL/v1/workloads" | problem)"
exec 9>&- 9<&-
as lone "$URL/v1/workloads" | jq '.items[].id' | while read -r id; do as lone -o /dev/null -X DELETE "$URL/v1/workloads/$id"; done
wait $streaming
expect 'a workload that is too large for the key' '422 invalid quotas.blocks of the key is 8, and its longest sequence with its forks takes 25' \
    "$(as few --json '{"sequences":[{"prompt":50,"decode":50}]}' "$URL/v1/workloads" | problem)"
expect 'one that forks more than the key may have' '422 invalid quotas.sequences of the key is 3, and one of it has 3 forks' \
    "$(as few --json '{"sequences":[{"prompt":4,"decode":2,"fork":{"at":5,"count":3}}]}' "$URL/v1/workloads" | problem)"
as few --json '{"sequences":[{"count":4,"prompt":4,"decode":3}]}' "$URL/v1/workloads" >"$WORK/made"
has_finished() { [ "$(as few "$URL/v1/workloads/$(jq .id "$WORK/made")" | jq -r .state)" = finished ]; }
expect 'one that fits runs, as many of its sequences at a time as the quotas have room for' 0 "$(eventually has_finished; echo $?)"
taken=()
while id=$(as few --json '{}' "$URL/v1/sequences" | jq -e .id); do taken+=("$id"); done
as few --json '{"sequences":[{"prompt":4,"decode":3}]}' "$URL/v1/workloads" >"$WORK/made"
waits_for() { as few "$URL/v1/waiting" | jq -r '.items[] | select(.reason == "slots") | .detail'; }
does_wait() { [ "$(waits_for)" ]; }
eventually does_wait
expect 'one that waits for a quota says for which' 'quotas.sequences of its key is 3: 3 taken, 1 needed' "$(waits_for)"
for id in "${taken[@]}"; do as few -o /dev/null -X DELETE "$URL/v1/sequences/$id"; done
expect 'and goes on when there is room' 0 "$(eventually has_finished; echo $?)"
as few --json '{"sequences":[{"count":2,"prompt":4,"decode":3}],"arrival":{"rate":0.00001}}' "$URL/v1/workloads" >"$WORK/made"
expect 'a quota of workloads' '429 quota_exceeded quotas.workloads of the key is 1, and as many run' \
    "$(as few --json '{"sequences":[{"prompt":4,"decode":3}]}' "$URL/v1/workloads" | problem)"
expect 'a quota of requests a second' '200 200 429' "$(for _ in 1 2 3; do code as slow "$URL/v1/info"; echo; done | paste -sd' ')"
expect 'never to be idle for too long wants a scope' '403 201' "$(code as ann --json '{"idle_timeout_s":0}' "$URL/v1/sequences") $(code as keeper --json '{"idle_timeout_s":0}' "$URL/v1/sequences")"
figures() { "$@" | sed -n 's/^attnd_key_sequences{key="\([a-z]*\)"} \(.*\)/\1 \2/p' | paste -sd, ; }
of_few=$(as few "$URL/v1/sequences" | jq '.items | length')
expect 'an admin sees what each key has' "few $of_few" "$(figures as root "$URL/metrics" | tr , '\n' | grep few)"
expect 'and its blocks, of tables and promised' "$(as few "$URL/v1/sequences" | jq '[.items[] | (.max_tokens // 0) / 4, (.blocks | length) | floor] | add')" \
    "$(as root "$URL/metrics" | sed -n 's/^attnd_key_blocks{key="few"} //p')"
expect 'so does who reads the management listener' "$(figures as root "$URL/metrics")" "$(figures unix "$WORK/m" /metrics)"
work() { "${@:2}" | sed -n "s/^attnd_key_[a-z_]*_total{key=\"$1\"} //p" | paste -sd' '; }
before=$(work ann as ann "$URL/metrics")
id=$(as ann --json '{"tokens":[1,2,3,4]}' "$URL/v1/sequences" | jq .id)
row='[[1,0,0,0,0,0,0,0]]'
as ann -o /dev/null --json "{\"sequences\":[$id],\"indptr\":[0,3],\"k\":[$row,$row,$row],\"v\":[$row,$row,$row],\"q\":[$row,$row,$row]}" "$URL/v1/attend" &
attending=$!
eventually queued_of "[$id]"
flush_of ann "$id"
wait $attending
as ann -o /dev/null "$URL/v1/sequences/77777"
as ann -o /dev/null -X DELETE "$URL/v1/sequences/$id"
after=$(work ann as ann "$URL/metrics")
expect 'what a key has done is counted: tokens, queries, prompts, cached, problems' '3 3 4 4 1' "$(echo "$before $after" | awk '{for (i = 1; i <= 5; i++) printf "%s%d", (i > 1 ? " " : ""), $(i + 5) - $i}')"
expect 'and stays when it has nothing any more' "$after" "$(work ann as root "$URL/metrics")"
expect 'others see their own' 'eve 0' "$(figures as eve "$URL/metrics")"
expect 'the books balance' true "$(as root -X POST "$URL/v1/audit" | jq .ok)"

# ---- the management listener
expect 'management: probes and metrics' '200 200 200' "$(for path in livez readyz metrics; do code unix "$WORK/m" "/$path"; echo; done | paste -sd' ')"
expect 'management: administration, by who runs it' '200 200' "$(code unix "$WORK/m" /v1/audit -X POST) $(code unix "$WORK/m" /v1/roof -X POST)"
expect 'management: nothing else' 404 "$(code unix "$WORK/m" /v1/sequences)"
expect 'its socket is for its user' 600 "$(stat -c %a "$WORK/m")"

# ---- connections without a key
for fd in 4 5 6 7; do eval "exec $fd<>/dev/tcp/127.0.0.1/$PORT"; done
expect 'so many of one address' 'HTTP/1.1 503 Service Unavailable' "$(exec 9<>"/dev/tcp/127.0.0.1/$PORT"; head -1 <&9 | tr -d '\r')"
expect 'others are served' 200 "$(code unix "$WORK/s" /stats)"
exec 4>&- 5>&- 6>&- 7>&-

# Bug: of who was gone before it was accepted, the log said that its address is not in trusted_proxies.
kill -STOP "$DAEMON"
python3 -c '
import socket, struct, sys
for _ in range(5):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()' "${URL##*:}"
kill -CONT "$DAEMON"
expect 'who has gone before it is accepted is no news' '200 0' "$(code curl -s "$URL/livez") $(grep -c trusted_proxies "$WORK/log")"
# ---- the PROXY protocol
v2='\r\n\r\n\0\r\nQUIT\n'
proxied() { # HEADER-ESCAPES REQUEST-ESCAPES
    # shellcheck disable=SC2059
    printf "$1$2" | perl -MIO::Socket::UNIX -e '
        my $s = IO::Socket::UNIX->new(Peer => shift) or die;
        local $/; syswrite $s, <STDIN>; print readline $s;' "$WORK/p" | head -1 | tr -d '\r'
}
get="GET /stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
expect 'a header of the PROXY protocol' 'HTTP/1.1 200 OK' \
    "$(proxied "$v2\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01\x30\x39\x01\xbb" "${get}Authorization: Bearer $(cat "$WORK/ann")\r\n\r\n")"
expect 'it gives nobody a key' 'HTTP/1.1 401 Unauthorized' "$(proxied "$v2\x20\0\0\0" "$get\r\n")"
expect 'without one' '' "$(proxied '' "$get\r\n")"

# ---- reading the file again
as bob --json "{\"sequences\":[2],$q,$one}" "$URL/v1/attend" >"$WORK/ended" &
waiting=$!
eventually queued_of '[2]'
id=$(as bob --json '{"sequences":[{"count":2,"prompt":4,"decode":3}],"arrival":{"rate":0.00001}}' "$URL/v1/workloads" | jq .id)
entries=("${entries[0]}" "${entries[3]}")
write_keys
kill -HUP "$DAEMON"
wait $waiting
expect 'a key that is gone: its calls end' '401 unauthorized the key "bob" is no more' "$(problem <"$WORK/ended")"
expect 'it is none' '401 unauthorized there is no such key' "$(as bob "$URL/stats" | problem)"
owns_all() { [ "$(as root "$URL/v1/sequences?limit=1000" | jq '[.items[].id] | length')" = "$(as ann "$URL/v1/sequences?limit=1000" | jq '[.items[].id] | length')" ]; }
expect 'its sequences are removed' 0 "$(eventually owns_all; echo $?)"
has_ended() { [ "$(as root "$URL/v1/workloads/$id" | jq -r .state)" = cancelled ]; }
expect 'and its workload, which says why' '0 key' "$(eventually has_ended; echo "$? $(as root "$URL/v1/workloads/$id" | jq -r .reason)")"
eventually has_logged key_removed
expect 'the log says how much that was, and of whom (bug: the name was in the sentence only)' '["bob",null,null] ["bob",2,1]' \
    "$(logged -c 'select(.key == "bob" and (.event | tostring | startswith("key_"))) | [.key, .sequences, .workloads]' | paste -sd' ')"
check_keys() { "$ATTND" --config config/tiny.jsonc --set "keys.file=$WORK/keys" --check-keys 2>&1; echo $?; }
expect '--check-keys takes what is right' "keys.file: $WORK/keys: 2 keys"$'\n0' "$(check_keys)"
echo '{"keys": [' >"$WORK/keys"
expect 'and refuses what SIGHUP refuses, in its words' "attnd: keys.file: $WORK/keys: line 2, column 1: the text ends too early"$'\n78' "$(check_keys)"
expect 'without keys.file there is nothing to read' $'keys.file: is not set: there is nothing to read again\n0' "$("$ATTND" --check-keys 2>&1; echo $?)"
(umask 077; : >"$WORK/empty")
expect 'an empty file is called so' "attnd: keys.file: $WORK/empty: is empty" "$("$ATTND" --set "keys.file=$WORK/empty" --check-keys 2>&1)"
kill -HUP "$DAEMON"
eventually has_logged 'the keys stay as they are'
expect 'a file that is none changes nothing' 200 "$(code as ann "$URL/stats")"
expect 'the books balance still' true "$(as root -X POST "$URL/v1/audit" | jq .ok)"

# ---- another secret for a key: both open for a while, and what it has stays (bug: it was another owner, and all was removed)
owned() { as "$1" "$URL/v1/sequences?limit=1000" | jq -c '[.items[].id]'; }
reload() { # WITH - so many lines of the log say so
    local before
    before=$(grep -c 'SIGHUP: ' "$WORK/log")
    write_keys
    kill -HUP "$DAEMON"
    has_read() { [ "$(grep -c 'SIGHUP: ' "$WORK/log")" -gt "$before" ]; }
    eventually has_read
}
had=$(owned ann)
made=$("$CTL" --json key new ann infer)
jq -r .key <<<"$made" >"$WORK/ann-too"
old=${entries[0]}
entries[0]=$(jq -c --argjson made "$made" '.sha256 = [.sha256, $made.entry.sha256]' <<<"$old")
reload
digest_of() { printf '%s' "$1" | sha256sum | cut -c1-8; }
used() { as root "$URL/metrics" | sed -n "s/^attnd_key_used_timestamp_seconds{key=\"ann\",digest=\"\(.*\)\"} /\1 /p"; } # each: digest, when
is_used() { used | awk -v digest="$(digest_of "$(cat "$WORK/$1")")" '$1 == digest { print ($2 > 1.7e9) }'; }
expect 'metrics say which secrets of a key are used (bug: nobody knew whether the old one still was)' '2 1 0' "$(used | wc -l) $(is_used ann) $(is_used ann-too)"
expect 'the log says what a reload has changed (bug: it said "0 are no more" of each)' '[2,0,1,0]' "$(logged -c 'select(.event == "keys_read") | [.keys, .added, .changed, .ended]' | tail -n 1)"
expect 'and of whom' ann "$(logged 'select(.event == "key_changed").key' | tail -n 1)"
expect 'two secrets open' "$had $had" "$(owned ann) $(owned ann-too)"
expect 'then both are' '1 1' "$(is_used ann) $(is_used ann-too)"
entries[0]=$(jq -c .entry <<<"$made")
reload
expect 'then the new one alone' "$had 401" "$(owned ann-too) $(code as ann "$URL/stats")"
expect 'nobody has lost anything' 0 "$(logged -c 'select(.key == "ann" and (.event | tostring | test("^key_(ended|removed)$")))' | wc -l)"
refused() { as root "$URL/metrics" | sed -n 's/^attnd_keys_refused //p'; }
before=$(refused)
entries=()
reload
expect 'a file without keys is refused, since all would be removed (bug: it was)' "the keys stay as they are: $WORK/keys: has no keys" "$(logged 'select(.event == "keys_refused").msg' | tail -n 1 | sed 's/SIGHUP: //; s/ keys: .*/ keys/')"
expect 'and a metric says so' '0 1' "$before $(refused)"
expect 'by --check-keys too' "attnd: keys.file: $WORK/keys: has no keys: all that belongs to keys would be removed; a start takes such a file"$'\n78' "$(check_keys)"
expect 'and nobody has lost anything' "$had" "$(owned ann-too)"
stop_daemon
expect 'it ends cleanly' 0 $?

finish
