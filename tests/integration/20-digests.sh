#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The bits of the outputs are those that they have always been: per instruction set, the digests of a few workloads and of
# attends by clients, against tests/digests.txt. A change to them is a change of the contract: say so in docs/decisions/.
#
#   RECORD=1 bash tests/integration/20-digests.sh     print the lines of that file instead of judging
. tests/integration/lib.sh
small='{"seed":7,"shape":"azure-conv","count":24,"length_scale":0.2,"prefix_share":{"fraction":0.5,"length":64},"fork_share":{"fraction":0.5,"count":2}}'
attended='{"seed":9,"prefill":"attend","sequences":[{"count":6,"prompt":700,"decode":9,"prefix":{"id":1,"length":600}},{"count":2,"prompt":2100,"decode":40}]}'

# judge ISA NAME DIGEST
judge() {
    local known
    if [ -n "${RECORD:-}" ]; then
        echo "$1 $2 $3"
        return
    fi
    known=$(awk -v isa="$1" -v name="$2" '$1 == isa && $2 == name { print $3 }' tests/digests.txt)
    if [ -n "$known" ]; then
        expect "$2 on $1: the same digest as ever" "$known" "$3"
    else
        echo "skip $2 on $1: no digest is known; this one is $3"
    fi
}
run() { command curl -sN -H 'Accept: application/x-ndjson' --json "$1" "$URL/v1/workloads" | tail -n 1 | jq -r .digest; }

# What clients get back for wide values (full mantissas, which tell the order of every sum): 20 tokens of two sequences
# in one call, then one more query.
attends() {
    local n="20,$1,$2" wide
    curl -s --json '{"id":900}' "$URL/v1/sequences" >/dev/null
    curl -s --json '{"id":901}' "$URL/v1/sequences" >/dev/null
    wide=$(perl -e 'my $x = 1; print join ",", map { $x = ($x * 1103515245 + 12345) & 0x7fffffff;
        sprintf "%.7g", ($x / 2**30 - 1) * 2 ** ($x % 9 - 6) } 1 .. shift' $((20 * $1 * $2)))
    tensors sequences I64 2 900,901 indptr I64 3 0,12,20 q F32 "$n" "$wide" k F32 "$n" "$(tr , '\n' <<<"$wide" | tac | paste -sd,)" \
        v F32 "$n" "$wide" | post /v1/attend >"$WORK/first"
    tensors sequences I64 1 901 q F32 "1,$1,$2" "$(cut -d, -f"1-$(($1 * $2))" <<<"$wide")" | post /v1/attend >"$WORK/second"
    perl -e 'for my $f (@ARGV) { open my $h, "<", $f; local $/; $_ = <$h>; my $n = unpack "Q<", $_; print substr $_, 8 + $n }' \
        "$WORK/first" "$WORK/second" | sha256sum | cut -c1-32
}

# digests ISA ARG... - all of them on one backend
digests() {
    local isa=$1
    shift
    start_daemon "$@" --config config/demo.jsonc
    judge "$isa" demo "$(run "$small")"
    judge "$isa" attended "$(run "$attended")"
    stop_daemon
    start_daemon "$@" --config config/demo.jsonc --set 'geometry.window=[0,100,0,300]' --set geometry.softcap=20 \
        --set geometry.kv_dtype=e4m3 --set geometry.dtype=f16 --set geometry.layout=nhd --set geometry.query_heads=6
    judge "$isa" windows-softcap-e4m3 "$(run "$small")"
    stop_daemon
    start_daemon "$@" --config config/demo.jsonc --set geometry.dtype=f32 --set geometry.kv_dtype=f32 --set geometry.layers=1 \
        --set geometry.query_heads=4 --set geometry.kv_heads=4 --set geometry.head_dim=80 --set pool.blocks=2000
    judge "$isa" f32-mha "$(run "$attended")"
    judge "$isa" f32-clients "$(attends 4 80)"
    stop_daemon
}

start_daemon
name=$(curl -s "$URL/v1/info" | jq -r .backend.name)
isa=$(curl -s "$URL/v1/info" | jq -r .backend.isa)
stop_daemon
if [ "$name" = cuda ]; then digests "$isa" --set backend.name=cuda; fi
for isa in portable avx2 avx512 amx; do
    if [ "$name" = cuda ]; then
        continue
    elif "$(dirname "$ATTND")/tests/conformance" --isa $isa --case 0 | grep -q '^skip'; then
        echo "skip digests on $isa: this processor has none"
    else
        digests "$isa" --set backend.name=cpu --set "backend.isa=$isa"
    fi
done
finish
