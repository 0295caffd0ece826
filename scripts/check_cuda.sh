#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_cuda.sh - put everything that the tests on a GPU need into one folder, build/check-cuda, which runs on a machine
# that has nothing but a driver and NVRTC: the binaries, the shared libraries that they need, and the scripts. Where this
# machine has a GPU, run it.
#
#   build/check-cuda/run.sh                  every part (each takes at most 8 minutes)
#   PART=conformance build/check-cuda/run.sh one: conformance, engine, library, integration, sanitizer or bench
set -eu
cd "$(dirname "$0")/.."
bundle=build/check-cuda

# bring PROGRAM TO - a program behind a script that finds its libraries beside it, and the libraries. The C library comes
# with the machine.
bring() {
    local to=$bundle/$2
    mkdir -p "$(dirname "$to")"
    cp "$1" "$to.bin"
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec "$0.bin" "$@"\n' \
        "\"\$(dirname \"\$0\")/$(dirname "$2" | sed 's,[^/]*,..,g')/lib\"" >"$to"
    chmod +x "$to"
    ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
        grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|ld-linux[^/]*)\.so' |
        while read -r library; do cp -L "$library" $bundle/lib/; done
}

rm -rf $bundle
mkdir -p $bundle/lib $bundle/tests $bundle/docs
for program in attnd attnctl tests/conformance bench/bench_cuda; do
    bring build/release/$program build/release/$program
done
for client in build/release/registered/*; do
    [ ! -x "$client" ] || bring "$client" "$client"
done
if [ -e build/release/tests/library ]; then bring build/release/tests/library build/release/tests/library; fi
for tool in curl jq; do # used where the machine has none
    if command -v $tool >/dev/null; then bring "$(command -v $tool)" tools/$tool; fi
done
cp -r tests/integration tests/cuda tests/digests.txt tests/two_keys.py $bundle/tests/
cp docs/*.md $bundle/docs/
cp -r --parents clients/python $bundle/
cp -r config scripts README.md $bundle/
install -m 755 tests/cuda/run.sh $bundle/run.sh
git rev-parse --short=12 HEAD >$bundle/commit 2>/dev/null || echo unknown >$bundle/commit
echo "check-cuda: $(du -sh $bundle | cut -f1) in $bundle; on a machine with a GPU run $bundle/run.sh"
if [ -e /dev/nvidiactl ]; then
    exec bash $bundle/run.sh
fi
echo 'skip the tests on a GPU: there is none here'
