#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# installed_documents.sh FOLDER PREFIX - write into FOLDER the documents for who has attnd installed, made of packaging/installed.md and of docs/.
#
# Programs and files have the names that they have there, a link to what is not installed is its text alone, and what stands between
# <!-- of the sources --> and <!-- end --> is left out. tests/package/links.py looks at the result.
set -eu
cd "$(dirname "$0")/.."
to=$1 share=$2/share
documents='API EVENTS GPU METRICS OPERATIONS POISON TOUR TRANSPORTS WORKLOADS'
images='fork.svg'
rm -rf "$to"
mkdir -p "$to/docs/images"
kept="(docs/)?(${documents// /|})\\.md(#[^)]*)?|images/(${images// /|})|#[^)]*|https?:[^)]*"
installed() { # FILE
    sed -E -e '/^<!-- of the sources -->$/,/^<!-- end -->$/d' -e '/^<!-- .* -->$/d' -e '/^PATH=\$PWD\/build\/release/d' \
        -e "s#@PREFIX@#$2#g; s#build/release/##g; s#config/([a-z0-9-]+\\.jsonc?)#$share/attnd/\\1#g" \
        -e "s#(config|packaging/prometheus|packaging/grafana|packaging/debian)/([a-z.]+\\.(cfg|conf|yaml|yml|jsonc?))#$share/doc/attnd/examples/\\2#g" \
        -e "s#packaging/(prometheus|grafana)/#$share/doc/attnd/examples#g; s#packaging/kubernetes#$share/doc/attnd/examples/kubernetes#g" \
        -e 's~\]\(\.\./docs/~](docs/~g' -e "s~\\]\\(($kept)\\)~]<\\1>~g; s~!?\\[([^]]*)\\]\\([^)]*\\)~\\1~g; s~\\]<([^>]*)>~](\\1)~g" "$1"
}
installed packaging/installed.md "$2" >"$to/README.md"
for document in $documents; do installed "docs/$document.md" "$2" >"$to/docs/$document.md"; done
for image in $images; do cp "docs/images/$image" "$to/docs/images/$image"; done
