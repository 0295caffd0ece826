#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_journal.sh - one defect at a time is put into a copy of the sources, and the journal of a daemon that has it is checked by a
# daemon that has not, which must find it.
#
#   bash scripts/check_journal.sh [NAME]...       of tests/simulation/mutants.txt; without names those of the list below
#
# Prints "ok NAME" with the first record whose effect is another one, or "not ok NAME". A build and some seconds each.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -gt 0 ] || set -- leak_on_delete shared_block_written published_block_written promise_broken lease_not_cleared prompt_not_cut \
    leak_of_a_promise answered_too_early children_forgotten bucket_forgotten
make -j2 build/release/attnd >/dev/null || exit 1
sound=$PWD/build/release/attnd work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z | xargs -0 cp --parents -p -t "$work"
mkdir -p "$work/build"
for built in release llhttp; do [ ! -d build/$built ] || cp -rp build/$built "$work/build/"; done
failed=0

# The journals of the daemon that stands in the copy, checked one after the other until one differs.
look() {
    local seed daemon url
    for seed in 1 2 3 4 5 6; do
        rm -rf "$work/journal"
        mkdir "$work/journal"
        "$work/build/release/attnd" --config config/tiny.jsonc --backend cpu --set listen=127.0.0.1:0 --set "journal.path=$work/journal" \
            --set pool.blocks=40 --set pool.host_blocks=30 --set limits.sequences=40 2>"$work/log" &
        daemon=$!
        until url=$(sed -n 's/.*listening on \(http[^"]*\).*/\1/p' "$work/log") && [ "$url" ]; do sleep 0.05; done
        timeout 120 python3 tests/journal_traffic.py "$url" $seed 60 >/dev/null 2>&1
        kill -TERM $daemon 2>/dev/null
        for _ in $(seq 100); do kill -0 $daemon 2>/dev/null && sleep 0.1; done
        kill -9 $daemon 2>/dev/null
        wait $daemon 2>/dev/null
        said=$("$sound" --replay-check "$work/journal") || return 0
    done
    return 1
}
for name in "$@"; do
    IFS=@ read -r _ file old new < <(grep "^$name@" tests/simulation/mutants.txt)
    cp "$file" "$work/kept"
    OLD=${old//\\n/$'\n'} NEW=${new//\\n/$'\n'} perl -0pi -e 'BEGIN { $o = $ENV{OLD}; $n = $ENV{NEW} } $c += s/\Q$o\E/$n/; END { exit !$c }' \
        "$work/$file" && make -s -C "$work" build/release/attnd >"$work/made" 2>&1 || { echo "not ok $name: it is not built"; failed=1; }
    if look; then
        echo "ok $name: ${said##*/}"
    else
        echo "not ok $name: it was not found"
        failed=1
    fi
    cp "$work/kept" "$work/$file"
done
exit $failed
