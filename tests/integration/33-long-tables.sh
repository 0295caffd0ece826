#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Answers list a bounded number of block ids, and say where the rest is had.
. tests/integration/lib.sh
start_daemon --config config/tiny.jsonc --set pool.blocks=6000 --set limits.sequence_tokens=12000 --set geometry.block_size=4

ask() { curl -s "$@"; }
link() { curl -s -o /dev/null -w '%header{link}' "$URL$1"; }
rows=9000
ask -X POST "$URL/v1/sequences" >"$WORK/created"
tensors sequences I64 1 1 indptr I64 2 0,$rows k F32 $rows,1,8 "$((rows * 8))*1" v F32 $rows,1,8 "$((rows * 8))*2" | post /v1/append >"$WORK/appended"
expect 'a sequence of 2 250 blocks' '{"id":1,"length":9000}' "$(jq -c '.sequences[0] | {id, length}' "$WORK/appended")"

expect 'it lists the first 1 000, and says where the rest begins' '1000 1000' \
    "$(ask "$URL/v1/sequences/1" | jq -r '"\(.blocks | length) \(.blocks_next)"')"
expect 'so do lists of sequences' '1000 1000' "$(ask "$URL/v1/sequences" | jq -r '.items[0] | "\(.blocks | length) \(.blocks_next)"')"
expect 'so does /stats' '1000 1000' "$(ask "$URL/stats" | jq -r '.sequences.items[0] | "\(.blocks | length) \(.blocks_next)"')"
expect 'its table comes in pages' '1000 0 999' "$(ask "$URL/v1/sequences/1/blocks" | jq -r '"\(length) \(.[0].index) \(.[-1].index)"')"
expect 'of which each leads to the next' '</v1/sequences/1/blocks?cursor=1000&limit=1000>; rel="next"' "$(link /v1/sequences/1/blocks)"
expect 'to the last' '250 2000 2249 ' \
    "$(ask "$URL/v1/sequences/1/blocks?cursor=2000" | jq -r '"\(length) \(.[0].index) \(.[-1].index)"') $(link '/v1/sequences/1/blocks?cursor=2000')"
expect 'a page is as long as wanted' '[5,6,7]' "$(ask "$URL/v1/sequences/1/blocks?cursor=5&limit=3" | jq -c 'map(.index)')"
expect 'behind the end is nothing' '[]' "$(ask "$URL/v1/sequences/1/blocks?cursor=4000000000")"
expect 'a page of nothing' 422 "$(ask "$URL/v1/sequences/1/blocks?limit=0" | jq .status)"

expect 'a fork lists as many' '1000 1000' "$(ask --json '{}' "$URL/v1/sequences/1/fork" | jq -r '.sequences[0] | "\(.blocks | length) \(.blocks_next)"')"
expect 'many forks fewer' '[[400,400]]' \
    "$(ask --json '{"count":250}' "$URL/v1/sequences/1/fork" | jq -c '[.sequences[] | [(.blocks | length), .blocks_next]] | unique')"
expect 'and so does a batch' '[[332,332]]' \
    "$(ask --json '{"ops":[{"op":"fork","id":1,"count":300}]}' "$URL/v1/batch" | jq -c '[.results[0].sequences[] | [(.blocks | length), .blocks_next]] | unique')"
expect 'a page of them all ends where its ids do' '100 true' \
    "$(ask "$URL/v1/sequences?limit=1000" | jq -r '"\(.items | length) \(.next != null)"')"

expect 'a lease lists all of its blocks when it is made' '1500 null' \
    "$(ask --json '{"blocks":1500,"id":5000}' "$URL/v1/leases" | jq -r '"\(.blocks | length) \(.blocks_next)"')"
expect 'later the first ones' '1000 1000' "$(ask "$URL/v1/leases/5000" | jq -r '"\(.blocks | length) \(.blocks_next)"')"
expect 'and the rest by pages' '500 </v1/leases/5000/blocks?cursor=1000&limit=1000>; rel="next"' \
    "$(ask "$URL/v1/leases/5000/blocks?cursor=1000" | jq length) $(link /v1/leases/5000/blocks)"
expect 'which are not those of a sequence' 404 "$(ask "$URL/v1/sequences/5000/blocks" | jq .status)"
expect 'every count adds up' true "$(ask -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
finish
