#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_contract.sh [SECONDS [SEED]] - schemathesis (from PyPI) against a daemon.
#
# Cases are made from /openapi.json, right ones and wrong ones, alone and in sequences. There must be no 500 and no dropped connection, and every
# answer must be declared for its operation and be as its schema says. POST /v1/drain is left out. That what is deleted is gone is not looked at: a
# cancelled workload is told about. The last line says "ok", "not ok" or "skip"; what was found is in build/contract.log.
set -u
cd "$(dirname "$0")/.." || exit 1
export ATTND=${ATTND:-$PWD/build/release/attnd}
. tests/integration/lib.sh
seconds=${1:-600} seed=${2:-1} venv=build/venv-contract
if [ ! -x $venv/bin/schemathesis ]; then
    rm -rf $venv
    python3 -m venv $venv >/dev/null 2>&1 && $venv/bin/pip install -q 'schemathesis==4.32.5' >/dev/null 2>&1
fi
if [ ! -x $venv/bin/schemathesis ]; then
    lacks 'schemathesis: it cannot be had from PyPI'
    finish
fi
start_daemon --set geometry.layers=2 --set geometry.query_heads=2 --set geometry.kv_heads=1 --set geometry.head_dim=8 --set geometry.block_size=4 \
    --set geometry.dtype=f32 --set geometry.kv_dtype=f32 --set pool.blocks=20000 --set limits.sequence_tokens=4000 --set limits.workload_s=2 \
    --set limits.sequences=4096 --set limits.idle_timeout_s=5
mkdir -p build/contract # where the tester keeps what it has found
(cd build/contract && SCHEMATHESIS_HOOKS=tests.contract.hooks PYTHONPATH=../.. "../../$venv/bin/schemathesis" \
    --config-file ../../tests/contract/schemathesis.toml run "$URL/openapi.json" --url "$URL" --exclude-path /v1/drain --exclude-path /v1/events \
    --phases examples,coverage,fuzzing,stateful --max-examples 200 --max-time "$seconds" --seed "$seed" --request-timeout 60 --no-color \
    -c status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance,negative_data_rejection,unsupported_method,ignored_auth,not_a_server_error) \
    >build/contract.log 2>&1
# a full pool is 503, which the tester takes for a defect of the server
problems=$(grep -E '^\[5[0-9][0-9]\]|^- ' build/contract.log | grep -v 'ST101\|^\[503\]' | sort | uniq -c)
cases=$(sed -n 's/^  \([0-9]* generated\).*/\1/p' build/contract.log)
stop_daemon
code=$?
if [ -n "$cases" ] && [ -z "$problems" ] && [ $code -eq 0 ] && [ -z "${FAILED:-}" ]; then
    echo "ok schemathesis: $cases in $seconds s, seed $seed"
else
    tail -n 60 build/contract.log
    echo "not ok schemathesis, seed $seed: ${problems:-the daemon ended with $code}"
    exit 1
fi
