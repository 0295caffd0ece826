#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_package.sh - the Debian package in a bare Debian: installed, started as its unit has it, upgraded, removed, purged; and lintian.
#
#   BASE=DIR   a bare Debian 12 (debootstrap --variant=minbase bookworm DIR), which is copied; without it one is made
#   BUILD=build/release
#
# Wants root, debootstrap, lintian, python3 and Debian's archive. systemd does not run in a chroot: tests/package/as_unit.py rebuilds what the unit says.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build/release}
. scripts/check_lib.sh
needs package debootstrap lintian python3 dpkg-deb systemd-analyze
export DEBFULLNAME='A. Maintainer' DEBEMAIL=maintainer@debian.org # lintian wants somebody
daemon=
root=$work/debian
end() {
    [ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null
    umount "$root/proc" 2>/dev/null
}
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"; }
ask() { curl -s --unix-socket "$root/run/attnd/test" "$@"; }
answers() { [ "$(ask -o /dev/null -w '%{http_code}' http://localhost/readyz)" = 200 ]; }
start() {
    python3 tests/package/as_unit.py --net "$root/usr/lib/systemd/system/attnd.service" "$root" --set 'listen=["127.0.0.1:8400","unix:/run/attnd/test"]' 2>"$work/log" &
    daemon=$!
    until answers; do kill -0 $daemon 2>/dev/null || { cat "$work/log"; return 1; }; sleep 0.05; done
}
stop() { kill -TERM $daemon && wait $daemon; local code=$?; daemon=; return $code; }
ctl() { "$BUILD/attnctl" --url "unix:$root/run/attnd/test" "$@" 2>&1; }
seen() { ctl attend 7 --json | jq -c .o | sha256sum; } # what K and V give
own() { inside stat -c '%U:%G %a' "$@" 2>/dev/null; }

BUILD=$BUILD REVISION=1 bash scripts/make_deb.sh >"$work/first" || exit 1
BUILD=$BUILD REVISION=2 bash scripts/make_deb.sh >"$work/second" || exit 1
first=$(tail -1 "$work/first") second=$(tail -1 "$work/second")
BUILD=$BUILD REVISION=2 bash scripts/make_deb.sh >/dev/null
cp "$second" "$work/again.deb"
BUILD=$BUILD REVISION=2 bash scripts/make_deb.sh >/dev/null
expect 'the same bytes twice' yes "$(cmp -s "$second" "$work/again.deb" && echo yes)"
expect 'lintian has no error' '' "$(lintian --allow-root --tag-display-limit 0 --display-level '>=error' "$second" 2>&1)"
expect 'systemd-analyze: 3.0 at most' yes "$(dpkg-deb --fsys-tarfile "$second" | tar -xO ./usr/lib/systemd/system/attnd.service >"$work/attnd.service"
    systemd-analyze security --offline=true --no-pager "$work/attnd.service" 2>&1 | awk '/Overall exposure/ {for (i = 1; i < NF; i++) if ($i == "attnd.service:") print ($(i + 1) <= 3.0 ? "yes" : $(i + 1))}')"

bare_debian "$root" || exit 1
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp "$first" "$second" "$root/root/"
inside apt-get update -q >"$work/said" 2>&1
inside apt-get install -y -q --no-install-recommends "/root/${first##*/}" >"$work/said" 2>&1
expect 'it is installed' 0 $?
expect 'with a user, without a shell' /usr/sbin/nologin "$(inside getent passwd attnd | cut -d: -f7)"
expect 'whose folders are its own' 'attnd:attnd 700 attnd:attnd 700' "$(own /var/lib/attnd /var/cache/attnd | paste -sd' ')"
expect 'the configuration is right' 0 "$(inside runuser -u attnd -- attnd --config /etc/attnd/attnd.jsonc --check-config >/dev/null 2>&1; echo $?)"
expect 'documents are for who installed it: links, paths and commands lead somewhere' '' "$(python3 tests/package/links.py "$root/usr/share/doc/attnd" "$root")"
expect 'the man page is there' yes "$([ -s "$root/usr/share/man/man8/attnd.8.gz" ] && echo yes)"

# ---- as the unit has it
start
expect 'it starts as its unit has it' 200 "$(ask -o /dev/null -w '%{http_code}' http://localhost/livez)"
status() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$daemon/status" | tr '\t' ' '; }
uid=$(inside id -u attnd) gid=$(inside id -g attnd) video=$(inside getent group video | cut -d: -f3)
expect 'as its user' "$uid $uid $uid $uid" "$(status Uid)"
expect 'in its groups' "$gid $gid $gid $gid, $video" "$(status Gid), $(status Groups | sed 's/ *$//')"
expect 'without capabilities' '0000000000000000 0000000000000000' "$(status CapEff) $(status CapBnd)"
expect 'with the filter, and no new privileges' '2 1' "$(status Seccomp) $(status NoNewPrivs)"
may_lock=$(prlimit --memlock --noheadings --output HARD)
grep -q 'LimitMEMLOCK stays' "$work/log" || may_lock=unlimited # else this machine allows no more
expect 'it may lock memory' "$may_lock" "$(awk '/Max locked memory/ {print $4}' "/proc/$daemon/limits")"
see() { nsenter --target "$daemon" --mount --root --wd sh -c "$1" 2>&1; }
expect 'it cannot write elsewhere, not even root could' 'sh: 1: cannot create /etc/x: Read-only file system' "$(see 'echo >/etc/x')"
expect 'where it saves it can' '' "$(see 'echo >/var/lib/attnd/x && rm /var/lib/attnd/x')"
expect 'no disk is in /dev' 'fd full null random shm tty urandom zero' "$(see 'ls /dev' | grep -v '^nvidia' | paste -sd' ')"
ask -o /dev/null --json '{"id":7,"max_tokens":64}' http://localhost/v1/sequences
ctl append 7 --count 40 >"$work/said"
held=$(seen)
expect 'a sequence has K and V' 40 "$(ask http://localhost/v1/sequences/7 | jq .length)"
expect 'its management listener is a socket of its own' 'attnd:attnd 600' "$(own /run/attnd/manage)"
ask -o /dev/null -N -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":2,"prompt":8,"decode":4}]}' http://localhost/v1/workloads
expect 'it computes' yes "$(ask http://localhost/metrics | awk '/^attnd_steps_total/ {print ($2 > 0 ? "yes" : "no")}')"
stop
expect 'it ends cleanly' 0 $?
expect 'and has saved' yes "$([ -s "$root/var/lib/attnd/snapshot" ] && echo yes)"

# ---- upgrade
echo '// mine' >>"$root/etc/attnd/attnd.jsonc"
inside dpkg -i "/root/${second##*/}" >"$work/said" 2>&1
expect 'it is upgraded' 0 $?
expect 'to the second' "$(basename "$second" | cut -d_ -f2)" "$(inside dpkg-query -W -f '${Version}' attnd)"
expect 'what its administrator has changed stays' '// mine' "$(tail -1 "$root/etc/attnd/attnd.jsonc")"
expect 'and what it has saved' 'attnd:attnd yes' "$(own /var/lib/attnd/snapshot | cut -d' ' -f1) $([ -s "$root/var/lib/attnd/snapshot" ] && echo yes)"
start
expect 'sequences are there again' 40 "$(ask http://localhost/v1/sequences/7 | jq .length)"
expect 'with K and V, to the bit' "$held" "$(seen)"
stop
expect 'it ends cleanly, again' 0 $?

# ---- remove and purge
inside dpkg -r attnd >"$work/said" 2>&1
expect 'it is removed' 0 $?
expect 'the daemon is gone; configuration and sequences are not' 'no yes yes' \
    "$([ -e "$root/usr/bin/attnd" ] && echo yes || echo no) $([ -e "$root/etc/attnd/attnd.jsonc" ] && echo yes) $([ -s "$root/var/lib/attnd/snapshot" ] && echo yes)"
inside dpkg -i "/root/${second##*/}" >"$work/said" 2>&1
expect 'installed again, it has them' "$held" "$(start && seen && stop)"
echo mine >"$root/etc/attnd/proxy.pem"
inside dpkg -P attnd >"$work/said" 2>&1
expect 'it is purged' 0 $?
expect 'with all that was its own, and nothing else' "$root/etc/attnd/proxy.pem" "$(find "$root/etc/attnd"/* "$root/var/lib/attnd" "$root/var/cache/attnd" "$root/usr/share/attnd" "$root/usr/share/doc/attnd" 2>/dev/null)"
expect 'dpkg has forgotten it' 1 "$(inside dpkg-query -W attnd >/dev/null 2>&1; echo $?)"

verdict 21
