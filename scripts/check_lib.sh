# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# check_lib.sh - what check_cluster.sh, check_container.sh, check_package.sh, check_pods.sh and check_systemd.sh begin and end with; sourced from the top of the repository.
#
#   needs SET TOOL...   root and these programs, which are in that set of bootstrap's; else exit 69
#   needs_tools SET TOOL...   the programs alone
#   expect NAME WANT GOT
#   bare_debian DIR     a bare Debian 12 there: a copy of BASE, or by debootstrap
#   with_authorities DIR   put this machine's own certificate authorities there, for a network whose proxy has one
#   verdict LEAST       print the sum; 0 if nothing failed and at least so much passed
#
# It makes the folder $work, in which the file `said` is for what programs print, and removes it at the end, after calling end() if there is one.
passed=0 failed=0
work=$(mktemp -d)
trap '! declare -F end >/dev/null || end; rm -rf --one-file-system "$work"' EXIT

self=$(basename "$0" .sh)
self=${self//_/-}
needs_tools() {
    local set=$1 tool
    shift
    for tool in "$@"; do
        command -v "$tool" >/dev/null || { echo "$self: $tool is missing: bootstrap $set has it" >&2; exit 69; }
    done
}
needs() {
    needs_tools "$@"
    [ "$(id -u)" -eq 0 ] || { echo "$self: wants root, for a Debian of its own" >&2; exit 69; }
}
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
        passed=$((passed + 1))
    else
        echo "not ok $1: wanted '$2', got '$3'"
        failed=$((failed + 1))
    fi
}
bare_debian() {
    if [ -n "${BASE:-}" ]; then cp -a "$BASE" "$1"; else debootstrap --variant=minbase bookworm "$1" >"$work/said"; fi
}
with_authorities() {
    mkdir -p "$1/usr/local/share/ca-certificates"
    find /usr/local/share/ca-certificates -name '*.crt' -exec cp -t "$1/usr/local/share/ca-certificates" {} +
}
verdict() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -ge "$1" ]
}
