#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh install|uninstall daemon|lib - what `make install` and `make uninstall` do, by the environment's BUILD, DESTDIR and PREFIX.
#
# `install` notes each file with its digest in PREFIX/share/attnd/files.daemon (or files.lib). `uninstall` removes what is noted there and has
# that digest still: whatever somebody has added or changed stays, and changed files are named.
set -eu
shopt -s nullglob
cd "$(dirname "$0")/.."
action=$1 part=$2
root=${DESTDIR:-}${PREFIX:?}
list=$root/share/attnd/files.$part
version=$(sed -n 's/.*ATTND_VERSION "\(.*\)"/\1/p' config/version.h)

# Lines "MODE SOURCE TARGET"; a source "-> NAME" is a symbolic link.
daemon_files() {
    local file name
    echo "755 $BUILD/attnd bin/attnd"
    echo "755 $BUILD/attnctl bin/attnctl"
    for file in config/*.jsonc config/demo-workload.json; do echo "644 $file share/attnd/${file##*/}"; done
    for file in config/haproxy.cfg config/nginx.conf config/envoy.yaml packaging/prometheus/*.yml packaging/grafana/*.json packaging/debian/attnd.jsonc; do
        echo "644 $file share/doc/attnd/examples/${file##*/}"
    done
    for file in packaging/kubernetes/*.yaml packaging/kubernetes/*/*.yaml; do echo "644 $file share/doc/attnd/examples/${file#packaging/}"; done
    echo "755 packaging/kubernetes/make_gateway.py share/doc/attnd/examples/kubernetes/make_gateway.py"
    for file in CHANGELOG.md LICENSE NOTICE; do echo "644 $file share/doc/attnd/$file"; done
    find "$BUILD/documents" -type f | sort | while read -r file; do echo "644 $file share/doc/attnd/${file#"$BUILD"/documents/}"; done
    for file in man/*.[1-8]; do echo "644 $file share/man/man${file##*.}/${file##*/}"; done
    for file in clients/completion/*; do
        name=${file##*/}
        case $name in
            *.bash) echo "644 $file share/bash-completion/completions/${name%.bash}" ;;
            _*) echo "644 $file share/zsh/site-functions/$name" ;;
            *.zsh) echo "644 $file share/zsh/site-functions/_${name%.zsh}" ;;
        esac
    done
    echo "644 $BUILD/attnd.service lib/systemd/system/attnd.service"
    echo "644 packaging/attnd.sysusers lib/sysusers.d/attnd.conf"
}

lib_files() {
    local so=libattnd.so.$version
    echo "644 library/attnd.h include/attnd.h"
    echo "755 $BUILD/lib/$so lib/$so"
    echo "644 $BUILD/lib/libattnd.a lib/libattnd.a"
    echo "644 $BUILD/lib/attnd.pc lib/pkgconfig/attnd.pc"
    echo "link $so lib/libattnd.so.0"
    echo "link libattnd.so.0 lib/libattnd.so"
    for file in LICENSE NOTICE; do echo "644 $file share/doc/attnd/$file"; done
}

# Files that are made for this PREFIX.
make_files() {
    if [ "$part" = daemon ]; then
        sed "s|@PREFIX@|$PREFIX|g" packaging/attnd.service.in >"$BUILD/attnd.service"
        bash scripts/installed_documents.sh "$BUILD/documents" "$PREFIX"
    else
        sed "s|@PREFIX@|$PREFIX|; s|@VERSION@|$version|" library/attnd.pc.in >"$BUILD/lib/attnd.pc"
    fi
}

# Of a file, or of where a link leads.
digest() { if [ -L "$1" ]; then readlink "$1"; else cat "$1"; fi | sha256sum | cut -d' ' -f1; }

install_all() {
    local mode source target new
    make_files
    new=$(mktemp)
    while read -r mode source target; do
        if [ "$mode" = link ]; then
            mkdir -p "$root/$(dirname "$target")"
            ln -sfn "$source" "$root/$target"
        else
            install -D -m "$mode" "$source" "$root/$target"
        fi
        echo "$(digest "$root/$target")  $target" >>"$new"
    done <<<"$("${part}_files")"
    install -D -m 644 "$new" "$list"
    rm -f "$new"
    [ "$part" != daemon ] || [ -n "${DESTDIR:-}" ] || say_next
}

# What is left to whoever installs on this machine itself.
say_next() {
    cat <<TEXT
next: systemd-sysusers                                                        # the user attnd
      install -D -m 644 packaging/debian/attnd.jsonc /etc/attnd/attnd.jsonc   # the configuration, if there is none
      systemctl daemon-reload && systemctl enable --now attnd                 # the unit; docs/OPERATIONS.md
TEXT
}

# Folders of ours go when they are empty.
remove_folders() {
    local folder=$1
    while [ "$folder" != . ] && [ "$folder" != / ]; do
        case $folder in
            share/attnd* | share/doc/attnd*) rmdir "$root/$folder" 2>/dev/null || return 0 ;;
            *) return 0 ;;
        esac
        folder=$(dirname "$folder")
    done
}

uninstall_all() {
    local was target other
    if [ ! -e "$list" ]; then # one part of the two is enough
        if [ "$part" = daemon ] && [ ! -e "$root/share/attnd/files.lib" ]; then echo "make uninstall: nothing of attnd is noted in $root/share/attnd"; fi
        return 0
    fi
    for other in "$root"/share/attnd/files.*; do [ "$other" = "$list" ] || [ ! -e "$other" ] || break; done
    while read -r was target; do
        [ -e "$root/$target" ] || [ -L "$root/$target" ] || continue
        if [ "$other" != "$list" ] && [ -e "$other" ] && grep -q -F "  $target" "$other"; then
            continue # the other part has it, too
        elif [ "$(digest "$root/$target")" = "$was" ]; then
            rm -f "$root/$target"
            remove_folders "$(dirname "$target")"
        else
            echo "make uninstall: $root/$target was changed, and stays"
        fi
    done <"$list"
    rm -f "$list"
    remove_folders share/attnd
}

"${action}_all"
