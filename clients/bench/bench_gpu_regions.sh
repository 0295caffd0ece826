#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench_gpu_regions.sh - a layer of Llama-3-8B through a daemon, with the client's tensors in regions of GPU memory: with the client on another
# GPU, if there is one, on the same one under MPS, if that is there, and on the same one without.
#
#   bash clients/bench/bench_gpu_regions.sh [ROUNDS]     200 calls each. The context grows by a token a call: more are another shape
set -eu
cd "$(dirname "$0")/../.."
ATTND=${ATTND:-$PWD/build/release/attnd}
rounds=${1:-200}
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
if [ "$gpus" = 0 ] && [ -z "${STUB:-}" ]; then
    echo 'skip regions of GPU memory: there is no GPU here'
    exit 0
fi
work=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || kill "$daemon" 2>/dev/null; rm -rf "$work"' EXIT

# measure WHAT GPU-OF-THE-DAEMON GPU-OF-THE-CLIENT
measure() {
    local n ids
    echo "$1"
    for n in 1 8 64; do
        "$ATTND" --backend cuda --set "backend.device=$2" --set "listen=unix:$work/http" --set "transport.listen=unix:$work/rings" --set transport.trust_clients=on \
            --set transport.spin_us=1000 --set geometry.layers=1 --set geometry.query_heads=32 --set geometry.kv_heads=8 --set geometry.head_dim=128 \
            --set pool.blocks=8192 2>"$work/log" &
        daemon=$!
        until [ -S "$work/rings" ]; do
            kill -0 $daemon || { cat "$work/log"; exit 1; }
            sleep 0.05
        done
        ids=()
        for _ in $(seq $n); do ids+=("$(curl -s --unix-socket "$work/http" -X POST http://attnd/v1/sequences | jq .id)"); done
        "$(dirname "$ATTND")/registered/gpu" "$work/rings" --device "$3" --bench "$rounds" "${ids[@]}" | sed -n 's/^batch/  batch/p; /^not ok/p'
        kill $daemon
        wait $daemon || true
    done
}

[ "$gpus" -lt 2 ] || measure 'the daemon on GPU 1, the client on GPU 0' 1 0
measure 'both on one GPU' 0 0
if command -v nvidia-cuda-mps-control >/dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
    mkdir -p "$work/mps"
    nvidia-cuda-mps-control -d
    measure 'both on one GPU, under MPS' 0 0
    echo quit | nvidia-cuda-mps-control >/dev/null
fi
