#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clients whose tensors lie in memory of the daemon's GPU: the bits of those in host memory, what is refused, and that all is given back
# however a client ends. Where there is no GPU, on a driver that is a stub, whose kernels compute nothing.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/integration/stub.sh
. "$(dirname "$0")/stub.sh"
cd "$(dirname "$0")/../.." || exit 1
TOOLS=$(dirname "$ATTND")/registered
if [ ! -x "$TOOLS/gpu" ]; then
    echo 'skip regions of GPU memory: their client is not built here'
    exit 0
fi
if [ ! -e /dev/nvidiactl ]; then
    needs_build 'regions of GPU memory'
    if ! on_stub_driver; then
        echo 'skip regions of GPU memory: no CUDA headers'
        exit 0
    fi
    stub=--stub
fi
transport() { curl -s "$URL/stats" | jq -c ".transport | $1"; }
is_transport() { [ "$(transport "$1")" = "$2" ]; }
maps() { grep -c 'memfd:gpu' "/proc/$DAEMON/maps"; }
descriptors() { find "/proc/$DAEMON/fd" -type l | wc -l; }

mkdir "$WORK/journal"
start_daemon --backend cuda --set "transport.listen=unix:$WORK/r" --set geometry.layers=2 --set geometry.query_heads=32 --set geometry.kv_heads=8 \
    --set geometry.head_dim=128 --set pool.blocks=512 --set "journal.path=$WORK/journal"
for _ in 1 2 3 4; do curl -s -o /dev/null -X POST "$URL/v1/sequences"; done
expect 'info says how much of it there is' 268435456 "$(curl -s "$URL/v1/info" | jq .transport.gpu_bytes)"
before=$(descriptors)
"$TOOLS/gpu" "$WORK/r" ${stub:+$stub} 1 2 3 4
eventually is_transport '[.clients,.regions,.region_bytes,.gpu_bytes]' '[0,0,0,0]' && echo 'ok all is given back at its end' || echo "not ok all is given back: $(transport .)"
[ -z "${stub:-}" ] || expect 'and unmapped' 0 "$(maps)"
expect 'descriptors too' "$before" "$(descriptors)"
expect 'what the GPU finds in their tensors is not in a journal, which ends' 'a call has its tensors in GPU memory' "$(curl -s "$URL/stats" | jq -r .journal.stopped)"
expect 'and says so' 1 "$(grep -c 'error journal.path: a call has its tensors in GPU memory; nothing more is recorded' "$WORK/log")"

# ---- clients that die, with memory of either side in use
clients=${DYING_GPU_CLIENTS:-40}
(for i in $(seq "$clients"); do
    "$TOOLS/gpu" "$WORK/r" ${stub:+$stub} --die "$((i % 5))" 1 2 3 4
done) >/dev/null 2>&1 # the shell says of each that it was killed
eventually is_transport '[.clients,.regions,.region_bytes,.gpu_bytes]' '[0,0,0,0]' && echo "ok $clients clients that died have left nothing" ||
    echo "not ok clients that died have left nothing: $(transport .)"
[ -z "${stub:-}" ] || expect 'unmapped' 0 "$(maps)"
expect 'and no descriptor' "$before" "$(descriptors)"

# ---- one that rewrites everything all the time
if [ -x "$TOOLS/hostile" ]; then
    "$TOOLS/hostile" "$WORK/r" '' "${HOSTILE_GPU_ROUNDS:-4000}" 1 "${SEED:-5}" gpu >/dev/null && echo 'ok a hostile client comes to its end' || echo 'not ok a hostile client'
    eventually is_transport '[.clients,.regions,.region_bytes,.gpu_bytes]' '[0,0,0,0]' && echo 'ok and has left nothing' || echo "not ok it has left nothing: $(transport .)"
    expect 'nor a descriptor' "$before" "$(descriptors)"
    expect 'the daemon is ready' 200 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/readyz")"
fi
expect 'the audit finds nothing' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
expect 'the daemon ends well' 0 $?
expect 'what was recorded before is checked' ok "$("$ATTND" --replay-check "$WORK/journal" | cut -d: -f1)"

# ---- with less of it, and with none
start_daemon --backend cuda --set "transport.listen=unix:$WORK/r" --set transport.gpu_bytes=16MiB --set geometry.layers=2 --set geometry.query_heads=32 \
    --set geometry.kv_heads=8 --set geometry.head_dim=128 --set pool.blocks=512
curl -s -o /dev/null -X POST "$URL/v1/sequences"
expect 'a handle, where clients are not trusted' \
    'not ok memory by a handle of CUDA IPC: a CUDA IPC handle goes only where transport.trust_clients is on: wants a descriptor (OWN_GPU_REGION)' \
    "$("$TOOLS/gpu" "$WORK/r" ${stub:+$stub} --ipc 1)"
expect 'more than there is' 'not ok a region of GPU memory: bytes: wants 1..16777216 (transport.gpu_bytes)' "$("$TOOLS/gpu" "$WORK/r" ${stub:+$stub} 1)"
stop_daemon
start_daemon --backend cpu --set "transport.listen=unix:$WORK/r"
expect 'a daemon without a GPU' "not ok a region of GPU memory: this daemon's backend, cpu, has no memory that a region could be in" \
    "$("$TOOLS/gpu" "$WORK/r" ${stub:+$stub} 1)"
stop_daemon

# ---- Python's client: where a call's tensors lie, what is refused, and that all is given back
python=python3
if ! $python -c 'import numpy' 2>/dev/null; then
    python=$WORK/env/bin/python
    python3 -m venv "$WORK/env" >/dev/null 2>&1 && "$WORK/env/bin/pip" install -q --only-binary :all: numpy >/dev/null 2>&1 || python=
fi
if [ -n "$python" ]; then
    if ATTND=$ATTND PYTHONPATH=clients/python ${stub:+env STUB=1} "$python" -W error clients/python/tests/test_gpu_regions.py OfArrays OfHandles OfStubTensors >"$WORK/said" 2>&1; then
        echo "ok Python's client: $(sed -n 's/^Ran //p' "$WORK/said")"
    else
        cat "$WORK/said"
        echo "not ok Python's client"
    fi
else
    echo "skip Python's client: there is no NumPy, and PyPI is not to be had"
fi

# ---- clients that are trusted
trusting() {
    start_daemon --backend cuda --set "transport.listen=unix:$WORK/r" "$@" --set geometry.layers=2 --set geometry.query_heads=32 --set geometry.kv_heads=8 \
        --set geometry.head_dim=128 --set pool.blocks=512
    curl -s -o /dev/null -X POST "$URL/v1/sequences"
}
trusting --set transport.trust_clients=on
"$TOOLS/gpu" "$WORK/r" ${stub:+$stub} --ipc 1
eventually is_transport '[.clients,.regions,.gpu_bytes]' '[0,0,0]' && echo 'ok all is given back' || echo "not ok all is given back: $(transport .)"
stop_daemon
if [ -n "${stub:-}" ]; then
    echo 'skip MPS: there is no GPU'
    exit 0
fi

# ---- under MPS a client's fault is the daemon's, too: it is noticed though there is nothing to compute
if ! command -v nvidia-cuda-mps-control >/dev/null; then
    echo 'skip MPS: it is not here'
    exit 0
fi
export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps
mkdir -p "$WORK/mps"
nvidia-cuda-mps-control -d
trusting
expect 'MPS, where clients are not trusted' "not ok a region of GPU memory: the GPU is served by NVIDIA MPS, where a client that fails takes the daemon's \
context with it: that wants transport.trust_clients=on" "$("$TOOLS/gpu" "$WORK/r" 1)"
stop_daemon
trusting --set transport.trust_clients=on
expect 'a client under MPS' 'ok a region of GPU memory' "$("$TOOLS/gpu" "$WORK/r" --fault 1)"
is_unready() { [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/readyz")" != 200 ]; }
begin=${EPOCHREALTIME/./}
eventually is_unready && echo "ok its fault turns the daemon unready ($(((${EPOCHREALTIME/./} - begin) / 1000)) ms)" || echo 'not ok its fault turns the daemon unready'
wait "$DAEMON"
DAEMON=
echo quit | nvidia-cuda-mps-control
