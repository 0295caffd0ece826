#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernels on processors that have less than this one, by emulation: without AVX2, and without AVX-512. What a processor lacks
# is not chosen and not met; the rest conforms.
. tests/integration/lib.sh
conformance=$(dirname "$ATTND")/tests/conformance
if ! command -v qemu-x86_64 >/dev/null || [ "$(uname -m)" != x86_64 ]; then
    lacks 'kernels on other processors: qemu-user is not installed'
    finish
fi
case $ATTND in
    */asan/* | */tsan/*)
        echo 'skip kernels on other processors: sanitizers do not run under emulation'
        finish
        ;;
esac
# conforms PROCESSOR OPTION..: a line "ok", "not ok" or "skip" and the name of a path, for each path of the CPU.
conforms() {
    qemu-x86_64 -cpu "$1" "$conformance" "${@:2}" 2>/dev/null |
        sed -n 's/^\(ok\|not ok\|skip\) \([a-z0-9-]*\).*/\1 \2/p' | grep -v ' cuda' | sort
}
# named WORD: the paths with it in the lines of $WORK/paths.
named() { sed -n "s/^$1 //p" "$WORK/paths" | xargs; }

conforms Nehalem --every 200 >"$WORK/paths" # every Nth case of a grid, since emulation is slow
expect 'without AVX2: what fails' '' "$(named 'not ok')"
expect 'what is not there' 'amx avx2 avx512' "$(named skip)"
for path in cpu-columns cpu-flashinfer portable reference reference-vllm; do
    expect "$path" "$path $path-extreme $path-wide" "$(named ok | xargs -n1 | grep -x "$path\(-wide\|-extreme\)\?" | xargs)"
done
for path in avx2 avx2-extreme avx2-wide; do conforms Haswell --isa $path --every 200; done >"$WORK/paths"
expect 'without AVX-512' 'avx2 avx2-extreme avx2-wide' "$(named ok)"
expect 'and none of that there' 'skip amx skip avx512' "$(
    { conforms Haswell --isa avx512; conforms Haswell --isa amx; } | sort | xargs)"

qemu-x86_64 -cpu Nehalem "$ATTND" --set listen=127.0.0.1:0 --set pool.blocks=8 >/dev/null 2>"$WORK/log" &
DAEMON=$! # ended by the trap, at once
eventually listens_or_ended
expect 'the daemon chooses what is there' 1 "$(grep -c 'backend cpu (portable)' "$WORK/log")"
finish
