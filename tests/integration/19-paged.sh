#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Block tables of the caller's own, on blocks that it leases: attention through them has the bits of attention on a sequence, in
# vLLM's form (block_tables) and in FlashInfer's (CSR); what is not the lease's is refused.
. tests/integration/small.sh
q='[[[1,0,2,0,1,0,0,1],[0,1,0,-1,0,1,0,1]]]'
qqq="[${q:1:-1},[[0,0,1,1,0,0,1,0],[2,0,0,0,0,0,0,-1]],[[1,1,1,1,0,0,0,0],[0,0,0,0,1,1,1,1]]]"
start_daemon "${geometry[@]}" --set pool.blocks=16

# What comes out on sequences: 10 tokens, 3 tokens, none.
for id in 1 2 3; do call /v1/sequences "{\"id\":$id}" >/dev/null; done
call /v1/append "{\"layer\":1,\"sequences\":[1],\"indptr\":[0,10],\"k\":$(rows 5 10),\"v\":$(rows 30 10)}" >/dev/null
call /v1/append "{\"layer\":1,\"sequences\":[2],\"indptr\":[0,3],\"k\":$(rows 70 3),\"v\":$(rows 80 3)}" >/dev/null
one=$(call /v1/attend "{\"layer\":1,\"sequences\":[1],\"q\":$q,\"lse\":true}" | jq -c '[.o, .lse]')
three=$(call /v1/attend "{\"layer\":1,\"sequences\":[1],\"indptr\":[0,3],\"q\":$qqq,\"lse\":true}" | jq -c '[.o, .lse]')
both=$(call /v1/attend "{\"layer\":1,\"sequences\":[1,2],\"q\":$(jq -c '.[:2]' <<<"$qqq"),\"lse\":true}" | jq -c '[.o, .lse]')
all=$(jq -c '[.[0] + [[range(2) | [range(8) | 0]]], .[1] + [[null, null]]]' <<<"$both") # a row that sees nothing is zeros

expect 'a lease' '201 {"id":4,"blocks":[4,5,6,7,8,9]} /v1/leases/4' \
    "$(curl -s -D "$WORK/head" -w '%{http_code} ' -o "$WORK/lease" --json '{"blocks":6}' "$URL/v1/leases")$(cat "$WORK/lease") $(
        tr -d '\r' <"$WORK/head" | sed -n 's/^Location: //p')"
expect 'it is listed' '{"items":[{"id":4,"blocks":[4,5,6,7,8,9]}],"next":null}' \
    "$(curl -s "$URL/v1/leases" | jq -c '.items |= map({id, blocks})')"
expect 'and shown' '[4,6]' "$(curl -s "$URL/v1/leases/4" | jq -c '[.id, (.blocks | length)]')"
expect 'it is no sequence' '404 [3,1,6]' \
    "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/sequences/4") $(stat '[.sequences.count, .leases, .pool.leased]')"
expect 'its id is taken' '409 there is a lease 4 already' "$(call /v1/sequences '{"id":4}' | problem)"

# Ten tokens in blocks 8, 5 and 9, written in two goes; then one more call reads them.
expect 'written, not read' '{"tokens":6}' \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"slot_mapping\":[32,33,34,35,20,21],\"k\":$(rows 5 6),\"v\":$(rows 30 6)}")"
expect 'written and read: the bits of a sequence' "$one" \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"slot_mapping\":[22,23,36,37],\"k\":$(rows 11 4),\"v\":$(rows 36 4),\"q\":$q,\"lse\":true,
        \"block_tables\":[[8,5,9,-1]],\"context_lens\":[10]}" | jq -c '[.o, .lse]')"
expect 'in CSR' "$one" \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"q\":$q,\"lse\":true,\"kv_indptr\":[0,3],\"kv_indices\":[8,5,9],\"kv_last_page_len\":[2]}" | jq -c '[.o, .lse]')"
expect 'several rows of one sequence' "$three" \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"q\":$qqq,\"indptr\":[0,3],\"lse\":true,\"block_tables\":[[8,5,9]],\"context_lens\":[10]}" | jq -c '[.o, .lse]')"
expect 'out of order, and one that goes nowhere' '{"tokens":3}' \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"slot_mapping\":[30,-1,28,29],\"k\":[$(rows 72 1 | jq -c '.[]'),$(rows 1 1 | jq -c '.[]'),$(rows 70 2 | jq -c '.[]' | paste -sd,)],
        \"v\":[$(rows 82 1 | jq -c '.[]'),$(rows 1 1 | jq -c '.[]'),$(rows 80 2 | jq -c '.[]' | paste -sd,)]}")"
expect 'ragged: ten, three and no tokens' "$all" \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"q\":$qqq,\"lse\":true,\"kv_indptr\":[0,3,4,4],\"kv_indices\":[8,5,9,7],\"kv_last_page_len\":[2,3,0]}" | jq -c '[.o, .lse]')"
expect 'the same in dense tables' "$all" \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"q\":$qqq,\"lse\":true,\"block_tables\":[[8,5,9],[7,-1,-1],[-1,-1,-1]],\"context_lens\":[10,3,0]}" | jq -c '[.o, .lse]')"
expect 'a sequence without rows' "$(jq -c '[[.[0][0]],[.[1][0]]]' <<<"$all")" \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"q\":$q,\"indptr\":[0,1,1],\"lse\":true,\"block_tables\":[[8,5,9],[7,-1,-1]],\"context_lens\":[10,3]}" | jq -c '[.o, .lse]')"
# paged TABLES LENGTHS [Q]: what the last token of each table gives.
paged() { call /v1/paged "{\"lease\":4,\"layer\":1,\"q\":${3:-$q},\"lse\":true,\"block_tables\":$1,\"context_lens\":$2}" | jq -c '[.o, .lse]'; }
qq="[${q:1:-1},${q:1:-1}]"
expect 'tables that agree after they differ: the bits of each alone' "$(jq -sc 'transpose | map(add)' <<<"$(paged '[[8,9]]' '[6]')$(paged '[[5,9]]' '[6]')")" \
    "$(paged '[[8,9],[5,9]]' '[6,6]' "$qq")"
expect 'those two differ' true "$(jq -sc '.[0] != .[1]' <<<"$(paged '[[8,9]]' '[6]')$(paged '[[5,9]]' '[6]')")"
call /v1/sequences '{"id":6}' >/dev/null
for _ in 1 2; do call /v1/append "{\"layer\":1,\"sequences\":[6],\"indptr\":[0,4],\"k\":$(rows 5 4),\"v\":$(rows 30 4)}" >/dev/null; done
expect 'a block that a table names twice' "$(call /v1/attend "{\"layer\":1,\"sequences\":[6],\"q\":$q,\"lse\":true}" | jq -c '[.o, .lse]')" \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"q\":$q,\"lse\":true,\"block_tables\":[[8,8]],\"context_lens\":[8]}" | jq -c '[.o, .lse]')"
curl -s -X DELETE "$URL/v1/sequences/6"
expect 'what was never written is zero: the mean of nothing' '[0,1.3862944]' \
    "$(call /v1/paged "{\"layer\":0,\"lease\":4,\"q\":$q,\"lse\":true,\"block_tables\":[[4]],\"context_lens\":[4]}" | jq -c '[.o[0][0][0], .lse[0][0]]')"
tensors slot_mapping I64 2 16,17 k F32 2,1,8 "$(seq -s, 16)" v F32 2,1,8 "$(seq -s, 16)" q F32 1,2,8 '16*0' block_tables I64 1,1 4 \
    context_lens I64 1 2 | post '/v1/paged?lease=4&layer=0&lse=1' >"$WORK/o"
expect 'as safetensors: the mean of two rows' '5 6 7 8 9 10 11 12' \
    "$(perl -e 'local $/; $_ = <STDIN>; my $n = unpack("Q<", $_); print join(" ", unpack("f<8", substr($_, 8 + $n)))' <"$WORK/o")"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"

call /v1/leases '{"blocks":2,"id":77}' >/dev/null
kv="\"k\":$(rows 1 1),\"v\":$(rows 1 1)"
table='"block_tables":[[4]],"context_lens":[1]'
while IFS='|' read -r name want request; do
    expect "$name" "$want" "$(call /v1/paged "$request" | problem)"
done <<LIST
no lease|422 /lease: is missing: POST /v1/leases reserves blocks|{"layer":0,"q":$q,$table}
a lease that is none|404 there is no lease 1|{"layer":0,"lease":1,"q":$q,$table}
a block of another lease|422 block_tables: sequence 0, entry 0: block 10 is not in lease 4|{"layer":0,"lease":4,"q":$q,"block_tables":[[10]],"context_lens":[1]}
a block of a sequence|422 block_tables: sequence 0, entry 1: block 0 is not in lease 4|{"layer":0,"lease":4,"q":$q,"block_tables":[[4,0]],"context_lens":[5]}
a slot of another lease|422 slot_mapping: token 0: slot 40 is in block 10, which is not in lease 4|{"layer":0,"lease":4,"slot_mapping":[40],$kv}
a block that is none|422 /block_tables: sequence 0, entry 0: wants a block in 0..15|{"layer":0,"lease":4,"q":$q,"block_tables":[[16]],"context_lens":[1]}
a missing block|422 /block_tables: sequence 0, entry 1: wants a block in 0..15|{"layer":0,"lease":4,"q":$q,"block_tables":[[4,-1]],"context_lens":[5]}
a slot that is none|422 /slot_mapping: entry 0: wants block * 4 + slot in 0..63, or -1|{"layer":0,"lease":4,"slot_mapping":[64],$kv}
a slot twice|422 /slot_mapping: names slot 16 twice|{"layer":0,"lease":4,"slot_mapping":[16,16],"k":$(rows 1 2),"v":$(rows 1 2)}
slots for other rows|422 /k: wants F32 [2, 1, 8], has F32 [1, 1, 8]|{"layer":0,"lease":4,"slot_mapping":[16,17],$kv}
k and v without slots|422 /slot_mapping: is missing: it says where k and v go|{"layer":0,"lease":4,$kv}
slots without k and v|422 /slot_mapping: belongs to k and v, which are missing|{"layer":0,"lease":4,"q":$q,"slot_mapping":[16],$table}
k without v|422 /v: is missing: k and v come together|{"layer":0,"lease":4,"slot_mapping":[16],"k":$(rows 1 1)}
nothing at all|422 /q: is missing, and so are k and v|{"layer":0,"lease":4}
both forms|422 /block_tables: wants block_tables and context_lens, or kv_indptr, kv_indices and kv_last_page_len|{"layer":0,"lease":4,"q":$q,$table,"kv_indptr":[0,0]}
neither form|422 /block_tables: wants block_tables and context_lens, or kv_indptr, kv_indices and kv_last_page_len|{"layer":0,"lease":4,"q":$q}
half a form|422 /context_lens: is missing|{"layer":0,"lease":4,"q":$q,"block_tables":[[4]]}
half of CSR|422 /kv_last_page_len: is missing|{"layer":0,"lease":4,"q":$q,"kv_indptr":[0,1],"kv_indices":[4]}
tables without q|422 /block_tables: belongs to q, which is missing|{"layer":0,"lease":4,"slot_mapping":[16],$kv,$table}
a table too short|422 /context_lens: entry 0: 5 tokens are 2 blocks, and its table has 1|{"layer":0,"lease":4,"q":$q,"block_tables":[[4]],"context_lens":[5]}
a negative length|422 /context_lens: entry 0: wants 0..131072 (limits.sequence_tokens)|{"layer":0,"lease":4,"q":$q,"block_tables":[[4]],"context_lens":[-1]}
a length that is huge|422 /context_lens: entry 0: wants 0..131072 (limits.sequence_tokens)|{"layer":0,"lease":4,"q":$q,"block_tables":[[4]],"context_lens":[4294967297]}
rows of tables that differ|422 /block_tables/1: wants a list of 2, as the first one there is|{"layer":0,"lease":4,"q":$qqq,"block_tables":[[4,5],[4]],"context_lens":[1,1]}
fewer tables than lengths|422 /block_tables: wants a row of the same length for each of 2 sequences|{"layer":0,"lease":4,"q":$q,"block_tables":[[4]],"context_lens":[1,1]}
pages that fall|422 /kv_indptr: wants numbers that rise from 0 to 2, the number of kv_indices|{"layer":0,"lease":4,"q":$q,"kv_indptr":[0,3,2],"kv_indices":[4,5],"kv_last_page_len":[1,1]}
pages left over|422 /kv_indptr: wants numbers that rise from 0 to 2, the number of kv_indices|{"layer":0,"lease":4,"q":$q,"kv_indptr":[0,1],"kv_indices":[4,5],"kv_last_page_len":[1]}
a last page too full|422 /kv_last_page_len: entry 0: wants 1..4 (block_size)|{"layer":0,"lease":4,"q":$q,"kv_indptr":[0,1],"kv_indices":[4],"kv_last_page_len":[5]}
an empty last page|422 /kv_last_page_len: entry 0: wants 1..4 (block_size)|{"layer":0,"lease":4,"q":$q,"kv_indptr":[0,1],"kv_indices":[4],"kv_last_page_len":[0]}
more rows than tokens|422 /indptr: sequence 0 has 2 tokens, and 3 rows ask for the last of them|{"layer":0,"lease":4,"q":$qqq,"indptr":[0,3],"block_tables":[[4]],"context_lens":[2]}
rows that fall|422 /indptr: wants 3 numbers, one more than sequences, rising from 0|{"layer":0,"lease":4,"q":$q,"indptr":[0,1,0],"block_tables":[[4],[4]],"context_lens":[2,2]}
another number of rows|422 /q: wants F32 [2, 2, 8], has F32 [1, 2, 8]|{"layer":0,"lease":4,"q":$q,"block_tables":[[4],[4]],"context_lens":[2,2]}
an unknown member|422 /sequences: there is no such member|{"layer":0,"lease":4,"q":$q,$table,"sequences":[1]}
a kernel that is none|422 /kernel: wants auto, paged_v1 or paged_v2|{"layer":0,"lease":4,"q":$q,$table,"kernel":"fast"}
a kernel of another layout|422 kernel: paged_v1 and paged_v2 go with geometry.layout vllm and backend.name cuda|{"layer":0,"lease":4,"q":$q,$table,"kernel":"paged_v2"}
LIST
expect 'too much for the pool' '422 needs 17 blocks; the pool has 16' "$(call /v1/leases '{"blocks":17}' | problem)"
expect 'too much for now' '503 needs 9 blocks of 16; 4 free, 0 reclaimable' "$(call /v1/leases '{"blocks":9}' | problem)"
expect 'a lease of nothing' '422 /blocks: wants an integer in 1..100000' "$(call /v1/leases '{"blocks":0}' | problem)"
expect 'nothing of that has changed anything' "$one" \
    "$(call /v1/paged "{\"lease\":4,\"layer\":1,\"q\":$q,\"lse\":true,\"block_tables\":[[8,5,9]],\"context_lens\":[10]}" | jq -c '[.o, .lse]')"
expect 'a sequence cannot be attended through a lease' '404 there is no sequence 4' "$(call /v1/attend "{\"layer\":0,\"sequences\":[4],\"q\":$q}" | problem)"
expect 'given back' 204 "$(curl -s -o /dev/null -w '%{http_code}' -X DELETE "$URL/v1/leases/4")"
expect 'and gone' '404 there is no lease 4' "$(call /v1/paged "{\"layer\":0,\"lease\":4,\"q\":$q,$table}" | problem)"
call /v1/leases '{"blocks":1,"id":9,"idle_timeout_s":1}' >/dev/null
is_taken_back() { [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/leases/9")" = 410 ]; }
expect 'an unused one is taken back' '0 [2,2]' "$(eventually is_taken_back; echo $?) $(stat '[.leases + 1, .pool.leased]')"
stop_daemon
expect 'it ends cleanly' 0 $?

# Delete PATH while a call on lease 7 waits for company, whose answer is in $WORK/waits then; prints the code.
delete_meanwhile() {
    local body="{\"layer\":0,\"lease\":7,\"q\":$q,\"block_tables\":[[0]],\"context_lens\":[2]}"
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf 'POST /v1/paged HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
        ${#body} "$body" >&3
    caught_up
    curl -s -o /dev/null -w '%{http_code}' -X DELETE "$URL$1"
    call /v1/leases '{"blocks":1,"id":8}' >/dev/null # which does not wait for company: all that is queued runs
    curl -s -X DELETE "$URL/v1/leases/8"
    timeout $HANG_S cat <&3 | sed '1,/^\r$/d' >"$WORK/waits"
    exec 3>&-
}
# A sequence that is deleted by the number of a lease is none, and calls on the lease do not care.
start_daemon "${geometry[@]}" --set pool.blocks=8 --set scheduler.batch_window_us=600000000
call /v1/leases '{"blocks":1,"id":7}' >/dev/null
expect 'there is no such sequence' 404 "$(delete_meanwhile /v1/sequences/7)"
expect 'the call on the lease runs' '[[[0,0,0,0,0,0,0,0],[0,0,0,0,0,0,0,0]]]' "$(jq -c '.o // .detail' "$WORK/waits")"
expect 'the lease is deleted' 204 "$(delete_meanwhile /v1/leases/7)"
expect 'and the call on it ends' '410 lease 7 was deleted before the call ran' "$(problem <"$WORK/waits")"
stop_daemon

# A lease may push idle sequences out to the host.
start_daemon "${geometry[@]}" --set pool.blocks=8 --set pool.host_blocks=8
call /v1/sequences '{"id":1}' >/dev/null
for layer in 0 1; do call /v1/append "{\"layer\":$layer,\"sequences\":[1],\"indptr\":[0,10],\"k\":$(rows 5 10),\"v\":$(rows 30 10)}" >/dev/null; done
expect 'a lease of all but two blocks' '[6,"swapped"]' \
    "$(n=$(call /v1/leases '{"blocks":6,"id":2}' | jq '.blocks | length'); curl -s "$URL/v1/sequences/1" | jq -c --argjson n "$n" '[$n, .state]')"
expect 'which comes back when the lease ends' "$one" \
    "$(curl -s -X DELETE "$URL/v1/leases/2"; call /v1/attend "{\"layer\":1,\"sequences\":[1],\"q\":$q,\"lse\":true}" | jq -c '[.o, .lse]')"
expect 'the books balance in the end' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"

# Blocks that others have filled are zeros when they are leased: nothing of what was in them is seen.
for kind in sequences leases; do
    curl -s "$URL/v1/$kind" | jq '.items[].id' | while read -r id; do curl -s -X DELETE "$URL/v1/$kind/$id"; done
done
whole=$(stat '.pool.blocks * .pool.block_size')
call /v1/sequences '{"id":50}' >/dev/null
for layer in 0 1; do
    call /v1/append "{\"layer\":$layer,\"sequences\":[50],\"indptr\":[0,$whole],\"k\":$(rows 5 "$whole"),\"v\":$(rows 30 "$whole")}" >/dev/null
done
expect 'a sequence fills all blocks' '[0]' "$(stat '[.pool.free]')"
curl -s -X DELETE "$URL/v1/sequences/50"
curl -s -o /dev/null -X POST "$URL/v1/trim"
call /v1/leases '{"blocks":8,"id":51}' >/dev/null
for layer in 0 1; do
    expect "who leases them sees nothing of it at layer $layer" '0 true' "$(
        call /v1/paged "{\"lease\":51,\"layer\":$layer,\"q\":$q,\"lse\":true,\"block_tables\":[[$(seq -s, 0 7)]],\"context_lens\":[$whole]}" |
            jq -r --argjson n "$whole" '"\([.o | flatten | .[] | fabs] | add) \(.lse | flatten | all((. - ($n | log)) | fabs < 1e-4))"')"
done
name=$(curl -s "$URL/v1/info" | jq -r .backend.name)
stop_daemon
[ "$name" = cuda ] || finish

# vLLM's layout, where the kernel can be named: the same within rounding, whichever it is.
start_daemon "${geometry[@]}" --set geometry.head_dim=32 --set geometry.block_size=8 --set geometry.layout=vllm --set pool.blocks=8
wide() { jq -nc --argjson f "$1" --argjson n "$2" --argjson h "$3" '[range($n) as $i | [range($h) as $j | [range(32) | ((. + 3 + $j) * ($f + $i) * 7 % 11) / 8 - 0.5]]]'; }
call /v1/leases '{"blocks":4,"id":2}' >/dev/null
call /v1/paged "{\"layer\":0,\"lease\":2,\"slot_mapping\":[$(seq -s, 8 27)],\"k\":$(wide 5 20 1),\"v\":$(wide 30 20 1)}" >/dev/null
for kernel in paged_v1 paged_v2 auto; do
    call /v1/paged "{\"layer\":0,\"lease\":2,\"q\":$(wide 3 1 2),\"block_tables\":[[1,2,3]],\"context_lens\":[20],\"kernel\":\"$kernel\",\"lse\":true}" >"$WORK/$kernel"
done
expect 'the answer says which kernel it was' 'paged_v1 paged_v2' "$(jq -r .kernel "$WORK/paged_v1") $(jq -r .kernel "$WORK/paged_v2")"
expect 'they agree' true "$(jq -s '[.[0].o, .[1].o] | map(flatten) | transpose | all((.[0] - .[1]) | fabs < 1e-5)' "$WORK/paged_v1" "$WORK/paged_v2")"
expect 'and lse too' true "$(jq -s '[.[0].lse, .[1].lse] | map(flatten) | transpose | all((.[0] - .[1]) | fabs < 1e-5)' "$WORK/auto" "$WORK/paged_v2")"
call /v1/sequences '{"id":3}' >/dev/null
call /v1/append "{\"layer\":0,\"sequences\":[3],\"indptr\":[0,20],\"k\":$(wide 5 20 1),\"v\":$(wide 30 20 1)}" >/dev/null
expect 'a sequence has the same bits as the table' "$(jq -c .o "$WORK/paged_v1")" \
    "$(call /v1/attend "{\"layer\":0,\"sequences\":[3],\"q\":$(wide 3 1 2),\"kernel\":\"paged_v1\"}" | jq -c .o)"
stop_daemon
finish
