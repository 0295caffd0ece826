#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh SOURCE... -- SCRIPT... - the static checkers that are installed; any finding fails.
set -eu
sources=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    sources+=("$1")
    shift
done
[ $# -eq 0 ] || shift

have() {
    command -v "$1" >/dev/null || { echo "lint: $1 is not installed, skipped"; return 1; }
}

if have clang-format; then
    clang-format --dry-run --Werror "${sources[@]}" kernels/cuda/device/*
fi
if have cppcheck; then
    cppcheck --quiet --error-exitcode=1 --std=c11 -I. --inline-suppr --suppress=missingIncludeSystem \
        --enable=warning,performance,portability "${sources[@]}"
fi
if have clang-tidy; then
    clang-tidy --quiet --warnings-as-errors='*' -p . \
        --checks='-*,bugprone-*,-bugprone-easily-swappable-parameters,-bugprone-narrowing-conversions,-bugprone-assignment-in-if-condition,-bugprone-reserved-identifier,-bugprone-sizeof-expression,-bugprone-macro-parentheses,-bugprone-branch-clone,-bugprone-misplaced-widening-cast,clang-analyzer-*,-clang-analyzer-valist.Uninitialized,-clang-analyzer-optin.performance.Padding,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling,-clang-analyzer-security.insecureAPI.strcpy,readability-misleading-indentation,readability-function-size' \
        --config='{CheckOptions: [{key: readability-function-size.LineThreshold, value: 120}]}' \
        "${sources[@]}" 2>/dev/null
fi
if have shellcheck; then
    shellcheck --severity=warning --exclude=SC1091,SC2120 "$@"
fi
echo "lint: ${#sources[@]} sources and $# scripts are clean"
