#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fetch_llhttp.sh - llhttp's C sources, of Debian's package node-llhttp, into build/llhttp: installed, that package brings a Node.js of 90 MB
# that nobody needs here. Nothing where the package is installed, or they are there already. Needs no root.
set -eu
cd "$(dirname "$0")/.."
if [ -e /usr/share/llhttp/llhttp.c ] || [ -e build/llhttp/usr/share/llhttp/llhttp.c ]; then exit 0; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
if ! (cd "$work" && apt-get download -q node-llhttp >said 2>&1 && dpkg-deb -x node-llhttp_*.deb files >>said 2>&1); then
    cat "$work/said" >&2
    echo 'fetch_llhttp: cannot have node-llhttp; try again after apt-get update, or install it' >&2
    exit 1
fi
mkdir -p build/llhttp
cp -r "$work/files/usr" build/llhttp/
