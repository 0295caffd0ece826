#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# checkdeps.sh - who may include whom (docs/ARCHITECTURE.md):
#
#   { server, library } -> scheduler -> { allocator, kernels } -> config          clients -> config
#
#   kernels/*.h        the contract: what scheduler/ and server/ may include of kernels/
#   kernels/cpu/       \
#   kernels/cuda/       } the backends: each includes itself and the contract, and no other backend
#   kernels/reference/ /
#
# kernels/*.[ch] include no backend: they call one through kernels/backend.h. Every include in quotes names a file
# from the root; a folder includes itself and what is listed for it. And a step is submitted by scheduler/step.c
# (scheduler/calibration.c times steps of its own before there is one), so that fences and times see every one.
#
# And every source names its licence.
set -eu
cd "$(dirname "$0")/.."

contract='config kernels'

# The folders that files of a folder may include; each name stands for its own files, not for those of its sub-folders.
allowed() {
    case $1 in
        config) echo config ;;
        allocator) echo 'allocator config' ;;
        kernels) echo "$contract" ;;
        kernels/cpu | kernels/reference) echo "$1 $contract" ;;
        kernels/cuda | kernels/cuda/device) echo "kernels/cuda kernels/cuda/device $contract" ;;
        scheduler) echo "scheduler allocator $contract" ;;
        library) echo "library scheduler allocator $contract" ;;
        server) echo "server scheduler allocator $contract" ;;
        clients) echo 'clients config' ;;
        clients/registered | clients/bench) echo 'clients/registered config' ;;
    esac
}

bad=0
complain() {
    echo "$1" >&2
    bad=1
}

# check_include FILE LINE TARGET
check_include() {
    local folder=${1%/*}
    if [ ! -e "$3" ]; then
        complain "$1:$2: \"$3\" is not a path from the root"
    elif [[ $folder != tests* && " $(allowed "$folder") " != *" ${3%/*} "* ]]; then
        complain "$1:$2: $folder/ may not include \"$3\""
    fi
}

while IFS=: read -r file line include; do
    target=${include#*\"}
    check_include "$file" "$line" "${target%%\"*}"
done < <(grep -rn --include='*.[ch]' --include='*.cu' --include='*.cuh' '^#include "' \
    config allocator kernels scheduler library server clients tests)

while IFS=: read -r file line _; do
    case $file in
        scheduler/step.c | scheduler/calibration.c) ;;
        *) complain "$file:$line: only scheduler/step.c may call attention_submit()" ;;
    esac
done < <(grep -rn --include='*.[ch]' '\<attention_submit(' scheduler library server)

while read -r file; do
    complain "$file: does not say SPDX-License-Identifier: Apache-2.0"
done < <(grep -rL --include='*.[ch]' --include='*.cc' --include='*.cu' --include='*.cuh' --include='*.sh' --include='*.py' \
    'SPDX-License-Identifier: Apache-2[.]0' config allocator kernels scheduler library server clients scripts tests)

[ $bad -eq 0 ] && echo 'checkdeps: every include keeps to the folder rules'
exit $bad
