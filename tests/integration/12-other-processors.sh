#!/usr/bin/env bash
# The kernels on processors that have less than this one, by emulation: without AVX2, and without AVX-512. What a processor lacks
# is not chosen and not met; the rest conforms.
. tests/integration/lib.sh
conformance=$(dirname "$ATTND")/tests/conformance
if ! command -v qemu-x86_64 >/dev/null || [ "$(uname -m)" != x86_64 ]; then
    echo 'skip kernels on other processors: qemu-user is not installed'
    finish
fi
case $ATTND in
    */asan/* | */tsan/* | */ubsan/*)
        echo 'skip kernels on other processors: sanitizers do not run under emulation'
        finish
        ;;
esac
# Which paths conform on a processor; every Nth case of the grid, since emulation is slow.
on() {
    qemu-x86_64 -cpu "$1" "$conformance" "${@:2}" 2>/dev/null |
        grep -v '^skip cuda' | sed -n 's/^\(ok\|not ok\|skip\) \([a-z0-9]*\).*/\1 \2/p' | sort | tr '\n' ' '
}
expect 'without AVX2' 'ok cpu ok cpu ok portable ok reference ok reference skip amx skip avx2 skip avx512 ' "$(on Nehalem --every 28)"
expect 'without AVX-512' 'ok avx2 ' "$(on Haswell --isa avx2 --every 87)"
expect 'and none of that there' 'skip avx512 skip amx ' "$(on Haswell --isa avx512)$(on Haswell --isa amx)"

qemu-x86_64 -cpu Nehalem "$ATTND" --set listen=127.0.0.1:0 --set pool.blocks=8 >/dev/null 2>"$WORK/log" &
DAEMON=$! # ended by the trap, at once
eventually listens_or_ended
expect 'the daemon chooses what is there' 1 "$(grep -c 'backend cpu (portable)' "$WORK/log")"
finish
