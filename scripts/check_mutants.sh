#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_mutants.sh - one defect at a time is put into a copy of the sources, and the tests must find each: those of
# tests/simulation/mutants.txt the simulation, those of tests/conformance/mutants.txt, which change the order of a sum, the bits of
# conformance's wide values, those of tests/emulation/mutants.txt the ring on the CPU.
#
#   bash scripts/check_mutants.sh [simulation | conformance | emulation | NAME]...       all, a list, or some; a NAME may be a pattern
#   KEEP=FOLDER bash scripts/check_mutants.sh 'device_*' 'amx_*'             conformance with each of them, to be run where there
#                                                                            is what it needs (PART=mutants of tests/cuda/run.sh)
#
# Prints "ok NAME" for a mutant that was found, with what gave it away, "not ok NAME" for one that was not, and "skip NAME" where
# this processor does not have its paths.
set -u
cd "$(dirname "$0")/.." || exit 1
OPERATIONS=${OPERATIONS:-60000000} # the rarest is found in 12 244 histories
EVERY=${EVERY:-8}                  # case of conformance's grid
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
make -j2 build/release/tests/engine_simulation build/release/tests/conformance >/dev/null || exit 1
git ls-files -z | xargs -0 cp --parents -p -t "$copy"
mkdir -p "$copy/build"
for built in release llhttp; do [ ! -d build/$built ] || cp -rp build/$built "$copy/build/"; done # Objects of unchanged sources are not made again.

# mutate FILE OLD NEW - replace a text that stands exactly once. \n is the end of a line.
mutate() {
    OLD=${2//\\n/$'\n'} NEW=${3//\\n/$'\n'} perl -0pi -e 'BEGIN { $o = $ENV{OLD}; $n = $ENV{NEW} } $c += s/\Q$o\E/$n/; END { exit !$c }' "$copy/$1"
}

# digest PROGRAM PATH - the bits of a path's outputs, or "differs" where it does not conform; nothing where there is none such
digest() {
    local every=$EVERY
    [[ $2 != *-spans-* ]] || every=1 # that grid is small
    "$1" --isa "$2" --every "$every" 2>/dev/null | sed -n 's/^ok .* digest \([0-9a-f]*\),.*/\1/p; s/^not ok .*/differs/p'
}

# The verdict over what stands in the copy, in $said: 0 found, 1 not found, 2 nothing that could find it
by_simulation() {
    if "$copy/build/release/tests/engine_simulation" --operations "$OPERATIONS" --brief >"$copy/log" 2>/dev/null; then
        said="it was not found in $OPERATIONS operations"
        return 1
    fi
    said=$(grep -m 1 -E '^(seed|never)' "$copy/log" | cut -c1-160)
}
declare -A sound_of # digests of paths without a mutant
by_conformance() { # PATH...
    local path sound got
    said=
    for path in "$@"; do
        [[ $path != cuda* || -e /dev/nvidiactl ]] || continue # no GPU here
        [ "${sound_of[$path]+known}" ] || sound_of[$path]=$(digest build/release/tests/conformance "$path")
        sound=${sound_of[$path]}
        [ "$sound" ] || continue
        got=$(digest "$copy/build/release/tests/conformance" "$path")
        if [ "$got" = "$sound" ]; then
            said="the bits of $path are the same"
            return 1
        fi
        said="$said${said:+, }$path $got instead of $sound"
    done
    [ "$said" ] || return 2
}
by_emulation() { # GEOMETRY
    ATTND=$copy/build/release/attnd PIPELINE=$* bash "$copy/tests/integration/17-emulated-kernels.sh" >"$copy/log" 2>&1
    said=$(grep -m 1 -o 'seed [0-9].*' "$copy/log" | cut -c1-200)
    [ -z "$said" ] || return 0
    said="the ring of $*: $(head -n 1 "$copy/log")"
    return 1
}

# chosen NAME LIST PATTERN... - whether a mutant is asked for
chosen() {
    local name=$1 list=$2 pattern
    shift 2
    [ $# -gt 0 ] || return 0
    for pattern in "$@"; do
        # shellcheck disable=SC2053
        [[ $name == $pattern || $list == "$pattern" ]] && return 0
    done
    return 1
}

found=0 missed=0 skipped=0
[ -z "${KEEP:-}" ] || mkdir -p "$KEEP"
declare -A programs=([simulation]=build/release/tests/engine_simulation [conformance]=build/release/tests/conformance
    [emulation]='')
for list in simulation conformance emulation; do
    program=${programs[$list]}
    while IFS='@' read -r name file old new paths; do
        case $name in '' | '#'*) continue ;; esac
        chosen "$name" $list "$@" || continue
        cp -p "$file" "$copy/$file.whole"
        if ! mutate "$file" "$old" "$new"; then
            said="the text is not in $file any more" verdict=1
        elif [ "$program" ] && ! make -s -C "$copy" "$program" >"$copy/log" 2>&1; then
            said='it does not compile' verdict=1
        elif [ "${KEEP:-}" ] && [ "$program" ]; then
            strip -o "$KEEP/$name" "$copy/$program"
            echo "$name $paths" >>"$KEEP/list"
            said="kept in $KEEP" verdict=2
        else
            # shellcheck disable=SC2086
            by_$list $paths
            verdict=$?
        fi
        case $verdict in
            0) echo "ok $name: $said" && found=$((found + 1)) ;;
            2) echo "skip $name: ${said:-nothing here has $paths}" && skipped=$((skipped + 1)) ;;
            *) echo "not ok $name: $said" && missed=$((missed + 1)) ;;
        esac
        mv "$copy/$file.whole" "$copy/$file"
        touch "$copy/$file"
    done <tests/$list/mutants.txt
done
echo "$found mutants found, $missed missed, $skipped skipped"
[ "$missed" -eq 0 ]
