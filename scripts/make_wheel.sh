#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_wheel.sh LIBRARY VERSION OUT - the Python package as a wheel, with the shared library in it, in the folder OUT.
#
# Its platform follows from the newest version of glibc's symbols that the library wants. Builds with setuptools and wheel of PYTHON
# (default: a virtual environment that is made for it, with both from PyPI).
set -eu
cd "$(dirname "$0")/.."
library=$(realpath "$1")
mkdir -p "$3"
out=$(realpath "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q 'setuptools<81' wheel
    PYTHON=$work/venv/bin/python
fi
glibc=$(objdump -T "$library" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
cp -r clients/python "$work/package"
cp LICENSE NOTICE "$work/package"
strip --strip-debug -o "$work/package/attnd/libattnd.so" "$library"
ATTND_VERSION=$2
ATTND_PLATFORM=manylinux_2_${glibc#GLIBC_2.}_$(uname -m)
export ATTND_VERSION ATTND_PLATFORM
(cd "$work/package" && "$PYTHON" setup.py -q bdist_wheel --dist-dir "$out") >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
ls "$out"/attnd-"$2"-py3-none-"$ATTND_PLATFORM".whl
