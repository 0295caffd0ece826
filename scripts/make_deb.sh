#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_deb.sh - build/dist/attnd_VERSION_ARCH.deb of what BUILD (build/release) has, by the files of packaging/debian and Debian's dpkg-dev.
#
#   REVISION=1                   the part of the version behind the dash
#   DEBFULLNAME, DEBEMAIL        who packages it
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build/release}
MAINTAINER="${DEBFULLNAME:-attnd maintainers} <${DEBEMAIL:-attnd@localhost.localdomain}>"
[ -n "${DEBEMAIL:-}" ] || echo 'make deb: set DEBFULLNAME and DEBEMAIL before you give the package to others' >&2
version=$(bash scripts/version.sh debian)-${REVISION:-1}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(bash scripts/version.sh time)} # dpkg-deb takes no later times
export SOURCE_DATE_EPOCH
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root doc=$work/root/usr/share/doc/attnd
umask 022

DESTDIR=$root PREFIX=/usr BUILD=$BUILD bash scripts/install.sh install daemon
rm "$root/usr/share/attnd/files.daemon" # dpkg knows them
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root"/usr/bin/*
rm "$doc/LICENSE" # Debian has one
install -m 644 packaging/debian/copyright "$doc/copyright"
mv "$doc/CHANGELOG.md" "$doc/changelog"
printf 'attnd (%s) unstable; urgency=medium\n\n  * /usr/share/doc/attnd/changelog.gz says what is new.\n\n -- %s  %s\n' \
    "$version" "$MAINTAINER" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" >"$doc/changelog.Debian"
gzip -9n "$doc/changelog" "$doc/changelog.Debian" "$root"/usr/share/man/man*/*
install -D -m 644 packaging/debian/attnd.jsonc "$root/etc/attnd/attnd.jsonc"
install -d "$root/DEBIAN"
echo /etc/attnd/attnd.jsonc >"$root/DEBIAN/conffiles"
install -m 755 packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm "$root/DEBIAN"

# dpkg-shlibdeps and dpkg-gencontrol want a source tree's debian/.
mkdir -p "$work/source/debian"
sed "s|@MAINTAINER@|$MAINTAINER|" packaging/debian/control.in >"$work/source/debian/control"
gzip -dc "$doc/changelog.Debian.gz" >"$work/source/debian/changelog"
(
    cd "$work/source"
    dpkg-shlibdeps -Tdebian/substvars "$root/usr/bin/attnd" "$root/usr/bin/attnctl"
    size=$(du -k -s --apparent-size "$root" | cut -f1)
    dpkg-gencontrol -pattnd -P"$root" -Tdebian/substvars -VInstalled-Size= -DInstalled-Size="$size" -fdebian/files -O"$root/DEBIAN/control"
)
(cd "$root" && find usr etc -type f ! -path 'etc/*' -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$root" -print0 | xargs -0 touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
mkdir -p build/dist
deb=build/dist/attnd_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$deb" >/dev/null
"$BUILD/attnd" --version | sed -n 's/^CUDA: /make deb: CUDA: /p' >&2
echo "$deb"
