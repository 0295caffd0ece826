#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh - build the fuzzers with clang and run each for FUZZ_SECONDS, from the seeds in tests/fuzz. Prints "ok" or "not ok" with the runs and
# the edges that were reached. What it finds is kept in build/fuzz/corpus, from which the next run goes on; a crash in build/fuzz/crashes: make it a test.
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=${FUZZ_SECONDS:-60}
if ! command -v clang >/dev/null || ! echo 'int LLVMFuzzerTestOneInput(const char *b, long n) { return !b && n; }' |
    clang -fsanitize=fuzzer -x c -o /dev/null - 2>/dev/null; then
    echo 'not ok fuzzers: clang with libFuzzer is missing (packages clang and libclang-rt-14-dev)'
    exit 1
fi
mkdir -p build
if ! make -j"$(nproc)" --no-print-directory MODE=fuzz CC=clang WERROR= fuzzers >build/fuzz.log 2>&1; then
    cat build/fuzz.log
    echo 'not ok the fuzzers are built'
    exit 1
fi
failed=0
for program in build/fuzz/fuzz/*; do
    name=${program##*/}
    dictionary=tests/fuzz/json.dict
    [ "$name" != http ] || dictionary=tests/fuzz/http.dict
    mkdir -p "build/fuzz/corpus/$name" build/fuzz/crashes
    log=build/fuzz/$name.log
    ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 "$program" -max_total_time="$seconds" -max_len=8192 -timeout=60 -rss_limit_mb=4096 \
        -print_final_stats=1 -dict="$dictionary" -artifact_prefix="build/fuzz/crashes/$name-" "build/fuzz/corpus/$name" "tests/fuzz/$name" >"$log" 2>&1
    status=$?
    if [ $status -eq 0 ]; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        edges=$(sed -n 's/^#[0-9]*\t.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
        echo "ok fuzz $name: $runs runs, $edges edges in $seconds s"
    elif [ $status -eq 78 ]; then # FUZZ_NOT_STARTED
        echo "skip fuzz $name: $(sed -n 's/^fuzz: not started: //p' "$log")"
    else
        tail -n 40 "$log"
        echo "not ok fuzz $name: exit $status, $(grep -m 1 '^fuzz: \|ERROR:' "$log")"
        failed=1
    fi
done
exit $failed
