#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench_registered.sh - start a daemon on the CPU with the shape of a layer of Llama-3-8B, and run bench_registered against it.
#
#   bash clients/bench/bench_registered.sh [ROUNDS]     SETTINGS="KEY=VALUE..." for the daemon
set -eu
cd "$(dirname "$0")/../.."
ATTND=${ATTND:-$PWD/build/release/attnd}
work=$(mktemp -d)
trap 'kill "$daemon" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
# The client has a processor of its own: a system that does not know which processors share a cache puts both on one, and they wait for each other.
n=$(nproc) client=() server=()
[ "$n" -eq 1 ] || client=(taskset -c 0) server=(taskset -c "1-$((n - 1))")
settings=() rounds=${1:-}
[ "$rounds" != --short ] || rounds=1
for setting in ${SETTINGS:-}; do settings+=(--set "$setting"); done
"${server[@]}" "$ATTND" --set "listen=unix:$work/http" --set "transport.listen=unix:$work/rings" --set backend.name=cpu --set geometry.layers=1 \
    --set geometry.query_heads=32 --set geometry.kv_heads=8 --set geometry.head_dim=128 --set pool.blocks=8192 "${settings[@]}" 2>"$work/log" &
daemon=$!
until [ -S "$work/rings" ]; do
    kill -0 $daemon || { cat "$work/log"; exit 1; }
    sleep 0.05
done
sed -n 's/.*backend cpu/backend cpu/p' "$work/log"
"${client[@]}" "$(dirname "$ATTND")/registered/bench_registered" "$work/rings" "$work/http" $daemon ${rounds:+"$rounds"}
