#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Workloads whose outputs come back; when they end by themselves and when not, and how long they are told about.
. tests/integration/lib.sh
stream() { curl -sN -H "Accept: ${2:-application/x-ndjson}" --json "$1" "$URL/v1/workloads"; }
outputs() { grep '"o":' "$1" | sort; }
geometry=(--set geometry.layers=2 --set geometry.query_heads=4 --set geometry.kv_heads=2 --set geometry.head_dim=16
    --set geometry.block_size=4)
start_daemon "${geometry[@]}" --set pool.blocks=40000 --set limits.workload_s=1000

# ---- every output, once
some='{"seed":3,"sequences":[{"count":20,"prompt":30,"decode":12,"prefix":{"id":1,"length":16},"fork":{"at":33,"count":2}}],"return":"outputs"}'
stream "$some" >"$WORK/some"
expect 'progress first, the report last' 'running finished' "$(sed -n '1p;$p' "$WORK/some" | jq -r .state | paste -sd' ')"
expect 'an output for every row at every layer' "$(tail -n 1 "$WORK/some" | jq .rows)" "$(outputs "$WORK/some" | wc -l)"
expect 'each once' 0 "$(outputs "$WORK/some" | jq -c '[.sequence, .position, .layer]' | sort | uniq -d | wc -l)"
expect 'of four heads of 16 numbers' '[[4,16]]' "$(outputs "$WORK/some" | jq -sc 'map([(.o | length), (.o[0] | length)]) | unique')"
stream "${some/\"return\"/\"sharing\":\"off\",\"return\"}" >"$WORK/again"
expect 'the same whatever they share' "$(outputs "$WORK/some" | sha256sum)" "$(outputs "$WORK/again" | sha256sum)"
expect 'the digest does not depend on who looks' "$(tail -n 1 "$WORK/some" | jq .digest)" \
    "$(stream "${some/outputs/digest}" | tail -n 1 | jq .digest)"
stream "$some" text/event-stream >"$WORK/events"
expect 'as events' "$(outputs "$WORK/some" | sha256sum)" "$(sed -n 's/^data: //p' "$WORK/events" | grep '"o":' | sort | sha256sum)"
expect 'with names' 'output progress report' "$(sed -n 's/^event: //p' "$WORK/events" | sort -u | paste -sd' ')"
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,30,5\n' >"$WORK/trace"
expect 'of a trace' 10 "$(curl -sN -H 'Accept: application/x-ndjson' -H 'Content-Type: text/csv' --data-binary "@$WORK/trace" \
    "$URL/v1/workloads?return=outputs" | grep -c '"o":')"
expect 'not without a stream' '422 return: outputs are streamed: ask with Accept: application/x-ndjson or text/event-stream' \
    "$(curl -s --json "$some" "$URL/v1/workloads" | jq -r '"\(.status) \(.detail)"')"
expect 'a third thing' '422 /return: wants digest or outputs' \
    "$(stream "${some/outputs/nothing}" | jq -r '"\(.status) \(.detail)"')"

# ---- deadlines
expect 'a deadline' 'cancelled deadline 0.05' \
    "$(stream '{"sequences":[{"prompt":100,"decode":100000}],"deadline_s":0.05}' | tail -n 1 | jq -r '"\(.state) \(.reason) \(.deadline_s)"')"
expect 'its blocks come back' 0 "$(curl -s "$URL/stats" | jq .pool.held)"
expect 'a workload without one has the longest' 1000 "$(stream '{"sequences":[{"decode":1}]}' | tail -n 1 | jq .deadline_s)"
expect 'a longer one' '422 /deadline_s: wants a number in 0.001..1000' \
    "$(stream '{"sequences":[{"decode":1}],"deadline_s":1001}' | jq -r '"\(.status) \(.detail)"')"
expect 'what arrives too late for it' '422 the last request arrives after 20 s, and deadline_s is 10' \
    "$(stream '{"trace":[{"prompt":1,"decode":1},{"arrival_s":20,"prompt":1,"decode":1}],"deadline_s":10}' | jq -r '"\(.status) \(.detail)"')"
id=$(curl -s --json '{"trace":[{"arrival_s":900,"prompt":1,"decode":1}]}' "$URL/v1/workloads" | jq .id)
expect 'one that waits for its arrivals' 'running null null' \
    "$(curl -s "$URL/v1/workloads/$id" | jq -r '"\(.state) \(.reason) \(.expires_in_s)"')"
expect 'is cancelled by a request' 'cancelled request 3600' \
    "$(curl -s -X DELETE "$URL/v1/workloads/$id" | jq -r '"\(.state) \(.reason) \(.expires_in_s)"')"
stop_daemon

# ---- a client that does not read what it asked for keeps nobody waiting
start_daemon "${geometry[@]}" --set geometry.query_heads=64 --set geometry.head_dim=64 --set pool.blocks=4000
body='{"sequences":[{"count":8,"prompt":8,"decode":400}],"return":"outputs"}'
cat >"$WORK/reader.pl" <<'P'
use IO::Socket::INET;
my ($port, $body, $go) = @ARGV;
my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port", Proto => "tcp") or die;
printf $s "POST /v1/workloads HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length $body, $body;
select undef, undef, undef, 0.02 until -e $go;
print while <$s>;
P
perl "$WORK/reader.pl" "$PORT" "$body" "$WORK/go" >"$WORK/slow" &
reader=$!
rows() { curl -s "$URL/v1/workloads/1" | jq '.rows // 0'; }
stands_still() { local before; before=$(rows); sleep 0.3; [ "$before" -gt 0 ] && [ "$before" = "$(rows)" ]; }
eventually stands_still
expect 'it stands still' running "$(curl -s "$URL/v1/workloads/1" | jq -r .state)"
expect 'others come to their end' finished "$(stream '{"sequences":[{"count":4,"prompt":20,"decode":20}]}' | tail -n 1 | jq -r .state)"
expect 'also with their outputs' 160 "$(stream '{"sequences":[{"count":4,"prompt":20,"decode":20}],"return":"outputs"}' | grep -c '"o":')"
touch "$WORK/go"
wait $reader
expect 'once it reads it gets all of them' 6400 "$(grep -c '"o":' "$WORK/slow")"
stop_daemon

# ---- what is told of those that have ended, and by whom they are
made=$("$(dirname "$ATTND")/attnctl" --json key new ann infer)
(umask 077; jq '{keys: [.entry]}' <<<"$made" >"$WORK/keys")
start_daemon "${geometry[@]}" --set "keys.file=$WORK/keys" --set limits.workload_kept_s=0
key=(-H "Authorization: Bearer $(jq -r .key <<<"$made")")
expect 'a workload says whose it is' ann \
    "$(curl -sN "${key[@]}" -H 'Accept: application/x-ndjson' --json '{"sequences":[{"decode":1}]}' "$URL/v1/workloads" | tail -n 1 | jq -r .owner)"
expect 'one is forgotten when its time has come' '404 []' \
    "$(curl -s "${key[@]}" "$URL/v1/workloads/1" | jq .status) $(curl -s "${key[@]}" "$URL/v1/workloads" | jq -c .items)"
stop_daemon
finish
