#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_dist.sh - build/dist/attnd-VERSION.tar.gz of the commit at HEAD. Who makes it again, anywhere, gets the same bytes.
set -eu
cd "$(dirname "$0")/.."
[ -e .git ] || { echo 'make dist: this is no repository, but perhaps what make dist has made already' >&2; exit 1; }
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo 'make dist: changes that are not committed are not in it' >&2
full=$(bash scripts/version.sh full)
mkdir -p build/dist
# Owner, order and times are the commit's; gzip -n keeps no time of its own.
git -c tar.umask=0022 archive --format=tar --prefix="attnd-$full/" HEAD | gzip -9n >"build/dist/attnd-$full.tar.gz"
(cd build/dist && sha256sum "attnd-$full.tar.gz")
