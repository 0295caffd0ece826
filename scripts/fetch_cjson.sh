#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fetch_cjson.sh DIRECTORY - get cJSON's source, of the version of libcjson-dev that is installed, from Debian's archive.
#
# libattnd needs no library beyond the C library's, and Debian has cJSON as a shared library only, so its source is compiled in. apt
# checks the signatures. Lists and cache of its own: what is configured on this machine stays as it is, and no root is needed. Where
# there is no network, put cJSON.c into a folder and call make with CJSON_DIR=FOLDER.
set -eu
to=$1
version=$(dpkg-query -W -f '${source:Version}' libcjson-dev)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"

keys=/usr/share/keyrings/debian-archive-keyring.gpg
apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' 'Created-By: Packages' | sort -u |
    while read -r uri release component origin; do
        [ "$origin" != Debian ] || echo "deb-src ${KEYS:-$([ -e $keys ] && echo "[signed-by=$keys]")} $uri $release $component"
    done >"$work/sources.list"
apt=(apt-get -q -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/lists"
    -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=$(id -un)")
"${apt[@]}" update >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
(cd "$work" && "${apt[@]}" source "cjson=$version" >log 2>&1) || {
    cat "$work/log" >&2
    echo "fetch_cjson: no source of cjson $version; put cJSON.c into a folder and call make with CJSON_DIR=FOLDER" >&2
    exit 1
}
mkdir -p "$to"
cp "$work"/cjson-*/cJSON.c "$work"/cjson-*/cJSON.h "$work"/cjson-*/LICENSE "$to"
