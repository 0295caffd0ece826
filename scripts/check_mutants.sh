#!/usr/bin/env bash
# check_mutants.sh - one defect at a time is put into a copy of the sources, and the simulation must find each.
#
#   bash scripts/check_mutants.sh [NAME...]       all of tests/simulation/mutants.txt, or some
#
# Prints "ok NAME" for a mutant that was found, with what gave it away, and "not ok NAME" for one that was not.
set -u
cd "$(dirname "$0")/.." || exit 1
OPERATIONS=${OPERATIONS:-60000000} # the rarest is found in 12 244 histories
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
make -j2 build/release/tests/engine_simulation >/dev/null || exit 1
git ls-files -z | xargs -0 cp --parents -p -t "$copy"
mkdir -p "$copy/build"
cp -rp build/release "$copy/build/" # Objects of unchanged sources are not made again.

# mutate FILE OLD NEW - replace a text that stands exactly once.
mutate() {
    OLD=$2 NEW=$3 perl -0pi -e 'BEGIN { $o = $ENV{OLD}; $n = $ENV{NEW} } $c += s/\Q$o\E/$n/; END { exit !$c }' "$copy/$1"
}

found=0 missed=0
while IFS='@' read -r name file old new; do
    case $name in '' | '#'*) continue ;; esac
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    cp -p "$file" "$copy/$file.whole"
    if ! mutate "$file" "$old" "$new"; then
        echo "not ok $name: the text is not in $file any more"
        missed=$((missed + 1))
    elif ! make -s -C "$copy" build/release/tests/engine_simulation >"$copy/log" 2>&1; then
        echo "not ok $name: it does not compile"
        missed=$((missed + 1))
    elif "$copy/build/release/tests/engine_simulation" --operations "$OPERATIONS" --brief >"$copy/log" 2>/dev/null; then
        echo "not ok $name: it was not found in $OPERATIONS operations"
        missed=$((missed + 1))
    else
        echo "ok $name: $(grep -m 1 -E '^(seed|never)' "$copy/log" | cut -c1-160)"
        found=$((found + 1))
    fi
    mv "$copy/$file.whole" "$copy/$file"
    touch "$copy/$file"
done <tests/simulation/mutants.txt
echo "$found mutants found, $missed missed"
[ "$missed" -eq 0 ]
