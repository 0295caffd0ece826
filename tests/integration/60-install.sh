#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make install` puts every file where it belongs, and `make uninstall` takes away these and nothing else: not what somebody has added, nor
# what somebody has changed. `make dist` makes the same bytes twice, and what it makes knows its commit.
. tests/integration/lib.sh
BUILD=${ATTND%/attnd}
place() { # ACTION - of the daemon's files, below $WORK/root
    DESTDIR=$WORK/root PREFIX=/opt/a BUILD=$BUILD bash scripts/install.sh "$1" daemon
}
here() { (cd "$WORK/root" && find . ! -type d | sort); }
have() { for file in "$@"; do [ -s "$WORK/root/opt/a/$file" ] || echo "$file"; done; }

place install
expect 'daemon, client, unit, user, demo, licence, documents, man pages' '' "$(have bin/attnd bin/attnctl lib/systemd/system/attnd.service \
    lib/sysusers.d/attnd.conf share/attnd/demo.jsonc share/attnd/demo-workload.json share/doc/attnd/LICENSE share/doc/attnd/NOTICE share/doc/attnd/README.md \
    share/doc/attnd/docs/API.md share/doc/attnd/docs/METRICS.md share/doc/attnd/CHANGELOG.md share/man/man8/attnd.8 share/man/man5/attnd.jsonc.5)"
expect 'examples, with what makes the route' '' "$(for name in haproxy.cfg attnd.jsonc kubernetes/{kustomization,attnd,gateway,podmonitor,gpu/attnd}.yaml kubernetes/make_gateway.py; do
    have "share/doc/attnd/examples/$name"
done)"
expect 'the route is made there' '' "$(python3 "$WORK/root/opt/a/share/doc/attnd/examples/kubernetes/make_gateway.py" 3 2>&1 | diff - packaging/kubernetes/gateway.yaml | head -3)"
expect 'every man page of the sources' '' "$(for page in man/*.[1-8]; do have "share/man/man${page##*.}/${page##*/}"; done)"
expect 'every completion' '' "$(for file in clients/completion/*; do
    [ ! -e "$file" ] || here | grep -q -e "/share/.*$(basename "$file" | sed 's/^_//; s/[.]bash$//; s/[.]zsh$//')" || echo "$file"
done)"
expect 'only they run' '' "$(find "$WORK/root" -type f -perm /111 | grep -v -e '/bin/attnd$' -e '/bin/attnctl$' -e '/kubernetes/make_gateway.py$')"
expect 'the unit starts what was installed' /opt/a/bin/attnd "$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$WORK/root/opt/a/lib/systemd/system/attnd.service")"
expect 'no file names the folder below which it was put' '' "$(grep -rl -F -e "$WORK" "$WORK/root")"
expect 'what was installed runs' "$("$ATTND" --version | head -1)" "$("$WORK/root/opt/a/bin/attnd" --version | head -1)"
expect 'documents are for who installed it: links, paths and commands lead somewhere' '' "$(python3 tests/package/links.py "$WORK/root/opt/a/share/doc/attnd" "$WORK/root")"
expect 'what is wrong with them is found' 6 "$(mkdir "$WORK/wrong" && printf '[a](docs/NONE.md) [b](#none)\n/opt/a/share/attnd/none.jsonc\nbuild/release/attnd\n<!-- a -->\n' >"$WORK/wrong/README.md" &&
    echo >"$WORK/wrong/OTHER.md" && python3 tests/package/links.py "$WORK/wrong" "$WORK/root" | wc -l)"

expect 'below a folder nothing is said' '' "$(place install)"
expect 'on this machine, what comes next, as docs/OPERATIONS.md has it' "3 $(sed -n 's/^    \(systemd-sysusers\|install -D\|systemctl daemon-reload\)/\1/p' docs/OPERATIONS.md | sed 's/ *#.*//' | paste -sd'|')" \
    "$(DESTDIR='' PREFIX=$WORK/here BUILD=$BUILD bash scripts/install.sh install daemon >"$WORK/said"; wc -l <"$WORK/said") $(sed 's/^next: //; s/^ *//; s/ *#.*//' "$WORK/said" | paste -sd'|')"
DESTDIR='' PREFIX=$WORK/here BUILD=$BUILD bash scripts/install.sh uninstall daemon
place install # the unit is made for a prefix

# ---- somebody's own
own=$WORK/root/opt/a/share/attnd/mine.jsonc changed=$WORK/root/opt/a/share/attnd/demo.jsonc other=$WORK/root/opt/a/bin/other
echo '{}' >"$own"
echo '// changed' >>"$changed"
echo mine >"$other"
echo notes >"$WORK/root/opt/a/share/doc/attnd/notes"
mkdir -p "$WORK/root/etc/attnd"
echo '{}' >"$WORK/root/etc/attnd/attnd.jsonc"
expect 'a file that was changed is named' "make uninstall: $changed was changed, and stays" "$(place uninstall)"
expect 'and stays, with all that is not ours' './etc/attnd/attnd.jsonc ./opt/a/bin/other ./opt/a/share/attnd/demo.jsonc ./opt/a/share/attnd/mine.jsonc ./opt/a/share/doc/attnd/notes' \
    "$(here | paste -sd' ')"
expect 'again there is nothing to do' "make uninstall: nothing of attnd is noted in $WORK/root/opt/a/share/attnd" "$(place uninstall)"
expect 'of the library nothing is said' '' "$(DESTDIR=$WORK/root PREFIX=/opt/a BUILD=$BUILD bash scripts/install.sh uninstall lib)"
rm -rf "$WORK/root"
place install
place install
place uninstall
expect 'of what nobody has touched nothing is left' '' "$(here)"
expect 'nor an empty folder of ours' '' "$(find "$WORK/root" -type d -name 'attnd*')"

# ---- the archive
if [ -e .git ] && git rev-parse -q --verify HEAD >/dev/null; then
    git clone -q --no-hardlinks . "$WORK/clone"
    bare() { make -C "$WORK/clone" LLHTTP_INCLUDE="$WORK/none" LLHTTP_DIR="$WORK/none" "$@" 2>&1 | sed -n 's/^Makefile:[0-9]*: //p'; }
    expect 'without bootstrap: make, make demo and make run say what is missing' "$(printf '%s\n' '*** missing: llhttp.h; run: bash bootstrap.  Stop.'{,,})" \
        "$(bare; bare demo; bare run -j2)"
    (cd "$WORK/clone" && bash scripts/make_dist.sh) >"$WORK/first"
    name=$(awk '{print $2}' "$WORK/first")
    cp "$WORK/clone/build/dist/$name" "$WORK/archive.tar.gz"
    (cd "$WORK/clone" && touch config/* && umask 077 && TZ=Asia/Tokyo LC_ALL=C bash scripts/make_dist.sh) >"$WORK/second"
    expect 'the same bytes twice' "$(cat "$WORK/first")" "$(cat "$WORK/second")"
    expect 'git would not commit it' '' "$(git -C "$WORK/clone" status --porcelain)"
    mkdir "$WORK/unpacked"
    tar -xzf "$WORK/archive.tar.gz" -C "$WORK/unpacked"
    expect 'one folder, named like it' "${name%.tar.gz}" "$(ls "$WORK/unpacked")"
    unpacked=$WORK/unpacked/${name%.tar.gz}
    expect 'outside a repository the commit is known' "$(git rev-parse HEAD | cut -c1-12) $(git log -1 --format=%ct)" \
        "$(bash "$unpacked/scripts/version.sh" commit) $(bash "$unpacked/scripts/version.sh" time)"
    expect 'also below another repository' "$(git rev-parse HEAD | cut -c1-12)" "$(git init -q "$WORK/unpacked" && bash "$unpacked/scripts/version.sh" commit)"
    expect 'a tag names it' "$(bash scripts/version.sh version)" "$(git -C "$WORK/clone" tag -f "v$(bash scripts/version.sh version)" >/dev/null && bash "$WORK/clone/scripts/version.sh" full)"
    (cd "$WORK/clone" && bash scripts/make_dist.sh) >/dev/null
    tagged=attnd-$(bash scripts/version.sh version)
    tar -xzf "$WORK/clone/build/dist/$tagged.tar.gz" -C "$WORK/unpacked"
    expect 'and the archive knows' "${tagged#attnd-}" "$(bash "$WORK/unpacked/$tagged/scripts/version.sh" full)"

    # dpkg orders packages as their commits follow each other (bug: by the commits' digits).
    cd "$WORK/clone" || exit 1
    git tag | xargs git tag -d >/dev/null
    commit() { # SECONDS - a commit of that time, and the version of its package
        GIT_AUTHOR_DATE="@$1 +0000" GIT_COMMITTER_DATE="@$1 +0000" git -c user.name=a -c user.email=a@localhost commit -q --allow-empty -m "$1"
        bash scripts/version.sh debian
    }
    now=$(git log -1 --format=%ct)
    versions=("$(bash scripts/version.sh debian)" "$(commit $((now + 1)))" "$(commit $((now + 11)))")
    expect 'a package between releases has the time of its commit' "$(bash scripts/version.sh version)~git$(date -u -d "@$((now + 11))" +%Y%m%d%H%M%S).$(git rev-parse HEAD | cut -c1-12)" "${versions[2]}"
    git tag "v$(bash scripts/version.sh version)"
    versions+=("$(bash scripts/version.sh debian)" "$(commit $((now + 12)))" "$(commit $((now + 100)))")
    expect 'a release has none' "$(bash scripts/version.sh version)" "${versions[3]}"
    bash scripts/make_dist.sh >"$WORK/said"
    archived=$(awk '{print $2}' "$WORK/said")
    tar -xmzf "build/dist/$archived" -C "$WORK/unpacked"
    expect 'an archive is packaged with the same version' "${versions[5]}" "$(bash "$WORK/unpacked/${archived%.tar.gz}/scripts/version.sh" debian)"
    sed -i 's/ATTND_VERSION ".*"/ATTND_VERSION "99.0.0"/' config/version.h
    versions+=("$(commit $((now + 101)))")
    if command -v dpkg >/dev/null; then
        expect 'for dpkg each is newer than the one before' '' "$(for ((i = 1; i < ${#versions[@]}; i++)); do
            dpkg --compare-versions "${versions[i - 1]}-1" lt "${versions[i]}-1" || echo "${versions[i - 1]} ${versions[i]}"
        done)"
    else
        lacks 'order versions of packages: dpkg is not installed'
    fi
    cd "$OLDPWD" || exit 1
else
    echo 'skip make dist: not in a repository'
fi
finish
