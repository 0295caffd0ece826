#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libattnd as it is installed: what it exports and needs, a client that has attnd.h alone, and a client of today's header with a later
# library, whose structs are longer and which has more functions. The commands of docs/LIBRARY.md are among it.
. tests/integration/lib.sh
build=$(dirname "$ATTND")
lib=$build/lib
if [ ! -e "$lib/libattnd.so" ] || ! command -v readelf >/dev/null; then
    echo 'skip libattnd as it is installed: it is not built here'
    exit 0
fi
case $build in
    *san) # such a library wants its sanitizer in the program
        echo 'skip libattnd as it is installed: it has a sanitizer'
        exit 0
        ;;
esac

# ---- what it has and needs
declared=$(grep '^ATTND_API' library/attnd.h | grep -o '\<attnd_[a-z_]*(' | tr -d '(' | sort)
exported=$(nm -D --defined-only "$lib/libattnd.so" | awk '$2 == "T" { print $3 }' | sort)
expect 'the shared library exports what attnd.h declares, in a version' "$(sed 's/$/@@ATTND_0.1/' <<<"$declared")" "$exported"
expect 'and the archive' "$declared" "$(nm -g --defined-only "$lib/libattnd.a" | awk 'NF == 3 { print $3 }' | sort)"
expect 'they are at most thirty' true "$([ "$(wc -l <<<"$declared")" -le 30 ] && echo true)"
expect 'it needs the C library alone' '' \
    "$(readelf -d "$lib/libattnd.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v '^lib[cm]\.so\.6$\|^ld-linux')"

# ---- a client, from an installed library
make -s MODE="$(basename "$build")" install-lib DESTDIR="$WORK/root" PREFIX=/opt/attnd >"$WORK/log" 2>&1 || cat "$WORK/log"
export PKG_CONFIG_PATH=$WORK/root/opt/attnd/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$WORK/root
mkdir "$WORK/client"
cp clients/examples/minimal.c "$WORK/client"
# shellcheck disable=SC2046
client() { (cd "$WORK/client" && ${CC:-cc} -std=c11 -Wall -Wextra -Werror minimal.c -o "$1" "${@:2}" -lm); }
flags=$(pkg-config --cflags attnd)
# shellcheck disable=SC2086,SC2046
client shared $flags -L"$WORK/root/opt/attnd/lib" $(pkg-config --libs-only-l attnd)
# shellcheck disable=SC2086
client static $flags "$WORK/root/opt/attnd/lib/libattnd.a" -pthread
expect 'a client with attnd.h and the shared library' ok \
    "$(LD_LIBRARY_PATH=$WORK/root/opt/attnd/lib "$WORK/client/shared" | sed -n 's/^largest error .*: //p')"
expect 'and with the archive' ok "$("$WORK/client/static" | sed -n 's/^largest error .*: //p')"

# ---- a later library
mkdir -p "$WORK/later/library"
awk '/^struct attnd_[a-z_]* \{/ { in_struct = 1 } /^    size_t size;/ { sized = 1 }
    /^};/ { if (in_struct && sized) print "    uint64_t later, later_too;"; in_struct = sized = 0 } { print }
    /^ATTND_API int attnd_audit/ { print "ATTND_API int attnd_later(struct attnd *a);" }' library/attnd.h >"$WORK/later/library/attnd.h"
expect 'the later header is another one' "$(grep -c '^    size_t size;' library/attnd.h)" "$(grep -c 'later_too' "$WORK/later/library/attnd.h")"
{
    cat library/libattnd.map
    echo 'ATTND_0.2 { global: attnd_later; } ATTND_0.1;'
} >"$WORK/later/map"
echo '#include "library/attnd.h"
int attnd_later(struct attnd *a) { return a ? 0 : -1; }' >"$WORK/later/later.c"
${CC:-cc} -shared -fPIC -fvisibility=hidden -std=c11 -O1 -D_GNU_SOURCE -DATTND_CHECK=1 -I"$WORK/later" -I. -Wl,-soname,libattnd.so.0 \
    -Wl,--version-script="$WORK/later/map" -o "$WORK/later/libattnd.so.0" library/*.c "$WORK/later/later.c" "$build/daemon.a" \
    "$build/obj/cjson.o" -lm -pthread
expect 'it has one function more' "$(wc -l <<<"$declared") + 1" \
    "$(($(nm -D --defined-only "$WORK/later/libattnd.so.0" | grep -c ' T ') - 1)) + 1"
expect "today's client works with it" ok \
    "$(LD_LIBRARY_PATH=$WORK/later "$WORK/client/shared" | sed -n 's/^largest error .*: //p')"
expect 'and the tests, which were compiled with the header of today' '100%: 10 of 10' \
    "$(CK_RUN_CASE='turns in the calling thread' LD_LIBRARY_PATH=$WORK/later "$build/tests/library" |
        sed -n 's/^\(.*%\): Checks: \([0-9]*\), Failures: 0, Errors: 0/\1: \2 of 10/p')"
