#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The largest requests that limits allow, one of each kind: no turn of the loop takes long for any (stop_daemon looks at that), and
# whoever leaves meanwhile leaves nothing behind.
. tests/integration/lib.sh
export WORK
start_daemon --set pool.blocks=4096 --set limits.sequence_tokens=65536 --set limits.sequences=2048
call() { curl -s --json "@$1" "$URL$2"; }
list() { # COUNT ITEM - [ITEM, ...]
    perl -e 'print "[", join(",", ($ARGV[1]) x $ARGV[0]), "]"' "$1" "$2"
}
head=$(list 64 0)
kv=$(list 115 "$(list 2 "$head")")
printf '{"id":1}' | curl -s --json @- "$URL/v1/sequences" >/dev/null
printf '{"layer":0,"sequences":[1],"indptr":[0,115],"k":%s,"v":%s}' "$kv" "$kv" >"$WORK/append"
expect '60 KB of JSON' 115 "$(call "$WORK/append" /v1/append | jq '.sequences[0].lengths[0]')"
printf '{"layer":0,"sequences":[1],"indptr":[0,58],"q":%s}' "$(list 58 "$(list 8 "$head")")" >"$WORK/attend"
expect '30 000 numbers of an answer' 29696 "$(call "$WORK/attend" /v1/attend | jq '[.o[][][]] | length')"
printf '{"id":2}' | curl -s --json @- "$URL/v1/sequences" >/dev/null
tensors sequences I64 1 2 indptr I64 2 0,16000 k BF16 16000,2,64 '2048000*1' v BF16 16000,2,64 '2048000*1' >"$WORK/t"
expect 'tensors of 8 MB' 16000 "$(post '/v1/append?layer=0' <"$WORK/t" | jq '.sequences[0].lengths[0]')"
tensors sequences I64 1 2 indptr I64 2 0,190 q BF16 190,8,64 '97280*1' >"$WORK/t"
expect '97 280 numbers, the most there are' 97280 "$(post '/v1/attend?layer=0&accept=json' <"$WORK/t" | jq '[.o[][][]] | length')"
tensors o BF16 2,8000,8,64 '8192000*1' lse F32 2,8000,8 '128000*0' >"$WORK/t"
expect 'states of 17 MB' 8448000 "$(post /v1/merge <"$WORK/t" | perl -e 'local $/; my $n = length <STDIN>; print $n - $n % 1000')"
expect 'a table of 1 000 blocks' 1000 "$(curl -s "$URL/v1/sequences/2/blocks" | jq length)"
expect 'a page of blocks' 1000 "$(curl -s "$URL/v1/blocks?limit=1000" | jq '.blocks | length')"
printf '{"ops":%s}' "$(list 1800 '{"op":"create"}')" >"$WORK/ops"
expect 'a batch of 1 800' 1800 "$(call "$WORK/ops" /v1/batch | jq '.results | length')"
expect 'a page of sequences' 1000 "$(curl -s "$URL/v1/sequences?limit=1000" | jq '.items | length')"
printf '{"ops":[%s]}' "$(curl -s "$URL/v1/sequences?limit=1000" | jq -r '[.items[].id | "{\"op\":\"delete\",\"id\":\(.)}"] | join(",")')" >"$WORK/ops"
expect 'a batch of 1 000 deletes' 1000 "$(call "$WORK/ops" /v1/batch | jq '.results | length')"
end() { curl -s -X DELETE "$URL/v1/workloads/$(jq .id)" | jq -r .state; }
expect 'a workload of 100 000 requests' cancelled \
    "$(curl -s --json '{"shape":"azure-conv","count":100000,"length_scale":0.001,"arrival":{"rate":1}}' "$URL/v1/workloads" | end)"
perl -e 'print "TIMESTAMP,ContextTokens,GeneratedTokens\n", "2023-11-16 18:15:46.6805900,3,4\n" x 100000' >"$WORK/csv"
perl -e 'print "{\"timestamp\": $_, \"input_length\": 3, \"output_length\": 2, \"hash_ids\": [1,2,3,4,5,6]}\n" for 1 .. 50000' >"$WORK/jsonl"
trace() { curl -s -H "Content-Type: $1" --data-binary "@$2" "$URL/v1/workloads?time_scale=1000"; }
expect 'a CSV of 3 MB' cancelled "$(trace text/csv "$WORK/csv" | end)"
expect 'JSON lines of 4 MB' cancelled "$(trace application/x-ndjson "$WORK/jsonl" | end)"
for _ in $(seq 10); do trace text/csv "$WORK/jsonl" | jq .status; done >"$WORK/refused"
expect 'ten traces that are none (bug: each kept its place)' "$(printf '400\n%.0s' $(seq 10))" "$(cat "$WORK/refused")"
head -100 "$WORK/csv" >"$WORK/short"
for _ in $(seq 9); do trace text/csv "$WORK/short" | jq 'has("digest")'; done >"$WORK/some"
expect 'nine that are some (bug: likewise)' "$(printf 'true\n%.0s' $(seq 9))" "$(cat "$WORK/some")"

# Clients that leave while a worker has their request.
leaving=()
for _ in $(seq 20); do
    for what in append:/v1/append attend:/v1/attend ops:/v1/batch; do
        perl -MIO::Socket::INET -e '
            my ($file, $path) = split /:/, shift;
            open my $f, "<", "$ENV{WORK}/$file"; local $/; my $body = <$f>;
            my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ENV{PORT}") or die;
            syswrite $s, "POST $path HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " .
                length($body) . "\r\n\r\n$body";' "$what" &
        leaving+=($!)
    done
    command curl -s -m 0.02 -H 'Content-Type: text/csv' --data-binary "@$WORK/csv" "$URL/v1/workloads?time_scale=1000" >/dev/null
done
wait "${leaving[@]}"
expect 'they are gone' 0 "$(eventually is_alone; echo $?)"
staging() { [ "$(curl -s "$URL/metrics" | sed -n 's/^attnd_staging_bytes_used //p')" = 0 ]; }
expect 'and so is what they sent' 0 "$(eventually staging; echo $?)"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
