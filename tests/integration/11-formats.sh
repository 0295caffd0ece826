#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One small workload on the geometries of real models, in every stored format, on every instruction set that this processor
# has: verified each time, and with the bits of one instruction set whatever the layout and the size of blocks.
. tests/integration/lib.sh
workload='{"seed":5,"shape":"azure-conv","count":6,"length_scale":0.05,"prefix_share":{"fraction":0.5,"length":40},"fork_share":{"fraction":0.5,"count":1},"verify":{"rows":24}}'
digest=
verified() { # NAME ARG...
    local name=$1
    shift
    start_daemon --set limits.sequences=32 "$@"
    report=$(curl -sN -H 'Accept: application/x-ndjson' --json "$workload" "$URL/v1/workloads" | tail -n 1)
    digest=$(jq -r .digest <<<"$report")
    expect "$name" 'finished true' "$(jq -r '"\(.state) \(.verify.ok)"' <<<"$report")"
    stop_daemon
}
# Whether the daemon starts with these kernels; one that cannot says so and ends.
supported() {
    : >"$WORK/log"
    "$ATTND" --set backend.isa="$1" --set listen=127.0.0.1:0 2>"$WORK/log" &
    DAEMON=$!
    eventually listens_or_ended
    has_ended || stop_daemon
    has_logged listening
}
for model in llama-3-70b-tp8 gemma-2-9b gpt-oss-20b; do
    verified "$model: heads, windows, softcap, sinks" --config "config/$model.jsonc" --set pool.blocks=200 --set geometry.layers=2
done
for isa in portable avx2 avx512 amx; do
    if ! supported $isa; then
        echo "skip $isa: this processor has none"
        continue
    fi
    for format in f32 f16 bf16; do
        verified "$isa: $format, ALiBi" --set backend.isa=$isa --set geometry.kv_dtype=$format --set geometry.alibi='"seeded"'
    done
    for format in e4m3 e5m2; do
        verified "$isa: $format, scales, ALiBi" --set backend.isa=$isa --set geometry.kv_dtype=$format \
            --set geometry.k_scale='"seeded"' --set geometry.v_scale='"seeded"' --set geometry.alibi='"seeded"'
    done
    here=$digest
    verified "$isa: other blocks" --set backend.isa=$isa --set geometry.kv_dtype=e5m2 --set geometry.block_size=7 \
        --set geometry.layout=nhd --set geometry.k_scale='"seeded"' --set geometry.v_scale='"seeded"' \
        --set geometry.alibi='"seeded"'
    expect "$isa: the same bits in other blocks" "$here" "$digest"
done
finish
