#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# debug.poison: a call that reads a slot which nobody has written is told which, and who has had its block; whoever reads what was written
# gets the same bits as ever. docs/POISON.md, too.
. tests/integration/small.sh
. tests/integration/documents.sh
poison=(--set debug.poison=on)
q='[[[1,0,2,0,1,0,0,1],[0,1,0,-1,0,1,0,1]]]'
# paged LEASE LAYER TABLE LENGTH - the answer to a query behind so many tokens
paged() { call /v1/paged "{\"lease\":$1,\"layer\":$2,\"q\":$q,\"block_tables\":[$3],\"context_lens\":[$4]}"; }
# write LEASE LAYER FIRST N - slots of it
write() {
    call /v1/paged "{\"lease\":$1,\"layer\":$2,\"slot_mapping\":$(jq -nc "[range($3; $3 + $4)]"),\"k\":$(rows "$3" "$4"),\"v\":$(rows "$(($3 + 20))" "$4")}" |
        jq -r '.detail // .tokens'
}
# Where a problem says the slot is, and who has had its block.
where() { jq -c '.unwritten | [.row, .layer, .position, .block, .slot, .slots, .blocks]'; }
who() { jq -c '[.unwritten.owners[] | [.id, .key, .until != null]]'; }
detail() { jq -r '.detail // "none"'; }

# ---- leases
start_daemon "${geometry[@]}" --set pool.blocks=4 "${poison[@]}"
expect 'it is on, and says so' 'true 1' "$(curl -s "$URL/v1/info" | jq .debug.poison) $(grep -c 'warning debug.poison is on' "$WORK/log")"
for id in 21 22 23; do # three that come and go, and leave something in every slot
    expect "lease $id" '[0,1,2]' "$(call /v1/leases "{\"id\":$id,\"blocks\":3}" | jq -c .blocks)"
    for layer in 0 1; do write $id $layer 0 12 >/dev/null; done
    expect "lease $id reads what it has written" none "$(paged $id 1 '[0,1,2]' 12 | detail)"
    curl -s -X DELETE "$URL/v1/leases/$id"
done
call /v1/leases '{"id":24,"blocks":3}' >/dev/null
expect 'five tokens in blocks 2 and 0' '4 1' "$(write 24 1 8 4) $(write 24 1 0 1)"
expect 'are read' none "$(paged 24 1 '[2,0]' 5 | detail)"
paged 24 1 '[2,0]' 7 >"$WORK/answer"
expect 'a length that is too long: the first slot of two' '[0,1,5,0,1,2,1]' "$(where <"$WORK/answer")"
expect 'and the owners, the last three' '[[24,null,false],[23,null,true],[22,null,true]]' "$(who <"$WORK/answer")"
epochs=$(jq -c '.unwritten.owners | map([.since, .until])' "$WORK/answer")
expect 'in words' "422 row 0 at layer 1: sequence 0 of lease 24, query at 6, sees position 5 in slot 1 of block 0, which nobody has written (2 such slots, in block 0); who had block 0, latest first: 24 (since epoch $(
    jq '.[0][0]' <<<"$epochs")), 23 (epochs $(jq '.[1][0]' <<<"$epochs") to $(jq '.[1][1]' <<<"$epochs")), 22 (epochs $(jq '.[2][0]' <<<"$epochs") to $(jq '.[2][1]' <<<"$epochs"))" \
    "$(problem <"$WORK/answer")"
expect 'epochs are those of its life' true \
    "$(curl -s "$URL/v1/blocks/0/history" | jq -c --argjson e "$epochs" '[.changes[].epoch] as $life | $e | map(select(. != null) | map(select(. != null))) | flatten | all(. as $at | $life | index($at) != null)')"
expect 'a block of the lease that was freed before, and not written since' '[0,1,0,1,0,4,1]' "$(paged 24 1 '[1]' 4 | where)"
expect 'blocks in the wrong order' '[0,1,1,0,1,3,1]' "$(paged 24 1 '[0,2]' 5 | where)"
expect 'another layer than the one that was written' '[0,0,0,2,0,5,2]' "$(paged 24 0 '[2,0]' 5 | where)"
expect 'the first of several tables that is wrong' '[2,1,4,1,0,1,1]' \
    "$(call /v1/paged "{\"lease\":24,\"layer\":1,\"q\":[${q:1:-1},${q:1:-1},${q:1:-1}],\"block_tables\":[[2,0],[2,0],[2,1]],\"context_lens\":[5,4,5]}" | where)"
expect 'a table that is right is computed as before' none "$(paged 24 1 '[2,0]' 5 | detail)"
expect 'a slot is written once it is' '3 none' "$(write 24 1 1 3) $(paged 24 1 '[2,0]' 7 | detail)"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
curl -s -X DELETE "$URL/v1/leases/24"

# ---- sequences, whose tables the daemon keeps: nothing is found, whatever happens to them
call /v1/sequences '{"id":1}' >/dev/null
expect 'six tokens' 6 "$(append 1 5 6)"
before=$(look 1)
call /v1/sequences/1/fork '{"ids":[2]}' >/dev/null
call /v1/sequences/2/truncate '{"length":5}' >/dev/null
expect 'a fork that is cut, and goes on: a copy' 7 "$(append 2 50 2)"
expect 'nothing is NaN' "[] $before" "$(look 2 | jq -c '[select(type == "string")]') $(look 1)"
curl -s -X DELETE "$URL/v1/sequences/1"
curl -s -X DELETE "$URL/v1/sequences/2"

stop_daemon

# ---- the same bits as without: workloads with forks, a cache, preemption and swapping; clients' sequences with swapping
workload='{"seed":5,"shape":"azure-conv","count":10,"length_scale":0.05,"prefix_share":{"fraction":0.5,"length":40},"fork_share":{"fraction":0.5,"count":2},"verify":{"rows":16}}'
bits() { # ARG... - what a workload and a few sequences give
    start_daemon "${geometry[@]}" --set scheduler.admission=optimistic --set pool.host_blocks=40 "$@"
    curl -sN -H 'Accept: application/x-ndjson' --json "$workload" "$URL/v1/workloads" | tail -n 1 | jq -c '[.digest, .verify.ok]'
    for id in 1 2 3; do
        call /v1/sequences "{\"id\":$id}" >/dev/null
        append $id $((id * 7)) 14
    done
    call /v1/sequences/1/fork '{"length":9,"ids":[4]}' | jq -c '[.sequences[].length]'
    call /v1/sequences/2/truncate '{"length":3}' | jq .length
    append 4 60 5
    for id in 1 2 3 4 1 2 3; do look $id; done
    stop_daemon
}
for blocks in 12 400; do
    expect "$blocks blocks: the bits are those of a daemon without it" "$(bits --set pool.blocks=$blocks)" "$(bits --set pool.blocks=$blocks "${poison[@]}")"
done

# ---- every format and layout, every instruction set: a slot that was not written is found, alone, beside others, and behind 256 of them
# find ARG... - positions that are found, of a table whose sixth token is missing, of an empty table, and of one in which it is the last of 300
find_all() {
    local k zeros
    k=$(jq -nc '[[[range(32) | . % 3]]]') zeros=$(jq -nc '[range(2) | [range(32) | 0]]')
    start_daemon --set geometry.layers=1 --set geometry.query_heads=2 --set geometry.kv_heads=1 --set geometry.head_dim=32 --set geometry.block_size=8 \
        --set pool.blocks=64 "${poison[@]}" "$@"
    call /v1/leases '{"id":1,"blocks":40}' >/dev/null
    local many
    many=$(jq -nc --argjson k "$k" '{lease: 1, slot_mapping: ([range(5)] + [range(6; 299)]), k: [range(298) | $k[0]], v: [range(298) | $k[0]]}')
    call /v1/paged "$many" >/dev/null
    for table in '[0]:6' '[39]:3' "$(jq -nc '[range(1; 38)]'):292" "$(jq -nc '[range(1; 38)]'):291"; do
        call /v1/paged "{\"lease\":1,\"q\":[$zeros],\"block_tables\":[${table%:*}],\"context_lens\":[${table#*:}]}" | jq -c '.unwritten.position'
    done | paste -sd' '
    stop_daemon
}
found='5 0 291 null'
for isa in portable avx2 avx512 amx; do
    : >"$WORK/log"
    "$ATTND" --set backend.name=cpu --set backend.isa=$isa --set listen=127.0.0.1:0 2>"$WORK/log" &
    DAEMON=$!
    eventually listens_or_ended
    if has_ended; then
        echo "skip $isa: this processor has none"
        DAEMON=
        continue
    fi
    stop_daemon
    for format in f32 f16 bf16 e4m3 e5m2; do
        expect "$isa, $format" "$found" "$(find_all --set backend.name=cpu --set backend.isa=$isa --set geometry.dtype=f32 --set geometry.kv_dtype=$format)"
    done
done
for layout in hnd nhd vllm; do
    expect "the reference, $layout" "$found" "$(find_all --set backend.name=reference --set geometry.layout=$layout)"
done
if [ -e /dev/nvidiactl ] && "$ATTND" --version | grep -q 'CUDA'; then
    for layout in hnd nhd vllm; do
        for format in f16 bf16 e4m3 e5m2; do
            case $format in f16) dtype=f16 ;; *) dtype=bf16 ;; esac
            expect "the GPU, $layout, $format" "$found" \
                "$(find_all --set backend.name=cuda --set geometry.layout=$layout --set geometry.dtype="$dtype" --set geometry.kv_dtype=$format)"
        done
    done
else
    echo 'skip the GPU: there is none'
fi

# ---- keys: who is not admin learns no other key's ids
make_keys ann bob root
start_daemon "${geometry[@]}" --set pool.blocks=4 "${poison[@]}" --set "keys.file=$WORK/keys"
as ann --json '{"blocks":2,"id":31}' "$URL/v1/leases" >/dev/null
as ann -X DELETE "$URL/v1/leases/31"
as bob --json '{"blocks":2,"id":32}' "$URL/v1/leases" >/dev/null
read_32="{\"lease\":32,\"layer\":0,\"q\":$q,\"block_tables\":[[1]],\"context_lens\":[2]}"
expect 'its own, and of another key no more than when' '[[32,"bob",false],[null,"other",true]]' "$(as bob --json "$read_32" "$URL/v1/paged" | who)"
expect 'nor in words' 'latest first: 32 (since epoch N), another key (epochs N to N)' \
    "$(as bob --json "$read_32" "$URL/v1/paged" | detail | sed 's/.*; who had block 1, //; s/epoch\(s*\) [0-9]*/epoch\1 N/g; s/to [0-9]*/to N/')"
expect 'admin is told whose they were' '[[32,"bob",false],[31,"ann",true]]' "$(as root --json "$read_32" "$URL/v1/paged" | who)"
stop_daemon

# ---- what does not go together
expect 'no journal beside it' 1 "$("$ATTND" --set journal.path="$WORK/journal" "${poison[@]}" --check-config 2>&1 | grep -c 'journal.path: what debug.poison finds is not recorded')"

# ---- planted defects of config/fault.h, on the CPU: what the daemon itself does wrong with its tables is found, too
# shellcheck source=tests/integration/stub.sh
. tests/integration/stub.sh
sound=$ATTND
diverge() { # a fork, and the block that it shares copied on write; then a query on each
    call /v1/sequences '{"id":1}' >/dev/null
    append 1 5 6 >/dev/null
    call /v1/sequences/1/fork '{"ids":[2]}' >/dev/null
    append 2 50 2 >/dev/null
    look 2
    look 1
}
[ -e "$build_folder/daemon.a" ] || build_folder=none
case $build_folder in
    none) echo 'skip planted defects: no build here' ;;
    */asan | */tsan) echo 'skip planted defects: built without sanitizers only' ;;
    *)
        while IFS='|' read -r defect source want; do
            build "faulty-$defect" "-DATTND_FAULT=$defect" "$source" "$build_folder/obj/server/main.o"
            ATTND=$WORK/faulty-$defect start_daemon "${geometry[@]}" --set backend.name=cpu --set pool.blocks=16 "${poison[@]}"
            expect "defect $defect" "$want" "$(diverge | head -n 1 | sed 's/; who.*/"/')"
            expect "defect $defect: a workload is not good" 'false yes' "$(
                curl -sN -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":1,"prompt":7,"decode":4,"fork":{"at":6,"count":1}}],"verify":{"rows":1}}' "$URL/v1/workloads" |
                    tail -n 1 | jq .verify.ok) $(has_logged 'workload 1: o of sequence [01], position [0-9]*, layer [01] is NaN' && echo yes)"
            stop_daemon
        done <<'TABLE'
1|scheduler/step.c|"row 0 at layer 1: sequence 2, query at 7, sees position 4 in slot 0 of block 2, which nobody has written (2 such slots, in block 2)"
7|kernels/cpu/cpu_backend.c|"o is NaN at layer 1, and no slot that it sees is unwritten: another query may have been computed with it that sees one, or a kernel is wrong"
TABLE
        # The CUDA backend on a stub of its driver, which computes nothing: its steps take what is to be unwritten.
        if on_stub_driver; then
            for layout in hnd nhd vllm; do
                start_daemon --set geometry.layers=3 --set geometry.query_heads=2 --set geometry.kv_heads=2 --set geometry.head_dim=32 --set geometry.block_size=8 \
                    --set geometry.layout=$layout --set backend.name=cuda --set pool.blocks=2000 "${poison[@]}"
                call /v1/sequences '{"id":1}' >/dev/null
                expect "the CUDA backend, $layout" '"cuda" 3 2' "$(curl -s "$URL/v1/info" | jq -c .backend.name) $(
                    call /v1/append "$(jq -nc '{layer: 0, sequences: [1], indptr: [0, 3], k: [range(3) | [range(2) | [range(32) | 1]]]} | .v = .k')" |
                        jq '.sequences[0].lengths[0]') $(call /v1/sequences/1/truncate '{"length":0}' >/dev/null; call /v1/leases '{"blocks":2}' | jq '.blocks | length')"
                stop_daemon
            done
        else
            echo 'skip the CUDA backend: it is not in this build'
        fi
        unset LD_LIBRARY_PATH STUB_HANGS
        ATTND=$sound
        ;;
esac

check_document docs/POISON.md docs/POISON.md 8
finish
