#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bootstrap: its text, its sets, what a target needs, and what it says to who asks wrongly; it installs nothing here.
. tests/integration/lib.sh
mkdir "$WORK/bin"
export ASKED=$WORK/asked
cat >"$WORK/bin/apt-get" <<'STUB'
#!/bin/sh
echo "$*" >>"$ASKED"
case $* in *--print-uris*) printf "'http://a/a.deb' a.deb 59000000 MD5Sum:0\n'http://a/b.deb' b.deb 1000000 MD5Sum:0\n" ;; *) echo "Get:1 everything" ;; esac
STUB
printf '#!/bin/sh\nexit 1\n' >"$WORK/bin/dpkg-query" # nothing is there
printf '#!/bin/sh\necho "make $*"\n' >"$WORK/bin/make"
printf '#!/bin/sh\nexec "$@"\n' >"$WORK/bin/sudo"
chmod +x "$WORK/bin/"*
boot() { : >"$ASKED"; PATH=$WORK/bin:$PATH bash bootstrap "$@" 2>"$WORK/said"; }
asked() { grep '^install' "$ASKED" | tr ' ' '\n' | grep -v -e '^-' -e '^install$' | sort | paste -sd' '; }
names() { bash bootstrap --list "$@" | awk '{print $2}' | sort -u | paste -sd' '; }

expect 'it helps' 0 "$(bash bootstrap --help >"$WORK/help"; echo $?)"
expect 'with every set' '' "$(bash bootstrap --list | awk '{print $1}' | sort -u | while read -r set; do grep -q -w -e "$set" "$WORK/help" || echo "$set"; done)"
boot >/dev/null
expect 'alone it installs what building needs' "$(names demo)" "$(asked)"
expect 'and makes nothing' '' "$(boot | grep '^make')"
expect 'a target is made' 'make all|make demo' "$(boot demo | grep '^make' | sed 's/ -j[0-9]*//' | paste -sd'|')"
expect 'with settings' 'make MODE=debug all|make demo MODE=debug' "$(boot demo MODE=debug | grep '^make' | sed 's/ -j[0-9]*//' | paste -sd'|')"
expect 'it says what comes' '1 of 3: packages, 60 MB to download|2 of 3: build, about 3 minutes|3 of 3: demo' \
    "$(boot demo | sed -n 's/^bootstrap: \([0-9] of.*\)/\1/p' | sed 's/ minutes.*/ minutes/; s/demo,.*/demo/' | paste -sd'|')"
expect 'and not what apt says' '' "$(boot demo | grep Get:)"
expect 'a target that is not is found before anything is installed' "2 bootstrap: dmeo: no such target " "$(boot dmeo; echo "$? $(sed 's/;.*//' "$WORK/said") $(cat "$ASKED")")"
expect 'every target of the Makefile is one' '' "$(make help | sed -n 's/^  \([a-z][a-z -]*\)   .*/\1/p' | tr ' ' '\n' | grep . | while read -r target; do boot "$target" >/dev/null || echo "$target"; done)"
boot check >/dev/null
expect 'tests need more' "$(names demo check)" "$(asked)"
boot wheel CUDA=0 >/dev/null
expect 'a wheel needs few of them' "$(names demo wheel)" "$(asked)"
expect 'no compiler of tests' '' "$(asked | tr ' ' '\n' | grep -e clang -e qemu -e tmux)"
boot cuda-headers >/dev/null
expect "so do CUDA's headers" "$(names demo cuda-headers)" "$(asked)"
boot lint >/dev/null
expect 'so does lint' "$(names demo check lint)" "$(asked)"
boot check-browser >/dev/null
expect 'and the page' "$(names demo check check-browser)" "$(asked)"
boot --only docs >"$WORK/out"
expect 'a set alone' "$(names docs)" "$(asked)"
expect 'after which nothing is made' '' "$(grep '^make' "$WORK/out")"
expect 'no such set' "2 bootstrap: all: no such set; there are demo wheel cuda-headers check check-browser lint docs services package containers cluster" "$(boot --only all; echo "$? $(cat "$WORK/said")")"
expect 'no such option' '2 bootstrap: --olny: no such option (--help lists them)' "$(boot --olny; echo "$? $(cat "$WORK/said")")"
printf '#!/bin/sh\necho install ok installed\n' >"$WORK/bin/dpkg-query"
expect 'with all of them there it asks nobody' 'bootstrap: all packages are present ' "$(boot --only demo) $(cat "$ASKED")"
printf '#!/bin/sh\nexit 1\n' >"$WORK/bin/dpkg-query"
printf '#!/bin/sh\necho "E: no network"; exit 100\n' >"$WORK/bin/apt-get"
expect 'a failure of apt is one' 100 "$(boot demo >/dev/null; echo $?)"
expect 'and shown' 'E: no network' "$(head -1 "$WORK/said")"
expect 'docs/CI.md names every set' '' "$(bash bootstrap --list | awk '{print $1}' | sort -u | while read -r set; do grep -q -e "\`$set\`" docs/CI.md || echo "$set"; done)"
finish
