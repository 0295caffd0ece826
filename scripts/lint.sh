#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh SOURCE... -- SCRIPT... - the static checkers that are installed; any finding fails. With CI=true, so does a checker that is not.
set -eu
sources=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    sources+=("$1")
    shift
done
[ $# -eq 0 ] || shift

have() {
    command -v "$1" >/dev/null && return
    [ "${CI:-}" != true ] || { echo "lint: $1 is not installed (bash bootstrap lint)" >&2; exit 1; }
    echo "lint: $1 is not installed, skipped"
    return 1
}

if have clang-format; then
    clang-format --dry-run --Werror "${sources[@]}" kernels/cuda/device/*
fi
if have cppcheck; then
    cppcheck --quiet --error-exitcode=1 --std=c11 -I. --inline-suppr --suppress=missingIncludeSystem --library=scripts/cppcheck.cfg \
        -j "$(nproc)" --enable=warning,performance,portability "${sources[@]}"
fi
if have clang-tidy; then # .clang-tidy says for what; flags are those of compile_commands.json
    printf '%s\0' "${sources[@]}" | xargs -0 -n 4 -P "$(nproc)" clang-tidy --quiet -p . 2>/dev/null
fi
if have shellcheck; then
    shellcheck --severity=warning --exclude=SC1091,SC2120 "$@"
fi
echo "lint: ${#sources[@]} sources and $# scripts are clean"
