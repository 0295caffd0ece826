#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - run every test and count.
#
# C tests are built by make and print Check's summary; integration scripts print "ok NAME", "not ok NAME" or
# "skip NAME: reason". What C tests say on stderr, which is how far they are, is shown as it comes. Conformance and the engine's
# simulation go on beside the others, and are printed last. The last line is the sum: N passed, N failed, N skipped. One test alone:
#
#   CK_RUN_CASE=allocator build/release/tests/unit
#   bash tests/integration/01-start.sh
set -u
cd "$(dirname "$0")/.." || exit 1
MODE=${MODE:-release}
export ATTND=$PWD/build/$MODE/attnd
case $MODE in asan | ubsan | tsan) export TURN_FACTOR=10 ;; esac # what lib.sh allows a turn of the loop
HANG_S=14400 # Far beyond what any test takes, also on a slow machine: it only ends what hangs.
passed=0 failed=0 skipped=0

# Add up what one program printed; a program that fails without a verdict counts as one failure.
count() {
    local name=$1 log=$2 status=$3 seconds=$4 ok bad skip summary
    ok=$(grep -c '^ok ' "$log")
    bad=$(grep -c '^not ok ' "$log")
    skip=$(grep -c '^skip ' "$log")
    summary=$(grep -E '^[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+$' "$log" | tail -n 1)
    if [ -n "$summary" ]; then
        read -r _ _ checks _ failures _ errors <<<"${summary//,/}"
        bad=$((bad + failures + errors))
        ok=$((ok + checks - failures - errors))
    fi
    [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    printf '%-40s %5d passed %3d failed %3d skipped  %5.1f s\n' "$name" "$ok" "$bad" "$skip" "$seconds"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    if [ "$bad" -gt 0 ]; then
        sed 's/^/    /' "$log"
    elif [ "$skip" -gt 0 ]; then
        grep '^skip ' "$log" | sed 's/^/    /'
    fi
}

# run NAME COMMAND... - show its stderr, keep all it says in a log, and count.
run() {
    local name=$1 log started
    shift
    log=$(mktemp)
    started=$EPOCHREALTIME
    timeout $HANG_S "$@" 2>&1 >>"$log" </dev/null | tee -a "$log" >&2
    local status=${PIPESTATUS[0]}
    count "$name" "$log" "$status" "$(awk "BEGIN { print $EPOCHREALTIME - $started }")"
    rm -f "$log"
}

# Sanitizers slow the kernels down ten times and more: they see every eighth case of the grid.
grid=(--digests tests/digests.txt)
[ "$MODE" = release ] || [ "$MODE" = debug ] || grid=(--every 8)

# The two that take longest and use one processor, beside all the others.
beside=$(mktemp)
run_beside() {
    local program
    renice -n 5 -p $BASHPID >/dev/null
    for program in "$@"; do
        case $program in
            */conformance) run "${program#build/}" "$program" "${grid[@]}" ;;
            *) run "${program#build/}" "$program" ;;
        esac
    done
    echo "$passed $failed $skipped" >"$beside.sum"
}
long=() short=()
for program in build/"$MODE"/tests/*; do
    case $program in
        */conformance | */engine_simulation) long+=("$program") ;;
        *) short+=("$program") ;;
    esac
done
run_beside "${long[@]}" >"$beside" &
worker=$!
for program in "${short[@]}"; do run "${program#build/}" "$program"; done

# The benchmarks only have to run: their figures are evidence, not tests.
for bench in build/"$MODE"/bench/* tests/bench/bench_server.sh clients/bench/bench_registered.sh; do
    log=$(mktemp)
    "$bench" --short >"$log" 2>&1 && echo "ok $bench runs" || { cat "$log"; echo "not ok $bench runs"; }
    rm -f "$log"
done >"${bench_log:=$(mktemp)}" 2>&1 </dev/null
count 'benchmarks, one short round' "$bench_log" 0 0
rm -f "$bench_log"
if [ "$MODE" = release ]; then # a little of what runs longer before a release
    run 'fuzzers, 20 s each' env FUZZ_SECONDS=20 bash scripts/fuzz.sh
    run 'schemathesis, 30 s' bash scripts/check_contract.sh 30
fi
EXCHANGES=$(mktemp -d) # of curl; 99-contract.sh looks at them
export EXCHANGES
for script in tests/integration/[0-9]*.sh; do
    run "${script#tests/}" bash -c 'bash "$1" 2>&1' _ "$script"
done

rm -rf "$EXCHANGES"

wait $worker
cat "$beside"
read -r ok bad skip <"$beside.sum" || ok=0 bad=1 skip=0 # it died
passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
rm -f "$beside" "$beside.sum"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
