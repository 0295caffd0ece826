#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_sanitized.sh [MODE...] - asan, which also looks for undefined behaviour, and tsan, each with the part of the tests that finds most for its time:
# docs/CI.md has what they take. `make asan` and `make tsan` run all of them.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -gt 0 ] || set -- asan tsan
passed=0 failed=0
log=$(mktemp) took=$(mktemp)
trap 'rm -f "$log" "$took"' EXIT
TIMEFORMAT='%0R s, processor %0U + %0S s'
export TURN_FACTOR=10 # what lib.sh allows a turn of the loop
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.suppressions${TSAN_OPTIONS:+:$TSAN_OPTIONS}"

# Of each mode: programs, and scripts that take all ways through the server and the engine. tsan is for threads.
programs_of() { case $1 in tsan) echo unit ;; *) echo unit allocator_model ;; esac; }
scripts_of() {
    case $1 in
        tsan) echo '02-http 03-sequences 08-workloads 13-retries 53-journal 54-kv-events' ;;
        *) echo '02-http 03-sequences 08-workloads 10-prefix 18-swap 28-keys 39-state 54-kv-events' ;;
    esac
}

judge() { # NAME COMMAND...
    local name=$1 status
    shift
    { time "$@" >"$log" 2>&1 </dev/null; } 2>"$took"
    status=$?
    if [ $status -eq 0 ] && ! grep -qE '^not ok |ERROR: |WARNING: ThreadSanitizer|runtime error:' "$log"; then
        echo "ok $name: $(cat "$took")"
        passed=$((passed + 1))
    else
        echo "not ok $name: exit $status"
        grep -v '^ok ' "$log" | tail -n 60 | sed 's/^/    /'
        failed=$((failed + 1))
        return 1
    fi
}

for mode in "$@"; do
    build=build/$mode
    read -ra programs <<<"$(programs_of "$mode")"
    judge "$mode builds" make --no-print-directory -j"$(nproc)" MODE="$mode" "$build/attnd" "$build/attnctl" "${programs[@]/#/$build/tests/}" || continue
    for program in "${programs[@]}"; do judge "$mode $program" "$build/tests/$program"; done
    for script in $(scripts_of "$mode"); do
        judge "$mode $script" env ATTND="$PWD/$build/attnd" MODE="$mode" bash "tests/integration/$script.sh"
    done
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
