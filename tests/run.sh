#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - run every test and count.
#
# C tests are built by make and print Check's summary; integration scripts print "ok NAME", "not ok NAME" or
# "skip NAME: reason". What C tests say on stderr, which is how far they are, is shown as it comes. LANES jobs go on at once, the longest
# begin first; a line of each says what it took, as wall time and as processor time. The last line is the sum: N passed, N failed, N skipped.
# One test alone:
#
#   CK_RUN_CASE=allocator build/release/tests/unit
#   bash tests/integration/01-start.sh
set -u
cd "$(dirname "$0")/.." || exit 1
MODE=${MODE:-release}
LANES=${LANES:-$(($(nproc) + 1))} # one more than there are processors, since most scripts wait for events
export ATTND=$PWD/build/$MODE/attnd
case $MODE in asan | tsan) export TURN_FACTOR=10 ;; esac # what lib.sh allows a turn of the loop
HANG_S=14400 # Far beyond what any test takes, also on a slow machine: it only ends what hangs.
passed=0 failed=0 skipped=0
records=$(mktemp -d) # of each job: its log, what it took, and what is said of it
trap 'rm -rf "$records"' EXIT
exec 3>&2

# Say what one program printed, and add it up; a program that fails without a verdict counts as one failure.
count() { # NAME RECORD
    local name=$1 log=$2.log ok bad skip summary status wall user system
    read -r status <"$2.status"
    read -r wall user system <"$2.times"
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
    printf '%-40s %5d passed %3d failed %3d skipped  %6.1f s, processor %6.1f s\n' "$name" "$ok" "$bad" "$skip" "$wall" \
        "$(awk "BEGIN { print $user + $system }")"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    if [ "$bad" -gt 0 ]; then
        sed 's/^/    /' "$log"
    elif [ "$skip" -gt 0 ]; then
        grep '^skip ' "$log" | sed 's/^/    /'
    fi
}

# Start a job when a lane is free: show its stderr, and keep all it says in a log.
declare -A running=() # name and record by process
jobs=0
start() { # NAME COMMAND...
    local name=$1 record=$records/$((++jobs))
    shift
    [ ${#running[@]} -lt "$LANES" ] || end_one
    (
        TIMEFORMAT='%R %U %S'
        {
            time {
                timeout $HANG_S "$@" 2>&1 >>"$record.log" </dev/null | tee -a "$record.log" >&3
                echo "${PIPESTATUS[0]}" >"$record.status"
            }
        } 2>"$record.times"
    ) &
    running[$!]="$record $name"
}
end_one() {
    local pid record name
    wait -n -p pid
    read -r record name <<<"${running[$pid]}"
    unset "running[$pid]"
    count "$name" "$record"
}
end_all() { while [ ${#running[@]} -gt 0 ]; do end_one; done; }

# Sanitizers slow the kernels down ten times and more: they see every eighth case of the grid.
grid=(--digests tests/digests.txt)
[ "$MODE" = release ] || [ "$MODE" = debug ] || grid=(--every 8)

long=() short=()
for program in build/"$MODE"/tests/*; do
    case $program in
        */conformance | */engine_simulation) long+=("$program") ;;
        *) short+=("$program") ;;
    esac
done
for program in "${long[@]}" "${short[@]}"; do
    case $program in
        */conformance) start "${program#build/}" "$program" "${grid[@]}" ;;
        *) start "${program#build/}" "$program" ;;
    esac
done

# The benchmarks only have to run: their figures are evidence, not tests.
for bench in build/"$MODE"/bench/* tests/bench/bench_server.sh clients/bench/bench_registered.sh; do
    # shellcheck disable=SC2016
    start "${bench#build/}, short" bash -c '"$1" --short 2>&1 || exit; echo "ok it runs"' _ "$bench"
done
if [ "$MODE" = release ]; then # a little of what runs longer before a release
    start 'fuzzers, 10 s each' env FUZZ_SECONDS=10 bash scripts/fuzz.sh
    start 'schemathesis, 30 s' bash scripts/check_contract.sh 30
fi
EXCHANGES=$records/exchanges # of curl; 99-contract.sh looks at them
mkdir "$EXCHANGES"
export EXCHANGES
for script in tests/integration/[0-9]*.sh; do
    case $script in */99-*) end_all ;; esac
    # shellcheck disable=SC2016
    start "${script#tests/}" bash -c 'bash "$1" 2>&1' _ "$script"
done
end_all

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
