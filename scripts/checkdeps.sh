#!/usr/bin/env bash
# checkdeps.sh - who may include whom (docs/ARCHITECTURE.md):
#
#   server -> scheduler -> { allocator, kernels } -> config
#
# Every include in quotes names a file from the root; a folder includes itself and those below it.
set -eu
cd "$(dirname "$0")/.."

allowed() {
    case $1 in
        config) echo config ;;
        allocator) echo 'allocator config' ;;
        kernels) echo 'kernels config' ;;
        scheduler) echo 'scheduler allocator kernels config' ;;
        server) echo 'server scheduler allocator kernels config' ;;
        clients) echo 'clients config' ;;
        tests) echo 'tests server scheduler allocator kernels config clients' ;;
    esac
}

bad=0
for folder in config allocator kernels scheduler server clients tests; do
    [ -d "$folder" ] || continue
    while IFS=: read -r file line include; do
        [ -n "$file" ] || continue
        target=${include#*\"}
        target=${target%\"*}
        if [ ! -e "$target" ]; then
            echo "$file:$line: \"$target\" is not a path from the root" >&2
            bad=1
        elif ! grep -qw "${target%%/*}" <<<"$(allowed "$folder")"; then
            echo "$file:$line: $folder/ may not include \"$target\"" >&2
            bad=1
        fi
    done <<<"$(grep -rn --include='*.[ch]' '^#include "' "$folder")"
done
[ $bad -eq 0 ] && echo 'checkdeps: every include keeps to the folder rules'
exit $bad
